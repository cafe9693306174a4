"""What every store has to do, as checks that anybody can run (and `FaultyStore`, which fails on purpose).

An adapter is finished when `check_store` passes. It gets a function that opens the store of a name: a new name is a new
store, a name that was used before is the same one again. `STORE_CHECKS` are the single checks, for one test each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from laneway.errors import FencedError, StoreUnavailableError, UnstorableError
from laneway.ports import History, Store
from laneway.rows import Batch, BatchResult, EventRow, Loaded, Lookup, MessageRow, Owner, Row, StateKey, StateRow
from laneway.testing.faults import FaultyStore
from laneway.testing.store_reading import (
    check_events_and_entries_are_read_by_session,
    check_history_answers_in_order,
    check_the_newest_event_of_each_session_is_found,
    check_troubles_are_those_that_still_need_somebody,
)
from laneway.testing.store_rows import (
    DEAD,
    OTHER,
    OWNER,
    OpenStore,
    commit,
    commit_each,
    entry_row,
    event_row,
    message_row,
    state_row,
)

__all__ = (
    "OTHER",
    "OWNER",
    "STORE_CHECKS",
    "FaultyStore",
    "OpenStore",
    "check_rows",
    "check_store",
    "entry_row",
    "event_row",
    "message_row",
    "state_row",
)

TEXTS: Final = (
    "",
    "plain",
    "nul \x00 inside, and at the end \x00",
    "emoji \U0001f469\u200d\U0001f467 \U0001f3f4, marks e\u0301, right to left \u202e\u05e9\u05dc\u202c \u0645\u0631",
    "quotes ' \" ` ; -- /* */ \\ % _ ? :name $1",
    "\n\r\n\t\x1b\x7f\u2028\ufeff\uffff\U0010ffff",
    "long " + "ä" * 100_000,
)


# ---- the checks ----


async def check_store(open_store: OpenStore) -> None:
    """Everything a store has to do; an AssertionError says what it does not."""
    for check in STORE_CHECKS:
        await check(open_store)


async def check_rows(store: Store, rows: Sequence[Row]) -> None:
    """Whether rows with different keys come back as they were written. The store is open and has none of them."""
    owners = dict.fromkeys(Owner(row.tenant, row.workspace, row.session) for row in rows)
    batches = [
        Batch(owner, store.epoch, tuple(row for row in rows if (row.tenant, row.workspace, row.session) == owner))
        for owner in owners
    ]
    for result in await store.commit(batches):
        assert result.error is None, result.error
    for row in rows:
        owner = Owner(row.tenant, row.workspace, row.session)
        assert await _read_back(store.history, owner, row) == row
    for owner in owners:
        await _check_live(store, owner, rows)


async def _read_back(history: History, owner: Owner, row: Row) -> Row | None:
    if isinstance(row, MessageRow):
        return await history.message(row.id)
    if isinstance(row, StateRow):
        return await history.state(row.kind, row.id)
    if isinstance(row, EventRow):
        return next(iter(await history.events(owner, after_seq=row.seq - 1, limit=1)), None)
    return next(iter(await history.entries(owner, after_seq=row.seq - 1, limit=1)), None)


async def _check_live(store: Store, owner: Owner, rows: Sequence[Row]) -> None:
    loaded = await store.load_session(owner)
    found: set[Row] = {*loaded.messages, *loaded.states}
    for row in rows:
        if isinstance(row, MessageRow | StateRow):
            is_due = bool(row.live) and (row.tenant, row.workspace, row.session) == owner
            assert (row in found) == is_due
    assert loaded.messages == sorted(loaded.messages, key=lambda row: (row.place, row.seq))
    assert loaded.states == sorted(loaded.states, key=lambda row: row.seq)


async def check_every_row_comes_back(open_store: OpenStore) -> None:
    """Round trips of every kind of row: texts of every kind, the biggest and smallest numbers, nothing at all."""
    store = open_store("rows")
    await store.open()
    for index, text in enumerate(TEXTS):
        seq = index * 10 + 1
        await check_rows(
            store,
            [
                message_row(f"m{index}", seq=seq, body=text, platform_id=text, reason=text, route=text),
                state_row(f"kind {text[:50]}", f"id {text[:50]}", seq=seq + 1, state=text, body=text),
                event_row(seq=seq + 2, type=text, body=text, message_id=text, turn_id=text),
                entry_row(seq=seq + 3, text=text, body=text, role=text),
            ],
        )
        owner = Owner(f"tenant {text[:50]}", f"workspace {text[:50]}", f"session {text[:50]}")
        await check_rows(store, [message_row(f"n{index}", owner, seq=seq + 4), entry_row(owner, seq=seq + 5)])
    big = 2**53
    await check_rows(
        store,
        [
            message_row("big", OTHER, seq=big, place=-big, arrived_ms=2**63 - 1, ended_ms=-(2**63)),
            event_row(OTHER, seq=big + 1, at_ms=-1),
            state_row("turn", "ended", OTHER, seq=big + 2, live=0),
            message_row("none", OTHER, seq=big + 3, platform_id=None, live=0),
        ],
    )
    await store.close()


async def check_writing_twice_is_writing_once(open_store: OpenStore) -> None:
    """A row replaces the row with its key, whatever has changed; an event never changes."""
    store = open_store("upsert")
    await store.open()
    rows: tuple[Row, ...] = (
        message_row("m", seq=1, platform_id="p"),
        state_row("turn", "t", seq=2),
        event_row(seq=3),
        entry_row(seq=4),
    )
    for _ in range(2):
        await commit(store, OWNER, *rows)
        assert await _everything(store, OWNER) == rows
    changed: tuple[Row, ...] = (
        message_row("m", seq=1, live=0, state="ran", outcome="succeeded", platform_id="q", body="new", ended_ms=7),
        state_row("turn", "t", seq=2, live=0, state="ended", body="new"),
        entry_row(seq=4, role="assistant", text="new"),
    )
    await commit(store, OWNER, *changed, event_row(seq=3, type="something_else"))
    assert await _everything(store, OWNER) == (changed[0], changed[1], rows[2], changed[2])
    assert await store.load_session(OWNER) == Loaded([], [])
    assert await store.find([Lookup(OWNER, "slack", "p", 0), Lookup(OWNER, "slack", "q", 0)]) == [None, changed[0]]

    same = [message_row("m", seq=1, state=f"s{n}") for n in range(5)]
    assert await store.commit([Batch(OWNER, store.epoch, (row,)) for row in same]) == [BatchResult()] * 5
    assert await store.history.messages(OWNER) == same[-1:]
    await store.close()


async def check_an_id_of_something_else_is_refused(open_store: OpenStore) -> None:
    """No row takes the place of one of another session, and no message or turn that of an earlier one."""
    store = open_store("taken")
    await store.open()
    rows = (message_row("m", seq=1), state_row("turn", "t", seq=2), state_row("round", "r", seq=3))
    await commit(store, OWNER, *rows)
    others = [row._replace(tenant=OTHER.tenant, workspace=OTHER.workspace, session=OTHER.session) for row in rows]
    for row in (*others, rows[0]._replace(seq=8), rows[1]._replace(seq=9)):
        owner = Owner(row.tenant, row.workspace, row.session)
        (result,) = await store.commit([Batch(owner, store.epoch, (event_row(owner, seq=7), row))])
        assert isinstance(result.error, UnstorableError), row
        assert repr(row.id) in str(result.error), row
        assert await store.history.events(owner) == []
    assert await store.load_session(OWNER) == Loaded([rows[0]], list(rows[1:]))
    assert await store.load_session(OTHER) == Loaded([], [])
    await commit(store, OWNER, rows[2]._replace(seq=10))  # a round is written again with another number
    await store.close()


async def _everything(store: Store, owner: Owner) -> tuple[Row, ...]:
    history = store.history
    return (
        *await history.messages(owner),
        *await history.states(owner, "turn"),
        *await history.events(owner),
        *await history.entries(owner),
    )


async def check_a_forgotten_state_is_gone(open_store: OpenStore) -> None:
    """Forgetting comes after the rows of its batch and before those of later batches; what is not there is no error."""
    store = open_store("forget")
    await store.open()
    key, row = StateKey("job", "j"), state_row("job", "j", seq=1)
    await commit(store, OWNER, forget=[key])
    await commit(store, OWNER, row, state_row("job", "k", seq=2), state_row("turn", "j", seq=3))
    await commit(store, OWNER, forget=[key])
    assert await store.history.state("job", "j") is None
    assert [one.id for one in (await store.load_session(OWNER)).states] == ["k", "j"]
    await commit(store, OWNER, row, forget=[key])
    assert await store.history.state("job", "j") is None
    again = row._replace(state="again", seq=4)
    batches = [
        Batch(OWNER, store.epoch, (row,)),
        Batch(OWNER, store.epoch, (), (key,)),
        Batch(OWNER, store.epoch, (again,)),
    ]
    assert await store.commit(batches) == [BatchResult()] * 3
    assert await store.history.state("job", "j") == again
    assert await store.commit(batches[:2]) == [BatchResult()] * 2
    assert await store.history.state("job", "j") is None
    await store.close()


async def check_only_live_rows_are_loaded(open_store: OpenStore) -> None:
    """A workspace with all its tenants and sessions, or one session: messages by place, states by number."""
    store = open_store("live")
    await store.open()
    alone = Owner("acme", "main")
    far = Owner("zeta", "main", "chat-1")
    messages = [
        message_row("a", seq=1, place=30),
        message_row("b", seq=2, place=10),
        message_row("c", OTHER, seq=3, place=20),
        message_row("gone", seq=4, live=0),
        message_row("d", far, seq=5, place=-5),
        message_row("elsewhere", Owner("acme", "side", "chat-1"), seq=6),
    ]
    states = [
        state_row("turn", "t2", seq=12),
        state_row("approval", "t1", OTHER, seq=11),
        state_row("job", "t3", alone, seq=13),
        state_row("turn", "ended", seq=10, live=0),
        state_row("turn", "elsewhere", Owner("acme", "side"), seq=14),
    ]
    await commit_each(store, [*messages, *states])
    a, b, c, _, d, _ = messages
    t2, t1, t3, *_ = states
    assert await store.load_workspace("main") == Loaded([d, b, c, a], [t1, t2, t3])
    assert await store.load_session(OWNER) == Loaded([b, a], [t2])
    assert await store.load_session(alone) == Loaded([], [t3])
    assert await store.load_session(far) == Loaded([d], [])
    assert await store.load_session(Owner("nobody", "main", "chat-1")) == Loaded([], [])
    assert await store.load_workspace("nowhere") == Loaded([], [])
    await commit(store, OWNER, message_row("b", seq=2, live=0, state="ran"), state_row("turn", "t2", seq=12, live=0))
    assert await store.load_session(OWNER) == Loaded([a], [])
    await store.close()
    again = open_store("live")
    await again.open()
    assert await again.load_workspace("main") == Loaded([d, c, a], [t1, t3])
    await again.close()


async def check_find_sees_what_was_asked_before(open_store: OpenStore) -> None:
    """The newest message of the session with that platform id on that route since then, ended or not."""
    store = open_store("find")
    await store.open()
    old = message_row("old", seq=1, platform_id="p", arrived_ms=100, live=0)
    new = message_row("new", seq=2, platform_id="p", arrived_ms=50)
    await commit(store, OWNER, new, old, message_row("none", seq=3))
    await commit(store, OTHER, message_row("other", OTHER, seq=4, platform_id="p", arrived_ms=100))
    cases: list[tuple[Lookup, MessageRow | None]] = [
        (Lookup(OWNER, "slack", "p", 0), new),
        (Lookup(OWNER, "slack", "p", 50), new),
        (Lookup(OWNER, "slack", "p", 51), old),
        (Lookup(OWNER, "slack", "p", 101), None),
        (Lookup(OWNER, "telegram", "p", 0), None),
        (Lookup(OWNER, "slack", "q", 0), None),
        (Lookup(OWNER, "slack", "", 0), None),
        (Lookup(Owner("zeta", "main", "chat-1"), "slack", "p", 0), None),
        (Lookup(Owner("acme", "side", "chat-1"), "slack", "p", 0), None),
    ]
    assert await store.find([lookup for lookup, _ in cases]) == [row for _, row in cases]
    assert await store.find([]) == []
    # Asked for at once, without waiting: each search sees the commit before it.
    rows = [message_row(f"r{n}", seq=10 + n, platform_id=f"r{n}") for n in range(20)]
    asked: list[Awaitable[Any]] = []
    for row in rows:
        asked.append(asyncio.ensure_future(store.commit([Batch(OWNER, store.epoch, (row,))])))
        asked.append(asyncio.ensure_future(store.find([Lookup(OWNER, "slack", row.id, 0)])))
    answers = await asyncio.gather(*asked)
    assert answers[1::2] == [[row] for row in rows]
    await store.close()


async def check_owners_are_kept_apart(open_store: OpenStore) -> None:
    """The same numbers in another tenant, workspace or session are other rows."""
    store = open_store("owners")
    await store.open()
    owners = [Owner(t, w, s) for t in ("acme", "zeta") for w in ("main", "side") for s in ("chat-1", "chat-2")]
    rows: dict[Owner, tuple[Row, ...]] = {}
    for number, owner in enumerate(owners):
        rows[owner] = (
            message_row(f"m{number}", owner, seq=1, platform_id="p"),
            state_row("turn", f"t{number}", owner, seq=2),
            event_row(owner, seq=3, message_id="m", body=str(number)),
            entry_row(owner, seq=4, body=str(number)),
        )
    batches = [Batch(owner, store.epoch, rows[owner]) for owner in owners]
    assert await store.commit(batches) == [BatchResult()] * len(owners)
    for owner in owners:
        assert await _everything(store, owner) == rows[owner]
        assert await store.find([Lookup(owner, "slack", "p", 0)]) == [rows[owner][0]]
        assert await store.history.events(owner, message_id="m") == [rows[owner][2]]
        assert len(await store.history.messages(Owner(owner.tenant, owner.workspace))) == 2
    assert len((await store.load_workspace("main")).messages) == 4
    await store.close()


async def check_an_old_owner_is_refused(open_store: OpenStore) -> None:
    """Every opening has a higher epoch; what carries another one is refused, alone, and nothing of it is written."""
    store = open_store("epoch")
    await store.open()
    first = store.epoch
    await commit(store, OWNER, message_row("m", seq=1))
    await store.close()
    store = open_store("epoch")
    await store.open()
    assert store.epoch > first
    results = await store.commit(
        [
            Batch(OWNER, first, (message_row("m", seq=1, state="stale"), message_row("stale", seq=2))),
            Batch(OWNER, store.epoch, (message_row("n", seq=3),)),
            Batch(OTHER, store.epoch + 1, (message_row("early", OTHER, seq=4),)),
        ]
    )
    assert [type(result.error) for result in results] == [FencedError, type(None), FencedError]
    rows = await store.history.messages(Owner("acme", "main"))
    assert rows == [message_row("m", seq=1), message_row("n", seq=3)]
    await store.close()


async def check_a_bad_batch_fails_alone(open_store: OpenStore) -> None:
    """And what its owner sent after it in the same commit fails with it: it stood on what was refused."""
    store = open_store("bad")
    await store.open()
    bad: list[Row] = [
        message_row("bad", seq=50, body="half a pair \ud800"),
        message_row("bad", seq=2**63),
        message_row("bad", seq=50, state=None),
        message_row("bad", seq=50, live=2),
        message_row("bad", seq=50, platform_id="\udfff"),
        state_row("turn", "bad", seq=50, body=object()),
        event_row(seq=50, type=None),
        entry_row(seq=50, conversation="one"),
    ]
    for number, row in enumerate(bad):
        others = [Owner("acme", "main", f"other-{number}-{n}") for n in range(3)]
        good = [message_row(f"{owner.session}", owner, seq=100 + number) for owner in others]
        results = await store.commit(
            [
                Batch(others[0], store.epoch, (good[0],)),
                Batch(OWNER, store.epoch, (message_row(f"before-{number}", seq=60 + number),)),
                Batch(OWNER, store.epoch, (message_row(f"beside-{number}", seq=51), row), (StateKey("turn", "x"),)),
                Batch(others[1], store.epoch, (good[1],)),
                Batch(OWNER, store.epoch, (message_row(f"after-{number}", seq=52),)),
                Batch(others[2], store.epoch, (good[2],)),
            ]
        )
        assert [result.error is None for result in results] == [True, True, False, True, False, True], (row, results)
        assert isinstance(results[2].error, StoreUnavailableError)
        assert isinstance(results[4].error, StoreUnavailableError)
        for one in good:
            assert await store.history.message(one.id) == one
        assert await store.history.message(f"before-{number}") is not None
        for name in ("bad", f"beside-{number}", f"after-{number}"):
            assert await store.history.message(name) is None
        await commit(store, OWNER, message_row(f"later-{number}", seq=53))
    assert await store.history.events(OWNER) == []
    await store.close()


async def check_commits_at_once_are_all_there(open_store: OpenStore) -> None:
    """Many callers at a time: each gets its own answers, and the last word of each owner stands."""
    store = open_store("at-once")
    await store.open()
    owners = [Owner("acme", "main", f"chat-{n}") for n in range(20)]

    async def talk(owner: Owner) -> None:
        seq = store.next_seq()
        for number in range(10):
            row = message_row(f"{owner.session}-m", owner, seq=seq, state=f"s{number}")
            results = await store.commit(
                [Batch(owner, store.epoch, (row, event_row(owner, seq=store.next_seq()))), Batch(owner, -1, (row,))]
            )
            assert results[0].error is None
            assert isinstance(results[1].error, FencedError)

    await asyncio.gather(*map(talk, owners))
    assert await store.commit([]) == []
    for owner in owners:
        assert [row.state for row in await store.history.messages(owner)] == ["s9"]
        assert len(await store.history.events(owner)) == 10
    # Not awaited one by one: the order of asking is the order of writing.
    asked = [
        asyncio.ensure_future(store.commit([Batch(OWNER, store.epoch, (message_row("last", seq=1, state=f"s{n}"),))]))
        for n in range(50)
    ]
    assert await asyncio.gather(*asked) == [[BatchResult()]] * 50
    row = await store.history.message("last")
    assert row is not None
    assert row.state == "s49"
    await store.close()


async def check_numbers_only_go_up(open_store: OpenStore) -> None:
    """Above every number given out, by any thread, and above every number in the store, after a reopening too."""
    store = open_store("numbers")
    await store.open()
    numbers: list[int] = []

    def draw() -> None:
        numbers.extend([store.next_seq() for _ in range(500)])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(numbers)) == 2000
    highest = max(numbers)
    writers: list[Callable[[int], Row]] = [
        lambda seq: message_row("m", seq=seq),
        lambda seq: message_row("n", seq=1, place=seq),
        lambda seq: state_row("turn", "t", seq=seq),
        lambda seq: event_row(seq=seq),
        lambda seq: entry_row(seq=seq),
    ]
    for write in writers:
        highest += 1_000_000
        await commit(store, OWNER, write(highest))
        assert store.next_seq() > highest
        highest = store.next_seq()
        await store.close()
        store = open_store("numbers")
        await store.open()
        assert store.next_seq() > highest
        highest = store.next_seq()
    await store.close()


async def check_the_last_user_closes(open_store: OpenStore) -> None:
    """Several users share a store; each closes it once. Not open, it says so; closing it then is no error."""
    store = open_store("users")
    await _expect_closed(store)
    await store.close()
    await store.open()
    epoch = store.epoch
    await store.open()
    assert store.epoch == epoch
    await store.close()
    await commit(store, OWNER, message_row("m", seq=1))
    await store.close()
    await _expect_closed(store)
    await store.close()
    await store.open()
    assert store.epoch > epoch
    assert await store.history.message("m") == message_row("m", seq=1)
    asked = asyncio.ensure_future(store.commit([Batch(OWNER, store.epoch, (message_row("n", seq=2),))]))
    await asyncio.sleep(0)
    await store.close()
    assert await asked == [BatchResult()]
    await store.open()
    assert await store.history.message("n") is not None
    await store.close()


async def check_what_is_erased_is_gone(open_store: OpenStore) -> None:
    """In slices: what is over up to a number, or everything; blobs go with the last row that names them."""
    store = open_store("erasing")
    await store.open()
    both, one = "a" * 64, "b" * 64
    blobs = [StateRow("blob", f"acme:{each}", "acme", "", "", 1, 0, "", "text") for each in (both, one)]
    naming = f'{{"v":1,"b":["{both}","{one}"]}}'
    marks = [("sent", "retried"), ("left", "open")]
    rows: list[Row] = [
        *(message_row(f"m{seq}", seq=seq, live=int(seq > 8), state="ran") for seq in range(5, 10)),
        *(message_row(name, seq=10 + at, live=0, state=DEAD) for at, (name, _) in enumerate(marks)),
        *(state_row("dead_letter", name, seq=12, live=0, state=state) for name, state in marks[:1]),
        *(state_row("turn", f"t{seq}", seq=seq, live=int(seq == 14)) for seq in (13, 14, 40)),
        state_row("identity", "chat-1", seq=15, live=0),
        state_row("round", "r/1", seq=16, live=0, body=naming),
        *(event_row(seq=seq) for seq in (20, 21, 41)),
        *(entry_row(seq=seq) for seq in (22, 42)),
    ]
    await commit(store, OWNER, *rows, *blobs)
    await commit(store, OTHER, state_row("round", "s/1", OTHER, seq=30, body=f'{{"v":1,"b":["{both}"]}}'))
    gone = 0
    while slice_ := await store.erase(OWNER, until_seq=30, limit=3):
        assert slice_ <= 3
        gone += slice_
    assert gone == 11, gone
    history = store.history
    assert (await history.tenants("main"), await history.tenants("none")) == (["acme"], [])
    assert [row.id for row in await history.messages(OWNER)] == ["m9", "left"]
    assert [row.id for row in await history.states(OWNER, "turn")] == ["t14", "t40"]
    assert len(await history.states(OWNER, "identity")) == 1
    assert [row.seq for row in await history.events(OWNER)] == [41]
    assert [row.seq for row in await history.entries(OWNER)] == [42]
    found = await history.states_by_id("blob", [f"acme:{both}", f"acme:{one}"])
    assert [row is None for row in found] == [False, True]
    while await store.erase(OWNER, limit=2):
        loaded = await store.load_session(OWNER)
        assert not loaded.messages
    assert await history.sessions("acme", "main") == []
    left: list[Row] = [*await history.states(OWNER, "identity"), *await history.events(OWNER)]
    assert [*left, *await history.entries(OWNER)] == []
    assert await store.erase(OTHER) == 1
    assert await history.states_by_id("blob", [f"acme:{both}"]) == [None]
    assert await store.erase(OTHER) == 0
    await store.close()


async def _expect_closed(store: Store) -> None:
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.commit([]),
        lambda: store.find([]),
        lambda: store.load_workspace("main"),
        lambda: store.load_session(OWNER),
        lambda: store.history.message("m"),
        lambda: store.history.sessions("acme", "main"),
    ]
    for call in calls:
        try:
            answer = await call()
        except StoreUnavailableError as error:
            assert "open" in str(error)  # noqa: PT017 - this is a library: pytest is not at hand
        else:
            raise AssertionError(f"a store that is not open has answered {answer!r}")


STORE_CHECKS: Final[tuple[Callable[[OpenStore], Awaitable[None]], ...]] = (
    check_every_row_comes_back,
    check_writing_twice_is_writing_once,
    check_an_id_of_something_else_is_refused,
    check_a_forgotten_state_is_gone,
    check_only_live_rows_are_loaded,
    check_find_sees_what_was_asked_before,
    check_history_answers_in_order,
    check_troubles_are_those_that_still_need_somebody,
    check_events_and_entries_are_read_by_session,
    check_the_newest_event_of_each_session_is_found,
    check_owners_are_kept_apart,
    check_an_old_owner_is_refused,
    check_a_bad_batch_fails_alone,
    check_commits_at_once_are_all_there,
    check_numbers_only_go_up,
    check_the_last_user_closes,
    check_what_is_erased_is_gone,
)
"""Each claim about a store on its own."""
