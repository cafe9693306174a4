"""An SQLite file as a store: how it is opened, brought up to date, claimed, checked and copied.

All of this blocks, so it runs on the threads of a store or in a command, never on an event loop. What SQLite says is
translated here, once: every error names the file, what is wrong with it, and the way out.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from laneway.errors import (
    ConflictError,
    FencedError,
    StoreCorruptError,
    StoreInUseError,
    StoreUnavailableError,
    StoreVersionError,
)
from laneway.stores.locks import lock_holder
from laneway.stores.statements import migrations, schema_version, statement

__all__ = (
    "APPLICATION_ID",
    "CHECKED_BYTES_MAX",
    "LOG_PAGES",
    "LOG_PAGES_BUSY",
    "StoreCheck",
    "backup_file",
    "check_exists",
    "check_file",
    "check_place",
    "claim",
    "connect",
    "corrupt",
    "get_meta",
    "prepare",
    "refused",
    "set_log_pages",
    "set_meta",
    "tune",
    "version_of",
)

APPLICATION_ID: Final = 0x4C616E65  # "Lane"
SQLITE_LEAST: Final = (3, 37, 0)  # the first with STRICT tables

CHECKED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Up to this size a store is checked page by page when it is opened; `laneway store check` does it at any size."""

LOG_PAGES: Final = 1000
"""How long the log grows before it goes into the file and begins anew. To write where the log has been before is half
the work for the disk: a log that grows has to be made longer with each commit. So it is short as long as commits are
small, and each of them waits for the disk on its own."""

LOG_PAGES_BUSY: Final = 4000
"""The same when many rows share a commit: pages that change again meanwhile are copied only once."""

LOG_BYTES_MAX: Final = 64 * 1024 * 1024
CACHE_KIB: Final = 32 * 1024
SEQ_BLOCK: Final = 100_000
"""Numbers are noted as used in blocks, so that a commit need not write the counter each time."""

BACKUP_PAGES: Final = 1024
PROBLEMS_MAX: Final = 20


# ---- errors ----

_STATES: Final[tuple[tuple[str, str, str], ...]] = (
    ("SQLITE_FULL", "the disk is full", "make room, then try again"),
    ("SQLITE_READONLY", "it is read-only", "let this user write to the file and its folder"),
    ("SQLITE_CANTOPEN", "it cannot be opened", "the folder must exist and be writable, and the path must be a file"),
    ("SQLITE_PERM", "this user may not use it", "let this user write to the file and its folder"),
    ("SQLITE_BUSY", "another program holds a lock on it", "end what else uses the file, then try again"),
    ("SQLITE_LOCKED", "another program holds a lock on it", "end what else uses the file, then try again"),
    ("SQLITE_PROTOCOL", "its file system does not lock properly", "keep the store on a local disk"),
    ("SQLITE_IOERR", "the disk reports an error", "look at the disk, then try again"),
)


