"""The first document that agents come with: its Python runs as it stands, and every block of its configuration holds.

Snippets are played as they are written there, with the import name changed and a folder that exists; what has to do
with external workers is in `test_seed_external.py`. Configuration is loaded from HCL, and what it says is seen in what
happens: in virtual time, where time is what it is about.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from laneway import Agent, AsyncAgent, AsyncSession, Session, SessionQueueConfig, tool
from laneway.agent_events import AgentEvent
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Entry
from laneway.options import PermissionPolicy
from laneway.testing import fake_host
from tests.inbox_stage import staged
from tests.seed_config import SEED_000
from tests.snippets import played
from tests.stage import now_ms, passing

PATIENCE_S: Final = 55.0
ANYTHING: Final = PermissionPolicy(default_decision="allow")
SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE


@tool(lane="query", effect="read")
def look(path: str) -> str:
    """Look at something."""
    return f"seen {path}"


@tool(lane="execute", effect="write")
def build(target: str) -> str:
    """Build something."""
    return f"built {target}"


@tool(lane="query", effect="read")
def broken() -> str:
    """Fail."""
    raise OSError("no such disk")


@pytest.fixture
def agent_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`agent.hcl` in the folder where the program runs."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "agent.hcl"
    path.write_text('default_model = "scripted"\n', encoding="utf-8")
    return path


@pytest.fixture
def agent(agent_file: Path) -> Iterator[Agent]:
    script: list[Entry] = [
        [call("look", path="a"), call("look", path="b"), call("build", target="all")],
        [say("all is well")],
    ]
    model = ScriptedModel([*script, *script])
    with Agent.create(agent_file, model=model, tools=[look, build, broken], permission_policy=ANYTHING) as one:
        yield one


# ---- the snippets ----

ENABLING: Final = """
    from a3s_code import Agent, SessionQueueConfig

    qc = SessionQueueConfig()
    qc.with_lane_features()
    session = agent.session("/project", queue_config=qc)
"""

STATUS: Final = """
    stats = session.queue_stats()
    print(f"Pending: {stats['total_pending']}, Active: {stats['total_active']}")
"""

COORDINATOR: Final = """
    from a3s_code import Agent, SessionQueueConfig

    agent = Agent.create("agent.hcl")

    # 1. Create session with queue
    qc = SessionQueueConfig()
    qc.with_lane_features()
    qc.set_default_timeout(60000)
    session = agent.session("/project", queue_config=qc)
"""

STREAMING: Final = """
    for event in session.stream("Run the full test suite, build for release, and deploy to staging"):
        if event.event_type == "external_task_pending":
            raise AssertionError("nothing is external here")
        elif event.event_type == "text_delta":
            print(event.text, end="", flush=True)
        elif event.event_type == "end":
            break
"""

SENDING: Final = """
    result = session.send("Run cargo test and fix any failures")
"""

LETTERS: Final = """
    metrics = session.queue_metrics()
    if metrics is not None:
        print(metrics)

    dead = session.dead_letters()
    for dl in dead:
        print(f"Dead: {dl['command_type']} — {dl['error']}")
