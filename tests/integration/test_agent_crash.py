"""An agent in real processes that are killed in every phase of a turn: the table phase × outcome, and more.

Each case plays a scene (`tests/chaos/agent_scene.py`) in a process that kills itself at a point, and once more in a
process that only opens the session: it has to go on by itself. A witness outside the process counts what really
happened. A last process opens the session again and must find what the one before left.
"""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chaos.agent_stage import Stage

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "crashes.md"
TOOLS: Final = {"read": "look", "idempotent": "put", "write": "pay"}
WRITES: Final = ("pay", "pay_beside", "pay_known")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # many processes, and a machine that may be busy


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A place to play scenes; it takes a moment to be built, so all tests share it."""
    with Stage() as built:
        yield built


# ---- playing ----


@dataclass(slots=True)
class Played:
    """What came of a case."""

    witness: list[list[Any]]
    report: dict[str, Any]
    reopened: dict[str, Any] = field(default_factory=dict)

    def effects(self, kind: str, name: str) -> list[str]:
        """The keys of the effects that a call really had, in order."""
        return [line[4] for line in self.witness if line[0] == "effect" and line[2:4] == [kind, name]]

    def begins(self, kind: str, name: str) -> list[str]:
        """The keys of every time that a call began."""
        return [line[4] for line in self.witness if line[0] == "begin" and line[2:4] == [kind, name]]

    def requests(self, life: int, what: str = "model") -> list[list[Any]]:
        """What the model was told in a life: prompts, results, problems."""
        return [line[2:] for line in self.witness if line[:2] == [what, life]]

    @property
    def answers(self) -> dict[str, str]:
        """The answers, by message."""
        return {text: answer for _, text, _, _, answer, _ in self.report["messages"]}

    @property
    def told(self) -> dict[str, str]:
        """The status of every call in the conversation."""
        return dict(self.report["told"])

    @property
    def ledger(self) -> dict[str, str]:
        """The state of the newest entry of every tool."""
        return {tool: state for tool, state, *_ in self.report["ledger"]}


def play(stage: Stage, folder: Path, kills: list[str], **scene: Any) -> Played:
    """Play a case: a life for each kill, one that goes on to the end, and one that only looks."""
    changes: dict[int, dict[str, Any]] = scene.pop("changes", {})
    for life, kill in enumerate([*kills, "", ""], 1):
        facts = {"folder": str(folder), "life": life, "kill": kill, **scene, **changes.get(life, {})}
        code = stage.play(facts)
        log = folder / "log"
        seen = log.read_text(encoding="utf-8") if log.exists() else ""
        assert code == (-signal.SIGKILL if kill else 0), f"life {life} ({kill}) ended with {code}: {seen}"
    last = len(kills) + 1
    lines = [json.loads(line) for line in (folder / "witness").read_text(encoding="utf-8").splitlines() if line]
    reports = [json.loads((folder / f"report-{life}").read_text(encoding="utf-8")) for life in (last, last + 1)]
    played = Played(lines, *reports)
    check(played)
    return played


def check(played: Played) -> None:
    """What holds wherever the process dies."""
    report = played.report
    platform_ids = [platform_id for platform_id, *_ in report["messages"]]
    assert len(set(platform_ids)) == len(platform_ids), "a message is there twice"
    for line in played.witness:
        if line[0] == "model":
            assert line[4] == [], "the model was sent a conversation that no provider takes"
    assert report["problems"] == []
    assert {state for _, state, *_ in report["ledger"]} <= {"done", "failed", "unknown"}
    calls = {(line[2], line[3]) for line in played.witness if line[0] == "effect"}
    for kind, name in calls:
        keys = played.effects(kind, name)
        if kind in WRITES:
            assert len(keys) == 1, f"{kind} {name} was done {len(keys)} times"
        elif kind.startswith("put"):
            assert len(set(keys)) == 1, f"{kind} {name} was done under several keys: {keys}"
    for call, status in report["told"]:
        kind, name = call.split()
        if status == "ok" and kind != "pay_known":
            assert (kind, name) in calls, f"{call} is told to have worked, and never happened"
        if kind in WRITES and not played.effects(kind, name):
            assert status in ("unknown", "error", "cancelled", "skipped"), f"{call} is {status}, and never happened"
    assert played.reopened["history"] == report["history"], "another process remembers something else"
    assert played.reopened["messages"] == report["messages"]
    assert not played.requests(len({line[1] for line in played.witness}) + 1), "a session that is at rest asks nothing"


# ---- the table ----


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a call: how often it has its effect in all, and what the model is told of it."""

    text: str
    effects: int
    status: str


