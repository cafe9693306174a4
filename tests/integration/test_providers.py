"""Models of providers against a server on this machine: what comes through, and what every fault becomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

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
    ToolSpec,
    Utterance,
)
from laneway.errors import (
    ModelError,
    ModelLimitedError,
    ModelUnavailableError,
    PromptTooLongError,
    RealModelForbiddenError,
)
from laneway.models import ModelOptions, Prices, ProviderSettings, open_model, real_models
from laneway.models.adapter import ProviderModel
from tests.openai_stage import Exchange, OpenAIStage, Play, cut, fade, hold, raw, refuse, slow, text, tools

KEY = "sk-very-secret"


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Import what the models need before a test is timed."""
    for name in ("openai/x", "anthropic/x", "google/x"):
        open_model(name, providers={name.partition("/")[0]: ProviderSettings(api_key=KEY)})


@asynccontextmanager
async def on_stage(*plays: Play, **settings: Any) -> AsyncIterator[tuple[ProviderModel, OpenAIStage]]:
    async with OpenAIStage(*plays) as stage:
        given = ProviderSettings(base_url=stage.url, **{"api_key": KEY, **settings})
        model = open_model("openai/gpt-test", providers={"openai": given})
        try:
            yield model, stage
        finally:
            await model.aclose()


def asked(*said: Utterance, **more: Any) -> ModelRequest:
    return ModelRequest(conversation=said or (Prompt(text="go"),), **more)


async def chunks(model: ProviderModel, request: ModelRequest | None = None) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request or asked())]


async def answer(model: ProviderModel, request: ModelRequest | None = None) -> Answer:
    last = (await chunks(model, request))[-1]
    assert isinstance(last, Answer)
    return last


async def test_text_comes_in_pieces_and_whole_with_its_usage() -> None:
    async with on_stage(text("Hel", "lo")) as (model, stage):
        pieces = await chunks(model)
    assert pieces[:-1] == [TextChunk("Hel"), TextChunk("lo")]
    whole = pieces[-1]
    assert isinstance(whole, Answer)
    assert (whole.text, whole.model, whole.opaque) == ("Hello", "openai/gpt-test", None)
    assert (whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.cost) == (11, 7, None)
    assert stage.requests[0].path == "/v1/chat/completions"
    assert stage.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_calls_come_in_fragments_and_whole_in_their_order() -> None:
    play = tools(("c1", "read", ['{"pa', 'th":"a"}']), ("c2", "bash", ['{"command":', '"ls"}']), content="I look.")
    async with on_stage(play) as (model, _):
        pieces = await chunks(model)
    whole = pieces[-1]
    assert isinstance(whole, Answer)
    assert whole.text == "I look."
    assert whole.calls == (
        ToolCall(id="c1", name="read", arguments='{"path":"a"}'),
        ToolCall(id="c2", name="bash", arguments='{"command":"ls"}'),
    )
    parts = [each for each in pieces if isinstance(each, CallChunk)]
    assert len(parts) >= 4
    for call in whole.calls:
        mine = [each for each in parts if each.call_id == call.id]
        assert {each.name for each in mine} == {call.name}
        assert "".join(each.arguments for each in mine) == call.arguments


@pytest.mark.parametrize("arguments", ['{"path":', "[1]", "nothing of the kind"])
async def test_malformed_arguments_are_passed_on_and_can_be_sent_back(arguments: str) -> None:
    async with on_stage(tools(("c1", "read", [arguments])), text("sorry")) as (model, stage):
        first = await answer(model)
        assert first.calls[0].arguments == arguments
        result = ToolResult(call_id="c1", name="read", output="not JSON", status=ResultStatus.ERROR)
        second = await answer(model, asked(Prompt(text="go"), first, Results(results=(result,))))
    assert second.text == "sorry"
    sent = stage.requests[1].messages[1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict)


async def test_a_call_without_arguments_has_an_empty_object() -> None:
    async with on_stage(tools(("c1", "now", []))) as (model, _):
        assert (await answer(model)).calls == (ToolCall(id="c1", name="now", arguments="{}"),)


