"""The SQLite store with real threads, loops, processes and big rows."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from laneway import AsyncAgent, FileSessionStore
from laneway.errors import ConflictError, StoreInUseError, StoreUnavailableError
from laneway.models import ScriptedModel, call, say
from laneway.policies import PermissionPolicy
from laneway.rows import Batch, BatchResult, Lookup, Owner, StateKey
from laneway.stores.locks import lock_holder
from laneway.stores.sqlite import SqliteStore
from laneway.testing.stores import OTHER, OWNER, entry_row, event_row, message_row, state_row
from laneway.tools import FunctionTool


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("laneway-store")]


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def put(store: SqliteStore, row_id: str, **fields: Any) -> None:
    row = message_row(row_id, seq=store.next_seq(), **fields)
    assert await store.commit([Batch(OWNER, store.epoch, (row,))]) == [BatchResult()]


async def until_ended() -> None:
    """The last thing a thread does is to say that it is done: give it the moment it needs to end."""
    for thread in threading.enumerate():
        if thread.name.startswith("laneway-store"):
            await asyncio.to_thread(thread.join, 10)


# ---- sharing ----


async def test_stores_of_one_file_are_one_store(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "x.db")
    first, second = SqliteStore(tmp_path / "x.db"), SqliteStore(tmp_path / "link.db")
    await asyncio.gather(first.open(), second.open(), first.open())
    assert first.epoch == second.epoch == 1
    await put(first, "a")
    assert [first.next_seq(), second.next_seq(), first.next_seq()] == [2, 3, 4]
    await first.close()
    await first.close()
    with pytest.raises(StoreUnavailableError, match="is not open"):
        await first.commit([])
    await put(second, "b")
    assert lock_holder(second.path) == str(os.getpid())
    await second.close()
    assert lock_holder(second.path) is None
    assert our_threads() == []


async def test_who_opens_while_the_last_one_closes_gets_the_store_anew(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "x.db") for _ in range(5)]

    async def use(store: SqliteStore, name: str) -> None:
        await store.open()
        await put(store, name)
        await store.close()

    await asyncio.gather(*(use(store, f"m{number}") for number, store in enumerate(stores)))
    closing = SqliteStore(tmp_path / "x.db")
    await closing.open()
    before = closing.epoch
    ending = asyncio.ensure_future(closing.close())
    await asyncio.sleep(0)
    await stores[0].open()
    await ending
    assert stores[0].epoch == before + 1
    assert len(await stores[0].history.messages(OWNER)) == 5
    await stores[0].close()


async def test_an_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    opening = asyncio.ensure_future(store.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await until_ended()
    assert our_threads() == []
    assert lock_holder(store.path) is None


def test_a_loop_that_was_closed_meanwhile_does_not_stop_the_writer(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db", busy_ms=60_000)
    asyncio.run(store.open())
    blocker = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    loop = asyncio.new_event_loop()

    async def leave() -> None:
        batch = Batch(OWNER, store.epoch, (message_row("left", seq=1),))
        asking = loop.create_task(store.commit([batch]))
        await asyncio.sleep(0)
        asking.cancel()

    loop.run_until_complete(leave())
    loop.close()
    blocker.execute("ROLLBACK")
    blocker.close()
    asyncio.run(put(store, "later"))

    async def read() -> list[str]:
        ids = [row.id for row in await store.history.messages(OWNER)]
        await store.close()
        return ids

    assert asyncio.run(read()) == ["left", "later"]


def test_loops_in_several_threads_share_a_store(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    async def use(name: str) -> None:
        store = SqliteStore(tmp_path / "x.db")
        await store.open()
        for number in range(20):
            await put(store, f"{name}-{number}")
        assert await store.history.message(f"{name}-19") is not None
        await store.close()

    def run(name: str) -> None:
        try:
            asyncio.run(use(name))
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=run, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

    async def count() -> int:
        store = SqliteStore(tmp_path / "x.db")
        await store.open()
        found = len(await store.history.messages(OWNER))
        await store.close()
        return found

    assert asyncio.run(count()) == 80


async def test_a_path_may_have_any_characters(tmp_path: Path) -> None:
    for name in ("a b?c#d%20e.db", "ü 日.db", "'quoted\".db", os.fsdecode(b"no-utf8-\xff.db")):
        store = SqliteStore(tmp_path / name)
        await store.open()
        await put(store, "m")
        await store.close()
        assert (tmp_path / name).exists()
        assert (await store.check()).rows["messages"] == 1


# ---- nobody waits ----


async def test_reading_and_the_loop_go_on_while_a_commit_waits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db", busy_ms=60_000)
    await store.open()
    await put(store, "m")
    blocker = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(put(store, "n"))
    await asyncio.sleep(0)
    assert [row.id for row in await store.history.messages(OWNER)] == ["m"]
    assert [row.id for row in (await store.load_session(OWNER)).messages] == ["m"]
    assert (await store.check()).rows["messages"] == 1
    assert not waiting.done()
    blocker.execute("ROLLBACK")
    blocker.close()
    await waiting
    assert [row.id for row in (await store.load_workspace("main")).messages] == ["m", "n"]
    await store.close()


async def test_what_waits_together_is_one_transaction(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db", busy_ms=60_000)
    await store.open()
    await put(store, "first")
    blocker = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    held = asyncio.ensure_future(put(store, "held"))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(put(store, f"m{number}")) for number in range(200)]
    late = asyncio.ensure_future(store.find([Lookup(OWNER, "slack", "nobody", 0)]))
    await asyncio.sleep(0)
    blocker.execute("ROLLBACK")
    blocker.close()
    await asyncio.gather(held, *others)
    assert await late == [None]
    # Every transaction writes the pages it changes to the log: two hundred of them would be a thousand pages.
    assert os.stat(f"{store.path}-wal").st_size < 200 * 4096
    await store.close()


# ---- big and small ----


@pytest.mark.slow
async def test_ten_megabytes_come_back_byte_for_byte(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    body = "ä\x00\U0001f600x" * (10 * 1024 * 1024 // 8)
    rows = (message_row("m", seq=1, body=body), entry_row(seq=2, text=body), event_row(seq=3, body=body))
    assert await store.commit([Batch(OWNER, store.epoch, rows)]) == [BatchResult()]
    await store.close()
    await store.open()
    assert await store.history.message("m") == rows[0]
    assert await store.history.entries(OWNER) == [rows[1]]
    assert await store.history.events(OWNER) == [rows[2]]
    assert (await store.load_session(OWNER)).messages == [rows[0]]
    await store.close()


@pytest.mark.slow
async def test_a_hundred_thousand_waiting_messages_are_loaded_in_their_order(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    owners = [Owner("acme", "main", f"chat-{number}") for number in range(1000)]
    body = '{"text": "' + "hello " * 30 + '"}'
    for start in range(0, 100_000, 20_000):
        batches = [
            Batch(owner, store.epoch, (message_row(f"m{seq}", owner, seq=seq, body=body),))
            for seq, owner in ((seq, owners[seq % 1000]) for seq in range(start, start + 20_000))
        ]
        assert await store.commit(batches) == [BatchResult()] * 20_000
    await store.close()
    await store.open()
    loaded = await store.load_workspace("main")
    assert [row.seq for row in loaded.messages] == list(range(100_000))
    assert len((await store.load_session(owners[7])).messages) == 100
    await store.close()


async def test_numbers_go_on_without_a_gap_after_a_clean_close(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    numbers = [store.next_seq() for _ in range(3)]
    await store.close()
    await store.open()
    assert store.next_seq() == numbers[-1] + 1
    await store.close()


async def test_forgotten_rows_leave_no_trace_in_the_indexes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    for number in range(3):
        row = state_row("job", f"j{number}", Owner("acme", "main"), seq=store.next_seq())
        owner = Owner("acme", "main")
        await store.commit([Batch(owner, store.epoch, (row,))])
        await store.commit([Batch(owner, store.epoch, (row._replace(state="running"),))])
        await store.commit([Batch(owner, store.epoch, (), (StateKey("job", f"j{number}"),))])
    report = await store.check()
    assert report.is_sound
    assert report.rows["states"] == 0
    await store.close()


# ---- death ----


WRITE = """
    import asyncio, sys
    from laneway.rows import Batch, Owner
    from laneway.stores.sqlite import SqliteStore
    from laneway.testing.stores import event_row, message_row

    async def talk(store, owner):
        while True:
            seq = store.next_seq()
            event = event_row(owner, seq=store.next_seq(), message_id=f"m{seq}")
            results = await store.commit([Batch(owner, store.epoch, (message_row(f"m{seq}", owner, seq=seq), event))])
            if results[0].error is None:
                print(f"m{seq} {owner.session}", flush=True)

    async def main():
        store = SqliteStore(sys.argv[1])
        await store.open()
        await asyncio.gather(*(talk(store, Owner("acme", "main", f"chat-{n}")) for n in range(10)))

    asyncio.run(main())
