"""Functions as tools: `@tool`, and `Toolbox`, the tools of an agent by name.

A tool made here can still be called as the function it was. Nothing is read of a function's parameters before somebody
asks for the `spec` or checks a call: decorating costs nothing and imports nothing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, cast, overload

from laneway.dialogue import Intent, ToolContext, ToolOutput, ToolSpec
from laneway.errors import ConfigError
from laneway.ports import Tool
from laneway.records import Effect, check_labels
from laneway.tools.outputs import ToolRefusedError, as_output, cap_output, in_thread

if TYPE_CHECKING:
    from laneway.tools.schemas import Parameters

__all__ = ("FunctionTool", "Reconcile", "Toolbox", "tool")

P = ParamSpec("P")
R = TypeVar("R")
Reconcile = Callable[..., Any]
"""`(intent)` or `(intent, context)`, sync or async; returns the outcome, or None when it cannot be known."""

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FunctionTool(Generic[P, R]):
    """A function as a tool. With `parameters` (a JSON Schema) the function gets its arguments by name, as they are."""

    __name__: str

    def __init__(  # noqa: PLR0913 - the public surface is a contract: keyword options, not option records
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        lane: str | None = None,
        effect: Effect | str = Effect.WRITE,
        parallel: bool = False,
        interruptible: bool = True,
        timeout_ms: int | None = None,
        reconcile: Reconcile | None = None,
        labels: Sequence[str] = (),
        background: bool = False,
    ) -> None:
        if not callable(fn):
            raise ConfigError(f"a tool must be a function, not {type(fn).__name__}", setting="tools", value=fn)
        if isinstance(fn, FunctionTool):  # the same function under other options
            fn = fn._fn  # noqa: SLF001 - of its own kind
        self.name = _checked_name(name if name is not None else _name_of(fn))
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise self._config_error("yields; a tool returns its result", hint="show progress with context.report")
        if reconcile is not None and not callable(reconcile):
            raise self._config_error("has a reconcile that is not a function")
        if timeout_ms is not None and (type(timeout_ms) is not int or timeout_ms <= 0):
            raise self._config_error(f"has timeout_ms={timeout_ms!r}, which is not a whole number above 0")
        if lane is not None and (not isinstance(lane, str) or not lane.strip()):
            raise self._config_error(f"has lane={lane!r}, which is not the name of a lane")
        self._fn: Callable[P, R] = fn
        self._description = description
        self._given = parameters
        self._lane = lane.lower() if lane else None
        self._effect = self._checked_effect(effect)
        self._parallel = parallel
        self._interruptible = interruptible
        self._timeout_ms = timeout_ms
        self._labels = check_labels(labels, setting=f"labels of tool {self.name!r}")
        self._background = background
        self._reconcile = reconcile
        self._owner = ""  # the class, if it is a method that was not taken from an instance
        self._is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
            getattr(fn, "__call__", None)  # noqa: B004 - its kind is asked for, not whether there is one
        )
        update_wrapper(self, fn, updated=())

    # ---- as the function it was ------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, without any checks."""
        return self._fn(*args, **kwargs)

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner.__qualname__

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool[..., R]:
        if instance is None or not hasattr(self._fn, "__get__"):
            return self
        return FunctionTool(
            self._fn.__get__(instance, owner),
            name=self.name,
            description=self._description,
            parameters=self._given,
            lane=self._lane,
            effect=self._effect,
            parallel=self._parallel,
            interruptible=self._interruptible,
            timeout_ms=self._timeout_ms,
            reconcile=self._reconcile,
            labels=self._labels,
            background=self._background,
        )

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    # ---- as a tool ------------------------------------------------------------------------------------------

    @cached_property
    def spec(self) -> ToolSpec:
        """What it is, for the model and for the scheduler."""
        from laneway.tools.schemas import describe_callable

        description = self._description
        return ToolSpec(
            name=self.name,
            description=describe_callable(self._fn).text if description is None else inspect.cleandoc(description),
            parameters=self._parameters.schema,
            lane=self._lane,
            effect=self._effect,
            parallel=self._parallel,
            interruptible=self._interruptible,
            timeout_ms=self._timeout_ms,
            labels=self._labels,
            background=self._background,
        )

    @cached_property
    def _parameters(self) -> Parameters:
        from laneway.tools.schemas import parameters_of

        if self._owner:
            raise self._config_error(
                f"is a method of {self._owner}", hint=f"take it from an instance: {self._owner}(...).{self.name}"
            )
        return parameters_of(self._fn, self.name, self._given)

    def check(self, arguments: str) -> dict[str, Any]:
        """The arguments of a call as JSON values, coerced to the types of the tool; raises `ToolArgumentsError`."""
        return self._parameters.check(arguments)

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call the function with arguments that were checked; blocking functions run on a thread."""
        bound = self._parameters.bind(arguments, context)
        try:
            output = as_output(
                await _call(partial(self._fn, *bound.args, **bound.kwargs), context, is_async=self._is_async)
            )
        except ToolRefusedError as error:
            output = ToolOutput(text=str(error), is_error=True)
        return await cap_output(output, context)

    @property
    def can_reconcile(self) -> bool:
        """Whether it can find out afterwards what became of a call."""
        return self._reconcile is not None

    async def reconcile(self, intent: Intent, context: ToolContext) -> ToolOutput | None:
        """What became of a call that was cut off; None when it cannot be known."""
        if self._reconcile is None:
            return None
        fn = self._reconcile
        args = (intent, context) if _takes_two(fn) else (intent,)
        value = await _call(partial(fn, *args), context, is_async=inspect.iscoroutinefunction(fn))
        return None if value is None else await cap_output(as_output(value), context)

    def _checked_effect(self, effect: Effect | str) -> Effect:
        try:
            return Effect(effect)
        except ValueError:
            known = ", ".join(repr(str(each)) for each in Effect)
            raise self._config_error(f"has effect={effect!r}; there are {known}") from None

    def _config_error(self, what: str, *, hint: str = "") -> ConfigError:
        return ConfigError(f"tool {self.name!r} {what}", setting="tools", value=self.name, hint=hint)


async def _call(fn: Callable[[], Any], context: ToolContext, *, is_async: bool) -> Any:
    if is_async:
        return await fn()
    value = await in_thread(context, fn)
    return await value if inspect.isawaitable(value) else value  # a plain function that returns a coroutine


def _takes_two(fn: Reconcile) -> bool:
    from laneway.tools.schemas import signature_of

    try:
        signature_of(fn).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # it has no signature that Python can tell
        return True
    return True


def _name_of(fn: Any) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def _checked_name(name: object) -> str:
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise ConfigError(
        f"{name!r} cannot be the name of a tool: 1 to 64 of A-Z, a-z, 0-9, _ and - are allowed",
        setting="name",
        value=name,
        hint="give it one with @tool(name=...)",
    )


@overload
def tool(fn: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    lane: str | None = None,
    effect: Effect | str = Effect.WRITE,
    parallel: bool = False,
    interruptible: bool = True,
    timeout_ms: int | None = None,
    reconcile: Reconcile | None = None,
    labels: Sequence[str] = (),
    background: bool = False,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a tool: `@tool`, or `@tool(lane="query", effect="read")`.

    The name is that of the function, what it is for comes from its docstring, its parameters from the signature. A
    parameter annotated `ToolContext` gets the context of the call and is not shown to the model.

    Args:
        fn: The function, sync or async.
        **options: `name`, `description`; `lane` (by default decided by the name); `effect`: `read` (may run again at
            any time), `idempotent` (may run again with the same `context.key`), `write` (never runs twice by itself);
            `parallel` (neighbouring calls may run together); `interruptible`; `timeout_ms`; `reconcile`, a function of
            the intent that finds out what became of a call that was cut off; `labels` that a worker must have to run
            it elsewhere; `background` (a call that takes long may go on while the model does).
    """
    if fn is not None:
        return FunctionTool(fn, **options)
    _check_options(options)
    return partial(FunctionTool, **options)


