"""From OpenAI's messages and input items to one message of an inbox. Pure; whatever does not fit is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from laneway.dialogue import compact_json
from laneway.errors import InvalidMessageError
from laneway.gateway.openai.requests import ChatMessage

__all__ = ("Said", "compose", "said_in_chat", "said_in_input")

DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,(.*)", re.ASCII | re.DOTALL)
AUDIO: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}
SYSTEM: Final = frozenset({"system", "developer"})
TEXTS: Final = frozenset({"text", "input_text", "output_text"})
SILENT_ITEMS: Final = frozenset({"reasoning", "item_reference", "compaction"})
HEAD: Final = "What was said before, as the caller tells it:"
NOW: Final = "Answer this message now:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Something that somebody has said; `role` is `system`, `user`, `assistant` or `tool`."""

    role: str
    text: str
    attachments: tuple[Any, ...] = ()


def _wrong(message: str, param: str, hint: str = "") -> InvalidMessageError:
    return InvalidMessageError(message, hint=hint, param=param)


# ---- what was said ----


def said_in_chat(messages: Sequence[ChatMessage]) -> list[Said]:
    """The messages of a chat completion."""
    return [_said(each.role, each.content, each.model_extra or {}, f"messages[{i}]") for i, each in enumerate(messages)]


def said_in_input(items: str | Sequence[Mapping[str, Any]], instructions: str | None = None) -> list[Said]:
    """The input of a response; instructions come first."""
    said = [Said(role="system", text=instructions)] if instructions and instructions.strip() else []
    if isinstance(items, str):
        return [*said, Said(role="user", text=items)]
    for index, item in enumerate(items):
        param = f"input[{index}]"
        kind = _kind(item, "message" if "role" in item else None)
        if kind == "message":
            said.append(_said(_role(item.get("role"), param), item.get("content"), {}, param))
        elif kind in ("function_call", "custom_tool_call"):
            said.append(
                Said(role="assistant", text=_called(item.get("name"), item.get("arguments", item.get("input"))))
            )
        elif kind in ("function_call_output", "custom_tool_call_output"):
            text, _ = _content(item.get("output"), f"{param}.output")
            said.append(Said(role="tool", text=text))
        elif kind not in SILENT_ITEMS:
            raise _wrong(f"an input item of type {_shown(kind)} means nothing here", f"{param}.type", "use messages")
    return said


def _role(value: Any, param: str) -> str:
    if not isinstance(value, str) or value not in ("system", "developer", "user", "assistant"):
        raise _wrong(f"there is no role {_shown(value)}", f"{param}.role", "system, developer, user, assistant")
    return value


def _said(role: str, content: Any, more: Mapping[str, Any], param: str) -> Said:
    text, attachments = _content(content, f"{param}.content")
    calls = more.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            text = "\n".join(filter(None, (text, _called(function.get("name"), function.get("arguments")))))
    kind = "system" if role in SYSTEM else "tool" if role == "function" else role
    return Said(role=kind, text=text, attachments=attachments)


def _called(name: Any, arguments: Any) -> str:
    shown = arguments if isinstance(arguments, str) else compact_json(arguments)
    return f"(called {name} with {shown})"


# ---- content ----


def _content(content: Any, param: str) -> tuple[str, tuple[Any, ...]]:
    """The text of some content, and its attachments."""
    if content is None:
        return "", ()
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        raise _wrong("content is text or a list of parts", param)
    texts: list[str] = []
    attachments: list[Any] = []
    for index, part in enumerate(content):
        where = f"{param}[{index}]"
        if not isinstance(part, dict):
            raise _wrong("a part of content is an object with a `type`", where)
        kind = _kind(part)
        if kind in TEXTS or kind == "refusal":
            texts.append(_text(part.get("refusal" if kind == "refusal" else "text"), where))
        else:
            attachments.append(_attachment(kind, part, where))
    return "\n".join(texts), tuple(attachments)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise _wrong("the text of a part is text", f"{param}.text")
    return value


