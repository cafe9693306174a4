"""A server on which there is something in every view, each name and text being what a test gives.

`settle(serve, marks)` starts it; `marks` go into every field that a user, a model, a tool, a worker or an operator can
fill. What cannot be made from outside at will (a message whose turn could never be begun) is written into its store
while it is down; a call of which nobody knows how far it came is made by a real `kill -9`.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from laneway.rows import Batch, Owner
from laneway.stores import open_store
from tests.browser.stage import Served
from tests.server_process import until

__all__ = ("LivedIn", "settle")

CONFIG: Final = """
name: {name}
default_model: scripted
system: {name}
record: true
identity:
  principal: {name}
lanes:
  main: 6
queue:
  mode: followup
  enable_dlq: true
  lane_handlers:
    query:
      mode: external
permissions:
  default_decision: allow
  ask: ["write"]
confirmation:
  enabled: true
  default_timeout_ms: 3600000
"""


@dataclass
class LivedIn:
    """The server, and the addresses of its page at which something is to be seen."""

    server: Served
    routes: list[str] = field(default_factory=list)


def settle(serve: Callable[..., Served], marks: Sequence[str]) -> LivedIn:
    """A server with something everywhere; `marks` are used in turn."""
    first = marks[0]
    served = serve(CONFIG.format(name=json.dumps(first)))
    keys = [f"{number} {mark}".replace("/", "|") for number, mark in enumerate(marks)]
    said = [served.send(quote(key, safe=""), mark) for key, mark in zip(keys, marks, strict=True)]
    for each in said:
        until(lambda each=each: served.api("GET", f"/v1/messages/{each['message_id']}")["outcome"])  # type: ignore[misc]
    loud = served.send(_path(keys[0]), f"run printf %s {shlex.quote(first)}")
    until(lambda: served.api("GET", f"/v1/messages/{loud['message_id']}")["outcome"])
    cut = f"echo {shlex.quote(first)}; touch begun; sleep 300"
    served.send("cut-off", f"run {cut}")
    until(lambda: (served.folder / "begun").exists())
    served.kill()
    _plant_letter(served, said[0]["message_id"], first)
    served.restart()
    until(lambda: served.api("GET", "/v1/attention")["ledger"]["count"])
    _make_busy(served, keys, first)
    run = served.api("GET", f"/v1/messages/{loud['message_id']}")["run_id"]
    views = (
        "overview lanes sessions approvals tasks workers letters ledger schedules usage limits audit config tokens"
        " guide settings"
    )
    places = ["#/", *(f"#/{name}" for name in views.split()[1:]), f"#/chat/{_path(keys[0])}", "#/chat/asks"]
    places += [f"#/sessions/{_path(keys[0])}", f"#/story/message/{loud['message_id']}", f"#/story/run/{run}"]
    places += [f"#/replay/{run}", f"#/replay/{run}?step=3&other={run}"]
    return LivedIn(served, places)


def _path(key: str) -> str:
    return quote(key, safe="")


def _make_busy(served: Served, keys: Sequence[str], mark: str) -> None:
    """What runs and waits, what needs somebody, what operators have done."""
    served.send("asks", f"call write {json.dumps({'path': mark.replace('/', '|'), 'content': mark})}")
    served.send("elsewhere", f"call read {json.dumps({'path': mark})}")
    served.send(_path(keys[1]), "run sleep 3000")
    for number in range(3):
        served.send(_path(keys[1]), f"{number} {mark}")
    label = "".join(mark.replace(",", "").split())
    claim = {"worker": mark, "labels": [label], "lanes": ["generate"], "about": {"host": mark, "version": mark}}
    served.api("POST", "/v1/tasks/claim", claim, token=served.token("worker", name="hands"))
    served.api("POST", "/v1/schedules", {"session_key": "clock", "text": mark, "cron": "0 9 * * *"})
    served.api("PATCH", "/v1/lanes/cron", {"paused": True, "reason": mark})
    served.api("POST", "/v1/limits/subagent/close", {"for_ms": 3_600_000, "reason": mark})
    served.token("chat", name="reader")
    until(lambda: served.api("GET", "/v1/approvals")["items"])
    until(lambda: served.api("GET", "/v1/tasks")["items"])


def _plant_letter(served: Served, message_id: str, text: str) -> None:
    """A message whose turn could never be begun, as the inbox would have left it."""

    async def write() -> None:
        store = open_store(f"sqlite:///{served.folder / 'laneway.db'}")
        await store.open()
        try:
            row = await store.history.message(message_id)
            assert row is not None
            body: dict[str, Any] = json.loads(row.body)
            dead = row._replace(
                id="msg-dead", seq=store.next_seq(), state="dead_lettered", outcome="", turn_id="", reason=text
            )
            owner = Owner(row.tenant, row.workspace, row.session)
            (result,) = await store.commit([Batch(owner, store.epoch, (dead._replace(body=json.dumps(body)),))])
            assert result.error is None
        finally:
            await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(write()))  # the loop of this thread is Playwright's
    thread.start()
    thread.join()
