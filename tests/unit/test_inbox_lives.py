"""Opening, closing, crashing and a store that fails: what an inbox accepted is kept, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from laneway import (
    ClosedError,
    ConfigError,
    FencedError,
    Inbox,
    Lanes,
    LanewayError,
    MessageState,
    Outcome,
    StoreUnavailableError,
    Turn,
    TurnState,
    UnknownStoreError,
    UsageError,
    WrongThreadError,
)
from laneway.rows import Batch, BatchResult, Loaded, MessageRow, StateRow
from laneway.sim.loop import SimLoop
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing import fake_host
from tests.inbox_stage import (
    Agent,
    CutStore,
    Log,
    S,
    busy,
    dispositions,
    finals,
    kill,
    new_inbox,
    send,
    staged,
    texts_of,
    waiting,
)
from tests.stage import now_ms, passing, simulated, value

State = MessageState


# ---- opening ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [None, 7, "answer", lambda turn: "sync", int])
def test_a_handler_that_is_no_async_function_is_refused(handler: Any) -> None:
    from laneway import Inbox

    with pytest.raises(UsageError):
        Inbox(handler)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sideways"},
        {"mode": 7},
        {"debounce_ms": -1},
        {"debounce_ms": 1.5},
        {"max_wait_ms": -1},
        {"drop": "sometimes"},
        {"interrupt_grace_ms": -1},
        {"dedupe_ms": "1d"},
        {"on_crash": "resume"},
        {"on_crash": "cry"},
        {"commands": "yes"},
        {"debounce_idle": 1},
        {"concurrency": -1},
        {"concurrency": True},
        {"lanes": object()},
        {"close_timeout_ms": "soon"},
        {"by_channel": {"slack": "sideways"}},
        {"text_max": 0},
    ],
)
def test_a_setting_that_is_none_is_refused_before_anything_opens(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        new_inbox(**options)
    assert str(caught.value)


@pytest.mark.parametrize("setting", ["interrupt_grace_ms", "dedupe_ms", "close_timeout_ms", "text_max"])
def test_none_is_no_duration(setting: str) -> None:
    with pytest.raises(ConfigError):
        new_inbox(**{setting: None})


@pytest.mark.parametrize("store", ["nowhere", "sqlite:inbox.db", 7, object()])
def test_a_store_that_is_none_is_refused(store: Any) -> None:
    with pytest.raises(UnknownStoreError):
        new_inbox(store=store)


@staged
async def test_a_closed_inbox_refuses_and_says_so() -> None:
    inbox = new_inbox()
    with pytest.raises(ClosedError, match="inbox"):
        await inbox.submit(S, "early")
    async with inbox:
        (one,) = await send(inbox, "one")
        await inbox.wait(one)
    calls: list[Any] = [
        lambda: inbox.submit(S, "late"),
        lambda: inbox.wait(one),
        lambda: inbox.status(one),
        lambda: inbox.explain(one),
        lambda: inbox.history(S),
        lambda: inbox.command(S, "/queue"),
        lambda: inbox.stop(S),
        lambda: inbox.schedule(S, "x", every_ms=1_000),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="inbox"):
            await call()
    with pytest.raises(ClosedError):
        inbox.pending(S)
    await inbox.close()


class BrokenStore(MemoryStore):
    """A store that cannot be loaded."""

    async def load_workspace(self, workspace: str) -> Loaded:
        """Fail."""
        raise StoreUnavailableError("the disk is gone")


@staged
async def test_an_inbox_that_cannot_open_leaves_nothing_open() -> None:
    store = BrokenStore()
    inbox = new_inbox(store=store)
    with pytest.raises(StoreUnavailableError):
        await inbox.__aenter__()
    assert "users=0" in repr(store)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    assert [task.get_name() for task in loop.pending_tasks()] == ["main"]


@staged
async def test_what_an_inbox_starts_belongs_to_no_job_of_the_caller() -> None:
    """Opened inside a job, its turns are neither children of it nor end with it."""
    agent = Agent()

    async def opens() -> str:
        async with new_inbox(agent) as inbox:
            (end,) = await finals(inbox, await send(inbox, "one"))
            return end.answer or ""

    async with Lanes({"main": 1}, host=fake_host()) as lanes:
        assert await lanes.run("main", opens) == "re: one"


# ---- closing ---------------------------------------------------------------------------------------------------


def check_quiet() -> None:
    """No task and no timer is left but the test itself."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    assert [task.get_name() for task in loop.pending_tasks()] == ["main"]
    assert loop.pending_timers() == 0


