"""Two tenants on one server: the second asks every route and every stream for the first one's things.

It gets nothing of them: no text, no key, no id that it has not said itself; and what it is told about a thing of the
first is, byte for byte, what it is told about a thing that never was. A route that is not in the table fails the test.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIWebSocketRoute

from laneway.gateway.routes import ROUTERS
from laneway.kernel.ledger import LedgerState
from laneway.rows import Owner
from laneway.runtime.task_hall import Guest
from tests.gateway_stage import GatewayStage
from tests.routes_stage import body_of, dead_message, entry_in, post, until
from tests.stream_stage import App, listening, staged, talking

MARK = "zebra"  # in every text, key and name of the first tenant, and nowhere else
KEY = f"{MARK}-session"
SCOPES = ("chat", "operate", "worker", "admin")
TEXT = """
default_model: scripted
lanes:
  main: 8
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


LEASE, THING = "$lease", "$thing"
"""In a body: the token of the lease of the first one's worker, as if the second had come upon it; what is named."""


@dataclass(frozen=True)
class Ask:
    """How the second asks a route: `known` names the first one's thing in the path, `made_up` one that never was."""

    known: str = ""
    body: Any = None
    query: dict[str, str] = field(default_factory=dict)


NOTHING = Ask()
ELSEWHERE = Ask("key")
"""Asked in a test of its own: what is said to a session of the same key is said to another session."""
OF_SESSION = Ask("key")
OF_MESSAGE = Ask("message_id")
OF_RUN = Ask("run_id")
PROOF = {"token": LEASE}
STEPS: dict[str, dict[str, Any]] = {
    "start": {},
    "heartbeat": {},
    "complete": {"result": {"success": True, "result": "mine", "error": None}},
    "release": {"reason": "mine"},
}
FRAMES = {
    "frames": [
        {"v": 1, "id": number, "op": op, "task_id": THING, "token": LEASE, **more}
        for number, (op, more) in enumerate(STEPS.items())
    ]
}
OF_TASK = Ask("task_id", PROOF)

