"""The settings in force and where they came from; the workspaces that are served; the tenants that are busy."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from laneway.agent.host import account_of
from laneway.config.agent_view import Seen, seen_by_agent
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspaceOf
from laneway.gateway.lookup import sees_shared
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.views import Page, View, router_of

__all__ = ("router",)

router = router_of("config")


class OriginView(View):
    """Where a value came from."""

    layer: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    name: str | None = None
    note: str | None = None


class ValueView(View):
    """A setting in force. A hidden value is a secret: it is never shown."""

    setting: str
    value: Any = None
    hidden: bool = False
    used: bool = True
    origin: OriginView


class ConfigView(View):
    """What a workspace goes by."""

    workspace: str
    files: list[str] = Field(description="What was read, the weakest first.")
    settings: list[ValueView]


class WorkspaceView(View):
    """A workspace: an agent, its sessions and its settings."""

    name: str
    is_default: bool
    folder: str | None = Field(None, description="Told to those who see what all tenants share.")
    model: str | None = None


class TenantView(View):
    """A tenant with something to do; name it by the header `Laneway-Tenant` to see more."""

    tenant: str
    sessions: int = Field(description="In which something runs or waits.")
    waiting: int = Field(description="Messages that wait.")
    approvals: int = Field(description="Requests that wait for an answer.")


@router.get("/config", summary="The settings in force, each with its origin")
async def show(caller: CallerOf, workspace: WorkspaceOf) -> ConfigView:
    """Every value a workspace goes by, and which file, variable or option it came from. Secrets are hidden."""
    caller.check_shared()
    effective = workspace.spec.effective
    found = () if effective is None else seen_by_agent(effective)
    files = [] if effective is None else list(effective.files)
    return ConfigView(workspace=workspace.name, files=files, settings=[_value(seen) for seen in found])


@router.get("/workspaces", summary="The workspaces that are served", tags=["workspaces"], operation_id="workspaces_ls")
async def workspaces(gateway: GatewayOf, caller: CallerOf) -> Page[WorkspaceView]:
    """Every workspace of this server; name one by the header `Laneway-Workspace`."""
    shared = sees_shared(caller)
    items = [
        WorkspaceView(
            name=each.name,
            is_default=each is gateway.default,
            folder=str(each.spec.folder) if shared else None,
            model=each.spec.agent.default_model if each.spec.model is None else account_of(each.spec.model),
        )
        for each in gateway.workspaces.values()
    ]
    return Page(items=items)


@router.get("/tenants", summary="The tenants with something to do", tags=["tenants"], operation_id="tenants_ls")
async def tenants(
    gateway: GatewayOf,
    caller: CallerOf,
    after: Annotated[str, Query(max_length=400)] = "",
    limit: Limit = 200,
) -> Page[TenantView]:
    """Every tenant in whose sessions something runs, waits or asks, in all workspaces, by name."""
    caller.check_shared()
    sessions, waiting, approvals = Counter[str](), Counter[str](), Counter[str]()
    for workspace in gateway.workspaces.values():
        for owner, box in workspace.inbox.engine.kernel.boxes.items():
            if owner.tenant > after and (box.waiting or not box.is_idle):
                sessions[owner.tenant] += 1
                waiting[owner.tenant] += box.waiting
                approvals[owner.tenant] += len(box.approvals)
    names = sorted(sessions)
    items = [
        TenantView(tenant=name, sessions=sessions[name], waiting=waiting[name], approvals=approvals[name])
        for name in names[:limit]
    ]
    return Page(items=items, next=items[-1].tenant if len(names) > limit else None)


def _value(seen: Seen) -> ValueView:
    value, origin = seen.value, seen.value.origin
    shown = None if value.hidden else json.loads(json.dumps(value.value, default=str))
    return ValueView(
        setting=value.name,
        value=shown,
        hidden=value.hidden,
        used=seen.is_used,
        origin=OriginView(
            layer=str(origin.layer),
            file=origin.file or None,
            line=origin.line or None,
            column=origin.column or None,
            name=origin.name or None,
            note=origin.note or None,
        ),
    )
