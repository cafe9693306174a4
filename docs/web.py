"""The pages about the server, from the server itself: its routes and shapes (OpenAPI), its metrics, its settings."""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from docs.wording import WORDS, table

METHODS: Final = ("get", "post", "put", "patch", "delete")
JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
ALL: Final = "`operate` for all tenants"
SHARED: Final = f"{ALL}; while there are no tokens, anybody on this machine"


def application() -> Any:
    """The application of a gateway that is never opened."""
    from laneway.config import load_agent
    from laneway.gateway.app import create_app
    from laneway.gateway.service import Gateway
    from laneway.gateway.settings import GatewaySettings, WorkspaceSpec

    folder = Path(tempfile.gettempdir())
    spec = WorkspaceSpec(name="default", folder=folder, agent=load_agent("default_model: scripted\n", environ={}))
    return create_app(Gateway(GatewaySettings(store="memory:"), [spec], environ={}))


# ---- routes ------------------------------------------------------------------------------------------------


def http_blocks() -> Iterator[str]:
    """Every route by its noun, then the problems, then the shapes."""
    app = application()
    schema: dict[str, Any] = app.openapi()
    scopes = dict(scopes_of(app))
    words: Mapping[str, str] = WORDS["http"]["nouns"]
    found: dict[str, list[tuple[str, str]]] = {}
    for path, operations in schema["paths"].items():
        for method in METHODS:
            if method in operations:
                found.setdefault(operations[method]["tags"][0], []).append((method, path))
    if set(found) != set(words):
        raise SystemExit(f"docs/words.toml: http.nouns and the routes differ: {set(found) ^ set(words)}")
    yield from WORDS["http"]["begins"].strip().split("\n\n")
    yield table(["route", "what it does"], list(_listed(schema, [each for noun in words for each in found[noun]])))
    for noun, said in words.items():
        yield f"## {noun}"
        yield said
        for method, path in found[noun]:
            yield from route_blocks(schema, method, path, scopes[method, path])
    yield "## socket"
    yield WORDS["http"]["socket"].strip()
    yield from problem_blocks(schema)
    yield "## Shapes"
    for name in sorted(filter(is_shown, schema["components"]["schemas"]), key=shown_name):
        yield from shape_blocks(schema, name)


