"""Addresses of stores, what only the memory store does, the SQL files, and the store that fails on purpose."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.errors import FencedError, StoreUnavailableError, UnknownStoreError
from laneway.ports import Store
from laneway.rows import Batch, BatchResult, Loaded, Lookup, Owner, StateKey
from laneway.sim.loop import run_sim
from laneway.stores import MemoryDisk, MemoryStore, open_store
from laneway.stores.sqlite import SqliteStore
from laneway.stores.sqlite_threads import Gate
from laneway.stores.statements import migrations, schema_version, split_script, statements
from laneway.testing.stores import OTHER, OWNER, FaultyStore, entry_row, event_row, message_row, state_row


def batch(store: Store, *names: str, owner: Owner = OWNER) -> Batch:
    """A batch of messages."""
    return Batch(owner, store.epoch, tuple(message_row(name, owner, seq=store.next_seq()) for name in names))


async def names(store: Store) -> list[str]:
    return [row.id for row in await store.history.messages(Owner("acme", "main"))]


# ---- addresses ----


@pytest.mark.parametrize("value", [None, "memory:", "memory://", "MEMORY:"])
def test_without_a_file_rows_are_in_memory(value: str | None) -> None:
    store = open_store(value)
    assert isinstance(store, MemoryStore)
    assert open_store(value) is not store


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("sqlite:///x.db", "x.db"),
        ("sqlite:///a b/ü.db", "a b/ü.db"),
        ("sqlite:////var/x.db", "/var/x.db"),
        ("SQLite:////var/x.db", "/var/x.db"),
        ("sqlite:///~/x.db", "~/x.db"),
        ("sqlite:///C:/x.db", "C:/x.db"),
    ],
)
def test_an_sqlite_address_names_a_file(address: str, path: str) -> None:
    store = open_store(address)
    assert isinstance(store, SqliteStore)
    assert store.path == os.path.realpath(os.path.expanduser(path))
    assert repr(store) == f"SqliteStore({store.path!r}, epoch=0, users=0)"


@pytest.mark.parametrize("store", [MemoryStore(), FaultyStore(MemoryStore()), SqliteStore("x.db")])
def test_a_store_stays_as_it_is(store: Store) -> None:
    assert open_store(store) is store


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("", "use memory:, sqlite:///relative.db"),
        ("sqllite:///x.db", "did you mean 'sqlite:///x.db'?"),
        ("memry:", "did you mean 'memory:'?"),
        ("memory", "did you mean 'memory:'?"),
        ("x.db", "did you mean 'sqlite:///x.db'?"),
        ("/var/x.db", "did you mean 'sqlite:////var/x.db'?"),
        (Path("x.db"), "did you mean 'sqlite:///x.db'?"),
        ("sqlite://x.db", "did you mean 'sqlite:///x.db'?"),
        ("sqlite:x.db", "did you mean 'sqlite:///x.db'?"),
        ("sqlite://", "use memory:"),
        ("sqlite:///", "use memory:"),
        ("sqlite:///:memory:", "use memory:"),
        ("sqlite:///x.db?mode=ro", "leave out everything from the ? on"),
        ("postgresql://host/db", "use memory:"),
        ("memory:x", "did you mean 'memory:'?"),
        (42, "use memory:"),
        (MemoryStore, "use memory:"),
    ],
)
def test_an_address_that_is_none_says_what_was_meant(value: object, hint: str) -> None:
    with pytest.raises(UnknownStoreError) as caught:
        open_store(value)  # type: ignore[arg-type]
    assert hint in caught.value.hint


@pytest.mark.slow
def test_sqlite3_is_loaded_by_those_who_use_it() -> None:
    code = """
import sys
from laneway.stores import open_store
open_store(None), open_store("memory:")
assert "sqlite3" not in sys.modules
open_store("sqlite:///x.db")
assert "sqlite3" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---- memory ----


async def test_two_stores_on_one_disk_are_two_processes_on_one_file() -> None:
    disk = MemoryDisk()
    old, new = MemoryStore(disk), MemoryStore(disk)
    await old.open()
    await old.commit([batch(old, "a")])
    await new.open()
    assert new.epoch > old.epoch
    for stale in (batch(old, "b"), Batch(OWNER, new.epoch, (message_row("b", seq=9),))):
        assert isinstance((await old.commit([stale]))[0].error, FencedError)
    assert await new.commit([batch(new, "c")]) == [BatchResult()]
    assert await names(new) == ["a", "c"]
    assert old.next_seq() < new.next_seq() < old.next_seq()