def _check_options(options: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(FunctionTool).parameters if name not in {"fn", "parameters"}]
    for name in options:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "options are: " + ", ".join(known)
            raise ConfigError(f"@tool has no option {name!r}", setting=name, hint=hint)


class Toolbox(Mapping[str, Tool]):
    """Tools by name, in the order they were given. Plain functions become tools."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            self.add(each)

    @classmethod
    def tools(cls, tools: Iterable[Tool | Callable[..., Any]]) -> Toolbox:
        """A toolbox of these."""
        return cls(tools)

    def add(self, item: Tool | Callable[..., Any]) -> Tool:
        """Add one; a second one of the same name is refused, because a model could not tell them apart."""
        made = _as_tool(item)
        name = made.name if isinstance(made, FunctionTool) else _checked_name(made.spec.name)
        if name in self._tools:
            raise ConfigError(
                f"there are two tools {name!r}", setting="tools", value=name, hint="name one of them otherwise"
            )
        self._tools[name] = made
        return made

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self._tools)})"

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What every tool is, in order."""
        return tuple(each.spec for each in self._tools.values())


def _as_tool(item: Any) -> Tool:
    if isinstance(item, FunctionTool):
        return item
    if not inspect.isclass(item) and all(hasattr(item, name) for name in ("spec", "check", "run", "reconcile")):
        return cast(Tool, item)
    if callable(item) and not inspect.isclass(item):
        return FunctionTool(item)
    raise ConfigError(
        f"{item!r} is not a tool", setting="tools", value=item, hint="give a function, or something made with @tool"
    )
