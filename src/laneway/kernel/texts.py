"""What Laneway writes itself: prompts with markers, notes for the agent, replies and notices for people.

Markers. A prompt of several messages has a title and a header line for each. The agent tells messages apart by
these lines alone, so nobody else may write one: `neutralise` puts `> ` in front of every line of a message that looks
like one, and `safe_name` takes out of a name what could end its header. Looking like a marker is decided on a folded
line: compatibility forms, case, white space, accents, invisible characters and the commonest look-alikes of other
scripts are folded away. A line quoted without need does no harm; any other line stays as it is, byte for byte.

Who is trusted. `collected_prompt` gives a system message as it is, because Laneway or the host wrote it; the notes
below have neutralised what they quote. In a batch, lines that look like a part of the batch are quoted even there.

Replies and notices are plain sentences. What people typed is quoted short and on one line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from laneway.mail import (
    Message,
    MessageKind,
    MessageState,
    Mode,
    Outcome,
    PendingMessage,
    QueueOptions,
    QueueSettings,
    TurnState,
)

__all__ = (
    "COLLECT_TITLE",
    "OVERFLOW_TITLE",
    "SKIPPED",
    "SYSTEM_TITLE",
    "SessionStatus",
    "approval_reply",
    "call_note",
    "cancelled_reply",
    "changed_reply",
    "child_note",
    "cleared_reply",
    "clip",
    "collected_prompt",
    "compact_reply",
    "denied_reply",
    "ending_notice",
    "followup_note",
    "list_reply",
    "neutralise",
    "new_reply",
    "overflow_prompt",
    "reset_reply",
    "safe_name",
    "schedule_note",
    "settings_reply",
    "status_reply",
    "stop_reply",
    "summary_line",
    "wait_notice",
)

SKIPPED: Final = "[Skipped: user sent new message — redirecting]"
COLLECT_TITLE: Final = "[Queued messages while agent was busy]"
OVERFLOW_TITLE: Final = "[Queue overflow]"
SYSTEM_TITLE: Final = "[System note]"
SEPARATOR: Final = "---"
QUOTE: Final = "> "

SUMMARY_MAX: Final = 160
NAME_MAX: Final = 80
EXCERPT_MAX: Final = 60
NOTE_MAX: Final = 20_000
LISTED_MAX: Final = 50
_SCAN_MAX: Final = 4096
_ELLIPSIS: Final = "…"

# ---- cutting ------------------------------------------------------------------------------------------------

# Control characters, lone surrogates, and what is invisible and either reorders a line or hides in it. The joiners and
# variation selectors stay: they are parts of graphemes.
_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb]+"
)


# What readers take for one character. `\X` does not join the consonants of Indic conjuncts yet (rule GB9c of UAX #29).
_LINKERS: Final = "\u094d\u09cd\u0acd\u0b4d\u0c4d\u0d4d"
_GRAPHEME: Final = rf"(?:\X(?<=[{_LINKERS}]\u200d?)(?=\p{{Lo}}))*+\X"


def clip(text: str, most: int) -> str:
    """`text` in at most `most` code points, the last one an ellipsis when something is left out.

    The cut is never inside a grapheme. A grapheme that is too long by itself becomes an ellipsis, so that what comes
    after it can still be read.
    """
    if len(text) <= most:
        return text
    taken: list[str] = []
    room = most - 1
    is_replaced = False
    for grapheme in _graphemes(text, most + _SCAN_MAX):
        shown = grapheme if len(grapheme) < most else _ELLIPSIS
        if len(shown) > room:
            break
        is_replaced = shown is not grapheme
        taken.append(shown)
        room -= len(shown)
    else:
        if len(text) <= most + _SCAN_MAX:
            return "".join(taken)
    return "".join(taken) + ("" if is_replaced else _ELLIPSIS)


def _graphemes(text: str, most: int) -> Iterator[str]:
    """The graphemes of the first `most` code points; one that may go on after them is left out, unless it is alone."""
    import regex  # few messages are ever cut, so few processes need it

    window = text[:most]
    for match in regex.finditer(_GRAPHEME, window):
        if len(window) < len(text) and match.end() == len(window) and match.start() > 0:
            return
        yield match.group()


def summary_line(text: str) -> str:
    """A message on one line: white space folded, no control characters, at most 160 code points."""
    window = 2 * _SCAN_MAX
    while True:
        seen = " ".join(_UNSEEN.sub("", " ".join(text[:window].split())).split())
        if window >= len(text) or len(seen) > SUMMARY_MAX + _SCAN_MAX:
            return clip(seen, SUMMARY_MAX)
        window *= 8  # so far it was mostly white space


def _excerpt(text: str, most: int = EXCERPT_MAX) -> str:
    """A few words of what somebody wrote, for a reply."""
    return clip(summary_line(text), most)


def safe_name(name: str) -> str:
    """A name for a header line or a reply: one line, nothing invisible, no brackets, at most 80 code points.

    Brackets of every kind become spaces: `ada) (owner` must not end the header early.
    """
    kept = "".join(_name_char(char) for char in name[:_SCAN_MAX])
    return clip(" ".join(kept.split()), NAME_MAX)


def _name_char(char: str) -> str:
    category = unicodedata.category(char)
    if char.isspace() or category in {"Ps", "Pe"}:
        return " "
    return "" if category in {"Cc", "Cf", "Cs", "Co", "Cn"} else char


# ---- markers ------------------------------------------------------------------------------------------------

# Letters and signs of other scripts that look like those of the markers, after case folding. NFKC knows nothing of
# them. The list is short on purpose: what a reader would take for a marker at a glance.
_LOOK_ALIKES: Final = str.maketrans(
    "".join(map(chr, (0x0430, 0x03B1, 0x0251, 0x0432, 0x0441, 0x03F2, 0x0501, 0x0435, 0x03B5, 0x0451, 0x0261, 0x0581)))
    + "".join(map(chr, (0x04BB, 0x0570, 0x043A, 0x03BA, 0x043C, 0x0578, 0x03B7, 0x043E, 0x03BF, 0x0585, 0x0440)))
    + "".join(map(chr, (0x03C1, 0x051B, 0x0566, 0x0433, 0x0455, 0x0442, 0x03C4, 0x057D, 0x03C5, 0x03BD, 0x0475)))
    + "".join(map(chr, (0x051D, 0x0461, 0x03C9, 0x0443, 0x03B3, 0x0456, 0x03B9, 0x0131, 0x04CF, 0x01C0)))
    + "i1|0"
    + "".join(map(chr, (0x3010, 0x3014, 0x27E6, 0x2772, 0x23A1, 0x266F, 0x2D0, 0xA789, 0x2236))),
    "aaabccdeeegg" + "hhkkmnnooop" + "pqqrsttuuvv" + "wwwyyll" + "lll" + "lllo" + "[[[[[#:::",
)
_DASHES: Final = frozenset(map(chr, (0x2212, 0x2500, 0x2501, 0x30FC, 0x02D7, 0x23AF)))
# Letters and signs that show nothing although they are neither format characters nor marks.
_BLANKS: Final = frozenset(map(chr, (0x115F, 0x1160, 0x3164, 0xFFA0, 0x2800)))
_DECORATION: Final = frozenset("*_~`#")


@lru_cache(maxsize=4096)
def _folded(char: str) -> str:
    """What a character counts for when lines are compared with markers; empty when nobody sees it."""
    if char in _BLANKS:
        return ""
    kept = []
    for part in unicodedata.normalize("NFKD", char):
        category = unicodedata.category(part)
        if category == "Pd" or part in _DASHES:
            kept.append("-" * {"\u2e3a": 2, "\u2e3b": 3}.get(part, 1))
        elif category[0] != "Z" and category not in {"Cc", "Cf", "Cs", "Cn", "Co", "Mn", "Me"}:
            kept.append(part.casefold().translate(_LOOK_ALIKES))
    return "".join(kept)


def _key(line: str, most: int) -> str:
    """The first `most` folded characters of a line, without the signs of emphasis before them."""
    key = ""
    for char in line:
        folded = _folded(char)
        if folded and (key or folded not in _DECORATION):
            key += folded
            if len(key) >= most:
                break
    return key[:most]


_BLOCK_MARKS: Final = tuple(_key(mark, 99) for mark in (COLLECT_TITLE[:-1], "Queued #"))
_OTHER_MARKS: Final = tuple(_key(mark, 99) for mark in (OVERFLOW_TITLE[:-1], "[Skipped:", SYSTEM_TITLE[:-1]))
_MARK_MAX: Final = max(map(len, _BLOCK_MARKS + _OTHER_MARKS))
_FIRST: Final = frozenset(mark[0] for mark in _BLOCK_MARKS + _OTHER_MARKS) | {"-"}


def _is_marker(line: str, marks: tuple[str, ...], *, separator: bool) -> bool:
    stripped = line.lstrip()
    if not stripped or (stripped[0].isascii() and stripped[0].isalnum() and stripped[0] not in "qQ"):
        return False  # nearly every line of nearly every message
    if _key(stripped, 1) not in _FIRST:
        return False
    key = _key(stripped, _MARK_MAX)
    return key.startswith(marks) or (separator and key == SEPARATOR)


def _quoted(text: str, marks: tuple[str, ...], *, separator: bool) -> str:
    lines = text.splitlines(keepends=True)
    found = [_is_marker(line, marks, separator=separator) for line in lines]
    if not any(found):
        return text
    return "".join(QUOTE + line if forged else line for line, forged in zip(lines, found, strict=True))


def neutralise(text: str, collected: bool) -> str:  # noqa: FBT001 - the one choice there is
    """The text with `> ` in front of every line that looks like a marker; all else unchanged. Doing it twice is once.

    A separator counts only in a `collected` prompt: anywhere else three dashes are somebody's own.
    """
    return _quoted(text, _BLOCK_MARKS + _OTHER_MARKS, separator=collected)


# ---- prompts ------------------------------------------------------------------------------------------------


def collected_prompt(messages: Sequence[Message]) -> str:
    """The prompt of one turn over these messages, in their order; a single one is its bare text.

    Shown is the sender's name, else the id; the host itself (no sender) has no `(from …)`. Attachments are not text
    and travel beside the prompt.
    """
    if len(messages) == 1:
        return _bare(messages[0])
    blocks = [COLLECT_TITLE]
    for number, message in enumerate(messages, 1):
        blocks.append(f"\n\n{SEPARATOR}\nQueued #{number}{_from(message)}\n{_block(message)}")
    return "".join(blocks)


def _bare(message: Message) -> str:
    return message.text if message.kind is MessageKind.SYSTEM else neutralise(message.text, collected=False)


def _block(message: Message) -> str:
    if message.kind is MessageKind.SYSTEM:
        return _quoted(message.text, _BLOCK_MARKS, separator=True)
    return neutralise(message.text, collected=True)


def _from(message: Message) -> str:
    shown = _sender_name(message)
    return f" (from {shown})" if shown else ""


def _sender_name(message: Message) -> str:
    if message.sender is None:
        return ""
    return safe_name(message.sender.name or "") or safe_name(message.sender.id) or "somebody without a name"


def overflow_prompt(lines: Sequence[str], count: int, cap: int) -> str:
    """The prompt about `count` messages that the agent never gets to see: one line each for the first `cap` of them."""
    count = max(count, len(lines))
    shown = [f"- {summary_line(line) or '(no text)'}" for line in lines[:cap]]
    left_out = count - len(shown)
    if left_out:
        shown.append(f"- … and {left_out} more")
    noun = "message" if count == 1 else "messages"
    return "\n".join([f"{OVERFLOW_TITLE} Dropped {count} {noun} due to cap.", "Summary:", *shown])


# ---- notes: system messages that Laneway writes ---------------------------------------------------------------

_CHILD_ENDS: Final = {
    "done": ("is done", "Result"),
    "succeeded": ("is done", "Result"),
    "failed": ("failed", "Error"),
    "dead": ("failed", "Error"),
    "timed_out": ("timed out", "Error"),
    "cancelled": ("was cancelled", "Reason"),
    "interrupted": ("was interrupted by a restart; what it had done by then is unknown", "Reason"),
}


def child_note(label: str, state: str, text: str) -> str:
    """The system message for the end of a sub-agent: how it ended, and its result or error.

    `state` is one of done (or succeeded), failed (or dead), timed_out, cancelled, interrupted.
    """
    how, noun = _CHILD_ENDS[state]
    name = safe_name(label)
    head = f'{SYSTEM_TITLE} Sub-agent "{name}" {how}.' if name else f"{SYSTEM_TITLE} A sub-agent {how}."
    if not text.strip():
        return f"{head} It left no text."
    return f"{head} {noun}:\n{_whole(text)}"


_CALL_ENDS: Final = {
    "succeeded": "has ended",
    "failed": "failed",
    "timed_out": "timed out",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted",
    "unknown": "was cut off",
}


def call_note(tool: str, call_id: str, state: str, text: str) -> str:
    """The system message for the end of a call that went on in the background: which, how it ended, and what it says.

    `state` is one of succeeded, failed, timed_out, cancelled, interrupted, unknown.
    """
    head = f"{SYSTEM_TITLE} The background call {safe_name(call_id)} of {safe_name(tool)} {_CALL_ENDS[state]}."
    return f"{head} Result:\n{_whole(text)}" if text.strip() else f"{head} It left no text."


def followup_note(text: str, depth: int) -> str:
    """The system message for a further turn that the agent asked for itself; `depth` counts from 1."""
    return f"{SYSTEM_TITLE} Follow-up {depth} that you asked for:\n{_whole(text)}"


def schedule_note(schedule_id: str, text: str, missed: int = 0) -> str:
    """The system message of a schedule that is due; `missed` earlier times were not sent."""
    late = f" {_count(missed, 'earlier time')} {'was' if missed == 1 else 'were'} missed." if missed else ""
    name = safe_name(schedule_id)
    return f'{SYSTEM_TITLE} Schedule "{name}" is due.{late}\n{_whole(text)}'


def _whole(text: str) -> str:
    """A text as it is up to `NOTE_MAX` code points; a longer one says how much of it is missing."""
    if len(text) > NOTE_MAX:
        size = 0
        for grapheme in _graphemes(text, NOTE_MAX + 1):
            if size + len(grapheme) > NOTE_MAX:
                break
            size += len(grapheme)
        size = size or NOTE_MAX  # one grapheme that fills it all is no grapheme anybody wrote
        missing = f"{_ELLIPSIS}\n({len(text) - size:,} of {len(text):,} characters were cut off here)"
        return neutralise(text[:size], collected=False) + missing
    return neutralise(text, collected=False)


# ---- replies to commands --------------------------------------------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _waiting(number: int) -> str:
    if not number:
        return "Nothing waits."
    return "1 message waits." if number == 1 else f"{number:,} messages wait."


def _value(name: str, value: object, origin: str | None) -> str:
    return f"{name}={value}" + (f" ({origin})" if origin else "")


def settings_reply(settings: QueueSettings, waiting: int) -> str:
    """The answer to `/queue`: every setting with the level it came from, and how many messages wait."""
    origins = settings.origins
    values = (
        _value("mode", settings.mode, origins.get("mode")),
        _value("debounce", f"{settings.debounce_ms}ms", origins.get("debounce_ms")),
        _value("max_wait", f"{settings.max_wait_ms}ms", origins.get("max_wait_ms")),
        _value("cap", settings.cap, origins.get("cap")),
        _value("drop", settings.drop, origins.get("drop")),
    )
    return f"Queue settings: {', '.join(values)}. {_waiting(waiting)}"


def changed_reply(options: QueueOptions) -> str:
    """The answer to `/queue <options>`: what is now set for this session."""
    values = []
    if options.mode is not None:
        values.append(f"mode={options.mode}")
    if options.debounce_ms is not None:
        values.append(f"debounce={options.debounce_ms}ms")
    if options.cap is not None:
        values.append(f"cap={options.cap}")
    if options.drop is not None:
        values.append(f"drop={options.drop}")
    return f"Set for this session, from the next message on: {', '.join(values)}."


def reset_reply(settings: QueueSettings) -> str:
    """The answer to `/queue reset`: the session has no settings of its own any more; these are in force."""
    return (
        f"This session is back to the configured settings: mode={settings.mode}, debounce={settings.debounce_ms}ms, "
        f"cap={settings.cap}, drop={settings.drop}."
    )


def cleared_reply(count: int) -> str:
    """The answer to `/queue clear`."""
    return f"The queue is empty: {_count(count, 'message')} withdrawn." if count else "Nothing waited."


def cancelled_reply(message_id: str, *, found: bool) -> str:
    """The answer to `/queue cancel <id>`."""
    name = _excerpt(message_id)
    if found:
        return f"Message {name} is withdrawn."
    return f"No waiting message has the id {name}. /queue list shows those that wait."


def list_reply(pending: Sequence[PendingMessage]) -> str:
    """The answer to `/queue list`: a line for each message that waits, the first 50 of them."""
    lines = [_waiting(len(pending))]
    for waiting in pending[:LISTED_MAX]:
        shown = _sender_name(waiting.message)
        by = f" from {shown}" if shown else ""
        state = "" if waiting.state is MessageState.QUEUED else f", {waiting.state}"
        text = _excerpt(waiting.text) or "(no text)"
        facts = f"{waiting.message.mode}{state}, {waiting.waited_ms}ms"
        lines.append(f"{waiting.position}. {_excerpt(waiting.id)}{by} ({facts}): {text}")
    if len(pending) > LISTED_MAX:
        lines.append(f"… and {len(pending) - LISTED_MAX:,} more")
    return "\n".join(lines)


def stop_reply(
    waiting: int,
    debounced: int,
    turn: bool,  # noqa: FBT001 - a count that is 0 or 1
    children: int,
    *,
    calls: int = 0,
) -> str:
    """The answer to `/stop`: how much of each kind was stopped, in that order; of `calls` only if there were any."""
    if not (waiting or debounced or turn or children or calls):
        return "Nothing was running and nothing waited."
    parts = (
        _count(waiting, "waiting message"),
        _count(debounced, "debounced message"),
        _count(int(turn), "running turn"),
        _count(children, "sub-agent"),
        *([_count(calls, "background call")] if calls else ()),
    )
    return f"Stopped: {', '.join(parts)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """What `/status` tells. Times are None while there is nothing to measure; so are tokens nobody counts."""

    state: TurnState | None
    mode: Mode
    waiting: int
    oldest_wait_ms: int | None = None
    running_ms: int | None = None
    last_wait_ms: int | None = None
    last_run_ms: int | None = None
    tokens: int | None = None
    calls: int = 0  # in the background


def status_reply(status: SessionStatus) -> str:
    """The answer to `/status`: state, mode, depth, times, tokens."""
    running = f" for {status.running_ms}ms" if status.state is not None and status.running_ms is not None else ""
    parts = [
        f"State: {status.state or 'idle'}{running}",
        f"mode: {status.mode}",
        f"waiting: {status.waiting}"
        + (f" (oldest {status.oldest_wait_ms}ms)" if status.waiting and status.oldest_wait_ms is not None else ""),
    ]
    if status.last_wait_ms is not None:
        parts.append(f"last wait: {status.last_wait_ms}ms")
    if status.last_run_ms is not None:
        parts.append(f"last run: {status.last_run_ms}ms")
    parts.append("tokens: not counted" if status.tokens is None else f"tokens: {status.tokens:,}")
    if status.calls:
        parts.append(f"background calls: {status.calls}")
    return ", ".join(parts) + "."


def denied_reply(right: str) -> str:
    """The answer to a command whose sender lacks the right it needs."""
    return (
        f"You may not do that: it needs the right '{right}'. Nothing was changed. An owner can do it or give the right."
    )


def not_an_approver_reply() -> str:
    """The answer to `/approve` and `/deny` of somebody whom the request does not name: a right would not help."""
    return (
        "You may not do that: this request names who may answer it, and you are not among them. Nothing was changed."
        " One of them, or an owner, can answer it."
    )


def new_reply(waiting: int, turn: bool) -> str:  # noqa: FBT001 - a count that is 0 or 1
    """The answer to `/new`."""
    ended = [_count(waiting, "waiting message")] if waiting else []
    ended += ["the running turn"] if turn else []
    return "A new conversation begins." + (f" Ended: {' and '.join(ended)}." if ended else "")


def compact_reply(started: bool) -> str:  # noqa: FBT001 - yes or no
    """The answer to `/compact`."""
    return "The conversation is being compacted." if started else "There is nothing to compact."


def help_reply() -> str:
    """The answer to `/help`."""
    return (
        "/status: how the session is\n"
        "/stop: end what runs and what waits\n"
        "/new [text]: begin a new conversation\n"
        "/compact: shorten the conversation\n"
        "/steer text, /followup text: say it now, or afterwards\n"
        "/queue [mode] [options], /queue list, clear, reset, cancel id: what waits, and how\n"
        "/approve id, /deny id [reason]: answer a request\n"
        "Everything else goes to the agent."
    )


def approval_reply(approval_id: str, state: str) -> str:
    """The answer to `/approve` and `/deny`: what the request is now, or that there is none with that id."""
    name = _excerpt(approval_id)
    if not state:
        return f"No request for approval has the id {name}."
    return f"Request {name} is {state}."


# ---- notices --------------------------------------------------------------------------------------------------


def wait_notice(position: int, reason: str, waited_ms: int) -> str:
    """What a sender is told whose message waits longer than usual."""
    why = f": {_excerpt(reason, SUMMARY_MAX)}" if reason else ""
    return f"Your message has waited {waited_ms}ms and is number {position} in the queue{why}."


_ENDS: Final = {
    MessageState.DROPPED: ("was dropped", "Send it again when there is room, or raise the cap with /queue cap:<n>."),
    MessageState.SUMMARIZED: (
        "was taken out of the full queue; the agent gets one line of it",
        "Send it again when there is room if the agent needs all of it, or raise the cap with /queue cap:<n>.",
    ),
    MessageState.EXPIRED: ("waited too long and was not run", "Send it again if it still matters."),
    MessageState.REJECTED: ("was not taken", "Send it again when the current turn has ended."),
    MessageState.DEAD_LETTERED: (
        "could not be run: its turn failed to begin, again and again",
        "It is kept among the dead letters; once the cause is mended, retry it by its id {id}.",
    ),
}
_INTERRUPTED: Final = (
    "was begun, but its turn was interrupted; what it had done by then stays done",
    "Send it again, or retry it by its id {id}.",
)


def ending_notice(message: Message, state: MessageState, reason: str, outcome: Outcome | None = None) -> str | None:
    """What a sender is told when a message ends otherwise than hoped: what happened, why, what to do. Else None."""
    words = _ENDS.get(state)
    if words is None and outcome is Outcome.INTERRUPTED:
        words = _INTERRUPTED
    if words is None:
        return None
    what, way_out = words
    text = _excerpt(message.text)
    about = f'Your message "{text}"' if text else "Your message"
    why = f" ({_excerpt(reason, SUMMARY_MAX)})" if reason else ""
    return f"{about} {what}{why}. {way_out.replace('{id}', message.id)}"
