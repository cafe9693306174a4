"""What a session keeps in memory: the oldest goes first, and never what is needed."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.agent.streams import EventLog
from laneway.agent_events import TextDeltaEvent, TurnStartEvent
from laneway.dialogue import Usage
from laneway.errors import ConfigError
from laneway.models import ScriptedModel, say
from laneway.options import SessionOptions, SessionRetentionLimits
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Bench, agent_of, opened, session_of, use
from tests.stage import simulated


def limits(**most: int | None) -> SessionRetentionLimits:
    return SessionRetentionLimits(**most)


def compacting(turns: int) -> ScriptedModel:
    """A model whose conversation is compacted again and again."""
    usage = Usage(input_tokens=850, output_tokens=10)
    script = [[say(f"answer {at}")] for at in range(turns)]
    return ScriptedModel(script, usage=usage, context_tokens=1_000, summaries=[[say("in short")]] * turns)


@simulated
async def test_the_oldest_runs_leave_memory_and_the_store_keeps_them() -> None:
    model = compacting(30)
    async with opened(
        model, session_store=MemoryStore(), session_id="s", retention_limits=limits(max_runs_retained=5)
    ) as session:
        results = [await session.send(f"say {at}") for at in range(30)]
        book = session.book
        assert len({one.run_id for one in book.rounds}) <= 6
        assert len(book.texts) <= 12
        runs = await session.runs()
        assert [run.run_id for run in runs] == [each.run_id for each in results]
        first = await session.run_snapshot(results[0].run_id)
        assert (first.prompt, first.rounds) == ("say 0", 1)
        events = await session.run_events(results[0].run_id)
        assert [event.text for event in events if isinstance(event, TextDeltaEvent)] == ["answer 0"]


@simulated
async def test_what_the_model_hears_is_never_dropped() -> None:
    model = ScriptedModel([[say(f"answer {at}")] for at in range(10)])
    async with opened(model, retention_limits=limits(max_runs_retained=0)) as session:
        for at in range(10):
            await session.send(f"say {at}")
    heard = str(model.requests[-1])
    assert all(f"say {at}" in heard for at in range(10))


@simulated
async def test_an_old_conversation_is_dropped_and_the_new_one_is_whole() -> None:
    model = ScriptedModel([[say(f"answer {at}")] for at in range(10)])
    async with opened(model, session_store=MemoryStore(), retention_limits=limits(max_runs_retained=2)) as session:
        for at in range(5):
            await session.send(f"say {at}")
        await session.command("/new")
        for at in range(5, 8):
            await session.send(f"say {at}")
        assert [one.prompts[0].text for one in session.book.rounds] == ["say 5", "say 6", "say 7"]


@simulated
async def test_the_ledger_is_whole_however_little_memory_keeps() -> None:
    bench = Bench()
    disk = MemoryDisk()
    answers: list[Any] = [each for at in range(6) for each in (use("act", f"k{at}"), [say("done")])]
    options: dict[str, Any] = {"session_store": MemoryStore(disk), "retention_limits": limits(max_runs_retained=1)}
    async with agent_of(ScriptedModel(answers), bench) as agent:
        session = session_of(agent, session_id="s", **options)
        for at in range(6):
            await session.send(f"act {at}")
            await session.command("/new")
        assert len(session.book.entries) <= 2
        assert [entry.call_id for entry in await session.ledger()] == [f"k{at}" for at in range(6)]


def test_a_log_keeps_its_newest_events_and_its_places() -> None:
    log = EventLog(3)
    for number in range(10):
        log.add(TurnStartEvent(turn=number))
    assert [event.turn for event in log.events] == [7, 8, 9]
    assert [event.turn for event in log.since(8)] == [8, 9]
    assert [event.turn for event in log.since(0)] == [7, 8, 9]
    assert log.place == 10


@simulated
async def test_trace_events_are_kept_up_to_their_cap() -> None:
    model = ScriptedModel([[say("one")], [say("two")]])
    async with opened(model, retention_limits=limits(max_trace_events=4), principal="olga") as session:
        await session.send("hello")
        await session.send("again")
        traces = session.trace_events()
    assert len(traces) == 4
    assert traces[-1]["type"] == "end"
    assert all(each["metadata"]["principal"] == "olga" for each in traces)
    assert "text_delta" not in {each["type"] for each in traces}
    seqs = [each["metadata"]["seq"] for each in traces]
    assert seqs == sorted(seqs)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "many"], ids=repr)
def test_limits_that_make_no_sense_are_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="max_runs_retained"):
        SessionRetentionLimits(max_runs_retained=wrong)
    with pytest.raises(ConfigError, match="max_runs_retained"):
        SessionOptions(retention_limits={"max_runs_retained": wrong})
