"""The real client of OpenAI against a real server: what it sends is understood, what it gets it understands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from laneway.errors import ModelError, ModelUnavailableError
from laneway.events import Event
from laneway.models.scripted import call, cut, fail, say
from tests.gateway_stage import GatewayStage, serving, spec_of

HELLO: Any = [{"role": "user", "content": "hello"}]
COLLECT = "default_model: scripted\nqueue:\n  mode: collect\n  debounce_idle: false\n  debounce_ms: 0\n"


@contextlib.asynccontextmanager
async def clients(folder: Path, **options: Any) -> AsyncIterator[tuple[AsyncOpenAI, GatewayStage]]:
    """A client that knows nothing but the address."""
    retries = options.pop("max_retries", 0)
    async with (
        serving(folder, **options) as stage,
        AsyncOpenAI(base_url=f"{stage.url}/v1", api_key="dummy", max_retries=retries, timeout=60) as client,
    ):
        yield client, stage


class Gate:
    """A place in a script where the model waits until it is let on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()


async def heard(stage: GatewayStage, kind: str, count: int = 1) -> None:
    """Wait until so many events of a kind have happened from now on."""
    done = asyncio.get_running_loop().create_future()
    seen: list[Event] = []

    def listen(event: Event) -> None:
        if event.type == kind:
            seen.append(event)
        if len(seen) >= count and not done.done():
            done.set_result(None)

    forget = stage.gateway.default.inbox.engine.listen(listen)
    try:
        await done
    finally:
        forget()


# ---- chat completions ----


async def test_a_completion_has_the_answer_and_what_it_took(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, _):
        answer = await client.chat.completions.create(model="laneway", messages=HELLO)
        assert answer.choices[0].message.content == "You said: hello"
        assert (answer.choices[0].finish_reason, answer.object, answer.model) == ("stop", "chat.completion", "laneway")
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


async def test_the_client_that_blocks_works_as_well(tmp_path: Path) -> None:
    async with serving(tmp_path) as stage:

        def talk() -> tuple[str | None, str, list[str]]:
            with OpenAI(base_url=f"{stage.url}/v1", api_key="dummy", max_retries=0) as client:
                whole = client.chat.completions.create(model="laneway", messages=HELLO)
                pieces = client.chat.completions.create(model="laneway", messages=HELLO, stream=True)
                text = "".join(each.choices[0].delta.content or "" for each in pieces)
                return whole.choices[0].message.content, text, [each.id for each in client.models.list()]

        whole, text, models = await asyncio.to_thread(talk)
        assert whole == text == "You said: hello"
        assert models == ["laneway", "laneway/default"]


async def test_a_stream_has_the_answer_in_pieces_and_the_usage_at_its_end(tmp_path: Path) -> None:
    async with clients(tmp_path, script=[[say("one two three four five six seven")]]) as (client, _):
        stream = await client.chat.completions.create(
            model="laneway", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        pieces = [each.choices[0].delta.content for each in chunks if each.choices and each.choices[0].delta.content]
        assert "".join(pieces) == "one two three four five six seven"
        assert len(pieces) > 1
        assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens > 0
        assert all(each.usage is None for each in chunks[:-1])
        assert len({each.id for each in chunks}) == 1


async def test_a_stream_has_what_is_said_between_calls_and_a_whole_answer_has_not(tmp_path: Path) -> None:
    script = [[say("Let me look."), call("ls", path=".")], [say("Nothing there.")]] * 2
    async with clients(tmp_path, script=script) as (client, _):
        stream = await client.chat.completions.create(model="laneway", messages=HELLO, stream=True)
        text = "".join([each.choices[0].delta.content or "" async for each in stream])
        whole = await client.chat.completions.create(model="laneway", messages=HELLO)
        assert text == "Let me look.\n\nNothing there."
        assert whole.choices[0].message.content == "Nothing there."


async def test_with_a_session_key_only_the_newest_message_is_sent_and_the_session_knows_the_rest(
    tmp_path: Path,
) -> None:
    async with clients(tmp_path) as (client, stage):
        told: Any = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "an old one"},
            {"role": "assistant", "content": "an old answer"},
            {"role": "user", "content": "the newest"},
        ]
        await client.chat.completions.create(model="laneway", messages=HELLO, user="anna")
        answer = await client.chat.completions.create(model="laneway", messages=told, user="anna")
        header = {"Laneway-Session": "anna"}
        third = await client.chat.completions.with_raw_response.create(
            model="laneway", messages=HELLO, user="berta", extra_headers=header
        )
        assert answer.choices[0].message.content == "You said: the newest"
        assert third.headers["laneway-session"] == "anna"
        entries = await stage.gateway.default.inbox.history("anna")
        assert [each.text for each in entries if each.role == "user"] == ["hello", "the newest", "hello"]


