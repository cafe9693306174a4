"""Whatever calls do, at whatever moment a process dies: no more is spent than the limit and the errors of estimates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from laneway.kernel.budgets import GRANT_SHARE, Budgets, Count, CountKey, Grant, Refusal, Wish
from laneway.spending import Amount, Budget, BudgetScope, Period, Price, Spender

PRICE = Price(input_picos=2_500, output_picos=10_000)
WHO = st.builds(
    Spender,
    tenant=st.sampled_from(["a", "b"]),
    workspace=st.just("default"),
    session=st.sampled_from(["s1", "s2"]),
    run_id=st.sampled_from(["r1", "r2", "r3"]),
    principal=st.sampled_from([None, "p"]),
)


class CountsMachine(RuleBasedStateMachine):
    """Calls reserve, are settled, given back, lost; the process dies and starts again from what it has granted."""

    def __init__(self) -> None:
        super().__init__()
        self.budgets = Budgets()
        self.flying: list[tuple[Grant, int]] = []
        self.disk: dict[CountKey, Count] = {}
        self.used: dict[CountKey, Amount] = {}  # what was really used, by count
        self.excess: dict[CountKey, Amount] = {}  # by how much calls used more than they had reserved

    @initialize(tokens=st.integers(10, 5_000), money=st.floats(0.000_001, 0.001))
    def limits(self, tokens: int, money: float) -> None:
        for each in (
            Budget(name="run", scope=BudgetScope.RUN, tokens=tokens),
            Budget(name="tenant", scope=BudgetScope.TENANT, tokens=tokens * 2, money=money),
            Budget(name="people", scope=BudgetScope.PRINCIPAL, money=money),
        ):
            self.budgets.set_rule(each)

    @rule(who=WHO, said=st.integers(0, 400), output=st.integers(1, 400), least=st.integers(1, 50))
    def reserve(self, who: Spender, said: int, output: int, least: int) -> None:
        counts = self.budgets.counts_of(who, lambda _: Period())
        before = [(count.spent, count.reserved, count.in_flight) for count in counts]
        found = self.budgets.reserve(counts, Wish(said, max(output, least), least, PRICE))
        if isinstance(found, Refusal):
            assert [(count.spent, count.reserved, count.in_flight) for count in counts] == before
            left = zip(found.amount, found.where.left, strict=True)
            assert any(room is not None and room < wanted for wanted, room in left)
            return
        assert least <= found.output_max <= max(output, least)
        assert len(found.counts) == len(counts)
        self._write(counts)
        self.flying.append((found, said))

    def _write(self, counts: Iterable[Count]) -> None:
        """What a desk does after every change."""
        for count in counts:
            if not count.is_covered or count.is_ample:
                count.cover()
                self.disk[count.key] = replace(count)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), more=st.integers(-200, 200))
    def settle(self, data: st.DataObject, more: int) -> None:
        grant, said = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        output = data.draw(st.integers(0, grant.output_max))
        used = PRICE.of(max(0, said + more), output)
        self._note(grant, used)
        self.budgets.settle(grant, used)
        assert self.budgets.settle(grant, used) == []
        self._write(grant.counts)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        grant, _ = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.budgets.give_back(grant)
        assert not grant.is_open
        self._write(grant.counts)

    @rule()
    def die(self) -> None:
        for grant, said in self.flying:  # each may have been made to its end
            self._note(grant, PRICE.of(said, grant.output_max))
        self.flying.clear()
        rules, died = self.budgets.rules, self.budgets.counts
        self.budgets = Budgets()
        for each in rules.values():
            self.budgets.set_rule(each)
        self.budgets.load(replace(count) for count in self.disk.values())
        for key, count in self.budgets.counts.items():
            assert count.spent == count.granted
            for limit, lost, before, flew in zip(
                count.budget.limit, count.lost, died[key].lost, died[key].reserved, strict=True
            ):
                assert limit is None or lost - before <= flew + 2 * (limit // GRANT_SHARE)
            self.disk[key] = replace(count)  # as if it was written at once: what is lost is counted once

    def _note(self, grant: Grant, used: Amount) -> None:
        more = used.minus(grant.amount)
        for count in grant.counts:
            key = count.key
            self.used[key] = self.used.get(key, Amount()).plus(used)
            excess = Amount(max(0, more.tokens), max(0, more.nanos))
            self.excess[key] = self.excess.get(key, Amount()).plus(excess)

    @invariant()
    def nothing_is_overspent(self) -> None:
        for key, used in self.used.items():
            count = self.budgets.counts.get(key)
            if count is None:
                continue
            tokens, nanos = count.budget.limit
            excess = self.excess[key]
            assert tokens is None or used.tokens <= tokens + excess.tokens
            assert nanos is None or used.nanos <= nanos + excess.nanos

    @invariant()
    def the_disk_never_knows_of_less(self) -> None:
        for key, count in self.budgets.counts.items():
            taken, granted = (
                count.spent.plus(count.reserved),
                self.disk.get(key, Count(key, count.budget, count.period)),
            )
            assert taken.tokens <= granted.granted.tokens
            assert taken.nanos <= granted.granted.nanos

    @invariant()
    def what_is_reserved_is_in_flight(self) -> None:
        for count in self.budgets.counts.values():
            own = [grant for grant, _ in self.flying if count in grant.counts]
            assert count.in_flight == len(own)
            assert count.reserved == Amount(
                sum(grant.amount.tokens for grant in own), sum(grant.amount.nanos for grant in own)
            )


TestCounts = CountsMachine.TestCase
