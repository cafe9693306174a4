"""Commands in chat: what a message says to Laneway instead of to the agent.

`parse` is pure and total: any text is either a directive or None (an ordinary message), and nothing raises. What is
wrong with a command is said once, each wrong part with what is allowed, and then nothing of it is applied.

```text
/queue                                            the settings, and how many wait
/queue [<mode>] [debounce:2s] [cap:25] [drop:old]  for this session; in any order, `:` or `=`
/queue <options> <prompt>                         for this one message
/queue default | reset | clear | list | cancel <id>
/steer <prompt>   /followup <prompt>              the mode for this one message
/stop             stop                            the bare word too, with any punctuation after it
/new [<prompt>]   /compact [<what to keep>]   /status
/approve <id>     /deny <id> [<reason>]
/help             these commands
```

Names of commands, modes and options are taken in any case, and `/queue@name` as `/queue` (some platforms add the name
of the bot). A command stands at the very start of a message. An unknown one is not ours: the agent gets it.
`/stop` stops whatever comes after it: somebody who types that is in a hurry.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, TypeAlias, assert_never

from laneway.errors import ConfigError
from laneway.kernel.texts import clip, summary_line
from laneway.mail import CAP_MAX, Drop, Mode, QueueOptions
from laneway.records import DURATION_MAX_MS

__all__ = (
    "Approve",
    "Compact",
    "Deny",
    "Directive",
    "Help",
    "Inline",
    "Invalid",
    "New",
    "QueueCancel",
    "QueueClear",
    "QueueList",
    "QueueReset",
    "QueueSet",
    "QueueShow",
    "SendAs",
    "Status",
    "Stop",
    "parse",
    "required_right",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShow:
    """`/queue`: tell the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSet:
    """`/queue <options>`: keep these for the session; what is None stays as it was."""

    options: QueueOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReset:
    """`/queue reset`: forget what the session has set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClear:
    """`/queue clear`: withdraw everything that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueList:
    """`/queue list`: tell what waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCancel:
    """`/queue cancel <id>`: withdraw one message."""

    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inline:
    """`/queue <options> <prompt>`: an ordinary message with options of its own."""

    options: QueueOptions
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAs:
    """`/steer <prompt>` or `/followup <prompt>`: an ordinary message with a mode of its own."""

    mode: Mode
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """`/stop`: end everything of this session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """`/new`: begin a new conversation, with this text as its first message unless it is empty."""

    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    """`/compact`: shorten the conversation; the text, if any, says what to keep."""

    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`/status`: tell how the session is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """`/approve <id>`: yes to one request."""

    approval_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """`/deny <id> [<reason>]`: no to one request."""

    approval_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """`/help`: tell which commands there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A command that cannot be followed; the reply says why, and nothing else happens."""

    reply: str


Directive: TypeAlias = (
    QueueShow
    | QueueSet
    | QueueReset
    | QueueClear
    | QueueList
    | QueueCancel
    | Inline
    | SendAs
    | Stop
    | New
    | Compact
    | Status
    | Approve
    | Deny
    | Help
    | Invalid
)

_STOP: Final = re.compile(r"\s*stop[\s.,;:!?\u2026\u3002\uff01\uff1f\uff0e\uff0c\u061f]*", re.IGNORECASE)
_COMMAND: Final = re.compile(r"\s*/(?P<name>[A-Za-z]+)(?:@[A-Za-z0-9_.\-]+)?(?P<mark>[.!?]*)(?:\s+|\Z)")
_WORD: Final = re.compile(r"\S+")
_OPTION: Final = re.compile(r"(?P<name>[A-Za-z_-]+)[:=](?P<value>.*)", re.DOTALL)
_DURATION: Final = re.compile(r"(?P<whole>[0-9]{0,15})(?:\.(?P<part>[0-9]{0,15}))?(?P<unit>ms|s|m|h|d)?", re.IGNORECASE)
_CAP: Final = re.compile(r"[0-9]{1,9}")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_OPTION_NAMES: Final = {
    "mode": "mode",
    "debounce": "debounce_ms",
    "debounce_ms": "debounce_ms",
    "debouncems": "debounce_ms",
    "cap": "cap",
    "drop": "drop",
}
_MODES: Final = ", ".join(Mode)
_ALLOWED: Final = {
    "mode": f"a mode is one of {_MODES}",
    "debounce_ms": f"debounce is a time from 0 to {DURATION_MAX_MS // 86_400_000:,}d, such as 1500ms, 2s, 0.5m, 1h",
    "cap": f"cap is a whole number from 1 to {CAP_MAX:,}, such as cap:25",
    "drop": f"drop is one of {', '.join(Drop)}",
}
_SHOWN_MAX: Final = 40
_WRONG_MAX: Final = 10
_LOOKED_AT_MAX: Final = 50
_USAGE: Final = (
    "/queue [<mode>] [debounce:2s] [cap:25] [drop:old|new|summarize], or /queue reset, clear, list, cancel <id>"
)


