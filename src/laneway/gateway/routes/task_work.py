"""Where workers talk to the gateway: they claim tasks, begin them, show signs of life, and say what became of them.

Each step has a route of its own, for workers in any language. `POST /v1/tasks/frames` takes many steps at once, as the
frames of `laneway.transports.wire`: it is what `HttpTransport` uses, and as short a way as there is.

A claim waits until there is a task, and only as long as somebody waits for its answer: a client that goes away takes
nothing, and neither does one whose token was revoked meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, Final, NoReturn

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StringConstraints

from laneway.errors import ConflictError, TransportUnavailableError, UsageError
from laneway.external import ExternalTaskResult, Lease, Progress
from laneway.gateway.access import Caller, Scope
from laneway.gateway.deps import checked_caller, gateway_of
from laneway.gateway.lookup import find_task
from laneway.gateway.views import REASON_MAX, View, router_of
from laneway.kernel.task_board import LEASE_MAX_MS
from laneway.kernel.task_entries import HELD
from laneway.runtime.task_hall import CLAIM_MAX, NAME_MAX, NAMES_MAX, Guest
from laneway.transports.wire import Desk, answer, lease_frame

__all__ = ("router",)

router = router_of("tasks")

WAIT_MAX_MS: Final = 60_000
FRAMES_MAX: Final = 500
TOKEN_MAX: Final = 200
TEXT_MAX: Final = 10_000
GONE: Final = "whoever asked has gone away"

Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_MAX)]
Names = Annotated[list[Name], Field(max_length=NAMES_MAX)]
Fact = Annotated[str, StringConstraints(max_length=200)]
Proof = Annotated[str, StringConstraints(max_length=TOKEN_MAX)]


class About(BaseModel):
    """What a worker says of itself; it is shown in the list of workers."""

    model_config = ConfigDict(extra="forbid")

    instance: Fact = ""
    concurrency: StrictInt = Field(0, ge=0, le=1_000_000)
    version: Fact = ""
    host: Fact = ""
    pid: StrictInt = Field(0, ge=0, le=1 << 40)


class Claim(BaseModel):
    """A worker asks for tasks."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"worker": "w1", "lanes": ["execute"], "limit": 4, "wait_ms": 20_000}]},
    )

    v: StrictInt = Field(1, ge=1, le=1, description="The version of this contract.")
    worker: Name = Field(description="Its name, by which it is listed.")
    lanes: Names = Field(default_factory=list, description="Of these lanes only.")
    commands: Names = Field(default_factory=list, description="For these tools only.")
    labels: Names = Field(default_factory=list, description="What it has: a task goes to who has all that it needs.")
    workspaces: Names = Field(default_factory=list, description="Of these workspaces only.")
    limit: StrictInt = Field(1, ge=1, le=CLAIM_MAX, description="The most tasks to give it.")
    wait_ms: StrictInt = Field(0, ge=0, le=WAIT_MAX_MS, description="How long to wait for the first one.")
    lease_ms: StrictInt | None = Field(
        None, ge=1, le=LEASE_MAX_MS, description="How long it would like to be allowed to be silent."
    )
    about: About | None = None


class Start(BaseModel):
    """A worker wants to begin."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"token": "…"}]})

    token: Proof = Field(description="What came with the lease.")


class Sign(BaseModel):
    """How far a task is."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field("", max_length=TEXT_MAX)
    percent: StrictInt | StrictFloat | None = Field(None, ge=0, le=100)


class Heartbeat(Start):
    """A worker is alive, and perhaps further than before."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": "…", "progress": {"text": "12 of 40", "percent": 30}}]}
    )

    progress: Sign | None = None


class Ending(BaseModel):
    """Who ends a task: a worker has a token of its lease, an operator has none and may say why."""

    model_config = ConfigDict(extra="forbid")

    token: Proof | None = Field(None, description="What came with the lease; none: an operator says it.")
    reason: str = Field("", max_length=REASON_MAX, description="Why an operator says it; it is kept in the audit log.")


class Completion(Ending):
    """What came out of a task."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"token": "…", "result": {"output": "3 passed"}}]})

    result: Any = Field(None, description="Text, an object with `output` and perhaps `exit_code`, or any JSON.")


class Failure(Ending):
    """Why a task did not work."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"token": "…", "error": "no such file"}]})

    error: str = Field(min_length=1, description="What went wrong, for the model.")
    result: Any = Field(None, description="What there is all the same.")


class Return(Ending):
    """A worker gives a task back, or an operator takes it from its worker."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"token": "…", "reason": "shutting down"}]})

    begun: StrictBool = Field(
        default=False, description="It had begun: a `write` is unknown then, anything else goes to another worker."
    )


class LeaseView(View):
    """A task that was given to a worker."""

    task: dict[str, Any]
    token: str = Field(description="Proves that the task is this worker's; it goes with everything said of it.")
    lease_ms: int = Field(description="How long the worker may be silent.")