async def test_what_has_ended_is_kept_up_to_a_bound_and_what_lives_always() -> None:
    store = MemoryStore(MemoryDisk(kept_max=3))
    await store.open()
    for number in range(10):
        rows = (
            message_row(f"live{number}", seq=store.next_seq()),
            message_row(f"ended{number}", OTHER, seq=store.next_seq(), live=0, platform_id=f"p{number}"),
            state_row("turn", f"t{number}", OTHER, seq=store.next_seq(), live=0),
            state_row("job", f"j{number}", seq=store.next_seq()),
            event_row(Owner("acme", "main", f"chat-{number}"), seq=store.next_seq()),
            entry_row(Owner("acme", "main", f"chat-{number}"), seq=store.next_seq()),
        )
        assert await store.commit([Batch(OWNER, store.epoch, rows)]) == [BatchResult()]
    loaded = await store.load_workspace("main")
    assert (len(loaded.messages), len(loaded.states)) == (10, 10)
    assert [row.id for row in await store.history.messages(OTHER)] == ["ended7", "ended8", "ended9"]
    assert [row.id for row in await store.history.states(OTHER, "turn")] == ["t7", "t8", "t9"]
    assert await store.find([Lookup(OTHER, "slack", "p6", 0)]) == [None]
    kept = [number for number in range(10) if await store.history.events(Owner("acme", "main", f"chat-{number}"))]
    assert kept == [7, 8, 9]
    assert await store.history.entries(Owner("acme", "main", "chat-6")) == []


async def test_a_session_without_rows_costs_nothing() -> None:
    disk = MemoryDisk()
    store = MemoryStore(disk)
    await store.open()
    for number in range(5):
        owner = Owner("acme", "main", f"job:{number}")
        await store.commit([Batch(owner, store.epoch, (state_row("job", f"j{number}", owner, seq=number + 1),))])
        await store.commit([Batch(owner, store.epoch, (), (StateKey("job", f"j{number}"),))])
    assert disk.drawers == {}
    assert await store.load_workspace("main") == Loaded([], [])


# ---- SQL ----


def test_every_statement_can_be_prepared_and_says_what_it_is_for() -> None:
    connection = sqlite3.connect(":memory:")
    for step in migrations():
        for sql in step.statements:
            connection.execute(sql)
    for name, sql in statements().items():
        assert sql.startswith("-- "), name
        values: object = dict.fromkeys(_parameters(sql), 1) if ":" in sql else [1] * sql.count("?")
        assert connection.execute(f"EXPLAIN {sql}", values).fetchall(), name  # type: ignore[arg-type]
    connection.close()


def _parameters(sql: str) -> list[str]:
    return [word.split(":")[1].rstrip(",);") for word in sql.split() if word.lstrip("(").startswith(":")]


@pytest.mark.parametrize(
    "name",
    [name for name in statements() if not name.startswith(("put_", "set_", "counts"))],
)
def test_no_question_reads_a_whole_table(name: str) -> None:
    connection = sqlite3.connect(":memory:")
    for step in migrations():
        for sql in step.statements:
            connection.execute(sql)
    sql = statements()[name]
    values: object = dict.fromkeys(_parameters(sql), 1) if ":" in sql else [1] * sql.count("?")
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]  # type: ignore[arg-type]
    connection.close()
    scans = [step for step in plan if step.startswith("SCAN") and step not in {"SCAN keys", "SCAN CONSTANT ROW"}]
    assert scans == []
    assert any("SEARCH" in step for step in plan)


def test_migrations_count_from_one() -> None:
    assert [step.version for step in migrations()] == list(range(1, schema_version() + 1))
    assert migrations()[0].name == "rows"


def test_a_script_is_split_where_its_statements_end() -> None:
    script = "-- one; comment\nCREATE TABLE a (b);\n\n-- two\nINSERT INTO a\nVALUES (';');\n"
    assert split_script(script) == ("CREATE TABLE a (b);", "INSERT INTO a\nVALUES (';');")
    with pytest.raises(AssertionError, match="does not end"):
        split_script("SELECT 1")


