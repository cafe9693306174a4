"""JSON and JSON5 with places: comments, trailing commas, bare keys and single quotes are allowed."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from laneway.config.nodes import Entry, Items, Node, Place, Scalar, Table, UnreadableError, check_depth, check_nodes

__all__ = ("read_json5",)

BLANK: Final = re.compile(r"(?:[\s\ufeff]+|//[^\n\r\u2028\u2029]*|/\*[\s\S]*?\*/)*")
NAME: Final = re.compile(r"(?:[^\W\d]|\$)(?:\w|[$\u200c\u200d])*")
NUMBER: Final = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<hex>0[xX][0-9a-fA-F]+)|(?P<word>Infinity|NaN)"
    r"|(?P<whole>0|[1-9][0-9]*)(?![0-9.eE])|(?P<fraction>(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?))",
    re.ASCII,
)
PLAIN: Final = {quote: re.compile(rf"[^\\\n\r{quote}]+") for quote in "\"'"}
ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
WORDS: Final = {"true": True, "false": False, "null": None}
DIGITS_MAX: Final = 300
FOUND_MAX: Final = 20


def read_json5(text: str) -> Node | None:
    """The one value of the text, or None when there is nothing but blanks and comments."""
    reader = _Reader(text)
    reader.skip()
    if reader.at == len(text):
        return None
    node = reader.value(1)
    reader.skip()
    if reader.at < len(text):
        reader.fail("the file goes on behind its end", f"found {reader.found()}")
    return node


class _Reader:
    """Reads by descent; `at` is where it is."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._count = 0
        self._lines = [0, *(match.end() for match in re.finditer(r"\r\n|[\n\r\u2028\u2029]", text))]
        self._line = 0

    def place(self, at: int | None = None) -> Place:
        """The line and column of a position. Positions only grow, but for errors."""
        position = self.at if at is None else at
        if position < self._lines[self._line]:
            self._line = 0
        while self._line + 1 < len(self._lines) and self._lines[self._line + 1] <= position:
            self._line += 1
        return Place(self._line + 1, position - self._lines[self._line] + 1)

    def fail(self, message: str, hint: str = "", *, at: int | None = None) -> NoReturn:
        """Refuse the file."""
        raise UnreadableError(self.place(at), message, hint)

    def found(self) -> str:
        """What stands here, for an error. A word is not shown: it may be a secret without its quotes."""
        if self.at >= len(self.text):
            return "the end of the file"
        return "a word" if NAME.match(self.text, self.at) else repr(self.text[self.at])

    def skip(self) -> None:
        """Pass blanks and comments."""
        match = BLANK.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        if self.text.startswith("/*", self.at):
            self.fail("a comment that does not end")

    def value(self, depth: int) -> Node:
        """Any value."""
        place = self.place()
        self._count += 1
        check_nodes(self._count, place)
        character = self.text[self.at : self.at + 1]
        if character == "{":
            check_depth(depth, place)
            return self._table(depth, place)
        if character == "[":
            check_depth(depth, place)
            return self._items(depth, place)
        if character in ('"', "'"):
            return Scalar(self._string(character), place)
        return Scalar(self._bare(), place)

    def _table(self, depth: int, place: Place) -> Table:
        entries: list[Entry] = []
        self.at += 1
        self.skip()
        while not self._ends("}", place):
            key_place, key = self.place(), self._key()
            self.skip()
            if not self.text.startswith(":", self.at):
                self.fail(f"after the key {key[:FOUND_MAX]!r} comes a colon", f"found {self.found()}")
            self.at += 1
            self.skip()
            entries.append(Entry(key, key_place, self.value(depth + 1)))
            self._next("}", place)
        return Table(tuple(entries), place)

    def _items(self, depth: int, place: Place) -> Items:
        nodes: list[Node] = []
        self.at += 1
        self.skip()
        while not self._ends("]", place):
            nodes.append(self.value(depth + 1))
            self._next("]", place)
        return Items(tuple(nodes), place)

    def _ends(self, bracket: str, begin: Place) -> bool:
        if self.at >= len(self.text):
            self.fail(f"{bracket} is missing at the end of the file", f"opened at line {begin.line}")
        if self.text[self.at] != bracket:
            return False
        self.at += 1
        return True

    def _next(self, bracket: str, begin: Place) -> None:
        self.skip()
        if self.text.startswith(",", self.at):
            self.at += 1
            self.skip()
        elif self.at < len(self.text) and self.text[self.at] != bracket:
            self.fail(f"a comma or {bracket} is missing", f"found {self.found()}; opened at line {begin.line}")

    def _key(self) -> str:
        character = self.text[self.at]
        if character in ('"', "'"):
            return self._string(character)
        word = NAME.match(self.text, self.at)
        if word is None:
            self.fail("a key is a name or text in quotes", f"found {self.found()}")
        self.at = word.end()
        return word[0]

    def _bare(self) -> object:
        number = NUMBER.match(self.text, self.at)
        word = NAME.match(self.text, number.end() if number else self.at)
        if number and not word:
            self.at = number.end()
            return _number(number)
        if not number and word and word[0] in WORDS:
            self.at = word.end()
            return WORDS[word[0]]
        return self.fail("a value is expected", f"found {self.found()}" + ("; text needs quotes" if word else ""))

    def _string(self, quote: str) -> str:
        begin = self.at
        self.at += 1
        pieces: list[str] = []
        while True:
            if plain := PLAIN[quote].match(self.text, self.at):
                pieces.append(plain[0])
                self.at = plain.end()
            character = self.text[self.at : self.at + 1]
            if character == quote:
                self.at += 1
                return "".join(pieces)
            if character != "\\":
                self.fail("text that does not end on its line", at=begin)
            pieces.append(self._escape())

    def _escape(self) -> str:
        self.at += 1
        letter = self.text[self.at : self.at + 1]
        self.at += 1
        match letter:
            case "":
                return self.fail("text that does not end", at=self.at - 1)
            case "\r" if self.text.startswith("\n", self.at):
                self.at += 1
                return ""
            case "\n" | "\r" | "\u2028" | "\u2029":
                return ""  # the line goes on
            case "x":
                return self._code(2)
            case "u":
                return self._unicode()
            case _ if letter in "123456789":
                return self.fail("an escape that names no character", at=self.at - 2)
            case _:
                return ESCAPES.get(letter, letter)

    def _unicode(self) -> str:
        begin = self.at - 2
        first = self._code(4)
        if "\ud800" <= first <= "\udbff" and self.text.startswith("\\u", self.at):
            self.at += 2
            second = self._code(4)
            if "\udc00" <= second <= "\udfff":
                return chr(0x10000 + ((ord(first) - 0xD800) << 10) + ord(second) - 0xDC00)
        if "\ud800" <= first <= "\udfff":
            self.fail("half of a surrogate pair", at=begin)
        return first

    def _code(self, length: int) -> str:
        digits = self.text[self.at : self.at + length]
        if not re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", digits):
            self.fail("an escape that names no character", at=self.at - 2)
        self.at += length
        return chr(int(digits, 16))


def _number(match: re.Match[str]) -> int | float:
    sign = -1 if match["sign"] == "-" else 1
    if match["word"]:
        return sign * float("inf" if match["word"] == "Infinity" else "nan")
    if match["hex"]:
        return sign * int(match["hex"][: DIGITS_MAX + 2], 16)
    if match["whole"]:
        return sign * (int(match["whole"]) if len(match["whole"]) <= DIGITS_MAX else float("inf"))
    return sign * float(match["fraction"])
