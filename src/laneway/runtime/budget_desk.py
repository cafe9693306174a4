"""The desk of budgets: the one place where calls of models reserve what they may spend, over one store.

The counts decide, the desk does. What a call reserves is on disk before the call is made, in grants that are a little
larger than needed, so that most calls wait for no commit. What a call has used is written with the next grant, when
much was given back, when no call was made for a while, or when the desk closes: until then the disk says more than was
spent, never less.

A call that would fit if it were alone waits until others have said what they really used. Who waits is served in the
order of arrival: whoever came first is not overtaken in a count that had no room for it.

The rows of what is counted for a session or its runs belong to the session, and are erased with it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from laneway.errors import ClosedError, ConfigError, NotFoundError, text_of
from laneway.kernel.budgets import Budgets, Change, Count, CountKey, Grant, Overrun, Parked, Refusal, Wish
from laneway.rows import Owner, StateKey, StateRow
from laneway.runtime.budget_rows import COUNT, RULE, CountRow, Cover, RuleRow, count_id, read_count, read_rule
from laneway.runtime.budget_windows import WRONG_MS, Calendar
from laneway.runtime.journal import Journal
from laneway.spending import Amount, Budget, BudgetScope, Spender

if TYPE_CHECKING:
    from laneway.runtime.mail_engine import MailEngine

__all__ = ("BudgetDesk",)

_log = logging.getLogger("laneway")

EVERYBODY = "*"
KEPT_MS = 3 * 86_400_000
"""So long the count of a window is kept after its end: a wall clock that ran ahead opens no day a second time."""
LOAD_MS = KEPT_MS + 30 * 86_400_000
"""What ended so long ago is not loaded any more: a process may never have seen a window end."""
LOOK_MS = 60_000
"""Who waits for room looks at the wall clock so often, at least: it may jump."""
QUIET_MS = 5_000
"""When no call was made for so long, nothing is kept set aside: a process that is killed then loses nothing."""


class _Waiter:
    """A call that waits for what others give back. `claims` are the counts that once had no room for it."""

    __slots__ = ("claims", "counts", "room", "who", "wish")

    room: asyncio.Future[Grant | Refusal]  # from when it waits

    def __init__(self, who: Spender, wish: Wish) -> None:
        self.who = who
        self.wish = wish
        self.counts: tuple[Count, ...] = ()
        self.claims: set[CountKey] = set()


class BudgetDesk:
    """The budgets of one host. Everything here belongs to the loop of its engine."""

    def __init__(self, engine: MailEngine, rules: Iterable[Budget] = ()) -> None:
        self._engine = engine
        self.budgets = Budgets()
        for rule in rules:
            self.budgets.set_rule(rule)
        self._configured = dict(self.budgets.rules)
        self._calendar = Calendar()
        self._rows: dict[CountKey, CountRow] = {}
        self._rules: dict[str, RuleRow] = {}
        self._coming: dict[str, RuleRow] = {}  # the last of what is on its way to the disk
        self._unclaimed: dict[str, list[StateRow]] = {}  # by budget: counts whose budget nobody has named yet
        self._waiting: list[_Waiter] = []
        self._look: asyncio.TimerHandle | None = None  # when who waits looks whether its window is over
        self._parked: dict[asyncio.Future[None], Parked | None] = {}  # and who that is, if it is a run
        self._quiet: dict[CountKey, int] = {}  # since when no call is in flight that something is set aside for
        self._tidying: asyncio.TimerHandle | None = None
        self._over_since: dict[CountKey, int] = {}  # when it was seen that a window is over
        self._owed: dict[tuple[Owner, StateKey], str] = {}  # rows the store has refused, and whose rule they are
        self._journal: Journal | None = None
        self._closed = False
        self.observers: list[Callable[[Overrun], None]] = []
        """Hear of counts that have reached their warning or their end."""
        self.on_change: list[Callable[[], None]] = []
        """Called when a budget was made, changed or taken away, or begins anew: what waits for one may go on."""
        self.cut_off: set[tuple[str, str]] = set()
        """Sessions (by tenant) whose last call was cut off while it waited for room."""
        self.on_room: list[Callable[[], None]] = []
        """Called when there may be room for one of those."""

    # ---- opening and closing ----

    def load(self, rows: Iterable[StateRow]) -> None:
        """Take over what the store has: what was granted counts as spent."""
        self._journal = Journal(self._engine.store, on_failure=self._failed)
        self._look_at_clock()
        for row in rows:
            if row.kind == RULE:
                self._load_rule(row)
            elif row.kind == COUNT:
                self._load_count(row)
        for rule in list(self.budgets.rules.values()):
            self._go_by(rule)
        self._forget_old()

    def _load_count(self, row: StateRow) -> None:
        """Keep a count until its budget is known; one of a window that was over long ago is of no use."""
        body = json.loads(row.body)
        if body["until_ms"] is not None and body["until_ms"] <= self._engine.wall() - LOAD_MS:
            self._forget(StateKey(COUNT, row.id), Owner(row.tenant, row.workspace, row.session))
        else:
            self._unclaimed.setdefault(body["key"][0], []).append(row)

    def _go_by(self, rule: Budget) -> None:
        """Have a budget, and the counts that there are for it."""
        self._claim(rule.key)
        self._rearrange(self.budgets.set_rule(rule, self._calendar.period))

    def _claim(self, key: str) -> None:
        """Take over the counts of a budget as they were: it is known now."""
        for kept in self._unclaimed.pop(key, ()):
            count = read_count(kept)
            self.budgets.load((count,))
            row = CountRow(count, Owner(kept.tenant, kept.workspace, kept.session), kept.seq)
            row.stored, row.said = count.granted, count.budget
            self._rows[count.key] = row

    def _rearrange(self, change: Change) -> None:
        """Let rows follow their counts."""
        for count in change.gone:
            self._drop(count)
        for key, count in change.moved:
            row = self._rows.pop(key, None)
            if row is not None:
                self._rows[count.key] = row
                self._move(row, key)

    def _move(self, row: CountRow, key: CountKey) -> None:
        """A count has another key by now: its old row goes with the commit by which the new one comes."""
        if key != row.count.key:
            self._forget(StateKey(COUNT, count_id(row.owner, key)), row.owner)
            row.seq = self._engine.store.next_seq()
            row.lower(Amount())
        self._note(row)

    def _load_rule(self, row: StateRow) -> None:
        key, budget = read_rule(row)
        self._rules[key] = RuleRow(key, budget, Owner(row.tenant, row.workspace, row.session), row.seq)
        if budget is not None:
            self.budgets.set_rule(budget)
        elif key in self.budgets.rules:
            self.budgets.drop_rule(key)

    async def close(self) -> None:
        """Let nobody reserve any more; what was set aside and not used is given back to the disk."""
        if self._closed:
            return
        self._pay()
        self._closed = True
        for timer in (self._look, self._tidying):
            if timer is not None:
                timer.cancel()
        for waiter in self._waiting:
            if not waiter.room.done():
                waiter.room.set_exception(ClosedError(opened=True, what="desk of budgets"))
        for future in self._parked:
            _set(future)
        if self._journal is None:
            return
        for row in self._rows.values():
            if not row.is_exact:
                self._tell_exactly(row)
        await self._journal.settled()

    def _failed(self, owner: Owner, error: Exception) -> None:
        """The store has refused rows: whoever waits for them hears of it, and what is in memory still counts."""
        _log.warning("counts of budgets of %r could not be stored: %s", owner.tenant, text_of(error))
        for row in self._rows.values():
            row.is_unsure = row.is_unsure or row.owner == owner

    def adopt(self, rules: Iterable[Budget]) -> None:
        """Have the budgets that a configuration names; what somebody has set while the server ran counts more.

        They hold for every session of the store, so all who say a budget have to say the same.
        """
        given = tuple(rules)
        for rule in given:
            if self._configured.get(rule.key, rule) != rule:
                raise ConfigError(
                    f"budget {rule.name!r} is another one already for the sessions of this store",
                    setting=f"budgets.{rule.name}",
                    value=rule.name,
                    hint="say the same for all agents of a store, choose another name, or give it to single sessions",
                )
        for rule in given:
            self._configured[rule.key] = rule
            if rule.key not in self._rules and self.budgets.rules.get(rule.key) != rule:
                self._have(rule)

    def adopt_own(self, tenant: str, session: str, rules: Iterable[Budget]) -> None:
        """Have the budgets that one session brings along: for it and its sub-agents, and for nobody else."""
        mine = [rule for rule in rules if rule.concerns(tenant)]
        own = tuple(replace(rule, tenant=tenant, session=session) for rule in mine)
        for rule in own:
            self._claim(rule.key)
        self._rearrange(self.budgets.set_own(tenant, session, own, self._calendar.period))

    def own_of(self, owner: Owner) -> tuple[Budget, ...] | None:
        """The budgets that a session has brought along."""
        return self.budgets.own.get((owner.tenant, owner.session))

    def let_go(self, owner: Owner, own: tuple[Budget, ...] | None) -> None:
        """A session has left memory: so does what was counted for the budgets that it has brought along.

        Unless it was opened again meanwhile: then these are not the ones that hold for it.
        """
        if own is None or self.own_of(owner) is not own or self._journal is None:
            return
        counts = [count for rule in own for count in self.budgets.of_budget(rule.key)]
        if any(count.in_flight for count in counts):
            return
        for count in counts:
            row = self._rows.pop(count.key, None)
            if row is not None:
                if not row.is_exact and not self._closed:
                    self._tell_exactly(row)
                self._unclaimed.setdefault(count.key.budget, []).append(row.to_row())
        self.budgets.forget(counts)
        self.budgets.set_own(owner.tenant, owner.session, ())

    # ---- one call ----

    @property
    def is_idle(self) -> bool:
        """Whether there is no budget at all."""
        return not (self.budgets.rules or self.budgets.own)

    def reserve_now(self, who: Spender, wish: Wish) -> Grant | None:
        """Reserve for one call, if that is a matter of this moment: there is room, and the disk knows of enough."""
        self._see_windows()
        if self._closed or self._waiting:
            return None
        found = self.budgets.reserve(self._counts_of(who), wish)
        if isinstance(found, Refusal):
            return None
        if self._uncovered(who, found):
            self.budgets.give_back(found)
            return None
        return found

    async def reserve(self, who: Spender, wish: Wish) -> Grant | Refusal:
        """Reserve for one call, on disk; waits while calls in flight may give enough back."""
        if self._closed:
            raise ClosedError(opened=True, what="desk of budgets")
        self._see_windows()
        self.cut_off.discard((who.tenant, who.session))
        waiter = _Waiter(who, wish)
        claimed = {key for each in self._waiting for key in each.claims}
        found = self._try(waiter, claimed) or await self._served(waiter)
        if isinstance(found, Grant):
            try:
                await self._cover(who, found)
            except BaseException:
                self.give_back(found)
                raise
        return found

    def _try(self, waiter: _Waiter, claimed: set[CountKey]) -> Grant | Refusal | None:
        """Reserve, or say no for good; None: it has to wait, if only for those who came first."""
        waiter.counts = counts = self._counts_of(waiter.who)
        has_room = not claimed or all(count.key not in claimed for count in counts)
        ask = self.budgets.reserve if has_room else self.budgets.refusal
        found = ask(counts, waiter.wish)
        if isinstance(found, Refusal) and found.waits:
            waiter.claims.update(count.key for count in found.short)
            return None
        return found

    async def _served(self, waiter: _Waiter) -> Grant | Refusal:
        """Wait for what calls in flight give back."""
        room: asyncio.Future[Grant | Refusal] = self._engine.loop.create_future()
        waiter.room = room
        self._waiting.append(waiter)
        self._look_later()
        try:
            return await room
        except BaseException:
            if not room.cancelled() and room.done() and room.exception() is None:
                found = room.result()
                if isinstance(found, Grant):  # it has come too late
                    self.give_back(found)
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._wake()  # whoever came later may have waited for this one only
                self.cut_off.add((waiter.who.tenant, waiter.who.session))

    def _wake(self) -> None:
        """Serve who waits, in the order of arrival."""
        if self.cut_off:
            for hear in self.on_room:
                hear()
        if not self._waiting:
            return
        claimed: set[CountKey] = set()
        for waiter in list(self._waiting):
            waits = waiter.room.done() or any(count.key in claimed for count in waiter.counts)
            found = None if waits else self._try(waiter, claimed)
            if found is None:
                claimed |= waiter.claims
            else:
                self._waiting.remove(waiter)
                waiter.room.set_result(found)
        self._look_later()

    def _look_later(self) -> None:
        """See that who waits is served when a window ends: nobody else may come by then."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        ends = [count.period.until_ms for each in self._waiting for count in each.counts if count.period.until_ms]
        if ends:
            delay_ms = max(1, min(LOOK_MS, min(ends) - self._engine.wall()))
            self._look = self._engine.loop.call_later(delay_ms / 1000, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self._see_windows()
        self._look_later()

    def _counts_of(self, who: Spender) -> tuple[Count, ...]:
        return self.budgets.counts_of(who, self._calendar.period)

    def _look_at_clock(self) -> bool:
        """See how late it is; whether windows are others since then."""
        return self._calendar.move(self._engine.wall(), self._engine.now())

    def _see_windows(self) -> None:
        """With a new window who waits is served first: before anybody who comes now."""
        if self._look_at_clock():
            self._forget_old()
            self._renew_waiting()
            self._wake()

    def _renew_waiting(self) -> None:
        """What calls that wait are counted by is another by now: nobody waits for a window that is over."""
        for waiter in self._waiting:
            waiter.counts = self._counts_of(waiter.who)
            waiter.claims &= {count.key for count in waiter.counts}

    async def _cover(self, who: Spender, grant: Grant) -> None:
        """See that the disk knows of a grant before it is used."""
        short = self._uncovered(who, grant)
        if not short:
            return
        if self._journal is None:
            raise ClosedError(opened=False, what="desk of budgets")
        for row in short:
            if row.count.is_covered:
                self._journal.touch(row.owner, row)  # it may be on its way
            else:
                self._write(row)
        covers = [Cover(row) for row in short]
        try:
            owners = dict.fromkeys(row.owner for row in short)
            await asyncio.gather(*map(self._journal.committed, owners))
            for cover in covers:
                cover.landed()
        finally:
            for cover in covers:
                cover.row.covers.remove(cover)

    def _uncovered(self, who: Spender, grant: Grant) -> list[CountRow]:
        """The rows of a grant of which the disk does not know enough."""
        rows = [self._row(who, count) for count in grant.counts]
        return [row for row in rows if row is not None and not row.is_covered]

    def _row(self, who: Spender, count: Count) -> CountRow | None:
        """The row of a count; None: the count was forgotten, and nobody asks for it."""
        if self.budgets.counts.get(count.key) is not count:
            return None
        row = self._rows.get(count.key)
        if row is None:
            budget = count.budget
            is_sessions = budget.session is not None or budget.scope in (BudgetScope.RUN, BudgetScope.SESSION)
            owner = Owner(who.tenant, self._engine.workspace, who.session if is_sessions else "")
            self._rows[count.key] = row = CountRow(count, owner, self._engine.store.next_seq())
            self._owed.pop((owner, StateKey(COUNT, row.row_id)), None)  # it is in use again
        return row

    def _write(self, row: CountRow) -> None:
        """Have the disk know of a count as it is, with a little set aside."""
        assert self._journal is not None
        self._pay()
        row.count.cover()
        row.lower()
        row.is_unsure = False
        self._journal.touch(row.owner, row)

    def _note(self, row: CountRow) -> None:
        """Have the disk know of a count as it is, with nothing set aside: the next call does that."""
        if self._journal is not None and not self._closed:
            self._pay()
            row.is_unsure = False
            self._tell_exactly(row)

    def _tell_exactly(self, row: CountRow) -> None:
        assert self._journal is not None
        row.count.trim()
        row.lower()
        self._journal.touch(row.owner, row)

    def settle(self, grant: Grant, used: Amount) -> list[Overrun]:
        """A call has ended, and this is what it took."""
        return self._told(grant, self.budgets.settle(grant, used))

    def lose(self, grant: Grant) -> list[Overrun]:
        """Nobody knows what a call took: all it has reserved counts as spent."""
        return self._told(grant, self.budgets.lose(grant))

    def give_back(self, grant: Grant) -> None:
        """A call was not made."""
        self.budgets.give_back(grant)
        self._ended(grant)

    def _told(self, grant: Grant, overruns: list[Overrun]) -> list[Overrun]:
        self._ended(grant, {each.where.key for each in overruns if each.kind == "soft"})
        for each in overruns:
            for observer in self.observers:
                observer(each)
        return overruns

    def _ended(self, grant: Grant, warned: Collection[CountKey] = ()) -> None:
        """A call has given back what it had reserved: the disk hears of it if it knows of too little, or far too much.

        Nobody waits for that. Of too little it knows when an estimate was too small, or when a warning was told, which
        is told once.
        """
        self._wake()
        if self._journal is None or self._closed:
            return
        for count in grant.counts:
            row = self._rows.get(count.key)
            if row is None or row.count is not count:
                continue
            if row.is_unsure or count.is_ample or not count.is_covered or count.key in warned:
                self._write(row)
            self._quiet.pop(count.key, None)
            if not count.in_flight:
                self._quiet[count.key] = self._engine.now()  # the newest is the last
        self._tidy_later()

    def _tidy_later(self) -> None:
        if self._tidying is None and self._quiet:
            delay_ms = next(iter(self._quiet.values())) + QUIET_MS - self._engine.now()
            self._tidying = self._engine.loop.call_later(max(1, delay_ms) / 1000, self._tidy)

    def _tidy(self) -> None:
        """Give back to the disk what is set aside for calls that nobody makes: it would be lost with the process."""
        self._tidying = None
        before = self._engine.now() - QUIET_MS
        for key in [key for key, since in self._quiet.items() if since <= before]:
            del self._quiet[key]
            row = self._rows.get(key)
            if row is not None and not row.count.in_flight and not row.is_exact:
                self._note(row)
        self._tidy_later()

    # ---- waiting for a window ----

    @property
    def parked(self) -> int:
        """How many runs wait for a window to open."""
        return len(self._parked)

    def parked_runs(self) -> list[Parked]:
        """The runs that wait for a window to open, in the order in which they began to."""
        return [each for each in self._parked.values() if each is not None]

    async def opened(self, refusal: Refusal, delay_ms: int, who: Parked | None = None) -> None:
        """Wait until the window of a count may be open: its time is up, or somebody has changed a budget."""
        future: asyncio.Future[None] = self._engine.loop.create_future()
        self._parked[future] = who
        timer = self._engine.loop.call_later(delay_ms / 1000, _set, future)
        try:
            await future
        finally:
            timer.cancel()
            self._parked.pop(future, None)
        _log.debug("budget %r is looked at again", refusal.where.key.budget)

    # ---- what people do ----

    def origin_of(self, rule: Budget) -> str:
        """Who has said a budget: the configuration, or somebody while the server ran (`set`)."""
        return "set" if rule.key in self._rules else "config"

    def counts(self) -> list[tuple[str, Count]]:
        """What is counted in the windows of this moment, each with its tenant."""
        self._see_windows()
        rules = self.budgets.rules
        return [
            (row.owner.tenant, row.count)
            for row in self._rows.values()
            if (row.count.budget.session is not None or row.count.key.budget in rules)
            and row.count.period == self._calendar.period(row.count.budget)
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

    async def change_rule(self, key: str, change: Callable[[Budget], Budget]) -> Budget:
        """Change a budget from what it will be when all that is on its way to the disk is there."""
        rule = change(self._newest(key))
        await self.set_rule(rule)
        return rule

    def _newest(self, key: str) -> Budget:
        """What a budget will be when all that is on its way to the disk is there."""
        coming = self._coming.get(key)
        rule = self.budgets.rules.get(key) if coming is None else coming.budget
        if rule is None:
            raise NotFoundError(what="budget", name=key.rpartition("/")[2], hint="`laneway budget ls` lists them")
        return rule

    def _have(self, rule: Budget) -> None:
        self._go_by(rule)
        for count in self.budgets.of_budget(rule.key):
            row = self._rows.get(count.key)
            if row is not None and row.said != rule:
                self._note(row)
        self.look_again()

    async def drop_rule(self, key: str) -> None:
        """Take a budget away; what was counted for it is forgotten."""
        self._newest(key)
        await self._store_rule(key, None)

    async def reset(self, key: str, tenant: str | None = None) -> None:
        """Let the counts of a budget begin anew, all or those of a tenant; what is in flight stays reserved."""
        self._newest(key)
        journal = self._open_journal()
        owners: dict[Owner, None] = {}
        for count in self.budgets.of_budget(key):
            row = self._rows.get(count.key)
            if row is None or tenant not in (None, row.owner.tenant):
                continue
            row.resets += 1
            journal.touch(row.owner, row)
            journal.after(row.owner, functools.partial(_was_reset, row))
            owners[row.owner] = None
        ends = await asyncio.gather(*map(journal.committed, owners), return_exceptions=True)
        self.look_again()  # it may hold for some of them
        for refused in filter(None, ends):
            raise refused

    def _open_journal(self) -> Journal:
        if self._journal is None or self._closed:
            raise ClosedError(opened=self._closed, what="desk of budgets")
        return self._journal

    async def _store_rule(self, key: str, rule: Budget | None) -> None:
        journal = self._open_journal()
        owner = Owner(EVERYBODY, self._engine.workspace)
        kept = RuleRow(key, rule, owner, self._engine.store.next_seq())
        row_key = StateKey(RULE, kept.row_id)
        is_gone = rule is None and key not in self._configured
        self._pay()
        self._owed.pop((owner, row_key), None)
        if is_gone:
            journal.forget(owner, row_key)
        else:
            journal.touch(owner, kept)
        self._coming[key] = kept
        journal.after(owner, functools.partial(self._rule_landed, kept, is_gone=is_gone))
        await journal.committed(owner)

    def _rule_landed(self, kept: RuleRow, error: Exception | None, *, is_gone: bool) -> None:
        """What the disk has holds, in the order in which it was written."""
        key = kept.key
        if self._coming.get(key) is kept:
            del self._coming[key]
        if error is not None:
            self._owed[kept.owner, StateKey(RULE, kept.row_id)] = key  # nobody knows: what holds is written again
            return
        if is_gone:
            self._rules.pop(key, None)
        else:
            self._rules[key] = kept
        if kept.budget is not None:
            self._have(kept.budget)
        elif key in self.budgets.rules:
            for count in self.budgets.drop_rule(key):
                self._drop(count)
            self.look_again()

    def look_again(self) -> None:
        """Something has changed: whoever waits, or is parked, looks whether it can go on."""
        self._renew_waiting()
        self._wake()
        for future in self._parked:
            _set(future)
        for hear in self.on_change:
            hear()

    # ---- forgetting ----

    def end_run(self, who: Spender) -> None:
        """A run has ended for good, and all that it has begun: nobody asks for its counts any more."""
        self._drop_all(self.budgets.of_run(who))

    def runs_of(self, owner: Owner) -> list[str]:
        """The runs of a session that something is counted for."""
        rules = (*self.budgets.rules.values(), *(self.own_of(owner) or ()))
        keys = [
            each.key for rule in rules if rule.scope is BudgetScope.RUN for each in self.budgets.of_budget(rule.key)
        ]
        return [key.subject for key in keys if key in self._rows and self._rows[key].owner == owner]

    def end_session(self, owner: Owner) -> None:
        """A session is deleted: so is what was counted for it, and the budgets that it has brought along."""
        self._drop_all([row.count for row in self._rows.values() if row.owner == owner])
        self.budgets.set_own(owner.tenant, owner.session, ())
        self.cut_off.discard((owner.tenant, owner.session))
        for key, rows in list(self._unclaimed.items()):
            kept = [row for row in rows if (row.tenant, row.session) != (owner.tenant, owner.session)]
            if kept:
                self._unclaimed[key] = kept
            else:
                del self._unclaimed[key]

    def _forget_old(self) -> None:
        """Let go of windows that have been over for days: a clock that was wrong for a moment may come back to them."""
        now = self._engine.now()
        over = self.budgets.over_before(self._engine.wall() - KEPT_MS)
        self._over_since = {count.key: self._over_since.get(count.key, now) for count in over}
        self._drop_all([count for count in over if now - self._over_since[count.key] >= WRONG_MS])

    def _drop_all(self, counts: list[Count]) -> None:
        self.budgets.forget(counts)
        for count in counts:
            self._drop(count)

    def _drop(self, count: Count) -> None:
        row = self._rows.pop(count.key, None)
        if row is not None:
            self._forget(StateKey(COUNT, row.row_id), row.owner)

    def _forget(self, key: StateKey, owner: Owner) -> None:
        if self._journal is None or self._closed:
            return
        self._journal.forget(owner, key)
        self._journal.after(owner, functools.partial(self._owe, owner, key, ""))

    def _owe(self, owner: Owner, key: StateKey, name: str, error: Exception | None) -> None:
        if error is not None and all(row.row_id != key.id for row in self._rows.values()):
            self._owed[owner, key] = name

    def _pay(self) -> None:
        """What the store has refused is written, or taken away, with the next of what is written."""
        if not self._owed or self._journal is None:
            return
        owed, self._owed = self._owed, {}
        for (owner, key), name in owed.items():
            rule = self._rules.get(name)
            if rule is None:
                self._forget(key, owner)
            else:
                self._journal.touch(owner, rule)
                self._journal.after(owner, functools.partial(self._owe, owner, key, name))


def _was_reset(row: CountRow, error: Exception | None) -> None:
    row.was_reset(is_stored=error is None)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
