"""What belongs to the request that is being served: its id, and the trace it is part of."""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ("REQUEST_ID", "TRACE")

REQUEST_ID: ContextVar[str] = ContextVar("laneway_request_id", default="")
"""The id of the request, in every line of the log that is written for it."""
TRACE: ContextVar[str] = ContextVar("laneway_trace", default="")
"""The W3C `traceparent` that came with the request; kept with the messages that it brings."""
