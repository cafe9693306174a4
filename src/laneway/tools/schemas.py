"""What a tool may be called with: from the signature of a function, or from a JSON Schema that somebody gave.

Both check what a model wrote and give back plain JSON values, coerced to what the tool wants ("5" becomes 5), because
arguments are shown to policies and people and kept in the ledger before anything runs. Turning them into what the
function takes (dates, records …) is `bind`, at the last moment. pydantic and jsonschema are imported at first use.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, get_args, get_origin, get_type_hints

from laneway.dialogue import ToolContext, compact_json
from laneway.errors import ConfigError, ToolArgumentsError, text_of
from laneway.tools.docstrings import Described, describe_function

__all__ = (
    "Bound",
    "GivenParameters",
    "Parameters",
    "SignatureParameters",
    "describe_callable",
    "parameters_of",
    "parse_arguments",
    "place_of",
    "refusal",
    "shown_value",
    "signature_of",
    "unknown_argument",
)

PROBLEMS_MAX: Final = 10
SHOWN_MAX: Final = 80
_HUGE_NUMBER: Final = re.compile(r"\d[eE]\+?\d{3}")


class Bound(NamedTuple):
    """How a function is called."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Parameters(Protocol):
    """What a tool may be called with."""

    @property
    def schema(self) -> dict[str, Any]:
        """A JSON Schema of an object."""

    def check(self, arguments: str) -> dict[str, Any]:
        """Arguments as a model wrote them, parsed, held against the schema, and coerced; still JSON values."""

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Bound:
        """Arguments as the function takes them."""


def parameters_of(fn: Callable[..., Any], tool: str, given: Mapping[str, Any] | None) -> Parameters:
    """The parameters of a function: those of a given schema, else those of its signature."""
    return SignatureParameters(fn, tool) if given is None else GivenParameters(fn, tool, given)


def describe_callable(fn: Callable[..., Any]) -> Described:
    """What the docstring of a function, method, partial or callable object says."""
    plain = _plain(fn)
    doc = plain.__doc__ if inspect.isroutine(plain) or inspect.isclass(plain) else None
    if doc is None and not inspect.isroutine(plain):
        doc = inspect.getdoc(type(plain).__call__) or inspect.getdoc(type(plain))
    return describe_function(doc)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, without evaluating its annotations: what they name may be for type checkers only."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)


def _plain(fn: Any) -> Any:
    while isinstance(fn, partial):
        fn = fn.func
    return fn


# ---- reading what a model wrote -----------------------------------------------------------------------------


def parse_arguments(arguments: str, tool: str) -> dict[str, Any]:
    """The arguments as an object. No text at all is an empty one: models write that for tools without parameters."""
    from pydantic_core import from_json  # refuses half surrogate pairs, NaN, and nesting that would overflow a stack

    if not arguments.strip():
        return {}
    try:
        value = from_json(arguments.encode("utf-8"), allow_inf_nan=False)
    except UnicodeEncodeError:
        raise refusal(tool, ["they are not valid Unicode: a surrogate stands alone"]) from None
    except ValueError as error:
        raise refusal(tool, [f"they are not valid JSON: {error}"], hint="send one JSON object") from None
    if not isinstance(value, dict):
        found = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(value), "a number")
        raise refusal(tool, [f"they must be a JSON object, not {found}"])
    if _HUGE_NUMBER.search(arguments) and not _is_finite(value):
        raise refusal(tool, ["a number in them is too large"])
    return value


def _is_finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def refusal(tool: str, problems: Iterable[str], *, count: int = 0, hint: str = "") -> ToolArgumentsError:
    """That arguments do not fit, with the first problems: there may be thousands, and words for one take their time."""
    shown = list(islice(problems, PROBLEMS_MAX))
    if count > len(shown):
        shown.append(f"and {count - len(shown)} more")
    return ToolArgumentsError(
        f"the arguments of {tool} do not fit: " + "; ".join(shown), hint=hint, tool=tool, problems=tuple(shown)
    )


def unknown_argument(name: str, known: Sequence[str]) -> str:
    """That there is no such argument, and which was perhaps meant."""
    close = difflib.get_close_matches(name[:SHOWN_MAX], known, n=1, cutoff=0.5)
    if close:
        return f"there is no argument {shown_value(name)} (did you mean {close[0]!r}?)"
    return f"there is no argument {shown_value(name)} (there are: {', '.join(known) or 'none'})"


