"""Histories of runs as files: read and written, made again, compared.

```python
from laneway import replay

history = replay.load("run.jsonl")      # written by `laneway run export`, or by `replay.save`
again = replay.run(history)             # without a model, without a tool, on any machine
assert replay.dump(again.history) == replay.dump(history)
print(replay.diff(history, replay.load("other.jsonl")))
```

A history comes from `session.run_history(run_id)`. `session.replay(history)` makes it again with the tools and prompts
of a session, and `session.fork(history, step)` goes on live from one of its steps.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from laneway.errors import HistoryError, text_of
from laneway.kernel.histories import RunHistory, read_history, write_history
from laneway.kernel.replaying import Code, Difference, Replay, diff, play

__all__ = ("Code", "Difference", "Replay", "RunHistory", "diff", "dump", "load", "loads", "run", "save")

FILE_MAX: Final = 1 << 30
"""A file that is larger is no history that anybody would wait for."""


def loads(text: str, *, name: str = "the history") -> RunHistory:
    """The history in a text; `HistoryError` says what is wrong with it, and in which line."""
    return read_history(text, name=name)


def load(path: str | os.PathLike[str]) -> RunHistory:
    """The history in a file. Raises `HistoryError` for a file that is foreign, newer, damaged or cut off."""
    name = os.fspath(path)
    try:
        if os.path.getsize(name) > FILE_MAX:
            raise HistoryError(f"{name} is too large for a history", hint="is it the right file?", problem="foreign")
        text = Path(name).read_bytes().decode()
    except OSError as error:
        raise HistoryError(
            f"{name} cannot be read: {error.strerror or text_of(error)}", hint="look at the path", problem="unreadable"
        ) from error
    except UnicodeDecodeError as error:
        raise HistoryError(
            f"{name} is no history of a run: it is no text", hint="is it the right file?", problem="foreign", line=0
        ) from error
    return read_history(text, name=name)


def dump(history: RunHistory) -> str:
    """A history as the text of its file."""
    return write_history(history)


def save(history: RunHistory, path: str | os.PathLike[str]) -> None:
    """Write a history into a file, whole or not at all."""
    place = Path(path)
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(write_history(history).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def run(history: RunHistory, code: Code | None = None, *, upto: int | None = None) -> Replay:
    """Make a run again; no model and no tool is called. With `upto` only what is before that step.

    Raises `ReplayDivergedError` at the first step that goes another way than it is written.
    """
    return play(history, code, upto=upto)
