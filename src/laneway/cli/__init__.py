"""The command line: `laneway tour`, `laneway sim`. One file per noun; needs the extra `cli` (typer and rich)."""

from __future__ import annotations

import importlib.util
import signal
import sys

__all__ = ("main",)

NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line and exit with its code."""
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
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
