"""What the OpenAPI promises, a real server keeps: drawn requests to every route get answers of the documented shapes.

The requests are always the same ones. Half of those that name a thing name one that is there.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from laneway.gateway.app import create_app
from laneway.kernel.ledger import LedgerState
from laneway.rows import Owner
from tests.gateway_stage import GatewayStage, gateway_in, serving
from tests.routes_stage import body_of, dead_message, entry_in, post, until

pytestmark = pytest.mark.slow

TEXT = """
default_model: scripted
lanes:
  main: 64
queue:
  mode: followup
  enable_dlq: true
  lane_handlers:
    query:
      mode: external
permissions:
  allow: ["*"]
  ask: ["bash"]
confirmation:
  enabled: true
  default_timeout_ms: 3600000
"""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
EXAMPLES = 12
SCOPES = ("chat", "operate", "worker", "admin")


def document() -> dict[str, Any]:
    """The OpenAPI of a gateway; none has to be open for it."""
    with tempfile.TemporaryDirectory() as folder:
        return create_app(gateway_in(Path(folder))).openapi()


@schemathesis.serializer("application/vnd.laneway.session+jsonl")
def as_it_is(_: object, value: object) -> bytes:
    """What is drawn for a file, as its bytes."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


schema = schemathesis.openapi.from_dict(document(), config=SchemathesisConfig(seed=1))
schema.config.generation.update(with_security_parameters=False)


def operations() -> list[tuple[str, str]]:
    """Every route; what ends things comes last."""
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    ends = ("/stop", "/cancel", "/complete", "/fail", "/approvals/{approval_id}")
    return sorted(
        ((each.method, each.path) for each in found),
        key=lambda each: each[0] == "delete" or (each[0] == "post" and each[1].endswith(ends)),
    )


class Served:
    """A server on a thread of its own, with something of everything in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server")
        self.url = ""
        self.headers: dict[str, str] = {}
        self.known: dict[str, list[str]] = {}
        self._stage: GatewayStage
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self._folder, text=TEXT, drain_ms=100, requests_per_second=100_000) as stage:
            self._stage, self.url = stage, stage.url
            await self._fill(stage)
            self._ready.set()
            await self._stop.wait()

    async def _fill(self, stage: GatewayStage) -> None:
        client, inbox = stage.client, stage.gateway.default.inbox
        sent = await stage.send("s1", "hello")
        letters = [await dead_message(stage, "s1", text) for text in ("one", "two", "three", "four")]
        self.headers = await stage.token(*SCOPES, tenant="*")
        client.headers.update(self.headers)
        asking = await post(stage, "s1", "run true")
        waiting = [(await post(stage, "s1", text))["message_id"] for text in ("second", "third", "fourth")]
        await post(stage, "s2", "read x.txt")
        owner = Owner("default", "default", "s1")
        entries = [await entry_in(stage, owner, name, LedgerState.UNKNOWN) for name in "abc"]
        daily = {"session_key": "s1", "text": "news", "cron": "0 9 * * *"}
        schedules = [
            (await body_of(await client.post("/v1/schedules", json=daily), 201))["schedule_id"] for _ in range(3)
        ]
        desk = stage.gateway.default.host.desk
        await until(lambda: inbox.approvals() and desk.tasks())
        for name in ("w1", "w2"):
            await stage.gateway.hall.claim(name, commands=["bash"])
        runs = (await body_of(await client.get("/v1/sessions/s1/runs")))["items"]
        self.known = {
            "sessions": ["s1", "s2", "never"],
            "messages": [sent["message_id"], asking["message_id"], *waiting, *letters],
            "runs": [each["run_id"] for each in runs],
            "ledger": entries,
            "lanes": ["main", "query", "s:s1/execute", "model:scripted"],
            "limits": ["model:scripted", "scripted", "main"],
            "tasks": [each.task_id for each in desk.tasks()],
            "workers": ["w1", "w2"],
            "dead-letters": letters,
            "approvals": [each.id for each in inbox.approvals()],
            "schedules": schedules,
        }

    def settle(self) -> None:
        """Lanes that a request has paused or closed would hold up those that come after it."""

        def reopen() -> None:
            lanes = self._stage.gateway.lanes
            for name in list(lanes.stats().lanes):
                lanes.resume(name)
                lanes.reopen(name)

        self._loop.call_soon_threadsafe(reopen)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all requests."""
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


def cases(operation: Any, server: Served) -> st.SearchStrategy[Any]:
    """Requests to a route: as it wants them, about things that are there if it names any, and as it does not."""
    drawn = [operation.as_strategy()]
    names = [each.name for each in operation.path_parameters]
    known = server.known.get(operation.path.split("/")[2], []) if operation.path.startswith("/v1/") else []
    if names and known:
        chosen = st.sampled_from(known)
        drawn.append(chosen.flatmap(lambda value: operation.as_strategy(path_parameters={names[0]: value})))
    if len(operation.query) or len(operation.body):
        drawn.append(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    return st.one_of(drawn)


@pytest.mark.parametrize(("method", "path"), operations())
def test_every_answer_is_as_the_openapi_says(method: str, path: str, server: Served) -> None:
    operation = schema[path][method]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(operation, server))
    def check(case: Any) -> None:
        if len(repr(case.query)) % 3:  # most names of workspaces are those of none
            for given_by in (case.query, case.headers):
                for name in {"workspace", "Laneway-Workspace"} & set(given_by or {}):
                    del given_by[name]
        if path.endswith("/events"):
            case.query = {**(case.query or {}), "follow": "false"}
        if path.endswith("/claim") and isinstance(case.body, dict) and type(case.body.get("wait_ms")) is int:
            case.body["wait_ms"] = min(case.body["wait_ms"], 10)  # nobody waits for what may come
        response = case.call(base_url=server.url, headers=server.headers, timeout=60)
        is_stream = response.headers["content-type"][0].startswith("text/event-stream") if response.content else False
        checks = [each for each in CHECKS if not (is_stream and each is response_schema_conformance)]
        case.validate_response(response, checks=checks)
        assert response.status_code < 500
        server.settle()

    check()
