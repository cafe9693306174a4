"""What callers hand in with a message, checked at the door: whatever passes can be stored and shown."""

from __future__ import annotations

import inspect
import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from laneway.errors import ConfigError, InvalidMessageError, UsageError
from laneway.mail import MessageKind, OnCrash, Sender
from laneway.records import DURATION_MAX_MS, check_whole

__all__ = (
    "attachments_of",
    "check_key",
    "check_settings",
    "field_of",
    "kind_of",
    "on_crash_of",
    "sender_of",
    "storable",
    "words_of",
)

KEY_MAX = 400
DOTS = frozenset({".", ".."})
FIELD_MAX = 512
WORDS_MAX = 10_000
ATTACHMENTS_MAX = 16 * 1024 * 1024


def kind_of(value: object) -> MessageKind:
    """Who speaks."""
    try:
        return MessageKind(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidMessageError(f"there is no kind {value!r}", hint=", ".join(MessageKind)) from None


def check_key(value: object, what: str, *, dots: bool = False) -> str:
    """A session key, a tenant or a workspace: any text without slashes and control characters.

    Not `.` or `..` unless `dots` says so: in the path of a URL or of a file they lead elsewhere.
    """
    if not isinstance(value, str) or not value.strip():
        raise InvalidMessageError(f"a {what} is text that is not empty, not {value!r}")
    if len(value) > KEY_MAX:
        raise InvalidMessageError(f"a {what} has at most {KEY_MAX} characters, not {len(value)}")
    if value in DOTS and not dots:
        raise InvalidMessageError(
            f"a {what} cannot be {value!r}: in a path that means a folder",
            hint="call it otherwise, or put a letter to it",
        )
    if value.isprintable() and "/" not in value:
        return value
    if "/" in value or any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in value):
        raise InvalidMessageError(f"a {what} has no '/' and no control characters: {value!r}")
    return value


def field_of(value: object, name: str, *, empty: bool = True) -> str:
    """A part of a route or an id; numbers are taken as text."""
    if value == "" and empty:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or (not empty and not value):
        raise InvalidMessageError(f"{name} is text, not {value!r}")
    if len(value) > FIELD_MAX:
        raise InvalidMessageError(f"{name} has at most {FIELD_MAX} characters, not {len(value)}")
    return storable(value, name)


def storable(text: str, what: str) -> str:
    """Text that can be written to disk."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(
            f"{what} has half of a surrogate pair at position {error.start}", hint="it is not valid Unicode text"
        ) from None
    return text


def sender_of(value: object) -> Sender | None:
    """Who sent it, checked."""
    sender = Sender.parse(value)
    if sender is not None:
        for text in (sender.id, sender.name or "", *sender.rights):
            field_of(text, "a sender")
    return sender


def words_of(value: object, name: str) -> str:
    """What an operator says: kept beside the change, so it must be text that can be kept."""
    if not isinstance(value, str) or len(value) > WORDS_MAX:
        raise InvalidMessageError(f"{name} is text of at most {WORDS_MAX:,} characters, not {type(value).__name__}")
    return storable(value, name)


def attachments_of(value: Iterable[Any]) -> tuple[Any, ...]:
    """What comes with a message: a bounded list of JSON values."""
    if value == ():
        return ()
    if isinstance(value, str | bytes | Mapping):
        raise InvalidMessageError(f"attachments is a list of JSON values, not {type(value).__name__}")
    try:
        listed = tuple(value)
        size = len(json.dumps(listed, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError) as error:
        raise InvalidMessageError(f"an attachment cannot be kept as JSON: {error}") from None
    if size > ATTACHMENTS_MAX:
        raise InvalidMessageError(f"attachments of {size:,} bytes are too large", hint=f"at most {ATTACHMENTS_MAX:,}")
    return tuple(json.loads(json.dumps(listed)))


def check_settings(
    handler: object,
    *,
    durations: Mapping[str, object],
    flags: Mapping[str, object],
    kinds: Mapping[str, tuple[object, type]],
) -> None:
    """What an inbox is made with: an async handler, durations, flags, and things of certain kinds."""
    if not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)):
        raise UsageError(f"the handler must be an async function, not {handler!r}", hint="async def answer(turn): …")
    for setting, value in durations.items():
        check_whole(value, setting=setting, least=1 if setting == "expires_ms" else 0, most=DURATION_MAX_MS)
    for setting, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(f"{setting} must be True or False, not {flag!r}", setting=setting, value=flag)
    for setting, (value, wanted) in kinds.items():
        if value is not None and not isinstance(value, wanted):
            raise ConfigError(f"{setting} must be a {wanted.__name__}, not {value!r}", setting=setting, value=value)


def on_crash_of(value: OnCrash | str, handler: object = None) -> OnCrash:
    """What happens to a message whose turn a crash has cut off."""
    try:
        on_crash = OnCrash(value)
    except ValueError:
        raise ConfigError(f"on_crash is 'report' or 'rerun', not {value!r}", setting="on_crash", value=value) from None
    if on_crash is OnCrash.RESUME and not getattr(handler, "resumes", False):
        hint = "a plain handler has no checkpoints: 'report' or 'rerun'"
        raise ConfigError("on_crash='resume' is for agent sessions", setting="on_crash", value=value, hint=hint)
    return on_crash