TABLE: dict[str, Ask] = {
    "GET /healthz": NOTHING,
    "GET /readyz": NOTHING,
    "GET /metrics": NOTHING,
    "GET /v1/about": NOTHING,
    "GET /v1/attention": NOTHING,
    "GET /v1/now": NOTHING,
    "POST /v1/sessions/{key}/messages": ELSEWHERE,
    "GET /v1/messages/{message_id}": OF_MESSAGE,
    "PATCH /v1/messages/{message_id}": Ask("message_id", {"text": "mine now"}),
    "DELETE /v1/messages/{message_id}": OF_MESSAGE,
    "POST /v1/messages/{message_id}/steer": OF_MESSAGE,
    "POST /v1/messages/{message_id}/hold": OF_MESSAGE,
    "POST /v1/messages/{message_id}/release": OF_MESSAGE,
    "POST /v1/messages/{message_id}/move": Ask("message_id", {"position": 1}),
    "POST /v1/messages/{message_id}/retry": OF_MESSAGE,
    "GET /v1/messages/{message_id}/explain": OF_MESSAGE,
    "GET /v1/messages/{message_id}/story": OF_MESSAGE,
    "GET /v1/sessions/{key}/events": Ask("key", query={"follow": "false", "replay": "all"}),
    "GET /v1/events": Ask(query={"follow": "false", "replay": "all"}),
    "GET /v1/runs/{run_id}/events": Ask("run_id", query={"follow": "false", "replay": "all"}),
    "POST /v1/chat/completions": ELSEWHERE,
    "POST /v1/responses": ELSEWHERE,
    "GET /v1/responses/{response_id}": Ask("response_id"),
    "POST /v1/responses/{response_id}/cancel": Ask("response_id"),
    "GET /v1/models": NOTHING,
    "GET /v1/models/{model}": Ask("key"),
    "GET /v1/tokens": NOTHING,
    "POST /v1/tokens": Ask(body={"name": "spy", "scopes": ["chat"], "tenant": "acme"}),
    "DELETE /v1/tokens/{token_id}": Ask("token_id"),
    "GET /v1/audit": NOTHING,
    "GET /v1/sessions": Ask(query={"subagents": "true"}),
    "GET /v1/sessions/{key}": OF_SESSION,
    "DELETE /v1/sessions/{key}": OF_SESSION,
    "GET /v1/sessions/{key}/export": OF_SESSION,
    "POST /v1/sessions/import": NOTHING,
    "PATCH /v1/sessions/{key}/settings": Ask("key", {"mode": "reject"}),
    "GET /v1/sessions/{key}/pending": OF_SESSION,
    "DELETE /v1/sessions/{key}/pending": OF_SESSION,
    "GET /v1/sessions/{key}/history": OF_SESSION,
    "GET /v1/sessions/{key}/transcript": OF_SESSION,
    "GET /v1/sessions/{key}/conversation": OF_SESSION,
    "GET /v1/sessions/{key}/messages": Ask("key", query={"id": "message_id"}),
    "POST /v1/sessions/{key}/stop": OF_SESSION,
    "POST /v1/sessions/{key}/passivate": OF_SESSION,
    "PUT /v1/sessions/{key}/labels": Ask("key", {"principal": "user:42"}),
    "GET /v1/sessions/{key}/runs": OF_SESSION,
    "GET /v1/runs/{run_id}": OF_RUN,
    "POST /v1/runs/{run_id}/cancel": OF_RUN,
    "POST /v1/runs/{run_id}/resume": OF_RUN,
    "GET /v1/runs/{run_id}/explain": OF_RUN,
    "GET /v1/runs/{run_id}/history": OF_RUN,
    "GET /v1/runs/{run_id}/replay": OF_RUN,
    "GET /v1/runs/{run_id}/forks": OF_RUN,
    "GET /v1/runs/{run_id}/steps": OF_RUN,
    "GET /v1/runs/{run_id}/steps/{number}": OF_RUN,
    "GET /v1/runs/{run_id}/diff": Ask("run_id", query={"other": "run_id"}),
    "POST /v1/runs/{run_id}/fork": Ask("run_id", {"prompt": "mine now", "session_key": "mine"}),
    "GET /v1/runs/{run_id}/story": OF_RUN,
    "GET /v1/runs/{run_id}/rounds/{number}": OF_RUN,
    "GET /v1/ledger": NOTHING,
    "GET /v1/ledger/{entry_id}": Ask("entry_id"),
    "POST /v1/ledger/{entry_id}/settle": Ask("entry_id", {"reason": "mine"}),
    "GET /v1/lanes": NOTHING,
    "PATCH /v1/lanes/{name}": Ask("lane", {"paused": True}),
    "GET /v1/traffic": NOTHING,
    "GET /v1/traffic/events": Ask(query={"follow": "false"}),
    "GET /v1/traffic/history": NOTHING,
    "GET /v1/jobs/{job_id}": Ask("job_id"),
    "POST /v1/jobs/{job_id}/cancel": Ask("job_id"),
    "GET /v1/limits": NOTHING,
    "POST /v1/limits/{key}/close": Ask("lane"),
    "POST /v1/limits/{key}/open": Ask("lane"),
    "GET /v1/tasks": NOTHING,
    "GET /v1/tasks/{task_id}": Ask("task_id"),
    "POST /v1/tasks/claim": Ask(body={"worker": "spy", "limit": 100}),
    "POST /v1/tasks/frames": Ask("task_id", FRAMES),
    "POST /v1/tasks/{task_id}/start": OF_TASK,
    "POST /v1/tasks/{task_id}/heartbeat": OF_TASK,
    "POST /v1/tasks/{task_id}/complete": Ask("task_id", {**PROOF, "result": "mine"}),
    "POST /v1/tasks/{task_id}/fail": Ask("task_id", {**PROOF, "error": "mine"}),
    "POST /v1/tasks/{task_id}/release": OF_TASK,
    "POST /v1/tasks/{task_id}/cancel": Ask("task_id"),
    "GET /v1/workers": NOTHING,
    "GET /v1/workers/{name}": Ask("worker"),
    "GET /v1/dead-letters": NOTHING,
    "GET /v1/dead-letters/{letter_id}": Ask("letter_id"),
    "PATCH /v1/dead-letters/{letter_id}": Ask("letter_id", {"text": "mine now"}),
    "DELETE /v1/dead-letters/{letter_id}": Ask("letter_id"),
    "POST /v1/dead-letters/{letter_id}/retry": Ask("letter_id"),
    "POST /v1/dead-letters/retry": Ask("letter_id", {"ids": [THING]}),
    "POST /v1/dead-letters/purge": Ask("letter_id", {"ids": [THING]}),
    "GET /v1/approvals": NOTHING,
    "GET /v1/approvals/{approval_id}": Ask("approval_id"),
    "POST /v1/approvals/{approval_id}": Ask("approval_id", {"approve": True}),
    "GET /v1/schedules": NOTHING,
    "POST /v1/schedules": Ask(body={"session_key": "own", "text": "hello", "every_ms": 3_600_000}),
    "GET /v1/schedules/{schedule_id}": Ask("schedule_id"),
    "DELETE /v1/schedules/{schedule_id}": Ask("schedule_id"),
    "POST /v1/schedules/preview": Ask(body={"cron": "0 9 * * *"}),
    "PATCH /v1/schedules/{schedule_id}": Ask("schedule_id", {"paused": True}),
    "POST /v1/schedules/{schedule_id}/run": Ask("schedule_id"),
    "GET /v1/budgets": NOTHING,
    "PUT /v1/budgets/{name}": Ask("budget", {"scope": "session", "tokens": 10_000}),
    "PATCH /v1/budgets/{name}": Ask("budget", {"tokens": 10_000}),
    "DELETE /v1/budgets/{name}": Ask("budget"),
    "POST /v1/budgets/{name}/reset": Ask("budget"),
    "GET /v1/usage": Ask(query={"group": "run"}),
    "GET /v1/usage/limits": NOTHING,
    "GET /v1/config": NOTHING,
    "GET /v1/workspaces": NOTHING,
    "GET /v1/tenants": NOTHING,
    "GET /v1/channels": NOTHING,
    "POST /v1/channels/{name}/webhook": Ask("key", {"text": "hello"}),
}