async def test_an_id_that_the_conversation_has_already_is_not_given_twice() -> None:
    """Some servers call the first call of every answer `call_0`."""
    play = tools(("call_0", "read", ["{}"]), ("call_0", "read", ["{}"]))
    before = Answer(calls=(ToolCall(id="call_0", name="read"),))
    done = Results(results=(ToolResult(call_id="call_0", name="read", output="x"),))
    async with on_stage(play) as (model, _):
        pieces = await chunks(model, asked(Prompt(text="go"), before, done))
    whole = pieces[-1]
    assert isinstance(whole, Answer)
    assert [each.id for each in whole.calls] == ["call_0-2", "call_0-3"]
    assert {each.call_id for each in pieces if isinstance(each, CallChunk)} == {"call_0-2", "call_0-3"}


async def test_reasoning_is_streamed_kept_and_sent_back_where_it_came_from() -> None:
    async with on_stage(text("four", reasoning=["two and ", "two"]), text("yes")) as (model, stage):
        pieces = await chunks(model)
        whole = pieces[-1]
        assert isinstance(whole, Answer)
        await chunks(model, asked(Prompt(text="go"), stored(whole), Prompt(text="sure?")))
    assert [each.text for each in pieces if isinstance(each, ReasoningChunk)] == ["two and ", "two"]
    assert (whole.reasoning, whole.text) == ("two and two", "four")
    assert "two and two" not in json.dumps(whole.opaque)
    assert stage.requests[1].messages[1]["reasoning_content"] == "two and two"


async def test_everything_a_request_carries_is_sent() -> None:
    spec = ToolSpec(
        name="read",
        description="Read a file.",
        parameters={"type": "object", "properties": {"path": {"type": "string"}}},
    )
    said = Answer(text="I look.", calls=(ToolCall(id="c1", name="read", arguments='{"path":"a"}'),))
    done = Results(results=(ToolResult(call_id="c1", name="read", output="no such file", status=ResultStatus.ERROR),))
    request = asked(
        Prompt(text="go"),
        said,
        done,
        Prompt(text="hurry"),
        tools=(spec,),
        system="Be brief.",
        output_max=99,
        temperature=0.5,
    )
    async with on_stage(headers={"x-team": "red"}) as (model, stage):
        await chunks(model, request)
    sent = stage.requests[0]
    assert [each["role"] for each in sent.messages] == ["system", "user", "assistant", "tool", "user"]
    assert sent.messages[0]["content"] == "Be brief."
    assert sent.messages[2]["tool_calls"][0]["id"] == sent.messages[3]["tool_call_id"] == "c1"
    assert "error" in sent.messages[3]["content"]
    assert "no such file" in sent.messages[3]["content"]
    assert sent.body["tools"][0]["function"]["name"] == "read"
    assert (sent.body["temperature"], sent.body.get("max_completion_tokens") or sent.body.get("max_tokens")) == (
        0.5,
        99,
    )
    assert sent.headers["x-team"] == "red"


async def test_a_model_that_knows_no_tools_is_told_of_none() -> None:
    async with on_stage(models={"gpt-test": ModelOptions(tools=False)}) as (model, stage):
        await chunks(model, asked(tools=(ToolSpec(name="read"),)))
    assert "tools" not in stage.requests[0].body


async def test_tokens_of_the_cache_are_counted_and_priced() -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 1_000_000, "total_tokens": 2_000_000}
    play = text("x", usage={**usage, "prompt_tokens_details": {"cached_tokens": 500_000}})
    options = ModelOptions(context_tokens=128_000, prices=Prices(input=2.0, output=8.0, cache_read=0.5))
    async with on_stage(play, models={"gpt-test": options}) as (model, _):
        whole = await answer(model)
        assert model.context_tokens == 128_000
    assert whole.usage.cache_read_tokens == 500_000
    assert whole.usage.cost == pytest.approx(1.0 + 0.25 + 8.0)


async def test_what_nobody_has_counted_has_no_cost() -> None:
    nothing = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    options = ModelOptions(prices=Prices(input=2.0, output=8.0))
    async with on_stage(text("x", usage=nothing), models={"gpt-test": options}) as (model, _):
        assert (await answer(model)).usage.cost is None


