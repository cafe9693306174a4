"""The guard of a session's budget: code of the host that is asked before each call of a model, and told after it.

A guard may have `check_before_llm(session_id, estimated_tokens)` and `record_after_llm(session_id, usage)`, plain or
async; what it lacks counts as a yes. It says None or a mapping with `decision`: `allow`, `soft` (with `resource`,
`consumed`, `limit` and perhaps `message`) or `deny` (with `resource` and `reason`). One that raises, hangs or says
something else is written into the log and counts as a yes, unless the session says `budget_on_error="deny"`. A call
that has not ended in its time is waited for no longer, and the guard is not asked again before it has ended: a guard
that hangs holds a thread, and neither the run nor whoever cancels it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, MutableSet
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.tool_calls import INSIDE
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
NUMBER_MAX: Final = 1e18
CUT_MAX: Final = 8


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
    if guard is not None and all(getattr(guard, name, None) is None for name in METHODS):
        raise ConfigError(
            f"the budget guard ({type(guard).__name__}) has neither check_before_llm nor record_after_llm",
            setting="budget_guard",
            value=guard,
            hint="a guard is an object with both of them, or one; are they written right?",
        )
    return guard


class _Watch:
    """A guard, and what still goes on of calls of it that nobody waits for any more: a new guard has none of that."""

    __slots__ = ("cut", "guard", "late")

    def __init__(self, guard: object | None) -> None:
        self.guard = guard
        self.late: list[set[object]] = []  # of calls that have not ended in their time
        self.cut: list[set[object]] = []  # of calls whose run was cancelled

    @property
    def hangs(self) -> bool:
        """Whether it is not to be asked, because earlier calls go on."""
        self.late = [each for each in self.late if each]
        self.cut = [each for each in self.cut if each]
        return bool(self.late) or len(self.cut) >= CUT_MAX


class GuardPost:
    """Where a session keeps its guard. Sub-agents have that of the session they work for."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._own = _Watch(check_guard(session.settings.budget_guard) if session.parent is None else None)

    @property
    def watch(self) -> _Watch:
        """The guard at this moment, with what goes on of its calls: one for a session and all its sub-agents."""
        parent = self._session.parent
        return self._own if parent is None else parent.guard_post.watch

    @property
    def guard(self) -> object | None:
        """The guard at this moment."""
        return self.watch.guard

    def set(self, guard: object | None) -> None:
        """Have another guard from the next call of the model on, or none."""
        self._own = _Watch(check_guard(guard))

    async def check(self, estimated_tokens: int) -> BudgetThresholdHitEvent | None:
        """Ask before a call: raises `BudgetExhaustedError` for a no; what a warning says is to be told."""
        said = await self._call("check_before_llm", estimated_tokens)
        if said is None:
            return None
        try:
            return _read(said)
        except BudgetExhaustedError:
            raise
        except _NonsenseError as error:
            problem = text_of(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a mapping of the host may do anything when it is read
            problem = f"what it said cannot be read: {describe(error)}"
        self._failed("check_before_llm", problem)
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
        watch = self.watch
        try:
            method = getattr(watch.guard, name, None)
            if method is None:
                return None
            return await self._answer(watch, method, about)
        except _NonsenseError as error:
            problem = text_of(error)
        except Exception as error:  # noqa: BLE001 - whatever the host's code does, the session goes on
            problem = describe(error)
        if name == "check_before_llm":
            self._failed(name, problem)
        else:
            _log.warning("%s of the budget guard of %r failed: %s", name, self._session.session_id, shown(problem))
        return None

    async def _answer(self, watch: _Watch, method: Callable[..., Any], about: Any) -> Any:
        """What a method of the guard says, if it does within its time."""
        if watch.hangs:
            raise _NonsenseError("an earlier call of it has not ended in its time, and still goes on")
        limit_ms = self._session.settings.budget_guard_timeout_ms
        under_way: set[object] = set()
        task = asyncio.get_running_loop().create_task(
            self._asked(method, about, under_way), name=f"laneway-budget-guard {self._session.session_id}"
        )
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        try:
            await asyncio.wait((task,), timeout=limit_ms / 1000)
        except asyncio.CancelledError:
            watch.cut.append(under_way)
            _leave(task)
            raise
        if not task.done():
            watch.late.append(under_way)
            _leave(task)
            raise _NonsenseError(f"it did not answer within {limit_ms:,} ms")
        if task.cancelled():
            raise _NonsenseError("it raised CancelledError")
        return task.result()

    async def _asked(self, method: Callable[..., Any], about: Any, under_way: MutableSet[object]) -> Any:
        session = self._session
        INSIDE.set((*INSIDE.get(), session.key))  # for this task: a guard that would wait for its own session is told
        try:
            if inspect.iscoroutinefunction(method):
                return await method(session.session_id, about)

            def on_thread() -> Any:
                under_way.add(on_thread)
                try:
                    return method(session.session_id, about)
                except StopIteration as error:  # no future can carry it: the run would wait for its whole time
                    raise _NonsenseError("it raised StopIteration") from error
                finally:
                    under_way.discard(on_thread)

            said = await session._in_thread(on_thread)  # noqa: SLF001 - its own post
            return await said if inspect.isawaitable(said) else said
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # `exit()` would end the loop of everybody
            raise _NonsenseError(f"it raised {describe(error)}") from error

    def _failed(self, name: str, problem: str) -> None:
        problem = shown(problem)
        _log.warning("%s of the budget guard of %r failed: %s", name, self._session.session_id, problem)
        if self._session.settings.budget_on_error == "deny":
            raise BudgetExhaustedError(
                f"the budget guard failed: {problem}",
                hint='mend the guard, or let its failures pass: budget_on_error="allow"',
            )


def _leave(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # looked at, so nobody complains


def _read(said: object) -> BudgetThresholdHitEvent | None:
    if not isinstance(said, Mapping):
        raise _NonsenseError(f"it said {said!r:.100}, which is no decision")
    decision = said.get("decision")
    if not isinstance(decision, str) or decision not in DECISIONS:
        raise _NonsenseError(f"its decision is {decision!r:.100}, not {', '.join(DECISIONS)}")
    if decision == "allow":
        return None
    resource = shown(said.get("resource", ""))
    if decision == "deny":
        raise BudgetExhaustedError(shown(said.get("reason", "")) or "the budget guard says no", resource=resource)
    message = said.get("message")
    return BudgetThresholdHitEvent(
        resource=resource,
        kind="soft",
        consumed=_number(said.get("consumed"), "consumed"),
        limit=_number(said.get("limit"), "limit"),
        message=None if message is None else shown(message),
    )


def shown(value: object) -> str:
    """Words of a guard, on one line that can be stored and shown: what would steer a terminal is escaped."""
    text = text_of(value)[:WORDS_MAX]
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NonsenseError(f"its {name} is {value!r:.100}, not a number")
    if not 0 <= value <= NUMBER_MAX:  # nan is neither
        said = f"{value!r:.100}" if isinstance(value, float) else "out of all bounds" if value > 0 else "less than 0"
        raise _NonsenseError(f"its {name} is {said}: it is a number from 0 to {NUMBER_MAX:.0e}")
    return value
