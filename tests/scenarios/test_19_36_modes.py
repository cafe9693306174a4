"""Scenarios 19 to 36 of the behaviour page: what a message does to a session, mode by mode."""

from __future__ import annotations

import asyncio

import pytest

from laneway import FencedError, InterruptSignalError, MessageState, Mode, Outcome, Turn, TurnState
from laneway.kernel.texts import SKIPPED
from tests.inbox_stage import (
    GUEST,
    OWNER,
    Agent,
    Log,
    S,
    busy,
    collected,
    dispositions,
    finals,
    new_inbox,
    send,
    texts_of,
    waiting,
)
from tests.stage import now_ms, passing, simulated

TIMES = [*Mode, "queue"]


class Tools:
    """An agent with tools, as a handler: plans of calls, each begun at a boundary, and what the model gets to see."""

    def __init__(self, *plans: tuple[str, ...]) -> None:
        self.plans = plans
        self.ran: list[str] = []
        self.results: dict[str, str] = {}
        self.heard: list[list[str]] = []  # what each model call was told
        self.gates: dict[str, asyncio.Event] = {}

    async def __call__(self, turn: Turn) -> str:
        """Run plan after plan; a message that comes in between skips what is left of the plan."""
        news: list[str] = []
        for plan in self.plans:
            news += texts_of(await turn.boundary())
            self.heard.append(news)
            news = []
            for number, call in enumerate(plan):
                taken = texts_of(await turn.boundary()) if number else []
                if taken:
                    news = taken
                    self.results.update(turn.skipped(plan[number:]))
                    break
                await self.use(turn, call)
        news += texts_of(await turn.boundary())
        self.heard.append(news)
        return "done"

    async def use(self, turn: Turn, call: str) -> None:
        """One tool."""
        self.ran.append(call)
        async with turn.phase("acting"):
            await self.gate(call).wait()
        self.results[call] = f"result of {call}"

    def gate(self, call: str) -> asyncio.Event:
        """What a tool waits for."""
        return self.gates.setdefault(call, asyncio.Event())


@pytest.mark.parametrize("mode", TIMES)
@pytest.mark.parametrize("debounce_ms", [0, 60_000])
@simulated
async def test_19_an_idle_session_runs_a_message_of_any_mode_at_once(mode: str, debounce_ms: int) -> None:
    """Idle / a message in any mode / runs at once."""
    agent = Agent()
    async with new_inbox(agent, debounce_ms=debounce_ms) as inbox:
        receipt = await inbox.submit(S, "hello", mode=mode)
        final = await inbox.wait(receipt.message_id)
        assert now_ms() == 0
        assert (final.disposition, final.outcome) == (MessageState.RAN, Outcome.SUCCEEDED)
        assert final.answer == "re: hello"
    assert agent.prompts == ["hello"]


@simulated
async def test_20_collect_makes_one_turn_of_three_messages() -> None:
    """Busy, collect / three messages on one route / one turn, title, numbered blocks, in order."""
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        await busy(inbox, agent, channel="tg", thread="7")
        ids = [
            (await inbox.submit(S, text, channel="tg", thread="7", sender=sender)).message_id
            for text, sender in (("one", "ada"), ("two\nlines", "bob"), ("three", "ada"))
        ]
        agent.let_go()
        ends = await finals(inbox, ids)
    assert agent.prompts == ["hold", collected(("ada", "one"), ("bob", "two\nlines"), ("ada", "three"))]
    assert [turn.messages[0].text for turn in agent.turns] == ["hold", "one"]
    assert texts_of(agent.turns[1].messages) == ["one", "two\nlines", "three"]
    assert {(end.disposition, end.outcome, end.turn_id) for end in ends} == {
        (MessageState.MERGED, Outcome.SUCCEEDED, agent.turns[1].id)
    }
    started = [event for event in log.of("message.started") if event.message_id in ids]
    assert [(event.message_id, event.number) for event in started] == list(zip(ids, (1, 2, 3), strict=True))