async def test_a_model_of_the_price_list_has_its_price_and_its_context() -> None:
    async with OpenAIStage(text("x")) as stage:
        model = open_model("openai/gpt-4o", providers={"openai": ProviderSettings(base_url=stage.url)})
        stage.plays = [_as_model("gpt-4o")]
        whole = await answer(model)
        await model.aclose()
    assert whole.usage.cost is not None
    assert whole.usage.cost > 0
    assert model.context_tokens == 128_000


def _as_model(name: str) -> Play:
    async def play(exchange: Exchange) -> None:
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": name}
        await exchange.event({**chunk, "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000}
        await exchange.event({**chunk, "choices": [], "usage": usage})
        await exchange.end(finish=None, usage=None)

    return play


@pytest.mark.parametrize(
    ("headers", "body", "wait"),
    [
        ({"retry-after": "2"}, None, 2_000),
        ({"retry-after-ms": "250"}, None, 250),
        ({"date": "Wed, 21 Oct 2026 07:28:00 GMT", "retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None, 30_000),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0"}, None, 360_000),
        ({}, {"error": {"message": "Rate limit reached. Please try again in 1.5s."}}, 1_500),
        ({}, None, 20_000),
        ({}, "slow down", 20_000),
        ({}, {"error": {"message": "too many tokens per minute"}}, 20_000),
        ({}, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}, 300_000),
    ],
)
async def test_a_limit_says_how_long_and_is_not_asked_again(headers: dict[str, str], body: Any, wait: int) -> None:
    async with on_stage(refuse(429, headers, body)) as (model, stage):
        with pytest.raises(ModelLimitedError) as caught:
            await chunks(model)
    assert caught.value.retry_after_ms == wait
    assert caught.value.model == "openai/gpt-test"
    assert len(stage.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 408])
async def test_a_provider_that_is_down_can_be_asked_again(status: int) -> None:
    async with on_stage(refuse(status), text("back")) as (model, stage):
        with pytest.raises(ModelUnavailableError, match=str(status)) as caught:
            await chunks(model)
        assert not isinstance(caught.value, ModelLimitedError)
        assert len(stage.requests) == 1
        assert (await answer(model)).text == "back"


@pytest.mark.parametrize("status", [500, 503, 529])
async def test_a_provider_that_is_down_for_a_known_time_says_so(status: int) -> None:
    async with on_stage(refuse(status, {"retry-after": "7"})) as (model, _):
        with pytest.raises(ModelLimitedError) as caught:
            await chunks(model)
    assert caught.value.retry_after_ms == 7_000


@pytest.mark.parametrize(
    ("status", "hint"), [(400, "refuses"), (401, "api_key"), (403, "api_key"), (404, "name"), (422, "refuses")]
)
async def test_a_request_that_is_refused_says_what_to_do(status: int, hint: str) -> None:
    body = {"error": {"message": f"wrong: {KEY}"}}
    async with on_stage(refuse(status, body=body)) as (model, _):
        with pytest.raises(ModelError, match="wrong") as caught:
            await chunks(model)
    assert hint in caught.value.hint
    assert not isinstance(caught.value, PromptTooLongError)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "too big", "code": "context_length_exceeded"}),
        (400, {"message": "This model's maximum context length is 8192 tokens."}),
        (400, {"message": "the request exceeds the available context size"}),
        (413, {"message": "Payload too large"}),
    ],
)
async def test_a_conversation_that_is_too_long_is_recognised(status: int, error: dict[str, str]) -> None:
    async with on_stage(refuse(status, body={"error": error})) as (model, _):
        with pytest.raises(ModelError) as caught:
            await chunks(model)
    assert isinstance(caught.value, PromptTooLongError)


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(cut("half"), id="a broken connection"),
        pytest.param(fade("half"), id="an end that nobody announced"),
        pytest.param(raw(), id="an empty stream"),
        pytest.param(raw("[DONE]"), id="a stream of nothing"),
        pytest.param(raw("{not JSON"), id="wrong JSON"),
        pytest.param(raw({"error": {"message": "died", "type": "server_error"}}), id="an error in the stream"),
        pytest.param(refuse(200, body="<html>"), id="a page"),
    ],
)
async def test_a_stream_that_does_not_end_well_has_no_answer_and_can_be_asked_again(play: Play) -> None:
    async with on_stage(play, text("whole")) as (model, _):
        with pytest.raises(ModelUnavailableError) as caught:
            await chunks(model)
        assert not isinstance(caught.value, ModelLimitedError)
        assert (await answer(model)).text == "whole"