@staged
async def test_closing_gives_a_turn_its_time() -> None:
    agent = Agent()
    inbox = new_inbox(agent)
    async with inbox:
        first = await busy(inbox, agent)
        waiter = asyncio.get_running_loop().create_task(inbox.wait(first))
        asyncio.get_running_loop().call_later(9.0, agent.let_go)
    assert (await waiter).outcome is Outcome.SUCCEEDED
    assert agent.cancelled == []
    check_quiet()


@pytest.mark.parametrize(("on_crash", "outcome"), [("report", Outcome.INTERRUPTED), ("rerun", Outcome.SUCCEEDED)])
@staged
async def test_a_turn_that_needs_longer_is_cancelled_and_ends_as_after_a_crash(on_crash: Any, outcome: Outcome) -> None:
    store = CutStore()
    agent, after = Agent(), Agent()
    after.let_go()
    async with new_inbox(agent, store=store, on_crash=on_crash, close_timeout_ms=2_000) as inbox:
        first = await busy(inbox, agent)
        disk, at = store.disk, now_ms()
    assert now_ms() == at + 2_000
    assert agent.cancelled == ["hold"]
    check_quiet()
    async with new_inbox(after, store=MemoryStore(disk), on_crash=on_crash) as second:
        assert (await second.wait(first)).outcome is outcome
    assert after.prompts == (["hold"] if on_crash == "rerun" else [])


@staged
async def test_a_turn_that_ignores_even_that_is_fenced_and_waited_for_no_longer() -> None:
    agent = Agent()
    store = CutStore()
    async with new_inbox(agent, store=store, close_timeout_ms=2_000, interrupt_grace_ms=500) as inbox:
        first = await busy(inbox, agent, "cling")
        disk, at = store.disk, now_ms()
    assert now_ms() == at + 2_500
    with pytest.raises(FencedError):
        await agent.turns[0].reply("still here")
    agent.let_go()
    await passing()
    async with new_inbox(Agent(), store=MemoryStore(disk)) as second:
        final = await second.wait(first)
        assert (final.disposition, final.outcome) == (State.RAN, Outcome.INTERRUPTED)
        assert [entry.text for entry in await second.history(S)] == ["cling"]


@staged
async def test_what_has_not_begun_stays_and_runs_after_the_next_start() -> None:
    store = CutStore()
    agent, after = Agent(), Agent()
    async with new_inbox(agent, store=store, mode="followup", concurrency=1) as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "a", "b")
        other = (await inbox.submit("other", "c")).message_id
        disk = store.disk
        asyncio.get_running_loop().call_later(1.0, agent.let_go)
    assert agent.prompts == ["hold"]
    async with new_inbox(after, store=MemoryStore(disk), mode="followup") as second:
        assert await dispositions(second, [*ids, other]) == [State.RAN] * 3
    assert sorted(after.prompts) == ["a", "b", "c"]


@staged
async def test_somebody_who_waits_is_told_when_the_inbox_closes() -> None:
    agent = Agent()
    inbox = new_inbox(agent, mode="followup")
    async with inbox:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        waiter = asyncio.get_running_loop().create_task(inbox.wait(one))
        await passing()
        agent.let_go()
        await inbox.close()
        with pytest.raises(ClosedError):
            await waiter


@staged
async def test_an_exception_inside_the_block_closes_as_well() -> None:
    agent = Agent()

    async def uses() -> None:
        async with new_inbox(agent, close_timeout_ms=100) as inbox:
            await busy(inbox, agent)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await uses()
    assert agent.cancelled == ["hold"]
    check_quiet()


@staged
async def test_closing_twice_and_at_once_is_closing() -> None:
    agent = Agent()
    inbox = new_inbox(agent)
    async with inbox:
        await busy(inbox, agent)
        asyncio.get_running_loop().call_later(1.0, agent.let_go)
        await asyncio.gather(inbox.close(), inbox.close())
    check_quiet()
    assert agent.ended == ["hold"]


