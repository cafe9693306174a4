"""A session as one file: every row of it and of its sub-agents' sessions, to be kept elsewhere or moved.

A file is lines of JSON. The first one says what it is, the last one how many rows there were and the hash of all bytes
before it; a file without that end is not whole. Each line between is a row: its table, the session it belongs to as
what follows the key (so that a session can get another one), and its fields.

```text
{"laneway": "session", "version": 1, "tenant": "acme", "workspace": "main", "session": "chat", "at_ms": 1700000000000}
["m", "", "msg-1", 12, 12, 0, "ran", …]
{"rows": 1, "sha256": "…"}
```

A file is read whole and checked before the first row is written. Then its rows go to the store in slices behind a mark
that has them erased again should the process die; the mark goes with the last slice.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from laneway.errors import ArchiveError, ConflictError, NotFoundError
from laneway.kernel.mailbox import session_id
from laneway.rows import HISTORY_KINDS, NAMING_KINDS, Batch, EntryRow, EventRow, MessageRow, Owner, Row, StateRow
from laneway.runtime.erasing import Readable, erase, family_of, is_below, mark, unmarking

if TYPE_CHECKING:
    from laneway.ports import History, Store

__all__ = ("VERSION", "ArchiveHead", "check_archive", "check_exportable", "export_session", "import_session")

VERSION: Final = 1
KIND: Final = "session"
PAGE: Final = 500
SLICE: Final = 500
LINE_MAX: Final = 256 * 1024 * 1024
KINDS: Final = (*HISTORY_KINDS, "session", "identity", "fork")
"""Kinds of state rows that belong to a session and go with it; schedules and budgets are those of a place."""

_TABLES: Final[dict[str, type[Row]]] = {"m": MessageRow, "s": StateRow, "e": EventRow, "t": EntryRow, "b": StateRow}
_LETTERS: Final[dict[type[Row], str]] = {MessageRow: "m", StateRow: "s", EventRow: "e", EntryRow: "t"}
_OWNER: Final = ("tenant", "workspace", "session")
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveHead:
    """What a file says of itself, and how many rows it has."""

    tenant: str
    workspace: str
    session: str
    at_ms: int
    rows: int = 0


# ---- writing ----


async def export_session(store: Readable, owner: Owner, *, at_ms: int) -> AsyncGenerator[bytes, None]:
    """The lines of a file. A session in which something happens meanwhile is refused, and the file has no end."""
    history = store.history
    before = await _state_of(store, owner)
    digest, rows = sha256(), 0
    head = {"laneway": KIND, "version": VERSION, **owner._asdict(), "at_ms": at_ms}
    yield _line(head, digest)
    blobs: dict[str, None] = {}
    for each in await family_of(store, owner):
        async for row in _rows_of(history, each):
            blobs.update(dict.fromkeys(_named_in(row)))
            yield _line(_to_json(row, owner), digest)
            rows += 1
    names = list(blobs)
    for start in range(0, len(names), PAGE):
        part = names[start : start + PAGE]
        for name, found in zip(part, await history.states_by_id("blob", part), strict=True):
            if found is None:
                raise ArchiveError(f"session {owner.session!r} names a blob that is not there: {name}")
            yield _line(["b", name.rpartition(":")[2], found.seq, found.body], digest)
            rows += 1
    if await _state_of(store, owner) != before:
        raise ConflictError(
            f"session {owner.session!r} has changed while it was exported", hint="export it while nothing happens there"
        )
    yield f"{_write({'rows': rows, 'sha256': digest.hexdigest()})}\n".encode()


async def check_exportable(store: Readable, owner: Owner) -> None:
    """Refuse a session that is not there, or in which something runs."""
    await _state_of(store, owner)


async def _state_of(store: Readable, owner: Owner) -> tuple[Any, ...]:
    """What is different as soon as something has happened in a session."""
    newest: list[Any] = []
    for each in await family_of(store, owner):
        loaded = await store.load_session(each)
        running = [row.id for row in loaded.states if row.kind in {"turn", "child", "task"}]
        if running:
            raise ConflictError(
                f"session {each.session!r} is at work: {running[0]} has not ended",
                hint=f"wait for it, or end it: laneway session stop {owner.session}",
            )
        events = await store.history.events_newest(each, limit=1)
        messages = await store.history.messages_newest(each, limit=1)
        newest.append((each, events[0].seq if events else 0, messages[0] if messages else None))
        if not (events or messages) and each == owner:
            raise NotFoundError(what="session", name=owner.session)
    return tuple(newest)


async def _rows_of(history: History, owner: Owner) -> AsyncIterator[Row]:
    readers: list[tuple[Any, dict[str, Any]]] = [
        (history.messages, {}),
        *((history.states, {"kind": kind}) for kind in KINDS),
        (history.events, {}),
        (history.entries, {}),
    ]
    for read, more in readers:
        after = -1
        while rows := await read(owner, after_seq=after, limit=PAGE, **more):
            for row in rows:
                yield row
            after = rows[-1].seq


def _to_json(row: Row, owner: Owner) -> list[Any]:
    fields = [value for name, value in row._asdict().items() if name not in _OWNER]
    return [_LETTERS[type(row)], row.session[len(owner.session) :], *fields]


def _line(value: object, digest: Any) -> bytes:
    line = f"{_write(value)}\n".encode(errors="surrogatepass")
    digest.update(line)
    return line


def _named_in(row: Row) -> Iterable[str]:
    if not isinstance(row, StateRow) or row.kind not in NAMING_KINDS or '"b":[' not in row.body:
        return ()
    return [f"{row.tenant}:{digest}" for digest in json.loads(row.body)["b"]]


# ---- reading ----


def check_archive(lines: Iterable[bytes]) -> ArchiveHead:
    """Read a file to its end, and refuse one that is damaged, is something else, or comes from a newer Laneway."""
    head: ArchiveHead | None = None
    for each in _parsed(lines):
        if isinstance(each, ArchiveHead):
            head = each  # the last one has the count
    assert head is not None
    return head


def _parsed(lines: Iterable[bytes]) -> Iterator[ArchiveHead | list[Any]]:
    """The head, the rows as they stand there, and the head once more with their number when everything is right."""
    digest, rows = sha256(), 0
    head: ArchiveHead | None = None
    is_over = False
    for number, line in enumerate(lines, 1):
        if is_over:
            raise _damaged("there is something behind its end", number)
        value = _json_of(line, number)
        if head is None:
            head = _head_of(value)
            yield head
        elif isinstance(value, dict):
            if value != {"rows": rows, "sha256": digest.hexdigest()}:
                raise _damaged("its rows are not those that were written", number)
            is_over = True
            continue
        else:
            _check_row(value, number)
            rows += 1
            yield value
        digest.update(line)
    if head is None:
        raise _foreign("it is empty")
    if not is_over:
        raise _damaged("it has no end: it was cut off", rows + 1)
    yield ArchiveHead(tenant=head.tenant, workspace=head.workspace, session=head.session, at_ms=head.at_ms, rows=rows)


def _json_of(line: bytes, number: int) -> Any:
    if not line.endswith(b"\n"):
        raise _damaged("a line has no end: it was cut off", number) if number > 1 else _foreign("it has no lines")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise (_damaged("a line is no JSON", number) if number > 1 else _foreign("it has no JSON")) from None


def _head_of(value: Any) -> ArchiveHead:
    if not isinstance(value, dict) or value.get("laneway") != KIND:
        raise _foreign("it does not begin as one does")
    version = value.get("version")
    if type(version) is not int or version < 1:
        raise _foreign(f"it has version {version!r}")
    if version > VERSION:
        raise ArchiveError(
            f"the file is of version {version}, this Laneway knows {VERSION}",
            hint="use the Laneway that wrote it, or a newer one",
            version=version,
            known=VERSION,
        )
    facts = {name: value.get(name) for name in (*_OWNER, "at_ms")}
    if not all(isinstance(facts[name], str) for name in _OWNER) or type(facts["at_ms"]) is not int:
        raise _damaged("it does not say whose it is", 1)
    return ArchiveHead(**facts)  # type: ignore[arg-type]  # they were looked at


def _check_row(value: Any, number: int) -> None:
    kind = _TABLES.get(value[0]) if isinstance(value, list) and value and isinstance(value[0], str) else None
    if kind is None:
        raise _damaged("a line is no row", number)
    size = 4 if value[0] == "b" else len(kind._fields) - 1
    if len(value) != size or not isinstance(value[1], str):
        raise _damaged("a row has other fields", number)
    if value[0] != "b" and value[1] and not is_below(f"x{value[1]}", "x"):
        raise _damaged(f"a row belongs to another session: {value[1]!r}", number)


def _foreign(why: str) -> ArchiveError:
    return ArchiveError(f"the file is no session of Laneway: {why}", hint="laneway session export writes one")


def _damaged(why: str, number: int) -> ArchiveError:
    return ArchiveError(
        f"the file is damaged: line {number}: {why}", hint="nothing was imported; export the session again", line=number
    )


# ---- importing ----


async def import_session(store: Store, lines: Iterable[bytes], owner: Owner) -> ArchiveHead:
    """Write the rows of a file, which was checked, as those of a session that is not there yet: all, or none."""
    for each in await family_of(store, owner):
        if await store.history.events_newest(each, limit=1) or await store.history.messages_newest(each, limit=1):
            raise ConflictError(
                f"there is a session {each.session!r} already", hint="delete it first, or import under another key"
            )
    await mark(store, owner, "imported")
    owners: dict[Owner, None] = {owner: None}
    try:
        head = await _write_rows(store, lines, owner, owners)
    except BaseException:
        for each in owners:
            await erase(store, each)
        (result,) = await store.commit([unmarking(store, owner)])
        if result.error is not None:
            raise result.error from None
        raise
    return head


async def _write_rows(store: Store, lines: Iterable[bytes], owner: Owner, owners: dict[Owner, None]) -> ArchiveHead:
    waiting: list[Row] = []
    live: list[Row] = []
    head: ArchiveHead | None = None
    for value in _parsed(lines):
        if isinstance(value, ArchiveHead):
            head = value
            continue
        assert head is not None
        row = _row_of(value, owner)
        owners.setdefault(Owner(row.tenant, row.workspace, row.session) if row.session else owner)
        (live if getattr(row, "live", 0) else waiting).append(row)
        if len(waiting) >= SLICE:
            await _put(store, waiting)
            waiting.clear()
    await _put(store, waiting)
    await _put(store, live, unmarking(store, owner))
    assert head is not None
    return head


async def _put(store: Store, rows: list[Row], *last: Batch) -> None:
    await _refuse_known(store, rows)
    groups: dict[Owner, list[Row]] = {}
    for row in rows:
        groups.setdefault(Owner(row.tenant, row.workspace, row.session), []).append(row)
    batches = [Batch(owner, store.epoch, tuple(group)) for owner, group in groups.items()]
    for result in await store.commit([*batches, *last]):
        if result.error is not None:
            raise result.error


async def _refuse_known(store: Store, rows: list[Row]) -> None:
    """Ids are those of one store: a row that is there already would be taken from the session that has it."""
    messages = [row.id for row in rows if isinstance(row, MessageRow)]
    known: list[Any] = [row for row in await store.history.messages_by_id(messages) if row is not None]
    for kind in {row.kind for row in rows if isinstance(row, StateRow) and row.kind != "blob"}:
        ids = [row.id for row in rows if isinstance(row, StateRow) and row.kind == kind]
        known += [row for row in await store.history.states_by_id(kind, ids) if row is not None]
    if known:
        raise ConflictError(
            f"the store has {known[0].id!r} of this file already, in session {known[0].session!r}",
            hint="a session is in a store once: delete that one first, or import into another store",
        )


def _row_of(value: list[Any], owner: Owner) -> Row:
    letter, place, *fields = value
    if letter == "b":
        seq, body = fields
        return StateRow("blob", f"{owner.tenant}:{place}", owner.tenant, "", "", seq, 0, "", body)
    kind = _TABLES[letter]
    mine = owner._replace(session=owner.session + place)
    names = [name for name in kind._fields if name not in _OWNER]
    facts = {**dict(zip(names, fields, strict=True)), **mine._asdict()}
    if kind is StateRow and facts["kind"] in {"session", "identity"}:
        facts["id"] = session_id(mine)
    elif kind is StateRow and facts["kind"] == "fork":
        facts["id"] = f"{mine.tenant}/{mine.session}"
    elif kind is StateRow and facts["kind"] == "compaction":
        facts["id"] = f"{mine.tenant}/{mine.workspace}/{mine.session}/{facts['seq']}"
    row: Row = kind(**facts)
    return row
