"""The command line: `laneway serve`, `laneway chat`, `laneway status` … One file per noun; needs the extra `cli`."""

from __future__ import annotations

import sys

from laneway.gateway.secrets import hide_process, wipe_secrets

__all__ = ("main",)

NEEDED = ("typer", "rich", "httpx2")


def main() -> None:
    """Run the command line and exit with its code."""
    wipe_secrets()  # first of all: until then other processes can read the token of an operator
    hide_process()
    import signal

    missing = [name for name in NEEDED if not _is_installed(name)]
    if missing:
        sys.stderr.write(
            f"laneway: the command line needs {' and '.join(missing)}: install laneway with the extra `cli`\n",
        )
        sys.exit(2)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `laneway tour | head` ends quietly, as other commands do
    from laneway.cli.app import app  # typer and rich are an extra: the library imports neither

    app()


def _is_installed(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
