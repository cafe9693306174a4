"""An MCP server with two tools, made with the SDK: `python examples/servers/notes.py` speaks MCP on its pipes."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes", log_level="WARNING")
NOTES = {"boat": "It leaks.", "car": "It is red."}


@server.tool()
def find(title: str) -> str:
    """Find a note.

    Args:
        title: The title of the note.
    """
    return NOTES.get(title, "There is no such note.")


@server.tool()
def remove(title: str) -> str:
    """Remove a note."""
    return f"removed: {NOTES.pop(title)}"


server.run()
