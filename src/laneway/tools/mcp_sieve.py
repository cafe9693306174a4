"""What gets through from an MCP server: answers, what it asks, and the few notifications that somebody reads.

Everything else is left out before the SDK sees it, which would start a task for each, and write a traceback for those
that it does not understand. Whoever writes much that nobody has asked for is read slowly, and has to wait.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

__all__ = ("Sieve",)

ASKED_MAX: Final = 32
"""How many requests of a server may wait for their answer."""
BURST: Final = 200
PAUSE_S: Final = 0.01
CANCELLED: Final = "notifications/cancelled"
READ_BY_US: Final = frozenset({"notifications/tools/list_changed", "notifications/progress", CANCELLED})


class Sieve:
    """Of one connection."""

    def __init__(self) -> None:
        self._asked = 0  # requests of the server that wait for their answer
        self._heard = 0  # messages since it was last told something

    def takes(self, message: JSONRPCMessage) -> bool:
        """Whether a message of the server gets through."""
        match message:
            case JSONRPCNotification():
                if message.method == CANCELLED:
                    self._asked = max(0, self._asked - 1)
                return message.method in READ_BY_US
            case JSONRPCRequest():
                self._asked += self._asked < ASKED_MAX + 1
                return self._asked <= ASKED_MAX
            case _:
                return True

    def told(self, message: JSONRPCMessage) -> None:
        """The server is told something."""
        self._heard = 0
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._asked = max(0, self._asked - 1)

    async def pace(self, messages: int = 1) -> None:
        """It has written something; whoever writes much waits."""
        self._heard += messages
        if self._heard >= BURST:
            self._heard = 0
            await asyncio.sleep(PAUSE_S)

    async def rest(self) -> None:
        """Wait a moment."""
        await asyncio.sleep(PAUSE_S)
