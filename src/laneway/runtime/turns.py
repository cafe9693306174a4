"""What a handler holds: `Turn`, and `Child` for the sub-agents it starts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from laneway.errors import FencedError, InterruptSignalError, InvalidMessageError, UsageError, describe, text_of
from laneway.kernel import texts
from laneway.kernel.messages import TurnEntry
from laneway.kernel.protocol import Stop
from laneway.kernel.registry import lane_part, shortened
from laneway.mail import Approval, Message, MessageKind, Mode, Route, Sender, TurnState
from laneway.records import JobState
from laneway.rows import Owner

if TYPE_CHECKING:
    from laneway.runtime.errands import Errands
    from laneway.runtime.handles import Job
    from laneway.runtime.mail_engine import MailEngine

__all__ = ("Child", "Turn", "TurnEnd", "cancelled_by", "session_lane")

# The engine is the owner of its turns: it alone sets their private fields.

T = TypeVar("T")


class Turn:
    """One run of the agent over one or more messages.

    `prompt` is what to answer: the text of one message, or several with their markers. Ask `boundary()` where new
    messages may come in. When the turn is fenced (it was interrupted and did not end in time) every method raises
    `FencedError`, and nothing it says is delivered.
    """

    def __init__(self, engine: MailEngine, entry: TurnEntry) -> None:
        self._engine = engine
        self._entry = entry
        self.id = entry.id
        self.session_key = entry.owner.session
        self.tenant = entry.owner.tenant
        self.workspace = entry.owner.workspace
        self.prompt = entry.prompt
        self.mode: Mode = entry.mode
        self.kind: MessageKind = entry.kind
        self.route: Route = entry.route
        self.messages: tuple[Message, ...] = tuple(item.message for item in entry.items)
        self._begun = False
        self._answered: asyncio.Future[None] | None = None
        self._waits = 0  # how many things it waits for: approvals, an answer
        self._before = TurnState.THINKING  # what it did before it waited
        self._job: Job[Any] | None = None

    def __repr__(self) -> str:
        return f"<Turn {self.id} of {self.session_key!r} {self._entry.state}>"

    @property
    def state(self) -> TurnState:
        """Where it is."""
        return self._entry.state

    @property
    def attempt(self) -> int:
        """1 the first time; more when a process died in it before and `on_crash="rerun"` runs it again."""
        return 1 + max((item.attempts for item in self._entry.items), default=0)

    @property
    def cancelled(self) -> bool:
        """Whether it is being ended: something else is to run, or somebody said stop."""
        return bool(self._entry.cancelled) or not self._entry.live

    @property
    def depth(self) -> int:
        """How many `request_followup` lie behind it; a steer begins the count again."""
        return self._entry.depth

    @property
    def conversation(self) -> int:
        """Which conversation of the session this is; `/new` begins another."""
        return self._entry.conversation

    # ---- messages that come in meanwhile ----

    async def boundary(self) -> list[Message]:
        """A safe point: the messages that were steered into this turn since the last one, in order.

        Raises `InterruptSignalError` when the turn was interrupted: let it pass.
        """
        await asyncio.sleep(0)  # let what has arrived be accepted
        self._check()
        return await self._engine.take_in(self, everything=False)

    def peek_pending(self) -> list[Message]:
        """What waits in this session, without taking it."""
        self._check_fence()
        return self._engine.peek_pending(self._entry.owner)

    async def consume_pending(self) -> list[Message]:
        """Take every waiting message of the same route and rights into this turn, whatever its mode."""
        await asyncio.sleep(0)
        self._check()
        return await self._engine.take_in(self, everything=True)

    def skipped(self, calls: Iterable[T]) -> list[tuple[T, str]]:
        """The paired results of tool calls that are not made because a message came in between."""
        self._check_fence()
        return [(call, texts.SKIPPED) for call in calls]

    # ---- what it says ----

    async def reply(self, text: str) -> None:
        """Say something now; what the handler returns is said last. Parts that were sent stay sent."""
        if not isinstance(text, str) or not text:
            raise InvalidMessageError(f"a reply is text, not {text!r}")
        self._check()
        await self._engine.reply(self, text)

    def add_usage(self, tokens: int) -> None:
        """Count tokens, for `/status`."""
        self._check_fence()
        if type(tokens) is not int or tokens < 0:
            raise UsageError(f"tokens is a whole number, not {tokens!r}")
        self._entry.tokens += tokens

    async def request_followup(self, text: str) -> str:
        """Go on in a further turn, which gets `text`; at most five deep. Returns the id of the message."""
        self._check()
        return await self._engine.request_followup(self, text)

    # ---- what it starts and asks ----

    def spawn(
        self, fn: Callable[..., Any], /, *args: Any, label: str | None = None, timeout_ms: int | None = None
    ) -> Child:
        """Run a function as a sub-agent in the lane `subagent`.

        Await what it returns to get the result here. If nobody awaits it when it ends, the session gets exactly one
        message about its end, whatever the end is.
        """
        self._check()
        return self._engine.spawn(self, fn, args, label=label, timeout_ms=timeout_ms)

    async def ask(self, question: str, *, timeout_ms: int = 3_600_000) -> Message | None:
        """Say something and wait for the answer: the next message of the same route and rights, whatever its mode.

        None when none came in time. The slots of this turn are free meanwhile.
        """
        self._check()
        return await self._engine.ask(self, question, timeout_ms)

    def _wake(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def ask_approval(
        self, action: str, arguments: Mapping[str, Any] | None = None, *, timeout_ms: int = 120_000
    ) -> Approval:
        """Ask for an approval of exactly these arguments and wait; the slots of this turn are free meanwhile.

        The answer's `state` is `approved`, `denied`, `expired` or `superseded`.
        """
        self._check()
        return await self._engine.ask_approval(self, action, dict(arguments or {}), timeout_ms)

    @contextlib.asynccontextmanager
    async def phase(self, state: TurnState | str) -> AsyncIterator[None]:
        """Say what the turn does meanwhile: `thinking`, `acting`, `compacting`, `waiting` or `delivering`.

        Messages that steer wait while it compacts, and go to the next turn while it waits or delivers.
        """
        self._check()
        wanted = TurnState(state)
        if wanted.is_final or wanted is TurnState.STARTING:
            raise UsageError(f"a turn cannot be put into {wanted}", hint="thinking, acting, compacting, waiting …")
        before = self._entry.state
        self._engine.set_phase(self, wanted)
        try:
            yield
        finally:
            if self._entry.live and self._entry.state is wanted:
                self._engine.set_phase(self, before)

    # ---- fences ----

    def _check_fence(self) -> None:
        if not self._entry.live and self._entry.state is not TurnState.SUCCEEDED:
            raise FencedError(
                f"turn {self.id} may say nothing more: {self._entry.reason or 'it has ended'}",
                hint="let this end; another turn has its place",
            )
        if not self._entry.live:
            raise FencedError(f"turn {self.id} has ended", hint="a turn is used inside its handler only")

    def _check(self) -> None:
        self._check_fence()
        if self._entry.cancelled:
            raise InterruptSignalError(self._entry.cancelled)


class Child:
    """A sub-agent. Await it for its result; left alone, its end becomes a message."""

    is_call = False  # it is no sub-agent but a call that goes on in the background

    def __init__(self, engine: Errands, child_id: str, label: str, owner: Owner) -> None:
        self._engine = engine
        self.id = child_id
        self.label = label
        self.owner = owner
        self.route = Route()
        self.sender: Sender | None = None
        self._stored = False  # the store knows of it
        self._note: Message | None = None  # what the session is told when its start could not be stored
        self._waiters = 0
        self._delivered = False
        self._detached = False  # whoever opens the session next goes on with it: its end is not told here
        self._job: Job[Any] | None = None

    def __repr__(self) -> str:
        return f"<Child {self.id} {self.label!r}>"

    def done(self) -> bool:
        """Whether it has ended."""
        return self._job is not None and self._job.done()

    def cancel(self, reason: str = "cancelled by its turn") -> bool:
        """Ask it to end. False: it has ended already."""
        return self._job is not None and self._job.cancel(reason)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for it, or has got its result."""
        return self._waiters > 0 or self._delivered

    def stored(self, error: Exception | None) -> None:
        """Its start is on disk, or was refused."""
        self._stored = self._stored or error is None

    def left(self) -> None:
        """It has ended, and the engine has heard of it."""

    def end_of(self, job: Job[Any]) -> tuple[str, str]:
        """How it ended, and what it says."""
        if job.state is JobState.CANCELLED:
            return job.state.value, ""
        value = job._value  # noqa: SLF001 - of its own job
        error = getattr(value, "error", None)
        if isinstance(error, BaseException):
            value.seen = True
            return job.state.value, describe(error)
        return job.state.value, "" if value is None else text_of(value)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        assert self._job is not None
        self._waiters += 1
        self._engine.note_awaited(self)
        try:
            value = await self._job
        except asyncio.CancelledError:
            raise  # the wait was given up: whoever gave it up has not heard how it ended
        except BaseException:
            self._delivered = True
            raise
        else:
            self._delivered = True
            return value
        finally:
            self._waiters -= 1
            self._engine.note_awaited(self)


class TurnEnd(NamedTuple):
    """How a handler ended, kept until the store has it."""

    state: TurnState
    answer: str | None
    reason: str


def cancelled_by(turn: Turn) -> TurnEnd:
    """Why the task of a turn was cancelled: the inbox said so, its lane did, or somebody else."""
    job, entry = turn._job, turn._entry  # noqa: SLF001 - the engine asks
    if entry.cancelled:
        return TurnEnd(TurnState.CANCELLED, None, entry.cancelled)
    if job is not None and job.stop is Stop.TIMEOUT:
        return TurnEnd(TurnState.FAILED, None, f"it ran longer than its lane allows: {job.reason or 'timeout_ms'}")
    return TurnEnd(TurnState.CANCELLED, None, (job.reason if job is not None else "") or "its task was cancelled")


def session_lane(owner: Owner) -> str:
    """The lane in which the turns of a session follow each other."""
    name = lane_part(owner.session)
    if owner.tenant != "default":
        name = shortened(f"{lane_part(owner.tenant)}%~{name}")  # no key has this: a lone % is escaped
    return f"session:{name}"