"""


def test_enabling_the_queue_gives_the_session_lanes_with_their_features(agent: Agent, tmp_path: Path) -> None:
    session: Session = played(ENABLING, tmp_path, agent=agent)["session"]
    assert session.has_queue()
    assert session.send("go").text == "all is well"
    lanes = session.queue_stats()["lanes"]
    assert {name: lane["completed"] for name, lane in lanes.items()} == {
        "control": 0,
        "query": 2,
        "execute": 1,
        "generate": 2,
    }
    assert session.queue_metrics() is not None


def test_the_stats_print_what_waits_and_what_runs(
    agent: Agent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = agent.session(tmp_path, queue_config=SessionQueueConfig().set_query_concurrency(1))
    gate, entered = threading.Event(), threading.Event()

    def hold() -> bool:
        entered.set()
        return gate.wait(PATIENCE_S)

    others = [threading.Thread(target=session.submit_batch, args=("query", [hold, hold, hold]))]
    others[0].start()
    assert entered.wait(PATIENCE_S)
    played(STATUS, tmp_path, session=session)
    assert capsys.readouterr().out == "Pending: 2, Active: 1\n"
    gate.set()
    others[0].join(PATIENCE_S)
    played(STATUS, tmp_path, session=session)
    assert capsys.readouterr().out == "Pending: 0, Active: 0\n"


def test_the_coordinator_makes_its_agent_from_a_file_and_streams(
    agent_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = played(COORDINATOR, tmp_path)
    with names["agent"]:
        played(STREAMING, tmp_path, session=names["session"])
        text = "Run the full test suite, build for release, and deploy to staging"
        assert capsys.readouterr().out == f"You said: {text}"
        assert names["session"].queue_stats()["lanes"]["generate"]["completed"] == 1


def test_streaming_shows_the_text_and_every_call(
    agent: Agent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session: Session = played(ENABLING, tmp_path, agent=agent)["session"]
    played(STREAMING, tmp_path, session=session)
    assert capsys.readouterr().out == "all is well"
    ends = [event for event in session.stream("again") if event.event_type == "tool_end"]
    assert [event.tool_output for event in ends] == ["seen a", "seen b", "built all"]


def test_sending_gives_a_result_with_text_and_counts(agent: Agent, tmp_path: Path) -> None:
    session = agent.session(tmp_path)
    result = played(SENDING, tmp_path, session=session)["result"]
    assert (result.text, result.tool_calls_count) == ("all is well", 3)


def test_metrics_and_dead_letters_print_what_failed_and_why(
    agent_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel([[call("broken")], [say("it is broken")]])
    with Agent.create(agent_file, model=model, tools=[broken]) as agent:
        config = SessionQueueConfig().with_lane_features().set_retry_policy("none")
        session = agent.session(tmp_path, queue_config=config)
        assert session.send("go").text == "it is broken"
        names = played(LETTERS, tmp_path, session=session)
    assert capsys.readouterr().out.endswith("Dead: broken — OSError: no such disk\n")
    counters = names["metrics"]["counters"]
    assert (counters["lane.commands.failed"], counters["lane.commands.dead_lettered"]) == (1, 1)
    assert names["dead"][0]["payload"] == {}


def test_without_a_queue_calls_are_made_one_after_another_and_there_is_nothing_to_count(
    agent: Agent, tmp_path: Path
) -> None:
    session = agent.session(tmp_path)
    assert not session.has_queue()
    kinds = [event.event_type for event in session.stream("go") if event.event_type in ("tool_start", "tool_end")]
    assert kinds == ["tool_start", "tool_end"] * 3
    assert session.queue_stats() == {"total_pending": 0, "total_active": 0, "external_pending": 0, "lanes": {}}
    assert session.queue_metrics() is None
    assert session.dead_letters() == []


# ---- the blocks of the configuration, in virtual time ----

EXPONENTIAL: Final = """
queue {
  retry_policy {
    strategy = "exponential"  # exponential, fixed, or none
    max_retries = 3
    initial_delay_ms = 100
  }
}
"""

FIXED: Final = """
queue {
  retry_policy {
    strategy = "fixed"
    max_retries = 5
    fixed_delay_ms = 1000  # 1 second between retries
  }
}
"""

NEVER: Final = """
queue {
  retry_policy {
    strategy = "none"
    max_retries = 3
    initial_delay_ms = 100
  }
}
"""

RATE: Final = """
queue {
  rate_limit {
    limit_type = "per_second"  # per_second, per_minute, per_hour, unlimited
    max_operations = 100
  }
}
"""

BOOST: Final = """
queue {
  priority_boost {
    strategy = "standard"  # standard, aggressive, or disabled
    deadline_ms = 300000   # 5 minutes
  }
}
"""

PRESSURE: Final = """
queue {
  pressure_threshold = 50  # Emit event when pending tasks >= 50
}
"""

TIMEOUTS: Final = """
queue {
  default_timeout_ms = 60000  # Global default: 60 seconds

  lane_timeouts {
    query = 30000      # Query lane: 30 seconds
    execute = 120000   # Execute lane: 2 minutes
  }
}
"""


class Book:
    """Tools that write down when they are called."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def failing(self, effect: str) -> Any:
        @tool(name="failing", lane="query", effect=effect)
        async def failing() -> str:
            """Fail every time."""
            self.calls.append(now_ms())
            raise OSError("no such disk")

        return failing

    def quick(self) -> Any:
        @tool(name="quick", lane="query", effect="read")
        async def quick() -> str:
            """Answer at once."""
            self.calls.append(now_ms())
            return "here"

        return quick


