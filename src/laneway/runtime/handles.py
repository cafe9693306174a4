"""What a caller holds: `Job` for a submitted function, `Slot` for a slot without one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator
from contextvars import Context, ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from laneway.errors import UsageError
from laneway.records import Explanation, JobId, JobState

if TYPE_CHECKING:
    from laneway.kernel.protocol import JobSpec
    from laneway.runtime.engine import Engine

__all__ = ("CURRENT", "Job", "Slot")

T = TypeVar("T")

CURRENT: ContextVar[Attempt | SlotNode | None] = ContextVar("laneway_current", default=None)
"""Which attempt (or slot) the code that asks runs in."""

_log = logging.getLogger("laneway")


class Failure:
    """The error of a failed job; says so in the log if nobody ever looks at it, unless it is `quiet`."""

    __slots__ = ("error", "job_id", "seen")

    def __init__(self, job_id: JobId, error: BaseException, *, quiet: bool = False) -> None:
        self.job_id = job_id
        self.error = error
        self.seen = quiet

    def __del__(self) -> None:
        if not self.seen:
            _log.warning("job %s failed and nobody awaited it: %r", self.job_id, self.error)


class Job(Generic[T]):
    """A submitted job: await it as often as you like, from anywhere on its loop.

    Awaiting is shielded: cancelling the waiter does not cancel the job. A job that is awaited from inside another
    job of the same lanes borrows what that one holds meanwhile.
    """

    __slots__ = (
        "_args",
        "_context",
        "_engine",
        "_fn",
        "_lanes",
        "_result",
        "_run",
        "_share",
        "_spec",
        "_state",
        "_waiters",
        "id",
    )

    def __init__(
        self,
        engine: Engine,
        job_id: JobId,
        call: tuple[Callable[..., Any], tuple[Any, ...], Context],
        lanes: tuple[str, ...],
        spec: JobSpec,
    ) -> None:
        self._engine = engine
        self.id = job_id
        self._fn, self._args, self._context = call
        self._lanes = lanes
        self._spec = spec
        self._state: JobState | None = None  # set when it is final
        self._result: Any = None  # the value, or a Failure
        self._waiters: list[asyncio.Future[None]] | None = None
        self._run: Attempt | None = None  # the newest attempt
        self._share: Share | None = None  # when it has a key

    @property
    def state(self) -> JobState:
        """Where it is; a final state never changes."""
        return self._state if self._state is not None else self._engine.state_of(self)

    @property
    def attempt(self) -> int:
        """How often it has been started."""
        run = (self._share.primary if self._share is not None else self)._run
        return run.number if run is not None else 0

    def done(self) -> bool:
        """Whether it has ended."""
        return self._state is not None

    def cancel(self, reason: str = "cancelled by its caller") -> bool:
        """End it: waiting jobs leave at once, running ones are cancelled. False: it has ended or is ending.

        A job shared by `key` goes on until the last of its handles is cancelled.
        """
        return self._engine.cancel_handle(self, reason)

    def explain(self) -> Explanation:
        """Why it is where it is; `str()` of the answer is one sentence."""
        return self._engine.explain_handle(self)

    def __await__(self) -> Generator[Any, None, T]:
        if self._state is None:
            yield from self._engine.wait_for(self).__await__()
        result = self._result
        if type(result) is Failure:
            result.seen = True
            raise result.error
        value: T = result
        return value

    @property
    def call(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function and its arguments."""
        return self._fn, self._args

    @property
    def context(self) -> Context:
        """The context variables it was submitted with."""
        return self._context

    def __repr__(self) -> str:
        label = f" {self._spec.label!r}" if self._spec.label else ""
        return f"<Job {self.id}{label} {self.state}>"

    def settle(self, state: JobState, result: Any) -> None:
        """It is final (the engine says so): wake those that await it."""
        if self._state is not None:
            return
        self._state = state
        self._result = result
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)


class Share:
    """The handles of one job that was submitted more than once with the same key."""

    __slots__ = ("handles", "primary")

    def __init__(self, primary: Job[Any]) -> None:
        self.primary = primary
        self.handles: dict[int, Job[Any]] = {id(primary): primary}


class Attempt:
    """One start of a job."""

    __slots__ = ("begun", "ending", "engine", "error", "in_thread", "job", "number", "task", "threaded", "value")

    def __init__(self, engine: Engine, job: Job[Any], number: int, *, threaded: bool) -> None:
        self.engine = engine
        self.job = job
        self.number = number
        self.threaded = threaded
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.in_thread = False
        self.ending = False
        self.error: BaseException | None = None
        self.value: Any = None


class Slot:
    """A slot without a function: `async with lanes.slot("execute"):`, or `acquire()` and `release()`.

    `release` may be called any number of times and counts once.
    """

    def __init__(self, engine: Engine, lanes: tuple[str, ...], spec: JobSpec) -> None:
        self._engine = engine
        self._lanes = lanes
        self._spec = spec
        self._node: SlotNode | None = None
        self._token: Token[Attempt | SlotNode | None] | None = None

    @property
    def id(self) -> JobId | None:
        """The id under which `jobs()` lists it, once it was asked for."""
        return self._node.id if self._node is not None else None

    async def acquire(self) -> Self:
        """Wait for the slot."""
        if self._node is not None:
            raise UsageError("this slot is in use already", hint="make one slot() for each use")
        self._node = await self._engine.acquire_slot(self._lanes, self._spec)
        self._token = CURRENT.set(self._node)
        return self

    def release(self) -> None:
        """Give the slot back."""
        node, self._node = self._node, None
        if node is None:
            return
        if self._token is not None:
            with contextlib.suppress(ValueError):  # released in another task than the one that acquired it
                CURRENT.reset(self._token)
        self._engine.release_slot(node)

    async def __aenter__(self) -> Self:
        return await self.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class SlotNode:
    """A slot as the kernel knows it."""

    __slots__ = ("engine", "error", "granted", "id", "number")

    def __init__(self, engine: Engine, job_id: JobId) -> None:
        self.engine = engine
        self.id = job_id
        self.number = 1
        self.granted: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
