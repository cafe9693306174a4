"""Histories of runs: as a file, step by step, held against today's code and against another run, gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from laneway.agent.forking import Fork, Wish, check_step, find_fork, fork_into, forks_among, past_of
from laneway.agent.identified import read_labels
from laneway.agent.replays import SessionCode, history_of, known_of
from laneway.agent.subagents import is_child_id, root_of
from laneway.dialogue import ResultStatus
from laneway.errors import ConflictError, NotFoundError, ReplayDivergedError, UnknownRunError
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.keys import IdempotencyKey
from laneway.gateway.labels import SCAN, SCANNED_MAX
from laneway.gateway.lookup import run_now
from laneway.gateway.routes.runs import state_now
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.views import Page, View, router_of, seq_of
from laneway.gateway.workspaces import Workspace
from laneway.kernel.fork_calls import Known, OpenCalls, kept_result
from laneway.kernel.histories import RunHistory, short_digest, write_history
from laneway.kernel.history_words import behind_hashes, shortened, tell_steps
from laneway.kernel.replaying import diff, play
from laneway.rows import Owner, StateRow

__all__ = ("router",)

router = router_of("runs")

KEY_MAX = 200
BODY_MAX = 2_000
SIDE_MAX = 4_000
STEP_MAX = 100_000_000
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


class OpenCall(View):
    """A call that had no result yet before a step, and what a fork from there does with it."""

    call_id: str
    tool: str
    has_begun: bool
    fork: Literal["made", "kept", "unknown"] = Field(
        description="It is made, for real; or it is not, and its result is the one that is known by now, or unknown."
    )


class HistoryStep(View):
    """A step of a history."""

    number: int = Field(description="From 1. A fork from it keeps everything before it.")
    op: str
    text: str = Field(description="What it is, in one line.")
    at_ms: int | None = Field(default=None, description="When it was; null: its kind of step has no time.")
    body: dict[str, Any] = Field(description="What is written in the history.")
    is_cut: bool = Field(default=False, description="The body is too long for a list: ask for this step alone.")
    open_calls: list[OpenCall] = Field(
        default_factory=list,
        description="Calls without a result before it, and what a fork from it does with them.",
    )


class WholeStep(HistoryStep):
    """A step of a run with everything that is written of it."""

    run_id: str


class StepsPage(Page[HistoryStep]):
    """Steps of a run, in order, and what they are the steps of."""

    run_id: str
    session_key: str
    workspace: str
    state: str
    recorded: bool = Field(description="Whether what its model was sent is known. If not, only its rounds are.")
    total: int = Field(description="How many steps there are.")


class Side(View):
    """One of two runs, where they part."""

    step: int = Field(description="The number after its last step: it has ended there.")
    text: str = Field(description="What that step is, in one line.")
    value: str = Field(description="What differs in it.")


class Compared(View):
    """Whether two runs are the same, step by step; if not, where they part."""

    run_id: str
    other_run_id: str
    same: bool
    where: str = ""
    this: Side | None = None
    other: Side | None = None
    fork_run_id: str | None = Field(default=None, description="The one that is the first run of a fork of the other.")
    fork_step: int | None = Field(default=None, description="Where the fork begins: only what follows is compared.")
    told: str = Field(default="", description="What the fork is told there, and its run was not.")


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
    if is_child_id(row.session) and (row.tenant, root_of(row.session)) in workspace.rest.resting:
        raise ConflictError(  # what a sub-agent is told today only the session knows that it works for
            f"session {row.session!r} is that of a sub-agent, and rests with the session that it works for",
            hint="ask again when a message has brought that back",
            run_id=run_id,
        )
    found = await _history(workspace, row)
    facts: dict[str, Any] = {"run_id": run_id, "recorded": found.is_recorded, "steps": len(found.steps)}
    async with workspace.looking(row.tenant, row.session) as session:
        code = SessionCode(session)
        try:
            await asyncio.to_thread(play, found, code)  # a long run takes a while, and others ask meanwhile
        except ReplayDivergedError as error:
            told = vars(error)
            known = behind_hashes(found, told["step"], code)
            then, now = (_shown(known.get(str(each), each)) for each in (told["recorded"], told["now"]))
            return Replayed(**facts, same=False, step=told["step"], where=told["where"], then=then, now=now)
    return Replayed(**facts, same=True)


@router.get("/runs/{run_id}/steps", summary="A run step by step")
async def steps(
    run_id: str,
    gateway: GatewayOf,
    caller: CallerOf,
    after: Annotated[str, Query(max_length=19, description="A step: only those behind it.")] = "",
    limit: Limit = 200,
) -> StepsPage:
    """What went into a run, in order, each step in words; long bodies are cut."""
    workspace, row = await gateway.find_run(caller, run_id)
    found = await _history(workspace, row)
    begin = min(seq_of(after), len(found.steps))
    items = _with_calls(_steps(found, begin, begin + limit), found, await _calls(workspace, row))
    end = begin + len(items)
    return StepsPage(
        items=items,
        next=str(end) if end < len(found.steps) else None,
        run_id=run_id,
        session_key=row.session,
        workspace=row.workspace,
        state=state_now(workspace, row) or row.state,
        recorded=found.is_recorded,
        total=len(found.steps),
    )


@router.get("/runs/{run_id}/steps/{number}", summary="One step of a run, whole")
async def step_of(
    run_id: str, number: Annotated[int, Path(ge=1, le=STEP_MAX)], gateway: GatewayOf, caller: CallerOf
) -> WholeStep:
    """A step with everything that is written of it."""
    workspace, row = await gateway.find_run(caller, run_id)
    found = await _history(workspace, row)
    if number > len(found.steps):
        hint = f"its steps are 1 to {len(found.steps)}"
        raise NotFoundError(what="step", name=f"{run_id}/{number}", hint=hint)
    (one,) = _with_calls(_steps(found, number - 1, number), found, await _calls(workspace, row))
    facts = {**one.model_dump(), "body": _body(found.steps[number - 1]), "is_cut": False}
    return WholeStep(**facts, run_id=run_id)


@router.get("/runs/{run_id}/diff", summary="Where two runs part")
async def compare(
    run_id: str,
    gateway: GatewayOf,
    caller: CallerOf,
    other: Annotated[str, Query(min_length=1, max_length=400, description="The other run.")],
) -> Compared:
    """The first step in which two runs differ. Times, ids and what watchers were told do not count.

    A run and the first run of its fork are compared from the step of the fork on.
    """
    one = await _history(*await gateway.find_run(caller, run_id))
    another = await _history(*await gateway.find_run(caller, other))
    found = diff(one, another)
    facts: dict[str, Any] = {"run_id": run_id, "other_run_id": other}
    if step := one.forked_at(another) or another.forked_at(one):
        facts |= {"fork_run_id": other if one.forked_at(another) else run_id, "fork_step": step}
    if found is None:
        return Compared(**facts, same=True)
    return Compared(
        **facts,
        same=False,
        told=_shown(found.told),
        where=found.where,
        this=_side(one, found.step, found.recorded),
        other=_side(another, found.other_step, found.now),
    )


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

    What has its result before the step is not done again. Calls that had not begun there are made; a write that had is
    not made again: it keeps the result that is known by now, or is `unknown`. It has the labels of its run's session.
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
    response.headers["Location"] = f"/v1/sessions/{quote(name, safe='')}"
    digest = short_digest(f"{run_id}/{body.model_dump_json()}")
    if key is not None and (known := await _known(workspace, workspace.owner(row.tenant, name), key, digest)):
        return known
    gateway.admission.check()
    wish = Wish(step=body.step, prompt=body.prompt, key=key or "", digest=digest)
    async with workspace.using(row.tenant, name) as session, session.forking:
        if key is not None and (known := await _known(workspace, session.owner, key, digest)):
            return known  # by the same request, while this one waited for it
        receipt = await fork_into(session, found, await _informed(workspace, row, wish))
    step = check_step(found, body.step)
    return Forked(session_key=name, from_run=run_id, step=step, message_id=receipt.message_id)


@router.get("/runs/{run_id}/forks", summary="The sessions that go on from a run")
async def forks(run_id: str, gateway: GatewayOf, caller: CallerOf) -> Page[Forked]:
    """The forks of a run, those first in which something happened last.

    Only sessions are looked at in which something has happened since it began, at most 20,000 of them.
    """
    workspace, row = await gateway.find_run(caller, run_id)
    recency, tenant = workspace.recency, caller.tenant
    await recency.load(tenant)
    later = islice(recency.newest_first(tenant, since=row.seq), SCANNED_MAX)
    owners = [workspace.owner(tenant, key) for key, _ in later]
    found: list[Fork] = []
    for at in range(0, len(owners), SCAN):
        found += await forks_among(workspace.inbox.engine.store.history, owners[at : at + SCAN])
    return Page(items=[_forked(each) for each in found if each.from_run == run_id])


def _forked(fork: Fork) -> Forked:
    told = Forked(session_key=fork.session_id, from_run=fork.from_run, step=fork.step)
    return told.model_copy(update={"message_id": fork.message_id or None})


async def _informed(workspace: Workspace, row: StateRow, wish: Wish) -> Wish:
    """A wish with what is known by now of the run."""
    owner, engine = Owner(row.tenant, row.workspace, row.session), workspace.inbox.engine
    return replace(wish, known=await _calls(workspace, row), labels=await read_labels(engine, owner))


def _name(workspace: Workspace, row: StateRow, key: str | None) -> str:
    """What a fork is called: with a key it is the same every time."""
    if key is None:
        return workspace.inbox.engine.ids.new_id("fork")
    return f"fork-{short_digest(f'{row.id}/{key}')}"


async def _known(workspace: Workspace, owner: Owner, key: str, digest: str) -> Forked | None:
    """The answer to the first of two requests with the same key; None: there was no other with it."""
    found = await find_fork(workspace.inbox.engine.store.history, owner)
    if found is None or found.key != key:
        return None
    if found.digest != digest:
        raise ConflictError(
            f"the Idempotency-Key {key!r} has made session {owner.session!r} already, by another request",
            hint="send the same request again, or another key",
            session_key=owner.session,
        )
    return _forked(found)


async def _history(workspace: Workspace, row: StateRow) -> RunHistory:
    owner = Owner(row.tenant, row.workspace, row.session)
    try:
        return await history_of(workspace.inbox.engine.store.history, owner, row.id)
    except UnknownRunError as error:
        waits = run_now(workspace, owner, row.id)
        if not waits:
            raise
        raise UnknownRunError(
            f"run {row.id} has not come to its first checkpoint yet. {waits}", hint=error.hint
        ) from error


def _body(step: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name not in ("op", "t")}


def _steps(history: RunHistory, begin: int, end: int) -> list[HistoryStep]:
    """Steps with their words; `begin` is the number of the step before the first."""
    found: list[HistoryStep] = []
    for at, (step, text) in enumerate(zip(history.steps[:end], tell_steps(history.steps[:end]), strict=True)):
        if at < begin:
            continue
        body, is_cut = shortened(_body(step), BODY_MAX)
        when = step.get("t")
        at_ms = when if type(when) is int else None
        found.append(HistoryStep(number=at + 1, op=step["op"], text=text, at_ms=at_ms, body=body, is_cut=is_cut))
    return found


async def _calls(workspace: Workspace, row: StateRow) -> Known:
    owner = Owner(row.tenant, row.workspace, row.session)
    return await known_of(workspace.inbox.engine.store.history, owner, row.id)


def _with_calls(steps: list[HistoryStep], history: RunHistory, known: Known) -> list[HistoryStep]:
    """Steps with what a fork from each does with the calls that were open there."""
    opened = OpenCalls(history.steps)
    for one in steps:
        for each in opened.at(one.number):
            result = kept_result(each, known)
            fork: Literal["made", "kept", "unknown"] = "made"
            if result is not None:
                fork = "unknown" if result.status is ResultStatus.UNKNOWN else "kept"
            has_begun = result is not None or bool(each.has_begun)
            told = OpenCall(call_id=each.call.id, tool=each.call.name, has_begun=has_begun, fork=fork)
            one.open_calls.append(told)
    return steps


def _side(history: RunHistory, step: int, value: Any) -> Side:
    told = _steps(history, step - 1, step)
    text = told[0].text if told else "It has ended"
    return Side(step=step, text=text, value=_shown(value))


def _shown(value: Any) -> str:
    """A value as a text that is not too long."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = "\n".join(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SIDE_MAX else f"{text[: SIDE_MAX - 1]}…"
