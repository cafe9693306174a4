"""Every python block of the README, the quickstart and the guides is a program that runs; its output is checked.

A block runs as it stands, in virtual time: `asyncio.run` is the simulator's and the monotonic clock is the loop's, so
that a guide may sleep for a minute. Functions named `test_*` in a block are called. A `text` block right after a python
block is what that program prints; `...` there stands for anything.
"""

from __future__ import annotations

import asyncio
import doctest
import re
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from laneway.sim.loop import run_sim
from laneway.system import SystemClock
from laneway.testing import LoopClock

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """One python block of a page, and what it is said to print."""

    page: Path
    line: int
    code: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def snippets_of(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(page=page, line=text.count("\n", 0, found.start()) + 2, code=found["code"], output=found["output"])
        for found in BLOCK.finditer(text)
    ]


SNIPPETS = [snippet for page in PAGES for snippet in snippets_of(page)]


def run_virtually(main: Coroutine[Any, Any, Any]) -> Any:
    return run_sim(main, seed=0, shuffle=False)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
def test_a_snippet_runs_and_prints_what_the_page_says(
    snippet: Snippet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = LoopClock()
    monkeypatch.setattr(SystemClock, "monotonic_ms", lambda _self: clock.monotonic_ms())
    monkeypatch.setattr(asyncio, "run", run_virtually)
    # Line numbers of a traceback are those of the page.
    code = compile("\n" * (snippet.line - 1) + snippet.code, str(snippet.page), "exec", dont_inherit=True)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(code, names)  # noqa: S102 - our own documentation
    for name, test in list(names.items()):
        if name.startswith("test_"):
            test()
    printed = capsys.readouterr().out
    if snippet.output is None:
        assert printed == "", "this snippet prints something: show it in a text block after it"
    else:
        same = doctest.OutputChecker().check_output(snippet.output, printed, doctest.ELLIPSIS)
        assert same, f"the page says\n{snippet.output}\nbut it prints\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_shows_code_that_was_found(page: Path) -> None:
    shown = page.read_text(encoding="utf-8").count("```python\n")
    assert shown == len(snippets_of(page)) > 0
