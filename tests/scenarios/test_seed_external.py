"""Calls that somebody else makes, in the words of the first document: workers, watchers, switching, files, plans.

What is Python there runs as it stands: only the import name, the folder and the one `asyncio.run(asyncio.gather(…))`
(which no Python accepts) are changed. What is shown in another language there is written as a user of Python would.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from laneway import Agent, AsyncAgent, Session, SessionQueueConfig
from laneway.agent_events import AgentEvent
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Entry, plan
from laneway.options import PermissionPolicy
from laneway.testing import fake_host
from tests.inbox_stage import staged
from tests.openai_stage import OpenAIStage, Play, text, tools
from tests.snippets import played
from tests.stage import passing

ANYTHING: Final = PermissionPolicy(allow=("*",))
PATIENCE_S: Final = 50.0
PROMPT: Final = "Run the full test suite, build for release, and deploy to staging"


# ---- a worker on another machine ----


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """What the transport of the document gives back."""

    success: bool
    output: str
    exit_code: int
    error: str | None = None


class Machine:
    """Another machine: a folder of its own, and a shell that runs what it is sent there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tasks: list[Any] = []
        folder.mkdir()

    async def __call__(self, task: Any) -> WorkerResult:
        """What is free in the document: `dispatch_to_worker`."""
        self.tasks.append(task)
        if task["command_type"] != "bash":
            return WorkerResult(
                success=False, output="", exit_code=1, error=f"Worker does not handle: {task['command_type']}"
            )
        process = await asyncio.create_subprocess_shell(
            task["payload"]["command"],
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        code = process.returncode or 0
        return WorkerResult(
            success=not code, output=out.decode(), exit_code=code, error=err.decode() or "it failed" if code else None
        )


@contextlib.contextmanager
def provider(*plays: Play) -> Iterator[OpenAIStage]:
    """A provider on this machine, on a thread of its own: the code of the document has no event loop."""
    stage = OpenAIStage(*plays)
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with stage:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield stage
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        loop.close()


FILE: Final = """
default_model = "local/gpt-test"
providers "local" {{
  base_url = "{url}"
  api_key  = "secret-key"
}}
permissions {{ allow = ["*"] }}
"""

MULTI_MACHINE: Final = """
    import asyncio
    from a3s_code import Agent, SessionQueueConfig

    agent = Agent.create("agent.hcl")

    # 1. Create session with queue
    qc = SessionQueueConfig()
    qc.with_lane_features()
    qc.set_default_timeout(60000)
    session = agent.session("/project", queue_config=qc)

    # 2. Route Execute lane to external handlers
    session.set_lane_handler("execute", mode="external", timeout_ms=60000)

    # 3. Stream and handle external tasks
    for event in session.stream("Run the full test suite, build for release, and deploy to staging"):
        if event.event_type == "external_task_pending":
            tasks = session.pending_external_tasks()

            async def handle(task):
                # dispatch_to_worker is your transport layer
                worker_result = await dispatch_to_worker(task)
                session.complete_external_task(task["task_id"], {
                    "success": worker_result.success,
                    "result": {"output": worker_result.output, "exit_code": worker_result.exit_code},
                    "error": worker_result.error,
                })

            asyncio.run(asyncio.gather(*[handle(t) for t in tasks]))
        elif event.event_type == "text_delta":
            print(event.text, end="", flush=True)
        elif event.event_type == "end":
            break
"""

STATS: Final = """
    stats = session.queue_stats()
    print(f"Pending: {stats['total_pending']}, Active: {stats['total_active']}")

    # External tasks waiting for completion
    external = session.pending_external_tasks()
    print(f"External pending: {len(external)}")
    for task in external:
        print(f"  [{task['task_id']}] {task['command_type']} in {task['lane']}{task['remaining_ms']}ms left")
"""

HYBRID: Final = """
    # Hybrid: execute locally, also notify external watchers
    session.set_lane_handler("execute", mode="hybrid", timeout_ms=60000)

    # Tools run locally. ExternalTaskPending events emitted for observation.
    result = session.send("Run cargo test and fix any failures")
"""

LOCAL: Final = """
    result = session.send("Analyze the codebase")
"""
TO_WORKERS: Final = """
    session.set_lane_handler("execute", mode="external", timeout_ms=60000)
    result = session.send("Run the full CI pipeline across all packages")
"""
BACK: Final = """
    session.set_lane_handler("execute", mode="internal", timeout_ms=60000)
    result = session.send("And once more")
"""

PRESET: Final = """
    from a3s_code import LaneHandlerConfig, SessionQueueConfig

    config = SessionQueueConfig(
        lane_handlers={"execute": LaneHandlerConfig(mode="external", timeout_ms=60_000)},
        enable_dlq=True,
        enable_metrics=True,
    )
    session = agent.session("/project", queue_config=config)
"""
PRESET_BY_SETTERS: Final = """
    from a3s_code import SessionQueueConfig

    config = SessionQueueConfig()
    config.set_lane_handler("Execute", mode="external", timeout_ms=60_000)
    config.enable_dlq()
    config.enable_metrics()
    session = agent.session("/project", queue_config=config)
"""
PRESET_FILE: Final = """
default_model = "scripted"

queue {
  enable_dlq     = true
  enable_metrics = true

  lane_handlers {
    execute {
      mode       = "external"
      timeout_ms = 60000
    }
  }
}
"""

PLANNING: Final = """
    session.set_lane_handler("execute", mode="external", timeout_ms=120_000)

    for event in session.stream("Refactor the auth module to use JWT, update all tests, and verify CI passes"):
        if event.event_type == "task_updated":
            done = sum(task["status"] == "completed" for task in event.tasks)
            print(f"Plan progress: {done}/{len(event.tasks)} steps")
        elif event.event_type == "external_task_pending":
            for task in session.pending_external_tasks():
                result = dispatch_to_worker(task)
                session.complete_external_task(task["task_id"], result)
        elif event.event_type == "end":
            break
"""


# ---- the loop of the coordinator ----


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in; the program runs in the one above."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_the_coordinator_sends_every_command_to_another_machine_and_prints_the_answer(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(tmp_path / "worker")
    answers = (
        tools(("c1", "bash", ['{"command":"echo tested > suite.log; echo 12 passed"}'])),
        tools(
            ("c2", "bash", ['{"command":"echo built > release.bin"}']),
            ("c3", "bash", ['{"command":"echo no route >&2; exit 7"}']),
        ),
        tools(("c4", "write", ['{"path":"deployed.txt","content":"yes"}'])),
        text("Tested and built; ", "staging is not there."),
    )
    with provider(*answers) as stage:
        Path("agent.hcl").write_text(FILE.format(url=stage.url), encoding="utf-8")
        names = played(MULTI_MACHINE, project, dispatch_to_worker=machine)
        names["agent"].close()
        told = [message["content"] for message in stage.requests[-1].messages if message["role"] == "tool"]
    assert capsys.readouterr().out == "Tested and built; staging is not there."
    assert [task["command_type"] for task in machine.tasks] == ["bash", "bash", "bash", "write"]
    assert sorted(path.name for path in machine.folder.iterdir()) == ["release.bin", "suite.log"]
    assert list(project.iterdir()) == []  # nothing was made here, not even what the worker refused
    assert "12 passed" in told[0]
    assert "no route" in told[2]
    assert "Worker does not handle: write" in told[3]


# ---- with a scripted model ----


def scripted(*answers: Entry, source: Path | str = 'default_model = "scripted"\n', **options: Any) -> Agent:
    """An agent whose model says these things."""
    options.setdefault("permission_policy", ANYTHING)
    return Agent.create(source, model=ScriptedModel(answers), **options)


def handled(session: Session, prompt: str, answer: Callable[[Any], Any]) -> list[AgentEvent]:
    """Send a prompt and complete each task as `answer` says; the events of the run."""
    events = []
    for event in session.stream(prompt):
        events.append(event)
        if event.event_type == "external_task_pending":
            for task in session.pending_external_tasks():
                assert session.complete_external_task(task["task_id"], answer(task))
    return events


def of(events: list[AgentEvent], *types: str) -> list[Any]:
    return [event for event in events if event.event_type in types]


def test_the_stats_print_every_task_with_its_lane_and_the_time_it_has_left(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted([call("bash", command="echo here > made.txt")], [say("done")]) as agent:
        session = agent.session(project, queue_config=SessionQueueConfig().with_lane_features())
        session.set_lane_handler("execute", mode="external", timeout_ms=60000)
        stream = session.stream("go")
        assert any(event.event_type == "external_task_pending" for event in stream)
        names = played(STATS, project, session=session)
        [task] = names["external"]
        lines = capsys.readouterr().out.splitlines()
        assert lines[:2] == ["Pending: 0, Active: 1", "External pending: 1"]
        found = re.fullmatch(r"  \[(\S+)\] bash in execute(\d+)ms left", lines[2])
        assert found is not None
        assert (found[1], 0 < int(found[2]) <= 60_000) == (task.task_id, True)
        assert (task.session_id, task.payload) == (session.session_id, {"command": "echo here > made.txt"})
        assert 0 < task.remaining_ms() <= task["remaining_ms"]
        assert not task.is_timed_out()
        assert names["stats"]["external_pending"] == 1
        assert names["stats"]["lanes"]["execute"]["handler_mode"] == "external"
        assert session.complete_external_task(task["task_id"], success=True, result={"output": "made"})
        assert stream.result().text == "done"
        played(STATS, project, session=session)
        assert capsys.readouterr().out == "Pending: 0, Active: 0\nExternal pending: 0\n"
    assert list(project.iterdir()) == []


def test_hybrid_runs_here_and_tells_watchers_of_the_same_task_twice(project: Path) -> None:
    with scripted([call("bash", command="echo here > made.txt")], [say("fixed")]) as agent:
        session = agent.session(project, queue_config=SessionQueueConfig().with_lane_features())
        watch = session.subscribe()
        assert played(HYBRID, project, session=session)["result"].text == "fixed"
        told = (event for event in watch if event.event_type.startswith("external_task_"))
        pending, completed = next(told), next(told)
        assert session.pending_external_tasks() == []
        assert not session.complete_external_task(pending.task_id, {"success": True, "result": "x"})
        session.close()
        assert list(told) == []
    assert (project / "made.txt").read_text() == "here\n"
    assert (pending.event_type, completed.event_type) == ("external_task_pending", "external_task_completed")
    assert (pending.task_id, pending.payload) == (completed.task_id, {"command": "echo here > made.txt"})
    assert (completed.success, completed.lane) == (True, "execute")


def test_a_lane_is_switched_to_workers_and_back_between_two_prompts(project: Path) -> None:
    answers: list[Entry] = []
    for number in range(3):
        answers += [[call("bash", command=f"echo here >> {number}.txt")], [say(f"answer {number}")]]
    with scripted(*answers) as agent:
        session = agent.session(project, queue_config=SessionQueueConfig())
        assert played(LOCAL, project, session=session)["result"].text == "answer 0"
        served: list[str] = []

        def serve() -> None:
            for event in session.subscribe():
                if event.event_type == "external_task_pending":
                    for task in session.pending_external_tasks():
                        served.append(task["payload"]["command"])
                        session.complete_external_task(task["task_id"], {"success": True, "result": {"output": "far"}})

        workers = threading.Thread(target=serve)
        workers.start()
        assert played(TO_WORKERS, project, session=session)["result"].text == "answer 1"
        assert played(BACK, project, session=session)["result"].text == "answer 2"
        modes = {name: lane["handler_mode"] for name, lane in session.queue_stats()["lanes"].items()}
        session.close()
        workers.join(PATIENCE_S)
    assert served == ["echo here >> 1.txt"]
    assert sorted(path.name for path in project.iterdir()) == ["0.txt", "2.txt"]
    assert modes == dict.fromkeys(("control", "query", "execute", "generate"), "internal")


@pytest.mark.parametrize("snippet", [PRESET, PRESET_BY_SETTERS, ""], ids=["constructor", "setters", "file"])
def test_a_lane_that_is_external_from_the_start_never_runs_anything_here(project: Path, snippet: str) -> None:
    answers = ([call("bash", command="echo here > made.txt"), call("ls")], [say("done")])
    with scripted(*answers, source='default_model = "scripted"\n' if snippet else PRESET_FILE) as agent:
        session = played(snippet, project, agent=agent)["session"] if snippet else agent.session(project)
        events = handled(session, "go", lambda task: {"success": False, "error": f"no {task['command_type']} today"})
        lanes = session.queue_stats()["lanes"]
        metrics = session.queue_metrics()
        assert metrics is not None
        assert metrics["counters"]["lane.commands.submitted.execute"] == 1
    [task] = of(events, "external_task_pending")
    assert (task.lane, task.command_type, task.timeout_ms) == ("execute", "bash", 60_000)
    ends = {event.tool_name: (event.status, event.tool_output) for event in of(events, "tool_end")}
    assert ends["bash"][0] == "error"
    assert "no bash today" in ends["bash"][1]
    assert ends["ls"][0] == "ok"
    assert (lanes["execute"]["handler_mode"], lanes["query"]["handler_mode"]) == ("external", "internal")
    assert list(project.iterdir()) == []


def test_the_steps_of_a_plan_go_to_workers_like_any_other_call(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ("use JWT", "update the tests", "verify CI")
    answers: list[Entry] = [[plan(*steps)]]
    for number in range(len(steps)):
        answers += [[call("bash", command=f"echo {number} > {number}.txt")], [say(f"step {number} is done")]]
    served: list[str] = []

    def dispatch_to_worker(task: Any) -> Any:
        served.append(task["payload"]["command"])
        return {"success": True, "result": {"output": "ok", "exit_code": 0}}

    with scripted(*answers, planning=True) as agent:
        session = agent.session(project, queue_config=SessionQueueConfig())
        played(PLANNING, project, session=session, dispatch_to_worker=dispatch_to_worker)
    assert served == [f"echo {number} > {number}.txt" for number in range(len(steps))]
    assert list(project.iterdir()) == []
    progress = capsys.readouterr().out.splitlines()
    assert progress[0] == "Plan progress: 0/3 steps"
    assert progress[-1] == "Plan progress: 3/3 steps"


# ---- what the document says in words ----


@staged
async def test_a_task_that_nobody_completes_in_time_is_a_tool_failure_and_the_run_goes_on() -> None:
    model = ScriptedModel([[call("bash", command="echo late")], [say("nobody was there")]])
    async with AsyncAgent.create(PRESET_FILE, model=model, permission_policy=ANYTHING, host=fake_host()) as agent:
        session = agent.session()
        events = [event async for event in session.stream("go")]
        [end] = of(events, "tool_end")
        assert (end.status, events[-1].text) == ("timed_out", "nobody was there")
        [completed] = of(events, "external_task_completed")
        assert (completed.success, completed.state, completed.duration_ms) == (False, "timed_out", 60_000)
        assert not await session.complete_external_task(completed.task_id, {"success": True, "result": "late"})


@staged
async def test_both_ways_to_complete_a_task_and_every_form_of_a_result_reach_the_model() -> None:
    forms: list[tuple[dict[str, Any], str, str]] = [
        ({"outcome": {"success": True, "result": {"output": "a", "exit_code": 0}}}, "ok", "a"),
        ({"success": True, "result": {"stdout": "b", "stderr": ""}}, "ok", "b"),
        ({"success": True, "result": {"content": "c"}}, "ok", "c"),
        ({"success": True, "result": "d"}, "ok", "d"),
        ({"success": True, "result": [1, 2]}, "ok", "[1,2]"),
        ({"success": False, "error": "no"}, "error", "no"),
    ]
    answers: list[Entry] = [[call("bash", command=str(number))] for number in range(len(forms))]
    model = ScriptedModel([*answers, [say("done")]])
    async with AsyncAgent.create(PRESET_FILE, model=model, permission_policy=ANYTHING, host=fake_host()) as agent:
        session = agent.session()
        seen = []
        async for event in session.stream("go"):
            if event.event_type == "external_task_pending":
                [task] = await session.pending_external_tasks()
                form = forms[int(task["payload"]["command"])][0]
                assert await session.complete_external_task(task["task_id"], **form)
                assert await session.complete_external_task(task["task_id"], **form)  # twice is answered the same
            elif event.event_type == "tool_end":
                seen.append((event.status, event.tool_output))
    assert seen == [(status, output) for _, status, output in forms]


@pytest.mark.parametrize("ordered", [True, False])
@staged
async def test_as_many_tasks_are_out_as_the_lane_allows_where_order_does_not_matter(ordered: bool) -> None:
    calls = [call("bash", command=str(number)) for number in range(7)]
    config = SessionQueueConfig(execute_max_concurrency=3).set_lane_handler("execute", "external", ordered=ordered)
    agent = AsyncAgent(model=ScriptedModel([calls, [say("done")]]), permission_policy=ANYTHING, host=fake_host())
    async with agent:
        session = await agent.session(queue_config=config).ready()
        sent = asyncio.ensure_future(session.send("go"))
        out: list[int] = []
        order: list[str] = []
        for _ in calls:
            await passing(1)
            tasks = await session.pending_external_tasks()
            out.append(len(tasks))
            order.append(tasks[0]["payload"]["command"])
            assert await session.complete_external_task(tasks[0]["task_id"], success=True, result="ok")
        assert (await sent).text == "done"
    assert out == ([1] * 7 if ordered else [3, 3, 3, 3, 3, 2, 1])
    assert order == [str(number) for number in range(7)]
