"""`laneway session delete|export|import` on a store: what is no session is refused, files are their owner's alone."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from laneway import Inbox, Turn
from laneway.rows import Batch, Owner, StateRow
from laneway.runtime.erasing import mark
from laneway.stores.sqlite import SqliteStore
from tests.cli_stage import run

STORE = ("--store", "sqlite:///store.db")
COUNT = StateRow("budget", "everybody's", "default", "default", "", 1, 1, "", "{}")
TOKEN = StateRow("token", "olga's", "default", "laneway.gateway", "", 2, 1, "", "{}")


async def _fill(path: Path) -> None:
    async def answer(turn: Turn) -> str:
        return f"re: {turn.prompt}"

    async with Inbox(answer, store=f"sqlite:///{path}", debounce_ms=0) as inbox:
        await inbox.wait((await inbox.submit("chat", "hello")).message_id)
    store = SqliteStore(path)
    await store.open()
    for row in (COUNT, TOKEN):
        await store.commit([Batch(Owner(*row[2:5]), store.epoch, (row,))])
    await store.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a store that has a session, a budget and a token; whoever made files there could be read by all."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(_fill(tmp_path / "store.db"))
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


def _kinds() -> set[str]:
    with closing(sqlite3.connect("store.db")) as connection:
        return {row[0] for row in connection.execute("SELECT kind FROM states")}


def _said(*words: str) -> str:
    """What a command says that is refused, in one line without a trace."""
    result = run(*words)
    assert result.exit_code != 0, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.mark.slow
def test_what_is_no_session_is_not_deleted_exported_or_imported(folder: Path) -> None:
    assert run("session", "export", "chat", "file", *STORE).exit_code == 0
    child = "chat~0123456789ab"
    for words in (("delete", "{}", "--yes"), ("export", "{}", "out"), ("import", "file", "--as", "{}")):
        for key, why in (("", "is text that is not empty"), (" ", "is text that is not empty"), (child, "sub-agent")):
            if "import" in words and not key:
                continue  # that is none: the one it had
            assert why in _said("session", *(word.format(key) for word in words), *STORE), (words, key)
        inside = (*(word.format("chat") for word in words), *STORE, "--workspace", "laneway.gateway")
        assert "Laneway's own" in _said("session", *inside)
    assert {"budget", "token"} <= _kinds()
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_files_are_whole_and_their_owners_alone(folder: Path) -> None:
    for words in (("session", "export", "chat"), ("session", "transcript", "chat"), ("store", "backup")):
        target = folder / "-".join(words)
        (folder / f"{target.name}.part").write_text("somebody's")
        assert run(*words, str(target), *STORE).exit_code == 0, words
        assert stat.S_IMODE(target.stat().st_mode) == 0o600, words
        assert (folder / f"{target.name}.part").read_text() == "somebody's"
        assert "exists already" in _said(*words, str(target), *STORE)
        before = target.read_bytes()
        assert run(*words, str(target), *STORE, "--overwrite").exit_code == 0
        assert before
    assert not [each for each in folder.iterdir() if each.name.startswith(".laneway-")]


@pytest.mark.slow
@pytest.mark.parametrize("words", [("session", "export", "chat"), ("session", "transcript", "chat")])
def test_a_file_that_cannot_be_written_is_told_in_one_line(folder: Path, words: tuple[str, ...]) -> None:
    (folder / "place").mkdir()
    (folder / "out.part").mkdir()
    assert "nowhere/out cannot be written: there is no such folder" in _said(*words, "nowhere/out", *STORE)
    assert "place" in _said(*words, "place", *STORE, "--overwrite")
    assert run(*words, "out", *STORE).exit_code == 0
    before = (folder / "out").read_bytes()
    gone = (*words[:2], "nobody")
    _said(*gone, "out", "--overwrite", *STORE)
    assert (folder / "out").read_bytes() == before, "what was there stays"
    assert sorted(each.name for each in folder.iterdir() if not each.name.startswith("store")) == [
        "out",
        "out.part",
        "place",
    ]


async def _mark(why: str, *, half: bool) -> None:
    """As a process leaves it that is killed while it deletes or imports a session."""
    store = SqliteStore("store.db")
    await store.open()
    who = Owner("default", "default", "chat")
    await mark(store, who, why)
    if half:
        await store.erase(who, limit=3)
    await store.close()


@pytest.mark.slow
def test_what_a_killed_process_has_left_half_done_is_not_exported_and_is_gone_before_anything_comes_in(
    folder: Path,
) -> None:
    assert run("session", "export", "chat", "whole.laneway", *STORE).exit_code == 0
    asyncio.run(_mark("deleted", half=True))
    assert "is not whole: it was being deleted" in _said("session", "export", "chat", "half.laneway", *STORE)
    assert not (folder / "half.laneway").exists()
    assert run("session", "import", "whole.laneway", *STORE).exit_code == 0
    assert run("session", "export", "chat", "again.laneway", *STORE).exit_code == 0
    one, other = ((folder / name).read_bytes().splitlines()[1:-1] for name in ("whole.laneway", "again.laneway"))
    assert one == other
    asyncio.run(_mark("imported", half=True))
    assert "there is no session 'chat'" in _said("session", "delete", "chat", "--yes", *STORE)
