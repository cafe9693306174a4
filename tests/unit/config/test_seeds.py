"""Files that people already have load as they are: both shapes, in every format that can hold them."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.config import (
    Layer,
    QueueBlock,
    Settings,
    by_channel,
    inbox_options,
    lane_configs,
    load,
    queue_options,
)
from laneway.mail import Drop, Mode, QueueOptions
from tests.unit.config.desk import SEED_001, SEED_003, SEED_003_WORKSPACE, load_text, values_of

LANES = "queue:\n  lanes:\n    main:\n      concurrency: 1      # Process one user message at a time\n"


@pytest.mark.parametrize("ending", [".json5", ".json", ".yaml"])
def test_the_block_of_the_first_shape_loads_verbatim(tmp_path: Path, ending: str) -> None:
    effective = load_text(tmp_path, SEED_001, f"laneway{ending}")
    settings = effective.settings
    assert queue_options(settings) == QueueOptions(mode=Mode.COLLECT, debounce_ms=1000, cap=20, drop=Drop.SUMMARIZE)
    assert by_channel(settings) == {"discord": QueueOptions(mode=Mode.COLLECT)}
    assert settings.queue.debounce_idle is False
    assert {name: lane.concurrency for name, lane in lane_configs(settings).items()} == {
        "main": 4,
        "subagent": 8,
        "cron": 3,
    }
    assert effective.origin("queue.mode").line == 4
    assert effective.origin("queue.by_channel.discord.mode").column == 29


def test_the_block_of_the_second_shape_loads_verbatim(tmp_path: Path) -> None:
    effective = load_text(tmp_path, SEED_003)
    assert effective.settings.queue == QueueBlock(mode=Mode.COLLECT, debounce_ms=1000, debounce_idle=True)
    assert {name: lane.concurrency for name, lane in effective.settings.lanes.items()} == {
        "main": 1,
        "subagent": 8,
        "cron": 3,
    }
    assert str(effective.origin("queue.debounce_idle")) == f"default for queue: at {tmp_path}/laneway.yaml:1"


@pytest.mark.parametrize(
    ("text", "mode", "debounce_ms"),
    [
        ("queue:\n  mode: collect\n  debounce_ms: 1000  # Wait 1 second for additional messages\n", "collect", 1000),
        ("queue:\n  mode: steer\n", "steer", 1000),
        ("queue:\n  mode: interrupt\n", "interrupt", 1000),
        ("queue:\n  mode: followup\n", "followup", 1000),
        ("# High responsiveness\nqueue:\n  mode: steer\n  debounce_ms: 0  # No debounce\n", "steer", 0),
        ("# Deep work mode\nqueue:\n  mode: collect\n  debounce_ms: 3000  # Allow longer batching\n", "collect", 3000),
        ("queue:\n  mode: followup  # in order\n  lanes:\n    main:\n      concurrency: 1\n", "followup", 1000),
    ],
)
def test_the_examples_of_the_second_shape_load(tmp_path: Path, text: str, mode: str, debounce_ms: int) -> None:
    settings = load_text(tmp_path, text).settings
    assert (settings.queue.mode, settings.queue.debounce_ms) == (mode, debounce_ms)
    assert settings.lanes["main"].concurrency == 1
    assert settings.queue.debounce_idle is True


def test_a_workspace_file_overrides_the_main_file(tmp_path: Path) -> None:
    folder = tmp_path / "agent_workspaces" / "assistant"
    folder.mkdir(parents=True)
    (folder / "agent.yaml").write_text(SEED_003_WORKSPACE, encoding="utf-8")
    main = tmp_path / "config.yaml"
    main.write_text(SEED_003, encoding="utf-8")
    effective = load(main, workspace=folder, environ={})
    assert (effective.settings.name, effective.settings.description) == ("Assistant", "Helpful assistant")
    assert effective.settings.queue.mode is Mode.STEER
    assert effective.settings.queue.debounce_ms == 1000
    assert str(effective.origin("queue.mode")) == f"workspace {folder}/agent.yaml:6:9"
    assert effective.origin("queue.debounce_ms").layer is Layer.FILE


def test_a_workspace_file_alone_has_the_second_shape(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(SEED_003_WORKSPACE, encoding="utf-8")
    settings = load(workspace=tmp_path, environ={}).settings
    assert (settings.lanes["main"].concurrency, settings.queue.debounce_idle) == (1, True)


def test_the_main_file_decides_the_shape(tmp_path: Path) -> None:
    """A gateway of the first shape keeps its four slots although a workspace file has a `queue` block."""
    (tmp_path / "agent.yaml").write_text(SEED_003_WORKSPACE, encoding="utf-8")
    main = tmp_path / "main.json5"
    main.write_text(SEED_001, encoding="utf-8")
    settings = load(main, workspace=tmp_path, environ={}).settings
    assert (settings.queue.mode, settings.queue.debounce_idle, settings.lanes["main"].concurrency) == (
        "steer",
        False,
        4,
    )


def test_what_is_set_counts_before_the_defaults_of_the_shape(tmp_path: Path) -> None:
    text = "queue: {debounceIdle: false}\nlanes: {main: 6}\n"
    settings = load_text(tmp_path, text).settings
    assert (settings.queue.debounce_idle, settings.lanes["main"].concurrency) == (False, 6)


def test_nothing_at_all_gives_the_defaults(tmp_path: Path) -> None:
    assert load(environ={}).settings == Settings()
    assert load_text(tmp_path, "").settings == Settings()
    assert load_text(tmp_path, "# only a comment\n").settings == Settings()
    assert load_text(tmp_path, "// only a comment", "c.json5").settings == Settings()
    assert load_text(tmp_path, "# only a comment", "c.toml").settings == Settings()
    assert load_text(tmp_path, "null").settings == Settings()


def test_the_width_of_main_in_the_first_shape() -> None:
    text = "agents:\n  defaults:\n    maxConcurrent: 7\n    subagents: {maxConcurrent: 2}\n"
    assert values_of(text) == {"lanes.main.concurrency": 7, "lanes.subagent.concurrency": 2}


def test_debounce_by_channel_as_peers_have_it(tmp_path: Path) -> None:
    text = (
        "{messages: {queue: {byChannel: {discord: 'steer', slack: {mode: 'collect', cap: 5}},"
        " debounceMsByChannel: {discord: 250, telegram: 0}}}}"
    )
    assert by_channel(load_text(tmp_path, text, "c.json").settings) == {
        "discord": QueueOptions(mode=Mode.STEER, debounce_ms=250),
        "slack": QueueOptions(mode=Mode.COLLECT, cap=5),
        "telegram": QueueOptions(debounce_ms=0),
    }


def test_the_limit_of_spawned_agents_is_the_width_of_their_lane(tmp_path: Path) -> None:
    text = "queue:\n  mode: collect\nbuiltins:\n  spawn:\n    config:\n      max_concurrent: 5\n"
    effective = load_text(tmp_path, text)
    assert effective.settings.spawn.max_concurrent == 5
    assert effective.settings.lanes["subagent"].concurrency == 5
    assert str(effective.origin("lanes.subagent.concurrency")).startswith("default as spawn.max_concurrent: ")


def test_a_width_that_is_set_stays_beside_the_limit_of_spawned_agents(tmp_path: Path) -> None:
    text = "queue: {lanes: {subagent: {concurrency: 8}}}\nbuiltins: {spawn: {config: {maxConcurrent: 5}}}\n"
    settings = load_text(tmp_path, text).settings
    assert (settings.lanes["subagent"].concurrency, settings.spawn.max_concurrent) == (8, 5)


def test_lanes_may_stand_in_the_queue_or_at_the_top() -> None:
    assert values_of(LANES) == values_of("lanes:\n  main: 1\n") == {"lanes.main.concurrency": 1}


def test_a_session_of_settings_goes_into_an_inbox_whole(tmp_path: Path) -> None:
    options = inbox_options(load_text(tmp_path, SEED_003).settings)
    assert options["debounce_idle"] is True
    assert options["concurrency"] == 1
