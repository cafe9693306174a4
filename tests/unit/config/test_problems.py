"""What is wrong with a file: file, line, column, path, what is allowed, what was probably meant; all of it at once."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from laneway.config import InvalidConfigError, load
from laneway.errors import ConfigError
from laneway.mail import Mode
from tests.unit.config.desk import lines_of, load_text, problems_of, values_of

MS = "a whole number from 0 to 315,360,000,000 milliseconds"
WIDTH = "a whole number from 0 to 1,000,000"
LANE_NAME = "a lane name is 1 to 512 printable characters without blanks at its ends"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("messages:\n  queue:\n    debouceMs: 5\n", "3:5: there is no setting messages.queue.debouceMs"),
        ("queue:\n  cap: -1\n", "2:8: queue.cap must be a whole number from 1 to 100,000, not -1"),
        ("queue:\n  cap: 0\n", "2:8: queue.cap must be a whole number from 1 to 100,000, not 0"),
        ("queue:\n  cap: 100001\n", "2:8: queue.cap must be a whole number from 1 to 100,000, not 100001"),
        ("queue: {debounce_ms: .nan}", f"1:22: queue.debounce_ms must be {MS}, not nan"),
        ("queue: {debounce_ms: .inf}", f"1:22: queue.debounce_ms must be {MS}, not inf"),
        ("queue: {debounce_ms: 1.5}", f"1:22: queue.debounce_ms must be {MS}, not 1.5"),
        ("queue: {debounce_ms: true}", f"1:22: queue.debounce_ms must be {MS}, not true"),
        ("queue: {debounce_ms: '5'}", f"1:22: queue.debounce_ms must be {MS}, not '5'"),
        ("queue: {debounce_ms: 2s}", f"1:22: queue.debounce_ms must be {MS}, not '2s'"),
        ("queue: {debounce_ms: [5]}", f"1:22: queue.debounce_ms must be {MS}, not a list"),
        ("queue: {debounce_ms: {a: 5}}", f"1:22: queue.debounce_ms must be {MS}, not a block"),
        ("queue:\n  mode:\n", "2:8: queue.mode must be one of collect, followup, steer, steer-backlog, interrupt, "),
        ("queue: {mode: 5}", "1:15: queue.mode must be one of collect, followup, steer, steer-backlog, interrupt, "),
        ("queue: {debounce_idle: yes}", "1:24: queue.debounce_idle must be true or false, not 'yes'"),
        ("name: 5\n", "1:7: name must be text of at most 200 characters, not 5 (put quotes around it)"),
        (f"name: {'x' * 201}\n", "1:7: name must be text of at most 200 characters, not 'xxx"),
        ("queue: 5\n", "1:8: queue must be a block with keys, not 5 (keys here: mode, debounce_ms, "),
        ("queue: [mode]\n", "1:8: queue must be a block with keys, not a list (keys here: mode, debounce_ms, "),
        ("lanes: 5\n", "1:8: lanes must be a block with keys, not 5 (one key for each lane)"),
        ("lanes: {main: 1.5}\n", f"1:15: lanes.main must be {WIDTH}, not 1.5"),
        ("lanes: {main: [1]}\n", "1:15: lanes.main must be a block with keys, not a list (keys here: concurrency, "),
        ("lanes: {main: {width: 1}}\n", "1:16: there is no setting lanes.main.width (known here: concurrency, "),
        ("lanes: {main: {priority: 10}}\n", "1:26: lanes.main.priority must be a whole number from 0 to 9, not 10"),
        ("lanes: {' main': 1}\n", f"1:9: {LANE_NAME}, not ' main'"),
        ("lanes: {'': 1}\n", f"1:9: {LANE_NAME}, not ''"),
        ("lanes: {a//b: 1}\n", "1:9: lane name 'a//b' has an empty part between slashes"),
        ("queue: {byChannel: {'a\\tb ': steer}}\n", "1:21: a channel name is 1 to 512 printable characters"),
        ("agents: {defaults: {maxConcurrent: -2}}\n", f"1:36: agents.defaults.maxConcurrent must be {WIDTH}, not -2"),
        ("max_concurrent: many\n", f"1:17: max_concurrent must be {WIDTH}, or null, not 'many'"),
        ("- a\n", "1:1: the file holds a list where a block with keys belongs (keys here: name, description, "),
        ("just text\n", "1:1: the file holds 'just text' where a block with keys belongs (keys here: name, "),
        ("5", "1:1: the file holds 5 where a block with keys belongs (keys here: name, "),
    ],
)
def test_a_wrong_value_says_where_it_is_and_what_is_allowed(text: str, line: str) -> None:
    (found,) = lines_of(text)
    assert found.startswith(f"laneway.yaml:{line}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("queue: {debouceMs: 1}", "did you mean debounceMs?"),
        ("queue: {debounse_ms: 1}", "did you mean debounce_ms?"),
        ("Queue: {}", "did you mean queue?"),
        ("quee: {}", "did you mean queue?"),
        ("queue: {mode: colect}", "did you mean 'collect'?"),
        ("queue: {drop: summarise-all}", "did you mean 'summarise'?"),
        ("queue: {dropPolice: old}", "did you mean dropPolicy?"),
        ("messages: {queue: {byChanel: {}}}", "did you mean byChannel?"),
        ("agents: {default: {}}", "did you mean defaults?"),
        ("zzz: 1", "known here: name, description, max_concurrent, default_model, system, tools, disabled_tools, "),
    ],
)
def test_a_wrong_word_says_what_was_probably_meant(text: str, hint: str) -> None:
    (found,) = lines_of(text)
    assert hint in found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("queue:\n  cap: 1\n  cap: 2\n", "3:3: queue.cap is set twice (line 2) (keep one of them)"),
        ("queue:\n  debounceMs: 1\n  debounce_ms: 2\n", "3:3: queue.debounce_ms is set as debounceMs too (line 2)"),
        ("queue:\n  debounce-ms: 1\n  debounceMs: 1\n", "3:3: queue.debounceMs is set as debounce-ms too (line 2)"),
        ("queue:\n  drop: old\n  drop_policy: new\n", "3:3: queue.drop_policy is set as drop too (line 2)"),
        ("queue: {}\nqueue: {}\n", "2:1: queue is set twice (line 1)"),
        ("lanes: {main: 1, main: 2}\n", "1:18: lanes.main is set twice (line 1)"),
        ("max_concurrent: 1\nmaxConcurrent: 1\n", "2:1: maxConcurrent is set as max_concurrent too (line 1)"),
        ("queue: {}\nmessages: {queue: {}}\n", "2:12: messages.queue and queue (line 1) are two places for the same"),
        ("messages: {queue: }\nqueue: {}\n", "2:1: queue and messages.queue (line 1) are two places for the same"),
        ("queue: {lanes: {a: 1}}\nlanes: {b: 1}\n", "2:1: lanes and queue.lanes (line 1) are two places for the same"),
        (
            "lanes: {main: 2}\nagents: {defaults: {maxConcurrent: 2}}\n",
            "2:36: agents.defaults.maxConcurrent says the same as lanes.main (line 1)",
        ),
        (
            "spawn: {maxConcurrent: 2}\nbuiltins: {spawn: {config: {max_concurrent: 2}}}\n",
            "2:45: builtins.spawn.config.max_concurrent says the same as spawn.maxConcurrent (line 1)",
        ),
        (
            "queue: {byChannel: {x: {debounceMs: 1}}, debounceMsByChannel: {x: 1}}\n",
            "1:67: queue.debounceMsByChannel.x says the same as queue.byChannel.x.debounceMs (line 1)",
        ),
    ],
)
def test_a_setting_is_set_in_one_place(text: str, line: str) -> None:
    (found,) = lines_of(text)
    assert found.startswith(f"laneway.yaml:{line}")


def test_all_problems_of_all_sources_come_in_one_error(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("queue:\n  cap: x\n", encoding="utf-8")
    main = tmp_path / "laneway.json5"
    main.write_text("{ queue: {\n mod: 'steer',\n cap: -1 },\n lanes: 5 }", encoding="utf-8")
    with pytest.raises(InvalidConfigError) as caught:
        load(main, workspace=tmp_path, environ={"LANEWAY_QUEUE_CAP": "0"}, overrides=["queue.mode=x", "y=1"])
    error = caught.value
    *others, last = problems_of(error)
    assert others == [
        "laneway.json5:2:2: there is no setting queue.mod (did you mean mode?)",
        "laneway.json5:3:7: queue.cap must be a whole number from 1 to 100,000, not -1",
        "laneway.json5:4:9: lanes must be a block with keys, not 5 (one key for each lane)",
        "agent.yaml:2:8: queue.cap must be a whole number from 1 to 100,000, not 'x'",
        "LANEWAY_QUEUE_CAP: queue.cap must be a whole number from 1 to 100,000, not what the variable holds",
        f"--set queue.mode: queue.mode must be one of {', '.join(Mode)}, not 'x'",
    ]
    assert last.startswith("--set y: there is no setting y (known here: max_concurrent, default_model, tools, ")
    assert str(error).splitlines()[0] == "7 problems in the configuration"
    assert len(str(error).splitlines()) == 8


def test_the_error_is_a_config_error_with_its_facts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "queue:\n  cap: -1\n")
    error = caught.value
    assert isinstance(error, InvalidConfigError)
    assert (error.setting, error.value, error.line, error.column) == ("queue.cap", -1, 2, 8)
    assert error.file == str(tmp_path / "laneway.yaml")
    assert error.code == "config"
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
        assert str(twin) == str(error)
        assert twin.problems == error.problems


def test_a_file_without_end_of_problems_has_an_end() -> None:
    assert len(lines_of("\n".join(f"wrong{number}: 1" for number in range(500)))) == 100


def test_null_takes_a_limit_away_and_empties_a_block() -> None:
    assert values_of("maxConcurrent:\nlanes: {main: {ageing_ms: null, queuedMax: ~}}\n") == {
        "max_concurrent": None,
        "lanes.main.ageing_ms": None,
        "lanes.main.queued_max": None,
    }
    assert values_of("queue:\nlanes:\n  main:\nworkspaces:\n  a:\nagents: {defaults: }\n") == {}


def test_whole_numbers_may_be_written_as_fractions() -> None:
    assert values_of("{queue: {debounceMs: 1e3, cap: 5.0}}", ".json") == {"queue.debounce_ms": 1000, "queue.cap": 5}


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("Collect", "collect"),
        ("queue", "steer"),
        ("steer+backlog", "steer-backlog"),
        ("STEER_BACKLOG", "steer-backlog"),
    ],
)
def test_modes_have_their_usual_aliases(word: str, mode: str) -> None:
    assert values_of(f"queue: {{mode: {word}}}") == {"queue.mode": mode}


def test_a_long_or_strange_key_stays_readable() -> None:
    (found,) = lines_of('"' + "x" * 1000 + '": 1\n')
    assert len(found) < 850
    (found,) = lines_of('"a\\nb": 1\n')
    assert "there is no setting a\\nb (" in found
