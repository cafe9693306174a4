"""The trace that a message is part of is kept with it."""

from __future__ import annotations

import json

import pytest

from laneway import Inbox
from laneway.errors import InvalidMessageError
from laneway.kernel.messages import Item
from laneway.mail import Message, trace_of
from laneway.rows import Owner
from laneway.runtime.turns import Turn

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OWNER = Owner("default", "default", "s")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (TRACE, TRACE),
        (TRACE[:-2] + "00", TRACE[:-2] + "00"),
        (TRACE[:-2] + "ff", TRACE),  # only the flag that is known is kept
        ("01" + TRACE[2:] + "-what-is-new", TRACE),
        ("01" + TRACE[2:], TRACE),
    ],
)
def test_a_traceparent_is_kept_as_version_00_has_it(given: str, kept: str) -> None:
    assert trace_of(given) == kept


@pytest.mark.parametrize(
    "given",
    [
        *("", "nonsense", TRACE + "-more", "ff" + TRACE[2:], TRACE.upper(), TRACE + "\n", " " + TRACE, TRACE[:-1]),
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        "01" + TRACE[2:] + "-" + "x" * 1000,
        "00-\uff14bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        None,
        7,
        TRACE.encode(),
    ],
)
def test_what_is_no_traceparent_is_ignored(given: object) -> None:
    assert trace_of(given) == ""


def test_the_row_of_a_message_has_its_trace_only_if_there_is_one() -> None:
    plain = Item(OWNER, Message(id="m1", session_key="s", text="hello"), seq=1)
    traced = Item(OWNER, Message(id="m2", session_key="s", text="hello", trace=TRACE), seq=2)
    assert "trace" not in json.loads(plain.to_row().body)
    assert Item.from_row(plain.to_row()).message.trace == ""  # as rows of older versions
    assert Item.from_row(traced.to_row()).message == traced.message


async def test_a_turn_sees_the_trace_of_its_message_and_a_wrong_one_is_refused() -> None:
    seen = []

    async def answer(turn: Turn) -> None:
        seen.append(turn.messages[0].trace)

    async with Inbox(answer, mode="followup") as inbox:
        await inbox.wait((await inbox.submit("s", "hello", trace=TRACE)).message_id)
        with pytest.raises(InvalidMessageError, match="traceparent"):
            await inbox.submit("s", "hello", trace="nonsense")
    assert seen == [TRACE]
