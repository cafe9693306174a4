"""A real gateway and real workers, killed under load again and again, with a bad network between them.

Each worker has a way of its own to the gateway, over a proxy that stalls, slows, swallows answers, refuses and cuts.
Each session has a sender, which tries again under an idempotency key until its message is accepted. A message asks for
calls of all three effects, in one answer and in several; lanes `execute` and `query` are external. At the end all is
well again, everything comes to its end, and what workers wrote down is held against the store.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx2

from tests.chaos.gateway_world import BACK_S, READY_S, Life, free_port
from tests.chaos.worker_checker import Ended, Line, Sent, TaskSeen, WorkerEvidence
from tests.chaos.worker_handlers import JOURNAL
from tests.stalling_proxy import StallingProxy, Weather

__all__ = ("Laborer", "Sabotage", "WorkerWorldOptions", "make_token", "run_worker_world")

# ruff: noqa: ASYNC110 - what it waits for is in another process

AGENT: Final = """
default_model: scripted
permissions:
  allow: ["*"]
tool_effects:
  wait: idempotent
  bash: BASH
queue:
  mode: followup
  debounce_idle: false
  cap: 100000
  drop: new
  execute_max_concurrency: 4
  query_max_concurrency: 4
  generate_max_concurrency: 4
  lane_handlers:
    execute: {mode: external, ordered: false, timeout_ms: 300000, lease_ms: LEASE}
    query: {mode: external, ordered: false, timeout_ms: 300000, lease_ms: LEASE}
lanes:
  main: 8
gateway:
  drain_ms: 3000
