"""Real processes that are killed again and again while they work on durable jobs in an SQLite file.

Each process appends to a tally what it did: a line when a job was acknowledged, when its code began and when it ended.
The tally is written before the thing it says is relied on, so that a kill between the two only ever shows too much.
"""

from __future__ import annotations

import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = 12
JOBS_A_LIFE = 400

WORKER = """
import asyncio, itertools, os, sys
from laneway import LaneConfig, Lanes

store, tally, life = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), sys.argv[3]

def say(what, name):
    os.write(tally, f"{life} {what} {name}\\n".encode())

async def main():
    lanes = Lanes({"a": LaneConfig(concurrency=20), "b": LaneConfig(concurrency=3)}, store=store)

    @lanes.handler("work")
    async def work(name):
        say("began", name)
        await asyncio.sleep(0.003)
        say("ended", name)

    @lanes.handler("block")
    def block(name):
        say("began", name)
        say("ended", name)

    async with lanes:
        for letter in lanes.dead_letters.list():
            say("letter", letter.args[0])
        print("ready", flush=True)
        if life == "last":
            return

        async def produce(number):
            for index in itertools.count(number, 8):
                if index >= int(sys.argv[4]):
                    return
                effect = ("write", "read", "idempotent")[index % 3]
                name = f"{effect}-{life}-{index}"
                handler = "block" if index % 7 == 0 else "work"
                await lanes.enqueue("ab"[index % 2], handler, name, effect=effect)
                say("taken", name)

        await asyncio.gather(*(produce(number) for number in range(8)))

asyncio.run(main())
"""


def run_life(script: Path, store: Path, tally: Path, life: str, *, kill_after_s: float | None) -> None:
    """One process, killed some time after it was ready, or left to end."""
    process = subprocess.Popen(
        [sys.executable, script, f"sqlite:///{store}", tally, life, str(JOBS_A_LIFE)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready
        assert process.stdout.readline() == b"ready\n"
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=60) == (0 if kill_after_s is None else -signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_dozen_kills_lose_no_job_and_run_no_write_twice(tmp_path: Path) -> None:
    script, store, tally = tmp_path / "worker.py", tmp_path / "jobs.db", tmp_path / "tally.txt"
    script.write_text(WORKER, encoding="utf-8")
    tally.touch()
    chance = random.Random(42)
    for life in range(KILLS):
        run_life(script, store, tally, str(life), kill_after_s=chance.uniform(0.01, 0.35))
    run_life(script, store, tally, "last", kill_after_s=None)

    lines = [line.split() for line in tally.read_text(encoding="utf-8").splitlines()]
    said = {what: Counter(name for _, about, name in lines if about == what) for what in ("taken", "began", "ended")}
    letters = {name for life, about, name in lines if about == "letter" and life == "last"}
    with sqlite3.connect(store) as database:
        left = database.execute("select state, count(*) from states where live = 1 group by state").fetchall()
    assert len(said["taken"]) > KILLS * 10, "the processes hardly got to work"
    assert dict(left).keys() <= {"dead"}, left
    for name in said["taken"]:
        assert said["ended"][name] or name in letters, f"{name} was lost"
    for name, times in said["began"].items():
        if name.startswith("write"):
            assert times == 1, f"{name} ran {times} times"
    assert letters, "no kill hit a write"
    assert all(name.startswith("write") for name in letters)
    twice = [name for name, times in said["began"].items() if times > 1]
    assert twice, "no kill hit a read"
