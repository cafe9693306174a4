"""The transport over HTTP in a rough world: TLS, servers that go away, answers that get lost, too much at once."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
import uvicorn

from laneway.errors import ConfigError, LeaseLostError, TransportUnavailableError
from laneway.external import ExternalTask, ExternalTaskResult, Lease
from laneway.gateway.access import Scope
from laneway.gateway.app import create_app
from laneway.gateway.connections import protocol_of
from laneway.gateway.service import Gateway
from laneway.testing.transports import DeskStage
from laneway.transports.http import HttpTransport
from laneway.worker import Worker
from tests.chaos.gateway_world import free_port
from tests.gateway_stage import gateway_in
from tests.integration.processes import eventually

DONE = ExternalTaskResult(result="done")


class Site:
    """A gateway whose server comes and goes, always at the same port."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = settings
        self.port = free_port()
        self.secret = ""
        self.gateway: Gateway

    @property
    def stage(self) -> DeskStage:
        return DeskStage(self.gateway.default.host.desk, self.connect, lease_ms=30_000)

    def connect(self, *, port: int = 0, **options: Any) -> HttpTransport:
        return HttpTransport(f"http://127.0.0.1:{port or self.port}", **{"token": self.secret, **options})

    @contextlib.asynccontextmanager
    async def up(self, **config: Any) -> AsyncIterator[DeskStage]:
        """The server is there."""
        async with gateway_in(self._folder, port=self.port, **self._settings) as self.gateway:
            if not self.secret:
                _, self.secret = await self.gateway.tokens.create("fleet", [Scope.WORKER])
            server = uvicorn.Server(
                uvicorn.Config(
                    create_app(self.gateway),
                    host="127.0.0.1",
                    port=self.port,
                    http=protocol_of(self.gateway.settings),
                    log_config=None,
                    lifespan="off",
                    timeout_graceful_shutdown=1,
                    **config,
                )
            )
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
            serving = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0.005)
            try:
                yield self.stage
            finally:
                self.gateway.begin_stop()
                server.should_exit = True
                await serving


class Line:
    """What lies between a worker and its server: counts connections, and can lose answers."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self.connections = 0
        self.loses_answers = False
        self._server: asyncio.Server

    async def __aenter__(self) -> Line:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer, is_answer=True))
        except OSError:
            pass
        finally:
            writer.close()
            back.close()

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        while piece := await source.read(65_536):
            if is_answer and self.loses_answers:
                break
            target.write(piece)
            await target.drain()
        target.close()


async def begun(stage: DeskStage, transport: HttpTransport, task_id: str) -> Lease:
    await stage.put(task_id, "write")
    [lease] = await transport.claim("w")
    await transport.start(task_id, lease.token)
    return lease


# ---- TLS ----


class Certificates:
    """An authority, what it has signed for the server, and for a worker."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.authority, self.server, self.worker, self.key = (
            folder / name for name in ("ca.pem", "server.pem", "worker.pem", "worker.key")
        )
        authority.cert_pem.write_to_path(self.authority)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(self.server)
        own = authority.issue_cert("worker-1")
        own.private_key_pem.write_to_path(self.key)
        self.worker.write_bytes(b"".join(each.bytes() for each in own.cert_chain_pems))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.slow
async def test_over_tls_a_server_is_believed_if_its_authority_is_known(
    tmp_path: Path, certificates: Certificates
) -> None:
    site = Site(tmp_path)
    url = f"https://127.0.0.1:{site.port}"
    async with site.up(ssl_certfile=str(certificates.server)) as stage:
        knowing = HttpTransport(url, token=site.secret, verify=certificates.authority)
        lease = await begun(stage, knowing, "t1")
        assert await knowing.complete("t1", lease.token, DONE) is True
        await knowing.close()
        stranger = HttpTransport(url, token=site.secret)
        with pytest.raises(ConfigError, match=r"is not trusted here.*--ca FILE, in Python verify"):
            await stranger.claim("w")
        await stranger.close()
        careless = HttpTransport(url, token=site.secret, verify=False)
        assert await careless.claim("w") == []
        await careless.close()


@pytest.mark.slow
async def test_a_server_that_asks_for_a_certificate_gets_that_of_the_worker(
    tmp_path: Path, certificates: Certificates
) -> None:
    site = Site(tmp_path)
    url = f"https://127.0.0.1:{site.port}"
    asks = {
        "ssl_certfile": str(certificates.server),
        "ssl_ca_certs": str(certificates.authority),
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }
    async with site.up(**asks):
        known = HttpTransport(
            url,
            token=site.secret,
            verify=str(certificates.authority),
            certificate=certificates.worker,
            key=certificates.key,
        )
        assert await known.claim("w") == []
        await known.close()
        nobody = HttpTransport(url, token=site.secret, verify=certificates.authority)
        with pytest.raises(TransportUnavailableError):
            await nobody.claim("w")
        await nobody.close()


