"""Questions to the kernel: why a job is where it is, what there is, what has been counted. Nothing changes here."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from laneway.errors import UnknownJobError
from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import Counters, Lane, Pool, descends
from laneway.kernel.scheduler import Kernel
from laneway.records import (
    Explanation,
    JobId,
    JobInfo,
    JobState,
    LaneMetrics,
    LaneStats,
    Stats,
    WaitReason,
)

NAMED_MAX = 5
_TIMED = (WaitReason.TIME, WaitReason.CLOSED, WaitReason.RATE)  # their sentence says how long already


def explain(kernel: Kernel, job_id: JobId, *, now: int, wall_ms: int) -> Explanation:
    """Why a live job is where it is, in one sentence and in data."""
    entry = kernel.jobs.get(job_id)
    if entry is None:
        raise UnknownJobError(job_id=job_id)
    match entry.state:
        case JobState.RUNNING:
            return _running(entry, now)
        case JobState.LENT:
            return _lent(kernel, entry)
        case JobState.SCHEDULED:
            return _scheduled(kernel, entry, now=now, wall_ms=wall_ms)
        case _:
            return _queued(kernel, entry, now=now, wall_ms=wall_ms)


def explain_ended(entry: Entry, state: JobState, lane: str) -> Explanation:
    """The same for a job that has ended."""
    return Explanation(
        job_id=entry.id,
        state=state,
        reason=WaitReason.NOTHING,
        detail=f"{_called(entry)} has ended: {state}",
        lane=lane,
        position=None,
        estimate_ms=None,
        until_ms=None,
        blocked_by=(),
    )


def _answer(
    entry: Entry,
    reason: WaitReason,
    text: str,
    *,
    position: int | None = None,
    estimate_ms: int | None = None,
    until_ms: int | None = None,
    blocked_by: tuple[JobId, ...] = (),
) -> Explanation:
    parts = [f"{_called(entry)} {text}"]
    if position is not None:
        parts.append(f"position {position}")
    if estimate_ms is not None and reason not in _TIMED:
        parts.append(f"about {duration(estimate_ms)} to go")
    return Explanation(
        job_id=entry.id,
        state=entry.state,
        reason=reason,
        detail=", ".join(parts),
        lane=entry.lanes[min(entry.stage, len(entry.lanes) - 1)].name,
        position=position,
        estimate_ms=estimate_ms,
        until_ms=until_ms,
        blocked_by=blocked_by,
    )


def _called(entry: Entry) -> str:
    """What a reader knows the job by."""
    return f"{entry.spec.label} ({entry.id})" if entry.spec.label else entry.id


def _running(entry: Entry, now: int) -> Explanation:
    text = f"has run for {duration(now - entry.started_at)} in lane {entry.lane.name!r} (attempt {entry.attempt})"
    if entry.stop is not None:
        text = f"is being ended ({entry.reason or entry.stop.value}) and has not stopped yet"
    return _answer(entry, WaitReason.NOTHING, text)


def _lent(kernel: Kernel, entry: Entry) -> Explanation:
    if entry.returns:
        names = ", ".join(repr(unit.name) for unit in entry.units if unit is not kernel.threads)
        return _answer(entry, WaitReason.TAKE_BACK, f"waits to have back what it lent ({names})")
    targets = [wait.target for wait in kernel.lending.waits.values() if wait.target is not None and entry in wait.chain]
    shown = ", ".join(_called(target) for target in targets[:NAMED_MAX]) + (" …" if len(targets) > NAMED_MAX else "")
    return _answer(
        entry,
        WaitReason.CHILD,
        f"waits for {shown} and has lent its slots meanwhile",
        blocked_by=tuple(target.id for target in targets),
    )


def _scheduled(kernel: Kernel, entry: Entry, *, now: int, wall_ms: int) -> Explanation:
    if entry.held is not None:
        return _answer(entry, entry.held.reason, f"waits {entry.held.text}")
    due = kernel.timers.due_of(entry)
    left = max(0, due - now) if due is not None else 0
    what = f"retry {entry.failures}" if entry.failures else "delay"
    return _answer(
        entry,
        WaitReason.TIME,
        f"waits for its time ({what}), due in {duration(left)}",
        estimate_ms=left,
        until_ms=wall_ms + left,
    )


def why_queued(entry: Entry, now: int) -> str:
    """What a queued job waits for, as far as its lane says it at a glance: however many are before it."""
    lane = entry.aside or entry.lanes[entry.stage]
    shut = _shut(lane, now)
    if shut:
        return shut
    return f"waits for a slot of lane {lane.name!r}: {lane.held} of {lane.cap} taken"


def _shut(lane: Lane, now: int) -> str:
    """Why a lane starts nothing, whatever is free; empty if it would."""
    if lane.paused or lane.cap == 0:
        return f"waits: lane {lane.name!r} {'is paused' if lane.paused else 'has width 0'}"
    if lane.closed_until is not None and lane.closed_until > now:
        why = f" ({lane.closed_reason})" if lane.closed_reason else ""
        return f"waits: lane {lane.name!r} is closed for {duration(lane.closed_until - now)}{why}"
    return ""


class Why(NamedTuple):
    """What a queued job waits for: in words (without its name), and as far as that is known, how long and for whom."""

    reason: WaitReason
    text: str
    estimate_ms: int | None = None
    until_ms: int | None = None
    owner: Entry | None = None  # who has the exclusive lane


def _queued(kernel: Kernel, entry: Entry, *, now: int, wall_ms: int) -> Explanation:
    position = position_of(entry, now)
    why = why_waits(kernel, entry, position, now=now, wall_ms=wall_ms)
    blocked_by: tuple[JobId, ...] = () if why.owner is None else (why.owner.id,)
    if why.reason is WaitReason.LANE:
        blocked_by = _holders(kernel, entry.lanes[entry.stage])
    return _answer(
        entry,
        why.reason,
        why.text,
        position=position,
        estimate_ms=why.estimate_ms,
        until_ms=why.until_ms,
        blocked_by=blocked_by,
    )


def why_waits(kernel: Kernel, entry: Entry, position: int, *, now: int, wall_ms: int) -> Why:
    """What a queued job at this position of its lane waits for; costs the same however many wait."""
    lane = entry.aside or entry.lanes[entry.stage]
    text = _shut(lane, now)
    if lane.paused or lane.cap == 0:
        return Why(WaitReason.PAUSED, text)
    if lane.closed_until is not None and lane.closed_until > now:
        return Why(WaitReason.CLOSED, text, lane.closed_until - now, lane.closed_wall_ms)
    owner = _exclusive_owner(entry, lane)
    if owner is not None:
        text = f"waits: exclusive lane {lane.name!r} is with {_called(owner)}"
        return Why(WaitReason.EXCLUSIVE, text, _estimate(lane, position), owner=owner)
    if not lane.is_open() and entry.aside is None:
        text = f"waits for a slot of lane {lane.name!r}: {lane.held} of {lane.cap} taken"
        kept = lane.kept(lane.cap)
        if kept:
            text += f", {kept} kept for jobs that lent theirs"
        return Why(WaitReason.LANE, text, _estimate(lane, position))
    return _shared(kernel, entry, lane, now=now, wall_ms=wall_ms, position=position)


def _shared(kernel: Kernel, entry: Entry, lane: Lane, *, now: int, wall_ms: int, position: int) -> Why:
    """The lane itself has a slot: a limit or something it shares with others holds the job up."""
    wait = lane.limit_wait_ms(now)
    if wait:
        text = f"waits for the rate limit of lane {lane.name!r}, next token in {duration(wait)}"
        return Why(WaitReason.RATE, text, wait, wall_ms + wait)
    pools = (*lane.pools, kernel.threads) if entry.threaded else lane.pools
    for pool in pools:
        if not pool.has_room(lane):
            text = f"waits for {_pool_words(kernel, pool)}: {_taken(pool)}"
            return Why(_pool_reason(kernel, pool), text, _estimate(lane, position))
    if position > 1:
        return Why(WaitReason.ORDER, f"waits in lane {lane.name!r} behind others", _estimate(lane, position))
    return Why(WaitReason.NOTHING, f"is about to start in lane {lane.name!r}")


def _taken(pool: Pool) -> str:
    kept = pool.cap - pool.held
    return f"{pool.held} of {pool.cap} taken" + (f", {kept} kept for others" if kept > 0 else "")


def _pool_reason(kernel: Kernel, pool: Pool) -> WaitReason:
    if pool is kernel.threads:
        return WaitReason.THREADS
    return WaitReason.SHARED_CAP if pool is kernel.registry.root else WaitReason.GROUP


def _pool_words(kernel: Kernel, pool: Pool) -> str:
    if pool is kernel.threads:
        return "a thread (threads_max)"
    return "the shared cap (max_concurrent)" if pool is kernel.registry.root else f"a place in group {pool.name!r}"


def _exclusive_owner(entry: Entry, lane: Lane) -> Entry | None:
    for owner in lane.stack or ():
        if not owner.lent or not descends(entry, owner):
            return owner
    return None


def _holders(kernel: Kernel, lane: Lane) -> tuple[JobId, ...]:
    holding = (entry.id for entry in kernel.jobs.values() if lane in entry.units and not entry.lent)
    return tuple(islice(holding, NAMED_MAX))


def position_of(entry: Entry, now: int) -> int:
    """How many stand before it in the lane it waits for, plus one, as things are now."""
    lane = entry.lanes[entry.stage]
    if entry.aside is not None:
        return 1
    lane.queue.head(now)  # lets time move those that wait
    return next(position for position, other in enumerate(lane.queue, 1) if other is entry)


def _estimate(lane: Lane, position: int) -> int | None:
    """From what the jobs of this lane have taken so far; None when nothing is known."""
    run = lane.counters.run
    if not run.total:
        return None
    return -(-position * run.total_ms // (run.total * max(1, lane.cap)))


def duration(ms: int) -> str:
    """A duration as a person says it."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:.0f} min"
    return f"{ms / 3_600_000:.1f} h"


