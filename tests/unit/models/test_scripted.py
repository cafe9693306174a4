"""The scripted model: by a script it says what the script says; without one it follows from the conversation alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from laneway.dialogue import (
    Answer,
    CallChunk,
    Chunk,
    ModelRequest,
    Prompt,
    ReasoningChunk,
    Results,
    ResultStatus,
    TextChunk,
    ToolCall,
    ToolResult,
    Usage,
    Utterance,
)
from laneway.errors import ConfigError, ModelLimitedError, ModelUnavailableError
from laneway.models import ScriptedModel, call, cut, fail, say, think
from laneway.models.scripted import Piece


def asked(text: str = "go", *more: Utterance, purpose: str = "answer") -> ModelRequest:
    return ModelRequest(conversation=(Prompt(text=text), *more), purpose=purpose)


async def chunks(model: ScriptedModel, request: ModelRequest | None = None) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request or asked())]


async def answer(model: ScriptedModel, request: ModelRequest | None = None) -> Answer:
    last = (await chunks(model, request))[-1]
    assert isinstance(last, Answer)
    return last


def results_of(said: Answer, output: str = "fine", status: ResultStatus = ResultStatus.OK) -> Results:
    return Results(
        results=tuple(ToolResult(call_id=each.id, name=each.name, output=output, status=status) for each in said.calls)
    )


async def dialogue(model: ScriptedModel, text: str) -> list[Answer]:
    """What the model says until it calls nothing any more."""
    said: list[Answer] = []
    talk: list[Utterance] = [Prompt(text=text)]
    for _ in range(10):
        said.append(await answer(model, ModelRequest(conversation=tuple(talk))))
        if not said[-1].calls:
            return said
        talk += [said[-1], results_of(said[-1])]
    raise AssertionError("the model never stopped calling tools")


async def test_each_inner_list_is_one_answer_and_then_it_is_done() -> None:
    model = ScriptedModel([[call("lookup", name="ada"), call("lookup", name="bob")], [say("both found")]])
    first, second, third = await answer(model), await answer(model), await answer(model)
    assert [(each.id, each.name, json.loads(each.arguments)) for each in first.calls] == [
        ("call-1", "lookup", {"name": "ada"}),
        ("call-2", "lookup", {"name": "bob"}),
    ]
    assert (second.text, third.text, model.remaining) == ("both found", "done", 0)


async def test_text_comes_in_pieces_and_whole_at_the_end() -> None:
    pieces = await chunks(ScriptedModel([[say("abcdefg")]], chunk_size=3))
    assert [each.text for each in pieces if isinstance(each, TextChunk)] == ["abc", "def", "g"]
    assert isinstance(pieces[-1], Answer)
    assert pieces[-1].text == "abcdefg"


async def test_reasoning_and_text_are_kept_apart_and_in_order() -> None:
    pieces = await chunks(ScriptedModel([[think("hm"), say("a"), say("b")]]))
    assert pieces[:3] == [ReasoningChunk("hm"), TextChunk("a"), TextChunk("b")]
    assert isinstance(pieces[3], Answer)
    assert (pieces[3].reasoning, pieces[3].text) == ("hm", "ab")


async def test_the_arguments_of_a_call_come_in_pieces_under_its_id() -> None:
    pieces = await chunks(ScriptedModel([[call("read", path="a.txt")]], chunk_size=5))
    parts = [each for each in pieces if isinstance(each, CallChunk)]
    assert {(each.call_id, each.name) for each in parts} == {("call-1", "read")}
    assert len(parts) > 1
    assert "".join(each.arguments for each in parts) == '{"path":"a.txt"}'


@pytest.mark.parametrize("raw", ['{"path":', "", "not JSON", "[]"])
async def test_raw_arguments_are_sent_as_they_are(raw: str) -> None:
    pieces = await chunks(ScriptedModel([[call("read", raw)]]))
    assert isinstance(pieces[-1], Answer)
    assert pieces[-1].calls == (ToolCall(id="call-1", name="read", arguments=raw),)
    assert "".join(each.arguments for each in pieces if isinstance(each, CallChunk)) == raw


async def test_a_call_has_the_id_it_was_given() -> None:
    said = await answer(ScriptedModel([[call("read", path="a").with_id("mine"), call("read", path="b")]]))
    assert [each.id for each in said.calls] == ["mine", "call-1"]


async def test_a_new_model_object_reuses_no_id_of_the_conversation_it_goes_on_with() -> None:
    """As after a restart: the script begins anew, the conversation does not."""
    before = await answer(ScriptedModel([[call("read", path="a")]]))
    after = await answer(ScriptedModel([[call("read", path="b")]]), asked("go", before, results_of(before)))
    assert [each.id for each in (*before.calls, *after.calls)] == ["call-1", "call-2"]


async def test_a_tool_may_have_arguments_named_like_the_parameters_of_call() -> None:
    said = await answer(ScriptedModel([[call("x", tool="t", raw="r", id="i")]]))
    assert json.loads(said.calls[0].arguments) == {"tool": "t", "raw": "r", "id": "i"}


async def test_a_failing_answer_raises_its_error_and_uses_up_its_entry() -> None:
    limited = ModelLimitedError("later", retry_after_ms=50)
    model = ScriptedModel([[fail(limited)], [fail(ModelUnavailableError("gone"))], [say("back")]])
    with pytest.raises(ModelLimitedError) as caught:
        await chunks(model)
    assert caught.value is limited
    with pytest.raises(ModelUnavailableError, match="gone"):
        await chunks(model)
    assert (await answer(model)).text == "back"


async def test_a_cut_stream_shows_its_text_and_never_a_whole_answer() -> None:
    model = ScriptedModel([[cut("half of it")]], chunk_size=4)
    stream = model.stream(asked())
    seen = [await anext(stream) for _ in range(3)]
    with pytest.raises(ModelUnavailableError, match="cut"):
        await anext(stream)
    assert seen == [TextChunk("half"), TextChunk(" of "), TextChunk("it")]


async def test_every_request_is_kept_as_it_was_sent() -> None:
    model = ScriptedModel([[say("a")], [cut()]])
    first, second = asked("one"), asked("two")
    await chunks(model, first)
    with pytest.raises(ModelUnavailableError):
        await chunks(model, second)
    assert model.requests == [first, second]
    assert str(model.requests[1]) == "user: two"


async def test_an_entry_may_be_a_function_of_the_request_that_waits() -> None:
    may_answer = asyncio.Event()

    async def later(request: ModelRequest) -> Sequence[Piece]:
        await may_answer.wait()
        return [say(f"heard {request.conversation[-1]}")]

    model = ScriptedModel([later, lambda request: [say(str(len(request.conversation)))]])
    task = asyncio.create_task(answer(model))
    await asyncio.sleep(0)
    assert not task.done()
    assert len(model.requests) == 1
    may_answer.set()
    assert (await task).text == "heard user: go"
    assert (await answer(model)).text == "1"


async def test_a_gate_holds_the_stream_between_two_pieces() -> None:
    gate = asyncio.Event()
    stream = ScriptedModel([[say("a"), gate.wait, say("b")]]).stream(asked())
    assert await anext(stream) == TextChunk("a")
    following = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not following.done()
    gate.set()
    assert await following == TextChunk("b")


async def test_an_answer_that_is_waited_for_can_be_cancelled() -> None:
    task = asyncio.create_task(answer(ScriptedModel([[asyncio.Event().wait]])))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_two_sessions_that_ask_at_once_get_two_entries() -> None:
    model = ScriptedModel([[say("one"), call("x")], [say("two"), call("x")]], chunk_size=1)
    first, second = await asyncio.gather(answer(model), answer(model))
    assert (first.text, second.text) == ("one", "two")
    assert {each.id for said in (first, second) for each in said.calls} == {"call-1", "call-2"}


async def test_usage_is_estimated_by_characters_or_is_what_it_was_told() -> None:
    told = Usage(input_tokens=7, output_tokens=5, cost=0.5)
    estimated = await answer(ScriptedModel([[say("12345678")]]))
    assert estimated.usage == Usage(input_tokens=2, output_tokens=2)
    assert (await answer(ScriptedModel([[say("x")]], usage=told))).usage == told


@pytest.mark.parametrize(
    "script",
    [
        "hello",
        [say("not in a list")],
        [["bare text"]],
        [[3]],
        7,
    ],
)
def test_a_script_that_is_none_is_refused_at_once(script: object) -> None:
    with pytest.raises(ConfigError):
        ScriptedModel(script)  # type: ignore[arg-type]


async def test_a_function_that_returns_no_answer_is_named() -> None:
    model = ScriptedModel([lambda _: "text"])  # type: ignore[list-item, return-value]
    with pytest.raises(ConfigError, match="a function of the script returned"):
        await chunks(model)


def test_arguments_that_are_no_json_are_refused_where_they_are_written() -> None:
    with pytest.raises(ConfigError, match="'read'"):
        call("read", path=object())
    with pytest.raises(ConfigError, match="both"):
        call("read", "{}", path="x")


async def test_a_summary_never_uses_up_the_script() -> None:
    model = ScriptedModel([[say("the answer")]], summaries=[[say("short")]])
    ask = asked("tell me", purpose="summary")
    assert (await answer(model, ask)).text == "short"
    assert (await answer(model, ask)).text == "Summary of 1 utterances: 1 prompts, 0 calls. The newest: tell me"
    assert (await answer(model)).text == "the answer"


async def test_without_a_script_it_says_what_it_heard() -> None:
    model = ScriptedModel()
    assert [each.text for each in await dialogue(model, "hello\nthen\nbye")] == ["You said: hello\nthen\nbye"]
    assert (await answer(model, ModelRequest(conversation=()))).text == "You said:"


async def test_lines_of_one_section_are_calls_of_one_answer() -> None:
    first, last = await dialogue(ScriptedModel(), "read a b.txt\nrun ls -l\nwait 2\nwait 0.5")
    assert [(each.name, json.loads(each.arguments)) for each in first.calls] == [
        ("read", {"path": "a b.txt"}),
        ("bash", {"command": "ls -l"}),
        ("wait", {"seconds": 2}),
        ("wait", {"seconds": 0.5}),
    ]
    assert last.text.startswith("Done: 4 calls.\nread (ok): fine\nbash (ok): fine")


async def test_a_line_calls_any_tool_with_its_arguments_as_they_are() -> None:
    first, _ = await dialogue(ScriptedModel(), 'call mcp__jobs__train {"dataset": "birds"}\ncall ls {}\ncall ls {odd}')
    assert [(each.name, each.arguments) for each in first.calls] == [
        ("mcp__jobs__train", '{"dataset": "birds"}'),
        ("ls", "{}"),
        ("ls", "{odd}"),
    ]


async def test_then_begins_the_next_answer() -> None:
    said = await dialogue(ScriptedModel(), "read a\nthen\nread b\nread c\nthen\nthanks")
    assert [len(each.calls) for each in said] == [1, 2, 0]
    assert [each.id for answer in said for each in answer.calls] == ["call-1", "call-2", "call-3"]
    assert said[-1].text == "You said: thanks"


async def test_text_among_the_calls_is_said_with_them() -> None:
    first, last = await dialogue(ScriptedModel(), "please\nthen\nread a")
    assert (first.text, len(first.calls)) == ("You said: please", 1)
    assert last.text == "Done: 1 call.\nread (ok): fine"


@pytest.mark.parametrize(
    "line", ["read", "reading a", "wait", "run", "Read a", "then read a", "call me at {five}", "call ls", "call {}"]
)
async def test_a_line_that_only_resembles_a_call_is_text(line: str) -> None:
    assert [each.text for each in await dialogue(ScriptedModel(), line)] == [f"You said: {line}"]


async def test_a_wait_that_is_no_number_is_left_to_the_tool() -> None:
    first, _ = await dialogue(ScriptedModel(), "wait nan")
    assert json.loads(first.calls[0].arguments) == {"seconds": "nan"}


async def test_a_conversation_goes_on_with_another_object_as_with_the_first() -> None:
    """It keeps nothing: after a restart the next section is the next one, and its ids are new ones."""
    text = "read a\nthen\nrun b\nthen\nread c"
    whole = await dialogue(ScriptedModel(), text)
    talk: list[Utterance] = [Prompt(text=text)]
    for expected in whole:
        assert await answer(ScriptedModel(), ModelRequest(conversation=tuple(talk))) == expected
        talk += [expected, results_of(expected)]


async def test_sessions_that_share_a_model_without_a_script_do_not_see_each_other() -> None:
    model = ScriptedModel()
    apart = [await dialogue(model, text) for text in ("read a", "read b\nread c")]
    together = await asyncio.gather(dialogue(model, "read a"), dialogue(model, "read b\nread c"))
    assert list(together) == apart
    assert [each.id for each in apart[1][0].calls] == ["call-1", "call-2"]


async def test_a_newer_prompt_takes_the_place_of_the_older() -> None:
    first = await answer(ScriptedModel(), asked("read a\nthen\nread b"))
    request = asked("read a\nthen\nread b", first, results_of(first), Prompt(text="stop"))
    assert (await answer(ScriptedModel(), request)).text == "You said: stop"


async def test_what_the_host_says_is_no_prompt_of_the_user() -> None:
    request = asked("hello", Prompt(text="read secrets", role="system"))
    assert (await answer(ScriptedModel(), request)).text == "You said: hello"


async def test_the_closing_text_says_how_each_call_ended() -> None:
    first = await answer(ScriptedModel(), asked("run x"))
    request = asked("run x", first, results_of(first, "\n  no such file \nmore", ResultStatus.ERROR))
    assert (await answer(ScriptedModel(), request)).text == "Done: 1 call.\nbash (error): no such file"


async def test_without_a_script_only_the_newest_requests_are_kept() -> None:
    model = ScriptedModel(chunk_size=1_000)
    for number in range(102):
        await chunks(model, asked(f"n{number}"))
    assert len(model.requests) == 100
    assert str(model.requests[-1]) == "user: n101"


async def test_many_calls_in_one_answer_have_different_ids() -> None:
    said = await answer(ScriptedModel([[call("x")] * 1_000]))
    assert len({each.id for each in said.calls}) == 1_000
