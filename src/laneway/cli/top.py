"""`laneway top`: the same as `status`, live, with what has just happened below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from laneway.cli.client import Server, Target
from laneway.cli.link import LOST, OPEN, Link, Told
from laneway.cli.reach import JsonOption, target_of
from laneway.cli.status import gathered, shown
from laneway.cli.tables import console, line, print_json
from laneway.cli.watching import beats
from laneway.errors import UnavailableError

__all__ = ("top",)

RECENT: Final = 8
TOLD: Final = {
    "message.accepted": "message taken",
    "message.ended": "message ended",
    "turn.started": "run began",
    "turn.ended": "run ended",
    "tool_start": "call began",
    "tool_end": "call ended",
    "approval.asked": "approval asked",
    "approval.ended": "approval ended",
    "steered": "steered",
    "error": "error",
    LOST: "connection lost",
}


def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end, for scripts.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch the server: lanes, sessions, what waits, what happens. `q` or Ctrl-C ends it."""
    target = target_of(ctx)
    if once or as_json or not sys.stdout.isatty():
        with Server(target) as server:
            found = gathered(server)
        if as_json:
            print_json(found)
        else:
            console().print(shown(found))
        return
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_live(target))


async def _live(target: Target) -> None:
    recent: deque[str] = deque(maxlen=RECENT)
    ended = asyncio.Event()
    found: dict[str, Any] | None = None
    with Server(target) as server, _keys(ended.set), Live(console=Console(highlight=False), screen=True) as live:
        async with Link(target) as link, aclosing(beats(link)) as rounds:
            quitter = asyncio.get_running_loop().create_task(ended.wait(), name="laneway-top-quit")
            try:
                while True:
                    following = asyncio.ensure_future(anext(rounds))
                    await asyncio.wait([following, quitter], return_when=asyncio.FIRST_COMPLETED)
                    if not following.done():
                        following.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await following
                        return
                    recent.extend(text for told in following.result() if (text := _told(told)))
                    with contextlib.suppress(UnavailableError):  # it restarts: the stream says so, and comes back
                        found = await asyncio.to_thread(gathered, server)
                    live.update(_screen(found, list(recent)), refresh=True)
            except StopAsyncIteration:
                return
            finally:
                quitter.cancel()


def _screen(found: dict[str, Any] | None, recent: list[str]) -> RenderableType:
    happened: list[RenderableType] = [Text(text, style="dim", no_wrap=True, overflow="ellipsis") for text in recent]
    above = [] if found is None else [shown(found), Text()]
    return Group(*above, *happened, Text("q ends this", style="dim"))


def _told(told: Told) -> str:
    """One line about what has happened; empty for what is of no interest here."""
    what = TOLD.get(told.event)
    if what is None or told.event == OPEN:
        return ""
    metadata = told.data.get("metadata")
    session = metadata.get("session_id", "") if isinstance(metadata, dict) else told.data.get("session_key", "")
    payload = told.payload
    details = (payload.get(name) for name in ("tool_name", "state", "outcome", "status", "action", "error", "reason"))
    return line(f"{session}  {what}  {' '.join(str(each) for each in details if each)}")


@contextlib.contextmanager
def _keys(quit_now: Callable[[], Any]) -> Iterator[None]:
    """Hear of `q` while the screen is shown; the terminal is as before afterwards."""
    if not sys.stdin.isatty() or os.name != "posix":
        yield
        return
    import termios  # only terminals of this kind have it
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def heard() -> None:
        if os.read(fd, 16).lower()[:1] in (b"q", b""):
            quit_now()

    tty.setcbreak(fd)
    loop.add_reader(fd, heard)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
