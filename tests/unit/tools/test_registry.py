"""Functions as tools: what a model is shown of them, what it may call them with, and what it gets back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from laneway.dialogue import Intent, ToolContext, ToolOutput
from laneway.errors import ConfigError, ToolArgumentsError
from laneway.records import Effect
from laneway.tools import FunctionTool, Toolbox, ToolRefusedError, lane_of, tool

if TYPE_CHECKING:
    from pathlib import Path

    from nowhere import Missing  # type: ignore[import-not-found]

CONTEXT = ToolContext(workspace=".")


class Place(BaseModel):
    city: str
    country: str = "AT"


@tool(lane="query", effect="read")
async def lookup(name: str, count: int = 3) -> str:
    """Find a name in the directory.

    Looks twice.

    Args:
        name: Who to look for,
            first name first.
        count (int): How many at most.

    Returns:
        What was found.
    """
    return f"{name} x{count}"


@tool
def travel(place: Place, day: date, tags: list[str] | None = None) -> dict[str, Any]:
    return {"city": place.city, "in": place.country, "year": day.year, "tags": tags}


async def run(item: FunctionTool[..., Any], arguments: str, context: ToolContext = CONTEXT) -> ToolOutput:
    return await item.run(item.check(arguments), context)


# ---- what a model is shown ----------------------------------------------------------------------------------


def test_the_spec_of_a_tool_comes_from_its_signature_and_its_docstring() -> None:
    spec = lookup.spec
    assert spec.name == "lookup"
    assert spec.description == "Find a name in the directory.\n\nLooks twice."
    assert (spec.lane, spec.effect, spec.parallel, spec.interruptible) == ("query", Effect.READ, False, True)
    assert spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "description": "Who to look for, first name first."},
            "count": {"type": "integer", "default": 3, "description": "How many at most."},
        },
        "required": ["name"],
    }


def test_a_tool_writes_unless_it_says_otherwise() -> None:
    assert travel.spec.effect is Effect.WRITE
    assert travel.spec.lane is None


@pytest.mark.parametrize(
    "doc",
    [
        "Do it.\n\n:param int a: The first.\n:param b: The\n    second.\n:returns: Nothing.",
        "Do it.\n\nParameters\n----------\na : int\n    The first.\nb\n    The second.\n\nReturns\n-------\nint",
        "Do it.\n\nArguments:\n    a: The first.\n    b: The second.\n\nRaises:\n    Error: Never.",
    ],
)
def test_parameters_are_described_in_every_style_of_docstring(doc: str) -> None:
    def fn(a: int, b: int) -> None: ...

    fn.__doc__ = doc
    spec = tool(fn).spec
    assert spec.description == "Do it."
    assert [each["description"] for each in spec.parameters["properties"].values()] == ["The first.", "The second."]


def test_what_an_annotation_says_is_kept_and_wins_over_the_docstring() -> None:
    @tool
    def fn(
        a: Annotated[int, Field(ge=1, description="said here")], b: int = Field(2, le=9), c: Literal["x"] = "x"
    ) -> str:
        """Do it.

        Args:
            a: not said
            b: said there
        """
        return f"{a} {b} {c}"

    properties = fn.spec.parameters["properties"]
    assert properties["a"] == {"type": "integer", "minimum": 1, "description": "said here"}
    assert properties["b"] == {"type": "integer", "maximum": 9, "default": 2, "description": "said there"}
    with pytest.raises(ToolArgumentsError, match=r"'a' must be greater than or equal to 1, not 0; 'b' must be less"):
        fn.check('{"a": 0, "b": 10}')


async def test_a_default_that_is_a_field_is_filled_in() -> None:
    @tool
    def fn(b: int = Field(2, le=9)) -> str:
        return str(b)

    assert (await run(fn, "{}")).text == "2"


def test_names_that_pydantic_keeps_for_itself_can_be_parameters() -> None:
    @tool
    def fn(schema: str, copy: str, model_config: str, _hidden: str, json: str = "") -> str:
        return schema

    assert list(fn.spec.parameters["properties"]) == ["schema", "copy", "model_config", "_hidden", "json"]
    arguments = {"schema": "a", "copy": "b", "model_config": "c", "_hidden": "d"}
    assert fn.check(json.dumps(arguments)) == arguments


def test_the_context_is_not_shown_wherever_it_stands() -> None:
    @tool
    def first(context: ToolContext, a: int) -> None: ...

    @tool
    def last(a: int, *, where: ToolContext | None = None) -> None: ...

    assert list(first.spec.parameters["properties"]) == list(last.spec.parameters["properties"]) == ["a"]


# ---- what it may be called with -----------------------------------------------------------------------------


@pytest.mark.parametrize(("raw", "count"), [('"5"', 5), ("5", 5), ("5.0", 5)])
def test_arguments_are_coerced_to_what_the_tool_takes(raw: str, count: int) -> None:
    assert lookup.check(f'{{"name": "ada", "count": {raw}}}') == {"name": "ada", "count": count}


def test_a_null_for_what_has_a_default_means_that_it_was_not_given() -> None:
    @tool
    def fn(a: str, b: int = 1, c: int | None = 2, d: Any = 3, e: Literal["x"] = "x") -> None: ...

    arguments = '{"a": "x", "b": null, "c": null, "d": null, "e": null}'
    assert fn.check(arguments) == {"a": "x", "c": None, "d": None}
    with pytest.raises(ToolArgumentsError, match="'a' must be a valid string, not None"):
        fn.check('{"a": null, "b": null}')


def test_a_number_is_a_text_where_a_text_is_wanted() -> None:
    assert lookup.check('{"name": 404}') == {"name": "404"}


def test_the_same_function_can_be_a_tool_twice() -> None:
    again = tool(name="again", effect="write")(lookup)
    assert (again.spec.name, again.spec.effect) == ("again", Effect.WRITE)
    assert again.spec.parameters == lookup.spec.parameters


def test_checked_arguments_are_json_and_only_what_was_given() -> None:
    raw = {"place": {"city": "Graz"}, "day": "2024-02-29"}
    assert travel.check(json.dumps(raw)) == raw


async def test_the_function_gets_what_its_annotations_say() -> None:
    output = await run(travel, '{"place": {"city": "Graz"}, "day": "2024-02-29", "tags": ["a"]}')
    assert json.loads(output.text) == {"city": "Graz", "in": "AT", "year": 2024, "tags": ["a"]}


def test_an_argument_error_names_every_wrong_field_and_what_it_must_be() -> None:
    with pytest.raises(ToolArgumentsError) as caught:
        travel.check('{"place": {"city": 5}, "day": "yesterday", "tags": ["a", {}], "extra": 1}')
    text = str(caught.value)
    assert "'place.city' must be a valid string, not 5" in text
    assert "'day' must be a valid date" in text
    assert "'tags[1]' must be a valid string, not an object" in text
    assert "there is no argument 'extra' (there are: place, day, tags)" in text
    assert caught.value.tool == "travel"  # type: ignore[attr-defined]  # facts are attributes
    assert len(caught.value.problems) == 4  # type: ignore[attr-defined]  # facts are attributes


def test_an_unknown_argument_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        ToolArgumentsError, match=r"'name' is missing; there is no argument 'nmae' \(did you mean 'name'"
    ):
        lookup.check('{"nmae": "ada"}')


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{", "not valid JSON"),
        ("[1]", "must be a JSON object, not a list"),
        ("null", "must be a JSON object, not null"),
        ("3", "must be a JSON object, not a number"),
        ('"{}"', "must be a JSON object, not a text"),
        ('{"name": "a", "count": NaN}', "not valid JSON"),
        ('{"name": "a", "count": 1e999}', "too large"),
        ('{"name": "\\ud800"}', "not valid JSON"),
        ('{"name": "\ud800"}', "a surrogate stands alone"),
        ('{"name": ' + "[" * 10_000 + "]" * 10_000 + "}", "recursion limit"),
        ("{" + '"a":{' * 10_000, "recursion limit"),
        ('{"name": "a", "count": ' + "9" * 5000 + "}", "out of range"),
        ("\x00", "not valid JSON"),
    ],
)
def test_arguments_that_are_no_arguments_are_refused(arguments: str, says: str) -> None:
    with pytest.raises(ToolArgumentsError, match="the arguments of lookup do not fit") as caught:
        lookup.check(arguments)
    assert says in str(caught.value)


def test_a_text_with_a_nul_is_an_argument_like_any_other() -> None:
    assert lookup.check('{"name": "a\\u0000b"}') == {"name": "a\x00b"}


def test_no_text_at_all_means_no_arguments() -> None:
    @tool
    def fn() -> None: ...

    assert fn.check("") == fn.check(" \n") == fn.check("{}") == {}


def test_an_error_about_a_thousand_arguments_stays_short() -> None:
    with pytest.raises(ToolArgumentsError) as caught:
        lookup.check(json.dumps({f"x{i}" * 50: "y" * 100 for i in range(1000)}))
    assert len(str(caught.value)) < 3000
    assert "and 991 more" in str(caught.value)


def test_infinity_does_not_come_in_where_anything_is_allowed() -> None:
    @tool
    def fn(value: Any, **rest: Any) -> None: ...

    with pytest.raises(ToolArgumentsError, match="too large"):
        fn.check('{"value": [1e999]}')


async def test_arguments_of_any_name_go_to_a_function_that_takes_them() -> None:
    @tool
    def fn(context: ToolContext, /, **rest: Any) -> str:
        return f"{context.call_id} {sorted(rest.items())}"

    context = ToolContext(workspace=".", call_id="c1")
    assert (await run(fn, '{"b": 1, "context": 2}', context)).text == "c1 [('b', 1), ('context', 2)]"
    assert fn.spec.parameters["additionalProperties"] is True


async def test_parameters_that_go_by_place_are_passed_by_place() -> None:
    @tool
    def fn(a: int, where: ToolContext, b: int = 7, /, c: int = 8) -> str:
        return f"{a} {where.call_id} {b} {c}"

    assert (await run(fn, '{"a": 1, "c": 2}', ToolContext(workspace=".", call_id="id"))).text == "1 id 7 2"


async def test_running_with_arguments_that_were_never_checked_is_refused() -> None:
    with pytest.raises(ToolArgumentsError, match="'name' is missing"):
        await lookup.run({}, CONTEXT)


# ---- what can be a tool -------------------------------------------------------------------------------------


async def test_a_tool_can_still_be_called_as_the_function() -> None:
    assert await lookup("ada", count=1) == "ada x1"
    assert travel(Place(city="Graz"), date(2024, 1, 1))["year"] == 2024
    assert lookup.__name__ == "lookup"
    assert (lookup.__doc__ or "").startswith("Find")


class Directory:
    """Names."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @tool(effect="read")
    def find(self, name: str) -> str:
        """Find one."""
        return self.prefix + name

    @staticmethod
    @tool
    def fixed(name: str) -> str:
        return name

    async def __call__(self, name: str) -> str:
        """Call it."""
        return f"called {self.prefix}{name}"


