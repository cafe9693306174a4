"""Making the calls that a model asks for: gates, ledger, lanes, and one result for each call, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from laneway.agent.call_results import answer_of, change_of, task_result, value_of, within
from laneway.agent.externals import pending_event, task_id_of, watched_end
from laneway.agent.gates import Asked, Refusal
from laneway.agent.hearing import heard_run, trace_of
from laneway.agent_events import (
    PermissionDeniedEvent,
    ToolBackgroundedEvent,
    ToolEndEvent,
    ToolOutputDeltaEvent,
    ToolQueuedEvent,
    ToolStartEvent,
)
from laneway.dialogue import Intent, ResultStatus, ToolCall, ToolContext, ToolOutput, ToolResult, ToolSpec, copied
from laneway.errors import (
    FencedError,
    InterruptSignalError,
    JobCancelledError,
    JobTimeoutError,
    LanewayError,
    StoreUnavailableError,
    ToolArgumentsError,
    TransportUnavailableError,
    describe,
    text_of,
)
from laneway.external import TaskState
from laneway.kernel.ledger import (
    LEDGER_TRANSITIONS,
    Change,
    LedgerEntry,
    LedgerState,
    arguments_digest,
    key_of,
)
from laneway.kernel.rounds import CallTimes
from laneway.kernel.task_entries import SAID, TaskEnd
from laneway.options import LaneHandlerConfig
from laneway.records import Effect
from laneway.runtime.errands import WAIT_LANE

if TYPE_CHECKING:
    from laneway.agent.background import BackgroundCall
    from laneway.agent.loop import Run
    from laneway.kernel.rounds import Round
    from laneway.ports import Tool
    from laneway.runtime.handles import Job

__all__ = ("INSIDE", "CallMaker")

_log = logging.getLogger("laneway")

INSIDE: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("laneway_inside", default=())
"""The sessions whose tools the calling code runs in."""

UNKNOWN = "[Unknown: it was cut off after it had begun; it may have had its effect. Look before you do it again.]"
NOT_STARTED = "[Cancelled: the run was ended before this call started]"
CUT_READ = "[Cancelled: the run was ended while this call ran]"
ENDED_ALONE = "[Cancelled: this call was ended from outside {}; the run goes on ({})]"
CUT_BEHIND = "[Cancelled: it was ended while it ran in the background]"
UNREAD = "[{}: it was over when the run was ended; what it said was not read]"
MOVE_AGAIN_MS = 1_000  # when a call could not be moved, because the store does not take it just now


class _Call:
    """One call that is being made."""

    __slots__ = (
        "asked",
        "background",
        "began_ms",
        "call",
        "cut",
        "end",
        "ended",
        "entry",
        "handler",
        "is_intended",
        "job",
        "left_out",
        "round",
        "timer",
        "took_ms",
    )

    def __init__(self, call: ToolCall, asked: Asked, handler: LaneHandlerConfig, of: Round) -> None:
        self.call = call
        self.asked = asked
        self.round = of
        self.entry: LedgerEntry | None = None
        self.is_intended = False  # the entry is on disk
        self.job: Job[ToolOutput] | asyncio.Task[ToolOutput] | None = None
        self.ended: asyncio.Future[None] | None = None
        self.began_ms = -1  # monotonic; negative until it has really started
        self.took_ms = 0
        self.cut = ""  # why it was told to end
        self.handler = handler
        self.end: TaskEnd | None = None  # of its task, if somebody else made it
        self.left_out = False  # its task is still out: the run goes on with it when the session is opened again
        self.background: BackgroundCall | None = None  # it goes on without its run
        self.timer: asyncio.TimerHandle | None = None  # until it does

    @property
    def arguments(self) -> dict[str, Any]:
        return self.asked.arguments

    @property
    def lane(self) -> str:
        return self.asked.lane

    @property
    def is_external(self) -> bool:
        return self.handler.mode == "external"

    @property
    def spec(self) -> ToolSpec:
        return self.asked.tool.spec

    @property
    def has_effect(self) -> bool:
        return self.spec.effect is not Effect.READ


class CallMaker:
    """Makes the calls of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run.session
        self._live: dict[str, _Call] = {}
        self._batch: set[str] = set()  # ids of calls that are being made, or asked about
        self._away: set[str] = set()  # of them, those that somebody else has to do with, as the store knows
        self.moved = 0  # how many go on in the background
        self._doubtful: set[str] = set()
        self._out: dict[str, Any] = {}  # keys of calls that somebody else makes since before a restart: their arguments

    @property
    def active(self) -> tuple[ToolCall, ...]:
        """The calls that run at this moment."""
        return tuple(each.call for each in self._live.values() if each.began_ms >= 0)

    @property
    def are_elsewhere(self) -> bool:
        """Whether there are calls, and all of them wait for people or workers: nothing is done here meanwhile."""
        return bool(self._batch) and self._batch <= self._away

    def away(self, call_id: str, *, is_away: bool) -> None:
        """Whether a call waits for somebody whose answer finds it, here or after a restart."""
        (self._away.add if is_away else self._away.discard)(call_id)
        self._run.note_rest()

    def _is_over(self, call_id: str) -> None:
        """The run waits for a call no more."""
        self._batch.discard(call_id)
        self._run.note_rest()

    def explain(self) -> list[str]:
        """For each call that has not ended: where it is, and why."""
        return [f"{each.call.name} ({each.call.id}): {said}" for each, said in self._where()]

    def whys(self) -> dict[str, str]:
        """The same by the ids of the calls."""
        return {each.call.id: said for each, said in self._where()}

    def _where(self) -> list[tuple[_Call, str]]:
        found = []
        for each in self._live.values():
            task = self._session.externals.where(task_id_of(each.asked.key)) if each.is_external else ""
            said = task or (each.job.explain() if each.job is not None and hasattr(each.job, "explain") else "it runs")
            found.append((each, str(said)))
        return found

    # ---- a batch ----

    async def make(self, calls: tuple[ToolCall, ...]) -> None:
        """Make these calls together and wait for all of them; each has its result afterwards."""
        launched: list[_Call] = []
        self._batch.clear()
        try:
            admitted = [(call, asked) for call in calls if (asked := await self._admit(call)) is not None]
            for call, asked in admitted:
                if not asked.approval_reason:
                    self._launch(call, asked, launched)
            await self._confirm([each for each in admitted if each[1].approval_reason], launched)
            await self._wait_lending(launched)
            await self._ended(launched)
        except (asyncio.CancelledError, InterruptSignalError, FencedError):
            await self._wind_down(launched)
            raise
        if self._session.hooks.wants("post_tool_use"):
            await self._tell_hooks(launched)

    async def _admit(self, call: ToolCall) -> Asked | None:
        """Through the gates that need nobody; None if it was refused and has its result."""
        tool = self._session.toolbox.get(call.name)
        if tool is None:
            self._refuse(call, ResultStatus.ERROR, self._unknown_tool(call.name))
            return None
        try:
            arguments = tool.check(call.arguments)
        except ToolArgumentsError as error:
            self._refuse(call, ResultStatus.ERROR, f"[Not run: {text_of(error)}]")
            return None
        except Exception as error:  # noqa: BLE001 - a tool of one's own may raise anything
            self._refuse(call, ResultStatus.ERROR, f"[Not run: {describe(error)}]")
            return None
        lane = self._session.lane_of(tool.spec)
        asked = Asked(call.id, tool, arguments, call.arguments, lane, self._run, self._key(call))
        if self._is_out(asked):
            return asked  # it has passed the gates, and somebody makes it already
        refusal = await self._session.gates.admit(asked)
        if refusal is not None:
            self._deny(call, asked, refusal)
            return None
        entry = self._run.book.entries.get(asked.key) if self._run.machine.had_begun(call) else None
        if entry is not None and entry.digest != arguments_digest(asked.text):
            self._refuse(call, ResultStatus.ERROR, "[Not run: a hook has changed it since it began]")
            return None
        if entry is not None:
            asked.approval_reason = ""  # it was approved when it began
        return asked

    async def _confirm(self, asking: list[tuple[ToolCall, Asked]], launched: list[_Call]) -> None:
        """Ask about these, all at once; each is launched as soon as it may be made."""

        async def confirm(call: ToolCall, asked: Asked) -> None:
            self._batch.add(call.id)
            refusal = await self._session.confirmations.ask(asked)
            if refusal is None:
                self._launch(call, asked, launched)
            else:
                self._deny(call, asked, refusal)
                self._is_over(call.id)

        if len(asking) == 1:
            await confirm(*asking[0])
        elif asking:
            tasks = [self._run.loop.create_task(confirm(*each)) for each in asking]
            try:
                await asyncio.gather(*tasks)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise

    def _launch(self, call: ToolCall, asked: Asked, launched: list[_Call]) -> None:
        """Into its lane."""
        one = self._run.machine.round
        assert one is not None
        each = _Call(call, asked, self._session.externals.handler_of(asked), one)
        if self._run.machine.had_begun(call):
            each.entry = self._run.book.entries.get(asked.key)
        self._live[call.id] = each
        self._batch.add(call.id)
        self.away(call.id, is_away=each.spec.waits)  # for sub-agents, which come to rest by themselves
        self._run.emit(ToolQueuedEvent(tool_id=call.id, tool_name=call.name, lane=asked.lane))
        self._note(call.id, CallTimes(lane=asked.lane, queued_ms=self._run.wall()))
        try:
            each.job = self._submit(each, functools.partial(self._execute, each))
        except LanewayError as error:  # a lane that is full, or draining
            del self._live[call.id]
            self._is_over(call.id)
            self._refuse(call, ResultStatus.ERROR, f"[Not run: {text_of(error)}]")
            return
        each.ended = self._run.loop.create_future()
        each.job.add_done_callback(lambda _: self._settle(each))
        launched.append(each)

    def _deny(self, call: ToolCall, asked: Asked, refusal: Refusal) -> None:
        if refusal.status is ResultStatus.DENIED:
            facts: dict[str, Any] = {"args": copied(asked.arguments), "reason": refusal.reason, "gate": refusal.gate}
            self._run.emit(PermissionDeniedEvent(tool_id=call.id, tool_name=call.name, **facts))
        self._refuse(call, refusal.status, refusal.output)

    async def _tell_hooks(self, launched: list[_Call]) -> None:
        """What came of these calls; before the model hears of it."""
        one = self._run.machine.round
        assert one is not None
        for each in launched:
            result = one.results.get(each.call.id)
            if result is not None and each.background is None:  # else they are told when it has really ended
                await self._session.gates.tell_end(each.asked, result, each.took_ms)

    def _submit(
        self, each: _Call, execute: Callable[[int], Awaitable[ToolOutput]]
    ) -> Job[ToolOutput] | asyncio.Task[ToolOutput]:
        lanes = self._session.lanes
        limit = self._session.externals.limit_of(each.asked, each.handler)
        if lanes is not None:
            payload = {"tool": each.call.name, "arguments": each.arguments, "call_id": each.call.id}
            spec = replace(each.spec, timeout_ms=limit)
            return lanes.submit_tool(spec, execute, lane=each.lane, payload=payload, label=each.call.name)
        return self._run.loop.create_task(within(execute, limit), name=f"laneway-tool {each.call.name}")

    def _unknown_tool(self, name: str) -> str:
        return f"[Not run: there is no tool {name!r}; there are: {', '.join(self._session.toolbox) or 'none'}]"

    def _refuse(self, call: ToolCall, status: ResultStatus, text: str) -> None:
        result = ToolResult(call_id=call.id, name=call.name, output=text, status=status)
        if self._run.machine.had_begun(call):
            result = self.lose(call)
        self._run.machine.result(result)
        self.tell_end(result, 0)

    def lose(self, call: ToolCall) -> ToolResult:
        """A call that had begun in an earlier process and is not made again: nobody knows how far it came."""
        entry = self._run.book.entries.get(self._key(call))
        if entry is not None and entry.state is LedgerState.INTENDED:
            self._run.book.end_entry(entry, Change.LOSE, "the process ended while it ran, and it was not made again")
        return ToolResult(call_id=call.id, name=call.name, output=UNKNOWN, status=ResultStatus.UNKNOWN)

    # ---- one call ----

    async def _execute(self, each: _Call, attempt: int) -> ToolOutput:
        """The slot is there: write down what is about to be done, then do it."""
        call = each.call
        if each.is_external or self._is_out(each.asked):
            return await self._send_out(each)
        if each.has_effect and not each.is_intended:
            await self._intend(each)
        elif each.entry is not None and attempt > 1:
            each.entry = each.entry.change(Change.REPEAT, now_ms=self._run.wall())
            self._run.book.keep(each.entry)
        moved = each.background
        if self._run.turn.cancelled if moved is None else moved.is_ending:  # and it has not heard of it yet
            raise InterruptSignalError("the run is being ended" if moved is None else "it is being ended")
        if each.began_ms < 0:
            each.began_ms = self._run.now()
            self._note(call.id, began_ms=self._run.wall())
            self._move_later(each)
        if attempt > 1:
            self._note(call.id, attempt=attempt)
        self._run.emit(
            ToolStartEvent(
                tool_id=call.id, tool_name=call.name, args=copied(each.arguments), lane=each.lane, attempt=attempt
            )
        )
        return await self._run_here(each, attempt)

    async def _run_here(self, each: _Call, attempt: int) -> ToolOutput:
        watched = each.handler.mode == "hybrid"
        if watched:
            began_ms = self._run.now()
            order = self._session.externals.order_of(each.asked, each.handler, task_id_of(each.asked.key))
            self._run.emit(pending_event(order, payload=order.payload, attempt=attempt))
        token = INSIDE.set((*INSIDE.get(), *self._session.waiting_line()))
        success, error = False, "it was ended"
        try:
            output = await heard_run(each.asked.tool, copied(each.arguments), self._context(each, attempt))
            success, error = not output.is_error, output.text[:200]
            return output
        except asyncio.CancelledError:
            # As after a crash: what may be done again with its key is, when the session is opened again.
            again = self._run.goes_on_later and each.spec.effect is Effect.IDEMPOTENT
            each.left_out = again and each.background is None
            raise
        except Exception as problem:
            error = describe(problem)
            raise
        finally:
            INSIDE.reset(token)
            if watched:
                took = self._run.now() - began_ms
                self._run.emit(watched_end(order, success=success, error=error, attempt=attempt, took_ms=took))

    # ---- calls that somebody else makes ----

    def _is_out(self, asked: Asked) -> bool:
        """Whether a call of the round that was taken over is made by somebody else already."""
        return asked.key in self._out

    async def keys_out(self, one: Round, origin: str) -> set[str]:
        """Which calls of a round that was cut off somebody else makes, or has made meanwhile."""
        keys = [key_of(origin, one.number, call.id) for call in one.answer.calls if call.id not in one.results]
        for key in keys:
            entry = await self._session.externals.find(task_id_of(key))
            if entry is not None:
                self._out[key] = json.loads(entry.payload)
                if entry.state is TaskState.TIMED_OUT and not entry.had_started:
                    self._doubtful.add(key)  # nobody took it, but it may have been made by the process that is gone
        return set(self._out)

    async def _offered(self, each: _Call) -> None:
        """The task, the intent of its call and the answer that asks for it are on disk."""
        run = self._run
        if each.has_effect:
            await self._intend(each)
        else:
            assert run.machine.round is not None
            run.book.keep(run.machine.round)
            await run.book.committed()
        if run.turn.cancelled:
            raise InterruptSignalError("the run is being ended")

    async def _send_out(self, each: _Call) -> ToolOutput:
        """Have somebody else make it, and wait for what comes of it."""
        externals, call, run = self._session.externals, each.call, self._run
        task_id = task_id_of(each.asked.key)
        if not self._is_out(each.asked):
            externals.offer(each.asked, each.handler, task_id)
            try:
                await self._offered(each)
            except (asyncio.CancelledError, InterruptSignalError):
                externals.desk.withdraw(task_id, each.cut or "the run was ended")  # nobody has seen it
                raise
        self._note(call.id, out_ms=run.wall(), task_id=task_id)
        args = self._out.get(each.asked.key) or copied(each.arguments)
        run.emit(ToolStartEvent(tool_id=call.id, tool_name=call.name, args=args, lane=each.lane))
        externals.desk.publish(task_id)
        self._move_later(each)
        self.away(call.id, is_away=self._session.is_kept)
        try:
            each.end = end = await externals.desk.outcome(task_id)
        except asyncio.CancelledError:
            each.left_out = self._is_left(each)
            if not each.left_out:
                each.end = externals.desk.withdraw(task_id, each.cut or "the run was ended")
            raise
        finally:
            self.away(call.id, is_away=False)
        if end.had_started:
            each.began_ms = run.now() - end.duration_ms
        elif end.state is TaskState.TIMED_OUT and each.handler.fallback and not self._is_out(each.asked):
            if each.background is None and run.turn.cancelled:
                raise InterruptSignalError("the run is being ended")
            each.end = None
            each.began_ms = run.now()
            self._note(call.id, began_ms=run.wall())
            return await self._run_here(each, 1)
        try:
            return await externals.output_of(end, self._context(each, end.attempt))
        except asyncio.CancelledError:
            each.left_out = self._is_left(each)  # its end is on disk, and is found there
            raise

    def _is_left(self, each: _Call) -> bool:
        """Whether a call that was cut off is left to whoever opens the session again."""
        return self._run.goes_on_later if each.background is None else each.background.is_left

    # ---- calls that go on in the background ----

    def _move_later(self, each: _Call, delay_ms: int | None = None) -> None:
        """It has begun: if it may go on in the background, it does so after a while."""
        after_ms = self._session.background_calls.after_ms(each.asked, each.handler)
        if after_ms is not None and each.background is None:
            delay_ms = after_ms if delay_ms is None else delay_ms
            each.timer = self._run.loop.call_later(delay_ms / 1000, self._move, each, after_ms)

    def _move(self, each: _Call, after_ms: int) -> None:
        """It takes too long: the model is told that it goes on, in one commit with what a restart has to know."""
        run, call, job = self._run, each.call, each.job
        one = run.machine.round
        is_live = self._live.get(call.id) is each and job is not None and not job.done() and each.ended is not None
        if not is_live or each.cut or run.turn.cancelled or not self._session.background_calls.has_room(run):
            return
        assert one is not None
        assert job is not None
        assert each.ended is not None
        task_id = task_id_of(each.asked.key) if each.is_external or self._is_out(each.asked) else ""
        try:
            moved = self._session.background_calls.move(run, each.asked, one.number, after_ms, task_id)
        except LanewayError as error:
            _log.info("call %s of %s stays where it is: %s", call.id, call.name, error)
            self._move_later(each, MOVE_AGAIN_MS)
            return
        each.background = moved
        self.moved += 1
        moved.stop = functools.partial(self._stop_behind, each)
        del self._live[call.id]
        self._is_over(call.id)
        result = moved.answer()
        run.machine.result(result)
        run.book.keep(one)
        event = ToolBackgroundedEvent(tool_id=call.id, tool_name=call.name, after_ms=after_ms, background_id=moved.id)
        run.after_commit(functools.partial(run.emit, event))
        run.after_commit(functools.partial(self.tell_end, result, after_ms))
        each.ended.set_result(None)

    @staticmethod
    def _stop_behind(each: _Call, reason: str) -> None:
        assert each.background is not None
        may_stop = each.spec.interruptible or each.is_external or each.background.is_overdue
        if each.job is not None and not each.job.done() and may_stop:
            each.cut = reason
            each.job.cancel(reason)

    def _settle_behind(self, each: _Call, moved: BackgroundCall) -> None:
        """A call in the background has ended: whoever looks after it tells that."""
        if each.left_out:
            moved.ended(None, None)
            return
        result = self._result_of(each)
        moved.ended(result, self._change_of(each, result) if each.entry is not None else None)

    def _context(self, each: _Call, attempt: int) -> ToolContext:
        call, session, thread = each.call, self._session, threading.get_ident()

        def tell(text: str) -> None:
            self._run.emit(ToolOutputDeltaEvent(tool_id=call.id, tool_name=call.name, text=text))

        def report(text: str) -> None:
            if threading.get_ident() == thread:
                tell(text)
            else:  # a sync tool, on its thread
                self._run.loop.call_soon_threadsafe(tell, text)

        return replace(
            session.tool_context,
            run_id=self._run.id,
            call_id=call.id,
            key=each.asked.key,
            attempt=attempt,
            report=report,
        )

    def _note(self, call_id: str, times: CallTimes | None = None, **facts: Any) -> None:
        """When something happened to a call of the open round, for whoever asks later."""
        one = self._run.machine.round
        assert one is not None
        known = times or one.times.get(call_id)
        if known is not None:
            one.times[call_id] = replace(known, **facts)

    def taken(self, call_id: str, worker: str, attempt: int) -> None:
        """A worker begins with a call that is out."""
        if call_id in self._live:
            self._note(call_id, began_ms=self._run.wall(), worker=worker, attempt=attempt)

    def _key(self, call: ToolCall) -> str:
        one = self._run.machine.round
        assert one is not None
        return key_of(self._run.origin, one.number, call.id)

    async def _intend(self, each: _Call) -> None:
        """The intent of a call with side effects is on disk, with the answer that asks for it, before it starts."""
        if self._run.goes_on_later:  # nothing begins any more: it stays open, and is made when the session is back
            raise asyncio.CancelledError
        one = self._run.machine.round
        assert one is not None
        key = each.asked.key
        entry = self._run.book.entries.get(key)
        if entry is None:
            entry = LedgerEntry(
                owner=self._run.book.owner,
                run_id=self._run.id,
                number=one.number,
                call_id=each.call.id,
                tool=each.call.name,
                effect=each.spec.effect,
                key=key,
                digest=arguments_digest(each.asked.text),
                arguments=each.asked.text,
                started_ms=self._run.wall(),
                seq=self._run.book.next_seq(),
            )
        else:
            entry = entry.change(Change.REPEAT, now_ms=self._run.wall())
        self._run.book.keep_unsaved()
        self._run.book.keep(one)
        self._run.book.keep(entry)
        each.entry = entry
        await self._run.book.committed()
        each.is_intended = True

    # ---- ends ----

    async def _wait_lending(self, launched: list[_Call]) -> None:
        """While nothing is left but calls that wait for sub-agents, the turn lends its slots."""
        waits = [each for each in launched if each.spec.waits]
        if waits:
            await self._ended([each for each in launched if each not in waits])
            ends = [each.ended for each in waits if each.ended is not None and not each.ended.done()]
            if ends:
                await self._session.host.inbox.lanes.run(WAIT_LANE, asyncio.wait, ends, label="sub-agents")

    async def _ended(self, launched: list[_Call]) -> None:
        """Wait until all have ended; on done callbacks, so that the turn lends nothing meanwhile."""
        for each in launched:
            if each.ended is not None:
                await asyncio.shield(each.ended)

    def _settle(self, each: _Call) -> None:
        """A call has ended: its result, its ledger entry, and whoever watches."""
        if each.timer is not None:
            each.timer.cancel()
        if each.background is not None:
            self._settle_behind(each, each.background)
            return
        self._live.pop(each.call.id, None)
        self._is_over(each.call.id)
        assert each.ended is not None
        each.ended.set_result(None)
        if each.left_out:
            return
        result = self._result_of(each)
        self._note(each.call.id, ended_ms=self._run.wall())
        if each.end is not None and each.end.worker and each.end.had_started:  # found after a restart, perhaps
            self._note(each.call.id, worker=each.end.worker)
        is_open = self._run.goes_on_later and result.status is ResultStatus.CANCELLED
        if is_open and each.entry is not None and self._is_untouched(each):
            self._run.book.drop_entry(each.entry)
            each.entry = None
        is_late = self._run.machine.round is not each.round  # its run was fenced and cut, with a result in its place
        if (each.entry is not None or not is_open) and not is_late:
            self._run.machine.result(result)  # else it had no effect, and is made when the session is opened again
        each.took_ms = took = max(0, self._run.now() - each.began_ms) if each.began_ms >= 0 else 0
        if each.entry is None:
            self.tell_end(result, took)
            return
        entry = self._run.book.entries.get(each.entry.key, each.entry)
        change = self._change_of(each, result)
        self._run.after_commit(functools.partial(self.tell_end, result, took))
        if (entry.state, change) in LEDGER_TRANSITIONS:  # what is unknown already may turn out to be done
            self._run.book.end_entry(entry, change, _reason_of(result))
        self._run.book.keep(each.round)

    def _is_untouched(self, each: _Call) -> bool:
        """Whether nobody has begun with a call, here or elsewhere, now or before: there was no more than its intent."""
        is_here = each.end is None and not each.is_external and not self._is_out(each.asked)
        return is_here and each.began_ms < 0 and not self._run.machine.had_begun(each.call)

    def _change_of(self, each: _Call, result: ToolResult) -> Change:
        return change_of(result, each.end, may_have_run=self._may_have_run(each))

    def tell_end(self, result: ToolResult, took: int) -> None:
        """One call has ended."""
        self._run.emit(ToolEndEvent.of(result, duration_ms=took))

    def _result_of(self, each: _Call) -> ToolResult:
        result = functools.partial(ToolResult, call_id=each.call.id, name=each.call.name)
        try:
            output = value_of(each.job)
        except (asyncio.CancelledError, JobCancelledError, InterruptSignalError) as error:
            said = error.reason if isinstance(error, JobCancelledError) else ""
            return self._cut_result(each, each.cut or said or text_of(error))
        except (JobTimeoutError, TimeoutError) as error:
            note = " It may have had its effect: look before you do it again." if each.has_effect else ""
            said = error.reason if isinstance(error, JobTimeoutError) else text_of(error)
            return result(output=f"[Timed out: {said or 'it ran too long'}.{note}]", status=ResultStatus.TIMED_OUT)
        except StoreUnavailableError as error:
            if each.began_ms < 0 and not self._run.machine.had_begun(each.call):
                return result(output=f"[Not run: {text_of(error)}]", status=ResultStatus.ERROR)
            if each.began_ms < 0:
                return self._cut_result(each, text_of(error))
            return result(output=f"[Failed: {describe(error)}]", status=ResultStatus.ERROR)
        except TransportUnavailableError as error:
            may_have_run = each.has_effect and getattr(error, "may_have_run", False)
            text = f"[Unknown: {text_of(error)}]" if may_have_run else f"[Failed: {describe(error)}]"
            return result(output=text, status=ResultStatus.UNKNOWN if may_have_run else ResultStatus.ERROR)
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is told to the model
            _log.warning("tool %s failed: %s\n%s", each.call.name, describe(error), trace_of(error))
            return result(output=f"[Failed: {describe(error)}]", status=ResultStatus.ERROR)
        ended = None
        if each.end is not None:
            facts = {"has_effect": each.has_effect, "may_have_run": self._may_have_run(each)}
            ended = task_result(each.call.id, each.call.name, each.end, **facts)
        return ended or answer_of(each.call.id, each.call.name, output)

    def _may_have_run(self, each: _Call) -> bool:
        """Whether anybody may have begun with a call that was to be made by somebody else."""
        return each.end is None or each.end.had_started or each.asked.key in self._doubtful

    def _cut_result(self, each: _Call, reason: str) -> ToolResult:
        started = each.began_ms >= 0 or self._run.machine.had_begun(each.call)
        if each.end is not None and each.end.state in SAID:  # it was over by then
            worked = each.end.state is TaskState.COMPLETED
            status, what = (ResultStatus.OK, "Done") if worked else (ResultStatus.ERROR, "Failed")
            return ToolResult(call_id=each.call.id, name=each.call.name, output=UNREAD.format(what), status=status)
        if each.end is not None:  # its task was withdrawn
            started = self._may_have_run(each)
        if started and each.has_effect:
            status, text = ResultStatus.UNKNOWN, UNKNOWN
        else:
            status, text = ResultStatus.CANCELLED, CUT_READ if started else NOT_STARTED
            text = text if each.background is None else CUT_BEHIND
        if not each.cut and reason:  # its own lane has ended it
            text = f"{text[:-1]} ({reason})]"
            if status is ResultStatus.CANCELLED and each.background is None and not self._run.turn.cancelled:
                text = ENDED_ALONE.format("while it ran" if started else "before it had started", reason)
        return ToolResult(call_id=each.call.id, name=each.call.name, output=text, status=status)

    async def _wind_down(self, launched: list[_Call]) -> None:
        """The run is being ended: cancel what runs, but for what may not be interrupted, and wait for it."""
        for each in launched:
            if each.job is None or each.job.done() or each.background is not None:
                continue
            if each.spec.interruptible or each.began_ms < 0:
                each.cut = "the run was ended"
                each.job.cancel(each.cut)
        grace_s = self._session.host.inbox.engine.kernel.grace_ms / 1000
        fence = self._run.loop.call_later(grace_s, self._lose_live)
        try:
            while self._live:
                with contextlib.suppress(asyncio.CancelledError):  # whoever cannot wait fences the turn
                    await self._ended(launched)
        finally:
            fence.cancel()

    def _lose_live(self) -> None:
        """The turn is fenced, and these calls still run: nobody knows what will become of them."""
        for each in self._live.values():
            entry = each.entry and self._run.book.entries.get(each.entry.key)
            if entry and entry.state is LedgerState.INTENDED:
                self._run.book.end_entry(entry, Change.LOSE, "its run was ended, and it goes on")
        self._run.fenced([self._cut_result(each, "") for each in self._live.values()])

    def abort(self) -> None:
        """End every call that runs, whatever it says of itself: the process wants to end."""
        for each in self._live.values():
            if each.job is not None and not each.job.done():
                each.cut = "the session was closed"
                each.job.cancel(each.cut)

    # ---- after a crash ----

    async def reconcile(self, call: ToolCall, tool: Tool, arguments: dict[str, Any], key: str) -> ToolOutput | None:
        """Ask a tool what became of a call that was cut off; None when it cannot say."""
        intent = Intent(run_id=self._run.id, call_id=call.id, tool=call.name, arguments=arguments, key=key)
        context = replace(self._session.tool_context, run_id=self._run.id, call_id=call.id, key=key)
        try:
            return await tool.reconcile(intent, context)
        except Exception as error:  # noqa: BLE001 - a tool that cannot say is one that does not know
            _log.warning("tool %s could not say what became of %s: %s", call.name, call.id, describe(error))
            return None


def _reason_of(result: ToolResult) -> str:
    return "" if result.status is ResultStatus.OK else result.output[:200]
