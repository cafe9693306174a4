"""Stories in a real browser: of messages that were merged, steered, dropped, expired; of runs with all that they do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import HOSTILE, Served, allow, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

CONFIG = """
default_model: scripted
lanes:
  main: 4
subagents: true
max_tool_rounds: 3
queue:
  mode: followup
  execute_max_concurrency: 1
  lane_handlers:
    query:
      mode: external
permissions:
  default_decision: allow
  ask: ["write"]
confirmation:
  enabled: true
  default_timeout_ms: 3600000
"""
WAITING = ("queued", "parked", "held", "running", "injected")


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve(CONFIG)


class Gate:
    """A call that runs until the test opens the gate."""

    def __init__(self, server: Served, name: str) -> None:
        self.path = Path(server.folder) / f"gate-{name}"
        self.command = f"run until [ -e {self.path} ]; do sleep 0.05; done; echo open"

    def open(self) -> None:
        """Let the call end."""
        self.path.touch()


def busy(server: Served, key: str, more: str = "") -> tuple[Gate, str, str]:
    """A session whose run makes a call until its gate is open: the gate, the message and the run."""
    gate = Gate(server, key)
    message = str(server.send(key, gate.command + more)["message_id"])
    until(lambda: any(each["state"] == "intended" for each in ledger(server, key)))
    return gate, message, str(server.api("GET", f"/v1/messages/{message}")["run_id"])


def ledger(server: Served, key: str) -> list[dict[str, Any]]:
    """The calls of a session."""
    return list(server.api("GET", f"/v1/ledger?session={quote(key)}")["items"])


def over(server: Served, message: str) -> dict[str, Any]:
    """A message, when it is final."""
    found: dict[str, Any] = {}

    def is_over() -> bool:
        found.update(server.api("GET", f"/v1/messages/{message}"))
        return found["disposition"] not in WAITING

    until(is_over)
    return found


def why(page: Page) -> Any:
    """The sentence at the top."""
    return page.locator(".story-why")


def step(page: Page, title: str) -> Any:
    """The steps with a title."""
    return page.locator(".story-step", has_text=title)


def test_a_message_that_was_steered_tells_where_it_went(server: Served, open_page: Callable[..., Page]) -> None:
    gate, first, run = busy(server, "steered", "\nthen\nrun echo after")
    steered = server.send("steered", "go left", mode="steer")["message_id"]
    page = open_page(server, f"#/story/message/{steered}")
    expect(why(page)).to_contain_text("Place 1")
    gate.open()
    expect(why(page)).to_have_text("It was steered into a run. The run answered.")
    expect(step(page, "Waited for the next safe point of a run")).to_be_visible()
    expect(step(page, "It was steered into the run")).to_be_visible()
    over(server, first)
    page = open_page(server, f"#/story/run/{run}")
    expect(step(page, "A message was steered in")).to_contain_text("go left")


def test_messages_that_were_dropped_and_expired_say_why(server: Served, open_page: Callable[..., Page]) -> None:
    gate, first, _ = busy(server, "dropped")
    expired = server.send("dropped", "too late", expires_ms=1)["message_id"]
    dropped = server.send("dropped", "one too many")["message_id"]
    assert over(server, expired)["disposition"] == "expired"
    server.api("PATCH", "/v1/sessions/dropped/settings", {"cap": 1, "drop": "old"})
    server.send("dropped", "a newer one")
    page = open_page(server, f"#/story/message/{dropped}")
    expect(why(page)).to_contain_text("It was dropped: more than 1 waited")
    expect(page.get_by_role("button", name="Send again")).to_be_visible()
    page = open_page(server, f"#/story/message/{expired}")
    expect(why(page)).to_contain_text("It waited longer than it was worth")
    gate.open()
    over(server, first)


def test_messages_that_were_merged_name_each_other(server: Served, open_page: Callable[..., Page]) -> None:
    gate, first, _ = busy(server, "merged")
    one, two = (server.send("merged", text, mode="collect")["message_id"] for text in ("part one", "part two"))
    gate.open()
    over(server, first)
    assert over(server, two)["disposition"] == "merged"
    page = open_page(server, f"#/story/message/{two}")
    expect(why(page)).to_have_text("It was merged into a run with others. The run answered.")
    expect(step(page, "Waited for another run of its session")).to_be_visible()
    page.get_by_role("link", name="part one").click()
    expect(page.locator(".story-message")).to_have_text("part one")
    assert page.url.endswith(str(one))


def test_a_run_is_watched_while_it_goes_on_and_ended(server: Served, open_page: Callable[..., Page]) -> None:
    gate, _, run = busy(server, "live")
    page = open_page(server, f"#/story/run/{run}")
    expect(why(page)).to_contain_text("bash runs in lane execute")
    waiting = server.send("live", "behind it")["message_id"]
    other = open_page(server, f"#/story/message/{waiting}")
    expect(why(other)).to_contain_text("Place 1")
    gate.open()
    expect(why(page)).to_have_text("It answered.")
    expect(why(other)).to_have_text("It answered.")
    expect(page.get_by_role("button", name="End the run")).to_have_count(0)
    check_axe(page)


def test_a_run_is_ended_gone_on_with_and_sent_again(server: Served, open_page: Callable[..., Page]) -> None:
    gate, message, run = busy(server, "ended")
    page = open_page(server, f"#/story/message/{message}")
    page.get_by_role("button", name="End the run").click()
    page.get_by_label("Why").fill("<b>too slow</b>")
    page.get_by_role("dialog").get_by_role("button", name="End the run").click()
    expect(why(page)).to_have_text("It was ended: <b>too slow</b>.")
    expect(page.get_by_role("link", name="unknown outcome: settle it")).to_be_visible()
    gate.open()
    page.get_by_role("button", name="Go on with it").click()
    expect(page.get_by_role("link", name=run)).to_be_visible()
    expect(why(page)).to_have_text("It answered.")
    page.goto(f"{server.url}/#/story/message/{message}")
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("Sent again for")).to_be_visible()
    expect(why(page)).to_have_text("It answered.")


def test_a_waiting_message_is_taken_back(server: Served, open_page: Callable[..., Page]) -> None:
    gate, first, _ = busy(server, "taken")
    second = server.send("taken", "not this one")["message_id"]
    page = open_page(server, f"#/story/message/{second}")
    page.get_by_role("button", name="Take back").click()
    page.get_by_role("button", name="Take it back").click()
    expect(why(page)).to_contain_text("It was taken back")
    gate.open()
    over(server, first)


def test_tools_a_worker_and_a_sub_agent_are_told(server: Served, open_page: Callable[..., Page]) -> None:
    task = json.dumps({"prompt": "run echo child", "description": "the finder"})
    text = f"run echo hello; exit 3\nread agent.yaml\nthen\ncall task {task}"
    message = server.send("tools", text)["message_id"]
    until(lambda: server.api("GET", "/v1/tasks?session=tools")["items"])
    (task_out,) = server.api("GET", "/v1/tasks?session=tools")["items"]
    page = open_page(server, f"#/story/message/{message}")
    expect(why(page)).to_contain_text("read waits for a worker")
    server.api("POST", f"/v1/tasks/{task_out['task_id']}/complete", {"result": "what the file says"})
    expect(why(page)).to_have_text("It answered.")
    failed = page.locator(".story-step", has=page.locator(".badge", has_text="error"))
    expect(failed).to_contain_text("exit code 3")
    expect(failed.get_by_role("link", name="ledger: failed")).to_be_visible()
    read = page.locator(".story-step", has_text="lane query")
    expect(read.get_by_role("link", name="task")).to_be_visible()
    read.locator("summary").click()
    expect(read).to_contain_text("what the file says")
    page.get_by_role("link", name="The story of its run").click()
    expect(page.get_by_text("Works for session")).to_be_visible()
    expect(page.locator(".story-step", has=page.locator("strong", has_text="bash"))).to_be_visible()


def test_a_run_that_failed_and_one_that_waits_for_an_approval(server: Served, open_page: Callable[..., Page]) -> None:
    text = "\nthen\n".join(["run echo again"] * 5)
    message = server.send("failed", text)["message_id"]
    over(server, message)
    page = open_page(server, f"#/story/message/{message}")
    expect(why(page)).to_contain_text("max_tool_rounds")
    expect(step(page, "The run ended: failed")).to_be_visible()
    asked = server.send("asks", 'call write {"path": "a.txt", "content": "x"}')["message_id"]
    until(lambda: server.api("GET", "/v1/approvals?session=asks")["items"])
    page = open_page(server, f"#/story/message/{asked}")
    expect(why(page)).to_have_text("Waits for an approval of write.")
    expect(page.get_by_role("link", name="Look at the request")).to_be_visible()
    (approval,) = server.api("GET", "/v1/approvals?session=asks")["items"]
    said = {"approve": False, "reason": "not today"}
    server.api("POST", f"/v1/approvals/{approval['approval_id']}", said)
    expect(why(page)).to_have_text("It answered.")
    expect(step(page, "Asked for an approval of write")).to_contain_text("not today")


def test_nothing_in_a_story_runs_and_it_fits_a_phone(server: Served, open_page: Callable[..., Page]) -> None:
    key = quote(HOSTILE[0], safe="")
    text = "\n".join(["run cat <<'END'", *HOSTILE, "END"]).replace("\n", "\\n")
    command = json.dumps({"command": text.replace("\\n", "\n").removeprefix("run ")})
    message = server.send(key, f"{HOSTILE[1]} {HOSTILE[5]}\ncall bash {command}")["message_id"]
    over(server, message)
    page = open_page(server, f"#/story/message/{message}", phone=True)
    expect(why(page)).to_have_text("It answered.")
    page.locator("summary").first.click()
    expect(page.locator(".story-step .json").last).to_contain_text("<img src=x")
    expect(page.locator(".story-message")).to_contain_text("⟨U+202E⟩")
    check_harmless(page)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    check_axe(page)


def test_a_story_is_gone_through_with_keys(server: Served, open_page: Callable[..., Page]) -> None:
    message = server.send("keys", "run echo hello")["message_id"]
    over(server, message)
    page = open_page(server, f"#/story/message/{message}", dark=True)
    line = page.locator(".story-label", has_text="bash")
    line.focus()
    page.keyboard.press("Enter")
    called = page.locator("#step-call-1-0")
    expect(called).to_be_focused()
    page.keyboard.press("Tab")  # the link to the ledger
    page.keyboard.press("Tab")
    expect(called.locator("summary")).to_be_focused()
    page.keyboard.press("Enter")
    expect(called.locator("details")).to_have_attribute("open", "")
    check_axe(page)


def test_a_story_that_there_is_not_says_so(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/story/run/turn-nobody")
    allow(page, "status of 404")
    expect(page.get_by_role("alert")).to_contain_text("turn-nobody")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.goto(f"{server.url}/#/story")
    expect(page.get_by_text("Which story?")).to_be_visible()
