"""What a run spends: its guard and its budgets are asked before every call of a model, and told after it.

A call reserves its input as estimated and all the output it may have, so an output limit is always sent while a budget
holds. What does not fit ends the run, waits for the next window, or goes to a cheaper model, as the budget says; which
of these it is, is told.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from laneway.agent.estimates import Counted, answered_tokens, estimated_tokens
from laneway.agent.host import account_of
from laneway.agent_events import BudgetThresholdHitEvent, RunWaitingEvent
from laneway.dialogue import Answer, ModelRequest
from laneway.errors import BudgetExhaustedError, ConfigError, ModelError, ModelUnavailableError
from laneway.kernel.budgets import Count, CountKey, Grant, Overrun, Parked, Refusal, Wish
from laneway.models.prices import price_of
from laneway.records import Fields
from laneway.runtime.budget_windows import moment_text, period_of
from laneway.runtime.errands import WAIT_LANE
from laneway.spending import DOLLAR, Amount, Budget, OnExhausted, Price, Spender, Unpriced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from laneway.agent.agent import AsyncAgent
    from laneway.agent.budget_guard import GuardPost
    from laneway.agent.host import Host
    from laneway.agent.loop import Run
    from laneway.agent.session import AsyncSession
    from laneway.agent.session_lanes import SessionLanes
    from laneway.kernel.rounds import Round
    from laneway.ports import Model
    from laneway.runtime.budget_desk import BudgetDesk
    from laneway.runtime.handles import Job

# What a run spends is a part of its session and of its agent.
# ruff: noqa: SLF001

__all__ = ("Budgeted", "Budgeting", "Purse", "check_budgets")

_log = logging.getLogger("laneway")

OUTPUT_MAX: Final = 8_192  # what is sent as the limit where nobody has said one
OUTPUT_LEAST: Final = 256  # a shorter answer is of no use
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


class Purse:
    """What a session and its sub-agents spend from: whose budgets hold for it, and how long its runs are counted."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._counted: Counted | None = None  # what its provider has counted last
        self._has_looked = False  # for what its provider had counted when it was last in memory
        self.spends_for = ""
        """What the run is counted under whose calls those of this sub-agent are; empty: those of its own runs."""

    def open(self) -> None:
        """Have the budgets of the agent, for all sessions of the store, and those that were given to this one alone."""
        session = self._session
        if session.parent is not None:
            return  # what sub-agents spend is spent by whoever has sent them
        common = cast("tuple[Budget, ...]", tuple(session._agent.options.budgets or ()))  # the options have made them
        own = () if session.settings.budgets == common else session.settings.budgets
        session.host.budgets.adopt(common)
        session.host.budgets.adopt_own(session.owner.tenant, session.owner.session, own)

    def reports(self, counted_as: str) -> list[Fields]:
        """What was spent of each budget that holds for a run of it, in the window of now."""
        session, found = self._session, list[Fields]()
        budgets, now_ms = session.host.budgets.budgets, session.host.env.clock.wall_ms()
        who = self.spender(counted_as)
        for rule in budgets.rules_for(who):
            subject = rule.subject_of(who)
            if not subject:
                continue
            period = period_of(rule.window, rule.timezone, now_ms)
            count = budgets.counts.get(CountKey(rule.key, subject, period.from_ms))
            spent, reserved = (Amount(), Amount()) if count is None else (count.spent, count.reserved)
            found.append(
                Fields(
                    name=rule.name,
                    scope=rule.scope.value,
                    window=rule.window.value,
                    on_exhausted=rule.on_exhausted.value,
                    tokens=rule.tokens,
                    money=rule.money,
                    spent_tokens=spent.tokens,
                    spent_money=spent.dollars,
                    reserved_tokens=reserved.tokens,
                    reserved_money=reserved.dollars,
                    until_ms=period.until_ms,
                )
            )
        return found

    def counted(self) -> Counted | None:
        """What its provider has counted last, also in an earlier process; None: nobody knows."""
        if not self._has_looked:
            self._has_looked = True
            told = [one for one in self._session.book.rounds if one.answer.usage.total_tokens]
            if told and told[-1].counted:
                frame, length = told[-1].counted
                self._counted = Counted(told[-1].answer, frame, length)
        return self._counted

    def count(self, request: ModelRequest, answer: Answer) -> None:
        """Its provider has counted a request."""
        self._has_looked = True
        self._counted = Counted.of(request, answer, self._counted)

    def note(self, one: Round) -> None:
        """A round has its answer: whoever opens the session later knows what was counted, too."""
        counted = self._counted
        if counted is not None and counted.answer == one.answer:
            one.counted = (counted.frame, counted.length)

    def spender(self, counted_as: str) -> Spender:
        """Whose calls those of a run are."""
        root = self._session
        while root.parent is not None:
            root = root.parent
        owner, principal = root.owner, root.identity.principal
        return Spender(owner.tenant, owner.workspace, owner.session, self.spends_for or counted_as, principal)

    def end_run(self, counted_as: str) -> None:
        """A run, or something that it has begun, has ended: with the last of that go the counts of the run."""
        session = self._session
        if self.spends_for or not counted_as or session._leaving is not None or session._closed:
            return  # somebody else knows when it ends, or it goes on later
        at_work = any(run.counted_as == counted_as for run in session._at_work)
        if not at_work and not session.delegates.spend_for(counted_as):
            session.host.budgets.end_run(self.spender(counted_as))

    def end_old_runs(self) -> None:
        """What an earlier process has counted for runs that nobody goes on with is of no use any more."""
        session = self._session
        if session.parent is not None or session.delegates.spend_for(""):
            return
        awaited = session.host.inbox.engine.kernel.items
        for counted_as in session.host.budgets.runs_of(session.owner):
            if counted_as not in awaited:
                self.end_run(counted_as)


