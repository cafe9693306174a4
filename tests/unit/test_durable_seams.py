"""What the façades above need of the engine: letting go of a job, being told of its end, asking for a lane."""

from __future__ import annotations

import pytest

from laneway import Job, JobCancelledError, JobId, JobState, LaneConfig, RetryPolicy
from tests.stage import Diary, never, new_lanes, passing, simulated, value


@simulated
async def test_an_abandoned_job_is_final_at_once_and_its_slot_is_free() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(cancel_grace_ms=5_000)}) as lanes:
        stubborn = lanes.submit("one", diary.cling, "stubborn", 100)
        following = lanes.submit("one", diary.work, "following", 1)
        await passing(1)
        lanes.engine.abandon(stubborn.id, "the turn was fenced")
        assert stubborn.done()
        assert stubborn.state is JobState.CANCELLED
        with pytest.raises(JobCancelledError, match="fenced"):
            await stubborn
        assert await following == "following"
        assert diary.cancelled == ["stubborn"]  # it was asked to end, and did not
        assert lanes.stats().abandoned == 1
        await passing(200)


@simulated
async def test_abandoning_what_waits_ends_it_and_an_unknown_job_is_no_error() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        running = lanes.submit("one", diary.work, "running")
        waiting: Job[None] = lanes.submit("one", never)
        lanes.engine.abandon(waiting.id, "not wanted")
        lanes.engine.abandon(waiting.id, "not wanted")
        lanes.engine.abandon(JobId("nobody"), "not wanted")
        assert waiting.state is JobState.CANCELLED
        assert await running == "running"


@simulated
async def test_a_job_that_is_abandoned_before_its_first_step_never_runs() -> None:
    async with new_lanes({"one": 1}) as lanes:
        job: Job[None] = lanes.submit("one", never)
        lanes.engine.abandon(job.id, "not wanted")
        assert job.done()
        await passing(1)
        assert lanes.jobs() == []


@simulated
async def test_callbacks_are_called_once_with_the_job_when_it_is_final() -> None:
    diary, told = Diary(), list[tuple[str, JobState]]()
    async with new_lanes({"one": 1}) as lanes:
        good = lanes.submit("one", diary.work, "good")
        bad = lanes.submit("one", diary.fail, "bad", ValueError("no"), retry=RetryPolicy.fixed(1, 100))
        gone: Job[None] = lanes.submit("one", never)
        shared: Job[object] = lanes.submit("one", value, 1, key="k")
        for name, job in (("good", good), ("bad", bad), ("gone", gone), ("shared", shared)):
            job.add_done_callback(lambda job, name=name: told.append((name, job.state)))  # type: ignore[misc]
        assert gone.cancel()
        assert told == []  # soon, on the loop: never inside the call that ends the job
        with pytest.raises(ValueError, match="no"):
            await bad
        await passing(1)
        assert sorted(told) == [
            ("bad", JobState.DEAD),
            ("gone", JobState.CANCELLED),
            ("good", JobState.SUCCEEDED),
            ("shared", JobState.SUCCEEDED),
        ]


@simulated
async def test_a_callback_on_a_job_that_has_ended_is_called_soon() -> None:
    told = list[JobState]()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", value)
        await job
        job.add_done_callback(lambda job: told.append(job.state))
        assert told == []
        await passing(1)
        assert told == [JobState.SUCCEEDED]


@simulated
async def test_a_lane_is_in_the_lanes_if_it_could_be_submitted_to() -> None:
    async with new_lanes({"main": 1}) as lanes:
        assert "main" in lanes
        assert "session:ada" in lanes
        assert "blue/main" in lanes
        assert "main" in lanes.scope("blue")
        for name in ("man", "", " main", "session:", "blue/", None, 3):
            assert name not in lanes
            assert name not in lanes.scope("blue")
    assert "anything" in new_lanes(unknown="create")
