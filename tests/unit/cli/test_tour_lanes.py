"""The tour of the lanes: its view fits the terminal, its numbers are those of the lanes, its proof can fail."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace

import pytest
from rich.console import Console

from laneway.cli.tour_chapters import CHAPTERS
from laneway.cli.tour_lanes import Proof
from laneway.cli.tour_stage import Ledger, Stage
from laneway.cli.tour_view import event_line, frame, summary_table
from laneway.events import EventsMissed, JobCompleted, JobStarted, LaneClosed
from laneway.records import JobId, JobState, Priority

SIZES = [(80, 24), (70, 22), (160, 50)]
PROOF = Proof(submitted=3, succeeded=1, failed=1, cancelled=1, timed_out=0, left=0, heard_submitted=3, heard_ended=3)


def draw(stage: Stage, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    picture = frame(stage, len(CHAPTERS), width=width, height=height)
    return ["".join(segment.text for segment in line) for line in console.render_lines(picture, pad=False)]


def started(label: str, wait_ms: int, number: int = 1) -> JobStarted:
    return JobStarted(
        job_id=JobId(f"job-{number}"),
        lane="query",
        state=JobState.RUNNING,
        attempt=1,
        label=label,
        wait_ms=wait_ms,
        at_ms=2_500,
    )


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.title)
async def test_a_frame_fits_the_terminal(chapter: object, width: int, height: int) -> None:
    stage = Stage(0.01)
    stage.chapter = next(one for one in CHAPTERS if one is chapter)
    stage.number = CHAPTERS.index(stage.chapter) + 1
    async with stage.lanes:
        for lane in stage.chapter.lanes:
            stage.lanes.pause(lane)
            for number in range(30):
                stage.submit(lane, f"job {number}", 1)
        stage.heard.extend([started("a label that is much longer than others", 7)] * 100)
        lines = draw(stage, width, height)
        stage.lanes.cancel_waiting()
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width
    assert stage.chapter.title in lines[0]


async def test_a_frame_shows_what_the_lanes_say() -> None:
    stage = Stage(0.01)
    stage.chapter = CHAPTERS[0]
    gate = asyncio.Event()
    async with stage.lanes:
        for number in range(5):
            stage.lanes.submit("query", gate.wait, label=f"r{number}")
        held = stage.lanes.submit("execute", gate.wait, label="w1", priority=Priority.BACKGROUND)
        stage.watch(held)
        stage.lanes.close_until("query", stage.clock.wall_ms() + 60_000, "429")
        picture = "\n".join(draw(stage, 100, 30))
        gate.set()
        stage.lanes.reopen("query")
    assert "3 of 3 busy" in picture
    assert "r4 r3 ▸" in picture
    assert "0 of 2 busy" in picture
    assert "all lanes together: 3 of 3 run, 3 wait" in picture
    assert "w1: " in picture
    assert "closed 60.0 s" in picture or "closed 59." in picture


async def test_a_lent_slot_is_drawn_as_lent() -> None:
    stage = Stage(0.01)
    stage.chapter = CHAPTERS[2]
    gate = asyncio.Event()
    picture: list[str] = []

    async def child() -> None:
        picture.extend(draw(stage, 100, 30))
        gate.set()

    async def parent() -> None:
        await stage.lanes.submit("agent", child, label="child")

    async with stage.lanes:
        await stage.lanes.submit("agent", parent, label="parent")
    assert gate.is_set()
    assert any("parent waits, its slot is lent" in line for line in picture)
    assert any("1 lent" in line for line in picture)


def test_the_ledger_keeps_its_own_books() -> None:
    ledger = Ledger()
    ledger.hear(started("r1", 10))
    ledger.hear(started("r2", 30, number=2))
    done = JobCompleted(job_id=JobId("job-1"), lane="query", state=JobState.SUCCEEDED, attempt=1, label="r1", run_ms=5)
    ledger.hear(done)
    ledger.hear(EventsMissed(count=4))
    assert (len(ledger.submitted), ledger.ended) == (2, {"job-1": JobState.SUCCEEDED})
    assert (ledger.waited_ms("r"), ledger.order("r"), ledger.missed) == (20, ["r1", "r2"], 4)


def test_events_are_lines() -> None:
    assert event_line(started("r1", 10), 500).plain == "   2.00 s  query    r1          started after 10 ms"
    closed = LaneClosed(lane="model", until_ms=9, reason="429", at_ms=500)
    assert event_line(closed, 500).plain.endswith("closed: 429")


async def test_the_summary_is_made_of_the_metrics() -> None:
    stage = Stage(0.01)
    async with stage.lanes:
        await stage.submit("query", "r1", 1)
        out = io.StringIO()
        Console(file=out, width=80).print(summary_table(stage.lanes.metrics()))
    assert "…" not in out.getvalue()
    assert all(name in out.getvalue() for name in stage.priorities)


def test_the_proof_holds_only_when_both_books_agree_and_nothing_is_left() -> None:
    assert PROOF.holds
    assert str(PROOF).startswith("3 submitted = 3 ended (1 succeeded, 1 failed, 1 cancelled, 0 timed out), 0 left")
    for wrong in ({"left": 1}, {"succeeded": 2}, {"submitted": 4}, {"heard_ended": 2}, {"heard_submitted": 4}):
        assert not replace(PROOF, **wrong).holds
