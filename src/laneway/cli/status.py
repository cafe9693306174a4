"""`laneway status`: one screen that says whether all is well, and if not, what waits for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from laneway.cli.client import Server, path_of
from laneway.cli.lane import COLUMNS, lane_rows
from laneway.cli.ledger import unknown_calls
from laneway.cli.reach import JsonOption, read
from laneway.cli.session import active_sessions
from laneway.cli.tables import age, clean, console, line, print_json, table, until
from laneway.cli.watching import WatchOption, watched
from laneway.cli.workers_list import worker_line
from laneway.errors import DeniedError, NotFoundError
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.cli.reach import Source

__all__ = ("gathered", "shown", "status")

SHOWN: Final = 12
LANES_HIDDEN: Final = "Lanes are shared by all tenants: a token with --scope operate --tenant '*' sees them."
WAITING_SHOWN: Final = 8


def status(ctx: typer.Context, as_json: JsonOption = False, watch: WatchOption = False) -> None:
    """Show how the server is: what runs, what waits and why, what asks for an answer."""
    watched(
        ctx,
        lambda: read(ctx, gathered if watch else _with_ledger),
        lambda found: _show(found, as_json=as_json),
        watch=watch,
    )


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        console().print(shown(found))


def gathered(source: Source) -> dict[str, Any]:
    """Everything that one screen shows. What the caller may not see (lanes, with a tenant's token) is null."""
    sessions = sorted(active_sessions(source), key=lambda each: not each["run_id"])
    waiting: list[dict[str, Any]] = []
    for each in sessions:
        if each["waiting"] and len(waiting) < WAITING_SHOWN:
            waiting += _some(source, each["session_key"])
    return {
        "server": _server(source),
        "sessions": sessions,
        "waiting": waiting[:WAITING_SHOWN],
        "approvals": source.get("/approvals")["items"],
        "lanes": _lanes(source),
        "workers": _workers(source),
    }


def _with_ledger(source: Source) -> dict[str, Any]:
    """The same, and calls that wait to be settled: the server looks through its whole ledger for them."""
    unknown = unknown_calls(source) if isinstance(source, Server) else []
    return {**gathered(source), "unknown_calls": unknown, "tenants": _tenants(source)}


def _tenants(source: Source) -> list[dict[str, Any]]:
    """Tenants with something to do, for whoever may see all of them."""
    if not isinstance(source, Server):
        return []
    try:
        return list(source.items("/tenants"))
    except (DeniedError, NotFoundError):
        return []


def _some(source: Source, session: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = source.get(path_of("sessions", session, "pending"))["items"]
    except NotFoundError:  # it has ended meanwhile
        return []
    return found


def _server(source: Source) -> dict[str, Any]:
    if not isinstance(source, Server):
        return {"url": None, "ready": None, "checks": {}, "workspaces": [{"name": source.workspace}]}
    checks = source.ready()
    is_ready = checks.pop("status", "") == "ready"
    workspaces = source.get("/workspaces")["items"]
    tenant = source.target.tenant or "default"
    return {"url": source.target.url, "tenant": tenant, "ready": is_ready, "checks": checks, "workspaces": workspaces}


def _lanes(source: Source) -> list[dict[str, Any]] | None:
    if not isinstance(source, Server):
        return None
    try:
        return list(source.items("/lanes"))
    except DeniedError:
        return None


def _workers(source: Source) -> list[dict[str, Any]]:
    """Those that were heard of lately; a server of an earlier version tells less of them, and of none here."""
    if not isinstance(source, Server):
        return []
    return [each for each in source.items("/workers") if "health" in each]


def shown(found: dict[str, Any]) -> RenderableType:
    """The screen."""
    now_ms = SystemClock().wall_ms()
    server, sessions = found["server"], found["sessions"]
    parts: list[RenderableType] = [_headline(server), *_complaints(server)]
    if found["lanes"] is not None:
        parts += [Text(), table(COLUMNS, lane_rows(found["lanes"]))]
    elif server["url"] is not None:
        parts += [Text(), Text(LANES_HIDDEN, style="dim")]
    if found.get("workers"):
        parts += [Text(), Text(worker_line(found["workers"]), style="dim")]
    if sessions:
        rows = [
            (each["session_key"], each["state"], each["run_id"], each["waiting"] or "") for each in sessions[:SHOWN]
        ]
        parts += [Text(), table(("*session", "state", "run", ">waiting"), rows)]
        if len(sessions) > SHOWN:
            parts.append(Text(f"and {len(sessions) - SHOWN} more: laneway session ls --active", style="dim"))
    else:
        parts += [Text(), Text("No session has anything to do.", style="dim")]
    if found["waiting"]:
        waits = [
            (each["session_key"], each["position"], age(each["waited_ms"]), each["text"], each["reason"])
            for each in found["waiting"]
        ]
        parts += [Text(), table(("waits in", ">place", ">for", "*text", "*because"), waits)]
    for each in found["approvals"][:SHOWN]:
        left = f", expires {until(each['expires_ms'], now_ms)}" if each["expires_ms"] else ""
        asks = f"{each['approval_id']}: {each['action']} in {line(each['session_key'])} asks to be allowed{left}"
        parts += [
            Text(),
            Text(clean(asks), style="yellow"),
            Text(f"  laneway approve {each['approval_id']}", style="dim"),
        ]
    parts += _others(found)
    unknown = found.get("unknown_calls")
    if unknown:
        many = f"{len(unknown)} calls were" if len(unknown) > 1 else "1 call was"
        parts += [
            Text(),
            Text(f"{many} cut off, and nobody knows whether it was done", style="yellow"),
            Text("  laneway ledger ls", style="dim"),
        ]
    return Group(*parts)


def _others(found: dict[str, Any]) -> list[RenderableType]:
    """What goes on for other tenants than the one that is shown."""
    others = [each for each in found.get("tenants") or () if each["tenant"] != found["server"].get("tenant")]
    if not others:
        return []
    rows = [
        (each["tenant"], each["sessions"], each["waiting"] or "", each["approvals"] or "") for each in others[:SHOWN]
    ]
    shown_there = table(("*other tenants", ">sessions", ">waiting", ">ask to be allowed"), rows)
    return [Text(), shown_there, Text("  --tenant NAME shows one of them", style="dim")]


def _complaints(server: dict[str, Any]) -> list[Text]:
    """What is wrong with a server that works all the same: a channel that its platform does not let in."""
    if not server["ready"]:
        return []  # the headline says it
    return [Text(clean(f"{name}: {text}"), style="yellow") for name, text in server["checks"].items() if text != "ok"]


def _headline(server: dict[str, Any]) -> Text:
    names = [
        f"{line(each['name'])} ({line(each['model'])})" if each.get("model") else line(each["name"])
        for each in server["workspaces"]
    ]
    where = f", workspaces: {', '.join(names)}" if len(names) > 1 else f", workspace {''.join(names)}"
    if server["url"] is None:
        return Text(f"Read from the store{where}. A server would say more.")
    if server["ready"]:
        return Text(f"Laneway at {server['url']} is ready{where}", style="bold")
    wrong = "; ".join(f"{name}: {text}" for name, text in server["checks"].items() if text != "ok")
    return Text(clean(f"Laneway at {server['url']} is NOT ready ({wrong}){where}"), style="bold red")
