"""The lanes of one session: what its settings do to calls of tools and models."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from laneway import ConfigError, JobState, LaneConfig, Lanes
from laneway.agent.queue_records import ByLane, tool_call
from laneway.agent.session_lanes import SessionLanes
from laneway.agent_events import AgentEvent
from laneway.dialogue import ToolSpec
from laneway.errors import (
    ClosedError,
    InvalidJobError,
    JobCancelledError,
    JobTimeoutError,
    RetryLater,
    UnknownJobError,
    UnknownLaneError,
)
from laneway.lanes import TOOL_LANES
from laneway.options import LaneHandlerConfig, SessionQueueConfig
from laneway.records import Boost, Effect
from tests.stage import Diary, new_lanes, now_ms, passing, simulated

READ = ToolSpec(name="read", effect=Effect.READ)
KEYED = ToolSpec(name="keyed", effect=Effect.IDEMPOTENT)
WRITE = ToolSpec(name="bash")
SPECS = {spec.name: spec for spec in (READ, KEYED, WRITE)}


def shared_lanes(**models: int) -> Lanes:
    """What all sessions of a process share: the tool lanes first, then those of the models."""
    return new_lanes({**TOOL_LANES, **{f"models/{name}": width for name, width in models.items()}})


class Desk:
    """A session's lanes and what it was told."""

    def __init__(self, lanes: Lanes, config: SessionQueueConfig | None = None, name: str = "s1") -> None:
        self.events: list[AgentEvent] = []
        self.calls: list[tuple[str, Mapping[str, Any], int]] = []
        self.fail = 0
        self.queue = SessionLanes(
            lanes,
            name,
            config or SessionQueueConfig(),
            on_event=self.events.append,
            run_payload=self.run,
            spec_of=SPECS.get,
        )

    async def run(self, tool: str, arguments: Mapping[str, Any], *, attempt: int) -> str:
        self.calls.append((tool, arguments, attempt))
        await passing(1)
        if self.fail:
            self.fail -= 1
            raise OSError(f"{tool} is broken")
        return f"{tool} done"

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.event_type == kind]


def failing(times: int, log: list[int]) -> Callable[[int], Any]:
    async def run(attempt: int) -> str:
        log.append(attempt)
        if attempt <= times:
            raise OSError(f"attempt {attempt} failed")
        return "at last"

    return run


@simulated
async def test_a_session_has_four_lanes_with_the_configured_widths_and_the_order_of_priorities() -> None:
    async with shared_lanes() as lanes:
        desk = Desk(lanes, SessionQueueConfig(query_max_concurrency=7, execute_max_concurrency=1))
        found = {name: lane for name, lane in lanes.stats().lanes.items() if name.startswith("s1/")}
        assert {name: lane.max_concurrent for name, lane in found.items()} == {
            "s1/control": 2,
            "s1/query": 7,
            "s1/execute": 1,
            "s1/generate": 1,
        }
        await desk.queue.close()


@simulated
async def test_calls_run_up_to_the_width_of_their_lane_and_the_rest_waits() -> None:
    diary = Diary()
    async with shared_lanes() as lanes:
        queue = Desk(lanes).queue
        jobs = [
            queue.submit_tool(READ, lambda _, n=n: diary.hold(str(n)), lane="query", payload={})  # type: ignore[misc]
            for n in range(6)
        ]
        await passing()
        stats = queue.stats()
        assert (stats.total_pending, stats["total_active"], stats.external_pending) == (2, 4, 0)
        assert stats.lanes["Query"] == {
            "lane": "query",
            "pending": 2,
            "active": 4,
            "completed": 0,
            "failed": 0,
            "max_concurrency": 4,
            "handler_mode": "internal",
        }
        diary.let_go(*map(str, range(6)))
        assert await asyncio.gather(*jobs) == [str(n) for n in range(6)]
        assert queue.stats().lanes.query.completed == 6
        await queue.close()


