"""The command line against a real server on this machine, in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from laneway.cli.app import app
from tests.gateway_stage import GatewayStage, serving

NOWHERE = "http://127.0.0.1:9"  # nobody listens there
SETTINGS = ("URL", "TOKEN", "STORE", "TENANT", "WORKSPACE", "WORKSPACE_NAME")


@dataclass
class CliStage:
    """Runs commands against a server. What a command prints is in the result; colours are never in it."""

    server: GatewayStage
    folder: Path
    token: str = ""
    environ: dict[str, str | None] = field(default_factory=dict)

    async def run(self, *words: str, given: str | None = None, **environ: str | None) -> Result:
        """Run a command as a shell would, on a thread of its own: the server needs this loop."""
        return await asyncio.to_thread(run, *words, given=given, **{**self.environ, **environ})

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
