"""Sessions of two tenants in one store and one folder: the same id is another session, and nobody sees the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway import (
    AsyncAgent,
    ConfigError,
    InvalidMessageError,
    MemorySessionStore,
    PermissionPolicy,
    SessionOptions,
    SessionQueueConfig,
    UnknownMessageError,
    tool,
)
from laneway.identity import Identity
from laneway.models import ScriptedModel, say
from laneway.runtime.envelope import check_key


def _agent(store: MemorySessionStore, paid: list[str], tenant: str, **more: Any) -> AsyncAgent:
    @tool
    async def pay(bill: str) -> str:
        """Pay a bill."""
        paid.append(f"{tenant} {bill}")
        return "paid"

    model = ScriptedModel([[say(f"I am {tenant}'s")]] * 4)
    policy = PermissionPolicy(allow=["*"])
    return AsyncAgent(
        model, tools=[pay], builtin_tools=False, session_store=store, permission_policy=policy, tenant_id=tenant, **more
    )


async def test_the_same_id_of_another_tenant_is_another_session() -> None:
    store, paid = MemorySessionStore(), list[str]()
    async with _agent(store, paid, "a") as first, _agent(store, paid, "b") as second:
        mine, theirs = first.session(session_id="s"), second.session(session_id="s")
        answer = await mine.send("hello")
        assert (await theirs.send("hello")).text == "I am b's"
        assert len(await theirs.history()) == len(await mine.history()) == 2
        with pytest.raises(UnknownMessageError):
            await theirs.wait(answer.message_id)
        with pytest.raises(UnknownMessageError):
            await theirs.withdraw(answer.message_id)
        assert not await theirs.approve("approval-1")
        assert await first.stored_sessions(tenant="a") == ["s"]


@pytest.mark.slow
async def test_what_a_tenant_has_queued_in_a_folder_is_run_by_nobody_else(tmp_path: Path) -> None:
    paid: list[str] = []
    for tenant in ("a", "b"):
        config = SessionQueueConfig(storage_path=str(tmp_path), enable_dlq=True)
        async with _agent(MemorySessionStore(), paid, tenant, queue_config=config) as agent:
            session = await agent.session(session_id="s").ready()
            assert session.dead_letters() == []
            await session.submit("execute", {"tool": "pay", "bill": "rent"})
    assert paid == ["a rent", "b rent"]


@pytest.mark.parametrize(
    "tenant", ["acme", "a b", "~x", "ä.b", "x" * 400, "...", "a/b", "/", ".", "..", " ", "a\nb", ""]
)
def test_a_tenant_that_no_message_could_be_of_is_refused_at_once(tenant: str) -> None:
    try:
        check_key(tenant, "tenant")
    except InvalidMessageError:
        for make in (SessionOptions, Identity):
            with pytest.raises(ConfigError, match="tenant_id"):
                make(tenant_id=tenant)
    else:
        assert SessionOptions(tenant_id=tenant).tenant_id == Identity(tenant_id=tenant).tenant_id == tenant
