"""The channels of a gateway that are started. They are noted beside the gateway, which knows nothing of channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from laneway.gateway.channels.port import Channel

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("note", "running")

_RUNNING: Final[WeakKeyDictionary[Gateway, Mapping[str, Channel]]] = WeakKeyDictionary()


def note(gateway: Gateway, channels: Iterable[Channel]) -> None:
    """These are the channels of a gateway now."""
    _RUNNING[gateway] = MappingProxyType({channel.name: channel for channel in channels})


def running(gateway: Gateway) -> Mapping[str, Channel]:
    """The channels of a gateway by their names; none before they are started."""
    return _RUNNING.get(gateway, MappingProxyType({}))
