"""A session as somebody reads it: what is shown of its events, and that nothing in them acts on the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.agent_events import AGENT_EVENTS
from laneway.cli.conversation import HEARD, Conversation
from laneway.cli.link import LOST, OPEN, Told
from laneway.events import EVENT_TYPES


class Paper:
    """A screen that keeps what is shown: finished texts and notes, in order."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.tail = ""

    def text(self, piece: str) -> None:
        self.tail += piece

    def end_text(self) -> None:
        if self.tail:
            self.shown.append(self.tail)
            self.tail = ""

    def drop_text(self) -> None:
        self.tail = ""

    def note(self, text: str, style: str = "dim") -> None:
        self.shown.append(text)


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def talk(paper: Paper) -> Conversation:
    return Conversation(paper)


def live(event: str, **payload: Any) -> Told:
    return Told(event=event, data={"type": event, "payload": payload, "metadata": {"run_id": "turn-1"}})


def stored(event: str, **data: Any) -> Told:
    return Told(event=event, data={"type": event, **data})


def test_everything_that_is_heard_is_really_told() -> None:
    assert set(HEARD) - {LOST, "so_far"} <= set(AGENT_EVENTS) | set(EVENT_TYPES)


def test_an_answer_comes_in_pieces_and_is_shown_once(talk: Conversation, paper: Paper) -> None:
    talk.hear(stored("turn.started", turn_id="turn-1", messages=["msg-1"]))
    assert talk.is_working
    for piece in ("You ", "said: ", "hello"):
        talk.hear(live("text_delta", text=piece))
    talk.hear(stored("turn.ended", turn_id="turn-1", state="succeeded", answer="You said: hello"))
    assert paper.shown == ["You said: hello"]
    assert not talk.is_working


def test_an_answer_whose_pieces_were_missed_is_shown_whole(talk: Conversation, paper: Paper) -> None:
    talk.hear(stored("turn.ended", turn_id="turn-1", state="succeeded", answer="all of it"))
    assert paper.shown == ["all of it"]


def test_after_a_reconnect_the_text_so_far_takes_the_place_of_what_was_there(talk: Conversation, paper: Paper) -> None:
    talk.hear(live("text_delta", text="half a sen"))
    talk.hear(Told(event=LOST, data={"reason": "cut"}))
    talk.hear(stored("so_far", run_id="turn-1", text="half a sentence", calls=[]))
    talk.hear(live("text_delta", text=" more"))
    talk.hear(stored("turn.ended", turn_id="turn-1", state="succeeded", answer="half a sentence more"))
    assert paper.shown[-1] == "half a sentence more"
    assert talk.run_id == ""


def test_text_of_a_model_call_that_is_made_again_is_void(talk: Conversation, paper: Paper) -> None:
    talk.hear(live("text_delta", text="wrong"))
    talk.hear(live("model_retry", attempt=1, delay_ms=500, error="overloaded"))
    talk.hear(live("text_delta", text="right"))
    talk.hear(stored("turn.ended", turn_id="turn-1", state="succeeded", answer="right"))
    assert "wrong" not in "".join(paper.shown)
    assert paper.shown[-1] == "right"


def test_what_a_budget_has_chosen_is_said(talk: Conversation, paper: Paper) -> None:
    facts = {"resource": "house", "consumed": 3, "limit": 4}
    talk.hear(live("budget_threshold_hit", kind="soft", message=None, **facts))
    talk.hear(live("budget_threshold_hit", kind="hard", message="…: model 'small' is asked instead", **facts))
    shown = "\n".join(paper.shown)
    assert "budget house is nearly used up" in shown
    assert "model 'small' is asked instead" in shown


def test_calls_are_shown_with_their_arguments_and_their_end(talk: Conversation, paper: Paper) -> None:
    talk.hear(live("tool_start", tool_id="c1", tool_name="read", args={"path": "a.txt", "limit": 3}))
    talk.hear(live("tool_end", tool_id="c1", tool_name="read", status="ok", tool_output="…", duration_ms=1200))
    talk.hear(live("tool_end", tool_id="c2", tool_name="bash", status="error", tool_output="no such\nfile"))
    talk.hear(live("tool_end", tool_id="c3", tool_name="make", status="background", tool_output="[Goes on …]"))
    talk.hear(
        live("background_end", tool_id="c3", tool_name="make", status="ok", tool_output="made", duration_ms=60000)
    )
    assert paper.shown == [
        '→ read(path="a.txt", limit=3)',
        "✓ read, 1.2 s",
        "✗ bash error: no such file",
        "… make goes on in the background",
        "✓ make, 1 min",
    ]


def test_a_request_for_approval_shows_exactly_what_would_be_done(talk: Conversation, paper: Paper) -> None:
    talk.hear(
        live(
            "confirmation_required",
            approval_id="apr-1",
            tool_name="bash",
            args={"command": "rm -r x"},
            timeout_ms=60_000,
        )
    )
    assert paper.shown == [
        "? bash asks to be allowed within 1 min:",
        '{\n  "command": "rm -r x"\n}',
        "  /approve apr-1   or   /deny apr-1",
    ]
    talk.hear(live("confirmation_received", approval_id="apr-1", tool_name="bash", approved=False, answered_by="ada"))
    assert paper.shown[-1] == "bash was not approved by ada"


