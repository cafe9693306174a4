"""What a model gets to see of a long output: its head and its tail. The rest is kept as an artifact.

An artifact is a file named by the SHA-256 of its content, so the same output is kept once and a name never changes its
meaning. It is written beside its place and moved there when it is whole: whoever finds one finds all of it. A file that
was being written when the process died stays behind as `.part-…` and may be deleted. Nothing here ever fails a call:
what cannot be kept is dropped, and the text says so. How long files are kept is decided in `runtime.artifacts`.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from laneway.dialogue import ToolContext, ToolOutput, compact_json
from laneway.errors import text_of

if TYPE_CHECKING:
    import hashlib

__all__ = (
    "ARTIFACT_MAX",
    "ARTIFACT_PREFIX",
    "Capped",
    "Spool",
    "ToolRefusedError",
    "artifact_place",
    "as_output",
    "cap",
    "cap_output",
    "clean",
    "in_thread",
)

ARTIFACT_PREFIX: Final = "artifact:"
ARTIFACT_MAX: Final = 64 * 1024 * 1024
"""How many bytes of one output are kept."""

_ARTIFACT_ID: Final = re.compile(r"[0-9a-f]{64}")
_SNAP: Final = 10  # a cut moves to the end of a line if one is within a tenth of what is shown
_numbers: Final = count(1)


class ToolRefusedError(Exception):
    """Raised inside a tool to answer the model with an error: not a failure, and never tried again."""


class Capped(NamedTuple):
    """What the model sees, and the name of the artifact that has the whole, if one was kept."""

    text: str
    artifact: str | None = None


def clean(text: str) -> str:
    """Text that can be stored and sent anywhere: no half surrogate pairs, and NUL as a visible sign."""
    return text_of(text).replace("\x00", "\u2400")


def as_output(value: Any) -> ToolOutput:
    """What a function returned as an output: text as it is, None as no text, anything else as JSON, else as text."""
    if isinstance(value, ToolOutput):
        return value
    if isinstance(value, str):
        return ToolOutput(text=value)
    if value is None:
        return ToolOutput(text="")
    try:
        return ToolOutput(text=compact_json(value))
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        from pydantic_core import to_json  # records, dates, models: what json does not know

        return ToolOutput(text=to_json(value).decode())
    except Exception:  # noqa: BLE001 - the value of a user: its own text is better than no answer
        return ToolOutput(text=text_of(value))


async def in_thread(context: ToolContext, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a blocking function on a thread: where the host says, else where asyncio does."""
    import asyncio

    def call() -> Any:
        try:
            return fn(*args, **kwargs)
        except StopIteration as error:  # a future cannot carry one: the caller would wait for ever
            raise RuntimeError("the function raised StopIteration") from error

    return await (context.in_thread(call) if context.in_thread else asyncio.to_thread(call))


async def cap_output(output: ToolOutput, context: ToolContext) -> ToolOutput:
    """An output as it may go to the model; what was kept already is not kept again."""
    if len(output.text) <= context.output_max and len(text := clean(output.text)) <= context.output_max:
        return output if text == output.text else replace(output, text=text)
    keep = cap if output.artifact is None else partial(_cut_clean, artifact=output.artifact)
    capped = await in_thread(context, keep, output.text, context)
    return replace(output, text=capped.text, artifact=capped.artifact)


def _cut_clean(text: str, context: ToolContext, artifact: str) -> Capped:
    return _cut(clean(text), context, artifact)


def cap(text: str, context: ToolContext) -> Capped:
    """At most `output_max` characters of a text; the whole of a longer one becomes an artifact. Blocks on the disk."""
    text = clean(text)
    if len(text) <= context.output_max:
        return Capped(text)
    spool = Spool(context)
    spool.add(text.encode())
    artifact = spool.keep()
    return _cut(text, context, artifact, spool.problem)


def _cut(text: str, context: ToolContext, artifact: str | None, problem: str = "") -> Capped:
    room = context.output_max - len(_gap(len(text), artifact, problem))
    head, tail = _split(max(room, 0))
    shown_head = _to_line_end(text[:head])
    shown_tail = _to_line_start(text[len(text) - tail :])
    return Capped(
        shown_head + _gap(len(text) - len(shown_head) - len(shown_tail), artifact, problem) + shown_tail, artifact
    )


def _split(room: int) -> tuple[int, int]:
    return room - room // 2, room // 2


