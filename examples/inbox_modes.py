"""Three messages arrive while the agent is busy: what each mode makes of them."""

from __future__ import annotations

import asyncio

from laneway import Inbox, Turn


async def agent(turn: Turn) -> str:
    """Work in four steps, and look at each of them whether somebody has said something new."""
    heard = [message.text for message in turn.messages]
    for _ in range(4):
        await asyncio.sleep(0.05)
        heard += [message.text for message in await turn.boundary()]
    return f"I heard: {', '.join(heard)}"


async def play(mode: str) -> None:
    texts = ["plan a trip", "by train", "in May", "no, in June"]
    async with Inbox(agent, mode=mode, debounce_ms=50) as inbox:
        first = await inbox.submit("chat", texts[0], sender="ada")
        await asyncio.sleep(0.02)  # its turn has begun
        receipts = [first, *[await inbox.submit("chat", text, sender="ada") for text in texts[1:]]]

        print(f"{mode}:")
        for receipt, text in zip(receipts, texts, strict=True):
            final = await inbox.wait(receipt.message_id)
            print(f"  {text:12} {final.disposition:10} {final.outcome or '–'}")
        for entry in await inbox.history("chat"):
            if entry.role == "assistant":
                print(f"  > {entry.text}")


async def main() -> None:
    for mode in ("collect", "followup", "steer", "interrupt", "reject"):
        await play(mode)


if __name__ == "__main__":
    asyncio.run(main())
