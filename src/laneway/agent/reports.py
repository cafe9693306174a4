"""What a session can say about itself: its queue, its runs, its ledger."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from laneway.agent.looking import Looking, Past
from laneway.agent.queue_records import QueueStats
from laneway.agent.replays import how_ended
from laneway.agent.results import RunInfo
from laneway.agent_events import (
    AgentEvent,
    EndEvent,
    RunResumedEvent,
    StartEvent,
    SteeredEvent,
    TextDeltaEvent,
    ToolEndEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from laneway.dialogue import Usage
from laneway.errors import UnknownRunError, UsageError
from laneway.kernel.ledger import Change, LedgerEntry, LedgerState
from laneway.kernel.plans import ROLE as PLAN
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.run_words import state_words, tell_run
from laneway.mail import TurnState

if TYPE_CHECKING:
    from laneway.agent.background import Background
    from laneway.agent.book import Book
    from laneway.agent.externals import Externals
    from laneway.agent.host import Host
    from laneway.agent.loop import Run
    from laneway.agent.queue_records import DeadCommand, QueueMetrics
    from laneway.agent.session_lanes import SessionLanes
    from laneway.identity import Identity
    from laneway.kernel.task_entries import TaskEntry
    from laneway.rows import Owner, StateRow

__all__ = ("Reports", "stored_info")

RUNS_MAX = 10_000
LEFT_OPEN = "it was cut off there; it goes on when its session is opened"


class Reports(Looking):
    """Questions to a session."""

    session_id: str
    identity: Identity
    owner: Owner
    host: Host
    book: Book
    lanes: SessionLanes | None
    _run: Run | None
    externals: Externals
    background_calls: Background
    _traces: deque[AgentEvent]

    # ---- the queue ----

    def queue_stats(self) -> QueueStats:
        """What waits and runs in the lanes of this session; zeros without a queue."""
        if self.lanes is None:
            return QueueStats(total_pending=0, total_active=0, external_pending=0, lanes={})
        stats = self.lanes.stats()
        stats["external_pending"] = self.externals.count()
        return stats

    def queue_metrics(self) -> QueueMetrics | None:
        """Counters, gauges and histograms of the lanes; None if they are not switched on."""
        return None if self.lanes is None else self.lanes.metrics()

    def dead_letters(self) -> list[DeadCommand]:
        """Calls that failed for good, with what they were called with."""
        return [] if self.lanes is None else self.lanes.dead_letters()

    # ---- runs ----

    async def runs(self) -> list[RunInfo]:
        """Every run of this session, oldest first."""
        async with self._past() as past:
            await past.book.load()
            rows = await past.history.states(self.owner, "turn", limit=RUNS_MAX)
            return [_at_rest(stored_info(row, past.book.run(row.id)), past) for row in rows]

    async def run_snapshot(self, run_id: str) -> RunInfo:
        """What is known about one run; of the one that goes on, also what it waits for."""
        return (await self._snapshot(run_id))[0]

    async def _snapshot(self, run_id: str) -> tuple[RunInfo, list[Round]]:
        """The same, with the rounds of the run."""
        async with self._past() as past:
            if self._run is not None and self._run.id == run_id:
                return self._info(self._run), list(self._run.machine.rounds)
            if past.is_live:
                await past.book.load()
            row = await past.history.state("turn", run_id)
            if row is None or row.session != self.session_id or row.tenant != self.owner.tenant:
                raise UnknownRunError(f"there is no run {run_id!r} in this session", hint="runs() lists them")
            rounds = await past.book.read_run(run_id)
            return _at_rest(stored_info(row, rounds), past), rounds

    def _info(self, run: Run) -> RunInfo:
        facts: dict[str, Any] = {"prompt": run.turn.prompt, "reason": run.waits_for}
        facts["tools"] = tuple(call.name for call in run.calls.active)
        facts["messages"] = tuple(message.id for message in run.turn.messages)
        facts["began_ms"] = run.turn._entry.began_ms  # noqa: SLF001 - the turn of this very run
        state = TurnState.WAITING if run.waits_for else run.turn.state
        return _info(run.id, state, run.machine.rounds, **facts)

    def explain(self) -> str:
        """Why what runs here goes no further at this moment: one sentence for each thing it waits for."""
        run, behind = self._run, self.background_calls.explain()
        if run is None:
            return "\n".join(behind) or f"Nothing runs in session {self.session_id!r}."
        lines = [f"Run {run.id} waits: {run.waits_for}."] if run.waits_for else []
        if run.model_job is not None:
            lines.append(f"The model call: {run.model_job.explain()}")
        lines += [*run.calls.explain(), *behind]
        return "\n".join(lines) or f"Run {run.id} {state_words(run.turn.state)}."

    async def explain_run(self, run_id: str) -> str:
        """What a run did, waited for and cost, and how it ended, in words; of one that goes on, as far as it is."""
        found, rounds = await self._snapshot(run_id)
        return tell_run(run_id, found.state, found.reason, found.answer, rounds)

    def worker_began(self, entry: TaskEntry) -> None:
        """A worker begins with a call of the run that goes on."""
        if self._run is not None and self._run.id == entry.run_id:
            self._run.calls.taken(entry.call_id, entry.worker, entry.attempt)

    async def run_events(self, run_id: str) -> list[AgentEvent]:
        """What a run has told, made again from its checkpoints: its pieces of text are joined."""
        async with self._past() as past:
            await self._snapshot(run_id)
            rounds = await past.book.read_run(run_id)
        events: list[AgentEvent] = []
        calls = tokens = 0
        for one in rounds:
            calls += len(one.answer.calls)
            tokens += one.usage.total_tokens
            events += _events_of(one, calls, tokens)
        return [replace(event, session_id=self.session_id, identity=self.identity) for event in events]

    def trace_events(self) -> list[dict[str, Any]]:
        """What has happened in this session since it was opened, oldest first: every event but pieces of text."""
        return [event.to_dict() for event in self._traces]

    # ---- the ledger ----

    async def ledger(self, state: LedgerState | str | None = None) -> list[LedgerEntry]:
        """The calls with side effects, oldest first: `ledger("unknown")` are those that somebody has to look at."""
        if state is not None and state not in set(LedgerState):
            raise UsageError(f"there is no state {state!r}", hint=", ".join(LedgerState))
        wanted = None if state is None else LedgerState(state)
        async with self._past() as past:
            await past.book.load()
            known = await past.book.all_entries()
        found = [entry for entry in known if wanted in (None, entry.state)]
        return sorted(found, key=lambda entry: entry.seq)

    async def settle(
        self, entry_id: str, reason: str, *, actor: str = "host", happened: bool | None = None
    ) -> LedgerEntry:
        """Say what became of a call of which nobody knew it; `happened` None: that could not be found out."""
        await self.ready()
        found = next((entry for entry in await self.ledger() if entry_id in (entry.id, entry.key)), None)
        if found is None:
            raise UsageError(f"there is no ledger entry {entry_id!r}", hint="ledger() lists them")
        now_ms = self.host.inbox.engine.wall()
        settled = found.change(Change.SETTLE, now_ms=now_ms, reason=reason, actor=actor, happened=happened)
        self.book.keep(settled)
        await self.book.committed()
        return settled


def _at_rest(found: RunInfo, past: Past) -> RunInfo:
    """What is known of a run; nobody is at work on one whose session is not in memory, whatever it was doing there."""
    return found if past.is_live or TurnState(found.state).is_final else replace(found, reason=LEFT_OPEN)


def stored_info(row: StateRow, rounds: list[Round]) -> RunInfo:
    """What the store knows about a run."""
    reason, answer = how_ended(row)
    return _info(row.id, row.state, rounds, answer=answer, reason=reason)


def _info(run_id: str, state: str, rounds: list[Round], **more: Any) -> RunInfo:
    usage = sum((one.usage for one in rounds), Usage())
    first = rounds[0] if rounds else None
    facts: dict[str, Any] = {
        "prompt": first.prompts[0].text if first is not None and first.prompts else "",
        "messages": tuple(name for one in rounds for name in one.messages),
        "began_ms": first.at_ms if first is not None else 0,
        **more,
    }
    return RunInfo(
        run_id=run_id,
        state=str(state),
        rounds=sum(one.was_asked for one in rounds),
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cost=usage.cost,
        resumed_from=first.resumed_from if first is not None else "",
        **facts,
    )


def _events_of(one: Round, calls: int, tokens: int) -> list[AgentEvent]:
    """What was told in a round; `calls` and `tokens` are those of the run so far."""
    facts: dict[str, Any] = {"run_id": one.run_id, "at_ms": one.at_ms}
    events: list[AgentEvent] = []
    own = [prompt.text for prompt in one.prompts if prompt.role != PLAN]
    text = "\n".join(own)
    if one.resumed_from:
        events.append(RunResumedEvent(resumed_from=one.resumed_from, rounds=one.number - 1, **facts))
    elif one.number == 1:
        events.append(StartEvent(prompt=text, messages=one.messages, **facts))
    elif own:
        events.append(SteeredEvent(messages=one.messages, text=text, **facts))
    events.append(TurnStartEvent(turn=one.number, **facts))
    if one.answer.text:
        events.append(TextDeltaEvent(text=one.answer.text, **facts))
    for call in one.answer.calls:
        result = one.results.get(call.id)
        if result is not None:
            events.append(ToolEndEvent.of(result, **facts))
    events.append(TurnEndEvent(turn=one.number, total_tokens=tokens, **facts))
    if one.state is RoundState.FINAL:
        events.append(EndEvent(text=one.answer.text, total_tokens=tokens, tool_calls_count=calls, **facts))
    return events
