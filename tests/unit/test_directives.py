"""Commands in chat: what is one, what it says, and what is told when it is wrong."""

from __future__ import annotations

from typing import get_args

import pytest

from laneway.kernel.directives import (
    Approve,
    Compact,
    Deny,
    Directive,
    Help,
    Inline,
    Invalid,
    New,
    QueueCancel,
    QueueClear,
    QueueList,
    QueueReset,
    QueueSet,
    QueueShow,
    SendAs,
    Status,
    Stop,
    parse,
    required_right,
)
from laneway.mail import Drop, Mode, QueueOptions
from laneway.records import DURATION_MAX_MS


def options_of(text: str) -> QueueOptions:
    found = parse(text)
    assert isinstance(found, QueueSet), found
    return found.options


def reply_to(text: str) -> str:
    found = parse(text)
    assert isinstance(found, Invalid), found
    return found.reply


# ---- what is a command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "hello",
        "please /queue collect",
        "hi\n/stop",
        "/foo",
        "/queues",
        "/queue-collect",
        "/queue/x",
        "//queue",
        "/ queue",
        "/",
        "/home/ada/queue",
        "\u200b/queue",
        "/q",
        "\uff0fqueue",
        "/queue@",
        "/status?",
    ],
)
def test_a_message_that_does_not_begin_with_a_known_command_is_for_the_agent(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("text", ["/queue", "/QUEUE", " \n/queue\t", "/queue@laneway_bot", "/Queue@Some.Bot-1 "])
def test_case_white_space_and_the_name_of_the_bot_do_not_matter(text: str) -> None:
    assert parse(text) == QueueShow()


@pytest.mark.parametrize(
    "text", ["stop", " STOP ", "Stop.", "stop!!!", "stop…", "stop ?", "/stop", "/STOP!", "/stop@bot"]
)
def test_stop_is_understood_in_a_hurry(text: str) -> None:
    assert parse(text) == Stop()


@pytest.mark.parametrize("text", ["stop the car", "stops", "don't stop", "stop, please", "non-stop", "!stop", "stop/"])
def test_a_sentence_with_stop_in_it_is_a_message(text: str) -> None:
    assert parse(text) is None


def test_a_stop_with_words_after_it_stops() -> None:
    assert parse("/stop all of it now") == Stop()


# ---- /queue: settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "/queue collect debounce:2s cap:25 drop:old",
        "/queue drop=OLD cap=25 DEBOUNCE=2000 Collect",
        "/queue\ncap:25\ncoalesce\tdrop:oldest debounce:2000ms",
        "/queue mode:collect debounce:2000.4 cap:025 drop:old",
    ],
)
def test_options_come_in_any_order_case_and_sign(text: str) -> None:
    assert options_of(text) == QueueOptions(mode=Mode.COLLECT, debounce_ms=2000, cap=25, drop=Drop.OLD)


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("collect", Mode.COLLECT),
        ("STEER", Mode.STEER),
        ("queue", Mode.STEER),
        ("steering", Mode.STEER),
        ("followups", Mode.FOLLOWUP),
        ("Follow-Up", Mode.FOLLOWUP),
        ("steer+backlog", Mode.STEER_BACKLOG),
        ("steer_backlog", Mode.STEER_BACKLOG),
        ("steer-backlog", Mode.STEER_BACKLOG),
        ("interrupts", Mode.INTERRUPT),
        ("abort", Mode.INTERRUPT),
        ("reject", Mode.REJECT),
        ("rollback", Mode.ROLLBACK),
    ],
)
def test_modes_have_their_usual_names(word: str, mode: Mode) -> None:
    assert options_of(f"/queue {word}") == QueueOptions(mode=mode)


@pytest.mark.parametrize(
    ("written", "duration_ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("1500", 1500),
        ("1500ms", 1500),
        ("2s", 2000),
        ("2S", 2000),
        ("1.5s", 1500),
        (".5m", 30_000),
        ("1.m", 60_000),
        ("0.25h", 900_000),
        ("1d", 86_400_000),
        ("3650d", DURATION_MAX_MS),
        ("0.0004s", 0),
        ("0.0005s", 1),
        ("0.1s", 100),
        ("000000000001s", 1000),
    ],
)
def test_a_duration_is_a_number_with_a_unit(written: str, duration_ms: int) -> None:
    assert options_of(f"/queue debounce:{written}") == QueueOptions(debounce_ms=duration_ms)