def shown_value(value: Any) -> str:
    """A value, short enough for a message."""
    if isinstance(value, (dict, list)):  # it may be huge
        return "an object" if isinstance(value, dict) else "a list"
    text = text_of(repr(value[: SHOWN_MAX + 1] if isinstance(value, str) else value))
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


def place_of(path: Sequence[Any]) -> str:
    """`items[0].name` of a path."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{text_of(part)}" for part in path)
    return text.removeprefix(".")[: SHOWN_MAX * 2]


# ---- by signature -------------------------------------------------------------------------------------------


class _Parameter(NamedTuple):
    """One parameter of a function."""

    name: str
    field: str  # in the model that checks, a name that cannot clash with anything; empty: the ToolContext goes here
    annotation: Any
    default: Any
    is_positional: bool


class _Reading(NamedTuple):
    """A signature, sorted out."""

    parameters: tuple[_Parameter, ...]  # what a model fills in
    injected: tuple[_Parameter, ...]  # where the ToolContext goes
    places: tuple[_Parameter, ...]  # those of both that go by place, in order
    is_open: bool  # whether it takes arguments of any name


class SignatureParameters:
    """Parameters by the signature of a function: annotations, defaults, docstring. Nothing is read before its use."""

    def __init__(self, fn: Callable[..., Any], tool: str) -> None:
        self._fn = fn
        self._tool = tool

    @cached_property
    def schema(self) -> dict[str, Any]:
        """A JSON Schema of an object."""
        from pydantic.json_schema import GenerateJsonSchema

        class Generator(GenerateJsonSchema):
            """Without titles, which repeat names, and silent about defaults that JSON cannot carry."""

            ignored_warning_kinds = frozenset({"non-serializable-default", "skipped-choice"})  # type: ignore[assignment]  # a set in pydantic, which is never changed

            def field_title_should_be_set(self, schema: Any) -> bool:
                return False

        try:
            schema: dict[str, Any] = self._model.model_json_schema(by_alias=True, schema_generator=Generator)
        except Exception as error:
            raise self._config_error(f"has a parameter that JSON cannot carry: {text_of(error)}") from error
        schema.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def check(self, arguments: str) -> dict[str, Any]:
        """Parse, validate, coerce; what was not given is not filled in."""
        raw = parse_arguments(arguments, self._tool)
        raw = self._without_nulls(raw)
        checked = self._validate(compact_json(raw))
        try:
            values: dict[str, Any] = checked.model_dump(
                mode="json", by_alias=True, exclude_unset=True, round_trip=True, warnings=False
            )
        except Exception:  # noqa: BLE001 - a type of the user's that cannot be written: what came in is JSON already
            return raw
        return values

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Bound:
        """Call by name, so that the order of parameters does not matter; by place where a function insists."""
        from pydantic.fields import FieldInfo

        checked = self._validate(compact_json(dict(arguments)))
        reading = self.reading
        args = [getattr(checked, each.field) if each.field else context for each in reading.places]
        kwargs: dict[str, Any] = dict(checked.__pydantic_extra__ or {})
        kwargs.update({each.name: context for each in reading.injected if not each.is_positional})
        for each in reading.parameters:
            is_needed = each.field in checked.model_fields_set or isinstance(each.default, FieldInfo)
            if is_needed and not each.is_positional:
                kwargs[each.name] = getattr(checked, each.field)
        return Bound(tuple(args), kwargs)

    def _without_nulls(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Without the nulls that only mean "not given": models send them for parameters that have a default."""
        if None not in arguments.values():
            return arguments
        properties = self.schema["properties"]
        optional = {each.name for each in self.reading.parameters if each.default is not inspect.Parameter.empty}
        unwanted = {name for name in optional if name in properties and not _takes_null(properties[name])}
        return {name: value for name, value in arguments.items() if value is not None or name not in unwanted}

    def _validate(self, arguments: str) -> Any:
        from pydantic import ValidationError

        try:
            return self._model.__pydantic_validator__.validate_json(arguments)
        except ValidationError as error:
            known = [parameter.name for parameter in self.reading.parameters]
            raise refusal(self._tool, _problems(error, known), count=error.error_count()) from None

    @cached_property
    def _model(self) -> Any:
        from pydantic import ConfigDict, Field, create_model
        from pydantic.fields import FieldInfo

        reading = self.reading
        described = describe_callable(self._fn).parameters
        fields: dict[str, Any] = {}
        for parameter in reading.parameters:
            options: dict[str, Any] = {"alias": parameter.name}
            if parameter.name in described and not _has_description(parameter):
                options["description"] = described[parameter.name]
            if isinstance(parameter.default, FieldInfo):
                fields[parameter.field] = (
                    parameter.annotation,
                    FieldInfo.merge_field_infos(parameter.default, Field(**options)),
                )
                continue
            if parameter.default is not inspect.Parameter.empty:
                options["default"] = parameter.default
            fields[parameter.field] = (parameter.annotation, Field(**options))
        config = ConfigDict(
            extra="allow" if reading.is_open else "forbid",
            allow_inf_nan=False,
            coerce_numbers_to_str=True,  # a name that happens to be 404
            protected_namespaces=(),
        )
        try:
            return create_model(self._tool, __config__=config, **fields)
        except Exception as error:
            raise self._config_error(f"has a parameter that cannot be checked: {text_of(error)}") from error

    @cached_property
    def reading(self) -> _Reading:
        """The signature, sorted out."""
        hints = self._hints()
        parameters: list[_Parameter] = []
        injected: list[_Parameter] = []
        places: list[_Parameter] = []
        is_open = False
        for number, each in enumerate(self._signature.parameters.values()):
            annotation = hints.get(each.name, Any)
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                is_open = True
                continue
            if each.kind is inspect.Parameter.VAR_POSITIONAL:
                raise self._config_error(f"takes *{each.name}, which a model cannot fill in", hint="take a list")
            is_positional = each.kind is inspect.Parameter.POSITIONAL_ONLY
            field = "" if _is_context(annotation) else f"p{number}"
            parameter = _Parameter(each.name, field, annotation, each.default, is_positional)
            (parameters if field else injected).append(parameter)
            if is_positional:
                places.append(parameter)
        return _Reading(tuple(parameters), tuple(injected), tuple(places), is_open)

    @cached_property
    def _signature(self) -> inspect.Signature:
        try:
            return signature_of(self._fn)
        except (TypeError, ValueError) as error:
            raise self._config_error(
                "has no signature that Python can tell", hint="give its parameters as a JSON Schema"
            ) from error

    def _hints(self) -> dict[str, Any]:
        """The annotations of the parameters, evaluated. That of the result is nobody's business and may be broken."""
        plain = _plain(self._fn)
        plain = plain if inspect.isroutine(plain) or inspect.isclass(plain) else type(plain).__call__
        plain = inspect.unwrap(getattr(plain, "__func__", plain))
        closure = getattr(plain, "__closure__", None) or ()
        names = plain.__code__.co_freevars if closure else ()
        inner: dict[str, Any] = {}
        for name, cell in zip(names, closure, strict=True):
            try:
                inner[name] = cell.cell_contents
            except ValueError:  # not filled yet
                continue

        def bare() -> None: ...

        empty = inspect.Parameter.empty
        bare.__annotations__ = {
            each.name: each.annotation for each in self._signature.parameters.values() if each.annotation is not empty
        }
        # People import ToolContext for the type checker only; it is known here.
        scope = {"ToolContext": ToolContext, **getattr(plain, "__globals__", {})}
        try:
            return get_type_hints(bare, globalns=scope, localns=inner, include_extras=True)
        except Exception as error:
            raise self._config_error(
                f"has an annotation that cannot be evaluated: {text_of(error)}",
                hint="import what it names at the top of the module, not for the type checker only",
            ) from error

    def _config_error(self, what: str, *, hint: str = "") -> ConfigError:
        return ConfigError(f"tool {self._tool!r} {what}", setting="tools", value=self._tool, hint=hint)


