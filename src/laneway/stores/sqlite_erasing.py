"""How an SQLite file forgets: a slice of a session's rows in one short transaction, so that commits get their turn.

When all goes, what is live goes first: should the process die in between, nothing of the session begins again.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from laneway.rows import HISTORY_KINDS, Owner
from laneway.stores.sqlite_writes import begin
from laneway.stores.statements import statement

__all__ = ("erase_slice",)

SEQ_MAX: Final = 2**63 - 1


def erase_slice(connection: sqlite3.Connection, owner: Owner, until_seq: int | None, limit: int, *, epoch: int) -> int:
    """Take away at most so many rows (and the blobs they were the last to name); how many rows went."""
    begin(connection, epoch)
    facts = {**owner._asdict(), "until_seq": SEQ_MAX if until_seq is None else until_seq, "all": until_seq is None}
    gone = 0
    if until_seq is None:
        gone += connection.execute(statement("erase_live_messages"), {**facts, "limit": limit}).rowcount
        gone += _erase_states(connection, {**facts, "live": 1, "limit": limit - gone}, None)
    for name in ("erase_messages", "erase_events", "erase_entries"):
        gone += connection.execute(statement(name), {**facts, "limit": limit - gone}).rowcount
    for kind in (None,) if until_seq is None else HISTORY_KINDS:
        gone += _erase_states(connection, {**facts, "live": 0, "limit": limit - gone}, kind)
    connection.execute("COMMIT")
    return gone


def _erase_states(connection: sqlite3.Connection, facts: dict[str, Any], kind: str | None) -> int:
    if facts["limit"] <= 0:
        return 0
    name = "erasable_states_of_any_kind" if kind is None else "erasable_states"
    rows = connection.execute(statement(name), {**facts, "kind": kind}).fetchall()
    blobs: dict[str, None] = {}
    for rowid, row_kind, row_id in rows:
        named = connection.execute(statement("blobs_named"), (row_kind, row_id)).fetchall()
        if named:
            blobs.update(dict.fromkeys(each[0] for each in named))
            connection.execute(statement("erase_blob_uses"), (row_kind, row_id))
        connection.execute(statement("erase_state"), (rowid,))
    for blob in blobs:
        connection.execute(statement("erase_blob"), {"blob": blob})
    return len(rows)
