"""Finding files and lines: walking a folder of the workspace, matching names, matching lines; all with bounds.

Symbolic links are listed and never followed. Patterns come from a model and may be of the kind that never ends: every
match has a time limit, and `stop` ends a search at once. What the permissions hide is passed over before it is opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from laneway.tools.outputs import ToolRefusedError
from laneway.tools.paths import Place, answering_errors, open_file, open_folder

if TYPE_CHECKING:
    import regex

__all__ = ("Found", "LineSearch", "compile_glob", "compile_pattern", "find_files", "find_lines", "looks_binary")

PATTERN_MAX: Final = 2000
BINARY_START: Final = 8192
MATCH_S: Final = 0.5
UNFOLDED_MAX: Final = 50_000
VISITED_MAX: Final = 500_000
DEPTH_MAX: Final = 100
LINE_MAX: Final = 1_000_000
SHOWN_LINE_MAX: Final = 400
_COUNT: Final = re.compile(r"\{(\d+)[^}]*\}")
_STORES: Final = frozenset({".git", ".hg", ".svn"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found, and why there may be more."""

    lines: list[str]
    note: str = ""


def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """A regular expression; what is wrong with it is an answer."""
    import regex

    if len(pattern) > PATTERN_MAX:
        raise ToolRefusedError(f"the pattern is {len(pattern)} characters long; at most {PATTERN_MAX} are possible")
    if _unfolded_size(pattern) > UNFOLDED_MAX:
        raise ToolRefusedError("the pattern is too large: its repetitions such as {1000} inside of others multiply")
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, MemoryError, ValueError) as error:
        raise ToolRefusedError(f"the pattern is not a valid regular expression: {error}") from None


def _unfolded_size(pattern: str) -> int:
    """How large a pattern is when its counted repetitions are written out, which is what compiling one does."""
    sizes = [0]
    last = at = 0
    while at < len(pattern):
        sign = pattern[at]
        count = _COUNT.match(pattern, at)
        at += 2 if sign == "\\" else 1
        if sign == "(":
            sizes.append(0)
            last = 0
            continue
        if sign == ")" and len(sizes) > 1:
            last = sizes.pop() + 1
        elif count:
            at = count.end()
            times = int(count[1]) - 1
            sizes[-1] += last * max(times, 0)
            last *= max(times, 0) + 1
            continue
        else:
            last = 1
        sizes[-1] += last
    return sum(sizes)


