"""A process that prunes, deletes, imports or exports until it is killed: `python -m tests.chaos.keeping_life WHAT DIR`.

It says `ready` when it has opened its store, and `done` when it has come to the end.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from laneway.rows import Batch, Owner, Row
from laneway.runtime.archive import check_archive, export_session, import_session
from laneway.runtime.erasing import erase_all
from laneway.runtime.retention import HistoryLimits, prune
from laneway.stores.sqlite import SqliteStore
from laneway.testing.stores import entry_row, event_row, message_row, state_row

__all__ = ("LIMITS", "OTHER", "RUNS", "WHO", "fill")

WHO = Owner("default", "default", "chat")
OTHER = Owner("default", "default", "other")
RUNS = 400
LIMITS = HistoryLimits(max_runs=10, spared_ms=0)


async def fill(path: Path, owner: Owner) -> None:
    """A session with many runs, each with a blob of its own."""
    store = SqliteStore(path)
    await store.open()
    rows: list[Row] = []
    for at in range(RUNS):
        name, seq = f"{owner.session}-{at}", at * 10 + 1
        blob = f"{at:064d}"
        body = f'{{"v":1,"c":{at},"b":["{blob}"]}}'
        rows.append(message_row(f"m-{name}", owner, seq=seq, live=0, state="ran", turn_id=f"t-{name}"))
        rows.append(state_row("turn", f"t-{name}", owner, seq=seq + 1, live=0, state="succeeded"))
        rows.append(event_row(owner, seq=seq + 2, at_ms=at, turn_id=f"t-{name}"))
        rows.append(entry_row(owner, seq=seq + 3, message_id=f"m-{name}"))
        rows.append(state_row("round", f"t-{name}/1", owner, seq=seq + 4, live=0, state="done", body=body))
        rows.append(state_row("blob", f"{owner.tenant}:{blob}", Owner(owner.tenant, ""), seq=seq, live=0, body="x"))
    (result,) = await store.commit([Batch(owner, store.epoch, tuple(rows))])
    assert result.error is None, result.error
    await store.close()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def live(what: str, folder: Path) -> None:
    """Do one thing."""
    store = SqliteStore(folder / "store.db")
    await store.open()
    _say("ready")
    if what == "prune":
        await prune(store, WHO, LIMITS, now_ms=10**9)
    elif what == "delete":
        await erase_all(store, WHO)
    elif what == "import":
        with (folder / "chat.laneway").open("rb") as file:
            check_archive(file)
            file.seek(0)
            await import_session(store, file, WHO)
    else:
        with (folder / "out.laneway").open("wb") as file:
            async for line in export_session(store, WHO, at_ms=1):
                file.write(line)
    await store.close()
    _say("done")


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], Path(sys.argv[2])))
