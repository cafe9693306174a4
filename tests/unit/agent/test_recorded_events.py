"""What watchers are told is part of a record, and never a reason for a run to fail."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from laneway import replay
from laneway.agent.recording import plain
from laneway.models import say
from laneway.tools import FunctionTool
from tests.agent_stage import use
from tests.stage import simulated
from tests.unit.agent.test_histories import recorded


class _Odd(FunctionTool[Any, Any]):
    """A tool whose arguments become something that is no JSON."""

    odd: Any = None

    def check(self, arguments: str) -> dict[str, Any]:
        return {**super().check(arguments), "name": self.odd}


def _fine(name: str = "") -> str:
    return f"ok{name[:0]}"


ODD = {
    "not a number": float("nan"),
    "infinite": [float("inf"), 10**5_000],
    "moment": datetime(2026, 1, 1),  # noqa: DTZ001 - any value will do
    "set": {"b", "a"},
    "bytes": b"x",
    "object": {1: object(), "half": "\ud800"},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@simulated
async def test_what_watchers_are_told_never_fails_a_run_that_is_recorded(odd: Any) -> None:
    ends = []
    for record in (False, True):
        tool = _Odd(_fine, name="act", description="Act.", effect="read")
        tool.odd = odd
        async with recorded([use("act", "a"), [say("done")]], [tool], record=record) as session:
            result = await session.send("go")
            ends.append((result.text, [each.state for each in await session.runs()]))
            text = replay.dump(await session.run_history(result.run_id))
            assert replay.dump(replay.run(replay.loads(text)).history) == text
    assert ends[0] == ends[1] == ("done", ["succeeded"])


def test_what_watchers_are_told_is_kept_as_plain_values() -> None:
    told = {"n": float("nan"), "s": {"b", "a"}, "t": (1, 2.5, None, True), 3: {"deep": b"x"}}
    assert plain(told) == {"n": "nan", "s": ["a", "b"], "t": [1, 2.5, None, True], "3": {"deep": "b'x'"}}
    ring: list[Any] = []
    ring.append(ring)
    json.dumps(plain(ring))
