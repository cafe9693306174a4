"""Schedules, limits, usage, configuration and audit in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import HOSTILE, OFFLINE, Served, allow, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

CONFIG = """default_model: scripted
permissions: {default_decision: allow}
queue:
  query_max_concurrency: 3
  cap: 50
max_tool_rounds: 10
providers:
  openai:
    api_key: ${SETUP_KEY}
"""
SECRET = "sk-never-to-be-seen"
HOUR = 3_600_000


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve(CONFIG, SETUP_KEY=SECRET)


def ended(server: Served, message_id: str) -> None:
    """Wait for the end of a message."""
    until(lambda: server.api("GET", f"/v1/messages/{message_id}")["outcome"] is not None)


def add(server: Served, text: str, session: str = "daily", **more: Any) -> dict[str, Any]:
    """A schedule."""
    when = more if more else {"every_ms": HOUR}
    added: dict[str, Any] = server.api("POST", "/v1/schedules", {"session_key": session, "text": text, **when})
    return added


def row_of(page: Page, text: str) -> Any:
    """The row of a schedule."""
    return page.locator("tr", has_text=text)


# ---- schedules ----


def test_a_schedule_is_made_with_its_next_times_and_run_now(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/schedules")
    page.get_by_role("button", name="New schedule").first.click()
    dialog = page.get_by_role("dialog", name="New schedule")
    dialog.get_by_label("Session").fill("morning")
    dialog.get_by_label("Message").fill("What is new today?")
    dialog.get_by_label("Cron").fill("0 9 * * mon-fri")
    expect(dialog.get_by_text("on weekdays at 09:00")).to_be_visible()
    expect(dialog.get_by_label("Next times").get_by_role("listitem")).to_have_count(5)
    check_axe(page)
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_be_hidden()
    row = row_of(page, "What is new today?")
    expect(row).to_contain_text("on weekdays at 09:00", ignore_case=True)
    expect(row).to_contain_text("not yet")
    row.get_by_role("button", name="Run now").click()
    expect(row.get_by_text("answered")).to_be_visible()  # told by the stream, without another look of anybody
    expect(row.get_by_role("link", name="its story")).to_have_attribute("href", re.compile("#/story/message/msg-"))
    (kept,) = [each for each in server.api("GET", "/v1/schedules")["items"] if each["session_key"] == "morning"]
    assert (kept["cron"], kept["timezone"], kept["last_outcome"]) == ("0 9 * * mon-fri", "Europe/Berlin", "succeeded")


def test_what_is_wrong_is_said_at_its_field_while_one_types(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/schedules")
    allow(page, "status of 400")
    page.get_by_role("button", name="New schedule").first.click()
    dialog = page.get_by_role("dialog", name="New schedule")
    dialog.get_by_label("Cron").fill("61 * * * *")
    expect(dialog.get_by_label("Cron")).to_have_attribute("aria-invalid", "true")
    expect(dialog.get_by_role("alert")).to_contain_text("minute")
    dialog.get_by_label("Cron").fill("0 9 * * *")
    expect(dialog.get_by_label("Next times").get_by_role("listitem")).to_have_count(5)
    dialog.get_by_label("Timezone").fill("Berlin")
    expect(dialog.get_by_role("alert")).to_contain_text("Europe/Berlin")
    dialog.get_by_label("Every so often").check()
    dialog.get_by_label("How often").fill("often")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_label("How often")).to_have_attribute("aria-invalid", "true")
    expect(dialog.get_by_label("Session")).to_have_attribute("aria-invalid", "true")
    expect(dialog.get_by_label("Message")).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_a_schedule_is_paused_changed_and_deleted(server: Served, open_page: Callable[..., Page]) -> None:
    added = add(server, "tidy up")
    page = open_page(server, "#/schedules")
    row = row_of(page, "tidy up")
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused")).to_be_visible()
    path = f"/v1/schedules/{added['schedule_id']}"
    assert server.api("GET", path)["paused"] is True
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()
    row.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog", name="Edit schedule")
    expect(dialog.get_by_label("Session")).to_be_disabled()
    expect(dialog.get_by_label("How often")).to_have_value("1h")
    dialog.get_by_label("How often").fill("2h 30m")
    dialog.get_by_label("Message").fill("tidy up everything")
    dialog.get_by_role("button", name="Save").click()
    expect(row_of(page, "tidy up everything")).to_contain_text("every 150 minutes", ignore_case=True)
    assert server.api("GET", path)["every_ms"] == 9_000_000
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row_of(page, "tidy up everything")).to_have_count(0)
    server.api("GET", path, status=404)


def test_schedules_by_keyboard_on_a_phone(server: Served, open_page: Callable[..., Page]) -> None:
    add(server, "is there already")
    page = open_page(server, "#/schedules", phone=True, dark=True)
    expect(row_of(page, "is there already").first).to_be_visible()  # by then the keys are bound
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="New schedule")
    dialog.get_by_label("Session").focus()
    page.keyboard.type("pocket")
    page.keyboard.press("Tab")
    page.keyboard.type("from the pocket")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(dialog.get_by_label("Every so often")).to_be_checked()
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("1d")
    page.keyboard.press("Enter")
    expect(row_of(page, "from the pocket")).to_contain_text("every day", ignore_case=True)
    check_axe(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# ---- limits ----


def test_a_limit_is_closed_with_a_countdown_and_opened_again(server: Served, open_page: Callable[..., Page]) -> None:
    ended(server, server.send("limited", "hello")["message_id"])
    page = open_page(server, "#/limits")
    card = page.get_by_role("region", name="Account scripted")
    expect(card.get_by_text("open", exact=True)).to_be_visible()
    card.get_by_role("button", name="Close for a while").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("For how long").select_option("15 minutes")
    dialog.get_by_label("Reason").fill("the quota is used up")
    check_axe(page)
    dialog.get_by_role("button", name="Close it").click()
    expect(card).to_contain_text(re.compile(r"Opens in 1[45] min"))
    expect(card).to_contain_text("the quota is used up")
    sent = server.send("limited", "wait for it")
    expect(card.get_by_role("link", name="limited")).to_be_visible()  # who waits for it
    check_axe(page)
    card.get_by_role("button", name="Open now").click()
    expect(card.get_by_text("open", exact=True)).to_be_visible()
    ended(server, sent["message_id"])


def test_a_limit_that_somebody_else_closes_is_seen(server: Served, open_page: Callable[..., Page]) -> None:
    ended(server, server.send("limited", "hello")["message_id"])
    page = open_page(server, "#/limits", phone=True)
    expect(page.get_by_role("region", name="Account scripted")).to_be_visible()
    server.api("POST", "/v1/limits/subagent/close", {"for_ms": HOUR, "reason": "a pause"})
    card = page.get_by_role("region", name="Lane subagent")
    expect(card).to_contain_text("a pause")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    server.api("POST", "/v1/limits/subagent/open")
    expect(card).to_have_count(0)  # it is no limit any more


# ---- usage ----


def test_usage_is_shown_after_runs_by_every_part(server: Served, open_page: Callable[..., Page]) -> None:
    for key in ("usage-one", "usage-two"):
        ended(server, server.send(key, "run echo hello")["message_id"])
    page = open_page(server, "#/usage")
    expect(page.get_by_role("link", name="usage-one")).to_be_visible()
    expect(page.get_by_text("No price is known of these models")).to_be_visible()
    expect(page.get_by_role("group", name="Tokens by day")).to_be_visible()
    page.get_by_role("group", name="Group").get_by_role("button", name="Run").click()
    expect(page).to_have_url(re.compile("by=run"))
    runs = server.api("GET", "/v1/usage?group=run")["items"]
    expect(page.get_by_role("link", name=runs[0]["key"])).to_have_attribute("href", f"#/story/run/{runs[0]['key']}")
    page.get_by_role("group", name="Group").get_by_role("button", name="Model").click()
    expect(page.get_by_role("cell", name="scripted")).to_be_visible()
    limits = page.get_by_role("region", name="Limits of runs")
    expect(limits.get_by_text("Rounds of a run")).to_be_visible()
    expect(limits.get_by_text(re.compile(r"\d+ of 10"))).to_be_visible()
    check_axe(page)
    page.get_by_role("group", name="Period").get_by_role("button", name="Today").click()
    expect(page.get_by_text("A longer period shows its days.")).to_be_visible()


# ---- configuration ----


def test_settings_are_found_with_their_origins_and_secrets_stay_hidden(
    server: Served, open_page: Callable[..., Page]
) -> None:
    page = open_page(server, "#/config")
    search = page.get_by_label("Search settings")
    expect(search).to_be_visible()
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("queue.cap")
    row = row_of(page, "queue.cap")
    expect(row).to_contain_text("50")
    expect(row).to_contain_text("default 20")
    expect(row).to_contain_text("agent.yaml:5")
    expect(page.get_by_text("1 setting", exact=True)).to_be_visible()
    search.fill("api_key")
    expect(row_of(page, "providers.openai.api_key")).to_contain_text("hidden")
    assert SECRET not in page.content()
    search.fill("no such setting at all")
    expect(page.get_by_text("No setting fits")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("group", name="Origin").get_by_role("button", name=re.compile("Not default")).click()
    expect(row_of(page, "max_tool_rounds")).to_be_visible()
    expect(page.get_by_text("queue.drop")).to_have_count(0)
    expect(page).to_have_url(re.compile("only=changed"))
    check_axe(page)


def test_what_was_changed_since_the_start_stands_above_the_settings(
    server: Served, open_page: Callable[..., Page]
) -> None:
    server.api("PATCH", "/v1/lanes/cron", {"concurrency": 7, "reason": "many"})
    page = open_page(server, "#/config", phone=True)
    changes = page.get_by_role("region", name="Changed since the start")
    expect(changes).to_contain_text(re.compile(r"cron\s+concurrency:\s+7\s+instead of 3"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_axe(page)


# ---- audit ----


def test_the_audit_log_tells_what_the_page_did(server: Served, open_page: Callable[..., Page]) -> None:
    added = add(server, "audited", session="audited")
    page = open_page(server, "#/schedules")
    row_of(page, "audited").get_by_role("button", name="Pause").click()
    expect(row_of(page, "audited").get_by_text("paused")).to_be_visible()
    server.api("PATCH", "/v1/lanes/main", {"paused": True, "reason": "maintenance"})
    server.api("PATCH", "/v1/lanes/main", {"paused": False})
    page.goto(f"{server.url}/#/audit")
    first = page.get_by_role("listitem").filter(has_text="resumed lane main")
    expect(first).to_be_visible()
    expect(page.get_by_text("paused lane main: maintenance")).to_be_visible()
    expect(page.get_by_text(f"paused schedule {added['schedule_id']} of session audited")).to_be_visible()
    page.get_by_label("About").select_option("Schedules")
    expect(page.get_by_text("paused lane main")).to_have_count(0)
    page.get_by_label("Text").fill("audited")
    entry = page.get_by_role("listitem").filter(has_text=f"paused schedule {added['schedule_id']}")
    entry.get_by_role("button", name="All that is known").click()
    expect(entry).to_contain_text("schedule.change")
    expect(page).to_have_url(re.compile("action=schedule"))
    check_axe(page)
    page.get_by_label("Who").fill("nobody at all")
    expect(page.get_by_text("No action fits")).to_be_visible()


# ---- all of them ----


def test_on_a_new_server_every_view_says_what_to_do(
    serve: Callable[..., Served], open_page: Callable[..., Page]
) -> None:
    page = open_page(serve(tokens=False), "#/schedules", token="")
    expect(page.get_by_text("Nothing is sent by the clock")).to_be_visible()
    check_axe(page)
    for path, said in (
        ("limits", "There are no limits yet"),
        ("usage", "No model was called in this time"),
        ("config", "Search settings"),
    ):
        page.evaluate(f"location.hash = '#/{path}'")
        expect(page.get_by_text(said)).to_be_attached()
        check_axe(page)


def test_no_text_of_anybody_is_more_than_text(server: Served, open_page: Callable[..., Page]) -> None:
    for number, text in enumerate(HOSTILE):
        added = add(server, f"{text} {number}", session=re.sub(r"[/\x00-\x1f]", "-", text))
        server.api("PATCH", f"/v1/schedules/{added['schedule_id']}", {"paused": True, "reason": text})
    ended(server, server.send("hostile-usage", HOSTILE[0])["message_id"])
    server.api("POST", "/v1/limits/subagent/close", {"for_ms": 60_000, "reason": HOSTILE[0]})
    page = open_page(server, "#/schedules")
    expect(page.get_by_text(f"{HOSTILE[0]} 0")).to_be_visible()
    check_harmless(page)
    for path, seen in (
        ("limits", HOSTILE[0]),
        ("usage", "hostile-usage"),
        ("audit", HOSTILE[1]),
        ("config", "queue.cap"),
    ):
        page.goto(f"{server.url}/#/{path}")
        expect(page.get_by_text(seen).first).to_be_visible()
        check_harmless(page)
    server.api("POST", "/v1/limits/subagent/open")


@pytest.mark.parametrize("path", ["schedules", "limits", "usage", "config", "audit"])
def test_every_view_says_what_helps_when_it_is_refused(
    server: Served, open_page: Callable[..., Page], path: str
) -> None:
    page = open_page(server, f"#/{path}", token="")
    allow(page, "status of 401", "status of 403")
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.get_by_role("button", name="Use a token").first).to_be_visible()


def test_a_view_says_that_nobody_answers_and_is_there_again_by_itself(
    server: Served, open_page: Callable[..., Page]
) -> None:
    page = open_page(server, "#/usage")
    expect(page.get_by_role("heading", name="Limits of runs")).to_be_visible()
    allow(page, *OFFLINE)
    server.kill()
    page.get_by_role("button", name="Read again").click()
    expect(page.get_by_text("The server does not answer").first).to_be_visible()
    expect(page.get_by_role("heading", name="Limits of runs")).to_be_visible()  # what was read stays
    server.restart()
    page.get_by_role("button", name="Try again").first.click()
    expect(page.locator("main").get_by_text("The server does not answer")).to_have_count(0)
