"""External tasks as records: what is asked for, one task with all that is known of it, and its row."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from laneway.external import ExternalTask, ExternalTaskResult, Progress, TaskState
from laneway.kernel.checkpoints import check_shape, read_body, refuse, to_json
from laneway.records import Effect
from laneway.rows import Owner, StateRow

__all__ = (
    "HELD",
    "LIVE",
    "SAID",
    "TASK",
    "Kind",
    "Taker",
    "TaskEnd",
    "TaskEntry",
    "TaskNews",
    "TaskOrder",
    "Wanted",
    "decode_task",
)

TASK: Final = "task"
VERSION: Final = 1

LIVE: Final = frozenset({TaskState.PENDING, TaskState.LEASED, TaskState.STARTED})
HELD: Final = frozenset({TaskState.LEASED, TaskState.STARTED})
SAID: Final = frozenset({TaskState.COMPLETED, TaskState.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    """What somebody else is to do. `key` is the same at every attempt; `payload` is JSON."""

    owner: Owner
    task_id: str
    lane: str
    command_type: str
    payload: dict[str, Any]
    timeout_ms: int
    lease_ms: int
    effect: Effect
    run_id: str = ""
    key: str = ""
    workspace: str = ""
    correlation_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    call_id: str = ""
    labels: tuple[str, ...] = ()
    sticky: str = ""  # tasks of one key would like to go to one worker
    sticky_ms: int = 0


class Taker(NamedTuple):
    """Who takes a task. `lease_ms` is how long it would like to be allowed to be silent."""

    worker: str
    lease_ms: int | None = None
    holder: object = None  # whoever gives out tasks knows who that is


class Wanted(NamedTuple):
    """What a worker asks for. No lanes, no commands: all of them. `tenant` None: tasks of every tenant."""

    lanes: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    tenant: str | None = None

    def allows(self, entry: TaskEntry, worker: str) -> bool:
        """Whether a task that waits is one of those."""
        return (self.tenant is None or self.tenant == entry.owner.tenant) and self.fits(entry.kind, worker)

    def fits(self, kind: Kind, worker: str) -> bool:
        """Whether tasks of a kind are."""
        return (
            (not kind.held_for or kind.held_for == worker)
            and (not self.lanes or kind.lane in self.lanes)
            and (not self.commands or kind.command in self.commands)
            and self.labels.issuperset(kind.labels)
        )


class Kind(NamedTuple):
    """What the tasks of one line have in common."""

    lane: str
    command: str
    labels: tuple[str, ...]
    held_for: str  # the worker that may have them now; empty for everybody


class TaskEnd(NamedTuple):
    """How a task has ended. `had_started`: somebody had been told to begin, or had been given it by polling."""

    state: TaskState
    result: ExternalTaskResult | None
    reason: str
    worker: str
    had_started: bool
    attempt: int
    duration_ms: int


@dataclass(slots=True, kw_only=True, eq=False)
class TaskEntry:
    """One task; only the board changes it. `payload` is JSON text, so that nobody can change it from outside."""

    owner: Owner
    task_id: str
    lane: str
    command_type: str
    payload: str
    timeout_ms: int
    lease_ms: int
    effect: Effect
    run_id: str = ""
    key: str = ""
    workspace: str = ""
    correlation_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    call_id: str = ""
    labels: tuple[str, ...] = ()
    sticky: str = ""
    sticky_ms: int = 0
    seq: int = 0
    created_ms: int = 0  # wall
    state: TaskState = TaskState.PENDING
    attempt: int = 1
    token: str = ""  # of the newest lease
    worker: str = ""  # who has, or had, that lease
    confirmed: bool = False  # the holder was told that it may begin
    handed_out: bool = False  # the host has seen it by polling
    result: ExternalTaskResult | None = None
    reason: str = ""
    ended_ms: int = 0  # wall
    is_slim: bool = False  # it has ended and has a result, which is in the store only
    published: bool = False
    timeout_due: int = 0  # monotonic
    lease_due: int = 0  # monotonic
    granted_ms: int = 0  # how long the holder may be silent, if it has asked for something else than `lease_ms`
    held_for: str = ""  # the worker that it waits for
    held_due: int = 0  # monotonic: until then
    place: int = 0  # in its line; 0 if it is in none
    progress: Progress | None = None
    progress_due: int = 0  # monotonic: when the next one may be told
    holder: object = field(default=None, repr=False)  # whoever has, or had, the lease: the desk knows who that is
    lease_number: int = field(default=0, repr=False)  # how often it was leased or given back: old timers are stale

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVE

    @property
    def kind(self) -> Kind:
        """Which line it waits in."""
        return Kind(self.lane, self.command_type, self.labels, self.held_for)

    @property
    def silence_ms(self) -> int:
        """How long its holder may be silent; who has not begun may not wish for more than others have."""
        if not self.granted_ms:
            return self.lease_ms
        return self.granted_ms if self.confirmed else min(self.granted_ms, self.lease_ms)

    @property
    def had_started(self) -> bool:
        """Whether somebody may have begun with it."""
        return self.confirmed or self.handed_out

    @property
    def is_settleable(self) -> bool:
        """Whether a late result of the last worker still counts: nobody else got it, and nobody knows its effect."""
        return self.state is TaskState.UNKNOWN or (
            self.state is TaskState.TIMED_OUT and self.effect is Effect.WRITE and self.confirmed and not self.has_result
        )

    @property
    def has_result(self) -> bool:
        """Whether somebody has said what became of it."""
        return self.result is not None or self.is_slim

    @property
    def end(self) -> TaskEnd:
        """How it has ended."""
        assert not self.is_live
        took = max(0, self.ended_ms - self.created_ms)
        return TaskEnd(self.state, self.result, self.reason, self.worker, self.had_started, self.attempt, took)

    def view(self, remaining_ms: int, *, remaining: Callable[[], int] | None = None) -> ExternalTask:
        """The task as a worker and the host get to see it."""
        return ExternalTask(
            {
                "task_id": self.task_id,
                "session_id": self.owner.session,
                "run_id": self.run_id,
                "lane": self.lane,
                "command_type": self.command_type,
                "payload": json.loads(self.payload),
                "timeout_ms": self.timeout_ms,
                "remaining_ms": max(0, remaining_ms),
                "attempt": self.attempt,
                "created_at": self.created_ms,
                "workspace": self.workspace,
                "idempotency_key": self.key,
                "tenant_id": self.owner.tenant,
                "correlation_id": self.correlation_id,
                "principal": self.principal,
                "agent_template_id": self.agent_template_id,
                "effect": self.effect.value,
                "state": self.state.value,
                "worker": self.worker if self.state in HELD else "",
                "workspace_name": self.owner.workspace,
                "labels": list(self.labels),
                "progress": None if self.progress is None else self._progress,
            },
            remaining=remaining,
        )

    @property
    def _progress(self) -> dict[str, Any]:
        assert self.progress is not None
        return {"text": self.progress.text, "percent": self.progress.percent}

    def remaining_ms(self, now: int) -> int:
        """How much of its time is left."""
        return max(0, self.timeout_due - now) if self.published else self.timeout_ms

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return (TASK, self.task_id)

    def to_row(self) -> StateRow:
        """Everything about it that a restart has to know: a lease that nobody has begun under is not part of that."""
        assert not self.is_slim  # the store has more
        state = TaskState.PENDING if self.state is TaskState.LEASED else self.state
        live = self.is_live
        body: dict[str, Any] = {
            "v": VERSION,
            "lane": self.lane,
            "command": self.command_type,
            "timeout_ms": self.timeout_ms,
            "lease_ms": self.lease_ms,
            "effect": self.effect.value,
            "attempt": self.attempt,
            "created_ms": self.created_ms,
        }
        if live:
            body["payload"] = self.payload
        for name in _MORE:
            value = getattr(self, name)
            if value:
                body[name] = value
        if self.labels:
            body["labels"] = list(self.labels)
        if state is not TaskState.PENDING:
            body |= {"token": self.token, "worker": self.worker, "begun": self.confirmed, "shown": self.handed_out}
        elif self.handed_out:
            body["shown"] = True
        if self.result is not None:
            body["result"] = [self.result.success, self.result.result, self.result.error]
        return StateRow(TASK, self.task_id, *self.owner, self.seq, int(live), state.value, to_json(body))


class TaskNews(NamedTuple):
    """Something has happened to a task.

    `pending`, `started`, `progress`, `requeued`, `ended`, `settled`, `refused`; `open`: it waits for everybody now.
    """

    kind: str
    entry: TaskEntry
    note: str = ""
    lost: bool = False  # its worker was silent for too long
    had_begun: bool = False  # that worker had


# ---- reading ----

_MORE: Final = (
    "run_id", "key", "workspace", "correlation_id", "call_id", "reason", "ended_ms", "sticky", "sticky_ms",
    "granted_ms", "principal", "agent_template_id",
)  # fmt: skip
_STATES: Final = {state.value: state for state in TaskState if state is not TaskState.LEASED}
_EFFECTS: Final = {effect.value: effect for effect in Effect}
_SHAPE: Final[dict[str, type]] = {
    "lane": str,
    "command": str,
    "timeout_ms": int,
    "lease_ms": int,
    "effect": str,
    "attempt": int,
    "created_ms": int,
}
_MAYBE: Final[dict[str, type]] = {
    "payload": str,
    "run_id": str,
    "key": str,
    "workspace": str,
    "correlation_id": str,
    "principal": str,
    "agent_template_id": str,
    "call_id": str,
    "reason": str,
    "ended_ms": int,
    "token": str,
    "worker": str,
    "begun": bool,
    "shown": bool,
    "result": list,
    "labels": list,
    "sticky": str,
    "sticky_ms": int,
    "granted_ms": int,
}


def decode_task(row: StateRow) -> TaskEntry:
    """The task that a row was made of; refuses a damaged one with `StoreCorruptError`."""
    body = read_body(row, TASK, VERSION)
    check_shape(row, body, _SHAPE, _MAYBE)
    state, effect = _STATES.get(row.state), _EFFECTS.get(body["effect"])
    if state is None:
        refuse(row, f"a stored task cannot be {row.state!r}")
    if effect is None:
        refuse(row, f"there is no effect {body['effect']!r}")
    if bool(row.live) is not (state in LIVE):
        refuse(row, f"it is {row.state} and {'live' if row.live else 'not live'}")
    if body["timeout_ms"] < 1 or body["lease_ms"] < 1 or body["attempt"] < 1:
        refuse(row, "a time or an attempt is less than 1")
    if row.live and not _is_mapping(body.get("payload", "")):
        refuse(row, "its payload is no JSON object")
    if state is TaskState.STARTED and not body.get("token"):
        refuse(row, "it has started, and nobody has its lease")
    if not all(type(label) is str for label in body.get("labels", ())):
        refuse(row, "its labels should be words")
    return TaskEntry(
        owner=Owner(row.tenant, row.workspace, row.session),
        task_id=row.id,
        lane=body["lane"],
        command_type=body["command"],
        payload=body.get("payload", "{}"),
        timeout_ms=body["timeout_ms"],
        lease_ms=body["lease_ms"],
        effect=effect,
        run_id=body.get("run_id", ""),
        key=body.get("key", ""),
        workspace=body.get("workspace", ""),
        correlation_id=body.get("correlation_id"),
        principal=body.get("principal"),
        agent_template_id=body.get("agent_template_id"),
        call_id=body.get("call_id", ""),
        labels=tuple(body.get("labels", ())),
        sticky=body.get("sticky", ""),
        sticky_ms=body.get("sticky_ms", 0),
        granted_ms=body.get("granted_ms", 0),
        seq=row.seq,
        created_ms=body["created_ms"],
        state=state,
        attempt=body["attempt"],
        token=body.get("token", ""),
        worker=body.get("worker", ""),
        # Whoever is on disk as having started may have been told so, whatever became of the answer.
        confirmed=body.get("begun", False) or state is TaskState.STARTED,
        handed_out=body.get("shown", False),
        result=_result_in(row, body.get("result")),
        reason=body.get("reason", ""),
        ended_ms=body.get("ended_ms", 0),
    )


def _is_mapping(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _result_in(row: StateRow, value: list[Any] | None) -> ExternalTaskResult | None:
    if value is None:
        if row.state in SAID:
            refuse(row, f"it has {row.state}, and has no result")
        return None
    if len(value) != 3 or type(value[0]) is not bool or not (value[2] is None or type(value[2]) is str):
        refuse(row, "its result should be success, result and error")
    return ExternalTaskResult(success=value[0], result=value[1], error=value[2])
