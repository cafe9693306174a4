"""The options that lead to a server: the same behind every command, from the command line or the environment."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from laneway.cli.app import app
from laneway.cli.client import URL, Target
from laneway.cli.reach import Asking, Reading, target_of

SERVER = {"--url": "LANEWAY_URL", "--token": "LANEWAY_TOKEN", "--tenant": "LANEWAY_TENANT", "--ca": "LANEWAY_CA"}
LOCAL = {"serve", "tour", "sim", "store", "config", "doctor", "token"}  # they ask no server, or in their own way


def commands() -> dict[str, Any]:
    """Every command by its words."""
    found: dict[str, Any] = {}

    def walk(words: tuple[str, ...], command: Any) -> None:
        for name, each in getattr(command, "commands", {}).items():
            walk((*words, name), each)
        if not hasattr(command, "commands"):
            found[" ".join(words)] = command

    walk((), get_command(app))
    return {name: each for name, each in found.items() if name.split()[0] not in LOCAL}


@pytest.mark.parametrize("name", commands())
def test_every_command_names_its_server_in_the_same_way(name: str) -> None:
    options = {each.opts[0]: each for each in commands()[name].params if each.param_type_name == "option"}
    for option, variable in SERVER.items():
        assert options[option].envvar == variable
    assert "--workspace" in options
    assert "--json" in options or name in ("chat", "run export", "session transcript")
    assert commands()[name].help


def made(cls: Any) -> tuple[typer.Typer, list[Target]]:
    application, seen = typer.Typer(), []

    @application.command("x", cls=cls)
    def x(ctx: typer.Context) -> None:
        seen.append(target_of(ctx))

    return application, seen


@pytest.mark.parametrize("cls", [Asking, Reading])
def test_an_option_comes_before_its_variable_and_both_before_the_default(cls: Any) -> None:
    application, seen = made(cls)
    environ: dict[str, str | None] = {
        f"LANEWAY_{name}": None for name in ("URL", "TOKEN", "TENANT", "WORKSPACE_NAME", "CA")
    }
    runner = CliRunner()
    assert runner.invoke(application, [], env=environ).exit_code == 0
    named: dict[str, str | None] = {**environ, "LANEWAY_URL": "http://a", "LANEWAY_TOKEN": "t1"}
    runner.invoke(application, [], env=named)
    runner.invoke(application, ["--url", "http://b", "--workspace", "w", "--tenant", "ada", "--ca", "a.pem"], env=named)
    assert seen == [
        Target(url=URL),
        Target(url="http://a", token="t1"),
        Target(url="http://b", token="t1", workspace="w", tenant="ada", ca="a.pem"),
    ]


def test_one_call_leaves_nothing_for_the_next() -> None:
    application, seen = made(Asking)
    runner = CliRunner()
    runner.invoke(application, ["--token", "secret"])
    runner.invoke(application, [])
    assert [each.token for each in seen] == ["secret", ""]


def test_a_token_is_not_shown_by_help() -> None:
    result = CliRunner().invoke(app, ["send", "--help"], env={"LANEWAY_TOKEN": "lw_secret", "COLUMNS": "200"})
    assert result.exit_code == 0
    assert "lw_secret" not in result.output
