"""What is measured of durable work: accepting messages, jobs from end to end, many sessions, memory, a restart.

Every store lies in a folder of its own below `build/`, on the disk of this project, so that all contenders pay for the
same disk. `/tmp` may be memory, where a commit costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.durable_contenders import GROUP, Dbos, HueyQueue, Threaded, raw_commits, raw_jobs
from bench.measures import Measure, Stopwatch, resident_bytes
from bench.workloads import Numbers
from laneway import Lanes
from laneway.inbox import Inbox
from laneway.rows import Batch, BatchResult
from laneway.runtime.turns import Turn
from laneway.stores.sqlite import SqliteStore

ROOT: Final = Path(__file__).resolve().parent.parent
TEXT: Final = "Could you look at this when you have a moment? Thank you."
MESSAGES_PER_SESSION: Final = 10
RUNNERS: Final = 1_000
WARM_UP: Final = 100
WIDE: Final = 1_000_000


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk of this project, for one sample."""
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


async def answer_nothing(_turn: Turn) -> None:
    """The agent that does nothing."""


STRETCH: Final = 20


def percentiles(seconds: Sequence[float], unit: str = "us") -> Numbers:
    """The middle of the quietest stretch, and the slow end of all.

    Where others want the cores, a thread that wakes up waits for its turn: milliseconds, a multiple of what is
    measured. That hits whole stretches of a run, and Laneway and raw SQLite alike; the quietest is nobody's luck.
    """
    scale = {"us": 1e6, "ms": 1e3}[unit]
    stretches = [seconds[start : start + STRETCH] for start in range(0, len(seconds) - STRETCH + 1, STRETCH)] or [
        seconds
    ]
    middle = min(_quantile(stretch, 0.5) for stretch in stretches)
    return {f"p50_{unit}": middle * scale, f"p99_{unit}": _quantile(seconds, 0.99) * scale}


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[int(len(ordered) * share)]


# ---- accepting messages ----


async def accept_raw(commits: int) -> Numbers:
    """One raw SQLite commit: one row of the size of a message, `synchronous = FULL`."""
    with scratch() as folder:
        return percentiles(raw_commits(folder / "raw.db", commits + WARM_UP, len(TEXT) * 4)[WARM_UP:])


async def accept_one(messages: int) -> Numbers:
    """One sender, one session whose agent is idle: each message begins a turn."""
    return await _accept(messages, senders=1, is_busy=False)


async def accept_one_busy(messages: int) -> Numbers:
    """One sender, one session whose agent is at work: each message waits."""
    return await _accept(messages, senders=1, is_busy=True)


async def accept_one_dedupe(messages: int) -> Numbers:
    """The same with platform ids, each held against what the store has seen."""
    return await _accept(messages, senders=1, is_busy=True, has_ids=True)


async def accept_fifty(messages: int) -> Numbers:
    """50 senders, each with a session whose agent is at work."""
    return await _accept(messages, senders=50, is_busy=True)


async def accept_thousand(messages: int) -> Numbers:
    """1,000 senders, each with a session whose agent is at work."""
    return await _accept(messages, senders=1_000, is_busy=True)


async def accept_thousand_idle(messages: int) -> Numbers:
    """1,000 senders, each with a session whose agent answers at once, four at a time."""
    return await _accept(messages, senders=1_000, is_busy=False)


