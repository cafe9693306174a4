"""`load_agent`: a path or a text in, the settings of an agent out; problems come all at once and hold no secret."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.config import AgentSettings, InvalidConfigError, agent_settings, check, inbox_options, load, load_agent
from laneway.config.agent_blocks import BUILT_IN
from laneway.config.settings import TOOL_QUEUE, QueueBlock, Settings
from laneway.config.shape import settings_of, subs_of
from laneway.identity import Identity
from laneway.mail import Drop, Mode, QueueOptions
from laneway.options import (
    LaneHandlerConfig,
    PermissionPolicy,
    PriorityBoostConfig,
    RateLimitConfig,
    RetryPolicyConfig,
    SessionOptions,
    SessionQueueConfig,
)
from laneway.policies import McpServerConfig
from laneway.records import Effect
from laneway.spending import Budget, BudgetScope, BudgetWindow
from laneway.tools import builtin_tools
from tests.seed_config import SEED_000

SECRET = "sk-very-secret"
SEED_000_QUEUE = SessionQueueConfig(
    control_max_concurrency=2,
    query_max_concurrency=10,
    execute_max_concurrency=5,
    generate_max_concurrency=1,
    enable_metrics=True,
    enable_dlq=True,
    enable_alerts=True,
    storage_path="./queue_data",
    default_timeout_ms=60_000,
    retry_policy=RetryPolicyConfig("exponential", 3, 100),
    rate_limit=RateLimitConfig("per_second", 100),
    priority_boost=PriorityBoostConfig("standard", 300_000),
    pressure_threshold=50,
    lane_timeouts={"query": 30_000, "execute": 120_000},
)
AGENT_HCL = """\
default_model = "openai/gpt-x"

providers "openai" {
  apiKey  = env("OPENAI_API_KEY")
  baseUrl = "https://models.example/v1"
  headers = { "X-Team" = "blue-${env("TEAM", "one")}" }

  models "gpt-x" {
    name         = "GPT X"
    limit        = { context = 128000, output = 4096 }
    input_price  = 1.25
    output_price = 10
    tool_call    = true
  }
}

providers "local" {
  kind       = "ollama"
  timeout_ms = 5000
}

system = <<-EOT
  Be careful.
    Be kind.
  EOT

tools          = ["read", "grep", "bash"]
disabled_tools = ["grep"]
tool_lanes { deploy = "execute" }
tool_effects { deploy = "idempotent" }

permissions {
  allow            = ["read", "bash(git *)"]
  deny             = ["write(**/.env*)"]
  ask              = ["bash"]
  default_decision = "deny"
}

max_tool_rounds        = 20
max_calls_per_answer   = 8
max_execution_time_ms  = 600000
tool_timeout_ms        = 30000
background_after_ms    = 5000
background_tools       = ["bash"]
output_max             = 10000
auto_compact           = true
auto_compact_threshold = 0.7
session_store          = "sqlite:///agent.db"
on_crash               = "report"
environment            = ["PATH", "LANG"]
skill_dirs             = ["./skills"]
agent_dirs             = ["./agents"]
mcp_servers "git" { command = "git-mcp"  env = { TOKEN = env("OPENAI_API_KEY") } }
budgets "daily" { scope = "tenant"  window = "day"  money = 5 }
identity { tenant_id = "t1" }
"""
AGENT_YAML = """\
default_model: openai/gpt-x
providers:
  openai:
    api_key: ${OPENAI_API_KEY}
    base_url: https://models.example/v1
    headers: {X-Team: "blue-${TEAM:-one}"}
    models:
      gpt-x:
        {name: GPT X, context_tokens: 128000, output_max: 4096, inputPrice: 1.25, output_price: 10, toolCall: true}
  local: {kind: ollama, timeoutMs: 5000}
system: |
  Be careful.
    Be kind.
tools: [read, grep, bash]
disabledTools: [grep]
toolLanes: {deploy: execute}
tool-effects: {deploy: idempotent}
permissions:
  allow: [read, bash(git *)]
  deny: ["write(**/.env*)"]
  ask: [bash]
  defaultDecision: deny
