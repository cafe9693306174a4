"""Tokens: hashed, bounded in time, revocable; and nothing that is wrong with them opens anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.errors import ConfigError, ConflictError, InvalidMessageError, NotAuthenticatedError, NotFoundError
from laneway.gateway import tokens as module
from laneway.gateway.access import Caller, Scope
from laneway.gateway.tokens import GATEWAY, TokenBook
from laneway.rows import Batch, BatchResult, Owner, StateRow
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing import FakeClock
from tests.gateway_stage import gateway_in, gateway_stage

CHAT = (Scope.CHAT,)
DAY_MS = 86_400_000


class Shelf:
    """A disk with tokens, and the books that were opened on it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.clock = FakeClock()
        self._stores: list[MemoryStore] = []

    async def book(self) -> TokenBook:
        """A book of a process that has just begun."""
        store = MemoryStore(self.disk)
        await store.open()
        self._stores.append(store)
        book = TokenBook(store, self.clock)
        await book.load()
        return book

    async def write(self, token_id: str, body: str) -> None:
        """A row that nobody has checked."""
        store = MemoryStore(self.disk)
        await store.open()
        owner = Owner("default", GATEWAY)
        row = StateRow("token", token_id, *owner, store.next_seq(), 1, "valid", body)
        (result,) = await store.commit([Batch(owner, store.epoch, (row,))])
        assert result.error is None
        await store.close()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


@pytest.fixture
async def shelf() -> AsyncIterator[Shelf]:
    made = Shelf()
    yield made
    await made.close()


async def test_a_secret_opens_what_its_token_is_for(shelf: Shelf) -> None:
    book = await shelf.book()
    token, secret = await book.create("phone", (Scope.CHAT, Scope.CHAT), tenant="acme")
    found = book.find(secret)
    assert found is not None
    assert (found.id, found.scopes) == (token.id, CHAT)
    assert found.caller() == Caller(name="phone", tenant="acme", scopes=frozenset(CHAT), token_id=token.id)


async def test_a_token_counts_after_a_restart(shelf: Shelf) -> None:
    _, secret = await (await shelf.book()).create("phone", CHAT)
    assert (await shelf.book()).find(secret) is not None


async def test_the_secret_is_nowhere_in_the_store_nor_in_what_is_printed(shelf: Shelf) -> None:
    token, secret = await (await shelf.book()).create("phone", CHAT)
    kept = [row.body for row in shelf.disk.states.values()]
    assert len(kept) == 1
    assert secret not in kept[0]
    assert secret.split("_", 2)[2] not in kept[0]
    assert token.digest not in repr(token)


@pytest.mark.parametrize(
    "change",
    [
        lambda secret: secret[:-1],
        lambda secret: secret + "x",
        lambda secret: secret.swapcase(),
        lambda secret: secret.replace("lw_", "xx_", 1),
        lambda secret: secret.rpartition("_")[2],
        lambda secret: secret.rpartition("_")[0] + "_" + "A" * 43,
        lambda secret: " " + secret,
        lambda _: "",
        lambda _: "lw__",
        lambda _: "lw_" + "0" * 12 + "_",
        lambda _: "ü" * 20,
        lambda _: "\udcff",
        lambda _: "lw_" * 100_000,
    ],
)
async def test_what_is_nearly_a_secret_opens_nothing(shelf: Shelf, change: Any) -> None:
    book = await shelf.book()
    _, secret = await book.create("phone", CHAT)
    assert book.find(change(secret)) is None


@given(st.text(max_size=60))
def test_a_guess_opens_nothing(guess: str) -> None:
    assert TokenBook(MemoryStore(), FakeClock()).find(guess) is None


async def test_a_token_expires_by_the_wall_clock(shelf: Shelf) -> None:
    book = await shelf.book()
    token, secret = await book.create("phone", CHAT, expires_ms=shelf.clock.wall_ms() + DAY_MS)
    shelf.clock.advance(DAY_MS - 1)
    assert book.find(secret) is not None
    shelf.clock.advance(1)
    assert book.find(secret) is None
    assert token.state(shelf.clock.wall_ms()) == "expired"


