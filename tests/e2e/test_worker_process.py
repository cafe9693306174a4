"""`laneway worker` as a process beside `laneway serve`: signals, restarts of both, and what it never tells."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.cli.worker_run import ONE_SIGNAL_S
from tests.chaos.gateway_world import free_port
from tests.server_process import LANEWAY, ServerProcess, environment, server_process, until

pytestmark = pytest.mark.slow

AGENT = """
default_model: scripted
permissions: {allow: ["*"]}
queue:
  lane_handlers:
    execute: {mode: external, timeout_ms: 300000, lease_ms: 8000}
"""


class Scene:
    """A folder of a server, one of a worker, and a token between them."""

    def __init__(self, folder: Path) -> None:
        self.host, self.here = folder / "host", folder / "here"
        for each in (self.host, self.here):
            each.mkdir()
        (self.host / "agent.yaml").write_text(AGENT)
        made = subprocess.run(
            [LANEWAY, "token", "create", "w", "--scope", "worker", "--store", "sqlite:///laneway.db", "--json"],
            cwd=self.host, env=environment(self.host), capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        self.token: str = json.loads(made.stdout)["secret"]

    def serve(self, *arguments: str) -> contextlib.AbstractContextManager[ServerProcess]:
        """A server; the next one has the same store."""
        return server_process(self.host, "--model", "scripted", *arguments)

    @contextlib.contextmanager
    def worker(self, url: str, *arguments: str, **variables: str) -> Iterator[ServerProcess]:
        """A worker; it is ended whatever happens."""
        given = {"LANEWAY_URL": url, "LANEWAY_TOKEN": self.token, "LANEWAY_WORKER_NAME": "w1", **variables}
        worker = ServerProcess([str(LANEWAY), "worker", *arguments], self.here, environment(self.here, **given))
        try:
            yield worker
        finally:
            worker.kill()

    def has(self, name: str) -> bool:
        """Whether a command has made a file."""
        return (self.here / name).exists()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def answer(server: ServerProcess, key: str) -> str:
    """The answer in a session, when there is one."""

    def found() -> str:
        code, body = server.call("GET", f"/v1/sessions/{key}/history")
        said = [each["text"] for each in body["items"] if each["role"] == "assistant"] if code == 200 else []
        return str(said[-1]) if said else ""

    return str(until(found, f"an answer in {key}"))


def ready(worker: ServerProcess) -> str:
    """Its line on standard output."""
    assert until(lambda: worker.lines or worker.process.poll() is not None, "a line"), worker.errors
    return worker.lines[0]


def test_a_worker_does_the_tasks_of_a_server_and_ends_well(scene: Scene) -> None:
    with scene.serve() as server, scene.worker(server.url) as worker:
        assert ready(worker) == f"Worker w1 takes tasks of {server.url}"
        server.send("one", "run pwd")
        assert str(scene.here) in answer(server, "one")
        server.send("two", "run touch began; sleep 1; echo finished > end.txt")
        until(lambda: scene.has("began"))
        assert worker.stop(signal.SIGTERM) == 0
        assert (scene.here / "end.txt").read_text() == "finished\n", "what had begun was finished"
        assert "(ok)" in answer(server, "two")
        assert len(worker.lines) == 1, "nothing else is written there"
        assert any("begins: bash" in line for line in worker.errors)


def test_a_worker_that_gets_no_time_gives_back_at_once(scene: Scene) -> None:
    with scene.serve() as server, scene.worker(server.url, "--quiet") as worker:
        ready(worker)
        server.send("one", "run touch began; sleep 30; touch never")
        until(lambda: scene.has("began"))
        worker.process.send_signal(signal.SIGINT)
        until(lambda: any("has 30000 ms to end" in line for line in worker.errors), "a word of the first signal")
        time.sleep(2 * ONE_SIGNAL_S)
        assert worker.process.poll() is None
        assert worker.stop(signal.SIGINT) == 0
        assert "unknown" in answer(server, "one").lower(), "a write that had begun is never done twice"
        assert not scene.has("never")


def test_a_worker_that_is_killed_loses_its_task_and_the_next_one_goes_on(scene: Scene) -> None:
    with scene.serve() as server:
        with scene.worker(server.url) as worker:
            ready(worker)
            server.send("one", "run touch began; sleep 30")
            until(lambda: scene.has("began"))
            worker.process.kill()
            assert "unknown" in answer(server, "one").lower()
        with scene.worker(server.url) as worker:
            server.send("two", "run echo again")
            assert "again" in answer(server, "two")


def test_a_worker_waits_for_its_server_and_survives_a_restart_of_it(scene: Scene) -> None:
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    (scene.host / "agent.yaml").write_text(AGENT.replace("8000", "60000"))  # longer than it is away
    with scene.worker(url) as worker:
        until(lambda: any("does not answer" in line for line in worker.errors), "a word that nobody is there")
        with scene.serve("--port", port) as server:
            assert ready(worker).endswith(url)
            server.send("one", "run touch began; sleep 2; echo survived; touch ended")
            until(lambda: scene.has("began"))
            server.process.kill()
            server.wait()
        until(lambda: scene.has("ended"), "the end of what had begun")
        with scene.serve("--port", port) as server:
            assert "survived" in answer(server, "one"), "a result that comes late is taken"
            server.send("two", "run echo goes on")
            assert "goes on" in answer(server, "two")
            assert 2 <= sum("does not answer" in line for line in worker.errors) <= 4, "it is not said at each try"
            assert 1 <= sum("answers again" in line for line in worker.errors) <= 3


@pytest.mark.parametrize("token", ["lw_000000000000_wrong", ""])
def test_a_wrong_token_ends_the_worker_with_its_code(scene: Scene, token: str) -> None:
    with scene.serve() as server, scene.worker(server.url, LANEWAY_TOKEN=token) as worker:
        assert worker.wait() == 5
        assert worker.lines == []
        assert any(line.startswith("laneway: ") for line in worker.errors)


def test_the_token_is_nowhere_to_be_seen(scene: Scene) -> None:
    arguments = ("--token", scene.token, "--log-level", "debug")
    with scene.serve() as server, scene.worker(server.url, *arguments) as worker:
        ready(worker)
        server.send("one", "run env > env.txt; tr '\\0' ' ' < /proc/$PPID/cmdline > line.txt; echo done")
        assert "done" in answer(server, "one")
        assert worker.stop() == 0
        told = "\n".join((*worker.errors, *worker.lines))
        seen = (scene.here / "env.txt").read_text() + (scene.here / "line.txt").read_text()
    assert scene.token not in told
    assert scene.token not in seen


HANDLERS = """
import os, time
from laneway import Worker

