"""The budget guard of a session: what it says counts, what it cannot say does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest

from laneway import AsyncAgent
from laneway.errors import BudgetExhaustedError, ConfigError, RunCancelledError
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


class Exiting:
    """A guard that would end the process."""

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        raise SystemExit(3)


class Cancelling:
    """A guard that pretends to be cancelled."""

    async def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        raise asyncio.CancelledError


class Exhausted:
    """A guard with a bug that no future can carry."""

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        return next(iter(()))


class Leaving(dict[str, Any]):
    """A mapping that would end the process when it is read."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def get(self, key: Any, default: Any = None) -> Any:
        raise self.error


class Odd:
    """Something that cannot even be shown."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


class Unreadable(dict[str, Any]):
    """A mapping that cannot be read."""

    def get(self, key: Any, default: Any = None) -> Any:
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
    "guard", [type("Half", (), {name: lambda *_: None})() for name in ("check_before_llm", "record_after_llm")]
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
    {**SOFT, "consumed": 10**400},
    {**SOFT, "consumed": -(10**5000)},
    {**SOFT, "limit": float("-inf")},
    {**SOFT, "limit": -1},
    {**SOFT, "limit": True},
    {"decision": "soft"},
    {"decision": ["deny"]},
    {"decision": Odd()},
    Odd(),
    Unreadable(DENY),
    Leaving(SystemExit),
    Leaving(GeneratorExit),
    Leaving(asyncio.CancelledError),
]
OTHERS = [Raising(), Hanging(), Exiting(), Cancelling(), Exhausted()]
BAD = [*(Guard(each) for each in NONSENSE), *OTHERS]
IDS = [*(f"nonsense{at}" for at in range(len(NONSENSE))), *(type(each).__name__ for each in OTHERS)]


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


# ---- what it says can be shown and stored ----


@simulated
async def test_what_would_steer_a_terminal_is_escaped_and_what_is_long_is_cut() -> None:
    said = {"decision": "deny", "resource": "a\x1b[31m\n", "reason": "\ud800\x00" + "x" * 1_000_000}
    async with opened(ScriptedModel([]), budget_guard=Guard(said)) as session:
        with pytest.raises(BudgetExhaustedError) as caught:
            await session.send("hello")
    assert str(caught.value).startswith(r"Budget exhausted (a\x1b[31m\n): \ud800\x00x")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 3_000


# ---- one that hangs ----


class Stuck:
    """A plain guard that answers when it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = threading.Event()
        self.entered = threading.Event()

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        self.asked += 1
        self.entered.set()
        self.gate.wait(50)


