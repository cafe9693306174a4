"""Channels for tests: a bot that does as it is told, timers that go off when a test says so, and a partner."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from laneway.errors import UnavailableError
from laneway.gateway.channels.fields import Fields
from laneway.gateway.channels.telegram import TelegramChannel, TelegramOptions
from laneway.gateway.channels.telegram_records import Me, Received, Text, Written
from laneway.gateway.service import Gateway
from tests.gateway_stage import gateway_in

TOKEN = "42:secret-of-the-bot"
ME = Me(id=42, username="LanewayBot")
SECRET = "whsec_" + "A" * 32 + "AAAAAAAAAAA="


class Timers:
    """Timers that go off when the test says so."""

    def __init__(self) -> None:
        self.delays: list[int] = []
        self._calls: deque[tuple[int, Callable[[], None]]] = deque()
        self._set = asyncio.Event()

    def later(self, delay_ms: int, call: Callable[[], None]) -> Callable[[], object]:
        """Note a timer."""
        self.delays.append(delay_ms)
        entry = (delay_ms, call)
        self._calls.append(entry)
        self._set.set()

        def take_back() -> None:
            if entry in self._calls:
                self._calls.remove(entry)

        return take_back

    @property
    def left(self) -> int:
        """How many timers have not gone off and were not taken back."""
        return len(self._calls)

    async def fire(self) -> int:
        """Wait until there is a timer, and let the first one go off; its delay."""
        while not self._calls:
            self._set.clear()
            await self._set.wait()
        delay_ms, call = self._calls.popleft()
        call()
        return delay_ms


class FakeBot:
    """Telegram, as one bot sees it. What is in `troubles` is raised by the next calls that say something."""

    def __init__(self, *updates: Received) -> None:
        self.pending: list[Received] = list(updates)
        self.said: list[tuple[int, Text]] = []
        self.typed: list[tuple[int, int]] = []
        self.reactions: list[tuple[int, int, str]] = []
        self.answers: list[tuple[str, str]] = []
        self.acknowledged = 0
        self.troubles: list[Exception] = []
        self.poll_troubles: list[Exception] = []
        self.me_troubles: list[Exception] = []
        self.hangs_after_saying = False
        self.fails_from: int | None = None  # so many messages are sent, and no more
        self.failed = 0
        self._news = asyncio.Event()
        self._done = asyncio.Event()
        self.is_closed = False

    def push(self, *updates: Received) -> None:
        """Something comes in."""
        self.pending += updates
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something was done."""
        while not condition():
            self._done.clear()
            await self._done.wait()

    def _note(self) -> None:
        self._done.set()

    def texts(self, chat_id: int | None = None) -> list[str]:
        """What was said, in one chat or in all."""
        return [text.text for chat, text in self.said if chat_id in (None, chat)]

    async def me(self) -> Me:
        if self.me_troubles:
            raise self.me_troubles.pop(0)
        return ME

    async def updates(self, offset: int | None, timeout_s: int) -> list[Received]:
        if self.poll_troubles:
            raise self.poll_troubles.pop(0)
        if offset is not None:
            self.acknowledged = offset
            self.pending = [each for each in self.pending if each.update_id >= offset]
            self._note()
        while not self.pending:
            self._news.clear()
            await self._news.wait()
        return list(self.pending)

    async def say(self, chat_id: int, text: Text) -> None:
        if self.troubles:
            self._note()
            raise self.troubles.pop(0)
        if self.fails_from is not None and len(self.said) >= self.fails_from:
            self.failed += 1
            self._note()
            raise UnavailableError("no network")
        self.said.append((chat_id, text))
        self._note()
        if self.hangs_after_saying:
            await asyncio.Event().wait()

    async def type(self, chat_id: int, thread_id: int) -> None:
        self.typed.append((chat_id, thread_id))
        self._note()

    async def react(self, chat_id: int, message_id: int, emoji: str) -> None:
        self.reactions.append((chat_id, message_id, emoji))
        self._note()

    async def answer(self, press_id: str, text: str) -> None:
        self.answers.append((press_id, text))
        self._note()

    async def close(self) -> None:
        self.is_closed = True
        self._note()


def written(number: int, text: str, **more: Any) -> Written:
    """A message in a private chat of user 7."""
    given: dict[str, Any] = {"chat_id": 7, "chat_type": "private", "user_id": 7, "user_name": "Ada", **more}
    return Written(update_id=1000 + number, message_id=number, text=text, **given)


def grouped(number: int, text: str, **more: Any) -> Written:
    """A message in a group."""
    return written(number, text, **{"chat_id": -100, "chat_type": "supergroup", **more})


def mention(text: str, name: str = "laneway" + "bot") -> tuple[tuple[int, int, str, int], ...]:
    """Where a name is mentioned in a text."""
    begin = text.lower().index("@" + name)
    return ((begin, begin + len(name) + 1, name, 0),)


def bot_of(bot: FakeBot, *, timers: Timers | None = None, name: str = "telegram", **settings: Any) -> TelegramChannel:
    """A channel on a fake bot."""
    fields = Fields(name, {"token": TOKEN, **settings})
    options = TelegramOptions.read(fields)
    fields.done()

    async def open_bot(token: str, api_url: str) -> FakeBot:
        return bot

    more: dict[str, Any] = {} if timers is None else {"call_later": timers.later}
    return TelegramChannel(options, open_bot=open_bot, stop_ms=20, **more)


@contextlib.asynccontextmanager
async def telegram_stage(
    folder: Path, bot: FakeBot, *, timers: Timers | None = None, channel: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Gateway, TelegramChannel]]:
    """A gateway with one bot."""
    async with gateway_in(folder, **options) as gateway:
        made = bot_of(bot, timers=timers, **(channel or {}))
        await made.start(gateway)
        try:
            yield gateway, made
        finally:
            await made.stop()


class Partner:
    """Another system that is posted to, on a port of this machine. `answers` are the statuses of the next posts."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, str]] = []
        self.url = ""
        self._news = asyncio.Event()

    async def until(self, count: int) -> None:
        """Wait for so many posts."""
        while len(self.posts) < count:
            self._news.clear()
            await self._news.wait()

    def said(self) -> list[str]:
        """The texts of all posts."""
        return [json.loads(body)["data"]["text"] for _, body in self.posts]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            self.posts.append((headers, await reader.readexactly(int(headers["content-length"]))))
            status, more = self.answers.pop(0) if self.answers else (204, "")
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n{more}Connection: close\r\n\r\n".encode())
            await writer.drain()
        finally:
            writer.close()
            self._news.set()


@contextlib.asynccontextmanager
async def partner_stage() -> AsyncIterator[Partner]:
    """A partner that listens."""
    partner = Partner()
    server = await asyncio.start_server(partner._serve, "127.0.0.1", 0)  # noqa: SLF001 - its own server
    async with server:
        partner.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield partner