class Budgeting:
    """The budgets of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run.session
        self._switched: tuple[str, str] | None = None  # the budget and the model that whoever watches knows of

    async def ask(self, request: ModelRequest) -> Answer:
        """One call of the model, if guard and budgets allow it."""
        session, estimate = self._session, 0
        if session.guard_post.guard is not None:
            estimate = estimated_tokens(request, session.purse.counted())
            told = await session.guard_post.check(estimate)
            if told is not None:
                await self._tell(told)
        if session.host.budgets.is_idle:  # as of now: one may have been set while the guard was thinking
            answer = await self._run.call_model(request, session.model)
        else:
            estimate = estimate or estimated_tokens(request, session.purse.counted())
            answer = await self._within_budgets(request, estimate)
        if estimate and answer.usage.total_tokens and request.purpose != "summary":  # that is no part of what is said
            session.purse.count(request, answer)
        if session.guard_post.guard is not None:
            await session.guard_post.record(answer.usage)
        return answer

    async def _within_budgets(self, request: ModelRequest, estimate: int) -> Answer:
        desk = self._session.host.budgets
        try:
            found = await self._reserve(request, estimate)
        except BudgetExhaustedError as error:
            await self._tell(_denied(error))
            raise
        grant, model = found.grant, found.model
        self._run.sent = self._run.heard = False
        self._run.parked = None
        try:
            await self._tell_switch(found)
            answer = await self._run.call_model(replace(request, output_max=grant.output_max), model)
            used = _used(answer, grant, estimate)
        except BaseException as error:
            if self._is_free(error):
                desk.give_back(grant)
            else:
                for each in desk.lose(grant):
                    self._run.emit(_event(each))
                    if isinstance(error, Exception):  # a run that is being ended waits for no hook
                        await self._run.hooks.threshold_hit(_event(each))
            raise
        for each in desk.settle(grant, used):
            await self._tell(_event(each))
        return answer

    async def _tell_switch(self, found: _Found) -> None:
        """Tell that another model answers than the session has: once in a run, as long as it is the same."""
        if found.refusal is None:
            self._switched = None
            return
        switched = (found.refusal.where.key.budget, found.model.name)
        if switched == self._switched:
            return
        self._switched = switched
        event = _chosen(found.refusal, f"model {found.model.name!r} is asked instead")
        self._run.clock.note("cheaper", event.message or "")
        await self._tell(event)

    def _is_free(self, error: BaseException) -> bool:
        """Whether a call that has failed costs nothing: it was not sent, or the provider has refused it.

        A model that had begun to answer, or that may be thinking when its run is ended, has to be paid.
        """
        if not self._run.sent:
            return True
        return not self._run.heard and isinstance(error, ModelError | ModelUnavailableError)

    async def _reserve(self, request: ModelRequest, estimate: int) -> _Found:
        session, desk = self._session, self._session.host.budgets
        model, tried, refusal = session.model, set[str](), None
        while True:
            who = session.purse.spender(self._run.counted_as)  # its labels may change while it waits
            tried.add(model.name)
            wanted = _output_of(request, model)
            wish = Wish(estimate, wanted, min(wanted, OUTPUT_LEAST), self._price(model, who))
            found: Grant | Refusal | None = desk.reserve_now(who, wish)
            if found is None:
                found = await self._reserve_later(who, wish)
            if session.is_paused:  # it was meanwhile, or leaves: nothing new is begun
                if isinstance(found, Grant):
                    desk.give_back(found)
                await self._run.hold()
                model, tried, refusal = session.model, set(), None
                continue
            if isinstance(found, Grant):
                return _Found(found, model, refusal)
            budget = found.where.budget
            if budget.cheaper is not None and budget.cheaper not in tried:  # each model is tried once
                tried.add(budget.cheaper)
                model, refusal = session._agent._model(budget.cheaper), found
            elif budget.on_exhausted is OnExhausted.PARK and not found.is_never:
                await self._park(found)
                model, tried, refusal = session.model, set(), None
            else:
                raise _exhausted(found)

    async def _reserve_later(self, who: Spender, wish: Wish) -> Grant | Refusal:
        """Reserve when the disk, or calls in flight that give something back, let it."""
        run, desk, asked = self._run, self._session.host.budgets, asyncio.Event()

        async def reserve() -> Grant | Refusal:
            run.loop.call_soon(asked.set)  # when it has its answer, or waits for one
            return await desk.reserve(who, wish)

        reserving = run.loop.create_task(reserve(), name=f"laneway-budget {run.id}")
        try:
            with run.resting():
                await asked.wait()
                reason = "" if reserving.done() else self._has_no_room(who)
                return await (self._wait_for_room(reserving, reason) if reason else reserving)
        except BaseException:
            reserving.add_done_callback(functools.partial(_give_back, desk))
            reserving.cancel()
            raise

    async def _wait_for_room(self, reserving: asyncio.Task[Grant | Refusal], reason: str) -> Grant | Refusal:
        """Calls in flight have to end first; the slots of the turn are lent meanwhile."""
        run = self._run
        with run.waiting("budget", reason, 0):
            run.emit(RunWaitingEvent(reason=reason))
            return await self._session.host.inbox.lanes.run(WAIT_LANE, lambda: reserving, label="room in a budget")

    def _has_no_room(self, who: Spender) -> str:
        """For which budgets of a call something has to be given back first, in words; empty: for none."""
        desk = self._session.host.budgets
        short = {(key.budget, key.subject) for key in desk.waiting()}
        names = [repr(each.name) for each in desk.budgets.rules_for(who) if (each.key, each.subject_of(who)) in short]
        return f"calls in flight have what is left of budget {' or '.join(names)}" if names else ""

    def _price(self, model: Model, who: Spender) -> Price:
        price = price_of(model)
        if price is not None:
            return price
        rules = self._session.host.budgets.budgets.rules_for(who)
        priced = next((each for each in rules if wants_price(each) and each.subject_of(who)), None)
        if priced is not None:
            counts = self._session.host.budgets.budgets.of_budget(priced.key)
            mine = [each for each in counts if each.key.subject == priced.subject_of(who)]
            newest = max(mine, key=lambda each: each.key.from_ms, default=None)
            raise BudgetExhaustedError(
                f"what model {model.name!r} costs is not known, and budget {priced.name!r} counts money",
                resource=priced.name,
                hint=PRICE_HINT,
                consumed=0.0 if newest is None else newest.spent.dollars,
                limit=priced.money,
            )
        return Price()

    async def _park(self, refusal: Refusal) -> None:
        """Wait for the next window, or for somebody to raise the limit; the slots of the turn are lent meanwhile."""
        run, host = self._run, self._session.host
        until = refusal.where.period.until_ms
        if until is None:  # the budget was another one when it said no: ask it again
            return
        delay = max(1, min(LOOK_MS, until - run.wall()))
        reason = _parked_for(refusal, until)
        told, run.parked = run.parked, Parked(refusal.where.key, self._session.owner.session, run.id, until)
        opened = functools.partial(host.budgets.opened, refusal, delay, run.parked)
        with run.waiting("budget", reason, until):
            if told is None or told.until_ms != until:
                moment = moment_text(until, refusal.where.budget.timezone)
                await self._tell(_chosen(refusal, f"the run waits until {moment}"))
                run.emit(RunWaitingEvent(reason=reason, until_ms=until))
            with run.resting():
                await host.inbox.lanes.run(WAIT_LANE, opened, label="a budget that will be open again")

    async def _tell(self, event: BudgetThresholdHitEvent) -> None:
        self._run.emit(event)
        await self._run.hooks.threshold_hit(event)


class _Found(NamedTuple):
    """What was reserved for a call, of which model; and why that is not the one that the session has."""

    grant: Grant
    model: Model
    refusal: Refusal | None


def _give_back(desk: BudgetDesk, reserving: asyncio.Task[Grant | Refusal]) -> None:
    """A call is not made: what it has reserved meanwhile is free again."""
    if not reserving.cancelled() and reserving.exception() is None:
        found = reserving.result()
        if isinstance(found, Grant):
            desk.give_back(found)


def check_budgets(budgets: Iterable[Budget], model: Model, model_of: Callable[[str], Model]) -> None:
    """Refuse budgets in money for a model whose price nobody knows, and cheaper models that there are not."""
    for each in budgets:
        models = [model] if each.cheaper is None else [model, model_of(each.cheaper)]
        for one in models:
            if wants_price(each) and price_of(one) is None:
                raise unpriced(each, one.name)


def unpriced(rule: Budget, model: str) -> ConfigError:
    """Why a budget in money does not go with a model."""
    return ConfigError(
        f"what model {model!r} costs is not known, and budget {rule.name!r} counts money",
        setting=f"budgets.{rule.name}",
        value=model,
        hint=PRICE_HINT,
    )


def wants_price(rule: Budget) -> bool:
    """Whether a budget is of use only if the price of a model is known."""
    return rule.money is not None and rule.unpriced is Unpriced.DENY


def _output_of(request: ModelRequest, model: Model) -> int:
    """The most that an answer may have: what is asked for or what the model's options say, if that is less."""
    asked, most = request.output_max, cast("int | None", getattr(model, "output_max", None))
    if asked is None or most is None:
        return asked or most or OUTPUT_MAX
    return min(asked, most)


