"""Who does durable work otherwise: a raw SQLite loop, huey, dbos. Each is set up as its own documentation advises.

All of them write with `synchronous = FULL` and a write-ahead log where they use SQLite directly, as Laneway does.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

GROUP: Final = 100
"""How many jobs share a commit in the raw loop, and how many callers Laneway has."""
PATIENCE_S: Final = 120.0
POLLING_S: Final = 0.01

_TABLE: Final = "CREATE TABLE jobs (id TEXT PRIMARY KEY, state TEXT NOT NULL, body TEXT NOT NULL)"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(_TABLE)
    return connection


def raw_commits(path: Path, commits: int, size: int) -> list[float]:
    """Seconds of each of that many transactions with one row."""
    connection = _connect(path)
    body = "x" * size
    took: list[float] = []
    for number in range(commits):
        began = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO jobs VALUES (?, 'queued', ?)", (f"job-{number}", body))
        connection.execute("COMMIT")
        took.append(time.perf_counter() - began)
    connection.close()
    return took


def raw_jobs(path: Path, jobs: int) -> None:
    """That many jobs: queued, running, gone, in groups, one transaction for each write of a group."""
    connection = _connect(path)
    for start in range(0, jobs, GROUP):
        ids = [f"job-{number}" for number in range(start, min(start + GROUP, jobs))]
        rows = [(job_id, '{"handler":"noop","payload":{"number":1}}') for job_id in ids]
        keys = [(job_id,) for job_id in ids]
        for sql, values in (
            ("INSERT INTO jobs VALUES (?, 'queued', ?)", rows),
            ("UPDATE jobs SET state = 'running' WHERE id = ?", keys),
            ("DELETE FROM jobs WHERE id = ?", keys),
        ):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(sql, values)
            connection.execute("COMMIT")
    connection.close()


class Threaded(Protocol):
    """A queue with threads of its own."""

    def run(self, jobs: int) -> float:
        """Seconds from the first job to the last result."""

    def pickup(self) -> float:
        """Seconds from the call to the first line, when it has been idle."""

    def close(self) -> None:
        """Stop its threads."""


class _Counted:
    """Jobs that count themselves, and note when the last one began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._done = threading.Event()
        self.first_line = 0.0

    def expect(self, jobs: int) -> None:
        """So many are to come."""
        self._left = jobs
        self._done.clear()

    def ran(self) -> int:
        """One has run; what it returns is kept as its result."""
        self.first_line = time.perf_counter()
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self._done.set()
        return 1

    def wait(self) -> None:
        """Wait for the last."""
        assert self._done.wait(PATIENCE_S), f"{self._left} jobs did not run"


class HueyQueue:
    """huey with threads in this process."""

    def __init__(self, path: Path) -> None:
        from huey import SqliteHuey  # type: ignore[import-untyped]  # it has no types

        logging.getLogger("huey").setLevel(logging.ERROR)
        self._counted = _Counted()
        self._huey: Any = SqliteHuey("bench", filename=str(path))
        self._task: Any = self._huey.task()(self._counted.ran)
        self._consumer: Any = self._huey.create_consumer(workers=8, periodic=False)
        self._consumer._set_signal_handlers = lambda: None  # noqa: SLF001 - it runs beside others, not in the main thread
        self._consumer.start()

    def run(self, jobs: int) -> float:
        """Seconds from the first job to the last result."""
        kept = self._huey.result_count()
        self._counted.expect(jobs)
        began = time.perf_counter()
        for _ in range(jobs):
            self._task()
        self._counted.wait()
        _until(lambda: self._huey.result_count() >= kept + jobs)
        return time.perf_counter() - began

    def pickup(self) -> float:
        """Seconds from the call to the first line, when it has been idle."""
        self._counted.expect(1)
        began = time.perf_counter()
        self._task()
        self._counted.wait()
        return self._counted.first_line - began

    def close(self) -> None:
        """Stop its threads."""
        self._consumer.stop(graceful=True)
        self._huey.storage.close()


class Dbos:
    """dbos with its queue in this process."""

    def __init__(self, path: Path) -> None:
        from dbos import DBOS

        config: Any = {
            "name": "bench",
            "system_database_url": f"sqlite:///{path}",
            "log_level": "ERROR",
            "console_log_level": "ERROR",
        }
        self._counted = counted = _Counted()
        self._dbos: Any = DBOS
        DBOS(config=config)

        @DBOS.workflow()
        def noop() -> int:
            return counted.ran()

        self._workflow = noop
        DBOS.launch()
        self._queue: Any = DBOS.register_queue("bench", polling_interval_sec=POLLING_S)

    def run(self, jobs: int) -> float:
        """Seconds from the first job to the last result."""
        self._counted.expect(jobs)
        began = time.perf_counter()
        handles = [self._queue.enqueue(self._workflow) for _ in range(jobs)]
        self._counted.wait()
        assert handles[-1].get_result(polling_interval_sec=POLLING_S) == 1
        return time.perf_counter() - began

    def pickup(self) -> float:
        """Seconds from the call to the first line, when it has been idle."""
        self._counted.expect(1)
        began = time.perf_counter()
        self._queue.enqueue(self._workflow)
        self._counted.wait()
        return self._counted.first_line - began

    def close(self) -> None:
        """Stop its threads."""
        self._dbos.destroy()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + PATIENCE_S
    while not condition():
        assert time.perf_counter() < deadline
        time.sleep(0.001)
