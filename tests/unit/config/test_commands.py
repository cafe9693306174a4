"""`laneway config`: what each command prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from laneway.cli.app import app
from laneway.config import json_schema
from tests.unit.config.desk import SEED_001, SEED_003, SEED_003_WORKSPACE

BAD = "queue:\n  mod: steer\n  cap: 0\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of each kind, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json5").write_text(SEED_001, encoding="utf-8")
    (tmp_path / "good.yaml").write_text(SEED_003, encoding="utf-8")
    (tmp_path / "bad.yaml").write_text(BAD, encoding="utf-8")
    (tmp_path / "secret.yaml").write_text("name: ${TOKEN}\nqueue: {cap: 3}\n", encoding="utf-8")
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "agent.yaml").write_text(SEED_003_WORKSPACE, encoding="utf-8")
    return tmp_path


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["config", *arguments], env=dict(environ))


def rows_of(output: str) -> dict[str, list[str]]:
    """The table of `explain`: the rows by their setting."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in output.splitlines()[1:]]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.usefixtures("folder")
def test_check_says_that_good_files_are_good() -> None:
    done = run("check", "good.json5", "good.yaml", "room/agent.yaml")
    assert (done.exit_code, done.stdout) == (0, "good.json5: good\ngood.yaml: good\nroom/agent.yaml: good\n")


@pytest.mark.usefixtures("folder")
def test_check_lists_every_problem_of_every_file() -> None:
    done = run("check", "good.yaml", "bad.yaml", "no.yaml")
    assert done.exit_code == 2
    assert done.stdout.splitlines() == [
        "good.yaml: good",
        "bad.yaml:2:3: there is no setting queue.mod (did you mean mode?)",
        "bad.yaml:3:8: queue.cap must be a whole number from 1 to 100,000, not 0",
        "no.yaml: there is no such file",
    ]


def test_check_looks_at_channels_as_the_server_does(folder: Path) -> None:
    (folder / "served.yaml").write_text(
        "gateway:\n  channels:\n    one: {kind: webhok}\n    two:\n      kind: webhook\n", encoding="utf-8"
    )
    done = run("check", "served.yaml")
    assert done.exit_code == 2
    first, second = done.stdout.splitlines()
    assert first == ("served.yaml:3:10: gateway.channels.one.kind is one of: webhook, telegram (did you mean webhook?)")
    assert second.startswith("served.yaml:5:7: gateway.channels.two.secrets is missing (")


@pytest.mark.usefixtures("folder")
def test_check_as_json() -> None:
    done = run("check", "--json", "good.yaml", "bad.yaml")
    assert done.exit_code == 2
    good, bad = json.loads(done.stdout)["files"]
    assert good == {"file": "good.yaml", "good": True, "problems": []}
    assert bad["problems"][0] == {
        "line": 2,
        "column": 3,
        "setting": "queue.mod",
        "message": "there is no setting queue.mod",
        "hint": "did you mean mode?",
    }


@pytest.mark.usefixtures("folder")
def test_explain_shows_where_each_value_came_from() -> None:
    done = run(
        *("explain", "--config", "good.json5", "--workspace", "room", "--set", "lanes.main=2"),
        LANEWAY_QUEUE_CAP="9",
    )
    assert done.exit_code == 0, done.output
    rows = rows_of(done.stdout)
    assert rows["queue.mode"] == ["steer", "workspace room/agent.yaml:6:9"]
    assert rows["queue.debounce_ms"] == ["1000", "good.json5:5:19"]
    assert rows["queue.cap"] == ["9", "environment LANEWAY_QUEUE_CAP"]
    assert rows["queue.debounce_idle"] == ["false", "default"]
    assert rows["lanes.main.concurrency"] == ["2", "--set lanes.main"]
    assert "queue.expires_ms" not in rows


def test_check_looks_at_prices_as_the_server_does(folder: Path) -> None:
    priced = "providers: {scripted: {models: {scripted: {input_price: 1, output_price: 2}}}}\n"
    text = "default_model: scripted\nbudgets:\n  purse: {scope: tenant, money: 5}\n"
    (folder / "purse.yaml").write_text(text, encoding="utf-8")
    done = run("check", "purse.yaml")
    assert done.exit_code != 0
    assert done.stdout.startswith(
        "purse.yaml:3:33: what model 'scripted' costs is not known, and budget 'purse' counts"
    )
    for good in (priced + text, text.replace("money: 5", "money: 5, unpriced: allow"), text.partition("\n")[2]):
        (folder / "purse.yaml").write_text(good, encoding="utf-8")
        assert run("check", "purse.yaml").stdout == "purse.yaml: good\n"


@pytest.mark.usefixtures("folder")
def test_explain_takes_a_file_as_check_does() -> None:
    assert run("check", "good.yaml").exit_code == 0
    named = run("explain", "good.yaml", LANEWAY_CONFIG="served.yaml")
    assert named.exit_code == 0
    assert named.stdout == run("explain", "--config", "good.yaml").stdout
    assert run("explain", "good.yaml", "--config", "good.yaml").stdout == named.stdout
    both = run("explain", "good.yaml", "--config", "served.yaml")
    assert both.exit_code != 0
    assert "two main files: good.yaml and --config served.yaml" in str(both.exception) + both.stderr


