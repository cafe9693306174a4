"""What is seen of a gateway from outside: numbers, spans, lines of the log, and whether anything moves.

Everything here listens to events and decides nothing. `Observer` belongs to a gateway, `Observed` is around its HTTP
application.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from laneway.agent_events import AgentEvent, EndEvent, ErrorEvent, SubagentProgressEvent, TurnEndEvent
from laneway.dialogue import Usage
from laneway.errors import FencedError, LanewayError
from laneway.events import Event, TurnStarted
from laneway.mail import Receipt, trace_of
from laneway.telemetry.context import REQUEST_ID, TRACE
from laneway.telemetry.logs import QueueLog
from laneway.telemetry.metrics import OTHER, Metrics, Moment, lane_label, task_lane
from laneway.telemetry.tracing import Tracing, open_tracing

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from laneway.agent.session import AsyncSession
    from laneway.gateway.service import Gateway
    from laneway.gateway.workspaces import Workspace
    from laneway.kernel.task_entries import TaskNews
    from laneway.rows import Owner

__all__ = ("Observed", "Observer")

_log = logging.getLogger("laneway.gateway")
_access = logging.getLogger("laneway.access")

SLICE: Final = 500  # lanes and sessions that are looked at in one go, before others get their turn
REQUEST_ID_HEADER: Final = b"x-request-id"
TRACE_HEADER: Final = b"traceparent"
EVENT_STREAM: Final = b"text/event-stream"
UNMATCHED: Final = "none"
GONE: Final = 499  # whoever asked was gone before the answer began
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:+/=-]{1,128}")


class Observer:
    """Listens to everything that happens in a gateway."""

    def __init__(self, gateway: Gateway, environ: Mapping[str, str], *, tracing: Tracing | None = None) -> None:
        self._gateway = gateway
        self._environ = environ
        self._now = gateway.env.clock.monotonic_ms
        self.metrics = Metrics(self._now)
        self.tracing = tracing
        self.queue_log = QueueLog()
        self.moved_at = self._now()
        """When something last started or went on."""
        self._used: dict[str, Usage] = {}  # by run: what was counted of it

    def attach(self) -> None:
        """Begin to listen, and to make spans if they are configured."""
        self.tracing = self.tracing or open_tracing(self._gateway.settings.otel_endpoint, self._environ)
        self.moved_at = self._now()
        for workspace in self._gateway.workspaces.values():
            workspace.inbox.engine.listen(functools.partial(self._on_mail_event, workspace))
            workspace.observers.append(functools.partial(self._on_agent_event, workspace))
            workspace.host.desk.observers.append(self._on_task)

    async def close(self) -> None:
        """Send what is left."""
        if self.tracing is not None:
            await self.tracing.close()

    async def accept(self, take: Callable[..., Awaitable[Receipt]], workspace: Workspace, key: str) -> Receipt:
        """Have a message taken, with the trace it is part of."""
        trace = TRACE.get()
        if self.tracing is None:
            return await take(trace=trace)
        return await self.tracing.accept(take, workspace=workspace.name, session=key, parent=trace)

    # ---- what happens ----

    def _on_mail_event(self, workspace: Workspace, event: Event) -> None:
        try:
            self._see_mail(workspace, event)
        except Exception:  # noqa: BLE001 - whoever looks on must not cost a turn
            _log.warning("event %s could not be observed", event.type, exc_info=True)

    def _on_agent_event(self, workspace: Workspace, owner: Owner, event: AgentEvent) -> None:
        try:
            self._see_run(workspace, owner, event)
        except Exception:  # noqa: BLE001 - the same
            _log.warning("event %s could not be observed", event.event_type, exc_info=True)

    def _on_task(self, news: TaskNews) -> None:
        self.metrics.on_task(news, self._now())

    def _see_mail(self, workspace: Workspace, event: Event) -> None:
        self.metrics.on_mail_event(event)
        self.queue_log.on_mail_event(event)
        if isinstance(event, TurnStarted):
            self.moved_at = self._now()
            self._gateway.admission.note_started(len(event.messages))
        if self.tracing is not None:
            self.tracing.on_mail_event(event, functools.partial(_trace_in, workspace))

    def _see_run(self, workspace: Workspace, owner: Owner, event: AgentEvent) -> None:
        self.moved_at = self._now()
        if event.ephemeral and self.tracing is None and not isinstance(event, SubagentProgressEvent):
            return  # a piece of text: there are many
        self.metrics.on_agent_event(event)
        self.queue_log.on_agent_event(event)
        session = workspace.live_session(owner.tenant, owner.session)
        model = ""
        if session is not None:
            self._count_usage(session, event)
            model = session.model.name
        if self.tracing is not None:
            self.tracing.on_agent_event(event, model)

    def _count_usage(self, session: AsyncSession, event: AgentEvent) -> None:
        """What a run has used is counted when a round is over, and when the run is."""
        run_id, kind = event.run_id, type(event)
        if isinstance(event, SubagentProgressEvent):
            found = _below(session, event)
            if found is None:
                return
            session, run_id, kind = found
        if kind not in (TurnEndEvent, EndEvent, ErrorEvent):
            return
        run = session.live_run(run_id)
        if run is not None:
            counted = self._used.get(run_id, Usage())
            more = _difference(run.usage, counted)
            self._used[run_id] = run.usage
            self.metrics.on_usage(more)
            if self.tracing is not None:
                self.tracing.on_usage(run_id, more if kind is TurnEndEvent else None, run.usage)
        if kind is not TurnEndEvent:
            self._used.pop(run_id, None)

    # ---- what there is ----

    async def moment(self) -> Moment:
        """What there is now. With many sessions this takes a while; others get their turn in between."""
        moment, now = Moment(), self._now()
        registry = self._gateway.lanes.engine.kernel.registry
        for family, counters in registry.retired.items():
            moment.lane(lane_label(family)).add_waits(counters.wait)
        for number, lane in enumerate(list(registry.lanes.values()), 1):  # what goes meanwhile still has its numbers
            found = moment.lane(lane_label(lane.name))
            oldest = lane.queue.oldest_at() if lane.waiting else None
            found.waiting += lane.waiting
            found.running += lane.held
            found.width += lane.cap
            found.oldest_ms = max(found.oldest_ms, now - oldest if oldest is not None else 0)
            if lane.counters.submitted:
                found.add_waits(lane.counters.wait)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        for workspace in self._gateway.workspaces.values():
            moment.runs_parked += workspace.host.budgets.parked + workspace.rest.parked
            for _, count in workspace.host.budgets.counts():
                moment.add_budget(OTHER if count.budget.tenant is not None else count.budget.name, count.share)
            moment.sessions_open += len(workspace.live_sessions())
            moment.leases_lost += _has_lost_its_store(workspace)
            for number, entry in enumerate(list(workspace.host.desk.board.live.values()), 1):
                if entry.published:
                    moment.tasks[task_lane(entry.lane), entry.state.value] += 1
                if number % (SLICE * 10) == 0:
                    await asyncio.sleep(0)
            for number, box in enumerate(list(workspace.inbox.engine.kernel.boxes.values()), 1):
                moment.approvals_pending += len(box.approvals)
                if number % (SLICE * 10) == 0:
                    await asyncio.sleep(0)
        self._count_workers(moment, now)
        moment.messages_waiting = self._gateway.admission.waiting()
        moment.oldest_ms = self._gateway.admission.oldest_ms()
        moment.dead_letters = len(self._gateway.lanes.dead_letters)
        return moment

    def _count_workers(self, moment: Moment, now: int) -> None:
        hall = self._gateway.hall
        moment.workers.update(record.health(now) for record in hall.workers())
        moment.tasks_claimed = hall.book.claimed
        moment.task_leases_lost = {"yes": hall.book.lost_started, "no": hall.book.lost_unstarted}


def _has_lost_its_store(workspace: Workspace) -> bool:
    try:
        workspace.inbox.engine.check_open()
    except FencedError:
        return True
    except LanewayError:
        pass
    return False


def _trace_in(workspace: Workspace, message_id: str) -> str:
    item = workspace.inbox.engine.kernel.items.get(message_id)
    return item.message.trace if item is not None else ""


def _difference(now: Usage, before: Usage) -> Usage:
    cost = None if now.cost is None else now.cost - (before.cost or 0.0)
    return Usage(
        input_tokens=now.input_tokens - before.input_tokens,
        output_tokens=now.output_tokens - before.output_tokens,
        cache_read_tokens=now.cache_read_tokens - before.cache_read_tokens,
        cache_write_tokens=now.cache_write_tokens - before.cache_write_tokens,
        cost=cost,
    )


_ENDS: Final[Mapping[str, type[AgentEvent]]] = {kind.event_type: kind for kind in (TurnEndEvent, EndEvent, ErrorEvent)}


def _below(session: AsyncSession, event: SubagentProgressEvent) -> tuple[AsyncSession, str, type[AgentEvent]] | None:
    """The session of a sub-agent, its run and the kind of its event, if that tells of an end."""
    child_id, envelope = event.child_session_id, event.event
    while True:
        child = next((each for each in session.children() if each.session_id == child_id), None)
        kind = str(envelope.get("type", ""))
        if child is None:
            return None
        if kind in _ENDS:
            return child, str(envelope["metadata"]["run_id"]), _ENDS[kind]
        if kind != SubagentProgressEvent.event_type:
            return None
        session, child_id, envelope = child, envelope["payload"]["child_session_id"], envelope["payload"]["event"]


class Observed:
    """Around the application: gives each request its id and its trace, counts it, and logs it at `debug`."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._metrics = gateway.observer.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id, trace = self._identify(scope)
        id_token, trace_token = REQUEST_ID.set(request_id), TRACE.set(trace)
        try:
            if scope["type"] == "http":
                await self._serve(scope, receive, send, request_id.encode())
            else:
                await self._talk(scope, receive, send)
        finally:
            REQUEST_ID.reset(id_token)
            TRACE.reset(trace_token)

    def _identify(self, scope: Scope) -> tuple[str, str]:
        request_id, trace, traces = b"", b"", 0
        for name, value in scope["headers"]:
            if name == REQUEST_ID_HEADER:
                request_id = value
            elif name == TRACE_HEADER:
                trace, traces = value, traces + 1
        known = _REQUEST_ID.fullmatch(request_id)
        shown = request_id.decode("ascii") if known else self._gateway.env.ids.new_id("req")
        return shown, trace_of(trace.decode("latin-1")) if traces == 1 else ""

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        loop = asyncio.get_running_loop()
        began, status, streams = loop.time(), 0, False

        async def watched(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                headers: list[tuple[bytes, bytes]] = message.setdefault("headers", [])
                message["headers"] = [*headers, (REQUEST_ID_HEADER, request_id)]
                streams = any(name == b"content-type" and value.startswith(EVENT_STREAM) for name, value in headers)
                self._metrics.streams += streams
                self._count(scope, status, loop.time() - began)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            if not status:
                status = 500
                self._count(scope, status, loop.time() - began)
            raise
        finally:
            self._metrics.streams -= streams
            if not status:
                status = GONE
                self._count(scope, status, loop.time() - began)
            if _access.isEnabledFor(logging.DEBUG):
                took = (loop.time() - began) * 1000
                _access.debug("%s %s answered %d after %.1fms", scope["method"], scope["path"], status, took)

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.sockets += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._metrics.sockets -= 1
            _access.debug("WebSocket %s ended", scope["path"])

    def _count(self, scope: Mapping[str, Any], status: int, took_s: float) -> None:
        # The template: addresses have any number of values. That of a router which was included is told apart.
        found = scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")
        self._metrics.on_request(getattr(found, "path", UNMATCHED), scope["method"], status, took_s)
