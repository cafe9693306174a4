"""A whole agent against a server that speaks as OpenAI does: from a configuration to the answer, faults on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from laneway import AgentEvent, AsyncAgent, ModelError, RunCancelledError, SessionQueueConfig
from tests.openai_stage import Exchange, OpenAIStage, cut, hold, refuse, text, tools

CONFIG = """
default_model = "local/gpt-test"
providers "local" {{
  base_url = "{url}"
  api_key  = "secret-key"
}}
permissions {{ allow = ["*"] }}
"""

READ = tools(("c1", "read", ['{"pa', 'th":"a.txt"}']), ("c2", "read", ['{"path":', '"b.txt"}']), content="I look.")
RUN = tools(("c3", "bash", ['{"command":"echo $((6*7))"}']))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "b.txt").write_text("beta\n")
    return tmp_path


async def _events(agent: AsyncAgent, folder: Path) -> list[AgentEvent]:
    session = agent.session(folder, queue_config=SessionQueueConfig().with_lane_features())
    return [event async for event in session.stream("go")]


async def test_tools_text_and_usage_go_the_whole_way(folder: Path) -> None:
    async with OpenAIStage(READ, RUN, text("both ", "read")) as stage:
        async with AsyncAgent.create(CONFIG.format(url=stage.url)) as agent:
            events = await _events(agent, folder)
        said = stage.requests[-1].messages
    assert events[-1].text == "both read"
    assert events[-1].total_tokens == 3 * 18
    assert "".join(event.text for event in events if event.event_type == "text_delta") == "I look.both read"
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    assert [message["tool_call_id"] for message in said if message["role"] == "tool"] == ["c1", "c2", "c3"]
    assert "alpha" in said[2]["content"]
    assert "beta" in said[3]["content"]
    assert "42" in said[5]["content"]


async def test_a_provider_that_says_when_is_waited_for_and_a_cut_stream_is_asked_again(folder: Path) -> None:
    plays = (refuse(429, {"retry-after-ms": "30"}), READ, cut("bo"), text("both"))
    async with OpenAIStage(*plays) as stage:
        async with AsyncAgent.create(CONFIG.format(url=stage.url)) as agent:
            events = await _events(agent, folder)
        assert len(stage.requests) == len(plays)
        assert stage.requests[-1].messages == stage.requests[-2].messages  # nothing of the cut answer is left
    types = [event.event_type for event in events]
    assert (events[-1].event_type, events[-1].text) == ("end", "both")
    assert types.count("run_waiting") == 1
    assert types.count("model_retry") == 1
    assert types.count("tool_end") == 2  # a tool that has run is not run again


async def test_a_key_that_is_refused_ends_the_run_and_is_shown_nowhere(folder: Path) -> None:
    async with (
        OpenAIStage(refuse(401, body={"error": {"message": "bad key secret-key"}}), text("now it works")) as stage,
        AsyncAgent.create(CONFIG.format(url=stage.url)) as agent,
    ):
        session = agent.session(folder)
        with pytest.raises(ModelError) as caught:
            await session.send("go")
        assert "secret-key" not in str(caught.value)
        assert (await session.send("again")).text == "now it works"
        assert len(stage.requests) == 2


async def test_cancelling_a_run_closes_the_connection_at_once(folder: Path) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def never(exchange: Exchange) -> None:
        asked.set()
        try:
            await hold(exchange)
        finally:
            gone.set()

    async with (
        OpenAIStage(never, text("later")) as stage,
        AsyncAgent.create(CONFIG.format(url=stage.url)) as agent,
    ):
        session = agent.session(folder)
        sending = asyncio.ensure_future(session.send("go"))
        await asked.wait()
        assert await session.cancel("enough")
        await asyncio.wait_for(gone.wait(), 30)
        with pytest.raises(RunCancelledError, match="enough"):
            await sending
        assert (await session.send("again")).text == "later"
