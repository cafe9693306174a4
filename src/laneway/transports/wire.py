"""What workers and hosts say to each other, as versioned JSON texts: one frame asks, one frame answers.

```text
{"v": 1, "id": 7, "op": "claim", "worker": "w1", "lanes": ["execute"], "limit": 4, "wait_ms": 20000, "commands": [],
 "labels": ["gpu"], "workspaces": [], "lease_ms": 60000, "about": {"concurrency": 4}}
{"v": 1, "id": 7, "ok": true, "leases": [{"task": {…}, "token": "…", "lease_ms": 30000}]}

{"v": 1, "id": 8, "op": "start", "task_id": "…", "token": "…"}
{"v": 1, "id": 9, "op": "heartbeat", "task_id": "…", "token": "…", "progress": {"text": "12 of 40", "percent": 30}}
{"v": 1, "id": 9, "ok": true, "wanted": true}
{"v": 1, "id": 10, "op": "complete", "task_id": "…", "token": "…", "result": {"success": true, "result": "…"}}
{"v": 1, "id": 10, "ok": true, "accepted": true}
{"v": 1, "id": 11, "op": "release", "task_id": "…", "token": "…", "reason": "…", "begun": false}

{"v": 1, "id": 8, "ok": false, "error": {"code": "lease_lost", "message": "…", "hint": "…", "facts": {"state": "…"}}}
```

The host never trusts a frame: one that makes no sense is answered with an error that names the field, and changes
nothing. An error of Laneway is the same class on the other side, by its `code`. Fields that a reader does not know are
passed over, so that a newer side may say more; what an older one could misunderstand gets a new `v`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar

from laneway.checked import refuse_unknown
from laneway.errors import (
    ConfigError,
    InternalError,
    LanewayError,
    TransportUnavailableError,
    UsageError,
    describe,
    text_of,
)
from laneway.external import ExternalTask, ExternalTaskResult, Lease, Progress
from laneway.records import Effect

__all__ = (
    "FRAME_MAX",
    "VERSION",
    "Desk",
    "FrameTransport",
    "answer",
    "check_desk",
    "error_classes",
    "error_of",
    "lease_frame",
    "serve",
)

VERSION: Final = 1
FRAME_MAX: Final = 64_000_000
TEXT_MAX: Final = 4_000

T = TypeVar("T")
Exchange = Callable[[str], Awaitable[str | dict[str, Any]]]
"""Carries a frame to the host and brings the answer back, as text or as the object that it is."""


class Desk(Protocol):
    """Who answers frames: the desk of a host, or anything else that speaks as a `Transport` does."""

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """Take tasks; `wanted` as in `Transport.claim`."""

    async def start(self, task_id: str, token: str) -> None:
        """Begin."""

    async def heartbeat(self, task_id: str, token: str, progress: Progress | None = None) -> bool:
        """Show a sign of life."""

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """Say what became of it."""

    async def release(self, task_id: str, token: str, reason: str = "", *, begun: bool = False) -> None:
        """Give it back."""


_DESK: Final = ("claim", "start", "heartbeat", "complete", "release")


def check_desk(desk: object, *, who: str, more: tuple[str, ...] = ()) -> None:
    """Refuse what is no desk; the likeliest mistake is an `await` that was forgotten."""
    # Of its class, too: a desk that is not open yet has no loop.
    if all(hasattr(desk, name) or hasattr(type(desk), name) for name in (*_DESK, *more)):
        return
    found = f"{desk!r:.80}"
    if inspect.iscoroutine(desk):
        desk.close()  # it is told here, and not again by Python
        found = "a coroutine that nobody has awaited"
    hint = "take `await session.desk()`, or `session.desk()` of a session without asyncio"
    raise ConfigError(f"{who} needs a desk, not {found}", setting="desk", value=desk, hint=hint)


class _FlawError(Exception):
    """What is wrong with a frame."""


# ---- reading ----


def _a(kind: type[T], value: object, field: str) -> T:
    """A value that has to be of that type; True is not a number."""
    if type(value) is not kind:
        raise _FlawError(f"{field} should be {_KINDS.get(kind, kind.__name__)}, not {_shown(value)}")
    return value


_KINDS: Final[dict[type, str]] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def _shown(value: object) -> str:
    if value is None:
        return "null or missing"
    return f"{_KINDS.get(type(value), type(value).__name__)} ({value!r:.60})"


def _texts(value: object, field: str) -> list[str]:
    return [_a(str, each, f"{field}[{place}]") for place, each in enumerate(_a(list, value, field))]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_read = json.JSONDecoder(parse_constant=_no_constant).decode


def _parsed(frame: object) -> dict[str, Any]:
    if isinstance(frame, dict):
        return _checked(frame)
    if isinstance(frame, bytes | bytearray):
        try:
            frame = frame.decode()
        except UnicodeDecodeError as error:
            raise _FlawError(f"a frame is UTF-8: {error.reason}") from None
    if not isinstance(frame, str):
        raise _FlawError(f"a frame is text, not {type(frame).__name__}")
    if len(frame) > FRAME_MAX:
        raise _FlawError(f"a frame has at most {FRAME_MAX:,} characters, not {len(frame):,}")
    try:
        body: object = _read(frame)
    except (ValueError, RecursionError) as error:
        raise _FlawError(f"a frame is JSON: {text_of(error)[:200]}") from None
    return _checked(body)


def _checked(body: object) -> dict[str, Any]:
    found = _a(dict, body, "the frame")
    version = _a(int, found.get("v"), "v")
    if version != VERSION:
        raise _FlawError(f"v is {version}, and this Laneway speaks {VERSION}")
    return found


def _result_of(value: object) -> ExternalTaskResult:
    body = _a(dict, value, "result")
    success = _a(bool, body.get("success"), "result.success")
    error = body.get("error")
    if error is not None:
        _a(str, error, "result.error")
    return ExternalTaskResult(success=success, result=body.get("result"), error=error)


_TASK: Final[dict[str, type]] = {
    "task_id": str,
    "session_id": str,
    "run_id": str,
    "lane": str,
    "command_type": str,
    "payload": dict,
    "timeout_ms": int,
    "remaining_ms": int,
    "attempt": int,
    "created_at": int,
    "workspace": str,
    "idempotency_key": str,
    "tenant_id": str,
    "effect": str,
    "state": str,
}

LABELS: Final = ("correlation_id", "principal", "agent_template_id")


def _lease_of(value: object, field: str) -> Lease:
    body = _a(dict, value, field)
    task = _a(dict, body.get("task"), f"{field}.task")
    for name, kind in _TASK.items():
        _a(kind, task.get(name), f"{field}.task.{name}")
    for label in LABELS:  # a host of an earlier version knows fewer
        if task.setdefault(label, None) is not None:
            _a(str, task[label], f"{field}.task.{label}")
    if task["effect"] not in list(Effect):
        raise _FlawError(f"{field}.task.effect should be one of {', '.join(Effect)}, not {task['effect']!r:.60}")
    lease_ms = _a(int, body.get("lease_ms"), f"{field}.lease_ms")
    if lease_ms < 1:
        raise _FlawError(f"{field}.lease_ms should be at least 1, not {lease_ms}")
    task["labels"] = _texts(task.get("labels", []), f"{field}.task.labels")
    task.setdefault("workspace_name", "")
    task.setdefault("progress", None)
    return Lease(task=_ticking(task), token=_a(str, body.get("token"), f"{field}.token"), lease_ms=lease_ms)


def _ticking(task: dict[str, Any]) -> ExternalTask:
    """A task whose time runs on this side, too."""
    clock = asyncio.get_running_loop().time
    end = clock() + task["remaining_ms"] / 1000
    return ExternalTask(task, remaining=lambda: round((end - clock()) * 1000))


# ---- writing ----


_write = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode  # in ASCII: nothing on the way can spoil it


def _said(number: int, **facts: Any) -> dict[str, Any]:
    return {"v": VERSION, "id": number, **facts}


def _frame(number: int, **facts: Any) -> str:
    return _write(_said(number, **facts))


_PLAIN: Final = (str, int, bool, type(None))


def _refusal(number: int, error: LanewayError) -> dict[str, Any]:
    facts = {
        name: text_of(value)[:TEXT_MAX] if isinstance(value, str) else value
        for name, value in vars(error).items()
        if name not in ("message", "hint") and isinstance(value, _PLAIN)
    }
    said = {
        "code": error.code,
        "message": text_of(error.message)[:TEXT_MAX],
        "hint": text_of(error.hint)[:TEXT_MAX],
        "facts": facts,
    }
    return _said(number, ok=False, error=said)


def error_classes() -> dict[str, type[LanewayError]]:
    """The errors that mean something on both sides, by their codes."""
    found: dict[str, type[LanewayError]] = {}
    waiting: list[type[LanewayError]] = [LanewayError]
    while waiting:
        each = waiting.pop()
        if each.__module__ == LanewayError.__module__:  # what others derive from them means nothing over there
            found.setdefault(each.code, each)
            waiting += each.__subclasses__()
    return found


def error_of(value: object) -> LanewayError:
    """The error that the other side has told of: `code`, `message`, and perhaps `hint` and `facts`."""
    body = _a(dict, value, "error")
    code = _a(str, body.get("code"), "error.code")
    message = _a(str, body.get("message"), "error.message")
    kind = error_classes().get(code, LanewayError)
    facts: dict[str, Any] = body["facts"] if isinstance(body.get("facts"), dict) else {}
    known = {
        name: fact
        for name, fact in facts.items()
        if name.isidentifier() and not hasattr(kind, name) and isinstance(fact, _PLAIN)
    }
    error = kind.__new__(kind, message)
    hint = body.get("hint")
    LanewayError.__init__(error, message, hint=hint if isinstance(hint, str) else "", **_without_own(known))
    return error


def _without_own(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if name not in ("self", "message", "hint")}


# ---- the side of the host ----


async def serve(desk: Desk, frame: str | bytes) -> str:
    """Answer one frame. Whatever goes wrong is an answer, too.

    Only being cancelled gets out of here, and a `ConfigError` if `desk` is no desk: a host that can answer nobody.
    """
    try:
        body = _parsed(frame)
    except _FlawError as flaw:
        return _write(_refusal(0, _no_sense(flaw)))
    return _write(await answer(desk, body))


async def answer(desk: Desk, body: object) -> dict[str, Any]:
    """The same for a frame that was read already: the answer as an object."""
    number = 0
    try:
        frame = _checked(body)
        number = _a(int, frame.get("id"), "id")
        return _said(number, ok=True, **await _obey(desk, frame))
    except _FlawError as flaw:
        return _refusal(number, _no_sense(flaw))
    except LanewayError as error:
        return _refusal(number, error)
    except Exception as error:  # noqa: BLE001 - one worker's question must not end the host
        check_desk(desk, who="serve")
        return _refusal(number, InternalError(f"the host failed: {describe(error)[:TEXT_MAX]}"))


def _no_sense(flaw: _FlawError) -> UsageError:
    return UsageError(f"this frame makes no sense: {flaw}", hint="nothing has changed")


async def _obey(desk: Desk, body: dict[str, Any]) -> dict[str, Any]:
    op = _a(str, body.get("op"), "op")
    if op == "claim":
        leases = await desk.claim(_a(str, body.get("worker"), "worker"), **_wanted(body))
        return {"leases": [lease_frame(lease) for lease in leases]}
    if op not in ("start", "heartbeat", "complete", "release"):
        raise _FlawError(f"op should be claim, start, heartbeat, complete or release, not {op!r:.60}")
    task_id = _a(str, body.get("task_id"), "task_id")
    token = _a(str, body.get("token"), "token")
    if op == "start":
        await desk.start(task_id, token)
        return {}
    if op == "heartbeat":
        progress = _progress_of(body.get("progress"))
        more = () if progress is None else (progress,)
        return {"wanted": await desk.heartbeat(task_id, token, *more)}
    if op == "complete":
        return {"accepted": await desk.complete(task_id, token, _result_of(body.get("result")))}
    begun = {"begun": True} if _a(bool, body.get("begun", False), "begun") else {}
    await desk.release(task_id, token, _a(str, body.get("reason", ""), "reason"), **begun)
    return {}


def lease_frame(lease: Lease) -> dict[str, Any]:
    """A lease as an object."""
    return {"task": lease.task, "token": lease.token, "lease_ms": lease.lease_ms}


_LISTS: Final = ("lanes", "commands", "labels", "workspaces")
_CLAIM: Final[dict[str, Callable[[Any, str], Any]]] = {
    "lanes": lambda value, field: _texts(value, field),
    "commands": lambda value, field: _texts(value, field),
    "labels": lambda value, field: _texts(value, field),
    "workspaces": lambda value, field: _texts(value, field),
    "limit": lambda value, field: _a(int, value, field),
    "wait_ms": lambda value, field: _a(int, value, field),
    "lease_ms": lambda value, field: _a(int, value, field),
    "about": lambda value, field: _a(dict, value, field),
}


def _wanted(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a claim asks for; what it does not say is left out, so that a desk of others need not know it."""
    return {field: read(body[field], field) for field, read in _CLAIM.items() if field in body}


