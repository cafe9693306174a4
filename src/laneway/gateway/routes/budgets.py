"""Budgets: what may be spent on models, what was, and what operators change about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from laneway.errors import NotFoundError, PermissionDeniedError
from laneway.gateway.access import Caller
from laneway.gateway.budget_facts import Waits, budget_facts
from laneway.gateway.deps import CallerOf, GatewayOf, NamedWorkspaceOf, OperatorOf, WorkspaceOf
from laneway.gateway.service import Gateway
from laneway.gateway.views import Page, Reason, View, router_of
from laneway.gateway.workspaces import Workspace
from laneway.spending import Budget

__all__ = ("router",)

router = router_of("budgets")

WHICH: Final = (
    "true: the budget of all tenants; false: that of the caller's tenant. "
    "Else its own if it has one of that name, else that of all."
)
Finite = Annotated[StrictFloat, Field(allow_inf_nan=False)]  # JSON of Python has NaN, and 1e400
Shared = Annotated[Literal["true", "false"] | None, Query(description=WHICH)]


class Amounts(View):
    """An amount, by what became of it."""

    spent: float = Field(description="What calls have used, and what nobody knows better.")
    reserved: float = Field(description="What calls in flight may use.")
    lost: float = Field(description="Of what is spent: what was set aside when a process died.")
    overrun: float = Field(description="Of what is spent: by how much estimates were too small.")


class ParkedRun(View):
    """A run that waits for the next window of a budget."""

    session_key: str
    run_id: str
    until_ms: int = Field(description="When it looks again at the latest, by the wall clock.")


class CountView(View):
    """What a budget has counted for one run, session, principal or tenant in its window."""

    subject: str = Field(description="Empty: all sessions without a principal, which share one count.")
    whose: str = Field(description="The same in words, such as `principal user:42`, `sessions without a principal`.")
    from_ms: int | None = None
    until_ms: int | None = Field(default=None, description="When it begins anew; null: never.")
    share: float = Field(description="How much of the limit is spent: of the one that is nearer to its end.")
    in_flight: int = Field(description="Calls that have reserved something.")
    waiting: int = Field(description="Calls that wait for what those give back.")
    parked: int = Field(default=0, description="Runs that wait for the next window, those at rest included.")
    parked_runs: list[ParkedRun] = Field(default_factory=list, description="Which runs these are: the first 20.")
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
    money: Finite | StrictInt | None = Field(None, description="US dollars.")
    on_exhausted: Literal["deny", "park", "cheaper"] = "deny"
    cheaper: str | None = Field(None, max_length=400)
    warn_at: Finite | StrictInt = 0.8
    only: str | None = Field(None, max_length=400)
    unpriced: Literal["deny", "allow"] = "deny"
    shared: StrictBool | None = Field(default=None, description=f"Whether it is to hold for all tenants. {WHICH}")
    reason: str = Field("", max_length=2_000)

    def budget(self, name: str, tenant: str | None) -> Budget:
        """The same as a record; raises `ConfigError`."""
        given: dict[str, Any] = self.model_dump(exclude={"shared", "reason"})
        return Budget(name=name, tenant=tenant, **given)


class BudgetChange(BaseModel):
    """What is to change of a budget; what is not said stays as it is, and null takes a limit, `only` or `cheaper` away.

    To name a cheaper model, or another end than one, is to say both.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"money": 8}]})

    scope: Literal["run", "session", "principal", "tenant"] | None = None
    window: Literal["ever", "day", "month"] | None = None
    timezone: str | None = Field(None, max_length=100)
    tokens: StrictInt | None = None
    money: Finite | StrictInt | None = Field(None, description="US dollars.")
    on_exhausted: Literal["deny", "park", "cheaper"] | None = None
    cheaper: str | None = Field(None, max_length=400)
    warn_at: Finite | StrictInt | None = None
    only: str | None = Field(None, max_length=400)
    unpriced: Literal["deny", "allow"] | None = None
    shared: StrictBool | None = Field(default=None, description=WHICH)
    reason: str = Field("", max_length=2_000)

    @model_validator(mode="after")
    def _says_something(self) -> BudgetChange:
        if not self.model_fields_set - {"shared", "reason"}:
            raise ValueError("nothing is to be changed")
        return self

    def changed(self, budget: Budget) -> Budget:
        """What a budget is with that; raises `ConfigError`."""
        given: dict[str, Any] = self.model_dump(include=self.model_fields_set - {"shared", "reason"})
        if given.get("cheaper") is not None:
            given.setdefault("on_exhausted", "cheaper")
        elif given.get("on_exhausted", "cheaper") != "cheaper":
            given.setdefault("cheaper", None)
        return replace(budget, **given)


@router.get("/budgets", summary="What may be spent on models, and what was")
async def ls(gateway: GatewayOf, caller: CallerOf, workspace: NamedWorkspaceOf) -> Page[BudgetView]:
    """The budgets that hold for the caller's tenant. Each workspace counts for itself."""
    wanted = list(gateway.workspaces.values()) if workspace is None else [workspace]
    items: list[BudgetView] = []
    for each in wanted:
        rules = each.host.budgets.budgets.rules.values()
        items += [_view(each, rule, caller) for rule in rules if _sees(caller, rule)]
    return Page(items=items)