# ---- a server that goes away ----


@pytest.mark.slow
async def test_a_server_that_was_away_is_found_again_by_the_next_request(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.up() as stage:
        transport = site.connect()
        lease = await begun(stage, transport, "t1")
        waiting = asyncio.ensure_future(transport.claim("w", wait_ms=60_000))
        assert await transport.heartbeat("t1", lease.token) is True
    with pytest.raises(TransportUnavailableError):
        await waiting
    for call in (transport.claim("w", wait_ms=1_000), transport.heartbeat("t1", lease.token)):
        with pytest.raises(TransportUnavailableError, match="no server answers"):
            await call
    async with site.up() as stage:
        lease = await begun(stage, transport, "t2")
        assert await transport.complete("t2", lease.token, DONE) is True
        await transport.close()


@pytest.mark.slow
async def test_a_worker_goes_on_when_its_server_is_back(tmp_path: Path) -> None:
    site = Site(tmp_path)
    done: list[str] = []

    async def work(task: ExternalTask) -> str:
        done.append(task.task_id)
        return "done"

    async with contextlib.AsyncExitStack() as worker_life:
        async with site.up() as stage:
            transport = site.connect()
            worker_life.push_async_callback(transport.close)
            await worker_life.enter_async_context(Worker(transport, handlers={"bash": work}))
            await stage.put("before")
            assert await stage.result("before") == DONE
        for name in ("after", "later"):
            async with site.up() as stage:
                await stage.put(name)
                assert await stage.result(name) == DONE
    assert done == ["before", "after", "later"]


@pytest.mark.slow
async def test_what_was_said_and_whose_answer_was_lost_is_said_again_and_counts_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.up() as stage, Line(site.port) as line:
        transport = site.connect(port=line.port)
        await stage.put("t1", "write")
        [lease] = await transport.claim("w")
        for call in (
            lambda: transport.start("t1", lease.token),
            lambda: transport.complete("t1", lease.token, DONE),
        ):
            line.loses_answers = True
            with pytest.raises(TransportUnavailableError):
                await call()
            line.loses_answers = False
            await call()
        assert await stage.result("t1") == DONE
        await stage.put("t2", "write")
        line.loses_answers = True
        with pytest.raises(TransportUnavailableError):
            await transport.claim("w")
        line.loses_answers = False
        await transport.close()


@pytest.mark.slow
async def test_a_connection_is_used_again_and_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.up() as stage, Line(site.port) as line:
        transport = site.connect(port=line.port)
        lease = await begun(stage, transport, "t1")
        for _ in range(30):
            assert await transport.heartbeat("t1", lease.token) is True
        assert await transport.complete("t1", lease.token, DONE) is True
        assert line.connections <= 3  # one, but for a machine that stood still for as long as one is kept
        await transport.close()


@pytest.mark.slow
async def test_hundreds_may_wait_on_one_transport_and_hold_up_nobody(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.up() as stage:
        transport = site.connect()
        lease = await begun(stage, transport, "t1")
        waiting = [asyncio.ensure_future(transport.claim(f"w{at}", wait_ms=60_000)) for at in range(200)]
        assert await eventually(lambda: sum(each.waiting for each in site.gateway.hall.workers()) == len(waiting))
        assert await transport.complete("t1", lease.token, DONE) is True
        await stage.put("t2")
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await transport.close()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(isinstance(each, TransportUnavailableError) for each in answers) == len(waiting) - 1


@pytest.mark.slow
async def test_a_worker_that_asks_too_often_is_slowed_down_and_loses_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, requests_per_second=20)
    async with site.up() as stage:
        transport = site.connect()
        lease = await begun(stage, transport, "t1")
        began = time.monotonic()
        for _ in range(40):
            assert await transport.heartbeat("t1", lease.token) is True
        assert time.monotonic() - began > 0.9  # 20 at once, and 20 a second
        await transport.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["claim", "frames"])
async def test_who_hangs_up_while_it_waits_takes_nothing(tmp_path: Path, path: str) -> None:
    site = Site(tmp_path)
    claim = {"worker": "gone", "wait_ms": 60_000}
    body = claim if path == "claim" else {"frames": [{"v": 1, "id": 1, "op": "claim", **claim}]}
    async with site.up() as stage:
        url, headers = f"http://127.0.0.1:{site.port}/v1/tasks/{path}", {"Authorization": f"Bearer {site.secret}"}
        async with httpx2.AsyncClient(timeout=60) as client:
            asking = asyncio.ensure_future(client.post(url, json=body, headers=headers))
            assert await eventually(lambda: any(each.waiting for each in site.gateway.hall.workers()))
            asking.cancel()
            assert await eventually(lambda: not any(each.waiting for each in site.gateway.hall.workers()))
        await stage.put("t1", "write")
        assert await stage.state("t1") == "pending"


