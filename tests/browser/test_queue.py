"""The queue of a session in a real browser: edited, put in order, held, withdrawn, steered; ten thousand of them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any

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
queue: {mode: followup, cap: 20000}
permissions: {default_decision: allow}
"""
CONFLICT = "status of 409"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    """With room for everything that waits."""
    return serve(CONFIG)


def busy(server: Served, key: str, *texts: str) -> list[str]:
    """A session in which something runs for a minute, and these wait; their ids."""
    server.send(key, "wait 300")
    until(lambda: server.api("GET", f"/v1/sessions/{key}")["run_id"])
    return [str(server.send(key, text)["message_id"]) for text in texts]


def waiting(server: Served, key: str) -> list[str]:
    """The texts that wait, as the server has them."""
    return [each["text"] for each in server.api("GET", f"/v1/sessions/{key}/pending")["items"]]


def rows(page: Page) -> Locator:
    """The rows of the list."""
    return page.get_by_role("list", name="Waiting messages").get_by_role("listitem")


def row(page: Page, text: str) -> Locator:
    """The row of one message."""
    return rows(page).filter(has=page.locator(".queue-text").filter(has_text=text))


def shows(page: Page, *texts: str) -> None:
    """Wait until the list has these, in this order."""
    expect(rows(page)).to_have_count(len(texts))
    expect(rows(page).locator(".queue-text")).to_have_text([re.compile(re.escape(each)) for each in texts])


def test_each_says_its_place_its_mode_its_sender_and_why_it_waits(server: Served, open_page: OpenPage) -> None:
    busy(server, "why", "one", "two")
    server.send("why", "three", mode="collect", sender="ada", sender_name="Ada")
    page = open_page(server, "#/sessions/why")
    shows(page, "one", "two", "three")
    third = row(page, "three")
    for words in ("3", "Collect", "Ada", "a run has gone on for"):
        expect(third).to_contain_text(words)
    expect(page.get_by_role("heading", name="Waiting 3")).to_be_visible()
    check_axe(page)


def test_a_message_is_edited_held_released_and_withdrawn(server: Served, open_page: OpenPage) -> None:
    busy(server, "edit", "one", "two", "three")
    page = open_page(server, "#/sessions/edit")
    row(page, "two").get_by_role("button", name="Edit").click()
    field = page.get_by_role("textbox", name="Text of the message")
    expect(field).to_be_focused()
    field.fill("zwei <b>")
    field.press("Control+Enter")
    shows(page, "one", "zwei <b>", "three")
    assert waiting(server, "edit") == ["one", "zwei <b>", "three"]
    row(page, "one").get_by_role("button", name="Hold").click()
    expect(row(page, "one")).to_contain_text("it is held until somebody releases it")
    row(page, "one").get_by_role("button", name="Release").click()
    expect(row(page, "one")).to_contain_text("a run has gone on for")
    row(page, "three").get_by_role("button", name="Withdraw").click()
    shows(page, "one", "zwei <b>")
    page.get_by_role("button", name="Send again").click()
    shows(page, "one", "zwei <b>", "three")


def test_escape_gives_up_an_edit_and_the_focus_goes_back(server: Served, open_page: OpenPage) -> None:
    busy(server, "escape", "one")
    page = open_page(server, "#/sessions/escape")
    row(page, "one").focus()
    page.keyboard.press("Enter")
    field = page.get_by_role("textbox", name="Text of the message")
    field.fill("something else")
    field.press("Escape")
    expect(row(page, "one")).to_be_focused()
    assert waiting(server, "escape") == ["one"]