@simulated
async def test_a_model_call_waits_for_generate_of_its_session_before_it_takes_a_slot_of_the_model() -> None:
    diary = Diary()
    async with shared_lanes(scripted=2) as lanes:
        one, two = Desk(lanes, name="one").queue, Desk(lanes, name="two").queue
        for name in ("one-a", "one-b"):
            one.submit_model(lambda _, n=name: diary.hold(n), model_lane="models/scripted")  # type: ignore[misc]
        job = two.submit_model(lambda _: diary.hold("two-a"), model_lane="models/scripted")
        await passing()
        assert sorted(diary.began) == ["one-a", "two-a"]
        diary.let_go("one-a", "one-b", "two-a")
        assert await job == "two-a"
        await passing()
        assert one.stats().lanes.generate.completed == 2
        await one.close()
        await two.close()


@simulated
async def test_what_reads_is_tried_again_after_growing_delays_and_each_retry_is_told() -> None:
    log: list[int] = []
    async with shared_lanes() as lanes:
        desk = Desk(lanes, SessionQueueConfig().with_lane_features())
        job = desk.queue.submit_tool(READ, failing(2, log), lane="query", payload={"path": "a"})
        assert await job == "at last"
        assert (log, now_ms()) == ([1, 2, 3], 300)
        told = [(each["attempt"], each["delay_ms"], each["lane"]) for each in desk.told("command_retry")]
        assert told == [(1, 100, "query"), (2, 200, "query")]
        assert desk.queue.dead_letters() == []
        await desk.queue.close()


@simulated
async def test_a_write_is_never_tried_again_and_is_a_dead_letter_at_once() -> None:
    log: list[int] = []
    async with shared_lanes() as lanes:
        desk = Desk(lanes, SessionQueueConfig().with_lane_features())
        payload = {"tool": "bash", "arguments": {"command": "make"}, "call_id": "c1"}
        job = desk.queue.submit_tool(WRITE, failing(9, log), lane="execute", payload=payload)
        with pytest.raises(OSError, match="attempt 1"):
            await job
        await passing()
        [letter] = desk.queue.dead_letters()
        assert (log, letter.attempts, letter["command_type"], letter.lane) == ([1], 1, "bash", "execute")
        assert letter.payload == {"command": "make"}
        assert letter.error == "OSError: attempt 1 failed"
        assert [each["command_id"] for each in desk.told("command_dead_lettered")] == [letter.command_id]
        assert desk.told("command_retry") == []
        assert len(lanes.dead_letters) == 0
        await desk.queue.close()


@simulated
async def test_retries_that_are_used_up_leave_a_dead_letter_with_its_attempts() -> None:
    log: list[int] = []
    async with shared_lanes() as lanes:
        desk = Desk(
            lanes, SessionQueueConfig(retry_policy={"strategy": "fixed", "max_retries": 2, "fixed_delay_ms": 5})
        )
        desk.queue.submit_tool(KEYED, failing(9, log), lane="execute", payload={}).add_done_callback(_look)
        await passing(50)
        assert (log, desk.queue.dead_letters()) == ([1, 2, 3], [])
        keeping = Desk(lanes, SessionQueueConfig(enable_dlq=True).set_retry_policy("fixed", fixed_delay_ms=5), "s2")
        job = keeping.queue.submit_tool(KEYED, failing(9, log), lane="execute", payload={})
        with pytest.raises(OSError, match="attempt 4"):
            await job
        await passing()
        assert [letter.attempts for letter in keeping.queue.dead_letters()] == [4]
        assert len(lanes.dead_letters) == 0
        await desk.queue.close()
        await keeping.queue.close()


def _look(job: Any) -> None:
    with pytest.raises(OSError, match="attempt"):
        job.__await__().send(None)


@simulated
async def test_a_lane_timeout_wins_over_the_default_and_the_tool_over_both() -> None:
    async with shared_lanes() as lanes:
        config = SessionQueueConfig(default_timeout_ms=100, lane_timeouts={"query": 20}, enable_dlq=True)
        queue = Desk(lanes, config).queue
        ends: dict[str, int] = {}
        slow = ToolSpec(name="slow", timeout_ms=300)
        for lane, spec in (("query", READ), ("execute", WRITE), ("execute", slow)):
            began = now_ms()
            with pytest.raises(JobTimeoutError):
                await queue.submit_tool(spec, lambda _: passing(10_000), lane=lane, payload={})
            ends[spec.name] = now_ms() - began
        assert ends == {"read": 20, "bash": 100, "slow": 300}
        await passing()
        assert [letter.error for letter in queue.dead_letters()] == [
            "it ran longer than 20 ms",
            "it ran longer than 100 ms",
            "it ran longer than 300 ms",
        ]
        await queue.close()


