"""Rows of durable jobs: whatever was said about a job, its row says it, and what is read is what was written."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from laneway import Effect, InvalidJobError, Priority, RetryPolicy
from laneway.kernel.protocol import End, JobSpec
from laneway.runtime.job_rows import JobRecord, RowState, decode_payload, encode_payload

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ['","payload":', '"', "\\", '\\","payload":1', "\0", "é🜁"]
)
whole = st.integers(1, 2**40)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
policies = st.builds(RetryPolicy.exponential, st.integers(0, 9), st.integers(0, 999), jitter=st.floats(0, 1))
specs = st.builds(
    JobSpec,
    priority=st.sampled_from(Priority),
    timeout_ms=st.none() | whole,
    wait_timeout_ms=st.none() | whole,
    deadline_ms=st.none() | whole,
    retry=st.none() | policies,
    effect=st.sampled_from(Effect),
    tenant=texts,
    weight=st.floats(1e-9, 1e9),
    key=st.none() | texts,
    label=texts,
)
FIELDS = (
    "id",
    "seq",
    "owner",
    "row_key",
    "lanes",
    "handler",
    "payload",
    "spec",
    "submitted_ms",
    "state",
    "attempt",
    "failures",
    "deferrals",
    "crashes",
    "due_ms",
    "delay_ms",
    "ended_ms",
    "after_ms",
    "error",
    "reason",
    "end",
    "history",
    "head",
)


@given(
    st.lists(texts.filter(bool), min_size=1, max_size=3),
    texts.filter(bool),
    payloads,
    specs,
    st.sampled_from(RowState),
    st.lists(texts, max_size=3),
)
def test_a_row_is_read_as_it_was_written(
    lanes: list[str], handler: str, payload: Any, spec: JobSpec, state: RowState, history: list[str]
) -> None:
    record = JobRecord(
        "job-1-7",
        7,
        "default",
        lanes=tuple(lanes),
        handler=handler,
        payload=encode_payload(payload),
        spec=spec,
        submitted_ms=123,
    )
    record.attempt = 3
    if history:
        record.remember(2, 1, history)
    if state is RowState.SCHEDULED:
        record.schedule(500, wall_ms=1_000)
    elif state is RowState.FAILED:
        record.fail(End.FAILED, history[0] if history else "", "E", after_ms=4, wall_ms=9)
    elif state is RowState.DEAD:
        record.die(history[0] if history else "", wall_ms=9)
    record.state = state
    row = record.to_row()
    again = JobRecord.from_row(row)
    assert {name: getattr(again, name) for name in FIELDS} == {name: getattr(record, name) for name in FIELDS}
    assert again.to_row() == row
    assert decode_payload(again.payload) == payload
    assert json.loads(row.body)["payload"] == payload
    assert row.body.encode()


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda value: value.decode("latin-1")), st.text(max_size=8))
def test_what_is_no_row_of_ours_is_refused_with_a_value_error(body: str, state: str) -> None:
    record = JobRecord(
        "job-1-7", 7, "default", lanes=("a",), handler="h", payload="1", spec=JobSpec(), submitted_ms=123
    )
    for text in (body, record.head + body, record.to_row().body[:-1] + body):
        with contextlib.suppress(ValueError):
            assert JobRecord.from_row(record.to_row()._replace(body=text, state=state or "queued")).lanes


@given(st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=3))
def test_any_text_is_stored_as_it_is_or_refused(payload: Any) -> None:
    try:
        text = encode_payload(payload)
    except InvalidJobError:
        assert any(0xD800 <= ord(char) <= 0xDFFF for char in str(payload) + "".join(payload))
    else:
        assert decode_payload(text.encode().decode()) == payload
