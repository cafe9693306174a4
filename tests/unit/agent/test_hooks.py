"""Hooks by themselves: gates that stay closed whatever goes wrong, observers that stop nobody, order, time, change."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from laneway.agent.hooks import DEPTH_MAX, LATER_MAX, LOST_MAX, PUT_OFF_MAX, Hooks, HookVerdict
from laneway.agent_events import AgentEvent
from laneway.errors import ConfigError
from laneway.kernel.hooks import GATES, OBSERVERS, SILENT
from laneway.policies import Hook
from tests.inbox_stage import staged
from tests.stage import now_ms, passing

CALL = {"session_id": "s", "run_id": "r", "tool": "bash", "args": {"command": "ls"}}
Event = Mapping[str, Any]


class Told:
    """Handlers that write down what they are told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.events: list[Event] = []

    def as_(self, name: str, answer: Any = None) -> Callable[[Event], Any]:
        """A handler that answers always the same."""

        async def handler(event: Event) -> Any:
            self.names.append(name)
            self.events.append(event)
            return answer

        return handler


async def hang(_: Event) -> None:
    await asyncio.get_running_loop().create_future()


async def ask(hooks: Hooks, **args: Any) -> HookVerdict:
    return await hooks.ask("pre_tool_use", {**CALL, "args": args} if args else CALL)


def gate(handler: Callable[[Event], Any], **config: Any) -> Hooks:
    hooks = Hooks()
    hooks.register("guard", "pre_tool_use", None, config, handler)
    return hooks


# ---- a gate stays closed ----


def raise_in_thread(_: Event) -> None:
    raise RuntimeError("boom")


async def raise_on_loop(_: Event) -> None:
    raise RuntimeError("boom")


async def cancel_itself(_: Event) -> None:
    raise asyncio.CancelledError


async def exit_on_loop(_: Event) -> None:
    raise SystemExit(3)


def exit_in_thread(_: Event) -> None:
    raise SystemExit(3)


def stop_iteration(_: Event) -> None:
    raise StopIteration("x")


async def generator_exit(_: Event) -> None:
    raise GeneratorExit


def wants_more(_: Event, more: int) -> None:
    """It cannot be called with an event alone."""


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (raise_in_thread, "RuntimeError: boom"),
        (raise_on_loop, "RuntimeError: boom"),
        (cancel_itself, "it raised CancelledError"),
        (exit_on_loop, "it raised SystemExit: 3"),
        (exit_in_thread, "it raised SystemExit: 3"),
        (stop_iteration, "it raised StopIteration: x"),
        (generator_exit, "it raised GeneratorExit"),
        (wants_more, "TypeError"),
    ],
)
@staged
async def test_a_gate_that_raises_stays_closed_and_is_named(handler: Callable[[Event], Any], said: str) -> None:
    told: list[AgentEvent] = []
    hooks = Hooks([Hook("guard", "pre_tool_use", handler=handler)], on_event=told.append)
    verdict = await ask(hooks)
    assert verdict.action == "block"
    assert verdict.reason.startswith("the hook 'guard' failed: ")
    assert said in verdict.reason
    [event] = told
    assert (event.event_type, event.hook_id, event.hook_event) == ("hook_failed", "guard", "pre_tool_use")
    assert (event.session_id, event.run_id, event.blocked) == ("s", "r", True)


@staged
async def test_a_gate_that_hangs_is_closed_when_its_time_is_over() -> None:
    cancelled = []

    async def hangs(event: Event) -> None:
        try:
            await hang(event)
        except asyncio.CancelledError:
            cancelled.append(now_ms())
            raise

    verdict = await ask(gate(hangs, timeout_ms=500))
    assert (verdict.action, now_ms()) == ("block", 500)
    assert "it took longer than 500 ms" in verdict.reason
    await passing()
    assert cancelled == [500]


@staged
async def test_without_a_timeout_of_its_own_a_hook_has_five_seconds() -> None:
    assert (await ask(gate(hang))).action == "block"
    assert now_ms() == 5_000


@staged
async def test_a_gate_that_does_not_let_itself_be_cancelled_is_left_to_itself() -> None:
    let_go = asyncio.Event()

    async def clings(_: Event) -> str:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
        return "continue"

    hooks = gate(clings, timeout_ms=100)
    assert (await ask(hooks)).action == "block"
    assert now_ms() == 100
    let_go.set()
    await passing()
    assert (await ask(hooks)).action == "continue"


