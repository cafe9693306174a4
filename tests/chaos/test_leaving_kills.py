"""kill -9 on the way out of memory, while a call waits for a person or sub-agents work: checked call by call."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.agent_stage import Stage
from tests.chaos.leaving_checker import judge_leaving, read_leaving
from tests.chaos.leaving_scene import AT_THE_BOUNDARY, LONG_MS, POINTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ASKED: dict[str, Any] = {"leaves": "asked", "deadline_ms": 20}
AT_WORK: dict[str, Any] = {"leaves": "work", "deadline_ms": LONG_MS}
CUT: dict[str, Any] = {"deadline_ms": 0}
SCENES: dict[str, dict[str, Any]] = {
    "approved after the restart": {"messages": ["ask"], **ASKED},
    "denied after the restart": {"messages": ["ask"], **ASKED, "answer": "deny"},
    "approved just before": {"messages": ["ask"], **ASKED, "when": "before", "deadline_ms": LONG_MS},
    "approved just before, and cut": {"messages": ["ask"], **ASKED, "when": "before", **CUT},
    "approved on the way": {"messages": ["ask"], **ASKED, "when": "during", "deadline_ms": LONG_MS},
    "denied on the way": {"messages": ["ask"], **ASKED, "when": "during", "answer": "deny", **CUT},
    "a sub-agent in the foreground": {"messages": ["wait"], **AT_WORK},
    "a sub-agent in the foreground, and cut": {"messages": ["wait"], **AT_WORK, **CUT},
    "a sub-agent in the background": {"messages": ["go on"], **AT_WORK},
    "a sub-agent in the background, and cut": {"messages": ["go on"], **AT_WORK, **CUT},
    "a sub-agent of a sub-agent": {"messages": ["deep"], **AT_WORK},
    "one in each, and one of them asks": {"messages": ["both"], **AT_WORK, **CUT},
    "a sub-agent in the foreground asks": {"messages": ["ask below"], **ASKED},
    "a sub-agent in the background asks": {"messages": ["ask behind"], **ASKED, "when": "before", **CUT},
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage("tests.chaos.leaving_scene") as one:
        yield one


def play(stage: Stage, folder: Path, scene: dict[str, Any], kills: tuple[str, str]) -> list[int]:
    """Two lives that are killed on their way out, if they get there, and one that goes on to the end."""
    folder.mkdir()
    more = {"messages": [*scene["messages"], "next"]}  # one that comes while the session is not there
    lives: list[dict[str, Any]] = [{"kill": kills[0]}, {"kill": kills[1], **more}, {"leaves": "", **more}]
    return [stage.play({"folder": str(folder), **scene, **life, "life": at}) for at, life in enumerate(lives, 1)]


def pairs(place: int) -> Iterator[tuple[str, str]]:
    """Where the two lives of the worlds of a scene end: a third of all points, so that three scenes have them all."""
    for at in range(place % 3, len(POINTS), 3):
        yield POINTS[at], POINTS[(at + 1 + place) % len(POINTS)]


@pytest.mark.parametrize("name", SCENES)
def test_a_session_that_is_killed_on_its_way_out_keeps_every_promise(stage: Stage, tmp_path: Path, name: str) -> None:
    scene, ends = SCENES[name], Counter[int]()
    for first, second in pairs(list(SCENES).index(name)):
        folder = tmp_path / f"{first}-{second}"
        codes = play(stage, folder, scene, (first, second))
        log = (folder / "log").read_text(encoding="utf-8")
        assert (codes[0], codes[2]) == (-signal.SIGKILL, 0), (first, second, codes, log[-3000:])
        assert codes[1] in (-signal.SIGKILL, 0), (first, second, log[-3000:])
        ends.update(codes[:2])
        is_sure = scene["deadline_ms"] == LONG_MS and {first, second} <= set(AT_THE_BOUNDARY)
        assert judge_leaving(read_leaving(folder, 3, is_sure=is_sure)) == [], (first, second)
    assert ends[-signal.SIGKILL] >= len(POINTS) // 3


def test_a_write_that_is_made_again_is_found(stage: Stage, tmp_path: Path) -> None:
    scene = SCENES["a sub-agent in the foreground, and cut"]
    assert play(stage, tmp_path / "world", {**scene, "lies": True}, ("told", ""))[0] == -signal.SIGKILL
    kinds = {each.partition(":")[0] for each in judge_leaving(read_leaving(tmp_path / "world", 3, is_sure=False))}
    assert kinds == {"twice"}
