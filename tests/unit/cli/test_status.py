"""The screen of `laneway status`: what is wrong and what is hidden is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from laneway.cli.status import shown

CHECKS = {"server": "ok", "store": "ok", "work": "ok"}
NOTHING: dict[str, Any] = {"lanes": [], "sessions": [], "waiting": [], "approvals": []}


def screen(
    *,
    url: str | None = "http://x",
    ready: bool = True,
    lanes: Any = (),
    checks: Mapping[str, str] = CHECKS,
    unknown: int = 0,
    tenants: Any = (),
) -> str:
    server = {"url": url, "ready": ready, "checks": {**CHECKS, **checks}, "workspaces": [{"name": "default"}]}
    more = {"lanes": lanes, "unknown_calls": [{}] * unknown, "tenants": tenants}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(shown({**NOTHING, "server": {**server, "tenant": "default"}, **more}))
    return captured.get()


def test_a_channel_that_does_not_work_is_shown_under_a_server_that_does() -> None:
    lines = screen(checks={"channel telegram": "the bot is\x1b[2J not let in"}).splitlines()
    assert lines[0] == "Laneway at http://x is ready, workspace default"
    assert lines[1] == "channel telegram: the bot is␛[2J not let in"


def test_calls_of_which_nobody_knows_the_end_are_counted() -> None:
    assert "1 call was cut off" in screen(unknown=1)
    assert "3 calls were cut off" in screen(unknown=3)
    assert "cut off" not in screen()


def test_other_tenants_with_something_to_do_are_listed_for_whoever_sees_them() -> None:
    acme = {"tenant": "acme", "sessions": 2, "waiting": 0, "approvals": 1}
    shown_there = screen(tenants=[{**acme, "tenant": "default"}, acme])
    assert "acme" in shown_there
    assert "--tenant NAME" in shown_there
    assert "other tenants" not in screen(tenants=[{**acme, "tenant": "default"}])


def test_what_is_wrong_with_a_server_is_said_once() -> None:
    assert screen(ready=False, checks={"store": "it is full"}).count("it is full") == 1


@pytest.mark.parametrize(
    ("url", "lanes", "is_said"), [("http://x", None, True), (None, None, False), ("http://x", (), False)]
)
def test_lanes_that_a_token_does_not_see_are_not_left_out_without_a_word(
    url: str | None, lanes: Any, is_said: bool
) -> None:
    assert ("--tenant '*' sees them" in screen(url=url, lanes=lanes)) is is_said