async def test_without_a_key_each_request_is_a_session_of_its_own_that_is_told_what_was_said(tmp_path: Path) -> None:
    async with clients(tmp_path, script=[[say("one")], [say("two")]]) as (client, stage):
        told: Any = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "my name is Anna"},
            {"role": "assistant", "content": "hello Anna"},
            {"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "text", "text": "my name?"}]},
        ]
        first = await client.chat.completions.with_raw_response.create(model="laneway", messages=HELLO)
        second = await client.chat.completions.with_raw_response.create(model="laneway", messages=told)
        keys = {first.headers["laneway-session"], second.headers["laneway-session"]}
        assert len(keys) == 2
        entries = await stage.gateway.default.inbox.history(second.headers["laneway-session"])
        assert entries[0].text == (
            "Instructions of the caller:\nbe brief\n\nWhat was said before, as the caller tells it:\n\n"
            "[user]\nmy name is Anna\n\n[assistant]\nhello Anna\n\nAnswer this message now:\nwhat is\nmy name?"
        )


async def test_two_callers_whose_messages_are_merged_both_get_the_answer(tmp_path: Path) -> None:
    gate = Gate()
    script = [[gate, say("first")], [say("one for both")]]
    async with clients(tmp_path, script=script, text=COLLECT) as (client, stage):

        async def ask(text: str, **more: Any) -> Any:
            messages: Any = [{"role": "user", "content": text}]
            return await client.chat.completions.create(model="laneway", messages=messages, user="anna", **more)

        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask("begin"))
            await gate.reached.wait()
            waiting = group.create_task(heard(stage, "message.accepted", 2))
            await asyncio.sleep(0)
            second = group.create_task(ask("a"))
            stream = await ask("b", stream=True)
            await waiting
            gate.opened.set()
            text = "".join([each.choices[0].delta.content or "" async for each in stream])
        assert first.result().choices[0].message.content == "first"
        assert second.result().choices[0].message.content == text == "one for both"


async def test_a_stream_that_waits_in_the_queue_is_held_open_with_comments(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[gate, say("first")], [say("second")]], heartbeat_ms=20) as (client, stage):
        first = asyncio.ensure_future(client.chat.completions.create(model="laneway", messages=HELLO, user="anna"))
        await gate.reached.wait()
        body = {"model": "laneway", "messages": HELLO, "user": "anna", "stream": True}
        lines = []
        async with stage.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if line == ": beat":
                    gate.opened.set()
        await first
        assert lines[2] == ": waits at position 1"
        assert ": beat" in lines
        assert lines[-2:] == ["data: [DONE]", ""]


async def test_a_client_that_goes_cancels_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[say("be"), gate, say("gun")]]) as (client, stage):
        stream = await client.chat.completions.create(model="laneway", messages=HELLO, user="anna", stream=True)
        await gate.reached.wait()
        await stream.close()
        whole = asyncio.ensure_future(client.chat.completions.create(model="laneway", messages=HELLO, user="anna"))
        await heard(stage, "message.accepted")
        whole.cancel()
        gate.opened.set()
        session = await stage.gateway.default.session("default", "anna")
        await session.wait_idle()
        entries = await stage.gateway.default.inbox.history("anna")
        assert [each.text for each in entries if each.role == "assistant"] == ["begun", "done"]