def stuck(kernel: Kernel) -> list[JobId]:
    """Jobs that nothing will ever start by itself: nothing runs and nothing is due, as with a paused lane.

    Those of a store are not among them: they can wait there.
    """
    if kernel.running or kernel.next_due() is not None:
        return []
    return [entry.id for entry in kernel.jobs.values() if entry.state is JobState.QUEUED and not entry.durable]


def all_can_wait(kernel: Kernel, *, now: int, held_only: bool = False) -> bool:
    """Whether only jobs of a store are left that would not start soon: they are held, or (unless `held_only`) wait for
    a time, or for a slot while nothing runs that could give one back."""
    return all(
        entry.durable and (entry.held is not None or (not held_only and _can_wait(kernel, entry, now)))
        for entry in kernel.jobs.values()
    )


def _can_wait(kernel: Kernel, entry: Entry, now: int) -> bool:
    if entry.state is JobState.SCHEDULED:
        return True
    idle = not kernel.running and not kernel.lent
    return idle and entry.state is JobState.QUEUED and not any(lane.limit_wait_ms(now) for lane in entry.lanes)


# ---- lists and numbers ------------------------------------------------------------------------------------


def list_jobs(
    kernel: Kernel, *, now: int, prefix: str = "", lane: str | None = None, state: JobState | None = None
) -> list[JobInfo]:
    """What runs and waits: in the order in which it was submitted."""
    found = []
    for entry in kernel.jobs.values():
        if state is not None and entry.state is not state:
            continue
        names = tuple(one.name for one in entry.lanes)
        if lane is not None and lane not in names:
            continue
        if prefix and not any(name.startswith(prefix) for name in names):
            continue
        found.append(_info(entry, names, now))
    return found


