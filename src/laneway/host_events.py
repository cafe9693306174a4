"""What a host may publish in a session with `session.emit`: an event, or a mapping with its `type` and its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from laneway.agent_events import (
    AgentEvent,
    BudgetThresholdHitEvent,
    PassivationRequestedEvent,
    PeerInvocationEvent,
)
from laneway.errors import InvalidMessageError
from laneway.records import DURATION_MAX_MS

__all__ = ("HOST_EVENTS", "host_event")

HOST_EVENTS: Final[Mapping[str, type[AgentEvent]]] = {
    kind.event_type: kind for kind in (BudgetThresholdHitEvent, PassivationRequestedEvent, PeerInvocationEvent)
}
TEXT_MAX: Final = 2_000
NUMBER_MAX: Final = 1e18
BESIDE: Final = {each.name for each in fields(AgentEvent)}


def host_event(event: object) -> AgentEvent:
    """An event of the host whose every field is what it should be; refused with the name of the field otherwise."""
    if isinstance(event, AgentEvent):
        kind, given = event.event_type, event.data
    elif isinstance(event, Mapping):
        given = dict(event)
        kind = given.pop("type", given.pop("event_type", ""))
    else:
        raise _wrong(f"an event is an event or a mapping, not {type(event).__name__}")
    made = HOST_EVENTS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise _wrong(f"a host publishes {', '.join(HOST_EVENTS)}, not {_shown(kind)}")
    known = {each.name: each for each in fields(made) if each.name not in BESIDE}
    for name in given:
        if name not in known:
            raise _wrong(f"{kind} has no field {_shown(name)}; it has {', '.join(known)}")
    for name, each in known.items():
        if name not in given and each.default is MISSING:
            raise _wrong(f"{kind} needs {name}")
        if name in given:
            given[name] = _CHECKS[str(each.type)](f"{kind}.{name}", given[name])
    if kind == BudgetThresholdHitEvent.event_type and given["kind"] not in ("soft", "hard"):
        raise _wrong(f"{kind}.kind is 'soft' or 'hard', not {_shown(given['kind'])}")
    return made(**given)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise _wrong(f"{name} is text of at most {TEXT_MAX:,} characters, not {_shown(value)}")
    if not all(letter.isprintable() or letter in "\n\t" for letter in value):
        raise _wrong(f"{name} has a character that cannot be shown: {_shown(value)}")
    return value


def _number(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= NUMBER_MAX:  # type: ignore[operator]  # nan is neither
        raise _wrong(f"{name} is a number from 0 to {NUMBER_MAX:.0e}, not {_shown(value)}")
    return value  # type: ignore[return-value]


def _whole(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= DURATION_MAX_MS:
        raise _wrong(f"{name} is a whole number from 0 to {DURATION_MAX_MS:,}, not {_shown(value)}")
    return value


def _or_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "str": _text,
    "float": _number,
    "str | None": _or_none(_text),
    "int | None": _or_none(_whole),
}


def _shown(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - somebody else's __repr__, or a number of a million digits
        return f"<{type(value).__name__}>"


def _wrong(what: str) -> InvalidMessageError:
    return InvalidMessageError(f"the event was not published: {what}", hint="nothing has changed")