OPEN = {"GET /healthz", "GET /readyz"}
OWN_PROOF = {"POST /v1/channels/{name}/webhook"}  # a signature, not a token
SHARED = {
    "GET /metrics",
    "GET /v1/lanes",
    "GET /v1/traffic",
    "GET /v1/traffic/events",
    "GET /v1/traffic/history",
    "GET /v1/limits",
    "GET /v1/config",
    "GET /v1/tenants",
    "GET /v1/channels",
}
WORK = {route for route in TABLE if route.startswith("POST /v1/tasks/") and not route.endswith("/cancel")}
ADMIN = {"GET /v1/tokens", "POST /v1/tokens", "DELETE /v1/tokens/{token_id}"}
OPERATE = {
    "GET /v1/audit",
    "POST /v1/ledger/{entry_id}/settle",
    "PATCH /v1/lanes/{name}",
    "POST /v1/jobs/{job_id}/cancel",
    "POST /v1/limits/{key}/close",
    "POST /v1/limits/{key}/open",
    "PATCH /v1/dead-letters/{letter_id}",
    "DELETE /v1/dead-letters/{letter_id}",
    "POST /v1/dead-letters/{letter_id}/retry",
    "POST /v1/dead-letters/retry",
    "POST /v1/dead-letters/purge",
    "POST /v1/tasks/{task_id}/cancel",
    "POST /v1/approvals/{approval_id}",
    "POST /v1/schedules",
    "DELETE /v1/schedules/{schedule_id}",
    "PATCH /v1/schedules/{schedule_id}",
    "POST /v1/schedules/{schedule_id}/run",
    "PUT /v1/budgets/{name}",
    "PATCH /v1/budgets/{name}",
    "DELETE /v1/budgets/{name}",
    "POST /v1/budgets/{name}/reset",
    "POST /v1/sessions/{key}/passivate",
    "PUT /v1/sessions/{key}/labels",
    "DELETE /v1/sessions/{key}",
    "POST /v1/sessions/import",
}
OPENAI: dict[str, Any] = {
    "/v1/chat/completions": {
        "model": "laneway",
        "user": KEY,
        "messages": [{"role": "user", "content": "and now?"}],
    },
    "/v1/responses": {"model": "laneway", "conversation": KEY, "input": "and now?"},
}