@staged
async def test_lanes_that_were_given_stay_open() -> None:
    agent = Agent()
    async with Lanes.for_gateway(host=fake_host()) as lanes:
        async with new_inbox(agent, lanes=lanes) as inbox:
            await finals(inbox, await send(inbox, "one"))
        assert await lanes.run("main", value, 7) == 7
        async with new_inbox(agent, lanes=lanes) as again:
            await finals(again, await send(again, "two"))
    assert agent.prompts == ["one", "two"]


@staged
async def test_an_idle_inbox_wakes_nobody_and_remembers_nothing() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        for number in range(50):
            await inbox.submit(f"s{number}", "one")
        await passing(10_000)
        kernel = inbox._engine.kernel  # noqa: SLF001 - what an idle session costs is the question
        assert (kernel.boxes, kernel.items, kernel.turns, kernel.sessions) == ({}, {}, {}, {})
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        assert loop.pending_timers() == 0
        steps = loop.steps
        await passing(86_400_000)
        assert loop.steps - steps < 10
    assert len(agent.turns) == 50


# ---- crashes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(12))
@simulated
async def test_a_kill_at_any_step_loses_nothing_and_runs_nothing_twice(at: int) -> None:
    """The store dies after its n-th commit; what was acknowledged is run, or reported, once."""
    store = CutStore()
    commits = 0

    def counts(batch: Batch) -> bool:
        nonlocal commits
        commits += 1
        store.is_dead = store.is_dead or commits > at
        return False

    store.refuse = counts
    before, after = Agent(), Agent()
    first = new_inbox(before, store=store, mode="followup")
    await first.__aenter__()
    accepted: list[str] = []

    async def feed() -> None:
        for number in range(6):
            accepted.append((await first.submit(S, f"m{number}", message_id=number)).message_id)  # noqa: PERF401 - what was acknowledged when it died

    task = asyncio.get_running_loop().create_task(feed())
    await passing(50)
    disk = kill(first, store)
    async with new_inbox(after, store=MemoryStore(disk), mode="followup") as second:
        ends = await finals(second, accepted)
        assert {end.disposition for end in ends} <= {State.RAN}
        again = [(await second.submit(S, f"m{number}", message_id=number)).message_id for number in range(6)]
        assert again[: len(accepted)] == accepted
        await finals(second, again)
    ran = before.prompts + after.prompts
    assert sorted(ran) == sorted(set(ran))
    reported = [end for end in ends if end.outcome is Outcome.INTERRUPTED]
    assert len(reported) <= 1
    assert after.prompts == sorted(after.prompts)
    task.cancel()


@staged
async def test_a_stopped_turn_is_not_run_again_after_a_kill() -> None:
    store = CutStore()
    before = Agent()
    first = new_inbox(before, store=store, on_crash="rerun", interrupt_grace_ms=60_000)
    await first.__aenter__()
    one = (await first.submit(S, "cling")).message_id
    await passing()
    await first.stop(S)
    after = Agent()
    async with new_inbox(after, store=MemoryStore(kill(first, store)), on_crash="rerun") as second:
        final = await second.wait(one)
        assert (final.outcome, after.prompts) == (Outcome.INTERRUPTED, [])
        assert "stopped" in final.reason
        before.let_go()


@staged
async def test_an_approval_of_a_process_that_died_is_withdrawn() -> None:
    async def work(turn: Turn) -> str:
        await turn.ask_approval("deploy")
        return ""

    store = CutStore()
    first = new_inbox(Agent(work=work), store=store)
    await first.__aenter__()
    one = (await first.submit(S, "work")).message_id
    await passing()
    (asked,) = first.approvals(S)
    second = new_inbox(Agent(), store=MemoryStore(kill(first, store)))
    log = Log(second)
    async with log, second:
        assert (await second.wait(one)).outcome is Outcome.INTERRUPTED
        assert second.approvals() == []
        assert not await second.approve(asked.id)
    assert [(event.approval_id, event.state) for event in log.of("approval.ended")] == [(asked.id, "withdrawn")]


@staged
async def test_a_parked_steer_of_a_process_that_died_runs_in_its_place() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store, mode="followup")
    await first.__aenter__()
    await first.submit(S, "hold")
    await passing()
    ids = await send(first, "a")
    ids += await send(first, "steer", mode="steer")
    ids += await send(first, "b")
    after = Agent()
    async with new_inbox(after, store=MemoryStore(kill(first, store)), mode="followup") as second:
        assert await dispositions(second, ids) == [State.RAN] * 3
    assert after.prompts == ["a", "steer", "b"]


