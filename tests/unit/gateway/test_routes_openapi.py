"""The OpenAPI: names that stay, problems that are documented, examples of what is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.gateway.app import create_app
from tests.gateway_stage import gateway_in


def described(folder: Path) -> dict[str, Any]:
    """The OpenAPI of a gateway that nobody has opened."""
    return create_app(gateway_in(folder)).openapi()


@pytest.mark.slow
def test_operations_have_names_of_their_own_and_say_what_can_go_wrong(tmp_path: Path) -> None:
    schema = described(tmp_path)
    found = {path: each for path, each in schema["paths"].items() if path.startswith("/v1/")}
    operations = [operation for each in found.values() for operation in each.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert {"messages_send", "sessions_show", "runs_cancel", "approvals_answer", "dead_letters_retry"} <= set(names)
    for operation in operations:
        responses = operation["responses"]
        assert "default" in responses or {"400", "401", "404", "422"} <= set(responses), operation["operationId"]
    shared = schema["components"]["responses"]["Problem404"]["content"]
    assert list(shared) == ["application/problem+json"]
    assert "HTTPValidationError" not in schema["components"]["schemas"]
    assert all("__" not in name for name in schema["components"]["schemas"])  # two shapes of one name get that


@pytest.mark.slow
def test_what_is_sent_to_our_routes_has_an_example(tmp_path: Path) -> None:
    schema = described(tmp_path)
    wanted = (
        "NewMessage",
        "Edit",
        "Move",
        "QueueChange",
        "Settlement",
        "LaneOrder",
        "Verdict",
        "NewSchedule",
        "Mending",
    )
    assert [name for name in wanted if not schema["components"]["schemas"][name].get("examples")] == []