def _to_line_end(text: str) -> str:
    at = text.rfind("\n", len(text) - len(text) // _SNAP)
    return text if at < 0 else text[: at + 1]


def _to_line_start(text: str) -> str:
    at = text.find("\n", 0, len(text) // _SNAP)
    return text if at < 0 else text[at + 1 :]


def _gap(left_out: int, artifact: str | None, problem: str) -> str:
    if artifact:
        way = f'read(path="{ARTIFACT_PREFIX}{artifact}") shows it'
        way += f", {problem}" if problem else ""
    else:
        way = f"it was not kept: {problem or 'there is no folder for artifacts'}"
    return f"\n[… {left_out} characters left out; {way} …]\n"


def _sha256() -> hashlib._Hash:
    import hashlib  # only for outputs that are too long, and OpenSSL takes its time to load

    return hashlib.sha256()


def artifact_place(context: ToolContext, artifact: str) -> tuple[str, str]:
    """The folder and the name of the file of an artifact; refuses what is not the name of one.

    What a session was imported with is beside its store, wherever this host keeps what is new.
    """
    if not _ARTIFACT_ID.fullmatch(artifact):
        raise ToolRefusedError(f"{artifact[:100]!r} is not the name of an artifact: those are 64 hexadecimal digits")
    if not context.artifacts:
        raise ToolRefusedError("there is no folder for artifacts here, so none were kept")
    beside = context.extra.get("kept")
    is_there = os.path.exists(os.path.join(context.artifacts, artifact))
    return beside if beside and not is_there else context.artifacts, artifact


def _settle(folder: str) -> None:
    """Have the names in a folder on the disk: a row will promise that they are."""
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Spool:
    """An output that comes in pieces: its head and tail stay in memory, the whole goes to a file as it comes.

    `add` only takes a piece; `flush` writes what was taken and may block on the disk. Nothing is written before there
    is more than the model may see.
    """

    def __init__(self, context: ToolContext, *, artifact_max: int = ARTIFACT_MAX) -> None:
        self._context = context
        self._artifact_max = artifact_max
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._head_size = 0
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._pending: list[bytes] = []
        self.pending_size = 0
        self._file: BinaryIO | None = None
        self._digest = _sha256()
        self._kept_size = 0
        self.size = 0  # characters
        self.problem = ""

    @property
    def is_long(self) -> bool:
        """Whether there is more than the model may see."""
        return self.size > self._context.output_max

    def add(self, piece: bytes) -> str:
        """Take a piece; returns its text."""
        text = self._decoder.decode(piece)
        self._take(text)
        if not self.problem:
            self._pending.append(piece)
            self.pending_size += len(piece)
        return text

    def _take(self, text: str) -> None:
        self.size += len(text)
        room = self._context.output_max
        if self._head_size < room:
            self._head.append(text[: room - self._head_size])
            self._head_size += len(self._head[-1])
        self._tail.append(text[-room:] if room > 0 else "")
        self._tail_size += len(self._tail[-1])
        while self._tail and self._tail_size - len(self._tail[0]) >= room:
            self._tail_size -= len(self._tail.popleft())

    def flush(self) -> None:
        """Write what is pending, if there is enough to need a file."""
        pieces, self._pending, self.pending_size = self._pending, [], 0
        try:
            for piece in pieces:
                self._write(piece)
        except OSError as error:
            self.discard()
            self.problem = f"writing it failed ({error.strerror or error})"

    def _write(self, piece: bytes) -> None:
        if self._file is None:
            self._file = self._open()
            if self._file is None:
                return
        room = self._artifact_max - self._kept_size
        if len(piece) > room:
            piece = piece[:room]
            self.problem = f"but only its first {self._artifact_max} bytes were kept"
        self._file.write(piece)
        self._digest.update(piece)
        self._kept_size += len(piece)

    def _open(self) -> BinaryIO | None:
        if not self._context.artifacts:
            self.problem = "there is no folder for artifacts"
            return None
        os.makedirs(self._context.artifacts, mode=0o700, exist_ok=True)
        while True:  # a process that died may have left one, and its number may be ours now
            name = os.path.join(self._context.artifacts, f".part-{os.getpid()}-{next(_numbers)}")
            with suppress(FileExistsError):
                return open(name, "xb")

    def keep(self) -> str | None:
        """Make the whole an artifact; its name, or None when it could not be kept (`problem` says why)."""
        self.flush()
        if self._file is None:
            return None
        part = self._file.name
        name = self._digest.hexdigest()
        hold = self._context.extra.get("hold")
        if hold is not None:  # before it is there: nobody names it yet, and what nobody names is taken away
            hold(name)
        try:
            self._file.flush()
            os.fsync(self._file.fileno())  # a name that promises its content must not outlive it
            self._file.close()
            os.replace(part, os.path.join(os.path.dirname(part), name))
            _settle(os.path.dirname(part))
        except OSError as error:
            self.discard()
            self.problem = f"writing it failed ({error.strerror or error})"
            return None
        self._file = None
        return name

    def discard(self) -> None:
        """Forget it; nothing stays on the disk."""
        if self._file is None:
            return
        part, self._file = self._file, None
        with suppress(OSError):  # on a full disk; what was buffered is lost, and the file is being deleted anyway
            part.close()
        with suppress(OSError):
            os.unlink(part.name)

    def finish(self) -> Capped:
        """Nothing more comes: what the model sees of it, with the rest kept. Blocks on the disk if it was long."""
        self._take(self._decoder.decode(b"", True))  # noqa: FBT003 - `final`, which has no name in this interface
        if not self.is_long:
            self.discard()
            return Capped(clean("".join(self._head)))
        artifact = self.keep()
        gap = len(_gap(self.size, artifact, self.problem))
        head, tail = _split(max(self._context.output_max - gap, 0))
        shown_head = _to_line_end("".join(self._head)[:head])
        joined = "".join(self._tail)
        shown_tail = _to_line_start(joined[len(joined) - tail :])
        left_out = self.size - len(shown_head) - len(shown_tail)
        return Capped(clean(shown_head + _gap(left_out, artifact, self.problem) + shown_tail), artifact)