async def test_what_came_before_a_cut_was_shown() -> None:
    async with on_stage(cut("half")) as (model, _):
        stream = model.stream(asked())
        assert await anext(stream) == TextChunk("half")
        with pytest.raises(ModelUnavailableError):
            await anext(stream)


async def test_a_limit_inside_a_stream_is_a_limit() -> None:
    error = {"error": {"message": "try again in 3s", "code": "rate_limit_exceeded"}}
    async with on_stage(raw(error)) as (model, _):
        with pytest.raises(ModelLimitedError) as caught:
            await chunks(model)
    assert caught.value.retry_after_ms == 3_000


async def test_nobody_at_the_address_is_unavailable() -> None:
    async with OpenAIStage() as stage:
        url = stage.url
    model = open_model("openai/gpt-test", providers={"openai": ProviderSettings(base_url=url)})
    with pytest.raises(ModelUnavailableError, match=r"(?i)connect.*(refused|failed)"):
        await chunks(model)
    await model.aclose()


async def test_silence_longer_than_the_timeout_is_unavailable() -> None:
    async with on_stage(hold, timeout_ms=20) as (model, _):
        with pytest.raises(ModelUnavailableError):
            await chunks(model)


async def test_slow_tokens_are_shown_as_they_come() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    async with on_stage(slow([("a", first), ("b", second)])) as (model, _):
        stream = model.stream(asked())
        first.set()
        assert await anext(stream) == TextChunk("a")
        following = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert not following.done()
        second.set()
        assert await following == TextChunk("b")
        assert isinstance(await anext(stream), Answer)


async def test_closing_a_stream_early_closes_the_connection() -> None:
    async with on_stage(hold, text("next")) as (model, stage):
        stream = model.stream(asked())
        assert await anext(stream) == TextChunk("a")
        await stream.aclose()
        async with asyncio.timeout(60):
            await stage.exchanges[0].gone.wait()
        assert (await answer(model)).text == "next"


async def test_cancelling_a_call_closes_the_connection_at_once() -> None:
    async with on_stage(hold) as (model, stage):
        begun = asyncio.Event()

        async def run() -> None:
            async for _ in model.stream(asked()):
                begun.set()

        task = asyncio.create_task(run())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60):
            await stage.exchanges[0].gone.wait()


async def test_a_call_can_be_cancelled_before_the_first_byte() -> None:
    arrived = asyncio.Event()

    async def mute(exchange: Exchange) -> None:
        arrived.set()
        await exchange.gone.wait()

    async with on_stage(mute) as (model, stage):
        task = asyncio.create_task(chunks(model))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60):
            await stage.exchanges[0].gone.wait()


async def test_many_calls_at_once_share_one_model() -> None:
    plays = [text(f"n{number}") for number in range(20)]
    async with on_stage(*plays) as (model, _):
        texts = {each.text for each in await asyncio.gather(*(answer(model) for _ in range(20)))}
    assert texts == {f"n{number}" for number in range(20)}


def test_one_model_serves_one_event_loop_after_another() -> None:
    async def ask(model: ProviderModel | None) -> tuple[ProviderModel, str]:
        async with OpenAIStage(text("hello")) as stage:
            given = ProviderSettings(base_url=stage.url)
            model = model or open_model("openai/gpt-test", providers={"openai": given})
            return model, (await answer(model)).text if model.url.startswith(stage.root) else "elsewhere"

    model, first = asyncio.run(ask(None))

    async def again() -> str:
        with pytest.raises(ModelUnavailableError):  # the server of the other loop is gone; the loop is no obstacle
            await chunks(model)
        await model.aclose()
        return "asked"

    assert (first, asyncio.run(again())) == ("hello", "asked")