max_tool_rounds: 20
max_calls_per_answer: 8
max_execution_time_ms: 600000
tool_timeout_ms: 30000
background_after_ms: 5000
backgroundTools: [bash]
output_max: 10000
auto_compact: true
auto_compact_threshold: 0.7
sessions_dir: sqlite:///agent.db
on_crash: report
environment: [PATH, LANG]
skill_dirs: [./skills]
agent_dirs: [./agents]
mcp_servers: {git: {command: git-mcp, env: {TOKEN: 'env("OPENAI_API_KEY")'}}}
budgets: {daily: {scope: tenant, window: day, money: 5}}
identity: {tenant_id: t1}
"""
AGENT_TOML = """\
default_model = "openai/gpt-x"
system = '''
Be careful.
  Be kind.
'''
tools = ["read", "grep", "bash"]
disabled_tools = ["grep"]
tool_lanes = {deploy = "execute"}
tool_effects.deploy = "idempotent"
max_tool_rounds = 20
max_calls_per_answer = 8
max_execution_time_ms = 600000
tool_timeout_ms = 30000
background_after_ms = 5000
background_tools = ["bash"]
output_max = 10000
auto_compact = true
auto_compact_threshold = 0.7
session_store = "sqlite:///agent.db"
on_crash = "report"
environment = ["PATH", "LANG"]
skill_dirs = ["./skills"]
agent_dirs = ["./agents"]
budgets.daily = {scope = "tenant", window = "day", money = 5}
identity = {tenant_id = "t1"}
[providers.openai]
apiKey = "${OPENAI_API_KEY}"
baseUrl = "https://models.example/v1"
headers = {X-Team = "blue-${TEAM:-one}"}
[providers.openai.models.gpt-x]
name = "GPT X"
limit = {context = 128000, output = 4096}
input_price = 1.25
output_price = 10
tool_call = true
[providers.local]
kind = "ollama"
timeout_ms = 5000
[permissions]
allow = ["read", "bash(git *)"]
deny = ["write(**/.env*)"]
ask = ["bash"]
default_decision = "deny"
[mcp_servers.git]
command = "git-mcp"
env = {TOKEN = 'env("OPENAI_API_KEY")'}
"""
ENVIRON = {"OPENAI_API_KEY": SECRET}


def problems_of(text: str, **environ: str) -> list[str]:
    """What is wrong with a text, without its name."""
    with pytest.raises(InvalidConfigError) as caught:
        load_agent(text, environ=environ)
    return [str(problem).partition(":")[2] for problem in caught.value.problems]


def queue_of(text: str) -> SessionQueueConfig | None:
    return load_agent(text, environ={}).queue


# ---- what is read ----


def test_the_complete_queue_block_of_seed_000_is_read_with_every_nested_block() -> None:
    assert queue_of(SEED_000) == SEED_000_QUEUE


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (
            'retry_policy {\n strategy = "fixed"\n max_retries = 5\n fixed_delay_ms = 1000  # 1 second\n}',
            SessionQueueConfig(retry_policy=RetryPolicyConfig("fixed", 5, 100, 1000)),
        ),
        ('retry_policy { strategy = "none" }', SessionQueueConfig(retry_policy=RetryPolicyConfig("none"))),
        ("retry_policy {}", SessionQueueConfig(retry_policy=RetryPolicyConfig())),
        ('rate_limit { limit_type = "unlimited" }', SessionQueueConfig(rate_limit=RateLimitConfig("unlimited"))),
        ("priority_boost {}", SessionQueueConfig(priority_boost=PriorityBoostConfig())),
        ("pressure_threshold = 50", SessionQueueConfig(pressure_threshold=50)),
        ("enable_dlq = true\n dlq_max_size = 7", SessionQueueConfig(enable_dlq=True, dlq_max_size=7)),
        ("lane_timeouts { query = 1 }", SessionQueueConfig(lane_timeouts={"query": 1})),
        (
            'lane_handlers "execute" {\n mode = "external"\n timeout_ms = 5\n ordered = false\n}',
            SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("external", 5, ordered=False)}),
        ),
        (
            (
                'lane_handlers {\n execute {\n mode = "external"\n labels = ["gpu", "os=linux"]\n sticky = "session"\n'
                " sticky_ms = 0\n fallback = true\n lease_ms = 7\n background_after_ms = 9\n }\n}"
            ),
            SessionQueueConfig(
                lane_handlers={
                    "execute": LaneHandlerConfig(
                        "external",
                        lease_ms=7,
                        fallback=True,
                        labels=("gpu", "os=linux"),
                        sticky="session",
                        sticky_ms=0,
                        background_after_ms=9,
                    )
                }
            ),
        ),
        (
            'lane_handlers {\n query = "hybrid"\n generate {}\n}',
            SessionQueueConfig(lane_handlers={"query": LaneHandlerConfig("hybrid"), "generate": LaneHandlerConfig()}),
        ),
        ("", SessionQueueConfig()),
    ],
)
def test_each_part_of_the_queue_is_honoured_by_itself(inside: str, expected: SessionQueueConfig) -> None:
    assert queue_of(f"queue {{\n {inside}\n}}") == expected


@pytest.mark.parametrize(
    "text",
    [
        'queue {\n lane_handlers "execute" {\n labels = ["gpu"]\n sticky = "tenant"\n background_after_ms = 0\n }\n}',
        "queue:\n  lane_handlers:\n    execute: {labels: [gpu], sticky: TENANT, background_after_ms: 0}\n",
        '[queue.lane_handlers.execute]\nlabels = ["gpu"]\nsticky = "tenant"\nbackground_after_ms = 0\n',
    ],
    ids=["hcl", "yaml", "toml"],
)
def test_who_may_run_the_calls_of_a_lane_is_read_alike_in_every_format(text: str) -> None:
    handler = LaneHandlerConfig(labels=("gpu",), sticky="tenant", background_after_ms=0)
    assert queue_of(text) == SessionQueueConfig(lane_handlers={"execute": handler})


@pytest.mark.parametrize(
    "text",
    [
        'default_model = "scripted"',
        "queue:\n",
        "queue:\n  mode: steer\n  cap: 5\n",
        "queue:\n  lanes: {main: 2}\n",
        "messages:\n  queue: {mode: collect}\n",
    ],
)
def test_there_is_no_queue_of_tools_unless_the_file_speaks_of_one(text: str) -> None:
    assert queue_of(text) is None


@pytest.mark.parametrize("text", [AGENT_HCL, AGENT_YAML, AGENT_TOML], ids=["hcl", "yaml", "toml"])
def test_every_setting_is_read_alike_in_every_format(text: str) -> None:
    found = load_agent(text, environ=ENVIRON)
    openai, model = found.providers["openai"], found.providers["openai"].models["gpt-x"]
    assert (openai.api_key, openai.base_url) == (SECRET, "https://models.example/v1")
    assert openai.headers == {"X-Team": "blue-one"}
    assert dataclasses.asdict(model) == {
        "name": "GPT X",
        "context_tokens": 128_000,
        "output_max": 4096,
        "input_price": 1.25,
        "output_price": 10.0,
        "tool_call": True,
    }
    assert (found.providers["local"].kind, found.providers["local"].timeout_ms) == ("ollama", 5000)
    assert found.permissions == PermissionPolicy(
        allow=("read", "bash(git *)"), deny=("write(**/.env*)",), ask=("bash",), default_decision="deny"
    )
    rest = {name: getattr(found, name) for name in AgentSettings.__dataclass_fields__}
    for name in ("providers", "permissions", "settings"):
        del rest[name]
    assert rest == {
        "default_model": "openai/gpt-x",
        "system": "Be careful.\n  Be kind.\n",
        "tools": ("read", "grep", "bash"),
        "disabled_tools": ("grep",),
        "tool_lanes": {"deploy": "execute"},
        "tool_effects": {"deploy": Effect.IDEMPOTENT},
        "queue": None,
        "messages": QueueOptions(),
        "max_tool_rounds": 20,
        "max_calls_per_answer": 8,
        "max_execution_time_ms": 600_000,
        "tool_timeout_ms": 30_000,
        "background_after_ms": 5_000,
        "background_tools": ("bash",),
        "output_max": 10_000,
        "auto_compact": True,
        "auto_compact_threshold": 0.7,
        "record": None,
        "session_store": "sqlite:///agent.db",
        "on_crash": "report",
        "environment": ("PATH", "LANG"),
        "skill_dirs": ("./skills",),
        "agent_dirs": ("./agents",),
        "mcp_servers": {"git": McpServerConfig(command="git-mcp", env={"TOKEN": SECRET})},
        "confirmation": None,
        "planning": None,
        "max_plan_steps": None,
        "subagents": None,
        "max_subagents": None,
        "max_parallel_tasks": None,
        "max_subagent_depth": None,
        "budgets": (Budget(name="daily", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, money=5),),
        "identity": Identity(tenant_id="t1"),
        "retention_limits": None,
    }


def test_an_empty_agent_says_nothing() -> None:
    found = load_agent("# nothing\n", environ={})
    assert dataclasses.replace(found, settings=Settings()) == AgentSettings()
    assert found.session_options() == SessionOptions()


def test_the_settings_become_options_of_a_session() -> None:
    options = load_agent(AGENT_HCL + SEED_000, environ=ENVIRON).session_options()
    assert options.queue_config == SEED_000_QUEUE
    assert options.permission_policy is not None
    assert (options.max_tool_rounds, options.on_crash, options.auto_compact_threshold) == (20, "report", 0.7)
    assert (options.tool_lanes, options.tool_effects) == ({"deploy": "execute"}, {"deploy": Effect.IDEMPOTENT})


def test_options_of_one_session_do_not_change_those_of_the_next() -> None:
    agent = load_agent("queue { enable_dlq = true }", environ={})
    first = agent.session_options().queue_config
    assert first is not None
    first.set_query_concurrency(99)
    assert agent.session_options().queue_config == SessionQueueConfig(enable_dlq=True)


# ---- the two families of `queue` ----


def test_the_two_families_of_queue_keys_are_all_of_them_and_have_none_in_common() -> None:
    declared = {each.name for each in dataclasses.fields(QueueBlock)}
    messages = {"mode", "debounce_ms", "max_wait_ms", "debounce_idle", "cap", "drop", "interrupt_grace_ms"}
    messages |= {"dedupe_ms", "expires_ms", "on_crash", "by_channel"}
    assert declared == messages | TOOL_QUEUE
    assert messages & TOOL_QUEUE == set()
    assert set(SessionQueueConfig.CHECKS) == TOOL_QUEUE


def test_one_block_may_speak_of_messages_and_of_tools() -> None:
    found = load_agent('queue {\n  mode = "steer"\n  query_max_concurrency = 8\n}\n', environ={})
    assert found.queue == SessionQueueConfig(query_max_concurrency=8)
    assert found.messages == QueueOptions(mode=Mode.STEER)
    assert found.session_options().mode is Mode.STEER
    assert inbox_options(found.settings)["mode"] is Mode.STEER


def test_what_messages_do_is_told_without_the_defaults() -> None:
    assert load_agent(SEED_000, environ={}).messages.is_empty
    environ = {"LANEWAY_QUEUE_DEBOUNCE_MS": "5"}
    found = load_agent("messages:\n  queue: {cap: 20, drop: old}\n", environ=environ)
    assert found.messages == QueueOptions(cap=20, drop=Drop.OLD, debounce_ms=5)


def test_the_names_of_the_built_in_tools_are_those_that_there_are() -> None:
    assert sorted(BUILT_IN) == sorted(tool.spec.name for tool in builtin_tools())


@pytest.mark.parametrize(
    ("text", "idle", "width"),
    [
        (SEED_000, False, 4),
        ("queue { retry_policy {} }", False, 4),
        ('queue {\n  mode = "steer"\n  enable_dlq = true\n}', True, 1),
        ("queue:\n  lanes: {cron: 2}\n  enable_dlq: true\n", True, 1),
        ("queue:\n", True, 1),
    ],
)
def test_a_queue_that_only_speaks_of_tools_leaves_the_defaults_of_messages_alone(
    text: str, idle: bool, width: int
) -> None:
    settings = load_agent(text, environ={}).settings
    assert (settings.queue.debounce_idle, settings.lanes["main"].concurrency) == (idle, width)


# ---- paths, texts and what they are taken for ----


@pytest.mark.parametrize("name", ["agent.hcl", "agent.acl", "my=agent: 1.hcl"])
def test_a_path_is_read_as_its_ending_says(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SEED_000, encoding="utf-8")
    wanted = SEED_000_QUEUE.copy()
    wanted.storage_path = str(tmp_path / "queue_data")  # of a file, meant from its folder
    assert load_agent(tmp_path / name, environ={}).queue == wanted
    assert load_agent(str(tmp_path / name), environ={}).queue == wanted


def test_the_file_of_a_workspace_may_be_hcl(tmp_path: Path) -> None:
    (tmp_path / "agent.hcl").write_text('queue {\n  mode = "steer"\n}\n', encoding="utf-8")
    found = load(workspace=tmp_path, environ={})
    assert (found.settings.queue.mode, found.origin("queue.mode").line) == (Mode.STEER, 2)


def test_a_workspace_of_the_main_file_has_an_agent_of_its_own(tmp_path: Path) -> None:
    main = tmp_path / "laneway.hcl"
    main.write_text(
        'default_model = "a/b"\nworkspaces "room" {\n  default_model = "c/d"\n  queue { retry_policy {} }\n'
        '  permissions {}\n  providers "c" { api_key = "k" }\n}\n',
        encoding="utf-8",
    )
    inside = agent_settings(load(main, workspace="room", environ={}))
    outside = agent_settings(load(main, environ={}))
    assert (inside.default_model, outside.default_model) == ("c/d", "a/b")
    assert (inside.queue, outside.queue) == (SessionQueueConfig(retry_policy=RetryPolicyConfig()), None)
    assert (inside.permissions, outside.permissions) == (PermissionPolicy(), None)
    assert (inside.providers["c"].api_key, dict(outside.providers)) == ("k", {})


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("bad = 1", "HCL"),
        ("bad {}", "HCL"),
        ('# why\nbad "x" {\n}', "HCL"),
        ('bad = env("X", "y")', "HCL"),
        ("bad = {\n  a: 1\n}", "HCL"),
        ("bad = <<E\na: 1\nE\n", "HCL"),
        ("bad = 1\nmore {\n}", "HCL"),
        ("bad: 1", "YAML"),
        ("bad:\n  a: 1", "YAML"),
        ("---\nbad: {a: 1}", "YAML"),
        ("'bad': a=b", "YAML"),
        ("- bad=1", "YAML"),
        ("[bad]\na = 1", "TOML"),
        ("a = 1\n[bad]\n", "TOML"),
        ("[[bad]]\na = 1", "TOML"),
        ("bad.a = 1", "TOML"),
        ("bad = 'x'", "TOML"),
        ('{"bad": 1}', "JSON"),
        (" {bad: 1, // why\n}", "JSON"),
    ],
)
def test_a_text_is_what_it_looks_like_and_an_error_names_the_guess(text: str, guess: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_agent(text, environ={})
    assert caught.value.problems[0].source == f"the text, read as {guess}"
    assert caught.value.problems[0].line > 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "the configuration: an agent is configured by the path of a file, or by the text of one"),
        (" \n", "the configuration: an agent is configured by the path of a file, or by the text of one"),
        ("agent.hcl", "agent.hcl: there is no such file"),
        ("no such agent", "no such agent: there is no such file"),
        ("x = 1\n" + "#" * 2**20, "the text, read as HCL: the text is larger than 1,024 KiB"),
        ("x = 1\x00\n", "the text, read as HCL:1:6: a control character (is this a text file?)"),
    ],
)
def test_a_source_that_is_neither_is_refused(source: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_agent(source, environ={})
    assert str(caught.value) == message


# ---- what is refused ----


def test_all_problems_come_at_once_with_their_places_and_what_was_meant() -> None:
    text = """\
