"""Approvals in a real browser: what would run is seen whole, and answered once, by whoever is first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.stage import HOSTILE, Served, allow, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
CONFIG = """
default_model: scripted
lanes: {main: 16}
permissions: {allow: ["*"], ask: ["bash"]}
confirmation: {enabled: true, default_timeout_ms: %s}
"""
CONFLICT, REFUSED, DENIED = "status of 409", "status of 401", "status of 403"
NUMBERS = iter(range(1, 1_000))


@pytest.fixture(scope="module")
def asked_server(serve: Callable[..., Served]) -> Served:
    """One that asks about every command."""
    return serve(CONFIG % 600_000)


@pytest.fixture
def server(asked_server: Served) -> Iterator[Served]:
    """The same, with nothing that waits for an answer after a test."""
    yield asked_server
    for each in asked_server.api("GET", "/v1/approvals")["items"]:
        asked_server.api("POST", f"/v1/approvals/{each['approval_id']}", {"approve": False})


def asks(server: Served, command: str) -> str:
    """A session whose run asks whether it may run a command; its key."""
    key = f"asks-{next(NUMBERS)}"
    server.send(key, f"run {command}")
    until(lambda: server.api("GET", f"/v1/approvals?session={key}")["items"])
    return key


def card(page: Page, text: str) -> Locator:
    """The request with this text."""
    return page.get_by_role("article").filter(has_text=text)


def answer(server: Served, key: str) -> str:
    """What the run of a session said in the end."""
    until(lambda: server.api("GET", f"/v1/sessions/{key}")["run_id"] is None)
    return str(server.api("GET", f"/v1/sessions/{key}/history")["items"][-1]["text"])


def test_a_request_is_approved_and_runs_exactly_so(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/approvals")
    expect(page.get_by_text("Nobody asks for anything")).to_be_visible()
    key = asks(server, "echo yes > done.txt")
    request = card(page, "echo yes > done.txt")
    expect(request.get_by_role("heading", name="Run bash?")).to_be_visible()
    expect(request).to_contain_text("left, then it is refused")
    expect(request.get_by_role("link", name=key)).to_be_visible()
    expect(page.get_by_text("1 request waits for an answer.")).to_be_visible()
    check_axe(page)
    request.get_by_role("button", name="Approve").click()
    expect(request).to_have_count(0)
    until(lambda: (server.folder / "done.txt").exists())
    page.get_by_role("button", name="Decided earlier").click()
    decided = page.get_by_role("row").filter(has_text=key)
    expect(decided).to_contain_text("approved by browser")
    entries = server.api("GET", "/v1/audit")["items"]
    assert any(each["action"] == "approval.approve" for each in entries)


def test_a_request_is_denied_with_a_reason_that_the_model_is_told(server: Served, open_page: OpenPage) -> None:
    key = asks(server, "rm -rf everything")
    page = open_page(server, "#/approvals")
    card(page, "rm -rf everything").get_by_role("button", name="Deny").click()
    dialog = page.get_by_role("dialog", name="Deny bash?")
    dialog.get_by_label("Why not?").fill("not on a Friday")
    check_axe(page)
    dialog.get_by_role("button", name="Deny").click()
    expect(card(page, "rm -rf everything")).to_have_count(0)
    until(lambda: server.api("GET", f"/v1/sessions/{key}")["run_id"] is None)
    (decided,) = server.api("GET", f"/v1/approvals?state=decided&session={key}")["items"]
    assert (decided["state"], decided["reason"]) == ("denied", "not on a Friday")


def test_two_browsers_answer_at_once_and_one_of_them_counts(server: Served, open_page: OpenPage) -> None:
    key = asks(server, "echo twice")
    one, two = open_page(server, "#/approvals"), open_page(server, f"#/sessions/{key}")
    for page in (one, two):
        allow(page, CONFLICT)
        expect(card(page, "echo twice")).to_be_visible()
    hold = "**/v1/approvals?*"
    two.route(hold, lambda route: route.abort())  # it does not learn that the other one was faster
    two.route("**/v1/approvals", lambda route: route.fallback())
    allow(two, "ERR_FAILED")
    one.get_by_role("button", name="Approve").click()
    expect(card(one, "echo twice")).to_have_count(0)
    card(two, "echo twice").get_by_role("button", name="Approve").click()
    expect(two.get_by_text("Already decided")).to_be_visible()
    two.unroute(hold)
    expect(card(two, "echo twice")).to_have_count(0)
    assert "twice" in answer(server, key)
    entries = server.api("GET", f"/v1/approvals?state=decided&session={key}")["items"]
    assert [each["state"] for each in entries] == ["approved"]


def test_who_looks_on_is_told_what_somebody_else_decided(server: Served, open_page: OpenPage) -> None:
    asks(server, "echo elsewhere")
    page = open_page(server, "#/approvals")
    expect(card(page, "echo elsewhere")).to_be_visible()
    (asked,) = server.api("GET", "/v1/approvals")["items"]
    server.api("POST", f"/v1/approvals/{asked['approval_id']}", {"approve": False, "reason": "no"})
    expect(card(page, "echo elsewhere")).to_have_count(0)
    expect(page.get_by_text("bash: denied by browser.")).to_be_visible()


def test_what_is_cut_off_is_not_approved_until_it_was_shown(server: Served, open_page: OpenPage) -> None:
    asks(server, f"echo {'x' * 3_000} hidden-end")
    page = open_page(server, "#/approvals")
    request = card(page, "Run bash?")
    approve = request.get_by_role("button", name="Approve")
    expect(approve).to_be_disabled()
    expect(request).not_to_contain_text("hidden-end")
    expect(request).to_contain_text("What is cut off cannot be approved")
    request.get_by_role("button", name="Show the rest").click()
    expect(request).to_contain_text("hidden-end")
    approve.click()
    expect(request).to_have_count(0)


def test_hostile_arguments_are_texts_and_what_hides_is_shown(server: Served, open_page: OpenPage) -> None:
    asks(server, f"echo '{HOSTILE[0]}'")
    asks(server, f"echo '{HOSTILE[5]}'")
    page = open_page(server, "#/approvals")
    expect(card(page, "<img src=x onerror=")).to_be_visible()
    hidden = card(page, "⟨U+202E⟩txt.exe ⟨U+200B⟩")
    expect(hidden).to_contain_text("2 characters in it cannot be seen")
    check_harmless(page)
    check_axe(page)


def test_who_may_not_answer_is_told_how_to_get_the_right(server: Served, open_page: OpenPage) -> None:
    asks(server, "echo right")
    page = open_page(server, "#/approvals", token=server.token("chat"), phone=True)
    allow(page, REFUSED, DENIED)
    request = card(page, "echo right")
    expect(page.get_by_text("laneway token create NAME --scope operate")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    request.get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill(server.admin)
    dialog.get_by_role("button", name="Use it").click()
    expect(request).to_have_count(0)


def test_nobody_answers_in_time_and_that_is_told(serve: Callable[..., Served], open_page: OpenPage) -> None:
    server = serve(CONFIG % 4_000)
    page = open_page(server, "#/approvals")
    key = asks(server, "echo late")
    expect(card(page, "echo late")).to_be_visible()
    expect(page.get_by_text("bash: nobody answered in time.")).to_be_visible()
    expect(card(page, "echo late")).to_have_count(0)
    until(lambda: server.api("GET", f"/v1/sessions/{key}")["run_id"] is None)
