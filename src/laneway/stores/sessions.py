"""The stores of sessions by the names that agents know. Each of them is the one store; only what it is made of differs.

`FileSessionStore(folder)` keeps everything in `sessions.db` in that folder, which is made if it is not there. It and
`SqliteSessionStore(folder / "sessions.db")` are the same store: in a process all stores of one file share it, and a
second process is refused as long as the first one has it open.
"""

from __future__ import annotations

import os
from typing import Final

from laneway.errors import UnknownStoreError
from laneway.stores.memory import MemoryStore
from laneway.stores.sqlite import BUSY_MS, SqliteStore
from laneway.stores.sqlite_file import refused

__all__ = ("FileSessionStore", "MemorySessionStore", "SqliteSessionStore")

FILE_NAME: Final = "sessions.db"


class MemorySessionStore(MemoryStore):
    """Keeps sessions as long as it lives itself."""


class SqliteSessionStore(SqliteStore):
    """Keeps sessions in an SQLite file, which is made if it is not there; its folder must be."""

    def __init__(self, path: str | os.PathLike[str], *, busy_ms: int = BUSY_MS) -> None:
        super().__init__(_expanded(path), busy_ms=busy_ms)


class FileSessionStore(SqliteStore):
    """Keeps sessions in a folder, which is made if it is not there."""

    def __init__(self, directory: str | os.PathLike[str], *, busy_ms: int = BUSY_MS) -> None:
        super().__init__(os.path.join(_expanded(directory), FILE_NAME), busy_ms=busy_ms)

    async def open(self) -> None:
        """Become the owner, or share what another user in this process has opened."""
        folder = os.path.dirname(self.path)
        try:
            os.makedirs(folder, exist_ok=True)
        except FileExistsError:
            pass  # it is no folder: opening says so
        except OSError as error:
            raise refused(error, self.path, f"be made in {folder}") from error
        await super().open()


def _expanded(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not isinstance(name, str) or not name.strip():
        raise UnknownStoreError(f"{path!r} is no path of a store", hint="name a file or a folder", address=path)
    return os.path.expanduser(name)
