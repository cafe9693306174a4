"""The whole tour with the keyboard alone: no test here has a mouse."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import Served
from tests.server_process import until

pytestmark = pytest.mark.slow

CONFIG = """
default_model: scripted
lanes: {main: 3}
queue: {mode: followup}
permissions: {default_decision: allow, ask: ["write"]}
confirmation: {enabled: true, default_timeout_ms: 3600000}
"""
FOCUS = """() => {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const isSeen = style.outlineStyle !== "none" || style.boxShadow !== "none";
  const name = one.getAttribute("aria-label") || one.title || one.textContent.trim().slice(0, 60);
  return { name, isSeen, tag: one.tagName };
}"""
TABS_MAX = 80


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve(CONFIG)


def tab_to(page: Page, name: str) -> None:
    """Press Tab until something with this name has the focus; whatever has it on the way can be seen to have it."""
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUS)
        if focus["tag"] != "BODY":
            assert focus["isSeen"], f"nobody sees that {focus} has the focus"
        if focus["name"].startswith(name):
            return
    raise AssertionError(f"{name!r} was not reached by Tab")


def test_every_view_is_reached_and_the_keys_are_listed(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    for key, title in (
        ("l", "Lanes"),
        ("s", "Sessions"),
        ("a", "Approvals"),
        ("t", "Tasks"),
        ("w", "Workers"),
        ("d", "Dead letters"),
        ("e", "Ledger"),
        ("c", "Schedules"),
        ("u", "Usage"),
        ("i", "Limits"),
        ("h", "Audit"),
        ("f", "Configuration"),
        ("k", "Tokens"),
        ("b", "Guide"),
        (",", "Settings"),
        ("o", "Overview"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Lanes")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_somebody_talks_steers_and_stops_without_a_mouse(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/")
    expect(page.get_by_role("link", name="New message")).to_be_visible()
    tab_to(page, "New message")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_label("First message")).to_be_focused()
    page.keyboard.type("wait 300")
    page.keyboard.press("Control+Enter")
    expect(page).to_have_url(re.compile("#/chat/"))
    name = page.get_by_role("heading", level=1).inner_text()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    until(lambda: server.api("GET", "/v1/now")["at_work"])
    page.keyboard.type("never mind")
    page.keyboard.press("Control+Enter")
    until(lambda: any(each["why"] == "steer" for each in server.api("GET", "/v1/now")["groups"]))
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page.get_by_role("region", name="At work")).to_contain_text(name)
    tab_to(page, "End this run")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    tab_to(page, "End it")
    page.keyboard.press("Enter")
    until(lambda: not any(each["tools"] for each in server.api("GET", "/v1/now")["at_work"]))


def test_somebody_approves_and_pauses_without_a_mouse(server: Served, open_page: Callable[..., Page]) -> None:
    server.send("asks", 'call write {"path": "keys.txt", "content": "x"}')
    page = open_page(server, "#/")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    tab_to(page, "Approve")
    page.keyboard.press("Enter")
    until(lambda: (server.folder / "keys.txt").exists())
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page.get_by_role("heading", name="Lanes", level=1)).to_be_visible()
    expect(page.get_by_role("button", name="Pause main")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("p")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.type("maintenance")
    page.keyboard.press("Enter")
    until(lambda: [each for each in server.api("GET", "/v1/lanes")["items"] if each["paused"]])
    expect(page.get_by_role("button", name=re.compile(r"^Resume \w+"))).to_be_visible()
    page.keyboard.press("p")
    until(lambda: not [each for each in server.api("GET", "/v1/lanes")["items"] if each["paused"]])