async def test_a_revoked_token_opens_nothing_now_and_after_a_restart(shelf: Shelf) -> None:
    book = await shelf.book()
    token, secret = await book.create("phone", CHAT)
    ended = await book.revoke(token.id)
    assert book.find(secret) is None
    assert (await book.revoke(token.id)) == ended
    later = await shelf.book()
    assert later.find(secret) is None
    assert [each.state(0) for each in later.tokens()] == ["revoked"]


async def test_whoever_is_not_there_cannot_be_revoked(shelf: Shelf) -> None:
    with pytest.raises(NotFoundError):
        await (await shelf.book()).revoke("000000000000")


async def test_revoking_the_last_token_does_not_open_the_gateway(shelf: Shelf) -> None:
    book = await shelf.book()
    assert book.is_empty
    token, _ = await book.create("phone", CHAT)
    await book.revoke(token.id)
    assert not book.is_empty
    assert not (await shelf.book()).is_empty


async def test_a_token_for_workers_alone_does_not_close_the_gateway(shelf: Shelf) -> None:
    book = await shelf.book()
    told: list[tuple[str, str]] = []
    book.on_end.append(lambda token_id, why: told.append((token_id, why)))
    worker, secret = await book.create("w", (Scope.WORKER,))
    assert book.is_empty
    assert book.counts("")
    assert told == []
    book = await shelf.book()
    assert book.is_empty
    assert book.find(secret) is not None
    book.on_end.append(lambda token_id, why: told.append((token_id, why)))
    await book.create("phone", CHAT)
    assert not book.is_empty
    assert not book.counts("")
    assert told == [("", "revoked")]
    await book.create("w2", (Scope.WORKER,))
    await book.create("tablet", CHAT)
    assert told == [("", "revoked")]  # once
    await book.revoke(worker.id)
    assert not book.is_empty


@pytest.mark.parametrize("scopes", [(Scope.WORKER, Scope.CHAT), (Scope.OPERATE,), (Scope.ADMIN,)])
async def test_a_token_that_is_also_for_something_else_closes_the_gateway(
    shelf: Shelf, scopes: tuple[Scope, ...]
) -> None:
    book = await shelf.book()
    await book.create("x", scopes)
    assert not book.is_empty
    assert not (await shelf.book()).is_empty


async def test_a_worker_with_a_scope_of_a_later_version_closes_the_gateway(shelf: Shelf) -> None:
    await shelf.write("deadbeef", json.dumps({**GOOD, "scopes": ["fly", "worker"]}))
    assert not (await shelf.book()).is_empty
    await shelf.write("deadbeef", json.dumps({**GOOD, "scopes": ["worker"]}))
    assert (await shelf.book()).is_empty


