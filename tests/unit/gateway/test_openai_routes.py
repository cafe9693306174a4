"""The routes in OpenAI's shapes, on the application itself: garbage is refused in the shape that its clients read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneway.gateway.openai.errors import error_object, json_bytes
from laneway.gateway.openai.response_objects import message_item, response_object, status_of
from laneway.mail import Final, MessageState, Outcome
from tests.gateway_stage import GatewayStage, gateway_stage

PATHS = ("/v1/chat/completions", "/v1/responses")
CHAT: dict[str, Any] = {"model": "laneway", "messages": [{"role": "user", "content": "hello"}]}


async def refused(stage: GatewayStage, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    """The status and the error of a request that is refused."""
    told = {"Content-Type": "application/json", **headers}
    answer = await stage.client.post(path, content=body, headers=told)
    assert set(answer.json()) == {"error"}, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return answer.status_code, error


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"{}", b'{"model": 1}', b'{"model": "laneway"}', b"\xff\xfe"]
)
async def test_a_body_that_is_none_is_refused_in_the_shape_that_clients_read(
    tmp_path: Path, path: str, body: bytes
) -> None:
    async with gateway_stage(tmp_path) as stage:
        status, error = await refused(stage, path, body)
        assert (status, error["type"]) == (400, "invalid_request_error")
        assert await stage.gateway.default.inbox.sessions() == []


@pytest.mark.parametrize(
    ("more", "headers"),
    [
        ({"user": "a/b"}, {}),
        ({"user": "a~000000000000"}, {}),
        ({"user": "x" * 1000}, {}),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, {}),
        ({"messages": [{"role": "user", "content": "  "}]}, {}),
        ({"messages": [{"role": "user", "content": "x" * 1_000_001}]}, {}),
        ({"messages": []}, {}),
        ({}, {"Idempotency-Key": "k" * 600}),
        ({}, {"Laneway-Session": "a/b"}),
    ],
)
async def test_what_cannot_be_a_message_is_refused_and_nothing_is_kept(
    tmp_path: Path, more: dict[str, Any], headers: dict[str, str]
) -> None:
    async with gateway_stage(tmp_path) as stage:
        status, _ = await refused(stage, PATHS[0], json.dumps({**CHAT, **more}).encode(), **headers)
        assert status == 400
        assert await stage.gateway.default.inbox.sessions() == []


async def test_half_a_surrogate_pair_in_a_name_is_told_and_breaks_nothing(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        status, error = await refused(stage, PATHS[0], b'{"model": "\\ud800", "messages": [{"role": "user"}]}')
        assert (status, error["code"]) == (404, "model_not_found")


async def test_fields_without_effect_are_named_in_a_header(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        body = {**CHAT, "temperature": 1, "seed": 3, "tools": []}
        answer = await stage.client.post(PATHS[0], json=body)
        assert answer.status_code == 200
        assert answer.headers["laneway-ignored"] == "seed, temperature"
        given_ = {"model": "laneway", "input": "x", "instructions": "y", "conversation": "c", "metadata": {"a": "b"}}
        other = await stage.client.post(PATHS[1], json=given_)
        assert other.headers["laneway-ignored"] == "instructions, metadata"
        system = [{"role": "system", "content": "be brief"}, *CHAT["messages"]]
        alone = await stage.client.post(PATHS[0], json={**CHAT, "messages": system})
        session = await stage.client.post(PATHS[0], json={**CHAT, "messages": system, "user": "anna"})
        assert "laneway-ignored" not in alone.headers
        assert session.headers["laneway-ignored"] == "messages.system"


async def test_a_retry_count_that_is_none_is_no_retry(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for count in (b"0", b"00", b"-1", b"x", b"\xb2"):
            headers = [(b"x-stainless-retry-count", count)]
            answer = await stage.client.post(PATHS[0], json=CHAT, headers=headers)
            assert answer.status_code == 200
        assert len(await stage.gateway.default.inbox.sessions()) == 5


async def test_a_response_that_goes_on_in_another_workspace_than_its_model_is_refused(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        first = await stage.client.post(PATHS[1], json={"model": "laneway", "input": "x"})
        again = {"model": "laneway/default", "input": "y", "previous_response_id": first.json()["id"]}
        assert (await stage.client.post(PATHS[1], json=again)).status_code == 200
        unknown = {"model": "laneway", "input": "y", "previous_response_id": "x"}
        answer = await stage.client.post(PATHS[1], json=unknown)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "previous_response_id")


FIELDS = ["model", "messages", "input", "stream", "user", "conversation", "previous_response_id", "n", "text", "tools"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.sampled_from(["laneway", "user", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "role", "content", "type"]), inner)
    ),
    max_leaves=8,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={**dict.fromkeys(FIELDS, VALUES), "model": st.just("laneway") | VALUES, "stream": st.just(False) | VALUES},
)


@pytest.mark.slow
async def test_no_body_is_a_mistake_of_ours(tmp_path: Path) -> None:
    bodies: list[Any] = []

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(body=BODIES)
    def gather(body: Any) -> None:
        bodies.append(body)

    gather()
    async with gateway_stage(tmp_path) as stage:
        statuses = set()
        for path in PATHS:
            for body in bodies:
                answer = await stage.client.post(path, json=body)
                statuses.add(answer.status_code)
                assert answer.status_code < 500, (path, body, answer.text)
        assert 400 in statuses


def test_a_response_is_where_its_message_is() -> None:
    def status(state: str, outcome: str | None = None) -> str:
        end = Final(message_id="m", disposition=MessageState(state), outcome=Outcome(outcome) if outcome else None)
        return status_of(end)

    assert [status(each) for each in ("queued", "parked", "held")] == ["queued"] * 3
    assert [status(each) for each in ("running", "injected")] == ["in_progress"] * 2
    assert [status(each, "succeeded") for each in ("ran", "merged", "steered")] == ["completed"] * 3
    assert status("command") == "completed"
    assert status("ran", "failed") == "failed"
    assert [status("withdrawn"), status("ran", "interrupted")] == ["cancelled"] * 2
    assert status("ran", "unknown") == "incomplete"
    lost = ("superseded", "summarized", "dropped", "expired", "rejected", "dead_lettered")
    assert {status(each) for each in lost} == {"failed"}


def test_errors_have_the_types_that_clients_know() -> None:
    kinds = [error_object(status, None, "x")["type"] for status in (400, 401, 403, 404, 409, 429, 500, 503)]
    assert kinds == [
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "invalid_request_error",
        "conflict_error",
        "rate_limit_error",
        "server_error",
        "server_error",
    ]
    assert json_bytes({"a": "\ud800ä"}) == b'{"a":"\\ud800\xc3\xa4"}'


def test_the_last_item_of_a_response_is_its_answer() -> None:
    items = [message_item("msg-1", index, "x", 2) for index in range(2)]
    assert [each["phase"] for each in items] == ["commentary", "final_answer"]
    made = response_object(
        status="failed", response_id="resp_m", created_at=1, model="laneway", session="s", error="no"
    )
    assert made["error"] == {"code": "server_error", "message": "no"}


@pytest.mark.parametrize("key", [" a ", "ä", "a:b@c.d", "%0d%0a"])
async def test_a_key_goes_into_a_header_only_if_it_can(tmp_path: Path, key: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.post(PATHS[0], json={**CHAT, "user": key})
        assert answer.status_code == 200
        assert answer.headers.get("laneway-session", key) == key
        assert await stage.gateway.default.inbox.sessions() == [key]
