"""Which addresses of the network a tool may reach: those of the public Internet, and nothing else.

An agent reads pages that strangers wrote, and may be talked into fetching what only this machine can reach: a database,
a router, the keys that a cloud hands out at a fixed address. So the rule names what is allowed, in the numbers of an
address, after a name was resolved; what the name looks like proves nothing. Addresses that carry another one inside
(mapped, translated, tunnelled) are judged by that one or refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

from laneway.tools.outputs import ToolRefusedError
from laneway.tools.paths import shown

__all__ = ("Target", "is_public", "join", "parse_url")

URL_MAX: Final = 8192
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")
_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")  # how a network without IPv4 reaches IPv4
_NEVER: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(each)
    for each in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # behind a carrier's translation
        "192.0.0.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "198.18.0.0/15",
        "224.0.0.0/3",  # multicast, reserved, broadcast
        "168.63.129.16/32",  # a public number that a cloud answers from inside
        "2001::/23",  # protocols, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)
_NUMBER: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_LABELS: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.?")


def is_public(address: str, allowed: Sequence[Network] = ()) -> bool:
    """Whether an address, as numbers, is one of the public Internet, or of a network that was allowed by name."""
    try:
        found: Address = ipaddress.ip_address(address)
    except ValueError:
        return False
    if any(found in network for network in allowed if network.version == found.version):
        return True
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            return False
        if found in _TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        if found not in _PUBLIC_V6:  # loopback, local, mapped, multicast …
            return False
    elif not found.is_global:
        return False
    return not any(found in network for network in _NEVER if network.version == found.version)


class Target:
    """Where a URL leads: checked, and in the parts that a request is made of."""

    __slots__ = ("host", "port", "scheme", "target")

    def __init__(self, *, scheme: str, host: str, port: int, target: str) -> None:
        self.scheme = scheme
        self.host = host
        self.port = port
        self.target = target

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(url: str) -> Target:
    """A URL that may be fetched as far as its text tells; where its host leads is checked when it is resolved."""
    if len(url) > URL_MAX:
        raise ToolRefusedError(f"the URL is {len(url)} characters long; at most {URL_MAX} are possible")
    if not url.isprintable() or " " in url or "\\" in url:
        raise ToolRefusedError(f"{shown(url[:200])!r} is not a URL: blanks, backslashes and control characters are not")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ToolRefusedError(f"{shown(url[:200])!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ToolRefusedError("only URLs that begin with http:// or https:// can be fetched")
    if "@" in parts.netloc:
        raise ToolRefusedError("a URL with a user name or a password in it is not fetched")
    if port == 0 or not host:
        raise ToolRefusedError(f"{shown(url[:200])!r} is not a URL: it has no {'port' if host else 'host'}")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?") if parts.query else ""
    return Target(
        scheme=parts.scheme,
        host=_checked_host(host),
        port=port or (443 if parts.scheme == "https" else 80),
        target=path + query,
    )


def join(target: Target, location: str) -> Target:
    """Where a redirect leads."""
    try:
        return parse_url(urljoin(str(target), location))
    except ValueError:
        raise ToolRefusedError(f"{target} redirects to {shown(location[:200])!r}, which is not a URL") from None


def _checked_host(host: str) -> str:
    """A name in letters, digits and hyphens, or an address in its one usual spelling."""
    if ":" in host:  # it was in brackets
        try:
            return str(ipaddress.IPv6Address("" if "%" in host else host))
        except ValueError:
            raise ToolRefusedError(f"{shown(host)!r} is not an IPv6 address") from None
    try:
        name = host.encode("idna").decode().lower() if not host.isascii() else host.lower()
    except UnicodeError:
        raise ToolRefusedError(f"{shown(host[:200])!r} is not the name of a host") from None
    if len(name) > 253 or not _LABELS.fullmatch(name):
        raise ToolRefusedError(f"{shown(host[:200])!r} is not the name of a host")
    if _NUMBER.fullmatch(name.rstrip(".").rpartition(".")[2]):  # 2130706433, 0x7f.1, 127.1, 0177.0.0.1 …
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise ToolRefusedError(
                f"{shown(host[:200])!r} is an odd spelling of an address; write it as four numbers"
            ) from None
    return name
