"""Telegram without Telegram: what is taken, what is said, and what a restart makes of both."""

from __future__ import annotations

from pathlib import Path

from laneway.errors import GiveUp, RetryLater, UnavailableError
from laneway.gateway.channels.port import ChannelRefusedError
from laneway.gateway.channels.telegram_records import Unreadable
from laneway.models import say
from laneway.rows import Owner
from laneway.stores.locks import lock_holder
from tests.channel_stage import FakeBot, Timers, telegram_stage, written


async def test_a_message_is_answered_in_its_chat(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "hello"))
    async with telegram_stage(tmp_path, bot):
        await bot.until(lambda: bool(bot.said))
    assert [(chat, text.text, text.format) for chat, text in bot.said] == [(7, "You said: hello", "plain")]
    assert bot.is_closed


async def test_an_update_is_acknowledged_only_after_its_message_is_on_disk(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "hello"))
    async with telegram_stage(tmp_path, bot) as (gateway, _):
        await bot.until(lambda: bot.acknowledged == 1002)
        rows = await gateway.store.history.messages(Owner("default", "default", "telegram:7"))
    assert [row.platform_id for row in rows] == ["1"]


async def test_an_update_that_comes_again_after_a_restart_runs_no_second_turn(tmp_path: Path) -> None:
    first = FakeBot(written(1, "hello"))
    async with telegram_stage(tmp_path, first):
        await first.until(lambda: bool(first.said))
    again = FakeBot(written(1, "hello"), written(2, "more"))
    async with telegram_stage(tmp_path, again) as (gateway, _):
        await again.until(lambda: bool(again.said))
        rows = await gateway.store.history.messages(Owner("default", "default", "telegram:7"))
    assert [row.platform_id for row in rows] == ["1", "2"]
    assert again.texts() == ["You said: more"]


async def test_an_answer_that_could_not_be_delivered_is_delivered_after_a_restart(tmp_path: Path) -> None:
    timers = Timers()
    bot = FakeBot(written(1, "hello"))
    bot.troubles = [UnavailableError("no network")]
    async with telegram_stage(tmp_path, bot, timers=timers):
        await bot.until(lambda: not bot.troubles)
    assert bot.said == []
    after = FakeBot()
    async with telegram_stage(tmp_path, after):
        await after.until(lambda: bool(after.said))
    assert after.texts() == ["You said: hello"]


async def test_what_was_sent_and_not_noted_is_sent_once_more_and_nothing_else_is(tmp_path: Path) -> None:
    first = FakeBot(written(1, "one"))
    async with telegram_stage(tmp_path, first):
        await first.until(lambda: len(first.said) == 1)
        # The next piece is sent, and the process ends before Telegram has said so.
        first.hangs_after_saying = True
        first.push(written(2, "two"))
        await first.until(lambda: len(first.said) == 2)
    after = FakeBot()
    async with telegram_stage(tmp_path, after) as (_, channel):
        await after.until(lambda: bool(after.said))
        assert channel.outbox is not None
        await channel.outbox.quiet()
    assert first.texts() == ["You said: one", "You said: two"]
    assert after.texts() == ["You said: two"]


async def test_after_a_clean_stop_nothing_is_said_again(tmp_path: Path) -> None:
    first = FakeBot(written(1, "one"), written(2, "/status"))
    async with telegram_stage(tmp_path, first):
        await first.until(lambda: len(first.said) == 2)
    after = FakeBot(written(3, "two"))
    async with telegram_stage(tmp_path, after) as (_, channel):
        await after.until(lambda: bool(after.said))
        assert channel.outbox is not None
        await channel.outbox.quiet()
    assert after.texts() == ["You said: two"]


async def test_only_the_pieces_that_are_missing_are_sent_after_a_restart(tmp_path: Path) -> None:
    text = "\n".join(f"{number:0>99}" for number in range(100))
    first = FakeBot(written(1, "go"))
    first.fails_from = 1
    async with telegram_stage(tmp_path, first, timers=Timers(), script=[[say(text)]]):
        await first.until(lambda: first.failed > 0)
    after = FakeBot()
    async with telegram_stage(tmp_path, after):
        await after.until(lambda: len(after.said) == 2)
    assert len(first.said) == 1
    assert "".join(first.texts() + after.texts()) == text


async def test_what_telegram_wants_later_is_sent_later_and_holds_up_no_other_chat(tmp_path: Path) -> None:
    timers = Timers()
    bot = FakeBot(written(1, "hello"))
    bot.troubles = [RetryLater(30_000, "flood")]
    settings = {"typing": False, "receipts": "off"}
    async with telegram_stage(tmp_path, bot, timers=timers, channel=settings):
        await bot.until(lambda: not bot.troubles)
        bot.push(written(2, "from another chat", chat_id=8, user_id=8))
        await bot.until(lambda: bool(bot.said))
        assert bot.texts() == ["You said: from another chat"]
        assert await timers.fire() == 30_000
        await bot.until(lambda: len(bot.said) == 2)
    assert bot.texts(7) == ["You said: hello"]


