"""What a gateway goes by; `laneway serve` makes it from the configuration and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laneway.checked import is_loopback
from laneway.config.gateway_blocks import RetentionBlock

if TYPE_CHECKING:
    from laneway.config import AgentSettings, Effective

__all__ = ("GatewaySettings", "WorkspaceSpec")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How the server is reached, and what it bears."""

    host: str = "127.0.0.1"
    port: int = 8420
    store: str = "sqlite:///laneway.db"
    allowed_hosts: tuple[str, ...] = ()  # beside loopback names and the address it is bound to
    cors_origins: tuple[str, ...] = ()
    tls_certificate: str = ""
    tls_key: str = ""
    body_max: int = 4_000_000
    requests_per_second: int = 1_000  # of one caller
    connections_max: int = 20_000
    connections_per_address: int = 5_000
    request_timeout_ms: int = 30_000  # until the whole of a request has come in
    heartbeat_ms: int = 15_000
    buffer_max: int = 1_000  # events that one stream may lag behind before it is cut
    sessions_max: int = 4_096  # that are held in memory while nothing happens in them
    passivate_after_ms: int | None = None  # of rest, after which a session leaves memory
    waiting_max: int = 100_000  # messages that may wait in all, before new ones are refused
    oldest_max_ms: int | None = None  # the age of the oldest waiting message at which new ones are refused
    stalled_after_ms: int = 60_000  # work waits and nothing is started: not ready
    drain_ms: int = 10_000
    metrics_public: bool = False  # whether /metrics needs no token on an address that is not loopback
    otel_endpoint: str = ""
    log_format: str = "console"
    log_level: str = "warning"
    retention: RetentionBlock = field(default_factory=RetentionBlock)
    channels: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSpec:
    """A workspace: its name, its folder, and the agent that works there."""

    name: str
    folder: Path
    agent: AgentSettings
    model: Any = None  # instead of what the settings say
    effective: Effective | None = None  # where its settings came from, to be shown
    files: tuple[str, ...] = ()  # what the server was started from; its agents do not change it
