"""Session: one conversation with an agent, for code without an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from laneway.agent import AgentStream, AsyncSession, RunResult
from laneway.agent_events import AgentEvent
from laneway.errors import ClosedError
from laneway.sync.streams import Stream
from laneway.sync.twins import Twin, awaited, on_loop

if TYPE_CHECKING:
    from laneway.kernel.histories import RunHistory
    from laneway.mail import Mode, Receipt
    from laneway.options import SessionOptions
    from laneway.sync.background import Portal
    from laneway.sync.handover import Handover

__all__ = ("RunStream", "Session")


class RunStream(Stream[AgentEvent]):
    """The events of the run that a message ends in: `for event in session.stream("…")`, or `async for`.

    It ends after `end` or `error`. Leaving it early leaves the run going.
    """

    def __init__(self, portal: Portal, handover: Handover[AgentEvent], twin: AgentStream) -> None:
        super().__init__(portal, handover)
        self._twin = twin

    @property
    def message_id(self) -> str:
        """The message that was sent."""
        assert self._twin.message_id is not None  # there is no stream before it was sent
        return self._twin.message_id

    @property
    def run_id(self) -> str | None:
        """The run that answers it; None until it has begun."""
        return self._twin.run_id

    def result(self) -> RunResult:
        """Wait for the end of the run; what `send` would have returned or raised. Read events before or after."""
        return self._portal.wait("RunStream.result()", self._twin.result)


class Session(Twin[AsyncSession]):
    """One conversation with an agent. Make it with `Agent.session`.

    Any number of threads may call any method. A call that is interrupted (KeyboardInterrupt) stops waiting, and what
    it has asked for goes on: `wait(message_id)` or `wait_idle()` wait for it again, `cancel()` ends it.
    """

    def __repr__(self) -> str:
        return f"<Session {self.session_id!r} in {self.workspace!r}>"

    @property
    def session_id(self) -> str:
        """What it is called in its store."""
        return self._twin.session_id

    @property
    def workspace(self) -> str:
        """The folder its tools work in."""
        return self._twin.workspace

    @property
    def options(self) -> SessionOptions:
        """What it was made with, over what its agent says."""
        return self._twin.options

    @property
    def is_paused(self) -> bool:
        """Whether `pause` holds."""
        return self._twin.is_paused

    # ---- messages ----

    send = awaited(AsyncSession.send)
    run = send
    wait = awaited(AsyncSession.wait)
    wait_idle = awaited(AsyncSession.wait_idle)

    def stream(
        self,
        text: str,
        *,
        mode: Mode | str | None = None,
        sender: Any = None,
        message_id: str | None = None,
        attachments: Iterable[Any] = (),
    ) -> RunStream:
        """Say something and watch the run that answers it: `for event in session.stream("…")`.

        It is sent before this returns. Breaking out leaves the run going; `cancel` ends it.
        """

        made: list[RunStream] = []

        async def send() -> None:
            twin = self._twin.stream(text, mode=mode, sender=sender, message_id=message_id, attachments=attachments)
            await twin.start()
            made.append(RunStream(self._portal, self._portal.follow(twin, twin.close), twin))

        self._portal.wait("Session.stream()", send)  # interrupted, it leaves a stream that is forgotten in due course
        return made.pop()

    def subscribe(self) -> Stream[AgentEvent]:
        """Every event of this session from now on, whatever the run. It ends when the session is closed."""

        def follow() -> Handover[AgentEvent]:
            events = self._twin.subscribe()
            return self._portal.follow(events, events.close)

        return Stream(self._portal, self._portal.call("Session.subscribe()", follow))

    def steer(self, text: str, **more: Any) -> Receipt:
        """Say something to the run that is going on; it hears it at its next boundary."""
        return self._portal.wait("Session.steer()", self._twin.steer, text, **more)

    def followup(self, text: str, **more: Any) -> Receipt:
        """Say something that gets a run of its own after this one."""
        return self._portal.wait("Session.followup()", self._twin.followup, text, **more)

    def interrupt(self, text: str, **more: Any) -> Receipt:
        """End the run that is going on and run this instead."""
        return self._portal.wait("Session.interrupt()", self._twin.interrupt, text, **more)

    # ---- ending and pausing ----

    cancel = awaited(AsyncSession.cancel)
    cancel_run = awaited(AsyncSession.cancel_run)
    pause = on_loop(AsyncSession.pause)
    resume = on_loop(AsyncSession.resume)

    def close(self) -> None:
        """End what runs here, leave the rest in the store, and let go of everything. A second time changes nothing."""
        try:
            self._portal.wait("Session.close()", self._twin.close)
        except ClosedError:
            if not self._portal.is_closed:
                raise  # else the agent was closed, and this session with it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- runs ----

    history = awaited(AsyncSession.history)
    runs = awaited(AsyncSession.runs)
    run_snapshot = awaited(AsyncSession.run_snapshot)
    run_events = awaited(AsyncSession.run_events)
    explain_run = awaited(AsyncSession.explain_run)
    resume_run = awaited(AsyncSession.resume_run)
    run_history = awaited(AsyncSession.run_history)
    replay = awaited(AsyncSession.replay)
    current_run = on_loop(AsyncSession.current_run)
    active_tools = on_loop(AsyncSession.active_tools)
    explain = on_loop(AsyncSession.explain)
    compact = awaited(AsyncSession.compact)
    save = awaited(AsyncSession.save)
    ledger = awaited(AsyncSession.ledger)
    settle = awaited(AsyncSession.settle)

    def fork(
        self,
        run: str | RunHistory,
        step: int | None = None,
        *,
        prompt: str = "",
        session_id: str | None = None,
        **overrides: Any,
    ) -> Session:
        """A new session that goes on live from a step of a run: what came before is as it was, and is not done again.

        Without `step` it goes on after the last one, which needs a `prompt`. The run stays as it is.
        """
        more = {"prompt": prompt, "session_id": session_id, **overrides}
        return Session(self._portal, self._portal.wait("Session.fork()", self._twin.fork, run, step, **more))

    # ---- what waits ----

    pending = awaited(AsyncSession.pending)
    withdraw = awaited(AsyncSession.withdraw)

    # ---- approvals ----

    approvals = awaited(AsyncSession.approvals)
    approve = awaited(AsyncSession.approve)
    deny = awaited(AsyncSession.deny)
    pending_confirmations = awaited(AsyncSession.pending_confirmations)
    confirm_tool_use = awaited(AsyncSession.confirm_tool_use)
    cancel_confirmations = awaited(AsyncSession.cancel_confirmations)
    command = awaited(AsyncSession.command)

    # ---- hooks and handlers ----

    register_hook = on_loop(AsyncSession.register_hook)
    unregister_hook = on_loop(AsyncSession.unregister_hook)
    hook_count = on_loop(AsyncSession.hook_count)
    tenant_id = on_loop(AsyncSession.tenant_id)
    principal = on_loop(AsyncSession.principal)
    agent_template_id = on_loop(AsyncSession.agent_template_id)
    correlation_id = on_loop(AsyncSession.correlation_id)
    trace_events = on_loop(AsyncSession.trace_events)
    emit = awaited(AsyncSession.emit)
    passivate = awaited(AsyncSession.passivate)
    invoke_peer = awaited(AsyncSession.invoke_peer)
    peer_answer = awaited(AsyncSession.peer_answer)
    set_budget_guard = on_loop(AsyncSession.set_budget_guard)
    skills_available = on_loop(AsyncSession.skills_available)
    skill_problems = on_loop(AsyncSession.skill_problems)
    use_skill = on_loop(AsyncSession.use_skill)
    set_lane_handler = awaited(AsyncSession.set_lane_handler)
    desk = awaited(AsyncSession.desk)
    pending_external_tasks = awaited(AsyncSession.pending_external_tasks)
    complete_external_task = awaited(AsyncSession.complete_external_task)

    # ---- sub-agents ----

    task = awaited(AsyncSession.task)
    parallel_task = awaited(AsyncSession.parallel_task)
    spawn = awaited(AsyncSession.spawn)
    cancel_subagent = awaited(AsyncSession.cancel_subagent)
    subagents = on_loop(AsyncSession.subagents)
    background = on_loop(AsyncSession.background)
    budgets = awaited(AsyncSession.budgets)
    cancel_background = awaited(AsyncSession.cancel_background)

    def children(self) -> list[Session]:
        """The sessions of the sub-agents that are at work for this one."""
        found = self._portal.call("Session.children()", self._twin.children)
        return [Session(self._portal, each) for each in found]

    # ---- the queue ----

    has_queue = on_loop(AsyncSession.has_queue)
    queue_stats = on_loop(AsyncSession.queue_stats)
    queue_metrics = on_loop(AsyncSession.queue_metrics)
    dead_letters = on_loop(AsyncSession.dead_letters)
    retry_dead_letter = awaited(AsyncSession.retry_dead_letter)
    submit = awaited(AsyncSession.submit)
    submit_batch = awaited(AsyncSession.submit_batch)

    # ---- tools, called by the host itself ----

    tool = awaited(AsyncSession.tool)
    read_file = awaited(AsyncSession.read_file)
    write_file = awaited(AsyncSession.write_file)
    edit_file = awaited(AsyncSession.edit_file)
    patch_file = awaited(AsyncSession.patch_file)
    ls = awaited(AsyncSession.ls)
    glob = awaited(AsyncSession.glob)
    grep = awaited(AsyncSession.grep)
    bash = awaited(AsyncSession.bash)
