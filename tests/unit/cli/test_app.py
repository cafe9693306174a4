"""The edges of the command line: errors become a line and an exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from laneway.cli.app import PLACES, Commands, app
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


def test_every_command_is_there_and_says_what_it_does() -> None:
    commands = getattr(get_command(app), "commands")  # noqa: B009 - typer does not say that it is a group
    assert set(commands) == set(PLACES)
    assert all(commands[name].name == name and commands[name].help for name in PLACES)


def test_the_help_lists_the_commands_in_their_order() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    places = [shown.index(f"│ {name} ") for name in PLACES]
    assert places == sorted(places)


def test_a_name_that_is_mistyped_is_no_command_and_another_is_proposed() -> None:
    result = CliRunner().invoke(app, ["staus"])
    assert result.exit_code == 2
    assert "status" in result.stderr


LISTING = """
import sys
from typer.main import get_command
from laneway.cli.app import app
command = get_command(app)
assert len(list(command.commands)) > 10
loaded = {name for name in sys.modules if name.startswith("laneway.cli.")}
assert loaded == {"laneway.cli.app"}, loaded
assert all(each.help for each in command.commands.values())
works = ("agent", "sim", "config", "lanes", "kernel", "stores", "runtime")
heavy = ("fastapi", *(f"laneway.{each}" for each in works))
print(sorted(name for name in sys.modules if name.startswith(heavy)))
"""


@pytest.mark.slow
def test_a_command_loads_itself_and_a_list_of_commands_nothing_that_they_work_with() -> None:
    done = subprocess.run([sys.executable, "-c", LISTING], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
