"""Random walks through sessions of agents: messages in every mode, cancels, pauses, a bad store, restarts.

Whatever happens, a provider would take every request, a write runs at most once, every message and every stream has
one end, and whoever got an answer was heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from laneway.agent.session import AsyncSession
from laneway.dialogue import ModelRequest, Results
from laneway.errors import ClosedError, LanewayError, ModelLimitedError, StoreUnavailableError
from laneway.kernel.rounds import Round
from laneway.mail import Mode, Outcome
from laneway.models import ScriptedModel, call, cut, fail, say
from laneway.models.scripted import Piece
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.agent_stage import Bench, Watch, check_conversation, opened, post, prompts

CHUNK = 5
SEEDS = range(0, 30, CHUNK)
MODES = [mode.value for mode in Mode]
TOOLS = ("look", "look", "check", "act", "put", "nail", "unknown")
WRITES = ("act", "nail")
PATIENCE_S = 10_000


class MoodyBench(Bench):
    """Tools that take a while, or fail."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    async def _run(self, key: str) -> str:
        self.began.append(key)
        mood = self.rng.random()
        if mood < 0.1:
            raise ValueError(f"{key} broke")
        if mood < 0.6:
            await asyncio.sleep(self.rng.random() * 0.02)
        return f"result of {key}"


