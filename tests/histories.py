"""Scenes whose histories lie in `tests/data/histories`, and are replayed by every build.

`python -m tests.histories` records them anew: after a change that is meant to change what runs do, and never else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from laneway import replay
from laneway.agent.session import AsyncSession
from laneway.dialogue import Usage
from laneway.errors import ModelLimitedError, ModelUnavailableError
from laneway.models import ScriptedModel, call, fail, say
from laneway.models.scripted import cut, plan, think
from laneway.options import LaneHandlerConfig, PermissionPolicy, SessionQueueConfig
from laneway.policies import ConfirmationPolicy
from laneway.replay import RunHistory
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Bench, Held, agent_of, one, sending, session_of, use
from tests.stage import passing

FOLDER: Final = Path(__file__).parent / "data" / "histories"
Scene = Callable[[], Awaitable[RunHistory]]
DONE = [say("done")]


def _session(script: list[Any], bench: Bench | None = None, *, disk: MemoryDisk | None = None, **more: Any) -> Any:
    model = more.pop("model", None) or ScriptedModel(script, usage=Usage(input_tokens=10, output_tokens=5))
    agent = agent_of(model, bench or Bench(), record=True, session_store=MemoryStore(disk or MemoryDisk()))
    return session_of(agent, session_id="s", system="Be brief.", **more)


async def _told(session: AsyncSession, run_id: str = "") -> RunHistory:
    """The history of a run, or of the newest one; the session is closed."""
    name = run_id or (await session.runs())[-1].run_id
    history = await session.run_history(name)
    await session.close()
    return history


async def _ran(session: AsyncSession, *texts: str) -> RunHistory:
    for text in texts:
        await session.send(text)
    return await _told(session)


async def text() -> RunHistory:
    """A question and an answer."""
    return await _ran(_session([[think("easy"), say("hello back")]]), "hello")


async def followup() -> RunHistory:
    """The second run of a conversation."""
    return await _ran(_session([use("look", "a"), [say("one")], [say("two")]]), "first", "second")


async def tools() -> RunHistory:
    """Rounds of tools: a read, a write, an unknown one, and one with wrong arguments."""
    odd = [call("look", '{"key":').with_id("x"), call("nothing").with_id("y")]
    return await _ran(_session([use("look", "a"), use("act", "b"), odd, DONE]), "go")


async def parallel_reads() -> RunHistory:
    """Reads beside each other, then a write alone."""
    script = [[*use("look", "a", "b", "c"), one("act", "d")], DONE]
    return await _ran(_session(script, queue=True), "go")


async def steering() -> RunHistory:
    """A message comes in between: what has not begun is skipped."""
    bench = Bench("a")
    session = _session([[one("act", "a"), one("act", "b")], DONE], bench)
    running = sending(session, "go")
    await bench.begun("a").wait()
    await session.steer("not that one")
    bench.let_go()
    await running
    return await _told(session)


async def approval() -> RunHistory:
    """A call that somebody has to approve, and one that is denied."""
    asks = PermissionPolicy(ask=("act",), allow=("*",))
    session = _session(
        [[one("act", "a")], [one("act", "b")], DONE],
        permission_policy=asks,
        confirmation_policy=ConfirmationPolicy(enabled=True),
    )
    running = sending(session, "go")
    for answer in (True, False):
        while not (waiting := await session.pending_confirmations()):
            await passing()
        await session.confirm_tool_use(waiting[0]["tool_id"], answer, "as the test says")
    await running
    return await _told(session)


async def subagents() -> RunHistory:
    """A task for a sub-agent."""
    script = [[call("task", prompt="find it", description="it")], [say("found")], DONE]
    return await _ran(_session(script, subagents=True), "go")


async def model_retry() -> RunHistory:
    """The provider is away, limits, and cuts an answer off."""
    faults = [
        [fail(ModelUnavailableError("away"))],
        [fail(ModelLimitedError("too many", retry_after_ms=50))],
        [cut("so ")],
    ]
    return await _ran(_session([*faults, DONE]), "go")


async def compaction() -> RunHistory:
    """The older part of the conversation is summarised before the answer."""
    usage = Usage(input_tokens=850, output_tokens=10)
    script = [[say(f"answer {at}")] for at in range(4)]
    summaries = [[say("in short")]] * 4
    model = ScriptedModel(script, usage=usage, context_tokens=1_000, summaries=summaries)
    return await _ran(_session([], model=model), "one", "two", "three")


async def external_task() -> RunHistory:
    """A call that somebody else makes."""
    out = SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("external", 10_000)})
    session = _session([use("act", "a"), DONE], queue=out)
    running = sending(session, "go")
    while not (tasks := await session.pending_external_tasks()):
        await passing()
    await session.complete_external_task(tasks[0]["task_id"], {"success": True, "result": "made", "error": None})
    await running
    return await _told(session)


async def planned() -> RunHistory:
    """A plan of two steps."""
    script = [[plan("look", "tell")], use("look", "a"), [say("seen")], [say("told")], [say("all done")]]
    return await _ran(_session(script, planning=True), "go")


async def cancelled() -> RunHistory:
    """A run that is ended while its call runs."""
    bench = Bench("a")
    session = _session([use("act", "a"), DONE], bench)
    sending(session, "go")
    await bench.begun("a").wait()
    await session.cancel("enough")
    await session.wait_idle()
    return await _told(session)


async def limited() -> RunHistory:
    """A run that comes to its limit of rounds."""
    session = _session([use("look", "a"), use("look", "b")], max_tool_rounds=1)
    await asyncio.wait([sending(session, "go")])
    return await _told(session)


async def resumed() -> RunHistory:
    """A run whose session was closed goes on in another one."""
    disk, bench = MemoryDisk(), Bench("b")
    first = _session([use("act", "a"), [one("put", "b")]], bench, disk=disk)
    sending(first, "go")
    await bench.begun("b").wait()
    await first.close()
    bench.let_go()
    second = _session([DONE], bench, disk=disk)
    await second.ready()
    await second.wait_idle()
    return await _told(second)


async def held_back() -> RunHistory:
    """Two messages that follow while the first is being answered."""
    held = Held(say("first"))
    session = _session([held, [say("second")]])
    running = sending(session, "one")
    await held.asked.wait()
    later = sending(session, "two")
    held.let_go()
    await asyncio.gather(running, later)
    return await _told(session)


SCENES: Final[tuple[Scene, ...]] = (
    text, followup, tools, parallel_reads, steering, approval, subagents, model_retry, compaction, external_task,
    planned, cancelled, limited, resumed, held_back,
)  # fmt: skip


def recorded(scene: Scene) -> RunHistory:
    """Play a scene in virtual time, without a shuffle: the same every time."""
    found: list[RunHistory] = []

    async def play() -> None:
        found.append(await scene())

    run_sim(play(), seed=0, shuffle=False)
    return found[0]


def record_anew() -> None:
    """Write every scene into the folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        replay.save(recorded(scene), FOLDER / f"{getattr(scene, '__name__', '')}.jsonl")


if __name__ == "__main__":
    record_anew()
