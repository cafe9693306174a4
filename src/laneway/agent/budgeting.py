"""What a run spends: its guard and its budgets are asked before every call of a model, and told after it.

A call reserves its input as estimated and all the output it may have, so an output limit is always sent while a budget
holds. What does not fit ends the run, waits for the next window, or goes to a cheaper model, as the budget says.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from laneway.agent.host import account_of
from laneway.agent_events import BudgetThresholdHitEvent, RunWaitingEvent
from laneway.dialogue import Answer, ModelRequest, Usage
from laneway.errors import BudgetExhaustedError, ConfigError, ModelLimitedError, PromptTooLongError
from laneway.kernel.budgets import Count, Grant, Overrun, Refusal, Wish
from laneway.models.prices import price_of
from laneway.runtime.budget_windows import moment_text
from laneway.runtime.errands import WAIT_LANE
from laneway.spending import DOLLAR, Amount, Budget, OnExhausted, Price, Spender, Unpriced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from laneway.agent.agent import AsyncAgent
    from laneway.agent.budget_guard import GuardPost
    from laneway.agent.host import Host
    from laneway.agent.loop import Run
    from laneway.agent.session import AsyncSession
    from laneway.agent.session_lanes import SessionLanes
    from laneway.ports import Model
    from laneway.runtime.handles import Job

__all__ = ("Budgeted", "Budgeting", "check_budgets", "estimated_tokens")

_log = logging.getLogger("laneway")

OUTPUT_MAX: Final = 8_192  # what is sent as the limit where nobody has said one
OUTPUT_LEAST: Final = 256  # a shorter answer is of no use
BYTES_PER_TOKEN: Final = 3
PER_UTTERANCE: Final = 8
LOOK_MS: Final = 60_000  # a wall clock may jump
PRICE_HINT: Final = (
    'give it input_price and output_price in its configuration, count tokens in that budget, or say unpriced = "allow"'
)


class Budgeted:
    """The side of a session that budgets see."""

    model: Model
    model_lane: str
    host: Host
    lanes: SessionLanes | None
    guard_post: GuardPost
    _agent: AsyncAgent

    def set_budget_guard(self, guard: object | None) -> None:
        """Have another guard from the next call of the model on; None: none."""
        self.guard_post.set(guard)

    def submit_model(self, run: Callable[[], Awaitable[Answer]], model: Model) -> Job[Answer]:
        """A model call: through the lane `generate` of this session, if it has lanes, and that of the model."""
        lane = self.model_lane if model is self.model else self.host.model_lane(account_of(model))
        if self.lanes is not None:
            return self.lanes.submit_model(lambda _: run(), model_lane=lane, label=model.name)
        return self.host.inbox.lanes.submit(lane, run, label=model.name)


class Budgeting:
    """The budgets of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run.session

    async def ask(self, request: ModelRequest) -> Answer:
        """One call of the model, if guard and budgets allow it."""
        session = self._session
        estimate = estimated_tokens(request)
        if session.guard_post.guard is not None:
            told = await session.guard_post.check(estimate)
            if told is not None:
                await self._tell(told)
        if session.host.budgets.is_idle:
            answer = await self._run.call_model(request, session.model)
        else:
            answer = await self._within_budgets(request, estimate)
        if session.guard_post.guard is not None:
            await session.guard_post.record(answer.usage)
        return answer

    async def _within_budgets(self, request: ModelRequest, estimate: int) -> Answer:
        desk = self._session.host.budgets
        grant, model = await self._reserve(request, estimate)
        self._run.heard = False
        try:
            answer = await self._run.call_model(replace(request, output_max=grant.output_max), model)
        except (ModelLimitedError, PromptTooLongError):
            desk.give_back(grant)  # it was turned away at the door
            raise
        except BaseException:
            if self._run.heard:  # it had begun to answer, and somebody has to pay for that
                desk.lose(grant)
            else:
                desk.give_back(grant)
            raise
        for each in desk.settle(grant, _used(answer.usage, grant.price)):
            await self._tell(_event(each))
        return answer

    async def _reserve(self, request: ModelRequest, estimate: int) -> tuple[Grant, Model]:
        model = self._session.model
        while True:
            price = self._price(model)
            wanted = request.output_max or OUTPUT_MAX
            wish = Wish(estimate, wanted, min(wanted, OUTPUT_LEAST), price)
            found = await self._session.host.budgets.reserve(self._spender(), wish)
            if isinstance(found, Grant):
                return found, model
            cheaper = self._cheaper(found, model)
            if cheaper is not None:
                model = cheaper
            elif found.where.budget.on_exhausted is OnExhausted.PARK:
                await self._park(found)
                model = self._session.model
            else:
                raise _exhausted(found)

    def _spender(self) -> Spender:
        root: AsyncSession = self._session
        run = self._run
        while root.parent is not None:  # what sub-agents spend is spent by whoever has sent them
            root = root.parent
            run = root._run or run  # noqa: SLF001 - the run that waits for them
        owner = root.owner
        return Spender(owner.tenant, owner.workspace, owner.session, run.origin, root.identity.principal)

    def _price(self, model: Model) -> Price:
        price = price_of(model)
        if price is not None:
            return price
        spender = self._spender()
        rules = [each for each in self._session.host.budgets.budgets.rules.values() if each.subject_of(spender)]
        priced = _wanting_price(rules)
        if priced is not None:
            raise BudgetExhaustedError(
                f"what model {model.name!r} costs is not known, and budget {priced.name!r} counts money",
                resource=priced.name,
                hint=PRICE_HINT,
            )
        return Price()

    def _cheaper(self, refusal: Refusal, model: Model) -> Model | None:
        """The model that a budget names for when it is used up, unless that was it already."""
        name = refusal.where.budget.cheaper
        if refusal.where.budget.on_exhausted is not OnExhausted.CHEAPER or name is None or name == model.name:
            return None
        return self._session._agent._model(name)  # noqa: SLF001 - the agent keeps them, and lets go of them

    async def _park(self, refusal: Refusal) -> None:
        """Wait for the next window, or for somebody to raise the limit; the slots of the turn are lent meanwhile."""
        run, host = self._run, self._session.host
        until = refusal.where.period.until_ms
        assert until is not None  # a budget without a window does not park
        delay = max(1, min(LOOK_MS, until - run.wall()))
        budget = refusal.where.budget
        reason = f"budget {budget.name!r} is used up until {moment_text(until, budget.timezone)}"
        opened = functools.partial(host.budgets.opened, refusal, delay)
        with run.waiting("budget", reason):
            if run.parked_until != until:
                run.parked_until = until
                run.emit(RunWaitingEvent(reason=reason, until_ms=until))
            await host.inbox.lanes.run(WAIT_LANE, opened, label="a budget that will be open again")

    async def _tell(self, event: BudgetThresholdHitEvent) -> None:
        self._run.emit(event)
        await self._run.hooks.threshold_hit(event)


