"""Processes of a tool: started in a session of their own, watched, and ended as a whole.

Whoever starts one may be cancelled at any moment, so ending is a part of the same function: nothing is left behind.
Ending means SIGTERM to the group, a short grace, SIGKILL. A process that made a session of its own has left the group;
on Linux it is still found by a mark in its environment, which every child inherits.

What the kernel does not offer without privileges, and what therefore is not promised: a process that both leaves the
group and clears its environment is not found.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Final

__all__ = ("MARK", "Processes", "start")

MARK: Final = "TOOL_CALL_MARK"
"""The environment variable that every process of one call has."""
STEP_S: Final = 0.005
STEP_MAX_S: Final = 0.1
SETTLE_S: Final = 2.0
_numbers: Final = count(1)


class Processes:
    """One command and everything it started."""

    def __init__(self, leader: subprocess.Popen[bytes], mark: str) -> None:
        self._leader = leader
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        # Not a pool of threads: a command may run for hours, and would take a place in it that long.
        threading.Thread(target=self._watch, name=f"wait-{leader.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the leader, and the id of the group."""
        return self._leader.pid

    @property
    def exit_code(self) -> int | None:
        """Of the leader; None while it runs. Killed by a signal: 128 and its number, as shells say it."""
        code = self._leader.returncode
        return code if code is None or code >= 0 else 128 - code

    def _watch(self) -> None:
        code = self._leader.wait()
        with suppress(RuntimeError):  # the loop was closed meanwhile, and nobody waits any more
            self._loop.call_soon_threadsafe(self._set_ended, code)

    def _set_ended(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    async def wait(self) -> None:
        """Until the leader has ended; what it started may go on."""
        await asyncio.shield(self._ended)

    def has_others(self) -> bool:
        """Whether processes of the group are still there after the leader."""
        return _is_alive(self.pid)

    async def end(self, *, grace_s: float) -> None:
        """End the leader, its group, and what has left the group; returns when they are gone.

        Cancelling does not stop this: it goes on to the end, and then the cancellation goes on.
        """
        gone: asyncio.Future[None] = self._loop.create_future()

        def work() -> None:
            self._end(grace_s)
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(gone.set_result, None)

        # A thread of its own: this must not wait for a place among threads that are busy with other tools.
        threading.Thread(target=work, name=f"end-{self.pid}").start()
        cancelled: asyncio.CancelledError | None = None
        while not gone.done():
            try:
                await asyncio.shield(gone)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _end(self, grace_s: float) -> None:
        self._signal(signal.SIGTERM)
        if not self._are_gone(grace_s):
            self._signal(signal.SIGKILL)
            self._are_gone(SETTLE_S)

    def _signal(self, number: int) -> None:
        # A group keeps its id as long as it has a process. When it has none any more, the id could be given out again
        # only after all others were: the kernel counts upwards.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        for pid in _marked(self._mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _are_gone(self, limit_s: float) -> bool:
        step, waited = STEP_S, 0.0
        pause = threading.Event()
        while True:
            if self._leader.returncode is not None and not _is_alive(self.pid) and not _marked(self._mark):
                return True
            if waited >= limit_s:
                return False
            pause.wait(step)
            waited += step
            step = min(step * 2, STEP_MAX_S)


def start(command: Sequence[str], *, folder: str, environment: Mapping[str, str], output: int) -> Processes:
    """Start a command in a session of its own, with its input closed and both outputs going to one descriptor."""
    mark = f"{os.getpid()}-{next(_numbers)}"
    leader = subprocess.Popen(  # noqa: S603 - running what the model says is what this tool is for
        command,
        cwd=folder,
        env={**environment, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        close_fds=True,
    )
    return Processes(leader, mark)


def _is_alive(group: int) -> bool:
    """Whether a group has a process that is no zombie: those stay where nobody collects orphans, as in containers."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of zombies
        return False
    if sys.platform != "linux":
        return True
    return any(_group_and_state(pid) == (group, True) for pid in _pids())


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _group_and_state(pid: int) -> tuple[int, bool]:
    """The group of a process, and whether it still runs."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may contain anything
    except OSError:
        return 0, False
    return int(fields[2]), fields[0] not in (b"Z", b"X")


def _marked(mark: str) -> list[int]:
    """Processes with that mark, wherever they are by now."""
    if sys.platform != "linux":
        return []
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                is_ours = wanted in file.read(1_000_000).split(b"\0")
        except OSError:  # not ours to look at, or gone
            continue
        if is_ours:  # a zombie has no environment any more
            found.append(pid)
    return found
