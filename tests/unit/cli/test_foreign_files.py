"""Files that are something else, given to commands that read sessions and runs: refused by name, nothing is done."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from laneway.stores.sqlite import SqliteStore
from tests.cli_stage import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store in which nothing is yet."""

    async def make() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.open()
        await store.close()

    monkeypatch.chdir(tmp_path)
    asyncio.run(make())
    return tmp_path


def _database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE something (a)")
        connection.commit()


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "database": _database,
    "zip": _zip,
    "json": lambda path: path.write_text(json.dumps({"hello": [1, 2]}, indent=1)),
    "utf-16": lambda path: path.write_bytes('{"laneway":"session","version":1}\n'.encode("utf-16")),
    "nothing": lambda path: path.write_bytes(b""),
    "deep": lambda path: path.write_bytes(b"[" * 1_000_000 + b"\n"),
    "newer": lambda path: path.write_text('{"laneway":"session","version":99}\n'),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOREIGN)
def test_an_import_of_something_else_is_refused_and_the_store_stays_empty(folder: Path, kind: str) -> None:
    FOREIGN[kind](folder / "file")
    result = run("session", "import", "file", "--store", "sqlite:///store.db")
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, SystemExit)
    words = {"newer": "version 99", "pipe": "is no file", "device": "is no file"}.get(kind, "no session of Laneway")
    assert words in " ".join(result.output.split())
    with closing(sqlite3.connect("store.db")) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM states").fetchone() == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [each for each in FOREIGN if each != "newer"])
@pytest.mark.parametrize("command", [("run", "replay"), ("run", "diff")])
def test_a_replay_of_something_else_is_refused(folder: Path, kind: str, command: tuple[str, str]) -> None:
    FOREIGN[kind](folder / "file")
    result = run(*command, *["file"] * (2 if "diff" in command else 1))
    assert result.exit_code not in (0, 3)
    said = " ".join(result.output.split())
    assert ("is no file" if kind in ("pipe", "device") else "is no history of a run") in said


@pytest.mark.parametrize("name", ["gone.jsonl", "nowhere/gone", "folder"])
def test_a_file_that_is_not_there_is_no_run_that_a_server_is_asked_for(folder: Path, name: str) -> None:
    (folder / "folder").mkdir()
    result = run("run", "replay", name)
    assert result.exit_code != 0
    assert name in result.output
    assert "no server answers" not in result.output


@pytest.mark.slow
def test_a_store_of_something_else_is_left_as_it_is(folder: Path) -> None:
    _database(folder / "other.db")
    before = (folder / "other.db").read_bytes()
    (folder / "file").write_text("{}\n")
    for words in (("session", "ls"), ("session", "import", "file"), ("session", "export", "s", "out")):
        result = run(*words, "--store", "sqlite:///other.db")
        assert result.exit_code != 0
        assert "other.db" in result.output or "no session of Laneway" in result.output
    assert (folder / "other.db").read_bytes() == before
    assert not (folder / "out").exists()
