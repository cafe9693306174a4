"""Runs: what agents have done, what they are doing, how to end one or go on with it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from laneway.agent.book import Book
from laneway.agent.replays import fork_of, tell_stored
from laneway.agent.reports import stored_info
from laneway.agent.results import RunInfo
from laneway.agent.session import RESUME, AsyncSession
from laneway.agent.subagents import is_child_id, root_of
from laneway.errors import ConflictError, LanewayError
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspaceOf
from laneway.gateway.keys import IdempotencyKey
from laneway.gateway.lookup import current_turn, find_session, rest_of, run_now
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.task_facts import task_lines
from laneway.gateway.views import (
    ForkedFrom,
    Page,
    Reason,
    RunView,
    StepView,
    Taken,
    View,
    page_of,
    router_of,
    run_facts,
    seq_of,
)
from laneway.gateway.workspaces import Workspace
from laneway.kernel import stories
from laneway.kernel.messages import route_key
from laneway.kernel.rounds import RoundState
from laneway.kernel.run_words import state_words
from laneway.kernel.task_entries import TASK, TaskEntry, decode_task
from laneway.mail import Route, TurnState
from laneway.rows import Lookup, Owner, StateRow
from laneway.runtime.arrivals import receipt_of

__all__ = ("router",)

router = router_of("runs")

SCANNED_MAX = 20_000  # tasks of a session that are looked through for those of a run
SCAN = 1_000


class RunDetails(RunView):
    """A run with what it took. `tools` are the calls that run now, `waits_for` what it waits for, at rest, too."""

    prompt: str = ""
    rounds: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    resumed_from: str | None = None
    forked_from: ForkedFrom | None = Field(default=None, description="It is the first run of a fork of that one.")
    tools: list[str] = Field(default_factory=list)
    waits_for: str = ""


class RunStory(View):
    """Why a run is where it is, and how it came there."""

    run: RunView
    steps: list[StepView]
    text: str = Field(description="The same for people.")
    story: str = Field(default="", description="What it did, waited for and cost, and how it ended, in words.")


@router.get("/sessions/{key}/runs", summary="The runs of a session")
async def ls(
    key: str,
    caller: CallerOf,
    workspace: WorkspaceOf,
    after: Annotated[str, Query(max_length=20)] = "",
    limit: Limit = 200,
) -> Page[RunView]:
    """Every run of a session, oldest first."""
    owner = await find_session(workspace, caller, key)
    rows = await workspace.inbox.engine.store.history.states(owner, "turn", after_seq=seq_of(after), limit=limit)
    items = [RunView.of(row, state_now(workspace, row)) for row in rows]
    return page_of(items, [row.seq for row in rows], limit)


@router.get("/runs/{run_id}", summary="One run")
async def show(run_id: str, gateway: GatewayOf, caller: CallerOf) -> RunDetails:
    """What a run is doing, or has done, and what it took."""
    workspace, row = await gateway.find_run(caller, run_id)
    facts = run_facts(row, state_now(workspace, row))
    rests = rest_of(workspace, row)
    fork = await fork_of(workspace.inbox.engine.store.history, _owner(row), facts["messages"])
    facts["forked_from"] = None if fork is None else ForkedFrom(**fork)
    try:
        info = await _info_of(workspace, row)
    except LanewayError:  # its sub-agent has ended: the store knows this much
        return RunDetails(**facts, waits_for=rests)
    is_over = TurnState(facts["state"]).is_final
    return RunDetails(
        **facts,
        prompt=info.prompt,
        rounds=info.rounds,
        prompt_tokens=info.prompt_tokens,
        completion_tokens=info.completion_tokens,
        cost=info.cost,
        resumed_from=info.resumed_from or None,
        tools=list(info.tools),
        waits_for=rests if is_over else info.reason,
    )


async def _info_of(workspace: Workspace, row: StateRow) -> RunInfo:
    """What is known of a run. A session that is not in memory stays where it is: looking brings nothing back."""
    if workspace.live_session(row.tenant, root_of(row.session)) is None:
        return stored_info(row, await Book(workspace.inbox.engine, _owner(row)).read_run(row.id))
    async with workspace.using(row.tenant, row.session) as session:
        return await session.run_snapshot(row.id)


@router.post("/runs/{run_id}/cancel", status_code=202, summary="End a run")
async def cancel(run_id: str, gateway: GatewayOf, caller: CallerOf, body: Reason | None = None) -> RunView:
    """End the run that goes on; what waits in its session stays. It has ended when its state says so."""
    workspace, row = await gateway.find_run(caller, run_id)
    _check_current(workspace, row)
    reason = (body.reason if body is not None else "") or f"cancelled by {caller.name}"
    if not await workspace.inbox.cancel(row.session, reason, tenant=row.tenant):
        raise ConflictError(f"run {run_id} is ending already", hint="wait for its end", run_id=run_id)
    _, row = await gateway.find_run(caller, run_id)
    return RunView.of(row, state_now(workspace, row))


@router.post("/runs/{run_id}/resume", status_code=202, summary="Go on with a run that was cut off")
async def resume(
    run_id: str, gateway: GatewayOf, caller: CallerOf, response: Response, key: IdempotencyKey = None
) -> Taken:
    """Go on with a run in a run of its own, when it is its turn; the old one stays as it is."""
    workspace, row = await gateway.find_run(caller, run_id)
    name = None if key is None else f"resume/{run_id}/{key}"
    if name is not None and (taken := await _taken_before(workspace, _owner(row), name)) is not None:
        response.headers["Location"] = f"/v1/messages/{taken.message_id}"
        return taken
    if is_child_id(row.session):
        raise ConflictError(
            f"run {run_id} is that of a sub-agent", hint="resume the run that has asked for it", run_id=run_id
        )
    turn = current_turn(workspace, _owner(row))
    if turn is not None and turn.id == run_id:
        raise ConflictError(f"run {run_id} is going on", hint="wait for it", run_id=run_id)
    async with workspace.using(row.tenant, row.session) as session:
        await _check_unfinished(session, run_id)
    gateway.admission.check()
    receipt = await workspace.inbox.submit(
        row.session,
        f"Resume run {run_id}",
        kind="system",
        tenant=row.tenant,
        message_id=name,
        attachments=[{RESUME: run_id}],
    )
    response.headers["Location"] = f"/v1/messages/{receipt.message_id}"
    return Taken.of(receipt)


@router.get("/runs/{run_id}/explain", summary="Why a run is where it is")
async def explain(run_id: str, gateway: GatewayOf, caller: CallerOf) -> RunStory:
    """What a run waits for at this moment, and everything that has happened to it."""
    workspace, row = await gateway.find_run(caller, run_id)
    events = await workspace.inbox.engine.store.history.events(_owner(row), turn_id=run_id)
    run = RunView.of(row, state_now(workspace, row))
    text = run_now(workspace, _owner(row), run_id)
    if not text:
        text = f"Run {run_id} {state_words(run.state)}{f': {run.reason}' if run.reason else ''}."
        elsewhere = task_lines(await _tasks_of(workspace, row))
        text = f"{text}\n{elsewhere}" if elsewhere else text
    told = [StepView.of(stories.step_of(event)) for event in events]
    return RunStory(run=run, steps=told, text=text, story=await _story(workspace, row))


async def _story(workspace: Workspace, row: StateRow) -> str:
    """A run in words: of one that goes on, by its session; else from the store, and no session is opened for it."""
    session = workspace.host.sessions.get((row.tenant, row.session))
    now = None if session is None else session.current_run()
    if session is not None and now is not None and now.run_id == row.id:
        return await session.explain_run(row.id)
    return await tell_stored(workspace.inbox.engine.store.history, row)


async def _tasks_of(workspace: Workspace, run: StateRow) -> list[TaskEntry]:
    """The external tasks of a run, among those that its session has had."""
    found, seq = list[TaskEntry](), 0
    for _ in range(0, SCANNED_MAX, SCAN):
        rows = await workspace.inbox.engine.store.history.states(_owner(run), TASK, after_seq=seq, limit=SCAN)
        entries = (decode_task(row) for row in rows)
        found += (entry for entry in entries if entry.run_id == run.id)
        if len(rows) < SCAN:
            break
        seq = rows[-1].seq
    return found


async def _taken_before(workspace: Workspace, owner: Owner, name: str) -> Taken | None:
    """What was answered to the same request, which may have come to its end meanwhile."""
    (row,) = await workspace.inbox.engine.store.find([Lookup(owner, route_key(Route()), name, 0)])
    return None if row is None else Taken.of(receipt_of(row, duplicate=True))


def _owner(row: StateRow) -> Owner:
    return Owner(row.tenant, row.workspace, row.session)


def state_now(workspace: Workspace, row: StateRow) -> str:
    """The state of the run that goes on: the store hears of its phases later."""
    turn = current_turn(workspace, _owner(row))
    return turn.state.value if turn is not None and turn.id == row.id else ""


def _check_current(workspace: Workspace, row: StateRow) -> None:
    turn = current_turn(workspace, _owner(row))
    if turn is not None and turn.id == row.id:
        return
    state = TurnState(row.state)
    hint = "it has ended" if state.is_final else "it goes on when its session has been opened"
    raise ConflictError(f"run {row.id} is {state.value}", hint=hint, run_id=row.id, state=state.value)


async def _check_unfinished(session: AsyncSession, run_id: str) -> None:
    await session.book.load()
    rounds = session.book.run(session.book.newest(run_id))
    if not rounds:
        hint = "it never came to its first checkpoint; retry its message"
        raise ConflictError(f"run {run_id} has no checkpoint", hint=hint, run_id=run_id)
    if rounds[-1].state is RoundState.FINAL:
        hint = f"its answer is that of run {rounds[-1].run_id}"
        raise ConflictError(f"run {run_id} has come to its answer", hint=hint, run_id=run_id)