async def test_a_command_is_answered_like_a_message(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, _):
        command: Any = [{"role": "user", "content": "/status"}]
        answer = await client.chat.completions.create(model="laneway", messages=command, user="anna")
        stream = await client.chat.completions.create(model="laneway", messages=command, user="anna", stream=True)
        text = "".join([each.choices[0].delta.content or "" async for each in stream])
        assert answer.choices[0].message.content == text
        assert "mode" in text.lower()


# ---- errors ----


async def test_errors_are_the_exceptions_that_the_client_has_for_them(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, stage):
        create = client.chat.completions.create
        with pytest.raises(openai.NotFoundError) as unknown:
            await create(model="gpt-5", messages=HELLO)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        function: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
        with pytest.raises(openai.BadRequestError) as tools:
            await create(model="laneway", messages=HELLO, tools=[function])
        assert (tools.value.param, tools.value.type) == ("tools", "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as many:
            await create(model="laneway", messages=HELLO, n=2)
        assert many.value.param == "n"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_msg-1")
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("laneway/nowhere")
        await stage.token("chat")
        with pytest.raises(openai.AuthenticationError) as stranger:
            await create(model="laneway", messages=HELLO)
        assert stranger.value.type == "authentication_error"


async def test_a_token_counts_and_one_of_another_scope_does_not(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, stage):
        chat, worker = await stage.token("chat"), await stage.token("worker")
        answer = await client.chat.completions.create(model="laneway", messages=HELLO, extra_headers=chat)
        assert answer.choices[0].message.content == "You said: hello"
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(model="laneway", messages=HELLO, extra_headers=worker)


async def test_a_full_gateway_is_tried_again_later_and_nothing_was_run(tmp_path: Path) -> None:
    async with clients(tmp_path, waiting_max=0) as (client, stage):
        with pytest.raises(openai.InternalServerError) as full:
            await client.chat.completions.create(model="laneway", messages=HELLO)
        assert full.value.response.headers["retry-after"] == "5"
        assert "x-should-retry" not in full.value.response.headers
        assert await stage.gateway.default.inbox.sessions() == []


async def test_a_session_that_is_full_is_a_rate_limit(tmp_path: Path) -> None:
    gate = Gate()
    text = "default_model: scripted\nqueue:\n  mode: followup\n  debounce_idle: false\n  cap: 1\n  drop: new\n"
    async with clients(tmp_path, script=[[gate]], text=text) as (client, stage):
        first = asyncio.ensure_future(client.chat.completions.create(model="laneway", messages=HELLO, user="anna"))
        await gate.reached.wait()
        second = asyncio.ensure_future(client.chat.completions.create(model="laneway", messages=HELLO, user="anna"))
        await heard(stage, "message.accepted")
        with pytest.raises(openai.RateLimitError) as full:
            await client.chat.completions.create(model="laneway", messages=HELLO, user="anna")
        assert int(full.value.response.headers["retry-after"]) >= 1
        gate.opened.set()
        await asyncio.gather(first, second)


async def test_a_run_that_fails_is_an_error_that_no_client_tries_again_by_itself(tmp_path: Path) -> None:
    script = [[fail(ModelError("the key is wrong"))], [say("never")]]
    async with clients(tmp_path, script=script, max_retries=2) as (client, stage):
        with pytest.raises(openai.APIStatusError) as failed:
            await client.chat.completions.create(model="laneway", messages=HELLO, user="anna")
        assert failed.value.response.headers["x-should-retry"] == "false"
        assert "the key is wrong" in failed.value.message
        assert len(await stage.gateway.default.inbox.messages("anna")) == 1


async def test_a_stream_whose_run_fails_ends_with_the_error(tmp_path: Path) -> None:
    script = [[say("well, "), fail(ModelError("the key is wrong"))]]
    async with clients(tmp_path, script=script) as (client, _):
        stream = await client.chat.completions.create(model="laneway", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="the key is wrong"):
            async for _ in stream:
                pass


async def test_a_run_that_is_cancelled_by_somebody_is_an_error_of_its_callers(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[gate]]) as (client, stage):
        asked = asyncio.ensure_future(client.chat.completions.create(model="laneway", messages=HELLO, user="anna"))
        await gate.reached.wait()
        await stage.gateway.default.inbox.cancel("anna", "enough")
        with pytest.raises(openai.InternalServerError, match="enough"):
            await asked


