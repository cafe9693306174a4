"""What the history of every store has to do: listings in order, troubles, events and transcripts."""

from __future__ import annotations

from laneway.rows import LastEvent, Owner, Row
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
    "check_events_and_entries_are_read_by_session",
    "check_history_answers_in_order",
    "check_the_newest_event_of_each_session_is_found",
    "check_troubles_are_those_that_still_need_somebody",
)


async def check_history_answers_in_order(open_store: OpenStore) -> None:
    """Listings: by session or workspace, from a number on, as many as asked for."""
    store = open_store("history")
    await store.open()
    history = store.history
    messages = [
        message_row(
            f"m{n}", OWNER if n % 2 else OTHER, seq=n, place=100 - n, live=n % 3 % 2, state=DEAD if n % 2 else "s0"
        )
        for n in range(1, 11)
    ]
    states = [state_row("turn" if n % 4 else "job", f"t{n}", OWNER, seq=n, live=n % 3 % 2) for n in range(1, 11)]
    await commit_each(store, [*reversed(messages), *reversed(states)])
    mine = [row for row in messages if row.session == OWNER.session]
    everybody = Owner(OWNER.tenant, OWNER.workspace)
    assert await history.messages(OWNER) == mine
    assert await history.messages(OWNER, after_seq=3, limit=2) == [mine[2], mine[3]]
    assert await history.messages(OWNER, state="s0") == []
    assert await history.messages(OWNER, state=DEAD, limit=1) == mine[:1]
    assert await history.messages(everybody) == messages
    assert await history.messages(everybody, state="s0", after_seq=4) == messages[5::2]
    assert await history.messages(everybody, state=DEAD, after_seq=2, limit=2) == mine[1:3]
    assert await history.messages_newest(everybody) == messages[::-1]
    assert await history.messages_newest(everybody, state=DEAD, before_seq=9, limit=2) == [mine[3], mine[2]]
    assert await history.messages_newest(everybody, state="s0", before_seq=8, limit=2) == [messages[5], messages[3]]
    assert await history.messages_newest(OWNER, before_seq=7) == mine[2::-1]
    assert await history.message("m3") == messages[2]
    assert await history.message("nobody") is None
    turns = [row for row in states if row.kind == "turn"]
    assert await history.states(OWNER, "turn") == turns
    assert await history.states(OWNER, "turn", after_seq=2, limit=3) == turns[2:5]
    assert await history.states(everybody, "job") == [row for row in states if row.kind == "job"]
    assert await history.states(everybody, "turn", after_seq=9) == turns[-1:]
    assert await history.states(OTHER, "turn") == []
    assert await history.states_newest(OWNER, "turn") == turns[::-1]
    assert await history.states_newest(everybody, "turn", before_seq=7, limit=2) == turns[4:2:-1]
    assert await history.states_newest(everybody, "turn", state="nowhere") == []
    assert await history.states_newest(OWNER, "turn", state=turns[0].state, limit=1) == turns[-1:]
    assert await history.states_newest(OTHER, "turn") == []
    living = [row for row in turns if row.live]
    assert await history.states_newest(OWNER, "turn", live=True) == living[::-1]
    assert await history.states_newest(everybody, "turn", live=True, limit=1) == living[-1:]
    assert await history.messages_by_id(["m3", "nobody", "m1"]) == [messages[2], None, messages[0]]
    assert await history.messages_by_id([]) == []
    assert await history.state("turn", "t4") is None
    for limit in (0, -1):
        assert await history.messages(OWNER, limit=limit) == []
        assert await history.messages_newest(OWNER, limit=limit) == []
        assert await history.states(OWNER, "turn", limit=limit) == []
        assert await history.states_newest(OWNER, "turn", limit=limit) == []
        assert await history.events(OWNER, limit=limit) == []
        assert await history.events_newest(OWNER, limit=limit) == []
        assert await history.entries(OWNER, limit=limit) == []
        assert await history.entries(OWNER, limit=limit, newest=True) == []
        assert await history.sessions("acme", "main", limit=limit) == []
    await store.close()


async def check_troubles_are_those_that_still_need_somebody(open_store: OpenStore) -> None:
    """Unknown calls, dead letters that nobody has sent again, turns that broke and were the last of their session."""
    store = open_store("troubles")
    await store.open()
    third = Owner("acme", "main", "chat-3")
    elsewhere, stranger = Owner("acme", "side", "chat-1"), Owner("zeta", "main", "chat-1")
    unknown = [state_row("intent", f"i{n}", OWNER, seq=n, state="unknown") for n in (1, 2)]
    dead = [message_row(f"d{n}", OTHER, seq=n, live=0, state="dead_lettered") for n in (3, 4, 5)]
    broken = [
        state_row("turn", "t1", OWNER, seq=10, live=0, state="failed"),
        state_row("turn", "t2", OTHER, seq=11, live=0, state="interrupted"),
    ]
    others: list[Row] = [
        state_row("intent", "i3", OWNER, seq=20, state="intended"),
        state_row("intent", "i4", OWNER, seq=21, live=0, state="settled"),
        message_row("d9", OWNER, seq=22, live=0, state="ran"),
        message_row("gone", OTHER, seq=23, live=0, state="dead_lettered"),
        state_row("dead_letter", "gone", OTHER, seq=24, live=0, state="purged"),
        state_row("dead_letter", "d3", OTHER, seq=25, live=0, state="edited"),
        state_row("turn", "t3", third, seq=26, live=0, state="fenced"),
        state_row("turn", "t4", third, seq=27, live=0, state="succeeded"),
        state_row("turn", "t5", elsewhere, seq=28, live=0, state="failed"),
        state_row("intent", "i5", stranger, seq=29, state="unknown"),
        message_row("d10", stranger, seq=30, live=0, state="dead_lettered"),
    ]
    await commit_each(store, [*unknown, *dead, *broken, *others])
    found = await store.history.troubles("acme", "main")
    assert found.unknown == unknown[::-1]
    assert found.dead == dead[::-1]
    assert found.broken == broken[::-1]
    newest = await store.history.troubles("acme", "main", limit=1)
    assert newest == (unknown[1:], dead[2:], broken[1:])
    for limit in (0, -1):
        assert await store.history.troubles("acme", "main", limit=limit) == ([], [], [])
    await commit_each(store, [state_row("turn", "t6", OTHER, seq=40)])
    assert (await store.history.troubles("acme", "main")).broken == broken[:1]
    await store.close()


