"""A command on a terminal, as a person sees it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios

from tests.cli_stage import CliStage

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"
WHERE_IS_THE_CURSOR = b"\x1b[6n"


def _own_the_terminal() -> None:
    """In the new process: the terminal is its own, so that Ctrl-C on it is a signal for it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command on a terminal of 80 x 24: what it writes, and what somebody types."""

    def __init__(self, cli: CliStage, *words: str) -> None:
        self._cli = cli
        self._words = words
        self._ours = -1
        self._raw = b""
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Terminal:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        named = {f"LANEWAY_{name}": value for name, value in self._cli.environ.items() if value is not None}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "laneway", *self._words, stdin=theirs, stdout=theirs, stderr=theirs,
            env={**kept, **named, "TERM": "xterm-256color"}, preexec_fn=_own_the_terminal,
        )  # fmt: skip
        os.close(theirs)
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        os.close(self._ours)

    def _read(self) -> None:
        try:
            piece = os.read(self._ours, 65_536)
        except OSError:  # the other end is closed
            asyncio.get_running_loop().remove_reader(self._ours)
            return
        self._raw += piece
        if WHERE_IS_THE_CURSOR in piece:
            os.write(self._ours, b"\x1b[1;1R")
        self._changed.set()

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    @property
    def raw(self) -> str:
        return self._raw.decode(errors="replace")

    @property
    def shown(self) -> str:
        """What was ever on the screen, without what moves the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]|\x1b\][^\x07]*\x07", "", self.raw)

    async def sees(self, text: str, times: int = 1) -> None:
        """Wait until something was shown."""
        try:
            async with asyncio.timeout(60):
                while self.shown.count(text) < times:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} was not shown: {self.shown[-2_000:]!r}") from None

    async def ends(self) -> int:
        """Wait for its end; the exit code."""
        async with asyncio.timeout(60):
            return await self._process.wait()
