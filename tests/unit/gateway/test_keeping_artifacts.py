"""Artifacts of sessions: they go with the last session that names them, and move with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ArchiveError
from laneway.gateway.access import LOCAL
from laneway.gateway.service import Gateway
from laneway.models import call, say
from laneway.rows import Owner
from laneway.runtime.archive import check_archive, export_session, import_session
from laneway.runtime.artifacts import HOLDS, PIECE, Unpacking, folder_of, sweep, sweep_all
from laneway.runtime.retention import HistoryLimits, foresee_workspace, prune_workspace
from laneway.stores.sqlite import SqliteLooking
from tests.agent_stage import Held
from tests.gateway_stage import SIMPLE, gateway_in

TEXT = f'{SIMPLE}permissions: {{allow: ["*"]}}\n'
LONG = "the password is swordfish\n" * 4000
LIMITS = HistoryLimits(max_runs=1, spared_ms=0)
NOW_MS = 10**15

pytestmark = pytest.mark.slow  # commands and files


def tells(times: int = 1) -> list[Any]:
    """Answers of a model that reads the long file in each of its runs."""
    return [answer for _ in range(times) for answer in ([call("bash", command="cat long.txt")], [say("done")])]


def put(path: Path, text: str) -> None:
    """A file, in a folder that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@contextlib.asynccontextmanager
async def gateway(folder: Path, script: list[Any], text: str = LONG) -> AsyncIterator[Gateway]:
    """A gateway with a long file."""
    put(folder / "long.txt", text)
    async with gateway_in(folder, script=script, text=TEXT) as found:
        yield found


async def ask(found: Gateway, key: str, text: str = "go") -> None:
    receipt = await found.submit(found.default, LOCAL, key, text)
    await found.default.inbox.wait(receipt.message_id)


def files(found: Gateway) -> list[str]:
    """The artifacts that are there, and what else is in their folder."""
    folder = folder_of(found.store, "default")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


async def file_of(found: Gateway, key: str) -> list[bytes]:
    return [line async for line in export_session(found.store, Owner("default", "default", key), at_ms=1)]


def signed(lines: list[bytes]) -> list[bytes]:
    """A file that is whole, whatever is in it."""
    end = {"rows": len(lines) - 1, "sha256": sha256(b"".join(lines)).hexdigest()}
    return [*lines, f"{json.dumps(end)}\n".encode()]


async def test_an_artifact_goes_with_the_last_session_that_names_it(tmp_path: Path) -> None:
    async with gateway(tmp_path, tells(2)) as found:
        await ask(found, "s1")
        await ask(found, "s2")
        assert len(files(found)) == 1, "both have the same"
        await found.default.delete("default", "s1", actor="me")
        assert len(files(found)) == 1
        await found.default.delete("default", "s2", actor="me")
        assert files(found) == []


async def test_an_artifact_goes_when_its_last_run_is_pruned(tmp_path: Path) -> None:
    async with gateway(tmp_path, [*tells(), [say("one")], *tells(), [say("two")]]) as found:
        for text in ("go", "/new", "say one"):
            await ask(found, "s1", text)
        await prune_workspace(found.store, "default", LIMITS, now_ms=NOW_MS)
        assert len(files(found)) == 1
        assert await sweep_all(found.store) == 1
        assert files(found) == []
        await ask(found, "s1", "go again")
        assert len(files(found)) == 1
        await sweep_all(found.store)
        assert len(files(found)) == 1, "it is named again"


