"""The frame of the dashboard in a real browser: getting in, getting around, and a server that goes away."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.stage import OFFLINE, Served, allow, check_axe

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
REFUSED = "the server responded with a status of 401"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    """With tokens: nobody is let in without one."""
    return serve()


@pytest.fixture(scope="module")
def open_server(serve: Callable[..., Served]) -> Served:
    """As at the first start: whoever is on the machine may talk and look."""
    return serve(tokens=False)


def heading(page: Page, name: str) -> None:
    """Wait for the view of that name."""
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


# ---- getting in ----


def test_a_token_in_the_address_is_taken_and_is_seen_nowhere(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings")
    heading(page, "Settings")
    expect(page).to_have_url(f"{server.url}/#/settings")
    expect(page.get_by_text("administrator", exact=True)).to_be_visible()
    page.reload()  # it is kept in the tab
    expect(page.get_by_text("administrator", exact=True)).to_be_visible()
    assert server.admin not in page.content()
    assert page.evaluate("localStorage.length") == 0
    page.go_back()  # neither is it in the history
    assert "token" not in page.url


def test_who_has_no_token_is_asked_for_one_and_told_what_is_wrong_with_it(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings", token="")
    allow(page, REFUSED)
    dialog = page.get_by_role("dialog", name="This needs a token")
    field = dialog.get_by_label("Token")
    expect(field).to_be_focused()
    expect(dialog.get_by_text("laneway token create")).to_be_visible()
    check_axe(page)
    for wrong, words in (("", "Enter a token"), ("no token ☂", "This is no token"), ("lw_wrong", "not known here")):
        field.fill(wrong)
        page.keyboard.press("Enter")
        expect(dialog.get_by_text(words)).to_be_visible()
    field.fill(f"  {server.admin} ")
    dialog.get_by_role("button", name="Use it").click()
    heading(page, "Settings")
    expect(dialog).to_have_count(0)


def test_a_wrong_token_in_the_address_leads_to_the_same_question(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings", token="lw_wrong")
    allow(page, REFUSED)
    dialog = page.get_by_role("dialog", name="This needs a token")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Not now").click()
    expect(page.get_by_role("alert")).to_contain_text("This needs a token that counts")
    page.get_by_role("button", name="Use a token").click()
    dialog.get_by_label("Token").fill(server.admin)
    page.keyboard.press("Enter")
    heading(page, "Settings")


def test_a_change_without_the_right_asks_for_a_token_and_goes_on(open_server: Served, open_page: OpenPage) -> None:
    page = open_page(open_server, "#/settings")
    allow(page, REFUSED)
    expect(page.get_by_text("chat only")).to_be_visible()
    expect(page.get_by_text("Without a token")).to_be_visible()
    page.get_by_role("link", name="Tokens").click()
    expect(page.get_by_role("alert")).to_contain_text("scope 'admin'")
    page.get_by_role("button", name="Use a token").click()
    dialog = page.get_by_role("dialog", name="This needs a token")
    dialog.get_by_label("Token").fill("lw_nonsense")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


# ---- getting around ----


def test_the_frame_has_no_serious_problem_light_dark_and_on_a_phone(server: Served, open_page: OpenPage) -> None:
    for look in ({}, {"dark": True}, {"phone": True}):
        page = open_page(server, "#/nowhere/at all", **look)
        heading(page, "Nothing is here")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark" if look == {"dark": True} else "light")
        check_axe(page)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide == 0


def test_keys_lead_everywhere_but_not_while_somebody_types(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings")
    heading(page, "Settings")
    page.keyboard.press("g")
    page.keyboard.press("k")
    heading(page, "Tokens")
    page.keyboard.press("?")
    help_ = page.get_by_role("dialog", name="Keys")
    expect(help_.get_by_text("Dead letters")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press(",")  # a dialog is open: nothing happens behind it
    page.keyboard.press("Escape")
    expect(help_).to_have_count(0)
    heading(page, "Tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name").press_sequentially("g,")
    expect(page.get_by_label("Name")).to_have_value("g,")


def test_the_keyboard_alone_skips_the_navigation_and_finds_back(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings")
    heading(page, "Settings")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page).to_have_url(re.compile("#/settings$"))
    page.get_by_role("link", name="Tokens", exact=True).focus()
    page.keyboard.press("Enter")
    heading(page, "Tokens")
    expect(page.get_by_role("link", name="Tokens", exact=True)).to_have_attribute("aria-current", "page")
    page.go_back()
    heading(page, "Settings")


def test_on_a_phone_the_navigation_is_a_drawer(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings", phone=True)
    heading(page, "Settings")
    tokens = page.get_by_role("link", name="Tokens", exact=True)
    expect(tokens).to_have_count(0)  # nobody gets into it by keys while it is closed
    menu = page.get_by_role("button", name="Menu")
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    check_axe(page)
    expect(page.get_by_role("link", name="Settings", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(tokens).to_have_count(0)
    expect(menu).to_be_focused()
    menu.click()
    tokens.click()
    heading(page, "Tokens")
    expect(tokens).to_have_count(0)


def test_the_theme_is_kept_in_the_browser(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings")
    page.get_by_label("Dark").check()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    check_axe(page)
    page.reload()
    expect(page.get_by_label("Dark")).to_be_checked()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_label("As the system says").check()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_a_view_that_cannot_be_loaded_says_so_and_can_be_tried_again(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings")
    heading(page, "Settings")
    allow(page, "status of 404", "ERR_FAILED")
    refusing = [True]

    def answer(route: Route) -> None:
        if refusing[0]:
            route.abort()
        else:
            route.continue_()

    page.route(re.compile(r"/views/tokens\.js"), answer)
    page.get_by_role("link", name="Tokens", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Tokens could not be loaded")
    page.get_by_role("link", name="Settings", exact=True).click()  # all else still works
    expect(page.get_by_role("heading", name="Look")).to_be_visible()
    page.get_by_role("link", name="Tokens", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Tokens could not be loaded")
    refusing[0] = False
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("button", name="New token")).to_be_visible()


def test_another_workspace_is_chosen_in_the_header_and_kept_in_the_tab(
    serve: Callable[..., Served], open_page: OpenPage
) -> None:
    agent = "default_model: scripted\npermissions: {default_decision: allow}\n"
    files = {"shop/agent.yaml": agent, "lab/agent.yaml": agent}
    server = serve(files=files, arguments=("--workspace", "shop", "--workspace", "lab"))
    server.api("POST", "/v1/sessions/tills/messages", {"text": "hello"}, headers={"Laneway-Workspace": "lab"})
    page = open_page(server, "#/sessions")
    chooser = page.get_by_label("Workspace")
    expect(chooser).to_have_value("shop")
    expect(page.get_by_text("tills")).to_have_count(0)
    chooser.select_option("lab")
    expect(page.get_by_text("tills").first).to_be_visible()
    page.reload()
    expect(chooser).to_have_value("lab")
    expect(page.get_by_text("tills").first).to_be_visible()
    check_axe(page)


# ---- the server goes away ----


def test_a_killed_server_is_told_and_the_page_comes_back_with_it(
    serve: Callable[..., Served], open_page: OpenPage
) -> None:
    server = serve()
    page = open_page(server, "#/tokens")
    expect(page.get_by_role("row")).to_have_count(2)
    allow(page, *OFFLINE)
    server.token("chat", name="made meanwhile")
    server.kill()
    page.get_by_role("link", name="Settings", exact=True).click()
    page.get_by_role("link", name="Tokens", exact=True).click()
    expect(page.get_by_text("The server does not answer.")).to_be_visible()
    expect(page.get_by_text("The page tries again by itself")).to_be_visible()
    check_axe(page)
    server.restart()
    expect(page.get_by_text("made meanwhile")).to_be_visible()  # nobody has pressed anything
    expect(page.get_by_text("The server does not answer.")).to_have_count(0)


def test_a_view_that_is_opened_while_the_server_is_away_comes_with_it(
    serve: Callable[..., Served], open_page: OpenPage
) -> None:
    server = serve()
    page = open_page(server, "#/settings")
    heading(page, "Settings")
    allow(page, *OFFLINE)
    server.kill()
    page.get_by_role("link", name="Tokens", exact=True).click()  # its module was never asked for
    expect(page.get_by_role("alert")).to_contain_text("Tokens could not be loaded")
    expect(page.get_by_text("The server does not answer.")).to_be_visible()
    server.restart()
    expect(page.get_by_role("table", name="Tokens")).to_be_visible()
    expect(page.get_by_text("The server does not answer.")).to_have_count(0)


def test_a_live_view_says_that_it_is_away_and_catches_up(serve: Callable[..., Served], open_page: OpenPage) -> None:
    server = serve()
    page = open_page(server, "#/")
    heading(page, "Overview")
    allow(page, *OFFLINE)
    away = page.get_by_text("The server does not answer.")
    server.kill()
    expect(away).to_be_visible()
    server.restart()
    expect(away).to_have_count(0)
    server.send("after", "wait 20")
    expect(page.get_by_role("link", name="after", exact=True).first).to_be_visible()


def test_a_page_that_is_older_than_the_server_says_so(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings")
    heading(page, "Settings")

    def answer(route: Route) -> None:
        reply = route.fetch()
        route.fulfill(response=reply, json={**reply.json(), "page": "another"})

    allow(page, REFUSED)
    page.get_by_role("button", name="Forget it").click()
    page.get_by_role("dialog").get_by_label("Token").fill(server.admin)
    page.route(re.compile("/v1/about$"), answer)
    page.keyboard.press("Enter")
    expect(page.get_by_text("The server was updated.")).to_be_visible()
    check_axe(page)
    page.unroute(re.compile("/v1/about$"))
    page.get_by_role("button", name="Reload the page").click()
    heading(page, "Settings")
    expect(page.get_by_text("The server was updated.")).to_have_count(0)


# ---- what may run ----

PLANT = """() => {
  const made = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
  const ways = {
    html: () => { document.body.innerHTML += "<img src=x onerror='window.hit = 1'>"; },
    inline: () => document.body.append(made("script", "window.hit = 2")),
    handler: () => { made("button", "").setAttribute("onclick", "window.hit = 3"); },
    style: () => document.head.append(made("style", "body { display: none }")),
    data: () => import("data:text/javascript,window.hit = 4").catch(() => {}),
  };
  return Object.entries(ways).map(([name, act]) => {
    try {
      act();
      return name;
    } catch (error) {
      return `${name}: ${error.name}`;
    }
  });
}"""


def test_nothing_that_is_planted_into_the_page_runs(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/settings")
    heading(page, "Settings")
    allow(page, "policy violated", "Content Security Policy", "TrustedHTML", "TrustedScript")
    tried = page.evaluate(PLANT)
    assert "html: TypeError" in tried
    expect(page.get_by_role("heading", name="Settings", level=1)).to_be_visible()
    assert page.evaluate("window.hit === undefined")