@simulated
async def test_21_followup_gives_each_of_three_messages_a_turn() -> None:
    """Busy, followup / three / three turns."""
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "one", "two", "three")
        agent.let_go()
        ends = await finals(inbox, ids)
        assert now_ms() == 1  # no debounce
    assert agent.prompts == ["hold", "one", "two", "three"]
    assert [end.disposition for end in ends] == [MessageState.RAN] * 3
    assert len({end.turn_id for end in ends}) == 3


@simulated
async def test_22_a_batch_of_one_is_bare() -> None:
    """Batch of one / drain / bare text, same message id."""
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        receipt = await inbox.submit(S, "only\n\nme", message_id="tg-77", sender="ada")
        agent.let_go()
        final = await inbox.wait(receipt.message_id)
    assert agent.prompts == ["hold", "only\n\nme"]
    (message,) = agent.turns[1].messages
    assert (message.id, message.message_id) == (receipt.message_id, "tg-77")
    assert final.disposition is MessageState.RAN


@simulated
async def test_23_threads_have_turns_of_their_own() -> None:
    """Different threads / collect / separate turns, each on its thread."""
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox, "turn.replied") as log:
        await busy(inbox, agent)
        ids = [
            (await inbox.submit(S, text, channel="tg", thread=thread)).message_id
            for text, thread in (("a1", "A"), ("a2", "A"), ("b1", "B"), ("a3", "A"))
        ]
        agent.let_go()
        ends = await dispositions(inbox, ids)
    assert agent.prompts[1:] == [collected(("", "a1"), ("", "a2")), "b1", "a3"]
    assert [turn.route.thread for turn in agent.turns[1:]] == ["A", "B", "A"]
    assert [(event.channel, event.thread) for event in log.events[1:]] == [("tg", "A"), ("tg", "B"), ("tg", "A")]  # type: ignore[attr-defined]
    assert ends == [MessageState.MERGED, MessageState.MERGED, MessageState.RAN, MessageState.RAN]


@simulated
async def test_24_guest_and_owner_never_share_a_turn() -> None:
    """Guest and owner / collect / never in one turn."""
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "g1", "g2", sender=GUEST)
        ids += await send(inbox, "o1", sender=OWNER)
        ids += await send(inbox, "g3", sender=GUEST)
        agent.let_go()
        await finals(inbox, ids)
    assert [texts_of(turn.messages) for turn in agent.turns[1:]] == [["g1", "g2"], ["o1"], ["g3"]]
    assert all(len({message.sender for message in turn.messages}) == 1 for turn in agent.turns)


@simulated
async def test_25_a_steer_lets_the_first_of_five_tools_finish_and_skips_four() -> None:
    """Steer, five sequential tools, message during the first / first finishes, four paired skips, then the message."""
    tools = Tools(("t1", "t2", "t3", "t4", "t5"))
    async with new_inbox(tools, mode="steer") as inbox:
        first = await inbox.submit(S, "work")
        await passing()
        steer = await inbox.submit(S, "no, the other file")
        assert steer.disposition is MessageState.PARKED
        tools.gate("t1").set()
        end = await inbox.wait(steer.message_id)
        ran = await inbox.wait(first.message_id)
    assert tools.ran == ["t1"]
    assert tools.results == {"t1": "result of t1", **dict.fromkeys(("t2", "t3", "t4", "t5"), SKIPPED)}
    assert SKIPPED == "[Skipped: user sent new message — redirecting]"
    assert tools.heard == [[], ["no, the other file"]]
    assert (end.disposition, end.outcome, end.turn_id) == (MessageState.STEERED, Outcome.SUCCEEDED, ran.turn_id)


@simulated
async def test_26_tools_of_the_plan_after_a_redirect_run_normally() -> None:
    """Steer / tools of the plan after the redirect / run normally."""
    tools = Tools(("t1", "t2"), ("u1", "u2", "u3"))
    async with new_inbox(tools, mode="steer") as inbox:
        await inbox.submit(S, "work")
        await passing()
        steer = await inbox.submit(S, "new plan please")
        for call in ("t1", "u1", "u2", "u3"):
            tools.gate(call).set()
        await inbox.wait(steer.message_id)
    assert tools.ran == ["t1", "u1", "u2", "u3"]
    assert tools.results["t2"] == SKIPPED
    assert tools.heard == [[], ["new plan please"], []]


