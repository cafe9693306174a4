"""The ledger: calls with side effects, and those of which nobody knows how far they came."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictBool

from laneway.agent.book import Book
from laneway.agent.subagents import root_of
from laneway.errors import ConflictError, NotFoundError
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.lookup import find_entry, find_session
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.service import Gateway
from laneway.gateway.views import LedgerView, Page, router_of, seq_of
from laneway.gateway.workspaces import Workspace
from laneway.kernel.ledger import INTENT, Change, LedgerEntry, LedgerState, decode_entry
from laneway.rows import Owner, StateRow

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
    happened: StrictBool | None = Field(None, description="Whether the call had its effect; null: that is not said.")
    go_on: StrictBool = Field(
        default=False,
        description="Tell the agent: a message to its session says what was found out, and that it is to go on. A call "
        "that did not happen is to be made again.",
    )


class Settled(LedgerView):
    """A call that was settled, and the message that tells the agent of it."""

    message_id: str | None = None


@router.get("/ledger", summary="Calls with side effects")
async def ls(
    caller: CallerOf,
    workspace: WorkspaceOf,
    session: Annotated[str, Query(max_length=400, description="Of one session only.")] = "",
    state: Annotated[LedgerState | None, Query(description="`unknown` are those that need somebody.")] = None,
    tool: Annotated[str, Query(max_length=200, description="Of one tool only.")] = "",
    run: Annotated[str, Query(max_length=400, description="Of one run only.")] = "",
    order: Annotated[Literal["oldest", "newest"], Query(description="What comes first.")] = "oldest",
    after: Annotated[str, Query(max_length=20)] = "",
    limit: Limit = 200,
) -> Page[LedgerView]:
    """The ledger, oldest first. With a filter a page may be short, or empty, and still have a `next`."""
    owner = Owner(caller.tenant, workspace.name)
    if session:
        owner = await find_session(workspace, caller, session)
    history = workspace.inbox.engine.store.history
    items: list[LedgerView] = []
    seq = seq_of(after)
    for _ in range(0, SCANNED_MAX, SCAN):
        if order == "newest":
            is_live = state in (LedgerState.UNKNOWN, LedgerState.INTENDED)
            wanted = state.value if state is not None else ""
            rows = await history.states_newest(
                owner, INTENT, state=wanted, live=is_live, before_seq=seq, limit=SCAN if tool or run else limit
            )
        else:
            rows = await history.states(owner, INTENT, after_seq=seq, limit=SCAN)
        for row in rows:
            seq = row.seq
            if _fits(row, state, tool, run):
                items.append(LedgerView.of(decode_entry(row)))
                if len(items) == limit:
                    return Page(items=items, next=str(seq))
        if len(rows) < (SCAN if order == "oldest" or tool or run else limit):
            return Page(items=items, next=None)
    return Page(items=items, next=str(seq))


def _fits(row: StateRow, state: LedgerState | None, tool: str, run: str) -> bool:
    if state is not None and row.state != state.value:
        return False
    if not tool and not run:
        return True
    body = json.loads(row.body)
    return tool in ("", body.get("tool")) and run in ("", body.get("run"))


@router.get("/ledger/{entry_id:path}", summary="One entry of the ledger")
async def show(entry_id: str, gateway: GatewayOf, caller: CallerOf) -> LedgerView:
    """A call with side effects."""
    _, entry = await find_entry(gateway, caller, entry_id)
    return LedgerView.of(entry)


@router.post("/ledger/{entry_id:path}/settle", summary="Say what became of a call")
async def settle(entry_id: str, body: Settlement, gateway: GatewayOf, caller: OperatorOf) -> Settled:
    """Settle a call of which nobody knew how far it came. With `go_on` its session hears of it, and goes on."""
    async with gateway.letter_locks.setdefault(f"ledger {entry_id}", asyncio.Lock()):  # what is told is what is kept
        return await _settle(gateway, caller, entry_id, body)


async def _settle(gateway: Gateway, caller: Caller, entry_id: str, body: Settlement) -> Settled:
    workspace, entry = await find_entry(gateway, caller, entry_id)
    if entry.state is not LedgerState.UNKNOWN:
        raise ConflictError(
            f"this call is {entry.state.value}: there is nothing to settle",
            hint="only a call that is unknown can be settled",
            entry_id=entry.id,
            state=entry.state.value,
        )
    facts = {"tool": entry.tool, "happened": body.happened, "go_on": body.go_on}
    await gateway.audit.record(caller, "ledger.settle", entry.id, reason=body.reason, **facts)
    message_id = await _tell(gateway, workspace, entry, body) if body.go_on else None
    try:
        async with workspace.using(caller.tenant, entry.owner.session) as session:
            settled = await session.settle(entry.id, body.reason, actor=caller.name, happened=body.happened)
    except NotFoundError:  # a sub-agent that has ended: nobody has its book open
        engine = workspace.inbox.engine
        book = Book(engine, entry.owner)
        settled = entry.change(
            Change.SETTLE, now_ms=engine.wall(), reason=body.reason, actor=caller.name, happened=body.happened
        )
        book.keep(settled)
        await book.committed()
    return Settled(**LedgerView.of(settled).model_dump(), message_id=message_id)


async def _tell(gateway: Gateway, workspace: Workspace, entry: LedgerEntry, body: Settlement) -> str:
    """Tell the session what was found out. The same entry is told once, whatever happens in between."""
    gateway.admission.check()
    receipt = await workspace.inbox.submit(
        root_of(entry.owner.session),
        settled_text(entry, body.reason, happened=body.happened),
        kind="system",
        mode="followup",
        tenant=entry.owner.tenant,
        message_id=f"settled/{entry.id}",
    )
    return receipt.message_id


def settled_text(entry: LedgerEntry, reason: str, *, happened: bool | None) -> str:
    """What the model is told of a call that somebody has looked at."""
    call = f"Your call of {entry.tool!r} ({entry.call_id}) was cut off, and its outcome was unknown."
    found = {
        True: "It has had its effect: do not make it again. Go on with what you were doing.",
        False: "It has had no effect. Make it again if it is still wanted, and go on with what you were doing.",
        None: "Whether it has had its effect could not be found out. Go on without it, and look before you repeat it.",
    }[happened]
    return f"[{call} Somebody has looked. {found}]\nWhat they say: {reason}"
