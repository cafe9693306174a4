"""Options of `laneway worker`, each seen from outside: what the server lists of it, and what its commands may do."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_worker_process import Scene, answer, ready
from tests.server_process import LANEWAY, ServerProcess, environment, until

pytestmark = pytest.mark.slow


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def listed(server: ServerProcess) -> dict[str, Any]:
    """The worker as the server lists it."""
    [found] = until(lambda: server.call("GET", "/v1/workers")[1]["items"], "the worker in the list")
    return dict(found)


def why(server: ServerProcess) -> str:
    """Why the one task that is open waits."""
    [task] = until(lambda: server.call("GET", "/v1/tasks?state=pending")[1]["items"], "a task")
    return str(task["why"])


def test_the_limits_hold_for_what_its_commands_run(scene: Scene) -> None:
    limits = ("--memory-mb", "2000", "--cpu-s", "600", "--open-files", "500", "--file-mb", "1000")
    with scene.serve() as server, scene.worker(server.url, *limits) as worker:
        ready(worker)
        server.send("one", "run cat /proc/self/limits > limits.txt")
        assert "(ok)" in answer(server, "one")
    said = (scene.here / "limits.txt").read_text()
    found = {name: int(most) for name, most in re.findall(r"^Max ([a-z ]+?) {2,}(\d+) ", said, re.MULTILINE)}
    assert (found["cpu time"], found["open files"]) == (600, 500)
    assert (found["address space"], found["file size"]) == (2_000 << 20, 1_000 << 20)


def test_it_asks_for_nothing_but_the_tools_it_is_allowed(scene: Scene) -> None:
    with scene.serve() as server, scene.worker(server.url, "--allow", "bash") as worker:
        ready(worker)
        assert listed(server)["commands"] == ["bash"]
        server.send("one", "run echo allowed")
        assert "allowed" in answer(server, "one")
        server.send("two", 'call write {"path": "a.txt", "content": "x"}')
        assert "w1" in why(server)
        assert not scene.has("a.txt")


def test_it_serves_the_workspaces_that_it_is_told_to(scene: Scene) -> None:
    with scene.serve() as server:
        name = server.call("GET", "/v1/workspaces")[1]["items"][0]["name"]
        with scene.worker(server.url, "--serve", "elsewhere") as worker:
            assert worker.wait() != 0
            assert "elsewhere" in "\n".join(worker.errors), "a name that the server does not have is told at once"
        with scene.worker(server.url, "--serve", name) as worker:
            ready(worker)
            assert listed(server)["workspaces"] == [name]
            server.send("one", "run echo served")
            assert "served" in answer(server, "one")


def test_a_folder_here_stands_for_a_workspace_there(scene: Scene, tmp_path: Path) -> None:
    mapped = tmp_path / "mapped"
    mapped.mkdir()
    with scene.serve() as server:
        name = server.call("GET", "/v1/workspaces")[1]["items"][0]["name"]
        with scene.worker(server.url, "--map", f"{name}={mapped}") as worker:
            ready(worker)
            server.send("one", "run pwd; touch made")
            assert str(mapped) in answer(server, "one")
    assert (mapped / "made").exists()


@pytest.mark.parametrize("more", [(), ("--builtin-tools",)])
def test_functions_of_ones_own_stand_beside_the_built_in_tools_if_asked(scene: Scene, more: tuple[str, ...]) -> None:
    (scene.here / "own.py").write_text("def write(task):\n    return 'mine'\n\n\nhandlers = {'write': write}\n")
    with scene.serve() as server, scene.worker(server.url, "--handlers", "own.py", *more) as worker:
        ready(worker)
        server.send("one", 'call write {"path": "a.txt", "content": "x"}')
        assert "mine" in answer(server, "one")
        server.send("two", "run echo built in")
        if more:
            assert "built in" in answer(server, "two")
        else:
            assert "w1" in why(server)


def test_a_certificate_without_its_key_is_refused_with_a_word(scene: Scene) -> None:
    command = [str(LANEWAY), "worker", "--connect", "https://127.0.0.1:1", "--cert", "own.pem"]
    (scene.here / "own.pem").write_text("no certificate")
    env = environment(scene.here, LANEWAY_TOKEN=scene.token)
    done = subprocess.run(command, cwd=scene.here, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "own.pem" in done.stderr or "key" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_shown_of_one_worker_is_what_it_said(scene: Scene) -> None:
    with scene.serve() as server, scene.worker(server.url, "--label", "gpu", "--concurrency", "3") as worker:
        ready(worker)
        command = [str(LANEWAY), "worker", "show", "w1", "--json"]
        env = environment(scene.here, LANEWAY_URL=server.url)
        done = subprocess.run(command, cwd=scene.here, env=env, capture_output=True, text=True, timeout=60, check=True)
        found = json.loads(done.stdout)
        assert (found["name"], found["labels"], found["concurrency"]) == ("w1", ["gpu"], 3)
