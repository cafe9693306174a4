"""A deterministic asyncio event loop in virtual time: one seed, one schedule.

A failure that a simulated run finds is worth something only if the same seed finds it again. So this loop has no clock,
no threads and no I/O: time is a number that jumps to the next timer when nothing is ready, and every choice that a real
loop leaves to the machine is drawn from `random.Random(seed)`.

What is shuffled. A total shuffle of the ready callbacks would be unsound, for asyncio leans on two orders: `TaskGroup`
adds its done-callback to a child first and counts on running before whoever awaits that child (else it reports the
child's error twice), and protocols count on `call_soon` being first in, first out, as its documentation promises. So
ready callbacks stand in strands: a strand is first in, first out, and each step takes the head of a strand chosen by
the seed. The done-callbacks of one future (among them the wake-ups of tasks that await it) are one strand; all plain
`call_soon` callbacks together are one strand; every other step of a task (its start, `sleep(0)`) and every due timer is
a strand of its own. `shuffle=False` makes one strand of everything.

What else is fixed. `TaskGroup`, `wait` and `as_completed` iterate over sets of tasks, whose order comes from memory
addresses: tasks and futures of this loop therefore hash by a number. Cyclic garbage is collected at fixed steps only,
since finalisers can schedule callbacks.

Limits. Time stands still while anything is ready: polling with `sleep(0)` until a timer fires is a livelock here. Two
timers at the same instant have no order even if one caller made both: a simulated stream must keep its own queue. Do
not iterate over sets of what the loop did not make (bare futures, coroutines, tasks of a factory): address order.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import sys
from asyncio import AbstractEventLoop, Future, Handle, Task, TimerHandle
from asyncio.events import _get_running_loop, _set_running_loop  # a loop has no public way to say that it runs
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from contextvars import Context, copy_context
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

__all__ = ("SimDeadlockError", "SimLoop", "SimStalledError", "SimUnhandledError", "run_sim")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Call: TypeAlias = Callable[[*Ts], object]
ErrorHandler: TypeAlias = Callable[[AbstractEventLoop, dict[str, Any]], object]

EXECUTOR_SECONDS = 0.005  # the longest virtual time until a call given to run_in_executor is done
GARBAGE_STEPS = 50_000  # steps between two collections: rare enough to be cheap, and the same in every run
CLEANUP_STEPS = 100_000  # what leftover tasks may use to end after their cancellation
PLAIN = "plain"  # the key of the strand of plain callbacks


class SimDeadlockError(RuntimeError):
    """Nothing is ready, no timer is set and the run is not over: it would hang for ever."""


class SimStalledError(RuntimeError):
    """The run used up its steps: most likely tasks that wake each other without end."""


class SimUnhandledError(AssertionError):
    """The run ended well, but exceptions reached the loop's exception handler instead of any caller."""


class _Numbered:
    """Hashes by a number, so that the place in a set does not depend on the address."""

    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        self._number = number  # before the task's own __init__, which puts it into a set of asyncio
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class _Future(_Numbered, Future[Any]): ...


class _Task(_Numbered, Task[Any]): ...


def _where(task: Task[Any]) -> str:
    """Say where a suspended task waits, outermost frame first (`get_stack` gives the outermost frame only)."""
    places: list[str] = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
        awaited = awaited.cr_await
    return " > ".join(places) or "an unknown place"


