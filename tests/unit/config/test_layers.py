"""Where each value came from: default, file, workspace, environment, command line; the strongest last."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.config import Effective, InvalidConfigError, Layer, load
from laneway.mail import Mode
from tests.unit.config.desk import load_text, problems_of

MAIN = """\
messages:
  queue:
    mode: collect
    debounceMs: 1
    maxWaitMs: 1
    cap: 1
    byChannel:
      discord: {mode: followup, cap: 1}
agents:
  defaults:
    maxConcurrent: 11
"""
WORKSPACE = """\
name: Assistant
queue:
  debounce_ms: 2
  max_wait_ms: 2
  cap: 2
  by_channel: {discord: {cap: 2}, slack: steer}
"""
ENVIRON = {
    "LANEWAY_QUEUE_MAX_WAIT_MS": "3",
    "LANEWAY_QUEUE_CAP": "3",
    "LANEWAY_LANES_CRON_CONCURRENCY": "3",
    "LANEWAY_STORE": "sqlite:///other.db",
    "PATH": "/bin",
}


@pytest.fixture
def effective(tmp_path: Path) -> Effective:
    """Every layer sets something that a stronger one overrides."""
    (tmp_path / "agent.yaml").write_text(WORKSPACE, encoding="utf-8")
    (tmp_path / "main.yaml").write_text(MAIN, encoding="utf-8")
    return load(tmp_path / "main.yaml", workspace=tmp_path, environ=ENVIRON, overrides=["queue.cap=4"])


@pytest.mark.parametrize(
    ("name", "value", "layer", "where"),
    [
        ("queue.mode", "collect", Layer.FILE, "main.yaml:3:11"),
        ("queue.debounce_ms", 2, Layer.WORKSPACE, "agent.yaml:3:16"),
        ("queue.max_wait_ms", 3, Layer.ENVIRONMENT, "LANEWAY_QUEUE_MAX_WAIT_MS"),
        ("queue.cap", 4, Layer.COMMAND_LINE, "--set queue.cap"),
        ("queue.drop", "summarize", Layer.DEFAULT, ""),
        ("queue.by_channel.discord.mode", "followup", Layer.FILE, "main.yaml:8:23"),
        ("queue.by_channel.discord.cap", 2, Layer.WORKSPACE, "agent.yaml:6:31"),
        ("queue.by_channel.slack.mode", "steer", Layer.WORKSPACE, "agent.yaml:6:42"),
        ("lanes.main.concurrency", 11, Layer.FILE, "main.yaml:11:20"),
        ("lanes.subagent.concurrency", 8, Layer.DEFAULT, ""),
        ("lanes.cron.concurrency", 3, Layer.ENVIRONMENT, "LANEWAY_LANES_CRON_CONCURRENCY"),
        ("name", "Assistant", Layer.WORKSPACE, "agent.yaml:1:7"),
    ],
)
def test_the_strongest_layer_counts_and_is_named(
    effective: Effective, tmp_path: Path, name: str, value: object, layer: Layer, where: str
) -> None:
    found = effective.value(name)
    assert (found.value, found.origin.layer) == (value, layer)
    assert found.origin.where.replace(f"{tmp_path}/", "") == where


def test_the_settings_are_the_values(effective: Effective) -> None:
    settings = effective.settings
    assert (settings.queue.cap, settings.queue.debounce_ms, settings.lanes["main"].concurrency) == (4, 2, 11)
    assert settings.queue.by_channel["slack"].mode is Mode.STEER
    assert [Path(file).name for file in effective.files] == ["main.yaml", "agent.yaml"]


def test_every_setting_has_an_origin(effective: Effective) -> None:
    names = [value.name for value in effective.values]
    assert len(names) == len(set(names))
    assert {"queue.mode", "queue.on_crash", "lanes.main.ageing_ms", "spawn.max_concurrent", "max_concurrent"} <= set(
        names
    )
    assert all(str(value.origin) for value in effective.values)


def test_a_name_that_nobody_set_has_a_suggestion(effective: Effective) -> None:
    with pytest.raises(KeyError, match=r"did you mean queue\.mode"):
        effective.origin("queue.mod")


LISTED = """\
queue: {mode: followup}
workspaces:
  assistant:
    path: rooms/a
    queue: {mode: interrupt, cap: 5}
    lanes: {main: 2}
  plain: rooms/b
  nowhere: {max_concurrent: 9}
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A main file that lists its workspaces."""
    for room in "ab":
        (tmp_path / "rooms" / room).mkdir(parents=True)
    (tmp_path / "rooms" / "a" / "agent.toml").write_text("[queue]\ncap = 6\n", encoding="utf-8")
    (tmp_path / "main.yaml").write_text(LISTED, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("by_name", [True, False])
def test_a_listed_workspace_is_found_by_its_name_and_by_its_folder(house: Path, by_name: bool) -> None:
    wanted = "assistant" if by_name else house / "rooms" / "b" / ".." / "a"
    found = load(house / "main.yaml", workspace=wanted, environ={})
    assert (found.settings.queue.mode, found.settings.queue.cap) == ("interrupt", 6)
    assert found.settings.lanes["main"].concurrency == 2
    assert found.origin("queue.mode").layer is Layer.WORKSPACE
    assert found.origin("queue.mode").line == 5
    assert found.origin("queue.cap").file.endswith("agent.toml")


def test_a_listed_workspace_needs_no_file_and_no_folder(house: Path) -> None:
    main = house / "main.yaml"
    assert load(main, workspace="plain", environ={}).settings.queue.mode is Mode.FOLLOWUP
    assert load(main, workspace="nowhere", environ={}).settings.max_concurrent == 9


def test_workspaces_do_not_touch_each_other_or_the_rest(house: Path) -> None:
    whole = load(house / "main.yaml", environ={})
    assert (whole.settings.queue.mode, whole.settings.queue.cap, whole.settings.max_concurrent) == (
        "followup",
        20,
        None,
    )
    assert {name: block.path for name, block in whole.settings.workspaces.items()} == {
        "assistant": "rooms/a",
        "plain": "rooms/b",
        "nowhere": "",
    }
    assert whole.value("workspaces.assistant.queue.cap").value == 5


def test_a_queue_block_of_a_listed_workspace_has_the_second_shape(tmp_path: Path) -> None:
    main = tmp_path / "main.yaml"
    main.write_text("workspaces: {a: {queue: {}}, b: {}}\n", encoding="utf-8")
    widths = [load(main, workspace=name, environ={}).settings.lanes["main"].concurrency for name in "ab"]
    assert widths == [1, 4]
    assert load(main, environ={}).settings.lanes["main"].concurrency == 4


def test_a_workspace_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="there is no such folder"):
        load(workspace=tmp_path / "no", environ={})
    with pytest.raises(InvalidConfigError, match=r"cannot be read|no such folder"):
        load(workspace="a\0b", environ={})


def test_a_workspace_has_one_file(tmp_path: Path) -> None:
    for name in ("agent.yaml", "agent.json"):
        (tmp_path / name).write_text("", encoding="utf-8")
    with pytest.raises(InvalidConfigError, match=r"more than one file for this workspace: agent\.yaml and agent\.json"):
        load(workspace=tmp_path, environ={})


def test_a_workspace_file_lists_no_workspaces(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("workspaces: {a: b}\n", encoding="utf-8")
    with pytest.raises(InvalidConfigError) as caught:
        load(workspace=tmp_path, environ={})
    assert problems_of(caught.value)[0].startswith("agent.yaml:1:1: there is no setting workspaces")


def test_a_name_with_a_dot_is_quoted_in_paths(tmp_path: Path) -> None:
    found = load_text(tmp_path, "lanes: {a.b: 2}\n")
    assert found.value('lanes."a.b".concurrency').value == 2
    assert load(environ={}, overrides=['lanes."a.b"=3']).settings.lanes["a.b"].concurrency == 3


def test_a_name_alone_makes_a_lane_of_width_one(tmp_path: Path) -> None:
    found = load_text(tmp_path, "lanes:\n  deploy:\nqueue: {by_channel: {irc: }}\n")
    assert found.settings.lanes["deploy"].concurrency == 1
    assert found.settings.queue.by_channel["irc"].mode is None
