"""Sub-agents whose process has ended: who goes on with them, what runs once, and how often an end is told.

A process is a simulated loop; its end is a store that answers nobody any more, or a session that is closed.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from laneway.agent import AsyncAgent
from laneway.agent.session import AsyncSession
from laneway.errors import StoreUnavailableError
from laneway.models import call, say
from laneway.options import PermissionPolicy, SessionQueueConfig
from laneway.policies import ConfirmationPolicy
from laneway.rows import Batch, BatchResult, StateRow
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk
from laneway.system import HostEnv, SequentialIdGenerator
from laneway.testing import LoopClock
from tests.agent_stage import ALLOW, Bench, one
from tests.durable_stage import Mortal
from tests.stage import passing
from tests.subagent_stage import Cast, notes

S = "chat"
QUEUED = [None, SessionQueueConfig()]
Then = Callable[[AsyncSession], Awaitable[Any]]


class World:
    """A disk, and the processes that come and go on it. `began` is what the tools of all of them have begun."""

    def __init__(self, **options: Any) -> None:
        self.disk = MemoryDisk()
        self.options = options
        self.life = 0
        self.began: list[str] = []
        self.asked: list[str] = []
        self.notes: list[str] = []

    def run(self, cast: Cast, then: Then, *, held: str = "", lives: int = 0, before: bool = True) -> bool:
        """One process; whether it died (at the commit `lives`, or because `then` raised `Killed`)."""
        self.life += 1

        async def main() -> bool:
            bench = Bench(*held.split())
            ids = SequentialIdGenerator(f"life{self.life}-")
            host = HostEnv(clock=LoopClock(), ids=ids, random=random.Random(0))
            store = Mortal(self.disk, lives=lives, before=before)
            agent = AsyncAgent(
                model=cast.model, tools=bench.tools, builtin_tools=False, permission_policy=ALLOW, host=host
            )
            options = {"subagents": True, "session_id": S, "session_store": store, **self.options}
            session = agent.session(tempfile.gettempdir(), **options)
            work = asyncio.ensure_future(_until_killed(session, then, bench))
            death = asyncio.ensure_future(store.died.wait())
            await asyncio.wait([work, death], return_when=asyncio.FIRST_COMPLETED)
            if work.done() and work.result():
                store.die()
            died = store.died.is_set()
            if not died:
                await agent.close()
            for task in (work, death):
                task.cancel()
            self.began += bench.began
            self.asked += cast.asked
            self.notes += notes(cast)
            return died

        return run_sim(main(), seed=self.life)

    def rows(self, kind: str, **facts: Any) -> list[StateRow]:
        """The rows of a kind, oldest first."""
        found = [row for (of, _), row in self.disk.states.items() if of == kind]
        return [row for row in sorted(found, key=lambda row: row.seq) if _fits(row, facts)]

    def messages(self, session: str) -> list[Any]:
        """The messages of a session, oldest first."""
        found = [row for row in self.disk.messages.values() if row.session == session]
        return sorted(found, key=lambda row: row.seq)


def _fits(row: StateRow, facts: dict[str, Any]) -> bool:
    return all(getattr(row, name) == value for name, value in facts.items())


class KilledError(Exception):
    """The process is killed now."""


async def _until_killed(session: AsyncSession, then: Then, bench: Bench) -> bool:
    try:
        await session.ready()
        session.bench = bench  # type: ignore[attr-defined]
        await then(session)
    except KilledError:
        return True
    return False


def sends(text: str, key: str) -> Then:
    """Send something, and be killed when the tool with this key runs."""

    async def then(session: AsyncSession) -> None:
        await session.followup(text)
        await session.bench.begun(key).wait()  # type: ignore[attr-defined]
        await passing()
        raise KilledError

    return then


async def at_rest(session: AsyncSession) -> None:
    """Until nothing is left to do."""
    for _ in range(5):
        await session.wait_idle()
        await passing(100)
    assert session.children() == []


def play() -> Cast:
    """`go` hands `find` to a sub-agent, which writes `a` and then `b`."""
    return Cast(go=[[call("task", prompt="find")]], find=[[one("act", "a")], [one("act", "b")], [say("found")]])


# ---- a task ----


@pytest.mark.parametrize("queue", QUEUED)
def test_a_task_attaches_to_the_same_child_and_what_it_did_is_not_done_again(queue: SessionQueueConfig | None) -> None:
    world = World(queue_config=queue)
    cast = play()
    cast.parts["find"] = [[one("act", "a")], [one("put", "b")], [say("found")]]
    assert world.run(cast, sends("go", "b"), held="b")
    after = Cast(**cast.parts)
    assert not world.run(after, at_rest)
    assert world.began == ["a", "b", "b"]  # `put` is idempotent, and runs again with its key
    assert after.said_to("go") == ["found"]
    assert len({row.session for row in world.disk.messages.values()}) == 2
    assert world.notes == []
    assert world.rows("child", live=1) == []


def test_a_write_of_a_child_that_was_cut_off_is_unknown_to_it_and_is_not_made_again() -> None:
    world = World()
    cast = play()
    assert world.run(cast, sends("go", "a"), held="a")
    after = Cast(**cast.parts)
    assert not world.run(after, at_rest)
    assert world.began == ["a", "b"]
    assert "may have had its effect" in after.said_to("find")[0]
    assert after.said_to("go") == ["found"]


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("queue", QUEUED)
def test_killed_at_any_commit_every_write_is_made_at_most_once_and_the_task_comes_to_one_end(
    queue: SessionQueueConfig | None, before: bool
) -> None:
    for lives in range(1, 100):
        world = World(queue_config=queue)
        cast = play()

        async def begin(session: AsyncSession) -> None:
            await session.host.inbox.submit(S, "go", message_id="m1")
            await at_rest(session)

        if not world.run(cast, begin, lives=lives, before=before):
            break
        after = Cast(**cast.parts)
        assert not world.run(after, begin)
        assert world.began.count("a") <= 1
        assert world.began.count("b") <= 1
        sessions = {row.session for row in world.disk.messages.values()}
        assert len(sessions) == 2
        for name in sessions:
            assert len(world.messages(name)) == 1
        [message] = world.messages(S)
        assert (message.state, message.outcome) == ("ran", "succeeded")
        assert world.notes == []
        assert world.rows("child", live=1) == []
    else:
        pytest.fail("it never came to its end")
    assert lives > 10


def test_a_run_that_does_not_go_on_takes_its_children_with_it() -> None:
    world = World(on_crash="report")
    cast = play()
    assert world.run(cast, sends("go", "a"), held="a")
    after = Cast(**cast.parts)
    assert not world.run(after, at_rest)
    assert world.began == ["a"]
    assert after.asked == []
    [child] = [row for row in world.disk.messages.values() if row.session != S]
    assert (child.state, child.outcome) == ("ran", "interrupted")  # a run had begun over it
    assert world.rows("child", live=1) == []


def test_what_a_child_that_does_not_go_on_had_given_to_others_or_had_asked_is_withdrawn() -> None:
    queue = SessionQueueConfig().set_lane_handler("execute", "external")
    policy = PermissionPolicy(allow=("task", "act"))
    asks = ConfirmationPolicy(default_timeout_ms=60_000)
    world = World(on_crash="report", queue_config=queue, permission_policy=policy, confirmation_policy=asks)
    cast = Cast(
        go=[[call("task", prompt="one"), call("task", prompt="two")]],
        one=[[one("act", "a")]],
        two=[[one("nail", "b")]],
    )

    async def begin(session: AsyncSession) -> None:
        await session.followup("go")
        while not (await session.pending_external_tasks() and await session.pending_confirmations()):
            await passing()
        raise KilledError

    assert world.run(cast, begin)
    assert len(world.rows("task", live=1)) == 1
    assert len(world.rows("approval", live=1)) == 1
    after = Cast(**cast.parts)
    assert not world.run(after, at_rest)
    assert after.asked == []
    assert world.rows("task", live=1) == []
    assert world.rows("approval", live=1) == []
    assert world.rows("child", live=1) == []


def test_a_task_of_the_host_ends_with_its_process() -> None:
    world = World()
    cast = play()

    async def begin(session: AsyncSession) -> None:
        waiting = asyncio.ensure_future(session.task("find"))
        await session.bench.begun("a").wait()  # type: ignore[attr-defined]
        assert not waiting.done()
        raise KilledError

    assert world.run(cast, begin, held="a")
    after = Cast(**cast.parts)
    assert not world.run(after, at_rest)
    assert after.asked == []
    assert world.rows("child", live=1) == []


def test_a_session_that_is_closed_and_opened_again_goes_on_with_its_children_and_grandchildren() -> None:
    world = World(queue_config=SessionQueueConfig())
    cast = Cast(
        go=[[call("task", prompt="middle")]],
        middle=[[call("task", prompt="find")]],
        find=[[one("put", "a")], [say("found")]],
    )

    async def begin(session: AsyncSession) -> None:
        await session.followup("go")
        await session.bench.begun("a").wait()  # type: ignore[attr-defined]
        await session.close()

    assert not world.run(cast, begin, held="a")
    assert len(world.rows("child", live=1, state="running")) == 2
    after = Cast(**cast.parts)
    assert not world.run(after, at_rest)
    assert after.said_to("middle") == ["found"]
    assert after.said_to("go") == ["done middle"]
    assert len({row.session for row in world.disk.messages.values()}) == 3
    assert world.rows("child", live=1) == []


# ---- a store that refuses for a while ----


class Moody(Mortal):
    """A store that refuses what belongs to sub-agents while it is in a bad mood."""

    is_moody = False

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Take everything, or all but what belongs to sub-agents."""
        refused = [self.is_moody and "~" in batch.owner.session for batch in batches]
        taken = iter(await super().commit([batch for batch, no in zip(batches, refused, strict=True) if not no]))
        no_answer = BatchResult(StoreUnavailableError("not today"))
        return [no_answer if no else next(taken) for no in refused]


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_child_is_ended_as_soon_as_the_store_takes_it(how: str) -> None:
    disk = MemoryDisk()
    limit = 1_000 if how == "timeout" else None
    cast = Cast(go=[[call("task", prompt="find", timeout_ms=limit)]], find=[[one("act", "a")], [say("found")]])

    async def main() -> None:
        store, bench = Moody(disk), Bench("a")
        host = HostEnv(clock=LoopClock(), ids=SequentialIdGenerator(""), random=random.Random(0))
        options: dict[str, Any] = {"builtin_tools": False, "permission_policy": ALLOW, "host": host}
        async with AsyncAgent(cast.model, tools=bench.tools, **options) as agent:
            session = agent.session(tempfile.gettempdir(), session_id=S, session_store=store, subagents=True)
            await session.followup("go")
            await bench.begun("a").wait()
            store.is_moody = True
            if how == "cancel":
                await session.cancel("enough")
            await passing(3_000)
            assert [each.status for each in session.subagents()] != ["succeeded"]
            store.is_moody = False
            await passing(60_000)
            await session.wait_idle()
            assert session.children() == []
            expected = "cancelled" if how == "cancel" else "timed_out"
            assert [each.status for each in session.subagents()] == [expected]

    run_sim(main(), seed=1)
    assert [row.id for (kind, _), row in disk.states.items() if kind == "child" and row.live] == []
    assert [row.id for row in disk.messages.values() if row.live] == []


