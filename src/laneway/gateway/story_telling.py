"""How a run or a message came to where it is, put together from what the store has and from what is in memory.

Rounds, calls, approvals and sub-agents are found by their ids, so the story of a run costs as much as the run had
rounds, not as much as its session is long. Nothing is invented: what no row tells is not told.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from laneway.agent.subagents import MARK, PREFIX, Errand, is_child_id
from laneway.dialogue import Usage
from laneway.errors import LanewayError
from laneway.gateway.story_views import (
    ApprovalTold,
    CallTold,
    ChildTold,
    LedgerTold,
    MessageTold,
    PlanStepTold,
    RoundTold,
    WaitTold,
    WholeRound,
)
from laneway.kernel.checkpoints import BLOB, ROUND, blobs_of, decode, round_id
from laneway.kernel.ledger import INTENT, LedgerEntry, decode_entry, key_of, row_id_of
from laneway.kernel.mailbox import decode_approval
from laneway.kernel.messages import decode_message
from laneway.kernel.plans import Plan, replay
from laneway.kernel.rounds import CallTimes, Round, RoundState, RoundWait
from laneway.mail import ApprovalState
from laneway.rows import EventRow, Owner, StateRow
from laneway.telemetry.redaction import redact, redact_tree

if TYPE_CHECKING:
    from laneway.agent.loop import Run
    from laneway.dialogue import ToolCall, ToolResult
    from laneway.gateway.workspaces import Workspace
    from laneway.ports import History

__all__ = (
    "RoundsOfRun",
    "approvals_told",
    "children_told",
    "live_run",
    "message_waits",
    "messages_told",
    "whole_round",
)

PAGE: Final = 500
PAGES_MAX: Final = 20
ROUNDS_MAX: Final = 200  # of one run in its story, the newest
OUTPUT_SHOWN: Final = 2_000
TEXT_SHOWN: Final = 4_000
WHOLE_MAX: Final = 400_000
MESSAGES_MAX: Final = 100
CHILDREN_MAX: Final = 100
PARALLEL_MAX: Final = 32  # tasks of one call whose sub-agents are looked for
SUBAGENT_TOOLS: Final = ("task", "parallel_task", "spawn")
RUNS_BEFORE_MAX: Final = 50
SHORT_WAIT_MS: Final = 20  # less is not waiting
HEARD: Final = ("message.started", "message.injected")


class _Texts(dict[str, str]):
    """Texts that the inbox keeps. Of those that are not here a story does not tell, so they are empty, not missing."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, "")


def live_run(workspace: Workspace, row: StateRow) -> Run | None:
    """A run that goes on in this process."""
    session = workspace.host.sessions.get((row.tenant, row.session))
    run = None if session is None else session.live_run(row.id)
    return None if run is None or run.ended.is_set() else run


# ---- rounds ----


class RoundsOfRun(NamedTuple):
    """The rounds of one run, oldest first."""

    rounds: list[Round]
    before: int = 0  # how many are left out
    resumed_by: str = ""
    run: Run | None = None
    entries: Mapping[str, LedgerEntry] = {}  # by the number of the round and the id of the call

    @classmethod
    async def read(cls, workspace: Workspace, row: StateRow) -> RoundsOfRun:
        """Of a run that goes on as it is in memory, of any other as it is on disk."""
        history = workspace.inbox.engine.store.history
        run, heir = live_run(workspace, row), ""
        if run is not None:
            rounds = list(run.machine.rounds)
        else:
            rows, heir = await _round_rows(history, row)
            rounds = await _decoded(history, rows[-ROUNDS_MAX:], _answer_of(row))
            rounds = [Round(run_id=row.id, number=1)] * (len(rows) - len(rounds)) + rounds
        shown = rounds[-ROUNDS_MAX:]
        return cls(shown, len(rounds) - len(shown), heir, run, await _entries(history, shown))

    @property
    def resumed_from(self) -> str:
        """The run that it went on for."""
        return self.rounds[0].resumed_from if self.rounds and not self.before else ""

    @property
    def usage(self) -> Usage:
        """What its rounds have used."""
        return sum((one.usage for one in self.rounds), Usage())

    def told(self) -> list[RoundTold]:
        """As they are shown; the last may be one that the model has not answered yet."""
        whys = self.run.calls.whys() if self.run is not None else {}
        told = [_round(one, self.entries, whys) for one in self.rounds]
        clock = None if self.run is None else self.run.clock
        if clock is not None and clock.number:
            waits = [_wait(wait) for wait in clock.waits]
            retries = sum(1 for wait in clock.waits if wait.kind == "retry")
            facts: dict[str, Any] = {"asked_ms": clock.asked_ms, "waits": waits, "retries": retries}
            told.append(RoundTold(number=clock.number, state="asking", was_asked=clock.is_sent, **facts))
        return told

    def plan(self) -> list[PlanStepTold]:
        """The plan as it is now; nothing without one."""
        plan = self._plan()
        return [] if plan is None else [PlanStepTold(**_cut_tree(step.to_task())) for step in plan.steps]

    def _plan(self) -> Plan | None:
        if self.run is not None:
            course = self.run.planner.course
            return None if course is None else course.plan
        try:
            found = None if self.before else replay(self.rounds)
            if found is not None and self.rounds[-1].state is RoundState.FINAL:
                found[0].heard(self.rounds[-1])
        except (LanewayError, AssertionError, ValueError):  # of a run that has taken over another's plan
            return None
        return None if found is None else found[0].plan


