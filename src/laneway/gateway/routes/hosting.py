"""What the host of sessions does with one: say whose it is, have it leave memory."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from laneway.agent.subagents import is_child_id, root_of
from laneway.errors import InvalidMessageError
from laneway.gateway.deps import GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.labels import set_labels
from laneway.gateway.lookup import find_session
from laneway.gateway.views import REASON_MAX, View, router_of
from laneway.identity import IDENTITY_MAX, identity_label
from laneway.records import DURATION_MAX_MS
from laneway.runtime.envelope import check_key

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
    resting: bool = Field(description="Whether it has work that goes on when something comes.")
    resting_reason: str = Field("", description="While it rests: what it waits for, and what brings it back.")


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
    name = (owner.tenant, key)
    left = await workspace.is_here(owner.tenant, key)
    if left:  # the audit log says what was done, not what was asked for
        await gateway.audit.record(caller, "session.passivate", key, reason=wanted.reason)
        await workspace.passivate(owner.tenant, key, wanted.reason, deadline_ms=wanted.deadline_ms)
    return Passivated(
        session_key=key,
        was_in_memory=left,
        in_memory=workspace.live_session(*name) is not None,
        resting=name in workspace.rest.resting,
        resting_reason=workspace.rest.words(name),
    )


class LabelOrder(BaseModel):
    """Labels of a session; one that is left out stays as it is, and null clears it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"principal": "user:42"}]})

    principal: str | None = Field(
        None, max_length=IDENTITY_MAX, description="For whom it works; budgets of the scope `principal` count by it."
    )
    agent_template_id: str | None = Field(None, max_length=IDENTITY_MAX)
    correlation_id: str | None = Field(None, max_length=IDENTITY_MAX)
    reason: str = Field("", max_length=REASON_MAX)

    @model_validator(mode="after")
    def _says_something(self) -> LabelOrder:
        if not self.model_fields_set - {"reason"}:
            raise ValueError("nothing is to be changed")
        return self


class SessionLabels(View):
    """The labels of a session."""

    session_key: str
    identity: dict[str, str]


@router.put("/sessions/{key}/labels", summary="Say whose a session is")
async def label(
    key: str, body: LabelOrder, caller: OperatorOf, gateway: GatewayOf, workspace: WorkspaceOf
) -> SessionLabels:
    """Give a session labels, also before its first message. They hold at once, and count more than the configuration.

    Only operators do: whoever talks to an agent does not choose whose budget pays for it.
    """
    if is_child_id(key):
        raise InvalidMessageError(
            f"session {key!r} belongs to a sub-agent, which has the labels of the session that it works for",
            hint=f"label {root_of(key)!r}",
        )
    owner = workspace.owner(caller.tenant, check_key(key, "session key"))
    said = body.model_dump(include=body.model_fields_set - {"reason"})
    for name, value in said.items():
        if value is not None:
            identity_label(name, value)
    workspace.inbox.engine.check_doomed(owner)
    await gateway.audit.record(caller, "session.label", key, reason=body.reason, workspace=workspace.name, **said)
    return SessionLabels(session_key=key, identity=await set_labels(workspace, owner, said))