@pytest.mark.parametrize(
    "written",
    ["", ".", "s", "-1s", "+1s", "1e3", "1,5s", "2sec", "nan", "inf", "٣s", "3651d", "9" * 16, "1.5.5"],
)
def test_anything_else_is_no_duration(written: str) -> None:
    reply = reply_to(f"/queue debounce:{written}")
    assert "debounce is a time from 0 to 3,650d" in reply


@pytest.mark.parametrize("written", ["1", "25", "100000"])
def test_a_cap_is_a_whole_number(written: str) -> None:
    assert options_of(f"/queue cap:{written}") == QueueOptions(cap=int(written))


@pytest.mark.parametrize("written", ["", "0", "-1", "100001", "2.0", "1e3", "1_000", "\u0661", "x", "9" * 5000])
def test_anything_else_is_no_cap(written: str) -> None:
    assert "cap is a whole number from 1 to 100,000" in reply_to(f"/queue cap:{written}")


@pytest.mark.parametrize(("written", "drop"), [("old", Drop.OLD), ("newest", Drop.NEW), ("Summary", Drop.SUMMARIZE)])
def test_a_drop_policy_has_its_usual_names(written: str, drop: Drop) -> None:
    assert options_of(f"/queue drop:{written}") == QueueOptions(drop=drop)


# ---- /queue: the other words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "directive"),
    [
        ("/queue default", QueueReset()),
        ("/queue RESET", QueueReset()),
        ("/queue clear ", QueueClear()),
        ("/queue list", QueueList()),
        ("/queue cancel m-1", QueueCancel(message_id="m-1")),
        ("/queue Cancel M-1", QueueCancel(message_id="M-1")),
    ],
)
def test_queue_has_words_that_stand_alone(text: str, directive: Directive) -> None:
    assert parse(text) == directive


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/queue reset now", "'now': /queue reset stands alone"),
        ("/queue clear the table", "'the table': /queue clear stands alone"),
        ("/queue list cap:3", "'cap:3': /queue list stands alone"),
        ("/queue collect reset", "'reset': /queue reset stands alone"),
        ("/queue cap:3 clear", "'clear': /queue clear stands alone"),
        ("/queue cancel", "needs the id"),
        ("/queue cancel a b", "'b': /queue cancel takes one id"),
    ],
)
def test_a_word_that_stands_alone_takes_nothing_else(text: str, says: str) -> None:
    assert says in reply_to(text)


# ---- /queue inside a message -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "prompt"),
    [
        ("/queue steer use  YAML\n\nplease ", QueueOptions(mode=Mode.STEER), "use  YAML\n\nplease "),
        ("/queue cap:3 steer\n/queue", QueueOptions(mode=Mode.STEER, cap=3), "/queue"),
        ("/queue collect https://x.org cap:0", QueueOptions(mode=Mode.COLLECT), "https://x.org cap:0"),
        ("/queue collect node:18 is old", QueueOptions(mode=Mode.COLLECT), "node:18 is old"),
        ("/queue collect clear the table", QueueOptions(mode=Mode.COLLECT), "clear the table"),
        ("/queue followup, then", None, ""),
        ("/queue interrupt do: this", QueueOptions(mode=Mode.INTERRUPT), "do: this"),
    ],
)
def test_the_first_word_that_is_no_option_begins_the_prompt(
    text: str, options: QueueOptions | None, prompt: str
) -> None:
    found = parse(text)
    if options is None:
        assert isinstance(found, Invalid)
    else:
        assert found == Inline(options=options, text=prompt)


@pytest.mark.parametrize("text", ["/queue hello", "/queue up three songs", "/queue colect", "/queue collect, please"])
def test_nothing_valid_before_the_prompt_is_invalid(text: str) -> None:
    reply = reply_to(text)
    assert "is no mode and no option" in reply
    assert "collect, followup, steer, steer-backlog, interrupt, reject, rollback" in reply
    assert "Nothing was changed" in reply


def test_a_misspelt_mode_gets_a_guess() -> None:
    assert "did you mean collect" in reply_to("/queue colect")
    assert "did you mean debounce" in reply_to("/queue collect debouce:2s")


# ---- what is wrong is named, all of it, and nothing is applied -------------------------------------------------


