"""`python -m tests.soak.page [--minutes N]`: the dashboard under a load that nobody reads.

10,000 messages wait in one session, 1,000 sessions have something to say, 500 events a second come in. A real browser
looks at the lanes, at the list of sessions and at the chat with the long queue, one after the other; how long its
frames take, how much memory it holds and how many elements it has is reported, and has bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import CDPSession, Page, sync_playwright

from tests.browser.stage import Served, launch, make_folder
from tests.soak.traffic import drive, fill

# ruff: noqa: T201 - it reports on standard output

FRAME_P95_MS: Final = 50.0
HEAP_GROWTH: Final = 0.35  # from the second sample to the last
HEAP_SPARE_MB: Final = 8.0
ELEMENTS_MAX: Final = 8_000
SAMPLE_S: Final = 10
VIEWS: Final = {"lanes": "#/lanes", "sessions": "#/sessions", "chat": "#/chat/long"}
CONFIG: Final = """
default_model: scripted
permissions: {default_decision: allow}
lanes: {main: 16}
queue: {mode: followup, debounce_idle: false, cap: 100000}
gateway: {requests_per_second: 100000}
"""
BEGIN: Final = """() => {
  const frames = [];
  let before = performance.now();
  const next = (at) => { frames.push(at - before); before = at; requestAnimationFrame(next); };
  requestAnimationFrame(next);
  window.takeFrames = () => frames.splice(0);
}"""


@dataclass
class Looked:
    """What was measured of one view."""

    name: str
    frames: list[float] = field(default_factory=list)
    heap_mb: list[float] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)

    def frame(self, share: float) -> float:
        """A quantile of the frame times in milliseconds."""
        ordered = sorted(self.frames)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def problems(self) -> list[str]:
        """What is above its bound."""
        found = []
        if not self.frames or self.frame(0.95) > FRAME_P95_MS:
            found.append(f"95 of 100 frames take up to {self.frame(0.95):.0f} ms, more than {FRAME_P95_MS:.0f}")
        early, late = self.heap_mb[min(1, len(self.heap_mb) - 1)], self.heap_mb[-1]
        if late > early * (1 + HEAP_GROWTH) + HEAP_SPARE_MB:
            found.append(f"its memory grew from {early:.1f} to {late:.1f} MB")
        if max(self.elements) > ELEMENTS_MAX:
            found.append(f"it had {max(self.elements)} elements, more than {ELEMENTS_MAX}")
        return found

    def row(self) -> str:
        """One line of the report."""
        quantiles = " ".join(f"{self.frame(share):7.1f}" for share in (0.5, 0.95, 0.99))
        heap = f"{self.heap_mb[0]:6.1f} {self.heap_mb[-1]:6.1f}"
        return (
            f"{self.name:9} {len(self.frames):7,} {quantiles} {max(self.frames):8.1f}   {heap} {max(self.elements):9,}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when every view stayed within its bounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.page", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=500, help="events a second")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="laneway-soak-page-") as folder:
        make_folder(Path(folder), CONFIG, {})
        served = Served(Path(folder), tokens=True, arguments=(), variables={})
        try:
            looked = _run(served, options)
        finally:
            served.close()
    print("view       frames     p50     p95     p99  longest   heap MB: first, last  elements   (frame times in ms)")
    bad = 0
    for each in looked:
        print(each.row())
        for problem in each.problems():
            bad += 1
            print(f"  TOO MUCH: {each.name}: {problem}")
    return 1 if bad else 0


def _run(served: Served, options: argparse.Namespace) -> list[Looked]:
    began = time.monotonic()
    _apart(fill(served.url, served.admin, sessions=options.sessions, waiting=options.waiting))
    waiting = served.api("GET", "/v1/now")["waiting"]
    print(f"filled in {time.monotonic() - began:.0f} s: {waiting:,} messages wait, {options.sessions:,} sessions")
    given = {"sessions": options.sessions, "rate": options.rate}
    apart = multiprocessing.get_context("spawn")
    heard = apart.Value("q", 0)
    traffic = apart.Process(target=drive, args=(served.url, served.admin, heard), kwargs=given)
    traffic.start()
    started = time.monotonic()
    try:
        with sync_playwright() as playwright:
            browser = launch(playwright)
            share = options.minutes * 60 / len(VIEWS)
            looked = [_look(browser.new_page(), served, name, path, share) for name, path in VIEWS.items()]
            browser.close()
        print(f"{heard.value / (time.monotonic() - started):,.0f} events a second")
    finally:
        traffic.terminate()
        traffic.join()
    return looked


def _apart(work: Any) -> None:
    """Run it on a loop of its own; that of this thread is Playwright's."""
    thread = threading.Thread(target=lambda: asyncio.run(work))
    thread.start()
    thread.join()


def _look(page: Page, served: Served, name: str, path: str, seconds: float) -> Looked:
    looked = Looked(name)
    page.goto(f"{served.url}/#token={served.admin}&to={path.removeprefix('#')}")
    page.locator("main h1").wait_for()
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable")
    page.evaluate(BEGIN)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        page.wait_for_timeout(min(SAMPLE_S, max(0.5, end - time.monotonic())) * 1000)
        looked.frames += page.evaluate("window.takeFrames()")
        _sample(page, tools, looked)
        page.evaluate("window.takeFrames()")  # what the measuring took is not the page's
        now = served.api("GET", "/v1/now")
        shown = f"{looked.frame(0.95):6.1f} ms p95, {looked.heap_mb[-1]:6.1f} MB, {looked.elements[-1]:6,} elements"
        print(f"  {name:9} {shown}; {now['running']} run, {now['waiting']:,} wait", flush=True)
    page.close()
    return looked


def _sample(page: Page, tools: CDPSession, looked: Looked) -> None:
    tools.send("HeapProfiler.collectGarbage")
    metrics = {each["name"]: each["value"] for each in tools.send("Performance.getMetrics")["metrics"]}
    looked.heap_mb.append(metrics["JSHeapUsedSize"] / 1e6)
    looked.elements.append(page.evaluate("document.querySelectorAll('*').length"))


if __name__ == "__main__":
    sys.exit(main())
