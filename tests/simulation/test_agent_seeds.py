"""Fixed seeds of agents, the seeds that found something once, and that the laws can be broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laneway.agent.tool_calls import CallMaker
from laneway.dialogue import Answer, ModelRequest, Prompt, Results, ToolCall, ToolResult, Utterance
from laneway.kernel.histories import LoggedMachine
from laneway.kernel.rounds import Round
from laneway.kernel.turn_machine import TurnMachine
from laneway.sim.agent_tier import run_agent_seed, speech_problem
from laneway.sim.campaign import run_seed
from laneway.sim.trace import SimFailedError
from tests.simulation.seed_lists import regressions

CHUNK = 20
SEEDS = range(0, 120, CHUNK)
SABOTAGE_SEEDS = range(60)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS)
def test_sessions_keep_every_law(first: int) -> None:
    outcomes = [run_agent_seed(seed) for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > CHUNK
    assert sum(outcome.faults for outcome in outcomes) > CHUNK


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "what"), regressions("agent_regressions.txt"))
def test_what_was_found_once_stays_mended(seed: int, what: str) -> None:
    assert run_seed(seed, "agent").seed == seed, what


@pytest.mark.slow
def test_a_seed_is_the_same_run_every_time() -> None:
    assert run_agent_seed(7) == run_agent_seed(7)


# ---- the laws can be broken ----


async def _intend_without_waiting(self: CallMaker, each: Any) -> None:
    each.is_intended = True


def _lost_results(self: Round) -> list[Utterance]:
    return [*self.prompts, self.answer]


def _unheard(self: LoggedMachine, result: ToolResult) -> None:
    TurnMachine.result(self, result)  # and nobody writes it down


def _run_seeds() -> None:
    for seed in SABOTAGE_SEEDS:
        run_agent_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "law"),
    [
        (CallMaker, "_intend", _intend_without_waiting, "its intent is not on disk"),
        (Round, "utterances", _lost_results, "is sent what nobody would take"),
        (LoggedMachine, "result", _unheard, "goes another way now"),
    ],
)
def test_the_simulator_finds(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., Any], law: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(SimFailedError) as failure:
        _run_seeds()
    assert law in failure.value.problem
    assert failure.value.replay.endswith("--tier agent")


CALL = ToolCall(id="c", name="look")
RESULTS = Results(results=(ToolResult(call_id="c", name="look", output="x"),))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ((Prompt(text="go"),), ""),
        ((Prompt(text="go"), Answer(calls=(CALL,)), RESULTS), ""),
        ((), "does not end with"),
        ((Prompt(text="go"), Answer(text="done")), "does not end with"),
        ((Prompt(text="go"), Answer(calls=(CALL,)), Prompt(text="and")), "are followed by"),
        ((Prompt(text="go"), RESULTS), "do not belong"),
        ((Prompt(text="go"), Answer(text="a"), Answer(text="b"), Prompt(text="?")), "two answers"),
    ],
)
def test_speech_is_held_against_what_providers_take(said: tuple[Utterance, ...], problem: str) -> None:
    found = speech_problem(ModelRequest(conversation=said))
    assert problem in found if problem else not found