def _is_context(annotation: Any) -> bool:
    """`ToolContext`, also as `ToolContext | None` or `Annotated[ToolContext, …]`."""
    if annotation is ToolContext:
        return True
    return get_origin(annotation) is not None and ToolContext in get_args(annotation)


def _takes_null(schema: Mapping[str, Any]) -> bool:
    """Whether null may be a value of this; a schema that does not say a type takes anything."""
    kinds = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return any(kind.get("type", "null") == "null" and "const" not in kind and "enum" not in kind for kind in kinds)


def _has_description(parameter: _Parameter) -> bool:
    said = [getattr(each, "description", None) for each in (parameter.default, *get_args(parameter.annotation)[1:])]
    return any(isinstance(each, str) for each in said)


def _problems(error: Any, known: Sequence[str]) -> Iterator[str]:
    found = error.errors(include_url=False, include_context=False)
    # Versions of pydantic differ in their order: what is there and wrong, what is missing, what is too much.
    order = {"missing": 1, "extra_forbidden": 2}
    for each in sorted(found, key=lambda one: order.get(one["type"], 0)):
        place, kind = each["loc"], each["type"]
        if kind == "missing":
            yield f"{place_of(place)!r} is missing"
        elif kind == "extra_forbidden" and len(place) == 1:
            yield unknown_argument(str(place[0]), known)
        else:
            message = each["msg"].replace("Input should be", "must be").replace("Value error, ", "")
            yield f"{place_of(place)!r} {message[:300]}, not {shown_value(each['input'])}"


