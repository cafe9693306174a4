"""What callers hand in with a message, checked at the door: whatever passes can be stored and shown."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from laneway.errors import InvalidMessageError
from laneway.mail import MessageKind, Sender

__all__ = ("attachments_of", "check_key", "field_of", "kind_of", "sender_of", "storable", "words_of")

KEY_MAX = 400
FIELD_MAX = 512
WORDS_MAX = 10_000
ATTACHMENTS_MAX = 16 * 1024 * 1024


def kind_of(value: object) -> MessageKind:
    """Who speaks."""
    try:
        return MessageKind(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidMessageError(f"there is no kind {value!r}", hint=", ".join(MessageKind)) from None


def check_key(value: object, what: str) -> str:
    """A session key, a tenant or a workspace: any text without slashes and control characters."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidMessageError(f"a {what} is text that is not empty, not {value!r}")
    if len(value) > KEY_MAX:
        raise InvalidMessageError(f"a {what} has at most {KEY_MAX} characters, not {len(value)}")
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
