"""Sessions that live long, in a real browser: labels, passivation, and what waits for a budget."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import HOSTILE, Served, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
CONFIG = """
default_model: scripted
system: Be brief.
queue: {mode: followup}
lanes: {main: 8}
identity:
  principal: "user:<b>42</b>"
  correlation_id: req-9f2c
permissions: {default_decision: allow}
"""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve(CONFIG)


def ran(server: Served, key: str, text: str) -> str:
    """The run over a message, when it has ended."""
    message = server.send(key, text)["message_id"]
    until(lambda: server.api("GET", f"/v1/messages/{message}")["outcome"])
    return str(server.api("GET", f"/v1/messages/{message}")["run_id"])


def test_labels_are_shown_wherever_a_session_is(server: Served, open_page: OpenPage) -> None:
    run = ran(server, "labelled", HOSTILE[0])
    page = open_page(server, "#/sessions")
    for place in ("#/sessions", "#/sessions/labelled", "#/chat/labelled"):
        page.goto(f"{server.url}/{place}")
        expect(page.locator(".chip", has_text="Principal").first).to_contain_text("user:<b>42</b>")
    page.goto(f"{server.url}/#/story/run/{run}")
    expect(page.locator(".story-fact", has_text="Correlation")).to_contain_text("req-9f2c")
    check_harmless(page)


def test_names_and_times_stay_in_one_piece_and_texts_are_cut_behind_a_word(server: Served, open_page: OpenPage) -> None:
    ran(server, "support-europe", "characteristically " * 30)
    server.api("PUT", "/v1/sessions/support-europe/labels", {"principal": f"user:{'long-name-' * 8}"})
    page = open_page(server, "#/sessions/support-europe", phone=True)
    name = page.locator(".labels .chip > .dim", has_text="Principal")
    assert name.evaluate("(node) => node.getClientRects().length === 1 && node.offsetHeight < 30")
    answer = page.locator("td[data-label=Answer]")
    expect(answer).to_have_text(re.compile(r"characteristically…$"))
    page = open_page(server, "#/sessions/support-europe")
    for label in ("Began", "Took"):
        cell = page.locator(f"td[data-label={label}] .num")
        expect(cell).to_be_visible()
        assert cell.evaluate("(node) => node.getClientRects().length") == 1


def test_an_idle_session_is_passivated_and_comes_back(server: Served, open_page: OpenPage) -> None:
    ran(server, "idle", "hello")
    page = open_page(server, "#/sessions/idle")
    page.get_by_role("button", name="Passivate").click()
    page.get_by_label("Why").fill("moved")
    check_axe(page)
    page.get_by_role("dialog").get_by_role("button", name="Passivate").click()
    expect(page.get_by_text("It is not in memory. Its next message brings it back.")).to_be_visible()
    expect(page.get_by_role("button", name="Passivate")).to_have_count(0)
    ran(server, "idle", "and again")
    expect(page.get_by_role("button", name="Passivate")).to_be_visible()


def test_a_session_that_was_cut_says_that_it_rests(server: Served, open_page: OpenPage) -> None:
    server.send("cut", "run sleep 300")
    until(lambda: server.api("GET", "/v1/ledger?session=cut")["items"])
    server.api("POST", "/v1/sessions/cut/passivate", {"deadline_ms": 0})
    page = open_page(server, "#/sessions/cut", dark=True)
    expect(page.get_by_text("It has left memory with work undone: its session rests")).to_be_visible()
    check_axe(page)
    page.goto(f"{server.url}/#/chat/cut")
    expect(page.locator(".page-lead .badge")).to_have_text("rests")
    expect(page.locator(".chat-status .badge")).to_have_text("at rest")
    expect(page.get_by_role("button", name="Go on with it")).to_have_count(0)
    page.goto(f"{server.url}/#/sessions")
    row = page.get_by_role("list", name="Sessions").get_by_role("listitem").filter(has_text="cut")
    expect(row.locator(".badge")).to_have_text("rests")
    expect(row).to_contain_text("a message, an answer, the result of a task or a restart brings it back")
    server.api("POST", "/v1/sessions/cut/stop", {})


def test_a_run_that_waits_for_a_budget_says_so_and_the_budgets_are_drawn(
    serve: Callable[..., Served], open_page: OpenPage
) -> None:
    server = serve(CONFIG)
    for name, tokens, more in (
        ("roomy", 1_000_000, {}),
        ("close", 60_000, {"warn_at": 0.01}),
        ("daily", 5_000, {"window": "day", "on_exhausted": "park"}),
    ):
        server.api("PUT", f"/v1/budgets/{name}", {"scope": "session", "tokens": tokens, **more})
    ran(server, "spends", "hello " * 700)
    ran(server, "parked", "hello " * 700)
    message = server.send("parked", "hello " * 700)["message_id"]
    until(lambda: server.api("GET", "/v1/sessions/parked")["state"] == "waiting")
    page = open_page(server, f"#/story/message/{message}")
    expect(page.locator(".story-why")).to_contain_text("It waits for a budget: what is left of budget 'daily' (")
    expect(page.locator(".story-segment.story-budget").first).to_be_visible()
    page.goto(f"{server.url}/#/sessions/parked")
    expect(page.locator("main")).to_contain_text("Its run waits: what is left of budget 'daily' (")
    page.goto(f"{server.url}/#/chat/parked")
    expect(page.locator(".page-lead")).to_contain_text("is too little for this call until")
    page.goto(f"{server.url}/#/usage")
    budget = page.locator(".usage-budget")
    parked = budget.filter(has_text="daily").locator(".usage-count").filter(has_text="session parked")
    expect(parked).to_contain_text("1 run waits for it: parked")
    expect(parked.locator(".usage-end").get_by_role("link", name="parked")).to_have_attribute(
        "href", re.compile("story/run/")
    )
    server.api("PUT", "/v1/budgets/close", {"scope": "session", "tokens": 1_000})
    page.reload()
    row = page.locator(".usage-count").filter(has_text="session spends")
    expect(budget.filter(has_text="close").locator(row)).to_contain_text("used up: runs end here")
    expect(budget.filter(has_text="daily")).to_contain_text("new in")
    expect(budget.filter(has_text="roomy").locator(row).get_by_role("img")).to_be_visible()
    expect(budget.filter(has_text="roomy")).to_contain_text("1,000,000 tokens for each session, then runs end")
    expect(budget.filter(has_text="roomy").locator(row).locator(".usage-mark")).to_have_attribute("style", "left: 80%;")
    check_axe(page)
    budget.filter(has_text="roomy").get_by_role("link", name="session spends").click()
    expect(page.get_by_role("heading", name="spends", level=1)).to_be_visible()
