"""Settings as the arguments of `Inbox` and `Lanes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TypedDict

from laneway.config.settings import Settings
from laneway.mail import Drop, Mode, OnCrash, QueueOptions
from laneway.records import LaneConfig

__all__ = (
    "InboxOptions",
    "LanesOptions",
    "by_channel",
    "inbox_options",
    "lane_configs",
    "lanes_options",
    "queue_options",
)

MAIN = "main"


class InboxOptions(TypedDict):
    """What `Inbox(handler, **inbox_options(settings))` gets."""

    mode: Mode
    debounce_ms: int
    max_wait_ms: int | None
    debounce_idle: bool
    cap: int
    drop: Drop
    interrupt_grace_ms: int
    dedupe_ms: int
    expires_ms: int | None
    on_crash: OnCrash
    by_channel: Mapping[str, QueueOptions]
    concurrency: int


class LanesOptions(TypedDict):
    """What `Lanes(**lanes_options(settings))` gets."""

    lanes: Mapping[str, LaneConfig]
    max_concurrent: int | None


def queue_options(settings: Settings) -> QueueOptions:
    """The settings that a session or a message may override."""
    queue = settings.queue
    return QueueOptions(mode=queue.mode, debounce_ms=queue.debounce_ms, cap=queue.cap, drop=queue.drop)


def by_channel(settings: Settings) -> dict[str, QueueOptions]:
    """What is different for each channel that has settings of its own."""
    found = {name: QueueOptions(**asdict(block)) for name, block in settings.queue.by_channel.items()}
    return {name: options for name, options in found.items() if not options.is_empty}


def lane_configs(settings: Settings) -> dict[str, LaneConfig]:
    """Every configured lane."""
    return {name: LaneConfig(**asdict(block)) for name, block in settings.lanes.items()}


def inbox_options(settings: Settings) -> InboxOptions:
    """The keyword arguments of an `Inbox`. Its `concurrency` is the width of lane `main`."""
    queue = settings.queue
    return InboxOptions(
        mode=queue.mode,
        debounce_ms=queue.debounce_ms,
        max_wait_ms=queue.max_wait_ms,
        debounce_idle=queue.debounce_idle,
        cap=queue.cap,
        drop=queue.drop,
        interrupt_grace_ms=queue.interrupt_grace_ms,
        dedupe_ms=queue.dedupe_ms,
        expires_ms=queue.expires_ms,
        on_crash=queue.on_crash,
        by_channel=by_channel(settings),
        concurrency=settings.lanes[MAIN].concurrency,
    )


def lanes_options(settings: Settings) -> LanesOptions:
    """The keyword arguments of `Lanes`."""
    return LanesOptions(lanes=lane_configs(settings), max_concurrent=settings.max_concurrent)
