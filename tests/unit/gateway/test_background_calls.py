"""Calls in the background of a gateway's sessions: their sessions stay open, and a new process opens them again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from laneway.external import ExternalTaskResult
from laneway.gateway.service import Gateway
from laneway.models import call, say
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.gateway_stage import gateway_in
from tests.unit.gateway.test_workspaces import ask

TEXT = """
default_model: scripted
background_tools: [bash]
permissions: {allow: ["*"]}
queue:
  mode: followup
  debounce_idle: false
  lane_handlers:
    execute: {mode: external, timeout_ms: 600000, background_after_ms: 0}
lanes:
  main: 8
"""
SCRIPT = [[call("bash", command="make")], [say("on")]]


async def told(gateway: Gateway, key: str) -> list[str]:
    """What was said in a session, as soon as nothing is left to do there."""
    session = await gateway.default.session("default", key)
    await session.wait_idle()
    return [entry.text for entry in await gateway.default.inbox.history(key)]


async def test_a_session_with_a_call_in_the_background_is_not_closed_to_make_room(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, script=[*SCRIPT, [say("hi")], [say("off")]], text=TEXT, sessions_max=1) as gateway:
        assert (await ask(gateway, "a", "go")).answer == "on"
        await ask(gateway, "b", "hello")
        live = {session.session_id: session for session in gateway.default.live_sessions()}
        [listed] = live["a"].background()
        assert await live["a"].complete_external_task(listed.task_id, "made")
        lines = await told(gateway, "a")
        assert lines[2].endswith("Result:\nmade")
        assert lines[3] == "off"


async def test_after_a_restart_its_session_is_opened_by_itself_and_hears_of_the_end(tmp_path: Path) -> None:
    disk = MemoryDisk()
    async with gateway_in(tmp_path, script=SCRIPT, text=TEXT, store=MemoryStore(disk)) as gateway:
        assert (await ask(gateway, "a", "go")).answer == "on"
    async with gateway_in(tmp_path, script=[[say("off")]], text=TEXT, store=MemoryStore(disk)) as gateway:
        desk = gateway.default.host.desk
        [lease] = await desk.claim("w", wait_ms=10_000)
        await desk.start(lease.task["task_id"], lease.token)
        await desk.complete(lease.task["task_id"], lease.token, ExternalTaskResult(result="made"))
        lines = await told(gateway, "a")
        assert lines[2].endswith("Result:\nmade")
        assert lines[3] == "off"
        assert len(lines) == 4
        await asyncio.sleep(0)
