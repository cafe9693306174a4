"""Signed webhooks: what is taken, what is posted, and what neither happens to twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ConfigError, NotAuthenticatedError
from laneway.gateway.channels import channels_of, start_channels
from laneway.gateway.channels.fields import Fields
from laneway.gateway.channels.posting import Resolve
from laneway.gateway.channels.signing import headers_of, key_of, verify
from laneway.gateway.channels.webhook import WebhookChannel, WebhookOptions
from laneway.gateway.service import Gateway
from laneway.models import call, say
from tests.channel_stage import SECRET, Timers, partner_stage
from tests.gateway_stage import SIMPLE, GatewayStage, gateway_in, gateway_stage

NOW = 1_800_000_000_000
KEY = key_of(SECRET)
OTHER = "whsec_" + "B" * 43 + "="
PATH = "/v1/channels/partner/webhook"
ASKING = SIMPLE + "permissions:\n  default_decision: ask\nconfirmation:\n  default_timeout_ms: 100000000\n"


def signed(stage: GatewayStage, webhook_id: str, body: bytes, *, key: bytes = KEY, late_ms: int = 0) -> dict[str, str]:
    """The headers of a request that is sent now, or was some time ago."""
    return headers_of([key], webhook_id, body, at_ms=stage.gateway.env.clock.wall_ms() - late_ms)


def body_of(text: str, **more: Any) -> bytes:
    """What a partner posts."""
    return json.dumps({"session": "t1", "text": text, "sender": "ada", **more}).encode()


@contextlib.asynccontextmanager
async def webhook_stage(
    folder: Path, *, options: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[GatewayStage]:
    """A gateway with a channel called `partner` that takes and does not post."""
    settings = {"partner": {"kind": "webhook", "secrets": [SECRET], **(options or {})}}
    async with gateway_stage(folder, channels=settings, **more) as stage:
        started = await start_channels(stage.gateway)
        try:
            yield stage
        finally:
            for channel in started:
                await channel.stop()


def channel_to(
    url: str, *, timers: Timers | None = None, resolve: Resolve | None = None, **settings: Any
) -> WebhookChannel:
    """A channel that posts to an address."""
    fields = Fields("partner", {"secrets": [SECRET], "url": url, **settings})
    options = WebhookOptions.read(fields)
    fields.done()
    more: dict[str, Any] = {} if timers is None else {"call_later": timers.later}
    return WebhookChannel(options, resolve=resolve, **more)


@contextlib.asynccontextmanager
async def posting_stage(folder: Path, channel: WebhookChannel, **more: Any) -> AsyncIterator[Gateway]:
    """A gateway with a channel that posts."""
    async with gateway_in(folder, **more) as gateway:
        await channel.start(gateway)
        try:
            yield gateway
        finally:
            await channel.stop()


async def sent(gateway: Gateway, channel: WebhookChannel, webhook_id: str, text: str, **more: Any) -> str:
    """A message of the partner; its id here."""
    body = body_of(text, **more)
    receipt = await channel.take(headers_of([KEY], webhook_id, body, at_ms=gateway.env.clock.wall_ms()), body)
    return receipt.message_id


# ---- in ----


async def test_a_signed_message_is_taken_and_runs_in_a_session_of_its_channel(tmp_path: Path) -> None:
    async with webhook_stage(tmp_path) as stage:
        body = body_of("hello")
        answer = await stage.client.post(PATH, content=body, headers=signed(stage, "w1", body))
        assert answer.status_code == 202
        final = await stage.gateway.default.inbox.wait(answer.json()["message_id"])
    assert (final.session_key, final.answer) == ("partner:t1", "You said: hello")


async def test_what_is_signed_wrongly_is_refused_and_does_nothing(tmp_path: Path) -> None:
    async with webhook_stage(tmp_path) as stage:
        body = body_of("hello")
        good = signed(stage, "w1", body)
        tries = {
            "nothing": {},
            "another key": signed(stage, "w1", body, key=key_of(OTHER)),
            "another body": signed(stage, "w1", body_of("bye")),
            "another id": {**good, "webhook-id": "w2"},
            "another time": {**good, "webhook-timestamp": str(int(good["webhook-timestamp"]) - 1)},
            "too old": signed(stage, "w1", body, late_ms=301_000),
            "from the future": signed(stage, "w1", body, late_ms=-600_000),
            "another version": {**good, "webhook-signature": good["webhook-signature"].replace("v1,", "v2,")},
            "no time": {**good, "webhook-timestamp": "soon"},
        }
        answers = {why: await stage.client.post(PATH, content=body, headers=more) for why, more in tries.items()}
        elsewhere = await stage.client.post("/v1/channels/nobody/webhook", content=body, headers=good)
        sessions = await stage.gateway.default.inbox.sessions()
    assert {why: answer.status_code for why, answer in answers.items()} == dict.fromkeys(tries, 401)
    assert {answer.text for answer in answers.values()} == {elsewhere.text}
    assert sessions == []


async def test_a_request_that_comes_again_gets_the_first_receipt(tmp_path: Path) -> None:
    body = body_of("hello")
    async with webhook_stage(tmp_path) as stage:
        headers = signed(stage, "w1", body)
        answers = await asyncio.gather(*(stage.client.post(PATH, content=body, headers=headers) for _ in range(5)))
        first = {answer.json()["message_id"] for answer in answers}
        await stage.gateway.default.inbox.wait(answers[0].json()["message_id"])
    async with webhook_stage(tmp_path) as stage:  # another process knows it, too
        again = await stage.client.post(PATH, content=body, headers=headers)
        messages = await stage.gateway.default.inbox.messages()
    assert first == {again.json()["message_id"]}
    assert again.json()["duplicate"] is True
    assert len(messages) == 1


async def test_an_id_that_is_used_for_another_message_is_a_conflict(tmp_path: Path) -> None:
    async with webhook_stage(tmp_path) as stage:
        for text, status in (("hello", 202), ("bye", 409)):
            body = body_of(text)
            answer = await stage.client.post(PATH, content=body, headers=signed(stage, "w1", body))
            assert answer.status_code == status


async def test_two_secrets_count_while_one_replaces_the_other(tmp_path: Path) -> None:
    async with webhook_stage(tmp_path, options={"secrets": [SECRET, OTHER]}) as stage:
        statuses = []
        for number, key in enumerate((KEY, key_of(OTHER))):
            body = body_of("hello")
            headers = signed(stage, f"w{number}", body, key=key)
            statuses.append((await stage.client.post(PATH, content=body, headers=headers)).status_code)
    assert statuses == [202, 202]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"session": "t1"}', b'{"session": "a/b", "text": "x", "sender": "a"}', b"\xff\xfe"],
)
async def test_a_signed_body_that_is_no_message_is_the_partners_mistake(tmp_path: Path, body: bytes) -> None:
    async with webhook_stage(tmp_path) as stage:
        answer = await stage.client.post(PATH, content=body, headers=signed(stage, "w1", body))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_message")


async def test_what_a_sender_may_do_is_in_the_configuration(tmp_path: Path) -> None:
    script = [[call("write", path="a.txt", content="hello")], [say("done")]]
    async with webhook_stage(tmp_path, options={"approvers": ["bob"]}, text=ASKING, script=script) as stage:
        inbox = stage.gateway.default.inbox
        asked = asyncio.Event()
        inbox.engine.listen(lambda event: asked.set() if event.type == "approval.asked" else None)
        body = body_of("write it")
        message = await stage.client.post(PATH, content=body, headers=signed(stage, "w0", body))
        await asked.wait()
        approval = inbox.approvals()[0]
        for number, who in enumerate(("ada", "bob"), 1):
            body = body_of(f"/approve {approval.id}", sender=who)
            answer = await stage.client.post(PATH, content=body, headers=signed(stage, f"w{number}", body))
            assert answer.json()["disposition"] == "command"
            assert bool(inbox.approvals()) is (who == "ada")
        final = await inbox.wait(message.json()["message_id"])
    assert final.answer == "done"


async def test_the_channels_are_listed_for_those_who_may_see_what_all_share(tmp_path: Path) -> None:
    async with webhook_stage(tmp_path) as stage:
        shown = await stage.client.get("/v1/channels")
        refused = await stage.client.get("/v1/channels", headers=await stage.token("chat"))
    assert shown.json()["items"] == [{"name": "partner", "kind": "webhook", "problem": ""}]
    assert refused.status_code == 403


# ---- out ----


async def test_an_answer_is_posted_with_a_signature_that_the_partner_can_check(tmp_path: Path) -> None:
    async with partner_stage() as partner:
        channel = channel_to(partner.url, allow_private=True, secrets=[SECRET, OTHER])
        async with posting_stage(tmp_path, channel) as gateway:
            message_id = await sent(gateway, channel, "w1", "hello", thread="th")
            await partner.until(1)
        headers, body = partner.posts[0]
        for key in (KEY, key_of(OTHER)):
            at_ms = gateway.env.clock.wall_ms()
            assert verify([key], headers, body, at_ms=at_ms, tolerance_ms=300_000) == headers["webhook-id"]
    data = json.loads(body)
    assert data["type"] == "turn.replied"
    assert {
        name: data["data"][name] for name in ("kind", "session", "text", "thread", "in_reply_to", "message_id")
    } == {
        "kind": "reply",
        "session": "t1",
        "text": "You said: hello",
        "thread": "th",
        "in_reply_to": "w1",
        "message_id": message_id,
    }


async def test_a_post_that_fails_is_made_again_with_the_same_id_until_it_arrives(tmp_path: Path) -> None:
    timers = Timers()
    async with partner_stage() as partner:
        partner.answers = [(500, ""), (302, "Location: http://127.0.0.1/\r\n"), (429, "Retry-After: 7\r\n")]
        channel = channel_to(partner.url, allow_private=True, timers=timers)
        async with posting_stage(tmp_path, channel) as gateway:
            await sent(gateway, channel, "w1", "hello")
            delays = [await timers.fire() for _ in range(3)]
            await partner.until(4)
            assert channel.outbox is not None
            await channel.outbox.quiet()
            problem = channel.problem
    assert 500 <= delays[0] <= 1_000 <= delays[1] <= 2_000
    assert delays[2] == 7_000
    assert len({headers["webhook-id"] for headers, _ in partner.posts}) == 1
    assert len({body for _, body in partner.posts}) == 1
    assert problem == ""


async def test_what_never_arrives_ends_in_the_log_of_operators(tmp_path: Path) -> None:
    timers = Timers()
    async with partner_stage() as partner:
        partner.answers = [(500, "")] * 3
        channel = channel_to(partner.url, allow_private=True, timers=timers, retries=2)
        async with posting_stage(tmp_path, channel) as gateway:
            await sent(gateway, channel, "w1", "hello")
            await timers.fire()
            await timers.fire()
            await partner.until(3)
            assert channel.outbox is not None
            await channel.outbox.quiet()
            entries = await gateway.audit.entries("default")
            await sent(gateway, channel, "w2", "more")
            await partner.until(4)
    assert [(entry.action, "500" in entry.reason) for entry in entries] == [("channel.gave_up", True)]
    assert partner.said()[-1] == "You said: more"


async def test_gone_is_gone(tmp_path: Path) -> None:
    async with partner_stage() as partner:
        partner.answers = [(410, "")]
        channel = channel_to(partner.url, allow_private=True)
        async with posting_stage(tmp_path, channel) as gateway:
            await sent(gateway, channel, "w1", "hello")
            await partner.until(1)
            assert channel.outbox is not None
            await channel.outbox.quiet()
            entries = await gateway.audit.entries("default")
    assert len(partner.posts) == len(entries) == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:127.0.0.1", "0.0.0.1"])
async def test_nothing_is_posted_to_an_address_that_is_not_public(tmp_path: Path, address: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34", address]

    channel = channel_to("https://example.org/hook", resolve=resolve)
    async with posting_stage(tmp_path, channel) as gateway:
        final = await gateway.default.inbox.wait(await sent(gateway, channel, "w1", "hello"))
        assert channel.outbox is not None
        await channel.outbox.quiet()
        entries = await gateway.audit.entries("default")
    assert final.answer == "You said: hello"
    assert [address in entry.reason for entry in entries] == [True]


async def test_what_was_not_posted_before_the_end_is_posted_after_the_next_start(tmp_path: Path) -> None:
    async with partner_stage() as partner:
        partner.answers = [(503, "")]
        channel = channel_to(partner.url, allow_private=True, timers=Timers())
        async with posting_stage(tmp_path, channel) as gateway:
            await sent(gateway, channel, "w1", "hello")
            await partner.until(1)
        channel = channel_to(partner.url, allow_private=True)
        async with posting_stage(tmp_path, channel):
            await partner.until(2)
    assert partner.said() == ["You said: hello"] * 2


async def test_two_partners_hear_only_of_their_own(tmp_path: Path) -> None:
    async with partner_stage() as one, partner_stage() as two, gateway_in(tmp_path) as gateway:
        channels = []
        for name, partner in (("one", one), ("two", two)):
            block = {"secrets": [SECRET], "url": partner.url, "allow_private": True}
            channels.append(WebhookChannel(WebhookOptions.read(Fields(name, block))))
            await channels[-1].start(gateway)
        for channel in channels:
            await sent(gateway, channel, "w1", f"to {channel.name}")
        await one.until(1)
        await two.until(1)
        for channel in channels:
            await channel.stop()
    assert (one.said(), two.said()) == (["You said: to one"], ["You said: to two"])


# ---- settings ----


@pytest.mark.parametrize(
    ("block", "setting"),
    [
        ({}, "secrets"),
        ({"secrets": ["short"]}, "secrets"),
        ({"secrets": ["whsec_c2hvcnQ="]}, "secrets"),
        ({"secrets": [SECRET], "url": "ftp://example.org"}, "url"),
        ({"secrets": [SECRET], "url": "https://me:pw@example.org"}, "url"),
        ({"secrets": [SECRET], "retries": -1}, "retries"),
        ({"secrets": [SECRET], "allow_private": "yes"}, "allow_private"),
        ({"secrets": [SECRET], "tenant": "a/b"}, "tenant"),
    ],
)
def test_a_wrong_setting_is_named_and_secrets_are_not(block: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        channels_of({"partner": {"kind": "webhook", **block}}, ["default"])
    assert caught.value.setting == f"gateway.channels.partner.{setting}"
    assert not any(secret in str(vars(caught.value)) for secret in ("c2hvcnQ=", SECRET))


def test_a_channel_of_a_kind_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of: webhook, telegram"):
        channels_of({"x": {"kind": "pigeon"}}, [])


def test_the_signature_is_that_of_the_standard() -> None:
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    at_ms = 1_614_265_330_000
    headers = headers_of([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', at_ms=at_ms)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_without_keys_nothing_is_right() -> None:
    headers = headers_of([b"\0" * 24], "w1", b"{}", at_ms=NOW)
    with pytest.raises(NotAuthenticatedError):
        verify([], headers, b"{}", at_ms=NOW, tolerance_ms=1_000)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"kind": "webhok"}, "kind is one of: webhook, telegram (did you mean webhook?)"),
        ({"kind": 3}, "kind is one of: webhook, telegram"),
        ({"kin": "webhook"}, "kind is missing (did you mean it by kin?)"),
        ({}, "kind is missing (one of: webhook, telegram)"),
        ({"kind": "webhook", "secret": SECRET}, "secrets is missing (did you mean it by secret?)"),
        (
            {"kind": "webhook", "secrets": [SECRET], "tenat": "x"},
            "tenat is no setting of a channel of this kind (did you mean tenant?)",
        ),
    ],
)
def test_a_word_that_is_mistyped_is_named_with_the_one_that_is_meant(block: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        channels_of({"partner": block})
    assert str(caught.value) == f"gateway.channels.partner.{said}"