def test_a_request_that_waited_before_one_came_is_shown(talk: Conversation, paper: Paper) -> None:
    call = {"tool_name": "bash", "args": {"command": "ls"}, "state": "asked", "approval_id": "apr-1"}
    talk.hear(stored("so_far", run_id="turn-1", text="", calls=[call]))
    assert "  /approve apr-1   or   /deny apr-1" in paper.shown


@pytest.mark.parametrize(
    ("receipt", "shown"),
    [
        ({"disposition": "queued", "position": 1, "reason": "it runs at once"}, []),
        (
            {"disposition": "queued", "position": 2, "reason": "a run goes on"},
            ["waits, 2nd in line (m): a run goes on"],
        ),
        ({"disposition": "parked"}, ["goes into the run at its next step (m)"]),
        ({"disposition": "rejected", "reason": "busy"}, ["rejected: busy"]),
        ({"disposition": "command", "reply": "Mode: steer"}, ["Mode: steer"]),
    ],
)
def test_a_receipt_says_what_becomes_of_a_message(
    talk: Conversation, paper: Paper, receipt: dict[str, Any], shown: list[str]
) -> None:
    talk.sent({"message_id": "m", **receipt})
    assert paper.shown == shown


def test_a_message_whose_run_was_faster_than_its_receipt_does_not_wait(talk: Conversation, paper: Paper) -> None:
    talk.hear(stored("turn.started", turn_id="turn-1", messages=["m"]))
    talk.sent({"message_id": "m", "disposition": "queued", "position": 1, "reason": "it runs at once"})
    assert paper.shown == []


def test_what_waits_is_counted(talk: Conversation) -> None:
    for name in ("a", "b", "c"):
        talk.hear(stored("message.accepted", message_id=name))
    talk.hear(stored("message.injected", message_id="a"))
    talk.hear(stored("turn.started", turn_id="turn-2", messages=["b"]))
    assert talk.waiting == {"c"}
    talk.hear(stored("message.returned", message_id="a"))
    talk.hear(stored("message.ended", message_id="c", state="withdrawn"))
    assert talk.waiting == {"a"}


def test_the_end_of_an_own_message_without_a_run_is_said_and_that_of_others_is_not(
    talk: Conversation, paper: Paper
) -> None:
    talk.sent({"message_id": "mine", "disposition": "queued", "position": 1})
    talk.hear(stored("message.ended", message_id="mine", state="dropped", reason="one too many"))
    talk.hear(stored("message.ended", message_id="theirs", state="dropped", reason="one too many"))
    assert paper.shown == ["your message was dropped: one too many"]


def test_a_failure_is_said_once(talk: Conversation, paper: Paper) -> None:
    talk.hear(stored("turn.started", turn_id="turn-1", messages=[]))
    talk.hear(live("error", error="the model is gone", error_kind="model_unavailable"))
    talk.hear(stored("turn.ended", turn_id="turn-1", state="failed", reason="the model is gone"))
    assert paper.shown == ["the model is gone"]


def test_what_others_send_is_shown_and_what_was_typed_here_is_not(talk: Conversation, paper: Paper) -> None:
    talk.sent({"message_id": "mine", "disposition": "queued", "position": 1})
    talk.hear(live("start", prompt="typed here", messages=["mine"]))
    talk.hear(live("start", prompt="from elsewhere", messages=["theirs"]))
    assert paper.shown == ["> from elsewhere"]


EVIL = "\x1b]0;owned\x07\x9b2J\x1b[31m"


@pytest.mark.parametrize("event", sorted(HEARD))
def test_no_event_can_act_on_the_terminal(talk: Conversation, paper: Paper, event: str) -> None:
    names = (
        "text", "reason", "error", "tool_name", "tool_output", "status", "state", "prompt", "agent", "description",
        "lane", "command_type", "answered_by", "action_taken", "approval_id", "answer", "notice", "message_id",
    )  # fmt: skip
    facts: dict[str, Any] = {**dict.fromkeys(names, EVIL), "args": {EVIL: EVIL}, "messages": [EVIL], "run_id": "r"}
    calls = [{"tool_name": EVIL, "args": {EVIL: EVIL}, "state": "running"}]
    talk.own.add(EVIL)
    talk.hear(Told(event=event, data={**facts, "calls": calls}))
    talk.hear(Told(event=event, data={"payload": facts, "metadata": {"run_id": EVIL}}))
    talk.screen.end_text()
    shown = "".join(paper.shown)
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert "\x07" not in shown


def test_that_the_connection_is_gone_is_said_once_until_it_is_back(talk: Conversation, paper: Paper) -> None:
    for _ in range(3):
        talk.hear(Told(event=LOST, data={"reason": "cut"}))
    assert len(paper.shown) == 1
    talk.hear(Told(event=OPEN))
    talk.hear(Told(event=LOST, data={"reason": "cut"}))
    assert len(paper.shown) == 2
