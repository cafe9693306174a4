"""Configuration: files, workspaces, environment and options in, typed settings with the origin of each value out.

Everything is declared once, in `settings`. `load` reads the layers; `load_agent` reads the settings of an agent from a
file or its text; `inbox_options`, `lanes_options`, `queue_options`,
`by_channel` and `lane_configs` turn settings into what `Inbox` and `Lanes` take. Files are read by the command line, by
the gateway and by `Agent.create` only: everything else takes values. `import laneway` does not import this package.
"""

from __future__ import annotations

from laneway.config.agent import AgentSettings, agent_settings, load_agent
from laneway.config.agent_blocks import ModelBlock, PermissionsBlock, ProviderBlock
from laneway.config.effective import Effective, Value, check, load
from laneway.config.options import (
    InboxOptions,
    LanesOptions,
    by_channel,
    inbox_options,
    lane_configs,
    lanes_options,
    queue_options,
)
from laneway.config.origins import Layer, Origin
from laneway.config.page import reference_page
from laneway.config.problems import InvalidConfigError, Problem
from laneway.config.schema import json_schema
from laneway.config.settings import ChannelBlock, LaneBlock, QueueBlock, Settings, SpawnBlock, WorkspaceBlock

__all__ = (
    "AgentSettings",
    "ChannelBlock",
    "Effective",
    "InboxOptions",
    "InvalidConfigError",
    "LaneBlock",
    "LanesOptions",
    "Layer",
    "ModelBlock",
    "Origin",
    "PermissionsBlock",
    "Problem",
    "ProviderBlock",
    "QueueBlock",
    "Settings",
    "SpawnBlock",
    "Value",
    "WorkspaceBlock",
    "agent_settings",
    "by_channel",
    "check",
    "inbox_options",
    "json_schema",
    "lane_configs",
    "lanes_options",
    "load",
    "load_agent",
    "queue_options",
    "reference_page",
)