async def test_a_method_is_a_tool_of_its_instance() -> None:
    find = Directory(">").find
    assert find.spec.name == "find"
    assert find.spec.effect is Effect.READ
    assert list(find.spec.parameters["properties"]) == ["name"]
    assert (await run(find, '{"name": "x"}')).text == ">x"
    assert (await run(Directory.fixed, '{"name": "x"}')).text == "x"


def test_a_method_without_its_instance_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is a method of Directory \(take it from an instance"):
        _ = Directory.find.spec


async def test_partials_and_callable_objects_are_tools() -> None:
    async def greet(greeting: str, name: str) -> str:
        """Greet somebody."""
        return f"{greeting} {name}"

    greeter = tool(partial(greet, "hello"))
    assert greeter.spec.description == "Greet somebody."
    assert list(greeter.spec.parameters["properties"]) == ["name"]
    assert (await run(greeter, '{"name": "ada"}')).text == "hello ada"
    called = tool(Directory("!"))
    assert (called.spec.name, called.spec.description) == ("Directory", "Call it.")
    assert (await run(called, '{"name": "x"}')).text == "called !x"


async def test_a_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    @tool
    def later(name: str) -> Awaitable[str]:
        return lookup(name)

    assert (await run(later, '{"name": "ada"}')).text == "ada x3"


async def test_what_only_the_type_checker_knows_hurts_nobody_unless_it_is_a_parameter() -> None:
    @tool
    def good(name: str) -> Missing:
        return name

    @tool
    def bad(name: Path) -> str:
        return str(name)

    assert (await run(good, '{"name": "x"}')).text == "x"
    with pytest.raises(ConfigError, match="tool 'bad' has an annotation that cannot be evaluated: name 'Path'"):
        _ = bad.spec


def test_parameters_that_a_model_cannot_fill_in_are_refused() -> None:
    @tool
    def stars(*names: str) -> None: ...

    @tool
    def handle(stream: Callable[[], None]) -> None: ...

    @tool
    def foreign(thing: asyncio.Event) -> None: ...

    with pytest.raises(ConfigError, match=r"takes \*names, which a model cannot fill in \(take a list\)"):
        _ = stars.spec
    with pytest.raises(ConfigError, match="tool 'handle' has a parameter that JSON cannot carry"):
        _ = handle.spec
    with pytest.raises(ConfigError, match="tool 'foreign' has a parameter that cannot be checked"):
        _ = foreign.spec


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "a/b", "a\n"])
def test_a_name_that_no_provider_accepts_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a tool"):
        tool(name=name)(lambda: None)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="'<lambda>' cannot be the name of a tool"):
        tool(lambda: None)
    assert tool(name="nothing")(lambda: None).spec.name == "nothing"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effect": "reads"}, "has effect='reads'; there are 'read', 'idempotent', 'write'"),
        ({"timeout_ms": 0}, "has timeout_ms=0"),
        ({"timeout_ms": True}, "has timeout_ms=True"),
        ({"lane": " "}, "has lane=' '"),
        ({"reconcile": 3}, "has a reconcile that is not a function"),
        ({"efect": "read"}, r"@tool has no option 'efect' \(did you mean 'effect'\?\)"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tool(**options)(lookup)


def test_a_generator_is_no_tool() -> None:
    def pieces() -> Any:
        yield 1

    async def async_pieces() -> Any:
        yield 1

    for fn in (pieces, async_pieces):
        with pytest.raises(ConfigError, match=r"yields; a tool returns its result"):
            tool(fn)


# ---- what comes back ----------------------------------------------------------------------------------------


@dataclass
class Record:
    a: int


class Shy:
    def __repr__(self) -> str:
        return "shy"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, ""),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
        (True, "true"),
        (Record(a=1), '{"a":1}'),
        (date(2024, 1, 2), '"2024-01-02"'),
        (Place(city="Graz"), '{"city":"Graz","country":"AT"}'),
        (Shy(), "shy"),
        (b"\xff\xfe", "b'\\xff\\xfe'"),
        ("half \ud800 pair", "half \\ud800 pair"),
        ("nul \x00", "nul \u2400"),
    ],
)
async def test_whatever_a_function_returns_becomes_text(value: Any, text: str) -> None:
    @tool
    async def fn() -> Any:
        return value

    assert (await run(fn, "{}")).text == text


