"""The lanes in a real browser: what moves is seen, and pause, resize, close and cancel do what they say."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.stage import HOSTILE, OFFLINE, Served, allow, check_axe, check_harmless
from tests.server_process import LANEWAY, environment, until

pytestmark = pytest.mark.slow

CONFIG = """
default_model: scripted
permissions: {default_decision: allow}
lanes: {main: 2}
queue: {mode: followup, debounce_idle: false, query_max_concurrency: 2, execute_max_concurrency: 1}
"""
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve(CONFIG)


@pytest.fixture
def gate(server: Served) -> Iterator[Gate]:
    """Work that goes on until the test lets it go; at the end everything is as it was."""
    made = Gate(server)
    yield made
    made.let_go()
    for body in ({"paused": False}, {"concurrency": 2}):
        server.api("PATCH", "/v1/lanes/main", body)
    server.api("POST", "/v1/limits/main/open")
    until(lambda: all(each["running"] + each["waiting"] == 0 for each in lanes_of(server).values()))


class Gate:
    """Messages whose tool runs until a file is there."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._file = f"go-{uuid.uuid4().hex[:8]}"

    def send(self, *sessions: str) -> None:
        """One message to each of these sessions; the calls wait."""
        for session in sessions:
            self._server.send(quote(session, safe=""), f"run while [ ! -f {self._file} ]; do sleep 0.05; done")

    def let_go(self) -> None:
        (self._server.folder / self._file).touch()


def lanes_of(server: Served) -> dict[str, Any]:
    """The lanes as the API tells them."""
    return {each["name"]: each for each in server.api("GET", "/v1/lanes?limit=1000")["items"]}


def lane(page: Page, name: str) -> Locator:
    """A lane of the page."""
    return page.locator(f'.lane[data-lane="{name}"]')


def cells(page: Page, name: str, kind: str = "run") -> Locator:
    """The jobs of a lane that run (or wait, or are lent)."""
    return lane(page, name).locator(f".lane-cell-{kind}")


def names(page: Page, name: str, kind: str) -> Locator:
    """What they are called."""
    return cells(page, name, kind).locator(".lane-cell-name")


def test_lanes_move_while_a_run_goes_on(server: Served, open_page: Open, gate: Gate) -> None:
    page = open_page(server, "#/lanes", reduced=False)
    expect(lane(page, "main")).to_be_visible()
    expect(page.locator(".lane-lead")).to_contain_text("Nothing waits")
    gate.send("ada", "bob", "cleo")
    expect(cells(page, "main")).to_have_count(2)
    expect(names(page, "main", "wait")).to_have_text(["cleo"])
    expect(lane(page, "main")).to_contain_text("2 of 2 taken")
    expect(page.locator(".lane-lead")).to_contain_text("Longest wait")
    expect(page.locator(".lane-session", has_text="ada")).to_be_visible()
    page.get_by_label("Filter lanes").fill("ada bash")
    expect(cells(page, "s:ada/execute")).to_contain_text("bash")
    page.get_by_label("Filter lanes").fill("")
    gate.let_go()
    expect(cells(page, "main")).to_have_count(0)
    expect(page.locator(".lane-lead")).to_contain_text("Nothing waits")
    page.get_by_label("Only busy").check()
    expect(page.get_by_text("No lane fits")).to_be_visible()
    page.get_by_role("button", name="Show all lanes").click()
    expect(lane(page, "main")).to_be_visible()
    check_axe(page)


def test_pause_and_resize_in_place_are_what_api_and_command_line_see(
    server: Served, open_page: Open, gate: Gate, tmp_path: Path
) -> None:
    page = open_page(server, "#/lanes")
    main = lane(page, "main")
    main.get_by_role("button", name="Pause main").click()
    page.get_by_label("Reason (may be empty)").fill("maintenance")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(main).to_contain_text("maintenance")
    assert lanes_of(server)["main"]["paused"] is True
    assert "paused" in told_by_command_line(server, tmp_path)
    gate.send("ada")
    expect(names(page, "main", "wait")).to_have_text(["ada"])
    expect(main).to_contain_text("paused")
    main.get_by_role("button", name="Resume main").click()
    expect(cells(page, "main")).to_contain_text("ada")
    for _ in range(2):
        main.get_by_role("button", name="One slot more in main").click()
    main.get_by_role("button", name="Apply").click()
    expect(main.locator(".lane-count")).to_contain_text("/ 4")
    assert lanes_of(server)["main"]["concurrency"] == 4
    assert re.search(r"main\s.*\b4\b", told_by_command_line(server, tmp_path))
    main.get_by_role("button", name="One slot less in main").click()
    page.keyboard.press("Escape")  # given up: nothing was changed
    expect(main.get_by_role("button", name="Apply")).to_have_count(0)
    assert lanes_of(server)["main"]["concurrency"] == 4


