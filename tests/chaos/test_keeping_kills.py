"""kill -9 while history is pruned, a session is deleted, imported or exported: whole or not at all, after a restart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from laneway import ArchiveError, Inbox, Turn
from laneway.runtime.archive import check_archive, export_session
from laneway.runtime.retention import boundary, prune
from laneway.stores.sqlite import SqliteStore
from laneway.stores.sqlite_file import check_file
from tests.chaos.keeping_life import LIMITS, OTHER, RUNS, WHO, fill

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4


def killed(what: str, folder: Path, delay_s: float) -> bool:
    """Run it, and kill it so long after it was ready; whether it had come to its end."""
    command = [sys.executable, "-m", "tests.chaos.keeping_life", what, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            rest, _ = process.communicate(timeout=delay_s)
        except subprocess.TimeoutExpired:
            process.kill()
            rest, _ = process.communicate()
    return "done" in rest


async def echo(turn: Turn) -> str:
    """An agent."""
    return turn.prompt


async def restarted(folder: Path) -> dict[str, int]:
    """How many rows each session has after a start."""
    async with Inbox(echo, store=f"sqlite:///{folder}/store.db") as inbox:
        assert inbox.engine.is_open
    assert check_file(str(folder / "store.db"), busy_ms=5000).is_sound
    return {owner.session: len(await lines_of(folder, owner)) - 2 for owner in (WHO, OTHER)}


async def lines_of(folder: Path, owner: object) -> list[bytes]:
    """The file of a session; only its ends if there is none."""
    store = SqliteStore(folder / "store.db")
    await store.open()
    try:
        if not await store.history.events(WHO if owner == WHO else OTHER, limit=1):
            rows = [await store.history.states(WHO if owner == WHO else OTHER, kind) for kind in ("turn", "round")]
            assert rows == [[], []]
            return [b"", b""]
        return [line async for line in export_session(store, WHO if owner == WHO else OTHER, at_ms=1)]
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["prune", "delete", "import", "export"])
def test_a_kill_leaves_nothing_half_done(what: str, tmp_path: Path) -> None:
    dice = Random(what)
    whole = RUNS * 6
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        asyncio.run(fill(folder / "store.db", OTHER))
        if what == "import":
            asyncio.run(_file_of_chat(folder))
        else:
            asyncio.run(fill(folder / "store.db", WHO))
        is_done = killed(what, folder, dice.random() * 0.4)
        if what == "prune":
            asyncio.run(_check_pruned(folder))
            continue
        found = asyncio.run(restarted(folder))
        assert found["other"] == whole
        if what == "delete":
            assert found["chat"] == 0
        elif what == "import":
            assert found["chat"] == (whole if is_done else found["chat"])
            assert found["chat"] in (0, whole)
        else:
            _check_exported(folder, is_done=is_done)


async def _file_of_chat(folder: Path) -> None:
    await fill(folder / "made.db", WHO)
    store = SqliteStore(folder / "made.db")
    await store.open()
    (folder / "chat.laneway").write_bytes(b"".join([line async for line in export_session(store, WHO, at_ms=1)]))
    await store.close()


async def _check_pruned(folder: Path) -> None:
    """What is to stay is there, and a second time finishes it."""
    store = SqliteStore(folder / "store.db")
    await store.open()
    await prune(store, WHO, LIMITS, now_ms=10**9)
    turns = await store.history.states(WHO, "turn", limit=10_000)
    assert [row.id for row in turns] == [f"t-chat-{at}" for at in range(RUNS - 10, RUNS)]
    assert len(await store.history.entries(WHO, limit=10_000)) == 10
    assert len(await store.history.states(OTHER, "turn", limit=10_000)) == RUNS
    names = [f"default:{at:064d}" for at in range(RUNS)]
    blobs = await store.history.states_by_id("blob", names)
    assert all(row is not None for row in blobs), "the other session names them, too"
    assert await boundary(store, WHO, LIMITS, now_ms=10**9) <= 0
    await store.close()


def _check_exported(folder: Path, *, is_done: bool) -> None:
    lines = (folder / "out.laneway").read_bytes().splitlines(keepends=True)
    if is_done or (lines and lines[-1].startswith(b'{"rows"') and lines[-1].endswith(b"\n")):
        assert check_archive(lines).rows == RUNS * 6
    else:
        with pytest.raises(ArchiveError, match=r"cut off|empty|no lines"):
            check_archive(lines)