RUNS: Final = Fate("runs, once", 1, "ok")
AGAIN: Final = Fate("runs again", 2, "ok")
SAME_KEY: Final = Fate("runs again, same key", 2, "ok")
FIRST_EFFECT: Final = Fate("runs again, same key: first effect", 1, "ok")
NEVER: Final = Fate("not run: `unknown`", 0, "unknown")
UNKNOWN: Final = Fate("not run again: `unknown`", 1, "unknown")
KEPT: Final = Fate("kept, not run again", 1, "ok")


@dataclass(frozen=True, slots=True)
class Phase:
    """A moment at which the process dies, as words and as points of the scene, and what becomes of the call."""

    text: str
    points: tuple[str, ...]
    fates: tuple[Fate | None, Fate | None, Fate | None]  # read, idempotent, write; None: it has no such moment

    def row(self) -> str:
        """The line of the page."""
        return f"| {self.text} | {' | '.join(fate.text if fate else '–' for fate in self.fates)} |"


TABLE: Final = (
    Phase(
        "before the message was accepted (it is sent again)",
        ("submit:before", "commit:begun:before", "commit:begun:middle"),
        (RUNS, RUNS, RUNS),
    ),
    Phase("the run has begun, the model was not asked", ("commit:begun:after", "model:before"), (RUNS, RUNS, RUNS)),
    Phase("the model is answering", ("model:during",), (RUNS, RUNS, RUNS)),
    Phase("the model has answered, nothing of it is on disk", ("model:after",), (RUNS, RUNS, RUNS)),
    Phase("while the intent is being written", ("commit:intent:before", "commit:intent:middle"), (None, RUNS, RUNS)),
    Phase("the intent is on disk, the tool was not called", ("commit:intent:after",), (None, FIRST_EFFECT, NEVER)),
    Phase("the tool has begun, without an effect so far", ("tool:before",), (RUNS, FIRST_EFFECT, NEVER)),
    Phase("the tool has had its effect", ("tool:during", "tool:after"), (AGAIN, SAME_KEY, UNKNOWN)),
    Phase(
        "while the outcome is being written",
        ("commit:outcome:before", "commit:outcome:middle"),
        (None, SAME_KEY, UNKNOWN),
    ),
    Phase("the outcome is on disk", ("commit:outcome:after",), (None, KEPT, KEPT)),
    Phase("the round is on disk", ("commit:round-done:after",), (KEPT, KEPT, KEPT)),
    Phase(
        "in the next model call",
        ("model:before#2", "model:during#2", "model:after#2"),
        (KEPT, KEPT, KEPT),
    ),
    Phase(
        "while the answer of the run is being written",
        ("commit:round-final:before", "commit:round-final:middle"),
        (KEPT, KEPT, KEPT),
    ),
    Phase("the answer is on disk", ("commit:round-final:after",), (KEPT, KEPT, KEPT)),
)


def cases() -> Iterator[Any]:
    """Every phase with every effect; the queue and the name of the store take turns."""
    number = 0
    for phase in TABLE:
        for point in phase.points:
            for effect, fate in zip(TOOLS, phase.fates, strict=True):
                if fate is not None:
                    number += 1
                    queues = (True, False) if ":" in point and point.startswith("tool") else (number % 2 == 0,)
                    for queue in queues:
                        name = f"{effect}-{point}-{'queue' if queue else 'in-place'}"
                        yield pytest.param(effect, point, fate, queue, id=name)


@pytest.mark.parametrize(("effect", "point", "fate", "queue"), list(cases()))
def test_a_process_that_dies_in_a_phase_goes_on_as_the_table_says(
    effect: str, point: str, fate: Fate, queue: bool, stage: Stage, tmp_path: Path
) -> None:
    kind = TOOLS[effect]
    store = "file" if queue else "sqlite"
    played = play(stage, tmp_path, [point], rounds=[[[kind, "a"]]], queue=queue, store=store)
    assert len(played.effects(kind, "a")) == fate.effects
    assert played.report["told"] == [[f"{kind} a", fate.status]]
    assert played.answers == {"go": "Done: go"}
    assert played.report["messages"][0][2:4] == ["ran", "succeeded"]
    if effect != "read":
        assert played.ledger == {kind: "unknown" if fate.status == "unknown" else "done"}


