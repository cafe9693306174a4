"""A stand-in of the Bot API of Telegram on a port of this machine, which can misbehave in every way that it does.

It keeps what is to be handed out until an offset above it is asked for, as the real one does, and writes down what
bots do. `python -m tests.integration.telegram_stand_in` is not needed: tests run it on their own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

TOKEN = "42:AAAA-stand-in-token"
BOT = {"id": 42, "is_bot": True, "first_name": "Laneway", "username": "LanewayBot"}
Trouble = tuple[int, str]
"""A status and a body that is sent instead of an answer; the status 0 hangs up without one."""


class StandIn:
    """What the API knows of one bot."""

    def __init__(self) -> None:
        self.url = ""
        self.tokens = {TOKEN}
        self.pending: list[Any] = []
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.troubles: dict[str, list[Trouble]] = {}
        self._next_update = 500
        self._next_message = 9000
        self._news = asyncio.Event()
        self._done = asyncio.Event()
        self.is_stopping = False

    # ---- what a test does ----

    def write(self, number: int, text: str | None, *, chat_id: int = 7, **more: Any) -> dict[str, Any]:
        """Somebody writes to the bot."""
        kind = "private" if chat_id > 0 else "supergroup"
        message = {
            "message_id": number,
            "date": 1_800_000_000,
            "chat": {"id": chat_id, "type": kind},
            "from": {"id": 7, "is_bot": False, "first_name": "Ada"},
            "text": text,
            **more,
        }
        return self.push({"message": {name: value for name, value in message.items() if value is not None}})

    def push(self, update: dict[str, Any]) -> dict[str, Any]:
        """Something happens that the bot is to hear of."""
        self._next_update += 1
        made = {"update_id": self._next_update, **update}
        self.pending.append(made)
        self._news.set()
        return made

    def of(self, method: str) -> list[dict[str, str]]:
        """What was asked by a method."""
        return [facts for name, facts in self.calls if name == method]

    def texts(self) -> list[str]:
        """What the bot has said."""
        return [facts["text"] for facts in self.of("sendMessage")]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something was asked."""
        while not condition():
            self._done.clear()
            await self._done.wait()

    # ---- what the API does ----

    async def answer(self, token: str, method: str, facts: dict[str, str]) -> Response:
        """One call of a method."""
        if token not in self.tokens:
            return _error(401, "Unauthorized")
        troubles = self.troubles.get(method)
        if troubles:
            status, body = troubles.pop(0)
            self._done.set()
            return Response(body, status_code=status, media_type="application/json")
        if method == "getUpdates":
            return await self._updates(facts)
        self.calls.append((method, facts))
        self._done.set()
        match method:
            case "getMe":
                return _result(BOT)
            case "sendMessage":
                self._next_message += 1
                chat = {"id": int(facts["chat_id"]), "type": "private"}
                sent = {"message_id": self._next_message, "date": 1_800_000_000, "chat": chat, "text": facts["text"]}
                return _result(sent)
            case "sendChatAction" | "setMessageReaction" | "answerCallbackQuery":
                return _result(True)
            case _:
                return _error(404, "Not Found")

    async def _updates(self, facts: dict[str, str]) -> Response:
        self.calls.append(("getUpdates", facts))
        offset = int(facts.get("offset", 0))
        self.pending = [each for each in self.pending if not isinstance(each, dict) or each["update_id"] >= offset]
        self._done.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(int(facts.get("timeout", 0))):
                while not self.pending and not self.is_stopping:
                    self._news.clear()
                    await self._news.wait()
        return _result(self.pending[:100])

    def stop(self) -> None:
        """Whoever waits for updates gets none."""
        self.is_stopping = True
        self._news.set()


def _result(value: Any) -> Response:
    return Response(json.dumps({"ok": True, "result": value}), media_type="application/json")


def _error(status: int, description: str, **parameters: Any) -> Response:
    return Response(error_body(status, description, **parameters), status_code=status, media_type="application/json")


def error_body(status: int, description: str, **parameters: Any) -> str:
    """The body of an error as the API writes it."""
    body: dict[str, Any] = {"ok": False, "error_code": status, "description": description}
    if parameters:
        body["parameters"] = parameters
    return json.dumps(body)


def app_of(stand_in: StandIn) -> FastAPI:
    """The application."""
    app = FastAPI(openapi_url=None)

    @app.post("/bot{token}/{method}")
    async def call(token: str, method: str, request: Request) -> Response:
        form = await request.form()
        return await stand_in.answer(token, method, {name: str(value) for name, value in form.items()})

    return app


@contextlib.asynccontextmanager
async def standing_in() -> AsyncIterator[StandIn]:
    """The API as a server on a free port."""
    stand_in = StandIn()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        stand_in.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            app_of(stand_in), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield stand_in
        finally:
            stand_in.stop()
            server.should_exit = True
            await task
