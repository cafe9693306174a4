"""What the dashboard counts and cuts without a page: times, numbers, texts, routes, events, rows, tokens."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.gateway.dashboard_files import FOLDER
from tests.unit.dashboard.node import play

pytestmark = pytest.mark.slow

DAY = 86_400_000
SECOND = 1_000


def formatted(name: str, cases: list[Any], **more: Any) -> list[Any]:
    """What a function of `core/format.js` makes of each list of arguments."""
    result: list[Any] = play("core/format.js", f"return given.map((args) => m.{name}(...args));", cases, **more)
    return result


def test_a_duration_has_two_units_at_most() -> None:
    cases = {
        0: "0 ms", 1: "1 ms", 999: "999 ms", 1000: "1 s", 1500: "1.5 s", 9_949: "9.9 s", 9_960: "10 s", 59_400: "59 s",
        59_600: "1 min", 61_000: "1 min 1 s", 200_000: "3 min 20 s", 3_599_600: "1 h", 3_600_000: "1 h",
        7_500_000: "2 h 5 min", DAY - 1: "1 d", 4 * DAY + 14_400_000: "4 d 4 h", -1500: "-1.5 s",
    }  # fmt: skip
    assert formatted("duration", [[ms] for ms in cases]) == list(cases.values())
    assert formatted("duration", [[None], []]) == ["–", "–"]


def test_a_moment_is_told_from_now_in_both_directions() -> None:
    now = 1_000 * DAY
    cases = {
        0: "just now", 1_400: "just now", 2_000: "2 s ago", 59_400: "59 s ago", 60_000: "1 min ago",
        90_000: "2 min ago", 3_600_000: "1 h ago", DAY: "1 d ago", 90 * DAY: "90 d ago", -400: "just now",
        -1_000: "in 1 s", -5_000: "in 5 s", -600_000: "in 10 min",
    }  # fmt: skip
    assert formatted("ago", [[now - gone, now] for gone in cases]) == list(cases.values())
    assert formatted("ago", [[None, now]]) == ["–"]


def test_a_clock_names_the_day_only_if_it_is_another_one() -> None:
    now = 20_000 * DAY + 50_000_000
    today, yesterday = 20_000 * DAY + 3_723_004, 19_999 * DAY
    assert formatted("clock", [[today, now], [yesterday, now]]) == ["01:02:03", "2024-10-03 00:00:00"]
    assert formatted("clock", [[today, now]], timezone="Europe/Berlin") == ["03:02:03"]
    assert formatted("moment", [[today], [None]], timezone="America/New_York") == [
        "2024-10-03 21:02:03.004 UTC-04:00",
        "",
    ]


def test_an_axis_is_as_fine_as_its_steps() -> None:
    at = 20_000 * DAY + 3_723_000
    assert formatted("tickTime", [[at, 5_000], [at, 60_000], [at, DAY]]) == ["01:02:03", "01:02", "10-04"]


def test_numbers_sizes_and_amounts_are_short_and_exact_enough() -> None:
    assert formatted("number", [[0], [1234], [1234567.891], [-5], [None]]) == ["0", "1,234", "1,234,567.89", "-5", "–"]
    assert formatted("bytes", [[0], [999], [1400], [25_000], [3_000_000], [None]]) == [
        "0 B", "999 B", "1.4 KB", "25 KB", "3 MB", "–",
    ]  # fmt: skip
    assert formatted("money", [[0], [12.3], [0.0042], [0.00001], [1234.5], [-2], [None]]) == [
        "$0", "$12.30", "$0.0042", "<$0.0001", "$1,234.50", "-$2.00", "–",
    ]  # fmt: skip
    assert formatted("plural", [[1, "job"], [0, "job"], [2, "entry", "entries"], [1000, "job"]]) == [
        "1 job", "0 jobs", "2 entries", "1,000 jobs",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\ttext\nwith lines", "plain\ttext\nwith lines"),
        ("rm \u202egpj.exe", "rm ⟨U+202E⟩gpj.exe"),
        ("a\u200bb\u2066c\ufeff", "a⟨U+200B⟩b⟨U+2066⟩c⟨U+FEFF⟩"),
        ("bell\x07 esc\x1b[31m del\x7f", "bell⟨U+0007⟩ esc⟨U+001B⟩[31m del⟨U+007F⟩"),
        ("tag \U000e0041", "tag ⟨U+E0041⟩"),
        ("family 👨‍👩‍👧 and ❤️", "family 👨‍👩‍👧 and ❤️"),  # joiners that are part of what is seen
        ("می‌خواهم", "می‌خواهم"),
        ("a \u200db", "a ⟨U+200D⟩b"),
        ("carriage\rreturn", "carriage⟨U+000D⟩return"),
    ],
)
def test_what_cannot_be_seen_is_shown_as_a_sign(text: str, seen: str) -> None:
    assert formatted("shown", [[text]]) == [seen]


def test_anything_can_be_shown() -> None:
    assert formatted("shown", [[None], [5], [""]]) == ["", "5", ""]
    assert play("core/format.js", r'return m.shown("half \ud800 of a pair");') == "half ⟨U+D800⟩ of a pair"


def test_the_clock_of_the_server_counts_if_it_is_another_one() -> None:
    script = """
      const off = () => Math.round((m.serverNow() - Date.now()) / 1000);
      const seen = [];
      for (const skew of [500, 60000, 60900, 0, -3600000, -3599000, 1500]) {
        m.learnClock(1e12 + skew, 1e12);
        seen.push(off());
      }
      m.learnClock(NaN);
      return [...seen, off()];
    """
    assert play("core/format.js", script) == [0, 60, 60, 0, -3600, -3600, 0, 0]


# ---- routes ----


def test_an_address_leads_to_a_route_and_back() -> None:
    keys = ["a/b", "ä ö?&#%", "..", "%2F", "a+b", "<img src=x>"]
    script = """
      const both = (key) => [m.href("chat", key), m.href("lanes", { only: key, not: "" })];
      return given.map((key) => both(key).map((each) => m.parseRoute(each)));
    """
    assert play("core/router.js", script, keys) == [
        [{"name": "chat", "params": [key], "query": {}}, {"name": "lanes", "params": [], "query": {"only": key}}]
        for key in keys
    ]


def test_what_is_written_by_hand_is_read_too() -> None:
    hashes = ["", "#", "#/", "#lanes", "#/lanes/", "#/story/message/m-1?tab=calls", "#/chat/100%", "#//x"]
    assert play("core/router.js", "return given.map((each) => m.parseRoute(each));", hashes) == [
        {"name": "overview", "params": [], "query": {}},
        {"name": "overview", "params": [], "query": {}},
        {"name": "overview", "params": [], "query": {}},
        {"name": "lanes", "params": [], "query": {}},
        {"name": "lanes", "params": [], "query": {}},
        {"name": "story", "params": ["message", "m-1"], "query": {"tab": "calls"}},
        {"name": "chat", "params": ["100%"], "query": {}},
        {"name": "x", "params": [], "query": {}},
    ]
    assert play("core/router.js", 'return [m.href("overview"), m.href("story", "run", "r 1")];') == [
        "#/", "#/story/run/r%201",
    ]  # fmt: skip


def test_every_view_has_a_route_a_key_of_its_own_and_a_group() -> None:
    views, groups = play("routes.js", "return [m.VIEWS, m.GROUPS];")
    named = [each for each in views if not each.get("hidden")]
    assert len({each["name"] for each in views}) == len(views) == 19
    assert len({each["key"] for each in named}) == len(named)
    assert {each["group"] for each in views} == set(groups)


# ---- events ----

STREAM = (
    "retry: 1000\nid: 7-0\n\n: beat\n\nid: 7-1\nevent: message.queued\ndata: {\"a\": 1}\n\n"
    "event: close\r\ndata: line one\r\ndata: line two\r\n\r\ndata\n\ndata:tight\n\nid\nunknown: x\n\nevent: only\n\n"
)  # fmt: skip
TOLD = [
    ["message", "", "7-0"],
    ["message.queued", '{"a": 1}', "7-1"],
    ["close", "line one\nline two", None],
    ["message", "", None],
    ["message", "tight", None],
    ["message", "", ""],
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1_000])
def test_events_are_the_same_however_the_text_is_cut(size: int) -> None:
    script = """
      const told = [];
      const reader = m.eventReader((...all) => told.push(all));
      for (let at = 0; at < given.text.length; at += given.size) reader.push(given.text.slice(at, at + given.size));
      return told;
    """
    assert play("core/sse.js", script, {"text": STREAM, "size": size}) == TOLD


def test_waits_between_tries_grow_to_a_bound_and_differ() -> None:
    waits = play("core/sse.js", "return [0, 1, 2, 5, 50].map((tries) => [m.backoff(tries, 0), m.backoff(tries, 1)]);")
    assert waits == [[250, 500], [500, 1000], [1000, 2000], [7500, 15000], [7500, 15000]]


# ---- rows of a long list ----


def test_only_the_rows_that_are_seen_are_elements() -> None:
    cases = [
        {"count": 0, "rowHeight": 40, "top": 0, "height": 400},
        {"count": 5, "rowHeight": 40, "top": 0, "height": 400},
        {"count": 10_000, "rowHeight": 40, "top": 0, "height": 400},
        {"count": 10_000, "rowHeight": 40, "top": 200_010, "height": 400},
        {"count": 10_000, "rowHeight": 40, "top": 399_600, "height": 400},
        {"count": 10, "rowHeight": 40, "top": 90_000, "height": 400},  # the list has become shorter
        {"count": 10, "rowHeight": 40, "top": -50, "height": 0},
    ]
    assert play("ui/window.js", "return given.map((each) => m.rowsIn(each));", cases) == [
        {"from": 0, "to": 0},
        {"from": 0, "to": 5},
        {"from": 0, "to": 17},
        {"from": 4994, "to": 5017},
        {"from": 9984, "to": 10_000},
        {"from": 3, "to": 10},
        {"from": 0, "to": 7},
    ]


def test_keys_lead_from_row_to_row_and_stop_at_the_ends() -> None:
    script = "return given.map(([key, index, count]) => m.rowAfter(key, index, count, 10));"
    cases = [
        ["ArrowDown", 0, 3], ["ArrowDown", 2, 3], ["ArrowUp", 0, 3], ["End", 0, 3], ["Home", 2, 3], ["PageDown", 1, 30],
        ["PageUp", 4, 30], ["a", 0, 3], ["ArrowDown", 0, 0],
    ]  # fmt: skip
    assert play("ui/window.js", script, cases) == [1, 2, 0, 2, 0, 11, 0, None, None]


def test_a_row_is_scrolled_to_only_if_it_is_not_seen_whole() -> None:
    script = "return given.map(([index, top]) => m.scrollFor({ index, rowHeight: 40, top, height: 400 }));"
    assert play("ui/window.js", script, [[0, 0], [9, 0], [10, 0], [3, 200], [5, 100]]) == [0, 0, 40, 120, 100]


# ---- tokens ----


def test_a_token_in_the_address_is_taken_out_of_it() -> None:
    hashes = [
        "#token=lw_1",
        "#token=lw_1&to=/lanes",
        "#to=/chat/a%2520b&token=x",
        "#token=",
        "#/lanes?token=x",
        "",
        "#/",
    ]
    script = "return given.map((each) => m.tokenInHash(each));"
    assert play("core/access.js", script, hashes) == [
        {"token": "lw_1", "hash": "#/"},
        {"token": "lw_1", "hash": "#/lanes"},
        {"token": "x", "hash": "#/chat/a%20b"},
        {"token": "", "hash": "#/"},
        None,
        None,
        None,
    ]


def test_a_right_includes_what_is_less() -> None:
    cases = [
        [["admin"], "operate"],
        [["admin"], "worker"],
        [["operate"], "chat"],
        [["chat"], "operate"],
        [None, "chat"],
    ]
    assert play("core/access.js", "return given.map(([has, needs]) => m.includes(has, needs));", cases) == [
        True, False, True, False, False,
    ]  # fmt: skip


# ---- asking ----


def test_an_address_has_its_query_and_leaves_out_what_is_not_said() -> None:
    script = """return [
      m.addressOf("/lanes").pathname,
      m.addressOf("/a", { x: 1, y: "", z: null, no: undefined, off: false, s: ["a b", "&"] }).href,
    ];"""
    assert play("core/api.js", script) == ["/v1/lanes", "http://localhost/v1/a?x=1&off=false&s=a+b&s=%26"]


def test_what_cannot_stand_in_an_address_is_refused_and_asks_for_nothing_else() -> None:
    script = """
      globalThis.fetch = async (url) => { throw new Error(`asked for ${url}`); };
      const refused = [];
      for (const name of ["..", "."]) {
        await m.ask(`/sessions/${encodeURIComponent(name)}/messages`).catch((error) => refused.push(error.status));
      }
      const others = [`/sessions/${encodeURIComponent("%2e%2e")}/events`, "/a...b"];
      return [refused, ...others.map((path) => m.addressOf(path).pathname)];"""
    assert play("core/api.js", script) == [[400, 400], "/v1/sessions/%252e%252e/events", "/v1/a...b"]


def test_a_token_that_cannot_be_sent_is_none_and_no_server_that_is_away() -> None:
    script = """
      globalThis.fetch = async (url, given) => { new Headers(given.headers); };
      const error = await m.ask("/about", { as: "lw_…" }).catch((each) => each);
      return [error.name, error.status, m.reach.value.ok];"""
    assert play("core/api.js", script) == ["Refused", 401, True]


ASKED = """
  const asked = [];
  const answers = [];
  globalThis.fetch = async (url, given) => {
    asked.push([given.method, url.pathname + url.search, given.headers, given.body ?? null]);
    const next = answers.shift();
    if (next instanceof Error) throw next;
    const [status, body, headers = {}] = next;
    const text = typeof body === "string" ? body : JSON.stringify(body);
    return new Response(status === 204 ? null : text, { status, headers });
  };
  const told = async (...all) => {
    try {
      return await m.ask(...all);
    } catch (error) {
      const { name, message, status, code, hint, retryAfterMs } = error;
      return { name, message, status, code, hint, retryAfterMs };
    }
  };
