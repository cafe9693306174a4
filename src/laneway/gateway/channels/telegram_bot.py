"""The Bot API of Telegram, by aiogram: its objects become records of ours here, and its errors what a channel knows.

This module is imported when a channel of this kind starts, not before: aiogram takes seconds and many megabytes.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import (
    AiogramError,
    ClientDecodeError,
    TelegramBadRequest,
    TelegramConflictError,
    TelegramForbiddenError,
    TelegramMigrateToChat,
    TelegramNotFound,
    TelegramRetryAfter,
    TelegramUnauthorizedError,
)
from aiogram.types import (
    CallbackQuery,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    Message,
    MessageEntity,
    ReactionTypeEmoji,
    ReplyParameters,
    Update,
)
from aiogram.utils.token import TokenValidationError
from pydantic import ValidationError

from laneway.errors import GiveUp, RetryLater, UnavailableError
from laneway.gateway.channels.port import ChannelRefusedError
from laneway.gateway.channels.telegram_records import Me, Press, Received, Text, Unreadable, Written

__all__ = ("AiogramBot", "open_bot")

ALLOWED: Final = ["message", "callback_query"]
FILES: Final = ("document", "audio", "video", "voice", "animation", "video_note", "sticker")
SPARE_S: Final = 15
REQUEST_S: Final = 30
UNPARSED: Final = "can't parse entities"


def open_bot(token: str, api_url: str) -> AiogramBot:
    """A bot at an API; nothing is asked yet."""
    session = AiohttpSession(api=TelegramAPIServer.from_base(api_url), timeout=REQUEST_S)
    try:
        return AiogramBot(Bot(token, session=session))
    except TokenValidationError:
        raise ChannelRefusedError("the token does not have the form of one") from None


class AiogramBot:
    """What the channel needs of Telegram."""

    def __init__(self, bot: Bot) -> None:
        self._bot = bot

    async def me(self) -> Me:
        """Who we are; refused if the token is not good."""
        try:
            user = await self._bot.get_me()
        except AiogramError as error:
            raise self._translated(error) from None
        return Me(id=user.id, username=user.username or "")

    async def updates(self, offset: int | None, timeout_s: int) -> list[Received]:
        """What has come since; waits for something."""
        try:
            found = await self._bot.get_updates(
                offset, timeout=timeout_s, allowed_updates=ALLOWED, request_timeout=timeout_s + SPARE_S
            )
        except ClientDecodeError as error:
            return _salvaged(error.data)
        except AiogramError as error:
            raise self._translated(error) from None
        if not isinstance(found, list):  # "ok" and no result
            raise UnavailableError("Telegram answers something that cannot be read")
        return [_received(update) for update in found]

    async def say(self, chat_id: int, text: Text) -> None:
        """Send a message."""
        buttons = [InlineKeyboardButton(text=label, callback_data=said) for label, said in text.buttons]
        more: dict[str, Any] = {}
        if text.thread_id:
            more["message_thread_id"] = text.thread_id
        if buttons:
            more["reply_markup"] = InlineKeyboardMarkup(inline_keyboard=[buttons])
        if text.reply_to:
            more["reply_parameters"] = ReplyParameters(message_id=text.reply_to, allow_sending_without_reply=True)
        mode = {"plain": None, "markdown": "MarkdownV2", "html": "HTML"}[text.format]
        preview = LinkPreviewOptions(is_disabled=True)
        try:
            try:
                await self._bot.send_message(chat_id, text.text, parse_mode=mode, link_preview_options=preview, **more)
            except TelegramBadRequest as error:
                if mode is None or UNPARSED not in error.message:
                    raise
                await self._bot.send_message(chat_id, text.text, parse_mode=None, link_preview_options=preview, **more)
            except TelegramMigrateToChat as error:
                more.pop("reply_parameters", None)
                moved = error.migrate_to_chat_id
                await self._bot.send_message(moved, text.text, parse_mode=None, link_preview_options=preview, **more)
        except AiogramError as error:
            raise self._translated(error) from None

    async def type(self, chat_id: int, thread_id: int) -> None:
        """Show that somebody is at work, for five seconds."""
        try:
            await self._bot.send_chat_action(chat_id, "typing", message_thread_id=thread_id or None)
        except AiogramError as error:
            raise self._translated(error) from None

    async def react(self, chat_id: int, message_id: int, emoji: str) -> None:
        """Put a reaction on a message."""
        try:
            await self._bot.set_message_reaction(chat_id, message_id, reaction=[ReactionTypeEmoji(emoji=emoji)])
        except AiogramError as error:
            raise self._translated(error) from None

    async def answer(self, press_id: str, text: str) -> None:
        """Say what a press on a button has done."""
        try:
            await self._bot.answer_callback_query(press_id, text=text)
        except AiogramError as error:
            raise self._translated(error) from None

    async def close(self) -> None:
        """Let go of the connections."""
        await self._bot.session.close()

    def _translated(self, error: AiogramError) -> Exception:
        """What an error means. The token is part of every address, so it is taken out of what is said."""
        said = str(getattr(error, "message", "")) or type(error).__name__
        text = said.replace(self._bot.token, "<token>")[:300]
        match error:
            case TelegramRetryAfter():
                return RetryLater(max(1, int(error.retry_after)) * 1000, text)
            case TelegramUnauthorizedError():
                return ChannelRefusedError("Telegram does not accept the token")
            case TelegramNotFound():
                return ChannelRefusedError(f"Telegram knows no bot with this token: {text}")
            case TelegramForbiddenError() | TelegramBadRequest() | TelegramMigrateToChat():
                return GiveUp(text)
            case TelegramConflictError():
                return UnavailableError(f"another process asks for the messages of this bot: {text}")
            case ClientDecodeError():
                return UnavailableError("Telegram answers something that cannot be read")  # it may be anybody's text
            case _:
                return UnavailableError(text)


def _salvaged(answer: Any) -> list[Received]:
    """The updates of an answer in which one cannot be read: that one is passed over, the others are not lost."""
    listed = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        raise UnavailableError("Telegram answers something that cannot be read")
    found: list[Received] = []
    for each in listed:
        try:
            found.append(_received(Update.model_validate(each)))
        except ValidationError:
            update_id = each.get("update_id") if isinstance(each, dict) else None
            if type(update_id) is int:
                found.append(Unreadable(update_id=update_id))
    if not found:
        raise UnavailableError("Telegram answers something that cannot be read")
    return found


def _received(update: Update) -> Received:
    if update.message is not None:
        return _written(update.update_id, update.message)
    if update.callback_query is not None:
        return _press(update.update_id, update.callback_query)
    return Unreadable(update_id=update.update_id)


def _written(update_id: int, message: Message) -> Written:
    text = message.text if message.text is not None else message.caption or ""
    entities = message.entities if message.text is not None else message.caption_entities
    user, replied = message.from_user, message.reply_to_message
    is_topic = bool(message.is_topic_message and message.message_thread_id)
    return Written(
        update_id=update_id,
        message_id=message.message_id,
        chat_id=message.chat.id,
        chat_type=str(message.chat.type),
        thread_id=(message.message_thread_id or 0) if is_topic else 0,
        user_id=user.id if user is not None else 0,
        user_name=user.full_name if user is not None else "",
        is_bot=bool(user is not None and user.is_bot),
        as_chat_id=message.sender_chat.id if message.sender_chat is not None else 0,
        text=text,
        mentions=tuple(_mentions(text, entities or [])),
        answers_user=replied.from_user.id if replied is not None and replied.from_user is not None else 0,
        attachments=tuple(_attachments(message)),
    )


def _mentions(text: str, entities: list[MessageEntity]) -> list[tuple[int, int, str, int]]:
    """Begin and end in characters, the name that is mentioned, and the id of who has none."""
    found = []
    units = text.encode("utf-16-le")
    for each in entities:
        kind: Literal["mention", "text_mention"] | str = str(each.type)
        if kind in ("mention", "text_mention"):
            begin = len(units[: each.offset * 2].decode("utf-16-le", "replace"))
            part = units[each.offset * 2 : (each.offset + each.length) * 2].decode("utf-16-le", "replace")
            user_id = each.user.id if kind == "text_mention" and each.user is not None else 0
            name = part.removeprefix("@").lower() if kind == "mention" else ""
            found.append((begin, begin + len(part), name, user_id))
    return found


def _attachments(message: Message) -> list[dict[str, Any]]:
    """Files by their ids: whoever has the token can fetch them, and nothing is loaded here."""
    found = []
    if message.photo:
        largest = message.photo[-1]
        found.append(_file("photo", largest))
    for kind in FILES:
        file = getattr(message, kind, None)
        if file is not None:
            found.append(_file(kind, file))
    if message.location is not None:
        place = message.location
        found.append({"kind": "location", "latitude": place.latitude, "longitude": place.longitude})
    return found


def _file(kind: str, file: Any) -> dict[str, Any]:
    facts = {
        "kind": kind,
        "source": "telegram",
        "file_id": file.file_id,
        "file_unique_id": file.file_unique_id,
        "name": getattr(file, "file_name", None),
        "media_type": getattr(file, "mime_type", None),
        "size": getattr(file, "file_size", None),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _press(update_id: int, query: CallbackQuery) -> Received:
    message = query.message
    if message is None or not query.data:
        return Unreadable(update_id=update_id)
    is_topic = isinstance(message, Message) and bool(message.is_topic_message)
    thread_id = (message.message_thread_id or 0) if isinstance(message, Message) and is_topic else 0
    return Press(
        update_id=update_id,
        id=query.id,
        chat_id=message.chat.id,
        chat_type=str(message.chat.type),
        thread_id=thread_id,
        user_id=query.from_user.id,
        user_name=query.from_user.full_name,
        said=query.data,
    )
