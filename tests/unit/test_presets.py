"""Presets: the lanes of tools, of a gateway, and the concurrency limiter."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import ConfigError, LaneFullError, Lanes, UnknownLaneError
from laneway.testing import fake_host
from tests.stage import Diary, never, passing, seen, simulated, value


@simulated
async def test_tool_lanes_have_their_widths_and_priorities() -> None:
    diary = Diary()
    async with Lanes.for_tools(host=fake_host(), max_concurrent=1) as lanes:
        widths = {name: lane.max_concurrent for name, lane in lanes.stats().lanes.items()}
        assert widths == {"control": 2, "query": 4, "execute": 2, "generate": 1}
        lanes.submit("generate", diary.hold, "busy")
        for name in ("generate", "execute", "query", "control"):
            lanes.submit(name, diary.work, name)
        await passing(5)
        assert sorted(diary.began) == ["busy", "control"]  # outside every shared cap
        diary.let_go("busy")
        with pytest.raises(UnknownLaneError):
            lanes.submit("main", never)
    assert diary.began[2:] == ["query", "execute", "generate"]


@simulated
async def test_tool_lanes_are_per_session() -> None:
    diary = Diary()
    async with Lanes.for_tools(host=fake_host()) as lanes:
        for session in ("s1", "s2"):
            for number in range(3):
                lanes.scope(session).submit("execute", diary.hold, f"{session}-{number}")
        await passing()
        assert sorted(diary.began) == ["s1-0", "s1-1", "s2-0", "s2-1"]
        diary.let_go(*[f"{session}-{number}" for session in ("s1", "s2") for number in range(3)])


@simulated
async def test_gateway_lanes_have_their_widths_and_unknown_names_appear() -> None:
    async with Lanes.for_gateway(host=fake_host()) as lanes:
        widths = {name: lane.max_concurrent for name, lane in lanes.stats().lanes.items()}
        assert widths == {"main": 4, "subagent": 8, "cron": 3}
        lanes.submit("brand-new", passing, 10)
        assert lanes.stats().lanes["brand-new"].max_concurrent == 1


@simulated
async def test_the_limiter_has_one_lane_and_ten_times_its_depth() -> None:
    diary = Diary()
    async with Lanes.limiter(host=fake_host()) as lanes:
        assert {name: lane.max_concurrent for name, lane in lanes.stats().lanes.items()} == {"agent": 3}
        for _ in range(33):
            lanes.submit("agent", diary.work, "x")
        with pytest.raises(LaneFullError) as caught:
            lanes.submit("agent", never)
        assert caught.value.queued_max == 30
    assert diary.peak == 3


@simulated
async def test_the_limiter_is_resized_within_its_range_and_its_depth_follows() -> None:
    diary = Diary()
    async with Lanes.limiter(2, host=fake_host()) as lanes:
        wrong: Any
        for wrong in (0, 11, -1, True, 2.0):
            before = seen(lanes)
            with pytest.raises(ConfigError, match="1 to 10"):
                lanes.resize("agent", wrong)
            assert seen(lanes) == before
        lanes.resize("agent", 1)
        for _ in range(11):
            lanes.submit("agent", diary.work, "x")
        with pytest.raises(LaneFullError):
            lanes.submit("agent", never)
        lanes.resize("agent", 10)
        assert lanes.submit("agent", value) is not None
    for wrong in (0, 11, None, "3"):
        with pytest.raises(ConfigError, match="1 to 10"):
            Lanes.limiter(wrong)


@simulated
async def test_a_bare_lanes_has_sessions_only() -> None:
    async with Lanes(host=fake_host()) as lanes:
        assert await lanes.run("session:any", value, 1) == 1
        with pytest.raises(UnknownLaneError, match="none"):
            lanes.submit("main", never)