async def test_what_can_never_be_sent_is_in_the_log_of_operators_and_the_next_thing_is_sent(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "hello"), written(2, "again"))
    bot.troubles = [GiveUp("bot was blocked by the user")]
    async with telegram_stage(tmp_path, bot) as (gateway, _):
        await bot.until(lambda: bool(bot.said))
        entries = await gateway.audit.entries("default")
    assert bot.texts() == ["You said: again"]
    assert [(entry.actor, entry.action) for entry in entries] == [("channel:telegram", "channel.gave_up")]
    assert entries[0].reason == "bot was blocked by the user"


async def test_tries_go_further_and_further_apart_and_end(tmp_path: Path) -> None:
    timers = Timers()
    bot = FakeBot(written(1, "hello"))
    bot.troubles = [UnavailableError("no network")] * 13
    async with telegram_stage(tmp_path, bot, timers=timers, channel={"typing": False}) as (gateway, channel):
        delays = [await timers.fire() for _ in range(12)]
        await bot.until(lambda: not bot.troubles)
        assert channel.outbox is not None
        await channel.outbox.quiet()
        entries = await gateway.audit.entries("default")
    assert all(500 * 2**n <= delay <= 1000 * 2**n for n, delay in enumerate(delays[:9]))
    assert max(delays) <= 600_000
    assert [entry.action for entry in entries] == ["channel.gave_up"]


async def test_a_refused_token_ends_the_channel_and_nothing_else(tmp_path: Path) -> None:
    bot = FakeBot()
    bot.me_troubles = [ChannelRefusedError("Telegram does not accept the token")]
    async with telegram_stage(tmp_path, bot) as (gateway, channel):
        await bot.until(lambda: bot.is_closed)
        assert channel.problem == "Telegram does not accept the token"
        receipt = await gateway.default.inbox.submit("web", "hello")
        final = await gateway.default.inbox.wait(receipt.message_id)
    assert final.answer == "You said: hello"


async def test_a_token_that_is_revoked_while_something_is_said_ends_the_channel_and_loses_nothing(
    tmp_path: Path,
) -> None:
    bot = FakeBot(written(1, "hello"))
    bot.troubles = [ChannelRefusedError("Telegram does not accept the token")]
    async with telegram_stage(tmp_path, bot) as (_, channel):
        await bot.until(lambda: bot.is_closed)
        assert channel.problem == "Telegram does not accept the token"
    assert lock_holder(f"{tmp_path}/laneway.db") is None  # a channel that has ended lets go of the store
    after = FakeBot()
    async with telegram_stage(tmp_path, after):
        await after.until(lambda: bool(after.said))
    assert after.texts() == ["You said: hello"]


async def test_telegram_may_be_gone_at_the_start_and_while_it_is_asked(tmp_path: Path) -> None:
    timers = Timers()
    bot = FakeBot(written(1, "hello"))
    bot.me_troubles = [UnavailableError("no network"), RetryLater(5_000, "later")]
    bot.poll_troubles = [UnavailableError("another process asks")]
    async with telegram_stage(tmp_path, bot, timers=timers, channel={"typing": False}) as (_, channel):
        assert 500 <= await timers.fire() <= 1_000
        assert await timers.fire() == 5_000
        assert 500 <= await timers.fire() <= 1_000
        await bot.until(lambda: bool(bot.said))
        assert channel.problem == ""
    assert bot.texts() == ["You said: hello"]


async def test_updates_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    bot = FakeBot(Unreadable(update_id=1000), written(1, "hello"))
    async with telegram_stage(tmp_path, bot):
        await bot.until(lambda: bool(bot.said))
    assert bot.texts() == ["You said: hello"]


async def test_an_update_that_comes_twice_in_one_answer_is_one_message(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "hello"), written(1, "hello"), written(2, "end"))
    async with telegram_stage(tmp_path, bot) as (gateway, _):
        await bot.until(lambda: len(bot.said) == 2)
        rows = await gateway.store.history.messages(Owner("default", "default", "telegram:7"))
    assert [row.platform_id for row in rows] == ["1", "2"]


async def test_a_message_that_is_too_long_is_refused_to_its_sender_and_those_after_it_are_taken(tmp_path: Path) -> None:
    bot = FakeBot(written(1, "x" * 1_000_001), written(2, "hello"))
    async with telegram_stage(tmp_path, bot):
        await bot.until(lambda: len(bot.said) == 2)
    assert sorted(text[:20] for text in bot.texts()) == ["This was not taken: ", "You said: hello"]
