"""The budget guard of a session: what it says counts, what it cannot say does no harm."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from laneway.errors import BudgetExhaustedError, ConfigError
from laneway.models import ScriptedModel, say
from tests.agent_stage import Watch, opened
from tests.stage import passing, simulated


class Guard:
    """Says what it was told to say, and writes down what it heard."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []
        self.used: list[dict[str, Any]] = []

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        self.asked.append((session_id, estimated_tokens))
        return self.answers.pop(0) if self.answers else None

    def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
        self.used.append(usage)


class Raising:
    """A guard with a bug."""

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        raise ZeroDivisionError

    def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
        raise ZeroDivisionError


class Hanging:
    """A guard that never answers."""

    async def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        await asyncio.Event().wait()


DENY = {"decision": "deny", "resource": "tokens", "reason": "monthly cap reached"}
SOFT = {"decision": "soft", "resource": "tokens", "consumed": 90, "limit": 100, "message": "soon"}


@simulated
async def test_a_guard_is_asked_before_each_call_and_told_after_it() -> None:
    guard = Guard(None, {"decision": "allow"})
    async with opened(ScriptedModel([[say("one")], [say("two")]]), budget_guard=guard, session_id="s") as session:
        await session.send("hello")
        await session.send("again")
    assert [name for name, _ in guard.asked] == ["s", "s"]
    assert all(tokens > 0 for _, tokens in guard.asked)
    assert [set(used) for used in guard.used] == [
        {"prompt_tokens", "completion_tokens", "total_tokens", "cache_read_tokens", "cache_write_tokens", "cost"}
    ] * 2
    assert all(used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"] for used in guard.used)


@simulated
async def test_a_denied_call_is_not_made_and_the_session_stays_open() -> None:
    model = ScriptedModel([[say("after all")]])
    async with opened(model, budget_guard=Guard(DENY)) as session:
        with pytest.raises(RuntimeError, match=r"^Budget exhausted \(tokens\): monthly cap reached") as caught:
            await session.send("hello")
        assert isinstance(caught.value, BudgetExhaustedError)
        assert model.requests == []
        assert (await session.send("again")).text == "after all"


@simulated
async def test_a_warning_is_told_and_the_call_is_made() -> None:
    told: list[Any] = []
    async with opened(ScriptedModel([[say("well")]]), budget_guard=Guard(SOFT)) as session:
        session.register_hook("h", "budget_threshold_hit", handler=lambda event: told.append(event["payload"]))
        watch = Watch(session.subscribe())
        assert (await session.send("hello")).text == "well"
        await passing()
        (event,) = watch.of("budget_threshold_hit")
    facts = {"resource": "tokens", "kind": "soft", "consumed": 90, "limit": 100, "message": "soon"}
    assert event.data == facts
    assert facts.items() <= told[0].items()


@simulated
async def test_a_guard_is_set_and_cleared_at_run_time() -> None:
    async with opened(ScriptedModel([[say("one")], [say("two")]])) as session:
        session.set_budget_guard(Guard(DENY, DENY))
        with pytest.raises(BudgetExhaustedError):
            await session.send("hello")
        session.set_budget_guard(None)
        assert (await session.send("again")).text == "one"


@pytest.mark.parametrize(
    "guard", [object(), type("Half", (), {"record_after_llm": lambda *_: None})()], ids=["none", "half"]
)
@simulated
async def test_what_a_guard_lacks_counts_as_a_yes(guard: object) -> None:
    async with opened(ScriptedModel([[say("well")]]), budget_guard=guard) as session:
        assert (await session.send("hello")).text == "well"


NONSENSE: list[Any] = [
    "deny",
    17,
    {"decision": "perhaps"},
    {},
    {"decision": "soft", "resource": "tokens", "consumed": "many", "limit": 5},
    {"decision": "soft", "resource": "tokens", "consumed": float("nan"), "limit": 5},
    [DENY],
]
BAD = [*(Guard(each) for each in NONSENSE), Raising(), Hanging()]
IDS = [*(f"nonsense{at}" for at in range(len(NONSENSE))), "raises", "hangs"]


@pytest.mark.parametrize("at", range(len(BAD)), ids=IDS)
@simulated
async def test_a_guard_that_fails_counts_as_a_yes_and_is_in_the_log(at: int, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(NONSENSE[at]) if at < len(NONSENSE) else BAD[at]
    with caplog.at_level(logging.WARNING, logger="laneway"):
        async with opened(ScriptedModel([[say("well")]]), budget_guard=guard) as session:
            assert (await session.send("hello")).text == "well"
    assert "check_before_llm of the budget guard" in caplog.text


@pytest.mark.parametrize("at", range(len(BAD)), ids=IDS)
@simulated
async def test_a_guard_that_fails_counts_as_a_no_if_the_session_wants_that(at: int) -> None:
    guard = Guard(NONSENSE[at]) if at < len(NONSENSE) else BAD[at]
    model = ScriptedModel([[say("well")]])
    async with opened(model, budget_guard=guard, budget_on_error="deny") as session:
        with pytest.raises(BudgetExhaustedError, match=r"^Budget exhausted: the budget guard failed"):
            await session.send("hello")
    assert model.requests == []


@simulated
async def test_what_is_no_guard_is_refused() -> None:
    wrong = type("Wrong", (), {"check_before_llm": 5})()
    async with opened(ScriptedModel([])) as session:
        with pytest.raises(ConfigError, match="check_before_llm of the budget guard is int"):
            session.set_budget_guard(wrong)
        with pytest.raises(ConfigError, match="is a class"):
            session.set_budget_guard(Guard)
    with pytest.raises(ConfigError, match="check_before_llm"):
        async with opened(ScriptedModel([]), budget_guard=wrong):
            pass
