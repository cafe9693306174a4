"""Every python block of the README, the quickstart, the guides and the concepts runs; its output is checked.

A block runs as it stands, in virtual time: `asyncio.run` is the simulator's and both clocks follow the loop's, so that
a guide may sleep for a minute. Functions named `test_*` in a block are called. A `text` block right after a python
block is what that program prints; `...` there stands for anything. A block that begins with the name of a file is a
file: see `test_sessions.py`.
"""

from __future__ import annotations

import asyncio
import doctest
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from laneway.sim.loop import run_sim
from laneway.system import SystemClock
from laneway.testing import LoopClock
from tests.docs.consoles import is_session
from tests.docs.pages import PAGES, SHOWING, Block, blocks_of, follows

SNIPPETS = [block for page in PAGES for block in blocks_of(page) if block.kind == "python" and not block.file]


def run_virtually(main: Coroutine[Any, Any, Any]) -> Any:
    return run_sim(main, seed=0, shuffle=False)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
def test_a_snippet_runs_and_prints_what_the_page_says(
    snippet: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = LoopClock(wall_ms=time.time_ns() // 1_000_000)
    monkeypatch.setattr(SystemClock, "monotonic_ms", lambda _self: clock.monotonic_ms())
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _self: clock.wall_ms())
    monkeypatch.setattr(asyncio, "run", run_virtually)
    # Line numbers of a traceback are those of the page.
    code = compile("\n" * (snippet.line - 1) + snippet.text, str(snippet.page), "exec", dont_inherit=True)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(code, names)  # noqa: S102 - our own documentation
    for name, test in list(names.items()):
        if name.startswith("test_"):
            test()
    printed = capsys.readouterr().out
    shown = follows(snippet.page, snippet)
    if shown is None or shown.kind != "text":
        assert printed == "", "this snippet prints something: show it in a text block after it"
    else:
        same = doctest.OutputChecker().check_output(shown.text, printed, doctest.ELLIPSIS)
        assert same, f"the page says\n{shown.text}\nbut it prints\n{printed}"


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.name)
def test_every_guide_shows_something_that_runs(page: Path) -> None:
    assert [block for block in blocks_of(page) if block.kind == "python" or is_session(block)] != []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_of_a_page_was_found(page: Path) -> None:
    assert page.read_text(encoding="utf-8").count("\n```") == 2 * len(blocks_of(page))
