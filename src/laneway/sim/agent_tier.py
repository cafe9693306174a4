"""Tier `agent`: real sessions on a simulated loop, over a store that fails, with models and tools that misbehave.

Phase one, safety: people talk to sessions, models ask for calls, processes die and others go on. Phase two, liveness:
everything is healed, and every message has to end. The laws: what a model is sent is a conversation that a provider
would take; the intent of a call with side effects is on disk before it starts; a `write` runs at most once; a run that
was ended starts nothing; everything that was accepted ends, and so does every entry of the ledger.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from laneway.agent import AsyncAgent, AsyncSession
from laneway.agent_events import AgentEvent, EndEvent, ErrorEvent
from laneway.dialogue import Answer, Chunk, ModelRequest, Prompt, Results, TextChunk, ToolCall, ToolContext, ToolOutput
from laneway.errors import (
    ConfigError,
    LanewayError,
    ModelError,
    ModelLimitedError,
    ModelUnavailableError,
    StoreUnavailableError,
)
from laneway.options import PermissionPolicy
from laneway.records import Effect
from laneway.sim.agent_world import AgentWorld, draw_agent_world
from laneway.sim.loop import SimLoop
from laneway.sim.mail_store import DiskFailedError, SimStore
from laneway.sim.mail_world import MailDice, SimClock
from laneway.sim.playing import LivingRun, nothing, play_to_end
from laneway.sim.replays import check_replays
from laneway.sim.shadow import LawBrokenError
from laneway.sim.trace import Outcome, Trace
from laneway.stores.memory import MemoryDisk
from laneway.system import HostEnv, SequentialIdGenerator
from laneway.tools import FunctionTool

__all__ = ("AgentRun", "run_agent_seed", "speech_problem")

# The simulator is no user: it looks into the engine to compare, and pulls the plug.
# ruff: noqa: SLF001

STEPS_MAX = 400_000
HEALED_S = 900.0
CLOSE_MAX_S = 120.0
HANG_S = 400.0
LOOK_S = 1.0
WALL_MS = 1_700_000_000_000
OPENINGS = 200


def run_agent_seed(seed: int, *, trace: Trace | None = None) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    loop = SimLoop(seed=seed, max_steps=STEPS_MAX)
    run = AgentRun(draw_agent_world(seed), trace, loop)
    return play_to_end(run, loop, trace, seed=seed, tier="agent")


def speech_problem(request: ModelRequest) -> str:
    """What is wrong with what a model is sent; empty if a provider would take it."""
    said = request.conversation
    if not said or isinstance(said[-1], Answer):
        return "it does not end with something to answer"
    for before, each in zip((None, *said), said, strict=False):
        calls = before.calls if isinstance(before, Answer) else ()
        if calls and not isinstance(each, Results):
            return f"the calls {[call.id for call in calls]} are followed by {each}"
        if isinstance(each, Results) and [one.call_id for one in each.results] != [call.id for call in calls]:
            return f"the results {each} do not belong to the calls {calls}"
        if isinstance(each, Answer) and isinstance(before, Answer):
            return f"two answers in a row: {before} and {each}"
    return ""


@dataclass(slots=True)
class _Life:
    """One process."""

    number: int
    is_dead: bool = False
    sessions: dict[str, AsyncSession] = field(default_factory=dict)


class _Model:
    """Asks for what the dice say, and fails as they say."""

    name = "sim"

    def __init__(self, run: AgentRun, life: _Life) -> None:
        self._run = run
        self._life = life
        self.context_tokens = 200 if run.world.options["auto_compact"] else None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer."""
        run, dice = self._run, self._run.dice
        if not self._life.is_dead:
            run.hear(request)
        await asyncio.sleep(dice.span(run.world.work_ms))
        if dice.happens("model_fails"):
            raise ModelUnavailableError("simulated")
        if dice.happens("model_limited"):
            raise ModelLimitedError("simulated", retry_after_ms=dice.rng.randint(1, 2_000))
        if dice.happens("model_refuses"):
            raise ModelError("simulated")
        yield TextChunk("so ")
        if dice.happens("model_cut"):
            return
        if request.purpose == "summary":
            yield Answer(text="they talked")
            return
        rounds = 0
        for each in reversed(request.conversation):
            if isinstance(each, Prompt):
                break
            rounds += isinstance(each, Answer)
        if rounds >= run.world.rounds_max or dice.rng.random() < 0.3:
            yield Answer(text="so it is")
            return
        yield Answer(calls=tuple(run.draw_call(number) for number in range(dice.rng.randint(1, run.world.calls_max))))


