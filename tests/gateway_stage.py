"""A gateway for tests: on the application itself, or as a real server on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from laneway.config import load_agent
from laneway.gateway.access import Scope
from laneway.gateway.app import create_app
from laneway.gateway.connections import protocol_of
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings, WorkspaceSpec
from laneway.models import ScriptedModel
from laneway.ports import Store

BASE = "http://127.0.0.1:8420"
SIMPLE = "default_model: scripted\nqueue:\n  mode: followup\n  debounce_idle: false\nlanes:\n  main: 8\n"


@dataclass
class GatewayStage:
    """A gateway and somebody who calls it."""

    gateway: Gateway
    client: httpx2.AsyncClient
    url: str = BASE

    async def token(
        self, *scopes: Scope | str, tenant: str = "default", name: str = "somebody", expires_ms: int | None = None
    ) -> dict[str, str]:
        """The headers of a new token."""
        wanted = [Scope(each) for each in scopes or ("chat",)]
        _, secret = await self.gateway.tokens.create(name, wanted, tenant=tenant, expires_ms=expires_ms)
        return {"Authorization": f"Bearer {secret}"}

    def operator(self, *, tenant: str = "*", scopes: Iterable[Scope] = (Scope.OPERATE,)) -> dict[str, str]:
        """The headers of an operator whose token is not kept: the gateway still counts as one without tokens."""
        return {"Authorization": f"Bearer {self.gateway.tokens.create_for_now('operator', scopes, tenant=tenant)}"}

    async def send(self, key: str, text: str, **more: Any) -> dict[str, Any]:
        """Send a message and wait for its end; the receipt."""
        headers = more.pop("headers", None)
        answer = await self.client.post(f"/v1/sessions/{key}/messages", json={"text": text, **more}, headers=headers)
        assert answer.status_code == 202, answer.text
        receipt: dict[str, Any] = answer.json()
        await self.gateway.default.inbox.wait(receipt["message_id"])
        return receipt


def spec_of(folder: Path, *, name: str = "default", text: str = SIMPLE, model: Any = None) -> WorkspaceSpec:
    """A workspace whose agent is made from the text of a file."""
    return WorkspaceSpec(name=name, folder=folder, agent=load_agent(text, environ={}), model=model)


def gateway_in(
    folder: Path,
    *,
    script: Any = None,
    text: str = SIMPLE,
    store: Store | None = None,
    specs: Iterable[WorkspaceSpec] = (),
    **settings: Any,
) -> Gateway:
    """A gateway that is not open yet. `script` is that of its model; without one it reacts to the prompt."""
    model = None if script is None else ScriptedModel(script)
    workspaces = list(specs) or [spec_of(folder, text=text, model=model)]
    given = {"store": f"sqlite:///{folder}/laneway.db", **settings}
    return Gateway(GatewaySettings(**given), workspaces, store=store, environ={})


@contextlib.asynccontextmanager
async def gateway_stage(folder: Path, **options: Any) -> AsyncIterator[GatewayStage]:
    """An open gateway, and a client on its application."""
    async with gateway_in(folder, **options) as gateway:
        transport = httpx2.ASGITransport(app=create_app(gateway))
        async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
            yield GatewayStage(gateway, client)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *, headers: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[GatewayStage]:
    """The same as a real server on a free port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        async with gateway_in(folder, port=port, **options) as gateway:
            config = uvicorn.Config(
                create_app(gateway),
                http=protocol_of(gateway.settings),
                log_config=None,
                lifespan="off",
                proxy_headers=False,
                timeout_graceful_shutdown=5,
            )
            server = uvicorn.Server(config)
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
            listener.listen(2048)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{port}"
            try:
                async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
                    yield GatewayStage(gateway, client, url)
            finally:
                gateway.begin_stop()
                server.should_exit = True
                await task
