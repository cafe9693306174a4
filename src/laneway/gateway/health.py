"""Whether the server is alive, whether it is ready, and its numbers: `/healthz`, `/readyz`, `/metrics`.

It is not ready while its store does not answer, while it stops, and while work waits that could start and nothing is
being started. What is paused, closed until a time, held, waiting for an approval, for a quota or for its own session
is no such work. A channel that does not work is told, and is no reason to take a server out that others talk to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request, Response

from laneway.errors import LanewayError
from laneway.gateway.admission import TURN_LANES
from laneway.gateway.channels.running import running
from laneway.gateway.deps import GatewayOf, caller_of
from laneway.gateway.problems import PROBLEM_JSON, problem
from laneway.kernel.explain import explain
from laneway.mail import TurnState
from laneway.records import WaitReason
from laneway.telemetry.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway
    from laneway.kernel.lanes import Lane

__all__ = ("Health", "router")

STORE_PATIENCE_S: Final = 3
OK: Final = "ok"
WRONG: Final = "not ok"
MAY_WAIT: Final = frozenset(
    {
        WaitReason.TIME,
        WaitReason.PAUSED,
        WaitReason.RATE,
        WaitReason.CLOSED,
        WaitReason.EXCLUSIVE,
        WaitReason.TAKE_BACK,
        WaitReason.CHILD,
        WaitReason.HANDLER,
    }
)
"""Reasons to wait that nobody has to worry about."""
FULL: Final = frozenset({WaitReason.LANE, WaitReason.GROUP, WaitReason.SHARED_CAP})

router = APIRouter(tags=["server"])


class Health:
    """Looks at a gateway when somebody asks; it watches nothing in between."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._now = gateway.env.clock.monotonic_ms

    async def checks(self) -> dict[str, str]:
        """Every check by its name: `ok`, or what is wrong."""
        gateway = self._gateway
        if not gateway.is_open or gateway.is_stopping:
            return {"server": "it is stopping" if gateway.is_stopping else "it is not open", "store": OK, "work": OK}
        return {"server": OK, "store": await self._store() or OK, "work": self.stall() or OK}

    def channels(self) -> dict[str, str]:
        """Every channel: `ok`, or why it does not work. It decides nothing."""
        return {f"channel {name}": channel.problem or OK for name, channel in running(self._gateway).items()}

    async def _store(self) -> str:
        try:
            for workspace in self._gateway.workspaces.values():
                workspace.inbox.engine.check_open()  # it knows when another process has taken its store
            return await self._gateway.check_store(STORE_PATIENCE_S)
        except TimeoutError:
            return f"the store does not answer within {STORE_PATIENCE_S} s"
        except LanewayError as error:
            return error.message
        except Exception as error:  # noqa: BLE001 - whatever a store raises, it is not ready
            return f"the store failed: {type(error).__name__}"

    def stall(self) -> str:
        """Why work that could start does not; empty when all is well."""
        gateway, now = self._gateway, self._now()
        limit = gateway.settings.stalled_after_ms
        if now - gateway.observer.moved_at < limit:
            return ""
        kernel = gateway.lanes.engine.kernel
        for lane in kernel.registry.lanes.values():
            if lane.waiting and _is_shared(lane):
                oldest = lane.queue.oldest_at()
                if oldest is not None and now - max(oldest, lane.last_start) >= limit and self._must_start(lane):
                    return f"{lane.waiting} wait in lane {lane.name!r}, and nothing has started for {limit} ms"
        for workspace in gateway.workspaces.values():
            for since in workspace.unopened.values():
                if now - since >= limit:
                    return f"a session of workspace {workspace.name!r} has work and cannot be opened"
        return ""

    def _must_start(self, lane: Lane) -> bool:
        """Whether the first job of a lane has no good reason to wait."""
        first = next(iter(lane.queue), None)
        if first is None:
            return False
        engine = self._gateway.lanes.engine
        reason = explain(engine.kernel, first.id, now=self._now(), wall_ms=engine.wall_ms()).reason
        if reason in FULL and self._all_at_rest():
            return False
        return reason not in MAY_WAIT

    def _all_at_rest(self) -> bool:
        """Whether there are turns, and each of them waits for somebody: an approval, a quota, whoever paused it."""
        turns = 0
        for workspace in self._gateway.workspaces.values():
            for turn in workspace.inbox.engine.kernel.turns.values():
                turns += 1
                session = workspace.live_session(turn.owner.tenant, turn.owner.session)
                if turn.state is not TurnState.WAITING and not (session is not None and session.is_paused):
                    return False
        return turns > 0


def _is_shared(lane: Lane) -> bool:
    """Whether sessions share a lane; in its own, a session waits for nobody but itself."""
    scope, _, short = lane.name.rpartition("/")
    return not lane.is_session and (not scope or short in TURN_LANES)


_NOT_READY: Final[dict[int | str, dict[str, Any]]] = {
    503: {
        "description": "It is not ready; every check is in the problem.",
        "content": {PROBLEM_JSON: {"schema": {"type": "object"}}},
    }
}


def _may_see_all(request: Request) -> bool:
    try:
        caller_of(request).check_shared()
    except LanewayError:
        return False
    return True


@router.get("/healthz", summary="Whether the server is alive")
async def healthz() -> dict[str, str]:
    """The process answers, so its loop runs."""
    return {"status": "alive"}


@router.get("/readyz", summary="Whether the server is ready", responses=_NOT_READY, response_model=dict[str, str])
async def readyz(request: Request) -> Any:
    """Whether the store answers and work is being started. Send no requests here while it says no."""
    gateway: Gateway = request.app.state.gateway
    health = Health(gateway)
    checks, channels = await health.checks(), health.channels()
    if not _may_see_all(request):  # anybody may ask: which lanes and channels there are is not for all
        checks, channels = {name: text if text == OK else WRONG for name, text in checks.items()}, {}
    wrong = [f"{name}: {text}" for name, text in checks.items() if text != OK]
    if not wrong:
        return {"status": "ready", **checks, **channels}
    return problem(503, "not_ready", "; ".join(wrong), headers={"Retry-After": "5"}, **checks, **channels)


@router.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=Response,
    responses={200: {"description": "The text format of Prometheus.", "content": {"text/plain": {}}}},
)
async def metrics(request: Request, gateway: GatewayOf) -> Response:
    """All numbers, for all tenants: an operator of all of them may see this, and anybody where it is set to public."""
    if not gateway.settings.metrics_public:
        caller_of(request).check_shared()
    observer = gateway.observer
    return Response(observer.metrics.text(await observer.moment()), headers={"Content-Type": CONTENT_TYPE})
