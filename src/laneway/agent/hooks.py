"""Hooks: code of the user that is told what happens in a session, and may stop some of it.

A gate (`GATES`) is asked, and fails closed: a hook that raises, takes too long or answers nonsense says no, and the
reason names it. An observer is told; whatever goes wrong with it is logged and told as `hook_failed`, and stops nobody.

Every call has a task of its own, so that its time is over when it is over: what does not end then is cancelled and
left to itself, and whatever it still answers is not heard. A sync handler runs on a thread, which cannot be ended;
a hook with too many such calls behind it is not called any more, which for a gate means no.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from laneway.agent.hearing import trace_of
from laneway.agent.tool_calls import INSIDE
from laneway.agent_events import AgentEvent, HookFailedEvent
from laneway.errors import ConfigError, describe, text_of
from laneway.kernel.hooks import (
    GATES,
    OBSERVERS,
    SILENT,
    HookAction,
    HookRule,
    HookVerdict,
    NonsenseError,
    changed,
    hook_rule,
    own_copy,
    read_answer,
)
from laneway.policies import Hook
from laneway.runtime.executor import needs_thread

__all__ = ("HookVerdict", "Hooks")

_log = logging.getLogger("laneway")

Handler = Callable[[Mapping[str, Any]], Any]

PUT_OFF_MAX = 10  # how often hooks may say `retry` about one thing
LOST_MAX = 16  # calls of one hook that go on after their time
LATER_MAX = 1_000  # calls that nobody waits for, at the same time
DEPTH_MAX = 8
_DEPTH: ContextVar[int] = ContextVar("laneway_hook_depth", default=0)


class _FailedError(Exception):
    """A hook has failed; the text says how."""


class _Call:
    """One call of a hook: whether its code still runs, whoever waits for it."""

    __slots__ = ("has_begun", "has_ended", "is_lost")

    def __init__(self) -> None:
        self.has_begun = False
        self.has_ended = False
        self.is_lost = False


class _Registered:
    """A hook with its code."""

    __slots__ = ("handler", "is_threaded", "lost", "place", "rule")

    def __init__(self, rule: HookRule, handler: Handler, number: int) -> None:
        self.rule = rule
        self.handler = handler
        self.is_threaded = needs_thread(handler)
        self.place = (rule.config.priority, number)
        self.lost: set[_Call] = set()

    def begin(self, call: _Call) -> None:
        call.has_begun, call.has_ended = True, False

    def end(self, call: _Call) -> None:
        call.has_ended = True
        self.lost.discard(call)

    def lose(self, call: _Call) -> None:
        """Its time is over; perhaps it ends on its thread at this very moment, hence the second look."""
        call.is_lost = True
        if call.has_begun and not call.has_ended:
            self.lost.add(call)
            if call.has_ended:
                self.lost.discard(call)


class Hooks:
    """The hooks of a session and of its sub-agents. It may be changed at any time, from any thread, by hooks too.

    `run_in_thread` calls a function on a thread; `on_event` is told of hooks that fail; `labels` go into each payload.
    """

    def __init__(
        self,
        hooks: Iterable[Hook] = (),
        *,
        run_in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
        on_event: Callable[[AgentEvent], object] | None = None,
        labels: Mapping[str, Any] | None = None,
    ) -> None:
        self._run_in_thread = run_in_thread
        self._on_event = on_event
        self.labels = dict(labels or {})
        self._lock = threading.Lock()
        self._hooks: dict[str, _Registered] = {}
        self._by_event: dict[str, tuple[_Registered, ...]] = {}  # in the order in which they are called
        self._number = 0
        self._later: dict[asyncio.Task[None], str] = {}  # by session: observers that nobody waits for
        self._left: set[asyncio.Task[Any]] = set()  # cancelled, and not ended yet
        for each in hooks:
            if each.hook_id in self._hooks:
                said = f"two hooks have the id {each.hook_id!r}"
                raise ConfigError(said, setting="hooks", value=each.hook_id, hint="give each an id of its own")
            self.register(each.hook_id, each.event_type, each.matcher, each.config, each.handler)

    # ---- which there are ----

    def register(
        self,
        hook_id: str,
        event_type: str,
        matcher: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        handler: Handler | None = None,
    ) -> None:
        """Add a hook, or put it in the place of the one with this id. It counts from the next event on."""
        rule = hook_rule(hook_id, event_type, matcher, config)
        if not callable(handler):
            what = "a hook without a handler does nothing" if handler is None else "handler must be a function"
            raise ConfigError(f"{what}: {hook_id!r}", setting="handler", value=handler, hint="handler=lambda event: …")
        if rule.event_type in SILENT:
            _log.warning("hook %r is never called: nothing here causes %s", hook_id, rule.event_type)
        with self._lock:
            before = self._hooks.get(hook_id)
            self._number += 1
            new = _Registered(rule, handler, before.place[1] if before is not None else self._number)
            if before is not None:
                new.lost = before.lost  # a new hook under the old id does not hide threads that hang
                self._remove(before)
            self._hooks[hook_id] = new
            others = self._by_event.get(rule.event_type, ())
            at = bisect.bisect(others, new.place, key=lambda each: each.place)
            self._by_event[rule.event_type] = (*others[:at], new, *others[at:])

    def unregister(self, hook_id: str) -> bool:
        """Take a hook away: it is not called any more, not even about an event that is just being told."""
        with self._lock:
            hook = self._hooks.pop(hook_id, None)
            if hook is not None:
                self._remove(hook)
        return hook is not None

    def _remove(self, hook: _Registered) -> None:
        event = hook.rule.event_type
        self._by_event[event] = tuple(each for each in self._by_event[event] if each is not hook)

    def __len__(self) -> int:
        return len(self._hooks)

    def wants(self, event_type: str) -> bool:
        """Whether any hook is there for an event."""
        return bool(self._by_event.get(event_type))

    def tools(self) -> list[tuple[str, str]]:
        """The hooks that are for certain tools, and what their matchers say of them."""
        return [(name, each.rule.matcher.tool) for name, each in self._hooks.items() if each.rule.matcher.tool]

    def _now(self, hook: _Registered) -> _Registered | None:
        """What has become of a hook since the event began: a gate that is replaced meanwhile leaves no gap."""
        found = self._hooks.get(hook.rule.hook_id)
        return found if found is not None and found.rule.event_type == hook.rule.event_type else None

    # ---- gates ----

    async def ask(self, event_type: str, payload: Mapping[str, Any]) -> HookVerdict:
        """Ask the hooks of an event that may be stopped, one after the other; the first that does not go on decides."""
        assert event_type in GATES, event_type
        told = {**self.labels, **payload}
        decided = HookVerdict()
        for each in self._by_event.get(event_type, ()):
            hook = self._now(each)
            if hook is None:
                continue
            verdict = await self._verdict(hook, told)
            if verdict.action is not HookAction.CONTINUE:
                return verdict
            if verdict.arguments is not None:
                decided = HookVerdict(arguments=verdict.arguments, hook_id=hook.rule.hook_id)
                told = changed(event_type, told, verdict.arguments)
        return decided

    async def decide(
        self, event_type: str, payload: Mapping[str, Any], *, wait: Callable[[int], Awaitable[object]]
    ) -> HookVerdict:
        """Ask until no hook says `retry`, but not for ever; `wait` waits so many milliseconds between."""
        for _ in range(PUT_OFF_MAX):
            verdict = await self.ask(event_type, payload)
            if verdict.action is not HookAction.RETRY:
                return verdict
            await wait(verdict.delay_ms)
        return HookVerdict(action=HookAction.BLOCK, reason=f"a hook has put it off {PUT_OFF_MAX} times")

    async def _verdict(self, hook: _Registered, told: Mapping[str, Any]) -> HookVerdict:
        try:
            if not hook.rule.matcher.fits(told):
                return HookVerdict()
            return read_answer(await self._call(hook, told), hook.rule)
        except Exception as error:  # noqa: BLE001 - whatever it is, the gate stays closed
            said = self._failed(hook, told, error)
        return HookVerdict(action=HookAction.BLOCK, reason=f"the hook {hook.rule.hook_id!r} failed: {said}")

    # ---- observers ----

    async def tell(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Tell the hooks of an event, one after the other, and wait for those that want it. Nothing stops here."""
        assert event_type in OBSERVERS, event_type
        told = {**self.labels, **payload}
        for each in self._by_event.get(event_type, ()):
            hook = self._now(each)
            if hook is not None and hook.rule.config.async_execution:
                self._tell_later(hook, own_copy(told))
            elif hook is not None:
                await self._tell(hook, told)

    async def _tell(self, hook: _Registered, told: Mapping[str, Any]) -> None:
        try:
            if hook.rule.matcher.fits(told):
                await self._call(hook, told)
        except Exception as error:  # noqa: BLE001 - an observer stops nobody
            self._failed(hook, told, error)

    def _tell_later(self, hook: _Registered, told: Mapping[str, Any]) -> None:
        if len(self._later) >= LATER_MAX:
            self._failed(hook, told, _FailedError(f"{LATER_MAX:,} calls of hooks are under way already"))
            return
        name = f"laneway-hook-later {hook.rule.hook_id}"
        task = asyncio.get_running_loop().create_task(self._tell(hook, told), name=name)
        self._later[task] = text_of(told.get("session_id", ""))
        task.add_done_callback(self._later.pop)

    async def wait_told(self, session_id: str) -> None:
        """Wait for the observers of a session that nobody has waited for; each ends when its time is over."""
        tasks = [task for task, session in self._later.items() if session == session_id]
        if tasks:
            await asyncio.wait(tasks)

    # ---- calling one ----

    async def _call(self, hook: _Registered, told: Mapping[str, Any]) -> Any:
        """What it answers; again if it fails, as often as it wants that."""
        for left in range(hook.rule.config.max_retries, -1, -1):
            try:
                return await self._call_once(hook, told)
            except Exception as error:
                if not left:
                    raise
                _log.info("hook %r failed and is called again: %s", hook.rule.hook_id, _said(error))
        raise AssertionError("a hook is called at least once")

    async def _call_once(self, hook: _Registered, told: Mapping[str, Any]) -> Any:
        if len(hook.lost) >= LOST_MAX:
            raise _FailedError(f"{len(hook.lost)} calls of it have not ended in their time and still run")
        if _DEPTH.get() >= DEPTH_MAX:
            raise _FailedError(f"hooks have caused each other {DEPTH_MAX} deep")
        event = {"event_type": hook.rule.event_type, "payload": own_copy(told)}
        call, limit_ms = _Call(), hook.rule.config.timeout_ms
        work = self._run(hook, event, call)
        task = asyncio.get_running_loop().create_task(work, name=f"laneway-hook {hook.rule.hook_id}")
        try:
            await asyncio.wait((task,), timeout=limit_ms / 1000)
        except asyncio.CancelledError:
            self._leave(hook, task, call)
            raise
        if not task.done():
            self._leave(hook, task, call)
            raise _FailedError(f"it took longer than {limit_ms} ms")
        if task.cancelled():
            raise _FailedError("it raised CancelledError")
        return task.result()

    def _leave(self, hook: _Registered, task: asyncio.Task[Any], call: _Call) -> None:
        """Nobody waits for it any more."""
        hook.lose(call)
        task.cancel()
        self._left.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[Any]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains

    async def _run(self, hook: _Registered, event: dict[str, Any], call: _Call) -> Any:
        payload = event["payload"]
        session = (text_of(payload.get("tenant_id") or "default"), text_of(payload.get("session_id", "")))
        INSIDE.set((*INSIDE.get(), session))  # for this task: a hook that would wait for its own session is refused
        _DEPTH.set(_DEPTH.get() + 1)
        try:
            answer: Any
            if hook.is_threaded:
                answer = await self._run_in_thread(functools.partial(_on_thread, hook, event, call))
                if not inspect.isawaitable(answer):
                    return answer
            else:
                answer = hook.handler(event)
            hook.begin(call)
            try:
                return await answer
            finally:
                hook.end(call)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # `exit()` would end the loop of everybody
            raise _FailedError(f"it raised {describe(error)}") from error

    def _failed(self, hook: _Registered, told: Mapping[str, Any], error: Exception) -> str:
        rule, said = hook.rule, _said(error)
        is_ours = isinstance(error, _FailedError | NonsenseError) and error.__cause__ is None
        trace = "" if is_ours else "\n" + trace_of(error)  # where we noticed it says nothing about the hook
        _log.warning("hook %r failed on %s: %s%s", rule.hook_id, rule.event_type, said, trace)
        if self._on_event is not None:
            self._on_event(
                HookFailedEvent(
                    session_id=text_of(told.get("session_id", "")),
                    run_id=text_of(told.get("run_id", "")),
                    hook_id=rule.hook_id,
                    hook_event=rule.event_type,
                    error=said,
                    blocked=rule.is_gate,
                )
            )
        return said


def _on_thread(hook: _Registered, event: dict[str, Any], call: _Call) -> Any:
    hook.begin(call)
    try:
        answer = hook.handler(event)
    except Exception as error:
        if isinstance(error, StopIteration):  # no future can carry it
            raise _FailedError(f"it raised {describe(error)}") from error
        raise
    except BaseException as error:
        raise _FailedError(f"it raised {describe(error)}") from error
    finally:
        hook.end(call)
    if call.is_lost and inspect.iscoroutine(answer):
        answer.close()
    return answer


def _said(error: Exception) -> str:
    return text_of(error) if isinstance(error, _FailedError | NonsenseError) else describe(error)