def test_the_page_shows_this_table() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| the process dies | `read` | `idempotent` | `write` |")
    assert lines[start + 2 : start + 2 + len(TABLE)] == [phase.row() for phase in TABLE]
    assert not lines[start + 2 + len(TABLE)].startswith("|")


# ---- several calls in one answer ----


@pytest.mark.parametrize("queue", [True, False])
@pytest.mark.parametrize("when", ["before", "during"])
def test_of_writes_one_after_the_other_only_the_one_that_ran_is_unknown(
    when: str, queue: bool, stage: Stage, tmp_path: Path
) -> None:
    calls = [["pay", "a"], ["pay", "b"], ["pay", "c"]]
    played = play(stage, tmp_path, [f"pay b:{when}"], rounds=[calls], queue=queue)
    assert played.report["told"] == [["pay a", "ok"], ["pay b", "unknown"], ["pay c", "ok"]]
    assert len(played.effects("pay", "b")) == (when == "during")
    assert [state for _, state, *_ in played.report["ledger"]] == ["done", "unknown", "done"]


@pytest.mark.parametrize("queue", [True, False])
@pytest.mark.parametrize(
    ("kill", "told"),
    [
        ("look a:during", {"look a": "ok", "put b": "ok", "pay c": "ok", "look d": "ok"}),
        ("put b:during", {"look a": "ok", "put b": "ok", "pay c": "ok", "look d": "ok"}),
        ("pay c:during", {"look a": "ok", "put b": "ok", "pay c": "unknown", "look d": "ok"}),
        # The outcome of a call goes to disk while the next one begins: it may, or may not, be there.
        ("look d:during", {"look a": "ok", "put b": "ok", "pay c": "ok or unknown", "look d": "ok"}),
    ],
)
def test_calls_of_every_effect_in_one_answer_each_have_their_own_fate(
    kill: str, told: dict[str, str], queue: bool, stage: Stage, tmp_path: Path
) -> None:
    calls = [["look", "a"], ["put", "b"], ["pay", "c"], ["look", "d"]]
    played = play(stage, tmp_path, [kill], rounds=[calls], queue=queue)
    assert list(played.told) == list(told)  # in the order of the calls
    assert all(played.told[call] in status.split(" or ") for call, status in told.items())


def test_of_calls_that_run_beside_each_other_each_has_its_own_fate(stage: Stage, tmp_path: Path) -> None:
    calls = [["pay_beside", "a"], ["put_beside", "b"], ["look", "c"]]
    played = play(stage, tmp_path, ["both:during"], rounds=[calls])
    assert list(played.told.items()) == [("pay_beside a", "unknown"), ("put_beside b", "ok"), ("look c", "ok")]
    assert len(played.effects("put_beside", "b")) == 2
    assert played.ledger == {"pay_beside": "unknown", "put_beside": "done"}


@pytest.mark.parametrize("when", ["before", "middle", "after"])
def test_two_writes_at_once_are_both_unknown_when_neither_outcome_is_on_disk(
    when: str, stage: Stage, tmp_path: Path
) -> None:
    calls = [["pay_beside", "a"], ["pay_beside", "b"]]
    played = play(stage, tmp_path, [f"commit:outcome:{when}"], rounds=[calls])
    assert len(played.effects("pay_beside", "a")) == len(played.effects("pay_beside", "b")) == 1
    if when != "after":
        assert set(played.told.values()) == {"unknown"}


# ---- several crashes ----


def test_two_crashes_in_one_line_of_runs_lose_neither_outcome_nor_key(stage: Stage, tmp_path: Path) -> None:
    rounds = [[["look", "a"]], [["put", "b"], ["pay", "c"]]]
    played = play(stage, tmp_path, ["model:before#2", "put b:during", "pay c:during"], rounds=rounds)
    assert played.report["told"] == [["look a", "ok"], ["put b", "ok"], ["pay c", "unknown"]]
    assert len(played.effects("put", "b")) == 2
    assert played.ledger == {"put": "done", "pay": "unknown"}
    runs = played.report["runs"]
    assert [resumed_from for _, _, resumed_from in runs] == ["", *(run_id for run_id, *_ in runs[:-1])]


@pytest.mark.parametrize("point", ["tool:during", "commit:outcome:middle", "commit:intent:after"])
def test_an_idempotent_call_keeps_its_key_through_every_crash(point: str, stage: Stage, tmp_path: Path) -> None:
    played = play(stage, tmp_path, [point] * 4, rounds=[[["put", "a"]]])
    assert len(set(played.begins("put", "a"))) == 1
    assert played.report["told"] == [["put a", "ok"]]
    [[_, state, _, attempt]] = played.report["ledger"]
    assert (state, attempt) == ("done", 5)


