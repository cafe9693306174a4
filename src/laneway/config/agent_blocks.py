"""The blocks of an agent's settings: providers and their models, permissions, and the lanes of its tools.

What nobody sets is None here. The defaults are those of `SessionOptions` and `SessionQueueConfig`, and of a provider;
the words of `unset` repeat them for the pages, and a test holds both together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from laneway.config.agent_kinds import LabelText, RuleText
from laneway.config.declaring import MS, SOME_MS, Setting, Sub, always, with_password
from laneway.config.kinds import Choice, Flag, Number, Several, Text, Whole, word_of
from laneway.options import MODES, SESSION_LANES, STICKY
from laneway.records import LABELS_MAX, Effect

__all__ = (
    "BUILT_IN",
    "DIRS",
    "EFFECT",
    "NAMES",
    "SESSION_LANE",
    "TOOL_LANE",
    "TOOL_NAMES",
    "BoostBlock",
    "HandlerBlock",
    "ModelBlock",
    "PermissionsBlock",
    "ProviderBlock",
    "RateBlock",
    "RetentionLimitsBlock",
    "RetryBlock",
)

SESSION_LANE: Final = "session lane"
"""What the names of `queue.lane_timeouts` and `queue.lane_handlers` are names of: four of them, and no others."""

BUILT_IN: Final = ("read", "write", "edit", "patch", "ls", "glob", "grep", "bash", "wait", "web_fetch")
TOOL_LANE: Final = word_of(*SESSION_LANES)
TOOL_NAMES: Final = Several(item=word_of(*BUILT_IN), most=100)
EFFECT: Final = Choice(words=Effect, parse=lambda text: Effect(text.strip().casefold()))
NAMES: Final = Several(item=Text(least=1, most=512))
DIRS: Final = Several(item=Text(least=1, most=4096))
RULES: Final = Several(item=RuleText(), most=10_000)
LABELS: Final = Several(item=LabelText(), most=LABELS_MAX)
TOKENS: Final = Whole(least=1, most=1_000_000_000)
KEPT: Final = Whole(least=0, most=1_000_000_000)
PRICE: Final = Number(least=0, most=1_000_000)
LISTED: Final = "what the price list says"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBlock:
    """What is known of one model."""

    name: Annotated[str | None, Setting(kind=Text(most=200), says="What it is called.", unset="its id")] = None
    context_tokens: Annotated[
        int | None,
        Setting(kind=TOKENS, says="How many tokens a request may have.", unset="what the provider says"),
    ] = None
    output_max: Annotated[
        int | None,
        Setting(kind=TOKENS, says="How many tokens an answer may have.", unset="what the provider says"),
    ] = None
    input_price: Annotated[
        float | None, Setting(kind=PRICE, says="US dollars for a million tokens of a request.", unset=LISTED)
    ] = None
    output_price: Annotated[
        float | None, Setting(kind=PRICE, says="US dollars for a million tokens of an answer.", unset=LISTED)
    ] = None
    tool_call: Annotated[bool | None, Setting(kind=Flag(), says="Whether it is told of the tools.", unset="`true`")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderBlock:
    """How a provider of models is reached."""

    api_key: Annotated[
        str | None,
        Setting(
            kind=Text(least=1, most=10_000),
            says="Its key. It is shown nowhere.",
            unset="the provider's own variable, if there is no `base_url`",
            secret=always,
        ),
    ] = field(default=None, repr=False)
    base_url: Annotated[
        str | None,
        Setting(
            kind=Text(begins=("http://", "https://"), most=4096),
            says="Its address.",
            unset="the provider's own",
            secret=with_password,
        ),
    ] = field(default=None, repr=False)
    kind: Annotated[
        str | None,
        Setting(kind=Text(least=1, most=100), says="What language it speaks.", unset="that of its name"),
    ] = None
    timeout_ms: Annotated[
        int | None,
        Setting(
            kind=Whole(least=1, most=86_400_000, unit="milliseconds"),
            says="The longest silence of an answer.",
            unset="600,000",
        ),
    ] = None
    headers: Annotated[
        Mapping[str, str],
        Setting(kind=Text(most=10_000), says="A header of each request.", names="header", secret=always),
    ] = field(default_factory=dict, repr=False)
    models: Annotated[Mapping[str, ModelBlock], Sub(says="Its models, by their id.", names="model")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimitsBlock:
    """How much a session keeps in memory of what is over, the oldest going first. A store keeps more."""

    max_runs_retained: Annotated[
        int | None, Setting(kind=KEPT, says="How many runs, with their rounds.", unset="1,000")
    ] = None
    max_events_per_run: Annotated[
        int | None, Setting(kind=KEPT, says="How many events of a run, for those who come late.", unset="100,000")
    ] = None
    max_trace_events: Annotated[
        int | None, Setting(kind=KEPT, says="How many events `trace_events` has.", unset="10,000")
    ] = None
    max_terminal_subagent_tasks: Annotated[
        int | None, Setting(kind=KEPT, says="How many ends of sub-agents.", unset="100")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionsBlock:
    """Which calls of tools may be made."""

    allow: Annotated[
        tuple[str, ...] | None,
        Setting(kind=RULES, says="Rules for calls that are made: `read`, `bash(git *)`.", unset="none"),
    ] = None
    deny: Annotated[
        tuple[str, ...] | None,
        Setting(kind=RULES, says="Rules for calls that are refused; they beat all others.", unset="none"),
    ] = None
    ask: Annotated[
        tuple[str, ...] | None,
        Setting(kind=RULES, says="Rules for calls that somebody has to approve; they beat `allow`.", unset="none"),
    ] = None
    default_decision: Annotated[
        str | None,
        Setting(
            kind=word_of("allow", "deny", "ask"), says="What happens to a call that no rule matches.", unset="`ask`"
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBlock:
    """Whether and when a call that failed runs again."""

    strategy: Annotated[
        str | None,
        Setting(
            kind=word_of("exponential", "fixed", "none"),
            says="How the delays grow; `fixed` needs `fixed_delay_ms`.",
            unset="`exponential`",
        ),
    ] = None
    max_retries: Annotated[
        int | None,
        Setting(kind=Whole(least=0, most=1_000_000), says="How many further attempts there are.", unset="3"),
    ] = None
    initial_delay_ms: Annotated[
        int | None, Setting(kind=MS, says="The delay before the first of them.", unset="100")
    ] = None
    fixed_delay_ms: Annotated[
        int | None, Setting(kind=MS, says="The delay before each of them.", unset="needed for `fixed`")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBlock:
    """How many calls of a lane may start in a window."""

    limit_type: Annotated[
        str | None,
        Setting(
            kind=word_of("per_second", "per_minute", "per_hour", "unlimited"),
            says="The window.",
            unset="needed in this block",
        ),
    ] = None
    max_operations: Annotated[
        int | None,
        Setting(
            kind=Whole(least=1, most=1_000_000_000),
            says="How many start in it.",
            unset="needed unless `unlimited`",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostBlock:
    """How a call climbs as its deadline comes near."""

    strategy: Annotated[
        str | None,
        Setting(
            kind=word_of("standard", "aggressive", "disabled"), says="How early and how often.", unset="`standard`"
        ),
    ] = None
    deadline_ms: Annotated[
        int | None, Setting(kind=SOME_MS, says="The deadline of a call, from when it is queued.", unset="300,000")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerBlock:
    """Who runs the calls of a lane."""

    mode: Annotated[
        str | None,
        Setting(
            kind=word_of(*MODES),
            says="This process, somebody else, or this process while others hear of it.",
            unset="`internal`",
        ),
    ] = None
    timeout_ms: Annotated[
        int | None, Setting(kind=SOME_MS, says="How long somebody else may take.", unset="60,000")
    ] = None
    ordered: Annotated[
        bool | None,
        Setting(kind=Flag(), says="Whether the calls of one answer go out one after another.", unset="`true`"),
    ] = None
    lease_ms: Annotated[
        int | None,
        Setting(kind=SOME_MS, says="How long a worker may be silent before its task is taken from it.", unset="30,000"),
    ] = None
    fallback: Annotated[
        bool | None,
        Setting(
            kind=Flag(),
            says="Whether a call that nobody has taken within `timeout_ms` runs in this process.",
            unset="`false`",
        ),
    ] = None
    labels: Annotated[
        tuple[str, ...] | None,
        Setting(kind=LABELS, says="What a worker must have to be given its tasks.", unset="none"),
    ] = None
    sticky: Annotated[
        str | None,
        Setting(
            kind=word_of(*STICKY),
            says="Tasks of the same session, workspace or tenant would like to go to the same worker.",
            unset="none",
        ),
    ] = None
    sticky_ms: Annotated[
        int | None, Setting(kind=MS, says="How long such a task waits for that worker.", unset="5,000")
    ] = None
    background_after_ms: Annotated[
        int | None,
        Setting(
            kind=MS, says="After how long a call goes on in the background, if its tool allows that.", unset="never"
        ),
    ] = None
