"""Models: what answers. `ScriptedModel` needs nobody; the models of providers need the extra `laneway[models]`."""

from __future__ import annotations

from laneway.models.scripted import ScriptedModel, call, cut, fail, say, think

__all__ = ("ScriptedModel", "call", "cut", "fail", "say", "think")