default_modle = "x"
queue {
  query_max_concurency = 4
  lane_timeouts { exceute = 5 }
  lane_handlers { query { mod = "external" } }
  retry_policy { strategy = "expo" }
  rate_limits {}
}
tools = ["read", "bsh"]
providers "openai" { modles "x" {} }
permissions { deny = [] default_decison = "ask" }
on_crash = "rerun"
max_tool_rounds = 0
"""
    assert problems_of(text) == [
        "1:1: there is no setting default_modle (did you mean default_model?)",
        "3:3: there is no setting queue.query_max_concurency (did you mean query_max_concurrency?)",
        "4:19: there is no lane 'exceute' in a session (did you mean execute?)",
        "5:27: there is no setting queue.lane_handlers.query.mod (did you mean mode?)",
        "6:29: queue.retry_policy.strategy must be one of exponential, fixed, none, or null, not 'expo'",
        "7:3: there is no setting queue.rate_limits (did you mean rate_limit?)",
        f"9:18: tools[1] must be one of {', '.join(BUILT_IN)}, not 'bsh' (did you mean 'bash'?)",
        "10:22: there is no setting providers.openai.modles (did you mean models?)",
        "11:25: there is no setting permissions.default_decison (did you mean default_decision?)",
        "12:12: on_crash must be one of resume, report, ask, or null, not 'rerun'",
        "13:19: max_tool_rounds must be a whole number from 1 to 1,000,000, or null, not 0",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('queue {\n  retry_policy { strategy = "fixed" }\n}', "2:29: a fixed retry needs fixed_delay_ms"),
        ('queue {\n  rate_limit { limit_type = "per_hour" }\n}', "2:29: a limit per_hour needs max_operations"),
        ("queue {\n  rate_limit { max_operations = 5 }\n}", "2:33: a rate limit needs limit_type"),
        ("queue {\n  rate_limit {}\n}", "2:3: a rate limit needs limit_type"),
        ('providers "x" {\n  models "y" { input_price = 4 }\n}', "2:30: input_price needs output_price"),
        (
            'providers "x" { models "y" {\n  limit = { output = 5 }\n  output_max = 5\n} }',
            "3:16: providers.x.models.y.output_max says the same as providers.x.models.y.limit.output (line 2)",
        ),
        (
            'queue {\n  lane_handlers { query { labels = ["gpu", "a b"] } }\n}',
            (
                "2:44: queue.lane_handlers.query.labels[1] must be a word such as `gpu` or `os=linux`, not 'a b' "
                "(without spaces and commas)"
            ),
        ),
        (
            'queue {\n  lane_handlers { query { labels = "gpu" } }\n}',
            (
                "2:36: queue.lane_handlers.query.labels must be a list of at most 50, each a word such as `gpu` or "
                "`os=linux`, or null, not 'gpu' (put it into a list)"
            ),
        ),
        (
            'queue {\n  lane_handlers { query { sticky = "sesion" } }\n}',
            (
                "2:36: queue.lane_handlers.query.sticky must be one of session, workspace, tenant, or null, "
                "not 'sesion' (did you mean 'session'?)"
            ),
        ),
        (
            "queue {\n  lane_handlers { query { sticky_ms = -1 } }\n}",
            "2:39: queue.lane_handlers.query.sticky_ms must be",
        ),
        ('providers "x" {}\nproviders "x" {}', "2:11: providers.x is set twice (line 1)"),
        ("tools = 5", "1:9: tools must be a list of at most 100, each one of read, "),
        ('tools = "read"', "1:9: tools must be a list of at most 100, each one of read, "),
        (
            "tools = [[]]",
            "1:10: tools[0] must be one of read, write, edit, patch, ls, glob, grep, bash, wait, web_fetch, not a",
        ),
        ("environment = [1]", "1:16: environment[0] must be text of 1 to 512 characters, not 1 (put quotes around it)"),
        ("identity = 5", "1:12: identity must be a block with keys, not 5 (keys here: tenant_id, principal"),
        ('identity { principal = "a"\n principal = "b" }', "2:2: identity.principal is set twice (line 1)"),
        ('identity { owner = "a" }', "1:12: there is no setting identity.owner (known here: tenant_id, principal"),
        (
            f'identity {{ principal = "{"x" * 1_000}" }}',
            "1:24: identity.principal must be text of 1 to 400 characters",
        ),
        (
            'identity { principal = "a\\u001b[31m" }',
            "1:24: identity.principal must be text of 1 to 400 characters, or null, not 'a\\x1b[31m' (plain text)",
        ),
        (
            'identity { tenant_id = "a/b" }',
            "1:24: identity.tenant_id must be text of 1 to 400 characters, or null, not 'a/b' (text",
        ),
        (
            'identity { tenant_id = ".." }',
            "1:24: identity.tenant_id must be text of 1 to 400 characters, or null, not '..' (text",
        ),
        ("budgets = 5", "1:11: budgets must be a block with keys"),
        ("budgets { a { tokens = 5 } }", "1:11: budgets.a needs a scope (one of run, session, principal, tenant)"),
        (
            'budgets "a" { scope = "run"  tokens = 5  on_exhausted = "cheaper"  cheaper = "gpt-5" }',
            "1:78: budgets.a.cheaper must be `scripted` or `<provider>/<model>`, or null, not 'gpt-5' (write",
        ),
        ('budgets "a" { scope = "run" }', "1:9: budget 'a' limits nothing"),
        ('budgets "a" { scope = "house"  tokens = 5 }', "1:23: budgets.a.scope must be one of run, session"),
        ('budgets "a" { scope = "run"  tokens = 0 }', "1:39: budgets.a.tokens must be a whole number from 1"),
        (
            'budgets "a" {\n scope = "session"  tokens = 5  on_exhausted = "park"\n}',
            "1:9: budget 'a' has no window that could open again",
        ),
        (
            'budgets "a" { scope = "tenant"  window = "day"  money = 5  timezone = "Mars" }',
            "1:9: budget 'a' has no such",
        ),
        ('tool_lanes = ["x"]', "1:14: tool_lanes must be a block with keys, not a list (one key for each tool)"),
        (
            'identity = { principal = env("NOBODY") }',
            "1:26: identity.principal refers to the variable NOBODY, which is not set",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_its_place(text: str, line: str) -> None:
    (found,) = problems_of(text)
    assert found.startswith(line)


def test_settings_that_need_each_other_are_checked_in_workspaces_and_over_all_layers(tmp_path: Path) -> None:
    main = tmp_path / "a.hcl"
    main.write_text('workspaces "w" {\n  queue { retry_policy { strategy = "fixed" } }\n}\n', encoding="utf-8")
    (problem,) = check(main, environ={})
    assert (problem.line, problem.setting) == (2, "workspaces.w.queue.retry_policy.fixed_delay_ms")
    text = 'queue { retry_policy { strategy = "fixed" } }'
    environ = {"LANEWAY_QUEUE_RETRY_POLICY_FIXED_DELAY_MS": "5"}
    assert load_agent(text, environ=environ).queue == SessionQueueConfig(
        retry_policy=RetryPolicyConfig("fixed", fixed_delay_ms=5)
    )
    with pytest.raises(InvalidConfigError, match="LANEWAY_QUEUE_RETRY_POLICY_STRATEGY: a fixed retry needs"):
        load_agent("queue {}", environ={"LANEWAY_QUEUE_RETRY_POLICY_STRATEGY": "fixed"})


# ---- the environment above the file ----


def test_variables_beat_the_file() -> None:
    environ = {
        "LANEWAY_DEFAULT_MODEL": "scripted",
        "LANEWAY_TOOLS": "read, ls",
        "LANEWAY_QUEUE_QUERY_MAX_CONCURRENCY": "3",
        "LANEWAY_QUEUE_LANE_TIMEOUTS_QUERY": "7",
        "LANEWAY_QUEUE_LANE_HANDLERS_EXECUTE": "external",
        "LANEWAY_PROVIDERS_OPENAI_API_KEY": "k",
        "LANEWAY_PROVIDERS_OPENAI_MODELS_GPT_X_CONTEXT_TOKENS": "5",
        "LANEWAY_TOOL_EFFECTS_MY_TOOL": "read",
        "LANEWAY_BUDGETS_DAILY_SCOPE": "tenant",
        "LANEWAY_BUDGETS_DAILY_TOKENS": "900",
        "LANEWAY_AUTO_COMPACT_THRESHOLD": "0.5",
        "LANEWAY_SYSTEM": "not ours",
        "LANEWAY_ENVIRONMENT": "production",
    }
    found = load_agent('default_model = "a/b"\nproviders "openai" { models "gpt-x" {} }\n', environ=environ)
    assert (found.default_model, found.tools, found.auto_compact_threshold) == ("scripted", ("read", "ls"), 0.5)
    assert found.queue == SessionQueueConfig(
        query_max_concurrency=3, lane_timeouts={"query": 7}, lane_handlers={"execute": LaneHandlerConfig("external")}
    )
    assert found.providers["openai"].api_key == "k"
    assert found.providers["openai"].models["gpt-x"].context_tokens == 5
    assert found.tool_effects == {"my_tool": Effect.READ}
    assert found.budgets == (Budget(name="daily", scope=BudgetScope.TENANT, tokens=900),)
    assert (found.system, found.environment) == (None, None)


@pytest.mark.parametrize(
    "variable",
    ["LANEWAY_TOOLS", "LANEWAY_BUDGETS_A_TOKENS", "LANEWAY_AUTO_COMPACT_THRESHOLD", "LANEWAY_PROVIDERS_X_BASE_URL"],
)
def test_a_variable_that_cannot_be_is_refused_without_its_value(variable: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_agent("queue {}", environ={variable: SECRET})
    assert str(caught.value).startswith(f"{variable}: ")
    assert SECRET not in str(caught.value)


# ---- laws ----


def test_the_words_for_defaults_are_those_of_the_records() -> None:
    """The pages say what holds when nobody says anything; the records are what really holds."""

    def said(block: type[Any], name: str) -> str:
        return next(each.setting.unset for each in settings_of(block) if each.name == name)

    def shown(value: object) -> str:
        if isinstance(value, bool | str):
            return f"`{str(value).lower()}`"
        return f"{value:,}" if isinstance(value, int) else str(value)

    queue, options = SessionQueueConfig(), SessionOptions.defaults()
    plain = [name for name in TOOL_QUEUE if name.endswith("_concurrency") or name.startswith("enable_")]
    for name in (*plain, "dlq_max_size"):
        value = getattr(queue, name)
        assert said(QueueBlock, name) == shown(bool(value) if name.startswith("enable_") else value)
    for name in ("max_tool_rounds", "max_calls_per_answer", "output_max", "auto_compact_threshold", "on_crash"):
        assert said(Settings, name) == shown(getattr(options, name))
    records: dict[str, object] = {
        "retry_policy": RetryPolicyConfig(),
        "priority_boost": PriorityBoostConfig(),
        "lane_handlers": LaneHandlerConfig(),
    }
    for inner in subs_of(QueueBlock):
        for each in settings_of(inner.block) if inner.name in records else ():
            value = getattr(records[inner.name], each.name)
            assert value in (None, (), "") or each.setting.unset == shown(value)


words = st.sampled_from(
    ["queue", "providers", "tools", "x", "enable_dlq", "{", "}", "=", ":", "\n", '"', "[", "]", "  "]
)


@pytest.mark.slow
@given(st.lists(words, min_size=1, max_size=20).map(" ".join) | st.text(min_size=1, max_size=30))
def test_any_source_gives_settings_or_the_one_error(source: str) -> None:
    try:
        found: object = load_agent(source, environ={})
    except InvalidConfigError as error:
        found = error.problems
        assert found
    assert isinstance(found, AgentSettings | tuple)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "query_max_concurrency": st.integers(1, 100),
            "enable_dlq": st.booleans(),
            "dlq_max_size": st.integers(1, 100),
            "default_timeout_ms": st.integers(1, 10**6),
            "lane_timeouts": st.dictionaries(st.sampled_from(["query", "execute"]), st.integers(1, 10**6)),
            "retry_policy": st.fixed_dictionaries({}, optional={"max_retries": st.integers(0, 9)}),
            "lane_handlers": st.dictionaries(
                st.sampled_from(["query", "control"]), st.fixed_dictionaries({}, optional={"ordered": st.booleans()})
            ),
        },
    )
)
def test_a_queue_in_a_file_is_the_queue_made_of_the_same_mapping(queue: dict[str, Any]) -> None:
    assert load_agent(json.dumps({"queue": queue}), environ={}).queue == SessionQueueConfig.from_mapping(queue)