@simulated
async def test_a_write_that_runs_too_long_runs_once_and_a_read_again() -> None:
    began: list[str] = []

    async def slow(name: str) -> None:
        began.append(name)
        await passing(10_000)

    async with shared_lanes() as lanes:
        desk = Desk(lanes, SessionQueueConfig(default_timeout_ms=50).with_lane_features())
        write = desk.queue.submit_tool(WRITE, lambda _: slow("write"), lane="execute", payload={})
        read = desk.queue.submit_tool(READ, lambda _: slow("read"), lane="query", payload={})
        for job in (write, read):
            with pytest.raises(JobTimeoutError):
                await job
        assert (began.count("write"), began.count("read")) == (1, 4)
        await passing()
        assert [each["delay_ms"] for each in desk.told("command_retry")] == [100, 200, 400]
        assert sorted(letter.attempts for letter in desk.queue.dead_letters()) == [1, 4]
        await desk.queue.close()


@simulated
async def test_the_default_timeout_does_not_cut_long_answers_of_a_model_but_its_own_does() -> None:
    async with shared_lanes(scripted=1) as lanes:
        patient = Desk(lanes, SessionQueueConfig(default_timeout_ms=10)).queue
        assert await patient.submit_model(lambda _: _answer(500), model_lane="models/scripted") == "answer"
        strict = Desk(lanes, SessionQueueConfig(lane_timeouts={"generate": 100}, enable_dlq=True), "s2").queue
        with pytest.raises(JobTimeoutError):
            await strict.submit_model(lambda _: _answer(500), model_lane="models/scripted")
        await passing()
        assert strict.dead_letters() == []
        await patient.close()
        await strict.close()


async def _answer(ms: int) -> str:
    await passing(ms)
    return "answer"


@simulated
async def test_a_rate_limit_holds_in_each_lane() -> None:
    async with shared_lanes() as lanes:
        queue = Desk(lanes, SessionQueueConfig(rate_limit={"limit_type": "per_second", "max_operations": 2})).queue
        await queue.submit_batch("query", [_stamp] * 4)
        assert now_ms() == 1000
        await queue.close()


async def _stamp() -> int:
    return now_ms()


@simulated
async def test_alerts_are_told_once_when_a_line_is_crossed_and_pressure_too() -> None:
    async with shared_lanes() as lanes:
        desk = Desk(lanes, SessionQueueConfig(enable_alerts=True, pressure_threshold=10, execute_max_concurrency=1))
        desk.queue.pause()
        jobs = [desk.queue.submit_tool(WRITE, _number, lane="execute", payload={}) for _ in range(101)]
        await passing()
        told = [(each["alert_type"], each["level"], each["lane"]) for each in desk.told("queue_alert")]
        assert told == [
            ("pressure", "warning", "execute"),
            ("queue_depth", "warning", "execute"),
            ("queue_depth", "critical", "execute"),
        ]
        desk.queue.resume()
        await asyncio.gather(*jobs)
        await passing()
        assert len(desk.events) == 3
        quiet = Desk(lanes, name="quiet")
        quiet.queue.pause("execute")
        jobs = [quiet.queue.submit_tool(WRITE, _number, lane="execute", payload={}) for _ in range(60)]
        quiet.queue.resume("Execute")
        await asyncio.gather(*jobs)
        assert quiet.events == []
        await desk.queue.close()
        await quiet.queue.close()


async def _number(attempt: int) -> int:
    return attempt


@simulated
async def test_a_listener_that_raises_costs_nobody_anything() -> None:
    def refuse(_: AgentEvent) -> None:
        raise ValueError("not now")

    async with shared_lanes() as lanes:
        config = SessionQueueConfig(retry_policy={"strategy": "exponential"})
        queue = SessionLanes(lanes, "s1", config, on_event=refuse)
        assert await queue.submit_tool(READ, failing(1, []), lane="query", payload={}) == "at last"
        await queue.close()


