"""Every view, with something in it, in the light, in the dark and on a phone: axe-core finds no serious problem."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lived_in import LivedIn, settle
from tests.browser.stage import Served, check_axe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lived_in(serve: Callable[..., Served]) -> LivedIn:
    return settle(serve, ["first session", "second session"])


def settled(page: Page) -> None:
    """The view is there, and has read what it shows."""
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("main .loading")).to_have_count(0)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_no_view_has_a_serious_problem(lived_in: LivedIn, open_page: Callable[..., Page], look: str) -> None:
    page = open_page(lived_in.server, "#/", phone=look == "phone", dark=look == "dark")
    found: list[str] = []
    for route in lived_in.routes:
        page.evaluate("(route) => { location.hash = route; }", route)
        settled(page)
        try:
            check_axe(page)
        except AssertionError as error:
            found.append(str(error))  # what is wrong elsewhere is to be known, too
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0:
            found.append(f"{route} is {wide} pixels wider than the window")
    assert not found, "\n".join(found)