class Leases(View):
    """What a claim was given; nothing, if nothing came in time."""

    leases: list[LeaseView]


class Noted(View):
    """Yes."""


class Wanted(View):
    """Whether somebody still wants the task; else stop."""

    wanted: bool


class Accepted(View):
    """It counts, and is on disk."""

    accepted: bool


# ---- who asks ----


class _Visitor:
    """The hall as one request sees it: a desk whose claims end when nobody waits for their answer any more."""

    def __init__(self, request: Request, caller: Caller) -> None:
        self._gateway = gateway_of(request)
        self._caller = caller
        self._receive = request.receive
        is_bound = not caller.sees_all or bool(request.headers.get("laneway-tenant"))
        guest = Guest(caller.name, caller.tenant if is_bound else None)
        self._hall: Desk = self._gateway.hall.bound(guest)
        self.start, self.heartbeat = self._hall.start, self._hall.heartbeat
        self.complete, self.release = self._hall.complete, self._hall.release

    async def claim(self, worker: str, *, wait_ms: int = 0, **wanted: Any) -> list[Lease]:
        """Take tasks."""
        asked = self._hall.claim(worker, wait_ms=min(wait_ms, WAIT_MAX_MS), **wanted)
        leases, is_gone = (await asked, False) if wait_ms <= 0 else await _while_there(asked, self._receive)
        if not is_gone and self._gateway.tokens.counts(self._caller.token_id):
            return leases
        for lease in leases:
            await self._hall.release(lease.task["task_id"], lease.token, GONE)
        self._gateway.tokens.check(self._caller)  # it may have been revoked while it waited
        raise TransportUnavailableError(GONE)


async def _while_there(
    asked: Awaitable[list[Lease]], receive: Callable[[], Awaitable[MutableMapping[str, Any]]]
) -> tuple[list[Lease], bool]:
    """What a claim is given; and whether the client has gone away, which ends the wait."""
    asking, leaving = asyncio.ensure_future(asked), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result(), leaving.done()
        return [], True
    finally:
        for each in (asking, leaving):
            if not each.done():
                each.cancel()
        await asyncio.gather(asking, leaving, return_exceptions=True)  # what it got at the last moment goes back


async def _left(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# ---- many steps at once ----

FRAMES_BODY: Final = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["frames"],
                "properties": {
                    "frames": {
                        "type": "array",
                        "maxItems": FRAMES_MAX,
                        "items": {"type": "object"},
                        "description": "What `laneway.transports.wire` describes; a claim that waits goes alone.",
                    }
                },
            },
            "example": {"frames": [{"v": 1, "id": 7, "op": "start", "task_id": "…", "token": "…"}]},
        }
    },
}


class Answers(View):
    """The answers to some frames, in their order. A frame that was refused has an answer, too, with `ok` false."""

    answers: list[dict[str, Any]]


@router.post(
    "/tasks/frames",
    summary="Many steps of a worker at once",
    response_model=Answers,
    openapi_extra={"requestBody": FRAMES_BODY},
)
async def frames(request: Request) -> Response:
    """Answer frames. Each is answered by itself: what is wrong with one changes nothing for the others."""
    visitor = _Visitor(request, checked_caller(request, Scope.WORKER))
    asked = _frames(await request.body())
    if len(asked) == 1:
        return _json({"answers": [await answer(visitor, asked[0])]})
    _check_claims(asked)
    return _json({"answers": await asyncio.gather(*(answer(visitor, frame) for frame in asked))})


def _check_claims(frames: list[Any]) -> None:
    """Refuse many claims in one request, and one that waits beside others: their answers would wait with it."""
    claims = [each for each in frames if isinstance(each, dict) and each.get("op") == "claim"]
    if len(claims) > 1 or any(each.get("wait_ms", 0) != 0 for each in claims):
        raise UsageError("a claim that waits goes alone, and one request has one claim", hint="nothing has changed")


# ---- one step ----


@router.post("/tasks/claim", summary="Take tasks, or wait for one", response_model=Leases)
async def claim(body: Claim, request: Request) -> Response:
    """Give a worker tasks that it can do. Nothing may be begun before `start` was answered."""
    wanted = body.model_dump(exclude={"v", "worker"}, exclude_unset=True, exclude_none=True)
    leases = await _Visitor(request, checked_caller(request, Scope.WORKER)).claim(body.worker, **wanted)
    return _json({"leases": [lease_frame(lease) for lease in leases]})


@router.post("/tasks/{task_id}/start", summary="Begin a task")
async def start(task_id: str, body: Start, request: Request) -> Noted:
    """When this was answered, the worker may begin; 409: it must not. Saying it twice is saying it once."""
    await _Visitor(request, checked_caller(request, Scope.WORKER)).start(task_id, body.token)
    return Noted()