@simulated
async def test_paused_lanes_start_nothing_but_control_goes_on() -> None:
    async with shared_lanes() as lanes:
        queue = Desk(lanes).queue
        queue.pause()
        waiting = queue.submit_tool(READ, _number, lane="query", payload={})
        assert await queue.submit("control", _stamp) == 0
        await passing(100)
        assert waiting.state is JobState.QUEUED
        queue.resume()
        assert await waiting == 1
        await queue.close()


@simulated
async def test_a_payload_is_run_by_the_tool_it_names_or_means() -> None:
    async with shared_lanes() as lanes:
        desk = Desk(lanes)
        assert await desk.queue.submit("execute", {"command": "ls"}) == "bash done"
        assert await desk.queue.submit("Query", {"path": "a.py"}) == "read done"
        named = {"command_type": "keyed", "payload": {"n": 1}}
        assert await desk.queue.submit_batch("execute", [{"tool": "deploy", "to": "x"}, named]) == [
            "deploy done",
            "keyed done",
        ]
        assert sorted(desk.calls, key=str) == [
            ("bash", {"command": "ls"}, 1),
            ("deploy", {"to": "x"}, 1),
            ("keyed", {"n": 1}, 1),
            ("read", {"path": "a.py"}, 1),
        ]
        await desk.queue.close()


@pytest.mark.parametrize(
    ("lane", "payload", "tool"),
    [
        ("query", {"url": "http://x"}, "web_fetch"),
        ("query", {"pattern": "TODO", "glob": "*.py"}, "grep"),
        ("execute", {"path": "a", "content": "b"}, "write"),
        ("execute", {"path": "a", "old": "b", "new": "c"}, "edit"),
        ("execute", {"path": "a", "diff": "b"}, "patch"),
        ("execute", {"tool": "bash", "arguments": {"command": "x"}, "call_id": "c"}, "bash"),
        ("execute", {"path": "a"}, None),
        ("query", {"pattern": "x", "path": "a"}, None),
        ("query", {}, None),
        ("query", {"tool": 5}, None),
        ("query", {"tool": "a", "command_type": "b"}, None),
    ],
)
def test_which_tool_a_payload_means(lane: str, payload: dict[str, Any], tool: str | None) -> None:
    if tool is None:
        with pytest.raises(InvalidJobError, match="tool"):
            tool_call(lane, payload)
    else:
        assert tool_call(lane, payload)[0] == tool


@pytest.mark.parametrize(
    ("payload", "arguments"),
    [
        ({"tool": "bash", "arguments": {"command": "x"}, "call_id": "c"}, {"command": "x"}),
        ({"command_type": "bash", "payload": {"command": "x"}, "timeout_ms": 5}, {"command": "x"}),
        ({"tool": "bash", "command": "x", "timeout_ms": 5}, {"command": "x", "timeout_ms": 5}),
        ({"tool": "post", "payload": {"a": 1}, "url": "u"}, {"payload": {"a": 1}, "url": "u"}),
        ({"tool": "post", "args": "text"}, {"args": "text"}),
        ({"tool": "now"}, {}),
    ],
)
def test_which_arguments_a_payload_has(payload: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert tool_call("execute", payload)[1] == arguments


@simulated
async def test_results_of_a_batch_come_in_order_and_its_first_error_when_all_have_ended() -> None:
    ended: list[int] = []

    def later(ms: int) -> Callable[[], Any]:
        async def work() -> int:
            await passing(ms)
            ended.append(ms)
            if ms == 20:
                raise OSError("20 is bad")
            return ms

        return work

    async with shared_lanes() as lanes:
        queue = Desk(lanes).queue
        assert await queue.submit_batch("query", [later(30), later(10)]) == [30, 10]
        with pytest.raises(OSError, match="20 is bad"):
            await queue.submit_batch("query", [later(20), later(40)])
        assert ended == [10, 30, 20, 40]
        results = await queue.submit_batch("query", [later(20), later(5)], return_errors=True)
        assert [str(result) for result in results] == ["20 is bad", "5"]
        assert await queue.submit_batch("query", []) == []
        await queue.close()


@simulated
async def test_a_batch_with_one_thing_that_cannot_run_runs_nothing() -> None:
    async with shared_lanes() as lanes:
        desk = Desk(lanes)
        for batch in ([{"command": "ls"}, 5], [{"command": "ls"}, {"x": 1}], "ls", {"command": "ls"}, 5):
            with pytest.raises(InvalidJobError):
                await desk.queue.submit_batch("execute", batch)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="did you mean 'execute'"):
            await desk.queue.submit("exceute", {"command": "ls"})
        with pytest.raises(ConfigError, match="timeout_ms"):
            await desk.queue.submit("execute", {"command": "ls"}, timeout_ms=0)
        with pytest.raises(ConfigError, match="did you mean 'read'"):
            await desk.queue.submit("execute", {"command": "ls"}, effect="reed")
        assert desk.calls == []
        nobody = SessionLanes(lanes, "s2", SessionQueueConfig(), on_event=desk.events.append)
        with pytest.raises(InvalidJobError, match="runs no payloads"):
            await nobody.submit("execute", {"command": "ls"})
        await desk.queue.close()
        await nobody.close()