async def test_an_artifact_moves_with_its_session(tmp_path: Path) -> None:
    long = "0123456789abcde\n" * (PIECE // 16 + 10)  # two pieces
    async with gateway(tmp_path / "a", tells(), long) as found:
        await ask(found, "s1")
        (name,) = files(found)
        lines = await file_of(found, "s1")
        assert check_archive(lines).rows == len(lines) - 2
    script = [[call("read", path=f"artifact:{name}", offset=1, limit=3)], [say("seen")]]
    async with gateway(tmp_path / "b", script, "") as found:
        await found.default.take_in(Owner("default", "default", "moved"), lines)
        assert files(found) == [name]
        assert (Path(folder_of(found.store, "default")) / name).read_text() == long
        assert [line for line in await file_of(found, "moved") if line[:4] == b'["a"'] == [
            line for line in lines if line[:4] == b'["a"'
        ]
        await ask(found, "moved", "look at it")
        assert "0123456789abcde" in str(found.default.spec.model.requests[-1].conversation[-1])
        await found.default.delete("default", "moved", actor="me")
        assert files(found) == []


async def test_a_file_with_another_artifact_than_it_says_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with gateway(tmp_path, tells()) as found:
        await ask(found, "s1")
        lines = await file_of(found, "s1")
        await found.default.delete("default", "s1", actor="me")
        at = next(number for number, line in enumerate(lines) if line[:4] == b'["a"')
        _, name, _, body = json.loads(lines[at])
        spoilt = {
            "artifact is not the one": [["a", name, 1, body]],
            "not the one that its hash": [["a", name, 0, body.replace("dGhl", "dGhf", 1)]],
            "hash names: a piece is missing": [["a", name, 0, body], ["a", name, 2, body]],
            "is there twice": [["a", name, 0, body], ["a", name, 0, body]],
            "artifact is none": [["a", name, 0, '"%"']],
            "that its hash names": [["a", "", 0, body]],
            "no text stands for": [["a", name, 0, body], ["a", sha256(b"x").hexdigest(), 0, '"eA=="']],
        }
        for why, pieces in spoilt.items():
            made = signed([*lines[:at], *(f"{json.dumps(piece)}\n".encode() for piece in pieces), *lines[at + 1 : -1]])
            with pytest.raises(ArchiveError, match=why):
                check_archive(made)
            with pytest.raises(ArchiveError):
                await found.default.take_in(Owner("default", "default", "s1"), made)
            with pytest.raises(ArchiveError):  # of whoever does not look first
                await import_session(found.store, made, Owner("default", "default", "s1"))
            assert files(found) == []


async def test_no_sweep_takes_an_artifact_whose_session_is_being_imported(tmp_path: Path) -> None:
    async with gateway(tmp_path, tells()) as found:
        await ask(found, "s1")
        lines = await file_of(found, "s1")
        await found.default.delete("default", "s1", actor="me")
        piece = json.loads(next(line for line in lines if line[:4] == b'["a"'))
        with contextlib.closing(Unpacking(found.store, "default")) as unpacking:
            unpacking.take(*piece[1:])
            unpacking.end()
            assert await sweep(found.store, "default") == 0
            assert files(found) == [piece[1]]
        assert await sweep(found.store, "default") == 1


async def test_a_sweep_takes_what_a_crash_has_left_and_nothing_that_is_held(tmp_path: Path) -> None:
    async with gateway(tmp_path, tells()) as found:
        folder = Path(folder_of(found.store, "default"))
        for name in ("a" * 64, "b" * 64, "notes.txt", f".part-{os.getpid()}-7", ".part-999999999-1"):
            put(folder / name, "left")
        HOLDS.hold("somebody", "b" * 64)
        assert await sweep(found.store, "default") == 1
        assert files(found) == [f".part-{os.getpid()}-7", "b" * 64, "notes.txt"]
        HOLDS.release("somebody")
        assert await sweep(found.store, "default") == 1


def test_what_is_held_for_a_moment_while_somebody_sweeps_stays(tmp_path: Path) -> None:
    """Its note may be on disk since: the sweep has looked before."""
    path = tmp_path / ("a" * 64)
    path.write_text("new")
    with HOLDS.sweeping() as fresh:
        HOLDS.hold("somebody", path.name)
        HOLDS.release("somebody", [path.name])
        assert HOLDS.delete([str(path)], fresh) == 0
    with HOLDS.sweeping() as fresh:
        assert HOLDS.delete([str(path)], fresh) == 1


async def test_a_look_ahead_says_what_a_prune_then_does(tmp_path: Path) -> None:
    """With several sessions, a run at work, texts and artifacts that sessions share."""
    held = Held(say("at last"))
    script = [*tells(6), *([say(f"answer {at}")] for at in range(4)), held]
    async with gateway(tmp_path, script) as found:
        for key in ("s1", "s2", "s3"):
            await ask(found, key)
            await ask(found, key, "go again")
        for key in ("s1", "s2"):
            for text in ("/new", "one", "two"):
                await ask(found, key, text)
        await ask(found, "s1", "/new")
        busy = await found.submit(found.default, LOCAL, "s1", "hold")
        await held.asked.wait()
        for limits in (HistoryLimits(max_runs=3, spared_ms=0), LIMITS, HistoryLimits(max_age_ms=0, spared_ms=0)):
            looking = SqliteLooking(tmp_path / "laneway.db")
            foreseen = await foresee_workspace(looking, "default", limits, now_ms=NOW_MS)
            await asyncio.to_thread(looking.close)
            done = await prune_workspace(found.store, "default", limits, now_ms=NOW_MS)
            assert (done.sessions, done.rows) == (foreseen.sessions, foreseen.rows)
            await sweep_all(found.store)
        assert len(files(found)) == 1, "s3 names it"
        await found.default.delete("default", "s3", actor="me")
        assert files(found) == []
        held.let_go()
        final = await found.default.inbox.wait(busy.message_id)
        assert final.answer == "at last"