# ---- trying again ----


async def test_the_same_idempotency_key_is_answered_by_the_same_run(tmp_path: Path) -> None:
    async with clients(tmp_path, script=[[say("once")], [say("twice")]]) as (client, stage):
        create = client.chat.completions.create
        header = {"Idempotency-Key": "k1"}
        first = await create(model="laneway", messages=HELLO, extra_headers=header)
        again = await create(model="laneway", messages=HELLO, extra_headers=header)
        stream = await create(model="laneway", messages=HELLO, extra_headers=header, stream=True)
        text = "".join([each.choices[0].delta.content or "" async for each in stream])
        assert first.choices[0].message.content == again.choices[0].message.content == text == "once"
        assert first.id == again.id
        other: Any = [{"role": "user", "content": "something else"}]
        with pytest.raises(openai.ConflictError):
            await create(model="laneway", messages=other, extra_headers=header)
        assert len(await stage.gateway.default.inbox.sessions()) == 1


async def test_a_client_that_gives_up_and_tries_again_runs_nothing_twice(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[gate, say("once")], [say("twice")]], max_retries=20) as (client, stage):
        impatient = client.with_options(timeout=0.3)
        asked = asyncio.ensure_future(impatient.chat.completions.create(model="laneway", messages=HELLO))
        await gate.reached.wait()
        await asyncio.sleep(0.5)  # the client has given up once
        gate.opened.set()
        answer = await asked
        assert answer.choices[0].message.content == "once"
        assert len(await stage.gateway.default.inbox.sessions()) == 1


async def test_a_second_try_after_a_restart_is_answered_by_what_the_first_has_begun(tmp_path: Path) -> None:
    gate = Gate()
    body = {"model": "laneway", "messages": HELLO}
    async with serving(tmp_path, script=[[gate]], drain_ms=0) as stage:
        first = asyncio.ensure_future(stage.client.post("/v1/chat/completions", json=body))
        await gate.reached.wait()
        stage.gateway.begin_stop()
        stopped = await first
        assert (stopped.status_code, stopped.json()["error"]["code"]) == (503, "stopping")
        assert stopped.headers["x-should-retry"] == "false"
    held = Gate()
    async with serving(tmp_path, script=[[held, say("gone on")], [say("twice")]]) as stage:
        retry = {"x-stainless-retry-count": "1"}
        again = asyncio.ensure_future(stage.client.post("/v1/chat/completions", json=body, headers=retry))
        await held.reached.wait()
        held.opened.set()
        answer = await again
        assert answer.json()["choices"][0]["message"]["content"] == "gone on"
        assert len(await stage.gateway.default.inbox.sessions()) == 1


