"""The block of the server: how it is reached, what it bears, and the channels that it is connected to.

Its fields and their defaults are those of `GatewaySettings` in `laneway.gateway.settings`; a test holds both together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from laneway.config.declaring import (
    MS,
    SOME_MS,
    Setting,
    Sub,
    always,
    from_folder,
    store_from_folder,
    with_password,
)
from laneway.config.kinds import Flag, Several, Text, Tree, Whole, word_of

__all__ = ("GatewayBlock", "RetentionBlock")

HOSTS: Final = Several(item=Text(least=1, most=512), most=1_000)
ORIGINS: Final = Several(item=Text(begins=("http://", "https://"), most=512), most=1_000)
FILE: Final = Text(most=4096)
MANY: Final = Whole(least=1, most=1_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionBlock:
    """How much history stays on disk, in each session. What is live, unknown, dead or still heard never goes."""

    max_age_ms: Annotated[
        int | None, Setting(kind=MS, says="How old what has happened may become.", unset="any age")
    ] = None
    max_runs: Annotated[
        int | None,
        Setting(kind=Whole(least=1, most=1_000_000_000), says="How many runs a session keeps.", unset="all"),
    ] = None
    every_ms: Annotated[int, Setting(kind=SOME_MS, says="How often it is looked for what may go.")] = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBlock:
    """What `laneway serve` goes by; an option of that command beats it."""

    host: Annotated[str, Setting(kind=Text(least=1, most=512), says="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Setting(kind=Whole(least=0, most=65_535), says="The port; 0 picks a free one.")] = 8420
    store: Annotated[
        str,
        Setting(
            kind=Text(least=1, most=4096),
            says="Where everything is kept: `sqlite:///file.db`.",
            secret=with_password,
            rooted=store_from_folder,
        ),
    ] = field(default="sqlite:///laneway.db", repr=False)
    allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(kind=HOSTS, says="Names that it may be called by, beside those of this machine and its address."),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...], Setting(kind=ORIGINS, says="Web pages of other origins that may call it.")
    ] = ()
    tls_certificate: Annotated[
        str, Setting(kind=FILE, says="The file with its certificate, for https.", rooted=from_folder)
    ] = ""
    tls_key: Annotated[str, Setting(kind=FILE, says="The file with the key of it.", rooted=from_folder)] = ""
    body_max: Annotated[int, Setting(kind=MANY, says="How many bytes a request may have.")] = 4_000_000
    requests_per_second: Annotated[
        int,
        Setting(kind=Whole(least=0, most=1_000_000_000), says="How many requests one caller may make; 0: any number."),
    ] = 1_000
    connections_max: Annotated[int, Setting(kind=MANY, says="How many connections there may be.")] = 20_000
    connections_per_address: Annotated[int, Setting(kind=MANY, says="How many of them from one address.")] = 5_000
    request_timeout_ms: Annotated[
        int, Setting(kind=SOME_MS, says="How long a request may take to come in as a whole.")
    ] = 30_000
    heartbeat_ms: Annotated[int, Setting(kind=SOME_MS, says="How often a silent stream gives a sign of life.")] = 15_000
    buffer_max: Annotated[int, Setting(kind=MANY, says="How many events a stream may lag behind before it is cut.")] = (
        1_000
    )
    sessions_max: Annotated[int, Setting(kind=MANY, says="How many idle sessions are held in memory.")] = 4_096
    passivate_after_ms: Annotated[
        int | None,
        Setting(
            kind=SOME_MS,
            says="After how long without work a session leaves memory; its next message brings it back.",
            unset="never",
        ),
    ] = None
    waiting_max: Annotated[
        int, Setting(kind=MANY, says="How many messages may wait in all before new ones are refused.")
    ] = 100_000
    oldest_max_ms: Annotated[
        int | None,
        Setting(
            kind=SOME_MS,
            says="How old the oldest waiting message may be before new ones are refused.",
            unset="any age",
        ),
    ] = None
    stalled_after_ms: Annotated[
        int, Setting(kind=SOME_MS, says="How long work may wait while nothing is started, before it is not ready.")
    ] = 60_000
    drain_ms: Annotated[int, Setting(kind=MS, says="How long runs may go on when it is asked to stop.")] = 10_000
    metrics_public: Annotated[
        bool, Setting(kind=Flag(), says="Whether `/metrics` needs no token where it is not this machine's alone.")
    ] = False
    otel_endpoint: Annotated[
        str, Setting(kind=Text(most=4096), says="Where OpenTelemetry spans go; empty: nowhere.", secret=with_password)
    ] = field(default="", repr=False)
    log_format: Annotated[
        str, Setting(kind=word_of("console", "json"), says="How a line of the log looks, on standard error.")
    ] = "console"
    log_level: Annotated[
        str, Setting(kind=word_of("debug", "info", "warning", "error"), says="From which level on lines are written.")
    ] = "warning"
    retention: Annotated[RetentionBlock, Sub(says="How much history stays on disk.")] = field(
        default_factory=RetentionBlock
    )
    channels: Annotated[
        Mapping[str, Mapping[str, Any]],
        Setting(
            kind=Tree(),
            says="A channel: its `kind` (`webhook`, `telegram`) and what that kind needs.",
            names="channel",
            secret=always,
        ),
    ] = field(default_factory=dict, repr=False)