def _answer_of(row: StateRow) -> dict[str, str]:
    return {row.id: json.loads(row.body).get("answer") or ""}


async def _round_rows(history: History, run: StateRow) -> tuple[list[StateRow], str]:
    """The rows of its rounds, which were written after it had begun, and the run that has gone on with it."""
    owner, seq, heir = Owner(run.tenant, run.workspace, run.session), run.seq, ""
    found: list[StateRow] = []
    for _ in range(PAGES_MAX):
        rows = await history.states(owner, ROUND, after_seq=seq, limit=PAGE)
        found += (row for row in rows if row.id.rpartition("/")[0] == run.id)
        heir = heir or next((row.id.rpartition("/")[0] for row in rows if _resumes(row, run.id)), "")
        if len(rows) < PAGE or heir or (not run.live and not any(row in found for row in rows)):
            break
        seq = rows[-1].seq
    return found, heir


def _resumes(row: StateRow, run_id: str) -> bool:
    return run_id in row.body and json.loads(row.body).get("f") == run_id


async def _decoded(history: History, rows: Sequence[StateRow], texts: Mapping[str, str]) -> list[Round]:
    wanted = list(dict.fromkeys(name for row in rows for name in blobs_of(row)))
    stored = await history.states_by_id(BLOB, wanted) if wanted else []
    blobs = {name: row.body for name, row in zip(wanted, stored, strict=True) if row is not None}
    return [decode(row, blobs.get, _Texts(texts)) for row in rows]


async def _entries(history: History, rounds: Iterable[Round]) -> dict[str, LedgerEntry]:
    """What the ledger has of the calls of these rounds; a call that was taken over is in it under its first run."""
    ids = {
        row_id_of(run_id, one.number, call.id): f"{one.number}/{call.id}"
        for one in rounds
        for call in one.answer.calls
        for run_id in dict.fromkeys((one.run_id, one.resumed_from))
        if run_id
    }
    rows = await history.states_by_id(INTENT, list(ids)) if ids else []
    return {ids[row.id]: decode_entry(row) for row in rows if row is not None}


def _round(one: Round, entries: Mapping[str, LedgerEntry], whys: Mapping[str, str]) -> RoundTold:
    answer, usage = one.answer, one.answer.usage
    return RoundTold(
        number=one.number,
        state=one.state.value,
        was_asked=one.was_asked,
        asked_ms=one.asked_ms or None,
        answered_ms=one.at_ms or None,
        waits=[_wait(wait) for wait in one.waits],
        retries=sum(1 for wait in one.waits if wait.kind == "retry"),
        model=answer.model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cost=usage.cost,
        messages=list(one.messages),
        text=redact(answer.text[:TEXT_SHOWN]),
        text_chars=len(answer.text),
        has_reasoning=bool(answer.reasoning),
        calls=[_call(one, call, entries, whys) for call in answer.calls],
    )


def _wait(wait: RoundWait) -> WaitTold:
    reason = redact(wait.reason)
    return WaitTold(kind=wait.kind, reason=reason, began_ms=wait.began_ms, ended_ms=wait.ended_ms or None)


def _call(
    one: Round,
    call: ToolCall,
    entries: Mapping[str, LedgerEntry],
    whys: Mapping[str, str],
    most: int = OUTPUT_SHOWN,
) -> CallTold:
    times, result = one.times.get(call.id, CallTimes()), one.results.get(call.id)
    entry = entries.get(f"{one.number}/{call.id}")
    output = "" if result is None else result.output
    return CallTold(
        call_id=call.id,
        tool=call.name,
        arguments=redact_tree(_arguments(call.arguments), text_max=most),
        lane=times.lane or None,
        status=_status(result, times),
        why="" if result is not None else redact(whys.get(call.id, "")),
        queued_ms=times.queued_ms or None,
        out_ms=times.out_ms or None,
        began_ms=times.began_ms or None,
        ended_ms=times.ended_ms or None,
        attempt=times.attempt,
        worker=times.worker or None,
        task_id=times.task_id or None,
        exit_code=None if result is None else result.exit_code,
        artifact=None if result is None else result.artifact,
        output=redact(output[:most]),
        output_chars=len(output),
        ledger=None if entry is None else _ledger(entry),
    )