async def test_an_output_that_contains_itself_is_still_an_answer() -> None:
    @tool
    async def fn() -> Any:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    assert (await run(fn, "{}")).text == "[[...]]"


async def test_an_output_of_its_own_is_kept_as_it_is() -> None:
    @tool
    async def fn() -> ToolOutput:
        return ToolOutput(text="no", is_error=True, exit_code=3)

    assert await run(fn, "{}") == ToolOutput(text="no", is_error=True, exit_code=3)


async def test_a_refusal_is_an_answer_and_any_other_error_a_failure() -> None:
    @tool
    async def fn(kind: str) -> None:
        raise ToolRefusedError("not today") if kind == "refuse" else KeyError("bug")

    assert await run(fn, '{"kind": "refuse"}') == ToolOutput(text="not today", is_error=True)
    with pytest.raises(KeyError):
        await run(fn, '{"kind": "fail"}')


async def test_a_blocking_function_runs_where_the_host_says() -> None:
    calls: list[str] = []

    async def in_thread(fn: Callable[..., Any], *args: Any) -> Any:
        calls.append("thread")
        return fn(*args)

    context = ToolContext(workspace=".", in_thread=in_thread)
    assert (await run(travel, '{"place": {"city": "a"}, "day": "2024-01-01"}', context)).text.startswith("{")
    assert (await run(lookup, '{"name": "ada"}', context)).text == "ada x3"
    assert calls == ["thread"]


