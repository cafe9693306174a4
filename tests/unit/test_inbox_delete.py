"""A session that is deleted: nothing of it is left, whatever ran, and nothing of it comes back."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from laneway import ConflictError, InvalidMessageError, StoreUnavailableError
from laneway.rows import Batch, Owner, StateRow
from laneway.runtime import erasing
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.inbox_stage import Agent, S, busy, finals, new_inbox, send, staged
from tests.stage import passing

WHO = Owner("default", "default", S)
CHILD = f"{S}~0123456789ab"


def rows_of(disk: MemoryDisk, session: str = S) -> int:
    """How many rows there are of a session."""
    drawers = [drawer for owner, drawer in disk.drawers.items() if owner.session == session]
    return sum(len(each.messages) + len(each.states) + len(each.events) + len(each.entries) for each in drawers)


@staged
async def test_nothing_is_left_of_a_session_and_its_neighbours_stay() -> None:
    disk = MemoryDisk()
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        inbox.has_agents = True  # as that of a host is: their sub-agents have sessions of their own
        for key in (S, f"{S}2", f"{S}~mine", CHILD):
            done = await inbox.submit(key, "hello")
            await inbox.wait(done.message_id)
        assert await inbox.delete(S) > 4
        assert rows_of(disk) == rows_of(disk, CHILD) == 0
        assert await inbox.sessions() == [f"{S}2", f"{S}~mine"]
        assert rows_of(disk, f"{S}2") > 2
        again = await inbox.wait((await inbox.submit(S, "again")).message_id)
        assert again.answer == "re: again"
        assert [line.text for line in await inbox.history(S)] == ["again", "re: again"]


@staged
async def test_what_runs_and_waits_is_ended_first_and_its_senders_are_told() -> None:
    disk, agent = MemoryDisk(), Agent()
    async with new_inbox(agent, store=MemoryStore(disk), mode="followup") as inbox:
        await inbox.schedule(S, "later", every_ms=1000)
        running = await busy(inbox, agent, "hold a")
        told = asyncio.ensure_future(finals(inbox, [running, *await send(inbox, "b")]))
        await inbox.delete(S)
        ends = [final.disposition.value for final in await told]
        assert agent.cancelled == ["hold a"]
        assert ends == ["ran", "withdrawn"]
        assert inbox.schedules() == []
        await passing(5_000)
        assert rows_of(disk) == 0


@staged
async def test_a_message_that_comes_while_it_is_deleted_is_refused_by_name() -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    async with new_inbox(Agent(), store=store) as inbox:
        await finals(inbox, await send(inbox, "a"))
        engine = inbox.engine
        store.slow, store.delay_ms = 1.0, 100
        inbox_deletes = asyncio.ensure_future(inbox.delete(S))
        await passing()
        assert WHO in engine.doomed
        with pytest.raises(ConflictError, match="is being deleted"):
            await inbox.submit(S, "late")
        with pytest.raises(ConflictError, match="is being deleted"):
            await inbox.delete(S)
        assert await inbox_deletes > 0


@staged
async def test_late_writers_write_nothing() -> None:
    disk = MemoryDisk()
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        await finals(inbox, await send(inbox, "a"))
        await inbox.delete(S)
        journal = inbox.engine.journal
        journal.add(WHO, StateRow("round", "late/1", *WHO, 99, 1, "done", "{}"))
        await journal.committed(WHO)
        assert rows_of(disk) == 0


@staged
async def test_a_delete_that_the_disk_cuts_off_is_finished_by_the_next_start() -> None:
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk))
    async with new_inbox(Agent(), store=store) as inbox:
        await finals(inbox, await send(inbox, "a"))
        store.fail_next("before", call="erase")
        with pytest.raises(StoreUnavailableError):
            await inbox.delete(S)
        assert rows_of(disk) > 0
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        assert rows_of(disk) == 0
        assert not [key for key in disk.states if key.kind == erasing.ERASING]
        assert [each.answer for each in await finals(inbox, await send(inbox, "b"))] == ["re: b"]


@staged
@pytest.mark.parametrize(("when", "call"), [("after", "commit"), ("before", "erase")])
async def test_what_comes_after_a_delete_that_failed_is_not_erased_by_it(when: Any, call: Any) -> None:
    """Refused, not taken and lost: the mark is on disk, and the next start erases everything."""
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk))
    async with new_inbox(Agent(), store=store) as inbox:
        await finals(inbox, await send(inbox, "a"))
        store.fail_next(when, call=call)
        with pytest.raises(StoreUnavailableError):
            await inbox.delete(S)
        with pytest.raises(ConflictError, match="was to be deleted"):
            await inbox.submit(S, "late")
        assert await inbox.delete(S) > 0
        assert rows_of(disk) == 0
        assert [each.answer for each in await finals(inbox, await send(inbox, "b"))] == ["re: b"]
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        assert [line.text for line in await inbox.history(S)] == ["b", "re: b"]


@staged
async def test_a_delete_whose_mark_was_not_written_has_changed_nothing() -> None:
    store = FaultyStore(MemoryStore())
    async with new_inbox(Agent(), store=store) as inbox:
        await finals(inbox, await send(inbox, "a"))
        store.fail_next("before")
        with pytest.raises(StoreUnavailableError):
            await inbox.delete(S)
        await finals(inbox, await send(inbox, "b"))
        assert [line.text for line in await inbox.history(S)] == ["a", "re: a", "b", "re: b"]


@staged
async def test_what_is_marked_never_runs_again() -> None:
    """The process died after the mark: a message that waited is not found by the next one."""
    disk = MemoryDisk()
    store = MemoryStore(disk)
    await store.open()
    mark = StateRow(erasing.ERASING, json.dumps(list(WHO)), *WHO[:2], "", 7, 1, "marked", json.dumps({"session": S}))
    await store.commit([Batch(WHO._replace(session=""), store.epoch, (mark,))])
    await store.close()
    agent = Agent()
    async with new_inbox(agent, store=MemoryStore(disk)) as inbox:
        assert await inbox.sessions() == []
        assert agent.turns == []


@staged
async def test_a_delete_that_is_refused_leaves_the_schedules_as_they_were() -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    async with new_inbox(Agent(), store=store) as inbox:
        await finals(inbox, await send(inbox, "a"))
        kept = await inbox.schedule(S, "later", every_ms=60_000)
        async with erasing.dooming(inbox.engine, WHO):  # somebody imports it, or deletes it
            with pytest.raises(ConflictError, match="is being deleted"):
                await inbox.delete(S)
            with pytest.raises(ConflictError, match="is being deleted"):
                await inbox.schedule(S, "meanwhile", every_ms=60_000)
        assert [each.id for each in inbox.schedules()] == [kept.id]
        store.fail_next("before")  # its mark is not written
        with pytest.raises(StoreUnavailableError):
            await inbox.delete(S)
        assert [each.id for each in inbox.schedules()] == [kept.id]


@staged
async def test_a_session_that_was_deleted_can_have_a_schedule_again_which_is_stored() -> None:
    disk = MemoryDisk()
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        await finals(inbox, await send(inbox, "a"))
        await inbox.delete(S)
        made = await inbox.schedule(S, "later", every_ms=60_000)
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        assert [each.id for each in inbox.schedules()] == [made.id]


@staged
async def test_a_delete_that_is_cut_off_finds_sub_agents_whose_messages_are_gone() -> None:
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk))
    async with new_inbox(Agent(), store=store) as inbox:
        inbox.has_agents = True
        for key in (S, CHILD):
            await inbox.wait((await inbox.submit(key, "hello")).message_id)
    await store.open()
    whole = store.inner.erase

    async def erase(owner: Owner, *, until_seq: int | None = None, limit: int = 500) -> int:
        gone = await whole(owner, until_seq=until_seq, limit=1)  # the messages go first
        store.fail_next(call="erase")
        return gone

    store.inner.erase = erase  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError):
        await erasing.erase_all(store, WHO)
    assert rows_of(disk, CHILD) > 0
    async with new_inbox(Agent(), store=MemoryStore(disk)):
        assert rows_of(disk, CHILD) == rows_of(disk) == 0


@pytest.mark.parametrize("owner", [WHO._replace(session=""), Owner("default", "laneway.gateway", S)])
def test_what_is_no_session_of_anybody_is_never_erased(owner: Owner) -> None:
    @staged
    async def play() -> None:
        disk = MemoryDisk()
        store = MemoryStore(disk)
        await store.open()
        row = StateRow("count", "everybody's", *owner, 1, 1, "", "{}")
        await store.commit([Batch(owner, store.epoch, (row,))])
        for wipe in (erasing.erase_all, erasing.erase):
            with pytest.raises(InvalidMessageError):
                await wipe(store, owner)
        async with new_inbox(Agent(), store=MemoryStore()) as inbox:
            with pytest.raises(InvalidMessageError):
                await erasing.delete_session(inbox.engine, owner, actor="somebody")
        assert [*disk.states.values()] == [row]

    play()


@staged
@pytest.mark.parametrize("command", ["/new", "/queue collect"])
async def test_a_command_begins_a_deleted_session_anew_and_holds_after_a_restart(command: str) -> None:
    disk = MemoryDisk()
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        await finals(inbox, await send(inbox, "a secret"))
        await inbox.delete(S)
        await inbox.command(S, command)
        await finals(inbox, await send(inbox, "b"))
        before = inbox.engine.kernel.sessions[WHO]
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        after = inbox.engine.kernel.sessions[WHO]
        assert (after.conversation, after.options) == (before.conversation, before.options)
        assert [line.text for line in await inbox.history(S)][-2:] == ["b", "re: b"]
