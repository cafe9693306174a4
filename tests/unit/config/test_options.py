"""Settings become what `Inbox` and `Lanes` take, with the same defaults."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from laneway.config import (
    ChannelBlock,
    LaneBlock,
    QueueBlock,
    Settings,
    by_channel,
    inbox_options,
    lane_configs,
    lanes_options,
    load,
    queue_options,
    reference_page,
)
from laneway.config.settings import DROP, MODE
from laneway.inbox import Inbox
from laneway.lanes import GATEWAY_LANES, Lanes
from laneway.mail import _MODES, Drop, Mode, QueueOptions
from laneway.records import LaneConfig

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "config.md"


def test_without_a_file_an_inbox_gets_its_own_defaults() -> None:
    parameters = inspect.signature(Inbox).parameters
    options = inbox_options(Settings())
    defaults = {name: parameters[name].default for name in options}
    assert {**options, "by_channel": None} == defaults


def test_without_a_file_lanes_are_those_of_the_gateway_preset() -> None:
    assert lane_configs(Settings()) == dict(GATEWAY_LANES)
    assert set(lanes_options(Settings())) <= set(inspect.signature(Lanes).parameters)


def test_a_lane_without_settings_is_a_lane_of_its_own_defaults() -> None:
    assert lane_configs(Settings(lanes={"x": LaneBlock()})) == {"x": LaneConfig()}


def test_options_carry_what_is_set() -> None:
    settings = Settings(
        queue=QueueBlock(
            mode=Mode.STEER,
            cap=3,
            drop=Drop.OLD,
            by_channel={"discord": ChannelBlock(debounce_ms=0), "empty": ChannelBlock()},
        ),
        lanes={"main": LaneBlock(concurrency=2, priority=1, queued_max=9, timeout_ms=5, ageing_ms=None)},
        max_concurrent=5,
    )
    assert queue_options(settings) == QueueOptions(mode=Mode.STEER, debounce_ms=1000, cap=3, drop=Drop.OLD)
    assert by_channel(settings) == {"discord": QueueOptions(debounce_ms=0)}
    assert inbox_options(settings)["concurrency"] == 2
    assert lanes_options(settings) == {
        "lanes": {"main": LaneConfig(concurrency=2, priority=1, queued_max=9, timeout_ms=5, ageing_ms=None)},
        "max_concurrent": 5,
    }


async def test_an_inbox_and_lanes_take_them() -> None:
    async def answer(turn: object) -> str:
        return "done"

    settings = load(
        environ={}, overrides=["queue.mode=steer", "lanes.main=2", "lanes.x=1", "max_concurrent=4"]
    ).settings
    async with Lanes(**lanes_options(settings)) as lanes:
        assert lanes.stats().max_concurrent == 4
        assert lanes.stats().lanes["main"].max_concurrent == 2
    async with Inbox(answer, **inbox_options(settings)) as inbox:
        receipt = await inbox.submit("telegram:1", "hello")
        assert (await inbox.wait(receipt.message_id)).outcome == "succeeded"


def test_the_words_of_the_declaration_are_those_that_the_inbox_knows() -> None:
    assert {*map(str, Mode), *MODE.aliases} == set(_MODES)
    assert {Drop.parse(alias) for alias in DROP.aliases} == set(Drop)


@pytest.mark.parametrize("block", [ChannelBlock, QueueOptions])
def test_a_channel_has_the_options_that_a_level_has(block: type[ChannelBlock | QueueOptions]) -> None:
    assert [field.name for field in fields(block)] == ["mode", "debounce_ms", "cap", "drop"]


@pytest.mark.slow
def test_importing_laneway_does_not_import_the_configuration() -> None:
    code = "import sys, laneway; print([name for name in sys.modules if name.startswith(('laneway.config', 'yaml'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_reading_json_and_toml_does_not_import_yaml() -> None:
    code = (
        "import sys; from laneway.config.files import parse_text; from laneway.config.problems import Problems\n"
        "parse_text('{}', '.json', Problems('')); parse_text('a = 1', '.toml', Problems(''))\n"
        "print('yaml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_reference_page_is_what_the_declaration_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page()


def test_every_setting_is_on_the_reference_page() -> None:
    page = reference_page()
    values = [value.path[-1] for value in load(environ={}).values]
    assert [name for name in values if f"| `{name}`" not in page] == []