def configured(text: str, *script: list[Any], tools: tuple[Any, ...] = ()) -> AsyncAgent:
    model = ScriptedModel([*script, [say("done")]])
    return AsyncAgent.create(text, model=model, tools=tools, permission_policy=ANYTHING, host=fake_host())


async def told(session: AsyncSession) -> list[AgentEvent]:
    return [event async for event in session.stream("go")]


@pytest.mark.parametrize(
    ("text", "waits"),
    [(EXPONENTIAL, [100, 200, 400]), (FIXED, [1000] * 5), (NEVER, [])],
    ids=["grows", "fixed", "none"],
)
@pytest.mark.parametrize("effect", ["read", "idempotent"])
@staged
async def test_a_call_that_may_run_again_is_tried_as_the_retry_policy_says(
    text: str, waits: list[int], effect: str
) -> None:
    book = Book()
    async with configured(text, [call("failing")], tools=(book.failing(effect),)) as agent:
        events = await told(agent.session())
    assert [later - earlier for earlier, later in pairwise(book.calls)] == waits
    assert [event.delay_ms for event in events if event.event_type == "command_retry"] == waits
    [end] = [event for event in events if event.event_type == "tool_end"]
    assert (end.status, "no such disk" in end.tool_output) == ("error", True)


@staged
async def test_a_call_that_changes_something_is_never_tried_again() -> None:
    book = Book()
    async with configured(EXPONENTIAL, [call("failing")], tools=(book.failing("write"),)) as agent:
        await told(agent.session())
    assert len(book.calls) == 1


@pytest.mark.slow
@staged
async def test_a_hundred_calls_a_second_start_and_the_rest_waits() -> None:
    book = Book()
    answers = [[call("quick")] * 60, [call("quick")] * 60]
    async with configured(RATE, *answers, tools=(book.quick(),)) as agent:
        await told(agent.session())
    began = book.calls[0]
    assert sum(at == began for at in book.calls) == 100
    assert [at - began for at in book.calls[100:]] == list(range(10, 210, 10))