async def test_a_second_try_after_a_restart_is_answered_by_what_has_ended_meanwhile(tmp_path: Path) -> None:
    gate = Gate()
    body = {"model": "laneway", "messages": HELLO}
    async with serving(tmp_path, script=[[gate]], drain_ms=0) as stage:
        first = asyncio.ensure_future(stage.client.post("/v1/chat/completions", json=body))
        await gate.reached.wait()
        stage.gateway.begin_stop()
        taken = (await first).json()["error"]["message"]
    async with serving(tmp_path, script=[[say("gone on")], [say("twice")], [say("meant")]]) as stage:
        inbox = stage.gateway.default.inbox
        (key,) = await inbox.sessions()
        (only,) = await inbox.messages(key)
        assert only.message_id in taken
        assert (await inbox.wait(only.message_id)).answer == "gone on"
        retry = {"x-stainless-retry-count": "1"}
        answers = [
            (await stage.client.post("/v1/chat/completions", json=body, headers=headers)).json()
            for headers in (retry, {}, retry)
        ]
        texts = [each["choices"][0]["message"]["content"] for each in answers]
        assert texts == ["gone on", "twice", "meant"]  # who has got its answer and asks again means it


async def test_a_second_try_never_takes_the_answer_of_somebody_who_waits(tmp_path: Path) -> None:
    gate = Gate()
    body = {"model": "laneway", "messages": HELLO}
    async with serving(tmp_path, script=[[gate, say("one")], [say("two")]]) as stage:
        first = asyncio.ensure_future(stage.client.post("/v1/chat/completions", json=body))
        await gate.reached.wait()
        retry = {"x-stainless-retry-count": "1"}
        other = await stage.client.post("/v1/chat/completions", json=body, headers=retry)
        gate.opened.set()
        assert other.json()["choices"][0]["message"]["content"] == "two"
        assert (await first).json()["choices"][0]["message"]["content"] == "one"


async def test_a_response_in_the_background_that_was_told_is_not_taken_for_a_second_try(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[gate], [gate]]) as (client, _):
        first = await client.responses.create(model="laneway", input="hello", background=True)
        retry = {"x-stainless-retry-count": "1"}
        second = await client.responses.create(model="laneway", input="hello", background=True, extra_headers=retry)
        gate.opened.set()
        assert first.id != second.id


# ---- the end of listening ----


async def test_a_server_that_stops_says_so_to_those_who_listen(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[say("so far"), gate]], drain_ms=0) as (client, stage):
        chat = await client.chat.completions.create(model="laneway", messages=HELLO, stream=True)
        made = await client.responses.create(model="laneway", input="hello", stream=True)
        await gate.reached.wait()
        stage.gateway.begin_stop()
        with pytest.raises(openai.APIError, match="being stopped"):
            async for _ in chat:
                pass
        last = [each async for each in made][-1]
        assert (last.type, getattr(last, "code", "")) == ("error", "stopping")
        with pytest.raises(openai.InternalServerError) as late:
            await client.chat.completions.create(model="laneway", messages=HELLO)
        assert "retry-after" in late.value.response.headers


async def test_a_token_that_is_revoked_ends_what_was_asked_with_it_and_the_run_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[say("so far"), gate], [gate]]) as (client, stage):
        headers = await stage.token("chat")
        create = client.chat.completions.create
        stream = await create(model="laneway", messages=HELLO, stream=True, user="a", extra_headers=headers)
        await gate.reached.wait()
        whole = asyncio.ensure_future(create(model="laneway", messages=HELLO, user="b", extra_headers=headers))
        await heard(stage, "turn.started")
        (token,) = stage.gateway.tokens.tokens()
        await stage.gateway.tokens.revoke(token.id)
        with pytest.raises(openai.APIError, match="does not count"):
            async for _ in stream:
                pass
        with pytest.raises(openai.AuthenticationError):
            await whole
        gate.opened.set()
        session = await stage.gateway.default.session("default", "a")
        await session.wait_idle()
        assert [each.text for each in await stage.gateway.default.inbox.history("a")] == ["hello", "so far"]


# ---- responses ----


async def test_a_response_has_the_answer_and_is_found_again_after_a_restart(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, _):
        made = await client.responses.create(model="laneway", input="hello", store=True)
        assert (made.status, made.output_text) == ("completed", "You said: hello")
        assert made.usage is not None
        assert made.usage.total_tokens > 0
    async with clients(tmp_path) as (client, _):
        found = await client.responses.retrieve(made.id)
        assert (found.status, found.output_text, found.usage) == ("completed", "You said: hello", made.usage)
        assert (found.created_at, found.model) == (made.created_at, "laneway")
        assert found.output == made.output