def test_a_child_whose_job_was_taken_away_goes_on_with_the_next_process() -> None:
    world = World()
    cast = spawning()

    async def begin(session: AsyncSession) -> None:
        await session.send("go")
        await session.bench.begun("b").wait()  # type: ignore[attr-defined]
        [job] = [each for each in session.host.lanes.jobs("waiting/control") if each.label == "it"]
        session.host.lanes.cancel(job.id)
        await passing()

    assert not world.run(cast, begin, held="b")
    assert not world.run(Cast(**cast.parts), at_rest)
    assert len(world.notes) == 1
    assert world.rows("child", live=1) == []
    assert world.began.count("a") == 1


# ---- spawn ----


def spawning() -> Cast:
    """`go` spawns a sub-agent for `find`, which writes `a`."""
    return Cast(
        go=[[call("spawn", prompt="find", description="it")]],
        find=[[one("act", "a")], [one("put", "b")], [say("found")]],
    )


def test_a_spawned_child_goes_on_after_a_restart_and_its_end_is_one_message() -> None:
    world = World()
    cast = spawning()
    assert world.run(cast, sends("go", "b"), held="b")
    after = Cast(**cast.parts)
    assert not world.run(after, at_rest)
    assert world.began == ["a", "b", "b"]
    assert world.notes == ['[System note] Sub-agent "it" is done. Result:\nfound']
    assert not world.run(Cast(), at_rest)
    assert len(world.notes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_commit_the_end_of_a_spawned_child_is_told_once(before: bool) -> None:
    for lives in range(1, 100):
        world = World()
        cast = spawning()

        async def begin(session: AsyncSession) -> None:
            await session.host.inbox.submit(S, "go", message_id="m1")
            await at_rest(session)

        if not world.run(cast, begin, lives=lives, before=before):
            break
        assert not world.run(Cast(**cast.parts), begin)
        assert not world.run(Cast(), at_rest)
        about = [row for row in world.messages(S) if "Sub-agent" in row.body]
        assert len(about) == 1, lives
        assert about[0].outcome == "succeeded"
        assert world.began.count("a") <= 1
        assert len({row.session for row in world.disk.messages.values()}) == 2
        assert world.rows("child", live=1) == []
    else:
        pytest.fail("it never came to its end")
    assert lives > 10


def test_a_spawned_child_that_was_stopped_does_not_come_back() -> None:
    world = World()
    cast = spawning()

    async def begin(session: AsyncSession) -> None:
        await session.send("go")
        await session.bench.begun("a").wait()  # type: ignore[attr-defined]
        await session.host.inbox.stop(S)
        raise KilledError

    assert world.run(cast, begin, held="a")
    after = Cast(**cast.parts)
    assert not world.run(after, at_rest)
    assert (after.asked, world.notes) == ([], [])
    assert world.rows("child", live=1) == []


def test_a_spawned_child_of_a_session_that_was_closed_is_told_when_it_is_opened_again() -> None:
    world = World()
    cast = spawning()

    async def begin(session: AsyncSession) -> None:
        await session.send("go")
        await session.bench.begun("b").wait()  # type: ignore[attr-defined]
        await session.close()

    assert not world.run(cast, begin, held="b")
    assert world.notes == []
    assert not world.run(Cast(**cast.parts), at_rest)
    assert len(world.notes) == 1


def test_a_followup_that_was_asked_for_before_a_crash_comes_once() -> None:
    for lives in range(1, 60):
        world = World()
        cast = Cast(go=[[call("request_followup", text="more")]])

        async def begin(session: AsyncSession) -> None:
            await session.host.inbox.submit(S, "go", message_id="m1")
            await at_rest(session)

        died = world.run(cast, begin, lives=lives, before=bool(lives % 2))
        if not died:
            break
        assert not world.run(Cast(**cast.parts), begin)
        assert len(world.messages(S)) == 2
    assert not died
