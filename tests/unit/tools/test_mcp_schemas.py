"""Schemas of MCP servers: what is checked of them, and that no schema holds up the loop or refuses what is right."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from referencing.jsonschema import EMPTY_REGISTRY

from laneway.errors import ToolArgumentsError
from laneway.tools.mcp_schemas import ForeignParameters

OLD = "http://json-schema.org/draft-07/schema#"


def check(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    return ForeignParameters("t", {"type": "object", **schema}).check(json.dumps(arguments))


def about_x(schema: Any, x: Any, **more: Any) -> dict[str, Any]:
    return check({"properties": {"x": schema}, **more}, {"x": x})


def doubling(word: str, depth: int = 22) -> dict[str, Any]:
    """A kilobyte of definitions that are millions of steps."""
    defs: dict[str, Any] = {
        f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(depth)
    }
    return {**defs, f"d{depth}": {"type": "object"}}


# ---- what must not hold up anybody ----

EVIL = "^(a+)+$"
BAIT = "a" * 60 + "!"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"pattern": EVIL}}},
        {"patternProperties": {EVIL: {"type": "integer"}}},
        {"patternProperties": {EVIL: {}}, "additionalProperties": False},
        {"patternProperties": {EVIL: {}}, "unevaluatedProperties": False},
        {"propertyNames": {"pattern": EVIL}},
        {"properties": {"x": {"format": "regex", "allOf": [{"pattern": EVIL}]}}},
        {"properties": {"x": {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": EVIL}}},
        {"properties": {"x": {"$ref": "#/$defs/e"}}, "$defs": {"e": {"anyOf": [{"pattern": EVIL}, {"not": {}}]}}},
        {"properties": {"x": {"not": {"pattern": EVIL}}}},
        {"properties": {"x": {"if": {"pattern": EVIL}, "else": False}}},
    ],
)
def test_a_pattern_of_a_stranger_is_never_run(schema: dict[str, Any]) -> None:
    arguments = {"x": BAIT, BAIT: BAIT}
    assert check(schema, arguments) == arguments


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_references_that_double_end_after_a_bound(word: str) -> None:
    assert about_x({"$ref": "#/$defs/d0"}, {}, **{"$defs": doubling(word)}) == {"x": {}}


def test_alternatives_that_double_and_never_fit_end_after_a_bound() -> None:
    assert about_x({"$ref": "#/$defs/d0"}, 1, **{"$defs": doubling("anyOf")}) == {"x": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#"},
        {"properties": {"x": {"$ref": "#/properties/x"}}},
        {"$dynamicAnchor": "a", "$dynamicRef": "#a"},
        {"$recursiveAnchor": True, "$recursiveRef": "#"},
        {"additionalProperties": {"$ref": "#/additionalProperties"}},
    ],
)
def test_references_that_never_end_forbid_nothing(schema: dict[str, Any]) -> None:
    assert check(schema, {"x": {}}) == {"x": {}}


def test_a_schema_may_be_deeper_than_a_stack() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(5_000):
        deep = {"properties": {"a": deep}, "allOf": [deep]}
    assert ForeignParameters("t", deep).check('{"a": {"a": 1}}') == {"a": {"a": 1}}


def test_what_comes_after_the_bound_is_left_to_the_server() -> None:
    items: list[Any] = [1] * 20_000
    schema = {"items": {"type": "integer", "minimum": 0}}
    assert len(about_x(schema, [*items, "no"])["x"]) == 20_001
    with pytest.raises(ToolArgumentsError, match=r"'x\[0\]'"):
        about_x(schema, ["no", *items])


def test_nothing_is_fetched_and_what_is_elsewhere_forbids_nothing() -> None:
    for away in ("https://x.example/s", "file:///etc/passwd", "other", "#anchor", "#/no/such/place", "#/properties/9"):
        assert about_x({"$ref": away}, 5) == {"x": 5}


def test_a_refusal_stays_short_whatever_the_schema_says() -> None:
    names = [f"name-{n}" for n in range(3_000)]
    with pytest.raises(ToolArgumentsError) as caught:
        check(
            {"properties": {name: {"enum": names} for name in names}, "required": names, "additionalProperties": False},
            {f"other-{n}": n for n in range(1_000)} | {"name-1": "x" * 10_000},
        )
    assert len(str(caught.value)) < 5_000
    with pytest.raises(ToolArgumentsError) as caught:
        check({"properties": {"a" * 50_000: {}}, "additionalProperties": False}, {"b" * 50_000: 1})
    assert len(str(caught.value)) < 1_000


# ---- what is checked ----


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": "string"}, 5, "'x': 5 is not of type string"),
        ({"type": ["integer", "null"]}, True, "'x': True is not of type integer, null"),
        ({"type": "integer"}, 1.5, "'x': 1.5 is not of type integer"),
        ({"enum": ["a", "b"]}, "c", "'x': 'c' is not one of 'a', 'b'"),
        ({"const": 3}, 4, "'x': 4 is not one of 3"),
        ({"minimum": 1}, 0, "'x': 0 is less than 1"),
        ({"maximum": 1}, 2, "'x': 2 is more than 1"),
        ({"exclusiveMinimum": 1}, 1, "'x': 1 is not more than 1"),
        ({"exclusiveMaximum": 1}, 1, "'x': 1 is not less than 1"),
        ({"maxLength": 2}, "abc", "'x': it has 3 characters, not at most 2"),
        ({"minItems": 1}, [], "'x': it has 0 items, not at least 1"),
        ({"items": {"type": "integer"}}, [1, "a"], "'x[1]': 'a' is not of type integer"),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "null"}}, ["a", 1], "'x[1]': 1 is not of type null"),
        ({"required": ["y"]}, {}, "'x.y' is missing"),
        ({"additionalProperties": False}, {"z": 1}, "there is no argument 'x.z' (there are: none)"),
        ({"additionalProperties": {"type": "string"}}, {"z": 1}, "'x.z': 1 is not of type string"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "", "'x': it has 0 characters"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 5, "'x': 5 fits none of the 2 things that it may be"),
        ({"$ref": "#/$defs/a~1b"}, 5, "'x': 5 is not of type string"),
        (False, 5, "'x': there must be nothing"),
    ],
)
def test_what_a_model_gets_wrong_is_said(schema: Any, value: Any, said: str) -> None:
    with pytest.raises(ToolArgumentsError, match=re.escape(said)):
        about_x(schema, value, **{"$defs": {"a/b": {"type": "string"}}})


def test_a_missing_and_a_misspelt_argument_are_named() -> None:
    with pytest.raises(ToolArgumentsError) as caught:
        check({"properties": {"path": {}}, "required": ["path"], "additionalProperties": False}, {"pth": 1})
    assert "'path' is missing" in str(caught.value)
    assert "did you mean 'path'" in str(caught.value)


def test_alternatives_that_only_a_pattern_tells_apart_are_both_taken() -> None:
    """Read without its patterns, "exactly one of these" would refuse every text."""
    schema = {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}
    assert about_x(schema, "abc") == {"x": "abc"}


def test_an_argument_called_id_does_not_end_the_check() -> None:
    with pytest.raises(ToolArgumentsError, match=r"'x.id': 'one' is not of type integer"):
        check(
            {
                "properties": {"id": {}, "x": {"$ref": "#/$defs/x"}},
                "$defs": {"x": {"properties": {"id": {"type": "integer"}}}},
            },
            {"x": {"id": "one"}},
        )


def test_beside_a_reference_old_drafts_say_nothing() -> None:
    schema = {"properties": {"x": {"$ref": "#/$defs/any", "type": "string"}}, "$defs": {"any": {}}}
    assert check({"$schema": OLD, **schema}, {"x": 5}) == {"x": 5}
    with pytest.raises(ToolArgumentsError, match="is not of type string"):
        check(schema, {"x": 5})


# ---- the law ----

NAMES = st.sampled_from(["a", "b", "id"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.5, 1.0]) | st.sampled_from(["", "a", "bb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
KINDS = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    few = st.integers(0, 2)
    words: dict[str, st.SearchStrategy[Any]] = {
        "type": KINDS | st.lists(KINDS, min_size=1, max_size=2, unique=True),
        "properties": st.dictionaries(NAMES, inner, max_size=2),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=1),
        "additionalProperties": inner,
        "unevaluatedProperties": st.booleans(),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=2),
        "pattern": st.sampled_from(["^a", "b$"]),
        "uniqueItems": st.booleans(),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
        "const": VALUES,
        **dict.fromkeys(("items", "contains", "not", "if", "then", "else"), inner),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), some),
        **dict.fromkeys(("minimum", "exclusiveMaximum", "maxLength", "minItems", "maxProperties"), few),
    }
    pairs = st.sampled_from(sorted(words)).flatmap(lambda word: st.tuples(st.just(word), words[word]))
    return st.lists(pairs, min_size=1, max_size=3).map(dict)


PLAIN = st.builds(lambda kind: {"type": kind}, KINDS)
SCHEMAS = st.recursive(st.booleans() | PLAIN, _schemas, max_leaves=6)


@given(schema=SCHEMAS, value=VALUES, defs=st.fixed_dictionaries({"a": PLAIN, "b": PLAIN}))
def test_what_the_whole_schema_takes_is_taken(schema: Any, value: Any, defs: dict[str, Any]) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": defs}
    is_taken = jsonschema.Draft202012Validator(whole, registry=EMPTY_REGISTRY).is_valid({"x": value})
    try:
        ForeignParameters("t", whole).check(json.dumps({"x": value}))
    except ToolArgumentsError:
        assert not is_taken
