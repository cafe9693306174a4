"""What a host may publish in a session with `session.emit`: an event, or a mapping with its `type` and its fields."""

from __future__ import annotations

import math
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
        raise _wrong(f"a host publishes {', '.join(HOST_EVENTS)}, not {kind!r:.80}")
    known = {each.name: each for each in fields(made) if each.name not in BESIDE}
    for name in given:
        if name not in known:
            raise _wrong(f"{kind} has no field {name!r:.80}; it has {', '.join(known)}")
    for name, each in known.items():
        if name not in given and each.default is MISSING:
            raise _wrong(f"{kind} needs {name}")
        if name in given:
            given[name] = _CHECKS[str(each.type)](f"{kind}.{name}", given[name])
    if kind == BudgetThresholdHitEvent.event_type and given["kind"] not in ("soft", "hard"):
        raise _wrong(f"{kind}.kind is 'soft' or 'hard', not {given['kind']!r}")
    return made(**given)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise _wrong(f"{name} is text of at most {TEXT_MAX:,} characters, not {value!r:.80}")
    return value


def _number(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:  # type: ignore[arg-type,operator]
        raise _wrong(f"{name} is a number of 0 or more, not {value!r:.80}")
    return value  # type: ignore[return-value]


def _whole(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= DURATION_MAX_MS:
        raise _wrong(f"{name} is a whole number from 0 to {DURATION_MAX_MS:,}, not {value!r:.80}")
    return value


def _or_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "str": _text,
    "float": _number,
    "str | None": _or_none(_text),
    "int | None": _or_none(_whole),
}


def _wrong(what: str) -> InvalidMessageError:
    return InvalidMessageError(f"the event was not published: {what}", hint="nothing has changed")