def _used(answer: Answer, grant: Grant, estimate: int) -> Amount:
    """What a call took; a model that reports nothing at all is taken to have used what was estimated."""
    usage = answer.usage
    if not usage.total_tokens:  # then its cost is that of nothing
        return grant.price.of(estimate, min(answered_tokens(answer), grant.output_max))
    counted = grant.price.of(usage.input_tokens, usage.output_tokens)
    if usage.cost is None or grant.price == Price():  # without a price no money was reserved, and none is counted
        return counted
    return Amount(counted.tokens, round(usage.cost * DOLLAR))


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


def _chosen(refusal: Refusal, what: str) -> BudgetThresholdHitEvent:
    """A call does not fit, and this is done instead."""
    return _hard(refusal.where.budget.name, _Shortage.of(refusal).facts(), f"{_why_not(refusal)}: {what}")


def _denied(error: BudgetExhaustedError) -> BudgetThresholdHitEvent:
    """A call does not fit, and is not made."""
    return _hard(error.resource, vars(error), f"{error.reason}: the call is denied")


def _hard(name: str, facts: Mapping[str, float], said: str) -> BudgetThresholdHitEvent:
    consumed, limit = facts["consumed"], facts["limit"]
    return BudgetThresholdHitEvent(resource=name, kind="hard", consumed=consumed, limit=limit, message=said)


