"""Schedules that are changed, paused, sent beside their times, and looked at before there are any."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import ConfigError, InvalidMessageError, MessageKind
from laneway.errors import ConflictError, NotFoundError
from laneway.mail import Schedule
from laneway.runtime.clockwork import ScheduleChange, preview
from laneway.stores.memory import MemoryStore
from tests.inbox_stage import Agent, CutStore, Log, S, busy, kill, new_inbox, staged
from tests.stage import passing

START = 1_700_000_000_000  # a Tuesday, 22:13:20 UTC
HOUR = 3_600_000


def draft(**when: Any) -> Schedule:
    """A schedule that nobody keeps."""
    facts: dict[str, Any] = {"cron": None, "at_ms": None, "every_ms": None, "timezone": "UTC", **when}
    return Schedule(id="", session_key="", text="", missed="skip", next_ms=0, **facts)


@staged
async def test_a_paused_schedule_sends_nothing_and_goes_on_at_its_next_time() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        schedule = await inbox.schedule(S, "look", every_ms=10_000)
        paused = await inbox.clockwork.change(schedule.id, ScheduleChange(paused=True))
        assert paused.paused
        await passing(35_000)
        assert agent.began_at == []
        resumed = await inbox.clockwork.change(schedule.id, ScheduleChange(paused=False))
        assert resumed.next_ms == START + 45_000
        await passing(11_000)
        assert agent.began_at == [45_000]


@staged
async def test_what_is_changed_survives_a_restart() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store)
    await first.__aenter__()
    schedule = await first.schedule(S, "look", every_ms=10_000)
    change = ScheduleChange(text="see", cron="0 * * * *", missed="run", kind=MessageKind.HEARTBEAT, timezone="UTC")
    changed = await first.clockwork.change(schedule.id, change)
    assert (changed.cron, changed.every_ms, changed.text) == ("0 * * * *", None, "see")
    await first.clockwork.change(schedule.id, ScheduleChange(paused=True))
    async with new_inbox(Agent(), store=MemoryStore(kill(first, store))) as second:
        (kept,) = second.schedules()
        assert (kept.text, kept.cron, kept.missed, kept.paused) == ("see", "0 * * * *", "run", True)
        assert kept.kind is MessageKind.HEARTBEAT


@staged
async def test_it_is_known_when_a_schedule_was_last_due_and_what_it_sent() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await inbox.schedule(S, "look", every_ms=10_000)
        await passing(11_000)
        (once,) = inbox.schedules()
        assert (once.last_ms, once.last_note) == (START + 10_000, "")
        assert (await inbox.status(once.last_id)).turn_id
        await busy(inbox, agent)
        await passing(20_000)
        (late,) = inbox.schedules()
        assert late.last_ms == START + 30_000
        assert late.last_note == "the one before it still waits"
        agent.let_go()
        await passing(1_000)


@staged
async def test_a_schedule_is_sent_now_and_its_times_stay() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        schedule = await inbox.schedule(S, "look", every_ms=HOUR)
        await passing(5_000)
        message_id = await inbox.clockwork.send_now(schedule.id, "somebody wants it")
        await inbox.wait(message_id)
        (after,) = inbox.schedules()
        assert (after.next_ms, after.last_id, after.last_ms) == (schedule.next_ms, message_id, START + 5_000)
        assert agent.began_at == [5_000]
        (fired,) = log.of("schedule.fired")
        assert (fired.message_id, fired.reason) == (message_id, "somebody wants it")


@staged
async def test_a_schedule_is_not_sent_now_while_the_one_before_has_not_ended() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        schedule = await inbox.schedule(S, "look", every_ms=HOUR)
        await inbox.clockwork.send_now(schedule.id, "x")
        with pytest.raises(ConflictError):
            await inbox.clockwork.send_now(schedule.id, "x")
        assert len(inbox.pending(S)) == 1
        agent.let_go()
        await passing(1_000)


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"timezone": "Nowhere"}, "timezone"),
        ({"every_ms": 10}, "every_ms"),
        ({"at_ms": START - 1}, "at_ms"),
        ({"missed": "odd"}, "missed"),
    ],
)
@staged
async def test_a_change_that_makes_no_sense_is_refused_and_nothing_changes(
    change: dict[str, Any], setting: str
) -> None:
    async with new_inbox(Agent()) as inbox:
        schedule = await inbox.schedule(S, "look", cron="0 9 * * *")
        with pytest.raises(ConfigError) as refused:
            await inbox.clockwork.change(schedule.id, ScheduleChange(**change))
        assert refused.value.setting == setting
        with pytest.raises(InvalidMessageError):
            await inbox.clockwork.change(schedule.id, ScheduleChange(text=" "))
        assert inbox.schedules() == [schedule]


@staged
async def test_a_moment_that_has_passed_while_it_was_paused_needs_another_one() -> None:
    async with new_inbox(Agent()) as inbox:
        schedule = await inbox.schedule(S, "look", at_ms=START + 10_000)
        await inbox.clockwork.change(schedule.id, ScheduleChange(paused=True))
        await passing(20_000)
        with pytest.raises(ConfigError, match="has passed"):
            await inbox.clockwork.change(schedule.id, ScheduleChange(paused=False))
        moved = ScheduleChange(paused=False, at_ms=START + 30_000)
        assert (await inbox.clockwork.change(schedule.id, moved)).next_ms == START + 30_000


@staged
async def test_a_schedule_that_is_not_there_is_not_changed() -> None:
    async with new_inbox(Agent()) as inbox:
        with pytest.raises(NotFoundError):
            await inbox.clockwork.change("nix", ScheduleChange(paused=True))
        with pytest.raises(NotFoundError):
            await inbox.clockwork.send_now("nix", "")


def test_the_next_times_are_known_before_there_is_a_schedule() -> None:
    quarter = preview(draft(cron="*/15 * * * *"), START, 3)
    assert quarter == [START + 100_000, START + 1_000_000, START + 1_900_000]
    assert preview(draft(every_ms=HOUR), START, 2) == [START + HOUR, START + 2 * HOUR]
    assert preview(draft(at_ms=START + 5), START, 5) == [START + 5]
    with pytest.raises(ConfigError) as refused:
        preview(draft(cron="nonsense"), START, 5)
    assert refused.value.setting == "cron"
