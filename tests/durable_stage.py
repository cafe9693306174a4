"""What tests of durable jobs share: a disk that outlives its lanes, processes that die, handlers that keep a diary."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from laneway import LaneConfig, Lanes
from laneway.ports import Store
from laneway.rows import Batch, BatchResult
from laneway.sim.loop import run_sim
from laneway.stores import MemoryDisk, MemoryStore
from laneway.testing import LoopClock, fake_host
from tests.stage import Diary, now_ms

_OPEN: list[Lanes] = []  # a killed process takes its tasks with it; nothing may collect them before
LANES: Mapping[str, LaneConfig | int] = {"one": 1, "two": 2, "wide": 50}


def durable_lanes(
    store: Store | MemoryDisk, lanes: Mapping[str, LaneConfig | int] | None = None, **options: Any
) -> Lanes:
    """Lanes with durable jobs, in virtual time; the wall clock begins where the test says."""
    clock = LoopClock(wall_ms=options.pop("wall_ms", 1_700_000_000_000))
    options.setdefault("host", fake_host(clock=clock))
    return Lanes(lanes or LANES, store=MemoryStore(store) if isinstance(store, MemoryDisk) else store, **options)


async def open_for_good(store: Store, **options: Any) -> Lanes:
    """Lanes that are never closed: their process is going to die."""
    lanes = await durable_lanes(store, **options).__aenter__()
    _OPEN.append(lanes)
    return lanes


def rows_of(disk: MemoryDisk) -> dict[str, str]:
    """The jobs on a disk: what their payload says, and their state."""
    found = [row for row in disk.states.values() if row.kind == "job"]
    return {_name_of(json.loads(row.body)["payload"]): row.state for row in sorted(found, key=lambda row: row.seq)}


def body_of(disk: MemoryDisk, name: str) -> dict[str, Any]:
    """The body of the row of one job."""
    for row in disk.states.values():
        if row.kind == "job" and _name_of((body := json.loads(row.body))["payload"]) == name:
            return {**body, "state": row.state, "id": row.id}
    raise AssertionError(f"there is no row of {name!r}: {rows_of(disk)}")


def _name_of(payload: Any) -> str:
    return str(payload["name"]) if isinstance(payload, dict) and "name" in payload else str(payload)


class Mortal(MemoryStore):
    """A store whose process may die: from then on nothing is written and nobody is answered.

    With `lives` it dies at that commit (counted from 1 after it was opened): before it is written, or after.
    """

    def __init__(self, disk: MemoryDisk, *, lives: int = 0, before: bool = True) -> None:
        super().__init__(disk)
        self.commits = 0
        self._lives = lives
        self._before = before
        self.died = asyncio.Event()

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Write and answer while the process lives."""
        if self.died.is_set():
            await asyncio.Event().wait()
        self.commits += 1
        if self.commits == self._lives:
            if not self._before:
                await super().commit(batches)
            self.die()
            await asyncio.Event().wait()
        return await super().commit(batches)

    def die(self) -> None:
        """The process is killed."""
        self.died.set()


class Worker(Diary):
    """A diary whose jobs are handlers: the payload is a name, or a mapping with a name and what to do."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        super().__init__()
        self._disk = disk
        self.payloads: list[Any] = []
        self.times: list[int] = []  # when each of them began

    def register(self, lanes: Lanes) -> None:
        """Be the handlers `work`, `hold`, `fail` and `note` of these lanes."""
        lanes.handler("work", self.do_work)
        lanes.handler("hold", self.do_hold)
        lanes.handler("fail", self.do_fail)
        lanes.handler("note", self.do_note)

    async def do_work(self, payload: Any) -> str:
        """Work for a while."""
        self._seen(payload)
        ms = payload.get("ms", 10) if isinstance(payload, dict) else 10
        return await self.work(_name_of(payload), ms)

    async def do_hold(self, payload: Any) -> str:
        """Run until the test lets go."""
        self._seen(payload)
        return await self.hold(_name_of(payload))

    async def do_fail(self, payload: Any) -> str:
        """Fail with a ValueError that says the name."""
        self._seen(payload)
        return await self.fail(_name_of(payload), ValueError(f"{_name_of(payload)} is no good"))

    def do_note(self, payload: Any) -> str:
        """A sync handler."""
        self._seen(payload)
        return self.note(_name_of(payload))

    def _seen(self, payload: Any) -> None:
        self.payloads.append(payload)
        with contextlib.suppress(RuntimeError):  # on a thread there is no loop, and no virtual time
            self.times.append(now_ms())
        if self._disk is not None:
            state = rows_of(self._disk).get(_name_of(payload))
            assert state == "running", f"{payload} runs and its row says {state}"


def lifetimes(*mains: Callable[[], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    """Run each of these as a process of its own, one after the other: what one leaves behind ends with it."""
    for main in mains:
        run_sim(main(), seed=seed)
        _OPEN.clear()
