"""Secrets in the file of an agent: no error, no listing and no record shows one."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest

from laneway.config import InvalidConfigError, load, load_agent

SECRET = "sk-very-secret"


@pytest.mark.parametrize(
    "text",
    [
        f'providers "x" {{ api_key = ["{SECRET}"] }}',
        f'providers "x" {{ api_kye = "{SECRET}" }}',
        f'providers "x" {{ api_key = {SECRET} }}',
        f'providers "x" {{ headers = {{ a = ["{SECRET}"] }} }}',
        f'providers "x" {{ headers = "{SECRET}" }}',
        f'providers = {{ x = "{SECRET}" }}',
        f'providers = "{SECRET}"',
        f'providers "x" {{ base_url = "ftp://me:{SECRET}@x" }}',
        f'mcp_servers = "{SECRET}"',
        f'providers "x" {{ api_key = "{SECRET}',
        f"{{providers: {{x: {{apiKey: {SECRET}}}}}}}",
        f"{{providers: {{x: {{apiKey: 'a' {SECRET}}}}}}}",
        f"providers:\n  x: {SECRET}\n",
        f"providers:\n  x:\n    headers:\n      a: [{SECRET}]\n",
        '[providers.x]\nbase_url = "${SECRET}"\n',
        'tools = [env("SECRET")]',
        'max_tool_rounds = env("SECRET")',
        'queue { lane_timeouts { query = env("SECRET") } }',
    ],
)
def test_no_error_holds_a_secret(text: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_agent(text, environ={"SECRET": SECRET})
    problems = caught.value.problems
    assert SECRET not in f"{caught.value} {caught.value!r} {[dataclasses.asdict(problem) for problem in problems]}"


def test_an_api_key_that_is_a_number_is_not_shown() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_agent('providers "x" { api_key = 123456 }', environ={})
    (found,) = caught.value.problems
    assert str(found).endswith("or null, not what stands there (put quotes around it)")


def test_secrets_are_hidden_wherever_they_came_from(tmp_path: Path) -> None:
    file = tmp_path / "a.hcl"
    file.write_text(
        f'providers "x" {{\n  api_key = "{SECRET}"\n  headers = {{ a = "{SECRET}" }}\n}}\n'
        f'providers "y" {{ base_url = "https://me:{SECRET}@y" }}\nproviders "z" {{ base_url = "https://z" }}\n'
        f'mcp_servers "m" {{ command = "x"  env = {{ TOKEN = "{SECRET}" }} }}\nsession_store = "postgres://me:{SECRET}@db/x"\n'
        f'system = env("SECRET")\nidentity {{ principal = env("SECRET") }}\nskill_dirs = ["a", env("SECRET")]\n',
        encoding="utf-8",
    )
    environ = {"SECRET": SECRET, "LANEWAY_PROVIDERS_Y_API_KEY": SECRET}
    effective = load(file, environ=environ, overrides=[f"providers.z.api_key={SECRET}"])
    hidden = {value.name for value in effective.values if value.hidden}
    assert hidden == {
        *("providers.x.api_key", "providers.x.headers.a", "providers.y.base_url", "providers.y.api_key"),
        *(
            "providers.z.api_key",
            "mcp_servers.m.env.TOKEN",
            "session_store",
            "system",
            "identity.principal",
            "skill_dirs",
        ),
    }
    assert SECRET not in repr(effective.values)


def test_the_settings_do_not_print_their_secrets() -> None:
    found = load_agent(
        f'providers "x" {{\n api_key = "{SECRET}"\n base_url = "https://a:{SECRET}@x"\n'
        f' headers = {{ a = "{SECRET}" }}\n}}\nmcp_servers "m" {{ command = "x"  env = {{ TOKEN = "{SECRET}" }} }}\n'
        f'session_store = "postgres://me:{SECRET}@db/x"\n',
        environ={},
    )
    assert SECRET not in f"{found!r} {found.settings!r} {found.session_options()!r}"
    assert copy.deepcopy(found) == found
