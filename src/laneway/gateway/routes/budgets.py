"""Budgets: what may be spent on models, what was, and what operators change about it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from laneway.errors import NotFoundError
from laneway.gateway.access import Caller
from laneway.gateway.budget_facts import budget_facts, concerns
from laneway.gateway.deps import CallerOf, GatewayOf, NamedWorkspaceOf, OperatorOf, WorkspaceOf
from laneway.gateway.views import Page, Reason, View, router_of
from laneway.gateway.workspaces import Workspace
from laneway.spending import Budget

__all__ = ("router",)

router = router_of("budgets")

Shared = Annotated[
    Literal["true", "false"], Query(description="Whether the budget of all tenants is meant, not one of its own.")
]


class Amounts(View):
    """An amount, by what became of it."""

    spent: float = Field(description="What calls have used, and what nobody knows better.")
    reserved: float = Field(description="What calls in flight may use.")
    lost: float = Field(description="Of what is spent: what was set aside when a process died.")
    overrun: float = Field(description="Of what is spent: by how much estimates were too small.")


class CountView(View):
    """What a budget has counted for one run, session, principal or tenant in its window."""

    subject: str
    from_ms: int | None = None
    until_ms: int | None = Field(default=None, description="When it begins anew; null: never.")
    share: float = Field(description="How much of the limit is spent: of the one that is nearer to its end.")
    in_flight: int = Field(description="Calls that have reserved something.")
    waiting: int = Field(description="Calls that wait for what those give back.")
    tokens: Amounts
    money: Amounts = Field(description="US dollars.")


class BudgetView(View):
    """A budget, with the counts of the caller's tenant, the fullest first."""

    name: str
    workspace: str
    shared: bool = Field(description="Whether it holds for all tenants.")
    origin: Literal["config", "set"] = Field(description="The configuration, or somebody while the server ran.")
    scope: str
    window: str
    timezone: str
    tokens: int | None = None
    money: float | None = Field(default=None, description="US dollars.")
    on_exhausted: str
    cheaper: str | None = None
    warn_at: float
    only: str | None = None
    unpriced: str
    counts: list[CountView]
    left_out: int = Field(default=0, description="How many further counts there are.")


class BudgetOrder(BaseModel):
    """What a budget is to be; what is not said is as if it was new."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"scope": "tenant", "window": "day", "tokens": 1_000_000, "on_exhausted": "park"}]
        },
    )

    scope: Literal["run", "session", "principal", "tenant"]
    window: Literal["ever", "day", "month"] = "ever"
    timezone: str = Field("UTC", max_length=100)
    tokens: StrictInt | None = None
    money: StrictFloat | StrictInt | None = Field(None, description="US dollars.")
    on_exhausted: Literal["deny", "park", "cheaper"] = "deny"
    cheaper: str | None = Field(None, max_length=400)
    warn_at: StrictFloat | StrictInt = 0.8
    only: str | None = Field(None, max_length=400)
    unpriced: Literal["deny", "allow"] = "deny"
    shared: StrictBool = Field(default=False, description="Whether it is to hold for all tenants.")
    reason: str = Field("", max_length=2_000)

    def budget(self, name: str, tenant: str) -> Budget:
        """The same as a record; raises `ConfigError`."""
        given: dict[str, Any] = self.model_dump(exclude={"shared", "reason"})
        return Budget(name=name, tenant=None if self.shared else tenant, **given)


@router.get("/budgets", summary="What may be spent on models, and what was")
async def ls(gateway: GatewayOf, caller: CallerOf, workspace: NamedWorkspaceOf) -> Page[BudgetView]:
    """The budgets that hold for the caller's tenant. Each workspace counts for itself."""
    wanted = list(gateway.workspaces.values()) if workspace is None else [workspace]
    items: list[BudgetView] = []
    for each in wanted:
        rules = each.host.budgets.budgets.rules.values()
        items += [_view(each, rule, caller) for rule in rules if concerns(rule, caller.tenant)]
    return Page(items=items)


@router.put("/budgets/{name}", summary="Make or change a budget")
async def put(
    name: str, body: BudgetOrder, gateway: GatewayOf, caller: OperatorOf, workspace: WorkspaceOf
) -> BudgetView:
    """Make a budget of the caller's tenant, or change it; what was spent stays spent, and parked runs look again.

    It holds beside those of all tenants: what does not fit into one of them does not fit.
    """
    if body.shared:
        caller.check_shared()
    budget = body.budget(name, caller.tenant)
    workspace.check_budgets((budget,))
    facts = body.model_dump(exclude={"reason"}, exclude_none=True)
    await gateway.audit.record(caller, "budget.set", name, reason=body.reason, workspace=workspace.name, **facts)
    await workspace.host.budgets.set_rule(budget)
    return _view(workspace, budget, caller)


@router.delete("/budgets/{name}", status_code=204, summary="Take a budget away")
async def remove(
    name: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    workspace: WorkspaceOf,
    shared: Shared = "false",
    reason: Annotated[str, Query(max_length=2_000)] = "",
) -> None:
    """Forget a budget and its counts; parked runs look again. One of the configuration stays away until it is set."""
    rule = _find(workspace, caller, name, shared=shared == "true")
    await gateway.audit.record(caller, "budget.clear", name, reason=reason, workspace=workspace.name, shared=shared)
    await workspace.host.budgets.drop_rule(rule.key)


@router.post("/budgets/{name}/reset", summary="Let the counts of a budget begin anew")
async def reset(
    name: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    workspace: WorkspaceOf,
    shared: Shared = "false",
    body: Reason | None = None,
) -> BudgetView:
    """Forget what the caller's tenant has spent of a budget; what calls in flight have reserved stays so."""
    rule = _find(workspace, caller, name, shared=shared == "true")
    reason = "" if body is None else body.reason
    await gateway.audit.record(caller, "budget.reset", name, reason=reason, workspace=workspace.name, shared=shared)
    await workspace.host.budgets.reset(rule.key, caller.tenant)
    return _view(workspace, rule, caller)


def _find(workspace: Workspace, caller: Caller, name: str, *, shared: bool) -> Budget:
    if shared:
        caller.check_shared()
    rule = workspace.host.budgets.budgets.rules.get(name if shared else f"{caller.tenant}/{name}")
    if rule is None or rule.name != name:
        hint = "GET /v1/budgets lists them; one that holds for all tenants is meant with shared=true"
        raise NotFoundError(what="budget", name=name, hint=hint)
    return rule


def _view(workspace: Workspace, rule: Budget, caller: Caller) -> BudgetView:
    desk = workspace.host.budgets
    counts = [count for tenant, count in desk.counts() if tenant == caller.tenant and count.key.budget == rule.key]
    facts = budget_facts(rule, counts, workspace=workspace.name, origin=desk.origin_of(rule), waiting=desk.waiting())
    return BudgetView(**facts)
