"""What tests of the traffic share: a gateway whose clock stands still, and jobs that wait for the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

from laneway.gateway.app import create_app
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings
from laneway.models import ScriptedModel
from laneway.stores.memory import MemoryStore
from laneway.system import HostEnv
from laneway.testing import FakeClock
from tests.gateway_stage import BASE, GatewayStage, spec_of
from tests.routes_stage import body_of
from tests.stream_stage import App

LANED = """
default_model: scripted
lanes:
  main: 2
queue:
  mode: followup
  debounce_idle: false
  query_max_concurrency: 2
  execute_max_concurrency: 1
permissions:
  default_decision: allow
"""


@contextlib.asynccontextmanager
async def still(
    folder: Path,
    *,
    script: Any = None,
    model: Any = None,
    text: str = LANED,
    workspaces: tuple[str, ...] = ("default",),
) -> AsyncIterator[tuple[GatewayStage, App, FakeClock]]:
    """A gateway, its application, and its clock, which only the test moves."""
    clock = FakeClock()
    model = ScriptedModel(script) if script is not None else model
    specs = [spec_of(folder, name=name, text=text, model=model) for name in workspaces]
    settings = GatewaySettings(store="memory://", drain_ms=100)
    gateway = Gateway(settings, specs, env=HostEnv(clock=clock), store=MemoryStore(), environ={})
    gateway.traffic.period_ms = 3_600_000  # the test says when lanes are compared
    async with gateway:
        app = create_app(gateway)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE) as client:
            yield GatewayStage(gateway, client), app, clock


class Gate:
    """Work for a lane that ends when the test says so."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self) -> None:
        await self.open.wait()


async def tracks(stage: GatewayStage, headers: dict[str, str] | None = None, **query: str) -> dict[str, dict[str, Any]]:
    """Every lane of `GET /v1/traffic`, by name."""
    body = await body_of(await stage.client.get("/v1/traffic", params=query, headers=headers))
    return {each["name"]: each for each in body["items"]}


def job_in(stage: GatewayStage, lane: str) -> str:
    """The first job of a lane; empty: there is none yet."""
    jobs = stage.gateway.lanes.engine.kernel.jobs.values()
    return next((job.id for job in jobs if any(each.name == lane for each in job.lanes)), "")