async def test_a_thread_that_outlives_its_time_is_left_to_itself_and_its_answer_is_not_heard() -> None:
    let_go, ended = threading.Event(), threading.Event()

    def blocks(_: Event) -> str:
        let_go.wait(60)
        ended.set()
        return "continue"

    hooks = gate(blocks, timeout_ms=5)
    verdict = await ask(hooks)
    assert verdict.action == "block"
    assert not ended.is_set()
    let_go.set()
    assert await asyncio.to_thread(ended.wait, 60)


class Threads:
    """Stands for threads: what is called on one runs until the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    async def __call__(self, call: Callable[[], Any]) -> Any:
        """Begin, and never end."""
        self.calls.append(call)
        hook, _, attempt = call.args  # type: ignore[attr-defined]
        hook.begin(attempt)
        await asyncio.get_running_loop().create_future()


@staged
async def test_a_hook_with_too_many_calls_that_never_end_is_not_called_any_more() -> None:
    threads = Threads()
    hooks = Hooks(run_in_thread=threads)
    hooks.register("guard", "pre_tool_use", None, {"timeout_ms": 10}, lambda _: None)
    for _ in range(LOST_MAX):
        assert "took longer" in (await ask(hooks)).reason
    verdict = await ask(hooks)
    assert (verdict.action, len(threads.calls)) == ("block", LOST_MAX)
    assert f"{LOST_MAX} calls of it have not ended" in verdict.reason
    hooks.register("guard", "pre_tool_use", None, {"timeout_ms": 10}, lambda _: None)  # the threads are still there
    assert f"{LOST_MAX} calls of it have not ended" in (await ask(hooks)).reason
    threads.calls[0]()  # one thread comes to its end
    assert "took longer" in (await ask(hooks)).reason


@pytest.mark.parametrize("answer", [True, False, 0, "", "yes", [], {}, object(), {"action": "allow"}, {"ok": 1}])
@staged
async def test_a_gate_that_answers_nonsense_stays_closed(answer: object) -> None:
    verdict = await ask(gate(Told().as_("x", answer)))
    assert verdict.action == "block"
    assert "'guard'" in verdict.reason


class Hostile(dict[str, Any]):
    """A mapping that cannot be read."""

    def __iter__(self) -> Any:
        raise RuntimeError("no")


@staged
async def test_an_answer_that_cannot_even_be_read_closes_the_gate() -> None:
    assert (await ask(gate(Told().as_("x", Hostile(action="continue"))))).action == "block"
    assert (await ask(gate(Told().as_("x", {"action": "continue", "args": {"x": threading.Lock()}})))).action == "block"


@staged
async def test_whoever_is_cancelled_while_asking_cancels_the_hook() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(event: Event) -> None:
        began.set()
        try:
            await hang(event)
        finally:
            cancelled.set()

    task = asyncio.get_running_loop().create_task(ask(gate(handler)))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await cancelled.wait()
    assert now_ms() == 0


@staged
async def test_hooks_that_cause_each_other_come_to_an_end() -> None:
    hooks = Hooks()
    calls = []

    async def again(_: Event) -> Any:
        calls.append(1)
        verdict = await ask(hooks)
        return {"action": str(verdict.action), "reason": verdict.reason}

    hooks.register("guard", "pre_tool_use", handler=again)
    verdict = await ask(hooks)
    assert (verdict.action, len(calls)) == ("block", DEPTH_MAX)
    assert f"{DEPTH_MAX} deep" in verdict.reason


# ---- handlers of every kind ----


class Object:
    """Something that can be called."""

    def __call__(self, _: Event) -> str:
        return "skip"


class AsyncObject:
    """Something that can be called and awaited."""

    async def __call__(self, _: Event) -> str:
        return "skip"

    async def method(self, _: Event) -> str:
        return "skip"


async def two(action: str, _: Event) -> str:
    return action


def two_in_thread(action: str, _: Event) -> str:
    return action


@pytest.mark.parametrize(
    "handler",
    [
        Object(),
        AsyncObject(),
        AsyncObject().method,
        functools.partial(two, "skip"),
        functools.partial(two_in_thread, "skip"),
        functools.partial(functools.partial(two), "skip"),
        lambda _: "skip",
        lambda event: two("skip", event),
    ],
)
@staged
async def test_whatever_can_be_called_can_be_a_handler(handler: Callable[[Event], Any]) -> None:
    assert (await ask(gate(handler))).action == "skip"


@pytest.mark.parametrize("handler", [None, "f", 7, {}])
def test_a_hook_needs_something_to_call(handler: Any) -> None:
    hooks = Hooks()
    with pytest.raises(ConfigError) as caught:
        hooks.register("h", "pre_tool_use", handler=handler)
    assert caught.value.setting == "handler"
    assert len(hooks) == 0
    assert not hooks.wants("pre_tool_use")


# ---- what they are told ----


@staged
async def test_each_hook_has_a_copy_of_its_own() -> None:
    kept: list[Any] = []

    async def spoils(event: Any) -> None:
        kept.append(event)
        event["payload"]["args"]["command"] = "rm -rf /"
        event["payload"]["tool"] = "other"
        event["event_type"] = "x"

    told = Told()
    hooks = gate(spoils)
    hooks.register("second", "pre_tool_use", handler=told.as_("second"))
    mine = {"tool": "bash", "args": {"command": "ls"}}
    assert await hooks.ask("pre_tool_use", mine) == HookVerdict()
    assert mine == {"tool": "bash", "args": {"command": "ls"}}
    assert told.events == [{"event_type": "pre_tool_use", "payload": mine}]


@staged
async def test_every_payload_has_the_labels_of_the_session() -> None:
    told = Told()
    hooks = Hooks([Hook("h", "on_error", handler=told.as_("h"))], labels={"tenant_id": "t", "principal": "ada"})
    await hooks.tell("on_error", {"error": "x", "principal": "bob"})
    assert told.events[0]["payload"] == {"tenant_id": "t", "principal": "bob", "error": "x"}


@staged
async def test_changed_arguments_are_seen_by_the_hooks_after_and_by_whoever_asks() -> None:
    told = Told()
    hooks = Hooks()
    hooks.register("a", "pre_tool_use", handler=told.as_("a", {"action": "continue", "args": {"command": "ls -l"}}))
    hooks.register("b", "pre_tool_use", {"command_pattern": "-l"}, handler=told.as_("b"))
    hooks.register("c", "pre_tool_use", {"command_pattern": "^ls$"}, handler=told.as_("c"))
    verdict = await ask(hooks)
    assert verdict == HookVerdict(arguments={"command": "ls -l"}, hook_id="a")
    assert told.names == ["a", "b"]
    assert told.events[1]["payload"]["args"] == {"command": "ls -l"}


@staged
async def test_nothing_is_said_to_have_changed_if_nothing_has() -> None:
    assert (await ask(gate(Told().as_("x")))).arguments is None


# ---- who is asked, and in which order ----


@staged
async def test_low_priorities_come_first_and_equal_ones_in_the_order_of_their_registration() -> None:
    told = Told()
    hooks = Hooks()
    for name, priority in (("a", 5), ("b", 1), ("c", 5), ("d", None), ("e", -1)):
        config = {} if priority is None else {"priority": priority}
        hooks.register(name, "pre_tool_use", None, config, told.as_(name))
    await ask(hooks)
    assert told.names == ["e", "b", "a", "c", "d"]


@pytest.mark.parametrize("action", ["block", "skip", "retry"])
@staged
async def test_the_first_that_does_not_go_on_decides_and_the_others_are_not_asked(action: str) -> None:
    told = Told()
    hooks = Hooks()
    hooks.register("a", "pre_tool_use", handler=told.as_("a"))
    hooks.register("b", "pre_tool_use", handler=told.as_("b", {"action": action, "reason": "why"}))
    hooks.register("c", "pre_tool_use", handler=told.as_("c", "block"))
    verdict = await ask(hooks)
    assert (verdict.action, verdict.reason, told.names) == (action, "why", ["a", "b"])


@pytest.mark.slow
@staged
async def test_a_thousand_hooks_are_all_asked_in_order() -> None:
    told = Told()
    hooks = Hooks()
    for number in range(1_000):
        hooks.register(str(number), "pre_tool_use", None, {"priority": -number}, told.as_(str(number)))
    assert len(hooks) == 1_000
    await ask(hooks)
    assert told.names == [str(number) for number in reversed(range(1_000))]


@staged
async def test_hooks_of_other_events_and_with_other_matchers_are_not_asked() -> None:
    told = Told()
    hooks = Hooks()
    hooks.register("a", "pre_prompt", handler=told.as_("a", "block"))
    hooks.register("b", "pre_tool_use", {"tool": "write"}, handler=told.as_("b", "block"))
    assert (await ask(hooks)).action == "continue"
    assert told.names == []


@pytest.mark.parametrize("event", [*GATES, *OBSERVERS])
def test_a_hook_is_wanted_from_its_registration_to_its_end(event: str) -> None:
    hooks = Hooks()
    assert not hooks.wants(event)
    hooks.register("h", event, handler=hang)
    assert hooks.wants(event)
    assert hooks.unregister("h")
    assert not hooks.unregister("h")
    assert not hooks.wants(event)


def test_the_same_id_again_replaces_the_hook_also_for_another_event() -> None:
    hooks = Hooks()
    hooks.register("h", "pre_tool_use", handler=hang)
    hooks.register("h", "on_error", handler=hang)
    assert (len(hooks), hooks.wants("pre_tool_use"), hooks.wants("on_error")) == (1, False, True)


def test_two_hooks_of_one_id_in_the_options_are_a_mistake_and_not_a_replacement() -> None:
    with pytest.raises(ConfigError, match="two hooks have the id 'h'"):
        Hooks([Hook("h", "on_error", handler=hang), Hook("h", "pre_tool_use", handler=hang)])


@pytest.mark.parametrize("event", SILENT)
def test_a_hook_for_what_is_never_done_is_taken_with_a_warning(event: str, caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    with caplog.at_level(logging.WARNING, "laneway"):
        hooks.register("h", event, handler=hang)
    assert len(hooks) == 1
    assert f"hook 'h' is never called: nothing here causes {event}" in caplog.text


# ---- changes while they are asked ----


@staged
async def test_a_hook_may_take_itself_away() -> None:
    hooks = Hooks()
    calls = []

    async def once(_: Event) -> None:
        calls.append(1)
        assert hooks.unregister("once")

    hooks.register("once", "pre_tool_use", handler=once)
    await ask(hooks)
    await ask(hooks)
    assert (len(calls), len(hooks)) == (1, 0)


@staged
async def test_a_hook_that_is_taken_away_by_another_is_not_asked_any_more() -> None:
    hooks = Hooks()
    told = Told()

    async def removes(_: Event) -> None:
        hooks.unregister("b")

    hooks.register("a", "pre_tool_use", handler=removes)
    hooks.register("b", "pre_tool_use", handler=told.as_("b", "block"))
    assert (await ask(hooks)).action == "continue"
    assert told.names == []


@staged
async def test_a_gate_that_is_replaced_while_others_are_asked_leaves_no_gap() -> None:
    hooks = Hooks()
    told = Told()

    async def replaces(_: Event) -> None:
        hooks.register("b", "pre_tool_use", None, {"priority": 1}, told.as_("new", "block"))

    hooks.register("a", "pre_tool_use", None, {"priority": 2}, replaces)
    hooks.register("b", "pre_tool_use", None, {"priority": 3}, told.as_("old", "block"))
    assert (await ask(hooks)).action == "block"
    assert told.names == ["new"]


@staged
async def test_what_is_registered_meanwhile_counts_from_the_next_event_on() -> None:
    hooks = Hooks()
    told = Told()

    async def adds(_: Event) -> None:
        hooks.register(f"more {len(hooks)}", "pre_tool_use", None, {"priority": 500}, told.as_("more"))

    hooks.register("a", "pre_tool_use", handler=adds)
    await ask(hooks)
    assert told.names == []
    await ask(hooks)
    assert told.names == ["more"]


@staged
async def test_a_hook_that_registers_itself_again_each_time_is_asked_once_for_each_event() -> None:
    hooks = Hooks()
    calls = []

    async def again(_: Event) -> None:
        calls.append(1)
        hooks.register("h", "pre_tool_use", None, {"priority": len(calls)}, again)

    hooks.register("h", "pre_tool_use", handler=again)
    await ask(hooks)
    await ask(hooks)
    assert len(calls) == 2


def test_hooks_may_be_registered_from_many_threads() -> None:
    hooks = Hooks()

    def register(worker: int) -> None:
        for number in range(20):
            hooks.register(f"{worker}/{number}", "pre_tool_use", handler=hang)
            if number % 2:
                hooks.unregister(f"{worker}/{number}")

    threads = [threading.Thread(target=register, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hooks) == 80
    assert len(hooks._by_event["pre_tool_use"]) == 80  # noqa: SLF001 - what would be asked


# ---- again ----


@staged
async def test_a_hook_that_fails_is_called_again_as_often_as_it_wants() -> None:
    calls = []

    async def third_time(event: Event) -> str:
        calls.append(event["payload"]["args"].pop("command"))
        if len(calls) == 1:
            raise RuntimeError("first")
        if len(calls) == 2:
            await hang(event)
        return "continue"

    assert (await ask(gate(third_time, max_retries=2, timeout_ms=100))).action == "continue"
    assert (calls, now_ms()) == (["ls"] * 3, 100)
    calls.clear()
    assert (await ask(gate(third_time, max_retries=1, timeout_ms=100))).action == "block"
    assert len(calls) == 2


@staged
async def test_nonsense_is_not_asked_for_again() -> None:
    told = Told()
    assert (await ask(gate(told.as_("x", "perhaps"), max_retries=5))).action == "block"
    assert told.names == ["x"]


@staged
async def test_what_is_put_off_is_asked_again_after_the_delay_but_not_for_ever() -> None:
    told = Told()
    hooks = gate(told.as_("x", {"action": "retry", "delay_ms": 20}))
    verdict = await hooks.decide("pre_tool_use", CALL, wait=passing)
    assert (verdict.action, len(told.names), now_ms()) == ("block", PUT_OFF_MAX, PUT_OFF_MAX * 20)
    assert f"put it off {PUT_OFF_MAX} times" in verdict.reason


@staged
async def test_what_was_put_off_goes_on_as_soon_as_the_hook_says_so() -> None:
    answers = ["retry", "retry", "continue"]
    verdict = await gate(lambda _: answers.pop(0)).decide("pre_tool_use", CALL, wait=passing)
    assert (verdict.action, answers) == ("continue", [])
    assert 2_000 <= now_ms() < 2_100


# ---- observers ----


@pytest.mark.parametrize("event", OBSERVERS)
@staged
async def test_an_observer_that_fails_or_objects_stops_nobody(event: str) -> None:
    told, events = Told(), list[AgentEvent]()
    hooks = Hooks(on_event=events.append)
    hooks.register("a", event, handler=raise_on_loop)
    hooks.register("b", event, None, {"timeout_ms": 50}, hang)
    hooks.register("c", event, handler=told.as_("c", {"action": "block"}))
    hooks.register("d", event, handler=told.as_("d", object()))
    await hooks.tell(event, {"session_id": "s"})
    assert (told.names, now_ms()) == (["c", "d"], 50)
    assert [(each.hook_id, each.blocked) for each in events] == [("a", False), ("b", False)]


@staged
async def test_observers_are_told_one_after_the_other_and_waited_for() -> None:
    order: list[str] = []

    def slow(name: str, ms: int) -> Callable[[Event], Any]:
        async def handler(_: Event) -> None:
            await passing(ms)
            order.append(name)

        return handler

    hooks = Hooks()
    hooks.register("a", "generate_end", handler=slow("a", 30))
    hooks.register("b", "generate_end", handler=slow("b", 10))
    await hooks.tell("generate_end", {})
    assert (order, now_ms()) == (["a", "b"], 40)


@staged
async def test_an_observer_with_async_execution_is_not_waited_for_and_has_what_was_so_when_it_happened() -> None:
    seen: list[Any] = []

    async def slow(event: Event) -> None:
        await passing(30)
        seen.append(event["payload"]["result"]["output"])

    hooks = Hooks()
    hooks.register("h", "post_tool_use", None, {"async_execution": True}, slow)
    payload = {"session_id": "s", "result": {"output": "then"}}
    await hooks.tell("post_tool_use", payload)
    assert (seen, now_ms()) == ([], 0)
    payload["result"]["output"] = "later"  # type: ignore[index]
    await hooks.wait_told("another session")
    assert now_ms() == 0
    await hooks.wait_told("s")
    assert (seen, now_ms()) == (["then"], 30)


@pytest.mark.slow
@staged
async def test_observers_that_nobody_waits_for_have_a_bound() -> None:
    events: list[AgentEvent] = []
    hooks = Hooks(on_event=events.append)
    hooks.register("h", "post_tool_use", None, {"async_execution": True, "timeout_ms": 10}, hang)
    for _ in range(LATER_MAX + 3):
        await hooks.tell("post_tool_use", {"session_id": "s"})
    assert [event.error for event in events] == [f"{LATER_MAX:,} calls of hooks are under way already"] * 3
    await hooks.wait_told("s")
    assert (now_ms(), len(events)) == (10, LATER_MAX + 3)


@staged
async def test_a_caller_who_is_cancelled_while_telling_is_cancelled() -> None:
    hooks = Hooks()
    hooks.register("h", "generate_end", handler=hang)
    task = asyncio.get_running_loop().create_task(hooks.tell("generate_end", {}))
    await passing()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now_ms() < 100
