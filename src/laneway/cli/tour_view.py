"""How the tour looks: each lane is a track, each slot a rail; everything is read off the lanes when it is drawn."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from laneway.cli.tour_stage import Stage
from laneway.events import (
    Event,
    JobCompleted,
    JobEvent,
    JobRetried,
    JobStarted,
    LaneClosed,
    LaneEvent,
)
from laneway.records import JobInfo, JobState, LaneMetrics, LaneStats, Priority

__all__ = ("event_line", "frame", "summary_table")

# Named colours only: the terminal's own palette decides how they look on its background.
BLOCKS: Final = {
    Priority.USER: "black on cyan",
    Priority.SCHEDULED: "black on magenta",
    Priority.BACKGROUND: "black on green",
}
TOKENS: Final = {Priority.USER: "cyan", Priority.SCHEDULED: "magenta", Priority.BACKGROUND: "green"}
ENDING: Final = "white on red"
NAME_WIDTH: Final = 16
_MEASURE: Final = Console(width=200, file=io.StringIO())  # wraps text, prints nothing
DONE_WIDTH: Final = 6
COLUMNS: Final = (
    "sub-\nmitted",
    "suc-\nceeded",
    "failed",
    "can-\ncelled",
    "timed\nout",
    "re-\ntried",
    "dead",
    "aban-\ndoned",
    "wait\np50 ms",
    "run\np50 ms",
)
EVENT_STYLES: Final = {
    "completed": "green",
    "failed": "red",
    "timeout": "red",
    "cancelled": "yellow",
    "abandoned": "red",
    "dead_lettered": "red",
    "retry": "yellow",
    "lent": "magenta",
    "took_back": "magenta",
}


def frame(stage: Stage, chapters: int, *, width: int, height: int) -> RenderableType:
    """One picture of the stage that fits the terminal."""
    chapter = stage.chapter
    if chapter is None:
        return Text()
    elapsed = (stage.clock.wall_ms() - stage.began_ms) / 1000
    dots = "●" * stage.number + "○" * (chapters - stage.number)
    left = Text.assemble((" Laneway ", "bold reverse"), f" {dots} ", (chapter.title, "bold"))
    right = f"{elapsed:.0f} s "
    left.append(" " * max(1, width - left.cell_len - len(right)))
    left.append(right, "dim")
    top: list[RenderableType] = [left, Rule(style="dim"), Text(chapter.text), Text()]
    tracks = list(_tracks(stage, width - 1))
    why = stage.finding or stage.why()
    below = Text.assemble(("✓ " if stage.finding else "why ", "bold green" if stage.finding else "bold"), why)
    note = below if why else Text()
    used = 3 + _lines(chapter.text, width) + len(tracks) + 1 + max(2, _lines(note.plain, width)) + 1
    room = max(1, height - used)
    events = [_said(line, stage.began_ms) for line in list(stage.heard)[-room:]]
    pad = [Text()] * (1 if _lines(note.plain, width) < 2 else 0)
    return Group(*top, *tracks, Text(), note, *pad, Rule(style="dim"), *(_cut(line, width) for line in events))


def _lines(text: str, width: int) -> int:
    """How many lines a text takes when it is wrapped."""
    return max(1, len(Text(text).wrap(_MEASURE, width))) if text else 1


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line


def _tracks(stage: Stage, width: int) -> Iterable[Text]:
    assert stage.chapter is not None
    stats = stage.lanes.stats()
    queue_width = (width - NAME_WIDTH - DONE_WIDTH) * 2 // 5
    rail_width = width - NAME_WIDTH - DONE_WIDTH - queue_width - 4
    head = Text(f" {'lane':<{NAME_WIDTH - 1}}{'waiting':>{queue_width}}   running", "dim")
    head.append(f"{'done':>{max(0, width - head.cell_len)}}")
    yield head
    for name in stage.chapter.lanes:
        yield from _lane(stage, name, stats.lanes[name], queue_width, rail_width)
    shared = f" all lanes together: {stats.running} of {stats.max_concurrent} run, {stats.waiting} wait"
    extras = [
        f"{count} {word}"
        for count, word in ((stats.scheduled, "later"), (stats.lent, "lent"), (stats.abandoned, "abandoned"))
        if count
    ]
    yield Text(", ".join([shared, *extras]), "dim")


def _lane(stage: Stage, name: str, stats: LaneStats, queue_width: int, rail_width: int) -> Iterable[Text]:
    jobs = stage.lanes.jobs(name)
    begun = [job for job in jobs if job.state is JobState.RUNNING]
    lent = [job for job in jobs if job.state is JobState.LENT]
    rails = [_rail(job, stage.progress.get(job.label, 0.0), rail_width) for job in begun]
    rails += [_empty(rail_width)] * (stats.max_concurrent - len(rails))
    rails += [_lent(job, rail_width) for job in lent]
    facts = [
        Text.assemble((f" {name}", "bold"), (f"  P{stage.priorities[name]}", "dim")),
        Text(f" {stats.running} of {stats.max_concurrent} busy", "dim"),
        *_troubles(stage, stats),
    ]
    ended = stats.failed + stats.cancelled + stats.timed_out
    done = [Text(f"{stats.completed} ✓", "green"), Text(f"{ended} ✗", "red") if ended else Text()]
    queue = _queue(stage, jobs, queue_width)
    for row in range(max(2, len(rails), len(facts))):
        line = _fit(facts[row] if row < len(facts) else Text(), NAME_WIDTH)
        line.append_text(_fit(queue[row] if row < len(queue) else Text(), queue_width, right=True))
        line.append("  ")
        line.append_text(rails[row] if row < len(rails) else Text(" " * (rail_width + 1)))
        line.append_text(_fit(done[row] if row < len(done) else Text(), DONE_WIDTH, right=True))
        line.no_wrap = True
        yield line


def _troubles(stage: Stage, stats: LaneStats) -> list[Text]:
    """What else is to be said about a lane."""
    said = []
    if stats.closed_until_ms is not None and (left := stats.closed_until_ms - stage.clock.wall_ms()) > 0:
        said.append(Text(f" closed {left / 1000:.1f} s", "bold red"))
    if stats.paused:
        said.append(Text(" paused", "bold yellow"))
    if stats.lent:
        said.append(Text(f" {stats.lent} lent", "magenta"))
    return said


def _queue(stage: Stage, jobs: Iterable[JobInfo], width: int) -> list[Text]:
    """What waits, the next one beside its track; below it what waits for a time."""
    listed = list(jobs)
    waiting = [job for job in listed if job.state is JobState.QUEUED]
    waiting.sort(key=lambda job: stage.lanes.explain(job.id).position or 0)
    later = [job for job in listed if job.state is JobState.SCHEDULED]
    return [_tokens(waiting, width, " ▸"), _tokens(later, width, " later")]


def _tokens(jobs: list[JobInfo], width: int, tail: str) -> Text:
    line = Text()
    if not jobs:
        return line
    room = width - len(tail) - 4
    shown: list[JobInfo] = []
    for job in jobs:
        room -= len(job.label) + 1
        if room < 0:
            break
        shown.append(job)
    if len(shown) < len(jobs):
        line.append(f"+{len(jobs) - len(shown)} ", "dim")
    for job in reversed(shown):
        line.append(job.label, TOKENS[job.priority])
        line.append(" ")
    line.rstrip()
    line.append(tail, "dim")
    return line


def _rail(job: JobInfo, progress: float, width: int) -> Text:
    """A job as a block on its rail, as far as it says it is."""
    block = f" {job.label} "
    room = max(0, width - len(block))
    at = min(room, int(progress * room))
    style = ENDING if job.cancelling else BLOCKS[job.priority]
    return Text.assemble(("─" * at, "dim"), (block, style), ("─" * (room - at), "dim"), ("┤", "dim"))


def _empty(width: int) -> Text:
    return Text("─" * width + "┤", "dim")


def _lent(job: JobInfo, width: int) -> Text:
    words = f" {job.label} waits, its slot is lent"
    return _fit(Text(words, "italic magenta"), width + 1)


def _fit(text: Text, width: int, *, right: bool = False) -> Text:
    """Exactly that wide."""
    fitted = text.copy()
    fitted.truncate(width, overflow="ellipsis")
    missing = width - fitted.cell_len
    return Text.assemble(" " * missing, fitted) if right else Text.assemble(fitted, " " * missing)


def _said(line: Event | str, began_ms: int) -> Text:
    return event_line(line, began_ms) if isinstance(line, Event) else Text(f"{'':11}{line}", "bold")


def event_line(event: Event, began_ms: int) -> Text:
    """One event as one line."""
    word = event.type.rsplit(".", 1)[-1]
    line = Text(f"{(event.at_ms - began_ms) / 1000:7.2f} s  ", "dim")
    match event:
        case JobEvent():
            line.append(f"{event.lane:<9}{event.label or event.job_id:<12}", "")
            line.append(word.replace("_", " "), EVENT_STYLES.get(word, ""))
            line.append(_details(event), "dim")
        case LaneEvent():
            line.append(f"{event.lane:<9}{'':<12}{word}")
            line.append(f": {event.reason}" if isinstance(event, LaneClosed) else "", "dim")
        case _:
            line.append(event.type.removeprefix("queue."))
    return line


def _details(event: JobEvent) -> str:
    parts = []
    match event:
        case JobStarted():
            parts.append(f" after {event.wait_ms} ms" + (f", attempt {event.attempt}" if event.attempt > 1 else ""))
        case JobCompleted():
            parts.append(f" in {event.run_ms} ms")
        case JobRetried():
            parts.append(f" in {event.delay_ms} ms")
        case _:
            pass
    if event.reason:
        parts.append(f": {event.reason}")
    return "".join(parts)


def summary_table(metrics: Mapping[str, LaneMetrics]) -> Table:
    """The numbers of all lanes since the start, from `lanes.metrics()`; times in milliseconds."""
    table = Table(title="lanes.metrics()", title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=0)
    table.add_column("lane", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, lane in metrics.items():
        stats = lane.stats
        counts = (
            stats.submitted,
            stats.completed,
            stats.failed,
            stats.cancelled,
            stats.timed_out,
            stats.retried,
            stats.dead_lettered,
            stats.abandoned,
        )
        times = (lane.wait.p50_ms, lane.run.p50_ms)
        table.add_row(name, *(str(count) if count else "·" for count in counts), *(f"{time:,}" for time in times))
    return table
