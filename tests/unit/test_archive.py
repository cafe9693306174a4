"""A session as a file: what goes out comes in again, whole or not at all, and whatever is no such file is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

import pytest

from laneway import ArchiveError, ClosedError, ConflictError, LanewayError, NotFoundError, StoreUnavailableError
from laneway.agent.forking import find_fork
from laneway.models import ScriptedModel, say
from laneway.rows import Loaded, Owner
from laneway.runtime.archive import check_archive, export_session, import_into, import_session
from laneway.runtime.erasing import ERASING, erase_all
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.agent_stage import Bench, agent_of, session_of, use
from tests.inbox_stage import Agent, S, busy, finals, new_inbox, send, staged
from tests.stage import passing, simulated

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
async def test_a_fork_knows_where_it_comes_from_wherever_it_is_imported() -> None:
    disk = MemoryDisk()
    async with agent_of(ScriptedModel([[say("one")], [say("two")]])) as agent:
        session = session_of(agent, session_id=S, session_store=MemoryStore(disk))
        run_id = (await session.send("go")).run_id
        fork = await session.fork(run_id, prompt="more", session_id="fork")
        await fork.wait_idle()
    lines = await file_of(await opened_store(disk), WHO._replace(session="fork"))
    moved = MemoryDisk()
    await import_session(await opened_store(moved), lines, Owner("acme", "elsewhere", "moved"))
    found = await find_fork((await opened_store(moved)).history, Owner("acme", "elsewhere", "moved"))
    assert found is not None
    assert found.from_run == run_id
    assert found.message_id in moved.messages


@simulated
async def test_a_message_that_comes_while_its_session_is_imported_is_refused_and_two_imports_are_one() -> None:
    lines = await file_of(await talked(MemoryDisk()))
    store = FaultyStore(MemoryStore(), Random(1))
    store.slow, store.delay_ms = 1.0, 100
    async with new_inbox(Agent(), store=store) as inbox:
        first = asyncio.ensure_future(import_into(inbox.engine, lines, WHO))
        await passing()
        with pytest.raises(ConflictError, match="is being deleted or imported"):
            await inbox.submit(S, "meanwhile")
        with pytest.raises(ConflictError, match="is being deleted or imported"):
            await import_into(inbox.engine, lines, WHO)
        await first
        with pytest.raises(ConflictError, match="there is a session"):
            await import_into(inbox.engine, lines, WHO)
        assert (await finals(inbox, await send(inbox, "b")))[0].answer == "re: b"
        assert [line.text for line in await inbox.history(S)][-3:] == ["good", "b", "re: b"]


@simulated
async def test_an_import_that_cannot_be_taken_back_takes_no_messages_until_it_is_deleted() -> None:
    lines = await file_of(await talked(MemoryDisk()))
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk))
    async with new_inbox(Agent(), store=store) as inbox:
        store.fail_next("after", owner=WHO)  # its rows are there, and the store says that they are not
        store.fail_next(call="erase")
        with pytest.raises(StoreUnavailableError):
            await import_into(inbox.engine, lines, WHO)
        with pytest.raises(ConflictError, match="was to be deleted"):
            await inbox.submit(S, "late")
        await inbox.delete(S)
        assert WHO not in disk.drawers
        assert (await finals(inbox, await send(inbox, "b")))[0].answer == "re: b"


@simulated
async def test_what_is_half_deleted_is_not_imported_over_and_not_exported() -> None:
    lines = await file_of(await talked(MemoryDisk()))
    store = FaultyStore(MemoryStore(MemoryDisk()))
    async with new_inbox(Agent(), store=store) as inbox:
        await finals(inbox, await send(inbox, "a secret"))
        store.fail_next(call="erase")
        with pytest.raises(StoreUnavailableError):
            await inbox.delete(S)
        with pytest.raises(ConflictError, match="was to be deleted"):
            await import_into(inbox.engine, lines, WHO)
        with pytest.raises(ConflictError, match="is not whole: it was being deleted by"):
            await import_session(store, lines, WHO)
        with pytest.raises(ConflictError, match="is not whole"):
            await file_of(store)  # type: ignore[arg-type]  # it can be read as one
        await inbox.delete(S)
        await import_into(inbox.engine, lines, WHO)
        assert "a secret" not in [line.text for line in await inbox.history(S)]


def test_a_file_is_whole_or_there_is_none_while_its_session_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laneway.runtime.archive.SLICE", 4)

    @simulated
    async def play() -> None:
        lines = await file_of(await talked(MemoryDisk()))
        refused = 0
        for wait_ms in range(0, 400, 5):
            store = FaultyStore(MemoryStore(), Random(1))
            store.slow, store.delay_ms = 1.0, 20
            await store.open()
            importing = asyncio.ensure_future(import_session(store, lines, WHO))
            await passing(wait_ms)
            try:
                assert await file_of(store) == lines  # type: ignore[arg-type]  # it can be read as one
            except (ConflictError, NotFoundError):
                refused += 1
            await importing
        assert 10 < refused < 80

    play()


@simulated
async def test_an_import_takes_nothing_from_a_session_that_has_no_message_yet() -> None:
    disk = MemoryDisk()
    await talked(disk)
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        lines = await file_of(inbox.engine.store)  # type: ignore[arg-type]  # it is one
        beside = WHO._replace(session="beside")
        await inbox.schedule("beside", "daily", every_ms=86_400_000)
        with pytest.raises(ConflictError, match="labels, a schedule or settings"):
            await import_into(inbox.engine, lines, beside)
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        assert [each.text for each in inbox.schedules("beside")] == ["daily"]


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


@simulated
async def test_a_session_is_not_adopted_by_an_inbox_that_is_closed() -> None:
    lines = await file_of(await talked(MemoryDisk()))
    store = MemoryStore()
    async with new_inbox(Agent(), store=store) as inbox:
        await import_session(store, lines, WHO)
    with pytest.raises(ClosedError):
        await inbox.engine.adopt(WHO)


class Gated(MemoryStore):
    """A store that loads no session in which there is anything before the test says so."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def load_session(self, owner: Owner) -> Loaded:
        if await self.history.messages(owner, limit=1):
            self.asked.set()
            await self.gate.wait()
        return await super().load_session(owner)


