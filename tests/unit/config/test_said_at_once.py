"""What `check` finds in one round, where relative paths of a file lead, and what is in force for an agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from laneway import AsyncAgent
from laneway.cli.app import app
from laneway.config import InvalidConfigError, check, load, load_agent
from laneway.config.agent_view import AGENT_DEFAULTS, is_of_agent, seen_by_agent
from laneway.config.schema import json_schema
from laneway.errors import ConfigError
from tests.unit.config.desk import lines_of

PIECES = {
    "a rule": ('permissions { allow = ["read", "bash(git"] }', "its bracket is not closed"),
    "a model": ('default_model = "scriptd"', "did you mean 'scripted'?"),
    "a server": ('mcp_servers "x" {}', "mcp_servers.x needs a command or a url"),
    "people": ('confirmation { escalate_to = ["ada"] }', "escalate_to needs escalate_after_ms"),
    "a delay": ('queue {\n  retry_policy { strategy = "fixed" }\n}', "a fixed retry needs fixed_delay_ms"),
    "a folder": ('skill_dirs = ["nowhere"]', "there is no folder"),
    "a key": ("max_tool_round = 5", "did you mean max_tool_rounds?"),
}


def said(folder: Path, text: str, **environ: str) -> list[str]:
    """The problems of an agent's file, without its folder."""
    file = folder / "agent.hcl"
    file.write_text(text, encoding="utf-8")
    return [str(each).replace(f"{folder}/", "") for each in check(file, environ=environ)]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["config", *arguments])


# ---- all at once ----


@pytest.mark.parametrize("piece", PIECES)
def test_each_of_these_is_found_alone(tmp_path: Path, piece: str) -> None:
    text, wanted = PIECES[piece]
    (line,) = said(tmp_path, text)
    assert wanted in line


def test_all_of_them_are_found_together_in_the_order_of_their_lines(tmp_path: Path) -> None:
    lines = said(tmp_path, "\n".join(text for text, _ in PIECES.values()))
    assert len(lines) == len(PIECES)
    assert all(wanted in line for line, (_, wanted) in zip(lines, PIECES.values(), strict=True))


def test_loading_says_all_of_it_too_but_for_folders_which_may_come_later() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_agent("\n".join(text for text, _ in PIECES.values()), environ={})
    assert len(caught.value.problems) == len(PIECES) - 1


@pytest.mark.parametrize(
    "text",
    [
        'queue {\n  rate_limit { limit_type = "per_day" }\n}',
        'queue {\n  rate_limit {\n    limit_typ = "per_hour"\n    max_operations = 5\n  }\n}',
        'queue {\n  retry_policy {\n    strategy = "fixed"\n    fixed_delay = 5\n  }\n}',
        'queue {\n  retry_policy {\n    strategy = "fixed"\n    fixed_delay_ms = -5\n  }\n}',
        'mcp_servers "x" { comand = "y" }',
        'mcp_servers "x" { command = env("NOT_SET") }',
        'mcp_servers "x" { url = "file:///y" }',
        'confirmation {\n  escalate_to = ["ada"]\n  escalate_after_ms = "soon"\n}',
    ],
)
def test_what_is_there_but_wrong_is_not_said_to_be_missing_as_well(tmp_path: Path, text: str) -> None:
    assert len(said(tmp_path, text)) == 1


def test_a_setting_that_a_variable_has_wrong_is_not_said_to_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "agent.hcl"
    file.write_text("queue {\n  rate_limit { max_operations = 5 }\n}", encoding="utf-8")
    with pytest.raises(InvalidConfigError) as caught:
        load(file, environ={"LANEWAY_QUEUE_RATE_LIMIT_LIMIT_TYPE": "per_day"})
    assert len(caught.value.problems) == 1


