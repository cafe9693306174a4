"""The board of external tasks: who may work on what, until when, and what became of it.

```text
            claim            start               complete
 pending ─────────▶ leased ─────────▶ started ─────────────▶ completed | failed
    ▲                  │                 │
    ├── lease ended ───┘                 │
    └── lease ended: read, idempotent ◀──┤
                                         └── lease ended: write ──▶ unknown ── late result ──▶ completed | failed
```

The board is the only one to change an entry, by `TASK_TRANSITIONS`. It reads no clock and waits for nothing: whoever
owns it says what time it is, calls `tick` when `next_due` has come (and before every other call, so that a lease never
outlives its end), writes down what has changed and tells those who wait.

A lease is a token. Only the holder of the newest token may start, show signs of life and complete. A worker that was
told that it may begin is `confirmed`: from then on nobody else begins a `write`. Until then, a lease that ends gives
the task back, whatever its effect, because whoever was not told to begin has not begun.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

from laneway.errors import ConflictError, LeaseLostError
from laneway.external import ExternalTask, ExternalTaskResult, TaskState
from laneway.kernel.checkpoints import check_shape, read_body, refuse, to_json
from laneway.records import Effect
from laneway.rows import Owner, StateRow

__all__ = (
    "ATTEMPTS_MAX",
    "BIG",
    "HOST",
    "TASK",
    "TASK_TRANSITIONS",
    "TaskBoard",
    "TaskChange",
    "TaskEnd",
    "TaskEntry",
    "TaskNews",
    "TaskOrder",
    "decode_task",
)

TASK: Final = "task"
VERSION: Final = 1
ATTEMPTS_MAX: Final = 5
FINISHED_MAX: Final = 10_000
STALE_MAX: Final = 1_000
REASON_MAX: Final = 2_000
BIG: Final = 10_000
"""A result with more characters than this is in the store only, once it is there."""
HOST: Final = "host"
"""What the code of the host is called when it completes a task itself."""


class TaskChange(StrEnum):
    """What can happen to a task."""

    CLAIM = "claim"
    START = "start"
    GIVE_BACK = "give_back"
    SUCCEED = "succeed"
    FAIL = "fail"
    EXPIRE = "expire"
    WITHDRAW = "withdraw"
    LOSE = "lose"


_S = TaskState
_C = TaskChange

TASK_TRANSITIONS: Final[dict[tuple[TaskState, TaskChange], TaskState]] = {
    (_S.PENDING, _C.CLAIM): _S.LEASED,
    (_S.PENDING, _C.SUCCEED): _S.COMPLETED,  # by the host, which needs no lease
    (_S.PENDING, _C.FAIL): _S.FAILED,
    (_S.PENDING, _C.EXPIRE): _S.TIMED_OUT,
    (_S.PENDING, _C.WITHDRAW): _S.WITHDRAWN,
    (_S.PENDING, _C.LOSE): _S.UNKNOWN,  # the host was given it, and may have begun
    (_S.LEASED, _C.START): _S.STARTED,
    (_S.LEASED, _C.GIVE_BACK): _S.PENDING,
    (_S.LEASED, _C.SUCCEED): _S.COMPLETED,
    (_S.LEASED, _C.FAIL): _S.FAILED,
    (_S.LEASED, _C.EXPIRE): _S.TIMED_OUT,
    (_S.LEASED, _C.WITHDRAW): _S.WITHDRAWN,
    (_S.LEASED, _C.LOSE): _S.UNKNOWN,
    (_S.STARTED, _C.START): _S.STARTED,  # saying it twice is once
    (_S.STARTED, _C.GIVE_BACK): _S.PENDING,
    (_S.STARTED, _C.SUCCEED): _S.COMPLETED,
    (_S.STARTED, _C.FAIL): _S.FAILED,
    (_S.STARTED, _C.EXPIRE): _S.TIMED_OUT,
    (_S.STARTED, _C.WITHDRAW): _S.WITHDRAWN,
    (_S.STARTED, _C.LOSE): _S.UNKNOWN,
    # A late result settles what nobody knew. What has timed out stays so, and keeps the result.
    (_S.UNKNOWN, _C.SUCCEED): _S.COMPLETED,
    (_S.UNKNOWN, _C.FAIL): _S.FAILED,
    (_S.TIMED_OUT, _C.SUCCEED): _S.TIMED_OUT,
    (_S.TIMED_OUT, _C.FAIL): _S.TIMED_OUT,
}
"""What is not listed is refused: an end never changes."""

_LIVE: Final = frozenset({TaskState.PENDING, TaskState.LEASED, TaskState.STARTED})
_HELD: Final = frozenset({TaskState.LEASED, TaskState.STARTED})
_ENDED_WELL_OR_NOT: Final = frozenset({TaskState.COMPLETED, TaskState.FAILED})


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
    call_id: str = ""


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
    call_id: str = ""
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
    lease_number: int = field(default=0, repr=False)  # how often it was leased or given back: old timers are stale

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.state in _LIVE

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
                "effect": self.effect.value,
                "state": self.state.value,
                "worker": self.worker if self.state in _HELD else "",
            },
            remaining=remaining,
        )

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
        for name in ("run_id", "key", "workspace", "correlation_id", "call_id", "reason", "ended_ms"):
            value = getattr(self, name)
            if value:
                body[name] = value
        if state is not TaskState.PENDING:
            body |= {"token": self.token, "worker": self.worker, "begun": self.confirmed, "shown": self.handed_out}
        elif self.handed_out:
            body["shown"] = True
        if self.result is not None:
            body["result"] = [self.result.success, self.result.result, self.result.error]
        return StateRow(TASK, self.task_id, *self.owner, self.seq, int(live), state.value, to_json(body))


class TaskNews(NamedTuple):
    """Something has happened to a task: `pending`, `started`, `requeued`, `ended`, `settled` or `refused`."""

    kind: str
    entry: TaskEntry
    note: str = ""


# ---- reading ----

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
    "call_id": str,
    "reason": str,
    "ended_ms": int,
    "token": str,
    "worker": str,
    "begun": bool,
    "shown": bool,
    "result": list,
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
    if bool(row.live) is not (state in _LIVE):
        refuse(row, f"it is {row.state} and {'live' if row.live else 'not live'}")
    if body["timeout_ms"] < 1 or body["lease_ms"] < 1 or body["attempt"] < 1:
        refuse(row, "a time or an attempt is less than 1")
    if row.live and not _is_mapping(body.get("payload", "")):
        refuse(row, "its payload is no JSON object")
    if state is TaskState.STARTED and not body.get("token"):
        refuse(row, "it has started, and nobody has its lease")
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
        call_id=body.get("call_id", ""),
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
        if row.state in _ENDED_WELL_OR_NOT:
            refuse(row, f"it has {row.state}, and has no result")
        return None
    if len(value) != 3 or type(value[0]) is not bool or not (value[2] is None or type(value[2]) is str):
        refuse(row, "its result should be success, result and error")
    return ExternalTaskResult(success=value[0], result=value[1], error=value[2])


# ---- the board ----


class TaskBoard:
    """All tasks that have not ended, and the newest that have. `now` is monotonic, `wall` is for stamps."""

    def __init__(self) -> None:
        self.live: dict[str, TaskEntry] = {}
        self.finished: OrderedDict[str, TaskEntry] = OrderedDict()  # so that whoever is late gets the right answer
        self.by_owner: dict[Owner, dict[str, TaskEntry]] = {}  # the live ones
        self._queues: dict[tuple[str, str], list[tuple[int, int, TaskEntry]]] = {}  # by lane and command: heaps by seq
        self._timers: list[tuple[int, int, TaskEntry, int]] = []  # lease number -1: the timeout of the task
        self._number = 0  # keeps entries from being compared
        self._timers_max = STALE_MAX

    def get(self, task_id: str) -> TaskEntry | None:
        """A task that is live or has ended lately; of a big end (`is_slim`) only the store has the result."""
        return self.live.get(task_id) or self.finished.get(task_id)

    # ---- coming and going ----

    def offer(self, order: TaskOrder, *, seq: int, wall: int) -> TaskEntry:
        """A new task, which nobody sees before `publish`; the live one if there is one of this id already."""
        before = self.get(order.task_id)
        if before is not None and before.is_live:
            return before
        # The host may complete what it was only told of, so whoever has a result has begun.
        if before is not None and before.effect is Effect.WRITE and (before.had_started or before.has_result):
            raise ConflictError(
                f"task {order.task_id!r} has been begun and is {before.state}: a write is never made twice",
                hint="look at what became of it",
                task_id=order.task_id,
                state=before.state.value,
            )
        entry = TaskEntry(
            owner=order.owner,
            task_id=order.task_id,
            lane=order.lane,
            command_type=order.command_type,
            payload=to_json(order.payload),
            timeout_ms=order.timeout_ms,
            lease_ms=order.lease_ms,
            effect=order.effect,
            run_id=order.run_id,
            key=order.key,
            workspace=order.workspace,
            correlation_id=order.correlation_id,
            call_id=order.call_id,
            seq=seq,
            created_ms=wall,
            attempt=before.attempt + 1 if before is not None else 1,
        )
        self._admit(entry)
        return entry

    def publish(self, task_id: str, *, now: int) -> TaskEntry | None:
        """Let somebody take it; None if it is not there any more, or was published before."""
        entry = self.live.get(task_id)
        if entry is None or entry.published:
            return None
        self._publish(entry, now)
        return entry

    def load(self, entry: TaskEntry, *, now: int) -> None:
        """Take over a live task of an earlier process. What has begun goes on, with its time and its lease anew.

        What has not begun waits for `publish`: whoever wanted it may not want it any more.
        """
        assert entry.is_live
        self._admit(entry)
        if entry.state is TaskState.STARTED:
            self._publish(entry, now)

    def drop(self, owner: Owner) -> list[TaskEntry]:
        """Forget the live tasks of a session; the store keeps them."""
        dropped = self.by_owner.pop(owner, {})
        for entry in dropped.values():
            del self.live[entry.task_id]
            entry.lease_number += 1
            entry.published = False  # its places in queues and timers are stale now
        return list(dropped.values())

    def _admit(self, entry: TaskEntry) -> None:
        self.finished.pop(entry.task_id, None)
        self.live[entry.task_id] = entry
        self.by_owner.setdefault(entry.owner, {})[entry.task_id] = entry

    def _publish(self, entry: TaskEntry, now: int) -> None:
        entry.published = True
        entry.timeout_due = now + entry.timeout_ms
        self._set_timer(entry.timeout_due, entry, -1)
        if entry.state is TaskState.PENDING:
            self._queue(entry)
        else:
            self._renew(entry, now)

    # ---- claiming ----

    def claim(
        self, worker: str, lanes: Collection[str], commands: Collection[str], *, now: int, token: Callable[[], str]
    ) -> TaskEntry | None:
        """Lease the oldest task of some lanes and commands (all if none is named) to a worker."""
        oldest: TaskEntry | None = None
        for lane, command in list(self._queues):
            if (not lanes or lane in lanes) and (not commands or command in commands):
                head = self._head(lane, command)
                if head is not None and (oldest is None or head.seq < oldest.seq):
                    oldest = head
        if oldest is not None:
            heappop(self._queues[oldest.lane, oldest.command_type])
            self._lease(oldest, worker, token(), now)
        return oldest

    def _head(self, lane: str, command: str) -> TaskEntry | None:
        queue = self._queues[lane, command]
        while queue:
            entry = queue[0][2]
            if entry.state is TaskState.PENDING and entry.published:
                return entry
            heappop(queue)
        del self._queues[lane, command]
        return None

    def _queue(self, entry: TaskEntry) -> None:
        queue = self._queues.setdefault((entry.lane, entry.command_type), [])
        if len(queue) > STALE_MAX + 2 * len(self.live):  # a host that polls completes what nobody ever claims
            queue[:] = [item for item in queue if item[2].state is TaskState.PENDING and item[2].published]
            heapify(queue)
        self._number += 1
        heappush(queue, (entry.seq, self._number, entry))

    def _lease(self, entry: TaskEntry, worker: str, token: str, now: int) -> None:
        self._change(entry, TaskChange.CLAIM)
        entry.worker, entry.token, entry.confirmed = worker, token, False
        self._renew(entry, now)

    def _renew(self, entry: TaskEntry, now: int) -> None:
        entry.lease_number += 1
        entry.lease_due = now + entry.lease_ms
        self._set_timer(entry.lease_due, entry, entry.lease_number)

    # ---- what a worker says ----

    def start(self, entry: TaskEntry, token: str, *, now: int) -> None:
        """A worker wants to begin. It may when `confirm` says so: before that, the start of a write is on disk."""
        self._check_lease(entry, token)
        self._change(entry, TaskChange.START)
        entry.lease_due = now + entry.lease_ms

    def confirm(self, entry: TaskEntry, token: str, *, now: int) -> bool:
        """What `start` has changed is on disk: from now on the worker may begin. True the first time."""
        self._check_lease(entry, token)
        if entry.state is not TaskState.STARTED:
            raise _lost(entry)
        first, entry.confirmed = not entry.confirmed, True
        entry.lease_due = now + entry.lease_ms
        return first

    def heartbeat(self, entry: TaskEntry, token: str, *, now: int) -> bool:
        """A sign of life. False: stop, nobody wants it any more.

        A worker whose write is `unknown` because it was silent is told to go on: its result settles that.
        """
        if not token or token != entry.token:
            raise _lost(entry)
        if entry.state in _HELD:
            entry.lease_due = now + entry.lease_ms
            return True
        if entry.state is TaskState.PENDING:
            raise _lost(entry)
        return entry.state is TaskState.UNKNOWN and not entry.reason.startswith(_UNWANTED)

    def complete(self, entry: TaskEntry, token: str, result: ExternalTaskResult, *, wall: int) -> bool:
        """A worker says what became of it. True: it counts; False: it was said before, and counted then."""
        if not token or token != entry.token:
            raise _lost(entry)
        if entry.state in _ENDED_WELL_OR_NOT or (entry.state is TaskState.TIMED_OUT and entry.has_result):
            return False
        if entry.state not in _HELD and not entry.is_settleable:
            raise _lost(entry)
        self._finish(entry, result, wall)
        return True

    def release(self, entry: TaskEntry, token: str) -> bool:
        """A worker gives back what it has not begun; False if there is nothing to give back."""
        if not token or token != entry.token or entry.state not in _HELD:
            return False
        if entry.confirmed:
            raise ConflictError(
                f"task {entry.task_id!r} has started", hint="complete it", task_id=entry.task_id, state="started"
            )
        self._give_back(entry)
        return True

    def _check_lease(self, entry: TaskEntry, token: str) -> None:
        if not token or token != entry.token or entry.state not in _HELD:
            raise _lost(entry)

    # ---- what the host says ----

    def complete_by_host(self, entry: TaskEntry, result: ExternalTaskResult, *, wall: int) -> bool | None:
        """The code of the host says what became of a task. None: it said so before; False: it cannot count."""
        if entry.state in _ENDED_WELL_OR_NOT:
            return None if entry.worker == HOST and not entry.token else False
        if not entry.is_live and entry.state is not TaskState.UNKNOWN:
            return False
        entry.token, entry.worker = "", HOST  # whoever has a lease has lost it
        self._finish(entry, result, wall)
        return True

    def withdraw(self, entry: TaskEntry, reason: str, *, wall: int) -> bool:
        """Nobody wants it any more; False if it had ended already."""
        if not entry.is_live:
            return False
        lost = entry.effect is Effect.WRITE and entry.had_started
        self._end(entry, TaskChange.LOSE if lost else TaskChange.WITHDRAW, f"{_UNWANTED}{reason}", wall)
        return True

    def hand_out(self, entry: TaskEntry) -> None:
        """The host has seen it by polling, and may begin."""
        entry.handed_out = True

    # ---- time ----

    def next_due(self) -> int | None:
        """When `tick` has something to do next."""
        timers = self._timers
        while timers:
            due, _, entry, number = timers[0]
            actual = self._due_of(entry, number)
            if actual == due:
                return due
            heappop(timers)
            if actual is not None:  # signs of life have moved it
                self._set_timer(actual, entry, number)
        return None

    def tick(self, *, now: int, wall: int) -> list[TaskNews]:
        """End what has run out of time: tasks and leases."""
        news: list[TaskNews] = []
        while (due := self.next_due()) is not None and due <= now:
            _, _, entry, number = heappop(self._timers)
            if number < 0:
                self._end(entry, TaskChange.EXPIRE, f"nobody completed it within {entry.timeout_ms} ms", wall)
                news.append(TaskNews("ended", entry))
            else:
                news.append(self._lose_lease(entry, wall))
        return news

    def _lose_lease(self, entry: TaskEntry, wall: int) -> TaskNews:
        worker = entry.worker or "its worker"
        if entry.state is TaskState.LEASED or not entry.confirmed:
            self._give_back(entry)
            return TaskNews("requeued", entry, f"{worker} had not begun and was not heard of")
        if entry.effect is Effect.WRITE:
            reason = f"{worker} had begun and was not heard of for {entry.lease_ms} ms"
            self._end(entry, TaskChange.LOSE, reason, wall)
            return TaskNews("ended", entry)
        if entry.attempt >= ATTEMPTS_MAX:
            said = f"lost by {entry.attempt} workers"
            entry.result, entry.token = ExternalTaskResult(success=False, error=said), ""
            self._end(entry, TaskChange.FAIL, said, wall)
            return TaskNews("ended", entry)
        self._give_back(entry)
        entry.attempt += 1
        return TaskNews("requeued", entry, f"{worker} had begun and was not heard of")

    def _due_of(self, entry: TaskEntry, number: int) -> int | None:
        """When a timer is really due; None if it is stale."""
        if not entry.published or entry.state not in _LIVE:
            return None
        if number < 0:
            return entry.timeout_due
        return entry.lease_due if number == entry.lease_number and entry.state in _HELD else None

    def _set_timer(self, due: int, entry: TaskEntry, number: int) -> None:
        self._number += 1
        heappush(self._timers, (due, self._number, entry, number))
        if len(self._timers) > self._timers_max:
            self._timers = [item for item in self._timers if self._due_of(item[2], item[3]) is not None]
            heapify(self._timers)
            self._timers_max = max(STALE_MAX, 2 * len(self._timers))

    # ---- changes ----

    def _change(self, entry: TaskEntry, change: TaskChange) -> None:
        following = TASK_TRANSITIONS.get((entry.state, change))
        if following is None:
            raise ConflictError(
                f"task {entry.task_id!r} is {entry.state}: {change} is not possible",
                hint="an end never changes",
                task_id=entry.task_id,
                state=entry.state.value,
                change=change.value,
            )
        entry.state = following

    def _give_back(self, entry: TaskEntry) -> None:
        self._change(entry, TaskChange.GIVE_BACK)
        entry.token, entry.confirmed = "", False
        entry.lease_number += 1
        self._queue(entry)

    def _finish(self, entry: TaskEntry, result: ExternalTaskResult, wall: int) -> None:
        entry.result = result
        entry.confirmed = entry.confirmed or bool(entry.token)
        change = TaskChange.SUCCEED if result.success else TaskChange.FAIL
        self._end(entry, change, entry.reason if entry.state is TaskState.TIMED_OUT else result.error or "", wall)

    def _end(self, entry: TaskEntry, change: TaskChange, reason: str, wall: int) -> None:
        self._change(entry, change)
        entry.reason = reason[:REASON_MAX]
        entry.ended_ms = entry.ended_ms or wall
        entry.payload = "{}"  # nobody needs it any more, and it may be long
        if self.live.pop(entry.task_id, None) is not None:
            tasks = self.by_owner[entry.owner]
            del tasks[entry.task_id]
            if not tasks:
                del self.by_owner[entry.owner]
        self.remember(entry)

    def remember(self, entry: TaskEntry) -> None:
        """Keep an end for those who are late."""
        self.finished[entry.task_id] = entry
        self.finished.move_to_end(entry.task_id)
        while len(self.finished) > FINISHED_MAX:
            self.finished.popitem(last=False)

    def slim(self, entry: TaskEntry) -> None:
        """An end is on disk: if its result is big, remember only that there is one."""
        result = entry.result
        if result is None or self.finished.get(entry.task_id) is not entry:
            return
        if len(str(result.result)) + len(result.error or "") > BIG:
            # A copy: whoever has the end in hand at this moment needs all of it.
            self.finished[entry.task_id] = replace(entry, result=None, is_slim=True)


_UNWANTED: Final = "withdrawn: "


def _lost(entry: TaskEntry) -> LeaseLostError:
    """Why a worker may not say anything more about a task."""
    state = entry.state
    said = f"{state} ({entry.reason})" if entry.reason else state.value
    return LeaseLostError(
        f"task {entry.task_id!r} is {said}, and this lease does not hold (any more)",
        hint="stop working on it; what you found is not used",
        task_id=entry.task_id,
        state=state.value,
    )
