"""The transport of `examples/own_transport.py` does what every transport has to do: real sockets, real time."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

from laneway.ports import Transport
from laneway.testing.transports import TRANSPORT_CHECKS, DeskStage, TransportStage, check_transport, desk_stage
from laneway.transports import Desk
from tests.leaps import LeapingStage, hastened, leaping

ROOT = Path(__file__).resolve().parents[2]


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
    paths: list[str] = []

    @asynccontextmanager
    async def wire(desk: Desk) -> AsyncIterator[Callable[[], Transport]]:
        paths.append(path := str(tmp_path / f"{len(paths)}.sock"))
        async with await own.listen(desk, path):
            yield lambda: own.connect(path)

    @asynccontextmanager
    async def stage() -> AsyncIterator[TransportStage]:
        with leaping(asyncio.get_running_loop()) as leap:
            async with desk_stage(wire)() as made, hastened(leap, TRANSPORT_CHECKS[len(paths) - 1]):
                assert isinstance(made, DeskStage)
                yield LeapingStage(made.desk, made.connect, leap=leap)

    await check_transport(stage)
    assert len(paths) == len(TRANSPORT_CHECKS)
