"""The replay of a run in a real browser: its steps, whether it would go the same way, forks and comparisons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.stage import HOSTILE, Served, allow, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
CONFIG = """
default_model: scripted
system: Be brief.
record: true
queue: {mode: followup}
subagents: true
permissions: {default_decision: allow}
"""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve(CONFIG)


def ran(server: Served, key: str, text: str) -> str:
    """The run over a message, when it has ended."""
    message = server.send(quote(key, safe=""), text)["message_id"]
    until(lambda: server.api("GET", f"/v1/messages/{message}")["outcome"])
    return str(server.api("GET", f"/v1/messages/{message}")["run_id"])


def rows(page: Page) -> Locator:
    """The steps in the list."""
    return page.get_by_role("list", name="Steps").get_by_role("listitem")


def selected(page: Page) -> Locator:
    """The step that is looked at, in the list."""
    return page.locator(".replay-row[aria-current=step]")


def step_number(server: Served, run: str, op: str, which: int = 0) -> int:
    """The number of a step of a kind."""
    items = server.api("GET", f"/v1/runs/{run}/steps")["items"]
    return int([each["number"] for each in items if each["op"] == op][which])


def test_a_run_is_gone_through_step_by_step_from_its_story(server: Served, open_page: OpenPage) -> None:
    run = ran(server, "stepped", "run echo hello")
    page = open_page(server, f"#/story/run/{run}")
    page.get_by_role("link", name="Replay").click()
    expect(page.get_by_text("It would go the same way today")).to_be_visible()
    expect(page.get_by_role("heading", name="Step 1 of")).to_be_visible()
    expect(page.get_by_role("button", name="Previous")).to_be_disabled()
    page.get_by_role("button", name="Next").click()
    expect(selected(page)).to_contain_text("It is told: run echo hello")
    expect(page.locator(".replay-details")).to_contain_text("Said by the user")
    expect(page).to_have_url(re.compile(r"step=2$"))
    page.keyboard.press("j")
    expect(selected(page)).to_contain_text("Nothing was said before it")
    page.keyboard.press("k")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("heading", name="Step 1 of")).to_be_visible()
    at = step_number(server, run, "result")
    page.goto(f"{server.url}/#/replay/{run}?step={at}")
    expect(page.locator(".replay-details")).to_contain_text("hello")
    expect(selected(page)).to_be_in_viewport()
    page.get_by_label("Events and pieces, too").uncheck()
    expect(rows(page).filter(has_text="Event:")).to_have_count(0)
    expect(selected(page)).to_contain_text("bash has ended (ok)")
    check_axe(page)


def test_the_list_is_gone_through_with_arrows(server: Served, open_page: OpenPage) -> None:
    run = ran(server, "arrows", "hello")
    page = open_page(server, f"#/replay/{run}")
    rows(page).first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Step 3 of")).to_be_visible()


def test_a_run_of_another_prompt_marks_the_step_that_differs(serve: Callable[..., Served], open_page: OpenPage) -> None:
    served = serve(CONFIG)
    run = ran(served, "old", "run echo hello")
    served.stop()
    (served.folder / "agent.yaml").write_text(CONFIG.replace("brief", "kind"))
    served.restart()
    page = open_page(served, f"#/replay/{run}", dark=True)
    verdict = page.get_by_label("Whether it would go the same way today")
    expect(verdict).to_contain_text("It would go another way today, from step")
    expect(verdict).to_contain_text("The system prompt is another one.")
    expect(verdict).to_contain_text("Be brief.")
    expect(verdict).to_contain_text("Be kind.")
    verdict.get_by_role("button", name="Go to step").click()
    expect(selected(page)).to_contain_text("differs")
    expect(page.locator(".replay-differs")).to_contain_text("This is where it would go another way")
    check_axe(page)


def test_a_run_that_was_not_recorded_says_so(serve: Callable[..., Served], open_page: OpenPage) -> None:
    served = serve(CONFIG.replace("record: true", "record: false"))
    run = ran(served, "plain", "run echo hello")
    page = open_page(served, f"#/replay/{run}")
    expect(page.get_by_text("its steps are told from checkpoints")).to_be_visible()
    expect(rows(page)).to_have_count(4)


def test_a_fork_goes_on_in_a_chat_of_its_own(server: Served, open_page: OpenPage) -> None:
    run = ran(server, "forked", "run echo hello")
    at = step_number(server, run, "ask", 1)
    page = open_page(server, f"#/replay/{run}?step={at}")
    page.get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("What it is told").fill("and now something else")
    dialog.get_by_label("Name of the new session").fill("the fork")
    check_axe(page)
    dialog.get_by_role("button", name="Fork", exact=True).click()
    expect(page).to_have_url(re.compile(r"#/chat/the%20fork$"))
    expect(page.get_by_text("You said: and now something else")).to_be_visible()
    before = server.api("GET", "/v1/sessions/forked/runs")["items"]
    assert [each["run_id"] for each in before] == [run]
    page = open_page(server, f"#/replay/{run}?step={at}")
    forks = page.get_by_role("region", name="Forks of this run")
    expect(forks.get_by_role("link", name="the fork")).to_be_visible()
    expect(forks.get_by_role("button", name=f"from step {at}")).to_be_visible()
    check_axe(page)
    heir = server.api("GET", "/v1/sessions/the%20fork/runs")["items"][0]["run_id"]
    page = open_page(server, f"#/story/run/{heir}")
    expect(page.get_by_role("link", name=f"{run}, at step {at}")).to_be_visible()
    page = open_page(server, "#/sessions/the%20fork")
    expect(page.locator("main").get_by_role("link", name=run)).to_be_visible()


def test_the_dialog_of_a_fork_says_what_becomes_of_a_call_and_stays_with_its_step(
    server: Served, open_page: OpenPage
) -> None:
    run = ran(server, "bound", "run echo hello; : " + "y" * 3_000)
    act = step_number(server, run, "act")
    page = open_page(server, f"#/replay/{run}?step={act + 1}")
    page.get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 call (bash) had begun and is not made again: the result is kept.")
    page.evaluate("(to) => { location.hash = to }", f"#/replay/{run}?step={act}")
    expect(page.get_by_role("heading", name=f"Step {act} of")).to_be_visible()
    expect(dialog).to_contain_text(f"Fork from step {act + 1}")
    dialog.get_by_label("Name of the new session").fill("bound fork")
    dialog.get_by_role("button", name="Fork", exact=True).click()
    expect(page).to_have_url(re.compile(r"#/chat/bound%20fork$"))
    expect(page.get_by_text(f"at step {act + 1}")).to_be_visible()
    expect(page.get_by_label("Attachments")).to_have_count(0)


def test_a_failed_call_with_a_long_output_is_shown_as_failed(server: Served, open_page: OpenPage) -> None:
    run = ran(server, "failed", "run seq 1 3000; exit 3")
    at = step_number(server, run, "result")
    page = open_page(server, f"#/replay/{run}?step={at}")
    expect(page.locator(".replay-row[aria-current=step]")).to_have_class(re.compile("replay-bad"))
    expect(page.locator(".replay-details")).to_contain_text("Exit code")


def test_a_fork_with_nothing_to_go_on_with_is_refused_in_words(server: Served, open_page: OpenPage) -> None:
    run = ran(server, "refused", "hello")
    page = open_page(server, f"#/replay/{run}?step=1")
    allow(page, "status of 400")
    expect(page.get_by_role("heading", name="Step 1 of")).to_be_visible()
    page.keyboard.press("f")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Fork", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("nothing to go on with")
    expect(dialog.get_by_role("alert")).to_contain_text("ive a prompt")
    dialog.get_by_label("What it is told").fill("say this instead")
    page.keyboard.press("Control+Enter")
    expect(page).to_have_url(re.compile(r"#/chat/fork-"))
    expect(page.get_by_text("You said: say this instead")).to_be_visible()


def test_two_runs_are_compared(server: Served, open_page: OpenPage) -> None:
    first = ran(server, "compared", "hello")
    second = ran(server, "compared", "goodbye")
    page = open_page(server, f"#/replay/{first}")
    page.get_by_role("button", name="Compare with …").click()
    page.get_by_role("dialog").get_by_role("button", name=second).click()
    card = page.get_by_role("region", name="Comparison")
    expect(card).to_contain_text("They part at step 2: what was said to the model")
    expect(card).to_contain_text("It is told: hello")
    expect(card).to_contain_text("It is told: goodbye")
    expect(page).to_have_url(re.compile(f"other={second}"))
    card.get_by_role("button", name="Go to step 2").click()
    expect(page.get_by_role("heading", name="Step 2 of")).to_be_visible()
    check_axe(page)
    card.get_by_role("button", name="Close the comparison").click()
    expect(card).to_have_count(0)
    page.keyboard.press("c")
    page.get_by_role("dialog").get_by_label("Run").fill(first)
    page.keyboard.press("Enter")
    expect(card).to_contain_text("Both runs are the same, step by step")


def test_a_run_of_many_steps_is_read_as_far_as_wanted(server: Served, open_page: OpenPage) -> None:
    run = ran(server, "long", "\nthen\n".join(["run echo again"] * 30))
    total = server.api("GET", f"/v1/runs/{run}/steps?limit=1")["total"]
    assert total > 250
    page = open_page(server, f"#/replay/{run}")
    expect(page.get_by_role("heading", name="Steps")).to_contain_text(f"200 of {total}")
    page.goto(f"{server.url}/#/replay/{run}?step={total}")
    expect(selected(page)).to_contain_text("The run has its answer")
    expect(selected(page)).to_be_in_viewport()
    expect(page.get_by_role("button", name="Next")).to_be_disabled()


def test_a_long_step_is_folded_and_shown_whole_if_wanted(server: Served, open_page: OpenPage) -> None:
    run = ran(server, "wide", "x" * 5_000 + " the end")
    page = open_page(server, f"#/replay/{run}?step=2")
    details = page.locator(".replay-details")
    expect(details).not_to_contain_text("the end")
    details.get_by_role("button", name="Show the whole step").click()
    details.get_by_role("button", name="Show all").click()
    expect(details).to_contain_text("the end")


def test_the_run_of_a_sub_agent_is_told_too(server: Served, open_page: OpenPage) -> None:
    task = json.dumps({"prompt": "run echo child", "description": "the finder"})
    run = ran(server, "parent", f"call task {task}")
    (child,) = server.api("GET", f"/v1/runs/{run}/story")["children"]
    page = open_page(server, f"#/replay/{child['run_id']}")
    allow(page, "status of 404", "status of 409")
    expect(page.get_by_text("Whether it would go the same way today cannot be said now")).to_be_visible()
    expect(rows(page).filter(has_text="run echo child").first).to_be_visible()
    page.get_by_role("button", name="Fork from here").click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("that of a sub-agent")


def test_nothing_in_a_replay_runs_and_it_fits_a_phone(server: Served, open_page: OpenPage) -> None:
    run = ran(server, HOSTILE[0].replace("/", "|"), " ".join(HOSTILE))
    page = open_page(server, f"#/replay/{run}?step=2", phone=True)
    expect(page.locator(".replay-details")).to_contain_text("<img src=x")
    expect(page.locator(".replay-details")).to_contain_text("⟨U+202E⟩")
    check_harmless(page)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    check_axe(page)


def test_a_replay_that_there_is_not_says_so(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/replay/turn-nobody")
    allow(page, "status of 404")
    expect(page.get_by_role("alert")).to_contain_text("turn-nobody")
    page.goto(f"{server.url}/#/replay")
    expect(page.get_by_text("Which run?")).to_be_visible()