async def test_a_blocking_function_that_stops_an_iteration_does_not_hang_its_caller() -> None:
    @tool
    def fn() -> None:
        next(iter([]))

    with pytest.raises(RuntimeError, match="the function raised StopIteration"):
        await run(fn, "{}")


# ---- reconcile ----------------------------------------------------------------------------------------------

INTENT = Intent(run_id="r", call_id="c", tool="pay", arguments={"amount": 3}, key="k")


async def test_reconcile_is_asked_with_the_intent_and_the_context_if_it_wants_it() -> None:
    def short(intent: Intent) -> str | None:
        return f"paid {intent.arguments['amount']}" if intent.key == "k" else None

    async def long(intent: Intent, context: ToolContext) -> ToolOutput:
        return ToolOutput(text=context.session_id, is_error=True)

    def pay(amount: int) -> None: ...

    context = ToolContext(workspace=".", session_id="s")
    one, two, none = tool(reconcile=short)(pay), tool(reconcile=long)(pay), tool(pay)
    assert await one.reconcile(INTENT, context) == ToolOutput(text="paid 3")
    assert await two.reconcile(INTENT, context) == ToolOutput(text="s", is_error=True)
    assert await none.reconcile(INTENT, context) is None
    assert (one.can_reconcile, none.can_reconcile) == (True, False)


