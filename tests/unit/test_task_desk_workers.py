"""What workers may not do at a desk, and what a host that was held up owes them."""

from __future__ import annotations

import pytest

from laneway.errors import LeaseLostError, UsageError
from laneway.external import ExternalTaskResult
from tests.inbox_stage import staged
from tests.stage import passing
from tests.unit.test_task_desk import stage


@staged
async def test_whoever_has_no_lease_of_a_task_is_told_nothing_of_it() -> None:
    async with stage() as on:
        lease = await on.begin()
        await on.desk.complete("t", lease.token, ExternalTaskResult(success=False, error="a secret"))
        said = set()
        for task_id in ("t", "no such task"):
            for token in ("", "forged"):
                with pytest.raises(LeaseLostError) as refused:
                    await on.desk.heartbeat(task_id, token)
                said.add(str(refused.value).replace(repr(task_id), "…"))
                assert getattr(refused.value, "state", None) is None
        assert len(said) == 1
        assert "secret" not in said.pop()


@staged
async def test_whoever_has_not_begun_cannot_keep_a_task_by_signs_of_life() -> None:
    async with stage() as on:
        await on.put()
        lease = await on.take()
        await passing(lease.lease_ms - 10)
        assert await on.desk.heartbeat("t", lease.token)
        await passing(20)
        with pytest.raises(LeaseLostError):
            await on.desk.start("t", lease.token)


@staged
async def test_a_result_that_nobody_could_read_again_is_refused() -> None:
    async with stage() as on:
        lease = await on.begin()
        deep: list[object] = []
        for _ in range(300):
            deep = [deep]
        with pytest.raises(UsageError, match="nested at most"):
            await on.desk.complete("t", lease.token, ExternalTaskResult(result=deep))
        task = on.desk.live_task("t")
        assert task is not None
        assert task.state == "started"


@staged
async def test_a_host_that_was_held_up_does_not_take_that_time_from_its_workers() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        clock, lag = on.engine.now, lease.lease_ms + 5_000
        on.engine.now = lambda: clock() + lag  # nothing ran here, and nobody was heard
        assert await on.desk.heartbeat("t", lease.token)
        await passing(lease.lease_ms - 1)
        assert await on.desk.heartbeat("t", lease.token)
        await passing(lease.lease_ms + 1)
        assert on.state() == "unknown"
