"""A session as one file: every row of it and of its sub-agents' sessions, to be kept elsewhere or moved.

A file is lines of JSON. The first one says what it is, the last one how many rows there were and the hash of all bytes
before it; a file without that end is not whole. Each line between is a row: its table, the session it belongs to as
what follows the key (so that a session can get another one), and its fields. Blobs (`b`) and artifacts (`a`, in
numbered pieces) have their hash in the place of a session.

```text
{"laneway": "session", "version": 1, "tenant": "acme", "workspace": "main", "session": "chat", "at_ms": 1700000000000}
["m", "", "msg-1", 12, 12, 0, "ran", …]
{"rows": 1, "sha256": "…"}
```

A file is read whole and checked before the first row is written. Then its rows go to the store in slices behind a mark
that has them erased again should the process die; the mark goes with the last slice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any, Final

from laneway.errors import ArchiveError, ClosedError, ConflictError, NotFoundError
from laneway.kernel.checkpoints import BLOB, blobs_of, noted_in
from laneway.rows import NAMING_KINDS, Batch, MessageRow, Owner, Row, StateRow
from laneway.runtime.archive_rows import KINDS, RUNNING, RowCheck, damaged, row_of, to_list
from laneway.runtime.artifacts import Unpacking, pieces_of, sweep
from laneway.runtime.erasing import (
    Readable,
    check_owner,
    check_unmarked,
    delete_session,
    dooming,
    erase,
    family_of,
    mark,
    unmarking,
)

if TYPE_CHECKING:
    from laneway.ports import History, Store
    from laneway.runtime.mail_engine import MailEngine

__all__ = (
    "VERSION",
    "ArchiveHead",
    "check_archive",
    "check_exportable",
    "export_session",
    "import_into",
    "import_session",
    "lines_of",
)

VERSION: Final = 1
KIND: Final = "session"
IMPORTED: Final = "imported"
PAGE: Final = 500
SLICE: Final = 500
LINE_MAX: Final = 256 * 1024 * 1024
SEQ_AHEAD_MAX: Final = 1 << 40
"""So far the numbers of a file may lie beyond those of the store: numbers go on behind the highest, and have an end."""

_OWNER: Final = ("tenant", "workspace", "session")
_Reader = tuple[Any, dict[str, Any]]
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
    digest, states, rows = sha256(), sha256(), 0
    head = {"laneway": KIND, "version": VERSION, **owner._asdict(), "at_ms": at_ms}
    yield _line(head, digest)
    blobs: dict[str, None] = {}
    artifacts: list[str] = []
    family = await family_of(store, owner)
    for each in family:
        async for row in _rows_of(history, each):
            if isinstance(row, StateRow):
                states.update(repr(row).encode(errors="surrogatepass"))
            blobs.update(dict.fromkeys(_named_in(row)))
            yield _line(to_list(row, owner), digest)
            rows += 1
    names = list(blobs)
    for start in range(0, len(names), PAGE):
        part = names[start : start + PAGE]
        for name, found in zip(part, await history.states_by_id("blob", part), strict=True):
            if found is None:
                raise ArchiveError(f"session {owner.session!r} names a blob that is not there: {name}")
            yield _line(["b", name.rpartition(":")[2], found.seq, found.body], digest)
            rows += 1
            if (artifact := noted_in(found.body)) is not None:
                artifacts.append(artifact)
    for artifact in artifacts:
        async for piece in pieces_of(store, owner.tenant, artifact):
            yield _line(piece, digest)
            rows += 1
    if await _state_of(store, owner) != before or await _states_of(history, family) != states.digest():
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
    await check_unmarked(store, owner)
    for each in await family_of(store, owner):
        loaded = await store.load_session(each)
        running = [row.id for row in loaded.states if row.kind in RUNNING]
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


async def _states_of(history: History, family: Iterable[Owner]) -> bytes:
    """A hash of all rows that may change without an event: labels, outcomes that somebody has settled …"""
    digest = sha256()
    for each in family:
        async for row in _read(each, _readers_of_states(history)):
            digest.update(repr(row).encode(errors="surrogatepass"))
    return digest.digest()


def _readers_of_states(history: History) -> list[_Reader]:
    return [(history.states, {"kind": kind}) for kind in KINDS]


def _rows_of(history: History, owner: Owner) -> AsyncIterator[Row]:
    states = _readers_of_states(history)
    return _read(owner, [(history.messages, {}), *states, (history.events, {}), (history.entries, {})])


async def _read(owner: Owner, readers: Iterable[_Reader]) -> AsyncIterator[Row]:
    for read, more in readers:
        after = -1
        while rows := await read(owner, after_seq=after, limit=PAGE, **more):
            for row in rows:
                yield row
            after = rows[-1].seq


def _line(value: object, digest: Any) -> bytes:
    line = f"{_write(value)}\n".encode(errors="surrogatepass")
    digest.update(line)
    return line


def _named_in(row: Row) -> Iterable[str]:
    return blobs_of(row) if isinstance(row, StateRow) and row.kind in NAMING_KINDS else ()


# ---- reading ----


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, none of them longer than a row can be: what has no lines does not fill the memory."""
    return iter(lambda: file.readline(LINE_MAX), b"")


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
    digest, rows, check = sha256(), 0, RowCheck()
    head: ArchiveHead | None = None
    is_over = False
    for number, line in enumerate(lines, 1):
        if is_over:
            raise damaged("there is something behind its end", number)
        value = _json_of(line, number)
        if head is None:
            head = _head_of(value)
            yield head
        elif isinstance(value, dict):
            if value != {"rows": rows, "sha256": digest.hexdigest()}:
                raise damaged("its rows are not those that were written", number)
            check.finish(number)
            is_over = True
            continue
        else:
            check.add(value, number)
            rows += 1
            yield value
        digest.update(line)
    if head is None:
        raise _foreign("it is empty")
    if not is_over:
        raise damaged("it has no end: it was cut off", rows + 1)
    yield ArchiveHead(tenant=head.tenant, workspace=head.workspace, session=head.session, at_ms=head.at_ms, rows=rows)


