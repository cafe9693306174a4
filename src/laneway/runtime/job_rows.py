"""Durable jobs as rows: what a store keeps of a job, and how it is read back.

A row has one of five states. `queued` and `scheduled` wait. `running` is written before the code of an attempt begins,
so a row that says so when a store is opened was interrupted. `failed` is an attempt that ended badly and about which
nothing is decided yet. `dead` is a dead letter. A job that has ended in any other way has no row.

The payload is JSON text from the moment a job is taken: what a handler gets is the same before and after a restart,
and each attempt gets its own copy.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from enum import StrEnum
from typing import Any, Final

from laneway.errors import ConfigError, InvalidJobError, text_of
from laneway.kernel.protocol import PLAIN, End, JobSpec
from laneway.records import DURATION_MAX_MS, DeadLetter, Effect, JobId, Priority, RetryPolicy
from laneway.rows import Owner, StateKey, StateRow

__all__ = ("KIND", "PAYLOAD_MAX", "JobRecord", "RowState", "decode_payload", "encode_payload")

KIND: Final = "job"
PAYLOAD_MAX: Final = 16 * 1024 * 1024
"""How many bytes of JSON a payload may have."""

CRASHES_MAX: Final = 5
TEXT_MAX: Final = 10_000
VERSION: Final = 1

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode
_new = tuple.__new__  # makes a NamedTuple at half the price; only where every job passes
_PAYLOAD = ',"payload":'
_NUMBERS = ("failures", "deferrals", "crashes", "due_ms", "delay_ms", "ended_ms", "after_ms")
_TEXTS = ("error", "reason", "end")


class RowState(StrEnum):
    """Where a durable job is, as its row says it."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    FAILED = "failed"
    DEAD = "dead"


