"""The checker of the gateway's chaos finds every kind of broken promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.gateway_checker import GatewayEvidence, Sent, judge_gateway


def clean() -> GatewayEvidence:
    found = GatewayEvidence()
    for number in (1, 2, 3):
        found.accepted.append(Sent(number, "a", f"m{number}"))
        found.ends[f"m{number}"] = ("ran", "succeeded")
        found.done.append(("a", number))
        found.answers[f"t{number}"] = found.stored_answers[f"t{number}"] = "done"
    found.seen["a"] = [1, 4, 9]
    found.stored["a"] = [1, 4, 9]
    return found


def test_what_holds_is_not_blamed() -> None:
    assert judge_gateway(clean()) == []


def test_what_was_told_unknown_may_not_have_been_done() -> None:
    found = clean()
    never_do(found)
    found.unknown["a"] = 1
    assert judge_gateway(found) == []


def forget_end(found: GatewayEvidence) -> None:
    del found.ends["m2"]


def never_end(found: GatewayEvidence) -> None:
    found.ends["m2"] = ("queued", "")


def never_do(found: GatewayEvidence) -> None:
    found.done.remove(("a", 2))


def do_twice(found: GatewayEvidence) -> None:
    found.done.append(("a", 3))


def do_unasked(found: GatewayEvidence) -> None:
    found.done.append(("a", 4))


def swap(found: GatewayEvidence) -> None:
    found.done.reverse()


def merge_ids(found: GatewayEvidence) -> None:
    found.accepted[1] = Sent(2, "a", "m1")


def miss_event(found: GatewayEvidence) -> None:
    found.seen["a"] = [1, 9]


def repeat_event(found: GatewayEvidence) -> None:
    found.seen["a"] = [1, 4, 4, 9]


def invent_event(found: GatewayEvidence) -> None:
    found.seen["a"] = [1, 4, 9, 12]


def mishear(found: GatewayEvidence) -> None:
    found.answers["t2"] = "don"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (forget_end, "nobody knows it"),
        (never_end, "has not ended"),
        (never_do, "were never done"),
        (do_twice, "twice"),
        (do_unasked, "never accepted"),
        (swap, "out of order"),
        (merge_ids, "was given to 2"),
        (miss_event, "missed"),
        (repeat_event, "came twice"),
        (invent_event, "does not have"),
        (mishear, "was heard as"),
    ],
)
def test_a_broken_promise_is_found(spoil: Callable[[GatewayEvidence], None], says: str) -> None:
    found = clean()
    spoil(found)
    assert any(says in problem for problem in judge_gateway(found))
