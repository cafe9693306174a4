"""Variables of the environment and options of the command line set what a file can set."""

from __future__ import annotations

import pytest

from laneway.config import InvalidConfigError, load
from laneway.config.outside import read_environment, read_overrides, variable_of


def environment(variables: dict[str, str], known: tuple[str, ...] = ()) -> dict[str, object]:
    assignments, problems = read_environment({f"LANEWAY_{key}": value for key, value in variables.items()}, known)
    assert problems == []
    return {".".join(each.path): each.value for each in assignments}


def refused(**variables: str) -> list[str]:
    return [
        str(each) for each in read_environment({f"LANEWAY_{key}": value for key, value in variables.items()}, ())[1]
    ]


def options(*overrides: str) -> dict[str, object]:
    assignments, problems = read_overrides(overrides)
    assert problems == []
    return {".".join(each.path): each.value for each in assignments}


def refused_options(*overrides: str) -> list[str]:
    return [str(each) for each in read_overrides(overrides)[1]]


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("QUEUE_MODE", "Steer", "queue.mode", "steer"),
        ("QUEUE_DEBOUNCE_MS", " 250 ", "queue.debounce_ms", 250),
        ("MESSAGES_QUEUE_CAP", "7", "queue.cap", 7),
        ("QUEUE_DROP_POLICY", "old", "queue.drop", "old"),
        ("QUEUE_DEBOUNCE_IDLE", "on", "queue.debounce_idle", True),
        ("QUEUE_DEBOUNCE_IDLE", "False", "queue.debounce_idle", False),
        ("QUEUE_EXPIRES_MS", "null", "queue.expires_ms", None),
        ("MAX_CONCURRENT", "9", "max_concurrent", 9),
        ("AGENTS_DEFAULTS_MAX_CONCURRENT", "2", "lanes.main.concurrency", 2),
        ("LANES_MAIN_CONCURRENCY", "2", "lanes.main.concurrency", 2),
        ("LANES_MAIN", "2", "lanes.main.concurrency", 2),
        ("QUEUE_LANES_CRON", "0", "lanes.cron.concurrency", 0),
        ("LANES_MY_LANE_QUEUED_MAX", "5", "lanes.my_lane.queued_max", 5),
        ("LANES_MAIN_WAIT_TIMEOUT_MS", "5", "lanes.main.wait_timeout_ms", 5),
        ("QUEUE_BY_CHANNEL_DISCORD_MODE", "collect", "queue.by_channel.discord.mode", "collect"),
        ("QUEUE_BY_CHANNEL_DISCORD_DEBOUNCE_MS", "5", "queue.by_channel.discord.debounce_ms", 5),
        ("QUEUE_DEBOUNCE_MS_BY_CHANNEL_DISCORD", "5", "queue.by_channel.discord.debounce_ms", 5),
        ("SPAWN_MAX_CONCURRENT", "3", "spawn.max_concurrent", 3),
    ],
)
def test_a_variable_is_the_path_in_capitals(variable: str, text: str, path: str, value: object) -> None:
    assert environment({variable: text}) == {path: value}


def test_a_name_that_a_file_knows_keeps_its_spelling() -> None:
    known = ("My-Lane", "discord")
    assert environment({"LANES_MY_LANE_CONCURRENCY": "2"}, known) == {"lanes.My-Lane.concurrency": 2}
    assert environment({"QUEUE_BY_CHANNEL_DISCORD": "steer"}, known) == {"queue.by_channel.discord.mode": "steer"}
    assert environment({"LANES_MY_PRIORITY": "2"}, ("my_priority",)) == {"lanes.my_priority.concurrency": 2}
    assert environment({"LANES_MY_PRIORITY": "2"}) == {"lanes.my.priority": 2}


