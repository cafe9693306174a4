"""Completion of names by a shell: what a server knows, asked for a moment only. Nothing here ever fails."""

from __future__ import annotations

import os
from typing import Any, Final

import httpx2

from laneway.cli.client import URL, Server, Target, path_of
from laneway.cli.credentials import ASK, token_of
from laneway.cli.tables import line
from laneway.errors import LanewayError

__all__ = (
    "complete_approval",
    "complete_lane",
    "complete_message",
    "complete_run",
    "complete_session",
    "complete_task",
)

TIMEOUT_S: Final = 0.7
MOST: Final = 1_000
SESSIONS_MAX: Final = 5


def complete_session(incomplete: str) -> list[tuple[str, str]]:
    """Session keys."""
    return _matching(incomplete, ((item["session_key"], item.get("state", "")) for item in _items("/sessions")))


def complete_message(incomplete: str) -> list[tuple[str, str]]:
    """Messages that wait; those of the first few sessions."""
    waiting = [item["session_key"] for item in _items("/sessions", active=True) if item["waiting"]]
    found = [each for key in waiting[:SESSIONS_MAX] for each in _items(path_of("sessions", key, "pending"))]
    return _matching(incomplete, ((item["message_id"], line(item["text"], 40)) for item in found))


def complete_run(incomplete: str) -> list[tuple[str, str]]:
    """Runs that go on."""
    running = [item for item in _items("/sessions", active=True) if item["run_id"]]
    return _matching(incomplete, ((item["run_id"], item["session_key"]) for item in running))


def complete_lane(incomplete: str) -> list[tuple[str, str]]:
    """Lanes."""
    return _matching(incomplete, ((item["name"], f"{item['running']} run") for item in _items("/lanes")))


def complete_approval(incomplete: str) -> list[tuple[str, str]]:
    """Requests for approval."""
    return _matching(incomplete, ((item["approval_id"], item["action"]) for item in _items("/approvals")))


def complete_task(incomplete: str) -> list[tuple[str, str]]:
    """External tasks that have not ended; an id is one of any workspace."""
    found = _items("/tasks", workspace="*")
    return _matching(incomplete, ((item["task_id"], f"{item['tool']}, {item['state']}") for item in found))


def _matching(incomplete: str, found: Any) -> list[tuple[str, str]]:
    return [(name, note) for name, note in found if name.startswith(incomplete) and name.isprintable()]


def _items(path: str, **params: Any) -> list[dict[str, Any]]:
    environ = os.environ
    named = {name: (environ.get(f"LANEWAY_{name.upper()}", ""), False) for name in ("token", "token_file")}
    if named["token"][0] == ASK:
        return []  # whoever presses Tab is asked nothing
    try:
        target = Target(
            url=environ.get("LANEWAY_URL") or URL,
            token=token_of(named),
            workspace=environ.get("LANEWAY_WORKSPACE_NAME", ""),
            tenant=environ.get("LANEWAY_TENANT", ""),
            ca=environ.get("LANEWAY_CA", ""),
        )
        with Server(target, timeout=httpx2.Timeout(TIMEOUT_S)) as server:
            found = server.get(path, limit=MOST, **params)
        return [item for item in found["items"] if isinstance(item, dict)]
    except (LanewayError, KeyError, TypeError):
        return []
