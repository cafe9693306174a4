"""What a message forgets that has rolled back a run of a session at rest.

Nobody was there to do it when it came: the kernel knows what was put off, and not what was said there. So it is done
when the turn of that message begins, before its model hears anything. To do it twice changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from laneway.agent.loop import Run

__all__ = ("forget_rolled_back",)

PAGE: Final = 1_000


async def forget_rolled_back(run: Run) -> None:
    """Take out of the transcript, and of what the model hears, what the messages of a run have rolled back."""
    gone = {each for item in run.turn._entry.items for each in item.forgets}  # noqa: SLF001 - the turn of this run
    if not gone:
        return
    engine, owner = run.session.host.inbox.engine, run.turn._entry.owner  # noqa: SLF001
    for message_id in gone:
        run.book.forget_run_over(message_id)
    history = engine.store.history
    rows = [row for row in [await history.message(each) for each in gone] if row is not None]
    after = min((row.seq for row in rows), default=0)  # a line comes after the message that it is of
    while page := await history.entries(owner, after_seq=after, limit=PAGE):
        engine.kernel.forget_entries(owner, [each for each in page if gone & {each.message_id, each.turn_id}])
        after = page[-1].seq
    engine.carry_out()
