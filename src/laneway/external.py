"""External tasks: calls that somebody else makes, and what workers and the host say to each other about them.

```text
 pending ──claim──▶ leased ──start──▶ started ──complete──▶ completed | failed
    ▲                 │                  │
    └── lease ended ──┘                  ├── lease ended: read, idempotent → pending; write → unknown
 pending, leased, started: timed_out, withdrawn (unknown for a write that had started)
```
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from laneway.dialogue import ToolOutput, compact_json
from laneway.errors import UsageError, text_of
from laneway.records import Effect, Fields

__all__ = ("ExternalTask", "ExternalTaskResult", "Lease", "Progress", "TaskState")

OUTPUTS = ("output", "stdout", "content")
RESULT_MAX = 10_000_000
PROGRESS_MAX = 500
DEPTH_MAX = 100


class TaskState(StrEnum):
    """Where an external task is."""

    PENDING = "pending"  # for somebody to take it
    LEASED = "leased"  # a worker has taken it and has not begun
    STARTED = "started"  # a worker has said that it begins
    COMPLETED = "completed"
    FAILED = "failed"  # the worker says that it did not work
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"  # nobody wants it any more, and it had not begun
    UNKNOWN = "unknown"  # it had begun, and nobody knows how far it came

    @property
    def is_final(self) -> bool:
        """Whether it has ended. An `unknown` one can still be settled by a late result."""
        return self not in (TaskState.PENDING, TaskState.LEASED, TaskState.STARTED)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far somebody has come: a line of text, and 0 to 100 percent if that is known."""

    text: str = ""
    percent: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise UsageError(f"the text of a progress is text, not {self.text!r:.80}")
        object.__setattr__(self, "text", text_of(self.text)[:PROGRESS_MAX])
        percent = self.percent
        if percent is None:
            return
        if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
            raise UsageError(f"a progress is 0 to 100 percent, not {percent!r:.80}")


class ExternalTask(Fields):
    """A call that somebody else is to make, as it was when it was asked for; by item or by attribute, plain JSON.

    `payload` is the arguments of the tool `command_type`. `attempt` counts how often it was given to somebody, from 1.
    `idempotency_key` is the same at every attempt. `task["remaining_ms"]` is what was left when it was asked for;
    `task.remaining_ms()` is what is left now. `workspace` is the folder of the session on the host, `workspace_name`
    what the host calls it. `labels` are what a worker must have. `progress` is what the worker said last.
    """

    task_id: str
    session_id: str
    run_id: str
    lane: str
    command_type: str
    payload: dict[str, Any]
    timeout_ms: int
    attempt: int
    created_at: int
    workspace: str
    idempotency_key: str
    tenant_id: str
    correlation_id: str | None
    principal: str | None
    agent_template_id: str | None
    effect: str
    state: str
    worker: str
    workspace_name: str
    labels: list[str]
    progress: dict[str, Any] | None

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        remaining: Callable[[], int] | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        super().__init__(values)
        object.__setattr__(self, "_remaining", remaining)
        object.__setattr__(self, "_report", report)

    def remaining_ms(self) -> int:
        """How much time is left for it; 0 when there is none."""
        remaining: Callable[[], int] | None = self.__dict__.get("_remaining")
        return int(self["remaining_ms"]) if remaining is None else max(0, remaining())

    def is_timed_out(self) -> bool:
        """Whether its time is over."""
        return self.remaining_ms() <= 0

    def progress_is(self, text: str = "", percent: float | None = None) -> None:
        """Tell the host how far the work has come, from any thread. It hears of it with the next sign of life."""
        progress = Progress(text, percent)
        report: Callable[[Progress], None] | None = self.__dict__.get("_report")
        if report is not None:
            report(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTaskResult:
    """What became of an external task. `result` is text, a dict with `output` (or `stdout`, `content`), or any JSON."""

    success: bool = True
    result: Any = None
    error: str | None = None

    @classmethod
    def of(cls, value: object) -> Self:
        """What a worker says, in any of its forms; refuses what is none."""
        if isinstance(value, cls):
            found = value
        elif isinstance(value, Mapping) and value.keys() & {"success", "result", "error"}:
            strange = value.keys() - {"success", "result", "error"}
            if strange:
                raise UsageError(f"a result has success, result and error, not {sorted(map(str, strange))}")
            found = cls(**{"success": not value.get("error"), **value})
        else:  # the bare result of something that worked
            missed = _near_miss(value) if isinstance(value, Mapping) else ""
            if missed:
                raise UsageError(
                    f"{missed!r} is no word of a result: it has success, result and error",
                    hint="to give a result that looks like this, put it under result",
                )
            found = cls(result=value)
        found.check()
        return found

    def check(self) -> None:
        """Refuse what cannot be kept."""
        if not isinstance(self.success, bool):
            raise UsageError(f"success is True or False, not {self.success!r:.80}")
        if self.error is not None and not isinstance(self.error, str):
            raise UsageError(f"error is text, not {self.error!r:.80}")
        try:
            size = len(json.dumps([self.result, self.error], allow_nan=False, ensure_ascii=False).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"result must be JSON: {error}") from None
        if size > RESULT_MAX:
            raise UsageError(f"a result has at most {RESULT_MAX:,} bytes, not {size:,}", hint="send a part, or a link")
        if _is_deeper(self.result, DEPTH_MAX):
            raise UsageError(f"a result is nested at most {DEPTH_MAX} deep", hint="send it as text")

    def to_output(self) -> ToolOutput:
        """What the model gets to see."""
        result, code = self.result, None
        if isinstance(result, Mapping):
            code = result.get("exit_code")
            code = code if type(code) is int else None
            named = next((name for name in OUTPUTS if isinstance(result.get(name), str)), None)
            shown = result[named] if named is not None else compact_json(dict(result))
            stderr = result.get("stderr")
            if isinstance(stderr, str) and stderr:
                shown = f"{shown}\n{stderr}" if shown else stderr
        elif result is None:
            shown = ""
        else:
            shown = result if isinstance(result, str) else compact_json(result)
        if self.success:
            return ToolOutput(text=text_of(shown), is_error=bool(code), exit_code=code)
        said = text_of(self.error or "the worker says that it failed")
        return ToolOutput(text=f"{text_of(shown)}\n{said}".strip(), is_error=True, exit_code=code)


def _is_deeper(value: object, depth: int) -> bool:
    inside: Iterable[object] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    else:
        return False
    return depth == 0 or any(_is_deeper(each, depth - 1) for each in inside)


def _near_miss(value: Mapping[Any, Any]) -> str:
    """A word that was meant to say whether it worked; a no that is misspelled must not be a yes."""
    for name, said in value.items():
        word = str(name).casefold()
        if difflib.get_close_matches(word, ("success", "error"), n=1, cutoff=0.75):
            return str(name)
        if word in ("ok", "succeeded", "failed", "failure") and isinstance(said, bool):
            return str(name)
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A task that a worker has taken; `token` proves it. It ends `lease_ms` after the worker's last sign of life."""

    task: ExternalTask
    token: str
    lease_ms: int

    @property
    def effect(self) -> Effect:
        """What the task does to the world."""
        return Effect(self.task["effect"])
