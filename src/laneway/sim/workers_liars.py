"""Workers that lie: they speak frames by hand, and say whatever they like.

They steal no live token of others of their own tenant: a token is the proof that a task is theirs, so whoever has it
may speak. Everything else they try: tokens of old leases, tasks of other tenants, results before a start, two results,
signs of life after the end, tasks that they take and never begin, frames that are none.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

from laneway.errors import TransportUnavailableError
from laneway.sim.mail_world import MailDice
from laneway.sim.workers_laws import Laws
from laneway.sim.workers_network import Link
from laneway.sim.workers_world import COMMANDS, LABELS, WorkersWorld

__all__ = ("Liar",)

LEASE_WISHES = (None, 1, 500, 5_000, 30_000)
BABBLE: tuple[str, ...] = (
    "",
    "{",
    "null",
    '{"v": 1}',
    '{"v": 2, "id": 1, "op": "claim"}',
    '{"v": 1, "id": 1, "op": "claim", "worker": ""}',
    '{"v": 1, "id": 1, "op": "claim", "worker": "w", "limit": 0}',
    '{"v": 1, "id": 1, "op": "claim", "worker": "w", "limit": true}',
    '{"v": 1, "id": 1, "op": "claim", "worker": "w", "labels": "gpu"}',
    '{"v": 1, "id": 1, "op": "claim", "worker": "w", "lease_ms": -5}',
    '{"v": 1, "id": 1, "op": "claim", "worker": "w", "about": {"concurrency": "many"}}',
    '{"v": 1, "id": 1, "op": "claim", "worker": "w", "workspaces": ["nowhere"]}',
    '{"v": 1, "id": 1, "op": "explode", "task_id": "t-1", "token": "x"}',
    '{"v": 1, "id": 1, "op": "complete", "task_id": 7, "token": []}',
    '{"v": 1, "id": 1, "op": "heartbeat", "task_id": "t-1", "token": "", "progress": {"percent": 1e9}}',
)


class Teller(Protocol):
    """Who writes down what happens."""

    def say(self, what: str, subject: str = "", detail: str = "") -> None:
        """One line of the trace."""


class Liar:
    """One of them."""

    def __init__(self, name: str, tenant: str | None, link: Link, world: WorkersWorld, laws: Laws) -> None:
        self.name = name
        self._tenant = tenant
        self._link = link
        self._world = world
        self._laws = laws
        self._number = 0
        self._mine: list[tuple[str, str]] = []  # every task that it ever had, with its token
        self._over: set[str] = set()  # tokens of leases that it knows are over

    async def live(self, dice: MailDice, teller: Teller) -> None:
        """Lie until somebody ends it."""
        while True:
            lie = dice.one(self._world.lies)
            teller.say("lie", self.name, lie)
            await self._lie(lie, dice)
            await asyncio.sleep(dice.span(self._world.gap_ms) + 0.001)

    async def _lie(self, lie: str, dice: MailDice) -> None:
        match lie:
            case "babble":
                await self._send(dice.one(BABBLE))
            case "forged":
                await self._about(dice, f"t-{dice.rng.randint(1, 999)}", dice.one(("", "lease-1.1", "forged")))
            case "stale" if self._over:
                task_id, token = dice.one([pair for pair in self._mine if pair[1] in self._over])
                await self._about(dice, task_id, token)
            case "foreign_task" if self._mine and self._laws.known:
                await self._about(dice, dice.one(self._laws.known)[0], dice.one(self._mine)[1])
            case "stolen" if self._tenant is not None:
                await self._steal(dice)
            case _:
                await self._take(lie, dice)

    async def _steal(self, dice: MailDice) -> None:
        """Speak of another tenant's task, with its true token."""
        errands = self._laws.errands
        theirs = [pair for pair in self._laws.known if errands[pair[0]].owner.tenant != self._tenant]
        if theirs:
            await self._about(dice, *dice.one(theirs[-5:]))

    async def _about(self, dice: MailDice, task_id: str, token: str) -> None:
        op = dice.one(("start", "heartbeat", "complete", "release"))
        await self._ask(op, task_id=task_id, token=token, **_more(op, "stolen goods"))

    async def _take(self, lie: str, dice: MailDice) -> None:
        wish = dice.one(LEASE_WISHES)
        more: dict[str, Any] = {} if wish is None else {"lease_ms": wish}
        limit = dice.one((1, 5, 1_000)) if lie in ("hoard", "crowd") else 1
        if lie == "crowd":  # always another one
            more["about"] = {"instance": f"{self.name}-{self._number}"}
        answer = await self._ask(
            "claim", worker=self.name, limit=limit, wait_ms=dice.one((0, 200)), commands=list(COMMANDS),
            labels=list(LABELS), **more,
        )  # fmt: skip
        for lease in answer.get("leases", ()):
            task_id, token = lease["task"]["task_id"], lease["token"]
            self._mine.append((task_id, token))
            await self._abuse(lie, task_id, token, dice)

    async def _abuse(self, lie: str, task_id: str, token: str, dice: MailDice) -> None:
        """Do something with a task that it has."""
        task = {"task_id": task_id, "token": token}
        if lie in ("hoard", "crowd"):
            return
        if lie == "early":  # a result without a start
            await self._complete(task_id, token, "early")
            return
        if not (await self._ask("start", **task)).get("ok"):
            return
        self._laws.begin(self._link.name, task_id)
        if lie == "vanish":
            return
        if lie == "start_twice":
            await self._ask("start", **task)
        await asyncio.sleep(dice.span(self._world.work_ms))
        if lie == "give_up":
            await self._ask("release", **task, begun=True, reason="bored")
        elif lie == "beat_on":
            await self._ask("heartbeat", **task, progress={"text": "x" * 600, "percent": 99.5})
            await asyncio.sleep(dice.span(2_000))  # perhaps its lease is over by now
        await self._complete(task_id, token, "done")
        if lie in ("twice", "two_results"):
            await self._complete(task_id, token, "done" if lie == "twice" else "something else")
        elif lie == "release_ended":
            await self._ask("release", **task, begun=True)
            await self._ask("start", **task)
            await self._ask("heartbeat", **task)

    async def _complete(self, task_id: str, token: str, said: str) -> None:
        self._over.add(token)
        await self._ask("complete", task_id=task_id, token=token, **_more("complete", f"{said} by {self.name}"))

    async def _ask(self, op: str, **facts: Any) -> dict[str, Any]:
        self._number += 1
        return await self._send(json.dumps({"v": 1, "id": self._number, "op": op, **facts}))

    async def _send(self, frame: str) -> dict[str, Any]:
        try:
            answer = json.loads(await self._link.exchange(frame))
        except (OSError, TransportUnavailableError, ValueError):
            return {}
        is_mine = isinstance(answer, dict) and answer.get("ok") is True and answer.get("id") == self._number
        return answer if is_mine else {}


def _more(op: str, said: str) -> dict[str, Any]:
    return {"result": {"success": True, "result": said, "error": None}} if op == "complete" else {}
