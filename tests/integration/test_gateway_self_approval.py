"""An agent whose own shell tries to approve its own call: nothing works, and an operator still can."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from laneway.gateway.access import Scope
from laneway.kernel import texts
from laneway.mail import Approval
from laneway.models import call, say
from tests.gateway_stage import GatewayStage, serving

SCRIPT = Path(__file__).with_name("self_approval.py")
LANEWAY = Path(sys.executable).with_name("laneway")
AGENT = """\
default_model: scripted
queue: {mode: followup, debounce_idle: false}
permissions:
  allow: ["bash(*)"]
  ask: ["write"]
confirmation: {default_timeout_ms: 60000}
"""

pytestmark = pytest.mark.slow


def script_of(folder: Path) -> list[Any]:
    """What the model does: start the attack beside itself, then ask for what needs an approval."""
    attack = f"setsid -f {sys.executable} attack.py $(cat where) {LANEWAY} result.json >attack.log 2>&1 </dev/null"
    return [
        [call("bash", command=attack)],
        [call("write", path="owned.txt", content="it ran")],
        [say("done")],
    ]


def pending(stage: GatewayStage) -> list[Approval]:
    """What is asked at this moment."""
    return stage.gateway.default.inbox.approvals(tenant="default")


async def result_of(folder: Path) -> dict[str, Any]:
    """What came of the attempts, when all were made."""
    async with asyncio.timeout(120):
        while not (folder / "result.json").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


async def begin(stage: GatewayStage, folder: Path) -> str:
    """Give the agent its task; the id of the message."""
    shutil.copy(SCRIPT, folder / "attack.py")
    (folder / "where").write_text(f"{stage.url} {stage.gateway.settings.store}")
    sent = await stage.client.post("/v1/sessions/main/messages", json={"text": "go"})
    assert sent.status_code == 202
    return str(sent.json()["message_id"])


def check_all_refused(results: dict[str, Any]) -> None:
    """Every attempt was refused, and nothing was found."""
    assert results.pop("look") == 200  # to look is allowed
    assert results.pop("names") == []
    assert results.pop("secrets") == 0
    commands = {name: results.pop(name) for name in list(results) if name.startswith(("command", "token by"))}
    assert all(code in (2, 3, 4, 5) for code in commands.values()), commands
    assert commands["command"] == 5
    assert all(status in (401, 403, 421) for status in results.values()), results
    assert len(results) > 30


async def test_an_agent_cannot_approve_its_own_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, text=AGENT, script=script_of(tmp_path)) as stage:
        operator = stage.operator()
        monkeypatch.setenv("LANEWAY_TOKEN", operator["Authorization"].removeprefix("Bearer "))
        message_id = await begin(stage, tmp_path)
        results = await result_of(tmp_path)
        check_all_refused(results)
        (asked,) = pending(stage)
        assert asked.action == "write"
        assert not (tmp_path / "owned.txt").exists()
        answer = await stage.client.post(f"/v1/approvals/{asked.id}", json={"approve": True}, headers=operator)
        assert answer.status_code == 200, answer.text
        async with asyncio.timeout(60):
            await stage.gateway.default.inbox.wait(message_id)
        assert (tmp_path / "owned.txt").read_text() == "it ran"
        log = (await stage.client.get("/v1/audit", headers=operator)).json()["items"]
        assert [(each["actor"], each["action"], each["target"]) for each in log] == [
            ("operator", "approval.approve", asked.id)
        ]


async def test_nor_with_tokens_in_the_store_and_named_approvers(tmp_path: Path) -> None:
    agent = AGENT.replace("60000}", "60000, approvers: [ada, operator, local]}")
    async with serving(tmp_path, text=agent, script=script_of(tmp_path)) as stage:
        message_id = await begin(stage, tmp_path)
        results = await result_of(tmp_path)
        check_all_refused(results)
        (asked,) = pending(stage)
        chat = await stage.token("chat", name="ada")  # the name of an approver, and not its scope
        text = f"/approve {asked.id}"
        refused = await stage.client.post("/v1/sessions/main/messages", json={"text": text}, headers=chat)
        assert refused.status_code == 403
        bob = await stage.token("operate", name="bob")  # the scope, and not the name
        claimed = await stage.client.post(
            "/v1/sessions/main/messages", json={"text": text, "sender": "ada"}, headers=bob
        )
        assert claimed.json()["reply"] == texts.not_an_approver_reply()
        assert pending(stage) == [asked]
        ada = await stage.token("operate", name="ada")
        done = await stage.client.post("/v1/sessions/main/messages", json={"text": text}, headers=ada)
        assert done.status_code == 202, done.text
        async with asyncio.timeout(60):
            await stage.gateway.default.inbox.wait(message_id)
        assert (tmp_path / "owned.txt").exists()


async def test_an_operator_of_another_tenant_cannot_approve_it_either(tmp_path: Path) -> None:
    script = [[call("write", path="owned.txt", content="x")], [say("done")]]
    async with serving(tmp_path, text=AGENT, script=script) as stage:
        rival = stage.operator(tenant="rival", scopes=(Scope.ADMIN,))
        watcher = stage.gateway.default.hub.watch("default", "main")
        await begin(stage, tmp_path)
        async with asyncio.timeout(60):
            while not pending(stage):
                await anext(watcher)
        watcher.close()
        (asked,) = pending(stage)
        answer = await stage.client.post(f"/v1/approvals/{asked.id}", json={"approve": True}, headers=rival)
        assert answer.status_code == 404
        assert pending(stage) == [asked]