"""
Sabotage = Literal["", "repeat-writes"]
"""What the gateway is made to believe of writes, so that it must be found."""
HANDLERS: Final = Path(__file__).with_name("worker_handlers.py")
LEASE_MS: Final = 1_500
DRAIN_MS: Final = 700
UP_S: Final = 10
LABEL_MAX: Final = 5
WAITING_MAX: Final = 3
BAD: Final = (Weather.STALL, Weather.STALL, Weather.DEAF, Weather.DEAF, Weather.SLOW, Weather.REFUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWorldOptions:
    """One store, one gateway after another, and some workers."""

    folder: Path
    seed: int
    kills: int
    workers: int = 5
    sessions: int = 8
    between_s: float = 1.0
    rest_s: float = 120.0
    sabotage: str = ""


def make_token(folder: Path) -> Path:
    """A token for workers, in a file; nobody has the store open."""
    command = ["token", "create", "chaos", "--scope", "worker", "--tenant", "*"]
    made = subprocess.run(
        [sys.executable, "-m", "laneway", *command, "--store", f"sqlite:///{folder / 'laneway.db'}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=READY_S,
    )
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(made.stdout.strip())
    return path


class Laborer:
    """A worker process, whichever it is at the moment, and its way to the gateway."""

    def __init__(self, name: str, folder: Path, proxy: StallingProxy) -> None:
        self.name = name
        self.proxy = proxy
        self.is_away = False  # somebody ends it at this moment
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._told = 0  # how long its log was when this one was started
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; it finds the gateway by itself."""
        arguments = [
            *("-m", "laneway", "worker", "--connect", f"http://127.0.0.1:{self.proxy.port}", "--name", self.name),
            *("--handlers", str(HANDLERS), "--token-file", str(self._folder / "token"), "--concurrency", "3"),
            *("--lanes", "execute,query", "--drain-ms", str(DRAIN_MS)),
        ]
        environment = {**os.environ, JOURNAL: str(self._folder / "journal")}
        with self._log.open("ab") as log:
            self._told = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdout=log, stderr=log, start_new_session=True, env=environment
            )

    async def ready(self) -> None:
        """Wait until it takes tasks, or for some time: its way may be blocked."""
        with suppress(TimeoutError):
            async with asyncio.timeout(UP_S):
                while b" takes tasks of " not in self._log.read_bytes()[self._told :]:
                    await asyncio.sleep(BACK_S)

    async def kill(self) -> None:
        """End it without a word."""
        assert self._process is not None
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> int:
        """Ask it to end; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return await asyncio.wait_for(self._process.wait(), READY_S)

    @property
    def is_there(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None


class World:
    """The load, and what is done to everybody."""

    def __init__(self, options: WorkerWorldOptions) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.found = WorkerEvidence()
        self.port = free_port()
        self.life = Life(options.folder, self.port)
        self.client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20)
        self.crew: list[Laborer] = []
        self.enough = False
        self._waits = 0

    async def run(self) -> WorkerEvidence:
        """Everything, from the first start to the evidence."""
        folder = self.options.folder
        (folder / "work").mkdir(parents=True)
        bash = "idempotent" if self.options.sabotage == "repeat-writes" else "write"
        (folder / "agent.yaml").write_text(AGENT.replace("LEASE", str(LEASE_MS)).replace("BASH", bash))
        await asyncio.to_thread(make_token, folder)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.client.aclose)
            for number in range(self.options.workers):
                proxy = await stack.enter_async_context(StallingProxy(self.port))
                laborer = Laborer(f"w{number}", folder, proxy)
                self.crew.append(laborer)
                await laborer.start()  # before there is a gateway
                stack.push_async_callback(laborer.kill)
            await self.life.start()
            stack.push_async_callback(self._be_rid_of_gateway)
            await self._live()
        self._read_files()
        return self.found

    async def _live(self) -> None:
        senders = [asyncio.create_task(self._send_all(f"s{number}")) for number in range(self.options.sessions)]
        storms = [asyncio.create_task(self._make_weather(laborer)) for laborer in self.crew]
        try:
            await self._kill_often()
            self.enough = True
            await asyncio.gather(*senders, *storms)
            async with asyncio.timeout(self.options.rest_s):
                await self._wait_for_ends()
            for laborer in self.crew:
                assert laborer.is_there, f"{laborer.name} has ended by itself"
                code = await laborer.stop()
                assert code == 0, (laborer.name, code)
            await self._read_ledger()  # now nobody can be late any more
            assert await self.life.stop() == 0
        finally:
            for task in (*senders, *storms):
                task.cancel()
            await asyncio.gather(*senders, *storms, return_exceptions=True)

    async def _be_rid_of_gateway(self) -> None:
        with suppress(ProcessLookupError):  # it was stopped
            await self.life.kill()

    # ---- what is done to them ----

    async def _kill_often(self) -> None:
        aside: list[asyncio.Task[None]] = []
        for who, by_kill in deeds(self.options.kills, self.random):
            await asyncio.sleep(self.random.uniform(0.1, 2 * self.options.between_s))
            if who == "gateway":
                await self._end_gateway(by_kill=by_kill)
                continue
            while not (here := [each for each in self.crew if not each.is_away]):
                await asyncio.sleep(BACK_S)
            laborer = self.random.choice(here)
            laborer.is_away = True
            aside.append(asyncio.create_task(self._end_worker(laborer, by_kill=by_kill)))
        await asyncio.gather(*aside)
        await self._answering()

    async def _end_gateway(self, *, by_kill: bool) -> None:
        if by_kill:
            await self.life.kill()
        else:
            code = await self.life.stop()
            assert code in (0, -signal.SIGTERM), code  # the latter before it has come up
        self.found.again["kill gateway" if by_kill else "stop gateway"] += 1
        if self.random.random() < 0.3:  # longer than a lease
            await asyncio.sleep(self.random.uniform(0, 2 * LEASE_MS / 1000))
        await self.life.start(wait=self.random.random() > 0.2)

    async def _end_worker(self, laborer: Laborer, *, by_kill: bool) -> None:
        if by_kill:
            await laborer.kill()
        else:
            code = await laborer.stop()
            assert code in (0, -signal.SIGTERM), (laborer.name, code)  # the latter before it has come up
        self.found.again["kill worker" if by_kill else "stop worker"] += 1
        await asyncio.sleep(self.random.uniform(0, 1.0))
        await laborer.start()
        if self.random.random() < 0.8:  # the others may be ended while they start
            await laborer.ready()
        laborer.is_away = False

    async def _make_weather(self, laborer: Laborer) -> None:
        proxy = laborer.proxy
        while not self.enough:
            await asyncio.sleep(self.random.uniform(0.5, 6.0))
            if self.enough:
                break
            self.found.again["weather"] += 1
            if self.random.random() < 0.2:
                proxy.cut()
                continue
            proxy.become(self.random.choice(BAD))
            await asyncio.sleep(self.random.uniform(0.2, 2.5 * LEASE_MS / 1000))
            if self.random.random() < 0.5:  # what was on its way is lost; else it comes late
                proxy.cut()
            proxy.become(Weather.FAIR)

    async def _answering(self) -> None:
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    if (await self.client.get("/healthz")).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(BACK_S)

    # ---- the load ----

    async def _send_all(self, name: str) -> None:
        number = 0
        waiting: list[str] = []
        while not self.enough:
            number += 1
            text, labels = self._message(f"{name}-{number}")
            waiting.append(await self._send(name, number, text))
            self.found.accepted.append(Sent(name, waiting[-1], labels))
            while len(waiting) >= WAITING_MAX and not self.enough:
                await asyncio.sleep(self.random.uniform(0, 0.2))
                waiting = [message_id for message_id in waiting if not await self._has_ended(message_id)]

    def _message(self, name: str) -> tuple[str, tuple[str, ...]]:
        """What to say, and the labels of the calls that it asks for."""
        lines: list[str] = []
        labels: list[str] = []
        for number in range(self.random.randint(1, LABEL_MAX)):
            if lines and self.random.random() < 0.3:
                lines.append("then")
            kind = self.random.choice(("run", "run", "read", "wait"))
            if kind == "wait":
                self._waits += 1
                lines.append(f"wait {self._waits}")
                labels.append(f"wait-{self._waits}")
            else:
                lines.append(f"{kind} {name}-{number}")
                labels.append(f"{name}-{number}")
        return "\n".join(lines), tuple(labels)

    async def _send(self, name: str, number: int, text: str) -> str:
        headers = {"Idempotency-Key": f"{name}-{number}"}
        while True:
            try:
                answer = await self.client.post(f"/v1/sessions/{name}/messages", json={"text": text}, headers=headers)
            except httpx2.TransportError:
                self.found.again["send"] += 1
            else:
                if answer.status_code == 202:
                    return str(answer.json()["message_id"])
                assert answer.status_code in (429, 503), answer.text
            await asyncio.sleep(BACK_S)

    async def _has_ended(self, message_id: str) -> bool:
        try:
            answer = await self.client.get(f"/v1/messages/{message_id}")
        except httpx2.TransportError:
            return False
        if answer.status_code == 404:
            return True  # the checker finds out
        if answer.status_code != 200:
            return False
        body = answer.json()
        self.found.ends[message_id] = Ended(body["disposition"], body.get("outcome") or "", body.get("answer") or "")
        return bool(body.get("outcome"))

    # ---- the evidence ----

    async def _wait_for_ends(self) -> None:
        for sent in self.found.accepted:
            while not await self._has_ended(sent.message_id):
                await asyncio.sleep(BACK_S)

    async def _read_ledger(self) -> None:
        after: str | None = ""
        while after is not None:
            body = (await self.client.get("/v1/ledger", params={"after": after, "limit": 1000})).json()
            self.found.ledger.update({each["idempotency_key"]: each["state"] for each in body["items"]})
            after = body["next"]

    def _read_files(self) -> None:
        self.found.journal = list(read_journal(self.options.folder / "journal"))
        with closing(sqlite3.connect(self.options.folder / "laneway.db")) as store:
            rows = store.execute("SELECT id, session, state, body FROM states WHERE kind = 'task'").fetchall()
            self.found.store_problems = tuple(
                said for (said,) in store.execute("PRAGMA integrity_check").fetchall() if said != "ok"
            )
        self.found.tasks = {task.task_id: task for task in read_tasks(rows)}


def deeds(kills: int, source: random.Random) -> list[tuple[str, bool]]:
    """Whom to end, and whether without a word: of four kills three are of workers; for some, asking is enough."""
    gateways, stops = kills // 4, max(1, kills // 5)
    found = [("gateway", True)] * gateways + [("worker", True)] * (kills - gateways)
    found += [("worker", False)] * stops + [("gateway", False)] * max(1, stops // 4)
    source.shuffle(found)
    return found


def read_journal(path: Path) -> Iterable[Line]:
    """What workers wrote down. A kill may have cut the last line of a worker: there is none then."""
    for line in path.read_text().splitlines():
        yield Line(*json.loads(line)[:6])


def read_tasks(rows: Iterable[tuple[str, str, str, str]]) -> Iterable[TaskSeen]:
    """The tasks of a store."""
    for task_id, session, state, text in rows:
        body: dict[str, Any] = json.loads(text)
        result = body.get("result") or [False, None, None]
        nonce = str(result[1]["output"]).split()[-1] if isinstance(result[1], dict) else ""
        yield TaskSeen(task_id, session, body.get("key", ""), body["effect"], state, nonce)


def run_worker_world(options: WorkerWorldOptions) -> WorkerEvidence:
    """One world, on a loop of its own."""
    return asyncio.run(World(options).run())
