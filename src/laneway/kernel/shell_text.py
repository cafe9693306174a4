"""A shell command taken apart: which simple commands are in it, and whether that is all there is to it.

It reads what `sh` and `bash` would read: quotes, escapes, operators, substitutions, comments. It expands nothing. What
it cannot read for certain it says so (`is_readable` is False): whoever decides by what it found must then refuse.

`commands` has every simple command, also those in substitutions and subshells and those that a wrapper (`sudo`, `env`,
`xargs`, `bash -c` …) would run: for rules that forbid. `plain` has the simple commands of a text in which nothing but
operators between simple commands occurs, else None: for rules that allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ("ShellText", "read_shell")

LENGTH_MAX = 100_000
DEPTH_MAX = 12
WRAPPED_MAX = 100
COMMANDS_MAX = 20_000

_RUNNERS = """
alias ash bash builtin busybox chroot command coproc csh dash doas env eval exec fd find firejail fish flock gosu ionice
ksh ltrace mksh nice nohup nsenter osh parallel pkexec proot rsh runuser screen script setarch setpriv setsid sg sh
source ssh stdbuf strace su sudo systemd-run taskset tcsh time timeout tmux trap unbuffer unshare watch xargs yash zsh
"""
WRAPPERS = frozenset(_RUNNERS.split())
"""Programs that run what they are told as arguments."""

_KEYWORDS = "! { } [[ case do done elif else esac fi for function if in select then time until while"
RESERVED = frozenset(_KEYWORDS.split())
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_PLAIN_WORD = re.compile(r"[\w@%+=:,./~^*?\[\]{}!-]+", re.ASCII)
_UNKNOWN = re.compile(r"[$*?\[]|\{.*,.*\}|\{.*\.\..*\}")
_REDIRECTIONS = ("<<<", "<<-", "<<", "<>", "<&", "<", ">>", ">&", ">|", ">")
_CODED = frozenset("xuUc01234567")


@dataclass(slots=True)
class Simple:
    """One simple command: its words without quotes, and the text as it was written."""

    words: list[str]
    raw: str

    @property
    def canonical(self) -> str:
        """Its words with one blank between them; those with blanks or special characters in quotes."""
        return " ".join(quoted(word) for word in self.words)


@dataclass(slots=True)
class ShellText:
    """What is in a shell command."""

    commands: list[Simple] = field(default_factory=list)
    plain: list[Simple] | None = None
    is_readable: bool = True


def quoted(word: str) -> str:
    """A word as a shell would have to read it."""
    if _PLAIN_WORD.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def read_shell(text: str) -> ShellText:
    """Take a command apart."""
    found = ShellText()
    if len(text) > LENGTH_MAX or "\0" in text:
        found.is_readable = False
        return found
    try:
        _read_into(found, text, 0)
    except RecursionError:  # quotes in substitutions in quotes …
        found.is_readable, found.plain = False, None
    return found


def _read_into(found: ShellText, text: str, depth: int) -> None:
    if depth > DEPTH_MAX or len(found.commands) > COMMANDS_MAX:
        found.is_readable = False
        return
    reader = _Reader(text)
    reader.read()
    if not reader.is_readable:
        found.is_readable = False
    for simple in reader.simples:
        found.commands.append(simple)
        _look_inside(found, simple, depth)
    for inner in reader.nested:
        _read_into(found, inner, depth + 1)
    if depth == 0 and reader.is_readable and reader.is_plain:
        found.plain = reader.simples


def _look_inside(found: ShellText, simple: Simple, depth: int) -> None:
    """What a command runs besides itself: after assignments and reserved words, and through wrappers."""
    words = simple.words
    start = 0
    while start < len(words) and (words[start] in RESERVED or _ASSIGNMENT.match(words[start])):
        start += 1
    if start:
        words = words[start:]
        if words:
            found.commands.append(Simple(words, " ".join(words)))
    if not words:
        return
    if _UNKNOWN.search(words[0]) and words[0] != "[":
        found.is_readable = False  # which program that is shows only when it runs
        return
    program = words[0].rpartition("/")[2]
    if program != words[0]:
        found.commands.append(Simple([program, *words[1:]], " ".join([program, *words[1:]])))
    if program.casefold() not in WRAPPERS:
        return
    if len(words) > WRAPPED_MAX:
        found.is_readable = False
        return
    for index in range(1, len(words)):
        inner = words[index:]
        name = inner[0].rpartition("/")[2]
        found.commands.append(Simple([name, *inner[1:]], " ".join([name, *inner[1:]])))
        if any(mark in words[index] for mark in " \t\n;|&$`'\"\\(){}<>"):
            _read_into(found, words[index], depth + 1)


class _Reader:
    """Reads one text from its beginning to its end, once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._word: list[str] = []
        self._in_word = False
        self._words: list[str] = []
        self._target = ""  # the next word is what a redirection is about: to be read as a command, or to be skipped
        self._began = 0  # where the simple command began
        self.simples: list[Simple] = []
        self.nested: list[str] = []  # what substitutions run
        self.is_readable = True
        self.is_plain = True

    def read(self) -> None:
        text, end = self._text, len(self._text)
        while self._at < end and self.is_readable:
            char = text[self._at]
            if char in " \t":
                self._end_word()
                self._at += 1
            elif char in "\n;&|()":
                self._operator(char)
            elif char in "<>":
                self._redirection(char)
            elif char == "#" and not self._in_word:
                self.is_plain = False
                stop = text.find("\n", self._at)
                self._end_simple()
                self._at = end if stop < 0 else stop
            else:
                self._piece(char)
        self._end_simple()

    # ---- what a text is made of ----

    def _operator(self, char: str) -> None:
        if char in "()":
            self.is_plain = False
        self._end_simple()
        self._at += 1
        self._began = self._at

    def _redirection(self, char: str) -> None:
        self.is_plain = False
        following = self._text[self._at + 1 : self._at + 2]
        if following == "(":
            self._substitution(self._at + 2)
            return
        if "".join(self._word).isdigit():
            self._word, self._in_word = [], False  # `2>`: which stream, no word
        self._end_word()
        operator = next(each for each in _REDIRECTIONS if self._text.startswith(each, self._at))
        self._target = "read" if operator == "<<<" else "skip"
        self._at += len(operator)
        rest = self._text[self._at : self._at + 200].lstrip(" \t")
        if not rest or (rest[0] in "\n;&|()<>" and rest[:2] not in ("<(", ">(")):
            self.is_readable = False  # it redirects to nothing

    def _piece(self, char: str) -> None:
        """A part of a word."""
        self._in_word = True
        if char == "\\":
            self._escape()
        elif char == "'":
            self._single_quotes(self._at + 1)
        elif char == '"':
            self._double_quotes()
        elif char == "$":
            self._dollar(in_quotes=False)
        elif char == "`":
            self._backticks()
        else:
            if char.isspace() or (not char.isprintable() and char not in "\t"):
                self.is_plain = False  # blanks to one shell, letters to another
            self._word.append(char)
            self._at += 1

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if not following:
            self.is_readable = False
        elif following == "\n":
            self.is_plain = False
            self._in_word = bool(self._word)
        else:
            self._word.append(following)
        self._at += 2

    def _single_quotes(self, start: int) -> None:
        stop = self._text.find("'", start)
        if stop < 0:
            self.is_readable = False
            return
        self._word.append(self._text[start:stop])
        self._at = stop + 1

    def _double_quotes(self) -> None:
        text, end = self._text, len(self._text)
        self._at += 1
        while self._at < end and self.is_readable:
            char = text[self._at]
            if char == '"':
                self._at += 1
                return
            if char == "\\":
                following = text[self._at + 1 : self._at + 2]
                self._word.append(following if following in '$`"\\' else "" if following == "\n" else char + following)
                self._at += 2
            elif char == "$":
                self._dollar(in_quotes=True)
            elif char == "`":
                self._backticks()
            else:
                self._word.append(char)
                self._at += 1
        self.is_readable = False

    def _dollar(self, *, in_quotes: bool) -> None:
        """An expansion; what it expands to is not known here."""
        self.is_plain = False
        following = self._text[self._at + 1 : self._at + 2]
        if following == "(":
            self._substitution(self._at + 2)
        elif following == "{":
            self._braces()
        elif following == "'" and not in_quotes:
            self._coded_quotes()
        else:
            self._word.append("$")
            self._at += 1

    def _braces(self) -> None:
        stop = _closing(self._text, self._at + 2, "{", "}")
        if stop < 0:
            self.is_readable = False
            return
        inner = self._text[self._at + 2 : stop]
        self._word.append(self._text[self._at : stop + 1])
        if any(mark in inner for mark in "`$"):
            self.nested.append(inner)  # `${x:-$(command)}`
        self._at = stop + 1

    def _coded_quotes(self) -> None:
        """`$'…'`, in which letters may be written as numbers: not read where they are."""
        text, at = self._text, self._at + 2
        while at < len(text) and text[at] != "'":
            if text[at] == "\\":
                if text[at + 1 : at + 2] in _CODED:
                    self.is_readable = False
                    return
                at += 1
            self._word.append(text[at : at + 1])
            at += 1
        if at >= len(text):
            self.is_readable = False
        self._at = at + 1

    def _substitution(self, start: int) -> None:
        stop = _closing(self._text, start, "(", ")")
        if stop < 0:
            self.is_readable = False
            return
        self._in_word = True
        self._word.append("$()")
        self.nested.append(self._text[start:stop])
        self._at = stop + 1

    def _backticks(self) -> None:
        self.is_plain = False
        at, inner = self._at + 1, []
        while at < len(self._text) and self._text[at] != "`":
            if self._text[at] == "\\" and self._text[at + 1 : at + 2] in ("`", "\\", "$"):
                at += 1
            inner.append(self._text[at : at + 1])
            at += 1
        if at >= len(self._text):
            self.is_readable = False
        self._word.append("$()")
        self.nested.append("".join(inner))
        self._at = at + 1

    # ---- ends ----

    def _end_word(self) -> None:
        if self._in_word:
            word = "".join(self._word)
            if self._target:
                if self._target == "read":
                    self.nested.append(word)
                self._target, self._word, self._in_word = "", [], False
                return
            if not self._words and (_ASSIGNMENT.match(word) or word in RESERVED or any(map(str.isspace, word))):
                self.is_plain = False
            self._words.append(word)
        self._word, self._in_word = [], False

    def _end_simple(self) -> None:
        self._end_word()
        if self._words:
            self.simples.append(Simple(self._words, self._text[self._began : self._at].strip(" \t\n")))
        self._words, self._target = [], ""
        self._began = self._at


def _closing(text: str, start: int, opening: str, closing: str) -> int:
    """Where the bracket that was opened before `start` is closed; negative if it is not."""
    depth, at = 1, start
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "'\"":
            at = _end_of_quotes(text, at)
            if at < 0:
                return -1
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if not depth:
                return at
        at += 1
    return -1


def _end_of_quotes(text: str, start: int) -> int:
    """The closing mark of a quote; inside double quotes escapes and nested substitutions are stepped over."""
    mark, at = text[start], start + 1
    while at < len(text):
        char = text[at]
        if char == mark:
            return at
        if mark == '"' and char == "\\":
            at += 1
        elif mark == '"' and text[at : at + 2] == "$(":
            at = _closing(text, at + 2, "(", ")")
            if at < 0:
                return -1
        at += 1
    return -1
