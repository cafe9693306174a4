"""Tokens and settings in a real browser: made, shown once, used on another device, revoked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import HOSTILE, Served, allow, check_axe, check_harmless

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
NAME = HOSTILE[0]  # a name of a token has no "/" in it, so this one


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve()


def make(page: Page, name: str, scope: str) -> str:
    """Make a token on the page; its secret, as the page shows it."""
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog", name="New token")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_role("radio", name=scope).check()
    dialog.get_by_label("It ends").select_option("in a week")
    dialog.get_by_role("button", name="Make it").click()
    shown = page.get_by_role("dialog", name="The token of")
    expect(shown.get_by_text("it is shown this once")).to_be_visible()
    check_axe(page)
    secret = shown.locator("code").first.inner_text()
    shown.get_by_role("button", name="I have it").click()
    expect(shown).to_have_count(0)
    return secret


def test_a_token_is_made_shown_once_used_elsewhere_and_revoked(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/tokens")
    secret = make(page, NAME, "operate")
    row = page.get_by_role("row").filter(has_text=NAME)
    expect(row).to_contain_text("operate")
    expect(row).to_contain_text("in 7 d")
    assert secret not in page.content()
    check_harmless(page)
    check_axe(page)

    other = open_page(server, "#/settings", token=secret, phone=True)
    allow(other, "status of 401")
    expect(other.get_by_text("approve, pause, resize")).to_be_visible()

    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("lost")
    page.get_by_role("button", name="Revoke it").click()
    expect(row).to_contain_text("revoked")
    expect(row.get_by_role("button", name="Revoke")).to_have_count(0)
    said = server.api("GET", "/v1/audit")["items"]
    assert [each["reason"] for each in said if each["action"] == "token.revoke"] == ["lost"]
    other.reload()
    expect(other.get_by_role("dialog", name="This needs a token")).to_be_visible()


def test_what_is_wrong_with_a_token_is_said_and_nothing_is_lost(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/tokens")
    allow(page, "status of 400")
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog", name="New token")
    dialog.get_by_role("button", name="Make it").click()
    expect(dialog.get_by_text("Give it a name")).to_be_visible()
    dialog.get_by_label("Name").fill("a/b")
    page.keyboard.press("Enter")
    expect(page.get_by_text("A name of a token has no '/'")).to_be_visible()
    expect(dialog.get_by_label("Name")).to_have_value("a/b")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="New token")).to_be_focused()  # it is given back


def test_who_may_not_see_tokens_is_told_what_helps(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/tokens", token=server.token("chat"))
    allow(page, "status of 403")
    expect(page.get_by_role("alert")).to_contain_text("needs the scope 'admin'")
    page.get_by_role("button", name="Use a token").click()
    dialog = page.get_by_role("dialog", name="This needs a token")
    dialog.get_by_label("Token").fill(server.admin)
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Tokens")).to_be_visible()
    expect(page.get_by_text("administrator", exact=True)).to_be_visible()


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"phone": True}], ids=["light", "dark", "phone"])
def test_settings_and_tokens_have_no_serious_problem(
    server: Served, open_page: OpenPage, look: dict[str, bool]
) -> None:
    for path, name in (("#/settings", "What you may do here"), ("#/tokens", "")):
        page = open_page(server, path, **look)
        expect(page.get_by_role("heading", name=name) if name else page.get_by_role("table")).to_be_visible()
        check_axe(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_rights_of_this_tab_are_shown_and_can_be_forgotten(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings")
    allow(page, "status of 401")
    expect(page.get_by_text("make and revoke tokens")).to_be_visible()
    page.get_by_role("button", name="Forget it").click()
    expect(page.get_by_role("dialog", name="This needs a token")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('laneway.token')") is None
