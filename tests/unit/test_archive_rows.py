"""Files of sessions that are whole, with rows of which nothing could be made: refused before anything is written."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from laneway import ArchiveError, ConflictError
from laneway.kernel.checkpoints import digest_of, to_json
from laneway.models import ScriptedModel, call, say
from laneway.rows import Batch, Owner, StateKey
from laneway.runtime.archive import check_archive, export_session, import_into, import_session
from laneway.runtime.erasing import ERASING
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Bench, agent_of, session_of, use
from tests.inbox_stage import Agent, S, finals, new_inbox, send
from tests.stage import simulated
from tests.subagent_stage import Cast

WHO = Owner("default", "default", S)
LONG = "a long story " * 1_000
Rows = list[Any]


def sealed(rows: Rows) -> list[bytes]:
    """A file with the checksum of what is in it: written by somebody who meant it."""
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for row in rows]
    end = {"rows": len(rows) - 1, "sha256": sha256(b"".join(lines)).hexdigest()}
    return [*lines, json.dumps(end, separators=(",", ":")).encode() + b"\n"]


async def exported(store: MemoryStore, owner: Owner = WHO) -> Rows:
    """The head and the rows of the file of a session."""
    return [json.loads(line) async for line in export_session(store, owner, at_ms=1)][:-1]


async def opened(disk: MemoryDisk | None = None) -> MemoryStore:
    """An open store."""
    store = MemoryStore(disk)
    await store.open()
    return store


_KNOWN: list[Rows] = []


async def talked() -> Rows:
    """The file of a session in which an agent has made a call and told a long story, and was recorded."""
    if not _KNOWN:
        disk = MemoryDisk()
        async with agent_of(ScriptedModel([use("act", "k"), [say(LONG)]]), Bench()) as agent:
            session = session_of(agent, session_id=S, session_store=MemoryStore(disk), principal="olga", record=True)
            await session.send("tell me")
            await session.close()
        _KNOWN.append(await exported(await opened(disk)))
    return copy.deepcopy(_KNOWN[0])


def of(rows: Rows, letter: str, kind: str = "") -> Rows:
    """The rows of a table, or of a kind."""
    return [row for row in rows[1:] if row[0] == letter and kind in ("", row[2])]


def body_of(kind: str, body: str) -> Callable[[Rows], object]:
    """The first row of a kind with another body."""

    def spoil(rows: Rows) -> None:
        of(rows, "s", kind)[0][-1] = body

    return spoil


def changed(kind: str, **facts: Any) -> Callable[[Rows], object]:
    """The first row of a kind with other facts in its body."""

    def spoil(rows: Rows) -> None:
        row = of(rows, "s", kind)[0]
        row[-1] = json.dumps({**json.loads(row[-1]), **facts})

    return spoil


def in_table(letter: str, place: int, value: Any) -> Callable[[Rows], object]:
    """The first row of a table with another value."""

    def spoil(rows: Rows) -> None:
        of(rows, letter)[0][place] = value

    return spoil


def more(kind: str, body: str, *, live: int = 1, state: str = "open") -> Callable[[Rows], object]:
    """One more row."""
    return lambda rows: rows.append(["s", "", kind, "x-1", 9, live, state, body])


def again(letter: str) -> Callable[[Rows], object]:
    """The first row of a table once more."""
    return lambda rows: rows.append(of(rows, letter)[0])


def without(letter: str) -> Callable[[Rows], object]:
    """A file that lacks a table."""

    def spoil(rows: Rows) -> None:
        rows[:] = [rows[0], *(row for row in rows[1:] if row[0] != letter)]

    return spoil


def other_text(rows: Rows) -> None:
    """The long text is a number, under its own hash."""
    body = to_json(5)
    old = of(rows, "b")[0][1]
    for row in of(rows, "s"):
        row[-1] = row[-1].replace(old, digest_of(body))
    of(rows, "b")[0][1:4] = [digest_of(body), 5, body]


def spare_text(rows: Rows) -> None:
    """A text that nothing names."""
    body = to_json("nobody's")
    rows.append(["b", digest_of(body), 5, body])


HOSTILE: dict[str, tuple[Callable[[Rows], object], str]] = {
    "a session without settings": (more("session", "{}"), "conversation should be a number"),
    "a session in no conversation": (more("session", '{"conversation":"boom","queue":{}}'), "conversation should be"),
    "a session with unknown settings": (more("session", '{"conversation":0,"queue":{"x":1}}'), "no queue option"),
    "a session twice": (
        lambda rows: [more("session", '{"conversation":0,"queue":{}}')(rows) for _ in range(2)],
        "there twice",
    ),
    "a round of nothing": (body_of("round", "{}"), "its version"),
    "a round that names no text": (changed("round", b=["short"]), "a blob has no hash"),
    "a round with strange calls": (changed("round", a={"c": [1]}), "the parts of a call"),
    "an intent of nothing": (body_of("intent", "{}"), "its version"),
    "an intent with another id": (changed("intent", round=77), "it holds the entry"),
    "a compaction of nothing": (more("compaction", "{}", live=0), "its version"),
    "a record of nothing": (more("record", '{"v":1}', live=0), "b should be list"),
    "a record that names no text": (more("record", '{"v":1,"b":[],"o":[{"$":3}]}', live=0), "a text that is not there"),
    "a task of nothing": (more("task", "{}", live=0), "its version"),
    "a turn of nothing": (body_of("turn", "{}"), "messages should be list"),
    "a turn in no mode": (changed("turn", mode="sideways"), "sideways"),
    "a turn with a number for an answer": (changed("turn", answer=5), "its answer is no text"),
    "a child of nothing": (more("child", "{}", live=0), "turn_id should be str"),
    "a question of nothing": (more("approval", "{}", state="pending"), "turn_id should be str"),
    "labels that are none": (more("identity", '{"principal":5}', live=0), "there twice"),
    "labels with a number": (changed("identity", principal=5), "principal must be text"),
    "labels that nobody knows": (changed("identity", given=["color"]), "names of labels"),
    "a fork of nothing": (more("fork", "{}", live=0), "run_id should be str"),
    "a dead letter with a number for a text": (more("dead_letter", '{"text":5}', live=0), "text should be str"),
    "an event without a state": (in_table("e", -1, "{}"), "event message.accepted has no state"),
    "an event with strange facts": (in_table("e", -1, '{"state":[1]}'), "state of event message.accepted"),
    "an event that is a list": (in_table("e", -1, "[1]"), "the body of a row"),
    "a line that is a number": (in_table("t", -1, "7"), "the body of a row is '7'"),
    "a line of a sender that is a number": (in_table("t", -1, '{"sender":7}'), "its sender a word"),
    "a message with a number for a text": (
        in_table("m", -1, '{"text":5,"mode":"collect","kind":"user"}'),
        "text should",
    ),
    "a message that has ended and waits": (in_table("m", 5, 1), "a message is ran and live"),
    "a message that waits and has ended": (in_table("m", 6, "queued"), "a message is queued and not live"),
    "a message by no route": (in_table("m", 11, "[[],2,3,4]"), "a route should be four words"),
    "a row that is live twice": (in_table("m", 5, 2), "live of a row is 2"),
    "a number beyond all": (in_table("e", 2, 2**53 + 1), "seq of a row"),
    "a message twice": (again("m"), "there twice: m/"),
    "a turn twice": (again("s"), "there twice: s/"),
    "an event twice": (again("e"), "there twice: e/"),
    "a line twice": (again("t"), "there twice: t/"),
    "a text twice": (again("b"), "there twice: b/"),
    "no texts": (without("b"), "names a text that is not there"),
    "no lines": (without("t"), "names a text that is not there"),
    "a number in the place of a text": (other_text, "names a str, and"),
    "a text of nobody": (spare_text, "no row names the text"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_whole_and_has_a_row_that_nobody_can_read_is_refused(name: str) -> None:
    spoil, words = HOSTILE[name]

    @simulated
    async def play() -> None:
        rows = await talked()
        assert check_archive(sealed(rows)).rows == len(rows) - 1
        spoil(rows)
        other = await opened()
        with pytest.raises(ArchiveError, match=words):
            check_archive(sealed(rows))
        with pytest.raises(ArchiveError, match=words):
            await import_session(other, sealed(rows), WHO)
        assert not other.disk.states
        assert await other.history.sessions("default", "default") == []

    play()


@simulated
async def test_numbers_far_beyond_those_of_the_store_are_refused_and_do_not_use_them_up() -> None:
    rows = await talked()
    of(rows, "e")[-1][2] = 2**52
    disk = MemoryDisk()
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
        with pytest.raises(ArchiveError, match="far beyond those of this store"):
            await import_into(inbox.engine, sealed(rows), WHO)
        await finals(inbox, await send(inbox, "hello"))
        assert inbox.engine.store.next_seq() < 2**40


@simulated
async def test_what_the_inbox_cannot_go_on_with_is_erased_again() -> None:
    rows = await talked()
    disk = MemoryDisk()
    async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:

        async def adopt(_: Owner) -> None:
            raise KeyError("conversation")

        inbox.engine.adopt = adopt  # type: ignore[assignment,method-assign]
        with pytest.raises(KeyError):
            await import_into(inbox.engine, sealed(rows), WHO)
        assert not [row for row in disk.states.values() if row.session or row.kind in ("blob", ERASING)]
        assert await inbox.sessions() == []
        assert [each.answer for each in await finals(inbox, await send(inbox, "b"))] == ["re: b"]


class Dead(MemoryStore):
    """A store whose process is killed before a commit: nothing is written from then on, not even what tidies up."""

    def __init__(self, disk: MemoryDisk, at: int) -> None:
        super().__init__(disk)
        self.left = at

    async def commit(self, batches: Any) -> Any:
        """Write, while there is somebody who can."""
        self.left -= 1
        if self.left <= 0:
            raise asyncio.CancelledError
        return await super().commit(batches)

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 500) -> int:
        """The same."""
        if self.left <= 0:
            raise asyncio.CancelledError
        return await super().erase(owner, until_seq=until_seq, limit=limit)


def live_namers(rows: Rows) -> None:
    """The rows that name texts are live, and go last."""
    for row in of(rows, "s", "round") + of(rows, "s", "record"):
        row[5] = 1


def texts_first(rows: Rows) -> None:
    """Texts stand before the rows that name them."""
    rows[:] = [rows[0], *of(rows, "b"), *(row for row in rows[1:] if row[0] != "b")]


@pytest.mark.parametrize("arrange", [lambda rows: None, live_namers, texts_first])
@pytest.mark.parametrize("slice_", [1, 500])
def test_an_import_that_is_killed_leaves_nothing_wherever_that_was(
    arrange: Callable[[Rows], None], slice_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laneway.runtime.archive.SLICE", slice_)

    @simulated
    async def play() -> None:
        rows = await talked()
        arrange(rows)
        for at in range(2, 100):
            disk = MemoryDisk()
            store = Dead(disk, at)
            await store.open()
            try:
                await import_session(store, sealed(rows), WHO)
            except asyncio.CancelledError:
                async with new_inbox(Agent(), store=MemoryStore(disk)) as inbox:
                    assert await inbox.sessions() == []
                assert not [row for row in disk.states.values() if row.session or row.kind in ("blob", ERASING)]
            else:
                break
        assert at > 2
        assert StateKey("blob", f"default:{of(rows, 'b')[0][1]}") in disk.states

    play()


async def delegated(disk: MemoryDisk) -> Rows:
    """The file of a session whose sub-agent has done something."""
    cast = Cast(go=[[call("task", prompt="find")]], find=[[say("here")]])
    async with agent_of(cast.model) as agent:
        session = session_of(agent, session_id=S, session_store=MemoryStore(disk), subagents=True)
        await session.send("go")
        await session.close()
    return await exported(await opened(disk))


@simulated
async def test_sub_agents_go_by_the_key_under_which_their_parent_is_imported() -> None:
    rows = await delegated(MemoryDisk())
    assert f"sub-{S}~" in json.dumps(rows)
    disk = MemoryDisk()
    await import_session(await opened(disk), sealed(rows), WHO._replace(session="moved"))
    children = [row for row in disk.states.values() if row.kind == "child"]
    assert [row.id.startswith("sub-moved~") for row in children] == [True]
    sessions = await (await opened(disk)).history.sessions("default", "default")
    assert sessions == ["moved", children[0].id.removeprefix("sub-")]
    events = await (await opened(disk)).history.events(WHO._replace(session="moved"))
    named = {json.loads(row.body)["child_id"] for row in events if row.type.startswith("child.")}
    assert named == {children[0].id}


@simulated
async def test_a_killed_import_leaves_nothing_of_sub_agents_whose_messages_come_last() -> None:
    rows = await delegated(MemoryDisk())
    for row in of(rows, "m"):
        if row[1]:  # that of the sub-agent waits, so it is written last
            row[5:7] = [1, "held"]
    for at in range(2, 9):
        disk = MemoryDisk()
        store = Dead(disk, at)
        await store.open()
        try:
            await import_session(store, sealed(rows), WHO)
        except asyncio.CancelledError:
            async with new_inbox(Agent(), store=MemoryStore(disk)):
                assert not [owner for owner, drawer in disk.drawers.items() if owner.session and drawer.events]
        else:
            break
    assert at > 3


@simulated
async def test_what_others_have_is_told_to_nobody_and_whose_a_session_is_its_new_owner_says() -> None:
    rows = await talked()
    disk = MemoryDisk()
    store = await opened(disk)
    await import_session(store, sealed(rows), Owner("acme", "default", "secret"))
    with pytest.raises(ConflictError, match="of this file already") as refused:
        await import_session(store, sealed(rows), Owner("bravo", "default", "mine"))
    assert "secret" not in str(refused.value)
    with pytest.raises(ConflictError, match="in session 'secret'"):
        await import_session(store, sealed(rows), Owner("acme", "default", "mine"))
    (labels,) = [json.loads(row.body) for row in disk.states.values() if row.kind == "identity"]
    assert labels == {"tenant_id": "acme", "principal": "olga"}
    back = await opened()
    await import_session(back, sealed(await exported(store, Owner("acme", "default", "secret"))), WHO)
    (labels,) = [json.loads(row.body) for row in back.disk.states.values() if row.kind == "identity"]
    assert labels == {"principal": "olga"}


@simulated
async def test_a_row_that_changes_without_an_event_while_it_is_exported_is_noticed() -> None:
    for kind, state in (("intent", "settled"), ("identity", "")):
        disk = MemoryDisk()
        store = await opened(disk)
        await import_session(store, sealed(await talked()), WHO)
        lines = export_session(store, WHO, at_ms=1)
        async for line in lines:
            if line.startswith(b'["e"'):  # states were told already
                break
        (row,) = [each for each in disk.states.values() if each.kind == kind]
        body = json.dumps({**json.loads(row.body), "principal": "otto", "reason": "somebody looked"})
        await store.commit([Batch(WHO, store.epoch, (row._replace(state=state, body=body),))])
        with pytest.raises(ConflictError, match="has changed while it was exported"):
            assert [line async for line in lines]