def parse(text: str) -> Directive | None:
    """The command that a message is, or None for a message to the agent."""
    if _STOP.fullmatch(text):
        return Stop()
    found = _COMMAND.match(text)
    if found is None:
        return None
    name = found["name"].lower()
    reader = _READERS.get(name)
    if reader is None or (found["mark"] and name != "stop"):
        return None
    return reader(text[found.end() :])


def required_right(directive: Directive) -> str | None:
    """The right a sender needs for it: `queue`, `stop`, `approve`, or None when everybody may.

    Asking is free, except for the list, which shows what others wrote. Choosing a mode or an option is `queue`, also
    for a single message: an interrupt ends somebody's turn. What ends or rewrites a conversation is `stop`.
    """
    match directive:
        case QueueShow() | Status() | Help() | Invalid():
            return None
        case QueueSet() | QueueReset() | QueueClear() | QueueList() | QueueCancel() | Inline() | SendAs():
            return "queue"
        case Stop() | New() | Compact():
            return "stop"
        case Approve() | Deny():
            return "approve"
        case _:
            assert_never(directive)


# ---- the small commands ---------------------------------------------------------------------------------------


def _shown(part: str) -> str:
    """What somebody typed, short and on one line, for a reply."""
    return clip(summary_line(part), _SHOWN_MAX)


def _invalid(*wrong: str) -> Invalid:
    listed = list(wrong[:_WRONG_MAX])
    if len(wrong) > _WRONG_MAX:
        listed.append(f"and {len(wrong) - _WRONG_MAX} more")
    return Invalid(reply=f"Nothing was changed. Wrong: {'; '.join(listed)}.")


def _stop(_: str) -> Directive:
    return Stop()


def _new(rest: str) -> Directive:
    return New(text=rest)


def _compact(rest: str) -> Directive:
    return Compact(text=rest.rstrip())


def _status(rest: str) -> Directive:
    return _invalid(f"'{_shown(rest)}': /status takes nothing after it") if rest.strip() else Status()


def _steer(rest: str) -> Directive:
    return _send_as(Mode.STEER, rest)


def _followup(rest: str) -> Directive:
    return _send_as(Mode.FOLLOWUP, rest)


def _send_as(mode: Mode, rest: str) -> Directive:
    if not rest.strip():
        return _invalid(f"/{mode} needs a text after it, such as /{mode} look at the tests first")
    return SendAs(mode=mode, text=rest)


def _approve(rest: str) -> Directive:
    words = rest.split(maxsplit=1)
    if not words:
        return _invalid("/approve needs the id of the request, such as /approve a1")
    if len(words) > 1:
        return _invalid(f"'{_shown(words[1])}': /approve takes one id and nothing else")
    return Approve(approval_id=words[0])


def _deny(rest: str) -> Directive:
    words = rest.split(maxsplit=1)
    if not words:
        return _invalid("/deny needs the id of the request, such as /deny a1 too risky")
    return Deny(approval_id=words[0], reason=words[1].rstrip() if len(words) > 1 else "")


# ---- /queue ---------------------------------------------------------------------------------------------------


def _queue(rest: str) -> Directive:
    words = rest.split(maxsplit=1)
    if not words:
        return QueueShow()
    first, more = words[0].casefold(), words[1].rstrip() if len(words) > 1 else ""
    alone = _ALONE.get(first)
    if alone is not None:
        return _invalid(f"'{_shown(more)}': /queue {first} stands alone") if more else alone
    if first == "cancel":
        return _queue_cancel(more)
    return _Options().read(rest)


def _queue_cancel(more: str) -> Directive:
    ids = more.split(maxsplit=1)
    if not ids:
        return _invalid("/queue cancel needs the id of a message; /queue list shows them")
    if len(ids) > 1:
        return _invalid(f"'{_shown(ids[1])}': /queue cancel takes one id and nothing else")
    return QueueCancel(message_id=ids[0])


_ALONE: Final[dict[str, Directive]] = {
    "default": QueueReset(),
    "reset": QueueReset(),
    "clear": QueueClear(),
    "list": QueueList(),
}


