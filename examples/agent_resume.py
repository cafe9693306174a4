"""A process is killed in the middle of a run; the next one goes on. What was done is not done again.

The child process is killed by the second of its payments, which has happened by then: nobody wrote that down. The
parent makes the same session again, and the run goes on by itself.
"""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from laneway import AsyncAgent, FileSessionStore, PermissionPolicy, tool
from laneway.models import ScriptedModel, call, say


def agent_in(folder: Path, answer: list[Any]) -> AsyncAgent:
    @tool(effect="write")
    def pay(bill: str) -> str:
        """Pay a bill."""
        with (folder / "payments").open("a") as payments:  # the world outside
            payments.write(f"{bill}\n")
        if bill == "gas":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"paid {bill}"

    policy = PermissionPolicy(allow=["pay"])
    store = FileSessionStore(folder / "sessions")
    return AsyncAgent(ScriptedModel([answer]), tools=[pay], permission_policy=policy, session_store=store)


async def first(folder: Path) -> None:
    bills = [call("pay", bill=bill) for bill in ("rent", "gas", "water")]
    await agent_in(folder, bills).session(session_id="bills").send("Pay my bills")


async def second(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, folder)
    print(f"the first process ended with {await process.wait()}")
    async with agent_in(folder, [say("Rent and water are paid; of gas nobody knows.")]) as agent:
        session = agent.session(session_id="bills")
        await session.wait_idle()
        print(*await session.history(), sep="\n")
        [entry] = await session.ledger("unknown")
        settled = await session.settle(entry.id, "the bank says it was paid", actor="ada")
        print(f"{entry.tool}: {entry.state}, then {settled.state} by {settled.actor}: {settled.reason}")
    print(f"payments: {(folder / 'payments').read_text().split()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(first(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(second(Path(name)))
