"""How messages end: every final state and outcome, and that every way to ask tells the same story."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from laneway import (
    Inbox,
    LaneConfig,
    Lanes,
    MessageState,
    MessageStateError,
    OnCrash,
    Outcome,
    Turn,
    TurnState,
    UnknownMessageError,
)
from laneway.events import SessionEvent
from laneway.kernel.delivery import RETRY_DELAYS_MS
from laneway.kernel.messages import MESSAGE_TRANSITIONS
from laneway.mail import FINAL_MESSAGE_STATES
from laneway.stores.memory import MemoryStore
from laneway.testing import fake_host
from tests.inbox_stage import (
    OWNER,
    Agent,
    CutStore,
    Log,
    S,
    busy,
    finals,
    kill,
    new_inbox,
    send,
    staged,
    texts_of,
)
from tests.stage import never, now_ms, passing

State = MessageState
STEPS = {(before, after) for (before, _), after in MESSAGE_TRANSITIONS.items()}


class Stage(NamedTuple):
    """What a way to an end may use."""

    inbox: Inbox
    agent: Agent


Way = Callable[[Stage], Awaitable[str]]


async def _fail(turn: Turn) -> str:
    raise LookupError("no such file")


async def _garbage(turn: Turn) -> Any:
    return {"not": "text"}


async def _looks(turn: Turn) -> str:
    while not texts_of(await turn.boundary()):
        await passing(10)
    return "looked"


async def _looks_and_fails(turn: Turn) -> str:
    await _looks(turn)
    raise LookupError("afterwards")


async def _submit(stage: Stage, text: str, **options: Any) -> str:
    return (await stage.inbox.submit(S, text, **options)).message_id


async def ran(stage: Stage) -> str:
    return await _submit(stage, "plain")


async def failed(stage: Stage) -> str:
    return await _submit(stage, "fail")


async def answered_garbage(stage: Stage) -> str:
    return await _submit(stage, "garbage")


async def interrupted(stage: Stage) -> str:
    old = await busy(stage.inbox, stage.agent)
    await _submit(stage, "cut", mode="interrupt")
    return old


async def fenced(stage: Stage) -> str:
    old = await busy(stage.inbox, stage.agent, "cling")
    await _submit(stage, "cut", mode="interrupt")
    return old


async def stopped(stage: Stage) -> str:
    old = await busy(stage.inbox, stage.agent)
    await stage.inbox.stop(S, actor="olga")
    return old


async def merged(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent)
    _, second = await send(stage.inbox, "one", "two")
    stage.agent.let_go()
    return second


async def merged_and_failed(stage: Stage) -> str:
    stage.agent.plays["[Queued"] = _fail
    return await merged(stage)


async def merged_and_interrupted(stage: Stage) -> str:
    async def holds(turn: Turn) -> str:
        await stage.agent.gate("hold batch").wait()
        return ""

    stage.agent.plays["[Queued"] = holds
    second = await merged(stage)
    await passing(1_500)
    await _submit(stage, "cut", mode="interrupt")
    return second


async def steered(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent, "looks")
    return await _submit(stage, "steer", mode="steer")


async def steered_in_vain(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent, "looks-and-fails")
    return await _submit(stage, "steer", mode="steer")


async def steered_and_kept(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent, "looks")
    return await _submit(stage, "steer", mode="steer-backlog")


async def superseded(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent, "cling")
    old = await _submit(stage, "first cut", mode="interrupt")
    await _submit(stage, "second cut", mode="interrupt")
    return old


async def one_too_many(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent)
    first, *_ = await send(stage.inbox, "one", "two", "three")
    return first


async def late_heartbeat(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent)
    return await _submit(stage, "beat", kind="heartbeat")


async def early_heartbeat(stage: Stage) -> str:
    stage.inbox.lanes.pause("cron")
    beat = await _submit(stage, "beat", kind="heartbeat")
    await _submit(stage, "user")
    return beat


async def withdrawn(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent)
    one = await _submit(stage, "one")
    await stage.inbox.withdraw(one, "never mind", actor="olga")
    return one


async def cleared(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent)
    one = await _submit(stage, "one")
    await stage.inbox.command(S, "/queue clear", sender=OWNER)
    return one


async def expired(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent)
    return await _submit(stage, "one", expires_ms=700)


async def rejected(stage: Stage) -> str:
    await busy(stage.inbox, stage.agent)
    return await _submit(stage, "one", mode="reject")


async def command(stage: Stage) -> str:
    return await _submit(stage, "/status")


async def no_slot(stage: Stage) -> str:
    stage.inbox.lanes.submit("main", never)
    return await _submit(stage, "one")


class End(NamedTuple):
    """What is expected of a way: the disposition, the outcome, words of the reason, whether its sender is told."""

    way: Way
    state: MessageState
    outcome: Outcome | None
    reason: str
    told: bool
    seen: bool  # by the agent, and so in the history


ENDS = [
    End(ran, State.RAN, Outcome.SUCCEEDED, "returned", told=False, seen=True),
    End(failed, State.RAN, Outcome.FAILED, "LookupError: no such file", told=False, seen=True),
    End(answered_garbage, State.RAN, Outcome.FAILED, "returned dict", told=False, seen=True),
    End(interrupted, State.RAN, Outcome.INTERRUPTED, "interrupted by message", told=True, seen=True),
    End(fenced, State.RAN, Outcome.INTERRUPTED, "fenced", told=True, seen=True),
    End(stopped, State.RAN, Outcome.INTERRUPTED, "stopped", told=True, seen=True),
    End(merged, State.MERGED, Outcome.SUCCEEDED, "returned", told=False, seen=True),
    End(merged_and_failed, State.MERGED, Outcome.FAILED, "LookupError", told=False, seen=True),
    End(merged_and_interrupted, State.MERGED, Outcome.INTERRUPTED, "interrupted by", told=True, seen=True),
    End(steered, State.STEERED, Outcome.SUCCEEDED, "steered into turn", told=False, seen=True),
    End(steered_in_vain, State.RAN, Outcome.SUCCEEDED, "returned", told=False, seen=True),
    End(steered_and_kept, State.RAN, Outcome.SUCCEEDED, "returned", told=False, seen=True),
    End(superseded, State.SUPERSEDED, None, "came after it", told=False, seen=False),
    End(one_too_many, State.SUMMARIZED, None, "summarize", told=True, seen=False),
    End(late_heartbeat, State.DROPPED, None, "heartbeat skipped", told=True, seen=False),
    End(early_heartbeat, State.DROPPED, None, "heartbeat skipped", told=True, seen=False),
    End(withdrawn, State.WITHDRAWN, None, "never mind", told=False, seen=False),
    End(cleared, State.WITHDRAWN, None, "cleared", told=False, seen=False),
    End(expired, State.EXPIRED, None, "waited longer", told=True, seen=False),
    End(rejected, State.REJECTED, None, "busy", told=True, seen=False),
    End(command, State.COMMAND, None, "idle", told=False, seen=False),
    End(no_slot, State.DEAD_LETTERED, None, "full", told=True, seen=False),
]


def _agent() -> Agent:
    plays = {"fail": _fail, "garbage": _garbage, "looks": _looks}
    return Agent(**plays, **{"looks-and-fails": _looks_and_fails})


async def _filled() -> Lanes:
    """Lanes whose `main` takes nothing any more, once one job waits in it."""
    lanes = Lanes({"main": LaneConfig(concurrency=1, queued_max=1)}, unknown="create", host=fake_host())
    await lanes.__aenter__()
    lanes.submit("main", asyncio.Event().wait)
    return lanes


def test_every_final_state_and_outcome_is_reached_here() -> None:
    """`unknown` is the outcome of effects in a ledger; a plain handler has none."""
    assert {end.state for end in ENDS} | {State.DROPPED} == FINAL_MESSAGE_STATES
    assert {end.outcome for end in ENDS} == {*Outcome, None} - {Outcome.UNKNOWN}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.way.__name__)
@staged
async def test_a_message_ends_once_and_everybody_tells_the_same_story(end: End) -> None:
    agent = _agent()
    lanes = await _filled() if end.way is no_slot else None
    options: dict[str, Any] = {"cap": 2, "commands": True, "interrupt_grace_ms": 3_000, "lanes": lanes}
    async with new_inbox(agent, **options) as inbox:
        async with Log(inbox) as log:
            one = await end.way(Stage(inbox, agent))
            final = await inbox.wait(one)
            await passing(10)
        assert (final.disposition, final.outcome) == (end.state, end.outcome)
        assert end.reason in final.reason
        assert await inbox.status(one) == final
        await check_story(inbox, log, one, end)
        await check_lines(inbox, one, end)
        agent.let_go()
        await passing(100_000)
        agent.let_go()
        await passing()
        assert await inbox.status(one) == final
        assert await inbox.wait(one) == final
        if lanes is not None:
            lanes.cancel_waiting()
    if lanes is not None:
        await lanes.close()


async def check_story(inbox: Inbox, log: Log, one: str, end: End) -> None:
    """Stored events and published ones agree; each has a reason and an actor, and the path is legal."""
    story = await inbox.explain(one)
    told = [step for step in story.steps if step.type.startswith("message.")]
    heard = log.about(one)
    assert [(step.type, step.reason, step.actor) for step in told] == [(e.type, e.reason, e.actor) for e in heard]
    assert all(step.reason and step.actor for step in story.steps)
    states = [MessageState(step.facts["state"]) for step in told]
    states = [state for number, state in enumerate(states) if number == 0 or state is not states[number - 1]]
    if len(states) > 1:
        assert states[0] in (State.QUEUED, State.PARKED)
    assert set(pairwise(states)) <= STEPS
    assert [state for state in states if state.is_final] == [end.state]
    (last,) = [step for step in told if step.type == "message.ended"]
    assert last is told[-1]
    assert (last.facts["state"], last.facts["outcome"], last.reason) == (
        end.state,
        end.outcome,
        (await inbox.status(one)).reason,
    )
    assert bool(last.facts["notice"]) is end.told
    assert f": {end.state}" in str(story)


async def check_lines(inbox: Inbox, one: str, end: End) -> None:
    """What an agent has seen is in the history, once, and in the transcript; what it has not seen is in neither."""
    lines = [entry for entry in await inbox.history(S) if entry.message_id == one and entry.role == "user"]
    assert len(lines) == end.seen
    stored = [json.loads(line) for line in (await inbox.transcript(S)).splitlines()]
    assert [line["text"] for line in stored if line["message_id"] == one and line["role"] == "user"] == [
        line.text for line in lines
    ]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.way.__name__)
@staged
async def test_a_final_state_is_never_left(end: End) -> None:
    agent = _agent()
    lanes = await _filled() if end.way is no_slot else None
    options: dict[str, Any] = {"cap": 2, "commands": True, "interrupt_grace_ms": 3_000, "lanes": lanes}
    async with new_inbox(agent, **options) as inbox:
        one = await end.way(Stage(inbox, agent))
        final = await inbox.wait(one)
        calls: list[Awaitable[Any]] = [
            inbox.edit(one, "other"),
            inbox.move(one, 1),
            inbox.hold(one),
            inbox.release(one),
            inbox.withdraw(one),
            inbox.steer_now(one),
        ]
        for call in calls:
            with pytest.raises(MessageStateError) as caught:
                await call
            assert (caught.value.message_id, caught.value.state) == (one, end.state)
        assert await inbox.status(one) == final
        agent.let_go()
        if lanes is not None:
            lanes.cancel_waiting()
    if lanes is not None:
        await lanes.close()


@staged
async def test_the_end_of_a_summarized_message_stays_as_it_was_told() -> None:
    agent = Agent()
    async with new_inbox(agent, cap=1) as inbox:
        await busy(inbox, agent)
        first, _ = await send(inbox, "one", "two")
        final = await inbox.wait(first)
        agent.let_go()
        await passing(10_000)
        assert await inbox.wait(first) == final


@staged
async def test_a_rollback_after_an_interrupt_forgets_the_turn_that_is_still_ending() -> None:
    async def slow(turn: Turn) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await passing(500)
        return ""

    agent = Agent(slow=slow)
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent, "slow")
        ids = await send(inbox, "cut", mode="interrupt")
        ids += await send(inbox, "again", mode="rollback")
        await finals(inbox, ids)
        assert [entry.text for entry in await inbox.history(S)] == ["again", "re: again"]


@staged
async def test_a_message_nobody_has_sent_is_unknown_to_every_call() -> None:
    async with new_inbox() as inbox:
        calls: list[Awaitable[Any]] = [
            inbox.status("nix"),
            inbox.wait("nix"),
            inbox.explain("nix"),
            inbox.retry("nix"),
            inbox.edit("nix", "x"),
            inbox.move("nix", 1),
            inbox.hold("nix"),
            inbox.release("nix"),
            inbox.withdraw("nix"),
            inbox.steer_now("nix"),
        ]
        for call in calls:
            with pytest.raises(UnknownMessageError) as caught:
                await call
            assert caught.value.message_id == "nix"


# ---- dead letters ----------------------------------------------------------------------------------------------


@staged
async def test_a_turn_that_cannot_begin_is_tried_again_and_then_the_rest_flows() -> None:
    lanes = await _filled()
    agent = Agent()
    async with new_inbox(agent, lanes=lanes, mode="followup") as inbox, Log(inbox, "message.ended") as log:
        lanes.submit("main", never)
        at = now_ms()
        first, second = await send(inbox, "one", "two")
        assert "could not be begun" in inbox.pending(S)[0].reason
        final = await inbox.wait(first)
        assert now_ms() == at + sum(RETRY_DELAYS_MS) == at + 35_500
        assert final.disposition is State.DEAD_LETTERED
        lanes.cancel_waiting()
        lanes.resize("main", 2)
        assert (await inbox.wait(second)).outcome is Outcome.SUCCEEDED
        assert now_ms() == at + 36_000
    await lanes.close()
    assert [event.message_id for event in log.events] == [first, second]  # type: ignore[attr-defined]
    assert agent.prompts == ["two"]


@staged
async def test_a_lane_that_has_room_again_in_time_runs_the_message() -> None:
    lanes = await _filled()
    agent = Agent()
    async with new_inbox(agent, lanes=lanes) as inbox:
        lanes.submit("main", never)
        (one,) = await send(inbox, "one")
        await passing(7_000)
        assert agent.prompts == []
        lanes.resize("main", 2)
        lanes.cancel_waiting("main")
        final = await inbox.wait(one)
        assert final.outcome is Outcome.SUCCEEDED
    await lanes.close()


@staged
async def test_a_dead_letter_is_run_again_by_retry() -> None:
    lanes = await _filled()
    agent = Agent()
    async with new_inbox(agent, lanes=lanes) as inbox:
        lanes.submit("main", never)
        (one,) = await send(inbox, "one", sender="ada", message_id="m1")
        assert (await inbox.wait(one)).disposition is State.DEAD_LETTERED
        lanes.cancel_waiting("main")
        lanes.resize("main", 2)
        again = await inbox.retry(one)
        assert (await inbox.wait(again.message_id)).outcome is Outcome.SUCCEEDED
        assert (await inbox.status(one)).disposition is State.DEAD_LETTERED
        (message,) = agent.turns[0].messages
        assert (message.text, message.retry_of) == ("one", one)
        assert message.sender is not None
        assert message.sender.id == "ada"
    await lanes.close()


# ---- retry -----------------------------------------------------------------------------------------------------


@staged
async def test_retry_runs_a_failed_message_again_at_the_end_of_the_queue() -> None:
    agent = _agent()
    async with new_inbox(agent, mode="followup") as inbox:
        (one,) = await send(inbox, "fail")
        await inbox.wait(one)
        await busy(inbox, agent)
        await send(inbox, "other")
        del agent.plays["fail"]
        again = await inbox.retry(one)
        assert (again.disposition, again.position) == (State.QUEUED, 2)
        agent.let_go()
        assert (await inbox.wait(again.message_id)).outcome is Outcome.SUCCEEDED
    assert agent.prompts == ["fail", "hold", "other", "fail"]


@pytest.mark.parametrize("text", ["plain", "/status"])
@staged
async def test_what_succeeded_is_not_run_again(text: str) -> None:
    async with new_inbox(commands=True) as inbox:
        (one,) = await send(inbox, text)
        await inbox.wait(one)
        with pytest.raises(MessageStateError):
            await inbox.retry(one)


@staged
async def test_what_has_not_ended_is_not_run_again() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        running = await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        for message_id in (running, one):
            with pytest.raises(MessageStateError):
                await inbox.retry(message_id)


@staged
async def test_a_summarized_message_can_be_waited_for_and_retried_at_once() -> None:
    agent = Agent()
    async with new_inbox(agent, cap=2) as inbox:
        await busy(inbox, agent)
        first, *_ = await send(inbox, "one", "two", "three")
        assert (await inbox.wait(first)).disposition is State.SUMMARIZED
        assert (await inbox.retry(first)).disposition is State.QUEUED


# ---- turns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "state"),
    [
        (ran, TurnState.SUCCEEDED),
        (failed, TurnState.FAILED),
        (interrupted, TurnState.CANCELLED),
        (stopped, TurnState.CANCELLED),
        (fenced, TurnState.FENCED),
    ],
)
@staged
async def test_a_turn_begins_and_ends_once_and_says_how(way: Way, state: TurnState) -> None:
    agent = _agent()
    async with new_inbox(agent, interrupt_grace_ms=3_000) as inbox, Log(inbox) as log:
        one = await way(Stage(inbox, agent))
        final = await inbox.wait(one)
        agent.let_go()
        await passing()
    mine = [event for event in log.events if getattr(event, "turn_id", "") == final.turn_id]
    assert [e.type for e in mine if e.type in ("turn.started", "turn.ended")] == ["turn.started", "turn.ended"]
    (ended,) = [event for event in log.of("turn.ended") if event.turn_id == final.turn_id]
    assert (ended.state, ended.reason) == (state, final.reason)
    (began,) = [event for event in log.of("turn.started") if event.turn_id == final.turn_id]
    assert began.messages == (one,)


@pytest.mark.parametrize("on_crash", [OnCrash.REPORT, OnCrash.RERUN])
@staged
async def test_a_turn_that_dies_with_its_process_is_interrupted(on_crash: OnCrash) -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store, on_crash=on_crash)
    await first.__aenter__()
    one = (await first.submit(S, "hold", sender="ada")).message_id
    await passing()
    old_turn = (await first.status(one)).turn_id
    after = Agent()
    after.let_go()
    second = new_inbox(after, store=MemoryStore(kill(first, store)), on_crash=on_crash)
    log = Log(second)
    async with log, second:
        final = await second.wait(one)
        story = await second.explain(one)
    assert final.disposition is State.RAN
    ended = {step.turn_id: step.facts["state"] for step in story.steps if step.type == "turn.ended"}
    assert old_turn is not None
    assert ended[old_turn] == TurnState.INTERRUPTED
    if on_crash is OnCrash.REPORT:
        assert (final.outcome, final.turn_id, after.prompts) == (Outcome.INTERRUPTED, old_turn, [])
        (told,) = log.of("message.ended")
        assert one in told.notice
    else:
        assert (final.outcome, after.prompts) == (Outcome.SUCCEEDED, ["hold"])
        assert [step.type for step in story.steps if step.type == "message.returned"]


@staged
async def test_a_message_that_kills_every_process_is_not_run_for_ever() -> None:
    store = CutStore()
    inbox = new_inbox(Agent(), store=store, on_crash="rerun", mode="followup")
    await inbox.__aenter__()
    one = (await inbox.submit(S, "hold")).message_id
    for _ in range(4):
        await passing()
        assert (await inbox.status(one)).disposition is State.RUNNING
        again = CutStore(kill(inbox, store))
        inbox, store = new_inbox(Agent(), store=again, on_crash="rerun", mode="followup"), again
        await inbox.__aenter__()
    await passing()
    last = Agent()
    async with new_inbox(last, store=MemoryStore(kill(inbox, store)), on_crash="rerun", mode="followup") as end:
        final = await end.wait(one)
        assert (final.disposition, final.outcome) == (State.RAN, Outcome.INTERRUPTED)
        assert "5th time" in final.reason
        assert (await finals(end, await send(end, "next")))[0].outcome is Outcome.SUCCEEDED
    assert last.prompts == ["next"]


@staged
async def test_every_kept_event_has_a_reason_and_an_actor() -> None:
    async def child() -> str:
        return "x"

    async def work(turn: Turn) -> str:
        turn.spawn(child)
        await turn.spawn(child)
        await turn.ask_approval("go", timeout_ms=1_000)
        await turn.reply("part")
        await turn.request_followup("more")
        return "done"

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        await inbox.schedule(S, "look", every_ms=2_000)
        await send(inbox, "work")
        ids = await send(inbox, "a", "b", mode="followup")
        await inbox.move(ids[1], 1)
        await inbox.edit(ids[0], "aa")
        await inbox.hold(ids[0])
        await inbox.release(ids[0])
        await inbox.command(S, "/queue steer")
        await passing(5_000)
        await inbox.command(S, "/new")
        await inbox.command(S, "/stop")
        await passing(100)
    kept = [event for event in log.events if isinstance(event, SessionEvent) and event.seq]
    assert {event.type for event in kept if not (event.reason and event.actor)} == set()
    assert {event.type.partition(".")[0] for event in kept} == {
        "approval",
        "child",
        "message",
        "schedule",
        "session",
        "turn",
    }
