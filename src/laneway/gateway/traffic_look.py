"""One look at the traffic: every lane at a moment, and the jobs in it, as one tenant may see them.

All tenants share lanes. What a caller sees of another tenant's is that a slot is taken or that somebody waits: no
label, no session, no lane of one of its sessions. A lane shows a bounded number of jobs and says how many more there
are, so a look costs the same however deep the queues are, but for putting the first of a queue in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.host import MODEL_LANES
from laneway.gateway.admission import TURN_LANES
from laneway.gateway.traffic_jobs import SESSION_TURNS, Census, Work
from laneway.kernel.explain import why_waits
from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import Lane
from laneway.options import SESSION_LANES
from laneway.records import JobId, JobState, WaitReason
from laneway.runtime.errands import WAIT_LANE

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway
    from laneway.rows import Owner

__all__ = ("RUNNING_MAX", "WAITING_MAX", "Look", "brief")

RUNNING_MAX: Final = 24
WAITING_MAX: Final = 12
ALERTS: Final = ("", "warning", "critical")
SESSION_SCOPES: Final = ("s:", "t:", "w:")
"""What the names of the lanes of sessions begin with, of those too that are not open yet."""
OTHERS: Final = "of another tenant"


class Look:
    """The lanes at one moment. It is of use as long as nothing else has run since it was made, and cheap to make."""

    def __init__(self, gateway: Gateway, pauses: Mapping[str, str]) -> None:
        engine = gateway.lanes.engine
        self._gateway = gateway
        self._kernel = engine.kernel
        self._pauses = pauses
        self.now = engine.now()
        self.wall = engine.wall_ms()
        self.census = Census(gateway)
        self._holders: dict[str, list[Entry]] | None = None
        self._lent_to: dict[Entry, list[JobId]] | None = None
        self._works: dict[JobId, Work] = {}

    # ---- lanes ----

    def is_there_for(self, lane: Lane, tenant: str, places: Iterable[str] | None = None) -> bool:
        """Whether a tenant is shown a lane; `places`: only those of these workspaces, and those that all share."""
        scope, _, short = lane.name.rpartition("/")
        if self._is_of_session(scope, short):
            owner = self.census.owner_of_lane(lane)
            return owner is not None and owner.tenant == tenant and (places is None or owner.workspace in places)
        return places is None or scope not in self._gateway.workspaces or scope in places

    def is_nobodys(self, lane: Lane) -> bool:
        """Whether a lane is of one session and nobody can tell of which: it is being opened or closed."""
        scope, _, short = lane.name.rpartition("/")
        return self._is_of_session(scope, short) and self.census.owner_of_lane(lane) is None

    def _is_of_session(self, scope: str, short: str) -> bool:
        if short.startswith(SESSION_TURNS) or scope in self.census.sessions:
            return True
        return scope.startswith(SESSION_SCOPES) and scope not in self._gateway.workspaces

    def lane(self, lane: Lane, tenant: str) -> dict[str, Any]:
        """A lane as a tenant sees it."""
        name = lane.name
        scope, _, short = name.rpartition("/")
        owner = self.census.owner_of_lane(lane) if self._is_of_session(scope, short) else None
        oldest = lane.queue.oldest_at() if lane.waiting else None
        config, counters = lane.config, lane.counters
        holders = [entry for entry in self.holders(lane) if not entry.state.is_final]
        jobs = [self.job(entry, lane, tenant) for entry in holders[:RUNNING_MAX]]
        waiting = list(self.waiting(lane, tenant))
        return {
            "name": name,
            "kind": "session" if owner is not None else "workspace" if scope in self._gateway.workspaces else "shared",
            "role": _role(scope, short),
            "workspace": owner.workspace if owner is not None else scope if scope in self._gateway.workspaces else "",
            "session": "" if owner is None else owner.session,
            "mode": self._mode(scope, short),
            "concurrency": lane.cap,
            "running": lane.held,
            "waiting": lane.waiting,
            "scheduled": lane.scheduled,
            "lent": lane.lent,
            "borrowed": sum("borrowed_from" in job for job in jobs),
            "paused": lane.paused or lane.cap == 0,
            "pause_reason": self._pauses.get(name, self._pauses.get(short, "")) if lane.paused else "",
            "closed_until_ms": lane.closed_wall_ms if (lane.closed_wall_ms or 0) > self.wall else None,
            "closed_reason": lane.closed_reason if (lane.closed_wall_ms or 0) > self.wall else "",
            "pressure": lane.pressed,
            "pressure_threshold": config.pressure_threshold,
            "alert": ALERTS[lane.alert_level],
            "exclusive": config.exclusive,
            "rate": None if config.rate_limit is None else [config.rate_limit.count, config.rate_limit.window_ms],
            "queued_max": lane.queued_max,
            "group": next((pool.name for pool in lane.pools if pool is not self._kernel.registry.root), ""),
            "oldest_since_ms": None if oldest is None else self.wall - (self.now - oldest),
            "completed": counters.completed,
            "failed": counters.failed + counters.timed_out,
            "jobs": jobs,
            "more_jobs": max(0, len(holders) - len(jobs)),
            "queue": waiting,
            "more_queue": max(0, lane.waiting - len(waiting)),
        }

    def _mode(self, scope: str, short: str) -> str:
        """Who makes the calls of a lane of tools; empty for others."""
        found = self.census.sessions.get(scope)
        if found is None or short not in SESSION_LANES:
            return ""
        lanes = found[1].lanes
        return "" if lanes is None else lanes.handler_of(short).mode

    def totals(self) -> dict[str, Any]:
        """Everything together; jobs are counted, not slots."""
        kernel, registry = self._kernel, self._kernel.registry
        root = registry.root
        return {
            "lanes": len(registry.lanes),
            "running": kernel.running,
            "waiting": kernel.waiting,
            "scheduled": kernel.scheduled,
            "lent": kernel.lent,
            "max_concurrent": None if root is None else root.cap,
            "taken": kernel.running if root is None else root.held,
            "draining": kernel.draining or "",
        }

    # ---- jobs ----

    def holders(self, lane: Lane) -> list[Entry]:
        """Who has a slot of a lane, or has lent it: longest first."""
        if self._holders is None:
            found: dict[str, list[Entry]] = {}
            self._holders = found
            for entry in self._kernel.jobs.values():
                for unit in entry.units:
                    if type(unit) is Lane:
                        found.setdefault(unit.name, []).append(entry)
        return self._holders.get(lane.name, [])

    def waiting(self, lane: Lane, tenant: str) -> Iterator[dict[str, Any]]:
        """The first of those that wait in a lane, in the order in which they would start."""
        if not lane.waiting:
            return
        lane.queue.head(self.now)  # lets time move those that wait
        for position, entry in enumerate(islice(iter(lane.queue), WAITING_MAX), 1):
            yield self.job(entry, lane, tenant, position)

    def work_of(self, entry: Entry) -> Work:
        """What a job is, and whose."""
        found = self._works.get(entry.id)
        if found is None:
            found = self._works[entry.id] = self.census.work_of(entry)
        return found

    def job(self, entry: Entry, lane: Lane | None, tenant: str, position: int = 0) -> dict[str, Any]:
        """A job in a lane as a tenant sees it; what is empty is left out."""
        work = self.work_of(entry)
        is_own = work.owner is not None and work.owner.tenant == tenant
        begun = entry.state in (JobState.RUNNING, JobState.LENT)
        facts: dict[str, Any] = {
            "id": entry.id if is_own else "",
            "kind": work.kind,
            "state": entry.state.value,
            "since_ms": self.wall - (self.now - (entry.started_at if begun else entry.since)),
            "priority": entry.spec.priority.name.lower(),
            "position": position,
            "attempt": entry.attempt if entry.attempt > 1 else 0,
            "cancelling": entry.stop is not None,
        }
        if not is_own:
            facts["label"] = OTHERS
            facts["foreign"] = True
        else:
            assert work.owner is not None
            facts |= self._own_facts(entry, work, work.owner)
        if entry.state is JobState.QUEUED:
            facts |= self._why(entry, position) if is_own else self._others_why(entry, lane, position)
        if lane is not None and is_own:
            facts |= self._lending(entry, lane)
        return brief(facts)

    @staticmethod
    def _own_facts(entry: Entry, work: Work, owner: Owner) -> dict[str, Any]:
        return {
            "label": entry.spec.label or work.tool,
            "session": owner.session,
            "workspace": owner.workspace,
            "run": work.run_id,
            "tool": work.tool,
            "lanes": [lane.name for lane in entry.lanes],
        }

    def _why(self, entry: Entry, position: int) -> dict[str, Any]:
        """Why it waits, and until when if that is known; what is somebody else's is not named."""
        why = why_waits(self._kernel, entry, position or 1, now=self.now, wall_ms=self.wall)
        text = why.text
        if why.owner is not None and self.work_of(why.owner).owner != self.work_of(entry).owner:
            text = f"waits: exclusive lane {entry.lanes[entry.stage].name!r} is with another job"
        return {"reason": why.reason.value, "why": text, "until_ms": why.until_ms, "estimate_ms": why.estimate_ms}

    def _others_why(self, entry: Entry, lane: Lane | None, position: int) -> dict[str, Any]:
        """The same for a job of another tenant: it may wait for a lane that has the name of one of its sessions."""
        if lane is None or (entry.aside or entry.lanes[entry.stage]) is not lane:
            return {"reason": WaitReason.LANE.value, "why": "waits for a lane of its session"}
        return self._why(entry, position)

    def _lending(self, entry: Entry, lane: Lane) -> dict[str, Any]:
        """To whom it has lent its slot, or from whom it has one."""
        if entry.lent:
            return {"lent": True, "lent_to": self._borrowers(entry)}
        up = entry.up
        while up is not None:
            if up.lent and lane in up.units:
                return {"borrowed_from": up.id}
            up = up.up
        return {}

    def _borrowers(self, entry: Entry) -> Sequence[JobId]:
        if self._lent_to is None:
            self._lent_to = {}
            for wait in self._kernel.lending.waits.values():
                if wait.target is not None:
                    for node in wait.chain:
                        self._lent_to.setdefault(node, []).append(wait.target.id)
        return self._lent_to.get(entry, [])


def _role(scope: str, short: str) -> str:
    """What a lane is for."""
    if short.startswith(SESSION_TURNS):
        return "session"
    if short.startswith(MODEL_LANES):
        return "model"
    if f"{scope}/{short}" == WAIT_LANE:
        return "waits"
    if short in TURN_LANES:
        return "turns"
    if short in SESSION_LANES:
        return "tools" if scope else "template"
    return ""


def brief(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without those that say nothing (empty, zero, false, null): who reads them knows what is missing."""
    return {name: value for name, value in facts.items() if value or name == "id"}
