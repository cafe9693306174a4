"""The tour of the server: its proof can fail, and it shows what was told, without what would steer a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from laneway.cli.tour_server import Happened, TourServer
from laneway.cli.tour_walk import CHAPTERS, Proof, Walk
from laneway.config import load_agent
from laneway.errors import InternalError

PROOF = Proof(accepted=3, ended=3, twice=0, crashes=1, steps=("first", "second"))


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    return Walk(TourServer(tmp_path), Console(file=io.StringIO(), width=200), 0.0)


def shown(walk: Walk) -> str:
    assert isinstance(walk.console.file, io.StringIO)
    return walk.console.file.getvalue()


@pytest.mark.parametrize(
    "wrong",
    [
        replace(PROOF, ended=2),
        replace(PROOF, accepted=0, ended=0),
        replace(PROOF, twice=1),
        replace(PROOF, steps=("first",)),
        replace(PROOF, steps=("first", "first", "second")),
    ],
)
def test_the_proof_can_fail(wrong: Proof) -> None:
    assert PROOF.holds
    assert not wrong.holds


def test_messages_are_counted_by_their_ids_and_lines_by_the_file(walk: Walk) -> None:
    for event, message in (("accepted", "a"), ("accepted", "b"), ("ended", "a"), ("ended", "a")):
        walk.follower.happened.append(Happened(f"message.{event}", 0, {"message_id": message}))
    walk.steps_file.write_text("first\nsecond\n")
    assert walk.proof() == replace(PROOF, accepted=2, ended=1, twice=1, crashes=0)


def test_a_claim_that_does_not_hold_ends_the_tour(walk: Walk) -> None:
    walk.check(True, "it holds")
    with pytest.raises(InternalError, match="something else"):
        walk.check(False, "it does not")


def test_what_is_told_is_shown_in_words(walk: Walk) -> None:
    walk.follower.on_event(Happened("turn.started", 5, {"messages": ["a", "b"]}))
    walk.follower.on_event(Happened("text_delta", 0, {"payload": {"text": "no line of its own"}}))
    walk.follower.on_event(Happened("turn.ended", 6, {"state": "succeeded", "answer": "x" * 500}))
    lines = shown(walk).splitlines()
    assert "a run begins over 2 messages" in lines[0]
    assert len(lines) == 2
    assert len(lines[1]) < 120


def test_an_answer_cannot_steer_the_terminal(walk: Walk) -> None:
    walk.follower.on_event(Happened("turn.ended", 6, {"state": "succeeded", "answer": "\x1b[2Jgone"}))
    assert "\x1b[2J" not in shown(walk)


async def test_an_event_that_has_happened_is_found_and_one_before_the_place_is_not(walk: Walk) -> None:
    walk.follower.happened += [Happened("message.ended", 1, {"message_id": "a"})]
    assert (await walk.ended("a")).seq == 1
    walk.follower.happened += [Happened("tool_start", 0, {"payload": {"tool_name": "wait"}})]
    found = await walk.heard("tool_start", since=1, tool_name="wait")
    assert found.type == "tool_start"


def test_the_settings_of_its_server_are_good_and_its_model_is_scripted(walk: Walk) -> None:
    agent = load_agent(walk.server.folder / "agent.yaml", environ={})
    assert agent.default_model == "scripted"
    assert [chapter.title for chapter in CHAPTERS][1:4] == ["Collect", "Steer", "Interrupt"]
