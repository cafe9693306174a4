"""The transport over HTTP passes the suite of all transports: a real server, real sockets, a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from laneway.gateway.access import Scope
from laneway.testing.transports import TRANSPORT_CHECKS, TransportStage
from laneway.transports.http import HttpTransport
from tests.gateway_stage import serving
from tests.leaps import LeapingStage, hastened, leaping

Check = Callable[[TransportStage], Awaitable[None]]


@asynccontextmanager
async def http_stage(folder: Path) -> AsyncIterator[LeapingStage]:
    """The desk of a gateway's workspace; workers reach it over a port of this machine."""
    with leaping(asyncio.get_running_loop()) as leap:
        async with serving(folder) as stage:
            token = stage.gateway.tokens.create_for_now("worker", [Scope.WORKER])
            desk = stage.gateway.default.host.desk
            yield LeapingStage(desk, lambda: HttpTransport(stage.url, token=token), leap=leap)


@pytest.mark.slow
@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
async def test_the_transport_over_http_keeps_its_promises(check: Check, tmp_path: Path) -> None:
    async with http_stage(tmp_path) as stage, hastened(stage.leap, check):
        await check(stage)
    assert check in TRANSPORT_CHECKS