def test_what_stands_below_an_unknown_lane_is_looked_at_and_nothing_of_it_is_taken(tmp_path: Path) -> None:
    lines = said(tmp_path, 'queue {\n  lane_handlers "exceute" { mode = "extern" }\n}')
    assert [line.partition(" must ")[0] for line in lines] == [
        "agent.hcl:2:17: there is no lane 'exceute' in a session (did you mean execute?)",
        "agent.hcl:2:36: queue.lane_handlers.exceute.mode",
    ]


# ---- rules and names of models ----


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("bash(git", "its bracket is not closed"),
        ("bash()", "its brackets are empty"),
        ("(git)", "it does not begin with the name of a tool"),
        ("Write(a/[bc])", "patterns of paths know *, ** and ? only"),
    ],
)
@pytest.mark.parametrize("where", ["allow", "deny", "ask"])
def test_a_rule_that_is_none_is_found_at_its_place(rule: str, why: str, where: str) -> None:
    lines = lines_of(f"permissions:\n  {where}:\n    - read\n    - '{rule}'\n")
    assert lines == [
        f"laneway.yaml:4:7: permissions.{where}[1] must be a rule such as `read` or `bash(git *)`, not {rule!r} ({why})"
    ]


@pytest.mark.parametrize("name", ["scriptd", "gpt-5", "openai/", "/gpt-5", "openai:gpt-5", " "])
def test_a_model_that_is_no_name_of_one_is_refused(name: str) -> None:
    (line,) = lines_of(f"default_model: '{name}'\n")
    assert "default_model must be `scripted` or `<provider>/<model>`, or null" in line


def test_rules_and_models_in_variables_are_looked_at_and_not_shown() -> None:
    text = "default_model: ${MODEL}\npermissions: {allow: ['${RULE}']}\n"
    lines = lines_of(text, environ={"MODEL": "s3cret", "RULE": "t0ken(a"})
    assert len(lines) == 2
    assert not any(word in line for line in lines for word in ("s3cret", "t0ken", "bracket"))


@pytest.mark.parametrize(
    "rule", ["read", " bash(git *) ", "bash( x )", "mcp__a__*", "write(**/.env*)", "t({[x]})", "a())"]
)
def test_the_schema_takes_rules_that_are_some(rule: str) -> None:
    from jsonschema import Draft202012Validator

    document = {"permissions": {"allow": [rule]}}
    assert lines_of(json.dumps(document), ".json") == []
    assert Draft202012Validator(json_schema()).is_valid(document)


@pytest.mark.parametrize("rule", ["bash(git", "bash()", "bash( )", "(x)", "a b", "Read({a,b})", "glob(x) y"])
def test_the_schema_refuses_rules_that_are_none(rule: str) -> None:
    from jsonschema import Draft202012Validator

    document = {"permissions": {"allow": [rule]}}
    assert lines_of(json.dumps(document), ".json") != []
    assert not Draft202012Validator(json_schema()).is_valid(document)


# ---- relative paths ----

PATHS = """
skill_dirs    = ["skills", "../more", "/abs", "~/mine"]
agent_dirs    = ["agents"]
session_store = "sqlite:///agent.db"
queue { storage_path = "./queue" }
mcp_servers "x" {
  command = "y"
  cwd     = "server"
}
"""


