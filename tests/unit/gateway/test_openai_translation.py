"""What clients say in OpenAI's shapes becomes one message; whatever cannot become one is refused by name."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from laneway.errors import InvalidMessageError
from laneway.gateway.openai.requests import (
    ChatMessage,
    ChatRequest,
    ResponseRequest,
    check_chat,
    check_response,
    ignored,
)
from laneway.gateway.openai.translation import Said, compose, said_in_chat, said_in_input
from laneway.runtime.envelope import attachments_of

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def chat(*messages: dict[str, Any]) -> list[Said]:
    return said_in_chat([ChatMessage.model_validate(each) for each in messages])


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_the_newest_message_of_the_user_is_the_message_of_a_session() -> None:
    said = chat(user("one"), {"role": "assistant", "content": "two"}, user("three"))
    assert compose(said, in_session=True, param="messages") == Said(role="user", text="three")


def test_one_message_alone_is_sent_as_it_is() -> None:
    assert compose(chat(user(" /status ")), in_session=False, param="messages").text == " /status "


def test_what_was_said_before_comes_first_without_a_session() -> None:
    said = chat({"role": "developer", "content": "be brief"}, user("one"), user("two"))
    text = compose(said, in_session=False, param="messages").text
    assert text.index("be brief") < text.index("[user]\none") < text.index("Answer this message now:\ntwo")


def test_results_of_tools_of_another_place_are_told_as_what_was_said() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
    said = chat(
        user("look"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "nothing"},
        user("so?"),
    )
    text = compose(said, in_session=False, param="messages").text
    assert '[assistant]\n(called look with {"at":"x"})\n\n[tool]\nnothing' in text


@pytest.mark.parametrize("role", ["assistant", "tool", "function"])
def test_a_conversation_that_ends_with_somebody_else_asks_nothing(role: str) -> None:
    said = chat(user("one"), {"role": role, "content": "two"})
    with pytest.raises(InvalidMessageError, match="nothing to answer"):
        compose(said, in_session=True, param="messages")


def test_a_conversation_without_the_user_asks_nothing() -> None:
    with pytest.raises(InvalidMessageError, match="no message of the user"):
        compose(chat({"role": "system", "content": "x"}), in_session=False, param="messages")


@pytest.mark.parametrize(
    ("part", "attachment"),
    [
        ({"type": "image_url", "image_url": {"url": PIXEL}}, {"base64": "iVBORw0KGgo=", "media_type": "image/png"}),
        ({"type": "image_url", "image_url": {"url": "https://x.y/z.png"}}, {"url": "https://x.y/z.png"}),
        ({"type": "input_image", "image_url": "https://x.y/z.png"}, {"url": "https://x.y/z.png"}),
        (
            {"type": "file", "file": {"file_data": "data:text/csv;base64,YQ==", "filename": "a.csv"}},
            {"base64": "YQ==", "media_type": "text/csv", "name": "a.csv"},
        ),
        ({"type": "input_file", "file_data": "YQ=="}, {"base64": "YQ==", "media_type": "application/pdf"}),
        (
            {"type": "input_file", "file_url": "https://x.y/a.pdf"},
            {"url": "https://x.y/a.pdf", "media_type": "application/pdf"},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}},
            {"base64": "YQ==", "media_type": "audio/wav"},
        ),
    ],
)
def test_images_files_and_sounds_are_attachments(part: dict[str, Any], attachment: dict[str, Any]) -> None:
    said = compose(chat(user([{"type": "text", "text": "look"}, part])), in_session=True, param="messages")
    assert said == Said(role="user", text="look", attachments=(attachment,))
    assert attachments_of(said.attachments) == said.attachments


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"type": "video"},
        {"type": ["text"]},
        {"type": "text"},
        {"type": "text", "text": 1},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,plain"}},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": 7},
        {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "ogg"}},
        {"type": "input_audio", "input_audio": "x"},
    ],
)
def test_a_part_that_cannot_be_taken_is_refused_by_its_place(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        chat(user("first"), user([{"type": "text", "text": "x"}, part]))
    assert vars(refused.value)["param"].startswith("messages[1].content[1]")


def test_the_input_of_a_response_may_be_text_or_items() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "out"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]
    assert said_in_input("hello") == [Said(role="user", text="hello")]
    roles = [(each.role, each.text) for each in said_in_input(items, "be brief")]
    assert roles == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "(called f with {})"),
        ("tool", "out"),
        ("assistant", "two"),
        ("user", "three"),
    ]


@pytest.mark.parametrize("item", [{}, {"type": "computer_call"}, {"role": "king", "content": "x"}, {"type": 3}])
def test_an_item_that_means_nothing_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        said_in_input([item])
    assert vars(refused.value)["param"].startswith("input[0]")


CHAT = {"model": "laneway", "messages": [{"role": "user", "content": "x"}]}
RESPONSE = {"model": "laneway", "input": "x"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": ["x"]}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
    ],
)
def test_what_a_completion_cannot_be_is_refused_by_its_field(more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        check_chat(ChatRequest.model_validate({**CHAT, **more}))
    assert vars(refused.value)["param"] == param


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
        ({"previous_response_id": "resp_1", "conversation": "c"}, "conversation"),
    ],
)
def test_what_a_response_cannot_be_is_refused_by_its_field(more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        check_response(ResponseRequest.model_validate({**RESPONSE, **more}))
    assert vars(refused.value)["param"] == param


def test_what_only_tunes_a_model_is_ignored_and_named() -> None:
    given_ = {"temperature": 0.5, "max_tokens": 5, "tools": [], "stop": None, "n": 1, "bad\r\nname": 1}
    body = ChatRequest.model_validate({**CHAT, **given_})
    check_chat(body)
    assert ignored(body) == ["max_tokens", "n", "temperature"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "image_url", "url", "file", "output", "name", "data"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KINDS = ["text", "input_text", "image_url", "input_image", "file", "input_file", "input_audio", "function_call"]
PARTS = st.dictionaries(
    st.sampled_from(["text", "image_url", "file", "file_data", "input_audio", "output"]), JSON
).flatmap(lambda part: st.sampled_from(KINDS).map(lambda kind: {**part, "type": kind}))


@settings(max_examples=60)
@given(content=st.lists(PARTS | JSON, max_size=4) | JSON, more=st.dictionaries(st.just("tool_calls"), JSON))
def test_whatever_stands_in_a_message_it_is_taken_or_refused(content: Any, more: dict[str, Any]) -> None:
    taken = None
    with contextlib.suppress(InvalidMessageError, ValidationError):
        message = ChatMessage.model_validate({"role": "user", "content": content, **more})
        taken = compose(said_in_chat([message]), in_session=False, param="messages")
    assert taken is None or isinstance(taken.text, str)


@settings(max_examples=60)
@given(
    items=st.lists(st.dictionaries(st.sampled_from(["type", "role", "content", "output"]), JSON) | PARTS, max_size=4)
)
def test_whatever_stands_in_an_input_it_is_taken_or_refused(items: list[dict[str, Any]]) -> None:
    taken = None
    with contextlib.suppress(InvalidMessageError):
        taken = compose(said_in_input(items), in_session=True, param="input")
    assert taken is None or taken.role == "user"
