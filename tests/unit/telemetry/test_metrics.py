"""Numbers for Prometheus: what is counted, and that labels stay few."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from laneway.agent_events import SubagentProgressEvent, ToolEndEvent, ToolStartEvent
from laneway.dialogue import ResultStatus, Usage
from laneway.events import (
    MessageAccepted,
    MessageEnded,
    MessageInjected,
    MessageRefused,
    MessageReturned,
    MessageStarted,
    TurnEnded,
    TurnStarted,
    TypingStarted,
)
from laneway.external import TaskState
from laneway.kernel.histograms import Histogram
from laneway.kernel.task_entries import TaskEntry, TaskNews
from laneway.mail import MessageState, Outcome, TurnState
from laneway.records import Effect
from laneway.rows import Owner
from laneway.telemetry.fairness import Fairness
from laneway.telemetry.metrics import LANES_MAX, TOOLS_MAX, Metrics, Moment, lane_label, task_lane
from laneway.testing import FakeClock

S = MessageState


def new_metrics() -> Metrics:
    return Metrics(FakeClock().monotonic_ms)


def samples(metrics: Metrics, moment: Moment | None = None) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, which are in the order of their names."""
    text = metrics.text(moment or Moment()).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ended(state: MessageState, outcome: Outcome | None = None, message_id: str = "m") -> MessageEnded:
    return MessageEnded(session_key="s", message_id=message_id, state=state, outcome=outcome)


def tool_end(name: str, status: ResultStatus = ResultStatus.OK) -> ToolEndEvent:
    return ToolEndEvent(tool_id="1", tool_name=name, tool_output="", status=status, duration_ms=1500)


def tool_start(name: str) -> ToolStartEvent:
    return ToolStartEvent(tool_id="1", tool_name=name)


def test_messages_and_runs_are_counted() -> None:
    metrics = new_metrics()
    for event in (
        MessageAccepted(session_key="s", message_id="m", state=S.QUEUED, mode="collect"),
        TypingStarted(session_key="s", message_id="m"),
        TurnStarted(session_key="s", turn_id="t", state=TurnState.STARTING, messages=("m",), lane="other/main"),
        MessageStarted(session_key="s", message_id="m", state=S.RUNNING, wait_ms=2000),
        ended(S.RAN, Outcome.SUCCEEDED),
        TurnEnded(session_key="s", turn_id="t", state=TurnState.SUCCEEDED, run_ms=3000),
    ):
        metrics.on_mail_event(event)
    found = samples(metrics)
    assert found["laneway_message_accepted_total", "collect"] == 1
    assert found["laneway_message_ended_total", "ran", "succeeded"] == 1
    assert found["laneway_message_wait_seconds_sum",] == 2.0
    assert found["laneway_run_started_total", "main"] == 1
    assert found["laneway_run_duration_seconds_sum", "succeeded"] == 3.0
    assert not any(name[0] == "laneway_message_dropped_total" for name in found)


@pytest.mark.parametrize("state", [S.DROPPED, S.SUMMARIZED, S.EXPIRED, S.SUPERSEDED, S.REJECTED, S.DEAD_LETTERED])
def test_a_message_that_never_got_a_turn_counts_as_dropped_with_its_reason(state: MessageState) -> None:
    metrics = new_metrics()
    metrics.on_mail_event(ended(state))
    assert samples(metrics)["laneway_message_dropped_total", state.value] == 1


def test_a_message_that_was_not_taken_counts_as_dropped_too() -> None:
    metrics = new_metrics()
    metrics.on_mail_event(MessageRefused(session_key="s", sender="ada", cap=1))
    metrics.on_overloaded()
    found = samples(metrics)
    assert (found["laneway_message_dropped_total", "full"], found["laneway_message_dropped_total", "overloaded"]) == (
        1,
        1,
    )