def _nearest(count: Count) -> tuple[float, float]:
    """What is spent and the limit, in tokens or dollars: of the one that is nearer to its end."""
    tokens, nanos = count.budget.limit
    if tokens is not None and (nanos is None or count.spent.tokens * nanos >= count.spent.nanos * tokens):
        return count.spent.tokens, tokens
    return count.spent.dollars, (nanos or 0) / DOLLAR


class _Shortage(NamedTuple):
    """What a call lacks in a count, in the unit that is short: tokens, or nanodollars."""

    spent: int
    limit: int
    left: int
    wanted: int
    is_money: bool

    @classmethod
    def of(cls, refusal: Refusal) -> _Shortage:
        """What a refusal says."""
        count, (tokens, nanos) = refusal.where, refusal.where.budget.limit
        left_tokens, left_nanos = (max(0, each or 0) for each in count.left)
        room = tokens if refusal.is_never else left_tokens
        if tokens is not None and (nanos is None or refusal.amount.tokens > (room or 0)):
            return cls(count.spent.tokens, tokens, left_tokens, refusal.amount.tokens, is_money=False)
        return cls(count.spent.nanos, nanos or 0, left_nanos, refusal.amount.nanos, is_money=True)

    def words(self) -> tuple[str, str, str, str]:
        """The amounts for people, with as many digits as it takes to tell them apart; the unit of tokens is apart."""
        amounts = (self.spent, self.limit, self.left, self.wanted)
        if not self.is_money:
            return tuple(f"{each:,}" for each in amounts)  # type: ignore[return-value]
        for digits in range(2, 10):
            said = [f"${each / DOLLAR:,.{digits}f}" for each in (*amounts, 0)]
            if len(set(said)) == len({*amounts, 0}):
                break
        return tuple(said[:4])  # type: ignore[return-value]

    @property
    def unit(self) -> str:
        """What stands behind an amount."""
        return "" if self.is_money else " tokens"

    def facts(self) -> dict[str, float]:
        """What is spent and the limit, in tokens or dollars."""
        if not self.is_money:
            return {"consumed": self.spent, "limit": self.limit}
        return {"consumed": self.spent / DOLLAR, "limit": self.limit / DOLLAR}


