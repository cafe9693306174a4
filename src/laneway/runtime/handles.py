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
from laneway.kernel.jobs import Entry
from laneway.records import Explanation, JobId, JobState

if TYPE_CHECKING:
    from laneway.kernel.protocol import JobSpec
    from laneway.runtime.engine import Engine

__all__ = ("CURRENT", "Failure", "Job", "JoinedJob", "Node", "Slot", "SlotEntry")

T_co = TypeVar("T_co", covariant=True)


Node = tuple["Engine", JobId, int, "Node | None"]
"""Where code runs: the engine, the job or slot, which attempt of it, and the node around that. A tuple, for speed."""

CURRENT: ContextVar[Node | None] = ContextVar("laneway_current", default=None)
"""Which job (or slot) the code that asks runs in."""

# Handles of one job know each other.
# ruff: noqa: SLF001

_log = logging.getLogger("laneway")


class Failure:
    """The error of a failed job; says so in the log if nobody ever looks at it, unless it is `quiet`."""

    __slots__ = ("error", "name", "seen")

    def __init__(self, job: Job[Any], error: BaseException, *, quiet: bool = False) -> None:
        label = f"{job.spec.label} ({job.id})" if job.spec.label else job.id
        self.name = f"{label} in lane {job.lane_name!r}"
        self.error = error
        self.seen = quiet

    def __del__(self) -> None:
        if not self.seen:
            _log.warning("job %s failed and nobody awaited it: %r", self.name, self.error)


class Job(Entry, Generic[T_co]):
    """A submitted job: await it as often as you like, from anywhere on its loop.

    Awaiting is shielded: cancelling the waiter does not cancel the job. A job that is awaited from inside another
    job of the same lanes borrows what that one holds meanwhile.

    `id`, `state`, `attempt` (how often it was started), `done`, `cancel`, `explain`, `add_done_callback` and `await`
    are yours; every other attribute is Laneway's own book-keeping and may change.
    """

    __slots__ = ("_args", "_begun", "_context", "_done", "_engine", "_fn", "_names", "_task", "_value", "_waiters")

    # Set when an attempt starts and ends, and not read before.
    _begun: bool  # the code of its newest attempt has begun
    _task: asyncio.Task[None] | None
    _value: Any  # what it returned, or a Failure

    # Only some jobs have these; `__dict__` comes into being with the first of them that is set.
    _handles: dict[int, JoinedJob[T_co]] | None = None  # when it has a key: those that still want it
    _in_thread: bool = False  # a thread runs its function now
    _ending: bool = False  # its newest attempt was asked to end
    _error: BaseException | None = None  # of its newest attempt

    def __init__(
        self,
        engine: Engine,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context,
        names: str | tuple[str, ...],
    ) -> None:
        self._engine = engine
        self._fn = fn
        self._args = args
        self._context = context
        self._names = names  # of its lane, or lanes
        self._done = False
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def lane_name(self) -> str:
        """The lane that its work belongs to: the last of its lanes."""
        return self._names if isinstance(self._names, str) else self._names[-1]

    def done(self) -> bool:
        """Whether it has ended."""
        return self._done

    def cancel(self, reason: str = "cancelled by its caller") -> bool:
        """End it: waiting jobs leave at once, running ones are cancelled. False: it has ended or is ending.

        A job shared by `key` goes on until the last of its handles is cancelled.
        """
        return self._engine.cancel_handle(self, reason)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call back with this handle on the loop soon after the job is final; at once if it is."""
        if self._done:
            self._engine.loop.call_soon(callback, self)
        else:
            self._engine.waiter_of(self).add_done_callback(lambda _: callback(self))

    def explain(self) -> Explanation:
        """Why it is where it is; `str()` of the answer is one sentence."""
        return self._engine.explain_handle(self)

    def __await__(self) -> Generator[Any, None, T_co]:
        if not self._done:
            if CURRENT.get() is None:
                yield from self._engine.waiter_of(self)
            else:
                yield from self._engine.wait_for(self).__await__()
        value = self._value
        if type(value) is Failure:
            value.seen = True
            raise value.error
        result: T_co = value
        return result

    def __repr__(self) -> str:
        label = f" {self.spec.label!r}" if self.spec.label else ""
        return f"<Job {self.id}{label} {self.state}>"

    def settle(self, value: Any) -> None:
        """It has ended (the engine says so): wake those that await it."""
        self._done = True
        self._value = value
        self._task = None
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)


class JoinedJob(Job[T_co]):
    """A handle of a job with a key: its own to await and to cancel, while the job may be shared."""

    __slots__ = ("_detached", "_primary")

    _waits: set[int] | None = None  # waits of jobs for this handle

    def __init__(self, primary: Job[T_co]) -> None:
        super().__init__(primary._engine, primary._fn, (), primary._context, primary._names)
        self._primary = primary
        self._detached = False
        self.id = primary.id
        self.spec = primary.spec

    @property
    def state(self) -> JobState:  # type: ignore[override]
        """Where the shared job is; `cancelled` for a handle that was cancelled alone."""
        return JobState.CANCELLED if self._detached else self._primary.state

    @property
    def attempt(self) -> int:  # type: ignore[override]
        """How often the shared job was started."""
        return self._primary.attempt


class SlotEntry(Entry):
    """A slot as the kernel and the engine know it."""

    __slots__ = ("error", "granted")

    def __init__(self, granted: asyncio.Future[None]) -> None:
        self.granted = granted
        self.error: BaseException | None = None


class Slot:
    """A slot without a function: `async with lanes.slot("execute"):`, or `acquire()` and `release()`.

    A slot inside a job (or inside the `async with` of another slot) is part of it: a lane that the job around it
    already has is granted at once and counts once. `release` may be called any number of times and counts once.
    """

    def __init__(self, engine: Engine, names: tuple[str, ...], spec: JobSpec) -> None:
        self._engine = engine
        self._names = names
        self._spec = spec
        self._asked = False
        self._entry: SlotEntry | None = None
        self._token: Token[Node | None] | None = None

    @property
    def id(self) -> JobId | None:
        """The id under which `jobs()` lists it while it is held."""
        return self._entry.id if self._entry is not None else None

    async def acquire(self) -> Self:
        """Wait for the slot; give it back with `release()`. Not inside a job: there, use `async with`."""
        await self._acquire(as_block=False)
        return self

    def release(self) -> None:
        """Give the slot back."""
        entry = self._entry
        if entry is None:
            return
        self._engine.check_release()
        self._entry = None
        self._asked = False
        token, self._token = self._token, None
        if token is not None:
            with contextlib.suppress(ValueError):  # released in another task than the one that acquired it
                CURRENT.reset(token)
        self._engine.release_slot(entry)

    async def _acquire(self, *, as_block: bool) -> None:
        if self._asked:
            raise UsageError("this slot is in use already", hint="make one slot() for each use")
        self._asked = True
        try:
            self._entry = await self._engine.acquire_slot(self._names, self._spec, as_block=as_block)
        except BaseException:
            self._asked = False
            raise

    async def __aenter__(self) -> Self:
        await self._acquire(as_block=True)
        assert self._entry is not None
        self._token = CURRENT.set((self._engine, self._entry.id, 1, CURRENT.get()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
