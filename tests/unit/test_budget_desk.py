"""The desk of budgets over a store that remembers, dies and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from laneway import Inbox, StoreUnavailableError
from laneway.errors import ClosedError, NotFoundError
from laneway.kernel.budgets import Grant, Refusal, Wish
from laneway.runtime.budget_desk import BudgetDesk
from laneway.runtime.budget_windows import Calendar, period_of
from laneway.spending import Amount, Budget, BudgetScope, BudgetWindow, OnExhausted, Spender
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing import fake_host
from laneway.testing.faults import FaultyStore
from tests.inbox_stage import Agent, staged
from tests.stage import passing

WHO = Spender("acme", "default", "s1", "r1", "user:42")
SMALL = Budget(name="small", scope=BudgetScope.SESSION, tokens=1_000)
DAY_MS = 86_400_000


@asynccontextmanager
async def desk_over(store: MemoryStore | FaultyStore, *rules: Budget) -> AsyncIterator[BudgetDesk]:
    inbox = Inbox(Agent(), store=store, host=fake_host())
    desk = BudgetDesk(inbox.engine, rules)
    inbox.engine.on_loaded = desk.load
    async with inbox:
        yield desk


async def grant_of(desk: BudgetDesk, said: int, output: int) -> Grant:
    found = await desk.reserve(WHO, Wish(said, output))
    assert isinstance(found, Grant)
    return found


def spent(desk: BudgetDesk) -> dict[str, int]:
    return {key.budget: count.spent.tokens for key, count in desk.budgets.counts.items()}


@staged
async def test_what_was_settled_is_there_after_a_close() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        desk.settle(await grant_of(desk, 100, 200), Amount(150))
        await desk.close()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert spent(desk) == {"small": 150}
        assert next(iter(desk.budgets.counts.values())).lost == Amount()


@staged
async def test_after_a_crash_what_was_granted_counts_as_spent() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        await grant_of(desk, 100, 200)  # and nobody closes the desk
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert spent(desk) == {"small": 320}  # 300, and a fiftieth of the limit


@staged
async def test_a_call_waits_for_what_others_give_back_in_order() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        first = await grant_of(desk, 100, 700)
        second = asyncio.ensure_future(desk.reserve(WHO, Wish(100, 300, 300)))
        await passing(1)
        third = asyncio.ensure_future(desk.reserve(WHO, Wish(10, 10, 10)))
        await passing(1)
        assert not second.done()
        assert not third.done()  # it would fit, and came later
        desk.settle(first, Amount(200))
        assert isinstance(await second, Grant)
        assert isinstance(await third, Grant)


@staged
async def test_who_goes_away_while_waiting_holds_up_nobody() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        await grant_of(desk, 100, 700)
        second = asyncio.ensure_future(desk.reserve(WHO, Wish(100, 300, 300)))
        await passing(1)
        third = asyncio.ensure_future(desk.reserve(WHO, Wish(10, 10, 10)))
        await passing(1)
        second.cancel()
        assert isinstance(await third, Grant)
        (count,) = desk.budgets.counts.values()
        assert (count.in_flight, count.reserved.tokens) == (2, 820)


@staged
async def test_what_never_fits_is_refused_at_once() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        found = await desk.reserve(WHO, Wish(1_000, 10))
        assert isinstance(found, Refusal)
        assert found.where.reserved == Amount()


@staged
async def test_most_calls_wait_for_no_commit() -> None:
    async with desk_over(MemoryStore(), Budget(name="big", scope=BudgetScope.TENANT, tokens=1_000_000)) as desk:
        desk.settle(await grant_of(desk, 10, 10), Amount(20))
        (row,) = desk._rows.values()  # noqa: SLF001 - what is on disk
        stored = row.stored
        for _ in range(100):
            desk.settle(await grant_of(desk, 10, 10), Amount(20))
        assert row.stored == stored
        assert row.count.spent == Amount(2_020)


@staged
async def test_a_grant_that_cannot_be_stored_is_given_back() -> None:
    store = FaultyStore(MemoryStore())
    async with desk_over(store, SMALL) as desk:
        store.fail_next(error=StoreUnavailableError("the disk is full"))
        with pytest.raises(StoreUnavailableError):
            await desk.reserve(WHO, Wish(100, 100))
        (count,) = desk.budgets.counts.values()
        assert (count.reserved, count.in_flight) == (Amount(), 0)
        assert isinstance(await desk.reserve(WHO, Wish(100, 100)), Grant)


@staged
async def test_rules_that_were_set_are_there_after_a_restart() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        await desk.set_rule(Budget(name="new", scope=BudgetScope.TENANT, tokens=5))
        await desk.drop_rule("small")
        with pytest.raises(NotFoundError, match="there is no budget 'small'"):
            await desk.drop_rule("small")
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert list(desk.budgets.rules) == ["new"]
        await desk.set_rule(SMALL)
        assert set(desk.budgets.rules) == {"new", "small"}


@staged
async def test_whoever_is_parked_looks_again_when_a_budget_changes() -> None:
    daily = Budget(
        name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=50, on_exhausted=OnExhausted.PARK
    )
    async with desk_over(MemoryStore(), daily) as desk:
        refused = await desk.reserve(WHO, Wish(100, 10))
        assert isinstance(refused, Refusal)
        parked = asyncio.ensure_future(desk.opened(refused, DAY_MS))
        await passing(1)
        assert not parked.done()
        await desk.set_rule(Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=500))
        await parked
        assert isinstance(await desk.reserve(WHO, Wish(100, 10)), Grant)


@staged
async def test_a_closed_desk_reserves_nothing() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        await grant_of(desk, 100, 700)
        waiting = asyncio.ensure_future(desk.reserve(WHO, Wish(100, 300, 300)))
        await passing(1)
        await desk.close()
        with pytest.raises(ClosedError):
            await waiting


@staged
async def test_counts_of_a_run_end_with_it() -> None:
    async with desk_over(MemoryStore(), Budget(name="run", scope=BudgetScope.RUN, tokens=100)) as desk:
        desk.settle(await grant_of(desk, 10, 10), Amount(20))
        desk.end_run("r1")
        assert desk.budgets.counts == {}


@staged
async def test_counts_of_a_session_are_deleted_with_it() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        desk.settle(await grant_of(desk, 10, 10), Amount(20))
        desk.end_session("acme", "another")
        assert spent(desk) == {"small": 20}
        desk.end_session("acme", "s1")
        assert spent(desk) == {}
        await desk.close()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert spent(desk) == {}


@staged
async def test_who_came_while_another_was_refused_is_served() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        first = await grant_of(desk, 100, 700)
        second = asyncio.ensure_future(desk.reserve(WHO, Wish(100, 300, 300)))
        await passing(1)
        desk.settle(first, Amount(900))
        third = asyncio.ensure_future(desk.reserve(WHO, Wish(10, 10, 10)))
        assert isinstance(await second, Refusal)
        assert isinstance(await third, Grant)


@staged
async def test_a_limit_that_counts_something_else_begins_anew() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        desk.settle(await grant_of(desk, 10, 10), Amount(20))
        await desk.set_rule(Budget(name="small", scope=BudgetScope.SESSION, tokens=5_000))
        assert spent(desk) == {"small": 20}
        await desk.set_rule(Budget(name="small", scope=BudgetScope.TENANT, tokens=5_000))
        assert spent(desk) == {}


@pytest.mark.parametrize(
    ("window", "zone", "at", "expected"),
    [
        (BudgetWindow.DAY, "UTC", 10, (0, DAY_MS)),
        (BudgetWindow.MONTH, "UTC", 40 * DAY_MS, (31 * DAY_MS, 59 * DAY_MS)),
        (BudgetWindow.DAY, "Europe/Zurich", 1_774_746_000_000, (1_774_738_800_000, 1_774_821_600_000)),  # 23 hours
    ],
)
def test_windows_are_days_and_months_of_their_timezone(
    window: BudgetWindow, zone: str, at: int, expected: tuple[int, int]
) -> None:
    assert period_of(window, zone, at) == expected


def test_a_clock_that_goes_back_opens_no_old_window() -> None:
    calendar = Calendar()
    rule = Budget(name="d", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1)
    calendar.move(DAY_MS + 5)
    assert calendar.period(rule).from_ms == DAY_MS
    calendar.move(5)
    assert calendar.period(rule).from_ms == DAY_MS
    calendar.move(2 * DAY_MS)
    assert calendar.period(rule).from_ms == 2 * DAY_MS
