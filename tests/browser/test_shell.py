"""The frame of the dashboard in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import Served, allow, check_axe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve()


def test_the_frame_is_there_and_has_no_serious_problem(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/nowhere")
    expect(page.get_by_role("heading", name="Nothing is here")).to_be_visible()
    expect(page.get_by_role("navigation", name="Views").get_by_role("link")).to_have_count(16)
    expect(page).to_have_url(f"{server.url}/#/nowhere")  # the token is gone from the address
    check_axe(page)
    allow(page)
