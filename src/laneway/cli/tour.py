"""`laneway tour`: what Laneway does, shown with a real server; `laneway tour lanes`: the lanes alone."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from laneway.cli.tour_server import TourServer
from laneway.cli.tour_walk import CHAPTERS, Proof, Walk
from laneway.errors import ConfigError, InternalError

__all__ = ("tour_app",)

LONGEST_S: Final = 110

tour_app = typer.Typer(
    help="See what Laneway does: collect, steer, interrupt, a crash and the recovery, in less than a minute.",
    invoke_without_command=True,
    no_args_is_help=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the tour ends with."""

    findings: tuple[tuple[str, str], ...]
    proof: Proof
    seconds: float


@tour_app.callback()
def tour(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Without time to read: some seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="No show: only what was found, as JSON.")] = False,
) -> None:
    """See what Laneway does, on a server of its own in a temporary folder.

    It needs no key: the model is scripted, and says so. Everything else is real, the killed process, too.
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(file=io.StringIO()) if as_json else Console(highlight=False)
    try:
        summary = asyncio.run(_play(console, 0.0 if fast or as_json else 1.0))
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the tour needs {error.name}", setting="tour", hint="install laneway with the extra `all`"
        ) from None
    if as_json:
        sys.stdout.write(json.dumps(_as_json(summary), indent=1) + "\n")
    else:
        _show(console, summary)
    if not summary.proof.holds:
        raise InternalError(f"the tour lost count: {summary.proof}")


@tour_app.command("lanes")
def lanes(
    fast: Annotated[bool, typer.Option("--fast", help="A few seconds instead of about a minute.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Line by line, as when the output is not a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="No show: only the summary, as JSON.")] = False,
) -> None:
    """See what lanes do: real lanes, real jobs, about a minute."""
    from laneway.cli.tour_lanes import tour as show  # lanes are loaded for whoever wants to see them

    show(fast=fast, plain=plain, as_json=as_json)


async def _play(console: Console, pace: float) -> Summary:
    began = time.monotonic()
    findings: list[tuple[str, str]] = []
    async with _stage(console, pace) as walk:
        for number, chapter in enumerate(CHAPTERS, start=1):
            walk.say(f"\n{number}/{len(CHAPTERS)} {chapter.title}", "bold")
            walk.say(chapter.text)
            await walk.breathe()
            finding = await chapter.play(walk)
            if number == 1:
                await walk.follower.connected()
            walk.say(f"  ✓ {finding}.", "green")
            findings.append((chapter.title, finding))
            await walk.breathe()
        proof = walk.proof()
        code = await walk.server.stop()
        walk.check(code == 0, f"the server ends with code 0, not {code}")
    return Summary(findings=tuple(findings), proof=proof, seconds=round(time.monotonic() - began, 1))


@contextlib.asynccontextmanager
async def _stage(console: Console, pace: float) -> AsyncIterator[Walk]:
    """A server in a folder that is removed afterwards, and somebody who follows it."""
    with tempfile.TemporaryDirectory(prefix="laneway-tour-") as folder:
        async with TourServer(Path(folder)) as server:
            walk = Walk(server, console, pace)
            following = asyncio.get_running_loop().create_task(_follow(walk), name="follower")
            try:
                async with asyncio.timeout(LONGEST_S):
                    yield walk
            except TimeoutError:
                raise InternalError(f"the tour has not come to its end in {LONGEST_S} s") from None
            finally:
                following.cancel()
                await asyncio.wait([following])


async def _follow(walk: Walk) -> None:
    await walk.server.started.wait()
    await walk.follower.follow()


def _show(console: Console, summary: Summary) -> None:
    verdict = ("✓ Nothing lost", "bold green") if summary.proof.holds else ("✗ Lost count", "bold red")
    console.print()
    console.print(Text.assemble(verdict, f": {summary.proof}. It took {summary.seconds:g} s."), soft_wrap=True)
    console.print("Next: laneway serve, then laneway chat. The lanes alone: laneway tour lanes.")


def _as_json(summary: Summary) -> dict[str, Any]:
    return {
        "findings": [{"title": title, "finding": finding} for title, finding in summary.findings],
        "proof": {**asdict(summary.proof), "holds": summary.proof.holds},
        "seconds": summary.seconds,
    }
