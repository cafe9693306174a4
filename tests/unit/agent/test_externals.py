"""Lanes whose calls somebody else makes: tasks, their ends, switching, and what is left of them after a restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from laneway.agent import externals
from laneway.agent.session import AsyncSession
from laneway.dialogue import ToolOutput, ToolResult
from laneway.errors import ConfigError, LeaseLostError, RunCancelledError, UsageError
from laneway.external import ExternalTaskResult
from laneway.models import ScriptedModel, call, say
from laneway.options import LaneHandlerConfig, SessionQueueConfig
from laneway.runtime.task_desk import TaskDesk
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.agent_stage import Bench, Watch, check_conversation, one, opened, results, sending, statuses, use
from tests.stage import passing, simulated
from tests.unit.agent.test_resume import WAITS, Trade, World

OUT = {"execute": LaneHandlerConfig("external", 1_000)}
FLEET = {"execute": LaneHandlerConfig("external", 1_000, ordered=False, lease_ms=100)}


@asynccontextmanager
async def outside(*script: Any, **settings: Any) -> AsyncIterator[tuple[AsyncSession, ScriptedModel, Bench]]:
    """A session whose lane `execute` is somebody else's."""
    options = {name: settings.pop(name) for name in list(settings) if name in ("session_id", "session_store")}
    model, bench = ScriptedModel([*script, [say("done")]]), Bench()
    config = SessionQueueConfig(**{"lane_handlers": OUT, "execute_max_concurrency": 4, **settings})
    async with opened(model, bench, queue=config, **options) as session:
        await session.ready()
        yield session, model, bench
    for request in model.requests:
        check_conversation(request)


async def pending(session: AsyncSession, count: int = 1) -> list[Any]:
    """The tasks that wait, as soon as there are so many."""
    for _ in range(200):
        tasks = await session.pending_external_tasks()
        if len(tasks) >= count:
            return tasks
        await passing()
    raise AssertionError(f"there are not {count} tasks")


def desk(session: AsyncSession) -> TaskDesk:
    """Where workers get their tasks."""
    return session.host.desk


# ---- a task and its end ----


@simulated
async def test_a_call_in_an_external_lane_is_made_by_nobody_but_whoever_completes_its_task() -> None:
    async with outside(use("act", "a")) as (session, model, bench):
        watch = Watch(session.subscribe())
        sent = sending(session, "go")
        [task] = await pending(session)
        assert (task["command_type"], task.lane, task["payload"]) == ("act", "execute", {"key": "a"})
        assert (task.session_id, task["timeout_ms"], task["attempt"]) == (session.session_id, 1_000, 1)
        assert isinstance(task["remaining_ms"], int)
        assert 0 < task.remaining_ms() <= 1_000
        assert not task.is_timed_out()
        assert session.queue_stats().external_pending == 1
        assert task.task_id in session.explain()
        assert await session.complete_external_task(task["task_id"], {"success": True, "result": {"output": "hi"}})
        assert (await sent).text == "done"
        assert [each.output for each in results(model.requests[-1])] == ["hi"]
        assert bench.began == []
        assert session.queue_stats().external_pending == 0
        told = [event.event_type for event in watch.events if "external" in event.event_type]
        assert told == ["external_task_pending", "external_task_completed"]
        [end] = watch.of("external_task_completed")
        assert (end.success, end.state, end.lane, end.task_id) == (True, "completed", "execute", task["task_id"])
        assert [entry.state.value for entry in await session.ledger()] == ["done"]


@pytest.mark.parametrize(
    ("form", "text", "code"),
    [
        (({"success": True, "result": {"output": "out", "exit_code": 0}, "error": None},), "out", 0),
        (({"success": True, "result": {"stdout": "out", "stderr": "warn", "exit_code": 0}},), "out\nwarn", 0),
        (({"result": {"content": "out"}},), "out", None),
        (({"result": [1, {"a": None}]},), '[1,{"a":null}]', None),
        (("plain",), "plain", None),
        ((True, {"output": "out"}), "out", None),
        ((ExternalTaskResult(result={"answer": 42}),), '{"answer":42}', None),
    ],
)
def test_a_result_may_come_in_any_form_that_says_what_it_is(form: tuple[Any, ...], text: str, code: int | None) -> None:
    async def main() -> None:
        async with outside(use("act", "a")) as (session, model, _):
            sent = sending(session, "go")
            [task] = await pending(session)
            assert await session.complete_external_task(task["task_id"], *form)
            await sent
            [result] = results(model.requests[-1])
            assert (result.output, result.exit_code, result.status.value) == (text, code, "ok")

    simulated(main)()


