"""Calls in the background: a call that takes long goes on while the model does, and its end comes as a message.

To the engine such a call is a child of its session, as a spawned sub-agent is: a row from the moment it is moved, in
one commit with the answer that the model gets for it, and exactly one message when it ends. It keeps its slot in its
lane, or its external task. After a restart a task that is out is waited for again. A call of this process has ended
with it: it is not made again, and what is known of it is told.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.call_results import answer_of, change_of, task_result, value_of
from laneway.agent.gates import Asked
from laneway.agent_events import BackgroundEndEvent
from laneway.dialogue import Intent, ResultStatus, ToolOutput, ToolResult, ToolSpec
from laneway.errors import LanewayError, describe
from laneway.external import TaskState
from laneway.kernel.ledger import LEDGER_TRANSITIONS, Change, LedgerState
from laneway.kernel.mailbox import ChildEntry
from laneway.kernel.texts import NOTE_MAX
from laneway.records import DURATION_MAX_MS, Effect, Fields
from laneway.runtime.errands import FOLLOWUPS_MAX
from laneway.runtime.turns import Child
from laneway.tools.outputs import cap_output

if TYPE_CHECKING:
    from laneway.agent.loop import Run
    from laneway.agent.session import AsyncSession
    from laneway.kernel.task_entries import TaskEnd
    from laneway.options import LaneHandlerConfig
    from laneway.runtime.handles import Job

# Calls in the background are part of the session and of the engine that they belong to.
# ruff: noqa: SLF001

__all__ = ("Background", "BackgroundCall", "Moved")

_log = logging.getLogger("laneway")

PREFIX: Final = "bg-"
SHORT: Final = 16
CALLS_MAX: Final = 100
"""How many calls of one session may be in the background; the run waits for the next one."""
SHOWN_MAX: Final = NOTE_MAX - 500
MOVED: Final = (
    "[Goes on in the background as {id}: it has taken {after_ms} ms so far and still runs. Its result will come as a "
    "message; do not call it again for that.]"
)
STATES: Final = {
    ResultStatus.OK: "succeeded",
    ResultStatus.TIMED_OUT: "timed_out",
    ResultStatus.CANCELLED: "cancelled",
    ResultStatus.UNKNOWN: "unknown",
}
"""How an end is called; every other one failed."""
LOST: Final = "[Unknown: {reason}. It had begun and may have had its effect. Look before you do it again.]"
LOST_READ: Final = "[Interrupted: {reason}. It only reads: call it again if you still need it.]"
SILENT: Final = "[{what}: it went on in the background, and it is known to have {how}; what it said was lost.]"
RESTART: Final = "the process ended while it ran in the background"
CLOSED: Final = "the session was closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A call that was moved, and all that another process needs to tell its end."""

    call_id: str
    tool: str
    key: str
    number: int  # of its round
    lane: str
    effect: str
    since_ms: int  # wall clock: when it was moved
    after_ms: int
    task_id: str = ""  # if somebody else makes it

    @property
    def id(self) -> str:
        """What it is known by."""
        return f"{PREFIX}{self.key.removeprefix('lw-')[:SHORT]}"

    @property
    def has_effect(self) -> bool:
        """Whether it may have changed anything."""
        return self.effect != Effect.READ

    def result(self, output: str, status: ResultStatus) -> ToolResult:
        """What became of it."""
        return ToolResult(call_id=self.call_id, name=self.tool, output=output, status=status)

    def silent(self, *, worked: bool) -> ToolResult:
        """It is known how it ended, and nothing else."""
        what, how = ("Done", "worked") if worked else ("Failed", "failed")
        return self.result(SILENT.format(what=what, how=how), ResultStatus.OK if worked else ResultStatus.ERROR)

    def lost(self, reason: str) -> ToolResult:
        """It was cut off, and what it had done by then is not known."""
        if self.has_effect:
            return self.result(LOST.format(reason=reason), ResultStatus.UNKNOWN)
        return self.result(LOST_READ.format(reason=reason), ResultStatus.CANCELLED)


