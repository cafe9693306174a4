"""What tests of the routes share: a session that is busy until the test says so, callers, and how a refusal looks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

from laneway.models import say
from tests.agent_stage import Held
from tests.gateway_stage import GatewayStage, gateway_stage

UNKNOWN = "nobody-knows"
LANED = """
default_model: scripted
queue:
  mode: followup
  query_max_concurrency: 2
  enable_dlq: true
permissions:
  allow: ["read"]
  ask: ["write"]
"""


@contextlib.asynccontextmanager
async def busy(
    folder: Path, *more: Any, begins: Any = None, **options: Any
) -> AsyncIterator[tuple[GatewayStage, Held, dict[str, Any]]]:
    """A gateway whose session `s1` is at work over a first message until the test lets it go.

    `begins` is the first piece of its answer, `more` is what the model answers later.
    """
    held = Held(begins or say("first answer"))
    async with gateway_stage(folder, script=[held, *more], **options) as stage:
        first = await post(stage, "s1", "first")
        await held.asked.wait()
        try:
            yield stage, held, first
        finally:
            held.let_go()


async def post(stage: GatewayStage, key: str, text: str, **more: Any) -> dict[str, Any]:
    """Send a message and do not wait for its end; the receipt."""
    headers = more.pop("headers", None)
    answer = await stage.client.post(f"/v1/sessions/{key}/messages", json={"text": text, **more}, headers=headers)
    assert answer.status_code == 202, answer.text
    receipt: dict[str, Any] = answer.json()
    return receipt


async def body_of(answer: httpx2.Response, status: int = 200) -> Any:
    """What came, if it has this status."""
    assert answer.status_code == status, answer.text
    return answer.json()


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    """The status and the code of a problem, which looks as problems do."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"]
    return answer.status_code, body["code"]


async def ended(stage: GatewayStage, *ids: str) -> None:
    """Wait until messages are final."""
    for each in ids:
        await stage.gateway.default.inbox.wait(each)
