"""What a job in a lane is: the turn of a session, a call of a model, a call of a tool; and whose it is.

Lanes know jobs by their labels only. Whose a job is decides what a caller sees of it, so it is never guessed from a
name: the turn of a session carries its owner, a lane of tools belongs to an open session, and what was submitted from
inside another job is of whoever that one is of. A job whose owner cannot be told is nobody's, and is shown to nobody
but as something that takes up a slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.host import MODEL_LANES
from laneway.gateway.lookup import current_turn
from laneway.kernel.jobs import Entry
from laneway.rows import Owner
from laneway.runtime.handles import Job

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession
    from laneway.gateway.service import Gateway
    from laneway.gateway.workspaces import Workspace
    from laneway.kernel.lanes import Lane

__all__ = ("JOB", "MODEL", "TOOL", "TURN", "Census", "Work")

TURN: Final = "turn"
MODEL: Final = "model"
TOOL: Final = "tool"
JOB: Final = "job"
SESSION_TURNS: Final = "session:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a job is. `owner` None: nobody knows whose it is."""

    kind: str
    owner: Owner | None = None
    run_id: str = ""
    tool: str = ""


NOBODYS: Final = Work(kind=JOB)


class Census:
    """Who is there at one moment: the open sessions by the names of their lanes. Made anew for each look."""

    def __init__(self, gateway: Gateway) -> None:
        self._workspaces = gateway.workspaces
        self.sessions: dict[str, tuple[Workspace, AsyncSession]] = {}
        """The sessions whose tools have lanes, by what the names of these begin with."""
        for workspace in gateway.workspaces.values():
            for session in workspace.host.sessions.values():
                if session.lanes is not None:
                    self.sessions[session.lanes.scope] = (workspace, session)

    def work_of(self, entry: Entry) -> Work:
        """What a job is, and whose."""
        owner = _owner_in(entry)
        if owner is not None:
            return Work(kind=TURN, owner=owner, run_id=self._run_of(owner, entry))
        for lane in entry.lanes:
            found = self.sessions.get(lane.name.rpartition("/")[0])
            if found is not None:
                return self._call_of(entry, found[1])
        above = _above(entry)
        if above is None:
            return NOBODYS
        around = self.work_of(above)
        kind = MODEL if any(lane.name.startswith(MODEL_LANES) for lane in entry.lanes) else JOB
        return Work(kind=kind, owner=around.owner, run_id=around.run_id)

    def owner_of_lane(self, lane: Lane) -> Owner | None:
        """Whose lane it is, if it is of one session; None for others, and while nobody can tell."""
        scope, _, short = lane.name.rpartition("/")
        found = self.sessions.get(scope)
        if found is not None:
            return found[1].owner
        if not short.startswith(SESSION_TURNS):
            return None
        at_work = next(iter(lane.stack or ()), None) or next(iter(lane.queue), None)
        return None if at_work is None else self.work_of(at_work).owner

    def _call_of(self, entry: Entry, session: AsyncSession) -> Work:
        assert session.lanes is not None
        tool, is_model = session.lanes.call_of(entry.id)
        above = _above(entry)
        run_id = "" if above is None else self.work_of(above).run_id  # a call in the background has outlived its run
        return Work(kind=MODEL if is_model else TOOL, owner=session.owner, run_id=run_id, tool=tool)

    def _run_of(self, owner: Owner, entry: Entry) -> str:
        workspace = self._workspaces.get(owner.workspace)
        turn = None if workspace is None or entry.attempt == 0 else current_turn(workspace, owner)
        return "" if turn is None else turn.id


def _owner_in(entry: Entry) -> Owner | None:
    """The session that a turn is asked for: the inbox submits nothing else."""
    given: tuple[Any, ...] = entry._args if isinstance(entry, Job) else ()  # noqa: SLF001 - lanes know no sessions
    return given[0] if given and isinstance(given[0], Owner) else None


def _above(entry: Entry) -> Entry | None:
    """The live job that it was submitted from."""
    up = entry.up
    while up is not None and up.state.is_final:
        up = up.up
    return up
