"""A server whose calls are made by workers, real workers for it, and dead letters in its store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from laneway.rows import Batch, Owner
from laneway.stores import open_store
from tests.browser.stage import Served
from tests.server_process import LANEWAY, environment, until
from tests.worker_process import HANDLERS, WorkerProcess

__all__ = ("CONFIG", "FILES", "bury", "let_go", "start_worker", "task_of")

CONFIG: Final = """
default_model: scripted
permissions: {default_decision: allow}
tool_effects: {wait: idempotent}
queue:
  mode: followup
  lane_handlers:
    execute: {mode: external, ordered: false, timeout_ms: 600000, lease_ms: 120000, labels: [crane]}
    query: {mode: external, ordered: false, timeout_ms: 600000, lease_ms: 120000}
lanes: {main: 8}
gateway: {drain_ms: 500}
"""
FILES: Final = {"handlers.py": HANDLERS}


def start_worker(server: Served, name: str, *options: str) -> WorkerProcess:
    """A worker that holds its calls until `let_go`; whoever starts it ends it."""
    command = [str(LANEWAY), "worker", "--connect", server.url, "--name", name, "--handlers", "handlers.py", *options]
    env = environment(server.folder, PLANT_HOME=str(server.folder), PLANT_NAME=name)
    worker = WorkerProcess(command, {**env, "LANEWAY_TOKEN": server.token("worker", tenant="*")}, server.folder)
    return worker.ready()


def let_go(server: Served, label: str) -> None:
    """Let the calls of a label end."""
    (Path(server.folder) / f"go-{label}").touch()


def task_of(server: Served, session: str) -> dict[str, Any]:
    """Wait for the task of a session."""

    def found() -> dict[str, Any]:
        items = server.api("GET", f"/v1/tasks?session={session}")["items"]
        return items[0] if items else {}

    task: dict[str, Any] = until(found, f"a task of {session}")
    return task


def bury(server: Served, letters: Iterable[tuple[str, str, str]]) -> list[str]:
    """Make messages dead letters: session, text and what went wrong. The server is away meanwhile; their ids.

    A turn that can never be begun takes a broken store or a broken agent: what the inbox leaves then is put there.
    """
    sent = [(server.send(session, text)["message_id"], error) for session, text, error in letters]

    def is_over(message_id: str) -> bool:
        return bool(server.api("GET", f"/v1/messages/{message_id}")["outcome"])

    until(lambda: all(is_over(message_id) for message_id, _ in sent), "the end of the messages")
    server.stop()
    thread = threading.Thread(target=lambda: asyncio.run(_bury(server.folder, sent)))  # Playwright has this one's loop
    thread.start()
    thread.join()
    server.restart()
    return [message_id for message_id, _ in sent]


async def _bury(folder: Path, letters: Iterable[tuple[str, str]]) -> None:
    store = open_store(f"sqlite:///{folder / 'laneway.db'}")
    await store.open()
    try:
        for message_id, error in letters:
            row = await store.history.message(message_id)
            assert row is not None
            dead = row._replace(state="dead_lettered", outcome="", turn_id="", reason=error)
            owner = Owner(row.tenant, row.workspace, row.session)
            [result] = await store.commit([Batch(owner, store.epoch, (dead,))])
            assert result.error is None
    finally:
        await store.close()
