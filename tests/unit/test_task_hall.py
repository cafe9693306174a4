"""The hall of several desks: who gets which task, who is told what, and what a worker that goes away leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from laneway import Inbox
from laneway.errors import (
    LeaseLostError,
    RateLimitedError,
    StoreUnavailableError,
    TransportUnavailableError,
    UsageError,
)
from laneway.external import ExternalTaskResult, Lease, Progress
from laneway.kernel.task_entries import TaskNews, TaskOrder
from laneway.records import Effect
from laneway.rows import Owner
from laneway.runtime.task_desk import TaskDesk
from laneway.runtime.task_hall import CLAIM_MAX, Guest, TaskHall
from laneway.runtime.worker_book import FIRST_MAX, HOLD_MAX, REFUSE_AFTER, WARY_AFTER
from laneway.stores.memory import MemoryDisk
from tests.inbox_stage import CutStore, new_inbox, staged
from tests.stage import passing

LEASE = 1_000
TIMEOUT = 600_000
DONE = ExternalTaskResult(result="ok")


class Hall:
    """A hall with two desks over one store, as a gateway has them."""

    def __init__(self, store: CutStore, inboxes: dict[str, Inbox]) -> None:
        self.store = store
        self.engine = inboxes["alpha"].engine
        self.hall = TaskHall(self.engine.now, self.engine.wall)
        self.desks = {name: TaskDesk(inbox.engine, self.hall) for name, inbox in inboxes.items()}
        self.news: list[tuple[str, str]] = []

    async def put(self, *task_ids: str, at: str = "alpha", tenant: str = "default", **more: Any) -> None:
        """Publish tasks, one after the other in one instant."""
        owner = self.owner(at, tenant)
        desk = self.desks[at]
        desk.attend(owner, self._hear)
        facts: dict[str, Any] = {"lane": "execute", "command_type": "bash", "effect": "read", "lease_ms": LEASE, **more}
        facts["effect"] = Effect(facts["effect"])
        facts = {"timeout_ms": TIMEOUT, **facts}
        for task_id in task_ids:
            desk.offer(TaskOrder(owner=owner, task_id=task_id, payload={}, **facts))
        await self.engine_of(at).journal.committed(owner)
        for task_id in task_ids:
            desk.publish(task_id)

    def _hear(self, news: TaskNews) -> None:
        self.news.append((news.kind, news.entry.task_id))

    def engine_of(self, workspace: str) -> Any:
        return self.desks[workspace]._engine  # noqa: SLF001 - a desk has no way to its engine for others

    @staticmethod
    def owner(workspace: str = "alpha", tenant: str = "default") -> Owner:
        return Owner(tenant, workspace, "chat")

    async def take(self, worker: str = "w", **more: Any) -> list[Lease]:
        return await self.hall.claim(worker, **more)

    def state(self, task_id: str) -> str:
        return next((row.state for row in self.store.disk.states.values() if row.id == task_id), "nothing")


@asynccontextmanager
async def opened(disk: MemoryDisk | None = None) -> AsyncIterator[Hall]:
    store = CutStore(disk)
    async with AsyncExitStack() as stack:
        names = ("alpha", "beta")
        inboxes = {name: await stack.enter_async_context(new_inbox(store=store, workspace=name)) for name in names}
        made = Hall(store, inboxes)
        try:
            yield made
        finally:
            made.hall.close()
            for desk in made.desks.values():
                desk.close()


def soon(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


def ids(leases: list[Lease]) -> list[str]:
    return [lease.task["task_id"] for lease in leases]


# ---- who gets what ----


@staged
async def test_a_claim_that_waits_gets_all_tasks_of_one_instant_that_it_has_room_for() -> None:
    async with opened() as on:
        waiting = soon(on.take(limit=3, wait_ms=5_000))
        await passing()
        await on.put("a", "b", "c", "d")
        assert ids(await waiting) == ["a", "b", "c"]
        assert ids(await on.take()) == ["d"]


@staged
async def test_tasks_of_one_instant_are_spread_over_those_who_wait() -> None:
    async with opened() as on:
        waiting = []
        for number in range(3):
            waiting.append(soon(on.take(f"w{number}", limit=4, wait_ms=5_000)))
            await passing()
        await on.put("a", "b", "c", "d")
        assert [ids(await each) for each in waiting] == [["a", "d"], ["b"], ["c"]]


@staged
async def test_whoever_has_waited_longest_for_such_a_task_gets_it() -> None:
    async with opened() as on:
        other = soon(on.take("other", lanes=["query"], wait_ms=5_000))
        await passing()
        first = soon(on.take("first", commands=["bash"], wait_ms=5_000))
        await passing()
        second = soon(on.take("second", wait_ms=5_000))
        await passing()
        await on.put("a")
        await on.put("b")
        assert (ids(await first), ids(await second)) == (["a"], ["b"])
        await on.put("c", lane="query")
        assert ids(await other) == ["c"]


@staged
async def test_whoever_comes_back_waits_behind_those_who_stayed() -> None:
    async with opened() as on:
        first = soon(on.take("first", wait_ms=5_000))
        await passing()
        second = soon(on.take("second", commands=["bash"], wait_ms=5_000))
        await passing()
        third = soon(on.take("third", wait_ms=5_000))  # it asks for the same as the first one
        await passing()
        first.cancel()
        await passing()
        await on.put("a")
        assert ids(await second) == ["a"]
        await on.put("b")
        assert ids(await third) == ["b"]


@staged
async def test_a_worker_gets_tasks_of_all_desks_oldest_first() -> None:
    async with opened() as on:
        await on.put("a")
        await on.put("b", at="beta")
        await on.put("c")
        leases = await on.take(limit=9)
        assert ids(leases) == ["a", "b", "c"]
        assert [lease.task["workspace_name"] for lease in leases] == ["alpha", "beta", "alpha"]


@staged
async def test_a_worker_that_names_workspaces_gets_tasks_of_these_only() -> None:
    async with opened() as on:
        await on.put("a")
        assert await on.take(workspaces=["beta"]) == []
        waiting = soon(on.take(workspaces=["beta"], wait_ms=5_000))
        await passing()
        await on.put("b", at="beta")
        assert ids(await waiting) == ["b"]
        with pytest.raises(UsageError, match="there is no workspace 'gamma'"):
            await on.take(workspaces=["beta", "gamma"])


@staged
async def test_a_task_goes_only_to_a_worker_that_has_all_its_labels() -> None:
    async with opened() as on:
        plain = soon(on.take("plain", labels=["os=linux"], wait_ms=5_000))
        await passing()
        able = soon(on.take("able", labels=["os=linux", "gpu", "big"], wait_ms=5_000))
        await passing()
        await on.put("a", labels=("gpu", "os=linux"))
        assert ids(await able) == ["a"]
        await on.put("b")
        assert ids(await plain) == ["b"]


@staged
async def test_a_worker_of_a_tenant_sees_no_task_of_another_one() -> None:
    async with opened() as on:
        guest = Guest("token", "acme")
        waiting = soon(on.take("theirs", guest=guest, wait_ms=5_000))
        await passing()
        await on.put("a")
        assert ids(await on.take("all")) == ["a"]
        await on.put("b", tenant="acme")
        assert ids(await waiting) == ["b"]


@staged
async def test_another_tenants_task_is_answered_as_one_that_is_not_there() -> None:
    async with opened() as on:
        await on.put("mine", effect="write")
        (lease,) = await on.take()
        acme = on.hall.bound(Guest("token", "acme"))
        for ask in (
            lambda task_id: acme.start(task_id, lease.token),
            lambda task_id: acme.heartbeat(task_id, lease.token),
            lambda task_id: acme.complete(task_id, lease.token, DONE),
        ):
            said = []
            for task_id in ("mine", "none"):
                with pytest.raises(LeaseLostError) as refused:
                    await ask(task_id)
                said.append(str(refused.value).replace(task_id, "…"))
            assert said[0] == said[1]
        await acme.release("mine", lease.token)
        await on.hall.start("mine", lease.token)
        assert await on.hall.complete("mine", lease.token, DONE)


@staged
async def test_what_a_worker_says_finds_the_desk_of_its_task() -> None:
    async with opened() as on:
        await on.put("a")
        await on.put("b", at="beta", effect="write")
        for lease in await on.take(limit=2):
            task_id = lease.task["task_id"]
            await on.hall.start(task_id, lease.token)
            assert await on.hall.heartbeat(task_id, lease.token, Progress("half", 50))
            assert await on.hall.complete(task_id, lease.token, DONE)
            assert on.state(task_id) == "completed"
        assert on.news.count(("progress", "a")) == 1


# ---- sticky ----


@staged
async def test_a_sticky_task_waits_for_its_worker_and_then_for_anybody() -> None:
    async with opened() as on:
        sticky: dict[str, Any] = {"sticky": "session:chat", "sticky_ms": 500}
        await on.put("a", **sticky)
        (lease,) = await on.take("first")
        await on.hall.start("a", lease.token)
        other = soon(on.take("other", wait_ms=5_000))
        await passing()
        await on.put("b", **sticky)
        assert "waits up to 500 ms for the worker that" in on.desks["alpha"].why("b")
        await passing(499)
        assert not other.done()
        await passing(1)
        assert ids(await other) == ["b"]


@staged
async def test_the_worker_that_a_task_waits_for_gets_it_before_those_who_waited_longer() -> None:
    async with opened() as on:
        sticky: dict[str, Any] = {"sticky": "session:chat", "sticky_ms": 500}
        await on.put("a", **sticky)
        (lease,) = await on.take("first")
        await on.hall.start("a", lease.token)
        waiting = [soon(on.take("other", wait_ms=5_000)), soon(on.take("first", wait_ms=5_000))]
        await passing()
        await on.put("b", **sticky)
        assert ids(await waiting[1]) == ["b"]
        assert not waiting[0].done()


# ---- why ----


@staged
async def test_why_says_what_a_task_waits_for() -> None:
    async with opened() as on:
        desk = on.desks["alpha"]
        await on.put("a", labels=("gpu",))
        assert desk.why("a") == "no worker has asked for tasks lately"
        assert await on.take("plain") == []
        assert desk.why("a") == "no worker takes such tasks (lane execute, tool bash, workspace alpha, labels gpu)"
        named = on.hall.why(desk.board.live["a"], by_name=True)
        assert named == "no worker takes such tasks: plain has no label gpu"
        await on.take("able", labels=["gpu"], lanes=["execute"])
        assert desk.why("a") == ""
        await on.put("b", labels=("gpu",))
        assert desk.why("b") == "every worker that could take it is busy"
        assert on.hall.why(desk.board.live["b"], by_name=True).endswith("is busy: able")
        desk.withdraw("a", "nobody wants it")
        await passing(40_000)
        said = "worker 'able' was last heard of 40 s ago, and asks for nothing now"
        assert on.hall.why(desk.board.live["b"], by_name=True) == said
        assert desk.why("b").startswith("the last worker that could take it was last heard of 40 s ago")
        assert desk.why("nothing") == ""


@pytest.mark.parametrize("able_first", [True, False])
def test_why_tells_workers_of_one_name_apart(able_first: bool) -> None:
    @staged
    async def run() -> None:
        async with opened() as on:
            claims: list[dict[str, Any]] = [
                {"labels": ["gpu"], "about": {"instance": "i"}},
                {"about": {"instance": "j"}},
            ]
            for more in claims if able_first else reversed(claims):
                assert await on.take("box", **more) == []
                await passing(10)
            await on.put("a", labels=("gpu",))
            assert on.desks["alpha"].why("a").startswith("the last worker that could take it was last heard of")

    run()
    assert able_first in (True, False)


# ---- bounds ----


@staged
async def test_open_claims_together_get_no_more_than_one_worker_may_have() -> None:
    """Several claims of one worker wait; each of them alone is within its bounds."""
    async with opened() as on:
        await on.put(*(f"t{number}" for number in range(WARY_AFTER)))
        for _ in range(WARY_AFTER):
            await on.take("w")
            await passing(LEASE)  # it has begun none of them
        assert len(await on.take("other", limit=9, guest=Guest("other"))) == WARY_AFTER
        waiting = []
        for _ in range(2):
            waiting.append(soon(on.take("w", limit=5, wait_ms=5_000)))
            await passing()
        await on.put("a", "b", "c")
        assert ids(await waiting[0]) == ["a"]
        with pytest.raises(RateLimitedError, match="may not have more"):
            await waiting[1]
        assert ids(await on.take("other", limit=9, guest=Guest("other"))) == ["b", "c"]


@staged
async def test_a_claim_that_is_just_being_answered_gets_no_more_than_its_worker_may_have() -> None:
    """It was trusted when it asked."""
    async with opened() as on:
        waiting = soon(on.take("w", lanes=["query"], limit=5, wait_ms=50_000))
        await passing()
        await on.put(*(f"t{number}" for number in range(WARY_AFTER)))
        for _ in range(WARY_AFTER):
            await on.take("w")
            await passing(LEASE)
        await on.put("a", "b", lane="query")
        assert ids(await waiting) == ["a"]


@staged
async def test_a_worker_that_is_refused_gets_nothing_through_a_claim_that_waits() -> None:
    async with opened() as on:
        names = [f"t{number}" for number in range(REFUSE_AFTER)]
        await on.put(*names)
        waiting = soon(on.take("w", lanes=["query"], wait_ms=50_000))
        await passing()
        for _ in range(REFUSE_AFTER):
            await on.take("w")
            await passing(LEASE)
        await on.put("late", lane="query")
        with pytest.raises(RateLimitedError, match="begun none of them") as refused:
            await waiting
        assert 0 < refused.value.retry_after_ms <= 1_000
        assert "late" in ids(await on.take("other", limit=50, guest=Guest("other")))


@pytest.mark.slow
@staged
async def test_a_worker_has_at_most_a_thousand_tasks() -> None:
    async with opened() as on:
        await on.put(*(f"t{number}" for number in range(HOLD_MAX + 10)), lease_ms=TIMEOUT)
        first = await on.take("w", limit=600)
        assert len(first) == FIRST_MAX  # it has never begun anything
        await on.hall.start(first[0].task.task_id, first[0].token)
        assert len(await on.take("w", limit=CLAIM_MAX)) == HOLD_MAX - FIRST_MAX
        with pytest.raises(RateLimitedError, match="may not have more"):
            await on.take("w")
        assert len(await on.take("other", limit=600, guest=Guest("other"))) == 10


# ---- whoever goes away ----


@staged
async def test_a_claim_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    async with opened() as on:
        waiting = soon(on.take("gone", wait_ms=5_000))
        await passing()
        waiting.cancel()
        await passing()
        await on.put("a")
        assert ids(await on.take("there")) == ["a"]
        assert [record.waiting for record in on.hall.workers()] == [0, 0]


@staged
async def test_tasks_of_a_claim_that_is_cancelled_when_it_has_them_go_back_at_once() -> None:
    async with opened() as on:
        waiting = soon(on.take("gone", limit=2, wait_ms=5_000))
        await passing()
        owner = on.owner()
        desk = on.desks["alpha"]
        for task_id in ("a", "b"):
            facts: dict[str, Any] = {"lane": "execute", "command_type": "bash", "payload": {}}
            desk.offer(
                TaskOrder(
                    owner=owner, task_id=task_id, effect=Effect.WRITE, timeout_ms=TIMEOUT, lease_ms=LEASE, **facts
                )
            )
        await on.engine.journal.committed(owner)
        desk.publish("a")
        desk.publish("b")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ids(await on.take("there", limit=2)) == ["a", "b"]


@staged
async def test_what_a_cancelled_claim_gives_back_does_not_come_to_it_again() -> None:
    async with opened() as on:
        waiting = soon(on.take("gone", limit=50, wait_ms=5_000))
        await passing()
        desk, owner = on.desks["alpha"], on.owner()
        await on.put()  # it listens
        facts: dict[str, Any] = {"lane": "execute", "command_type": "bash", "payload": {}, "effect": Effect.READ}
        desk.offer(TaskOrder(owner=owner, task_id="a", timeout_ms=TIMEOUT, lease_ms=LEASE, **facts))
        await on.engine.journal.committed(owner)
        desk.publish("a")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert on.news == [("pending", "a"), ("requeued", "a")]
        assert desk.hall.book.claimed == 1


@staged
async def test_a_claim_that_is_cancelled_while_its_host_closes_is_cancelled() -> None:
    """What it was given cannot be given back any more; whoever cancelled it must not hear of that."""
    async with opened() as on:
        await on.put("a")
        waiting = soon(on.take("gone", lanes=["query"], wait_ms=5_000))
        await passing()
        desk, owner = on.desks["alpha"], on.owner()
        desk.offer(
            TaskOrder(
                owner=owner,
                task_id="b",
                lane="query",
                command_type="bash",
                payload={},
                effect=Effect.READ,
                timeout_ms=TIMEOUT,
                lease_ms=LEASE,
            )
        )
        await on.engine.journal.committed(owner)
        desk.publish("b")
        waiting.cancel()
        for each in on.desks.values():
            each.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@staged
async def test_a_hall_that_closes_tells_everybody_who_waits() -> None:
    async with opened() as on:
        waiting = [soon(on.take(f"w{number}", wait_ms=5_000)) for number in range(3)]
        await passing()
        on.hall.close()
        for each in waiting:
            with pytest.raises(TransportUnavailableError):
                await each
        with pytest.raises(TransportUnavailableError):
            await on.take()


# ---- two with one name ----


@staged
async def test_two_workers_of_one_name_are_two_and_people_hear_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    async with opened() as on:
        await on.put("a", "b")
        (one,) = await on.take("w", about={"instance": "i1"})
        (two,) = await on.take("w", about={"instance": "i2"})
        assert one.token != two.token
        with pytest.raises(LeaseLostError):
            await on.hall.start("a", two.token)
        await on.hall.start("a", one.token)
        assert [record.shares_name for record in on.hall.workers()] == [True, True]
        assert [record.instance for record in on.hall.workers()] == ["i1", "i2"]
        assert sum("two workers are called 'w'" in line for line in caplog.messages) == 1


@staged
async def test_a_worker_that_goes_on_after_a_restart_is_one_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    disk = MemoryDisk()
    async with opened(disk) as on:
        await on.put("a", effect="write")
        (lease,) = await on.take("w", about={"instance": "i1"})
        await on.hall.start("a", lease.token)
    async with opened(disk) as later:
        await later.desks["alpha"].load(later.owner())
        assert await later.hall.heartbeat("a", lease.token)
        assert await later.take("w", about={"instance": "i1", "concurrency": 4}) == []
        (record,) = later.hall.workers()
        assert (record.instance, record.concurrency, record.shares_name) == ("i1", 4, False)
        assert [entry.task_id for entry in record.holds()] == ["a"]
        assert not [line for line in caplog.messages if "two workers" in line]


# ---- what is told, and when ----


@staged
async def test_an_unknown_end_that_is_settled_before_it_is_on_disk_is_told_when_both_are() -> None:
    async with opened() as on:
        await on.put("a", effect="write")
        (lease,) = await on.take()
        await on.hall.start("a", lease.token)
        on.store.delay_ms = 50
        await passing(LEASE + 10)  # it ends unknown, and that is on its way
        completing = soon(on.hall.complete("a", lease.token, DONE))
        outcome = soon(on.desks["alpha"].outcome("a"))
        await passing(45)
        assert on.state("a") == "unknown"
        assert not completing.done()
        assert not outcome.done()
        assert ("settled", "a") not in on.news
        await passing(60)
        assert (await completing, on.state("a"), (await outcome).state) == (True, "completed", "completed")
        assert on.news[-2:] == [("ended", "a"), ("settled", "a")]


@staged
async def test_a_late_result_that_the_store_refused_is_not_said_to_count() -> None:
    """The unknown end before it is on disk; the worker says its result again until that is, too."""
    async with opened() as on:
        await on.put("a", effect="write")
        (lease,) = await on.take()
        await on.hall.start("a", lease.token)
        on.store.delay_ms = 50
        await passing(LEASE + 10)
        completing = soon(on.hall.complete("a", lease.token, DONE))
        await passing(45)  # the unknown end is on disk
        on.store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await completing
        with pytest.raises(StoreUnavailableError):
            await on.hall.complete("a", lease.token, DONE)
        on.store.refuse = lambda batch: False
        assert await on.hall.complete("a", lease.token, DONE)
        assert on.state("a") == "completed"


@staged
async def test_a_task_whose_lease_and_time_end_while_the_host_stands_still_is_given_to_nobody() -> None:
    async with opened() as on:
        await on.put("a", timeout_ms=LEASE + 500)
        (lease,) = await on.take("first")
        await on.hall.start("a", lease.token)
        waiting = soon(on.take("other", wait_ms=60_000))
        await passing()
        now = on.engine.now()
        on.engine.now = lambda: now + 10_000  # both are over when its timer rings at last
        await passing(LEASE)
        assert on.state("a") == "timed_out"
        assert [kind for kind, _ in on.news] == ["pending", "started", "ended"]
        assert not waiting.done()


@staged
async def test_a_task_that_is_given_back_while_its_session_is_closed_waits_in_the_store() -> None:
    async with opened() as on:
        await on.put("a", effect="idempotent")
        (lease,) = await on.take("first")
        await on.hall.start("a", lease.token)
        desk, owner = on.desks["alpha"], on.owner()
        desk.dismiss(owner)
        other = soon(on.take("other", wait_ms=5_000))
        await passing()
        await on.hall.release("a", lease.token, begun=True)
        await passing()
        assert (on.state("a"), other.done()) == ("pending", False)
        await desk.load(owner)
        desk.publish("a")
        (again,) = await other
        assert (again.task["task_id"], again.task["attempt"]) == ("a", 2)
        await on.hall.start("a", again.token)
        assert await on.take("third") == []
