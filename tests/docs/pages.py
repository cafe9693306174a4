"""The pages of the documentation as tests see them: their blocks of code, and what each block is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SHOWING = [ROOT / "README.md", DOCS / "quickstart.md", *sorted((DOCS / "howto").glob("*.md"))]
PAGES = [*SHOWING, *sorted((DOCS / "concepts").glob("*.md"))]
"""Every page whose code is run; those in `SHOWING` have some."""

BLOCK = re.compile(r"^```(?P<kind>[\w+-]+)\n(?P<text>.*?)^```\n", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"(?:#|//) (?P<name>[\w-]+(?:/[\w-]+)*\.(?:py|mjs|yaml|toml|json5|hcl))\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of code. `file` is the name in its first line, if that is a comment with a name and nothing else."""

    page: Path
    line: int
    kind: str
    text: str
    file: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What is typed in a console block."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]


@cache
def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start()) + 2,
            kind=found["kind"],
            text=found["text"],
            file=named["name"] if (named := NAME.match(found["text"])) else "",
        )
        for found in BLOCK.finditer(text)
    ]


def follows(page: Path, block: Block) -> Block | None:
    """The block right after another one, with nothing but a blank line between them."""
    after = block.line + block.text.count("\n") + 2
    return next((one for one in blocks_of(page) if one.line == after + 1), None)
