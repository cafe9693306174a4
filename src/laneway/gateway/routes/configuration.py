"""The settings in force and where they came from; the workspaces that are served."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from laneway.agent.host import account_of
from laneway.config.agent_view import Seen, seen_by_agent
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspaceOf
from laneway.gateway.lookup import sees_shared
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