@router.put("/budgets/{name}", summary="Make or change a budget")
async def put(
    name: str, body: BudgetOrder, gateway: GatewayOf, caller: OperatorOf, workspace: WorkspaceOf
) -> BudgetView:
    """Say all of a budget; what was spent stays spent, unless another scope counts, and parked runs look again.

    With another window or timezone the count of the present window goes on in the new one. One of the caller's tenant
    holds beside those of all tenants: what does not fit into one of them does not fit.
    """
    rule = _known(workspace, caller, name, shared=body.shared)
    is_shared = body.shared if rule is None else rule.tenant is None
    budget = body.budget(name, None if is_shared else caller.tenant)
    workspace.check_budgets((budget,))
    await _record_set(gateway, caller, workspace, budget, body)
    await workspace.host.budgets.set_rule(budget)
    return _view(workspace, budget, caller)


@router.patch("/budgets/{name}", summary="Change something about a budget")
async def change(
    name: str, body: BudgetChange, gateway: GatewayOf, caller: OperatorOf, workspace: WorkspaceOf
) -> BudgetView:
    """Change only what is said, also while others change the rest; what was spent stays spent, as with `PUT`."""

    def changed(budget: Budget) -> Budget:
        new = body.changed(budget)
        workspace.check_budgets((new,))
        return new

    rule = _find(workspace, caller, name, shared=body.shared)
    await _record_set(gateway, caller, workspace, changed(rule), body)
    budget = await workspace.host.budgets.change_rule(rule.key, changed)  # somebody may have changed it meanwhile
    return _view(workspace, budget, caller)


async def _record_set(
    gateway: Gateway, caller: Caller, workspace: Workspace, budget: Budget, body: BudgetOrder | BudgetChange
) -> None:
    is_change = isinstance(body, BudgetChange)  # what it says is null was taken away
    said = body.model_dump(exclude={"reason", "shared"}, exclude_none=not is_change, exclude_unset=is_change)
    facts = {**said, "shared": budget.tenant is None, "workspace": workspace.name}
    await gateway.audit.record(caller, "budget.set", budget.name, reason=body.reason, **facts)


@router.delete("/budgets/{name}", status_code=204, summary="Take a budget away")
async def remove(
    name: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    workspace: WorkspaceOf,
    shared: Shared = None,
    reason: Annotated[str, Query(max_length=2_000)] = "",
) -> None:
    """Forget a budget and its counts; parked runs look again. One of the configuration stays away until it is set."""
    rule = _find(workspace, caller, name, shared=None if shared is None else shared == "true")
    await gateway.audit.record(
        caller, "budget.clear", name, reason=reason, workspace=workspace.name, shared=rule.tenant is None
    )
    await workspace.host.budgets.drop_rule(rule.key)


@router.post("/budgets/{name}/reset", summary="Let the counts of a budget begin anew")
async def reset(
    name: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    workspace: WorkspaceOf,
    shared: Shared = None,
    body: Reason | None = None,
) -> BudgetView:
    """Forget what the caller's tenant has spent of a budget; what calls in flight have reserved stays so."""
    rule = _find(workspace, caller, name, shared=None if shared is None else shared == "true")
    reason = "" if body is None else body.reason
    await gateway.audit.record(
        caller, "budget.reset", name, reason=reason, workspace=workspace.name, shared=rule.tenant is None
    )
    await workspace.host.budgets.reset(rule.key, caller.tenant)
    return _view(workspace, rule, caller)


def _sees(caller: Caller, rule: Budget) -> bool:
    """Whether a budget is there for a caller: it is about its tenant, or about all and the caller may see them."""
    return rule.concerns(caller.tenant) or (caller.sees_all and rule.tenant is None)


def _known(workspace: Workspace, caller: Caller, name: str, *, shared: bool | None) -> Budget | None:
    """The budget that is meant, if there is one; refuses one of all tenants to whoever may not change it."""
    rules = workspace.host.budgets.budgets.rules
    own, common = rules.get(f"{caller.tenant}/{name}"), rules.get(name)
    if common is not None and not _sees(caller, common):
        common = None  # it is not there for this tenant
    if shared is False or (shared is None and (own is not None or common is None)):
        return own
    if not caller.sees_all:
        raise PermissionDeniedError(
            f"budget {name!r} is one of all tenants, and {caller.name} may change only those of tenant "
            f"{caller.tenant!r}",
            hint="use an operator token for all tenants (laneway token create --scope operate --tenant '*'), "
            "or have a budget of your own beside it with shared=false",
            right="operate",
        )
    return common


def _find(workspace: Workspace, caller: Caller, name: str, *, shared: bool | None) -> Budget:
    rule = _known(workspace, caller, name, shared=shared)
    if rule is None or rule.name != name:
        where = "" if shared is None else "; one of all tenants is meant with shared=true, one's own with shared=false"
        raise NotFoundError(what="budget", name=name, hint=f"GET /v1/budgets lists them{where}")
    return rule


def _view(workspace: Workspace, rule: Budget, caller: Caller) -> BudgetView:
    desk = workspace.host.budgets
    counts = [count for tenant, count in desk.counts() if tenant == caller.tenant and count.key.budget == rule.key]
    waits = Waits(desk.waiting(), (*desk.parked_runs(), *workspace.rest.parked_runs()))
    facts = budget_facts(rule, counts, workspace=workspace.name, origin=desk.origin_of(rule), waits=waits)
    return BudgetView(**facts)
