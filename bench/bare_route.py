"""The route to compare with: FastAPI, one SQLite row, one durable commit. `python -m bench.bare_route PORT FILE`."""

from __future__ import annotations

import socket
import sqlite3
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

SCHEMA = "create table messages (id integer primary key, session text, text text)"


class NewMessage(BaseModel):
    """What is sent."""

    text: str


class Taken(BaseModel):
    """What comes back."""

    message_id: str


def make(path: str) -> FastAPI:
    """The application."""
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode = wal")
    database.execute("pragma synchronous = full")
    database.execute(SCHEMA)
    database.commit()
    app = FastAPI()

    @app.post("/v1/sessions/{key}/messages", status_code=202)
    async def send(key: str, body: NewMessage) -> Taken:
        row = database.execute("insert into messages (session, text) values (?, ?)", (key, body.text))
        database.commit()
        return Taken(message_id=f"msg-{row.lastrowid}")

    return app


class Server(uvicorn.Server):
    """Says when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        sys.stdout.write("listening on it\n")
        sys.stdout.flush()


def main(port: int, path: str) -> None:
    """Serve until somebody ends it."""
    Server(uvicorn.Config(make(path), port=port, log_level="warning", access_log=False)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
