"""The checker: holds what was acknowledged, what the witness saw and what the store says against each other."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from laneway.mail import MessageState
from laneway.rows import EntryRow, MessageRow, Owner
from laneway.stores.sqlite import SqliteStore
from tests.chaos.loader import Answers
from tests.chaos.plan import CUTTING, JobPlan, MessagePlan, platform_number
from tests.chaos.witness import Account, Ran

__all__ = ("Evidence", "Stored", "Verdict", "judge", "read_stored")

RAN: Final = frozenset({MessageState.RAN, MessageState.MERGED})
GIVEN_UP: Final = frozenset(
    {
        MessageState.SUPERSEDED,
        MessageState.SUMMARIZED,
        MessageState.DROPPED,
        MessageState.REJECTED,
        MessageState.WITHDRAWN,
    }
)
FORGOTTEN: Final = '"forgotten":true'
"""What a line of the transcript carries that was rolled back: the text may be said once more."""
ALLOWED: Final[dict[MessageState, frozenset[str]]] = {
    MessageState.SUPERSEDED: frozenset({"mixed", "cut"}),
    MessageState.SUMMARIZED: frozenset({"small"}),
    MessageState.DROPPED: frozenset({"oldest"}),
    MessageState.REJECTED: frozenset({"refuse"}),
    MessageState.WITHDRAWN: frozenset({"poked"}),
}
"""In which kinds of sessions a message may be given up, and how."""


NOTE: Final = re.compile(r"kid of [\w-]+|clock \d+")


@dataclass(slots=True)
class Stored:
    """What the store says when everything is over."""

    rows: dict[str, MessageRow] = field(default_factory=dict)
    entries: list[EntryRow] = field(default_factory=list)
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class Evidence:
    """Everything the checker looks at."""

    messages: dict[int, MessagePlan]
    jobs: dict[int, JobPlan]
    answers: Answers
    account: Account
    stored: Stored
    is_rerun: bool


@dataclass(slots=True)
class Verdict:
    """What is wrong, by kind, and how much was looked at."""

    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.wrong.values())

    def add(self, other: Verdict) -> None:
        """Take another world's verdict in."""
        for kind, places in other.wrong.items():
            self.wrong[kind] += places
        self.counts += other.counts

    def line(self) -> str:
        """The tally in one line."""
        counts = self.counts
        head = (
            f"{counts['kills']:,} kills in {counts['lives']:,} lives, {counts['accepted']:,} messages accepted"
            f" ({counts['resent']:,} sent again, {counts['unanswered']:,} of them stored before),"
            f" {counts['pokes']:,} changes to queues, {counts['children']:,} sub-agents, {counts['jobs']:,} jobs: "
        )
        wrongs = {"lost": 0, "run twice": 0, "out of order": 0} | {kind: len(all_) for kind, all_ in self.wrong.items()}
        facts = [f"{kind} {count:,}" for kind, count in wrongs.items()]
        facts += [f"interrupted (reported) {counts['interrupted']:,}"]
        if counts["jobs"]:
            facts += [f"jobs interrupted (dead letters) {counts['jobs interrupted']:,}"]
        return head + ", ".join(facts)


def judge(evidence: Evidence) -> Verdict:
    """Every law, one after the other."""
    verdict = Verdict()
    laws = (_lost, _run_twice, _order, _doubled, _finals, _overlaps, _transcripts, _told, _pokes, _notes, _jobs)
    for law in laws:
        for kind, what in law(evidence):
            verdict.wrong[kind].append(what)
    for problem in evidence.stored.problems:
        verdict.wrong["store"].append(problem)
    answers = evidence.answers
    verdict.counts.update(
        {
            "kills": answers.kills.total(),
            "lives": answers.lives,
            "accepted": len(answers.acks),
            "refused": len(answers.refused),
            "resent": answers.resent,
            "unanswered": answers.unanswered,
            "duplicates": answers.duplicates,
            "jobs": len(answers.job_acks),
            "jobs interrupted": len(answers.dead_jobs),
            "turns": len(evidence.account.turns),
            "steered": sum(ended.state == "steered" for ended in answers.finals.values()),
            "merged": sum(ended.state == "merged" for ended in answers.finals.values()),
            "interrupted": sum(ended.outcome == "interrupted" for ended in answers.finals.values()),
            "intruders": answers.intruders,
            "pokes": answers.pokes,
            "children": len(evidence.account.children),
            "torn": evidence.account.torn,
        }
    )
    return verdict


