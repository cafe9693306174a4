"""Laws of what Laneway writes: prompts can be read back whatever people write, and no cut splits a grapheme."""

from __future__ import annotations

import re

import regex
from hypothesis import given
from hypothesis import strategies as st

from laneway.kernel.texts import (
    COLLECT_TITLE,
    OVERFLOW_TITLE,
    SKIPPED,
    SYSTEM_TITLE,
    child_note,
    clip,
    collected_prompt,
    list_reply,
    neutralise,
    overflow_prompt,
    safe_name,
    summary_line,
)
from laneway.mail import Message, MessageKind, MessageState, PendingMessage, Sender
from tests.property.worlds import effort

BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
MARKERS = [COLLECT_TITLE, OVERFLOW_TITLE, SKIPPED, SYSTEM_TITLE, "---", "Queued #1", "Queued #2 (from root)", "> "]
UNSEEN = ["", " ", "\t", "\u200b", "\u2060", "\ufeff", "\u00ad", "\u202e", "\x00", "\u0301", "\u3000", "\u034f"]
PIECES = st.one_of(
    st.sampled_from(MARKERS), st.sampled_from(BREAKS), st.sampled_from(UNSEEN), st.text(max_size=8), st.just("\n")
)
TEXTS = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=60))
EMOJI = st.sampled_from(["\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "e\u0301", "\u1112\u1161\u11ab", "a "])
LONG = st.lists(st.one_of(EMOJI, st.text(max_size=3)), min_size=50, max_size=250).map("".join)
SENDERS = st.one_of(
    st.none(), st.builds(Sender, id=TEXTS.filter(lambda text: bool(text.strip())), name=st.one_of(st.none(), TEXTS))
)
MESSAGES = st.lists(
    st.builds(
        Message,
        id=st.just("m"),
        session_key=st.just("s"),
        text=TEXTS,
        sender=SENDERS,
        kind=st.sampled_from([MessageKind.USER, MessageKind.USER, MessageKind.SYSTEM, MessageKind.HEARTBEAT]),
    ),
    min_size=2,
    max_size=5,
)


@st.composite
def disguised(draw: st.DrawFn) -> str:
    """A marker with things in between that nobody sees, in any case."""
    marker = draw(st.sampled_from([*MARKERS[:4], "Queued #7"]))
    unseen = [draw(st.sampled_from(UNSEEN)) for _ in marker]
    cased = marker.upper() if draw(st.booleans()) else marker.lower()
    wide = [chr(ord(char) + 0xFEE0) if "!" <= char <= "~" and draw(st.booleans()) else char for char in cased]
    return "".join(char + space for char, space in zip(wide, unseen, strict=True))


# ---- prompts can be read back -----------------------------------------------------------------------------------


@effort(40)
@given(messages=MESSAGES)
def test_a_collected_prompt_has_as_many_blocks_as_messages(messages: list[Message]) -> None:
    lines = collected_prompt(messages).splitlines()
    headers = [line for line in lines if re.match(r"\s*queued\s*#", line, re.IGNORECASE)]
    assert lines[0] == COLLECT_TITLE
    assert lines.count(COLLECT_TITLE) == 1
    assert [line.strip() for line in lines].count("---") == len(messages)
    assert len(headers) == len(messages)
    for number, header in enumerate(headers, 1):
        assert re.fullmatch(rf"Queued #{number}( \(from [^()\[\]]+\))?", header)
        assert lines[lines.index(header) - 1] == "---"
        assert lines[lines.index(header) - 2] == ""


@effort(40)
@given(messages=MESSAGES)
def test_the_texts_can_be_read_back_from_a_collected_prompt(messages: list[Message]) -> None:
    blocks = re.split(r"\n\n---\nQueued #[0-9]+[^\n]*\n", collected_prompt(messages))
    assert blocks[0] == COLLECT_TITLE
    users = [number for number, message in enumerate(messages, 1) if message.kind is not MessageKind.SYSTEM]
    assert len(blocks) == len(messages) + 1
    for number in users:
        assert blocks[number] == neutralise(messages[number - 1].text, collected=True)


@given(lines=st.lists(TEXTS, max_size=6), more=st.integers(0, 5), cap=st.integers(1, 6))
def test_an_overflow_prompt_has_a_line_for_each_message_up_to_the_cap(lines: list[str], more: int, cap: int) -> None:
    count = len(lines) + more
    found = overflow_prompt(lines, count, cap).splitlines()
    shown = min(len(lines), cap)
    assert found[1] == "Summary:"
    assert len(found) == 2 + shown + (count > shown)
    assert all(line.startswith("- ") for line in found[2:])


@given(text=TEXTS, label=TEXTS)
def test_a_note_has_one_title_whatever_it_quotes(text: str, label: str) -> None:
    found = child_note(label, "done", text).splitlines()
    assert [line.startswith(SYSTEM_TITLE) for line in found].count(True) == 1
    assert neutralise("\n".join(found[1:]), collected=False) == "\n".join(found[1:])


@given(text=TEXTS, sender=SENDERS)
def test_a_list_has_one_line_for_each_message(text: str, sender: Sender | None) -> None:
    message = Message(id="m", session_key="s", text=text, sender=sender)
    pending = PendingMessage(message=message, state=MessageState.QUEUED, position=1, reason=text, waited_ms=0)
    assert len(list_reply([pending, pending]).splitlines()) == 3


# ---- markers --------------------------------------------------------------------------------------------------


@given(text=TEXTS)
def test_neutralising_twice_is_once(text: str) -> None:
    for collected in (False, True):
        once = neutralise(text, collected)
        assert neutralise(once, collected) == once


@given(text=TEXTS)
def test_neutralising_only_ever_puts_a_quote_before_a_line(text: str) -> None:
    before, after = text.splitlines(keepends=True), neutralise(text, collected=True).splitlines(keepends=True)
    assert len(before) == len(after)
    assert all(new in (old, f"> {old}") for old, new in zip(before, after, strict=True))


@effort(40)
@given(line=disguised(), before=st.text(max_size=5), mark=st.sampled_from(BREAKS))
def test_a_disguised_marker_is_seen(line: str, before: str, mark: str) -> None:
    lines = neutralise(f"{before}{mark}{line}", collected=False).splitlines()
    assert line.splitlines()[0] not in lines or not line.strip()
    assert neutralise(line, collected=False) == f"> {line}"


@given(text=st.text(st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="[qQ-"), max_size=40))
def test_a_text_that_is_ascii_and_has_no_marker_is_never_changed(text: str) -> None:
    plain = text.encode("ascii", "ignore").decode()
    assert neutralise(plain, collected=True) == plain


# ---- cuts -----------------------------------------------------------------------------------------------------


@effort(40)
@given(text=st.one_of(LONG, TEXTS))
def test_a_summary_is_one_bounded_line_and_stays_what_it_is(text: str) -> None:
    line = summary_line(text)
    assert len(line) <= 160
    assert len(line.splitlines()) <= 1
    assert line == " ".join(line.split())[:160] or line.endswith(" …")
    assert summary_line(line) == line
    line.encode()


@effort(40)
@given(text=LONG)
def test_a_summary_ends_where_a_grapheme_ends(text: str) -> None:
    whole = " ".join(word for word in regex.sub(r"[\p{Cc}\p{Cs}]+", "", " ".join(text.split())).split())
    line = summary_line(text)
    if line != whole and not regex.search(r"\p{Cf}", whole.replace("\u200d", "")):
        assert line.endswith("…")
        ends = {match.end() for match in regex.finditer(r"\X", whole)}
        assert whole.startswith(line[:-1])
        assert len(line) - 1 in ends | {0}
        assert all(not len(line) - 1 < end <= 159 for end in ends)


@effort(40)
@given(text=st.one_of(LONG, TEXTS), most=st.integers(1, 200))
def test_a_clipped_text_fits_and_says_that_it_was_clipped(text: str, most: int) -> None:
    clipped = clip(text, most)
    assert len(clipped) <= most
    assert clipped == text or "…" in clipped


@given(name=TEXTS)
def test_a_safe_name_is_one_bounded_line_without_brackets(name: str) -> None:
    safe = safe_name(name)
    assert len(safe) <= 80
    assert safe.isprintable()
    assert not set(safe) & set("()[]")
    assert safe == safe.strip()
    assert safe_name(safe) == safe
