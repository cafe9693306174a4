"""A stream that breaks is taken up again where it was; a message that is sent again is taken once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx2
import pytest

from laneway.cli.client import Target
from laneway.cli.link import LOST, OPEN, Link, Told
from laneway.errors import NotAuthenticatedError, TransportUnavailableError

NO_WAIT = (0.0, 0.0, 0.0)


class Body(httpx2.AsyncByteStream):
    """Some pieces, then the end or a fault."""

    def __init__(self, *pieces: str, fault: bool = False) -> None:
        self.pieces = pieces
        self.fault = fault

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece.encode()
        if self.fault:
            raise httpx2.ReadError("cut")


def stream(*pieces: str, fault: bool = False) -> httpx2.Response:
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    return httpx2.Response(200, headers=headers, stream=Body(*pieces, fault=fault))


def event(name: str, number: int | None = None, **data: Any) -> str:
    mark = f"id: {number}\n" if number is not None else ""
    return f"{mark}event: {name}\ndata: {json.dumps(data)}\n\n"


END = event("close", reason="ended")


def link_to(*answers: httpx2.Response | Exception, seen: list[httpx2.Request] | None = None) -> Link:
    left = list(answers)

    def handler(request: httpx2.Request) -> httpx2.Response:
        if seen is not None:
            seen.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Link(Target(), transport=httpx2.MockTransport(handler), delays_s=NO_WAIT)


async def told_by(link: Link) -> list[Told]:
    async with link, aclosing(link.events("/events")) as events:
        return [told async for told in events]


def names(told: list[Told]) -> list[str]:
    return [each.event for each in told]


async def test_events_come_in_order_until_the_explicit_end() -> None:
    link = link_to(stream("retry: 1000\n\n", event("a", 1, x=1), ": beat\n\n", event("b"), END))
    told = [each for each in await told_by(link) if each.event != "message"]
    assert names(told) == [OPEN, "a", "b"]
    assert (told[1].data, told[1].id) == ({"x": 1}, "1")


async def test_an_event_in_many_pieces_is_one_event() -> None:
    text = event("a", 7, text="über\nzwei Zeilen")
    told = await told_by(link_to(stream(*text, END)))
    assert told[1].data == {"text": "über\nzwei Zeilen"}


@pytest.mark.parametrize("reason", ["stopping", "slow", "closed", "store_unavailable"])
async def test_a_stream_that_ends_for_another_reason_goes_on_after_the_last_stored_event(reason: str) -> None:
    seen: list[httpx2.Request] = []
    first = stream(event("a", 4), event("text_delta"), event("close", reason=reason))
    told = await told_by(link_to(first, stream(event("b", 5), END), seen=seen))
    assert names(told) == [OPEN, "a", "text_delta", LOST, OPEN, "b"]
    assert "last-event-id" not in seen[0].headers
    assert seen[1].headers["last-event-id"] == "4"


async def test_a_stream_that_breaks_before_its_first_event_goes_on_where_it_began() -> None:
    seen: list[httpx2.Request] = []
    told = await told_by(link_to(stream("retry: 1000\nid: 3\n\n", fault=True), stream(event("b", 4), END), seen=seen))
    assert [name for name in names(told) if name != "message"] == [OPEN, LOST, OPEN, "b"]
    assert seen[1].headers["last-event-id"] == "3"


async def test_a_connection_that_is_cut_in_the_middle_of_an_event_loses_nothing() -> None:
    seen: list[httpx2.Request] = []
    half = event("b", 5)[:-2]
    told = await told_by(link_to(stream(event("a", 4), half, fault=True), stream(event("b", 5), END), seen=seen))
    assert names(told) == [OPEN, "a", LOST, OPEN, "b"]
    assert seen[1].headers["last-event-id"] == "4"


async def test_a_server_that_is_away_for_a_while_is_waited_for() -> None:
    away = httpx2.ConnectError("refused")
    busy = httpx2.Response(503, json={"detail": "starting", "code": "unavailable"})
    told = await told_by(link_to(stream(event("a", 1)), away, busy, stream(END)))
    assert names(told) == [OPEN, "a", LOST, LOST, LOST, OPEN]


async def test_a_server_that_stays_away_is_given_up() -> None:
    away = [httpx2.ConnectError("refused") for _ in range(4)]
    with pytest.raises(TransportUnavailableError, match="no server answers"):
        await told_by(link_to(stream(event("a", 1)), *away))


async def test_a_server_that_was_never_there_is_not_waited_for() -> None:
    with pytest.raises(TransportUnavailableError, match="laneway serve"):
        await told_by(link_to(httpx2.ConnectError("refused")))


async def test_a_refusal_ends_a_stream_also_when_it_comes_later() -> None:
    no = httpx2.Response(401, json={"detail": "this token does not count", "code": "not_authenticated"})
    with pytest.raises(NotAuthenticatedError):
        await told_by(link_to(stream(event("a", 1)), no))


async def test_garbage_in_an_event_is_no_fault() -> None:
    told = await told_by(link_to(stream("event: a\ndata: {broken\n\n", "event: b\ndata: [1]\n\n", END)))
    assert [each.data for each in told[1:]] == [{"text": "{broken"}, {"value": [1]}]


def test_both_shapes_of_events_say_what_run_they_are_of() -> None:
    live = Told(event="text_delta", data={"payload": {"text": "x"}, "metadata": {"run_id": "turn-1"}})
    stored = Told(event="turn.ended", data={"turn_id": "turn-2", "state": "succeeded"})
    assert (live.run_id, live.payload) == ("turn-1", {"text": "x"})
    assert (stored.run_id, stored.payload["state"]) == ("turn-2", "succeeded")


async def test_a_message_whose_receipt_was_lost_is_sent_again_with_the_same_key() -> None:
    seen: list[httpx2.Request] = []
    receipt = {"message_id": "msg-1", "disposition": "queued"}
    link = link_to(httpx2.ReadError("cut"), httpx2.Response(202, json=receipt), seen=seen)
    async with link:
        assert await link.send("/sessions/s1", {"text": "x"}, key="k1") == receipt
    assert [request.headers["idempotency-key"] for request in seen] == ["k1", "k1"]


async def test_a_message_to_nobody_is_refused_at_once() -> None:
    async with link_to(httpx2.ConnectError("refused")) as link:
        with pytest.raises(TransportUnavailableError, match="no server"):
            await link.send("/sessions/s1", {"text": "x"}, key="k1")


@pytest.mark.parametrize(("status", "tries"), [(302, 1), (401, 1), (404, 1), (200, 1), (502, 4)])
async def test_a_message_is_sent_again_past_a_proxy_and_not_to_what_is_no_laneway(status: int, tries: int) -> None:
    seen: list[httpx2.Request] = []
    answers = [httpx2.Response(status, html="<h1>Hello</h1>") for _ in range(9)]
    async with link_to(*answers, seen=seen) as link:
        with pytest.raises(TransportUnavailableError, match="is not from Laneway"):
            await link.send("/sessions/s1", {"text": "hello"}, key="k")
    assert len(seen) == tries