def test_what_becomes_of_steering_is_counted_and_nothing_is_remembered_of_it() -> None:
    metrics = new_metrics()
    parked = {"session_key": "s", "state": S.PARKED, "mode": "steer"}
    for number in range(3):
        metrics.on_mail_event(MessageAccepted(message_id=f"m{number}", **parked))  # type: ignore[arg-type]
    for number in range(2):
        metrics.on_mail_event(MessageInjected(session_key="s", message_id=f"m{number}", state=S.INJECTED))
    metrics.on_mail_event(ended(S.STEERED, Outcome.SUCCEEDED, "m0"))
    metrics.on_mail_event(MessageReturned(session_key="s", message_id="m1", state=S.QUEUED))
    metrics.on_mail_event(ended(S.RAN, Outcome.SUCCEEDED, "m1"))
    metrics.on_mail_event(ended(S.WITHDRAWN, None, "m2"))
    metrics.on_mail_event(MessageReturned(session_key="s", message_id="m9", state=S.QUEUED))  # its turn runs again
    found = samples(metrics)
    steered = {name[1]: value for name, value in found.items() if name[0] == "laneway_steer_total"}
    assert steered == {"injected": 2, "steered": 1, "returned": 1}
    assert metrics._steering == set()  # noqa: SLF001 - that is the claim


def test_calls_of_tools_are_counted_those_of_sub_agents_too() -> None:
    metrics = new_metrics()
    metrics.on_agent_event(tool_start("read"))
    metrics.on_agent_event(tool_end("read"))
    for event in (tool_start("grep"), tool_end("grep", ResultStatus.ERROR)):
        child = SubagentProgressEvent(task_id="t", child_session_id="s~1~1", event=event.to_dict())
        nested = SubagentProgressEvent(task_id="t", child_session_id="s~1", event=child.to_dict())
        metrics.on_agent_event(nested)
    found = samples(metrics)
    assert found["laneway_tool_execution_total", "ok", "read"] == 1
    assert found["laneway_tool_execution_total", "error", "grep"] == 1
    assert found["laneway_tool_execution_duration_seconds_sum", "grep"] == 1.5


def test_names_that_a_model_makes_up_are_no_labels_and_names_of_tools_are_bounded() -> None:
    metrics = new_metrics()
    for number in range(500):
        metrics.on_agent_event(tool_end(f"invented-{number}", ResultStatus.ERROR))
    for number in range(500):
        metrics.on_agent_event(tool_start(f"real-{number}"))
        metrics.on_agent_event(tool_end(f"real-{number}"))
    names = {name[2] for name in samples(metrics) if name[0] == "laneway_tool_execution_total"}
    assert len(names) == TOOLS_MAX + 1
    assert not any(name.startswith("invented") for name in names)


def test_requests_are_counted_and_methods_that_nobody_knows_are_one() -> None:
    metrics = new_metrics()
    for method in ("GET", "BREW", "PROPFIND"):
        metrics.on_request("/v1/x/{id}", method, 405, 0.01)
    found = samples(metrics)
    assert found["laneway_http_requests_total", "other", "/v1/x/{id}", "405"] == 2


def test_tokens_and_cost_only_grow() -> None:
    metrics = new_metrics()
    metrics.on_usage(Usage(input_tokens=10, output_tokens=5, cache_read_tokens=3, cost=0.25))
    metrics.on_usage(Usage(input_tokens=-4))
    found = samples(metrics)
    assert found["laneway_model_tokens_total", "input"] == 10
    assert found["laneway_model_tokens_total", "cache_read"] == 3
    assert found["laneway_model_cost_usd_total",] == 0.25


def test_the_waits_of_all_lanes_of_a_name_are_one_histogram() -> None:
    moment = Moment()
    for scope, waited in (("a/", 3), ("b/", 40_000), ("", 3_600_000)):
        waits = Histogram()
        waits.add(waited)
        moment.lane(lane_label(f"{scope}execute")).add_waits(waits)
    found = samples(new_metrics(), moment)
    edges = ("0.001", "0.005", "60.0", "1800.0", "+Inf")
    assert [found["laneway_queue_lane_wait_seconds_bucket", "execute", edge] for edge in edges] == [0, 1, 2, 2, 3]
    assert found["laneway_queue_lane_wait_seconds_sum", "execute"] == pytest.approx(3640.003, rel=0.04)


def test_lanes_of_sessions_are_one_and_lanes_beyond_a_bound_are_other() -> None:
    assert lane_label("session:ada") == lane_label("work/session:bob") == "session"
    moment = Moment()
    for number in range(LANES_MAX * 2):
        moment.lane(f"lane-{number}").waiting += 1
    assert len(moment.lanes) == LANES_MAX + 1
    assert moment.lanes["other"].waiting == LANES_MAX


def test_no_sample_has_a_label_for_a_session_or_a_user() -> None:
    metrics = new_metrics()
    metrics.on_mail_event(MessageAccepted(session_key="ada@home", tenant="acme", message_id="m", state=S.QUEUED))
    assert b"ada@home" not in metrics.text(Moment())
    assert b"acme" not in metrics.text(Moment())


