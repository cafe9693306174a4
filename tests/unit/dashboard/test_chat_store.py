"""What a chat keeps of messages that are on their way: none is lost, and none goes to somebody else."""

from __future__ import annotations

from laneway.gateway.dashboard_files import FOLDER
from tests.unit.dashboard.node import play

TAB = """
  const kept = new Map();
  globalThis.sessionStorage = {
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, text) => kept.set(name, text),
    removeItem: (name) => kept.delete(name),
  };
  globalThis.cancelAnimationFrame = () => {};
  const { keep } = await import(new URL("views/chat_keep.js", given));
  const { about, place } = await import(new URL("core/api.js", given));
"""


def root() -> str:
    """Where the modules are."""
    return f"{FOLDER.as_uri()}/"


def test_what_is_on_its_way_to_one_tenant_never_goes_to_another() -> None:
    script = f"""{TAB}
      about.value = {{ tenant: "default" }};
      place.value = {{ workspace: "", tenant: "acme" }};
      keep("outbox", "s1").write("for acme");
      place.value = {{ workspace: "", tenant: "" }};  // as after a reload of the page
      const own = keep("outbox", "s1").read();
      about.value = {{ tenant: "other" }};  // as with another token
      const others = keep("outbox", "s1").read();
      about.value = {{ tenant: "acme" }};
      return [own, others, keep("outbox", "s1").read()];"""
    assert play("views/chat_keep.js", script, root()) == ["", "", "for acme"]


def test_a_chat_that_was_left_does_not_take_away_what_its_successor_keeps() -> None:
    script = f"""{TAB}
      const open = [];
      globalThis.fetch = () => new Promise((resolve, reject) => open.push({{ resolve, reject }}));
      const texts = () => JSON.parse(keep("outbox", "s1").read() || "[]").map((each) => each.text);
      const settled = () => new Promise((resolve) => setTimeout(resolve));
      const left = new m.ChatStore("s1");
      left.send("one");
      left.end();
      const next = new m.ChatStore("s1");
      next.send("two");
      const both = texts();
      open[0].reject(new TypeError("nobody answers"));
      await settled();
      const lost = texts();
      const late = new m.ChatStore("s1");
      late.pump();
      late.end();
      next.send("three");
      const taken = {{ message_id: "m1", disposition: "queued", position: 1, reason: "", reply: null, sent: null }};
      open[2].resolve(new Response(JSON.stringify(taken)));
      await settled();
      await settled();
      return [both, lost, texts()];"""
    assert play("views/chat_store.js", script, root()) == [["one", "two"], ["one", "two"], ["two", "three"]]


def test_a_message_that_is_seen_before_its_answer_came_is_shown_once() -> None:
    script = f"""{TAB}
      globalThis.fetch = () => new Promise(() => {{}});
      const {{ takeMessage, takePending }} = await import(new URL("views/chat_model.js", given));
      const store = new m.ChatStore("s1");
      for (const text of ["one", "two", "three"]) store.send(text);
      const [one, two] = store.outbox.value;
      const facts = (send, id) => ({{
        message_id: id, text: send.text, kind: "user", disposition: "queued", idempotency_key: send.key,
      }});
      const shown = () => store.unseen().map((each) => each.text);
      const before = shown();
      takePending(store.chat, [facts(one, "m1"), {{ ...facts(one, "m0"), idempotency_key: null }}]);
      takeMessage(store.chat, facts(two, "m2"));
      const after = shown();
      store.setSend(two.key, {{ state: "refused" }});
      return [before, after, shown(), store.outbox.value.length];"""
    assert play("views/chat_store.js", script, root()) == [["one", "two", "three"], ["three"], ["two", "three"], 3]
