"""A fleet for continuous integration: an agent with a plan, and three workers that run a test suite in parallel.

    python examples/ci_fleet/fleet.py                  the suite of `project/`, on three workers
    python examples/ci_fleet/fleet.py --kill           the same; one worker is killed in the middle of a test
    python examples/ci_fleet/fleet.py --project DIR    another project: a folder `tests` with unittest modules

Everything here is a process of its own, as it would be on machines of their own: `laneway serve`, and a
`laneway worker` for each checkout. This program starts them, sends one message, and reads what happens.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

HERE = Path(__file__).resolve().parent
LANEWAY = [sys.executable, "-m", "laneway"]
WORKERS = ("one", "two", "three")
# `python` in a command is the one that runs this file, also where a virtual environment is not activated.
ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


class Fleet:
    """The server and its workers, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, project: Path) -> None:
        """Start the server, then the workers, each with a checkout of the project."""
        store = f"sqlite:///{self._folder / 'laneway.db'}"
        workspace = self._folder / "ci"
        workspace.mkdir()
        shutil.copy(HERE / "agent.yaml", workspace)
        making = [*LANEWAY, "token", "create", "fleet", "--scope", "worker", "--store", store]
        made = subprocess.run(making, capture_output=True, text=True, check=True, env=ENVIRON)  # noqa: S603 - the same
        token = made.stdout.strip()
        serving = ["serve", "--workspace", str(workspace), "--store", store, "--port", "0"]
        self._start("server", serving)
        self.url = self._ready("server").rpartition(" ")[2]
        for name in WORKERS:
            checkout = self._folder / name
            shutil.copytree(project, checkout)  # on a machine of its own: git clone
            working = ["worker", "--connect", self.url, "--name", name, "--workspace", str(checkout)]
            self._start(name, [*working, "--allow", "bash", "--concurrency", "1"], LANEWAY_TOKEN=token)
        for name in WORKERS:
            self._ready(name)

    def _start(self, name: str, arguments: list[str], **variables: str) -> None:
        with (self._folder / f"{name}.log").open("w") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - our own commands
                [*LANEWAY, *arguments], stdout=subprocess.PIPE, stderr=log, text=True, env={**ENVIRON, **variables}
            )

    def _ready(self, name: str) -> str:
        """What a process says when it is ready: one line."""
        pipe = self._processes[name].stdout
        assert pipe is not None
        ready = pipe.readline().strip()
        if not ready:
            raise SystemExit(f"{name} does not start:\n{(self._folder / f'{name}.log').read_text()}")
        return ready

    def kill(self, name: str) -> None:
        """End a worker without a word, as a power cut does."""
        self._processes[name].kill()

    def close(self) -> None:
        """Stop everybody: the workers first, which finish what they have begun."""
        for process in reversed(self._processes.values()):
            process.terminate()
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()


@dataclass(slots=True)
class Part:
    """One command of the suite, and what became of it."""

    command: str
    workers: list[str] = field(default_factory=list)  # more than one, if some were lost
    status: str = "?"
    output: str = ""


def events_of(answer: httpx2.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events, each with its name."""
    kind = ""
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def run_suite(fleet: Fleet, message: str, *, doomed: str) -> list[Part]:
    """Send the message, follow the run to its end, and return what was run. Who begins with `doomed` is killed."""
    parts: dict[str, Part] = {}  # by the id of the call
    calls: dict[str, str] = {}  # the calls of the tasks
    with (
        httpx2.Client(base_url=fleet.url, timeout=150) as client,
        client.stream("GET", "/v1/sessions/ci/events") as told,
    ):
        client.post("/v1/sessions/ci/messages", json={"text": message}).raise_for_status()
        for kind, event in events_of(told):
            said = event.get("payload", event)
            if kind == "task_updated":
                done = sum(step["status"] == "completed" for step in said["tasks"])
                print(f"{done} of {len(said['tasks'])} steps done", flush=True)
            elif kind == "external_task_pending":
                calls[said["task_id"]] = said["tool_id"]
                parts.setdefault(said["tool_id"], Part(said["payload"]["command"]))
            elif kind == "external_task_started":
                part = parts[calls[said["task_id"]]]
                part.workers.append(said["worker"])
                if doomed and doomed in part.command:
                    print(f"  killing {said['worker']}, which runs {part.command}", flush=True)
                    fleet.kill(said["worker"])
                    doomed = ""
            elif kind == "tool_end":
                part = parts.setdefault(said["tool_id"], Part("a call that was not made"))
                part.status, part.output = said["status"], said["tool_output"]
                print(f"  {' then '.join(part.workers):<16}{part.status:<6}{part.command}", flush=True)
            elif kind == "turn.ended":
                break
    return list(parts.values())


def main() -> int:
    """Run the suite of a project on the fleet; 1 if a part of it failed."""
    reading = argparse.ArgumentParser()
    reading.add_argument("--project", type=Path, default=HERE / "project")
    reading.add_argument("--kill", action="store_true")
    given = reading.parse_args()
    suites = sorted(path.stem for path in (given.project / "tests").glob("test_*.py"))
    lines = ["run python -m compileall -q .", "then", *(f"run python -m unittest tests.{suite}" for suite in suites)]
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder))
        try:
            fleet.start(given.project)
            parts = run_suite(fleet, "\n".join(lines), doomed=suites[0] if given.kill else "")
        finally:
            fleet.close()
    failed = [part for part in parts if part.status != "ok"]
    for part in failed:
        print(f"\n{part.command}\n{part.output}\n")
    workers = sorted({name for part in parts for name in part.workers}, key=WORKERS.index)
    print(f"{len(parts) - len(failed)} of {len(parts)} commands passed, run by {', '.join(workers)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