async def _accept(messages: int, *, senders: int, is_busy: bool, has_ids: bool = False) -> Numbers:
    release = asyncio.Event()

    async def work(_turn: Turn) -> None:
        if is_busy:
            await release.wait()

    took: list[float] = []
    with scratch() as folder:
        options: dict[str, Any] = {"mode": "followup", "cap": 100_000, "concurrency": WIDE if is_busy else 4}
        async with Inbox(work, store=f"sqlite:///{folder / 'inbox.db'}", **options, close_timeout_ms=1_000) as inbox:

            async def send(sender: int, first: int, count: int) -> None:
                for number in range(first, first + count):
                    message_id = f"{sender}-{number}" if has_ids else None
                    began = time.perf_counter()
                    await inbox.submit(f"chat-{sender}", TEXT, message_id=message_id)
                    took.append(time.perf_counter() - began)

            warm = max(1, WARM_UP // senders)
            each = max(1, messages // senders)
            await asyncio.gather(*[send(sender, -warm, warm) for sender in range(senders)])
            took.clear()
            watch = Stopwatch()
            await asyncio.gather(*[send(sender, 0, each) for sender in range(senders)])
            seconds = watch.seconds()
            assert len(took) == each * senders
            release.set()
    return percentiles(took) | {"accepted_per_second": len(took) / seconds}


# ---- durable jobs from end to end ----


class CountingStore(SqliteStore):
    """An SQLite store that counts what it is given: how large the groups are that share a commit."""

    commits = 0
    rows = 0

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Count and commit."""
        self.commits += 1
        self.rows += sum(len(batch.rows) + len(batch.forget) for batch in batches)
        return await super().commit(batches)


async def jobs_lanes(jobs: int) -> Numbers:
    """Durable lanes: as many callers as a raw group has rows; each enqueues a job, awaits its end, and goes on."""
    with scratch() as folder:
        store = CountingStore(folder / "jobs.db")
        async with Lanes({"main": GROUP}, store=store) as lanes:
            lanes.handler("noop", _noop)

            async def call(count: int) -> int:
                ran = 0
                for number in range(count):
                    ran += await (await lanes.enqueue("main", "noop", {"number": number}))
                return ran

            await asyncio.gather(*[call(2) for _ in range(GROUP)])
            store.commits = store.rows = 0
            watch = Stopwatch()
            ran = sum(await asyncio.gather(*[call(jobs // GROUP) for _ in range(GROUP)]))
            seconds, wall = watch.seconds(), watch.wall()
        assert ran == jobs // GROUP * GROUP
        rows = store.rows / max(1, store.commits)
    return {"seconds_per_job": seconds / ran, "wall_per_job": wall / ran, "rows_per_commit": rows}


async def _noop(_payload: Any) -> int:
    return 1


async def jobs_raw(jobs: int) -> Numbers:
    """The same three writes in a raw SQLite loop, in groups of 100."""
    with scratch() as folder:
        watch = Stopwatch()
        raw_jobs(folder / "raw.db", jobs)
        seconds, wall = watch.seconds(), watch.wall()
    return {"seconds_per_job": seconds / jobs, "wall_per_job": wall / jobs}


async def jobs_huey(jobs: int) -> Numbers:
    """huey on SQLite with eight threads; results kept."""
    return await _threaded_jobs(HueyQueue, jobs)


async def jobs_dbos(jobs: int) -> Numbers:
    """dbos on SQLite, a queue that it asks every 10 ms (a second is its default)."""
    return await _threaded_jobs(Dbos, jobs)


async def _threaded_jobs(make: Callable[[Path], Threaded], jobs: int) -> Numbers:
    def run() -> float:
        with scratch() as folder, contextlib.closing(make(folder / "queue.db")) as queue:
            queue.run(8)
            return queue.run(jobs)

    wall = await asyncio.to_thread(run)  # off this loop: dbos refuses to block one
    return {"seconds_per_job": wall / jobs, "wall_per_job": wall / jobs}


# ---- pickup: from the call to the first line ----


async def pickup_jobs(jobs: int) -> Numbers:
    """Durable lanes with nothing else to do: from `enqueue` to the first line of the handler."""
    first_line = 0.0

    async def note(_payload: Any) -> None:
        nonlocal first_line
        first_line = time.perf_counter()

    with scratch() as folder:
        async with Lanes({"main": 8}, store=f"sqlite:///{folder / 'jobs.db'}") as lanes:
            lanes.handler("note", note)

            async def call() -> float:
                began = time.perf_counter()
                await (await lanes.enqueue("main", "note"))
                return first_line - began

            return percentiles(await _repeat(call, jobs), "ms")


async def pickup_messages(messages: int) -> Numbers:
    """An inbox with nothing else to do: from `submit` to the first line of the handler."""
    first_line = 0.0

    async def note(_turn: Turn) -> None:
        nonlocal first_line
        first_line = time.perf_counter()

    with scratch() as folder:
        async with Inbox(note, store=f"sqlite:///{folder / 'inbox.db'}") as inbox:

            async def call() -> float:
                began = time.perf_counter()
                receipt = await inbox.submit("chat", TEXT)
                await inbox.wait(receipt.message_id)
                return first_line - began

            return percentiles(await _repeat(call, messages), "ms")


async def pickup_huey(jobs: int) -> Numbers:
    """huey with its default polling."""
    return await _threaded_pickup(HueyQueue, jobs)


async def pickup_dbos(jobs: int) -> Numbers:
    """dbos, asked every 10 ms."""
    return await _threaded_pickup(Dbos, jobs)


async def _threaded_pickup(make: Callable[[Path], Threaded], jobs: int) -> Numbers:
    def run() -> list[float]:
        with scratch() as folder, contextlib.closing(make(folder / "queue.db")) as queue:
            return [queue.pickup() for _ in range(jobs)]

    return percentiles(await asyncio.to_thread(run), "ms")


async def _repeat(call: Callable[[], Awaitable[float]], times: int) -> list[float]:
    return [await call() for _ in range(times + 20)][20:]


# ---- many sessions ----


async def sessions_inbox(sessions: int) -> Numbers:
    """That many sessions, ten messages each, all answered."""
    with scratch() as folder:
        async with Inbox(answer_nothing, store=f"sqlite:///{folder / 'inbox.db'}", concurrency=RUNNERS) as inbox:
            await _talk(inbox, range(-WARM_UP, 0))
            watch = Stopwatch()
            await _talk(inbox, range(sessions))
            seconds, wall = watch.seconds(), watch.wall()
            gc.collect()
            resident = resident_bytes()
    messages = sessions * MESSAGES_PER_SESSION
    return {
        "seconds_per_message": seconds / messages,
        "wall_per_message": wall / messages,
        "idle_resident_mb": resident / 1e6,
    }


async def memory_inbox(sessions: int) -> Numbers:
    """Bytes that Python keeps for each session that was busy and is idle now.

    The first half only fills tables and caches that are there for all; what the second half adds is what counts.
    """
    kept: list[int] = []
    with scratch() as folder:
        async with Inbox(answer_nothing, store=f"sqlite:///{folder / 'inbox.db'}", concurrency=RUNNERS) as inbox:
            tracemalloc.start()
            try:
                for half in (range(sessions // 2), range(sessions // 2, sessions)):
                    await _talk(inbox, half)
                    await asyncio.sleep(0.05)  # let the last ends be settled
                    gc.collect()
                    kept.append(tracemalloc.get_traced_memory()[0])
            finally:
                tracemalloc.stop()
    return {"bytes_per_session": max(0, kept[1] - kept[0]) / (sessions // 2)}


async def _talk(inbox: Inbox, sessions: range) -> None:
    """Every session gets its messages, the next when the last was accepted, and all are waited for."""
    left = iter(sessions)

    async def run() -> None:
        for session in left:
            ids = [
                (await inbox.submit(f"chat-{session}", TEXT, mode="followup")).message_id
                for _ in range(MESSAGES_PER_SESSION)
            ]
            final = await inbox.wait(ids[-1])
            assert final.outcome == "succeeded"

    await asyncio.gather(*[run() for _ in range(RUNNERS)])


# ---- a restart ----


async def restart_inbox(messages: int) -> Numbers:
    """Seconds from opening an inbox over that many waiting messages until the first of them runs."""
    with scratch() as folder:
        path = folder / "inbox.db"
        subprocess.run(  # noqa: ASYNC221, S603 - our own module; nothing else runs meanwhile
            [sys.executable, "-m", "bench.durable", str(path), str(messages)], cwd=ROOT, check=True, timeout=240
        )
        began = asyncio.get_running_loop().create_future()

        async def note(_turn: Turn) -> None:
            if not began.done():
                began.set_result(None)

        watch = Stopwatch()
        async with Inbox(note, store=f"sqlite:///{path}", close_timeout_ms=1_000) as inbox:
            opened = watch.seconds()
            await began
            seconds = watch.seconds()
            loaded = sum(len(inbox.pending(f"chat-{session}")) for session in range(messages // 100))
            assert loaded > messages * 0.9
    return {"restart_seconds": seconds, "open_seconds": opened}


async def fill(path: Path, messages: int) -> None:
    """Leave a store behind in which that many messages wait, a hundred in each session; nobody is there to run them."""
    options: dict[str, Any] = {"mode": "followup", "cap": 1_000, "concurrency": 0}
    async with Inbox(answer_nothing, store=f"sqlite:///{path}", **options) as inbox:

        async def send(session: int) -> None:
            for _ in range(100):
                await inbox.submit(f"chat-{session}", TEXT)

        await asyncio.gather(*[send(session) for session in range(messages // 100)])


MEASURES: Final[dict[str, Measure]] = {
    measure.__name__: measure
    for measure in (
        accept_raw,
        accept_one,
        accept_one_busy,
        accept_one_dedupe,
        accept_fifty,
        accept_thousand,
        accept_thousand_idle,
        jobs_lanes,
        jobs_raw,
        jobs_huey,
        jobs_dbos,
        pickup_jobs,
        pickup_messages,
        pickup_huey,
        pickup_dbos,
        sessions_inbox,
        memory_inbox,
        restart_inbox,
    )
}

if __name__ == "__main__":
    asyncio.run(fill(Path(sys.argv[1]), int(sys.argv[2])))