def _progress_of(value: object) -> Progress | None:
    if value is None:
        return None
    body = _a(dict, value, "progress")
    percent = body.get("percent")
    if percent is not None and type(percent) not in (int, float):
        raise _FlawError(f"progress.percent should be a number, not {_shown(percent)}")
    return Progress(_a(str, body.get("text", ""), "progress.text"), percent)


# ---- the side of the worker ----


class FrameTransport:
    """A `Transport` over anything that can carry a text to the host and bring one back.

    When nobody answers, `exchange` raises `TransportUnavailableError`, `OSError` or `EOFError`. An answer that makes no
    sense is a `TransportUnavailableError`, too: whoever sent it is not the host, or not as it should be. `close` lets
    go of what `exchange` keeps open; it is called once.
    """

    def __init__(self, exchange: Exchange, *, close: Callable[[], Awaitable[object] | None] | None = None) -> None:
        if not callable(exchange):
            hint = "async def exchange(frame: str) -> str"
            said = f"exchange is a function that carries a frame to the host, not {exchange!r:.80}"
            raise ConfigError(said, setting="exchange", value=exchange, hint=hint)
        if close is not None and not callable(close):
            said = f"close is a function that hangs up, not {close!r:.80}"
            raise ConfigError(said, setting="close", value=close, hint="pass the function, and do not call it")
        self._exchange = exchange
        self._close = close
        self._number = 0
        self._closed = False
        self._asking: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()  # those of them that were cancelled by `close`

    async def claim(self, worker: str, *, limit: int = 1, wait_ms: int = 0, **wanted: Any) -> list[Lease]:
        """Take up to `limit` tasks; waits up to `wait_ms` for one. `wanted` as in `Transport.claim`."""
        refuse_unknown("claim", wanted, _CLAIM)
        named = {field: _listed(field, value) if field in _LISTS else value for field, value in wanted.items()}
        said = {field: value for field, value in named.items() if value is not None}
        answer = await self._ask("claim", worker=worker, limit=limit, wait_ms=wait_ms, **said)
        return self._read(lambda: [_lease_of(each, f"leases[{at}]") for at, each in enumerate(_leases(answer))])

    async def start(self, task_id: str, token: str) -> None:
        """Say that it begins."""
        await self._ask("start", task_id=task_id, token=token)

    async def heartbeat(self, task_id: str, token: str, progress: Progress | None = None) -> bool:
        """Show a sign of life; False: stop."""
        more = {} if progress is None else {"progress": {"text": progress.text, "percent": progress.percent}}
        answer = await self._ask("heartbeat", task_id=task_id, token=token, **more)
        return self._read(lambda: _a(bool, answer.get("wanted"), "wanted"))

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """Say what became of it."""
        found = result if isinstance(result, ExternalTaskResult) else ExternalTaskResult.of(result)
        said = {"success": found.success, "result": found.result, "error": found.error}
        answer = await self._ask("complete", task_id=task_id, token=token, result=said)
        return self._read(lambda: _a(bool, answer.get("accepted"), "accepted"))

    async def release(self, task_id: str, token: str, reason: str = "", *, begun: bool = False) -> None:
        """Give a task back."""
        more = {"begun": True} if begun else {}
        await self._ask("release", task_id=task_id, token=token, reason=text_of(reason)[:TEXT_MAX], **more)

    async def close(self) -> None:
        """Let go of the connection. Whoever waits for an answer is told; a claim that waits takes no task any more."""
        if self._closed:
            return
        self._closed = True
        here = asyncio.current_task()
        self._cut = {task for task in self._asking if task is not here}
        for task in self._cut:
            task.cancel()
        await asyncio.sleep(0)  # they may want to give up their questions while there is a connection
        if self._close is not None:
            hanging_up = self._close()
            if inspect.isawaitable(hanging_up):
                await hanging_up

    async def _ask(self, op: str, **facts: Any) -> dict[str, Any]:
        if self._closed:
            raise TransportUnavailableError("this transport is closed", hint="make a new one")
        self._number = number = self._number + 1
        try:
            frame = _frame(number, op=op, **facts)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{op} cannot be sent: {error}", hint="what is sent is JSON") from None
        answer = await self._carried(frame)
        body = self._read(lambda: _parsed(answer))
        if self._read(lambda: _a(bool, body.get("ok"), "ok")):
            if body.get("id") != number:
                raise TransportUnavailableError(f"the answer is to frame {body.get('id')!r:.40}, not to {number}")
            return body
        raise self._read(lambda: error_of(body.get("error")))

    async def _carried(self, frame: str) -> str | dict[str, Any]:
        """The answer to a frame; `close` ends the wait for it."""
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        self._asking.add(task)
        try:
            asking = self._exchange(frame)
            if not inspect.isawaitable(asking):
                said = f"exchange has to be async: it returned {type(asking).__name__}, which nobody can await"
                raise ConfigError(said, setting="exchange", hint="async def exchange(frame: str) -> str")
            return await asking
        except (OSError, EOFError) as error:
            raise TransportUnavailableError(f"nobody answers: {describe(error)}") from error
        except asyncio.CancelledError:
            if task in self._cut and task.cancelling() == cancels + 1:  # by `close`, and by nobody else
                raise TransportUnavailableError("this transport was closed meanwhile", hint="make a new one") from None
            raise
        finally:
            self._asking.discard(task)
            if task in self._cut:
                self._cut.discard(task)
                task.uncancel()

    @staticmethod
    def _read(read: Callable[[], T]) -> T:
        try:
            return read()
        except _FlawError as flaw:
            raise TransportUnavailableError(f"the answer of the host makes no sense: {flaw}") from None


def _leases(answer: Mapping[str, Any]) -> list[Any]:
    return _a(list, answer.get("leases"), "leases")


def _listed(setting: str, names: object) -> list[Any]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise UsageError(f"{setting} must be a list of names, not {names!r:.80}")
    return list(names)
