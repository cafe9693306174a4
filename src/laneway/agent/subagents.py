"""Sub-agents: child sessions that work for a session, and whose end is told exactly once.

A sub-agent is a session of the same agent, host and store, with the gates of its parent. Its turns run in the lane
`subagent`. Whoever waits for it does so in a lane that costs nobody a slot, and lends what it holds. What a sub-agent
needs to go on after a crash is in the row of its start; its own conversation is in its own session. Its session and its
message are found by the key of the call that wanted it, so a call that is made again attaches to the same sub-agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from laneway.agent.definitions import Definitions
from laneway.agent.endings import all_over, end_task
from laneway.agent.results import RunResult
from laneway.agent_events import (
    AgentEvent,
    ConfirmationEscalatedEvent,
    ConfirmationRequiredEvent,
    ConfirmationWarningEvent,
    ExternalTaskPendingEvent,
    SubagentEndEvent,
    SubagentProgressEvent,
    SubagentStartEvent,
)
from laneway.errors import ClosedError, LanewayError, RunCancelledError, UsageError, describe, text_of
from laneway.kernel.mailbox import ChildEntry
from laneway.kernel.texts import clip
from laneway.options import SessionOptions, merge
from laneway.records import DURATION_MAX_MS, Fields, check_whole
from laneway.rows import Owner
from laneway.runtime.erasing import CHILD_PREFIX
from laneway.runtime.errands import FOLLOWUPS_MAX, SYSTEM_SETTINGS, WAIT_LANE
from laneway.runtime.turns import Child

if TYPE_CHECKING:
    from laneway.agent.definitions import Definition
    from laneway.agent.loop import Run
    from laneway.agent.session import AsyncSession
    from laneway.agent.settings import SessionSettings
    from laneway.runtime.handles import Job

# Sub-agents are part of the sessions and of the engine that they work for.
# ruff: noqa: SLF001

__all__ = ("Delegates", "Errand", "Subagent", "is_child_id", "root_of")

_log = logging.getLogger("laneway")

TOOLS: Final = ("task", "parallel_task", "spawn", "request_followup")
MARK: Final = "~"
PREFIX: Final = CHILD_PREFIX
SHORT: Final = 12
PROGRESS_MAX: Final = 1_000
ASKING: Final = (
    ConfirmationEscalatedEvent,
    ConfirmationRequiredEvent,
    ConfirmationWarningEvent,
    ExternalTaskPendingEvent,
)
"""Events that somebody has to do something about."""
LABEL_MAX: Final = 80
WAITING, RUNNING, SUSPENDED = "waiting", "running", "suspended"
SUCCEEDED, FAILED, TIMED_OUT, CANCELLED = "succeeded", "failed", "timed_out", "cancelled"
END_DELAYS_S: Final = (0.5, 1, 2, 4, 8, 10)
GONE: Final = "the run that wanted it has ended"


def is_child_id(session_id: str) -> bool:
    """Whether a session id looks like that of a sub-agent."""
    parent, mark, short = session_id.rpartition(MARK)
    return bool(parent and mark) and len(short) == SHORT and all(char in "0123456789abcdef" for char in short)


def root_of(session_id: str) -> str:
    """The session that a sub-agent works for, at the top; any other session is its own."""
    while is_child_id(session_id):
        session_id = session_id.rpartition(MARK)[0]
    return session_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a sub-agent is to do, and all that another process needs to go on with it.

    `awaited`: somebody waits for it here; else its end becomes a message. `held` are the rules that its calls are held
    to, beside the permissions: titles and what each allows. `spends_for`: what the run that began it is counted under.
    """

    key: str
    prompt: str
    agent: str = ""
    description: str = ""
    timeout_ms: int | None = None
    awaited: bool = True
    tool_id: str = ""
    held: tuple[tuple[str, tuple[str, ...]], ...] = ()
    spends_for: str = ""

    @property
    def short(self) -> str:
        """What its ids are made of: the same for the same key."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:SHORT]

    @property
    def label(self) -> str:
        """What people are told of it."""
        return self.description or self.agent or clip(self.prompt, LABEL_MAX)

    @classmethod
    def of(cls, detail: dict[str, Any]) -> Errand:
        """What was stored."""
        held = tuple((title, tuple(rules)) for title, rules in detail["held"])
        return cls(**{**detail, "held": held})


@dataclass(frozen=True, slots=True)
class _Held:
    """A rule of the parent that the sub-agent is held to."""

    title: str
    allowed: tuple[str, ...] | None


class Subagent(Child):
    """One sub-agent. `status` is waiting, running, succeeded, failed, timed_out or cancelled."""

    def __init__(self, delegates: Delegates, errand: Errand, run_id: str) -> None:
        parent = delegates.session
        engine = parent.host.inbox.engine
        super().__init__(engine, f"{PREFIX}{parent.session_id}{MARK}{errand.short}", errand.label, parent.owner)
        self.errand = errand
        self.run_id = run_id
        self.child_session_id = f"{parent.session_id}{MARK}{errand.short}"
        self.session: AsyncSession | None = None
        self.status = WAITING
        self.output = ""
        self.result: RunResult | None = None
        self.error: BaseException | None = None
        self.began_ms = 0  # wall clock
        self.took_ms = 0
        self.over: asyncio.Future[None] = engine.loop.create_future()
        self._delegates = delegates
        self._parent = parent
        self._mail = engine
        self._permits = delegates.permits(run_id)
        self._has_permit = False
        self._asked: asyncio.Future[str] = engine.loop.create_future()  # to end, and why; empty: to be gone on with
        self._left = asyncio.Event()  # nobody waits for its end any more
        self.is_unwanted = False
        self._began_at = engine.now()
        self._progress = 0

    def __repr__(self) -> str:
        return f"<Subagent {self.child_session_id} {self.status}>"

    @property
    def task_id(self) -> str:
        """What it is known by."""
        return self.id

    @property
    def is_awaited(self) -> bool:
        """Whether its end is told to whoever waits for it, and to nobody else."""
        return self.errand.awaited or self.is_unwanted

    def report(self) -> Fields:
        """What is known about it."""
        took = self.took_ms if self.over.done() else max(0, self._mail.now() - self._began_at)
        return Fields(
            task_id=self.task_id,
            agent=self.errand.agent,
            description=self.errand.description,
            child_session_id=self.child_session_id,
            status=self.status,
            output=self.output,
            awaited=self.errand.awaited,
            run_id=self.run_id,
            began_ms=self.began_ms,
            duration_ms=took,
        )

    # ---- its end ----

    def cancel(self, reason: str = "cancelled by its parent") -> bool:
        """End it for real. False: it has ended, or is being ended."""
        if self._asked.done() or self.over.done():
            return False
        self._asked.set_result(reason or "cancelled")
        return True

    def suspend(self) -> None:
        """Leave it to whoever opens the session next; nothing of its end is told here."""
        if not self.over.done():
            self._detached = True
            self._left.set()
            if not self._asked.done():
                self._asked.set_result("")

    def end_of(self, job: Job[Any]) -> tuple[str, str]:
        """How it ended, and what it says."""
        if self.status in (WAITING, RUNNING):  # its job has ended without it
            state, self.output = super().end_of(job)
            self.status = state if state in (FAILED, CANCELLED) else FAILED
        return self.status, self.output

    # ---- its work ----

    async def work(self) -> None:
        """Work to the end, whatever that is."""
        limit = self.errand.timeout_ms
        follow = asyncio.get_running_loop().create_task(self._follow(), name=f"laneway-{self.id}")
        try:
            if not self._asked.done():  # else it does not even begin
                await asyncio.wait(
                    (follow, self._asked),
                    timeout=None if limit is None else limit / 1000,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            await self._end(follow)
            await self._leave()
        except asyncio.CancelledError:  # the loop is being closed: nothing can be waited for
            follow.cancel()
            self._abandon()
            self._detached = True
            raise
        finally:
            self.took_ms = max(0, self._mail.now() - self._began_at)

    def _take(self, follow: asyncio.Task[RunResult]) -> None:
        try:
            self.result = follow.result()
        except RunCancelledError as error:
            self.status, self.output, self.error = CANCELLED, error.reason or text_of(error), error
        except LanewayError as error:
            self.status, self.output, self.error = FAILED, text_of(error), error
        except Exception as error:  # noqa: BLE001 - whatever a model raises is how it ended
            self.status, self.output, self.error = FAILED, describe(error), error
        else:
            self.status, self.output = SUCCEEDED, self.result.text

    async def _end(self, follow: asyncio.Task[RunResult]) -> None:
        """It has ended, or somebody ends it; whatever it is, nothing of it goes on."""
        if follow.done():
            self._take(follow)
            if self.status == SUCCEEDED:
                return
        elif not self._asked.done():
            self.status, self.output = TIMED_OUT, f"it took longer than {self.errand.timeout_ms} ms"
        elif self._asked.result():
            self.status, self.output = CANCELLED, self._asked.result()
        else:
            self.status = SUSPENDED
        await end_task(follow)
        if self.status != SUSPENDED and not await self._end_session(self.output):
            self.status = SUSPENDED

    async def _end_session(self, reason: str) -> bool:
        """End all that is in its session, until the store has it. False: whoever opens the parent next has to."""
        for delay in chain(END_DELAYS_S, repeat(END_DELAYS_S[-1])):
            try:
                if await self._unless_left(self._try_to_end(reason)):
                    return True
            except LanewayError as error:
                _log.warning("sub-agent %s is not ended yet: %s", self.id, error)
            if self._detached or not self._mail.is_at_work:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._left.wait()
        self._detached = True
        return False

    async def _unless_left(self, ending: Coroutine[Any, Any, None]) -> bool:
        """Whether something came to its end before this sub-agent was suspended: what it waits for may be held."""
        loop = asyncio.get_running_loop()
        task, left = loop.create_task(ending), loop.create_task(self._left.wait())
        try:
            await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            await task
            return True
        finally:
            left.cancel()
            await end_task(task)

    async def _try_to_end(self, reason: str) -> None:
        child = self.session
        if child is not None:
            await child.opened()
        if child is not None and child.delegates.is_open:
            await child.delegates.stop(reason)
        else:  # another process may have left something there
            await self._delegates.end_stored(self.owner._replace(session=self.child_session_id), reason)

    async def _leave(self) -> None:
        """Nothing of it stays in this process."""
        child = self.session
        try:
            if child is not None:
                await child.shut()
        except LanewayError as error:
            _log.warning("the session of sub-agent %s could not be closed: %s", self.id, error)
        finally:
            self.session = None
            if self._has_permit and self._permits is not None:
                self._has_permit = False
                self._permits.release()

    def _abandon(self) -> None:
        """Let go of its session without a word."""
        if self.session is not None and hasattr(self.session, "host"):
            self.session.host.unuse(self.session)
            self.session.host.guests.discard(self.session)

    async def _follow(self) -> RunResult:
        if self._permits is not None:
            await self._permits.acquire()
            self._has_permit = True
        self.status = RUNNING
        self._began_at, self.began_ms = self._mail.now(), self._mail.wall()
        child = self.session = self._delegates.child_of(self)
        child.relay(self._tell_progress)
        await child.ready()
        self._tell_start()
        message_id = await self._say(child)
        waiting = {self._parent.owner: self.run_id} if self.errand.awaited else {}
        self._mail.rings.begin(waiting, child.owner)
        try:
            return await child.delegates.last_word(await child.wait(message_id))
        finally:
            self._mail.rings.end(waiting, child.owner)

    async def _say(self, child: AsyncSession) -> str:
        """Give it its task; after a restart it has it already."""
        known = await self._mail.store.history.messages(child.owner, limit=1)
        if known:
            return known[0].id
        receipt = await child.host.inbox.submit(
            child.session_id,
            self.errand.prompt,
            mode="followup",
            tenant=child.owner.tenant,
            message_id=self.errand.key,
        )
        return receipt.message_id

    # ---- telling ----

    def _emit(self, event: AgentEvent) -> None:
        self._parent.emit_event(event, self.run_id)

    def _tell_start(self) -> None:
        event = SubagentStartEvent(
            task_id=self.task_id,
            agent=self.errand.agent,
            description=self.errand.description,
            child_session_id=self.child_session_id,
            tool_id=self.errand.tool_id,
        )
        self._emit(event)

    def _tell_progress(self, event: AgentEvent) -> None:
        """Something has happened in its session; pieces of text are not told, and not more than so many events.

        What somebody has to answer is told as it is, too: whoever watches the first session hears it from any depth.
        """
        if isinstance(event, ASKING):
            self._emit(event)
        self._progress += not event.ephemeral
        if not event.ephemeral and self._progress <= PROGRESS_MAX:
            told = SubagentProgressEvent(
                task_id=self.task_id, child_session_id=self.child_session_id, event=event.to_dict()
            )
            self._emit(told)

    def end_event(self) -> SubagentEndEvent:
        """How it ended, for whoever watches."""
        return SubagentEndEvent(
            task_id=self.task_id,
            agent=self.errand.agent,
            child_session_id=self.child_session_id,
            status=self.status,
            output=self.output,
            duration_ms=self.took_ms,
        )


class Delegates:
    """The sub-agents of one session."""

    def __init__(self, session: AsyncSession, parent: AsyncSession | None, make: Callable[..., AsyncSession]) -> None:
        self.session = session
        self._make = make  # a session
        self._live: dict[str, Subagent] = {}
        self._done: deque[Fields] = deque(maxlen=session.settings.retention_limits.max_terminal_subagent_tasks)
        self._semaphores: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        settings = session.settings
        self.definitions: Definitions = (
            Definitions(settings.agent_dirs) if parent is None else parent.delegates.definitions
        )

    @property
    def is_on(self) -> bool:
        """Whether the model of this session may hand work to sub-agents."""
        return _wants(self.session.settings)

    def system_text(self) -> str:
        """What the model is told about the agents it may hand work to."""
        return self.definitions.system_text() if self.is_on else ""

    # ---- starting ----

    def check(self, errand: Errand) -> None:
        """Refuse what can never be started."""
        session = self.session
        most = session.settings.max_subagent_depth
        if session.depth >= most:
            raise UsageError(
                f"sub-agents may be nested {most} deep (max_subagent_depth), and this one may start none",
                hint="do it yourself",
            )
        if not errand.prompt.strip():
            raise UsageError("a sub-agent needs a prompt that says what to do")
        if errand.agent and self.definitions.get(errand.agent) is None:
            raise UsageError(self.definitions.unknown(errand.agent))
        if errand.timeout_ms is not None:
            check_whole(errand.timeout_ms, setting="timeout_ms", least=1, most=DURATION_MAX_MS)

    def start(self, errand: Errand, run: Run | None = None) -> Subagent:
        """Start a sub-agent, or attach to the one that was started for the same key."""
        session = self.session
        engine = session.host.inbox.engine
        engine.check_session(session.owner)
        if run is not None:
            errand = replace(errand, spends_for=run.counted_as)
        sub = Subagent(self, errand, run.id if run is not None else "")
        known = self._live.get(sub.id)
        if known is not None:
            return known
        box = engine.kernel.boxes.get(session.owner)
        entry = box.children.get(sub.id) if box is not None else None
        if entry is None:
            self._enter(sub, run)
        else:
            sub._stored = True
            engine.kernel.begin_child_again(entry, sub.run_id or entry.turn_id)
        self._launch(sub)
        return sub

    async def spawn(self, errand: Errand, run: Run | None) -> tuple[str, bool]:
        """Start a sub-agent that nobody waits for; its id, and whether it is new, as soon as it is stored."""
        self.check(errand)
        if run is not None and run.turn.depth >= FOLLOWUPS_MAX:
            raise UsageError(
                f"{run.turn.depth} runs before this one were begun by ends of sub-agents, and it may spawn none",
                hint="do it yourself, wait for it (task), or let the user decide",
            )
        session = self.session
        engine = session.host.inbox.engine
        task_id = Subagent(self, errand, "").id
        if task_id not in self._live and await engine.store.history.state("child", task_id) is not None:
            known = [entry for entry in self._orphans() if entry.id == task_id]
            if not known:
                return task_id, False  # it has ended, and that was told
        is_new = task_id not in self._live
        self.start(errand, run)
        if engine.journal.has(session.owner):
            await engine.journal.committed(session.owner)
        return task_id, is_new

    async def cancel(self, task_id: str, reason: str) -> bool:
        """End one of them; False: it is not at work."""
        sub = self._live.get(task_id)
        if sub is None or not sub.cancel(reason):
            return False
        await all_over([sub.over])
        return True

    def _enter(self, sub: Subagent, run: Run | None) -> None:
        session, engine = self.session, sub._mail
        turn = run.turn._entry if run is not None else None
        followed = session.skills.followed(run)
        held = tuple((each.title, tuple(each.allowed)) for each in followed if each.allowed is not None)
        sub.errand = replace(sub.errand, held=held)
        turn_id = run.id if run is not None else ""
        entry = ChildEntry(session.owner, sub.id, seq=engine.store.next_seq(), turn_id=turn_id, label=sub.label)
        if turn is not None:
            entry.route, entry.sender, entry.depth = turn.route, turn.sender, turn.depth
        entry.awaited = sub.errand.awaited
        entry.detail = asdict(sub.errand)
        engine.kernel.enter_child(entry, wall=engine.wall())

    def _launch(self, sub: Subagent) -> None:
        """Begin, in a context of nobody's: what it does is no part of the job that wanted it."""
        engine = sub._mail
        self._live[sub.id] = sub
        try:
            engine._context.copy().run(engine.start_child, sub, sub.work)
        except BaseException:
            del self._live[sub.id]
            raise
        assert sub._job is not None
        sub._job.add_done_callback(functools.partial(self._over, sub))

    def _over(self, sub: Subagent, job: Job[Any]) -> None:
        """It has ended, and the engine has heard of it."""
        self._live.pop(sub.id, None)
        if not sub._detached:
            sub.end_of(job)
            self._done.append(sub.report())
            engine = sub._mail
            if engine.is_open and engine.journal.has(sub.owner):
                engine.journal.after(sub.owner, lambda _: sub._emit(sub.end_event()))
            else:
                sub._emit(sub.end_event())
            self.session.purse.end_run(sub.errand.spends_for)
        sub.over.set_result(None)

    def spend_for(self, counted_as: str) -> bool:
        """Whether one of them was begun by a run, and is at work; empty: by none."""
        return any(sub.errand.spends_for == counted_as for sub in self._live.values())

    def permits(self, run_id: str) -> asyncio.Semaphore | None:
        """How many sub-agents of one run may be at work."""
        most = self.session.settings.max_parallel_tasks
        if most is None:
            return None
        found = self._semaphores.get(run_id)
        if found is None:
            found = self._semaphores[run_id] = asyncio.Semaphore(most)
        return found

    def child_of(self, sub: Subagent) -> AsyncSession:
        """The session of a sub-agent: everything of its parent, narrowed by its definition."""
        parent, errand = self.session, sub.errand
        definition = self.definitions.get(errand.agent) if errand.agent else None
        if errand.agent and definition is None:
            raise UsageError(self.definitions.unknown(errand.agent))
        tools = {
            name: tool
            for name, tool in parent.toolbox.items()
            if not tool.spec.local and (definition is None or definition.offers(name))
        }
        child = self._make(
            parent._agent,
            parent.workspace,
            merge(parent.options, SessionOptions(session_id=sub.child_session_id)),
            _settings_of(parent, definition),
            model=parent._agent._model(definition.model) if definition and definition.model else parent.model,
            toolbox=tools,
            store=parent._store,
            env=parent._env,
            parent=parent,
        )
        child.is_waited_for = errand.awaited
        child.purse.spends_for = parent.purse.spends_for or errand.spends_for
        child.skills.inherit(*(_Held(title, rules) for title, rules in errand.held), definition)
        return child

    # ---- waiting ----

    async def wait(self, subs: Sequence[Subagent], *, goes_on: Run | None = None) -> None:
        """Wait until all have ended; whoever waits lends its slots.

        Whoever is cancelled meanwhile ends them, and waits for that; unless its run goes on when the session is opened
        again.
        """
        overs = [sub.over for sub in subs if not sub.over.done()]
        if not overs:
            return
        lanes = self.session.host.inbox.lanes
        label = "a sub-agent" if len(subs) == 1 else f"{len(subs)} sub-agents"
        try:
            await lanes.run(WAIT_LANE, all_over, overs, label=label)
        except asyncio.CancelledError:
            if goes_on is None or not goes_on.goes_on_later:
                reason = goes_on.turn._entry.cancelled if goes_on is not None else ""
                for sub in subs:
                    sub.cancel(reason or "whoever waited for it has gone")
                await all_over([sub.over for sub in subs])
            raise

    async def last_word(self, result: RunResult) -> RunResult:
        """Wait until nothing is left to do in this session; what was said last is the result."""
        session = self.session
        history = session.host.inbox.engine.store.history
        while True:
            await session.wait_idle()
            live = self.at_work()
            if live:
                await asyncio.wait(live, return_when=asyncio.FIRST_COMPLETED)
            elif self._untold():
                await asyncio.sleep(0)
            else:
                break
        if len(await history.messages(session.owner, limit=2)) < 2:
            return result
        said = [run for run in await session.runs() if run.state == SUCCEEDED]
        return replace(result, text=said[-1].answer, run_id=said[-1].run_id) if said else result

    def _untold(self) -> bool:
        """Whether the end of a sub-agent, or of a call in the background, is about to become a message."""
        box = self.session.host.inbox.engine.kernel.boxes.get(self.session.owner)
        return box is not None and any(child.live for child in box.children.values())

    # ---- ending ----

    @property
    def is_open(self) -> bool:
        """Whether turns of this session may run."""
        session = self.session
        return hasattr(session, "host") and session.host.is_open and session.host.sessions.get(session.key) is session

    async def stop(self, reason: str) -> None:
        """End all that is in this session, for real, and wait for that; raises when the store does not take it."""
        session = self.session
        engine = session.host.inbox.engine
        await engine.reloaded(session.owner)
        for sub in self._live.values():
            sub.is_unwanted = True  # nobody is left who could be told of its end
        await engine.change(session.owner, engine.kernel.stop, session.owner, reason, actor="its parent")
        for entry in self._orphans():
            self._discard(entry, reason)
        await all_over(self.at_work())
        await session.wait_idle()
        for task in session.host.desk.held(session.owner):  # of a run that was ended before it had attached to it
            session.host.desk.withdraw(task.task_id, reason)

    async def run_over(self, run: Run) -> None:
        """A run has ended: if somebody has ended it, what it started ends with it, before anybody is told."""
        reason = run.turn._entry.cancelled
        line = self.session.host.inbox.engine.kernel.started_in(run.turn._entry)
        mine = [sub for sub in self._live.values() if sub.run_id == run.id or sub.id in line]
        if reason and mine and not run.goes_on_later:
            for sub in mine:
                sub.cancel(reason)
            await all_over([sub.over for sub in mine])
        await self.session.background_calls.run_over(run)

    def sweep(self) -> None:
        """A message of this session has its end: end the sub-agents that only its run would have gone on with."""
        if not self.is_open:
            return
        for entry in self._orphans():
            if entry.detail["awaited"] and not self.session.book.is_awaited(entry.turn_id):
                self._discard(entry, GONE)

    async def close(self, *, for_good: bool) -> None:
        """The session is closed: what a store keeps is gone on with when it is opened again, else it ends here."""
        live = list(self._live.values())
        engine = self.session.host.inbox.engine
        box = engine.kernel.boxes.get(self.session.owner)
        for sub in live:
            if for_good:
                entry = box.children.get(sub.id) if box is not None else None
                if entry is not None:
                    entry.silenced = True  # nobody is left who could be told
                sub.cancel("the session was closed")
            else:
                sub.suspend()
        await all_over([sub.over for sub in live])

    # ---- after a restart ----

    async def open(self) -> None:
        """Go on with the sub-agents that an earlier process has left, unless nobody wants them any more."""
        left = self._orphans()
        if not left:
            return
        session = self.session
        await session.book.load()
        for entry in left:
            errand = Errand.of(entry.detail)
            if errand.awaited and session.book.is_awaited(entry.turn_id):
                for message in session.book.heads(entry.turn_id):  # its run attaches to it, or ends without
                    session.host.followed.setdefault(message, session)
            elif errand.awaited:
                self._discard(entry, GONE)
            elif entry.awaited or entry.silenced:  # somebody had said stop
                self._discard(entry, "stopped")
            else:
                sub = Subagent(self, errand, entry.turn_id)
                sub._stored = True
                self._launch(sub)

    def _orphans(self) -> list[ChildEntry]:
        """Sub-agents of this session that nobody here works on."""
        engine = self.session.host.inbox.engine
        box = engine.kernel.boxes.get(self.session.owner)
        children = box.children.values() if box is not None else ()
        mine = [child for child in children if child.live and child.detail and not child.is_call]
        return [child for child in mine if not engine.has_child(child.id)]

    def _discard(self, entry: ChildEntry, reason: str) -> None:
        """End a sub-agent that an earlier process has left; nobody wants to hear of it."""
        sub = Subagent(self, Errand.of(entry.detail), entry.turn_id)
        sub.is_unwanted = sub._stored = True
        sub.cancel(reason)
        try:
            self._launch(sub)
        except LanewayError as error:  # the lanes are being closed: whoever opens the session next does it
            _log.info("sub-agent %s is not ended now: %s", sub.id, error)

    async def end_stored(self, owner: Owner, reason: str) -> None:
        """End what is left in a session that is not open, and what works for it; raises as `stop` does."""
        engine = self.session.host.inbox.engine
        await engine.reloaded(owner)
        box = engine.kernel.boxes.get(owner)
        for child in list(box.children.values()) if box is not None else ():
            if child.detail and not engine.has_child(child.id):
                if not child.is_call:
                    await self.end_stored(owner._replace(session=_session_of(child)), reason)
                child.silenced = True
                await engine.change(owner, engine.kernel.end_child, child, CANCELLED, None, SYSTEM_SETTINGS)
        await engine.change(owner, engine.kernel.stop, owner, reason, actor="its parent")
        asked = list(box.approvals) if box is not None else []
        await engine.change(owner, engine.kernel.withdraw_approvals, owner, asked, reason, by="its parent")
        await self._withdraw_tasks(owner, reason)

    async def _withdraw_tasks(self, owner: Owner, reason: str) -> None:
        """What a session that is not open has given to others: nobody wants it any more."""
        desk = self.session.host.desk
        await desk.load(owner)
        for task in desk.held(owner):
            desk.withdraw(task.task_id, reason)
        desk.dismiss(owner)

    # ---- questions ----

    def at_work(self) -> list[asyncio.Future[None]]:
        """The ends of the sub-agents at work, and of the calls in the background."""
        subs = [sub.over for sub in self._live.values() if not sub.over.done()]
        return [*subs, *self.session.background_calls.at_work()]

    def sessions(self) -> list[AsyncSession]:
        """The sessions of the sub-agents at work, also those that are being opened."""
        return [sub.session for sub in self._live.values() if sub.session is not None]

    def reports(self) -> list[Fields]:
        """What is known of the sub-agents: the newest that have ended, and those at work."""
        return [*self._done, *(sub.report() for sub in self._live.values())]


