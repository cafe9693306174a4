"""The ledger in a real browser: unknown outcomes that a crash has left, and the ways out of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import HOSTILE, OFFLINE, Served, allow, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

CONFIG = """
default_model: scripted
lanes:
  main: 8
queue:
  mode: followup
permissions:
  default_decision: allow
"""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Iterator[Served]:
    found = serve(CONFIG)
    yield found
    found.close()


def unknown(server: Served) -> list[dict[str, Any]]:
    """The calls of which nobody knows how far they came."""
    return list(server.api("GET", "/v1/ledger?state=unknown&order=newest")["items"])


def crash_in(server: Served, *commands: tuple[str, str]) -> list[str]:
    """Kill the server while each of these sessions makes its call, and start it again; the messages."""
    sent = [
        str(server.send(quote(key, safe=""), f"call bash {json.dumps({'command': text})}")["message_id"])
        for key, text in commands
    ]
    wanted = {key for key, _ in commands}
    until(lambda: wanted <= {each["session_key"] for each in server.api("GET", "/v1/ledger?state=intended")["items"]})
    server.kill()
    server.restart()
    until(lambda: wanted <= {each["session_key"] for each in unknown(server)})
    return sent


def settle(page: Page, way: str, reason: str) -> None:
    """Fill in the dialog, and send it."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(way).check()
    dialog.get_by_label("How you know").fill(reason)
    dialog.get_by_role("button", name="Settle", exact=False).last.click()


def test_an_unknown_outcome_of_a_killed_server_is_settled_and_the_agent_goes_on(
    server: Served, open_page: Callable[..., Page]
) -> None:
    empty = open_page(server, "#/ledger")
    expect(empty.get_by_text("No calls with side effects yet")).to_be_visible()
    allow(empty, *OFFLINE)
    crash_in(server, ("mail", "sleep 300 # send the mail"))
    page = empty  # it was open all the time, and sees what the crash has left
    expect(page.get_by_role("heading", name="1 unknown outcome")).to_be_visible()
    expect(page.locator(".ledger-cards")).to_contain_text("send the mail")
    check_axe(page)
    page.get_by_role("button", name="Settle …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Settle it").click()
    expect(dialog.get_by_text("Choose one.")).to_be_visible()
    expect(dialog.get_by_text("Say how you know")).to_be_visible()
    check_axe(page)
    settle(page, "It did not happen: make it again", "the outbox is empty")
    expect(page.get_by_text("No unknown outcomes")).to_be_visible()
    expect(page.locator(".table")).to_contain_text("it had no effect; the outbox is empty")
    page.get_by_role("dialog").get_by_role("link", name="what it does now in mail").click()
    expect(page.locator(".story-message")).to_contain_text("It has had no effect. Make it again if it is still wanted")
    expect(page.locator(".story-why")).to_have_text("It answered.")
    (action,) = [each for each in server.api("GET", "/v1/audit")["items"] if each["action"] == "ledger.settle"]
    assert (action["reason"], action["facts"]["happened"]) == ("the outbox is empty", False)


def test_several_are_settled_at_once_and_only_by_who_may(server: Served, open_page: Callable[..., Page]) -> None:
    crash_in(server, ("a", "sleep 300"), ("b", "sleep 301"), (HOSTILE[0], f"sleep 302 # {HOSTILE[1]}"))
    watching = open_page(server, "#/ledger", token=server.token("chat"))
    expect(watching.get_by_text("Settling needs a token with the scope operate.")).to_be_visible()
    check_harmless(watching)
    page = open_page(server, "#/ledger", phone=True)
    expect(page.get_by_role("heading", name="3 unknown outcomes")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.get_by_label("Mark bash of b").focus()
    page.keyboard.press("Space")
    page.get_by_label("Mark bash of a").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Settle 2 calls").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_label("Leave it").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.type(HOSTILE[0])
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("2 calls settled.")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="1 unknown outcome")).to_be_visible()
    expect(watching.get_by_role("heading", name="3 unknown outcomes")).to_be_visible()
    assert len(unknown(server)) == 1
    check_harmless(page)
    check_axe(page)


def test_two_people_settle_one_call(server: Served, open_page: Callable[..., Page]) -> None:
    crash_in(server, ("both", "sleep 300"))
    pages = [open_page(server, "#/ledger?session=both") for _ in range(2)]
    for page in pages:
        page.get_by_role("button", name="Settle …").click()
    settle(pages[0], "It happened", "I saw it")
    expect(pages[0].get_by_role("dialog")).to_contain_text("1 call settled.")
    allow(pages[1], "status of 409")
    settle(pages[1], "It did not happen", "I did not see it")
    expect(pages[1].get_by_role("dialog")).to_contain_text("there is nothing to settle", ignore_case=True)
    (entry,) = server.api("GET", "/v1/ledger?session=both&state=settled")["items"]
    assert (entry["happened"], entry["reason"]) == (True, "I saw it")


def test_filters_are_in_the_address_and_an_entry_is_found(server: Served, open_page: Callable[..., Page]) -> None:
    server.send("files", 'call write {"path": "b.txt", "content": "x"}\nthen\nrun echo hello')
    until(
        lambda: (
            len([e for e in server.api("GET", "/v1/ledger?state=done")["items"] if e["session_key"] == "files"]) == 2
        )
    )
    page = open_page(server, "#/ledger?session=files")
    expect(page.locator(".table tbody tr")).to_have_count(2)
    page.get_by_label("Tool").fill("write")
    page.get_by_label("Tool").press("Enter")
    expect(page.locator(".table tbody tr")).to_have_count(1)
    assert "tool=write" in page.url
    page.get_by_label("State").select_option("failed")
    expect(page.get_by_text("No call fits")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".table tbody tr", has_text="files")).to_have_count(2)
    (entry,) = server.api("GET", "/v1/ledger?session=files&tool=write")["items"]
    page = open_page(server, f"#/ledger?entry={quote(entry['entry_id'], safe='')}")
    expect(page.get_by_label("The call you came for")).to_contain_text("write")
    page.get_by_label("The call you came for").get_by_role("link", name="run").click()
    expect(page.get_by_role("heading", name="Story of a run")).to_be_visible()
