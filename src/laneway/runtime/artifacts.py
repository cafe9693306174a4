"""Artifacts: files with what was too long to show, in a folder beside the store, and how they go.

A file is named by the hash of its content. A row that names one also names a small blob, its note
(`kernel.checkpoints.note_of`): so the store knows which files are in use as it knows it of blobs, and the note goes
with the last row that names it. A file is there before its note and goes after it. What a crash leaves in between is a
file without a note, and the next sweep takes it away: that of a delete, or of a prune.

A tenant has a folder of its own. Files in a folder that a host has chosen (`artifacts_dir`) are the host's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import quote, unquote

from laneway.errors import StoreUnavailableError
from laneway.kernel.checkpoints import BLOB, digest_of, note_of

if TYPE_CHECKING:
    from laneway.ports import History
    from laneway.rows import Owner
    from laneway.runtime.erasing import Readable

__all__ = ("HOLDS", "Holds", "Unpacking", "folder_of", "holder_of", "pieces_of", "sweep", "sweep_all")

PAGE: Final = 500
PIECE: Final = 3 * 1024 * 1024
_NAME: Final = re.compile(r"[0-9a-f]{64}")
_PART: Final = re.compile(r"\.part-([0-9]+)-[0-9]+")
_numbers: Final = count(1)
_log = logging.getLogger("laneway")


def folder_of(store: object, tenant: str) -> str:
    """Where the artifacts of a tenant are; empty for a store that is no file."""
    path = getattr(store, "path", None)
    return os.path.join(f"{path}.artifacts", quote(tenant, safe="")) if path else ""


def holder_of(store: object, owner: Owner) -> Hashable:
    """A session, as somebody who holds artifacts."""
    return getattr(store, "path", None), owner


# ---- what is not on disk yet ----


class Holds:
    """Artifacts whose notes are not on disk yet: sessions hold them, on any thread, and no sweep takes them away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, set[Hashable]] = {}
        self._sweeps: list[set[str]] = []

    def hold(self, holder: Hashable, name: str) -> None:
        """Its file is about to be there."""
        with self._lock:
            self._held.setdefault(name, set()).add(holder)
            for fresh in self._sweeps:
                fresh.add(name)

    def release(self, holder: Hashable, names: Iterable[str] | None = None) -> None:
        """Their notes are on disk; None: nothing that it holds will be noted any more."""
        with self._lock:
            for name in list(self._held) if names is None else names:
                holders = self._held.get(name, set())
                holders.discard(holder)
                if not holders:
                    self._held.pop(name, None)

    @contextlib.contextmanager
    def sweeping(self) -> Iterator[set[str]]:
        """What was held meanwhile, if only for a moment: its note may have come after somebody looked for it."""
        with self._lock:
            fresh = set(self._held)
            self._sweeps.append(fresh)
        try:
            yield fresh
        finally:
            with self._lock:
                self._sweeps = [each for each in self._sweeps if each is not fresh]

    def delete(self, paths: Iterable[str], fresh: set[str]) -> int:
        """Delete files that nobody holds; how many went. Blocks on the disk."""
        gone = 0
        for path in paths:
            with self._lock:  # nobody comes to hold it meanwhile
                if os.path.basename(path) in fresh:
                    continue
                try:
                    os.unlink(path)
                    gone += 1
                except FileNotFoundError:
                    pass
                except OSError as error:
                    _log.warning("the artifact %s is not needed any more, and could not be deleted: %s", path, error)
        return gone


HOLDS: Final = Holds()
"""Those of this process: stores of one file are one store, whoever has opened them."""


# ---- sweeping ----


async def sweep(store: Readable, tenant: str) -> int:
    """Delete the artifacts of a tenant that no row names any more; how many went."""
    folder = folder_of(store, tenant)
    if not folder:
        return 0
    with HOLDS.sweeping() as fresh:
        names = await asyncio.to_thread(_look_into, folder)
        names = [name for name in names if name not in fresh]
        unused = [name async for name in _unnoted(store.history, tenant, names)]
        return await asyncio.to_thread(HOLDS.delete, [os.path.join(folder, name) for name in unused], fresh)


async def sweep_all(store: Readable) -> int:
    """Delete the artifacts of all tenants that no row names any more; how many went."""
    base = os.path.dirname(folder_of(store, "x"))
    folders = await asyncio.to_thread(_listed, base) if base else []
    return sum([await sweep(store, unquote(folder)) for folder in folders])


def _look_into(folder: str) -> list[str]:
    """The artifacts that are there. What a process has left that died while it wrote one is deleted."""
    found: list[str] = []
    for name in _listed(folder):
        if _NAME.fullmatch(name):
            found.append(name)
        elif (part := _PART.fullmatch(name)) and not _is_alive(int(part[1])):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
    return found


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        _log.warning("the artifacts in %s could not be looked at, none was deleted: %s", folder, error)
    return []


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is there, and somebody else's
        return True
    return True


async def _unnoted(history: History, tenant: str, names: list[str]) -> AsyncIterator[str]:
    for start in range(0, len(names), PAGE):
        part = names[start : start + PAGE]
        notes = await history.states_by_id(BLOB, [f"{tenant}:{digest_of(note_of(name))}" for name in part])
        for name, note in zip(part, notes, strict=True):
            if note is None:
                yield name


# ---- in the file of a session ----


async def pieces_of(store: object, tenant: str, name: str) -> AsyncIterator[list[Any]]:
    """The lines of an artifact in the file of a session; none if it is not there any more."""
    path = os.path.join(folder_of(store, tenant), name)
    number = 0
    while piece := await asyncio.to_thread(_read_piece, path, number):
        yield ["a", name, number, json.dumps(base64.b64encode(piece).decode())]
        number += 1


def _read_piece(path: str, number: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(path, "rb") as file:
        file.seek(number * PIECE)
        return file.read(PIECE)
    return b""


class Unpacking:
    """Artifacts of a file on their way to their folder. Each is put in its place when it is whole; blocks on the disk.

    Whoever gives the pieces has checked that they are those of the hash before the next one begins, or it ends. Until
    this is closed no sweep takes one away, because its note may not be there yet.
    """

    def __init__(self, store: object, tenant: str) -> None:
        self._folder = folder_of(store, tenant)
        self._name = ""
        self._file: BinaryIO | None = None

    def take(self, name: str, number: int, body: str) -> None:
        """One more piece."""
        if not self._folder:
            return
        if number == 0:
            self.end()
        with self._writing():
            if number == 0:
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                self._name, self._file = name, self._new_part()
            assert self._file is not None
            self._file.write(base64.b64decode(json.loads(body)))

    def _new_part(self) -> BinaryIO:
        while True:  # others may be written at the same time
            name = os.path.join(self._folder, f".part-{os.getpid()}-{next(_numbers)}")
            with contextlib.suppress(FileExistsError):
                return open(name, "xb")

    def end(self) -> None:
        """The last one is whole."""
        if self._file is not None:
            HOLDS.hold(self, self._name)
            with self._writing():
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                os.replace(self._file.name, os.path.join(self._folder, self._name))
                self._file = None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(
                f"an artifact could not be written to {self._folder}: {error}",
                hint="make room there, or let this user write there, then import again",
                path=self._folder,
                reason=str(error),
            ) from error

    def close(self) -> None:
        """Nothing comes of one that is not whole."""
        HOLDS.release(self)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                os.unlink(file.name)