@pytest.mark.parametrize(
    ("limit_type", "third_at"),
    [("per_second", SECOND // 2), ("per_minute", MINUTE // 2), ("per_hour", HOUR // 2), ("unlimited", 0)],
)
@staged
async def test_every_window_of_a_rate_limit_has_its_length(limit_type: str, third_at: int) -> None:
    book = Book()
    text = RATE.replace('"per_second"', f'"{limit_type}"').replace("100", "2")
    async with configured(text, [call("quick")] * 3, tools=(book.quick(),)) as agent:
        await told(agent.session())
    assert [at - book.calls[0] for at in book.calls] == [0, 0, third_at]


@pytest.mark.parametrize(
    ("strategy", "held_ms", "first"),
    [
        ("standard", 74 * SECOND, "unhurried"),  # more than 75 % of five minutes remain
        ("standard", 76 * SECOND, "ours"),
        ("aggressive", 59 * SECOND, "unhurried"),  # more than 80 % remain
        ("aggressive", 61 * SECOND, "ours"),
        ("disabled", 299 * SECOND, "unhurried"),
    ],
)
@staged
async def test_a_call_overtakes_when_its_deadline_comes_near(strategy: str, held_ms: int, first: str) -> None:
    """A job with an hour to go waits before ours, which has the five minutes of the configuration."""
    text = BOOST.replace('"standard"', f'"{strategy}"').replace("queue {", "queue {\n  query_max_concurrency = 1")
    order: list[str] = []

    async def note(name: str) -> None:
        order.append(name)

    async with configured(text) as agent:
        session = await agent.session().ready()
        assert session.lanes is not None
        lane = f"{session.lanes.scope}/query"
        async with asyncio.TaskGroup() as group:
            group.create_task(session.submit("query", lambda: passing(held_ms)))
            await passing()
            session.host.inbox.lanes.submit(lane, note, "unhurried", deadline_ms=HOUR)
            group.create_task(session.submit("query", lambda: note("ours")))
    assert order[0] == first


@pytest.mark.parametrize(("waiting", "expected"), [(49, []), (50, ["queue.lane.pressure", "queue.lane.idle"])])
@staged
async def test_pressure_is_told_when_fifty_calls_wait_and_idleness_when_none_is_left(
    waiting: int, expected: list[str]
) -> None:
    async with configured(PRESSURE) as agent:
        session = await agent.session().ready()
        events = session.subscribe()
        width = session.queue_stats()["lanes"]["query"]["max_concurrency"]
        async with session.host.inbox.lanes.subscribe("queue.lane.pressure", "queue.lane.idle") as of_lanes:
            await session.submit_batch("query", [passing] * (waiting + width))
        assert [event.type async for event in of_lanes] == expected
    alerts = [event.alert_type async for event in events if event.event_type == "queue_alert"]
    assert alerts == ["pressure"] * ("queue.lane.pressure" in expected)


@pytest.mark.parametrize(
    ("lane", "ends_at"), [("query", 30 * SECOND), ("execute", 120 * SECOND), ("control", 60 * SECOND)]
)
@staged
async def test_a_call_runs_as_long_as_its_lane_allows_or_else_the_default(lane: str, ends_at: int) -> None:
    @tool(lane=lane, effect="read")
    async def endless() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    async with configured(TIMEOUTS, [call("endless")], tools=(endless,)) as agent:
        began = now_ms()
        events = await told(agent.session())
        [end] = [event for event in events if event.event_type == "tool_end"]
        assert (end.status, now_ms() - began) == ("timed_out", ends_at)


@staged
async def test_reads_of_one_answer_run_four_at_once_and_everything_else_alone_and_in_order() -> None:
    running: list[str] = []
    seen: list[tuple[str, ...]] = []

    async def work(name: str) -> str:
        running.append(name)
        seen.append(tuple(running))
        await passing(10)
        running.remove(name)
        return name

    reading = tool(name="reading", lane="query", effect="read")(work)
    writing = tool(name="writing", lane="execute", effect="write")(work)
    answer = [
        *(call("reading", name=f"r{number}") for number in range(6)),
        *(call("writing", name=f"w{number}") for number in range(2)),
        call("reading", name="last"),
    ]
    async with configured("queue { enable_metrics = true }\n", answer, tools=(reading, writing)) as agent:
        events = await told(agent.session())
    assert max(map(len, seen)) == 4
    assert [names for names in seen if any(name.startswith("w") for name in names)] == [("w0",), ("w1",)]
    assert seen[-1] == ("last",)
    ends = [event.tool_output for event in events if event.event_type == "tool_end"]
    assert sorted(ends[:6]) == [f"r{number}" for number in range(6)]
    assert ends[6:] == ["w0", "w1", "last"]


@staged
async def test_what_the_permissions_deny_never_comes_into_a_lane() -> None:
    book = Book()
    text = 'queue { enable_metrics = true }\npermissions { deny = ["failing"] }\n'
    model = ScriptedModel([[call("failing")], [say("done")]])
    async with AsyncAgent.create(text, model=model, tools=[book.failing("read")], host=fake_host()) as agent:
        session = agent.session()
        kinds = [event.event_type for event in await told(session)]
        assert "permission_denied" in kinds
        assert "tool_queued" not in kinds
        metrics = session.queue_metrics()
        assert metrics is not None
        assert metrics["counters"]["lane.commands.submitted.query"] == 0
    assert book.calls == []


# ---- everything together ----

COMPLETE: Final = f'\ndefault_model = "scripted"\n\n{SEED_000}'


@pytest.fixture
def complete_file(agent_file: Path) -> Path:
    agent_file.write_text(COMPLETE, encoding="utf-8")
    return agent_file


@pytest.mark.parametrize(("lane", "width"), [("control", 2), ("query", 10), ("execute", 5), ("generate", 1)])
def test_a_lane_runs_as_many_at_once_as_the_file_says_and_no_more(complete_file: Path, lane: str, width: int) -> None:
    together = threading.Barrier(width)
    running, most = 0, 0
    lock = threading.Lock()

    def meet() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(PATIENCE_S)
        with lock:
            running -= 1

    with Agent.create(complete_file) as agent:
        agent.session().submit_batch(lane, [meet] * (2 * width))
    assert most == width


def test_neighbouring_reads_of_one_answer_run_ten_at_once_and_come_back_in_order(complete_file: Path) -> None:
    together = threading.Barrier(10)

    @tool(lane="query", effect="read")
    def number(value: int) -> str:
        """Wait for the nine others."""
        together.wait(PATIENCE_S)
        return str(value)

    model = ScriptedModel([[call("number", value=each) for each in range(10)], [say("ten")]])
    with Agent.create(complete_file, model=model, tools=[number]) as agent:
        events = list(agent.session().stream("go"))
    assert events[-1].text == "ten"
    assert [line[-1] for line in str(model.requests[-1]).splitlines() if line.startswith("tool")] == list("0123456789")


@pytest.mark.slow
def test_what_failed_for_good_is_in_the_storage_path_when_the_program_starts_again(complete_file: Path) -> None:
    model = ScriptedModel([[call("broken")], [say("it is broken")]])
    with Agent.create(complete_file, model=model, tools=[broken]) as agent:
        session = agent.session(session_id="s1")
        kinds = [event.event_type for event in session.stream("go")]
        assert (kinds.count("command_retry"), kinds.count("command_dead_lettered")) == (3, 1)
        [letter] = session.dead_letters()
        assert (letter.command_type, letter.attempts, letter.error) == ("broken", 4, "OSError: no such disk")
    assert any((complete_file.parent / "queue_data").iterdir())

    @tool(name="broken", lane="query", effect="read")
    def repaired() -> str:
        """Work."""
        return "as new"

    with Agent.create(complete_file, tools=[repaired]) as agent:
        session = agent.session(session_id="s1")
        assert [one.command_id for one in session.dead_letters()] == [letter.command_id]
        assert session.retry_dead_letter(letter.command_id) == "as new"
        assert session.dead_letters() == []
    with Agent.create(complete_file) as agent:
        assert agent.session(session_id="s1").dead_letters() == []


IN_MEMORY: Final = COMPLETE.replace('  storage_path = "./queue_data"\n', "")


@staged
async def test_alerts_come_at_fifty_and_at_a_hundred_and_every_number_is_counted() -> None:
    async with configured(IN_MEMORY) as agent:
        session = await agent.session().ready()
        events = session.subscribe()
        await session.submit_batch("execute", [passing] * 120)
        metrics = session.queue_metrics()
        assert metrics is not None
        assert metrics["counters"]["lane.commands.completed"] == 120
        assert metrics["histograms"]["lane.command.wait_time_ms.execute"]["max"] > 0
    alerts = [event async for event in events if event.event_type == "queue_alert"]
    assert sorted({(event.alert_type, event.level) for event in alerts}) == [
        ("pressure", "warning"),
        ("queue_depth", "critical"),
        ("queue_depth", "warning"),
    ]


@pytest.mark.parametrize(
    ("lane", "ends_at"), [("query", 30 * SECOND), ("execute", 120 * SECOND), ("control", 60 * SECOND)]
)
@staged
async def test_in_the_whole_configuration_timeouts_hold_for_each_attempt(lane: str, ends_at: int) -> None:
    attempts: list[int] = []

    @tool(lane=lane, effect="read")
    async def endless() -> str:
        """Never end."""
        attempts.append(now_ms())
        await asyncio.Event().wait()
        return ""

    async with configured(IN_MEMORY, [call("endless")], tools=(endless,)) as agent:
        await told(agent.session())
    waits = [later - earlier for earlier, later in pairwise(attempts)]
    assert waits == [ends_at + 100, ends_at + 200, ends_at + 400]


@staged
async def test_lane_features_switch_on_a_minute_for_a_call_and_three_more_tries() -> None:
    attempts: list[int] = []

    @tool(lane="query", effect="read")
    async def endless() -> str:
        """Never end."""
        attempts.append(now_ms())
        await asyncio.Event().wait()
        return ""

    async with configured('default_model = "scripted"\n', [call("endless")], tools=(endless,)) as agent:
        session = agent.session(queue_config=SessionQueueConfig().with_lane_features())
        await told(session)
        waits = [later - earlier for earlier, later in pairwise(attempts)]
        assert waits == [MINUTE + 100, MINUTE + 200, MINUTE + 400]
        assert [(one.command_type, one.attempts) for one in session.dead_letters()] == [("endless", 4)]
