"""The blocks of gates, sub-agents and servers of tools: read alike in every format, strict, and without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.agent import AsyncAgent
from laneway.config import InvalidConfigError, load_agent
from laneway.config.gate_blocks import ConfirmationBlock, McpBlock
from laneway.config.settings import Settings
from laneway.config.shape import settings_of
from laneway.options import LaneHandlerConfig, SessionOptions
from laneway.policies import ConfirmationPolicy, McpServerConfig
from laneway.records import Effect

SECRET = "sk-very-secret"
HCL = """\
default_model = "scripted"
skill_dirs = ["./skills", "~/skills"]
agent_dirs = ["./agents"]
planning = true
max_plan_steps = 7
subagents = true
max_subagents = 16
max_parallel_tasks = 4
max_subagent_depth = 2

confirmation {
  default_timeout_ms = 60000
  timeout_action     = "auto_approve"
  yolo_lanes         = ["query"]
  approvers          = ["ann", "bob"]
  escalate_after_ms  = 20000
  escalate_to        = ["eve"]
}

mcp_servers "git" {
  command  = "git-mcp"
  args     = ["--repository", "."]
  env      = { TOKEN = env("TOKEN") }
  cwd      = "/srv"
  lane     = "query"
  effect   = "read"
  lanes    = { git_commit = "execute" }
  effects  = { git_commit = "write", git_tag = "idempotent" }
  parallel = ["git_log"]
  tools    = ["git_log", "git_commit", "git_tag"]
  timeout_ms       = 5000
  start_timeout_ms = 10000
}

mcp_servers "web" {
  url     = "https://mcp.example/mcp"
  headers = { Authorization = "Bearer ${env("TOKEN")}" }
  enabled = false
}

queue {
  lane_handlers "execute" {
    mode       = "external"
    timeout_ms = 5000
    ordered    = false
    lease_ms   = 1000
    fallback   = true
  }
}
"""
YAML = """\
default_model: scripted
skillDirs: [./skills, ~/skills]
agent_dirs: [./agents]
planning: true
maxPlanSteps: 7
subagents: true
maxSubagents: 16
max-parallel-tasks: 4
max_subagent_depth: 2
confirmation:
  defaultTimeoutMs: 60000
  timeout_action: auto_approve
  yoloLanes: [query]
  approvers: [ann, bob]
  escalate_after_ms: 20000
  escalate_to: [eve]
mcpServers:
  git:
    command: git-mcp
    args: [--repository, .]
    env: {TOKEN: "${TOKEN}"}
    cwd: /srv
    lane: query
    effect: read
    lanes: {git_commit: execute}
    effects: {git_commit: write, git_tag: idempotent}
    parallel: [git_log]
    tools: [git_log, git_commit, git_tag]
    timeoutMs: 5000
    startTimeoutMs: 10000
  web:
    url: https://mcp.example/mcp
    headers: {Authorization: "Bearer ${TOKEN}"}
    enabled: false
queue:
  lane_handlers:
    execute: {mode: external, timeout_ms: 5000, ordered: false, leaseMs: 1000, fallback: true}
