"""Scenarios 45 and 46 of the behaviour page: workers that die, over the local transport, and a host that does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.errors import LeaseLostError
from laneway.external import ExternalTaskResult, Lease
from laneway.models import ScriptedModel, say
from laneway.options import LaneHandlerConfig, SessionQueueConfig
from laneway.stores.memory import MemoryStore
from laneway.transports import LocalTransport
from laneway.worker import Worker
from tests.agent_stage import Bench, Watch, agent_of, check_model, opened, results, sending, session_of, statuses, use
from tests.inbox_stage import CutStore, kill, staged
from tests.stage import passing

LEASE = 1_000
READS, WRITES, IDEMPOTENT = "check", "act", "put"


def outside() -> SessionQueueConfig:
    """A queue whose lane `execute` is for workers."""
    handler = LaneHandlerConfig("external", 600_000, lease_ms=LEASE)
    return SessionQueueConfig(lane_handlers={"execute": handler})


def transport_of(session: AsyncSession) -> LocalTransport:
    """How a worker reaches the tasks of this host."""
    return LocalTransport(session.host.desk)


class Hands:
    """What a worker does with a task: writes it down."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def handlers(self) -> dict[str, Callable[[Any], Awaitable[str]]]:
        """For every tool of the bench."""
        return dict.fromkeys((READS, WRITES, IDEMPOTENT), self._do)

    async def _do(self, task: Any) -> str:
        self.done.append(task["payload"]["key"])
        return f"by {task['attempt']}"


async def taken(session: AsyncSession, worker: str, *, begins: bool) -> Lease:
    """A worker takes the task, begins or not, and is never heard of again."""
    transport = transport_of(session)
    [lease] = await transport.claim(worker, wait_ms=10_000)
    if begins:
        await transport.start(lease.task["task_id"], lease.token)
    return lease


@pytest.mark.parametrize(
    ("tool", "begins", "status", "done"),
    [
        (WRITES, True, "unknown", []),
        (READS, True, "ok", ["k"]),
        (IDEMPOTENT, True, "ok", ["k"]),
        (WRITES, False, "ok", ["k"]),
        (READS, False, "ok", ["k"]),
        (IDEMPOTENT, False, "ok", ["k"]),
    ],
)
@staged
async def test_45_a_task_of_a_dead_worker_goes_to_another_unless_its_effect_may_be_there(
    tool: str, begins: bool, status: str, done: list[str]
) -> None:
    """Worker dies after `started` with a write / unknown, not run again; with a read / another; before / goes back."""
    bench, hands = Bench(), Hands()
    model = ScriptedModel([use(tool, "k"), [say("done")]])
    async with opened(model, bench, queue=outside()) as session:
        watch = Watch((await session.ready()).subscribe())
        sent = sending(session, "go")
        lease = await taken(session, "dies", begins=begins)
        async with Worker(transport_of(session), handlers=hands.handlers(), name="lives") as worker:
            assert (await sent).text == "done"
            await passing(60_000)
            assert worker.stats.completed == len(done)
        assert statuses(model.requests[-1]) == [("k", status)]
        late = transport_of(session).complete(
            lease.task["task_id"], lease.token, ExternalTaskResult(result="after all")
        )
        if status == "unknown":
            assert await late  # nobody else had it: it settles what nobody knew
            [entry] = await session.ledger()
            assert entry.state == "done"
        else:
            with pytest.raises(LeaseLostError):
                await late
    assert hands.done == done
    assert bench.began == []  # never here
    (ended,) = watch.of("external_task_completed")
    assert ended.state == ("unknown" if status == "unknown" else "completed")
    attempts = [event.attempt for event in watch.of("external_task_pending")]
    assert attempts == {("ok", True): [1, 2], ("ok", False): [1, 1], ("unknown", True): [1]}[status, begins]
    check_model(model)


@staged
async def test_45_a_worker_that_shows_signs_of_life_keeps_its_task_for_as_long_as_it_takes() -> None:
    gate = asyncio.Event()

    async def slow(_task: Any) -> str:
        await gate.wait()
        return "at last"

    model = ScriptedModel([use(WRITES, "k"), [say("done")]])
    async with opened(model, Bench(), queue=outside()) as session:
        sent = sending(await session.ready(), "go")
        async with Worker(transport_of(session), handlers={WRITES: slow}) as worker:
            await passing(20 * LEASE)
            assert (sent.done(), worker.stats.running) == (False, 1)
            gate.set()
            assert (await sent).text == "done"
    assert [each.output for each in results(model.requests[-1])] == ["at last"]


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("tool", [READS, WRITES, IDEMPOTENT])
@staged
async def test_46_the_result_of_a_task_counts_once_although_the_host_was_killed_meanwhile(
    tool: str, begins: bool
) -> None:
    """Gateway killed with a task out / restart / result accepted once."""
    bench, store = Bench(), CutStore()
    first = agent_of(ScriptedModel([use(tool, "k")]), bench, session_store=store)
    await first.__aenter__()
    session = await session_of(first, queue=outside(), session_id="s").ready()
    await session.followup("go")
    lease = await taken(session, "w", begins=begins)
    disk = kill(session.host.inbox, store)
    model = ScriptedModel([[say("done")]])
    async with agent_of(model, bench, session_store=MemoryStore(disk)) as agent:
        session = await session_of(agent, queue=outside(), session_id="s").ready()
        transport = transport_of(session)
        if begins and tool != READS:  # that it began is on disk, and so its worker goes on
            token = lease.token
        else:
            [again] = await transport.claim("w", wait_ms=10_000)
            assert again.task["task_id"] == lease.task["task_id"]
            token = again.token
            await transport.start(again.task["task_id"], token)
        for _ in range(2):  # twice is answered the same
            assert await transport.complete(lease.task["task_id"], token, ExternalTaskResult(result="from the worker"))
        await session.wait_idle()
        said = [str(each) for each in await session.history()]
        assert sum("from the worker" in line for line in said) == 1
        assert await session.pending_external_tasks() == []
    assert [each.output for each in results(model.requests[-1])] == ["from the worker"]
    assert said[-1].endswith("done")
    assert bench.began == []
