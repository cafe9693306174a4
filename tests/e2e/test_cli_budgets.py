"""`laneway budget` against a real server: which budget is meant, what changes, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.kernel.budgets import Grant, Wish
from laneway.spending import Spender
from tests.cli_stage import cli_stage
from tests.routes_stage import until

pytestmark = pytest.mark.slow

TEXT = """
default_model: scripted
budgets:
  people: {scope: principal, window: day, money: 5, timezone: Europe/Zurich, on_exhausted: park, unpriced: allow}
"""


async def test_a_budget_of_the_configuration_is_raised_by_its_name_and_nothing_else_of_it_changes(
    tmp_path: Path,
) -> None:
    async with cli_stage(tmp_path, text=TEXT) as cli:
        (before,) = (await cli.json("budget", "ls"))["items"]
        told = await cli.run("budget", "set", "people", "--money", "8")
        assert "people (all tenants) allows each principal $8" in told.stdout
        (after,) = (await cli.json("budget", "ls"))["items"]
        assert after == {**before, "money": 8, "origin": "set"}
        await cli.run("session", "label", "s1", "--principal", "user:42")
        for session in ("s1", "s2"):
            await cli.run("send", session, "hello", "--wait")
        shown = (await cli.run("budget", "ls")).stdout
        assert "principal user:42" in shown
        assert "sessions without a principal" in shown
        assert "begins anew" in (await cli.run("budget", "reset", "people", "--reason", "a new project")).stdout
        unsaid = await cli.run("budget", "clear", "people")
        assert (unsaid.exit_code, "budget 'people' is one of all tenants" in unsaid.stderr) == (2, True)
        assert "--shared" in unsaid.stderr
        cleared = await cli.run("budget", "clear", "people", "--shared")
        assert (cleared.exit_code, cleared.stdout.strip()) == (0, "people (all tenants) was removed")
        assert "There are no budgets." in (await cli.run("budget", "ls")).stdout


async def test_a_budget_of_ones_own_is_made_beside_that_of_all(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, text=TEXT) as cli:
        made = await cli.json("budget", "set", "people", "--own", "--scope", "session", "--tokens", "90000")
        assert made["shared"] is False
        assert (await cli.json("budget", "set", "people", "--tokens", "80000"))["shared"] is False
        assert (await cli.json("budget", "set", "people", "--shared", "--money", "9"))["shared"] is True
        await cli.run("budget", "clear", "people", "--own")
        assert [each["money"] for each in (await cli.json("budget", "ls"))["items"]] == [9]


async def test_a_limit_is_taken_away_while_another_one_stays(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, text=TEXT) as cli:
        told = await cli.run("budget", "set", "people", "--tokens", "90000", "--money", "none")
        assert "people (all tenants) allows each principal 90,000 tokens" in told.stdout
        (left,) = (await cli.json("budget", "ls"))["items"]
        assert (left["tokens"], left["money"]) == (90_000, None)
        last = await cli.run("budget", "set", "people", "--tokens", "none")
        assert last.exit_code != 0
        assert "budget 'people' limits nothing" in last.stderr
        both = await cli.run("budget", "set", "people", "--tokens", "none", "--money", "none")
        assert (both.exit_code, "a budget without a limit limits nothing" in both.stderr) == (2, True)
        for option, text, words in (
            ("--tokens", "1.5", "--tokens is a whole number or none, not '1.5'"),
            ("--money", "nan", "--money is a number or none, not 'nan'"),
        ):
            wrong = await cli.run("budget", "set", "people", option, text)
            assert (wrong.exit_code, words in wrong.stderr) == (2, True)
        new = await cli.run("budget", "set", "new", "--scope", "session", "--tokens", "none")
        assert "a new one needs a scope and a limit" in new.stderr
        (kept,) = (await cli.json("budget", "ls"))["items"]
        assert kept == left


async def test_a_mistake_is_told_in_the_words_of_the_command_line(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, text=TEXT) as cli:
        new = await cli.run("budget", "set", "new", "--money", "8")
        assert new.exit_code == 2
        assert "a new one needs a scope" in new.stderr
        gone = await cli.run("budget", "clear", "people", "--own")
        assert "`laneway budget ls` lists them" in gone.stderr
        assert "--shared" in gone.stderr
        assert "/v1" not in gone.stderr
        assert (await cli.run("budget", "set", "people")).exit_code == 2
        assert (await cli.run("session", "label", "s1")).exit_code == 2


@pytest.mark.parametrize("share", ["nan", "inf", "0", "1.5"])
async def test_a_warning_at_no_share_is_refused(tmp_path: Path, share: str) -> None:
    async with cli_stage(tmp_path, text=TEXT) as cli:
        told = await cli.run("budget", "set", "x", "--scope", "tenant", "--tokens", "5", "--warn-at", share)
        assert (told.exit_code, "--warn-at is a share above 0 and up to 1" in told.stderr) == (2, True)


async def test_runs_that_wait_for_the_next_window_are_named_with_their_budget(tmp_path: Path) -> None:
    text = (
        "default_model: scripted\nbudgets:\n  daily: {scope: tenant, window: day, tokens: 90000, on_exhausted: park}\n"
    )
    async with cli_stage(tmp_path, text=text) as cli:
        workspace = cli.server.gateway.default
        desk = workspace.host.budgets
        grant = await desk.reserve(Spender("default", workspace.name, "s0", "r0"), Wish(0, 90_000))
        assert isinstance(grant, Grant)
        desk.settle(grant, grant.amount)
        await cli.run("send", "s1", "hello")
        await until(lambda: desk.parked)
        shown = (await cli.run("budget", "ls")).stdout
        assert "park, 1 run waits (s1)" in shown
