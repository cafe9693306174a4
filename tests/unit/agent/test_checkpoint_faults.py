"""A store that refuses, stumbles, or has something else on its disk than was written, while an agent runs on it.

Wherever it fails: a write is made at most once, a message has one end, what a model is sent is well formed, the session
lives on as soon as the store does, and another process finds what this one remembers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from laneway.agent import AsyncAgent
from laneway.agent.session import AsyncSession
from laneway.dialogue import ModelRequest, ToolContext
from laneway.errors import LanewayError, StoreCorruptError, StoreUnavailableError
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Piece
from laneway.options import SessionQueueConfig
from laneway.rows import Batch, BatchResult, StateKey, StateRow
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.system import HostEnv, SequentialIdGenerator
from laneway.testing import LoopClock
from laneway.testing.faults import FaultyStore
from laneway.tools import FunctionTool
from tests.agent_stage import ALLOW, check_conversation, check_model, results, statuses
from tests.chaos.agent_life import EFFECTS, plans_in
from tests.durable_stage import Mortal
from tests.inbox_stage import staged
from tests.stage import passing

S = "chat"
When = Literal["before", "after"]


class Shop:
    """Tools of every effect that count."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda name: None

    def tools(self) -> list[FunctionTool[Any, Any]]:
        """All of them."""
        effects = {"look": "read", "put": "idempotent", "pay": "write"}
        return [self._tool(kind, effect) for kind, effect in effects.items()]

    def _tool(self, kind: str, effect: str) -> FunctionTool[Any, Any]:
        async def run(name: str) -> str:
            self.made[f"{kind} {name}"] += 1
            self.before(name)
            await asyncio.sleep(0)
            return f"{kind} of {name}"

        return FunctionTool(run, name=kind, description=kind, effect=effect)


def agent_with(model: ScriptedModel, shop: Shop, *, life: int = 1) -> AsyncAgent:
    """An agent that may do everything, with ids of its own in each life."""
    host = HostEnv(clock=LoopClock(), ids=SequentialIdGenerator(f"life{life}-"), random=random.Random(0))
    return AsyncAgent(model=model, tools=shop.tools(), builtin_tools=False, permission_policy=ALLOW, host=host)


class FailsAt(FaultyStore):
    """A store that fails once: at one commit, counted from when it is told, or at the first one with such a row."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self._at = 0
        self._when: When = "before"
        self._rows: tuple[str, ...] = ()

    def fail_at(self, number: int, when: When) -> None:
        """Fail at this commit from now on; 1 is the next one."""
        self._at, self._when = self.commits + number, when

    def fail_with(self, kind: str, state: str, when: When) -> None:
        """Fail at the first commit that has a row of this kind in this state."""
        self._rows, self._when = (kind, state), when

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make batches durable, or not."""
        states = {(row.kind, row.state) for batch in batches for row in batch.rows if isinstance(row, StateRow)}
        if self._rows in states or self.commits + 1 == self._at:
            self._rows = ()
            self.fail_next(self._when)
        return await super().commit(batches)


class Stage:
    """A session on a store that fails when it is told to."""

    def __init__(self, *script: Any, disk: MemoryDisk | None = None, life: int = 1) -> None:
        self.disk = disk or MemoryDisk()
        self.store = FailsAt(MemoryStore(self.disk))
        self.model = ScriptedModel(list(script))
        self.shop = Shop()
        self.agent = agent_with(self.model, self.shop, life=life)

    def session(self, **options: Any) -> AsyncSession:
        """The session, or one with another id."""
        wanted = {"session_id": S, "session_store": self.store, **options}
        return self.agent.session(tempfile.gettempdir(), **wanted)


SCRIPT = (
    [call("look", name="a"), call("put", name="b"), call("pay", name="c")],
    [call("pay", name="d")],
    [say("first")],
)
MANY = 20