class Houses:
    """The first tenant with something of everything, and the second, who has all scopes, in its own house."""

    def __init__(self, stage: GatewayStage, app: App) -> None:
        self.stage = stage
        self.app = app
        self.first: dict[str, str] = {}
        self.second: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.lease = ""

    async def fill(self) -> None:
        """Give the first tenant its things."""
        stage, inbox = self.stage, self.stage.gateway.default.inbox
        self.first = await stage.token(*SCOPES, tenant="acme", name=f"{MARK}-token")
        self.second = await stage.token(*SCOPES, tenant="other", name="second")
        mine: dict[str, Any] = {"headers": self.first}
        await stage.send(KEY, f"{MARK} says hello", sender=f"{MARK}-sender", **mine)
        letter = await dead_message(stage, KEY, f"{MARK} is dead", **mine)
        asked = {"model": "laneway", "input": f"{MARK} responds", "store": True}
        response = await body_of(await stage.client.post("/v1/responses", json=asked, headers=self.first))
        await post(stage, f"{KEY}-tasks", f"read {MARK}.txt", **mine)
        await post(stage, KEY, f"run echo {MARK}", **mine)
        waiting = await post(stage, KEY, f"{MARK} waits", **mine)
        entry = await entry_in(stage, Owner("acme", "default", KEY), f"{MARK}-call", LedgerState.UNKNOWN)
        daily = {"session_key": KEY, "text": f"{MARK} news", "cron": "0 9 * * *", "reason": f"{MARK} wants it"}
        schedule = await body_of(await stage.client.post("/v1/schedules", json=daily, headers=self.first), 201)
        desk = stage.gateway.default.host.desk
        await until(lambda: inbox.approvals(tenant="acme") and desk.tasks())
        budget = {"scope": "tenant", "tokens": 10_000_000, "reason": f"{MARK} saves"}
        await body_of(await stage.client.put(f"/v1/budgets/{MARK}-daily", json=budget, headers=self.first))
        guest = Guest(f"{MARK}-token", "acme")
        (lease,) = await stage.gateway.hall.claim(f"{MARK}-worker", about={"host": f"{MARK}-host"}, guest=guest)
        await stage.gateway.hall.start(lease.task["task_id"], lease.token, guest=guest)
        self.lease = lease.token
        runs = await body_of(await stage.client.get(f"/v1/sessions/{KEY}/runs", headers=self.first))
        tokens = [token for token in stage.gateway.tokens.tokens() if token.tenant == "acme"]
        self.ids = {
            "key": KEY,
            "message_id": waiting["message_id"],
            "run_id": runs["items"][-1]["run_id"],
            "letter_id": letter,
            "response_id": response["id"],
            "entry_id": entry,
            "schedule_id": schedule["schedule_id"],
            "task_id": desk.tasks()[0].task_id,
            "worker": f"{MARK}-worker",
            "budget": f"{MARK}-daily",
            "approval_id": inbox.approvals(tenant="acme")[0].id,
            "token_id": tokens[0].id,
            "job_id": next(job.id for job in stage.gateway.lanes.jobs() if MARK in job.label),
            "lane": next(name for name in stage.gateway.lanes.stats().lanes if MARK in name),
        }

    async def ask(self, route: str, ask: Ask, thing: str) -> httpx2.Response:
        """What the second is told by a route about a thing."""
        method, path = route.split(" ")
        if "{" in path:
            path = f"{path[: path.index('{')]}{thing}{path[path.index('}') + 1 :]}".replace("{number}", "1")
        said = json.dumps(ask.body).replace(LEASE, self.lease).replace(THING, thing)
        body, headers = json.loads(said), self.second
        query = {name: self.ids.get(value, value) for name, value in ask.query.items()}
        return await self.stage.client.request(method, path, json=body, params=query, headers=headers)

    def leaks(self, told: str, *said: str) -> list[str]:
        """What of the first tenant is in an answer, apart from what the second has said itself."""
        for each in said:
            told = told.replace(each, "")
        return [each for each in (MARK, "acme", self.lease, *self.ids.values()) if each in told]

    async def state(self) -> str:
        """All that the first tenant sees of its own."""
        pages = [
            f"sessions/{KEY}",
            f"sessions/{KEY}/pending",
            f"sessions/{KEY}/history",
            f"sessions/{KEY}/conversation",
            "ledger",
            "dead-letters",
            "approvals",
            "schedules",
            "budgets",
            "tokens",
            "audit",
            "tasks",
            f"workers/{MARK}-worker",
        ]
        answers = [await self.stage.client.get(f"/v1/{page}", headers=self.first) for page in pages]
        told = [await body_of(each) for each in answers]
        for each in told[1]["items"]:
            each["waited_ms"] = each["reason"] = None  # they tell the time
        told[3]["seq"] = None  # it grows with all that is told
        for each in told[-2]["items"]:
            each["remaining_ms"] = each["lease_left_ms"] = each["heard_ago_ms"] = None
        told[-1]["seen_ago_ms"] = told[-1]["asked_ago_ms"] = None
        return json.dumps(told, sort_keys=True)