async def test_a_response_goes_on_where_another_ended(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, stage):
        first = await client.responses.create(model="laneway", input="one", instructions="be brief")
        second = await client.responses.create(model="laneway", input="two", previous_response_id=first.id)
        third = await client.responses.create(model="laneway", input="three", conversation="talk")
        fourth = await client.responses.create(model="laneway", input="four", conversation={"id": "talk"})
        assert second.previous_response_id == first.id
        assert first.conversation is not None
        assert second.conversation == first.conversation
        texts = [each.text for each in await stage.gateway.default.inbox.history(first.conversation.id)]
        assert texts[0].startswith("Instructions of the caller:\nbe brief")
        assert texts[2] == "two"
        assert (third.output_text, fourth.output_text) == ("You said: three", "You said: four")
        assert fourth.conversation is not None
        assert fourth.conversation.id == "talk"
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(
                model="laneway", input="x", conversation="talk", previous_response_id=first.id
            )


async def test_the_events_of_a_response_come_in_order(tmp_path: Path) -> None:
    script = [[say("Let me look."), call("ls", path=".")], [say("Nothing there at all.")]]
    async with clients(tmp_path, script=script) as (client, _):
        stream = await client.responses.create(model="laneway", input="look", stream=True)
        events = [each async for each in stream]
        kinds = [each.type.removeprefix("response.") for each in events]
        item = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
        item += ["content_part.done", "output_item.done"]
        assert list(dict.fromkeys(kinds)) == ["created", "in_progress", *item, "completed"]
        assert [kind for kind in kinds if kind != "output_text.delta"].count("output_item.done") == 2
        assert [each.sequence_number for each in events] == list(range(len(events)))
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.output_text == "Let me look.Nothing there at all."
        found = await client.responses.retrieve(last.response.id)
        assert found.output == last.response.output
        assert found.usage == last.response.usage


async def test_the_stream_of_the_client_understands_a_response(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, _):
        async with client.responses.stream(model="laneway", input="hello") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "You said: hello"
        assert kinds[-1] == "response.completed"


async def test_a_response_in_the_background_is_asked_for_until_it_is_there(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[say("so "), gate, say("far")]]) as (client, _):
        made = await client.responses.create(model="laneway", input="hello", background=True)
        assert made.status in ("queued", "in_progress")
        assert (made.background, made.output) == (True, [])
        await gate.reached.wait()
        found = await client.responses.retrieve(made.id)
        assert found.status == "in_progress"
        stream = await client.responses.retrieve(made.id, stream=True)
        gate.opened.set()
        events = [each async for each in stream]
        assert next(each.delta for each in events if each.type == "response.output_text.delta").startswith("so")
        done = await client.responses.retrieve(made.id)
        assert (done.status, done.output_text) == ("completed", "so far")
        with pytest.raises(openai.BadRequestError):
            await client.responses.retrieve(made.id, stream=True, starting_after=3)


async def test_a_response_is_cancelled_while_it_waits_and_while_it_runs(tmp_path: Path) -> None:
    gate = Gate()
    async with clients(tmp_path, script=[[gate]]) as (client, _):

        async def begin() -> Response:
            return await client.responses.create(model="laneway", input="hello", background=True, conversation="c")

        running = await begin()
        await gate.reached.wait()
        waiting = await begin()
        assert (await client.responses.cancel(waiting.id)).status == "cancelled"
        assert (await client.responses.cancel(running.id)).status == "cancelled"
        assert (await client.responses.cancel(running.id)).status == "cancelled"
        assert (await client.responses.retrieve(running.id)).status == "cancelled"
        done = await client.responses.create(model="laneway", input="hello", conversation="c")
        assert (await client.responses.cancel(done.id)).status == "completed"