def test_a_process_that_dies_while_it_takes_a_run_over_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    kills = ["tool:during", "commit:outcome:before", "commit:outcome:middle", "opened"]
    played = play(stage, tmp_path, kills, rounds=[[["pay", "a"]], [["look", "b"]]])
    assert played.report["told"] == [["pay a", "unknown"], ["look b", "ok"]]
    assert played.answers == {"go": "Done: go"}


def test_a_run_that_takes_the_process_down_five_times_is_given_up_and_the_session_lives_on(
    stage: Stage, tmp_path: Path
) -> None:
    played = play(
        stage, tmp_path, ["tool:during"] * 5, rounds=[[["put", "a"]]], changes={6: {"messages": ["go", "on"]}}
    )
    go, on = played.report["messages"]
    assert go[2:4] == ["ran", "interrupted"]
    assert "5th time" in go[5]
    assert on[2:4] == ["ran", "succeeded"]


def test_a_run_that_gets_further_each_time_is_never_given_up(stage: Stage, tmp_path: Path) -> None:
    rounds = [[["put", str(number)]] for number in range(8)]
    played = play(stage, tmp_path, [f"put {number}:during" for number in range(8)], rounds=rounds)
    assert played.answers == {"go": "Done: go"}
    assert played.report["told"] == [[f"put {number}", "ok"] for number in range(8)]


# ---- messages ----


def test_a_message_that_waited_runs_after_the_one_that_was_cut_off(stage: Stage, tmp_path: Path) -> None:
    played = play(stage, tmp_path, ["tool:during"], rounds=[[["look", "a"]]], messages=["one", "two", "three"])
    assert [text for _, text, *_ in played.report["messages"]] == ["one", "two", "three"]
    assert all(message[2:4] == ["ran", "succeeded"] for message in played.report["messages"])
    assert [prompts[-1] for prompts, *_ in played.requests(2)] == ["one", "one", "two", "two", "three", "three"]


STEERED: Final = (
    "steered",
    "commit:injected:before",
    "commit:injected:middle",
    "commit:injected:after",
    "model:before#2",
    "model:after#2",
    "commit:round-final:middle",
)


@pytest.mark.parametrize("queue", [True, False])
@pytest.mark.parametrize("point", STEERED)
def test_a_steered_message_is_said_once_and_answered_once(
    point: str, queue: bool, stage: Stage, tmp_path: Path
) -> None:
    played = play(
        stage,
        tmp_path,
        [point],
        rounds=[[["pay", "a"]]],
        steer="also",
        remembers=True,
        queue=queue,
        changes={2: {"steer": ""}},
    )
    assert sorted(text for _, text, *_ in played.report["messages"]) == ["also", "go"]
    assert {message[3] for message in played.report["messages"]} == {"succeeded"}
    prompts = [said["text"] for said in played.report["history"] if "role" in said]
    assert sorted(prompts) == ["also", "go"]


def test_a_message_that_was_steered_into_a_round_of_writes_is_said_once(stage: Stage, tmp_path: Path) -> None:
    rounds = [[["look", "a"]], [["pay", "b"]]]
    played = play(
        stage, tmp_path, ["pay b:during"], rounds=rounds, steer="also", remembers=True, changes={2: {"steer": ""}}
    )
    prompts = [said["text"] for said in played.report["history"] if "role" in said]
    assert sorted(prompts) == ["also", "go"]
    assert played.told["pay b"] == "unknown"
    assert {message[3] for message in played.report["messages"]} == {"succeeded"}


@pytest.mark.parametrize("kind", ["put", "put_beside"])
def test_a_call_that_had_begun_is_not_skipped_by_a_message_that_comes_after_the_crash(
    kind: str, stage: Stage, tmp_path: Path
) -> None:
    played = play(
        stage,
        tmp_path,
        ["tool:during"],
        rounds=[[[kind, "a"]]],
        remembers=True,
        changes={2: {"early": "also"}},
    )
    assert played.told[f"{kind} a"] in ("ok", "unknown")  # never skipped: it may have had its effect
    assert played.ledger[kind] == ("done" if played.told[f"{kind} a"] == "ok" else "unknown")


