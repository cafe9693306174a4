"""The counts of budgets: what was spent, what calls in flight have reserved, and whether one more fits.

A call reserves in every count that it belongs to, or in none: its input as estimated, and the whole output it may have.
What it really used is settled afterwards. So the sum of what was spent and reserved never passes a limit, and what was
spent passes it by no more than the estimates of the inputs in flight were too small.

What the disk knows of a count is `granted`: a sum that was set aside for calls, a little more than they have reserved
so far, so that most calls wait for no commit. After a crash everything granted counts as spent: nobody knows better.
When calls have given much back, less is granted: a crash never costs more than is in flight and two such shares. When
no call was made for a while, nothing is granted that is not spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from laneway.spending import Amount, Budget, BudgetScope, OnExhausted, Period, Price, Spender

__all__ = ("Budgets", "Change", "Count", "CountKey", "Grant", "Overrun", "Parked", "Refusal", "Sums", "Wish")

GRANT_SHARE: Final = 50
"""A grant sets aside up to this part of a limit more than calls have taken."""
NOTHING: Final = Amount()


class CountKey(NamedTuple):
    """A budget, whose count it is, and the beginning of its window."""

    budget: str
    subject: str
    from_ms: int


class Sums(NamedTuple):
    """What a count adds up until it begins anew."""

    spent: Amount = NOTHING
    lost: Amount = NOTHING
    overrun: Amount = NOTHING


@dataclass(slots=True)
class Count:
    """What one budget knows of one run, session, principal or tenant in one window."""

    key: CountKey
    budget: Budget
    period: Period
    spent: Amount = NOTHING
    reserved: Amount = NOTHING
    granted: Amount = NOTHING  # on disk, or about to be
    noted: Amount = NOTHING  # of `spent`: what is on disk with that
    lost: Amount = NOTHING  # what crashes have made of grants; a part of `spent`
    overrun: Amount = NOTHING  # by how much estimates were too small in the end; a part of `spent`
    warned: bool = False
    in_flight: int = 0

    @property
    def left(self) -> tuple[int | None, int | None]:
        """Tokens and nanodollars that nobody has spent or reserved; None: no limit of that kind."""
        tokens, nanos = self.budget.limit
        spent, reserved = self.spent, self.reserved
        return (
            None if tokens is None else tokens - spent.tokens - reserved.tokens,
            None if nanos is None else nanos - spent.nanos - reserved.nanos,
        )

    def fits_alone(self, amount: Amount) -> bool:
        """Whether so much could be spent if no call in flight had reserved anything."""
        return _is_within(self.spent.plus(amount), self.budget.limit)

    def allows(self, amount: Amount) -> bool:
        """Whether so much can be spent in any window at all."""
        return _is_within(amount, self.budget.limit)

    @property
    def share(self) -> float:
        """How much of its limit is spent: of the one that is nearer to its end."""
        tokens, nanos = self.budget.limit
        of_tokens = 0.0 if tokens is None else self.spent.tokens / tokens
        of_nanos = 0.0 if nanos is None else self.spent.nanos / nanos
        return max(of_tokens, of_nanos)

    @property
    def taken(self) -> Amount:
        """What is spent or reserved."""
        return self.spent.plus(self.reserved)

    @property
    def sums(self) -> Sums:
        """What it has added up so far."""
        return Sums(self.spent, self.lost, self.overrun)

    @property
    def is_covered(self) -> bool:
        """Whether the disk knows of everything that is spent or reserved."""
        return _is_within(self.taken, self.granted)

    @property
    def is_ample(self) -> bool:
        """Whether a crash would cost much more than what is in flight: another share, and something."""
        tokens, nanos = self.budget.limit
        granted, noted, reserved = self.granted, self.noted, self.reserved
        return (
            tokens is not None and granted.tokens > noted.tokens + reserved.tokens + 2 * (tokens // GRANT_SHARE)
        ) or (nanos is not None and granted.nanos > noted.nanos + reserved.nanos + 2 * (nanos // GRANT_SHARE))

    def cover(self) -> None:
        """Set aside what is taken and a little more, as far as the limit goes, and note what is spent."""
        self.granted = Amount(*map(_share_of, self.budget.limit, self.taken, self.granted))
        self.noted = self.spent

    def trim(self) -> None:
        """Set aside what is taken and no more, and note what is spent."""
        self.granted, self.noted = self.taken, self.spent

    def begin_anew(self, before: Sums) -> None:
        """Forget what it had added up by then; what was spent since, and what is in flight, still counts."""
        self.spent, self.lost, self.overrun = (now.minus(then) for now, then in zip(self.sums, before, strict=True))
        self.granted, self.noted = self.taken, NOTHING
        self.warned = self.share >= self.budget.warn_at

    def go_by(self, rule: Budget) -> None:
        """Its budget is another one by now: what is to be told of the new limit was not told yet."""
        self.budget = rule
        self.warned = self.warned and self.share >= rule.warn_at


class Wish(NamedTuple):
    """What a call would like: its input as estimated, and how much output; with less than `output_least` it is none."""

    input_tokens: int
    output_tokens: int
    output_least: int = 1
    price: Price = Price()


@dataclass(slots=True, eq=False)
class Grant:
    """What was reserved for one call. It ends once: settled, given back, or lost."""

    counts: tuple[Count, ...]
    amount: Amount
    output_max: int
    price: Price
    is_open: bool = True


class Refusal(NamedTuple):
    """Why a call does not fit, and where. `waits`: what calls in flight give back may be enough for it.

    `is_never`: the whole limit is not enough for it. `short` are all counts that have no room for it.
    """

    where: Count
    amount: Amount
    waits: bool
    is_never: bool = False
    short: tuple[Count, ...] = ()


class Parked(NamedTuple):
    """A run that waits for the next window of a budget: of which count, and until when by the clock on the wall."""

    key: CountKey
    session: str
    run_id: str
    until_ms: int


class Overrun(NamedTuple):
    """A count has reached its share of warning, or its end, with what a call has used."""

    where: Count
    kind: str  # soft, hard


class Change(NamedTuple):
    """What a changed budget does to its counts: some are of no more use, some go on in another window (by old key)."""

    gone: list[Count]
    moved: list[tuple[CountKey, Count]]


PeriodOf = Callable[[Budget], Period]


@dataclass(slots=True)
class Budgets:
    """Every count of one store. `own` are budgets that single sessions have brought along, by tenant and session."""

    rules: dict[str, Budget] = field(default_factory=dict)
    own: dict[tuple[str, str], tuple[Budget, ...]] = field(default_factory=dict)
    counts: dict[CountKey, Count] = field(default_factory=dict)
    _by_budget: dict[str, dict[CountKey, Count]] = field(default_factory=dict)

    def counts_of(self, who: Spender, period_of: PeriodOf) -> tuple[Count, ...]:
        """The counts that a call belongs to, in the order of the rules."""
        found = []
        for rule in self.rules_for(who):
            subject = rule.subject_of(who)
            if subject is not None:
                found.append(self.count(rule, subject, period_of(rule)))
        return tuple(found)

    def rules_for(self, who: Spender) -> list[Budget]:
        """The budgets that may have something to do with a call: those of all, and those of its session."""
        own = self.own.get((who.tenant, who.session))
        return [*self.rules.values(), *own] if own else list(self.rules.values())

    def count(self, rule: Budget, subject: str, period: Period) -> Count:
        """The count of one subject in one window."""
        key = CountKey(rule.key, subject, period.from_ms)
        count = self.counts.get(key)
        if count is None:
            count = Count(key, rule, period)
            self._add(count)
        return count

    def _add(self, count: Count) -> None:
        self.counts[count.key] = count
        self._by_budget.setdefault(count.key.budget, {})[count.key] = count

    def of_budget(self, key: str) -> list[Count]:
        """All counts of a budget."""
        return list(self._by_budget.get(key, {}).values())

    def set_rule(self, rule: Budget, period_of: PeriodOf | None = None) -> Change:
        """Make or change a budget; what was spent stays spent, in another window too, but not for another scope."""
        self.rules[rule.key] = rule
        return self._change((rule,), period_of)

    def set_own(
        self, tenant: str, session: str, rules: tuple[Budget, ...], period_of: PeriodOf | None = None
    ) -> Change:
        """Have these budgets for one session, and no others of its own; what was spent stays spent."""
        if not rules:
            self.own.pop((tenant, session), None)
            return Change([], [])
        self.own[tenant, session] = rules
        return self._change(rules, period_of)

    def _change(self, rules: Iterable[Budget], period_of: PeriodOf | None) -> Change:
        """Let counts go by the new budgets. The count of a window that goes on goes on, in the window of the new one.

        It is the same count: what is in flight ends there.
        """
        change = Change([], [])
        for rule in rules:
            mine = self.of_budget(rule.key)
            others = [count for count in mine if count.budget.counts_by != rule.counts_by]
            self.forget(others)
            for count in others:
                if period_of is not None and _goes_on(count, rule, period_of):
                    change.moved.append((count.key, count))
                    count.period = period_of(rule)
                    count.key = count.key._replace(from_ms=count.period.from_ms)
                    self._add(count)
                else:
                    change.gone.append(count)
            for count in mine:
                count.go_by(rule)
        return change

    def drop_rule(self, key: str) -> list[Count]:
        """Forget a budget; what is in flight ends as usual. Its counts are handed out to be forgotten, too."""
        del self.rules[key]
        gone = self.of_budget(key)
        self.forget(gone)
        return gone

    def load(self, counts: Iterable[Count]) -> None:
        """Take over what the disk knows after a start: what was granted counts as spent."""
        for count in counts:
            count.lost = count.lost.plus(count.granted.minus(count.spent))
            count.spent, count.reserved, count.in_flight = count.granted, NOTHING, 0
            count.noted = count.spent
            self._add(count)

    def over_before(self, wall_ms: int) -> list[Count]:
        """Counts whose window was over then and that no call needs any more."""
        return [
            count
            for count in self.counts.values()
            if count.period.until_ms is not None and count.period.until_ms <= wall_ms and not count.in_flight
        ]

    def of_run(self, who: Spender) -> list[Count]:
        """What is counted for a run."""
        keys = [CountKey(rule.key, who.run_id, 0) for rule in self.rules_for(who) if rule.scope is BudgetScope.RUN]
        return [self.counts[key] for key in keys if key in self.counts]

    def forget(self, counts: Iterable[Count]) -> None:
        """Nobody asks for these any more; what is in flight ends as usual."""
        for count in counts:
            if self.counts.get(count.key) is not count:
                continue
            del self.counts[count.key]
            mine = self._by_budget[count.key.budget]
            del mine[count.key]
            if not mine:
                del self._by_budget[count.key.budget]

    # ---- one call ----

    def reserve(self, counts: tuple[Count, ...], wish: Wish) -> Grant | Refusal:
        """Reserve in all counts or in none. The output becomes as short as it has to, but not shorter than wished."""
        output, amount, short = _weighed(counts, wish)
        if short:
            return _refusal(short, amount, wish)
        for count in counts:
            count.reserved = count.reserved.plus(amount)
            count.in_flight += 1
        return Grant(counts, amount, output, wish.price)

    def refusal(self, counts: tuple[Count, ...], wish: Wish) -> Refusal | None:
        """Why a call does not fit now; None: it does."""
        _, amount, short = _weighed(counts, wish)
        return _refusal(short, amount, wish) if short else None

    def settle(self, grant: Grant, used: Amount) -> list[Overrun]:
        """A call has ended, and this is what it took; what it reserved and did not need is free again."""
        told: list[Overrun] = []
        more = used.minus(grant.amount)
        for count in self._end(grant):
            count.spent = count.spent.plus(used)
            if more.tokens > 0 or more.nanos > 0:
                count.overrun = count.overrun.plus(Amount(max(0, more.tokens), max(0, more.nanos)))
            share = count.share
            if share >= 1:
                told.append(Overrun(count, "hard"))
            elif share >= count.budget.warn_at and not count.warned:
                told.append(Overrun(count, "soft"))
            count.warned = count.warned or share >= count.budget.warn_at
        return told

    def give_back(self, grant: Grant) -> None:
        """The call was never made."""
        self._end(grant)

    def lose(self, grant: Grant) -> list[Overrun]:
        """Nobody knows what the call took: all it has reserved counts as spent."""
        return self.settle(grant, grant.amount)

    def _end(self, grant: Grant) -> tuple[Count, ...]:
        if not grant.is_open:
            return ()
        grant.is_open = False
        for count in grant.counts:
            count.reserved = count.reserved.minus(grant.amount)
            count.in_flight -= 1
        return grant.counts


def _goes_on(count: Count, rule: Budget, period_of: PeriodOf) -> bool:
    """Whether a count is of use to a budget with another window: it counts the same, and its own is not over."""
    return count.budget.scope is rule.scope and count.period == period_of(count.budget)


def _share_of(limit: int | None, taken: int, granted: int) -> int:
    """What to grant of tokens, or of money: where nothing limits them, a share of what is taken, and never less."""
    if limit is None:
        return max(granted, taken + taken // GRANT_SHARE)
    return max(taken, min(limit, taken + limit // GRANT_SHARE))


def _weighed(counts: tuple[Count, ...], wish: Wish) -> tuple[int, Amount, tuple[Count, ...]]:
    """The output that a call may have, all that it may take with that, and the counts that have no room for so much.

    The output is what fits into what is left everywhere, up to what is wished for.
    """
    said, output, _, price = wish
    lefts = [count.left for count in counts]
    for tokens, nanos in lefts:
        if tokens is not None and tokens - said < output:
            output = tokens - said
        if nanos is not None and price.output_picos:
            output = min(output, (nanos * 1000 - said * price.input_picos) // price.output_picos)
    output = max(output, wish.output_least)
    amount = price.of(said, output)
    short = [count for count, left in zip(counts, lefts, strict=True) if not _is_within(amount, left)]
    return output, amount, tuple(short)


def _is_within(amount: Amount, limit: tuple[int | None, int | None]) -> bool:
    tokens, nanos = limit
    return (tokens is None or amount.tokens <= tokens) and (nanos is None or amount.nanos <= nanos)


def _refusal(short: tuple[Count, ...], amount: Amount, wish: Wish) -> Refusal:
    """It waits only if that can help everywhere; what can never be made is told first, then what nobody waits for."""
    ends = [count for count in short if not (count.in_flight and count.fits_alone(amount))]
    least = wish.price.of(wish.input_tokens, wish.output_least)
    never = next((count for count in ends if not count.allows(least)), None)
    where = never or (_last_to_open(ends) if ends else short[0])
    return Refusal(where, amount, waits=not ends, is_never=never is not None, short=short)


def _last_to_open(ends: list[Count]) -> Count:
    """The count that a call hears of: to park for one is of no use while another does not park, or opens later."""
    other = next((count for count in ends if count.budget.on_exhausted is not OnExhausted.PARK), None)
    return other or max(ends, key=lambda count: count.period.until_ms or 0)
