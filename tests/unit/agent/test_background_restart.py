"""Calls in the background whose process has ended, or whose session was closed: what is told, how often, and by whom.

A process is a simulated loop; its end is a store that answers nobody any more.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest

from laneway.agent import externals
from laneway.agent.session import AsyncSession
from laneway.dialogue import ToolContext, ToolOutput
from laneway.external import ExternalTaskResult
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Entry
from laneway.options import LaneHandlerConfig, SessionQueueConfig
from laneway.runtime.erasing import delete_session
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryStore
from laneway.tools import FunctionTool
from tests.agent_stage import QUEUES, agent_of, check_model, prompts, results, session_of, statuses, use
from tests.durable_stage import Mortal
from tests.stage import passing, simulated
from tests.unit.agent.test_resume import WAITS, S, Trade, World

NAMES = ("look", "put", "pay", "send")
LATER: dict[str, Any] = {"background_after_ms": 50, "background_tools": NAMES}
OUT = SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("external", 600_000, lease_ms=60_000)})
LANE: dict[str, Any] = {"tool_lanes": dict.fromkeys(NAMES, "execute")}
NOTE = "[System note] The background call "


def notes(model: Any) -> list[str]:
    """What the model was told of ends."""
    return [text for text in prompts(model.requests[-1]) if text.startswith(NOTE)] if model.requests else []


def left(world: World, name: str, *, ends: str = "die", queue: SessionQueueConfig | None = None) -> Trade:
    """A process that ends while a call is in the background and its run has said `on`."""

    async def main() -> Trade:
        trade = Trade(holds=True)
        model = ScriptedModel([[call(name, name=WAITS)], [say("on")]])
        async with world.process(model, trade.tools(), queue_config=queue, **LATER, **LANE) as (session, store):
            assert (await session.send("go")).text == "on"
            assert len(session.background()) == 1
            if ends == "die":
                store.die()
            else:
                await session.close()
        return trade

    return run_sim(main(), seed=world.life)


def next_life(world: World, then: Any, *script: Entry, **options: Any) -> tuple[Any, Trade]:
    """The next process."""
    trade = options.pop("trade", None) or Trade()
    model = world.go_on(then, *(script or ([say("off")],)), trade=trade, **LATER, **LANE, **options)
    return model, trade


async def at_rest(session: AsyncSession) -> None:
    """Until nothing is left to do."""
    await session.wait_idle()
    await passing(100)
    assert session.background() == []


# ---- calls of this process ----


@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
@pytest.mark.parametrize("ends", ["die", "close"])
@pytest.mark.parametrize(
    ("name", "said", "ledger"),
    [
        ("look", "was interrupted", []),
        ("put", "may have had its effect", ["unknown"]),
        ("pay", "may have had its effect", ["unknown"]),
    ],
)
def test_a_call_that_was_cut_off_in_the_background_is_not_made_again_and_is_told_once(
    name: str, said: str, ledger: list[str], ends: str, queue: SessionQueueConfig | None
) -> None:
    world = World()
    before = left(world, name, ends=ends, queue=queue)
    states: list[str] = []

    async def then(session: AsyncSession) -> None:
        await at_rest(session)
        states.extend(entry.state.value for entry in await session.ledger())

    model, trade = next_life(world, then, queue_config=queue)
    assert (before.names(), trade.names()) == ([f"{name} {WAITS}"], [])
    [note] = notes(model)
    assert said in note
    assert states == ledger
    assert statuses(model.requests[-1]) == [("call-1", "background")]
    later, trade = next_life(world, at_rest, queue_config=queue)
    assert (later.requests, trade.names()) == ([], [])


def test_a_tool_that_can_find_out_is_asked() -> None:
    world = World()
    left(world, "send")
    trade = Trade()
    trade.found = ToolOutput(text="the money has arrived")

    async def then(session: AsyncSession) -> None:
        await at_rest(session)
        assert [entry.state.value for entry in await session.ledger()] == ["done"]

    model, _ = next_life(world, then, trade=trade)
    assert len(trade.asked) == 1
    [note] = notes(model)
    assert note.endswith("has ended. Result:\nthe money has arrived")


def test_a_call_that_ends_while_the_session_is_closed_is_told_as_it_ended() -> None:
    world = World()

    async def main() -> None:
        trade = Trade()

        async def slow(name: str) -> str:
            await passing(500)
            return "well done"

        tool = FunctionTool(slow, name="pay", description="pay", interruptible=False)
        model = ScriptedModel([[call("pay", name="x")], [say("on")]])
        async with world.process(model, [tool], **LATER) as (session, _):
            await session.send("go")
            await session.close()
            assert trade.keys == []

    run_sim(main(), seed=0)

    async def then(session: AsyncSession) -> None:
        await at_rest(session)
        assert [entry.state.value for entry in await session.ledger()] == ["done"]

    model, trade = next_life(world, then)
    assert trade.names() == []
    [note] = notes(model)
    assert note.endswith("has ended. Result:\nwell done")


def test_a_stop_before_the_end_of_the_process_leaves_nothing_to_tell() -> None:
    world = World()

    async def main() -> None:
        trade = Trade(holds=True)
        model = ScriptedModel([[call("pay", name=WAITS)], [say("on")]])
        async with world.process(model, trade.tools(), **LATER) as (session, store):
            await session.send("go")
            engine = session.host.inbox.engine
            [child] = engine._children.values()  # noqa: SLF001 - it dies between the word and the deed
            child.cancel = lambda reason="": False  # type: ignore[method-assign]
            await session.host.inbox.stop(S)
            store.die()

    run_sim(main(), seed=0)

    async def then(session: AsyncSession) -> None:
        await at_rest(session)
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]
        await session.send("and now?")

    model, _ = next_life(world, then)
    assert notes(model) == []
    assert statuses(model.requests[-1]) == [("call-1", "unknown")]


@pytest.mark.parametrize("ends", ["close", "cancel"])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_result_that_is_being_read_when_its_call_is_ended_is_known_to_be_there(
    ends: str, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    if restarted:
        left(world, "pay", queue=OUT)

    async def read(session: AsyncSession) -> None:
        reading = asyncio.Event()

        async def cap_output(output: ToolOutput, context: object) -> ToolOutput:
            reading.set()
            await asyncio.Event().wait()  # a long text is written to the disk
            return output

        [listed] = session.background()
        with monkeypatch.context() as patch:
            patch.setattr(externals, "cap_output", cap_output)
            assert await session.complete_external_task(listed.task_id, "paid")
            await reading.wait()
            if ends == "close":
                await session.close()
            else:
                assert await session.cancel_background(listed.background_id, "enough")
        if ends == "cancel":
            await at_rest(session)
            assert [entry.state.value for entry in await session.ledger()] == ["done"]

    async def first() -> None:
        model = ScriptedModel([[call("pay", name="x")], [say("on")], [say("off")]])
        async with world.process(model, Trade().tools(), queue_config=OUT, **LATER, **LANE) as (session, _):
            assert (await session.send("go")).text == "on"
            await read(session)

    if restarted:
        next_life(world, read, queue_config=OUT)
    else:
        run_sim(first(), seed=world.life)

    async def then(session: AsyncSession) -> None:
        await at_rest(session)
        assert [entry.state.value for entry in await session.ledger()] == ["done"]

    model, trade = next_life(world, then, queue_config=OUT)
    assert trade.names() == []
    if ends == "close":
        [note] = notes(model)
        assert note.endswith("has ended. Result:\npaid")


def test_a_run_that_goes_on_after_a_crash_does_not_make_the_call_again() -> None:
    world = World()

    async def main() -> None:
        trade = Trade(holds=True)
        model = ScriptedModel([[call("pay", name=WAITS)], [call("look", name=WAITS)]])
        options = {**LATER, "background_tools": ["pay"]}
        async with world.process(model, trade.tools(), **options) as (session, store):
            await session.followup("go")
            while len(trade.keys) < 2:
                await passing()
            store.die()

    run_sim(main(), seed=0)
    model, trade = next_life(world, at_rest, [call("look", name="x")], [say("done")], [say("off")])
    assert trade.names() == ["look x"]
    assert len(notes(model)) == 1


# ---- calls that somebody else makes ----


@pytest.mark.parametrize("ends", ["die", "close"])
@pytest.mark.parametrize("name", ["look", "put", "pay"])
@pytest.mark.parametrize("started", [False, True])
def test_a_task_in_the_background_goes_on_at_its_worker_and_its_result_is_told_once(
    name: str, ends: str, started: bool
) -> None:
    world = World()

    async def main() -> tuple[str, str]:
        model = ScriptedModel([[call(name, name="x")], [say("on")]])
        async with world.process(model, Trade().tools(), queue_config=OUT, **LATER, **LANE) as (session, store):
            assert (await session.send("go")).text == "on"
            token = ""
            if started:
                [lease] = await session.host.desk.claim("w1")
                await session.host.desk.start(lease.task["task_id"], lease.token)
                token = lease.token
            [listed] = session.background()
            assert listed.task_id in session.explain()
            store.die() if ends == "die" else await session.close()
            return listed.task_id, token

    task_id, token = run_sim(main(), seed=0)
    assert [row.live for row in world.rows("task")] == [1]

    async def then(session: AsyncSession) -> None:
        [listed] = session.background()
        assert listed.task_id == task_id
        desk = session.host.desk
        if started and name != "look":  # who has begun a read is not on disk
            assert await desk.heartbeat(task_id, token)
            await desk.complete(task_id, token, ExternalTaskResult(result="from afar"))
        else:
            [lease] = await desk.claim("w2", wait_ms=1_000)
            await desk.start(task_id, lease.token)
            await desk.complete(task_id, lease.token, ExternalTaskResult(result="from afar"))
        await at_rest(session)
        assert {entry.state.value for entry in await session.ledger()} <= {"done"}

    model, trade = next_life(world, then, queue_config=OUT)
    assert trade.names() == []
    [note] = notes(model)
    assert note.endswith("has ended. Result:\nfrom afar")
    later, _ = next_life(world, at_rest, queue_config=OUT)
    assert later.requests == []


def test_an_end_that_came_while_nobody_was_there_is_told_after_the_start() -> None:
    world = World()

    async def main() -> None:
        model = ScriptedModel([[call("pay", name="x")], [say("on")]])
        async with world.process(model, Trade().tools(), queue_config=OUT, **LATER, **LANE) as (session, store):
            await session.send("go")
            [lease] = await session.host.desk.claim("w1")
            await session.host.desk.start(lease.task["task_id"], lease.token)
            ended: list[str] = []
            session.background_calls.keys = lambda: set()  # type: ignore[method-assign]
            [each] = session.background_calls._live.values()  # noqa: SLF001 - it dies before it has heard of the end
            each.ended = lambda *_: ended.append("heard")  # type: ignore[method-assign]
            await session.host.desk.complete(lease.task["task_id"], lease.token, ExternalTaskResult(result="ok"))
            store.die()

    run_sim(main(), seed=0)
    assert [row.state for row in world.rows("task")] == ["completed"]
    model, _ = next_life(world, at_rest, queue_config=OUT)
    [note] = notes(model)
    assert note.endswith("Result:\nok")


@pytest.mark.parametrize(("started", "ledger"), [(False, "failed"), (True, "unknown")])
@pytest.mark.parametrize("restarted", [False, True])
def test_stop_withdraws_a_task_in_the_background(started: bool, ledger: str, restarted: bool) -> None:
    world = World()

    async def stop(session: AsyncSession) -> None:
        if started:
            [lease] = await session.host.desk.claim("w1", wait_ms=1_000)
            await session.host.desk.start(lease.task["task_id"], lease.token)
        await session.host.inbox.stop(S)
        await at_rest(session)
        assert [entry.state.value for entry in await session.ledger()] == [ledger]
        assert session.host.desk.tasks() == []

    async def main() -> None:
        model = ScriptedModel([[call("pay", name="x")], [say("on")]])
        async with world.process(model, Trade().tools(), queue_config=OUT, **LATER, **LANE) as (session, store):
            await session.send("go")
            if restarted:
                store.die()
            else:
                await stop(session)
        check_model(model)

    run_sim(main(), seed=0)
    if restarted:
        next_life(world, stop, queue_config=OUT)
    assert [row.state for row in world.rows("task")] == ["unknown" if started else "withdrawn"]
    model, _ = next_life(world, at_rest, queue_config=OUT)
    assert model.requests == []


# ---- at any moment ----


class _Killed(World):
    """A world whose processes die at a commit."""

    def live(self, lives: int, *, before: bool, script: Sequence[Entry], trade: Trade) -> tuple[bool, ScriptedModel]:
        """One process; whether it died."""

        async def main() -> tuple[bool, ScriptedModel]:
            store = Mortal(self.disk, lives=lives, before=before)
            model = ScriptedModel(list(script))
            agent = self._agent(model, trade.tools())
            options = {"session_id": S, "session_store": store, **LATER, **LANE}
            session = agent.session(tempfile.gettempdir(), **options)

            async def go() -> None:
                await session.ready()
                await session.host.inbox.submit(S, "go", message_id="m1")
                await at_rest(session)

            work, death = asyncio.ensure_future(go()), asyncio.ensure_future(store.died.wait())
            await asyncio.wait([work, death], return_when=asyncio.FIRST_COMPLETED)
            died = store.died.is_set()
            if not died:
                work.result()
                await agent.close()
            for task in (work, death):
                task.cancel()
            return died, model

        return run_sim(main(), seed=self.life)


class _Slow(Trade):
    """Calls of `waits` take a while."""

    def _tool(self, kind: str) -> Any:
        async def run(name: str, context: ToolContext) -> str:
            self.keys.append((kind, name, context.key))
            if name == WAITS:
                await passing(200)
            return f"{kind} of {name}"

        return FunctionTool(run, name=kind, description=kind, effect=self.effects[kind])


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", ["look", "put", "pay"])
def test_killed_at_any_commit_a_write_is_made_at_most_once_and_the_model_hears_one_end(name: str, before: bool) -> None:
    script: list[Entry] = [[call(name, name=WAITS)], [call("pay", name="b")], [say("on")], [say("off")]]
    died = 0
    for lives in range(1, 60):
        world, trade = _Killed(), _Slow()
        killed, model = world.live(lives, before=before, script=script, trade=trade)
        if not killed:
            break
        died += 1
        rest = script[len(model.requests) :] if model.requests else script
        again, model = world.live(0, before=before, script=[*rest, *[[say("more")]] * 3], trade=trade)
        assert not again
        check_model(model)
        names = trade.names()
        assert names.count("pay b") <= 1
        if name == "pay":
            assert names.count(f"pay {WAITS}") <= 1
        assert [row.live for row in world.rows("child")] in ([], [0])
        assert all(row.state != "intended" for row in world.rows("intent"))
        texts = [row.id for row in world.disk.messages.values() if NOTE in row.body]
        moved = any("Goes on in the background" in row.body for row in world.rows("round"))
        assert len(texts) == len(world.rows("child"))
        assert len(texts) <= 1
        assert moved == bool(texts)
    else:
        pytest.fail("it never came to its end")
    assert died > 8
    assert results(model.requests[-1])


# ---- a store that refuses ----


@pytest.mark.parametrize("refused", [("child", "running"), ("child", "succeeded")])
@pytest.mark.parametrize("name", ["look", "pay"])
def test_a_store_that_refuses_once_costs_no_end_and_no_second_call(name: str, refused: tuple[str, str]) -> None:
    world, trade = World(), _Slow()
    world.fails_with = refused

    async def main() -> ScriptedModel:
        model = ScriptedModel([[call(name, name=WAITS)], *[[say("on")]] * 3])
        async with world.process(model, trade.tools(), **LATER, **LANE) as (session, _):
            await session.followup("go")
            await passing(10_000)
            await at_rest(session)
            await session.send("and?")
        check_model(model)
        return model

    model = run_sim(main(), seed=0)
    assert trade.names() == [f"{name} {WAITS}"]
    assert len(notes(model)) == 1
    assert all(row.state != "intended" for row in world.rows("intent"))
    assert all(row.live == 0 for row in world.rows("child"))


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("hangs", [False, True])
def test_a_session_that_is_deleted_leaves_no_call_in_the_background_behind(queue: bool, hangs: bool) -> None:
    @simulated
    async def main() -> None:
        began, gate = asyncio.Event(), asyncio.Event()

        async def grind(key: str) -> str:
            began.set()
            while True:
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    if not hangs:
                        raise
                else:
                    return key

        mill = FunctionTool(grind, name="mill", description="grind", effect="write", background=True)
        model = ScriptedModel([use("mill", "a"), [say("it runs")]])
        before = asyncio.all_tasks()
        options: dict[str, Any] = {"session_store": MemoryStore(), "background_after_ms": 50}
        async with agent_of(model, [mill], **options) as agent:
            holder = await session_of(agent, session_id="holder").ready()
            session = session_of(agent, session_id="s", queue=queue)
            await session.send("grind")
            assert session.background()
            await delete_session(session.host.inbox.engine, session.owner, actor="test", let_go=session.close)
            assert await holder.history() == []
        await passing()
        if hangs:  # what does not let itself be ended ends now
            gate.set()
            await passing()
        left = {task.get_name() for task in asyncio.all_tasks() - before}
        assert left == set()

    main()