"""
TOML = """\
default_model = "scripted"
skill_dirs = ["./skills", "~/skills"]
agent_dirs = ["./agents"]
planning = true
max_plan_steps = 7
subagents = true
max_subagents = 16
max_parallel_tasks = 4
max_subagent_depth = 2
[confirmation]
default_timeout_ms = 60000
timeout_action = "auto_approve"
yolo_lanes = ["query"]
approvers = ["ann", "bob"]
escalate_after_ms = 20000
escalate_to = ["eve"]
[mcp_servers.git]
command = "git-mcp"
args = ["--repository", "."]
env = {TOKEN = "${TOKEN}"}
cwd = "/srv"
lane = "query"
effect = "read"
lanes = {git_commit = "execute"}
effects = {git_commit = "write", git_tag = "idempotent"}
parallel = ["git_log"]
tools = ["git_log", "git_commit", "git_tag"]
timeout_ms = 5000
start_timeout_ms = 10000
[mcp_servers.web]
url = "https://mcp.example/mcp"
headers = {Authorization = "Bearer ${TOKEN}"}
enabled = false
[queue.lane_handlers.execute]
mode = "external"
timeout_ms = 5000
ordered = false
lease_ms = 1000
fallback = true
"""
GIT = McpServerConfig(
    command="git-mcp",
    args=("--repository", "."),
    env={"TOKEN": SECRET},
    cwd="/srv",
    lane="query",
    effect=Effect.READ,
    lanes={"git_commit": "execute"},
    effects={"git_commit": Effect.WRITE, "git_tag": Effect.IDEMPOTENT},
    parallel=("git_log",),
    tools=("git_log", "git_commit", "git_tag"),
    timeout_ms=5_000,
    start_timeout_ms=10_000,
)
WEB = McpServerConfig(url="https://mcp.example/mcp", headers={"Authorization": f"Bearer {SECRET}"}, enabled=False)
CONFIRMATION = ConfirmationPolicy(
    default_timeout_ms=60_000,
    timeout_action="auto_approve",
    yolo_lanes=("query",),
    approvers=("ann", "bob"),
    escalate_after_ms=20_000,
    escalate_to=("eve",),
)
FORMATS = pytest.mark.parametrize("text", [HCL, YAML, TOML], ids=["hcl", "yaml", "toml"])


def problems_of(text: str, **environ: str) -> list[str]:
    """What is wrong with a text, without its name."""
    with pytest.raises(InvalidConfigError) as caught:
        load_agent(text, environ=environ)
    return [str(problem).partition(":")[2] for problem in caught.value.problems]


def check_options(options: SessionOptions) -> None:
    """Fail unless these are the options that the texts above speak of."""
    assert options.confirmation_policy == CONFIRMATION
    assert options.mcp_servers == {"git": GIT, "web": WEB}
    assert options.skill_dirs is not None
    assert options.agent_dirs is not None
    assert (list(options.skill_dirs), list(options.agent_dirs)) == (["./skills", "~/skills"], ["./agents"])
    assert (options.planning, options.max_plan_steps) == (True, 7)
    assert (options.subagents, options.max_subagents) == (True, 16)
    assert (options.max_parallel_tasks, options.max_subagent_depth) == (4, 2)
    assert options.queue_config is not None
    handler = LaneHandlerConfig("external", 5_000, ordered=False, lease_ms=1_000, fallback=True)
    assert options.queue_config.lane_handlers == {"execute": handler}


@FORMATS
def test_every_new_setting_is_read_alike_in_every_format(text: str) -> None:
    check_options(load_agent(text, environ={"TOKEN": SECRET}).session_options())


@FORMATS
def test_an_agent_made_from_a_file_has_them(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    check_options(AsyncAgent.create(text).options)


def test_what_a_file_does_not_say_stays_unsaid() -> None:
    options = load_agent('default_model = "scripted"', environ={}).session_options()
    names = ("confirmation_policy", "mcp_servers", "skill_dirs", "agent_dirs", "planning", "subagents")
    assert [getattr(options, name) for name in names] == [None] * 6


def test_an_empty_confirmation_block_is_a_policy() -> None:
    assert load_agent("confirmation {}", environ={}).confirmation == ConfirmationPolicy()


def test_a_variable_of_the_environment_reaches_a_server() -> None:
    found = load_agent('mcp_servers "git" { command = "git-mcp" }', environ={"LANEWAY_MCP_SERVERS_GIT_TIMEOUT_MS": "5"})
    assert found.mcp_servers["git"].timeout_ms == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('mcp_servers "a" {}', ["1:13: mcp_servers.a needs a command or a url"]),
        ("mcp_servers:\n  a:\n    lane: query\n", ["2:3: mcp_servers.a needs a command or a url"]),
        (
            'mcp_servers "a" {\n  command = "x"\n  url = "https://x"\n}',
            ["3:9: mcp_servers.a has a command and a url (keep one of them)"],
        ),
        (
            'mcp_servers "a" { comand = "x" }',
            ["1:19: there is no setting mcp_servers.a.comand (did you mean command?)"],
        ),
        (
            'mcp_servers "a" {\n  command = "x"\n  effect = "raed"\n}',
            [
                (
                    "3:12: mcp_servers.a.effect must be one of read, idempotent, write, or null, not 'raed' "
                    "(did you mean 'read'?)"
                )
            ],
        ),
        (
            'mcp_servers "a" {\n  command = "x"\n  lanes = { t = "qery" }\n}',
            [
                (
                    "3:17: mcp_servers.a.lanes.t must be one of control, query, execute, generate, not 'qery' "
                    "(did you mean 'query'?)"
                )
            ],
        ),
        (
            'confirmation {\n  escalate_to = ["eve"]\n}',
            ["2:17: escalate_to needs escalate_after_ms"],
        ),
        (
            'confirmation { time_out_action = "reject" }',
            ["1:16: there is no setting confirmation.time_out_action (did you mean timeout_action?)"],
        ),
        ("max_plan_steps = 0", ["1:18: max_plan_steps must be a whole number from 1 to 1,000, or null, not 0"]),
        ("planing = true", ["1:1: there is no setting planing (did you mean planning?)"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_what_was_meant(text: str, expected: list[str]) -> None:
    assert problems_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        f'mcp_servers "a" {{ url = "ftp://me:{SECRET}@x" }}',
        f'mcp_servers "a" {{\n command = "x"\n headers = {{ Authorization = ["{SECRET}"] }}\n}}',
        f'mcp_servers "a" {{\n command = "x"\n env = {{ TOKEN = ["{SECRET}"] }}\n}}',
        f'mcp_servers "a" {{\n command = "x"\n env = "{SECRET}"\n}}',
        f'mcp_servers "a" {{\n command = "x"\n args = "{SECRET}"\n}}',
        'mcp_servers "a" {\n command = "x"\n timeout_ms = env("SECRET")\n}',
    ],
)
def test_no_error_of_a_server_holds_a_secret(text: str) -> None:
    found = problems_of(text, SECRET=SECRET)
    assert found
    assert SECRET not in repr(found)


def test_a_server_does_not_print_its_secrets() -> None:
    found = load_agent(HCL, environ={"TOKEN": SECRET})
    assert SECRET not in f"{found!r} {found.settings!r} {found.session_options()!r} {found.mcp_servers!r}"


def test_the_words_for_defaults_are_those_of_the_records() -> None:
    def shown(value: object) -> str:
        return f"`{str(value).lower()}`" if isinstance(value, bool | str) else f"{value:,}"

    records: list[tuple[type[Any], object]] = [
        (ConfirmationBlock, ConfirmationPolicy()),
        (McpBlock, McpServerConfig(command="x")),
    ]
    for block, record in records:
        for each in settings_of(block):
            value = getattr(record, each.name)
            if isinstance(value, bool | int) or each.name == "timeout_action":
                assert each.setting.unset == shown(value), each.name
    options = SessionOptions.defaults()
    said = {each.name: each.setting.unset for each in settings_of(Settings)}
    assert said["max_plan_steps"] == shown(options.max_plan_steps)
    assert said["max_subagent_depth"] == shown(options.max_subagent_depth)
