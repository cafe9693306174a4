"""The checks of the doctor: each kind of trouble is found, named, and told what to do about; nothing is changed."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest

from laneway.cli import checkup
from laneway.cli.checkup import CHECKS, Finding, Patient, State, examine
from laneway.gateway.access import Scope
from laneway.gateway.launch import ServeOptions
from laneway.gateway.server import bind
from laneway.gateway.settings import GatewaySettings
from laneway.system import HostEnv
from tests.gateway_stage import gateway_in

FREE = "gateway.port=0"


def look(folder: Path, *overrides: str, **more: object) -> dict[str, list[Finding]]:
    options = ServeOptions(folder=folder, overrides=[f"gateway.store=sqlite:///{folder}/laneway.db", *overrides])
    patient = Patient(options=options, environ={"PATH": os.environ["PATH"]}, **more)  # type: ignore[arg-type]
    found: dict[str, list[Finding]] = {}
    for each in examine(patient):
        found.setdefault(each.check, []).append(each)
    return found


def worst(findings: list[Finding]) -> Finding:
    order = [State.OK, State.WARN, State.FAIL]
    return max(findings, key=lambda each: order.index(each.state))


def test_a_fresh_folder_has_nothing_to_fix(tmp_path: Path) -> None:
    found = look(tmp_path, FREE)
    assert {name: worst(each).state for name, each in found.items() if worst(each).state is State.FAIL} == {}
    assert worst(found["models"]).state is State.WARN  # the scripted one
    assert list(tmp_path.iterdir()) == []


def test_every_trouble_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("mcp_servers: {x: {command: no-such-program-anywhere}}\n")
    found = look(tmp_path, FREE, url="http://127.0.0.1:1")
    troubles = [each for group in found.values() for each in group if each.state is not State.OK]
    assert {each.check for each in troubles} >= {"models", "tools", "server"}
    assert all(each.hint for each in troubles)


def test_all_problems_of_the_configuration_are_listed(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("a: 1\nb: 2\n")
    found = look(tmp_path, FREE)
    assert [each.state for each in found["configuration"]] == [State.FAIL, State.FAIL]
    assert "models" not in found  # nothing can be said of them


def test_an_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extras = {"gateway": ("no_such_module",), "otel": ("json", "nor_this.one"), "mcp": ("nor_this",), "cli": ("json",)}
    monkeypatch.setattr(checkup, "EXTRAS", extras)
    found = look(tmp_path, FREE)["extras"]
    assert [(each.state, each.says) for each in found] == [
        (State.OK, "installed: cli; not installed, and not needed here: mcp"),
        (State.FAIL, "the extra `gateway` lacks no_such_module"),
        (State.WARN, "the extra `otel` lacks nor_this.one"),
    ]


def test_every_package_of_an_extra_is_looked_for() -> None:
    known = {module for modules in checkup.EXTRAS.values() for module in modules}  # an extra may include another
    made_by: dict[str, set[str]] = {}
    for module, packages in packages_distributions().items():
        for package in packages:
            made_by.setdefault(_plain(package), set()).add(module)
    for line in requires("laneway") or []:
        package, _, marker = line.partition(";")
        name, extra = re.split(r"[\s<>=!~\[]", package, maxsplit=1)[0], marker.partition("extra ==")[2].strip(" \"'")
        if extra in checkup.EXTRAS and name != "laneway" and "platform" not in marker:  # uvloop is only faster
            assert made_by[_plain(name)] & known, (extra, name)


def _plain(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


@pytest.mark.parametrize(
    ("url", "must_answer", "state"),
    [("", True, State.OK), ("http://127.0.0.1:1", True, State.FAIL), ("http://127.0.0.1:1", False, State.WARN)],
)
def test_a_server_that_does_not_answer_is_to_be_fixed_only_if_it_was_asked_about(
    tmp_path: Path, url: str, must_answer: bool, state: State
) -> None:
    found = look(tmp_path, "gateway.port=1", url=url, must_answer=must_answer)["server"]
    assert [each.state for each in found] == [state]


def test_a_folder_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    found = look(tmp_path, FREE, f"gateway.store=sqlite:///{tmp_path}/none/x.db")
    assert worst(found["sqlite"]).state is State.FAIL


def test_a_store_that_is_no_store_is_found(tmp_path: Path) -> None:
    (tmp_path / "laneway.db").write_text("this is a letter, and no database at all\n" * 200)
    assert worst(look(tmp_path, FREE)["store"]).state is State.FAIL


def test_an_address_of_no_store_is_found(tmp_path: Path) -> None:
    assert worst(look(tmp_path, FREE, "gateway.store=sqlite://x")["store"]).state is State.FAIL
    assert worst(look(tmp_path, FREE, "gateway.store=memory:")["store"]).state is State.WARN


async def test_a_store_in_use_is_good_and_says_by_whom(tmp_path: Path) -> None:
    async with gateway_in(tmp_path):
        found = look(tmp_path, FREE)
    assert worst(found["space"]).state is State.OK
    assert any(f"in use by process {os.getpid()}" in each.says for each in found["store"])


@pytest.mark.parametrize(("mode", "state"), [(0o600, State.OK), (0o644, State.WARN), (0o666, State.FAIL)])
async def test_who_may_read_and_change_the_store(tmp_path: Path, mode: int, state: State) -> None:
    async with gateway_in(tmp_path):
        pass
    (tmp_path / "laneway.db").chmod(mode)
    assert worst(look(tmp_path, FREE)["store"]).state is state


async def test_tokens_that_count_expired_ones_and_damaged_ones_are_told_apart(tmp_path: Path) -> None:
    now = HostEnv().clock.wall_ms()
    async with gateway_in(tmp_path) as gateway:
        _, secret = await gateway.tokens.create("good", [Scope.OPERATE], tenant="*")
        await gateway.tokens.create("soon", [Scope.CHAT], expires_ms=now + 86_400_000)
        old, _ = await gateway.tokens.create("old", [Scope.CHAT])
        broken, _ = await gateway.tokens.create("broken", [Scope.CHAT])
    with sqlite3.connect(tmp_path / "laneway.db") as connection:
        connection.execute("UPDATE states SET body = '[' WHERE id = ?", (broken.id,))
        connection.execute("UPDATE states SET body = json_set(body, '$.expires_ms', 1) WHERE id = ?", (old.id,))
    connection.close()
    found = look(tmp_path, FREE)["tokens"]
    said = " | ".join(each.says for each in found)
    assert "2 of 4" in said
    assert "look after lanes" not in said
    assert "1 tokens have expired" in said
    assert "1 tokens expire within a week" in said
    assert "1 tokens are damaged" in said
    assert secret not in said


async def test_tokens_of_which_none_is_for_an_operator_of_all_are_a_warning(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        await gateway.tokens.create("chat", [Scope.CHAT], tenant="*")
        await gateway.tokens.create("one", [Scope.OPERATE])
    found = look(tmp_path, FREE)["tokens"]
    assert [each.state for each in found] == [State.OK, State.WARN]
    assert "--scope operate --tenant '*'" in found[1].hint


def test_a_public_address_without_tokens_is_to_be_fixed(tmp_path: Path) -> None:
    found = look(tmp_path, FREE, "gateway.host=0.0.0.0")
    assert worst(found["tokens"]).state is State.FAIL


def test_a_port_that_something_else_has_is_to_be_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "CHECKS", {name: CHECKS[name] for name in ("configuration", "port")})
    with bind(GatewaySettings(port=0)) as taken:
        setting = f"gateway.port={taken.getsockname()[1]}"
        assert worst(look(tmp_path, setting, url="http://127.0.0.1:1")["port"]).state is State.FAIL
    assert worst(look(tmp_path, setting)["port"]).state is State.OK


def test_a_check_that_breaks_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Patient) -> Iterator[tuple[State, str, str]]:
        raise RuntimeError("no such thing")
        yield

    monkeypatch.setattr(checkup, "CHECKS", {"broken": broken, "python": CHECKS["python"]})
    found = look(tmp_path)
    assert "no such thing" in found["broken"][0].says
    assert found["python"][0].state is State.OK


# ---- workers ----

OUTSIDE = """
default_model: scripted
queue:
  lane_handlers:
    execute: {mode: external, labels: [gpu], timeout_ms: 5000}
    query: {mode: hybrid}
