"""The list of sessions in a real browser: found, filtered, kept up to date, begun, stopped; a thousand of them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from laneway.rows import Batch, Owner
from laneway.stores import open_store
from tests.browser.stage import HOSTILE, OFFLINE, Served, allow, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
CONFIG = """
default_model: scripted
lanes: {main: 16}
queue: {mode: followup}
permissions: {default_decision: allow}
"""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    """With some sessions."""
    served = serve(CONFIG)
    for key in ("telegram:ada", "telegram:bob", "web-1"):
        served.send(key, f"hello from {key}")
    return served


def rows(page: Page) -> Locator:
    """The rows of the list."""
    return page.get_by_role("list", name="Sessions").get_by_role("listitem")


def row(page: Page, key: str) -> Locator:
    """The row of one session."""
    return rows(page).filter(has=page.get_by_role("link", name=key, exact=True))


def test_sessions_are_found_by_a_part_of_their_name(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/sessions")
    expect(row(page, "telegram:ada")).to_contain_text("You said: hello from telegram:ada")
    page.keyboard.press("/")
    page.keyboard.type("BOB")
    expect(rows(page)).to_have_count(1)
    expect(row(page, "telegram:bob")).to_be_visible()
    expect(page).to_have_url(re.compile(r"#/sessions\?q=BOB$"))
    page.get_by_role("searchbox").fill("nobody is called so")
    expect(page.get_by_text("No session has this in its name")).to_be_visible()
    page.get_by_role("searchbox").fill("")
    expect(row(page, "web-1")).to_be_visible()
    check_axe(page)


def test_what_happens_is_seen_at_once_newest_first(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/sessions")
    expect(row(page, "web-1")).to_be_visible()
    page.mouse.move(5, 5)  # nobody points at the list
    server.send("web-1", "wait 300")
    expect(rows(page).first).to_contain_text("web-1")
    expect(row(page, "web-1")).to_contain_text("acting")
    server.send("web-1", "and then this")
    expect(row(page, "web-1").get_by_role("link", name="1 waiting")).to_be_visible()
    expect(row(page, "web-1")).to_contain_text("a run has gone on for")
    for name, key in (("Busy", "web-1"), ("Waiting", "web-1")):
        page.get_by_role("button", name=re.compile(f"^{name}")).click()
        expect(rows(page)).to_have_count(1)
        expect(row(page, key)).to_be_visible()
    row(page, "web-1").get_by_role("button", name="Stop everything in it").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    page.mouse.move(5, 5)
    expect(page.get_by_text("None at the moment")).to_be_visible()
    until(lambda: server.api("GET", "/v1/sessions/web-1")["run_id"] is None)
    page.get_by_role("button", name="All", exact=True).click()
    expect(row(page, "web-1")).to_contain_text("idle")


def test_rows_stay_where_they_are_while_somebody_points_at_them(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/sessions")
    expect(row(page, "telegram:ada")).to_be_visible()
    first = rows(page).first.get_by_role("link").first.inner_text()
    rows(page).first.hover()
    server.send("telegram:ada", "once more")
    server.send("new-one", "hello")
    expect(row(page, "telegram:ada")).to_contain_text("You said: once more")
    expect(rows(page).first).to_contain_text(first)
    page.get_by_role("button", name="Show 1 newer session").click()
    expect(rows(page).first).to_contain_text("new-one")


def test_a_session_is_begun_with_its_first_message(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/sessions")
    expect(row(page, "telegram:ada")).to_be_visible()
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="New session")
    dialog.get_by_label("Name").fill("")
    dialog.get_by_role("button", name="Send").click()
    expect(dialog.get_by_text("Give it a name.")).to_be_visible()
    expect(dialog.get_by_text("Say something.")).to_be_visible()
    check_axe(page)
    dialog.get_by_label("Name").fill("a b?d#é")
    dialog.get_by_label("First message").fill("hello there")
    dialog.get_by_label("First message").press("Control+Enter")
    expect(page).to_have_url(re.compile(r"#/chat/a%20b%3Fd%23%C3%A9$"))
    until(lambda: server.api("GET", "/v1/sessions/a%20b%3Fd%23%C3%A9/history")["items"])
    page.goto(f"{server.url}/#/sessions/a%20b%3Fd%23%C3%A9")
    expect(page.get_by_role("heading", name="a b?d#é", level=1)).to_be_visible()
    expect(page.get_by_text("Nothing waits", exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name="You said: hello there")).to_be_visible()


def test_the_list_is_used_by_keys_alone(server: Served, open_page: OpenPage) -> None:
    page = open_page(server, "#/sessions")
    expect(row(page, "telegram:ada")).to_be_visible()
    rows(page).first.focus()
    page.keyboard.press("ArrowDown")
    expect(rows(page).nth(1)).to_be_focused()
    key = rows(page).nth(1).get_by_role("link").first.inner_text()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/chat/"))
    assert key


def test_a_thousand_sessions_are_few_elements_and_stay_up_to_date(
    serve: Callable[..., Served], open_page: OpenPage
) -> None:
    server = serve(CONFIG)
    sessions_in(server, 1_000)
    page = open_page(server, "#/sessions")
    expect(page.get_by_text("1,000 sessions, 0 busy")).to_be_visible()
    expect(rows(page).first).to_contain_text("many-999")
    assert rows(page).count() < 60
    rows(page).first.focus()
    for size in (200, 300, 400):
        page.keyboard.press("End")  # each time the next page of the list comes
        expect(rows(page).first).to_have_attribute("aria-setsize", str(size))
    page.mouse.move(5, 5)
    server.send("many-3", "hello")
    page.keyboard.press("Home")
    expect(rows(page).first).to_contain_text("many-3")
    page.get_by_role("searchbox").fill("many-77")
    expect(rows(page)).to_have_count(11)  # 77, and 770 to 779


def sessions_in(server: Served, count: int) -> None:
    """So many sessions in the store of a server, as an earlier one would have left them; it is started again."""
    sent = server.send("many-0", "hello")
    until(lambda: server.api("GET", f"/v1/messages/{sent['message_id']}")["disposition"] == "ran")
    server.stop()

    async def write() -> None:
        store = open_store(f"sqlite:///{server.folder / 'laneway.db'}")
        await store.open()
        try:
            row = await store.history.message(sent["message_id"])
            assert row is not None
            events = await store.history.events(Owner(*row[1:4]))
            batches = []
            for number in range(1, count):
                owner, seq = Owner(row.tenant, row.workspace, f"many-{number}"), store.next_seq()
                copy = row._replace(id=f"msg-{number}", session=owner.session, seq=seq, place=seq, platform_id=None)
                event = events[-1]._replace(session=owner.session, seq=store.next_seq(), message_id=copy.id)
                batches.append(Batch(owner, store.epoch, (copy, event)))
            assert all(each.error is None for each in await store.commit(batches))
        finally:
            await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(write()))  # the loop of this thread is Playwright's
    thread.start()
    thread.join()
    server.restart()


def test_hostile_names_and_texts_are_texts(server: Served, open_page: OpenPage) -> None:
    for number, text in enumerate(HOSTILE):
        server.send(f"h{number}-%3Cimg%20src%3Dx%20onerror%3D%22window.hit%3D1%22%3E", text)
    page = open_page(server, "#/sessions")
    expect(rows(page).filter(has_text="h5-<img src=x")).to_be_visible()
    expect(rows(page).filter(has_text="⟨U+202E⟩txt.exe")).to_be_visible()
    check_harmless(page)


def test_an_empty_list_says_how_to_begin_and_fits_a_phone(serve: Callable[..., Served], open_page: OpenPage) -> None:
    server = serve(CONFIG)
    page = open_page(server, "#/sessions", phone=True)
    allow(page, *OFFLINE)
    expect(page.get_by_text("No sessions yet")).to_be_visible()
    server.send("a-session-with-a-rather-long-name-that-does-not-fit", "hello " * 100)
    expect(rows(page)).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    check_axe(page)
    server.kill()
    page.get_by_role("searchbox").fill("a")
    expect(page.get_by_role("alert").filter(has_text="The server does not answer")).to_be_visible()
    server.restart()
    server.send("another", "hello")
    expect(row(page, "another")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