@pytest.mark.usefixtures("folder")
def test_explain_takes_its_files_from_the_environment() -> None:
    rows = rows_of(run("explain", LANEWAY_CONFIG="good.yaml", LANEWAY_WORKSPACE="room").stdout)
    assert rows["queue.mode"] == ["steer", "workspace room/agent.yaml:6:9"]
    assert rows["queue.debounce_idle"] == ["true", "default for queue: at good.yaml:1"]


def test_what_nobody_has_set_of_a_server_does_not_drown_the_rest(folder: Path) -> None:
    rows = rows_of(run("explain", "--config", "good.yaml").stdout)
    assert not [name for name in rows if name.startswith("gateway.")]
    (folder / "served.yaml").write_text("gateway:\n  port: 9000\n", encoding="utf-8")
    rows = rows_of(run("explain", "--config", "served.yaml").stdout)
    assert {name: row for name, row in rows.items() if name.startswith("gateway.")} == {
        "gateway.port": ["9000", "served.yaml:2:9"]
    }
    assert rows_of(run("explain", "--all", "--config", "served.yaml").stdout)["gateway.host"][1] == "default"


def test_explain_all_shows_what_nobody_has_set() -> None:
    rows = rows_of(run("explain", "--all").stdout)
    assert rows["queue.max_wait_ms"] == ["–", "default (ten times `debounce_ms`)"]
    assert rows["max_concurrent"] == ["–", "default (no such cap)"]


@pytest.mark.usefixtures("folder")
def test_explain_as_json_has_every_setting_with_its_origin() -> None:
    found: dict[str, Any] = json.loads(run("explain", "--config", "good.yaml", "--json").stdout)
    assert found["files"] == ["good.yaml"]
    facts = {each.pop("setting"): each for each in found["settings"]}
    assert facts["queue.mode"]["value"] == "collect"
    assert facts["queue.mode"]["origin"] == {
        "layer": "file",
        "file": "good.yaml",
        "line": 2,
        "column": 9,
        "name": None,
        "note": None,
    }
    assert facts["max_concurrent"]["value"] is None


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--all",)])
@pytest.mark.usefixtures("folder")
def test_explain_hides_what_a_file_takes_from_a_variable(arguments: tuple[str, ...]) -> None:
    done = run("explain", "--config", "secret.yaml", *arguments, TOKEN="s3cret")
    assert done.exit_code == 0
    assert "s3cret" not in done.output
    assert "hidden" in done.output


@pytest.mark.usefixtures("folder")
def test_explain_refuses_a_bad_configuration_with_all_its_problems() -> None:
    done = run("explain", "--config", "bad.yaml", "--set", "queue.mode=x")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "laneway: 3 problems in the configuration"
    assert "  bad.yaml:2:3: there is no setting queue.mod (did you mean mode?)" in done.stderr


def test_what_looks_like_markup_is_shown_as_it_is(folder: Path) -> None:
    (folder / "markup.yaml").write_text("name: '[red]x[/nope]'\n", encoding="utf-8")
    assert rows_of(run("explain", "--config", "markup.yaml").stdout)["name"][0] == "[red]x[/nope]"
    (folder / "markup.yaml").write_text("'[/nope]': 1\n", encoding="utf-8")
    assert "[/nope]" in run("check", "markup.yaml").stdout


def test_schema_prints_the_schema() -> None:
    done = run("schema")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == json_schema()


@pytest.fixture
def agent_file(folder: Path) -> Path:
    """An agent's file with a key in it, in the folder of the commands."""
    file = folder / "agent.hcl"
    file.write_text(
        'default_model = "x/y"\ntools = ["read", "ls"]\nbudgets "day" { scope = "tenant"  tokens = 5 }\n'
        'providers "x" {\n  api_key = "s3cret"\n  headers = { A = env("TOKEN") }\n}\n'
        "queue { enable_dlq = true }\n",
        encoding="utf-8",
    )
    return file


@pytest.mark.usefixtures("agent_file")
def test_explain_shows_an_agents_settings_without_its_secrets() -> None:
    rows = rows_of(run("explain", "--config", "agent.hcl", TOKEN="t0ken").stdout)
    assert rows["tools"] == ["read, ls", "agent.hcl:2:9"]
    assert rows["budgets.day.tokens"] == ["5", "agent.hcl:3:44"]
    assert rows["providers.x.api_key"] == ["(hidden)", "agent.hcl:5:13"]
    assert rows["providers.x.headers.A"] == ["(hidden)", "agent.hcl:6:19"]
    assert rows["queue.enable_dlq"] == ["true", "agent.hcl:8:22"]
    assert "queue.enable_metrics" not in rows


@pytest.mark.usefixtures("agent_file")
def test_explain_as_json_has_lists_and_blocks_but_no_secrets() -> None:
    done = run("explain", "--config", "agent.hcl", "--json", TOKEN="t0ken")
    found = {each["setting"]: each for each in json.loads(done.stdout)["settings"]}
    assert (found["tools"]["value"], found["budgets.day.scope"]["value"]) == (["read", "ls"], "tenant")
    assert (found["providers.x.api_key"]["value"], found["providers.x.api_key"]["hidden"]) == (None, True)
    assert "s3cret" not in done.stdout
    assert "t0ken" not in done.stdout


def test_check_knows_what_settings_need_together(agent_file: Path) -> None:
    agent_file.write_text('queue {\n  rate_limit { limit_type = "per_hour" }\n}\n', encoding="utf-8")
    done = run("check", "agent.hcl")
    assert (done.exit_code, done.stdout) == (2, "agent.hcl:2:29: a limit per_hour needs max_operations\n")
