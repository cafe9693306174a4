"""What a budget costs: a turn with hard budgets, or with a guard, against the same turn without, in one run.

A turn here is one call of the model. Sessions that differ in nothing else answer one after the other, and the middle of
the differences counts: what the machine does meanwhile hits all of them alike. In memory the time of the processor is
taken, on disk that of the clock, because a commit is waited for.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Any, Final

from bench.agents import WARM_UP, Plain
from bench.durable import scratch
from bench.measures import Measure
from bench.workloads import Numbers, Ratio, Workload, case
from laneway import (
    Answer,
    AsyncAgent,
    AsyncSession,
    Budget,
    BudgetScope,
    BudgetWindow,
    MemorySessionStore,
    ModelRequest,
    SqliteSessionStore,
    Usage,
)
from laneway.dialogue import Chunk, TextChunk

__all__ = ("BUDGET_WORKLOADS", "MEASURES")

CONVERSATION: Final = 50
SHARE: Final = 0.12
"""The aim is 0.1 ms. This is that of the 0.83 ms that this turn takes where one with a queue takes 0.61 (`turn`), as on
the machine of docs/numbers.md; both grow on a slower one."""
GUARD_SHARE: Final = 0.16  # each of its methods has a task of its own: one that hangs must hold nobody
PLENTY: Final = 10**12
BUDGETS: Final = (
    Budget(name="talk", scope=BudgetScope.SESSION, tokens=PLENTY),
    Budget(name="person", scope=BudgetScope.PRINCIPAL, window=BudgetWindow.DAY, tokens=PLENTY),
    Budget(name="house", scope=BudgetScope.TENANT, window=BudgetWindow.MONTH, tokens=PLENTY),
)
PER_RUN: Final = Budget(name="runaway", scope=BudgetScope.RUN, tokens=PLENTY)


class Counting(Plain):
    """A model that answers at once and says what it has used, as those of providers do."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer."""
        yield TextChunk("hi")
        yield Answer(text="hi", usage=Usage(input_tokens=900, output_tokens=100))


class Guard:
    """A guard that allows everything, as coroutines."""

    async def check_before_llm(self, session_id: str, estimated_tokens: int) -> dict[str, str]:
        """Yes."""
        return {"decision": "allow"}

    async def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
        """Heard."""


class PlainGuard:
    """The same as plain functions: they are called on a thread."""

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> dict[str, str]:
        """Yes."""
        return {"decision": "allow"}

    def record_after_llm(self, session_id: str, usage: dict[str, Any]) -> None:
        """Heard."""


async def budget_checks(turns: int) -> Numbers:
    """So many turns of each kind, in memory: what budgets and guards add to a call of the model."""
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "budgets": {"budgets": BUDGETS},
        "per_run": {"budgets": (*BUDGETS, PER_RUN)},
        "guard": {"budget_guard": Guard()},
        "plain_guard": {"budget_guard": PlainGuard()},
    }
    stored = {name: {**each, "session_store": MemorySessionStore()} for name, each in kinds.items()}
    return await _compared(turns, stored, time.process_time)  # of all threads


async def budget_checks_on_disk(turns: int) -> Numbers:
    """The same with SQLite: most calls wait for no commit of their budgets, the first of a run does."""
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "budgets": {"budgets": BUDGETS},
        "per_run": {"budgets": (*BUDGETS, PER_RUN)},
    }
    with scratch() as folder:
        stores = {name: SqliteSessionStore(folder / f"{name}.db") for name in kinds}
        stored = {name: {**each, "session_store": stores[name]} for name, each in kinds.items()}
        return await _compared(turns, stored, time.perf_counter)


async def _compared(turns: int, kinds: dict[str, dict[str, Any]], clock: Callable[[], float]) -> Numbers:
    took: dict[str, list[float]] = {name: [] for name in kinds}
    async with AsyncExitStack() as stack:
        agents = {
            name: await stack.enter_async_context(
                AsyncAgent(model=Counting(), builtin_tools=False, principal="ada", **options)
            )
            for name, options in kinds.items()
        }
        for start in range(0, WARM_UP + turns, CONVERSATION):
            sessions = {name: agent.session(".") for name, agent in agents.items()}
            for number in range(start, min(start + CONVERSATION, WARM_UP + turns)):
                order = list(sessions) if number % 2 == 0 else list(reversed(sessions))
                for name in order:
                    spent = await _turn(sessions[name], clock)
                    if number >= WARM_UP:
                        took[name].append(spent)
            for session in sessions.values():
                await session.close()
    plain = took["plain"]
    added = {f"{name}_added_ms": _added(each, plain) for name, each in took.items() if name != "plain"}
    return {"plain_ms": median(plain) * 1e3, **added}


async def _turn(session: AsyncSession, clock: Callable[[], float]) -> float:
    began = clock()
    await session.send("hello")
    return clock() - began


def _added(took: Sequence[float], plain: Sequence[float]) -> float:
    return max(0.0, median(one - other for one, other in zip(took, plain, strict=True))) * 1e3


MEASURES: Final[dict[str, Measure]] = {
    "budget_checks": budget_checks,
    "budget_checks_on_disk": budget_checks_on_disk,
}
BUDGET_WORKLOADS: Final = (
    Workload(
        name="budgets",
        title="What budgets and a guard add to a call of the model",
        cases=(
            case("in memory", "budget_checks", 1_000, 40),
            case("on disk", "budget_checks_on_disk", 300, 20),
        ),
        ratios=(
            Ratio(
                name="budgets, of a turn",
                says="reserving and settling at three scopes (session, principal by day, tenant by month)",
                over="in memory.budgets_added_ms",
                under="in memory.plain_ms",
                gate="<=",
                limit=SHARE,
            ),
            Ratio(
                name="guard, of a turn",
                says="a guard whose methods are coroutines: asked before, told after",
                over="in memory.guard_added_ms",
                under="in memory.plain_ms",
                gate="<=",
                limit=GUARD_SHARE,
            ),
            Ratio(
                name="budgets",
                says="the same three in milliseconds of this machine",
                over="in memory.budgets_added_ms",
                unit=" ms",
            ),
            Ratio(name="guard", says="the same guard", over="in memory.guard_added_ms", unit=" ms"),
            Ratio(
                name="guard, plain functions",
                says="one with functions, each called on a thread",
                over="in memory.plain_guard_added_ms",
                unit=" ms",
            ),
            Ratio(
                name="a budget of each run",
                says="one more budget, that begins and ends with every run",
                over="in memory.per_run_added_ms",
                unit=" ms",
            ),
            Ratio(name="budgets on disk", says="the three with SQLite", over="on disk.budgets_added_ms", unit=" ms"),
            Ratio(
                name="a budget of each run, on disk",
                says="its first call waits for a commit",
                over="on disk.per_run_added_ms",
                unit=" ms",
            ),
        ),
        rounds=3,
    ),
)