def test_a_run_that_waited_for_a_quota_goes_on(stage: Stage, tmp_path: Path) -> None:
    played = play(
        stage,
        tmp_path,
        ["event:run_waiting"],
        rounds=[[["pay", "a"]]],
        limited=True,
        changes={2: {"limited": False}, 3: {"limited": False}},
    )
    assert played.answers == {"go": "Done: go"}
    assert played.report["told"] == [["pay a", "ok"]]


# ---- compaction ----

LONG: Final = [[["look", "long"]], [["look", "b"]], [["look", "c"]], [["pay", "d"]]]


@pytest.mark.parametrize(
    "point",
    [
        "summary:before",
        "summary:during",
        "summary:after",
        "commit:compaction:before",
        "commit:compaction:middle",
        "commit:compaction:after",
        "event:context_compacted",
        "model:before#4",
        "pay d:during",
    ],
)
def test_a_process_that_dies_around_a_compaction_has_either_the_summary_or_what_it_stands_for(
    point: str, stage: Stage, tmp_path: Path
) -> None:
    played = play(stage, tmp_path, [point], rounds=LONG, compacts=True)
    assert played.answers["go"].startswith("Done: ")
    assert len(played.effects("pay", "d")) == 1
    assert played.told["pay d"] == ("unknown" if point.startswith("pay") else "ok")
    summaries = [said for said in played.report["history"] if said.get("role") == "system"]
    assert len(summaries) == 1
    assert ("look long" in played.told) is False


# ---- what else may be gone or changed ----


def test_a_call_whose_tool_is_gone_after_the_crash_is_an_error_for_the_model(stage: Stage, tmp_path: Path) -> None:
    calls = [["put", "a"], ["pay", "b"]]
    gone = {2: {"lacks": ["pay"]}, 3: {"lacks": ["pay"]}}
    played = play(stage, tmp_path, ["put a:during"], rounds=[calls], changes=gone)
    assert played.report["told"] == [["put a", "ok"], ["pay b", "error"]]
    assert played.answers == {"go": "Done: go"}


@pytest.mark.parametrize("kind", ["put", "pay"])
def test_a_call_that_had_begun_is_unknown_when_its_tool_is_gone(kind: str, stage: Stage, tmp_path: Path) -> None:
    gone = {2: {"lacks": [kind]}, 3: {"lacks": [kind]}}
    played = play(stage, tmp_path, ["tool:during"], rounds=[[[kind, "a"]]], changes=gone)
    assert played.report["told"] == [[f"{kind} a", "unknown"]]
    assert played.ledger == {kind: "unknown"}


@pytest.mark.parametrize(("point", "status", "state"), [("before", "error", "failed"), ("during", "ok", "done")])
def test_a_tool_that_can_find_out_is_asked_and_the_call_is_not_unknown(
    point: str, status: str, state: str, stage: Stage, tmp_path: Path
) -> None:
    played = play(stage, tmp_path, [f"tool:{point}"], rounds=[[["pay_known", "a"]]])
    assert played.report["told"] == [["pay_known a", status]]
    assert played.ledger == {"pay_known": state}
    asked = [line for line in played.witness if line[0] == "asked"]
    assert [line[4] for line in asked] == played.begins("pay_known", "a")


# ---- on_crash, and resume_run ----


@pytest.mark.parametrize("queue", [True, False])
def test_with_report_the_run_ends_interrupted_and_the_next_message_sees_what_is_unknown(
    queue: bool, stage: Stage, tmp_path: Path
) -> None:
    played = play(
        stage,
        tmp_path,
        ["pay b:during"],
        rounds=[[["look", "a"]], [["pay", "b"], ["pay", "c"]]],
        on_crash="report",
        queue=queue,
        changes={2: {"messages": ["go", "and now?"], "rounds": []}},
    )
    go, now = played.report["messages"]
    assert go[2:4] == ["ran", "interrupted"]
    assert "the process ended while it ran" in go[5]
    assert now[2:4] == ["ran", "succeeded"]
    assert played.told["pay b"] == "unknown"
    assert played.told["pay c"] == "cancelled"  # it has no intent: it never began
    assert played.ledger == {"pay": "unknown"}
    assert played.effects("pay", "c") == []
    assert len(played.requests(2)) == 1  # only for the new message


def test_resume_run_goes_on_in_a_run_of_its_own_and_leaves_the_old_one_as_it_was(stage: Stage, tmp_path: Path) -> None:
    played = play(
        stage,
        tmp_path,
        ["pay b:during"],
        rounds=[[["look", "a"]], [["pay", "b"], ["put", "c"]]],
        on_crash="report",
        changes={2: {"resume": "last"}},
    )
    resumed = played.report["resumed"]
    assert resumed["new"] != resumed["old"]
    assert resumed["intact"]
    assert resumed["text"].startswith("Done: ")
    assert played.told["pay b"] == "unknown"


