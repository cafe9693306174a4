"""What holds for the histories of all runs of a world: each replays to the same bytes, by today's code, too."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping

from laneway.agent import AsyncSession
from laneway.agent.replays import SessionCode, history_of
from laneway.errors import HistoryError, LanewayError, UnknownRunError
from laneway.kernel.histories import RunHistory, read_history, write_history
from laneway.kernel.replaying import diff, play
from laneway.sim.shadow import LawBrokenError
from laneway.stores.memory import MemoryDisk

__all__ = ("check_replays",)


async def check_replays(
    disk: MemoryDisk, sessions: Mapping[str, AsyncSession], rng: random.Random, *, changed: Container[str] = ()
) -> int:
    """Replay every run of these sessions; how many there were that were recorded.

    Those that were `changed` since (which of their calls may run beside each other) need not go the same way today.
    """
    recorded = 0
    for row in list(disk.states.values()):
        session = sessions.get(row.session)
        if row.kind != "turn" or session is None:
            continue
        try:
            history = await history_of(session.host.inbox.engine.store.history, session.owner, row.id)
        except UnknownRunError:  # it was ended before its model had answered
            continue
        recorded += history.is_recorded
        check_history(history, None if row.session in changed else session, rng)
    return recorded


def check_history(history: RunHistory, session: AsyncSession | None, rng: random.Random) -> None:
    """One run: its file is read as it was written, it replays to the same bytes, and half of it is refused.

    With a session it does so by the code of today, too.
    """
    text = write_history(history)
    if read_history(text) != history:
        raise LawBrokenError(f"the history of {history.run_id} is another one when it is read back")
    for code in (None, SessionCode(session)) if history.is_recorded and session is not None else (None,):
        try:
            again = play(history, code)
        except LanewayError as error:
            told = "\n".join(str(step) for step in history.steps)
            raise LawBrokenError(f"{error}\n{told}") from error
        if write_history(again.history) != text:
            raise LawBrokenError(f"run {history.run_id} replays to other bytes")
    if (parted := diff(history, history)) is not None:
        raise LawBrokenError(f"run {history.run_id} is not like itself: {parted}")
    cut = rng.randrange(1, len(text) - 1)
    try:
        read_history(text[:cut])
    except HistoryError:
        return
    raise LawBrokenError(f"the first {cut} characters of the history of {history.run_id} pass for a whole one")