def told_by_command_line(server: Served, home: Path) -> str:
    """What `laneway lane ls` says of the lane `main`."""
    env = environment(home, LANEWAY_URL=server.url, LANEWAY_TOKEN=server.admin)
    done = subprocess.run([LANEWAY, "lane", "ls"], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if re.search(r"\bmain\b", line))


def test_a_waiting_and_a_running_job_are_cancelled(server: Served, open_page: Open, gate: Gate) -> None:
    gate.send("ada", "bob", "cleo")
    page = open_page(server, "#/lanes")
    cells(page, "main", "wait").click()
    dialog = page.get_by_role("dialog", name="cleo")
    expect(dialog).to_contain_text("2 of 2 taken")
    check_axe(page)
    dialog.get_by_role("button", name="Cancel the job").click()
    page.get_by_label("Reason (may be empty)").fill("not needed")
    page.get_by_role("dialog", name="Cancel this job").get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_text("1 waiting message of session 'cleo' withdrawn")).to_be_visible()
    expect(dialog).to_contain_text("It has ended")
    dialog.get_by_role("button", name="Close").click()
    expect(cells(page, "main", "wait")).to_have_count(0)
    page.get_by_label("Filter lanes").fill("ada execute")
    cells(page, "s:ada/execute").click()
    dialog = page.get_by_role("dialog", name="bash")
    expect(dialog.get_by_role("link", name="Story of the run")).to_have_attribute(
        "href", re.compile("#/story/run/turn-")
    )
    expect(dialog.get_by_role("link", name="Open the session")).to_have_attribute("href", "#/chat/ada")
    dialog.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("dialog", name="Cancel this job").get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_text("The call of the tool was ended; the model is told so.")).to_be_visible()
    expect(cells(page, "s:ada/execute")).to_have_count(0)
    audit = server.api("GET", "/v1/audit?limit=1000")["items"]
    assert [each["reason"] for each in audit if each["action"] == "job.cancel"][:2].count("not needed") == 1
    allow(page, "status of 404")  # the dialog of a job that has ended asks for it once more


def test_a_limit_that_is_closed_counts_down_and_can_be_opened(server: Served, open_page: Open, gate: Gate) -> None:
    page = open_page(server, "#/lanes/main")
    dialog = page.get_by_role("dialog", name="main")
    dialog.get_by_label("because").fill("the quota is used up")
    dialog.get_by_label("Close for").select_option("5 minutes")
    check_axe(page)
    dialog.get_by_role("button", name="Close", exact=True).last.click()
    expect(dialog).to_contain_text("Closed for another")
    dialog.get_by_role("button", name="Close", exact=True).first.click()
    main = lane(page, "main")
    expect(main).to_contain_text(re.compile(r"opens in 4 min 5\d s.*the quota is used up"))
    gate.send("ada")
    expect(names(page, "main", "wait")).to_have_text(["ada"])
    expect(main).to_contain_text(re.compile(r"opens in 4 min [45]\d s"))
    main.get_by_role("button", name="Open main").click()
    expect(cells(page, "main")).to_contain_text("ada")
    expect(main).not_to_contain_text("closed")


def test_everything_by_keyboard(server: Served, open_page: Open, gate: Gate) -> None:
    page = open_page(server, "#/lanes")
    expect(lane(page, "main")).to_be_visible()
    page.keyboard.press("j")
    expect(lane(page, "main")).to_have_attribute("aria-current", "true")
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("-")
    page.keyboard.press("Enter")
    expect(lane(page, "main").locator(".lane-count")).to_contain_text("/ 3")
    page.keyboard.press("p")
    expect(page.get_by_role("dialog").get_by_role("textbox")).to_be_focused()
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(lane(page, "main")).to_contain_text("by hand")
    expect(page.get_by_role("dialog")).to_have_count(0)  # the lane says it before the answer has come
    page.keyboard.press("p")
    expect(lane(page, "main")).not_to_contain_text("paused")
    page.keyboard.press("j")
    expect(lane(page, "subagent")).to_have_attribute("aria-current", "true")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="main")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("cron")
    expect(lane(page, "main")).to_have_count(0)
    expect(lane(page, "cron")).to_be_visible()


