"""The laws of external tasks, held against everything that a host says, writes and gives out.

Nothing here asks the board whether it was right. A task has at most one live lease: counted from the answers that the
host has given. Whoever may begin holds the newest token, and that is on disk unless the task only reads. A `write` is
begun once, counted by those who begin. Of every task one outcome is accepted, it is on disk before anybody hears of it,
and it stays. Labels, tenants, workspaces, lanes and commands are those that were asked for. A task that somebody waits
for never waits, except for a worker of its own, and for that one never longer than it says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from laneway.external import Lease, TaskState
from laneway.kernel.task_entries import TASK, Taker, TaskEntry, TaskNews
from laneway.records import Effect
from laneway.rows import Batch, Owner, StateKey, StateRow
from laneway.runtime.task_hall import ANYBODY, Guest, TaskHall
from laneway.runtime.worker_book import HOLD_MAX, WARY_AFTER, WORKERS_MAX, WorkerRecord
from laneway.sim.workers_world import Errand
from laneway.stores.memory import MemoryDisk

if TYPE_CHECKING:
    from laneway.runtime.task_desk import TaskDesk

__all__ = ("Laws", "WatchedHall")

# The simulator is no user: it looks into the hall and the boards to compare.
# ruff: noqa: SLF001

LONG_MS = 1_000_000
"""Nobody may be late for a task that has so much time."""


class WatchedHall(TaskHall):
    """The hall, with somebody beside it who writes down each lease."""

    def __init__(self, laws: Laws, now: Callable[[], int], wall: Callable[[], int]) -> None:
        super().__init__(now, wall)
        self._laws = laws

    def _lease(self, desk: TaskDesk, entry: TaskEntry, taker: Taker) -> Lease:
        held_for = entry.held_for
        record = taker.holder
        assert isinstance(record, WorkerRecord)
        self._laws.check_taker(entry, record, held_for, self._now())
        lease = super()._lease(desk, entry, taker)
        self._laws.leased(entry, lease, record, self._now())
        return lease

    async def release(
        self, task_id: str, token: str, reason: str = "", *, begun: bool = False, guest: Guest = ANYBODY
    ) -> None:
        """A worker gives a task back."""
        self._laws.released.add(token)
        await super().release(task_id, token, reason, begun=begun, guest=guest)


class Laws:
    """What was said so far, and whether it may be so. `broken` hears of what may not."""

    def __init__(self, disk: MemoryDisk, broken: Callable[[str], None]) -> None:
        self.errands: dict[str, Errand] = {}
        self.begun: Counter[str] = Counter()  # by task: how often somebody has begun
        self.released: set[str] = set()  # tokens
        self.known: list[tuple[str, str]] = []  # every task with every token that was ever given out
        self.published: dict[str, int] = {}  # by task: when it could be taken, by the clock of this life
        self.slack_ms = 0  # how late timers can be: the process stood still
        self.accepted: dict[str, str] = {}  # by task: the token whose outcome counts
        self._disk = disk
        self._break = broken
        self._told: dict[str, dict[str, None]] = {}  # by task: tokens whose workers may begin
        self._told_over: dict[str, dict[str, None]] = {}  # by task: the links that carried that
        self._leases: dict[str, tuple[str, int, int]] = {}  # by task: token, until when, and how long it is
        self._said: dict[tuple[str, str], list[Any]] = {}  # by task and token: every result that was said

    # ---- the disk ----

    def row_of(self, task_id: str) -> StateRow | None:
        """What the disk says of a task."""
        return self._disk.states.get(StateKey(TASK, task_id))

    def witness(self, batch: Batch) -> None:
        """A batch is about to be written: what has ended stays as it is."""
        for row in batch.rows:
            if isinstance(row, StateRow) and row.kind == TASK:
                before = self.row_of(row.id)
                if before is not None and not before.live:
                    self._check_end_stays(before, row)

    def _check_end_stays(self, before: StateRow, row: StateRow) -> None:
        if row.live:
            self._break(f"{row.id} was {before.state}, and is {row.state} again")
            return
        old, new = json.loads(before.body).get("result"), json.loads(row.body).get("result")
        settles = before.state == "unknown" and row.state in ("completed", "failed")
        if row.state != before.state and not settles:
            self._break(f"{row.id} was {before.state}, and became {row.state}")
        if old is not None and old != new:
            self._break(f"the result of {row.id} was {old}, and became {new}")

    # ---- leases ----

    def check_taker(self, entry: TaskEntry, record: WorkerRecord, held_for: str, now: int) -> None:
        """A task is about to be given to a worker."""
        before = self._leases.get(entry.task_id)
        if before is not None and before[0] not in self.released and before[1] > now:
            self._break(f"{entry.task_id} has a live lease for {before[1] - now} ms more, and gets another one")
        if held_for not in ("", record.name):
            self._break(f"{entry.task_id} waits for {held_for}, and goes to {record.name}")
        if record.refused_until > now:
            self._break(f"{record.name} is refused for {record.refused_until - now} ms more, and gets {entry.task_id}")

    def leased(self, entry: TaskEntry, lease: Lease, record: WorkerRecord, now: int) -> None:
        """It was given to it."""
        errand = self.errands[entry.task_id]
        self._leases[entry.task_id] = lease.token, now + min(lease.lease_ms, errand.lease_ms), lease.lease_ms
        self.known.append((entry.task_id, lease.token))
        held = len(record.holds())
        if held > (1 if record.in_vain >= WARY_AFTER else HOLD_MAX):
            self._break(f"{record.name} has {held} tasks, and has begun none of its last {record.in_vain}")

    def void(self, owner: Owner | None = None) -> None:
        """A host, or one session of it, begins again: what is on disk as not begun, nobody has."""
        if owner is None:  # what has begun goes on with a new clock
            self._leases.clear()
            self.published.clear()
        for task_id in [each for each in self._leases if self.errands[each].owner == owner]:
            row = self.row_of(task_id)
            if row is None or row.state == "pending":
                del self._leases[task_id]

    # ---- frames ----

    def heard(self, body: dict[str, Any]) -> None:
        """A frame has reached the host."""
        if body.get("op") == "complete" and isinstance(body.get("result"), dict):
            said = body["result"]
            facts = [said.get("success"), said.get("result"), said.get("error")]
            self._said.setdefault((str(body.get("task_id")), str(body.get("token"))), []).append(facts)

    def answered(self, link: str, guest: Guest, body: dict[str, Any], answer: dict[str, Any], hall: TaskHall) -> None:
        """The host has answered a frame; nothing has happened since."""
        if not answer.get("ok"):
            return
        op, task_id, token = body["op"], body.get("task_id", ""), body.get("token", "")
        if op == "claim":
            self._check_claim(guest, body, answer["leases"])
            return
        if op != "release" and guest.tenant not in (None, self.errands[task_id].owner.tenant):
            self._break(f"{link} of tenant {guest.tenant} said {op} of {task_id}, and was heard")
        if op == "start":
            self._check_start(link, task_id, token, hall)
        elif op == "complete":
            self._check_accepted(task_id, token)
        if op in ("start", "heartbeat") and self._leases.get(task_id, ("", 0, 0))[0] == token:
            *_, length = self._leases[task_id]
            short = min(length, self.errands[task_id].lease_ms)
            until = hall._now() + (length if token in self._told.get(task_id, ()) else short)
            self._leases[task_id] = token, until, length

    def _check_claim(self, guest: Guest, body: dict[str, Any], leases: list[dict[str, Any]]) -> None:
        if len(leases) > body.get("limit", 1):
            self._break(f"{body['worker']} asked for {body.get('limit', 1)} tasks, and gets {len(leases)}")
        for lease in leases:
            task = lease["task"]
            errand = self.errands[task["task_id"]]
            wrong = [
                f"{what} {has!r}"
                for what, has, asked in (
                    ("lane", errand.lane, body.get("lanes")),
                    ("command", errand.command, body.get("commands")),
                    ("workspace", errand.owner.workspace, body.get("workspaces")),
                    ("tenant", errand.owner.tenant, guest.tenant and [guest.tenant]),
                )
                if asked and has not in asked
            ]
            wrong += [f"label {label!r}" for label in errand.labels if label not in body.get("labels", ())]
            if wrong:
                self._break(f"{body['worker']} gets {task['task_id']}, and never asked for {', '.join(wrong)}")

    def _check_start(self, link: str, task_id: str, token: str, hall: TaskHall) -> None:
        effect = self.errands[task_id].effect
        told = self._told.setdefault(task_id, {})
        told[token] = None
        self._told_over.setdefault(task_id, {})[link] = None
        if effect is Effect.WRITE and len(told) > 1:
            self._break(f"{task_id} is a write, and two workers may begin")
        for desk in hall._desks.values():
            entry = desk.board.get(task_id)
            if entry is not None and entry.token != token:
                self._break(f"{link} may begin {task_id}, and another lease is newer")
        row = self.row_of(task_id)
        if effect is Effect.READ:
            return
        if row is None or row.state == "pending" or json.loads(row.body).get("token") != token:
            self._break(f"{link} may begin {task_id}, and the disk says {row}")

    def _check_accepted(self, task_id: str, token: str) -> None:
        before = self.accepted.setdefault(task_id, token)
        if before != token:
            self._break(f"two outcomes of {task_id} were accepted")
        row = self.row_of(task_id)
        body = json.loads(row.body) if row is not None else {}
        if row is None or row.live or body.get("token") != token:
            self._break(f"an outcome of {task_id} was accepted, and the disk says {row}")
        elif body.get("result") not in self._said[task_id, token]:
            self._break(f"the result of {task_id} is {body.get('result')}, and nobody has said that")

    # ---- those who begin ----

    def begin(self, link: str, task_id: str) -> None:
        """A worker begins."""
        self.begun[task_id] += 1
        if link not in self._told_over.get(task_id, ()):
            self._break(f"{link} begins {task_id}, and nobody has told it to")
        if self.errands[task_id].effect is Effect.WRITE and self.begun[task_id] > 1:
            self._break(f"{task_id} is a write, and is begun a second time, by {link}")

    # ---- what sessions hear ----

    def news(self, news: TaskNews, now: int) -> None:
        """A session hears of a task."""
        task_id = news.entry.task_id
        if news.kind == "pending":
            self.published[task_id] = now
            if self.row_of(task_id) is None:
                self._break(f"{task_id} can be taken, and is not on disk")
        elif news.kind in ("ended", "settled"):
            row = self.row_of(task_id)
            if row is None or row.live or row.state != news.entry.state:
                self._break(f"{task_id} is {news.entry.state}, and the disk says {row}")

    # ---- at any moment ----

    def look(self, hall: TaskHall) -> None:
        """Nobody waits for what can be had, and the books are in order."""
        for desk in hall._desks.values():
            if desk.is_at_work:
                self._look_at(hall, desk)
        if len(hall.book) > WORKERS_MAX + 1:
            self._break(f"{len(hall.book)} workers are in the book")

    def _look_at(self, hall: TaskHall, desk: TaskDesk) -> None:
        now, waiting = hall._now(), 0
        for entry in desk.board.live.values():
            if not entry.published or entry.state is not TaskState.PENDING:
                continue
            waiting += 1
            if entry.held_for:
                held_ms = now - self.published.get(entry.task_id, now)
                if held_ms > entry.sticky_ms + self.slack_ms:
                    self._break(f"{entry.task_id} waits for {entry.held_for} for {held_ms} ms")
            for (wanted, served), claimers in hall._claimers.items():
                for claimer in claimers:
                    fits = (not served or desk.workspace in served) and wanted.allows(entry, claimer.taker.worker)
                    if fits and not claimer.answer.done() and not hall._closed:
                        self._break(f"{entry.task_id} waits, and so does {claimer.taker.worker}")
        lined = sum(line.waiting for line in desk.board._lines.get(None, {}).values())
        if lined != waiting:
            self._break(f"{lined} tasks of {desk.workspace} are in lines, and {waiting} wait")

    # ---- at the end ----

    def check_ends(self) -> list[str]:
        """Everything has ended. What is wrong with the ends."""
        wrong: list[str] = []
        for task_id, errand in self.errands.items():
            row = self.row_of(task_id)
            if row is None:
                continue  # the store refused it, and nobody could see it
            if row.live:
                wrong.append(f"{task_id} is {row.state}")
            elif row.state == "timed_out" and errand.timeout_ms >= LONG_MS:
                wrong.append(f"{task_id} had {errand.timeout_ms} ms, and nobody took it")
        return wrong