def encode_payload(payload: object) -> str:
    """A payload as JSON text; what JSON cannot carry is refused."""
    try:
        text = _encode(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJobError(
            f"the payload is not JSON: {text_of(error)}", hint="pass text, numbers, True, None, lists and mappings"
        ) from None
    size = len(text) if text.isascii() else _size_of(text, "payload")
    if size > PAYLOAD_MAX:
        raise InvalidJobError(
            f"the payload has {size:,} bytes, and at most {PAYLOAD_MAX:,} are kept",
            hint="store it elsewhere, and pass where it is",
        )
    return text


def decode_payload(text: str) -> Any:
    """What `encode_payload` was given, as JSON has carried it; a copy of its own each time."""
    return _decode(text)[0]


def _size_of(text: str, what: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        hint = "lone surrogates cannot be stored"
        raise InvalidJobError(f"the {what} has a character that is no text: {error.reason}", hint=hint) from None


def stored_text(value: object) -> str:
    """Any text as a store can keep it: bounded, and without what is no text."""
    return text_of(value)[:TEXT_MAX].encode("utf-8", "replace").decode()


class JobRecord:
    """One durable job (or dead letter) as its row has it; whoever changes it says so to the journal."""

    __slots__ = (
        "__dict__",
        "attempt",
        "gone",
        "handler",
        "head",
        "id",
        "lanes",
        "owner",
        "payload",
        "pending",
        "row_key",
        "seq",
        "spec",
        "state",
        "submitted_ms",
        "told",
    )

    # What nearly no job needs has its default here; `__dict__` comes into being with the first of them that is set.
    plain: bool = True  # nothing below was ever set, so nothing of it has to be written
    failures: int = 0
    deferrals: int = 0
    crashes: int = 0
    due_ms: int = 0
    delay_ms: int = 0
    ended_ms: int = 0
    after_ms: int = 0
    error: str = ""
    reason: str = ""
    end: str = ""
    history: tuple[str, ...] = ()
    replaces: JobRecord | None = None  # the dead letter that it was sent again from
    doubt: Exception | None = None  # why nobody knows whether it was stored at all; nothing is written meanwhile

    def __init__(  # noqa: PLR0913 - what a job is, once and for all
        self,
        job_id: str,
        seq: int,
        workspace: str,
        *,
        lanes: tuple[str, ...],
        handler: str,
        payload: str,
        spec: JobSpec,
        submitted_ms: int,
        head: str = "",
    ) -> None:
        self.id = JobId(job_id)
        self.seq = seq
        # An owner of its own: what is wrong with a row fails only this job.
        self.owner = _new(Owner, (spec.tenant, workspace, job_id))
        self.row_key = _new(StateKey, (KIND, job_id))
        self.lanes = lanes
        self.handler = handler
        self.payload = payload
        self.spec = spec
        self.submitted_ms = submitted_ms
        self.state = RowState.QUEUED
        self.attempt = 0
        self.gone = False  # the job has ended: it is to have no row
        self.told: list[Any] | None = None  # who hears of the write that is to leave next; None: there is none
        self.pending = False  # whoever enqueued it still waits to hear whether it was taken
        self.head = head or _head_text(handler, lanes, submitted_ms, spec)

    # ---- writing ----

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        tenant, workspace, _ = self.owner
        body = f'{self.head}{_PAYLOAD}{self.payload},"attempt":{self.attempt}'
        body += "}" if self.plain else f",{_encode(self._changes())[1:]}"
        return _new(StateRow, (KIND, self.id, tenant, workspace, "", self.seq, 1, self.state.value, body))

    def _changes(self) -> dict[str, Any]:
        changes: dict[str, Any] = {name: getattr(self, name) for name in (*_NUMBERS, *_TEXTS)}
        if self.history:
            changes["history"] = self.history
        return {name: value for name, value in changes.items() if value} or {"failures": 0}

    # ---- changing ----

    def schedule(self, delay_ms: int, *, wall_ms: int) -> None:
        """It waits for a time."""
        self.plain = False
        self.state = RowState.SCHEDULED
        self.delay_ms = delay_ms
        self.due_ms = wall_ms + delay_ms

    def remember(self, failures: int, deferrals: int, history: list[str] | None) -> None:
        """What its attempts have come to so far."""
        self.plain = False
        self.failures = failures
        self.deferrals = deferrals
        self.history = tuple(stored_text(line) for line in history or ())

    def fail(self, end: End, reason: str, error: str, *, after_ms: int, wall_ms: int) -> None:
        """An attempt ended badly; what follows is not decided yet."""
        self.plain = False
        self.state = RowState.FAILED
        self.end = end.value
        self.reason = stored_text(reason)
        self.error = stored_text(error)
        self.after_ms = after_ms
        self.ended_ms = wall_ms

    def die(self, reason: str, *, wall_ms: int, error: str = "") -> None:
        """It is a dead letter from now on."""
        self.plain = False
        self.gone = False
        self.state = RowState.DEAD
        self.reason = stored_text(reason)
        self.error = stored_text(error) or self.reason
        self.ended_ms = wall_ms

    def interrupt(self, how: str, *, wall_ms: int, crashed: bool) -> None:
        """It ran and its end is not known: it runs again if that does no harm, else a person has to look."""
        self.plain = False
        self.gone = False
        if crashed:
            self.crashes += 1
        if self.spec.effect is Effect.WRITE:
            reason = f"interrupted: {how} while it ran; whether it had its effect is unknown"
        elif self.crashes >= CRASHES_MAX:
            reason = f"interrupted {self.crashes} times: {how} while it ran; it is not tried again by itself"
        else:
            self.state = RowState.QUEUED
            return
        self.history = (*self.history, f"attempt {self.attempt}: {reason}")
        self.die(reason, wall_ms=wall_ms)

    def due_in_ms(self, wall_ms: int) -> int:
        """How long it still waits for its time; a wall clock that was set back makes it no longer than it was."""
        if self.state is not RowState.SCHEDULED:
            return 0
        return max(0, min(self.due_ms - wall_ms, self.delay_ms, DURATION_MAX_MS))

    def to_letter(self) -> DeadLetter:
        """As people see it among the dead letters."""
        return DeadLetter(
            id=self.id,
            lane=self.lanes[-1],
            lanes=self.lanes,
            label=self.spec.label,
            handler=self.handler,
            args=(decode_payload(self.payload),),
            kwargs={},
            error=self.error,
            reason=self.reason,
            attempts=self.attempt,
            submitted_ms=self.submitted_ms,
            died_ms=self.ended_ms,
            history=self.history,
        )

    # ---- reading ----

    @classmethod
    def from_row(cls, row: StateRow) -> JobRecord:
        """Read a row; one that is not as we write them raises ValueError."""
        head, payload, changes = _split(row.body)
        try:
            fixed = json.loads(head + "}")
            record = cls(
                row.id,
                row.seq,
                row.workspace,
                lanes=tuple(map(str, fixed["lanes"])),
                handler=str(fixed["handler"]),
                payload=payload,
                spec=_spec_from_json(fixed.get("spec", {}), row.tenant),
                submitted_ms=int(fixed["submitted_ms"]),
                head=head,
            )
            record.state = RowState(row.state)
            record.attempt = int(changes.pop("attempt"))
            if changes:
                record._read_changes(changes)
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if not record.lanes:
            raise ValueError("it names no lane")
        return record

    def _read_changes(self, changes: dict[str, Any]) -> None:
        self.plain = False
        for name in _NUMBERS:
            setattr(self, name, int(changes.get(name, 0)))
        for name in _TEXTS:
            setattr(self, name, str(changes.get(name, "")))
        self.history = tuple(map(str, changes.get("history", ())))


def _split(body: str) -> tuple[str, str, dict[str, Any]]:
    """A body as it was put together: what never changes, the payload (both as text), and what does.

    Inside a JSON string a quotation mark has a backslash before it, so the mark is found nowhere but between the keys.
    """
    mark = body.index(_PAYLOAD)
    start = mark + len(_PAYLOAD)
    _, end = _decode(body, start)
    changes = json.loads("{" + body[end + 1 :])
    if not isinstance(changes, dict) or body[end : end + 1] != ",":
        raise ValueError("it is not as Laneway writes it")
    return body[:mark], body[start:end], changes


def _head_text(handler: str, lanes: tuple[str, ...], submitted_ms: int, spec: JobSpec) -> str:
    said = "" if spec is PLAIN else _spec_text(spec)
    return f'{{"v":{VERSION},"handler":{_text(handler)},"lanes":{_texts(lanes)},"submitted_ms":{submitted_ms}{said}'


@functools.lru_cache(maxsize=256)
def _text(value: str) -> str:
    """A name as JSON; there are few of them, and they come again and again."""
    return _encode(value)


@functools.lru_cache(maxsize=1024)
def _texts(values: tuple[str, ...]) -> str:
    return _encode(values)


def _spec_text(spec: JobSpec) -> str:
    text = _encode(_spec_to_json(spec))
    if not (text.isascii() and spec.tenant.isascii()):
        _size_of(text + spec.tenant, "label, key or tenant")
    return f',"spec":{text}'


def _spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """What was said about a job, without what is as usual; its tenant is in the row, its delay is a due time."""
    fields: dict[str, Any] = {}
    for name in ("timeout_ms", "wait_timeout_ms", "deadline_ms", "label"):
        if getattr(spec, name):
            fields[name] = getattr(spec, name)
    if spec.key is not None:
        fields["key"] = spec.key
    if spec.priority is not Priority.USER:
        fields["priority"] = int(spec.priority)
    if spec.effect is not Effect.WRITE:
        fields["effect"] = str(spec.effect)
    if spec.weight != 1:
        fields["weight"] = spec.weight
    if spec.retry is not None:
        fields["retry"] = dataclasses.asdict(spec.retry)
    return fields


def _spec_from_json(fields: dict[str, Any], tenant: str) -> JobSpec:
    if not fields and tenant == PLAIN.tenant:
        return PLAIN
    retry = fields.get("retry")
    return JobSpec(
        priority=Priority(fields.get("priority", Priority.USER)),
        timeout_ms=fields.get("timeout_ms"),
        wait_timeout_ms=fields.get("wait_timeout_ms"),
        deadline_ms=fields.get("deadline_ms"),
        retry=RetryPolicy(**retry) if retry is not None else None,
        effect=Effect(fields.get("effect", Effect.WRITE)),
        tenant=tenant,
        weight=fields.get("weight", 1.0),
        key=fields.get("key"),
        label=fields.get("label", ""),
    )
