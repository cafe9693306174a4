"""Every store passes one suite. A new store is added to STORES; a change of the port begins in the suite."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneway.ports import Store
from laneway.rows import EntryRow, EventRow, MessageRow, Owner, Row, StateRow
from laneway.stores import MemoryDisk, MemoryStore
from laneway.stores.sqlite import SqliteStore
from laneway.testing.stores import STORE_CHECKS, FaultyStore, OpenStore, check_rows, check_store

Check = Callable[[OpenStore], Awaitable[None]]


def memory(_folder: Path) -> OpenStore:
    disks: dict[str, MemoryDisk] = defaultdict(MemoryDisk)
    return lambda name: MemoryStore(disks[name])


def sqlite(folder: Path) -> OpenStore:
    return lambda name: SqliteStore(folder / f"{name}.db")


def faulty(folder: Path) -> OpenStore:
    """Without faults it is the store that it wraps."""
    inner = memory(folder)
    return lambda name: FaultyStore(inner(name))


STORES = {"memory": memory, "sqlite": sqlite, "faulty": faulty}


@pytest.fixture(params=sorted(STORES))
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """A factory of stores of one kind, in a folder of their own."""
    factory: Callable[[Path], OpenStore] = STORES[request.param]
    return factory(tmp_path)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_a_store_keeps_its_promises(open_store: OpenStore, check: Check) -> None:
    await check(open_store)
    assert check in STORE_CHECKS


@pytest.mark.slow
async def test_check_store_runs_every_check(open_store: OpenStore) -> None:
    names: list[str] = []

    def noting(name: str) -> Store:
        names.append(name)
        return open_store(name)

    await check_store(noting)
    assert len(set(names)) == len(STORE_CHECKS)


async def test_check_store_notices_a_store_that_forgets() -> None:
    def forgetful(_name: str) -> Store:
        return MemoryStore()

    with pytest.raises(AssertionError):
        await check_store(forgetful)


NUMBERS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
TIMES = (NUMBERS, NUMBERS)
NO_OWNER = (st.just(""), st.just(""), st.just(""), st.just(0))  # and no number yet
BITS = st.integers(min_value=0, max_value=1)
PLACES = st.integers(min_value=-(2**53), max_value=2**53)
KINDS: tuple[type[Row], ...] = (MessageRow, StateRow, EventRow, EntryRow)
OWNERS = st.builds(Owner, st.text(), st.text(), st.text())


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Any row; its number comes later."""
    owner, text = draw(OWNERS), st.text()
    kind = draw(st.sampled_from(KINDS))
    values: dict[type[Row], tuple[st.SearchStrategy[object], ...]] = {
        MessageRow: (text, *NO_OWNER, PLACES, BITS, text, text, text, text, st.none() | text, text, *TIMES, text),
        StateRow: (text, text, *NO_OWNER, BITS, text, text),
        EventRow: (*NO_OWNER, NUMBERS, text, text, text, text),
        EntryRow: (*NO_OWNER, NUMBERS, NUMBERS, text, text, text, text, text),
    }
    row: Row = kind._make(draw(st.tuples(*values[kind])))
    return row._replace(tenant=owner.tenant, workspace=owner.workspace, session=owner.session)


def numbered(row: Row, seq: int) -> Row:
    """The row with a number, and so a key, that no other has."""
    if isinstance(row, MessageRow | StateRow):
        return row._replace(seq=seq, id=f"{seq} {row.id}")
    return row._replace(seq=seq)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(drawn=st.lists(rows(), max_size=8))
def test_whatever_a_row_holds_comes_back(open_store: OpenStore, drawn: list[Row]) -> None:

    async def main() -> int:
        store = open_store("any")
        await store.open()
        try:
            first = store.next_seq()
            fresh = [numbered(row, store.next_seq()) for row in drawn]
            await check_rows(store, fresh)
            return first
        finally:
            await store.close()

    assert asyncio.run(main()) > 0
