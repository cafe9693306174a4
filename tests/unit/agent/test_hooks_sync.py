"""Hooks of sessions without asyncio: they run on threads, and may use the session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laneway.errors import UsageError
from laneway.models import ScriptedModel, say
from laneway.sync import Agent
from laneway.tools import FunctionTool
from tests.agent_stage import statuses, use

Event = Mapping[str, Any]


def test_sync_sessions_have_hooks_that_run_on_threads_and_may_use_the_session() -> None:
    seen: list[Any] = []

    def note(event: Event) -> Any:
        seen.append((event["event_type"], event["payload"]["tool"], session.hook_count()))
        return {"action": "block", "reason": "no"}

    def act(key: str) -> str:
        raise AssertionError("never")

    model = ScriptedModel([use("act", "a"), [say("well")]])
    tools = [FunctionTool(act, name="act", description="act", effect="read")]
    with Agent(model, tools=tools, builtin_tools=False) as agent:
        session = agent.session()
        session.register_hook("note", "pre_tool_use", {"tool": "act"}, {"timeout_ms": 10_000}, note)
        assert session.send("go").text == "well"
    assert seen == [("pre_tool_use", "act", 1)]
    assert statuses(model.requests[1]) == [("a", "denied")]


def test_a_sync_hook_that_would_wait_for_its_own_session_is_refused() -> None:
    errors: list[str] = []

    def sends(_: Event) -> None:
        try:
            session.send("inside")
        except UsageError as error:
            errors.append(str(error))

    model = ScriptedModel([[say("well")]])
    with Agent(model, builtin_tools=False) as agent:
        session = agent.session()
        session.register_hook("h", "generate_end", None, None, sends)
        assert session.send("go").text == "well"
    assert len(errors) == 1
