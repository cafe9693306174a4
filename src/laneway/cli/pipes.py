"""What happens when the other end of a pipe or a connection hangs up."""

from __future__ import annotations

import signal
import threading

__all__ = ("survive_hang_ups",)


def survive_hang_ups() -> None:
    """Have a write to a closed connection raise, as Python does: `SIGPIPE`, as commands set it, would end the process.

    A closed standard output raises then, too; typer ends the command quietly for that.
    """
    if not hasattr(signal, "SIGPIPE") or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
