"""Whatever a session has been through: pruning takes the oldest first, whole runs, and never what is needed."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.rows import Batch, Owner, Row
from laneway.runtime.retention import HistoryLimits, boundary, foresee, prune
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.stores import entry_row, event_row, message_row, state_row

WHO = Owner("acme", "main", "chat-1")
RUNS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["done", "done", "done", "unknown", "dead", "settled", "asking", "background"]),
            "new": st.booleans(),
            "compacts": st.booleans(),
            "rounds": st.integers(1, 3),
        }
    ),
    max_size=12,
)


def history_of(runs: list[dict[str, object]]) -> tuple[list[Row], dict[int, set[int]], set[int], int]:
    """Rows of runs one after another; the numbers of each; the runs that are needed; the first one that is heard."""
    rows: list[Row] = []
    numbers: dict[int, set[int]] = {}
    needed: set[int] = set()
    seq = conversation = heard = 0
    for at, run in enumerate(runs):
        if run["new"] and at:
            conversation += 1
            heard = at
        first = seq + 1
        dead = run["kind"] in ("dead", "settled")
        rows.append(
            message_row(f"m{at}", seq=first, live=0, state="dead_lettered" if dead else "ran", turn_id=f"t{at}")
        )
        rows.append(state_row("turn", f"t{at}", seq=first + 1, live=0))
        rows.append(event_row(seq=first + 2, at_ms=at * 1000, turn_id=f"t{at}", message_id=f"m{at}"))
        rows.append(entry_row(seq=first + 3, message_id=f"m{at}", conversation=conversation))
        seq = first + 3
        for number in range(int(str(run["rounds"]))):
            seq += 1
            body = json.dumps({"v": 1, "c": conversation})
            rows.append(state_row("round", f"t{at}/{number}", seq=seq, live=0, body=body))
        last = seq
        if run["kind"] == "settled":
            seq += 1
            rows.append(state_row("dead_letter", f"m{at}", seq=seq, live=0, state="retried"))
        kinds = {"unknown": "intent", "asking": "approval", "background": "child"}
        if run["kind"] in kinds:
            seq += 1
            state = "unknown" if run["kind"] == "unknown" else "pending"
            rows.append(state_row(kinds[str(run["kind"])], f"x{at}", seq=seq, live=1, state=state))
        if run["kind"] in ("unknown", "asking", "background", "dead"):
            needed.add(at)
        if run["compacts"]:
            seq += 1
            body = json.dumps({"v": 1, "c": conversation, "n": [last, 1, 1]})
            rows.append(state_row("compaction", f"c{at}", seq=seq, live=0, body=body))
            heard = at  # the summary is a row of this run
        seq += 1
        rows.append(event_row(seq=seq, at_ms=at * 1000 + 500, turn_id=f"t{at}"))
        numbers[at] = set(range(first, seq + 1))
    return rows, numbers, needed, heard


@settings(max_examples=60, deadline=None)
@given(RUNS, st.none() | st.integers(0, 12), st.none() | st.integers(0, 12))
def test_the_oldest_go_first_and_never_what_is_needed(
    runs: list[dict[str, object]], most: int | None, age: int | None
) -> None:
    rows, numbers, needed, heard = history_of(runs)

    async def play() -> None:
        store = MemoryStore(MemoryDisk())
        await store.open()
        await store.commit([Batch(WHO, store.epoch, tuple(rows))])
        now = len(runs) * 1000
        limits = HistoryLimits(max_runs=most, max_age_ms=None if age is None else age * 1000, spared_ms=0)
        until = await boundary(store, WHO, limits, now_ms=now)
        foreseen = await foresee(store, WHO, limits, now_ms=now)
        assert foreseen == await prune(store, WHO, limits, now_ms=now), "what was said would go is what goes"
        left = {row.seq for row in await store.history.messages(WHO)}
        kinds = ("turn", "round", "intent", "approval", "child", "compaction", "dead_letter")
        for kind in kinds:
            left |= {row.seq for row in await store.history.states(WHO, kind)}
        left |= {row.seq for row in await store.history.events(WHO)}
        left |= {row.seq for row in await store.history.entries(WHO)}
        everything = {row.seq for row in rows}
        assert left == {seq for seq in everything if seq > until}, "what goes is the beginning, and nothing else"
        kept = [at for at, mine in numbers.items() if mine <= left]
        touched = [at for at, mine in numbers.items() if mine & left]
        assert kept == touched, "a run goes whole or not at all"
        assert needed <= set(kept)
        assert set(range(min(heard, len(runs)), len(runs))) <= set(kept), "what the model hears"
        if runs:
            assert len(runs) - 1 in kept, "the newest run stays"
        if most is None and age is None:
            assert len(kept) == len(runs)
        young = [at for at in range(len(runs)) if most is not None and at >= len(runs) - most]
        if age is None:
            assert set(young) <= set(kept)
        free = min([*needed, heard, len(runs) - max(most or 1, 1)])
        if most is not None and age is None:
            assert len(runs) - len(kept) == max(free, 0), "as much goes as may"

    asyncio.run(play())