def _parked_for(refusal: Refusal, until: int) -> str:
    """Why a run is parked, in words."""
    budget, short = refusal.where.budget, _Shortage.of(refusal)
    when = f"until {moment_text(until, budget.timezone)}"
    if not short.left:
        return f"budget {budget.name!r} is used up {when}"
    _, limit, left, wanted = short.words()
    return (
        f"what is left of budget {budget.name!r} ({left} of {limit}{short.unit}) is too little for this call {when}; "
        f"it may take up to {wanted}{short.unit}"
    )


def _why_not(refusal: Refusal) -> str:
    """Why a call does not fit, in words."""
    name, short = refusal.where.budget.name, _Shortage.of(refusal)
    spent, limit, left, wanted = short.words()
    if refusal.is_never:
        return (
            f"this call would take {wanted}{short.unit} or more, "
            f"and all of budget {name!r} ({limit}{short.unit}) is not enough for it"
        )
    return (
        f"{spent} of {limit}{short.unit} of budget {name!r} are spent; "
        f"this call may take up to {wanted}{short.unit}, and {left} are left"
    )


def _exhausted(refusal: Refusal) -> BudgetExhaustedError:
    name, short, until = refusal.where.budget.name, _Shortage.of(refusal), refusal.where.period.until_ms
    if refusal.is_never:
        return BudgetExhaustedError(
            _why_not(refusal),
            resource=name,
            hint="raise the budget, or make it smaller: system text and tools, the conversation, attachments",
            **short.facts(),
        )
    return BudgetExhaustedError(
        _why_not(refusal),
        resource=name,
        hint="raise the budget, or wait until its window ends" if until is not None else "raise the budget",
        until_ms=until,
        **short.facts(),
    )