@simulated
async def test_a_worker_that_says_no_is_a_tool_that_failed_and_nothing_runs_here() -> None:
    features = SessionQueueConfig().with_lane_features()
    retry = features.retry_policy
    script = [one("act", "a"), one("put", "b"), one("check", "c")]
    async with outside(script, retry_policy=retry, enable_dlq=True) as (session, model, bench):
        sent = sending(session, "go")
        for key in "abc":
            [task] = await pending(session)
            assert task["payload"] == {"key": key}
            assert await session.complete_external_task(task["task_id"], success=False, error="not on my machine")
        await sent
        assert statuses(model.requests[-1]) == [("a", "error"), ("b", "error"), ("c", "error")]
        assert {each.output for each in results(model.requests[-1])} == {"not on my machine"}
        assert bench.began == []
        assert [entry.state.value for entry in await session.ledger()] == ["failed", "failed"]


@simulated
async def test_a_task_that_nobody_takes_is_one_failure_and_is_known_not_to_have_run() -> None:
    async with outside(use("act", "a")) as (session, model, bench):
        watch = Watch(session.subscribe())
        await session.send("go")
        [result] = results(model.requests[-1])
        assert result.status.value == "timed_out"
        assert "It was not run" in result.output
        assert bench.began == []
        assert len(watch.of("external_task_pending")) == 1
        assert [event.state for event in watch.of("external_task_completed")] == ["timed_out"]
        assert [entry.state.value for entry in await session.ledger()] == ["failed"]


@simulated
async def test_a_task_that_was_handed_out_and_times_out_may_have_had_its_effect() -> None:
    async with outside(use("act", "a")) as (session, model, _):
        sent = sending(session, "go")
        [task] = await pending(session)
        await passing(2_000)
        await sent
        [result] = results(model.requests[-1])
        assert "may have had its effect" in result.output
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]
        assert task.is_timed_out()


@simulated
async def test_a_lane_may_fall_back_on_this_process_for_what_nobody_took_and_only_for_that() -> None:
    handlers = {"execute": LaneHandlerConfig("external", 1_000, fallback=True)}
    async with outside(use("act", "a"), use("act", "b"), lane_handlers=handlers) as (session, model, bench):
        sent = sending(session, "go")
        await passing(1_500)  # nobody takes the first; the second is handed out, and nobody answers
        assert bench.began == ["a"]
        await pending(session)
        await sent
        assert bench.began == ["a"]
        assert statuses(model.requests[-1]) == [("a", "ok"), ("b", "timed_out")]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (({"success": "yes"},), "success is True or False"),
        (({"success": True, "reslt": 1},), "a result has success, result and error"),
        (({"result": {1, 2}},), "result must be JSON"),
        (({"result": float("nan")},), "result must be JSON"),
        (({"error": 5},), "error is text"),
        (({"sucess": True},), "is no word of a result"),
        (({"Success": False, "Error": "no"},), "is no word of a result"),
        (({"ok": False},), "is no word of a result"),
        ((None,), "not said what became"),
        (({"result": "x" * 11_000_000},), "at most"),
    ],
)
def test_a_result_that_is_nonsense_is_refused_and_the_task_still_waits(form: tuple[Any, ...], says: str) -> None:
    async def main() -> None:
        async with outside(use("act", "a")) as (session, model, _):
            sent = sending(session, "go")
            [task] = await pending(session)
            with pytest.raises(UsageError, match=says):
                await session.complete_external_task(task["task_id"], *form)
            assert [each["task_id"] for each in await session.pending_external_tasks()] == [task["task_id"]]
            assert await session.complete_external_task(task["task_id"], "ok")
            await sent
            assert statuses(model.requests[-1]) == [("a", "ok")]

    simulated(main)()


@simulated
async def test_completing_twice_is_answered_the_same_way_and_what_nobody_waits_for_is_refused() -> None:
    async with outside(use("act", "a")) as (session, model, _):
        sent = sending(session, "go")
        [task] = await pending(session)
        assert await session.complete_external_task(task["task_id"], "first")
        assert await session.complete_external_task(task["task_id"], "second")
        await sent
        assert await session.complete_external_task(task["task_id"], "third")
        assert not await session.complete_external_task("task-nobody", "x")
        assert [each.output for each in results(model.requests[-1])] == ["first"]


