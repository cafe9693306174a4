"""Unified diffs of one text, applied strictly: every line that a hunk shows must be there, or nothing is changed.

The one liberty: models count badly. A hunk whose lines are not at the place that its header names is applied where they
are, if they are in exactly one place after the hunk before. A wrong count in a header is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from laneway.tools.outputs import ToolRefusedError

__all__ = ("Hunk", "apply_hunks", "parse_diff", "reverse")

_HEADER: Final = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_PREAMBLE: Final = ("diff ", "index ", "--- ", "+++ ", "new file mode", "old mode", "new mode", "similarity ")
_NO_NEWLINE: Final = "\\"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One hunk: the lines before and after, with their line ends, and where they are said to begin (from 1)."""

    number: int
    old_at: int
    old: tuple[str, ...]
    new_at: int
    new: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Draft:
    number: int
    old_at: int
    old_count: int
    new_at: int
    new_count: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    last: str = ""

    @property
    def is_full(self) -> bool:
        return len(self.old) >= self.old_count and len(self.new) >= self.new_count

    def finished(self) -> Hunk:
        if (len(self.old), len(self.new)) != (self.old_count, self.new_count):
            raise ToolRefusedError(
                f"hunk {self.number}: its header counts {self.old_count} old and {self.new_count} new lines, "
                f"but it has {len(self.old)} and {len(self.new)}"
            )
        return Hunk(
            number=self.number, old_at=self.old_at, old=tuple(self.old), new_at=self.new_at, new=tuple(self.new)
        )


def parse_diff(diff: str) -> list[Hunk]:
    """The hunks of a unified diff of one file."""
    hunks = list(_hunks(diff.split("\n")))
    if not hunks:
        raise ToolRefusedError("the diff has no hunk; a hunk begins with a line such as `@@ -3,2 +3,3 @@`")
    return hunks


def _hunks(lines: list[str]) -> Iterator[Hunk]:
    draft: _Draft | None = None
    number = files = 0
    for line in lines:
        match = _HEADER.match(line)
        if match and (draft is None or draft.is_full):
            if draft is not None:
                yield draft.finished()
            number += 1
            draft = _Draft(
                number=number,
                old_at=int(match[1]),
                old_count=1 if match[2] is None else int(match[2]),
                new_at=int(match[3]),
                new_count=1 if match[4] is None else int(match[4]),
            )
        elif draft is not None and (not draft.is_full or line.startswith(_NO_NEWLINE)):
            _take(draft, line)
        else:
            files += line.startswith("--- ")
            _check_outside(line, files)
    if draft is not None:
        yield draft.finished()


def _take(draft: _Draft, line: str) -> None:
    kind, text = line[:1], line[1:] + "\n"
    match kind:
        case " " | "":  # an empty line of context often lost its blank on the way
            draft.old.append(text)
            draft.new.append(text)
            kind = " "
        case "-":
            draft.old.append(text)
        case "+":
            draft.new.append(text)
        case "\\":
            for side in {"-": [draft.old], "+": [draft.new], " ": [draft.old, draft.new]}.get(draft.last, []):
                side[-1] = side[-1].removesuffix("\n")
        case _:
            raise ToolRefusedError(
                f"hunk {draft.number}: the line {line[:80]!r} begins with none of ' ', '+', '-'; "
                "or the counts in its header are too high"
            )
    draft.last = kind


def _check_outside(line: str, files: int) -> None:
    if files > 1:
        raise ToolRefusedError("the diff changes several files; send one diff for each")
    if line.startswith(("+++ /dev/null", "deleted file mode")):
        raise ToolRefusedError("the diff deletes the file, which patch does not do")
    if line.startswith("@@"):
        raise ToolRefusedError(f"{line[:80]!r} is not the header of a hunk, such as `@@ -3,2 +3,3 @@`")
    if line[:1] in ("+", "-", " ") and line.strip() and not line.startswith(_PREAMBLE):
        raise ToolRefusedError(
            f"the line {line[:80]!r} belongs to no hunk: the counts of the header before it are too low"
        )


def reverse(hunks: list[Hunk]) -> list[Hunk]:
    """The hunks that undo these."""
    return [
        Hunk(number=each.number, old_at=each.new_at, old=each.new, new_at=each.old_at, new=each.old) for each in hunks
    ]


def apply_hunks(content: str, hunks: list[Hunk]) -> str:
    """The content with all hunks applied; refuses if one does not fit, and says which and why."""
    pieces = content.split("\n")  # not splitlines: a form feed, for one, ends no line of a diff
    lines = [f"{line}\n" for line in pieces[:-1]] + pieces[-1:] * bool(pieces[-1])
    result: list[str] = []
    at = 0
    for hunk in hunks:
        start = _find(lines, hunk, at)
        result += lines[at:start]
        result += hunk.new
        at = start + len(hunk.old)
    return "".join(result + lines[at:])


def _find(lines: list[str], hunk: Hunk, at: int) -> int:
    """Where the hunk goes, as an index into the lines."""
    said = hunk.old_at if not hunk.old else hunk.old_at - 1  # nothing old: after that line
    if said >= at and _fits(lines, hunk.old, said):
        return said
    if not hunk.old:
        raise ToolRefusedError(
            f"hunk {hunk.number}: line {hunk.old_at} is not in the file, which has {len(lines)} lines"
        )
    places = [index for index in range(at, len(lines) - len(hunk.old) + 1) if _fits(lines, hunk.old, index)]
    if len(places) == 1:
        return places[0]
    if places:
        raise ToolRefusedError(
            f"hunk {hunk.number}: its lines are not at line {hunk.old_at}, but in {len(places)} other places; "
            "show more lines around the change"
        )
    raise ToolRefusedError(f"hunk {hunk.number} does not fit: {_difference(lines, hunk, max(said, 0))}")


def _fits(lines: list[str], old: tuple[str, ...], at: int) -> bool:
    return 0 <= at <= len(lines) - len(old) and all(line == lines[at + i] for i, line in enumerate(old))


def _difference(lines: list[str], hunk: Hunk, said: int) -> str:
    for i, wanted in enumerate(hunk.old):
        found = lines[said + i] if said + i < len(lines) else None
        if found is None:
            return f"the file has {len(lines)} lines, and the hunk wants {wanted[:80]!r} at line {said + i + 1}"
        if found != wanted:
            return f"line {said + i + 1} is {found[:80]!r}, not {wanted[:80]!r}"
    return f"its lines come before the end of the hunk before it (line {said + 1})"
