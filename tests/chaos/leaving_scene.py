"""The process under test of the kills in passivation: a call waits for a person, or sub-agents work.

A scene is JSON. Its life opens the session, sends what the store does not have yet, and has the session leave memory as
soon as it is where the scene wants it: a call waits for approval, or a tool of a sub-agent is at work. On its way out
the process passes points, and kills itself at the one that the scene names. The last life goes on to the end, answers
what is asked, and writes a report.

The model keeps nothing: what it says follows from the conversation alone, and every call gets an id of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from laneway.agent import AsyncAgent
from laneway.agent.book import Book
from laneway.agent.session import AsyncSession
from laneway.dialogue import Answer, ModelRequest, Prompt, ToolContext
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Call, Piece
from laneway.options import PermissionPolicy
from laneway.policies import ConfirmationPolicy
from laneway.stores.sessions import FileSessionStore
from laneway.tools import FunctionTool
from tests.chaos.agent_scene import Killer, kill_in_commits, problems_of
from tests.chaos.calls import told_in
from tests.chaos.witness import Witness

__all__ = ("ASKS", "AT_THE_BOUNDARY", "EFFECTS", "LONG_MS", "POINTS", "LeavingScene", "live", "warm_up")

SESSION: Final = "chat"
EFFECTS: Final = {"spend": "write", "put": "idempotent", "pay": "write"}
ASKS: Final = frozenset({"pay"})
ON_THE_WAY: Final = (
    "asked",
    "told",
    "holding",
    "commit:leaving:before",
    "commit:leaving:middle",
    "commit:leaving:after",
)
AT_THE_BOUNDARY: Final = ("storing", "ending", "releasing", "left", "back")
POINTS: Final = (
    *ON_THE_WAY,
    "commit:leaving:middle#2",
    "commit:leaving:after#2",
    "commit:leaving:after#3",
    *AT_THE_BOUNDARY,
)
"""Where a life can end on its way out; the commits are counted from the start of it. `back`: it is open again."""
LONG_MS: Final = 60_000
PLAY: Final[dict[str, list[list[Call]]]] = {
    "ask": [[call("spend", name="a"), call("pay", name="b"), call("put", name="c")], [call("spend", name="d")]],
    "wait": [[call("task", prompt="work")], [call("spend", name="d")]],
    "go on": [[call("spawn", prompt="work", description="one")], [call("spend", name="d")]],
    "both": [[call("spawn", prompt="work", description="one"), call("task", prompt="ask in turn")]],
    "deep": [[call("task", prompt="wait")]],
    "ask below": [[call("task", prompt="ask in turn"), call("spend", name="e")]],
    "ask behind": [[call("spawn", prompt="ask in turn", description="one")], [call("spend", name="e")]],
    "work": [[call("spend", name="f"), call("put", name="g")], [call("spend", name="h")]],
    "ask in turn": [[call("spend", name="i")], [call("pay", name="j"), call("put", name="k")]],
    "next": [[call("spend", name="l")]],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingScene:
    """What one life plays."""

    folder: str
    life: int = 1
    messages: list[str] = field(default_factory=lambda: ["ask"])
    leaves: str = "asked"  # when it leaves: a call waits for approval, or a tool is at its `work`; empty: it does not
    kill: str = ""
    deadline_ms: int = 0
    answer: str = "approve"  # what people say
    lies: bool = False  # writes are said to be idempotent: a fault that must be found
    when: str = "after"  # it has come back; `before` it leaves; `during` that

    @property
    def book(self) -> Path:
        """Where the witness is."""
        return Path(self.folder) / "witness" if self.life else Path(os.devnull)


class LeavingKiller(Killer):
    """Ends the process at a point; they count from the moment on that the session is told to leave."""

    is_leaving = False

    def hits(self, point: str) -> bool:
        """Count it; whether it is the one."""
        return self.is_leaving and super().hits(point)


class Life:
    """One process from its start to its end."""

    def __init__(self, scene: LeavingScene) -> None:
        self.scene = scene
        self.witness = Witness(scene.book, scene.life, synced=scene.life > 0)
        self.killer = LeavingKiller(scene.kill, self.witness)
        self.at_work = asyncio.Event()
        self.may_end = asyncio.Event()  # what is at work
        self.is_held = asyncio.Event()  # nothing new begins in the session

    # ---- the model and the tools ----

    @staticmethod
    def says(request: ModelRequest) -> list[Piece]:
        """The next calls that the newest prompt wants, or words."""
        said = request.conversation
        newest = max(at for at, each in enumerate(said) if isinstance(each, Prompt))
        prompt = said[newest]
        assert isinstance(prompt, Prompt)
        number = sum(isinstance(each, Answer) for each in said[newest:])
        rounds = PLAY.get(prompt.text, [])
        if number < len(rounds):
            return [each.with_id(f"c-{secrets.token_hex(6)}") for each in rounds[number]]
        return [say(f"done with {prompt.text.splitlines()[0]}")]

    def tool(self, kind: str) -> FunctionTool[Any, Any]:
        """A tool that writes down the id of its call when it begins and when it ends."""

        async def run(name: str, context: ToolContext) -> str:
            self.witness.note("begin", context.call_id, kind, context.key)
            if self.scene.leaves == "work" and "~" in context.session_id:
                self.at_work.set()
                await self.may_end.wait()  # it is on its way when the session is told to leave
            await asyncio.sleep(0)
            self.witness.note("end", context.call_id, kind, context.key)
            return f"{kind} of {name}"

        return FunctionTool(run, name=kind, description=kind, effect="idempotent" if self.scene.lies else EFFECTS[kind])

    # ---- points ----

    def watch_leaving(self) -> None:
        """Have the session report where it is on its way out."""
        steps = {"_at_rest": "holding", "_all_stored": "storing", "_leave": "ending", "_let_go": "releasing"}
        for name, point in steps.items():
            setattr(AsyncSession, name, self._watched(getattr(AsyncSession, name), point))  # nobody else is here

    def _watched(self, method: Callable[..., Any], point: str) -> Callable[..., Any]:
        async def run(session: AsyncSession) -> None:
            if session.parent is None:
                self.killer.reach(point)
                if point == "holding":
                    self.is_held.set()
            await method(session)

        return run

    # ---- the life ----

    async def run(self) -> None:
        """Everything, from the opening to the kill or the report."""
        kill_in_commits(self.killer, lambda _: {"leaving"})
        self.watch_leaving()
        scene = self.scene
        agent = AsyncAgent(
            ScriptedModel([self.says] * 1_000),
            tools=[self.tool(kind) for kind in EFFECTS],
            builtin_tools=False,
            permission_policy=PermissionPolicy(allow=("*",), ask=tuple(ASKS)),
            confirmation_policy=ConfirmationPolicy(default_timeout_ms=LONG_MS),
        )
        async with agent:
            session = agent.session(
                scene.folder, session_id=SESSION, session_store=FileSessionStore(scene.folder), subagents=True
            )
            session.register_hook("told", "passivation_requested", handler=lambda _: self.killer.reach("told"))
            await session.ready()
            for text in scene.messages:
                receipt = await session.followup(text, message_id=f"p-{text}")
                self.witness.note("accepted", receipt.message_id)
            if scene.leaves and await self.is_there(session):
                await self.leave(session)
            await self.go_on(session)
            report = await self.report(session)
        path = Path(scene.folder) / f"report-{scene.life}"
        path.write_text(json.dumps(report), encoding="utf-8")

    async def is_there(self, session: AsyncSession) -> bool:
        """Wait until the session is where it is to leave; False: it has come to its end before."""
        over = asyncio.ensure_future(session.wait_idle())
        is_there = self.at_work.wait() if self.scene.leaves == "work" else self._is_asked(session)
        there = asyncio.ensure_future(is_there)
        done, _ = await asyncio.wait({over, there}, return_when=asyncio.FIRST_COMPLETED)
        for each in (over, there):
            each.cancel()
        return there in done

    async def _is_asked(self, session: AsyncSession) -> None:
        while not await session.pending_confirmations():  # noqa: ASYNC110 - it looks from outside, as a host would
            await asyncio.sleep(0.001)

    async def leave(self, session: AsyncSession) -> None:
        """Leave memory, and come back."""
        scene = self.scene
        asked = await session.pending_confirmations()
        if scene.when == "before":
            await self.answer(session, asked)
        self.killer.is_leaving = True
        self.killer.reach("asked")
        leaving = asyncio.ensure_future(session.passivate("chaos", deadline_ms=scene.deadline_ms))
        await self.is_held.wait()
        if scene.deadline_ms == LONG_MS:  # else it is cut
            self.may_end.set()
        if scene.when == "during":
            await self.answer(session, asked)
        await leaving
        self.killer.reach("left")
        await session.ready()
        self.killer.reach("back")
        self.killer.is_leaving = False

    async def answer(self, session: AsyncSession, asked: Iterable[Any]) -> None:
        """Say yes or no to each of these, without opening the session for it."""
        inbox, answer = session.host.inbox, self.scene.answer
        for each in asked:
            self.witness.note("asked", each.tool_id)
            self.witness.note("answer", each.tool_id, answer)
            taking = inbox.approve(each.approval_id) if answer == "approve" else inbox.deny(each.approval_id, "no")
            if await taking:
                self.witness.note("decided", each.tool_id, answer)

    async def go_on(self, session: AsyncSession) -> None:
        """Answer what is asked until nothing runs and nothing waits any more."""
        self.may_end.set()
        over = asyncio.ensure_future(session.wait_idle())
        while not over.done():
            await self.answer(session, await session.pending_confirmations())
            await asyncio.sleep(0.002)
        await over

    async def report(self, session: AsyncSession) -> dict[str, Any]:
        """What the store says of every session when all is over."""
        inbox = session.host.inbox
        report: dict[str, Any] = {"told": [], "messages": [], "problems": [], "children": 0}
        for name in await inbox.sessions():
            book = Book(inbox.engine, session.owner._replace(session=name))
            await book.load()
            said = book.utterances(0)
            report["told"] += told_in(name, said)
            report["problems"] += [f"{name}: {each}" for each in problems_of([*said, Prompt(text="next")])]
            report["children"] += "~" in name
            for row in await inbox.engine.store.history.messages(session.owner._replace(session=name), limit=1000):
                final = await inbox.status(row.id)
                text = json.loads(row.body)["text"]
                report["messages"].append([name, row.id, text, final.disposition, final.outcome, final.answer])
        return report


def warm_up() -> None:
    """Load everything that a life needs, so that a fork has it."""
    life = Life(LeavingScene(folder="", life=0))
    for kind in EFFECTS:
        life.tool(kind).check('{"name": "x"}')


def live(facts: dict[str, Any]) -> int:
    """Be the process under test; the exit code."""
    scene = LeavingScene(**facts)
    logging.basicConfig(filename=Path(scene.folder) / "log", level=logging.WARNING, force=True)

    async def main() -> None:
        await asyncio.wait_for(Life(scene).run(), 60)

    asyncio.run(main())
    return 0
