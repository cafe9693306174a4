"""A process that prunes, deletes, imports or exports until it is killed: `python -m tests.chaos.keeping_life WHAT DIR`.

It says `ready` when it has opened its store, `part` before every part of its work, and `done` when it has come to
the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from laneway.agent import AsyncAgent
from laneway.kernel.checkpoints import digest_of, note_of
from laneway.models import ScriptedModel, say
from laneway.rows import Batch, BatchResult, Owner, Row
from laneway.runtime.archive import check_archive, export_session, import_session
from laneway.runtime.artifacts import folder_of, sweep_all
from laneway.runtime.erasing import erase_all
from laneway.runtime.retention import HistoryLimits, prune
from laneway.stores.sqlite import SqliteStore
from laneway.testing.stores import entry_row, event_row, message_row, state_row

__all__ = ("LIMITS", "OTHER", "RUNS", "WHO", "agent_on", "artifacts_of", "fill")

WHO = Owner("default", "default", "chat")
OTHER = Owner("default", "default", "other")
RUNS = 400
SAID = {
    "route": '["","","",""]',
    "body": '{"text":"hello","mode":"collect","kind":"user","debounce_ms":1000,"max_wait_ms":10000}',
}
TURN = (
    '{"messages":[],"summarized":[],"injected":[],"mode":"collect","kind":"user","began_ms":1,"ended_ms":2,"reason":"",'
    '"answer":null,"conversation":0,"depth":0,"tokens":0,"cancelled":"","stopped":false,"forget":false}'
)
LIMITS = HistoryLimits(max_runs=10, spared_ms=0)


def text_of(at: int) -> str:
    """The long text of a run, as a blob has it."""
    return f'"text {at}"'


def artifact_of(owner: Owner, at: int) -> bytes:
    """What every fourth run has said that was too long to show: half of them say the same in every session."""
    return f"{'both' if at % 8 else owner.session} {at}".encode()


def artifacts_of(owner: Owner, runs: Iterable[int]) -> list[str]:
    """The names of the artifacts of some runs."""
    return sorted(sha256(artifact_of(owner, at)).hexdigest() for at in runs if at % 4 == 0)


def keep_artifact(folder: Path, content: bytes) -> str:
    """Put one beside the store."""
    name = sha256(content).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return name


async def fill(path: Path, owner: Owner) -> None:
    """A session with many runs, each with a blob of its own, some with an artifact."""
    store = SqliteStore(path)
    await store.open()
    folder = Path(folder_of(store, owner.tenant))
    rows: list[Row] = []
    for at in range(RUNS):
        name, seq = f"{owner.session}-{at}", at * 10 + 1
        text, blob = text_of(at), digest_of(text_of(at))
        named = [blob]
        if at % 4 == 0:
            note = note_of(keep_artifact(folder, artifact_of(owner, at)))
            named.append(digest_of(note))
            noted = f"{owner.tenant}:{named[-1]}"
            rows.append(state_row("blob", noted, Owner(owner.tenant, ""), seq=seq, live=0, body=note))
        body = json.dumps({"v": 1, "c": at, "b": named}, separators=(",", ":"))
        rows.append(message_row(f"m-{name}", owner, seq=seq, live=0, state="ran", turn_id=f"t-{name}", **SAID))
        rows.append(state_row("turn", f"t-{name}", owner, seq=seq + 1, live=0, state="succeeded", body=TURN))
        rows.append(event_row(owner, seq=seq + 2, at_ms=at, turn_id=f"t-{name}"))
        rows.append(entry_row(owner, seq=seq + 3, message_id=f"m-{name}"))
        rows.append(state_row("round", f"t-{name}/1", owner, seq=seq + 4, live=0, state="done", body=body))
        rows.append(state_row("blob", f"{owner.tenant}:{blob}", Owner(owner.tenant, ""), seq=seq, live=0, body=text))
    (result,) = await store.commit([Batch(owner, store.epoch, tuple(rows))])
    assert result.error is None, result.error
    await store.close()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class SlowStore(SqliteStore):
    """A store whose calls are told before they are made: there is always a moment to kill it in the middle."""

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Tell, and write."""
        _say("part")
        return await super().commit(batches)

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Tell, and take away."""
        _say("part")
        return await super().erase(owner, until_seq=until_seq, limit=limit)


def agent_on(store: SqliteStore) -> AsyncAgent:
    """An agent that says the same whatever it is told."""
    return AsyncAgent(model=ScriptedModel([[say("so it is")]] * 20), builtin_tools=False, session_store=store)


async def fork(folder: Path) -> None:
    """Go on from the run of a session in a new one."""
    async with agent_on(SlowStore(folder / "store.db")) as agent:
        session = agent.session(".", session_id="chat")
        await session.ready()
        (run,) = await session.runs()
        _say("ready")
        await session.fork(run.run_id, prompt="and now?", session_id="fork")
        _say("done")


async def live(what: str, folder: Path) -> None:
    """Do one thing."""
    if what == "fork":
        await fork(folder)
        return
    store = SlowStore(folder / "store.db")
    await store.open()
    _say("ready")
    if what == "prune":
        await prune(store, WHO, LIMITS, now_ms=10**9)
        _say("part")
        await sweep_all(store)
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
                if file.tell() // 10_000 != (file.tell() - len(line)) // 10_000:
                    _say("part")
    await store.close()
    _say("done")


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], Path(sys.argv[2])))
