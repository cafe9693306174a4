"""An address of the web as rules see it: taken apart the way the fetcher takes it apart, and every way to write it.

Rules that allow hold host and path apart: a star in a host never runs into the path, the port or a user name. Rules
that forbid are held against the text as it was written and as it is fetched.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

__all__ = ("Url", "is_allowed_url", "read_url", "ways_to")

Match = Callable[[str, str], bool]
URL_MAX = 8192
DECODED_MAX = 3
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """An address in its parts: the host in small ASCII letters, the port always there, the path as it is sent."""

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path


@lru_cache(maxsize=1024)
def read_url(url: str) -> Url | None:
    """Take an address apart; None if that cannot be done for certain, or if it has a user name in it."""
    if len(url) > URL_MAX or not url.isprintable() or " " in url or "\\" in url:
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme not in _PORTS or not host or "@" in parts.netloc:
            return None
        name = _normal_host(host)
    except ValueError:  # among them what IDNA cannot encode
        return None
    return Url(
        scheme=parts.scheme,
        host=name,
        port=_PORTS[parts.scheme] if port is None else port,
        path=quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._"),
        query=quote(parts.query, safe="/%:@!$&'()*+,;=~-._?"),
    )


def _normal_host(host: str) -> str:
    if ":" in host:
        return str(ipaddress.IPv6Address(host))
    name = host.lower() if host.isascii() else host.encode("idna").decode().lower()
    return name.rstrip(".")


def _decoded(text: str) -> list[str]:
    """A text, and what it is when its percents are read once, twice …"""
    texts = [text]
    while len(texts) <= DECODED_MAX and (plain := unquote(texts[-1])) != texts[-1]:
        texts.append(plain)
    return texts


def _without_dots(path: str) -> str:
    """A path without `.`, `..` and double slashes."""
    parts: list[str] = []
    for part in path.replace("\\", "/").split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    end = "/" if parts and path.endswith(("/", "/.", "/..")) else ""
    return "/" + "/".join(parts) + end


# ---- for rules that forbid ----


def ways_to(url: str) -> set[str]:
    """Every way to write an address that a rule could mean, in small letters."""
    ways = _written(url)
    found = read_url(url)
    if found is not None:
        tail = f"?{found.query}" if found.query else ""
        for path in _decoded(found.path):
            for way in {path, _without_dots(path)}:
                for end in {"", *_decoded(tail)}:
                    ways |= _addresses(found.scheme, found.host, found.port, way + end)
    return {way.casefold() for way in ways}


def _addresses(scheme: str, host: str, port: int, target: str) -> set[str]:
    shown = f"[{host}]" if ":" in host else host
    ways: set[str] = set()
    for name in (shown, f"{shown}:{port}", f"{shown}."):
        ways |= {name, f"{name}{target}", *(f"{each}://{name}{target}" for each in ("http", "https", scheme))}
        if target == "/":
            ways |= {f"{each}://{name}" for each in ("http", "https")}
    return ways


def _written(url: str) -> set[str]:
    """By the text alone: also for what is no address in the end."""
    ways: set[str] = set()
    for text in _decoded(url):
        clean = "".join(char for char in text.replace("\\", "/").casefold() if char.isprintable() and char != " ")
        scheme, mark, rest = clean.partition("://")
        if not mark:
            scheme, rest = "https", clean.lstrip("/")
        stop = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
        host, path = rest[:stop].rpartition("@")[2], rest[stop:]
        name = host.rpartition(":")[0] if not host.rpartition(":")[2].strip("0123456789") and ":" in host else host
        for known in (host, name, name.rstrip(".")):
            for tail in {path, path if path.startswith("/") else f"/{path}"}:
                ways |= {f"{each}://{known}{tail}" for each in (scheme, "http", "https")} | {f"{known}{tail}"}
            ways.add(known)
        ways |= {text.casefold(), clean}
    return ways


# ---- for rules that allow ----


def is_allowed_url(pattern: str, url: Url, match: Match) -> bool:
    """Whether a pattern is about an address: its scheme, its host, its port and its path, each by itself.

    `https://docs.python.org/*` is a scheme, a host and a path. Without a scheme both are meant; without a path the
    root, or everything if neither scheme nor path is said. A port that is not said is the usual one.
    """
    if any(part in (".", "..") for text in _decoded(url.path) for part in text.replace("\\", "/").split("/")):
        return False  # what the server makes of it is its own business
    scheme, mark, rest = pattern.partition("://")
    if not mark:
        scheme, rest = "http*", pattern
    stop = min((at for at in map(rest.find, "/#") if at >= 0), default=len(rest))
    authority, path = rest[:stop], rest[stop:]
    host, port = _split_port(authority)
    if not path:
        path = "*" if not mark or authority.endswith("*") else "/"
    is_port = url.port == _PORTS[url.scheme] if not port else match(port, str(url.port))
    return (
        is_port
        and match(scheme.casefold(), url.scheme)
        and match(host.casefold().rstrip("."), url.host)
        and match(path, url.target)
    )


def _split_port(authority: str) -> tuple[str, str]:
    if authority.startswith("["):
        host, _, port = authority[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = authority.partition(":")
    return host, port
