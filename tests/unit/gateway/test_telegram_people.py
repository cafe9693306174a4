"""Telegram: who is meant, who may do what, and what people see while they wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ConfigError, ModelError
from laneway.gateway.channels import channels_of
from laneway.gateway.channels.fields import Fields
from laneway.gateway.channels.telegram import TelegramOptions
from laneway.gateway.channels.telegram_records import Press
from laneway.models import call, fail, say
from laneway.rows import Owner
from tests.channel_stage import TOKEN, FakeBot, Timers, bot_of, grouped, mention, telegram_stage, written
from tests.gateway_stage import SIMPLE, gateway_in, spec_of
from tests.subagent_stage import Cast

ASKING = SIMPLE + "permissions:\n  default_decision: ask\nconfirmation:\n  default_timeout_ms: 100000000\n"
CHILD_ASKS = SIMPLE + (
    "subagents: true\npermissions: {default_decision: allow, ask: [write]}\n"
    "confirmation: {default_timeout_ms: 100000000}\n"
)
WRITES: list[list[Any]] = [[call("write", path="a.txt", content="hello")], [say("done")]]


async def test_in_a_group_the_bot_hears_only_who_speaks_to_it(tmp_path: Path) -> None:
    bot = FakeBot(
        grouped(1, "just talking"),
        grouped(2, "@LanewayBot, what is it?", mentions=mention("@LanewayBot, what is it?")),
        grouped(3, "@OtherBot do it", mentions=mention("@OtherBot do it", "otherbot")),
        grouped(4, "an answer to it", answers_user=42),
        grouped(5, "an answer to somebody", answers_user=9),
        grouped(6, "end @LanewayBot", mentions=mention("end @LanewayBot")),
    )
    async with telegram_stage(tmp_path, bot):
        await bot.until(lambda: len(bot.said) == 3)
    assert bot.texts(-100) == ["You said: what is it?", "You said: an answer to it", "You said: end @LanewayBot"]
    assert [text.reply_to for _, text in bot.said] == [2, 4, 6]


async def test_a_command_for_another_bot_is_none_of_ours(tmp_path: Path) -> None:
    bot = FakeBot(grouped(1, "/status@OtherBot"), grouped(2, "/status"), grouped(3, "/status@lanewaybot"))
    async with telegram_stage(tmp_path, bot) as (gateway, _):
        await bot.until(lambda: len(bot.said) == 1)
        rows = await gateway.store.history.messages(Owner("default", "default", "telegram:-100"))
    assert [row.platform_id for row in rows] == ["3"]


async def test_groups_may_be_listened_to_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    loud = FakeBot(grouped(1, "just talking"))
    async with telegram_stage(tmp_path, loud, channel={"groups": "all"}):
        await loud.until(lambda: bool(loud.said))
    quiet = FakeBot(grouped(2, "@LanewayBot hello", mentions=mention("@LanewayBot hello")), written(3, "hello"))
    async with telegram_stage(tmp_path, quiet, channel={"groups": "off"}):
        await quiet.until(lambda: bool(quiet.said))
    assert loud.texts() == ["You said: just talking"]
    assert quiet.texts() == ["You said: hello"]


async def test_a_thread_is_a_session_of_its_own_and_is_answered_there(tmp_path: Path) -> None:
    bot = FakeBot(grouped(1, "hello", thread_id=5, answers_user=42))
    async with telegram_stage(tmp_path, bot) as (gateway, _):
        await bot.until(lambda: bool(bot.said))
        sessions = await gateway.default.inbox.sessions()
    assert sessions == ["telegram:-100:5"]
    assert [(chat, text.thread_id) for chat, text in bot.said] == [(-100, 5)]


async def test_files_come_by_their_ids(tmp_path: Path) -> None:
    photo = {"kind": "photo", "source": "telegram", "file_id": "abc", "file_unique_id": "u"}
    bot = FakeBot(written(1, "", attachments=(photo,)))
    async with telegram_stage(tmp_path, bot) as (gateway, _):
        await bot.until(lambda: bool(bot.said))
        message = (await gateway.default.inbox.messages("telegram:7"))[0]
        story = await gateway.default.inbox.explain(message.message_id)
    assert story.message.attachments == (photo,)


async def test_a_stranger_approves_nothing_and_an_approver_does(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "write it"))
    settings = {"approvers": [8], "groups": "all"}
    async with telegram_stage(tmp_path, bot, channel=settings, text=ASKING, script=WRITES) as (gateway, _):
        await bot.until(lambda: bool(bot.said))
        approval = gateway.default.inbox.approvals()[0]
        _, asked = bot.said[0]
        assert approval.id in asked.text
        assert "a.txt" in asked.text
        assert [said for _, said in asked.buttons] == [f"approve:{approval.id}", f"deny:{approval.id}"]
        bot.push(written(2, f"/approve {approval.id}"))
        await bot.until(lambda: len(bot.said) == 2)
        assert [each.id for each in gateway.default.inbox.approvals()] == [approval.id]
        bot.push(written(3, f"/approve {approval.id}", user_id=8, user_name="Bob"))
        await bot.until(lambda: "done" in bot.texts())
        entries = await gateway.audit.entries("default")
    assert "approve" in bot.texts()[1]
    assert [(each.actor, each.action, each.target) for each in entries] == [
        ("telegram:8", "approval.approve", approval.id)
    ]
    assert (tmp_path / "a.txt").read_text() == "hello"


async def test_a_button_is_pressed_with_the_rights_of_who_presses_it(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "write it"))
    async with telegram_stage(tmp_path, bot, channel={"owners": [9]}, text=ASKING, script=WRITES) as (gateway, _):
        await bot.until(lambda: bool(bot.said))
        said = bot.said[0][1].buttons[0][1]
        bot.push(_press(2, "p1", said, user_id=7))
        await bot.until(lambda: len(bot.answers) == 1)
        assert len(gateway.default.inbox.approvals()) == 1
        bot.push(_press(3, "p2", said, user_id=9))
        await bot.until(lambda: "done" in bot.texts() and len(bot.answers) == 2)
    assert [press for press, _ in bot.answers] == ["p1", "p2"]
    assert "approved" in bot.answers[1][1]


def _press(number: int, press_id: str, said: str, *, user_id: int) -> Press:
    return Press(update_id=1000 + number, id=press_id, chat_id=7, chat_type="private", user_id=user_id, said=said)


async def test_whoever_hides_behind_a_chat_has_no_rights_of_a_user(tmp_path: Path) -> None:
    bot = FakeBot(grouped(1, "/stop@LanewayBot", user_id=9, as_chat_id=-100, is_bot=True))
    async with telegram_stage(tmp_path, bot, channel={"owners": [9], "rights": []}) as (gateway, _):
        await bot.until(lambda: bool(bot.said))
        message = (await gateway.default.inbox.messages("telegram:-100"))[0]
        sender = (await gateway.default.inbox.explain(message.message_id)).message.sender
    assert sender is not None
    assert (sender.id, sender.owner, sender.rights) == ("telegram:chat-100", False, ())
    assert "stop" in bot.texts()[0]


async def test_who_is_not_on_the_list_is_not_heard_and_bots_never_are(tmp_path: Path) -> None:
    bot = FakeBot(
        written(1, "let me in", user_id=6, chat_id=6), written(2, "I am a bot", is_bot=True), written(3, "hi")
    )
    async with telegram_stage(tmp_path, bot, channel={"users": [7]}) as (gateway, _):
        await bot.until(lambda: bool(bot.said))
        sessions = await gateway.default.inbox.sessions()
    assert (sessions, bot.texts()) == (["telegram:7"], ["You said: hi"])


async def test_people_see_that_it_was_seen_and_that_somebody_types(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "hello"))
    async with telegram_stage(tmp_path, bot):
        await bot.until(lambda: bool(bot.said and bot.typed and bot.reactions))
    assert bot.reactions == [(7, 1, "👀")]
    assert set(bot.typed) == {(7, 0)}


async def test_somebody_types_as_long_as_the_run_goes_on_and_no_longer(tmp_path: Path) -> None:
    timers = Timers()
    bot = FakeBot(written(1, "write it"))
    settings = {"receipts": "off"}
    async with telegram_stage(tmp_path, bot, timers=timers, channel=settings, text=ASKING, script=WRITES):
        await bot.until(lambda: bool(bot.said))
        assert timers.left == 0  # it waits for a person now
        typed = len(bot.typed)
    assert typed >= 1


async def test_a_failed_run_is_told_without_its_inner_life(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "hello"))
    async with telegram_stage(tmp_path, bot, script=[[fail(ModelError("secret reason"))]]):
        await bot.until(lambda: bool(bot.said))
    assert bot.texts()[0].startswith("This could not be answered")


async def test_what_is_said_over_the_api_is_not_said_in_the_chat(tmp_path: Path) -> None:
    bot = FakeBot()
    async with telegram_stage(tmp_path, bot) as (gateway, channel):
        receipt = await gateway.default.inbox.submit("telegram:7", "from elsewhere", channel="api")
        await gateway.default.inbox.wait(receipt.message_id)
        bot.push(written(1, "from here"))
        await bot.until(lambda: bool(bot.said))
        assert channel.outbox is not None
        await channel.outbox.quiet()
    assert bot.texts() == ["You said: from here"]


async def test_what_the_clock_asks_in_a_chat_is_answered_there(tmp_path: Path) -> None:
    bot = FakeBot()
    async with telegram_stage(tmp_path, bot) as (gateway, _):
        bot.push(written(1, "hello", chat_id=8, user_id=8))
        await bot.until(lambda: bool(bot.said))
        await gateway.default.inbox.submit("telegram:7", "the news", kind="system")
        await bot.until(lambda: len(bot.said) == 2)
    assert [chat for chat, _ in bot.said] == [8, 7]


async def test_two_bots_do_not_speak_for_each_other(tmp_path: Path) -> None:
    one, two = FakeBot(written(1, "to one")), FakeBot(written(1, "to two"))
    async with gateway_in(tmp_path) as gateway:
        first, second = bot_of(one, name="one"), bot_of(two, name="two", token="43:another-secret")
        await first.start(gateway)
        await second.start(gateway)
        await one.until(lambda: bool(one.said))
        await two.until(lambda: bool(two.said))
        await second.stop()
        await first.stop()
    assert (one.texts(), two.texts()) == (["You said: to one"], ["You said: to two"])


@pytest.mark.parametrize(
    ("block", "setting"),
    [
        ({}, "token"),
        ({"token": "no-token"}, "token"),
        ({"token": TOKEN, "groups": "some"}, "groups"),
        ({"token": TOKEN, "owners": [{}]}, "owners"),
        ({"token": TOKEN, "rights": ["approve"]}, "rights"),
        ({"token": TOKEN, "workspace": "nowhere"}, "workspace"),
        ({"token": TOKEN, "colour": "red"}, "colour"),
        ({"token": TOKEN, "api_url": "ftp://x"}, "api_url"),
    ],
)
def test_a_wrong_setting_is_named_and_the_token_is_not(block: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        channels_of({"tg": {"kind": "telegram", **block}}, ["default"])
    assert caught.value.setting == f"gateway.channels.tg.{setting}"
    assert TOKEN not in str(caught.value)
    assert TOKEN not in repr(vars(caught.value))


def test_secrets_are_in_no_text_that_a_record_makes_of_itself() -> None:
    options = TelegramOptions.read(Fields("tg", {"token": TOKEN}))
    assert "secret" not in repr(options)


async def test_what_a_sub_agent_asks_is_asked_in_the_chat_and_its_own_words_are_not_told_there(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "go"))
    cast = Cast(go=[[call("task", prompt="child")]], child=[[call("write", path="a.txt", content="x")]])
    specs = [spec_of(tmp_path, text=CHILD_ASKS, model=cast.model)]
    async with telegram_stage(tmp_path, bot, channel={"owners": [7]}, specs=specs) as (gateway, _):
        await bot.until(lambda: bool(bot.said))
        approval = gateway.default.inbox.approvals()[0]
        assert approval.session_key.startswith("telegram:7~")
        bot.push(written(2, f"/approve {approval.id}"))
        await bot.until(lambda: "done go" in bot.texts())
    assert approval.id in bot.texts()[0]
    assert "done child" not in bot.texts()
    assert (tmp_path / "a.txt").read_text() == "x"