def check_budgets(budgets: Iterable[Budget], model: Model, model_of: Callable[[str], Model]) -> None:
    """Refuse budgets in money for a model whose price nobody knows, and cheaper models that there are not."""
    for each in budgets:
        models = [model] if each.cheaper is None else [model, model_of(each.cheaper)]
        for one in models:
            if _wanting_price((each,)) is not None and price_of(one) is None:
                raise ConfigError(
                    f"what model {one.name!r} costs is not known, and budget {each.name!r} counts money",
                    setting=f"budgets.{each.name}",
                    value=one.name,
                    hint=PRICE_HINT,
                )


def _wanting_price(rules: Iterable[Budget]) -> Budget | None:
    return next((each for each in rules if each.money is not None and each.unpriced is Unpriced.DENY), None)


def estimated_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has; what the provider counted last is taken at its word."""
    since = 0
    for each in reversed(request.conversation):
        if isinstance(each, Answer) and each.usage.total_tokens:
            return each.usage.total_tokens + since
        since += len(str(each).encode(errors="replace")) // BYTES_PER_TOKEN + PER_UTTERANCE
    for spec in request.tools:
        since += len(repr(spec).encode(errors="replace")) // BYTES_PER_TOKEN
    return since + len(request.system.encode(errors="replace")) // BYTES_PER_TOKEN + PER_UTTERANCE


def _used(usage: Usage, price: Price) -> Amount:
    counted = price.of(usage.input_tokens, usage.output_tokens)
    return counted if usage.cost is None else Amount(counted.tokens, round(usage.cost * DOLLAR))


def _event(overrun: Overrun) -> BudgetThresholdHitEvent:
    consumed, limit = _nearest(overrun.where)
    name = overrun.where.budget.name
    share = f"{overrun.where.share:.0%}"
    return BudgetThresholdHitEvent(
        resource=name,
        kind=overrun.kind,
        consumed=consumed,
        limit=limit,
        message=f"{share} of budget {name!r} is spent",
    )


def _nearest(count: Count) -> tuple[float, float]:
    """What is spent and the limit, in tokens or dollars: of the one that is nearer to its end."""
    tokens, nanos = count.budget.limit
    if tokens is not None and (nanos is None or count.spent.tokens * nanos >= count.spent.nanos * tokens):
        return count.spent.tokens, tokens
    return count.spent.dollars, (nanos or 0) / DOLLAR


def _exhausted(refusal: Refusal) -> BudgetExhaustedError:
    count = refusal.where
    budget = count.budget
    consumed, limit = _nearest(count)
    unit = "tokens" if budget.tokens is not None and limit == budget.tokens else "dollars"
    until = count.period.until_ms
    return BudgetExhaustedError(
        f"{consumed:,} of {limit:,} {unit} of budget {budget.name!r} are spent, "
        f"and the call would take up to {refusal.amount.tokens:,} tokens",
        resource=budget.name,
        hint="raise the budget, or wait until its window ends" if until is not None else "raise the budget",
        until_ms=until,
        consumed=consumed,
        limit=limit,
    )
