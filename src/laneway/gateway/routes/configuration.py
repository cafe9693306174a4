"""The settings in force and where they came from; the workspaces that are served; the tenants that are busy."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from laneway.agent.host import account_of
from laneway.config.agent_view import Seen, seen_by_server, server_defaults, words_for
from laneway.config.origins import Layer
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspaceOf
from laneway.gateway.lookup import sees_shared
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.service import Gateway
from laneway.gateway.views import Page, View, router_of
from laneway.gateway.workspaces import Workspace

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
    default: Any = Field(None, description="What it would be if nobody had said anything; null: nothing.")
    is_default: bool = Field(default=False, description="Whether it is what it would be anyway.")
    says: str = Field("", description="What it is for.")


class ChangeView(View):
    """Something that an operator has changed since the start. It holds until the server ends."""

    lane: str
    name: str
    value: Any
    configured: Any = None


class ConfigView(View):
    """What a workspace goes by."""

    workspace: str
    files: list[str] = Field(description="What was read, the weakest first.")
    settings: list[ValueView]
    changes: list[ChangeView] = Field(description="What was changed about lanes since the start.")


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
async def show(gateway: GatewayOf, caller: CallerOf, workspace: WorkspaceOf) -> ConfigView:
    """Every value a workspace goes by, and which file, variable or option it came from. Secrets are hidden."""
    caller.check_shared()
    effective = workspace.spec.effective
    found = () if effective is None else seen_by_server(effective)
    files = [] if effective is None else list(effective.files)
    return ConfigView(
        workspace=workspace.name,
        files=files,
        settings=[_value(seen) for seen in found],
        changes=_changes(gateway, workspace),
    )


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


def _changes(gateway: Gateway, workspace: Workspace) -> list[ChangeView]:
    """Lanes that stay and are not as they were set up, and what holds for the tool lanes of every session."""
    found: list[ChangeView] = []
    known = gateway.lanes.engine.kernel.registry
    for name in known.configs:
        lane = known.lanes.get(name)
        scope = name.rpartition("/")[0]
        if lane is None or (scope and scope != workspace.name):
            continue
        if lane.cap != lane.config.concurrency:
            width = lane.config.concurrency
            found.append(ChangeView(lane=name, name="concurrency", value=lane.cap, configured=width))
        if lane.paused:
            found.append(ChangeView(lane=name, name="paused", value=True, configured=False))
    for name, change in workspace.tool_lanes.changes.items():
        seen = {(each.lane, each.name) for each in found}
        for key, value in change.given.items():
            if (name, key) not in seen:
                shown = json.loads(json.dumps(value, default=str))
                found.append(ChangeView(lane=f"{name} of every session", name=key, value=shown))
    return found


def _value(seen: Seen) -> ValueView:
    value, origin = seen.value, seen.value.origin
    shown = None if value.hidden else _plain(value.value)
    usual = _plain(server_defaults().get(value.path))
    return ValueView(
        setting=value.name,
        value=shown,
        hidden=value.hidden,
        used=seen.is_used,
        default=usual,
        is_default=origin.layer is Layer.DEFAULT or (not value.hidden and shown == usual),
        says=words_for(value.path),
        origin=OriginView(
            layer=str(origin.layer),
            file=origin.file or None,
            line=origin.line or None,
            column=origin.column or None,
            name=origin.name or None,
            note=origin.note or None,
        ),
    )


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
