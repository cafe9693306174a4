"""Channels: where messages come from and answers go to. `port` says what one is; the page and the API need none.

```yaml
gateway:
  channels:
    partner:
      kind: webhook
      secrets: [${PARTNER_SECRET}]
      url: https://example.org/hooks/laneway
    telegram:
      kind: telegram
      token: ${TELEGRAM_TOKEN}
      owners: [1234567]
```
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from laneway.config import Effective, Problem
from laneway.errors import ConfigError
from laneway.gateway.channels.fields import Fields
from laneway.gateway.channels.port import Channel, Place
from laneway.gateway.channels.running import note, running
from laneway.gateway.channels.telegram import TelegramChannel, TelegramOptions
from laneway.gateway.channels.webhook import WebhookChannel, WebhookOptions

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("KINDS", "channel_problems", "channels_of", "running", "start_channels")


def _webhook(fields: Fields) -> tuple[Place, Channel]:
    options = WebhookOptions.read(fields)
    return options.place, WebhookChannel(options)


def _telegram(fields: Fields) -> tuple[Place, Channel]:
    options = TelegramOptions.read(fields)
    if importlib.util.find_spec("aiogram") is None:
        raise fields.wrong("kind", "needs aiogram", "install laneway with the extra `telegram`")
    return options.place, TelegramChannel(options)


KINDS: Final[dict[str, Callable[[Fields], tuple[Place, Channel]]]] = {"webhook": _webhook, "telegram": _telegram}
"""Every kind of channel, and how one is made from its settings."""


def channels_of(settings: Mapping[str, Any], workspaces: Collection[str] | None = None) -> list[Channel]:
    """The channels of a configuration, not started; raises `ConfigError` for what is wrong with one.

    `workspaces` are those of the server; without them a channel may name any.
    """
    made: list[Channel] = []
    for name, block in settings.items():
        fields = Fields(str(name), block)
        kind = fields.word("kind", "", KINDS)
        place, channel = KINDS[kind](fields)
        fields.done()
        if workspaces is not None and place.workspace and place.workspace not in workspaces:
            raise fields.wrong("workspace", "is none of this server", f"there are: {', '.join(workspaces)}")
        made.append(channel)
    return made


def channel_problems(found: Effective, workspaces: Collection[str] | None = None) -> list[Problem]:
    """What is wrong with the channels of a configuration: of each the first thing, with the place of its block."""
    problems = []
    for name, block in found.settings.gateway.channels.items():
        try:
            channels_of({name: block}, workspaces)
        except ConfigError as error:
            origin = found.origin(f"gateway.channels.{name}")
            problems.append(
                Problem(
                    source=origin.file or str(origin),
                    line=origin.line,
                    column=origin.column,
                    message=error.message,
                    setting=error.setting,
                    hint=error.hint,
                )
            )
    return problems


async def start_channels(gateway: Gateway) -> list[Channel]:
    """Start what is configured. Whoever calls this stops them, the last one first."""
    started: list[Channel] = []
    try:
        for channel in channels_of(gateway.settings.channels, gateway.workspaces):
            await channel.start(gateway)
            started.append(channel)
    except BaseException:
        for channel in reversed(started):
            await channel.stop()
        raise
    note(gateway, started)
    return started
