"""A session is passivated at any moment, and messages come at any moment: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from laneway.dialogue import ModelRequest, Results, ResultStatus
from laneway.errors import LanewayError
from laneway.mail import Outcome
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Piece
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryStore
from laneway.testing.faults import FaultyStore
from laneway.tools import FunctionTool
from tests.agent_stage import agent_of, check_model, final_of, post, session_of
from tests.stage import passing

THINKS_MS, WORKS_MS, LONG_MS = 40, 60, 10_000
MOMENT = st.integers(0, 500) | st.integers(0, 25).map(lambda number: number * 20)  # the very moment of something, too
MOMENTS = st.lists(MOMENT, min_size=1, max_size=4).map(sorted)
DEADLINES = st.sampled_from([0, 1, 30, 100, LONG_MS])


class World:
    """A model that makes two calls for each prompt, and tools that take their time."""

    def __init__(self) -> None:
        self.acted: list[str] = []
        self.done: list[str] = []
        self.model = ScriptedModel([self.answer] * 200)
        self.tools = [
            FunctionTool(self.act, name="act", description="writes", effect="write"),
            FunctionTool(self.look, name="look", description="reads", effect="read"),
        ]

    async def act(self, key: str) -> str:
        self.acted.append(key)
        await asyncio.sleep(WORKS_MS / 1000)
        self.done.append(key)
        return "done"

    async def look(self, key: str) -> str:
        await asyncio.sleep(WORKS_MS / 1000)
        return "seen"

    async def answer(self, request: ModelRequest) -> list[Piece]:
        await asyncio.sleep(THINKS_MS / 1000)
        said = request.conversation
        at = max(number for number, each in enumerate(said) if str(each).startswith("user: "))
        name = str(said[at]).removeprefix("user: ").split()[0]
        rounds = sum(isinstance(each, Results) for each in said[at:])
        if rounds == 0:
            return [call("act", key=name).with_id(f"{name}-act")]
        if rounds == 1:
            return [call("look", key=name).with_id(f"{name}-look")]
        return [say(f"answer to {name}")]


async def leave(session: Any, moments: list[int], deadline_ms: int) -> None:
    """Passivate at these moments, and open it again a while after each."""
    for before, moment in zip([0, *moments], moments, strict=False):
        await passing(moment - before)
        await session.passivate("at any moment", deadline_ms=deadline_ms)
        await session.ready()


async def play(
    leaves: list[int], comes: list[int], deadline_ms: int, *, queue: bool = False, slow: bool = False
) -> World:
    world = World()
    store = FaultyStore(MemoryStore(), random.Random(deadline_ms))
    store.slow, store.delay_ms = (0.7, 20) if slow else (0.0, 0)
    async with agent_of(world.model, world.tools) as agent:
        session = session_of(agent, queue=queue, session_id="s", session_store=store)
        await session.ready()
        leaving = asyncio.ensure_future(leave(session, leaves, deadline_ms))
        receipts = []
        for number, (before, moment) in enumerate(zip([0, *comes], comes, strict=False)):
            await passing(moment - before)
            receipts.append(await post(session, f"m{number}"))
        await leaving
        finals = []
        for receipt in receipts:
            try:
                finals.append(await final_of(session, receipt))
            except LanewayError:  # it was being opened
                await session.ready()
                finals.append(await final_of(session, receipt))
    assert [final.outcome for final in finals] == [Outcome.SUCCEEDED] * len(finals)
    assert [final.answer for final in finals] == [f"answer to m{number}" for number in range(len(finals))]
    check_model(world.model)
    return world


def told_of(world: World) -> dict[str, set[ResultStatus]]:
    """What the model was told of each write, in all of its requests."""
    told: dict[str, set[ResultStatus]] = {}
    for request in world.model.requests:
        for said in request.conversation:
            for result in said.results if isinstance(said, Results) else ():
                if result.name == "act":
                    told.setdefault(result.call_id.removesuffix("-act"), set()).add(result.status)
    return told


@given(
    leaves=MOMENTS,
    comes=MOMENTS,
    deadline_ms=DEADLINES,
    seed=st.integers(0, 3),
    queue=st.booleans(),
    slow=st.booleans(),
)
def test_nothing_is_lost_no_write_is_made_twice_and_the_model_is_told_the_truth(
    leaves: list[int], comes: list[int], deadline_ms: int, seed: int, *, queue: bool, slow: bool
) -> None:
    world = run_sim(play(leaves, comes, deadline_ms, queue=queue, slow=slow), seed=seed)
    wanted = {f"m{number}" for number in range(len(comes))}
    assert len(world.acted) == len(set(world.acted))
    assert set(world.acted) <= wanted
    told = told_of(world)
    assert set(told) == wanted
    for name, statuses in told.items():
        assert len(statuses) == 1, (name, statuses)  # and never another thing later
        if name in world.done:
            assert statuses <= {ResultStatus.OK, ResultStatus.UNKNOWN}, (name, statuses)
        elif name in world.acted:
            assert statuses == {ResultStatus.UNKNOWN}, (name, statuses)
        else:
            assert statuses <= {ResultStatus.UNKNOWN, ResultStatus.CANCELLED}, (name, statuses)
    if deadline_ms == LONG_MS:  # no call is cut
        assert world.done == world.acted
        assert set(world.acted) == wanted
