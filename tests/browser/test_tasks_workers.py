"""External tasks and workers in a real browser, with real workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import HOSTILE, Served, allow, check_axe, check_harmless
from tests.browser.work_stage import CONFIG, FILES, let_go, start_worker, task_of
from tests.server_process import until
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    """A server whose calls are made elsewhere."""
    return serve(CONFIG, files=FILES)


@pytest.fixture
def worker(server: Served) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers, which end with the test."""
    started: list[WorkerProcess] = []

    def start(name: str, *options: str) -> WorkerProcess:
        started.append(start_worker(server, name, *options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def answer_of(server: Served, message_id: str) -> dict[str, Any]:
    """Wait for the end of a message."""

    def ended() -> dict[str, Any]:
        found: dict[str, Any] = server.api("GET", f"/v1/messages/{message_id}")
        return found if found["outcome"] else {}

    body: dict[str, Any] = until(ended, f"the end of {message_id}")
    return body


def row(page: Page, text: str) -> Any:
    """The task whose arguments say this."""
    return page.get_by_role("row").filter(has_text=text)


def test_a_task_waits_is_taken_and_ends_while_the_page_is_open(
    server: Served, open_page: Callable[..., Page], worker: Callable[..., WorkerProcess]
) -> None:
    page = open_page(server, "#/tasks")
    expect(page.get_by_text("No call waits for a worker").first).to_be_visible()
    sent = server.send("live", "read first.txt")
    expect(row(page, "first.txt")).to_contain_text("no worker has asked for tasks lately")
    expect(page.get_by_role("button", name="Copy the command")).to_be_visible()
    worker("box")
    expect(row(page, "first.txt")).to_contain_text("under way")
    expect(row(page, "first.txt")).to_contain_text("box")
    expect(row(page, "first.txt")).to_contain_text("lease")
    check_axe(page)
    let_go(server, "first.txt")
    expect(row(page, "first.txt")).to_have_count(0)
    assert answer_of(server, sent["message_id"])["outcome"] == "succeeded"
    page.get_by_role("link", name="Ended").click()
    page.get_by_role("link", name="read").first.click()
    expect(page.get_by_role("heading", name="What came of it: completed")).to_be_visible()
    expect(page.get_by_text("first.txt by box")).to_be_visible()


def test_a_task_that_no_worker_fits_says_what_is_missing(
    server: Served, open_page: Callable[..., Page], worker: Callable[..., WorkerProcess]
) -> None:
    worker("weak", "--label", "hammer")
    sent = server.send("unfit", "run lift")
    page = open_page(server, "#/tasks?session=unfit")
    expect(row(page, "lift")).to_contain_text("weak has no label crane")
    expect(page.get_by_text("A worker is needed that takes lane execute, label crane")).to_be_visible()
    row(page, "lift").get_by_role("button", name="Cancel").click()
    page.get_by_role("textbox", name="Why").fill("nobody can do it")
    page.get_by_role("button", name="Cancel the task").click()
    expect(row(page, "lift")).to_have_count(0)
    assert answer_of(server, sent["message_id"])["outcome"] == "succeeded"
    audit = server.api("GET", "/v1/audit?limit=1000")["items"]
    assert [(each["action"], each["reason"]) for each in audit][-1] == ("task.cancel", "nobody can do it")


def test_a_worker_that_is_killed_is_lost_and_its_task_goes_to_another(
    server: Served, open_page: Callable[..., Page], worker: Callable[..., WorkerProcess]
) -> None:
    first = worker("doomed", "--concurrency", "2", "--lease-ms", "4000")  # the others outlast a machine that is busy
    sent = server.send("killed", "read second.txt")
    page, crew = open_page(server, "#/tasks?session=killed"), open_page(server, "#/workers?name=doomed")
    expect(row(page, "second.txt")).to_contain_text("doomed")
    card = crew.get_by_role("listitem").filter(has_text="doomed")
    expect(card).to_contain_text("working")
    expect(card).to_contain_text("1 of 2 slots")
    first.kill()
    expect(card.get_by_text("lost", exact=True)).to_be_visible()
    worker("heir")
    expect(row(page, "second.txt")).to_contain_text("heir")
    expect(row(page, "second.txt")).to_contain_text("attempt")
    let_go(server, "second.txt")
    expect(row(page, "second.txt")).to_have_count(0)
    assert answer_of(server, sent["message_id"])["outcome"] == "succeeded"


def test_a_task_is_completed_or_failed_by_hand(server: Served, open_page: Callable[..., Page]) -> None:
    sent = server.send("byhand", "read third.txt")
    page = open_page(server, "#/tasks?session=byhand")
    row(page, "third.txt").get_by_role("button", name="End by hand").click()
    page.get_by_label("The result is JSON").check()
    page.get_by_label("Result, for the model").fill("{no json")
    page.get_by_role("button", name="Complete it").click()
    expect(page.get_by_text("This is no JSON")).to_be_visible()
    page.get_by_label("Result, for the model").fill('{"output": "it says hello"}')
    page.get_by_role("button", name="Complete it").click()
    expect(row(page, "third.txt")).to_have_count(0)
    assert "it says hello" in answer_of(server, sent["message_id"])["answer"]
    again = server.send("byhand", "read fourth.txt")
    row(page, "fourth.txt").get_by_role("button", name="End by hand").click()
    page.get_by_label("It did not work").check()
    page.get_by_role("button", name="Fail it").click()
    expect(page.get_by_text("Say what went wrong.")).to_be_visible()
    page.get_by_label("What went wrong").fill("the disk is away")
    page.get_by_role("button", name="Fail it").click()
    expect(row(page, "fourth.txt")).to_have_count(0)
    assert "the disk is away" in answer_of(server, again["message_id"])["answer"]


def test_a_task_is_taken_from_its_worker(
    server: Served, open_page: Callable[..., Page], worker: Callable[..., WorkerProcess]
) -> None:
    holder = worker("holder", "--concurrency", "1")  # it asks for nothing while it has something
    server.send("back", "read fifth.txt")
    page = open_page(server, f"#/tasks/{task_of(server, 'back')['task_id']}")
    expect(page.get_by_text("under way")).to_be_visible()
    holder.send(19)  # it stands still: it takes nothing back
    page.get_by_role("button", name="Take back").click()
    expect(page.get_by_text("Another worker will begin it anew.")).to_be_visible()
    page.get_by_role("button", name="Take it back").click()
    expect(page.get_by_text("waits", exact=True)).to_be_visible()
    server.api("POST", f"/v1/tasks/{task_of(server, 'back')['task_id']}/cancel", {})
    expect(page.get_by_role("heading", name="What came of it: cancelled")).to_be_visible()


def test_nobody_is_there_and_the_page_says_how_to_start_one(
    serve: Callable[..., Served], open_page: Callable[..., Page]
) -> None:
    empty = serve(tokens=False)
    page = open_page(empty, "#/workers", token="")
    expect(page.get_by_role("heading", name="No worker was heard of lately")).to_be_visible()
    expect(page.get_by_text(f"laneway worker --connect {empty.url}")).to_be_visible()
    check_axe(page)
    allow(page, "status of 404")
    page.goto(f"{empty.url}/#/tasks/nothing")
    expect(page.get_by_text("there is no task", exact=False).first).to_be_visible()


def test_names_of_workers_and_arguments_never_run(
    server: Served, open_page: Callable[..., Page], worker: Callable[..., WorkerProcess]
) -> None:
    worker(HOSTILE[0], "--label", "x'><img/src=x/onerror=window.hit=1>")
    server.send("evil", f"read {HOSTILE[1]}")
    page = open_page(server, "#/workers")
    expect(page.get_by_role("heading", name="<img src=x")).to_be_visible()
    check_harmless(page)
    page.goto(f"{server.url}/#/tasks")
    expect(row(page, "<script>window.hit")).to_be_visible()
    check_harmless(page)
    task = task_of(server, "evil")["task_id"]
    server.api("POST", f"/v1/tasks/{task}/fail", {"error": HOSTILE[2]})
    page.goto(f"{server.url}/#/tasks/{task}")
    expect(page.get_by_text("<svg onload").first).to_be_visible()
    check_harmless(page)


def test_on_a_phone_and_by_keyboard(
    server: Served, open_page: Callable[..., Page], worker: Callable[..., WorkerProcess]
) -> None:
    worker("pocket", "--label", "gpu")
    server.send("phone", "read sixth.txt")
    page = open_page(server, "#/tasks?session=phone", phone=True, dark=True)
    expect(row(page, "sixth.txt")).to_contain_text("pocket")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_axe(page)
    page.get_by_role("link", name="Workers").last.click()
    expect(page.get_by_role("listitem").filter(has_text="pocket")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_axe(page)
    desk = open_page(server, "#/tasks")
    expect(row(desk, "sixth.txt")).to_be_visible()
    desk.keyboard.press("/")
    expect(desk.get_by_label("Session")).to_be_focused()
    desk.keyboard.type("phone")
    desk.keyboard.press("Enter")
    expect(desk.get_by_role("row")).to_have_count(2)
    row(desk, "sixth.txt").get_by_role("button", name="End by hand").press("Enter")
    expect(desk.get_by_role("dialog")).to_be_visible()
    desk.keyboard.press("Escape")
    expect(desk.get_by_role("dialog")).to_have_count(0)
    expect(row(desk, "sixth.txt").get_by_role("button", name="End by hand")).to_be_focused()
    let_go(server, "sixth.txt")
    expect(row(desk, "sixth.txt")).to_have_count(0)
