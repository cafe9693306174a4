"""The overview and the guide in a real browser: five seconds to understand, ten to have done something."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import HOSTILE, Served, allow, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

CONFIG = """
default_model: scripted
lanes:
  main: 2
queue:
  mode: followup
permissions:
  default_decision: allow
  ask: ["write"]
confirmation:
  enabled: true
  default_timeout_ms: 3600000
"""
WRITE = 'call write {"path": "a.txt", "content": "x"}'


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve(CONFIG)


@pytest.fixture
def quiet(server: Served) -> Served:
    """The server with nothing that runs or waits."""

    def is_quiet() -> bool:
        now = server.api("GET", "/v1/now")
        for each in now["at_work"]:
            server.api("POST", f"/v1/sessions/{quote(each['session_key'], safe='')}/stop")
        return not now["running"] and not now["waiting"]

    until(is_quiet)
    return server


def needs(page: Page, kind: str) -> str:
    """Where things of a kind are shown."""
    return f".overview-kind[data-kind={kind}]"


# ---- the overview ----


def test_what_runs_and_what_waits_is_said_in_words_as_it_happens(quiet: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(quiet, "#/")
    expect(page.get_by_text("othing needs you.", exact=False).first).to_be_visible()
    for key in ("one", "two", "three"):
        quiet.send(key, "wait 300")
    work = page.get_by_role("region", name="At work")
    expect(work.get_by_role("listitem")).to_have_count(2)
    expect(work).to_contain_text("runs wait")
    waits = page.get_by_role("region", name="Waits, and why")
    expect(waits).to_contain_text("2 of 2 taken")
    quiet.send("one", "and this")
    expect(waits).to_contain_text("The run before it goes on")
    expect(page.locator(".page-lead")).to_have_text("2 sessions are at work, 2 messages wait, nothing needs you.")
    check_axe(page)
    work.get_by_role("listitem").filter(has_text="one").get_by_role("button", name="End this run").click()
    page.get_by_role("button", name="End it").click()
    expect(work).to_contain_text("three")


def test_a_call_is_approved_where_it_is_seen(quiet: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(quiet, "#/", phone=True)
    quiet.send("asks", WRITE)
    card = page.locator(needs(page, "approvals"))
    expect(card).to_contain_text('"path": "a.txt"')
    check_axe(page)
    card.get_by_role("button", name="Approve").click()
    expect(card).to_have_count(0)
    until(lambda: (quiet.folder / "a.txt").exists())
    assert quiet.api("GET", "/v1/approvals")["items"] == []


def test_a_call_is_denied_with_a_reason(quiet: Served, open_page: Callable[..., Page]) -> None:
    sent = quiet.send("asks", WRITE)
    page = open_page(quiet, "#/", dark=True)
    page.locator(needs(page, "approvals")).get_by_role("button", name="Deny").click()
    page.get_by_label("Reason, told to the model").fill("not on a Friday")
    page.get_by_role("dialog").get_by_role("button", name="Deny").click()
    expect(page.locator(needs(page, "approvals"))).to_have_count(0)
    until(lambda: quiet.api("GET", f"/v1/messages/{sent['message_id']}")["outcome"])


def test_a_paused_lane_is_resumed_and_a_closed_one_opened(quiet: Served, open_page: Callable[..., Page]) -> None:
    quiet.api("PATCH", "/v1/lanes/cron", {"paused": True})
    quiet.api("POST", "/v1/limits/subagent/close", {"for_ms": 3_600_000, "reason": "the quota is used up"})
    page = open_page(quiet, "#/")
    page.locator(needs(page, "lanes")).get_by_role("button", name="Resume").first.click()
    expect(page.locator(needs(page, "lanes")).get_by_text("cron", exact=True)).to_have_count(0)
    limits = page.locator(needs(page, "limits"))
    expect(limits).to_contain_text("The quota is used up")
    limits.get_by_role("button", name="Open now").click()
    expect(limits).to_have_count(0)
    lanes = {each["name"]: each for each in quiet.api("GET", "/v1/lanes")["items"]}
    assert not lanes["cron"]["paused"]
    assert lanes["subagent"]["closed_until_ms"] is None


def test_names_and_texts_of_others_stay_texts(quiet: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(quiet, "#/")
    for number, text in enumerate(HOSTILE[:2]):
        key = quote(f"{number}{text}".replace("/", "|"), safe="")
        quiet.api("POST", f"/v1/sessions/{key}/messages", {"text": f"wait 300\n{text}"})
    expect(page.get_by_role("region", name="At work").get_by_role("listitem")).to_have_count(2)
    expect(page.get_by_role("region", name="At work")).to_contain_text("onerror")
    check_harmless(page)


def test_who_is_no_operator_looks_and_is_asked_for_a_token(quiet: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(quiet, "#/", token=quiet.token("chat", name="guest"))
    quiet.send("asks", WRITE)
    page.locator(needs(page, "approvals")).get_by_role("button", name="Approve").click()
    expect(page.get_by_role("dialog")).to_contain_text("operate")
    allow(page, "status of 403")


# ---- the guide ----


def test_a_new_server_offers_the_guide_and_the_guide_is_carried_out(
    serve: Callable[..., Served], open_page: Callable[..., Page]
) -> None:
    server = serve(tokens=False)
    page = open_page(server, "#/", token="")
    expect(page.get_by_text("Nobody has sent a message yet")).to_be_visible()
    check_axe(page)
    page.get_by_role("link", name="Begin the guide").click()
    expect(page.get_by_role("button", name="Steer it")).to_be_disabled()
    page.get_by_role("button", name="Send it").click()
    expect(page.get_by_text("The model calls wait", exact=False)).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("region", name="At work")).to_contain_text("guide-")
    page.get_by_role("link", name="Guide", exact=True).first.click()  # left, and taken up again
    steer = page.get_by_role("button", name="Steer it")
    expect(steer).to_be_enabled()
    check_axe(page)
    steer.click()
    expect(page.get_by_text("It went into the run", exact=False)).to_be_visible()
    expect(page.get_by_text("You said: Never mind the waiting", exact=False)).to_be_visible()
    page.get_by_role("button", name=re.compile(r"Send \d+ messages")).click()
    expect(page.get_by_text(re.compile(r"\d+ waits?: its turn waits for a slot of lane"))).to_be_visible()
    expect(page.get_by_text("That was it")).to_be_visible()
    page.get_by_role("button", name="Begin anew").click()
    expect(page.get_by_role("button", name="Send it")).to_be_enabled()
