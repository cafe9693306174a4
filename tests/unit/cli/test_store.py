"""`laneway store`: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laneway.cli.app import app
from laneway.rows import Batch, Row
from laneway.stores.sqlite import SqliteStore
from laneway.testing.stores import OWNER, event_row, message_row, state_row


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["store", *words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one message."""

    async def make() -> None:
        store = SqliteStore(tmp_path / "x.db")
        await store.open()
        await store.commit([Batch(OWNER, store.epoch, (message_row("m", seq=1),))])
        await store.close()

    asyncio.run(make())
    return tmp_path / "x.db"


def test_check_says_how_a_store_is(path: Path) -> None:
    code, out, err = run("check", "--store", f"sqlite:///{path}")
    assert (code, err) == (0, "")
    assert f"{path}: sound, not in use" in out
    assert "schema 3, opened 1 times" in out
    assert "messages     1     1" in out


def test_check_as_json_is_one_object(path: Path) -> None:
    code, out, _ = run("check", "--store", f"sqlite:///{path}", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["rows"] == {"messages": 1, "states": 0, "events": 0, "entries": 0}
    assert (facts["sound"], facts["problems"], facts["in_use_by"]) == (True, [], None)


def test_check_of_a_store_in_use_says_so(path: Path) -> None:
    async def checked() -> tuple[int, str, str]:
        store = SqliteStore(path)
        await store.open()
        answer = await asyncio.to_thread(run, "check", "--store", f"sqlite:///{path}")
        await store.close()
        return answer

    code, out, _ = asyncio.run(checked())
    assert code == 0
    assert "sound, in use by process" in out


def test_check_of_a_damaged_store_ends_with_the_code_of_its_error(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8192:16384] = b"\xa5" * 8192
    path.write_bytes(content)
    code, out, err = run("check", "--store", f"sqlite:///{path}")
    assert code == 4
    assert "DAMAGED" in out
    assert "is damaged" in err
    code, out, _ = run("check", "--store", f"sqlite:///{path}", "--json")
    assert (code, json.loads(out)["sound"]) == (4, False)


def test_backup_copies_and_never_overwrites_by_itself(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    code, out, _ = run("backup", str(target), "--store", f"sqlite:///{path}")
    assert code == 0
    assert f"{path} was copied to {target}" in out
    code, out, err = run("backup", str(target), "--store", f"sqlite:///{path}")
    assert (code, out) == (3, "")
    assert "exists already" in err
    code, out, _ = run("backup", str(target), "--store", f"sqlite:///{path}", "--overwrite", "--json")
    assert code == 0
    assert json.loads(out)["size_bytes"] == target.stat().st_size
    assert run("check", "--store", f"sqlite:///{target}")[0] == 0


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("sqlite:///nowhere/x.db", 4, "nowhere does not exist"),
        ("memory:", 2, "keeps nothing"),
        ("x.db", 2, "did you mean 'sqlite:///x.db'?"),
    ],
)
def test_an_address_without_a_store_is_an_error(address: str, code: int, words: str) -> None:
    for command in (["check"], ["backup", "copy.db"]):
        result = run(*command, "--store", address)
        assert result[:2] == (code, "")
        assert words in result[2]


def test_the_store_comes_from_the_environment_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWAY_STORE", f"sqlite:///{path}")
    code, out, _ = run("check")
    assert code == 0
    assert str(path) in out


def test_prune_says_what_would_go_and_takes_nothing(tmp_path: Path) -> None:
    async def dry_while_in_use() -> tuple[int, str, str]:
        store = SqliteStore(tmp_path / "old.db")
        await store.open()
        rows: list[Row] = []
        for at in range(3):
            turn, first = f"t{at}", at * 3 + 1
            rows += [
                message_row(f"m{at}", seq=first, live=0, state="ran", turn_id=turn),
                state_row("turn", turn, seq=first + 1, live=0),
                event_row(seq=first + 2, at_ms=at, turn_id=turn, message_id=f"m{at}"),
            ]
        await store.commit([Batch(OWNER, store.epoch, tuple(rows))])
        try:
            return await asyncio.to_thread(run, *words, "--dry-run")
        finally:
            await store.close()

    words = ("prune", "--max-runs", "1", "--store", f"sqlite:///{tmp_path}/old.db")
    said = "6 rows of 1 sessions would be taken away\n"
    assert asyncio.run(dry_while_in_use()) == (0, said, "")
    facts = json.loads(run(*words, "--dry-run", "--json")[1])
    assert (facts["rows"], facts["sessions"], facts["dry_run"]) == (6, 1, True)
    assert run(*words)[1] == "6 rows of 1 sessions were taken away\n"
    assert run(*words, "--dry-run")[1].startswith("0 rows of 0 sessions would be taken away; what is younger than")
