"""Paths that cannot leave the workspace.

A path is resolved first, symlinks and `..` included, and must lie inside. What is then opened is reached from the
folder of the workspace, one component after another, none of which may be a symlink: a link that somebody swaps in
between the check and the use is refused, not followed. A file is looked at before it is opened and again when it is
open, and only plain files are: no devices, and no pipes that would be waited for for ever.

Besides, some folders elsewhere may be read: those of skills. For these the same holds, and nothing in them is changed.

What this cannot see: a hard link or a mount inside the workspace whose content is also elsewhere, and what processes of
`bash` do, which are not confined at all.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from threading import Event
from typing import BinaryIO, Final

from laneway.tools.outputs import ToolRefusedError

__all__ = (
    "Place",
    "answering_errors",
    "locate",
    "locate_outside",
    "open_file",
    "open_folder",
    "replace_file",
    "shown",
    "stat_place",
)

PATH_MAX: Final = 4096
# A folder that may be passed through need not be readable.
_FOLDER: Final = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_PASS: Final = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
_numbers: Final = count(1)
_KINDS: Final = (
    (stat.S_ISDIR, "is a folder"),
    (stat.S_ISFIFO, "is a named pipe"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
    (stat.S_ISLNK, "is a symbolic link that was changed meanwhile"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place inside a workspace: `parts` below `root`, without symlinks when they were looked at.

    One that `is_outside` lies in another folder that may be read, and is called by its whole path.
    """

    root: str
    parts: tuple[str, ...]
    is_outside: bool = False

    @property
    def shown(self) -> str:
        """As a model gets to see it."""
        return shown(self.path if self.is_outside else "/".join(self.parts)) or "."

    @property
    def path(self) -> str:
        """The whole path."""
        return os.path.join(self.root, *self.parts)

    def child(self, name: str) -> Place:
        """A place in this folder."""
        return replace(self, parts=(*self.parts, name))


def shown(path: str) -> str:
    """A path on one line that can be stored: bytes that are no text, and control characters, are escaped."""
    text = path.encode("utf-8", "backslashreplace").decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def locate(workspace: str, path: str) -> Place:
    """Where a path leads; relative ones begin at the workspace. Refuses what is not inside."""
    if "\x00" in path:
        raise ToolRefusedError("a path cannot contain a NUL character")
    if len(path) > PATH_MAX:
        raise ToolRefusedError(f"the path is {len(path)} characters long; at most {PATH_MAX} are possible")
    try:
        os.fsencode(path)
        root = os.path.realpath(workspace)
        real = os.path.realpath(os.path.join(root, path))
    except (UnicodeEncodeError, ValueError):
        raise ToolRefusedError(f"{shown(path)!r} is not a path") from None
    if real == root:
        return Place(root=root, parts=())
    inside = root if root.endswith(os.sep) else root + os.sep
    if not real.startswith(inside):
        raise ToolRefusedError(f"{shown(path)} is outside of the workspace; only paths inside of it can be used")
    return Place(root=root, parts=tuple(real[len(inside) :].split(os.sep)))


def locate_outside(folders: Iterable[str], path: str) -> Place | None:
    """Where a path leads that lies in one of some other folders, by its own words and by its links; None if in none.

    Only whole paths are taken: what is asked for is then what permissions were asked about.
    """
    if not os.path.isabs(path) or "\x00" in path or len(path) > PATH_MAX:
        return None
    written = os.path.normpath(path)
    try:
        real = os.path.realpath(written)
    except (UnicodeEncodeError, ValueError):
        return None
    for folder in folders:
        if written == folder or written.startswith(f"{folder}{os.sep}"):
            root = os.path.realpath(folder)
            if real == root:
                return Place(root=root, parts=(), is_outside=True)
            if not real.startswith(f"{root}{os.sep}"):
                raise ToolRefusedError(f"{shown(path)} is a link out of {shown(folder)}; it is not followed")
            return Place(root=root, parts=tuple(real[len(root) + 1 :].split(os.sep)), is_outside=True)
    return None


@contextmanager
def answering_errors(what: str) -> Iterator[None]:
    """Turn what the operating system says about a file into an answer for the model."""
    try:
        yield
    except FileNotFoundError:
        raise ToolRefusedError(f"{what} does not exist") from None
    except PermissionError:
        raise ToolRefusedError(f"{what}: permission denied") from None
    except NotADirectoryError:
        raise ToolRefusedError(f"{what}: a part of the path is not a folder") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ToolRefusedError(f"{what}: a symbolic link leads in a circle or was changed meanwhile") from None
        raise ToolRefusedError(f"{what}: {error.strerror or error}") from None


@contextmanager
def open_folder(place: Place, *, make: bool = False) -> Iterator[int]:
    """The folder at a place, for `dir_fd`; with `make`, folders that are missing are made."""
    at = os.open(place.root, os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY))
    try:
        for part in place.parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
            inner = os.open(part, _PASS, dir_fd=at)
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


def _parent(place: Place) -> Place:
    return replace(place, parts=place.parts[:-1])


def stat_place(place: Place) -> os.stat_result:
    """What is at a place."""
    if not place.parts:
        return os.stat(place.root)
    with open_folder(_parent(place)) as folder:
        return os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False)


def _check_plain(place: Place, mode: int) -> None:
    for is_kind, what in _KINDS:
        if is_kind(mode):
            raise ToolRefusedError(f"{place.shown} {what}, not a file")


def open_file(place: Place) -> BinaryIO:
    """A plain file for reading."""
    if not place.parts:
        raise ToolRefusedError(f"{place.shown} is a folder, not a file")
    name = place.parts[-1]
    with open_folder(_parent(place)) as folder:
        _check_plain(place, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        # Not blocking: what was a file a moment ago may be a pipe now.
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        _check_plain(place, os.fstat(opened).st_mode)
        return os.fdopen(opened, "rb")
    except BaseException:
        os.close(opened)
        raise


def replace_file(place: Place, content: bytes, stop: Event) -> bool:
    """Put a whole new content in the place of a file, or make it: all or nothing. Returns whether it is a new file.

    The content is on the disk before the name points to it. Mode and, where that is allowed, owner stay. Once `stop` is
    set nothing is changed any more: whoever asked for it has left.
    """
    if not place.parts:
        raise ToolRefusedError(f"{place.shown} is a folder, not a file")
    name = place.parts[-1]
    with open_folder(_parent(place), make=True) as folder:
        old = _writable(place, name, folder)
        part, made = _new_file(folder)
        try:
            with os.fdopen(made, "wb") as file:
                if old is not None:
                    with suppress(OSError):
                        os.fchown(file.fileno(), old.st_uid, old.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _check_wanted(place, stop)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise
    return old is None


def _new_file(folder: int) -> tuple[str, int]:
    """A file that nobody has yet. A process that died may have left one, and its number may be ours now."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        name = f".laneway-{os.getpid()}-{next(_numbers)}.part"
        with suppress(FileExistsError):
            return name, os.open(name, flags, 0o666, dir_fd=folder)


def _check_wanted(place: Place, stop: Event) -> None:
    if stop.is_set():
        raise ToolRefusedError(f"{place.shown} was not changed: it took too long")


def _writable(place: Place, name: str, folder: int) -> os.stat_result | None:
    """What is there now, which must be a file that may be written: a rename would not ask."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_plain(place, found.st_mode)
    os.close(os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder))
    return found
