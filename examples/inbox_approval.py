"""A turn asks a question, then asks for an approval; only somebody with the right can give that."""

from __future__ import annotations

import asyncio

from laneway import ApprovalState, Inbox, Sender, Turn
from laneway.events import ApprovalAsked, TurnReplied

ADA = Sender(id="ada")
OLGA = Sender(id="olga", rights=("approve",))


async def agent(turn: Turn) -> str:
    """Ask which branch, then whether it may be deployed."""
    branch = await turn.ask("Which branch?", timeout_ms=60_000)
    if branch is None:
        return "Nobody answered, so I did nothing."
    wanted = {"branch": branch.text, "to": "production"}
    approval = await turn.ask_approval("deploy", wanted, timeout_ms=60_000)
    if approval.state is ApprovalState.APPROVED:
        return f"Deployed {branch.text}, approved by {approval.answered_by}."
    return f"Not deployed: {approval.state} by {approval.answered_by}, {approval.reason}."


async def talk(inbox: Inbox, command: str, words: str = "") -> None:
    async with asyncio.timeout(5), inbox.subscribe("turn.replied", "approval.asked") as said:
        request = await inbox.submit("ops", "deploy, please", sender=ADA)
        async for event in said:
            if isinstance(event, TurnReplied):
                print(f"agent: {event.text}\nada: main")
                await inbox.submit("ops", "main", sender=ADA)  # a plain answer goes to the question
            elif isinstance(event, ApprovalAsked):
                print(f"agent: May I {event.action} {event.arguments}?")
                for sender in (ADA, OLGA):
                    receipt = await inbox.submit("ops", f"{command} {event.approval_id} {words}", sender=sender)
                    print(f"{sender.id}: {command}\n  {receipt.reply}")
                break
    print(f"agent: {(await inbox.wait(request.message_id)).answer}\n")


async def main() -> None:
    async with Inbox(agent, commands=True) as inbox:
        await talk(inbox, "/approve")
        await talk(inbox, "/deny", "not on a Friday")


if __name__ == "__main__":
    asyncio.run(main())
