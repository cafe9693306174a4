"""Which message a second try belongs to, when its process has died or its client has left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from laneway.gateway.openai.retries import BACK_MS, LAST_MOMENT_MS, PAGE, Retries
from laneway.rows import MessageRow, Owner

ROUTE = '["openai","","",""]'
OPENED_MS = 1_000_000
TOLD_SEQ = 400_001
DIED_MS = OPENED_MS - 60_000


def row(seq: int, *, print_: str = "p", ended_ms: int = 0, route: str = ROUTE, **more: Any) -> MessageRow:
    """A message of the process before."""
    fields = {"tenant": "default", "workspace": "default", "session": f"s{seq}", **more}
    return MessageRow(
        **fields, id=f"m{seq}", seq=seq, place=seq, live=0 if ended_ms else 1, state="", outcome="", turn_id="",
        reason="", platform_id=f"{print_}.x{seq}", route=route, arrived_ms=DIED_MS, ended_ms=ended_ms, body="{}",
    )  # fmt: skip


class Home:
    """A workspace that was opened when the clock stood at 0, and what its store has."""

    name = "default"
    opened_at = 0
    opened_ms = OPENED_MS

    def __init__(self, *rows: MessageRow) -> None:
        self.asked = 0
        self.now = 0
        self._rows = sorted(rows, key=lambda each: each.seq)
        self.hub = SimpleNamespace(told_seq=TOLD_SEQ)
        self.inbox = SimpleNamespace(engine=SimpleNamespace(kernel=SimpleNamespace(items={})))
        self.inbox.engine.store = SimpleNamespace(history=self)
        self.retries = Retries(lambda: self.now)

    async def messages(self, owner: Owner, *, after_seq: int = 0, limit: int = 200) -> list[MessageRow]:
        """As a store answers."""
        self.asked += 1
        return [each for each in self._rows if each.tenant == owner.tenant and each.seq > after_seq][:limit]

    async def find(self, print_: str = "p", tenant: str = "default") -> Any:
        home: Any = self
        return await self.retries.find(print_, tenant, home)


@pytest.mark.parametrize(
    ("kept", "is_found"),
    [
        (row(5), True),
        (row(5, ended_ms=OPENED_MS + 1), True),
        (row(5, ended_ms=DIED_MS - LAST_MOMENT_MS), True),
        (row(5, ended_ms=DIED_MS - LAST_MOMENT_MS - 1), False),  # its sender has got it
        (row(TOLD_SEQ + 5), False),  # it is of this process
        (row(5, print_="other"), False),
        (row(5, route='["web","","",""]'), False),
        (row(5, tenant="another"), False),
    ],
)
async def test_what_the_process_before_has_taken_and_not_answered_is_found(kept: MessageRow, is_found: bool) -> None:
    home = Home(kept, row(9, print_="later", ended_ms=DIED_MS))
    assert await home.find() == (("s5", "m5") if is_found else None)


async def test_each_of_two_that_are_the_same_is_found_once() -> None:
    home = Home(row(5), row(6))
    for number in (5, 6):
        found = await home.find()
        assert found == (f"s{number}", f"m{number}")
        with home.retries.serving("p", *found) as delivery:
            delivery.done()
    assert await home.find() is None
    assert await home.find("nothing", "nobody") is None


async def test_the_store_is_looked_through_once_and_the_last_messages_count() -> None:
    home = Home(*(row(each * 100, print_=f"p{each}") for each in range(1, 4_000)))
    assert await home.find("p3999") == ("s399900", "m399900")
    assert await home.find("p3500") is not None
    assert await home.find("p1") is None  # too long ago
    asked = home.asked
    assert asked < 8
    assert len(home.retries._earlier["default", "default"]) < PAGE  # noqa: SLF001 - what it costs
    await home.find("p2")
    assert home.asked == asked


async def test_after_a_while_nobody_comes_back() -> None:
    home = Home(row(5))
    home.now = BACK_MS
    assert await home.find() == ("s5", "m5")
    home.now += 1
    assert await home.find() is None
    with home.retries.serving("q", "s7", "m7"):
        pass  # its client has gone
    home.now += BACK_MS + 1
    assert await home.find("q") is None
    with home.retries.serving("q", "s7", "m7"):
        pass
    home.now += BACK_MS
    assert await home.find("q") == ("s7", "m7")
    assert await home.find("q") is None
