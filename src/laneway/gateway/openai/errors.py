"""Errors in OpenAI's shape: `{"error": {"message", "type", "code", "param"}}`, with the status of our own table.

Clients try again by themselves after many errors. What was refused before it was taken may be tried again; once a
message has been taken, a second try would run it a second time, so those errors say `x-should-retry: false`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from laneway.errors import LanewayError, NotFoundError, UnavailableError, describe, reaction_to, text_of
from laneway.gateway.problems import PROBLEM_JSON, place_of, problem_of, words_of

__all__ = (
    "ERRORS",
    "ErrorBody",
    "ModelNotFoundError",
    "OpenAIRoute",
    "StoppingError",
    "error_object",
    "error_of",
    "json_bytes",
    "taken",
    "text_for",
)

_log = logging.getLogger("laneway.gateway")

TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
NO_RETRY: Final = "x-should-retry"


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str
    type: str
    code: str | None = None
    param: str | None = None


class ErrorBody(BaseModel):
    """An error, as clients of OpenAI read it."""

    error: ErrorObject


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "model": ErrorBody,
        "description": "An error in OpenAI's shape; what is refused at the door of the server is problem details.",
        "content": {PROBLEM_JSON: {"schema": {"type": "object"}}},
    }
}


class ModelNotFoundError(NotFoundError):
    """No agent has that name."""

    code = "model_not_found"


class StoppingError(UnavailableError):
    """The server stops while somebody waits; what was taken goes on with the next start."""

    code = "stopping"

    def __init__(self, *, message_id: str) -> None:
        super().__init__(
            "the server is being stopped; the message is kept, and its run goes on with the next start",
            hint=f"ask later for /v1/messages/{message_id}",
        )
        self.message_id = message_id


def taken(error: LanewayError) -> LanewayError:
    """The same error, of a message that was taken: no client may send it again by itself."""
    error.__dict__["was_taken"] = True
    return error


def json_bytes(value: Any) -> bytes:
    """JSON for the wire; half a surrogate pair in it is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
    return text.encode("utf-8", "backslashreplace")


def error_object(status: int, code: str | None, message: str, param: str | None = None) -> dict[str, Any]:
    """What stands under `error`."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"message": text_of(message), "type": kind, "code": code, "param": param}


def error_of(error: LanewayError, hide: str = "") -> dict[str, Any]:
    """What stands under `error` for an error of ours; where the store lies (`hide`) is for the log only."""
    param = vars(error).get("param")
    return error_object(
        reaction_to(error).http_status, error.code, text_for(error, hide), param if isinstance(param, str) else None
    )


def text_for(error: LanewayError, hide: str = "") -> str:
    """What an error says, in one line."""
    message, hint = words_of(error, hide)
    return f"{message} ({hint})" if hint else message


def answer(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says what went wrong."""
    return Response(json_bytes({"error": body}), status, headers, media_type="application/json")


def answer_of(error: LanewayError, hide: str = "") -> Response:
    """What a client of OpenAI sees of an error of ours."""
    told = problem_of(error)  # the one place that knows the headers of an error
    headers = {name: told.headers[name] for name in ("retry-after", "www-authenticate") if name in told.headers}
    status = reaction_to(error).http_status
    if vars(error).get("was_taken") or status == 409:
        headers[NO_RETRY] = "false"
    return answer(status, error_of(error, hide), headers)


def _answer_to(error: Exception, hide: str) -> Response:
    match error:
        case LanewayError():
            return answer_of(error, hide)
        case RequestValidationError():
            first: Mapping[str, Any] = next(iter(error.errors()), {"loc": (), "msg": "it does not fit"})
            where = [str(part) for part in first["loc"]]
            param = ".".join(where[1:]) or None
            code = "invalid_json" if first.get("type") == "json_invalid" else "invalid_request"
            message = f"{param}: {first['msg']}" if param else str(first["msg"])
            return answer(400, error_object(400, code, message, text_of(param) if param else None))
        case HTTPException():
            return answer(error.status_code, error_object(error.status_code, None, str(error.detail)), error.headers)
        case _:
            _log.error("a request failed: %s", describe(error), exc_info=error)
            return answer(500, error_object(500, "internal", "this is a mistake in Laneway"), {NO_RETRY: "false"})


class OpenAIRoute(APIRoute):
    """A route whose errors have OpenAI's shape, those of access and of validation too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:  # noqa: BLE001 - every error of a route is told, ours in full
                return _answer_to(error, place_of(request.app.state.gateway.store))

        return handled
