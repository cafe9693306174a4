"""One owner at a time: a lock on a side file, which the system frees when its process dies, however it dies.

`flock` on Linux, macOS and the BSDs, a locked byte on Windows. The file stays when the lock is let go: to remove it
would let two owners hold locks on two files of one name. The pid inside is for people; only the lock counts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from threading import Event
from typing import Final

from laneway.errors import StoreInUseError, StoreUnavailableError

__all__ = ("FileLock", "lock_holder", "lock_path")

_CANNOT_LOCK: Final = frozenset(
    getattr(errno, name) for name in ("ENOLCK", "ENOTSUP", "EOPNOTSUPP", "ENOSYS", "EINVAL") if hasattr(errno, name)
)
_PID_BYTES_MAX: Final = 32
_TRIES: Final = 3
_TRY_AGAIN_S: Final = 0.02

if sys.platform == "win32":
    import msvcrt

    _FAR_OFF: Final = 1 << 30  # a locked byte cannot be read by others: the pid must stay readable

    def _try_lock(fd: int) -> None:
        os.lseek(fd, _FAR_OFF, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from error

else:
    import fcntl

    def _try_lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_path(path: str) -> str:
    """The side file of a store."""
    return f"{path}.lock"


class FileLock:
    """The lock of one store; held from `acquire` to `release`."""

    def __init__(self, path: str, *, try_lock: Callable[[int], None] = _try_lock) -> None:
        self.path = path
        self._try_lock = try_lock
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock, or say who has it."""
        side = lock_path(self.path)
        try:
            fd = os.open(side, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise _cannot_open(self.path, side, error) from error
        try:
            self._lock(fd)
            os.lseek(fd, 0, os.SEEK_SET)
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:
            os.close(fd)
            raise _cannot_open(self.path, side, error) from error
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _lock(self, fd: int) -> None:
        try:
            self._lock_patiently(fd)
        except BlockingIOError as error:
            pid = _pid_in(fd)
            raise StoreInUseError(
                f"the store {self.path} is open in another process (pid {pid})",
                hint="stop that process first, or give this one a store of its own; a server is asked without --store",
                path=self.path,
                pid=pid,
            ) from error
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
            raise StoreUnavailableError(
                f"the file system of {self.path} cannot lock files: {error.strerror}",
                hint=f"keep the store on a local disk; the lock is on {lock_path(self.path)}",
                path=self.path,
            ) from error

    def _lock_patiently(self, fd: int) -> None:
        """Whoever only looks (`lock_holder`) has the lock for a moment too: that is no reason to give up."""
        for _ in range(_TRIES - 1):
            try:
                return self._try_lock(fd)
            except BlockingIOError:
                Event().wait(_TRY_AGAIN_S)
        return self._try_lock(fd)

    def release(self) -> None:
        """Let go; the next owner may come."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)

    def forget(self) -> None:
        """Close the copy of the lock that a fork has made, without letting go: the parent still holds it."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def lock_holder(path: str) -> str | None:
    """The pid of the process that has a store open (`unknown` if it has not written it), or None if nobody has."""
    side = lock_path(path)
    try:
        fd = os.open(side, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    try:
        _try_lock(fd)
    except OSError:
        return _pid_in(fd)
    finally:
        os.close(fd)
    return None


def _pid_in(fd: int) -> str:
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        return os.read(fd, _PID_BYTES_MAX).decode("ascii", "replace").strip() or "unknown"
    except OSError:
        return "unknown"


def _cannot_open(path: str, side: str, error: OSError) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the store {path} cannot be opened: {side}: {error.strerror or error}",
        hint="the folder must exist and be writable; a store needs two files beside it",
        path=path,
    )