"""


def test_a_question_says_who_asks_and_where_and_an_answer_is_json() -> None:
    script = (
        ASKED
        + """
      m.place.value = { workspace: "room", tenant: "acme" };
      answers.push([200, { items: [] }], [204], [202, { ok: true }], [200, {}]);
      const found = [
        await told("/lanes", { query: { limit: 5 } }), await told("/x", { method: "DELETE" }),
        await told("/messages", { body: { text: "hi" }, key: "k" }), await told("/all", { reads: "*", as: "lw_x" }),
      ];
      return [found, asked];
    """
    )
    found, asked = play("core/api.js", script)
    place = {"Laneway-Workspace": "room", "Laneway-Tenant": "acme"}
    assert found == [{"items": []}, None, {"ok": True}, {}]
    assert asked == [
        ["GET", "/v1/lanes?limit=5", place, None],
        ["DELETE", "/v1/x", place, None],
        [
            "POST",
            "/v1/messages",
            {**place, "Idempotency-Key": "k", "Content-Type": "application/json"},
            '{"text":"hi"}',
        ],
        ["GET", "/v1/all", {**place, "Laneway-Workspace": "*", "Authorization": "Bearer lw_x"}, None],
    ]


def test_a_refusal_says_why_and_silence_is_another_thing() -> None:
    script = (
        ASKED
        + """
      answers.push(
        [409, { detail: "too late", hint: "wait", code: "conflict" }, { "Retry-After": "3" }],
        [502, "<html>a proxy</html>"], new TypeError("fetch failed"), [200, { back: 1 }],
      );
      const found = [await told("/a"), await told("/a"), await told("/a")];
      const away = [m.reach.value.ok, m.generation.value];
      found.push(await told("/a"));
      return [found, away, [m.reach.value.ok, m.generation.value]];
    """
    )
    found, away, back = play("core/api.js", script)
    assert found[0] == {
        "name": "Refused", "message": "too late", "status": 409, "code": "conflict", "hint": "wait",
        "retryAfterMs": 3000,
    }  # fmt: skip
    assert (found[1]["name"], found[1]["message"]) == ("Refused", "the server answered with status 502")
    assert (found[2]["name"], found[2]["message"]) == ("Offline", "the server does not answer")
    assert found[3] == {"back": 1}
    assert (away, back) == ([False, 0], [True, 1])  # everything is read anew once it is back


def test_a_change_without_a_right_asks_for_a_token_and_is_sent_once_more() -> None:
    script = (
        ASKED
        + """
      const access = await import(given);
      const asks = [];
      access.wanted.subscribe((want) => want && asks.push([want.scope, want]));
      const no = [401, { detail: "this needs a token with the scope 'operate'" }];
      answers.push(no, [200, { done: 1 }], no, no);
      const first = told("/lanes/main", { method: "PATCH", body: {} });
      while (!asks.length) await new Promise((resolve) => setTimeout(resolve, 1));
      access.useToken(" lw_new ");
      asks[0][1].done(true);
      const results = [await first];
      const second = told("/lanes/main", { method: "PATCH", body: {} });
      while (asks.length < 2) await new Promise((resolve) => setTimeout(resolve, 1));
      asks[1][1].done(false);
      results.push((await second).status, (await told("/lanes")).status);
      const who = asked.map(([method, , headers]) => [method, headers.Authorization ?? ""]);
      return [results, asks.map(([scope]) => scope), who];
    """
    )
    results, scopes, asked = play("core/api.js", script, (FOLDER / "core" / "access.js").as_uri())
    assert results == [{"done": 1}, 401, 401]
    assert scopes == ["operate", "operate"]  # a question that only reads asks nobody
    assert asked == [
        ["PATCH", ""], ["PATCH", "Bearer lw_new"], ["PATCH", "Bearer lw_new"], ["GET", "Bearer lw_new"],
    ]  # fmt: skip


def test_labels_of_a_session_are_named_and_only_those_that_are_set() -> None:
    cases = [{"correlation_id": "r1", "principal": "user:42", "other": "x"}, {}, None, {"tenant_id": ""}]
    assert play("core/format.js", "return given.map(m.labelsOf)", cases) == [
        [["Principal", "user:42"], ["Correlation", "r1"]],
        [],
        [],
        [],
    ]


def test_a_long_text_ends_behind_a_word_with_a_sign_that_there_is_more() -> None:
    cases = {
        ("as it is", 20): "as it is",
        ("the conversation was cut here", 20): "the conversation…",
        ("line one\nline two goes on", 18): "line one\nline two…",
        ("x" * 30, 10): "xxxxxxxxx…",
        (None, 5): "",
    }
    assert formatted("cut", [list(each) for each in cases]) == list(cases.values())
