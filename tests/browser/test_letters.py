"""Dead letters in a real browser: found, mended, sent again and forgotten, one or many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import HOSTILE, OFFLINE, Served, allow, check_axe, check_harmless
from tests.browser.work_stage import bury
from tests.server_process import until

pytestmark = pytest.mark.slow

REFUSED = "the model could not be reached"
LETTERS = [
    *((f"guest-{number % 3}", f"book table {number}", REFUSED) for number in range(8)),
    ("mend", "book a tabel", REFUSED),
    ("alone", "only this one", REFUSED),
    ("keys", "with keys one", "out of paper"),
    ("keys", "with keys two", "out of paper"),
    ("old", "throw me away", "nobody knows"),
    ("gone", "somebody is faster", REFUSED),
    ("away", "the server goes away", REFUSED),
    ("phone", "from a phone", REFUSED),
    *(("evil", text, text) for text in HOSTILE),
]


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    """A server with dead letters."""
    served = serve()
    bury(served, LETTERS)
    return served


def row(page: Page, text: str) -> Any:
    """The letter that says this."""
    return page.get_by_role("row").filter(has_text=text)


def answers(server: Served, session: str) -> list[str]:
    """What the agent has said in a session."""
    items = server.api("GET", f"/v1/sessions/{session}/history")["items"]
    return [each["text"] for each in items if each["role"] == "assistant"]


def test_letters_are_filtered_and_many_are_sent_again(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/letters")
    expect(row(page, "throw me away")).to_be_visible()
    page.get_by_label("Says").fill("BOOK table")
    page.get_by_role("button", name="Filter").click()
    expect(row(page, "book table")).to_have_count(8)
    expect(row(page, "throw me away")).to_have_count(0)
    boxes = page.get_by_role("checkbox", name="Choose message")
    boxes.nth(1).click()
    boxes.nth(4).click(modifiers=["Shift"])
    expect(page.get_by_text("4 letters chosen")).to_be_visible()
    page.get_by_role("button", name="Retry chosen").click()
    expect(page.get_by_role("heading", name="Send 4 letters again?")).to_be_visible()
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(page.get_by_text("4 sent again.")).to_be_visible()
    expect(row(page, "book table")).to_have_count(4)
    check_axe(page)
    page.get_by_role("button", name="Close").click()
    page.get_by_label("Choose all that are shown").check()
    page.get_by_role("button", name="Retry chosen").click()
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(page.get_by_text("No dead letter fits this filter")).to_be_visible()
    page.get_by_role("link", name="Sent again", exact=True).click()
    expect(row(page, "book table")).to_have_count(8)
    expect(row(page, "book table 0").get_by_role("link", name="sent again")).to_have_attribute(
        "href", page_of_message(server, "book table 0")
    )


def page_of_message(server: Served, text: str) -> str:
    """Where the story of the message is that a letter has become."""
    items = server.api("GET", f"/v1/dead-letters?status=retried&text={text.replace(' ', '%20')}")["items"]
    return f"#/story/message/{items[0]['message_id']}"


def test_a_letter_is_mended_and_sent_again(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/letters?session=mend")
    row(page, "book a tabel").get_by_role("button", name="Change it").click()
    page.get_by_label("What it is to say").fill("   ")
    page.get_by_role("button", name="Keep it").click()
    expect(page.get_by_text("A message has to say something.")).to_be_visible()
    page.get_by_label("What it is to say").fill("book a table")
    page.get_by_role("button", name="Keep it").click()
    expect(row(page, "book a table")).to_contain_text("changed")
    row(page, "book a table").get_by_role("button", name="Change it").click()
    page.get_by_label("What it is to say").fill("book a big table")
    page.get_by_role("button", name="Send it again").click()
    expect(page.get_by_text("1 sent again.")).to_be_visible()
    page.get_by_role("link", name="became").click()
    expect(page).to_have_url(f"{server.url}/{page_of_message(server, 'book a big table')}")


def test_a_letter_is_looked_at_sent_and_its_answer_comes(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/letters?session=alone")
    page.get_by_role("button", name="only this one").click()
    expect(page.get_by_role("heading", name="What went wrong")).to_be_visible()
    row(page, "only this one").get_by_role("button", name="Retry").click()
    expect(page.get_by_text("1 sent again.")).to_be_visible()
    expect(page.get_by_text("No dead letter fits this filter")).to_be_visible()
    assert answers(server, "alone")[-1:] == ["You said: only this one"]


def test_a_letter_is_forgotten_after_a_question(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/letters?error=NOBODY")
    forget = row(page, "throw me away").get_by_role("button", name="Forget it")
    forget.click()
    page.get_by_role("button", name="Cancel").click()
    expect(forget).to_be_focused()
    forget.click()
    page.get_by_role("button", name="Forget", exact=True).click()
    expect(page.get_by_text("1 forgotten.")).to_be_visible()
    page.get_by_role("link", name="Forgotten", exact=True).click()
    expect(row(page, "throw me away")).to_contain_text("forgotten")


def test_whoever_is_second_is_told_so(server: Served, open_page: Callable[..., Page]) -> None:
    page, other = open_page(server, "#/letters?session=gone"), open_page(server, "#/letters?session=gone")
    expect(row(page, "somebody is faster")).to_be_visible()
    row(other, "somebody is faster").get_by_role("button", name="Retry").click()
    expect(other.get_by_text("1 sent again.")).to_be_visible()
    row(page, "somebody is faster").get_by_role("button", name="Retry").click()
    expect(page.get_by_text("1 gone already.")).to_be_visible()
    expect(row(page, "somebody is faster")).to_have_count(0)


def test_with_keys_alone(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/letters?session=keys")
    expect(row(page, "with keys")).to_have_count(2)
    for key in "jxjx":
        page.keyboard.press(key)
    expect(page.get_by_text("2 letters chosen")).to_be_visible()
    page.keyboard.press("k")
    page.keyboard.press("e")
    expect(page.get_by_label("What it is to say")).to_have_value("with keys two")
    page.keyboard.press("Escape")
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="Send again", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 sent again.")).to_be_visible()

    def texts() -> list[str]:
        lines = server.api("GET", "/v1/sessions/keys/history")["items"]
        return [each["text"] for each in lines if each["role"] == "user"]

    until(lambda: len(texts()) == 4, "both messages to be answered")  # the second one waits for the first
    assert texts()[-2:] == ["with keys one", "with keys two"]


def test_texts_and_errors_never_run(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/letters?session=evil")
    for each in page.locator(".letter-open").all():
        each.click()
        expect(each).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_text("<script>window.hit").first).to_be_visible()
    check_harmless(page)
    row(page, "<script>").first.get_by_role("button", name="Change it").click()
    expect(page.get_by_label("What it is to say")).to_have_value(HOSTILE[1])
    check_harmless(page)


def test_on_a_phone(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/letters?session=phone", phone=True, dark=True)
    expect(row(page, "from a phone")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_axe(page)
    row(page, "from a phone").get_by_role("button", name="Retry").tap()
    expect(page.get_by_text("1 sent again.")).to_be_visible()


def test_without_a_token_the_page_asks_for_one(serve: Callable[..., Served], open_page: Callable[..., Page]) -> None:
    page = open_page(serve(tokens=False), "#/letters", token="")
    expect(page.get_by_text("There are no dead letters")).to_be_visible()
    check_axe(page)


def test_a_server_that_goes_away_in_between_sends_nothing_twice(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/letters?session=away")
    expect(row(page, "the server goes away")).to_be_visible()
    allow(page, *OFFLINE)
    server.kill()
    row(page, "the server goes away").get_by_role("button", name="Retry").click()
    expect(page.get_by_text("It stopped:")).to_be_visible()
    server.restart()
    expect(row(page, "the server goes away")).to_be_visible()
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("1 sent again.")).to_be_visible()
    page.get_by_role("link", name="Sent again", exact=True).click()
    expect(row(page, "the server goes away")).to_have_count(1)
    lines = server.api("GET", "/v1/sessions/away/history")["items"]
    assert [each["text"] for each in lines if each["role"] == "user"].count("the server goes away") <= 2
