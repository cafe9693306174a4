"""The simulator of the inbox finds bugs: each test puts one in and counts the seeds it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from laneway.kernel.delivery import Delivery
from laneway.kernel.mailbox import Mailbox
from laneway.kernel.mailroom import Mailroom
from laneway.kernel.messages import Item
from laneway.kernel.reception import Reception
from laneway.mail import MessageState, Outcome
from laneway.rows import Owner
from laneway.runtime.arrivals import Arrivals
from laneway.runtime.journal import Journal
from laneway.runtime.mail_engine import MailEngine
from laneway.runtime.turns import Turn
from laneway.sim.mail_kernel_tier import run_mailroom_seed
from laneway.sim.mail_tier import run_mail_seed
from laneway.sim.mail_world import CHANCES
from laneway.sim.trace import SimFailedError

pytestmark = pytest.mark.slow


def first_failure(run: Callable[[int], object], *, seeds: int) -> SimFailedError:
    """The first failure among the seeds; without one the simulator is blind to this bug."""
    for seed in range(seeds):
        try:
            run(seed)
        except SimFailedError as failure:
            return failure
    pytest.fail(f"not found in {seeds} seeds")


def test_what_is_told_before_it_is_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the commit: neither the sender's receipt nor the handler."""

    def at_once(self: Journal, owner: Owner) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(Journal, "committed", at_once)
    failure = first_failure(run_mail_seed, seeds=10)
    assert "the store does not have it" in failure.problem or "not in the store" in failure.problem


def test_steers_that_stay_parked_after_their_turn_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a turn forgets those that aimed at it."""
    monkeypatch.setattr(Delivery, "_unpark", lambda self, box, wall: None)
    failure = first_failure(run_mailroom_seed, seeds=20)
    assert "parked" in failure.problem


def test_a_session_that_is_not_loaded_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses rows, and memory goes on as if it had not."""
    monkeypatch.setattr(MailEngine, "_on_failure", lambda self, owner, error: None)
    failure = first_failure(run_mail_seed, seeds=20)
    assert failure.tier == "mail"


def test_messages_merged_across_rights_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits beside a gathering message shares its turn."""

    def everybody(self: Mailbox, head: Item) -> list[Item]:
        waiting = [item for item in self.items.values() if item.state is MessageState.QUEUED]
        return [head, *(item for item in waiting if item is not head and item.place > head.place)]

    monkeypatch.setattr(Mailbox, "batch_from", everybody)
    failure = first_failure(run_mailroom_seed, seeds=20)
    assert "mixes" in failure.problem


def test_injected_messages_lost_with_their_turn_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn has seen does not come back when the turn fails."""
    give_back = Delivery._return_injected  # noqa: SLF001 - the bug is put in here

    def only_after_success(self: Delivery, box: Any, turn: Any, outcome: Outcome, wall: int) -> None:
        if outcome is Outcome.SUCCEEDED:
            give_back(self, box, turn, outcome, wall)

    monkeypatch.setattr(Delivery, "_return_injected", only_after_success)
    failure = first_failure(run_mailroom_seed, seeds=20)
    assert failure.tier == "mailroom"


def test_a_cap_that_nobody_keeps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ever has to give way."""
    monkeypatch.setattr(Reception, "_victims", lambda self, box, item, settings, wall: [])
    failure = first_failure(run_mailroom_seed, seeds=20)
    assert "the cap is" in failure.problem


def test_turns_of_a_dead_process_that_nobody_ends_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart the messages of a turn that had begun stay as they were."""
    monkeypatch.setattr(Mailroom, "_recover", lambda self, turn, now, wall: None)
    failure = first_failure(run_mail_seed, seeds=30)
    assert failure.replay == f"laneway sim --seed {failure.seed} --tier mail"


def test_a_message_that_is_taken_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform's id is not looked at."""
    monkeypatch.setattr(Arrivals, "_seen_before", lambda self, owner, arrival, seen: None)
    failure = first_failure(run_mail_seed, seeds=30)
    assert "the same again" in failure.problem or "runs again" in failure.problem or "times" in failure.problem


def test_a_fenced_turn_that_goes_on_speaking_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that was interrupted and fenced may still reply."""
    monkeypatch.setattr(Turn, "_check", lambda self: None)
    monkeypatch.setattr(Turn, "_check_fence", lambda self: None)
    monkeypatch.setitem(CHANCES, "stubborn", 1.0)  # agents that go on although they were told to end
    failure = first_failure(run_mail_seed, seeds=60)
    assert "and says" in failure.problem or "had ended" in failure.problem or "turn.replied" in failure.problem


def test_a_timer_that_nobody_sets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quiet windows, graces and expiries end, and nobody looks."""
    monkeypatch.setattr(Delivery, "_arm", lambda self, box, now: None)
    failure = first_failure(run_mailroom_seed, seeds=10)
    assert "timer" in failure.problem
