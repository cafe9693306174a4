"""`laneway serve` as a process of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LANEWAY = Path(sys.executable).with_name("laneway")
READY = "Laneway is listening on "
PATIENCE_S = 120


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment without keys, tokens and settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR", "VIRTUAL_ENV")}
    return {**kept, "HOME": str(home), "LANEWAY_REAL_MODELS": "0", "NO_COLOR": "1", "COLUMNS": "200", **more}


class ServerProcess:
    """A running server. `lines` is what it has written on standard output so far."""

    def __init__(
        self, command: list[str], folder: Path, env: Mapping[str, str], *, patience_s: float = PATIENCE_S
    ) -> None:
        self._patience_s = patience_s
        self.process = subprocess.Popen(
            command, cwd=folder, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._ready = threading.Event()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                lines.append(line.rstrip("\n"))
                if line.startswith(READY):
                    self._ready.set()
        self._ready.set()

    @property
    def url(self) -> str:
        """Its address, when it is ready."""
        assert self._ready.wait(self._patience_s), "it does not get ready"
        found = [line for line in self.lines if line.startswith(READY)]
        assert found, f"it ended: {self.errors}"
        return found[0].removeprefix(READY)

    def send(self, key: str, text: str, **more: Any) -> dict[str, Any]:
        """Send a message; its receipt."""
        code, body = self.call("POST", f"/v1/sessions/{key}/messages", {"text": text, **more})
        assert code == 202, body
        assert isinstance(body, dict)
        return body

    def call(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, trust: str = ""
    ) -> tuple[int, Any]:
        """A request; its status, and its body, read as JSON if it is that."""
        content = None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(f"{self.url}{path}", content, given, method=method)  # noqa: S310 - our own
        context = ssl.create_default_context(cafile=trust) if trust else None
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:  # noqa: S310 - the same
                return answer.status, _read_body(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read_body(error.read())

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def kill(self) -> None:
        """End it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()


def _read_body(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


@contextlib.contextmanager
def server_process(folder: Path, *arguments: str, **variables: str) -> Iterator[ServerProcess]:
    """`laneway serve` on a free port in a folder; it is ended whatever happens."""
    command = [str(LANEWAY), "serve", *arguments]
    given = {"LANEWAY_PORT": "0", **variables}
    server = ServerProcess(command, folder, environment(folder, **given))
    try:
        yield server
    finally:
        server.kill()


def until(claim: Callable[[], Any], what: str = "it") -> Any:
    """Wait for something that another process does; what the claim gave in the end."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := claim()):
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)
    return found
