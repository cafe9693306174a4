"""The desk of budgets over a store that remembers, dies and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from laneway import Inbox, StoreUnavailableError
from laneway.errors import ClosedError, NotFoundError
from laneway.kernel.budgets import Grant, Refusal, Wish
from laneway.rows import Owner
from laneway.runtime.budget_desk import QUIET_MS, BudgetDesk
from laneway.runtime.budget_rows import COUNT, read_count
from laneway.runtime.budget_windows import WRONG_MS, Calendar, period_of
from laneway.spending import Amount, Budget, BudgetScope, BudgetWindow, OnExhausted, Spender
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing import LoopClock, fake_host
from laneway.testing.faults import FaultyStore, When
from tests.inbox_stage import Agent, staged
from tests.stage import passing

WHO = Spender("acme", "default", "s1", "r1", "user:42")
SMALL = Budget(name="small", scope=BudgetScope.SESSION, tokens=1_000)
DAY_MS = 86_400_000


@asynccontextmanager
async def desk_over(
    store: MemoryStore | FaultyStore, *rules: Budget, clock: LoopClock | None = None
) -> AsyncIterator[BudgetDesk]:
    inbox = Inbox(Agent(), store=store, host=fake_host() if clock is None else fake_host(clock=clock))
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
async def test_what_a_call_took_beyond_its_estimate_is_known_to_the_disk_long_before_a_warning() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert desk.settle(await grant_of(desk, 100, 200), Amount(500)) == []
        await passing(1)
    async with desk_over(MemoryStore(disk), SMALL) as desk:  # and nobody has closed the desk
        assert spent(desk)["small"] >= 500


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
        desk.end_run(WHO)
        assert desk.budgets.counts == {}


@staged
async def test_counts_of_a_session_are_deleted_with_it() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        desk.settle(await grant_of(desk, 10, 10), Amount(20))
        desk.end_session(Owner("acme", "default", "another"))
        assert spent(desk) == {"small": 20}
        desk.end_session(Owner("acme", "default", "s1"))
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
    calendar.move(DAY_MS + 5, 0)
    assert calendar.period(rule).from_ms == DAY_MS
    calendar.move(5, 0)
    assert calendar.period(rule).from_ms == DAY_MS
    calendar.move(2 * DAY_MS, 1)
    assert calendar.period(rule).from_ms == 2 * DAY_MS


def test_a_clock_that_stays_behind_was_ahead_before() -> None:
    calendar = Calendar()
    rule = Budget(name="d", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1)
    calendar.move(400 * DAY_MS, 0)
    assert calendar.period(rule).from_ms == 400 * DAY_MS
    assert not calendar.move(5, 1_000)
    assert not calendar.move(6, 1_000 + WRONG_MS - 1)
    assert calendar.move(7, 1_000 + WRONG_MS)
    assert calendar.period(rule) == (0, DAY_MS)
    assert calendar.move(DAY_MS, 1_000 + WRONG_MS)
    assert calendar.period(rule).from_ms == DAY_MS


# ---- order ----


@staged
async def test_a_large_call_is_not_overtaken_by_small_ones_that_come_and_go() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        flying = [await grant_of(desk, 100, 100) for _ in range(4)]
        large = asyncio.ensure_future(desk.reserve(WHO, Wish(700, 10, 10)))
        await passing(1)
        small = [asyncio.ensure_future(desk.reserve(WHO, Wish(100, 100, 100))) for _ in range(3)]
        await passing(1)
        for each in flying:
            desk.settle(each, Amount(10))
            await passing(1)
        assert isinstance(await large, Grant)
        (beside,) = [each for each in small if each.done()]  # what fits
        for found in (large.result(), beside.result()):
            assert isinstance(found, Grant)
            desk.give_back(found)
        assert all(isinstance(each, Grant) for each in await asyncio.gather(*small))


@staged
async def test_who_waits_for_its_own_session_holds_up_no_other() -> None:
    house = Budget(name="house", scope=BudgetScope.TENANT, tokens=100_000)
    async with desk_over(MemoryStore(), SMALL, house) as desk:
        first = await grant_of(desk, 100, 900)
        second = asyncio.ensure_future(desk.reserve(WHO, Wish(100, 300, 300)))
        await passing(1)
        other = WHO._replace(session="s2", run_id="r2")
        assert isinstance(await desk.reserve(other, Wish(100, 300)), Grant)
        assert not second.done()
        desk.give_back(first)
        assert isinstance(await second, Grant)


@staged
async def test_a_place_that_comes_when_its_owner_has_gone_is_given_back() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        first = await grant_of(desk, 100, 900)
        second = asyncio.ensure_future(desk.reserve(WHO, Wish(100, 300, 300)))
        await passing(1)
        desk.give_back(first)  # it is served
        second.cancel()  # and does not know it yet
        await asyncio.gather(second, return_exceptions=True)
        (count,) = desk.budgets.counts.values()
        assert (count.in_flight, count.reserved, desk.waiting()) == (0, Amount(), {})


@staged
async def test_who_waits_for_room_is_served_at_midnight_and_not_overtaken() -> None:
    daily = Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000)
    async with desk_over(MemoryStore(), daily) as desk:
        await grant_of(desk, 100, 800)  # and it takes all night
        second = asyncio.ensure_future(desk.reserve(WHO, Wish(100, 800, 800)))
        await passing(1)
        third = asyncio.ensure_future(desk.reserve(WHO, Wish(10, 10, 10)))
        await passing(DAY_MS)
        assert isinstance(second.result(), Grant)
        assert isinstance(third.result(), Grant)
        assert desk.waiting() == {}


@staged
async def test_who_comes_when_the_clock_has_just_struck_goes_behind_who_waits() -> None:
    daily = Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000)
    clock = LoopClock()
    async with desk_over(MemoryStore(), daily, clock=clock) as desk:
        await grant_of(desk, 100, 800)
        second = asyncio.ensure_future(desk.reserve(WHO, Wish(100, 800, 800)))
        await passing(1)
        clock.jump_wall(DAY_MS)
        assert desk.reserve_now(WHO, Wish(100, 800, 800)) is None
        assert isinstance(await second, Grant)


@staged
async def test_a_clock_that_was_far_ahead_and_is_set_right_closes_no_day_for_long() -> None:
    daily = Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000)
    clock = LoopClock()
    async with desk_over(MemoryStore(), daily, clock=clock) as desk:
        desk.settle(await grant_of(desk, 100, 400), Amount(500))
        clock.jump_wall(365 * DAY_MS)
        desk.settle(await grant_of(desk, 100, 900), Amount(1_000))
        clock.jump_wall(-365 * DAY_MS)
        assert isinstance(await desk.reserve(WHO, Wish(100, 300, 300)), Refusal)
        await passing(WRONG_MS)
        assert isinstance(await desk.reserve(WHO, Wish(100, 300, 300)), Grant)  # 500 are left of that day
        assert isinstance(await desk.reserve(WHO, Wish(200, 301, 301)), Refusal)


# ---- what the disk knows ----


@staged
async def test_what_was_given_back_is_not_lost_by_a_crash() -> None:
    disk, big = MemoryDisk(), Budget(name="big", scope=BudgetScope.TENANT, tokens=1_000_000)
    async with desk_over(MemoryStore(disk), big) as desk:
        grants = [await grant_of(desk, 10, 8_000) for _ in range(100)]
        for grant in grants:
            desk.settle(grant, Amount(20))
        await passing(1)
    async with desk_over(MemoryStore(disk), big) as desk:  # and nobody has closed the desk
        (count,) = desk.budgets.counts.values()
        assert 2_000 <= count.spent.tokens <= 2_000 + 2 * 20_000
        assert count.lost.tokens <= 2 * 20_000


@staged
async def test_a_smaller_grant_that_could_not_be_stored_is_written_with_the_next_call() -> None:
    disk, big = MemoryDisk(), Budget(name="big", scope=BudgetScope.TENANT, tokens=1_000_000)
    store = FaultyStore(MemoryStore(disk))
    async with desk_over(store, big) as desk:
        grants = [await grant_of(desk, 10, 100_000) for _ in range(5)]
        store.fail_next(error=StoreUnavailableError("the disk is full"))
        for grant in grants:
            desk.settle(grant, Amount(20))
        await passing(1)
        desk.settle(await grant_of(desk, 10, 10), Amount(20))
        await passing(1)
    async with desk_over(MemoryStore(disk), big) as desk:
        assert spent(desk)["big"] <= 120 + 2 * 20_000


@staged
async def test_a_budget_that_is_cleared_and_set_while_a_call_is_covered_counts_on_disk() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        await asyncio.gather(desk.drop_rule("small"), desk.reserve(WHO, Wish(100, 100)))
        await desk.set_rule(SMALL)
        for _ in range(3):
            desk.settle(await grant_of(desk, 100, 100), Amount(200))
        (count,) = desk.budgets.counts.values()
        assert [row.count is count for row in desk._rows.values()] == [True]  # noqa: SLF001 - what is on disk
        await desk.close()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert spent(desk) == {"small": 600}


@staged
async def test_a_budget_is_taken_away_once() -> None:
    async with desk_over(MemoryStore()) as desk:
        await desk.set_rule(SMALL)
        ended = await asyncio.gather(*(desk.drop_rule("small") for _ in range(3)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in ended) == ["NoneType", "NotFoundError", "NotFoundError"]


@staged
async def test_whoever_listens_hears_that_a_budget_was_changed() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        heard: list[str] = []
        desk.on_change.append(lambda: heard.append("again"))
        await desk.set_rule(SMALL)
        await desk.reset("small")
        await desk.drop_rule("small")
        assert heard == ["again"] * 3


# ---- clocks ----


@pytest.mark.parametrize("days", [1, 2, 400])
@staged
async def test_a_clock_that_ran_ahead_for_a_moment_opens_no_day_a_second_time(days: int) -> None:
    disk, clock = MemoryDisk(), LoopClock()
    daily = Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000)
    for life in range(2):
        async with desk_over(MemoryStore(disk), daily, clock=clock) as desk:
            today = await desk.reserve(WHO, Wish(900, 100, 100))
            assert isinstance(today, Refusal if life else Grant)
            if isinstance(today, Grant):
                desk.settle(today, Amount(1_000))
                clock.jump_wall(days * DAY_MS)
                desk.settle(await grant_of(desk, 10, 10), Amount(20))
                clock.jump_wall(-days * DAY_MS)
            await desk.close()


@staged
async def test_days_that_are_long_over_are_forgotten() -> None:
    daily = Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000)
    async with desk_over(MemoryStore(), daily) as desk:
        for _ in range(20):
            desk.settle(await grant_of(desk, 10, 10), Amount(20))
            await passing(DAY_MS)
        assert len(desk.budgets.counts) <= 6


@staged
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_budget_that_was_not_set_for_all_anybody_knows_is_not_there_after_a_crash(when: When) -> None:
    disk, large = MemoryDisk(), Budget(name="large", scope=BudgetScope.TENANT, tokens=10**6)
    store = FaultyStore(MemoryStore(disk))
    async with desk_over(store, SMALL) as desk:
        store.fail_next(when, error=StoreUnavailableError("the line was cut"))
        with pytest.raises(StoreUnavailableError):
            await desk.set_rule(large)
        assert list(desk.budgets.rules) == ["small"]
        await grant_of(desk, 10, 10)  # it is written, and so is what the store may have wrong
        await passing(1)
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert list(desk.budgets.rules) == ["small"]


@staged
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_budget_that_was_not_cleared_for_all_anybody_knows_holds_after_a_crash(when: When) -> None:
    disk, large = MemoryDisk(), Budget(name="large", scope=BudgetScope.TENANT, tokens=10**6)
    store = FaultyStore(MemoryStore(disk))
    async with desk_over(store, SMALL) as desk:
        await desk.set_rule(large)
        store.fail_next(when, error=StoreUnavailableError("the line was cut"), times=2)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await desk.drop_rule("large")
        await grant_of(desk, 10, 10)
        await passing(1)
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert sorted(desk.budgets.rules) == ["large", "small"]


@staged
@pytest.mark.parametrize("closes", [False, True])
async def test_what_was_counted_for_a_budget_that_was_cleared_does_not_come_back(closes: bool) -> None:
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk))
    other = Budget(name="other", scope=BudgetScope.TENANT, tokens=10**6)
    async with desk_over(store, SMALL, other) as desk:
        desk.settle(await grant_of(desk, 100, 100), Amount(200))
        await passing(1)
        store.fail_next(owner=Owner("acme", "default", "s1"), error=StoreUnavailableError("the disk is full"))
        await desk.drop_rule("small")
        await passing(1)
        if closes:
            await desk.close()
        else:
            await grant_of(desk, 10, 500_000)
            await passing(1)
    assert [row.id for row in disk.states.values() if row.kind == COUNT and '"small"' in row.id] == []


# ---- what does not cost anything ----


@staged
async def test_to_start_and_to_be_killed_costs_nothing() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk)) as desk:
        desk.adopt([SMALL])
        desk.settle(await grant_of(desk, 100, 200), Amount(150))
        await desk.close()
    for tokens in (1_000, 1_000, 50_000, 50_000):  # a limit that is changed costs nothing either
        async with desk_over(MemoryStore(disk)) as desk:
            desk.adopt([replace(SMALL, tokens=tokens)])
            await passing(1)
            assert spent(desk) == {"small": 150}
    (kept,) = [read_count(row) for row in disk.states.values() if row.kind == COUNT]
    assert kept.budget.tokens == 50_000


@staged
@pytest.mark.parametrize("rests_ms", [0, QUIET_MS - 10, QUIET_MS + 10])
async def test_to_be_killed_when_no_call_was_made_for_a_while_costs_nothing(rests_ms: int) -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        for _ in range(3):
            desk.settle(await grant_of(desk, 100, 200), Amount(150))
            await passing(QUIET_MS // 2)  # each call puts it off
        await passing(rests_ms - QUIET_MS // 2 if rests_ms else 0)
    async with desk_over(MemoryStore(disk), SMALL) as desk:  # and nobody has closed the desk
        (count,) = desk.budgets.counts.values()
        is_exact = count.lost == Amount()
        assert (count.spent.tokens == 450) == is_exact == (rests_ms > QUIET_MS)


@staged
async def test_what_is_in_flight_while_others_have_rested_is_known_to_the_disk() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        flying = await grant_of(desk, 100, 200)
        desk.settle(await grant_of(desk, 100, 200), Amount(150))
        await passing(3 * QUIET_MS)
        (kept,) = [read_count(row) for row in disk.states.values() if row.kind == COUNT]
        assert kept.granted.tokens >= 450
        desk.settle(flying, Amount(50))
        await passing(QUIET_MS - 10)
        again = await grant_of(desk, 10, 10)  # one that begins meanwhile is not forgotten
        await passing(QUIET_MS)
        (kept,) = [read_count(row) for row in disk.states.values() if row.kind == COUNT]
        assert kept.granted.tokens >= 200 + again.amount.tokens
        desk.give_back(again)
        await passing(QUIET_MS + 10)
        (kept,) = [read_count(row) for row in disk.states.values() if row.kind == COUNT]
        assert (kept.granted, kept.spent) == (Amount(200), Amount(200))
        assert isinstance(await desk.reserve(WHO, Wish(100, 700, 700)), Grant)  # and goes on as before


@staged
async def test_a_count_that_goes_while_it_rests_is_not_written_again() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        desk.settle(await grant_of(desk, 100, 200), Amount(150))
        desk.end_session(Owner("acme", "default", "s1"))
        await passing(2 * QUIET_MS)
        assert [row for row in disk.states.values() if row.kind == COUNT] == []


@staged
async def test_to_set_a_budget_and_to_be_killed_costs_nothing() -> None:
    disk = MemoryDisk()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        desk.settle(await grant_of(desk, 100, 200), Amount(150))
        await desk.set_rule(replace(SMALL, tokens=10**6))
        await passing(1)
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert spent(desk) == {"small": 150}


# ---- a reset ----


@staged
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_reset_that_the_disk_has_refused_does_not_hold(when: When) -> None:
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk))
    async with desk_over(store, SMALL) as desk:
        desk.settle(await grant_of(desk, 100, 800), Amount(900))
        await passing(1)
        store.fail_next(when, error=StoreUnavailableError("the disk is full"))
        with pytest.raises(StoreUnavailableError):
            await desk.reset("small")
        assert spent(desk) == {"small": 900}
        assert isinstance(await desk.reserve(WHO, Wish(100, 800, 256)), Refusal)
        await desk.close()
    async with desk_over(MemoryStore(disk), SMALL) as desk:
        assert spent(desk) == {"small": 900}


@staged
async def test_what_is_settled_while_a_reset_is_on_its_way_counts() -> None:
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk), Random(1))
    async with desk_over(store, SMALL) as desk:
        desk.settle(await grant_of(desk, 100, 400), Amount(500))
        flying = await grant_of(desk, 100, 200)
        await passing(1)
        store.slow, store.delay_ms = 1.0, 60_000
        reset = asyncio.ensure_future(desk.reset("small"))
        await passing(1)
        assert spent(desk) == {"small": 500}  # it holds when it is on disk
        desk.settle(flying, Amount(250))
        await reset
        assert spent(desk) == {"small": 250}
        store.heal()
        await passing(1)
    async with desk_over(MemoryStore(disk), SMALL) as desk:  # and nobody has closed the desk
        assert 250 <= spent(desk)["small"] <= 300 + 2 * 20


# ---- changes ----


@staged
async def test_two_changes_at_once_are_both_made() -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    async with desk_over(store, SMALL) as desk:
        store.slow, store.delay_ms = 1.0, 60_000
        first = asyncio.ensure_future(desk.change_rule("small", lambda rule: replace(rule, warn_at=0.5)))
        await passing(1)
        await asyncio.gather(
            first,
            desk.change_rule("small", lambda rule: replace(rule, tokens=777)),
            desk.change_rule("small", lambda rule: replace(rule, money=7.0)),
        )
        assert desk.budgets.rules["small"] == replace(SMALL, tokens=777, money=7.0, warn_at=0.5)
        dropping = asyncio.ensure_future(desk.drop_rule("small"))
        await passing(1)
        with pytest.raises(NotFoundError, match="there is no budget 'small'"):
            await desk.change_rule("small", lambda rule: replace(rule, tokens=5))
        await dropping


@staged
@pytest.mark.parametrize(
    "change", [{"timezone": "Etc/UTC"}, {"timezone": "Asia/Tokyo"}, {"window": BudgetWindow.MONTH}]
)
async def test_what_was_spent_stays_spent_in_another_window(change: dict[str, Any]) -> None:
    disk = MemoryDisk()
    daily = Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000)
    async with desk_over(MemoryStore(disk), daily) as desk:
        desk.settle(await grant_of(desk, 100, 300), Amount(400))
        flying = await grant_of(desk, 100, 200)
        await desk.set_rule(replace(daily, **change))
        assert desk.budgets.of_budget("daily")[0].taken == Amount(700)
        desk.settle(flying, Amount(300))
        (count,) = desk.budgets.counts.values()
        assert count.spent == Amount(700)
        assert count.period == period_of(count.budget.window, count.budget.timezone, desk._engine.wall())  # noqa: SLF001
        await passing(1)
        assert [read_count(row).key for row in disk.states.values() if row.kind == COUNT] == [count.key]


@staged
async def test_what_was_spent_stays_spent_when_a_configuration_says_another_window() -> None:
    disk = MemoryDisk()
    daily = Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000)
    async with desk_over(MemoryStore(disk), daily) as desk:
        desk.settle(await grant_of(desk, 100, 300), Amount(400))
        await desk.close()
    for _ in range(2):
        async with desk_over(MemoryStore(disk), replace(daily, window=BudgetWindow.EVER)) as desk:
            assert spent(desk) == {"daily": 400}
            await passing(1)


# ---- what memory and the disk keep ----


@staged
async def test_budgets_of_a_session_leave_memory_with_it() -> None:
    owner = Owner("acme", "default", "s1")
    async with desk_over(MemoryStore()) as desk:
        for turn in range(1, 4):
            desk.adopt_own("acme", "s1", [SMALL])
            desk.settle(await grant_of(desk, 100, 100), Amount(100))
            (count,) = desk.budgets.counts.values()
            assert (count.spent, count.lost) == (Amount(100 * turn), Amount())
            mine = desk.own_of(owner)
            desk.let_go(owner, mine)
            assert (desk.is_idle, desk.budgets.counts, desk._rows) == (True, {}, {})  # noqa: SLF001 - what is kept


@staged
async def test_a_session_that_is_opened_again_keeps_its_budgets_when_the_old_one_leaves() -> None:
    owner = Owner("acme", "default", "s1")
    async with desk_over(MemoryStore()) as desk:
        desk.adopt_own("acme", "s1", [SMALL])
        before = desk.own_of(owner)
        desk.adopt_own("acme", "s1", [SMALL])
        desk.let_go(owner, before)
        assert not desk.is_idle


@staged
async def test_processes_that_see_no_midnight_forget_old_days() -> None:
    disk, clock = MemoryDisk(), LoopClock()
    daily = Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000)
    for _ in range(40):
        async with desk_over(MemoryStore(disk), daily, clock=clock) as desk:
            desk.settle(await grant_of(desk, 10, 10), Amount(20))
            await desk.close()
        clock.jump_wall(DAY_MS)
    assert len([row for row in disk.states.values() if row.kind == COUNT]) <= 35


# ---- warnings ----


@staged
async def test_a_warning_that_was_told_is_not_told_again_after_a_crash() -> None:
    disk, warned = MemoryDisk(), []
    big = Budget(name="big", scope=BudgetScope.TENANT, tokens=100_000)
    async with desk_over(MemoryStore(disk), big) as desk:
        desk.settle(await grant_of(desk, 100, 79_000), Amount(79_100))
        await passing(1)
        warned += desk.settle(await grant_of(desk, 100, 900), Amount(1_000))
        await passing(1)
    async with desk_over(MemoryStore(disk), big) as desk:  # and nobody has closed the desk
        warned += desk.settle(await grant_of(desk, 10, 10), Amount(20))
    assert [each.kind for each in warned] == ["soft"]


@staged
async def test_the_warning_of_a_limit_that_was_raised_is_told() -> None:
    async with desk_over(MemoryStore(), SMALL) as desk:
        told = desk.settle(await grant_of(desk, 100, 800), Amount(850))
        await desk.set_rule(replace(SMALL, tokens=2_000))
        told += desk.settle(await grant_of(desk, 100, 800), Amount(800))
        assert [each.kind for each in told] == ["soft", "soft"]