@dataclass(slots=True)
class _Options:
    """The words after `/queue`, read one by one: what they set, and what is wrong with them."""

    values: dict[str, object] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def read(self, rest: str) -> Directive:
        """Options up to the first word that is none; that word begins the prompt."""
        for number, found in enumerate(_WORD.finditer(rest)):
            if number >= _LOOKED_AT_MAX:
                self.wrong.append(f"more than {_LOOKED_AT_MAX} words were not even looked at")
                break
            if self._take(found.group()):
                continue
            prompt = rest[found.start() :]
            if number == 0:
                self._unknown(found.group())
                self._look_at(prompt[len(found.group()) :])
            elif prompt.strip().casefold() in {*_ALONE, "cancel"}:
                self.wrong.append(f"'{_shown(prompt)}': /queue {prompt.strip().casefold()} stands alone")
            return self._result(prompt)
        return self._result("")

    def _result(self, prompt: str) -> Directive:
        if self.wrong:
            return _invalid(*self.wrong)
        options = QueueOptions(**self.values)  # type: ignore[arg-type]  # the readers below made them
        return Inline(options=options, text=prompt) if prompt else QueueSet(options=options)

    def _take(self, word: str) -> bool:
        """Read a word that is a mode or an option, right or wrong; False when it is neither."""
        option = _OPTION.fullmatch(word)
        if option is None:
            mode = _read_mode(word)
            if mode is not None:
                self._set("mode", mode, word)
            return mode is not None
        typed = option["name"].lower().replace("-", "_")
        name = _OPTION_NAMES.get(typed)
        if name is None:
            return self._take_misspelt(word, typed, option["value"])
        value = _VALUES[name](option["value"])
        if value is None:
            self.wrong.append(f"'{_shown(word)}': {_ALLOWED[name]}")
        else:
            self._set(name, value, word)
        return True

    def _take_misspelt(self, word: str, typed: str, value: str) -> bool:
        # `debouce:2s` is a typo and no prompt; `http://…` and `note:` are not ours.
        near = get_close_matches(typed[:_SHOWN_MAX], ("debounce", "drop", "mode"), n=1, cutoff=0.8)
        if not near or not value or value.startswith("//"):
            return False
        self.wrong.append(f"'{_shown(word)}': there is no such option (did you mean {near[0]})")
        return True

    def _set(self, name: str, value: object, word: str) -> None:
        if name in self.values:
            self.wrong.append(f"'{_shown(word)}': {name.removesuffix('_ms')} is given twice")
        self.values.setdefault(name, value)

    def _unknown(self, word: str) -> None:
        near = get_close_matches(word[:_SHOWN_MAX].casefold(), [*Mode, *_ALONE, "cancel"], n=1)
        guess = f" (did you mean {near[0]})" if near else ""
        self.wrong.append(f"'{_shown(word)}' is no mode and no option{guess}: modes are {_MODES}; usage is {_USAGE}")

    def _look_at(self, rest: str) -> None:
        """After a first word that is nothing, name the other wrong parts too, so that one reply is enough."""
        for number, found in enumerate(_WORD.finditer(rest)):
            if number >= _LOOKED_AT_MAX:
                return
            self._take(found.group())


def _read_mode(word: str) -> Mode | None:
    try:
        return Mode.parse(word)
    except ConfigError:
        return None


def _read_drop(word: str) -> Drop | None:
    try:
        return Drop.parse(word)
    except ConfigError:
        return None


def _read_cap(word: str) -> int | None:
    cap = int(word) if _CAP.fullmatch(word) else 0
    return cap if 1 <= cap <= CAP_MAX else None


def _read_duration(word: str) -> int | None:
    """Milliseconds, rounded half up: `1500`, `1500ms`, `2s`, `.5m`; exact, because it counts in whole numbers."""
    found = _DURATION.fullmatch(word)
    if found is None or not (found["whole"] or found["part"]):
        return None
    part = found["part"] or ""
    scale = 10 ** len(part)
    duration = (2 * int((found["whole"] or "0") + part) * _UNITS_MS[(found["unit"] or "ms").lower()] + scale) // (
        2 * scale
    )
    return duration if duration <= DURATION_MAX_MS else None


_VALUES: Final[dict[str, Callable[[str], object]]] = {
    "mode": _read_mode,
    "debounce_ms": _read_duration,
    "cap": _read_cap,
    "drop": _read_drop,
}


def _help(rest: str) -> Directive | None:
    return None if rest.strip() else Help()


_READERS: Final[dict[str, Callable[[str], Directive | None]]] = {
    "queue": _queue,
    "steer": _steer,
    "followup": _followup,
    "stop": _stop,
    "new": _new,
    "compact": _compact,
    "status": _status,
    "approve": _approve,
    "deny": _deny,
    "help": _help,
}
