"""What an answer took counts once: in budgets, in the usage of a server and in what a run says that it took.

A run that goes on for another takes over its open round, with the answer that the other has paid for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from laneway import AsyncAgent
from laneway.agent.session import AsyncSession
from laneway.dialogue import Usage
from laneway.gateway.usage import UsageBook
from laneway.models import ScriptedModel, say
from laneway.models.scripted import Entry
from laneway.rows import Owner
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk
from laneway.system import HostEnv, SequentialIdGenerator
from laneway.testing import LoopClock
from tests.agent_stage import ALLOW, Bench, opened, post, session_of, use
from tests.durable_stage import Mortal
from tests.stage import passing, simulated

USED = Usage(input_tokens=300, output_tokens=100)
TALK: dict[str, Any] = {"name": "talk", "scope": "session", "tokens": 500_000}


class Seen(NamedTuple):
    """What a process has seen at its end: the calls of its model, what its budget and the usage say, and its runs."""

    calls: int
    spent: int
    lost: int
    usage: dict[str, int]
    runs: dict[str, int]
    words: str


def life(disk: MemoryDisk, at: int, script: Sequence[Entry], *, end: str = "close", holds: str = "") -> Seen:
    """A process with a session that is told something in its first life; it ends as it is told."""

    async def main() -> Seen:
        store, model = Mortal(disk), ScriptedModel(script, usage=USED)
        host = HostEnv(clock=LoopClock(), ids=SequentialIdGenerator(f"life{at}-"), random=random.Random(0))
        options: dict[str, Any] = {"session_store": store, "budgets": [TALK], "permission_policy": ALLOW, "host": host}
        agent = AsyncAgent(model=model, tools=Bench(*holds.split()).tools, builtin_tools=False, **options)
        session = session_of(agent, session_id="s")
        if at == 1:
            await post(session, "hello")
        else:
            await session.ready()
        await passing(1_000)
        seen = await looked(session, len(model.requests))
        if end == "die":
            store.die()
            return seen
        if end == "passivate":
            await session.passivate("room is needed", deadline_ms=0)
        await agent.close()
        return seen

    return run_sim(main(), seed=at)


async def looked(session: AsyncSession, calls: int) -> Seen:
    """What there is to see of a session."""
    (count,) = session.host.budgets.budgets.counts.values()
    runs = await session.runs()
    words = await session.explain_run(runs[-1].run_id)
    tokens = {run.run_id: run.prompt_tokens + run.completion_tokens for run in runs}
    return Seen(calls, count.spent.tokens, count.lost.tokens, await usage_of(session), tokens, words)


async def usage_of(session: AsyncSession) -> dict[str, int]:
    """What the usage of a server would say of its runs."""
    engine = session.host.inbox.engine
    book = UsageBook(engine.store, LoopClock(), Owner(session.owner.tenant, session.owner.workspace))
    await book.refresh()
    assert sum(found.tokens for _, found in book.hours()) == sum(found.tokens for _, found in book.runs())
    return {run_id: found.tokens for run_id, found in book.runs() if found.tokens}


@pytest.mark.parametrize("tool", ["look", "act", "put"])
@pytest.mark.parametrize("end", ["die", "close", "passivate"])
def test_the_round_that_a_run_has_taken_over_counts_once(end: str, tool: str) -> None:
    disk = MemoryDisk()
    first = life(disk, 1, [use(tool, "k")], end=end, holds="k")
    second = life(disk, 2, [[say("done")]])
    calls = first.calls + second.calls
    is_kept = end != "die" or tool != "look"  # a read is not worth a checkpoint of its own
    assert calls == 2
    assert sum(second.usage.values()) == sum(second.runs.values()) == (800 if is_kept else 400)
    assert second.usage == {run: tokens for run, tokens in second.runs.items() if tokens}
    assert second.spent - second.lost == (800 if end != "die" else 400)
    assert second.lost == 0 or end == "die"
    assert "from round 1 on" in second.words or (end, tool) == ("die", "look") or tool == "act"
    if "from round 1 on" in second.words:
        assert "300 tokens in, 100 out, paid by the run before" in second.words
        assert "In all 2 rounds and 1 call, 300 tokens in and 100 out" in second.words


def test_a_round_that_is_taken_over_again_and_again_counts_once() -> None:
    disk = MemoryDisk()
    life(disk, 1, [use("put", "k")], end="die", holds="k")
    for at in (2, 3):
        life(disk, at, [], end="passivate", holds="k")
    last = life(disk, 4, [[say("done")]])
    assert sorted(last.usage.values()) == [400, 400]
    assert sorted(last.runs.values()) == [0, 0, 400, 400]


@simulated
async def test_what_a_fork_is_begun_with_was_paid_by_its_run() -> None:
    model = ScriptedModel([use("act", "c"), [say("done")], [say("otherwise")]], usage=USED)
    async with opened(model, Bench(), budgets=[TALK]) as session:
        first = await session.send("hello")
        fork = await session.fork(first.run_id, prompt="and now?")
        await fork.wait_idle()
        assert sorted((await usage_of(session)).values()) == [400, 800]
        assert [run.prompt_tokens for run in await fork.runs()] == [300]