async def settle_in(session: AsyncSession, text: str) -> str:
    """Send something, whatever the store says to it; the answer, or the code of the error."""
    try:
        return (await session.send(text, message_id=text)).text
    except LanewayError as error:
        return error.code


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 9))
@staged
async def test_a_commit_that_fails_costs_no_write_twice_and_no_session(number: int, when: When) -> None:
    stage = Stage(*SCRIPT, *[[say("later")]] * MANY)
    async with stage.agent:
        session = stage.session()
        await session.ready()
        stage.store.fail_at(number, when)
        first = await settle_in(session, "one")
        assert stage.store.faults == 1
        assert await settle_in(session, "two") in ("first", "later")
        history = await session.history()
        ledger = [entry.state.value for entry in await session.ledger()]
    assert first in ("first", "later", "store_unavailable", "run_failed"), first
    assert max(count for name, count in stage.shop.made.items() if name.startswith("pay")) == 1
    assert set(ledger) <= {"done", "failed", "unknown"}
    check_model(stage.model)
    await check_reopened(stage.disk, history)


async def check_reopened(disk: MemoryDisk, history: list[Any]) -> None:
    """Another process remembers the same, and is asked nothing."""
    other = Stage(disk=disk, life=2)
    async with other.agent:
        session = other.session(session_store=MemoryStore(disk))
        assert await session.history() == history
        for row in await session.host.inbox.engine.store.history.messages(session.owner):
            assert not row.live, row
    assert other.model.requests == []


@pytest.mark.parametrize("when", ["before", "after"])
@staged
async def test_an_intent_that_cannot_be_written_is_a_call_that_is_not_made(when: When) -> None:
    stage = Stage([call("pay", name="a")], [say("I could not pay")], [say("later")])
    async with stage.agent:
        session = stage.session()
        await session.ready()
        stage.store.fail_with("intent", "intended", when)
        assert await settle_in(session, "go") == "I could not pay"
        assert stage.shop.made == {}
        [told] = results(stage.model.requests[-1])
        assert told.status == "error"
        assert told.output.startswith("[Not run: the store was told to fail")
        history = await session.history()
        assert {entry.state for entry in await session.ledger()} <= {"failed"}
    check_model(stage.model)
    await check_reopened(stage.disk, history)
    assert [row.state for row in stage.disk.states.values() if row.kind == "intent"] in ([], ["failed"])


@pytest.mark.parametrize("when", ["before", "after"])
@staged
async def test_an_outcome_that_cannot_be_written_at_once_is_written_with_the_next_commit(when: When) -> None:
    stage = Stage([call("pay", name="a")], [say("paid")])
    async with stage.agent:
        session = stage.session()
        await session.ready()
        stage.store.fail_with("intent", "done", when)
        first = await settle_in(session, "go")
        assert first in ("paid", "store_unavailable", "run_failed")
        assert stage.shop.made == {"pay a": 1}
        assert [entry.state for entry in await session.ledger()] == ["done"]
    [row] = [row for row in stage.disk.states.values() if row.kind == "intent"]
    assert row.state == "done"


@staged
async def test_a_store_that_refuses_for_a_while_is_waited_for_or_told_and_no_write_is_lost_sight_of() -> None:
    stage = Stage([call("pay", name="a"), call("pay", name="b")], [say("paid")], *[[say("later")]] * MANY)

    def refuse(name: str) -> None:
        stage.store.fail_before = 1.0
        asyncio.get_running_loop().call_later(2.0, stage.store.heal)

    stage.store._random = random.Random(1)  # noqa: SLF001 - chances need one
    stage.shop.before = refuse
    async with stage.agent:
        session = stage.session()
        first = await settle_in(session, "go")
        stage.shop.before = lambda name: None
        await passing(5_000)
        assert await settle_in(session, "next") in ("paid", "later")
        ledger = {entry.state.value for entry in await session.ledger()}
        told = statuses(stage.model.requests[-1])
    assert first in ("paid", "later", "store_unavailable", "run_failed")
    assert ledger <= {"done", "unknown", "failed"}
    assert max(stage.shop.made.values()) == 1
    assert told[0][1] in ("ok", "unknown")
    check_model(stage.model)


# ---- something else is on the disk ----


def damage(disk: MemoryDisk, kind: str, change: Callable[[StateRow], StateRow], *, session: str = S) -> str:
    """Change the newest row of a kind of a session, behind everybody's back; its id."""
    rows = [row for row in disk.states.values() if row.kind == kind and row.session in (session, "")]
    row = max(rows, key=lambda each: each.seq)
    disk.states[StateKey(row.kind, row.id)] = changed = change(row)
    for owner, drawer in disk.drawers.items():
        if owner.session == row.session:
            drawer.states[StateKey(row.kind, row.id)] = changed
    return row.id


