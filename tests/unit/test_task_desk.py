"""The desk of external tasks: what is on disk when, who is told what, and what survives a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from laneway import Inbox
from laneway.errors import (
    ClosedError,
    LeaseLostError,
    StoreUnavailableError,
    TransportUnavailableError,
    UnknownTaskError,
    UsageError,
)
from laneway.external import ExternalTaskResult, Lease, Progress, TaskState
from laneway.kernel.task_entries import TaskEnd, TaskNews, TaskOrder
from laneway.records import Effect
from laneway.rows import Batch, Owner, StateRow
from laneway.runtime.task_desk import TaskDesk
from laneway.stores.memory import MemoryDisk
from tests.inbox_stage import CutStore, kill, new_inbox, staged
from tests.stage import passing

OWNER = Owner("default", "default", "chat")
LEASE = 1_000
TIMEOUT = 60_000
DONE = ExternalTaskResult(result={"output": "ok"})
BROKEN = ExternalTaskResult(success=False, error="no")


class Stage:
    """A desk over an inbox, and what its session hears."""

    def __init__(self, inbox: Inbox, store: CutStore) -> None:
        self.inbox = inbox
        self.store = store
        self.engine = inbox.engine
        self.desk = TaskDesk(inbox.engine)
        self.news: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.desk.attend(OWNER, self._hear)

    def _hear(self, news: TaskNews) -> None:
        self.news.append((news.kind, news.entry.task_id))
        self.notes.append(news.note)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.news]

    async def put(self, task_id: str = "t", effect: str = "read", **more: Any) -> None:
        self.offer(task_id, effect, **more)
        await self.engine.journal.committed(OWNER)
        self.desk.publish(task_id)

    def offer(self, task_id: str = "t", effect: str = "read", **more: Any) -> None:
        facts: dict[str, Any] = {
            "owner": OWNER,
            "lane": "execute",
            "command_type": "bash",
            "payload": {"command": "ls"},
            "timeout_ms": TIMEOUT,
            "lease_ms": LEASE,
            **more,
        }
        self.desk.offer(TaskOrder(task_id=task_id, effect=Effect(effect), **facts))

    async def take(self, worker: str = "w", **more: Any) -> Lease:
        leases = await self.desk.claim(worker, **more)
        assert len(leases) == 1, leases
        return leases[0]

    async def begin(self, task_id: str = "t", effect: str = "read", **more: Any) -> Lease:
        await self.put(task_id, effect, **more)
        lease = await self.take()
        await self.desk.start(task_id, lease.token)
        return lease

    def row(self, task_id: str = "t") -> StateRow | None:
        return next((row for row in self.store.disk.states.values() if row.id == task_id), None)

    def state(self, task_id: str = "t") -> str:
        row = self.row(task_id)
        return row.state if row is not None else "nothing"


@asynccontextmanager
async def stage(disk: MemoryDisk | None = None) -> AsyncIterator[Stage]:
    store = CutStore(disk)
    async with new_inbox(store=store) as inbox:
        made = Stage(inbox, store)
        try:
            yield made
        finally:
            made.desk.close()


def soon(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


# ---- what is on disk when ----


@staged
async def test_an_offered_task_is_on_disk_before_anybody_can_claim_it() -> None:
    async with stage() as on:
        on.offer()
        assert on.desk.tasks() == []
        assert await on.desk.claim("w") == []
        await on.engine.journal.committed(OWNER)
        assert on.state() == "pending"
        on.desk.publish("t")
        assert [task.task_id for task in on.desk.tasks(OWNER)] == ["t"]
        assert on.desk.count(OWNER) == 1
        assert on.news == [("pending", "t")]


@staged
async def test_a_task_that_the_store_refuses_is_withdrawn_for_good() -> None:
    async with stage() as on:
        on.store.refuse = lambda batch: any(row.kind == "task" for row in batch.rows if isinstance(row, StateRow))
        on.store.loses_answer = True  # it is on disk all the same
        on.offer()
        with pytest.raises(StoreUnavailableError):
            await on.engine.journal.committed(OWNER)
        on.desk.publish("t")
        assert await on.desk.claim("w") == []
        on.store.refuse = lambda batch: False
        await passing(5_000)
        assert on.state() == "withdrawn"
        assert on.news == [("ended", "t")]


@staged
async def test_the_start_of_a_write_is_on_disk_before_it_is_answered() -> None:
    async with stage() as on:
        await on.put(effect="write")
        lease = await on.take()
        assert on.state() == "pending"
        on.store.delay_ms = 100
        starting = soon(on.desk.start("t", lease.token))
        await passing(50)
        assert not starting.done()
        assert on.kinds == ["pending"]
        await starting
        task = on.desk.live_task("t")
        assert task is not None
        assert task.state == "started"
        assert on.kinds == ["pending", "started"]


@staged
async def test_the_start_of_a_read_writes_nothing() -> None:
    async with stage() as on:
        await on.begin()
        assert on.engine.journal.is_idle
        assert on.state() == "pending"
        assert on.kinds == ["pending", "started"]


@staged
async def test_a_start_that_could_not_be_stored_may_be_said_again() -> None:
    async with stage() as on:
        await on.put(effect="write")
        lease = await on.take()
        on.store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await on.desk.start("t", lease.token)
        on.store.refuse = lambda batch: False
        await on.desk.start("t", lease.token)
        task = on.desk.live_task("t")
        assert task is not None
        assert task.state == "started"


@staged
async def test_a_start_that_could_not_be_stored_and_is_not_said_again_gives_the_task_back() -> None:
    async with stage() as on:
        await on.put(effect="write")
        lease = await on.take()
        on.store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await on.desk.start("t", lease.token)
        on.store.refuse = lambda batch: False
        await passing(LEASE + 1)
        second = await on.take("second")
        await on.desk.start("t", second.token)
        with pytest.raises(LeaseLostError):
            await on.desk.start("t", lease.token)


@staged
async def test_a_lease_that_ends_while_its_start_is_stored_is_lost() -> None:
    async with stage() as on:
        await on.put(effect="write")
        lease = await on.take()
        on.store.delay_ms = LEASE + 500
        starting = soon(on.desk.start("t", lease.token))
        await passing(LEASE + 1)
        assert on.kinds == ["pending", "requeued"]
        with pytest.raises(LeaseLostError):
            await starting
        assert [task.state for task in on.desk.tasks()] == ["pending"]


@staged
async def test_an_end_is_on_disk_before_anybody_hears_of_it() -> None:
    async with stage() as on:
        lease = await on.begin()
        waiting = soon(on.desk.outcome("t"))
        on.store.delay_ms = 100
        completing = soon(on.desk.complete("t", lease.token, DONE))
        await passing(50)
        assert not waiting.done()
        assert not completing.done()
        assert "ended" not in on.kinds
        assert await completing is True
        end: TaskEnd = await waiting
        assert (end.state, end.result, end.worker) == (TaskState.COMPLETED, DONE, "w")
        assert on.state() == "completed"


@staged
async def test_an_end_that_the_store_refuses_is_written_again() -> None:
    async with stage() as on:
        lease = await on.begin()
        waiting = soon(on.desk.outcome("t"))
        on.store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await on.desk.complete("t", lease.token, DONE)
        await passing(10)
        assert not waiting.done()
        on.store.refuse = lambda batch: False
        end: TaskEnd = await waiting
        assert end.state is TaskState.COMPLETED
        assert on.state() == "completed"
        assert on.kinds.count("ended") == 1


@staged
async def test_a_worker_may_say_again_what_could_not_be_stored() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        on.store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await on.desk.complete("t", lease.token, DONE)
        on.store.refuse = lambda batch: False
        assert await on.desk.complete("t", lease.token, DONE)
        assert on.state() == "completed"
        await passing(20_000)
        assert on.kinds.count("ended") == 1


@staged
async def test_the_same_id_offered_again_is_not_overwritten_by_its_older_end() -> None:
    async with stage() as on:
        await on.put()
        on.store.refuse = lambda batch: True
        on.desk.withdraw("t", "stop")
        await passing(10)
        on.store.refuse = lambda batch: False
        await on.put()
        await passing(20_000)
        assert on.state() == "pending"
        assert [(task.attempt, task.state) for task in on.desk.tasks()] == [(2, "pending")]


# ---- who gets what ----


@staged
async def test_a_claim_that_waits_gets_the_next_task_at_once() -> None:
    async with stage() as on:
        claiming = soon(on.desk.claim("w", wait_ms=60_000))
        await passing(10)
        await on.put()
        await passing(0)
        assert [lease.task.task_id for lease in await claiming] == ["t"]
        assert on.desk.hall._claimers == {}  # noqa: SLF001 - nobody waits any more


@staged
async def test_claims_that_wait_are_served_in_the_order_of_their_arrival() -> None:
    async with stage() as on:
        first = soon(on.desk.claim("first", wait_ms=60_000))
        await passing(1)
        second = soon(on.desk.claim("second", wait_ms=60_000, lanes=["execute"]))
        await passing(1)
        picky = soon(on.desk.claim("picky", wait_ms=60_000, commands=["write"]))
        await passing(1)
        for number in (1, 2, 3):
            await on.put(f"t{number}")
        await on.put("t4", command_type="write")
        got = [[lease.task.task_id for lease in await each] for each in (first, second, picky)]
        assert got == [["t1"], ["t2"], ["t4"]]


@staged
async def test_a_claim_that_waits_in_vain_gets_nothing() -> None:
    async with stage() as on:
        assert await on.desk.claim("w", wait_ms=200) == []
        assert on.desk.hall._claimers == {}  # noqa: SLF001 - nobody waits any more


@staged
async def test_what_was_given_to_a_claim_that_is_cancelled_goes_back() -> None:
    async with stage() as on:
        claiming = soon(on.desk.claim("w", wait_ms=60_000))
        await passing(1)
        on.offer()
        await on.engine.journal.committed(OWNER)
        on.desk.publish("t")
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        assert [task.state for task in on.desk.tasks()] == ["pending"]
        assert (await on.take()).task.task_id == "t"


@staged
async def test_a_claim_takes_no_more_than_its_limit() -> None:
    async with stage() as on:
        for number in range(5):
            await on.put(f"t{number}")
        first = await on.desk.claim("a", limit=3)
        second = await on.desk.claim("b", limit=3)
        assert [len(first), len(second)] == [3, 2]


@pytest.mark.parametrize(
    "bad",
    [
        {"worker": ""},
        {"worker": 7},
        {"lanes": "execute"},
        {"lanes": [1]},
        {"limit": 0},
        {"limit": True},
        {"wait_ms": -1},
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    @staged
    async def run() -> None:
        async with stage() as on:
            facts = {"worker": "w", **bad}
            with pytest.raises(UsageError):
                await on.desk.claim(**facts)

    run()
    assert bad


# ---- time ----


@staged
async def test_a_lost_worker_is_noticed_at_the_end_of_its_lease_and_the_next_one_is_woken() -> None:
    async with stage() as on:
        lease = await on.begin()
        began = on.engine.now()
        second = await on.take("second", wait_ms=60_000)
        assert on.engine.now() - began == LEASE
        assert second.task.attempt == 2
        with pytest.raises(LeaseLostError):
            await on.desk.complete("t", lease.token, DONE)
        assert on.kinds == ["pending", "started", "requeued", "refused"]


@staged
async def test_a_task_times_out_and_whoever_waits_is_told() -> None:
    async with stage() as on:
        await on.put(timeout_ms=500)
        end = await on.desk.outcome("t")
        assert (end.state, end.duration_ms, end.had_started) == (TaskState.TIMED_OUT, 500, False)
        assert on.desk.tasks() == []
        assert not await on.desk.complete_by_host("t", DONE)


@staged
async def test_a_desk_without_tasks_has_no_timer() -> None:
    async with stage() as on:
        assert on.desk._timer is None  # noqa: SLF001 - nothing wakes an idle desk
        lease = await on.begin()
        assert on.desk._timer is not None  # noqa: SLF001 - the same
        await on.desk.complete("t", lease.token, DONE)
        assert on.desk._timer is None  # noqa: SLF001 - the same


@staged
async def test_the_time_that_is_left_runs() -> None:
    async with stage() as on:
        await on.put(timeout_ms=500)
        task = on.desk.tasks()[0]
        await passing(200)
        assert (task["remaining_ms"], task.remaining_ms(), task.is_timed_out()) == (500, 300, False)
        await passing(400)
        assert (task.remaining_ms(), task.is_timed_out()) == (0, True)


# ---- ends ----


@staged
async def test_withdrawing_is_at_once_and_told_at_the_next_sign_of_life() -> None:
    async with stage() as on:
        lease = await on.begin()
        waiting = soon(on.desk.outcome("t"))
        end = on.desk.withdraw("t", "the run was ended")
        assert (end.state, end.had_started) == (TaskState.WITHDRAWN, True)
        assert on.desk.withdraw("t", "again") == end
        assert await on.desk.heartbeat("t", lease.token) is False
        with pytest.raises(LeaseLostError):
            await on.desk.complete("t", lease.token, DONE)
        assert await waiting == end
        assert on.state() == "withdrawn"


@staged
async def test_withdrawing_what_nobody_knows_is_refused() -> None:
    async with stage() as on:
        with pytest.raises(UnknownTaskError):
            on.desk.withdraw("nobody", "")
        with pytest.raises(UnknownTaskError):
            await on.desk.outcome("nobody")
        assert await on.desk.find("nobody") is None


@staged
async def test_cancelling_a_wait_changes_nothing() -> None:
    async with stage() as on:
        lease = await on.begin()
        waiting = soon(on.desk.outcome("t"))
        await passing(1)
        waiting.cancel()
        await passing(1)
        assert await on.desk.complete("t", lease.token, DONE)
        assert (await on.desk.outcome("t")).state is TaskState.COMPLETED
        assert on.desk._waiting == {}  # noqa: SLF001 - nobody waits any more


@staged
async def test_completing_twice_is_answered_the_same_way() -> None:
    async with stage() as on:
        lease = await on.begin()
        assert await on.desk.complete("t", lease.token, DONE)
        assert await on.desk.complete("t", lease.token, BROKEN)
        end = await on.desk.outcome("t")
        assert (end.state, end.result) == (TaskState.COMPLETED, DONE)
        await on.put("u")
        assert await on.desk.complete_by_host("u", BROKEN)
        assert await on.desk.complete_by_host("u", DONE)
        assert (await on.desk.outcome("u")).state is TaskState.FAILED
        assert on.kinds.count("ended") == 2


@staged
async def test_a_late_result_of_a_write_settles_its_unknown_and_the_session_is_told() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        assert (await on.desk.outcome("t")).state is TaskState.UNKNOWN
        assert on.state() == "unknown"
        assert await on.desk.complete("t", lease.token, DONE)
        assert on.state() == "completed"
        assert on.kinds == ["pending", "started", "ended", "settled"]


@staged
async def test_the_host_may_complete_what_it_got_by_polling() -> None:
    async with stage() as on:
        await on.put(effect="write")
        assert [task.task_id for task in await on.desk.hand_out(OWNER)] == ["t"]
        assert await on.desk.complete_by_host("t", DONE)
        await on.put("u", effect="write")
        await on.desk.hand_out(OWNER)
        assert on.desk.withdraw("u", "stop").state is TaskState.UNKNOWN
        assert not await on.desk.complete_by_host("nobody", DONE)


@staged
async def test_a_result_that_cannot_be_kept_is_refused_and_the_task_goes_on() -> None:
    async with stage() as on:
        lease = await on.begin()
        for nonsense in ({"result": object()}, {"success": "yes"}, {"result": 1, "extra": 2}, {"error": 7}):
            with pytest.raises(UsageError):
                await on.desk.complete("t", lease.token, nonsense)  # type: ignore[arg-type]
        assert await on.desk.complete("t", lease.token, DONE)


@staged
async def test_a_result_belongs_to_nobody_else_afterwards() -> None:
    async with stage() as on:
        lease = await on.begin()
        found = {"output": "ok"}
        await on.desk.complete("t", lease.token, ExternalTaskResult(result=found))
        found["output"] = "changed"
        end = await on.desk.outcome("t")
        assert end.result is not None
        assert end.result.result == {"output": "ok"}


@staged
async def test_a_listener_that_raises_costs_nobody_anything() -> None:
    def raises(news: TaskNews) -> None:
        raise RuntimeError(news.kind)

    async with stage() as on:
        on.desk.attend(OWNER, raises)
        lease = await on.begin()
        assert await on.desk.complete("t", lease.token, DONE)
        assert (await on.desk.outcome("t")).state is TaskState.COMPLETED


@staged
async def test_giving_back_wakes_the_next_one() -> None:
    async with stage() as on:
        await on.put()
        lease = await on.take("first")
        waiting = soon(on.desk.claim("second", wait_ms=60_000))
        await passing(1)
        await on.desk.release("t", lease.token, "shutting down")
        assert (await waiting)[0].task.attempt == 1
        assert "first gave it back: shutting down" in on.notes
        await on.desk.release("t", lease.token)
        await on.desk.release("nobody", lease.token)
        assert on.kinds == ["pending", "requeued"]


# ---- closing, and what an earlier process has left ----


@staged
async def test_the_tasks_of_a_closed_session_cannot_be_claimed_and_stay_in_the_store() -> None:
    async with stage() as on:
        await on.put()
        waiting = soon(on.desk.outcome("t"))
        await passing(1)
        on.desk.dismiss(OWNER)
        with pytest.raises(ClosedError):
            await waiting
        assert await on.desk.claim("w") == []
        assert on.state() == "pending"
        await on.desk.load(OWNER)
        assert await on.desk.claim("w") == []  # nobody has said that it is still wanted
        on.desk.publish("t")
        assert (await on.take()).task.task_id == "t"


@staged
async def test_what_was_handed_out_by_polling_is_known_after_a_crash() -> None:
    async with stage() as on:
        await on.put(effect="write")
        await on.desk.hand_out(OWNER)
        disk = kill(on.inbox, on.store)
        async with stage(disk) as later:
            await later.desk.load(OWNER)
            assert later.desk.withdraw("t", "stop").had_started


@staged
async def test_a_result_for_a_closed_session_is_accepted_once_and_found_later() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        on.desk.dismiss(OWNER)
        assert await on.desk.heartbeat("t", lease.token)
        await on.desk.start("t", lease.token)
        answers = [soon(on.desk.complete("t", lease.token, result)) for result in (DONE, BROKEN)]
        loading = soon(on.desk.load(OWNER))
        assert [await answer for answer in answers] == [True, True]
        await loading
        assert on.desk.tasks() == []
        entry = await on.desk.find("t")
        assert entry is not None
        assert entry.end.state in ("completed", "failed")
        assert on.state() == entry.end.state


@staged
async def test_a_closing_desk_sends_everybody_away() -> None:
    async with stage() as on:
        await on.put(command_type="write")
        claiming = soon(on.desk.claim("w", wait_ms=60_000, commands=["bash"]))
        waiting = soon(on.desk.outcome("t"))
        await passing(1)
        on.desk.close()
        with pytest.raises(TransportUnavailableError):
            await claiming
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(TransportUnavailableError):
            await on.desk.claim("w")
        with pytest.raises(ClosedError):
            on.offer("u")
        assert on.state() == "pending"


@staged
async def test_after_a_crash_pending_tasks_can_be_claimed_and_started_ones_completed() -> None:
    async with stage() as on:
        started = await on.begin("started", "write")
        await on.put("leased", "write")
        leased = await on.take()
        await on.put("pending", "idempotent")
        disk = kill(on.inbox, on.store)
        async with stage(disk) as later:
            await later.desk.load(OWNER)
            assert await later.desk.claim("w", limit=5) == []
            for entry in later.desk.held(OWNER):
                later.desk.publish(entry.task_id)
            with pytest.raises(LeaseLostError):
                await later.desk.start("leased", leased.token)
            assert [lease.task.task_id for lease in await later.desk.claim("w", limit=5)] == ["leased", "pending"]
            await passing(LEASE - 1)
            assert await later.desk.heartbeat("started", started.token)
            assert await later.desk.complete("started", started.token, DONE)
            assert (await later.desk.outcome("started")).state is TaskState.COMPLETED


@staged
async def test_a_result_that_arrives_after_a_crash_and_before_its_session_is_opened_is_accepted_once() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        disk = kill(on.inbox, on.store)
        async with stage(disk) as later:
            assert await later.desk.complete("t", lease.token, DONE)
            await later.desk.load(OWNER)
            assert later.desk.tasks() == []
            assert (await later.desk.outcome("t")).state is TaskState.COMPLETED
            assert await later.desk.complete("t", lease.token, BROKEN)
            third = kill(later.inbox, later.store)
            async with stage(third) as last:
                assert await last.desk.complete("t", lease.token, BROKEN)
                end = await last.desk.outcome("t")
                assert end.result == DONE


@staged
async def test_withdrawing_what_an_earlier_process_has_ended_gives_that_end() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        await on.desk.complete("t", lease.token, DONE)
        disk = kill(on.inbox, on.store)
        async with stage(disk) as later:
            assert await later.desk.find("t") is not None
            end = later.desk.withdraw("t", "its run does not go on")
            assert (end.state, end.result) == (TaskState.COMPLETED, DONE)
            assert later.kinds == []


@staged
async def test_a_late_result_settles_an_unknown_write_of_an_earlier_process() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        await passing(LEASE + 10)
        disk = kill(on.inbox, on.store)
        async with stage(disk) as later:
            await later.desk.load(OWNER)
            assert await later.desk.heartbeat("t", lease.token)
            assert await later.desk.complete("t", lease.token, BROKEN)
            assert later.kinds == ["settled"]
            assert later.state() == "failed"


@staged
async def test_a_started_write_of_an_earlier_process_whose_worker_is_gone_is_unknown() -> None:
    async with stage() as on:
        await on.begin(effect="write")
        disk = kill(on.inbox, on.store)
        async with stage(disk) as later:
            await later.desk.load(OWNER)
            assert (await later.desk.outcome("t")).state is TaskState.UNKNOWN
            assert await later.desk.claim("w") == []


@staged
async def test_a_token_of_an_earlier_process_never_fits_again() -> None:
    async with stage() as on:
        await on.put()
        first = await on.take()
        disk = kill(on.inbox, on.store)
        async with stage(disk) as later:
            await later.desk.load(OWNER)
            later.desk.publish("t")
            again = await later.take()
            assert again.token != first.token
            assert (again.token.split(".")[1], first.token.split(".")[1]) == ("2", "1")


@staged
async def test_whoever_has_a_lease_cannot_guess_that_of_another() -> None:
    async with stage() as on:
        await on.put("t1")
        await on.put("t2")
        drawn = [lease.token.split(".")[2] for lease in await on.desk.claim("w", limit=2)]
        assert len(set(drawn)) == 2
        assert all(len(each) >= 20 for each in drawn)


@staged
async def test_an_end_that_the_store_cannot_take_any_more_is_told_to_those_who_wait() -> None:
    async with stage() as on:
        lease = await on.begin()
        waiting = soon(on.desk.outcome("t"))
        await passing(1)
        async with new_inbox(store=CutStore(on.store.disk)):  # somebody else owns it now
            with pytest.raises(Exception, match="epoch"):
                await on.desk.complete("t", lease.token, DONE)
            with pytest.raises(Exception, match="epoch"):
                await waiting
            with pytest.raises(TransportUnavailableError):
                await on.desk.heartbeat("t", lease.token)


@staged
async def test_one_bad_row_is_named() -> None:
    async with stage() as on:
        await on.put()
        row = on.row()
        assert row is not None
        on.desk.dismiss(OWNER)
        await on.store.commit([Batch(OWNER, on.store.epoch, (row._replace(body="{}"),))])
        with pytest.raises(StoreUnavailableError, match="task 't'"):
            await on.desk.load(OWNER)


@staged
async def test_of_a_flood_of_progress_a_few_are_told_and_the_newest_is_kept() -> None:
    async with stage() as on:
        told: list[str] = []
        lease = await on.begin()
        on.desk.attend(OWNER, lambda news: told.append(news.kind))
        for number in range(100):
            await on.desk.heartbeat("t", lease.token, Progress(f"step {number}"))
            await passing(10)
        assert told == ["progress"] * 5
        task = on.desk.live_task("t")
        assert task is not None
        assert task.progress == {"text": "step 99", "percent": None}
