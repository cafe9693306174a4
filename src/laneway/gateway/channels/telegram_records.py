"""What passes between the channel and the Bot API of Telegram, without a word of its library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ("BotApi", "Me", "Press", "Received", "Text", "Unreadable", "Written")


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """Who the bot is."""

    id: int
    username: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A message that somebody wrote. `mentions`: begin, end, name in small letters, id of who has no name.

    `as_chat_id` is the chat in whose name it was written: an administrator who hides, or a channel.
    """

    update_id: int
    message_id: int
    chat_id: int
    chat_type: str
    user_id: int
    user_name: str = ""
    is_bot: bool = False
    as_chat_id: int = 0
    thread_id: int = 0
    text: str = ""
    mentions: tuple[tuple[int, int, str, int], ...] = ()
    answers_user: int = 0
    attachments: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """Somebody pressed a button under a message of ours."""

    update_id: int
    id: str
    chat_id: int
    chat_type: str
    user_id: int
    said: str
    user_name: str = ""
    thread_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Something that is not for us, or that cannot be read. It is passed over."""

    update_id: int


Received = Written | Press | Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A message of ours."""

    text: str
    thread_id: int = 0
    reply_to: int = 0
    format: str = "plain"
    buttons: tuple[tuple[str, str], ...] = ()


class BotApi(Protocol):
    """What the channel needs of Telegram.

    Every method may raise `RetryLater` (it says when), `GiveUp` (this call will never work), `ChannelRefusedError`
    (none will) and `UnavailableError` (try again).
    """

    async def me(self) -> Me:
        """Who we are."""

    async def updates(self, offset: int | None, timeout_s: int) -> list[Received]:
        """What has come; to ask with an offset says that everything before it has arrived."""

    async def say(self, chat_id: int, text: Text) -> None:
        """Send a message."""

    async def type(self, chat_id: int, thread_id: int) -> None:
        """Show that somebody is at work."""

    async def react(self, chat_id: int, message_id: int, emoji: str) -> None:
        """Put a reaction on a message."""

    async def answer(self, press_id: str, text: str) -> None:
        """Say what a press on a button has done."""

    async def close(self) -> None:
        """Let go of the connections."""
