"""`laneway send --wait`: what is said while it waits, and how an end is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from laneway.cli import send
from laneway.cli.link import OPEN, Told

BUDGET = "turn-1 has run for 2000 ms and waits: budget 'day' is used up until tomorrow"


class Line:
    """A server whose message ends when somebody has asked why it waits; `says` is what each path answers."""

    def __init__(self, says: dict[str, dict[str, Any]], *first: Told) -> None:
        self.says = says
        self.first = first
        self.asked = asyncio.Event()

    async def ask(self, method: str, path: str) -> dict[str, Any]:
        assert method == "GET"
        found = self.says[path]
        if found.get("reason") or "waits_for" in found:
            self.asked.set()
        return found

    async def events(self, path: str) -> AsyncGenerator[Told]:
        assert path == "/sessions/s/events"
        yield Told(event=OPEN)
        for told in self.first:
            yield told
            self.asked.set()
        await self.asked.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        self.says["/messages/m"] = {"disposition": "ran", "outcome": "succeeded", "answer": "well"}
        yield Told(event="message.ended", data={"message_id": "m"})


@pytest.mark.parametrize(
    ("message", "run"),
    [
        ({"disposition": "queued", "reason": BUDGET}, {}),
        ({"disposition": "running", "reason": "", "run_id": "r"}, {"waits_for": "an approval of bash"}),
    ],
)
async def test_whoever_waits_long_is_told_why_once(
    message: dict[str, Any], run: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(send, "PATIENCE_S", 0)
    line: Any = Line({"/messages/m": message, "/runs/r": run})
    assert (await send.wait_for(line, "s", "m"))["answer"] == "well"
    said = capsys.readouterr().err
    assert " ".join(said.split()) == f"It waits: {message['reason'] or run['waits_for']}"


async def test_what_the_run_says_itself_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    waits = Told(event="run_waiting", data={"payload": {"reason": "budget 'day' is used up"}})
    line: Any = Line({"/messages/m": {"disposition": "running", "reason": ""}}, waits)
    assert (await send.wait_for(line, "s", "m"))["answer"] == "well"
    assert capsys.readouterr().err.count("It waits: ") == 1


def test_why_a_run_failed_is_told_to_its_end() -> None:
    reason = f"{'a very long story, ' * 20}raise the budget"
    error = send.failure_of({"disposition": "ran", "outcome": "failed", "reason": reason, "message_id": "m"})
    assert error is not None
    assert str(error).endswith("raise the budget")
