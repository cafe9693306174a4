"""Running one attempt: async functions on the loop, sync functions on a thread, and telling the engine how it ended."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from laneway.errors import GiveUp, RetryLater
from laneway.kernel.protocol import End
from laneway.runtime.handles import CURRENT, Attempt

_ASYNC_FLAGS = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE


def needs_thread(fn: Callable[..., Any]) -> bool:
    """Whether a function would block the loop: everything that is not a coroutine function."""
    if type(fn) is FunctionType:
        return not fn.__code__.co_flags & _ASYNC_FLAGS and not inspect.iscoroutinefunction(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    return not (inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)))


def name_of(fn: Callable[..., Any]) -> str:
    """What to call a function in lists and messages."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name: str = getattr(fn, "__qualname__", "") or type(fn).__qualname__
    return name


async def run_attempt(attempt: Attempt) -> None:
    """Run an attempt to its end and report it. Never raises, but for what ends the whole process."""
    attempt.begun = True
    CURRENT.set(attempt)
    engine, job = attempt.engine, attempt.job
    fn, args = job.call
    try:
        if attempt.threaded:
            value = await _call_in_thread(attempt, fn, args)
        else:
            value = await fn(*args)
    except asyncio.CancelledError as error:
        reason = "" if attempt.ending else "it raised CancelledError itself"
        engine.attempt_ended(attempt, End.CANCELLED, error, reason=reason)
    except RetryLater as signal:
        engine.attempt_ended(attempt, End.RETRY_LATER, signal, reason=str(signal), after_ms=max(0, signal.after_ms))
    except GiveUp as signal:
        engine.attempt_ended(attempt, End.GAVE_UP, signal, reason=signal.reason)
    except GeneratorExit:
        raise  # the loop is gone; there is nobody left to tell
    except Exception as error:  # noqa: BLE001 - whatever a job raises is its outcome
        engine.attempt_ended(attempt, End.FAILED, error, reason=f"{type(error).__name__}: {error}")
    except BaseException as error:
        engine.attempt_ended(attempt, End.FAILED, error, reason=type(error).__name__)
        raise
    else:
        engine.attempt_ended(attempt, End.SUCCEEDED, value)


async def _call_in_thread(attempt: Attempt, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a sync function on a thread, in its own context; what it returns is awaited here if it can be."""
    context = attempt.job.context.copy()
    attempt.in_thread = True
    try:
        value = await attempt.engine.run_in_thread(functools.partial(context.run, fn, *args))
    finally:
        attempt.in_thread = False
    if not inspect.isawaitable(value):
        return value
    if attempt.ending:
        if inspect.iscoroutine(value):
            value.close()
        raise asyncio.CancelledError
    return await value
