"""The thin methods of the synchronous classes, made of the methods of their asynchronous twins.

`send = awaited(AsyncSession.send)` is a method with the same parameters, the same docstring and a plain result: it runs
the original on the background loop. `pause = on_loop(AsyncSession.pause)` does that for a method that is plain already.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from laneway.sync.background import Portal

__all__ = ("Twin", "awaited", "on_loop")

P = ParamSpec("P")
T = TypeVar("T")
A_co = TypeVar("A_co", covariant=True)


class Twin(Generic[A_co]):
    """Something synchronous that stands before something asynchronous on the background loop."""

    def __init__(self, portal: Portal, twin: A_co) -> None:
        self._portal = portal
        self._twin = twin

    def __eq__(self, other: object) -> bool:
        """Two that stand before the same thing are the same."""
        return self._twin is other._twin if isinstance(other, Twin) else NotImplemented

    def __hash__(self) -> int:
        return hash(id(self._twin))


def awaited(method: Callable[Concatenate[A_co, P], Awaitable[T]]) -> Callable[Concatenate[Twin[A_co], P], T]:
    """A method that runs an async one of its twin, and waits for it."""

    def call(self: Twin[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.wait(_name(self, method), method, self._twin, *args, **kwargs)

    return _dressed(call, method)


def on_loop(method: Callable[Concatenate[A_co, P], T]) -> Callable[Concatenate[Twin[A_co], P], T]:
    """A method that runs a plain one of its twin on the loop, where alone it is safe."""

    def call(self: Twin[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.call(_name(self, method), method, self._twin, *args, **kwargs)

    return _dressed(call, method)


def _name(twin: Twin[Any], method: Callable[..., Any]) -> str:
    return f"{type(twin).__name__}.{method.__name__}()"


def _dressed(call: Callable[P, T], method: Callable[..., Any]) -> Callable[P, T]:
    """With the name, the docstring and the parameters of the original."""
    functools.update_wrapper(call, method)
    call.__qualname__ = method.__name__
    return call
