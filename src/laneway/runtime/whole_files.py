"""Files that appear whole or not at all, and that only their owner reads: what is in a session is nobody else's."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO

__all__ = ("whole_file",)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file beside the one of that name, whose place it takes when the block has ended well.

    Nothing is left when it has not. What was there before stays until then. Raises `OSError`.
    """
    target = os.fspath(path)
    if os.path.isdir(target):
        raise IsADirectoryError(None, "it is a folder", target)
    # A name that nobody has, made by one call: a file of others is never taken for ours, nor followed as a link.
    handle, name = tempfile.mkstemp(dir=os.path.dirname(target) or ".", prefix=".laneway-")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # what has the name is whole, after a power cut too
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(name)
        raise