@simulated
async def test_27_a_launched_parallel_batch_is_not_recalled() -> None:
    """Parallel batch launched / message / none recalled; it goes in after the batch."""
    gate = asyncio.Event()
    ended: list[int] = []
    heard: list[str] = []

    async def tool(number: int) -> int:
        await gate.wait()
        ended.append(number)
        return number

    async def batch(turn: Turn) -> str:
        assert await turn.boundary() == []
        async with turn.phase("acting"):
            results = await asyncio.gather(*(tool(number) for number in range(4)))
        heard.extend(texts_of(await turn.boundary()))
        return f"{results}"

    async with new_inbox(batch, mode="steer") as inbox:
        first = await inbox.submit(S, "work")
        await passing()
        steer = await inbox.submit(S, "while they run")
        await passing(50)
        assert (await inbox.status(steer.message_id)).disposition is MessageState.PARKED
        gate.set()
        assert (await inbox.wait(first.message_id)).answer == "[0, 1, 2, 3]"
        assert (await inbox.wait(steer.message_id)).disposition is MessageState.STEERED
    assert sorted(ended) == [0, 1, 2, 3]
    assert heard == ["while they run"]


@simulated
async def test_28_a_steer_that_was_not_taken_is_the_next_turn() -> None:
    """The turn ends before the steer is taken / a later message arrives / the steer is next, order kept."""
    agent = Agent()
    async with new_inbox(agent, mode="steer") as inbox:
        await busy(inbox, agent)
        first, second = await send(inbox, "hold first", "second")
        agent.let_go()
        await passing()
        (later,) = await send(inbox, "later", mode="followup")
        agent.let_go("hold first")
        ends = await finals(inbox, [first, second, later])
    assert agent.prompts == ["hold", "hold first", "second", "later"]
    assert [end.disposition for end in ends] == [MessageState.RAN] * 3


@simulated
async def test_29_a_refused_steer_does_not_stop_the_one_after_it() -> None:
    """Two steers, the first refused / second / still tried."""
    tools = Tools(("t1", "t2"))
    async with new_inbox(tools, mode="steer") as inbox:
        await inbox.submit(S, "work", thread="A")
        await passing()
        refused = await inbox.submit(S, "elsewhere", thread="B")
        tried = await inbox.submit(S, "here", thread="A")
        assert refused.disposition is MessageState.QUEUED
        assert "thread" in refused.reason
        assert tried.disposition is MessageState.PARKED
        tools.gate("t1").set()
        assert (await inbox.wait(tried.message_id)).disposition is MessageState.STEERED
        tools.gate("t2").set()
        assert (await inbox.wait(refused.message_id)).disposition is MessageState.RAN
    assert tools.heard[1] == ["here"]


@simulated
async def test_30_a_steer_waits_until_compaction_ends() -> None:
    """Steer during compaction / held, then injected."""
    gate = asyncio.Event()
    heard: list[list[str]] = []

    async def compacts(turn: Turn) -> str:
        async with turn.phase("compacting"):
            heard.append(texts_of(await turn.boundary()))
            await gate.wait()
            heard.append(texts_of(await turn.boundary()))
        heard.append(texts_of(await turn.boundary()))
        return "done"

    async with new_inbox(compacts, mode="steer") as inbox:
        first = await inbox.submit(S, "work")
        await passing()
        steer = await inbox.submit(S, "news")
        assert steer.disposition is MessageState.PARKED
        gate.set()
        end = await inbox.wait(steer.message_id)
        assert end.turn_id == (await inbox.wait(first.message_id)).turn_id
    assert heard == [[], [], ["news"]]
    assert end.disposition is MessageState.STEERED