class Stubborn:
    """An async guard that does not let itself be cancelled."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()

    async def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        self.asked += 1
        while not self.gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.gate.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Stuck, Stubborn])
async def test_a_guard_that_hangs_is_waited_for_once_and_holds_up_neither_runs_nor_a_close(
    kind: type[Stuck] | type[Stubborn], caplog: pytest.LogCaptureFixture
) -> None:
    guard = kind()
    model = ScriptedModel([[say("one")], [say("two")], [say("three")]])
    async with AsyncAgent(model=model, builtin_tools=False) as agent:
        session = agent.session(".", budget_guard=guard, budget_guard_timeout_ms=20)
        with caplog.at_level(logging.WARNING, logger="laneway"):
            assert [(await session.send("go")).text for _ in range(2)] == ["one", "two"]
        assert guard.asked == 1, "it is not asked again while it hangs"
        assert "did not answer within 20 ms" in caplog.text
        assert "an earlier call of it has not ended" in caplog.text
        guard.gate.set()
        while session.guard_post.watch.hangs:  # noqa: ASYNC110 - a thread ends when it does, and tells nobody
            await asyncio.sleep(0)
        await session.send("go")
        assert guard.asked == 2, "it is asked again when it has ended"
    assert guard.gate.is_set()


@pytest.mark.slow
async def test_a_run_whose_guard_hangs_is_cancelled_at_once_and_the_next_asks_the_guard_again() -> None:
    guard = Stuck()
    async with AsyncAgent(model=ScriptedModel([[say("well")]]), builtin_tools=False) as agent:
        session = agent.session(".", budget_guard=guard, budget_on_error="deny", budget_guard_timeout_ms=50_000)
        sent = asyncio.ensure_future(session.send("go"))
        assert await asyncio.to_thread(guard.entered.wait, 50)
        await session.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await sent
        guard.gate.set()
        assert (await session.send("go")).text == "well"
    assert guard.asked == 2


@simulated
async def test_a_new_guard_is_asked_however_often_runs_were_cancelled_while_the_old_one_hung() -> None:
    old, new = Stubborn(), Guard(DENY)
    async with opened(ScriptedModel(), budget_guard=old, budget_guard_timeout_ms=20_000) as session:
        for _ in range(10):
            sent = asyncio.ensure_future(session.send("go"))
            await passing(100)
            await session.cancel()
            await asyncio.gather(sent, return_exceptions=True)
        assert old.asked == 8, "so many of its calls may go on"
        session.set_budget_guard(new)
        with pytest.raises(BudgetExhaustedError, match="monthly cap reached"):
            await session.send("go")
        old.gate.set()
    assert len(new.asked) == 1


@simulated
async def test_sub_agents_do_not_ask_a_guard_that_hangs_already_and_ask_a_new_one() -> None:
    old, new = Stubborn(), Guard()

    async def answer(_: Any) -> list[Any]:
        session.set_budget_guard(new)
        return [say("well")]

    model = ScriptedModel([[say("well")], [say("well")], answer])
    async with opened(model, budget_guard=old, budget_guard_timeout_ms=200, subagents=True) as session:
        for _ in range(3):
            await session.task("look")
        assert old.asked == 1
        old.gate.set()
    assert len(new.used) == 1, "the sub-agent whose call it is tells the new one of it"


@simulated
async def test_a_guard_that_would_wait_for_its_own_session_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    class Asking:
        async def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
            await session.send("may I?")

    with caplog.at_level(logging.WARNING, logger="laneway"):
        async with opened(ScriptedModel([[say("well")]])) as session:
            session.set_budget_guard(Asking())
            assert (await session.send("go")).text == "well"
    assert "check_before_llm of the budget guard" in caplog.text
    assert "did not answer" not in caplog.text


@simulated
async def test_async_methods_count_as_plain_ones_do() -> None:
    used: list[int] = []

    class Later:
        async def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
            await asyncio.sleep(0)
            return DENY if used else None

        async def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
            await asyncio.sleep(0)
            used.append(usage["total_tokens"])

    async with opened(ScriptedModel([[say("one")]]), budget_guard=Later()) as session:
        assert (await session.send("go")).text == "one"
        with pytest.raises(BudgetExhaustedError, match="monthly cap reached"):
            await session.send("go")
    assert len(used) == 1


@pytest.mark.parametrize("on_error", ["allow", "deny"])
@simulated
async def test_a_record_that_fails_takes_no_answer_away(on_error: str, caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful:
        def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
            raise OSError("the meter\x1b[31m is gone")

    with caplog.at_level(logging.WARNING, logger="laneway"):
        async with opened(
            ScriptedModel([[say("well")]]), budget_guard=Forgetful(), budget_on_error=on_error
        ) as session:
            assert (await session.send("go")).text == "well"
    assert r"record_after_llm of the budget guard of" in caplog.text
    assert r"the meter\x1b[31m is gone" in caplog.text


@pytest.mark.parametrize("guard", ["no guard", object(), 5, lambda: None])
@simulated
async def test_a_guard_that_has_neither_method_is_refused_and_both_are_named(guard: Any) -> None:
    words = "neither check_before_llm nor record_after_llm"
    async with opened(ScriptedModel([[say("one")]])) as session:
        with pytest.raises(ConfigError, match=words):
            session.set_budget_guard(guard)
    with pytest.raises(ConfigError, match=words):
        async with opened(ScriptedModel([[say("one")]]), budget_guard=guard):
            raise AssertionError("it is open")