def _info(entry: Entry, names: tuple[str, ...], now: int) -> JobInfo:
    begun = entry.state in (JobState.RUNNING, JobState.LENT)
    return JobInfo(
        id=entry.id,
        lane=names[-1],
        lanes=names,
        state=entry.state,
        label=entry.spec.label,
        priority=entry.spec.priority,
        tenant=entry.spec.tenant,
        attempt=entry.attempt,
        age_ms=now - entry.submitted_at,
        wait_ms=(entry.started_at if begun else now) - entry.since,
        run_ms=now - entry.started_at if begun else 0,
        cancelling=entry.stop is not None,
    )


def lane_stats(lane: Lane, *, now: int) -> LaneStats:
    """One lane at this moment."""
    oldest = lane.queue.oldest_at()
    return _stats_of(
        lane.counters,
        running=lane.held,
        waiting=lane.waiting,
        scheduled=lane.scheduled,
        lent=lane.lent,
        max_concurrent=lane.cap,
        paused=lane.paused or lane.cap == 0,
        closed_until_ms=lane.closed_wall_ms,
        oldest_wait_ms=now - oldest if oldest is not None else 0,
    )


def _stats_of(
    counters: Counters,
    *,
    running: int = 0,
    waiting: int = 0,
    scheduled: int = 0,
    lent: int = 0,
    max_concurrent: int = 0,
    paused: bool = False,
    closed_until_ms: int | None = None,
    oldest_wait_ms: int = 0,
) -> LaneStats:
    return LaneStats(
        running=running,
        waiting=waiting,
        scheduled=scheduled,
        lent=lent,
        max_concurrent=max_concurrent,
        paused=paused,
        closed_until_ms=closed_until_ms,
        submitted=counters.submitted,
        completed=counters.completed,
        failed=counters.failed,
        cancelled=counters.cancelled,
        timed_out=counters.timed_out,
        retried=counters.retried,
        dead_lettered=counters.dead_lettered,
        abandoned=counters.abandoned,
        oldest_wait_ms=oldest_wait_ms,
    )