def _json_of(line: bytes, number: int) -> Any:
    if not line.endswith(b"\n"):
        raise damaged("a line has no end: it was cut off", number) if number > 1 else _foreign("it has no lines")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise (damaged("a line is no JSON", number) if number > 1 else _foreign("it has no JSON")) from None


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
        raise damaged("it does not say whose it is", 1)
    return ArchiveHead(**facts)  # type: ignore[arg-type]  # they were looked at


def _foreign(why: str) -> ArchiveError:
    return ArchiveError(f"the file is no session of Laneway: {why}", hint="laneway session export writes one")


# ---- importing ----


async def import_session(store: Store, lines: Iterable[bytes], owner: Owner) -> ArchiveHead:
    """Write the rows of a file, which was checked, as those of a session that is not there yet: all, or none."""
    check_owner(owner)
    await _refuse_there(store, owner)
    writing = _Writing(store, owner)
    await mark(store, owner, IMPORTED)
    try:
        with contextlib.closing(writing.unpacking):
            head = await writing.write(lines)
    except BaseException:
        for each in writing.owners:
            await erase(store, each)
        await sweep(store, owner.tenant)
        (result,) = await store.commit([unmarking(store, owner)])
        if result.error is not None:
            raise result.error from None
        raise
    return head


async def _refuse_there(store: Store, owner: Owner) -> None:
    """Whatever a key has would be taken for a part of what is imported, and would go with it if that fails."""
    history = store.history
    await check_unmarked(store, owner)
    for each in await family_of(store, owner):
        if await history.events_newest(each, limit=1) or await history.messages_newest(each, limit=1):
            raise ConflictError(
                f"there is a session {each.session!r} already",
                hint="delete it first; if it is another one than that of the file, import under another key",
            )
    if (await store.load_session(owner)).states or await _has_states(history, owner):
        raise ConflictError(
            f"session {owner.session!r} has no message yet, but labels, a schedule or settings of its own",
            hint="import under another key, or delete it first: what it has is gone then",
        )


async def _has_states(history: History, owner: Owner) -> bool:
    async for _ in _read(owner, _readers_of_states(history)):
        return True
    return False


async def import_into(
    engine: MailEngine, lines: Iterable[bytes], owner: Owner, *, let_go: Callable[[], Awaitable[None]] | None = None
) -> ArchiveHead:
    """Import into the store of an open inbox, which takes no message for the session meanwhile, and go on with it.

    `let_go` is called before, if there is nothing of it yet: whoever holds the session gives it up then. If the inbox
    cannot go on with what was imported, that is erased again.
    """
    engine.check_doomed(owner)  # one that is half deleted is not begun anew before all of it is gone
    async with dooming(engine, owner):
        if engine.journal.has(owner):
            await engine.journal.committed(owner)  # it is found then
        await _refuse_there(engine.store, owner)
        if let_go is not None:
            await let_go()
        head = await import_session(engine.store, lines, owner)
        engine.journal.erased.pop(owner, None)
    try:
        for each in (await family_of(engine.store, owner))[::-1]:
            await engine.adopt(each)
            engine.check_readable(each)
    except ClosedError:
        return head  # it is there, whole: whoever opens the store next goes on with it
    except Exception:
        await delete_session(engine, owner, actor="import")
        raise
    return head


