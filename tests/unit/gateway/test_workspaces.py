"""Sessions of a workspace open by themselves, and close when there are too many; nothing is lost by either."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.errors import ConfigError, InvalidMessageError, NotFoundError, UnavailableError
from laneway.gateway.access import LOCAL, Caller
from laneway.gateway.service import Gateway
from laneway.mail import MessageState, Outcome
from tests.gateway_stage import gateway_in, gateway_stage, spec_of


async def ask(gateway: Gateway, key: str, text: str, workspace: str = "") -> Any:
    place = gateway.workspace(workspace)
    receipt = await gateway.submit(place, LOCAL, key, text)
    return await place.inbox.wait(receipt.message_id)


async def running(gateway: Gateway, key: str) -> None:
    """Wait until a turn runs in a session."""
    engine, owner = gateway.default.inbox.engine, gateway.default.owner("default", key)
    for _ in range(100_000):
        if engine.running_turn(owner) is not None:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"nothing runs in {key}")


async def test_at_most_so_many_sessions_stay_in_memory_and_each_still_knows_what_was_said(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, sessions_max=3) as gateway:
        for number in range(10):
            await ask(gateway, f"s{number}", f"I am {number}")
        live = {session.session_id for session in gateway.default.live_sessions()}
        assert live == {"s7", "s8", "s9"}
        session = await gateway.default.session("default", "s0")
        assert [str(each) for each in await session.history()] == ["user: I am 0", "assistant: You said: I am 0"]


async def test_a_session_that_is_asked_for_while_it_closes_is_opened_again(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, sessions_max=1) as gateway:
        answers = []
        for number in range(12):
            answers.append(asyncio.create_task(ask(gateway, f"s{number % 3}", f"m{number}")))
            await asyncio.sleep(0)
        finals = await asyncio.gather(*answers)
        assert all(final.outcome is Outcome.SUCCEEDED for final in finals)


async def test_many_who_ask_for_one_session_get_the_same_one(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        found = await asyncio.gather(*(gateway.default.session("default", "a") for _ in range(20)))
        assert len({id(session) for session in found}) == 1


async def test_two_workspaces_have_sessions_of_the_same_name_that_know_nothing_of_each_other(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    specs = [spec_of(folder, name=folder.name) for folder in folders]
    async with gateway_in(tmp_path, specs=specs) as gateway:
        first, second = await ask(gateway, "s", "first", "one"), await ask(gateway, "s", "second", "two")
        assert (first.answer, second.answer) == ("You said: first", "You said: second")
        told = [entry.text for entry in await gateway.workspace("two").inbox.history("s")]
        assert told == ["second", "You said: second"]
        sessions = [await gateway.workspace(name).session("default", "s") for name in ("one", "two")]
        assert [Path(session.workspace).name for session in sessions] == ["one", "two"]
        with pytest.raises(NotFoundError, match="one, two"):
            gateway.workspace("three")


async def test_what_a_stopped_gateway_has_left_goes_on_with_the_next(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, drain_ms=1) as gateway:
        receipt = await gateway.submit(gateway.default, LOCAL, "s", "wait 30\nthen\nhello")
        later = await gateway.submit(gateway.default, LOCAL, "s", "and then")
        await running(gateway, "s")
    async with gateway_in(tmp_path, script=[]) as gateway:
        final = await gateway.default.inbox.wait(later.message_id)
        first = await gateway.default.inbox.status(receipt.message_id)
        assert (first.outcome, final.outcome) == (Outcome.SUCCEEDED, Outcome.SUCCEEDED)


async def test_a_session_that_cannot_be_opened_keeps_its_messages_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[AsyncSession, Any], Any] = AsyncSession._move_in  # noqa: SLF001 - the part of opening that fails
    failures = iter([True, False])

    async def move_in(self: AsyncSession, host: Any) -> None:
        if next(failures, False):
            raise ConfigError("not today", setting="x")
        await real(self, host)

    monkeypatch.setattr(AsyncSession, "_move_in", move_in)
    monkeypatch.setattr("laneway.gateway.workspaces.REOPEN_DELAY_S", 0)
    async with gateway_in(tmp_path) as gateway:
        final = await ask(gateway, "s", "hello")
        assert final.answer == "You said: hello"


async def test_nobody_talks_to_a_sub_agent_past_its_parent(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        with pytest.raises(InvalidMessageError, match="send it to 'a'"):
            await gateway.submit(gateway.default, LOCAL, "a~0123456789ab", "hello")
        with pytest.raises(NotFoundError):
            await gateway.default.session("default", "a~0123456789ab")


async def test_settings_of_the_file_hold_for_messages_and_a_command_overrules_them_for_good(tmp_path: Path) -> None:
    text = "default_model: scripted\nqueue:\n  mode: interrupt\n  debounce_idle: false\n"
    async with gateway_in(tmp_path, text=text, sessions_max=1) as gateway:
        command = await gateway.submit(gateway.default, LOCAL, "s", "/queue")
        assert "interrupt" in (command.reply or "")
        await gateway.submit(gateway.default, LOCAL, "s", "/queue followup")
        for key in ("s", "other", "s"):
            await ask(gateway, key, "hello")
        again = await gateway.submit(gateway.default, LOCAL, "s", "/queue")
        assert "followup" in (again.reply or "")


async def test_tenants_have_sessions_of_their_own(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        ours = await stage.token("chat", tenant="acme")
        theirs = await stage.token("chat", tenant="other")
        first = await stage.send("s", "a secret", headers=ours)
        second = await stage.send("s", "hello", headers=theirs)
        assert first["message_id"] != second["message_id"]
        told = [entry.text for entry in await stage.gateway.default.inbox.history("s", tenant="other")]
        assert told == ["hello", "You said: hello"]
        final = await stage.gateway.default.inbox.status(first["message_id"])
        assert final.disposition is MessageState.RAN


async def test_a_run_that_goes_on_after_a_restart_is_not_merged_with_what_came_meanwhile(tmp_path: Path) -> None:
    text = "default_model: scripted\nqueue:\n  mode: collect\n  debounce_ms: 0\n  debounce_idle: false\n"
    async with gateway_in(tmp_path, text=text, drain_ms=1) as gateway:
        cut = await gateway.submit(gateway.default, LOCAL, "s", "wait 30\nthen\nfirst")
        await running(gateway, "s")
        later = [await gateway.submit(gateway.default, LOCAL, "s", name) for name in ("second", "third")]
    async with gateway_in(tmp_path, text=text, script=[]) as gateway:
        finals = [await gateway.default.inbox.wait(each.message_id) for each in (cut, *later)]
        turns = [final.turn_id for final in finals]
        assert turns[0] != turns[1] == turns[2]
        assert [final.outcome for final in finals] == [Outcome.SUCCEEDED] * 3


@pytest.mark.parametrize("name", ["laneway.db", "laneway.db-wal", "laneway.db.lock", "./laneway.db", "link.db"])
async def test_the_tools_of_an_agent_do_not_reach_the_store_it_lives_in(tmp_path: Path, name: str) -> None:
    text = "default_model: scripted\npermissions:\n  allow: ['*']\n"
    async with gateway_in(tmp_path, text=text) as gateway:
        os.symlink(tmp_path / "laneway.db", tmp_path / "link.db")
        session = await gateway.default.session("default", "s")
        for tool, more in (("write", {"content": "x"}), ("read", {}), ("edit", {"old": "a", "new": "b"})):
            assert "forbid" in str(await session.tool(tool, {"path": name, **more}))
        await session.tool("write", {"path": "laneway_notes.txt", "content": "x"})
        assert "laneway.db" not in str(await session.tool("grep", {"pattern": "SQLite", "path": "."}))


@pytest.mark.parametrize("name", ["agent.yaml", "agent.toml", "Agent.YAML", "x/../agent.yaml", "link", "laneway.hcl"])
async def test_the_tools_of_an_agent_do_not_change_what_it_was_made_from(tmp_path: Path, name: str) -> None:
    text = "default_model: scripted\npermissions:\n  allow: ['*']\n"
    (tmp_path / "agent.yaml").write_text(text)
    (tmp_path / "x").mkdir()
    os.symlink("agent.yaml", tmp_path / "link")
    spec = replace(spec_of(tmp_path, text=text), files=(str(tmp_path / "x" / ".." / "laneway.hcl"),))
    async with gateway_in(tmp_path, specs=[spec]) as gateway:
        session = await gateway.default.session("default", "s")
        change = {"old": "'*'", "new": "bash"}
        diff = {"diff": "@@ -0,0 +1 @@\n+permissions: {allow: [bash]}\n"}
        for tool, more in (("write", {"content": "x"}), ("edit", change), ("patch", diff)):
            assert "no tool changes it" in str(await session.tool(tool, {"path": name, **more}))
        assert "scripted" in str(await session.tool("read", {"path": "agent.yaml"}))
        assert "made" in str(await session.tool("write", {"path": "x/agent.yaml", "content": "x"}))
    assert (tmp_path / "agent.yaml").read_text() == text
    assert not {"agent.toml", "Agent.YAML", "laneway.hcl"} & set(os.listdir(tmp_path))


async def test_each_workspace_is_as_wide_as_its_own_file_says(tmp_path: Path) -> None:
    widths = {"one": 1, "two": 3}
    text = "default_model: scripted\nlanes:\n  main: {}\n"
    specs = [spec_of(tmp_path, name=name, text=text.format(width)) for name, width in widths.items()]
    async with gateway_in(tmp_path, specs=specs) as gateway:
        lanes = gateway.lanes.stats().lanes
        assert {name: lanes[f"{name}/main"].max_concurrent for name in widths} == widths


async def test_a_session_that_somebody_uses_stays_in_memory_until_it_is_left(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, sessions_max=1) as gateway:
        await ask(gateway, "used", "hello")
        async with gateway.default.using("default", "used") as session:
            for number in range(5):
                await ask(gateway, f"s{number}", "hello")
            assert gateway.default.live_session("default", "used") is session
            assert [str(each) for each in await session.history()] == ["user: hello", "assistant: You said: hello"]
        assert len(gateway.default.live_sessions()) == 1


async def test_who_waits_for_a_session_while_the_gateway_closes_is_told_so_and_not_cancelled(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        waiting = asyncio.create_task(gateway.default.session("default", "a"))
        await asyncio.sleep(0)
        await gateway.close()
        with pytest.raises(UnavailableError, match="being stopped"):
            await waiting
        with pytest.raises(UnavailableError, match="being stopped"):
            await gateway.default.session("default", "b")


async def test_who_leaves_while_a_session_is_being_opened_is_cancelled_and_the_session_is_opened(
    tmp_path: Path,
) -> None:
    async with gateway_in(tmp_path) as gateway:
        waiting = asyncio.create_task(gateway.default.session("default", "a"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await gateway.default.session("default", "a")).session_id == "a"


async def test_a_tenant_that_sends_much_does_not_hold_up_another(tmp_path: Path) -> None:
    text = "default_model: scripted\nlanes:\n  main: 1\n"
    many, few = Caller(name="many", tenant="many"), Caller(name="few", tenant="few")
    async with gateway_in(tmp_path, text=text) as gateway:
        for number in range(20):
            await gateway.submit(gateway.default, many, f"s{number}", "hello")
        receipt = await gateway.submit(gateway.default, few, "s", "hello")
        final = await gateway.default.inbox.wait(receipt.message_id)
        assert final.outcome is Outcome.SUCCEEDED
        assert len(gateway.default.inbox.engine.kernel.items) >= 10


async def test_what_waits_for_a_paused_lane_says_so_from_its_receipt_on(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, specs=[spec_of(tmp_path, name="shop")]) as gateway:
        await gateway.default.session("default", "s")
        gateway.lanes.pause("shop/main")
        receipt = await gateway.submit(gateway.default, LOCAL, "s", "hello")
        [waiting] = gateway.default.inbox.pending("s")
        assert receipt.reason.startswith("its turn waits: lane 'shop/main' is paused")
        assert waiting.reason.startswith("its turn waits: lane 'shop/main' is paused")


async def test_a_conversation_is_compacted_by_a_command(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        await ask(gateway, "s", "hello")
        command = await gateway.submit(gateway.default, LOCAL, "s", "/compact")
        assert command.reply == "The conversation is being compacted."
        session = await gateway.default.session("default", "s")
        await session.wait_idle()
        helped = await gateway.submit(gateway.default, LOCAL, "s", "/help")
        assert "/stop" in (helped.reply or "")


async def test_the_bare_name_of_a_lane_for_turns_is_that_of_every_workspace(tmp_path: Path) -> None:
    specs = [spec_of(tmp_path, name=name) for name in ("one", "two")]
    async with gateway_stage(tmp_path, specs=specs) as stage:
        order = {"concurrency": 5, "paused": True, "reason": "maintenance"}
        answer = await stage.client.patch("/v1/lanes/main", json=order, headers=stage.operator())
        assert answer.status_code == 200, answer.text
        lanes = stage.gateway.lanes.stats().lanes
        assert {name: (lanes[name].max_concurrent, lanes[name].paused) for name in ("one/main", "two/main")} == {
            "one/main": (5, True),
            "two/main": (5, True),
        }
