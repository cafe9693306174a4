"""A long text in pieces that a messenger takes, cut where people would cut: at a line, at a word, never in a letter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import regex

__all__ = ("length_of", "split")

_GRAPHEME: Final = regex.compile(r"\X")


def length_of(text: str) -> int:
    """How long a text is in UTF-16 units, which is never less than in characters: whichever is counted, it fits."""
    return len(text) + sum(char > "\uffff" for char in text)


def split(text: str, most: int) -> list[str]:
    """Pieces of at most `most` units that are the text when put together. Pieces without anything to see are left out.

    A piece ends at the last line break of its second half, else at the last blank there, else between two graphemes.
    """
    pieces: list[str] = []
    rest = text
    while rest:
        end = _end(rest, most)
        pieces.append(rest[:end])
        rest = rest[end:]
    return [piece for piece in pieces if piece.strip()]


def _end(text: str, most: int) -> int:
    """Where the first piece ends."""
    window = text[: most + 1]  # so many characters are at least as many units
    if len(window) == len(text) and length_of(text) <= most:
        return len(text)
    end, used = 0, 0
    for size, units in _graphemes(window, is_cut=len(window) < len(text)):
        if used + units > most:
            break
        end, used = end + size, used + units
    if not end:  # one grapheme that is longer than a piece may be
        return _hard_end(window, most)
    for mark in ("\n", " "):
        found = window.rfind(mark, 0, end) + 1
        if found > end // 2:
            return found
    return end


def _graphemes(window: str, *, is_cut: bool) -> Iterator[tuple[int, int]]:
    """Sizes of the graphemes in characters and units; the last one may go on behind the window, and is left out."""
    for match in _GRAPHEME.finditer(window):
        if is_cut and match.end() == len(window):
            return
        yield match.end() - match.start(), length_of(match.group())


def _hard_end(window: str, most: int) -> int:
    used = 0
    for index, char in enumerate(window):
        used += length_of(char)
        if used > most:
            return max(index, 1)
    return len(window)