# ---- the disk ----


@pytest.mark.parametrize("queue", [True, False])
def test_a_disk_that_is_full_for_a_while_costs_a_run_at_most_and_nothing_twice(
    queue: bool, stage: Stage, tmp_path: Path
) -> None:
    rounds = [[["pay", "a"], ["pay", "b"]], [["put", "c"]]]
    played = play(stage, tmp_path, [], rounds=rounds, messages=["go", "on"], remembers=True, queue=queue, full_ms=400)
    go, on = played.report["messages"]
    assert go[2] == "ran"
    assert go[3] == "succeeded" or "the store" in go[5], go
    assert on[2:4] == ["ran", "succeeded"]
    assert len(played.effects("pay", "a")) == 1


def flip(folder: Path, row_id: str, session: str) -> None:
    """Turn a few bits of a checkpoint over."""
    with sqlite3.connect(folder / "sessions.db") as connection:
        where = "FROM states WHERE kind = 'round' AND session = ? AND id LIKE ?"
        body = bytearray(connection.execute(f"SELECT body {where}", (session, row_id)).fetchone()[0].encode())
        for place in range(5, len(body), 7):
            body[place] ^= 0x01
        text = body.decode("utf-8", "replace")
        update = "UPDATE states SET body = ? WHERE kind = 'round' AND session = ? AND id LIKE ?"
        assert connection.execute(update, (text, session, row_id)).rowcount == 1
    connection.close()


def test_a_damaged_checkpoint_in_a_file_ends_its_messages_with_its_name_and_no_other_session(
    stage: Stage, tmp_path: Path
) -> None:
    scene = {"folder": str(tmp_path), "rounds": [[["pay", "a"]]]}
    for life, session in enumerate(("chat", "other"), 1):
        assert stage.play({**scene, "life": life, "session": session}) == 0
    flip(tmp_path, "%/000001", "chat")
    for life, session in enumerate(("chat", "other"), 3):
        facts = {**scene, "life": life, "session": session, "messages": ["go", "on"], "rounds": []}
        assert stage.play({**facts, "reads": session == "other"}) == 0, (tmp_path / "log").read_text(encoding="utf-8")
    hurt, well = (json.loads((tmp_path / f"report-{life}").read_text(encoding="utf-8")) for life in (3, 4))
    assert hurt["messages"][1][2:4] == ["ran", "failed"]
    assert "is damaged" in hurt["messages"][1][5]
    assert well["messages"][1][2:4] == ["ran", "succeeded"]
    assert well["told"] == [["pay a", "ok"]]


# ---- killed at random ----


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Kill agents at random; `make chaos` does it 500 times."""
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400)


def test_thirty_random_kills_lose_no_message_and_make_no_write_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = chaos("--agent-kills", "30", "--seed", "42", "--folder", str(tmp_path / "chaos"))
    tally = done.stdout.strip().splitlines()[-1]
    with capsys.disabled():
        sys.stdout.write(f"\n{tally}\n")
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = {
        name.strip(): int(count.replace(",", "")) for name, count in re.findall(r"([a-z5 ]+) ([\d,]*\d)[,;]", tally)
    }
    assert "30 kills" in tally
    assert numbers["accepted"] >= 10  # as many as a machine takes in between kills; some hundred on a quiet one
    excused = numbers["cut off by newer messages"] + numbers["given up after 5 crashes"]
    assert numbers["answered"] + excused == numbers["accepted"]
    assert (numbers["lost"], numbers["write twice"]) == (0, 0)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("hasty-store", "lost"),  # it says that rows are on disk before they are
        ("run-writes-again", "write twice"),  # writes that say of themselves that they are idempotent
    ],
)
def test_a_planted_fault_is_found(fault: str, found: str, tmp_path: Path) -> None:
    tally = ""
    for seed in range(20):  # a kill has to hit; on a busy machine a short rest may leave messages without an answer
        folder = str(tmp_path / f"chaos-{seed}")
        done = chaos("--agent-kills", "8", "--rest", "2", "--seed", str(seed), "--sabotage", fault, "--folder", folder)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        tally = done.stdout.strip().splitlines()[-1]
        if done.returncode and f"{found} 0" not in tally:
            break
    assert found in tally
    assert f"{found} 0" not in tally
