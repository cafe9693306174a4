"""An MCP server made with the SDK, over streamable HTTP on this machine; it prints its port when it listens.

It wants a header. Its arguments are the port (0: any that is free) and whether it answers in plain JSON.
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
began: list[str] = []
ended: list[str] = []


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def hang(context: Context) -> str:
    """Never end by itself."""
    began.append("hang")
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("hang")
    return ""


@server.tool()
async def look() -> str:
    """Which calls have begun, and which were ended before they were done."""
    return f"{began} {ended}"


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
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", int(sys.argv[1])))
    listening.listen()
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning", fd=listening.fileno())).run()


main()
