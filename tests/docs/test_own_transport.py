"""The transport of `examples/own_transport.py` does what every transport has to do: real sockets, real time."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

from laneway import Inbox, Turn
from laneway.ports import Transport
from laneway.runtime.task_desk import TaskDesk
from laneway.testing.transports import TRANSPORT_CHECKS, DeskStage, check_transport

ROOT = Path(__file__).resolve().parents[2]
LEASE_MS = 300


def example() -> ModuleType:
    """The script, not run."""
    spec = importlib.util.spec_from_file_location("own_transport", ROOT / "examples" / "own_transport.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
async def test_the_recipe_for_a_transport_passes_the_suite(tmp_path: Path) -> None:
    own = example()
    stages: list[DeskStage] = []

    async def nobody(_turn: Turn) -> None:
        """No messages here."""

    @asynccontextmanager
    async def stage() -> AsyncIterator[DeskStage]:
        path = str(tmp_path / f"{len(stages)}.sock")

        def connect() -> Transport:
            transport: Transport = own.connect(path)
            return transport

        async with Inbox(nobody) as inbox:
            desk = TaskDesk(inbox.engine)
            async with await own.listen(desk, path):
                stages.append(DeskStage(desk, connect, lease_ms=LEASE_MS))
                yield stages[-1]
                desk.close()

    await check_transport(stage)
    assert len(stages) == len(TRANSPORT_CHECKS)
