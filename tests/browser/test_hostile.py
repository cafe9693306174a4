"""Script in every field that a user, a model, a tool, a worker or an operator can fill; every view is visited.

Nothing runs, nothing becomes an element, and the policy of the page is not even touched: a violation would fail the
test, because the stage hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lived_in import LivedIn, settle
from tests.browser.stage import HOSTILE, Served, allow, check_harmless

pytestmark = pytest.mark.slow

SEEN = "onerror"  # of the first of them, which is in most fields
SHOWN_IN = {
    "#/",
    *(f"#/{name}" for name in ("sessions", "approvals", "tasks", "workers", "letters", "ledger", "schedules", "audit")),
}


@pytest.fixture(scope="module")
def lived_in(serve: Callable[..., Served]) -> LivedIn:
    return settle(serve, HOSTILE)


@pytest.mark.timeout(240)
def test_texts_of_others_are_texts_in_every_view(lived_in: LivedIn, open_page: Callable[..., Page]) -> None:
    page = open_page(lived_in.server, "#/")
    for route in lived_in.routes:
        page.evaluate("(route) => { location.hash = route; }", route)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("main .loading")).to_have_count(0)
        if route in SHOWN_IN:
            expect(page.locator("main")).to_contain_text(SEEN)  # it is really there
        page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
        check_harmless(page)


def test_an_address_that_somebody_made_up_is_a_text(lived_in: LivedIn, open_page: Callable[..., Page]) -> None:
    page = open_page(lived_in.server, "#/")
    allow(page, "status of 404", "status of 400", "status of 422")  # there is no such thing
    for text in HOSTILE:
        for view in ("nowhere", "chat", "story/run", "story/message", "sessions"):
            page.evaluate("(place) => { location.hash = place; }", f"#/{view}/{quote(text, safe='')}")
            expect(page.locator("main h1, main .error-box").first).to_be_visible()
            check_harmless(page)
