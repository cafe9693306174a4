"""Clients of OpenAI try again by themselves and send no key with it: a second try must not run anything twice.

They say how often they have tried (`x-stainless-retry-count`), and repeat the request to the byte. So a message carries
the fingerprint of its request, and a later try is answered by the message of the earlier one, if that one was taken
and its caller has gone. `Idempotency-Key` does the same for any client, after a restart too.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from laneway.mail import Message

if TYPE_CHECKING:
    from fastapi import Request

    from laneway.gateway.access import Caller
    from laneway.gateway.workspaces import Workspace

__all__ = ("Retries", "fingerprint", "is_retry")

T = TypeVar("T")

KEPT_MAX: Final = 10_000
CHANNEL: Final = "openai"


async def fingerprint(request: Request, caller: Caller) -> str:
    """What is the same for every try of a request, and for no other request."""
    session = request.headers.get("laneway-session", "")
    parts = (caller.tenant, caller.name, caller.token_id, request.url.path, session)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace"))
    digest.update(await request.body())
    return digest.hexdigest()[:40]


def is_retry(request: Request) -> bool:
    """Whether a client says that it has tried before."""
    count = request.headers.get("x-stainless-retry-count", "")
    return count.isdecimal() and count.strip("0") != ""


class Retries:
    """Which messages have somebody who waits for their answer, and which were left by whoever had sent them."""

    def __init__(self) -> None:
        self._served: Counter[str] = Counter()
        self._left: OrderedDict[str, tuple[str, str]] = OrderedDict()  # by fingerprint: session key, message id
        self._told: OrderedDict[str, None] = OrderedDict()  # messages whose sender has got what it asked for

    @contextlib.contextmanager
    def serving(self, print_: str, key: str, message_id: str) -> Iterator[Delivery]:
        """Somebody waits for the answer of a message; if they go before they have it, they may come back."""
        delivery = Delivery()
        self._served[message_id] += 1
        try:
            yield delivery
        finally:
            self._served[message_id] -= 1
            if not self._served[message_id]:
                del self._served[message_id]
            if delivery.is_done:
                _add(self._told, message_id, None)
            elif print_:
                _add(self._left, print_, (key, message_id))

    def find(self, print_: str, tenant: str, workspace: Workspace) -> tuple[str, str] | None:
        """The session key and the id of the message that an earlier try has sent."""
        left = self._left.pop(print_, None)
        if left is not None:
            return left
        for item in workspace.inbox.engine.kernel.items.values():  # also what an earlier process has taken
            if item.id in self._served or item.id in self._told:
                continue
            if item.owner.tenant == tenant and _is_of(item.message, print_):
                return item.owner.session, item.id
        return None


def _add(table: OrderedDict[str, T], name: str, value: T) -> None:
    table[name] = value
    table.move_to_end(name)
    if len(table) > KEPT_MAX:
        table.popitem(last=False)


class Delivery:
    """Whether an answer has been handed over."""

    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> None:
        """It has."""
        self.is_done = True


def _is_of(message: Message, print_: str) -> bool:
    given = message.message_id
    return given is not None and message.channel == CHANNEL and given.startswith(f"{print_}.")
