"""The blocks of channels in the documentation are ones that a server takes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import yaml

from laneway.gateway.channels import KINDS, channels_of
from tests.docs.pages import DOCS, blocks_of

SECRETS = {
    "${PARTNER_SECRET}": f"whsec_{base64.b64encode(bytes(32)).decode()}",
    "${TELEGRAM_TOKEN}": "123456:AAExample",
}


def filled(value: Any) -> Any:
    """A value with what its variables stand for."""
    if isinstance(value, Mapping):
        return {name: filled(each) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each) for each in value]
    return SECRETS.get(value, value) if isinstance(value, str) else value


def test_every_kind_of_channel_is_shown_with_settings_that_are_taken() -> None:
    texts = [block.text for block in blocks_of(DOCS / "howto" / "channels.md") if block.kind == "yaml"]
    blocks = [filled(yaml.safe_load(text)["gateway"]["channels"]) for text in texts]
    made = [channel for block in blocks for channel in channels_of(block, ["default"])]
    assert {channel.kind for channel in made} == set(KINDS)