async def test_two_event_loops_at_once_have_connections_of_their_own() -> None:
    """As with a synchronous session on its background loop: a connection that one loop has is nothing to the other."""

    async def elsewhere(model: ProviderModel) -> str:
        said = await answer(model)
        await model.aclose()
        return said.text

    async with OpenAIStage(text("a"), text("b"), text("c"), keep_alive=True) as stage:
        model = open_model("openai/gpt-test", providers={"openai": ProviderSettings(base_url=stage.url)})
        first = (await answer(model)).text
        second = await asyncio.to_thread(asyncio.run, elsewhere(model))
        third = (await answer(model)).text
        await model.aclose()
    assert (first, second, third, stage.connections) == ("a", "b", "c", 2)


async def test_a_model_that_was_closed_can_be_asked_again() -> None:
    async with on_stage(text("one"), text("two")) as (model, _):
        assert (await answer(model)).text == "one"
        await model.aclose()
        await model.aclose()
        assert (await answer(model)).text == "two"


async def test_a_server_under_a_name_of_your_own_is_reached() -> None:
    async with OpenAIStage(text("mine")) as stage:
        model = open_model("house/llama/70b", providers={"house": ProviderSettings(base_url=stage.url)})
        whole = await answer(model)
        await model.aclose()
    assert (whole.text, whole.model, stage.requests[0].body["model"]) == ("mine", "house/llama/70b", "llama/70b")


async def test_a_key_of_the_environment_is_never_sent_to_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with on_stage(text("x"), api_key=None) as (model, stage):
        await chunks(model)
    assert KEY not in json.dumps(dict(stage.requests[0].headers))


async def test_ollama_is_asked_as_any_other() -> None:
    async with OpenAIStage(text("local")) as stage:
        model = open_model("ollama/llama3", providers={"ollama": ProviderSettings(base_url=stage.url)})
        assert (await answer(model)).text == "local"
        await model.aclose()


async def test_a_real_model_is_never_called_where_that_is_forbidden() -> None:
    model = open_model("openai/gpt-5", providers={"openai": ProviderSettings(api_key=KEY)})
    with real_models(allowed=False), pytest.raises(RealModelForbiddenError, match="openai/gpt-5"):
        await chunks(model)
    await model.aclose()


async def test_the_switch_of_pydantic_ai_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydantic_ai.models.ALLOW_MODEL_REQUESTS", False)
    async with on_stage() as (model, stage):
        with pytest.raises(RealModelForbiddenError):
            await chunks(model)
    assert stage.requests == []


# --- Anthropic --------------------------------------------------------------------------------------------------------


def anthropic(*blocks: tuple[dict[str, Any], list[dict[str, Any]]], whole: bool = True) -> Play:
    """A stream of Anthropic: each block as it begins, and its deltas."""

    async def send(exchange: Exchange, name: str, **payload: Any) -> None:
        await exchange.event({"type": name, **payload}, name=name)

    async def play(exchange: Exchange) -> None:
        usage = {"input_tokens": 20, "output_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test", "content": []}
        await send(exchange, "message_start", message={**message, "stop_reason": None, "usage": usage})
        for index, (block, deltas) in enumerate(blocks):
            await send(exchange, "content_block_start", index=index, content_block=block)
            for delta in deltas:
                await send(exchange, "content_block_delta", index=index, delta=delta)
            await send(exchange, "content_block_stop", index=index)
        if whole:
            ended = {"stop_reason": "tool_use", "stop_sequence": None}
            await send(exchange, "message_delta", delta=ended, usage={"output_tokens": 9})
            await send(exchange, "message_stop")
        await exchange.end(finish=None, usage=None)

    return play


THOUGHT = (
    {"type": "thinking", "thinking": "", "signature": ""},
    [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "SIGNED"}],
)
SAID = ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "I look."}])
CALLED = (
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
    [{"type": "input_json_delta", "partial_json": '{"pa'}, {"type": "input_json_delta", "partial_json": 'th":"a"}'}],
)


