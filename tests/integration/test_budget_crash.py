"""Real processes that are killed while calls are settled: what was spent is counted, and the limit holds."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LIMIT = 200_000
LIVES = 6
LIFE = """
import asyncio, os, sys
from laneway import Inbox
from laneway.kernel.budgets import Grant, Wish
from laneway.runtime.budget_desk import BudgetDesk
from laneway.spending import Amount, Budget, BudgetScope, Spender

folder, limit, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rules = [Budget(name="all", scope=BudgetScope.TENANT, tokens=limit),
         Budget(name="each", scope=BudgetScope.SESSION, tokens=limit)]
provider = os.open(folder + "/provider.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def answer(turn):
    return None

async def spend(desk, at):
    who = Spender("default", "default", f"s{at}", f"r{at}")
    for _ in range(calls):
        found = await desk.reserve(who, Wish(100, 100))
        if not isinstance(found, Grant):
            return
        os.write(provider, b"150\\n")  # the provider has its own books
        await asyncio.sleep(0)
        desk.settle(found, Amount(150))

async def main():
    inbox = Inbox(answer, store=f"sqlite:///{folder}/budgets.db")
    desk = BudgetDesk(inbox.engine, rules)
    inbox.engine.on_loaded, inbox.engine.before_letting_go = desk.load, desk.close
    async with inbox:
        print("open", flush=True)
        await asyncio.gather(*(spend(desk, at) for at in range(8)))
        counts = desk.budgets.counts
        print(sum(count.spent.tokens for key, count in counts.items() if key.budget == "all"),
              sum(count.lost.tokens for key, count in counts.items() if key.budget == "all"), flush=True)

asyncio.run(main())
"""


def begin(folder: Path, calls: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LIFE, str(folder), str(LIMIT), str(calls)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def rest_of(process: subprocess.Popen[str]) -> str:
    """What a process still says until it has ended."""
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    process.wait(timeout=60)
    return said


@pytest.mark.timeout(300)
def test_what_was_spent_counts_after_every_kill(tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(LIVES):
        process = begin(tmp_path, 1_000_000)
        time.sleep(rng.uniform(0, 0.15))  # at any moment
        process.kill()
        rest_of(process)
    book = tmp_path / "provider.txt"
    charged = sum(map(int, book.read_text(encoding="ascii").split())) if book.exists() else 0
    spent, lost = map(int, rest_of(begin(tmp_path, 0)).split())
    assert charged <= spent <= LIMIT
    assert 0 <= lost <= spent - charged + LIVES * LIMIT // 50
    assert spent - charged <= LIVES * (8 * 200 + LIMIT // 50)  # no more is lost than was set aside


@pytest.mark.timeout(300)
def test_without_a_kill_not_a_token_is_lost(tmp_path: Path) -> None:
    rest_of(begin(tmp_path, 20))
    assert rest_of(begin(tmp_path, 0)).split() == [str(8 * 20 * 150), "0"]
