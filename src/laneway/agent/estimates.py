"""About how many tokens a request or an answer has, where no provider has counted them: rather too many than too few.

Attachments count as they are sent (`laneway.models.translation`): what is shown as text by its bytes, an image as one
large image, any other file by its bytes. Of what a provider fetches by itself nobody knows the size before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from laneway.dialogue import Answer, ModelRequest, Prompt, ToolSpec, Utterance, compact_json

__all__ = ("Counted", "answered_tokens", "estimated_tokens")

BYTES_PER_TOKEN: Final = 3
PER_UTTERANCE: Final = 8
IMAGE_TOKENS: Final = 6_000
"""What a large image counts as with most providers, at most."""
FETCHED_TOKENS: Final = 30_000
"""A document that its provider fetches: some dozens of pages."""


class Counted(NamedTuple):
    """An answer whose provider has counted what it was asked with.

    That was system text and tools of about `frame` tokens, and so many things that had been said before. The texts
    themselves are known in the process that asked.
    """

    answer: Answer
    frame: int
    length: int
    asked_with: tuple[str, tuple[ToolSpec, ...]] | None = None

    @classmethod
    def of(cls, request: ModelRequest, answer: Answer, before: Counted | None = None) -> Counted:
        """What a provider has counted by now, and `before`."""
        asked_with = (request.system, request.tools)
        frame = before.frame if before is not None and before.asked_with == asked_with else _frame(*asked_with)
        return cls(answer, frame, len(request.conversation), asked_with)

    def growth(self, request: ModelRequest) -> int:
        """By how much the system text and the tools of a request are larger than those that were counted."""
        if (request.system, request.tools) == self.asked_with:
            return 0
        return max(0, _frame(request.system, request.tools) - self.frame)


def estimated_tokens(request: ModelRequest, counted: Counted | None = None) -> int:
    """About how many tokens a request has; what the provider counted last is taken at its word, for what it counted.

    Where nobody knows with which system text and tools that was, it is at least the text that is sent now.
    """
    conversation, since = request.conversation, 0
    for at in range(len(conversation) - 1, -1, -1):
        each = conversation[at]
        if isinstance(each, Answer) and each.usage.total_tokens:
            found = each.usage.total_tokens + since
            break
        since += _said(each) + PER_UTTERANCE
    else:
        return since + _frame(request.system, request.tools)
    if counted is None or counted.answer != each or at > counted.length:
        return max(found, _frame(request.system, request.tools) + sum(_of_text(str(one)) for one in conversation))
    found += counted.growth(request)
    if at == counted.length:
        return found
    return min(found, _whole(request))  # what was said before it is shorter now: a summary stands for it


def _whole(request: ModelRequest) -> int:
    said = sum(_said(each) + PER_UTTERANCE for each in request.conversation)
    return said + _frame(request.system, request.tools)


def _frame(system: str, tools: Iterable[ToolSpec]) -> int:
    return _of_text(system) + sum(_of_text(repr(spec)) for spec in tools) + PER_UTTERANCE


def answered_tokens(answer: Answer) -> int:
    """About how many tokens an answer has."""
    return _said(answer) + PER_UTTERANCE


def _said(each: Utterance) -> int:
    found = _of_text(str(each))
    if isinstance(each, Prompt):
        found += sum(map(_attached, each.attachments))
    elif isinstance(each, Answer):
        found += _of_text(each.reasoning)
    return found


def _attached(attachment: Any) -> int:
    match attachment:
        case str():
            return _of_text(attachment)
        case {"base64": str(encoded), "media_type": str(media_type)}:
            if media_type.startswith("image/"):
                return IMAGE_TOKENS
            return len(encoded) // BYTES_PER_TOKEN + PER_UTTERANCE
        case {"url": str(), "media_type": str(media_type)} if not media_type.startswith("image/"):
            return FETCHED_TOKENS
        case {"url": str()}:
            return IMAGE_TOKENS
        case _:
            return _of_text(compact_json(attachment))


def _of_text(text: str) -> int:
    return len(text.encode(errors="replace")) // BYTES_PER_TOKEN
