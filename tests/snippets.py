"""How tests run the Python of a document: as it stands, under our name and in a folder that exists."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

GATHERED = "asyncio.gather(*[handle(t) for t in tasks])"


def played(snippet: str, folder: Path, **free: Any) -> dict[str, Any]:
    """Run a snippet with the free names it needs; the names it leaves."""
    source = textwrap.dedent(snippet).replace("a3s_code", "laneway")
    for named, place in (
        ('"/project"', folder),
        ("'/path/to/project'", folder),
        ("'./.a3s/sessions'", folder / "kept"),
    ):
        source = source.replace(named, repr(str(place)))
    if GATHERED in source:  # only a coroutine can be run, and a future is none
        source = source.replace(GATHERED, f"together(lambda: {GATHERED})")
        free["together"] = _together
    exec(source, free)  # noqa: S102 - that the text runs is what is claimed
    return free


async def _together(gathered: Callable[[], Awaitable[Any]]) -> Any:
    return await gathered()
