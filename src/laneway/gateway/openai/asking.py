"""One question in OpenAI's shapes: submitted to the inbox, then waited for or listened to.

Whoever asks may go at any time: the run goes on, and its answer is kept in the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from laneway.agent.results import RunResult
from laneway.agent_events import (
    AgentEvent,
    EndEvent,
    ErrorEvent,
    MessageQueuedEvent,
    ModelRetryEvent,
    TextDeltaEvent,
    TurnStartEvent,
)
from laneway.errors import (
    ClosedError,
    ConflictError,
    LanewayError,
    NotAuthenticatedError,
    OverloadedError,
    RunCancelledError,
    RunFailedError,
)
from laneway.gateway.hub import STOPPING
from laneway.gateway.openai.errors import StoppingError, taken
from laneway.gateway.openai.retries import CHANNEL, Retries, fingerprint, is_retry
from laneway.mail import Final as End
from laneway.mail import MessageState, Mode, Outcome, Receipt

if TYPE_CHECKING:
    from fastapi import Request

    from laneway.gateway.access import Caller
    from laneway.gateway.openai.translation import Said
    from laneway.gateway.service import Gateway
    from laneway.gateway.workspaces import Workspace

__all__ = ("Asked", "Beat", "Piece", "ask", "retries_of")

T = TypeVar("T")

NOBODY: Final = (
    "\0"  # no session can have this key: who watches it hears of the end of the gateway, and of nothing else
)
IGNORED: Final = "Laneway-Ignored"


@dataclass(frozen=True, slots=True)
class Beat:
    """Nothing has happened for a while; whoever listens is told so."""

    comment: str = "beat"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text. Each round of a run that says something has an `index` of its own, from 0."""

    index: int
    text: str


def retries_of(request: Request) -> Retries:
    """Who waits for what, in this application."""
    state = request.app.state
    if not hasattr(state, "openai_retries"):
        state.openai_retries = Retries(state.gateway.env.clock.monotonic_ms)
    retries: Retries = state.openai_retries
    return retries


async def ask(
    request: Request, gateway: Gateway, workspace: Workspace, caller: Caller, *, key: str | None, said: Said
) -> Asked:
    """Submit what was said; returns when it is on disk. Without a key it begins a session of its own."""
    workspace.hub.check_open()  # a server that stops takes nothing that somebody would wait for
    retries = retries_of(request)
    given = request.headers.get("idempotency-key")
    print_ = "" if given is not None else await fingerprint(request, caller)
    if print_ and is_retry(request):
        found = await retries.find(print_, caller.tenant, workspace)
        if found is not None:
            old = Receipt(message_id=found[1], disposition=MessageState.QUEUED)
            return Asked(gateway, workspace, caller, key=found[0], receipt=old, retries=retries, print_=print_)
    fresh = gateway.env.ids.new_id("ask")
    own = fresh if given is None else hashlib.sha256(f"{caller.token_id}\0{given}".encode()).hexdigest()[:32]
    where = f"openai:{own}" if key is None else key
    receipt = await gateway.submit(
        workspace,
        caller,
        where,
        said.text,
        channel=CHANNEL,
        account=caller.token_id,
        attachments=said.attachments,
        message_id=f"{print_}.{fresh}" if given is None else given,
        mode=Mode.FOLLOWUP if key is None else None,  # nobody else speaks there: there is nothing to wait for
    )
    if receipt.duplicate:
        await _check_same(gateway, caller, receipt.message_id, said)
    if receipt.disposition is MessageState.REJECTED:
        raise ConflictError(f"session {where!r} is busy and takes nothing meanwhile: {receipt.reason}")
    return Asked(gateway, workspace, caller, key=where, receipt=receipt, retries=retries, print_=print_)


async def _check_same(gateway: Gateway, caller: Caller, message_id: str, said: Said) -> None:
    _, row = await gateway.find_message(caller, message_id)
    kept: dict[str, Any] = json.loads(row.body)
    if kept.get("text") != said.text or tuple(kept.get("attachments", ())) != said.attachments:
        raise ConflictError(
            "this idempotency key was used for another message",
            hint="use a new key for a new message",
            message_id=message_id,
        )


