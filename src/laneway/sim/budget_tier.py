"""Tier `budgets`: many calls of models in flight against budgets, over a disk that is slow, fails and is lost.

The provider keeps its own books of what every call took, whatever became of the process that made it. The laws: at no
moment have calls taken more than a limit and what their inputs were larger than estimated; a call that begins is known
on disk, with all it may take; after a crash no less counts as spent than was, and no more than was in flight and two
fiftieths of the limit is lost, and nothing where no call was made for a while; without a crash, exactly what was spent
counts; who waits is not overtaken, and waits for no window that is over; a reset that the disk refuses does not hold;
and every call is made, refused or waits for a window that opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, Final

from laneway.errors import LanewayError, StoreUnavailableError
from laneway.kernel.budgets import GRANT_SHARE, Count, CountKey, Grant, Refusal, Wish
from laneway.kernel.checkpoints import to_json
from laneway.rows import Batch, BatchResult, StateKey, StateRow
from laneway.runtime.budget_desk import LOOK_MS, QUIET_MS, BudgetDesk
from laneway.runtime.budget_rows import COUNT, read_count
from laneway.sim.loop import SimLoop
from laneway.sim.playing import LivingRun, play_to_end
from laneway.sim.trace import Outcome, Trace
from laneway.spending import Amount, Budget, BudgetScope, BudgetWindow, OnExhausted, Price, Spender

__all__ = ("BudgetsRun", "run_budgets_seed")

STEPS_MAX: Final = 400_000
LIVES_MAX: Final = 4
HOUR_S: Final = 3_600
BEGAN_MS: Final = 1_774_700_000_000  # a spring: in some timezones a day of this world has 23 hours
PRICE: Final = Price(input_picos=2_500, output_picos=10_000)
ZONES: Final = ("UTC", "Europe/Zurich", "America/New_York")


def run_budgets_seed(seed: int, *, trace: Trace | None = None) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    loop = SimLoop(seed=seed, max_steps=STEPS_MAX)
    return play_to_end(BudgetsRun(seed, trace, loop), loop, trace, seed=seed, tier="budgets")


class Disk:
    """What stays when a process dies."""

    def __init__(self) -> None:
        self.states: dict[StateKey, StateRow] = {}
        self.seq = 0


class Way:
    """One process's way to the disk: slow, and sometimes it says no, before or after it wrote."""

    def __init__(self, disk: Disk, rng: random.Random, *, slow_s: float, fails: float) -> None:
        self.disk = disk
        self.epoch = 1
        self.is_cut = False
        self.faults = 0
        self.refused: set[str] = set()  # rows of which nobody knows whether they are there
        self._rng = rng
        self._slow_s = slow_s
        self._fails = fails

    def next_seq(self) -> int:
        """A number higher than all before it."""
        self.disk.seq += 1
        return self.disk.seq

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Write, if nothing goes wrong."""
        await asyncio.sleep(self._slow_s * self._rng.random())
        return [self._write(batch) for batch in batches]

    def _write(self, batch: Batch) -> BatchResult:
        fate = self._rng.random()
        named = {row.id for row in batch.rows if isinstance(row, StateRow)}
        self.refused |= named
        if self.is_cut or fate < self._fails:
            self.faults += 1
            return BatchResult(StoreUnavailableError("simulated"))
        for row in batch.rows:
            assert isinstance(row, StateRow)
            self.disk.states[StateKey(row.kind, row.id)] = row
        for key in batch.forget:
            self.disk.states.pop(key, None)
        if fate < 2 * self._fails:  # it is there, and nobody knows
            self.faults += 1
            return BatchResult(StoreUnavailableError("simulated, after it was written"))
        self.refused -= named
        return BatchResult()


class Engine:
    """As much of an engine as a desk of budgets needs."""

    workspace = "default"

    def __init__(self, store: Way, loop: SimLoop) -> None:
        self.store = store
        self.loop = loop

    def now(self) -> int:
        """The time that never goes back."""
        return round(self.loop.time() * 1000)

    def wall(self) -> int:
        """The time on the wall."""
        return BEGAN_MS + round(self.loop.time() * 1000)


class Books:
    """What the provider knows of one count."""

    def __init__(self) -> None:
        self.used = Amount()  # by calls that have ended
        self.excess = Amount()  # by how much calls took more than they had reserved
        self.flying: dict[int, Amount] = {}  # what calls in flight may take
        self.is_unsure = False  # whether a reset was refused: nobody knows what the disk has

    @property
    def most(self) -> Amount:
        """What was taken, and what may be."""
        found = self.used
        for each in self.flying.values():
            found = found.plus(each)
        return found


class BudgetsRun(LivingRun):
    """One world of spenders."""

    def __init__(self, seed: int, trace: Trace, loop: SimLoop) -> None:
        super().__init__(trace, loop)
        self.rng = rng = random.Random(seed)
        self.starts = 0
        self.crashes = 0
        self.disk = Disk()
        self.books: dict[CountKey, Books] = {}
        self._ways: list[Way] = []
        self._number = 0
        self._ended_s: dict[CountKey, float] = {}  # when the last call of a count has ended
        self.fails = rng.choice((0.0, 0.0, 0.05, 0.2))
        self.slow_s = rng.choice((0.0, 0.01, 30.0))
        self.rules = self._draw_rules()
        self.people = [
            Spender(f"t{rng.randrange(2)}", "default", f"s{at}", f"r{at}", rng.choice((None, "p1", "p2")))
            for at in range(rng.randint(1, 12))
        ]

    @property
    def faults(self) -> int:
        """How much went wrong on purpose."""
        return self.crashes + sum(way.faults for way in self._ways)

    def give_up(self) -> None:
        """Nothing of it has to be told to end."""

    def _draw_rules(self) -> list[Budget]:
        rng, rules = self.rng, []
        for name in rng.sample(("a", "b", "c", "d"), rng.randint(1, 4)):
            scope = rng.choice(list(BudgetScope))
            window = BudgetWindow.EVER if scope is BudgetScope.RUN else rng.choice(list(BudgetWindow))
            ends = [OnExhausted.DENY] if window is BudgetWindow.EVER else [OnExhausted.DENY, OnExhausted.PARK]
            tokens = rng.choice((None, rng.randint(200, 20_000)))
            money = None if tokens is not None and rng.random() < 0.5 else rng.uniform(0.000_001, 0.0001)
            rules.append(
                Budget(
                    name=name,
                    scope=scope,
                    window=window,
                    tokens=tokens,
                    money=money,
                    on_exhausted=rng.choice(ends),
                    timezone=rng.choice(ZONES),
                    tenant=rng.choice((None, None, "t0")),
                )
            )
        return rules

    # ---- lives ----

    async def play(self) -> None:
        """A few lives, the last of which is closed in good order."""
        lives = self.rng.randint(1, LIVES_MAX)
        for life in range(1, lives + 1):
            await self._live(is_last=life == lives)
            self._check_broken()

    async def _live(self, *, is_last: bool) -> None:
        way = Way(self.disk, self.rng, slow_s=self.slow_s, fails=0.0 if is_last else self.fails)
        self._ways.append(way)
        engine: Any = Engine(way, self._loop)
        desk = BudgetDesk(engine, self.rules)
        found = dict(self.disk.states)
        desk.load(list(found.values()))
        self._check_loaded(desk)
        self.say("begin", f"life {len(self._ways)}", f"{len(desk.budgets.counts)} counts")
        tasks = [
            self._loop.create_task(self._spend(desk, who), name=f"spender {at}") for at, who in enumerate(self.people)
        ]
        if not is_last:
            tasks.append(self._loop.create_task(self._operate(desk), name="operator"))
            await asyncio.sleep(self.rng.uniform(0, 60) * HOUR_S)
            way.is_cut = True
            self.crashes += 1
            self.say("crash")
            self._check_lost(desk, way, found)
            await self._end_tasks()
            self._take_over()
            return
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each
        await desk.close()
        self._check_closed(desk)

    def _take_over(self) -> None:
        """What was in flight when a process died may have come to its end."""
        for books in self.books.values():
            for amount in books.flying.values():
                books.used = books.used.plus(amount)
            books.flying.clear()

    # ---- people ----

    async def _spend(self, desk: BudgetDesk, who: Spender) -> None:
        rng = self.rng
        for _ in range(rng.randint(1, 8)):
            await asyncio.sleep(rng.choice((0, 1, rng.uniform(0, 10) * HOUR_S)))
            least = rng.randint(1, 50)
            wish = Wish(rng.randint(0, 800), rng.randint(least, 800), least, PRICE)
            try:
                found = await self._reserve(desk, who, wish)
            except StoreUnavailableError:
                continue
            if found is not None:
                await self._call(desk, found, wish)

    async def _reserve(self, desk: BudgetDesk, who: Spender, wish: Wish) -> Grant | None:
        for _ in range(5):
            before = [(each, set(each.claims)) for each in desk._waiting]  # noqa: SLF001 - who came first
            found = desk.reserve_now(who, wish) or await desk.reserve(who, wish)
            if isinstance(found, Grant):
                taken = {count.key for count in found.counts}
                if any(claims & taken and not each.room.done() for each, claims in before):
                    self._break(f"{taken}: one who came first still waits for room there")
                return found
            self._check_refused(found)
            until = found.where.period.until_ms
            if found.where.budget.on_exhausted is not OnExhausted.PARK or until is None:
                return None
            await desk.opened(found, max(1, until - BEGAN_MS - round(self._loop.time() * 1000)))
        return None

    async def _call(self, desk: BudgetDesk, grant: Grant, wish: Wish) -> None:
        rng = self.rng
        self._number += 1
        number = self._number
        self.starts += 1
        self._check_waiting(desk)
        self._begin(grant, number)
        self.say("call", f"c{number}", f"{grant.amount.tokens} tokens, {grant.amount.nanos} nanos")
        await asyncio.sleep(rng.choice((0, 1, rng.uniform(0, 2) * HOUR_S, rng.uniform(0, 30) * HOUR_S)))
        fate = rng.random()
        if fate < 0.1:
            self._end(grant, number, Amount())
            desk.give_back(grant)
        elif fate < 0.2:  # cut off: nobody knows, and it was all
            self._end(grant, number, grant.amount)
            desk.lose(grant)
        else:
            heard = max(0, wish.input_tokens + (rng.randint(-100, 100) if rng.random() < 0.3 else 0))
            used = PRICE.of(heard, rng.randint(0, grant.output_max))
            self._end(grant, number, used)
            desk.settle(grant, used)
            desk.settle(grant, used)  # a second time changes nothing
        self._ended_s.update(dict.fromkeys((count.key for count in grant.counts), self._loop.time()))

    async def _operate(self, desk: BudgetDesk) -> None:
        rng = self.rng
        for _ in range(rng.randint(0, 6)):
            await asyncio.sleep(rng.uniform(0, 10) * HOUR_S)
            rule = rng.choice(list(desk.budgets.rules.values()))
            if rng.random() < 0.5:
                self.say("reset", rule.key)
                await self._reset(desk, rule.key)

    async def _reset(self, desk: BudgetDesk, key: str) -> None:
        """What the disk refuses does not hold, though it may be there after a crash; while it is asked, it may."""
        mine = {each: books for each, books in self.books.items() if each.budget == key}
        before = {each: (books.used, books.excess) for each, books in mine.items()}
        for books in mine.values():
            books.used = books.excess = Amount()
        with contextlib.suppress(LanewayError):
            await desk.reset(key)
        for each, (used, excess) in before.items():
            if to_json([Engine.workspace, *each]) in self._ways[-1].refused:
                books = mine[each]
                books.used, books.excess = books.used.plus(used), books.excess.plus(excess)
                books.is_unsure = True

    # ---- laws ----

    def _begin(self, grant: Grant, number: int) -> None:
        for count in grant.counts:
            books = self.books.setdefault(count.key, Books())
            books.flying[number] = grant.amount
            self._check_limit(count, books)
            self._check_disk(count, books)

    def _end(self, grant: Grant, number: int, used: Amount) -> None:
        more = Amount(max(0, used.tokens - grant.amount.tokens), max(0, used.nanos - grant.amount.nanos))
        for count in grant.counts:
            books = self.books[count.key]
            del books.flying[number]
            books.used = books.used.plus(used)
            books.excess = books.excess.plus(more)
            self._check_limit(count, books)

    def _check_waiting(self, desk: BudgetDesk) -> None:
        """Nobody waits for room in a window that is over, longer than it takes to look at the clock."""
        late = BEGAN_MS + round(self._loop.time() * 1000) - LOOK_MS
        for count in (count for each in desk._waiting for count in each.counts):  # noqa: SLF001 - who waits
            if count.period.until_ms is not None and count.period.until_ms < late:
                self._break(f"{count.key}: somebody waits for room there, and it is over")

    def _check_limit(self, count: Count, books: Books) -> None:
        tokens, nanos = count.budget.limit
        most, excess = books.most, books.excess
        if tokens is not None and most.tokens > tokens + excess.tokens:
            self._break(f"{count.key}: calls may take {most.tokens} tokens of {tokens}, {excess.tokens} by error")
        if nanos is not None and most.nanos > nanos + excess.nanos:
            self._break(f"{count.key}: calls may take {most.nanos} nanos of {nanos}, {excess.nanos} by error")

    def _check_disk(self, count: Count, books: Books) -> None:
        """What a call may take is on disk before it begins; what an estimate missed may come a little later."""
        granted = self._on_disk().get(count.key, Amount())
        most, excess = books.most, books.excess
        if granted.tokens + excess.tokens < most.tokens or granted.nanos + excess.nanos < most.nanos:
            self._break(f"{count.key}: calls may take {most}, and the disk knows of {granted}")

    def _on_disk(self) -> dict[CountKey, Amount]:
        counts = [read_count(row) for row in self.disk.states.values() if row.kind == COUNT]
        return {each.key: each.granted for each in counts}

    def _check_lost(self, desk: BudgetDesk, way: Way, found: dict[StateKey, StateRow]) -> None:
        """What a crash at this moment makes of grants, where the disk has all that it was told in this life."""
        journal = desk._journal  # noqa: SLF001 - whether a commit is on its way
        if way.faults or journal is None or not journal.is_idle:
            return
        for name, row in self.disk.states.items():
            if row.kind != COUNT or found.get(name) is row:
                continue
            kept = read_count(row)
            count = desk.budgets.counts.get(kept.key, kept)
            rested_s = self._loop.time() - self._ended_s.get(kept.key, 0)
            if kept.granted != kept.spent and not count.in_flight and rested_s > 2 * QUIET_MS / 1000:
                self._break(f"{kept.key}: {kept.granted} is set aside, {kept.spent} is spent, and it is at rest")
            for limit, granted, spent, flying in zip(
                count.budget.limit, kept.granted, kept.spent, count.reserved, strict=True
            ):
                if limit is not None and granted - spent > flying + 2 * (limit // GRANT_SHARE):
                    self._break(f"{kept.key}: {granted - spent} of {limit} are lost, and {flying} was in flight")

    def _check_loaded(self, desk: BudgetDesk) -> None:
        for key, count in desk.budgets.counts.items():
            books = self.books.get(key, Books())
            used, excess = books.used, books.excess
            if books.is_unsure:
                books.used = Amount(min(used.tokens, count.spent.tokens), min(used.nanos, count.spent.nanos))
                books.is_unsure = False
            elif count.spent.tokens + excess.tokens < used.tokens or count.spent.nanos + excess.nanos < used.nanos:
                self._break(f"{key}: {used} was spent before the crash, and {count.spent} counts")

    def _check_refused(self, refusal: Refusal) -> None:
        if refusal.waits:
            self._break(f"{refusal.where.key}: refused although it was told to wait")

    def _check_closed(self, desk: BudgetDesk) -> None:
        granted = self._on_disk()
        for key, count in desk.budgets.counts.items():
            if count.in_flight or count.reserved != Amount():
                self._break(f"{key}: nothing is in flight, and {count.reserved} is reserved")
            if not self.crashes and count.spent != self.books.get(key, Books()).used:
                self._break(f"{key}: {self.books[key].used} was spent, and {count.spent} counts")
            if granted.get(key, Amount()) != count.spent:
                self._break(f"{key}: {count.spent} counts, and the disk has {granted.get(key)} after a close")
