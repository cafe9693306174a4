"""Telegram: a bot whose chats are sessions.

**In.** Messages are asked for (long polling). To ask for what comes after one says that it has arrived, so that is
asked only after it is on disk; what comes twice has the same id in its chat and gets the first receipt. A message that
cannot be taken now, because the store is gone or too much waits, holds up those after it, in Telegram's queue.

**Who.** In a group the bot answers whoever speaks to it: by its name, by an answer, by a command with its name. Rights
go by the numbers of users in the configuration. An administrator who hides has those of a stranger.

**Out.** See `outbox`. Long answers become several messages. What is only nice to have (a reaction, "is typing", a
notice that a message waits) is tried once, and never holds up anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never

from laneway.agent.subagents import root_of
from laneway.errors import (
    ClosedError,
    DrainingError,
    FencedError,
    GiveUp,
    LanewayError,
    RetryLater,
    UnavailableError,
    describe,
)
from laneway.events import ApprovalAsked, Event, MessageWaited, SessionEvent, TurnEnded, TurnStarted, TypingStarted
from laneway.gateway.channels.fields import Fields
from laneway.gateway.channels.outbox import STOP_MS, Later, Outbox, later
from laneway.gateway.channels.port import ChannelRefusedError, Outgoing, Place, Saying
from laneway.gateway.channels.splitting import length_of, split
from laneway.gateway.channels.taking import submit
from laneway.gateway.channels.telegram_records import BotApi, Me, Press, Received, Text, Unreadable, Written
from laneway.kernel.jobs import backoff_ms
from laneway.mail import MessageState, Receipt, Sender
from laneway.records import RetryPolicy

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("TelegramChannel", "TelegramOptions")

_log = logging.getLogger("laneway.channels")

API: Final = "https://api.telegram.org"
TEXT_MAX: Final = 4_096
PIECES_MAX: Final = 20
BUTTON_MAX: Final = 64  # bytes of what a button says when it is pressed
TOAST_MAX: Final = 200
TYPING_MS: Final = 4_500  # Telegram shows it for five seconds
TYPING_MOST: Final = 400  # half an hour
CHORES_MAX: Final = 1_000
CHORE_WORKERS: Final = 2
PATIENCE_S: Final = 50
PRIVATE: Final = "private"
SEEN: Final = "👀"
START: Final = "/start"
GREETING: Final = "Hello. Write what you want to have done; /status says what is going on, /stop ends it."
IMPATIENT: Final = RetryPolicy(initial_delay_ms=1_000, factor=2.0, max_delay_ms=30_000, jitter=0.5)
"""When Telegram is asked again: people wait."""
NOT_NOW: Final = (UnavailableError, ClosedError, DrainingError)

OpenBot = Callable[[str, str], Awaitable[BotApi]]
"""A bot from its token and the address of the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramOptions:
    """The settings of a channel of this kind."""

    place: Place
    token: str = field(repr=False)
    api_url: str = API
    users: frozenset[str] = frozenset()
    chats: frozenset[str] = frozenset()
    groups: str = "mention"
    receipts: str = "reaction"
    typing: bool = True
    format: str = "plain"
    poll_s: int = PATIENCE_S

    @classmethod
    def read(cls, fields: Fields) -> TelegramOptions:
        """From the configuration; raises `ConfigError`."""
        token = fields.text("token", hint="what @BotFather gave you; write ${TELEGRAM_TOKEN} and set that variable")
        number, colon, secret = token.partition(":")
        if not (colon and number.isascii() and number.isdigit() and secret) or any(char.isspace() for char in token):
            raise fields.wrong("token", "is none: a token is a number, a colon and letters")
        api_url = fields.text("api_url", API)
        if not api_url.startswith(("http://", "https://")) or "{" in api_url:
            raise fields.wrong("api_url", "begins with http:// or https://")
        return cls(
            place=fields.place(),
            token=token,
            api_url=api_url,
            users=frozenset(fields.texts("users")),
            chats=frozenset(fields.texts("chats")),
            groups=fields.word("groups", "mention", ("mention", "all", "off")),
            receipts=fields.word("receipts", "reaction", ("reaction", "notice", "off")),
            typing=fields.flag("typing", default=True),
            format=fields.word("format", "plain", ("plain", "markdown", "html")),
            poll_s=fields.whole("poll_s", PATIENCE_S, least=1, most=PATIENCE_S),
        )

    def lets_in(self, user_id: int, chat_id: int) -> bool:
        """Whether somebody may talk to the bot at all."""
        if not self.users and not self.chats:
            return True
        rights = self.place.rights
        known = self.users | rights.owners | rights.approvers
        return str(user_id) in known or str(chat_id) in self.chats


