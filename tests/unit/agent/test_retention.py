"""What a session keeps in memory: the oldest goes first, and never what is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laneway.agent.streams import EventLog
from laneway.agent_events import TextDeltaEvent, TurnStartEvent
from laneway.dialogue import Usage
from laneway.errors import ConfigError
from laneway.models import ScriptedModel, call, say
from laneway.options import SessionOptions, SessionRetentionLimits
from laneway.rows import Owner
from laneway.runtime.retention import HistoryLimits, prune
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.tools import tool
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


LONG = "the same long text " * 400


@tool(effect="read")
def tell() -> str:
    """Say something long."""
    return LONG


class _Peeked(MemoryStore):
    """A store in which somebody looks before a slice of it goes."""

    look: Callable[[], Awaitable[object]] | None = None

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Take away a slice, after somebody has looked."""
        look, self.look = self.look, None
        if look is not None:
            await look()
        return await super().erase(owner, until_seq=until_seq, limit=limit)


@simulated
@pytest.mark.parametrize("what", ["nothing", "explain", "open"])
async def test_a_text_that_was_pruned_is_there_again_when_it_is_said_again(what: str) -> None:
    """Whatever was read of it meanwhile: the session would not be opened any more else."""
    disk = MemoryDisk()
    store = _Peeked(disk)
    model = ScriptedModel([[call("tell")], [say("one")], [say("tiny")], [call("tell")], [say("two")]])
    options: dict[str, Any] = {"session_id": "s", "retention_limits": limits(max_runs_retained=0)}
    async with agent_of(model, [tell], session_store=store) as agent:
        session = session_of(agent, **options)
        old = await session.send("first")
        await session.command("/new")
        await session.send("small")

        async def reopen() -> None:
            nonlocal session
            await session.close()
            session = session_of(agent, **options)
            await session.history()

        store.look = {"explain": lambda: session.explain_run(old.run_id), "open": reopen}.get(what)
        holder = session_of(agent, session_id="holder")  # keeps the inbox open
        await holder.ready()
        assert await prune(store, session.owner, HistoryLimits(max_runs=1, spared_ms=0), now_ms=10**15) > 0
        assert not [key for key in disk.states if key.kind == "blob"]
        await session.send("again")
    async with agent_of(ScriptedModel([[say("yes")]]), session_store=MemoryStore(disk)) as agent:
        session = session_of(agent, **options)
        assert LONG in str((await session.history())[-2])