@simulated
async def test_cancelling_whoever_submitted_ends_the_job() -> None:
    diary = Diary()
    async with shared_lanes() as lanes:
        queue = Desk(lanes).queue
        queue.pause("execute")
        caller = asyncio.get_running_loop().create_task(queue.submit("execute", functools.partial(diary.hold, "a")))
        task = asyncio.get_running_loop().create_task(queue.submit("query", functools.partial(diary.hold, "b")))
        await passing()
        assert diary.began == ["b"]
        task.cancel()
        caller.cancel()
        await asyncio.wait([task, caller])
        await passing()
        assert diary.cancelled == ["b"]
        assert queue.stats().total_active == 0
        await queue.close()


@simulated
async def test_a_dead_letter_is_sent_again_by_its_payload_and_leaves_the_list() -> None:
    async with shared_lanes() as lanes:
        desk = Desk(lanes, SessionQueueConfig(enable_dlq=True))
        desk.fail = 1
        with pytest.raises(OSError, match="bash is broken"):
            await desk.queue.submit("execute", {"command": "make"})
        await passing()
        [letter] = desk.queue.dead_letters()
        assert await desk.queue.retry_dead_letter(letter.command_id) == "bash done"
        assert desk.calls == [("bash", {"command": "make"}, 1)] * 2
        assert desk.queue.dead_letters() == []
        with pytest.raises(UnknownJobError, match="dead letters"):
            desk.queue.retry_dead_letter(letter.command_id)
        await desk.queue.close()


@simulated
async def test_a_function_that_died_is_called_again() -> None:
    calls: list[int] = []

    async def flaky() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("once")
        return "fine"

    async with shared_lanes() as lanes:
        queue = Desk(lanes, SessionQueueConfig(enable_dlq=True)).queue
        with pytest.raises(OSError, match="once"):
            await queue.submit("execute", flaky)
        await passing()
        [letter] = queue.dead_letters()
        assert (letter.command_type, letter.payload) == ("flaky", None)
        assert await queue.retry_dead_letter(letter.command_id) == "fine"
        await queue.close()


@simulated
async def test_dead_letters_are_bounded_and_can_be_purged() -> None:
    async with shared_lanes() as lanes:
        desk = Desk(lanes, SessionQueueConfig(enable_dlq=True, dlq_max_size=2))
        desk.fail = 9
        for number in range(3):
            await desk.queue.submit_batch("execute", [{"tool": "bash", "n": number}], return_errors=True)
            await passing()
        assert [letter.payload for letter in desk.queue.dead_letters()] == [{"n": 1}, {"n": 2}]
        with pytest.raises(UnknownJobError):
            desk.queue.purge_dead_letters("nobody")
        assert desk.queue.purge_dead_letters(desk.queue.dead_letters()[0].command_id) == 1
        assert desk.queue.purge_dead_letters() == 1
        assert desk.queue.dead_letters() == []
        assert len(desk.told("command_dead_lettered")) == 3
        await desk.queue.close()