async def check_events_and_entries_are_read_by_session(open_store: OpenStore) -> None:
    """Events of a session, a message, a turn; the beginning or the end of a transcript; the sessions there are."""
    store = open_store("events")
    await store.open()
    history = store.history
    alone = Owner("acme", "main")
    events = [event_row(seq=n, message_id=f"m{n % 2}" if n > 2 else "", turn_id=f"t{n % 3}") for n in range(1, 13)]
    entries = [entry_row(seq=n, text=f"line {n}", conversation=n // 4) for n in range(1, 8)]
    await commit(store, OWNER, *reversed(events), *reversed(entries))
    stray = event_row(OTHER, seq=4, message_id="m0", turn_id="t1")
    await commit(store, OTHER, stray, entry_row(OTHER, seq=3), message_row("x", OTHER, seq=20))
    job = event_row(alone, seq=30, type="job_dead")
    await commit(store, alone, job)
    assert await history.events(OWNER) == events
    assert await history.events(OWNER, after_seq=5, limit=3) == events[5:8]
    assert await history.events_newest(OWNER) == events[::-1]
    assert await history.events_newest(OWNER, before_seq=events[5].seq, limit=3) == events[4:1:-1]
    assert await history.events_newest(Owner("zeta", "main", "chat-1")) == []
    assert await history.events(OWNER, message_id="m0") == events[3::2]
    assert await history.events(OWNER, turn_id="t0", after_seq=3, limit=2) == [events[5], events[8]]
    assert await history.events(OWNER, message_id="m1", turn_id="t0") == [events[2], events[8]]
    assert await history.events(OTHER, message_id="m0") == [stray]
    assert await history.events(alone) == [job]
    assert await history.events(Owner("zeta", "main", "chat-1")) == []
    between = history.events_between
    all_of_them = sorted([*events, stray], key=lambda row: (row.seq, row.session))
    found = await between("acme", "main", after_seq=0, until_seq=99)
    assert sorted(found, key=lambda row: (row.seq, row.session)) == all_of_them  # not the one without a session
    assert [row.seq for row in found] == [row.seq for row in all_of_them]
    assert await between("acme", "main", after_seq=5, until_seq=8) == events[5:8]
    assert await between("acme", "main", after_seq=5, until_seq=99, limit=2) == events[5:7]
    for tenant, workspace, after_seq, limit in (("zeta", "main", 0, 9), ("acme", "x", 0, 9), ("acme", "main", 0, 0)):
        assert await between(tenant, workspace, after_seq=after_seq, until_seq=99, limit=limit) == []
    assert await between("acme", "main", after_seq=8, until_seq=8) == []
    assert await history.entries(OWNER) == entries
    assert await history.entries(OWNER, limit=2) == entries[:2]
    assert await history.entries(OWNER, limit=2, newest=True) == entries[-2:]
    assert await history.entries(OWNER, after_seq=4, limit=10, newest=True) == entries[4:]
    assert await history.entries(OWNER, after_seq=2, limit=2) == entries[2:4]
    assert await history.entries(OWNER, conversation=0) == entries[:3]
    assert await history.entries(OWNER, conversation=0, newest=True, limit=2) == entries[1:3]
    assert await history.entries(OWNER, conversation=1, after_seq=4, limit=1) == entries[4:5]
    assert await history.entries(OWNER, conversation=2) == []

    assert await history.sessions("acme", "main") == ["chat-2"]
    keys = ["B", "a", "a b", "b", "é", "日", "😀"]
    for number, key in enumerate(reversed(keys)):
        owner = Owner("acme", "many", key)
        await commit(store, owner, *(message_row(f"{key}{n}", owner, seq=100 + number * 3 + n, live=n) for n in (0, 1)))
    assert await history.sessions("acme", "many") == keys
    assert await history.sessions("acme", "many", after="a", limit=3) == keys[2:5]
    assert await history.sessions("acme", "many", after="a!") == keys[3:]
    assert await history.sessions("zeta", "many") == []
    await store.close()


async def check_the_newest_event_of_each_session_is_found(open_store: OpenStore) -> None:
    """One for each session, the one that was quiet longest first; those of a workspace itself are left out."""
    store = open_store("last")
    await store.open()
    newest = event_row(seq=12, at_ms=700)
    await commit(store, OWNER, newest, *(event_row(seq=seq) for seq in range(1, 5)))
    await commit(store, OTHER, event_row(OTHER, seq=6, at_ms=900), message_row("x", OTHER, seq=20))
    await commit(store, Owner("acme", "main"), event_row(Owner("acme", "main"), seq=30))
    found = await store.history.last_events("acme", "main")
    assert found == [LastEvent(OTHER.session, 6, 900), LastEvent(OWNER.session, 12, 700)]
    assert await store.history.last_events("zeta", "main") == []
    assert await store.history.last_events("acme", "x") == []
    await store.close()
