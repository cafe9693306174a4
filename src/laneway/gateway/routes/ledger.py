"""The ledger: calls with side effects, and those of which nobody knows how far they came."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from laneway.agent.book import Book
from laneway.errors import ConflictError, NotFoundError
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.lookup import find_entry, find_session
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.views import LedgerView, Page, router_of, seq_of
from laneway.kernel.ledger import INTENT, Change, LedgerState, decode_entry
from laneway.rows import Owner

__all__ = ("router",)

router = router_of("ledger")

SCANNED_MAX = 20_000  # rows that one request looks through; the cursor goes on from there
SCAN = 1_000


class Settlement(BaseModel):
    """What somebody has found out about a call."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "the mail has arrived, I asked"}]}
    )

    reason: str = Field(min_length=1, max_length=2_000)


@router.get("/ledger", summary="Calls with side effects")
async def ls(
    caller: CallerOf,
    workspace: WorkspaceOf,
    session: Annotated[str, Query(max_length=400, description="Of one session only.")] = "",
    state: Annotated[LedgerState | None, Query(description="`unknown` are those that need somebody.")] = None,
    after: Annotated[str, Query(max_length=20)] = "",
    limit: Limit = 200,
) -> Page[LedgerView]:
    """The ledger, oldest first. With a state a page may be short, or empty, and still have a `next`."""
    owner = Owner(caller.tenant, workspace.name)
    if session:
        owner = await find_session(workspace, caller, session)
    history = workspace.inbox.engine.store.history
    items: list[LedgerView] = []
    seq = seq_of(after)
    for _ in range(0, SCANNED_MAX, SCAN):
        rows = await history.states(owner, INTENT, after_seq=seq, limit=SCAN)
        for row in rows:
            seq = row.seq
            if state is None or row.state == state.value:
                items.append(LedgerView.of(decode_entry(row)))
                if len(items) == limit:
                    return Page(items=items, next=str(seq))
        if len(rows) < SCAN:
            return Page(items=items, next=None)
    return Page(items=items, next=str(seq))


@router.get("/ledger/{entry_id:path}", summary="One entry of the ledger")
async def show(entry_id: str, gateway: GatewayOf, caller: CallerOf) -> LedgerView:
    """A call with side effects."""
    _, entry = await find_entry(gateway, caller, entry_id)
    return LedgerView.of(entry)


@router.post("/ledger/{entry_id:path}/settle", summary="Say what became of a call")
async def settle(entry_id: str, body: Settlement, gateway: GatewayOf, caller: OperatorOf) -> LedgerView:
    """Settle a call of which nobody knew how far it came."""
    workspace, entry = await find_entry(gateway, caller, entry_id)
    if entry.state is not LedgerState.UNKNOWN:
        raise ConflictError(
            f"this call is {entry.state.value}: there is nothing to settle",
            hint="only a call that is unknown can be settled",
            entry_id=entry.id,
            state=entry.state.value,
        )
    await gateway.audit.record(caller, "ledger.settle", entry.id, reason=body.reason, tool=entry.tool)
    try:
        async with workspace.using(caller.tenant, entry.owner.session) as session:
            settled = await session.settle(entry.id, body.reason, actor=caller.name)
    except NotFoundError:  # a sub-agent that has ended: nobody has its book open
        engine = workspace.inbox.engine
        book = Book(engine, entry.owner)
        settled = entry.change(Change.SETTLE, now_ms=engine.wall(), reason=body.reason, actor=caller.name)
        book.keep(settled)
        await book.committed()
    return LedgerView.of(settled)
