"""The files of the dashboard, as a browser gets them.

They are read once. Everything but the index lies under an address with the digest of the whole tree in it, and may be
kept for ever: a page that was opened before an update never mixes old modules with new ones. The index is asked for
again each time, and says which tree is meant. Its policy allows files of this server only, and of scripts in the page
itself nothing but the import map, by its digest.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

__all__ = ("FOLDER", "MEDIA_TYPES", "ROOT", "Dashboard", "File", "dashboard", "policy_of")

FOLDER: Final = Path(__file__).parent / "dashboard"
INDEX: Final = "index.html"
ROOT: Final = "/page/"
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",  # licences
}
IMPORT_MAP: Final = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
WORTH_PACKING: Final = 1_000
DIGEST_LETTERS: Final = 16
POLICY: Final = (
    "default-src 'none'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",  # nothing may make markup or scripts of a text, not even the page itself
)


@dataclass(frozen=True)
class File:
    """One file: its content, and what it is."""

    content: bytes
    media_type: str
    etag: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.content).hexdigest()
        object.__setattr__(self, "etag", f'"{digest[:32]}"')

    @cached_property
    def packed(self) -> bytes | None:
        """The same, compressed; None if that is not worth it."""
        if len(self.content) < WORTH_PACKING:
            return None
        return gzip.compress(self.content, 6, mtime=0)


@dataclass(frozen=True)
class Dashboard:
    """All of it. `files` are by their paths below `ROOT` and the digest."""

    digest: str
    files: Mapping[str, File]
    index: File
    policy: str


def policy_of(html: str) -> str:
    """The policy of a page: scripts are files of this server, and the import maps in the page."""
    digests = [hashlib.sha256(each.encode()).digest() for each in IMPORT_MAP.findall(html)]
    allowed = ["'self'", *(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)]
    return "; ".join([POLICY[0], f"script-src {' '.join(allowed)}", *POLICY[1:]])


@cache
def dashboard(folder: Path = FOLDER) -> Dashboard:
    """Read the dashboard; later calls get what was read first."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in MEDIA_TYPES
    }
    whole = hashlib.sha256()
    for name, content in found.items():
        whole.update(f"{name}\0{len(content)}\0".encode())
        whole.update(content)
    digest = whole.hexdigest()[:DIGEST_LETTERS]
    # Relative to the page, so that a proxy may serve it under a path of its own.
    html = found.pop(INDEX).decode().replace('"./', f'".{ROOT}{digest}/')
    files = {name: File(content, MEDIA_TYPES[Path(name).suffix]) for name, content in found.items()}
    index = File(html.encode(), MEDIA_TYPES[".html"])
    return Dashboard(digest=digest, files=MappingProxyType(files), index=index, policy=policy_of(html))
