"""The table of the behaviour page: what a message of each mode does in each state of its session, cell by cell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laneway import (
    ApprovalState,
    Final,
    Inbox,
    MessageState,
    Mode,
    Outcome,
    Receipt,
    SessionView,
    Turn,
    TurnState,
    UsageError,
)
from laneway.kernel.texts import SKIPPED
from laneway.stores.memory import MemoryStore
from tests.inbox_stage import (
    GUEST,
    OWNER,
    Agent,
    CutStore,
    Log,
    S,
    busy,
    collected,
    finals,
    new_inbox,
    send,
    staged,
    texts_of,
    waiting,
)
from tests.stage import now_ms, passing

DEBOUNCE = 500

MODES = ("steer", "followup", "collect", "interrupt")
BUSY = {
    "M": "steer append append cut",
    "Ts": "steer append append cut",
    "Tp": "steer append append cut",
    "NS starting": "append append append cut",
    "NS thread": "append append append cut",
    "NS rights": "append append append cut",
    "C": "steer append append cut",
    "AP": "append append append cut",
    "E": "append append append append",
}
CELLS = [
    (state, mode, verdict) for state, row in BUSY.items() for mode, verdict in zip(MODES, row.split(), strict=True)
]
TOOLS = ("t1", "t2", "t3")
PARALLEL = ("p1", "p2", "p3")


class Stage:
    """A session that is in the middle of a turn over `old`; what a newcomer does to it is written down."""

    def __init__(self, state: str, **options: Any) -> None:
        self.state = state
        self.gate = asyncio.Event()
        self.heard: list[str] = []
        self.results: dict[str, str] = {}
        self.approval: ApprovalState | None = None
        self.agent = Agent(old=self._old)
        self.store = CutStore()
        options.setdefault("debounce_ms", DEBOUNCE)
        self.inbox: Inbox = new_inbox(self.agent, store=self.store, **options)

    async def _old(self, turn: Turn) -> str:
        parts: dict[str, Callable[[Turn], Awaitable[None]]] = {
            "Ts": self._sequential,
            "Tp": self._parallel,
            "C": self._compacts,
            "AP": self._asks,
            "E": self._delivers,
        }
        part = parts.get(self.state)
        if part is None:
            await self.gate.wait()
        else:
            await part(turn)
        if self.state != "E":
            self.heard += texts_of(await turn.boundary())
        return "old answer"

    async def _sequential(self, turn: Turn) -> None:
        for number, call in enumerate(TOOLS):
            taken = texts_of(await turn.boundary())
            if taken:
                self.heard += taken
                self.results.update(turn.skipped(TOOLS[number:]))
                return
            async with turn.phase("acting"):
                await self.gate.wait()
            self.results[call] = "ran"

    async def _parallel(self, turn: Turn) -> None:
        async def tool(call: str) -> None:
            try:
                await self.gate.wait()
                self.results[call] = "ran"
            except asyncio.CancelledError:
                self.results[call] = "cancelled"
                raise

        async with turn.phase("acting"):
            await asyncio.gather(*map(tool, PARALLEL))

    async def _compacts(self, turn: Turn) -> None:
        async with turn.phase("compacting"):
            await self.gate.wait()

    async def _asks(self, turn: Turn) -> None:
        self.approval = (await turn.ask_approval("deploy")).state

    async def _delivers(self, turn: Turn) -> None:
        async with turn.phase("delivering"):
            await self.gate.wait()

    async def enter(self) -> str:
        """Bring the session into its state; the answer is the id of the old message."""
        if self.state == "NS starting":
            self.store.delay_ms = 50
        options: dict[str, Any] = {"thread": "A", "sender": OWNER}
        task = asyncio.get_running_loop().create_task(self.inbox.submit(S, "old", **options))
        await passing(10)
        turn = self.inbox._engine.kernel.turns  # noqa: SLF001 - no caller can see that a turn is only starting
        wanted = {
            "Ts": TurnState.ACTING,
            "Tp": TurnState.ACTING,
            "C": TurnState.COMPACTING,
            "AP": TurnState.WAITING,
            "E": TurnState.DELIVERING,
            "NS starting": TurnState.STARTING,
        }
        assert [one.state for one in turn.values()] == [wanted.get(self.state, TurnState.THINKING)]
        self._first = task
        return "msg-1"

    async def send(self, mode: str) -> Receipt:
        """The newcomer."""
        thread = "B" if self.state == "NS thread" else "A"
        sender = GUEST if self.state == "NS rights" else OWNER
        receipt = await self.inbox.submit(S, "new", mode=mode, thread=thread, sender=sender)
        self.store.delay_ms = 0
        await self._first
        return receipt

    async def go_on(self) -> None:
        """Let the old turn end, as far as it is up to the world."""
        for approval in self.inbox.approvals(S):
            await self.inbox.approve(approval.id)
        self.gate.set()


async def check_append(stage: Stage, receipt: Receipt, mode: str) -> None:
    """It waits in its place, the turn goes on undisturbed, and then it has a turn of its own."""
    inbox, agent = stage.inbox, stage.agent
    assert receipt.disposition is MessageState.QUEUED
    assert receipt.position == 1
    assert receipt.reason
    if mode == "steer":
        assert receipt.reason.startswith("not steered")
    arrived = now_ms()
    await passing(10)
    assert waiting(inbox) == ["new"]
    assert agent.cancelled == []
    await stage.go_on()
    old, new = await finals(inbox, ["msg-1", receipt.message_id])
    assert (old.disposition, old.outcome, old.answer) == (MessageState.RAN, Outcome.SUCCEEDED, "old answer")
    assert (new.disposition, new.outcome) == (MessageState.RAN, Outcome.SUCCEEDED)
    assert new.turn_id != old.turn_id
    assert stage.heard == []
    assert SKIPPED not in stage.results.values()
    assert agent.prompts == ["old", "new"]
    if mode == "collect" and stage.state != "NS starting":
        assert agent.began_at[1] == arrived + DEBOUNCE


async def check_steer(stage: Stage, receipt: Receipt, mode: str) -> None:
    """It is parked, goes in at the next boundary, and ends with the turn."""
    inbox, agent = stage.inbox, stage.agent
    assert (mode, receipt.disposition) == ("steer", MessageState.PARKED)
    await passing(10)
    assert (await inbox.status(receipt.message_id)).disposition is MessageState.PARKED
    await stage.go_on()
    old, new = await finals(inbox, ["msg-1", receipt.message_id])
    assert (old.outcome, old.answer) == (Outcome.SUCCEEDED, "old answer")
    assert (new.disposition, new.outcome, new.turn_id) == (MessageState.STEERED, Outcome.SUCCEEDED, old.turn_id)
    assert stage.heard == ["new"]
    assert agent.prompts == ["old"]
    if stage.state == "Ts":
        assert stage.results == {"t1": "ran", "t2": SKIPPED, "t3": SKIPPED}
    if stage.state == "Tp":
        assert stage.results == dict.fromkeys(PARALLEL, "ran")


async def check_cut(stage: Stage, receipt: Receipt, mode: str) -> None:
    """The turn is cancelled at once, and the newcomer runs."""
    inbox, agent = stage.inbox, stage.agent
    assert (mode, receipt.disposition) == ("interrupt", MessageState.QUEUED)
    at = now_ms()
    old, new = await finals(inbox, ["msg-1", receipt.message_id])
    assert (old.disposition, old.outcome, old.answer) == (MessageState.RAN, Outcome.INTERRUPTED, None)
    assert receipt.message_id in old.reason
    assert (new.disposition, new.outcome) == (MessageState.RAN, Outcome.SUCCEEDED)
    assert now_ms() == at or stage.state == "NS starting"  # there the store is slow
    assert agent.prompts[-1] == "new"
    assert stage.heard == []
    if stage.state == "Tp":
        assert stage.results == dict.fromkeys(PARALLEL, "cancelled")
    if stage.state == "AP":
        assert inbox.approvals(S) == []
        assert stage.approval in (None, ApprovalState.SUPERSEDED)


CHECKS = {"append": check_append, "steer": check_steer, "cut": check_cut}


@pytest.mark.parametrize(("state", "mode", "verdict"), CELLS)
@staged
async def test_a_cell_of_the_table_holds(state: str, mode: str, verdict: str) -> None:
    stage = Stage(state)
    async with stage.inbox:
        await stage.enter()
        receipt = await stage.send(mode)
        await CHECKS[verdict](stage, receipt, mode)
        assert waiting(stage.inbox) == []


@pytest.mark.parametrize("mode", [*Mode, "queue", "steer+backlog"])
@staged
async def test_an_idle_session_without_messages_runs_every_mode_now(mode: str) -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        receipt = await inbox.submit(S, "new", mode=mode)
        assert (receipt.disposition, receipt.position) == (MessageState.QUEUED, 1)
        assert (await inbox.wait(receipt.message_id)).disposition is MessageState.RAN
        assert now_ms() == 0


async def idle_with_one_waiting(inbox: Inbox, agent: Agent) -> tuple[str, int]:
    """An idle session in which one message waits out its debounce; its id and when it came."""
    await busy(inbox, agent)
    (waits,) = await send(inbox, "waits", mode="collect")
    at = now_ms()
    agent.let_go()
    await passing(10)
    assert (agent.running, waiting(inbox)) == (0, ["waits"])
    return waits, at


@pytest.mark.parametrize(
    ("mode", "prompts"),
    [
        ("steer", ["waits", "new"]),
        ("followup", ["waits", "new"]),
        ("collect", [collected(("", "waits"), ("", "new"))]),
        ("interrupt", ["new", "waits"]),
        ("rollback", ["new", "waits"]),
    ],
)
@staged
async def test_an_idle_session_with_messages_waiting_appends_but_for_interrupts(mode: str, prompts: list[str]) -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        waits, at = await idle_with_one_waiting(inbox, agent)
        receipt = await inbox.submit(S, "new", mode=mode)
        assert (receipt.disposition, receipt.position) == (MessageState.QUEUED, 2)
        await finals(inbox, [waits, receipt.message_id])
    assert agent.prompts[1:] == prompts
    first = {"collect": at + 1010, "interrupt": at + 10, "rollback": at + 10}.get(mode, at + 1000)
    assert agent.began_at[1] == first


@staged
async def test_an_older_waiting_interrupt_is_superseded_and_other_modes_keep_their_place() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        inbox.lanes.pause("main")
        one, two = await send(inbox, "one", "two", mode="followup")
        old = (await inbox.submit(S, "old cut", mode="interrupt")).message_id
        three = (await inbox.submit(S, "three", mode="followup")).message_id
        new = (await inbox.submit(S, "new cut", mode="interrupt")).message_id
        assert waiting(inbox) == ["one", "two", "three", "new cut"]
        end = await inbox.wait(old)
        assert end.disposition is MessageState.SUPERSEDED
        assert end.outcome is None
        assert new in end.reason
        inbox.lanes.resume("main")
        await finals(inbox, [one, two, three, new])
    assert agent.prompts == ["new cut", "one", "two", "three"]
    (ended,) = [event for event in log.of("message.ended") if event.message_id == old]
    assert ended.reason == end.reason


@pytest.mark.parametrize("mode", ["steer", "followup", "collect", "interrupt", "steer-backlog", "rollback"])
@staged
async def test_what_comes_while_the_inbox_closes_is_stored_and_runs_after_the_start(mode: str) -> None:
    store = CutStore()
    agent, after = Agent(), Agent()
    inbox = new_inbox(agent, store=store)
    async with inbox:
        await busy(inbox, agent)
        closing = asyncio.get_running_loop().create_task(inbox.close())
        await passing(10)
        receipt = await inbox.submit(S, "new", mode=mode)
        assert receipt.disposition in (MessageState.QUEUED, MessageState.PARKED)
        agent.let_go()
        await closing
    assert agent.prompts == ["hold"]
    async with new_inbox(after, store=MemoryStore(store._disk)) as second:  # noqa: SLF001 - it is closed by now
        assert (await second.wait(receipt.message_id)).disposition is MessageState.RAN
    assert after.prompts == ["new"]


# ---- the modes beside the four -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["steer-backlog", "steer+backlog", "Steer_Backlog"])
@pytest.mark.parametrize("state", ["M", "Ts", "Tp", "C"])
@staged
async def test_steer_backlog_goes_in_and_is_kept_for_a_turn_of_its_own(state: str, mode: str) -> None:
    stage = Stage(state)
    async with stage.inbox as inbox, Log(inbox) as log:
        await stage.enter()
        receipt = await stage.send(mode)
        arrived = now_ms()
        assert receipt.disposition is MessageState.PARKED
        await stage.go_on()
        old, new = await finals(inbox, ["msg-1", receipt.message_id])
    assert stage.heard == ["new"]
    assert stage.agent.prompts == ["old", "new"]
    assert stage.agent.began_at[1] == arrived + DEBOUNCE
    assert (new.disposition, new.outcome) == (MessageState.RAN, Outcome.SUCCEEDED)
    assert new.turn_id != old.turn_id
    kinds = [event.type for event in log.about(receipt.message_id)]
    assert kinds == ["message.accepted", "message.injected", "message.returned", "message.started", "message.ended"]
    injected = next(event for event in log.about(receipt.message_id) if event.type == "message.injected")
    assert injected.turn_id == old.turn_id


@pytest.mark.parametrize("state", ["NS starting", "NS thread", "NS rights", "AP", "E"])
@staged
async def test_steer_backlog_that_cannot_go_in_has_its_turn_only(state: str) -> None:
    stage = Stage(state)
    async with stage.inbox:
        await stage.enter()
        receipt = await stage.send("steer-backlog")
        assert receipt.disposition is MessageState.QUEUED
        await stage.go_on()
        assert (await stage.inbox.wait(receipt.message_id)).disposition is MessageState.RAN
    assert stage.heard == []
    assert stage.agent.prompts == ["old", "new"]


@pytest.mark.parametrize("state", ["M", "Ts", "Tp", "C"])
@staged
async def test_queue_is_another_word_for_steer(state: str) -> None:
    stage = Stage(state)
    async with stage.inbox:
        await stage.enter()
        await check_steer(stage, await stage.send("queue"), "steer")
        assert stage.agent.turns[0].mode is Mode.COLLECT


@pytest.mark.parametrize("state", list(BUSY))
@staged
async def test_reject_is_refused_while_the_session_is_busy(state: str) -> None:
    stage = Stage(state)
    async with stage.inbox as inbox, Log(inbox) as log:
        await stage.enter()
        receipt = await stage.send("reject")
        assert (receipt.disposition, receipt.position) == (MessageState.REJECTED, None)
        assert "busy" in receipt.reason
        assert waiting(inbox) == []
        await stage.go_on()
        old, new = await finals(inbox, ["msg-1", receipt.message_id])
        assert (old.outcome, new.disposition, new.outcome) == (Outcome.SUCCEEDED, MessageState.REJECTED, None)
    assert stage.agent.prompts == ["old"]
    (ended,) = log.about(receipt.message_id)
    assert (ended.type, ended.state) == ("message.ended", MessageState.REJECTED)
    assert ended.notice


@staged
async def test_reject_is_refused_while_others_wait() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        waits, at = await idle_with_one_waiting(inbox, agent)
        assert (await inbox.submit(S, "new", mode="reject")).disposition is MessageState.REJECTED
        await inbox.wait(waits)
    assert agent.began_at[1] == at + 1000  # a refused message does not restart the debounce


@pytest.mark.parametrize("state", [state for state in BUSY if state != "E"])
@staged
async def test_rollback_ends_the_turn_and_forgets_what_it_was_about(state: str) -> None:
    stage = Stage(state)
    async with stage.inbox as inbox:
        await stage.enter()
        receipt = await stage.send("rollback")
        await check_cut(stage, receipt, "interrupt")
        assert [entry.text for entry in await inbox.history(S)] == ["new", "re: new"]
        assert "old" in await inbox.transcript(S)  # forgotten for the agent, not for an auditor


# ---- modes that are chosen per message -----------------------------------------------------------------------


@staged
async def test_a_callable_sees_the_session_and_decides_per_message() -> None:
    views: list[SessionView] = []

    def choose(view: SessionView) -> str:
        views.append(view)
        return "interrupt" if view.message.text.isupper() else "followup"

    agent = Agent()
    async with new_inbox(agent, mode=choose) as inbox:
        first = await busy(inbox, agent)
        await passing(99)
        await send(inbox, "later")
        (shout,) = await send(inbox, "NOW")
        await inbox.wait(shout)
        assert (await inbox.wait(first)).outcome is Outcome.INTERRUPTED
        await passing(10)
    assert agent.prompts == ["hold", "NOW", "later"]
    assert [(view.busy, view.waiting, view.running_ms) for view in views] == [
        (False, 0, 0),
        (True, 0, 100),
        (True, 1, 100),
    ]
    assert [view.turn_state for view in views] == [None, TurnState.THINKING, TurnState.THINKING]
    assert [view.session_key for view in views] == [S, S, S]


@staged
async def test_a_mode_given_with_the_message_goes_before_a_callable() -> None:
    agent = Agent()
    async with new_inbox(agent, mode=lambda view: "interrupt") as inbox:
        await busy(inbox, agent)
        receipt = await inbox.submit(S, "wait", mode="followup")
        agent.let_go()
        await inbox.wait(receipt.message_id)
    assert agent.cancelled == []
    assert agent.prompts == ["hold", "wait"]


def _raises(view: SessionView) -> str:
    raise ZeroDivisionError("oops")


async def _is_async(view: SessionView) -> str:
    return "steer"


@pytest.mark.parametrize("choose", [_raises, _is_async, lambda view: "sideways", lambda view: 7, lambda view: None])
@staged
async def test_a_callable_that_cannot_decide_refuses_the_message_and_changes_nothing(choose: Any) -> None:
    agent = Agent()
    async with new_inbox(agent, mode=choose) as inbox:
        with pytest.raises(UsageError):
            await inbox.submit(S, "hello")
        assert waiting(inbox) == []
        receipt = await inbox.submit(S, "hello", mode="followup")
        assert (await inbox.wait(receipt.message_id)).outcome is Outcome.SUCCEEDED
    assert agent.prompts == ["hello"]


@staged
async def test_a_steer_aims_at_one_turn_and_never_at_the_next() -> None:
    """It keeps its place: the turn after the one it was aimed at is over it, not steered by it."""
    heard: list[list[str]] = []

    async def looks(turn: Turn) -> str:
        heard.append(texts_of(await turn.boundary()))
        return "looked"

    agent = Agent(looks=looks)
    async with new_inbox(agent, mode="steer") as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "looks 1", "looks 2", mode="followup")
        (steer,) = await send(inbox, "steer")
        agent.let_go()
        ends: list[Final] = await finals(inbox, [*ids, steer])
    assert agent.prompts == ["hold", "looks 1", "looks 2", "steer"]
    assert heard == [[], []]
    assert [end.disposition for end in ends] == [MessageState.RAN] * 3


@staged
async def test_an_interrupt_ends_a_turn_that_an_interrupt_began() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="interrupt") as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "hold 1")
        await passing()
        ids += await send(inbox, "hold 2")
        await passing()
        ids += await send(inbox, "last")
        ends = await finals(inbox, ids)
    assert agent.prompts == ["hold", "hold 1", "hold 2", "last"]
    assert [end.outcome for end in ends] == [Outcome.INTERRUPTED, Outcome.INTERRUPTED, Outcome.SUCCEEDED]


@staged
async def test_only_the_newest_of_many_interrupts_runs_after_a_turn_that_takes_its_time_to_end() -> None:
    async def slow(turn: Turn) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await passing(500)
        return ""

    agent = Agent(slow=slow)
    async with new_inbox(agent, mode="interrupt") as inbox:
        await busy(inbox, agent, "slow")
        at = now_ms()
        ids = await send(inbox, "a", "b", "c")
        ends = await finals(inbox, ids)
        assert now_ms() == at + 500
    assert agent.prompts == ["slow", "c"]
    assert [end.disposition for end in ends] == [MessageState.SUPERSEDED, MessageState.SUPERSEDED, MessageState.RAN]