# ---- given schemas ------------------------------------------------------------------------------------------

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "max-results": {"type": "integer", "maximum": 5}},
    "required": ["query"],
    "additionalProperties": False,
}


async def _remote(context: ToolContext, /, **arguments: Any) -> str:
    return f"{context.call_id} {arguments}"


def remote(schema: Mapping[str, Any] = SCHEMA) -> FunctionTool[..., Any]:
    return FunctionTool(name="search-it", description="Search.", parameters=schema, fn=_remote, effect="read")


async def test_a_tool_with_a_given_schema_shows_it_and_gets_its_arguments_as_they_are() -> None:
    assert remote().spec.parameters == SCHEMA
    assert (await run(remote(), '{"query": "x", "max-results": 2}')).text == " {'query': 'x', 'max-results': 2}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{}", "'query' is missing"),
        ('{"query": 5}', "'query': 5 is not of type 'string'"),
        ('{"query": "x", "max-results": 9}', "'max-results': 9 is greater than the maximum of 5"),
        ('{"query": "x", "max_results": 9}', "there is no argument 'max_results' (did you mean 'max-results'?)"),
        ('{"query": NaN}', "not valid JSON"),
    ],
)
def test_arguments_are_held_against_a_given_schema(arguments: str, says: str) -> None:
    with pytest.raises(ToolArgumentsError) as caught:
        remote().check(arguments)
    assert says in str(caught.value)


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="are not a valid JSON Schema"):
        remote({"type": "object", "properties": {"a": {"type": "strong"}}}).check('{"a": 1}')
    with pytest.raises(ConfigError, match="must be a JSON Schema of an object"):
        _ = remote({"type": "array"}).spec


def test_a_schema_that_contains_itself_ends() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/x"}}}
    with pytest.raises(ToolArgumentsError, match="nested too deeply"):
        remote(schema).check('{"a": 1}')


def test_what_a_schema_refers_to_is_never_fetched() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    with pytest.raises(ConfigError, match=r"refer to 'http://127.0.0.1:9/schema.json', which is not in them"):
        remote(schema).check('{"a": 1}')


# ---- toolboxes ----------------------------------------------------------------------------------------------


def test_a_toolbox_keeps_tools_by_name_in_order_and_makes_tools_of_functions() -> None:
    def plain(a: int) -> int:
        return a

    box = Toolbox([lookup, plain, Directory("").find])
    assert list(box) == ["lookup", "plain", "find"]
    assert [spec.name for spec in box.specs] == ["lookup", "plain", "find"]
    assert box["lookup"] is lookup
    assert len(Toolbox.tools([plain])) == 1
    assert "nothing" not in box


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are two tools 'lookup'"):
        Toolbox([lookup, tool(name="lookup")(travel)])


@pytest.mark.parametrize("item", [3, "read", None, Directory, object()])
def test_what_is_no_tool_is_refused(item: Any) -> None:
    with pytest.raises(ConfigError, match="is not a tool"):
        Toolbox([item])


# ---- lanes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "lane"),
    [
        *(
            (name, "query")
            for name in ("read", "glob", "grep", "ls", "search", "list_files", "web_fetch", "web_search")
        ),
        *((name, "control") for name in ("pause", "resume", "cancel")),
        *((name, "execute") for name in ("bash", "write", "edit", "patch", "mcp__files__read", "anything", "Read")),
    ],
)
def test_a_tool_runs_in_the_lane_of_its_name(name: str, lane: str) -> None:
    assert lane_of(tool(name=name)(lambda: None).spec) == lane


def test_a_tool_may_choose_its_lane_and_the_configuration_may_overrule_it() -> None:
    assert lane_of(lookup.spec) == "query"
    assert lane_of(lookup.spec, {"lookup": "Execute", "other": "control"}) == "execute"


# ---- imports ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_decorating_a_function_imports_nothing_heavy() -> None:
    program = """
import sys
from laneway.tools import tool, Toolbox
@tool(effect="read")
def fn(a: int) -> str: ...
Toolbox([fn])
heavy = {"pydantic", "pydantic_core", "jsonschema", "regex", "httpx2", "httpcore2"} & set(sys.modules)
print(sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