@simulated
async def test_31_a_steer_from_another_thread_waits_its_turn() -> None:
    """Steer from another thread / waits."""
    tools = Tools(("t1",), ("t2",))
    async with new_inbox(tools, mode="steer") as inbox:
        await inbox.submit(S, "work", channel="tg", thread="A")
        await passing()
        other = await inbox.submit(S, "from B", channel="tg", thread="B")
        assert (other.disposition, other.position) == (MessageState.QUEUED, 1)
        for call in ("t1", "t2"):
            tools.gate(call).set()
        end = await inbox.wait(other.message_id)
    assert tools.heard == [[], [], [], [], [], []]
    assert tools.ran == ["t1", "t2", "t1", "t2"]
    assert end.disposition is MessageState.RAN


@simulated
async def test_32_an_interrupt_ends_the_turn_and_runs_the_newest() -> None:
    """Interrupt / message / turn cancelled, calls paired, nothing of the old turn is delivered after, newest runs."""
    paired: dict[str, str] = {}

    async def work(turn: Turn) -> str:
        await turn.reply("I begin")
        for call in ("c1", "c2"):
            paired[call] = "open"
        try:
            async with turn.phase("acting"):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            paired.update(dict.fromkeys(paired, "cancelled"))
            with pytest.raises(InterruptSignalError):
                await turn.reply("too late")
            raise
        return "never"

    agent = Agent(work=work)
    async with new_inbox(agent, mode="interrupt") as inbox, Log(inbox) as log:
        old = await busy(inbox, agent, "work")
        new = await inbox.submit(S, "now this")
        end = await inbox.wait(new.message_id)
        past = await inbox.wait(old)
    assert paired == {"c1": "cancelled", "c2": "cancelled"}
    assert agent.prompts == ["work", "now this"]
    assert log.answers() == ["I begin", "re: now this"]
    assert (past.disposition, past.outcome) == (MessageState.RAN, Outcome.INTERRUPTED)
    assert new.message_id in past.reason
    assert (end.disposition, end.outcome) == (MessageState.RAN, Outcome.SUCCEEDED)
    ended = {event.turn_id: event.state for event in log.of("turn.ended")}
    assert ended == {past.turn_id: TurnState.CANCELLED, end.turn_id: TurnState.SUCCEEDED}


@simulated
async def test_32_a_turn_that_will_not_die_is_fenced_and_the_message_still_runs() -> None:
    """Interrupt / a handler that ignores it / fenced after the grace, says nothing more, the newest runs."""
    late: list[BaseException] = []
    gate = asyncio.Event()

    async def clings(turn: Turn) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                assert turn.cancelled
        try:
            await turn.reply("still here")
        except FencedError as error:
            late.append(error)
        return "stale answer"

    agent = Agent(clings=clings)
    async with new_inbox(agent, mode="interrupt", interrupt_grace_ms=3_000) as inbox, Log(inbox) as log:
        old = await busy(inbox, agent, "clings")
        at = now_ms()
        new = await inbox.submit(S, "now this")
        end = await inbox.wait(new.message_id)
        assert now_ms() == at + 3_000
        past = await inbox.wait(old)
        gate.set()
        await passing(10)
        assert [type(error) for error in late] == [FencedError]
    assert agent.prompts == ["clings", "now this"]
    assert log.answers() == ["re: now this"]
    assert (past.disposition, past.outcome) == (MessageState.RAN, Outcome.INTERRUPTED)
    assert "fenced" in past.reason
    assert end.outcome is Outcome.SUCCEEDED
    assert agent.turns[0].state is TurnState.FENCED


@simulated
async def test_33_a_finished_answer_is_delivered_before_the_next_turn() -> None:
    """Answer finished and a message arrives after the last tool / answer delivered, message is the next turn."""
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        assert await turn.boundary() == []
        await gate.wait()
        return "finished answer"

    agent = Agent(work=work)
    async with new_inbox(agent, mode="steer") as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        steer = await inbox.submit(S, "one more thing")
        gate.set()
        past, end = await finals(inbox, [first, steer.message_id])
    assert past.answer == "finished answer"
    assert log.answers() == ["finished answer", "re: one more thing"]
    assert end.disposition is MessageState.RAN
    assert end.turn_id != past.turn_id


