"""`GET /v1/models`: the agents that can be asked, as models."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.openai.errors import ERRORS, ModelNotFoundError, OpenAIRoute
from laneway.gateway.service import Gateway
from laneway.gateway.workspaces import Workspace

__all__ = ("model_of", "named", "router")

MODEL: Final = "laneway"
CREATED: Final = 1_767_225_600  # agents have no birthday that would mean anything to a client: 2026-01-01

router = APIRouter(tags=["openai"], route_class=OpenAIRoute, responses=ERRORS)


class ModelObject(BaseModel):
    """An agent, as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int = CREATED
    owned_by: str = MODEL


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelObject]  # OpenAI's name for it


def named(gateway: Gateway, model: str, param: str = "model") -> Workspace:
    """The workspace whose agent a model is."""
    name, slash, workspace = model.partition("/")
    if name == MODEL and not slash:
        return gateway.workspace()
    if name == MODEL and workspace in gateway.workspaces:
        return gateway.workspace(workspace)
    known = ", ".join([MODEL, *(f"{MODEL}/{each}" for each in gateway.workspaces)])
    error = ModelNotFoundError(what="model", name=model[:200], hint=f"there are: {known}")
    error.__dict__["param"] = param
    raise error


def model_of(gateway: Gateway, workspace: Workspace) -> str:
    """The model that the agent of a workspace is."""
    return MODEL if workspace is gateway.default else f"{MODEL}/{workspace.name}"


@router.get("/models", summary="List the agents, as models", operation_id="openai_models")
async def listed(gateway: GatewayOf, caller: CallerOf) -> ModelList:
    """`laneway` is the agent of the default workspace, `laneway/<workspace>` that of each."""
    ids = [MODEL, *(f"{MODEL}/{name}" for name in gateway.workspaces)]
    return ModelList(data=[ModelObject(id=each) for each in ids])


@router.get("/models/{model:path}", summary="Look at one of them", operation_id="openai_model")
async def one(model: str, gateway: GatewayOf, caller: CallerOf) -> ModelObject:
    """One agent, as a model."""
    named(gateway, model)
    return ModelObject(id=model)