def test_keys_put_messages_in_order_and_the_focus_stays_with_the_message(server: Served, open_page: OpenPage) -> None:
    busy(server, "keys", "one", "two", "three", "four")
    page = open_page(server, "#/sessions/keys")
    row(page, "one").focus()
    page.keyboard.press("Alt+ArrowDown")
    page.keyboard.press("Alt+ArrowDown")
    shows(page, "two", "three", "one", "four")
    expect(row(page, "one")).to_be_focused()
    until(lambda: waiting(server, "keys") == ["two", "three", "one", "four"])
    server.send("keys", "five")  # the list is read again: the focus stays
    shows(page, "two", "three", "one", "four", "five")
    expect(row(page, "one")).to_be_focused()
    page.keyboard.press("Alt+Home")
    shows(page, "one", "two", "three", "four", "five")
    expect(row(page, "one")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(row(page, "two")).to_be_focused()
    page.keyboard.press("h")
    expect(row(page, "two")).to_contain_text("held")
    expect(row(page, "two")).to_be_focused()
    page.keyboard.press("Delete")
    shows(page, "one", "three", "four", "five")
    expect(row(page, "three")).to_be_focused()  # the one that took its place
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Text of the message")).to_have_value("three")
    until(lambda: waiting(server, "keys") == ["one", "three", "four", "five"])


def test_somebody_else_moves_messages_and_enter_still_edits_the_one_with_the_focus(
    server: Served, open_page: OpenPage
) -> None:
    ids = busy(server, "others", "one", "two", "three", "four")
    page = open_page(server, "#/sessions/others")
    row(page, "two").focus()
    for position in (4, 1, 3):
        server.api("POST", f"/v1/messages/{ids[1]}/move", {"position": position})
        expect(row(page, "two")).to_have_attribute("aria-posinset", str(position))
        expect(row(page, "two")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Text of the message")).to_have_value("two")


def test_messages_are_dragged_to_another_place(server: Served, open_page: OpenPage) -> None:
    busy(server, "drag", "one", "two", "three", "four")
    page = open_page(server, "#/sessions/drag")
    shows(page, "one", "two", "three", "four")
    handle = row(page, "one").locator("[data-handle]").bounding_box()
    target = row(page, "three").bounding_box()
    assert handle is not None
    assert target is not None
    page.mouse.move(handle["x"] + 5, handle["y"] + 10)
    page.mouse.down()
    page.mouse.move(target["x"] + 30, target["y"] + 30, steps=5)
    page.mouse.up()
    shows(page, "two", "three", "one", "four")
    until(lambda: waiting(server, "drag") == ["two", "three", "one", "four"])


def test_a_message_is_steered_now_and_sent_as_another_mode(server: Served, open_page: OpenPage) -> None:
    busy(server, "modes", "one", "two", "three")
    page = open_page(server, "#/sessions/modes")
    row(page, "two").get_by_role("button", name="Steer now").click()
    expect(row(page, "two")).to_contain_text("goes in next")
    row(page, "three").get_by_label("Send as another mode").select_option("collect")
    expect(row(page, "three")).to_contain_text("Collect")
    run = server.api("GET", "/v1/sessions/modes")["run_id"]
    row(page, "one").get_by_label("Send as another mode").select_option("interrupt")
    until(lambda: server.api("GET", f"/v1/runs/{run}")["state"] == "cancelled")


def test_a_message_that_has_begun_meanwhile_is_told_and_what_was_typed_is_not_lost(
    server: Served, open_page: OpenPage
) -> None:
    (one,) = busy(server, "race", "one")
    page = open_page(server, "#/sessions/race")
    allow(page, CONFLICT)
    row(page, "one").get_by_role("button", name="Edit").click()
    field = page.get_by_role("textbox", name="Text of the message")
    field.fill("what I meant")
    run = server.api("GET", "/v1/sessions/race")["run_id"]
    server.api("POST", f"/v1/runs/{run}/cancel")
    until(lambda: server.api("GET", f"/v1/messages/{one}")["disposition"] == "ran")
    expect(page.get_by_text("This message is not waiting here any more.")).to_be_visible()
    expect(field).to_have_value("what I meant")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert").filter(has_text="meanwhile, so it was not changed")).to_be_visible()
    page.get_by_role("button", name="Save").click()
    until(lambda: "what I meant" in json.dumps(server.api("GET", "/v1/sessions/race/history")))
    expect(field).to_have_count(0)


def test_everything_that_waits_is_taken_back_after_a_yes(server: Served, open_page: OpenPage) -> None:
    busy(server, "clear", "one", "two")
    page = open_page(server, "#/sessions/clear")
    page.get_by_role("button", name="Clear all").click()
    dialog = page.get_by_role("dialog", name="Take back 2 messages?")
    dialog.get_by_role("button", name="Cancel").click()
    shows(page, "one", "two")
    page.get_by_role("button", name="Clear all").click()
    dialog.get_by_role("button", name="Clear all").click()
    expect(page.get_by_text("Nothing waits", exact=True)).to_be_visible()
    assert waiting(server, "clear") == []
    assert server.api("GET", "/v1/sessions/clear")["run_id"]


def test_the_settings_of_a_queue_say_where_they_come_from_and_are_changed(server: Served, open_page: OpenPage) -> None:
    busy(server, "settings")
    page = open_page(server, "#/sessions/settings")
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings of this queue")
    expect(dialog.get_by_text("from the configuration").first).to_be_visible()
    cap = dialog.get_by_label("At most waiting")
    cap.fill("none")
    expect(dialog.get_by_text("A whole number, at least 1.")).to_be_visible()
    cap.fill("7")
    dialog.get_by_label("Mode").select_option("steer")
    check_axe(page)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    settings = server.api("GET", "/v1/sessions/settings")["settings"]
    assert (settings["mode"], settings["cap"]["value"]) == ({"value": "steer", "origin": "session"}, 7)
    page.get_by_role("button", name="Settings").click()
    dialog.get_by_role("button", name="Give back").first.click()
    expect(dialog.get_by_label("Mode")).to_have_value("followup")


def test_ten_thousand_waiting_messages_are_a_list_that_one_can_use(
    serve: Callable[..., Served], open_page: OpenPage
) -> None:
    server = serve(CONFIG)
    many(server, "many", 10_000)
    page = open_page(server, "#/sessions/many")
    expect(page.get_by_role("heading", name="Waiting 10,000")).to_be_visible()
    expect(row(page, "number 3 of many")).to_be_visible()
    assert rows(page).count() < 60
    rows(page).first.focus()
    page.keyboard.press("End")
    last = rows(page).filter(has_text="number 9999 of many")
    expect(last).to_be_focused()
    page.keyboard.press("Alt+ArrowUp")
    expect(last).to_have_attribute("aria-posinset", "9999")
    expect(last).to_be_focused()
    until(lambda: tail(server, "many")[-2:] == ["number 9999 of many", "number 9998 of many"])
    page.keyboard.press("Home")
    expect(row(page, "number 0 of many")).to_be_focused()
    assert rows(page).count() < 60


def many(server: Served, key: str, count: int) -> None:
    """So many messages in the store of a server, copies of one that waits there; the server is started again."""
    (pattern,) = busy(server, key, "number 0 of many")
    server.stop()

    async def write() -> None:
        store = open_store(f"sqlite:///{server.folder / 'laneway.db'}")
        await store.open()
        try:
            row = await store.history.message(pattern)
            assert row is not None
            rows = []
            for number in range(1, count):
                seq, body = store.next_seq(), row.body.replace("number 0", f"number {number}")
                rows.append(row._replace(id=f"msg-many-{number}", seq=seq, place=seq, body=body, platform_id=None))
            (result,) = await store.commit([Batch(Owner(*row[1:4]), store.epoch, tuple(rows))])
            assert result.error is None
        finally:
            await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(write()))  # the loop of this thread is Playwright's
    thread.start()
    thread.join()
    server.restart()
    until(lambda: server.api("GET", f"/v1/sessions/{key}")["run_id"])


def tail(server: Served, key: str) -> list[str]:
    """The texts at the end of a long queue."""
    page: dict[str, Any] = server.api("GET", f"/v1/sessions/{key}/pending?after=9990")
    return [each["text"] for each in page["items"]]


def test_hostile_texts_are_texts(server: Served, open_page: OpenPage) -> None:
    busy(server, "hostile", *HOSTILE)
    page = open_page(server, "#/sessions/hostile")
    expect(rows(page)).to_have_count(len(HOSTILE))
    expect(row(page, HOSTILE[0])).to_be_visible()
    expect(row(page, "⟨U+202E⟩txt.exe")).to_be_visible()
    row(page, HOSTILE[1]).get_by_role("button", name="Edit").click()
    check_harmless(page)


def test_the_queue_fits_a_phone(server: Served, open_page: OpenPage) -> None:
    busy(server, "phone", "one", "two", "three " * 60)
    page = open_page(server, "#/sessions/phone", phone=True)
    shows(page, "one", "two", "three")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    row(page, "one").get_by_role("button", name="Move down").tap()
    shows(page, "two", "one", "three")
    check_axe(page)


def test_a_server_that_goes_away_loses_nothing_of_the_queue(serve: Callable[..., Served], open_page: OpenPage) -> None:
    server = serve(CONFIG)
    busy(server, "away", "one", "two")
    page = open_page(server, "#/sessions/away")
    allow(page, *OFFLINE, CONFLICT)
    shows(page, "one", "two")
    server.kill()
    row(page, "one").get_by_role("button", name="Hold").click()
    expect(page.get_by_text("does not answer").first).to_be_visible()
    shows(page, "one", "two")
    server.restart()
    until(lambda: server.api("GET", "/v1/sessions/away")["run_id"])
    server.send("away", "three")
    shows(page, "one", "two", "three")
