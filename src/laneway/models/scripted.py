"""A model that needs no provider: it plays a script, or it reacts to what the user writes.

With a script it gives one answer per entry, in the order in which it is asked, and says `done` when the script is at
its end. A failed or cut answer uses up its entry too: whoever asks again gets the next one.

Without a script it keeps nothing between two calls. What it says follows from the conversation alone, so many sessions
can share one object, and a run that goes on in another process gets the same answers.

Asked for a plan, it plays the next entry of its script like any other; `plan("read", "write")` is such an answer.
Without a script its plan has a step for each part of the prompt between two lines that say `then`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, assert_never

from laneway.dialogue import (
    Answer,
    CallChunk,
    Chunk,
    ModelRequest,
    Prompt,
    ReasoningChunk,
    Results,
    TextChunk,
    ToolCall,
    Usage,
    Utterance,
    compact_json,
)
from laneway.errors import ConfigError, ModelUnavailableError
from laneway.kernel.plans import DONE, MAKE_PLAN, NO_PLAN, ROLE
from laneway.models.settings import Prices
from laneway.records import check_whole

__all__ = (
    "Call",
    "Cut",
    "Entry",
    "Fail",
    "Gate",
    "Piece",
    "Say",
    "ScriptedModel",
    "Think",
    "call",
    "cut",
    "fail",
    "plan",
    "say",
    "think",
)

CHUNK_SIZE: Final = 16
CHARS_PER_TOKEN: Final = 4
SHOWN_MAX: Final = 80
KEPT_MAX: Final = 100
ECHO: Final = "You said: "


@dataclass(frozen=True, slots=True)
class Say:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Think:
    """Text that the model thinks aloud."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is JSON, or whatever a test wants it to be. An empty `id` is filled in."""

    tool: str
    arguments: str
    id: str = ""

    def with_id(self, call_id: str) -> Call:
        """The same call under this id."""
        return replace(self, id=call_id)


@dataclass(frozen=True, slots=True)
class Fail:
    """An error in place of the answer."""

    error: Exception | type[Exception]


@dataclass(frozen=True, slots=True)
class Cut:
    """Text, and then the stream breaks."""

    text: str


Gate = Callable[[], Any]
"""Something to do, or to wait for, between two pieces: `[say("a"), event.wait, say("b")]`."""

Piece = Say | Think | Call | Fail | Cut | Gate
Entry = Sequence[Piece] | Callable[[ModelRequest], Sequence[Piece] | Awaitable[Sequence[Piece]]]
"""One answer: its pieces in order, or a function (sync or async) that gets the request and returns them."""


def say(text: str) -> Say:
    """The model says `text`."""
    return Say(text)


def think(text: str) -> Think:
    """The model thinks `text` aloud."""
    return Think(text)


def call(tool: str, raw: str | None = None, /, **arguments: Any) -> Call:
    """The model calls `tool` with these arguments.

    `call("read", '{"path":')` sends that text as it is, however wrong.
    `call("read", path="x").with_id("a")` sets the id.
    """
    if raw is not None:
        if arguments:
            raise ConfigError(f"call of {tool!r} has both raw arguments and named ones", setting="arguments")
        return Call(tool, raw)
    try:
        return Call(tool, compact_json(arguments))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"arguments of {tool!r} are not JSON: {error}", setting="arguments") from error


def plan(*steps: str | Mapping[str, Any], goal: str = "") -> Call:
    """The model makes a plan: a text for each step, or `{"content", "id", "depends_on"}`."""
    return call(
        MAKE_PLAN, goal=goal, steps=[{"content": step} if isinstance(step, str) else dict(step) for step in steps]
    )


def fail(error: Exception | type[Exception]) -> Fail:
    """The model raises `error` in place of the answer."""
    return Fail(error)


def cut(text: str = "") -> Cut:
    """The model streams `text`; then the stream breaks with a `ModelUnavailableError`."""
    return Cut(text)


