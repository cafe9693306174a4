"""The threads of an SQLite store and how loops talk to them: a question goes into a queue, the answer comes back.

A thread serves any number of event loops. It never waits for one, and a loop that has been closed meanwhile does it no
harm. Threads sleep until they are asked. They are daemons: a program that ends without closing its store is not held
up, and what it cuts off is a transaction that nobody was told of, which SQLite rolls back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from laneway.errors import LanewayError, StoreUnavailableError

__all__ = ("Answers", "Gate", "Question", "Reader", "start_thread", "wrapped")

_log = logging.getLogger("laneway")

T = TypeVar("T")


class Question(NamedTuple):
    """Something a loop wants to know, and where the answer goes."""

    content: Any
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Answers:
    """Answers on their way back: one call for each loop, however many answers it gets."""

    __slots__ = ("_by_loop",)

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any, Exception | None]]] = {}

    def add(self, question: Question, value: object, error: Exception | None = None) -> None:
        """Note an answer."""
        self._by_loop.setdefault(question.loop, []).append((question.future, value, error))

    def send(self) -> None:
        """Bring them to their loops."""
        by_loop, self._by_loop = self._by_loop, {}
        for loop, answers in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_deliver, answers)


def _deliver(answers: list[tuple[asyncio.Future[Any], Any, Exception | None]]) -> None:
    for future, value, error in answers:
        if future.done():
            continue  # whoever asked has gone
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def start_thread(run: Callable[[], None], *, name: str) -> threading.Thread:
    """A thread that belongs to a store."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def wrapped(error: Exception, path: str) -> LanewayError:
    """An error of a thread as callers get it; what nobody has thought of is logged."""
    if isinstance(error, LanewayError):
        return error
    _log.error("the store %s failed in a way of its own", path, exc_info=error)
    return StoreUnavailableError(
        f"the store {path} failed: {type(error).__name__}: {error}", path=path, reason=type(error).__name__
    )


class Gate:
    """A moment that loops wait for and a thread brings about, once, well or badly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[Question] = []
        self._is_open = False
        self._error: Exception | None = None

    async def wait(self) -> None:
        """Wait for it; raises what went wrong."""
        loop = asyncio.get_running_loop()
        with self._lock:
            waiter = None if self._is_open else Question(None, loop, loop.create_future())
            if waiter is not None:
                self._waiters.append(waiter)
        if waiter is not None:
            await waiter.future
        if self._error is not None:
            raise self._error

    def open(self, error: Exception | None = None) -> None:
        """It has come; only the first call counts."""
        with self._lock:
            if self._is_open:
                return
            self._is_open, self._error = True, error
            waiters, self._waiters = self._waiters, []
        answers = Answers()
        for waiter in waiters:
            answers.add(waiter, None)
        answers.send()


class Reader(Generic[T]):
    """A thread with something of its own (a connection) that answers questions in order. It starts when first asked."""

    def __init__(self, name: str, path: str, make: Callable[[], T], discard: Callable[[T], None]) -> None:
        self._name = name
        self._path = path
        self._make = make
        self._discard = discard
        self._queue: SimpleQueue[Question | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def ask(self, work: Callable[[T], Any]) -> Any:
        """Have a function called with the thread's own thing; its value."""
        loop = asyncio.get_running_loop()
        question = Question(work, loop, loop.create_future())
        with self._lock:
            if self._closed:
                raise StoreUnavailableError(
                    f"the store {self._path} is closed", hint="open() it again", path=self._path
                )
            if self._thread is None:
                self._thread = start_thread(self._run, name=self._name)
            self._queue.put(question)
        return await question.future

    def close(self) -> None:
        """End after what was asked before; waits for it, so never call it on a loop."""
        with self._lock:
            self._closed = True
            thread = self._thread
            if thread is not None:
                self._queue.put(None)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        own: T | None = None
        answers = Answers()
        while (question := self._queue.get()) is not None:
            try:
                if own is None:
                    own = self._make()
                answers.add(question, question.content(own))
            except Exception as error:  # noqa: BLE001 - whoever asked gets it; the thread goes on
                answers.add(question, None, wrapped(error, self._path))
                if own is not None:
                    self._discard(own)  # nobody knows what state it is in: the next question gets a new one
                    own = None
            answers.send()
        if own is not None:
            self._discard(own)
