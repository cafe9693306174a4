"""kill -9 while history is pruned, a session is deleted, imported or exported: whole or not at all, after a restart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from laneway import ArchiveError, Inbox, Turn
from laneway.kernel.checkpoints import digest_of
from laneway.runtime.archive import check_archive, export_session
from laneway.runtime.artifacts import sweep_all
from laneway.runtime.retention import boundary, prune
from laneway.stores.sqlite import SqliteStore
from laneway.stores.sqlite_file import check_file
from tests.chaos.keeping_life import LIMITS, OTHER, RUNS, WHO, agent_on, artifacts_of, fill, text_of

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4
ROWS_OF_FILE = RUNS * 6 + RUNS // 4 * 2
"""The rows of a session with its blobs; artifacts have a note, and a piece of the file."""

PARTS = {"prune": 12, "delete": 6, "import": 6, "export": 10}
"""How many parts each work has, at least."""


def killed(what: str, folder: Path, part: int, delay_s: float) -> bool:
    """Run it, and kill it in a part of its work, or a moment later; whether it had come to its end."""
    command = [sys.executable, "-m", "tests.chaos.keeping_life", what, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready\n" in iter(process.stdout.readline, "")  # reads up to there
        for _ in range(part):
            if process.stdout.readline() in ("", "done\n"):
                break
        time.sleep(delay_s)
        process.kill()
        return "done" in process.stdout.read()


def files_in(folder: Path) -> list[str]:
    """The artifacts beside the store."""
    kept = folder / "store.db.artifacts" / WHO.tenant
    return sorted(path.name for path in kept.iterdir())


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
    whole = ROWS_OF_FILE
    in_the_middle = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        asyncio.run(fill(folder / "store.db", OTHER))
        if what == "import":
            asyncio.run(_file_of_chat(folder))
        else:
            asyncio.run(fill(folder / "store.db", WHO))
        part = dice.randint(1, PARTS[what])
        is_done = killed(what, folder, part, dice.choice((0, 0, 0.001, 0.005)))
        in_the_middle += not is_done
        if what == "prune":
            asyncio.run(_check_pruned(folder))
            continue
        found = asyncio.run(restarted(folder))
        assert found["other"] == whole
        if what in ("delete", "import"):
            kept = [*artifacts_of(OTHER, range(RUNS)), *(artifacts_of(WHO, range(RUNS)) if found["chat"] else ())]
            assert files_in(folder) == sorted(set(kept))
        if what == "delete":
            assert found["chat"] in ((0, whole) if part == 1 else (0,))  # the first part is the mark
        elif what == "import":
            assert found["chat"] == (whole if is_done else found["chat"])
            assert found["chat"] in (0, whole)
        else:
            _check_exported(folder, is_done=is_done)
    assert in_the_middle > 0


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
    kept = {*artifacts_of(OTHER, range(RUNS)), *artifacts_of(WHO, range(RUNS - 10, RUNS))}
    assert kept <= set(files_in(folder)), "no row names a file that is gone"
    await prune(store, WHO, LIMITS, now_ms=10**9)
    await sweep_all(store)
    assert files_in(folder) == sorted(kept)
    turns = await store.history.states(WHO, "turn", limit=10_000)
    assert [row.id for row in turns] == [f"t-chat-{at}" for at in range(RUNS - 10, RUNS)]
    assert len(await store.history.entries(WHO, limit=10_000)) == 10
    assert len(await store.history.states(OTHER, "turn", limit=10_000)) == RUNS
    names = [f"default:{digest_of(text_of(at))}" for at in range(RUNS)]
    blobs = await store.history.states_by_id("blob", names)
    assert all(row is not None for row in blobs), "the other session names them, too"
    assert await boundary(store, WHO, LIMITS, now_ms=10**9) <= 0
    await store.close()


def _check_exported(folder: Path, *, is_done: bool) -> None:
    lines = (folder / "out.laneway").read_bytes().splitlines(keepends=True)
    if is_done or (lines and lines[-1].startswith(b'{"rows"') and lines[-1].endswith(b"\n")):
        assert check_archive(lines).rows == ROWS_OF_FILE
    else:
        with pytest.raises(ArchiveError, match=r"cut off|empty|no lines"):
            check_archive(lines)


@pytest.mark.slow
def test_an_export_that_is_killed_leaves_the_whole_file_or_the_one_that_was_there(tmp_path: Path) -> None:
    """The command line writes beside the file, and puts it in its place when it is whole."""
    asyncio.run(fill(tmp_path / "store.db", WHO))
    target = tmp_path / "chat.laneway"
    command = [sys.executable, "-m", "laneway", "session", "export", "chat", str(target), "--overwrite"]
    command += ["--store", f"sqlite:///{tmp_path}/store.db"]
    target.write_bytes(b"what was there")
    early = 0
    for number in range(4):
        known = {*tmp_path.glob(".laneway-*")}
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and _size_of({*tmp_path.glob(".laneway-*")} - known) <= number * 50_000:
                time.sleep(0.0005)
            process.kill()
        if target.read_bytes() == b"what was there":
            early += 1
        else:
            assert check_archive(target.read_bytes().splitlines(keepends=True)).rows == ROWS_OF_FILE
    assert early > 0
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    assert check_archive(target.read_bytes().splitlines(keepends=True)).rows == ROWS_OF_FILE


def _size_of(paths: Iterable[Path]) -> int:
    """How much has been written beside the file; -1: nothing, or it is there by now."""
    try:
        return max((path.stat().st_size for path in paths), default=-1)
    except FileNotFoundError:
        return -1


async def _said_in(folder: Path, name: str, text: str = "") -> list[str]:
    async with agent_on(SqliteStore(folder / "store.db")) as agent:
        session = agent.session(".", session_id=name)
        if text:
            await session.send(text)
        await session.wait_idle()
        return [str(each) for each in await session.history()]


@pytest.mark.slow
def test_a_fork_that_is_killed_is_there_and_goes_on_or_is_not_there(tmp_path: Path) -> None:
    whole = ["user: go", "assistant: so it is", "user: and now?", "assistant: so it is"]
    found: list[list[str]] = []
    for part in (1, 1, 2, 3):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        before = asyncio.run(_said_in(folder, "chat", "go"))
        is_done = killed("fork", folder, part, 0.001 * (len(found) % 2))
        said = asyncio.run(_said_in(folder, "fork"))
        assert said in ([whole] if is_done else [[], whole])
        assert asyncio.run(_said_in(folder, "chat")) == before
        found.append(said)
    assert whole in found
