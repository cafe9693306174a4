"""The world of one seed for agents: sessions, what their models ask for, what their tools do, and the perils."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from laneway.mail import Mode
from laneway.options import RetryPolicyConfig, SessionQueueConfig

__all__ = ("AgentWorld", "draw_agent_world")

CHANCES: dict[str, float] = {
    # the store
    "fail_before": 0.08,
    "fail_after": 0.08,
    "fail_one": 0.1,
    "slow": 0.5,
    # the process
    "crash": 0.8,
    "restart": 0.5,
    "close": 0.3,
    # the model
    "model_fails": 0.1,
    "model_limited": 0.1,
    "model_cut": 0.1,
    "model_refuses": 0.03,
    "model_babbles": 0.1,  # unknown tools, arguments that are no JSON, the same id twice
    # the tools
    "tool_raises": 0.15,
    "tool_hangs": 0.05,
    "tool_refuses": 0.1,
}

ACTIONS = ("send", "stream", "steer", "interrupt", "followup", "cancel", "pause", "leave")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWorld:
    """What a seed has decided before the run."""

    seed: int
    sessions: tuple[str, ...]
    queues: tuple[dict[str, Any] | None, ...]  # of each session; None: tools run in place
    modes: tuple[Mode, ...]
    options: dict[str, Any]  # of each session
    chances: dict[str, float]
    acts: tuple[str, ...]
    clients: int
    actions: int
    gap_ms: int
    work_ms: int
    slow_ms: int
    calls_max: int
    rounds_max: int

    def describe(self) -> str:
        """The world in one line."""
        queued = sum(queue is not None for queue in self.queues)
        return f"{len(self.sessions)} sessions, {queued} with a queue; {self.options}; {len(self.chances)} perils"

    def queue_config(self, number: int) -> SessionQueueConfig | None:
        """The lanes of a session, made anew for each life."""
        given = self.queues[number]
        return None if given is None else SessionQueueConfig(**given)


def draw_agent_world(seed: int, *, actions: int = 12) -> AgentWorld:
    """The world of a seed."""
    rng = random.Random(f"agent world {seed}")
    chances = {name: rng.random() * most for name, most in CHANCES.items() if rng.random() < 0.5}
    if rng.random() < 0.15:
        chances = {}  # a world without faults: what breaks here is plain
    count = rng.choice((1, 1, 2, 3))
    return AgentWorld(
        seed=seed,
        sessions=tuple(f"s{number}" for number in range(count)),
        queues=tuple(_draw_queue(rng) for _ in range(count)),
        modes=tuple(rng.sample(list(Mode), rng.randint(1, len(Mode)))),
        options={
            "max_tool_rounds": rng.choice((2, 5, 50)),
            "max_calls_per_answer": rng.choice((2, 64)),
            "max_execution_time_ms": rng.choice((None, None, 5_000)),
            "tool_timeout_ms": rng.choice((None, 300, 3_000)),
            "on_crash": rng.choice(("resume", "resume", "report")),
            "auto_compact": rng.random() < 0.5,
            **_draw_background(seed),
            "record": random.Random(f"agent record {seed}").random() < 0.8,
        },
        chances=chances,
        acts=tuple(each for each in ACTIONS if rng.random() < 0.7) or ("send",),
        clients=rng.randint(1, 3),
        actions=actions,
        gap_ms=rng.choice((20, 100, 400)),
        work_ms=rng.choice((5, 50, 300)),
        slow_ms=rng.choice((5, 50)),
        calls_max=rng.choice((1, 3, 6)),
        rounds_max=rng.choice((1, 2, 4)),
    )


def _draw_background(seed: int) -> dict[str, Any]:
    """Whether long calls go on in the background. With dice of its own: the rest of a world is as it was without."""
    rng = random.Random(f"agent background {seed}")
    if rng.random() < 0.5:
        return {}
    tools = [name for name in ("look", "pay", "sync", "pair", "must") if rng.random() < 0.8]
    return {"background_after_ms": rng.choice((0, 5, 30, 200)), "background_tools": tools}


def _draw_queue(rng: random.Random) -> dict[str, Any] | None:
    if rng.random() < 0.3:
        return None
    queue: dict[str, Any] = {
        "query_max_concurrency": rng.choice((1, 2, 4)),
        "execute_max_concurrency": rng.choice((1, 2)),
    }
    if rng.random() < 0.5:
        queue["retry_policy"] = RetryPolicyConfig("exponential", max_retries=2, initial_delay_ms=20)
    if rng.random() < 0.3:
        queue["default_timeout_ms"] = rng.choice((200, 2_000))
    return queue
