"""Hooks of sessions: which calls, prompts and answers they stop or change, what they are told, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from laneway.errors import ModelLimitedError, PermissionDeniedError, RunCancelledError, RunFailedError, UsageError
from laneway.kernel.hooks import EVENTS, SILENT
from laneway.models import ScriptedModel, call, fail, say
from laneway.options import Hook, PermissionPolicy, SessionOptions
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.tools import tool
from tests.agent_stage import (
    QUEUES,
    Bench,
    Held,
    Watch,
    agent_of,
    check_events,
    check_model,
    final_of,
    opened,
    post,
    prompts,
    results,
    sending,
    session_of,
    statuses,
    use,
)
from tests.inbox_stage import staged
from tests.stage import now_ms, passing

Event = Mapping[str, Any]
Handler = Callable[[Event], Any]


def answering(answer: Any) -> Handler:
    async def handler(_: Event) -> Any:
        return answer

    return handler


async def hang(_: Event) -> None:
    await asyncio.get_running_loop().create_future()


async def raises(_: Event) -> None:
    raise RuntimeError("boom")


def guard(handler: Handler, event_type: str = "pre_tool_use", **more: Any) -> list[Hook]:
    return [Hook("guard", event_type, handler=handler, **more)]


class Diary:
    """Writes down every event of a session."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def hooks(self, *events: str) -> list[Hook]:
        """A hook for each of these events, or for all there are."""
        wanted = events or tuple(event for event in EVENTS if event not in SILENT)
        return [Hook(f"diary {event}", event, handler=self.note) for event in wanted]

    async def note(self, event: Event) -> None:
        """One more."""
        self.events.append((event["event_type"], event["payload"]))

    @property
    def types(self) -> list[str]:
        """What has happened, in order."""
        return [name for name, _ in self.events]

    def of(self, name: str) -> list[Any]:
        """The payloads of one event."""
        return [payload for each, payload in self.events if each == name]


# ---- calls ----


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (answering({"action": "block", "reason": "not on Fridays"}), "[Denied: not on Fridays]"),
        (raises, "[Denied: the hook 'guard' failed: RuntimeError: boom]"),
        (hang, "[Denied: the hook 'guard' failed: it took longer than 5000 ms]"),
        (answering("perhaps"), "[Denied: the hook 'guard' failed: it answered 'perhaps', which is none of"),
        (answering({"action": "skip", "reason": "done before"}), "[Skipped: done before]"),
        (answering({"action": "retry", "delay_ms": 5}), "[Denied: a hook has put it off 10 times]"),
    ],
)
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_call_that_a_hook_stops_is_never_made_and_the_model_is_told(
    handler: Handler, said: str, queue: bool
) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a", "b"), [say("well")]])
    async with opened(model, bench, queue=queue, hooks=guard(handler)) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "well"
        await watch.task
        assert await session.ledger() == []
    assert bench.began == []
    assert [each.output.startswith(said) for each in results(model.requests[1])] == [True, True]
    check_model(model)
    check_events(watch.events)
    assert [event.gate for event in watch.of("permission_denied")] == (["hook"] * 2 if "Denied" in said else [])
    assert len(watch.of("hook_failed")) == (2 if "failed" in said else 0)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_hook_stops_only_what_it_is_for(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([[*use("act", "a"), *use("look", "b"), *use("put", "c")], [say("well")]])
    hooks = [
        Hook("one", "pre_tool_use", {"tool": "a*"}, None, answering("block")),
        Hook("two", "pre_tool_use", {"tool": "put", "session_id": "another"}, None, answering("block")),
    ]
    async with opened(model, bench, queue=queue, hooks=hooks) as session:
        await session.send("go")
    assert statuses(model.requests[1]) == [("a", "denied"), ("b", "ok"), ("c", "ok")]
    assert bench.began == ["b", "c"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_changed_arguments_are_what_is_done_and_written_down(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("well")]])
    hooks = guard(answering({"action": "continue", "modified": {"key": "safe"}}))
    async with opened(model, bench, queue=queue, hooks=hooks) as session:
        watch = Watch(stream := session.stream("go"))
        await stream.result()
        [entry] = await session.ledger()
        assert entry.arguments == '{"key":"safe"}'
        await watch.task
    assert bench.ended == ["safe"]
    assert results(model.requests[1])[0].output == "result of safe"
    assert [event.args for event in watch.of("tool_start")] == [{"key": "safe"}]


