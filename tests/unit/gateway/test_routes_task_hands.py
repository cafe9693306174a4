"""Tasks as people look at them and take them into their own hands: order, groups, cancelling, taking back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.gateway.access import Scope
from tests.routes_stage import UNKNOWN, body_of, refusal
from tests.unit.gateway.test_routes_task_work import Floor, floor


async def ids(here: Floor, **asked: Any) -> list[str]:
    """The tasks that are listed."""
    headers = here.token(Scope.OPERATE)
    page = await body_of(await here.stage.client.get("/v1/tasks", params=asked, headers=headers))
    return [each["task_id"] for each in page["items"]]


async def operate(here: Floor, path: str, body: Any = None) -> Any:
    """What an operator does to a task."""
    return await here.ask(path, body, here.token(Scope.OPERATE, name="ada"))


async def actions(here: Floor) -> list[tuple[str, str]]:
    """What is in the audit log."""
    return [(each.action, each.reason) for each in await here.stage.gateway.audit.entries("default")]


async def test_tasks_are_listed_by_group_and_newest_first(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        done = await here.taken("t1")
        await here.ask("t1/complete", {"token": done, "result": "x"})
        done = await here.taken("t2")
        await here.ask("t2/fail", {"token": done, "error": "x"})
        await here.taken("t3")
        await here.put("t4")
        await here.put("t5")
        assert await ids(here) == ["t3", "t4", "t5"]
        assert await ids(here, order="newest") == ["t5", "t4", "t3"]
        assert await ids(here, group="waiting", order="newest") == ["t5", "t4"]
        assert await ids(here, group="out") == ["t3"]
        assert await ids(here, group="ended") == ["t1", "t2"]
        assert await ids(here, group="ended", order="newest") == ["t2", "t1"]
        assert await ids(here, group="ended", state="failed") == ["t2"]
        assert await ids(here, group="waiting", state="started") == []
        for group in ("waiting", "ended"):
            params: dict[str, Any] = {"group": group, "order": "newest", "limit": 1}
            headers = here.token(Scope.OPERATE)
            first = await body_of(await here.stage.client.get("/v1/tasks", params=params, headers=headers))
            rest = await ids(here, **params, after=first["next"])
            assert [each["task_id"] for each in first["items"]] + rest == await ids(here, group=group, order="newest")
        answer = await here.stage.client.get("/v1/tasks?group=lost", headers=here.token(Scope.OPERATE))
        assert refusal(answer) == (422, "invalid_request")


async def test_a_task_says_when_its_worker_was_heard_of(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1")
        headers = here.token(Scope.OPERATE)
        found = await body_of(await here.stage.client.get("/v1/tasks/t1", headers=headers))
        assert (found["heard_ago_ms"], found["lease_ms"]) == (None, 30_000)
        [lease] = await here.claim()
        await here.ask("t1/start", {"token": lease["token"]})
        found = await body_of(await here.stage.client.get("/v1/tasks/t1", headers=headers))
        assert 0 <= found["heard_ago_ms"] < 30_000
        assert found["heard_ago_ms"] + found["lease_left_ms"] == found["lease_ms"]


@pytest.mark.parametrize(
    ("effect", "has_begun", "state"),
    [
        ("read", False, "withdrawn"),
        ("read", True, "withdrawn"),
        ("write", False, "withdrawn"),
        ("write", True, "unknown"),
    ],
)
async def test_an_operator_cancels_a_task(tmp_path: Path, effect: str, has_begun: bool, state: str) -> None:
    async with floor(tmp_path) as here:
        if has_begun:
            token = await here.taken("t1", effect)
        else:
            await here.put("t1", effect)
        ended = await body_of(await operate(here, "t1/cancel", {"reason": "nobody needs it"}))
        assert (ended["state"], "nobody needs it" in ended["reason"]) == (state, True)
        assert await actions(here) == [("task.cancel", "nobody needs it")]
        assert refusal(await operate(here, "t1/cancel")) == (409, "conflict")
        if has_begun:
            assert await body_of(await here.ask("t1/heartbeat", {"token": token})) == {"wanted": False}
        assert len(await actions(here)) == 1


async def test_an_operator_takes_a_task_from_its_worker_and_another_gets_it(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1", "write")
        [lease] = await here.claim()
        assert await body_of(await operate(here, "t1/release", {"reason": "it hangs"})) == {}
        assert await here.state("t1") == "pending"
        assert refusal(await here.ask("t1/start", {"token": lease["token"]}))[0] == 409
        [again] = await here.claim()
        assert again["task"]["attempt"] == 1
        await here.ask("t1/start", {"token": again["token"]})
        assert refusal(await operate(here, "t1/release", {})) == (409, "conflict")
        assert await here.state("t1") == "started"
        assert await body_of(await operate(here, "t1/release", {"begun": True})) == {}
        assert await here.state("t1") == "unknown"
        assert [each[0] for each in await actions(here)] == ["task.release"] * 3


async def test_what_may_be_done_again_is_begun_anew_by_another(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.taken("t1", "idempotent")
        assert await body_of(await operate(here, "t1/release", {"begun": True, "reason": "it hangs"})) == {}
        [lease] = await here.claim()
        assert lease["task"]["attempt"] == 2


async def test_only_operators_take_tasks_into_their_hands_and_only_their_own(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.taken("t1")
        other = here.token(Scope.OPERATE, tenant="other")
        body: dict[str, Any] = {}
        for path in ("cancel", "release"):
            for headers in (here.worker, here.token(Scope.CHAT)):
                assert refusal(await here.ask(f"t1/{path}", body, headers))[0] == 403
            assert refusal(await here.ask(f"t1/{path}", body, other))[0] == 404
            assert refusal(await operate(here, f"{UNKNOWN}/{path}", body))[0] == 404
        await here.put("t2")
        assert refusal(await operate(here, "t2/release", {})) == (409, "conflict")
        assert (await here.state("t1"), await here.state("t2")) == ("started", "pending")
        assert await actions(here) == []


async def test_a_worker_that_stops_asking_and_one_that_is_lost_are_told_apart(tmp_path: Path) -> None:
    async with floor(tmp_path) as here:
        await here.put("t1")
        about = {"concurrency": 2, "version": "1"}
        await here.claim(about=about)
        headers = here.token(Scope.OPERATE, tenant="*")
        [found] = (await body_of(await here.stage.client.get("/v1/workers", headers=headers)))["items"]
        assert (found["holds"], found["concurrency"], found["is_lost"]) == (1, 2, False)
        assert found["asked_ago_ms"] is not None
        [record] = here.stage.gateway.hall.workers()
        here.stage.gateway.hall.book.lost(record, had_begun=True)
        record.seen_at -= 1
        [found] = (await body_of(await here.stage.client.get("/v1/workers", headers=headers)))["items"]
        assert (found["is_lost"], found["lost"]) == (True, 1)
        await here.claim(about=about)
        [found] = (await body_of(await here.stage.client.get("/v1/workers", headers=headers)))["items"]
        assert found["is_lost"] is False