class AgentRun(LivingRun):
    """One world, one disk, one process after the other."""

    def __init__(self, world: AgentWorld, trace: Trace, loop: SimLoop) -> None:
        super().__init__(trace, loop)
        self.world = world
        self.dice = MailDice(world)  # type: ignore[arg-type] # it asks for the seed and the chances
        self.wall = [WALL_MS]
        self.started: Counter[str] = Counter()  # calls, by their key
        self.working: set[str] = set()  # calls that are being made, by their key
        self.changed: set[str] = set()  # sessions whose lanes are not those that they began with
        self.accepted: dict[str, str] = {}  # messages, with their session
        self._disk = MemoryDisk()
        self._ids = SequentialIdGenerator()
        self._life = _Life(0)
        self._store: SimStore | None = None
        self._agent: AsyncAgent | None = None
        self._is_up = asyncio.Event()

    # ---- the model and its tools ----

    @property
    def starts(self) -> int:
        """How much was begun."""
        return sum(self.started.values())

    @property
    def faults(self) -> int:
        """How much went wrong on purpose."""
        return self.dice.faults

    def hear(self, request: ModelRequest) -> None:
        """A model was asked."""
        self.say("ask", request.session_id, f"{request.run_id} {len(request.conversation)} {request.purpose}")
        problem = speech_problem(request)
        if problem:
            self._break(
                f"{request.run_id} of {request.session_id} is sent what nobody would take: {problem}\n{request}"
            )

    def draw_call(self, number: int) -> ToolCall:
        """A call that a model asks for."""
        name = self.dice.one(("look", "look", "pay", "sync", "pair", "must"))
        arguments, call_id = json.dumps({"what": self.dice.rng.randint(0, 9)}), f"c{number}"
        if self.dice.happens("model_babbles"):
            name, arguments, call_id = self.dice.one(
                ((name, "{", call_id), ("nothing", "{}", call_id), (name, '{"who": 1}', ""), (name, arguments, "c0"))
            )
        return ToolCall(id=call_id, name=name, arguments=arguments)

    def _tools(self, life: _Life) -> list[FunctionTool[..., Any]]:
        def make(name: str, effect: Effect, **more: Any) -> FunctionTool[..., Any]:
            async def work(what: int, context: ToolContext) -> ToolOutput:
                return await self._work(life, name, effect, context)

            return FunctionTool(work, name=name, effect=effect, **more)

        return [
            make("look", Effect.READ, lane="query"),
            make("pay", Effect.WRITE),
            make("sync", Effect.IDEMPOTENT),
            make("pair", Effect.WRITE, parallel=True),
            make("must", Effect.WRITE, interruptible=False),
        ]

    async def _work(self, life: _Life, name: str, effect: Effect, context: ToolContext) -> ToolOutput:
        if not life.is_dead:
            self._start(life, name, effect, context)
        self.working.add(context.key)
        try:
            if self.dice.happens("tool_hangs"):
                await asyncio.sleep(HANG_S)
            await asyncio.sleep(self.dice.span(self.world.work_ms))
        finally:
            self.working.discard(context.key)
        if self.dice.happens("tool_raises"):
            raise ValueError("simulated")
        return ToolOutput(text=f"{name} done", is_error=self.dice.happens("tool_refuses"))

    def _start(self, life: _Life, name: str, effect: Effect, context: ToolContext) -> None:
        key = context.key
        self.say("tool", name, f"{context.run_id} {context.call_id} {context.attempt}")
        self.check_gates(name, context.run_id, context.key, context.call_id)
        self.started[key] += effect is not Effect.READ  # a read of a round that was lost may have had the same key
        if effect is Effect.WRITE and self.started[key] > 1:
            self._break(f"{name} ({context.call_id} of {context.run_id}) runs a second time")
        session = self._session_of(life, context.session_id)
        run = session._run if session is not None else None
        goes_on = session is not None and session.background_calls.goes_on(key)
        is_over = run is None or run.id != context.run_id or (run.turn.cancelled and name != "must")
        if is_over and not goes_on:  # in the background a call may be tried again without its run
            self._break(f"{name} starts for {context.run_id}, which is over")
        if effect is not Effect.READ and key not in self._intents():
            self._break(f"{name} ({context.call_id} of {context.run_id}) starts, and its intent is not on disk")

    def _session_of(self, life: _Life, session_id: str) -> AsyncSession | None:
        return life.sessions.get(session_id)

    def check_gates(self, name: str, run_id: str, key: str, call_id: str) -> None:
        """A call starts: it must have passed every gate there is."""

    def _intents(self) -> dict[str, str]:
        rows = [row for row in self._disk.states.values() if row.kind == "intent"]
        return {json.loads(row.body)["key"]: row.state for row in sorted(rows, key=lambda row: row.seq)}

    # ---- the run ----

    def give_up(self) -> None:
        """The run has failed: what hangs shall let go."""
        self.dice.honest = True

    async def play(self) -> None:
        """Live, heal, end, close; then nothing may be left."""
        self.say("world", str(self.world.seed), self.world.describe())
        await self._open()
        await self._live()
        self._check_broken()
        await self._heal()
        self._check_broken()
        await self._end()
        self._check_broken()

    async def _live(self) -> None:
        tasks = [self._loop.create_task(self._client(), name=f"sim client-{n}") for n in range(self.world.clients)]
        tasks.append(self._loop.create_task(self._host(), name="sim host"))
        ruler = self._loop.create_task(self._fate(), name="sim fate")
        fail = self._loop.create_task(self._failed.wait(), name="sim failed")
        everybody = self._loop.create_task(asyncio.wait([*tasks, ruler]), name="sim everybody")
        await asyncio.wait([everybody, fail], return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, ruler, fail, everybody):
            task.cancel()
        for result in await asyncio.gather(*tasks, ruler, fail, everybody, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _client(self) -> None:
        for _ in range(self.world.actions):
            await asyncio.sleep(self.dice.span(self.world.gap_ms))
            await self._is_up.wait()
            await self._act(self.dice.one(self._acts()), self.dice.one(self.world.sessions))

    def _acts(self) -> tuple[str, ...]:
        """What clients do."""
        return self.world.acts

    async def _act(self, act: str, name: str) -> None:
        life = self._life
        session = life.sessions[name]
        task = self._loop.create_task(self._do(act, session), name=f"call {act}")
        task.add_done_callback(lambda ended: self._check_call(act, ended))
        await asyncio.wait([task], timeout=self.dice.span(self.world.gap_ms * 4))

    def _check_call(self, act: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LanewayError | DiskFailedError):
            self._break(f"{act} raised {error!r}")

    async def _do(self, act: str, session: AsyncSession) -> None:
        mode = self.dice.one(self.world.modes)
        text = f"say {self.dice.rng.randint(0, 99)}"
        match act:
            case "send":
                await session.send(text, mode=mode)
            case "stream" | "leave":
                await self._watch(session, text, mode, leaves=act == "leave")
            case "steer" | "interrupt" | "followup":
                receipt = await getattr(session, act)(text)
                self.accepted[receipt.message_id] = session.session_id
            case "cancel":
                await session.cancel("simulated")
            case _:
                await session.ready()
                session.pause()
                await asyncio.sleep(self.dice.span(self.world.gap_ms))
                session.resume()

    async def _watch(self, session: AsyncSession, text: str, mode: Any, *, leaves: bool) -> None:
        stream = session.stream(text, mode=mode)
        events: list[AgentEvent] = []
        async for event in stream:
            events.append(event)
            if stream.message_id is not None:
                self.accepted[stream.message_id] = session.session_id
            if leaves:
                return
        ends = sum(isinstance(event, EndEvent | ErrorEvent) for event in events)
        if ends != 1 and not session._closed:
            self._break(f"a stream of {session.session_id} ended with {ends} ends: {[e.event_type for e in events]}")

    async def _host(self) -> None:
        """Sessions leave memory while everybody goes on, also when the process dies meanwhile.

        With dice of its own: the rest of a world is as it was without.
        """
        rng = random.Random(f"agent passivation {self.world.seed}")
        for _ in range(rng.choice((0, 0, 1, 3, 6))):
            await asyncio.sleep(rng.randint(0, self.world.gap_ms * self.world.actions // 2) / 1000)
            await self._is_up.wait()
            session = self._life.sessions[rng.choice(self.world.sessions)]
            deadline_ms, away_ms = rng.choice((0, 10, 300, 5_000)), rng.choice((0, 50, 2_000))
            task = self._loop.create_task(self._away(session, deadline_ms, away_ms), name="call passivate")
            task.add_done_callback(lambda ended: self._check_call("passivate", ended))
            if rng.random() < 0.4:
                await self._pull_in(session, rng.randrange(60))
            done, _ = await asyncio.wait([task], timeout=CLOSE_MAX_S)
            if not done and self.broken is None:
                self._break(self._loop.picture("passivation does not end"))

    async def _away(self, session: AsyncSession, deadline_ms: int, away_ms: int) -> None:
        self.say("passivate", session.session_id, f"{deadline_ms} {away_ms}")
        # Noted at once: somebody else may open the session before this goes on.
        session.on_leaving = lambda leaving: leaving.add_done_callback(lambda _: self._note_left())
        await session.passivate("simulated", deadline_ms=deadline_ms)
        await asyncio.sleep(away_ms / 1000)
        await session.ready()

    async def _pull_in(self, session: AsyncSession, steps: int) -> None:
        """Somebody wants it gone at once, after that many steps of its way out."""
        for _ in range(steps):
            await asyncio.sleep(0)
        try:
            await session.passivate("simulated, at once", deadline_ms=0)
        except (LanewayError, DiskFailedError) as error:
            self.say("not passivated", session.session_id, type(error).__name__)

    def _note_left(self) -> None:
        """A session has left memory: whoever opens it goes on with what it has not done."""

    async def _fate(self) -> None:
        for peril in ("crash", "restart", "close") * 2:
            await asyncio.sleep(self.dice.span(self.world.gap_ms * self.world.actions // 2))
            if self.broken is None and self.dice.happens(peril):
                self.say(peril, f"life-{self._life.number}")
                try:
                    await getattr(self, f"_{peril}")()
                except Exception as error:
                    self._break(f"{peril} of life {self._life.number} raised {error!r}")
                    raise

    # ---- lives ----

    async def _open(self) -> None:
        """A new process opens its sessions on what is on the disk."""
        self._life = life = _Life(self._life.number + 1)
        clock = SimClock(self.wall, base_ms=self.dice.rng.randint(0, 10_000_000))
        host = HostEnv(clock=clock, ids=self._ids, random=self.dice.rng)
        self._store = SimStore(self._disk, self.dice, slow_ms=self.world.slow_ms, witness=nothing)
        self._agent = AsyncAgent(
            model=_Model(self, life),
            tools=self._tools(life),
            builtin_tools=False,
            session_store=self._store,
            host=host,
            **self._agent_options(life),
        )
        for number, name in enumerate(self.world.sessions):
            await self._open_session(number, name)
        self.say("open", f"life-{life.number}")
        self._is_up.set()

    async def _open_session(self, number: int, name: str) -> None:
        assert self._agent is not None
        for _ in range(OPENINGS):
            session = self._agent.session(".", session_id=name, **self._session_options(number))
            self._life.sessions[name] = session
            try:
                await session.ready()
                return
            except (StoreUnavailableError, DiskFailedError, ConfigError):
                await session.close()
                await asyncio.sleep(0.1)
        raise LawBrokenError("a session cannot be opened")

    def _agent_options(self, life: _Life) -> dict[str, Any]:
        """What the sessions of a life have in common."""
        return {"permission_policy": PermissionPolicy(allow=("*",)), **self.world.options}

    def _session_options(self, number: int) -> dict[str, Any]:
        """What one session has of its own."""
        return {"queue_config": self.world.queue_config(number)}

    async def _crash(self) -> None:
        """The process dies: nothing of it runs any more, and nothing it began is finished."""
        self._is_up.clear()
        life, store = self._life, self._store
        assert store is not None
        store.cut()
        life.is_dead = True
        hosts = {id(session.host): session.host for session in life.sessions.values() if hasattr(session, "host")}
        for host in hosts.values():
            engine = host.inbox.engine
            if engine._timer is not None:
                engine._timer.cancel()
            engine._arm = nothing  # type: ignore[method-assign]  # a dead process has no timers
            host.desk.close()
        await self._end_tasks()
        for host in hosts.values():
            await host.inbox.lanes.close()
        await self._open()

    async def _restart(self) -> None:
        """A clean end: what runs is ended and goes on later."""
        self._is_up.clear()
        await self._close_all()
        await self._open()

    async def _close_all(self) -> None:
        assert self._agent is not None
        await self._end_closing(self._agent.close(), "closing")
        self._life.is_dead = True

    async def _end_closing(self, closing: Coroutine[Any, Any, None], what: str) -> None:
        """It ends in time, and without an error but of the disk."""
        task = self._loop.create_task(closing, name="sim closing")
        done, _ = await asyncio.wait([task], timeout=CLOSE_MAX_S)
        if not done:
            raise LawBrokenError(self._loop.picture(f"{what} does not end"))
        if (error := task.exception()) is not None and not isinstance(error, StoreUnavailableError | DiskFailedError):
            raise error

    async def _close(self) -> None:
        """One session is closed and opened again, in the same process."""
        number = self.dice.rng.randrange(len(self.world.sessions))
        name = self.world.sessions[number]
        self._is_up.clear()
        await self._end_closing(self._life.sessions[name].close(), "closing a session")
        await self._open_session(number, name)
        self._is_up.set()

    # ---- the end ----

    async def _heal(self) -> None:
        self.say("heal")
        self.dice.honest = True
        for session in self._life.sessions.values():
            await session.ready()
        until = self._loop.time() + HEALED_S
        while live := self._live_rows():
            for session in self._life.sessions.values():
                session.resume()
            await self._help()
            self._check_broken()
            if self._loop.time() > until:
                raise LawBrokenError(f"stuck: not everything has ended {HEALED_S:.0f} s after healing: {live[:12]}")
            await asyncio.sleep(LOOK_S)

    async def _help(self) -> None:
        """What has to be done from outside so that everything can end."""

    def _live_rows(self) -> list[str]:
        messages = [f"{row.id} {row.state}" for row in self._disk.messages.values() if row.live and row.state != "held"]
        kinds = ("turn", "child")
        turns = [f"{row.id} {row.state}" for row in self._disk.states.values() if row.live and row.kind in kinds]
        hosts = {id(session.host): session.host for session in self._life.sessions.values() if hasattr(session, "host")}
        writing = ["on its way to the disk" for host in hosts.values() if not host.inbox.engine.journal.is_idle]
        return messages + turns + writing

    def _check_notes(self) -> None:
        """The end of a call in the background is told once, or not at all if somebody has ended it."""
        for row in self._disk.states.values():
            if row.kind == "child" and row.id.startswith("bg-"):
                mail = [each.body for each in self._disk.messages.values() if each.session == row.session]
                told = sum(f"background call {row.id} " in body for body in mail)
                wanted = 0 if json.loads(row.body)["awaited"] else 1
                if told != wanted:
                    raise LawBrokenError(f"the end of {row.id} ({row.state}) was told {told} times, not {wanted}")

    async def _end(self) -> None:
        """Everything is known, closing leaves nothing, and whoever opens it again finds the same."""
        for name, session in self._life.sessions.items():
            await session.ready()  # what a session that rests has left open is ended when it is opened
            before = await session.history()
            for entry in [one for one in await session.ledger("intended") if one.key not in self.working]:
                raise LawBrokenError(f"{entry.id} of {name} is intended, and nobody works on it")
            for message, owner in self.accepted.items():
                if owner == name and message not in self._disk.messages:
                    raise LawBrokenError(f"{message} was accepted, and is gone")
            self.say("history", name, str(len(before)))
        self._check_notes()
        histories = {name: await session.history() for name, session in self._life.sessions.items()}
        rng = random.Random(self.world.seed)
        told = await check_replays(self._disk, self._life.sessions, rng, changed=self.changed)
        self.say("replayed", str(told))
        await self._close_all()
        left = [task.get_name() for task in self._loop.pending_tasks() if task.get_name() != "sim main"]
        left = [name for name in left if not name.startswith("call ")]
        if left:
            raise LawBrokenError(f"closing left tasks behind: {left}")
        await self._open()
        for name, session in self._life.sessions.items():
            after = await session.history()
            if after != histories[name]:
                raise LawBrokenError(f"the history of {name} is another one after it was opened again")
        await self._close_all()
