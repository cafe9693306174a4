"""Checkpoints: the rounds of a run, and what a conversation was compacted to, as rows; and how they are read back.

A round's row holds what this round has added, so all rows together grow as the conversation does. A text of more than
`BLOB_MIN` characters is a row of its own, a blob, known by the hash of what it holds: a tenant keeps the same output
once, however often and in however many sessions it occurs. A blob therefore belongs to the tenant alone (its workspace
and session are empty). Nothing loads it by itself, and whoever deletes a session may delete a blob only if no other
row names it (`blobs_of`). A blob is written with every row that names it: the same row twice is one row.

An artifact is a file. Whatever names one, a result or a prompt, has its row name a blob that stands for it (`note_of`):
so it is known which artifacts are in use, and they go as blobs do.

A message of the user and the answer of a run are kept by the inbox already. Whoever gives these `texts` to `encode`
has them kept by reference, and must give the same to `decode`.

The body of a row is JSON with short keys. A text in it is a string, the number of a blob in `b`, or the id of a kept
text in a list. What is empty is left out.

```text
v  version          a  answer: x text, k reasoning, c calls, u usage, m model, o opaque
b  hashes of blobs  r  results, one for each call, null if there is none: a text, or
c  conversation        x text, s status, e exit code, f artifact, n name if it is not that of the call
p  prompts          m  ids of messages
t  at_ms            f  resumed_from, y  1 if its answer is a copy of that of another run
n  counted: tokens of system text and tools, how much had been said
q  asked_ms         w  waits: kind, reason, began_ms, ended_ms
k  times of calls, null if there are none: lane, queued_ms, began_ms, ended_ms, and if they say anything:
   attempt, out_ms, task_id, worker
```

The times in `q`, `w` and `k` are counted from `t`; null is a time that nobody knows.

What is read is held against all of this. Whatever is wrong with a row is one `StoreCorruptError` that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from laneway.dialogue import Answer, Prompt, ResultStatus, ToolCall, ToolResult, Usage
from laneway.errors import StoreCorruptError, StoreVersionError, UnstorableError, describe
from laneway.kernel.rounds import CallTimes, Round, RoundState, RoundWait
from laneway.rows import Owner, StateRow

__all__ = (
    "BLOB",
    "BLOB_MIN",
    "COMPACTION",
    "ROUND",
    "Compaction",
    "Named",
    "blobs_of",
    "check_shape",
    "decode",
    "decode_compaction",
    "digest_of",
    "encode",
    "encode_compaction",
    "named_in",
    "note_of",
    "noted_in",
    "read_body",
    "refuse",
    "round_id",
    "to_json",
)

ROUND: Final = "round"
COMPACTION: Final = "compaction"
BLOB: Final = "blob"
VERSION: Final = 1
BLOB_MIN: Final = 4096
"""A text with more characters than this is a blob. Rows of more than a page of SQLite fill their pages best."""

HASH_CHARS: Final = 64
_MENTIONED: Final = "artifact:"
_MENTION: Final = re.compile(rf"\b{_MENTIONED}([0-9a-f]{{64}})\b")
_NOTE: Final = re.compile(r'\{"artifact":"([0-9a-f]{64})"\}')

Blobs = Callable[[str], str | None]
"""The body of the blob with that id; None if there is none."""

Texts = Mapping[str, str]
"""What the inbox keeps: the text of a message by its id, the answer of a run by the id of the run."""

T = TypeVar("T")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_NO_TEXTS: Final[Texts] = {}
_NO_USAGE: Final = Usage()
_NUMBERS: Final = frozenset({int, float, bool})
_RESULT_STATES: Final = {status.value: status for status in ResultStatus}
_WHOLE: Final = frozenset({RoundState.DONE, RoundState.FINAL, RoundState.CUT})  # every call has its result
_ROUND_STATES: Final = {state.value: state for state in RoundState}
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_read = json.JSONDecoder(parse_constant=_no_constant).decode
_write_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What stands for the beginning of a conversation: `summary` replaces every round up to `upto_seq`."""

    conversation: int
    summary: Prompt
    upto_seq: int
    before: int  # how much the conversation was, by the count that decides about compacting
    after: int
    seq: int
    at_ms: int = 0


# ---- writing ----


