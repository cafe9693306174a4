"""The chat without a page: past, stream and what was told so far fold to the same, in whatever order they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.gateway.dashboard_files import FOLDER
from tests.unit.dashboard.node import play

pytestmark = pytest.mark.slow

MODEL = "views/chat_model.js"

SCENE = (Path(__file__).parent / "chat_scene.js").read_text(encoding="utf-8")


def scene(script: str, **given: Any) -> Any:
    """A script that has the session above, the model as `m`, and what the page shows as `shape`."""
    base = (FOLDER / MODEL).as_uri()
    return play(MODEL, f"{SCENE}\n{script}", {"base": base, **given})


END = [
    ["run", "t1", "succeeded", ["hi"], ["Hello"], "Hello"],
    ["run", "t2", "succeeded", ["do"], ["in: also", "Done."], "Done."],
    ["message", "m4", "and more", "dropped", "one too many"],
]


def test_all_that_is_told_adds_up() -> None:
    shown = scene(
        "const chat = m.newChat('s');"
        "for (const [type, facts] of EVENTS) m.takeEvent(chat, type, facts);"
        "learn(chat); const run = chat.runs.get('t2'); const call = [...run.rounds[0].calls.values()][0];"
        "return [shape(chat, blocks), call.state, call.output, call.lane, call.durationMs, run.tokens, m.liveRun(chat),"
        " [...chat.messages.values()].map((each) => each.state)];"
    )
    assert shown[0] == END
    assert shown[1:7] == ["ok", "a\nb", "execute", 30, 9, None]
    assert shown[7] == ["ran", "ran", "steered", "dropped"]


def test_wherever_somebody_comes_in_the_end_is_the_same() -> None:
    """The past is read at any moment, and the stream begins at any moment before it; both overlap."""
    wrong = scene(
        """
        const wrong = [];
        for (let begins = 0; begins <= EVENTS.length; begins += 1) {
          for (let reads = begins; reads <= EVENTS.length; reads += 1) {
            const chat = m.newChat("s");
            const tell = (from, to) => EVENTS.slice(from, to).forEach(([type, told]) => m.takeEvent(chat, type, told));
            for (const facts of soFar(begins)) m.takeEvent(chat, "so_far", facts);
            tell(begins, reads);
            const page = pageAt(reads);
            m.takePast(chat, page);
            m.takePending(chat, page.waiting.map((each) => ({ ...each, waited_ms: 0 })));
            tell(reads, EVENTS.length);
            learn(chat);
            const shown = JSON.stringify(shape(chat, blocks));
            if (shown !== JSON.stringify(given.end)) wrong.push([begins, reads, shown]);
          }
        }
        return wrong.slice(0, 3);
        """,
        end=END,
    )
    assert wrong == []


def test_an_old_page_of_the_past_takes_nothing_back() -> None:
    """An answer that was on its way for long says what was true then."""
    wrong = scene(
        """
        const wrong = [];
        for (let reads = 0; reads <= EVENTS.length; reads += 1) {
          const chat = m.newChat("s");
          for (const [type, facts] of EVENTS) m.takeEvent(chat, type, facts);
          learn(chat);
          const page = pageAt(reads);
          m.takePast(chat, page);
          m.takePending(chat, page.waiting.map((each) => ({ ...each, waited_ms: 0 })));
          if (JSON.stringify(shape(chat, blocks)) !== JSON.stringify(given.end)) wrong.push(
            [reads, shape(chat, blocks)]);
        }
        return wrong.slice(0, 3);
        """,
        end=END,
    )
    assert wrong == []


def test_what_comes_twice_changes_nothing() -> None:
    shown = scene(
        "const chat = m.newChat('s');"
        "for (const [type, facts] of EVENTS) { m.takeEvent(chat, type, facts); m.takeEvent(chat, type, facts); }"
        "for (const [type, facts] of EVENTS) m.takeEvent(chat, type, facts);"
        "learn(chat); return shape(chat, blocks);"
    )
    assert shown == END


def test_a_stream_that_was_cut_goes_on_with_what_was_told_so_far() -> None:
    """Cut at any moment: stored events come again, pieces do not; `so_far` or the end stand for them."""
    wrong = scene(
        """
        const wrong = [];
        for (let cut = 0; cut <= EVENTS.length; cut += 1) {
          for (let back = cut; back <= EVENTS.length; back += 1) {
            const chat = m.newChat("s");
            m.takePast(chat, pageAt(0));
            const tell = (list) => list.forEach(([type, facts]) => m.takeEvent(chat, type, facts));
            tell(EVENTS.slice(0, cut));
            m.reopened(chat);
            tell(EVENTS.slice(cut, back).filter(([, facts]) => facts.seq));
            for (const facts of soFar(back)) m.takeEvent(chat, "so_far", facts);
            tell(EVENTS.slice(back));
            learn(chat);
            const shown = JSON.stringify(shape(chat, blocks));
            if (shown !== JSON.stringify(given.end)) wrong.push([cut, back, shown]);
          }
        }
        return wrong.slice(0, 3);
        """,
        end=END,
    )
    assert wrong == []


def test_a_gap_asks_for_all_of_it_again() -> None:
    shown = scene("const chat = m.newChat('s'); m.takeEvent(chat, 'gap', { type: 'gap' }); return chat.gap;")
    assert shown is True


def test_older_pages_come_before_and_conversations_are_divided() -> None:
    shown = scene(
        """
        const page = pageAt(EVENTS.length);
        const newer = { ...page, conversation: 3, before: "13", runs: [{ ...page.runs[1], conversation: 2 }],
          lines: page.lines.filter((line) => line.run_id === "t2"),
          messages: page.messages.filter((each) => each.message_id !== "m1") };
        const older = { ...page,
          before: null, runs: [page.runs[0]], lines: page.lines.filter((line) => line.run_id === "t1"),
          messages: page.messages.filter((each) => each.message_id === "m1") };
        const chat = m.newChat("s");
        m.takePast(chat, newer);
        const before = [chat.before, blocks.blocksOf(chat).map((each) => each.key)];
        m.takePast(chat, older, { isOlder: true });
        return [before, chat.before, blocks.blocksOf(chat).map((each) => each.key)];
        """
    )
    assert shown[0] == ["13", ["t2", "m4", "conversation-3"]]
    assert shown[1:] == [None, ["t1", "conversation-2", "t2", "m4", "conversation-3"]]


def test_the_plan_is_a_checklist_in_the_stream_and_in_what_was_told_so_far() -> None:
    steps = [
        {"id": "1", "content": "look", "status": "completed"},
        {"id": "2", "content": "say", "status": "in_progress"},
    ]
    shown = scene(
        """
        const chat = m.newChat("s");
        m.takeEvent(chat, ...told(1, "r", "planning_start", { prompt: "go" }));
        const first = blocks.statusOf(chat.runs.get("r")).text;
        m.takeEvent(chat, ...told(2, "r", "planning_end", { steps: 2, reason: "" }));
        m.takeEvent(chat, ...told(3, "r", "task_updated", { tasks: given.steps }));
        const late = m.newChat("s");
        m.takeEvent(late, "so_far", { run_id: "r", messages: [], turn: 1, text: "", reasoning: "",
          calls: [], rounds: [],
          plan: { state: "made", reason: "", steps: given.steps } });
        return [first, chat.runs.get("r").plan, late.runs.get("r").plan];
        """,
        steps=steps,
    )
    plan = {"state": "made", "reason": "", "steps": steps}
    assert shown[0] == "makes a plan"
    assert shown[1] == plan
    assert shown[2] == plan


def test_what_became_of_a_message_is_said_in_words() -> None:
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"state": "queued", "position": 3, "reason": "a run goes on"}, ["wait", "waits, place 3", "a run goes on"]),
        ({"state": "parked", "position": 1}, ["wait", "goes into the run at its next step", ""]),
        ({"state": "held", "position": 2}, ["warn", "held back, place 2", ""]),
        ({"state": "ran", "outcome": "succeeded"}, None),
        ({"state": "ran", "outcome": "failed", "reason": "boom"}, ["bad", "its run failed", "boom"]),
        ({"state": "merged", "outcome": "succeeded"}, ["ok", "answered together with others", ""]),
        ({"state": "dropped", "reason": "full"}, ["bad", "dropped", "full"]),
        ({"state": "expired", "reason": "late"}, ["warn", "expired", "late"]),
    ]
    shown = scene(
        "return given.cases.map((facts) => { const end = blocks.becameOf({ reason: '', ...facts });"
        " return end && [end.tone, end.text, end.reason]; });",
        cases=[facts for facts, _ in cases],
    )
    assert shown == [expected for _, expected in cases]


def test_a_reason_has_no_raw_times_and_is_not_told_twice() -> None:
    shown = scene(
        """
        const said = "turn-1 has run for 393175 ms and waits: limit 'api' is closed for 61000 ms";
        const waits = blocks.becameOf({ state: "queued", position: 1, reason: said }).reason;
        const failed = { state: "ran", outcome: "failed", reason: "boom" };
        const places = [null, { reason: "boom" }, { reason: "another" }];
        return [waits, ...places.map((run) => blocks.becameOf(failed, run).reason)];
        """
    )
    assert shown == ["a run goes on and waits: limit 'api' is closed for 1 min 1 s", "boom", "", "boom"]


def test_a_message_that_waits_again_is_shown_once_with_its_first_run() -> None:
    shown = scene(
        """
        const chat = m.newChat("s");
        const tell = (...events) => events.forEach(([type, facts]) => m.takeEvent(chat, type, facts));
        tell(...EVENTS.slice(0, 3), message(10, "m9", "accepted", "queued", { position: 1 }));
        m.takeText(chat, "m1", "hi");
        m.takeText(chat, "m9", "later");
        tell(message(11, "m1", "returned", "queued", { position: 1 }));
        tell(stored(12, "turn.ended", { turn_id: "t1", state: "interrupted", run_ms: 5, reason: "cut" }));
        const block = blocks.blocksOf(chat)[0];
        const before = blocks.versionOf(chat, block);
        tell(message(13, "m1", "held", "held", { position: 1 }));
        return [
          blocks.openersOf(chat, block.run).shown.map((each) => each.id), blocks.waitingOf(chat).map((each) => each.id),
          [...blocks.returnedOf(chat)], before !== blocks.versionOf(chat, block),
        ];
        """
    )
    assert shown == [["m1"], ["m9"], ["m1"], True]


def test_a_growing_text_changes_only_its_last_piece() -> None:
    shown = scene(
        "let pieces = []; for (let n = 0; n < 3000; n += 1) runs.addText(pieces, `word ${n}${n % 9 ? ' ' : '\\n'}`);"
        "return [pieces.length, pieces.join('').length, Math.max(...pieces.map((each) => each.length))];"
    )
    assert shown[0] > 5
    assert shown[1] == sum(len(f"word {n}") + 1 for n in range(3000))
    assert shown[2] < 8_200


def test_many_events_fold_quickly() -> None:
    """Ten thousand runs are known, and ten thousand pieces come: milliseconds, not seconds."""
    spent = scene(
        """
        const chat = m.newChat("s");
        for (let n = 0; n < 10000; n += 1) {
          m.takeEvent(chat, ...stored(2 * n + 1, "turn.started",
            { turn_id: `t${n}`, state: "starting", messages: [`m${n}`], mode: "" }));
          m.takeEvent(chat, ...stored(2 * n + 2, "turn.ended",
            { turn_id: `t${n}`, state: "succeeded", run_ms: 1, answer: "x" }));
        }
        const began = performance.now();
        for (let n = 1; n <= 10000; n += 1) m.takeEvent(chat, ...told(n, "live", "text_delta", { text: "word " }));
        const folded = performance.now() - began;
        blocks.blocksOf(chat);
        return [folded, performance.now() - began - folded, blocks.blocksOf(chat).length];
        """
    )
    assert spent[2] == 10_001
    assert spent[0] < 2_000  # some 10 ms on an idle machine
    assert spent[1] < 2_000


def test_a_page_that_is_open_for_long_lets_the_details_of_old_runs_go() -> None:
    counts = scene(
        """
        const chat = m.newChat("s");
        for (let n = 1; n <= 300; n += 1) {
          const id = `t${n}`;
          m.takeEvent(chat, ...stored(10 * n, "turn.started",
            { turn_id: id, state: "starting", messages: [], mode: "" }));
          m.takeEvent(chat, ...told(3 * n, id, "start", { prompt: "", messages: [] }));
          m.takeEvent(chat, ...told(3 * n + 1, id, "text_delta", { text: `answer ${n}` }));
          m.takeEvent(chat, ...stored(10 * n + 5, "turn.ended",
            { turn_id: id, state: "succeeded", run_ms: 1, answer: `answer ${n}` }));
        }
        const said = (run) => blocks.contentOf(chat, run).map((item) => item.text ?? item.round.text.join(""));
        const runsOf = [...chat.runs.values()];
        return [runsOf.filter((run) => run.rounds.length).length,
          runsOf.every((run, n) => said(run)[0] === `answer ${n + 1}`)];
        """
    )
    assert counts == [100, True]


def test_a_worker_and_a_sub_agent_are_shown_as_they_go_on() -> None:
    shown = scene(
        """
        const chat = m.newChat("s");
        const tell = (...event) => m.takeEvent(chat, ...told(...event));
        const task = { task_id: "k", lane: "execute", command_type: "bash" };
        const child = { task_id: "c", child_session_id: "s~1", agent: "scout" };
        tell(1, "r", "tool_start", { tool_id: "c1", tool_name: "bash", args: {}, lane: "execute", attempt: 1 });
        tell(2, "r", "external_task_pending", { ...task, tool_id: "c1", payload: {}, timeout_ms: 0, attempt: 1 });
        tell(3, "r", "external_task_started", { ...task, worker: "w1", attempt: 1 });
        tell(4, "r", "external_task_progress", { ...task, worker: "w1", text: "half", percent: 50 });
        tell(5, "r", "subagent_start", { ...child, description: "look", tool_id: "c2" });
        tell(6, "r", "subagent_progress", { ...child, event: { type: "tool_start", payload: { tool_name: "grep" } } });
        const run = chat.runs.get("r");
        const call = [...run.rounds[0].calls.values()][0];
        const before = [call.task, run.children.get("c").doing, blocks.statusOf(run).text];
        tell(7, "r", "subagent_end", { ...child, status: "succeeded", output: "x", duration_ms: 9 });
        tell(8, "r", "run_waiting", { reason: "the limit is closed", until_ms: 5 });
        return [...before, run.children.get("c").state, blocks.statusOf(run).reason];
        """
    )
    assert shown[0] == {"id": "k", "state": "started", "worker": "w1", "progress": {"text": "half", "percent": 50}}
    assert shown[1:] == ["grep", "runs bash", "succeeded", "the limit is closed"]


def test_what_a_budget_has_chosen_is_a_note_unless_the_run_says_it_itself() -> None:
    shown = scene(
        """
        const chat = m.newChat("s");
        const tell = (...event) => m.takeEvent(chat, ...told(...event));
        const hit = (kind, message) => ({ resource: "day", kind, consumed: 1, limit: 2, message });
        tell(1, "r", "budget_threshold_hit", hit("soft", null));
        tell(2, "r", "budget_threshold_hit", hit("hard", "model 'small' is asked instead"));
        tell(3, "r", "text_delta", { text: "well" });
        tell(4, "r", "budget_threshold_hit", hit("hard", "the run waits until noon"));
        tell(5, "r", "run_waiting", { reason: "budget 'day' is used up until noon", until_ms: 5 });
        tell(6, "r", "budget_threshold_hit", hit("hard", "the call is denied"));
        const waits = chat.runs.get("r").waiting.reason;
        tell(7, "r", "error", { error: "Budget exhausted", error_kind: "budget_exhausted" });
        return [chat.runs.get("r").notes, waits];
        """
    )
    notes = ["budget day is nearly used up", "model 'small' is asked instead"]
    assert shown == [notes, "budget 'day' is used up until noon"]


def test_code_between_fences_is_told_from_what_is_said() -> None:
    texts = ["plain", "a\n```py\nx = 1\n```\nb", "```\nopen", "~~~\n```\n~~~", "a ``` b", "```` md\n```\n````"]
    found = scene(
        "return given.texts.map((text) => blocks.partsOf(text).map((part) => [part.code, part.language, part.text]));",
        texts=texts,
    )
    assert found == [
        [[False, "", "plain"]],
        [[False, "", "a"], [True, "py", "x = 1"], [False, "", "b"]],
        [[True, "", "open"]],
        [[True, "", "```"]],
        [[False, "", "a ``` b"]],
        [[True, "md", "```"]],
    ]


def test_a_message_that_a_second_run_takes_up_is_shown_once() -> None:
    shown = scene(
        """
        const chat = m.newChat("s");
        m.takeEvent(chat, ...stored(1, "turn.started", { turn_id: "a", state: "starting", messages: ["m1"] }));
        const ended = { turn_id: "a", state: "interrupted", run_ms: 1, answer: null };
        m.takeEvent(chat, ...stored(2, "turn.ended", ended));
        learn(chat);
        blocks.blocksOf(chat);
        const before = blocks.canResume(chat.runs.get("a"));
        m.takeEvent(chat, ...stored(3, "turn.started", { turn_id: "b", state: "starting", messages: ["m1"] }));
        blocks.blocksOf(chat);
        const openers = (id) => blocks.openersOf(chat, chat.runs.get(id));
        const texts = (list) => list.map((each) => each.text);
        return [before, blocks.canResume(chat.runs.get("a")), texts(openers("a").shown), texts(openers("b").shown),
          texts(openers("b").again)];
        """
    )
    assert shown == [True, False, ["hi"], [], ["hi"]]


def test_a_run_whose_message_waits_in_a_session_that_has_left_memory_is_at_rest() -> None:
    shown = scene(
        """
        const chat = m.newChat("s");
        m.takeEvent(chat, ...stored(1, "turn.started", { turn_id: "a", state: "starting", messages: ["m1"] }));
        m.takeEvent(chat, ...stored(2, "turn.ended", { turn_id: "a", state: "interrupted", run_ms: 1, answer: null }));
        learn(chat);
        const seen = (state) => {
          chat.messages.get("m1").state = state;
          blocks.blocksOf(chat);
          const run = chat.runs.get("a");
          return [blocks.statusOf(run).text, blocks.statusOf(run).tone, blocks.canResume(run)];
        };
        return [seen("queued"), seen("ran")];
        """
    )
    assert shown == [["at rest", "wait", False], ["interrupted", "bad", True]]


def test_what_becomes_of_a_message_in_a_second_run_is_shown_by_the_first() -> None:
    """The block of a run is drawn anew only when its version grows, and the first run had ended long since."""
    shown = scene(
        """
        const chat = m.newChat("s");
        m.takeEvent(chat, ...stored(1, "turn.started", { turn_id: "a", state: "starting", messages: ["m1"] }));
        m.takeEvent(chat, ...stored(2, "turn.ended", { turn_id: "a", state: "interrupted", run_ms: 1, answer: null }));
        const running = { message_id: "m1", turn_id: "b", state: "running" };
        m.takeEvent(chat, ...stored(3, "message.started", running));
        m.takeEvent(chat, ...stored(4, "turn.started", { turn_id: "b", state: "starting", messages: ["m1"] }));
        learn(chat);
        blocks.blocksOf(chat);
        const before = chat.runs.get("a").v;
        blocks.blocksOf(chat);
        const still = chat.runs.get("a").v;
        const ran = { message_id: "m1", turn_id: "b", state: "ran", outcome: "succeeded" };
        m.takeEvent(chat, ...stored(5, "message.ended", ran));
        blocks.blocksOf(chat);
        return [still === before, chat.runs.get("a").v > before, chat.messages.get("m1").state];
        """
    )
    assert shown == [True, True, "ran"]


def test_what_laneway_tells_itself_is_no_attachment() -> None:
    facts = {
        "message_id": "m",
        "seq": 1,
        "text": "Go on",
        "attachments": [{"laneway.resume_run": "r"}, {"name": "a.txt"}],
    }
    script = (
        "const chat = m.newChat('s'); m.takeMessage(chat, given); return [...chat.messages.values()][0].attachments"
    )
    assert play(MODEL, script, facts) == [{"name": "a.txt"}]
