"""What hooks hear of calls of the host that go wrong, and what the log says of hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from laneway.errors import JobTimeoutError, PermissionDeniedError, RunFailedError
from laneway.models import ScriptedModel, say
from laneway.options import Hook, PermissionPolicy, SessionQueueConfig
from laneway.tools import tool
from tests.agent_stage import QUEUES, Bench, opened, use
from tests.inbox_stage import staged
from tests.stage import passing

Event = Mapping[str, Any]
Handler = Callable[[Event], Any]


def answering(answer: Any) -> Handler:
    async def handler(_: Event) -> Any:
        return answer

    return handler


async def raises(_: Event) -> None:
    raise RuntimeError("boom")


def guard(handler: Handler, event_type: str = "pre_tool_use") -> list[Hook]:
    return [Hook("guard", event_type, handler=handler)]


class Diary:
    """Writes down how calls end."""

    def __init__(self) -> None:
        self.ends: list[Any] = []
        self.hooks = [Hook("diary", "post_tool_use", handler=self.note)]

    async def note(self, event: Event) -> None:
        """One more."""
        self.ends.append(event["payload"])


# ---- calls of the host ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_call_of_the_host_that_raises_or_takes_too_long_is_told_once(queue: bool) -> None:
    diary = Diary()

    @tool(effect="write")
    async def broken() -> str:
        """Fail."""
        raise RuntimeError("boom")

    @tool(effect="write", timeout_ms=50)
    async def slow() -> str:
        """Never end."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    box = [broken, slow, Bench().tool("denied", effect="write")]
    policy = PermissionPolicy(allow=["*"], deny=["denied"])
    options: dict[str, Any] = {"hooks": diary.hooks, "permission_policy": policy}
    async with opened(ScriptedModel([]), box, queue=queue, **options) as session:
        with pytest.raises(RuntimeError, match="boom"):
            await session.tool("broken")
        with pytest.raises((TimeoutError, JobTimeoutError)):
            await session.tool("slow")
        with pytest.raises(PermissionDeniedError):
            await session.tool("denied", {"key": "a"})
        if queue:
            with pytest.raises(RuntimeError, match="boom"):
                await session.submit("execute", {"tool": "broken"})
            with pytest.raises(JobTimeoutError):
                await session.submit("execute", {"tool": "slow"}, timeout_ms=50)
            await passing()
    told = [(each["tool"], each["by"], each["result"]["status"]) for each in diary.ends]
    assert told == [
        ("broken", "host", "error"),
        ("slow", "host", "timed_out"),
        *([("broken", "host", "error"), ("slow", "host", "unknown")] if queue else []),
    ]
    assert "boom" in diary.ends[0]["result"]["output"]


@staged
async def test_a_call_of_the_host_that_works_at_the_second_attempt_is_told_once() -> None:
    diary = Diary()
    attempts: list[int] = []

    @tool(effect="read")
    async def flaky() -> str:
        """Fail once."""
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("not yet")
        return "well"

    config = SessionQueueConfig(retry_policy={"strategy": "fixed", "max_retries": 2, "fixed_delay_ms": 10})
    async with opened(ScriptedModel([]), [flaky], queue=config, hooks=diary.hooks) as session:
        assert (await session.tool("flaky")).text == "well"
    assert len(attempts) == 2
    assert [each["result"]["status"] for each in diary.ends] == ["ok"]


# ---- the log ----


@pytest.mark.parametrize("event", ["pre_prompt", "generate_start"])
@staged
async def test_a_hook_that_does_its_work_is_no_warning_but_one_that_fails_is(
    event: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()  # a staged test runs more than once
    async with opened(ScriptedModel([]), hooks=guard(answering("block"), event)) as session:
        with pytest.raises(RunFailedError) as caught:
            await session.send("hello")
        assert caught.value.is_intended
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
        session.register_hook("guard", event, None, None, raises)
        with pytest.raises(RunFailedError):
            await session.send("hello")
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith(f"hook 'guard' failed on {event}: RuntimeError: boom")


@staged
async def test_a_hook_that_answers_nonsense_is_told_the_way_out_and_no_trace_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = ScriptedModel([use("act", "a"), [say("well")]])
    async with opened(model, Bench(), hooks=guard(answering(True))) as session:
        await session.send("go")
    assert "it answered with a bool, which is no answer (None or 'continue' goes on; 'block'" in caplog.text
    assert "Traceback" not in caplog.text
