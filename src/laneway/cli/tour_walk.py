"""The chapters of the tour: what happens to messages while an agent is busy, and when its server dies.

Each chapter makes real requests to a real server, shows them and what is told on the stream of events, and checks what
it claims. What it finds is one sentence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
from rich.console import Console
from rich.text import Text

from laneway.cli.tables import clean
from laneway.cli.tour_server import Follower, Happened, TourServer
from laneway.errors import InternalError

__all__ = ("CHAPTERS", "Chapter", "Proof", "Walk")

READ_MS: Final = 1_400
SHOWN_MAX: Final = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was accepted and what has ended, counted on the stream of events, and the lines that tools wrote."""

    accepted: int
    ended: int
    twice: int
    crashes: int
    steps: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Every message has one end, and every line was written once, although the server was killed."""
        return self.accepted == self.ended > 0 and self.twice == 0 and self.steps == ("first", "second")

    def __str__(self) -> str:
        return (
            f"{self.accepted} messages accepted = {self.ended} ended, {self.twice} ended twice, over {self.crashes} "
            f"crash; lines written by tools: {', '.join(self.steps) or 'none'}"
        )


@dataclass(slots=True)
class Walk:
    """The server, whoever follows it, and the screen. `pace` 1 is for people, 0 for tests."""

    server: TourServer
    console: Console
    pace: float
    follower: Follower = field(init=False)
    crashes: int = 0
    _began_ms: int = 0

    def __post_init__(self) -> None:
        self.follower = Follower(self.server, self._show)

    @property
    def steps_file(self) -> Path:
        """Where the tools of the last chapter write."""
        return self.server.folder / "steps.txt"

    def seconds(self, count: float) -> float:
        """How long a tool waits, at this pace."""
        return round(max(0.4, count * self.pace), 2)

    async def breathe(self, share: float = 1) -> None:
        """Time to read."""
        await asyncio.sleep(READ_MS * share * self.pace / 1000)

    def say(self, text: str, style: str = "") -> None:
        """A line."""
        self.console.print(Text(text, style), soft_wrap=True)

    async def send(self, key: str, text: str, mode: str = "", *, pause: float = 0.5) -> str:
        """Send a message and show the request and its answer; the id of the message."""
        path = f"/v1/sessions/{key}/messages"
        body = {"text": text, **({"mode": mode} if mode else {})}
        self.say(f"  → POST {path} {json.dumps(body)}", "cyan")
        async with httpx2.AsyncClient(base_url=self.server.url, trust_env=False) as client:
            answer = await client.post(path, json=body)
        if answer.status_code != 202:
            raise InternalError(f"the server of the tour refused a message: {answer.text}")
        receipt: dict[str, Any] = answer.json()
        self.say(f"  ← 202 {receipt['disposition']}: {_without_ids(receipt['reason'])}", "dim cyan")
        await self.breathe(pause)
        return str(receipt["message_id"])

    async def heard(self, event: str, *, since: int = 0, **facts: Any) -> Happened:
        """Wait for an event with these facts."""
        return await self.follower.until(
            lambda each: each.type == event and all(_fact(each, name) == value for name, value in facts.items()),
            since=since,
        )

    async def ended(self, message_id: str) -> Happened:
        """Wait for the end of a message."""
        return await self.heard("message.ended", message_id=message_id)

    def answer_of(self, turn_id: str) -> str:
        """What a run has answered."""
        ends = [each for each in self.follower.happened if each.type == "turn.ended"]
        return next((str(each.facts.get("answer") or "") for each in ends if each.facts["turn_id"] == turn_id), "")

    def check(self, claim: bool, what: str) -> None:
        """A chapter shows what is true, or ends the tour."""
        if not claim:
            raise InternalError(f"the tour has found something else than it claims: {what}")

    def proof(self) -> Proof:
        """Everything that was heard, counted."""
        heard = self.follower.happened
        accepted = [each.facts["message_id"] for each in heard if each.type == "message.accepted"]
        ended = [each.facts["message_id"] for each in heard if each.type == "message.ended"]
        steps = self.steps_file.read_text().splitlines() if self.steps_file.exists() else []
        return Proof(
            accepted=len(set(accepted)),
            ended=len(set(ended)),
            twice=len(ended) - len(set(ended)),
            crashes=self.crashes,
            steps=tuple(steps),
        )

    def _show(self, each: Happened) -> None:
        line = _told(each)
        if line:
            self.say(f"    · {clean(line)}", "dim")


def _fact(each: Happened, name: str) -> Any:
    payload = each.facts.get("payload")
    return payload.get(name) if isinstance(payload, dict) and name in payload else each.facts.get(name)


def _told(each: Happened) -> str:
    """What is shown of an event; nothing of most of them."""
    facts = each.facts
    match each.type:
        case "turn.started":
            count = len(facts.get("messages") or ())
            return f"a run begins over {count} message{'' if count == 1 else 's'}"
        case "turn.recovered" | "turn.resumed":
            return "the run goes on where its checkpoint is"
        case "tool_start":
            arguments = json.dumps(facts["payload"].get("args"))
            return f"the model calls {facts['payload']['tool_name']} {arguments}"
        case "message.injected":
            return "the message goes into the running run, before its next call of the model"
        case "turn.cancelling":
            return "the run is being ended"
        case "turn.ended":
            answer = " ".join(str(facts.get("answer") or "").split())
            cut = answer if len(answer) <= SHOWN_MAX else answer[: SHOWN_MAX - 1] + "…"
            return f"the run has ended, {facts.get('state')}{f': {cut}' if cut else ''}"
        case _:
            return ""


def _without_ids(text: str) -> str:
    text = text.partition(", which is being ended")[0]
    return " ".join("the run" if word.startswith("turn-") else word for word in text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A title, what it is about, and how it is played; the play returns what was found."""

    title: str
    text: str
    play: Callable[[Walk], Awaitable[str]]


