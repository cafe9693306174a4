"""Where the time of a round goes before its model answers."""

from __future__ import annotations

from laneway.agent.round_clock import RoundClock
from laneway.kernel.rounds import Round, RoundState, RoundWait


class Wall:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


def looks(clock: RoundClock, wall: Wall, times: int, *, gap_ms: int = 5) -> None:
    """Wait for a budget, and look every minute whether it is open."""
    for _ in range(times):
        with clock.waiting("budget", "budget 'day' is used up"):
            wall.now += 60_000
        wall.now += gap_ms


def test_a_wait_that_is_looked_at_every_minute_is_one_wait() -> None:
    wall = Wall()
    clock = RoundClock(wall)
    clock.asked(1)
    looks(clock, wall, 11)
    with clock.waiting("budget", "budget 'day' is used up"):
        assert clock.waits == [RoundWait(kind="budget", reason="budget 'day' is used up", began_ms=1_000)]
        wall.now += 10
    (wait,) = clock.waits
    assert (wait.began_ms, wait.ended_ms) == (1_000, wall.now)


def test_waits_between_which_something_was_done_stay_apart() -> None:
    wall = Wall()
    clock = RoundClock(wall)
    clock.asked(1)
    looks(clock, wall, 2, gap_ms=5_000)
    assert len(clock.waits) == 2
    for _ in range(2):
        clock.in_slot()  # the model has failed, and at once
        with clock.waiting("retry", "overloaded"):
            wall.now += 500
    assert [wait.kind for wait in clock.waits] == ["budget", "budget", "retry", "retry"]


def test_a_round_that_is_cut_knows_what_it_waited_for_and_whether_its_model_was_asked() -> None:
    for is_sent in (False, True):
        wall = Wall()
        clock = RoundClock(wall)
        clock.asked(1)
        clock.queued("lane", "model:m")
        wall.now += 100
        if is_sent:
            clock.in_slot()
        one = Round(run_id="r", number=1, state=RoundState.CUT)
        clock.cut(one)
        assert one.waits == (RoundWait(kind="lane", reason="model:m", began_ms=1_000, ended_ms=1_100),)
        assert one.was_asked is is_sent
