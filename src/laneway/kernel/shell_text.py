"""A shell command taken apart: which simple commands are in it, and whether that is all there is to it.

It expands nothing. What cannot be read for certain is said so (`is_readable` is False): whoever decides by what was
found must then refuse. That is so for a shell that reads its commands from its input, a text in another language, a
program whose name shows only when it runs, and everything that shells would not read alike.

`commands` has every simple command, also those in substitutions and subshells and those that another program would or
may run: for rules that forbid. `plain` has the simple commands of a text in which nothing but operators between simple
commands occurs, else None: for rules that allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from laneway.kernel.shell_programs import (
    EVALUATING,
    INTERPRETERS,
    NEEDS_PROGRAM,
    ODD,
    RUNNERS,
    SHELLS,
    TEXT_RUNNERS,
    is_code_safe,
    is_quiet,
    known_name,
)
from laneway.kernel.shell_reader import ASSIGNMENT, MANY, ONE, RESERVED, Reader, Simple, has_braces, quoted

__all__ = ("MANY", "ONE", "ShellText", "Simple", "quoted", "read_shell")

LENGTH_MAX = 100_000
DEPTH_MAX = 12
OPENED_MAX = 300
SKIPPED_MAX = 20
COMMANDS_MAX = 20_000
TRIED_MAX = 100_000

_UNKNOWN = re.compile(r"[$*?\[]|\{\}")
_MARKS = re.compile(r"[\s;|&$`'\"\\(){}<>]")
_GLUED = re.compile(r"[=:!,]|^-\w")
_COUNT = re.compile(r"[\d.]+[smhd]?")
_PROMPTS = re.compile(r"^[ \t]*[:.\\]*!+", re.MULTILINE)
_PREFIXES = RESERVED - {"[[", "time", "for", "select", "case", "function"}
_DECLARING = frozenset({"declare", "export", "local", "readonly", "typeset"})
_FEEDING = frozenset({"cat", "echo", "printf", "tee"})
_LOADERS = re.compile(r"ld(-linux.*|-musl.*|\.so.*)|linker(64)?")


@dataclass(slots=True)
class ShellText:
    """What is in a shell command."""

    commands: list[Simple] = field(default_factory=list)
    plain: list[Simple] | None = None
    is_readable: bool = True
    functions: set[str] = field(default_factory=set)
    tried: int = 0
    is_running: bool = False  # something was found that may run what it is told


def read_shell(text: str) -> ShellText:
    """Take a command apart."""
    found = ShellText()
    if len(text) > LENGTH_MAX or "\0" in text:
        found.is_readable = False
        return found
    try:
        reader = _read_into(found, text, 0)
    except RecursionError:
        found.is_readable = False
        return found
    if reader is not None and reader.is_readable and reader.is_plain:
        found.plain = reader.simples
    return found


def _read_into(found: ShellText, text: str, depth: int) -> Reader | None:
    if depth > DEPTH_MAX or len(found.commands) > COMMANDS_MAX:
        found.is_readable = False
        return None
    reader = Reader(text)
    reader.read()
    _take(found, reader, depth)
    return reader


def _take(found: ShellText, reader: Reader, depth: int) -> None:
    if not reader.is_readable or depth > DEPTH_MAX or len(found.commands) > COMMANDS_MAX:
        found.is_readable = False
    found.functions |= reader.functions
    for simple in reader.simples:
        if simple.words[0] == "function" and len(simple.words) > 1:
            found.functions.add(simple.words[1].casefold())
    for inner in reader.inner:
        _take(found, inner, depth + 1)
    for text in reader.maybe:
        _try(found, text, depth)
    for simple in reader.simples:
        found.commands.append(simple)
        _look(found, simple, depth)
    if reader.has_pipe and found.is_running:
        for simple in reader.simples:  # what is written may be what is run at the other end
            if any(known_name(word) in _FEEDING for word in simple.words[:4]):
                _open(found, simple, depth)


def _try(found: ShellText, text: str, depth: int) -> None:
    """Read what may be commands, or may be none: what is in it counts, and that it cannot be read does not."""
    if _is_too_much(found, len(text) + 20):
        return
    inner = ShellText(functions=found.functions, tried=found.tried)
    _read_into(inner, text, depth + 1)
    found.commands += inner.commands
    found.tried = inner.tried


def _is_too_much(found: ShellText, work: int) -> bool:
    """Count work, so that no text takes long; one that would is not readable."""
    found.tried += work
    if found.tried > TRIED_MAX:
        found.is_readable = False
    return found.tried > TRIED_MAX


# ---- what a command runs besides itself ----


def _look(found: ShellText, simple: Simple, depth: int) -> None:
    """Find the program of a command: behind assignments and reserved words."""
    words = simple.words
    if depth > DEPTH_MAX or _is_too_much(found, len(words) + 10):
        found.is_readable = False
        return
    start = 0
    while start < len(words):
        word = words[start]
        if word in ("for", "select", "function"):
            if words[start + 2 : start + 3] == ["in"] and word != "function":
                return
            start += 2  # a name follows
        elif word == "case":
            return
        elif assigned := ASSIGNMENT.match(word):
            _assign(found, word, assigned.end(), depth)
            start += 1
        elif word in _PREFIXES:
            start += 1
        else:
            break
    if start >= len(words):
        return
    word = words[start]
    if start in simple.unsure or ((_UNKNOWN.search(word) or has_braces(word)) and word not in ("[", "[[")):
        found.is_readable = False  # which program that is shows only when it runs
        _open(found, simple, depth, start=start + 1)
        return
    name = word.rpartition("/")[2]
    if start or name != word:
        simple = simple.after(start, name)
        found.commands.append(simple)
    _run(found, simple, depth)


def _assign(found: ShellText, word: str, end: int, depth: int) -> None:
    if word.startswith(("BASH_", "ENV=")):
        found.is_readable = False
    elif word[end:]:
        _try(found, word[end:], depth)


def _run(found: ShellText, simple: Simple, depth: int) -> None:
    """What a program makes of its arguments."""
    words = simple.words
    name = known_name(words[0])
    _skip_options(found, simple)
    odd = ODD.get(name)
    if odd is not None and any(re.match(odd, word) for word in words[1:]):
        found.is_readable = False
    if name in SHELLS or name in (".", "source"):
        _run_shell(found, simple, depth, is_sourcing=name not in SHELLS)
    elif name in INTERPRETERS:
        _run_interpreter(found, simple, INTERPRETERS[name], depth)
    elif name in TEXT_RUNNERS:
        _run_text(found, simple, depth)
    elif name in RUNNERS or _LOADERS.fullmatch(words[0]):
        _run_runner(found, simple, name, depth)
    elif name == "find":
        _run_find(found, simple, depth)
    elif (is_safe := is_code_safe(name, words, simple.unsure)) is not None and name not in found.functions:
        found.is_readable = found.is_readable and is_safe
        if name.endswith("make"):
            _open(found, simple, depth)
    elif is_quiet(words[0].casefold(), words) and words[0].casefold() not in found.functions:
        if name in EVALUATING:
            _evaluate(found, words, depth, is_declaring=name in _DECLARING)
    else:
        _open(found, simple, depth)


def _skip_options(found: ShellText, simple: Simple) -> None:
    """`git -C x push` is `git push`, too: without the options before the first word that is none."""
    at, end = 1, len(simple.words)
    while at < min(end - 1, SKIPPED_MAX) and simple.words[at].startswith("-"):
        steps = (at, at + 1) if at + 1 < end - 1 else (at,)
        found.commands += [simple.after(step, simple.words[0]) for step in steps]
        at += 1 if simple.words[at + 1].startswith("-") else 2


def _evaluate(found: ShellText, words: list[str], depth: int, *, is_declaring: bool) -> None:
    for word in words[1:]:
        assigned = ASSIGNMENT.match(word) if is_declaring else None
        if assigned:
            _assign(found, word, assigned.end(), depth)
        elif "$(" in word or "`" in word:
            _try(found, word, depth)


def _is_stream(simple: Simple, at: int) -> bool:
    return at in simple.unsure or simple.words[at] == "-" or simple.words[at].startswith(("/dev/", "/proc/"))


def _run_shell(found: ShellText, simple: Simple, depth: int, *, is_sourcing: bool) -> None:
    """From `-c` it is read; a file is a file; what comes from the input is not known here."""
    words, at, is_told = simple.words, 1, False
    found.is_running = True
    while at < len(words):
        word = words[at]
        if at in simple.unsure:
            break
        if word in ("--version", "--help"):
            return
        if is_sourcing or not word.startswith(("-", "+")) or word == "-":
            if is_told:
                _read_into(found, word, depth + 1)
                found.is_readable = found.is_readable and word != "-"
            elif _is_stream(simple, at):
                break
            _open(found, simple, depth, start=at)  # a file is looked for like a program
            return
        if not re.fullmatch(r"[-+][A-Za-z]*|--(login|posix|norc|noprofile|restricted|verbose|)", word):
            break
        is_long = word.startswith("--")
        is_told = is_told or ("c" in word and not is_long)
        if not is_long and ("s" in word or "i" in word):
            break
        at += 2 if not is_long and word[-1] in "oO" else 1
    found.is_readable = False


def _run_interpreter(found: ShellText, simple: Simple, harmless: str, depth: int) -> None:
    words, at = simple.words, 1
    found.is_running = True
    while at < len(words):
        word = words[at]
        if at in simple.unsure or word in ("--version", "--help", "-V", "-h"):
            break
        if not word.startswith("-") or word == "-m":
            if _is_stream(simple, at) or (word == "-m" and not words[0].casefold().startswith(("python", "pypy"))):
                break
            _open(found, simple, depth, start=at)  # a file is looked for like a program
            return
        if word in ("-W", "-X") and words[0].casefold().startswith(("python", "pypy")):
            at += 1
        elif not re.match(harmless, word):
            break
        at += 1
    found.is_readable = found.is_readable and words[at : at + 1] in (["--version"], ["--help"], ["-V"], ["-h"])


def _run_text(found: ShellText, simple: Simple, depth: int) -> None:
    """All of its arguments may be one text for a shell."""
    if any(simple.unsure):
        found.is_readable = False
    found.is_running = True
    _read_into(found, " ".join(simple.words[1:]), depth + 1)
    for word in simple.words[1:]:
        if _MARKS.search(word):
            _read_into(found, word, depth + 1)
    _open(found, simple, depth)


def _run_runner(found: ShellText, simple: Simple, name: str, depth: int) -> None:
    """Where its program stands shows by the options; as long as that is not certain, every word may be it."""
    words, takes = simple.words, RUNNERS.get(name)
    if len(words) > OPENED_MAX:
        found.is_readable = False
        return
    is_xargs = name in ("xargs", "parallel")
    if is_xargs:  # more words come from its input
        wide = simple.wide or list(words)
        simple = Simple(
            [*words, "…"], simple.raw, [*wide, MANY], {*simple.unsure, len(words)}, simple.inputs, is_part=True
        )
    _open(found, simple, depth, has_shells=takes is None)
    token = next((words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-I", "-J", "--replace")), "{}")
    at, may_be_value, is_found = 1, False, False
    while at < len(words):
        word = words[at]
        if at in simple.unsure or found.tried > TRIED_MAX:
            found.is_readable = False
            return
        if word.startswith("-") and word != "-":
            is_short = not word.startswith("--")
            may_be_value = "=" not in word if takes is None or not is_short else word[-1] in takes
        elif ASSIGNMENT.match(word) or _COUNT.fullmatch(word):
            if match := ASSIGNMENT.match(word):
                _assign(found, word, match.end(), depth)
            may_be_value = False
        else:
            is_found = True
            inner = simple.after(at, word)
            program = known_name(word)
            is_open = program in SHELLS or program in INTERPRETERS or program in TEXT_RUNNERS or program in RUNNERS
            if is_xargs and (is_open or token in word or word.startswith((":::", "%")) or "{}" in word):
                found.is_readable = False
            _look(found, inner, depth + 1)
            if not may_be_value and takes is not None:
                return
            may_be_value = False
            if takes is None and at > 3:
                return
        at += 1
    options = [word for word in words[1:] if word.startswith("-")]
    if name in NEEDS_PROGRAM and (not is_found or any("s" in word or "i" in word for word in options)):
        found.is_readable = False


def _run_find(found: ShellText, simple: Simple, depth: int) -> None:
    for at, word in enumerate(simple.words[:-1]):
        if re.fullmatch(r"-(exec|ok)(dir)?", word):
            found.is_running = True
            inner = simple.after(at + 1, simple.words[at + 1])
            found.commands.append(inner)
            _look(found, inner, depth + 1)


def _open(found: ShellText, simple: Simple, depth: int, *, start: int = 1, has_shells: bool = True) -> None:
    """Of a program that may run its arguments, or its input: every end of its words, and every word by itself."""
    words = simple.words
    found.is_running = True
    if len(words) > OPENED_MAX or _is_too_much(found, len(words) ** 2 + 10):
        found.is_readable = False
        return
    for at in range(start, len(words)):
        word = words[at]
        name = word.rpartition("/")[2]
        found.commands.append(simple.after(at, name))
        following = words[at + 1 : at + 2]
        program = known_name(word)
        is_told = bool(following) and following[0].startswith("-") and (program in SHELLS or program in INTERPRETERS)
        if has_shells and (is_told or (program in SHELLS and not following)):
            _run(found, simple.after(at, name), depth + 1)
        if _MARKS.search(word):
            _try(found, word, depth)
        for mark in list(_GLUED.finditer(word))[:6]:
            piece = word[mark.end() :]
            if _MARKS.search(piece):
                _try(found, piece, depth)
            elif piece:
                found.commands.append(simple.after(at, piece.rpartition("/")[2]))
    for text in simple.inputs:
        _try(found, text, depth)
        if "!" in text:
            _try(found, _PROMPTS.sub("", text), depth)
