"""A conversation in the words of pydantic-ai and back: nothing is lost, nothing is stored twice."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as ProviderRequest

from laneway.dialogue import Answer, ModelRequest, Prompt, Results, ResultStatus, ToolCall, ToolResult, Usage, Utterance
from laneway.models.translation import Reply, messages_of


def messages(*said: Utterance, system: str = "") -> list[Any]:
    return messages_of(ModelRequest(conversation=said, system=system))


def content_of(attachment: Any) -> Any:
    (request,) = messages(Prompt(text="see", attachments=(attachment,)))
    return request.parts[0].content[1]


def test_what_comes_between_two_answers_is_one_message() -> None:
    done = Results(results=(ToolResult(call_id="c", name="read", output="x"),))
    first, answer, last = messages(
        Prompt(text="a"),
        Prompt(text="note", role="system"),
        Answer(text="b", calls=(ToolCall(id="c", name="read"),)),
        done,
        Prompt(text="d"),
        system="S",
    )
    assert [type(part) for part in first.parts] == [UserPromptPart, SystemPromptPart]
    assert [type(part) for part in answer.parts] == [TextPart, ToolCallPart]
    assert [type(part) for part in last.parts] == [ToolReturnPart, UserPromptPart]
    assert last.instructions == "S"


def test_an_answer_with_nothing_in_it_is_left_out() -> None:
    (only,) = messages(Prompt(text="a"), Answer(), Prompt(text="b"))
    assert [part.content for part in only.parts] == ["a", "b"]


@pytest.mark.parametrize("status", list(ResultStatus))
def test_every_result_that_is_no_success_is_marked(status: ResultStatus) -> None:
    (request,) = messages(Results(results=(ToolResult(call_id="c", name="t", output="out", status=status),)))
    part = request.parts[0]
    fine = (ResultStatus.OK, ResultStatus.BACKGROUND)  # what goes on in the background has not failed
    assert (part.outcome == "failed") is (status not in fine)
    assert part.content.endswith("out")
    assert (f"[{status}]" in part.content) is (status not in (*fine, ResultStatus.ERROR))


def test_reasoning_that_belongs_to_nobody_is_not_sent() -> None:
    _, answer, _ = messages(Prompt(text="a"), Answer(text="b", reasoning="secret"), Prompt(text="c"))
    assert [type(part) for part in answer.parts] == [TextPart]


def test_attachments_are_files_where_they_can_be() -> None:
    picture = base64.b64encode(b"png").decode()
    assert content_of({"base64": picture, "media_type": "image/png"}) == BinaryContent(
        data=b"png", media_type="image/png"
    )
    assert isinstance(content_of({"url": "https://example.com/a.png"}), ImageUrl)
    assert isinstance(content_of({"url": "https://example.com/a", "media_type": "application/pdf"}), DocumentUrl)
    assert content_of("a note") == "a note"
    assert content_of({"any": ["thing"]}) == '{"any":["thing"]}'
    assert "cannot be read" in content_of({"base64": "!", "media_type": "image/png"})


@pytest.mark.parametrize(
    "opaque",
    [
        "text",
        7,
        [],
        {},
        {"version": 99, "parts": [{"part": "text", "length": 1}]},
        {"version": 1},
        {"version": 1, "parts": []},
        {"version": 1, "parts": [{"part": "unheard of"}]},
        {"version": 1, "provider_name": 5, "parts": []},
    ],
)
def test_what_is_not_understood_is_sent_as_plain_text_and_calls(opaque: Any) -> None:
    said = Answer(text="hello", calls=(ToolCall(id="c", name="t"),), opaque=opaque)
    _, answer, _ = messages(Prompt(text="a"), said, Prompt(text="c"))
    assert [type(part) for part in answer.parts] == [TextPart, ToolCallPart]
    assert answer.parts[0].content == "hello"


def whole(response: ModelResponse) -> Answer:
    return Reply(()).answer(response, usage=Usage(), model="m")


def test_a_plain_answer_needs_nothing_beside_it() -> None:
    said = whole(ModelResponse(parts=[TextPart(content="a"), ToolCallPart(tool_name="t", args="{}", tool_call_id="c")]))
    assert said.opaque is None


def test_a_refusal_is_what_the_model_said() -> None:
    assert whole(ModelResponse(parts=[], provider_details={"refusal": "I will not"})).text == "I will not"


def test_arguments_that_came_as_an_object_are_text() -> None:
    said = whole(ModelResponse(parts=[ToolCallPart(tool_name="t", args={"a": [1]}, tool_call_id="c")]))
    assert said.calls[0].arguments == '{"a":[1]}'


text = st.text(max_size=12)
extras = st.fixed_dictionaries({}, optional={"id": text, "provider_name": text})
parts = st.one_of(
    st.builds(lambda content, more: TextPart(content=content, **more), text, extras),
    st.builds(lambda content, sign, more: ThinkingPart(content=content, signature=sign, **more), text, text, extras),
    st.builds(lambda name, more: ToolCallPart(tool_name=name, args="{}", tool_call_id="c", **more), text, extras),
)


@settings(max_examples=30)
@given(st.lists(parts, min_size=1, max_size=6))
def test_signed_parts_go_back_exactly_as_they_came(given_parts: list[ModelResponsePart]) -> None:
    """By way of JSON, as the store keeps them; an empty field is as good as none."""
    response = ModelResponse(parts=[ThinkingPart(content="x", signature="S"), *given_parts], provider_name="p")
    said = whole(response)
    stored = json.dumps(said.opaque)
    kept = Answer(text=said.text, reasoning=said.reasoning, calls=said.calls, opaque=json.loads(stored))
    _, back, _ = messages(Prompt(text="a"), kept, Prompt(text="c"))
    assert isinstance(back, ModelResponse)
    assert back.provider_name == "p"
    assert [_facts(part) for part in back.parts] == [_facts(part) for part in response.parts]
    ids = [part.tool_call_id for part in back.parts if isinstance(part, ToolCallPart)]
    assert len(ids) == len(set(ids))


def _facts(part: Any) -> tuple[Any, ...]:
    content = getattr(part, "content", None) if not isinstance(part, ToolCallPart) else part.tool_name
    return type(part), content, getattr(part, "signature", None) or None, part.id or None, part.provider_name or None


def test_a_conversation_that_ends_with_an_answer_is_still_a_question() -> None:
    *_, last = messages(Prompt(text="a"), Answer(text="b"))
    assert isinstance(last, ProviderRequest)
