"""The desk of budgets: the one place where calls of models reserve what they may spend, over one store.

The counts decide, the desk does. What a call reserves is on disk before the call is made, in grants that are a little
larger than needed, so that most calls wait for no commit. What a call has used is written with the next grant, or when
the desk closes: until then the disk says more than was spent, never less.

A call that would fit if it were alone waits until others have said what they really used, in the order of arrival.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from laneway.errors import ClosedError, NotFoundError, text_of
from laneway.kernel.budgets import Budgets, Count, CountKey, Grant, Overrun, Refusal, Wish
from laneway.kernel.checkpoints import to_json
from laneway.rows import Owner, StateKey, StateRow
from laneway.runtime.budget_windows import Calendar
from laneway.runtime.journal import Journal
from laneway.spending import Amount, Budget, BudgetScope, Period, Spender

if TYPE_CHECKING:
    from laneway.runtime.mail_engine import MailEngine

__all__ = ("COUNT", "RULE", "BudgetDesk", "read_count", "read_rule")

_log = logging.getLogger("laneway")

COUNT = "budget"
RULE = "budget_rule"
EVERYBODY = "*"
VERSION = 1


class _Row:
    """A count with its row."""

    __slots__ = ("count", "live", "owner", "resets", "seq", "stored")

    def __init__(self, count: Count, owner: Owner, seq: int) -> None:
        self.count = count
        self.owner = owner
        self.seq = seq
        self.stored = Amount()  # what the disk knows
        self.live = 1
        self.resets = 0

    @property
    def is_covered(self) -> bool:
        """Whether the disk knows of everything that is spent or reserved."""
        count = self.count
        return (
            count.spent.tokens + count.reserved.tokens <= self.stored.tokens
            and count.spent.nanos + count.reserved.nanos <= self.stored.nanos
        )

    @property
    def row_id(self) -> str:
        """What its row is known by."""
        return to_json([self.owner.workspace, *self.count.key])

    @property
    def row_key(self) -> Hashable:
        """What its row is known by in its table."""
        return (COUNT, self.row_id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        count = self.count
        body = {
            "v": VERSION,
            "key": count.key,
            "until_ms": count.period.until_ms,
            "spent": count.spent,
            "granted": count.granted,
            "lost": count.lost,
            "overrun": count.overrun,
            "warned": count.warned,
            "rule": asdict(count.budget),
        }
        return StateRow(COUNT, self.row_id, *self.owner, self.seq, self.live, "", to_json(body))


class _Rule:
    """A budget that somebody has set while the server ran, with its row; `budget` None: taken away."""

    __slots__ = ("budget", "key", "owner", "seq")

    def __init__(self, key: str, budget: Budget | None, owner: Owner, seq: int) -> None:
        self.key = key
        self.budget = budget
        self.owner = owner
        self.seq = seq

    @property
    def row_id(self) -> str:
        """What its row is known by."""
        return to_json([self.owner.workspace, self.key])

    @property
    def row_key(self) -> Hashable:
        """What its row is known by in its table."""
        return (RULE, self.row_id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        rule = None if self.budget is None else asdict(self.budget)
        body = to_json({"v": VERSION, "name": self.key, "rule": rule})
        return StateRow(RULE, self.row_id, *self.owner, self.seq, 1, "set" if rule else "cleared", body)


class _Waiter:
    """A call that waits for what others give back."""

    __slots__ = ("counts", "room")

    def __init__(self, counts: tuple[Count, ...], room: asyncio.Future[None]) -> None:
        self.counts = counts
        self.room = room


class BudgetDesk:
    """The budgets of one host. Everything here belongs to the loop of its engine."""

    def __init__(self, engine: MailEngine, rules: Iterable[Budget] = ()) -> None:
        self._engine = engine
        self.budgets = Budgets()
        for rule in rules:
            self.budgets.set_rule(rule)
        self._configured = dict(self.budgets.rules)
        self._calendar = Calendar()
        self._rows: dict[CountKey, _Row] = {}
        self._rules: dict[str, _Rule] = {}
        self._unclaimed: dict[str, list[StateRow]] = {}  # by budget: counts whose budget nobody has named yet
        self._waiting: list[_Waiter] = []
        self._parked: set[asyncio.Future[None]] = set()
        self._journal: Journal | None = None
        self._closed = False
        self.observers: list[Callable[[Overrun], None]] = []
        """Hear of counts that have reached their warning or their end."""

    # ---- opening and closing ----

    def load(self, rows: Iterable[StateRow]) -> None:
        """Take over what the store has: what was granted counts as spent."""
        self._journal = Journal(self._engine.store, on_failure=self._failed)
        self._calendar.move(self._engine.wall())
        kept = list(rows)
        for row in kept:
            if row.kind == RULE:
                self._load_rule(row)
            elif row.kind == COUNT:
                self._unclaimed.setdefault(json.loads(row.body)["key"][0], []).append(row)
        for name in list(self.budgets.rules):
            self._claim(name)
        self._forget_old()

    def _claim(self, key: str) -> None:
        """Take over the counts of a budget: it is known now."""
        counts_by = self.budgets.rules[key].counts_by
        loaded = []
        for row in self._unclaimed.pop(key, ()):
            if _counted_by(row) == counts_by:
                loaded.append(self._load_count(row))
            else:  # it meant something else when that was counted
                self._forget(StateKey(COUNT, row.id), Owner(row.tenant, row.workspace, row.session))
        self.budgets.load(loaded)
        for count in loaded:
            self._rows[count.key].stored = count.granted

    def _load_rule(self, row: StateRow) -> None:
        key, budget = read_rule(row)
        self._rules[key] = _Rule(key, budget, Owner(row.tenant, row.workspace, row.session), row.seq)
        if budget is not None:
            self.budgets.set_rule(budget)
        elif key in self.budgets.rules:
            self.budgets.drop_rule(key)

    def _load_count(self, row: StateRow) -> Count:
        count = read_count(row)
        count.budget = self.budgets.rules[count.key.budget]
        self._rows[count.key] = _Row(count, Owner(row.tenant, row.workspace, row.session), row.seq)
        return count

    async def close(self) -> None:
        """Let nobody reserve any more; what was set aside and not used is given back to the disk."""
        if self._closed:
            return
        self._closed = True
        for waiter in self._waiting:
            _set(waiter.room)
        for future in self._parked:
            _set(future)
        if self._journal is None:
            return
        for row in self._rows.values():
            taken = row.count.spent.plus(row.count.reserved)
            if row.stored != taken:
                row.count.granted = taken
                self._journal.touch(row.owner, row)
        await self._journal.settled()

    def _failed(self, owner: Owner, error: Exception) -> None:
        """The store has refused rows: whoever waits for them hears of it, and what is in memory still counts."""
        _log.warning("counts of budgets of %r could not be stored: %s", owner.tenant, text_of(error))

    def adopt(self, rules: Iterable[Budget]) -> None:
        """Have the budgets that a configuration names; what somebody has set while the server ran counts more."""
        for rule in rules:
            self._configured[rule.key] = rule
            if rule.key not in self._rules and self.budgets.rules.get(rule.key) != rule:
                self._have(rule)

    # ---- one call ----

    @property
    def is_idle(self) -> bool:
        """Whether there is no budget at all."""
        return not self.budgets.rules

    async def reserve(self, who: Spender, wish: Wish) -> Grant | Refusal:
        """Reserve for one call, on disk; waits while calls in flight may give enough back."""
        found = self._try(who, wish)
        if isinstance(found, Refusal) and found.waits:
            try:
                while isinstance(found, Refusal) and found.waits:
                    await self._room(who)
                    found = self._try(who, wish, waited=True)
            finally:
                self._wake()  # whoever came later may have waited for this one only
        if isinstance(found, Grant):
            try:
                await self._cover(who, found)
            except BaseException:
                self.give_back(found)
                raise
        return found

    def _try(self, who: Spender, wish: Wish, *, waited: bool = False) -> Grant | Refusal:
        if self._closed:
            raise ClosedError(opened=True, what="desk of budgets")
        counts = self._counts_of(who)
        if not waited and (ahead := self._ahead_of(counts)) is not None:
            return Refusal(ahead, Amount(), waits=True)  # whoever came first is served first
        return self.budgets.reserve(counts, wish)

    def _ahead_of(self, counts: tuple[Count, ...]) -> Count | None:
        """A count that somebody waits for already."""
        taken = {id(count): count for waiter in self._waiting for count in waiter.counts}
        return next((count for count in counts if id(count) in taken), None) if taken else None

    def _counts_of(self, who: Spender) -> tuple[Count, ...]:
        if self._calendar.move(self._engine.wall()):
            self._forget_old()
        return self.budgets.counts_of(who, self._calendar.period)

    async def _room(self, who: Spender) -> None:
        """Wait until somebody has given something back."""
        waiter = _Waiter(self._counts_of(who), self._engine.loop.create_future())
        self._waiting.append(waiter)
        try:
            await waiter.room
        finally:
            self._waiting.remove(waiter)

    async def _cover(self, who: Spender, grant: Grant) -> None:
        """See that the disk knows of a grant before it is used."""
        while short := [row for count in grant.counts if not (row := self._row(who, count)).is_covered]:
            if self._journal is None:
                raise ClosedError(opened=False, what="desk of budgets")
            for row in short:
                if not row.count.is_covered:
                    row.count.cover()
                self._journal.touch(row.owner, row)
            sums = [(row, row.count.granted, row.resets) for row in short]
            await self._journal.committed(short[0].owner)  # all are of one tenant
            for row, granted, resets in sums:
                if row.resets == resets:  # else it may be less by now that is on disk
                    row.stored = Amount(max(row.stored.tokens, granted.tokens), max(row.stored.nanos, granted.nanos))

    def _row(self, who: Spender, count: Count) -> _Row:
        row = self._rows.get(count.key)
        if row is None:
            owner = Owner(who.tenant, self._engine.workspace)
            self._rows[count.key] = row = _Row(count, owner, self._engine.store.next_seq())
        return row

    def settle(self, grant: Grant, used: Amount) -> list[Overrun]:
        """A call has ended, and this is what it took."""
        return self._told(self.budgets.settle(grant, used))

    def lose(self, grant: Grant) -> list[Overrun]:
        """Nobody knows what a call took: all it has reserved counts as spent."""
        return self._told(self.budgets.lose(grant))

    def give_back(self, grant: Grant) -> None:
        """A call was not made."""
        self.budgets.give_back(grant)
        self._wake()

    def _told(self, overruns: list[Overrun]) -> list[Overrun]:
        self._wake()
        for each in overruns:
            for observer in self.observers:
                observer(each)
            row = self._rows.get(each.where.key)
            if row is not None and not row.is_covered and self._journal is not None and not self._closed:
                row.count.cover()  # estimates were too small: the disk is to know at once
                self._journal.touch(row.owner, row)
        return overruns

    def _wake(self) -> None:
        for waiter in self._waiting:
            _set(waiter.room)

    # ---- waiting for a window ----

    @property
    def parked(self) -> int:
        """How many runs wait for a window to open."""
        return len(self._parked)

    async def opened(self, refusal: Refusal, delay_ms: int) -> None:
        """Wait until the window of a count may be open: its time is up, or somebody has changed a budget."""
        future: asyncio.Future[None] = self._engine.loop.create_future()
        self._parked.add(future)
        timer = self._engine.loop.call_later(delay_ms / 1000, _set, future)
        try:
            await future
        finally:
            timer.cancel()
            self._parked.discard(future)
        _log.debug("budget %r is looked at again", refusal.where.key.budget)

    # ---- what people do ----

    def origin_of(self, rule: Budget) -> str:
        """Who has said a budget: the configuration, or somebody while the server ran (`set`)."""
        return "set" if rule.key in self._rules else "config"

    def counts(self) -> list[tuple[str, Count]]:
        """What is counted in the windows of this moment, each with its tenant."""
        if self._calendar.move(self._engine.wall()):
            self._forget_old()
        rules = self.budgets.rules
        return [
            (row.owner.tenant, row.count)
            for row in self._rows.values()
            if row.count.key.budget in rules and row.count.period == self._calendar.period(row.count.budget)
        ]

    def waiting(self) -> dict[CountKey, int]:
        """How many calls wait for what others in flight may give back."""
        found: dict[CountKey, int] = {}
        for waiter in self._waiting:
            for count in waiter.counts:
                found[count.key] = found.get(count.key, 0) + 1
        return found

    async def set_rule(self, rule: Budget) -> None:
        """Make or change a budget, on disk before it holds; whoever is parked looks again."""
        await self._store_rule(rule.key, rule)
        self._have(rule)

    def _have(self, rule: Budget) -> None:
        for count in self.budgets.set_rule(rule):
            self._drop(count)
        self._claim(rule.key)
        if self._journal is not None and not self._closed:
            for row in self._rows.values():
                if row.count.key.budget == rule.key:
                    self._journal.touch(row.owner, row)  # it says what the budget is
        self._look_again()

    async def drop_rule(self, key: str) -> None:
        """Take a budget away; what was counted for it is forgotten."""
        self._check_known(key)
        await self._store_rule(key, None)
        for count in self.budgets.drop_rule(key):
            self._drop(count)
        self._look_again()

    async def reset(self, key: str, tenant: str | None = None) -> None:
        """Let the counts of a budget begin anew, all or those of a tenant; what is in flight stays reserved."""
        self._check_known(key)
        owners: dict[Owner, None] = {}
        for row in self._rows.values():
            count = row.count
            if count.key.budget != key or tenant not in (None, row.owner.tenant):
                continue
            count.spent = count.lost = count.overrun = Amount()
            count.warned = False
            count.granted = row.stored = count.reserved
            row.resets += 1
            if self._journal is not None:
                self._journal.touch(row.owner, row)
                owners[row.owner] = None
        if self._journal is not None and owners:
            await asyncio.gather(*(self._journal.committed(owner) for owner in owners))
        self._look_again()

    def _check_known(self, key: str) -> None:
        if key not in self.budgets.rules:
            raise NotFoundError(what="budget", name=key.rpartition("/")[2], hint="`laneway budget ls` lists them")

    async def _store_rule(self, key: str, rule: Budget | None) -> None:
        if self._journal is None or self._closed:
            raise ClosedError(opened=self._closed, what="desk of budgets")
        owner = Owner(EVERYBODY, self._engine.workspace)
        kept = _Rule(key, rule, owner, self._engine.store.next_seq())
        is_gone = rule is None and key not in self._configured
        if is_gone:
            self._journal.forget(owner, StateKey(RULE, kept.row_id))
        else:
            self._journal.touch(owner, kept)
        await self._journal.committed(owner)
        if is_gone:
            self._rules.pop(key, None)
        else:
            self._rules[key] = kept

    def _look_again(self) -> None:
        self._wake()
        for future in self._parked:
            _set(future)

    # ---- forgetting ----

    def end_run(self, run_id: str) -> None:
        """A run has ended for good: nobody asks for its counts any more."""
        if any(rule.scope is BudgetScope.RUN for rule in self.budgets.rules.values()):
            for count in self.budgets.end_run(run_id):
                self._drop(count)

    def end_session(self, tenant: str, session: str) -> None:
        """A session is deleted: so is what was counted for it."""
        for count in self.budgets.end_session(tenant, session):
            self._drop(count)

    def _forget_old(self) -> None:
        for count in self.budgets.forget_before(self._engine.wall()):
            self._drop(count)

    def _drop(self, count: Count) -> None:
        row = self._rows.pop(count.key, None)
        if row is not None:
            self._forget(StateKey(COUNT, row.row_id), row.owner)

    def _forget(self, key: StateKey, owner: Owner) -> None:
        if self._journal is not None and not self._closed:
            self._journal.forget(owner, key)


def read_rule(row: StateRow) -> tuple[str, Budget | None]:
    """The key of a budget that somebody has set, and the budget; None: taken away."""
    body: dict[str, Any] = json.loads(row.body)
    return body["name"], None if body["rule"] is None else Budget(**body["rule"])


def read_count(row: StateRow) -> Count:
    """What a row says of a count."""
    body: dict[str, Any] = json.loads(row.body)
    key = CountKey(*body["key"])
    count = Count(key, Budget(**body["rule"]), Period(key.from_ms, body["until_ms"]), warned=body["warned"])
    for name in ("spent", "granted", "lost", "overrun"):
        setattr(count, name, Amount(*body[name]))
    return count


def _counted_by(row: StateRow) -> tuple[str, ...]:
    rule: dict[str, Any] = json.loads(row.body)["rule"]
    return rule["scope"], rule["window"], rule["timezone"]


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
