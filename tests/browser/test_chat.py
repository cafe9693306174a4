"""The chat in a real browser, on a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.stage import HOSTILE, OFFLINE, Served, allow, check_axe, check_harmless
from tests.server_process import until

pytestmark = pytest.mark.slow

PLANNED = "default_model: scripted\nplanning: true\npermissions: {default_decision: allow}\n"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Served]) -> Served:
    return serve()


def field(page: Page) -> Locator:
    return page.get_by_label("Message", exact=True)


def say(page: Page, text: str, mode: str | None = None) -> None:
    if mode is not None:
        page.get_by_label("Mode", exact=True).select_option(mode)
    field(page).fill(text)
    field(page).press("Enter")
    expect(field(page)).to_have_value("")


def log(page: Page) -> Locator:
    return page.get_by_role("log")


def held(name: str) -> str:
    """A call that goes on until the test lets it go: nothing here depends on how fast a machine is."""
    return f"run echo alpha; until [ -e {name} ]; do sleep 0.1; done; echo omega"


def let_go(server: Served, name: str) -> None:
    (server.folder / name).touch()


def message(page: Page, text: str) -> Locator:
    return page.locator(".chat-message").filter(has_text=text)


def live(page: Page) -> Locator:
    return page.locator(".chat-live")


def test_a_message_is_sent_and_its_answer_streams(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/first")
    expect(page.get_by_text("Nothing has been said here yet")).to_be_visible()
    say(page, "Hello there")
    expect(log(page).get_by_text("You said: Hello there")).to_be_visible()
    expect(live(page)).to_have_count(0)
    expect(log(page).get_by_text("Hello there", exact=True)).to_have_count(1)
    check_axe(page)
    page.reload()
    expect(log(page).get_by_text("You said: Hello there")).to_be_visible()
    expect(log(page).get_by_text("Hello there", exact=True)).to_have_count(1)


def test_a_call_is_shown_in_its_lane_while_it_runs_also_after_a_reload(
    server: Served, open_page: Callable[..., Page]
) -> None:
    page = open_page(server, "#/chat/calls")
    say(page, f"{held('calls')}\nthen\nrun echo last")
    call = page.locator(".chat-call").first
    expect(call).to_contain_text("bash")
    expect(call).to_contain_text("execute")
    expect(call).to_contain_text("runs")
    expect(call.locator(".chat-output")).to_contain_text("alpha")
    page.reload()
    expect(call).to_contain_text("runs")
    expect(call.locator(".chat-output")).to_contain_text("alpha")
    let_go(server, "calls")
    expect(page.locator(".chat-call").filter(has_text="done")).to_have_count(2)
    expect(live(page)).to_have_count(0)
    page.reload()
    page.get_by_role("button", name="Show its work").click()
    expect(page.locator(".chat-call").filter(has_text="done")).to_have_count(2)


def test_a_steered_message_goes_into_the_run(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/steered")
    say(page, f"{held('steered')}\nthen\nwait 1")
    expect(live(page)).to_be_visible()
    page.get_by_label("Mode", exact=True).select_option("steer")
    expect(page.locator(".composer-effect")).to_contain_text("goes into the run at its next step")
    say(page, "look to the left")
    expect(message(page, "look to the left")).to_contain_text("goes into the run at its next step")
    let_go(server, "steered")
    inside = page.locator(".chat-run .chat-inside").filter(has_text="look to the left")
    expect(inside).to_be_visible()
    expect(live(page)).to_have_count(0)
    expect(inside).to_contain_text("went into the run")
    expect(page.locator(".chat-run")).to_have_count(1)
    page.reload()
    expect(inside).to_contain_text("went into the run")
    expect(page.get_by_label("Mode", exact=True)).to_have_value("")


def test_followups_run_one_by_one_and_collected_ones_together(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/queues")
    say(page, held("queues"))
    expect(live(page)).to_be_visible()
    say(page, "one after the other", "followup")
    waiting = page.get_by_role("region", name="Waiting messages")
    expect(waiting.locator(".chat-message")).to_contain_text("waits, place 1")
    expect(page.locator(".page-lead")).to_contain_text("1 message waiting")
    say(page, "collected one", "collect")
    say(page, "collected two", "collect")
    expect(waiting.locator(".chat-message")).to_have_count(3)
    expect(message(page, "collected two")).to_contain_text("place 3")
    let_go(server, "queues")
    expect(message(page, "collected two")).to_contain_text("answered together with others")
    expect(waiting).to_have_count(0)
    expect(page.locator(".chat-run")).to_have_count(3)
    together = page.locator(".chat-run").filter(has=message(page, "collected one"))
    expect(together).to_contain_text("collected two")
    expect(message(page, "collected one").get_by_role("link", name="Story of this message")).to_have_attribute(
        "href", re.compile("^#/story/message/")
    )


def test_an_interrupt_ends_the_run_and_it_can_be_sent_again(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/interrupted")
    say(page, "wait 60")
    expect(live(page)).to_be_visible()
    say(page, "never mind", "interrupt")
    expect(log(page).get_by_text("You said: never mind")).to_be_visible()
    cut = page.locator(".chat-run").first
    expect(cut).to_have_attribute("data-state", "cancelled")
    expect(message(page, "wait 60")).to_contain_text("its run was cut off")
    message(page, "wait 60").get_by_role("button", name="Send again").click()
    expect(live(page)).to_contain_text("wait 60")
    page.get_by_role("button", name="Stop run").click()
    expect(live(page)).to_have_count(0)
    expect(page.locator(".chat-run")).to_have_count(3)


def test_everything_is_stopped_after_a_question(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/stopped")
    say(page, "wait 60")
    expect(live(page)).to_be_visible()
    say(page, "this waits", "followup")
    expect(message(page, "this waits")).to_contain_text("place 1")
    page.get_by_role("button", name="Stop all").click()
    page.get_by_role("button", name="Stop everything").click()
    expect(live(page)).to_have_count(0)
    expect(page.locator(".page-lead")).to_contain_text("idle")
    expect(message(page, "this waits")).to_contain_text("withdrawn")


def test_a_plan_is_a_checklist_also_after_a_reload(
    serve: Callable[..., Served], open_page: Callable[..., Page]
) -> None:
    server = serve(PLANNED)
    page = open_page(server, "#/chat/planned")
    say(page, f"wait 1\nthen\n{held('planned')}\nthen\nwait 1")
    plan = page.locator(".chat-plan")
    expect(plan.get_by_role("listitem")).to_have_count(3)
    expect(plan.locator("[aria-current=step]")).to_contain_text("echo alpha")
    page.reload()
    expect(plan.locator("[aria-current=step]")).to_contain_text("echo alpha")
    expect(plan).to_contain_text("1 of 3")
    check_axe(page)
    let_go(server, "planned")
    expect(live(page)).to_have_count(0)
    expect(plan).to_contain_text("3 of 3")


def test_a_server_that_is_killed_in_the_middle_of_a_run_comes_back_and_nothing_is_missing_or_doubled(
    serve: Callable[..., Served], open_page: Callable[..., Page]
) -> None:
    server = serve()
    page = open_page(server, "#/chat/killed")
    allow(page, *OFFLINE, "ERR_CONTENT_LENGTH_MISMATCH")
    say(page, "before the storm")
    expect(log(page).get_by_text("You said: before the storm")).to_be_visible()
    say(page, "wait 3\nthen\nwait 1")
    expect(live(page)).to_contain_text("wait")
    server.kill()
    expect(page.locator(".shell-away")).to_be_visible()
    say(page, "written while nobody answers", "followup")
    expect(message(page, "written while nobody answers")).to_contain_text("sent again by itself")
    server.restart()
    expect(log(page).get_by_text("You said: written while nobody answers")).to_be_visible()
    expect(live(page)).to_have_count(0)
    expect(page.locator(".shell-away")).to_have_count(0)
    for text in ("before the storm", "wait 3", "written while nobody answers"):
        expect(message(page, text)).to_have_count(1)
    expect(page.locator(".chat-run")).to_have_count(4)  # the one that was cut off, and the one that took it up
    expect(page.locator(".chat-run").nth(1)).to_have_attribute("data-state", "interrupted")
    expect(page.locator(".chat-run").nth(2)).to_contain_text("again over")
    shown = page.locator(".chat-message .chat-words").all_inner_texts()
    page.reload()
    expect(log(page).get_by_text("You said: written while nobody answers")).to_be_visible()
    assert page.locator(".chat-message .chat-words").all_inner_texts() == shown


def test_a_send_without_an_answer_is_sent_again_and_taken_once(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/once")
    allow(page, "ERR_FAILED")
    keys: list[str] = []

    def lose_the_first(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) > 1:
            route.continue_()
            return
        route.fetch()  # the server has it, and nobody hears of that
        route.abort()

    page.route("**/v1/sessions/once/messages", lose_the_first)
    with page.expect_response(lambda each: each.request.method == "POST"):  # the first of them has no answer
        say(page, "only once")
    expect(log(page).get_by_text("You said: only once")).to_be_visible()
    expect(page.locator(".chat-sending")).to_have_count(0)
    expect(page.locator(".chat-run")).to_have_count(1)
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_two_browsers_on_one_session_see_the_same(server: Served, open_page: Callable[..., Page]) -> None:
    one, other = open_page(server, "#/chat/shared"), open_page(server, "#/chat/shared")
    expect(other.get_by_text("Nothing has been said here yet")).to_be_visible()
    say(one, held("shared"))
    expect(live(other)).to_contain_text("alpha")
    say(other, "from the other one", "followup")
    expect(message(one, "from the other one")).to_contain_text("waits, place 1")
    let_go(server, "shared")
    for page in (one, other):
        expect(log(page).get_by_text("You said: from the other one")).to_be_visible()
        expect(live(page)).to_have_count(0)
        expect(page.locator(".chat-message")).to_have_count(2)


def test_nothing_that_somebody_says_is_more_than_text(server: Served, open_page: Callable[..., Page]) -> None:
    name = HOSTILE[0]
    page = open_page(server, f"#/chat/{quote(name, safe='')}")
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    for text in HOSTILE:
        say(page, text, "followup")  # else those that come while it is busy are answered together
    expect(log(page).get_by_text(f"You said: {HOSTILE[1]}")).to_be_visible()
    expect(log(page)).to_contain_text("⟨U+202E⟩txt.exe ⟨U+200B⟩<b>bold</b>")
    say(page, "run echo \"<img src=x onerror='window.hit=1'>\"", "followup")
    expect(page.locator(".chat-call").filter(has_text="done")).to_have_count(1)
    page.locator(".chat-call summary").click()
    expect(page.locator(".chat-output")).to_contain_text("<img src=x onerror='window.hit=1'>")
    say(page, f"look\n```html\n{HOSTILE[1]}\n```\nthere", "followup")
    expect(page.locator(".chat-code code")).to_have_text(HOSTILE[1])
    server.send(quote(name, safe=""), "with a file", attachments=[{"name": HOSTILE[0], "url": HOSTILE[3]}])
    expect(page.get_by_role("list", name="Attachments").get_by_text(HOSTILE[0])).to_be_visible()
    check_harmless(page)
    expect(page.locator("#app b, #app iframe, #app object")).to_have_count(0)


def test_all_of_it_can_be_done_with_the_keyboard(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/keys")
    expect(field(page)).to_be_focused()
    page.keyboard.type(held("keys"))
    page.keyboard.press("Enter")
    expect(live(page)).to_be_visible()
    page.keyboard.type("two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    page.keyboard.press("Enter")
    expect(message(page, "two")).to_contain_text("place 1")
    page.keyboard.press("ArrowUp")
    expect(field(page)).to_have_value("two\nlines")
    page.keyboard.press("End")
    page.keyboard.type(", changed")
    page.keyboard.press("Enter")
    expect(message(page, "lines, changed")).to_be_visible()
    expect(field(page)).to_have_value("")
    page.keyboard.press("Escape")
    expect(log(page)).to_be_focused()
    page.keyboard.press("i")
    expect(field(page)).to_be_focused()
    page.keyboard.type("/st")
    options = page.get_by_role("listbox", name="Commands").get_by_role("option")
    expect(options).to_have_count(3)
    page.keyboard.press("Tab")
    expect(field(page)).to_have_value("/status")
    page.keyboard.press("Enter")
    expect(page.locator(".chat-reply")).to_be_visible()
    page.keyboard.type("turn left")
    page.keyboard.press("Control+Enter")
    expect(message(page, "turn left")).to_contain_text("goes into the run at its next step")
    page.keyboard.type("/help")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Commands and keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(field(page)).to_be_focused()
    let_go(server, "keys")


def test_a_draft_is_kept_and_a_new_conversation_begins(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/drafts")
    say(page, "something old")
    expect(log(page).get_by_text("You said: something old")).to_be_visible()
    field(page).fill("half a thought")
    page.reload()
    expect(field(page)).to_have_value("half a thought")
    field(page).fill("")
    page.get_by_role("button", name="New conversation").click()
    page.get_by_role("button", name="Begin anew").click()
    expect(page.get_by_role("separator")).to_have_text("A new conversation")
    say(page, "something new")
    expect(log(page).get_by_text("You said: something new")).to_be_visible()
    page.reload()
    expect(page.get_by_role("separator")).to_have_count(1)
    page.get_by_role("button", name="New session").click()
    dialog = page.get_by_role("dialog", name="New session")
    dialog.get_by_role("button", name="Open").click()
    expect(dialog).to_contain_text("A session needs a name.")
    dialog.get_by_label("Name").fill("a/b")
    dialog.get_by_role("button", name="Open").click()
    expect(dialog).to_contain_text("A name has no slash")
    dialog.get_by_label("Name").fill("a new, one?")
    dialog.get_by_label("First message").fill("Good morning")
    dialog.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("a new, one?")
    expect(log(page).get_by_text("You said: Good morning")).to_be_visible()


def test_a_refused_message_can_be_changed(server: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(server, "#/chat/refused")
    allow(page, "status of 4")
    say(page, "x" * 1_200_000)
    refused = page.locator(".chat-sending")
    expect(refused).to_contain_text("Not sent")
    refused.get_by_role("button", name="Change it").click()
    expect(refused).to_have_count(0)
    expect(field(page)).to_have_value("x" * 1_200_000)
    say(page, "shorter")
    expect(log(page).get_by_text("You said: shorter")).to_be_visible()


def test_a_long_conversation_is_read_in_parts_and_the_page_stays_small(
    server: Served, open_page: Callable[..., Page]
) -> None:
    for number in range(90):
        server.send("long", f"message {number}", mode="followup")
    until(lambda: server.api("GET", "/v1/sessions/long")["state"] == "idle")
    page = open_page(server, "#/chat/long")
    expect(log(page).get_by_text("You said: message 89")).to_be_in_viewport()
    assert page.locator(".chat-block").count() <= 24
    first = page.get_by_text("message 0", exact=True)

    def at_the_beginning() -> bool:  # reading goes on by itself at the top, so a button may go before it is clicked
        log(page).evaluate("node => { node.scrollTop = 0; node.querySelector('.more button')?.click(); }")
        return first.count() > 0

    until(at_the_beginning)
    expect(log(page).get_by_text("message 0", exact=True)).to_have_count(1)
    assert page.locator(".chat-block").count() <= 72
    expect(log(page)).to_have_attribute("data-blocks", "90")
    page.get_by_role("button", name="To the newest").click()
    expect(log(page).get_by_text("You said: message 89")).to_be_in_viewport()


def test_who_may_not_read_is_told_and_a_name_that_cannot_be_as_well(
    server: Served, open_page: Callable[..., Page]
) -> None:
    page = open_page(server, "#/chat/" + "k" * 600)
    allow(page, "status of 4")
    expect(page.get_by_role("alert").first).to_contain_text("session key")
    page.evaluate("location.hash = '#/chat/shorter'")
    expect(page.get_by_text("Nothing has been said here yet")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(server: Served, open_page: Callable[..., Page], *, dark: bool) -> None:
    page = open_page(server, "#/chat/phone", phone=True, dark=dark)
    say(page, "run echo a-long-line-" + "of-words-" * 30)
    expect(page.locator(".chat-call").filter(has_text="done").first).to_be_visible()
    expect(live(page)).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(field(page)).to_be_in_viewport()
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
    check_axe(page)


def test_a_long_conversation_scrolls_in_its_box_and_never_the_page(
    server: Served, open_page: Callable[..., Page]
) -> None:
    for number in range(12):
        server.send("long-page", f"note {number}\n" + "and more\n" * 12, mode="followup")
    until(lambda: server.api("GET", "/v1/sessions/long-page")["waiting"] == 0)
    for phone in (False, True):
        page = open_page(server, "#/chat/long-page", phone=phone)
        expect(log(page).get_by_text("You said: note 11")).to_be_visible()
        box, whole, window = page.evaluate(
            "[document.querySelector('.chat-log').scrollHeight, document.documentElement.scrollHeight, innerHeight]"
        )
        assert box > window == whole


def test_a_message_of_a_session_at_rest_is_there_once_and_its_reason_is_whole(
    server: Served, open_page: Callable[..., Page]
) -> None:
    server.send("at-rest", "run sleep 300")
    until(lambda: server.api("GET", "/v1/ledger?session=at-rest")["items"])
    server.api("POST", "/v1/sessions/at-rest/passivate", {"deadline_ms": 0})
    page = open_page(server, "#/chat/at-rest")
    why = page.locator(".queue-why")
    expect(why).to_contain_text("a message, an answer, the result of a task or a restart brings it back")
    expect(message(page, "run sleep 300")).to_have_count(1)
    expect(message(page, "run sleep 300")).to_contain_text("waits, place 1")
    room, needed = why.evaluate(
        "(node) => [node.clientWidth * node.clientHeight, node.scrollWidth * node.scrollHeight]"
    )
    assert needed <= room
    server.api("POST", "/v1/sessions/at-rest/stop", {})
    expect(message(page, "run sleep 300")).to_contain_text("its run was cut off")
