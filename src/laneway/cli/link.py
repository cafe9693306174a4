"""A running server, as a command that goes on asks it: requests beside a stream of events that is never lost.

A stream that breaks is taken up again with the number of the last stored event, so that nothing that is on disk is
missed or told twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Self

import httpx2

from laneway.cli.client import TIMEOUT, Target, answer_of, error_of, translated
from laneway.cli.pipes import survive_hang_ups
from laneway.errors import LanewayError, TransportUnavailableError, UnavailableError

__all__ = ("LOST", "OPEN", "Link", "Told")

OPEN: Final = "(open)"
"""The stream is open: what happens from now on is told."""

LOST: Final = "(lost)"
"""The stream broke and is being taken up again."""

SILENCE_S: Final = 60  # a server that lives sends a sign of it more often
BAD_GATEWAY: Final = 502
EVENT_MAX: Final = 64 * 1024 * 1024
DELAYS_S: Final = (0.1, 0.3, 1, 2, 5, 5, 10, 10, 15, 15)  # a restart takes less than a minute
ENDS: Final = frozenset({"ended", "revoked", "denied"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One event of a stream. `data` of the signs of this module is `{"reason": …}`."""

    event: str
    data: dict[str, Any] = field(default_factory=dict)
    id: str = ""

    @property
    def payload(self) -> dict[str, Any]:
        """What the event says: its own fields, whichever of the two shapes it has."""
        inner = self.data.get("payload")
        return inner if isinstance(inner, dict) else self.data

    @property
    def run_id(self) -> str:
        """The run that it belongs to, if any."""
        metadata = self.data.get("metadata")
        if isinstance(metadata, dict):
            return str(metadata.get("run_id") or "")
        return str(self.data.get("run_id") or self.data.get("turn_id") or "")


class Link:
    """A connection to a server for something that goes on. Open it with `async with`."""

    def __init__(
        self,
        target: Target,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        delays_s: tuple[float, ...] = DELAYS_S,
    ) -> None:
        survive_hang_ups()
        self.target = target
        self._delays_s = delays_s
        self._http = httpx2.AsyncClient(**target.options(), timeout=TIMEOUT, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One request; its answer as JSON values, or the error that it means."""
        wanted = {name: value for name, value in (params or {}).items() if value is not None}
        try:
            response = await self._http.request(method, path, params=wanted or None, json=body, headers=headers)
        except httpx2.HTTPError as error:
            raise translated(error, self.target.url) from error
        return answer_of(response)

    async def send(self, session_path: str, body: Mapping[str, Any], *, key: str) -> dict[str, Any]:
        """Send a message, again if the connection broke: with the same key it is taken once."""
        for delay_s in (*self._delays_s, None):
            try:
                receipt: dict[str, Any] = await self.ask(
                    "POST", f"{session_path}/messages", body=body, headers={"Idempotency-Key": key}
                )
                return receipt
            except TransportUnavailableError as error:
                status = getattr(error, "status", 0)  # of something that is no Laneway; a proxy may be in between
                is_hopeless = getattr(error, "is_refused", False) or getattr(error, "is_doubted", False)
                if delay_s is None or is_hopeless or 0 < status < BAD_GATEWAY:
                    raise
                await asyncio.sleep(delay_s)
        raise AssertionError(key)

    async def events(self, path: str, *, params: Mapping[str, Any] | None = None) -> AsyncGenerator[Told]:
        """The events of a stream, until the server says that it has ended.

        `OPEN` comes first and after each `LOST`. Raises if the server refuses, or stays away for too long.
        """
        last = ""
        failed = 0
        was_open = False
        while True:
            reason = "the connection ended"
            try:
                async with aclosing(self._stream(path, params, last)) as stream:
                    async for told in stream:
                        if told.event == OPEN:
                            failed, was_open = 0, True
                        last = told.id or last
                        if told.event == "close":
                            reason = str(told.data.get("reason", ""))
                            if reason in ENDS:
                                return
                            break
                        yield told
            except httpx2.HTTPError as error:
                trouble: LanewayError = translated(error, self.target.url)
            except UnavailableError as error:
                trouble = error
            else:
                trouble = TransportUnavailableError(f"the stream of {self.target.url} ended: {reason}")
            if not was_open or failed >= len(self._delays_s):
                raise trouble
            yield Told(event=LOST, data={"reason": trouble.message})
            await asyncio.sleep(self._delays_s[failed])
            failed += 1

    async def _stream(self, path: str, params: Mapping[str, Any] | None, last: str) -> AsyncGenerator[Told]:
        headers = {"Last-Event-ID": last} if last else {}
        timeout = httpx2.Timeout(SILENCE_S, connect=5)
        async with self._http.sse(
            path, params=params, headers=headers, timeout=timeout, max_event_size=EVENT_MAX
        ) as source:
            if source.response.status_code >= 400:
                await source.response.aread()
                raise error_of(source.response)
            yield Told(event=OPEN)
            async for each in source:
                yield Told(event=each.event, data=_object(each.data), id=each.id)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return {"text": text}
    return value if isinstance(value, dict) else {"value": value}