@staged
async def test_a_second_owner_fences_the_first() -> None:
    disk = MemoryDisk()
    one, two = Agent(), Agent()
    first = new_inbox(one, store=MemoryStore(disk))
    await first.__aenter__()
    old = await busy(first, one)
    async with new_inbox(two, store=MemoryStore(disk)) as second:
        with pytest.raises(FencedError):
            await first.submit(S, "lost")
        await passing()
        assert one.cancelled == ["hold"]
        with pytest.raises(FencedError):
            await first.submit(S, "lost again")
        (end,) = await finals(second, await send(second, "mine"))
        assert end.outcome is Outcome.SUCCEEDED
        assert (await second.wait(old)).outcome is Outcome.INTERRUPTED
    await first.close()
    assert (one.prompts, two.prompts) == (["hold"], ["mine"])


# ---- a store that fails ------------------------------------------------------------------------------------------


def _has(batch: Batch, kind: type[MessageRow | StateRow], state: str) -> bool:
    return any(isinstance(row, kind) and row.state == state for row in batch.rows)


@simulated
async def test_a_message_that_the_store_kept_although_it_failed_runs_once() -> None:
    agent = Agent()
    store = CutStore()
    async with new_inbox(agent, store=store) as inbox:
        store.refuse, store.loses_answer = (lambda batch: True), True
        receipt = await inbox.submit(S, "kept", message_id="m1")
        store.refuse = lambda batch: False
        await passing(60_000)
        again = await inbox.submit(S, "kept", message_id="m1")
        assert (again.message_id, again.duplicate) == (receipt.message_id, True)
        assert (await inbox.wait(receipt.message_id)).outcome is Outcome.SUCCEEDED
    assert agent.prompts == ["kept"]


@pytest.mark.parametrize("lost", [False, True])
@simulated
async def test_a_handler_never_runs_before_its_start_is_stored(lost: bool) -> None:
    agent = Agent()
    store = CutStore()
    store.loses_answer = lost
    async with new_inbox(agent, store=store, mode="followup") as inbox:
        inbox.lanes.pause("main")
        (one,) = await send(inbox, "one")
        store.refuse = lambda batch: _has(batch, StateRow, "starting")
        inbox.lanes.resume("main")
        await passing(3_000)
        assert store.refused
        assert agent.prompts == []
        store.refuse = lambda batch: False
        final = await inbox.wait(one)
        assert (final.disposition, final.outcome) == (State.RAN, Outcome.SUCCEEDED)
        assert [entry.text for entry in await inbox.history(S)] == ["one", "re: one"]
    assert agent.prompts == ["one"]


@pytest.mark.parametrize("lost", [False, True])
@simulated
async def test_an_end_is_told_until_the_store_listens(lost: bool) -> None:
    agent = Agent()
    store = CutStore()
    store.loses_answer = lost
    async with new_inbox(agent, store=store) as inbox, Log(inbox) as log:
        (one,) = await send(inbox, "hold")
        await passing()
        store.refuse = lambda batch: _has(batch, MessageRow, "ran")
        agent.let_go()
        await passing(2_000)
        if not lost:
            assert log.of("message.ended") == []
            assert (await inbox.status(one)).disposition is not State.RAN
        store.refuse = lambda batch: False
        final = await inbox.wait(one)
        assert (final.outcome, final.answer) == (Outcome.SUCCEEDED, "re: hold")
        assert [entry.text for entry in await inbox.history(S)] == ["hold", "re: hold"]
        (after,) = await finals(inbox, await send(inbox, "after"))
        assert after.outcome is Outcome.SUCCEEDED
    assert agent.prompts == ["hold", "after"]


@simulated
async def test_a_boundary_that_could_not_be_stored_takes_nothing() -> None:
    heard: list[list[str]] = []
    gates = [asyncio.Event(), asyncio.Event()]

    async def work(turn: Turn) -> str:
        for gate in gates:
            await gate.wait()
            heard.append(texts_of(await turn.boundary()))
        return "done"

    agent = Agent(work=work)
    store = CutStore()
    async with new_inbox(agent, store=store, mode="steer") as inbox:
        first = await busy(inbox, agent, "work")
        (steer,) = await send(inbox, "steer")
        store.refuse = lambda batch: _has(batch, MessageRow, "injected")
        gates[0].set()
        await passing(100)
        assert heard == [[]]
        store.refuse = lambda batch: False
        await passing(20_000)
        gates[1].set()
        ends = await finals(inbox, [first, steer])
    assert ends[0].outcome is Outcome.SUCCEEDED
    seen_once = [text for part in heard for text in part] + [p for p in agent.prompts if p == "steer"]
    assert seen_once == ["steer"]