@dataclass(slots=True)
class _Draft:
    """An answer that is being made."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    taken: set[str] | None = None


class ScriptedModel:
    """Answers by a script, one entry per answer; `requests` keeps everything it was sent.

    Without a script it keeps the newest 100 of them. `summaries` are the answers to requests with `purpose="summary"`;
    they never use up the script. `usage` is what every answer reports; None estimates it by the number of characters.
    `delay_ms` passes before each piece. With `prices` its answers cost what they say.
    """

    def __init__(  # noqa: PLR0913  # keyword options of a public class
        self,
        script: Sequence[Entry] | None = None,
        *,
        name: str = "scripted",
        chunk_size: int = CHUNK_SIZE,
        delay_ms: int = 0,
        usage: Usage | None = None,
        context_tokens: int | None = None,
        summaries: Sequence[Entry] = (),
        prices: Prices | None = None,
    ) -> None:
        self._chunk_size = check_whole(chunk_size, setting="chunk_size", least=1, most=1_000_000)
        self._delay_s = check_whole(delay_ms, setting="delay_ms", least=0, most=600_000) / 1000
        self._name = name
        self._usage = usage
        self._context_tokens = context_tokens
        self._script = None if script is None else _checked(script, setting="script")
        self._summaries = _checked(summaries, setting="summaries")
        self._prices = prices
        self._next_entry = 0
        self._next_summary = 0
        self._next_call = 0
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        """What it is called in the configuration."""
        return self._name

    @property
    def context_tokens(self) -> int | None:
        """How many tokens it claims to take in."""
        return self._context_tokens

    @property
    def prices(self) -> Prices | None:
        """What its tokens cost; None: nobody knows."""
        return self._prices

    @property
    def remaining(self) -> int:
        """How many entries of the script are left."""
        return 0 if self._script is None else max(0, len(self._script) - self._next_entry)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        """The next answer, in pieces; the last piece is the whole `Answer`."""
        self.requests.append(request)
        if self._script is None:
            del self.requests[:-KEPT_MAX]
        entry = self._take(request)
        draft = _Draft()
        for piece in await _pieces(entry, request):
            match piece:
                case Say(text=text):
                    draft.text += text
                    async for part in self._parts(text):
                        yield TextChunk(part)
                case Think(text=text):
                    draft.reasoning += text
                    async for part in self._parts(text):
                        yield ReasoningChunk(part)
                case Call():
                    made = self._made(piece, request, draft)
                    draft.calls.append(made)
                    async for part in self._parts(made.arguments or " "):
                        yield CallChunk(made.id, made.name, part if made.arguments else "")
                case Fail(error=error):
                    await self._pause()
                    raise error
                case Cut(text=text):
                    async for part in self._parts(text):
                        yield TextChunk(part)
                    self._break_off()
                case _ if callable(piece):
                    waited = piece()
                    if inspect.isawaitable(waited):
                        await waited
                case _:
                    assert_never(piece)
        await self._pause()
        usage = self._usage or _estimate(request, draft)
        if self.prices is not None and usage.cost is None and usage.total_tokens:
            usage = replace(usage, cost=self.prices.cost(usage))
        yield Answer(
            text=draft.text, reasoning=draft.reasoning, calls=tuple(draft.calls), usage=usage, model=self._name
        )

    def _take(self, request: ModelRequest) -> Entry:
        """The entry that answers this request; taken before anything is awaited, so no two calls share one."""
        if request.purpose == "summary":
            if self._next_summary < len(self._summaries):
                self._next_summary += 1
                return self._summaries[self._next_summary - 1]
            return [say(_summary(request))]
        if self._script is None:
            return _reaction(request)
        if self._next_entry < len(self._script):
            self._next_entry += 1
            return self._script[self._next_entry - 1]
        return [say("done")]

    async def _parts(self, text: str) -> AsyncIterator[str]:
        for start in range(0, len(text), self._chunk_size):
            await self._pause()
            yield text[start : start + self._chunk_size]

    async def _pause(self) -> None:
        """Let others run: a model that never waits could not be cancelled."""
        await asyncio.sleep(self._delay_s)

    def _made(self, piece: Call, request: ModelRequest, draft: _Draft) -> ToolCall:
        """The call under an id that its conversation does not have yet."""
        if draft.taken is None:
            draft.taken = {each.id for said in request.conversation if isinstance(said, Answer) for each in said.calls}
        taken = draft.taken
        if piece.id:
            taken.add(piece.id)
            return ToolCall(id=piece.id, name=piece.tool, arguments=piece.arguments)
        # Without a script the number comes from the conversation, so that it is the same in another process.
        number = len(taken) if self._script is None else self._next_call
        while (call_id := f"call-{number + 1}") in taken:
            number += 1
        self._next_call = number + 1
        taken.add(call_id)
        return ToolCall(id=call_id, name=piece.tool, arguments=piece.arguments)

    def _break_off(self) -> NoReturn:
        raise ModelUnavailableError(
            f"the stream of model {self._name!r} was cut", model=self._name, hint="ask again; nothing was run yet"
        )


def _checked(script: Sequence[Entry], *, setting: str) -> tuple[Entry, ...]:
    if isinstance(script, str) or not isinstance(script, Sequence):
        raise ConfigError(f"{setting} is a list of answers, not {script!r}", setting=setting, value=script)
    for number, entry in enumerate(script, start=1):
        if not callable(entry):
            _check_pieces(entry, where=f"answer {number} of the {setting}")
    return tuple(script)


def _check_pieces(pieces: object, *, where: str) -> None:
    if not isinstance(pieces, list | tuple):
        raise ConfigError(
            f"{where} is {pieces!r}, not a list",
            setting="script",
            value=pieces,
            hint='one inner list per answer: [[call("read", path="a")], [say("read")]]',
        )
    for piece in pieces:
        if not isinstance(piece, Say | Think | Call | Fail | Cut) and not callable(piece):
            raise ConfigError(f"{where} has {piece!r}; use say, think, call, fail or cut", setting="script")


async def _pieces(entry: Entry, request: ModelRequest) -> Sequence[Piece]:
    if not callable(entry):
        return entry
    made = entry(request)
    pieces = await made if inspect.isawaitable(made) else made
    _check_pieces(pieces, where="what a function of the script returned")
    return pieces


def _estimate(request: ModelRequest, draft: _Draft) -> Usage:
    told = len(str(request))
    said = len(draft.text) + len(draft.reasoning) + sum(len(each.name) + len(each.arguments) for each in draft.calls)
    return Usage(input_tokens=-(-told // CHARS_PER_TOKEN), output_tokens=-(-said // CHARS_PER_TOKEN))


def _shown(text: str) -> str:
    """The first line of a text that has something on it, cut to what fits on a line."""
    line = next((each.strip() for each in text.splitlines() if each.strip()), "")
    return line if len(line) <= SHOWN_MAX else line[: SHOWN_MAX - 1] + "…"


def _summary(request: ModelRequest) -> str:
    prompts = [_shown(said.text) for said in request.conversation if isinstance(said, Prompt) and said.role == "user"]
    calls = sum(len(said.calls) for said in request.conversation if isinstance(said, Answer))
    newest = f" The newest: {prompts[-1]}" if prompts else ""
    return f"Summary of {len(request.conversation)} utterances: {len(prompts)} prompts, {calls} calls.{newest}"


# --- without a script -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Section:
    """What one answer is made of: some text, and calls."""

    lines: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def pieces(self) -> list[Piece]:
        text = "\n".join(self.lines).strip()
        said: list[Piece] = [say(ECHO + text)] if text else []
        return [*said, *self.calls]


THEN: Final = re.compile(r"(?m)^[ \t]*then[ \t]*$")
NAMED: Final = re.compile(r"([A-Za-z_][\w-]*)[ \t]+(\{.*\})")
NUMBER: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


def _number(text: str) -> int | float | str:
    """A number; anything else stays text, and the tool says what it thinks of it."""
    if not NUMBER.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)


def _call_of(line: str) -> Call | None:
    """The call that a line stands for, if it stands for one."""
    word, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    match word:
        case _ if not rest:
            return None
        case "read":
            return call("read", path=rest)
        case "run":
            return call("bash", command=rest)
        case "wait":
            return call("wait", seconds=_number(rest))
        case "call" if named := NAMED.fullmatch(rest):
            return call(named[1], named[2])
        case _:
            return None


def _sections(text: str) -> Iterator[_Section]:
    """The sections between the lines `then`; one that has no calls is said together with the next."""
    section = _Section()
    for line in text.splitlines():
        if line.strip() == "then":
            if section.calls:
                yield section
                section = _Section()
        elif (made := _call_of(line)) is not None:
            section.calls.append(made)
        else:
            section.lines.append(line)
    yield section


def _plan(request: ModelRequest) -> list[Piece]:
    """A plan with a step for each section of what the user wants; none if there is only one."""
    prompts = [said.text for said in request.conversation if isinstance(said, Prompt) and said.role == "user"]
    parts = [part.strip() for part in THEN.split(prompts[-1] if prompts else "")]
    steps = [part for part in parts if part]
    return [plan(*steps)] if len(steps) > 1 else [say("One answer is enough.")]


def _heard(said: Sequence[Utterance]) -> tuple[int, str] | None:
    """The newest thing that the model is to do, and its place: a step of a plan, or what the user wants."""
    prompts = [(at, each) for at, each in enumerate(said) if isinstance(each, Prompt) and each.role in ("user", ROLE)]
    if not prompts:
        return None
    at, newest = prompts[-1]
    if newest.role == "user":
        return at, newest.text
    if newest.text == NO_PLAN:
        return at, next((each.text for _, each in reversed(prompts) if each.role == "user"), "")
    mark, _, text = newest.text.partition("] ")
    return at, text.partition(".")[0] if f"{mark}]" == DONE else text


def _reaction(request: ModelRequest) -> list[Piece]:
    """What the model says to the newest prompt, as far as the conversation has come since."""
    if request.purpose == "plan":
        return _plan(request)
    said = request.conversation
    heard = _heard(said)
    if heard is None:
        return [say(ECHO.strip())]
    newest, text = heard
    sections = list(_sections(text))
    if not any(section.calls for section in sections):
        return [say(f"{ECHO}{text}")]
    answered = sum(isinstance(each, Answer) for each in said[newest:])
    if answered < len(sections) and (pieces := sections[answered].pieces()):
        return pieces
    results = [result for each in said[newest:] if isinstance(each, Results) for result in each.results]
    lines = [f"{each.name} ({each.status}): {_shown(each.output)}".rstrip(": ") for each in results]
    return [say("\n".join([f"Done: {len(results)} {'call' if len(results) == 1 else 'calls'}.", *lines]))]
