"""The edges of the command line: errors become a line and an exit code."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from laneway.cli.app import Commands, app
from laneway.errors import (
    ConfigError,
    DrainingError,
    InternalError,
    LanewayError,
    UnknownLaneError,
    reaction_to,
)

ERRORS = [
    UnknownLaneError(lane="qeury", suggestion="query"),
    ConfigError("concurrency must be a whole number [0]", setting="concurrency"),
    DrainingError(purpose="restart"),
    InternalError("slots do not add up"),
]


def failing(error: BaseException) -> typer.Typer:
    """An application whose one command raises."""
    application = typer.Typer(cls=Commands, pretty_exceptions_enable=False)

    @application.callback()
    def options(debug: bool = False) -> None:
        pass

    @application.command("fail")
    def fail() -> None:
        raise error

    return application


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_one_line_and_the_exit_code_of_its_kind(error: LanewayError) -> None:
    result = CliRunner().invoke(failing(error), ["fail"])
    assert result.exit_code == reaction_to(error).exit_code
    assert result.stderr == f"laneway: {error}\n"
    assert result.stdout == ""


def test_debug_shows_where_an_error_comes_from() -> None:
    result = CliRunner().invoke(failing(ERRORS[0]), ["--debug", "fail"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "UnknownLaneError" in result.stderr


def test_an_interrupt_is_quiet() -> None:
    result = CliRunner().invoke(failing(KeyboardInterrupt()), ["fail"])
    assert (result.exit_code, result.output) == (130, "")


def test_the_commands_have_a_help() -> None:
    result = CliRunner().invoke(app, ["tour", "--help"])
    assert result.exit_code == 0
    assert "--fast" in result.stdout