@simulated
async def test_an_interrupt_that_was_refused_ends_nothing() -> None:
    agent = Agent()
    store = CutStore()
    async with new_inbox(agent, store=store) as inbox:
        first = await busy(inbox, agent)
        store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await inbox.submit(S, "cut", mode="interrupt")
        store.refuse = lambda batch: False
        await passing(30_000)
        assert agent.cancelled == []
        agent.let_go()
        final = await inbox.wait(first)
        assert (final.outcome, final.answer) == (Outcome.SUCCEEDED, "re: hold")
    assert agent.prompts == ["hold"]


@pytest.mark.parametrize("call", ["edit", "hold", "withdraw", "move", "stop", "queue", "new"])
@simulated
async def test_a_change_that_could_not_be_stored_has_not_happened(call: str) -> None:
    agent = Agent()
    store = CutStore()
    async with new_inbox(agent, store=store, mode="followup") as inbox, Log(inbox) as log:
        first = await busy(inbox, agent)
        one, two = await send(inbox, "one", "two")
        before = [(entry.id, entry.text, entry.state) for entry in inbox.pending(S)]
        settings = await inbox.command(S, "/queue")
        await passing()
        known = len(log.events)
        store.refuse = lambda batch: True
        calls: dict[str, Any] = {
            "edit": lambda: inbox.edit(one, "other"),
            "hold": lambda: inbox.hold(one),
            "withdraw": lambda: inbox.withdraw(one),
            "move": lambda: inbox.move(two, 1),
            "stop": lambda: inbox.stop(S),
            "queue": lambda: inbox.command(S, "/queue steer cap:1"),
            "new": lambda: inbox.command(S, "/new"),
        }
        with pytest.raises(StoreUnavailableError):
            await calls[call]()
        store.refuse = lambda batch: False
        await passing(30_000)
        assert [(entry.id, entry.text, entry.state) for entry in inbox.pending(S)] == before
        assert await inbox.command(S, "/queue") == settings
        assert [event.type for event in log.events[known:] if getattr(event, "seq", 0)] == []
        agent.let_go()
        assert [final.outcome for final in await finals(inbox, [first, one, two])] == [Outcome.SUCCEEDED] * 3
    assert agent.prompts == ["hold", "one", "two"]


@simulated
async def test_a_store_that_is_away_for_long_costs_no_message() -> None:
    """Refused for a minute, in the middle of everything: what was acknowledged before runs after."""
    agent = Agent()
    store = CutStore()
    async with new_inbox(agent, store=store, mode="followup") as inbox:
        first = await busy(inbox, agent)
        ids = await send(inbox, "a", "b", "c")
        store.refuse = lambda batch: True
        agent.let_go()
        await passing(30_000)
        with pytest.raises(StoreUnavailableError):
            await inbox.submit(S, "refused")
        other = inbox.submit("elsewhere", "refused too")
        with pytest.raises(StoreUnavailableError):
            await other
        await passing(30_000)
        store.refuse = lambda batch: False
        await passing(60_000)
        ends = await finals(inbox, [first, *ids])
        assert [end.outcome for end in ends] == [Outcome.SUCCEEDED] * 4
        assert waiting(inbox) == []
    assert agent.prompts == ["hold", "a", "b", "c"]


@staged
async def test_a_slow_store_makes_nobody_wait_twice() -> None:
    """Everything that came together is one commit: a hundred senders wait as long as one."""
    store = CutStore()
    async with new_inbox(store=store) as inbox:
        store.delay_ms = 100
        at = now_ms()
        await asyncio.gather(*(inbox.submit(f"s{number}", "one") for number in range(100)))
        assert now_ms() - at <= 200


