"""Retries: by policy and effect, RetryLater and GiveUp, and the dead letters that remain."""

from __future__ import annotations

import asyncio
import random

import pytest

from laneway import (
    DeadLetter,
    Effect,
    GiveUp,
    Job,
    JobCancelledError,
    JobFailedError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    Lanes,
    RetryLater,
    RetryPolicy,
    UnknownJobError,
    WaitReason,
)
from tests.stage import Diary, new_lanes, now_ms, passing, simulated

WALL = 1_700_000_000_000


class Flaky:
    """Raises the given errors one after the other, then returns; notes when it was called."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.calls: list[int] = []

    async def __call__(self, *args: object) -> object:
        self.calls.append(now_ms())
        if self._errors:
            raise self._errors.pop(0)
        return args


def always(error: str = "no", count: int = 50) -> Flaky:
    return Flaky(*[ValueError(f"{error} {number}") for number in range(1, count + 1)])


async def buried(lanes: Lanes, lane: str = "one", *args: object, label: str = "") -> DeadLetter:
    """Make a dead letter."""
    job: Job[object] = lanes.submit(lane, always(), *args, retry=RetryPolicy.fixed(1, 10), label=label)
    with pytest.raises(ValueError, match="no 2"):
        await job
    return lanes.dead_letters.show(job.id)


@simulated
async def test_nothing_runs_again_without_a_policy() -> None:
    flaky = always()
    async with new_lanes({"one": 1}) as lanes:
        for policy in (None, RetryPolicy.none()):
            job = lanes.submit("one", flaky, retry=policy, effect=Effect.READ)
            with pytest.raises(ValueError, match="no"):
                await job
            assert job.state is JobState.FAILED
        assert len(lanes.dead_letters) == 0
    assert len(flaky.calls) == 2


@simulated
async def test_a_fixed_policy_waits_the_same_each_time() -> None:
    flaky = Flaky(ValueError("1"), ValueError("2"))
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", flaky, "in", retry=RetryPolicy.fixed(2, 100))
        assert await job == ("in",)
        assert (job.attempt, job.state) == (3, JobState.SUCCEEDED)
        assert lanes.stats().lanes["one"].retried == 2
    assert flaky.calls == [0, 100, 200]


@simulated
async def test_an_exponential_policy_doubles_up_to_its_limit() -> None:
    flaky = always(count=5)
    async with new_lanes({"one": 1}) as lanes:
        policy = RetryPolicy.exponential(5, max_delay_ms=500)
        await lanes.run("one", flaky, retry=policy)
    assert flaky.calls == [0, 100, 300, 700, 1_200, 1_700]


@simulated
async def test_jitter_only_shortens_a_delay() -> None:
    async with new_lanes({"one": 1}) as lanes:
        flaky = always(count=20)
        await lanes.run("one", flaky, retry=RetryPolicy.fixed(20, 100, jitter=0.5))
    gaps = [after - before for before, after in zip(flaky.calls, flaky.calls[1:], strict=False)]
    assert all(50 <= gap <= 100 for gap in gaps)
    assert len(set(gaps)) > 5


@simulated
async def test_waiting_for_a_retry_is_scheduled_counted_and_drained() -> None:
    flaky = always(count=1)
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", flaky, retry=RetryPolicy.fixed(1, 1_000))
        assert await lanes.run("one", diary.work, "between", 10) == "between"
        assert (job.state, lanes.stats().scheduled) == (JobState.SCHEDULED, 1)
        explanation = job.explain()
        assert (explanation.reason, explanation.until_ms) == (WaitReason.TIME, WALL + 1_000)
        assert "retry 1" in str(explanation)
        report = await lanes.drain()
        assert report.finished
        assert job.state is JobState.SUCCEEDED


@simulated
async def test_a_retry_keeps_its_place_in_the_lane() -> None:
    diary = Diary()
    first = True

    async def flaky() -> None:
        nonlocal first
        diary.began.append("flaky")
        if first:
            first = False
            raise ValueError

    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", flaky, retry=RetryPolicy.fixed(1, 5))
        jobs = [lanes.submit("one", diary.work, name) for name in "abc"]
        await asyncio.gather(job, *jobs)
    assert diary.began == ["flaky", "a", "flaky", "b", "c"]


@simulated
async def test_a_scheduled_retry_can_be_cancelled() -> None:
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", always(), retry=RetryPolicy.fixed(5, 1_000))
        await passing(10)
        assert job.cancel("no more")
        with pytest.raises(JobCancelledError, match="no more"):
            await job
        assert len(lanes.dead_letters) == 0


@pytest.mark.parametrize(("effect", "attempts"), [("read", 3), ("idempotent", 3), ("write", 1)])
@simulated
async def test_a_timeout_runs_again_only_for_effects_that_allow_it(effect: Effect, attempts: int) -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        policy = RetryPolicy.fixed(2, 10)
        job = lanes.submit("one", diary.hold, "x", timeout_ms=20, retry=policy, effect=effect)
        with pytest.raises(JobFailedError, match="20 ms") as caught:
            await job
        assert len(diary.began) == attempts
        if effect == "write":
            assert isinstance(caught.value, JobTimeoutError)
            assert job.state is JobState.TIMED_OUT
        else:
            assert job.state is JobState.DEAD
            (letter,) = lanes.dead_letters.list()
            assert letter.attempts == 3
            assert len(letter.history) == 3
            assert all("20 ms" in line for line in letter.history)


@simulated
async def test_the_policy_of_the_lane_counts_unless_the_job_has_one() -> None:
    async with new_lanes({"one": LaneConfig(retry=RetryPolicy.fixed(2, 10))}) as lanes:
        of_lane, own, none = always(count=2), always(), always()
        assert await lanes.run("one", of_lane) == ()
        with pytest.raises(ValueError, match="no 2"):
            await lanes.run("one", own, retry=RetryPolicy.fixed(1, 10))
        with pytest.raises(ValueError, match="no 1"):
            await lanes.run("one", none, retry=RetryPolicy.none())


@simulated
async def test_retry_later_costs_no_attempt_of_the_policy() -> None:
    flaky = Flaky(RetryLater(100), RetryLater(50, "quota"), ValueError("real"), RetryLater(10))
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", flaky, retry=RetryPolicy.fixed(1, 1_000))
        await passing(10)
        assert job.state is JobState.SCHEDULED
        assert await job == ()
        assert len(lanes.dead_letters) == 0
    assert flaky.calls == [0, 100, 150, 1_150, 1_160]


@simulated
async def test_retry_later_needs_no_policy_and_ends_after_a_hundred_times() -> None:
    flaky = Flaky(*[RetryLater(10)] * 200)
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", flaky)
        with pytest.raises(JobFailedError) as caught:
            await job
        assert isinstance(caught.value.__cause__, RetryLater)
        assert job.state is JobState.FAILED
    assert len(flaky.calls) == 101


@pytest.mark.parametrize("after", ["5", None, float("nan"), 1.5, -3])
@simulated
async def test_a_retry_later_with_a_wrong_time_ends_the_job_or_is_taken_as_a_whole_number(after: object) -> None:
    async def confused() -> None:
        raise RetryLater(after)  # type: ignore[arg-type] # garbage from a user's job

    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", confused)
        with pytest.raises(Exception, match=r".+"):
            await asyncio.wait_for(asyncio.shield(job), 100)
        assert job.state is JobState.FAILED
        assert await lanes.run("one", Flaky()) == ()


@simulated
async def test_give_up_ends_at_once_as_a_dead_letter() -> None:
    flaky = Flaky(GiveUp("account closed"))
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", flaky, 1, retry=RetryPolicy.exponential(9))
        with pytest.raises(JobFailedError, match="account closed") as caught:
            await job
        assert isinstance(caught.value.__cause__, GiveUp)
        assert job.state is JobState.DEAD
        (letter,) = lanes.dead_letters.list()
        assert (letter.reason, letter.attempts) == ("account closed", 1)
    assert len(flaky.calls) == 1


@simulated
async def test_a_dead_letter_tells_the_whole_story() -> None:
    async with new_lanes({"one": 1}) as lanes:
        await passing(500)
        letter = await buried(lanes, "one", 7, "x", label="nightly")
        assert (letter.lane, letter.lanes, letter.label) == ("one", ("one",), "nightly")
        assert (letter.args, letter.attempts) == ((7, "x"), 2)
        assert "Flaky" in letter.handler
        assert "no 2" in letter.error
        assert (letter.submitted_ms, letter.died_ms) == (WALL + 500, WALL + 510)
        assert [line.partition(": ")[0] for line in letter.history] == ["attempt 1", "attempt 2"]
        assert lanes.stats().lanes["one"].dead_lettered == 1
        assert lanes.dead_letters.list("one") == [letter]
        assert lanes.dead_letters.list("other") == []


@simulated
async def test_dead_letters_are_edited_and_retried_one_or_many() -> None:
    async with new_lanes({"one": 2}) as lanes:
        calls: list[object] = []
        broken = True

        async def send(number: int) -> int:
            calls.append(number)
            if broken:
                raise ValueError(f"cannot send {number}")
            return number

        jobs = [lanes.submit("one", send, n, retry=RetryPolicy.fixed(1, 5)) for n in (1, 2, 3)]
        await asyncio.gather(*jobs, return_exceptions=True)
        assert sorted(letter.args for letter in lanes.dead_letters.list()) == [(1,), (2,), (3,)]
        broken = False
        calls.clear()
        edited = lanes.dead_letters.edit(jobs[0].id, args=[99])
        assert lanes.dead_letters.show(jobs[0].id) == edited
        (again,) = lanes.dead_letters.retry(jobs[0].id)
        assert await again == 99
        assert again.id != jobs[0].id
        assert len(lanes.dead_letters) == 2
        assert sorted(await asyncio.gather(*lanes.dead_letters.retry())) == [2, 3]
        assert len(lanes.dead_letters) == 0
        assert sorted(map(int, map(str, calls))) == [2, 3, 99]


@simulated
async def test_what_is_edited_is_what_runs() -> None:
    async with new_lanes({"one": 1}) as lanes:
        failing = [True]

        async def greet(name: str, *, loud: bool = False) -> str:
            if failing[0]:
                raise GiveUp("not now")
            return name.upper() if loud else name

        job = lanes.submit("one", greet, "ada")
        with pytest.raises(JobFailedError):
            await job
        failing[0] = False
        lanes.dead_letters.edit(job.id, kwargs={"loud": True})
        assert await lanes.dead_letters.retry(job.id)[0] == "ADA"


@simulated
async def test_a_dead_letter_named_twice_is_retried_or_purged_once() -> None:
    async with new_lanes({"one": 1}) as lanes:
        letter = await buried(lanes)
        again = lanes.dead_letters.retry(letter.id, letter.id)
        assert len(again) == 1
        await asyncio.gather(*again, return_exceptions=True)
        other = lanes.dead_letters.list()[0]
        assert lanes.dead_letters.purge(other.id, other.id) == 1


@simulated
async def test_dead_letters_are_purged_one_or_all() -> None:
    async with new_lanes({"one": 1}) as lanes:
        letters = [await buried(lanes) for _ in range(3)]
        assert lanes.dead_letters.purge(letters[1].id) == 1
        assert [letter.id for letter in lanes.dead_letters.list()] == [letters[0].id, letters[2].id]
        assert lanes.dead_letters.purge() == 2
        assert lanes.dead_letters.list() == []


@simulated
async def test_unknown_dead_letters_are_refused_before_anything_changes() -> None:
    async with new_lanes({"one": 1}) as lanes:
        letter = await buried(lanes)
        letters = lanes.dead_letters
        for call in (letters.show, letters.edit, letters.purge, letters.retry):
            with pytest.raises(UnknownJobError, match="dead letters"):
                call("job-99")
        for call in (letters.purge, letters.retry):
            with pytest.raises(UnknownJobError):
                call(letter.id, "job-99")
        assert letters.list() == [letter]
        assert lanes.jobs() == []


@simulated
async def test_dead_letters_are_bounded_and_the_oldest_goes() -> None:
    async with new_lanes({"one": 1}, dlq_max_size=2) as lanes:
        letters = [await buried(lanes) for _ in range(4)]
        assert lanes.dead_letters.list() == letters[2:]
        assert (len(lanes.dead_letters), lanes.dead_letters.dropped) == (2, 2)


@simulated
async def test_a_random_storm_of_failures_ends_every_job() -> None:
    draw = random.Random(5)

    async def moody() -> None:
        await passing(draw.random() * 5)
        match draw.randrange(6):
            case 0:
                raise RetryLater(draw.randrange(20))
            case 1:
                raise GiveUp("enough")
            case 2 | 3:
                raise ValueError
            case _:
                return

    async with new_lanes({"one": 3}, dlq_max_size=10) as lanes:
        jobs = [lanes.submit("one", moody, retry=RetryPolicy.exponential(3, jitter=1.0)) for _ in range(100)]
        await asyncio.gather(*jobs, return_exceptions=True)
        stats = lanes.stats().lanes["one"]
        assert stats.completed + stats.failed == 100
        assert stats.dead_lettered == len(lanes.dead_letters) + lanes.dead_letters.dropped
        assert all(job.state in (JobState.SUCCEEDED, JobState.DEAD) for job in jobs)