async def _start(walk: Walk) -> str:
    walk.say(f"  $ {' '.join(walk.server.command)}", "cyan")
    url = await walk.server.start()
    walk.say(f"  Laneway is listening on {url}", "dim cyan")
    return f"a server in a process of its own (pid {walk.server.pid}), its store one file in {walk.server.folder}"


async def _collect(walk: Walk) -> str:
    await walk.send("collect", f"wait {walk.seconds(4)}")
    await walk.heard("tool_start", tool_name="wait")
    sent = [await walk.send("collect", text, pause=0.2) for text in ("Book a table", "for four", "no, for five")]
    ends = [await walk.ended(each) for each in sent]
    turns = {each.facts["turn_id"] for each in ends}
    walk.check(len(turns) == 1, "messages that were collected have one turn")
    answer = walk.answer_of(turns.pop())
    walk.check(all(text in answer for text in ("Book a table", "for four", "no, for five")), "the run has heard all")
    return "three messages came while the agent was busy; one run answered all three, each message has its own end"


async def _steer(walk: Walk) -> str:
    first = await walk.send("steer", f"wait {walk.seconds(3)}\nthen\nwait 30")
    await walk.heard("message.started", message_id=first)
    since = len(walk.follower.happened)
    second = await walk.send("steer", "In Celsius, please", mode="steer")
    injected = await walk.heard("message.injected", since=since, message_id=second)
    end = await walk.ended(second)
    walk.check(end.facts["state"] == "steered", "the message went into the run")
    walk.check(end.facts["turn_id"] == injected.facts["turn_id"], "into the one that was at work")
    await walk.ended(first)
    return "the message did not wait for the end: the run heard it between two calls of the model, and changed its way"


async def _interrupt(walk: Walk) -> str:
    first = await walk.send("interrupt", "wait 60")
    await walk.heard("message.started", message_id=first)
    await walk.breathe(0.5)
    second = await walk.send("interrupt", "Stop. What is most urgent?", mode="interrupt")
    ended, answered = await walk.ended(first), await walk.ended(second)
    walk.check(ended.facts["outcome"] == "interrupted", "the first run was interrupted")
    walk.check(answered.facts["outcome"] == "succeeded", "the second message was answered")
    took = (answered.facts["at_ms"] - ended.facts["at_ms"]) / 1000
    return f"a minute of waiting was ended, and the new message answered {took:.2f} s later"


async def _crash(walk: Walk) -> str:
    task = f"run echo first >> steps.txt\nthen\nwait {walk.seconds(6)}\nthen\nrun echo second >> steps.txt"
    since = len(walk.follower.happened)
    first = await walk.send("crash", task)
    second = await walk.send("crash", "Are you still there?", mode="followup")
    await walk.heard("tool_start", since=since, tool_name="wait")
    last, pid = walk.follower.last_id, walk.server.pid
    await walk.breathe()
    await walk.server.kill()
    walk.crashes += 1
    walk.say(f"  $ kill -9 {pid}      (in the middle of the run; steps.txt has: {_lines(walk)})", "red")
    await walk.breathe()
    walk.say(f"  $ {' '.join(walk.server.command)}", "cyan")
    url = await walk.server.start()
    walk.say(f"  Laneway is listening on {url}", "dim cyan")
    walk.say(f"  → GET /v1/events  Last-Event-ID: {last}", "cyan")
    ends = [await walk.ended(first), await walk.ended(second)]
    walk.check(all(each.facts["outcome"] == "succeeded" for each in ends), "both messages were answered")
    walk.check(_lines(walk) == "first, second", f"each step was done once: {_lines(walk)}")
    return (
        f"the run went on after its first step, which was not done again (steps.txt: {_lines(walk)}); nothing was lost"
    )


def _lines(walk: Walk) -> str:
    return ", ".join(walk.proof().steps)


CHAPTERS: Final = (
    Chapter(title="A server", text="Everything below goes over HTTP to a real server.", play=_start),
    Chapter(title="Collect", text="Messages that come while the agent works wait, and go out together.", play=_collect),
    Chapter(title="Steer", text="A message can go into the run that is at work.", play=_steer),
    Chapter(title="Interrupt", text="Or it can end that run and take its place.", play=_interrupt),
    Chapter(
        title="A crash, and the recovery",
        text="The server is killed in the middle of a run, with a message waiting, and started again.",
        play=_crash,
    ),
)