def test_other_variables_are_left_alone() -> None:
    others = dict.fromkeys(("STORE", "HOST", "PORT", "LANES", "WORKSPACE", "CONFIG", "NAME", "QUEUE", "TOKEN"), "x")
    assert environment(others) == {}
    assert environment({"QUEUE_MODE": "", "QUEUE_CAP": ""}) == {}


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("QUEUE_MODDE", "no setting has this variable (did you mean LANEWAY_QUEUE_MODE?)"),
        ("LANES__CONCURRENCY", "no setting has this variable (did you mean LANEWAY_LANES_MAIN_CONCURRENCY?)"),
        ("LANES_MAIN_CONCURENCY", "no setting has this variable (did you mean LANEWAY_LANES_MAIN_CONCURRENCY?)"),
        ("QUEUE_BY_CHANNEL_IRC_MDOE", "no setting has this variable"),
        ("WORKSPACES_A_QUEUE_MODE", "no setting has this variable (did you mean LANEWAY_MESSAGES_QUEUE_MODE?)"),
    ],
)
def test_a_variable_of_no_setting_is_refused(variable: str, line: str) -> None:
    (found,) = refused(**{variable: "1"})
    assert found.startswith(f"LANEWAY_{variable}: {line}")


@pytest.mark.parametrize("text", ["s3cret", "-1", "1.5", "٣", "1_000", "9" * 400, "\udcff"])
def test_a_problem_never_shows_what_a_variable_holds(text: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load(environ={"LANEWAY_QUEUE_CAP": text})
    assert str(caught.value) == (
        "LANEWAY_QUEUE_CAP: queue.cap must be a whole number from 1 to 100,000, not what the variable holds"
    )
    assert caught.value.value is None


def test_two_variables_for_one_setting_are_refused() -> None:
    assert refused(QUEUE_CAP="1", MESSAGES_QUEUE_CAP="1") == [
        "LANEWAY_QUEUE_CAP: says the same as LANEWAY_MESSAGES_QUEUE_CAP (keep one of them)"
    ]


def test_every_path_has_a_variable() -> None:
    assert variable_of(("lanes", "My-Lane.2", "queued_max")) == "LANEWAY_LANES_MY_LANE_2_QUEUED_MAX"


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("queue.mode=steer", "queue.mode", "steer"),
        ("queue.debounceMs=5", "queue.debounce_ms", 5),
        ("queue.debounce-ms = 5", "queue.debounce_ms", 5),
        ("messages.queue.byChannel.discord=steer", "queue.by_channel.discord.mode", "steer"),
        ("queue.by_channel.Discord.cap=3", "queue.by_channel.Discord.cap", 3),
        ("lanes.main=2", "lanes.main.concurrency", 2),
        ("lanes.'a.b'.priority=2", "lanes.a.b.priority", 2),
        ("max_concurrent=null", "max_concurrent", None),
    ],
)
def test_an_option_is_a_path_and_a_value(override: str, path: str, value: object) -> None:
    assert options(override) == {path: value}


def test_the_later_of_two_options_counts() -> None:
    assert options("queue.cap=1", "queue.mode=steer", "messages.queue.cap=2") == {"queue.mode": "steer", "queue.cap": 2}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("queue.mode", "--set queue.mode: an option is path=value (--set queue.mode=steer)"),
        ("=steer", "--set : an option is path=value (--set queue.mode=steer)"),
        ("queue..mode=steer", "--set queue..mode: an option is path=value (--set queue.mode=steer)"),
        (".queue=1", "--set .queue: an option is path=value (--set queue.mode=steer)"),
        ("queue.mode.=x", "--set queue.mode.: an option is path=value (--set queue.mode=steer)"),
        ('lanes."a"b=1', '--set lanes."a"b: an option is path=value (--set queue.mode=steer)'),
        ("queue.mod=steer", "--set queue.mod: there is no setting queue.mod (did you mean mode?)"),
        ("queue.mode.x=1", "--set queue.mode.x: there is no setting queue.mode.x (queue.mode is a value)"),
        ("lanes=1", "--set lanes: lanes is a block, not a value (name one lane)"),
        ("lanes.' x'=1", "--set lanes.' x': a lane name is 1 to 512 printable characters"),
        ("name=x", "--set name: there is no setting name"),
        ("queue.cap=x", "--set queue.cap: queue.cap must be a whole number from 1 to 100,000, not 'x'"),
        ("queue.mode=colect", "--set queue.mode: queue.mode must be one of collect, followup, steer"),
    ],
)
def test_a_wrong_option_says_why(override: str, line: str) -> None:
    (found,) = refused_options(override)
    assert found.startswith(line)
