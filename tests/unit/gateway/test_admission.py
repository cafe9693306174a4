"""Too much waits: newcomers are told when to come back, and what was accepted is not lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import OverloadedError
from laneway.gateway.access import LOCAL
from laneway.gateway.admission import RETRY_MAX_MS, RETRY_MIN_MS, RETRY_MS
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings
from laneway.mail import MessageState, Outcome, Receipt
from laneway.models import ScriptedModel, say
from laneway.stores import MemoryStore
from laneway.system import HostEnv
from laneway.testing import FakeClock
from tests.agent_stage import Held
from tests.gateway_stage import gateway_stage, spec_of

NARROW = "default_model: scripted\nqueue:\n  mode: followup\n  debounce_idle: false\nlanes:\n  main: 1\n"


def gateway_of(folder: Path, *script: Any, clock: FakeClock | None = None, **settings: Any) -> Gateway:
    model = ScriptedModel([*script, *[[say("ok")]] * 200]) if script else None
    env = HostEnv(clock=clock) if clock is not None else HostEnv()
    given = GatewaySettings(drain_ms=1, **settings)
    return Gateway(given, [spec_of(folder, text=NARROW, model=model)], env=env, store=MemoryStore(), environ={})


async def send(gateway: Gateway, key: str, text: str = "hello", **more: Any) -> Receipt:
    receipt = await gateway.submit(gateway.default, LOCAL, key, text, **more)
    if receipt.disposition is not MessageState.COMMAND:
        await gateway.default.session("default", key)
    return receipt


async def busy(gateway: Gateway, held: Held) -> Receipt:
    """A run that lasts until the test lets it go, in the only slot there is."""
    receipt = await send(gateway, "first")
    await held.asked.wait()
    return receipt


async def test_messages_that_wait_are_counted_and_those_that_run_are_not(tmp_path: Path) -> None:
    held = Held(say("done"))
    async with gateway_of(tmp_path, held, waiting_max=2) as gateway:
        await busy(gateway, held)
        assert gateway.admission.waiting() == 0
        for key in ("a", "b"):
            await send(gateway, key)
        assert gateway.admission.waiting() == 2
        with pytest.raises(OverloadedError, match=r"2 messages wait already \(at most 2\)"):
            await send(gateway, "c")
        held.let_go()


async def test_whoever_is_refused_is_told_by_http_when_to_come_back(tmp_path: Path) -> None:
    held = Held(say("done"))
    script = [held, *[[say("ok")]] * 10]
    async with gateway_stage(
        tmp_path, script=script, text=NARROW, store=MemoryStore(), waiting_max=1, drain_ms=1
    ) as stage:
        await busy(stage.gateway, held)
        answers = [
            await stage.client.post("/v1/sessions/a/messages", json={"text": "hello"}, headers={"Idempotency-Key": key})
            for key in ("one", "two", "two")
        ]
        assert [answer.status_code for answer in answers] == [202, 503, 503]
        assert answers[1].headers["retry-after"] == str(RETRY_MS // 1000)
        assert answers[1].json()["code"] == "overloaded"
        held.let_go()
        await stage.gateway.default.inbox.wait(answers[0].json()["message_id"])
        again = await stage.client.post(
            "/v1/sessions/a/messages", json={"text": "hello"}, headers={"Idempotency-Key": "two"}
        )
        assert (again.status_code, again.json()["duplicate"]) == (202, False)


async def test_commands_and_the_system_are_always_heard_but_messages_in_the_shape_of_a_command_are_not(
    tmp_path: Path,
) -> None:
    held = Held(say("done"))
    async with gateway_of(tmp_path, held, waiting_max=1) as gateway:
        await busy(gateway, held)
        await send(gateway, "a")
        for text in ("/status", "/queue", "/stop", "/compact", "/compact the names", "/new", "/NEW@bot  "):
            receipt = await send(gateway, "a" if text in ("/status", "/queue") else "b", text)
            assert receipt.disposition is MessageState.COMMAND
        note = await send(gateway, "a", "a child has ended", kind="system")
        assert note.disposition is MessageState.QUEUED
        for text in ("/steer now", "/followup later", "no command", "/new hello", " /NEW@bot hello", "/queue cap:3 x"):
            with pytest.raises(OverloadedError):
                await send(gateway, "a", text)
        held.let_go()


async def test_nothing_that_was_accepted_at_the_edge_is_lost(tmp_path: Path) -> None:
    held = Held(say("done"))
    async with gateway_of(tmp_path, held, waiting_max=10) as gateway:
        first = await busy(gateway, held)
        results = await asyncio.gather(
            *(gateway.submit(gateway.default, LOCAL, f"s{number % 20}", "hello") for number in range(50)),
            return_exceptions=True,
        )
        accepted = [each for each in results if isinstance(each, Receipt)]
        refused = [each for each in results if isinstance(each, OverloadedError)]
        assert (len(accepted), len(refused)) == (10, 40)
        held.let_go()
        finals = [await gateway.default.inbox.wait(each.message_id) for each in (first, *accepted)]
        assert {final.outcome for final in finals} == {Outcome.SUCCEEDED}
        assert (await send(gateway, "s0")).disposition is MessageState.QUEUED


async def test_a_turn_that_has_waited_too_long_for_a_slot_closes_the_door(tmp_path: Path) -> None:
    clock, held = FakeClock(), Held(say("done"))
    async with gateway_of(tmp_path, held, clock=clock, oldest_max_ms=5_000) as gateway:
        await busy(gateway, held)
        await send(gateway, "first", "behind its own turn")
        clock.advance(60_000)
        assert gateway.admission.oldest_ms() == 0  # it waits for its session, which says nothing about load
        waiting = await send(gateway, "a")
        clock.advance(4_999)
        await send(gateway, "b")
        clock.advance(1)
        with pytest.raises(OverloadedError, match="5,000 ms already") as caught:
            await send(gateway, "c")
        assert caught.value.retry_after_ms == RETRY_MIN_MS
        held.let_go()
        await gateway.default.inbox.wait(waiting.message_id)
        assert gateway.admission.oldest_ms() == 0


@pytest.mark.parametrize(
    ("started", "took_ms", "retry_ms"),
    [
        (0, 10_000, RETRY_MS),  # nothing is known
        (100, 500, RETRY_MS),  # too little
        (100, 10_000, 5_100),  # ten a second, and 51 have to go
        (10_000, 10_000, RETRY_MIN_MS),
        (1, 20_000, RETRY_MAX_MS),
    ],
)
async def test_the_time_to_come_back_follows_from_how_fast_the_queue_gets_shorter(
    tmp_path: Path, started: int, took_ms: int, retry_ms: int
) -> None:
    clock = FakeClock()
    async with gateway_of(tmp_path, clock=clock, waiting_max=1_000) as gateway:
        gateway.admission.note_started(started)
        clock.advance(took_ms)
        assert gateway.admission._time_for(1_000 // 20 + 1) == retry_ms  # noqa: SLF001 - that is the claim


async def test_the_speed_is_that_of_the_last_half_minute(tmp_path: Path) -> None:
    clock = FakeClock()
    async with gateway_of(tmp_path, clock=clock) as gateway:
        for count in [1_000] * 60 + [1] * 60:
            clock.advance(1_000)
            gateway.admission.note_started(count)
        assert gateway.admission._time_for(10) == 10_000  # noqa: SLF001 - that is the claim


async def test_refusals_are_counted(tmp_path: Path) -> None:
    held = Held(say("done"))
    async with gateway_of(tmp_path, held, waiting_max=1) as gateway:
        await busy(gateway, held)
        await send(gateway, "a")
        for _ in range(3):
            with pytest.raises(OverloadedError):
                await send(gateway, "a")
        text = gateway.observer.metrics.text(await gateway.observer.moment()).decode()
        assert 'laneway_message_dropped_total{reason="overloaded"} 3.0' in text
        assert "laneway_messages_waiting 1.0" in text
        held.let_go()
