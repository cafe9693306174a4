"""The laws of the inbox that only the end of a run can tell: every message ended once, nothing was lost or doubled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from laneway.inbox import Inbox
from laneway.mail import FINAL_MESSAGE_STATES, MessageState, Outcome
from laneway.rows import MessageRow
from laneway.sim.mail_books import Books, ChildRecord, Letter, Verdict, tag_of
from laneway.sim.mail_people import FREED
from laneway.stores.memory import MemoryDisk

__all__ = ("end_problems", "leftovers")

# The simulator looks into the engine to see that nothing is left in it.
# ruff: noqa: SLF001

TURNED = frozenset({MessageState.RAN, MessageState.MERGED, MessageState.STEERED})


def end_problems(books: Books, disk: MemoryDisk, *, lives: int) -> Iterator[str]:
    """What is wrong after everything was healed and has ended."""
    by_tag: dict[str, list[MessageRow]] = {}
    for row in disk.messages.values():
        body = json.loads(row.body)
        if not body.get("retry_of"):
            by_tag.setdefault(tag_of(body["text"]), []).append(row)
        yield from _row(row, books)
    for letter in books.letters.values():
        yield from _letter(letter, by_tag.get(letter.tag, []))
    for child in books.children.values():
        yield from _child(child, by_tag.get(child.label, []))
    for tag, rows in by_tag.items():
        if tag not in books.letters and tag.startswith("followup-") and len(rows) > 1:
            yield f"{tag} was asked for once, and there are {len(rows)} of it"
    if books.world.options.get("dedupe_ms") != 0:
        yield from _doubles(disk)
    yield from _overflow(books, disk, lives)


def _row(row: MessageRow, books: Books) -> Iterator[str]:
    state = MessageState(row.state)
    if state not in FINAL_MESSAGE_STATES or row.live:
        yield f"{row.id} is {state} (live={row.live}) at the end: {row.reason}"
        return
    if state not in TURNED:
        return
    record = books.turns.get(row.turn_id)
    outcome = Outcome(row.outcome)
    if record is None:
        if outcome is not Outcome.INTERRUPTED:
            yield f"{row.id} {state} in {row.turn_id} with {outcome}, and no handler ever saw that turn"
        return
    if state is MessageState.STEERED:
        if row.id not in books.taken.get(row.turn_id, ()):
            yield f"{row.id} was steered into {row.turn_id}, whose handler never got it"
    elif row.id not in [each.id for each in record.turn.messages]:
        yield f"{row.id} ran in {row.turn_id}, which began without it"
    if outcome is Outcome.SUCCEEDED and record.end != "return":
        yield f"{row.id} succeeded in {row.turn_id}, whose handler ended by {record.end}"
    if outcome is Outcome.FAILED and record.end not in ("raise", "garbage"):
        yield f"{row.id} failed in {row.turn_id}, whose handler ended by {record.end}"


def _letter(letter: Letter, rows: list[MessageRow]) -> Iterator[str]:
    kept = [row for row in rows if MessageState(row.state) not in FREED] if letter.platform_id else rows
    if letter.verdict is Verdict.ACCEPTED and not any(row.id == letter.id for row in rows):
        yield f"{letter.tag} was accepted as {letter.id}, and is gone"
    if letter.verdict is Verdict.REFUSED and rows:
        yield f"{letter.tag} was refused, and the store has it as {rows[0].state}"
    if len(kept) > 1:
        yield f"{letter.tag} is there {len(kept)} times: {[(row.id, row.state) for row in kept]}"


def _child(child: ChildRecord, rows: list[MessageRow]) -> Iterator[str]:
    least = 0 if child.awaited or child.doubtful else 1
    most = 0 if child.awaited and not child.doubtful else 1
    if not least <= len(rows) <= most:
        told = "its turn waited for it" if child.awaited else "nobody waited for it"
        yield f"sub-agent {child.label}: {len(rows)} messages about its end, and {told}"


def _doubles(disk: MemoryDisk) -> Iterator[str]:
    seen: dict[tuple[Any, ...], str] = {}
    for row in disk.messages.values():
        if row.platform_id is None or MessageState(row.state) in FREED:
            continue
        key = (*row[1:4], row.route, row.platform_id)
        if key in seen:
            yield f"{seen[key]} and {row.id} have the same platform id {row.platform_id} on the same route"
        seen[key] = row.id


def _overflow(books: Books, disk: MemoryDisk, lives: int) -> Iterator[str]:
    """Every line that was kept was told once, if nobody stopped a session and no process died before its turn ended."""
    kept = sum(row.state == "summarized" for row in disk.messages.values())
    if lives == 1 and not books.stopped and books.overflow_told != kept:
        yield f"{kept} messages were summarized, and the agent was told of {books.overflow_told}"


def leftovers(inbox: Inbox) -> Iterator[str]:
    """What an inbox in which nothing waits or runs still keeps."""
    engine = inbox._engine
    kernel = engine.kernel
    for name in ("boxes", "items", "turns"):
        if getattr(kernel, name):
            yield f"kernel.{name}: {sorted(map(str, getattr(kernel, name)))}"
    if kernel.next_due() is not None:
        yield f"a timer of the kernel, due at {kernel.next_due()}"
    for name in ("_turns", "_ends", "_jobs", "_reloads", "_unstored", "_children", "_approvals", "_arrivals"):
        if getattr(engine, name):
            yield f"engine.{name}: {getattr(engine, name)}"
    if not engine.journal.is_idle:
        yield "the journal is not idle"
