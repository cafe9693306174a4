"""What models and tools of one's own hand in is checked before it counts: a session is readable ever after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from laneway import Answer, ModelError, ModelRequest, ToolCall, ToolOutput, ToolSpec, Usage
from laneway.agent.hearing import heard_answer, heard_output
from laneway.agent.streams import JOINED_MAX, EventLog
from laneway.agent_events import TextDeltaEvent
from laneway.dialogue import Chunk, Intent, ToolContext
from laneway.errors import ConfigError
from laneway.models import ScriptedModel, call, say
from laneway.records import Effect
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import opened
from tests.inbox_stage import staged

GOOD = ToolCall(id="a", name="look", arguments="{}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", None),
        ("text", b""),
        ("reasoning", 5),
        ("model", 5),
        ("calls", None),
        ("calls", ("look",)),
        ("calls", (ToolCall(id=7, name="look"),)),  # type: ignore[arg-type]
        ("calls", (ToolCall(id="a", name=None),)),  # type: ignore[arg-type]
        ("calls", (ToolCall(id="a", name="look", arguments=5),)),  # type: ignore[arg-type]
        ("calls", (ToolCall(id="a", name="look", arguments={"x": object()}),)),  # type: ignore[arg-type]
        ("usage", None),
        ("usage", {"input_tokens": 1}),
        ("usage", Usage(input_tokens=-1)),
        ("usage", Usage(output_tokens=1.5)),  # type: ignore[arg-type]
        ("usage", Usage(cost="1")),  # type: ignore[arg-type]
        ("opaque", object()),
    ],
)
def test_an_answer_that_cannot_be_kept_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match="the answer of the model has") as caught:
        heard_answer(Answer(**{field: value}), "mine")
    assert caught.value.model == "mine"


def test_a_good_answer_is_as_it_was() -> None:
    answer = Answer(text="hello", calls=(GOOD,), usage=Usage(input_tokens=3, cost=0.5), model="m", opaque={"a": [1]})
    assert heard_answer(answer, "mine") == answer


def test_arguments_as_a_mapping_are_what_they_mean() -> None:
    natural = ToolCall(id="a", name="look", arguments={"x": 1})  # type: ignore[arg-type]
    assert heard_answer(Answer(calls=(natural,)), "mine").calls[0].arguments == '{"x":1}'


def test_half_a_surrogate_pair_is_written_as_an_escape() -> None:
    assert heard_answer(Answer(text="a\ud800"), "mine").text == "a\\ud800"


@pytest.mark.parametrize(
    ("given", "text", "is_error"),
    [
        ("plain", "plain", False),
        (None, "", False),
        (5, "5", False),
        (ToolOutput(text="x", exit_code=3), "x", False),
        (ToolOutput(text="x", exit_code="1"), "exit_code '1', which is no int", True),  # type: ignore[arg-type]
        (ToolOutput(text=None), "text None, which is no str", True),  # type: ignore[arg-type]
        (ToolOutput(text="x", artifact=5), "artifact 5, which is no str", True),  # type: ignore[arg-type]
    ],
)
def test_what_a_tool_gives_back_can_be_kept(given: Any, text: str, is_error: bool) -> None:
    output = heard_output(given)
    assert text in output.text
    assert output.is_error is is_error


class Plain:
    """A tool that somebody has written without looking: its output is text."""

    spec = ToolSpec(name="look", effect=Effect.READ)
    can_reconcile = False

    def __init__(self) -> None:
        self.ran = 0

    def check(self, arguments: str) -> dict[str, Any]:
        if "bad" in arguments:
            raise ValueError("no such thing")
        return {}

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        self.ran += 1
        return "text"

    async def reconcile(self, intent: Intent, context: ToolContext) -> ToolOutput | None:
        return None


@pytest.mark.parametrize("queue", [False, True])
@staged
async def test_a_tool_of_ones_own_may_give_back_text_and_raise_in_its_check(queue: bool) -> None:
    tool, model = Plain(), ScriptedModel([[call("look"), call("look", bad=1)], [say("done")]])
    async with opened(model, [tool], queue=queue) as session:
        assert (await session.send("go")).text == "done"
    assert tool.ran == 1
    assert "ok): text" in str(model.requests[-1])
    assert "[Not run: ValueError: no such thing]" in str(model.requests[-1])


class Slips:
    """A model of one's own that hands in what cannot be kept."""

    name = "slips"
    context_tokens = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer."""
        yield Answer(text=5)  # type: ignore[arg-type]


@staged
async def test_a_wrong_answer_leaves_the_session_readable() -> None:
    disk = MemoryDisk()
    async with opened(Slips(), session_store=MemoryStore(disk), session_id="s") as session:
        with pytest.raises(ModelError, match="text that must be text"):
            await session.send("go")
    async with opened(ScriptedModel([[say("hello")]]), session_store=MemoryStore(disk), session_id="s") as session:
        assert (await session.send("again")).text == "hello"


@pytest.mark.parametrize(("field", "value"), [("effect", "paint"), ("timeout_ms", 0), ("timeout_ms", -5)])
def test_a_spec_says_at_once_what_is_wrong_with_it(field: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        ToolSpec(name="look", **{field: value})


def test_pieces_of_a_long_answer_are_joined_up_to_a_page() -> None:
    log = EventLog()
    for _ in range(10_000):
        log.add(TextDeltaEvent(text="ten chars.", run_id="r"))
    assert "".join(event.text for event in log.events) == "ten chars." * 10_000
    assert max(len(event.text) for event in log.events) < 2 * JOINED_MAX
    assert len(log.events) < 50
