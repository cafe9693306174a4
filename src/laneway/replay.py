"""Histories of runs as files: read and written, made again, compared.

```python
from laneway import replay

history = replay.load("run.jsonl")      # written by `laneway run export`, or by `replay.save`
again = replay.run(history)             # without a model, without a tool, on any machine; a path does as well
assert replay.dump(again.history) == replay.dump(history)
print(replay.diff(history, replay.load("other.jsonl")))
```

A history comes from `session.run_history(run_id)`. `session.replay(history)` makes it again with the tools and prompts
of a session, and `session.fork(history, step)` goes on live from one of its steps.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, TypeAlias

from laneway.errors import HistoryError, UsageError, text_of
from laneway.kernel.histories import RunHistory, read_history, write_history
from laneway.kernel.replaying import Code, Difference, Replay, play
from laneway.kernel.replaying import diff as parting
from laneway.runtime.whole_files import whole_file

__all__ = ("Code", "Difference", "Replay", "RunHistory", "diff", "dump", "load", "loads", "run", "save")

Source: TypeAlias = RunHistory | str | os.PathLike[str]

FILE_MAX: Final = 1 << 30
"""A file that is larger is no history that anybody would wait for."""


def loads(text: str, *, name: str = "the history") -> RunHistory:
    """The history in a text; `HistoryError` says what is wrong with it, and in which line."""
    return read_history(text, name=name)


def load(path: str | os.PathLike[str]) -> RunHistory:
    """The history in a file. Raises `HistoryError` for a file that is foreign, newer, damaged or cut off."""
    name = os.fspath(path)
    try:
        kind = os.stat(name)
        if not stat.S_ISREG(kind.st_mode):  # a pipe would be waited for, and a device has no end
            raise HistoryError(f"{name} is no file", hint="look at the path", problem="unreadable")
        if kind.st_size > FILE_MAX:
            raise HistoryError(f"{name} is too large for a history", hint="is it the right file?", problem="foreign")
        text = Path(name).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise HistoryError(
            f"{name} is no history of a run: it is no text", hint="is it the right file?", problem="foreign", line=0
        ) from error
    except (OSError, ValueError) as error:  # the second: no file can have such a name
        why = getattr(error, "strerror", None) or text_of(error)
        raise HistoryError(
            f"{name!r:.200} cannot be read: {why}", hint="look at the path", problem="unreadable"
        ) from error
    return read_history(text, name=name)


def dump(history: RunHistory) -> str:
    """A history as the text of its file."""
    return write_history(history)


def save(history: RunHistory, path: str | os.PathLike[str]) -> None:
    """Write a history into a file, whole or not at all."""
    with whole_file(path) as file:
        file.write(write_history(history).encode())


def diff(one: Source, other: Source) -> Difference | None:
    """Where two histories, or the files of them, part; None if they do not.

    Times, ids and what watchers were told do not count. A run and the first run of its fork are compared from the step
    of the fork on.
    """
    return parting(_history(one), _history(other))


def run(history: Source, code: Code | None = None, *, upto: int | None = None) -> Replay:
    """Make a run again, of a history or of the file of one; no model and no tool is called.

    With `upto` only what is before that step. Raises `ReplayDivergedError` at the first step that goes another way than
    it is written.
    """
    return play(_history(history), code, upto=upto)


def _history(source: Source) -> RunHistory:
    if isinstance(source, RunHistory):
        return source
    if isinstance(source, str | os.PathLike):
        return load(source)
    raise UsageError(
        f"{source!r:.100} is neither the history of a run nor the path of one",
        hint="session.run_history(run_id) gives a history, replay.loads(text) makes one of its text",
    )
