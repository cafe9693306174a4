"""What the story of a run or of a message looks like. A time that nobody knows is left out."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from laneway.gateway.views import ForkedFrom, MessageView, RunView, StepView, View

__all__ = (
    "ApprovalTold",
    "CallTold",
    "ChildTold",
    "LedgerTold",
    "MessageTale",
    "MessageTold",
    "PlanStepTold",
    "RoundTold",
    "RunTale",
    "WaitTold",
    "WholeRound",
)


class WaitTold(View):
    """Something that was waited for."""

    kind: str = Field(
        description="`run`: another run of its session; `lane`: a slot; `held`: somebody set it aside; `boundary`: the "
        "next safe point of a run; `limit`: a provider takes no calls; `retry`: the model failed; `paused`: its "
        "session was; `compacting`: the conversation was summarised; `budget`: a budget is used up."
    )
    reason: str = ""
    began_ms: int
    ended_ms: int | None = Field(default=None, description="Null: it still does.")
    run_id: str | None = Field(default=None, description="The run that was waited for.")


class LedgerTold(View):
    """What the ledger says of a call with side effects."""

    entry_id: str
    state: str
    reason: str = ""
    happened: bool | None = Field(default=None, description="What somebody found out, if it was settled.")


class CallTold(View):
    """A call of a tool: where it was made, how long it waited and ran, and what came of it."""

    call_id: str
    tool: str
    arguments: Any = None
    lane: str | None = None
    status: str = Field(description="How it ended; `queued`, `out` or `running` while it has not.")
    why: str = Field(default="", description="Why it goes no further at this moment.")
    queued_ms: int | None = None
    out_ms: int | None = Field(default=None, description="When it was offered to workers.")
    began_ms: int | None = None
    ended_ms: int | None = None
    attempt: int = 1
    worker: str | None = None
    task_id: str | None = None
    exit_code: int | None = None
    artifact: str | None = None
    output: str = Field(default="", description="What the model got to see; the beginning of it.")
    output_chars: int = 0
    ledger: LedgerTold | None = None


class RoundTold(View):
    """One round: what was said to the model, what it answered, and the calls it asked for."""

    number: int
    state: str = Field(description="`asking`: the model has not answered yet.")
    was_asked: bool = Field(default=True, description="False: it has only waited so far, and the model was not asked.")
    asked_ms: int | None = None
    answered_ms: int | None = None
    waits: list[WaitTold] = Field(default_factory=list)
    retries: int = 0
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cost: float | None = None
    messages: list[str] = Field(default_factory=list, description="The messages that it heard first.")
    text: str = ""
    text_chars: int = 0
    has_reasoning: bool = False
    calls: list[CallTold] = Field(default_factory=list)


class ApprovalTold(View):
    """A question of the run, and its answer."""

    approval_id: str
    action: str
    call_id: str = ""
    state: str
    asked_ms: int
    ended_ms: int | None = None
    expires_ms: int | None = None
    answered_by: str = ""
    reason: str = ""


class ChildTold(View):
    """A sub-agent that the run has started."""

    child_id: str
    label: str = ""
    state: str
    call_id: str = ""
    session_key: str | None = None
    run_id: str | None = Field(default=None, description="Its own run, which has a story of its own.")
    began_ms: int | None = None
    ended_ms: int | None = None
    tokens: int = 0


class PlanStepTold(View):
    """One step of the plan."""

    id: str
    content: str
    status: str
    result: str = ""


class MessageTold(View):
    """A message that the run is about."""

    message_id: str
    role: str = Field(description="`began`: the run began over it; `steered`: it came in; `summarized`: a line of it.")
    text: str
    sender: str = ""
    disposition: str
    arrived_ms: int
    heard_ms: int | None = Field(default=None, description="When the run took it.")


class RunTale(View):
    """The whole story of a run."""

    run: RunView
    now: str = Field(default="", description="What it waits for at this moment.")
    rests: str = Field(
        default="", description="Its session has left memory: what it waits for, and what brings it back."
    )
    is_over: bool
    can_resume: bool = Field(description="It was cut off, and `resume` goes on with it.")
    resumed_from: str | None = None
    resumed_by: str | None = Field(default=None, description="The run that has gone on with it.")
    forked_from: ForkedFrom | None = Field(default=None, description="It is the first run of a fork of that one.")
    parent_session: str | None = Field(default=None, description="The session whose sub-agent it is the run of.")
    identity: dict[str, str] = Field(default_factory=dict, description="The labels that its session has now.")
    messages: list[MessageTold]
    rounds: list[RoundTold]
    rounds_before: int = Field(default=0, description="Older rounds that are left out.")
    approvals: list[ApprovalTold]
    children: list[ChildTold]
    plan: list[PlanStepTold]
    steps: list[StepView]
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


class MessageTale(View):
    """The whole story of a message; that of its run is a story of its own."""

    message: MessageView
    now: str = Field(default="", description="Why it waits at this moment.")
    is_over: bool
    can_retry: bool
    can_withdraw: bool
    waits: list[WaitTold]
    runs: list[str] = Field(description="The runs that it was in, oldest first.")
    steps: list[StepView]
    text: str = Field(description="The same for people.")


class WholeRound(View):
    """One round with everything that was said in it. What is too long even for this is cut."""

    number: int
    state: str
    prompts: list[str]
    text: str
    reasoning: str
    calls: list[CallTold]
