"""What goes wrong at a provider, as errors of Laneway: one to try again, one to wait for, one to be told of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic_ai import models
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    UserError,
)

from laneway.errors import (
    LanewayError,
    ModelError,
    ModelLimitedError,
    ModelUnavailableError,
    PromptTooLongError,
    RealModelForbiddenError,
)
from laneway.models.waits import WAIT_MAX_MS, wait_ms

__all__ = ("Origin", "fault_of")

LIMITED_MS: Final = 20_000
QUOTA_MS: Final = 300_000  # nobody tops up an account within seconds
TEXT_MAX: Final = 500
SECRET_MIN: Final = 6
CAUSES_MAX: Final = 10
TIMEOUT: Final = 408
CONFLICT: Final = 409
TOO_LARGE: Final = 413
TOO_EARLY: Final = 425
SERVER: Final = 500
RETRIED: Final = frozenset({TIMEOUT, CONFLICT, TOO_EARLY})
TOO_LONG_TEXTS: Final = (
    "maximum context length",
    "context_length_exceeded",
    "context window",
    "prompt is too long",
    "input is too long",
    "input token count",
    "too many tokens",
    "exceeds the available context size",
    "reduce the length of the messages",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a fault comes from, and what must never be shown of it."""

    model: str
    provider: str
    secret: str | None = None
    now_ms: int | None = None


def fault_of(error: Exception, origin: Origin) -> LanewayError:
    """The error of Laneway for one of a provider, its SDK or the network."""
    if isinstance(error, LanewayError):
        return error
    said = _said(error, origin)
    if isinstance(error, RuntimeError) and not models.ALLOW_MODEL_REQUESTS and not isinstance(error, ModelAPIError):
        return RealModelForbiddenError(said, model=origin.model, hint="pydantic_ai.models.ALLOW_MODEL_REQUESTS is off")
    if isinstance(error, ContentFilterError | UserError):
        return ModelError(said, model=origin.model, hint="change what is asked")
    if _is_too_long(error):
        return PromptTooLongError(said, model=origin.model, hint="compact the conversation, or send less")
    if (wait := _wait_of(error, origin)) is not None:
        return ModelLimitedError(said, retry_after_ms=wait, model=origin.model, hint=f"it can be asked in {wait:,} ms")
    if _is_refusal(error):
        return ModelError(said, model=origin.model, hint=_way_out(error, origin))
    return ModelUnavailableError(said, model=origin.model, hint="ask again later")


def _is_too_long(error: Exception) -> bool:
    if isinstance(error, ModelContextWindowExceededError):
        return True
    if not isinstance(error, ModelHTTPError) or error.status_code >= SERVER:
        return False
    if isinstance(error, ModelRateLimitError | ModelQuotaExceededError):  # "too many tokens per minute" is no length
        return False
    text = str(error.body).lower()
    return error.status_code == TOO_LARGE or any(each in text for each in TOO_LONG_TEXTS)


def _wait_of(error: Exception, origin: Origin) -> int | None:
    """How long the provider takes no calls; None when that is not what it says."""
    if not isinstance(error, ModelAPIError):
        return None
    headers = error.headers if isinstance(error, ModelHTTPError) else None
    told = wait_ms(headers or {}, error.body, now_ms=origin.now_ms)
    if told is None and error.retry_after is not None:
        told = min(max(1, int(error.retry_after * 1000)), WAIT_MAX_MS)
    if isinstance(error, ModelRateLimitError):
        return told or LIMITED_MS
    if isinstance(error, ModelQuotaExceededError):
        return told or QUOTA_MS
    # A provider that is down or overloaded may say for how long, but only where it means to: in its headers.
    asked = headers is not None and ("retry-after" in headers or "retry-after-ms" in headers)
    down = isinstance(error, ModelOverloadedError) or (
        isinstance(error, ModelHTTPError) and error.status_code >= SERVER
    )
    return told if asked and down else None


def _is_refusal(error: Exception) -> bool:
    """Whether the same request would be refused again."""
    if isinstance(error, ModelRequestRejectedError):
        return True
    return isinstance(error, ModelHTTPError) and error.status_code < SERVER and error.status_code not in RETRIED


def _way_out(error: Exception, origin: Origin) -> str:
    if isinstance(error, ModelAuthenticationError):
        return f"check api_key of provider {origin.provider!r}, and that it may use this model"
    if isinstance(error, ModelNotFoundError):
        suggested = error.suggested_model_id if isinstance(error, ModelHTTPError) else None
        name = f"; did you mean {suggested.replace(':', '/', 1)!r}?" if suggested else ""
        return f"check the name of the model and base_url of provider {origin.provider!r}{name}"
    return "the provider refuses this request as it is; its message says why"


def _said(error: Exception, origin: Origin) -> str:
    """One line: which model, the status, and the provider's own words without the key."""
    status = f" ({error.status_code})" if isinstance(error, ModelHTTPError) else ""
    words = _words(error.body) if isinstance(error, ModelAPIError) else ""
    if not words and not isinstance(error, ModelHTTPError):
        words = _with_cause(error)
    words = " ".join((words or type(error).__name__).split())
    if len(origin.secret or "") >= SECRET_MIN and origin.secret:  # what is shorter stands in every other word
        words = words.replace(origin.secret, "***")
    words = words if len(words) <= TEXT_MAX else words[: TEXT_MAX - 1] + "…"
    return f"model {origin.model!r}{status}: {words}"


def _with_cause(error: Exception) -> str:
    """What an error says, and the first cause below it: SDKs say no more than `Connection error.`"""
    said, cause = str(error), error.__cause__
    for _ in range(CAUSES_MAX):
        if cause is None or cause.__cause__ is None:
            break
        cause = cause.__cause__
    first = "" if cause is None else str(cause) or type(cause).__name__
    return f"{said} ({first})" if said and first and first not in said else said or first


def _words(body: object) -> str:
    """The message in the body of an error, in whatever shape the provider gave it."""
    if isinstance(body, str):
        return body
    if not isinstance(body, Mapping):
        return ""
    for key in ("error", "message", "detail"):
        if words := _words(body.get(key)):
            return words
    return ""
