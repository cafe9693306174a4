"""Reads the text of a shell command once, from its beginning to its end, as `bash` and `dash` would.

Quotes, escapes, operators, substitutions, comments, here-documents. It expands nothing. Where the two shells differ, or
where it is not certain what they would do, the text is not readable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ("MANY", "ONE", "Reader", "Simple", "has_braces", "quoted")

LEVEL_MAX = 12
BRACKETS_MAX = 20
WAITING_MAX = 20
MANY, ONE = "\ue000", "\ue001"
"""What stands in `Simple.wide` for what is not known before it runs: any words, or a part of one word."""

_KEYWORDS = "! { } [[ case do done elif else esac fi for function if in select then time until while"
RESERVED = frozenset(_KEYWORDS.split())
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=\Z")
_PLAIN_WORD = re.compile(r"[\w@%+=:,./~^*?\[\]{}!-]+", re.ASCII)
_HARMLESS = re.compile(r"(?:>&[12]|>>?[ \t]*/dev/null)(?=$|[\s;&|)])")
"""`2>&1` and `>/dev/null`, which models write behind everything: no file is touched."""
_REDIRECTIONS = ("<<<", "<<-", "<<", "<>", "<&", "<", ">>", ">&", ">|", ">")
_DELIMITER = re.compile(r"[ \t]*(?:'([\w.-]+)'|\"([\w.-]+)\"|(\\?)([\w.-]+))(?=[\s;&|()<>]|\Z)", re.ASCII)
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_ARITHMETIC = frozenset("+-*/%<>=!&|^~?:;,[] \t$_()")
_CODED = frozenset("xuUc01234567'")
_PARENTHESES = re.compile(r"\([ \t]*\)")


@dataclass(slots=True)
class Simple:
    """One simple command: its words without quotes, and the text as it was written.

    `wide` are its words with marks for what is not known yet, `unsure` says which words these are. `inputs` are the
    texts of its here-documents. `is_part` is set for the end of another command.
    """

    words: list[str]
    raw: str
    wide: list[str] = field(default_factory=list)
    unsure: set[int] = field(default_factory=set)
    inputs: list[str] = field(default_factory=list)
    is_part: bool = False

    @property
    def canonical(self) -> str:
        """Its words with one blank between them; those with blanks or special characters in quotes."""
        return " ".join(quoted(word) for word in self.words)

    def after(self, start: int, program: str) -> Simple:
        """The command that begins at a word of this one, under another name."""
        words = [program, *self.words[start + 1 :]]
        wide = [program, *self.wide[start + 1 :]] if self.unsure else []
        unsure = {at - start for at in self.unsure if at >= start}
        return Simple(words, " ".join(words), wide, unsure, self.inputs, is_part=True)


def quoted(word: str) -> str:
    """A word as a shell would have to read it."""
    if _PLAIN_WORD.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def has_braces(word: str) -> bool:
    """Whether a word may become several, as `{a,b}` does. Not by a pattern, which could be made to take long."""
    start, stop = word.find("{"), word.rfind("}")
    return 0 <= start < stop and any(mark in word[start:stop] for mark in (",", ".."))


@dataclass(slots=True)
class _Here:
    """A here-document whose text comes with the next line."""

    end: str
    is_quoted: bool
    is_stripped: bool
    at: int
    inputs: list[str]


class Reader:
    """Reads one text, or what is in one substitution of it: then up to the bracket that closes it."""

    def __init__(self, text: str, at: int = 0, *, is_inner: bool = False, level: int = 0) -> None:
        self._text = text
        self.at = at
        self._is_inner = is_inner
        self._level = level
        self._parens = 0
        self._has_parens = False
        self._in_array = False
        self._has_odd_parens = False
        self._word: list[str] = []
        self._wide: list[str] = []
        self._in_word = False
        self._brace = -1  # where the word has its first brace that is in no quotes
        self._words: list[str] = []
        self._wides: list[str] = []
        self._unsure: set[int] = set()
        self._inputs: list[str] = []
        self._waiting: list[_Here] = []
        self._target = ""  # the next word is what a redirection is about: to be kept as an input, or to be skipped
        self._began = at  # where the simple command began
        self.simples: list[Simple] = []
        self.inner: list[Reader] = []  # substitutions
        self.maybe: list[str] = []  # commands to one shell, numbers to another
        self.functions: set[str] = set()
        self.has_pipe = False
        self.is_readable = True
        self.is_plain = True

    def read(self) -> None:
        """Read it."""
        text, end = self._text, len(self._text)
        while self.at < end and self.is_readable:
            char = text[self.at]
            if char in " \t":
                self._end_word()
                self.at += 1
            elif char in "\n;&|()":
                if char == ")" and self._is_inner and not self._parens and not self._in_array:
                    self._end()
                    self.at += 1
                    return
                self._operator(char)
            elif char in "<>":
                self._redirection(char)
            elif char == "#" and not self._in_word:
                self.is_plain = False
                stop = text.find("\n", self.at)
                if not self._in_array:
                    self._end_simple()
                self.at = end if stop < 0 else stop
            else:
                self._piece(char)
        self._end()
        if self._is_inner:
            self.is_readable = False  # its bracket is not closed

    def read_quoted(self) -> None:
        """Read the text of a here-document, which is as if it were in double quotes."""
        self._until_quote(is_here=True)

    # ---- operators ----

    def _operator(self, char: str) -> None:
        if self._in_array and char in ";&|(":
            self.is_readable = False
        elif self._in_array:
            self._end_word()
            self._in_array = char != ")"
            self.at += 1
        elif char == "(":
            self._open_bracket()
        else:
            self.is_plain = self.is_plain and char != ")"
            self._parens -= char == ")" and self._parens > 0
            is_pattern = char == ")" and not self._has_parens  # of `case`: nothing else has a bracket that only closes
            self._end_simple(is_command=not is_pattern)
            self.at += 1
            is_pipe = char == "|" and self._text[self.at : self.at + 1] != "|" and self._text[self.at - 2] != "|"
            self.has_pipe = self.has_pipe or (is_pipe and self.at > 1)
            self._began = self.at
            if char == "\n" and self._waiting:
                self._here_documents()

    def _open_bracket(self) -> None:
        self.is_plain = False
        self._has_parens = True
        if self._in_word and not self._words and _ARRAY.match("".join(self._word)):
            self._end_word()
            self._in_array = True
            self.at += 1
            return
        self._end_word()
        if self._text.startswith("((", self.at):
            stop = _end_of_arithmetic(self._text, self.at + 2)
            if stop >= 0:
                inner = self._text[self.at + 2 : stop]
                self.is_readable = self.is_readable and "<<" not in inner
                self.maybe.append(inner)
                self._end_simple()
                self.at = self._began = stop + 2
                return
            self._has_odd_parens = True
        elif len(self._words) == 1 and _PARENTHESES.match(self._text, self.at):
            self.functions.add(self._words[0].casefold())
        self._end_simple()
        self._parens += 1
        self.at += 1
        self._began = self.at

    def _redirection(self, char: str) -> None:
        if not _HARMLESS.match(self._text, self.at) or "".join(self._word) not in ("", "1", "2"):
            self.is_plain = False
        if self._text[self.at + 1 : self.at + 2] == "(":
            self._in_word = True
            self._substitution(self.at + 2, ONE)
            return
        stream = "".join(self._word)
        if self._target:
            self._end_word()
        elif stream.isdigit() or (stream.startswith("{") and stream.endswith("}")):
            self._word, self._wide, self._in_word = [], [], False  # `2>` and `{name}>`: which stream, no word
        elif stream and "[" in stream and char == "<" and self._text.startswith("<<", self.at):
            self.is_readable = False  # `a[1<<2]=3`
            return
        self._end_word()
        operator = next(each for each in _REDIRECTIONS if self._text.startswith(each, self.at))
        self.at += len(operator)
        if operator in ("<<", "<<-"):
            self._here(operator)
            return
        self._target = "keep" if operator == "<<<" else "skip"
        rest = self._text[self.at : self.at + 200].lstrip(" \t")
        if not rest or (rest[0] in "\n;&|()<>#" and rest[:2] not in ("<(", ">(")):
            self.is_readable = False  # it redirects to nothing

    # ---- here-documents ----

    def _here(self, operator: str) -> None:
        found = _DELIMITER.match(self._text, self.at)
        is_odd = self._in_array or self._has_odd_parens or any("[" in word for word in self._words)
        if found is None or is_odd or self._target or len(self._waiting) >= WAITING_MAX:
            self.is_readable = False
            return
        end = found[1] or found[2] or found[4]
        is_quoted = not found[4] or bool(found[3])
        self._waiting.append(_Here(end, is_quoted, operator == "<<-", self.at, self._inputs))
        self.at = found.end()

    def _here_documents(self) -> None:
        """What follows this line, up to the lines that end them."""
        text = self._text
        if text.find("\n", self._waiting[0].at) != self.at - 1:
            self.is_readable = False  # a line ended before, in quotes: shells do not agree where the text begins
        for here in self._waiting:
            start = self.at
            while self.is_readable:
                stop = text.find("\n", self.at)
                raw = text[self.at : len(text) if stop < 0 else stop]
                line = raw.lstrip("\t") if here.is_stripped else raw
                if line == here.end:
                    break
                is_odd = (self._is_inner and line.startswith(here.end)) or (not here.is_quoted and raw.endswith("\\"))
                if stop < 0 or is_odd:
                    self.is_readable = False
                    return
                self.at = stop + 1
            body = text[start : self.at]
            here.inputs.append(body)
            if not here.is_quoted and ("$" in body or "`" in body):
                reader = Reader(body, level=self._level + 1)
                reader.read_quoted()
                self._take(reader)
            stop = text.find("\n", self.at)
            self.at = len(text) if stop < 0 else stop + 1
        self._waiting = []
        self._began = self.at

    def _take(self, reader: Reader) -> None:
        self.inner.append(reader)
        self.is_readable = self.is_readable and reader.is_readable and self._level < LEVEL_MAX

    # ---- words ----

    def _put(self, text: str, wide: str | None = None) -> None:
        self._word.append(text)
        self._wide.append(text if wide is None else wide)

    def _piece(self, char: str) -> None:
        """A part of a word."""
        if char == "\\":
            self._escape()
            return
        self._in_word = True
        if char == "'":
            self._single_quotes(self.at + 1)
        elif char == '"':
            self.at += 1
            self._until_quote()
        elif char == "$":
            self._dollar(in_quotes=False)
        elif char == "`":
            self._backticks(in_quotes=False)
        else:
            if char in (MANY, ONE):
                self.is_readable = False
            if char.isspace() or not char.isprintable():
                self.is_plain = False  # blanks to one shell, letters to another
            if char == "{" and self._brace < 0:
                self._brace = len(self._wide)
            self._put(char)
            self.at += 1

    def _escape(self) -> None:
        following = self._text[self.at + 1 : self.at + 2]
        if not following:
            self.is_readable = False
        elif following == "\n":
            self.is_plain = False
        else:
            self._in_word = True
            self._put(following)
        self.at += 2

    def _single_quotes(self, start: int) -> None:
        stop = self._text.find("'", start)
        if stop < 0:
            self.is_readable = False
            return
        self._put(self._text[start:stop])
        self.at = stop + 1

    def _until_quote(self, *, is_here: bool = False) -> None:
        text, end = self._text, len(self._text)
        while self.at < end and self.is_readable:
            char = text[self.at]
            if char == '"' and not is_here:
                self.at += 1
                return
            if char == "\\":
                following = text[self.at + 1 : self.at + 2]
                self._put(following if following in '$`"\\' else "" if following == "\n" else char + following)
                self.at += 2
            elif char == "$":
                self._dollar(in_quotes=True)
            elif char == "`":
                self._backticks(in_quotes=True)
            else:
                self._put(char)
                self.at += 1
        self.is_readable = self.is_readable and is_here

    # ---- expansions ----

    def _dollar(self, *, in_quotes: bool) -> None:
        """An expansion; what it expands to is not known here."""
        self.is_plain = False
        following = self._text[self.at + 1 : self.at + 2]
        mark = ONE if in_quotes else MANY
        if following == "(":
            stop = _end_of_arithmetic(self._text, self.at + 3) if self._text.startswith("$((", self.at) else -1
            if stop >= 0:
                self._put("$()", mark)
                self.at = stop + 2
            else:
                self._substitution(self.at + 2, mark)
        elif following == "{":
            self._braces(in_quotes=in_quotes)
        elif following == "'" and not in_quotes:
            self._coded_quotes()
        elif following == "[" or (following == '"' and not in_quotes):
            self.is_readable = False
        elif found := _VARIABLE.match(self._text, self.at):
            self._put(found[0], MANY if found[0] == "$@" else mark)
            self.at = found.end()
        else:
            self._put("$")
            self.at += 1

    def _braces(self, *, in_quotes: bool) -> None:
        """`${…}`. What is in there is read for substitutions; quotes in quotes are not."""
        text, start = self._text, self.at
        word, wide, brace = self._word, self._wide, self._brace
        self.at += 2
        if text[self.at : self.at + 1] in tuple(" \t\n|(") or "@P" in text[self.at : self.at + 200].partition("}")[0]:
            self.is_readable = False
        while self.is_readable and text[self.at : self.at + 1] != "}":
            char = text[self.at : self.at + 1]
            if char == "$":
                self._dollar(in_quotes=in_quotes)
            elif char == "`":
                self._backticks(in_quotes=in_quotes)
            elif char == "'" and not in_quotes:
                self._single_quotes(self.at + 1)
            elif char == '"' and not in_quotes:
                self.at += 1
                self._until_quote()
            elif char == "\\" and text[self.at + 1 : self.at + 2] not in ("", "'", '"', "\n"):
                self.at += 2
            elif char in ("", "'", '"', "\\", "{") or (char in "<>" and text[self.at + 1 : self.at + 2] == "("):
                self.is_readable = False
            else:
                self.at += 1
        self.at += 1
        self._word, self._wide, self._brace = word, wide, brace
        self._put(text[start : self.at], ONE if in_quotes and "@" not in text[start : self.at] else MANY)

    def _coded_quotes(self) -> None:
        """`$'…'`, in which letters may be written as numbers: not read where they are."""
        text, at = self._text, self.at + 2
        while at < len(text) and text[at] != "'":
            if text[at] == "\\":
                if text[at + 1 : at + 2] in _CODED:
                    self.is_readable = False
                    return
                at += 1
            self._put(text[at : at + 1])
            at += 1
        if at >= len(text):
            self.is_readable = False
        self.at = at + 1

    def _substitution(self, start: int, mark: str) -> None:
        if self._level >= LEVEL_MAX:
            self.is_readable = False
            return
        reader = Reader(self._text, start, is_inner=True, level=self._level + 1)
        reader.read()
        self._take(reader)
        self._put("$()", mark)
        self.at = reader.at

    def _backticks(self, *, in_quotes: bool) -> None:
        self.is_plain = False
        at, inner = self.at + 1, []
        while at < len(self._text) and self._text[at] != "`":
            if self._text[at] == "\\" and self._text[at + 1 : at + 2] in ("`", "\\", "$"):
                at += 1
            inner.append(self._text[at : at + 1])
            at += 1
        text = "".join(inner)
        is_odd = "<<" in text.replace("<<<", "") or (in_quotes and '"' in text)
        if at >= len(self._text) or is_odd or self._level >= LEVEL_MAX:
            self.is_readable = False
            return
        reader = Reader(text, level=self._level + 1)
        reader.read()
        self._take(reader)
        self._put("$()", ONE if in_quotes else MANY)
        self.at = at + 1

    # ---- ends ----

    def _end_word(self) -> None:
        if self._in_word:
            word, wide = "".join(self._word), "".join(self._wide)
            if self._brace >= 0 and has_braces(word):
                wide = "".join(self._wide[: self._brace]) + MANY
            if self._target:
                if self._target == "keep":
                    self._inputs.append(word)
                self._target = ""
            elif not self._in_array:
                if not self._words and (ASSIGNMENT.match(word) or word in RESERVED or any(map(str.isspace, word))):
                    self.is_plain = False
                if wide != word:
                    self._unsure.add(len(self._words))
                self._words.append(word)
                self._wides.append(wide)
        self._word, self._wide, self._in_word, self._brace = [], [], False, -1

    def _end_simple(self, *, is_command: bool = True) -> None:
        self._end_word()
        if self._words and is_command:
            raw = self._text[self._began : self.at].strip(" \t\n")
            self.simples.append(Simple(self._words, raw, self._wides, self._unsure, self._inputs))
            if self._is_inner and "case" in self._words:
                self.is_readable = False  # its patterns have brackets that nothing opens
        self._words, self._wides, self._unsure, self._inputs, self._target = [], [], set(), [], ""
        self._began = self.at

    def _end(self) -> None:
        self._end_simple()
        if self._waiting or self._in_array:
            self.is_readable = False


def _end_of_arithmetic(text: str, start: int) -> int:
    """Where `))` closes what is numbers to every shell, or may be; negative if it is not that for certain."""
    depth, at = 1, start
    while at < len(text):
        char = text[at]
        if char == "(":
            depth += 1
            if depth > BRACKETS_MAX:
                return -1
        elif char == ")":
            depth -= 1
            if not depth:
                return at if text.startswith("))", at) else -1
        elif not (char.isascii() and char.isalnum()) and char not in _ARITHMETIC:
            return -1
        if text.startswith(("$(", "$["), at):
            return -1
        at += 1
    return -1