# ---- too much ----


async def endless(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 1_000_000):
        yield b" " * 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("says_its_size", [True, False])
@pytest.mark.parametrize("path", ["t1/complete", "frames"])
async def test_a_result_of_100_mb_is_refused_and_nobody_else_is_disturbed(
    tmp_path: Path, path: str, *, says_its_size: bool
) -> None:
    site = Site(tmp_path)
    async with site.up() as stage:
        transport = site.connect()
        lease = await begun(stage, transport, "t1")
        headers = {"Authorization": f"Bearer {site.secret}", "Content-Type": "application/json"}
        if says_its_size:
            headers["Content-Length"] = "100000000"
        async with httpx2.AsyncClient(timeout=60) as client:
            url = f"http://127.0.0.1:{site.port}/v1/tasks/{path}"
            sending = asyncio.ensure_future(client.post(url, content=endless(100_000_000), headers=headers))
            assert await transport.heartbeat("t1", lease.token) is True
            answer = await sending
        assert answer.status_code == 413
        assert answer.json()["code"] == "too_large"
        assert await stage.state("t1") == "started"
        assert await transport.complete("t1", lease.token, DONE) is True
        await transport.close()


@pytest.mark.slow
async def test_who_says_that_100_mb_will_come_is_refused_before_the_first_of_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.up():
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        head = (
            "POST /v1/tasks/t1/complete HTTP/1.1",
            f"Host: 127.0.0.1:{site.port}",
            f"Authorization: Bearer {site.secret}",
            "Content-Type: application/json",
            "Content-Length: 100000000",
        )
        writer.write("\r\n".join((*head, "", "")).encode())
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"\r\n")
        writer.close()
        assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.slow
async def test_the_largest_result_there_is_arrives_whatever_is_in_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.up() as stage:
        transport = site.connect()
        lease = await begun(stage, transport, "t1")
        result = ExternalTaskResult(result="ä" * 4_999_990)
        assert await transport.complete("t1", lease.token, result) is True
        assert await stage.result("t1") == result
        await transport.close()


# ---- other people's tasks and clocks ----


@pytest.mark.slow
async def test_the_result_for_a_task_of_another_tenant_does_not_count(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.up() as stage:
        transport = site.connect()
        lease = await begun(stage, transport, "t1")
        _, secret = await site.gateway.tokens.create("theirs", [Scope.WORKER], tenant="acme")
        stranger = site.connect(token=secret)
        for call in (
            stranger.start("t1", lease.token),
            stranger.heartbeat("t1", lease.token),
            stranger.complete("t1", lease.token, DONE),
        ):
            with pytest.raises(LeaseLostError, match="there is no task"):
                await call
        await stranger.release("t1", lease.token, begun=True)
        assert await stranger.claim("w", limit=9) == []
        assert await stage.state("t1") == "started"
        assert await transport.complete("t1", lease.token, DONE) is True
        for each in (transport, stranger):
            await each.close()


LATE_CLOCK = """
import asyncio, sys, time
away = int(sys.argv[3]) * 3600
wall, wall_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: wall() + away, lambda: wall_ns() + away * 10**9
from laneway.transports.http import HttpTransport
from laneway.worker import Worker

async def work(task):
    await asyncio.sleep(4)
    return {"output": str(task.remaining_ms())}

async def main():
    await Worker(HttpTransport(sys.argv[1], token=sys.argv[2]), handlers={"bash": work}).run()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-1, 1])
async def test_the_clock_of_a_worker_plays_no_part(tmp_path: Path, hours: int) -> None:
    site = Site(tmp_path)
    async with site.up() as stage:
        arguments = [f"http://127.0.0.1:{site.port}", site.secret, str(hours)]
        worker = subprocess.Popen([sys.executable, "-c", LATE_CLOCK, *arguments])  # noqa: ASYNC220 - it is ended below
        try:
            stage.lease_ms = 10_000  # three signs of life in each: at least one for this task
            await stage.put("t1", "write", timeout_ms=60_000)
            result = await stage.result("t1")
        finally:
            worker.kill()
            worker.wait()
        assert result is not None
        assert result.success
        assert 0 < int(result.result["output"]) <= 60_000
        entry = await stage.desk.find("t1")
        assert entry is not None
        assert entry.attempt == 1