@asynccontextmanager
async def at_root(name: str, *plays: Play, kind: str | None = None) -> AsyncIterator[tuple[ProviderModel, OpenAIStage]]:
    async with OpenAIStage(*plays) as stage:
        given = ProviderSettings(base_url=stage.root, api_key=KEY, kind=kind)
        model = open_model(name, providers={name.partition("/")[0]: given})
        try:
            yield model, stage
        finally:
            await model.aclose()


def claude(*plays: Play) -> AbstractAsyncContextManager[tuple[ProviderModel, OpenAIStage]]:
    return at_root("anthropic/claude-test", *plays)


def stored(said: Answer) -> Answer:
    """An answer as a store gives it back."""
    return replace(said, opaque=json.loads(json.dumps(said.opaque)))


async def test_signed_reasoning_of_anthropic_goes_back_with_its_signature() -> None:
    async with claude(anthropic(THOUGHT, SAID, CALLED), anthropic(SAID)) as (model, stage):
        first = await answer(model, asked(Prompt(text="go"), system="Be brief."))
        assert (first.reasoning, first.text) == ("hm", "I look.")
        assert first.calls == (ToolCall(id="toolu_1", name="read", arguments='{"path":"a"}'),)
        assert (first.usage.cache_read_tokens, first.usage.cache_write_tokens) == (5, 3)
        assert first.usage.output_tokens == 9
        result = ToolResult(call_id="toolu_1", name="read", output="no", status=ResultStatus.DENIED)
        await chunks(model, asked(Prompt(text="go"), stored(first), Results(results=(result,)), Prompt(text="hurry")))
    assert stage.requests[0].path.startswith("/v1/messages")
    _, assistant, told = stage.requests[1].messages
    assert [each["type"] for each in assistant["content"]] == ["thinking", "text", "tool_use"]
    assert assistant["content"][0]["signature"] == "SIGNED"
    assert assistant["content"][0]["thinking"] == "hm"
    assert (told["content"][0]["type"], told["content"][0]["is_error"]) == ("tool_result", True)
    assert "[denied] no" in json.dumps(told["content"][0])
    assert told["content"][1]["text"] == "hurry"


@pytest.mark.parametrize("cache", [True, False])
async def test_a_provider_that_has_to_be_asked_is_asked_to_remember(cache: bool) -> None:
    async with OpenAIStage(anthropic(SAID), anthropic(SAID)) as stage:
        given = ProviderSettings(base_url=stage.root, api_key=KEY, cache=cache)
        model = open_model("anthropic/claude-test", providers={"anthropic": given})
        await chunks(model, asked(system="Be brief.", tools=(ToolSpec(name="read"),)))
        await chunks(model, asked(system="Sum up.", purpose="summary"))
        await model.aclose()
    answered, summed_up = (json.dumps(each.body) for each in stage.requests)
    assert ("cache_control" in answered) is cache
    assert "cache_control" not in summed_up


async def test_a_stream_of_anthropic_that_ends_early_is_cut() -> None:
    async with claude(anthropic(SAID, whole=False)) as (model, _):
        with pytest.raises(ModelUnavailableError, match="cut"):
            await chunks(model)


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (529, "overloaded_error", ModelUnavailableError),
        (429, "rate_limit_error", ModelLimitedError),
        (401, "authentication_error", ModelError),
    ],
)
async def test_faults_of_anthropic_are_told_apart(status: int, kind: str, expected: type[Exception]) -> None:
    body = {"type": "error", "error": {"type": kind, "message": "no"}}
    async with claude(refuse(status, {"retry-after": "4"} if status == 429 else {}, body)) as (model, stage):
        with pytest.raises(expected) as caught:
            await chunks(model)
    assert type(caught.value) is expected
    assert len(stage.requests) == 1


# --- Google, and OpenAI's newer language ------------------------------------------------------------------------------


def google(*parts: dict[str, Any], whole: bool = True) -> Play:
    """A stream of Google: a chunk for each part."""

    async def play(exchange: Exchange) -> None:
        for part in parts:
            told: dict[str, Any] = {"content": {"role": "model", "parts": [part]}}
            if whole and part is parts[-1]:
                told["finishReason"] = "STOP"
            usage = {"promptTokenCount": 12, "candidatesTokenCount": 3, "totalTokenCount": 15}
            await exchange.event({"candidates": [told], "modelVersion": "gemini-test", "usageMetadata": usage})
        await exchange.end(finish=None, usage=None)

    return play