def refused(error: Exception, path: str, doing: str) -> StoreUnavailableError:
    """What an error of SQLite or of the system means for the store."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return corrupt(path, str(error))
    for prefix, state, way_out in _STATES:
        if name.startswith(prefix):
            return StoreUnavailableError(
                f"the store {path} could not {doing}: {state} ({error})", hint=way_out, path=path, reason=state
            )
    reason = f"{type(error).__name__}: {error}"
    return StoreUnavailableError(f"the store {path} could not {doing}: {reason}", path=path, reason=reason)


def corrupt(path: str, reason: str) -> StoreCorruptError:
    """The file is not what was written."""
    return StoreCorruptError(
        f"the store {path} is damaged: {reason}",
        hint="it was left as it is; keep a copy, then put a backup in its place or move it away to begin anew",
        path=path,
        reason=reason,
    )


# ---- opening ----


def connect(path: str, *, busy_ms: int, read_only: bool = False, create: bool = False) -> sqlite3.Connection:
    """A connection whose transactions begin and end where the code says so. It belongs to the thread that made it."""
    mode = "ro" if read_only else "rwc" if create else "rw"  # only who opens a store may make its file
    if create:  # conversations are nobody else's business; the files beside it get the same rights from SQLite
        with contextlib.suppress(OSError):  # it is there, or SQLite says what is wrong
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}",
        uri=True,
        isolation_level=None,
        cached_statements=256,
    )
    try:
        connection.execute(f"PRAGMA busy_timeout = {int(busy_ms)}")
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def check_place(path: str) -> None:
    """Whether there could be a store: SQLite's own words for these cases help nobody."""
    folder = os.path.dirname(os.path.abspath(path))
    if sqlite3.sqlite_version_info < SQLITE_LEAST:
        least = ".".join(map(str, SQLITE_LEAST))
        raise StoreUnavailableError(
            f"the store {path} needs SQLite {least}, and this Python has {sqlite3.sqlite_version}",
            hint="use a newer Python, or a build of it with a newer SQLite",
            path=path,
        )
    if os.path.isdir(path):
        there = glob.glob(os.path.join(glob.escape(path), "*.db"))
        name = min(there, default=os.path.join(path, "laneway.db"))
        raise StoreUnavailableError(f"the store {path} is a folder", hint=f"name a file in it: {name}", path=path)
    if not os.path.isdir(folder):
        state = "is not a folder" if os.path.exists(folder) else "does not exist"
        way_out = "choose another path" if os.path.exists(folder) else f"make it first: mkdir -p {folder}"
        raise StoreUnavailableError(
            f"the store {path} cannot be opened: {folder} {state}", hint=way_out, path=path, reason=state
        )
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreUnavailableError(
            f"the store {path} is neither a file nor a place for one", hint="choose another path", path=path
        )


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Look at the file before anything is written to it, then bring it up to date."""
    version = version_of(connection, path)
    _check_pages(connection, path)
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailableError(
            f"the store {path} cannot keep a write-ahead log: its journal mode stays {mode!r}",
            hint="keep the store on a local disk",
            path=path,
        )
    tune(connection)
    for step in migrations()[version:]:
        connection.execute("BEGIN IMMEDIATE")
        for sql in step.statements:
            connection.execute(sql)
        set_meta(connection, "schema", step.version)
        connection.execute("COMMIT")
    if not version:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def tune(connection: sqlite3.Connection) -> None:
    """Make a connection one that writes: what it commits is on the disk."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # only macOS has the difference
    set_log_pages(connection, LOG_PAGES)
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")


def set_log_pages(connection: sqlite3.Connection, pages: int) -> None:
    """How long the log grows from now on."""
    connection.execute(f"PRAGMA wal_autocheckpoint = {int(pages)}")


def claim(connection: sqlite3.Connection) -> tuple[int, int]:
    """Become the owner: the new epoch, and the highest number that may be in use."""
    connection.execute("BEGIN IMMEDIATE")
    epoch = get_meta(connection, "epoch") + 1
    seq = get_meta(connection, "seq")
    set_meta(connection, "epoch", epoch)
    set_meta(connection, "seq", seq + SEQ_BLOCK)
    connection.execute("COMMIT")
    return epoch, seq


def get_meta(connection: sqlite3.Connection, name: str) -> int:
    """A number of the store itself."""
    row = connection.execute(statement("get_meta"), (name,)).fetchone()
    if row is None:
        raise FencedError(f"the store has lost its {name}", hint="somebody else has written to the file")
    return int(row[0])


def set_meta(connection: sqlite3.Connection, name: str, value: int) -> None:
    """Change a number of the store itself."""
    connection.execute(statement("set_meta"), {"name": name, "value": value})


