"""The routes of schedules: what becomes of them, changes, a pause, a message beside their times, a look ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import UNKNOWN, body_of, busy, refusal

HOUR = 3_600_000


async def add(stage: GatewayStage, **more: Any) -> dict[str, Any]:
    """A schedule; it is due in an hour unless more is said."""
    body: dict[str, Any] = {"session_key": "daily", "text": "What is new?", **more}
    if not body.keys() & {"cron", "at_ms"}:
        body.setdefault("every_ms", HOUR)
    found = await body_of(await stage.client.post("/v1/schedules", json=body, headers=stage.operator()), 201)
    return dict(found)


async def actions(stage: GatewayStage) -> list[tuple[str, str]]:
    """What was done, and why."""
    return [(each.action, each.reason) for each in await stage.gateway.audit.entries("default")]


async def test_a_schedule_is_paused_changed_and_goes_on(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        added = await add(stage)
        assert (added["paused"], added["last_ms"], added["last_message_id"]) == (False, None, None)
        path, operator = f"/v1/schedules/{added['schedule_id']}", stage.operator()
        said = {"paused": True, "reason": "holidays"}
        assert (await body_of(await stage.client.patch(path, json=said, headers=operator)))["paused"] is True
        said = {"cron": "0 8 * * *", "timezone": "Europe/Berlin", "text": "News?", "paused": False}
        changed = await body_of(await stage.client.patch(path, json=said, headers=operator))
        assert (changed["cron"], changed["every_ms"], changed["text"]) == ("0 8 * * *", None, "News?")
        assert (await body_of(await stage.client.get(path)))["timezone"] == "Europe/Berlin"
        assert await actions(stage) == [
            ("schedule.add", ""),
            ("schedule.change", "holidays"),
            ("schedule.change", ""),
        ]


async def test_a_schedule_is_sent_now_and_its_result_is_shown(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        added = await add(stage)
        path = f"/v1/schedules/{added['schedule_id']}"
        sent = await body_of(await stage.client.post(f"{path}/run", headers=stage.operator()), 202)
        await stage.gateway.default.inbox.wait(sent["message_id"])
        (listed,) = (await body_of(await stage.client.get("/v1/schedules")))["items"]
        assert (listed["last_message_id"], listed["last_outcome"]) == (sent["message_id"], "succeeded")
        assert listed["last_disposition"] == "ran"
        assert listed["last_run_id"]
        assert listed["next_ms"] == added["next_ms"]
        message = await body_of(await stage.client.get(f"/v1/messages/{sent['message_id']}"))
        assert "What is new?" in message["text"]
        assert await actions(stage) == [("schedule.add", ""), ("schedule.run", "")]


async def test_a_second_message_of_a_schedule_waits_for_the_first(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        added = await add(stage, session_key="s1")
        path = f"/v1/schedules/{added['schedule_id']}/run"
        await body_of(await stage.client.post(path, headers=stage.operator()), 202)
        assert refusal(await stage.client.post(path, headers=stage.operator())) == (409, "conflict")
        assert await actions(stage) == [("schedule.add", ""), ("schedule.run", "")]


@pytest.mark.parametrize(
    ("body", "setting"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "every day"}, "cron"),
        ({"cron": "0 9 * * *", "timezone": "Berlin"}, "timezone"),
        ({"every_ms": 5}, "every_ms"),
        ({"at_ms": 1_700_000_000}, "at_ms"),
        ({"cron": "0 9 * * *", "every_ms": HOUR}, "schedule"),
    ],
)
async def test_what_is_wrong_names_the_setting_and_leaves_no_trace(
    tmp_path: Path, body: dict[str, Any], setting: str
) -> None:
    async with gateway_stage(tmp_path) as stage:
        added = await add(stage)
        answers = [await stage.client.post("/v1/schedules/preview", json=body)]
        if setting != "schedule":
            path, operator = f"/v1/schedules/{added['schedule_id']}", stage.operator()
            new = {"session_key": "daily", "text": "x", **body}
            answers.append(await stage.client.post("/v1/schedules", json=new, headers=operator))
            answers.append(await stage.client.patch(path, json=body, headers=operator))
        for answer in answers:
            assert refusal(answer) == (400, "config")
            assert answer.json()["setting"] == setting
        assert await actions(stage) == [("schedule.add", "")]


async def test_the_next_times_are_shown_while_somebody_types(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        said = {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}
        found = await body_of(await stage.client.post("/v1/schedules/preview", json=said))
        assert len(found["times"]) == 5
        assert found["times"] == sorted(found["times"])
        assert found["times"][0] > found["now_ms"]
        two = await body_of(await stage.client.post("/v1/schedules/preview", json={"every_ms": HOUR, "count": 2}))
        assert two["times"] == [two["now_ms"] + HOUR, two["now_ms"] + 2 * HOUR]


@pytest.mark.parametrize("body", [{}, {"reason": "x"}, {"cron": "0 9 * * *", "at_ms": 1}, {"text": ""}, {"odd": 1}])
async def test_a_change_of_a_schedule_that_says_nothing_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with gateway_stage(tmp_path) as stage:
        added = await add(stage)
        path = f"/v1/schedules/{added['schedule_id']}"
        assert refusal(await stage.client.patch(path, json=body, headers=stage.operator()))[0] == 422
        assert (await body_of(await stage.client.get(path))) == added


async def test_only_operators_of_the_tenant_change_a_schedule(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        added = await add(stage)
        chat, other = await stage.token("chat"), await stage.token("operate", tenant="other")
        for name, status in ((added["schedule_id"], 403), (UNKNOWN, 403)):
            path = f"/v1/schedules/{name}"
            assert refusal(await stage.client.patch(path, json={"paused": True}, headers=chat))[0] == status
            assert refusal(await stage.client.post(f"{path}/run", headers=chat))[0] == status
            assert refusal(await stage.client.patch(path, json={"paused": True}, headers=other))[0] == 404
            assert refusal(await stage.client.post(f"{path}/run", headers=other))[0] == 404
