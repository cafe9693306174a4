"""The chat page at `/`, and what it has to know before it begins: `GET /v1/about`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from laneway import __version__
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.views import router_of
from laneway.gateway.workspaces import Workspace
from laneway.models import ScriptedModel

__all__ = ("install", "router")

router = router_of("page")

FOLDER: Final = Path(__file__).parent.parent / "page"
FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
    "/page/chat.css": ("chat.css", "text/css; charset=utf-8"),
}


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


@router.get("/about", summary="What this server is")
async def about(gateway: GatewayOf, caller: CallerOf) -> About:
    """The version, the workspaces, and what the caller may do."""
    return About(
        version=__version__,
        workspaces=[_facts(each) for each in gateway.workspaces.values()],
        tenant=caller.tenant,
        scopes=sorted(caller.scopes),
    )


def _facts(workspace: Workspace) -> WorkspaceFacts:
    model = workspace.agent.options.model
    name = model if isinstance(model, str) else str(getattr(model, "name", type(model).__name__))
    is_scripted = isinstance(model, ScriptedModel) or name.partition("/")[0] == "scripted"
    return WorkspaceFacts(name=workspace.name, model=name, scripted=is_scripted)


def install(app: FastAPI) -> None:
    """Serve the files of the page; they are read here, once."""
    for path, (name, media_type) in FILES.items():
        _serve(app, path, (FOLDER / name).read_bytes(), media_type)


def _serve(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"Cache-Control": "no-cache", "ETag": etag}

    async def show(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, media_type=media_type, headers=headers)  # as a page it has its policy
        return Response(content, media_type=media_type, headers=headers)

    app.add_api_route(path, show, methods=["GET", "HEAD"], include_in_schema=False, response_model=None)