def _ledger(entry: LedgerEntry) -> LedgerTold:
    reason, happened = redact(entry.reason), entry.happened
    return LedgerTold(entry_id=entry.id, state=entry.state.value, reason=reason, happened=happened)


def _status(result: ToolResult | None, times: CallTimes) -> str:
    if result is not None:
        return result.status.value
    if times.began_ms:
        return "running"
    return "out" if times.out_ms else "queued" if times.queued_ms else "asked"


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # what a model has said may be no JSON


def _cut_tree(value: Any) -> Any:
    return redact_tree(value, text_max=OUTPUT_SHOWN)


async def whole_round(workspace: Workspace, row: StateRow, number: int) -> WholeRound | None:
    """One round of a run with everything in it; None if there is none."""
    history = workspace.inbox.engine.store.history
    run = live_run(workspace, row)
    one = None if run is None else next((each for each in run.machine.rounds if each.number == number), None)
    if one is None:
        stored = await history.state(ROUND, round_id(Round(run_id=row.id, number=number)))
        if stored is None:
            return None
        one = (await _decoded(history, [stored], _answer_of(row)))[0]
    entries = await _entries(history, [one])
    return WholeRound(
        number=one.number,
        state=one.state.value,
        prompts=[redact(prompt.text[:WHOLE_MAX]) for prompt in one.prompts if prompt.text],
        text=redact(one.answer.text[:WHOLE_MAX]),
        reasoning=redact(one.answer.reasoning[:WHOLE_MAX]),
        calls=[_call(one, call, entries, {}, WHOLE_MAX) for call in one.answer.calls],
    )


# ---- what else belongs to a run ----


async def messages_told(history: History, run: Mapping[str, Any], events: Sequence[EventRow]) -> list[MessageTold]:
    """The messages of a run: those it began over, and those that came in."""
    heard = {event.message_id: event.at_ms for event in events if event.type in HEARD}
    roles = {
        **dict.fromkeys(run.get("summarized", []), "summarized"),
        **dict.fromkeys(run.get("messages", []), "began"),
        **dict.fromkeys(run.get("injected", []), "steered"),
    }
    told: list[MessageTold] = []
    for message_id, role in list(roles.items())[:MESSAGES_MAX]:
        row = await history.message(message_id)
        if row is None:
            continue
        message, _ = decode_message(row)
        sender = message.sender
        told.append(
            MessageTold(
                message_id=message_id,
                role=role,
                text=message.text[:OUTPUT_SHOWN],
                sender="" if sender is None else sender.name or sender.id,
                disposition=row.state,
                arrived_ms=row.arrived_ms,
                heard_ms=heard.get(message_id),
            )
        )
    return sorted(told, key=lambda each: each.arrived_ms)


async def approvals_told(
    history: History, events: Sequence[EventRow], waiting: Iterable[str] = ()
) -> list[ApprovalTold]:
    """What the run has asked, and when it was answered; `waiting` are those of the run that it goes on for."""
    asked = [json.loads(event.body)["approval_id"] for event in events if event.type == "approval.asked"]
    asked += waiting
    ends = {json.loads(event.body)["approval_id"]: event.at_ms for event in events if event.type == "approval.ended"}
    rows = await history.states_by_id("approval", list(dict.fromkeys(asked))) if asked else []
    told: list[ApprovalTold] = []
    for row in rows:
        if row is None:
            continue
        found = decode_approval(row, json.loads(row.body))
        is_open = found.state is ApprovalState.PENDING
        told.append(
            ApprovalTold(
                approval_id=found.id,
                action=found.action,
                call_id=found.call_id,
                state=found.state.value,
                asked_ms=found.asked_ms,
                ended_ms=ends.get(found.id),
                expires_ms=found.expires_ms if is_open else None,
                answered_by=found.answered_by,
                reason=redact(found.reason or found.why),
            )
        )
    return told


async def children_told(
    history: History, owner: Owner, events: Sequence[EventRow], rounds: Sequence[Round]
) -> list[ChildTold]:
    """The sub-agents of a run, each with the newest run of its own."""
    begun, ended = dict[str, int](), dict[str, int]()
    for event in events:
        if event.type in ("child.started", "child.ended"):
            (begun if event.type == "child.started" else ended)[json.loads(event.body)["child_id"]] = event.at_ms
    ids = [name for name in begun if is_child_id(name.removeprefix(PREFIX))][-CHILDREN_MAX:]  # no calls in background
    rows = await history.states_by_id("child", ids) if ids else []
    calls = _calls_of_children(rounds) if ids else {}
    told: list[ChildTold] = []
    for child_id, row in zip(ids, rows, strict=True):
        session = child_id.removeprefix(PREFIX)
        turns = await history.states_newest(owner._replace(session=session), "turn", limit=1)
        told.append(
            ChildTold(
                child_id=child_id,
                label="" if row is None else json.loads(row.body).get("label", ""),
                state="ended" if row is None else row.state,
                call_id=calls.get(session.rpartition(MARK)[2], ""),
                session_key=session,
                run_id=turns[0].id if turns else None,
                tokens=json.loads(turns[0].body).get("tokens", 0) if turns else 0,
                began_ms=begun[child_id],
                ended_ms=ended.get(child_id),
            )
        )
    return told