async def test_a_response_that_many_cancel_at_once_is_cancelled_for_each_of_them(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(5)]
    async with clients(tmp_path, script=[[gate] for gate in gates]) as (client, _):
        for gate in gates:
            made = await client.responses.create(model="laneway", input="hello", background=True)
            await gate.reached.wait()
            found = await asyncio.gather(*(client.responses.cancel(made.id) for _ in range(20)))
            assert {each.status for each in found} == {"cancelled"}


async def test_a_run_that_answers_others_too_is_not_cancelled_for_one(tmp_path: Path) -> None:
    first, second = Gate(), Gate()
    script = [[first, say("first")], [second, say("both")]]
    async with clients(tmp_path, script=script, text=COLLECT) as (client, _):

        async def begin(text: str) -> Response:
            return await client.responses.create(model="laneway", input=text, background=True, conversation="c")

        await begin("one")
        await first.reached.wait()
        mine, _ = await begin("two"), await begin("three")
        first.opened.set()
        await second.reached.wait()
        with pytest.raises(openai.ConflictError, match="other messages"):
            await client.responses.cancel(mine.id)
        second.opened.set()


async def test_a_response_whose_run_fails_says_why(tmp_path: Path) -> None:
    script = [[fail(ModelError("the key is wrong"))]] * 3
    async with clients(tmp_path, script=script) as (client, _):
        with pytest.raises(openai.APIStatusError, match="the key is wrong"):
            await client.responses.create(model="laneway", input="hello")
        stream = await client.responses.create(model="laneway", input="hello", stream=True)
        last = [each async for each in stream][-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert "the key is wrong" in last.response.error.message
        found = await client.responses.retrieve(last.response.id)
        assert found.status == "failed"
        assert found.error is not None
        assert "the key is wrong" in found.error.message


async def test_text_of_a_model_call_that_broke_off_is_an_item_of_its_own(tmp_path: Path) -> None:
    script = [[cut("half an ans")], [say("a whole answer")]]
    async with clients(tmp_path, script=script) as (client, _):
        stream = await client.responses.create(model="laneway", input="hello", stream=True)
        events = [each async for each in stream]
        done = [each.text for each in events if each.type == "response.output_text.done"]
        assert done == ["half an ans", "a whole answer"]
        assert (await client.responses.retrieve(events[-1].response.id)).output_text == "a whole answer"  # type: ignore[union-attr]


async def test_each_workspace_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    specs = [spec_of(tmp_path), spec_of(tmp_path / "b", name="other")]
    async with clients(tmp_path, specs=specs) as (client, stage):
        listed = [each.id async for each in client.models.list()]
        assert listed == ["laneway", "laneway/default", "laneway/other"]
        assert (await client.models.retrieve("laneway/other")).id == "laneway/other"
        made = await client.responses.create(model="laneway/other", input="hello")
        assert made.model == "laneway/other"
        assert await stage.gateway.workspaces["other"].inbox.sessions() != []
        assert (await client.responses.retrieve(made.id)).model == "laneway/other"


async def test_other_tenants_find_nothing(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, stage):
        mine, theirs = await stage.token("chat", tenant="a"), await stage.token("chat", tenant="b")
        made = await client.responses.create(model="laneway", input="hello", extra_headers=mine)
        for act in (client.responses.retrieve, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await act(made.id, extra_headers=theirs)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(
                model="laneway", input="x", previous_response_id=made.id, extra_headers=theirs
            )


async def test_a_model_that_cannot_be_reached_is_waited_for(tmp_path: Path) -> None:
    script = [[fail(ModelUnavailableError("busy", model="scripted"))], [say("now")]]
    async with clients(tmp_path, script=script) as (client, _):
        answer = await client.chat.completions.create(model="laneway", messages=HELLO)
        assert answer.choices[0].message.content == "now"
