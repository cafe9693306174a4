"""Many chats, few slots: one turn of a chat at a time, and a busy chat never holds up the others."""

from __future__ import annotations

import asyncio
from collections import Counter

from laneway import Group, Lanes

running: Counter[str] = Counter()


async def turn(chat: str, text: str) -> str:
    """One turn of an agent: reads and writes the history of its chat."""
    running[chat] += 1
    assert running[chat] == 1, "two turns of one chat at once"
    await asyncio.sleep(0.02)
    running[chat] -= 1
    return f"{chat} said {text}"


async def main() -> None:
    async with Lanes({"main": 4}) as lanes:
        # First the lane of the chat (one at a time, it appears by itself), then a slot of `main`.
        flood = [lanes.submit(["session:ada", "main"], turn, "ada", f"line {number}") for number in range(20)]
        others = [lanes.submit([f"session:{chat}", "main"], turn, chat, "hello") for chat in ("bob", "cid", "dee")]
        print(await asyncio.gather(*others))
        print(f"while ada still waits for {sum(not job.done() for job in flood)} of {len(flood)} turns:")
        print(f"  {flood[-1].explain()}")
        await asyncio.gather(*flood)

    # Every workspace has lanes of its own; together they respect what the machine can do.
    machine = Group(cap=3, lanes=["*/execute"])
    async with Lanes({"execute": 2}, groups={"machine": machine}) as lanes:
        workspaces = [lanes.scope(name) for name in ("red", "green", "blue")]
        builds = [scope.submit("execute", turn, f"{number}", "build") for number, scope in enumerate(workspaces * 2)]
        for name, stats in lanes.stats().lanes.items():
            if stats.submitted:
                print(f"{name:14} {stats.running} running, {stats.waiting} waiting")
        await asyncio.gather(*builds)


if __name__ == "__main__":
    asyncio.run(main())
