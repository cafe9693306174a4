"""Histories of runs: one as a file, whether it would go the same way today, and a session that goes on from a step."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from laneway.agent.forking import FORK, check_step, fork_into, past_of
from laneway.agent.replays import SessionCode, history_of
from laneway.agent.subagents import is_child_id
from laneway.errors import ConflictError, ReplayDivergedError
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.keys import IdempotencyKey
from laneway.gateway.views import View, router_of
from laneway.gateway.workspaces import Workspace
from laneway.kernel.histories import RunHistory, short_digest, write_history
from laneway.kernel.replaying import play
from laneway.rows import Owner, StateRow

__all__ = ("router",)

router = router_of("runs")

KEY_MAX = 200
LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-ndjson": {}}, "description": "The history, one JSON value in a line."}
}


class ForkRequest(BaseModel):
    """From where a run is to go on, and with what."""

    model_config = ConfigDict(extra="forbid")

    step: Annotated[
        int | None, Field(ge=1, strict=True, description="Everything before it is kept; none: after the last.")
    ] = None
    prompt: Annotated[str, Field(max_length=1_000_000, description="What it is told then.")] = ""
    session_key: Annotated[str | None, Field(min_length=1, max_length=KEY_MAX)] = None


class Forked(View):
    """A session that goes on from a step of a run; `message_id` is by what it does."""

    session_key: str
    from_run: str
    step: int
    message_id: str | None = None


class Replayed(View):
    """Whether a run would go the same way today; if not, the first step that differs."""

    run_id: str
    recorded: bool = Field(description="Whether what its model was sent is known. If not, only its rounds are.")
    steps: int
    same: bool
    step: int | None = None
    where: str = ""
    then: str = Field(default="", description="What was recorded.")
    now: str = Field(default="", description="What would happen now.")


@router.get("/runs/{run_id}/history", summary="A run as one file", response_class=Response, responses=LINES)
async def history(run_id: str, gateway: GatewayOf, caller: CallerOf) -> Response:
    """Everything that went into a run, in order, as JSON lines: `laneway run replay` makes it again on any machine."""
    workspace, row = await gateway.find_run(caller, run_id)
    text = write_history(await _history(workspace, row))
    return Response(text, media_type="application/x-ndjson")


@router.get("/runs/{run_id}/replay", summary="Whether a run would go the same way today")
async def replay(run_id: str, gateway: GatewayOf, caller: CallerOf) -> Replayed:
    """Make a run again with the tools and prompts of today; no model is asked, and no tool is called."""
    workspace, row = await gateway.find_run(caller, run_id)
    found = await _history(workspace, row)
    facts: dict[str, Any] = {"run_id": run_id, "recorded": found.is_recorded, "steps": len(found.steps)}
    async with workspace.using(row.tenant, row.session) as session:
        try:
            play(found, SessionCode(session))
        except ReplayDivergedError as error:
            told = vars(error)
            then, now = str(told["recorded"])[:1_000], str(told["now"])[:1_000]
            return Replayed(**facts, same=False, step=told["step"], where=told["where"], then=then, now=now)
    return Replayed(**facts, same=True)


@router.post("/runs/{run_id}/fork", status_code=202, summary="Go on from a step of a run in a new session")
async def fork(
    run_id: str,
    gateway: GatewayOf,
    caller: CallerOf,
    response: Response,
    body: ForkRequest | None = None,
    key: IdempotencyKey = None,
) -> Forked:
    """Begin a session whose past is the run up to a step, and have it go on live. The run stays as it is.

    What came before the step is not done again.
    """
    body = body or ForkRequest()
    workspace, row = await gateway.find_run(caller, run_id)
    if is_child_id(row.session):
        raise ConflictError(
            f"run {run_id} is that of a sub-agent", hint="fork the run that has asked for it", run_id=run_id
        )
    found = await _history(workspace, row)
    past_of(found, body.step, body.prompt)
    name = body.session_key or _name(workspace, row, key)
    told = Forked(session_key=name, from_run=run_id, step=check_step(found, body.step))
    response.headers["Location"] = f"/v1/sessions/{name}"
    if key is not None and await _is_forked(workspace, row.tenant, name):
        return told
    gateway.admission.check()
    async with workspace.using(row.tenant, name) as session:
        receipt = await fork_into(session, found, body.step, body.prompt)
    return told.model_copy(update={"message_id": receipt.message_id})


def _name(workspace: Workspace, row: StateRow, key: str | None) -> str:
    """What a fork is called: with a key it is the same every time."""
    if key is None:
        return workspace.inbox.engine.ids.new_id("fork")
    return f"fork-{short_digest(f'{row.id}/{key}')}"


async def _is_forked(workspace: Workspace, tenant: str, name: str) -> bool:
    return await workspace.inbox.engine.store.history.state(FORK, f"{tenant}/{workspace.name}/{name}") is not None


async def _history(workspace: Workspace, row: StateRow) -> RunHistory:
    owner = Owner(row.tenant, row.workspace, row.session)
    return await history_of(workspace.inbox.engine.store.history, owner, row.id)
