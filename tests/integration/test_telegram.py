"""The channel of Telegram with its real library, against a stand-in of the Bot API on this machine."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from laneway.gateway.channels import running, start_channels
from laneway.gateway.channels.telegram import TelegramChannel
from laneway.gateway.service import Gateway
from laneway.models import call, say
from laneway.rows import Owner
from tests.gateway_stage import SIMPLE, gateway_in
from tests.integration.telegram_stand_in import TOKEN, StandIn, error_body, standing_in

pytestmark = pytest.mark.slow

ASKING = SIMPLE + "permissions:\n  default_decision: ask\nconfirmation:\n  default_timeout_ms: 100000000\n"


@contextlib.asynccontextmanager
async def bot_stage(folder: Path, api: StandIn, *, token: str = TOKEN, **options: Any) -> AsyncIterator[Gateway]:
    """A gateway with the bot, made from its configuration."""
    block = {"kind": "telegram", "token": token, "api_url": api.url, "poll_s": 5, **options.pop("channel", {})}
    async with gateway_in(folder, channels={"telegram": block}, **options) as gateway:
        started = await start_channels(gateway)
        try:
            yield gateway
        finally:
            for channel in started:
                await channel.stop()


def channel_of(gateway: Gateway) -> TelegramChannel:
    """The bot of a gateway."""
    channel = running(gateway)["telegram"]
    assert isinstance(channel, TelegramChannel)
    return channel


async def test_a_conversation_with_files_threads_mentions_and_buttons(tmp_path: Path) -> None:
    async with standing_in() as api:
        script = [[say("a")], [say("b")], [call("write", path="x.txt", content="hi")], [say("written")]]
        async with bot_stage(tmp_path, api, channel={"owners": [7]}, text=ASKING, script=script) as gateway:
            photo = [{"file_id": "F", "file_unique_id": "U", "width": 1, "height": 1}]
            api.write(1, None, caption="look", photo=photo)
            await api.until(lambda: api.texts() == ["a"])
            text = "😀 @LanewayBot hello"
            entity = {"type": "mention", "offset": 3, "length": 11}
            api.write(2, text, chat_id=-5, entities=[entity], message_thread_id=3, is_topic_message=True)
            await api.until(lambda: len(api.texts()) == 2)
            api.write(3, "write it")
            await api.until(lambda: len(api.texts()) == 3)
            markup = json.loads(api.of("sendMessage")[2]["reply_markup"])
            pressed = markup["inline_keyboard"][0][0]["callback_data"]
            user = {"id": 7, "is_bot": False, "first_name": "Ada"}
            shown = {"message_id": 9003, "date": 1, "chat": {"id": 7, "type": "private"}}
            query = {"id": "q1", "from": user, "chat_instance": "c", "data": pressed, "message": shown}
            api.push({"callback_query": query})
            await api.until(lambda: "written" in api.texts() and bool(api.of("answerCallbackQuery")))
            rows = await gateway.store.history.messages(Owner("default", "default", "telegram:7"))
            sessions = await gateway.default.inbox.sessions()
    first = json.loads(rows[0].body)
    assert (first["text"], first["attachments"][0]["file_id"]) == ("look", "F")
    assert sessions == ["telegram:-5:3", "telegram:7"]
    answer = api.of("sendMessage")[1]
    assert (answer["chat_id"], answer["message_thread_id"]) == ("-5", "3")
    assert json.loads(answer["reply_parameters"])["message_id"] == 2
    assert "parse_mode" not in answer
    assert api.of("setMessageReaction")[0]["message_id"] == "1"
    assert api.of("sendChatAction")[0]["action"] == "typing"
    assert "approved" in api.of("answerCallbackQuery")[0]["text"]


async def test_what_the_api_does_wrong_costs_no_message_and_no_answer(tmp_path: Path) -> None:
    async with standing_in() as api:
        api.troubles = {
            "getMe": [(502, "<html>bad gateway</html>")],
            "getUpdates": [(500, error_body(500, "Internal Server Error")), (200, "garbage"), (200, '{"ok": true}')],
            "sendMessage": [
                (429, error_body(429, "Too Many Requests: retry after 1", retry_after=1)),
                (500, error_body(500, "Internal Server Error")),
            ],
            "setMessageReaction": [(400, error_body(400, "Bad Request: REACTION_INVALID"))],
        }
        same = api.write(1, "hello")
        api.pending.append(dict(same))  # twice in one answer
        api.push({"message": {"message_id": "what", "chat": []}})  # it cannot be read
        api.push({"poll_answer": {"poll_id": "1", "option_ids": []}})
        api.write(2, "more", chat_id=8)
        async with bot_stage(tmp_path, api) as gateway:
            await api.until(lambda: len(api.texts()) == 2)
            messages = await gateway.default.inbox.messages()
            problem = channel_of(gateway).problem
    assert sorted(api.texts()) == ["You said: hello", "You said: more"]
    assert (len(messages), problem) == (2, "")


async def test_a_wrong_token_ends_the_channel_and_is_shown_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "42:WRONG-and-very-secret"
    async with standing_in() as api, bot_stage(tmp_path, api, token=wrong) as gateway:
        channel = channel_of(gateway)
        assert channel._run is not None  # noqa: SLF001 - its end is what is waited for
        await channel._run  # noqa: SLF001
        receipt = await gateway.default.inbox.submit("web", "hello")
        final = await gateway.default.inbox.wait(receipt.message_id)
    assert channel.problem == "Telegram does not accept the token"
    assert final.answer == "You said: hello"
    assert "very-secret" not in caplog.text
    assert "has stopped" in caplog.text


async def test_a_chat_that_blocks_the_bot_and_markup_that_is_wrong(tmp_path: Path) -> None:
    async with standing_in() as api:
        api.troubles["sendMessage"] = [
            (403, error_body(403, "Forbidden: bot was blocked by the user")),
            (400, error_body(400, "Bad Request: can't parse entities: unclosed *")),
        ]
        async with bot_stage(tmp_path, api, channel={"format": "markdown"}) as gateway:
            api.write(1, "one")
            await api.until(lambda: len(api.troubles["sendMessage"]) == 1)
            api.write(2, "two *")
            await api.until(lambda: bool(api.texts()))
            entries = await gateway.audit.entries("default")
    assert api.texts() == ["You said: two *"]
    assert "parse_mode" not in api.of("sendMessage")[0]
    assert [entry.action for entry in entries] == ["channel.gave_up"]