Findings = Iterator[tuple[str, str]]


def _lost(evidence: Evidence) -> Findings:
    """What was acknowledged is final, in a way that its session allows; what succeeded was seen to run."""
    seen = {ran.message_id for ran in (*evidence.account.begun, *evidence.account.taken)}
    for number, message_id in evidence.answers.acks.items():
        plan = evidence.messages[number]
        ended = evidence.answers.finals.get(message_id)
        row = evidence.stored.rows.get(message_id)
        if ended is None or row is None or not ended.state:
            yield "lost", f"{plan} ({message_id}) was acknowledged and is unknown: {ended}"
            continue
        state = MessageState(ended.state)
        if state in GIVEN_UP:
            if plan.channel not in ALLOWED[state]:
                yield "lost", f"{plan} ({message_id}) ended {ended}"
        elif state not in RAN and state is not MessageState.STEERED:
            yield "lost", f"{plan} ({message_id}) ended {ended}"
        elif ended.outcome == "succeeded" and (message_id not in seen or not _was_finished(evidence, ended.turn_id)):
            yield "lost", f"{plan} ({message_id}) is said to have run in {ended.turn_id}, which nobody saw"
        elif ended.outcome == "interrupted" and not ended.reason:
            yield "unreported", f"{plan} ({message_id}) was interrupted without a reason"


def _was_finished(evidence: Evidence, turn_id: str) -> bool:
    turn = evidence.account.turns.get(turn_id)
    return turn is not None and turn.how == "ok"


def _run_twice(evidence: Evidence) -> Findings:
    """No message begins twice (with `rerun`: not twice in one life), none after its end, and no refused one at all."""
    begun: dict[int | str, list[Ran]] = defaultdict(list)
    for ran in evidence.account.begun:
        begun[ran.number or ran.message_id].append(ran)
        final = evidence.account.finals.get(ran.message_id)
        if final and final[0][0] < ran.place:
            yield "run twice", f"{ran} began after its end {final[0]}"
    for number, rans in begun.items():
        times: Counter[int] = Counter(ran.life if evidence.is_rerun else 0 for ran in rans)
        if max(times.values()) > 1:
            yield "run twice", f"message {number} began {len(rans)} times: {rans}"
        if number in evidence.answers.refused:
            yield "run twice", f"message {number} was refused and ran: {rans}"
    if evidence.account.turns_begun_twice:
        yield "run twice", f"{evidence.account.turns_begun_twice} turns began twice"


def _order(evidence: Evidence) -> Findings:
    """A session begins messages in the order in which they were stored, and stores them in the order they were sent."""
    rows = evidence.stored.rows
    taken = {ran.message_id for ran in evidence.account.taken}
    newest: dict[str, tuple[int, Ran]] = {}
    first: set[str] = set()
    for ran in evidence.account.begun:
        row = rows.get(ran.message_id)
        plan = evidence.messages.get(ran.number)
        if row is None or plan is None or ran.message_id in first:
            continue
        first.add(ran.message_id)
        if plan.mode in CUTTING or ran.message_id in taken:
            continue  # it goes before others by its mode, or has been in a turn already
        before = newest.get(plan.session)
        if before is not None and before[0] > row.seq:
            yield "out of order", f"{plan.session}: {ran} (seq {row.seq}) began after {before[1]} (seq {before[0]})"
        newest[plan.session] = max((row.seq, ran), before or (0, ran))
    by_number: dict[int, list[MessageRow]] = defaultdict(list)
    for row in rows.values():
        by_number[platform_number(row.platform_id)].append(row)
    last: dict[str, tuple[int, int]] = {}
    for number in sorted(by_number):
        if number and len(by_number[number]) == 1:  # one that gave way and was sent again has a new place
            row = by_number[number][0]
            seq, other = last.get(row.session, (0, 0))
            if row.seq < seq:
                yield "out of order", f"{row.session}: message {number} was stored before message {other}"
            last[row.session] = (row.seq, number)


