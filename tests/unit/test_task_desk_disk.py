"""What a desk shows and accepts is on disk first, also when the store or the book of workers says no."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import StoreUnavailableError
from laneway.external import ExternalTaskResult
from laneway.runtime import worker_book
from tests.inbox_stage import kill, staged
from tests.stage import passing
from tests.unit.test_task_desk import DONE, OWNER, Stage, soon, stage


def is_shown(on: Stage, task_id: str = "t") -> bool:
    """Whether the disk knows that the host may have begun with a task."""
    row = on.row(task_id)
    return row is not None and '"shown":true' in row.body


# ---- polling ----


@staged
async def test_a_write_whose_handing_out_was_refused_is_handed_out_anew_by_the_next_question() -> None:
    async with stage() as on:
        await on.put(effect="write")
        on.store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await on.desk.hand_out(OWNER)
        on.store.refuse = lambda batch: False
        assert [task.task_id for task in await on.desk.hand_out(OWNER)] == ["t"]
        assert is_shown(on)


@staged
async def test_who_asks_while_a_write_is_handed_out_hears_of_it_when_that_is_on_disk() -> None:
    async with stage() as on:
        await on.put(effect="write")
        on.store.delay_ms = 100
        first, second = soon(on.desk.hand_out(OWNER)), soon(on.desk.hand_out(OWNER))
        await passing(50)
        assert not first.done()
        assert not second.done()
        assert not is_shown(on)
        assert [task.task_id for task in await second] == ["t"]
        assert is_shown(on)


@staged
async def test_a_write_that_comes_while_another_is_handed_out_waits_for_the_next_question() -> None:
    async with stage() as on:
        await on.put(effect="write")
        await on.engine.journal.committed(OWNER)
        on.store.delay_ms = 100
        asking = soon(on.desk.hand_out(OWNER))
        await passing(10)
        on.offer("u", "write")
        on.desk.publish("u")
        assert [task.task_id for task in await asking] == ["t"]
        assert [task.task_id for task in await on.desk.hand_out(OWNER)] == ["t", "u"]
        assert is_shown(on, "u")


# ---- looking ----


@staged
async def test_whoever_looks_at_a_task_hears_of_its_end_when_that_is_on_disk() -> None:
    async with stage() as on:
        lease = await on.begin()
        on.store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await on.desk.complete("t", lease.token, DONE)
        with pytest.raises(StoreUnavailableError):
            await on.desk.find("t")
        on.store.refuse = lambda batch: False
        found = await on.desk.find("t")
        assert found is not None
        assert found.result == DONE
        assert on.state() == "completed"


# ---- a book of workers that is full ----


@pytest.mark.parametrize("step", ["start", "heartbeat", "complete", "release"])
@staged
async def test_whoever_has_a_lease_is_heard_however_many_workers_are_known(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_book, "WORKERS_MAX", 1)
    async with stage() as on:
        lease = await on.begin(effect="write")
        disk = kill(on.inbox, on.store)
        async with stage(disk) as later:
            await later.desk.load(OWNER)
            other = soon(later.desk.claim("other", wait_ms=5_000))  # the book is full now
            await passing()
            waiting = soon(later.desk.outcome("t"))
            more: dict[str, Any] = {"begun": True} if step == "release" else {}
            said = (DONE,) if step == "complete" else ()
            await getattr(later.desk, step)("t", lease.token, *said, **more)
            if step in ("complete", "release"):
                end = await waiting
                assert end.state == later.state() == {"complete": "completed", "release": "unknown"}[step]
            else:
                assert later.state() == "started"
                waiting.cancel()
            other.cancel()


@staged
async def test_signs_of_life_for_a_closed_session_are_no_claims() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        await on.desk.heartbeat("t", lease.token)
        on.desk.dismiss(OWNER)
        for _ in range(3):
            assert await on.desk.heartbeat("t", lease.token)
        assert on.desk.hall.book.claimed == 1


@staged
async def test_the_book_of_workers_keeps_no_result() -> None:
    async with stage() as on:
        lease = await on.begin()
        await on.desk.complete("t", lease.token, ExternalTaskResult(result="x" * 1_000))
        [record] = on.desk.hall.workers()
        assert record.own.held == {}
        assert record.shared.held == {}
