"""A process is killed in the middle of a turn with messages waiting. The next one goes on, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from laneway import Inbox, Turn
from laneway.events import MessageEnded


async def agent(turn: Turn) -> str:
    if turn.prompt == "the long one" and "--first" in sys.argv:
        await asyncio.sleep(3600)  # at work, until somebody pulls the plug
    return f"re: {turn.prompt}"


async def first_life(store: str) -> None:
    async with Inbox(agent, store=store, mode="followup") as inbox:
        for number, text in enumerate(("the long one", "two", "three"), 1):
            # It returns when the message is on disk.
            receipt = await inbox.submit("chat", text, sender="ada", message_id=number)
            print(f"accepted {text!r}: {receipt.message_id}", flush=True)
        signal.raise_signal(signal.SIGKILL)  # no exit handler, no flush, no goodbye


async def second_life(store: str) -> None:
    inbox = Inbox(agent, store=store, mode="followup")
    ends = inbox.subscribe("message.ended")  # before it opens: to hear what the last process has left
    async with inbox:
        again = await inbox.submit("chat", "two", sender="ada", message_id=2)
        print(f"'two' is sent again: {'known already' if again.duplicate else 'taken twice'}")
        for _ in range(3):
            event = await anext(ends)
            assert isinstance(event, MessageEnded)
            final = await inbox.wait(event.message_id)
            print(f"{final.message_id}: {final.disposition}, {final.outcome}, {final.answer}")
            if event.notice:
                print(f"  told to ada: {event.notice}")
                retried = await inbox.retry(event.message_id)
        print(f"retried: {(await inbox.wait(retried.message_id)).answer}")


def main() -> None:
    if "--first" in sys.argv:
        asyncio.run(first_life(sys.argv[2]))
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder, 'inbox.db')}"
        child = subprocess.run([sys.executable, __file__, "--first", store], check=False)  # noqa: S603 - this file
        print(f"the process ended with {child.returncode}; another one opens its store")
        asyncio.run(second_life(store))


if __name__ == "__main__":
    main()