class Asked:
    """A question that has been taken."""

    def __init__(
        self,
        gateway: Gateway,
        workspace: Workspace,
        caller: Caller,
        *,
        key: str,
        receipt: Receipt,
        retries: Retries,
        print_: str = "",
    ) -> None:
        self.gateway = gateway
        self.workspace = workspace
        self.tenant = caller.tenant
        self._token_id = caller.token_id
        self.key = key
        self.message_id = receipt.sent or receipt.message_id  # `/new hello` has sent another one
        self.retries = retries
        self.print = print_
        self._receipt = receipt if receipt.sent is None else Receipt(message_id=receipt.sent, disposition=QUEUED)
        self._beat_s = gateway.settings.heartbeat_ms / 1000

    def headers(self, ignored: list[str]) -> dict[str, str]:
        """Where the message is, and what of the request had no effect."""
        headers = {"Laneway-Message": self.message_id, "Cache-Control": "no-store"}
        if self.key.isascii() and self.key == self.key.strip():
            headers["Laneway-Session"] = self.key
        if ignored:
            headers[IGNORED] = ", ".join(ignored)
        return headers

    # ---- waiting ----

    async def result(self) -> RunResult:
        """The answer, when there is one; raises what became of the message else."""
        try:
            end = await self.workspace.inbox.wait(self.message_id)
            return await self.result_of(end)
        except LanewayError as error:
            raise taken(error) from None

    async def result_of(self, end: End) -> RunResult:
        """The answer of a message that has ended, with what it took."""
        if end.disposition is MessageState.COMMAND:
            return RunResult(text=end.reason, message_id=end.message_id, disposition=end.disposition)
        async with contextlib.AsyncExitStack() as stack:
            try:
                session = await stack.enter_async_context(self.workspace.using(self.tenant, self.key))
            except LanewayError:  # what it needs is not there now; the answer is
                return _plain(end)
            try:
                return await session.wait(end.message_id)
            except ClosedError:
                return _plain(end)

    async def answered(self, request: Request) -> RunResult | None:
        """The answer, while the client is there; None when it has gone. The run goes on in any case."""
        with self.retries.serving(self.print, self.key, self.message_id) as delivery:
            async with contextlib.AsyncExitStack() as stack:
                work = await stack.enter_async_context(_owned(self.result(), "laneway-openai-answer"))
                gone = await stack.enter_async_context(_owned(_gone(request), "laneway-openai-gone"))
                cut = await stack.enter_async_context(_owned(self._cut(), "laneway-openai-cut"))
                await asyncio.wait({work, gone, cut}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    delivery.done()
                    return work.result()
                if gone.done():
                    return None
                delivery.done()
                raise self._error(cut)

    async def _cut(self) -> str:
        """Wait until the server stops, or the token of the caller does not count any more; says which."""
        try:
            watcher = self.workspace.hub.watch(self.tenant, NOBODY, token_id=self._token_id)
        except OverloadedError:
            return STOPPING
        try:
            async for _ in watcher:
                pass
        finally:
            watcher.close()
        return watcher.end

    def _error(self, cut: asyncio.Task[str]) -> LanewayError:
        """What somebody is told who cannot be served any longer. What was taken goes on."""
        if cut.result() == STOPPING:
            return taken(StoppingError(message_id=self.message_id))
        return taken(NotAuthenticatedError("this token does not count any more", hint="the message was taken"))

    # ---- listening ----

    async def told(self) -> AsyncGenerator[Beat | Piece | RunResult]:
        """Pieces of text as they come, beats while nothing does, and the result at the end; raises as `result` does."""
        index = 0
        spoken: list[str] = []
        async with contextlib.aclosing(self._events()) as events:
            async for event in events:
                match event:
                    case None:
                        yield Beat()
                    case MessageQueuedEvent():
                        yield Beat(f"waits at position {event.position}")
                    case TurnStartEvent() | ModelRetryEvent() if spoken:
                        index, spoken = index + 1, []
                    case TextDeltaEvent(text=text) if text:
                        spoken.append(text)
                        yield Piece(index, text)
        result = await self.result()
        before = "".join(spoken)
        if result.text.strip() != before.strip():
            if before and not result.text.startswith(before):
                index, before = index + 1, ""
            yield Piece(index, result.text[len(before) :])
        yield result

    async def _events(self) -> AsyncGenerator[AgentEvent | None]:
        """The events of the run; None for each while in which there was none."""
        async with _owned(self._cut(), "laneway-openai-cut") as cut:
            opening = self.workspace.session(self.tenant, self.key)
            async with _owned(opening, "laneway-openai-open") as opened:
                async for beat in self._beats(opened, cut):
                    yield beat
                session = None if opened.exception() is not None else opened.result()
            if session is not None:
                stream = session.watch(self._receipt)
                cut.add_done_callback(lambda _: stream.close())
                async with contextlib.aclosing(stream):
                    event: AgentEvent | None = None
                    while not isinstance(event, EndEvent | ErrorEvent):
                        event = None
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self._beat_s):
                                event = await anext(stream, CLOSED)
                        yield event
                    if event is not CLOSED and event.error_kind != ClosedError.code:
                        return
            self._check(cut)
            async with _owned(self.workspace.inbox.wait(self.message_id), "laneway-openai-wait") as end:
                async for beat in self._beats(end, cut):  # the session was closed: what comes of it is in the store
                    yield beat

    async def _beats(self, work: asyncio.Task[Any], cut: asyncio.Task[str]) -> AsyncGenerator[None]:
        while not work.done():
            done, _ = await asyncio.wait({work, cut}, timeout=self._beat_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                yield None
            elif not work.done():
                self._check(cut)

    def _check(self, cut: asyncio.Task[str]) -> None:
        if cut.done():
            raise self._error(cut)


CLOSED: Final = ErrorEvent(error="the stream was closed")
QUEUED: Final = MessageState.QUEUED


@contextlib.asynccontextmanager
async def _owned(work: Coroutine[Any, Any, T], name: str) -> AsyncGenerator[asyncio.Task[T]]:
    """A task that ends with the block."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # whoever wanted it has looked at it


async def _gone(request: Request) -> None:
    """Wait until the client has gone."""
    message: Mapping[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await request.receive()


def _plain(end: End) -> RunResult:
    """What the inbox alone knows of the end of a message."""
    if end.outcome is Outcome.SUCCEEDED:
        return RunResult(text=end.answer or "", run_id=end.turn_id or "", message_id=end.message_id)
    kind = RunCancelledError if end.outcome in (None, Outcome.INTERRUPTED) else RunFailedError
    raise kind(f"message {end.message_id} got no answer: {end.reason}", run_id=end.turn_id or "", reason=end.reason)
