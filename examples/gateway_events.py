"""A gateway inside a program: a message over HTTP, the events of its session, and what became of it.

`laneway serve` is the same as a server of its own, with the routes, the chat page and the tokens of a real one.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import httpx2

from laneway.config import load_agent
from laneway.gateway.app import create_app
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings, WorkspaceSpec

AGENT = """
default_model: scripted
permissions: {allow: [wait]}
"""


async def main(folder: Path) -> None:
    spec = WorkspaceSpec(name="default", folder=folder, agent=load_agent(AGENT, environ={}))
    settings = GatewaySettings(store=f"sqlite:///{folder}/laneway.db")
    async with Gateway(settings, [spec]) as gateway:
        transport = httpx2.ASGITransport(app=create_app(gateway))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8420") as client:
            key = {"Idempotency-Key": "first"}
            for _ in range(2):  # a client that is not sure sends it again, and it is taken once
                sent = await client.post("/v1/sessions/ada/messages", json={"text": "wait 0.1"}, headers=key)
                print(sent.status_code, sent.json()["disposition"], "duplicate:", sent.json()["duplicate"])
            await gateway.default.inbox.wait(sent.json()["message_id"])

            past = await client.get("/v1/sessions/ada/events", params={"replay": "all", "follow": False})
            for event in past.text.split("\n\n"):
                lines = dict(line.split(": ", 1) for line in event.splitlines())
                if lines.get("event") == "turn.ended":
                    print(json.loads(lines["data"])["answer"])

            story = (await client.get(f"{sent.headers['location']}/explain")).json()
            print("\n".join(f"{step['type']}: {step['reason']}" for step in story["steps"]))
            problem = await client.delete(sent.headers["location"])
            print(problem.status_code, problem.json()["code"])


with tempfile.TemporaryDirectory() as name:
    asyncio.run(main(Path(name)))