def compile_glob(pattern: str) -> regex.Pattern[str]:
    """A pattern of paths: `*`, `?`, `[…]`, `{a,b}`, and `**` for any number of folders; `*` never begins with a dot."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise ToolRefusedError("a pattern begins inside the folder that is searched: no leading / and no .. in it")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        raise ToolRefusedError("the pattern is empty")
    made: list[str] = []
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            made.append(r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if is_last else ""))
        else:
            made.append(("" if part.startswith(".") else r"(?!\.)") + _part(part) + ("" if is_last else "/"))
    return compile_pattern("(?s:" + "".join(made) + r")\Z")


def _part(part: str) -> str:
    """One component of a pattern of paths as a regular expression."""
    import regex

    made: list[str] = []
    at = depth = 0
    while at < len(part):
        sign = part[at]
        at += 1
        close = part.find("]", at + 1 + part.startswith(("!", "^"), at)) if sign == "[" else -1
        if sign == "*":
            if not made or made[-1] != "[^/]*":
                made.append("[^/]*")
        elif sign == "?":
            made.append("[^/]")
        elif sign == "[" and close > 0:
            inner = part[at:close].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            negated = inner.startswith(("!", r"\^"))
            inner = inner.removeprefix("!").removeprefix(r"\^") if negated else inner
            made.append(f"(?!/)[{'^' if negated else ''}{inner}]")
            at = close + 1
        elif sign == "{" and "}" in part[at:]:
            made.append("(?:")
            depth += 1
        elif sign == "}" and depth:
            made.append(")")
            depth -= 1
        elif sign == "," and depth:
            made.append("|")
        else:
            made.append(regex.escape(sign))
    return "".join(made)


def _match(pattern: regex.Pattern[str], text: str, *, whole: bool) -> Any:
    """Match with a time limit; the rest of the process goes on meanwhile."""
    try:
        if whole:
            return pattern.match(text, timeout=MATCH_S, concurrent=True)
        return pattern.search(text, timeout=MATCH_S, concurrent=True)
    except TimeoutError:
        raise SlowPatternError(
            f"the pattern needs more than {MATCH_S:g} s for one line of {len(text)} characters; "
            "nested repetitions such as (a+)+ do that: write a simpler one"
        ) from None


def looks_binary(start: bytes) -> bool:
    """Whether the first bytes of a file are no text."""
    return b"\x00" in start


def walk(top: Place, stop: Event) -> Iterator[tuple[Place, os.stat_result]]:
    """Everything below a folder in order of names, folders before what is in them; unreadable ones are passed over."""
    waiting = [top]
    visited = 0
    while waiting:
        folder = waiting.pop()
        inner: list[Place] = []
        for name, status in _entries(folder):
            visited += 1
            if stop.is_set() or visited > VISITED_MAX:
                raise _StoppedError
            place = folder.child(name)
            if stat.S_ISDIR(status.st_mode):
                is_kept_out = name in _STORES or len(place.parts) - len(top.parts) > DEPTH_MAX
                inner += [] if is_kept_out else [place]
            yield place, status
        waiting += reversed(inner)


class SlowPatternError(ToolRefusedError):
    """A pattern that would keep matching for ever."""


class _StoppedError(Exception):
    """The search was stopped, or has seen enough."""


def _entries(folder: Place) -> list[tuple[str, os.stat_result]]:
    found: list[tuple[str, os.stat_result]] = []
    try:
        with open_folder(folder) as at:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
            try:
                for name in sorted(os.listdir(readable)):
                    with suppress(FileNotFoundError):  # gone meanwhile
                        found.append((name, os.stat(name, dir_fd=readable, follow_symlinks=False)))
            finally:
                os.close(readable)
    except OSError:
        return found  # gone meanwhile, or not ours to read: a search goes on with the rest
    return found


def _below(top: Place, place: Place) -> str:
    return "/".join(place.parts[len(top.parts) :])


def find_files(
    top: Place, pattern: regex.Pattern[str], most: int, stop: Event, *, is_hidden: Callable[[Place], bool] | None = None
) -> Found:
    """The paths below a folder that match, from the workspace on; folders end with a slash."""
    lines: list[str] = []
    try:
        for place, status in walk(top, stop):
            if _match(pattern, _below(top, place), whole=True) and not (is_hidden and is_hidden(place)):
                if len(lines) == most:
                    return Found(lines=lines, note=f"there are more than {most}; use a narrower pattern")
                lines.append(place.shown + ("/" if stat.S_ISDIR(status.st_mode) else ""))
    except _StoppedError:
        return Found(lines=lines, note="the search took too long and is not complete; search in a smaller folder")
    return Found(lines=lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSearch:
    """What lines are looked for, in which files, and how many at most."""

    pattern: regex.Pattern[str]
    names: regex.Pattern[str] | None
    most: int
    stop: Event
    is_hidden: Callable[[Place], bool] | None = None


def find_lines(top: Place, search: LineSearch, *, is_folder: bool) -> Found:
    """The lines that match, as `path:line: text`; files that are no text are passed over."""
    lines: list[str] = []
    try:
        for place in _files(top, search) if is_folder else [top]:
            for line in _lines_in(place, search) if is_folder else _lines_of(place, search):
                if len(lines) == search.most:
                    return Found(lines=lines, note=f"there are more than {search.most}; use a narrower pattern")
                lines.append(line)
    except _StoppedError:
        return Found(lines=lines, note="the search took too long and is not complete; search in a smaller folder")
    return Found(lines=lines)


def _files(top: Place, search: LineSearch) -> Iterator[Place]:
    for place, status in walk(top, search.stop):
        if not stat.S_ISREG(status.st_mode):
            continue
        if search.names is not None and not _is_named(search.names, _below(top, place)):
            continue
        if search.is_hidden is None or not search.is_hidden(place):
            yield place


def _is_named(names: regex.Pattern[str], path: str) -> bool:
    """By the whole path below the folder, or by the name alone: `*.py` means all of them."""
    return bool(_match(names, path, whole=True) or _match(names, path.rpartition("/")[2], whole=True))


def _lines_in(place: Place, search: LineSearch) -> Iterator[str]:
    """Of a file that was found on the way: it may be gone or changed meanwhile, binary, or not ours to read."""
    try:
        yield from _lines_of(place, search)
    except SlowPatternError:
        raise
    except ToolRefusedError:
        return


def _lines_of(place: Place, search: LineSearch) -> Iterator[str]:
    with answering_errors(place.shown), open_file(place) as file:
        if looks_binary(file.read(BINARY_START)):
            raise ToolRefusedError(f"{place.shown} is binary")
        yield from _matching(place, file, search)


def _matching(place: Place, file: BinaryIO, search: LineSearch) -> Iterator[str]:
    file.seek(0)
    number = 0
    is_whole = True
    while piece := file.readline(LINE_MAX):
        number += is_whole
        is_whole = piece.endswith(b"\n")
        if search.stop.is_set():
            raise _StoppedError
        text = piece.decode("utf-8", "replace").rstrip("\r\n")
        match = _match(search.pattern, text, whole=False)
        if match:
            yield f"{place.shown}:{number}: {_around(text, match.start(), match.end())}"


def _around(text: str, start: int, end: int) -> str:
    """A line, or of a long one what is around the match."""
    if len(text) <= SHOWN_LINE_MAX:
        return text
    middle = (start + min(end, start + SHOWN_LINE_MAX)) // 2
    first = max(0, min(middle - SHOWN_LINE_MAX // 2, len(text) - SHOWN_LINE_MAX))
    last = first + SHOWN_LINE_MAX
    return "…" * (first > 0) + text[first:last] + "…" * (last < len(text))
