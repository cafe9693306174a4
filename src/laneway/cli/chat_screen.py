"""A terminal to talk on: the conversation scrolls, what is being said grows above a line to type on.

prompt_toolkit owns the terminal. Whole lines are printed above its prompt; the line that is not whole yet is a part of
the prompt, so that text can stream while somebody types.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input.base import Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output.base import Output
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from laneway.cli.tables import age, clean
from laneway.system import SystemClock

__all__ = ("ChatScreen",)

TWICE_MS: Final = 2_000
NARROW: Final = 20


class ChatScreen:
    """The terminal of `laneway chat`."""

    def __init__(
        self, session: str, *, console: Console | None = None, keys: Input | None = None, output: Output | None = None
    ) -> None:
        self.session = session
        self.status: Callable[[], tuple[str, int, int]] = lambda: ("is idle", 0, 0)
        self.on_cancel: Callable[[], bool] = lambda: False
        self._console = console or Console(file=sys.__stdout__, highlight=False, emoji=False)
        self._clock = SystemClock()
        self._tail = ""
        self._ready: list[Text] = []
        self._left = False
        self._interrupted_ms = -TWICE_MS
        bindings = KeyBindings()
        bindings.add("c-c")(lambda event: self.interrupt())
        self._prompt: PromptSession[str] = PromptSession(
            self._message,
            history=InMemoryHistory(),
            bottom_toolbar=self._toolbar,
            key_bindings=bindings,
            refresh_interval=1.0,
            erase_when_done=True,  # else the line that grows above it would stay, and be printed again when it is whole
            input=keys,
            output=output,
        )

    # ---- reading ----

    async def read(self) -> str | None:
        """What somebody types; None when they leave."""
        if self._left:
            return None
        try:
            text = await self._prompt.prompt_async(handle_sigint=False)  # `interrupt` hears of it at all times
        except (EOFError, KeyboardInterrupt):
            return None
        if text.strip():
            self._ready.append(Text(f"> {clean(text)}"))
            self.flush()
        return text

    def leave(self) -> None:
        """End reading: there is nobody to talk with any more."""
        self._left = True
        application = self._prompt.app
        if application.is_running and not application.is_done:
            application.exit(exception=EOFError)

    def interrupt(self) -> None:
        """Ctrl-C, as a key or as a signal: once cancels (or clears what was typed), twice leaves."""
        now_ms = self._clock.monotonic_ms()
        is_second = now_ms - self._interrupted_ms < TWICE_MS
        self._interrupted_ms = now_ms
        if is_second:
            self.leave()
        elif self._prompt.default_buffer.text:
            self._prompt.default_buffer.reset()
        elif not self.on_cancel():
            self.note("nothing runs; Ctrl-C again leaves")
            self.flush()

    # ---- showing ----

    def text(self, piece: str) -> None:
        """A piece of the answer."""
        *whole, self._tail = (self._tail + piece).split("\n")
        self._ready += [Text(each) for each in whole]
        self._break_tail()

    def _break_tail(self) -> None:
        """A tail that is too long for a line is broken at a space: the prompt does not wrap."""
        most = max(NARROW, self._console.width - 1)
        while cell_len(self._tail) > most:
            head = set_cell_size(self._tail, most).rstrip()
            at = head.rfind(" ")
            head = head[:at] if at > most // 2 else head
            self._ready.append(Text(head))
            self._tail = self._tail[len(head) :].removeprefix(" ")

    def end_text(self) -> None:
        """The answer, or a part of it, is whole."""
        if self._tail:
            self._ready.append(Text(self._tail))
            self._tail = ""

    def drop_text(self) -> None:
        """What was shown of the answer since its last end does not count."""
        self._tail = ""

    def note(self, text: str, style: str = "dim") -> None:
        """Something about the conversation."""
        self.end_text()
        self._ready.append(Text(text, style=style))

    def flush(self) -> None:
        """Print what is whole above the prompt.

        The terminal stays as it is meanwhile: `run_in_terminal` would give it back for a moment, and a key that is
        pressed in that moment would be lost.
        """
        ready, self._ready = self._ready, []
        application = self._prompt.app
        is_typing = application.is_running and not application.is_done
        if ready and is_typing:
            application.renderer.erase()
        for each in ready:
            self._console.print(each)
        if ready and is_typing:
            application.renderer.request_absolute_cursor_position()
        application.invalidate()

    def _message(self) -> StyleAndTextTuples:
        above: StyleAndTextTuples = [("", f"{self._tail}\n")] if self._tail else []
        return [*above, ("bold", "> ")]

    def _toolbar(self) -> str:
        state, began_ms, waiting = self.status()
        since = f" for {age(self._clock.wall_ms() - began_ms)}" if began_ms else ""
        more = f", {waiting} wait" if waiting > 1 else f", {waiting} waits" if waiting else ""
        return f" {self.session} {state}{since}{more} "
