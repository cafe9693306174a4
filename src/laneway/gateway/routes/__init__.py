"""The routes under /v1, one module for each noun. `ROUTERS` is what the application serves."""

from __future__ import annotations

from fastapi import APIRouter

from laneway.gateway.routes import events, messages

__all__ = ("ROUTERS",)

ROUTERS: tuple[APIRouter, ...] = (messages.router, events.router)