@simulated
async def test_a_task_of_another_session_cannot_be_completed() -> None:
    async with outside(use("act", "a")) as (session, _, bench), opened(ScriptedModel(), bench, queue=True) as other:
        sent = sending(session, "go")
        [task] = await pending(session)
        assert not await other.complete_external_task(task["task_id"], "mine now")
        assert await session.complete_external_task(task["task_id"], "ok")
        await sent


# ---- as many as the lane allows ----


@simulated
async def test_as_many_tasks_are_out_as_the_lane_is_wide_and_results_keep_the_order_of_the_calls() -> None:
    keys = [f"k{number}" for number in range(10)]
    async with outside(use("act", *keys), lane_handlers=FLEET) as (session, model, _):
        sent = sending(session, "go")
        done: list[str] = []
        while len(done) < len(keys):
            tasks = await pending(session)
            assert len(tasks) == min(4, len(keys) - len(done))
            last = tasks[-1]  # out of order
            await session.complete_external_task(last["task_id"], last["payload"]["key"].upper())
            done.append(last["payload"]["key"])
            await passing()
        await sent
        assert [each.output for each in results(model.requests[-1])] == [key.upper() for key in keys]


@simulated
async def test_calls_of_an_ordered_lane_go_out_one_after_another() -> None:
    async with outside(use("act", "a", "b")) as (session, model, _):
        sent = sending(session, "go")
        for key in "ab":
            [task] = await pending(session)
            assert task["payload"]["key"] == key
            await session.complete_external_task(task["task_id"], "ok")
            await passing()
        await sent
        assert statuses(model.requests[-1]) == [("a", "ok"), ("b", "ok")]


# ---- who runs it ----


@simulated
async def test_a_lane_is_switched_for_the_next_call_and_what_is_out_stays_out() -> None:
    async with outside(use("act", "a"), use("act", "b"), use("act", "c")) as (session, model, bench):
        sent = sending(session, "go")
        [task] = await pending(session)
        with pytest.raises(ConfigError, match=r"no setting 'timeout' \(did you mean 'timeout_ms'"):
            await session.set_lane_handler("execute", mode="internal", timeout=5)  # type: ignore[arg-type]  # the point
        await session.set_lane_handler("execute", mode="internal")
        await passing()
        assert bench.began == []
        await session.complete_external_task(task["task_id"], "from outside")
        await sent
        assert bench.began == ["b", "c"]
        assert [each.output for each in results(model.requests[-1])] == ["from outside", "result of b", "result of c"]


@simulated
async def test_a_hybrid_lane_runs_here_and_tells_whoever_watches() -> None:
    handlers = {"execute": LaneHandlerConfig("hybrid")}
    async with outside(use("act", "a"), lane_handlers=handlers) as (session, model, bench):
        watch = Watch(session.subscribe())
        await session.send("go")
        assert bench.ended == ["a"]
        [begin], [end] = watch.of("external_task_pending"), watch.of("external_task_completed")
        assert (begin.task_id, begin.payload, end.success) == (end.task_id, {"key": "a"}, True)
        assert await session.pending_external_tasks() == []
        assert not await session.complete_external_task(begin.task_id, "no")
        assert statuses(model.requests[-1]) == [("a", "ok")]


@simulated
async def test_calls_of_the_host_in_an_external_lane_go_out_too() -> None:
    async with outside() as (session, _, bench):
        first = asyncio.ensure_future(session.tool("act", {"key": "a"}))
        second = asyncio.ensure_future(session.submit("execute", {"tool": "act", "key": "b"}))
        for task in await pending(session, 2):
            await session.complete_external_task(task["task_id"], task["payload"]["key"].upper())
        assert (await first, await second) == (ToolOutput(text="A"), "B")
        assert bench.began == []


# ---- ends of a run ----