def to_json(value: object) -> str:
    """A value as JSON that a store can keep; half a surrogate pair, as file names may have, is written as an escape."""
    try:
        text = _write(value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                text = _write_ascii(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableError(
            f"a round cannot be stored: {describe(error)}",
            hint="attachments and what a provider wants back are text, numbers, True, None, lists and mappings",
        ) from None
    return text


def digest_of(body: str) -> str:
    """What a blob with this body is known by in its tenant."""
    return sha256(body.encode()).hexdigest()


def note_of(artifact: str) -> str:
    """The body of the blob that stands for an artifact."""
    return to_json({"artifact": artifact})


def noted_in(body: str) -> str | None:
    """The artifact that a blob stands for; None: it is a text."""
    found = _NOTE.fullmatch(body)
    return None if found is None else found[1]


class _Writer:
    """Turns texts into what stands for them, and gathers the blobs."""

    def __init__(self, owner: Owner, seq: int, texts: Texts) -> None:
        self.owner = owner
        self.seq = seq
        self.texts = texts
        self.bodies: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.artifacts: dict[str, None] = {}

    def text(self, value: str, *kept_as: str) -> Any:
        for text_id in kept_as:
            if self.texts.get(text_id) == value and len(value) > len(text_id):
                return [text_id]
        return value if len(value) <= BLOB_MIN else self._number(to_json(value))

    def value(self, value: object) -> Any:
        """Any JSON: in a list, or the number of the blob that has it."""
        body = to_json(value)
        return [value] if len(body) <= BLOB_MIN else self._number(body)

    def prompt(self, prompt: Prompt, kept_as: tuple[str, ...] = ()) -> Any:
        text = self.text(prompt.text, *kept_as)
        if _MENTIONED in prompt.text:  # most texts mention none, and a search for words is slow
            self.artifacts.update(dict.fromkeys(_MENTION.findall(prompt.text)))
        if prompt.role == "user" and not prompt.attachments:
            return text
        body = {"x": text, "r": prompt.role}
        if prompt.attachments:
            body["a"] = self.value(prompt.attachments)
        return body

    def answer(self, answer: Answer, run_id: str) -> dict[str, Any]:
        usage = answer.usage
        body = {
            "x": self.text(answer.text, run_id),
            "k": self.text(answer.reasoning),
            "c": [[call.id, call.name, self.text(call.arguments)] for call in answer.calls],
            "m": answer.model,
        }
        if usage != _NO_USAGE:
            counts = [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens]
            body["u"] = [*counts, usage.cost]
        if answer.opaque is not None:
            body["o"] = self.value(answer.opaque)
        return _without_empty(body)

    def result(self, call: ToolCall, result: ToolResult | None) -> Any:
        if result is None:
            return None
        text = self.text(result.output)
        body: dict[str, Any] = {}
        if result.status is not ResultStatus.OK:
            body["s"] = result.status.value
        if result.exit_code is not None:
            body["e"] = result.exit_code
        if result.artifact is not None:
            body["f"] = result.artifact
            self.artifacts.update(dict.fromkeys(_MENTION.findall(f"artifact:{result.artifact}")))
        if result.name != call.name:
            body["n"] = result.name
        return {"x": text, **body} if body else text

    def body(self, facts: dict[str, Any], named: tuple[str, ...] = ()) -> str:
        for note in map(note_of, self.artifacts):
            self.bodies[digest_of(note)] = note  # behind those that have numbers
        digests = list(dict.fromkeys((*self.bodies, *named)))
        return to_json({"v": VERSION, **({"b": digests} if digests else {}), **_without_empty(facts)})

    def blobs(self) -> tuple[StateRow, ...]:
        if not self.bodies:
            return ()
        tenant = self.owner.tenant
        return tuple(
            StateRow(BLOB, f"{tenant}:{digest}", tenant, "", "", self.seq, 0, "", body)
            for digest, body in self.bodies.items()
        )

    def _number(self, body: str) -> int:
        digest = digest_of(body)
        self.bodies[digest] = body
        return self.numbers.setdefault(digest, len(self.numbers))


def encode(round: Round, owner: Owner, texts: Texts = _NO_TEXTS) -> tuple[StateRow, tuple[StateRow, ...]]:  # noqa: A002 - what it is
    """The row of a round, and the blobs that have to be written with it."""
    assert round.number >= 1
    assert round.seq >= 1  # a row without a place is never found again
    flaw = _flaw(round)
    if flaw:
        raise UnstorableError(f"round {round.number} of run {round.run_id!r} cannot be stored: {flaw}")
    writer = _Writer(owner, round.seq, texts)
    calls = round.answer.calls
    facts = {
        "c": round.conversation,
        "t": round.at_ms,
        "f": round.resumed_from,
        "y": 1 if round.is_copy else None,
        "n": round.counted,
        "m": round.messages,
        "p": [writer.prompt(prompt, round.messages) for prompt in round.prompts],
        "a": writer.answer(round.answer, round.run_id),
        "r": [writer.result(call, round.results.get(call.id)) for call in calls] if round.results else [],
        **_times_of(round),
    }
    live = int(round.state is RoundState.ACTING)
    row = StateRow(ROUND, round_id(round), *owner, round.seq, live, round.state.value, writer.body(facts, round.named))
    return row, writer.blobs()


def _times_of(round: Round) -> dict[str, Any]:  # noqa: A002 - what it is
    """Where the time of a round went, as short as it can be said."""

    def since(ms: int) -> int | None:
        return ms - round.at_ms if ms else None

    def of_call(times: CallTimes | None) -> list[Any] | None:
        if times is None:
            return None
        usual = [times.lane, since(times.queued_ms), since(times.began_ms), since(times.ended_ms)]
        more = [times.attempt, since(times.out_ms), times.task_id, times.worker]
        return usual if more == [1, None, "", ""] else usual + more

    return {
        "q": since(round.asked_ms),
        "w": [[wait.kind, wait.reason, since(wait.began_ms), since(wait.ended_ms)] for wait in round.waits],
        "k": [of_call(round.times.get(call.id)) for call in round.answer.calls] if round.times else [],
    }


def round_id(round: Round) -> str:  # noqa: A002 - what it is
    """What the row of a round is known by."""
    return f"{round.run_id}/{round.number:06d}"


def encode_compaction(compaction: Compaction, owner: Owner) -> tuple[StateRow, tuple[StateRow, ...]]:
    """The row of a compaction, and the blobs that have to be written with it."""
    assert compaction.seq >= 1
    writer = _Writer(owner, compaction.seq, _NO_TEXTS)
    facts = {
        "c": compaction.conversation,
        "t": compaction.at_ms,
        "p": [writer.prompt(compaction.summary)],
        "n": [compaction.upto_seq, compaction.before, compaction.after],
    }
    row_id = f"{owner.tenant}/{owner.workspace}/{owner.session}/{compaction.seq}"
    return StateRow(COMPACTION, row_id, *owner, compaction.seq, 0, "", writer.body(facts)), writer.blobs()


def _without_empty(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value or type(value) in _NUMBERS}  # 0 says something


def _flaw(round: Round) -> str:  # noqa: A002 - what it is
    """What would be refused when it is read back."""
    ids = {call.id for call in round.answer.calls}
    if len(ids) != len(round.answer.calls):
        return "two calls have one id"
    for key, result in round.results.items():
        if key not in ids or result.call_id != key:
            return "a result belongs to no call"
    if len(round.results) < len(ids) and round.state in _WHOLE:
        return f"it is {round.state}, and a call has no result"
    return ""


# ---- reading ----


class _FlawError(Exception):
    """What is wrong with a row."""


class _Reader:
    """Reads one body; what is not as it should be is a flaw."""

    def __init__(self, row: StateRow, body: dict[str, Any], blob: Blobs, texts: Texts) -> None:
        self.tenant = row.tenant
        self.body = body
        self.blob = blob
        self.texts = texts
        self.digests = _digests_in(body)

    def text(self, value: object) -> str:
        if type(value) is str:
            return value
        if type(value) is int:
            return _a(str, _parse(self._blob_body(value)), "a blob")
        if type(value) is list and len(value) == 1 and type(value[0]) is str:
            kept = self.texts.get(value[0])
            if kept is None:
                raise _FlawError(f"the text of {value[0]} is not there")
            return kept
        raise _FlawError("a text is none")

    def value(self, value: object) -> Any:
        if type(value) is list and len(value) == 1:
            return value[0]
        if type(value) is int:
            return _parse(self._blob_body(value))
        raise _FlawError("a value is none")

    def listed(self, value: object) -> list[Any]:
        return _a(list, self.value(value), "attachments")

    def prompt(self, value: object) -> Prompt:
        if type(value) is not dict:
            return Prompt(text=self.text(value))
        attachments = tuple(self.listed(value["a"])) if "a" in value else ()
        role = _a(str, value.get("r"), "a role")
        return Prompt(text=self.text(value.get("x")), role=role, attachments=attachments)

    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(map(self.prompt, _a(list, self.body.get("p", []), "the prompts")))

    def answer(self) -> Answer:
        body = _a(dict, self.body.get("a", {}), "the answer")
        calls = tuple(map(self._call, _a(list, body.get("c", []), "the calls")))
        if len({call.id for call in calls}) != len(calls):
            raise _FlawError("two calls have one id")
        return Answer(
            text=self.text(body.get("x", "")),
            reasoning=self.text(body.get("k", "")),
            calls=calls,
            usage=_usage(body["u"]) if "u" in body else Usage(),
            model=_a(str, body.get("m", ""), "the model"),
            opaque=self.value(body["o"]) if "o" in body else None,
        )

    def results(self, calls: tuple[ToolCall, ...]) -> dict[str, ToolResult]:
        values = _a(list, self.body.get("r", []), "the results")
        if values and len(values) != len(calls):
            raise _FlawError(f"it has {len(calls)} calls and {len(values)} results")
        pairs = zip(calls, values, strict=False)
        return {call.id: self._result(call, value) for call, value in pairs if value is not None}

    def counted(self) -> tuple[int, ...]:
        if "n" not in self.body:
            return ()
        return tuple(_a(int, each, "what was counted") for each in _some(2, self.body["n"], "what was counted"))

    def asked_ms(self) -> int:
        return self._time(self.body.get("q"))

    def waits(self) -> tuple[RoundWait, ...]:
        return tuple(map(self._wait, _a(list, self.body.get("w", []), "the waits")))

    def times(self, calls: tuple[ToolCall, ...]) -> dict[str, CallTimes]:
        values = _a(list, self.body.get("k", []), "the times")
        if values and len(values) != len(calls):
            raise _FlawError(f"it has {len(calls)} calls and the times of {len(values)}")
        pairs = zip(calls, values, strict=False)
        return {call.id: self._times(value) for call, value in pairs if value is not None}

    def _wait(self, value: object) -> RoundWait:
        kind, reason, began, ended = _some(4, value, "the parts of a wait")
        return RoundWait(
            kind=_a(str, kind, "a wait"),
            reason=_a(str, reason, "a reason"),
            began_ms=self._time(began),
            ended_ms=self._time(ended),
        )

    def _times(self, value: object) -> CallTimes:
        facts = _a(list, value, "the times of a call")
        lane, *times = _some(4, facts[:4], "the times of a call")
        attempt, out, task, worker = _some(4, facts[4:] or [1, None, "", ""], "the times of a call")
        queued, began, ended = map(self._time, times)
        return CallTimes(
            lane=_a(str, lane, "a lane"),
            queued_ms=queued,
            began_ms=began,
            ended_ms=ended,
            attempt=_a(int, attempt, "an attempt"),
            out_ms=self._time(out),
            task_id=_a(str, task, "a task"),
            worker=_a(str, worker, "a worker"),
        )

    def _time(self, value: object) -> int:
        return 0 if value is None else self.whole("t") + _a(int, value, "a time")

    def whole(self, key: str, default: int = 0) -> int:
        return _a(int, self.body.get(key, default), key)

    def _call(self, value: object) -> ToolCall:
        call_id, name, arguments = _some(3, value, "the parts of a call")
        return ToolCall(
            id=_a(str, call_id, "a call's id"), name=_a(str, name, "a tool"), arguments=self.text(arguments)
        )

    def _result(self, call: ToolCall, value: object) -> ToolResult:
        if type(value) is not dict:
            return ToolResult(call_id=call.id, name=call.name, output=self.text(value))
        status = _RESULT_STATES.get(_a(str, value.get("s", "ok"), "a status"))
        if status is None:
            raise _FlawError(f"a result cannot be {value['s']!r}")
        return ToolResult(
            call_id=call.id,
            name=_a(str, value.get("n", call.name), "a tool"),
            output=self.text(value.get("x")),
            status=status,
            exit_code=_a(int, value["e"], "an exit code") if "e" in value else None,
            artifact=_a(str, value["f"], "an artifact") if "f" in value else None,
        )

    def digest(self, number: int) -> str:
        if not 0 <= number < len(self.digests):
            raise _FlawError(f"it names blob {number} of {len(self.digests)}")
        return self.digests[number]

    def _blob_body(self, number: int) -> str:
        digest = self.digest(number)
        body = self.blob(f"{self.tenant}:{digest}")
        if body is None:
            raise _FlawError(f"the blob {digest} is not there")
        if _digest_or_none(body) != digest:
            raise _FlawError(f"the blob {digest} holds something else")
        return body


class _Surveyor(_Reader):
    """Reads a body without what it names, and notes that."""

    def __init__(self, row: StateRow, body: dict[str, Any]) -> None:
        super().__init__(row, body, lambda _: None, _NO_TEXTS)
        self.kept: set[str] = set()
        self.needs: dict[str, type] = dict.fromkeys(self.digests, object)

    def text(self, value: object) -> str:
        if type(value) is int:
            self._note(value, str)
            return ""
        if type(value) is list and len(value) == 1 and type(value[0]) is str:
            self.kept.add(value[0])
            return ""
        return super().text(value)

    def value(self, value: object) -> Any:
        if type(value) is int:
            self._note(value, object)
            return None
        return super().value(value)

    def listed(self, value: object) -> list[Any]:
        if type(value) is int:
            self._note(value, list)
            return []
        return super().listed(value)

    def _note(self, number: int, kind: type) -> None:
        digest = self.digest(number)
        known = self.needs[digest]
        if object not in (kind, known) and kind is not known:
            raise _FlawError(f"the blob {digest} cannot be a text and a list")
        self.needs[digest] = known if kind is object else kind


class Named(NamedTuple):
    """What a row needs beside itself: hashes of blobs with what has to be in them, and ids of texts of the inbox."""

    blobs: Mapping[str, type]
    texts: Collection[str]


def named_in(row: StateRow) -> Named:
    """What the row of a round or a compaction needs; one that could not be read whatever that says is refused."""
    body = read_body(row, row.kind, VERSION)
    try:
        surveyor = _Surveyor(row, body)
        if row.kind == ROUND:
            _round_of(row, surveyor)
        else:
            _compaction_of(row, surveyor)
    except _FlawError as flaw:
        refuse(row, str(flaw))
    if surveyor.kept and row.kind == COMPACTION:
        refuse(row, "a summary names a text of the inbox")
    return Named(surveyor.needs, surveyor.kept)


def decode(row: StateRow, blob: Blobs, texts: Texts = _NO_TEXTS) -> Round:
    """The round that a row was made of."""
    body = read_body(row, ROUND, VERSION)
    try:
        return _round_of(row, _Reader(row, body, blob, texts))
    except _FlawError as flaw:
        refuse(row, str(flaw))


def _round_of(row: StateRow, reader: _Reader) -> Round:
    run_id, number = _round_id(row.id)
    answer = reader.answer()
    decoded = Round(
        run_id=run_id,
        number=number,
        conversation=reader.whole("c"),
        state=_round_state(row.state),
        prompts=reader.prompts(),
        messages=_texts_in(reader.body.get("m", []), "the messages"),
        resumed_from=_a(str, reader.body.get("f", ""), "resumed_from"),
        answer=answer,
        is_copy=_a(int, reader.body.get("y", 0), "what says that it is a copy") == 1,
        counted=reader.counted(),
        results=reader.results(answer.calls),
        seq=row.seq,
        at_ms=reader.whole("t"),
        asked_ms=reader.asked_ms(),
        waits=reader.waits(),
        times=reader.times(answer.calls),
        named=reader.digests,
    )
    if decoded.state in _WHOLE and not decoded.is_whole:
        raise _FlawError(f"it is {decoded.state}, and a call has no result")
    return decoded


def decode_compaction(row: StateRow, blob: Blobs) -> Compaction:
    """The compaction that a row was made of."""
    body = read_body(row, COMPACTION, VERSION)
    try:
        return _compaction_of(row, _Reader(row, body, blob, _NO_TEXTS))
    except _FlawError as flaw:
        refuse(row, str(flaw))


def _compaction_of(row: StateRow, reader: _Reader) -> Compaction:
    (summary,) = _some(1, reader.body.get("p"), "the summary")
    upto_seq, before, after = (_a(int, each, "a number") for each in _some(3, reader.body.get("n"), "the numbers"))
    return Compaction(
        conversation=reader.whole("c"),
        summary=reader.prompt(summary),
        upto_seq=upto_seq,
        before=before,
        after=after,
        seq=row.seq,
        at_ms=reader.whole("t"),
    )


def blobs_of(row: StateRow) -> tuple[str, ...]:
    """The ids of the blobs that a row needs: to fetch them before it is read, or to know which are still in use."""
    if '"b":' not in row.body:  # most rows have none, and a session has many rows
        return ()
    body = read_body(row, row.kind, VERSION)
    try:
        return tuple(f"{row.tenant}:{digest}" for digest in _digests_in(body))
    except _FlawError as flaw:
        refuse(row, str(flaw))


def read_body(row: StateRow, kind: str, version: int) -> dict[str, Any]:
    """The body of a row of that kind, in a version that is known."""
    if row.kind != kind:
        refuse(row, f"it is no {kind}")
    try:
        body = _a(dict, _parse(row.body), "its body")
        found = _a(int, body.get("v"), "its version")
    except _FlawError as flaw:
        refuse(row, str(flaw))
    if found > version:
        raise StoreVersionError(
            f"{row.kind} {row.id!r} has version {found}, this Laneway knows {version}",
            hint="use the Laneway that wrote it, or a newer one; it was left as it is",
            kind=row.kind,
            row_id=row.id,
            version=found,
            known=version,
        )
    if found < 1:
        refuse(row, f"there is no version {found}")
    return body


def check_shape(
    row: StateRow, body: Mapping[str, Any], always: Mapping[str, type], sometimes: Mapping[str, type]
) -> None:
    """Refuse a body that lacks a field of `always`, or has a value of another type than these say."""
    for name, kind in (*always.items(), *((name, kind) for name, kind in sometimes.items() if name in body)):
        if type(body.get(name)) is not kind:
            refuse(row, f"{name} should be {kind.__name__}, and is {type(body.get(name)).__name__}")


def refuse(row: StateRow, reason: str) -> NoReturn:
    """Say which row is damaged, and what to do."""
    raise StoreCorruptError(
        f"{row.kind} {row.id!r} of session {row.session!r} is damaged: {reason}",
        hint="it was left as it is; put a backup of the store in its place, or go on in a new session",
        kind=row.kind,
        row_id=row.id,
        session=row.session,
        reason=reason,
    ) from None


def _digests_in(body: dict[str, Any]) -> tuple[str, ...]:
    """The hashes of the blobs that a body names."""
    digests = _texts_in(body.get("b", []), "the blobs")
    if any(len(digest) != HASH_CHARS for digest in digests):
        raise _FlawError("a blob has no hash")
    return digests


def _a(kind: type[T], value: object, what: str) -> T:
    """A value that has to be of that type; True is not a number."""
    if type(value) is not kind:
        raise _FlawError(f"{what} should be {kind.__name__}, and is {type(value).__name__}")
    return value


def _some(count: int, value: object, what: str) -> list[Any]:
    """A list of so many values."""
    values = _a(list, value, what)
    if len(values) != count:
        raise _FlawError(f"{what} should be {count}, and are {len(values)}")
    return values


def _round_state(value: str) -> RoundState:
    state = _ROUND_STATES.get(value)
    if state is None:
        raise _FlawError(f"a round cannot be {value!r}")
    return state


def _texts_in(value: object, what: str) -> tuple[str, ...]:
    return tuple(_a(str, each, what) for each in _a(list, value, what))


def _usage(value: object) -> Usage:
    *numbers, cost = _some(5, value, "the numbers of the usage")
    counts = [_a(int, number, "a count of tokens") for number in numbers]
    if cost is not None and type(cost) not in (int, float):
        raise _FlawError("the cost is no number")
    return Usage(
        input_tokens=counts[0],
        output_tokens=counts[1],
        cache_read_tokens=counts[2],
        cache_write_tokens=counts[3],
        cost=cost,
    )


def _round_id(row_id: str) -> tuple[str, int]:
    run_id, separator, number = row_id.rpartition("/")
    if not separator or not (number.isascii() and number.isdigit()) or len(number) > 18 or int(number) < 1:
        raise _FlawError("its id names no round")
    return run_id, int(number)


def _parse(text: str) -> Any:
    try:
        return _read(text)
    except (ValueError, RecursionError) as error:
        raise _FlawError(f"it is no JSON: {describe(error)[:200]}") from None


def _digest_or_none(body: str) -> str | None:
    try:
        return digest_of(body)
    except UnicodeEncodeError:
        return None
