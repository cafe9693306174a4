"""What a person sees of a worker: a line when it is ready, bars of what runs on a terminal, lines of log elsewhere."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from laneway.cli.tables import clean, errors, line, print_json
from laneway.external import ExternalTask
from laneway.worker import WorkerNews

__all__ = ("WorkerScreen",)

_log = logging.getLogger("laneway")

SHOWN: Final = 20
TEXT: Final = 60
ID: Final = 13


class _Above(io.TextIOBase):
    """Lines of log, above the bars."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        """Print it; each line ends with a line break of its own."""
        if text.strip():
            self._console.print(Text(clean(text.rstrip("\n"))), soft_wrap=True)
        return len(text)


class WorkerScreen:
    """Listens to a worker and shows what it hears."""

    def __init__(self, name: str, url: str, *, as_json: bool = False, has_bars: bool | None = None) -> None:
        self._name = name
        self._url = url
        self._as_json = as_json
        self._console = errors()
        self._has_bars = self._console.is_terminal if has_bars is None else has_bars
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=False,  # it may be a file
        )
        self._shown: dict[str, TaskID] = {}

    @property
    def log_stream(self) -> io.TextIOBase | None:
        """Where lines of log go; None: to standard error as they are."""
        return _Above(self._console) if self._has_bars else None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show bars meanwhile, if there is a terminal."""
        if not self._has_bars:
            yield
            return
        with self.bars:
            yield

    def hear(self, news: WorkerNews) -> None:
        """Something has happened in the worker."""
        match news.kind:
            case "ready":
                self._say_ready()
            case "began" if news.task is not None:
                self._begin(news.task)
            case "progress" if news.task is not None:
                self._move(news)
            case "ended" if news.task is not None:
                shown = self._shown.pop(news.task.task_id, None)
                if shown is not None:
                    self.bars.remove_task(shown)

    def _say_ready(self) -> None:
        if self._as_json:
            print_json({"worker": self._name, "url": self._url, "ready": True}, indent=None)
            return
        sys.stdout.write(f"Worker {clean(self._name)} takes tasks of {clean(self._url)}\n")
        sys.stdout.flush()

    def _begin(self, task: ExternalTask) -> None:
        if self._has_bars and len(self._shown) < SHOWN:
            what = line(f"{task.command_type} {task.task_id[:ID]}", TEXT)
            self._shown[task.task_id] = self.bars.add_task(what, total=None, said="")

    def _move(self, news: WorkerNews) -> None:
        assert news.task is not None
        assert news.progress is not None
        said, percent = line(news.progress.text, TEXT), news.progress.percent
        if not self._has_bars:
            share = "" if percent is None else f"{percent:.0f} % "
            _log.debug("task %s: %s%s", news.task.task_id, share, said)
        elif (shown := self._shown.get(news.task.task_id)) is not None:
            if percent is None:
                self.bars.update(shown, said=said)
            else:
                self.bars.update(shown, said=said, total=100.0, completed=float(percent))
