"""Going on with what another process has left: what is run again, what is not, who is asked, and what is remembered.

A process is a simulated loop; its end is a store that answers nobody any more. Real processes are killed in
`tests/integration/test_agent_crash.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from laneway.agent import AsyncAgent
from laneway.agent.session import AsyncSession
from laneway.dialogue import Answer, Intent, Prompt, Results, ToolContext, ToolOutput, ToolResult
from laneway.errors import RunCancelledError, StoreUnavailableError, UnknownRunError, UsageError
from laneway.kernel.ledger import LedgerState
from laneway.mail import ApprovalState, Outcome
from laneway.models import ScriptedModel, call, say, think
from laneway.models.scripted import Entry
from laneway.options import PermissionPolicy, SessionQueueConfig
from laneway.rows import Batch, BatchResult, StateRow
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk
from laneway.stores.sessions import FileSessionStore
from laneway.system import HostEnv, SequentialIdGenerator
from laneway.testing import LoopClock
from laneway.tools import FunctionTool
from tests.agent_stage import ALLOW, check_conversation, prompts, shape, statuses
from tests.durable_stage import Mortal
from tests.stage import passing

S = "chat"
WAITS = "waits"
"""What a call is named that never ends in a process that is to be killed."""


class Trade:
    """Tools of every effect that write down the key of each call; with `holds`, a call of `waits` never ends."""

    def __init__(self, *, holds: bool = False) -> None:
        self.holds = holds
        self.keys: list[tuple[str, str, str]] = []
        self.asked: list[Intent] = []
        self.reached = asyncio.Event()
        self.found: ToolOutput | None = None
        self.fails = False
        self.parameters: dict[str, Any] | None = None
        self.effects = {"look": "read", "put": "idempotent", "pay": "write", "send": "write"}

    def tools(self, *names: str) -> list[FunctionTool[Any, Any]]:
        """These tools, or all."""
        return [self._tool(name) for name in names or self.effects]

    def names(self) -> list[str]:
        """What was called, in order."""
        return [f"{tool} {name}" for tool, name, _ in self.keys]

    def _tool(self, kind: str) -> FunctionTool[Any, Any]:
        async def run(name: str, context: ToolContext) -> str:
            self.keys.append((kind, name, context.key))
            if name == WAITS and self.holds:
                self.reached.set()
                await asyncio.get_running_loop().create_future()
            return f"{kind} of {name}"

        reconcile = self._find_out if kind == "send" else None
        return FunctionTool(
            run,
            name=kind,
            description=kind,
            effect=self.effects[kind],
            reconcile=reconcile,
            parameters=self.parameters,
        )

    def _find_out(self, intent: Intent) -> ToolOutput | None:
        self.asked.append(intent)
        if self.fails:
            raise OSError("the bank does not answer")
        return self.found


class Refusing(Mortal):
    """A store that refuses one commit: the first with a row of this kind in this state."""

    def __init__(self, disk: MemoryDisk, fails_with: tuple[str, str] | None) -> None:
        super().__init__(disk)
        self._fails_with = fails_with

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make batches durable, or not."""
        rows = {(row.kind, row.state) for batch in batches for row in batch.rows if isinstance(row, StateRow)}
        if self._fails_with in rows:
            self._fails_with = None
            return [BatchResult(StoreUnavailableError("the store refuses"))] * len(batches)
        return await super().commit(batches)