def _wants(settings: SessionSettings) -> bool:
    wanted = settings.subagents if settings.subagents is not None else bool(settings.agent_dirs)
    return wanted and settings.max_subagent_depth > 0


def _settings_of(parent: AsyncSession, definition: Definition | None) -> SessionSettings:
    """What holds for a sub-agent: what holds for its parent now, but for what belongs to that alone."""
    settings = parent.settings
    queue = settings.queue_config if parent.lanes is None else parent.lanes.config
    if queue is not None and queue.storage_path is not None:  # the folder is that of its parent
        queue = queue.copy()
        queue.storage_path = None
    changed: dict[str, Any] = {}
    if definition is not None:
        changed = {"system": definition.system or settings.system}
        if definition.max_tool_rounds is not None:
            changed["max_tool_rounds"] = min(definition.max_tool_rounds, settings.max_tool_rounds)
    return replace(
        settings,
        queue_config=queue,
        subagents=_wants(settings) and (definition is None or any(map(definition.offers, TOOLS))),
        planning=False,
        mcp_servers={},
        hooks=(),
        messages=None,
        max_subagents=None,
        on_crash="resume",
        **changed,
    )


def _session_of(child: ChildEntry) -> str:
    """The session of a sub-agent."""
    return child.id.removeprefix(PREFIX)


def closed() -> ClosedError:
    """What is raised when a session was closed under somebody who waits for a sub-agent."""
    return ClosedError(opened=True, what="session")
