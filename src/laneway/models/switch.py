"""The switch that forbids calls of real models, so that a test can never reach a provider by mistake.

A server on this machine (a loopback address) is no provider: it may always be called.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from laneway import checked
from laneway.errors import RealModelForbiddenError

__all__ = ("VARIABLE", "check_allowed", "forbid_real_models", "is_loopback", "real_models")

VARIABLE: Final = "LANEWAY_REAL_MODELS"
OFF: Final = frozenset({"0", "false", "no", "off"})


@dataclass(slots=True)
class _Switch:
    """What was said last; None leaves it to the environment."""

    allowed: bool | None = None


_switch: Final = _Switch()


def forbid_real_models() -> None:
    """Forbid calls of real models in this process from now on: each raises before anything is connected."""
    _switch.allowed = False


@contextmanager
def real_models(*, allowed: bool) -> Iterator[None]:
    """Allow or forbid calls of real models inside a `with` block, whatever was said before."""
    before = _switch.allowed
    _switch.allowed = allowed
    try:
        yield
    finally:
        _switch.allowed = before


def is_loopback(url: str) -> bool:
    """Whether an address is on this machine."""
    from urllib.parse import urlsplit

    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return checked.is_loopback(host)


def check_allowed(*, model: str, url: str) -> None:
    """Refuse a call of a model at this address if real models are forbidden."""
    allowed = _switch.allowed
    if allowed is None:
        allowed = os.environ.get(VARIABLE, "").strip().lower() not in OFF
    if not allowed and not is_loopback(url):
        raise RealModelForbiddenError(
            f"model {model!r} is a real one, and calls of real models are forbidden here",
            model=model,
            hint=f"use a ScriptedModel; or allow it: `with real_models(allowed=True):`, {VARIABLE}=1",
        )