def _doubled(evidence: Evidence) -> Findings:
    """One platform id is one message; only what was given up before it ran frees its id."""
    kept: dict[int, list[MessageRow]] = defaultdict(list)
    for row in evidence.stored.rows.values():
        if row.platform_id and MessageState(row.state) not in GIVEN_UP:
            kept[platform_number(row.platform_id)].append(row)
    for number, rows in kept.items():
        if len(rows) > 1:
            yield "run twice", f"message {number} was stored {len(rows)} times: {[row.id for row in rows]}"


def _finals(evidence: Evidence) -> Findings:
    """An end never changes: what was published, what `wait` says and what the store has are one."""
    for message_id, row in evidence.stored.rows.items():
        said = [(state, outcome) for _, state, outcome in evidence.account.finals.get(message_id, [])]
        ended = evidence.answers.finals.get(message_id)
        if ended is not None:
            said.append((ended.state, ended.outcome))
        if any(one != (row.state, row.outcome) for one in said):
            yield "changed", f"{message_id} is {row.state}/{row.outcome} in the store, and was said to be {said}"
        if len(evidence.account.finals.get(message_id, [])) > 1:
            yield "changed", f"{message_id} ended twice: {said}"
        if row.live and row.state != MessageState.SUMMARIZED:
            yield "lost", f"{message_id} is still {row.state} when everything is over"


def _overlaps(evidence: Evidence) -> Findings:
    """A session has one turn at a time, and the turn before has ended when the next one begins."""
    running: dict[str, str] = {}
    life: dict[str, int] = {}
    turns = sorted(evidence.account.turns.values(), key=lambda turn: turn.began)
    for turn in turns:
        other = evidence.account.turns.get(running.get(turn.session, ""))
        if other is not None and life[turn.session] == turn.life and (other.ended is None or other.ended > turn.began):
            yield "overlap", f"{turn} began while {other} ran"
        running[turn.session], life[turn.session] = turn.turn_id, turn.life


def _transcripts(evidence: Evidence) -> Findings:
    """Each text that a turn has seen is in the transcript once, and no other."""
    users = [entry for entry in evidence.stored.entries if entry.role == "user"]
    lines = Counter(entry.message_id for entry in users)
    shown = Counter(entry.message_id for entry in users if FORGOTTEN not in entry.body)
    for message_id, count in shown.items():
        if count > 1:
            yield "transcript", f"{message_id} is there {count} times"
    for ran in (*evidence.account.begun, *evidence.account.taken):
        if ran.number and not lines[ran.message_id]:
            yield "transcript", f"{ran} is missing"


def _told(evidence: Evidence) -> Findings:
    """The agent hears of every message that gave way to the cap."""
    told: Counter[str] = Counter()
    for turn in evidence.account.turns.values():
        told[turn.session] += turn.told if turn.ended is not None else 0
    dropped = Counter(row.session for row in evidence.stored.rows.values() if row.state == MessageState.SUMMARIZED)
    for session, count in dropped.items():
        if told[session] < count:
            yield "untold", f"{session}: {count} messages gave way, and its turns were told of {told[session]}"


