"""Whatever a round is, its rows say it; whatever a row is, reading it gives a round or says what is wrong with it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.dialogue import Answer, Prompt, ResultStatus, ToolCall, ToolResult, ToolSpec, Usage
from laneway.errors import StoreCorruptError, StoreVersionError
from laneway.kernel.checkpoints import (
    Compaction,
    blobs_of,
    decode,
    decode_compaction,
    encode,
    encode_compaction,
)
from laneway.kernel.ledger import (
    Action,
    Change,
    LedgerEntry,
    LedgerState,
    after_crash,
    arguments_digest,
    decode_entry,
    key_of,
)
from laneway.kernel.rounds import Round, RoundState
from laneway.records import Effect
from laneway.rows import Owner, StateRow

pytestmark = pytest.mark.slow

OWNER = Owner("acme", "main", "chat")
REFUSALS = (StoreCorruptError, StoreVersionError)

short = st.text(max_size=12)
texts = short | st.builds(lambda part, times: part * times, st.text(min_size=1, max_size=3), st.integers(600, 2500))
whole = st.integers(0, 2**62)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3),
    max_leaves=6,
)
prompts = st.builds(Prompt, text=texts, role=short, attachments=st.lists(values, max_size=2).map(tuple))
usages = st.builds(
    Usage,
    input_tokens=whole,
    output_tokens=whole,
    cache_read_tokens=whole,
    cache_write_tokens=whole,
    cost=st.none() | st.floats(0, 1e9),
)
calls_of_one_answer = st.lists(
    st.builds(ToolCall, id=short, name=short, arguments=texts), max_size=3, unique_by=lambda call: call.id
).map(tuple)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    calls = draw(calls_of_one_answer)
    state = draw(st.sampled_from(RoundState))
    is_whole = state in {RoundState.DONE, RoundState.FINAL, RoundState.CUT}
    ended = [call for call in calls if is_whole or draw(st.booleans())]
    results = {
        call.id: ToolResult(
            call_id=call.id,
            name=draw(st.just(call.name) | short),
            output=draw(texts),
            status=draw(st.sampled_from(ResultStatus)),
            exit_code=draw(st.none() | st.integers(-200, 300)),
            artifact=draw(st.none() | short),
        )
        for call in ended
    }
    answer = Answer(
        text=draw(texts),
        reasoning=draw(texts),
        calls=calls,
        usage=draw(usages),
        model=draw(short),
        opaque=draw(values),
    )
    return Round(
        run_id=draw(short),
        number=draw(st.integers(1, 10**8)),
        conversation=draw(st.integers(0, 99)),
        state=state,
        prompts=tuple(draw(st.lists(prompts, max_size=2))),
        messages=tuple(draw(st.lists(short, max_size=2))),
        resumed_from=draw(short),
        is_copy=draw(st.booleans()),
        counted=draw(st.sampled_from([(), (0, 0), (1_200, 7)])),
        answer=answer,
        results=results,
        seq=draw(st.integers(1, 2**62)),
        at_ms=draw(whole),
    )


@given(rounds(), st.booleans())
def test_every_round_comes_back_as_it_was(one: Round, keep: bool) -> None:
    kept = {text_id: prompt.text for text_id, prompt in zip(one.messages, one.prompts, strict=False)}
    kept |= {one.run_id: one.answer.text}
    known = kept if keep else {}
    row, blobs = encode(one, OWNER, known)
    assert decode(row, {blob.id: blob.body for blob in blobs}.get, known) == one
    assert blobs_of(row) == tuple(blob.id for blob in blobs)
    assert row.body.encode()
    assert all(blob.body.encode() for blob in blobs)
    assert encode(one, OWNER, known) == (row, blobs)


@given(prompts, st.integers(1, 2**62), whole)
def test_every_compaction_comes_back_as_it_was(summary: Prompt, seq: int, number: int) -> None:
    compaction = Compaction(
        conversation=number, summary=summary, upto_seq=number, before=number, after=number, seq=seq, at_ms=number
    )
    row, blobs = encode_compaction(compaction, OWNER)
    assert decode_compaction(row, {blob.id: blob.body for blob in blobs}.get) == compaction


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_value(value[path[0]], path[1:], new)
    return copy


def read(row: StateRow, blobs: dict[str, str]) -> None:
    """Read it in every way there is; only the two refusals may come out."""
    with contextlib.suppress(*REFUSALS):
        decode(row, blobs.get)
    with contextlib.suppress(*REFUSALS):
        decode_compaction(row._replace(kind="compaction"), blobs.get)
    with contextlib.suppress(*REFUSALS):
        decode_entry(row._replace(kind="intent"))
    with contextlib.suppress(*REFUSALS):
        blobs_of(row)


@given(st.data())
def test_a_row_with_something_else_in_one_place_is_read_or_refused(data: st.DataObject) -> None:
    row, blobs = encode(data.draw(rounds()), OWNER)
    body = json.loads(row.body)
    damaged = with_value(body, data.draw(st.sampled_from(places(body))), data.draw(values))
    read(row._replace(body=json.dumps(damaged)), {blob.id: blob.body for blob in blobs})
    assert row.kind == "round"


@given(rounds(), st.integers(0, 5000), st.integers(0, 5000), short, short, short)
def test_a_row_of_which_a_piece_is_gone_is_read_or_refused(
    one: Round, start: int, size: int, row_id: str, state: str, instead: str
) -> None:
    row, blobs = encode(one, OWNER)
    bodies = {blob.id: blob.body for blob in blobs}
    cut = row.body[:start] + instead + row.body[start + size :]
    read(row._replace(body=cut), bodies)
    read(row._replace(id=row_id), bodies)
    read(row._replace(state=state), bodies)
    read(row, {blob_id: body[:start] for blob_id, body in bodies.items()})
    read(row, {})
    assert decode(row, bodies.get) == one


@given(values, short, short)
def test_any_json_is_read_or_refused(value: Any, row_id: str, state: str) -> None:
    row = StateRow("round", row_id, *OWNER, 1, 0, state, json.dumps(value))
    read(row, {})
    read(row._replace(id="run/000001", state="done", body=json.dumps({"v": 1, "a": value, "r": value})), {})
    assert row.id == row_id


# ---- the ledger ----

entries = st.builds(
    LedgerEntry,
    owner=st.just(OWNER),
    run_id=short,
    number=st.integers(1, 10**7),
    call_id=short,
    tool=short,
    effect=st.sampled_from(Effect),
    key=short,
    digest=st.just(arguments_digest("{}")),
    arguments=st.just("{}"),
    state=st.sampled_from(LedgerState),
    attempt=st.integers(1, 99),
    started_ms=whole,
    ended_ms=whole,
    reason=short,
    actor=short,
    seq=whole,
)


@given(entries, st.data())
def test_an_entry_comes_back_as_it_was_or_is_refused(entry: LedgerEntry, data: st.DataObject) -> None:
    row = entry.to_row()
    back = decode_entry(row)
    assert back.to_row() == row
    assert (back.state, back.key, back.reason) == (entry.state, entry.key, entry.reason)
    body = json.loads(row.body)
    damaged = with_value(body, data.draw(st.sampled_from(places(body))), data.draw(values))
    read(row._replace(body=json.dumps(damaged)), {})


@given(entries, st.lists(st.sampled_from(Change), max_size=8))
def test_an_entry_with_an_outcome_stays_as_it_is(entry: LedgerEntry, changes: list[Change]) -> None:
    for change in changes:
        before = entry
        with contextlib.suppress(Exception):
            entry = entry.change(change, now_ms=1)
        if before.state in {LedgerState.DONE, LedgerState.FAILED, LedgerState.SETTLED}:
            assert entry == before
        assert (entry.key, entry.id) == (before.key, before.id)


@given(st.data())
def test_nothing_that_may_have_changed_the_world_is_done_twice(data: st.DataObject) -> None:
    cut = data.draw(rounds())
    calls = cut.answer.calls
    specs = {call.name: ToolSpec(name=call.name, effect=data.draw(st.sampled_from(Effect))) for call in calls}
    gone = data.draw(st.sets(st.sampled_from(sorted(specs)))) if specs else set()
    there = {name: spec for name, spec in specs.items() if name not in gone}
    begun = [call for call in calls if data.draw(st.booleans())]
    known = [
        LedgerEntry(
            owner=OWNER,
            run_id=cut.run_id,
            number=cut.number,
            call_id=call.id,
            tool=call.name,
            effect=data.draw(st.sampled_from(Effect)),
            key=key_of(cut.run_id, cut.number, call.id),
            digest="",
            state=data.draw(st.sampled_from(LedgerState)),
            seq=data.draw(whole),
        )
        for call in begun
    ]
    plan = after_crash(cut, data.draw(st.permutations(known)), there, reconcilable=data.draw(st.sets(short)))
    assert [step.call for step in plan] == list(calls)
    for step in plan:
        assert (step.action is Action.KEEP) == (step.call.id in cut.results)
        if step.entry is not None and step.entry.effect is Effect.WRITE:
            assert step.action in {Action.KEEP, Action.UNKNOWN, Action.RECONCILE}
        if step.entry is not None and step.action is Action.AGAIN_SAME_KEY:
            assert step.key == step.entry.key
        if step.entry is None:
            assert step.action in {Action.KEEP, Action.RUN, Action.AGAIN, Action.GONE}
        if step.action in {Action.RUN, Action.AGAIN, Action.AGAIN_SAME_KEY, Action.RECONCILE}:
            assert step.call.name in there
