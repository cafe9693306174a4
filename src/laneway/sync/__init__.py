"""Agents for code without an event loop: `Agent` and `Session`, twins of `AsyncAgent` and `AsyncSession`.

The methods have the same names and give plain values; they run on one background loop that all agents of a process
share. Any number of threads may call them.
"""

from __future__ import annotations

from laneway.sync.agent import Agent
from laneway.sync.session import RunStream, Session
from laneway.sync.streams import Stream

__all__ = ("Agent", "RunStream", "Session", "Stream")