def _pokes(evidence: Evidence) -> Findings:
    """What was acknowledged stays: stopped and withdrawn messages begin no more, edited ones begin as they are now."""
    begun: dict[str, list[Ran]] = defaultdict(list)
    for ran in evidence.account.begun:
        begun[ran.message_id].append(ran)
    for poke in evidence.account.pokes:
        if poke.what == "stop":
            for message_id, (accepted, session) in evidence.account.accepted.items():
                if session == poke.session and accepted < poke.asked:
                    for ran in begun[message_id]:
                        if ran.place > poke.done:
                            yield "unstopped", f"{poke} ended what waits, and {ran} began"
        elif poke.what == "withdraw":
            row = evidence.stored.rows.get(poke.message_id)
            late = [ran for ran in begun[poke.message_id] if ran.place > poke.done]
            if late or row is None or row.state != MessageState.WITHDRAWN:
                yield "unstopped", f"{poke} took back {row}, which began {late}"
        elif poke.what == "edit":
            for ran in begun[poke.message_id]:
                # A later edit may have been stored without an answer: its number is higher.
                if ran.place > poke.done and _edit_number(ran.text) < poke.number:
                    yield "unedited", f"{poke} is not what {ran} began with"


def _edit_number(text: str) -> int:
    found = re.fullmatch(r"edit (\d+) please", text)
    return int(found[1]) if found else 0


def _notes(evidence: Evidence) -> Findings:
    """One message about each sub-agent that nobody waited for, and one for each time that the clock was to send one."""
    texts = [row.body for row in evidence.stored.rows.values() if not row.platform_id]
    notes = Counter(found[0] for text in texts if (found := NOTE.search(text)))
    for label, is_awaited in evidence.account.children.items():
        if notes[label] > 1 or (not notes[label] and not is_awaited):
            yield "notes", f"{notes[label]} messages about {label!r} (awaited: {is_awaited})"
    acknowledged = {poke.number for poke in evidence.account.pokes if poke.what == "schedule"}
    for number, count in Counter(f"clock {number}" for number in acknowledged).items():
        if notes[number] != count:
            yield "notes", f"{notes[number]} messages by {number!r}"


def _jobs(evidence: Evidence) -> Findings:
    """A job that was acknowledged ran to its end, or is a dead letter; a `write` begins once."""
    account, answers = evidence.account, evidence.answers
    for number, plan in evidence.jobs.items():
        begun, ended = account.jobs_begun.get(number, []), account.jobs_ended.get(number, [])
        job_id = answers.job_acks.get(number)
        if job_id is not None and not ended and job_id not in answers.dead_jobs:
            yield "jobs lost", f"{plan} ({job_id})"
        if plan.effect == "write" and len(begun) > 1:
            yield "jobs run twice", f"{plan} ({job_id}) began in lives {begun}"
        if len(set(begun)) < len(begun):
            yield "jobs run twice", f"{plan} ({job_id}) began twice in one life: {begun}"
        if plan.effect != "write" and job_id in answers.dead_jobs and len(begun) < 5:
            yield "jobs lost", f"{plan} ({job_id}) is a dead letter: {answers.dead_jobs[job_id]}"


# ---- the store, read when nobody has it any more ----


def read_stored(path: Path, sessions: Sequence[str]) -> Stored:
    """Everything the store says about these sessions."""
    return asyncio.run(_read(path, sessions))


async def _read(path: Path, sessions: Sequence[str]) -> Stored:
    store = SqliteStore(path)
    stored = Stored()
    await store.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        for session in sessions:
            owner = Owner("default", "default", session)
            after = 0
            while rows := await store.history.messages(owner, after_seq=after, limit=10_000):
                after = rows[-1].seq
                stored.rows.update({row.id: row for row in rows})
            after = 0
            while entries := await store.history.entries(owner, after_seq=after, limit=10_000):
                after = entries[-1].seq
                stored.entries += entries
        stored.problems = (await store.check()).problems
    return stored
