"""An MCP server made with the SDK, over streamable HTTP on this machine; it prints its port when it listens.

It wants a header, and answers in plain JSON if its first argument says so.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

server = MCPServer("test")
ended: list[str] = []


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def hang(context: Context) -> str:
    """Never end by itself."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("hang")
    return ""


@server.tool()
async def what_ended() -> str:
    """Which calls were ended before they were done."""
    return ",".join(ended)


@server.tool()
async def big(size: int) -> str:
    """A long text."""
    return "x" * size


class Guard(BaseHTTPMiddleware):
    """Lets in who has the header and the query."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if request.headers.get("authorization") != "Bearer open-sesame" or request.query_params.get("key") != "k-1234":
            return PlainTextResponse("who are you?", status_code=401)
        return await call_next(request)


def main() -> None:
    app = server.streamable_http_app(json_response="json" in sys.argv)
    app.add_middleware(Guard)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning", fd=listening.fileno())).run()


main()
