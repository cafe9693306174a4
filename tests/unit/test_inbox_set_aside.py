"""A session of which nothing can be made at a start: it is set aside by name, and the others go on."""

from __future__ import annotations

import logging

import pytest

from laneway import StoreCorruptError
from laneway.rows import Batch, MessageRow, Owner, Row, StateRow
from laneway.runtime.erasing import erase_all
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.inbox_stage import Agent, S, busy, finals, new_inbox, send, staged
from tests.stage import passing

WHO = Owner("default", "default", S)
OTHER = Owner("default", "default", "other")
TEXT = '{"text":"hello","mode":"followup","kind":"user"}'
MESSAGE = MessageRow("m-9", *WHO, 900, 900, 1, "queued", "", "", "", None, '["","","",""]', 1, 0, TEXT)

BROKEN: dict[str, Row] = {
    "settings": StateRow("session", "s", *WHO, 1, 1, "open", "{}"),
    "turn": StateRow("turn", "t", *WHO, 1, 1, "thinking", '{"mode":"followup"}'),
    "child": StateRow("child", "c", *WHO, 1, 1, "running", "[]"),
    "approval": StateRow("approval", "a", *WHO, 1, 1, "pending", "{}"),
    "message": MESSAGE._replace(body="{}"),
    "text": MESSAGE._replace(body=TEXT.replace('"hello"', "7")),
    "expiry": MESSAGE._replace(body=TEXT.replace("}", ',"expires_ms":"soon"}')),
    "sender": MESSAGE._replace(body=TEXT.replace("}", ',"sender":[1]}')),
    "route": MESSAGE._replace(route="[]"),
    "no json": StateRow("session", "s", *WHO, 1, 1, "open", "{"),
}


async def put(disk: MemoryDisk, *rows: Row) -> None:
    """Have rows in a store that nobody would write."""
    store = MemoryStore(disk)
    await store.open()
    await store.commit([Batch(WHO, store.epoch, rows)])
    await store.close()


@pytest.mark.parametrize("name", BROKEN)
def test_a_session_that_cannot_be_read_stops_nobody_else(name: str, caplog: pytest.LogCaptureFixture) -> None:
    @staged
    async def play() -> None:
        caplog.clear()
        disk, agent = MemoryDisk(), Agent()
        other = MESSAGE._replace(id="m-10", session="other")
        await put(disk, BROKEN[name], MESSAGE._replace(id="m-8"), other)
        async with new_inbox(agent, store=MemoryStore(disk)) as inbox:
            assert [each.answer for each in await finals(inbox, ["m-10"])] == ["re: hello"]
            assert len(agent.turns) == 1, "nothing of the broken one runs"
            with pytest.raises(StoreCorruptError, match="session 'chat' was set aside"):
                await inbox.submit(S, "hello?")
            with pytest.raises(StoreCorruptError):
                await inbox.schedule(S, "later", every_ms=1000)
        (told,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert "session 'chat' of tenant 'default' in workspace 'default' cannot be read" in told.getMessage()
        assert "\n" not in told.getMessage()
        async with new_inbox(agent, store=MemoryStore(disk)) as inbox:
            assert BROKEN[name] in [*disk.states.values(), *disk.messages.values()], "it was left as it is"
            assert await inbox.delete(S) > 0
            assert [each.answer for each in await finals(inbox, await send(inbox, "anew"))] == ["re: anew"]

    play()


@staged
async def test_its_schedules_are_not_sent() -> None:
    disk, agent = MemoryDisk(), Agent()
    async with new_inbox(agent, store=MemoryStore(disk)) as inbox:
        await inbox.schedule(S, "later", every_ms=1000)
    await put(disk, BROKEN["settings"])
    async with new_inbox(agent, store=MemoryStore(disk)) as inbox:
        assert inbox.schedules() == []
        await passing(5_000)
        assert agent.turns == []


@staged
async def test_a_session_that_is_loaded_again_and_cannot_be_read_is_set_aside_with_what_runs_there() -> None:
    disk, agent = MemoryDisk(), Agent()
    store = FaultyStore(MemoryStore(disk))
    async with new_inbox(agent, store=store, mode="followup") as inbox:
        await busy(inbox, agent)
        disk.write(Batch(WHO, store.epoch, (BROKEN["settings"],)))
        store.fail_next("before", owner=WHO)
        with pytest.raises(Exception, match="store"):
            await inbox.submit(S, "next")
        await passing(20_000)
        with pytest.raises(StoreCorruptError, match="was set aside"):
            await inbox.submit(S, "again")
        assert agent.running == 0
        done = await inbox.submit("other", "hello")
        assert (await inbox.wait(done.message_id)).answer == "re: hello"


@staged
async def test_one_that_was_set_aside_is_deleted_in_a_store_that_nobody_uses() -> None:
    disk = MemoryDisk()
    await put(disk, BROKEN["settings"], MESSAGE)
    store = MemoryStore(disk)
    await store.open()
    assert await erase_all(store, WHO) == 2
    assert disk.states == {}
