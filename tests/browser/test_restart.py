"""The server is killed and started again while every live view is open: each comes back and misses nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import OFFLINE, Served, allow
from tests.server_process import until

pytestmark = pytest.mark.slow

LIVE = ("#/", "#/lanes", "#/sessions", "#/chat/before", "#/approvals", "#/tasks", "#/workers", "#/story/message/{id}")
CONFIG = """
default_model: scripted
lanes: {main: 4}
queue: {mode: followup, lane_handlers: {query: {mode: external}}}
permissions: {default_decision: allow, ask: ["write"]}
confirmation: {enabled: true, default_timeout_ms: 3600000}
"""


@pytest.fixture
def server(serve: Callable[..., Served]) -> Served:
    return serve(CONFIG)


@pytest.mark.timeout(240)
def test_every_live_view_comes_back_and_misses_nothing(server: Served, open_page: Callable[..., Page]) -> None:
    first = server.send("before", "hello before")
    until(lambda: server.api("GET", f"/v1/messages/{first['message_id']}")["outcome"])
    views = {path: open_page(server, path.format(id=first["message_id"])) for path in LIVE}
    for page in views.values():
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("main .loading")).to_have_count(0)
        allow(page, *OFFLINE)
    server.kill()
    for page in views.values():
        expect(page.get_by_text("The server does not answer.").first).to_be_visible()
    server.restart()
    server.send("before", "hello after")
    server.send("asks", 'call write {"path": "after.txt", "content": "x"}')
    server.send("elsewhere", 'call read {"path": "after.txt"}')
    for path, page in views.items():
        expect(page.get_by_text("The server does not answer."), path).to_have_count(0)
    chat = views["#/chat/before"].get_by_role("log")
    expect(chat.get_by_text("You said: hello after")).to_have_count(1)
    expect(chat.get_by_text("You said: hello before")).to_have_count(1)
    expect(views["#/"].get_by_role("region", name="At work")).to_contain_text("asks")
    expect(views["#/sessions"].locator("main")).to_contain_text("elsewhere")
    expect(views["#/approvals"].locator("main")).to_contain_text("after.txt")
    expect(views["#/tasks"].locator("main")).to_contain_text("elsewhere")
    expect(views["#/lanes"].locator("main")).to_contain_text("elsewhere")
