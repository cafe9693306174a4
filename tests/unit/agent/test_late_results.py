"""A late result of a write settles what the ledger says of it, whatever has happened to its session meanwhile."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from laneway.external import ExternalTaskResult, Lease
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import sending, use
from tests.stage import passing, simulated
from tests.unit.agent.test_externals import FLEET, desk, outside, pending

LATE = ExternalTaskResult(result="late")


async def lost(disk: MemoryDisk) -> Lease:
    """A write that is unknown because its worker was silent, in a session that was closed."""
    async with outside(use("act", "a"), lane_handlers=FLEET, **at(disk, "s1")) as (session, _, _):
        sent = sending(session, "go")
        await pending(session)
        [lease] = await desk(session).claim("w1")
        await desk(session).start(lease.task["task_id"], lease.token)
        await sent
        assert await states(session) == ["unknown"]
        return lease


def at(disk: MemoryDisk, name: str) -> dict[str, Any]:
    return {"session_id": name, "session_store": MemoryStore(disk=disk)}


async def states(session: Any) -> list[str]:
    return [entry.state.value for entry in await session.ledger()]


@simulated
async def test_while_nobody_has_its_session_open() -> None:
    disk = MemoryDisk()
    lease = await lost(disk)
    async with outside(lane_handlers=FLEET, **at(disk, "s2")) as (other, _, _):
        assert await desk(other).complete(lease.task["task_id"], lease.token, LATE)
        assert await desk(other).complete(lease.task["task_id"], lease.token, LATE), "said again, it is the same"
    async with outside(lane_handlers=FLEET, **at(disk, "s1")) as (session, _, _):
        [entry] = await session.ledger()
        assert (entry.state.value, entry.reason) == ("done", f"a late result of task {lease.task['task_id']}")


@simulated
async def test_in_a_session_that_was_opened_again_and_has_read_nothing_yet() -> None:
    disk = MemoryDisk()
    lease = await lost(disk)
    async with outside(lane_handlers=FLEET, **at(disk, "s1")) as (session, _, _):
        assert await desk(session).complete(lease.task["task_id"], lease.token, LATE)
        assert await states(session) == ["done"]
    async with outside(lane_handlers=FLEET, **at(disk, "s1")) as (session, _, _):
        assert await states(session) == ["done"]


@simulated
async def test_in_a_session_that_goes_on_it_is_on_disk_with_the_end_of_the_task() -> None:
    disk = MemoryDisk()
    lease = await lost(disk)
    async with AsyncExitStack() as stack:
        session, _, _ = await stack.enter_async_context(outside(lane_handlers=FLEET, **at(disk, "s1")))
        assert await states(session) == ["unknown"]
        assert await desk(session).complete(lease.task["task_id"], lease.token, LATE)
        written = [row.state for row in disk.states.values() if row.kind in ("intent", "task")]
        assert sorted(written) == ["completed", "done"]


@pytest.mark.parametrize("by_host", [False, True])
@simulated
async def test_one_that_says_no_makes_it_failed(by_host: bool) -> None:
    disk = MemoryDisk()
    lease = await lost(disk)
    no = ExternalTaskResult(success=False, error="there was no route")
    async with outside(lane_handlers=FLEET, **at(disk, "s2")) as (other, _, _):
        if by_host:
            assert await desk(other).complete_by_host(lease.task["task_id"], no)
        else:
            assert await desk(other).complete(lease.task["task_id"], lease.token, no)
        await passing()
    async with outside(lane_handlers=FLEET, **at(disk, "s1")) as (session, _, _):
        assert await states(session) == ["failed"]
