"""The checker of the agents' chaos finds what it is there to find, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.dialogue import Answer, Prompt, Results, ResultStatus, ToolCall, ToolResult
from tests.chaos.__main__ import parse
from tests.chaos.agent_checker import AgentAccount, AgentEvidence, AgentVerdict, judge_agents, read_account
from tests.chaos.agent_life import MEMORY, plans_in
from tests.chaos.agent_scene import problems_of
from tests.chaos.agent_world import AgentAnswers, AgentMessage, Ended
from tests.chaos.witness import Witness

GOOD = Ended("ran", "succeeded", "the handler returned")
GIVEN_UP = Ended("ran", "interrupted", "the process ended while it ran, for the 5th time")


def world() -> AgentEvidence:
    """Two messages and four calls for which everything went well, but for one that nobody knows the end of."""
    messages = {n: AgentMessage(n, "plain-0", "followup", "look,put|pay") for n in (1, 2)}
    ended = {"look 1.0.0": "ok", "put 1.0.1": "ok", "pay 1.1.0": "ok", "pay 2.1.0": "unknown"}
    ledger = [["put", "done", "k1"], ["pay", "done", "k2"], ["pay", "unknown", "k3"]]
    report = {"ended": ended, "ledger": ledger, "memory": "abc", "problems": []}
    answers = AgentAnswers(
        messages=messages,
        acks={1: "msg-1", 2: "msg-2"},
        finals={"msg-1": GOOD, "msg-2": GOOD},
        first={"plain-0": report},
        again={"plain-0": json.loads(json.dumps(report))},
    )
    account = AgentAccount()
    account.effects |= {"look 1.0.0": ["r", "r"], "put 1.0.1": ["k1", "k1"], "pay 1.1.0": ["k2"], "pay 2.1.0": ["k3"]}
    return AgentEvidence(answers=answers, account=account)


def kinds(evidence: AgentEvidence) -> set[str]:
    return set(judge_agents(evidence).wrong)


def test_a_world_in_which_all_went_well_is_good_and_its_tally_says_so() -> None:
    verdict = judge_agents(world())
    assert verdict.is_good
    assert verdict.line().endswith(
        "6 calls made: accepted 2, answered 2, lost 0, write twice 0, unknown 1, cut off by newer messages 0, "
        "given up after 5 crashes 0"
    )


def test_a_message_that_was_given_up_after_five_crashes_is_counted_and_not_lost() -> None:
    evidence = world()
    evidence.answers.finals["msg-2"] = GIVEN_UP
    verdict = judge_agents(evidence)
    assert verdict.is_good
    assert (verdict.counts["answered"], verdict.counts["given up"]) == (1, 1)


def test_a_message_that_was_cut_off_is_lost_unless_somebody_interrupted_its_session() -> None:
    evidence = world()
    evidence.answers.finals["msg-1"] = Ended("ran", "interrupted", "a newer message")
    assert kinds(evidence) == {"lost"}
    evidence.answers.messages[2] = AgentMessage(2, "plain-0", "interrupt", "")
    assert judge_agents(evidence).is_good


def no_final(evidence: AgentEvidence) -> None:
    del evidence.answers.finals["msg-2"]


def dropped(evidence: AgentEvidence) -> None:
    evidence.answers.finals["msg-2"] = Ended("dropped", "", "one too many")


def failed(evidence: AgentEvidence) -> None:
    evidence.answers.finals["msg-2"] = Ended("ran", "failed", "the store is gone")


def one_for_two(evidence: AgentEvidence) -> None:
    evidence.answers.acks[2] = "msg-1"


def paid_twice(evidence: AgentEvidence) -> None:
    evidence.account.effects["pay 1.1.0"].append("k2")


def put_under_two_keys(evidence: AgentEvidence) -> None:
    evidence.account.effects["put 1.0.1"].append("k2")


def told_and_never_made(evidence: AgentEvidence) -> None:
    del evidence.account.effects["pay 1.1.0"]


def told_skipped_and_made(evidence: AgentEvidence) -> None:
    _tell(evidence, "pay 1.1.0", "skipped")


def read_unknown(evidence: AgentEvidence) -> None:
    _tell(evidence, "look 1.0.0", "unknown")


def still_intended(evidence: AgentEvidence) -> None:
    for report in _reports(evidence):
        report["ledger"][0][1] = "intended"


def no_entry(evidence: AgentEvidence) -> None:
    for report in _reports(evidence):
        del report["ledger"][1]


def other_memory(evidence: AgentEvidence) -> None:
    evidence.answers.again["plain-0"]["memory"] = "xyz"


def never_came_back(evidence: AgentEvidence) -> None:
    del evidence.answers.again["plain-0"]


def sent_malformed(evidence: AgentEvidence) -> None:
    evidence.account.malformed.append("plain-0: results of no calls")


def rests_malformed(evidence: AgentEvidence) -> None:
    for report in _reports(evidence):
        report["problems"].append("two answers in a row")


def bad_store(evidence: AgentEvidence) -> None:
    evidence.problems = ("row 7 is missing",)


def _reports(evidence: AgentEvidence) -> list[dict[str, Any]]:
    return [evidence.answers.first["plain-0"], evidence.answers.again["plain-0"]]


def _tell(evidence: AgentEvidence, name: str, status: str) -> None:
    for report in _reports(evidence):
        report["ended"][name] = status


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (no_final, "lost"),
        (dropped, "lost"),
        (failed, "lost"),
        (one_for_two, "lost"),
        (paid_twice, "write twice"),
        (put_under_two_keys, "two keys"),
        (told_and_never_made, "never made"),
        (told_skipped_and_made, "made all the same"),
        (read_unknown, "unknown read"),
        (still_intended, "ledger"),
        (no_entry, "ledger"),
        (other_memory, "memory"),
        (never_came_back, "memory"),
        (sent_malformed, "malformed"),
        (rests_malformed, "malformed"),
        (bad_store, "store"),
    ],
)
def test_each_fault_has_its_name(fault: Callable[[AgentEvidence], None], found: str) -> None:
    evidence = world()
    fault(evidence)
    assert kinds(evidence) == {found}


def test_verdicts_add_up() -> None:
    good, bad = judge_agents(world()), world()
    paid_twice(bad)
    total = AgentVerdict()
    total.add(good)
    total.add(judge_agents(bad))
    assert not total.is_good
    assert "accepted 4, answered 4, lost 0, write twice 1" in total.line()


def test_the_witness_is_read_as_it_was_written_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "witness", 3)
    witness.note("effect", "pay 1.0.0", "k1")
    with (tmp_path / "witness").open("a", encoding="utf-8") as file:
        file.write('["effect", 3, "pay 1.')
    witness.note("malformed", "plain-0", ["results of no calls"])
    account = read_account(tmp_path / "witness")
    assert account.effects == {"pay 1.0.0": ["k1"]}
    assert account.malformed == ["plain-0: ['results of no calls']"]
    assert account.torn == 1


# ---- what the processes say of conversations ----


def asks(*ids: str) -> Answer:
    return Answer(calls=tuple(ToolCall(id=each, name="pay", arguments=f'{{"name": "pay {each}"}}') for each in ids))


def gives(*ids: str, status: ResultStatus = ResultStatus.OK) -> Results:
    return Results(results=tuple(ToolResult(call_id=each, name="pay", output="x", status=status) for each in ids))


GO = Prompt(text="#1 pay,put|look")


@pytest.mark.parametrize(
    "conversation",
    [
        [GO],
        [GO, asks("a", "b"), gives("a", "b")],
        [GO, Answer(text="hello"), GO],
        [GO, asks("a"), gives("a"), GO],
    ],
)
def test_a_good_conversation_has_no_problems(conversation: list[Any]) -> None:
    assert list(problems_of(conversation)) == []


@pytest.mark.parametrize(
    "conversation",
    [
        [GO, asks("a")],
        [GO, asks("a", "b"), gives("b", "a")],
        [GO, asks("a", "b"), gives("a")],
        [GO, asks("a"), gives("a"), gives("a")],
        [GO, asks("a"), GO, gives("a")],
        [GO, asks("a", "a"), gives("a", "a")],
        [gives("a"), GO],
        [GO, Answer(text="one"), Answer(text="two"), GO],
        [GO, Answer(text="one")],
    ],
)
def test_a_conversation_that_no_provider_takes_has_a_problem(conversation: list[Any]) -> None:
    assert list(problems_of(conversation))


def test_what_messages_want_is_read_from_the_conversation_and_from_a_summary() -> None:
    wanted, ended = plans_in([GO, asks("1.0.0"), gives("1.0.0", status=ResultStatus.UNKNOWN)])
    assert wanted == {"1": [["pay 1.0.0", "put 1.0.1"], ["look 1.1.0"]]}
    assert ended == {"pay 1.0.0": "unknown"}
    summary = Prompt(role="system", text=f"[Summary]\n{MEMORY}{json.dumps([wanted, ended])}")
    assert plans_in([summary]) == (wanted, ended)


# ---- the command line ----


@pytest.mark.parametrize(
    ("arguments", "kills"),
    [
        ([], (2_000, 500)),
        (["--kills", "30"], (30, 0)),
        (["--agent-kills", "30"], (0, 30)),
        (["--kills", "10", "--agent-kills", "5"], (10, 5)),
    ],
)
def test_both_are_killed_unless_one_is_named(arguments: list[str], kills: tuple[int, int]) -> None:
    options = parse(arguments)
    assert (options.kills, options.agent_kills) == kills