def version_of(connection: sqlite3.Connection, path: str) -> int:
    """The schema of the file: 0 for a new one. Somebody else's database is refused, a newer one too."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return 0
    if "meta" not in tables or "messages" not in tables:
        raise corrupt(path, "it is a database, but not one of Laneway")
    version = get_meta(connection, "schema")
    if version > schema_version():
        raise StoreVersionError(
            f"the store {path} has schema {version}, this Laneway knows {schema_version()}",
            hint="use the Laneway that wrote it, or a newer one; it was left as it is",
            path=path,
            version=version,
            known=schema_version(),
        )
    return version


def _check_pages(connection: sqlite3.Connection, path: str) -> None:
    """Bounded: a small file page by page, a big one by its length alone."""
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    size = pages * connection.execute("PRAGMA page_size").fetchone()[0]
    if size <= CHECKED_BYTES_MAX:
        answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if answer != "ok":
            raise corrupt(path, str(answer).replace("\n", ", "))
    elif os.path.getsize(path) < size and not os.path.exists(f"{path}-wal"):
        raise corrupt(path, f"it should have {size} bytes and has {os.path.getsize(path)}")


# ---- looking after it ----


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """How a store is: `problems` is empty if every page is as it should be; if not, rows are not counted."""

    path: str
    schema: int
    epoch: int
    size_bytes: int
    log_bytes: int
    rows: dict[str, int]
    live: dict[str, int]
    problems: tuple[str, ...]
    in_use_by: str | None

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems


def check_file(path: str, *, busy_ms: int) -> StoreCheck:
    """Read the whole file and say how it is; nothing is changed, and its owner may go on writing."""
    path = os.path.abspath(path)
    check_exists(path)
    holder = lock_holder(path)
    try:
        with contextlib.closing(connect(path, busy_ms=busy_ms, read_only=True)) as connection:
            connection.execute("BEGIN")  # one moment for everything below
            version = version_of(connection, path)
            problems = _problems(connection)
            counts = _counts(connection) if version and not problems else []
            return StoreCheck(
                path=path,
                schema=version,
                epoch=get_meta(connection, "epoch") if version else 0,
                size_bytes=os.path.getsize(path),
                log_bytes=os.path.getsize(f"{path}-wal") if os.path.exists(f"{path}-wal") else 0,
                rows={name: total for name, total, _ in counts},
                live={name: live for name, _, live in counts if name in {"messages", "states"}},
                problems=problems,
                in_use_by=holder,
            )
    except sqlite3.Error as error:
        raise refused(error, path, "be read") from error


def _problems(connection: sqlite3.Connection) -> tuple[str, ...]:
    found: list[str] = []
    try:
        found.extend(row[0] for row in connection.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})"))
    except sqlite3.DatabaseError as error:
        found.append(str(error))  # so damaged that it could not be read to the end
    return () if found == ["ok"] else tuple(found)


def _counts(connection: sqlite3.Connection) -> list[tuple[str, int, int]]:
    return connection.execute(statement("counts")).fetchall()


def backup_file(
    path: str,
    target: str,
    *,
    busy_ms: int,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Copy a store as it is at one moment, while its owner goes on writing; the size of the copy in bytes.

    The copy appears whole or not at all: it is written beside its place and moved there.
    """
    path, target = os.path.abspath(path), os.path.abspath(target)
    check_exists(path)
    if os.path.realpath(path) == os.path.realpath(target):
        raise ConflictError(f"{target} is the store itself", hint="choose another path for the copy", path=target)
    if os.path.exists(target) and not overwrite:
        raise ConflictError(
            f"{target} exists already", hint="choose another path, or say that it may be overwritten", path=target
        )
    holder = lock_holder(target)
    if holder is not None:
        raise StoreInUseError(
            f"{target} is a store that is open (pid {holder})", hint="choose another path for the copy", path=target
        )
    part = ""
    try:
        handle, part = tempfile.mkstemp(
            dir=os.path.dirname(target), prefix=".laneway-"
        )  # its owner's alone, as a store
        os.close(handle)
        _copy(path, part, busy_ms=busy_ms, progress=progress)
        for side in ("-wal", "-shm"):  # the log of what was there before does not belong to the copy
            with contextlib.suppress(FileNotFoundError):
                os.remove(target + side)
        os.replace(part, target)
        return os.path.getsize(target)
    except (sqlite3.Error, OSError) as error:
        raise refused(error, path, f"be copied to {target}") from error
    finally:
        with contextlib.suppress(OSError):
            os.remove(part)


def _copy(path: str, part: str, *, busy_ms: int, progress: Callable[[int, int], None] | None) -> None:
    def tell(_status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    with (
        contextlib.closing(connect(path, busy_ms=busy_ms, read_only=True)) as source,
        contextlib.closing(sqlite3.connect(part, isolation_level=None)) as copy,
    ):
        copy.execute("PRAGMA journal_mode = OFF")  # a copy that breaks off is thrown away
        copy.execute("PRAGMA synchronous = OFF")
        # The open transaction keeps this moment: without it every commit of the owner would begin the copy again.
        source.execute("BEGIN")
        if not version_of(source, path):
            raise corrupt(path, "there is nothing in it")
        source.backup(copy, pages=BACKUP_PAGES, progress=tell)
    fd = os.open(part, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_exists(path: str) -> None:
    """Refuse a path where there is no store: only its owner makes one."""
    check_place(path)
    if not os.path.exists(path):
        raise StoreUnavailableError(
            f"there is no store {path}", hint="a store is made when it is first used", path=path
        )