@simulated
async def test_cancelling_withdraws_at_once_what_is_out_and_the_worker_is_told() -> None:
    async with outside(use("act", "a", "b"), lane_handlers=FLEET) as (session, model, bench):
        sent = sending(session, "go")
        await pending(session, 2)
        [lease] = await desk(session).claim("w1")
        await desk(session).start(lease.task["task_id"], lease.token)
        began = asyncio.get_running_loop().time()
        assert await session.cancel()
        await passing()
        assert asyncio.get_running_loop().time() - began < 0.05
        assert await session.pending_external_tasks() == []
        assert await desk(session).heartbeat(lease.task["task_id"], lease.token) is False
        with pytest.raises(Exception, match="ended"):
            await sent
        assert bench.began == []
        assert [entry.state.value for entry in await session.ledger()] == ["unknown", "unknown"]  # both were handed out
        assert await desk(session).complete(lease.task["task_id"], lease.token, ExternalTaskResult(result="late"))
        await passing()
        assert [entry.state.value for entry in await session.ledger()] == ["done", "unknown"]
        await session.send("again")
        assert len(model.requests) == 2


@simulated
async def test_a_task_that_was_over_when_its_run_was_ended_is_no_unknown() -> None:
    async with outside(use("act", "a")) as (session, _, _bench):
        sent = sending(session, "go")
        [task] = await pending(session)
        completing = asyncio.ensure_future(session.complete_external_task(task["task_id"], "x" * 100_000))
        while not session.host.desk.board.finished:
            await passing()
        await session.cancel()
        assert await completing
        with pytest.raises(RunCancelledError):
            await sent
        assert [entry.state.value for entry in await session.ledger()] == ["done"]


@simulated
async def test_what_no_worker_had_is_withdrawn_without_a_doubt() -> None:
    async with outside(use("act", "a")) as (session, _, _):
        sent = sending(session, "go")
        while not desk(session).tasks():
            await passing()
        await session.cancel()
        with pytest.raises(Exception, match="ended"):
            await sent
        assert [entry.state.value for entry in await session.ledger()] == ["failed"]


@simulated
async def test_a_call_that_fell_back_and_was_cut_off_is_not_made_again() -> None:
    handlers = {"execute": LaneHandlerConfig("external", 100, fallback=True)}
    async with outside(use("act", "a"), lane_handlers=handlers) as (session, model, bench):
        bench.held.add("a")
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await session.cancel()
        with pytest.raises(Exception, match="ended"):
            await sent
        assert bench.began == ["a"]
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]
        assert len(model.requests) == 1


# ---- workers ----


@simulated
async def test_a_worker_that_dies_after_it_has_begun_a_write_leaves_an_unknown_and_nobody_begins_again() -> None:
    async with outside(use("act", "a"), lane_handlers=FLEET) as (session, model, bench):
        sent = sending(session, "go")
        while not (leases := await desk(session).claim("w1")):
            await passing()
        await desk(session).start(leases[0].task["task_id"], leases[0].token)
        await sent
        [result] = results(model.requests[-1])
        assert result.status.value == "unknown"
        assert "may have had its effect" in result.output
        assert await desk(session).claim("w2") == []
        assert bench.began == []
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]


@pytest.mark.parametrize("name", ["check", "put"])
def test_a_worker_that_dies_with_what_may_be_done_again_gives_it_to_another(name: str) -> None:
    async def main() -> None:
        async with outside(use(name, "a"), lane_handlers=FLEET) as (session, model, bench):
            watch = Watch(session.subscribe())
            sent = sending(session, "go")
            while not (leases := await desk(session).claim("w1")):
                await passing()
            await desk(session).start(leases[0].task["task_id"], leases[0].token)
            [lease] = await desk(session).claim("w2", wait_ms=1_000)
            assert (lease.task["attempt"], lease.task["idempotency_key"]) == (2, leases[0].task["idempotency_key"])
            with pytest.raises(LeaseLostError):
                await desk(session).complete(lease.task["task_id"], leases[0].token, ExternalTaskResult(result="old"))
            await desk(session).start(lease.task["task_id"], lease.token)
            assert await desk(session).complete(lease.task["task_id"], lease.token, ExternalTaskResult(result="new"))
            await sent
            assert [each.output for each in results(model.requests[-1])] == ["new"]
            assert bench.began == []
            assert [event.attempt for event in watch.of("external_task_pending")] == [1, 2]
            assert [event.worker for event in watch.of("external_task_started")] == ["w1", "w2"]

    simulated(main)()


