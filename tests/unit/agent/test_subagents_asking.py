"""What grandchildren ask is heard and answered at the first session; chains of spawned runs have an end."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.agent.subagents import PROGRESS_MAX
from laneway.errors import ModelError
from laneway.models import call, fail
from laneway.options import PermissionPolicy
from laneway.policies import ConfirmationPolicy
from tests.agent_stage import QUEUES, Bench, Watch, one, opened, sending
from tests.inbox_stage import staged
from tests.stage import passing
from tests.subagent_stage import Cast, nested, notes
from tests.unit.agent.test_subagents_restart import KilledError, World

SPAN = 60_000


def asking(bench: Bench, *, queue: bool, **policy: Any) -> tuple[Cast, AbstractAsyncContextManager[AsyncSession]]:
    """A session whose grandchild has to ask before it acts."""
    cast = nested(2)
    cast.parts["level 2"] = [[one("act", "a")]]
    options: dict[str, Any] = {
        "permission_policy": PermissionPolicy(allow=("task", "look")),
        "confirmation_policy": ConfirmationPolicy(**policy),
    }
    return cast, opened(cast.model, bench, queue=queue, subagents=True, **options)


# ---- approvals ----


async def answer(session: AsyncSession, way: str, approval_id: str) -> None:
    """Answer a request in one of the ways there are."""
    match way:
        case "approve":
            assert await session.approve(approval_id, by="ada")
        case "confirm by request":
            assert await session.confirm_tool_use(approval_id, True)
        case "confirm by call":
            assert await session.confirm_tool_use("a", True, args={"key": "a"})
        case "command":
            assert await session.command(f"/approve {approval_id}") is not None
        case "deny":
            assert await session.deny(approval_id, "not today")
        case "confirm no":
            assert await session.confirm_tool_use(approval_id, False, "not today")
        case "command no":
            assert await session.command(f"/deny {approval_id} not today") is not None
        case _:
            raise AssertionError(way)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("way", ["approve", "confirm by request", "confirm by call", "command"])
@staged
async def test_what_a_grandchild_asks_is_heard_once_and_approved_at_the_first_session(way: str, queue: bool) -> None:
    bench = Bench()
    cast, opening = asking(bench, queue=queue)
    async with opening as session:
        watch = Watch(session.subscribe())
        sent = sending(session, "go")
        await passing()
        [asked] = watch.of("confirmation_required")
        assert (asked.tool_name, asked.args) == ("act", {"key": "a"})
        [waiting] = await session.pending_confirmations()
        grandchild = session.children()[0].children()[0]
        assert (waiting.approval_id, waiting.session_id) == (asked.approval_id, grandchild.session_id)
        assert bench.began == []
        await answer(session, way, asked.approval_id)
        assert (await sent).text == "done go"
        assert bench.ended == ["a"]
        assert cast.said_to("level 2") == ["result of a"]
        assert not await session.approve(asked.approval_id), "it is not pending any more"


@pytest.mark.parametrize("way", ["deny", "confirm no", "command no"])
@staged
async def test_what_a_grandchild_asks_can_be_denied_at_the_first_session_and_its_model_is_told(way: str) -> None:
    bench = Bench()
    cast, opening = asking(bench, queue=True)
    async with opening as session:
        sent = sending(session, "go")
        await passing()
        [waiting] = await session.pending_confirmations()
        await answer(session, way, waiting.approval_id)
        assert (await sent).text == "done go"
        assert bench.began == []
        [told] = cast.said_to("level 2")
        assert told.startswith("[Denied: ")
        assert "not today" in told


@staged
async def test_a_session_beside_it_can_neither_see_nor_answer_what_a_grandchild_asks() -> None:
    bench = Bench()
    _, opening = asking(bench, queue=False)
    other_cast = Cast()
    async with opening as session, opened(other_cast.model, bench, subagents=True) as other:
        sent = sending(session, "go")
        await passing()
        [waiting] = await session.pending_confirmations()
        assert await other.pending_confirmations() == []
        assert not await other.approve(waiting.approval_id)
        assert not await other.deny(waiting.approval_id)
        assert not await other.confirm_tool_use(waiting.approval_id, True)
        assert bench.began == []
        assert await session.approve(waiting.approval_id)
        await sent


@staged
async def test_the_warning_before_a_question_of_a_grandchild_expires_is_heard_at_the_first_session() -> None:
    bench = Bench()
    cast, opening = asking(bench, queue=False, default_timeout_ms=SPAN)
    async with opening as session:
        watch = Watch(session.subscribe())
        sent = sending(session, "go")
        await passing(SPAN - 1)
        [asked], [warning] = watch.of("confirmation_required"), watch.of("confirmation_warning")
        assert warning.approval_id == asked.approval_id
        await sent
        assert bench.began == []
        assert cast.said_to("level 2")[0].startswith("[Denied: ")
        assert await session.pending_confirmations() == []


@staged
async def test_a_question_of_a_grandchild_is_heard_however_much_it_had_to_tell_before() -> None:
    """Its progress is told up to a bound; what somebody has to answer is told beyond it."""
    bench = Bench()
    cast, opening = asking(bench, queue=False)
    looks = [[one("look", f"{each}-{number}") for number in range(60)] for each in range(8)]
    cast.parts["level 2"] = [*looks, [one("act", "a")]]
    cast.hold("level 2")
    async with opening as session:
        watch = Watch(session.subscribe())
        sent = sending(session, "go")
        await passing()
        progress = Watch(session.children()[0].subscribe())
        cast.let_go()
        while not (waiting := await session.pending_confirmations()):
            await passing()
        assert PROGRESS_MAX - 10 < len(progress.of("subagent_progress")) <= PROGRESS_MAX
        assert [event.args for event in watch.of("confirmation_required")] == [{"key": "a"}]
        assert await session.approve(waiting[0].approval_id)
        await sent


# ---- chains ----


def chain(note: str = "it") -> tuple[Cast, str]:
    """A model that spawns as soon as it hears that what it has spawned has ended."""
    cast = Cast(go=[[call("spawn", prompt="find", description=note)]])
    told = f'[System note] Sub-agent "{note}" is done. Result:\ndone find'
    cast.parts[told] = [[call("spawn", prompt="find", description=note)]]
    return cast, told


async def to_rest(session: AsyncSession) -> None:
    """Until nothing more happens."""
    for _ in range(20):
        await passing()
        await session.wait_idle()


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_chain_of_spawned_runs_ends_after_five_and_what_somebody_says_begins_another(queue: bool) -> None:
    cast, told = chain()
    async with opened(cast.model, queue=queue, subagents=True) as session:
        for number in (1, 2):
            await session.send("go")
            await to_rest(session)
            assert cast.asked.count("find") == 5 * number
            assert "may spawn none" in cast.said_to(told)[-1]
        assert session.children() == []


@staged
async def test_a_chain_whose_sub_agents_fail_ends_too() -> None:
    cast = Cast(go=[[call("spawn", prompt="find", description="it")]], find=[[fail(ModelError("broken"))]])
    async with opened(cast.model, subagents=True) as session:
        cast.parts[await first_note(cast, session)] = cast.parts["go"]
        cast.asked.clear()
        await session.send("go")
        await to_rest(session)
        assert cast.asked.count("find") == 5


async def first_note(cast: Cast, session: AsyncSession) -> str:
    """What the model is told of the end of what it spawns."""
    await session.send("go")
    await to_rest(session)
    [note] = notes(cast)
    assert "failed" in note
    return note


def test_a_chain_of_spawned_runs_ends_after_five_also_over_restarts() -> None:
    """In every life one sub-agent ends, and the process is killed while the next one is at work."""
    world = World()
    started: list[int] = []
    for life in range(9):
        cast, _ = chain()

        async def live(session: AsyncSession, life: int = life, cast: Cast = cast) -> None:
            cast.hold("find")
            if life == 0:
                await session.followup("go")
            await passing(100)
            going_on = cast.held["find"]
            cast.hold("find")
            if life:
                going_on.set()
            await passing(100)
            raise KilledError

        assert world.run(cast, live)
        started.append(len(world.rows("child")))
    assert started == [1, 2, 3, 4, 5, 5, 5, 5, 5]
    assert world.rows("child", live=1) == []