class TelegramChannel:
    """One bot."""

    kind = "telegram"

    def __init__(
        self,
        options: TelegramOptions,
        *,
        open_bot: OpenBot | None = None,
        call_later: Later = later,
        stop_ms: int = STOP_MS,
    ) -> None:
        self._options = options
        self._place = options.place
        self._account = options.token.partition(":")[0]
        self._open_bot = open_bot or _open_aiogram
        self._later = call_later
        self._stop_ms = stop_ms
        self._me = Me(id=0, username="")
        self._bot: BotApi | None = None
        self._gateway: Gateway | None = None
        self._run: asyncio.Task[None] | None = None
        self._chores: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue(maxsize=CHORES_MAX)
        self._typing: dict[str, Callable[[], object]] = {}
        self._unlisten: Callable[[], None] = lambda: None
        self.outbox: Outbox | None = None
        self.problem = ""
        self._is_leaving = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self._place.name

    # ---- beginning and end ----

    async def start(self, gateway: Gateway) -> None:
        """Begin, in the background: Telegram may not be there yet."""
        self._gateway = gateway
        gateway.workspace(self._place.workspace)
        self._run = asyncio.get_running_loop().create_task(self._live(), name=f"laneway-telegram-{self.name}")

    async def stop(self) -> None:
        """Take nothing more, say what can be said in a moment."""
        if self._run is not None:
            self._end()
            await asyncio.gather(self._run, return_exceptions=True)
            self._run = None

    def _end(self) -> None:
        if self._run is not None and not self._is_leaving:  # to cancel that would leave the store open
            self._run.cancel()

    async def _live(self) -> None:
        try:
            await self._connect()
            await self._serve()
        except ChannelRefusedError as error:
            self._refused(str(error))
        except FencedError:
            self._refused("another process owns the store now")
        except Exception as error:  # noqa: BLE001 - the rest of the server lives on
            self._refused(f"it ended with an error: {type(error).__name__}")
        finally:
            await self._leave()

    async def _connect(self) -> None:
        failures = 0
        while True:
            try:
                if self._bot is None:
                    self._bot = await self._open_bot(self._options.token, self._options.api_url)
                self._me = await self._bot.me()
            except ChannelRefusedError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever Telegram does, it is asked again
                failures += 1
                await self._wait_after(error, failures)
            else:
                self.problem = ""
                return

    async def _serve(self) -> None:
        assert self._gateway is not None
        self.outbox = Outbox(
            self._gateway,
            self._place,
            self,
            account=self._account,
            call_later=self._later,
            on_refused=self._outbox_refused,
        )
        failures = 0
        while not await self._opened(self.outbox, failures):
            failures += 1
        workspace = self._gateway.workspace(self._place.workspace)
        self._unlisten = workspace.inbox.engine.listen(self._hear)
        loop = asyncio.get_running_loop()
        chores = [loop.create_task(self._do_chores(), name="laneway-chores") for _ in range(CHORE_WORKERS)]
        try:
            await self._poll()
        finally:
            for task in chores:
                task.cancel()
            await asyncio.gather(*chores, return_exceptions=True)

    async def _opened(self, outbox: Outbox, failures: int) -> bool:
        try:
            await outbox.open()
        except UnavailableError as error:
            await self._wait_after(error, failures + 1)
            return False
        self.problem = ""
        return True

    async def _leave(self) -> None:
        self._is_leaving = True
        self._unlisten()
        for take_back in self._typing.values():
            take_back()
        self._typing.clear()
        if self.outbox is not None:
            await self.outbox.close(self._stop_ms)
        if self._bot is not None:
            await self._bot.close()

    def _refused(self, reason: str) -> None:
        self.problem = reason
        _log.error("channel %r has stopped: %s", self.name, reason)

    def _outbox_refused(self, reason: str) -> None:
        self._refused(reason)
        self._end()

    async def _wait_after(self, error: Exception, failures: int) -> None:
        """Wait before the next try, and let people see why."""
        known = isinstance(error, LanewayError | RetryLater | GiveUp)
        self.problem = str(error) if known else type(error).__name__  # who knows what a library writes into its errors
        assert self._gateway is not None
        if isinstance(error, RetryLater):
            delay_ms = error.after_ms
        else:
            delay_ms = backoff_ms(IMPATIENT, retry=failures, jitter=self._gateway.env.random.random())
        _log.warning("channel %r waits %d ms: %s", self.name, delay_ms, self.problem)
        await self._pause(delay_ms)

    async def _pause(self, delay_ms: int) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        take_back = self._later(delay_ms, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            take_back()

    # ---- in ----

    async def _poll(self) -> None:
        assert self._bot is not None
        offset: int | None = None
        failures = 0
        while True:
            try:
                updates = await self._bot.updates(offset, self._options.poll_s)
            except ChannelRefusedError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever Telegram does, it is asked again
                failures += 1
                await self._wait_after(error, failures)
                continue
            failures, self.problem = 0, ""
            for update in sorted(updates, key=lambda each: each.update_id):
                if offset is None or update.update_id >= offset:
                    await self._take(update)
                    offset = update.update_id + 1

    async def _take(self, update: Received) -> None:
        """Take what has come, however long that takes. What is wrong with it is its sender's business."""
        failures = 0
        while True:
            try:
                match update:
                    case Written():
                        await self._take_message(update)
                    case Press():
                        await self._take_press(update)
                    case Unreadable():
                        pass
                    case _:
                        assert_never(update)
            except NOT_NOW as error:
                failures += 1
                await self._wait_after(error, failures)
            except FencedError:
                raise
            except LanewayError as error:
                self._chore(functools.partial(self._say_to, update, f"This was not taken: {error.message}."))
                return
            except Exception as error:  # noqa: BLE001 - one message must not hold up all others for ever
                _log.error("channel %r passes over update %d: %s", self.name, update.update_id, type(error).__name__)
                return
            else:
                self.problem = ""
                return

    async def _take_message(self, message: Written) -> None:
        text = self._addressed(message)
        if text is None or not (text or message.attachments):
            return
        if not self._options.lets_in(message.user_id, message.chat_id) or (message.is_bot and not message.as_chat_id):
            return
        if text == START and message.chat_type == PRIVATE:
            self._chore(lambda: self._say_to(message, GREETING))
            return
        receipt = await self._submit(message, text, str(message.message_id), self._sender(message), message.attachments)
        if receipt.disposition is MessageState.COMMAND or receipt.duplicate:
            return
        if self._options.receipts == "reaction":
            bot = self._bot
            assert bot is not None
            self._chore(lambda: bot.react(message.chat_id, message.message_id, SEEN))

    async def _take_press(self, press: Press) -> None:
        if not self._options.lets_in(press.user_id, press.chat_id):
            return
        verb, _, approval_id = press.said.partition(":")
        if verb not in ("approve", "deny") or not approval_id:
            return
        sender = self._place.sender(str(press.user_id), press.user_name)
        receipt = await self._submit(press, f"/{verb} {approval_id}", f"press:{press.id}", sender)
        bot = self._bot
        assert bot is not None
        said = (receipt.reply or receipt.reason)[:TOAST_MAX]
        self._chore(lambda: bot.answer(press.id, said))

    async def _submit(
        self,
        update: Written | Press,
        text: str,
        message_id: str,
        sender: Sender,
        attachments: Sequence[dict[str, object]] = (),
    ) -> Receipt:
        gateway = self._gateway
        assert gateway is not None
        return await submit(
            gateway,
            self._place,
            self._key(update),
            text,
            sender=sender,
            account=self._account,
            thread=str(update.thread_id) if update.thread_id else "",
            chat_type=update.chat_type,
            attachments=attachments,
            message_id=message_id,
        )

    def _key(self, update: Written | Press) -> str:
        return self._place.key(update.chat_id, *([update.thread_id] if update.thread_id else []))

    def _sender(self, message: Written) -> Sender:
        if message.as_chat_id or not message.user_id:
            return self._place.stranger(f"chat{message.as_chat_id or message.chat_id}", message.user_name)
        return self._place.sender(str(message.user_id), message.user_name)

    def _addressed(self, message: Written) -> str | None:
        """What is said to the bot, without its name; None if it is not meant."""
        text, me = message.text, self._me
        name = me.username.lower()
        command, at, target = text.partition(" ")[0].partition("@")
        is_command = command.startswith("/") and len(command) > 1
        if is_command and at:
            if target.lower() != name:
                return None
            text = command + text[len(command) + 1 + len(target) :]
        if message.chat_type == PRIVATE:
            return text.strip()
        mine = [each for each in message.mentions if (name and each[2] == name) or (me.id and each[3] == me.id)]
        is_meant = bool(mine) or (is_command and bool(at)) or (bool(me.id) and message.answers_user == me.id)
        if self._options.groups == "off" or (self._options.groups == "mention" and not is_meant):
            return None
        if mine and not text[: mine[0][0]].strip():
            text = text[mine[0][1] :]
        return text.strip().removeprefix(",").strip()

    # ---- out ----

    def pieces(self, said: Outgoing) -> Sequence[str]:
        """Messages of at most 4,096 characters, and not too many of them."""
        if self._target(said.session_key) is None:
            return []
        pieces = split(said.text, TEXT_MAX)
        if len(pieces) > PIECES_MAX:
            left = sum(map(length_of, pieces[PIECES_MAX - 1 :]))
            pieces = [*pieces[: PIECES_MAX - 1], f"… {left:,} more characters are in the history of this session."]
        return pieces

    async def send(self, said: Outgoing, piece: str, number: int) -> None:
        """Send one message."""
        target = self._target(said.session_key)
        assert target is not None
        assert self._bot is not None
        chat_id, thread_id = target
        is_group = chat_id < 0
        reply_to = int(said.reply_to) if is_group and not number and said.reply_to.isdigit() else 0
        await self._bot.say(
            chat_id,
            Text(
                text=piece,
                thread_id=thread_id,
                reply_to=reply_to,
                format=self._options.format if said.kind is Saying.REPLY else "plain",
                buttons=self._buttons(said, number),
            ),
        )
        self._end_typing(said.session_key)

    def _buttons(self, said: Outgoing, number: int) -> tuple[tuple[str, str], ...]:
        """Under the last piece of a request, and only if all of it is shown: nobody approves what they cannot see."""
        if said.kind is not Saying.APPROVAL:
            return ()
        count = len(split(said.text, TEXT_MAX))
        fits = len(f"approve:{said.approval_id}".encode()) <= BUTTON_MAX
        if not fits or count > PIECES_MAX or number != count - 1:
            return ()
        return ("Approve", f"approve:{said.approval_id}"), ("Deny", f"deny:{said.approval_id}")

    def _target(self, session_key: str) -> tuple[int, int] | None:
        """The chat and the thread of a session; None for one that is no chat."""
        parts = session_key.removeprefix(self._place.prefix).split(":")
        if len(parts) > 2 or not all(part.removeprefix("-").isdigit() and part.isascii() for part in parts):
            return None
        return int(parts[0]), int(parts[1]) if len(parts) == 2 else 0

    # ---- what is only nice to have ----

    def _hear(self, event: Event) -> None:
        if (
            not isinstance(event, SessionEvent)
            or event.tenant != self._place.tenant
            or not event.session_key.startswith(self._place.prefix)
            or root_of(event.session_key) != event.session_key
        ):
            return
        key = event.session_key
        match event:
            case TypingStarted() if self._options.typing:
                self._type(key)
            case TurnStarted() if self._options.typing:
                self._keep_typing(key, TYPING_MOST)
            case TurnEnded() | ApprovalAsked():
                self._end_typing(key)
            case MessageWaited() if event.notice and self._options.receipts == "notice":
                self._chore(lambda: self._say_in(key, event.notice))
            case _:
                pass

    def _type(self, key: str) -> None:
        target, bot = self._target(key), self._bot
        if target is not None and bot is not None:
            self._chore(lambda: bot.type(*target))

    def _keep_typing(self, key: str, left: int) -> None:
        self._end_typing(key)
        self._type(key)
        if left:
            self._typing[key] = self._later(TYPING_MS, lambda: self._keep_typing(key, left - 1))

    def _end_typing(self, key: str) -> None:
        take_back = self._typing.pop(key, None)
        if take_back is not None:
            take_back()

    async def _say_to(self, update: Received, text: str) -> None:
        if isinstance(update, Written | Press):
            await self._say_in(self._key(update), text)

    async def _say_in(self, key: str, text: str) -> None:
        target = self._target(key)
        if target is not None and self._bot is not None:
            await self._bot.say(target[0], Text(text=split(text, TEXT_MAX)[0], thread_id=target[1]))

    def _chore(self, call: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # then people see a little less
            self._chores.put_nowait(call)

    async def _do_chores(self) -> None:
        while True:
            call = await self._chores.get()
            try:
                await call()
            except ChannelRefusedError:
                pass  # who asks for messages hears it, too
            except Exception as error:  # noqa: BLE001 - it was only nice to have
                _log.debug("channel %r: %s", self.name, describe(error))
            finally:
                self._chores.task_done()


async def _open_aiogram(token: str, api_url: str) -> BotApi:
    """The real one. Its import takes seconds, so that is done on a thread."""
    module = await asyncio.to_thread(importlib.import_module, "laneway.gateway.channels.telegram_bot")
    bot: BotApi = module.open_bot(token, api_url)
    return bot