@pytest.mark.parametrize(
    ("served", "index"), [({}, 1.0), ({"a": 5}, 1.0), ({"a": 5, "b": 5}, 1.0), ({"a": 10, "b": 0}, 0.5)]
)
def test_the_index_of_fairness_is_1_when_all_got_the_same(served: dict[str, int], index: float) -> None:
    fairness = Fairness(FakeClock().monotonic_ms)
    for tenant, run_ms in served.items():
        fairness.asked(tenant)
        fairness.served(tenant, run_ms)
    assert fairness.index() == index


def test_fairness_forgets_what_is_long_past() -> None:
    clock = FakeClock()
    fairness = Fairness(clock.monotonic_ms)
    fairness.served("a", 10)
    fairness.asked("b")
    clock.advance(300_000)
    fairness.served("c", 10)
    before: Any = fairness.index()
    clock.advance(700_000)
    assert (round(before, 3), fairness.index()) == (round(400 / 600, 3), 1.0)


# ---- external tasks ----


def task_entry(lane: str = "execute", **facts: Any) -> TaskEntry:
    """A task that was published at 1,000 and may take 60,000."""
    given: dict[str, Any] = {"timeout_ms": 60_000, "timeout_due": 61_000, "published": True, **facts}
    return TaskEntry(
        owner=Owner("default", "default", "s"),
        task_id="t",
        lane=lane,
        command_type="bash",
        payload="{}",
        lease_ms=1,
        effect=Effect.READ,
        **given,
    )


def test_external_tasks_are_counted_by_how_they_end_and_measured() -> None:
    metrics = new_metrics()
    done: dict[str, Any] = {"created_ms": 5_000, "ended_ms": 9_000}
    for news, now in (
        (TaskNews("pending", task_entry()), 1_000),
        (TaskNews("started", task_entry(state=TaskState.STARTED)), 3_500),
        (TaskNews("started", task_entry(state=TaskState.STARTED, attempt=2)), 50_000),
        (TaskNews("progress", task_entry(state=TaskState.STARTED)), 4_000),
        (TaskNews("requeued", task_entry()), 4_000),
        (TaskNews("ended", task_entry(state=TaskState.COMPLETED, **done)), 5_000),
        (TaskNews("ended", task_entry(state=TaskState.UNKNOWN, **done)), 5_000),
        (TaskNews("settled", task_entry(state=TaskState.COMPLETED, **done)), 6_000),
        (TaskNews("refused", task_entry(state=TaskState.COMPLETED, **done)), 6_000),
    ):
        metrics.on_task(news, now)
    found = samples(metrics)
    assert found["laneway_task_ended_total", "execute", "completed"] == 1
    assert found["laneway_task_ended_total", "execute", "unknown"] == 1
    assert found["laneway_task_requeued_total", "execute"] == 1
    assert (found["laneway_task_wait_seconds_count", "execute"], found["laneway_task_wait_seconds_sum", "execute"]) == (
        1,
        2.5,
    )
    assert found["laneway_task_duration_seconds_sum", "execute", "completed"] == 4.0
    assert [found["laneway_task_late_total", outcome] for outcome in ("settled", "refused")] == [1, 1]


def test_lanes_of_tasks_that_nobody_knows_are_one() -> None:
    metrics = new_metrics()
    for number in range(300):
        metrics.on_task(TaskNews("ended", task_entry(f"lane-{number}", state=TaskState.FAILED)), 1)
    found = samples(metrics)
    assert found["laneway_task_ended_total", "other", "failed"] == 300
    assert task_lane("query") == "query"


def test_tasks_and_workers_of_the_moment_are_shown() -> None:
    moment = Moment(tasks_claimed=7, task_leases_lost={"yes": 2, "no": 1})
    moment.tasks["execute", "pending"] = 3
    moment.workers["quiet"] = 2
    found = samples(new_metrics(), moment)
    assert found["laneway_task_size", "execute", "pending"] == 3
    assert [found["laneway_workers", health] for health in ("working", "waiting", "idle", "quiet")] == [0, 0, 0, 2]
    assert found["laneway_task_claimed_total",] == 7
    assert [found["laneway_task_lease_lost_total", started] for started in ("yes", "no")] == [2, 1]