"""


def acknowledged_before_death(path: Path, count: int) -> set[tuple[str, str]]:
    """Let another process write, kill it in the middle, and say what it was told is on disk."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITE), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    whole = [line.split() for line in lines if line.endswith("\n")]  # death may cut the last one off
    return {(message_id, session) for message_id, session in whole}


@pytest.mark.slow
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    told: set[tuple[str, str]] = set()
    for round_ in range(5):
        told |= acknowledged_before_death(path, 50 + 100 * round_)
        store = SqliteStore(path)
        await store.open()
        assert (await store.check()).is_sound
        rows = (await store.load_workspace("main")).messages
        missing = told - {(row.id, row.session) for row in rows}
        assert missing == set()
        assert store.next_seq() > max(row.seq for row in rows)
        for owner in {Owner(row.tenant, row.workspace, row.session) for row in rows}:
            events = await store.history.events(owner, limit=100_000)
            assert {event.message_id for event in events} == {row.id for row in rows if row.session == owner.session}
        await store.close()
    assert len(told) > 1000


FORGET = """
    import asyncio, sys
    from laneway.rows import Batch
    from laneway.stores.sqlite import SqliteStore
    from laneway.testing.stores import OWNER, message_row

    async def main():
        store = SqliteStore(sys.argv[1])
        await store.open()
        await store.history.message("m")
        await store.commit([Batch(OWNER, store.epoch, (message_row("m", seq=1),))])

    asyncio.run(main())
"""

