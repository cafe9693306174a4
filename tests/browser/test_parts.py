"""The parts that every view is built of, each alone in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import Served, allow, check_axe

pytestmark = pytest.mark.slow

MOUNT = """async ([name, given]) => {
  const root = new URL("./", document.querySelector("script[type=module]").src).href;
  const get = (path) => import(root + path);
  const parts = await get("ui/parts.js");
  const { Toasts } = await get("ui/toasts.js");
  const { Dialogs, confirm, prompt } = await get("ui/dialogs.js");
  parts.render(null, document.querySelector("#app"));
  const box = document.createElement("main");
  box.id = "box";
  document.body.append(box);
  window.seen = [];
  const { html } = parts;
  const show = (body) => parts.render(html`<h1>Parts</h1>${body}<${Dialogs} /><${Toasts} />`, box);
  await SCRIPTS[name]({ ...parts, get, show, given, seen: window.seen, confirm, prompt });
}"""
SCRIPTS = """{
  list: async ({ html, get, show, given, seen }) => {
    const { VirtualList } = await get("ui/virtual.js");
    const items = (count, from = 0) => Array.from({ length: count }, (_, at) => ({ id: at + from }));
    window.draw = (count, from) => show(html`<${VirtualList} label="Rows" items=${items(count, from)} rowHeight=${40}
      keyOf=${(each) => each.id} render=${(each) => `row ${each.id}`} onReach=${() => seen.push("end")}
      onOpen=${(each) => seen.push(each.id)} />`);
    window.draw(given, 0);
  },
  buttons: async ({ html, show, Button, Form, Field, toast, seen }) => {
    const slow = () => new Promise((resolve) => { seen.push("pressed"); window.finish = resolve; });
    const refusal = Object.assign(new Error("it has begun"), { name: "Refused", hint: "look again" });
    const note = () => toast("closed", { action: { text: "Undo", run: () => seen.push("undone") } });
    show(html`<${Button} onClick=${slow}>Slow</${Button}>
      <${Button} onClick=${async () => { throw refusal; }}>Refused</${Button}>
      <${Button} onClick=${() => { throw new Error("a mistake"); }}>Wrong</${Button}>
      <${Button} icon="x" title="Close it" onClick=${note} />
      <${Form} onSubmit=${slow}><${Field} label="Text" error="too short" hint="at least two">
        <input type="text" /></${Field}></${Form}>`);
  },
  dialogs: async ({ html, show, Button, seen, confirm, prompt }) => {
    const sure = { title: "Sure?", text: "It is gone then.", yes: "Do it", danger: true };
    const why = { title: "Why?", label: "Reason", value: "because", check: (words) => (words ? "" : "Say why.") };
    show(html`<${Button} onClick=${async () => { seen.push(await confirm(sure)); }}>Confirm</${Button}>
      <${Button} onClick=${async () => { seen.push(await prompt(why)); }}>Prompt</${Button}>`);
  },
  plot: async ({ html, get, show }) => {
    const { Plot } = await get("ui/plot.js");
    const x = (values) => values.map((_, at) => 1.7e12 + at * 1000);
    window.plot = (values) => show(html`<${Plot} label="Waits" x=${x(values)} format=${(value) => `${value} s`}
      series=${[{ label: "median", values, color: "--run", fill: true }]} />`);
    window.plot([1, null, 4, 2]);
  },
  times: async ({ html, show, Time, Countdown, Since, Json, Text, Badge }) => {
    const now = Date.now();
    show(html`<p><${Time} ms=${now - 7200000} /> <${Time} ms=${null} /></p>
      <p id="left"><${Countdown} until=${now + 3500} /></p><p><${Since} ms=${now - 60000} /></p>
      <${Json} value=${{ text: "x".repeat(2000) }} /><${Text}>${"a\\u202eb"}</${Text}>
      <${Badge} tone="ok">fine</${Badge}>`);
  },
}"""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture
def mount(server: Served, open_page: Callable[..., Page]) -> Callable[..., Page]:
    """Shows one of `SCRIPTS` alone on a page."""

    def mounted(script: str, given: Any = None, **look: bool) -> Page:
        page = open_page(server, "#/settings", **look)
        expect(page.get_by_role("heading", name="Look")).to_be_visible()
        page.evaluate(MOUNT.replace("SCRIPTS", f"({SCRIPTS})"), [script, given])
        return page

    return mounted


def test_a_list_of_ten_thousand_rows_has_few_elements_and_is_walked_by_keys(mount: Callable[..., Page]) -> None:
    page = mount("list", 10_000)
    rows = page.get_by_role("listitem")
    expect(rows.first).to_have_text("row 0")
    assert rows.count() < 60
    rows.first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_text("row 1", exact=True)).to_be_focused()
    page.keyboard.press("End")
    last = page.get_by_text("row 9999", exact=True)
    expect(last).to_be_focused()
    expect(last).to_be_in_viewport()
    assert (last.get_attribute("aria-posinset"), last.get_attribute("aria-setsize")) == ("10000", "10000")
    page.keyboard.press("Enter")
    assert page.evaluate("seen.filter((each) => each !== 'end')") == [9999]
    assert page.evaluate("seen.includes('end')")
    assert rows.count() < 60
    check_axe(page, within="#box")
    page.keyboard.press("PageUp")
    page.keyboard.press("Home")
    expect(page.get_by_text("row 0", exact=True)).to_be_focused()


def test_the_row_with_the_focus_keeps_it_when_the_list_changes(mount: Callable[..., Page]) -> None:
    page = mount("list", 1_000)
    row = page.get_by_text("row 5", exact=True)
    row.focus()
    page.evaluate("draw(1000, 3)")  # what was before it is gone
    expect(row).to_be_focused()
    assert row.get_attribute("aria-posinset") == "3"
    page.locator(".virtual").evaluate("(node) => { node.scrollTop = 20000; }")
    expect(page.get_by_text("row 503", exact=True)).to_be_visible()
    expect(row).to_be_focused()  # out of sight, and still there
    page.evaluate("draw(4, 500)")  # the list is shorter, and its row is gone
    expect(page.get_by_role("listitem")).to_have_count(4)
    expect(page.get_by_text("row 500", exact=True)).to_be_visible()


def test_a_button_is_pressed_once_until_it_is_done_and_says_what_was_refused(mount: Callable[..., Page]) -> None:
    page = mount("buttons")
    slow = page.get_by_role("button", name="Slow")
    slow.click()
    expect(slow).to_have_attribute("aria-busy", "true")
    slow.dispatch_event("click")
    assert page.evaluate("seen") == ["pressed"]
    page.evaluate("finish()")
    expect(slow).not_to_have_attribute("aria-busy", "true")
    field = page.get_by_label("Text")
    expect(field).to_have_accessible_description("too short at least two")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.press("Enter")
    field.press("Enter")
    assert page.evaluate("seen.length") == 2  # the second one while the first goes on
    expect(page.get_by_role("button", name="Close it")).to_be_visible()  # it has an icon only
    check_axe(page, within="#box")


def test_notes_say_what_went_wrong_and_a_mistake_is_seen_in_the_console(mount: Callable[..., Page]) -> None:
    page = mount("buttons")
    allow(page, "a mistake")
    for name, words in (("Refused", "It has begun"), ("Wrong", "A mistake")):
        page.locator("#box").get_by_role("button", name=name, exact=True).click()
        expect(page.locator(".toast", has_text=words)).to_be_visible()
    expect(page.locator(".toast", has_text="look again")).to_be_visible()
    page.get_by_role("button", name="Close it").click()
    page.get_by_role("button", name="Undo").click()
    assert page.evaluate("seen.at(-1)") == "undone"
    expect(page.locator(".toast", has_text="closed")).to_have_count(0)
    page.locator(".toast", has_text="It has begun").get_by_role("button", name="Dismiss").click()
    expect(page.locator(".toast", has_text="It has begun")).to_have_count(0)


def test_dialogs_are_answered_by_mouse_and_keys_and_give_the_focus_back(mount: Callable[..., Page]) -> None:
    page = mount("dialogs")
    opener = page.get_by_role("button", name="Confirm")
    opener.click()
    dialog = page.get_by_role("dialog", name="Sure?")
    expect(dialog).to_be_visible()
    check_axe(page, within="#box")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()
    opener.press("Enter")
    dialog.get_by_role("button", name="Do it").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Prompt").click()
    asked = page.get_by_role("dialog", name="Why?")
    field = asked.get_by_label("Reason")
    expect(field).to_be_focused()
    field.fill("")
    page.keyboard.press("Enter")
    expect(asked.get_by_text("Say why.")).to_be_visible()
    field.fill("tidying")
    page.keyboard.press("Enter")
    expect(asked).to_have_count(0)
    page.get_by_role("button", name="Prompt").click()
    page.mouse.click(5, 5)  # beside it
    expect(asked).to_have_count(0)
    assert page.evaluate("seen") == [False, True, "tidying", None]


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"phone": True}], ids=["light", "dark", "phone"])
def test_a_plot_is_drawn_and_told_in_words(mount: Callable[..., Page], look: dict[str, bool]) -> None:
    page = mount("plot", **look)
    canvas = page.locator("#box canvas")
    expect(canvas).to_be_visible()
    expect(page.get_by_text("median: now 2 s, least 1 s, most 4 s")).to_be_attached()
    page.evaluate("plot([1, 2, 3, 9])")
    expect(page.get_by_text("median: now 9 s, least 1 s, most 9 s")).to_be_attached()
    page.evaluate("plot([])")
    expect(page.get_by_text("median: nothing yet")).to_be_attached()
    expect(canvas).to_have_count(1)
    check_axe(page, within="#box")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_times_tick_and_long_or_hidden_texts_are_shown_as_they_are(mount: Callable[..., Page]) -> None:
    page = mount("times")
    expect(page.get_by_text("2 h ago")).to_be_visible()
    expect(page.locator("#left")).to_have_text("now")  # it has counted down to it
    expect(page.get_by_text("1 min ")).to_be_visible()
    expect(page.get_by_text("a⟨U+202E⟩b")).to_be_visible()
    expect(page.locator("pre")).to_contain_text("…")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("pre")).not_to_contain_text("…")
    check_axe(page, within="#box")
