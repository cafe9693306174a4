"""Agents: sessions whose model calls and tools run through lanes, durable from the first line."""

from __future__ import annotations

from laneway.agent.agent import AsyncAgent
from laneway.agent.results import RunInfo, RunResult
from laneway.agent.session import AsyncSession
from laneway.agent.streams import AgentStream, EventStream

__all__ = ("AgentStream", "AsyncAgent", "AsyncSession", "EventStream", "RunInfo", "RunResult")
