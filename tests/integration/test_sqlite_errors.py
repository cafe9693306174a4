"""What an SQLite store says when the file, the folder or the disk is not as it should be; all of it with real files."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from laneway.errors import (
    FencedError,
    StoreCorruptError,
    StoreInUseError,
    StoreUnavailableError,
    StoreVersionError,
    UnknownStoreError,
)
from laneway.rows import Batch, BatchResult, Lookup
from laneway.stores.locks import FileLock, lock_holder
from laneway.stores.sqlite import SqliteStore
from laneway.stores.sqlite_file import claim, connect, prepare
from laneway.stores.sqlite_writes import Sequencer, write_group
from laneway.testing.stores import OTHER, OWNER, message_row

Break = Callable[[Path], None]


async def made(path: Path, *, messages: int = 3) -> None:
    """A store with some messages in it, closed again."""
    store = SqliteStore(path)
    await store.open()
    batches = [Batch(OWNER, store.epoch, (message_row(f"m{n}", seq=store.next_seq()),)) for n in range(messages)]
    assert await store.commit(batches) == [BatchResult()] * messages
    await store.close()


def change(path: Path, sql: str) -> None:
    """Meddle with a store from outside."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(sql)
    connection.close()


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".lock")}


# ---- opening ----


@pytest.mark.parametrize("path", ["", "  ", ":memory:", "a\0b"])
def test_a_path_that_is_none_is_refused_at_once(path: str) -> None:
    with pytest.raises(UnknownStoreError):
        SqliteStore(path)


async def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "nowhere" / "x.db")
    with pytest.raises(StoreUnavailableError, match=r"nowhere does not exist.*mkdir -p"):
        await store.open()
    assert files_in(tmp_path) == {}


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailableError, match="file is not a folder"):
        await SqliteStore(tmp_path / "file" / "x.db").open()
    assert (tmp_path / "file").read_text() == "x"


async def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="is a folder"):
        await SqliteStore(tmp_path).open()
    assert files_in(tmp_path) == {}


async def test_a_device_is_no_store() -> None:
    with pytest.raises(StoreUnavailableError, match="neither a file") as caught:
        await SqliteStore("/dev/null").open()
    assert caught.value.hint


async def test_a_folder_that_nobody_may_write_to_is_named() -> None:
    """Even root cannot make a file there."""
    with pytest.raises(StoreUnavailableError, match=r"/proc/laneway\.db.*folder must exist and be writable") as caught:
        await SqliteStore("/proc/laneway.db").open()
    assert caught.value.__cause__ is not None


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database, whatever its name says" * 500)


def a_few_bytes(path: Path) -> None:
    path.write_bytes(b"hm")


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def a_hole(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 + 100 : 4096 * 9] = b"\xa5" * (4096 * 8 - 100)
    path.write_bytes(content)


def somebody_elses(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE recipes (name TEXT)")


@pytest.mark.parametrize("broken", [garbage, a_few_bytes, half, a_hole, somebody_elses])
async def test_what_is_no_store_of_ours_is_left_as_it_is(tmp_path: Path, broken: Break) -> None:
    path = tmp_path / "x.db"
    await made(path, messages=50)
    broken(path)
    before = files_in(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreCorruptError, match=r"x\.db is damaged.*backup") as caught:
            await SqliteStore(path).open()
        assert caught.value.path == str(path)  # type: ignore[attr-defined]
    assert files_in(tmp_path) == before
    assert lock_holder(str(path)) is None


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    await made(tmp_path / "x.db")
    assert (tmp_path / "x.db").stat().st_size > 0


async def test_a_store_of_a_newer_laneway_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    await made(path)
    change(path, "UPDATE meta SET value = 99 WHERE name = 'schema'")
    before = files_in(tmp_path)
    with pytest.raises(StoreVersionError, match="schema 99"):
        await SqliteStore(path).open()
    assert files_in(tmp_path) == before


async def test_opening_again_after_a_failure_works_when_the_cause_is_gone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "later" / "x.db")
    with pytest.raises(StoreUnavailableError):
        await store.open()
    await store.close()
    (tmp_path / "later").mkdir()
    await store.open()
    assert store.epoch == 1
    await store.close()


# ---- one owner ----


