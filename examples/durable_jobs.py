"""Durable jobs in an SQLite file: a process dies in the middle of its work, and the next one goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from laneway import Lanes


async def fetch(payload: dict[str, str]) -> None:
    print(f"  fetched {payload['page']}", flush=True)


async def pay(payload: dict[str, int]) -> None:
    print(f"  paying {payload['amount']} …", flush=True)
    if "--die" in sys.argv:
        os._exit(9)  # as a kill would end it
    print("  paid", flush=True)


def open_lanes(store: str) -> Lanes:
    lanes = Lanes({"query": 1, "execute": 1}, store=store)
    lanes.handler("fetch", fetch)
    lanes.handler("pay", pay)
    return lanes


async def first(store: str) -> None:
    async with open_lanes(store) as lanes:
        lanes.pause("query")  # so that the pages are still waiting when it dies
        for page in ("roads", "rails", "rivers"):
            await lanes.enqueue("query", "fetch", {"page": page}, effect="read")
        await (await lanes.enqueue("execute", "pay", {"amount": 42}))


async def second(store: str) -> None:
    async with open_lanes(store) as lanes:
        for letter in lanes.dead_letters.list():
            print(f"{letter.handler}{letter.args}: {letter.reason}")
            lanes.dead_letters.purge(letter.id)  # or .retry(letter.id), once you know that it was not paid


if __name__ == "__main__":
    if "--die" in sys.argv:
        asyncio.run(first(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{Path(folder) / 'jobs.db'}"
        died = subprocess.run([sys.executable, __file__, address, "--die"], check=False)  # noqa: S603 - itself
        print(f"the first process ended with {died.returncode}; the second one goes on")
        asyncio.run(second(address))