@simulated
async def test_metrics_count_and_measure_each_lane_and_all_of_them() -> None:
    async with shared_lanes(scripted=1) as lanes:
        desk = Desk(lanes, SessionQueueConfig().with_lane_features())
        assert Desk(lanes, name="off").queue.metrics() is None
        await desk.queue.submit_model(lambda _: _answer(500), model_lane="models/scripted")
        await desk.queue.submit_tool(READ, failing(1, []), lane="query", payload={})
        desk.fail = 1
        await desk.queue.submit_batch("execute", [{"command": "a"}], return_errors=True)
        with pytest.raises(JobTimeoutError):
            await _too_long(desk.queue)
        await passing()
        found = desk.queue.metrics()
        assert found is not None
        counts = {name.removeprefix("lane.commands."): count for name, count in found.counters.items() if count}
        assert counts == {
            "submitted": 4,
            "submitted.query": 1,
            "submitted.execute": 2,
            "submitted.generate": 1,
            "completed": 2,
            "completed.query": 1,
            "completed.generate": 1,
            "failed": 1,
            "failed.execute": 1,
            "timeout": 1,
            "timeout.execute": 1,
            "retried": 1,
            "retried.query": 1,
            "dead_lettered": 2,
            "dead_lettered.execute": 2,
        }
        assert set(found["gauges"]) == {
            f"lane.queue.{what}.{lane}" for what in ("depth", "active") for lane in TOOL_LANES
        }
        latency = found.histograms["lane.command.latency_ms.generate"]
        assert list(latency) == ["count", "sum", "min", "max", "mean", "p50", "p90", "p95", "p99"]
        assert (latency["count"], latency["sum"], latency["max"], latency["mean"]) == (1, 500, 500, 500.0)
        assert found.histograms["lane.command.latency_ms"]["count"] == 5
        assert found.histograms["lane.command.wait_time_ms.control"]["count"] == 0
        assert json.loads(json.dumps(found)) == found
        await desk.queue.close()


async def _too_long(queue: SessionLanes) -> Any:
    return await queue.submit("execute", functools.partial(passing, 1_000), timeout_ms=5)


@simulated
async def test_the_handler_of_a_lane_is_what_was_said_last() -> None:
    async with shared_lanes() as lanes:
        queue = Desk(lanes, SessionQueueConfig().set_lane_handler("execute", mode="external")).queue
        assert (queue.handler_of("execute").mode, queue.handler_of("query").mode) == ("external", "internal")
        queue.set_lane_handler("Execute", LaneHandlerConfig("hybrid", 5, ordered=False))
        assert queue.handler_of("execute") == LaneHandlerConfig("hybrid", 5, ordered=False)
        assert queue.stats().lanes["execute"].handler_mode == "hybrid"
        with pytest.raises(ConfigError, match="mode cannot be 'outside'"):
            queue.set_lane_handler("execute", LaneHandlerConfig("outside"))
        assert queue.handler_of("execute").mode == "hybrid"
        await queue.close()


@simulated
async def test_closing_ends_what_waits_and_what_runs_and_nothing_of_it_runs_later() -> None:
    diary = Diary()
    async with shared_lanes() as lanes:
        queue = Desk(lanes, SessionQueueConfig(execute_max_concurrency=1)).queue
        running = queue.submit_tool(WRITE, lambda _: diary.hold("running"), lane="execute", payload={})
        waiting = queue.submit_tool(WRITE, lambda _: diary.hold("waiting"), lane="execute", payload={})
        await passing()
        await queue.close("bye")
        assert (running.state, waiting.state) == (JobState.CANCELLED, JobState.CANCELLED)
        assert diary.cancelled == ["running"]
        await queue.close()
        with pytest.raises(JobCancelledError, match="bye"):
            await waiting
        with pytest.raises(ClosedError, match="session is closed"):
            queue.submit_tool(WRITE, lambda _: diary.hold("late"), lane="execute", payload={})
        with pytest.raises(ClosedError):
            await queue.submit("execute", {"command": "ls"})
        await passing(100)
        assert diary.began == ["running"]
        assert queue.stats().total_active == 0


