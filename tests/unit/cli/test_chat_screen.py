"""The terminal of a chat: whole lines are printed, the one that grows stays above the prompt, Ctrl-C counts."""

from __future__ import annotations

import io

import pytest
from prompt_toolkit.input import DummyInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from laneway.cli.chat_screen import ChatScreen


@pytest.fixture
def paper() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def screen(paper: io.StringIO) -> ChatScreen:
    console = Console(file=paper, width=30, color_system=None, highlight=False)
    return ChatScreen("s1", console=console, keys=DummyInput(), output=DummyOutput())


def test_a_line_is_printed_when_it_is_whole(screen: ChatScreen, paper: io.StringIO) -> None:
    for piece in ("one ", "line\nand", " a half"):
        screen.text(piece)
        screen.flush()
    assert paper.getvalue() == "one line\n"
    screen.end_text()
    screen.flush()
    assert paper.getvalue() == "one line\nand a half\n"


def test_a_line_that_is_too_long_is_broken_at_a_space(screen: ChatScreen, paper: io.StringIO) -> None:
    screen.text("many words that do not fit on one line of thirty columns at all")
    screen.end_text()
    screen.flush()
    lines = paper.getvalue().splitlines()
    assert all(len(each) <= 30 for each in lines)
    assert " ".join(lines) == "many words that do not fit on one line of thirty columns at all"


@pytest.mark.parametrize("text", ["x" * 200, "字" * 100, "a" * 29 + " " + "b" * 40])
def test_nothing_is_lost_where_there_is_no_space(screen: ChatScreen, paper: io.StringIO, text: str) -> None:
    screen.text(text)
    screen.end_text()
    screen.flush()
    assert paper.getvalue().replace("\n", "").replace(" ", "") == text.replace(" ", "")


async def test_what_is_typed_while_a_line_grows_is_printed_once_and_the_line_goes_on(paper: io.StringIO) -> None:
    console = Console(file=paper, width=30, color_system=None, highlight=False)
    with create_pipe_input() as keys:
        screen = ChatScreen("s1", console=console, keys=keys, output=DummyOutput())
        screen.text("one two")
        keys.send_text("and this\r")
        assert await screen.read() == "and this"
        screen.text(" three\n")
        screen.flush()
    assert paper.getvalue() == "> and this\none two three\n"


def test_a_note_comes_after_what_was_being_said(screen: ChatScreen, paper: io.StringIO) -> None:
    screen.text("half")
    screen.note("a call begins")
    screen.flush()
    assert paper.getvalue() == "half\na call begins\n"


def test_text_that_does_not_count_is_not_printed(screen: ChatScreen, paper: io.StringIO) -> None:
    screen.text("void")
    screen.drop_text()
    screen.text("valid")
    screen.end_text()
    screen.flush()
    assert paper.getvalue() == "valid\n"


async def test_once_cancels_and_twice_leaves(screen: ChatScreen) -> None:
    cancelled: list[bool] = []

    def cancel() -> bool:
        cancelled.append(True)
        return True

    screen.on_cancel = cancel
    screen.interrupt()
    assert cancelled == [True]
    screen.interrupt()
    assert cancelled == [True]
    assert await screen.read() is None


def test_with_nothing_to_cancel_it_says_how_to_leave(screen: ChatScreen, paper: io.StringIO) -> None:
    screen.interrupt()
    assert "Ctrl-C again" in paper.getvalue()
