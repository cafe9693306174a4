"""Long outputs: what a model sees of them, and where the rest is."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from laneway.dialogue import ToolContext, ToolOutput
from laneway.tools import outputs, tool
from laneway.tools.outputs import Spool, cap, cap_output, clean


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(workspace=".", artifacts=str(tmp_path / "kept"), output_max=300)


TEXT = "".join(f"line {n} ü\n" for n in range(1000))


def test_a_short_output_is_shown_as_it_is_and_nothing_is_kept(context: ToolContext) -> None:
    assert cap("x" * 300, context) == ("x" * 300, None)
    assert not os.path.exists(context.artifacts)


def test_of_a_long_output_head_and_tail_are_shown_and_the_whole_is_kept(context: ToolContext) -> None:
    capped = cap(TEXT, context)
    name = hashlib.sha256(TEXT.encode()).hexdigest()
    assert capped.artifact == name
    assert Path(context.artifacts, name).read_text() == TEXT
    assert os.listdir(context.artifacts) == [name]
    assert len(capped.text) <= 300
    head, gap, tail = capped.text.partition("\n[… ")
    assert TEXT.startswith(head)
    assert f'characters left out; read(path="artifact:{name}") shows it …]\n' in gap + tail
    assert capped.text.endswith("line 999 ü\n")
    left_out = int(tail.split()[0])
    assert len(head) + len(tail.partition("…]\n")[2]) + left_out == len(TEXT)


def test_what_a_process_with_our_number_left_behind_is_in_nobodys_way(context: ToolContext) -> None:
    os.mkdir(context.artifacts)
    first = next(outputs._numbers)  # noqa: SLF001 - the numbers that come next
    for number in range(first + 1, first + 4):
        Path(context.artifacts, f".part-{os.getpid()}-{number}").write_text("left")
    assert cap(TEXT, context).artifact is not None
    assert len(os.listdir(context.artifacts)) == 4


def test_the_same_output_is_kept_once(context: ToolContext) -> None:
    assert cap(TEXT, context) == cap(TEXT, context)
    assert len(os.listdir(context.artifacts)) == 1


def test_without_a_folder_the_rest_is_dropped_and_the_text_says_so() -> None:
    capped = cap(TEXT, ToolContext(workspace=".", output_max=300))
    assert capped.artifact is None
    assert "it was not kept: there is no folder for artifacts" in capped.text
    assert len(capped.text) <= 300


def test_a_folder_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    capped = cap(TEXT, ToolContext(workspace=".", artifacts=str(tmp_path / "file"), output_max=300))
    assert capped.artifact is None
    assert "it was not kept: writing it failed (File exists)" in capped.text


@pytest.mark.parametrize("most", [0, 1, 10, 100, 101])
def test_a_tiny_limit_leaves_at_least_the_way_to_the_rest(most: int, tmp_path: Path) -> None:
    capped = cap(TEXT, ToolContext(workspace=".", artifacts=str(tmp_path), output_max=most))
    assert f"artifact:{capped.artifact}" in capped.text
    assert len(capped.text) < most + 200


async def test_every_tool_is_cut_and_what_it_says_otherwise_stays(context: ToolContext) -> None:
    @tool
    async def talk() -> ToolOutput:
        return ToolOutput(text=TEXT, is_error=True, exit_code=3)

    output = await talk.run({}, context)
    assert len(output.text) <= 300
    assert (output.is_error, output.exit_code) == (True, 3)
    assert output.artifact == hashlib.sha256(TEXT.encode()).hexdigest()


async def test_what_a_tool_has_kept_itself_is_not_kept_again(context: ToolContext) -> None:
    output = await cap_output(ToolOutput(text=TEXT, artifact="a" * 64), context)
    assert output.artifact == "a" * 64
    assert "artifact:" + "a" * 64 in output.text
    assert not os.path.exists(context.artifacts)  # noqa: ASYNC240 - a test may look


def test_text_that_could_not_be_stored_is_made_storable() -> None:
    assert clean("a\x00b\ud800c\udcff") == "a\u2400b\\ud800c\\udcff"
    assert clean("ü\n\t") == "ü\n\t"


# ---- pieces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 4096, 100_000])
def test_pieces_of_any_size_give_what_the_whole_gives(size: int, context: ToolContext) -> None:
    raw = TEXT.encode()
    spool = Spool(context)
    for at in range(0, len(raw), size):
        spool.add(raw[at : at + size])
        if spool.is_long:
            spool.flush()
    assert spool.finish() == cap(TEXT, context)
    assert len(os.listdir(context.artifacts)) == 1


def test_a_character_in_two_pieces_is_one(context: ToolContext) -> None:
    spool = Spool(context)
    assert [spool.add(bytes([byte])) for byte in "ü€".encode()] == ["", "ü", "", "", "€"]
    spool.add(b"\xe2\x82")
    assert spool.finish().text == "ü€\ufffd"


def test_no_more_is_kept_than_may_be(context: ToolContext) -> None:
    spool = Spool(context, artifact_max=1000)
    for _ in range(100):
        spool.add(b"x" * 100)
        spool.flush()
    capped = spool.finish()
    assert capped.artifact is not None
    assert Path(context.artifacts, capped.artifact).read_bytes() == b"x" * 1000
    assert "shows it, but only its first 1000 bytes were kept" in capped.text
    assert spool.size == 10_000


def test_what_stays_in_memory_is_bounded(context: ToolContext) -> None:
    spool = Spool(context)
    for _ in range(2000):
        spool.add(b"x" * 1000)
        spool.flush()
    held = sum(len(part) for part in (*spool._head, *spool._tail))  # noqa: SLF001 - it is about what is held inside
    assert held <= 2 * context.output_max + 1000
    assert spool.pending_size == 0
    spool.discard()
    assert os.listdir(context.artifacts) == []


def test_a_disk_that_becomes_full_costs_only_the_rest(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(context)
    spool.add(b"x" * 1000)
    spool.flush()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    capped = spool.finish()
    assert capped.artifact is None
    assert "writing it failed (No space left on device)" in capped.text
    assert os.listdir(context.artifacts) == []
