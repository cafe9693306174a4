"""Models, tools and stores that misbehave: a clear error, the last good state intact, and a session that lives on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.agent.results import RunResult
from laneway.agent.session import AsyncSession
from laneway.dialogue import Answer, Chunk, ModelRequest, ResultStatus, TextChunk, ToolCall
from laneway.errors import (
    LanewayError,
    ModelError,
    ModelUnavailableError,
    RunCancelledError,
    RunFailedError,
    StoreUnavailableError,
)
from laneway.models import ScriptedModel, call, cut, fail, say
from laneway.models.scripted import Call, Piece
from laneway.options import PermissionPolicy
from laneway.rows import BatchResult
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from laneway.tools import tool
from tests.agent_stage import (
    QUEUES,
    Bench,
    Held,
    Watch,
    agent_of,
    check_events,
    check_model,
    one,
    opened,
    results,
    sending,
    session_of,
    shape,
    statuses,
    use,
)
from tests.inbox_stage import staged
from tests.stage import now_ms, passing


async def answers(session: AsyncSession, model: ScriptedModel) -> None:
    """Fail unless the session still works, and the model is sent a good conversation."""
    result = await session.send("are you there?")
    assert result.text in ("here", "done")
    check_model(model)


# ---- calls that cannot be made ----


BAD_CALLS: dict[str, tuple[Call, str]] = {
    "unknown tool": (call("deploy", key="x"), "there is no tool 'deploy'; there are: look, check, act, put, nail"),
    "tool without a name": (call("", key="x"), "there is no tool ''"),
    "tool with an odd name": (call("a\nb\x00", key="x"), "there is no tool"),
    "half of an object": (call("act", '{"key":'), "Not run"),
    "no JSON": (call("act", "key=x"), "Not run"),
    "nothing": (call("act", ""), "Not run"),
    "a list": (call("act", '["x"]'), "Not run"),
    "null": (call("act", "null"), "Not run"),
    "another type": (call("act", '{"key": {"a": 1}}'), "key"),
    "a missing argument": (call("act", "{}"), "key"),
    "an unknown argument": (call("act", '{"key": "x", "kye": "x"}'), "kye"),
    "not a number": (call("act", '{"key": NaN}'), "Not run"),
    "very deep": (call("act", "[" * 3_000), "Not run"),
}


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("what", BAD_CALLS)
@staged
async def test_a_call_that_cannot_be_made_is_told_to_the_model_and_its_neighbours_run(what: str, queue: bool) -> None:
    bad, text = BAD_CALLS[what]
    bench = Bench()
    model = ScriptedModel([[one("act", "a"), bad.with_id("bad"), one("act", "b")], [say("sorry")], [say("here")]])
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "sorry"
        await watch.task
        await answers(session, model)
        assert [entry.call_id for entry in await session.ledger()] == ["a", "b"]
    assert bench.ended == ["a", "b"]
    assert statuses(model.requests[1]) == [("a", "ok"), ("bad", "error"), ("b", "ok")]
    assert text in results(model.requests[1])[1].output
    check_events(watch.events)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (PermissionPolicy(allow=("*",), deny=("act",)), "act"),
        (PermissionPolicy(allow=("look",), default_decision="deny"), ""),
        (PermissionPolicy(allow=("look",), ask=("act",)), "nobody is there to ask"),
        (None, "nobody is there to ask"),
    ],
)
@staged
async def test_a_denied_call_is_never_queued_and_the_model_is_told_why(
    policy: PermissionPolicy | None, reason: str, queue: bool
) -> None:
    bench = Bench()
    model = ScriptedModel([[one("look", "l"), one("act", "a")], [say("a pity")], [say("here")]])
    async with agent_of(model, bench, permission_policy=policy) as agent:
        session = session_of(agent, queue=queue)
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "a pity"
        await watch.task
        await answers(session, model)
        assert await session.ledger() == []
    assert bench.began == ["l"]
    assert statuses(model.requests[1]) == [("l", "ok"), ("a", "denied")]
    assert results(model.requests[1])[1].output.startswith("[Denied: ")
    assert reason in results(model.requests[1])[1].output
    assert [event.tool_id for event in watch.of("permission_denied")] == ["a"]
    assert [event.tool_id for event in watch.of("tool_queued")] == ["l"]
    check_events(watch.events)


@pytest.mark.parametrize("queue", QUEUES)
async def test_of_a_thousand_calls_in_one_answer_sixty_four_run_and_all_have_a_result(queue: bool) -> None:
    bench = Bench()
    keys = [f"k{number}" for number in range(1_000)]
    model = ScriptedModel([use("look", *keys), [say("enough")], [say("here")]], chunk_size=1_000)
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "enough"
        await watch.task
        await answers(session, model)
    assert sorted(bench.ended) == sorted(keys[:64])
    assert [each.status for each in results(model.requests[1])] == [ResultStatus.OK] * 64 + [ResultStatus.ERROR] * 936
    assert "1,000 calls in one answer, at most 64 are run" in results(model.requests[1])[-1].output
    check_events(watch.events)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("ids", [("a", "a", "a"), ("", "", ""), ("a", "", "a+"), ("x" * 10_000, "y", "y")])
@staged
async def test_calls_with_the_same_id_or_none_are_told_apart_and_each_has_its_own_result(
    ids: tuple[str, ...], queue: bool
) -> None:
    bench = Bench()
    keys = ("k1", "k2", "k3")
    calls = tuple(
        ToolCall(id=name, name="act", arguments=f'{{"key":"{key}"}}') for name, key in zip(ids, keys, strict=True)
    )
    model = Odd([Answer(calls=calls), Answer(text="fine"), Answer(text="here")])
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "fine"
        await watch.task
        await session.send("are you there?")
    assert bench.ended == list(keys)
    told = results(model.requests[1])
    assert [each.output for each in told] == [f"result of {key}" for key in keys]
    assert len({each.call_id for each in told}) == 3
    check_model(model)
    check_events(watch.events)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_the_same_id_in_every_round_keeps_the_rounds_apart(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([[one("act", "a")], [one("act", "a")], [one("act", "a")], [say("thrice")]])
    async with opened(model, bench, queue=queue) as session:
        assert (await session.send("go")).text == "thrice"
        assert (await session.send("again")).text == "done"
        assert len(await session.ledger()) == 3
    assert bench.ended == ["a", "a", "a"]
    check_model(model)


# ---- answers that are none ----


class Odd:
    """A model that streams what it is given: answers, other chunks, errors, or nothing."""

    name = "odd"
    context_tokens = None

    def __init__(self, script: list[Any]) -> None:
        self.script = script
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The next answer."""
        self.requests.append(request)
        entry = self.script.pop(0) if self.script else Answer(text="done")
        for piece in entry if isinstance(entry, list) else [entry]:
            if isinstance(piece, BaseException):
                raise piece
            if callable(piece):
                await piece()
            else:
                yield piece


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_model_that_asks_for_tools_for_ever_is_stopped_and_what_it_did_is_kept(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([*(use("act", f"k{number}") for number in range(3)), [say("here")]])
    async with opened(model, bench, queue=queue, max_tool_rounds=3) as session:
        watch = Watch(stream := session.stream("go"))
        with pytest.raises(RunFailedError, match="max_tool_rounds is 3"):
            await stream.result()
        await watch.task
        await answers(session, model)
    assert bench.ended == ["k0", "k1", "k2"]
    assert statuses(model.requests[3]) == [("k0", "ok"), ("k1", "ok"), ("k2", "ok")]
    check_events(watch.events)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("empty", [[], [say("")], [lambda: None]])
@staged
async def test_an_empty_answer_ends_the_run_with_no_text(empty: list[Piece], queue: bool) -> None:
    model = ScriptedModel([empty, [say("here")]])
    async with opened(model, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == ""
        await watch.task
        await answers(session, model)
    check_events(watch.events)
    assert watch.types[-1] == "end"
    assert shape(model.requests[1]) == ["user: go", "user: are you there?"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_an_empty_answer_after_tools_is_an_answer_too(queue: bool) -> None:
    model = ScriptedModel([use("act", "a"), [], [say("here")]])
    async with opened(model, Bench(), queue=queue) as session:
        assert (await session.send("go")).text == ""
        await answers(session, model)


class MuteError(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no")


ODD_ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError("\ud800 broken text \x00"),
    MuteError,
    TimeoutError,
    StopAsyncIteration,
    lambda: RecursionError("deep"),
    lambda: OSError(28, "no space left"),
    lambda: ExceptionGroup("two", [ValueError("1"), KeyError("2")]),
]


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("error", ODD_ERRORS)
@staged
async def test_whatever_a_model_raises_is_tried_again_and_then_ends_the_run_with_a_clear_error(
    error: Callable[[], BaseException], queue: bool
) -> None:
    model = Odd([*(error() for _ in range(4)), Answer(text="here")])
    async with opened(model, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        with pytest.raises(ModelUnavailableError):
            await stream.result()
        assert now_ms() == 500 + 2_000 + 8_000
        await watch.task
        assert (await session.send("are you there?")).text == "here"
    assert watch.types.count("model_retry") == 3
    assert watch.events[-1].error_kind == "model_unavailable"
    check_events(watch.events)
    assert shape(model.requests[-1]) == ["user: go", "user: are you there?"]


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("bug", [KeyError("x"), TypeError("no"), AttributeError("none"), "a piece of text"])
@staged
async def test_a_bug_in_a_model_is_told_at_once_and_not_tried_again(bug: Any, queue: bool) -> None:
    model = Odd([bug, Answer(text="here")])
    async with opened(model, queue=queue) as session:
        with pytest.raises(ModelError, match="the model has a bug"):
            await session.send("go")
        assert now_ms() == 0
        assert (await session.send("are you there?")).text == "here"


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_model_that_cancels_itself_does_not_hang_the_run(queue: bool) -> None:
    model = Odd([asyncio.CancelledError(), *(asyncio.CancelledError() for _ in range(5))])
    async with opened(model, queue=queue) as session:
        with pytest.raises(LanewayError):
            await session.send("go")
        model.script = [Answer(text="here")]
        assert (await session.send("are you there?")).text == "here"


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_an_error_that_no_retry_can_help_ends_the_run_at_once(queue: bool) -> None:
    model = ScriptedModel([use("act", "a"), [fail(ModelError("the key is wrong", model="m"))], [say("here")]])
    bench = Bench()
    async with opened(model, bench, queue=queue) as session:
        with pytest.raises(ModelError, match="the key is wrong"):
            await session.send("go")
        assert now_ms() == 0
        await answers(session, model)
    assert statuses(model.requests[-1]) == [("a", "ok")]


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize(
    "broken",
    [
        [],
        [TextChunk("half")],
        [TextChunk("half"), ConnectionResetError("cut")],
    ],
)
@staged
async def test_a_stream_that_ends_without_an_answer_is_asked_for_again(broken: list[Any], queue: bool) -> None:
    model = Odd([broken, Answer(text="whole")])
    async with opened(model, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "whole"
        await watch.task
    assert [event.attempt for event in watch.of("model_retry")] == [1]
    check_events(watch.events)
    assert [shape(request) for request in model.requests] == [["user: go"], ["user: go"]]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_cut_answer_with_calls_never_runs_them_and_the_whole_one_runs_them_once(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([[one("act", "a"), cut("and")], [one("act", "a")], [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        assert (await session.send("go")).text == "done"
    assert bench.ended == ["a"]
    assert shape(model.requests[2]) == ["user: go", "calls a", "results a=ok"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_what_a_model_streams_after_its_answer_is_not_heard(queue: bool) -> None:
    model = Odd([[TextChunk("all"), Answer(text="all"), TextChunk("more"), ValueError("late")], Answer(text="here")])
    async with opened(model, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "all"
        await watch.task
        assert (await session.send("are you there?")).text == "here"
    assert watch.text == "all"


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("text", ["\ud800 half a sign", "nul \x00", "é" * 3, "\u2028\u202e"])
@staged
async def test_odd_text_of_a_model_and_of_a_tool_is_taken_or_refused_and_the_session_lives_on(
    text: str, queue: bool
) -> None:
    @tool(effect="read")
    async def odd() -> str:
        """Say something odd."""
        return text

    model = Odd([Answer(text=text, calls=(ToolCall(id="a", name="odd"),)), Answer(text=text), Answer(text="here")])
    async with opened(model, [odd], queue=queue, session_store=MemoryStore()) as session:
        (end,) = await asyncio.gather(session.send("go"), return_exceptions=True)
        assert isinstance(end, RunResult | LanewayError)
        assert str(end)
        assert (await session.send("are you there?")).text == "here"
        assert await session.history()
    check_model(model)


# ---- summaries that are none ----


BAD_SUMMARIES: dict[str, list[Piece]] = {
    "nothing": [],
    "white space": [say(" \n")],
    "calls": [call("act", key="a")],
    "an error": [fail(ModelError("not with me", model="scripted"))],
    "a model that is away": [fail(ModelUnavailableError("away", model="scripted"))],
}


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("what", BAD_SUMMARIES)
@staged
async def test_a_model_that_cannot_summarise_costs_nothing_of_the_conversation(what: str, queue: bool) -> None:
    bench, long = Bench(), "x" * 4_000
    summaries = [BAD_SUMMARIES[what]] * 20
    model = ScriptedModel([[say("one")], [say("two")], [say("three")]], context_tokens=1_000, summaries=summaries)
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(session.subscribe())
        texts = [(await session.send(text)).text for text in (long, "second", "third")]
    await watch.task
    assert texts == ["one", "two", "three"]
    assert shape(model.requests[-1]) == [
        f"user: {long}",
        "model: one",
        "user: second",
        "model: two",
        "user: third",
    ]
    assert bench.began == []
    assert "context_compacted" not in watch.types


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_summary_that_never_comes_is_cut_with_its_run_and_the_conversation_is_whole(queue: bool) -> None:
    summary, long = Held(say("late")), "x" * 4_000
    model = ScriptedModel([[say("one")], [say("here")]], context_tokens=1_000, summaries=[summary, [say("in short")]])
    async with opened(model, queue=queue) as session:
        await session.send(long)
        task = sending(session, "second")
        await summary.asked.wait()
        assert await session.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await task
        assert (await session.send("third")).text == "here"
    summary.let_go()
    assert shape(model.requests[2])[:4] == [f"user: {long}", "model: one", "user: second", "user: third"]
    assert shape(model.requests[3])[1:] == ["user: third"]  # the rest is in the summary by now


# ---- tools that misbehave ----


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("error", ODD_ERRORS)
@staged
async def test_whatever_a_tool_raises_is_told_to_the_model(error: Callable[[], BaseException], queue: bool) -> None:
    @tool
    async def breaks() -> str:
        """Break."""
        raise error()

    # Whoever raises a TimeoutError has waited for something, and cannot know what has become of it.
    ends = ("timed_out", "unknown") if error is TimeoutError else ("error", "failed")

    model = ScriptedModel([[call("breaks").with_id("a")], [say("noted")], [say("here")]])
    async with opened(model, [breaks], queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "noted"
        await watch.task
        await answers(session, model)
        assert [entry.state.value for entry in await session.ledger()] == [ends[1]]
    assert statuses(model.requests[1]) == [("a", ends[0])]
    check_events(watch.events)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("code", [None, 3, "goodbye"])
@staged
async def test_a_tool_that_calls_exit_ends_its_own_call_only(code: object, queue: bool) -> None:
    @tool(effect="read")
    async def leaves() -> str:
        """Leave."""
        raise SystemExit(code)

    @tool(effect="read")
    def leaves_its_thread() -> str:
        """Leave."""
        raise SystemExit(code)

    calls = [call("leaves").with_id("a"), call("leaves_its_thread").with_id("b")]
    model = ScriptedModel([calls, [say("noted")], [say("here")]])
    async with opened(model, [leaves, leaves_its_thread], queue=queue) as session:
        assert (await session.send("go")).text == "noted"
        await answers(session, model)
    assert statuses(model.requests[1]) == [("a", "error"), ("b", "error")]
    assert all("exit" in each.output.casefold() for each in results(model.requests[1]))


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_tool_that_cancels_itself_ends_its_own_call_only(queue: bool) -> None:
    @tool(effect="read")
    async def gives_up() -> str:
        """Give up."""
        raise asyncio.CancelledError

    bench = Bench()
    model = ScriptedModel([[call("gives_up").with_id("a"), one("act", "b")], [say("noted")], [say("here")]])
    async with opened(model, [gives_up, *bench.tools], queue=queue) as session:
        assert (await session.send("go")).text == "noted"
        await answers(session, model)
    assert [name for name, _ in statuses(model.requests[1])] == ["a", "b"]
    assert statuses(model.requests[1])[0][1] in ("cancelled", "error")
    assert bench.ended == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize("queue", QUEUES)
async def test_fifty_megabytes_of_output_are_cut_for_the_model_and_kept_as_an_artifact(
    queue: bool, tmp_path: Path
) -> None:
    @tool(effect="read")
    async def floods() -> str:
        """Say very much."""
        return "0123456789" * 5_000_000

    model = ScriptedModel([[call("floods").with_id("a")], [say("much")], [say("here")]])
    async with opened(model, [floods], queue=queue, artifacts_dir=str(tmp_path)) as session:
        assert (await session.send("go")).text == "much"
        await answers(session, model)
    (told,) = results(model.requests[1])
    assert len(told.output) <= 30_000
    assert told.artifact is not None
    assert (tmp_path / told.artifact).stat().st_size == 50_000_000


# ---- stores that refuse ----


class RefusingStore(FaultyStore):
    """Fails at one commit, counted from when it was told to."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.at = -1
        self.when: Any = "before"
        self.seen = 0

    async def commit(self, batches: Any) -> list[BatchResult]:
        """Commit, or fail, if it is time."""
        self.seen += 1
        if self.seen == self.at:
            self.fail_next(self.when)
        return await super().commit(batches)

    def count_from_here(self, at: int, when: str) -> None:
        """Fail at this commit from now on."""
        self.seen, self.at, self.when = 0, at, when


async def commits_of_a_run(queue: bool) -> int:
    """How many commits a run takes when nothing fails."""
    store = RefusingStore(MemoryStore())
    async with opened(a_run(), Bench(), queue=queue, session_store=store) as session:
        await session.ready()
        store.count_from_here(-1, "before")
        await session.send("go")
        return store.seen


def a_run() -> ScriptedModel:
    """A read, a write, an idempotent call, and an answer."""
    return ScriptedModel([use("look", "r"), use("act", "w"), use("put", "i"), [say("done")], [say("here")]])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("at", range(1, 13))
@staged
async def test_a_store_that_fails_at_any_commit_of_a_run_harms_nothing_that_was_stored(
    at: int, queue: bool, when: str
) -> None:
    store, bench, model = RefusingStore(MemoryStore()), Bench(), a_run()
    async with opened(model, bench, queue=queue, session_store=store) as session:
        await session.ready()
        store.count_from_here(at, when)
        watch = Watch(session.subscribe())
        (end,) = await asyncio.gather(session.send("go"), return_exceptions=True)
        assert isinstance(end, RunResult | StoreUnavailableError | RunFailedError), end
        assert getattr(end, "text", "done") == "done"
        store.heal()
        store.at = -1
        await passing(10)  # it reads its session again
        again = await session.send("are you there?")
        assert again.text in ("here", "done")
        await session.wait_idle()
        assert len(set(bench.began)) == len(bench.began), "something ran twice"
        assert all(entry.state.value != "intended" for entry in await session.ledger())
    await watch.task
    check_model(model)
    began = [event.run_id for event in watch.of("start")]
    assert sorted(event.run_id for event in watch.of("end", "error")) == sorted(began)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("at", range(2, 13))
@staged
async def test_a_stream_has_its_end_whichever_commit_of_its_run_fails(at: int, queue: bool, when: str) -> None:
    store, bench, model = RefusingStore(MemoryStore()), Bench(), a_run()
    async with opened(model, bench, queue=queue, session_store=store) as session:
        await session.ready()
        store.count_from_here(at, when)
        watch = Watch(session.stream("go"))
        await watch.task
    check_events(watch.events)
    assert len(set(bench.began)) == len(bench.began), "something ran twice"


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_the_commits_of_a_run_are_all_tried(queue: bool) -> None:
    assert await commits_of_a_run(queue) <= 12


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_what_a_run_has_stored_is_there_after_a_restart_although_the_store_failed_in_it(queue: bool) -> None:
    disk = MemoryDisk()
    store, bench = RefusingStore(MemoryStore(disk)), Bench()
    model = ScriptedModel([use("act", "w"), use("act", "x"), [say("done")]])
    async with opened(model, bench, queue=queue, session_store=store, session_id="s") as session:
        await session.send("go")
        store.fail_before = 1.0
        store._random = Always()  # noqa: SLF001 - from now on every commit fails
        with pytest.raises(LanewayError):
            await session.send("lost")
    after = ScriptedModel([[say("here")]])
    async with opened(after, bench, queue=queue, session_store=MemoryStore(disk), session_id="s") as session:
        assert (await session.send("are you there?")).text == "here"
    assert shape(after.requests[0]) == [
        "user: go",
        "calls w",
        "results w=ok",
        "calls x",
        "results x=ok",
        "model: done",
        "user: are you there?",
    ]


class Always:
    """Random numbers that are always 0."""

    def random(self) -> float:
        """Always the same."""
        return 0.0


class Boom(BaseException):
    """What is no `Exception`."""


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("effect", ["read", "idempotent", "write"])
@staged
async def test_a_tool_that_raises_what_is_no_exception_has_failed_once(effect: Any, queue: bool) -> None:
    calls: list[str] = []

    @tool(effect=effect)
    async def explode(name: str) -> str:
        """Explode."""
        calls.append(name)
        raise Boom("bang")

    model = ScriptedModel([[call("explode", name="a")], [say("I see")]])
    async with opened(model, tools=[explode], queue=queue) as session:
        assert (await session.send("go")).text == "I see"
        assert {entry.state for entry in await session.ledger()} <= {"failed"}
    assert calls == ["a"]
    assert "Boom: bang" in str(model.requests[-1])
