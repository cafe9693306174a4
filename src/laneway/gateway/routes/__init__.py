"""The routes under /v1, one module for each noun. `ROUTERS` is what the application serves."""

from __future__ import annotations

from fastapi import APIRouter

from laneway.gateway.channels import routes as channels
from laneway.gateway.openai import completions, models, responses
from laneway.gateway.routes import (
    approvals,
    attention,
    audit,
    budgets,
    configuration,
    conversations,
    dead_letters,
    events,
    hosting,
    jobs,
    keeping,
    lanes,
    ledger,
    limits,
    messages,
    page,
    replays,
    runs,
    schedules,
    sessions,
    socket,
    stories,
    task_work,
    tasks,
    tokens,
    traffic,
    usage,
    workers,
)

__all__ = ("ROUTERS",)

ROUTERS: tuple[APIRouter, ...] = (
    messages.router,  # the busiest are asked first
    task_work.router,
    events.router,
    socket.router,
    page.router,
    completions.router,
    responses.router,
    models.router,
    tokens.router,
    audit.router,
    attention.router,
    keeping.router,
    sessions.router,
    hosting.router,
    conversations.router,
    runs.router,
    replays.router,
    stories.router,
    ledger.router,
    lanes.router,
    traffic.router,
    jobs.router,
    limits.router,
    tasks.router,
    workers.router,
    dead_letters.router,
    approvals.router,
    schedules.router,
    usage.router,
    budgets.router,
    configuration.router,
    channels.router,
)
