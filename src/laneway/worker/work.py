"""One task in the hands of a worker, from the lease to the last word about it.

Nothing is begun before the host has answered that it may begin. While it is done, the host gets a sign of life three
times within each lease. When a handler has said how far it is, the next one comes at once, but not more than about once
a second, not for what is over in a moment, and only with the latest word. By the answer the worker learns that nobody
wants the task any more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum

from laneway.errors import ConflictError, LeaseLostError, UsageError, describe, text_of
from laneway.external import ExternalTask, ExternalTaskResult, Lease, Progress
from laneway.records import Effect
from laneway.worker.host_line import ANSWER_LEAST_S, SAID_MAX, HostLine, Pauses, asked_pause_s, is_for_good

__all__ = ("FACTS", "Does", "End", "Work")

_log = logging.getLogger("laneway")

Does = Callable[[ExternalTask], Awaitable[object]]
BEATS = 3  # in each lease
BEAT_LEAST_S = 0.01  # whatever a host says
NEWS_S = 1.0  # between two signs of life that tell news
FIRST_NEWS_S = 0.25  # from the begin on: what is done by then needs no sign of life
ERROR_MAX = 100_000  # characters of what a handler raised
CUT = " characters more]"
FACTS = "_facts"
"""Under this name lines of the log carry what they are about; lines for people say it anyway."""
CANCELLED = "the handler was cancelled, and not by its worker"
NOT_BEGUN = "the worker could not reach its host in time, and did not begin"


class End(StrEnum):
    """What became of a task, as the worker counts it."""

    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"  # nobody wanted it any more
    REFUSED = "refused"  # the task, or its result, was somebody else's by then
    RETURNED = "returned"  # given back to the host


class Work:
    """A task that the worker has taken."""

    __slots__ = (
        "_beat_s",
        "_beating",
        "_does",
        "_given",
        "_is_handed_back",
        "_is_stopped",
        "_is_told",
        "_line",
        "_loop",
        "_news",
        "_result",
        "_run",
        "_tell",
        "_thread",
        "_timer",
        "failure",
        "has_begun",
        "is_over",
        "lease",
        "task",
        "task_id",
    )

    def __init__(
        self, lease: Lease, line: HostLine, does: Does | None, tell: Callable[[Work, Progress | None], None]
    ) -> None:
        self.lease = lease
        self.task = task = lease.task
        self.task_id = str(task["task_id"])
        # A handler may write into what it gets, and everybody else has to know what the task is.
        self._given = ExternalTask(task, remaining=task.remaining_ms, report=self._report)
        self.failure = ""  # what the host was told of it
        self.has_begun = False
        self.is_over = False
        self._does = does
        self._line = line
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._result: ExternalTaskResult | None = None  # until somebody has heard it
        self._run: asyncio.Task[ExternalTaskResult | None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # until the next sign of life
        self._beating: asyncio.Task[None] | None = None  # while one is on its way
        self._beat_s = 0.0  # when the last one was sent
        self._news: Progress | None = None  # which the host has not heard
        self._is_handed_back = False
        self._is_stopped = False  # the work is no longer wanted, by the host or by the worker
        self._is_told = False  # the loop knows that there is news, or will in a moment

    @property
    def facts(self) -> dict[str, str]:
        """What a line of the log is about, for logs that machines read."""
        named = {name: str(self.task.get(name) or "") for name in ("session_id", "command_type", "workspace_name")}
        return {"worker": self._line.name, "task_id": self.task_id, **named}

    # ---- the way of a task ----

    async def do(self) -> End:
        """Do it, and say what became of it. Whoever cancels this gives it back."""
        try:
            if self._does is None:  # it was not asked for; given back, it would come again and again
                said = f"this worker does not handle {text_of(self.task['command_type'])}"
                return await self._deliver(ExternalTaskResult(success=False, error=said))
            refusal = await self._start()
            return await self._work(self._does) if refusal is None else refusal
        except asyncio.CancelledError:
            await self.hand_back()
            raise

    async def _start(self) -> End | None:
        """Ask whether it may begin, until somebody answers. Only then it has begun. Returns why it must not."""
        pauses = Pauses(self._line.host.random)
        while not self._line.stopping.is_set():
            try:
                await self._line.start(self.lease)
            except Exception as error:  # noqa: BLE001 - a transport may raise anything; nobody has begun
                if isinstance(error, LeaseLostError):
                    self._say(logging.INFO, "is not to be begun: %s", text_of(error))
                    if not pauses.are_new:  # an answer was lost: the host may believe that it has begun
                        await self._say_not_begun()
                    return End.REFUSED
                if is_for_good(error):
                    self._say(logging.WARNING, "cannot be begun: %s", text_of(error))
                    return End.REFUSED
                self._say(logging.DEBUG, "waits for its start: %s", describe(error))
                await self._line.pause(pauses.next_s(error))
            else:
                self.has_begun = True
                self._tell(self, None)
                return None
        await self._give_back()
        return End.RETURNED

    async def _work(self, does: Does) -> End:
        """It may begin: work, show signs of life, and say what became of it."""
        run = self._run = self._loop.create_task(self._done(does), name=f"laneway-work {self.task_id}")
        self._beat_s = self._loop.time() + FIRST_NEWS_S - NEWS_S
        self._beat_later()
        try:
            await asyncio.wait([run])
            if run.cancelled():  # without a word from here: its handler did that, and somebody has to hear of it
                result = None if self._is_stopped else ExternalTaskResult(success=False, error=CANCELLED)
            else:
                result = run.result()
            return End.STOPPED if result is None else await self._deliver(result)
        finally:
            self.is_over = True
            for beat in (self._timer, self._beating):
                if beat is not None:
                    beat.cancel()
            if not run.done():
                self._is_stopped = True
                run.cancel()
                await asyncio.wait([run])

    async def _done(self, does: Does) -> ExternalTaskResult | None:
        """Do it. None: its time was over, and the host knows."""
        try:
            async with asyncio.timeout(max(0, self.task.remaining_ms()) / 1000) as limit:
                value = await does(self._given)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whatever it raises is told, and ends nobody else's work
            if isinstance(error, TimeoutError) and limit.expired():
                return None
            if self._is_stopped and not isinstance(error, Exception):  # a second Ctrl-C, while it is stopped
                raise
            said = _cut(describe(error))
            # Whoever wrote the handler wants to know where; a text that had to be cut would be there in full.
            shown = None if said.endswith(CUT) else error
            self._say(logging.WARNING, "failed: its handler raised %s", line_of(said), trace=shown)
            return ExternalTaskResult(success=False, error=said)
        try:
            return ExternalTaskResult.of(value)
        except UsageError as error:
            said = (
                f"what the handler of {text_of(self.task['command_type'])} gave back cannot be sent: {text_of(error)}"
            )
            return ExternalTaskResult(success=False, error=said)

    async def _deliver(self, result: ExternalTaskResult) -> End:
        """Say what became of it, until somebody hears it."""
        self._result = result
        is_replaced = False
        pauses = Pauses(self._line.host.random)
        while True:
            try:
                await self._line.complete(self.task_id, self.lease.token, result)
            except Exception as error:  # noqa: BLE001 - a transport may raise anything; the result waits
                if isinstance(error, UsageError) and not is_replaced:  # too large, say: the host should hear of that
                    said = f"its result was refused: {text_of(error)}"
                    self._result = result = ExternalTaskResult(success=False, error=said)
                    is_replaced = True
                    continue
                if is_for_good(error):
                    self._result = None
                    self._say(logging.WARNING, "has a result that does not count: %s", text_of(error))
                    return End.REFUSED
                self._say(logging.DEBUG, "has a result that waits: %s", describe(error))
                await asyncio.sleep(pauses.next_s(error))
            else:
                self._result = None
                self.failure = "" if result.success else line_of(result.error or "")
                return End.COMPLETED if result.success else End.FAILED

    # ---- signs of life ----

    def _report(self, progress: Progress) -> None:
        """A handler says how far it is, on whatever thread it runs."""
        self._news = progress
        if threading.get_ident() == self._thread:
            self._hear()
        elif not self._is_told:
            self._is_told = True
            with suppress(RuntimeError):  # the loop was closed meanwhile, and nobody listens any more
                self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._is_told = False
        if self.is_over or self._news is None:
            return
        self._tell(self, self._news)
        soon_s = max(self._beat_s + NEWS_S, self._loop.time())
        if self._timer is not None and self._beating is None and self._timer.when() > soon_s:
            self._timer.cancel()
            self._beat_later()

    def _beat_later(self, least_s: float = 0) -> None:
        """Most work is done before it has to show that it is alive: until then, that costs a timer."""
        wait_s = max(self.lease.lease_ms / 1000 / BEATS, BEAT_LEAST_S)
        if self._news is not None:
            wait_s = min(wait_s, max(self._beat_s + NEWS_S - self._loop.time(), least_s, 0))
        self._timer = self._loop.call_later(wait_s, self._beat_now)

    def _beat_now(self) -> None:
        self._beating = self._loop.create_task(self._beat(), name=f"laneway-beat {self.task_id}")

    async def _beat(self) -> None:
        """Show a sign of life; when nobody wants the task any more, stop the work."""
        news, self._news = self._news, None
        self._beat_s = self._loop.time()
        wanted, asked_s, is_late = True, 0.0, False
        try:
            wanted = await self._line.heartbeat(self.lease, news)
        except LeaseLostError as error:
            self._say(logging.WARNING, "was lost: %s", text_of(error))
            wanted = False
        except Exception as error:  # noqa: BLE001 - a transport may raise anything; the next sign may get through
            self._say(logging.DEBUG, "could give no sign of life: %s", describe(error))
            asked_s, is_late = asked_pause_s(error), self._loop.time() - self._beat_s >= ANSWER_LEAST_S
            if self._news is None:
                self._news = news
        self._beating = None
        if wanted and not self.is_over:
            if is_late and not asked_s:  # it has waited long enough, and the lease comes to its end
                self._beat_now()
            else:
                self._beat_later(asked_s)
        elif self._run is not None and not self._run.done():
            self._is_stopped = True
            self._run.cancel()

    # ---- giving back ----

    async def hand_back(self) -> None:
        """The worker ends: say once what is known."""
        if self._is_handed_back:
            return
        self._is_handed_back = True
        if self._result is not None:
            await self._line.try_complete(self.task_id, self.lease.token, self._result)
        elif self.has_begun:
            await self._line.try_release(self.task_id, self.lease.token, begun=True)
        else:
            await self._give_back()

    async def _give_back(self) -> None:
        refusal = await self._line.try_release(self.task_id, self.lease.token, begun=False)
        if isinstance(refusal, ConflictError):  # it has heard the start, and its answer was lost
            await self._say_not_begun()

    async def _say_not_begun(self) -> None:
        """If the host believes that a write has begun, it should know better; anything else goes to another worker."""
        if self.lease.effect is Effect.WRITE:
            failure = ExternalTaskResult(success=False, error=NOT_BEGUN)
            await self._line.try_complete(self.task_id, self.lease.token, failure)

    def _say(self, level: int, words: str, said: str, *, trace: BaseException | None = None) -> None:
        about = (self._line.name, self.task_id, said)
        _log.log(level, f"worker %s: task %s {words}", *about, exc_info=trace, extra={FACTS: self.facts})


def _cut(said: str) -> str:
    """What a handler said, short enough to be told: an error may quote all that somebody has read."""
    if len(said) <= ERROR_MAX:
        return said
    return f"{said[:ERROR_MAX]} [… {len(said) - ERROR_MAX:,}{CUT}"


def line_of(said: str) -> str:
    """The first line of what was said, for a log."""
    first = said.strip().partition("\n")[0]
    return first if len(first) <= SAID_MAX else f"{first[:SAID_MAX]}…"
