"""kill -9 while sessions leave memory and come back: nothing is lost, no write is made twice, labels are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.agent_checker import AgentEvidence, judge_agents, read_account
from tests.chaos.agent_life import FILE
from tests.chaos.agent_world import AgentWorldOptions, run_agent_world
from tests.chaos.checker import read_stored
from tests.chaos.gateway_checker import judge_gateway
from tests.chaos.gateway_world import GatewayWorldOptions, run_gateway_world

AGENT_KILLS = 20
GATEWAY_KILLS = 6


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [20261117, 20261118])
def test_agents_that_are_killed_while_their_sessions_leave_keep_every_promise(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "world"
    world = run_agent_world(AgentWorldOptions(folder=folder, seed=seed, kills=AGENT_KILLS, sessions=6, passivates=True))
    account = read_account(folder / "witness")
    stored = read_stored(folder / FILE, ())
    verdict = judge_agents(AgentEvidence(answers=world.answers, account=account, problems=stored.problems))
    assert verdict.wrong == {}, verdict.line()
    assert verdict.counts["answered"] > AGENT_KILLS
    said = (folder / "witness").read_bytes()
    assert said.count(b'["leaving"') > AGENT_KILLS // 2
    assert said.count(b'["leaving"') > said.count(b'["left"') > 0  # some were killed on their way out
    for name, report in world.answers.again.items():
        assert report["principal"] == f"user:{name}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gateway_that_is_killed_while_its_sessions_leave_keeps_every_promise(tmp_path: Path) -> None:
    found = run_gateway_world(
        GatewayWorldOptions(
            folder=tmp_path / "world", seed=20261117, kills=GATEWAY_KILLS, sessions=4, rest_s=120, passivates=True
        )
    )
    assert judge_gateway(found) == []
    assert found.again["kill"] == GATEWAY_KILLS
    assert found.again["passivate"] > GATEWAY_KILLS
    assert len(found.accepted) > GATEWAY_KILLS
    assert len(found.done) > GATEWAY_KILLS
