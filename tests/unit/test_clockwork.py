"""Messages by the clock: schedules that fire once, survive restarts, and are not fooled by a clock that jumps."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import ConfigError, InvalidMessageError, MessageKind, Outcome, StoreUnavailableError
from laneway.stores.memory import MemoryStore
from tests.inbox_stage import Agent, CutStore, Log, S, busy, finals, kill, new_inbox, send, staged, stepping_inbox
from tests.stage import now_ms, passing

START = 1_700_000_000_000  # a Tuesday, 22:13:20 UTC
MINUTE = 60_000
HOUR = 3_600_000
DAY = 86_400_000


@staged
async def test_every_so_often_without_drift() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        schedule = await inbox.schedule(S, "look", every_ms=10_000)
        assert (schedule.every_ms, schedule.next_ms, schedule.session_key) == (10_000, START + 10_000, S)
        await passing(35_000)
        assert agent.began_at == [10_000, 20_000, 30_000]
        assert inbox.schedules(S)[0].next_ms == START + 40_000
    assert all("look" in prompt and prompt.startswith("[System note]") for prompt in agent.prompts)
    assert {turn.kind for turn in agent.turns} == {MessageKind.SYSTEM}
    fired = log.of("schedule.fired")
    assert [(event.schedule_id, event.at_ms) for event in fired] == [
        (schedule.id, START + 10_000),
        (schedule.id, START + 20_000),
        (schedule.id, START + 30_000),
    ]
    assert [event.message_id for event in fired] == [turn.messages[0].id for turn in agent.turns]


@staged
async def test_at_one_moment_once() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await inbox.schedule(S, "look", at_ms=START + 90_500)
        await passing(DAY)
        assert inbox.schedules() == []
    assert agent.began_at == [90_500]


@staged
async def test_by_a_cron_expression_in_a_timezone() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        quarter = await inbox.schedule(S, "quarter", cron="*/15 * * * *")
        assert quarter.next_ms == START + 100_000  # 22:15:00
        daily = await inbox.schedule(S, "daily", cron="0 0 * * *", timezone="Europe/Berlin")
        assert daily.next_ms == START + 2_800_000  # 23:00 UTC
        await passing(HOUR)
    assert agent.began_at == [100_000, 1_000_000, 1_900_000, 2_800_000, 2_800_000]


@staged
async def test_schedules_are_listed_by_their_next_time_and_can_be_taken_back() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        late = await inbox.schedule(S, "late", every_ms=20_000)
        soon = await inbox.schedule("other", "soon", every_ms=10_000)
        assert [one.id for one in inbox.schedules()] == [soon.id, late.id]
        assert [one.id for one in inbox.schedules(S)] == [late.id]
        assert await inbox.unschedule(soon.id)
        assert not await inbox.unschedule(soon.id)
        assert not await inbox.unschedule("nix")
        await passing(25_000)
    assert agent.began_at == [20_000]


@pytest.mark.parametrize("mode", ["steer", "interrupt", "collect"])
@staged
async def test_a_schedule_neither_steers_nor_interrupts_nor_mixes_with_users(mode: str) -> None:
    agent = Agent()
    async with new_inbox(agent, mode=mode) as inbox:
        first = await busy(inbox, agent)
        await inbox.schedule(S, "look", at_ms=START + 5_000)
        await send(inbox, "before", mode="followup")
        await passing(10_000)
        await send(inbox, "after", mode="followup")
        assert agent.cancelled == []
        agent.let_go()
        assert (await inbox.wait(first)).outcome is Outcome.SUCCEEDED
        await passing(100)
    assert [len(turn.messages) for turn in agent.turns] == [1, 1, 1, 1]
    assert ["look" in prompt for prompt in agent.prompts] == [False, False, True, False]


@staged
async def test_a_firing_is_skipped_while_the_one_before_it_still_waits() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        await inbox.schedule(S, "look", every_ms=10_000)
        await passing(45_000)
        assert len(inbox.pending(S)) == 1
        agent.let_go()
        await passing(6_000)
    assert len(log.of("schedule.fired")) == 2
    assert len(log.of("schedule.missed")) == 3
    assert all(event.reason for event in log.of("schedule.missed"))


# ---- what was missed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missed", "sent"), [("skip", 0), ("run", 1)])
@pytest.mark.parametrize("what", ["every", "cron", "at"])
@staged
async def test_what_was_missed_while_nobody_was_there_is_skipped_or_made_up_for_once(
    what: str, missed: Any, sent: int
) -> None:
    when: Any = {
        "every": {"every_ms": MINUTE},
        "cron": {"cron": "* * * * *"},
        "at": {"at_ms": START + 5 * MINUTE},
    }[what]
    store = CutStore()
    first = new_inbox(Agent(), store=store)
    await first.__aenter__()
    await first.schedule(S, "look", missed=missed, **when)
    disk = kill(first, store)
    await passing(30 * MINUTE)
    agent = Agent()
    second = new_inbox(agent, store=MemoryStore(disk))
    log = Log(second)
    async with log, second:
        await passing(10)
        assert len(agent.prompts) == sent
        if sent and what != "at":
            assert "missed" in agent.prompts[0]
        assert len(second.schedules()) == (0 if what == "at" else 1)
        await passing(2 * MINUTE)
        assert len(agent.prompts) == sent + (0 if what == "at" else 2)
    assert len(log.of("schedule.missed")) == (0 if sent else 1)


@staged
async def test_a_schedule_survives_a_restart_and_a_removed_one_does_not() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store)
    await first.__aenter__()
    kept = await first.schedule(S, "kept", every_ms=10_000, kind="heartbeat", missed="run", tenant="acme")
    gone = await first.schedule(S, "gone", every_ms=10_000)
    await first.unschedule(gone.id)
    await passing(4_000)
    agent = Agent()
    async with new_inbox(agent, store=MemoryStore(kill(first, store))) as second:
        assert second.schedules(tenant="acme") == [kept]
        await passing(10_000)
    assert agent.began_at == [10_000]
    assert agent.prompts == ["kept"]


@staged
async def test_a_firing_is_sent_once_however_often_the_process_dies() -> None:
    store = CutStore()
    inbox = new_inbox(Agent(), store=store, on_crash="report")
    await inbox.__aenter__()
    await inbox.schedule(S, "look", at_ms=START + 1_000, missed="run")
    await passing(1_000)
    texts: list[str] = []
    for _ in range(4):
        again = CutStore(kill(inbox, store))
        inbox, store = new_inbox(Agent(), store=again), again
        await inbox.__aenter__()
        await passing(500)
        texts = [entry.text for entry in await inbox.history(S) if entry.role == "system"]
    assert len(texts) == 1
    await inbox.close()


# ---- clocks that jump ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missed", "sent"), [("skip", 0), ("run", 1)])
@staged
async def test_a_jump_forward_is_like_having_been_away(missed: Any, sent: int) -> None:
    agent = Agent()
    inbox, clock = stepping_inbox(agent)
    async with inbox:
        await inbox.schedule(S, "look", every_ms=10 * MINUTE, missed=missed)
        await passing(MINUTE)
        clock.jump_wall(DAY)
        await passing(MINUTE + 1)  # it looks at the clock once a minute
        assert len(agent.prompts) == sent
        await passing(10 * MINUTE)
        assert len(agent.prompts) == sent + 1


@staged
async def test_a_jump_back_does_not_silence_an_interval() -> None:
    agent = Agent()
    inbox, clock = stepping_inbox(agent)
    async with inbox:
        await inbox.schedule(S, "look", every_ms=10 * MINUTE)
        await passing(25 * MINUTE)
        assert len(agent.prompts) == 2
        clock.jump_wall(-DAY)
        await passing(HOUR)
        assert len(agent.prompts) in (7, 8)


@staged
async def test_a_small_step_of_the_clock_changes_no_count() -> None:
    agent = Agent()
    inbox, clock = stepping_inbox(agent)
    async with inbox:
        await inbox.schedule(S, "look", cron="* * * * *")
        for step in (-900, 700, -300, 500, -1_500, 1_500):
            await passing(10 * MINUTE)
            clock.jump_wall(step)
    assert 59 <= len(agent.prompts) <= 61


@staged
async def test_a_moment_that_a_jump_has_passed_fires_at_the_next_look() -> None:
    agent = Agent()
    inbox, clock = stepping_inbox(agent)
    async with inbox:
        await inbox.schedule(S, "look", at_ms=START + HOUR, missed="run")
        await passing(10_000)
        clock.jump_wall(2 * HOUR)
        await passing(MINUTE)
        assert len(agent.prompts) == 1


# ---- heartbeats --------------------------------------------------------------------------------------------------


@staged
async def test_a_scheduled_heartbeat_runs_in_cron_and_only_while_nobody_waits() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        await inbox.schedule(S, "beat", every_ms=10_000, kind="heartbeat")
        await passing(15_000)
        assert agent.prompts == ["beat"]
        await busy(inbox, agent)
        await passing(10_000)
        agent.let_go()
        await passing(10_000)
        assert agent.prompts == ["beat", "hold", "beat"]
        (skipped,) = [event for event in log.of("message.ended") if event.state == "dropped"]
        assert "heartbeat" in skipped.reason
    lanes = {event.turn_id: event.lane for event in log.of("turn.started")}
    assert [lanes[turn.id] for turn in agent.turns] == ["cron", "main", "cron"]


@staged
async def test_heartbeats_of_many_sessions_leave_users_their_slots() -> None:
    agent = Agent()
    async with new_inbox(agent, concurrency=1) as inbox:
        for number in range(10):
            await inbox.submit(f"s{number}", f"hold {number}", kind="heartbeat")
        await passing(10)
        assert agent.running == 3  # the width of cron
        at = now_ms()
        (end,) = await finals(inbox, await send(inbox, "user"))
        assert (end.outcome, now_ms()) == (Outcome.SUCCEEDED, at)
        agent.let_go()
        await passing(10)
        agent.let_go()


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when",
    [
        {},
        {"cron": "* * * * *", "every_ms": 1_000},
        {"at_ms": START, "every_ms": 1_000},
        {"cron": "nonsense"},
        {"cron": "61 * * * *"},
        {"cron": "0 0 31 2 *"},
        {"cron": ""},
        {"every_ms": 999},
        {"every_ms": 0},
        {"every_ms": -5},
        {"every_ms": 1.5},
        {"every_ms": True},
        {"at_ms": -1},
        {"at_ms": START // 1000},
        {"at_ms": "noon"},
        {"every_ms": 1_000, "missed": "twice"},
        {"cron": "* * * * *", "timezone": "Mars/Olympus"},
    ],
)
@staged
async def test_a_schedule_that_makes_no_sense_is_refused_and_nothing_is_kept(when: dict[str, Any]) -> None:
    async with new_inbox() as inbox:
        with pytest.raises(ConfigError) as caught:
            await inbox.schedule(S, "look", **when)
        assert str(caught.value)
        assert inbox.schedules() == []


@pytest.mark.parametrize(
    "bad", [{"text": ""}, {"text": b"x"}, {"kind": "user"}, {"kind": "nix"}, {"session_key": "a/b"}]
)
@staged
async def test_a_schedule_of_no_message_is_refused(bad: dict[str, Any]) -> None:
    options = {"session_key": S, "text": "look", "every_ms": 1_000, **bad}
    async with new_inbox() as inbox:
        with pytest.raises(InvalidMessageError):
            await inbox.schedule(options.pop("session_key"), options.pop("text"), **options)
        assert inbox.schedules() == []


@staged
async def test_a_schedule_that_could_not_be_stored_is_none() -> None:
    store = CutStore()
    agent = Agent()
    async with new_inbox(agent, store=store) as inbox:
        store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await inbox.schedule(S, "look", every_ms=1_000)
        store.refuse = lambda batch: False
        await passing(10_000)
        assert inbox.schedules() == []
    assert agent.prompts == []


@staged
async def test_a_firing_that_could_not_be_stored_is_due_again() -> None:
    store = CutStore()
    agent = Agent()
    async with new_inbox(agent, store=store) as inbox:
        await inbox.schedule(S, "look", every_ms=10_000, missed="run")
        store.refuse = lambda batch: True
        await passing(10_500)
        assert agent.prompts == []
        store.refuse = lambda batch: False
        await passing(60_000)
        assert len(agent.prompts) >= 5
        texts = [entry.text for entry in await inbox.history(S) if entry.role == "system"]
        assert len(texts) == len(agent.prompts)


@staged
async def test_an_inbox_without_schedules_sets_no_timer() -> None:
    async with new_inbox() as inbox:
        await finals(inbox, await send(inbox, "one"))
        assert inbox._clockwork._timer is None  # noqa: SLF001 - nothing wakes an idle inbox
        await inbox.schedule(S, "look", every_ms=1_000)
        await inbox.unschedule(inbox.schedules()[0].id)
        await passing(120_000)
        assert inbox._clockwork._timer is None  # noqa: SLF001 - as above
