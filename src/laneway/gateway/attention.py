"""What goes on at this moment, what waits and why, and what needs somebody: for whoever looks for five seconds.

Everything that lives is in memory; what the store is asked for has an index of its own. So an answer costs what is
going on now, and not what there has ever been. Counts end at a bound, and say so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.subagents import is_child_id, root_of
from laneway.external import TaskState
from laneway.gateway.lookup import sees_shared
from laneway.kernel.explain import lane_stats
from laneway.kernel.ledger import decode_entry
from laneway.mail import MessageState, TurnState

if TYPE_CHECKING:
    from laneway.gateway.access import Caller
    from laneway.gateway.service import Gateway
    from laneway.gateway.workspaces import Workspace
    from laneway.kernel.lanes import Lane
    from laneway.kernel.mailbox import Mailbox
    from laneway.kernel.messages import Item
    from laneway.kernel.task_entries import TaskEntry
    from laneway.mail import Approval
    from laneway.rows import MessageRow, StateRow

__all__ = ("COUNTED_MAX", "AtWork", "Care", "Cares", "Group", "Now", "cares_of", "now_of")

COUNTED_MAX: Final = 200  # of each kind from the store; what is more is said to be more
SHOWN_MAX: Final = 5
AT_WORK_MAX: Final = 50
LOOKED_AT: Final = 50  # messages of one session that are looked at one by one; the others wait for the first of them
EXAMPLES_MAX: Final = 3
RECENT_MS: Final = 3 * 24 * 3_600_000  # runs that broke before that trouble nobody any more
TEXT_MAX: Final = 240
CALL_ID: Final = re.compile(r" \([^()]*\):")  # of `bash (call-2): waits …`; people know it by its tool


# ---- what needs somebody ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """One thing that needs somebody. `since_ms` is the wall clock; `until_ms` when it ends by itself."""

    id: str
    title: str
    why: str = ""
    workspace: str = ""
    session_key: str = ""
    run_id: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cares:
    """Things of one kind: how many, whether there are more than were counted, and the newest of them."""

    count: int = 0
    more: bool = False
    items: Sequence[Care] = ()


async def cares_of(gateway: Gateway, caller: Caller, workspaces: Sequence[Workspace]) -> dict[str, Cares]:
    """What needs somebody, by kind; lanes and limits only for those who see what all tenants share."""
    found: dict[str, list[Care]] = {name: [] for name in ("approvals", "ledger", "dead_letters", "tasks", "runs")}
    more: set[str] = set()
    hidden: Counter[str] = Counter()
    since = gateway.env.clock.wall_ms() - RECENT_MS
    for workspace in workspaces:
        approvals = workspace.inbox.approvals(tenant=caller.tenant)
        found["approvals"] += (_of_approval(each, workspace) for each in approvals)
        found["tasks"] += _untaken(workspace, caller)
        troubles = await gateway.store.history.troubles(caller.tenant, workspace.name, limit=COUNTED_MAX)
        found["ledger"] += map(_of_call, troubles.unknown[:SHOWN_MAX])  # what is only counted is not decoded
        found["dead_letters"] += [*_dead_calls(workspace, caller), *map(_of_letter, troubles.dead[:SHOWN_MAX])]
        found["runs"] += _broken(workspace, troubles.broken, since)
        hidden["ledger"] += len(troubles.unknown[SHOWN_MAX:])
        hidden["dead_letters"] += len(troubles.dead[SHOWN_MAX:])
        kept = {"ledger": len(troubles.unknown), "dead_letters": len(troubles.dead), "runs": len(troubles.broken)}
        more.update(name for name, count in kept.items() if count >= COUNTED_MAX)
    shared = sees_shared(caller)
    lanes = list(gateway.lanes.engine.kernel.registry.lanes.values()) if shared else []
    wall, now = gateway.lanes.engine.wall_ms(), gateway.lanes.engine.now()
    found["lanes"] = [_of_paused(lane, now) for lane in lanes if lane.paused]
    found["limits"] = [_of_closed(lane) for lane in lanes if (lane.closed_wall_ms or 0) > wall]
    return {name: _newest(cares, hidden[name], is_more=name in more) for name, cares in found.items()}


def _newest(cares: list[Care], hidden: int, *, is_more: bool) -> Cares:
    cares.sort(key=lambda care: (-(care.since_ms or 0), care.id))
    return Cares(count=len(cares) + hidden, more=is_more, items=tuple(cares[:SHOWN_MAX]))


def _of_approval(approval: Approval, workspace: Workspace) -> Care:
    return Care(
        id=approval.id,
        title=approval.action,
        why=_short(approval.why),
        workspace=workspace.name,
        session_key=approval.session_key,
        run_id=approval.turn_id,
        since_ms=approval.asked_ms,
        until_ms=approval.expires_ms,
    )


def _of_call(row: StateRow) -> Care:
    entry = decode_entry(row)
    return Care(
        id=entry.id,
        title=entry.tool,
        why=_short(entry.reason or "it was cut off, and nobody knows how far it came"),
        workspace=row.workspace,
        session_key=row.session,
        run_id=entry.run_id,
        since_ms=entry.started_ms or None,
    )


def _of_letter(row: MessageRow) -> Care:
    body: dict[str, Any] = json.loads(row.body)
    return Care(
        id=row.id,
        title=_short(str(body.get("text", ""))),
        why=_short(row.reason),
        workspace=row.workspace,
        session_key=row.session,
        since_ms=row.ended_ms or None,
    )


def _dead_calls(workspace: Workspace, caller: Caller) -> Iterable[Care]:
    """The calls of tools that failed for good, of sessions in memory."""
    for session in workspace.live_sessions():
        if session.owner.tenant == caller.tenant:
            for letter in session.dead_letters():
                yield Care(
                    id=letter["command_id"],
                    title=letter["command_type"],
                    why=_short(str(letter["error"])),
                    workspace=workspace.name,
                    session_key=session.session_id,
                    since_ms=letter["failed_at"],
                )


def _untaken(workspace: Workspace, caller: Caller) -> Iterable[Care]:
    """Tasks for which there is no worker; one that waits for a worker that is busy needs nobody."""
    desk = workspace.host.desk
    desk.catch_up()
    known: dict[Any, str] = {}
    by_name = sees_shared(caller)
    for entry in desk.board.live.values():
        if entry.owner.tenant == caller.tenant and entry.published and entry.state is TaskState.PENDING:
            alike = (entry.kind, entry.held_due)
            if alike not in known:
                known[alike] = desk.hall.why(entry, by_name=by_name) if desk.hall.has_nobody(entry) else ""
            if known[alike]:
                yield _of_task(entry, known[alike])


def _of_task(entry: TaskEntry, why: str) -> Care:
    return Care(
        id=entry.task_id,
        title=entry.command_type,
        why=why,
        workspace=entry.owner.workspace,
        session_key=entry.owner.session,
        run_id=entry.run_id,
        since_ms=entry.created_ms,
    )


def _broken(workspace: Workspace, rows: Sequence[StateRow], since_ms: int) -> Iterable[Care]:
    """Runs that did not come to their end lately; those of sub-agents are their parent's care.

    A run of a session at rest is none of them: it goes on by itself.
    """
    for row in rows:
        body: dict[str, Any] = json.loads(row.body)
        ended = body.get("ended_ms") or 0
        rests = workspace.rest.holds(workspace.owner(row.tenant, row.session), body.get("messages", ()))
        if ended >= since_ms and not is_child_id(row.session) and not rests:
            yield Care(
                id=row.id,
                title=row.state,
                why=_short(str(body.get("reason") or "")),
                workspace=row.workspace,
                session_key=row.session,
                run_id=row.id,
                since_ms=ended,
            )


def _of_paused(lane: Lane, now: int) -> Care:
    waiting = lane_stats(lane, now=now).waiting
    verb = "wait" if waiting > 1 else "waits"
    return Care(id=lane.name, title=lane.name, why=f"it is paused, and {waiting or 'nothing'} {verb} there")


def _of_closed(lane: Lane) -> Care:
    return Care(id=lane.name, title=lane.name, why=lane.closed_reason, until_ms=lane.closed_wall_ms)


# ---- what goes on ----


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """A session in which a run goes on. `doing` is one of `model`, `tools`, `waiting`, `starting`, `ending`."""

    session_key: str
    workspace: str
    run_id: str
    state: str
    doing: str
    words: str
    tools: Sequence[str] = ()
    since_ms: int
    waiting: int = 0


@dataclass(slots=True, kw_only=True)
class Group:
    """Messages that wait for the same thing. `why` is a word for it, `words` are a sentence."""

    why: str
    words: str
    lane: str = ""
    count: int = 0
    sessions: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Now:
    """What goes on in some workspaces at this moment."""

    running: int = 0
    waiting: int = 0
    sessions: int = 0
    at_work: list[AtWork] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)


def now_of(caller: Caller, workspaces: Sequence[Workspace]) -> Now:
    """What runs, and what waits for what. Those that have run longest come first."""
    now = Now()
    groups: dict[tuple[str, str], Group] = {}
    runs: list[tuple[int, Workspace, Mailbox]] = []
    for workspace in workspaces:
        for owner, box in workspace.inbox.engine.kernel.boxes.items():
            if owner.tenant != caller.tenant:
                continue
            if box.turn is not None:
                runs.append((box.turn.began_ms, workspace, box))
            if box.waiting:
                now.waiting += box.waiting
                now.sessions += 1
                _count_waiting(workspace, box, groups)
    runs.sort(key=lambda run: run[0])
    now.running = len(runs)
    elsewhere = _elsewhere(workspaces, caller) if runs else {}
    now.at_work = [_at_work(workspace, box, elsewhere) for _, workspace, box in runs[:AT_WORK_MAX]]
    now.groups = sorted(groups.values(), key=lambda group: -group.count)
    return now


def _elsewhere(workspaces: Sequence[Workspace], caller: Caller) -> dict[str, str]:
    """By run: for which worker it waits, as far as calls of it are made elsewhere."""
    found: dict[str, str] = {}
    for workspace in workspaces:
        desk = workspace.host.desk
        for entry in desk.board.live.values():
            if entry.owner.tenant == caller.tenant and entry.published and entry.run_id not in found:
                why = desk.hall.why(entry) if len(found) < AT_WORK_MAX else ""
                who = "a worker" if entry.state is TaskState.PENDING else f"worker {entry.worker}"
                found[entry.run_id] = f"waits for {who}: {entry.command_type}{f'; {why}' if why else ''}"
    return found


def _at_work(workspace: Workspace, box: Mailbox, elsewhere: Mapping[str, str]) -> AtWork:
    turn, owner = box.turn, box.owner
    assert turn is not None
    session = workspace.host.sessions.get((owner.tenant, owner.session))
    run = None if session is None else session.current_run()
    tools = () if run is None or run.run_id != turn.id else run.tools
    waits = "" if run is None or run.run_id != turn.id else run.reason
    doing, words = _doing(turn.state, tools, waits)
    asked = [each.approval.action for each in box.approvals.values() if each.approval.turn_id == turn.id]
    if asked:
        doing, words = "waiting", f"waits for an approval: {', '.join(asked)}"
    if turn.cancelled:
        doing, words = "ending", f"is being ended: {turn.cancelled}"
    elif doing == "waiting" and not asked and not waits and session is not None:
        words = elsewhere.get(turn.id) or CALL_ID.sub(":", session.explain().partition("\n")[0]) or words
    return AtWork(
        session_key=owner.session,
        workspace=owner.workspace,
        run_id=turn.id,
        state=turn.state.value,
        doing=doing,
        words=_short(words),
        tools=tools,
        since_ms=turn.began_ms,
        waiting=box.waiting,
    )


def _doing(state: TurnState, tools: Sequence[str], waits_for: str) -> tuple[str, str]:
    if waits_for:
        return "waiting", f"waits: {waits_for}"
    if tools:
        return "tools", f"runs {', '.join(tools)}"
    match state:
        case TurnState.STARTING:
            return "starting", "begins"
        case TurnState.ACTING:
            return "waiting", "waits for its tools"
        case TurnState.COMPACTING:
            return "model", "sums up what was said"
        case TurnState.DELIVERING:
            return "ending", "delivers its answer"
        case TurnState.WAITING:
            return "waiting", "waits"
        case _:
            return "model", "the model answers"


def _count_waiting(workspace: Workspace, box: Mailbox, groups: dict[tuple[str, str], Group]) -> None:
    """Say of each message of a session what it waits for; of those far behind, what the first of them does."""
    engine = workspace.inbox.engine
    is_unattended = engine.is_unattended(box.owner)
    rests = workspace.rest.words((box.owner.tenant, root_of(box.owner.session)))
    seen: dict[tuple[str, str], int] = {}
    looked = 0
    head: tuple[str, str] | None = None
    for item in box.items.values():
        if looked >= LOOKED_AT or looked >= box.waiting:
            break
        if item.state not in (MessageState.QUEUED, MessageState.PARKED, MessageState.HELD):
            continue
        looked += 1
        why = _why(box, item, is_unattended=is_unattended)
        why = ("rests", "") if why[0] == "opening" and rests else why
        head = head or (why if why[0] not in ("held", "steer") else None)
        seen[why] = seen.get(why, 0) + 1
    rest = box.waiting - looked
    if rest > 0:
        why = head or next(iter(seen), ("order", ""))
        seen[why] = seen.get(why, 0) + rest
    for (why_, lane), count in seen.items():
        group = groups.get((why_, lane))
        if group is None:
            words = WORDS[why_]
            if why_ == "slot":
                words = engine.slot_reason(box.owner) or f"waits for a slot of lane {lane!r}"
            elif why_ == "rests":
                words = rests
            elif why_ == "setup":
                words = f"its turn could not be begun: {_short(box.setup_error)}"
            group = groups[why_, lane] = Group(why=why_, words=words, lane=lane)
        elif why_ == "rests" and group.words != rests:
            group.words = WORDS[why_]
        group.count += count
        group.sessions += 1
        if len(group.examples) < EXAMPLES_MAX:
            group.examples.append(box.owner.session)


WORDS: Final = {
    "held": "held until somebody releases it",
    "steer": "goes into the running turn at its next boundary",
    "approval": "the run before it waits for an approval",
    "run": "the run before it goes on",
    "setup": "its turn could not be begun",
    "slot": "waits for a slot",
    "opening": "its session is being opened",
    "rests": "its session rests, and says itself what it waits for",
    "quiet": "waits for a quiet moment: more may come",
    "order": "others are before it",
}


def _why(box: Mailbox, item: Item, *, is_unattended: bool) -> tuple[str, str]:
    """A word for what a message waits for, and the lane, if it is one."""
    turn = box.turn
    if item.state is MessageState.HELD:
        return "held", ""
    if item.state is MessageState.PARKED:
        return "steer", ""
    if turn is not None:
        asked = any(each.is_awaited and each.approval.turn_id == turn.id for each in box.approvals.values())
        return ("approval", "") if asked else ("run", "")
    if box.setup_error:
        return "setup", ""
    if box.requested is not None:
        return ("opening", "") if is_unattended else ("slot", box.requested[0])
    return "quiet", ""


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
