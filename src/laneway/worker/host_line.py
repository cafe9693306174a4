"""The line from a worker to its host: who answers, for how long nobody did, and when to ask again.

A host that does not answer may be back in a moment, so everything is said again: after 0.1 seconds, then after twice as
long each time up to 5 seconds, each pause drawn a little shorter so that a hundred workers do not come at once. A host
that names a pause of its own gets at least that. That nobody answers is said once in the log, and once that somebody
does again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from laneway.errors import (
    ConflictError,
    DeniedError,
    DrainingError,
    LeaseLostError,
    NotAuthenticatedError,
    PermissionDeniedError,
    RateLimitedError,
    UsageError,
    describe,
    text_of,
)
from laneway.external import ExternalTaskResult, Lease, Progress
from laneway.ports import Random, Transport
from laneway.system import HostEnv

__all__ = ("HostLine", "Pauses", "is_for_good")

_log = logging.getLogger("laneway")

T = TypeVar("T")
FIRST_DELAY_S = 0.1
LAST_DELAY_S = 5.0
ASKED_MAX_S = 300.0  # a host that asks for a longer pause is asked again after this
ANSWER_S = 60.0  # a host that says nothing for so long is not there
ANSWER_LEAST_S = 1.0
TRIES = 6  # in each lease, if nobody answers
STOP_GRACE_S = 5.0
SAID_MAX = 300
FOR_GOOD = (UsageError, ConflictError, DeniedError)
"""What a host says that it would say again."""
FOR_NOW = (RateLimitedError, DrainingError)
"""… but these it says only now."""
SHUT_OUT = (NotAuthenticatedError, PermissionDeniedError)
"""… and these are about whoever asks, not about what: the token was revoked, say."""


def is_for_good(error: BaseException) -> bool:
    """Whether the same question would get the same answer."""
    return isinstance(error, FOR_GOOD) and not isinstance(error, FOR_NOW)


def asked_pause_s(error: BaseException | None) -> float:
    """The pause that a host asks for with an error; 0 if it does not say."""
    asked = getattr(error, "retry_after_ms", None)
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not asked > 0:
        return 0.0
    return min(asked / 1000, ASKED_MAX_S)


class Pauses:
    """How long to wait before the same is said again."""

    __slots__ = ("_delay_s", "_random")

    def __init__(self, source: Random) -> None:
        self._random = source
        self._delay_s = FIRST_DELAY_S

    @property
    def are_new(self) -> bool:
        """Whether there was none yet."""
        return self._delay_s == FIRST_DELAY_S

    def next_s(self, error: BaseException | None) -> float:
        """The next one, after this error, if it was one."""
        drawn = self._random.random()
        own, self._delay_s = self._delay_s * (0.5 + drawn / 2), min(2 * self._delay_s, LAST_DELAY_S)
        return max(own, asked_pause_s(error) * (1 + drawn / 4))  # never earlier than the host asks for

    def begin_again(self) -> None:
        """Somebody has answered."""
        self._delay_s = FIRST_DELAY_S


class HostLine:
    """What a worker says to its host. Whatever it hears, it knows whether somebody is there."""

    def __init__(self, name: str, transport: Transport, host: HostEnv, tell: Callable[[str, str], None]) -> None:
        self.name = name
        self.host = host
        self.stopping = asyncio.Event()  # nothing new is begun
        self._transport = transport
        self._tell = tell
        self.denial: Exception | None = None  # why the host does not want to hear of it any more
        self._was_there = False
        self._lost_ms: int | None = None  # when it was first not answered
        self._takes_progress = takes(transport.heartbeat, "progress")
        self._takes_begun = takes(transport.release, "begun")

    # ---- what is said ----

    async def claim(self, limit: int, wait_ms: int, wanted: Mapping[str, Any]) -> list[Lease]:
        """Ask for tasks."""
        claim = self._transport.claim(self.name, limit=limit, wait_ms=wait_ms, **wanted)
        return await self._answer(claim, more_s=wait_ms / 1000)

    async def start(self, lease: Lease) -> None:
        """Ask whether it may begin."""
        await self._answer(self._transport.start(lease.task["task_id"], lease.token), within_s=_patience_s(lease))

    async def heartbeat(self, lease: Lease, progress: Progress | None) -> bool:
        """Show a sign of life; whether the task is wanted."""
        news = {"progress": progress} if progress is not None and self._takes_progress else {}
        sign = self._transport.heartbeat(lease.task["task_id"], lease.token, **news)
        return await self._answer(sign, within_s=_patience_s(lease))

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """Say what became of it."""
        return await self._answer(self._transport.complete(task_id, token, result))

    async def try_complete(self, task_id: str, token: str, result: ExternalTaskResult) -> Exception | None:
        """Say what became of it, once."""
        return await self._try(self._transport.complete(task_id, token, result))

    async def try_release(self, task_id: str, token: str, *, begun: bool) -> Exception | None:
        """Give it back, once; what went wrong with that."""
        reason = f"{self.name} stops"
        if not begun:
            return await self._try(self._transport.release(task_id, token, reason))
        if not self._takes_begun:  # a transport that cannot say so: the lease ends by itself
            return None
        return await self._try(self._transport.release(task_id, token, reason, begun=True))

    async def _try(self, call: Awaitable[object]) -> Exception | None:
        """Say something that costs only time if nobody hears it: the lease ends by itself."""
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await call
        except Exception as error:  # noqa: BLE001 - as above
            _log.info("worker %s: %s", self.name, describe(error))
            return error
        return None

    async def _answer(self, question: Awaitable[T], *, more_s: float = 0, within_s: float = ANSWER_S) -> T:
        """What the host says, if it says anything."""
        try:
            async with asyncio.timeout(within_s + more_s):
                answer = await question
        except LeaseLostError:
            self._is_there()
            raise
        except Exception as error:
            if isinstance(error, SHUT_OUT):
                self._is_shut_out(error)
            elif not is_for_good(error):
                self._is_not_there(error)
            raise
        self._is_there()
        return answer

    # ---- who is there ----

    def _is_there(self) -> None:
        if self._lost_ms is not None:
            away_s = (self.host.clock.monotonic_ms() - self._lost_ms) / 1000
            self._lost_ms = None
            self._tell("back", f"the host answers{' again' if self._was_there else ''}, after {away_s:.1f} s")
        self._was_there = True

    def _is_not_there(self, error: Exception) -> None:
        said = text_of(error)[:SAID_MAX]
        if not said:
            said = "nothing came in time" if isinstance(error, TimeoutError) else type(error).__name__
        if self._lost_ms is None:
            self._lost_ms = self.host.clock.monotonic_ms()
            self._tell("lost", f"the host does not answer, and is asked again until it does: {said}")
        else:
            _log.debug("worker %s: %s", self.name, describe(error))

    def _is_shut_out(self, error: Exception) -> None:
        if self.denial is None:
            self.denial = error
            self._tell("denied", f"the host says no: {text_of(error)[:SAID_MAX]}")

    async def pause(self, wait_s: float) -> None:
        """Wait before the same is said again; `stopping` ends it."""
        try:
            async with asyncio.timeout(wait_s):
                await self.stopping.wait()
        except TimeoutError:
            return


def _patience_s(lease: Lease) -> float:
    """How long to wait for an answer that a lease depends on: a connection may be dead, and another one is not."""
    return min(ANSWER_S, max(ANSWER_LEAST_S, lease.lease_ms / 1000 / TRIES))


def takes(method: Callable[..., Any], keyword: str) -> bool:
    """Whether a method of a transport knows a keyword: those of others may be older than it."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False
    return keyword in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
