"""A real browser on a real server: what tests of the dashboard stand on.

Fixtures (in `conftest.py`; servers and the browser live as long as a module):

`serve(config="", *, tokens=True, files=None, arguments=(), **variables) -> Served`
    Starts `laneway serve` as a process, with `config` as its `agent.yaml` and with the scripted model, which does what
    a message says: `run echo hello`, `wait 3`, a line `then` between two steps; anything else it repeats. Everything
    is allowed unless `config` says otherwise. With `tokens` it has an administrator's token for all tenants, which
    pages and `api` use by themselves; without, it is a server as it is at the first start. `files` are written into
    its folder. A start takes two seconds: share one in a module by a fixture of your own with `scope="module"`.

    `.url`, `.admin`, `.folder`; `.api(method, path, json=None, *, token=…, headers=…, status=…)` asks and gives the
    body, and fails on a refusal unless `status` is what was expected; `.send(session, text, **more)`;
    `.token(*scopes, tenant=…)` makes a token; `.kill()` is `kill -9`, `.stop()` ends it in good order, `.restart()`
    starts it again, on the same port and store (after a kill, too).

`open_page(server, path="#/", *, phone=False, dark=False, token=None, reduced=True) -> Page`
    A page in a context of its own (two of them are two browsers), opened there, its shell drawn. `token`: None is the
    administrator's, "" none. At the end of the test it fails if a page logged an error or a warning, threw, broke its
    policy, or asked for anything outside its own origin. A test that makes the server refuse or go away on purpose
    says so: `allow(page, "status of 404", …)`, parts of what may be logged; `OFFLINE` are those of a server that is
    away. If a test fails, the requests of its pages are printed, and a screenshot is in the temporary folder.

Helpers: `check_axe(page)` fails on serious and critical findings; `until(claim)` of `tests.server_process` waits for
what another process does; `HOSTILE` are texts that would run, if anything took them for markup: give them as names and
texts, and call `check_harmless(page)`. Never sleep: wait with `expect(...)` (`page.wait_for_function` is forbidden by
the policy of the page, as it evaluates a text).
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, Response, expect

from laneway.gateway.access import ALL_TENANTS, Scope
from laneway.gateway.dashboard_files import ROOT
from laneway.gateway.tokens import TokenBook
from laneway.stores import open_store
from laneway.system import SystemClock
from tests.browser.browser import find
from tests.server_process import LANEWAY, ServerProcess, environment

__all__ = ("HOSTILE", "OFFLINE", "Served", "Stage", "allow", "check_axe", "check_harmless", "launch")

AXE: Final = Path(__file__).parent / "vendor" / "axe.min.js"
PATIENCE_MS: Final = 30_000  # against what hangs; a machine that is busy fails nothing
OPEN: Final = "default_model: scripted\npermissions: {default_decision: allow}\n"
OFFLINE: Final = ("ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED", "ERR_NETWORK", "ERR_SOCKET")
HOSTILE: Final = (
    "<img src=x onerror=\"window.hit='img'\">",
    "<script>window.hit='script'</script>",
    "\"><svg onload=window.hit='svg'>",
    "javascript:window.hit='link'",
    "{{constructor.constructor('window.hit=1')()}}",
    "\u202etxt.exe \u200b<b>bold</b>",
)
SKIPPED_RULES: Final = ("region",)  # notes and dialogs are outside of landmarks, as they have to be


# ---- the server ----


class Served:
    """A server in a process of its own; see the top of this module."""

    def __init__(self, folder: Path, *, tokens: bool, arguments: Iterable[str], variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.admin = ""
        self._arguments = tuple(arguments)
        self._variables = dict(variables)
        self._port = "0"
        if tokens:
            self.admin = _first_token(f"sqlite:///{folder / 'laneway.db'}")
        self._process = self._started()

    def _started(self) -> ServerProcess:
        given = {"LANEWAY_PORT": self._port, **self._variables}
        process = ServerProcess(
            [str(LANEWAY), "serve", *self._arguments], self.folder, environment(self.folder, **given)
        )
        self._port = process.url.rpartition(":")[2]
        return process

    @property
    def url(self) -> str:
        """Where it listens; the same after a restart."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def errors(self) -> list[str]:
        """What it has written on standard error."""
        return self._process.errors

    def api(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        status: int | None = None,
    ) -> Any:
        """Ask it; the body of the answer. `path` begins with `/v1`."""
        secret = self.admin if token is None else token
        given = {**({"Authorization": f"Bearer {secret}"} if secret else {}), **(headers or {})}
        code, body = self._process.call(method, path, json, headers=given)
        assert code == status if status is not None else code < 400, (code, body)
        return body

    def send(self, session: str, text: str, **more: Any) -> dict[str, Any]:
        """Send a message; its receipt."""
        sent: dict[str, Any] = self.api("POST", f"/v1/sessions/{session}/messages", {"text": text, **more})
        return sent

    def token(self, *scopes: str, tenant: str = "default", name: str = "somebody") -> str:
        """A new token; its secret."""
        made = self.api("POST", "/v1/tokens", {"name": name, "scopes": list(scopes), "tenant": tenant})
        return str(made["secret"])

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()

    def stop(self) -> int:
        """End it in good order; its exit code."""
        return self._process.stop()

    def restart(self) -> None:
        """Start it again where it was; it is ended first if it still runs."""
        self._process.kill()
        self._process = self._started()

    def close(self) -> None:
        """End it; its folder is left to whoever made it."""
        self._process.kill()


