"""The kernel counted anew after a step: who holds what, who waits where. Plain fields only, nothing remembered."""

from __future__ import annotations

from collections.abc import Iterator

from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import Lane, Pool, Resource
from laneway.kernel.scheduler import Kernel
from laneway.records import JobId, JobState

__all__ = ("BEGUN", "Picture", "pools_of")

BEGUN = (JobState.RUNNING, JobState.LENT)
Key = tuple[JobId, int]  # a job and the attempt that it runs or waits to begin


class Picture:
    """One moment of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.lanes = set(kernel.registry.lanes)
        self.states = dict.fromkeys(JobState, 0)
        self.begun: set[Key] = set()
        self.holders: dict[Resource, dict[Key, Entry]] = {}
        self.lent: dict[Resource, int] = {}
        self.waiting: dict[Lane, dict[Key, Entry]] = {}
        self.aside: dict[Key, Entry] = {}
        self.scheduled: dict[Lane, int] = {}
        self.users: dict[Lane, int] = {}
        self.wanted: set[JobId] = set()
        for entry in kernel.jobs.values():
            self._add(entry)
        self.held = {unit: len(holders) for unit, holders in self.holders.items()}

    def _add(self, entry: Entry) -> None:
        state = entry.state
        if state not in BEGUN or not entry.is_part:  # a slot inside a job is counted with that job
            self.states[state] += 1
        key = (entry.id, entry.attempt if state in BEGUN else entry.attempt + 1)
        if state in BEGUN:
            self.begun.add(key)
        if entry.wanted:
            self.wanted.add(entry.id)
        for lane in entry.lanes:
            self.users[lane] = self.users.get(lane, 0) + 1
            if state is JobState.SCHEDULED:
                self.scheduled[lane] = self.scheduled.get(lane, 0) + 1
        for unit in entry.units:
            if state is JobState.LENT and unit.name != "threads":
                self.lent[unit] = self.lent.get(unit, 0) + 1
            else:
                self.holders.setdefault(unit, {})[key] = entry
        if state is JobState.QUEUED:
            self.waiting.setdefault(entry.lanes[entry.stage], {})[key] = entry
            if entry.aside is not None:
                self.aside[key] = entry

    def new_holders(self, unit: Resource, before: Picture) -> tuple[list[Entry], list[Entry]]:
        """Who holds a unit now and did not before: those that started, and those that took it back."""
        old = before.holders.get(unit, {})
        new = {key: entry for key, entry in self.holders.get(unit, {}).items() if key not in old}
        back = [entry for key, entry in new.items() if key in before.begun]
        return [entry for key, entry in new.items() if key not in before.begun], back

    def changed(self, before: Picture) -> list[str]:
        """What differs from an earlier picture, in words."""
        names = ("states", "begun", "held", "lent", "scheduled", "users", "wanted")
        pairs = ((name, getattr(before, name), getattr(self, name)) for name in names)
        made = sorted(self.lanes - before.lanes)  # idle ones may be forgotten at any time
        found = [f"lanes (made {', '.join(made)})"] if made else []
        return found + [f"{name} (was {old}, is {new})" for name, old, new in pairs if old != new]


def pools_of(kernel: Kernel) -> Iterator[Pool]:
    """Every cap that lanes share."""
    found: dict[Pool, None] = {kernel.threads: None}
    for lane in kernel.registry.lanes.values():
        found.update(dict.fromkeys(lane.pools))
    return iter(found)
