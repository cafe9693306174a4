"""The event loop behind the synchronous agents: one thread of this process, from the first call to the last close.

An agent goes there through a `Portal` of its own. The first call through any portal starts the thread; when the last
open portal is closed the thread ends, and the next call starts another one. What nobody has closed is closed when the
interpreter exits. A child process begins with nothing: what its parent has opened is refused there.

A call starts on the loop and its caller waits for it. A caller that is interrupted (KeyboardInterrupt) just stops
waiting: what it has asked for goes on. The portal owns every such task, and closing it leaves none.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, ParamSpec, TypeVar

from laneway.errors import ClosedError, UsageError
from laneway.sync.handover import HELD_MAX, Handover, result_of

__all__ = ("LoopThread", "Portal", "running")

LEFTOVERS_S: Final = 5.0
"""How long tasks that were cancelled may take to end."""
LAST_STEPS: Final = 20
"""How many steps of the loop a call has to end by itself when its agent is closed."""
EXIT_S: Final = 15.0
"""How long the end of the interpreter waits for the agents that nobody has closed."""

P = ParamSpec("P")
T = TypeVar("T")
Q = TypeVar("Q")

_log = logging.getLogger("laneway")
_lock = threading.RLock()  # a finalizer may run in the middle of anything, and may close an agent
_thread: LoopThread | None = None
_exit_is_known = False


class LoopThread(threading.Thread):
    """A thread with an event loop. It is a daemon: a program that ends in a hurry is not held up by it."""

    def __init__(self) -> None:
        super().__init__(name="laneway-sync", daemon=True)
        self.loop = asyncio.new_event_loop()
        self.portals: set[Portal] = set()
        self._is_stopping = False

    def run(self) -> None:
        """Serve until `stop`; then end every task that is left."""
        try:
            while not self._is_stopping:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    # A tool has raised it. Whoever waits for that tool gets it; the loop is not his to end.
                    _log.warning("%s reached the event loop of the synchronous agents", type(error).__name__)
        finally:
            try:
                self._wind_down()  # whatever has ended the loop: nobody shall wait for a task that will never end
            finally:
                self.loop.close()

    def stop(self, patience_s: float) -> None:
        """End it and wait for that, for so long."""
        self._is_stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(patience_s)
        if self.is_alive():
            _log.error("the event loop of the synchronous agents did not end within %s s", patience_s)

    def _wind_down(self) -> None:
        loop = self.loop
        loop.run_until_complete(_end_tasks(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
        try:
            loop.run_until_complete(loop.shutdown_default_executor())
        except RuntimeError as error:  # no thread can be started for it once the interpreter exits
            _log.debug("threads of the event loop were not waited for: %s", error)


class Portal:
    """The way of one agent onto the background loop; `close_owner` runs there when it is closed."""

    def __init__(self, close_owner: Callable[[], Awaitable[object]], *, what: str = "agent") -> None:
        self._close_owner = close_owner
        self._what = what
        self._thread: LoopThread | None = None
        self._pid = os.getpid()
        self._is_closed = False
        self._closing: Future[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop's
        self._handovers: set[Handover[Any]] = set()  # the loop's

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return self._is_closed

    # ---- calls ----

    def wait(self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function on the loop and wait for what it gives. `name` is what the caller has called."""
        return result_of(self._ask(name, self._begin, functools.partial(fn, *args, **kwargs)))

    def call(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a plain function on the loop, between two steps of its tasks, and wait for what it gives."""
        return result_of(self._ask(name, _run, functools.partial(fn, *args, **kwargs)))

    def follow(self, source: AsyncIterator[T], leave: Callable[[], object], *, held_max: int = HELD_MAX) -> Handover[T]:
        """Bring what `source` gives to other threads; `leave` is called when that ends. To be called on the loop."""
        handover: Handover[T] = Handover(asyncio.get_running_loop(), held_max=held_max)
        self._handovers.add(handover)
        if self._is_closed:
            handover.widen()
        future: Future[None] = Future()
        task = self._own(_pump(source, handover), future)
        handover.on_leave(task.cancel)

        def ended(done: Future[None]) -> None:
            self._handovers.discard(handover)
            handover.end(done.exception())
            leave()

        future.add_done_callback(ended)
        return handover

    def check(self, name: str) -> None:
        """Refuse a call that could only wait for ever."""
        if isinstance(threading.current_thread(), LoopThread):
            raise UsageError(
                f"{name} was called on the event loop of the synchronous agents, which would wait for itself",
                hint="make the tool a plain def (it gets a thread), or use AsyncAgent and AsyncSession in async code",
            )
        if self._pid != os.getpid() and self._thread is not None:
            raise UsageError(
                f"{name}: this {self._what} was opened before the process was forked",
                hint=f"make a new {self._what.capitalize()} in the child process",
            )

    def _ask(self, name: str, begin: Callable[[Callable[[], Q], Future[T]], None], work: Callable[[], Q]) -> Future[T]:
        """Have `begin` called on the loop; what it promises. Whoever waits keeps no other hold of that promise."""
        self.check(name)
        future: Future[T] = Future()
        with _lock:
            if self._is_closed:
                raise ClosedError(opened=True, what=self._what)
            if self._thread is None:
                self._thread, self._pid = _enter(self), os.getpid()
            self._thread.loop.call_soon_threadsafe(begin, work, future)  # carries the context of the caller
        return future

    def _begin(self, work: Callable[[], Awaitable[T]], future: Future[T]) -> None:
        self._own(_await(work), future)

    def _own(self, work: Coroutine[Any, Any, T], future: Future[T]) -> asyncio.Task[T]:
        """Start a task that is this portal's; its end goes to `future`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._settle, future))
        return task

    def _settle(self, future: Future[T], task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            closed = self._is_closed
            future.set_exception(ClosedError(opened=True, what=self._what) if closed else asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    # ---- closing ----

    def close(self) -> None:
        """Close the owner, end every task of this portal, and the thread if it was the last portal. Any thread.

        Interrupted, it goes on in the background; a second call waits for the same end.
        """
        if self._pid != os.getpid() and self._thread is not None:
            return  # it is the parent's, and lives on there
        self.check("close")
        closing = self.begin_close()
        if closing is None:
            return
        try:
            result_of(closing)
        finally:
            if closing.done():
                _leave(self)

    def begin_close(self) -> Future[None] | None:
        """Refuse calls from now on and start to close; what is done when it is. None: it was never used."""
        with _lock:
            self._is_closed = True
            thread = self._thread
            if thread is None:
                return None
            if self._closing is None:
                closing: Future[None] = Future()
                self._closing = closing
                if thread.loop.is_closed():
                    closing.set_result(None)
                else:
                    thread.loop.call_soon_threadsafe(self._start_close, thread.loop, closing)
            return self._closing

    def _start_close(self, loop: asyncio.AbstractEventLoop, closing: Future[None]) -> None:
        task = loop.create_task(self._close())
        task.add_done_callback(functools.partial(self._settle, closing))

    async def _close(self) -> None:
        for handover in self._handovers:
            handover.widen()
        try:
            await self._close_owner()
        finally:
            for _ in range(LAST_STEPS):  # whoever waited for the owner hears how that ended, not that we have left
                if self._tasks:
                    await asyncio.sleep(0)
            await _end_tasks(self._tasks)


def running() -> LoopThread | None:
    """The background thread of this process, if there is one now."""
    return _thread


def _enter(portal: Portal) -> LoopThread:
    """The thread for one more portal. With the lock."""
    global _thread, _exit_is_known
    if _thread is None or not _thread.is_alive():
        thread = LoopThread()
        try:
            thread.start()
        except RuntimeError:  # no thread to be had: the interpreter exits
            thread.loop.close()
            raise
        _thread = thread
        if not _exit_is_known:
            # Finalizers (of temporary folders, for one) run at exit in one go, at the place where the first of them was
            # made. What is registered later runs earlier: an agent is closed before its things are taken away.
            weakref.finalize(thread, _nothing)
            atexit.register(_exit)
            _exit_is_known = True
    _thread.portals.add(portal)
    return _thread


def _leave(portal: Portal) -> None:
    """A portal is closed: the last one ends the thread."""
    global _thread
    with _lock:
        thread = portal._thread  # noqa: SLF001 - the two halves of one mechanism
        if thread is None or portal not in thread.portals:
            return
        thread.portals.discard(portal)
        if thread.portals:
            return
        if _thread is thread:
            _thread = None
    # Without the lock: a tool's thread that is waited for may be about to open an agent of its own.
    thread.stop(LEFTOVERS_S)


def _exit() -> None:
    """The interpreter exits: close what nobody has closed."""
    with _lock:
        thread = _thread
        portals = list(thread.portals) if thread is not None else []
    if thread is None:
        return
    closings = [closing for portal in portals if (closing := portal.begin_close()) is not None]
    closed, late = concurrent.futures.wait(closings, timeout=EXIT_S)
    for closing in closed:
        if (error := closing.exception()) is not None:  # nobody is left to be told
            _log.warning("an agent could not be closed before the interpreter exits: %r", error)
    if late:
        _log.warning("%d agents did not close within %s s before the interpreter exits", len(late), EXIT_S)
    for portal in portals:
        _leave(portal)


def _nothing() -> None: ...


def _forget() -> None:
    """A forked child has a copy of everything but the thread. The loop is left as it is: its sockets are shared."""
    global _thread, _lock
    _lock = threading.RLock()
    _thread = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _run(work: Callable[[], T], future: Future[T]) -> None:
    try:
        value = work()
    except BaseException as error:  # noqa: BLE001 - it belongs to the caller, whatever it is
        future.set_exception(error)
    else:
        future.set_result(value)


async def _await(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


async def _pump(source: AsyncIterator[T], handover: Handover[T]) -> None:
    async for value in source:
        await handover.put(value)


async def _end_tasks(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their ends, but not for ever."""
    mine = asyncio.current_task()
    left = {task for task in tasks if task is not mine}
    for task in left:
        task.cancel()
    if not left:
        return
    _, stubborn = await asyncio.wait(left, timeout=LEFTOVERS_S)
    for task in stubborn:
        _log.error("%r did not end within %s s after it was cancelled", task, LEFTOVERS_S)