def make_folder(folder: Path, config: str, files: Mapping[str, str]) -> None:
    """A workspace in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.yaml").write_text(config or OPEN, encoding="utf-8")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _first_token(address: str) -> str:
    """An administrator's token for all tenants, put into a store that no server has open."""
    made: list[str] = []

    async def make() -> None:
        store = open_store(address)
        await store.open()
        try:
            book = TokenBook(store, SystemClock())
            await book.load()
            made.append((await book.create("browser", [Scope.ADMIN], tenant=ALL_TENANTS))[1])
            book.close()
        finally:
            await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(make()))  # the loop of this thread is Playwright's
    thread.start()
    thread.join()
    return made[0]


# ---- the browser ----


def launch(playwright: Playwright) -> Browser:
    """Debian's Chromium, or the one of Playwright itself. Without either this fails, and so do the tests."""
    found = find()
    if found is None and not Path(playwright.chromium.executable_path).exists():
        raise RuntimeError("there is no browser: `make test` installs one, or: python -m playwright install chromium")
    options = ["--disable-gpu", "--disable-dev-shm-usage"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--no-sandbox")  # root has none
    return playwright.chromium.launch(executable_path=found, args=options)


@dataclass
class Watched:
    """What a page has done."""

    page: Page
    origin: str
    asked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def complaints(self) -> list[str]:
        """What it must not have done."""
        return [each for each in self.wrong if not any(part in each for part in self.allowed)]


_WATCHED: Final[WeakKeyDictionary[Page, Watched]] = WeakKeyDictionary()


class Stage:
    """Pages of one test."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.pages: list[Watched] = []

    def open_page(
        self,
        server: Served,
        path: str = "#/",
        *,
        phone: bool = False,
        dark: bool = False,
        token: str | None = None,
        reduced: bool = True,
    ) -> Page:
        """A page of the dashboard in a browser of its own; see the top of this module."""
        context = self._browser.new_context(
            viewport={"width": 360, "height": 740} if phone else {"width": 1280, "height": 800},
            has_touch=phone,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if reduced else "no-preference",
            locale="en-GB",
            timezone_id="Europe/Berlin",
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        watched = Watched(page, server.url)
        page.on("request", lambda request: _on_request(watched, request))
        page.on("response", lambda response: _on_response(watched, response))
        page.on("console", lambda message: _on_console(watched, message))
        page.on("pageerror", lambda error: watched.wrong.append(f"thrown: {error}"))
        page.add_init_script(_REPORT_VIOLATIONS)
        self.pages.append(watched)
        _WATCHED[page] = watched
        secret = server.admin if token is None else token
        hash_ = path.removeprefix("#")
        page.goto(f"{server.url}/#token={secret}&to={_escaped(hash_)}" if secret else f"{server.url}/{path}")
        page.locator("header.shell-head").wait_for()
        return page

    def tell(self, folder: Path) -> str:
        """What the pages did, for a test that failed; a screenshot of each is left in a folder."""
        lines = []
        for number, each in enumerate(self.pages):
            shot = folder / f"page-{number}.png"
            try:
                each.page.screenshot(path=shot)
            except Exception as error:  # noqa: BLE001 - a page that is gone must not hide why the test failed
                lines.append(f"no screenshot: {error}")
            lines += [
                f"page {number}: {each.page.url} (screenshot: {shot})",
                *(f"  {line}" for line in each.asked[-60:]),
            ]
            lines += [f"  ! {line}" for line in each.wrong]
        return "\n".join(lines)

    def close(self) -> list[str]:
        """Close every page; what they must not have done."""
        for each in self.pages:
            each.page.context.close()
        return [line for each in self.pages for line in each.complaints()]


_REPORT_VIOLATIONS: Final = """
addEventListener("securitypolicyviolation", (event) => {
  console.error("policy violated: " + event.violatedDirective + " " + event.blockedURI + " " + event.sample);
});
"""


def _escaped(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9/._~-]", lambda found: "".join(f"%{each:02X}" for each in found.group().encode()), text)


def _on_request(watched: Watched, request: Request) -> None:
    path = request.url.removeprefix(watched.origin)
    if not path.startswith(ROOT):  # the files of the page tell nothing
        watched.asked.append(f"{request.method} {path}")
    if not request.url.startswith((f"{watched.origin}/", "data:", "blob:")):
        watched.wrong.append(f"asked outside of its origin: {request.url}")


def _on_response(watched: Watched, response: Response) -> None:
    if response.status >= 400:
        path = response.url.removeprefix(watched.origin)
        watched.asked.append(f"  {response.status} {response.request.method} {path}")


def _on_console(watched: Watched, message: ConsoleMessage) -> None:
    if message.type in {"error", "warning"}:
        where = message.location.get("url", "").removeprefix(watched.origin)
        watched.wrong.append(f"{message.type}: {message.text} {where}".strip())


# ---- checks ----


def allow(page: Page, *parts: str) -> None:
    """Let a page log what has one of these parts in it: the test makes it do so."""
    _WATCHED[page].allowed += parts


_REST: Final = """
  () => Promise.all(document.getAnimations()
    .filter((each) => each.effect.getTiming().iterations !== Infinity)
    .map((each) => each.finished.catch(() => null)))
"""


def check_axe(page: Page, *, skip: Iterable[str] = (), within: str | None = None) -> None:
    """Fail on serious and critical findings of axe-core; what moves has come to rest by then."""
    page.evaluate(f"({_REST})().then(() => 0)")
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(f"{AXE.read_text(encoding='utf-8')}; 0")  # as the debugger does it: the policy forbids a script
    rules = {name: {"enabled": False} for name in (*SKIPPED_RULES, *skip)}
    found = page.evaluate(
        "([within, rules]) => axe.run(within ?? document, { rules, resultTypes: ['violations'] })", [within, rules]
    )
    bad = [
        f"{each['impact']} {each['id']}: {each['help']}"
        + "".join(
            f"\n    {node['html'][:200]}\n    {node.get('failureSummary', '')[:300]}" for node in each["nodes"][:5]
        )
        for each in found["violations"]
        if each["impact"] in {"serious", "critical"}
    ]
    assert not bad, "axe found at " + page.url + ":\n" + "\n".join(bad)


def check_harmless(page: Page) -> None:
    """Fail if one of `HOSTILE` has run, or has become an element."""
    assert page.evaluate("window.hit === undefined"), page.evaluate("String(window.hit)")
    expect(page.locator("#app img, #app script, #app svg[onload], #app a[href^='javascript:']")).to_have_count(0)
