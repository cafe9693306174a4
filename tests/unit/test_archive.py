"""A session as a file: what goes out comes in again, whole or not at all, and whatever is no such file is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from laneway import ArchiveError, ConflictError, LanewayError, NotFoundError
from laneway.models import ScriptedModel, say
from laneway.rows import Owner
from laneway.runtime.archive import check_archive, export_session, import_session
from laneway.runtime.erasing import ERASING, erase_all
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.agent_stage import Bench, agent_of, session_of, use
from tests.inbox_stage import Agent, S, busy, finals, new_inbox, send, staged
from tests.stage import simulated

WHO = Owner("default", "default", S)
LONG = "a long story " * 1_000


async def file_of(store: MemoryStore, owner: Owner = WHO) -> list[bytes]:
    """The lines of the file of a session."""
    return [line async for line in export_session(store, owner, at_ms=1)]


async def opened_store(disk: MemoryDisk | None = None) -> MemoryStore:
    """An open store."""
    store = MemoryStore(disk)
    await store.open()
    return store


async def talked(disk: MemoryDisk) -> MemoryStore:
    """A store with a session in which an agent has worked."""
    model = ScriptedModel([use("act", "k"), [say(LONG)], [say("good")]])
    async with agent_of(model, Bench()) as agent:
        session = session_of(agent, session_id=S, session_store=MemoryStore(disk), principal="olga")
        await session.send("tell me")
        await session.send("and?")
        await session.close()
    return await opened_store(disk)


@simulated
async def test_a_session_goes_on_in_another_store_under_another_key() -> None:
    store = await talked(MemoryDisk())
    lines = await file_of(store)
    head = check_archive(lines)
    assert (head.session, head.rows) == (S, len(lines) - 2)
    disk = MemoryDisk()
    other = await opened_store(disk)
    await import_session(other, lines, Owner("default", "default", "moved"))
    assert not [key for key in disk.states if key.kind == ERASING]
    again = [json.loads(line) for line in await file_of(other, Owner("default", "default", "moved"))]
    assert [row[2:] for row in again[1:-1]] != []
    model = ScriptedModel([[say("yes")]])
    async with agent_of(model) as agent:
        session = session_of(agent, session_id="moved", session_store=MemoryStore(disk))
        await session.send("do you remember?")
        assert session.principal() == "olga"
        assert [entry.call_id for entry in await session.ledger()] == ["k"]
    heard = str(model.requests[-1])
    assert LONG in heard
    assert "and?" in heard


@simulated
async def test_what_was_exported_and_imported_is_exported_the_same() -> None:
    store = await talked(MemoryDisk())
    lines = await file_of(store)
    other = await opened_store()
    await import_session(other, lines, WHO)
    assert await file_of(other) == lines


@simulated
async def test_a_session_is_in_a_store_once() -> None:
    store = await talked(MemoryDisk())
    lines = await file_of(store)
    before = await file_of(store)
    with pytest.raises(ConflictError, match="already"):
        await import_session(store, lines, WHO)
    with pytest.raises(ConflictError, match="of this file already"):
        await import_session(store, lines, WHO._replace(session="copy"))
    assert await file_of(store) == before
    assert await store.history.sessions("default", "default") == [S]
    await erase_all(store, WHO)
    await import_session(store, lines, WHO)
    assert await file_of(store) == before


@staged
async def test_a_session_at_work_is_not_exported_and_one_that_is_not_there_neither() -> None:
    agent = Agent()
    store = MemoryStore()
    async with new_inbox(agent, store=store) as inbox:
        await busy(inbox, agent)
        with pytest.raises(ConflictError, match="at work"):
            await file_of(store)
        with pytest.raises(NotFoundError):
            await file_of(store, WHO._replace(session="none"))
        assert agent.running == 1
        agent.let_go("hold")


@staged
async def test_a_session_that_changes_meanwhile_has_a_file_without_an_end() -> None:
    store = MemoryStore()
    async with new_inbox(Agent(), store=store) as inbox:
        await finals(inbox, await send(inbox, "a"))
        lines = export_session(store, WHO, at_ms=1)
        got = [await anext(lines)]
        await finals(inbox, await send(inbox, "b"))
        with pytest.raises(ConflictError, match="has changed"):
            got += [line async for line in lines]
        with pytest.raises(ArchiveError, match="cut off"):
            check_archive(got)


@staged
async def test_what_waits_goes_on_where_it_is_imported() -> None:
    store, other = MemoryStore(), MemoryStore()
    agent = Agent()
    async with new_inbox(agent, store=store, mode="followup") as inbox:
        first = await busy(inbox, agent)
        (held,) = await send(inbox, "wait")
        await inbox.hold(held)
        agent.let_go("hold")
        await finals(inbox, [first])
        lines = await file_of(store)
    async with new_inbox(Agent(), store=other) as inbox:
        await import_session(other, lines, WHO)
        await inbox.engine.adopt(WHO)
        assert [each.text for each in inbox.pending(S)] == ["wait"]
        await inbox.release(held)
        assert [each.answer for each in await finals(inbox, [held])] == ["re: wait"]


def _without_end(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


def _short(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-1], lines[-1][:-5]]


def _one_letter(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b"hello", b"jello"), *lines[2:]]


def _one_row_less(lines: list[bytes]) -> list[bytes]:
    return [lines[0], *lines[2:]]


def _twice(lines: list[bytes]) -> list[bytes]:
    return [*lines, *lines]


def _newer(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]]


def _other_session(lines: list[bytes]) -> list[bytes]:
    return [lines[0], json.dumps(["m", "/../other", *json.loads(lines[1])[2:]]).encode() + b"\n", *lines[2:]]


WRONG: list[tuple[Callable[[list[bytes]], list[bytes]], str]] = [
    (_without_end, "cut off"),
    (_short, "cut off"),
    (_one_letter, "not those that were written"),
    (_one_row_less, "not those that were written"),
    (_twice, "behind its end"),
    (_newer, "version 2"),
    (_other_session, "another session"),
    (lambda _: [], "it is empty"),
    (lambda _: [b"PK\x03\x04\n"], "no session of Laneway"),
    (lambda _: [b'{"some":"json"}\n'], "no session of Laneway"),
    (lambda lines: [lines[0], b"\xff\xfe\n"], "no JSON"),
    (lambda lines: [lines[0], b'["m",1]\n'], "other fields"),
    (lambda lines: [lines[0], b"[" * 100_000 + b"\n"], "no JSON"),
]


@pytest.mark.parametrize(("spoil", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_is_no_such_file_is_refused_by_name(spoil: Callable[[list[bytes]], list[bytes]], words: str) -> None:
    @staged
    async def play() -> None:
        store, other = MemoryStore(), await opened_store()
        async with new_inbox(Agent(), store=store) as inbox:
            await finals(inbox, await send(inbox, "hello"))
            lines = await file_of(store)
        with pytest.raises(ArchiveError, match=words):
            check_archive(spoil(lines))
        with pytest.raises(ArchiveError, match=words):
            await import_session(other, spoil(lines), WHO)
        assert await other.history.sessions("default", "default") == []
        assert not other.disk.states

    play()


@pytest.mark.parametrize("at", range(1, 5))
def test_an_import_that_the_disk_cuts_off_leaves_nothing(at: int) -> None:
    @simulated
    async def play() -> None:
        lines = await file_of(await talked(MemoryDisk()))
        disk = MemoryDisk()
        store = FaultyStore(MemoryStore(disk))
        await store.open()
        calls = 0

        async def commit(batches: list[object]) -> list[object]:
            nonlocal calls
            calls += 1
            if calls == at:
                store.fail_next("after" if at % 2 else "before")
            return await FaultyStore.commit(store, batches)  # type: ignore[arg-type,return-value]

        store.commit = commit  # type: ignore[assignment,method-assign]
        try:
            await import_session(store, lines, WHO)
        except LanewayError:
            async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
                assert await inbox.sessions() == []
                assert not [row for row in disk.states.values() if row.session or row.kind in ("blob", ERASING)]
        else:
            assert at > 3

    play()
