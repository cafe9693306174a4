"""The block of the server: as `GatewaySettings` has it, in the main file only, its channels shown nowhere."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

from laneway.config import InvalidConfigError, load
from laneway.config.agent import agent_settings
from laneway.config.gateway_blocks import GatewayBlock, RetentionBlock
from laneway.gateway.settings import GatewaySettings
from laneway.options import SessionRetentionLimits


def test_the_block_has_the_fields_and_defaults_of_the_settings() -> None:
    block = {each.name: getattr(GatewayBlock(), each.name) for each in fields(GatewayBlock)}
    settings = {each.name: getattr(GatewaySettings(), each.name) for each in fields(GatewaySettings)}
    assert block == settings
    assert all(each.default is not MISSING or each.name in ("channels", "retention") for each in fields(GatewayBlock))


def test_a_file_a_variable_and_an_option_set_it(tmp_path: Path) -> None:
    file = tmp_path / "laneway.yaml"
    file.write_text(
        "gateway:\n  port: 9000\n  store: sqlite:///kept.db\n  tlsKey: key.pem\n  allowedHosts: [a.example]\n"
    )
    environ = {"LANEWAY_GATEWAY_DRAIN_MS": "5"}
    found = load(file, environ=environ, overrides=["gateway.port=0"]).settings.gateway
    assert (found.port, found.drain_ms, found.allowed_hosts) == (0, 5, ("a.example",))
    assert found.store == f"sqlite:///{tmp_path}/kept.db"
    assert found.tls_key == f"{tmp_path}/key.pem"


def test_what_is_wrong_with_it_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "laneway.yaml"
    file.write_text("gateway:\n  port: 70000\n  prot: 1\n  cors_origins: [example.org]\n")
    with pytest.raises(InvalidConfigError) as refused:
        load(file, environ={})
    assert [(each.line, each.setting) for each in refused.value.problems] == [
        (2, "gateway.port"),
        (3, "gateway.prot"),
        (4, "gateway.cors_origins[0]"),
    ]


def test_a_workspace_has_no_server_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("gateway:\n  port: 1\n")
    with pytest.raises(InvalidConfigError, match="there is no setting gateway"):
        load(None, environ={}, workspace=tmp_path)
    main = tmp_path / "laneway.yaml"
    main.write_text("workspaces:\n  a:\n    gateway: {port: 1}\n")
    with pytest.raises(InvalidConfigError, match=r"there is no setting workspaces\.a\.gateway"):
        load(main, environ={})


def test_channels_are_kept_as_they_are_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "laneway.yaml"
    file.write_text('gateway:\n  channels:\n    shop: {kind: webhook, secrets: ["${HOOK}"]}\n')
    found = load(file, environ={"HOOK": "whsec"})
    assert found.settings.gateway.channels == {"shop": {"kind": "webhook", "secrets": ["whsec"]}}
    assert found.value("gateway.channels.shop").hidden
    assert "whsec" not in repr(found.settings)


def test_caps_and_retention_are_read_and_what_nobody_says_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "laneway.yaml"
    file.write_text("gateway:\n  retention: {max_age_ms: 5, max_runs: 2}\nretention_limits: {max_trace_events: 7}\n")
    found = load(file, environ={"LANEWAY_GATEWAY_RETENTION_EVERY_MS": "9"})
    assert found.settings.gateway.retention == RetentionBlock(max_age_ms=5, max_runs=2, every_ms=9)
    usual = SessionRetentionLimits.usual()
    assert agent_settings(found).session_options().retention_limits == replace(usual, max_trace_events=7)
    assert agent_settings(load(None, environ={})).session_options().retention_limits is None
    file.write_text("gateway:\n  retention: {max_runs: 0}\n")
    with pytest.raises(InvalidConfigError, match="max_runs"):
        load(file, environ={})
