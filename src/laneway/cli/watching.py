"""Showing something again whenever it may have changed: events say when to look, and not more often than is calm."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Annotated, Final, TypeVar

import typer
from rich.console import Console

from laneway.cli.link import LOST, Link, Told
from laneway.cli.reach import target_of
from laneway.cli.tables import errors, say
from laneway.errors import UnavailableError, UsageError

__all__ = ("WatchOption", "beats", "watched")

CALM_S: Final = 0.5
AT_LEAST_S: Final = 5.0  # what events do not tell (lanes, ages) is looked at now and then

T = TypeVar("T")
WatchOption = Annotated[bool, typer.Option("--watch", help="Show it again whenever something changes.")]


def watched(ctx: typer.Context, fetch: Callable[[], T], show: Callable[[T], None], *, watch: bool) -> None:
    """Show what was fetched: once, or again and again until Ctrl-C."""
    if not watch:
        show(fetch())
        return
    if ctx.meta.get("laneway.reach", {}).get("store", ("", False))[1]:
        raise UsageError("a store tells of no changes", hint="--watch needs a server: leave --store out")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(ctx, fetch, show))


async def _watch(ctx: typer.Context, fetch: Callable[[], T], show: Callable[[T], None]) -> None:
    async with Link(target_of(ctx)) as link, aclosing(beats(link)) as rounds:
        async for told in rounds:
            for each in told:
                if each.event == LOST:
                    say(f"connection lost, trying again: {each.data.get('reason', '')}", to=errors())
            with contextlib.suppress(UnavailableError):  # it restarts: the stream says so, and comes back
                found = await asyncio.to_thread(fetch)
                if sys.stdout.isatty():  # what is new takes the place of the old; in a pipe it follows it
                    Console().clear()
                show(found)
                sys.stdout.flush()


async def beats(link: Link, path: str = "/events", *, calm_s: float = CALM_S) -> AsyncGenerator[list[Told]]:
    """What has happened since the last time, whenever it is time to look again; the first comes at once."""
    queue: asyncio.Queue[Told] = asyncio.Queue()

    async def listen() -> None:
        async with aclosing(link.events(path)) as events:
            async for told in events:
                queue.put_nowait(told)

    listener = asyncio.get_running_loop().create_task(listen(), name="laneway-watch")
    try:
        told = [await _first(queue, listener)]
        while True:
            while not queue.empty():
                told.append(queue.get_nowait())
            yield told
            told = []
            await asyncio.sleep(calm_s)
            if listener.done():
                listener.result()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AT_LEAST_S):
                    told.append(await queue.get())
    finally:
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener


async def _first(queue: asyncio.Queue[Told], listener: asyncio.Task[None]) -> Told:
    """The first sign of the stream, or the error why there is none."""
    getter = asyncio.get_running_loop().create_task(queue.get(), name="laneway-watch-first")
    await asyncio.wait([getter, listener], return_when=asyncio.FIRST_COMPLETED)
    if getter.done():
        return getter.result()
    getter.cancel()
    listener.result()
    raise AssertionError("a stream ended without a word")
