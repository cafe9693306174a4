"""The garbage collector, at rest while very many things are made of which none is dropped."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ("collector_at_rest",)


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Do not look for garbage meanwhile: there is none, and each look would cost more than the one before.

    Only around code that does not await: others go on as usual.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