def test_relative_paths_of_a_file_are_meant_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "agent.hcl").write_text(PATHS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = load_agent("home/agent.hcl", environ={})
    assert found.skill_dirs == (f"{home}/skills", f"{tmp_path}/more", "/abs", "~/mine")
    assert found.agent_dirs == (f"{home}/agents",)
    assert found.session_store == f"sqlite:///{home}/agent.db"
    assert found.queue is not None
    assert found.queue.storage_path == f"{home}/queue"
    assert found.mcp_servers["x"].cwd == f"{home}/server"


def test_relative_paths_of_a_text_stay_as_they_are() -> None:
    found = load_agent(PATHS, environ={})
    assert (found.skill_dirs[0], found.agent_dirs) == ("skills", ("agents",))
    assert (found.session_store, found.mcp_servers["x"].cwd) == ("sqlite:///agent.db", "server")


def test_variables_and_options_are_meant_from_the_folder_of_the_process(tmp_path: Path) -> None:
    file = tmp_path / "agent.hcl"
    file.write_text("", encoding="utf-8")
    found = load(file, environ={"LANEWAY_SKILL_DIRS": "skills"}, overrides=["agent_dirs=agents"])
    assert (found.settings.skill_dirs, found.settings.agent_dirs) == (("skills",), ("agents",))


def test_the_file_of_a_workspace_means_its_own_folder(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "agent.yaml").write_text("skill_dirs: [skills]\n", encoding="utf-8")
    main = tmp_path / "laneway.yaml"
    main.write_text("agent_dirs: [agents]\nworkspaces: {a: {path: room, session_store: kept}}\n", encoding="utf-8")
    found = load(main, environ={}, workspace="a").settings
    assert found.skill_dirs == (f"{room}/skills",)
    assert found.agent_dirs == (f"{tmp_path}/agents",)
    assert found.session_store == f"{tmp_path}/kept"


@pytest.mark.parametrize(
    ("store", "meant"),
    [
        ("kept", "{folder}/kept"),
        ("/kept", "/kept"),
        ("~/kept", "~/kept"),
        ("sqlite:////a.db", "sqlite:////a.db"),
        ("sqlite:///~/a.db", "sqlite:///~/a.db"),
        ("sqlite:a.db", "sqlite:a.db"),
        ("memory:", "memory:"),
        ("postgres://u@h/d", "postgres://u@h/d"),
    ],
)
def test_a_store_is_meant_from_the_folder_of_its_file_if_it_has_a_relative_path(
    tmp_path: Path, store: str, meant: str
) -> None:
    (tmp_path / "agent.yaml").write_text(f"session_store: '{store}'\n", encoding="utf-8")
    assert load_agent(tmp_path / "agent.yaml", environ={}).session_store == meant.format(folder=tmp_path)


def test_folders_that_are_not_there_are_found_and_those_that_are_there_are_not(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    lines = said(
        tmp_path,
        'skill_dirs = ["skills", "skils"]\nagent_dirs = ["/no/such"]\nsession_store = "new"\n'
        'mcp_servers "x" {\n  command = "y"\n  cwd = "z"\n}\nqueue { storage_path = "new" }',
    )
    assert [line.partition(" (")[0] for line in lines] == [
        "agent.hcl:1:14: skill_dirs: there is no folder 'skils'",
        "agent.hcl:2:14: agent_dirs: there is no folder '/no/such'",
        "agent.hcl:6:9: mcp_servers.x.cwd: there is no folder 'z'",
    ]


def test_a_folder_that_comes_from_a_variable_is_not_shown(tmp_path: Path) -> None:
    (line,) = said(tmp_path, 'skill_dirs = [env("DIR")]', DIR="s3cret")
    assert "there is no folder that it names" in line
    assert "s3cret" not in line


def test_a_folder_that_cannot_be_one_is_not_there(tmp_path: Path) -> None:
    (line,) = said(tmp_path, 'skill_dirs = [env("DIR")]', DIR="a\0b")
    assert "there is no folder" in line


async def test_an_agent_from_a_file_finds_its_skills_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "skills").mkdir(parents=True)
    (home / "skills" / "tidy.md").write_text("---\nname: tidy\n---\nTidy up.\n", encoding="utf-8")
    (home / "agent.hcl").write_text('default_model = "scripted"\nskill_dirs = ["skills"]\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    async with AsyncAgent.create("home/agent.hcl") as agent:
        assert [each.name for each in agent.session().skills_available()] == ["tidy"]


async def test_the_error_about_a_folder_says_where_it_looked_and_from_where_it_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with AsyncAgent("scripted", skill_dirs=["skills"]) as agent:
        with pytest.raises(ConfigError) as caught:
            agent.session()
    assert f"{tmp_path}/skills" in str(caught.value)
    assert "from the folder of the process" in str(caught.value)


# ---- what is in force for an agent ----


def rows(output: str) -> dict[str, list[str]]:
    found = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in output.splitlines()[1:]]
    return {row[0]: row[1:] for row in found}


@pytest.fixture
def agent_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "agent.hcl"
    file.write_text('default_model = "scripted"\nmax_subagents = 4\nlanes { main = 3 }\n', encoding="utf-8")
    return file


@pytest.mark.usefixtures("agent_file")
def test_explain_shows_an_agents_file_as_an_agent_goes_by_it() -> None:
    found = rows(run("explain", "--config", "agent.hcl").stdout)
    assert found["queue.mode"] == ["followup", "default of an agent"]
    assert found["on_crash"] == ["resume", "default of an agent"]
    assert found["lanes.main.concurrency"] == ["3", "agent.hcl:3:16 (an agent does not use it)"]
    assert not {"queue.on_crash", "lanes.subagent.concurrency", "queue.debounce_idle"} & set(found)


def test_what_the_file_of_an_agent_says_is_stronger_than_its_defaults(agent_file: Path) -> None:
    agent_file.write_text('default_model = "scripted"\nqueue { mode = "steer" }\non_crash = "ask"\n', encoding="utf-8")
    found = rows(run("explain", "--config", "agent.hcl").stdout)
    assert (found["queue.mode"][0], found["on_crash"][0]) == ("steer", "ask")


@pytest.mark.usefixtures("agent_file")
def test_explain_can_be_told_whose_values_are_wanted() -> None:
    inbox = rows(run("explain", "--config", "agent.hcl", "--inbox").stdout)
    assert (inbox["queue.mode"], inbox["lanes.subagent.concurrency"]) == (["collect", "default"], ["8", "default"])
    agent = rows(run("explain", "--agent").stdout)
    assert agent["queue.mode"] == ["followup", "default of an agent"]


@pytest.mark.usefixtures("agent_file")
def test_explain_as_json_says_whose_values_these_are_and_which_are_used() -> None:
    found = json.loads(run("explain", "--config", "agent.hcl", "--json").stdout)
    used = {each["setting"]: each["used"] for each in found["settings"]}
    assert found["of"] == "agent"
    assert (used["queue.mode"], used["lanes.main.concurrency"]) == (True, False)
    assert json.loads(run("explain", "--json").stdout)["of"] == "inbox"


@pytest.mark.parametrize(
    ("text", "is_agents"),
    [
        ("", False),
        ('name = "x"\nqueue { mode = "steer" }\nlanes { main = 2 }', False),
        ("queue { enable_dlq = true }", True),
        ("permissions {}", True),
        ('tools = ["read"]', True),
    ],
)
def test_a_file_is_an_agents_if_it_says_something_that_only_an_agent_has(
    agent_file: Path, text: str, is_agents: bool
) -> None:
    agent_file.write_text(text, encoding="utf-8")
    assert is_of_agent(load(agent_file, environ={})) == is_agents


async def test_the_defaults_of_an_agent_are_those_that_its_host_has(agent_file: Path) -> None:
    values = {each.value.path: each.value.value for each in seen_by_agent(load(agent_file, environ={}))}
    async with AsyncAgent.create(agent_file) as agent:
        session = await agent.session().ready()
        reply = await session.host.inbox.command(session.session_id, "/queue")
        assert (values["queue", "mode"], values["on_crash",]) == (session.settings.mode, session.settings.on_crash)
    mode, cap, drop = (values["queue", name] for name in ("mode", "cap", "drop"))
    assert reply is not None
    assert all(each in reply for each in (f"mode={mode} ", f"cap={cap} ", f"drop={drop} "))
    assert f"debounce={values['queue', 'debounce_ms']}ms" in reply
    assert AGENT_DEFAULTS.keys() <= values.keys()