FORK = """
    import asyncio, os, sys
    from laneway.errors import StoreUnavailableError
    from laneway.rows import Batch
    from laneway.stores.locks import lock_holder
    from laneway.stores.sqlite import SqliteStore
    from laneway.testing.stores import OWNER, message_row

    async def child(store):
        try:
            await store.commit([Batch(OWNER, store.epoch, (message_row("m", seq=1),))])
        except StoreUnavailableError as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError
        try:
            await store.history.message("m")
        except StoreUnavailableError as error:
            assert "forked" in str(error), error
        fresh = SqliteStore(sys.argv[1])
        await fresh.open()
        print("child", fresh.epoch, flush=True)
        await fresh.close()

    store = SqliteStore(sys.argv[1])
    asyncio.run(store.open())
    read, write = os.pipe()
    there, came = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)  # so that it ends with its parent, whatever happens there
        os.write(came, b"x")  # it has let go of what its parent holds: that is done while it is made
        os.read(read, 1)
        asyncio.run(child(store))
        os._exit(0)
    os.read(there, 1)
    assert lock_holder(store.path) == str(os.getpid())
    asyncio.run(store.close())
    assert lock_holder(store.path) is None
    os.write(write, b"x")
    assert os.waitpid(pid, 0)[1] == 0
"""


