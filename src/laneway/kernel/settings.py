"""Which queue settings are in force: levels that each set some options, merged option by option.

The name of a level decides its rank, never its place in the call. What no level sets is the default of
`QueueSettings`, and `origins` says for each value which level it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from laneway.errors import ConfigError
from laneway.mail import Drop, Mode, QueueOptions, QueueSettings
from laneway.records import DURATION_MAX_MS, check_whole

__all__ = ("LEVELS", "MAX_WAIT_FACTOR", "merge", "options_from_json", "options_to_json", "resolve")

LEVELS: Final = ("inline", "session", "channel", "workspace", "global")
"""Who may set options, the strongest first."""

MAX_WAIT_FACTOR: Final = 10
"""How many debounce times a batch waits at most, when nobody says otherwise."""

_RANKS: Final = {level: rank for rank, level in enumerate(LEVELS)}
_OPTIONS: Final = ("mode", "debounce_ms", "cap", "drop")


def resolve(levels: Sequence[tuple[str, QueueOptions]], *, max_wait_ms: int | None) -> QueueSettings:
    """The settings in force: each option from the strongest level that sets it.

    `max_wait_ms` None means ten times the debounce; its origin is then that of the debounce, otherwise `global`.
    """
    found: dict[str, Any] = {}
    origins = dict.fromkeys((*_OPTIONS, "max_wait_ms"), "default")
    for level, options in sorted(levels, key=_rank):
        for name in _OPTIONS:
            value = getattr(options, name)
            if value is not None and name not in found:
                found[name] = value
                origins[name] = level
    if max_wait_ms is None:
        debounce_ms = found.get("debounce_ms", _DEFAULT.debounce_ms)
        max_wait_ms = min(debounce_ms * MAX_WAIT_FACTOR, DURATION_MAX_MS)
        origins["max_wait_ms"] = origins["debounce_ms"]
    else:
        check_whole(max_wait_ms, setting="max_wait_ms", least=0, most=DURATION_MAX_MS)
        origins["max_wait_ms"] = "global"
    return QueueSettings(max_wait_ms=max_wait_ms, origins=origins, **found)


_DEFAULT: Final = QueueSettings()


def _rank(level: tuple[str, QueueOptions]) -> int:
    rank = _RANKS.get(level[0])
    if rank is None:
        raise ConfigError(
            f"there is no level {level[0]!r} of queue settings", setting="level", value=level[0], hint=", ".join(LEVELS)
        )
    return rank


def merge(upper: QueueOptions, lower: QueueOptions) -> QueueOptions:
    """What `upper` sets, and for the rest what `lower` sets: how a second `/queue` adds to the first."""
    return QueueOptions(
        mode=lower.mode if upper.mode is None else upper.mode,
        debounce_ms=lower.debounce_ms if upper.debounce_ms is None else upper.debounce_ms,
        cap=lower.cap if upper.cap is None else upper.cap,
        drop=lower.drop if upper.drop is None else upper.drop,
    )


def options_to_json(options: QueueOptions) -> dict[str, Any]:
    """The options that are set, as JSON values; the inverse of `options_from_json`."""
    values = {name: getattr(options, name) for name in _OPTIONS}
    return {
        name: str(value) if name in {"mode", "drop"} else value for name, value in values.items() if value is not None
    }


def options_from_json(body: Mapping[str, Any]) -> QueueOptions:
    """Options from what `options_to_json` wrote; anything else is a `ConfigError` that names the part."""
    if not isinstance(body, Mapping):
        raise ConfigError(f"queue options are a mapping, not {body!r}", setting="queue", value=body)
    unknown = sorted(str(name) for name in body if name not in _OPTIONS)
    if unknown:
        raise ConfigError(
            f"there is no queue option {unknown[0]!r}", setting=unknown[0], value=unknown[0], hint=", ".join(_OPTIONS)
        )
    mode, drop = body.get("mode"), body.get("drop")
    return QueueOptions(
        mode=None if mode is None else Mode.parse(mode),
        debounce_ms=body.get("debounce_ms"),
        cap=body.get("cap"),
        drop=None if drop is None else Drop.parse(drop),
    )
