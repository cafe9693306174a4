"""Durable jobs against a naive model, through crashes, faults and restarts at random moments.

The model knows only the promises: what was acknowledged is done or a dead letter in the end; a `write` is never run
twice by itself, whatever happens; a `read` runs again only after a crash or a failure; what was refused never runs;
what was cancelled and told so does not run afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway import ClosedError, GiveUp, Job, Lanes, LanewayError, RetryLater, RetryPolicy
from laneway.errors import StoreUnavailableError
from laneway.sim.loop import run_sim
from laneway.stores import MemoryDisk
from laneway.testing.faults import FaultyStore
from tests.durable_stage import Mortal, durable_lanes, open_for_good, rows_of
from tests.stage import passing

pytestmark = pytest.mark.slow
LANES = {"one": 1, "two": 2, "late": 3}
RETRIES = 2
Behaviour = Literal["succeed", "fail", "give up", "later", "flaky"]


@dataclass
class Told:
    """What the test saw of one job."""

    effect: str
    behaviour: Behaviour
    retry: bool
    acknowledged: bool = False
    refused: bool = False
    runs: int = 0
    succeeded: int = 0
    value_told: bool = False
    cancel_asked: bool = False
    cancel_told: bool = False
    runs_when_cancelled: int = -1


@dataclass
class History:
    """Everything over all lives of the process."""

    jobs: dict[str, Told] = field(default_factory=dict)
    crashes: int = 0
    letters: Counter[str] = field(default_factory=Counter)


class Life:
    """One process: it does as the script says until it is killed or the script ends."""

    def __init__(self, history: History, disk: MemoryDisk) -> None:
        self.history = history
        self.disk = disk
        self.handles: dict[str, Job[Any]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def register(self, lanes: Lanes) -> None:
        lanes.handler("job", self.run)

    async def run(self, name: str) -> str:
        told = self.history.jobs[name]
        assert rows_of(self.disk).get(name) == "running", f"{name} runs, and its row says {rows_of(self.disk)}"
        told.runs += 1
        await passing(told.runs * 7 % 20)
        if told.behaviour == "fail" or (told.behaviour == "flaky" and told.runs == 1):
            raise ValueError(name)
        if told.behaviour == "give up":
            raise GiveUp("hopeless")
        if told.behaviour == "later" and told.runs == 1:
            raise RetryLater(30)
        told.succeeded += 1
        return name

    async def enqueue(self, lanes: Lanes, lane: str, name: str) -> None:
        told = self.history.jobs[name]
        options: dict[str, Any] = {
            "effect": told.effect,
            "retry": RetryPolicy.fixed(RETRIES, 20) if told.retry else None,
        }
        try:
            self.handles[name] = job = await lanes.enqueue(lane, "job", name, **options)
        except (StoreUnavailableError, ClosedError):
            told.refused = True
            return
        told.acknowledged = True
        with contextlib.suppress(LanewayError, ValueError):
            await job
            told.value_told = True

    def cancel(self, name: str) -> None:
        job = self.handles.get(name)
        if job is not None and not job.done() and job.cancel():
            self.history.jobs[name].cancel_asked = True

            async def hear() -> None:
                with contextlib.suppress(LanewayError, ValueError):
                    await job
                    return
                if job.state == "cancelled":
                    told = self.history.jobs[name]
                    told.cancel_told = True
                    told.runs_when_cancelled = told.runs

            self.spawn(hear())

    def spawn(self, coroutine: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))


effects = st.sampled_from(["read", "idempotent", "write"])
behaviours = st.sampled_from(["succeed", "succeed", "succeed", "fail", "give up", "later", "flaky"])
actions = st.one_of(
    st.tuples(st.just("enqueue"), st.sampled_from(list(LANES)), effects, behaviours, st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("pass"), st.integers(0, 40)),
    st.tuples(st.just("fault"), st.sampled_from(["before", "after"]), st.integers(1, 4)),
    st.tuples(st.just("pause"), st.sampled_from(list(LANES))),
    st.tuples(st.just("resume"), st.sampled_from(list(LANES))),
)
ends = st.one_of(
    st.tuples(st.just("crash"), st.just(0), st.just(True)),
    st.tuples(st.just("crash at"), st.integers(2, 12), st.booleans()),
    st.tuples(st.just("close"), st.just(0), st.just(True)),
    st.tuples(st.just("leave"), st.just(0), st.just(True)),
)
lives = st.tuples(st.lists(actions, max_size=12), ends, st.booleans())


async def live(history: History, disk: MemoryDisk, script: tuple[Any, ...], number: int) -> None:
    steps, (end, at, before), early = script
    store = Mortal(disk, lives=at, before=before)
    faulty = FaultyStore(store, Random(number))
    life = Life(history, disk)
    lanes = await open_for_good(faulty, lanes=LANES, wall_ms=1_700_000_000_000 + number * 60_000)
    if early:
        life.register(lanes)
    for index, step in enumerate(steps):
        if store.died.is_set():
            break
        if index == len(steps) // 2:
            life.register(lanes)
        await do(life, lanes, faulty, step, f"{number}.{index}")
    life.register(lanes)
    if end.startswith("crash"):
        history.crashes += 1
        if end == "crash at":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await store.died.wait()
        store.die()
        return
    faulty.heal()
    await (lanes.close() if end == "close" else lanes.__aexit__(None, None, None))


async def do(life: Life, lanes: Lanes, store: FaultyStore, step: tuple[Any, ...], name: str) -> None:
    match step:
        case ("enqueue", lane, effect, behaviour, retry):
            life.register(lanes)
            life.history.jobs[name] = Told(effect, behaviour, retry)
            life.spawn(life.enqueue(lanes, lane, name))
            await asyncio.sleep(0)
        case ("cancel", number):
            names = list(life.handles)
            if names:
                life.cancel(names[number % len(names)])
        case ("pass", ms):
            await passing(ms)
        case ("fault", when, times):
            store.fail_next(when, times=times)
        case ("pause", lane):
            lanes.pause(lane)
        case ("resume", lane):
            lanes.resume(lane)
        case _:
            raise AssertionError(step)


async def heal(history: History, disk: MemoryDisk) -> None:
    """The last life: nothing fails, and everything comes to an end."""
    life = Life(history, disk)
    lanes = durable_lanes(disk, LANES, wall_ms=1_800_000_000_000)
    life.register(lanes)
    async with lanes:
        await passing(5_000)
        assert lanes.jobs() == []
        for letter in lanes.dead_letters.list():
            history.letters[letter.args[0]] += 1
    assert rows_of(disk) == dict.fromkeys(history.letters, "dead")


def check_promises(history: History, closes: int) -> None:
    """Every promise, for every job."""
    for name, told in history.jobs.items():
        letters = history.letters[name]
        consented = 1 + (RETRIES if told.retry else 0) + (told.behaviour == "later")
        what = f"{name}: {told}, {letters} letters, {history.crashes} crashes"
        assert letters <= 1, what
        assert told.runs <= consented + (0 if told.effect == "write" else history.crashes + closes), what
        if told.effect == "write":
            assert told.succeeded <= 1, f"it had its effect twice: {what}"
        if told.refused:
            assert told.runs == 0, f"it was refused, and ran: {what}"
            assert not letters, f"it was refused, and is a letter: {what}"
        if told.value_told:
            assert told.succeeded, f"somebody got its value: {what}"
            assert not letters, f"it had ended well: {what}"
        if told.cancel_told:
            assert told.runs == told.runs_when_cancelled, f"it ran after it was cancelled: {what}"
            assert not letters, what
        if told.acknowledged and not told.cancel_asked:
            gives_up = told.behaviour in ("fail", "give up") or (told.behaviour == "flaky" and not told.retry)
            assert told.succeeded or letters or (gives_up and told.runs), f"it was lost: {what}"


@settings(max_examples=150)
@given(st.lists(lives, min_size=1, max_size=4), st.integers(0, 1_000))
def test_no_crash_and_no_fault_breaks_a_promise(script: list[tuple[Any, ...]], seed: int) -> None:
    history, disk = History(), MemoryDisk()
    for number, each in enumerate(script):
        run_sim(live(history, disk, each, number), seed=seed + number)
    run_sim(heal(history, disk), seed=seed)
    check_promises(history, sum(1 for _, (end, *_), _ in script if end == "close"))


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    log = logging.getLogger("laneway")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield
    log.setLevel(level)
