"""The hall: where workers wait for the tasks of all desks of a process.

A desk hands out the tasks of one workspace; a worker asks for tasks of many. Whoever waits does so here, in the order
of arrival, and a task that can be taken goes to the one that has waited longest for one like it. Nothing here polls: a
claim that waits is a future.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from laneway.errors import (
    LanewayError,
    LeaseLostError,
    RateLimitedError,
    TransportUnavailableError,
    UsageError,
    text_of,
)
from laneway.external import ExternalTaskResult, Lease, Progress, TaskState
from laneway.kernel.task_board import not_yours
from laneway.kernel.task_entries import Taker, TaskEntry, Wanted
from laneway.records import DURATION_MAX_MS, check_labels, check_whole
from laneway.runtime.worker_book import WorkerBook, WorkerRecord

if TYPE_CHECKING:
    from laneway.runtime.task_desk import TaskDesk

__all__ = ("CLAIM_MAX", "NAMES_MAX", "NAME_MAX", "BoundHall", "Guest", "TaskHall")

CLAIM_MAX = 1_000
NAME_MAX = 200
NAMES_MAX = 1_000


class Guest(NamedTuple):
    """On whose behalf a worker speaks: the name of its token, and the tenant it may serve (None: all of them)."""

    who: str = ""
    tenant: str | None = None


ANYBODY = Guest()


class _Claimer:
    """Somebody who waits for tasks."""

    __slots__ = ("answer", "limit", "number", "taker")

    def __init__(self, taker: Taker, number: int, limit: int, answer: asyncio.Future[list[Lease]]) -> None:
        self.taker = taker
        self.number = number
        self.limit = limit
        self.answer = answer

    @property
    def record(self) -> WorkerRecord:
        """Who that is."""
        assert isinstance(self.taker.holder, WorkerRecord)
        return self.taker.holder


_Group = tuple[Wanted, frozenset[str]]


class TaskHall:
    """The workers of some desks. Everything here belongs to one event loop."""

    def __init__(self, now: Callable[[], int], wall: Callable[[], int]) -> None:
        self.book = WorkerBook(now, wall)
        self._now = now
        self._desks: dict[str, TaskDesk] = {}
        self._claimers: dict[_Group, dict[_Claimer, None]] = {}  # in the order of their arrival
        self._waking: dict[_Claimer, _Group] = {}  # they have a task, and have not seen it yet
        self._number = 0
        self._closed = False

    # ---- desks ----

    def add(self, desk: TaskDesk) -> None:
        """Workers may take the tasks of a desk."""
        self._desks[desk.workspace] = desk

    def remove(self, desk: TaskDesk) -> None:
        """A desk is closed; when it was the last one, there is nothing to wait for."""
        if self._desks.get(desk.workspace) is desk:
            del self._desks[desk.workspace]
            if not self._desks:
                self.dismiss()

    def close(self) -> None:
        """Give out nothing more. What workers have in hand they may still complete."""
        self._closed = True
        self.dismiss()

    def dismiss(self) -> None:
        """Tell everybody who waits to come back later."""
        for claimers in self._claimers.values():
            for claimer in claimers:
                if not claimer.answer.done():
                    claimer.answer.set_exception(_gone("the host is closing"))

    def _at_work(self, names: Iterable[str]) -> list[TaskDesk]:
        wanted = frozenset(names)
        unknown = sorted(wanted.difference(self._desks))
        if unknown and not self._closed and self._desks:
            raise UsageError(f"there is no workspace {unknown[0]!r}", hint=f"there are: {', '.join(self._desks)}")
        desks = [desk for name, desk in self._desks.items() if (not wanted or name in wanted) and desk.is_at_work]
        if self._closed or not desks:
            raise _gone("the host is closed")
        return desks

    # ---- the side of the workers ----

    async def claim(  # noqa: PLR0913 - one question; what nobody asks for is left out
        self,
        worker: str,
        *,
        limit: int = 1,
        wait_ms: int = 0,
        workspaces: Sequence[str] = (),
        lease_ms: int | None = None,
        about: Mapping[str, Any] | None = None,
        guest: Guest = ANYBODY,
        **filters: Any,
    ) -> list[Lease]:
        """Take up to `limit` tasks, oldest first; waits up to `wait_ms` for the first one. `filters` as in `wanted`."""
        name = _checked_name(worker)
        wanted = wanted_of(tenant=guest.tenant, **filters)
        check_whole(limit, setting="limit", least=1, most=CLAIM_MAX)
        check_whole(wait_ms, setting="wait_ms", least=0, most=DURATION_MAX_MS)
        if lease_ms is not None:
            check_whole(lease_ms, setting="lease_ms", least=1, most=DURATION_MAX_MS)
        served = _checked_names("workspaces", workspaces)
        desks = self._at_work(served)
        record = self.book.meet(name, about or {}, who=guest.who, tenant=guest.tenant)
        record.asks(wanted)
        record.asked_at = record.seen_at
        record.workspaces = tuple(sorted(served))
        for desk in desks:
            desk.catch_up()
        self.book.check(record)
        limit = min(limit, record.room)
        taker = Taker(name, lease_ms, record)
        leases = self._take(desks, wanted, taker, limit)
        if leases or not wait_ms:
            return leases
        return await self._wait((wanted, served), taker, limit, wait_ms)

    def _take(self, desks: Sequence[TaskDesk], wanted: Wanted, taker: Taker, limit: int) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < limit:
            heads = [(desk, entry) for desk in desks if (entry := desk.board.oldest(wanted, taker.worker)) is not None]
            if not heads:
                break
            desk, entry = min(heads, key=lambda head: head[1].seq)
            leases.append(self._lease(desk, entry, taker))
        return leases

    def _lease(self, desk: TaskDesk, entry: TaskEntry, taker: Taker) -> Lease:
        lease = desk.lease(entry, taker)
        assert isinstance(taker.holder, WorkerRecord)
        self.book.took(taker.holder, entry)
        return lease

    async def _wait(self, group: _Group, taker: Taker, limit: int, wait_ms: int) -> list[Lease]:
        loop = asyncio.get_running_loop()
        self._number += 1
        answer: asyncio.Future[list[Lease]] = loop.create_future()
        claimer = _Claimer(taker, self._number, limit, answer)
        claimers = self._claimers.setdefault(group, {})
        claimers[claimer] = None
        record = claimer.record
        record.waiting += 1
        timer = loop.call_later(wait_ms / 1000, _answer_nothing, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self._waking.pop(claimer, None)  # what goes back must not come here again
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                await self._take_back(answer.result())
            raise
        finally:
            timer.cancel()
            record.waiting -= 1
            self.book.seen(record)
            record.asked_at = record.seen_at
            self._waking.pop(claimer, None)
            claimers.pop(claimer, None)
            if not claimers and self._claimers.get(group) is claimers:
                del self._claimers[group]

    async def _take_back(self, leases: Sequence[Lease]) -> None:
        """Whoever asked for tasks is gone: they go back, or their leases end by themselves."""
        for lease in leases:
            with contextlib.suppress(LanewayError):
                await self.release(lease.task["task_id"], lease.token, "it had gone away")

    def serve(self, desk: TaskDesk, entry: TaskEntry) -> None:
        """A task can be taken: give it to whoever has waited longest for one like it.

        When nobody waits, somebody who has been given one at this very moment may have room for more.
        """
        if not entry.place:  # it has ended since, or its session is closed
            return
        first: _Claimer | None = None
        for group, claimers in self._claimers.items():
            head = self._head(group, claimers, desk, entry)
            if head is not None and (first is None or head.number < first.number):
                first = head
                first_group = group
        if first is not None:
            leases = [self._lease(desk, entry, first.taker)]
            first.answer.set_result(leases)
            if first.limit > 1:
                self._waking[first] = first_group
            return
        for claimer, group in self._waking.items():
            leases = claimer.answer.result()
            if len(leases) < claimer.limit and claimer.record.room and _allows(group, desk, entry, claimer):
                leases.append(self._lease(desk, entry, claimer.taker))
                return

    def _head(
        self, group: _Group, claimers: Mapping[_Claimer, None], desk: TaskDesk, entry: TaskEntry
    ) -> _Claimer | None:
        for claimer in claimers:
            if claimer.answer.done():
                continue
            if _allows(group, desk, entry, claimer):
                try:
                    self.book.check(claimer.record)
                except RateLimitedError as error:  # as if it asked now: it has waited while it got what it may have
                    claimer.answer.set_exception(error)
                    continue
                return claimer
            if not entry.held_for:  # the others of the group ask for the same
                return None
        return None

    async def start(self, task_id: str, token: str, *, guest: Guest = ANYBODY) -> None:
        """A worker wants to begin: when this returns, it may."""
        await (await self._desk_of(task_id, guest)).start(task_id, token, guest=guest)

    async def heartbeat(
        self, task_id: str, token: str, progress: Progress | None = None, *, guest: Guest = ANYBODY
    ) -> bool:
        """A worker is alive. False: it should stop."""
        return await (await self._desk_of(task_id, guest)).heartbeat(task_id, token, progress, guest=guest)

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult, *, guest: Guest = ANYBODY) -> bool:
        """A worker says what became of a task. True: it counts, and is on disk."""
        return await (await self._desk_of(task_id, guest)).complete(task_id, token, result, guest=guest)

    async def release(
        self, task_id: str, token: str, reason: str = "", *, begun: bool = False, guest: Guest = ANYBODY
    ) -> None:
        """A worker gives a task back. A lease that is gone already is no error."""
        try:
            desk = await self._desk_of(task_id, guest)
        except LeaseLostError:
            return
        await desk.release(task_id, token, reason, begun=begun, guest=guest)

    async def _desk_of(self, task_id: str, guest: Guest) -> TaskDesk:
        """The desk that a task belongs to; one of another tenant is not there."""
        for desk in self._desks.values():
            entry = desk.board.get(task_id)
            if entry is not None:
                return self._open_to(guest, desk, entry)
        if len(self._desks) == 1 and guest.tenant is None:
            return next(iter(self._desks.values()))  # it looks into the store itself
        for desk in list(self._desks.values()):
            entry = await desk.find(task_id)
            if entry is not None:
                return self._open_to(guest, desk, entry)
        if not self._desks:
            raise _gone("the host is closed")
        raise no_task(task_id)

    @staticmethod
    def _open_to(guest: Guest, desk: TaskDesk, entry: TaskEntry) -> TaskDesk:
        if guest.tenant is not None and guest.tenant != entry.owner.tenant:
            raise no_task(entry.task_id)
        return desk

    def bound(self, guest: Guest) -> BoundHall:
        """The hall as one worker sees it."""
        return BoundHall(self, guest)

    # ---- looking ----

    def workers(self) -> list[WorkerRecord]:
        """Everybody who was heard of lately, by name."""
        return self.book.records()

    def why(self, entry: TaskEntry, *, by_name: bool = False) -> str:
        """Why nobody works on a task at this moment; empty if somebody does, or it has ended.

        Workers are named only to those who may know of them.
        """
        if entry.state is not TaskState.PENDING:
            return ""
        # Whoever hears this may know of their own tenant only.
        own = (each for each in self.book.records() if each.tenant in (None, entry.owner.tenant))
        known = [each for each in own if each.health(self._now()) != "quiet"]
        if not known:
            return "no worker has asked for tasks lately"
        if entry.held_for:
            worker = f"worker {entry.held_for!r}" if by_name else "the worker"
            return f"it waits up to {max(0, entry.held_due - self._now())} ms for {worker} that began the one before it"
        lacks = [(each.name, _lacks(each, entry)) for each in known]
        able = [each for each, (_, lack) in zip(known, lacks, strict=True) if not lack]
        if able:
            return self._all_away(able, by_name=by_name)
        if by_name:
            said = "; ".join(f"{name} {lack}" for name, lack in sorted(lacks)[:5])
            return f"no worker takes such tasks: {said}"
        labels = f", labels {', '.join(entry.labels)}" if entry.labels else ""
        needs = f"lane {entry.lane}, tool {entry.command_type}, workspace {entry.owner.workspace}{labels}"
        return f"no worker takes such tasks ({needs})"

    def has_nobody(self, entry: TaskEntry) -> bool:
        """Whether no worker that is there would take a task: it waits for somebody who starts one."""
        if entry.state is not TaskState.PENDING or entry.held_for:
            return False
        own = (each for each in self.book.records() if each.tenant in (None, entry.owner.tenant))
        known = (each for each in own if each.health(self._now()) != "quiet" and not _lacks(each, entry))
        return not any(each.holds() or each.waiting for each in known)

    def _all_away(self, able: Sequence[WorkerRecord], *, by_name: bool) -> str:
        """Why those who could take a task do not."""
        now = self._now()
        busy = [each.name for each in able if each.holds() or each.waiting]
        if busy:
            return f"every worker that could take it is busy{': ' + ', '.join(busy[:5]) if by_name else ''}"
        last = max(able, key=lambda each: each.seen_at)
        who = f"worker {last.name!r}" if by_name else "the last worker that could take it"
        return f"{who} was last heard of {(now - last.seen_at) // 1000} s ago, and asks for nothing now"


def _lacks(record: WorkerRecord, entry: TaskEntry) -> str:
    """Why a worker does not take a task; empty if it would."""
    if record.workspaces and entry.owner.workspace not in record.workspaces:
        return f"serves only the workspaces {', '.join(record.workspaces[:5])}"
    if any(wanted.allows(entry, record.name) for wanted in record.asked):
        return ""
    missing = sorted(set(entry.labels).difference(record.labels))
    if missing:
        return f"has no label {', '.join(missing)}"
    if record.lanes and entry.lane not in record.lanes:
        return f"takes only the lanes {', '.join(record.lanes[:5])}"
    return f"does not run {entry.command_type}"


class BoundHall:
    """The hall as one worker sees it, by its token: a desk for frames."""

    def __init__(self, hall: TaskHall, guest: Guest) -> None:
        self._hall = hall
        self._guest = guest

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """Take tasks."""
        return await self._hall.claim(worker, guest=self._guest, **wanted)

    async def start(self, task_id: str, token: str) -> None:
        """Begin."""
        await self._hall.start(task_id, token, guest=self._guest)

    async def heartbeat(self, task_id: str, token: str, progress: Progress | None = None) -> bool:
        """Show a sign of life."""
        return await self._hall.heartbeat(task_id, token, progress, guest=self._guest)

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """Say what became of it."""
        return await self._hall.complete(task_id, token, result, guest=self._guest)

    async def release(self, task_id: str, token: str, reason: str = "", *, begun: bool = False) -> None:
        """Give it back."""
        await self._hall.release(task_id, token, reason, begun=begun, guest=self._guest)


def wanted_of(
    *,
    lanes: Sequence[str] = (),
    commands: Sequence[str] = (),
    labels: Sequence[str] = (),
    tenant: str | None = None,
) -> Wanted:
    """What a worker asks for, checked."""
    has = frozenset(check_labels(labels)) if labels else frozenset()
    return Wanted(_checked_names("lanes", lanes), _checked_names("commands", commands), has, tenant)


def no_task(task_id: object) -> LeaseLostError:
    """There is none of that id, or none that the worker may know of."""
    return not_yours(text_of(task_id)[:NAME_MAX])


def _gone(said: str) -> TransportUnavailableError:
    return TransportUnavailableError(said, hint="try again when it is back")


def _allows(group: _Group, desk: TaskDesk, entry: TaskEntry, claimer: _Claimer) -> bool:
    wanted, served = group
    return (not served or desk.workspace in served) and wanted.allows(entry, claimer.taker.worker)


def _answer_nothing(answer: asyncio.Future[list[Lease]]) -> None:
    if not answer.done():
        answer.set_result([])


def _checked_name(worker: object) -> str:
    if not isinstance(worker, str) or not 0 < len(worker) <= NAME_MAX:
        raise UsageError(f"a worker has a name of 1 to {NAME_MAX} characters, not {worker!r:.80}")
    return text_of(worker)


def _checked_names(setting: str, names: object) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) > NAMES_MAX:
        raise UsageError(f"{setting} must be a list of at most {NAMES_MAX} names, not {names!r:.80}")
    if not all(isinstance(name, str) and len(name) <= NAME_MAX for name in names):
        raise UsageError(f"{setting} must be a list of names of at most {NAME_MAX} characters, not {names!r:.80}")
    return frozenset(names)
