"""The generated pages and blocks are what the generator writes today, and nothing in the code is left out of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import laneway
from bench.catalogue import WORKLOADS
from docs import blocks, generate, web, wording
from laneway.agent_events import AGENT_EVENTS
from laneway.events import EVENT_TYPES
from laneway.external import TaskState
from laneway.kernel import directives, hooks
from laneway.kernel.jobs import TRANSITIONS, Trigger
from laneway.kernel.ledger import LEDGER_TRANSITIONS
from laneway.kernel.messages import MESSAGE_TRANSITIONS, Change
from laneway.kernel.task_board import TaskChange
from laneway.mail import MessageState, Mode, TurnState
from laneway.records import WaitReason

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.slow
def test_nothing_generated_is_stale(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def test_check_notices_a_stale_block() -> None:
    page = "before\n<!-- generated:presets -->\nold\n<!-- /generated:presets -->\nafter\n"
    new = generate.with_blocks(page)
    assert new != page
    assert (new[:7], new[-6:]) == ("before\n", "after\n")
    assert generate.with_blocks(new) == new


def test_every_public_name_is_in_the_reference() -> None:
    api = (REFERENCE / "api.md").read_text(encoding="utf-8")
    errors = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    missing = [name for name in laneway.__all__ if f"\n### {name}\n" not in api and f"`{name}" not in errors]
    assert missing == []


def test_every_event_type_is_in_the_reference() -> None:
    page = (REFERENCE / "events.md").read_text(encoding="utf-8")
    assert [kind for kind in EVENT_TYPES if f"`{kind}`" not in page] == []


def test_every_event_of_a_run_is_in_the_reference() -> None:
    page = (REFERENCE / "agent-events.md").read_text(encoding="utf-8")
    assert [kind for kind in AGENT_EVENTS if f"| `{kind}` |" not in page] == []


def test_every_event_that_a_hook_can_be_for_is_in_its_guide() -> None:
    page = (ROOT / "docs" / "howto" / "hooks.md").read_text(encoding="utf-8")
    assert [kind for kind in hooks.EVENTS if f"`{kind}`" not in page] == []


def test_every_change_of_the_ledger_is_in_its_diagram() -> None:
    diagram = blocks.ledger_states().partition("```mermaid")[2].partition("```")[0]
    assert [change for _, change in LEDGER_TRANSITIONS if str(change) not in diagram] == []


def test_every_state_and_change_of_an_external_task_is_in_its_block() -> None:
    diagram = blocks.task_states().partition("```mermaid")[2].partition("```")[0]
    assert [state for state in TaskState if state not in diagram] == []
    assert [change for change in TaskChange if change.value.replace("_", " ") not in diagram] == []
    assert set(wording.WORDS["task_states"]) == set(TaskState.__members__)
    assert set(wording.WORDS["task_changes"]) == set(TaskChange.__members__)


def test_every_change_of_a_job_has_somebody_who_makes_it() -> None:
    assert set(blocks.TRIGGERS) == set(Trigger) == {trigger for _, trigger in TRANSITIONS}


def test_every_change_of_a_message_has_somebody_who_makes_it() -> None:
    assert set(blocks.CHANGES) == set(Change) == {change for _, change in MESSAGE_TRANSITIONS}


def test_the_diagram_of_messages_shows_every_state_and_every_change() -> None:
    block = blocks.message_states()
    diagram = block.partition("```mermaid")[2].partition("```")[0]
    assert [state for state in MessageState if str(state) not in diagram] == []
    assert [change for change in Change if change.value.replace("_", " ") not in diagram] == []


def test_every_state_of_a_turn_has_a_meaning() -> None:
    assert set(wording.WORDS["turn_states"]) == set(TurnState.__members__)


def test_every_mode_and_every_command_is_in_the_reference() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    assert [mode for mode in Mode if f"| `{mode}` |" not in page] == []
    assert [name for name in directives._READERS if f"/{name}" not in page] == []  # noqa: SLF001 - the table itself


@pytest.mark.slow
def test_every_route_is_in_the_reference_and_no_words_are_about_routes_that_are_gone() -> None:
    schema = web.application().openapi()
    page = (REFERENCE / "http.md").read_text(encoding="utf-8")
    routes = [(method, path) for path, each in schema["paths"].items() for method in each]
    parameters = {one["name"] for method, path in routes for one in schema["paths"][path][method].get("parameters", ())}
    words = wording.WORDS["http"]
    assert [route for route in routes if f"\n### {route[0].upper()} {route[1]}\n" not in page] == []
    assert [path for path in words["open"] if path not in schema["paths"]] == []
    assert set(words["parameters"]) - parameters == set()


def test_a_route_that_only_an_operator_may_ask_says_so() -> None:
    scopes = dict(web.scopes_of(web.application()))
    assert scopes["post", "/v1/approvals/{approval_id}"] == "`operate`"
    assert scopes["patch", "/v1/lanes/{name}"] == web.ALL
    assert scopes["get", "/v1/lanes"] == web.SHARED
    assert scopes["post", "/v1/sessions/{key}/messages"] == "`chat`"


def test_every_number_of_the_server_is_in_the_reference() -> None:
    page = (REFERENCE / "metrics.md").read_text(encoding="utf-8")
    names = re.findall(r"`(laneway_\w+)`", (ROOT / "docs" / "howto" / "monitor.md").read_text(encoding="utf-8"))
    assert names
    assert [name for name in names if f"`{name.removesuffix('_count')}`" not in page] == []


def test_every_reason_to_wait_has_a_meaning() -> None:
    assert set(wording.comments_of(WaitReason)) == set(WaitReason.__members__)


def test_every_row_of_the_table_of_numbers_is_something_that_is_measured() -> None:
    measured = {(workload.name, ratio.name) for workload in WORKLOADS.values() for ratio in workload.ratios}
    rows = wording.WORDS["measured"]["rows"]
    assert [row for row in rows if (row[0], row[1]) not in measured] == []
    assert [row for row in wording.WORDS["measured"]["short"] if row not in [each[:2] for each in rows]] == []


def test_a_partial_benchmark_does_not_replace_a_fuller_one() -> None:
    rows = "\n".join(f"| row {number} | 1 |" for number in range(99))
    page = f"<!-- bench:table -->\n\n| measured | value |\n| --- | --- |\n{rows}\n\n<!-- /bench:table -->\n"
    assert generate.with_numbers(page) == page


def test_no_page_names_machines_or_marks_work_as_unfinished() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.py"),
    ]
    found = {
        page.relative_to(ROOT).as_posix(): hits
        for page in pages
        if (
            hits := re.findall(
                r"/work/|/home/|/tmp/|\bTODO\b|\bFIXME\b|\bFILL\b|#\d{2,}\b(?!-)", page.read_text(encoding="utf-8")
            )
        )
    }
    assert found == {}
