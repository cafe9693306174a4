"""A session that is closed in the middle of a run and opened again in the same process, beside others."""

from __future__ import annotations

import pytest

from laneway.errors import ConfigError
from laneway.models import ScriptedModel, say
from laneway.options import LaneHandlerConfig, SessionQueueConfig
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Bench, agent_of, session_of, use
from tests.stage import passing, simulated

OUT = SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("external", 60_000)})


@pytest.mark.parametrize("name", ["look", "put", "check"])
def test_its_run_goes_on_although_another_session_keeps_the_store_open(name: str) -> None:
    async def main() -> None:
        bench, model = Bench("a"), ScriptedModel([use(name, "a"), [say("done")]])
        async with agent_of(model, bench, session_store=MemoryStore(MemoryDisk())) as agent:
            await session_of(agent, session_id="other").ready()
            session = session_of(agent, queue=True, session_id="one")
            await session.followup("go")
            await bench.begun("a").wait()
            await session.close()
            bench.let_go()
            again = session_of(agent, queue=True, session_id="one")
            await again.wait_idle()
            assert [run.state for run in await again.runs()] == ["interrupted", "succeeded"]
            assert bench.began == ["a", "a"]

    simulated(main)()


@simulated
async def test_its_task_is_completed_although_another_session_keeps_the_store_open() -> None:
    bench, model = Bench(), ScriptedModel([use("act", "a"), [say("done")]])
    async with agent_of(model, bench, session_store=MemoryStore(MemoryDisk())) as agent:
        await session_of(agent, session_id="other").ready()
        session = session_of(agent, queue=OUT, session_id="one")
        await session.followup("go")
        while not (tasks := await session.pending_external_tasks()):
            await passing()
        await session.close()
        again = session_of(agent, queue=OUT, session_id="one")
        while not await again.pending_external_tasks():
            await passing()
        assert await again.complete_external_task(tasks[0]["task_id"], "ok")
        await again.wait_idle()
        assert [run.state for run in await again.runs()] == ["interrupted", "succeeded"]
        assert bench.began == []


@simulated
async def test_the_session_of_a_sub_agent_is_opened_by_its_parent_only() -> None:
    async with agent_of(ScriptedModel()) as agent:
        with pytest.raises(ConfigError, match="which only its parent opens") as refusal:
            session_of(agent, session_id="chat~0123456789ab")
        assert "open 'chat'" in str(refusal.value)
        assert agent.sessions() == []
