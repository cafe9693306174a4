"""The stores of sessions: each is the one store, shared in a process and refused to a second one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import StoreInUseError, StoreUnavailableError, UnknownStoreError
from laneway.rows import Batch, BatchResult
from laneway.stores import MemoryDisk
from laneway.stores.sessions import FileSessionStore, MemorySessionStore, SqliteSessionStore
from laneway.stores.sqlite import SqliteStore
from laneway.testing.stores import OWNER, OpenStore, check_store, state_row


def memory(_folder: Path) -> OpenStore:
    disks: dict[str, MemoryDisk] = defaultdict(MemoryDisk)
    return lambda name: MemorySessionStore(disks[name])


def sqlite(folder: Path) -> OpenStore:
    return lambda name: SqliteSessionStore(folder / f"{name}.db")


def file(folder: Path) -> OpenStore:
    return lambda name: FileSessionStore(folder / name)


@pytest.mark.slow
@pytest.mark.parametrize("make", [memory, sqlite, file])
async def test_every_session_store_is_a_store(make: Callable[[Path], OpenStore], tmp_path: Path) -> None:
    await check_store(make(tmp_path))


async def test_a_folder_is_made_with_its_parents_when_the_store_is_opened(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path / "deep" / "er")
    assert not (tmp_path / "deep").exists()
    await store.open()
    await store.close()
    assert (tmp_path / "deep" / "er" / "sessions.db").is_file()


async def test_all_stores_of_one_file_in_a_process_are_one(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    stores: list[SqliteStore] = [
        FileSessionStore(folder),
        FileSessionStore(str(tmp_path / "link")),
        SqliteSessionStore(folder / "sessions.db"),
        SqliteStore(folder / "." / "sessions.db"),
    ]
    assert len({store.path for store in stores}) == 1
    for store in stores:
        await store.open()
    assert {store.epoch for store in stores} == {1}
    row = state_row("round", "r/000001", seq=stores[0].next_seq())
    assert await stores[0].commit([Batch(OWNER, 1, (row,))]) == [BatchResult()]
    await stores[0].close()
    assert await stores[3].history.state("round", "r/000001") == row
    for store in stores[1:]:
        await store.close()
    again = FileSessionStore(folder)
    await again.open()
    assert again.epoch == 2
    await again.close()


def test_a_relative_folder_is_that_of_the_moment_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = FileSessionStore("here")
    monkeypatch.chdir("/")
    assert store.path == os.path.realpath(tmp_path / "here" / "sessions.db")


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert FileSessionStore("~/a").path == os.path.realpath(tmp_path / "a" / "sessions.db")
    assert SqliteSessionStore("~/a.db").path == os.path.realpath(tmp_path / "a.db")


@pytest.mark.parametrize("kind", [FileSessionStore, SqliteSessionStore])
@pytest.mark.parametrize("path", ["", "  ", None, 5, b"bytes", "nul\0"])
def test_what_is_no_path_is_refused(kind: Callable[[Any], object], path: Any) -> None:
    with pytest.raises(UnknownStoreError, match="is no path of a store"):
        kind(path)


async def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(StoreUnavailableError, match="taken is not a folder"):
        await FileSessionStore(tmp_path / "taken").open()
    with pytest.raises(StoreUnavailableError, match="taken"):
        await FileSessionStore(tmp_path / "taken" / "below").open()
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("make", [memory, file])
async def test_rows_are_fetched_by_their_ids_in_one_question(make: Callable[[Path], OpenStore], tmp_path: Path) -> None:
    store = make(tmp_path)("x")
    assert isinstance(store, MemorySessionStore | FileSessionStore)
    await store.open()
    a, b = state_row("blob", "a", seq=1, live=0), state_row("blob", "b", seq=2, body="other")
    await store.commit([Batch(OWNER, store.epoch, (a, b, state_row("round", "c", seq=3)))])
    assert await store.history.states_by_id("blob", ["b", "c", "a", "b", "no"]) == [b, None, a, b, None]
    assert await store.history.states_by_id("blob", []) == []
    await store.close()
    with pytest.raises(StoreUnavailableError, match="not open"):
        await store.history.states_by_id("blob", ["a"])


async def test_a_full_memory_store_forgets_what_was_written_longest_ago() -> None:
    store = MemorySessionStore(MemoryDisk(kept_max=3))
    await store.open()
    for row_id in ("shared", "old", "new", "shared", "newest"):
        row = state_row("blob", row_id, seq=store.next_seq(), live=0)
        await store.commit([Batch(OWNER, store.epoch, (row,))])
    found = await store.history.states_by_id("blob", ["shared", "old", "new", "newest"])
    assert [row.id for row in found if row is not None] == ["shared", "new", "newest"]


async def test_two_memory_stores_share_nothing() -> None:
    first, second = MemorySessionStore(), MemorySessionStore()
    for store in (first, second):
        await store.open()
    await first.commit([Batch(OWNER, first.epoch, (state_row("round", "r/000001", seq=1),))])
    assert await second.history.state("round", "r/000001") is None


HOLD = """
    import asyncio, sys
    from laneway.stores.sessions import FileSessionStore

    async def main():
        store = FileSessionStore(sys.argv[1])
        await store.open()
        print("open", flush=True)
        sys.stdin.readline()
        await store.close()

    asyncio.run(main())
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """A process that says `open` when it has the store, and lets go when it is sent a line."""
    command = [sys.executable, "-c", textwrap.dedent(HOLD), str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
async def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "open\n"
        store = FileSessionStore(tmp_path)
        with pytest.raises(StoreInUseError) as refused:
            await store.open()
        assert f"sessions.db is open in another process (pid {holder.pid})" in str(refused.value)
        assert "stop that process first" in refused.value.hint
        other = SqliteSessionStore(tmp_path / "sessions.db")
        with pytest.raises(StoreInUseError):
            await other.open()
        holder.stdin.write("\n")
        holder.stdin.flush()
        holder.wait(timeout=60)
    await store.open()
    assert store.epoch == 2
    await store.close()


@pytest.mark.slow
async def test_the_death_of_a_process_lets_go(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        holder.kill()
        holder.wait(timeout=60)
    store = FileSessionStore(tmp_path)
    await store.open()
    assert store.epoch == 2
    await store.close()
