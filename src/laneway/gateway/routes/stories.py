"""Stories: how a message or a run came to where it is, step by step, with the time that each thing took."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Path

from laneway.agent.replays import fork_of
from laneway.errors import NotFoundError
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.labels import labels_of
from laneway.gateway.lookup import current_turn, rest_of, run_now
from laneway.gateway.story_telling import (
    RoundsOfRun,
    approvals_told,
    children_told,
    message_waits,
    messages_told,
    parent_of,
    whole_round,
)
from laneway.gateway.story_views import MessageTale, RunTale, WholeRound
from laneway.gateway.views import ForkedFrom, MessageView, RunView, StepView, router_of
from laneway.gateway.workspaces import Workspace
from laneway.kernel import stories
from laneway.kernel.rounds import RoundState
from laneway.mail import WAITING_STATES, MessageState, Outcome, TurnState
from laneway.rows import EventRow, Owner, StateRow

__all__ = ("router",)

router = router_of("stories")

STEPS_MAX = 1_000


@router.get("/runs/{run_id}/story", summary="The whole story of a run")
async def of_run(run_id: str, gateway: GatewayOf, caller: CallerOf) -> RunTale:
    """Rounds with tokens and cost, calls with lanes and times, waits, approvals, sub-agents, the plan, and its end."""
    workspace, row = await gateway.find_run(caller, run_id)
    return await _run_tale(workspace, row)


@router.get("/runs/{run_id}/rounds/{number}", summary="One round of a run, whole")
async def of_round(
    run_id: str, number: Annotated[int, Path(ge=1, le=999_999)], gateway: GatewayOf, caller: CallerOf
) -> WholeRound:
    """What was said in a round and what its calls put out, as far as it is not far too long."""
    workspace, row = await gateway.find_run(caller, run_id)
    found = await whole_round(workspace, row, number)
    if found is None:
        raise NotFoundError(what="round", name=f"{run_id}/{number}", hint=f"GET /v1/runs/{run_id}/story lists them")
    return found


@router.get("/messages/{message_id}/story", summary="The whole story of a message")
async def of_message(message_id: str, gateway: GatewayOf, caller: CallerOf) -> MessageTale:
    """When it came, what it waited for, which runs it was in, and what became of it."""
    workspace, row = await gateway.find_message(caller, message_id)
    owner = Owner(row.tenant, row.workspace, row.session)
    history = workspace.inbox.engine.store.history
    story = await workspace.inbox.explain(message_id)
    events = await history.events(owner, message_id=message_id, limit=STEPS_MAX)
    state, final = story.final.disposition, story.final
    may_retry = state.is_final and final.outcome is not Outcome.SUCCEEDED and state is not MessageState.COMMAND
    return MessageTale(
        message=MessageView.of(row, final),
        now=final.reason if state in WAITING_STATES else run_now(workspace, owner, final.turn_id),
        is_over=state.is_final,
        can_retry=may_retry,
        can_withdraw=state in WAITING_STATES,
        waits=await message_waits(history, owner, row.arrived_ms, events),
        runs=list(dict.fromkeys(event.turn_id for event in events if event.turn_id)),
        steps=[StepView.of(step) for step in story.steps],
        text=story.text,
    )


async def _run_tale(workspace: Workspace, row: StateRow) -> RunTale:
    owner = Owner(row.tenant, row.workspace, row.session)
    history = workspace.inbox.engine.store.history
    events = await history.events(owner, turn_id=row.id, limit=STEPS_MAX)
    rounds = await RoundsOfRun.read(workspace, row)
    turn = current_turn(workspace, owner)
    state = turn.state.value if turn is not None and turn.id == row.id else ""
    run = RunView.of(row, state)
    is_over = TurnState(run.state).is_final
    usage, rests = rounds.usage, rest_of(workspace, row)
    facts: dict[str, Any] = {"messages": run.messages, "injected": run.steered}
    fork = await fork_of(history, owner, run.messages)
    facts["summarized"] = json.loads(row.body).get("summarized", [])
    if rounds.run is not None:
        facts["messages"] = [message.id for message in rounds.run.turn.messages]
    return RunTale(
        run=run,
        now="" if is_over else run_now(workspace, owner, row.id),
        rests=rests,
        is_over=is_over,
        can_resume=is_over and not rests and not rounds.resumed_by and not parent_of(row.session) and _is_cut(rounds),
        resumed_from=rounds.resumed_from or None,
        resumed_by=rounds.resumed_by or None,
        forked_from=None if fork is None else ForkedFrom(**fork),
        parent_session=parent_of(row.session),
        identity=await labels_of(workspace, owner),
        messages=await messages_told(history, facts, events),
        rounds=rounds.told(),
        rounds_before=rounds.before,
        approvals=await approvals_told(history, events, _open_approvals(workspace, owner, row.id)),
        children=await children_told(history, owner, events, rounds.rounds),
        plan=rounds.plan(),
        steps=_steps(events),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost=usage.cost,
    )


def _open_approvals(workspace: Workspace, owner: Owner, run_id: str) -> list[str]:
    """What the run that goes on waits for: after a restart it waits for what an earlier run has asked."""
    turn = current_turn(workspace, owner)
    if turn is None or turn.id != run_id:
        return []
    return [each.id for each in workspace.inbox.approvals(owner.session, tenant=owner.tenant)]


def _steps(events: list[EventRow]) -> list[StepView]:
    return [StepView.of(stories.step_of(event)) for event in events]


def _is_cut(rounds: RoundsOfRun) -> bool:
    """Whether it has a checkpoint, and never came to its answer."""
    return bool(rounds.rounds) and rounds.rounds[-1].state not in (RoundState.FINAL, RoundState.FORGOTTEN)
