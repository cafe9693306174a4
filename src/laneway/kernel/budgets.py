"""The counts of budgets: what was spent, what calls in flight have reserved, and whether one more fits.

A call reserves in every count that it belongs to, or in none: its input as estimated, and the whole output it may have.
What it really used is settled afterwards. So the sum of what was spent and reserved never passes a limit, and what was
spent passes it by no more than the estimates of the inputs in flight were too small.

What the disk knows of a count is `granted`: a sum that was set aside for calls, a little more than they have reserved
so far, so that most calls wait for no commit. After a crash everything granted counts as spent: nobody knows better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from laneway.spending import Amount, Budget, Period, Price, Spender

__all__ = ("Budgets", "Count", "CountKey", "Grant", "Overrun", "Refusal", "Wish")

GRANT_SHARE: Final = 50
"""A grant sets aside up to this part of a limit: so much is lost to nobody's use by a crash at most."""
NOTHING: Final = Amount()


class CountKey(NamedTuple):
    """A budget, whose count it is, and the beginning of its window."""

    budget: str
    subject: str
    from_ms: int


@dataclass(slots=True)
class Count:
    """What one budget knows of one run, session, principal or tenant in one window."""

    key: CountKey
    budget: Budget
    period: Period
    spent: Amount = NOTHING
    reserved: Amount = NOTHING
    granted: Amount = NOTHING  # on disk, or about to be
    lost: Amount = NOTHING  # what crashes have made of grants; a part of `spent`
    overrun: Amount = NOTHING  # by how much estimates were too small in the end; a part of `spent`
    warned: bool = False
    in_flight: int = 0

    @property
    def left(self) -> tuple[int | None, int | None]:
        """Tokens and nanodollars that nobody has spent or reserved; None: no limit of that kind."""
        tokens, nanos = self.budget.limit
        taken = self.spent.plus(self.reserved)
        return (
            None if tokens is None else tokens - taken.tokens,
            None if nanos is None else nanos - taken.nanos,
        )

    def fits(self, amount: Amount, *, beside: bool = True) -> bool:
        """Whether so much can still be spent; not `beside`: if no call in flight had reserved anything."""
        tokens, nanos = self.budget.limit
        taken = self.spent.plus(self.reserved) if beside else self.spent
        return (tokens is None or taken.tokens + amount.tokens <= tokens) and (
            nanos is None or taken.nanos + amount.nanos <= nanos
        )

    @property
    def share(self) -> float:
        """How much of its limit is spent: of the one that is nearer to its end."""
        tokens, nanos = self.budget.limit
        of_tokens = 0.0 if tokens is None else self.spent.tokens / tokens
        of_nanos = 0.0 if nanos is None else self.spent.nanos / nanos
        return max(of_tokens, of_nanos)

    @property
    def is_covered(self) -> bool:
        """Whether the disk knows of everything that is spent or reserved."""
        taken = self.spent.plus(self.reserved)
        return taken.tokens <= self.granted.tokens and taken.nanos <= self.granted.nanos

    def cover(self) -> None:
        """Set aside what is taken and a little more, as far as the limit goes; never less than before."""
        tokens, nanos = self.budget.limit
        taken = self.spent.plus(self.reserved)
        ahead = Amount((tokens or 0) // GRANT_SHARE, (nanos or 0) // GRANT_SHARE)
        wanted = taken.plus(ahead)
        self.granted = Amount(
            max(self.granted.tokens, taken.tokens, wanted.tokens if tokens is None else min(tokens, wanted.tokens)),
            max(self.granted.nanos, taken.nanos, wanted.nanos if nanos is None else min(nanos, wanted.nanos)),
        )


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
    """Why a call does not fit, and where. `waits`: what calls in flight give back may be enough for it."""

    where: Count
    amount: Amount
    waits: bool


class Overrun(NamedTuple):
    """A count has reached its share of warning, or its end, with what a call has used."""

    where: Count
    kind: str  # soft, hard


@dataclass(slots=True)
class Budgets:
    """Every count of one store."""

    rules: dict[str, Budget] = field(default_factory=dict)
    counts: dict[CountKey, Count] = field(default_factory=dict)

    def counts_of(self, who: Spender, period_of: Callable[[Budget], Period]) -> tuple[Count, ...]:
        """The counts that a call belongs to, in the order of the rules."""
        found = ((rule, rule.subject_of(who)) for rule in self.rules.values())
        return tuple(self.count(rule, subject, period_of(rule)) for rule, subject in found if subject is not None)

    def count(self, rule: Budget, subject: str, period: Period) -> Count:
        """The count of one subject in one window."""
        key = CountKey(rule.key, subject, period.from_ms)
        count = self.counts.get(key)
        if count is None:
            self.counts[key] = count = Count(key, rule, period)
        return count

    def set_rule(self, rule: Budget) -> list[Count]:
        """Make or change a budget; what was spent stays spent. Counts that it has no more use for are handed out."""
        before = self.rules.get(rule.key)
        self.rules[rule.key] = rule
        gone = []
        if before is not None and before.counts_by != rule.counts_by:
            gone = self._drop_counts(rule.key)
        for count in self.counts.values():
            if count.key.budget == rule.key:
                count.budget = rule
        return gone

    def drop_rule(self, key: str) -> list[Count]:
        """Forget a budget; what is in flight ends as usual. Its counts are handed out to be forgotten, too."""
        del self.rules[key]
        return self._drop_counts(key)

    def _drop_counts(self, key: str) -> list[Count]:
        gone = [count for known, count in self.counts.items() if known.budget == key]
        for count in gone:
            del self.counts[count.key]
        return gone

    def load(self, counts: Iterable[Count]) -> None:
        """Take over what the disk knows after a start: what was granted counts as spent."""
        for count in counts:
            count.lost = count.lost.plus(count.granted.minus(count.spent))
            count.spent, count.reserved, count.in_flight = count.granted, NOTHING, 0
            self.counts[count.key] = count

    def forget_before(self, wall_ms: int) -> list[Count]:
        """Counts whose window is over and that no call needs any more."""
        over = [
            count
            for count in self.counts.values()
            if count.period.until_ms is not None and count.period.until_ms <= wall_ms and not count.in_flight
        ]
        for count in over:
            del self.counts[count.key]
        return over

    def end_run(self, run_id: str) -> list[Count]:
        """Counts of a run that has ended."""
        gone = [
            count
            for rule in self.rules.values()
            if rule.scope == "run" and (count := self.counts.get(CountKey(rule.key, run_id, 0))) is not None
        ]
        for count in gone:
            del self.counts[count.key]
        return gone

    def end_session(self, tenant: str, session: str) -> list[Count]:
        """Counts of a session that is deleted."""
        subject = f"{tenant}/{session}"
        gone = [
            count
            for rule in self.rules.values()
            if rule.scope == "session"
            for key, count in self.counts.items()
            if key.budget == rule.key and key.subject == subject
        ]
        for count in gone:
            del self.counts[count.key]
        return gone

    # ---- one call ----

    def reserve(self, counts: tuple[Count, ...], wish: Wish) -> Grant | Refusal:
        """Reserve in all counts or in none. The output becomes as short as it has to, but not shorter than wished."""
        output = _output_of(counts, wish)
        amount = wish.price.of(wish.input_tokens, max(output, wish.output_least))
        for count in counts:
            if not count.fits(amount):
                return Refusal(count, amount, waits=count.in_flight > 0 and count.fits(amount, beside=False))
        for count in counts:
            count.reserved = count.reserved.plus(amount)
            count.in_flight += 1
        return Grant(counts, amount, max(output, wish.output_least), wish.price)

    def settle(self, grant: Grant, used: Amount) -> list[Overrun]:
        """A call has ended, and this is what it took; what it reserved and did not need is free again."""
        told: list[Overrun] = []
        for count in self._end(grant):
            count.spent = count.spent.plus(used)
            more = used.minus(grant.amount)
            if more.tokens > 0 or more.nanos > 0:
                count.overrun = count.overrun.plus(Amount(max(0, more.tokens), max(0, more.nanos)))
            if count.share >= 1:
                told.append(Overrun(count, "hard"))
            elif count.share >= count.budget.warn_at and not count.warned:
                told.append(Overrun(count, "soft"))
            count.warned = count.warned or count.share >= count.budget.warn_at
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


def _output_of(counts: tuple[Count, ...], wish: Wish) -> int:
    """How much output fits into what is left everywhere, up to what is wished for."""
    output = wish.output_tokens
    input_picos = wish.input_tokens * wish.price.input_picos
    for count in counts:
        tokens, nanos = count.left
        if tokens is not None:
            output = min(output, tokens - wish.input_tokens)
        if nanos is not None and wish.price.output_picos:
            output = min(output, (nanos * 1000 - input_picos) // wish.price.output_picos)
    return output