@contextlib.asynccontextmanager
async def houses(folder: Path) -> AsyncIterator[Houses]:
    """Two tenants on one server."""
    async with staged(folder, text=TEXT, drain_ms=100) as (stage, app):
        both = Houses(stage, app)
        await both.fill()
        yield both


def routes_of(app: FastAPI) -> set[str]:
    """Every operation of the OpenAPI."""
    return {f"{method.upper()} {path}" for path, found in app.openapi()["paths"].items() for method in found}


def sockets_of() -> set[str]:
    """Every WebSocket, which the OpenAPI does not know."""
    return {f"/v1{route.path}" for router in ROUTERS for route in router.routes if isinstance(route, APIWebSocketRoute)}


async def test_every_route_is_in_the_table(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, app):
        assert isinstance(app, FastAPI)
        assert routes_of(app) == set(TABLE)
        assert sockets_of() == {"/v1/sessions/{key}/socket"}


async def test_the_table_names_things_that_are_there(tmp_path: Path) -> None:
    async with houses(tmp_path) as both:
        both.second = both.first
        reads = [(route, ask) for route, ask in TABLE.items() if ask.known and route.startswith("GET ")]
        for route, ask in reads:
            silent = ("/export", "/forks")  # it is refused while something runs; there are none
            if not route.startswith("GET /v1/models") and not route.endswith(silent):
                answer = await both.ask(route, ask, both.ids[ask.known])
                assert answer.status_code == 200, route
                assert both.leaks(answer.text) != [], route


@pytest.mark.slow
async def test_no_route_tells_a_tenant_anything_of_another(tmp_path: Path) -> None:
    async with houses(tmp_path) as both:
        before = await both.state()
        for route, ask in TABLE.items():
            if ask is ELSEWHERE:
                continue
            thing = both.ids.get(ask.known, "")
            said = [each for each in (thing, KEY) if each and each in f"{thing} {json.dumps(ask.body)}"]
            answer = await both.ask(route, ask, thing)
            assert answer.status_code < 500, (route, answer.text)
            assert both.leaks(answer.text, *said) == [], (route, answer.text)
            if ask.known:
                made_up = await both.ask(route, ask, "m" * len(thing))
                assert answer.status_code == made_up.status_code, (route, answer.text, made_up.text)
                assert answer.text.replace(thing, "m" * len(thing)) == made_up.text, route
        assert await both.state() == before


async def test_no_filter_tells_a_tenant_anything_of_another(tmp_path: Path) -> None:
    async with houses(tmp_path) as both:
        for path in ("/v1/ledger", "/v1/tasks", "/v1/approvals", "/v1/schedules"):
            told = [
                (await both.stage.client.get(path, params={"session": key}, headers=both.second)).text
                for key in (KEY, "never-was")
            ]
            assert told[0].replace(KEY, "never-was") == told[1]
        filters = {"lane": "query", "tool": "read", "worker": f"{MARK}-worker", "state": "started"}
        told = [
            (await both.stage.client.get("/v1/tasks", params={name: value}, headers=both.second)).text
            for name, value in filters.items()
        ]
        assert set(told) == {'{"items":[],"next":null}'}
        for path in ("/v1/sessions", "/v1/ledger", "/v1/dead-letters", "/v1/audit", "/v1/tokens", "/v1/workers"):
            answer = await both.stage.client.get(path, headers={**both.second, "Laneway-Tenant": "acme"})
            assert both.leaks(answer.text) == [], path


async def test_no_operator_ends_the_task_of_another_tenant(tmp_path: Path) -> None:
    async with houses(tmp_path) as both:
        before, task = await both.state(), both.ids["task_id"]
        for step, said in (("complete", {"result": "mine"}), ("fail", {"error": "mine"})):
            told = [
                await both.stage.client.post(f"/v1/tasks/{each}/{step}", json=said, headers=both.second)
                for each in (task, "never-was")
            ]
            assert [each.status_code for each in told] == [404, 404]
            assert told[0].text.replace(task, "never-was") == told[1].text
        assert await both.state() == before


async def test_nobody_compares_a_run_with_that_of_another_tenant(tmp_path: Path) -> None:
    async with houses(tmp_path) as both:
        client = both.stage.client
        await both.stage.send("own", "hello", headers=both.second)
        runs = await body_of(await client.get("/v1/sessions/own/runs", headers=both.second))
        own, theirs = runs["items"][0]["run_id"], both.ids["run_id"]
        told = [
            await client.get(f"/v1/runs/{own}/diff?other={other}", headers=both.second)
            for other in (theirs, "never-was")
        ]
        assert [each.status_code for each in told] == [404, 404]
        assert told[0].text.replace(theirs, "never-was") == told[1].text
        back = await client.get(f"/v1/runs/{theirs}/diff?other={own}", headers=both.second)
        assert back.status_code == 404
        assert both.leaks(back.text, theirs) == []