HOLD = """
    import asyncio, sys
    from laneway.stores.sqlite import SqliteStore

    async def main():
        store = SqliteStore(sys.argv[1])
        await store.open()
        print("open", flush=True)
        sys.stdin.read()

    asyncio.run(main())
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that has the store open until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


@pytest.mark.slow
async def test_a_second_process_is_told_who_has_the_store_and_death_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with holder(path) as process:
        with pytest.raises(StoreInUseError, match=rf"x\.db is open in another process \(pid {process.pid}\)") as caught:
            await SqliteStore(path).open()
        assert caught.value.pid == str(process.pid)  # type: ignore[attr-defined]
        assert lock_holder(str(path)) == str(process.pid)
        report = await SqliteStore(path).check()
        assert (report.in_use_by, report.epoch, report.is_sound) == (str(process.pid), 1, True)
        assert await SqliteStore(path).backup(tmp_path / "copy.db") > 0
        process.kill()
    store = SqliteStore(path)
    await store.open()
    assert store.epoch == 2
    await store.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL])
def test_a_file_system_that_cannot_lock_is_named(tmp_path: Path, number: int) -> None:
    def cannot(_fd: int) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StoreUnavailableError, match=r"cannot lock files.*local disk"):
        FileLock(str(tmp_path / "x.db"), try_lock=cannot).acquire()
    assert lock_holder(str(tmp_path / "x.db")) is None


def test_a_look_at_the_lock_does_not_keep_an_owner_out(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "x.db"))
    tries: list[int] = []

    def once_busy(fd: int) -> None:
        tries.append(fd)
        if len(tries) == 1:
            raise BlockingIOError(errno.EWOULDBLOCK, "somebody looks")

    FileLock(lock.path, try_lock=once_busy).acquire()
    assert len(tries) == 2


async def test_whoever_was_overtaken_is_fenced(tmp_path: Path) -> None:
    """The lock did not hold (some network disks only pretend): the epoch on disk still decides."""
    path = tmp_path / "x.db"
    store = SqliteStore(path)
    await store.open()
    change(path, "UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    results = await store.commit([Batch(OWNER, store.epoch, (message_row("m", seq=1),))])
    assert isinstance(results[0].error, FencedError)
    assert await store.history.message("m") is None
    await store.close()
    await store.open()
    assert store.epoch == 3
    await store.close()


# ---- writing ----


async def test_another_program_that_holds_a_lock_fails_a_commit_whole_and_the_next_one_works(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    store = SqliteStore(path, busy_ms=20)
    await store.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    batches = [Batch(owner, store.epoch, (message_row(owner.session, owner, seq=1),)) for owner in (OWNER, OTHER)]
    results = await store.commit([*batches, Batch(OWNER, 77, ())])
    assert [type(result.error) for result in results] == [StoreUnavailableError, StoreUnavailableError, FencedError]
    assert "another program holds a lock" in str(results[0].error)
    other.execute("ROLLBACK")
    other.close()
    assert await store.commit(batches) == [BatchResult()] * 2
    await store.close()


async def test_a_store_whose_file_is_gone_does_not_pretend_to_write(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    store = SqliteStore(path)
    await store.open()
    batch = Batch(OWNER, store.epoch, (message_row("m", seq=1),))
    path.rename(tmp_path / "away.db")
    results = await store.commit([batch])
    assert isinstance(results[0].error, StoreUnavailableError)
    assert "moved, replaced or deleted" in str(results[0].error)
    (tmp_path / "away.db").rename(path)
    assert await store.commit([batch]) == [BatchResult()]
    await store.close()


def test_a_full_disk_fails_everything_and_nothing_is_half_done(tmp_path: Path) -> None:
    path = str(tmp_path / "x.db")
    connection = connect(path, busy_ms=0, create=True)
    prepare(connection, path)
    epoch, seq = claim(connection)
    sequencer = Sequencer(seq, noted=seq)
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 5}")
    small = Batch(OTHER, epoch, (message_row("small", OTHER, seq=1),))
    batches = [small, Batch(OWNER, epoch, (message_row("big", seq=2, body="x" * 100_000),))]
    results = write_group(connection, path, batches, epoch=epoch, sequencer=sequencer)
    assert [type(result.error) for result in results] == [StoreUnavailableError] * 2
    assert "the disk is full" in str(results[0].error)
    assert path in str(results[0].error)
    assert not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    assert write_group(connection, path, [small], epoch=epoch, sequencer=sequencer) == [BatchResult()]
    connection.execute(f"PRAGMA max_page_count = {pages + 500}")
    assert write_group(connection, path, batches, epoch=epoch, sequencer=sequencer) == [BatchResult()] * 2
    connection.close()


def run(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


LIMITED = """
    import asyncio, resource, sys
    from laneway.rows import Batch
    from laneway.stores.sqlite import SqliteStore
    from laneway.testing.stores import OWNER, message_row

    async def commit(store, name, size):
        rows = (message_row(name, seq=store.next_seq(), body="x" * size),)
        return (await store.commit([Batch(OWNER, store.epoch, rows)]))[0].error

    async def main():
        store = SqliteStore(sys.argv[1])
        await store.open()
        assert await commit(store, "first", 10) is None
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
        error = await commit(store, "big", 1_000_000)
        print(type(error).__name__, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert await commit(store, "last", 10) is None
        assert await store.history.message("big") is None
        await store.close()

    asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_write_that_the_system_refuses_fails_and_the_next_one_works(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    done = run(LIMITED, path)
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.startswith("StoreUnavailableError the store")
    store = SqliteStore(path)
    await store.open()
    assert [row.id for row in await store.history.messages(OWNER)] == ["first", "last"]
    assert (await store.check()).is_sound
    await store.close()


async def test_a_table_that_somebody_dropped_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    store = SqliteStore(path)
    await store.open()
    change(path, "DROP TABLE messages")
    results = await store.commit([Batch(OWNER, store.epoch, (message_row("m", seq=1),))])
    assert "no such table" in str(results[0].error)
    with pytest.raises(StoreUnavailableError, match="be read"):
        await store.find([Lookup(OWNER, "slack", "p", 0)])
    with pytest.raises(StoreUnavailableError, match="be read"):
        await store.load_session(OWNER)
    with pytest.raises(StoreUnavailableError, match="be read"):
        await store.history.message("m")
    assert await store.history.events(OWNER) == []
    await store.close()


async def test_what_is_no_batch_and_no_lookup_harms_nobody(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    strange: list[Batch] = [Batch(OWNER, store.epoch, ("no row",))]  # type: ignore[arg-type]
    assert "no row" in str((await store.commit(strange))[0].error)
    results = await store.commit([None])  # type: ignore[list-item]
    assert isinstance(results[0].error, StoreUnavailableError)
    with pytest.raises(StoreUnavailableError):
        await store.find([None])  # type: ignore[list-item]
    assert await store.commit([Batch(OWNER, store.epoch, (message_row("m", seq=1),))]) == [BatchResult()]
    await store.close()
