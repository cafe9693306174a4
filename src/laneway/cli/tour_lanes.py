"""`laneway tour lanes`: what lanes do, shown with real ones in the terminal, in about a minute."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from laneway.cli.tour_chapters import CHAPTERS
from laneway.cli.tour_stage import Chapter, Stage
from laneway.cli.tour_view import event_line, frame, summary_table
from laneway.errors import InternalError
from laneway.events import Event
from laneway.records import LaneMetrics
from laneway.runtime.subscriptions import Subscription

__all__ = ("tour",)

PACE: Final = 1.0
PACE_FAST: Final = 0.06
READ_BEFORE_MS: Final = 1_700
READ_AFTER_MS: Final = 2_000
FRAME_S: Final = 0.08
WIDTH_LEAST: Final = 70
HEIGHT_LEAST: Final = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Whether every job that was submitted has ended, by the lanes' own count and by the event stream."""

    submitted: int
    succeeded: int
    failed: int
    cancelled: int
    timed_out: int
    left: int
    heard_submitted: int
    heard_ended: int

    @property
    def ended(self) -> int:
        """How many have ended, however."""
        return self.succeeded + self.failed + self.cancelled + self.timed_out

    @property
    def holds(self) -> bool:
        """Nothing is lost, nothing is counted twice, and both books agree."""
        return self.submitted == self.ended == self.heard_submitted == self.heard_ended and self.left == 0

    def __str__(self) -> str:
        return (
            f"{self.submitted} submitted = {self.ended} ended ({self.succeeded} succeeded, {self.failed} failed, "
            f"{self.cancelled} cancelled, {self.timed_out} timed out), {self.left} left; the event stream counts "
            f"{self.heard_submitted} and {self.heard_ended}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the tour ends with."""

    findings: tuple[tuple[str, str], ...]
    metrics: dict[str, LaneMetrics]
    proof: Proof
    seconds: float


def tour(*, fast: bool, plain: bool, as_json: bool) -> None:
    """Show what lanes do, on a screen or line by line; or only say what was found, as JSON."""
    console = Console()
    small = console.width < WIDTH_LEAST or console.height < HEIGHT_LEAST
    live = console.is_terminal and not console.is_dumb_terminal and not small and not plain and not as_json
    pace = PACE_FAST if fast else PACE
    summary = asyncio.run(_play(console, pace, live=live, mute=as_json))
    if as_json:
        print(json.dumps(_as_json(summary), indent=1))
    else:
        _show(console, summary)
    if not summary.proof.holds:
        raise InternalError(f"the tour lost count: {summary.proof}")


async def _play(console: Console, pace: float, *, live: bool, mute: bool) -> Summary:
    """Run all chapters on one set of lanes, listening and drawing meanwhile."""
    stage = Stage(pace)

    def say(text: str, style: str = "") -> None:
        if not live and not mute:
            console.print(Text(text, style), soft_wrap=True)

    def heard(event: Event) -> None:
        stage.hear(event)
        if not live and not mute:
            console.print(event_line(event, stage.began_ms), soft_wrap=True)

    stage.echo = lambda line: say(f"           {line}")
    screen = Live(console=console, screen=True, auto_refresh=False) if live else contextlib.nullcontext()
    findings: list[tuple[str, str]] = []
    async with asyncio.TaskGroup() as group, stage.lanes:
        group.create_task(_listen(stage.lanes.subscribe(), heard), name="listener")
        with screen:
            painter = group.create_task(_paint(stage, screen), name="painter") if isinstance(screen, Live) else None
            try:
                for number, chapter in enumerate(CHAPTERS, start=1):
                    say(f"\n{number}/{len(CHAPTERS)} {chapter.title}", "bold")
                    say(chapter.text)
                    finding = await _chapter(stage, chapter, number)
                    say(f"→ {finding}", "green")
                    findings.append((chapter.title, finding))
            finally:
                stage.curtain.set()
                if painter is not None:
                    painter.cancel()
    return Summary(
        findings=tuple(findings),
        metrics=stage.lanes.metrics(),
        proof=_prove(stage),
        seconds=(stage.clock.wall_ms() - stage.began_ms) / 1000,
    )


async def _chapter(stage: Stage, chapter: Chapter, number: int) -> str:
    """Play one chapter, with time to read before and after."""
    stage.chapter, stage.number, stage.finding = chapter, number, ""
    stage.heard.clear()
    await stage.breathe(READ_BEFORE_MS)
    stage.finding = await chapter.play(stage)
    await stage.breathe(READ_AFTER_MS)
    return stage.finding


async def _listen(stream: Subscription, heard: Callable[[Event], None]) -> None:
    """Read the event stream to its end."""
    async for event in stream:
        heard(event)


async def _paint(stage: Stage, screen: Live) -> None:
    """Draw until cancelled."""
    while True:
        size = screen.console.size
        screen.update(frame(stage, len(CHAPTERS), width=size.width, height=size.height), refresh=True)
        await asyncio.sleep(FRAME_S)


def _prove(stage: Stage) -> Proof:
    lanes = [lane.stats for lane in stage.lanes.metrics().values()]
    now = stage.lanes.stats()
    return Proof(
        submitted=sum(lane.submitted for lane in lanes),
        succeeded=sum(lane.completed for lane in lanes),
        failed=sum(lane.failed for lane in lanes),
        cancelled=sum(lane.cancelled for lane in lanes),
        timed_out=sum(lane.timed_out for lane in lanes),
        left=now.running + now.waiting + now.scheduled + now.lent,
        heard_submitted=len(stage.ledger.submitted),
        heard_ended=len(stage.ledger.ended),
    )


def _show(console: Console, summary: Summary) -> None:
    console.print()
    for number, (title, finding) in enumerate(summary.findings, start=1):
        console.print(Text.assemble((f"{number} {title}: ", "bold"), finding))
    console.print()
    console.print(summary_table(summary.metrics))
    verdict = ("✓ Nothing lost", "bold green") if summary.proof.holds else ("✗ Lost count", "bold red")
    console.print(Text.assemble(verdict, f": {summary.proof}."), soft_wrap=not console.is_terminal)


def _as_json(summary: Summary) -> dict[str, Any]:
    return {
        "findings": [{"title": title, "finding": finding} for title, finding in summary.findings],
        "lanes": {name: asdict(lane) for name, lane in summary.metrics.items()},
        "proof": {**asdict(summary.proof), "ended": summary.proof.ended, "holds": summary.proof.holds},
        "seconds": summary.seconds,
    }
