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

A task waits in a line: one for each lane, command and set of labels, oldest first. A sticky task waits for some time in
the line of the worker that began the one before it, and then in the line of everybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Final

from laneway.errors import ConflictError, LeaseLostError
from laneway.external import ExternalTaskResult, Progress, TaskState
from laneway.kernel.checkpoints import to_json
from laneway.kernel.task_entries import HELD, LIVE, SAID, Kind, Taker, TaskEntry, TaskNews, TaskOrder, Wanted
from laneway.records import Effect
from laneway.rows import Owner

__all__ = (
    "ATTEMPTS_MAX",
    "BIG",
    "HOST",
    "TASK_TRANSITIONS",
    "TaskBoard",
    "TaskChange",
    "not_yours",
)

ATTEMPTS_MAX: Final = 5
FINISHED_MAX: Final = 10_000
STALE_MAX: Final = 1_000
STICKY_MAX: Final = 10_000
LEASE_MAX_MS: Final = 3_600_000
"""What a worker may wish for."""
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

TIMEOUT: Final = -1
HOLD: Final = -2

# ---- the board ----


class _Line:
    """Tasks of one kind that wait, oldest first. What has left is passed over when its turn comes."""

    __slots__ = ("_heap", "waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TaskEntry]] = []
        self.waiting = 0

    def add(self, entry: TaskEntry) -> None:
        """It waits, at its `place`."""
        self.waiting += 1
        if len(self._heap) > STALE_MAX + 2 * self.waiting:  # a host that polls completes what nobody ever claims
            self._heap = [item for item in self._heap if item[2].place == item[1]]
            heapify(self._heap)
        heappush(self._heap, (entry.seq, entry.place, entry))

    def head(self) -> TaskEntry | None:
        """The one that has waited longest."""
        heap = self._heap
        while heap and heap[0][2].place != heap[0][1]:
            heappop(heap)
        return heap[0][2] if heap else None


class TaskBoard:
    """All tasks that have not ended, and the newest that have. `now` is monotonic, `wall` is for stamps."""

    def __init__(self) -> None:
        self.live: dict[str, TaskEntry] = {}
        self.finished: OrderedDict[str, TaskEntry] = OrderedDict()  # so that whoever is late gets the right answer
        self.by_owner: dict[Owner, dict[str, TaskEntry]] = {}  # the live ones
        self._lines: dict[str | None, dict[Kind, _Line]] = {}  # by tenant; all tasks are also in those of None
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()  # who began the newest task, by tenant and key
        self._timers: list[tuple[int, int, TaskEntry, int]] = []  # lease number, or one of the two below
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
            principal=order.principal,
            agent_template_id=order.agent_template_id,
            call_id=order.call_id,
            labels=order.labels,
            sticky=order.sticky,
            sticky_ms=order.sticky_ms,
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
            self._leave_line(entry)
            entry.lease_number += 1
            entry.published = False  # its timers are stale now
        return list(dropped.values())

    def _admit(self, entry: TaskEntry) -> None:
        self.finished.pop(entry.task_id, None)
        self.live[entry.task_id] = entry
        self.by_owner.setdefault(entry.owner, {})[entry.task_id] = entry

    def _publish(self, entry: TaskEntry, now: int) -> None:
        entry.published = True
        entry.timeout_due = now + entry.timeout_ms
        self._set_timer(entry.timeout_due, entry, TIMEOUT)
        if entry.state is not TaskState.PENDING:
            self._renew(entry, now)
            return
        worker = self._last.get((entry.owner.tenant, entry.sticky), "") if entry.sticky and entry.sticky_ms else ""
        if worker:
            entry.held_for, entry.held_due = worker, now + entry.sticky_ms
            self._set_timer(entry.held_due, entry, HOLD)
        self._line_up(entry)

    # ---- claiming ----

    def claim(self, wanted: Wanted, taker: Taker, *, now: int, token: Callable[[], str]) -> TaskEntry | None:
        """Lease the oldest task that a worker asks for to it."""
        oldest = self.oldest(wanted, taker.worker)
        if oldest is not None:
            self.lease(oldest, taker, token(), now=now)
        return oldest

    def oldest(self, wanted: Wanted, worker: str) -> TaskEntry | None:
        """The task that a worker would get."""
        heads = (line.head() for line in self._lines_for(wanted, worker))
        return min((head for head in heads if head is not None), key=lambda head: head.seq, default=None)

    def _lines_for(self, wanted: Wanted, worker: str) -> Iterator[_Line]:
        for kind, line in self._lines.get(wanted.tenant, {}).items():
            if wanted.fits(kind, worker):
                yield line

    def _line_up(self, entry: TaskEntry) -> None:
        self._number += 1
        entry.place = self._number
        kind = entry.kind
        for tenant in (None, entry.owner.tenant):
            lines = self._lines.setdefault(tenant, {})
            line = lines.get(kind)
            if line is None:
                line = lines[kind] = _Line()
            line.add(entry)

    def _leave_line(self, entry: TaskEntry) -> None:
        if not entry.place:
            return
        entry.place = 0
        kind = entry.kind
        for tenant in (None, entry.owner.tenant):
            lines = self._lines[tenant]
            line = lines[kind]
            line.waiting -= 1
            if not line.waiting:
                del lines[kind]
                if not lines:
                    del self._lines[tenant]
        entry.held_for = ""

    def lease(self, entry: TaskEntry, taker: Taker, token: str, *, now: int) -> None:
        """Give a task that waits to a worker."""
        self._change(entry, TaskChange.CLAIM)
        self._leave_line(entry)
        entry.worker, entry.token, entry.confirmed = taker.worker, token, False
        entry.granted_ms = 0 if taker.lease_ms is None else min(taker.lease_ms, LEASE_MAX_MS)
        entry.holder, entry.progress = taker.holder, None
        self._renew(entry, now)

    def _renew(self, entry: TaskEntry, now: int) -> None:
        entry.lease_number += 1
        entry.lease_due = now + entry.silence_ms
        self._set_timer(entry.lease_due, entry, entry.lease_number)

    # ---- what a worker says ----

    def start(self, entry: TaskEntry, token: str, *, now: int) -> None:
        """A worker wants to begin. It may when `confirm` says so: before that, the start of a write is on disk."""
        self._check_lease(entry, token)
        self._change(entry, TaskChange.START)
        entry.lease_due = now + entry.silence_ms

    def confirm(self, entry: TaskEntry, token: str, *, now: int) -> bool:
        """What `start` has changed is on disk: from now on the worker may begin. True the first time."""
        self._check_lease(entry, token)
        if entry.state is not TaskState.STARTED:
            raise _lost(entry, token)
        first, entry.confirmed = not entry.confirmed, True
        entry.lease_due = now + entry.silence_ms
        if first and entry.sticky:
            key = (entry.owner.tenant, entry.sticky)
            self._last[key] = entry.worker
            self._last.move_to_end(key)
            if len(self._last) > STICKY_MAX:
                self._last.popitem(last=False)
        return first

    def heartbeat(self, entry: TaskEntry, token: str, *, now: int, progress: Progress | None = None) -> bool:
        """A sign of life. False: stop, nobody wants it any more.

        A worker whose write is `unknown` because it was silent is told to go on: its result settles that.
        """
        if not token or token != entry.token:
            raise _lost(entry, token)
        if entry.state in HELD:
            if entry.state is TaskState.STARTED:  # who has not begun cannot keep it by being there
                entry.lease_due = now + entry.silence_ms
            entry.progress = progress or entry.progress
            return True
        if entry.state is TaskState.PENDING:
            raise _lost(entry, token)
        return entry.state is TaskState.UNKNOWN and not entry.reason.startswith(_UNWANTED)

    def complete(self, entry: TaskEntry, token: str, result: ExternalTaskResult, *, wall: int) -> bool:
        """A worker says what became of it. True: it counts; False: it was said before, and counted then."""
        if not token or token != entry.token:
            raise _lost(entry, token)
        if entry.state in SAID or (entry.state is TaskState.TIMED_OUT and entry.has_result):
            return False
        if entry.state not in HELD and not entry.is_settleable:
            raise _lost(entry, token)
        self._finish(entry, result, wall)
        return True

    def release(
        self, entry: TaskEntry, token: str, *, wall: int, begun: bool = False, reason: str = ""
    ) -> TaskNews | None:
        """A worker gives a task back; None if there is nothing to give back.

        What it has begun it can only give back with `begun`: another worker begins anew, unless it is a write.
        """
        if not token or token != entry.token or entry.state not in HELD:
            return None
        did = "had begun and gave it up" if entry.confirmed else "gave it back"
        return self._return(entry, f"{entry.worker} {did}: {reason}", wall, begun=begun)

    def _return(self, entry: TaskEntry, said: str, wall: int, *, begun: bool) -> TaskNews:
        if not entry.confirmed:
            self._forget_last(entry)
            self._give_back(entry)
            return TaskNews("requeued", entry, said)
        if not begun:
            hint = "complete it, or say begun to give it up"
            raise ConflictError(
                f"task {entry.task_id!r} has started", hint=hint, task_id=entry.task_id, state="started"
            )
        return self._abandon(entry, said, wall)

    def _check_lease(self, entry: TaskEntry, token: str) -> None:
        if not token or token != entry.token or entry.state not in HELD:
            raise _lost(entry, token)

    # ---- what the host says ----

    def complete_by_host(self, entry: TaskEntry, result: ExternalTaskResult, *, wall: int) -> bool | None:
        """The code of the host says what became of a task. None: it said so before; False: it cannot count."""
        if entry.state in SAID:
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

    def take_back(self, entry: TaskEntry, reason: str, *, wall: int, begun: bool = False) -> TaskNews | None:
        """Somebody takes a task from its worker, as if that had given it back; None if nobody has it."""
        if entry.state not in HELD:
            return None
        return self._return(entry, f"it was taken from {entry.worker}: {reason}", wall, begun=begun)

    def hand_out(self, entry: TaskEntry, *, handed_out: bool = True) -> None:
        """The host gets to see it by polling, and may begin; or it did not."""
        entry.handed_out = handed_out

    # ---- time ----

    def extend_leases(self, lost_ms: int) -> None:
        """Nobody could be heard for so long: everybody has that time once more, and a little to be heard."""
        for entry in self.live.values():
            if entry.state in HELD:
                entry.lease_due += lost_ms + entry.silence_ms // 3

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
            if number == HOLD:
                news.append(self._open_up(entry))
            elif number == TIMEOUT:
                self._end(entry, TaskChange.EXPIRE, f"nobody completed it within {entry.timeout_ms} ms", wall)
                news.append(TaskNews("ended", entry))
            else:
                news.append(self._lose_lease(entry, wall))
        return news

    def _lose_lease(self, entry: TaskEntry, wall: int) -> TaskNews:
        worker = entry.worker or "its worker"
        if entry.state is TaskState.LEASED or not entry.confirmed:
            self._forget_last(entry)
            self._give_back(entry)
            return TaskNews("requeued", entry, f"{worker} had not begun and was not heard of", lost=True)
        said = f"{worker} had begun and was not heard of for {entry.silence_ms} ms"
        return self._abandon(entry, said, wall)._replace(lost=True, had_begun=True)

    def _abandon(self, entry: TaskEntry, said: str, wall: int) -> TaskNews:
        """Whoever had begun with a task has gone."""
        self._forget_last(entry)
        if entry.effect is Effect.WRITE:
            self._end(entry, TaskChange.LOSE, said, wall)
            return TaskNews("ended", entry)
        if entry.attempt >= ATTEMPTS_MAX:
            end = f"lost by {entry.attempt} workers"
            entry.result, entry.token = ExternalTaskResult(success=False, error=end), ""
            self._end(entry, TaskChange.FAIL, end, wall)
            return TaskNews("ended", entry)
        self._give_back(entry)
        entry.attempt += 1
        return TaskNews("requeued", entry, said)

    def _forget_last(self, entry: TaskEntry) -> None:
        """Its worker is not to be waited for any more."""
        key = (entry.owner.tenant, entry.sticky)
        if entry.sticky and self._last.get(key) == entry.worker:
            del self._last[key]

    def _open_up(self, entry: TaskEntry) -> TaskNews:
        """It has waited for one worker long enough."""
        self._leave_line(entry)
        self._line_up(entry)
        return TaskNews("open", entry)

    def _due_of(self, entry: TaskEntry, number: int) -> int | None:
        """When a timer is really due; None if it is stale."""
        if not entry.published or entry.state not in LIVE:
            return None
        if number == TIMEOUT:
            return entry.timeout_due
        if number == HOLD:
            return entry.held_due if entry.held_for else None
        return entry.lease_due if number == entry.lease_number and entry.state in HELD else None

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
        entry.token, entry.confirmed, entry.granted_ms, entry.progress = "", False, 0, None
        entry.lease_number += 1
        if self.live.get(entry.task_id) is entry:  # else its session is closed: only the store has it
            self._line_up(entry)

    def _finish(self, entry: TaskEntry, result: ExternalTaskResult, wall: int) -> None:
        entry.result = result
        entry.confirmed = entry.confirmed or bool(entry.token)
        change = TaskChange.SUCCEED if result.success else TaskChange.FAIL
        self._end(entry, change, entry.reason if entry.state is TaskState.TIMED_OUT else result.error or "", wall)

    def _end(self, entry: TaskEntry, change: TaskChange, reason: str, wall: int) -> None:
        self._change(entry, change)
        self._leave_line(entry)
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


def not_yours(task_id: str) -> LeaseLostError:
    """The answer to whoever has no lease of a task, whether there is one or not: nothing is told of it."""
    return LeaseLostError(
        f"there is no task {task_id!r} that this lease is for (any more)",
        hint="stop working on it; what you found is not used",
        task_id=task_id,
    )


def _lost(entry: TaskEntry, token: str) -> LeaseLostError:
    """Why a worker may not say anything more about a task. What became of it is for the last holder only."""
    if not token or token != entry.token:
        return not_yours(entry.task_id)
    state = entry.state
    said = f"{state} ({entry.reason})" if entry.reason else state.value
    return LeaseLostError(
        f"task {entry.task_id!r} is {said}, and this lease does not hold (any more)",
        hint="stop working on it; what you found is not used",
        task_id=entry.task_id,
        state=state.value,
    )
