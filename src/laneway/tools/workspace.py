"""The tools that read and change the files of a workspace. See `paths` for how they are kept inside of it.

What goes wrong with a file is an answer to the model, not a failure: trying it again by itself would not help. Reads
are bounded by what a model may see and say how to go on; a change is made as a whole or not at all.

Why `write`, `edit` and `patch` have the effect `write`, and none is `idempotent`: done again after a crash, hours later
perhaps, each would undo what people have done to the file since. All three can tell afterwards what became of a call
(`reconcile`) from the content of the file.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from laneway.dialogue import Intent, ToolContext, ToolOutput
from laneway.records import Effect
from laneway.tools.outputs import ARTIFACT_PREFIX, ToolRefusedError, artifact_place, in_thread
from laneway.tools.patches import apply_hunks, parse_diff, reverse
from laneway.tools.paths import (
    Place,
    answering_errors,
    locate,
    locate_outside,
    open_file,
    open_folder,
    replace_file,
    shown,
    stat_place,
)
from laneway.tools.registry import tool
from laneway.tools.searches import (
    BINARY_START,
    Found,
    LineSearch,
    compile_glob,
    compile_pattern,
    find_files,
    find_lines,
    looks_binary,
)

if TYPE_CHECKING:
    from laneway.ports import Tool

__all__ = ("edit", "glob", "grep", "ls", "patch", "read", "workspace_tools", "write")

FILE_MAX: Final = 16 * 1024 * 1024
"""Bytes of a file that can be written, edited or patched."""
PIECE_MAX: Final = 8_000
"""Bytes of a line that are read as one; the rest counts as lines of its own, so that everything can be reached."""
NOTE_MAX: Final = 100
LINES_MAX: Final = 2_000
LISTED_MAX: Final = 1_000
SEARCH_S: Final = 20.0
READING: Final = frozenset({"read", "ls", "glob", "grep"})


async def _work(context: ToolContext, fn: Callable[[Event], Any]) -> Any:
    """Run a function of the disk on a thread; `stop` is set when its time is over or nobody waits for it any more."""
    stop = Event()
    timer = asyncio.get_running_loop().call_later(SEARCH_S, stop.set)
    try:
        return await in_thread(context, fn, stop)
    finally:
        timer.cancel()
        stop.set()


def _locate(context: ToolContext, path: str, tool: str) -> Place:
    """Where a path leads, artifacts and files of skills included.

    A link does not lead to what the permissions forbid to this tool.
    """
    if path.startswith(ARTIFACT_PREFIX):
        folder, name = artifact_place(context, path.removeprefix(ARTIFACT_PREFIX))
        return Place(root=os.path.realpath(folder), parts=(name,))
    place = _elsewhere(context, path, tool)
    if place is None:
        if not os.path.isdir(context.workspace):
            raise ToolRefusedError(f"the workspace {shown(context.workspace)} is not there")
        place = locate(context.workspace, path)
    is_hidden = _is_hidden(context, tool)
    if is_hidden is not None and is_hidden(place):
        raise ToolRefusedError(f"{shown(path)} leads to {place.shown}, which the permissions forbid to {tool}")
    return place


def _elsewhere(context: ToolContext, path: str, tool: str) -> Place | None:
    """A place outside the workspace that may be read but not changed; None if the path leads to none."""
    folders = context.extra.get("readable")
    if folders is None:
        return None
    try:
        locate(context.workspace, path)
    except ToolRefusedError:
        place = locate_outside(folders(), path)
    else:
        return None  # what is in the workspace is nothing else beside
    if place is not None and tool not in READING:
        raise ToolRefusedError(f"{shown(path)} is a file of a skill: it can be read, but not changed")
    return place


def _is_hidden(context: ToolContext, tool: str) -> Callable[[Place], bool] | None:
    """Whether a place is hidden from a tool, by the permissions or as the store of its session; None: nothing is."""
    hides, store = context.extra.get("hides"), context.extra.get("store")
    if hides is None and not store:
        return None

    def is_hidden(place: Place) -> bool:
        if store and place.path.startswith(store) and place.path[len(store) :][:1] in ("", "-", "."):
            return True  # the file itself, its log, its lock: a write there would be the end of all sessions
        path = place.path if place.is_outside else "/".join(place.parts) or "."
        return hides is not None and bool(hides(path, tool))

    return is_hidden


# ---- reading ------------------------------------------------------------------------------------------------


@tool(effect=Effect.READ)
async def read(context: ToolContext, path: str, offset: int = 1, limit: int = LINES_MAX) -> str:
    """Read a text file of the workspace, or what was left out of a long output (`artifact:<id>`).

    Args:
        path: The file, from the workspace on.
        offset: The first line, counted from 1. A very long line counts as several.
        limit: How many lines at most.
    """
    if offset < 1:
        raise ToolRefusedError(f"offset is {offset}; lines are counted from 1")
    if limit < 1:
        raise ToolRefusedError(f"limit is {limit}; it must be at least 1")
    text: str = await _work(context, partial(_read, context, path, offset, limit))
    return text


def _read(context: ToolContext, path: str, offset: int, limit: int, stop: Event) -> str:
    place = _locate(context, path, "read")
    with answering_errors(shown(path)), open_file(place) as file:
        if looks_binary(file.read(BINARY_START)):
            size = os.fstat(file.fileno()).st_size
            raise ToolRefusedError(f"{shown(path)} is binary ({size} bytes), not text")
        file.seek(0)
        most = _piece_max(context)
        for line in range(1, offset):
            if stop.is_set():
                raise ToolRefusedError(f"finding line {offset} of {shown(path)} takes too long")
            if not _piece(file, most):
                raise ToolRefusedError(f"{shown(path)} has only {line - 1} lines; line {offset} is not there")
        return _lines_from(context, file, offset, limit)


def _lines_from(context: ToolContext, file: BinaryIO, offset: int, limit: int) -> str:
    """Lines up to what a model may see, and a note when there are more."""
    room = context.output_max - NOTE_MAX
    most = _piece_max(context)
    taken: list[str] = []
    number = offset
    while piece := _piece(file, most):
        text = piece.decode("utf-8", "replace")
        if number - offset == limit or (taken and len(text) > room):
            break
        taken.append(text)
        room -= len(text)
        number += 1
    else:
        return "".join(taken)
    end = "" if taken[-1].endswith("\n") else "\n"
    return "".join(taken) + f"{end}[lines {offset} to {number - 1}; more follow: read on with offset={number}]"


def _piece_max(context: ToolContext) -> int:
    """Never more than the model may see at once, so that every part of a line can be seen."""
    return max(min(PIECE_MAX, context.output_max - NOTE_MAX), 4)


def _piece(file: BinaryIO, most: int) -> bytes:
    """The next line, or as much of a very long one as counts as a line; never a part of a character."""
    piece = file.readline(most)
    if len(piece) < most or piece.endswith(b"\n"):
        return piece
    back = next((n for n in range(1, 4) if piece[-n] & 0xC0 != 0x80), 0)  # where the last character begins
    if back and piece[-back] >= 0xC0:
        file.seek(-back, os.SEEK_CUR)
        return piece[:-back]
    return piece


@tool(effect=Effect.READ)
async def ls(context: ToolContext, path: str = ".") -> str:
    """List a folder of the workspace: folders end with a slash, files have their size in bytes.

    Args:
        path: The folder, from the workspace on.
    """
    text: str = await _work(context, partial(_ls, context, path))
    return text


def _ls(context: ToolContext, path: str, stop: Event) -> str:
    place = _locate(context, path, "ls")
    is_hidden = _is_hidden(context, "ls")
    with answering_errors(shown(path)):
        status = stat_place(place)
        if not stat.S_ISDIR(status.st_mode):
            return _entry(place.parts[-1], status, "")
        with open_folder(place) as folder:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
            try:
                names = sorted(os.listdir(readable))
                if is_hidden is not None:
                    names = [name for name in names if not is_hidden(place.child(name))]
                lines = [_described(name, readable) for name in names[:LISTED_MAX]]
            finally:
                os.close(readable)
    if len(names) > LISTED_MAX:
        lines.append(f"[{len(names) - LISTED_MAX} more; use glob to find some of them]")
    return "\n".join(lines) or "[empty]"


def _described(name: str, folder: int) -> str:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else ""
    except OSError:  # gone meanwhile
        return shown(name)
    return _entry(name, status, target)


def _entry(name: str, status: os.stat_result, target: str) -> str:
    if stat.S_ISDIR(status.st_mode):
        return f"{shown(name)}/"
    if stat.S_ISLNK(status.st_mode):
        return f"{shown(name)} -> {shown(target)}"
    return f"{shown(name)}  {status.st_size}"


@tool(effect=Effect.READ)
async def glob(context: ToolContext, pattern: str, path: str = ".") -> str:
    """Find files and folders by name.

    Args:
        pattern: Such as `src/**/*.py`. `*` stands for any part of a name, `**` for any folders; names that begin with a
            dot are found only if the pattern says the dot, and what is in `.git` only if the path leads there.
        path: The folder to search in, from the workspace on.
    """
    found: Found = await _work(context, partial(_glob, context, pattern, path))
    return _listed(found, "nothing matches")


def _glob(context: ToolContext, pattern: str, path: str, stop: Event) -> Found:
    place = _locate(context, path, "glob")
    compiled = compile_glob(pattern)
    with answering_errors(shown(path)):
        if not stat.S_ISDIR(stat_place(place).st_mode):
            raise ToolRefusedError(f"{shown(path)} is not a folder")
    return find_files(place, compiled, LISTED_MAX, stop, is_hidden=_is_hidden(context, "glob"))


@tool(effect=Effect.READ)
async def grep(context: ToolContext, pattern: str, path: str = ".", glob: str = "") -> str:
    """Find lines of text files by a regular expression; answers with `path:line: text`.

    Args:
        pattern: A regular expression; `(?i)` at its beginning ignores case.
        path: A file, a folder to search in (`.git` in it is left out), or `artifact:<id>`.
        glob: Only files whose name or path matches, such as `*.py`.
    """
    found: Found = await _work(context, partial(_grep, context, pattern, path, glob))
    return _listed(found, "no line matches")


def _grep(context: ToolContext, pattern: str, path: str, names: str, stop: Event) -> Found:
    place = _locate(context, path, "grep")
    search = LineSearch(
        pattern=compile_pattern(pattern),
        names=compile_glob(names) if names else None,
        most=LISTED_MAX,
        stop=stop,
        is_hidden=_is_hidden(context, "grep"),
    )
    with answering_errors(shown(path)):
        is_folder = stat.S_ISDIR(stat_place(place).st_mode)
    return find_lines(place, search, is_folder=is_folder)


def _listed(found: Found, nothing: str) -> str:
    notes = [f"[{found.note}]"] if found.note else []
    return "\n".join([*found.lines, *notes]) or f"[{nothing}]"


# ---- changing -----------------------------------------------------------------------------------------------


def _content(place: Place) -> str:
    """A text that can be written back byte for byte."""
    with open_file(place) as file:
        raw = file.read(FILE_MAX + 1)
    if len(raw) > FILE_MAX:
        raise ToolRefusedError(f"{place.shown} is larger than {FILE_MAX} bytes; change it with bash")
    if looks_binary(raw[:BINARY_START]):
        raise ToolRefusedError(f"{place.shown} is binary, not text")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ToolRefusedError(f"{place.shown} is not UTF-8 text: byte {error.start} is wrong") from None


def _put(place: Place, content: str, stop: Event) -> bool:
    try:
        raw = content.encode()
    except UnicodeEncodeError:
        raise ToolRefusedError("the text is not valid Unicode: a surrogate stands alone") from None
    if len(raw) > FILE_MAX:
        raise ToolRefusedError(f"the text has {len(raw)} bytes; at most {FILE_MAX} are possible")
    return replace_file(place, raw, stop)


def _locate_to_change(context: ToolContext, path: str, tool: str) -> Place:
    if path.startswith(ARTIFACT_PREFIX):
        raise ToolRefusedError("an artifact cannot be changed: its name is that of its content")
    place = _locate(context, path, tool)
    if place.path.casefold() in context.extra.get("fixed", ()):  # some file systems make no difference by case
        raise ToolRefusedError(f"{shown(path)} says what this agent may do: no tool changes it")
    return place


async def _reconcile(
    decide: Callable[[Place, dict[str, Any]], bool | None], intent: Intent, context: ToolContext
) -> ToolOutput | None:
    """What became of a change, by what is in the file now."""

    def look() -> bool | None:
        try:
            return decide(_locate_to_change(context, intent.arguments["path"], intent.tool), dict(intent.arguments))
        except (OSError, ToolRefusedError):
            return None

    is_done = await in_thread(context, look)
    if is_done is None:
        return None
    path = shown(str(intent.arguments["path"]))
    if is_done:
        return ToolOutput(text=f"{path} has the change: it was made before the interruption")
    return ToolOutput(text=f"{path} was not changed: it was interrupted before that", is_error=True)


async def _reconcile_write(intent: Intent, context: ToolContext) -> ToolOutput | None:
    # Another content does not tell: it may be the old one, or what somebody wrote afterwards.
    return await _reconcile(lambda place, said: _content(place) == said["content"] or None, intent, context)


@tool(effect=Effect.WRITE, reconcile=_reconcile_write)
async def write(context: ToolContext, path: str, content: str) -> str:
    """Write a text file of the workspace: make it, with the folders it needs, or replace all of it.

    Args:
        path: The file, from the workspace on.
        content: Everything that is to be in it.
    """
    return str(await _work(context, partial(_write, context, path, content)))


def _write(context: ToolContext, path: str, content: str, stop: Event) -> str:
    place = _locate_to_change(context, path, "write")
    with answering_errors(shown(path)):
        is_new = _put(place, content, stop)
    return f"{'made' if is_new else 'replaced'} {place.shown} ({len(content.encode())} bytes)"


def _decide_edit(place: Place, said: dict[str, Any]) -> bool | None:
    content = _content(place)
    old, new = (_in_style_of(content, said[name]) for name in ("old", "new"))
    if not new:  # what was deleted leaves no trace
        return None
    if content.count(new) == 1 and (old in new or old not in content):
        return True
    return False if new not in content and content.count(old) == 1 else None


async def _reconcile_edit(intent: Intent, context: ToolContext) -> ToolOutput | None:
    return await _reconcile(_decide_edit, intent, context)


@tool(effect=Effect.WRITE, reconcile=_reconcile_edit)
async def edit(context: ToolContext, path: str, old: str, new: str) -> str:
    """Replace a piece of a text file of the workspace.

    Args:
        path: The file, from the workspace on.
        old: The piece as it is in the file, with its blanks; it must be there exactly once.
        new: What takes its place.
    """
    return str(await _work(context, partial(_edit, context, path, old, new)))


def _edit(context: ToolContext, path: str, old: str, new: str, stop: Event) -> str:
    if not old:
        raise ToolRefusedError("old is empty; use write to make a file")
    if old == new:
        raise ToolRefusedError("old and new are the same; nothing was changed")
    place = _locate_to_change(context, path, "edit")
    with answering_errors(shown(path)):
        content = _content(place)
        wanted = _in_style_of(content, old)
        count = content.count(wanted)
        if count != 1:
            raise ToolRefusedError(_why_not_once(content, wanted, count, place.shown))
        at = content.index(wanted)
        _put(place, content[:at] + _in_style_of(content, new) + content[at + len(wanted) :], stop)
    return f"changed {place.shown} at line {content.count(chr(10), 0, at) + 1}"


def _in_style_of(content: str, text: str) -> str:
    """A text with the line ends of the file; a model seldom writes those of Windows."""
    if "\r\n" in content and "\r" not in text and content.count("\n") == content.count("\r\n"):
        return text.replace("\n", "\r\n")
    return text


def _why_not_once(content: str, wanted: str, count: int, path: str) -> str:
    if count:
        lines: list[str] = []
        at = -1
        while len(lines) < 5 and (at := content.find(wanted, at + 1)) >= 0:
            lines.append(str(content.count("\n", 0, at) + 1))
        return f"old is in {path} {count} times (at lines {', '.join(lines)} …); add lines around it to make it unique"
    first = next((line.strip() for line in wanted.splitlines() if line.strip()), "")
    at = content.find(first) if first else -1
    if at >= 0:
        number = content.count("\n", 0, at) + 1
        return f"old is not in {path}; its first line is at line {number}, but what follows or its blanks differ"
    return f"old is not in {path}; read the file again, it may have changed"


def _decide_patch(place: Place, said: dict[str, Any]) -> bool | None:
    try:
        content = _content(place)
    except FileNotFoundError:
        content = ""
    hunks = parse_diff(_plain_ends(said["diff"]))
    content = _plain_ends(content)

    def applies(which: Any) -> bool:
        try:
            apply_hunks(content, which)
        except ToolRefusedError:
            return False
        return True

    forwards, backwards = applies(hunks), applies(reverse(hunks))
    return None if forwards == backwards else backwards


async def _reconcile_patch(intent: Intent, context: ToolContext) -> ToolOutput | None:
    return await _reconcile(_decide_patch, intent, context)


@tool(effect=Effect.WRITE, reconcile=_reconcile_patch)
async def patch(context: ToolContext, path: str, diff: str) -> str:
    """Change a text file of the workspace by a unified diff of it; all of it applies, or nothing is changed.

    Args:
        path: The file, from the workspace on. A diff from nothing (`@@ -0,0 +1,3 @@`) makes it.
        diff: The hunks, each with its `@@ -a,b +c,d @@` line; file headers may be left out.
    """
    return str(await _work(context, partial(_patch, context, path, diff)))


def _plain_ends(text: str) -> str:
    return text.replace("\r\n", "\n")


def _patch(context: ToolContext, path: str, diff: str, stop: Event) -> str:
    place = _locate_to_change(context, path, "patch")
    hunks = parse_diff(_plain_ends(diff))
    with answering_errors(shown(path)):
        try:
            content = _content(place)
        except FileNotFoundError:
            if any(hunk.old for hunk in hunks):
                raise
            content = ""
        crlf = content.count("\r\n")
        if crlf and crlf != content.count("\n"):
            raise ToolRefusedError(f"{place.shown} mixes line ends of Windows and Unix; use edit")
        changed = apply_hunks(_plain_ends(content), hunks)
        _put(place, changed.replace("\n", "\r\n") if crlf else changed, stop)
    return f"changed {place.shown} ({len(hunks)} {'hunk' if len(hunks) == 1 else 'hunks'})"


def workspace_tools() -> list[Tool]:
    """All of them."""
    return [read, write, edit, patch, ls, glob, grep]