class SimLoop(AbstractEventLoop):
    """An event loop whose whole schedule follows from `seed`; the module docstring says what it shuffles.

    `steps` counts the callbacks run; going beyond `max_steps` raises `SimStalledError`. `exceptions` holds every
    context given to the exception handler, also when a handler of the application takes it, so that a test can assert
    that nothing was swallowed (and clear what it expected). What has no docstring here is as asyncio documents it.
    """

    makes_own_tasks = True  # its tasks are numbered, so that sets of them have an order

    def __init__(self, *, seed: int, shuffle: bool = True, max_steps: int | None = None) -> None:
        self.seed, self.max_steps = seed, max_steps
        self.steps = self._cancelled_timers = 0
        self.exceptions: list[dict[str, Any]] = []
        self._shuffle = shuffle
        self._rng = random.Random(seed)
        self._now = 0.0  # an exact float, so that a timer fires at the very number it was set to
        self._arrivals = count(1)
        self._keys: list[Hashable] = []  # of the strands that are not empty; the seed picks among them
        self._strands: dict[Hashable, deque[tuple[int, Handle]]] = {}
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._numbers = count(1)
        self._tasks: WeakValueDictionary[int, Task[Any]] = WeakValueDictionary()
        self._generators: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._stop_mark: int | None = None
        self._running = self._closed = self._debug = False
        self._task_factory: Callable[..., Any] | None = None
        self._exception_handler: ErrorHandler | None = None

    def run_forever(self) -> None:
        """Run callbacks until `stop`; raise `SimDeadlockError` when nothing can ever happen again."""
        self._check_closed()
        if self._running or _get_running_loop() is not None:
            raise RuntimeError("cannot run the event loop while a loop is running")
        hooks, collecting = sys.get_asyncgen_hooks(), gc.isenabled()
        self._running = True
        gc.disable()
        sys.set_asyncgen_hooks(lambda each: self._generators.setdefault(id(each), each), self._generator_dropped)
        _set_running_loop(self)
        try:
            while (handle := self._take()) is not None:
                self.steps += 1
                handle._run()  # noqa: SLF001 - the only way to run it in its context with asyncio's error handling
                if self.steps % GARBAGE_STEPS == 0:
                    gc.collect()
        finally:
            _set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
            self._running = False
            self._stop_mark = None

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        awaitable: Any = future
        waited: Future[T] = asyncio.ensure_future(awaitable, loop=self)
        waited.add_done_callback(self.stop)
        try:
            self.run_forever()
        finally:
            waited.remove_done_callback(self.stop)
        return waited.result()

    def stop(self, _done: object = None) -> None:
        """Stop after the callbacks that are ready by now, as asyncio does."""
        self._stop_mark = next(self._arrivals)

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._running:
            raise RuntimeError("cannot close a running event loop")
        self._closed = True
        for forgotten in (self._keys, self._strands, self._timers):
            forgotten.clear()

    def _check_closed(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")

    def pending_tasks(self) -> list[Task[Any]]:
        """Return the unfinished tasks in order of creation (`asyncio.all_tasks` has no order)."""
        known = [task for task in self._tasks.values() if not task.done()]
        return known + sorted(asyncio.all_tasks(self).difference(known), key=lambda task: task.get_name())

    def pending_timers(self) -> int:
        """Return how many timers will still do something (one for a call to a thread that was cancelled will not)."""
        calls = ((timer.cancelled(), getattr(timer, "_args", None) or (None,)) for _, _, timer in self._timers)
        return sum(
            1 for cancelled, args in calls if not cancelled and not (asyncio.isfuture(args[0]) and args[0].done())
        )

    def cancel_leftovers(self) -> None:
        """Cancel unfinished tasks, close async generators, and record each task exception that nobody retrieved."""
        self.max_steps = self.steps + CLEANUP_STEPS
        self.stop()
        self.run_forever()  # what is ready by now, among it perhaps the stop of a run that an exception ended
        while pending := self.pending_tasks():
            for task in pending:
                task.cancel()
            self.run_until_complete(asyncio.wait(pending))
        self.run_until_complete(self.shutdown_asyncgens())
        for task in list(self._tasks.values()):
            if task.done() and task._log_traceback:  # noqa: SLF001 - asyncio tells only when the task is freed
                task._log_traceback = False  # noqa: SLF001 - told once
                message = f"exception of task {task.get_name()} was never retrieved"
                self.call_exception_handler({"message": message, "exception": task.exception(), "task": task})

    def _push(self, handle: Handle, key: Hashable) -> None:
        """Make a handle ready at the end of the strand of `key`, or in one of its own when that is None."""
        number = next(self._arrivals)
        key = (number if key is None else key) if self._shuffle else PLAIN
        if key not in self._strands:
            self._keys.append(key)
            self._strands[key] = deque()
        self._strands[key].append((number, handle))

    def _take(self) -> Handle | None:
        """Take the next handle to run; None when the loop was stopped and what was ready then has run."""
        while True:
            places: range | list[int] = range(len(self._keys))
            if self._stop_mark is not None:
                places = [place for place in places if self._strands[self._keys[place]][0][0] < self._stop_mark]
                if not places:
                    return None
            elif not places:
                self._jump()
                continue
            if self.max_steps is not None and self.steps >= self.max_steps:
                raise SimStalledError(self.picture("livelock, or too few steps allowed: still busy"))
            place = places[int(self._rng.random() * len(places)) if len(places) > 1 else 0]
            key = self._keys[place]
            handle = self._strands[key].popleft()[1]
            if not self._strands[key]:
                del self._strands[key]
                self._keys[place] = self._keys[-1]
                self._keys.pop()
            if not handle.cancelled():
                return handle

    def _jump(self) -> None:
        """Move time to the next timer and make all that are due at that instant ready."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers or self._timers[0][0] == float("inf"):
            raise SimDeadlockError(self.picture("deadlock: nothing is ready and no timer is set"))
        self._now = self._timers[0][0]
        while self._timers and self._timers[0][0] == self._now:
            self._push(heapq.heappop(self._timers)[2], None)

    def picture(self, problem: str) -> str:
        """Describe the state of a run that went wrong: the seed, the time, what waits where, what nobody handled."""
        lines = [f"{problem} (seed {self.seed}, virtual time {self._now}, step {self.steps})"]
        lines += [f"  task {task.get_name()} waits at {_where(task)}" for task in self.pending_tasks()]
        lines += [f"  unhandled: {each.get('message')}: {each.get('exception')!r}" for each in self.exceptions]
        return "\n".join(lines)

    def _timer_handle_cancelled(self, _timer: TimerHandle) -> None:
        """Drop cancelled timers once they may be the larger part (TimerHandle.cancel calls this private hook)."""
        self._cancelled_timers += 1
        if self._cancelled_timers > max(100, len(self._timers) // 2):
            self._cancelled_timers = 0
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)

    def time(self) -> float:
        """Return the virtual time in seconds; it starts at 0.0."""
        return self._now

    def call_soon(self, callback: Call[*Ts], *args: *Ts, context: Context | None = None) -> Handle:
        """Make a callback ready now, in the strand where it belongs."""
        self._check_closed()
        handle = Handle(callback, args, self, context)
        future = next(iter(args)) if len(args) == 1 else None
        owner, name = getattr(callback, "__self__", None), getattr(callback, "__name__", "_")
        if asyncio.isfuture(future) and future.done():  # how a future calls its done-callbacks
            self._push(handle, future)
        elif isinstance(owner, Task) and name.startswith("_"):  # a step of a task; not task.cancel and the like
            self._push(handle, None)
        else:
            self._push(handle, PLAIN)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Call[*Ts], *args: *Ts, context: Context | None = None) -> TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Call[*Ts], *args: *Ts, context: Context | None = None) -> TimerHandle:
        """Call back exactly at virtual time `when`, or now when that has passed; never at infinity."""
        self._check_closed()
        timer = TimerHandle(when, callback, args, self, context)
        if when > self._now:
            heapq.heappush(self._timers, (when, next(self._arrivals), timer))
        else:
            self._push(timer, None)
        return timer

    def create_future(self) -> Future[Any]:
        return _Future(next(self._numbers), loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **kwargs: Any
    ) -> Task[Any]:
        """Return a new task; without a name it gets one counted per loop, so that traces repeat."""
        number = next(self._numbers)
        name = name or f"task-{number}"
        if context is not None:
            kwargs["context"] = context
        if self._task_factory is None:
            task: Task[Any] = _Task(number, coro, loop=self, name=name, **kwargs)
        else:
            task = self._task_factory(self, coro, **kwargs)
            task.set_name(name)  # after the fact: older factories take no name
        self._tasks[number] = task
        return task

    def set_task_factory(self, factory: Callable[..., Any] | None) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Callable[..., Any] | None:
        return self._task_factory

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> Future[T]:
        """Run the call on this thread, whatever `executor` is, at a seeded moment and unless cancelled before it."""
        future: Future[T] = self.create_future()
        delay = self._rng.random() * EXECUTOR_SECONDS
        timer = self.call_later(delay, self._run_call, future, func, args, context=copy_context())
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def _run_call(self, future: Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        _set_running_loop(None)  # a call that uses the loop as if it ran there must fail here as in a thread
        try:
            future.set_result(func(*args))
        except BaseException as error:  # noqa: BLE001 - whoever awaits the call gets it, as from a thread
            future.set_exception(error)
        finally:
            _set_running_loop(self)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncio's API
        """Do nothing: there is no executor."""

    def _generator_dropped(self, generator: Any) -> None:
        self._generators.pop(id(generator), None)
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Close the unfinished async generators, in the order in which they started."""
        generators = list(self._generators.values())
        self._generators.clear()
        results = await asyncio.gather(*[each.aclose() for each in generators], return_exceptions=True)
        for result, each in zip(results, generators, strict=True):
            if isinstance(result, Exception):
                message = f"closing the async generator {each.__qualname__} failed"
                self.call_exception_handler({"message": message, "exception": result, "asyncgen": each})

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record what would otherwise only be logged, then tell the application's handler if there is one."""
        self.exceptions.append(context)
        if self._exception_handler is not None:
            self._exception_handler(self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Do nothing: `call_exception_handler` has recorded the context already."""

    def set_exception_handler(self, handler: ErrorHandler | None) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> ErrorHandler | None:
        return self._exception_handler

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001 - asyncio's API
        self._debug = enabled

    if TYPE_CHECKING:  # the rest reaches outside the process: asyncio's own base class raises NotImplementedError
        _absent: Any = None
        getaddrinfo = getnameinfo = create_connection = create_server = start_tls = create_datagram_endpoint = _absent
        sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = sock_sendall = sock_sendto = _absent
        sock_connect = sock_accept = sendfile = sock_sendfile = subprocess_shell = subprocess_exec = _absent
        add_reader = remove_reader = add_writer = remove_writer = connect_read_pipe = connect_write_pipe = _absent
        add_signal_handler = remove_signal_handler = set_default_executor = _absent


def run_sim(main: Coroutine[Any, Any, T], *, seed: int, shuffle: bool = True, max_steps: int = 2_000_000) -> T:
    """Run `main` on a new loop and return its result, leaving nothing behind.

    Afterwards leftover tasks are cancelled and run to their end. If `main` succeeded but anything reached the loop's
    exception handler, `SimUnhandledError` is raised; if `main` failed, that and the seed are noted on its exception.
    """
    loop = SimLoop(seed=seed, shuffle=shuffle, max_steps=max_steps)
    try:
        result: T = loop.run_until_complete(loop.create_task(main, name="main"))
    except BaseException as error:
        try:
            loop.cancel_leftovers()
        except (SimDeadlockError, SimStalledError) as second:
            error.add_note(f"while cancelling the leftover tasks: {second}")
        error.add_note(loop.picture("in a simulated run"))
        raise
    else:
        loop.cancel_leftovers()
        if loop.exceptions:
            raise SimUnhandledError(loop.picture("not everything was handled")) from loop.exceptions[0].get("exception")
        return result
    finally:
        loop.close()