class Walk:
    """One walk: some lives of one session, one after another, on one disk."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = MoodyBench(self.rng)
        self.disk = MemoryDisk()
        self.queue = self.rng.random() < 0.5
        self.calls = 0
        self.writes: set[str] = set()
        self.sent: dict[str, str] = {}  # the text of each message that was taken
        self.heard: list[str] = []
        self.tasks: list[asyncio.Task[object]] = []
        self.streams: list[Watch] = []
        self.ends = 0
        self.problems: list[AssertionError] = []

    # ---- the model ----

    async def answer(self, request: ModelRequest) -> Sequence[Piece]:
        """Say something, ask for something, or fail."""
        try:
            check_conversation(request)
        except AssertionError as error:  # raised here it would be a fault of the model, and be tried again
            self.problems.append(error)
        if request.purpose != "answer":
            return [say("what was said so far")]
        self.heard += prompts(request)
        await asyncio.sleep(self.rng.random() * 0.01 if self.rng.random() < 0.7 else 0)
        mood = self.rng.random()
        if mood < 0.05:
            return [cut("half an")]
        if mood < 0.08:
            return [fail(ValueError("the model broke"))]
        if mood < 0.12:
            wait_ms = self.rng.randint(1, 50)
            return [fail(ModelLimitedError("slow down", model="scripted", retry_after_ms=wait_ms))]
        if mood < 0.5:
            return [say("an answer")] if self.rng.random() < 0.9 else []
        pieces: list[Piece] = [say("let me see")] if self.rng.random() < 0.5 else []
        return pieces + [self._call() for _ in range(self.rng.choice((1, 1, 2, 3, 5)))]

    def _call(self) -> Piece:
        self.calls += 1
        name, key = self.rng.choice(TOOLS), f"k{self.calls}"
        if name in WRITES:
            self.writes.add(key)
        made = call(name, key=key)
        return made.with_id(key) if self.rng.random() < 0.8 else made

    # ---- the world ----

    async def go(self, lives: int = 2) -> None:
        """Live, and be checked."""
        for life in range(lives):
            await self.live(life, is_last=life == lives - 1)
            if self.problems:
                raise self.problems[0]
        twice = [key for key, times in Counter(self.bench.began).items() if times > 1 and key in self.writes]
        assert twice == [], "a write ran twice"

    async def live(self, life: int, *, is_last: bool) -> None:
        """One life of the session."""
        store = FaultyStore(MemoryStore(self.disk), self.rng)
        store.slow, store.delay_ms = self.rng.choice(((0.0, 0), (0.6, 30)))
        window = self.rng.choice((None, 300))
        model = ScriptedModel([self.answer] * 5_000, context_tokens=window, summaries=[self.answer] * 1_000)
        rounds = self.rng.choice((3, 50))
        async with opened(
            model, self.bench, queue=self.queue, session_store=store, session_id="s", max_tool_rounds=rounds
        ) as session:
            watch = Watch(session.subscribe())
            await session.ready()
            for step in range(self.rng.randint(5, 25)):
                self._do_something(session, store, f"{life}.{step};")
                await asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.01, 0.03)))
            session.resume()
            leaves = not is_last and self.rng.random() < 0.4
            if not leaves:
                store.heal()
                await self._settle(session)
        await self._join()
        await watch.task
        self._check_events(watch, whole=not leaves)

    def _do_something(self, session: AsyncSession, store: FaultyStore, text: str) -> None:
        dice, mode = self.rng.random(), self.rng.choice(MODES)
        loop = asyncio.get_running_loop()
        if dice < 0.6:
            thread = self.rng.choice(("A", "A", "A", "B"))
            self.tasks.append(loop.create_task(self._post(session, f"message {text}", mode, thread)))
        elif dice < 0.7:
            self.tasks.append(loop.create_task(session.cancel()))
        elif dice < 0.75:
            session.pause()
        elif dice < 0.85:
            session.resume()
        elif dice < 0.9:
            store.fail_next(self.rng.choice(("before", "after")))
        else:
            self.streams.append(Watch(session.stream(f"stream {text}", mode=mode)))

    async def _post(self, session: AsyncSession, text: str, mode: str, thread: str) -> None:
        with contextlib.suppress(StoreUnavailableError, ClosedError):
            receipt = await post(session, text, mode, thread=thread)
            self.sent[receipt.message_id] = text

    async def _settle(self, session: AsyncSession) -> None:
        """Let everything end, and look at every end."""
        await self._join()
        await asyncio.wait_for(session.wait_idle(), PATIENCE_S)
        for message_id, text in self.sent.items():
            final = await asyncio.wait_for(session.host.inbox.wait(message_id), PATIENCE_S)
            assert final.disposition.is_final
            if final.outcome is Outcome.SUCCEEDED:
                assert any(text in heard for heard in self.heard), f"{text} was answered and never heard"

    async def _join(self) -> None:
        ends = await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), PATIENCE_S)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, LanewayError):
                raise end
        self.tasks.clear()
        for stream in self.streams:
            (problem,) = await asyncio.wait_for(asyncio.gather(stream.task, return_exceptions=True), PATIENCE_S)
            if problem is not None:
                assert isinstance(problem, LanewayError), problem
                continue
            assert len(stream.of("end", "error")) == 1, stream.types
            assert stream.types[-1] in ("end", "error"), stream.types
        self.streams.clear()

    def _check_events(self, watch: Watch, *, whole: bool) -> None:
        ended = [event.run_id for event in watch.of("end", "error")]
        assert len(set(ended)) == len(ended), "a run has two ends"
        began = {event.run_id for event in watch.of("start")}
        assert not whole or began <= set(ended), f"a run has no end: {began - set(ended)}"
        self.ends += len(ended)
        turn: dict[str, int] = {}
        calls: Counter[tuple[str, int, str]] = Counter()
        for event in watch.events:
            if event.event_type == "turn_start":
                turn[event.run_id] = event.turn
            elif event.event_type == "tool_end":
                calls[event.run_id, turn.get(event.run_id, 0), event.tool_id] += 1
        assert [one for one, times in calls.items() if times > 1] == [], "a call has two ends"


def walk(seed: int) -> Walk:
    """Take a walk."""
    made: list[Walk] = []

    async def main() -> None:
        made.append(Walk(seed))
        await made[0].go()

    run_sim(main(), seed=seed)
    return made[0]


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS)
def test_a_session_keeps_every_law(first: int) -> None:
    walks = [walk(seed) for seed in range(first, first + CHUNK)]
    assert sum(each.ends for each in walks) > CHUNK
    assert sum(len(each.bench.began) for each in walks) > CHUNK


@pytest.mark.slow
def test_a_walk_notices_results_that_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Round.utterances
    monkeypatch.setattr(Round, "utterances", lambda one: [said for said in told(one) if not isinstance(said, Results)])
    with pytest.raises(AssertionError, match="calls k"):
        walk(0)


@pytest.mark.slow
def test_a_walk_notices_a_stream_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncSession, "settled", lambda session, final: None)
    with pytest.raises(TimeoutError):
        walk(0)