# ---- threads ----


async def test_a_gate_lets_everybody_through_once_it_is_open() -> None:
    gate = Gate()
    waiting = [asyncio.ensure_future(gate.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    gate.open()
    gate.open(ValueError("too late"))
    await asyncio.gather(*waiting[1:])
    await gate.wait()
    assert waiting[0].cancelled()


async def test_a_gate_that_went_wrong_tells_everybody() -> None:
    gate = Gate()
    waiting = asyncio.ensure_future(gate.wait())
    await asyncio.sleep(0)
    gate.open(ValueError("broken"))
    for wait in (waiting, gate.wait()):
        with pytest.raises(ValueError, match="broken"):
            await wait


# ---- faults ----


async def faulty() -> FaultyStore:
    store = FaultyStore(MemoryStore(), random.Random(7))
    await store.open()
    return store


async def test_a_commit_fails_before_or_after_it_was_done() -> None:
    store = await faulty()
    store.fail_next("before")
    assert isinstance((await store.commit([batch(store, "a")]))[0].error, StoreUnavailableError)
    store.fail_next("after")
    assert isinstance((await store.commit([batch(store, "b")]))[0].error, StoreUnavailableError)
    assert await store.commit([batch(store, "c")]) == [BatchResult()]
    assert await names(store) == ["b", "c"]
    assert (store.faults, store.commits) == (2, 3)


async def test_a_fault_of_one_owner_leaves_the_others_alone() -> None:
    store = await faulty()
    error = ValueError("mine")
    store.fail_next("before", owner=OTHER, times=2, error=error)
    assert await store.commit([batch(store, "a")]) == [BatchResult()]
    for name in ("b", "c"):
        results = await store.commit([batch(store, f"{name}1"), batch(store, f"{name}2", owner=OTHER)])
        assert [result.error for result in results] == [None, error]
    results = await store.commit([batch(store, "d", owner=OTHER)])
    assert results == [BatchResult()]
    store.fail_next("after", owner=OTHER)
    results = await store.commit([batch(store, "e", owner=OTHER), batch(store, "f")])
    assert [result.error is None for result in results] == [False, True]
    assert await names(store) == ["a", "b1", "c1", "d", "e", "f"]


async def test_opening_loading_and_finding_can_fail_too() -> None:
    store = FaultyStore(MemoryStore())
    store.fail_next(call="open")
    with pytest.raises(StoreUnavailableError):
        await store.open()
    await store.open()
    store.fail_next(call="load", times=2)
    store.fail_next(call="find")
    with pytest.raises(StoreUnavailableError):
        await store.load_workspace("main")
    with pytest.raises(StoreUnavailableError):
        await store.load_session(OWNER)
    with pytest.raises(StoreUnavailableError):
        await store.find([])
    assert await store.load_workspace("main") == Loaded([], [])
    assert await store.find([]) == []


async def test_chance_decides_as_often_as_it_was_told_to() -> None:
    store = await faulty()
    store.fail_before, store.fail_after, store.fail_one = 0.2, 0.2, 0.2
    outcomes = [
        tuple(result.error is None for result in await store.commit([batch(store, f"{n}"), batch(store, owner=OTHER)]))
        for n in range(300)
    ]
    assert 0.2 < outcomes.count((False, False)) / 300 < 0.5
    assert 0.02 < outcomes.count((True, False)) / 300 < 0.2
    assert 0.02 < outcomes.count((False, True)) / 300 < 0.2
    store.heal()
    assert await store.commit([batch(store, "healed")]) == [BatchResult()]


def test_slow_calls_keep_their_order() -> None:
    rows = [message_row("m", seq=1, state=f"s{number}") for number in range(20)]

    async def main() -> tuple[str, float]:
        store = await faulty()
        store.slow, store.delay_ms = 0.7, 1000
        loop = asyncio.get_running_loop()
        asked = [loop.create_task(store.commit([Batch(OWNER, store.epoch, (row,))])) for row in rows]
        await asyncio.gather(*asked)
        found = await store.history.message("m")
        return found.state if found is not None else "", loop.time()

    state, took = run_sim(main(), seed=1, shuffle=False)
    assert state == "s19"
    assert took > 1
