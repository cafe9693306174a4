"""Secrets of the server stay out of the reach of what it starts: the tools of agents run as the same user.

Three lines. The environment of a tool is made anew, from what is harmless (`laneway.tools.shell`). What the server was
given for itself (`LANEWAY_TOKEN` and the like) is taken out of its environment when it has been read, and wiped where
the system shows it (`/proc/<pid>/environ`). And on Linux the process makes itself non-dumpable: its memory, its
environment and its open files are then closed to other processes of the same user.

What this cannot do: hold back root, or a process that may trace others. Whoever lets an agent run commands as root, or
as the user who owns the files of the store, has to trust it with them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import MutableMapping
from typing import Final

__all__ = ("hide_process", "is_hidden", "take_secrets")

SECRETS: Final = ("LANEWAY_TOKEN", "LANEWAY_OPERATOR_TOKEN")
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
