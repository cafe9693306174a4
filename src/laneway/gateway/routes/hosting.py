"""What the host of sessions does with one: have it leave memory."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from laneway.gateway.deps import GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.lookup import find_session
from laneway.gateway.views import REASON_MAX, View, router_of
from laneway.records import DURATION_MAX_MS

__all__ = ("router",)

router = router_of("sessions")


class Passivate(BaseModel):
    """Why a session is to leave memory, and how long what runs there may take to come to a boundary."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "moved to another node", "deadline_ms": 5_000}]}
    )

    reason: str = Field("", max_length=REASON_MAX)
    deadline_ms: StrictInt | None = Field(None, ge=0, le=DURATION_MAX_MS, description="Else 30,000.")


class Passivated(View):
    """What became of it."""

    session_key: str
    was_in_memory: bool = Field(description="False: there was nothing to do.")
    in_memory: bool = Field(description="True: something has come for it meanwhile, and it is back.")
    resting: bool = Field(description="Whether it has work that goes on when a message, an answer or a result comes.")


@router.post("/sessions/{key}/passivate", summary="Have a session leave memory")
async def passivate(
    key: str, caller: OperatorOf, gateway: GatewayOf, workspace: WorkspaceOf, body: Passivate | None = None
) -> Passivated:
    """Bring a session to a boundary within the deadline, store it whole, and take it out of memory.

    What runs then is cut as by a stop of the server. It goes on when the next message, the answer to an approval or the
    result of an external task brings the session back, which happens by itself.
    """
    wanted = body or Passivate(reason="", deadline_ms=None)
    owner = await find_session(workspace, caller, key)
    await gateway.audit.record(caller, "session.passivate", key, reason=wanted.reason)
    left = await workspace.passivate(owner.tenant, key, wanted.reason, deadline_ms=wanted.deadline_ms)
    name = (owner.tenant, key)
    return Passivated(
        session_key=key,
        was_in_memory=left,
        in_memory=workspace.live_session(*name) is not None,
        resting=name in workspace.rest.resting,
    )
