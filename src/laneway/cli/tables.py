"""What commands print: tables, JSON, ages, and texts of strangers made safe for a terminal.

A message is written by anybody. What it holds reaches a terminal only through `clean` or `line`, so that no escape
sequence in it moves the cursor, sets a title or hides what comes after it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = (
    "age",
    "ago",
    "clean",
    "console",
    "dumps",
    "errors",
    "line",
    "ordinal",
    "print_json",
    "print_rows",
    "say",
    "sentence",
    "table",
    "to_json_line",
    "until",
)

WIDE: Final = 500  # in a pipe a line stays a line
TEXT_MAX: Final = 200
SENTENCE_MAX: Final = 2_000
"""A sentence that ends with the way out is told whole; the terminal wraps it."""

# C0 (but for tab and line feed), DEL, C1, line separators, and the marks that change the direction of a text.
UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))


# ---- texts ----


def clean(text: object) -> str:
    """A text of several lines as a terminal may show it: control characters become visible signs."""
    return UNSAFE.sub(_sign, str(text).replace("\r\n", "\n")).expandtabs(4)


def line(text: object, most: int = TEXT_MAX) -> str:
    """A text on one line, at most so long."""
    folded = " ".join(clean(text).split())
    return folded if len(folded) <= most else f"{folded[: most - 1]}…"


def sentence(text: object) -> str:
    """A reason or an error on one line, with its end: that says the way out."""
    return line(text, SENTENCE_MAX)


def _sign(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters
    return "␡" if code == 0x7F else f"\\u{code:04x}"


def age(ms: float | None) -> str:
    """A duration for people: `40 ms`, `1.2 s`, `3 min`, `2 h 5 min`, `4 d`."""
    if ms is None:
        return ""
    rest = max(0, int(ms))
    if rest < 1_000:
        return f"{rest} ms"
    if rest < 60_000:
        return f"{rest / 1000:.1f} s" if rest < 10_000 else f"{rest // 1000} s"
    for at, (size, unit) in enumerate(UNITS):
        if rest >= size:
            whole, left = divmod(rest, size)
            finer = UNITS[at + 1] if at + 1 < len(UNITS) else None
            more = f" {left // finer[0]} {finer[1]}" if finer and whole < 10 and left >= finer[0] else ""
            return f"{whole} {unit}{more}"
    raise AssertionError(ms)


def ago(at_ms: int | None, now_ms: int) -> str:
    """A time in the past: `3 min ago`."""
    if not at_ms:
        return ""
    return f"{age(now_ms - at_ms)} ago" if now_ms - at_ms >= 1_000 else "now"


def until(at_ms: int | None, now_ms: int) -> str:
    """A time to come: `in 3 min`."""
    if not at_ms:
        return ""
    if at_ms <= now_ms:
        return "due"
    rest = at_ms - now_ms
    step = _step(rest)  # to the nearest: what is made for 30 days has not 29 of them left a moment later
    return f"in {age((rest + step // 2) // step * step)}"


def _step(ms: int) -> int:
    """The least difference that `age` shows."""
    for at, (size, _) in enumerate(UNITS):
        if ms >= size:
            return UNITS[at + 1][0] if ms < 10 * size and at + 1 < len(UNITS) else size
    return 1


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `11th`."""
    tail = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tail}"


# ---- printing ----


def console() -> Console:
    """Standard output: colours and its width on a terminal, neither in a pipe."""
    is_narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_narrow else WIDE, highlight=False, emoji=False)


def errors() -> Console:
    """Standard error, for what is not the result of a command."""
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def say(text: str, *, style: str = "", to: Console | None = None) -> None:
    """Print a text as it is: nothing in it is markup."""
    (to or console()).print(Text(clean(text), style=style), soft_wrap=True)


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """JSON that is safe to show: what could act on a terminal is escaped, which changes no value."""
    return to_json_line(json.dumps(value, indent=indent, ensure_ascii=False))


def to_json_line(text: str) -> str:
    """A line of JSON that was made elsewhere, made safe to show."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print JSON, with or without line breaks in it."""
    sys.stdout.write(f"{dumps(value, indent=indent)}\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table without lines. A column `>name` is of numbers. When it gets narrow, `*name` is cut and `+name` goes on
    in the next line."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column.lstrip("*>+"),
            justify="right" if column.startswith(">") else "left",
            no_wrap=not column.startswith(("*", "+")),  # rich takes room first from columns that may wrap
            overflow="fold" if column.startswith("+") else "ellipsis",
            min_width=8 if column.startswith(("*", "+")) else None,
        )
    for row in rows:
        cells = zip(row, columns, strict=True)
        made.add_row(*(cell if isinstance(cell, Text) else _cell(cell, column) for cell, column in cells))
    return made


def _cell(value: Any, column: str) -> Text:
    short = sentence if column.startswith("+") else line
    shown = "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else short(value)
    if column.startswith("+"):
        return Text(shown, overflow="fold")
    return Text(shown, no_wrap=True, overflow="ellipsis")  # cut, never wrapped: a row is a line


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str, note: str = "") -> None:
    """Print a table, or say that there is nothing; `note` says what more there is."""
    if not rows:
        say(empty, style="dim")
        return
    console().print(table(columns, rows))
    if note:
        say(note, style="dim", to=errors())
