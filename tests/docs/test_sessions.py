"""Every console block that runs something of its page prints what the page says: real processes, real files.

A block whose first line is a comment with the name of a file (`# bot.py`) is that file. A console block with commands
that can be carried out (see `consoles.SESSION`) is a session: its commands run one after another in a folder of their
own, in which the files of the page up to there are. What follows a command is what it prints, standard error included;
`...` stands for anything. A process that was killed prints `Killed`, as a shell does.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.docs.consoles import Console, is_session, is_start
from tests.docs.pages import DOCS, PAGES, ROOT, blocks_of

SESSIONS = [page for page in PAGES if any(is_session(block) for block in blocks_of(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_the_sessions_of_a_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    assert carried_out(page, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["talk-over-http.md", "worker-in-any-language.md"])
def test_where_there_is_no_curl_the_pages_are_carried_out_all_the_same(name: str, tmp_path: Path) -> None:
    assert carried_out(DOCS / "howto" / name, tmp_path, with_stand_in=True)


@pytest.mark.parametrize(
    ("name", "file"), [("worker-in-any-language.md", "worker.mjs"), ("ci-fleet.md", "ci_fleet/agent.yaml")]
)
def test_a_page_shows_a_file_of_the_examples_as_it_is(name: str, file: str) -> None:
    text = (ROOT / "examples" / file).read_text(encoding="utf-8")
    assert [block.text for block in blocks_of(DOCS / "howto" / name) if block.text == text] == [text]


def carried_out(page: Path, tmp_path: Path, *, with_stand_in: bool = False) -> int:
    """Carry out what a page says; how many sessions that were."""
    folder = tmp_path / "project"
    folder.mkdir()
    sessions = 0
    with Console(folder, tmp_path, with_stand_in=with_stand_in) as console:
        for block in blocks_of(page):
            if block.file:
                console.write(block)
            elif is_start(block):
                console.start()
            elif is_session(block):
                console.check(block)
                sessions += 1
        console.stop_workers()
    return sessions


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_program_with_a_name_is_run_by_its_page(page: Path) -> None:
    run_by_page = {word for block in blocks_of(page) for command in block.commands for word in shlex.split(command)[1:]}
    programs = [block.file for block in blocks_of(page) if block.file.endswith((".py", ".mjs"))]
    assert [name for name in programs if name not in run_by_page] == []
