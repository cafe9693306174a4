"""The ledger: its table, its rows, and what is done about the calls of a round that was cut off."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from laneway.dialogue import Answer, ToolCall, ToolResult, ToolSpec
from laneway.errors import ConflictError, StoreCorruptError, StoreVersionError
from laneway.kernel.checkpoints import encode
from laneway.kernel.ledger import (
    LEDGER_TRANSITIONS,
    Action,
    Change,
    LedgerEntry,
    LedgerState,
    after_crash,
    arguments_digest,
    decode_entry,
    key_of,
    origin_of,
)
from laneway.kernel.rounds import Round
from laneway.records import Effect
from laneway.rows import Owner, StateRow

OWNER = Owner("acme", "main", "chat")
ARGUMENTS = '{"to":"ada"}'


def an_entry(**facts: Any) -> LedgerEntry:
    defaults = {
        "owner": OWNER,
        "run_id": "run-1",
        "number": 3,
        "call_id": "c1",
        "tool": "send",
        "effect": Effect.WRITE,
        "key": key_of("run-1", 3, "c1"),
        "digest": arguments_digest(ARGUMENTS),
        "arguments": ARGUMENTS,
        "started_ms": 100,
        "seq": 9,
    }
    return LedgerEntry(**{**defaults, **facts})


# ---- the table ----


@pytest.mark.parametrize("state", LedgerState)
@pytest.mark.parametrize("change", Change)
def test_an_entry_changes_by_the_table_and_not_otherwise(state: LedgerState, change: Change) -> None:
    entry = an_entry(state=state, effect=Effect.IDEMPOTENT)
    following = LEDGER_TRANSITIONS.get((state, change))
    if following is not None:
        assert entry.change(change, now_ms=200).state is following
        return
    with pytest.raises(ConflictError, match=f"is {state}: {change} is not possible"):
        entry.change(change, now_ms=200)


@pytest.mark.parametrize("state", [LedgerState.DONE, LedgerState.FAILED, LedgerState.SETTLED])
def test_an_outcome_never_changes(state: LedgerState) -> None:
    assert not [change for known, change in LEDGER_TRANSITIONS if known is state]


def test_every_state_can_be_reached() -> None:
    assert {LedgerState.INTENDED, *LEDGER_TRANSITIONS.values()} == set(LedgerState)


@pytest.mark.parametrize("state", [LedgerState.INTENDED, LedgerState.UNKNOWN])
def test_a_write_is_never_repeated(state: LedgerState) -> None:
    with pytest.raises(ConflictError, match="a write is never repeated"):
        an_entry(state=state).change(Change.REPEAT, now_ms=200)


def test_repeating_keeps_the_key_and_counts() -> None:
    lost = an_entry(effect=Effect.IDEMPOTENT).change(Change.LOSE, now_ms=150, reason="timed out")
    again = lost.change(Change.REPEAT, now_ms=200)
    assert (again.key, again.attempt, again.started_ms, again.ended_ms) == (lost.key, 2, 200, 0)


def test_settling_says_who_and_why() -> None:
    lost = an_entry().change(Change.LOSE, now_ms=150, reason="the process died")
    settled = lost.change(Change.SETTLE, now_ms=900, reason="the mail is there", actor="ops")
    assert (settled.state, settled.reason, settled.actor) == (LedgerState.SETTLED, "the mail is there", "ops")


# ---- rows ----

LIVES = {LedgerState.INTENDED: 1, LedgerState.UNKNOWN: 1}


@pytest.mark.parametrize("state", LedgerState)
def test_what_is_open_is_live_and_has_its_arguments(state: LedgerState) -> None:
    entry = an_entry(state=state, ended_ms=5, reason="because", actor="ops", attempt=2)
    row = entry.to_row()
    assert row.live == LIVES.get(state, 0)
    assert row.state == state
    assert decode_entry(row) == (entry if row.live else replace(entry, arguments=None))
    assert entry.row_key == ("intent", row.id)


def test_long_arguments_are_the_blob_that_the_round_has_written() -> None:
    arguments = json.dumps({"text": "x" * 5000})
    call = ToolCall(id="c1", name="send", arguments=arguments)
    _, (blob,) = encode(Round(run_id="run-1", number=3, seq=1, answer=Answer(calls=(call,))), OWNER)
    entry = an_entry(arguments=arguments, digest=arguments_digest(arguments))
    assert len(entry.to_row().body) < 600
    assert blob.id == f"acme:{decode_entry(entry.to_row()).digest}"


def test_calls_with_odd_ids_have_rows_of_their_own() -> None:
    ids = [an_entry(call_id=call_id).id for call_id in ("a/b", "a", "b", "", "\ud800", "x" * 5000)]
    assert len(set(ids)) == len(ids)
    assert all(len(each) < 60 for each in ids)
    assert all(each.isascii() for each in ids)


def with_body(row: StateRow, **facts: Any) -> StateRow:
    body = {**json.loads(row.body), **facts}
    return row._replace(body=json.dumps({key: value for key, value in body.items() if value is not ...}))


GOOD = an_entry().to_row()


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (GOOD._replace(body="{"), "no JSON"),
        (GOOD._replace(body="null"), "its body should be dict"),
        (GOOD._replace(kind="round"), "it is no intent"),
        (GOOD._replace(state="asleep"), "an entry cannot be 'asleep'"),
        (GOOD._replace(id="run-1/000003/0"), "it holds the entry"),
        (with_body(GOOD, effect="boom"), "no effect 'boom'"),
        (with_body(GOOD, key=...), "key should be str"),
        (with_body(GOOD, attempt=True), "attempt should be int"),
        (with_body(GOOD, ended_ms="now"), "ended_ms should be int"),
        (with_body(GOOD, arguments='{"to":"bob"}'), "not those that were intended"),
        (with_body(GOOD, call="c2"), "it holds the entry"),
    ],
)
def test_a_damaged_row_is_refused_and_named(damaged: StateRow, reason: str) -> None:
    with pytest.raises(StoreCorruptError) as refused:
        decode_entry(damaged)
    assert reason in str(refused.value)
    assert damaged.id in str(refused.value)


def test_a_row_of_a_newer_laneway_is_left_as_it_is() -> None:
    with pytest.raises(StoreVersionError, match="version 2"):
        decode_entry(with_body(GOOD, v=2))


# ---- keys ----


def test_a_key_depends_on_run_round_and_call_and_is_short() -> None:
    keys = [
        key_of("r", 1, "c"),
        key_of("r", 2, "c"),
        key_of("r", 1, "d"),
        key_of("s", 1, "c"),
        key_of("r", 1, "c" * 9999),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) <= 64 and key.isascii() for key in keys)
    assert key_of("r", 1, "c") == keys[0]


def test_the_origin_is_the_first_run_of_a_line() -> None:
    line = {"run-3": "run-2", "run-2": "run-1"}
    assert origin_of("run-3", line) == "run-1"
    assert origin_of("run-1", line) == "run-1"
    assert origin_of("other", line) == "other"


def test_a_line_that_bites_its_tail_ends() -> None:
    assert origin_of("a", {"a": "b", "b": "a"}) == "b"


# ---- after a crash ----

R, P, W = Effect.READ, Effect.IDEMPOTENT, Effect.WRITE
NONE = None
A = Action


def plan_for(entry: Effect | None, spec: Effect | None, *, can_reconcile: bool = False, **facts: Any) -> Action:
    call = ToolCall(id="c1", name="send", arguments=ARGUMENTS)
    cut = Round(run_id="run-1", number=3, answer=Answer(calls=(call,)))
    entries = [an_entry(effect=entry, **facts)] if entry is not None else []
    specs = {"send": ToolSpec(name="send", effect=spec)} if spec is not None else {}
    (step,) = after_crash(cut, entries, specs, reconcilable={"send"} if can_reconcile else ())
    assert step.key == key_of("run-1", 3, "c1")
    return step.action


@pytest.mark.parametrize(
    ("entry", "spec", "plain", "with_reconcile"),
    [
        (NONE, R, A.AGAIN, A.AGAIN),
        (NONE, P, A.RUN, A.RUN),
        (NONE, W, A.RUN, A.RUN),
        (NONE, NONE, A.GONE, A.GONE),
        (P, P, A.AGAIN_SAME_KEY, A.AGAIN_SAME_KEY),
        (P, R, A.AGAIN_SAME_KEY, A.AGAIN_SAME_KEY),
        (P, W, A.UNKNOWN, A.RECONCILE),
        (P, NONE, A.UNKNOWN, A.UNKNOWN),
        (W, W, A.UNKNOWN, A.RECONCILE),
        (W, P, A.UNKNOWN, A.RECONCILE),
        (W, R, A.UNKNOWN, A.RECONCILE),
        (W, NONE, A.UNKNOWN, A.UNKNOWN),
    ],
)
def test_what_is_done_follows_from_the_intent_and_the_tool(
    entry: Effect | None, spec: Effect | None, plain: Action, with_reconcile: Action
) -> None:
    assert plan_for(entry, spec) is plain
    assert plan_for(entry, spec, can_reconcile=True) is with_reconcile


@pytest.mark.parametrize("state", LedgerState)
def test_a_write_with_an_intent_and_no_result_never_runs_again(state: LedgerState) -> None:
    assert plan_for(W, W, state=state) is A.UNKNOWN


def test_steps_come_in_call_order_and_results_are_kept() -> None:
    calls = tuple(ToolCall(id=f"c{number}", name=name) for number, name in enumerate(["send", "look", "put", "send"]))
    cut = Round(
        run_id="run-1",
        number=3,
        answer=Answer(calls=calls),
        results={"c0": ToolResult(call_id="c0", name="send", output="sent")},
    )
    specs = {name: ToolSpec(name=name, effect=effect) for name, effect in (("send", W), ("look", R), ("put", P))}
    entries = [an_entry(call_id=each, key=key_of("run-1", 3, each), effect=W) for each in ("c0", "c3")]
    plan = after_crash(cut, entries, specs)
    assert [(step.call.id, step.action) for step in plan] == [
        ("c0", A.KEEP),
        ("c1", A.AGAIN),
        ("c2", A.RUN),
        ("c3", A.UNKNOWN),
    ]
    assert plan[3].entry == entries[1]


def test_a_run_that_goes_on_for_another_finds_the_intents_of_the_first() -> None:
    call = ToolCall(id="c1", name="send", arguments=ARGUMENTS)
    second = Round(run_id="run-2", number=3, resumed_from="run-1", answer=Answer(calls=(call,)))
    specs = {"send": ToolSpec(name="send", effect=P)}
    first = an_entry(effect=P)
    (step,) = after_crash(second, [first], specs, origin=origin_of("run-2", {"run-2": "run-1"}))
    assert (step.action, step.key, step.entry) == (A.AGAIN_SAME_KEY, first.key, first)


def test_an_intent_of_another_round_or_run_does_not_count() -> None:
    call = ToolCall(id="c1", name="send", arguments=ARGUMENTS)
    cut = Round(run_id="run-1", number=4, answer=Answer(calls=(call,)))
    others = [an_entry(), an_entry(run_id="run-9", number=4, key=key_of("run-9", 4, "c1"))]
    (step,) = after_crash(cut, others, {"send": ToolSpec(name="send", effect=W)})
    assert (step.action, step.entry) == (A.RUN, None)


def test_the_newest_entry_of_a_call_is_the_one_that_is_shown() -> None:
    call = ToolCall(id="c1", name="send", arguments=ARGUMENTS)
    cut = Round(run_id="run-1", number=3, answer=Answer(calls=(call,)))
    newer, older = an_entry(run_id="run-2", seq=12), an_entry()
    (step,) = after_crash(cut, [newer, older], {"send": ToolSpec(name="send", effect=W)})
    assert step.entry == newer


def test_the_most_careful_of_all_entries_of_a_call_decides() -> None:
    call = ToolCall(id="c1", name="send", arguments=ARGUMENTS)
    cut = Round(run_id="run-1", number=3, answer=Answer(calls=(call,)))
    entries = [an_entry(effect=W), an_entry(run_id="run-2", seq=12, effect=P)]
    (step,) = after_crash(cut, entries, {"send": ToolSpec(name="send", effect=P)})
    assert step.action is A.UNKNOWN
