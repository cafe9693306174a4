"""Every console block that runs something of its page prints what the page says: real processes, real files.

A block whose first line is a comment with the name of a file (`# bot.py`) is that file. A console block whose commands
are all `python <file>` or `laneway …` is a session: its commands run one after another in a folder of their own, in
which the files of the page up to there are. What follows a command is what it prints, standard error included; `...`
stands for anything. A process that was killed prints `Killed`, as a shell does.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, Block, blocks_of

WIDTH = "110"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def is_session(block: Block) -> bool:
    if block.kind != "console" or not block.commands:
        return False
    return all(re.match(r"python \w+\.py|laneway (store|config) ", command) for command in block.commands)


SESSIONS = [page for page in PAGES if any(is_session(block) for block in blocks_of(page))]


def steps_of(block: Block) -> list[tuple[str, str]]:
    """The commands of a session, each with what it is said to print."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def run(command: str, folder: Path) -> str:
    """What a command prints."""
    words = shlex.split(command)
    program = [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
    environ = {**kept, "COLUMNS": WIDTH, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        program,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
        cwd=folder,
        env=environ,
    )
    return done.stdout + ("Killed\n" if done.returncode == -signal.SIGKILL else "")


@pytest.mark.slow
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_the_sessions_of_a_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.file:
            path = tmp_path / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif is_session(block):
            for command, said in steps_of(block):
                printed = run(command, tmp_path)
                same = doctest.OutputChecker().check_output(said, printed, OPTIONS)
                assert same, f"{block}: after `{command}` the page says\n{said}\nbut it prints\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_program_with_a_name_is_run_by_its_page(page: Path) -> None:
    run_by_page = {shlex.split(command)[1] for block in blocks_of(page) for command in block.commands if " " in command}
    programs = [block.file for block in blocks_of(page) if block.file.endswith(".py")]
    assert [name for name in programs if name not in run_by_page] == []
