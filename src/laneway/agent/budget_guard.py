"""The guard of a session's budget: code of the host that is asked before each call of a model, and told after it.

A guard may have `check_before_llm(session_id, estimated_tokens)` and `record_after_llm(session_id, usage)`, plain or
async; what it lacks counts as a yes. It says None or a mapping with `decision`: `allow`, `soft` (with `resource`,
`consumed`, `limit` and perhaps `message`) or `deny` (with `resource` and `reason`). One that raises, hangs or says
something else is written into the log and counts as a yes, unless the session says `budget_on_error="deny"`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from laneway.agent_events import BudgetThresholdHitEvent
from laneway.dialogue import Usage
from laneway.errors import BudgetExhaustedError, ConfigError, describe, text_of

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession

__all__ = ("GuardPost", "check_guard")

_log = logging.getLogger("laneway")

METHODS: Final = ("check_before_llm", "record_after_llm")
DECISIONS: Final = ("allow", "soft", "deny")
WORDS_MAX: Final = 2_000


class _NonsenseError(Exception):
    """What a guard has said is no decision."""


def check_guard(guard: object | None) -> object | None:
    """A guard whose methods, as far as it has them, can be called."""
    for name in METHODS:
        method = getattr(guard, name, None)
        if method is not None and not callable(method):
            raise ConfigError(
                f"{name} of the budget guard is {type(method).__name__}, not something to call",
                setting="budget_guard",
                value=method,
                hint="a guard is an object with check_before_llm and record_after_llm, or one of them",
            )
    if isinstance(guard, type):
        hint = f"give an object: budget_guard={guard.__name__}()"
        raise ConfigError("the budget guard is a class", setting="budget_guard", value=guard, hint=hint)
    return guard


class GuardPost:
    """Where a session keeps its guard. Sub-agents have that of the session they work for."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._own = check_guard(session.settings.budget_guard) if session.parent is None else None

    @property
    def guard(self) -> object | None:
        """The guard at this moment."""
        parent = self._session.parent
        return self._own if parent is None else parent.guard_post.guard

    def set(self, guard: object | None) -> None:
        """Have another guard from the next call of the model on, or none."""
        self._own = None if guard is None else check_guard(guard)

    async def check(self, estimated_tokens: int) -> BudgetThresholdHitEvent | None:
        """Ask before a call: raises `BudgetExhaustedError` for a no; what a warning says is to be told."""
        said = await self._call("check_before_llm", estimated_tokens)
        if said is None:
            return None
        try:
            return _read(said)
        except _NonsenseError as error:
            self._failed("check_before_llm", text_of(error))
            return None

    async def record(self, usage: Usage) -> None:
        """Tell what a call has used. Nothing that a guard does here stops anything."""
        facts = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "cost": usage.cost,
        }
        await self._call("record_after_llm", facts)

    async def _call(self, name: str, about: Any) -> Any:
        method = getattr(self.guard, name, None)
        if method is None:
            return None
        session_id, limit_ms = self._session.session_id, self._session.settings.budget_guard_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                if inspect.iscoroutinefunction(method):
                    return await method(session_id, about)
                said = await self._session._in_thread(method, session_id, about)  # noqa: SLF001 - its own post
                return await said if inspect.isawaitable(said) else said
        except TimeoutError:
            problem = f"it did not answer within {limit_ms:,} ms"
        except Exception as error:  # noqa: BLE001 - whatever the host's code does, the session goes on
            problem = describe(error)
        if name == "check_before_llm":
            self._failed(name, problem)
        else:
            _log.warning("record_after_llm of the budget guard of %r failed: %s", session_id, problem)
        return None

    def _failed(self, name: str, problem: str) -> None:
        _log.warning("%s of the budget guard of %r failed: %s", name, self._session.session_id, problem)
        if self._session.settings.budget_on_error == "deny":
            raise BudgetExhaustedError(
                f"the budget guard failed: {problem}",
                hint='mend the guard, or let its failures pass: budget_on_error="allow"',
            )


def _read(said: object) -> BudgetThresholdHitEvent | None:
    if not isinstance(said, Mapping):
        raise _NonsenseError(f"it said {said!r:.100}, which is no decision")
    decision = said.get("decision")
    if decision not in DECISIONS:
        raise _NonsenseError(f"its decision is {decision!r:.100}, not {', '.join(DECISIONS)}")
    if decision == "allow":
        return None
    resource = text_of(said.get("resource", ""))[:WORDS_MAX]
    if decision == "deny":
        reason = text_of(said.get("reason", ""))[:WORDS_MAX] or "the budget guard says no"
        raise BudgetExhaustedError(reason, resource=resource)
    message = said.get("message")
    return BudgetThresholdHitEvent(
        resource=resource,
        kind="soft",
        consumed=_number(said.get("consumed"), "consumed"),
        limit=_number(said.get("limit"), "limit"),
        message=None if message is None else text_of(message)[:WORDS_MAX],
    )


def _number(value: object, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
        raise _NonsenseError(f"its {name} is {value!r:.100}, not a number")
    return value  # type: ignore[return-value]