@simulated
async def test_33_while_the_answer_is_delivered_nothing_goes_in_and_nothing_is_discarded() -> None:
    """Delivery still running / a steer and an interrupt / both run after it, the answer stays."""
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        async with turn.phase("delivering"):
            await gate.wait()
        return "finished answer"

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        steer = await inbox.submit(S, "steer", mode="steer")
        cut = await inbox.submit(S, "cut", mode="interrupt")
        assert steer.disposition is MessageState.QUEUED
        gate.set()
        past, *_ = await finals(inbox, [first, cut.message_id, steer.message_id])
    assert (past.outcome, past.answer) == (Outcome.SUCCEEDED, "finished answer")
    assert log.answers()[0] == "finished answer"
    assert agent.prompts[0] == "work"
    assert set(agent.prompts[1:]) == {"cut", "steer"}


@simulated
async def test_34_system_messages_alone_skip_nothing() -> None:
    """Only system messages pending / boundary / no skip."""
    tools = Tools(("t1", "t2", "t3"))
    async with new_inbox(tools, mode="steer") as inbox:
        first = await inbox.submit(S, "work")
        await passing()
        note = await inbox.submit(S, "a sub-agent is done", kind="system")
        assert note.disposition is MessageState.QUEUED
        for call in ("t1", "t2", "t3"):
            tools.gate(call).set()
        await inbox.wait(first.message_id)
        assert tools.ran[:3] == ["t1", "t2", "t3"]
        assert SKIPPED not in tools.results.values()
        assert (await inbox.wait(note.message_id)).disposition is MessageState.RAN
    assert tools.heard[:2] == [[], []]


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.REJECT])
@simulated
async def test_35_a_running_heartbeat_gives_way_to_a_user(mode: Mode) -> None:
    """Heartbeat running / user message / heartbeat gives way."""
    agent = Agent()
    async with new_inbox(agent) as inbox:
        beat = await inbox.submit(S, "hold beat", kind="heartbeat")
        await passing()
        assert agent.prompts == ["hold beat"]
        user = await inbox.submit(S, "hello", mode=mode, sender="ada")
        end = await inbox.wait(user.message_id)
        assert now_ms() <= 1 + 1000  # a collected message may wait out its debounce
        gone = await inbox.wait(beat.message_id)
    assert agent.cancelled == ["hold beat"]
    assert (gone.disposition, gone.outcome) == (MessageState.RAN, Outcome.INTERRUPTED)
    assert (end.disposition, end.outcome) == (MessageState.RAN, Outcome.SUCCEEDED)


@simulated
async def test_35_a_heartbeat_is_skipped_while_a_user_turn_runs() -> None:
    """User turn running / heartbeat / skipped."""
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        beat = await inbox.submit(S, "beat", kind="heartbeat")
        assert beat.disposition is MessageState.DROPPED
        assert "heartbeat" in beat.reason
        assert waiting(inbox) == []
        agent.let_go()
        await passing(5_000)
    assert agent.prompts == ["hold"]


@pytest.mark.parametrize("mode", Mode)
@simulated
async def test_36_new_is_never_queued_and_nothing_leaks(mode: Mode) -> None:
    """`/new` while busy in any mode / not queued, nothing leaks."""
    agent = Agent()
    async with new_inbox(agent, mode=mode, commands=True) as inbox, Log(inbox) as log:
        old = await busy(inbox, agent)
        waits = [] if mode is Mode.REJECT else await send(inbox, "old news", mode="followup")
        reset = await inbox.submit(S, "/new")
        assert reset.disposition is MessageState.COMMAND
        assert reset.reply
        assert waiting(inbox) == []
        await passing(20_000)
        fresh = await inbox.submit(S, "fresh")
        end = await inbox.wait(fresh.message_id)
        assert (await inbox.wait(old)).outcome is Outcome.INTERRUPTED
        assert await dispositions(inbox, waits) == [MessageState.WITHDRAWN] * len(waits)
        lines = [(entry.role, entry.text) for entry in await inbox.history(S)]
    assert lines == [("user", "fresh"), ("assistant", "re: fresh")]
    assert agent.prompts == ["hold", "fresh"]
    assert log.answers() == ["re: fresh"]
    assert end.answer == "re: fresh"
