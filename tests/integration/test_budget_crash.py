"""Real processes that are killed while calls are granted and settled: what was spent counts, and the limit holds."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.spending import DOLLAR

pytestmark = pytest.mark.slow

LIMIT = 200_000
MONEY = 0.4
LIVES = 6
FUSES = 12
SPENDERS = 8
LIFE = """
import asyncio, os, signal, sys
from laneway import Inbox
from laneway.kernel.budgets import Grant, Wish
from laneway.runtime.budget_desk import BudgetDesk
from laneway.spending import Budget, BudgetScope, Price, Spender
from laneway.stores.sqlite import SqliteStore

folder, money = sys.argv[1], float(sys.argv[3])
limit, calls, fuse = int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
PRICE = Price(input_picos=1_000_000, output_picos=3_000_000)
rules = [Budget(name="all", scope=BudgetScope.TENANT, tokens=limit),
         Budget(name="cash", scope=BudgetScope.TENANT, money=money),
         Budget(name="each", scope=BudgetScope.SESSION, tokens=limit)]
provider = os.open(folder + "/provider.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def reach(point):
    global fuse
    fuse -= 1
    if fuse == 0:
        os.write(1, (point + "\\n").encode())
        os.kill(os.getpid(), signal.SIGKILL)

class Store(SqliteStore):
    async def commit(self, batches):
        reach("before a commit")
        found = await super().commit(batches)
        reach("after a commit")
        return found

async def answer(turn):
    return None

async def spend(desk, at):
    who = Spender("default", "default", f"s{at}", f"r{at}")
    for number in range(calls):
        found = await desk.reserve(who, Wish(100, 100, 1, PRICE))
        if not isinstance(found, Grant):
            return
        reach("before a call")
        is_large = number % 5 == at % 5  # some inputs are larger than they were estimated
        used = PRICE.of(130, found.output_max) if is_large else PRICE.of(70, min(80, found.output_max))
        excess = max(0, used.tokens - found.amount.tokens), max(0, used.nanos - found.amount.nanos)
        os.write(provider, f"{used.tokens} {used.nanos} {excess[0]} {excess[1]}\\n".encode())  # it has its own books
        reach("between a call and its settlement")
        await asyncio.sleep(0)
        desk.settle(found, used)
        reach("after a settlement")

def counted(desk, name, what):
    found = [count for key, count in desk.budgets.counts.items() if key.budget == name]
    return sum(getattr(count.spent, what) for count in found), sum(getattr(count.lost, what) for count in found)

async def main():
    inbox = Inbox(answer, store=Store(folder + "/budgets.db"))
    desk = BudgetDesk(inbox.engine, rules)
    inbox.engine.on_loaded, inbox.engine.before_letting_go = desk.load, desk.close
    fuse_, globals()["fuse"] = fuse, 0
    async with inbox:
        globals()["fuse"] = fuse_
        print("open", *counted(desk, "all", "tokens"), *counted(desk, "cash", "nanos"), flush=True)
        sys.stdin.readline()  # until whoever looks has read the books
        await asyncio.gather(*(spend(desk, at) for at in range(8)))
        print("end", *counted(desk, "all", "tokens"), *counted(desk, "cash", "nanos"), flush=True)

asyncio.run(main())
"""


class Life:
    """One process, and what counted when it had opened its store."""

    def __init__(self, folder: Path, calls: int, *, fuse: int = 0, limit: int = LIMIT, money: float = MONEY) -> None:
        command = [sys.executable, "-c", LIFE, str(folder), str(limit), str(money), str(calls), str(fuse)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        word, *numbers = self._process.stdout.readline().split()
        assert word == "open"
        self.tokens, self.lost_tokens, self.nanos, self.lost_nanos = map(int, numbers)

    def begin(self) -> None:
        """It spends from now on."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed before
            self._process.stdin.close()

    def kill(self) -> None:
        """Without a word."""
        self._process.kill()
        self.rest()

    def rest(self) -> str:
        """What it still says until it has ended."""
        self.begin()
        assert self._process.stdout is not None
        with self._process.stdout:
            said = self._process.stdout.read()
        self._process.wait(timeout=60)
        return said

    @property
    def was_killed(self) -> bool:
        """How it ended."""
        return self._process.returncode == -signal.SIGKILL


def looked(folder: Path) -> Life:
    """A process that only opens the store."""
    life = Life(folder, 0)
    life.rest()
    return life


def books(folder: Path) -> Iterator[tuple[int, ...]]:
    """What the provider has charged for, call by call: tokens, nanos, and how much of each no grant had."""
    path = folder / "provider.txt"
    for line in path.read_text(encoding="ascii").splitlines() if path.exists() else []:
        yield tuple(map(int, line.split()))


def check(folder: Path, life: Life, kills: int) -> None:
    """No less counts than was spent, and no limit was passed by more than estimates were wrong.

    What a call took beyond its grant, and nobody was told before a kill, cannot be known: of the calls in flight.
    """
    found: list[Any] = list(books(folder))
    tokens, nanos, more_tokens, more_nanos = (sum(column) for column in zip(*found, strict=True)) if found else (0,) * 4
    unheard = [max((line[at] for line in found), default=0) * SPENDERS * kills for at in (2, 3)]
    assert life.tokens >= tokens - unheard[0]
    assert life.nanos >= nanos - unheard[1]
    assert tokens <= LIMIT + more_tokens
    assert nanos <= MONEY * DOLLAR + more_nanos
    assert life.tokens <= LIMIT + more_tokens
    assert life.nanos <= MONEY * DOLLAR + more_nanos
    assert life.lost_tokens <= kills * (LIMIT // 50 + SPENDERS * 200)
    assert life.tokens - tokens <= kills * (LIMIT // 50 + SPENDERS * 200)  # no more is lost than was set aside


@pytest.mark.timeout(300)
def test_what_was_spent_counts_after_kills_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(7)
    for kills in range(LIVES):
        life = Life(tmp_path, 1_000_000)
        check(tmp_path, life, kills)
        life.begin()
        time.sleep(rng.uniform(0, 0.15))  # at any moment
        life.kill()
    check(tmp_path, looked(tmp_path), LIVES)
    assert list(books(tmp_path))


@pytest.mark.timeout(300)
def test_what_was_spent_counts_after_kills_at_every_kind_of_point(tmp_path: Path) -> None:
    """Between a call and its settlement, around the commits of grants, and between settlements."""
    rng = random.Random(11)
    points: set[str] = set()
    for kills in range(FUSES):
        life = Life(tmp_path, 1_000_000, fuse=rng.randrange(1, 90))
        check(tmp_path, life, kills)
        points.add(life.rest().strip())
        assert life.was_killed
    check(tmp_path, looked(tmp_path), FUSES)
    assert len(points) >= 4, points


@pytest.mark.timeout(300)
def test_without_a_kill_not_a_token_is_lost(tmp_path: Path) -> None:
    Life(tmp_path, 20).rest()
    life = looked(tmp_path)
    tokens, nanos, _, _ = (sum(column) for column in zip(*books(tmp_path), strict=True))
    assert (life.tokens, life.lost_tokens, life.nanos, life.lost_nanos) == (tokens, 0, nanos, 0)
