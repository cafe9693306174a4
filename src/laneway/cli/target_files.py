"""Files that commands write: a new one, whole or not at all, for whoever has asked for it alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from laneway.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("target_file",)


@contextmanager
def target_file(target: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """The file that a command writes; it has its name when everything is in it."""
    from laneway.runtime.whole_files import whole_file  # a list of commands needs nothing that they work with

    try:
        if target.exists() and not overwrite:
            raise ConflictError(f"{target} exists already", hint="choose another path, or say --overwrite")
        with whole_file(target) as file:
            yield file
    except OSError as error:
        why = "there is no such folder" if isinstance(error, FileNotFoundError) else error.strerror or error
        raise UsageError(
            f"{target} cannot be written: {why}", hint="nothing was written; choose a path in a folder that you may use"
        ) from error
