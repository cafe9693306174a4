"""A real gateway is killed under load from real HTTP clients: nothing is lost, done twice, out of order or missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.gateway_checker import judge_gateway
from tests.chaos.gateway_world import GatewayWorldOptions, run_gateway_world

KILLS = 30


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_a_gateway_that_is_killed_thirty_times_keeps_every_promise(tmp_path: Path) -> None:
    found = run_gateway_world(GatewayWorldOptions(folder=tmp_path / "world", seed=20261116, kills=KILLS, rest_s=120))
    assert judge_gateway(found) == []
    assert found.again["kill"] == KILLS
    assert found.again["watch"] > 0
    assert len(found.accepted) > KILLS
    assert len(found.done) > KILLS