async def test_who_talks_without_a_token_still_may_when_a_worker_has_one(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        headers = await stage.token(Scope.WORKER)
        assert (await stage.client.get("/v1/sessions")).status_code == 200
        assert (await stage.client.get("/v1/sessions", headers=headers)).status_code == 403
        await stage.token(Scope.CHAT)
        assert (await stage.client.get("/v1/sessions")).status_code == 401


async def test_a_token_for_now_counts_and_is_never_written(shelf: Shelf) -> None:
    book = await shelf.book()
    secret = book.create_for_now("operator", (Scope.OPERATE,))
    found = book.find(secret)
    assert found is not None
    assert book.is_empty
    assert not shelf.disk.states
    await book.revoke(found.id)
    assert book.find(secret) is None


@pytest.mark.parametrize(
    ("name", "scopes", "more", "error"),
    [
        ("", CHAT, {}, InvalidMessageError),
        ("a/b", CHAT, {}, InvalidMessageError),
        ("x" * 101, CHAT, {}, ConfigError),
        ("phone", (), {}, ConfigError),
        ("phone", CHAT, {"tenant": "a\nb"}, InvalidMessageError),
        ("phone", CHAT, {"tenant": ""}, InvalidMessageError),
        ("phone", CHAT, {"expires_ms": 1}, ConfigError),
    ],
)
async def test_a_token_that_makes_no_sense_is_refused(
    shelf: Shelf, name: str, scopes: Any, more: Any, error: type[Exception]
) -> None:
    book = await shelf.book()
    with pytest.raises(error):
        await book.create(name, scopes, **more)
    assert book.is_empty


GOOD = {
    "name": "phone",
    "scopes": ["chat"],
    "tenant": "default",
    "created_ms": 1,
    "expires_ms": None,
    "revoked_ms": None,
    "digest": "a" * 64,
}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "null",
        "[]",
        "7",
        '"text"',
        "[" * 100_000,
        json.dumps({}),
        json.dumps({**GOOD, "scopes": None}),
        json.dumps({**GOOD, "scopes": [["chat"]]}),
        json.dumps({**GOOD, "digest": ""}),
        json.dumps({**GOOD, "digest": "0" * 64}),
        json.dumps({**GOOD, "digest": "ü" * 64}),
        json.dumps({**GOOD, "digest": 7}),
        json.dumps({**GOOD, "tenant": None}),
        json.dumps({**GOOD, "tenant": "a/b"}),
        json.dumps({**GOOD, "name": 3}),
        json.dumps({**GOOD, "expires_ms": "never"}),
        json.dumps({**GOOD, "expires_ms": True}),
        json.dumps({**GOOD, "revoked_ms": "no"}),
        json.dumps({**GOOD, "created_ms": 1.5}),
    ],
)
async def test_a_damaged_row_opens_nothing_and_does_not_stop_the_others(shelf: Shelf, body: str) -> None:
    _, secret = await (await shelf.book()).create("phone", CHAT)
    await shelf.write("deadbeef", body)
    book = await shelf.book()
    assert book.find(secret) is not None
    assert book.find("lw_deadbeef_" + "x" * 43) is None
    assert book.token("deadbeef").state(0) == "revoked"
    assert book.token("deadbeef").scopes == ()


async def test_a_store_with_only_a_damaged_row_counts_as_one_with_tokens(shelf: Shelf) -> None:
    await shelf.write("deadbeef", "{")
    assert not (await shelf.book()).is_empty


async def test_scopes_of_a_later_version_are_left_out(shelf: Shelf) -> None:
    await shelf.write("deadbeef", json.dumps({**GOOD, "scopes": ["fly", "chat"]}))
    assert (await shelf.book()).token("deadbeef").scopes == CHAT


