"""The routes of workers: who may, whose tasks, what is refused, and that what is refused changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from laneway.external import ExternalTaskResult, Lease
from laneway.gateway.access import Scope
from laneway.gateway.routes.task_work import FRAMES_MAX, _while_there
from laneway.kernel.task_entries import TaskOrder
from laneway.records import Effect
from laneway.rows import Owner
from laneway.runtime.task_desk import TaskDesk
from laneway.runtime.worker_book import FIRST_MAX
from laneway.stores.memory import MemoryStore
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import body_of, refusal

STEPS = ("start", "heartbeat", "complete", "fail", "release")
BODIES: dict[str, dict[str, Any]] = {
    "claim": {"worker": "w"},
    "frames": {"frames": []},
    "start": {"token": "x"},
    "heartbeat": {"token": "x"},
    "complete": {"token": "x"},
    "fail": {"token": "x", "error": "no"},
    "release": {"token": "x"},
}


class Floor:
    """A gateway with tasks, and a worker that asks it."""

    def __init__(self, stage: GatewayStage) -> None:
        self.stage = stage
        self.desk: TaskDesk = stage.gateway.default.host.desk
        self.worker = self.token(Scope.WORKER)

    def token(self, *scopes: Scope, tenant: str = "default", name: str = "fleet") -> dict[str, str]:
        """The headers of a token that is not kept."""
        secret = self.stage.gateway.tokens.create_for_now(name, scopes, tenant=tenant)
        return {"Authorization": f"Bearer {secret}"}

    async def put(self, task_id: str, effect: str = "read", *, tenant: str = "default", **facts: Any) -> None:
        """A task that waits."""
        order: dict[str, Any] = {
            "lane": "execute",
            "command_type": "bash",
            "payload": {"command": "ls"},
            "timeout_ms": 60_000,
            "lease_ms": 30_000,
            "key": f"key-{task_id}",
            **facts,
        }
        owner = Owner(tenant, "default", "s")
        await self.desk.post(TaskOrder(task_id=task_id, owner=owner, effect=Effect(effect), **order))

    async def state(self, task_id: str) -> str:
        entry = await self.desk.find(task_id)
        return entry.state.value if entry is not None else "nothing"

    async def ask(self, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx2.Response:
        return await self.stage.client.post(f"/v1/tasks/{path}", json=body, headers=headers or self.worker)

    async def claim(self, headers: dict[str, str] | None = None, **wanted: Any) -> list[dict[str, Any]]:
        answer = await self.ask("claim", {"worker": "w", **wanted}, headers)
        leases: list[dict[str, Any]] = (await body_of(answer))["leases"]
        return leases

    async def taken(self, task_id: str, effect: str = "read", **facts: Any) -> str:
        """A task that the worker has begun; the token of its lease."""
        await self.put(task_id, effect, **facts)
        [lease] = await self.claim()
        assert (await self.ask(f"{task_id}/start", {"token": lease["token"]})).json() == {}
        return str(lease["token"])

    async def frames(self, *frames: Any) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = (await body_of(await self.ask("frames", {"frames": frames})))["answers"]
        return answers


@contextlib.asynccontextmanager
async def floor(folder: Path, **options: Any) -> AsyncIterator[Floor]:
    async with gateway_stage(folder, store=MemoryStore(), **options) as stage:
        yield Floor(stage)


# ---- a task goes its way ----


async def test_a_task_goes_its_way_by_a_route_for_each_step(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1", "write")
        [lease] = await here.claim(lanes=["execute"], commands=["bash"], labels=["gpu"], limit=3, wait_ms=100)
        assert (lease["task"]["task_id"], lease["task"]["payload"]) == ("t1", {"command": "ls"})
        assert lease["lease_ms"] == 30_000
        token = {"token": lease["token"]}
        assert await here.state("t1") == "leased"
        assert await body_of(await here.ask("t1/start", token)) == {}
        assert await here.state("t1") == "started"
        for sign in (None, {}, {"text": "half"}, {"text": "half", "percent": 50}, {"percent": 99.5}):
            answer = await here.ask("t1/heartbeat", {**token, "progress": sign})
            assert await body_of(answer) == {"wanted": True}
        for _ in range(2):  # saying it twice is saying it once
            answer = await here.ask("t1/complete", {**token, "result": {"output": "done", "exit_code": 0}})
            assert await body_of(answer) == {"accepted": True}
        end = await here.desk.outcome("t1")
        assert end.result == ExternalTaskResult(result={"output": "done", "exit_code": 0})
        assert await here.claim() == []


async def test_a_task_that_failed_says_why(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1")
        answer = await here.ask("t1/fail", {"token": token, "error": "no such file", "result": [1]})
        assert await body_of(answer) == {"accepted": True}
        end = await here.desk.outcome("t1")
        assert end.result == ExternalTaskResult(success=False, error="no such file", result=[1])


async def test_a_task_that_is_given_back_waits_for_another(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1")
        [lease] = await here.claim()
        back = {"token": lease["token"], "reason": "on second thought"}
        assert await body_of(await here.ask("t1/release", back)) == {}
        assert await body_of(await here.ask("t1/release", back)) == {}  # it is gone already
        assert await here.state("t1") == "pending"
        [lease] = await here.claim()
        await here.ask("t1/start", {"token": lease["token"]})
        assert refusal(await here.ask("t1/release", {"token": lease["token"]})) == (409, "conflict")
        assert await body_of(await here.ask("t1/release", {"token": lease["token"], "begun": True})) == {}
        assert await here.state("t1") == "pending"


async def test_a_write_that_had_begun_and_is_given_back_is_unknown(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        assert await body_of(await here.ask("t1/release", {"token": token, "begun": True})) == {}
        assert await here.state("t1") == "unknown"
        assert await here.claim() == []


async def test_a_claim_waits_for_a_task_and_comes_back_without_one(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        assert await here.claim(wait_ms=1) == []
        waiting = await waits(here, here.worker)
        await here.put("t1")
        [lease] = (await waiting).json()["leases"]
        assert lease["task"]["task_id"] == "t1"


async def test_frames_are_answered_in_their_order_each_by_itself(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        for name in ("t1", "t2"):
            await here.put(name, "write")
        [answer] = await here.frames({"v": 1, "id": 1, "op": "claim", "worker": "w", "limit": 2})
        assert answer["ok"] is True
        tokens = {lease["task"]["task_id"]: lease["token"] for lease in answer["leases"]}
        started = await here.frames(
            {"v": 1, "id": 2, "op": "start", "task_id": "t2", "token": tokens["t2"]},
            {"v": 1, "id": 3, "op": "start", "task_id": "t1", "token": "forged"},
            {"v": 2, "id": 4},
            "nonsense",
            {"v": 1, "id": 5, "op": "start", "task_id": "t1", "token": tokens["t1"]},
        )
        assert [each["id"] for each in started] == [2, 3, 0, 0, 5]
        assert [each["ok"] for each in started] == [True, False, False, False, True]
        assert started[1]["error"]["code"] == "lease_lost"
        assert [await here.state(name) for name in tokens] == ["started", "started"]
        done = {"success": True, "result": "x"}
        ended = await here.frames(
            *(
                {"v": 1, "id": 6, "op": "complete", "task_id": name, "token": tokens[name], "result": done}
                for name in tokens
            )
        )
        assert [each["accepted"] for each in ended] == [True, True]
        assert await here.frames() == []


# ---- who may ----


@pytest.mark.parametrize("step", BODIES)
async def test_only_a_token_for_workers_opens_the_routes_of_workers(tmp_path: Path, step: str) -> None:
    async with floor(tmp_path) as here:
        path = f"t1/{step}" if step in STEPS else step
        await here.put("t1")
        assert refusal(await here.stage.client.post(f"/v1/tasks/{path}", json=BODIES[step])) == (
            401,
            "not_authenticated",
        )
        wrong = {"Authorization": "Bearer lw_nobody_nothing"}
        assert refusal(await here.ask(path, BODIES[step], wrong)) == (401, "not_authenticated")
        for scope in (Scope.CHAT, Scope.OPERATE, Scope.ADMIN):
            answer = await here.ask(path, BODIES[step], here.token(scope))
            assert refusal(answer) == (403, "permission_denied")
            assert answer.json()["right"] == "worker"
        assert await here.state("t1") == "pending"


async def test_a_worker_may_not_look_around(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        for path in ("/v1/sessions", "/v1/tasks", "/v1/tokens", "/v1/lanes"):
            assert (await here.stage.client.get(path, headers=here.worker)).status_code == 403
        answer = await here.stage.client.post("/v1/sessions/s/messages", json={"text": "x"}, headers=here.worker)
        assert answer.status_code == 403


async def test_a_worker_gets_tasks_of_its_own_tenant_only(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        for tenant in ("acme", "other"):
            await here.put(f"of-{tenant}", tenant=tenant)
        acme, everybody = here.token(Scope.WORKER, tenant="acme"), here.token(Scope.WORKER, tenant="*")
        assert await here.claim(limit=9) == []
        for headers in (acme, {**everybody, "Laneway-Tenant": "acme"}):
            [lease] = await here.claim(headers, limit=9)
            assert lease["task"]["task_id"] == "of-acme"
            await here.ask("of-acme/release", {"token": lease["token"]}, headers)
        names = {lease["task"]["task_id"] for lease in await here.claim(everybody, limit=9)}
        assert names == {"of-acme", "of-other"}
        assert await here.claim({**everybody, "Laneway-Tenant": ""}, limit=9) == []  # they have them all
        assert (await here.ask("claim", {"worker": "w"}, {**acme, "Laneway-Tenant": "other"})).status_code == 403


@pytest.mark.parametrize("step", STEPS)
async def test_the_task_of_another_tenant_is_answered_as_one_that_is_not_there(tmp_path: Path, step: str) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("secret", "write")
        stranger = here.token(Scope.WORKER, tenant="acme")
        body = {**BODIES[step], "token": token}
        seen = [await here.ask(f"{name}/{step}", body, stranger) for name in ("secret", "nobody")]
        assert seen[0].status_code == seen[1].status_code == (200 if step == "release" else 409)
        assert seen[0].text.replace("secret", "nobody") == seen[1].text
        assert await here.state("secret") == "started"
        assert (await here.ask("secret/complete", {"token": token})).status_code == 200


# ---- what nobody may ----


@pytest.mark.parametrize("step", STEPS)
async def test_a_forged_token_changes_nothing(tmp_path: Path, step: str) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        for forged in ("", "x", token[:-1], f"{token} ", token.upper() + "x", "x" * 200):
            answer = await here.ask(f"t1/{step}", {**BODIES[step], "token": forged})
            if step == "release":
                assert answer.json() == {}
            else:
                assert refusal(answer) == (409, "lease_lost")
        assert await here.state("t1") == "started"


FORGED = ("nobody", "t1%20", "T1", "t1%00", "%F0%9F%98%80", "x" * 5_000, "claim", "frames")


@pytest.mark.parametrize("step", STEPS)
async def test_a_forged_id_changes_nothing(tmp_path: Path, step: str) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        for name in FORGED:
            answer = await here.ask(f"{name}/{step}", {**BODIES[step], "token": token})
            assert answer.status_code in ({200, 400} if step == "release" else {400, 409})
            assert await here.state("t1") == "started"


async def test_what_is_said_after_the_end_changes_nothing(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        proof = {"token": token}
        await here.ask("t1/complete", {**proof, "result": "first"})
        late = await here.ask("t1/heartbeat", proof)
        assert late.status_code == 409 or late.json() == {"wanted": False}
        assert refusal(await here.ask("t1/start", proof)) == (409, "lease_lost")
        assert (await here.ask("t1/release", {**proof, "begun": True})).status_code in (200, 409)
        answer = await here.ask("t1/complete", {**proof, "result": "second"})
        assert answer.status_code in (200, 409)
        end = await here.desk.outcome("t1")
        assert (end.state.value, end.result) == ("completed", ExternalTaskResult(result="first"))


async def test_two_workers_of_one_name_have_their_own_tasks(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        for name in ("t1", "t2"):
            await here.put(name, "write")
        [one] = await here.claim(about={"instance": "a"})
        [two] = await here.claim(about={"instance": "b"})
        assert one["token"] != two["token"]
        wrong = await here.ask("t1/start", {"token": two["token"]})
        assert refusal(wrong) == (409, "lease_lost")
        for name, lease in (("t1", one), ("t2", two)):
            assert lease["task"]["task_id"] == name
            assert (await here.ask(f"{name}/start", {"token": lease["token"]})).status_code == 200


async def test_a_task_that_nobody_can_do_waits_and_is_given_to_nobody(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1", command_type="fly")
        assert await here.claim(commands=["bash", "read"], limit=9) == []
        assert await here.claim(lanes=["query"], limit=9) == []
        assert await here.state("t1") == "pending"


@pytest.mark.slow
async def test_claims_in_a_request_with_others_do_not_wait_and_are_not_many(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        claim = {"v": 1, "id": 1, "op": "claim", "worker": "w"}
        for wrong in ([{**claim, "wait_ms": 5_000}, claim], [claim, {**claim, "worker": "w2"}]):
            answer = await here.ask("frames", {"frames": wrong})
            assert (answer.status_code, "goes alone" in answer.text) == (400, True)
        assert here.stage.gateway.hall.workers() == []


async def test_a_worker_that_claims_everything_gets_a_bounded_part(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        for number in range(1_100):
            await here.put(f"t{number}")
        held = 0
        for _ in range(12):
            answer = await here.ask("claim", {"worker": "greedy", "limit": 1_000})
            held += len(answer.json().get("leases", ()))
        assert held == FIRST_MAX  # it has never begun anything
        assert await here.claim(limit=1) != []  # others are not disturbed


# ---- what makes no sense ----

LONG = "x" * 201


WRONG_CLAIMS: list[dict[str, Any]] = [
    {"worker": None},
    {"worker": ""},
    {"worker": LONG},
    {"worker": 7},
    {"v": 2},
    {"v": "1"},
    {"v": None},
    {"lanes": "execute"},
    {"lanes": [7]},
    {"lanes": [LONG]},
    {"lanes": [""]},
    {"lanes": None},
    {"lanes": ["x"] * 1_001},
    {"commands": {"bash": 1}},
    {"commands": ["x"] * 1_001},
    {"labels": "gpu"},
    {"labels": [["gpu"]]},
    {"labels": ["x"] * 1_001},
    {"workspaces": "default"},
    {"workspaces": [LONG]},
    {"limit": 0},
    {"limit": 1_001},
    {"limit": "1"},
    {"limit": True},
    {"limit": 1.5},
    {"limit": None},
    {"limit": 10**30},
    {"wait_ms": -1},
    {"wait_ms": 60_001},
    {"wait_ms": "1000"},
    {"wait_ms": 0.5},
    {"lease_ms": 0},
    {"lease_ms": 3_600_001},
    {"lease_ms": "1"},
    {"about": "me"},
    {"about": {"host": LONG}},
    {"about": {"pid": "1"}},
    {"about": {"concurrency": -1}},
    {"about": {"secret": "x"}},
    {"now_ms": 1},
    {"tenant": "acme"},
]


@pytest.mark.slow
async def test_a_claim_that_does_not_fit_is_refused_and_takes_nothing(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1")
        for wrong in WRONG_CLAIMS:
            answer = await here.ask("claim", {"worker": "w", "limit": 1, **wrong})
            assert refusal(answer) == (422, "invalid_request"), wrong
            assert next(iter(wrong)) in answer.json()["detail"]
            assert await here.state("t1") == "pending"
        assert here.stage.gateway.hall.workers() == []


SENSE: tuple[tuple[dict[str, Any], int], ...] = (
    ({"workspaces": ["nowhere"]}, 400),
    ({"labels": ["no spaces\n"]}, 400),
    ({"about": {}}, 200),
    ({"about": None}, 200),
    ({"lease_ms": None}, 200),
    ({"about": {"instance": "i", "concurrency": 4, "version": "1", "host": "h", "pid": 7}}, 200),
    ({"v": 1, "lease_ms": 3_600_000}, 200),
    ({"workspaces": ["default"]}, 200),
)


async def test_what_a_claim_may_say(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        for wanted, status in SENSE:
            answer = await here.ask("claim", {"worker": "w", **wanted})
            assert answer.status_code == status, answer.text


WRONG_STEPS: list[tuple[str, dict[str, Any]]] = [
    *((step, {"token": 7}) for step in STEPS),
    *((step, {"token": LONG}) for step in STEPS),
    *((step, {"strange": 1}) for step in STEPS),
    ("start", {"token": None}),
    ("heartbeat", {"token": None}),
    ("heartbeat", {"progress": "half"}),
    ("heartbeat", {"progress": {"percent": 101}}),
    ("heartbeat", {"progress": {"percent": -1}}),
    ("heartbeat", {"progress": {"percent": "50"}}),
    ("heartbeat", {"progress": {"percent": True}}),
    ("heartbeat", {"progress": {"text": 7}}),
    ("heartbeat", {"progress": {"text": "x" * 10_001}}),
    ("heartbeat", {"progress": {"more": 7}}),
    ("fail", {"error": ""}),
    ("fail", {"error": 7}),
    ("fail", {"error": None}),
    ("release", {"begun": "yes"}),
    ("release", {"begun": 1}),
    ("release", {"reason": 7}),
    ("release", {"reason": "x" * 2_001}),
    ("complete", {"reason": "x" * 2_001}),
    ("complete", {"success": False}),
]


@pytest.mark.slow
async def test_a_step_that_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        for step, wrong in WRONG_STEPS:
            answer = await here.ask(f"t1/{step}", {**BODIES[step], "token": token, **wrong})
            assert refusal(answer) == (422, "invalid_request"), wrong
            assert next(iter(wrong)) in answer.json()["detail"]
            assert await here.state("t1") == "started"


GARBAGE = (b"", b"{", b"<html>", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000)


@pytest.mark.parametrize("path", ["claim", "frames", "t1/start", "t1/heartbeat", "t1/complete", "t1/fail"])
async def test_what_is_no_json_is_refused_and_changes_nothing(tmp_path: Path, path: str) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1", "write")
        headers = {**here.worker, "Content-Type": "application/json"}
        for garbage in GARBAGE:
            answer = await here.stage.client.post(f"/v1/tasks/{path}", content=garbage, headers=headers)
            assert refusal(answer)[0] in (400, 422), garbage[:20]
        assert await here.state("t1") == "pending"


@pytest.mark.parametrize("text", ["NaN", '{"a": [1, -Infinity]}', "1e999"])
async def test_numbers_that_are_no_json_are_no_result(tmp_path: Path, text: str) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        headers = {**here.worker, "Content-Type": "application/json"}
        frame = json.dumps({"v": 1, "id": 1, "op": "complete", "task_id": "t1", "token": token})
        frame = f'{frame[:-1]}, "result": {{"success": true, "result": {text}}}}}'
        for path, content in (
            ("t1/complete", f'{{"token": "{token}", "result": {text}}}'),
            ("frames", f'{{"frames": [{frame}]}}'),
        ):
            answer = await here.stage.client.post(f"/v1/tasks/{path}", content=content, headers=headers)
            is_refused = answer.status_code == 200 and answer.json()["answers"][0]["ok"] is False
            assert is_refused or refusal(answer)[0] == 400, answer.text
        assert await here.state("t1") == "started"


async def test_frames_that_are_no_list_or_too_many_are_refused(tmp_path: Path) -> None:
    many: Any = {"frames": [{}] * (FRAMES_MAX + 1)}
    body: Any
    async with floor(tmp_path) as here:
        for body in ([], "x", 7, {}, {"frames": None}, {"frames": {}}, {"frames": "x"}, many):
            assert refusal(await here.ask("frames", body)) == (422, "invalid_request")


async def test_ten_thousand_frames_are_refused_at_once(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        frame = {"v": 1, "id": 1, "op": "release", "task_id": "t1", "token": token, "begun": True}
        answer = await here.ask("frames", {"frames": [frame] * 10_000})
        assert refusal(answer) == (422, "invalid_request")
        assert "at most 500" in answer.json()["detail"]
        assert await here.state("t1") == "started"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["t1/complete", "frames"])
async def test_a_result_that_is_larger_than_results_may_be_is_refused(tmp_path: Path, path: str) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        large = "x" * 10_000_001
        step = {"token": token, "result": large}
        frame = {"v": 1, "id": 1, "op": "complete", "task_id": "t1", "token": token, "result": {"success": True}}
        frame["result"] = {"success": True, "result": large}
        answer = await here.ask(path, step if path != "frames" else {"frames": [frame]})
        said = answer.json()["answers"][0]["error"]["message"] if path == "frames" else answer.json()["detail"]
        assert "10,000,000" in said
        assert await here.state("t1") == "started"


# ---- the word of an operator ----


async def test_an_operator_ends_a_task_without_a_lease_and_that_is_written_down(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        operator = here.token(Scope.OPERATE, name="anna")
        await here.put("t1", "write")
        token = await here.taken("t2", "write") if await here.claim(limit=1) else ""
        done = {"result": {"output": "by hand"}, "reason": "the worker burnt down"}
        assert await body_of(await here.ask("t1/complete", done, operator)) == {"accepted": True}
        assert await body_of(await here.ask("t2/fail", {"error": "no"}, operator)) == {"accepted": True}
        assert (await here.desk.outcome("t1")).result == ExternalTaskResult(result={"output": "by hand"})
        assert await here.state("t2") == "failed"
        entries = await here.stage.gateway.audit.entries("default")
        assert [(each.actor, each.action, each.target, each.reason) for each in entries] == [
            ("anna", "task.complete", "t1", "the worker burnt down"),
            ("anna", "task.fail", "t2", ""),
        ]
        assert refusal(await here.ask("t2/complete", {"token": token})) == (409, "lease_lost")


@pytest.mark.parametrize("step", ["complete", "fail"])
async def test_only_an_operator_ends_a_task_without_a_lease(tmp_path: Path, step: str) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1", "write")
        body = {"error": "no"} if step == "fail" else {"result": "x"}
        assert (await here.stage.client.post(f"/v1/tasks/t1/{step}", json=body)).status_code == 401
        assert refusal(await here.ask(f"t1/{step}", body)) == (403, "permission_denied")
        assert refusal(await here.ask(f"t1/{step}", body, here.token(Scope.CHAT))) == (403, "permission_denied")
        other = here.token(Scope.OPERATE, tenant="acme")
        for name in ("t1", "nobody"):
            assert refusal(await here.ask(f"{name}/{step}", body, other)) == (404, "unknown_task")
        assert await here.state("t1") == "pending"
        assert await here.stage.gateway.audit.entries("default") == []


async def test_an_operator_cannot_change_what_has_ended(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        token = await here.taken("t1", "write")
        await here.ask("t1/complete", {"token": token, "result": "first"})
        answer = await here.ask("t1/fail", {"error": "no"}, here.token(Scope.OPERATE))
        assert refusal(answer) == (409, "conflict")
        assert (await here.desk.outcome("t1")).result == ExternalTaskResult(result="first")


# ---- claims that wait ----


async def waits(here: Floor, headers: dict[str, str]) -> asyncio.Task[httpx2.Response]:
    """A claim that waits."""
    asking = asyncio.ensure_future(here.ask("claim", {"worker": "w", "wait_ms": 60_000}, headers))
    for _ in range(1_000):
        await asyncio.sleep(0)
        if any(record.waiting for record in here.stage.gateway.hall.workers()):
            return asking
    raise AssertionError("it does not wait")


async def test_whose_token_was_revoked_while_it_waited_gets_nothing(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        headers = await here.stage.token(Scope.WORKER)
        claim = await waits(here, headers)
        [token] = [each for each in here.stage.gateway.tokens.tokens() if each.is_kept]
        await here.stage.gateway.tokens.revoke(token.id)
        await here.put("t1", "write")
        assert refusal(await claim) == (401, "not_authenticated")
        assert await here.state("t1") == "pending"


async def test_a_server_that_stops_sends_those_who_wait_home(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        claim = await waits(here, here.worker)
        here.stage.gateway.begin_stop()
        answer = await claim
        assert refusal(answer) == (503, "transport_unavailable")
        assert int(answer.headers["Retry-After"]) >= 1


async def test_a_frame_that_waits_longer_than_a_minute_is_answered_after_one(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        asked: list[int] = []
        hall = here.stage.gateway.hall
        real = hall.claim

        async def noted(worker: str, **wanted: Any) -> list[Lease]:
            asked.append(wanted["wait_ms"])
            return await real(worker, **{**wanted, "wait_ms": 0})

        hall.claim = noted  # type: ignore[method-assign]
        await here.frames({"v": 1, "id": 1, "op": "claim", "worker": "w", "wait_ms": 600_000})
        assert asked == [60_000]


async def test_who_goes_away_while_it_waits_ends_the_wait() -> None:
    ended = asyncio.Event()

    async def claim() -> list[Lease]:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
        return []

    said: list[dict[str, Any]] = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return said.pop(0)

    assert await _while_there(claim(), receive) == ([], True)
    assert ended.is_set()


async def test_who_goes_away_at_the_moment_of_its_answer_is_known_to_be_gone() -> None:
    async def claim() -> list[Lease]:
        return []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    assert await _while_there(claim(), receive) == ([], True)


async def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    async def forever(*_: object) -> Any:
        await asyncio.get_running_loop().create_future()

    before = asyncio.all_tasks()
    waiting = asyncio.ensure_future(_while_there(forever(), forever))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert asyncio.all_tasks() == before
