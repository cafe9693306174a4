"""A server with a channel, killed again and again: every message runs once, and every answer is delivered.

The messages come in and the answers go out over real connections. Whoever sends tries again with the same id until it
gets a receipt, as Standard Webhooks asks of it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from laneway.gateway.channels.outbox import WORKERS
from laneway.gateway.channels.signing import headers_of, key_of
from tests.channel_stage import SECRET, Partner, partner_stage
from tests.server_process import ServerProcess, server_process

pytestmark = pytest.mark.slow

SESSIONS = 4
EACH = 15
KILLS = 3
MAIN = """default_model: scripted
queue: {{mode: followup, debounce_idle: false}}
gateway:
  channels:
    partner: {{kind: webhook, secrets: [{secret}], url: "{url}", allow_private: true}}
"""


class Sender:
    """Sends the messages of one conversation, in order, each until it is taken."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.receipts: dict[str, str] = {}

    async def run(self, client: httpx2.AsyncClient, state: dict[str, str]) -> None:
        for number in range(EACH):
            webhook_id = f"w-{self.session}-{number}"
            text = f"message {self.session} {number}"
            body = json.dumps({"session": f"s{self.session}", "text": text, "sender": "ada"}).encode()
            while webhook_id not in self.receipts:
                await self._try(client, state["url"], webhook_id, body)
            await asyncio.sleep(0.05)

    async def _try(self, client: httpx2.AsyncClient, url: str, webhook_id: str, body: bytes) -> None:
        headers = headers_of([key_of(SECRET)], webhook_id, body, at_ms=time.time_ns() // 1_000_000)
        try:
            answer = await client.post(f"{url}/v1/channels/partner/webhook", content=body, headers=headers)
        except httpx2.TransportError:
            await asyncio.sleep(0.05)
            return
        if answer.status_code == 202:
            self.receipts[webhook_id] = answer.json()["message_id"]
        else:
            assert answer.status_code in (409, 503), answer.text
            await asyncio.sleep(0.05)


async def _lives(folder: Path, partner: Partner, state: dict[str, str], done: asyncio.Event) -> None:
    """One server after the other; all but the last are killed in the middle of their work."""
    chance = random.Random(7)
    for life in range(KILLS + 1):
        with server_process(folder, "--config", "laneway.yaml") as server:
            state["url"] = await asyncio.to_thread(lambda one: one.url, server)
            if life < KILLS:
                await partner.until(len(partner.posts) + chance.randint(3, 8))
                await asyncio.to_thread(server.kill)
            else:
                await done.wait()
                await asyncio.to_thread(_stop, server)


def _stop(server: ServerProcess) -> None:
    assert server.stop() == 0, server.errors


async def test_a_server_that_is_killed_loses_no_message_and_no_answer_and_repeats_few(tmp_path: Path) -> None:
    async with partner_stage() as partner, httpx2.AsyncClient(timeout=60) as client:
        (tmp_path / "laneway.yaml").write_text(MAIN.format(secret=SECRET, url=partner.url))
        state = {"url": "http://127.0.0.1:9"}
        done = asyncio.Event()
        senders = [Sender(number) for number in range(SESSIONS)]
        wanted = {f"You said: message {session} {number}" for session in range(SESSIONS) for number in range(EACH)}
        async with asyncio.TaskGroup() as group:
            group.create_task(_lives(tmp_path, partner, state, done))
            await asyncio.gather(*(sender.run(client, state) for sender in senders))
            while not wanted <= set(partner.said()):
                await partner.until(len(partner.posts) + 1)
            done.set()
    ids = [headers["webhook-id"] for headers, _ in partner.posts]
    assert set(partner.said()) == wanted
    assert len(set(ids)) == len(wanted)  # every message ran once: the same answer again has the same id
    assert len(ids) - len(set(ids)) <= KILLS * min(WORKERS, SESSIONS)
    for session in range(SESSIONS):
        first = _first_times(partner, f"s{session}")
        assert first == [f"You said: message {session} {number}" for number in range(EACH)]


def _first_times(partner: Partner, session: str) -> list[str]:
    """The answers of a conversation in the order in which they came first."""
    found: dict[str, Any] = {}
    for _, body in partner.posts:
        facts = json.loads(body)["data"]
        if facts["session"] == session:
            found.setdefault(facts["text"])
    return list(found)
