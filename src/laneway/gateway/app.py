"""The HTTP application around a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route

from laneway import __version__
from laneway.gateway import guard, health, problems
from laneway.gateway.observed import Observed
from laneway.gateway.routes import ROUTERS, page, socket, task_work
from laneway.gateway.service import Gateway
from laneway.gateway.views import describe

__all__ = ("create_app",)


def create_app(gateway: Gateway) -> FastAPI:
    """The application; it opens and closes the gateway with itself, unless that is open already."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if gateway.is_open:
            yield
        else:
            async with gateway:
                yield

    app = FastAPI(
        title="Laneway",
        version=__version__,
        summary="The traffic system for AI agents.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.gateway = gateway
    problems.install(app)
    guard.install(app, gateway)
    app.add_middleware(Observed, gateway=gateway)  # the outermost: what the guard refuses is counted, too
    app.include_router(health.router)
    page.install(app)
    for router in ROUTERS:
        app.include_router(router, prefix="/v1")
    socket.install(app)
    # Most requests of workers are these: they are found first, and need nothing that the framework could do for them.
    app.router.routes.insert(0, Route("/v1/tasks/frames", task_work.frames, methods=["POST"]))
    describe(app)
    return app
