"""Running one attempt: async functions on the loop, sync functions on a thread, and telling the engine how it ended."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from types import CoroutineType, FunctionType
from typing import TYPE_CHECKING, Any, cast

from laneway.errors import GiveUp, RetryLater, describe, text_of
from laneway.kernel.protocol import End
from laneway.runtime.handles import CURRENT, Job

if TYPE_CHECKING:
    from laneway.runtime.engine import Engine

# The executor is part of the engine, the owner of the handles.
# ruff: noqa: SLF001

_ASYNC_FLAGS = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE


class JobTask(asyncio.Task[None]):
    """The task of an attempt. Whoever cancels it before its first step (a shutdown that cancels all tasks, for one)
    would leave a job behind that never ends; so it says so."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it, and see to it that the end of its job is reported."""
        coroutine = cast("CoroutineType[Any, Any, None]", self.get_coro())
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            assert coroutine.cr_frame is not None
            arguments = coroutine.cr_frame.f_locals
            engine, job, number = (arguments[name] for name in ("engine", "job", "number"))
            engine.watch_unbegun(self, job, number)
        return super().cancel(msg)


def needs_thread(fn: Callable[..., Any]) -> bool:
    """Whether a function would block the loop: everything that is not a coroutine function."""
    if type(fn) is FunctionType:
        return not fn.__code__.co_flags & _ASYNC_FLAGS and not inspect.iscoroutinefunction(fn)
    fn = unwrapped(fn)
    if inspect.isclass(fn):
        return True
    return not (inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__))


def unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside any number of partials."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two jobs run the same function; their arguments, bound by a partial or not, are not compared."""
    return bool(unwrapped(one) == unwrapped(other))


def name_of(fn: Callable[..., Any]) -> str:
    """What to call a function in lists and messages."""
    fn = unwrapped(fn)
    name: str = getattr(fn, "__qualname__", "") or type(fn).__qualname__
    return name


async def run_attempt(engine: Engine, job: Job[Any], number: int) -> None:
    """Run an attempt to its end and report it. Never raises, but for what ends the whole process."""
    job._begun = True
    CURRENT.set((engine, job.id, number, None))
    try:
        if job.threaded:
            value = await call_in_thread(engine, job)
        else:
            value = await job._fn(*job._args)
    except BaseException as error:
        if is_unwinding(engine, error):
            raise
        engine.attempt_ended(job, number, *outcome_of(job, error))
        if ends_process(error):
            raise
    else:
        engine.attempt_succeeded(job, number, value)


def outcome_of(job: Job[Any], error: BaseException) -> tuple[End, BaseException, str]:
    """How an attempt that raised has ended, and why."""
    match error:
        case asyncio.CancelledError():
            return End.CANCELLED, error, "" if job._ending else "it raised CancelledError itself"
        case RetryLater():
            return End.RETRY_LATER, error, text_of(error)
        case GiveUp():
            return End.GAVE_UP, error, text_of(getattr(error, "reason", error))
        case GeneratorExit():
            return End.FAILED, error, "it raised GeneratorExit"
        case Exception():
            return End.FAILED, error, describe(error)
        case _:
            return End.FAILED, error, type(error).__name__


def is_unwinding(engine: Engine, error: BaseException) -> bool:
    """Whether a coroutine is being closed after its loop has gone: there is nobody left to tell."""
    return isinstance(error, GeneratorExit) and (engine.loop.is_closed() or not engine.loop.is_running())


def ends_process(error: BaseException) -> bool:
    """Whether it is meant for the whole process (KeyboardInterrupt, SystemExit) and has to go on its way."""
    return not isinstance(error, Exception | asyncio.CancelledError | GeneratorExit)


def _without_stop_iteration(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return fn(*args)
    except StopIteration as error:  # no future can carry it; an async function turns it into this by itself
        raise RuntimeError("the function raised StopIteration") from error


async def call_in_thread(engine: Engine, job: Job[Any]) -> Any:
    """Call a sync function on a thread, in its own context; what it returns is awaited here if it can be."""
    call = functools.partial(job._context.copy().run, _without_stop_iteration, job._fn, job._args)
    job._in_thread = True
    try:
        value = await engine.run_in_thread(call)
    finally:
        job._in_thread = False
    if not inspect.isawaitable(value):
        return value
    if job._ending:
        if inspect.iscoroutine(value):
            value.close()
        raise asyncio.CancelledError
    return await value
