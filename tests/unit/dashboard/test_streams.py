"""Following a stream without a page: coming back, and where it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.dashboard.node import play

pytestmark = pytest.mark.slow

WORLD = """
  const asked = [];
  const reports = [];
  globalThis.document = Object.assign(new EventTarget(), { hidden: false });
  globalThis.addEventListener = () => {};
  globalThis.removeEventListener = () => {};
  globalThis.reportError = (error) => reports.push(error.message);
  const real = globalThis.setTimeout;
  const waits = [];
  globalThis.setTimeout = (act, ms) => {
    waits.push(ms);
    return real(act, ms > 20000 ? ms : 0); // against silence it waits for real, between two tries not at all
  };
  const answers = given.answers.slice();
  globalThis.fetch = async (url, { headers, signal }) => {
    asked.push([url.pathname + url.search, headers["Last-Event-ID"] ?? null]);
    const next = answers.shift();
    const never = (_, reject) => signal.addEventListener("abort", () => reject(signal.reason));
    if (next === undefined) return new Promise(never);
    if (next === null) throw new TypeError("fetch failed");
    if (typeof next !== "string") return new Response(JSON.stringify(next.body ?? {}), next);
    return new Response(next);
  };
  const told = [];
  const states = [];
  const stream = m.follow("/events", {
    query: given.query ?? {},
    onEvent: (type, facts, id) => {
      if (facts.throws) throw new TypeError("a mistake in a view");
      told.push([type, facts, id]);
    },
    onState: (state, { error, retryMs }) => states.push([state, error?.message ?? null, retryMs !== null]),
  });
  while (asked.length < given.until) await new Promise((resolve) => real(resolve, 1));
  await new Promise((resolve) => real(resolve, 5));
  stream.close();
  return { asked, told, states: states.map(([state, error]) => [state, error]), reports, lastId: stream.lastId };
"""


def followed(answers: list[Any], until: int, **more: Any) -> dict[str, Any]:
    """What a stream asked and told, when it was answered so."""
    result: dict[str, Any] = play("core/streams.js", WORLD, {"answers": answers, "until": until, **more})
    return result


def test_a_stream_goes_on_where_it_was_cut_off() -> None:
    seen = followed(
        [
            "retry: 1000\nid: 5-0\n\n"
            + "".join(f'id: 5-{n}\nevent: e{n}\ndata: {{"n": {n}}}\n\n' for n in (1, 2))
            + "event: half",
            ': beat\n\nid: 5-3\nevent: c\ndata: {"n": 3}\n\nevent: close\ndata: {"reason": "stopping"}\n\n',
        ],
        3,
        query={"only": "x"},
    )
    assert seen["asked"] == [["/v1/events?only=x", None], ["/v1/events?only=x", "5-2"], ["/v1/events?only=x", "5-3"]]
    assert seen["told"] == [["e1", {"n": 1}, "5-1"], ["e2", {"n": 2}, "5-2"], ["c", {"n": 3}, "5-3"]]
    assert [state for state, _ in seen["states"]] == [
        "connecting", "open", "lost", "connecting", "open", "lost", "connecting",
    ]  # fmt: skip
    assert seen["states"][5] == ["lost", "stopping"]
    assert seen["lastId"] == "5-3"


def test_a_server_that_is_away_or_busy_is_asked_again() -> None:
    busy = {"status": 503, "body": {"detail": "not now"}, "headers": {"Retry-After": "1"}}
    seen = followed([None, busy, {"status": 429, "body": {"detail": "too many"}}, 'data: {"n": 1}\n\n'], 5)
    assert seen["told"] == [["message", {"n": 1}, None]]
    assert [error for state, error in seen["states"] if state == "lost"][:3] == [
        "the server does not answer", "not now", "too many",
    ]  # fmt: skip


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_who_is_refused_does_not_ask_again(status: int) -> None:
    seen = followed([{"status": status, "body": {"detail": "no"}}, "never asked for"], 1)
    assert len(seen["asked"]) == 1
    assert seen["states"] == [["connecting", None], ["refused", "no"]]


def test_a_mistake_in_a_view_is_reported_and_ends_no_stream() -> None:
    seen = followed(['id: 1\ndata: {"throws": true}\n\nid: 2\ndata: {"n": 2}\n\n'], 2)
    assert seen["reports"] == ["a mistake in a view"]
    assert seen["told"] == [["message", {"n": 2}, "2"]]
    assert seen["asked"][1] == ["/v1/events", "2"]


TIMERS = """
  const asked = [];
  const states = [];
  const timers = new Map();
  let last = 0;
  globalThis.document = Object.assign(new EventTarget(), { hidden: false });
  globalThis.addEventListener = () => {};
  globalThis.removeEventListener = () => {};
  const real = globalThis.setTimeout;
  globalThis.setTimeout = (act, ms) => { timers.set((last += 1), { act, ms }); return last; };
  globalThis.clearTimeout = (id) => timers.delete(id);
  const fire = (ms) => {
    for (const [id, timer] of [...timers]) {
      if (timer.ms !== ms) continue;
      timers.delete(id);
      timer.act();
    }
  };
  const settle = () => new Promise((resolve) => real(resolve, 5));
  const see = (hidden) => {
    document.hidden = hidden;
    document.dispatchEvent(new Event("visibilitychange"));
  };
  globalThis.fetch = async (url, { headers, signal }) => {
    asked.push(headers["Last-Event-ID"] ?? null);
    const body = new ReadableStream({
      start: (control) => {
        control.enqueue(new TextEncoder().encode(`id: ${asked.length}\\ndata: {}\\n\\n`));
        signal.addEventListener("abort", () => control.error(signal.reason));
      },
    });
    return new Response(body);
  };
  const stream = m.follow("/events", { onEvent: () => {}, onState: (state) => states.push(state) });
  await settle();
"""


def test_a_page_that_nobody_sees_gives_its_stream_back_and_takes_it_up_again() -> None:
    script = (
        TIMERS
        + """
      see(true);
      see(false); // a glance at another tab ends nothing
      await settle();
      const glance = asked.length;
      see(true);
      fire(60000);
      await settle();
      for (const { ms } of [...timers.values()]) if (ms < 60000) fire(ms);
      await settle();
      const away = [asked.length, states.at(-1)];
      see(false);
      await settle();
      stream.close();
      return { glance, away, asked, states };
    """
    )
    seen = play("core/streams.js", script)
    assert (seen["glance"], seen["away"]) == (1, [1, "open"])  # nothing is lost: it was given back
    assert seen["asked"] == [None, "1"]
    assert seen["states"] == ["connecting", "open", "connecting", "open"]


def test_a_connection_without_a_sign_of_life_is_dead() -> None:
    script = (
        TIMERS
        + """
      fire(45000);
      await settle();
      const lost = states.at(-1);
      for (const { ms } of [...timers.values()]) if (ms < 2000) fire(ms);
      await settle();
      stream.close();
      await settle();
      return { lost, asked, states, left: timers.size };
    """
    )
    seen = play("core/streams.js", script)
    assert seen["lost"] == "lost"
    assert seen["asked"] == [None, "1"]
    assert seen["states"] == ["connecting", "open", "lost", "connecting", "open"]
    assert seen["left"] == 0  # a stream that is closed leaves no timer behind