def with_body(**facts: Any) -> Callable[[StateRow], StateRow]:
    """A row whose body says something else."""
    return lambda row: row._replace(body=json.dumps({**json.loads(row.body), **facts}))


DAMAGES: dict[str, tuple[str, Callable[[StateRow], StateRow]]] = {
    "a body that was cut": ("round", lambda row: row._replace(body=row.body[: len(row.body) // 2])),
    "a body that is empty": ("round", lambda row: row._replace(body="")),
    "a flipped byte": ("round", lambda row: row._replace(body=row.body.replace('"v"', '"w"', 1))),
    "a body that is no object": ("round", lambda row: row._replace(body="[1,2,3]")),
    "a state that there is not": ("round", lambda row: row._replace(state="dreaming")),
    "results without calls": ("round", with_body(r=["x", "y", "z", "q"])),
    "the checkpoint of something else": ("round", lambda row: row._replace(body='{"checkpoint": 7, "nodes": []}')),
    "an intent that was cut": ("intent", lambda row: row._replace(body=row.body[:20])),
    "an intent of another call": ("intent", with_body(call="another")),
}


@pytest.mark.parametrize("what", DAMAGES)
@staged
async def test_a_damaged_checkpoint_is_named_and_costs_only_its_own_session(what: str) -> None:
    kind, change = DAMAGES[what]
    disk = MemoryDisk()
    first = Stage([call("pay", name="a")], [say("paid")], [call("pay", name="b")], [say("paid")], disk=disk)
    async with first.agent:
        await first.session().send("one")
        await first.session(session_id="other").send("two")
    row_id = damage(disk, kind, change)
    second = Stage([say("fine")], [say("again")], disk=disk, life=2)
    async with second.agent:
        hurt, well = second.session(), second.session(session_id="other")
        with pytest.raises(StoreCorruptError) as told:
            await hurt.send("three")
        assert row_id.partition("/")[0] in str(told.value)
        assert (await well.send("four")).text == "fine"
        with pytest.raises(StoreCorruptError):
            await hurt.history()
        assert (await well.send("five")).text == "again"
    assert second.shop.made == {}


@staged
async def test_a_checkpoint_of_a_newer_laneway_is_refused_and_left_as_it_is() -> None:
    disk = MemoryDisk()
    first = Stage([call("pay", name="a")], [say("paid")], disk=disk)
    async with first.agent:
        await first.session().send("one")
    row_id = damage(disk, "round", with_body(v=99))
    before = disk.states[StateKey("round", row_id)]
    second = Stage(disk=disk, life=2)
    async with second.agent:
        with pytest.raises(LanewayError, match="newer"):
            await second.session().send("two")
    assert disk.states[StateKey("round", row_id)] == before


@staged
async def test_a_session_whose_checkpoint_was_repaired_lives_on() -> None:
    disk = MemoryDisk()
    first = Stage([call("pay", name="a")], [say("paid")], disk=disk)
    async with first.agent:
        await first.session().send("one")
    good = {key: row for key, row in disk.states.items() if key.kind == "round"}
    row_id = damage(disk, "round", DAMAGES["a body that was cut"][1])
    second = Stage([say("back")], disk=disk, life=2)
    async with second.agent:
        session = second.session()
        with pytest.raises(StoreUnavailableError):
            await session.send("two")
        damage(disk, "round", lambda _: good[StateKey("round", row_id)])
        assert (await session.send("three")).text == "back"
    check_model(second.model)


# ---- a process that dies at every commit, and the next one, too ----

WANTED = ("#1 look,put|pay,put", "#2 pay|look", "#3 put,pay")
"""What messages want, as the chaos says it: the last one is steered in."""


class Witnessed:
    """Every life of one world: what its tools did, and what its models were told."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.effects: dict[str, list[str]] = {}
        self.life = 0
        self.commits = 0

    async def live(self, *, lives: int = 0, before: bool = True, queue: bool = False) -> list[Any]:
        """Open the session, send what is not there, and rest or die at a commit; the conversation."""
        self.life += 1
        store = Mortal(self.disk, lives=lives, before=before)
        model = ScriptedModel([self._answer] * 1_000)
        self._ids = itertools.count(1)
        host = HostEnv(clock=LoopClock(), ids=SequentialIdGenerator(f"life{self.life}-"), random=random.Random(0))
        tools = [self._tool(kind, effect) for kind, effect in EFFECTS.items()]
        agent = AsyncAgent(model=model, tools=tools, builtin_tools=False, permission_policy=ALLOW, host=host)
        session = agent.session(
            tempfile.gettempdir(),
            session_id=S,
            session_store=store,
            queue_config=SessionQueueConfig() if queue else None,
        )
        resting = asyncio.get_running_loop().create_task(self._rest(session))
        dying = asyncio.get_running_loop().create_task(store.died.wait())
        await asyncio.wait([resting, dying], return_when=asyncio.FIRST_COMPLETED)
        for request in model.requests:
            check_conversation(request)
        if store.died.is_set():
            return []
        history = await resting
        dying.cancel()
        await agent.close()
        self.commits = store.commits
        return history

    async def _rest(self, session: AsyncSession) -> list[Any]:
        await session.ready()
        inbox = session.host.inbox
        for text in WANTED:
            mode = "steer" if text is WANTED[-1] else "followup"
            await inbox.submit(S, text, mode=mode, message_id=text)
        for row in await inbox.engine.store.history.messages(session.owner):
            final = await inbox.wait(row.id)
            assert final.outcome == "succeeded", final
        assert {entry.state for entry in await session.ledger()} <= {"done", "unknown", "failed"}
        return await session.history()

    def _answer(self, request: ModelRequest) -> list[Piece]:
        wanted, ended = plans_in(request.conversation)
        for rounds in wanted.values():
            for names in rounds:
                left = [name for name in names if ended.get(name, "skipped") in ("skipped", "cancelled")]
                if left:
                    ids = (f"life{self.life}-{next(self._ids)}" for _ in left)
                    made = zip(left, ids, strict=True)
                    return [call(name.split()[0], name=name).with_id(call_id) for name, call_id in made]
        return [say("done")]

    def _tool(self, kind: str, effect: str) -> FunctionTool[Any, Any]:
        async def run(name: str, context: ToolContext) -> str:
            await asyncio.sleep(0)
            self.effects.setdefault(name, []).append(context.key)
            await asyncio.sleep(0)
            return f"{name} is done"

        return FunctionTool(run, name=kind, description=kind, effect=effect, parallel=kind == "put")

    def check(self, history: list[Any]) -> None:
        """Every call was asked for, and what the model was told of it is what happened."""
        _, ended = plans_in(history)
        assert len(ended) == 8
        for name, status in ended.items():
            made = self.effects.get(name, [])
            if name.startswith("pay"):
                assert len(made) <= 1, f"{name}: {made}"
            if name.startswith("put"):
                assert len(set(made)) <= 1, f"{name}: {made}"
                assert status == "ok", f"{name} can be made again, and is {status}"
            assert status == "unknown" or (status == "ok" and made), f"{name} is {status}: {made}"


def whole_world(*deaths: tuple[int, bool], queue: bool, seed: int) -> int:
    """Live once for each death, once to the end, and once more to look; how many commits the whole way takes."""
    world = Witnessed()
    for lives, before in deaths:
        run_sim(world.live(lives=lives, before=before, queue=queue), seed=seed)
    history = run_sim(world.live(queue=queue), seed=seed)
    world.check(history)
    commits = world.commits
    assert run_sim(world.live(queue=queue), seed=seed) == history
    return commits


@pytest.mark.slow
@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("before", [True, False])
def test_a_process_may_die_at_any_commit(before: bool, queue: bool) -> None:
    commits = whole_world(queue=queue, seed=1)
    assert commits > 10
    for number in range(1, commits + 1):
        whole_world((number, before), queue=queue, seed=number)


@pytest.mark.slow
@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("second", [1, 2, 3, 5, 8])
def test_a_process_may_die_while_it_goes_on_for_one_that_died(second: int, queue: bool) -> None:
    commits = whole_world(queue=queue, seed=1)
    for number in range(2, commits, 4):
        whole_world((number, False), (second, second % 2 == 0), queue=queue, seed=number)
    assert commits > 10
