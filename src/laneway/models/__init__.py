"""Models: what answers. `ScriptedModel` needs nobody; the models of providers need the extra `laneway[models]`."""

from __future__ import annotations

from laneway.models.providers import model_from, open_model
from laneway.models.scripted import ScriptedModel, call, cut, fail, plan, say, think
from laneway.models.settings import ModelOptions, Prices, ProviderSettings
from laneway.models.switch import forbid_real_models, real_models

__all__ = (
    "ModelOptions",
    "Prices",
    "ProviderSettings",
    "ScriptedModel",
    "call",
    "cut",
    "fail",
    "forbid_real_models",
    "model_from",
    "open_model",
    "plan",
    "real_models",
    "say",
    "think",
)
