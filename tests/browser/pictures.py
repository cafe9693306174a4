"""`python -m tests.browser.pictures [--into DIR]`: takes the pictures of the documentation, of a server at work.

The traffic is real: a dozen sessions with tools that run, wait for slots, ask somebody, and go to a worker elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.stage import Served, launch, make_folder
from tests.server_process import until

# ruff: noqa: T201 - it says what it has made

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
CONFIG: Final = """
default_model: scripted
lanes: {main: 4}
queue:
  mode: followup
  query_max_concurrency: 2
  execute_max_concurrency: 1
  lane_handlers:
    generate: {mode: external, labels: [gpu]}
tool_lanes: {web_fetch: generate}
permissions: {default_decision: allow, ask: ["write"]}
confirmation: {enabled: true, default_timeout_ms: 900000}
"""
SESSIONS: Final = {
    "support:ana": "wait 600\nwait 600\nwait 600\nwait 600",
    "support:ben": "run sleep 600\nrun make test\nwait 600",
    "release": 'call write {"path": "CHANGELOG.md", "content": "## 1.4.0\\n- lanes that can be watched"}',
    "nightly-report": "wait 600\nwait 600\nrun sleep 600",
    "research:prices": "wait 600\nrun sleep 600\nrun sleep 600",
    "onboarding": "wait 600",
    "billing:july": "wait 600",
    "triage": "wait 600",
    "translations": "wait 600",
}
WAITING: Final = {"support:ana": ["and the invoice?", "please hurry"], "release": ["then tag it"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Take them all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.browser.pictures", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--into", type=Path, default=IMAGES)
    options = parser.parse_args(arguments)
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="laneway-pictures-") as folder:
        make_folder(Path(folder), CONFIG, {"notes.md": "# Notes\n"})
        served = Served(Path(folder), tokens=True, arguments=(), variables={})
        try:
            _busy(served)
            with sync_playwright() as playwright:
                browser = launch(playwright)
                _take(browser, served, options.into)
                browser.close()
        finally:
            served.close()
    return 0


def _busy(served: Served) -> None:
    """Make the traffic, and wait until it is there."""
    for number in range(40):  # so that there is something in the plots
        served.send(f"warm-up-{number % 8}", "wait 0.3")
    until(lambda: not served.api("GET", "/v1/now")["running"])
    told = served.send("story", "wait 1\nwait 1\nthen\nrun echo built\nthen\nEverything is built.")
    until(lambda: served.api("GET", f"/v1/messages/{told['message_id']}")["outcome"])
    for key, text in SESSIONS.items():
        served.send(key, text)
    until(lambda: served.api("GET", "/v1/now")["running"] >= 4)
    for key, texts in WAITING.items():
        for text in texts:
            served.send(key, text)
    until(lambda: served.api("GET", "/v1/approvals")["items"])
    served.api("POST", "/v1/limits/subagent/close", {"for_ms": 540_000, "reason": "the provider asked for a pause"})


def _take(browser: Browser, served: Served, folder: Path) -> None:
    story = served.api("GET", "/v1/sessions/story/runs")["items"][0]["run_id"]
    for name, path, look in (
        ("overview", "#/", "light"),
        ("lanes", "#/lanes", "light"),
        ("dark", "#/lanes", "dark"),
        ("phone", "#/", "phone"),
        ("chat", "#/chat/support%3Aana", "light"),
        ("story", f"#/story/run/{story}", "light"),
    ):
        size = {"width": 360, "height": 740} if look == "phone" else {"width": 1360, "height": 820}
        scheme = "dark" if look == "dark" else "light"
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{served.url}/#token={served.admin}&to={path.removeprefix('#')}")
        _at_rest(page)
        if path == "#/lanes":
            page.get_by_label("Only busy").check()
            page.wait_for_timeout(500)
        file = folder / f"dashboard-{name}.png"
        page.screenshot(path=file)
        print(f"{file.name}: {file.stat().st_size // 1000} KB")
        context.close()


def _at_rest(page: Page) -> None:
    expect(page.locator("main h1")).to_be_visible(timeout=30_000)
    expect(page.locator("main .loading")).to_have_count(0)
    page.wait_for_load_state("load")
    page.wait_for_timeout(1_500)  # plots and streams have drawn what they were told


if __name__ == "__main__":
    sys.exit(main())
