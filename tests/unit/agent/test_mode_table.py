"""The table of the behaviour page against the real agent loop: each mode in each state of a run, cell by cell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.dialogue import ModelRequest, Prompt, Results
from laneway.errors import ClosedError, ModelLimitedError
from laneway.kernel.texts import SKIPPED
from laneway.mail import MessageState, Mode, Outcome, Receipt, TurnState
from laneway.models import ScriptedModel, call, fail, say
from laneway.models.scripted import Piece
from laneway.options import ConfirmationPolicy, PermissionPolicy, SessionQueueConfig
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import (
    Bench,
    Delivered,
    Held,
    Watch,
    check_model,
    final_of,
    opened,
    post,
    prompts,
    results,
    sending,
    shape,
    use,
)
from tests.inbox_stage import GUEST, OWNER, CutStore, collected, staged
from tests.stage import now_ms, passing

DEBOUNCE = 1_000
LONG = "x" * 4_000
SEQUENTIAL = ("t1", "t2", "t3")
PARALLEL = ("p1", "p2", "p3")

MODES = ("steer", "steer-backlog", "followup", "collect", "interrupt", "reject", "rollback")
BUSY = {
    "M": "steer backlog append append cut refuse forget",
    "M last": "late late append append cut refuse forget",
    "Ts": "steer backlog append append cut refuse forget",
    "Tp": "steer backlog append append cut refuse forget",
    "NS starting": "append append append append cut refuse forget",
    "NS thread": "append append append append cut refuse forget",
    "NS rights": "append append append append cut refuse forget",
    "C": "steer backlog append append cut refuse forget",
    "AP": "append append append append cut refuse forget",
    "external": "steer backlog append append cut refuse forget",  # sequential calls that somebody else makes
    "child": "steer backlog append append cut refuse forget",  # a call that waits for a sub-agent
    "quota": "append append append append cut refuse forget",
    "E": "append append append append append append append",  # nothing runs any more: not even `reject` is refused
}
CELLS = [
    (state, mode, verdict) for state, row in BUSY.items() for mode, verdict in zip(MODES, row.split(), strict=True)
]
PHASES = {
    "Ts": TurnState.ACTING,
    "Tp": TurnState.ACTING,
    "NS starting": TurnState.STARTING,
    "C": TurnState.COMPACTING,
    "AP": TurnState.WAITING,
    "external": TurnState.ACTING,
    "child": TurnState.ACTING,
    "quota": TurnState.WAITING,
    "E": TurnState.DELIVERING,
}


class Stage:
    """A session in the middle of a run over `old`, in one state; and a newcomer, `new`.

    The model answers `new answer` as soon as it has heard `new`, and else calls its tools and says `old answer`.
    """

    def __init__(self, state: str) -> None:
        self.state = state
        self.first = Held()
        self.last = Held()
        self.summary = Held(say("the summary"))
        self.bench = Bench("t1", *PARALLEL)
        self.store = CutStore()
        window = 1_000 if state == "C" else None
        self.model = ScriptedModel([self._answer] * 20, context_tokens=window, summaries=[self.summary])
        self.options: dict[str, Any] = {"queue": state == "Tp", "session_store": self.store}
        if state == "external":
            self.options["queue"] = SessionQueueConfig().set_lane_handler("execute", "external")
        if state == "AP":
            self.options["permission_policy"] = PermissionPolicy(ask=("act",), allow=("*",))
            self.options["confirmation_policy"] = ConfirmationPolicy()
        if state == "child":
            self.options["subagents"] = True
        self.child = Held(say("dug"))
        self.limited = False

    async def _answer(self, request: ModelRequest) -> Sequence[Piece]:
        told = request.conversation
        if prompts(request) == ["dig"]:
            return await self.child(request)
        if "new" in prompts(request)[-1]:
            return [say("new answer")]
        if isinstance(told[-1], Prompt) and told[-1].text == LONG:
            return [say("long ago")]
        if isinstance(told[-1], Results) or self.state in ("NS thread", "NS rights", "NS starting", "C", "quota"):
            return await self._finish(request)
        if self.state == "M":
            await self.first(request)
            return use("act", "m1")
        if self.state == "AP":
            return use("act", "t1")
        if self.state == "child":
            return [call("task", prompt="dig").with_id("t1")]
        return use("look", *PARALLEL) if self.state == "Tp" else use("act", *SEQUENTIAL)

    async def _finish(self, request: ModelRequest) -> Sequence[Piece]:
        if self.state == "quota" and not self.limited:
            self.limited = True
            return [fail(ModelLimitedError("slow down", model="scripted", retry_after_ms=5_000))]
        if self.state in ("M last", "NS thread", "NS rights", "E"):
            await self.last(request)
        return [say("old answer")]

    async def enter(self, session: AsyncSession) -> None:
        """Bring the session into its state."""
        self.session = await session.ready()
        if self.state == "C":
            await session.send(LONG)
        if self.state in ("M last", "E"):
            self.bench.let_go()
        self.said = Delivered(session)
        if self.state == "NS starting":
            self.store.delay_ms = 50
        posting = asyncio.get_running_loop().create_task(post(session, "old", thread="A", sender=OWNER))
        await passing(10)
        if self.state == "E":
            self.store.delay_ms = 50
            self.last.let_go()
            await passing(10)
        turns = session.host.inbox.engine.kernel.turns.values()
        wanted = PHASES.get(self.state, TurnState.THINKING)
        if self.state != "E":  # there the turn has ended, and its end is not on disk yet
            assert [turn.state for turn in turns if turn.owner == session.owner] == [wanted]
        self._posting = posting

    async def send(self, mode: str) -> Receipt:
        """The newcomer."""
        thread = "B" if self.state == "NS thread" else "A"
        sender = GUEST if self.state == "NS rights" else OWNER
        self.at = now_ms()
        receipt = await post(self.session, "new", mode, thread=thread, sender=sender)
        self.store.delay_ms = 0
        self.old = (await self._posting).message_id
        return receipt

    async def delivered(self) -> list[str]:
        """What the session has said to the outside."""
        return [text for text in await self.said.texts() if text != "dug"]  # which its sub-agent says

    def go_on(self) -> None:
        """Let everything end."""
        self.first.let_go()
        self.last.let_go()
        self.summary.let_go()
        self.child.let_go()
        self.bench.let_go()
        if self.state in ("AP", "external"):
            asyncio.get_running_loop().create_task(self._answer_for_others())

    async def _answer_for_others(self) -> None:
        """Approve what is asked about, and make the calls that somebody else is to make."""
        for approval in await self.session.approvals():
            assert await self.session.approve(approval.id)
        while not self._posting.done() or self.session.current_run() is not None:
            for task in await self.session.pending_external_tasks():
                assert await self.session.complete_external_task(task["task_id"], f"result of {task['payload']['key']}")
            await passing(1)


async def check_append(stage: Stage, receipt: Receipt, mode: str) -> None:
    """It waits in its place; the run goes on undisturbed; then it has a run of its own, which knows the old one."""
    assert receipt.disposition is MessageState.QUEUED
    if mode.startswith("steer") and stage.state != "E":
        assert receipt.reason.startswith("not steered")
    await passing(10)
    stage.go_on()
    old, new = [await final_of(stage.session, each) for each in (stage.old, receipt)]
    assert (old.disposition, old.outcome, old.answer) == (MessageState.RAN, Outcome.SUCCEEDED, "old answer")
    assert (new.disposition, new.outcome, new.answer) == (MessageState.RAN, Outcome.SUCCEEDED, "new answer")
    assert old.turn_id != new.turn_id
    assert await stage.delivered() == ["old answer", "new answer"]
    assert shape(stage.model.requests[-1])[-2:] == ["model: old answer", "user: new"]
    assert stage.bench.cancelled == []
    assert SKIPPED not in [each.output for each in results(stage.model.requests[-1])]


async def check_steer(stage: Stage, receipt: Receipt, mode: str) -> None:
    """It is parked, the model hears it before it is asked again, and it ends with the run."""
    assert receipt.disposition is MessageState.PARKED
    await passing(10)
    assert (await stage.session.host.inbox.status(receipt.message_id)).disposition is MessageState.PARKED
    stage.go_on()
    old, new = [await final_of(stage.session, each) for each in (stage.old, receipt)]
    assert (old.disposition, old.outcome, old.answer) == (MessageState.RAN, Outcome.SUCCEEDED, "new answer")
    assert (new.outcome, new.answer) == (Outcome.SUCCEEDED, "new answer")
    assert stage.bench.cancelled == []
    if mode == "steer":
        assert (new.disposition, new.turn_id) == (MessageState.STEERED, old.turn_id)
        assert await stage.delivered() == ["new answer"]
    steered = next(request for request in stage.model.requests if prompts(request)[-1] == "new")
    ends = {
        "M": ["user: old", "calls m1", "results m1=skipped", "user: new"],
        "Ts": ["user: old", "calls t1 t2 t3", "results t1=ok t2=skipped t3=skipped", "user: new"],
        "Tp": ["user: old", "calls p1 p2 p3", "results p1=ok p2=ok p3=ok", "user: new"],
        "external": ["user: old", "calls t1 t2 t3", "results t1=ok t2=skipped t3=skipped", "user: new"],
        "child": ["user: old", "calls t1", "results t1=ok", "user: new"],
        "C": ["system: [Summary of the conversation so far]\nthe summary", "user: old", "user: new"],
    }
    assert shape(steered) == ends[stage.state]


async def check_backlog(stage: Stage, receipt: Receipt, mode: str) -> None:
    """It goes in, and has a run of its own after the quiet window."""
    await check_steer(stage, receipt, mode)
    old, new = [await final_of(stage.session, each) for each in (stage.old, receipt)]
    assert (new.disposition, new.turn_id != old.turn_id) == (MessageState.RAN, True)
    assert now_ms() == stage.at + DEBOUNCE
    assert await stage.delivered() == ["new answer", "new answer"]
    assert shape(stage.model.requests[-1])[-2:] == ["model: new answer", "user: new"]


async def check_late(stage: Stage, receipt: Receipt, mode: str) -> None:
    """The run ends before it could go in: it is the next turn."""
    assert receipt.disposition is MessageState.PARKED
    stage.go_on()
    old, new = [await final_of(stage.session, each) for each in (stage.old, receipt)]
    assert (old.answer, new.disposition, new.answer) == ("old answer", MessageState.RAN, "new answer")
    assert await stage.delivered() == ["old answer", "new answer"]
    assert mode in ("steer", "steer-backlog")


async def check_cut(stage: Stage, receipt: Receipt, mode: str) -> None:
    """The run ends at once, every call has its result, nothing of it is delivered, and the newcomer runs."""
    at = now_ms()
    old, new = [await final_of(stage.session, each) for each in (stage.old, receipt)]
    assert (old.disposition, old.outcome, old.answer) == (MessageState.RAN, Outcome.INTERRUPTED, None)
    assert receipt.message_id in old.reason
    assert (new.disposition, new.outcome, new.answer) == (MessageState.RAN, Outcome.SUCCEEDED, "new answer")
    waited = {"quota": 4_990, "NS starting": 140}  # the model takes nobody before, and the store is slow
    assert now_ms() - at <= waited.get(stage.state, 0)
    stage.go_on()
    await passing()
    assert await stage.delivered() == ["new answer"]
    assert mode == "interrupt"
    ends = {
        "NS starting": ["user: new"],  # it never began
        "M last": ["user: old", "calls t1 t2 t3", "results t1=ok t2=ok t3=ok", "user: new"],
        "Ts": ["user: old", "calls t1 t2 t3", "results t1=unknown t2=cancelled t3=cancelled", "user: new"],
        "Tp": ["user: old", "calls p1 p2 p3", "results p1=cancelled p2=cancelled p3=cancelled", "user: new"],
        "C": [f"user: {LONG}", "model: long ago", "user: old", "user: new"],
        "AP": ["user: old", "calls t1", "results t1=cancelled", "user: new"],
        "child": ["user: old", "calls t1", "results t1=unknown", "user: new"],  # who knows what it has done
        "external": ["user: old", "calls t1 t2 t3", "results t1=cancelled t2=cancelled t3=cancelled", "user: new"],
    }
    if stage.state != "C":  # there it compacts again, which the newcomer needs as well
        assert shape(stage.model.requests[-1]) == ends.get(stage.state, ["user: old", "user: new"])
    cut = {"Ts": ["t1"], "Tp": list(PARALLEL)}.get(stage.state, [])
    assert sorted(stage.bench.cancelled) == cut


async def check_refuse(stage: Stage, receipt: Receipt, mode: str) -> None:
    """It is refused, and the run does not notice."""
    assert (mode, receipt.disposition, receipt.position) == ("reject", MessageState.REJECTED, None)
    stage.go_on()
    old = await final_of(stage.session, stage.old)
    assert (old.outcome, old.answer) == (Outcome.SUCCEEDED, "old answer")
    assert await stage.delivered() == ["old answer"]
    assert all("new" not in prompts(request) for request in stage.model.requests)


async def check_forget(stage: Stage, receipt: Receipt, mode: str) -> None:
    """The run ends at once and is forgotten: the model never hears of it again."""
    old, new = [await final_of(stage.session, each) for each in (stage.old, receipt)]
    assert (old.outcome, new.outcome, new.answer) == (Outcome.INTERRUPTED, Outcome.SUCCEEDED, "new answer")
    stage.go_on()
    await passing()
    assert await stage.delivered() == ["new answer"]
    assert mode == "rollback"
    assert "old" not in prompts(stage.model.requests[-1])
    assert results(stage.model.requests[-1]) == []
    history = [said.text for said in await stage.session.history() if isinstance(said, Prompt)]
    assert "old" not in history


CHECKS: dict[str, Callable[[Stage, Receipt, str], Any]] = {
    "append": check_append,
    "steer": check_steer,
    "backlog": check_backlog,
    "late": check_late,
    "cut": check_cut,
    "refuse": check_refuse,
    "forget": check_forget,
}


@pytest.mark.parametrize(("state", "mode", "verdict"), CELLS)
@staged
async def test_a_cell_of_the_table_holds(state: str, mode: str, verdict: str) -> None:
    stage = Stage(state)
    async with opened(stage.model, stage.bench, **stage.options) as session:
        await stage.enter(session)
        receipt = await stage.send(mode)
        await CHECKS[verdict](stage, receipt, mode)
        assert session.host.inbox.pending(session.session_id) == []
        check_model(stage.model)


# ---- what others hear of it ----


@pytest.mark.parametrize("mode", ["interrupt", "rollback"])
@staged
async def test_an_interrupt_supersedes_the_approval_that_a_call_waits_for_and_the_call_is_never_made(mode: str) -> None:
    stage = Stage("AP")
    async with opened(stage.model, stage.bench, **stage.options) as session:
        await stage.enter(session)
        watch = Watch(session.subscribe())
        (asked,) = await session.approvals()
        receipt = await stage.send(mode)
        assert (await final_of(session, receipt)).answer == "new answer"
        assert not await session.approve(asked.id)
        reply = await session.command(f"/approve {asked.id}")
        await passing(100_000)
    assert reply == f"Request {asked.id} is superseded."
    (told,) = watch.of("confirmation_received")
    assert (told.approval_id, told.approved) == (asked.id, False)
    assert watch.of("confirmation_timeout") == []
    assert stage.bench.began == []


@pytest.mark.parametrize("polled", [False, True])
@pytest.mark.parametrize("mode", ["interrupt", "rollback"])
@staged
async def test_an_interrupt_withdraws_the_task_that_is_out_and_what_it_might_have_done_is_unknown(
    mode: str, polled: bool
) -> None:
    stage = Stage("external")
    async with opened(stage.model, stage.bench, **stage.options) as session:
        await stage.enter(session)
        watch = Watch(session.subscribe())
        polls = await session.pending_external_tasks() if polled else []
        receipt = await stage.send(mode)
        assert (await final_of(session, receipt)).answer == "new answer"
        assert await session.pending_external_tasks() == []
        (ended,) = watch.of("external_task_completed")
        late = await session.complete_external_task(ended.task_id, "too late")
    assert ended.state == ("unknown" if polled else "withdrawn")
    assert late is polled  # it settles what nobody knew; else nobody has ever had it
    assert [task["task_id"] for task in polls] == [ended.task_id] * polled
    assert watch.of("external_task_pending") == []
    assert stage.bench.began == []


@staged
async def test_calls_that_a_steer_skips_never_become_tasks() -> None:
    stage = Stage("external")
    async with opened(stage.model, stage.bench, **stage.options) as session:
        watch = Watch((await session.ready()).subscribe())
        await stage.enter(session)
        receipt = await stage.send("steer")
        stage.go_on()
        assert (await final_of(session, receipt)).answer == "new answer"
    assert [event.payload for event in watch.of("external_task_pending")] == [{"key": "t1"}]
    assert stage.bench.began == []


@pytest.mark.parametrize("mode", ["interrupt", "rollback"])
@staged
async def test_an_interrupt_ends_the_sub_agent_that_a_call_waits_for_and_nothing_is_told_of_it_afterwards(
    mode: str,
) -> None:
    stage = Stage("child")
    async with opened(stage.model, stage.bench, **stage.options) as session:
        await stage.enter(session)
        watch = Watch(session.subscribe())
        receipt = await stage.send(mode)
        assert (await final_of(session, receipt)).answer == "new answer"
        await passing(100_000)
        assert session.host.inbox.engine.kernel.turns == {}
        assert await stage.said.texts() == ["new answer"]  # and no message about a sub-agent that has ended
    (ended,) = watch.of("subagent_end")
    assert ended.status == "cancelled"


# ---- waiting for an approval: the one place where a run of this part asks is after a crash ----


@pytest.mark.parametrize("mode", MODES)
@staged
async def test_a_run_that_waits_for_an_approval_takes_nothing_in_and_gives_way_to_an_interrupt(mode: str) -> None:
    disk, bench = MemoryDisk(), Bench("t1")
    async with opened(
        ScriptedModel([use("check", "t1")]), bench, session_store=MemoryStore(disk), session_id="s"
    ) as cut:
        old = (await post(cut, "old")).message_id
        await bench.begun("t1").wait()
    bench.let_go()
    model = ScriptedModel([[say("an answer")], [say("an answer")]])
    async with opened(model, bench, session_store=MemoryStore(disk), session_id="s", on_crash="ask") as session:
        await session.ready()
        await passing()
        (approval,) = session.host.inbox.approvals("s")
        receipt = await post(session, "new", mode)
        await passing(10)
        cuts = mode in ("interrupt", "rollback")
        assert model.requests == [] or cuts
        assert receipt.disposition is (MessageState.REJECTED if mode == "reject" else MessageState.QUEUED)
        assert await session.host.inbox.approve(approval.id) is not cuts
        end = await final_of(session, old)
        assert end.outcome is (Outcome.INTERRUPTED if cuts else Outcome.SUCCEEDED)
        if mode != "reject":
            assert (await final_of(session, receipt)).outcome is Outcome.SUCCEEDED
        assert session.host.inbox.approvals("s") == []
    check_model(model)
    heard = [prompts(request) for request in model.requests]
    expected = {"reject": [["old"]], "interrupt": [["old", "new"]], "rollback": [["new"]]}
    assert heard == expected.get(mode, [["old"], ["old", "new"]])


@staged
async def test_a_rollback_of_a_run_that_goes_on_for_another_forgets_both() -> None:
    disk, bench = MemoryDisk(), Bench("t2")
    script = ScriptedModel([use("check", "t1"), use("check", "t2")])
    async with opened(script, bench, session_store=MemoryStore(disk), session_id="s") as session:
        await post(session, "old")
        await bench.begun("t2").wait()
    again = Held(say("never"))
    bench.let_go()
    model = ScriptedModel([again, [say("an answer")]])
    async with opened(model, bench, session_store=MemoryStore(disk), session_id="s") as session:
        await session.ready()
        await again.asked.wait()
        assert prompts(model.requests[0]) == ["old"]
        receipt = await post(session, "new", "rollback")
        assert (await final_of(session, receipt)).answer == "an answer"
    assert shape(model.requests[1]) == ["user: new"]


# ---- idle ----


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("mode", [*Mode, "queue", "steer+backlog"])
@staged
async def test_an_idle_session_runs_every_mode_now(mode: str, queue: bool) -> None:
    model = ScriptedModel([[say("first")], [say("second")]])
    async with opened(model, queue=queue) as session:
        one = await session.send("one", mode=mode)
        two = await session.send("two", mode=mode)
        assert now_ms() == 0
    assert (one.text, one.disposition, two.text) == ("first", MessageState.RAN, "second")
    assert shape(model.requests[1]) == ["user: one", "model: first", "user: two"]


@pytest.mark.parametrize(
    ("mode", "heard"),
    [
        ("steer", ["waits", "new"]),
        ("steer-backlog", [collected(("", "waits"), ("", "new"))]),  # what is kept of it is collected
        ("followup", ["waits", "new"]),
        ("collect", [collected(("", "waits"), ("", "new"))]),
        ("interrupt", ["new", "waits"]),
        ("rollback", ["new", "waits"]),
    ],
)
@staged
async def test_an_idle_session_with_messages_waiting_appends_but_for_interrupts(mode: str, heard: list[str]) -> None:
    held = Held(say("held"))
    model = ScriptedModel([held])
    async with opened(model) as session:
        first = sending(session, "first")
        await held.asked.wait()
        waits = await post(session, "waits", "collect")
        held.let_go()
        await first
        await passing(10)
        assert [each.text for each in session.host.inbox.pending(session.session_id)] == ["waits"]
        new = await post(session, "new", mode)
        ends = [await final_of(session, each) for each in (waits, new)]
        assert [end.outcome for end in ends] == [Outcome.SUCCEEDED] * 2
    assert [prompts(request)[-1] for request in model.requests[1:]] == heard
    check_model(model)


# ---- shutting down ----


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "reject"])
@staged
async def test_what_comes_while_the_session_closes_is_stored_and_runs_after_the_start(mode: str) -> None:
    disk = MemoryDisk()
    bench, store = Bench("n1"), CutStore(disk)
    model = ScriptedModel([use("nail", "n1"), [say("never asked")]])
    async with opened(model, bench, session_store=store, session_id="s") as session:
        old = sending(session, "old")
        await bench.begun("n1").wait()
        inbox = session.host.inbox
        closing = asyncio.get_running_loop().create_task(session.close())
        await passing(10)
        assert not closing.done()  # the tool cannot be interrupted
        receipt = await inbox.submit("s", "new", mode=mode)
        assert receipt.disposition is MessageState.QUEUED
        with pytest.raises(ClosedError):
            await session.send("too late")
        bench.let_go()
        await closing
        with pytest.raises(ClosedError):
            await old
    assert (len(model.requests), bench.ended) == (1, ["n1"])
    after = ScriptedModel([[say("one")], [say("two")]])
    async with opened(after, bench, session_store=MemoryStore(disk), session_id="s") as session:
        await session.ready()
        end = await final_of(session, receipt)
        await session.wait_idle()
    steered = mode == "steer"  # into the run that goes on
    assert (end.disposition, end.outcome) == (MessageState.STEERED if steered else MessageState.RAN, Outcome.SUCCEEDED)
    check_model(after)
    assert bench.began == ["n1"]
    heard = ["user: old", "calls n1", "results n1=ok"]
    if steered:
        assert shape(after.requests[-1]) == [*heard, "user: new"]
    elif mode == "steer-backlog":
        assert shape(after.requests[0]) == [*heard, "user: new"]
    elif mode not in ("interrupt", "rollback"):
        assert shape(after.requests[-1]) == [*heard, "model: one", "user: new"]


@pytest.mark.parametrize("state", ["AP", "external", "child"])
@pytest.mark.parametrize("mode", ["steer", "steer-backlog", "followup", "collect"])
@staged
async def test_a_run_that_waits_for_somebody_goes_on_after_the_start_and_what_came_meanwhile_keeps_its_place(
    state: str, mode: str
) -> None:
    stage = Stage(state)
    async with opened(stage.model, stage.bench, session_id="s", **stage.options) as session:
        await stage.enter(session)
        receipt = await stage.send(mode)
        asked = [each.id for each in await session.approvals()]
        out = [task["task_id"] for task in session.host.desk.tasks()]
        disk = stage.store.disk
    assert stage.bench.began == []
    stage.options["session_store"] = MemoryStore(disk)
    async with opened(stage.model, stage.bench, session_id="s", **stage.options) as session:
        stage.session = await session.ready()
        await passing(10)
        assert [each.id for each in await session.approvals()] == asked
        assert [task["task_id"] for task in session.host.desk.tasks()] == out
        stage.go_on()
        old, new = [await final_of(session, each) for each in (stage.old, receipt)]
        assert (old.outcome, new.outcome, new.answer) == (Outcome.SUCCEEDED, Outcome.SUCCEEDED, "new answer")
        await session.wait_idle()
    assert (len(asked), len(out)) == (state == "AP", state == "external")
    last = [said.split()[0] for said in shape(stage.model.requests[-1])]
    assert last[:3] == ["user:", "calls", "results"]
    check_model(stage.model)
