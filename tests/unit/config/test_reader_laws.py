"""Laws of the reader, over drawn files: no input raises anything but a `ConfigError`, spellings are equal."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneway.config import InvalidConfigError, Settings, agent_settings, inbox_options, lanes_options, load
from laneway.config.agent_blocks import SESSION_LANE
from laneway.config.outside import SKIPPED
from laneway.config.shape import Block, Each, Leaf, Way, root, spellings
from laneway.errors import ConfigError
from laneway.options import SessionOptions
from tests.unit.config.desk import read, values_of

WORDS = (
    "queue",
    "messages",
    "lanes",
    "mode",
    "cap",
    "debounceMs",
    "by_channel",
    "main",
    "drop",
    "x",
    "agents",
    "defaults",
)
EXTREMES = (
    0,
    -1,
    2**63,
    1e308,
    float("nan"),
    float("inf"),
    True,
    None,
    "",
    "collect",
    "${HOME}",
    "env(",
    "\u202e",
    "ß",
)

scalars = st.sampled_from(EXTREMES) | st.integers() | st.text(max_size=10)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4) | st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)
fragments = st.sampled_from(
    (
        *(
            "queue:\n",
            "  mode: steer\n",
            "  cap: 5\n",
            "\t",
            "&a ",
            "*a",
            "<<: *a\n",
            "- ",
            "{",
            "}",
            "[",
            "]",
            ",",
            "#",
        ),
        *(
            "lanes",
            ": ",
            "\n",
            "'",
            '"',
            "[queue]\n",
            "cap = 1\n",
            "messages",
            "${X}",
            "\x00",
            "\ufeff",
            "!!int ",
            "|\n",
        ),
    )
)


@given(
    st.lists(fragments, max_size=15).map("".join) | st.text(max_size=60),
    st.sampled_from([".yaml", ".json", ".toml", ".hcl"]),
)
def test_no_text_raises_anything(text: str, ending: str) -> None:
    assignments, problems = read(text, ending, {})
    assert all(problem.message and str(problem).startswith(f"laneway{ending}") for problem in problems)
    assert all(each.origin.line >= 0 for each in assignments)


@pytest.mark.slow
@given(trees)
def test_no_tree_raises_anything(tree: Any) -> None:
    assignments, problems = read(json.dumps(tree), ".json", {"HOME": "x"})
    assert len({each.path for each in assignments}) == len(assignments)
    assert all(problem.line > 0 for problem in problems)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=80), ending=st.sampled_from([".yaml", ".json5", ".toml", ".hcl"]))
def test_no_bytes_raise_anything_but_a_config_error(tmp_path: Path, content: bytes, ending: str) -> None:
    file = tmp_path / f"a{ending}"
    file.write_bytes(content)
    try:
        loaded: object = load(file, environ={}).settings
    except ConfigError as error:
        loaded = error
    assert isinstance(loaded, Settings | InvalidConfigError)


@pytest.mark.slow
@given(
    st.dictionaries(st.text(string.ascii_uppercase + "_", max_size=30).map("LANEWAY_{}".format), st.text(max_size=5)),
    st.lists(st.text(max_size=20)),
)
def test_no_environment_and_no_option_raises_anything_but_a_config_error(
    environ: dict[str, str], overrides: list[str]
) -> None:
    try:
        loaded: object = load(environ=environ, overrides=overrides).settings
    except ConfigError as error:
        loaded = error
    assert isinstance(loaded, Settings | InvalidConfigError)


def leaves(way: Way, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Leaf]]:
    match way:
        case Leaf():
            return [(path, way)]
        case Block():
            return [found for key, inner in way.keys.items() for found in leaves(inner, (*path, key))]
        case Each():
            return leaves(way.way, (*path, LANE if way.names == SESSION_LANE else NAME))


NAME, LANE = "some-Name_1", "query"
LEAVES = leaves(root(), ())
TOGETHER = ("max_operations", "input_price", "output_price", "escalate_to")  # what needs another setting beside it
NEEDY = ("workspaces", "mcp_servers", "budgets", *SKIPPED)  # whole blocks that do


def value_for(leaf: Leaf) -> Any:
    words = (
        "collect",
        "old",
        "report",
        "none",
        "unlimited",
        "standard",
        "internal",
        "ask",
        "query",
        "read",
        "reject",
        "console",
        "info",
        "session",
        "text",
        "day",
        "deny",
    )
    choices = (True, 5, 0.5, *words, "https://x", ["read"], ["query"], ["https://x"], {"any": ["thing", 1, None]})
    for choice in choices:
        try:
            leaf.setting.kind.read(choice)
        except Exception:  # noqa: BLE001, S112 - looking for one that is allowed
            continue
        return choice
    raise AssertionError(leaf)


def as_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else json.dumps(value) if isinstance(value, dict) else str(value)


def nest(path: list[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


@given(st.sampled_from(LEAVES), st.data())
def test_all_spellings_of_a_path_mean_the_same(found: tuple[tuple[str, ...], Leaf], draw: st.DataObject) -> None:
    path, leaf = found
    names = [key if key in (NAME, LANE) else draw.draw(st.sampled_from(spellings(key))) for key in path]
    value = value_for(leaf)
    spelled = values_of(json.dumps(nest(names, value)), ".json")
    assert spelled == values_of(json.dumps(nest(list(path), value)), ".json")
    assert len(spelled) == 1


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(range(len(LEAVES))), st.none(), max_size=6))
def test_whatever_loads_can_be_used(chosen: dict[int, None]) -> None:
    """Any set of good values makes settings that `Inbox`, `Lanes` and an agent's sessions take."""
    overrides = [
        ".".join(f'"{key}"' for key in LEAVES[number][0]) + f"={as_text(value_for(LEAVES[number][1]))}"
        for number in chosen
        if LEAVES[number][0][0] not in NEEDY and LEAVES[number][0][-1] not in TOGETHER
    ]
    loaded = load(environ={}, overrides=overrides)
    assert isinstance(agent_settings(loaded).session_options(), SessionOptions)
    assert inbox_options(loaded.settings)["concurrency"] == lanes_options(loaded.settings)["lanes"]["main"].concurrency
