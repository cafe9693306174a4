"""A gateway and workers of it as processes of their own, whose calls are held at a gate.

What a worker does it writes down first, one line in a shared file: `begun LABEL NAME ATTEMPT`. Then it waits until the
file `go` is there (or `go-LABEL`), writes `ended …`, and says `LABEL by NAME`.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.chaos.gateway_world import free_port
from tests.server_process import LANEWAY, PATIENCE_S, ServerProcess, environment, until

__all__ = ("Plant", "WorkerProcess")

AGENT: Final = """
default_model: scripted
permissions: {allow: ["*"]}
tool_effects: {wait: idempotent}
queue:
  mode: followup
  lane_handlers:
    execute: {mode: external, ordered: false, timeout_ms: 600000, lease_ms: LEASE}
    query: {mode: external, ordered: false, timeout_ms: 600000, lease_ms: LEASE}
lanes: {main: 4}
gateway: {drain_ms: 500}
"""
STORE: Final = "laneway.db"

HANDLERS: Final = """
import asyncio, os, sys
from pathlib import Path
from laneway.worker import Worker

HOME, NAME = Path(os.environ["PLANT_HOME"]), os.environ["PLANT_NAME"]
worker = Worker(handlers={})


def note(what, label, task):
    with open(HOME / "journal", "a") as journal:
        journal.write(f"{what} {label} {NAME} {task.attempt}\\n")


@worker.handler("bash", "read", "wait")
async def hold(task):
    given = next(iter(task.payload.values()))
    label = given if isinstance(given, str) else f"{given:g}"
    note("begun", label, task)
    while not (HOME / "go").exists() and not (HOME / f"go-{label}").exists():
        await asyncio.sleep(0.02)
    note("ended", label, task)
    return f"{label} by {NAME}"
"""

CLAIMER: Final = """
import asyncio, json, sys
from laneway import HttpTransport

async def main(url, token, name, start):
    transport = HttpTransport(url, token=token)
    [lease] = await transport.claim(name, wait_ms=60_000)
    if start:
        await transport.start(lease.task["task_id"], lease.token)
    print(json.dumps({"task_id": lease.task["task_id"], "token": lease.token}), flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:4], sys.argv[4] == "start"))
"""


class WorkerProcess:
    """`laneway worker`, or something that behaves like one. `lines` is what it has written so far."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))

    def says(self, part: str) -> str:
        """Wait for a line with this in it."""
        found: str = until(lambda: next((line for line in self.lines if part in line), ""), f"{part!r} in {self.lines}")
        return found

    def ready(self) -> Self:
        """Wait until it takes tasks."""
        self.says(" takes tasks of ")
        return self

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def kill(self) -> None:
        """End it without a word, if it runs."""
        if self.process.poll() is None:
            self.send(signal.SIGKILL)
        self.wait()


@functools.cache
def _store_with_token() -> tuple[str, bytes]:
    """A token for workers, and the file of a store that knows it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = subprocess.run(
            [str(LANEWAY), *("token", "create", "plant", "--scope", "worker", "--store", f"sqlite:///{STORE}")],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        assert not (folder / f"{STORE}-wal").exists(), "it is closed, and all in one file"
        return made.stdout.strip(), (folder / STORE).read_bytes()


class Plant:
    """One gateway after another on one store and one port, and workers. Open it with `with`."""

    def __init__(self, folder: Path, *, lease_ms: int = 8_000) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.workers: list[WorkerProcess] = []
        self._server: ServerProcess | None = None
        self._servers: list[ServerProcess] = []
        (folder / "agent.yaml").write_text(AGENT.replace("LEASE", str(lease_ms)))
        (folder / "handlers.py").write_text(HANDLERS)
        self.token, store = _store_with_token()
        (folder / STORE).write_bytes(store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.kill()
        for server in self._servers:
            server.kill()

    # ---- processes ----

    @property
    def server(self) -> ServerProcess:
        """The gateway."""
        assert self._server is not None
        return self._server

    def serve(self) -> ServerProcess:
        """Start a gateway, and wait until it is ready."""
        command = [str(LANEWAY), "serve", "--port", str(self.port)]
        self._server = ServerProcess(command, self.folder, environment(self.folder))
        self._servers.append(self._server)
        assert self._server.url == self.url
        return self._server

    def worker(self, name: str, *options: str) -> WorkerProcess:
        """Start a worker. It may come before its gateway."""
        command = [str(LANEWAY), "worker", "--connect", self.url, "--name", name, "--handlers", "handlers.py", *options]
        env = environment(self.folder, LANEWAY_TOKEN=self.token, PLANT_HOME=str(self.folder), PLANT_NAME=name)
        return self._started(command, env)

    def claimer(self, name: str, *, starts: bool) -> tuple[WorkerProcess, dict[str, str]]:
        """A process that takes a task, or begins it, and then does nothing; and its lease."""
        command = [sys.executable, "-c", CLAIMER, self.url, self.token, name, "start" if starts else ""]
        made = self._started(command, environment(self.folder))
        lease: dict[str, str] = json.loads(made.says('"token"'))
        return made, lease

    def _started(self, command: list[str], env: dict[str, str]) -> WorkerProcess:
        made = WorkerProcess(command, env, self.folder)
        self.workers.append(made)
        return made

    # ---- what happens ----

    def ask(self, text: str, session: str = "s1") -> str:
        """Send a message; its id."""
        return str(self.server.send(session, text)["message_id"])

    def answer(self, message_id: str) -> str:
        """Wait for the end of a message; what the model said then."""

        def ended() -> dict[str, Any]:
            _, body = self.server.call("GET", f"/v1/messages/{message_id}")
            return body if body.get("outcome") else {}

        body = until(ended, f"the end of {message_id}")
        assert body["outcome"] == "succeeded", body
        return str(body["answer"])

    def open(self, label: str = "") -> None:
        """Let calls end: those of a label, or all."""
        (self.folder / (f"go-{label}" if label else "go")).touch()

    def journal(self) -> list[str]:
        """What workers have written down so far: `begun LABEL NAME ATTEMPT`."""
        path = self.folder / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, line: str) -> None:
        """Wait until a worker has written something down."""
        until(lambda: any(each.startswith(line) for each in self.journal()), f"{line!r} in {self.journal()}")

    def begun(self) -> list[str]:
        """Who has begun what: `LABEL NAME ATTEMPT`."""
        return [line.removeprefix("begun ") for line in self.journal() if line.startswith("begun ")]

    def ledger(self) -> list[str]:
        """The states of all calls with side effects."""
        return [each["state"] for each in self.server.call("GET", "/v1/ledger")[1]["items"]]

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks that have not ended."""
        return list(self.server.call("GET", "/v1/tasks")[1]["items"])

    def complete(self, lease: dict[str, str], result: object) -> tuple[int, Any]:
        """Say what became of a task, as its worker: status and body."""
        body = {"token": lease["token"], "result": result}
        headers = {"Authorization": f"Bearer {self.token}"}
        return self.server.call("POST", f"/v1/tasks/{lease['task_id']}/complete", body, headers=headers)