@pytest.mark.parametrize(
    "arguments", [{"key": [1]}, {}, {"wrong": "x"}, {"key": "x", "more": 1}, {"key": {1, 2}}, {"key": float("nan")}]
)
@staged
async def test_changed_arguments_that_do_not_fit_the_tool_are_refused(arguments: dict[str, Any]) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("well")]])
    hooks = guard(answering({"action": "continue", "args": arguments}))
    async with opened(model, bench, hooks=hooks) as session:
        await session.send("go")
    assert bench.began == []
    [result] = results(model.requests[1])
    assert result.status == "denied"
    assert "the hook 'guard' has changed the arguments (what it gives stands for all of them)" in result.output


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_changed_arguments_that_the_permissions_deny_are_denied(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "good"), [say("well")]])
    policy = PermissionPolicy(allow=["*"], deny=['act(*"evil"*)'])
    hooks = guard(answering({"action": "continue", "args": {"key": "evil"}}))
    async with opened(model, bench, queue=queue, hooks=hooks, permission_policy=policy) as session:
        await session.send("go")
    assert bench.began == []
    assert statuses(model.requests[1]) == [("good", "denied")]


@staged
async def test_a_hook_that_goes_on_allows_nothing_that_the_permissions_deny() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("well")]])
    policy = PermissionPolicy(deny=["act"], default_decision="allow")
    async with opened(model, bench, hooks=guard(answering("continue")), permission_policy=policy) as session:
        await session.send("go")
    assert bench.began == []