async def test_signed_calls_of_google_go_back_with_their_signature() -> None:
    called = {"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "U0lHTkVE"}
    first_play = google({"text": "hm", "thought": True}, called)
    async with at_root("google/gemini-test", first_play, google({"text": "done"})) as (model, stage):
        first = await answer(model, asked(Prompt(text="go"), system="Be brief."))
        assert (first.reasoning, first.calls[0].arguments) == ("hm", '{"path":"a"}')
        assert (first.usage.input_tokens, first.usage.output_tokens) == (12, 3)
        result = ToolResult(call_id=first.calls[0].id, name="read", output="no", status=ResultStatus.ERROR)
        second = await answer(model, asked(Prompt(text="go"), stored(first), Results(results=(result,))))
    assert second.text == "done"
    _, said, told = stage.requests[1].body["contents"]
    assert said["parts"][-1]["thoughtSignature"] == "U0lHTkVE"
    assert told["parts"][0]["functionResponse"]["response"] == {"error": "no"}


async def test_a_stream_of_google_that_ends_early_is_cut() -> None:
    async with at_root("google/gemini-test", google({"text": "half"}, whole=False)) as (model, _):
        with pytest.raises(ModelUnavailableError, match="cut"):
            await chunks(model)


def responses(*, whole: bool = True) -> Play:
    """A stream of OpenAI's responses: sealed reasoning and a call."""
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "SEALED"}
    calling = {"id": "fc_1", "type": "function_call", "call_id": "call_a", "name": "read", "arguments": ""}
    called = {**calling, "arguments": '{"path":"a"}', "status": "completed"}
    begun = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-test", "output": [], "tools": []}
    usage = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13, "input_tokens_details": {"cached_tokens": 2}}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**begun, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**reasoning, "encrypted_content": ""}},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": calling},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "fc_1", "delta": '{"path"'},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "fc_1", "delta": ':"a"}'},
        {"type": "response.output_item.done", "output_index": 1, "item": called},
    ]
    ended = {**begun, "status": "completed", "output": [reasoning, called], "usage": usage}
    if whole:
        events.append({"type": "response.completed", "response": ended})

    async def play(exchange: Exchange) -> None:
        for number, event in enumerate(events):
            await exchange.event({**event, "sequence_number": number}, name=event["type"])
        await exchange.end(finish=None, usage=None)

    return play


async def test_sealed_reasoning_of_openai_goes_back_before_its_call() -> None:
    async with at_root("openai/gpt-5", responses(), responses(), kind="openai-responses") as (model, stage):
        first = await answer(model)
        assert first.calls == (ToolCall(id="call_a", name="read", arguments='{"path":"a"}'),)
        assert (first.usage.input_tokens, first.usage.cache_read_tokens) == (9, 2)
        result = ToolResult(call_id="call_a", name="read", output="fine")
        await chunks(model, asked(Prompt(text="go"), stored(first), Results(results=(result,))))
    _, reasoning, called, told = stage.requests[1].body["input"]
    assert (reasoning["type"], reasoning["encrypted_content"]) == ("reasoning", "SEALED")
    assert (called["type"], called["call_id"], called["id"]) == ("function_call", "call_a", "fc_1")
    assert (told["type"], told["call_id"], told["output"]) == ("function_call_output", "call_a", "fine")


async def test_a_stream_of_responses_that_ends_early_is_cut() -> None:
    async with at_root("openai/gpt-5", responses(whole=False), kind="openai-responses") as (model, _):
        with pytest.raises(ModelUnavailableError, match="cut"):
            await chunks(model)


async def test_what_one_provider_sealed_is_not_sent_to_another() -> None:
    async with claude(anthropic(THOUGHT, SAID)) as (model, _):
        said = stored(await answer(model))
    async with on_stage() as (other, stage):
        await chunks(other, asked(Prompt(text="go"), said, Prompt(text="and?")))
    assert "SIGNED" not in json.dumps(stage.requests[0].body)
    assert "I look." in json.dumps(stage.requests[0].body)