class _Writing:
    """The rows of a file on their way to a store, in slices behind a mark.

    What is live goes last, in the commit that takes the mark away. A text goes with the first row that names it, or
    after it, never before: whoever erases the session finds its texts by the rows that name them. Artifacts are held
    until all of it is there: the note of one may come with what is live.
    """

    def __init__(self, store: Store, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._seq_max = store.next_seq() + SEQ_AHEAD_MAX
        self.unpacking = Unpacking(store, owner.tenant)
        self.owners: dict[Owner, None] = {owner: None}
        self._marked = 0
        self._slice: list[tuple[Owner, Row]] = []
        self._last: list[tuple[Owner, Row]] = []
        self._texts: dict[str, StateRow] = {}  # those that no row has named so far
        self._namers: dict[str, Owner] = {}  # whose rows, written or about to be, name a text

    async def write(self, lines: Iterable[bytes]) -> ArchiveHead:
        """Write all of them."""
        head: ArchiveHead | None = None
        for value in _parsed(lines):
            if isinstance(value, ArchiveHead):
                head = value
                continue
            assert head is not None
            if value[0] == "a":
                await asyncio.to_thread(self.unpacking.take, *value[1:])
                continue
            self._take(row_of(value, self._owner, was=head.session))
            if len(self._slice) >= SLICE:
                await self._put(self._slice)
                self._slice = []
        await asyncio.to_thread(self.unpacking.end)
        await self._put(self._slice)
        self._slice = [*self._last]
        for _, row in self._last:
            self._name(row)
        await self._put(self._slice, unmarking(self._store, self._owner))
        assert head is not None
        return head

    def _take(self, row: Row) -> None:
        highest = max(row.seq, row.place) if isinstance(row, MessageRow) else row.seq
        if highest > self._seq_max:
            raise ArchiveError(
                f"the file is damaged: a row has number {highest:,}, far beyond those of this store",
                hint="nothing was imported; numbers of rows go on behind the highest, and these would use them up",
            )
        owner = Owner(row.tenant, row.workspace, row.session)
        if isinstance(row, StateRow) and row.kind == BLOB:
            if row.id in self._namers:
                self._slice.append((self._namers[row.id], row))
            else:
                self._texts[row.id] = row
            return
        self.owners.setdefault(owner)
        if getattr(row, "live", 0):
            self._last.append((owner, row))
        else:
            self._slice.append((owner, row))
            self._name(row)

    def _name(self, row: Row) -> None:
        """Have the texts that a row names, and that have come before it, written with it."""
        owner = Owner(row.tenant, row.workspace, row.session)
        for name in _named_in(row):
            self._namers.setdefault(name, owner)
            if name in self._texts:
                self._slice.append((owner, self._texts.pop(name)))

    async def _put(self, rows: list[tuple[Owner, Row]], *last: Batch) -> None:
        await self._refuse_known([row for _, row in rows])
        if len(self.owners) > max(self._marked, 1):  # a start finds the sessions of sub-agents by their messages
            await mark(self._store, self._owner, IMPORTED, family=self.owners)
            self._marked = len(self.owners)
        groups: dict[Owner, list[Row]] = {}
        for owner, row in rows:
            groups.setdefault(owner, []).append(row)
        batches = [Batch(owner, self._store.epoch, tuple(group)) for owner, group in groups.items()]
        for result in await self._store.commit([*batches, *last]):
            if result.error is not None:
                raise result.error

    async def _refuse_known(self, rows: list[Row]) -> None:
        """Ids are those of one store: a row that is there already would be taken from the session that has it."""
        history = self._store.history
        messages = [row.id for row in rows if isinstance(row, MessageRow)]
        known: list[Any] = [row for row in await history.messages_by_id(messages) if row is not None]
        for kind in {row.kind for row in rows if isinstance(row, StateRow) and row.kind != BLOB}:
            ids = [row.id for row in rows if isinstance(row, StateRow) and row.kind == kind]
            known += [row for row in await history.states_by_id(kind, ids) if row is not None]
        if not known:
            return
        if known[0].tenant != self._owner.tenant:  # what others have is not theirs to know
            raise ConflictError(
                f"the store has {known[0].id!r} of this file already", hint="import it into another store"
            )
        raise ConflictError(
            f"the store has {known[0].id!r} of this file already, in session {known[0].session!r}",
            hint="a session is in a store once: delete that one first, or import into another store",
        )
