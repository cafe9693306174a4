"""The checker of the gateway's chaos finds every kind of broken promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.calls import Told
from tests.chaos.gateway_checker import GatewayEvidence, Sent, judge_gateway


def clean() -> GatewayEvidence:
    found = GatewayEvidence()
    for number in (1, 2, 3):
        found.accepted.append(Sent(number, "a", f"m{number}"))
        found.ends[f"m{number}"] = ("ran", "succeeded")
        found.done.append(("a", number))
        found.told.append(Told("a", f"a {number}", "bash", "ok"))
        found.answers[f"t{number}"] = found.stored_answers[f"t{number}"] = "done"
    found.seen["a"] = [1, 4, 9]
    found.stored["a"] = [1, 4, 9]
    return found


def test_what_holds_is_not_blamed() -> None:
    assert judge_gateway(clean()) == []


def tell(found: GatewayEvidence, number: int, *statuses: str) -> None:
    """Say something else of a call."""
    others = [each for each in found.told if each.call_id != f"a {number}"]
    found.told = others + [Told("a", f"a {number}", "bash", status) for status in statuses]


def test_what_was_told_unknown_may_have_been_done_or_not() -> None:
    found = clean()
    tell(found, 2, "unknown")
    assert judge_gateway(found) == []
    never_do(found)
    assert judge_gateway(found) == []


def test_what_was_told_cancelled_has_not_been_done() -> None:
    found = clean()
    tell(found, 2, "cancelled")
    never_do(found)
    assert judge_gateway(found) == []


def test_a_loss_is_found_beside_another_call_that_was_cancelled_and_one_that_is_unknown() -> None:
    found = clean()
    tell(found, 1, "cancelled")
    tell(found, 3, "unknown")
    never_do(found)  # the second one, which was told ok; the first was done all the same
    assert [each.partition(":")[0] for each in judge_gateway(found)] == ["never made", "made all the same"]


def forget_end(found: GatewayEvidence) -> None:
    del found.ends["m2"]


def never_end(found: GatewayEvidence) -> None:
    found.ends["m2"] = ("queued", "")


def never_do(found: GatewayEvidence) -> None:
    found.done.remove(("a", 2))


def do_twice(found: GatewayEvidence) -> None:
    found.done.append(("a", 3))


def do_cancelled(found: GatewayEvidence) -> None:
    tell(found, 2, "cancelled")


def never_call(found: GatewayEvidence) -> None:
    tell(found, 2)
    never_do(found)


def leave_open(found: GatewayEvidence) -> None:
    tell(found, 2, "")


def tell_twice(found: GatewayEvidence) -> None:
    tell(found, 2, "ok", "ok")


def untold(found: GatewayEvidence) -> None:
    tell(found, 2)


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
        (never_do, "never made"),
        (do_cancelled, "made all the same"),
        (never_call, "was never asked for"),
        (leave_open, "has no result"),
        (tell_twice, "told twice"),
        (untold, "untold"),
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