class BackgroundCall(Child):
    """One call in the background. Whoever has its job says with `ended` how that ended."""

    is_call = True

    def __init__(self, session: AsyncSession, moved: Moved, run_id: str, asked: Asked | None) -> None:
        engine = session.host.inbox.engine
        super().__init__(engine, moved.id, moved.tool, session.owner)
        self.moved = moved
        self.run_id = run_id
        self.asked = asked
        self.is_unwanted = False  # nobody is to be told of its end: whoever ended it knows
        self.is_left = False  # it is left to whoever opens the session next
        self.is_closing = False  # its session is being closed: nothing may stay behind
        self.over: asyncio.Future[None] = engine.loop.create_future()
        self.gone: asyncio.Future[None] = engine.loop.create_future()  # its job works no more; perhaps long after
        self.stop: Callable[[str], None] = lambda reason: None  # ends its job
        self._session = session
        self._mail = engine
        self._asked: asyncio.Future[str] = engine.loop.create_future()  # to end, and why
        self._ended: asyncio.Future[None] = engine.loop.create_future()
        self._result: ToolResult | None = None
        self._change: Change | None = None
        self._began_at = engine.now()

    def __repr__(self) -> str:
        return f"<BackgroundCall {self.id} of {self.label}>"

    @property
    def is_awaited(self) -> bool:
        """Whether nobody is to be told of its end."""
        return self.is_unwanted

    @property
    def is_ending(self) -> bool:
        """Whether somebody has asked it to end."""
        return self._asked.done()

    @property
    def is_overdue(self) -> bool:
        """Whether it has had its grace and has to end now, whatever its tool says of itself."""
        return self.is_closing and self._ended.done()

    @property
    def running_ms(self) -> int:
        """How long it has been in the background."""
        return max(0, self._mail.wall() - self.moved.since_ms)

    def report(self) -> Fields:
        """What is known about it."""
        moved = self.moved
        return Fields(
            background_id=self.id,
            tool_id=moved.call_id,
            tool_name=moved.tool,
            run_id=self.run_id,
            lane=moved.lane,
            since_ms=moved.since_ms,
            running_ms=self.running_ms,
            after_ms=moved.after_ms,
            task_id=moved.task_id,
        )

    def explain(self) -> str:
        """Where it is."""
        moved = self.moved
        where = self._session.externals.where(moved.task_id) if moved.task_id else ""
        said = f"{moved.tool} ({moved.call_id}) has been in the background for {self.running_ms} ms, as {self.id}."
        return f"{said} {where[:1].upper()}{where[1:]}".rstrip()

    def answer(self) -> ToolResult:
        """What the model is told instead of a result."""
        moved = self.moved
        return moved.result(MOVED.format(id=self.id, after_ms=f"{moved.after_ms:,}"), ResultStatus.BACKGROUND)

    # ---- its end ----

    def ended(self, result: ToolResult | None, change: Change | None) -> None:
        """Its job has ended; None: it goes on elsewhere, or when the session is opened again."""
        self._settle(result, change)
        if not self.gone.done():
            self.gone.set_result(None)

    def _settle(self, result: ToolResult | None, change: Change | None) -> None:
        if not self._ended.done():
            self._result, self._change = result, change
            self._ended.set_result(None)

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """End it for real. False: it has ended, or is being ended."""
        if self._asked.done() or self._ended.done():
            return False
        self._asked.set_result(reason or "cancelled")
        return True

    def end_quietly(self, reason: str) -> None:
        """End it, and tell nobody: whoever ends it knows."""
        self.is_unwanted = True
        self._mail.note_awaited(self)
        self.cancel(reason)

    def leave(self) -> None:
        """The session is closed: a task that is out stays out; a call of this process is ended."""
        if not self._ended.done():
            self.is_left = True
            if not self._asked.done():
                self._asked.set_result(CLOSED)

    async def work(self) -> None:
        """Wait for its end, or for somebody who ends it."""
        try:
            await asyncio.wait((self._ended, self._asked), return_when=asyncio.FIRST_COMPLETED)
            if not self._ended.done():
                self.stop(self._asked.result())
                await asyncio.wait((self._ended,), timeout=self._mail.kernel.grace_ms / 1000)
            if not self._ended.done():
                lost = self.moved.lost(f"{self._asked.result()}, and it did not end")
                self._settle(lost, Change.LOSE if self.moved.has_effect else None)  # what it says later is too late
                if self.is_closing:
                    self.stop(self._asked.result())
            if self._is_cut:
                self._detached = True
            elif self._result is not None:
                await self._tell_hooks(self._result)
                self._result = await self._shown(self._result)
        except asyncio.CancelledError:  # the loop is being closed: nothing can be waited for
            self._detached = True
            raise

    @property
    def _is_cut(self) -> bool:
        """Whether it was cut off because the session is closed: what it comes to is told when it is opened again."""
        cut = self._result is None or self._result.status in (ResultStatus.CANCELLED, ResultStatus.UNKNOWN)
        return self.is_left and cut

    async def _tell_hooks(self, result: ToolResult) -> None:
        session = self._session
        if self.asked is not None and session.hooks.wants("post_tool_use"):
            await session.gates.tell_end(self.asked, result, self.took_ms)

    async def _shown(self, result: ToolResult) -> ToolResult:
        """What fits into a message; the whole of a long text is an artifact."""
        if len(result.output) <= SHOWN_MAX:
            return result
        context = replace(self._session.tool_context, output_max=SHOWN_MAX)
        output = await cap_output(ToolOutput(text=result.output), context)
        return replace(result, output=output.text, artifact=result.artifact or output.artifact)

    @property
    def took_ms(self) -> int:
        """How long the call has taken."""
        return self.moved.after_ms + self.running_ms

    def end_of(self, job: Job[Any]) -> tuple[str, str]:
        """How it ended, and what it says; its ledger entry ends in the same commit."""
        if self._detached:
            return "running", ""
        result = self._result
        if result is None:  # its job has ended without it
            state, text = super().end_of(job)
            self._result = result = self.moved.lost(text or f"it {state}")
            self._change = Change.LOSE
        book = self._session.book
        entry = book.entries.get(self.moved.key)
        change = self._change
        if entry is not None and change is not None and (entry.state, change) in LEDGER_TRANSITIONS:
            book.end_entry(entry, change, "" if change is Change.SUCCEED else result.output)
        if self._is_quiet():
            book.amend(self.run_id, self.moved.number, result)
        elif result.artifact is not None:
            book.note_artifact(self.run_id, self.moved.number, result.artifact)
        return state_of(result), result.output

    def left(self) -> None:
        """It has ended, and the engine has heard of it."""
        self._session.background_calls.over(self)

    def _is_quiet(self) -> bool:
        box = self._mail.kernel.boxes.get(self.owner)
        entry = box.children.get(self.id) if box is not None else None
        return self.is_unwanted or (entry is not None and entry.silenced)

    def end_event(self) -> BackgroundEndEvent | None:
        """How it ended, for whoever watches."""
        result = self._result
        if result is None:
            return None
        return BackgroundEndEvent(
            background_id=self.id,
            tool_id=result.call_id,
            tool_name=result.name,
            tool_output=result.output,
            status=result.status,
            exit_code=result.exit_code,
            artifact=result.artifact,
            duration_ms=self.took_ms,
        )


