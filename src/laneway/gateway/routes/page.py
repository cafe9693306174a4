"""The dashboard at `/`, and what it has to know before it begins: `GET /v1/about`."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, Field

from laneway import __version__
from laneway.gateway.dashboard_files import ROOT, File, dashboard
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.lookup import sees_shared
from laneway.gateway.views import router_of
from laneway.gateway.workspaces import Workspace
from laneway.models import ScriptedModel

__all__ = ("install", "router")

router = router_of("page")

FOR_EVER: Final = "public, max-age=31536000, immutable"


class WorkspaceFacts(BaseModel):
    """A workspace as somebody sees it who only talks to it."""

    name: str
    model: str
    scripted: bool = Field(description="Whether its model only plays a script, and understands nothing.")


class About(BaseModel):
    """What this server is."""

    name: str = "laneway"
    version: str
    workspaces: list[WorkspaceFacts] = Field(description="The first one is the default.")
    tenant: str = Field(description="Whose things the caller sees.")
    scopes: list[str] = Field(description="What the caller may do.")
    shared: bool = Field(description="Whether it sees what all tenants share: lanes, limits, settings.")
    all_tenants: bool = Field(description="Whether it may choose whose things it sees, by `Laneway-Tenant`.")
    page: str = Field(description="Which version of the dashboard it serves.")


@router.get("/about", summary="What this server is")
async def about(gateway: GatewayOf, caller: CallerOf) -> About:
    """The version, the workspaces, and what the caller may do."""
    return About(
        version=__version__,
        workspaces=[_facts(each) for each in gateway.workspaces.values()],
        tenant=caller.tenant,
        scopes=sorted(caller.scopes),
        shared=sees_shared(caller),
        all_tenants=caller.sees_all,
        page=dashboard().digest,
    )


def _facts(workspace: Workspace) -> WorkspaceFacts:
    model = workspace.agent.options.model
    name = model if isinstance(model, str) else str(getattr(model, "name", type(model).__name__))
    is_scripted = isinstance(model, ScriptedModel) or name.partition("/")[0] == "scripted"
    return WorkspaceFacts(name=workspace.name, model=name, scripted=is_scripted)


def install(app: FastAPI) -> None:
    """Serve the dashboard: its index at `/`, its files below the digest of them all."""
    found = dashboard()

    async def index(request: Request) -> Response:
        headers = {"Cache-Control": "no-cache", "Content-Security-Policy": found.policy}
        return _answer(request, found.index, headers)

    async def file(request: Request, path: str) -> Response:
        if path not in found.files:
            raise HTTPException(404)
        return _answer(request, found.files[path], {"Cache-Control": FOR_EVER})

    for path, show in (("/", index), (f"{ROOT}{found.digest}/{{path:path}}", file)):
        app.add_api_route(path, show, methods=["GET", "HEAD"], include_in_schema=False, response_model=None)


def _answer(request: Request, file: File, headers: dict[str, str]) -> Response:
    headers |= {"ETag": file.etag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, media_type=file.media_type, headers=headers)  # as a page it has its policy
    if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, media_type=file.media_type, headers=headers | {"Content-Encoding": "gzip"})
    return Response(file.content, media_type=file.media_type, headers=headers)
