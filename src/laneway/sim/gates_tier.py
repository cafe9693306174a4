"""Tier `gates`: sessions with hooks, approvals and sub-agents, whose lanes are run by workers.

It is the tier `agent` with more people in it: workers that die, are late, lie and answer twice; approvers that answer
for other arguments; hooks that raise, hang and babble. The laws beyond those of agents: nothing starts, here or at a
worker, that a gate has not let through with exactly these arguments; a task has at most one live lease and one accepted
outcome; a `write` is begun at most once, whoever begins it; the lane of sub-agents is never fuller than it may be; and
whatever the nesting, everything ends.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from laneway.agent import AsyncSession
from laneway.dialogue import ToolCall
from laneway.errors import ConflictError, LanewayError, LeaseLostError, UnavailableError
from laneway.external import ExternalTaskResult, Lease
from laneway.options import SessionQueueConfig
from laneway.policies import Hook
from laneway.records import Effect
from laneway.rows import StateKey
from laneway.runtime.task_desk import TaskDesk
from laneway.sim.agent_tier import STEPS_MAX, AgentRun
from laneway.sim.gates_world import GatesWorld, draw_gates_world
from laneway.sim.loop import SimLoop
from laneway.sim.mail_store import DiskFailedError
from laneway.sim.playing import play_to_end
from laneway.sim.trace import Outcome, Trace

__all__ = ("GatesRun", "run_gates_seed")

# The simulator is no user: it looks into the engine to compare.
# ruff: noqa: SLF001

TRIES = 50


def run_gates_seed(seed: int, *, trace: Trace | None = None) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    loop = SimLoop(seed=seed, max_steps=STEPS_MAX)
    run = GatesRun(draw_gates_world(seed), trace, loop)
    return play_to_end(run, loop, trace, seed=seed, tier="gates")


class GatesRun(AgentRun):
    """One world with gates and workers."""

    def __init__(self, world: GatesWorld, trace: Trace, loop: SimLoop) -> None:
        super().__init__(world.agents, trace, loop)
        self.gates = world
        self._at_work_before = 0  # sub-agents that were at work when their lane was given its width
        self.begun: Counter[str] = Counter()  # starts that were confirmed to a worker, by the key of the call
        self.holders: dict[str, tuple[str, float]] = {}  # by task: the lease under which it was begun, and until when
        self._reads: set[str] = set()  # tasks in `holders` that only read: their leases end when a session is opened
        self.accepted_of: dict[str, str] = {}  # by task: the token whose result counted
        self.passed: dict[tuple[str, str], list[str]] = {}  # by run and call: what the hooks have said, the newest last
        self._people: list[asyncio.Task[None]] = []

    # ---- the session ----

    @property
    def starts(self) -> int:
        """How much was begun."""
        return sum(self.started.values()) + sum(self.begun.values())

    def _agent_options(self, life: Any) -> dict[str, Any]:
        options = {**super()._agent_options(life), "permission_policy": self.gates.permissions}
        if self.gates.confirmations is not None:
            options["confirmation_policy"] = self.gates.confirmations
        if self.gates.has_hooks:
            options["hooks"] = [Hook("gate", "pre_tool_use", {}, {"timeout_ms": 50}, self._hook)]
        if self.gates.subagents:
            options |= {"subagents": True, "max_subagent_depth": self.gates.depth_max}
        return options

    def _session_options(self, number: int) -> dict[str, Any]:
        queue = self.world.queue_config(number) or SessionQueueConfig()
        queue.lane_handlers = dict(self.gates.handlers[number])
        return {"queue_config": queue}

    def draw_call(self, number: int) -> ToolCall:
        """A call that a model asks for; sometimes that of a sub-agent."""
        rng = self.dice.rng
        if self.gates.subagents and not self.dice.honest and rng.random() < 0.25:  # else it would never end
            name = self.dice.one(("task", "task", "parallel_task", "spawn"))
            if name == "parallel_task":
                arguments: dict[str, Any] = {"tasks": [{"prompt": f"part {n}"} for n in range(rng.randint(1, 4))]}
            else:
                arguments = {"prompt": "a part"}
            return ToolCall(id=f"c{number}", name=name, arguments=json.dumps(arguments))
        return super().draw_call(number)

    # ---- gates ----

    async def _hook(self, event: Mapping[str, Any]) -> Any:
        payload = event["payload"]
        place = payload["run_id"], payload["tool_id"]
        self.passed.setdefault(place, []).append("blocked")  # whatever goes wrong from here on is a no
        dice, args = self.dice, dict(payload["args"])
        if dice.happens("hook_hangs"):
            await asyncio.sleep(10)
        await asyncio.sleep(dice.span(10))
        if dice.happens("hook_raises"):
            raise RuntimeError("simulated")
        for name, answer in (
            ("hook_blocks", {"action": "block", "reason": "simulated"}),
            ("hook_skips", {"action": "skip", "reason": "simulated"}),
            ("hook_babbles", dice.one(("perhaps", 7, {"action": "maybe"}, {"action": "continue", "args": 5}))),
            ("hook_retries", {"action": "retry", "delay_ms": 5}),
        ):
            if dice.happens(name):
                return answer
        if "what" in args and dice.happens("hook_changes"):
            args["what"] = int(args["what"]) + 100
            self.passed.setdefault(place, []).append(_text(args))
            return {"action": "continue", "args": args}
        self.passed.setdefault(place, []).append(_text(args))
        return None

    def check_gates(self, name: str, run_id: str, key: str, call_id: str) -> None:
        """A call starts here: with the arguments that its session has let through."""
        self._check_width()
        session = next((one for one in self._all_sessions() if one._run is not None and one._run.id == run_id), None)
        if session is None or session._run is None:
            return  # of a run that is over: another law
        live = session._run.calls._live.get(call_id)
        if live is not None and live.asked.key == key:
            self._check_passed(name, run_id, key, call_id, live.arguments)
            return
        for call in session.background_calls._live.values():  # a later round may have a call with the same id
            if call.asked is not None and call.asked.key == key:
                self._check_passed(name, run_id, key, call_id, call.asked.arguments)

    def _check_passed(self, name: str, run_id: str, key: str, call_id: str, arguments: Mapping[str, Any]) -> None:
        permissions, lane = self.gates.permissions, "query" if name == "look" else "execute"
        if name in permissions.deny:
            self._break(f"{name} ({call_id} of {run_id}) starts, and is denied")
        if self.gates.has_hooks and run_id:
            said = self.passed.get((run_id, call_id), ["never asked"])
            if "background_after_ms" not in self.world.options:
                said = said[-1:]  # else one of an earlier round, with the same id, may still go on
            if _text(arguments) not in said:
                self._break(f"{name} ({call_id} of {run_id}) starts with {arguments}, and the hook said {said}")
        policy = self.gates.confirmations
        if name not in permissions.ask or not run_id:
            return
        if policy is None:
            self._break(f"{name} ({call_id} of {run_id}) starts, and nobody could be asked")
        elif lane not in policy.yolo_lanes and not self._is_approved(key, arguments):
            self._break(f"{name} ({call_id} of {run_id}) starts with {arguments}, and nobody has approved that")

    def _is_approved(self, key: str, arguments: Mapping[str, Any]) -> bool:
        policy = self.gates.confirmations
        assert policy is not None
        fine = {"approved", "expired"} if policy.timeout_action == "auto_approve" else {"approved"}
        for row in self._disk.states.values():
            if row.kind == "approval" and row.state in fine:
                body = json.loads(row.body)
                if body.get("key") == key and body["arguments"] == dict(arguments):
                    return True
        return False

    def _session_of(self, life: Any, session_id: str) -> AsyncSession | None:
        return next((one for one in self._all_sessions() if one.session_id == session_id), None)

    def _all_sessions(self) -> list[AsyncSession]:
        found: list[AsyncSession] = []
        todo = list(self._life.sessions.values())
        while todo:
            session = todo.pop()
            found.append(session)
            todo += session.delegates.sessions()  # also those that are being closed
        return found

    # ---- workers ----

    def _desk(self) -> TaskDesk | None:
        for session in self._life.sessions.values():
            if self._is_up.is_set() and hasattr(session, "host") and session.host.is_open:
                return session.host.desk
        return None

    async def _live(self) -> None:
        self._people = [
            self._loop.create_task(self._worker(number), name=f"sim worker-{number}")
            for number in range(self.gates.workers)
        ]
        self._people.append(self._loop.create_task(self._approver(), name="sim approver"))
        await super()._live()

    async def _end(self) -> None:
        for task in self._people:
            task.cancel()
        await asyncio.gather(*self._people, return_exceptions=True)
        await super()._end()

    async def _worker(self, number: int) -> None:
        name = f"w{number}"
        while True:
            try:
                desk = self._desk()
                leases = await desk.claim(name, wait_ms=200) if desk is not None else []
                if not leases:
                    await asyncio.sleep(0.05)
                for lease in leases:
                    await self._serve(name, lease)
            except (LanewayError, DiskFailedError):
                await asyncio.sleep(0.05)

    async def _serve(self, name: str, lease: Lease) -> None:
        dice, task = self.dice, lease.task
        self.say("claim", name, f"{task['task_id']} {task['attempt']}")
        if dice.happens("worker_dies_leased"):
            return
        if dice.happens("worker_releases"):
            await self._say(lambda desk: desk.release(task["task_id"], lease.token))
            return
        if dice.happens("worker_lies"):
            await self._lie(lease)
        if not await self._say(lambda desk: desk.start(task["task_id"], lease.token)):
            return
        self._check_begin(name, lease)
        if dice.happens("worker_dies_started"):
            return
        late = dice.happens("worker_late")
        await asyncio.sleep(self.gates.lease_ms / 1000 * 3 if late else dice.span(self.gates.lease_ms // 2))
        result = ExternalTaskResult(success=not dice.happens("worker_refuses"), result={"output": f"by {name}"})
        for _ in range(1 + dice.happens("worker_twice")):
            if await self._say(lambda desk: desk.complete(task["task_id"], lease.token, result)):
                self._check_end(name, lease)
        self.holders.pop(task["task_id"], None)

    async def _say(self, what: Any) -> bool:
        """Say something to whatever process there is, as often as it takes; False if it is refused."""
        for _ in range(TRIES):
            desk = self._desk()
            if desk is None:
                await asyncio.sleep(0.05)
                continue
            try:
                answer = await what(desk)
            except (UnavailableError, DiskFailedError):
                await asyncio.sleep(0.05)
            except LanewayError:
                return False
            else:
                return answer is not False
        return False

    async def _lie(self, lease: Lease) -> None:
        """A worker that talks about a task that is not its own."""
        desk = self._desk()
        if desk is None:
            return
        try:
            counted = await desk.complete(lease.task["task_id"], "somebody-else", ExternalTaskResult(result="lie"))
        except (LeaseLostError, UnavailableError, DiskFailedError):
            return
        self._break(f"a result for {lease.task['task_id']} without its lease was answered {counted}")

    def _check_begin(self, name: str, lease: Lease) -> None:
        task = lease.task
        key, task_id, effect = task["idempotency_key"], task["task_id"], lease.effect
        self.say("begin", name, f"{task_id} {task['command_type']} {task['attempt']}")
        self.begun[key] += effect is not Effect.READ
        if effect is Effect.WRITE and self.begun[key] + self.started[key] > 1:
            self._break(f"{task['command_type']} of {task['run_id']} is begun a second time, by {name}")
        holder = self.holders.get(task_id)
        if holder is not None and holder[0] != lease.token and holder[1] > self._loop.time():
            self._break(f"{name} begins {task_id}, and the lease of another one still holds")
        if effect is Effect.READ:
            self._reads.add(task_id)
        self.holders[task_id] = lease.token, self._loop.time() + lease.lease_ms / 1000 - 0.001
        if task["run_id"]:
            row = self._disk.states.get(StateKey("task", task_id))
            call_id = json.loads(row.body).get("call_id", "") if row is not None else ""
            self._check_passed(task["command_type"], task["run_id"], key, call_id, task["payload"])
            if effect is not Effect.READ and key not in self._intents():
                self._break(f"{task['command_type']} of {task['run_id']} is begun, and its intent is not on disk")

    def _check_end(self, name: str, lease: Lease) -> None:
        task_id = lease.task["task_id"]
        self.say("complete", name, task_id)
        before = self.accepted_of.setdefault(task_id, lease.token)
        if before != lease.token:
            self._break(f"two outcomes of {task_id} were accepted")

    # ---- approvers ----

    async def _approver(self) -> None:
        while True:
            await asyncio.sleep(self.dice.span(200))
            if self._is_up.is_set():
                for session in list(self._life.sessions.values()):
                    await self._answer(session)

    async def _answer(self, session: AsyncSession) -> None:
        dice = self.dice
        try:
            for asked in await session.pending_confirmations():
                if dice.happens("approver_ignores"):
                    continue
                if dice.happens("approver_confuses"):
                    await self._confuse(session, asked)
                await session.confirm_tool_use(asked["approval_id"], not dice.happens("approver_denies"))
        except (LanewayError, DiskFailedError):
            return

    async def _confuse(self, session: AsyncSession, asked: Mapping[str, Any]) -> None:
        try:
            counted = await session.confirm_tool_use(asked["approval_id"], approved=True, args={"what": -1})
        except ConflictError:
            return
        if counted:
            self._break(f"{asked['approval_id']} was approved for arguments that it is not about")

    # ---- lanes ----

    def _acts(self) -> tuple[str, ...]:
        return (*super()._acts(), "switch") if "switch" in self.world.chances else super()._acts()

    async def _do(self, act: str, session: AsyncSession) -> None:
        if act == "switch":
            mode = self.dice.one(("internal", "external", "hybrid"))
            lane = self.dice.one(("query", "execute"))
            await session.set_lane_handler(lane, mode, 2_000, lease_ms=self.gates.lease_ms)
            self.changed.add(session.session_id)
            return
        await super()._do(act, session)

    async def _help(self) -> None:
        for session in list(self._life.sessions.values()):
            await self._answer(session)

    def _note_left(self) -> None:
        """Calls that only read are offered anew when their session is opened: leases of them end."""
        for task_id in self._reads:
            self.holders.pop(task_id, None)
        self._reads.clear()

    async def _open_session(self, number: int, name: str) -> None:
        self._note_left()
        await super()._open_session(number, name)
        lanes = self._life.sessions[name].host.lanes
        before = lanes.stats().lanes.get("subagent")
        self._at_work_before = 0 if before is None else before.running
        lanes.resize("subagent", self.gates.width)

    def _check_width(self) -> None:
        lanes = next(iter(self._life.sessions.values())).host.lanes.stats().lanes
        found = lanes.get("subagent")
        if found is None:
            return
        # Those that an earlier life has left go on when the lane becomes narrower.
        self._at_work_before = min(self._at_work_before, found.running)
        if found.running > max(found.max_concurrent, 1, self._at_work_before):
            self._break(f"{found.running} sub-agents are at work, and {found.max_concurrent} may be")


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), sort_keys=True)