class Background:
    """The calls of one session that are in the background."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._live: dict[str, BackgroundCall] = {}
        self._outliving: set[BackgroundCall] = set()  # were given up, and may not be interrupted: they still work
        self._looking: asyncio.Task[None] | None = None

    # ---- moving ----

    def after_ms(self, asked: Asked, handler: LaneHandlerConfig) -> int | None:
        """After how long a call is moved to the background; None: never."""
        session, spec = self._session, asked.tool.spec
        allowed = spec.background or spec.name in session.settings.background_tools
        if not allowed or spec.waits:
            return None
        own = handler.background_after_ms
        return session.settings.background_after_ms if own is None else own

    def has_room(self, run: Run) -> bool:
        """Whether a call of a run may be moved.

        Not in a plan, whose step is done when its calls are. Not without end: a run that only the end of another call
        has begun moves one, and not more than so many such runs follow each other.
        """
        if len(self._live) >= CALLS_MAX or run.planner.course is not None:
            return False
        depth = run.turn.depth
        return depth == 0 or (depth < FOLLOWUPS_MAX and run.calls.moved == 0)

    def move(self, run: Run, asked: Asked, number: int, after_ms: int, task_id: str) -> BackgroundCall:
        """A call of round `number` goes on in the background; raises when that cannot be written down now."""
        session = self._session
        engine = session.host.inbox.engine
        engine.check_session(session.owner)
        moved = Moved(
            call_id=asked.call_id,
            tool=asked.name,
            key=asked.key,
            number=number,
            lane=asked.lane,
            effect=asked.tool.spec.effect.value,
            since_ms=engine.wall(),
            after_ms=after_ms,
            task_id=task_id,
        )
        call = BackgroundCall(session, moved, run.id, asked)
        turn = run.turn._entry
        call.route, call.sender = turn.route, turn.sender
        entry = ChildEntry(session.owner, call.id, seq=engine.store.next_seq(), turn_id=run.id, label=call.label)
        entry.route, entry.sender, entry.depth = turn.route, turn.sender, turn.depth
        entry.detail = asdict(moved)
        engine.kernel.enter_child(entry, wall=engine.wall())
        self._launch(call)
        return call

    def _launch(self, call: BackgroundCall) -> None:
        """Begin, in a context of nobody's: it is no part of the job that wanted it."""
        engine = call._mail
        self._live[call.id] = call
        try:
            engine._context.copy().run(functools.partial(engine.start_child, call, call.work, at_once=True))
        except BaseException:
            del self._live[call.id]
            raise

    def over(self, call: BackgroundCall) -> None:
        """A call has ended, and the engine has heard of it."""
        self._live.pop(call.id, None)
        if not call.gone.done():
            self._outliving.add(call)
            call.gone.add_done_callback(lambda _: self._outliving.discard(call))
        event = None if call._detached else call.end_event()
        engine = call._mail
        if event is not None:
            tell = functools.partial(self._session.emit_event, event, call.run_id)
            if engine.is_open and engine.journal.has(call.owner):
                engine.journal.after(call.owner, lambda _: tell())
            else:
                tell()
        call.over.set_result(None)

    # ---- ending ----

    async def cancel(self, background_id: str, reason: str) -> bool:
        """End one of them; its end is told as any other. False: it is not at work."""
        call = self._live.get(background_id)
        if call is None or not call.cancel(reason):
            return False
        await asyncio.wait([call.over])
        return True

    async def run_over(self, run: Run) -> None:
        """A run has ended: if somebody has ended it, its calls end with it. Its round says how, and no message does."""
        reason = run.turn._entry.cancelled
        line = self._session.host.inbox.engine.kernel.started_in(run.turn._entry)
        mine = [call for call in self._live.values() if call.run_id == run.id or call.id in line]
        if reason and mine and not run.goes_on_later:
            for call in mine:
                call.end_quietly(reason)
            await asyncio.wait([call.over for call in mine])

    async def close(self, *, for_good: bool) -> None:
        """The session is closed: what a store keeps is told when it is opened again, else it ends here."""
        live, outliving = list(self._live.values()), list(self._outliving)
        for call in outliving:
            call.is_closing = True
            call.stop(CLOSED)
        for call in live:
            call.is_closing = True
            if for_good:
                call.end_quietly(CLOSED)
            else:
                call.leave()
        if live:
            await asyncio.wait([call.over for call in live])
        if outliving:
            grace_ms = self._session.host.inbox.engine.kernel.grace_ms
            await asyncio.wait([call.gone for call in outliving], timeout=grace_ms / 1000)

    # ---- after a restart ----

    async def open(self) -> None:
        """Go on with what an earlier process has left: tasks that are out; of other calls the end is told."""
        session = self._session
        await session.host.inbox.engine.reloaded(session.owner)  # until then nobody knows of them
        left = self._left()
        if not left:
            return
        await session.book.load()
        for entry in left:
            moved = Moved(**entry.detail)
            task = await session.externals.find(moved.task_id) if moved.task_id else None
            if task is None or entry.awaited:
                await self._end_left(entry, moved)
            else:
                # If nobody took it, it may have been made here, by the process that is gone.
                doubtful = task.state is TaskState.TIMED_OUT and not task.had_started
                self._attach(entry, moved, json.loads(task.payload), may_have_run=True if doubtful else None)

    def look_again(self) -> None:
        """The store has lost the end of what was told here: what it still takes for live is ended once more."""
        if self._left() and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._open_again(), name="laneway-background")
            self._session._agent.keep(self._looking)

    async def _open_again(self) -> None:
        try:
            await self.open()
        except LanewayError as error:  # the next time that it is opened tells it
            _log.warning("calls of %r in the background could not be ended: %s", self._session.session_id, error)

    def goes_on(self, key: str) -> bool:
        """Whether a call is in the background here, and nobody has asked it to end."""
        return any(call.moved.key == key and not call.is_ending for call in self._live.values())

    def keys(self) -> set[str]:
        """The keys of the calls that are in the background, here or since before a restart."""
        box = self._session.host.inbox.engine.kernel.boxes.get(self._session.owner)
        children = box.children.values() if box is not None else ()
        return {child.detail["key"] for child in children if child.live and child.is_call}

    def _left(self) -> list[ChildEntry]:
        engine = self._session.host.inbox.engine
        box = engine.kernel.boxes.get(self._session.owner)
        children = box.children.values() if box is not None else ()
        return [child for child in children if child.live and child.is_call and not engine.has_child(child.id)]

    async def _end_left(self, entry: ChildEntry, moved: Moved) -> None:
        """Nobody makes this call any more: what is known of it is told, unless somebody had ended it."""
        session = self._session
        reason = "it was ended" if entry.awaited else RESTART
        if entry.awaited and moved.task_id and session.externals.is_out(moved.task_id):
            session.externals.desk.withdraw(moved.task_id, reason)
        output = None if entry.awaited else await self._reconciled(moved, entry.turn_id)
        known = session.book.entries.get(moved.key)
        result, change = moved.lost(reason), Change.LOSE
        if output is not None:
            status = ResultStatus.ERROR if output.is_error else ResultStatus.OK
            result, change = moved.result(output.text, status), Change.FAIL if output.is_error else Change.SUCCEED
        elif known is not None and known.state in (LedgerState.DONE, LedgerState.FAILED):
            result = moved.silent(worked=known.state is LedgerState.DONE)
        if known is not None and (known.state, change) in LEDGER_TRANSITIONS:
            session.book.end_entry(known, change, result.output)
        if entry.awaited:
            session.book.amend(entry.turn_id, moved.number, result)
        state = "interrupted" if result.status is ResultStatus.CANCELLED else state_of(result)
        if entry in self._left():  # else somebody has told it meanwhile, or it was loaded anew
            session.host.inbox.engine.close_call(entry, state, result.output)

    async def _reconciled(self, moved: Moved, run_id: str) -> ToolOutput | None:
        """What the tool itself knows of it."""
        session = self._session
        tool = session.toolbox.get(moved.tool)
        known = session.book.entries.get(moved.key)
        if tool is None or not tool.can_reconcile or known is None or known.state is not LedgerState.INTENDED:
            return None
        context = replace(session.tool_context, run_id=run_id, call_id=moved.call_id, key=moved.key)
        try:
            arguments = tool.check(known.arguments or "{}")
            intent = Intent(run_id=run_id, call_id=moved.call_id, tool=moved.tool, arguments=arguments, key=moved.key)
            output = await tool.reconcile(intent, context)
            return None if output is None else await cap_output(output, replace(context, output_max=SHOWN_MAX))
        except Exception as error:  # noqa: BLE001 - a tool that cannot say is one that does not know
            _log.warning("tool %s could not say what became of %s: %s", moved.tool, moved.call_id, describe(error))
            return None

    def _attach(self, entry: ChildEntry, moved: Moved, arguments: dict[str, Any], *, may_have_run: bool | None) -> None:
        """Wait again for a task that is out; it has its slot again as soon as there is one."""
        session = self._session
        tool = session.toolbox.get(moved.tool)
        asked = None
        if tool is not None:
            asked = Asked(moved.call_id, tool, arguments, json.dumps(arguments), moved.lane, None, moved.key)
        call = BackgroundCall(session, moved, entry.turn_id, asked)
        call._stored = True
        ends: list[TaskEnd] = []
        wait = functools.partial(self._wait_for_task, call, ends)
        spec = ToolSpec(name=moved.tool, effect=Effect.WRITE, timeout_ms=DURATION_MAX_MS)  # never waited for twice
        job: Job[ToolOutput] | asyncio.Task[ToolOutput]
        if session.lanes is not None:
            payload = {"tool": moved.tool, "arguments": arguments, "call_id": moved.call_id}
            job = session.lanes.submit_tool(spec, wait, lane=moved.lane, payload=payload, label=moved.tool)
        else:
            job = asyncio.get_running_loop().create_task(_once(wait), name=f"laneway-tool {moved.tool}")
        call.stop = lambda reason: None if job.done() else _cancel(job, reason)
        self._launch(call)
        job.add_done_callback(lambda _: self._task_over(call, job, ends, may_have_run))

    async def _wait_for_task(self, call: BackgroundCall, ends: list[TaskEnd], attempt: int) -> ToolOutput:
        externals, task_id = self._session.externals, call.moved.task_id
        externals.desk.publish(task_id)
        try:
            end = await externals.desk.outcome(task_id)
        except asyncio.CancelledError:
            if not call.is_left:
                ends.append(externals.desk.withdraw(task_id, "it was ended"))
            raise
        ends.append(end)
        try:
            return await externals.output_of(end, replace(self._session.tool_context, attempt=attempt))
        except asyncio.CancelledError:
            if call.is_left:
                ends.clear()  # its end is on disk, and is found there
            raise

    def _task_over(
        self,
        call: BackgroundCall,
        job: Job[ToolOutput] | asyncio.Task[ToolOutput],
        ends: list[TaskEnd],
        may_have_run: bool | None,  # noqa: FBT001 - None: the task knows
    ) -> None:
        moved = call.moved
        if call.is_left and not ends:
            call.ended(None, None)
            return
        if not ends:  # it was ended while it waited for its slot, or the desk has closed
            externals = self._session.externals
            if externals.is_out(moved.task_id):
                ends.append(externals.desk.withdraw(moved.task_id, "it was ended"))
        if not ends:
            call.ended(moved.lost("its task is gone"), Change.LOSE)
            return
        end = ends[0]
        if end.state is TaskState.WITHDRAWN and end.had_started and moved.has_effect:
            call.ended(moved.lost(end.reason), Change.LOSE)
            return
        facts: dict[str, Any] = {"may_have_run": may_have_run}
        result = task_result(moved.call_id, moved.tool, end, has_effect=moved.has_effect, **facts)
        if result is None:
            try:
                result = answer_of(moved.call_id, moved.tool, value_of(job))
            except BaseException as error:  # noqa: BLE001 - what it said cannot be shown
                _log.info("what call %s of %s said was lost: %s", moved.call_id, moved.tool, describe(error))
                result = moved.silent(worked=end.state is TaskState.COMPLETED)
        call.ended(result, change_of(result, end, **facts))

    # ---- questions ----

    def in_hand(self) -> list[asyncio.Future[None]]:
        """The ends of those that are made here, in this process."""
        return [call.over for call in self._live.values() if not call.over.done() and not call.moved.task_id]

    def at_work(self) -> list[asyncio.Future[None]]:
        """The ends of the calls in the background."""
        return [call.over for call in self._live.values() if not call.over.done()]

    def reports(self) -> list[Fields]:
        """What is known of the calls in the background, oldest first."""
        return [call.report() for call in self._live.values()]

    def explain(self) -> list[str]:
        """For each of them: since when, and where it is."""
        return [call.explain() for call in self._live.values()]


def state_of(result: ToolResult) -> str:
    """How the end of a call in the background is called."""
    return STATES.get(result.status, "failed")


async def _once(wait: Callable[[int], Awaitable[ToolOutput]]) -> ToolOutput:
    return await wait(1)


def _cancel(job: Job[ToolOutput] | asyncio.Task[ToolOutput], reason: str) -> None:
    job.cancel(reason)