def shared_cap(kernel: Kernel, prefix: str = "") -> int:
    """The cap over everything, or the sum of the widths where there is none (or inside one scope)."""
    registry = kernel.registry
    if registry.root is not None and not prefix:
        return registry.root.cap
    return sum(
        lane.cap
        for lane in registry.lanes.values()
        if not lane.is_control and not lane.is_session and lane.name.startswith(prefix)
    )


def stats(kernel: Kernel, *, now: int, prefix: str = "") -> Stats:
    """All lanes (or those of one scope) at this moment; the totals count jobs, the lanes count slots."""
    registry = kernel.registry
    lanes = {lane.name: lane_stats(lane, now=now) for lane in registry.lanes.values() if lane.name.startswith(prefix)}
    retired = sum(counters.abandoned for counters in registry.retired.values()) if not prefix else 0
    if prefix:
        states = [entry.state for entry in kernel.jobs.values() if entry.lane.name.startswith(prefix)]
        running, waiting = states.count(JobState.RUNNING), states.count(JobState.QUEUED)
        scheduled, lent = states.count(JobState.SCHEDULED), states.count(JobState.LENT)
    else:
        running, waiting, scheduled, lent = kernel.running, kernel.waiting, kernel.scheduled, kernel.lent
    return Stats(
        running=running,
        waiting=waiting,
        scheduled=scheduled,
        lent=lent,
        abandoned=retired + sum(lane.abandoned for lane in lanes.values()),
        max_concurrent=shared_cap(kernel, prefix),
        lanes=lanes,
    )


def metrics(kernel: Kernel, *, now: int, prefix: str = "") -> dict[str, LaneMetrics]:
    """The numbers of every lane since the start; lanes that were forgotten appear under their family."""
    registry = kernel.registry
    found = {
        lane.name: LaneMetrics(
            stats=lane_stats(lane, now=now),
            wait=lane.counters.wait.stats(),
            run=lane.counters.run.stats(),
        )
        for lane in registry.lanes.values()
        if lane.name.startswith(prefix)
    }
    for name, counters in registry.retired.items() if not prefix else ():
        found[name] = LaneMetrics(stats=_stats_of(counters), wait=counters.wait.stats(), run=counters.run.stats())
    return found