async def test_a_session_of_the_same_key_is_another_session(tmp_path: Path) -> None:
    async with houses(tmp_path) as both:
        before = await both.state()
        for text in ("what was said?", "/status", "/queue list", f"/approve {both.ids['approval_id']}", "/stop"):
            sent = await post(both.stage, KEY, text, headers=both.second)
            final = await both.stage.gateway.default.inbox.wait(sent["message_id"])
            assert both.leaks(f"{sent} {final}", *text.split(), KEY) == [], text
        for path, asked in OPENAI.items():
            answer = await both.stage.client.post(path, json=asked, headers=both.second)
            assert answer.status_code == 200
            assert "You said: and now?" in answer.text
            assert both.leaks(answer.text, KEY) == [], path
        history = await both.stage.client.get(f"/v1/sessions/{KEY}/history", headers=both.second)
        said = ["what was said?", "and now?", "and now?"]
        assert [each["text"] for each in history.json()["items"] if each["role"] == "user"] == said
        assert both.leaks(history.text, KEY) == []
        cancelled = await post(both.stage, KEY, f"/queue cancel {both.ids['message_id']}", headers=both.second)
        assert both.leaks(str(cancelled), both.ids["message_id"]) == []
        assert await both.state() == before


async def test_no_stream_tells_a_tenant_anything_of_another(tmp_path: Path) -> None:
    paths = ("/v1/events?replay=all", f"/v1/sessions/{KEY}/events?replay=all", "/v1/sessions/own/events")
    async with houses(tmp_path) as both, contextlib.AsyncExitStack() as opened:
        ears = [await opened.enter_async_context(listening(both.app, path, both.second)) for path in paths]
        talks = [
            await opened.enter_async_context(talking(both.app, f"/v1/sessions/{KEY}/socket{query}", both.second))
            for query in ("", "?replay=all", "?last_event_id=1")
        ]
        await both.stage.send(f"{KEY}-2", f"{MARK} once more", headers=both.first)
        await post(both.stage, KEY, f"{MARK} again", headers=both.first)
        talks[0].say({"type": "cancel"})
        talks[0].say({"type": "message", "text": f"/approve {both.ids['approval_id']}"})
        accepted = await talks[0].next("accepted")
        assert both.leaks(str(accepted), both.ids["approval_id"], KEY) == []
        await both.stage.send("own", "hello", headers=both.second)
        await ears[0].next("turn.ended")
        for told in (*[ear.raw.decode() for ear in ears], *[str(talk.said) for talk in talks]):
            assert both.leaks(told, both.ids["approval_id"], KEY) == []
        assert both.stage.gateway.default.inbox.approvals(tenant="acme")[0].id == both.ids["approval_id"]


async def statuses(both: Houses, headers: dict[str, str]) -> dict[str, int]:
    """What each route says to a caller about things of the first tenant."""
    both.second = headers
    asked = [(route, ask) for route, ask in TABLE.items() if route not in OPEN | OWN_PROOF and ask is not ELSEWHERE]
    return {route: (await both.ask(route, ask, both.ids.get(ask.known, ""))).status_code for route, ask in asked}


@pytest.mark.slow
async def test_every_route_asks_for_a_token_and_for_its_scope(tmp_path: Path) -> None:
    async with houses(tmp_path) as both:
        before = await both.state()
        assert set((await statuses(both, {})).values()) == {401}
        assert set((await statuses(both, {"Authorization": "Bearer lw_0_0"})).values()) == {401}
        worker = await statuses(both, await both.stage.token("worker", tenant="other"))
        assert {route for route, status in worker.items() if status != 403} == WORK
        other = await statuses(both, await both.stage.token("chat", tenant="other"))
        assert {route for route, status in other.items() if status == 403} == OPERATE | SHARED | ADMIN | WORK
        operator = await statuses(both, await both.stage.token("operate", tenant="other"))
        changed = {route for route in OPERATE if route.split("/")[2] in ("lanes", "limits")}
        assert {route for route, status in operator.items() if status == 403} == SHARED | ADMIN | WORK | changed
        assert await both.state() == before