def test_names_and_reasons_that_look_like_markup_are_text(server: Served, open_page: Open, gate: Gate) -> None:
    keys = [each for each in HOSTILE if "/" not in each]
    gate.send(*keys)
    server.api("PATCH", "/v1/lanes/cron", {"paused": True, "reason": HOSTILE[0]})
    server.api("POST", "/v1/limits/subagent/close", {"for_ms": 600_000, "reason": HOSTILE[1]})
    page = open_page(server, "#/lanes")
    expect(cells(page, "main")).to_have_count(2)
    expect(lane(page, "cron")).to_contain_text(HOSTILE[0])
    expect(lane(page, "subagent")).to_contain_text(HOSTILE[1])
    for fold in page.locator('.lane-fold[aria-expanded="false"]').all()[:3]:
        fold.click()
    page.evaluate("scrollTo(0, 0)")  # what is not seen is no element
    cells(page, "main").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("turn of a session")
    check_harmless(page)
    check_axe(page)
    page.keyboard.press("Escape")
    for name in ("cron", "subagent"):
        lane(page, name).locator(".lane-name").click()
        expect(page.get_by_role("dialog")).to_contain_text(HOSTILE[0] if name == "cron" else HOSTILE[1])
        page.keyboard.press("Escape")
    check_harmless(page)
    server.api("PATCH", "/v1/lanes/cron", {"paused": False})
    server.api("POST", "/v1/limits/subagent/open")


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_cut_and_everything_can_be_done(
    server: Served, open_page: Open, gate: Gate, *, dark: bool
) -> None:
    gate.send("ada", "bob", "cleo")
    page = open_page(server, "#/lanes", phone=True, dark=dark)
    expect(cells(page, "main")).to_have_count(2)
    expect(cells(page, "main", "wait")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_axe(page)
    pause = lane(page, "main").get_by_role("button", name="Pause main")
    box = pause.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 360
    cells(page, "main").first.click()
    expect(page.get_by_role("dialog")).to_be_in_viewport()
    page.keyboard.press("Escape")
    lane(page, "main").locator(".lane-name").click()
    expect(page.get_by_role("dialog", name="main")).to_be_visible()
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")
    check_axe(page)


def test_a_thousand_sessions_stay_readable(server: Served, open_page: Open) -> None:
    lanes: list[dict[str, Any]] = [{"name": "main", "kind": "shared", "role": "turns", "concurrency": 4}]
    for number in range(1_000):
        key = f"session-{number:04}"
        mine = {"kind": "session", "session": key, "workspace": "default", "concurrency": 2, "role": "tools"}
        lanes += [{**mine, "name": f"s:{key}/{each}"} for each in ("control", "query", "execute", "generate")]
        lanes.append({**mine, "name": f"session:{key}", "role": "session"})
    totals = {"lanes": len(lanes), "running": 0, "waiting": 0}
    events = [{"at_ms": 1, "totals": totals, "gone": [], "lanes": lanes[:250], "count": len(lanes)}]
    events += [{"at_ms": 1, "totals": totals, "lanes": lanes[at : at + 250]} for at in range(250, len(lanes), 250)]
    busy = {**lanes[-2], "running": 1, "jobs": [{"id": "job-1", "kind": "tool", "tool": "bash", "state": "running"}]}
    events.append({"at_ms": 2, "totals": totals, "lanes": [busy]})
    body = "".join(
        f"event: {'changes' if number else 'look'}\ndata: {json.dumps(each)}\n\n" for number, each in enumerate(events)
    )

    def many(route: Route) -> None:
        route.fulfill(body=f"retry: 1000\n\n{body}", headers={"content-type": "text/event-stream"})

    page = open_page(server, "#/settings")
    page.route("**/v1/traffic/events*", many)
    page.evaluate("location.hash = '#/lanes'")
    expect(page.locator(".lane-shown")).to_have_text("5,001 lanes")
    expect(page.locator(".lane-session").first).to_contain_text("session-0999")  # the one at work comes first
    expect(page.locator(".lane-session").first).to_contain_text("bash")
    assert page.locator(".lane-row").count() < 80
    took = page.evaluate(_SCROLL)
    assert page.locator(".lane-row").count() < 80
    assert took < 5_000, f"a frame took {took} ms"  # against what hangs; some 30 ms on a quiet machine
    expect(page.locator(".lane-row").last).to_contain_text(
        "Tool lanes" if page.get_by_text("Tool lanes").count() else ""
    )
    page.get_by_label("Filter lanes").fill("session-0500 execute")
    expect(lane(page, "s:session-0500/execute")).to_be_visible()
    expect(page.locator(".lane-session")).to_have_count(1)


_SCROLL = """
async () => {
  let longest = 0;
  for (let part = 1; part <= 20; part += 1) {
    const began = performance.now();
    scrollTo(0, document.documentElement.scrollHeight * part / 20);
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    longest = Math.max(longest, performance.now() - began);
  }
  return longest;
}
"""


def test_who_may_not_see_the_lanes_is_told_what_to_do(server: Served, open_page: Open) -> None:
    page = open_page(server, "#/lanes", token=server.token("chat"))
    expect(page.get_by_role("alert").first).to_contain_text("it needs the scope 'operate'")
    expect(page.get_by_role("button", name="Use a token").first).to_be_visible()
    allow(page, "status of 403")


def test_the_page_comes_back_with_the_server(serve: Callable[..., Served], open_page: Open) -> None:
    server = serve(CONFIG)
    page = open_page(server, "#/lanes")
    expect(lane(page, "main")).to_be_visible()
    server.kill()
    expect(page.locator(".shell-away")).to_be_visible()
    allow(page, *OFFLINE)
    server.restart()
    expect(page.locator(".shell-away")).to_have_count(0)
    server.api("PATCH", "/v1/lanes/main", {"concurrency": 7})
    expect(lane(page, "main").locator(".lane-count")).to_contain_text("/ 7")
