"""The events of a response, in the order in which clients expect them, numbered from 0.

created, in_progress; for each round that says something: output_item.added, content_part.added, the pieces of its text,
output_text.done, content_part.done, output_item.done; at the end completed or failed, or `error` if it only cannot be
told any longer.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from laneway.agent.results import RunResult
from laneway.errors import LanewayError, NotAuthenticatedError, RunCancelledError
from laneway.gateway.openai.asking import Beat, Piece
from laneway.gateway.openai.errors import StoppingError, json_bytes, text_for
from laneway.gateway.openai.response_objects import message_item, text_part

__all__ = ("ResponseEvents",)


class ResponseEvents:
    """Writes the events of one response; `make` gives the response in a state."""

    def __init__(self, message_id: str, make: Callable[..., dict[str, Any]], *, hide: str = "") -> None:
        self._message_id = message_id
        self._hide = hide  # where the store lies
        self._make = make
        self._number = -1
        self._done: list[str] = []  # the text of each item that is finished
        self._text: list[str] | None = None  # the pieces of the item that is open

    async def write(self, told: AsyncGenerator[Beat | Piece | RunResult]) -> AsyncGenerator[bytes]:
        """The events of what a run tells, from beginning to end."""
        yield self._event("response.created", response=self._make("queued"))
        begun = False
        try:
            async with contextlib.aclosing(told):
                async for each in told:
                    if isinstance(each, Beat):
                        yield f": {each.comment}\n\n".encode()
                        continue
                    if not begun:
                        begun = True
                        yield self._event("response.in_progress", response=self._make("in_progress"))
                    if isinstance(each, Piece):
                        for event in self._piece(each):
                            yield event
                    else:
                        for event in [*self._close(), self._completed(each)]:
                            yield event
        except LanewayError as error:
            for event in self._failed(error):
                yield event

    def _event(self, kind: str, **more: Any) -> bytes:
        self._number += 1
        body = {"type": kind, "sequence_number": self._number, **more}
        return f"event: {kind}\ndata: ".encode() + json_bytes(body) + b"\n\n"

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"{self._message_id}_{len(self._done)}", "output_index": len(self._done), "content_index": 0}

    def _piece(self, piece: Piece) -> list[bytes]:
        events: list[bytes] = []
        if self._text is not None and piece.index > len(self._done):
            events += self._close(is_last=False)
        if self._text is None:
            self._text = []
            item = message_item(self._message_id, len(self._done), None, status="in_progress")
            events.append(self._event("response.output_item.added", output_index=len(self._done), item=item))
            events.append(self._event("response.content_part.added", **self._place(), part=text_part("")))
        self._text.append(piece.text)
        events.append(self._event("response.output_text.delta", **self._place(), delta=piece.text, logprobs=[]))
        return events

    def _close(self, *, is_last: bool = True) -> list[bytes]:
        if self._text is None:
            return []
        text, place = "".join(self._text), self._place()
        item = message_item(self._message_id, len(self._done), text, len(self._done) + (1 if is_last else 2))
        events = [
            self._event("response.output_text.done", **place, text=text, logprobs=[]),
            self._event("response.content_part.done", **place, part=text_part(text)),
            self._event("response.output_item.done", output_index=len(self._done), item=item),
        ]
        self._done.append(text)
        self._text = None
        return events

    def _items(self) -> list[dict[str, Any]]:
        texts = self._done
        return [message_item(self._message_id, index, text, len(texts)) for index, text in enumerate(texts)]

    def _completed(self, result: RunResult) -> bytes:
        return self._event("response.completed", response=self._make("completed", output=self._items(), result=result))

    def _failed(self, error: LanewayError) -> list[bytes]:
        """A response has not failed because somebody may not hear of it any longer: it goes on."""
        if isinstance(error, StoppingError | NotAuthenticatedError):
            return [self._event("error", code=error.code, message=text_for(error, self._hide), param=None)]
        status = "cancelled" if isinstance(error, RunCancelledError) else "failed"
        events = self._close()
        made = self._make(status, output=self._items(), error=text_for(error, self._hide))
        return [*events, self._event("response.failed", response=made)]