@simulated
async def test_a_job_that_clings_to_life_does_not_keep_its_lane_alive_for_ever() -> None:
    diary = Diary()
    async with shared_lanes() as lanes:
        queue = Desk(lanes).queue
        queue.submit_tool(WRITE, lambda _: diary.cling("mule", 60_000), lane="execute", payload={})
        await passing()
        await queue.close()
        assert now_ms() <= 10_001
        await passing(60_000)
        assert set(lanes.stats().lanes) == set(TOOL_LANES)


@pytest.mark.slow
async def test_a_thousand_sessions_that_are_closed_leave_nothing_behind() -> None:
    async with shared_lanes(scripted=4) as lanes:
        registry = lanes.engine.kernel.registry
        config = SessionQueueConfig().with_lane_features().set_rate_limit("per_minute", 5)
        made: list[weakref.ref[SessionLanes]] = []
        for number in range(1000):
            desk = Desk(lanes, config, f"session {number}/x")
            made.append(weakref.ref(desk.queue))
            if number % 50 == 0:
                await desk.queue.submit("execute", _stamp)
                desk.queue.pause("query")
            await desk.queue.close()
        assert set(registry.lanes) == set(registry.configs) == {*TOOL_LANES, "models/scripted"}
        assert len(registry._orders) == 5  # noqa: SLF001 - that nothing is kept is the claim
        assert len(registry.retired) <= 4
        assert not lanes.engine.kernel.jobs
        del desk
        gc.collect()
        assert not [one for one in made if one() is not None]


@simulated
async def test_two_sessions_of_one_name_and_sessions_of_any_name_have_lanes_of_their_own() -> None:
    async with shared_lanes() as lanes:
        names = ("same", "same", "a/b", "", " x ", "ü" * 300, "\n", "generate")
        desks = [Desk(lanes, name=name) for name in names]
        assert len({desk.queue.scope for desk in desks}) == len(desks)
        for desk in desks:
            assert await desk.queue.submit("execute", {"command": "x"}) == "bash done"
        for desk in desks:
            await desk.queue.close()
        assert set(lanes.stats().lanes) == set(TOOL_LANES)


@simulated
async def test_a_model_call_takes_its_lanes_in_either_order_of_configuration() -> None:
    async with new_lanes({"models/old": 1, **TOOL_LANES, "models/new": 1}) as lanes:
        config = SessionQueueConfig(enable_metrics=True, generate_max_concurrency=2, lane_timeouts={"generate": 700})
        queue = Desk(lanes, config).queue
        for model in ("models/old", "models/new"):
            began = now_ms()
            jobs = [queue.submit_model(lambda _: _answer(200), model_lane=model) for _ in range(2)]
            assert queue.stats().lanes.generate.active + queue.stats().lanes.generate.pending >= 1
            assert await asyncio.gather(*jobs) == ["answer", "answer"]
            assert now_ms() - began == 400
            lanes.close_until(model, 1_700_000_000_000 + now_ms() + 1_000)
            began = now_ms()
            assert await queue.submit_model(lambda _: _answer(1), model_lane=model) == "answer"
            assert now_ms() - began >= 1_000
            with pytest.raises(JobTimeoutError):
                await queue.submit_model(lambda _: _answer(5_000), model_lane=model)
        found = queue.metrics()
        assert found is not None
        assert found.counters["lane.commands.completed.generate"] == 6
        assert found.histograms["lane.command.latency_ms.generate"]["count"] == 8
        assert found.histograms["lane.command.latency_ms"]["count"] == 8
        assert found.histograms["lane.command.wait_time_ms.generate"]["max"] >= 999
        await queue.close()
        assert set(lanes.stats().lanes) == {*TOOL_LANES, "models/old", "models/new"}


