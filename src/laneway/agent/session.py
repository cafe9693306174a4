"""AsyncSession: one conversation with an agent, durable from its first line.

A session is a session of an inbox: whatever is sent while it is busy follows its mode. A run is a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from laneway.agent.approving import Approving
from laneway.agent.background import Background
from laneway.agent.book import Book
from laneway.agent.budget_guard import GuardPost
from laneway.agent.budgeting import Budgeted, Purse, check_budgets
from laneway.agent.confirmations import Confirmations
from laneway.agent.delegating import Delegating
from laneway.agent.direct import DirectTools
from laneway.agent.externals import Externals
from laneway.agent.forking import SAID, Forking
from laneway.agent.gates import Gates
from laneway.agent.handling import Handling
from laneway.agent.hook_points import hooks_of, tell_closed, tell_opened
from laneway.agent.host import SUBAGENT_LANE, Host, account_of, host_of
from laneway.agent.hosting import Hosted
from laneway.agent.identified import Identified, identity_of, restore
from laneway.agent.loop import Run
from laneway.agent.reports import Reports
from laneway.agent.results import RunInfo, RunResult
from laneway.agent.rule_names import warn_of_rules
from laneway.agent.session_lanes import SessionLanes
from laneway.agent.skills import SkilledSession, Skills
from laneway.agent.streams import AgentStream, EventStream
from laneway.agent.subagent_tools import with_subagent_tools
from laneway.agent.subagents import Delegates
from laneway.agent.tool_calls import INSIDE
from laneway.agent_events import AgentEvent, EndEvent, ErrorEvent, MessageQueuedEvent
from laneway.dialogue import Prompt, ToolCall, ToolContext, ToolSpec, Usage, Utterance
from laneway.errors import (
    ClosedError,
    ConfigError,
    LanewayError,
    PassivatedError,
    RunCancelledError,
    RunFailedError,
    UnknownMessageError,
    UnknownRunError,
    UsageError,
)
from laneway.identity import AT_WORK
from laneway.kernel.histories import to_prompt
from laneway.kernel.permissions import allows_url, hides
from laneway.kernel.rounds import RoundState
from laneway.mail import Final, MessageKind, MessageState, Mode, Outcome, PendingMessage, Receipt
from laneway.rows import Owner
from laneway.runtime.artifacts import HOLDS, folder_of, holder_of

if TYPE_CHECKING:
    from laneway.agent.agent import AsyncAgent
    from laneway.agent.settings import SessionSettings
    from laneway.options import SessionOptions
    from laneway.ports import Model, Store, Tool
    from laneway.runtime.turns import Turn
    from laneway.spending import Budget
    from laneway.system import HostEnv

__all__ = ("AsyncSession",)

_log = logging.getLogger("laneway")

CLOSED = ErrorEvent(error="the session was closed", error_kind=ClosedError.code)
LEFT = ErrorEvent(error="the session has left memory; what it was told goes on later", error_kind=PassivatedError.code)
ENDS_MAX = 100
RESUME = "laneway.resume_run"
COMPACT = "laneway.compact"


class AsyncSession(
    Handling, DirectTools, SkilledSession, Approving, Delegating, Budgeted, Identified, Hosted, Forking, Reports
):
    """One conversation with an agent. Make it with `AsyncAgent.session`."""

    def __init__(
        self,
        agent: AsyncAgent,
        workspace: str,
        options: SessionOptions,
        settings: SessionSettings,
        *,
        model: Model,
        toolbox: Mapping[str, Tool],
        store: Store | None,
        env: HostEnv,
        parent: AsyncSession | None = None,
    ) -> None:
        self._agent = agent
        self.parent = parent  # the session that it works for, if it is a sub-agent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self._store = store
        self._env = env
        self._workspace = str(Path(workspace).expanduser().resolve())
        self.options = options
        self.settings = settings
        self.model = model
        self.identity = identity_of(settings) if parent is None else parent.identity
        self.session_id = options.session_id or env.ids.new_id("session")
        self.key = (settings.tenant_id or "default", self.session_id)
        self.owner = Owner(self.key[0], "default" if agent.home is None else agent.home.workspace, self.session_id)
        self.host: Host
        self.book: Book
        self.lanes: SessionLanes | None = None
        self.hooks = hooks_of(self) if parent is None else parent.hooks
        shelf = None if parent is None else parent.skills.shelf
        self.skills = Skills(settings, hooks=self.hooks, current_run=lambda: self._run, shelf=shelf)
        self.delegates = Delegates(self, parent, AsyncSession)
        self.toolbox = with_subagent_tools(self.delegates, self.skills.with_tool(toolbox))
        self.tool_specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in self.toolbox.values())
        self.confirmations = Confirmations(self)
        self.gates = Gates(self)
        self.guard_post = GuardPost(self)
        self.purse = Purse(self)
        self._own_budgets: tuple[Budget, ...] | None = None  # those that only this session has, while it is open
        check_budgets(settings.budgets, model, agent._model)  # noqa: SLF001 - its own agent
        self.externals = Externals(self)
        self.background_calls = Background(self)
        self.tool_context = ToolContext(workspace=self._workspace, session_id=self.session_id)
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._seq = 0
        self._paused: asyncio.Future[None] | None = None
        self._run: Run | None = None
        self._at_work: set[Run] = set()  # that one, and those that were fenced and have not ended yet
        self._runs: dict[str, Run] = {}  # by run: until the end of each is told
        self._run_of: dict[str, tuple[Run, int]] = {}  # by message: its run, and from which event on it is part of it
        self._following: dict[str, list[AgentStream]] = {}  # by run
        self._waiting: dict[str, list[AgentStream]] = {}  # by message, until its run begins
        self._ends: dict[str, BaseException] = {}  # by message: why its run failed, for those who wait for it
        self._watchers: list[EventStream] = []
        self._traces: deque[AgentEvent] = deque(maxlen=settings.retention_limits.max_trace_events)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r} in {self._workspace!r}>"

    # ---- opening and closing ----

    async def ready(self) -> Self:
        """Open what it needs, and go on with what an earlier process has left. Every other method does this first."""
        await self._come()
        return self

    def start(self) -> None:
        """Begin to open it on the running loop."""
        if self._opening is None and not self._closed:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="laneway-session")
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _open(self) -> None:
        self.host = host = self._agent.home or host_of(self._store, self._env, shared_by=self._agent)
        host.guests.add(self)
        try:
            await self._move_in(host)
        except BaseException:
            await self._let_go()
            raise

    async def _move_in(self, host: Host) -> None:
        await host.open()
        if host.sessions.get(self.key) not in (None, self):
            raise ConfigError(
                f"session {self.session_id!r} is open already in this process",
                setting="session_id",
                hint="use that one, or close it first",
            )
        await self._check_known(host.inbox.engine.store.history)
        self.purse.open()
        self._own_budgets = host.budgets.own_of(self.owner)
        self.book = Book(host.inbox.engine, self.owner)
        self.model_lane = host.model_lane(account_of(self.model))
        self.tool_context = replace(
            self.tool_context,
            output_max=self.settings.output_max,
            artifacts=self.settings.artifacts_dir or self._artifacts_dir(),
            in_thread=self._in_thread,
            extra={
                "environment": self.settings.environment,
                "hides": hides(self.settings.permission_policy, self._workspace),
                "readable": self.skills.readable,
                "store": self._store_file(),
                "kept": folder_of(self._store, self.owner.tenant),
                "hold": functools.partial(HOLDS.hold, holder_of(self._store, self.owner)),
                "fixed": host.fixed,
                "allows_url": allows_url(self.settings.permission_policy),
            },
        )
        config = self.settings.queue_config
        if config is not None:
            tenant = self.owner.tenant
            name = f"s:{self.session_id}" if tenant == "default" else f"t:{tenant}/{self.session_id}"
            if host.workspace != "default":
                name = f"w:{host.workspace}/{name}"
            self.lanes = SessionLanes(
                host.inbox.lanes,
                name,
                config,
                on_event=self._queue_event,
                run_payload=self._run_payload,
                spec_of=self.spec_of,
            )
            await self.lanes.open()
        if self.settings.messages is not None:
            bounds = replace(self.settings.messages, mode=None)  # each message says its own
            await host.inbox.engine.set_options(self.owner, bounds, "the settings of the session")
        await self._agent.sources.equip(self)
        warn_of_rules(self, self._agent)
        await self.externals.open()
        await restore(self)
        if self.settings.max_subagents is not None:
            host.lanes.resize(SUBAGENT_LANE, self.settings.max_subagents)
        await self.delegates.open()
        self.purse.end_old_runs()
        await self.background_calls.open()
        await tell_opened(self)
        if self._is_held:
            self.pause()
        host.use(self)

    def _store_file(self) -> str:
        path = getattr(self._store, "path", None)
        return os.path.realpath(path) if path else ""

    def _artifacts_dir(self) -> str:
        return folder_of(self._store, self.owner.tenant) or os.path.join(self._agent.scratch(), "artifacts")

    async def _in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        call = functools.partial(copy_context().run, fn, *args)  # what the caller has set holds on the thread, too
        return await self.host.inbox.lanes.engine.run_in_thread(call)

    async def close(self) -> None:
        """End what runs here, leave the rest in the store, and let go of everything. A second time changes nothing."""
        self._check_inside()
        await self.shut()

    async def shut(self) -> None:
        """What `close` does, for the agent that closes all of its sessions."""
        self._check_loop()
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="laneway-session-closing")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._leaving is not None:
            self.hurry(0)
            await asyncio.gather(asyncio.shield(self._leaving), return_exceptions=True)
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        try:
            await self._all_stored()
            await self._leave()
        finally:
            self._agent.forget(self)

    async def _leave(self) -> None:
        try:
            if self._opening is not None and hasattr(self, "book") and self.host.is_open:
                await self._end_run()
                await tell_closed(self)
        finally:
            self._end_streams()
            await self._let_go()
            self._opening = None

    async def _let_go(self) -> None:
        try:
            if self.lanes is not None:
                await self.lanes.close()
            if hasattr(self, "host"):
                self.externals.close(keep=self.stays_known)
        finally:
            if hasattr(self, "host"):
                self.host.budgets.let_go(self.owner, self._own_budgets)
                await self.host.leave(self)

    def _end_streams(self) -> None:
        """Nothing more is told here; what a store keeps goes on elsewhere, or later."""
        for streams in [*self._waiting.values(), *self._following.values()]:
            for stream in list(streams):
                stream.push(self._stamped(LEFT if self.is_leaving else CLOSED, stream.run_id or ""))
        for watcher in list(self._watchers):
            watcher.close()

    async def _end_run(self) -> None:
        """End what runs. What a store keeps goes on when the session is opened again; without one it ends here."""
        self.host.unuse(self)
        if self._store is None:
            await self._withdraw_all("the session was closed")
        self.host.dismiss(self)
        self._go_on()
        for run in list(self._at_work):
            await self._see_off(run)
        await self.delegates.close(for_good=self._store is None)
        await self.background_calls.close(for_good=self._store is None)
        self.book.keep_unsaved()
        with contextlib.suppress(LanewayError):  # what a store refuses is found again when the session is opened
            await self.book.committed()

    async def _withdraw_all(self, reason: str) -> None:
        """Nothing that waits here will ever run."""
        inbox, tenant = self.host.inbox, self.owner.tenant
        with contextlib.suppress(LanewayError):
            for each in inbox.pending(self.session_id, tenant=tenant):
                with contextlib.suppress(LanewayError):  # it has begun meanwhile, or has ended
                    await inbox.withdraw(each.id, reason)
            await inbox.cancel(self.session_id, reason, tenant=tenant)

    async def _see_off(self, run: Run) -> None:
        """Give a run its grace; a tool that may not be interrupted and does not end is ended all the same."""
        grace_ms = self.host.inbox.engine.kernel.grace_ms if run is self._run else 0
        try:
            async with asyncio.timeout(grace_ms / 1000):
                await run.ended.wait()
        except TimeoutError:
            run.calls.abort()

    async def __aenter__(self) -> Self:
        return await self.ready()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def workspace(self) -> str:
        """The folder its tools work in."""
        return self._workspace

    # ---- messages ----

    async def send(
        self,
        text: str,
        *,
        mode: Mode | str | None = None,
        sender: Any = None,
        message_id: str | None = None,
        attachments: Iterable[Any] = (),
    ) -> RunResult:
        """Say something and wait for the answer. While the session is busy, its mode (or this one) decides.

        Raises the error of a run that failed, and `RunCancelledError` for one that was ended.
        """
        self._check_inside()
        receipt = await self._submit(text, mode, sender=sender, message_id=message_id, attachments=attachments)
        return await self.wait(receipt.message_id)

    async def run(self, text: str, **more: Any) -> RunResult:
        """The same as `send`."""
        return await self.send(text, **more)

    def stream(
        self,
        text: str,
        *,
        mode: Mode | str | None = None,
        sender: Any = None,
        message_id: str | None = None,
        attachments: Iterable[Any] = (),
    ) -> AgentStream:
        """Say something and watch the run that answers it: `async for event in session.stream("…")`.

        It is sent when you begin to read. Breaking out leaves the run going; `cancel` ends it.
        """

        async def begin(stream: AgentStream) -> None:
            self._check_inside()
            receipt = await self._submit(text, mode, sender=sender, message_id=message_id, attachments=attachments)
            stream.message_id = receipt.message_id
            self._follow(stream, receipt)

        async def finish(stream: AgentStream) -> RunResult:
            assert stream.message_id is not None
            return await self.wait(stream.message_id)

        return AgentStream(begin, finish, self._unfollow)

    def watch(self, receipt: Receipt) -> AgentStream:
        """Watch the run that answers a message which was sent in another way, from its first event on."""

        async def begin(stream: AgentStream) -> None:
            stream.message_id = receipt.message_id
            self._follow(stream, receipt)

        async def finish(stream: AgentStream) -> RunResult:
            return await self.wait(receipt.message_id)

        return AgentStream(begin, finish, self._unfollow)

    async def steer(self, text: str, **more: Any) -> Receipt:
        """Say something to the run that is going on; it hears it at its next boundary."""
        return await self._submit(text, Mode.STEER, **more)

    async def followup(self, text: str, **more: Any) -> Receipt:
        """Say something that gets a run of its own after this one."""
        return await self._submit(text, Mode.FOLLOWUP, **more)

    async def interrupt(self, text: str, **more: Any) -> Receipt:
        """End the run that is going on and run this instead."""
        return await self._submit(text, Mode.INTERRUPT, **more)

    async def _submit(self, text: str, mode: Mode | str | None, **more: Any) -> Receipt:
        async with self.arriving():
            return await self.host.inbox.submit(
                self.session_id, text, mode=mode or self.settings.mode, tenant=self.owner.tenant, **more
            )

    async def wait(self, message_id: str) -> RunResult:
        """Wait until a message has its answer; what `send` would have returned or raised."""
        await self.ready()
        self._check_inside()
        await self._check_own(message_id)
        final = await self.host.inbox.wait(message_id)
        return await self._result(final)

    async def _check_own(self, message_id: str) -> None:
        """Refuse messages of other sessions: ids may be guessed, and tenants share a store."""
        engine = self.host.inbox.engine
        item = engine.kernel.items.get(message_id)
        if item is not None:
            owner: Owner | None = item.owner
        else:
            row = await engine.store.history.message(message_id)
            owner = None if row is None else Owner(row.tenant, row.workspace, row.session)
        if owner != self.owner:
            raise UnknownMessageError(message_id=message_id)

    def _check_inside(self) -> None:
        """Refuse a tool or a hook that would wait for its own session, which waits for it."""
        if self.key in INSIDE.get():
            raise UsageError(
                f"a tool or a hook of session {self.session_id!r} waits for that session, which waits for it",
                hint="send it without waiting (followup), or use another session",
            )

    async def wait_idle(self) -> None:
        """Wait until nothing runs and nothing waits here: no run, no sub-agent, no call in the background."""
        await self.ready()
        engine = self.host.inbox.engine
        while True:
            while engine.is_reloading(self.owner) or engine.journal.has(self.owner):
                await engine.reloaded(self.owner)
                await engine.journal.settled()
            box = engine.kernel.boxes.get(self.owner)
            if box is None or box.is_idle:
                if not self.delegates.at_work():
                    return
                await asyncio.wait(self.delegates.at_work())  # the end of one is a message to this session
                continue
            items = box.turn.items if box.turn is not None else box.waiting_items()
            message = next((item.id for item in items if item.state is not MessageState.HELD), "")
            if message:
                await self.host.inbox.wait(message)
            elif box.turn is None:
                return  # what is left is held
            elif self._run is not None:  # a turn about messages that have ended: what was one too many
                await self._run.ended.wait()
            else:
                await asyncio.sleep(0)

    async def _result(self, final: Final) -> RunResult:
        error = self._ends.get(final.message_id)
        run_id = final.turn_id or ""
        if final.outcome is Outcome.SUCCEEDED:
            await self.book.load()
            rounds = self.book.run(run_id)
            usage = sum((one.usage for one in rounds), Usage())
            return RunResult(
                text=final.answer or "",
                run_id=run_id,
                message_id=final.message_id,
                disposition=final.disposition,
                prompt_tokens=usage.input_tokens,
                completion_tokens=usage.output_tokens,
                cost=usage.cost,
                tool_calls_count=sum(len(one.answer.calls) for one in rounds),
                rounds=len(rounds),
            )
        if error is not None and final.outcome is Outcome.FAILED:
            raise error
        raise _error_of(final)

    # ---- ending and pausing ----

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """End the run that is going on, at once; what waits stays. False: nothing runs."""
        await self.ready()
        return await self.host.inbox.cancel(self.session_id, reason, tenant=self.owner.tenant)

    async def cancel_run(self, run_id: str, reason: str = "cancelled by the caller") -> bool:
        """End this run, if it is the one that is going on."""
        await self.ready()
        return self._run is not None and self._run.id == run_id and await self.cancel(reason)

    # ---- what waits ----

    async def pending(self) -> list[PendingMessage]:
        """The messages that wait here, in order, each with its place and why it waits."""
        await self.ready()
        return self.host.inbox.pending(self.session_id, tenant=self.owner.tenant)

    async def withdraw(self, message_id: str, reason: str = "withdrawn") -> None:
        """Take a waiting message back."""
        await self.ready()
        await self._check_own(message_id)
        await self.host.inbox.withdraw(message_id, reason)

    # ---- runs ----

    async def run_turn(self, turn: Turn) -> str | None:
        """Run one turn: the inbox calls this."""
        self._agent.sources.renew(self)
        AT_WORK.set(self.identity)
        run = Run(self, turn)
        self._run = run
        self._at_work.add(run)
        try:
            try:
                return await run.go()
            finally:
                await self.delegates.run_over(run)
        finally:
            if self._run is run:  # else it was fenced, and another one has its place
                self._run = None
            self._at_work.discard(run)
            run.leave()
            self._retain({each.id for each in self._at_work})
            if not self.skills.is_left(run):  # it was cancelled: nobody waits for hooks then
                left = asyncio.get_running_loop().create_task(self.skills.leave(run), name="laneway-skill-left")
                self._agent.keep(left)

    def begin_run(self, run: Run) -> None:
        """A run has begun: whoever waits for its messages watches it from now on."""
        self._runs[run.id] = run
        self.follow(tuple(message.id for message in run.turn.messages), run)

    def follow(self, messages: Iterable[str], run: Run) -> None:
        """These messages are part of this run."""
        for message in messages:
            self._run_of[message] = (run, run.log.place)
            self.host.followed[message] = self
            for stream in self._waiting.pop(message, ()):
                self._following.setdefault(run.id, []).append(stream)

    def _follow(self, stream: AgentStream, receipt: Receipt) -> None:
        message = receipt.message_id
        if self._closed:  # it was taken, and the session was closed before anybody could be told
            stream.push(self._stamped(CLOSED, ""))
            return
        self.host.followed[message] = self
        known = self._run_of.get(message)
        if known is not None:
            run, since = known
            for event in run.log.since(since):
                stream.push(event)
            self._following.setdefault(run.id, []).append(stream)
            return
        self._waiting.setdefault(message, []).append(stream)
        item = self.host.inbox.engine.kernel.items.get(message)
        if receipt.duplicate or item is None or item.state.is_final:
            self.host.followed.pop(message, None)
            self._watch_final(message)
        elif receipt.position is not None and (self._run is not None or receipt.position > 1):
            event = MessageQueuedEvent(
                message_id=message,
                disposition=receipt.disposition.value,
                position=receipt.position,
                reason=receipt.reason,
            )
            stream.push(self._stamped(event, ""))

    def _watch_final(self, message: str) -> None:
        """A message that was seen before: its end comes from the store."""

        async def watch() -> None:
            with contextlib.suppress(LanewayError):  # the session is closed: its streams hear of that
                self.settled(await self.host.inbox.wait(message))

        task = asyncio.get_running_loop().create_task(watch(), name="laneway-follow")
        self._agent.keep(task)

    def _unfollow(self, stream: EventStream) -> None:
        for table in (self._following, self._waiting):
            for name, streams in list(table.items()):
                if stream in streams:
                    streams.remove(stream)
                if not streams:
                    del table[name]

    def settled(self, final: Final) -> None:
        """A message has its end, on disk: the end of its run is told, once."""
        self.delegates.sweep()
        known = self._run_of.pop(final.message_id, None)
        run = known[0] if known is not None else None
        if run is not None and run.error is not None:
            self._ends[final.message_id] = run.error
            if len(self._ends) > ENDS_MAX:  # nobody has asked for the oldest
                del self._ends[next(iter(self._ends))]
        if run is not None and run.id in self._runs and final.turn_id == run.id:
            self.emit_event(_end_event(run, final), run.id)
            del self._runs[run.id]
            for stream in self._following.pop(run.id, ()):
                stream.close()
        for stream in self._waiting.pop(final.message_id, ()):
            stream.push(self._stamped(_event_of(final), final.turn_id or ""))
            stream.close()

    def current_run(self) -> RunInfo | None:
        """What runs at this moment."""
        return None if self._run is None else self._info(self._run)

    def active_tools(self) -> list[ToolCall]:
        """The calls that run at this moment."""
        return [] if self._run is None else list(self._run.calls.active)

    # ---- events ----

    def emit_event(self, event: AgentEvent, run_id: str = "") -> None:
        """Tell whoever watches."""
        run = self._runs.get(run_id)
        if event.ephemeral and not self._watchers and run_id not in self._following and run is None:
            return
        stamped = self._stamped(event, run_id)
        if not event.ephemeral:
            self._traces.append(stamped)
        if run is not None:
            run.log.add(stamped)
        for stream in list(self._following.get(run_id, ())):
            stream.push(stamped)
        for watcher in list(self._watchers):
            watcher.push(stamped)

    def _queue_event(self, event: AgentEvent) -> None:
        """Something has happened in a lane: it is told in the run that goes on, if one does."""
        self.emit_event(event, self._run.id if self._run is not None else "")

    def _stamped(self, event: AgentEvent, run_id: str) -> AgentEvent:
        self._seq += 1
        at_ms, identity = self._env.clock.wall_ms(), self.identity
        return replace(event, session_id=self.session_id, run_id=run_id, seq=self._seq, at_ms=at_ms, identity=identity)

    def subscribe(self) -> EventStream:
        """Every event of this session from now on, whatever the run."""
        if self._closed:
            raise ClosedError(opened=True, what="session")
        stream = EventStream(self._watchers.remove, ends_with_run=False)
        self._watchers.append(stream)
        return stream

    # ---- what the loop asks ----

    def resume_wanted(self, turn: Turn) -> str:
        """The run that a message asks to go on with."""
        return str(_errand(turn, RESUME) or "")

    def is_fork(self, turn: Turn) -> bool:
        """Whether a turn is the one by which a fork goes on."""
        return _errand(turn, SAID) is not None

    def said_wanted(self, turn: Turn) -> list[Prompt]:
        """What a fork was told, and has not answered yet."""
        return [to_prompt(each) for each in _errand(turn, SAID) or ()]

    def compact_wanted(self, turn: Turn) -> bool:
        """Whether a turn is there to compact, and for nothing else."""
        return bool(_errand(turn, COMPACT))

    async def resume_run(self, run_id: str) -> RunResult:
        """Go on with a run that was cut off, in a run of its own; the old one stays as it is.

        Raises `UsageError` without a `session_store`, and `UnknownRunError` when the store has no checkpoint of it.
        """
        if self._store is None:
            raise UsageError(
                "resume_run requires a session_store",
                hint="give the session one: session_store=FileSessionStore('sessions')",
            )
        self._check_inside()
        await self.ready()
        await self.book.load()
        rounds = self.book.run(self.book.newest(run_id))
        if not rounds:
            raise UnknownRunError(
                f"no loop checkpoint found for run {run_id!r}",
                hint="it never came to its first checkpoint, or it belongs to another session",
            )
        if rounds[-1].state is RoundState.FINAL:
            raise UnknownRunError(
                f"no loop checkpoint found for run {run_id!r}",
                hint=f"it has come to its answer, in run {rounds[-1].run_id}; there is nothing left to do",
            )
        if self._run is not None and self._run.id == run_id:
            raise UsageError(f"run {run_id!r} is going on", hint="wait for it")
        receipt = await self.host.inbox.submit(
            self.session_id,
            f"Resume run {run_id}",
            kind="system",
            tenant=self.owner.tenant,
            attachments=[{RESUME: run_id}],
        )
        return await self.wait(receipt.message_id)

    async def compact(self) -> bool:
        """Replace the older part of the conversation by a summary, when it is its turn. False: there is nothing old."""
        self._check_inside()
        await self.ready()
        before = self.book.compaction
        await self.wait(await self.submit_compaction())
        return self.book.compaction is not before

    async def submit_compaction(self) -> str:
        """Ask for a compaction, when it is its turn; the id of the message."""
        receipt = await self.host.inbox.submit(
            self.session_id, "Compact", kind="system", tenant=self.owner.tenant, attachments=[{COMPACT: True}]
        )
        return receipt.message_id

    async def save(self) -> None:
        """Wait until everything is on disk. There is nothing else to do: every change is stored as it happens."""
        await self.ready()
        self.book.keep_unsaved()
        await self.book.committed()

    async def history(self, conversation: int | None = None) -> list[Utterance]:
        """What was said in this conversation: prompts, answers and results, as a model would hear it."""
        async with self._past() as past:
            await past.book.load()
            wanted = await self._conversation(past) if conversation is None else conversation
            return past.book.utterances(wanted)


def _errand(turn: Turn, name: str) -> Any:
    """What Laneway itself has sent a turn for; what a user sends never counts."""
    for message in turn.messages:
        for each in message.attachments if message.kind is MessageKind.SYSTEM else ():
            if isinstance(each, dict) and name in each:
                return each[name]
    return None


def _error_of(final: Final) -> LanewayError:
    """The error of a message that got no answer."""
    ran = final.disposition in (MessageState.RAN, MessageState.MERGED, MessageState.STEERED)
    what = "the run was ended" if ran else f"message {final.message_id} was {final.disposition}"
    facts: dict[str, Any] = {"run_id": final.turn_id or "", "reason": final.reason}
    if final.outcome is Outcome.INTERRUPTED or final.disposition is not MessageState.RAN:
        return RunCancelledError(f"{what}: {final.reason}", **facts)
    return RunFailedError(f"the run failed: {final.reason}", **facts)


def _event_of(final: Final) -> EndEvent | ErrorEvent:
    if final.outcome is Outcome.SUCCEEDED:
        return EndEvent(text=final.answer or "")
    error = _error_of(final)
    return ErrorEvent(error=str(error), error_kind=error.code)


def _end_event(run: Run, final: Final) -> EndEvent | ErrorEvent:
    """What the run says of its end, if the inbox agrees."""
    told = run.end_event()
    if (final.outcome is Outcome.SUCCEEDED) == isinstance(told, EndEvent):
        return told
    return _event_of(final)
