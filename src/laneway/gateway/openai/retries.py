"""Clients of OpenAI try again by themselves and send no key with it: a second try must not run anything twice.

They say how often they have tried (`x-stainless-retry-count`), and repeat the request to the byte. So a message carries
the fingerprint of its request, and a later try is answered by the message of the earlier one, if that one was taken
and its caller has gone. `Idempotency-Key` does the same for any client, and at any time.

When a process dies, whoever waited for it comes back soon. By then their messages may have ended, in the next process
or in the last moment of the old one; so what that one has taken is looked up in the store. After a while nobody comes
back any more, and who asks the same again means it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from laneway.mail import Message
from laneway.rows import MessageRow, Owner

if TYPE_CHECKING:
    from fastapi import Request

    from laneway.gateway.access import Caller
    from laneway.gateway.workspaces import Workspace

__all__ = ("Retries", "fingerprint", "is_retry")

T = TypeVar("T")

KEPT_MAX: Final = 10_000
CHANNEL: Final = "openai"
ROUTE: Final = f'["{CHANNEL}",'
"""How the routes of these messages begin in the store."""
BACK_MS: Final = 300_000
"""So long after it has left, or the process has died, a client may come back."""
LAST_MOMENT_MS: Final = 1_000
"""What ended so shortly before a process died may not have been told any more."""
PAGE: Final = 1_000
REACHES: Final = tuple(5_000 << step for step in range(8))
"""How many numbers of the store before the start are looked through: more, until there are enough messages. A message
takes about ten of them, and each start of a process leaves many out."""

Taken = tuple[str, str]  # session key, message id


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

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._served: Counter[str] = Counter()
        self._left: OrderedDict[str, tuple[int, Taken]] = OrderedDict()  # by fingerprint, with when
        self._earlier: dict[tuple[str, str], dict[str, list[Taken]]] = {}  # of earlier processes, by fingerprint
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
                _add(self._left, print_, (self._now(), (key, message_id)))

    async def find(self, print_: str, tenant: str, workspace: Workspace) -> Taken | None:
        """The session key and the id of the message that an earlier try has sent."""
        earlier = await self._of_earlier_processes(tenant, workspace)
        at, left = self._left.pop(print_, (0, None))
        if left is not None and self._now() - at <= BACK_MS:
            return left
        for item in workspace.inbox.engine.kernel.items.values():  # also what an earlier process has taken
            if item.id in self._served or item.id in self._told:
                continue
            if item.owner.tenant == tenant and _is_of(item.message, print_):
                return item.owner.session, item.id
        of_it = earlier.get(print_, ())
        return next((each for each in of_it if each[1] not in self._served and each[1] not in self._told), None)

    async def _of_earlier_processes(self, tenant: str, workspace: Workspace) -> dict[str, list[Taken]]:
        """What the process before this one has taken, and may not have answered, by fingerprint."""
        if self._now() - workspace.opened_at > BACK_MS:
            self._earlier.clear()
            return {}
        found = self._earlier.get((workspace.name, tenant))
        if found is None:
            found = {}
            for row in _untold(await _past(tenant, workspace), workspace.opened_ms):
                found.setdefault((row.platform_id or "").partition(".")[0], []).append((row.session, row.id))
            self._earlier[workspace.name, tenant] = found
        return found


async def _past(tenant: str, workspace: Workspace) -> list[MessageRow]:
    """The last messages from before the start."""
    history, end = workspace.inbox.engine.store.history, workspace.hub.told_seq
    owner, rows = Owner(tenant, workspace.name, ""), list[MessageRow]()
    for reach in REACHES:
        page = await history.messages(owner, after_seq=max(0, end - reach), limit=PAGE)
        if rows and len(page) == PAGE and page[-1].seq < end:
            break  # so many that the last ones are not among them
        rows = [row for row in page if row.seq < end]
        if reach >= end:
            break
    return rows


def _untold(rows: list[MessageRow], opened_ms: int) -> list[MessageRow]:
    """Those whose senders cannot have got an answer, and those that ended when the process did."""
    before = [each for row in rows for each in (row.arrived_ms, row.ended_ms) if each < opened_ms]
    died_ms = max(before, default=0)
    return [
        row
        for row in rows
        if row.route.startswith(ROUTE) and not 0 < row.ended_ms < min(opened_ms, died_ms - LAST_MOMENT_MS)
    ]


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