@simulated
async def test_a_worker_that_dies_before_it_begins_costs_nothing_whatever_the_effect() -> None:
    async with outside(use("act", "a"), lane_handlers=FLEET) as (session, model, _):
        sent = sending(session, "go")
        while not (leases := await desk(session).claim("w1")):
            await passing()
        [lease] = await desk(session).claim("w2", wait_ms=1_000)
        with pytest.raises(LeaseLostError):
            await desk(session).start(lease.task["task_id"], leases[0].token)
        await desk(session).start(lease.task["task_id"], lease.token)
        await desk(session).complete(lease.task["task_id"], lease.token, ExternalTaskResult(result="ok"))
        await sent
        assert statuses(model.requests[-1]) == [("a", "ok")]


# ---- restarts ----


CONFIG = SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("external", 60_000, lease_ms=10_000)})


def gone(world: World, script: list[Any], *, started: bool = False) -> dict[str, Any]:
    """A process that dies with a task out; the task, and the token of the worker that has it."""

    async def main() -> dict[str, Any]:
        model = ScriptedModel(script)
        async with world.process(model, Trade().tools(), queue_config=CONFIG) as (session, store):
            await session.followup("go")
            while not desk(session).tasks():
                await passing()
            token = ""
            if started:
                [lease] = await desk(session).claim("w1", wait_ms=100)
                await desk(session).start(lease.task["task_id"], lease.token)
                token = lease.token
            [task] = desk(session).tasks()
            store.die()
            return {**task, "token": token}

    return run_sim(main(), seed=world.life)


def told(world: World, then: Callable[[AsyncSession], Awaitable[None]], **options: Any) -> list[ToolResult]:
    """What the model hears of its calls when the run goes on; none of them is made again."""
    trade = Trade()
    model = world.go_on(then, [say("done")], trade=trade, queue_config=CONFIG, **options)
    assert trade.keys == []
    return results(model.requests[-1])


@pytest.mark.parametrize("name", ["look", "put", "pay"])
def test_after_a_restart_the_task_is_still_there_and_its_result_is_taken_once(name: str) -> None:
    world = World()
    lane: dict[str, Any] = {"tool_lanes": {"look": "execute"}}
    task = gone(world, [[call(name, name="x")]])

    async def then(session: AsyncSession) -> None:
        [found] = await pending(session)
        assert (found["task_id"], found["payload"]) == (task["task_id"], {"name": "x"})
        assert await session.complete_external_task(found["task_id"], "from the worker")
        assert await session.complete_external_task(found["task_id"], "again")
        await session.wait_idle()

    answers = told(world, then, **({} if name != "look" else lane))
    assert [each.output for each in answers] == ["from the worker"]
    states = [row.state for row in world.rows("task")]
    assert states == ["completed"]


def test_a_worker_that_had_begun_goes_on_over_a_restart_and_its_result_counts_before_the_run_goes_on() -> None:
    world = World()
    task = gone(world, [[call("pay", name=WAITS)]], started=True)

    async def then(session: AsyncSession) -> None:
        assert await desk(session).heartbeat(task["task_id"], task["token"])
        assert await desk(session).complete(task["task_id"], task["token"], ExternalTaskResult(result="paid"))
        await session.wait_idle()
        assert [entry.state.value for entry in await session.ledger()] == ["done"]

    assert [each.output for each in told(world, then)] == ["paid"]


def test_a_worker_that_does_not_come_back_after_a_restart_leaves_an_unknown() -> None:
    world = World()
    gone(world, [[call("pay", name=WAITS)]], started=True)

    async def then(session: AsyncSession) -> None:
        await session.wait_idle()
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]

    assert [each.status.value for each in told(world, then)] == ["unknown"]


def test_a_session_that_is_closed_leaves_its_task_out_and_goes_on_with_it_when_it_is_opened_again() -> None:
    world = World()

    async def main() -> str:
        model = ScriptedModel([[call("pay", name="x")]])
        async with world.process(model, Trade().tools(), queue_config=CONFIG) as (session, _):
            await session.followup("go")
            [task] = await pending(session)
            await session.close()
            return str(task["task_id"])

    task_id = run_sim(main(), seed=0)
    assert [row.state for row in world.rows("task")] == ["pending"]

    async def then(session: AsyncSession) -> None:
        assert await session.complete_external_task(task_id, "paid")
        await session.wait_idle()

    model = world.go_on(then, [say("done")], queue_config=CONFIG)
    assert [each.output for each in results(model.requests[-1])] == ["paid"]