def run(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_program_that_forgets_to_close_still_ends(tmp_path: Path) -> None:
    done = run(FORGET, tmp_path / "x.db")
    assert (done.returncode, done.stderr) == (0, "")

    async def read() -> bool:
        store = SqliteStore(tmp_path / "x.db")
        await store.open()
        found = await store.history.message("m")
        await store.close()
        return found is not None

    assert asyncio.run(read())


@pytest.mark.slow
def test_a_forked_child_neither_uses_nor_holds_the_store_of_its_parent(tmp_path: Path) -> None:
    done = run(FORK, tmp_path / "x.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "child 2\n", "")


# ---- copies ----


async def test_a_backup_is_one_moment_of_a_store_that_is_in_use(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    stop = asyncio.Event()

    async def write(owner: Owner) -> None:
        while not stop.is_set():
            seq = store.next_seq()
            rows = (message_row(f"m{seq}", owner, seq=seq), event_row(owner, seq=seq, message_id=f"m{seq}"))
            assert (await store.commit([Batch(owner, store.epoch, rows)]))[0].error is None

    writers = [asyncio.ensure_future(write(owner)) for owner in (OWNER, OTHER)]
    await put(store, "seen")
    sizes = [await store.backup(tmp_path / f"copy{number}.db") for number in range(5)]
    stop.set()
    await asyncio.gather(*writers)
    await store.close()
    assert min(sizes) > 0
    for number in range(5):
        copy = SqliteStore(tmp_path / f"copy{number}.db")
        report = await copy.check()
        assert report.is_sound
        assert report.in_use_by is None
        await copy.open()
        messages = await copy.history.messages(Owner("acme", "main"), limit=100_000)
        events = [
            event.message_id for owner in (OWNER, OTHER) for event in await copy.history.events(owner, limit=100_000)
        ]
        assert {row.id for row in messages} == {*events, "seen"}
        await copy.close()
    assert not [name for name in names_in(tmp_path) if "part" in name]


async def test_a_backup_overwrites_only_what_it_is_told_to(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    await put(store, "m")
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(ConflictError, match="exists already"):
        await store.backup(target)
    assert target.read_text() == "precious"
    await store.backup(target, overwrite=True)
    with pytest.raises(ConflictError, match="is the store itself"):
        await store.backup(tmp_path / "x.db", overwrite=True)
    copy = SqliteStore(target)
    await copy.open()
    assert await copy.history.message("m") is not None
    with pytest.raises(StoreInUseError, match="is open"):
        await store.backup(target, overwrite=True)
    await copy.close()
    with pytest.raises(StoreUnavailableError, match="nowhere"):
        await store.backup(tmp_path / "nowhere" / "copy.db")
    await store.close()
    assert names_in(tmp_path) == {"x.db", "x.db.lock", "copy.db", "copy.db.lock"}


async def test_a_check_finds_damage_and_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    for number in range(30):
        await put(store, f"m{number}", body="x" * 3000)
    await store.close()
    content = bytearray((tmp_path / "x.db").read_bytes())
    content[-4096 * 4 :] = b"\xa5" * 4096 * 4
    (tmp_path / "x.db").write_bytes(content)
    with pytest.raises(StoreUnavailableError, match="damaged"):
        await store.open()
    report = await store.check()
    assert not report.is_sound
    assert report.problems
    assert (tmp_path / "x.db").read_bytes() == bytes(content)
    with pytest.raises(StoreUnavailableError, match="there is no store"):
        await SqliteStore(tmp_path / "y.db").check()


async def test_a_file_that_was_moved_away_and_put_back_has_lost_nothing(tmp_path: Path) -> None:
    """Whoever only reads makes no file in its place: SQLite would take that for a new store and drop the log."""
    path, away = tmp_path / "inbox.db", tmp_path / "away.db"
    store = SqliteStore(path)
    await store.open()
    await put(store, "before")
    path.rename(away)
    with pytest.raises(StoreUnavailableError):
        await store.load_session(OTHER)
    assert not path.exists()
    away.rename(path)
    await put(store, "after")
    assert (tmp_path / "inbox.db-wal").exists()
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("inbox.db", "inbox.db-wal"):  # what a process that is killed now leaves on disk
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    await store.close()
    again = SqliteStore(copy / "inbox.db")
    await again.open()
    assert [row.id for row in (await again.load_session(OWNER)).messages] == ["before", "after"]
    await again.close()


async def test_a_blob_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "laneway.db")
    await store.open()
    blob = state_row("blob", "acme:1", Owner("acme", ""), seq=1, live=0, body="x" * 1_000_000)
    log, sizes = tmp_path / "laneway.db-wal", []
    for _ in range(5):
        (result,) = await store.commit([Batch(OWNER, store.epoch, (blob,))])
        assert result.error is None
        sizes.append(log.stat().st_size)
    assert sizes[0] > 1_000_000
    assert sizes[-1] - sizes[0] < 100_000
    await store.close()


async def test_a_blob_that_a_row_has_named_goes_with_it_though_it_was_written_again_without(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "laneway.db")
    await store.open()
    digest = "a" * 64
    blob = state_row("blob", f"acme:{digest}", Owner("acme", ""), seq=1, live=0)
    rounds = [state_row("round", "r/1", seq=2, live=0, body=body) for body in (f'{{"v":1,"b":["{digest}"]}}', "{}")]
    others = [state_row(kind, "r/2", seq=3, live=0, body='no JSON, "b":[') for kind in ("round", "turn")]
    (result,) = await store.commit([Batch(OWNER, store.epoch, (*rounds, blob, *others))])
    assert result.error is None
    assert await store.history.state("blob", blob.id) == blob
    assert await store.erase(OWNER) == 3
    assert await store.history.state("blob", blob.id) is None
    await store.close()


async def test_the_log_stays_short_until_many_rows_share_a_commit(tmp_path: Path) -> None:
    """A commit that makes the log longer waits for the disk twice as long as one that writes where it has been."""
    store = SqliteStore(tmp_path / "laneway.db")
    await store.open()
    log, page, seq = tmp_path / "laneway.db-wal", 4096, 0

    async def commit(rows: int) -> None:
        nonlocal seq
        states = [
            state_row("round", f"r{seq + n}", seq=seq + n, live=0, body="x" * 25 * page) for n in range(1, rows + 1)
        ]
        (result,) = await store.commit([Batch(OWNER, store.epoch, tuple(states))])
        assert result.error is None
        seq += rows

    for _ in range(60):  # 1,500 pages
        await commit(rows=1)
    assert log.stat().st_size < 1_200 * page
    for _ in range(3):  # 3,000
        await commit(rows=40)
    assert log.stat().st_size > 2_500 * page
    await store.close()


# ---- texts beside their rows ----


@pytest.mark.parametrize("record", [False, True])
async def test_an_answer_that_is_too_long_for_its_row_is_kept_beside_it_however_often_that_is_written(
    tmp_path: Path, record: bool
) -> None:
    long = "x" * 20_000
    script: list[Any] = [[say(long), call("note", text="a")], [say(f"{long}y"), call("note", text="b")], [say("done")]]

    def note(text: str) -> str:
        return f"noted {text}{long}"

    async with AsyncAgent(
        model=ScriptedModel(script),
        tools=[FunctionTool(note, description="Note something.")],
        session_store=FileSessionStore(tmp_path),
        record=record,
        permission_policy=PermissionPolicy(allow=("*",)),
    ) as agent:
        session = agent.session(tmp_path, session_id="s")
        run_id = (await session.send("go")).run_id
    async with AsyncAgent(model=ScriptedModel([]), session_store=FileSessionStore(tmp_path)) as agent:
        run = await agent.session(tmp_path, session_id="s").explain_run(run_id)
        assert "In all 3 rounds and 2 calls" in run
