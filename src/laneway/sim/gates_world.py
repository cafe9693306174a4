"""What a seed adds to the world of agents for the tier `gates`: handlers, workers, approvers, hooks, nesting."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from laneway.options import LaneHandlerConfig
from laneway.policies import ConfirmationPolicy, PermissionPolicy
from laneway.sim.agent_world import AgentWorld, draw_agent_world

__all__ = ("GatesWorld", "draw_gates_world")

CHANCES: dict[str, float] = {
    # workers
    "worker_dies_leased": 0.2,
    "worker_dies_started": 0.2,
    "worker_late": 0.2,
    "worker_twice": 0.3,
    "worker_refuses": 0.2,
    "worker_releases": 0.1,
    "worker_lies": 0.2,  # completes with a token that is not its own, or before it starts
    # approvers
    "approver_denies": 0.3,
    "approver_ignores": 0.5,
    "approver_confuses": 0.3,  # answers for other arguments, or twice
    # hooks
    "hook_blocks": 0.2,
    "hook_skips": 0.1,
    "hook_raises": 0.1,
    "hook_hangs": 0.1,
    "hook_babbles": 0.1,
    "hook_changes": 0.3,
    "hook_retries": 0.1,
    # who runs a lane
    "switch": 0.5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatesWorld:
    """What a seed has decided beyond the world of its agents."""

    agents: AgentWorld
    handlers: tuple[dict[str, LaneHandlerConfig], ...]  # of each session
    permissions: PermissionPolicy
    confirmations: ConfirmationPolicy | None
    has_hooks: bool
    workers: int
    lease_ms: int
    subagents: bool
    depth_max: int
    width: int  # of the lane of sub-agents

    def describe(self) -> str:
        """The world in one line."""
        asks = ",".join(self.permissions.ask) or "nothing"
        return (
            f"{self.agents.describe()}; {self.workers} workers; asks about {asks}; hooks {self.has_hooks}; "
            f"sub-agents {self.subagents} to {self.depth_max}, {self.width} wide"
        )


def draw_gates_world(seed: int) -> GatesWorld:
    """The world of a seed."""
    rng = random.Random(f"gates world {seed}")
    agents = draw_agent_world(seed, actions=8)
    chances = dict(agents.chances)
    chances |= {name: rng.random() * most for name, most in CHANCES.items() if rng.random() < 0.4}
    lease_ms = rng.choice((100, 1_000))
    queues = tuple(queue or {"execute_max_concurrency": 2} for queue in agents.queues)
    asks = tuple(rule for rule in ("pay", "sync", "pair", "must", "look") if rng.random() < 0.4)
    return GatesWorld(
        agents=replace(agents, chances=chances, queues=queues),
        handlers=tuple(_draw_handlers(rng, lease_ms) for _ in agents.sessions),
        permissions=PermissionPolicy(allow=("*",), ask=asks, deny=rng.choice(((), ("must",)))),
        confirmations=_draw_confirmations(rng) if rng.random() < 0.8 else None,
        has_hooks=rng.random() < 0.6,
        workers=rng.randint(1, 3),
        lease_ms=lease_ms,
        subagents=rng.random() < 0.5,
        depth_max=rng.choice((1, 2, 3)),
        width=rng.choice((1, 2, 8)),
    )


def _draw_handlers(rng: random.Random, lease_ms: int) -> dict[str, LaneHandlerConfig]:
    return {
        lane: LaneHandlerConfig(
            rng.choice(("internal", "external", "external", "hybrid")),
            rng.choice((500, 5_000)),
            ordered=rng.random() < 0.5,
            lease_ms=lease_ms,
            fallback=rng.random() < 0.2,
        )
        for lane in ("query", "execute")
        if rng.random() < 0.8
    }


def _draw_confirmations(rng: random.Random) -> ConfirmationPolicy:
    more: dict[str, Any] = {}
    if rng.random() < 0.3:
        more = {"escalate_after_ms": 50, "escalate_to": ("boss",)}
    return ConfirmationPolicy(
        default_timeout_ms=rng.choice((200, 3_000)),
        timeout_action=rng.choice(("reject", "reject", "auto_approve")),
        yolo_lanes=rng.choice(((), (), ("query",))),
        **more,
    )