def test_a_result_that_a_session_is_closed_over_is_told_when_it_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()

    async def main() -> None:
        reading = asyncio.Event()

        async def cap_output(output: ToolOutput, context: object) -> ToolOutput:
            reading.set()
            await asyncio.Event().wait()  # a long text is written to the disk
            return output

        model = ScriptedModel([[call("pay", name="x")]])
        async with world.process(model, Trade().tools(), queue_config=CONFIG) as (session, _):
            await session.followup("go")
            [task] = await pending(session)
            with monkeypatch.context() as patch:
                patch.setattr(externals, "cap_output", cap_output)
                assert await session.complete_external_task(task["task_id"], "paid")
                await reading.wait()
                await session.close()

    run_sim(main(), seed=0)

    async def then(session: AsyncSession) -> None:
        await session.wait_idle()
        assert [entry.state.value for entry in await session.ledger()] == ["done"]

    assert [each.output for each in told(world, then)] == ["paid"]


def test_tasks_of_a_run_that_does_not_go_on_are_withdrawn() -> None:
    world = World()
    gone(world, [[call("pay", name="x")]])

    async def then(session: AsyncSession) -> None:
        await session.wait_idle()
        assert await session.pending_external_tasks() == []

    world.go_on(then, queue_config=CONFIG, on_crash="report")
    assert [row.state for row in world.rows("task")] == ["withdrawn"]


SHORT = SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("external", 100, fallback=True)})


def test_a_call_that_fell_back_when_the_process_died_is_unknown_and_not_made_again() -> None:
    world = World()
    before = world.crash([[call("pay", name=WAITS)]], queue_config=SHORT)
    assert before.names() == [f"pay {WAITS}"]
    trade = Trade()

    async def then(session: AsyncSession) -> None:
        await session.wait_idle()
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]

    model = world.go_on(then, [say("done")], trade=trade, queue_config=SHORT)
    assert trade.keys == []
    assert "may have had its effect" in results(model.requests[-1])[0].output


def test_nothing_falls_back_after_a_restart() -> None:
    world = World()
    gone(world, [[call("pay", name="x")]])
    trade = Trade()

    async def then(session: AsyncSession) -> None:
        await session.wait_idle()
        assert [entry.state.value for entry in await session.ledger()] == ["failed"]

    model = world.go_on(then, [say("done")], trade=trade, queue_config=SHORT)
    assert trade.keys == []
    assert "It was not run" in results(model.requests[-1])[0].output


def test_what_was_handed_out_before_a_restart_may_have_been_made() -> None:
    world = World()

    async def main() -> None:
        async with world.process(ScriptedModel([[call("pay", name="x")]]), Trade().tools(), queue_config=CONFIG) as (
            session,
            store,
        ):
            await session.followup("go")
            await pending(session)
            store.die()

    run_sim(main(), seed=0)

    async def then(session: AsyncSession) -> None:
        await session.wait_idle()
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]

    model = world.go_on(then, [say("done")], queue_config=CONFIG)
    assert "may have had its effect" in results(model.requests[-1])[0].output


@pytest.mark.parametrize("on_crash", ["report", "ask"])
def test_a_task_whose_run_does_not_go_on_is_given_to_nobody(on_crash: str) -> None:
    world = World()
    gone(world, [[call("pay", name="x")]])

    async def then(session: AsyncSession) -> None:
        assert await desk(session).claim("w1", wait_ms=10) == []
        for request in await session.approvals():
            await session.deny(request.id, "no")
        await session.wait_idle()
        assert await desk(session).claim("w1", wait_ms=10) == []
        assert [entry.state.value for entry in await session.ledger()] == ["failed"]

    world.go_on(then, queue_config=CONFIG, on_crash=on_crash)
    assert [row.state for row in world.rows("task")] == ["withdrawn"]


@simulated
async def test_a_run_that_ends_while_its_task_is_on_its_way_to_the_store_leaves_no_task() -> None:
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk), random.Random(0))
    store.slow, store.delay_ms = 1.0, 50
    async with outside(use("act", "a"), session_id="s", session_store=store) as (session, _, _):
        sent = sending(session, "go")
        while not desk(session).held(session.owner):
            await passing()
        await session.cancel()
        with pytest.raises(Exception, match="ended"):
            await sent
        assert desk(session).held(session.owner) == []
    assert not [row for row in disk.states.values() if row.kind == "task" and row.live]