def _listed(schema: dict[str, Any], routes: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for method, path in routes:
        name = f"{method.upper()} {path}"
        anchor = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
        yield f"[`{name}`](#{anchor})", schema["paths"][path][method]["summary"]


def routes_of(app: Any) -> Iterator[Any]:
    """The routes of an application, those of its routers too."""
    from fastapi.routing import APIRoute

    todo = list(app.routes)
    while todo:
        route = todo.pop(0)
        if isinstance(route, APIRoute):
            yield route
        else:  # a router that was included, in FastAPI from 0.140 on
            todo += getattr(getattr(route, "original_router", None), "routes", [])


def scopes_of(app: Any) -> Iterator[tuple[tuple[str, str], str]]:
    """What each route asks of its caller, from its dependencies; words say it of those that have their own way."""
    words: Mapping[str, str] = WORDS["http"]["open"]
    for route in routes_of(app):
        short = re.sub(r":\w+}", "}", route.path)
        for path in (short, f"/v1{short}"):  # a router does not know where it was put
            for method in route.methods or ():
                yield (method.lower(), path), words.get(path) or _scope_of(route)


def _scope_of(route: Any) -> str:
    from laneway.gateway import deps

    source = inspect.getsource(route.endpoint)
    is_shared = "check_shared()" in source
    todo = list(route.dependant.dependencies)
    while todo:
        each = todo.pop()
        todo += each.dependencies
        if getattr(each.call, "__module__", "") == deps.__name__ and each.call.__name__ == "checked":
            scope = inspect.getclosurevars(each.call).nonlocals["scope"].value
            return f"`{scope}`" if not is_shared else ALL if scope == "operate" else SHARED
    itself = re.search(r"checked_caller\(\w+, Scope\.(\w+)\)", source)
    return f"`{itself[1].lower()}`" if itself else ""


def route_blocks(schema: dict[str, Any], method: str, path: str, scope: str) -> Iterator[str]:
    """One route: what it does, who may, what goes in and what comes out."""
    operation = schema["paths"][path][method]
    if not scope:
        raise SystemExit(f"docs/words.toml: http.open has to say who may {method.upper()} {path}")
    yield f"### {method.upper()} {path}"
    said = operation.get("description", "").strip()
    yield said or f"{operation['summary']}."
    answers = [
        f"{status} {shape_of(answer)}".strip()
        for status, answer in operation["responses"].items()
        if status.startswith("2")
    ]
    facts = [f"Scope: {scope}."]
    body = operation.get("requestBody", {}).get("content", {})
    if body:
        facts.append(f"Body: {' or '.join(type_of(each['schema']) for each in body.values())}.")
    facts.append(f"Answer: {', '.join(answers)}.")
    yield " ".join(facts)
    rows = []
    for each in operation.get("parameters", ()):
        if each["name"].lower() in ("laneway-workspace", "workspace"):
            continue  # said once, at the top
        says = each.get("description", "") or WORDS["http"]["parameters"].get(each["name"], "")
        rows.append(
            (f"`{each['name']}`", each["in"], type_of(each["schema"]), "yes" if each.get("required") else "", says)
        )
    if any(row[1] != "path" for row in rows):  # what stands in the address speaks for itself
        yield table(["parameter", "in", "type", "needed", "what it is"], rows)
    example = example_of(schema, body)
    if example is not None:
        yield f"```json\n{json.dumps(example, ensure_ascii=False)}\n```"


def example_of(schema: dict[str, Any], body: Mapping[str, Any]) -> Any:
    """A body that works, if its shape has one."""
    for each in body.values():
        named = each["schema"].get("$ref", "").rpartition("/")[2]
        examples = schema["components"]["schemas"].get(named, {}).get("examples")
        if examples:
            return examples[0]
    return None


def shape_of(answer: Mapping[str, Any]) -> str:
    """The shape of an answer."""
    kinds = answer.get("content", {})
    if not kinds:
        return ""
    if JSON in kinds:
        return type_of(kinds[JSON].get("schema", {}))
    return f"`{next(iter(kinds))}`"


def shown_name(name: str) -> str:
    """A name of a shape as people read it."""
    short = name.rpartition("__")[2] if "__" in name else name
    module = name.split("__")[-2] if "__" in name else ""
    return f"{module.title().replace('_', '')}{short}"


def is_shown(name: str) -> bool:
    """Whether a shape has a section: that of lists is told at the top."""
    return not name.startswith("Page_")


def anchor_of(name: str) -> str:
    """Where a shape is on the page."""
    return shown_name(name).lower()


def type_of(schema: Mapping[str, Any]) -> str:
    """A type in a few words, with a link if it has a section."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if not is_shown(name):
            return f"list of {type_of({'$ref': name.removeprefix('Page_').removesuffix('_')})}"
        return f"[{shown_name(name)}](#{anchor_of(name)})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            # Python keeps one object for `int | float` and `float | int`: who came first depends on what was imported.
            return " or ".join(
                sorted({type_of(each) for each in schema[union]}, key=lambda word: (word == "null", word))
            )
    if "allOf" in schema and len(schema["allOf"]) == 1:
        return type_of(schema["allOf"][0])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    kind = str(schema.get("type", "anything"))
    return words.get(kind, kind) + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum", schema.get("minLength")), schema.get("maximum", schema.get("maxLength"))
    if least is None and most is None:
        return ""
    if most is None:
        return f" from {least:,}"
    return f" up to {most:,}" if least is None else f", {least:,} to {most:,}"


def shape_blocks(schema: dict[str, Any], name: str) -> Iterator[str]:
    """One shape: its fields, and an example."""
    shape = schema["components"]["schemas"][name]
    yield f"### {shown_name(name)}"
    said = shape.get("description", "").strip()
    if said:
        yield said
    if "enum" in shape:
        yield f"One of {type_of(shape)}."
        return
    needed = set(shape.get("required", ()))
    rows = []
    for field, kind in shape.get("properties", {}).items():
        default = "" if field in needed or kind.get("default") in (None, "", [], {}) else f"`{kind['default']!r}`"
        rows.append((f"`{field}`", type_of(kind), default, kind.get("description", "")))
    filled = any(row[2] for row in rows)
    names = ["field", "type", "default", "what it is"]
    if not filled:
        names.remove("default")
        rows = [(row[0], row[1], row[3]) for row in rows]  # type: ignore[misc]
    if rows:
        yield table(names, rows)
    for example in shape.get("examples", ())[:1]:
        yield f"```json\n{json.dumps(example, ensure_ascii=False)}\n```"


def problem_blocks(schema: dict[str, Any]) -> Iterator[str]:
    """What goes wrong, by status."""
    from laneway.gateway.problems import TITLES

    words: Mapping[str, str] = WORDS["http"]["problems"]
    if set(words) != {str(status) for status in TITLES}:
        raise SystemExit(f"docs/words.toml: http.problems has other statuses: {set(words) ^ set(map(str, TITLES))}")
    yield "## Problems"
    yield WORDS["http"]["problem"].strip()
    rows = [(str(status), title, words[str(status)]) for status, title in TITLES.items()]
    yield table(["status", "title", "when"], rows)


# ---- numbers -----------------------------------------------------------------------------------------------


def metrics_table() -> str:
    """Everything at `/metrics`, from the registry."""
    from laneway.telemetry.metrics import Metrics, Moment

    metrics = Metrics(lambda: 0)
    moment = Moment()
    moment.lane("main")
    metrics.text(moment)
    labels = {each._name: each._labelnames for each in vars(metrics).values() if hasattr(each, "_labelnames")}  # noqa: SLF001 - no other way to ask
    rows = []
    for family in sorted(metrics.registry.collect(), key=lambda each: each.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        known = labels.get(family.name) or sorted({key for one in family.samples for key in one.labels} - {"le"})
        words = ", ".join(f"`{label}`" for label in known) or "–"
        rows.append((f"`{name}`", family.type, words, family.documentation))
    return table(["name", "type", "labels", "what it is"], rows)


def scopes_table() -> str:
    """What each scope of a token is for."""
    from laneway.gateway.access import IMPLIED, Scope

    words: Mapping[str, str] = WORDS["scopes"]
    if set(words) != {scope.value for scope in Scope}:
        raise SystemExit(f"docs/words.toml: other scopes: {set(words) ^ {scope.value for scope in Scope}}")
    rows = []
    for scope in Scope:
        also = ", ".join(f"`{each.value}`" for each in sorted(IMPLIED[scope] - {scope}))
        rows.append((f"`{scope.value}`", also or "–", words[scope.value]))
    return table(["scope", "has also", "what it is for"], rows)
