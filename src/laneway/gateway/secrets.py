"""Secrets of the server and of its operators stay out of the reach of agents, whose tools run as the same user.

Three lines. The environment of a tool is made anew, from what is harmless (`laneway.tools.shell`). What a process was
given for itself (`LANEWAY_TOKEN`, the value of `--token`) is wiped where the system shows it (`/proc/<pid>/environ`,
`/proc/<pid>/cmdline`). And on Linux the process makes itself non-dumpable: its memory, its environment and its open
files are then closed to other processes of the same user. Every command does that before it does anything else, so
this module loads nothing that takes time.

What this cannot do: hold back root, or a process that may trace others, or one that looks in the few milliseconds
until Python runs. Whoever lets an agent run commands as root, or as the user who owns the files of the store, has to
trust it with them; and a token that is typed at a prompt is seen by fewer than one in a command line or a variable.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import MutableMapping
from typing import Final

__all__ = ("hide_process", "is_hidden", "take_secrets", "wipe_secrets")

SECRETS: Final = ("LANEWAY_TOKEN", "LANEWAY_OPERATOR_TOKEN")
OPTION: Final = b"--token"
ARG_START: Final = 48
"""The field of `/proc/self/stat`, counted from one, that tells where the command line begins; the next: its end."""
PR_GET_DUMPABLE: Final = 3
PR_SET_DUMPABLE: Final = 4


def hide_process() -> bool:
    """Close this process to others of the same user, where the system can do that; whether it did."""
    if sys.platform != "linux":
        return False
    try:
        return int(_libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def is_hidden() -> bool:
    """Whether this process is closed to others of the same user."""
    if sys.platform != "linux":
        return False
    try:
        return int(_libc().prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def take_secrets(environ: MutableMapping[str, str] | None = None) -> dict[str, str]:
    """Take what is for this process alone out of the environment; what was there, by name."""
    source = os.environ if environ is None else environ
    found = {name: source[name] for name in SECRETS if name in source}
    for name in found:
        if source is os.environ:
            _wipe(name)
        del source[name]
    return found


def wipe_secrets() -> None:
    """Overwrite secrets where the system shows them; this process still has them, what it starts does not."""
    for name in SECRETS:
        if name in os.environ:
            _wipe(name)
            os.unsetenv(name)  # not `del`: `os.environ` keeps it for the command
    if any(each.startswith(os.fsdecode(OPTION)) for each in sys.argv):
        _wipe_arguments()


def _wipe_arguments() -> None:
    """Overwrite the values of `--token` in the command line. Python has its own copy of it."""
    try:
        with open("/proc/self/cmdline", "rb") as shown:
            line = shown.read()
        with open("/proc/self/stat", "rb") as about:
            begin, end = (int(each) for each in about.read().rpartition(b")")[2].split()[ARG_START - 3 :][:2])
        if not begin or end - begin != len(line) or ctypes.string_at(begin, len(line)) != line:
            return  # this system tells something else there
        for at, length in _values(line):
            ctypes.memset(begin + at, ord("x"), length)
    except (OSError, ValueError):  # no such files here
        return


def _values(line: bytes) -> list[tuple[int, int]]:
    """Where the values of `--token` are in a command line, and how long they are."""
    found, at, is_value = [], 0, False
    for each in line.split(b"\0"):
        if is_value:
            found.append((at, len(each)))
        elif each.startswith(OPTION + b"="):
            skipped = len(OPTION) + 1
            found.append((at + skipped, len(each) - skipped))
        is_value = each == OPTION and not is_value
        at += len(each) + 1
    return found


def _wipe(name: str) -> None:
    """Overwrite a value in place: to unset a variable only makes it nameless, and others still see it."""
    try:
        libc = _libc()
        libc.getenv.restype = ctypes.c_void_p
        address = libc.getenv(os.fsencode(name))
        if address:
            ctypes.memset(address, ord("x"), len(ctypes.string_at(address)))
    except (OSError, AttributeError):  # no such library here
        return


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
