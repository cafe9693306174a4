"""Late results: a call of which nobody knew has a result after all, and the ledger says so with the same commit.

Whoever is late may be very late: the session may be closed, or a restart may have come between. Then the entry of the
ledger is read from the store, once, for this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from laneway.agent.book import Book
from laneway.kernel.ledger import LEDGER_TRANSITIONS, Change, LedgerEntry
from laneway.kernel.task_entries import TaskEntry

if TYPE_CHECKING:
    from laneway.agent.host import Host

__all__ = ("settle", "settling")


async def settling(host: Host, entry: TaskEntry) -> Callable[[TaskEntry], None]:
    """What is to be called when a late result of a task counts, before that is written."""
    owner, engine = entry.owner, host.inbox.engine

    def open_book() -> Book | None:
        session = host.sessions.get((owner.tenant, owner.session))
        return session.book if session is not None and session.book.is_loaded else None

    stored = None if open_book() is not None else await Book(engine, owner).find_entry(entry.key)

    def write(ended: TaskEntry) -> None:
        book = open_book()  # it may have been read meanwhile
        if book is not None:
            settle(book, book.entries.get(ended.key), ended)
        else:
            settle(Book(engine, owner), stored, ended)

    return write


def settle(book: Book, known: LedgerEntry | None, task: TaskEntry) -> None:
    """A late result says what became of a call of which nobody knew."""
    succeeded = task.result is not None and task.result.success
    change = Change.SUCCEED if succeeded else Change.FAIL
    if known is not None and (known.state, change) in LEDGER_TRANSITIONS:
        book.end_entry(known, change, f"a late result of task {task.task_id}")
