"""Ids that are counted, and a store that lives longer than the process that counts."""

from __future__ import annotations

from laneway import AsyncAgent, FixedClock, HostEnv, Lanes, SequentialIdGenerator
from laneway.models import ScriptedModel, say
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.stage import simulated


def host() -> HostEnv:
    """As each process makes it: it counts from 1."""
    return HostEnv(clock=FixedClock(1_700_000_000_000), ids=SequentialIdGenerator())


async def life(disk: MemoryDisk, session_id: str, **told: str) -> list[str]:
    """A process that sends and has answered; the ids of its runs."""
    model = ScriptedModel([[say(answer)] for answer in told.values()])
    async with AsyncAgent(
        model, builtin_tools=False, session_store=MemoryStore(disk), record=True, host=host()
    ) as agent:
        session = agent.session(session_id=session_id)
        results = [await session.send(text) for text in told]
        assert [each.text for each in results] == list(told.values())
        return [each.run_id for each in results]


async def said_in(disk: MemoryDisk, session_id: str) -> list[str]:
    async with AsyncAgent(ScriptedModel([]), builtin_tools=False, session_store=MemoryStore(disk)) as agent:
        return [str(each) for each in await agent.session(session_id=session_id).history()]


@simulated
async def test_a_kept_store_gets_no_id_twice_from_processes_that_count_from_one() -> None:
    disk = MemoryDisk()
    runs = await life(disk, "s", first="one", second="two")
    runs += await life(disk, "s", third="three")
    runs += await life(disk, "t", other="five", another="six")
    assert len(set(runs)) == 5
    told = ["first", "one", "second", "two", "third", "three"]
    assert [each.split(": ")[1] for each in await said_in(disk, "s")] == told
    assert [each.split(": ")[1] for each in await said_in(disk, "t")] == ["other", "five", "another", "six"]


@simulated
async def test_the_same_store_and_the_same_inputs_give_the_same_ids() -> None:
    lives = []
    for _ in range(2):
        disk = MemoryDisk()
        lives.append([await life(disk, "s", first="one"), await life(disk, "s", second="two")])
    assert lives[0] == lives[1] == [["turn-3"], ["turn-2.3"]]


@simulated
async def test_durable_jobs_of_a_kept_store_get_no_id_twice() -> None:
    disk, ids = MemoryDisk(), []
    for _ in range(2):
        async with Lanes({"main": 1}, store=MemoryStore(disk), host=host()) as lanes:
            lanes.handler("note", lambda payload: None)
            job = await lanes.enqueue("main", "note", {})
            ids.append(job.id)
            await job
    assert len(set(ids)) == 2
