"""What a model is sent and what it says, and what a tool is and gives back: the records of an agent's conversation.

A conversation is a row of utterances: a `Prompt` of the user, an `Answer` of the model, the `Results` of the tools that
the answer asked for, the next answer, and so on. Every call of an answer has exactly one result in the `Results` that
follow it, in the order of the calls: no provider accepts anything else.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from laneway.errors import ConfigError
from laneway.records import DURATION_MAX_MS, Effect, check_labels, check_whole

__all__ = (
    "Answer",
    "CallChunk",
    "Chunk",
    "Intent",
    "ModelRequest",
    "Prompt",
    "ReasoningChunk",
    "ResultStatus",
    "Results",
    "TextChunk",
    "ToolCall",
    "ToolContext",
    "ToolOutput",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "Utterance",
)


class ResultStatus(StrEnum):
    """How a tool call ended."""

    OK = "ok"  # the tool answered
    ERROR = "error"  # the tool, or whoever stood before it, said no; the text says why
    DENIED = "denied"  # a policy said no
    SKIPPED = "skipped"  # a message came in between; it was not started
    CANCELLED = "cancelled"  # the run was ended; it was not started, or it was a read
    TIMED_OUT = "timed_out"  # it ran longer than it may
    UNKNOWN = "unknown"  # it had begun, and nobody knows how far it came
    BACKGROUND = "background"  # it goes on while the model does; its end comes as a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What model calls have used. `cost` is in US dollars; None when no price is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None

    @property
    def total_tokens(self) -> int:
        """What went in and what came out."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        cost = None if self.cost is None and other.cost is None else (self.cost or 0.0) + (other.cost or 0.0)
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost=cost,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that a model asks for; `arguments` is JSON as the model wrote it, which may be wrong."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What became of one call. `output` is what the model gets to see; `artifact` names the rest of a long output."""

    call_id: str
    name: str
    output: str
    status: ResultStatus = ResultStatus.OK
    exit_code: int | None = None
    artifact: str | None = None

    @property
    def is_error(self) -> bool:
        """Whether the model is told that it did not work."""
        return self.status not in (ResultStatus.OK, ResultStatus.BACKGROUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Something the model is told; `attachments` are JSON values.

    By the user, by the host (`role="system"`), or by the plan of the run (`role="plan"`).
    """

    text: str
    role: str = "user"
    attachments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.role}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of a model, whole. `opaque` is what its provider wants back with it (signatures and the like)."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    opaque: Any = None

    def __str__(self) -> str:
        calls = [f"assistant calls {call.name}({call.arguments}) as {call.id}" for call in self.calls]
        return "\n".join([f"assistant: {self.text}"] * bool(self.text) + calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of all calls of the answer before, in the order of the calls."""

    results: tuple[ToolResult, ...]

    def __str__(self) -> str:
        return "\n".join(f"tool {each.name} ({each.call_id}, {each.status}): {each.output}" for each in self.results)


Utterance = Prompt | Answer | Results


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a tool is. `parameters` is a JSON Schema of an object; lane None means: by its name.

    A `local` tool runs in the process of the agent, whoever else runs the calls of its lane. One that `waits` does
    nothing but wait for other runs: whoever waits for it lends its slots. `labels` are what a worker must have to run
    its calls elsewhere. A call of a `background` tool that takes long may go on while the model does.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    lane: str | None = None
    effect: Effect = Effect.WRITE
    parallel: bool = False
    interruptible: bool = True
    timeout_ms: int | None = None
    local: bool = False
    waits: bool = False
    labels: tuple[str, ...] = ()
    background: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", check_labels(self.labels))
        try:
            object.__setattr__(self, "effect", Effect(self.effect))
        except ValueError:
            hint = "read, idempotent or write"
            raise ConfigError(
                f"there is no effect {self.effect!r}", setting="effect", value=self.effect, hint=hint
            ) from None
        if self.timeout_ms is not None:
            check_whole(self.timeout_ms, setting="timeout_ms", least=1, most=DURATION_MAX_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Everything that goes into one model call; its `str()` shows all of it, in order."""

    conversation: tuple[Utterance, ...]
    tools: tuple[ToolSpec, ...] = ()
    system: str = ""
    purpose: str = "answer"  # or "summary": the conversation is being compacted; or "plan": with one tool that takes it
    output_max: int | None = None
    temperature: float | None = None
    thinking_budget: int | None = None
    session_id: str = ""
    run_id: str = ""

    def __str__(self) -> str:
        lines = [f"system: {self.system}"] if self.system else []
        return "\n".join([*lines, *map(str, self.conversation)])


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningChunk:
    """A piece of what the model thinks aloud."""

    text: str


@dataclass(frozen=True, slots=True)
class CallChunk:
    """A piece of a call: `call_id` and `name` as far as they are known, and more of the arguments."""

    call_id: str
    name: str
    arguments: str


Chunk = TextChunk | ReasoningChunk | CallChunk | Answer
"""What a model streams: pieces, and at the end the whole `Answer`. A stream that ends without one was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """What a tool gives back. An error of its own (`is_error`) is an answer, and is never tried again."""

    text: str
    is_error: bool = False
    exit_code: int | None = None
    artifact: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What was about to be done when the process died; `key` is the same at every attempt."""

    run_id: str
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may know and use while it runs. `key` is the same at every attempt of one call."""

    workspace: str
    session_id: str = ""
    run_id: str = ""
    call_id: str = ""
    key: str = ""
    attempt: int = 1
    output_max: int = 30_000
    artifacts: str = ""  # the folder that keeps what is too long to show; empty: nothing is kept
    report: Callable[[str], None] = lambda text: None
    """Show a piece of output while it works."""
    in_thread: Callable[..., Awaitable[Any]] | None = None
    """Run a blocking function on a thread: `await context.in_thread(fn, *args)`."""
    extra: Mapping[str, Any] = field(default_factory=dict)


def copied(value: Any) -> Any:
    """A JSON value of one's own: whoever changes it changes nothing elsewhere."""
    if type(value) is dict:
        return {name: copied(each) for name, each in value.items()}
    if type(value) is list:
        return [copied(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else copy.deepcopy(value)


def compact_json(value: Any) -> str:
    """A value as JSON without blanks; text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
