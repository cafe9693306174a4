"""A small MCP server over standard input and output, written without the SDK, that can misbehave in every way.

What it does wrong from the start is its first argument; what it does wrong in a call is the name of the tool.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

HOW = sys.argv[1] if len(sys.argv) > 1 else ""
LOG = os.environ.get("SERVER_LOG", "")
MEGABYTE = "x" * 1_000_000
WRITING = threading.Lock()
MEETING = threading.Barrier(20)
TOOLS: list[Any] = [
    {
        "name": "echo",
        "description": "Say it again.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "annotations": {"readOnlyHint": True},
    },
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("die", "silent", "endless", "big", "huge")),
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("nonsense", "error", "garbage", "storm", "grow")),
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("environment", "meet", "child", "ask", "noisy")),
]


def write(text: str) -> None:
    with WRITING:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def say(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}))


def note(text: str) -> None:
    """Write down what has happened, for the test."""
    if LOG:
        with open(LOG, "a", encoding="utf-8") as file:
            file.write(text + "\n")


def answer(call: Any, text: str, **more: Any) -> None:
    say(id=call, result={"content": [{"type": "text", "text": text}], **more})


def run(call: Any, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    note(f"call {name}")
    if name == "echo":
        answer(call, arguments["text"])
    elif name == "die":
        sys.stderr.write("my last words\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "silent":
        pass
    elif name == "meet":
        MEETING.wait(30)  # answered when twenty calls are under way, and else never
        answer(call, "all are here")
    elif name == "endless":
        with WRITING:
            sys.stdout.write('{"jsonrpc": "2.0", "id": ' + str(call) + ', "result": {"content": "')
            while True:
                sys.stdout.write(MEGABYTE)
    elif name == "big":
        answer(call, MEGABYTE)
    elif name == "huge":
        answer(call, MEGABYTE * 9)
    elif name == "nonsense":
        kinds = {
            "shape": {"id": call},
            "result": {"id": call, "result": {"content": 5}},
            "list": {"id": call, "result": []},
        }
        say(**kinds[arguments["kind"]])
    elif name == "error":
        say(id=call, error={"code": -32000, "message": f"no such luck, {os.environ.get('TOKEN', '')}"})
    elif name == "garbage":
        for number in range(5_000):
            write(f"DEBUG {number} this is no message")
        answer(call, "done")
    elif name == "storm":
        for number in range(5_000):
            say(method="notifications/message", params={"level": "info", "data": number})
            say(method="notifications/progress", params={"progressToken": call, "progress": number, "message": "on"})
            say(method="notifications/tools/list_changed")
        answer(call, "done")
    elif name == "grow":
        TOOLS.append({"name": f"grown{len(TOOLS)}", "inputSchema": {"type": "object"}})
        say(method="notifications/tools/list_changed")
        answer(call, "grown")
    elif name == "environment":
        answer(call, json.dumps({"environ": dict(os.environ), "cwd": os.getcwd(), "meta": meta}))
    elif name == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        answer(call, str(child.pid))
    elif name == "ask":
        for number in range(200):
            say(id=f"ask-{number}", method="ping")
        answer(call, "asked")
    elif name == "noisy":
        sys.stderr.write(MEGABYTE * 20)
        answer(call, "done")


def listed(params: dict[str, Any]) -> dict[str, Any]:
    if HOW == "many":
        at = int(params.get("cursor", 0))
        page = [{"name": f"t{at + number}", "inputSchema": {"type": "object"}} for number in range(100)]
        return {"tools": page, "nextCursor": str(at + 100)}
    if HOW == "odd":
        odd: list[Any] = [
            {"name": "fine", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            {"name": "text", "inputSchema": {"type": "string"}},
            {"name": "wrong", "inputSchema": {"type": "object", "properties": {"n": {"type": "no such type"}}}},
            {"name": "none"},
            {"name": 5},
            "nonsense",
        ]
        return {"tools": odd}
    return {"tools": TOOLS}


def hear(message: dict[str, Any]) -> None:
    method, call = message.get("method"), message.get("id")
    params = message.get("params") or {}
    if method == "initialize":
        if HOW == "mute":
            return
        info = {"name": "test", "version": "1"}
        say(
            id=call,
            result={
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": info,
            },
        )
    elif method == "tools/list":
        say(id=call, result=listed(params))
    elif method == "tools/call":
        work = (call, params["name"], params.get("arguments") or {}, params.get("_meta") or {})
        threading.Thread(target=run, args=work, daemon=True).start()
    elif method == "notifications/cancelled":
        note(f"cancelled {params.get('requestId')}")


def main() -> None:
    note(f"started {os.getpid()}")
    if HOW == "exit":
        sys.exit("there is no token: " + os.environ.get("TOKEN", ""))
    if HOW == "flaky" and not os.path.exists(LOG + ".once"):
        with open(LOG + ".once", "w", encoding="utf-8"):
            os._exit(1)
    if HOW == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if HOW == "shouting":
        while True:
            write("no message at all")
    for line in sys.stdin:
        hear(json.loads(line))
    if HOW == "stubborn":
        time.sleep(600)
    note("ended")


main()