"""
TRIES: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"labels": ["gpu", "x"]}, True),
    ({"labels": ["gpu"], "lanes": ["execute"]}, True),
    ({"labels": ["gpu"], "lanes": ["query"]}, False),
    ({"labels": ["gpu"], "workspaces": ["default"]}, True),
    ({"labels": ["gpu"], "workspaces": ["other"]}, False),
    ({"labels": ["gpu"], "health": "quiet"}, False),
]


def test_a_lane_whose_calls_are_made_elsewhere_is_told_how_to_get_workers(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(OUTSIDE)
    (found,) = look(tmp_path, "gateway.port=1")["workers"]
    assert found.state is State.OK
    assert "lane 'execute' of workspace 'default' needs workers" in found.says
    assert "laneway worker --connect http://127.0.0.1:1 --lanes execute --label gpu" in found.says


def test_without_such_a_lane_nothing_is_said_of_workers(tmp_path: Path) -> None:
    assert "workers" not in look(tmp_path, FREE)


@pytest.mark.parametrize(("facts", "could"), TRIES)
def test_only_a_worker_that_could_take_its_tasks_is_one_for_a_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], could: bool
) -> None:
    (tmp_path / "agent.yaml").write_text(OUTSIDE)
    plain = {"name": "w1", "health": "idle", "lanes": [], "workspaces": [], "labels": []}
    monkeypatch.setattr(checkup, "_workers_at", lambda *_: ([{**plain, **facts}], ""))
    (found,) = look(tmp_path, FREE)["workers"]
    assert found.state is (State.OK if could else State.WARN)
    assert ("has 1: w1" in found.says) is could
    assert could or "its calls wait 5,000 ms, and then they fail" in found.says
    assert could or "laneway worker --connect" in found.hint
