"""One run of an agent: asks the model, makes the calls it wants, writes every round down, and ends with an answer.

The turn machine of the kernel decides; this does it. It waits for lanes by callbacks, not by awaiting their jobs, so
that a turn keeps its own slot while its model and its tools are at work; it lends the slot while it waits for a quota.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, assert_never

from laneway.agent.budgeting import Budgeting
from laneway.agent.hearing import heard_answer
from laneway.agent.hook_points import RunHooks, withheld
from laneway.agent.host import account_of
from laneway.agent.peers import attachments_of
from laneway.agent.planning import Planner
from laneway.agent.recording import Recording
from laneway.agent.rolling_back import forget_rolled_back
from laneway.agent.round_clock import RoundClock
from laneway.agent.streams import EventLog
from laneway.agent.tool_calls import CallMaker
from laneway.agent_events import (
    AgentEvent,
    ContextCompactedEvent,
    EndEvent,
    ErrorEvent,
    ModelRetryEvent,
    ReasoningDeltaEvent,
    RunResumedEvent,
    RunWaitingEvent,
    StartEvent,
    SteeredEvent,
    TextDeltaEvent,
    ToolInputDeltaEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from laneway.dialogue import (
    Answer,
    CallChunk,
    Chunk,
    ModelRequest,
    Prompt,
    ReasoningChunk,
    ResultStatus,
    TextChunk,
    ToolCall,
    ToolResult,
    Usage,
    Utterance,
)
from laneway.errors import (
    InterruptSignalError,
    LanewayError,
    ModelError,
    ModelLimitedError,
    ModelUnavailableError,
    PromptTooLongError,
    RunCancelledError,
    RunFailedError,
    describe,
    text_of,
)
from laneway.kernel.budgets import Parked
from laneway.kernel.checkpoints import Compaction
from laneway.kernel.delivery import PUT_OFF
from laneway.kernel.ledger import Action, Change, LedgerState, after_crash, origin_of
from laneway.kernel.rounds import Round, RoundState, open_result, unstarted_result
from laneway.kernel.turn_machine import Act, AskModel, Close, Fail, Finish, Limits, TurnMachine
from laneway.mail import ApprovalState, Message, MessageKind, TurnState

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession
    from laneway.ports import Model
    from laneway.runtime.handles import Job
    from laneway.runtime.turns import Turn

__all__ = ("Run",)

_log = logging.getLogger("laneway")

BUGS = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError)
"""Errors of the code of a model: trying again does not help."""
MODEL_RETRIES_MS = (500, 2_000, 8_000)
CHARS_PER_TOKEN = 4  # about
LIMIT_MAX_MS = 86_400_000  # a day: whoever says more is asked again then
LIMIT_ODD_MS = 60_000
RECENT_TOOLS = 10
KEEP_ROUNDS = 2  # what compaction leaves as it is
SUMMARY_SYSTEM = (
    "Summarise the conversation so far for the agent that goes on with it: what the user wants, what was done and found"
    " out, what is open, and the names (files, ids, commands) that will be needed. Be exact and brief."
)
SUMMARY_ASK = "Summarise our conversation so far, as you were told."
SUMMARY_TITLE = "[Summary of the conversation so far]"
RESUMED_UNKNOWN = (
    "[Unknown: the process ended while this call ran; it may have had its effect. Look before you do it again.]"
)
GO_ON = "[Go on with what was cut off]\n{prompt}"
GONE = "[Not run: the process ended before it started, and there is no tool {name!r} any more]"


class Run:
    """One run over one or more messages; the handler of a turn."""

    def __init__(self, session: AsyncSession, turn: Turn) -> None:
        self.session = session
        self.turn = turn
        self.id = turn.id
        self.book = session.book
        self.loop = asyncio.get_running_loop()
        self.now = session.host.inbox.engine.now
        self.wall = session.host.inbox.engine.wall
        self.usage = Usage()
        self.calls_made = 0
        self.origin = self.id
        # For its budget it is the same run whenever its message is run again, also if it has written nothing yet.
        self.counted_as = turn.messages[0].id
        self.error: BaseException | None = None
        self.ended = asyncio.Event()
        self._rest = asyncio.Event()  # nothing of it is on its way
        self._held = 0
        self.recording = Recording(self)
        self.planner = Planner(self)
        self._past = 0  # rounds that a fork was begun with: they do not count against what it may do itself
        self.machine = self._new_machine()
        self.calls = CallMaker(self)
        self.hooks = RunHooks(self)
        self.budgeting = Budgeting(self)
        self.called = session.model  # the model that was asked last: a budget may have chosen a cheaper one
        self.sent = False  # whether the model was asked
        self.heard = False  # whether it has begun to answer
        self.parked: Parked | None = None  # the window that it has said it waits for
        self._base: list[Utterance] = []
        self._cannot_compact = False
        self.waits_for = ""  # why it does nothing at the moment
        self.waits_until = 0  # and until when, by the clock on the wall
        self.model_job: Job[Answer] | None = None
        self.clock = RoundClock(self.wall)
        # What it has told, for those who begin to watch late.
        self.log = EventLog(session.settings.retention_limits.max_events_per_run)

    def _new_machine(self, *, resumed_from: str = "", first: int = 1) -> TurnMachine:
        settings = self.session.settings
        return self.recording.machine(
            self.id,
            limits=Limits(
                max_tool_rounds=settings.max_tool_rounds + self._past,
                max_calls_per_answer=settings.max_calls_per_answer,
            ),
            may_run_beside=self.session.may_run_beside,
            conversation=self.turn.conversation,
            resumed_from=resumed_from,
            first=first,
            course=self.planner.course,
        )

    # ---- from beginning to end ----

    async def go(self) -> str | None:
        """Run to the end; what it returns is the answer of the turn."""
        try:
            limit = self.session.settings.max_execution_time_ms
            async with asyncio.timeout(None if limit is None else limit / 1000) as timer:
                try:
                    return await self._go()
                except BaseException:
                    self._cut()
                    self.recording.flush()
                    raise
        except TimeoutError as error:
            if timer.expired():
                await self._fail(RunFailedError(f"it ran longer than max_execution_time_ms ({limit})", run_id=self.id))
            await self._fail(error)
        except asyncio.CancelledError:
            self.error = self._cancelled()
            raise
        except InterruptSignalError as signal:
            self.error = RunCancelledError(f"the run was ended: {signal}", run_id=self.id, reason=text_of(signal))
            raise
        except Exception as error:  # noqa: BLE001 - told to whoever watches, and then to the inbox
            await self._fail(error)
        finally:
            if self.error is not None:
                self.planner.ended(self.error)

    async def _fail(self, error: BaseException) -> NoReturn:
        self.error = error
        await self.hooks.failed(error)
        raise error

    def _cancelled(self) -> RunCancelledError:
        reason = self.turn._entry.cancelled or "cancelled"  # noqa: SLF001 - why, in the words of whoever did it
        return RunCancelledError(f"the run was ended: {reason}", run_id=self.id, reason=reason)

    def end_event(self) -> EndEvent | ErrorEvent:
        """How it ended, for whoever watches; told when the end is on disk."""
        if not self.ended.is_set():  # it was fenced, and so is its step
            self.planner.ended(self._cancelled())
        if self.error is not None:
            kind = self.error.code if isinstance(self.error, LanewayError) else type(self.error).__name__
            return ErrorEvent(error=text_of(self.error) or kind, error_kind=kind)
        text = self.machine.round.answer.text if self.machine.round is not None else ""
        return EndEvent(
            text=text,
            total_tokens=self.usage.total_tokens,
            cost=self.usage.cost,
            tool_calls_count=self.calls_made,
        )

    def _cut(self) -> None:
        """The run ends before its time: every open call gets a result, and what was said is kept."""
        if not self.turn._entry.live and not all(one.seq for one in self.machine.rounds):  # noqa: SLF001
            return  # fenced: another run has spoken meanwhile, and what was not written down is not said after it
        self.book.keep_unsaved()
        one = self.machine.round
        if self.goes_on_later and one is not None and one.state is RoundState.ACTING and not one.is_whole:
            self.book.keep(one)  # as after a crash: what is open in it is made when the session is opened again
            return
        ends = [
            self.calls.lose(call) if self.machine.had_begun(call) else unstarted_result(call)
            for call in self.machine.open_calls()
        ]
        forget = self.turn._entry.forget  # noqa: SLF001
        known = len(self.machine.rounds)
        changed = self.machine.cut(ends, forget=forget, at_ms=self.wall())
        if len(self.machine.rounds) > known:
            self.clock.cut(self.machine.rounds[-1])
        for one in changed:
            self.book.keep(one)
        for result in ends:
            self.calls.tell_end(result, 0)
        if forget:
            self.book.forget_line(self.origin)

    @property
    def goes_on_later(self) -> bool:
        """Whether it is being ended because its session is closed, and goes on when that is opened again."""
        return self.turn._entry.cancelled in PUT_OFF  # noqa: SLF001 - why, in the words of whoever did it

    def fenced(self, open_results: Iterable[ToolResult]) -> None:
        """Its grace is over, and these calls still run: the conversation goes on without waiting for them."""
        for result in open_results:
            self.machine.result(result)
        self._cut()

    @property
    def is_resting(self) -> bool:
        """Whether it is between two steps and goes no further by itself, or has ended."""
        return self._rest.is_set() or self.ended.is_set()

    async def rested(self) -> None:
        """Wait until it is between two steps and goes no further by itself, or has ended."""
        waits = [asyncio.ensure_future(each.wait()) for each in (self._rest, self.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def leave(self) -> None:
        """It has ended: nothing of the conversation is kept for it."""
        self._base = []
        self.recording.leave()
        if not self.goes_on_later:
            self.session.purse.end_run(self.counted_as)
        self.ended.set()

    async def _go(self) -> str | None:
        turn = self.turn
        self.session.begin_run(self)
        await self.book.load()
        await forget_rolled_back(self)
        self._phase(TurnState.THINKING)
        if self.session.compact_wanted(turn):
            self._rebase()
            await self._compact()
            return None
        if not await self._resume():
            await self._begin(turn)
        while True:
            step = self.machine.next()
            if self.session.is_paused and self._is_boundary(step):
                await self.hold()
                continue
            match step:
                case AskModel(number, purpose):
                    await self._compact_if_needed()
                    await self._boundary()
                    self.emit(TurnStartEvent(turn=number))
                    self.clock.asked(number)
                    answer = await self._ask(purpose=purpose)
                    one = self.machine.answered(answer, at_ms=self.wall())
                    self.clock.answered(one)
                    self.session.purse.note(one)
                    self.planner.answered(one)
                case Act():
                    if not await self._boundary():
                        step = self.machine.next()
                        assert isinstance(step, Act)
                        self._phase(TurnState.ACTING)
                        self.recording.acts(step.calls)
                        self.calls_made += len(step.calls)
                        await self.calls.make(step.calls)
                        self._phase(TurnState.THINKING)
                case Close(one):
                    await self._close(one)
                case Finish(one):
                    await self.hooks.responded(one.answer)
                    self.recording.ends(one)
                    return self._finish(one)
                case Fail(reason):
                    self.recording.fails(reason)
                    raise RunFailedError(reason, run_id=self.id, reason=reason, hint="raise the limit, or ask for less")
                case _ as never:
                    assert_never(never)

    async def _begin(self, turn: Turn) -> None:
        """Hear what the turn is about."""
        ids = [message.id for message in turn.messages]
        await self.session.tell_of_peers(turn.messages)
        prompt = Prompt(text=turn.prompt, attachments=attachments_of(turn.messages))
        prompt = await self.hooks.prompt(prompt, ids)
        self.machine.say([prompt], ids)
        for item in turn._entry.items:  # noqa: SLF001 - what the inbox keeps need not be kept twice
            if not item.seen_by and not item.attempts:
                self.book.texts[item.id] = item.message.text
        self._rebase()
        self.emit(StartEvent(prompt=turn.prompt, messages=tuple(message.id for message in turn.messages)))
        await self.planner.begin(prompt.text)

    def _is_boundary(self, step: object) -> bool:
        """Whether it can stop before a step. An answer is never thrown away: a session that leaves has it acted on."""
        return isinstance(step, AskModel) or (isinstance(step, Act) and not self.session.is_leaving)

    async def hold(self) -> None:
        """Do nothing while the session is paused."""
        self.waits_for = "the session is paused"
        with self.clock.waiting("paused", self.waits_for), self.resting():
            await self.session.unpaused()
        self.waits_for = ""

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """It can be ended meanwhile as between two steps: nothing of it is on its way."""
        self._held += 1
        self.note_rest()
        try:
            yield
        finally:
            self._held -= 1
            self.note_rest()

    def note_rest(self) -> None:
        """What it waits for has changed."""
        if self._held or self.calls.are_elsewhere:
            self._rest.set()
        else:
            self._rest.clear()

    async def _close(self, one: Round) -> None:
        """A round is whole: written down before anything else happens."""
        self.machine.close(one)
        self.book.keep_unsaved()
        self.book.keep(one)
        self.turn._engine.note_progress(self.turn)  # noqa: SLF001 - the turn's own engine
        await self.book.committed()
        self.emit(TurnEndEvent(turn=one.number, total_tokens=self.usage.total_tokens))
        await self.planner.closed()

    def _finish(self, one: Round) -> str:
        self.turn._check()  # noqa: SLF001 - an answer that nobody will hear is none
        self._phase(TurnState.DELIVERING)
        self.book.texts[self.id] = one.answer.text  # the inbox keeps it, in the same commit
        self.book.keep_unsaved()
        self.book.keep(one)
        # In the same commit as the end of the turn: nobody hears of an answer that is not on disk.
        turn_end = TurnEndEvent(turn=one.number, total_tokens=self.usage.total_tokens)
        self.after_commit(functools.partial(self.emit, turn_end))
        self.after_commit(functools.partial(self.planner.finished, one))
        return one.answer.text

    # ---- messages that come in meanwhile ----

    async def _boundary(self) -> bool:
        """A safe point: whether something was steered in."""
        taken = await self.turn.boundary()
        if not taken:
            return False
        prompts = [withheld("the run was ended first")] * len(taken)
        try:
            for at, message in enumerate(taken):
                prompts[at] = await self._heard(message)
        finally:  # the messages are part of the run from now on, even if it is being ended
            self._steer(taken, prompts)
        return True

    async def _heard(self, message: Message) -> Prompt:
        await self.session.tell_of_peers((message,))
        prompt = Prompt(text=message.text, attachments=attachments_of((message,)))
        return await self.hooks.later_prompt(prompt, message.id)

    def _steer(self, messages: list[Message], prompts: list[Prompt]) -> None:
        ids = tuple(message.id for message in messages)
        users = any(message.kind is not MessageKind.SYSTEM for message in messages)
        skipped = self.machine.say(prompts, ids, skips=users)
        for call in skipped:
            one = self.machine.round
            assert one is not None
            self.calls.tell_end(one.results[call.id], 0)
        self.session.follow(ids, self)
        text = "\n".join(message.text for message in messages)
        self.emit(SteeredEvent(messages=ids, text=text, skipped=tuple(call.id for call in skipped)))

    # ---- the model ----

    async def _ask(self, *, purpose: str = "answer") -> Answer:
        """One answer of the model; faults of its provider are waited for, as long as that can help."""
        failures, began = 0, self.now()
        await self.hooks.generate_start(functools.partial(self._request, purpose))
        while True:
            if self.session.is_paused:  # it was while this waited
                await self.hold()
            request = self._request(purpose)
            try:
                answer = await self.recording.ask(request)
            except ModelLimitedError as error:
                await self._wait_for_limit(error)
            except ModelUnavailableError as error:
                if failures >= len(MODEL_RETRIES_MS):
                    raise
                delay_ms = MODEL_RETRIES_MS[failures]
                failures += 1
                self.emit(ModelRetryEvent(attempt=failures, delay_ms=delay_ms, error=text_of(error)))
                await self._wait(delay_ms, text_of(error), "retry")
            except PromptTooLongError:
                if purpose == "summary" or not await self._compact():
                    raise
                await self._boundary()
            else:
                self.usage += answer.usage
                self.turn.add_usage(answer.usage.total_tokens)
                await self.hooks.generate_end(answer, purpose=purpose, took_ms=max(0, self.now() - began))
                return answer

    def _request(self, purpose: str) -> ModelRequest:
        settings = self.session.settings
        said = self._said()
        if purpose == "summary":  # most providers refuse a conversation that ends with an answer
            said.append(Prompt(text=SUMMARY_ASK))
        return ModelRequest(
            conversation=tuple(said),
            tools=self.planner.tools() if purpose != "summary" else (),
            system=self.session.system_text() if purpose != "summary" else SUMMARY_SYSTEM,
            purpose=purpose,
            output_max=settings.max_output_tokens,
            temperature=settings.temperature,
            thinking_budget=settings.thinking_budget,
            session_id=self.session.session_id,
            run_id=self.id,
        )

    def _rebase(self, *, without: str = "") -> None:
        """What was said before this run, as it is told from now on."""
        self._base = self.book.utterances(self.turn.conversation, without=without)
        self.recording.based(self._base, without)

    def _said(self) -> list[Utterance]:
        return [*self._base, *self.machine.said()]

    async def call_model(self, request: ModelRequest, model: Model) -> Answer:
        """One call of a model, through its lanes."""
        self.called = model
        closed = self.session.host.closed_model(account_of(model))
        if closed is not None:  # somebody else has heard that the provider takes no calls now
            self._phase(TurnState.WAITING)
            self.waits_for, self.waits_until = closed
            self.emit(RunWaitingEvent(reason=self.waits_for, until_ms=self.waits_until))
        self.clock.queued("lane" if closed is None else "limit", self.waits_for or self.session.model_lane)
        self.model_job = job = self.session.submit_model(functools.partial(self._stream, request, model), model)
        try:
            answer: Answer = await outcome(job, "the run was ended")
        finally:
            self.model_job = None
        return answer

    async def _stream(self, request: ModelRequest, model: Model) -> Answer:
        """In its slot: take in what the model says, piece by piece."""
        visible = request.purpose == "answer"
        stream: AsyncIterator[Chunk] | None = None
        self.clock.in_slot()
        if self.waits_for:  # for a provider that takes calls again
            self.waits_for, self.waits_until = "", 0
            self._phase(TurnState.COMPACTING if request.purpose == "summary" else TurnState.THINKING)
        try:
            self.sent = True
            stream = model.stream(request)
            async for chunk in stream:
                self.heard = True
                self.recording.heard(chunk)
                if isinstance(chunk, Answer):
                    return heard_answer(chunk, model.name)
                if visible:
                    self._show(chunk)
        except (LanewayError, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BUGS as error:
            _log.warning("model %r has a bug", model.name, exc_info=True)
            raise ModelError(f"the model has a bug: {describe(error)}", model=model.name) from error
        except BaseException as error:
            raise ModelUnavailableError(f"the model failed: {describe(error)}", model=model.name) from error
        finally:
            await _close_stream(stream)
        raise ModelUnavailableError("the stream of the model was cut", model=model.name)

    def _show(self, chunk: Chunk) -> None:
        if isinstance(chunk, TextChunk):
            self.emit(TextDeltaEvent(text=chunk.text))
        elif isinstance(chunk, ReasoningChunk):
            self.emit(ReasoningDeltaEvent(text=chunk.text))
        elif isinstance(chunk, CallChunk):
            self.emit(ToolInputDeltaEvent(tool_id=chunk.call_id, tool_name=chunk.name, text=chunk.arguments))
        else:
            raise TypeError(f"a model yields chunks and an Answer, not {type(chunk).__name__}")

    async def _wait_for_limit(self, error: ModelLimitedError) -> None:
        """The provider says when: its limit is closed for everybody until then, and the run goes on by itself."""
        after = error.retry_after_ms
        if type(after) is not int or after > LIMIT_MAX_MS:
            _log.warning("model %r says to wait %r ms, which is no time to wait", self.called.name, after)
            after = LIMIT_MAX_MS if type(after) is int else LIMIT_ODD_MS
        after = max(1, after)
        until = self.wall() + after
        self.session.host.close_model(account_of(self.called), until, text_of(error))
        self.emit(RunWaitingEvent(reason=text_of(error), until_ms=until))
        await self.hooks.rate_limited(error, retry_after_ms=after, until_ms=until)
        await self._wait(after, text_of(error), "limit")

    async def _wait(self, delay_ms: int, reason: str, kind: str) -> None:
        """Wait a while; the slots of the turn are lent meanwhile."""
        with self.waiting(kind, reason, self.wall() + delay_ms), self.resting():
            await self.session.host.wait(delay_ms)

    @contextlib.contextmanager
    def waiting(self, kind: str, reason: str, until_ms: int) -> Iterator[None]:
        """It does nothing meanwhile, and says why, and until when."""
        self._phase(TurnState.WAITING)
        self.waits_for, self.waits_until = reason, until_ms
        with self.clock.waiting(kind, reason):
            yield
        self.waits_for, self.waits_until = "", 0
        self._phase(TurnState.THINKING)

    # ---- compaction ----

    async def _compact_if_needed(self) -> None:
        settings, window = self.session.settings, self.session.model.context_tokens
        if window is None or not settings.auto_compact or self._cannot_compact:
            return
        if self._tokens() <= window * settings.auto_compact_threshold:
            return
        try:
            await self._compact()
        except (ModelError, ModelUnavailableError) as error:  # the model may still take it as it is
            self._cannot_compact = True
            _log.warning("the conversation of %r could not be compacted: %s", self.session.session_id, error)

    def _tokens(self) -> int:
        """About how many tokens the next request has: what the provider counted last, and what was said since."""
        said = self._said()
        since = 0
        for each in reversed(said):
            if isinstance(each, Answer) and each.usage.total_tokens:
                return each.usage.total_tokens + since // CHARS_PER_TOKEN
            since += len(str(each))
        return since // CHARS_PER_TOKEN

    async def _compact(self) -> bool:
        """Replace the older part of the conversation by a summary; messages that steer are held meanwhile."""
        book, conversation = self.book, self.turn.conversation
        lineage = book.lineage
        done = [one for one in book.rounds if one.conversation == conversation and one.state is not RoundState.ACTING]
        own = [one for one in done if origin_of(one.run_id, lineage) == self.origin]
        kept = own[-KEEP_ROUNDS:]
        old = [one for one in done if one not in kept]
        upto = old[-1] if old else None
        if upto is None or (book.compaction is not None and book.compaction.upto_seq >= upto.seq):
            return False
        before, tokens = self._said(), self._tokens()
        self._phase(TurnState.COMPACTING)
        try:
            with self.clock.waiting("compacting", "the older part of the conversation is summarised"):
                answer = await self._ask(purpose="summary")
        finally:
            self._phase(TurnState.THINKING)
        if not answer.text.strip():
            self._cannot_compact = True  # not with this model
            return False
        compaction = Compaction(
            conversation=conversation,
            summary=Prompt(text=f"{SUMMARY_TITLE}\n{answer.text}{self.planner.outline()}", role="system"),
            upto_seq=upto.seq,
            before=len(before),
            after=0,
            seq=book.next_seq(),
            at_ms=self.wall(),
        )
        book.keep(compaction)
        await book.committed()
        self._rebase(without=self.id)
        self.machine.leave_out(upto.seq)
        percent = 0
        if self.session.model.context_tokens:
            percent = min(100, 100 * tokens // self.session.model.context_tokens)
        self.emit(
            ContextCompactedEvent(before_messages=len(before), after_messages=len(self._said()), percent_before=percent)
        )
        return True

    # ---- going on after a crash ----

    async def _resume(self) -> bool:
        """Go on where a run over these messages was cut off; False if there is nothing to go on with."""
        turn = self.turn
        wanted = self.session.resume_wanted(turn)
        ids = [message.id for message in turn.messages]
        rounds = self.book.run(self.book.newest(wanted)) if wanted else self.book.unfinished(ids)
        if rounds:
            self.origin = origin_of(rounds[-1].run_id, self.book.lineage)
        if not wanted and (rounds or turn.attempt > 1):
            await self._agree_to_resume(rounds)
        if not rounds:
            return False
        last = rounds[-1]
        line = [one for one in self.book.rounds if origin_of(one.run_id, self.book.lineage) == self.origin]
        seen = frozenset(name for one in line for name in one.messages)
        await turn._engine.take_in(turn, everything=True, among=seen)  # noqa: SLF001 - it has heard these already
        others = all(one is not self.book.rounds[-1] for one in line)  # have spoken since
        unknown: tuple[str, ...] = ()
        self.planner.resume(self.book, last)
        past = max((one.number for one in self.book.run(wanted)), default=0) if wanted else 0
        self._past = past if self.session.is_fork(turn) else 0
        if last.state is RoundState.ACTING:
            unknown = await self._take_over(last)
        elif last.state is RoundState.FINAL:
            self.machine = self._new_machine(resumed_from=last.run_id, first=last.number)
            self.machine.take_over(replace(last, run_id=self.id, resumed_from=last.run_id, is_copy=True, seq=0))
        else:
            self.machine = self._new_machine(resumed_from=last.run_id, first=last.number + 1)
        self._rebase(without=self.id)
        self.machine.go_on(ids, [Prompt(text=GO_ON.format(prompt=self._prompt_of(rounds)))] if others else [])
        unheard = [message for message in turn.messages if not wanted and message.id not in seen]
        self.machine.add(self.planner.due)
        if all(one.number <= past for one in line):  # else a run that was cut off has told its model
            self.machine.add(self.session.said_wanted(turn))
        self.machine.add([await self._heard(each) for each in unheard])
        done = len(rounds) - (last.state is not RoundState.DONE)
        self.emit(StartEvent(prompt=turn.prompt, messages=tuple(message.id for message in turn.messages)))
        self.emit(RunResumedEvent(resumed_from=last.run_id, rounds=done, unknown=unknown))
        self.planner.resumed()
        return True

    def _prompt_of(self, rounds: list[Round]) -> str:
        """What the run was about."""
        return next((prompt.text for one in rounds for prompt in one.prompts), self.turn.prompt)

    async def _agree_to_resume(self, rounds: list[Round]) -> None:
        """The process died in this run before: whether to go on is a setting, or somebody is asked."""
        on_crash = self.session.settings.on_crash
        if on_crash == "resume":
            return
        reason = "the process ended while it ran; resume_run goes on with it"
        if on_crash == "ask":
            self.waits_for = "it was cut off, and waits for an approval to go on"
            self.emit(RunWaitingEvent(reason=self.waits_for))
            with self.resting():
                answer = await self.turn.ask_approval("resume", {"prompt": self.turn.prompt, "rounds": len(rounds)})
            self.waits_for = ""
            if answer.state is ApprovalState.APPROVED:
                return
            reason = f"{reason}, and going on was not approved ({answer.state})"
        for one in rounds:
            if one.state is RoundState.ACTING:
                self.session.externals.take_back(one.run_id)
                self.book.close_old(one)
        raise InterruptSignalError(reason)

    async def _take_over(self, last: Round) -> tuple[str, ...]:
        """The open round of the old run becomes the first one of this: what is known stays, what is open is made."""
        self.machine = self._new_machine(resumed_from=last.run_id, first=last.number)
        mine = replace(last, run_id=self.id, resumed_from=last.run_id, is_copy=True, seq=0)
        mine.results, mine.times = dict(last.results), dict(last.times)
        toolbox = self.session.toolbox
        plan = after_crash(
            last,
            self.book.entries.values(),
            {name: tool.spec for name, tool in toolbox.items()},
            reconcilable=[name for name, tool in toolbox.items() if tool.can_reconcile],
            out=await self.calls.keys_out(last, self.origin),
            origin=self.origin,
        )
        begun = [step.call.id for step in plan if step.action in (Action.AGAIN_SAME_KEY, Action.ATTACH)]
        self.machine.take_over(mine, begun)
        unknown: list[str] = []
        for step in plan:
            call = step.call
            if step.action is Action.GONE:
                self._told(call, GONE.format(name=call.name), ResultStatus.ERROR)
            elif step.entry is not None and step.action in (Action.UNKNOWN, Action.RECONCILE):
                if await self._reconciled(call, step.action, step.key):
                    continue
                unknown.append(call.id)
                self._told(call, RESUMED_UNKNOWN, ResultStatus.UNKNOWN)
                if step.entry.state is LedgerState.INTENDED:
                    self.book.end_entry(step.entry, Change.LOSE, "the process ended while it ran")
        for call in last.answer.calls:
            last.results.setdefault(call.id, mine.results.get(call.id) or open_result(call))
        last.state = RoundState.CUT
        self.book.keep(last)
        self.book.keep(mine)
        await self.book.committed()
        return tuple(unknown)

    async def _reconciled(self, call: ToolCall, action: Action, key: str) -> bool:
        """Whether the tool itself knows what became of a call."""
        tool = self.session.toolbox.get(call.name)
        if action is not Action.RECONCILE or tool is None:
            return False
        try:
            entry = self.book.entries[key]  # a hook may have changed what the model wanted
            arguments = tool.check(entry.arguments or call.arguments)
        except LanewayError:
            return False
        output = await self.calls.reconcile(call, tool, arguments, key)
        if output is None:
            return False
        self._told(call, output.text, ResultStatus.ERROR if output.is_error else ResultStatus.OK)
        self.book.end_entry(self.book.entries[key], Change.FAIL if output.is_error else Change.SUCCEED, "reconciled")
        return True

    def _told(self, call: ToolCall, text: str, status: ResultStatus) -> None:
        self.machine.result(ToolResult(call_id=call.id, name=call.name, output=text, status=status))

    # ---- telling ----

    def recent_tools(self) -> list[str]:
        """The names of the tools that were called last in this run, the newest last."""
        names: list[str] = []
        for one in reversed(self.machine.rounds):
            names += [call.name for call in reversed(one.answer.calls) if call.id in one.results]
            if len(names) >= RECENT_TOOLS:
                break
        return names[:RECENT_TOOLS][::-1]

    def _phase(self, state: TurnState) -> None:
        self.turn._engine.set_phase(self.turn, state)  # noqa: SLF001 - the loop is the turn's own handler

    def emit(self, event: AgentEvent) -> None:
        """Tell whoever watches."""
        self.recording.told(event)
        self.session.emit_event(event, self.id)

    def after_commit(self, call: Callable[[], object]) -> None:
        """Do it when everything kept so far is on disk, or was refused: then the run is about to hear of that."""

        def after(_: Exception | None) -> None:
            call()

        self.turn._engine.journal.after(self.book.owner, after)  # noqa: SLF001


async def outcome(job: Job[Any], reason: str) -> Any:
    """The outcome of a job, without lending anything; whoever is cancelled meanwhile cancels it."""
    if not job.done():
        ended = asyncio.get_running_loop().create_future()
        job.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
        try:
            await ended
        except asyncio.CancelledError:
            job.cancel(reason)
            raise
    return await job


async def _close_stream(stream: AsyncIterator[Chunk] | None) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        try:
            await close()
        except Exception as error:  # noqa: BLE001 - what it has said counts, however it takes its leave
            _log.warning("the stream of a model could not be closed: %s", describe(error))