def _calls_of_children(rounds: Sequence[Round]) -> dict[str, str]:
    """Which call started a sub-agent: its id is made of the key of that call."""
    found: dict[str, str] = {}
    for one in rounds:
        for call in one.answer.calls:
            for run_id in (one.run_id, one.resumed_from) if call.name in SUBAGENT_TOOLS else ():
                key = key_of(run_id, one.number, call.id)
                names = [key, *(f"{key}/{number}" for number in range(1, PARALLEL_MAX + 1))]
                found |= {Errand(key=name, prompt="").short: call.id for name in names}
    return found


def parent_of(session_key: str) -> str | None:
    """The session that a sub-agent works for."""
    return session_key.rpartition(MARK)[0] if is_child_id(session_key) else None


# ---- messages ----


async def message_waits(history: History, owner: Owner, arrived_ms: int, events: Sequence[EventRow]) -> list[WaitTold]:
    """What a message waited for before a run heard it; again, if one gave it back."""
    own = {event.turn_id for event in events if event.turn_id}
    waits = _held(events)
    since: int | None = arrived_ms
    for event in events:
        if since is not None and event.type in HEARD:
            waits += await _waits_between(history, owner, since, event, own)
            since = None
        elif since is not None and event.type == "message.ended":
            waits += await _runs_before(history, owner, own, since, event.at_ms)
            since = None
        elif event.type == "message.returned":
            since = event.at_ms if since is None else since
    if since is not None:
        waits += await _runs_before(history, owner, own, since, None)
    return sorted(waits, key=lambda wait: wait.began_ms)


async def _waits_between(
    history: History, owner: Owner, since: int, heard: EventRow, own: Collection[str]
) -> list[WaitTold]:
    end = heard.at_ms
    if heard.type == "message.injected":
        reason = f"the next safe point of run {heard.turn_id}"
        facts: dict[str, Any] = {"kind": "boundary", "reason": reason, "run_id": heard.turn_id}
        return [WaitTold(began_ms=since, ended_ms=end, **facts)] if end - since >= SHORT_WAIT_MS else []
    waits = await _runs_before(history, owner, own, since, end)
    last = max((wait.ended_ms or 0 for wait in waits), default=since)
    if end - last >= SHORT_WAIT_MS:
        reason = "a free slot, or the quiet time before a message is taken"
        waits.append(WaitTold(kind="lane", reason=reason, began_ms=last, ended_ms=end))
    return waits


def _held(events: Sequence[EventRow]) -> list[WaitTold]:
    waits: list[WaitTold] = []
    since: EventRow | None = None
    for event in events:
        if event.type == "message.held":
            since = since or event
        elif since is not None and event.type not in ("message.moved", "message.edited"):
            waits.append(_held_wait(since, event.at_ms))
            since = None
    return waits if since is None else [*waits, _held_wait(since, None)]


def _held_wait(event: EventRow, end: int | None) -> WaitTold:
    facts = json.loads(event.body)
    by = facts.get("actor") or "somebody"
    return WaitTold(kind="held", reason=f"set aside by {by}", began_ms=event.at_ms, ended_ms=end)


async def _runs_before(
    history: History, owner: Owner, own: Collection[str], since: int, end: int | None
) -> list[WaitTold]:
    """The runs of its session that went on while it waited."""
    waits: list[WaitTold] = []
    turns = await history.states_newest(owner, "turn", limit=RUNS_BEFORE_MAX)
    if own and all(turn.id not in own for turn in turns):  # an old message: what ran then is further back
        rows = await history.states_by_id("turn", list(own))
        before = max((row.seq + 1 for row in rows if row is not None), default=0)
        turns = await history.states_newest(owner, "turn", before_seq=before, limit=RUNS_BEFORE_MAX)
    for turn in turns:
        body = json.loads(turn.body)
        began, ended = max(since, body.get("began_ms", 0)), body.get("ended_ms") or None
        until = end if ended is None else ended if end is None else min(end, ended)
        is_none = (end is not None and began >= end) or (until is not None and until - began < SHORT_WAIT_MS)
        if turn.id not in own and not is_none:
            facts: dict[str, Any] = {"reason": f"run {turn.id}", "run_id": turn.id}
            waits.append(WaitTold(kind="run", began_ms=began, ended_ms=until, **facts))
    return waits
