"""Who may do what: scopes, tenants, and callers on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.errors import PermissionDeniedError
from laneway.gateway.access import LOCAL, Caller, Scope
from laneway.gateway.settings import GatewaySettings
from laneway.kernel import texts
from laneway.mail import Sender
from tests.gateway_stage import GatewayStage, gateway_stage

IMPLIED = {
    "chat": {"chat"},
    "operate": {"chat", "operate"},
    "worker": {"worker"},
    "admin": {"chat", "operate", "admin"},
}


@pytest.mark.parametrize("scope", list(Scope))
def test_a_scope_includes_what_is_below_it(scope: Scope) -> None:
    caller = Caller(name="x", scopes=frozenset({scope}))
    assert {each.value for each in Scope if caller.may(each)} == IMPLIED[scope]


def test_a_missing_scope_is_refused_with_the_way_out() -> None:
    with pytest.raises(PermissionDeniedError) as caught:
        LOCAL.check(Scope.OPERATE)
    assert "--scope operate" in caught.value.hint


def test_what_all_tenants_share_is_for_operators_of_all_of_them_and_for_this_machine() -> None:
    operate = frozenset({Scope.OPERATE})
    LOCAL.check_shared()
    Caller(name="x", scopes=operate, sees_all=True).check_shared()
    for caller in (
        Caller(name="x", scopes=operate),
        Caller(name="x", scopes=frozenset({Scope.CHAT}), sees_all=True),
        Caller(name="x", scopes=frozenset({Scope.ADMIN}), tenant="acme"),
    ):
        with pytest.raises(PermissionDeniedError):
            caller.check_shared()


def test_a_caller_gives_a_sender_its_own_rights_and_no_others() -> None:
    talker = Caller(name="phone", scopes=frozenset({Scope.CHAT}))
    operator = Caller(name="desk", scopes=frozenset({Scope.OPERATE}))
    claimed = talker.sender("owner", "The Owner")
    assert (claimed.id, claimed.owner, "approve" in claimed.rights) == ("owner", False, False)
    assert "approve" in operator.sender().rights
    assert operator.sender().id == "desk"


# ---- over HTTP ----

SEND = "/v1/sessions/s/messages"


async def _send(stage: GatewayStage, headers: dict[str, str] | None = None, path: str = SEND) -> int:
    answer = await stage.client.post(path, json={"text": "x"}, headers=headers)
    return answer.status_code


async def test_without_tokens_this_machine_may_talk_and_a_wrong_header_is_ignored(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert await _send(stage) == 202
        assert await _send(stage, {"Authorization": "Bearer sk-dummy"}) == 202
        assert await _send(stage, {"Authorization": "Basic dTpw"}) == 202
        assert (await stage.client.get("/v1/audit")).status_code == 401
        assert (await stage.client.get("/v1/audit", headers=stage.operator())).status_code == 200


async def test_with_a_token_everybody_needs_one(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        good = await stage.token("chat")
        secret = good["Authorization"].removeprefix("Bearer ")
        assert await _send(stage, good) == 202
        assert await _send(stage, {"authorization": f"bearer  {secret}"}) == 202
        for wrong in (
            {},
            {"Authorization": "Bearer sk-dummy"},
            {"Authorization": secret},
            {"Authorization": f"Token {secret}"},
            {"Authorization": f"Bearer {secret}x"},
            {"Authorization": f"Bearer {secret[:-1]}"},
            {"Authorization": f"Bearer {secret} {secret}"},
            {"Cookie": f"token={secret}"},
        ):
            assert await _send(stage, wrong) == 401, wrong
        assert await _send(stage, {}, f"{SEND}?token={secret}&access_token={secret}") == 401


async def test_every_way_in_which_a_token_is_wrong_looks_the_same(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        revoked = await stage.token("chat", name="a")
        await stage.gateway.tokens.revoke(stage.gateway.tokens.tokens()[0].id)
        answers = {
            (await stage.client.get("/v1/audit", headers=headers)).text
            for headers in (revoked, {"Authorization": "Bearer lw_x_y"}, {"Authorization": "Bearer x"}, {})
        }
        assert len(answers) == 1
        assert "lw_" not in answers.pop()


async def test_two_authorization_headers_are_none(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        good = await stage.token("chat")
        both = [("Authorization", good["Authorization"]), ("Authorization", good["Authorization"])]
        answer = await stage.client.post(SEND, json={"text": "x"}, headers=both)
        assert answer.status_code == 401


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "X-Real-IP"])
async def test_who_comes_through_a_proxy_is_not_of_this_machine(tmp_path: Path, name: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert await _send(stage, {name: "192.0.2.1"}) == 401
        assert await _send(stage, {**stage.operator(), name: "192.0.2.1"}) == 202


async def test_an_address_that_is_not_loopback_lets_nobody_in_without_a_token(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, host="192.0.2.1") as stage:
        assert await _send(stage) == 401


async def test_a_token_of_one_tenant_cannot_choose_another(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert await _send(stage, {"Laneway-Tenant": "acme"}) == 403
        acme = await stage.token("chat", tenant="acme")
        assert await _send(stage, {**acme, "Laneway-Tenant": "acme"}) == 202
        assert await _send(stage, {**acme, "Laneway-Tenant": "rival"}) == 403
        assert await _send(stage, {**acme, "Laneway-Tenant": "*"}) == 403
        everybody = await stage.token("chat", tenant="*")
        sent = await stage.client.post(SEND, json={"text": "x"}, headers={**everybody, "Laneway-Tenant": "rival"})
        row = await stage.gateway.store.history.message(sent.json()["message_id"])
        assert row is not None
        assert row.tenant == "rival"
        assert await _send(stage, {**everybody, "Laneway-Tenant": "a/b"}) == 400


async def test_a_worker_cannot_talk(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert await _send(stage, await stage.token("worker")) == 403


async def test_a_chat_token_is_no_operator(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        headers = await stage.token("chat")
        assert (await stage.client.get("/v1/audit", headers=headers)).status_code == 403


@pytest.mark.parametrize("text", ["/approve a1", "/deny a1 no", " /APPROVE@bot a1\n"])
async def test_only_operators_answer_requests_in_chat_and_only_in_their_own_name(tmp_path: Path, text: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        for sender in ("ada", None):
            body = {"text": text, "sender": sender}
            refused = await stage.client.post(SEND, json=body)
            assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
        operator = stage.operator(tenant="default")
        sent = await stage.client.post(SEND, json={"text": text, "sender": "ada"}, headers=operator)
        assert sent.status_code == 202
        (entry,) = await stage.gateway.audit.entries("default")
        assert (entry.actor, entry.target) == ("operator", "a1")


async def test_a_channel_that_vouches_for_its_senders_hands_their_answers_on(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        channel = Caller(name="channel:x", scopes=frozenset({Scope.CHAT}), vouches=True)
        owner = Sender(id="x:7", rights=("approve",))
        receipt = await stage.gateway.submit(stage.gateway.default, channel, "s", "/approve a1", sender=owner)
        assert receipt.reply == texts.approval_reply("a1", "")


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("127.example.org", False),
        ("127.0.0.1.example.org", False),
        ("192.168.1.7", False),
        ("0.0.0.0", False),  # noqa: S104 - the subject
        ("::", False),
        ("", False),
    ],
)
def test_only_addresses_of_this_machine_need_no_tokens(host: str, is_here: bool) -> None:
    assert GatewaySettings(host=host).is_loopback is is_here
