"""How often one caller may ask: a bucket for each, which fills steadily and holds what may come at once.

It is the generic cell rate algorithm: of each caller only one number is kept, the moment at which its bucket is full
again. The table is bounded: whoever was not seen for longest is forgotten first, and begins with a full bucket.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from laneway.errors import RateLimitedError
from laneway.ports import Clock

__all__ = ("Rates", "address_of")

CALLERS_MAX: Final = 20_000


class Rates:
    """The buckets of all callers. `per_second` is what each may ask in the long run, `burst` at once; 0 is no limit."""

    def __init__(self, per_second: int, clock: Clock, *, burst: int = 0, callers_max: int = CALLERS_MAX) -> None:
        self.per_second = per_second
        self._clock = clock
        self._step_ms = 1_000 / per_second if per_second > 0 else 0.0
        self._slack_ms = self._step_ms * ((burst or per_second) - 1)
        self._callers_max = callers_max
        self._full_ms: OrderedDict[str, float] = OrderedDict()  # least recently seen first

    def __len__(self) -> int:
        return len(self._full_ms)

    def wait_ms(self, caller: str) -> int:
        """Take one; 0, or for how long nothing is left. What is refused costs nothing."""
        if not self._step_ms:
            return 0
        now = self._clock.monotonic_ms()
        table = self._full_ms
        full_ms = max(table.get(caller, now), now)
        excess_ms = full_ms - now - self._slack_ms
        if excess_ms > 1e-6:
            return math.ceil(excess_ms)
        table[caller] = full_ms + self._step_ms
        table.move_to_end(caller)
        if len(table) > self._callers_max:
            table.popitem(last=False)
        return 0

    def check(self, caller: str) -> None:
        """Take one; raises `RateLimitedError` when nothing is left."""
        wait_ms = self.wait_ms(caller)
        if wait_ms:
            raise RateLimitedError(
                f"more than {self.per_second:,} requests a second come from you", retry_after_ms=wait_ms
            )


def address_of(client: Sequence[Any] | None) -> str:
    """Who asks without a token: the address of a connection; of version 6 the part that one customer has."""
    if not client:
        return "?"
    host = str(client[0])
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return host if address.is_loopback else f"{address.exploded[:19]}::/64"
