"""What a file says of an agent, as the arguments that make one."""

from __future__ import annotations

from laneway.agent.files import arguments_of
from laneway.config.agent import AgentSettings
from laneway.config.agent_blocks import ModelBlock, ProviderBlock


def test_what_a_file_says_of_a_model_is_what_the_model_is_given() -> None:
    plain = ModelBlock(output_max=400, tool_call=False, input_price=1.0)
    settings = AgentSettings(
        providers={"here": ProviderBlock(timeout_ms=5, models={"plain": plain, "other": ModelBlock()})}
    )
    provider = arguments_of(settings, {})["providers"]["here"]
    assert (provider.timeout_ms, provider.models["plain"].output_max, provider.models["plain"].tools) == (5, 400, False)
    assert provider.models["other"].tools is True
