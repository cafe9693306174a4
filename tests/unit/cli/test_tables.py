"""What commands print: nothing that strangers write acts on a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.cli.tables import age, ago, clean, console, dumps, line, ordinal, print_rows, table, until

EVIL = "\x1b[2J\x1b]0;title\x07 \x9b31m \x7f \r hidden \u202eevil\u2066"


def is_safe(text: str) -> bool:
    return all(sign == "\n" or (sign.isprintable() or sign == "\u3000") or not _acts(sign) for sign in text)


def _acts(sign: str) -> bool:
    code = ord(sign)
    return code < 0x20 or 0x7F <= code <= 0x9F or sign in "\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e"


def test_escape_sequences_become_visible_signs() -> None:
    assert clean("\x1b[31mred") == "␛[31mred"
    assert clean("\x9b31m") == "\\u009b31m"
    assert clean("a\r\nb\tc") == "a\nb   c"


@given(st.text())
def test_no_text_acts_on_a_terminal(text: str) -> None:
    assert is_safe(clean(text))
    assert is_safe(line(text))
    assert "\n" not in line(text)


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda some: st.lists(some) | st.dictionaries(st.text(), some))
)
def test_json_is_safe_to_show_and_keeps_every_value(value: object) -> None:
    shown = dumps(value)
    assert is_safe(shown)
    assert json.loads(shown) == value


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (-5, "0 ms"),
        (999, "999 ms"),
        (1_234, "1.2 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_600_000 + 300_000, "1 h 5 min"),
        (86_400_000 * 2, "2 d"),
        (86_400_000 * 20 + 3_600_000, "20 d"),
        (None, ""),
    ],
)
def test_durations_are_for_people(ms: int | None, shown: str) -> None:
    assert age(ms) == shown


def test_times_are_told_from_now() -> None:
    assert ago(10_000, 70_000) == "1 min ago"
    assert ago(10_000, 10_500) == "now"
    assert ago(99_000, 1_000) == "now"  # the clocks of two machines differ
    assert until(70_000, 10_000) == "in 1 min"
    assert until(10_000, 70_000) == "due"
    assert (ago(0, 1), until(None, 1)) == ("", "")


@pytest.mark.parametrize(
    ("left_ms", "shown"),
    [
        (30 * 86_400_000 - 40, "in 30 d"),
        (86_400_000 - 40, "in 1 d"),
        (7_200_000 - 40, "in 2 h"),
        (5_400_000 - 40, "in 1 h 30 min"),
        (60_000 - 40, "in 59 s"),
        (40, "in 40 ms"),
        (2 * 86_400_000 + 40, "in 2 d"),
    ],
)
def test_what_is_left_is_told_to_the_nearest(left_ms: int, shown: str) -> None:
    assert until(1_000_000 + left_ms, 1_000_000) == shown


def test_places_are_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 101, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "101st", "112th"
    ]  # fmt: skip


def test_at_80_columns_the_text_gives_way_and_ids_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_rows(("message", "state", "*text"), [("msg-3c7808c3a6-12", "queued", "word " * 100)], empty="none")
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2
    assert all(len(each) <= 80 for each in shown)
    assert "msg-3c7808c3a6-12" in shown[1]
    assert shown[1].rstrip().endswith("…")


def test_at_80_columns_a_reason_goes_on_in_the_next_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    why = "it waits for the run before it, which waits for an approval of somebody else"
    print_rows(("message", "*text", "+why"), [("msg-3c7808c3a6-12", "word " * 100, why)], empty="none")
    shown = capsys.readouterr().out.splitlines()
    assert all(len(each) <= 80 for each in shown)
    assert len(shown) > 2
    assert "".join(shown).count("…") == 1  # the text
    assert shown[-1].rstrip().endswith("else")


def test_in_a_pipe_nothing_is_folded_and_nothing_is_coloured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_rows(("message", "*text"), [("msg-1", "word " * 30), ("msg-2", EVIL)], empty="none")
    shown = capsys.readouterr().out
    assert ("word " * 30).strip() in shown
    assert "\x1b" not in shown
    assert "\x9b" not in shown


def test_markup_in_a_cell_is_text() -> None:
    screen = console()
    with screen.capture() as captured:
        screen.print(table(("*text",), [("[red]x[/red] :smile:",)]))
    assert "[red]x[/red] :smile:" in captured.get()


def test_an_empty_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("a",), [], empty="Nothing waits.")
    assert capsys.readouterr().out == "Nothing waits.\n"
