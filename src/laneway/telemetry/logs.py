"""Lines on standard error: JSON or plain, without secrets, each with the id of the request it belongs to."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from laneway.agent_events import AgentEvent, ToolQueuedEvent, ToolStartEvent
from laneway.errors import ConfigError
from laneway.events import Event, MessageStarted
from laneway.identity import AT_WORK
from laneway.telemetry.context import REQUEST_ID
from laneway.telemetry.redaction import redact, redact_tree

__all__ = ("LOG_FORMATS", "LOG_LEVELS", "ConsoleFormatter", "JsonFormatter", "QueueLog", "set_up_logs")

LOG_FORMATS: Final = ("console", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
CALLS_MAX: Final = 10_000
TEXT_MAX: Final = 20_000
OF_CLIENTS: Final = frozenset({"Invalid HTTP request received.", "Unsupported upgrade request."})
"""What uvicorn warns of when a client has done something wrong."""

_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_queue = logging.getLogger("laneway.queue")


def set_up_logs(
    log_format: str = "console", level: str = "info", *, stream: TextIO | None = None
) -> Callable[[], None]:
    """Write what this process logs to standard error, from `level` on; returns how to undo it.

    What uvicorn says goes the same way. Lines of access are Laneway's own, at `debug`.
    """
    if log_format not in LOG_FORMATS:
        raise ConfigError(
            f"there is no log format {log_format!r}",
            setting="log_format",
            value=log_format,
            hint=", ".join(LOG_FORMATS),
        )
    if level.lower() not in LOG_LEVELS:
        raise ConfigError(
            f"there is no log level {level!r}", setting="log_level", value=level, hint=", ".join(LOG_LEVELS)
        )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    root, ours = logging.getLogger(), logging.getLogger("laneway")
    others = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(each, each.level, each.propagate, list(each.handlers)) for each in (root, ours, *others)]
    root.handlers = [handler]
    root.setLevel(logging.WARNING)  # of what others log, only what somebody should look at
    ours.setLevel(level.upper())
    for each in others:
        each.handlers, each.propagate = [], True
        each.setLevel(max(logging.INFO, logging.getLevelName(level.upper())))
    others[-1].setLevel(logging.CRITICAL)
    others[1].addFilter(_is_ours)

    def undo() -> None:
        others[1].removeFilter(_is_ours)
        for each, old, propagate, handlers in before:
            each.setLevel(old)
            each.propagate, each.handlers = propagate, handlers

    return undo


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether what uvicorn says is about this server. Anybody can send what is no request, as often as they like."""
    return record.msg not in OF_CLIENTS


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    """What is said, without secrets. A line that cannot be put together must not cost the others."""
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001 - the arguments of a caller may be anything
        text = f"{record.msg!r} (its arguments do not fit: {type(error).__name__})"
    return redact(text[:TEXT_MAX])


def _trouble(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    text = formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    return redact((text or record.exc_text or "")[-TEXT_MAX:])


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`."""
    found = {name: value for name, value in vars(record).items() if name not in _PLAIN and not name.startswith("_")}
    facts: dict[str, Any] = redact_tree(found) if found else {}
    return facts


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `message`, `request_id`, `error`, and what came as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "at": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        if (identity := AT_WORK.get()) is not None:
            line |= identity.labels
        if trouble := _trouble(record, self):
            line["error"] = trouble
        for name, value in _facts(record).items():
            line.setdefault(name, value)
        return json.dumps(line, ensure_ascii=True, default=repr)


class ConsoleFormatter(logging.Formatter):
    """For people. What is logged cannot make up lines: control characters are written out, traces are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the trace of an error below it."""
        parts = [_stamp(record), f"{record.levelname.lower():7}", record.name, _one_line(_message(record))]
        parts += [f"{name}={_one_line(str(value))}" for name, value in _facts(record).items()]
        if (identity := AT_WORK.get()) is not None:
            parts += [f"{name}={value}" for name, value in identity.labels.items()]  # a label is one line of text
        if request_id := REQUEST_ID.get():
            parts.append(f"[{request_id}]")
        trouble = _trouble(record, self)
        text = " ".join(parts) + "".join(f"\n    {_one_line(line)}" for line in trouble.splitlines())
        return text.encode("utf-8", "backslashreplace").decode()


def _one_line(text: str) -> str:
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


class QueueLog:
    """At `debug` (`--verbose`): a line for everything that waited in a queue when it starts."""

    def __init__(self) -> None:
        self._queued: dict[str, int] = {}

    def on_mail_event(self, event: Event) -> None:
        """A message may begin."""
        if isinstance(event, MessageStarted) and event.wait_ms > 0:
            _queue.debug(
                "message %s of %r queued for %dms, runs as %s",
                event.message_id,
                event.session_key,
                event.wait_ms,
                event.turn_id,
            )

    def on_agent_event(self, event: AgentEvent) -> None:
        """A call of a tool may begin."""
        if isinstance(event, ToolQueuedEvent):
            while len(self._queued) >= CALLS_MAX:  # calls that never began
                del self._queued[next(iter(self._queued))]
            self._queued[event.tool_id] = event.at_ms
        elif isinstance(event, ToolStartEvent):
            waited = event.at_ms - self._queued.pop(event.tool_id, event.at_ms)
            if waited > 0:
                _queue.debug(
                    "call of %s in %r queued for %dms in lane %r", event.tool_name, event.session_id, waited, event.lane
                )