@simulated
async def test_an_import_that_meets_the_end_of_its_inbox_is_there_with_the_next_start() -> None:
    lines = await file_of(await talked(MemoryDisk()))
    disk = MemoryDisk()
    store = Gated(disk)
    async with new_inbox(Agent(), store=store) as inbox:
        importing = asyncio.ensure_future(import_into(inbox.engine, lines, WHO))
        await store.asked.wait()
    assert (await importing).session == S
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        assert [line.text for line in await inbox.history(S)][-1] == "good"


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


def signed(lines: list[bytes]) -> list[bytes]:
    """A file with the checksum of what is in it: written by somebody who meant it."""
    end = {"rows": len(lines) - 2, "sha256": sha256(b"".join(lines[:-1])).hexdigest()}
    return [*lines[:-1], json.dumps(end, separators=(",", ":")).encode() + b"\n"]


def edited(letter: str, place: int, value: Any) -> Callable[[list[bytes]], list[bytes]]:
    """The first row of a table with another value."""

    def spoil(lines: list[bytes]) -> list[bytes]:
        at = next(at for at, line in enumerate(lines) if line.startswith(f'["{letter}"'.encode()))
        row = json.loads(lines[at])
        row[place] = value
        changed = json.dumps(row, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
        return signed([*lines[:at], changed, *lines[at + 1 :]])

    return spoil


def added(kind: str, body: str) -> Callable[[list[bytes]], list[bytes]]:
    """One more row, which is live."""
    row = json.dumps(["s", "", kind, "x-1", 9, 1, "running", body]).encode() + b"\n"
    return lambda lines: signed([*lines[:-1], row, lines[-1]])


WRONG += [
    (edited("m", 2, {"a": 1}), "line 2: id of a row"),
    (edited("m", 3, "first"), "line 2: seq of a row"),
    (edited("m", 3, -1), "line 2: seq of a row is -1"),
    (edited("m", 3, 2**62), "line 2: seq of a row is 4611"),
    (edited("m", 3, float("nan")), "line 2: seq of a row is nan"),
    (edited("m", 6, "nonsense"), "a message is in state 'nonsense'"),
    (edited("m", -1, "no json"), "line 2: body of a row is 'no json'"),
    (edited("m", -1, "\ud800"), "line 2: body of a row is"),
    (edited("s", 2, "token"), "no rows of kind 'token'"),
    (edited("s", 2, "budget"), "no rows of kind 'budget'"),
    (edited("s", 6, 5), "state of a row is 5"),
    (edited("e", 2, 1.5), "seq of a row is 1.5"),
    (edited("e", 4, None), "type of a row is None"),
    (edited("t", 6, ["user"]), "message_id of a row is"),
    (edited("m", -1, "[]"), r"the body of a row is '\[\]'"),
    (edited("m", -1, "{}"), "a row cannot be read"),
    (edited("m", 11, "[]"), "a row cannot be read"),
    (edited("s", -1, "[]"), r"the body of a row is '\[\]'"),
    (added("turn", "{}"), "it has a turn that runs"),
    (edited("s", 6, "nonsense"), "a run is in state 'nonsense'"),
    (added("child", "{}"), "it has a child that runs"),
    (added("task", "{}"), "it has a task that runs"),
    (added("approval", "{}"), "a row cannot be read"),
    (lambda lines: signed([*lines[:-1], b'["b","0123",5,"\\"text\\""]\n', lines[-1]]), "its hash names"),
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
