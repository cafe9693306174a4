"""Errors as RFC 9457 problem details: one table (`laneway.errors.REACTIONS`) decides the status."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from laneway.errors import InternalError, LanewayError, MailboxFullError, describe, reaction_to
from laneway.ports import Store

__all__ = ("PROBLEM_JSON", "Problem", "install", "place_of", "problem", "problem_of", "words_of")

_log = logging.getLogger("laneway.gateway")

PROBLEM_JSON: Final = "application/problem+json"
KEPT: Final = frozenset({"message", "hint"})
PLAIN: Final = (str, int, float, bool, type(None))
FULL_RETRY_MS: Final = 5_000
ERRORS_MAX: Final = 10
PATH_SHOWN: Final = 200
IN_SESSIONS: Final = "the name of a session has no '/' in it, and is neither . nor .."
TITLES: Final = {
    400: "The request is wrong",
    401: "Who are you?",
    403: "Not allowed",
    404: "Not found",
    405: "This method is not possible here",
    408: "Too slow",
    409: "Not possible in this state",
    413: "Too large",
    415: "Not this kind of content",
    421: "Wrong host",
    422: "The request does not fit",
    429: "Too many",
    431: "The head is too large",
    500: "Our mistake",
    502: "It ended without a result",
    503: "Not available now",
}


class Problem(Response):
    """An answer that says what went wrong."""

    media_type = PROBLEM_JSON


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    hint: str = "",
    headers: Mapping[str, str] | None = None,
    **facts: Any,
) -> Problem:
    """Problem details: `type`, `title`, `status`, `detail`, and as extensions `code`, `hint` and the facts."""
    body: dict[str, Any] = {
        "type": f"urn:laneway:problem:{code}",
        "title": TITLES.get(status, "Something went wrong"),
        "status": status,
        "detail": detail,
        "code": code,
    }
    if hint:
        body["hint"] = hint
    for name, value in facts.items():
        if name not in body and isinstance(value, PLAIN):
            is_no_json = isinstance(value, float) and not math.isfinite(value)
            body[name] = str(value) if is_no_json else value
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, default=str)
    return Problem(text.encode("utf-8", "backslashreplace"), status_code=status, headers=dict(headers or {}))


def problem_of(error: LanewayError, *, hide: str = "") -> Problem:
    """What the outside sees of an error of ours; where the store lies (`hide`) is for the log only."""
    status = reaction_to(error).http_status
    facts = {name: value for name, value in vars(error).items() if name not in KEPT and not name.startswith("_")}
    headers: dict[str, str] = {}
    wait_ms = facts.get("retry_after_ms", FULL_RETRY_MS if isinstance(error, MailboxFullError) else None)
    if status == 503 and wait_ms is None:
        wait_ms = 1_000
    if isinstance(wait_ms, int):
        headers["Retry-After"] = str(max(1, math.ceil(wait_ms / 1000)))
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="laneway"'
    if isinstance(error, InternalError):
        _log.error("internal error: %s", describe(error))
    message, hint = words_of(error, hide)
    facts = {name: value for name, value in facts.items() if not hide or hide not in str(value)}
    return problem(status, error.code, message, hint=hint, headers=headers, **facts)


def words_of(error: LanewayError, hide: str = "") -> tuple[str, str]:
    """The message and the hint of an error as the outside sees them, without where the store lies."""
    message, hint = error.message, error.hint
    if hide and hide in f"{message}{hint}":
        _log.warning("%s", error)
        message, hint = (text.replace(f" {hide}", "").replace(hide, "it") for text in (message, hint))
    return message, hint


def place_of(store: Store) -> str:
    """Where a store lies, which is told to nobody; empty if it lies nowhere."""
    return getattr(store, "path", "")


def _complaint(error: Mapping[str, Any]) -> str:
    """What is wrong at one place of a request. The value is left out: it may be a secret, or long."""
    where = ".".join(str(part)[:PATH_SHOWN] for part in error["loc"])
    return f"{where}: {error['msg']}" if where else str(error["msg"])


def install(app: FastAPI) -> None:
    """Answer every error of this application with problem details."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, LanewayError)
        return problem_of(error, hide=place_of(request.app.state.gateway.store))

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first: dict[str, Any] = error.errors()[0] if error.errors() else {"loc": (), "msg": "it does not fit"}
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if first["loc"] == ("body",) and kind != "application/json" and not kind.endswith("+json"):
            sent = f"not {kind}" if kind else "and says so"
            return problem(
                415, "not_json", f"the body has to be JSON, {sent}", hint="send Content-Type: application/json"
            )
        if first.get("type") == "json_invalid":
            why = str(first.get("ctx", {}).get("error", first["msg"]))
            return problem(400, "invalid_json", f"the body is no JSON, at character {first['loc'][-1]}: {why}")
        found = [_complaint(each) for each in error.errors()[:ERRORS_MAX]] or [str(first["msg"])]
        return problem(422, "invalid_request", "; ".join(found), hint="see /openapi.json", errors=len(error.errors()))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = error.detail if isinstance(error.detail, str) else "no"
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
        hint = ""
        if error.status_code in (404, 405):
            path = request.url.path
            detail = f"there is no {request.method} {path[:PATH_SHOWN]}"
            hint = IN_SESSIONS if path.startswith("/v1/sessions/") else "see /openapi.json"
        return problem(error.status_code, code, detail, hint=hint, headers=error.headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("a request failed: %s", describe(error), exc_info=error)
        return problem(500, "internal", "this is a mistake in Laneway", hint="please report it with the log")

    app.add_exception_handler(LanewayError, ours)
    app.add_exception_handler(RequestValidationError, wrong)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)