# ---- by a given schema --------------------------------------------------------------------------------------


class GivenParameters:
    """Parameters by a JSON Schema that whoever made the tool has written; checked with jsonschema, and not coerced.

    All of it is checked, and at once: the time that a `pattern` takes is up to its author. Schemas of strangers are for
    `mcp_schemas`.
    """

    def __init__(self, fn: Callable[..., Any], tool: str, schema: Mapping[str, Any]) -> None:
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            raise ConfigError(
                f"the parameters of tool {tool!r} must be a JSON Schema of an object",
                setting="parameters",
                value=schema,
            )
        self._tool = tool
        self._injected = SignatureParameters(fn, tool)
        self.schema: dict[str, Any] = {"type": "object", "properties": {}, **schema}

    def check(self, arguments: str) -> dict[str, Any]:
        """Parse and validate."""
        raw = parse_arguments(arguments, self._tool)
        self._validate(raw)
        return raw

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> Bound:
        """Arguments by name; the context where the function asks for it."""
        self._validate(dict(arguments))
        injected = self._injected.reading.injected
        args = tuple(context for each in injected if each.is_positional)
        return Bound(args, {**arguments, **{each.name: context for each in injected if not each.is_positional}})

    def _validate(self, arguments: dict[str, Any]) -> None:
        from referencing.exceptions import Unresolvable

        try:
            problems = list(islice(self._given_problems(arguments), PROBLEMS_MAX))
        except RecursionError:
            raise refusal(self._tool, ["they are nested too deeply"]) from None
        except Unresolvable as error:
            raise ConfigError(
                f"the parameters of tool {self._tool!r} refer to {text_of(error.ref)!r}, which is not in them",
                setting="parameters",
            ) from error
        if problems:
            raise refusal(self._tool, problems)

    def _given_problems(self, arguments: dict[str, Any]) -> Iterator[str]:
        errors = self._validator.iter_errors(arguments)
        known = list(self.schema["properties"])
        for error in errors:
            if error.validator == "additionalProperties" and not error.path and error.validator_value is False:
                yield from (unknown_argument(name, known) for name in arguments if name not in known)
            elif error.validator == "required":
                yield from (
                    f"{place_of([*error.path, name])!r} is missing"
                    for name in error.validator_value
                    if name not in error.instance
                )
            else:
                place = f"{place_of(list(error.path))!r}: " if error.path else ""
                yield place + text_of(error.message)[:300]

    @cached_property
    def _validator(self) -> Any:
        import jsonschema
        from referencing.jsonschema import EMPTY_REGISTRY

        kind = jsonschema.validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(self.schema)
        except jsonschema.SchemaError as error:
            raise ConfigError(
                f"the parameters of tool {self._tool!r} are not a valid JSON Schema: {text_of(error.message)[:300]}",
                setting="parameters",
            ) from error
        # With a registry of its own: the default one would fetch what a schema refers to over the network.
        return kind(self.schema, registry=EMPTY_REGISTRY)
