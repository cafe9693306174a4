"""What tests of the routes share: a session that is busy until the test says so, callers, and how a refusal looks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2

from laneway.kernel.ledger import LedgerEntry, LedgerState, arguments_digest
from laneway.models import say
from laneway.records import Effect
from laneway.rows import Batch, Owner
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
  allow: ["*"]
  ask: ["write"]
confirmation:
  enabled: true
"""

EXTERNAL = LANED.replace("enable_dlq: true", "enable_dlq: true\n  lane_handlers:\n    query:\n      mode: external")
DEPLOY = '{"command": "deploy"}'


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


async def until(is_so: Callable[[], object], *, patience_s: float = 60) -> None:
    """Let others run until something is so: a store on disk takes its time, however often others get their turn."""
    async with asyncio.timeout(patience_s):
        while not is_so():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0)


async def entry_in(stage: GatewayStage, owner: Owner, call_id: str, state: LedgerState) -> str:
    """A call in the ledger, as an earlier process has left it; its id."""
    store = stage.gateway.store
    entry = LedgerEntry(
        owner=owner,
        run_id="turn-old",
        number=1,
        call_id=call_id,
        tool="bash",
        effect=Effect.WRITE,
        key=f"key-{call_id}",
        digest=arguments_digest(DEPLOY),
        arguments=DEPLOY,
        state=state,
        started_ms=1,
        ended_ms=2,
        seq=store.next_seq(),
    )
    (result,) = await store.commit([Batch(owner, store.epoch, (entry.to_row(),))])
    assert result.error is None
    return entry.id


async def dead_message(stage: GatewayStage, key: str, text: str, **more: Any) -> str:
    """A message whose turn could never be begun, as the inbox would have left it; its id."""
    sent = await stage.send(key, text, **more)
    store = stage.gateway.store
    row = await store.history.message(sent["message_id"])
    assert row is not None
    seq = store.next_seq()
    dead = row._replace(id=f"msg-dead-{seq}", seq=seq, state="dead_lettered", outcome="", turn_id="", reason="no model")
    (result,) = await store.commit([Batch(Owner(row.tenant, row.workspace, row.session), store.epoch, (dead,))])
    assert result.error is None
    return dead.id
