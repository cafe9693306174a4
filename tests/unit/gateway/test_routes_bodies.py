"""What is sent has the types that the OpenAPI names: a yes in another shape is no yes."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, get_args

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from laneway.gateway.routes import ROUTERS

WRONG: dict[str, list[Any]] = {"boolean": ["yes", "on", "true", 1, 0, 1.0], "integer": ["1", True, 1.5, [1]]}


def bodies() -> set[type[BaseModel]]:
    """The models of everything that is sent to a route."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    sent = [route.body_field.field_info.annotation for route in routes if route.body_field is not None]
    return {kind for each in sent for kind in get_args(each) or (each,) if kind not in (None, NoneType)}


def flags_and_numbers() -> Iterator[tuple[type[BaseModel], str, str]]:
    for model in sorted(bodies(), key=lambda each: each.__name__):
        for name, facts in model.model_json_schema()["properties"].items():
            kinds = [facts.get("type"), *(each.get("type") for each in facts.get("anyOf", ()))]
            if "number" in kinds:  # half of something is a number, too
                continue
            yield from ((model, name, kind) for kind in kinds if kind in WRONG)


@pytest.mark.parametrize(("model", "name", "kind"), list(flags_and_numbers()))
def test_flags_and_numbers_are_taken_in_their_own_type_only(model: type[BaseModel], name: str, kind: str) -> None:
    for value in WRONG[kind]:
        with pytest.raises(ValidationError) as caught:
            model.model_validate({name: value})
        assert name in {error["loc"][0] for error in caught.value.errors() if error["loc"]}, value


def test_there_are_such_fields() -> None:
    names = {(model.__name__, name) for model, name, _ in flags_and_numbers()}
    assert {("Verdict", "approve"), ("LaneOrder", "paused"), ("Move", "position"), ("ChatRequest", "stream")} <= names