class World:
    """A disk, and the processes that come and go on it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.life = 0
        self.fails_with: tuple[str, str] | None = None  # the next process has one commit refused: with such a row

    @contextlib.asynccontextmanager
    async def process(
        self, model: ScriptedModel, tools: Sequence[Any], **options: Any
    ) -> AsyncIterator[tuple[AsyncSession, Mortal]]:
        """A process with a session; it ends well unless its store has died."""
        store = Refusing(self.disk, self.fails_with)
        self.fails_with = None
        agent = self._agent(model, tools)
        session = agent.session(tempfile.gettempdir(), **{"session_id": S, "session_store": store, **options})
        yield session, store
        if not store.died.is_set():
            await agent.close()

    def _agent(self, model: ScriptedModel, tools: Sequence[Any]) -> AsyncAgent:
        self.life += 1
        ids = SequentialIdGenerator(f"life{self.life}-")
        host = HostEnv(clock=LoopClock(), ids=ids, random=random.Random(0))
        return AsyncAgent(model=model, tools=tools, builtin_tools=False, permission_policy=ALLOW, host=host)

    def crash(self, script: Sequence[Entry], *, text: str = "go", **options: Any) -> Trade:
        """A process that dies in the call of `waits`; what its tools did."""

        async def main() -> Trade:
            trade = Trade(holds=True)
            async with self.process(ScriptedModel(script), trade.tools(), **options) as (session, store):
                await session.followup(text)
                await trade.reached.wait()
                store.die()
            return trade

        return run_sim(main(), seed=self.life)

    def go_on(
        self,
        then: Callable[[AsyncSession], Awaitable[Any]],
        *script: Entry,
        trade: Trade | None = None,
        tools: Sequence[str] = (),
        **options: Any,
    ) -> ScriptedModel:
        """The next process: opens the session and does `then`; what its model was asked."""

        async def main() -> ScriptedModel:
            model = ScriptedModel(list(script) or [[say("done")]])
            made = (trade or Trade()).tools(*tools)
            async with self.process(model, made, **options) as (session, _):
                await session.ready()
                await then(session)
            return model

        model = run_sim(main(), seed=self.life)
        for request in model.requests:
            if request.purpose == "answer":
                check_conversation(request)
        return model

    def rows(self, kind: str) -> list[StateRow]:
        """The rows of a kind, oldest first."""
        found = [row for (of, _), row in self.disk.states.items() if of == kind]
        return sorted(found, key=lambda row: row.seq)


async def at_rest(session: AsyncSession) -> None:
    """Wait until every message has its end."""
    for row in await session.host.inbox.engine.store.history.messages(session.owner):
        await session.host.inbox.wait(row.id)


def crashed(*script: Entry, **options: Any) -> tuple[World, Trade]:
    """A world in which one process has died."""
    world = World()
    return world, world.crash(script, **options)


# ---- what is run again ----


def test_a_session_goes_on_by_itself_and_waiting_for_it_waits_for_the_whole_run() -> None:
    world, _ = crashed([call("look", name=WAITS)])
    ended: list[str] = []

    async def then(session: AsyncSession) -> None:
        await session.wait_idle()
        ended.extend(run.state for run in await session.runs())

    model = world.go_on(then)
    assert [prompts(request) for request in model.requests] == [["go"]]
    assert ended == ["interrupted", "succeeded"]


@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
def test_reads_run_again_idempotent_calls_too_with_their_key_and_writes_do_not(
    queue: SessionQueueConfig | None,
) -> None:
    world, before = crashed(
        [call("put", name="a"), call("pay", name="b"), call("put", name=WAITS), call("pay", name="c")],
        queue_config=queue,
    )
    after = Trade()
    model = world.go_on(at_rest, trade=after, queue_config=queue)
    assert before.names() == ["put a", "pay b", f"put {WAITS}"]
    assert after.names() == [f"put {WAITS}", "pay c"]  # what has its outcome is kept
    assert after.keys[0] == before.keys[2]
    assert [status for _, status in statuses(model.requests[0])] == ["ok"] * 4


def test_a_write_that_was_cut_off_is_unknown_and_what_had_not_begun_runs() -> None:
    world, before = crashed([call("pay", name="a"), call("pay", name=WAITS), call("pay", name="c")])
    after = Trade()
    model = world.go_on(at_rest, trade=after)
    assert before.names() == ["pay a", f"pay {WAITS}"]
    assert after.names() == ["pay c"]
    [request] = model.requests
    assert [status for _, status in statuses(request)] == ["ok", "unknown", "ok"]
    unknown = request.conversation[-1]
    assert isinstance(unknown, Results)
    assert "may have had its effect" in unknown.results[1].output


def test_the_ledger_says_what_became_of_every_call() -> None:
    world, _ = crashed([call("pay", name="a"), call("pay", name=WAITS), call("put", name="c")])
    found: list[tuple[str, LedgerState]] = []

    async def then(session: AsyncSession) -> None:
        await at_rest(session)
        found.extend((entry.tool, entry.state) for entry in await session.ledger())
        [unknown] = await session.ledger("unknown")
        settled = await session.settle(unknown.id, "it was paid, I looked", actor="ada")
        assert (settled.state, settled.actor) == (LedgerState.SETTLED, "ada")

    world.go_on(then)
    assert found == [("pay", LedgerState.DONE), ("pay", LedgerState.UNKNOWN), ("put", LedgerState.DONE)]
    assert [row.state for row in world.rows("intent")] == ["done", "settled", "done"]


@pytest.mark.parametrize(
    ("found", "fails", "status", "state"),
    [
        (ToolOutput(text="it was sent"), False, "ok", "done"),
        (ToolOutput(text="it was not sent", is_error=True), False, "error", "failed"),
        (None, False, "unknown", "unknown"),
        (None, True, "unknown", "unknown"),
    ],
)
def test_a_tool_that_can_find_out_is_asked_once_and_believed(
    found: ToolOutput | None, fails: bool, status: str, state: str
) -> None:
    world, before = crashed([call("send", name=WAITS)])
    after = Trade()
    after.found, after.fails = found, fails
    model = world.go_on(at_rest, trade=after)
    assert [end for _, end in statuses(model.requests[0])] == [status]
    assert [row.state for row in world.rows("intent")] == [state]
    [asked] = after.asked
    assert (asked.tool, asked.arguments, asked.key) == ("send", {"name": WAITS}, before.keys[0][2])
    assert after.keys == []


@pytest.mark.parametrize(("was", "now_is"), [("pay", "read"), ("pay", "idempotent"), ("put", "write")])
def test_a_tool_that_says_something_else_of_itself_now_is_taken_at_its_more_careful_word(was: str, now_is: str) -> None:
    world, _ = crashed([call(was, name=WAITS)])
    after = Trade()
    after.effects[was] = now_is
    model = world.go_on(at_rest, trade=after)
    assert [end for _, end in statuses(model.requests[0])] == ["unknown"]
    assert after.keys == []


def test_a_resumed_run_whose_tools_are_gone_ends_with_an_answer() -> None:
    world, _ = crashed([call("put", name=WAITS), call("pay", name="never")])
    model = world.go_on(at_rest, tools=["look"])
    [request] = model.requests
    assert [end for _, end in statuses(request)] == ["unknown", "error"]
    assert "no tool 'pay' any more" in _results(request.conversation)[1].output


@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
@pytest.mark.parametrize("rounds_of_the_loop", range(0, 24, 2))
def test_a_call_that_had_begun_is_never_skipped_by_a_message_that_is_steered_in(
    rounds_of_the_loop: int, queue: SessionQueueConfig | None
) -> None:
    world, before = crashed([call("put", name=WAITS), call("pay", name="never")], queue_config=queue)

    async def then(session: AsyncSession) -> None:
        for _ in range(rounds_of_the_loop):
            await asyncio.sleep(0)
        await session.steer("also")
        await at_rest(session)

    after = Trade()
    model = world.go_on(then, [say("done")], [say("done, too")], trade=after, queue_config=queue)
    ended = dict(statuses(model.requests[-1]))
    assert ended["call-1"] in ("ok", "unknown")
    assert ended["call-2"] == ("ok" if "pay never" in after.names() else "skipped")
    assert {key for tool, _, key in (*before.keys, *after.keys) if tool == "put"} == {before.keys[0][2]}
    assert {row.state for row in world.rows("intent")} <= {"done", "unknown"}


@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
@pytest.mark.parametrize("rounds_of_the_loop", range(0, 24, 2))
@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_call_that_had_begun_is_unknown_when_the_run_is_ended_before_it_is_made_again(
    how: str, rounds_of_the_loop: int, queue: SessionQueueConfig | None
) -> None:
    world, before = crashed([call("put", name=WAITS)], queue_config=queue)

    async def then(session: AsyncSession) -> None:
        for _ in range(rounds_of_the_loop):
            await asyncio.sleep(0)
        if how == "cancel":
            await session.cancel("enough")

    after = Trade(holds=True)
    world.go_on(then, trade=after, queue_config=queue)
    last = Trade()
    model = world.go_on(_say_more, [say("done")], [say("done, too")], trade=last, queue_config=queue)
    ended = dict(statuses(model.requests[-1]))
    assert ended["call-1"] in ("ok", "unknown")
    assert {key for _, _, key in (*before.keys, *after.keys, *last.keys)} == {before.keys[0][2]}
    assert {row.state for row in world.rows("intent")} <= {"done", "unknown"}


@pytest.mark.parametrize("what", ["denied", "other arguments", "refused by the store"])
def test_a_call_that_had_begun_is_unknown_when_it_may_not_be_made_again(what: str) -> None:
    world, before = crashed([call("put", name=WAITS)])
    after = Trade()
    options: dict[str, Any] = {}
    if what == "denied":
        options["permission_policy"] = PermissionPolicy(allow=("*",), deny=("put",))
    elif what == "other arguments":
        after.parameters = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    else:
        world.fails_with = ("intent", "intended")
    model = world.go_on(at_rest, trade=after, **options)
    assert [end for _, end in statuses(model.requests[-1])] == ["unknown"]
    assert [row.state for row in world.rows("intent")] == ["unknown"]
    assert len(before.keys) == 1


async def _say_more(session: AsyncSession) -> None:
    await session.send("more")
    await at_rest(session)


def test_a_round_that_was_whole_is_not_made_again() -> None:
    world, before = crashed([call("pay", name="a")], [call("look", name=WAITS)])
    after = Trade()
    model = world.go_on(at_rest, trade=after)
    assert before.names() == ["pay a", f"look {WAITS}"]
    assert after.keys == []  # the read was asked for in a round that is not on disk: the model is asked again
    assert shape(model.requests[0])[-1] == "results call-1=ok"


def test_the_limit_of_rounds_counts_those_before_the_crash() -> None:
    world, _ = crashed([call("pay", name="a")], [call("pay", name=WAITS)], max_tool_rounds=3)
    reasons: list[str] = []

    async def then(session: AsyncSession) -> None:
        await at_rest(session)
        reasons.extend(run.reason for run in await session.runs())

    model = world.go_on(then, [call("look", name="x")], [call("look", name="y")], max_tool_rounds=3)
    assert len(model.requests) == 1
    assert "max_tool_rounds is 3" in reasons[-1]


@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
def test_a_session_that_is_closed_in_the_middle_of_a_run_goes_on_when_it_is_opened_again(
    queue: SessionQueueConfig | None,
) -> None:
    world, before = World(), Trade(holds=True)

    async def close_it(session: AsyncSession) -> None:
        await session.followup("go")
        await before.reached.wait()

    world.go_on(close_it, [call("pay", name="a"), call("pay", name=WAITS)], trade=before, queue_config=queue)
    after = Trade()
    model = world.go_on(at_rest, trade=after, queue_config=queue)
    assert [end for _, end in statuses(model.requests[0])] == ["ok", "unknown"]
    assert prompts(model.requests[0]) == ["go"]
    assert (before.names(), after.names()) == (["pay a", f"pay {WAITS}"], [])
    assert [row.state for row in world.rows("intent")] == ["done", "unknown"]


# ---- whether to go on ----


def test_with_report_nothing_goes_on_and_the_next_message_knows_what_is_unknown() -> None:
    world, _ = crashed([call("pay", name=WAITS), call("pay", name="c"), call("look", name="d")])

    async def then(session: AsyncSession) -> None:
        [row] = await session.host.inbox.engine.store.history.messages(session.owner)
        with pytest.raises(RunCancelledError, match="the process ended while it ran"):
            await session.wait(row.id)
        assert (await session.send("and now?")).text == "done"

    model = world.go_on(then, on_crash="report")
    [request] = model.requests
    assert [end for _, end in statuses(request)] == ["unknown", "cancelled", "cancelled"]
    assert prompts(request) == ["go", "and now?"]
    assert [row.state for row in world.rows("intent")] == ["unknown"]


@pytest.mark.parametrize("answer", ["approve", "deny", "silence"])
def test_with_ask_somebody_decides_whether_it_goes_on(answer: str) -> None:
    world, _ = crashed([call("put", name="a")], [call("look", name=WAITS)])
    outcomes: list[Outcome | None] = []

    async def then(session: AsyncSession) -> None:
        inbox = session.host.inbox
        await passing(100)
        [approval] = inbox.approvals(S)
        assert approval.state is ApprovalState.PENDING
        assert (approval.action, approval.arguments) == ("resume", {"prompt": "go", "rounds": 1})
        if answer == "approve":
            assert await inbox.approve(approval.id)
        elif answer == "deny":
            assert await inbox.deny(approval.id, "not today")
        [row] = await inbox.engine.store.history.messages(session.owner)
        outcomes.append((await inbox.wait(row.id)).outcome)
        assert (await session.send("still there?")).text

    model = world.go_on(then, [say("done")], [say("yes")], on_crash="ask")
    assert outcomes == [Outcome.SUCCEEDED if answer == "approve" else Outcome.INTERRUPTED]
    assert len(model.requests) == (2 if answer == "approve" else 1)


def test_a_process_that_dies_while_it_asks_leaves_the_question_to_the_next_one() -> None:
    world, _ = crashed([call("put", name=WAITS)])
    asked: list[str] = []

    async def die_asking() -> None:
        async with world.process(ScriptedModel([]), Trade().tools(), on_crash="ask") as (session, store):
            await session.ready()
            await passing(100)
            asked.extend(approval.id for approval in session.host.inbox.approvals(S))
            store.die()

    run_sim(die_asking(), seed=0)
    after = Trade()

    async def then(session: AsyncSession) -> None:
        await passing(100)
        [approval] = session.host.inbox.approvals(S)
        asked.append(approval.id)
        await session.host.inbox.approve(approval.id)
        await at_rest(session)

    model = world.go_on(then, on_crash="ask", trade=after)
    assert len(asked) == 2
    assert len(set(asked)) == 1  # the same request
    assert after.names() == [f"put {WAITS}"]
    assert [end for _, end in statuses(model.requests[0])] == ["ok"]


# ---- resume_run ----


def test_resume_run_without_a_store_says_so() -> None:
    async def main() -> None:
        agent = AsyncAgent(model=ScriptedModel([]), builtin_tools=False)
        async with agent, agent.session(tempfile.gettempdir()) as session:
            with pytest.raises(UsageError) as refused:
                await session.resume_run("run-1")
        assert refused.value.args[0] == "resume_run requires a session_store"

    run_sim(main(), seed=0)


def test_resume_run_without_a_checkpoint_says_so() -> None:
    async def then(session: AsyncSession) -> None:
        with pytest.raises(UnknownRunError) as refused:
            await session.resume_run("X")
        assert refused.value.args[0] == "no loop checkpoint found for run 'X'"
        ended = await session.send("hello")
        with pytest.raises(UnknownRunError) as refused:
            await session.resume_run(ended.run_id)
        assert refused.value.args[0] == f"no loop checkpoint found for run {ended.run_id!r}"

    model = World().go_on(then)
    assert len(model.requests) == 1


def test_a_run_of_another_session_has_no_checkpoint_here() -> None:
    world, _ = crashed([call("put", name="a")], [call("look", name=WAITS)])
    run_id = world.rows("round")[0].id.rpartition("/")[0]

    async def then(session: AsyncSession) -> None:
        with pytest.raises(UnknownRunError, match="no loop checkpoint found for run"):
            await session.resume_run(run_id)

    model = world.go_on(then, session_id="another")
    assert model.requests == []


def test_resume_run_goes_on_in_a_run_of_its_own_and_the_old_one_stays_as_it_was() -> None:
    world, before = crashed([call("look", name="a")], [call("pay", name=WAITS), call("put", name="c")])
    world.go_on(at_rest, on_crash="report")
    old = world.rows("round")
    run_id = old[0].id.rpartition("/")[0]
    after = Trade()

    async def then(session: AsyncSession) -> None:
        result = await session.resume_run(run_id)
        assert result.text == "finished"
        assert result.run_id != run_id
        info = await session.run_snapshot(result.run_id)
        assert info.resumed_from == run_id

    model = world.go_on(then, [say("finished")], trade=after)
    assert world.rows("round")[: len(old)] == old
    assert before.names() == ["look a", f"pay {WAITS}"]
    assert f"pay {WAITS}" not in after.names()
    assert prompts(model.requests[0]) == ["go"]
    assert [end for _, end in statuses(model.requests[0])][:2] == ["ok", "unknown"]


def test_a_run_whose_tools_are_gone_can_be_resumed_and_says_so_to_the_model() -> None:
    world, _ = crashed([call("look", name="a")], [call("pay", name=WAITS)])
    world.go_on(at_rest, on_crash="report")
    run_id = world.rows("round")[0].id.rpartition("/")[0]
    texts: list[str] = []

    async def then(session: AsyncSession) -> None:
        texts.append((await session.resume_run(run_id)).text)

    model = world.go_on(then, [call("pay", name="b")], [say("I cannot pay any more")], tools=["look"])
    assert texts == ["I cannot pay any more"]
    last = _results(model.requests[-1].conversation)[-1]
    assert "there is no tool 'pay'" in last.output


def test_the_run_that_goes_on_at_this_moment_cannot_be_resumed_beside_itself() -> None:
    world, _ = crashed([call("pay", name="a")], [call("look", name=WAITS)])
    after = Trade(holds=True)

    async def then(session: AsyncSession) -> None:
        await after.reached.wait()
        run = session.current_run()
        assert run is not None
        with pytest.raises(UsageError, match="is going on"):
            await session.resume_run(run.run_id)
        await session.cancel()
        await at_rest(session)

    model = world.go_on(then, [call("pay", name="b")], [call("look", name=WAITS)], trade=after)
    assert len(model.requests) == 2


def test_a_run_that_somebody_cancelled_can_be_gone_on_with() -> None:
    world = World()
    trade = Trade(holds=True)

    async def cancel_it(session: AsyncSession) -> None:
        receipt = await session.followup("go")
        await trade.reached.wait()
        await session.cancel("stop")
        await session.host.inbox.wait(receipt.message_id)

    world.go_on(cancel_it, [call("pay", name="a"), call("look", name=WAITS)], trade=trade)
    run_id = world.rows("round")[0].id.rpartition("/")[0]
    texts: list[str] = []

    async def then(session: AsyncSession) -> None:
        texts.append((await session.resume_run(run_id)).text)

    model = world.go_on(then)
    assert texts == ["done"]
    assert [end for _, end in statuses(model.requests[0])] == ["ok", "cancelled"]


def test_resuming_twice_tells_every_round_once() -> None:
    world, _ = crashed([call("pay", name="a")], [call("pay", name=WAITS)])
    world.crash([[call("look", name="b")], [call("put", name=WAITS)]], text="more")
    model = world.go_on(at_rest, [say("first")], [say("second")])
    for request in model.requests:
        ids = [call_id for call_id, _ in statuses(request)]
        assert len(ids) == len(set(ids))
    assert prompts(model.requests[-1]) == ["go", "more"]


# ---- memory ----

TALK: list[Entry] = [
    [think("hm"), say("Let me look. "), call("look", name="a"), call("pay", name="b")],
    [say("There it is.")],
    [call("look", name="long")],
    [say("A lot of it.")],
]


async def talk(session: AsyncSession) -> None:
    """Two messages, tools, and a text that is longer than a page."""
    await session.send("look at a", attachments=[{"kind": "note", "text": "hello"}])
    await session.send("and " + "on " * 3_000)


def test_a_session_that_was_closed_and_opened_remembers_the_same() -> None:
    world = World()
    histories: list[Any] = []

    async def first(session: AsyncSession) -> None:
        await talk(session)
        histories.append(await session.history())

    async def second(session: AsyncSession) -> None:
        histories.append(await session.history())
        await session.send("next")

    world.go_on(first, *TALK)
    model = world.go_on(second)
    assert histories[0] == histories[1]
    assert list(model.requests[0].conversation[:-1]) == histories[0]
    assert [type(said) for said in histories[0]] == [Prompt, Answer, Results, Answer, Prompt, Answer, Results, Answer]


def test_a_session_remembers_the_same_after_a_compaction_and_a_cut_run() -> None:
    world = World()
    histories: list[Any] = []
    trade = Trade(holds=True)

    async def first(session: AsyncSession) -> None:
        await talk(session)
        assert await session.compact()
        receipt = await session.followup("one more")
        await trade.reached.wait()
        await session.cancel("enough")
        await session.host.inbox.wait(receipt.message_id)
        histories.append(await session.history())

    async def second(session: AsyncSession) -> None:
        histories.append(await session.history())

    world.go_on(first, *TALK, [call("pay", name=WAITS)], trade=trade)
    world.go_on(second)
    assert histories[0] == histories[1]
    assert histories[0][0].role == "system"
    assert histories[0][-1].results[0].status == "unknown"


@pytest.mark.slow
async def test_a_session_in_a_file_that_was_closed_and_opened_remembers_the_same(tmp_path: Path) -> None:
    histories: list[Any] = []
    for script in (TALK, [[say("again")]]):
        agent = AsyncAgent(model=ScriptedModel(script), tools=Trade().tools(), builtin_tools=False)
        agent.options.permission_policy = ALLOW
        async with agent:
            store = FileSessionStore(tmp_path)
            if script is TALK:
                session = agent.session(str(tmp_path), session_id=S, session_store=store)
            else:
                session = agent.resume_session(S, session_store=store, workspace=str(tmp_path))
            if script is TALK:
                await talk(session)
            histories.append(await session.history())
    assert histories[0] == histories[1]


def _results(conversation: Sequence[Any]) -> list[ToolResult]:
    return [result for said in conversation if isinstance(said, Results) for result in said.results]
