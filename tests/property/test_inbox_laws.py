"""Laws of the inbox that hold for whatever people send: who shares a turn, in which order, what is taken once."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.inbox import Inbox
from laneway.mail import MessageState, Mode, Receipt
from laneway.runtime.turns import Turn
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing import fake_host
from tests.property.worlds import effort

pytestmark = pytest.mark.slow

SENDERS = st.sampled_from(("ada", "bob"))
THREADS = st.sampled_from(("", "7"))
TEXTS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8)
SENT = st.lists(st.tuples(SENDERS, THREADS, TEXTS), max_size=8)

Sent = list[tuple[str, str, str]]


class Agent:
    """A handler that keeps its first turn busy until everything was sent."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.go_on = asyncio.Event()

    async def __call__(self, turn: Turn) -> str | None:
        self.turns.append(turn)
        await self.go_on.wait()
        return None


async def send_while_busy(mode: Mode, sent: Sent, *, rights: dict[str, bool]) -> list[Turn]:
    """The turns after the first one, which was busy while all of these were sent."""
    agent = Agent()
    async with Inbox(agent, mode=mode, cap=100, debounce_ms=10, host=fake_host()) as inbox:
        first = await inbox.submit("s", "first")
        receipts: list[Receipt] = []
        for sender, thread, text in sent:
            who = {"id": sender, "owner": rights[sender]}
            receipts.append(await inbox.submit("s", text, sender=who, thread=thread))
        agent.go_on.set()
        for receipt in (first, *receipts):
            assert (await inbox.wait(receipt.message_id)).outcome == "succeeded"
    return agent.turns[1:]


@given(sent=SENT, same=st.booleans(), seed=st.integers(0, 9))
@effort(40)
def test_neighbours_of_one_route_and_equal_rights_share_a_turn_and_nobody_else(
    sent: Sent, same: bool, seed: int
) -> None:
    rights = {"ada": True, "bob": same}
    turns = run_sim(send_while_busy(Mode.COLLECT, sent, rights=rights), seed=seed)
    groups = [list(group) for _, group in groupby(sent, key=lambda each: (each[1], rights[each[0]]))]
    assert [[message.text for message in turn.messages] for turn in turns] == [
        [text for _, _, text in group] for group in groups
    ]
    for turn, group in zip(turns, groups, strict=True):
        assert turn.prompt.count("\nQueued #") == (len(group) if len(group) > 1 else 0)
        assert turn.route.thread == group[0][1]


@given(sent=SENT, seed=st.integers(0, 9))
@effort(30)
def test_followups_run_one_by_one_in_the_order_of_their_arrival(sent: Sent, seed: int) -> None:
    turns = run_sim(send_while_busy(Mode.FOLLOWUP, sent, rights={"ada": True, "bob": False}), seed=seed)
    assert [[message.text for message in turn.messages] for turn in turns] == [[text] for _, _, text in sent]


async def send_with_ids(ids: list[tuple[str, int]], split: int) -> tuple[list[Receipt], list[str]]:
    """Receipts of messages with platform ids, before and after a restart, and what ran."""
    disk = MemoryDisk()
    ran: list[str] = []

    async def answer(turn: Turn) -> None:
        ran.extend(message.text for message in turn.messages)

    receipts: list[Receipt] = []
    host = fake_host()
    for part in (ids[:split], ids[split:]):
        async with Inbox(answer, mode="followup", cap=100, store=MemoryStore(disk), host=host) as inbox:
            for thread, number in part:
                receipt = await inbox.submit("s", f"{thread}/{number}", message_id=number, thread=thread)
                receipts.append(receipt)
            for receipt in receipts:
                await inbox.wait(receipt.message_id)
    return receipts, ran


@given(
    ids=st.lists(st.tuples(THREADS, st.integers(1, 3)), max_size=10), split=st.integers(0, 10), seed=st.integers(0, 9)
)
@effort(40)
def test_a_platform_id_is_taken_once_on_each_route_whatever_restarts(
    ids: list[tuple[str, int]], split: int, seed: int
) -> None:
    receipts, ran = run_sim(send_with_ids(ids, split), seed=seed)
    first: dict[tuple[str, int], str] = {}
    for each, receipt in zip(ids, receipts, strict=True):
        assert receipt.duplicate == (each in first)
        assert receipt.message_id == first.setdefault(each, receipt.message_id)
        assert receipt.disposition is not MessageState.REJECTED
    assert ran == [f"{thread}/{number}" for thread, number in first]
