"""Telegram while the store fails, while the server stops, and after another process has taken the store."""

from __future__ import annotations

from pathlib import Path

from laneway.errors import FencedError
from laneway.gateway.tokens import GATEWAY
from laneway.rows import Owner
from laneway.stores import open_store
from laneway.testing.faults import FaultyStore
from tests.channel_stage import FakeBot, Timers, telegram_stage, written

CURSORS = Owner("default", GATEWAY, "channel:telegram")
PLAIN = {"typing": False, "receipts": "off"}


def faulty(folder: Path) -> FaultyStore:
    """A store on a file that fails as told."""
    return FaultyStore(open_store(f"sqlite:///{folder}/laneway.db"))


async def test_a_message_that_the_store_does_not_take_is_not_acknowledged_before_it_does(tmp_path: Path) -> None:
    timers, bot, store = Timers(), FakeBot(written(1, "hello")), faulty(tmp_path)
    store.fail_next("before", call="find")
    async with telegram_stage(tmp_path, bot, timers=timers, channel=PLAIN, store=store) as (gateway, channel):
        assert 500 <= await timers.fire() <= 1_000
        assert bot.acknowledged == 0
        await bot.until(lambda: bool(bot.said))
        messages = await gateway.default.inbox.messages()
        assert channel.problem == ""
    assert (bot.texts(), len(messages)) == (["You said: hello"], 1)


async def test_a_cursor_that_is_not_stored_says_nothing_twice_as_long_as_the_process_lives(tmp_path: Path) -> None:
    bot, store = FakeBot(written(1, "one")), faulty(tmp_path)
    async with telegram_stage(tmp_path, bot, channel=PLAIN, store=store) as (_, channel):
        await bot.until(lambda: len(bot.said) == 1)
        assert channel.outbox is not None
        await channel.outbox.quiet()
        store.fail_next("before", owner=CURSORS)
        bot.push(written(2, "two"), written(3, "three"))
        await bot.until(lambda: len(bot.said) == 3)
        await channel.outbox.quiet()
    after = FakeBot(written(4, "four"))
    async with telegram_stage(tmp_path, after, channel=PLAIN):
        await after.until(lambda: bool(after.said))
    assert bot.texts() == ["You said: one", "You said: two", "You said: three"]
    assert after.texts() == ["You said: four"]


async def test_a_store_that_is_away_when_the_channel_begins_is_waited_for(tmp_path: Path) -> None:
    timers, bot, store = Timers(), FakeBot(written(1, "hello")), faulty(tmp_path)
    async with telegram_stage(tmp_path, bot, timers=timers, channel=PLAIN, store=store):
        store.fail_next("before", owner=CURSORS)
        await timers.fire()
        await bot.until(lambda: bool(bot.said))
    assert bot.texts() == ["You said: hello"]


async def test_a_channel_whose_store_another_process_has_ends_and_says_so(tmp_path: Path) -> None:
    bot, store = FakeBot(written(1, "one")), faulty(tmp_path)
    async with telegram_stage(tmp_path, bot, channel=PLAIN, store=store) as (_, channel):
        await bot.until(lambda: len(bot.said) == 1)
        store.fail_next("before", owner=CURSORS, error=FencedError("somebody else owns it"))
        bot.push(written(2, "two"))
        await bot.until(lambda: bot.is_closed)
        assert channel.problem == "another process owns the store now"
    assert bot.texts() == ["You said: one", "You said: two"]


async def test_what_comes_while_the_server_stops_is_left_to_the_next_one(tmp_path: Path) -> None:
    timers, bot = Timers(), FakeBot(written(1, "one"))
    async with telegram_stage(tmp_path, bot, timers=timers, channel=PLAIN) as (gateway, _):
        await bot.until(lambda: len(bot.said) == 1)
        gateway.begin_stop()
        late = written(2, "two")
        bot.push(late)
        await timers.fire()
        assert bot.acknowledged == 1002
    after = FakeBot(late)
    async with telegram_stage(tmp_path, after, channel=PLAIN):
        await after.until(lambda: bool(after.said))
    assert after.texts() == ["You said: two"]


async def test_an_answer_that_comes_while_the_server_stops_is_still_delivered(tmp_path: Path) -> None:
    bot = FakeBot()
    async with telegram_stage(tmp_path, bot, channel=PLAIN) as (gateway, _):
        bot.push(written(1, "hello"))
        await bot.until(lambda: bot.acknowledged == 1002)
        gateway.begin_stop()
        await bot.until(lambda: bool(bot.said))
    assert bot.texts() == ["You said: hello"]