@simulated
async def test_lanes_that_make_unknown_names_serve_sessions_and_forget_them() -> None:
    async with new_lanes({"main": 4}, unknown="create") as lanes:
        registry = lanes.engine.kernel.registry
        registry.configure("models/x", LaneConfig(concurrency=9), now=0)
        before = set(registry._orders)  # noqa: SLF001 - that nothing is kept is the claim
        for _ in range(3):
            queue = Desk(lanes).queue
            assert await queue.submit_model(lambda _: _answer(1), model_lane="models/x") == "answer"
            assert await queue.submit_model(lambda _: _answer(1), model_lane="models/on-the-fly") == "answer"
            assert await queue.submit("execute", {"command": "ls"}) == "bash done"
            await queue.close()
            assert set(lanes.stats().lanes) == {"main", "models/x"}
        assert set(registry._orders) - {""} == before  # noqa: SLF001


@simulated
async def test_a_model_without_a_lane_is_refused_where_lanes_are_not_made() -> None:
    async with shared_lanes(scripted=1) as lanes:
        queue = Desk(lanes).queue
        with pytest.raises(UnknownLaneError, match="models/scripted"):
            queue.submit_model(lambda _: _answer(1), model_lane="models/scriptd")
        assert queue.stats().total_pending == 0
        await queue.close()


async def test_a_sync_function_runs_on_a_thread_and_is_tried_again_only_if_it_reads() -> None:
    calls: list[int] = []

    def flaky() -> int:
        calls.append(threading.get_ident())
        if len(calls) < 3:
            raise OSError("not yet")
        return len(calls)

    async with shared_lanes() as lanes:
        config = SessionQueueConfig(enable_dlq=True).set_retry_policy("fixed", fixed_delay_ms=0)
        queue = Desk(lanes, config).queue
        with pytest.raises(OSError, match="not yet"):
            await queue.submit("execute", flaky)
        assert await queue.submit("execute", flaky, effect="read") == 3
        assert threading.get_ident() not in calls
        [letter] = queue.dead_letters()
        assert (letter.command_type, letter.attempts, letter.error) == ("flaky", 1, "OSError: not yet")
        assert await queue.retry_dead_letter(letter.command_id) == 4
        await queue.close()


@simulated
async def test_a_tool_that_says_when_to_come_back_is_asked_again_then_whatever_its_effect() -> None:
    began: list[int] = []

    async def busy(attempt: int) -> str:
        began.append(now_ms())
        if attempt == 1:
            raise RetryLater(70, "busy")
        return "done"

    async with shared_lanes() as lanes:
        desk = Desk(lanes)
        assert await desk.queue.submit_tool(WRITE, busy, lane="execute", payload={}) == "done"
        assert began == [0, 70]
        assert [each["delay_ms"] for each in desk.told("command_retry")] == [70]
        await desk.queue.close()


@simulated
async def test_an_attempt_that_does_not_end_when_told_to_is_left_behind_and_its_retry_is_told_all_the_same() -> None:
    diary = Diary()

    async def stubborn(attempt: int) -> str:
        return await diary.cling("mule", 60_000) if attempt == 1 else "second"

    async with shared_lanes() as lanes:
        desk = Desk(lanes, SessionQueueConfig(default_timeout_ms=50).set_retry_policy("fixed", fixed_delay_ms=10))
        assert await desk.queue.submit_tool(READ, stubborn, lane="query", payload={}) == "second"
        assert [each["attempt"] for each in desk.told("command_retry")] == [1]
        await desk.queue.close()
        await passing(60_000)


@simulated
async def test_a_boost_lets_a_call_climb_as_its_deadline_comes_near() -> None:
    async with shared_lanes() as lanes:
        queue = Desk(lanes, SessionQueueConfig(priority_boost={"strategy": "aggressive", "deadline_ms": 100})).queue
        config = lanes.engine.kernel.registry.configs[f"{queue.scope}/execute"]
        assert config.boost == Boost.aggressive(100)
        assert (config.priority, config.ageing_ms) == (2, 60_000)
        await queue.close()


def test_stats_and_letters_are_dicts_whose_keys_are_attributes() -> None:
    lanes = ByLane(query=1)
    assert (lanes.query, lanes["QUERY"], dict(lanes)) == (1, 1, {"query": 1})
    with pytest.raises(KeyError):
        lanes["execute"]
    with pytest.raises(AttributeError, match="ByLane has no 'execute'; it has query"):
        _ = lanes.execute