@staged
async def test_nothing_is_published_before_it_is_on_disk() -> None:
    store = CutStore()
    agent = Agent()
    async with new_inbox(agent, store=store) as inbox, Log(inbox) as log:
        store.delay_ms = 100
        task = asyncio.get_running_loop().create_task(inbox.submit(S, "one"))
        await passing(99)
        assert (log.events, task.done(), agent.prompts) == ([], False, [])
        await task
        store.delay_ms = 0
        await passing(500)
    assert agent.turns[0].state is TurnState.SUCCEEDED
    assert log.events[0].type == "message.accepted"


@staged
async def test_two_inboxes_on_one_store_and_workspace_are_refused() -> None:
    store, one, two = MemoryStore(), Agent(), Agent()
    async with new_inbox(one, store=store, mode="followup") as inbox:
        first = await busy(inbox, one)
        ids = await send(inbox, "x", "y")
        with pytest.raises(LanewayError, match="workspace"):
            await new_inbox(two, store=store).__aenter__()
        one.let_go()
        ends = await finals(inbox, [first, *ids])
        assert [end.outcome for end in ends] == [Outcome.SUCCEEDED] * 3
    assert (one.prompts, two.prompts) == (["hold", "x", "y"], [])
    async with new_inbox(two, store=store) as again:
        assert (await finals(again, await send(again, "z")))[0].outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("given", [False, True])
@staged
async def test_an_inbox_is_opened_once(given: bool) -> None:
    agent = Agent()
    async with Lanes.for_gateway(host=fake_host()) as lanes:
        inbox = new_inbox(agent, lanes=lanes if given else None, mode="followup")
        async with inbox:
            await busy(inbox, agent)
            ids = await send(inbox, "x")
            with pytest.raises(LanewayError, match="inbox"):
                await inbox.__aenter__()
            agent.let_go()
            await finals(inbox, ids)
        with pytest.raises(LanewayError, match="inbox"):
            await inbox.__aenter__()
        await passing(10)
    assert agent.prompts == ["hold", "x"]


@staged
async def test_a_closing_that_is_cancelled_leaves_nothing_behind() -> None:
    agent, store = Agent(), MemoryStore()
    inbox = new_inbox(agent, store=store)
    await inbox.__aenter__()
    await busy(inbox, agent)
    closing = asyncio.get_running_loop().create_task(inbox.close())
    await passing(10)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    check_quiet()
    async with new_inbox(Agent(), store=store) as again:  # the claim and the store were given back
        assert again.pending(S) == []


class DeafStore(MemoryStore):
    deaf = False

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        if self.deaf:
            await asyncio.Event().wait()
        return await super().commit(batches)


@staged
async def test_closing_does_not_wait_for_ever_for_a_store_that_says_nothing() -> None:
    store = DeafStore()
    inbox = new_inbox(Agent(), store=store, close_timeout_ms=300)
    await inbox.__aenter__()
    store.deaf = True
    began = now_ms()
    await inbox.close()
    assert now_ms() - began < 30_000


async def test_another_thread_is_refused_and_nothing_was_taken() -> None:
    agent = Agent()
    async with Inbox(agent) as inbox:
        with pytest.raises(WrongThreadError):
            await asyncio.to_thread(asyncio.run, inbox.submit(S, "stray"))
        with pytest.raises(WrongThreadError):
            await asyncio.to_thread(asyncio.run, inbox.close())
        receipt = await inbox.submit(S, "fine")
        assert (await inbox.wait(receipt.message_id)).answer == "re: fine"
    assert agent.prompts == ["fine"]


@staged
async def test_a_store_that_is_back_is_not_held_against_a_session() -> None:
    """What is refused again and again is loaded later and later; a refusal now and then costs nothing."""
    store = CutStore()
    async with new_inbox(Agent(), store=store, mode="followup") as inbox:
        inbox.lanes.pause("main")
        for number in range(1, 5):
            store.refuse = lambda batch: True
            with pytest.raises(StoreUnavailableError):
                await inbox.submit(S, "refused")
            store.refuse = lambda batch: False
            await passing(10)
            await send(inbox, str(number))
            assert len(inbox.pending(S)) == number


@staged
async def test_listing_and_status_tell_the_same_of_a_summarized_message() -> None:
    agent = Agent()
    async with new_inbox(agent, cap=1) as inbox:
        await busy(inbox, agent)
        first, _second = await send(inbox, "one", "two")
        agent.let_go()
        await passing(10_000)
        (listed,) = await inbox.messages(S, state="summarized")
        assert listed == await inbox.status(first)
        assert listed.turn_id is None