def _attachment(kind: Any, part: Mapping[str, Any], param: str) -> dict[str, Any]:
    match kind:
        case "image_url":
            given = part.get("image_url")
            return _linked(given.get("url") if isinstance(given, dict) else given, "image/*", param)
        case "input_image" if part.get("image_url"):
            return _linked(part["image_url"], "image/*", param)
        case "file" | "input_file":
            given = part.get("file") if kind == "file" else part
            return _file(given if isinstance(given, dict) else {}, param)
        case "input_audio":
            return _audio(part.get("input_audio"), param)
        case _:
            raise _wrong(
                f"a part of type {_shown(kind)} cannot be taken", f"{param}.type", "text, images and files can"
            )


def _file(given: Mapping[str, Any], param: str) -> dict[str, Any]:
    name = given.get("filename")
    named = {"name": name} if isinstance(name, str) else {}
    if given.get("file_data"):
        return {**_linked(given["file_data"], "application/pdf", param, bare=True), **named}
    if given.get("file_url"):
        return {"media_type": "application/pdf", **_linked(given["file_url"], "application/pdf", param), **named}
    raise _wrong("there are no uploaded files here", param, "send the file itself as `file_data`")


def _linked(value: Any, media_type: str, param: str, *, bare: bool = False) -> dict[str, Any]:
    """A file as an attachment: from a data URL, or an address of the web; `bare`: its content may stand alone."""
    if not isinstance(value, str):
        raise _wrong("an address is text", param)
    found = DATA_URL.fullmatch(value)
    if found is not None:
        return {"base64": found[2], "media_type": found[1]}
    if value.startswith(("https://", "http://")):
        return {"url": value}
    if bare and not value.startswith("data:"):
        return {"base64": value, "media_type": media_type}
    raise _wrong("this address is neither a data URL in base64 nor one of the web", param, "data:image/png;base64,…")


def _audio(given: Any, param: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("data"), str):
        raise _wrong("audio is an object with `data` and `format`", param)
    media_type = AUDIO.get(given["format"]) if isinstance(given.get("format"), str) else None
    if media_type is None:
        raise _wrong(f"audio has no format {_shown(given.get('format'))}", param, ", ".join(AUDIO))
    return {"base64": given["data"], "media_type": media_type}


def _kind(given: Mapping[str, Any], default: Any = None) -> Any:
    """The type that something says it has; what is no text is shown as it is, and fits none."""
    kind = given.get("type", default)
    return kind if isinstance(kind, str) else repr(kind)


def _shown(value: Any) -> str:
    return f"{value!r:.80}"


# ---- one message ----


def compose(said: Sequence[Said], *, in_session: bool, param: str) -> Said:
    """The one message that is submitted: the newest of the user; without a session, after what was said before it."""
    at = next((i for i in range(len(said) - 1, -1, -1) if said[i].role == "user"), None)
    if at is None:
        raise _wrong("nothing is asked: there is no message of the user", param, "end with one of role 'user'")
    after = next((each.role for each in said[at + 1 :] if each.role != "system"), None)
    if after is not None:
        raise _wrong(
            f"the newest message is one of role {after!r}: there is nothing to answer", param, "end with role 'user'"
        )
    newest = said[at]
    rest = [each for i, each in enumerate(said) if i != at and (each.text.strip() or each.attachments)]
    if in_session or not rest:
        return newest
    attachments = tuple(attachment for each in [*rest, newest] for attachment in each.attachments)
    return Said(role="user", text=_transcript(rest, newest.text), attachments=attachments)


def _transcript(rest: Iterable[Said], newest: str) -> str:
    listed = list(rest)
    instructions = "\n\n".join(each.text for each in listed if each.role == "system")
    before = "\n\n".join(f"[{each.role}]\n{each.text}" for each in listed if each.role != "system")
    parts = [f"Instructions of the caller:\n{instructions}"] if instructions else []
    if before:
        parts.append(f"{HEAD}\n\n{before}")
    return "\n\n".join([*parts, f"{NOW}\n{newest}"])
