"""A server is ready while its store answers and work that could start is being started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from laneway.agent.session import AsyncSession
from laneway.dialogue import TextChunk
from laneway.errors import ConfigError, StoreUnavailableError
from laneway.gateway import health
from laneway.gateway.access import LOCAL, Scope
from laneway.gateway.app import create_app
from laneway.gateway.channels.running import note
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings
from laneway.mail import Receipt
from laneway.models import ScriptedModel, call, say
from laneway.rows import Batch, BatchResult
from laneway.stores import MemoryStore
from laneway.system import HostEnv
from laneway.testing import FakeClock
from tests.agent_stage import Held
from tests.gateway_stage import BASE, gateway_stage, spec_of

LIMIT_MS = 60_000
NARROW = "default_model: scripted\nqueue:\n  mode: followup\n  debounce_idle: false\nlanes:\n  main: 1\n"
ASKS = NARROW + "permissions:\n  default_decision: ask\nconfirmation:\n  default_timeout_ms: 100000000\n"


class Ward:
    """A gateway whose clock the test moves, and somebody who asks how it is."""

    def __init__(self, gateway: Gateway, clock: FakeClock, client: httpx2.AsyncClient) -> None:
        self.gateway = gateway
        self.clock = clock
        self.client = client

    async def look(self) -> tuple[int, dict[str, Any]]:
        answer = await self.client.get("/readyz")
        body: dict[str, Any] = answer.json()
        return answer.status_code, body

    async def work(self) -> str:
        """What the check of the work says."""
        return str((await self.look())[1]["work"])

    async def send(self, key: str, text: str = "hello", *, opens: bool = True) -> Receipt:
        """Send a message; its session is open then."""
        receipt = await self.gateway.submit(self.gateway.default, LOCAL, key, text)
        if opens:
            await self.gateway.default.session("default", key)
        return receipt


@asynccontextmanager
async def ward(
    folder: Path, *script: Any, text: str = NARROW, store: MemoryStore | None = None, name: str = "default"
) -> AsyncIterator[Ward]:
    clock = FakeClock()
    model = ScriptedModel(list(script)) if script else None
    settings = GatewaySettings(stalled_after_ms=LIMIT_MS, drain_ms=1)
    specs = [spec_of(folder, name=name, text=text, model=model)]
    gateway = Gateway(settings, specs, env=HostEnv(clock=clock), store=store or MemoryStore(), environ={})
    async with (
        gateway,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=create_app(gateway)), base_url=BASE) as client,
    ):
        yield Ward(gateway, clock, client)


async def test_a_server_without_work_is_alive_and_ready_for_ever(tmp_path: Path) -> None:
    async with ward(tmp_path) as here:
        here.clock.advance(10 * LIMIT_MS)
        assert (await here.client.get("/healthz")).json() == {"status": "alive"}
        assert await here.look() == (200, {"status": "ready", "server": "ok", "store": "ok", "work": "ok"})


async def test_a_server_that_stops_is_alive_and_not_ready(tmp_path: Path) -> None:
    async with ward(tmp_path) as here:
        here.gateway.begin_stop()
        status, body = await here.look()
        assert (status, body["code"], body["server"]) == (503, "not_ready", "it is stopping")
        assert (await here.client.get("/healthz")).status_code == 200


class GoneStore(MemoryStore):
    """A store that goes away when the test says so."""

    problem: Exception | None = None
    hangs = False
    gate: asyncio.Event | None = None
    commits = 0

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        self.commits += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        if self.hangs:
            await asyncio.Event().wait()
        return await super().commit(batches)


@pytest.mark.parametrize("problem", [StoreUnavailableError("the disk is gone"), OSError("no disk"), None])
async def test_a_server_whose_store_is_gone_is_not_ready_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception | None
) -> None:
    monkeypatch.setattr(health, "STORE_PATIENCE_S", 0)
    store = GoneStore()
    async with ward(tmp_path, store=store) as here:
        store.problem, store.hangs = problem, problem is None
        status, body = await here.look()
        assert (status, body["store"] != "ok", body["work"]) == (503, True, "ok")
        store.problem, store.hangs = None, False
        monkeypatch.setattr(health, "STORE_PATIENCE_S", 60)
        assert (await here.look())[0] == 200


async def test_many_who_ask_at_one_time_cost_the_store_one_write(tmp_path: Path) -> None:
    store = GoneStore()
    async with ward(tmp_path, store=store) as here:
        store.gate, store.commits = asyncio.Event(), 0
        asking = [asyncio.create_task(here.look()) for _ in range(20)]
        for _ in range(200):
            await asyncio.sleep(0)
        store.gate.set()
        assert [status for status, _ in await asyncio.gather(*asking)] == [200] * 20
        assert store.commits == 1
        assert ((await here.look())[0], store.commits) == (200, 2)


@pytest.mark.parametrize("loss", ["removed", "moved", "replaced"])
async def test_a_server_whose_file_is_gone_is_not_ready(tmp_path: Path, loss: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert (await stage.client.get("/readyz")).status_code == 200
        file, aside = tmp_path / "laneway.db", tmp_path / "aside.db"
        os.rename(file, aside)
        if loss == "removed":
            os.rename(aside, tmp_path / "away")
        elif loss == "replaced":
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY))
        answer = await stage.client.get("/readyz")
        sent = await stage.client.post("/v1/sessions/s/messages", json={"text": "hello"})
        assert (answer.status_code, sent.status_code) == (503, 503)
        assert str(tmp_path) not in sent.text  # where it lies is nobody's business


@pytest.mark.parametrize(("name", "lane"), [("default", "main"), ("shop", "shop/main")])
async def test_work_that_waits_while_nothing_is_started_is_a_stall_until_something_starts(
    tmp_path: Path, name: str, lane: str
) -> None:
    held = Held(say("at last"))
    async with ward(tmp_path, held, [say("two")], name=name) as here:
        await here.send("a")
        await held.asked.wait()
        later = await here.send("b")
        here.clock.advance(LIMIT_MS - 1)
        assert await here.work() == "ok"
        here.clock.advance(1)
        status, body = await here.look()
        assert status == 503
        assert body["work"] == f"1 wait in lane {lane!r}, and nothing has started for 60000 ms"
        assert here.gateway.admission.oldest_ms() == LIMIT_MS
        held.let_go()
        await here.gateway.default.inbox.wait(later.message_id)
        assert await here.work() == "ok"


async def test_only_an_operator_is_told_what_is_wrong_where_there_are_tokens(tmp_path: Path) -> None:
    store = GoneStore()
    async with ward(tmp_path, store=store) as here:
        _, secret = await here.gateway.tokens.create("watch", [Scope.OPERATE], tenant="*")
        store.problem = StoreUnavailableError("/var/lib/laneway.db is gone")
        stranger = await here.client.get("/readyz")
        operator = await here.client.get("/readyz", headers={"Authorization": f"Bearer {secret}"})
        assert (stranger.status_code, operator.status_code) == (503, 503)
        assert "laneway.db" not in stranger.text
        assert operator.json()["store"] == "/var/lib/laneway.db is gone"
        store.problem = None


async def test_a_run_that_says_something_is_no_stall(tmp_path: Path) -> None:
    held = Held(say("at last"))
    async with ward(tmp_path, held, [say("two")]) as here:
        await here.send("a")
        await held.asked.wait()
        await here.send("b")
        here.clock.advance(LIMIT_MS)
        run = here.gateway.default.inbox.engine.kernel.turns
        session = await here.gateway.default.session("default", "a")
        live = session.live_run(next(iter(run)))
        assert live is not None
        live._show(TextChunk(text="a word"))  # noqa: SLF001 - as its model would
        assert await here.work() == "ok"
        held.let_go()


async def test_what_is_paused_or_closed_until_a_time_is_no_stall(tmp_path: Path) -> None:
    async with ward(tmp_path) as here:
        lanes = here.gateway.lanes
        lanes.pause("main")
        await here.send("a")
        await asyncio.sleep(0)
        here.clock.advance(2 * LIMIT_MS)
        assert await here.work() == "ok"
        lanes.close_until("main", here.clock.wall_ms() + 10 * LIMIT_MS, "quota")
        lanes.resume("main")
        here.clock.advance(2 * LIMIT_MS)
        assert await here.work() == "ok"


async def test_what_waits_for_its_own_session_or_is_held_is_no_stall(tmp_path: Path) -> None:
    held = Held(say("at last"))
    async with ward(tmp_path, held, [say("two")]) as here:
        await here.send("a")
        await held.asked.wait()
        behind = await here.send("a", "and then")
        here.clock.advance(2 * LIMIT_MS)
        assert await here.work() == "ok"
        await here.gateway.default.inbox.hold(behind.message_id)
        held.let_go()
        await asyncio.sleep(0)
        here.clock.advance(2 * LIMIT_MS)
        assert await here.work() == "ok"


async def test_what_waits_behind_an_approval_is_no_stall(tmp_path: Path) -> None:
    script = [[call("bash", command="true")], [say("two")]]
    async with ward(tmp_path, *script, text=ASKS) as here:
        asked = asyncio.Event()
        here.gateway.default.observers.append(
            lambda _, event: asked.set() if event.event_type == "confirmation_required" else None
        )
        await here.send("a")
        await asked.wait()
        await here.send("a", "and then")
        other = await here.send("b")
        await here.gateway.default.inbox.wait(other.message_id)  # an approval takes no slot
        here.clock.advance(2 * LIMIT_MS)
        assert await here.work() == "ok"


async def test_what_waits_while_every_run_is_paused_by_somebody_is_no_stall(tmp_path: Path) -> None:
    held = Held(call("ls"))
    async with ward(tmp_path, held, [say("done")], [say("two")]) as here:
        await here.send("a")
        await held.asked.wait()
        session = await here.gateway.default.session("default", "a")
        session.pause()
        held.let_go()
        await here.send("b")
        here.clock.advance(2 * LIMIT_MS)
        assert await here.work() == "ok"
        session.resume()


async def test_a_session_with_work_that_cannot_be_opened_is_a_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def move_in(self: AsyncSession, host: Any) -> None:
        raise ConfigError("not today", setting="x")

    monkeypatch.setattr(AsyncSession, "_move_in", move_in)
    async with ward(tmp_path) as here:
        receipt = await here.send("a", opens=False)
        while not here.gateway.default._later:  # noqa: SLF001, ASYNC110 - until it has failed once
            await asyncio.sleep(0)
        assert await here.work() == "ok"
        here.clock.advance(LIMIT_MS)
        assert "cannot be opened" in await here.work()
        await here.gateway.default.inbox.withdraw(receipt.message_id)


class Refused:
    """A channel that its platform does not let in."""

    name, kind, problem = "telegram", "telegram", "the bot is not let in"

    async def start(self, gateway: Gateway) -> None:
        """It never does."""

    async def stop(self) -> None:
        """There is nothing to end."""


async def test_a_channel_that_does_not_work_is_told_and_takes_no_server_out(tmp_path: Path) -> None:
    async with ward(tmp_path) as here:
        note(here.gateway, [Refused()])
        status, body = await here.look()
        assert (status, body["status"]) == (200, "ready")
        assert body["channel telegram"] == "the bot is not let in"
        await here.gateway.tokens.create("ada", [Scope.CHAT])
        assert (await here.look())[1] == {"status": "ready", "server": "ok", "store": "ok", "work": "ok"}
