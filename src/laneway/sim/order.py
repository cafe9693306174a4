"""The order inside one lane as the documentation has it, for two jobs at a time.

Where the documentation leaves two jobs to history that the simulator does not keep (fair share between tenants, the
turn of native after aged jobs) the answer is that neither certainly goes first.
"""

from __future__ import annotations

from collections.abc import Iterable

from laneway.records import LaneConfig, Priority
from laneway.sim.shadow import ShadowJob

__all__ = ("goes_first", "heads", "level_of", "place_in")


def aged_levels(job: ShadowJob, lane: str, config: LaneConfig, now: int) -> int:
    """Levels gained by waiting: one for every `ageing_ms`, never above USER."""
    if config.ageing_ms is None:
        return 0
    return min(
        int(Priority.USER) - int(job.spec.priority), (now - job.arrived[job.lanes.index(lane)]) // config.ageing_ms
    )


def boost_levels(job: ShadowJob, config: LaneConfig, now: int) -> int:
    """Levels gained by a deadline that comes near."""
    if config.boost is None:
        return 0
    deadline = job.spec.deadline_ms if job.spec.deadline_ms is not None else config.boost.deadline_ms
    if deadline is None:
        return 0
    left = job.submitted_at + deadline - now
    return max(
        (step.levels for step in config.boost.steps if left * 100 <= deadline * step.remaining_percent), default=0
    )


def level_of(job: ShadowJob, lane: str, config: LaneConfig, now: int) -> int:
    """The level of a waiting job."""
    return int(job.spec.priority) + aged_levels(job, lane, config, now) + boost_levels(job, config, now)


def share_of(job: ShadowJob, config: LaneConfig) -> str:
    """Whose share a job uses."""
    if config.fair_by == "session":
        for name in job.lanes:
            if name.rpartition("/")[2].startswith("session:"):
                return name
    return job.spec.tenant if config.fair_by is not None else ""


def is_comparable(one: ShadowJob, other: ShadowJob, lane: str, config: LaneConfig, now: int) -> bool:
    """Whether sequence alone decides between two jobs of the same level."""
    if share_of(one, config) != share_of(other, config):
        return False
    return bool(aged_levels(one, lane, config, now)) == bool(aged_levels(other, lane, config, now))


def goes_first(one: ShadowJob, other: ShadowJob, lane: str, config: LaneConfig, now: int) -> bool:
    """Whether the first of two jobs, neither of them awaited by a lent job, certainly goes before the second."""
    mine, yours = level_of(one, lane, config, now), level_of(other, lane, config, now)
    if mine != yours:
        return mine > yours
    if not is_comparable(one, other, lane, config, now):
        return False
    return place_in(one, lane) < place_in(other, lane)


def place_in(job: ShadowJob, lane: str) -> int:
    """When it came to a lane, in steps of the simulator; a retry keeps its place."""
    return job.places[job.lanes.index(lane)]


def heads(jobs: Iterable[ShadowJob], lane: str, config: LaneConfig, wanted: set[str], now: int) -> list[ShadowJob]:
    """Those of the jobs that wait in a lane that may be next: the true head is one of them."""
    levels: dict[int, list[ShadowJob]] = {}
    for job in jobs:
        levels.setdefault(level_of(job, lane, config, now), []).append(job)
    top = levels[max(levels)]
    awaited = [job for job in top if job.id in wanted]
    top = awaited or top
    firsts: dict[tuple[str, bool], ShadowJob] = {}
    ties: list[ShadowJob] = []
    for job in top:
        kind = (share_of(job, config), bool(aged_levels(job, lane, config, now))) if not awaited else ("", False)
        first = firsts.get(kind)
        if first is None or place_in(job, lane) < place_in(first, lane):
            firsts[kind] = job
        elif place_in(job, lane) == place_in(first, lane):
            ties.append(job)
    return [*firsts.values(), *ties]
