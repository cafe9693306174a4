"""Random trees of sub-agents in narrow lanes, with people who cancel and stop, and processes that are killed.

Whatever happens, everything comes to an end, no more sub-agents hold a slot than the lane is wide, a write is made at
most once, and the end of each spawned sub-agent is told exactly once (not at all after a stop, which counts it).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
from typing import Any

import pytest

from laneway.agent import AsyncAgent
from laneway.agent.session import AsyncSession
from laneway.dialogue import Answer, ModelRequest, Prompt
from laneway.errors import LanewayError
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Piece
from laneway.options import SessionQueueConfig
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk
from laneway.system import HostEnv, SequentialIdGenerator
from laneway.testing import LoopClock
from laneway.tools import FunctionTool
from tests.agent_stage import ALLOW, check_conversation
from tests.durable_stage import Mortal
from tests.stage import passing

CHUNK = 15
SEEDS = range(0, 150, CHUNK)
DEPTH = 3


class Nest:
    """One seed: a disk, a model that hands work on, people, and processes one after another."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.luck = random.Random(seed)
        self.disk = MemoryDisk()
        self.width = self.luck.choice((1, 1, 2, 3))
        self.parallel = self.luck.choice((None, None, 1, 2))
        self.depth = self.luck.choice((1, 2, DEPTH))
        wide = self.luck.choice((None, 1, 2))
        self.queue = None if wide is None else SessionQueueConfig(execute_max_concurrency=wide)
        self.life = 0
        self.peak = 0
        self.others = 0
        self.children = 0
        self.writes: list[str] = []

    # ---- the model ----

    async def answer(self, request: ModelRequest) -> list[Piece]:
        """What is said follows from the prompt alone, so that it is the same after a restart."""
        check_conversation(request)
        said = request.conversation
        newest = max(at for at, each in enumerate(said) if isinstance(each, Prompt))
        prompt = said[newest]
        assert isinstance(prompt, Prompt)
        number = sum(isinstance(each, Answer) for each in said[newest:])
        luck = random.Random(f"{self.seed} {prompt.text} {number}")
        await asyncio.sleep(luck.choice((0, 0, 0.01, 0.5)))
        if "[System note]" in prompt.text or number >= luck.choice((1, 1, 2)) or prompt.text.count("/") > DEPTH + 1:
            return [say(f"done {prompt.text[:80]}")]
        return [self._call(luck, f"{prompt.text}/{number}.{at}") for at in range(luck.choice((1, 1, 2, 3)))]

    @staticmethod
    def _call(luck: random.Random, name: str) -> Piece:
        kind = luck.choice(("task", "task", "parallel_task", "spawn", "act", "look"))
        if kind == "task":
            limit = luck.choice((None, None, None, 5, 700))
            return call("task", prompt=name, timeout_ms=limit)
        if kind == "parallel_task":
            return call("parallel_task", tasks=[{"prompt": f"{name}:{n}"} for n in range(luck.choice((1, 2, 4)))])
        if kind == "spawn":
            return call("spawn", prompt=name, description=name)
        return call(kind, key=name)

    def tools(self) -> list[FunctionTool[Any, Any]]:
        """One that writes, and one that reads."""

        async def act(key: str) -> str:
            self.writes.append(key)
            await asyncio.sleep(random.Random(key).choice((0, 0.02, 0.3)))
            return f"acted on {key}"

        async def look(key: str) -> str:
            await asyncio.sleep(0)
            return f"looked at {key}"

        return [FunctionTool(act, effect="write"), FunctionTool(look, lane="query", effect="read")]

    # ---- processes ----

    def run(self, *, mortal: bool) -> bool:
        """One process; whether it was killed."""
        self.life += 1
        lives = self.luck.randrange(1, 60) if mortal else 0
        trouble = mortal

        async def main() -> bool:
            store = Mortal(self.disk, lives=lives, before=self.luck.random() < 0.5)
            ids = SequentialIdGenerator(f"life{self.life}-")
            host = HostEnv(clock=LoopClock(), ids=ids, random=random.Random(self.seed))
            model = ScriptedModel([self.answer] * 5_000)
            agent = AsyncAgent(model, tools=self.tools(), builtin_tools=False, permission_policy=ALLOW, host=host)
            work = asyncio.ensure_future(self._live(agent, store, trouble=trouble))
            death = asyncio.ensure_future(store.died.wait())
            await asyncio.wait([work, death], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                await agent.close()
            work.cancel()
            death.cancel()
            return store.died.is_set()

        return run_sim(main(), seed=self.seed)

    async def _live(self, agent: AsyncAgent, store: Mortal, *, trouble: bool) -> None:
        sessions = [await self._open(agent, store, name) for name in ("one", "two")]
        lanes = sessions[0].host.lanes
        lane = lanes.engine.kernel.registry.lanes["subagent"]

        def look(_: object) -> None:
            self.peak = max(self.peak, lane.held)

        lanes.on_change(look)
        for number in range(self.luck.randrange(1, 4) if trouble else 1):
            session = self.luck.choice(sessions)
            text = f"{session.session_id}.{self.life}.{number}"
            await session.followup(text, message_id=text)
            await passing(self.luck.choice((0, 1, 5, 100, 1_000)))
            if trouble:
                await self._meddle(sessions)
        for session in sessions:
            await at_rest(session)
        self.children += len(sessions[0].subagents())
        self._check(sessions)

    async def _open(self, agent: AsyncAgent, store: Mortal, name: str) -> AsyncSession:
        options: dict[str, Any] = {"queue_config": self.queue, "max_parallel_tasks": self.parallel}
        options |= {"subagents": True, "max_subagents": self.width, "max_subagent_depth": self.depth}
        session = agent.session(tempfile.gettempdir(), session_id=name, session_store=store, **options)
        return await session.ready()

    async def _meddle(self, sessions: list[AsyncSession]) -> None:
        session = self.luck.choice(sessions)
        with contextlib.suppress(LanewayError):
            match self.luck.choice(("", "", "cancel", "interrupt", "stop", "end", "task")):
                case "cancel":
                    await session.cancel("enough")
                case "interrupt":
                    self.others += 1
                    await session.interrupt(f"{session.session_id}.other{self.others}")
                case "stop":
                    await session.host.inbox.stop(session.session_id)
                case "end":
                    for each in session.subagents():
                        await session.cancel_subagent(each.task_id)
                case "task":
                    self.others += 1
                    await session.task(f"{session.session_id}.host{self.others}", timeout_ms=2_000)
                case _:
                    pass

    # ---- the laws ----

    def _check(self, sessions: list[AsyncSession]) -> None:
        host = sessions[0].host
        engine = host.inbox.engine
        assert self.peak <= self.width
        assert len(self.writes) == len(set(self.writes)), sorted(self.writes)
        assert set(host.sessions) == {session.key for session in sessions}
        assert not [session.children() for session in sessions if session.children()]
        stats = host.lanes.stats()
        assert (stats.running, stats.waiting, stats.lent) == (0, 0, 0)
        boxes = [owner.session for owner, box in engine.kernel.boxes.items() if box.children or not box.is_idle]
        assert boxes == []

    def check_disk(self) -> None:
        """Every end was told as often as it should be."""
        rows = [row for (kind, _), row in self.disk.states.items() if kind == "child"]
        assert [row.id for row in rows if row.live] == []
        texts = [json.loads(row.body)["text"] for row in self.disk.messages.values() if '"system"' in row.body]
        for row in rows:
            label, quiet = json.loads(row.body)["label"], json.loads(row.body)["awaited"]
            about = [text for text in texts if text.startswith(f'[System note] Sub-agent "{label}" ')]
            assert len(about) == (0 if quiet else 1), (row.id, label, quiet, about)


async def at_rest(session: AsyncSession) -> None:
    """Until nothing is left to do, however long that takes in virtual time."""
    for _ in range(60):
        await session.wait_idle()
        await passing(1_000)
        if all(each.status not in ("running", "waiting") for each in session.subagents()):
            await session.wait_idle()
            break
    await passing(1_000)
    await session.wait_idle()


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS)
def test_whatever_the_tree_and_the_caps_everything_ends_once(first: int) -> None:
    children = 0
    for seed in range(first, first + CHUNK):
        nest = Nest(seed)
        try:
            while nest.life < 3 and nest.run(mortal=True):
                pass
            assert not nest.run(mortal=False)
            nest.check_disk()
        except BaseException as error:
            error.add_note(f"seed {seed}, life {nest.life}")
            raise
        children += nest.children
    assert children > CHUNK