@staged
async def test_what_a_hook_keeps_of_the_arguments_is_not_what_is_done() -> None:
    bench = Bench()

    async def spoils(event: Any) -> None:
        event["payload"]["args"]["key"] = "spoiled"

    async with opened(ScriptedModel([use("act", "a"), [say("well")]]), bench, hooks=guard(spoils)) as session:
        await session.send("go")
    assert bench.ended == ["a"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_calls_of_the_host_pass_the_hooks_too(queue: bool) -> None:
    bench, diary = Bench(), Diary()
    async with opened(ScriptedModel([]), bench, queue=queue, hooks=diary.hooks("pre_tool_use")) as session:
        await session.tool("act", {"key": "a"})
        session.register_hook("guard", "pre_tool_use", {"tool": "act"}, None, answering("block"))
        with pytest.raises(PermissionDeniedError, match="the hook 'guard' blocks it"):
            await session.tool("act", {"key": "b"})
        assert session.unregister_hook("guard")
        changes = answering({"action": "continue", "args": {"key": "d"}})
        session.register_hook("change", "pre_tool_use", None, None, changes)
        await session.tool("act", {"key": "c"})
    assert bench.ended == ["a", "d"]
    assert [(each["by"], each["run_id"], each["args"]) for each in diary.of("pre_tool_use")] == [
        ("host", "", {"key": key}) for key in "abc"
    ]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_run_that_is_cancelled_while_a_hook_is_asked_ends_at_once_and_makes_no_call(queue: bool) -> None:
    bench, asked, ended = Bench(), asyncio.Event(), asyncio.Event()

    async def waits(event: Event) -> None:
        asked.set()
        try:
            await hang(event)
        finally:
            ended.set()

    model = ScriptedModel([use("act", "a"), [say("next")]])
    async with opened(model, bench, queue=queue, hooks=guard(waits)) as session:
        running = sending(session, "go")
        await asked.wait()
        began = now_ms()
        assert await session.cancel("enough")
        with pytest.raises(RunCancelledError):
            await running
        await ended.wait()
        assert now_ms() - began < 50
        session.unregister_hook("guard")
        assert (await session.send("again")).text == "next"
    assert bench.began == []
    check_model(model)


@staged
async def test_a_hook_that_would_wait_for_its_own_session_is_refused_and_the_gate_stays_closed() -> None:
    bench, errors = Bench(), list[Exception]()

    async def sends(_: Event) -> None:
        for wait in (session.send("inside"), session.close(), session.compact()):
            try:
                await wait
            except UsageError as error:
                errors.append(error)
        await session.send("inside")

    model = ScriptedModel([use("act", "a"), [say("well")]])
    async with opened(model, bench, hooks=guard(sends), tenant_id="t") as session:
        await session.send("go")
        assert now_ms() < 100
        assert len(errors) == 3
    assert bench.began == []
    assert "waits for that session" in results(model.requests[1])[0].output


@staged
async def test_a_hook_may_say_something_to_its_session_without_waiting() -> None:
    bench = Bench()

    async def follows_up(event: Event) -> None:
        await session.followup(f"look at {event['payload']['args']['key']}")

    model = ScriptedModel([use("act", "a"), [say("well")], [say("looked")]])
    async with opened(model, bench, hooks=guard(follows_up)) as session:
        assert (await session.send("go")).text == "well"
        await session.wait_idle()
    assert prompts(model.requests[-1]) == ["go", "look at a"]


@staged
async def test_a_hook_that_calls_a_tool_of_its_session_comes_to_an_end() -> None:
    bench = Bench()

    async def calls(event: Event) -> None:
        await session.tool("look", {"key": "inside"})

    model = ScriptedModel([use("act", "a"), [say("well")]])
    async with opened(model, bench, hooks=guard(calls)) as session:
        await session.send("go")
    assert statuses(model.requests[1]) == [("a", "denied")]
    assert bench.began == []


async def test_a_session_does_not_wait_for_the_thread_of_a_hook_that_hangs() -> None:
    let_go, bench = threading.Event(), Bench()

    def hangs(_: Event) -> None:
        let_go.wait(60)

    model = ScriptedModel([use("act", "a"), [say("well")]])
    async with opened(model, bench, hooks=guard(hangs, config={"timeout_ms": 5})) as session:
        assert (await session.send("go")).text == "well"
    assert not let_go.is_set()
    let_go.set()
    assert bench.began == []
    assert "it took longer than 5 ms" in results(model.requests[1])[0].output


# ---- order and payloads ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_hooks_are_called_in_the_order_in_which_things_happen(queue: bool) -> None:
    diary = Diary()
    model = ScriptedModel([use("look", "a", "b"), use("act", "c"), [say("done")]])
    async with opened(model, Bench(), queue=queue, hooks=diary.hooks()) as session:
        await session.send("go")
    model_call, calls = ["generate_start", "generate_end"], ["pre_tool_use", "post_tool_use"]
    together = ["pre_tool_use", "pre_tool_use", "post_tool_use", "post_tool_use"]  # without lanes one after the other
    assert diary.types == [
        *("session_start", "pre_prompt"),
        *(*model_call, *(together if queue else [*calls, *calls])),
        *(*model_call, *calls),
        *(*model_call, "post_response", "on_success"),
        "session_end",
    ]


@staged
async def test_the_next_model_call_waits_for_slow_observers_of_the_calls_before() -> None:
    order: list[str] = []

    async def slow(_: Event) -> None:
        await passing(100)
        order.append("told")

    async def answer(_: Any) -> list[Any]:
        order.append("asked")
        return [say("done")]

    model = ScriptedModel([use("look", "a"), answer])
    async with opened(model, Bench(), hooks=guard(slow, "post_tool_use")) as session:
        await session.send("go")
    assert order == ["told", "asked"]


LABELS: dict[str, Any] = {"tenant_id": "t", "principal": "ada", "agent_template_id": "helper", "correlation_id": "c-1"}


@staged
async def test_payloads_say_what_they_are_about() -> None:
    diary = Diary()
    model = ScriptedModel([use("act", "a"), [say("done")]], name="house/small")
    async with opened(model, Bench(), hooks=diary.hooks(), system="be brief", session_id="s", **LABELS) as session:
        result = await session.send("go")
        workspace = session.workspace
    for _, payload in diary.events:
        assert payload.items() >= {"session_id": "s", **LABELS}.items()
    assert all(payload["run_id"] == result.run_id for name, payload in diary.events if not name.startswith("session"))
    model_of = {"model_provider": "house", "model_name": "small"}
    [start] = diary.of("session_start")
    assert start.items() >= {**model_of, "working_directory": workspace}.items()
    assert start["available_tools"] == ["look", "check", "act", "put", "nail"]
    [prompt] = diary.of("pre_prompt")
    assert (prompt["prompt"], prompt["message_ids"]) == ("go", [result.message_id])
    first = diary.of("generate_start")[0]
    assert first.items() >= {**model_of, "prompt": "go", "system_prompt": "be brief", "purpose": "answer"}.items()
    assert "act" in first["available_tools"]
    answer = diary.of("generate_end")[0]
    assert answer["tool_calls"] == [{"tool_id": "a", "tool": "act", "args": {"key": "a"}}]
    assert answer["usage"]["total_tokens"] > 0
    [before], [after] = diary.of("pre_tool_use"), diary.of("post_tool_use")
    assert before.items() <= {**after, "recent_tools": before["recent_tools"]}.items()
    assert before["args"] == {"key": "a"}
    assert after["result"].items() >= {"success": True, "output": "result of a", "status": "ok"}.items()
    assert diary.of("generate_end")[1]["response_text"] == "done"
    for name in ("post_response", "on_success"):
        [end] = diary.of(name)
        assert (end["prompt"], end["response_text"], end["tool_calls_count"]) == ("go", "done", 1)


@staged
async def test_a_hook_knows_the_last_ten_tools_of_the_run_the_newest_last() -> None:
    diary = Diary()
    looks = use("look", *map(str, range(9)))
    model = ScriptedModel([looks, use("check", "x"), use("put", "y"), use("act", "z"), [say("!")]])
    async with opened(model, Bench(), queue=True, hooks=diary.hooks("pre_tool_use")) as session:
        await session.send("go")
    before = [payload["recent_tools"] for payload in diary.of("pre_tool_use")][8:]
    assert before == [[], ["look"] * 9, [*["look"] * 9, "check"], [*["look"] * 8, "check", "put"]]


@staged
async def test_what_a_tool_answers_is_told_also_when_it_fails_but_not_of_calls_that_were_not_made() -> None:
    diary = Diary()

    @tool(effect="read")
    async def broken() -> str:
        """Fail."""
        raise RuntimeError("boom")

    model = ScriptedModel([[call("broken"), call("missing"), call("denied")], [say("done")]])
    box = [broken, Bench().tool("denied", effect="write")]
    policy = PermissionPolicy(allow=["*"], deny=["denied"])
    async with opened(model, box, hooks=diary.hooks("post_tool_use"), permission_policy=policy) as session:
        await session.send("go")
    [told] = diary.of("post_tool_use")
    assert (told["tool"], told["result"]["success"], told["result"]["status"]) == ("broken", False, "error")
    assert "boom" in told["result"]["output"]


@staged
async def test_a_provider_that_takes_no_calls_for_a_while_is_told() -> None:
    diary = Diary()
    limited = fail(ModelLimitedError("slow down", model="m", retry_after_ms=700))
    async with opened(ScriptedModel([[limited], [say("done")]]), hooks=diary.hooks("on_rate_limit")) as session:
        await session.send("go")
    [told] = diary.of("on_rate_limit")
    assert (told["retry_after_ms"], "slow down" in told["error"]) == (700, True)
    assert told["until_ms"] > 0


# ---- prompts ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_blocked_prompt_fails_its_run_and_is_not_part_of_the_conversation(queue: bool) -> None:
    async def no_secrets(event: Event) -> Any:
        return {"action": "block", "reason": "a secret"} if "secret" in event["payload"]["prompt"] else None

    model = ScriptedModel([[say("one")], [say("two")]])
    async with opened(model, queue=queue, hooks=guard(no_secrets, "pre_prompt")) as session:
        await session.send("hello")
        with pytest.raises(RunFailedError, match="a hook blocks the prompt: a secret"):
            await session.send("my secret")
        assert (await session.send("again")).text == "two"
    assert prompts(model.requests[-1]) == ["hello", "again"]
    check_model(model)


@pytest.mark.parametrize("handler", [raises, hang, answering(True), answering({"action": "continue", "args": {}})])
@staged
async def test_a_prompt_is_not_heard_when_its_hook_fails(handler: Handler) -> None:
    model = ScriptedModel([[say("one")]])
    async with opened(model, hooks=guard(handler, "pre_prompt")) as session:
        with pytest.raises(RunFailedError, match="the hook 'guard' failed"):
            await session.send("hello")
        session.unregister_hook("guard")
        assert (await session.send("again")).text == "one"
    assert prompts(model.requests[0]) == ["again"]


@staged
async def test_a_changed_prompt_is_what_the_model_hears_then_and_after_a_restart() -> None:
    async def redacts(event: Event) -> Any:
        return {"action": "continue", "modified": {"prompt": event["payload"]["prompt"].replace("4711", "****")}}

    disk = MemoryDisk()
    first, second = ScriptedModel([[say("one")]]), ScriptedModel([[say("two")]])
    hooks = guard(redacts, "pre_prompt")
    async with agent_of(first, session_store=MemoryStore(disk), hooks=hooks) as agent:
        await session_of(agent, session_id="s").send("my code is 4711")
    async with agent_of(second, session_store=MemoryStore(disk), hooks=hooks) as agent:
        await session_of(agent, session_id="s").send("what is 4711?")
    assert prompts(first.requests[0]) == ["my code is ****"]
    assert prompts(second.requests[0]) == ["my code is ****", "what is ****?"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_what_is_steered_in_passes_the_same_gate(queue: bool) -> None:
    async def no_secrets(event: Event) -> Any:
        text = event["payload"]["prompt"]
        if "secret" in text:
            return {"action": "block", "reason": "a secret"}
        return {"action": "continue", "modified": {"prompt": text.upper()}}

    bench = Bench("a")
    model = ScriptedModel([use("look", "a"), [say("done")]])
    async with opened(model, bench, queue=queue, hooks=guard(no_secrets, "pre_prompt")) as session:
        running = sending(session, "go")
        await bench.begun("a").wait()
        await session.steer("my secret")
        steered = await session.steer("be quick")
        bench.let_go()
        assert (await running).text == "done"
        assert (await final_of(session, steered)).answer is not None
    assert prompts(model.requests[-1]) == ["GO", "[A message was withheld: a secret]", "BE QUICK"]
    check_model(model)


@staged
async def test_a_run_that_is_cancelled_while_a_steered_message_is_looked_at_does_not_let_it_through() -> None:
    asked = asyncio.Event()

    async def waits(event: Event) -> None:
        if "secret" in event["payload"]["prompt"]:
            asked.set()
            await hang(event)

    bench = Bench("a")
    model = ScriptedModel([use("look", "a"), [say("next")]])
    async with opened(model, bench, hooks=guard(waits, "pre_prompt")) as session:
        running = sending(session, "go")
        await bench.begun("a").wait()
        await session.steer("my secret")
        bench.let_go()
        await asked.wait()
        await session.cancel()
        with pytest.raises(RunCancelledError):
            await running
        await session.send("again")
    assert not any("my secret" in text for text in prompts(model.requests[-1]))
    check_model(model)


# ---- the model ----


@pytest.mark.parametrize("handler", [answering({"action": "block", "reason": "no budget"}), raises, answering(0)])
@staged
async def test_a_blocked_model_call_fails_the_run_and_the_session_lives_on(handler: Handler) -> None:
    model = ScriptedModel([[say("one")]])
    diary = Diary()
    hooks = [*guard(handler, "generate_start"), *diary.hooks("on_error", "generate_end")]
    async with opened(model, hooks=hooks) as session:
        with pytest.raises(RunFailedError, match="a hook blocks the call of the model: "):
            await session.send("hello")
        assert model.requests == []
        session.unregister_hook("guard")
        assert (await session.send("again")).text == "one"
    assert prompts(model.requests[0]) == ["hello", "again"]
    assert diary.types == ["on_error", "generate_end"]


@staged
async def test_a_model_call_in_the_middle_can_be_blocked_too() -> None:
    calls = []

    async def second(_: Event) -> Any:
        calls.append(1)
        return "block" if len(calls) == 2 else None

    model = ScriptedModel([use("look", "a"), [say("later")]])
    async with opened(model, Bench(), hooks=guard(second, "generate_start")) as session:
        with pytest.raises(RunFailedError, match="the hook 'guard' blocks it"):
            await session.send("hello")
        assert (await session.send("again")).text == "later"
    check_model(model)


@staged
async def test_a_model_call_that_is_put_off_is_made_later() -> None:
    answers: list[Any] = [{"action": "retry", "delay_ms": 300}, None]

    async def later(_: Event) -> Any:
        return answers.pop(0)

    async with opened(ScriptedModel([[say("one")]]), hooks=guard(later, "generate_start")) as session:
        assert (await session.send("hello")).text == "one"
        assert now_ms() >= 300


# ---- ends ----


@staged
async def test_a_run_that_fails_is_told_once_and_one_that_is_cancelled_is_neither_a_success_nor_an_error() -> None:
    diary, held = Diary(), Held(say("never"))
    model = ScriptedModel([[fail(RunFailedError("broken", run_id="r"))], held, [say("fine")]])
    async with opened(model, hooks=diary.hooks("on_error", "on_success", "post_response")) as session:
        with pytest.raises(RunFailedError):
            await session.send("one")
        [told] = diary.of("on_error")
        assert (told["error"], told["error_kind"], told["prompt"]) == ("broken", "run_failed", "one")
        running = sending(session, "two")
        await held.asked.wait()
        await session.cancel()
        with pytest.raises(RunCancelledError):
            await running
        await session.send("three")
    assert diary.types == ["on_error", "post_response", "on_success"]


@staged
async def test_observers_that_fail_at_the_end_do_not_spoil_the_answer() -> None:
    hooks = [Hook(event, event, handler=raises) for event in ("post_response", "on_success", "generate_end")]
    async with opened(ScriptedModel([[say("fine")]]), hooks=hooks) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "fine"
        await watch.task
    assert [event.hook_id for event in watch.of("hook_failed")] == ["generate_end", "post_response", "on_success"]


@staged
async def test_a_run_that_is_cancelled_while_its_end_is_told_is_cancelled_and_leaves_a_good_conversation() -> None:
    told = asyncio.Event()

    async def waits(event: Event) -> None:
        told.set()
        await hang(event)

    model = ScriptedModel([[say("one")], [say("two")]])
    async with opened(model, hooks=guard(waits, "post_response")) as session:
        running = sending(session, "go")
        await told.wait()
        await session.cancel()
        with pytest.raises(RunCancelledError):
            await running
        session.unregister_hook("guard")
        assert (await session.send("again")).text == "two"
    check_model(model)


@staged
async def test_a_message_that_comes_while_the_end_is_told_gets_its_answer() -> None:
    told, go_on = asyncio.Event(), asyncio.Event()

    async def waits(_: Event) -> None:
        told.set()
        await go_on.wait()

    model = ScriptedModel([[say("one")], [say("two")]])
    async with opened(model, hooks=guard(waits, "post_response")) as session:
        running = sending(session, "go")
        await told.wait()
        late = await post(session, "more", "steer")
        go_on.set()
        assert (await running).text == "one"
        assert (await final_of(session, late)).answer == "two"


# ---- sessions ----


@staged
async def test_a_session_that_opens_waits_for_its_observers_but_not_longer_than_their_time() -> None:
    order: list[str] = []

    async def slow(event: Event) -> None:
        order.append(event["event_type"])
        await passing(30)
        order.append("ready")

    async def answer(_: Any) -> list[Any]:
        order.append("asked")
        return [say("done")]

    hooks = [*guard(slow, "session_start"), Hook("hangs", "session_start", None, {"timeout_ms": 40}, hang)]
    async with opened(ScriptedModel([answer]), hooks=hooks) as session:
        await session.send("go")
        assert now_ms() == 70
    assert order == ["session_start", "ready", "asked"]


@pytest.mark.parametrize("handler", [hang, raises])
@staged
async def test_a_session_closes_whatever_its_observers_do(handler: Handler) -> None:
    async with opened(ScriptedModel([]), hooks=guard(handler, "session_end", config={"timeout_ms": 40})) as session:
        await session.ready()
        await session.close()
        assert now_ms() <= 40


@staged
async def test_a_session_that_closes_waits_for_observers_that_nobody_has_waited_for() -> None:
    written: list[str] = []

    async def audit(event: Event) -> None:
        await passing(50)
        written.append(event["payload"]["response_text"])

    hooks = guard(audit, "post_response", config={"async_execution": True})
    async with opened(ScriptedModel([[say("done")]]), hooks=hooks) as session:
        await session.send("go")
        assert written == []
    assert written == ["done"]


@staged
async def test_a_hook_of_session_start_cannot_wait_for_the_session_that_waits_for_it() -> None:
    errors: list[str] = []

    async def sends(_: Event) -> None:
        try:
            await session.send("first")
        except UsageError as error:
            errors.append(str(error))

    async with opened(ScriptedModel([[say("done")]]), hooks=guard(sends, "session_start")) as session:
        assert (await session.send("go")).text == "done"
        assert now_ms() < 100
    assert len(errors) == 1


@staged
async def test_hooks_come_and_go_while_a_session_is_in_use() -> None:
    bench, model = Bench(), ScriptedModel([use("act", "a"), [say("x")], use("act", "b"), [say("y")]])
    async with opened(model, bench) as session:
        assert session.hook_count() == 0
        session.register_hook("guard", "pre_tool_use", handler=answering("block"))
        session.register_hook("guard", "pre_tool_use", handler=answering("block"))
        assert session.hook_count() == 1
        await session.send("one")
        assert session.unregister_hook("guard")
        assert not session.unregister_hook("guard")
        await session.send("two")
    assert bench.began == ["b"]


@staged
async def test_the_hooks_of_one_session_are_not_those_of_another() -> None:
    bench, diary = Bench(), Diary()
    model = ScriptedModel([use("act", "a"), [say("x")]])
    async with agent_of(model, bench) as agent:
        first, second = session_of(agent), session_of(agent)
        first.register_hook("diary", "pre_tool_use", handler=diary.note)
        await second.send("go")
    assert (bench.began, diary.events) == (["a"], [])


def test_hooks_of_an_agent_hold_for_its_sessions_and_bad_ones_are_refused_where_they_are_given() -> None:
    hooks = [{"hook_id": "h", "event_type": "pre_tool_use", "handler": hang}]
    assert SessionOptions(hooks=hooks).hooks == (Hook("h", "pre_tool_use", handler=hang),)


@staged
async def test_a_bad_hook_in_the_options_fails_the_session_at_once() -> None:
    async with agent_of(ScriptedModel([])) as agent:
        with pytest.raises(UsageError, match="event_type cannot be 'pre_tool'"):
            session_of(agent, hooks=[Hook("h", "pre_tool", handler=hang)])


# ---- going on ----


@pytest.mark.parametrize("name", ["look", "act"])
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_run_that_goes_on_passes_the_gates_again_for_what_is_open_but_not_for_what_was_heard(
    queue: bool, name: str
) -> None:
    disk, bench = MemoryDisk(), Bench("b")
    first = ScriptedModel([[*use(name, "a"), *use("look", "b"), *use(name, "c")]])
    async with agent_of(first, bench, session_store=MemoryStore(disk)) as agent:
        session = session_of(agent, queue=queue, session_id="s")
        running = sending(session, "go")
        await bench.begun("b").wait()
        await session.close()
        await asyncio.wait([running])
    before, diary = list(bench.ended), Diary()
    second = ScriptedModel([[say("done")]])
    hooks = [*diary.hooks("pre_prompt"), *guard(answering("block"))]
    async with agent_of(second, bench, session_store=MemoryStore(disk), hooks=hooks) as agent:
        await session_of(agent, queue=queue, session_id="s").wait_idle()
    assert bench.ended == before
    assert diary.events == []
    told = dict(statuses(second.requests[0]))
    assert {told[key] for key in "abc" if key not in before} == {"denied"}
    assert {told[key] for key in before} <= {"ok"}
