"""The open file behind the SQLite stores of a process: its writer thread, and the table of files that are open.

The writer takes everything that waits in its queue and makes it one transaction, so a hundred callers share one wait
for the disk. Questions (`find`) run on the same thread: they see every commit that was asked for before them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from laneway.errors import StoreUnavailableError
from laneway.rows import Batch, BatchResult, Lookup, MessageRow, Owner
from laneway.stores.locks import FileLock
from laneway.stores.sqlite_erasing import erase_slice
from laneway.stores.sqlite_file import (
    LOG_PAGES,
    LOG_PAGES_BUSY,
    SEQ_BLOCK,
    check_place,
    claim,
    connect,
    get_meta,
    prepare,
    refused,
    set_log_pages,
    set_meta,
    tune,
)
from laneway.stores.sqlite_threads import Answers, Gate, Question, Reader, start_thread, wrapped
from laneway.stores.sqlite_writes import Sequencer, roll_back, write_group
from laneway.stores.statements import statement

__all__ = ("FILES", "OpenFile")

GROUP_MAX: Final = 10_000
"""How many calls share a transaction at most."""

BUSY_ROWS: Final = 32
"""With so many rows in a commit the store is busy: what matters then is how much is written, not how soon."""


class _Commit(NamedTuple):
    batches: Sequence[Batch]


class _Find(NamedTuple):
    lookups: Sequence[Lookup]


class _Erase(NamedTuple):
    owner: Owner
    until_seq: int | None
    limit: int


class OpenFile:
    """One file, shared by every store of this process that has its path; its own thread is the writer."""

    def __init__(self, path: str, *, busy_ms: int, previous: OpenFile | None) -> None:
        self.path = path
        self.busy_ms = busy_ms
        self.users = 0
        self.is_closing = False
        self.is_foreign = False
        self.epoch = 0
        self.sequencer = Sequencer(0, noted=0)
        self.opened = Gate()
        self.closed = Gate()
        self.lock = FileLock(path)
        self.loads = self._reader("load")
        self.queries = self._reader("history")
        self._previous = previous
        self._identity: tuple[int, int] | None = None
        self._log_pages = LOG_PAGES
        self._queue: SimpleQueue[Question | None] = SimpleQueue()
        self.thread = start_thread(self._run, name=f"laneway-store-write-{path}")

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Have batches written; a result for each."""
        results: list[BatchResult] = await self._ask(_Commit(batches))
        return results

    async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
        """For each, the newest message that fits."""
        found: list[MessageRow | None] = await self._ask(_Find(lookups))
        return found

    async def erase(self, owner: Owner, until_seq: int | None, limit: int) -> int:
        """Have a slice of the rows of a session taken away; how many went."""
        gone: int = await self._ask(_Erase(owner, until_seq, limit))
        return gone

    def stop(self) -> None:
        """End after what was asked before."""
        self._queue.put(None)

    async def _ask(self, content: _Commit | _Find | _Erase) -> Any:
        loop = asyncio.get_running_loop()
        question = Question(content, loop, loop.create_future())
        self._queue.put(question)
        return await question.future

    def _reader(self, what: str) -> Reader[sqlite3.Connection]:
        return Reader(f"laneway-store-{what}-{self.path}", self.path, self._connect_to_read, sqlite3.Connection.close)

    def _connect_to_read(self) -> sqlite3.Connection:
        connection = connect(self.path, busy_ms=self.busy_ms)
        connection.execute("PRAGMA query_only = ON")
        return connection

    # ---- on the writer's thread ----

    def _run(self) -> None:
        if self._previous is not None:
            self._previous.thread.join()  # it still has the lock
            self._previous = None
        try:
            connection = self._open()
        except Exception as error:  # noqa: BLE001 - whoever opens it gets the error
            FILES.remove(self)
            self.opened.open(wrapped(error, self.path))
            self.closed.open()
            return
        self.opened.open()
        try:
            connection = self._serve(connection)
        finally:
            self._turn_away()
            self.loads.close()
            self.queries.close()
            with contextlib.suppress(sqlite3.Error):
                self._note_seq(connection)
            with contextlib.suppress(sqlite3.Error):
                connection.close()
            self.lock.release()
            FILES.remove(self)
            self.closed.open()

    def _open(self) -> sqlite3.Connection:
        check_place(self.path)
        self.lock.acquire()
        connection: sqlite3.Connection | None = None
        try:
            connection = connect(self.path, busy_ms=self.busy_ms, create=True)
            prepare(connection, self.path)
            self._identity = _identity(self.path)
            self.epoch, last = claim(connection)
            self.sequencer = Sequencer(last, noted=last + SEQ_BLOCK)
            return connection
        except BaseException as error:
            if connection is not None:
                roll_back(connection)
                connection.close()
            self.lock.release()
            if isinstance(error, sqlite3.Error | OSError):
                raise refused(error, self.path, "be opened") from error
            raise

    def _serve(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Answer until the end; the connection it ended with."""
        answers = Answers()
        is_last = False
        while not is_last and (first := self._queue.get()) is not None:
            questions, is_last = self._all_that_wait(first)
            last = questions.pop() if isinstance(questions[-1].content, _Erase) else None
            commits = [each for each in questions if isinstance(each.content, _Commit)]
            # What was asked before the first commit need not wait for it; everything else sees all commits.
            early = 0
            while early < len(questions) and isinstance(questions[early].content, _Find):
                early += 1
            for question in questions[:early]:
                self._find(connection, question, answers)
            if commits:
                connection = self._commit(connection, commits, answers)
            for question in questions[early:]:
                if isinstance(question.content, _Find):
                    self._find(connection, question, answers)
            if last is not None:
                connection = self._erase(connection, last, answers)
            answers.send()
        return connection

    def _turn_away(self) -> None:
        """Nobody shall wait for ever, should something still be in the queue."""
        answers = Answers()
        with contextlib.suppress(Empty):
            while True:
                question = self._queue.get_nowait()
                if question is not None:
                    answers.add(
                        question, None, StoreUnavailableError(f"the store {self.path} is closed", path=self.path)
                    )
        answers.send()

    def _all_that_wait(self, first: Question) -> tuple[list[Question], bool]:
        """What is in the queue, up to something that is to be erased: that comes after what came before it."""
        questions = [first]
        while len(questions) < GROUP_MAX and not isinstance(questions[-1].content, _Erase):
            if self._queue.empty():  # nobody else takes from it
                break
            question = self._queue.get_nowait()
            if question is None:
                return questions, True
            questions.append(question)
        return questions, False

    def _commit(
        self, connection: sqlite3.Connection, questions: list[Question], answers: Answers
    ) -> sqlite3.Connection:
        batches = [batch for question in questions for batch in question.content.batches]
        try:
            self._check_identity()
            self._set_pace(connection, batches)
            results = write_group(connection, self.path, batches, epoch=self.epoch, sequencer=self.sequencer)
        except Exception as error:  # noqa: BLE001 - the thread lives on, and nobody waits for ever
            roll_back(connection)
            results = [BatchResult(wrapped(error, self.path))] * len(batches)
        start = 0
        for question in questions:
            end = start + len(question.content.batches)
            answers.add(question, results[start:end])
            start = end
        if connection.in_transaction:  # it could not even be rolled back
            connection = self._connect_again(connection)
        return connection

    def _set_pace(self, connection: sqlite3.Connection, batches: Sequence[Batch]) -> None:
        rows = sum(len(batch.rows) for batch in batches)
        pages = LOG_PAGES_BUSY if rows >= BUSY_ROWS else LOG_PAGES
        if pages != self._log_pages:
            set_log_pages(connection, pages)
            self._log_pages = pages

    def _erase(self, connection: sqlite3.Connection, question: Question, answers: Answers) -> sqlite3.Connection:
        try:
            self._check_identity()
            answers.add(question, erase_slice(connection, *question.content, epoch=self.epoch))
        except sqlite3.Error as error:
            roll_back(connection)
            answers.add(question, None, refused(error, self.path, "write"))
        except Exception as error:  # noqa: BLE001 - the thread lives on, and nobody waits for ever
            roll_back(connection)
            answers.add(question, None, wrapped(error, self.path))
        return self._connect_again(connection) if connection.in_transaction else connection

    def _check_identity(self) -> None:
        """SQLite would go on writing to a file that has no name any more, and all of it would be lost."""
        if _identity(self.path) != self._identity:
            raise StoreUnavailableError(
                f"the store {self.path} was moved, replaced or deleted while it was open",
                hint="put the file back, or close the store and open it again",
                path=self.path,
            )

    def _connect_again(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        try:
            fresh = connect(self.path, busy_ms=self.busy_ms)
        except sqlite3.Error:
            return connection
        tune(fresh)
        self._log_pages = LOG_PAGES
        connection.close()
        return fresh

    def _find(self, connection: sqlite3.Connection, question: Question, answers: Answers) -> None:
        try:
            answers.add(question, [_find_one(connection, lookup) for lookup in question.content.lookups])
        except sqlite3.Error as error:
            answers.add(question, None, refused(error, self.path, "be read"))
        except Exception as error:  # noqa: BLE001 - a lookup that is none fails only itself
            answers.add(question, None, wrapped(error, self.path))

    def _note_seq(self, connection: sqlite3.Connection) -> None:
        """Leave no gap behind: the next owner goes on where this one ended."""
        connection.execute("BEGIN IMMEDIATE")
        if get_meta(connection, "epoch") == self.epoch:
            set_meta(connection, "seq", self.sequencer.last)
        connection.execute("COMMIT")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _find_one(connection: sqlite3.Connection, lookup: Lookup) -> MessageRow | None:
    tenant, workspace, session = lookup.owner
    facts = {
        "tenant": tenant,
        "workspace": workspace,
        "session": session,
        "route": lookup.route,
        "platform_id": lookup.platform_id,
        "since_ms": lookup.since_ms,
    }
    row = connection.execute(statement("find_message"), facts).fetchone()
    return None if row is None else MessageRow._make(row)


class _Files:
    """The files that are open in this process, by path."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._by_path: dict[str, OpenFile] = {}
        self._foreign: list[OpenFile] = []
        self._watches_forks = False

    def join(self, path: str, *, busy_ms: int) -> OpenFile:
        """One more user of a file; it is opened if it is not open. Wait for `opened` before using it."""
        with self.lock:
            if not self._watches_forks and hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._after_fork)
                self._watches_forks = True
            file = self._by_path.get(path)
            if file is None or file.is_closing:
                self._by_path[path] = file = OpenFile(path, busy_ms=busy_ms, previous=file)
            file.users += 1
            return file

    def leave(self, file: OpenFile) -> bool:
        """One user less; whether it was the last, so that the file is being closed."""
        with self.lock:
            file.users -= 1
            if file.users or file.is_foreign:
                return False
            file.is_closing = True
            file.stop()
            return True

    def remove(self, file: OpenFile) -> None:
        """It is closed."""
        with self.lock:
            if self._by_path.get(file.path) is file:
                del self._by_path[file.path]

    def _after_fork(self) -> None:
        """A child has no writer thread, and must not hold the lock of its parent."""
        self.lock = threading.Lock()
        for file in self._by_path.values():
            file.is_foreign = True
            file.lock.forget()
            self._foreign.append(file)  # kept: a connection that is closed here could harm the parent's
        self._by_path = {}


FILES: Final = _Files()
