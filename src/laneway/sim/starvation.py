"""The bound on waiting at a shared cap, watched lane by lane.

The law: once a lane has a slot and a token of its own, its wait is at most `ageing_ms` + ⌈2 (k+1) ÷ cap⌉ × longest
job, k = lanes overdue longer, plus take-backs. The watcher errs on the lane's cost: k is the most that were overdue
at once, the longest job is the longest that anything held a unit so far, a lane behind two caps gets both bounds.
"""

from __future__ import annotations

from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import Lane, Pool
from laneway.sim.picture import Key, Picture
from laneway.sim.shadow import LawBrokenError
from laneway.sim.world import World

__all__ = ("Starvation",)


class Watch:
    """A lane that could start a job but for the caps it shares, since when, and what happened meanwhile."""

    __slots__ = ("backs", "overdue_most", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.overdue_most = 0
        self.backs = 0


class Starvation:
    """Says which lane has waited beyond the bound."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._watches: dict[str, Watch] = {}
        self._began: dict[Key, int] = {}  # when an attempt first held something
        self._longest = 0

    def after(self, before: Picture, picture: Picture, ready: dict[Lane, list[Entry]], *, now: int) -> None:
        """Look at every lane that is ready (with its possible heads) after a step."""
        keys = {key for holders in picture.holders.values() for key in holders} | picture.begun
        for key in [key for key in self._began if key not in keys]:
            self._longest = max(self._longest, now - self._began.pop(key))
        for key in keys:
            self._longest = max(self._longest, now - self._began.setdefault(key, now))
        backs = sum(len(picture.new_holders(unit, before)[1]) for unit in picture.holders)
        names = {lane.name for lane in ready}
        for name in [name for name in self._watches if name not in names]:
            del self._watches[name]
        overdue = [lane for lane in ready if self._is_overdue(lane, now)]
        for lane, jobs in ready.items():
            watch = self._watches.get(lane.name)
            if watch is None or picture.new_holders(lane, before)[0]:
                watch = self._watches[lane.name] = Watch(now)
            watch.backs += backs
            watch.overdue_most = max(watch.overdue_most, len(overdue))
            self._check(lane, jobs, watch, picture, now=now)

    def _is_overdue(self, lane: Lane, now: int) -> bool:
        ageing = self._world.config_of(lane.name).ageing_ms
        watch = self._watches.get(lane.name)
        return ageing is not None and watch is not None and now - watch.since > ageing

    def _check(self, lane: Lane, jobs: list[Entry], watch: Watch, picture: Picture, *, now: int) -> None:
        ageing = self._world.config_of(lane.name).ageing_ms
        if ageing is None:
            return
        oldest = min(entry.queued_at for entry in picture.waiting[lane].values())
        waited = now - max(watch.since, oldest)
        if waited <= ageing:
            return
        rounds = watch.backs
        pools = [unit for unit in lane.threaded_units if isinstance(unit, Pool)]
        if not any(entry.threaded for entry in jobs):
            pools = list(lane.pools)
        for pool in pools:
            cap = pool.cap - sum(amount for name, amount in pool.reserve.items() if name != lane.name)
            if cap <= 0 or (pool.name == "threads" and pool.held > len(picture.holders.get(pool, ()))):
                return  # all is reserved for others, or an abandoned attempt sits on a thread
            rounds += -(-2 * (watch.overdue_most + 1) // cap) * len(pools)
        bound = ageing + rounds * self._longest
        if waited > bound:
            raise LawBrokenError(
                f"lane {lane.name} starves: ready for {waited} ms, the bound is {bound} ms "
                f"(ageing {ageing}, {rounds} rounds of {self._longest})"
            )
