"""Rounds as rows: small, whole, and refused by name when they are not what was written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laneway.dialogue import Answer, Prompt, ResultStatus, ToolCall, ToolResult, Usage
from laneway.errors import StoreCorruptError, StoreVersionError, UnstorableError
from laneway.kernel.checkpoints import (
    BLOB_MIN,
    Compaction,
    blobs_of,
    decode,
    decode_compaction,
    encode,
    encode_compaction,
)
from laneway.kernel.rounds import CallTimes, Round, RoundState, RoundWait
from laneway.rows import Owner, StateRow

OWNER = Owner("acme", "main", "chat")
LONG = "line of a long output\n" * 500


def no_blob(_: str) -> None:
    return None


def a_call(call_id: str = "c1", name: str = "read", arguments: str = '{"path":"a"}') -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def a_result(call_id: str = "c1", output: str = "text", **facts: Any) -> ToolResult:
    return ToolResult(call_id=call_id, name=facts.pop("name", "read"), output=output, **facts)


def a_round(**facts: Any) -> Round:
    defaults = {"run_id": "run-1", "number": 1, "seq": 7, "state": RoundState.DONE}
    return Round(**{**defaults, **facts})


def with_calls(*calls: ToolCall) -> Answer:
    return Answer(calls=calls)


def round_trip(round_: Round, texts: dict[str, str] | None = None) -> Round:
    row, blobs = encode(round_, OWNER, texts or {})
    return decode(row, {blob.id: blob.body for blob in blobs}.get, texts or {})


def body_of(row: StateRow) -> dict[str, Any]:
    body = json.loads(row.body)
    assert isinstance(body, dict)
    return body


def with_body(row: StateRow, **facts: Any) -> StateRow:
    body = {**body_of(row), **facts}
    return row._replace(body=json.dumps({key: value for key, value in body.items() if value is not ...}))


def test_a_round_with_everything_comes_back_as_it_was() -> None:
    full = a_round(
        number=12,
        conversation=3,
        prompts=(Prompt(text="hello"), Prompt(text="mind the tests", role="system", attachments=({"a": [1, None]},))),
        messages=("m1", "m2"),
        resumed_from="run-0",
        is_copy=True,
        counted=(1_200, 7),
        answer=Answer(
            text="I look",
            reasoning="hm",
            calls=(a_call(), a_call("c2", "bash", "not json")),
            usage=Usage(input_tokens=9, output_tokens=8, cache_read_tokens=7, cache_write_tokens=6, cost=0.25),
            model="openai/gpt-5",
            opaque={"signature": "abc"},
        ),
        results={
            "c1": a_result(),
            "c2": a_result("c2", "no", name="other", status=ResultStatus.ERROR, exit_code=2, artifact="out/1.txt"),
        },
        at_ms=1234,
    )
    assert round_trip(full) == full


def test_the_row_is_known_by_run_and_number_and_belongs_to_its_session() -> None:
    row, blobs = encode(a_round(number=42), OWNER)
    assert row[:8] == ("round", "run-1/000042", "acme", "main", "chat", 7, 0, "done")
    assert blobs == ()


@pytest.mark.parametrize("state", RoundState)
def test_only_a_round_whose_calls_are_being_made_is_live(state: RoundState) -> None:
    row, _ = encode(a_round(state=state), OWNER)
    assert row.live == (state is RoundState.ACTING)
    assert decode(row, no_blob).state is state


def test_a_round_that_acts_keeps_the_results_it_has() -> None:
    half = a_round(
        state=RoundState.ACTING, answer=with_calls(a_call("c1"), a_call("c2")), results={"c2": a_result("c2")}
    )
    assert round_trip(half) == half


def test_a_run_id_may_have_slashes() -> None:
    assert round_trip(a_round(run_id="a/b/000001")).run_id == "a/b/000001"


# ---- size ----


def test_what_is_empty_takes_no_room() -> None:
    row, _ = encode(a_round(), OWNER)
    assert body_of(row) == {"v": 1, "c": 1, "t": 0}


@pytest.mark.parametrize(
    "long",
    [
        a_round(prompts=(Prompt(text=LONG),)),
        a_round(prompts=(Prompt(text="", attachments=(LONG,)),)),
        a_round(answer=Answer(text=LONG)),
        a_round(answer=Answer(reasoning=LONG)),
        a_round(answer=Answer(opaque={"thought": LONG})),
        a_round(answer=with_calls(a_call(arguments=LONG)), results={"c1": a_result()}),
        a_round(answer=with_calls(a_call()), results={"c1": a_result(output=LONG)}),
    ],
    ids=["prompt", "attachment", "answer", "reasoning", "opaque", "arguments", "output"],
)
def test_a_long_text_is_a_blob_of_its_tenant(long: Round) -> None:
    row, (blob,) = encode(long, OWNER)
    assert len(row.body) < 300
    assert blob[:8] == ("blob", blob.id, "acme", "", "", 7, 0, "")
    assert blob.id.startswith("acme:")
    assert blobs_of(row) == (blob.id,)
    assert round_trip(long) == long


def test_a_text_at_the_bound_is_no_blob() -> None:
    assert encode(a_round(answer=Answer(text="x" * BLOB_MIN)), OWNER)[1] == ()
    assert len(encode(a_round(answer=Answer(text="x" * (BLOB_MIN + 1))), OWNER)[1]) == 1


def test_the_same_long_text_is_kept_once() -> None:
    calls = [a_call(f"c{number}") for number in range(3)]
    outputs = {call.id: a_result(call.id, LONG if call.id != "c1" else LONG + "x") for call in calls}
    row, blobs = encode(a_round(answer=with_calls(*calls), results=outputs), OWNER)
    assert len(blobs) == 2
    assert blobs_of(row) == tuple(blob.id for blob in blobs)
    assert decode(row, {blob.id: blob.body for blob in blobs}.get).results == outputs


def test_sessions_of_a_tenant_share_a_blob_and_tenants_do_not() -> None:
    long = a_round(answer=Answer(text=LONG))
    ids = [
        encode(long, owner)[1][0].id for owner in (OWNER, Owner("acme", "side", "other"), Owner("evil", "main", "chat"))
    ]
    assert ids[0] == ids[1]
    assert ids[0] != ids[2]


def test_all_rounds_together_are_not_much_more_than_what_was_said() -> None:
    said = written = 0
    for number in range(1, 201):
        answer = Answer(text=f"step {number} " * 20, calls=(a_call(f"call_{number}"),), model="m")
        one = a_round(
            number=number, seq=number, answer=answer, results={f"call_{number}": a_result(f"call_{number}", "y" * 500)}
        )
        row, blobs = encode(one, OWNER)
        said += len(answer.text) + len(answer.calls[0].arguments) + 500
        written += len(row.body) + sum(len(blob.body) for blob in blobs)
    assert written < 1.2 * said


# ---- texts that the inbox keeps ----


def test_a_text_that_is_kept_elsewhere_is_a_reference() -> None:
    texts = {"m1": "please look into it", "run-1": "It is the cache."}
    told = a_round(
        state=RoundState.FINAL,
        prompts=(Prompt(text=texts["m1"]),),
        messages=("m1",),
        answer=Answer(text=texts["run-1"]),
    )
    row, _ = encode(told, OWNER, texts)
    assert texts["m1"] not in row.body
    assert texts["run-1"] not in row.body
    assert decode(row, no_blob, texts) == told


def test_a_text_that_differs_from_the_kept_one_is_written() -> None:
    texts = {"m1": "please look into it", "run-1": "It is the cache."}
    told = a_round(
        prompts=(Prompt(text="please look into it!"),), messages=("m1",), answer=Answer(text="It is the cache?")
    )
    row, _ = encode(told, OWNER, texts)
    assert decode(row, no_blob) == told


def test_a_kept_text_that_is_gone_is_named() -> None:
    told = a_round(prompts=(Prompt(text="please look"),), messages=("m1",))
    row, _ = encode(told, OWNER, {"m1": "please look"})
    with pytest.raises(StoreCorruptError, match="the text of m1 is not there"):
        decode(row, no_blob)


# ---- what cannot be written ----


def test_half_a_surrogate_pair_is_kept_as_it_is() -> None:
    odd = a_round(
        answer=with_calls(a_call("c1"), a_call("c2")),
        results={"c1": a_result(output="caf\udce9"), "c2": a_result("c2", output="\udce9" * 5000)},
    )
    row, blobs = encode(odd, OWNER)
    assert row.body.encode()
    assert blobs[0].body.encode()
    assert round_trip(odd) == odd


@pytest.mark.parametrize(
    "flawed",
    [
        a_round(answer=Answer(opaque=object())),
        a_round(answer=Answer(opaque=b"bytes")),
        a_round(answer=Answer(usage=Usage(cost=float("nan")))),
        a_round(prompts=(Prompt(text="", attachments=({1, 2},)),)),
        a_round(answer=with_calls(a_call())),
        a_round(answer=with_calls(a_call(), a_call()), results={"c1": a_result()}),
        a_round(results={"c1": a_result()}),
        a_round(answer=with_calls(a_call()), results={"c1": a_result("c2")}),
    ],
    ids=["object", "bytes", "nan", "set", "no result", "one id twice", "no call", "another call"],
)
def test_what_could_not_be_read_back_is_not_written(flawed: Round) -> None:
    with pytest.raises(UnstorableError):
        encode(flawed, OWNER)


def test_a_value_that_is_nested_without_end_is_not_written() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UnstorableError):
        encode(a_round(answer=Answer(opaque=deep)), OWNER)


# ---- what is not what was written ----

GOOD, GOOD_BLOBS = encode(
    a_round(
        prompts=(Prompt(text="hello"), Prompt(text="x", role="system", attachments=(1,))),
        answer=Answer(calls=(a_call(), a_call("c2")), usage=Usage(input_tokens=1), opaque=[1]),
        results={"c1": a_result(output=LONG), "c2": a_result("c2", status=ResultStatus.DENIED)},
    ),
    OWNER,
)


def good_blob(blob_id: str) -> str | None:
    return {blob.id: blob.body for blob in GOOD_BLOBS}.get(blob_id)


def test_the_row_that_is_damaged_below_is_good_before() -> None:
    assert decode(GOOD, good_blob).is_whole


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (GOOD._replace(body=""), "no JSON"),
        (GOOD._replace(body=GOOD.body[:-5]), "no JSON"),
        (GOOD._replace(body="[" * 100_000), "no JSON"),
        (GOOD._replace(body='{"v":' + "1" * 5000 + "}"), "no JSON"),
        (GOOD._replace(body='{"v":NaN}'), "no JSON"),
        (GOOD._replace(body="[]"), "its body should be dict"),
        (GOOD._replace(body="{}"), "its version should be int"),
        (GOOD._replace(kind="turn"), "it is no round"),
        (GOOD._replace(id="run-1"), "its id names no round"),
        (GOOD._replace(id="run-1/000000"), "its id names no round"),
        (GOOD._replace(id="run-1/²"), "its id names no round"),
        (GOOD._replace(state="asleep"), "a round cannot be 'asleep'"),
        (with_body(GOOD, v=0), "no version 0"),
        (with_body(GOOD, v=True), "its version should be int"),
        (with_body(GOOD, r=...), "a call has no result"),
        (with_body(GOOD, r=["a"]), "2 calls and 1 results"),
        (with_body(GOOD, r=["a", None]), "a call has no result"),
        (with_body(GOOD, r=["a", 7]), "it names blob 7 of 1"),
        (with_body(GOOD, r=["a", -1]), "it names blob -1 of 1"),
        (with_body(GOOD, r=["a", {"x": "", "s": "fine"}]), "a result cannot be 'fine'"),
        (with_body(GOOD, r=["a", {"s": "ok"}]), "a text is none"),
        (with_body(GOOD, r=["a", True]), "a text is none"),
        (with_body(GOOD, r=["a", {"x": "", "e": "1"}]), "an exit code should be int"),
        (with_body(GOOD, a={"c": [["c1", "read", ""], ["c1", "read", ""]]}), "two calls have one id"),
        (with_body(GOOD, a={"c": [["c1", "read"]]}), "the parts of a call should be 3"),
        (with_body(GOOD, a={"c": {"c1": "read"}}), "the calls should be list"),
        (with_body(GOOD, a={"u": [1, 2, 3, 4]}), "the numbers of the usage should be 5"),
        (with_body(GOOD, a={"u": [1, 2, 3, 4, "free"]}), "the cost is no number"),
        (with_body(GOOD, a={"o": 0.5}), "a value is none"),
        (with_body(GOOD, a=[]), "the answer should be dict"),
        (with_body(GOOD, p="hello"), "the prompts should be list"),
        (with_body(GOOD, p=[{"x": ""}]), "a role should be str"),
        (with_body(GOOD, m=[1]), "the messages should be str"),
        (with_body(GOOD, b=["short"]), "a blob has no hash"),
        (with_body(GOOD, b=["f" * 64]), "is not there"),
        (with_body(GOOD, c="1"), "c should be int"),
    ],
)
def test_a_damaged_row_is_refused_and_named(damaged: StateRow, reason: str) -> None:
    with pytest.raises(StoreCorruptError) as refused:
        decode(damaged, good_blob)
    assert reason in str(refused.value)
    assert damaged.id in str(refused.value)
    assert "backup" in refused.value.hint
    assert (refused.value.kind, refused.value.row_id) == (damaged.kind, damaged.id)  # type: ignore[attr-defined]


@pytest.mark.parametrize("body", ["", '"another text"', LONG, "\ud800"])
def test_a_blob_that_holds_something_else_is_refused(body: str) -> None:
    with pytest.raises(StoreCorruptError, match="holds something else"):
        decode(GOOD, lambda _: body)


def test_a_blob_of_another_tenant_is_not_taken() -> None:
    asked: list[str] = []
    with pytest.raises(StoreCorruptError, match="is not there"):
        decode(GOOD._replace(tenant="evil"), asked.append)
    assert asked == [f"evil:{GOOD_BLOBS[0].id.partition(':')[2]}"]


def test_a_row_of_a_newer_laneway_is_left_as_it_is() -> None:
    with pytest.raises(StoreVersionError, match="version 2, this Laneway knows 1") as refused:
        decode(with_body(GOOD, v=2, a="in words of tomorrow"), good_blob)
    assert GOOD.id in str(refused.value)


def test_the_blobs_of_a_damaged_row_are_not_guessed() -> None:
    with pytest.raises(StoreCorruptError, match="the blobs should be list"):
        blobs_of(with_body(GOOD, b="f" * 64))


# ---- compactions ----


@pytest.mark.parametrize("text", ["They talked about caches.", LONG])
def test_a_compaction_comes_back_as_it_was(text: str) -> None:
    summary = Prompt(text=text, role="system")
    compaction = Compaction(conversation=2, summary=summary, upto_seq=99, before=5000, after=300, seq=120, at_ms=5)
    row, blobs = encode_compaction(compaction, OWNER)
    assert (row.kind, row.seq, row.live, row.session) == ("compaction", 120, 0, "chat")
    assert decode_compaction(row, {blob.id: blob.body for blob in blobs}.get) == compaction


def test_compactions_of_two_sessions_do_not_replace_each_other() -> None:
    compaction = Compaction(conversation=1, summary=Prompt(text="s"), upto_seq=1, before=1, after=1, seq=5)
    others = (OWNER, Owner("acme", "main", "other"), Owner("evil", "main", "chat"), Owner("acme", "side", "chat"))
    assert len({encode_compaction(compaction, owner)[0].id for owner in others}) == 4


@pytest.mark.parametrize(
    "facts", [{"p": ...}, {"p": []}, {"n": [1]}, {"n": [1, 2, "3"]}, {"p": ["a", "b"]}, {"c": None}, {"p": [0]}]
)
def test_a_damaged_compaction_is_refused(facts: dict[str, Any]) -> None:
    compaction = Compaction(conversation=1, summary=Prompt(text="s"), upto_seq=1, before=1, after=1, seq=5)
    row, _ = encode_compaction(compaction, OWNER)
    with pytest.raises(StoreCorruptError, match="compaction"):
        decode_compaction(with_body(row, **facts), no_blob)


# ---- where its time went ----


def test_times_come_back_as_they_were_and_are_counted_from_the_answer() -> None:
    timed = a_round(
        at_ms=1_700_000_000_000,
        asked_ms=1_699_999_999_000,
        waits=(
            RoundWait(
                kind="limit", reason="the provider said so", began_ms=1_699_999_999_100, ended_ms=1_699_999_999_900
            ),
            RoundWait(kind="lane", reason="model", began_ms=1_699_999_999_900),
        ),
        answer=with_calls(a_call("c1"), a_call("c2"), a_call("c3")),
        results={"c1": a_result("c1"), "c2": a_result("c2"), "c3": a_result("c3")},
        times={
            "c1": CallTimes(lane="query", queued_ms=1_700_000_000_001, began_ms=1_700_000_000_002),
            "c3": CallTimes(
                lane="execute",
                queued_ms=1_700_000_000_001,
                began_ms=1_700_000_000_005,
                ended_ms=1_700_000_000_009,
                attempt=2,
                out_ms=1_700_000_000_003,
                task_id="task-1",
                worker="w1",
            ),
        },
    )
    assert round_trip(timed) == timed
    row, _ = encode(timed, OWNER)
    assert body_of(row)["k"] == [["query", 1, 2, None], None, ["execute", 1, 5, 9, 2, 3, "task-1", "w1"]]
    assert body_of(row)["q"] == -1000


@pytest.mark.parametrize(
    "wrong",
    [
        {"q": "soon"},
        {"w": [["lane"]]},
        {"w": [[1, "x", 0, 0]]},
        {"k": [["query", 1, 2]]},
        {"k": [["query", "a", 2, 3]]},
    ],
)
def test_times_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    row, _ = encode(a_round(answer=with_calls(a_call()), results={"c1": a_result()}), OWNER)
    with pytest.raises(StoreCorruptError):
        decode(with_body(row, **wrong), no_blob)
