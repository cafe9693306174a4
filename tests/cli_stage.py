"""The command line against a real server on this machine, in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner, Result

from laneway.cli.app import app
from tests.gateway_stage import GatewayStage, serving

NOWHERE = "http://127.0.0.1:9"  # nobody listens there
SETTINGS = ("URL", "TOKEN", "STORE", "TENANT", "WORKSPACE", "WORKSPACE_NAME", "CA")


class Ended(NamedTuple):
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass
class CliStage:
    """Runs commands against a server. `run` is quick and takes over standard output: one at a time."""

    server: GatewayStage
    folder: Path
    token: str = ""
    environ: dict[str, str | None] = field(default_factory=dict)

    async def run(self, *words: str, given: str | None = None, **environ: str | None) -> Result:
        """Run a command as a shell would, on a thread of its own: the server needs this loop."""
        return await asyncio.to_thread(run, *words, given=given, **{**self.environ, **environ})

    async def process(self, *words: str, given: str = "") -> Ended:
        """Run a command in a process of its own, so that others can run beside it."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
        named = {f"LANEWAY_{name}": value for name, value in self.environ.items() if value is not None}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "laneway", *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**environ, **named}
        )
        out, err = await process.communicate(given.encode())
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())

    async def json(self, *words: str, **environ: str | None) -> Any:
        """What a command prints with `--json`; it has to succeed."""
        result = await self.run(*words, "--json", **environ)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    @property
    def store(self) -> str:
        """The address of the server's store."""
        return f"sqlite:///{self.folder}/laneway.db"


def run(*words: str, given: str | None = None, **environ: str | None) -> Result:
    """Run a command. Variables are named without `LANEWAY_`, but for `COLUMNS`."""
    names = {name if name == "COLUMNS" else f"LANEWAY_{name}": value for name, value in environ.items()}
    unset: dict[str, str | None] = {f"LANEWAY_{name}": None for name in SETTINGS}
    return CliRunner().invoke(app, list(words), input=given, env={**unset, "COLUMNS": None, **names})


@contextlib.asynccontextmanager
async def cli_stage(folder: Path, **options: Any) -> AsyncIterator[CliStage]:
    """A server and a command line whose environment names it, with an operator's token for all tenants."""
    async with serving(folder, **options) as server:
        token = server.operator()["Authorization"].removeprefix("Bearer ")
        yield CliStage(server, folder, token, {"URL": server.url, "TOKEN": token})