async def test_the_number_of_tokens_is_bounded_and_dead_ones_make_room(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOKENS_MAX", 2)
    book = await shelf.book()
    first, _ = await book.create("a", CHAT)
    await book.create("b", CHAT)
    with pytest.raises(ConflictError):
        await book.create("c", CHAT)
    await book.revoke(first.id)
    await book.create("c", CHAT)
    assert {token.name for token in book.tokens()} == {"b", "c"}
    assert {token.name for token in (await shelf.book()).tokens()} == {"b", "c"}


class SlowStore(MemoryStore):
    """A store that takes its time, as disks do."""

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        await asyncio.sleep(0)
        return await super().commit(batches)


async def test_two_that_are_made_at_one_time_may_find_room_in_the_same_dead_one(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOKENS_MAX", 1)
    store = SlowStore()
    await store.open()
    book = TokenBook(store, shelf.clock)
    first, _ = await book.create("a", CHAT)
    await book.revoke(first.id)
    await asyncio.gather(book.create("b", CHAT), book.create("c", CHAT))
    await store.close()
    assert {token.name for token in book.tokens()} == {"b", "c"}
    assert not book.is_empty


# ---- what goes on while a token counts ----


async def test_who_listens_is_told_of_a_revoked_token_once(shelf: Shelf) -> None:
    book = await shelf.book()
    token, _ = await book.create("phone", CHAT)
    told: list[tuple[str, str]] = []
    book.on_end.append(lambda token_id, why: told.append((token_id, why)))
    await book.revoke(token.id)
    await book.revoke(token.id)
    assert told == [(token.id, "revoked")]


async def test_who_listens_is_told_of_an_expired_token(shelf: Shelf) -> None:
    book = await shelf.book()
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    book.on_end.append(lambda token_id, why: told.put_nowait((token_id, why)))
    token, _ = await book.create("phone", CHAT, expires_ms=shelf.clock.wall_ms() + 1)
    await book.create("other", CHAT, expires_ms=shelf.clock.wall_ms() + DAY_MS)
    shelf.clock.advance(1)
    assert await told.get() == ("", "revoked")
    assert await told.get() == (token.id, "expired")
    book.close()
    assert told.empty()


async def test_the_first_kept_token_ends_what_goes_on_without_one(shelf: Shelf) -> None:
    book = await shelf.book()
    told: list[tuple[str, str]] = []
    book.on_end.append(lambda token_id, why: told.append((token_id, why)))
    book.create_for_now("operator", CHAT)
    assert told == []
    await book.create("phone", CHAT)
    await book.create("tablet", CHAT)
    assert told == [("", "revoked")]


async def test_a_caller_can_be_checked_again_later(shelf: Shelf) -> None:
    book = await shelf.book()
    local = Caller(name="local")
    book.check(local)
    token, _ = await book.create("phone", CHAT, expires_ms=shelf.clock.wall_ms() + DAY_MS)
    with pytest.raises(NotAuthenticatedError):
        book.check(local)
    book.check(token.caller())
    shelf.clock.advance(DAY_MS)
    with pytest.raises(NotAuthenticatedError):
        book.check(token.caller())
    with pytest.raises(NotAuthenticatedError):
        book.check(Caller(name="nobody", token_id="gone"))


async def test_a_revoked_token_ends_its_streams_and_no_others(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        token, _ = await gateway.tokens.create("phone", CHAT)
        other, _ = await gateway.tokens.create("tablet", CHAT)
        hub = gateway.default.hub
        mine = hub.watch("default", "s", token_id=token.id)
        theirs = hub.watch("default", "s", token_id=other.id)
        await gateway.tokens.revoke(token.id)
        assert (mine.end, theirs.end) == ("revoked", "")


async def test_a_stream_that_begins_with_a_revoked_token_ends_at_once(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        hub = gateway.default.hub
        local = hub.watch("default", "s", token_id="")
        own = hub.watch("default", "s")
        token, _ = await gateway.tokens.create("phone", CHAT)
        assert (local.end, own.end) == ("revoked", "")
        await gateway.tokens.revoke(token.id)
        late = [hub.watch("default", "s", token_id=each) for each in (token.id, "", "unknown")]
        assert [each.end for each in late] == ["revoked"] * 3
        assert len(hub) == 1


async def test_an_expired_token_ends_its_streams(tmp_path: Path) -> None:
    clock = FakeClock()
    async with gateway_in(tmp_path) as gateway:
        gateway.tokens._clock = clock  # noqa: SLF001 - the rest of the gateway needs a clock that runs
        token, _ = await gateway.tokens.create("phone", CHAT, expires_ms=clock.wall_ms() + 1)
        mine = gateway.default.hub.watch("default", "s", token_id=token.id)
        clock.advance(1)
        assert [frame async for frame in mine] == []
        assert mine.end == "expired"


# ---- the routes ----


async def test_an_administrator_makes_lists_and_revokes_tokens(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        admin = stage.operator(scopes=(Scope.ADMIN,))
        body = {"name": "phone", "scopes": ["chat"], "expires_in_ms": DAY_MS, "reason": "a new phone"}
        made = await stage.client.post("/v1/tokens", json=body, headers=admin)
        assert made.status_code == 201, made.text
        token = made.json()
        assert (token["name"], token["state"], token["tenant"], token["kept"]) == ("phone", "valid", "default", True)
        phone = {"Authorization": f"Bearer {token['secret']}"}
        assert (await stage.client.post("/v1/sessions/s/messages", json={"text": "x"}, headers=phone)).is_success
        listed = await stage.client.get("/v1/tokens", headers=admin)
        assert {each["name"] for each in listed.json()["items"]} == {"operator", "phone"}
        assert token["secret"] not in listed.text
        assert "digest" not in listed.text
        gone = await stage.client.delete(f"/v1/tokens/{token['id']}", headers=admin, params={"reason": "lost"})
        assert gone.json()["state"] == "revoked"
        refused = await stage.client.post("/v1/sessions/s/messages", json={"text": "x"}, headers=phone)
        assert refused.status_code == 401
        assert (await stage.client.get("/v1/tokens", headers=phone)).status_code == 401


async def test_what_administrators_do_is_in_the_audit_log_without_secrets(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        admin = stage.operator(scopes=(Scope.ADMIN,))
        made = (
            await stage.client.post(
                "/v1/tokens", json={"name": "phone", "scopes": ["chat"], "reason": "why not"}, headers=admin
            )
        ).json()
        await stage.client.delete(f"/v1/tokens/{made['id']}", headers=admin)
        log = await stage.client.get("/v1/audit", headers=admin)
        seen = [(each["action"], each["target"], each["reason"]) for each in log.json()["items"]]
        assert seen == [("token.create", "phone", "why not"), ("token.revoke", made["id"], "")]
        assert made["secret"] not in log.text


@pytest.mark.parametrize("scope", ["chat", "operate", "worker"])
async def test_only_administrators_have_to_do_with_tokens(tmp_path: Path, scope: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        headers = await stage.token(scope)
        for method, path in (("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/x")):
            body = {"name": "me", "scopes": ["admin"]} if method == "POST" else None
            answer = await stage.client.request(method, path, headers=headers, json=body)
            assert answer.status_code == 403, (method, path, answer.text)
        assert len(stage.gateway.tokens.tokens()) == 1


async def test_whoever_has_no_token_makes_none(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.post("/v1/tokens", json={"name": "me", "scopes": ["admin"]})
        assert answer.status_code == 401
        assert stage.gateway.tokens.tokens() == []


async def test_the_administrator_of_a_tenant_sees_and_makes_tokens_of_that_tenant_only(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        admin = await stage.token("admin", tenant="acme", name="acme-admin")
        await stage.token("chat", tenant="rival", name="rival-phone")
        rival = next(each for each in stage.gateway.tokens.tokens() if each.name == "rival-phone")
        listed = await stage.client.get("/v1/tokens", headers=admin)
        assert [each["name"] for each in listed.json()["items"]] == ["acme-admin"]
        for tenant in ("rival", "*"):
            body = {"name": "x", "scopes": ["chat"], "tenant": tenant}
            assert (await stage.client.post("/v1/tokens", json=body, headers=admin)).status_code == 403
        theirs = await stage.client.delete(f"/v1/tokens/{rival.id}", headers=admin)
        unknown = await stage.client.delete("/v1/tokens/000000000000", headers=admin)
        assert (theirs.status_code, unknown.status_code) == (404, 404)
        assert theirs.text.replace(rival.id, "?") == unknown.text.replace("000000000000", "?")
        own = await stage.client.post("/v1/tokens", json={"name": "x", "scopes": ["chat"]}, headers=admin)
        assert own.json()["tenant"] == "acme"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": "chat"},
        {"name": "", "scopes": ["chat"]},
        {"name": "a\nb", "scopes": ["chat"]},
        {"name": "x", "scopes": ["chat"], "expires_in_ms": 0},
        {"name": "x", "scopes": ["chat"], "expires_in_ms": 10**30},
        {"name": "x", "scopes": ["chat"], "digest": "a" * 64},
    ],
)
async def test_a_bad_request_for_a_token_makes_none(tmp_path: Path, body: Any) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.post("/v1/tokens", json=body, headers=stage.operator(scopes=(Scope.ADMIN,)))
        assert answer.status_code in (400, 422)
        assert answer.headers["content-type"] == "application/problem+json"
        assert stage.gateway.tokens.is_empty
