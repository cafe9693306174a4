"""The audit log: written before the action, for the tenant it is about, without secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import StoreUnavailableError
from laneway.gateway.access import Caller, Scope
from laneway.gateway.audit import Audit, AuditQuery
from laneway.gateway.tokens import GATEWAY
from laneway.rows import Batch, BatchResult, EventRow, Owner
from laneway.stores.memory import MemoryStore
from laneway.testing import FakeClock
from tests.gateway_stage import gateway_stage

DESK = Caller(name="desk", tenant="acme", scopes=frozenset({Scope.OPERATE}), token_id="t1")
SECRET = "lw_0123456789ab_" + "x" * 40


class FullStore(MemoryStore):
    """A store that keeps nothing any more."""

    error: Exception = StoreUnavailableError("the disk is full")

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        return [BatchResult(self.error) for _ in batches]


async def test_an_action_is_kept_with_who_what_and_why() -> None:
    store, clock = MemoryStore(), FakeClock()
    await store.open()
    audit = Audit(store, clock)
    await audit.record(DESK, "approval.approve", "a-1", reason="looks good", tool="bash")
    (entry,) = await audit.entries("acme")
    assert (entry.actor, entry.action, entry.target, entry.reason) == ("desk", "approval.approve", "a-1", "looks good")
    assert entry.facts == {"tool": "bash", "token": "t1"}
    assert entry.at_ms == clock.wall_ms()
    assert await audit.entries("rival") == []
    await store.close()


async def test_secrets_and_long_texts_are_not_kept() -> None:
    store = MemoryStore()
    await store.open()
    audit = Audit(store, FakeClock())
    await audit.record(DESK, "x", SECRET, reason=f"uses {SECRET} " + "y" * 10_000, note=SECRET, password="hunter2")
    (entry,) = await audit.entries("acme")
    assert SECRET not in f"{entry}"
    assert "hunter2" not in f"{entry}"
    assert len(entry.reason) == 2_000
    await store.close()


async def test_facts_cannot_pretend_that_somebody_else_did_it() -> None:
    store = MemoryStore()
    await store.open()
    audit = Audit(store, FakeClock())
    await audit.record(DESK, "x", "y", actor="root", token="t9")
    (entry,) = await audit.entries("acme")
    assert (entry.actor, entry.facts) == ("desk", {"token": "t1"})
    await store.close()


@pytest.mark.parametrize("error", [StoreUnavailableError("the disk is full"), RuntimeError("odd")])
async def test_what_cannot_be_logged_is_an_error(error: Exception) -> None:
    store = FullStore()
    store.error = error
    await store.open()
    with pytest.raises(StoreUnavailableError):
        await Audit(store, FakeClock()).record(DESK, "x", "y")
    await store.close()


@pytest.mark.parametrize("body", ["", "{", "null", "[1]", "{}", '{"actor": 7, "reason": null}'])
async def test_a_damaged_entry_still_shows_that_something_was_done(body: str) -> None:
    store = MemoryStore()
    await store.open()
    owner = Owner("acme", GATEWAY, "audit")
    row = EventRow(*owner, store.next_seq(), 5, "operator.lane.pause", "", "", body)
    await store.commit([Batch(owner, store.epoch, (row,))])
    (entry,) = await Audit(store, FakeClock()).entries("acme")
    assert (entry.action, entry.at_ms) == ("lane.pause", 5)
    await store.close()


async def test_the_log_is_read_in_pages_by_operators_of_the_tenant(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for number in range(5):
            await stage.gateway.audit.record(DESK, "x", str(number))
        headers = await stage.token("operate", tenant="acme")
        rival = await stage.token("operate", tenant="rival")
        first = (await stage.client.get("/v1/audit?limit=3", headers=headers)).json()
        rest = (await stage.client.get(f"/v1/audit?limit=3&after={first['next']}", headers=headers)).json()
        assert [each["target"] for each in (*first["items"], *rest["items"])] == list("01234")
        assert rest["next"] is None
        assert (await stage.client.get("/v1/audit", headers=rival)).json()["items"] == []
        for query in ("after=-1", "after=x", "limit=0", "limit=1001", f"after={2**63}"):
            assert (await stage.client.get(f"/v1/audit?{query}", headers=headers)).status_code == 422


async def test_the_log_is_read_newest_first_with_filters(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        audit = stage.gateway.audit
        for number in range(5):
            await audit.record(DESK, "lane.change", f"lane-{number}", reason="Night shift", paused=True)
        await audit.record(replace(DESK, name="ada"), "schedule.run", "sched-1", session_key="daily")
        headers = await stage.token("operate", tenant="acme")

        async def targets(**asked: Any) -> list[str]:
            found = await stage.client.get("/v1/audit", params={"order": "newest", **asked}, headers=headers)
            return [each["target"] for each in found.json()["items"]]

        lanes = [f"lane-{number}" for number in (4, 3, 2, 1, 0)]
        assert await targets() == ["sched-1", *lanes]
        assert await targets(action="lane") == lanes
        assert await targets(action="lane.change", limit=2) == lanes[:2]
        assert await targets(action="lan") == []
        assert await targets(actor="ADA") == ["sched-1"]
        assert await targets(target="lane-3") == ["lane-3"]
        assert await targets(text="night SHIFT") == lanes
        assert await targets(text="daily") == ["sched-1"]
        first = (await stage.client.get("/v1/audit?order=newest&limit=4", headers=headers)).json()
        assert await targets(after=first["next"]) == lanes[3:]
        at = first["items"][0]["at_ms"]
        assert await targets(from_ms=at + 1) == []
        assert len(await targets(from_ms=1, to_ms=at + 1)) == 6
        assert await targets(to_ms=1) == []
        refused = await stage.client.get("/v1/audit?actor=ada", headers=headers)
        assert refused.status_code == 400


async def test_a_search_in_a_long_log_is_bounded_and_goes_on_where_it_was() -> None:
    store = MemoryStore()
    await store.open()
    audit, owner = Audit(store, FakeClock()), Owner("acme", GATEWAY, "audit")
    rows = [EventRow(*owner, store.next_seq(), 5, "operator.x", "", "", "{}") for _ in range(20_100)]
    await store.commit([Batch(owner, store.epoch, tuple(rows))])
    found, following = await audit.newest("acme", AuditQuery(actor="nobody"))
    assert (found, following) == ([], rows[100].seq)
    assert await audit.newest("acme", AuditQuery(actor="nobody"), before_seq=following) == ([], 0)
    await store.close()


async def test_a_token_that_cannot_be_logged_is_not_made(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        admin = stage.operator(scopes=(Scope.ADMIN,))
        stage.gateway.audit = Audit(FullStore(), FakeClock())
        answer = await stage.client.post("/v1/tokens", json={"name": "x", "scopes": ["chat"]}, headers=admin)
        assert answer.status_code == 503
        assert stage.gateway.tokens.is_empty