worker = Worker(labels=["own"])

@worker.handler("bash")
def bash(task):
    task.progress_is("half of it", 50)
    assert "LANEWAY_TOKEN" not in os.environ
    while not os.path.exists("go"):
        time.sleep(0.01)
    return {"output": "by a handler: " + task.payload["command"], "exit_code": 0}
"""


def test_handlers_of_ones_own_do_tasks_and_say_how_far_they_are(scene: Scene) -> None:
    (scene.here / "mine.py").write_text(HANDLERS)
    arguments = ("--handlers", "mine:worker", "--concurrency", "execute=2,query=1", "--json")
    with scene.serve() as server, scene.worker(server.url, *arguments) as worker:
        assert json.loads(ready(worker)) == {"worker": "w1", "url": server.url, "ready": True}
        server.send("one", "run make it")

        def progress() -> Any:
            items = server.call("GET", "/v1/tasks")[1]["items"]
            return items and server.call("GET", f"/v1/tasks/{items[0]['task_id']}")[1].get("progress")

        assert until(progress, "progress") == {"text": "half of it", "percent": 50}
        (scene.here / "go").touch()
        assert "by a handler: make it" in answer(server, "one")
        assert worker.stop() == 0
        lines = [json.loads(line) for line in worker.errors]
        assert all(line["level"] for line in lines)
        [ended] = [line for line in lines if "outcome" in line]
        about = {"worker": "w1", "session_id": "one", "command_type": "bash", "outcome": "completed"}
        assert {name: ended[name] for name in about} == about


def test_a_thread_that_never_ends_does_not_keep_the_process(scene: Scene) -> None:
    (scene.here / "mine.py").write_text(HANDLERS)
    arguments = ("--handlers", "mine.py", "--drain-ms", "100")
    with scene.serve() as server, scene.worker(server.url, *arguments) as worker:
        ready(worker)
        server.send("one", "run for ever")
        until(lambda: any("begins" in line for line in worker.errors), "its begin")
        assert worker.stop() == 0
        assert "unknown" in answer(server, "one").lower()
        assert any("does not end" in line for line in worker.errors)


def test_a_sandbox_that_cannot_be_made_is_refused_before_anything_is_taken(scene: Scene) -> None:
    fake = scene.here / "bin" / "bwrap"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    with scene.worker("http://127.0.0.1:1", "--sandbox", PATH=path) as worker:
        assert worker.wait() == 2
        assert worker.lines == []
        assert "No permissions to create new namespace" in "".join(worker.errors)
        assert "leave the sandbox out" in "".join(worker.errors)