def test_one_reply_names_every_wrong_part() -> None:
    reply = reply_to("/queue steer debounce:soon cap:0 drop:all")
    assert reply.startswith("Nothing was changed.")
    for part in ("'debounce:soon': debounce is", "'cap:0': cap is", "'drop:all': drop is one of old, new, summarize"):
        assert part in reply
    assert "steer'" not in reply


def test_wrong_parts_after_an_unknown_word_are_named_too() -> None:
    reply = reply_to("/queue fast cap:0 please drop:x")
    assert "'fast' is no mode" in reply
    assert "'cap:0'" in reply
    assert "'drop:x'" in reply


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/queue collect steer", "'steer': mode is given twice"),
        ("/queue collect collect", "'collect': mode is given twice"),
        ("/queue collect mode=steer", "'mode=steer': mode is given twice"),
        ("/queue cap:2 cap:2", "'cap:2': cap is given twice"),
        ("/queue debounce:1 debounce_ms:2", "'debounce_ms:2': debounce is given twice"),
        ("/queue drop:old drop=new hello", "'drop=new': drop is given twice"),
    ],
)
def test_what_is_given_twice_is_named(text: str, says: str) -> None:
    assert says in reply_to(text)


def test_a_wrong_option_before_a_prompt_is_invalid_as_well() -> None:
    assert "'cap:0'" in reply_to("/queue collect cap:0 hello")


def test_a_reply_is_short_and_on_one_line_whatever_was_typed() -> None:
    for text in (
        "/queue " + "cap:0 " * 10_000,
        "/queue " + "x" * 100_000,
        "/queue drop:\x00\x1b[31m\u202e" + "y" * 999,
    ):
        reply = reply_to(text)
        assert len(reply) < 1500
        assert reply.isprintable()


# ---- the other commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "directive"),
    [
        ("/steer look here\nfirst ", SendAs(mode=Mode.STEER, text="look here\nfirst ")),
        ("/Followup and then", SendAs(mode=Mode.FOLLOWUP, text="and then")),
        ("/steer collect", SendAs(mode=Mode.STEER, text="collect")),
        ("/new", New()),
        ("/new hello there", New(text="hello there")),
        ("/compact", Compact()),
        ("/help", Help()),
        ("/HELP ", Help()),
        ("/help me with this", None),
        ("/compact keep the plan ", Compact(text="keep the plan")),
        ("/status", Status()),
        ("/approve a1", Approve(approval_id="a1")),
        ("/deny a1", Deny(approval_id="a1")),
        ("/deny a1 far too risky ", Deny(approval_id="a1", reason="far too risky")),
    ],
)
def test_the_other_commands_carry_what_comes_after_them(text: str, directive: Directive) -> None:
    assert parse(text) == directive


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/steer", "/steer needs a text"),
        ("/followup \n", "/followup needs a text"),
        ("/approve", "/approve needs the id"),
        ("/approve a1 b2", "'b2': /approve takes one id and nothing else"),
        ("/deny", "/deny needs the id"),
        ("/status now", "'now': /status takes nothing"),
    ],
)
def test_a_command_that_lacks_something_says_so(text: str, says: str) -> None:
    assert says in reply_to(text)


# ---- rights ---------------------------------------------------------------------------------------------------

RIGHTS: list[tuple[Directive, str | None]] = [
    (QueueShow(), None),
    (QueueSet(options=QueueOptions(cap=1)), "queue"),
    (QueueReset(), "queue"),
    (QueueClear(), "queue"),
    (QueueList(), "queue"),
    (QueueCancel(message_id="m"), "queue"),
    (Inline(options=QueueOptions(cap=1), text="x"), "queue"),
    (SendAs(mode=Mode.STEER, text="x"), "queue"),
    (Stop(), "stop"),
    (New(), "stop"),
    (Compact(), "stop"),
    (Help(), None),
    (Status(), None),
    (Approve(approval_id="a"), "approve"),
    (Deny(approval_id="a"), "approve"),
    (Invalid(reply="no"), None),
]


@pytest.mark.parametrize(("directive", "right"), RIGHTS)
def test_each_command_needs_its_right(directive: Directive, right: str | None) -> None:
    assert required_right(directive) == right


def test_every_command_has_been_asked_for_its_right() -> None:
    assert {type(directive) for directive, _ in RIGHTS} == set(get_args(Directive))
