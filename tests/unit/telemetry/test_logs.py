"""Lines of the log: without secrets, without lines that somebody made up, with the id of their request."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from laneway.agent_events import ToolQueuedEvent, ToolStartEvent
from laneway.errors import ConfigError
from laneway.events import MessageStarted
from laneway.mail import MessageState
from laneway.telemetry import logs
from laneway.telemetry.context import REQUEST_ID
from laneway.telemetry.logs import LOG_FORMATS, ConsoleFormatter, JsonFormatter, QueueLog, set_up_logs

LOG = logging.getLogger("laneway.test")
SECRET = "sk-0123456789abcdef0123456789"


class Lines(io.StringIO):
    """What was written, line by line."""

    @property
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture(params=LOG_FORMATS)
def both(request: pytest.FixtureRequest) -> Iterator[Lines]:
    lines = Lines()
    undo = set_up_logs(request.param, "debug", stream=lines)
    yield lines
    undo()


@pytest.fixture
def as_json() -> Iterator[Lines]:
    lines = Lines()
    undo = set_up_logs("json", "debug", stream=lines)
    yield lines
    undo()


def test_secrets_are_never_written(both: Lines) -> None:
    LOG.info("the key is %s", SECRET)
    LOG.info("facts", extra={"password": "hunter2hunter2", "more": {"token": SECRET}})
    try:
        raise ValueError(f"refused: Authorization: Bearer {SECRET}")
    except ValueError:
        LOG.exception("it failed with %s", SECRET)
    assert SECRET not in both.getvalue()
    assert "hunter2" not in both.getvalue()
    assert "ValueError" in both.getvalue()


def test_what_somebody_says_cannot_make_up_a_line(both: Lines) -> None:
    LOG.warning("said: %s", "hello\n2026-01-01T00:00:00.000Z error laneway all is lost\r\x1b[31m\u2028x")
    assert len(both.lines) == 1
    assert "\x1b" not in both.getvalue()


def test_the_lines_of_a_trace_are_set_in_for_people() -> None:
    lines = Lines()
    undo = set_up_logs("console", "info", stream=lines)
    try:
        raise ValueError("first\n2026-01-01T00:00:00.000Z error made up")
    except ValueError:
        LOG.exception("it failed")
    undo()
    assert lines.lines[0].endswith("error   laneway.test it failed")
    assert all(line.startswith("    ") for line in lines.lines[1:])


def test_what_anybody_can_send_does_not_fill_the_log(as_json: Lines) -> None:
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.warning("Invalid HTTP request received.")
    uvicorn.warning("Unsupported upgrade request.")
    uvicorn.warning("something else")
    assert [json.loads(line)["message"] for line in as_json.lines] == ["something else"]


def test_every_line_of_a_request_has_its_id(as_json: Lines) -> None:
    token = REQUEST_ID.set("req-7")
    LOG.info("inside")
    REQUEST_ID.reset(token)
    LOG.info("outside")
    assert [line.get("request_id") for line in as_json.objects] == ["req-7", None]


def test_a_json_line_has_what_was_given_and_cannot_be_overwritten_by_it(as_json: Lines) -> None:
    LOG.info("hello %s", "ada", extra={"session": "s", "level": "none", "odd": object()})
    (line,) = as_json.objects
    assert (line["message"], line["level"], line["session"]) == ("hello ada", "info", "s")
    assert line["at"].endswith("Z")


@pytest.mark.parametrize("formatter", [ConsoleFormatter(), JsonFormatter()])
@pytest.mark.parametrize(
    ("text", "argument", "told"),
    [("%d messages", "many", "arguments do not fit"), ("half of a pair: %s", "\ud800", "half")],
)
def test_a_line_that_is_odd_is_written_all_the_same(
    formatter: logging.Formatter, text: str, argument: str, told: str
) -> None:
    line = formatter.format(logging.LogRecord("laneway", logging.INFO, "", 0, text, (argument,), None))
    assert told in line
    assert line.encode()


def test_others_are_heard_from_warning_on_and_uvicorn_goes_the_same_way(as_json: Lines) -> None:
    logging.getLogger("somebody.else").info("chatter")
    logging.getLogger("somebody.else").warning("look at this")
    logging.getLogger("uvicorn.error").info("started")
    logging.getLogger("uvicorn.access").info("GET /?token=secret")
    assert [line["message"] for line in as_json.objects] == ["look at this", "started"]


def test_setting_up_can_be_undone() -> None:
    root, ours = logging.getLogger(), logging.getLogger("laneway")
    before = (list(root.handlers), root.level, ours.level)
    set_up_logs("json", "debug", stream=Lines())()
    assert (list(root.handlers), root.level, ours.level) == before


@pytest.mark.parametrize(("log_format", "level"), [("xml", "info"), ("json", "loud")])
def test_a_format_or_a_level_that_nobody_knows_is_refused(log_format: str, level: str) -> None:
    with pytest.raises(ConfigError):
        set_up_logs(log_format, level)


def test_whoever_waited_says_for_how_long(as_json: Lines) -> None:
    log = QueueLog()
    started = {"session_key": "s", "message_id": "m", "state": MessageState.RUNNING, "turn_id": "t"}
    log.on_mail_event(MessageStarted(wait_ms=0, **started))  # type: ignore[arg-type]
    log.on_mail_event(MessageStarted(wait_ms=1500, **started))  # type: ignore[arg-type]
    for at_ms, event in ((10, ToolQueuedEvent), (42, ToolStartEvent)):
        log.on_agent_event(event(session_id="s", at_ms=at_ms, tool_id="c", tool_name="bash", lane="execute"))
    log.on_agent_event(ToolStartEvent(session_id="s", at_ms=50, tool_id="c", tool_name="bash", attempt=2))
    assert [line["message"] for line in as_json.objects] == [
        "message m of 's' queued for 1500ms, runs as t",
        "call of bash in 's' queued for 32ms in lane 'execute'",
    ]


def test_calls_that_never_begin_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CALLS_MAX", 2)
    log = QueueLog()
    for number in range(5):
        log.on_agent_event(ToolQueuedEvent(tool_id=f"c{number}", tool_name="bash"))
    assert list(log._queued) == ["c3", "c4"]  # noqa: SLF001 - that is the claim
