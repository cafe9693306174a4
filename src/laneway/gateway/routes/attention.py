"""What goes on at this moment, and what needs somebody: the first thing that people look at."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import Field

from laneway.gateway.attention import cares_of, now_of
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspacesOf
from laneway.gateway.views import View, router_of

__all__ = ("router",)

router = router_of("attention")


class CareView(View):
    """One thing that needs somebody."""

    id: str = Field(description="Of the approval, the entry, the letter, the task, the run, or the name of the lane.")
    title: str = Field(description="The tool, the lane, the state of the run, or what a message said.")
    why: str = ""
    workspace: str = ""
    session_key: str = ""
    run_id: str = ""
    since_ms: int | None = None
    until_ms: int | None = Field(None, description="When it ends by itself.")


class CaresView(View):
    """Things of one kind that need somebody."""

    count: int
    more: bool = Field(default=False, description="Whether there are more than were counted.")
    items: list[CareView] = Field(description="The newest of them.")


class Attention(View):
    """What needs somebody."""

    approvals: CaresView = Field(description="Runs that ask before they do something.")
    ledger: CaresView = Field(description="Calls of which nobody knows how far they came.")
    dead_letters: CaresView = Field(description="What could not be done, again and again.")
    tasks: CaresView = Field(description="External tasks for which there is no worker.")
    runs: CaresView = Field(description="Runs of the last days that broke, and after which nothing was tried.")
    lanes: CaresView = Field(description="Lanes that are paused; empty for those who see one tenant only.")
    limits: CaresView = Field(description="Lanes and accounts that are closed for a while; the same.")


class AtWorkView(View):
    """A session in which a run goes on."""

    session_key: str
    workspace: str
    run_id: str
    state: str
    doing: str = Field(description="`model`, `tools`, `waiting`, `starting` or `ending`.")
    words: str = Field(description="The same in words, with what it waits for.")
    tools: list[str] = Field(default_factory=list, description="The calls that run at this moment.")
    since_ms: int
    waiting: int = Field(description="Messages that wait in this session.")


class WaitingView(View):
    """Messages that wait for the same thing."""

    why: str = Field(
        description="`run`, `approval`, `slot`, `opening`, `rests`, `quiet`, `held`, `steer`, `setup` or `order`."
    )
    words: str
    lane: str = ""
    count: int
    sessions: int = Field(description="In how many sessions.")
    examples: list[str] = Field(description="Keys of some of these sessions.")


class NowView(View):
    """What goes on at this moment."""

    running: int = Field(description="Runs that go on.")
    waiting: int = Field(description="Messages that wait.")
    sessions: int = Field(description="Sessions in which something waits.")
    at_work: list[AtWorkView] = Field(description="Those that have run longest; at most fifty.")
    groups: list[WaitingView] = Field(description="What the messages wait for, the most frequent first.")


@router.get("/attention", summary="What needs somebody")
async def attention(gateway: GatewayOf, caller: CallerOf, workspaces: WorkspacesOf) -> Attention:
    """How much there is that needs somebody, by kind, and the newest of each. Only of the caller's tenant."""
    cares = await cares_of(gateway, caller, workspaces)
    return Attention(**{name: CaresView(**asdict(each)) for name, each in cares.items()})


@router.get("/now", summary="What goes on at this moment")
async def now(caller: CallerOf, workspaces: WorkspacesOf) -> NowView:
    """Which runs go on and what each does, and what the messages that wait are waiting for, counted."""
    return NowView(**asdict(now_of(caller, workspaces)))