@router.post("/tasks/{task_id}/heartbeat", summary="Show a sign of life")
async def heartbeat(task_id: str, body: Heartbeat, request: Request) -> Wanted:
    """Keep a lease, and say how far the task is. `wanted` is false when nobody wants it any more: stop then."""
    visitor = _Visitor(request, checked_caller(request, Scope.WORKER))
    sign = body.progress
    if sign is None:
        return Wanted(wanted=await visitor.heartbeat(task_id, body.token))
    return Wanted(wanted=await visitor.heartbeat(task_id, body.token, Progress(sign.text, sign.percent)))


@router.post("/tasks/{task_id}/complete", summary="Say what came out of a task")
async def complete(task_id: str, body: Completion, request: Request) -> Accepted:
    """The result counts when this was answered; a second time is answered the same.

    Without `token` it is the word of an operator, who needs the scope `operate`; it is kept in the audit log.
    """
    result = ExternalTaskResult(result=body.result)
    if body.token is None:
        return await _end_by_operator(request, task_id, body.reason, result)
    visitor = _Visitor(request, checked_caller(request, Scope.WORKER))
    return Accepted(accepted=await visitor.complete(task_id, body.token, result))


@router.post("/tasks/{task_id}/fail", summary="Say that a task did not work")
async def fail(task_id: str, body: Failure, request: Request) -> Accepted:
    """The same as `complete` for a task that did not work; the model hears why."""
    result = ExternalTaskResult(success=False, error=body.error, result=body.result)
    if body.token is None:
        return await _end_by_operator(request, task_id, body.reason, result)
    visitor = _Visitor(request, checked_caller(request, Scope.WORKER))
    return Accepted(accepted=await visitor.complete(task_id, body.token, result))


@router.post("/tasks/{task_id}/release", summary="Give a task back")
async def release(task_id: str, body: Return, request: Request) -> Noted:
    """Give a task back, so that another worker gets it. A lease that is gone already is no error.

    Without `token` it is an operator who takes it from its worker, and needs the scope `operate`; it is kept in the
    audit log.
    """
    if body.token is None:
        return await _take_back(request, task_id, body)
    await _Visitor(request, checked_caller(request, Scope.WORKER)).release(
        task_id, body.token, body.reason, begun=body.begun
    )
    return Noted()


async def _end_by_operator(request: Request, task_id: str, reason: str, result: ExternalTaskResult) -> Accepted:
    """The word of an operator: written down before it counts."""
    gateway, caller = gateway_of(request), checked_caller(request, Scope.OPERATE)
    result.check()
    workspace, task = await find_task(gateway, caller, task_id)
    action = "task.complete" if result.success else "task.fail"
    await gateway.audit.record(caller, action, task_id, reason=reason, state=task.state, command=task.command_type)
    if not await workspace.host.desk.complete_by_host(task_id, result):
        raise ConflictError(
            f"task {task_id!r} has ended, and this does not change it",
            hint="GET /v1/tasks/{id} says what became of it",
            task_id=task_id,
        )
    return Accepted(accepted=True)


async def _take_back(request: Request, task_id: str, body: Return) -> Noted:
    gateway, caller = gateway_of(request), checked_caller(request, Scope.OPERATE)
    workspace, task = await find_task(gateway, caller, task_id)
    if task.state not in HELD:
        raise _has_nobody(task_id)
    facts = {"state": task.state, "command": task.command_type, "worker": task.worker}
    await gateway.audit.record(caller, "task.release", task_id, reason=body.reason, **facts)
    if not workspace.host.desk.take_back(task_id, body.reason or f"{caller.name} said so", begun=body.begun):
        raise _has_nobody(task_id)
    return Noted()


def _has_nobody(task_id: str) -> ConflictError:
    return ConflictError(
        f"nobody has task {task_id!r} now", hint="GET /v1/tasks/{id} says how it is with it", task_id=task_id
    )


# ---- reading and writing ----


def _frames(body: bytes) -> list[Any]:
    try:
        said: object = _read(body.decode())
    except (ValueError, RecursionError) as error:
        at = getattr(error, "pos", 0)
        why = getattr(error, "msg", str(error) or type(error).__name__)
        wrong = {"type": "json_invalid", "loc": ("body", at), "msg": "no JSON", "ctx": {"error": why}}
        raise RequestValidationError([wrong]) from None
    found = said.get("frames") if isinstance(said, dict) else None
    if not isinstance(found, list):
        raise _unfit("a list of frames is needed")
    if len(found) > FRAMES_MAX:
        raise _unfit(f"there are at most {FRAMES_MAX} frames in a request, not {len(found):,}")
    return found


def _unfit(why: str) -> RequestValidationError:
    return RequestValidationError([{"type": "frames", "loc": ("body", "frames"), "msg": why}])


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_read = json.JSONDecoder(parse_constant=_no_constant).decode
_write = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _json(body: object) -> Response:
    return Response(_write(body).encode(), media_type="application/json")
