"""Models by name: what can be opened, and what a wrong name or setting is told."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from laneway.config.agent_blocks import ModelBlock, ProviderBlock
from laneway.dialogue import Usage
from laneway.errors import ConfigError
from laneway.models import ModelOptions, Prices, ProviderSettings, ScriptedModel, model_from, open_model

KEY = "sk-very-secret"
HERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Import what the models need before a test is timed."""
    for name in ("openai/x", "anthropic/x", "google/x"):
        open_model(name, providers={name.partition("/")[0]: ProviderSettings(api_key=KEY)})


@pytest.mark.parametrize("name", ["", "gpt-5", "openai/", "/gpt-5", "openai:gpt-5", "scripted/"])
def test_a_name_without_provider_and_model_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="<provider>/<model>"):
        open_model(name)


def test_a_scripted_model_may_have_a_name_and_a_price_of_its_own() -> None:
    models = {"scripted": ModelOptions(prices=Prices(input=5, output=5)), "small": ModelOptions(context_tokens=900)}
    given = {"scripted": ProviderSettings(models=models)}
    plain, small, other = (model_from(name, given) for name in ("scripted", "scripted/small", "scripted/other"))
    assert [each.name for each in (plain, small, other)] == ["scripted", "scripted/small", "scripted/other"]
    assert isinstance(small, ScriptedModel)
    assert (plain.context_tokens, small.context_tokens, small.prices) == (None, 900, None)
    own = model_from("scripted/x", {"scripted": ProviderSettings(base_url=HERE)})
    assert not isinstance(own, ScriptedModel)  # a server of one's own that is called so


def test_a_provider_that_nobody_knows_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'antropic'") as caught:
        open_model("antropic/claude")
    assert "'anthropic'" in caught.value.hint
    assert "base_url" in caught.value.hint


def test_a_kind_that_nobody_knows_is_refused_even_with_an_address() -> None:
    with pytest.raises(ConfigError, match="'opnai'"):
        open_model("mine/x", providers={"mine": ProviderSettings(base_url=HERE, kind="opnai")})


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("openai/gpt-5", ("OPENAI_API_KEY", "OPENAI_BASE_URL")),
        ("anthropic/claude-x", ("ANTHROPIC_API_KEY",)),
        ("google/gemini-x", ("GOOGLE_API_KEY", "GEMINI_API_KEY")),
    ],
)
def test_a_missing_key_is_found_when_the_model_is_opened(
    monkeypatch: pytest.MonkeyPatch, name: str, variables: tuple[str, ...]
) -> None:
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=f"the variable {variables[0]} is not set") as caught:
        open_model(name)
    assert "api_key" in caught.value.hint
    assert 'AsyncAgent("scripted")' in caught.value.hint
    # What pydantic-ai would do about it does not exist here.
    assert not any(word in str(caught.value) for word in ("Pydantic", "Agent('test')", "Provider(", "https://"))


def test_what_else_is_wrong_with_a_provider_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match="cannot be opened: Must provide the `azure_endpoint`"):
        open_model("azure/x", providers={"azure": ProviderSettings(api_key=KEY)})


@pytest.mark.parametrize(
    ("name", "settings", "url"),
    [
        ("openai/gpt-5", {"api_key": KEY}, "https://api.openai.com/v1"),
        ("openai/gpt-5", {"base_url": HERE}, HERE),
        ("anthropic/claude-x", {"api_key": KEY}, "https://api.anthropic.com"),
        ("google/gemini-x", {"api_key": KEY}, "https://generativelanguage.googleapis.com"),
        ("ollama/llama3", {}, "http://localhost:11434/v1"),
        ("deepseek/deepseek-chat", {"api_key": KEY}, "https://api.deepseek.com"),
        ("deepseek/deepseek-chat", {"base_url": HERE}, HERE),
        ("mine/llama/70b", {"base_url": HERE}, HERE),
        ("mine/claude", {"base_url": HERE, "kind": "anthropic"}, HERE),
    ],
)
def test_a_model_knows_its_name_and_where_it_is(
    monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, Any], url: str
) -> None:
    for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OLLAMA_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    model = open_model(name, providers={name.partition("/")[0]: ProviderSettings(**settings)})
    assert model.name == name
    assert model.url.rstrip("/").startswith(url)


def test_a_model_is_taken_as_it_is_or_by_its_name() -> None:
    mine = ScriptedModel([])
    assert model_from(mine) is mine
    assert model_from("scripted").name == "scripted"
    assert model_from("mine/x", {"mine": ProviderSettings(base_url=HERE)}).name == "mine/x"
    with pytest.raises(ConfigError, match="a model has a name"):
        model_from(7)  # type: ignore[arg-type]


def test_providers_are_taken_as_a_record_as_a_block_or_as_a_mapping() -> None:
    block = ProviderBlock(
        base_url=HERE,
        api_key=KEY,
        headers={"x": "y"},
        models={"x": ModelBlock(context_tokens=9, input_price=1.0, output_price=2.0, tool_call=False)},
    )
    options = ModelOptions(context_tokens=9, prices=Prices(input=1.0, output=2.0), tools=False)
    record = ProviderSettings(base_url=HERE, api_key=KEY, headers={"x": "y"}, models={"x": options})
    assert ProviderSettings.of(block, provider="p") == record
    assert ProviderSettings.of(record, provider="p") is record
    assert ProviderSettings.of({"base_url": HERE}, provider="p") == ProviderSettings(base_url=HERE)
    assert ProviderSettings.from_block(ProviderBlock(timeout_ms=5)) == ProviderSettings(timeout_ms=5)
    assert model_from("mine/x", {"mine": block}).context_tokens == 9


@pytest.mark.parametrize("wrong", [{"apikey": KEY}, KEY, None, 7])
def test_providers_that_are_none_of_these_are_refused_without_their_secrets(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="'mine'") as caught:
        model_from("mine/x", {"mine": wrong})
    assert KEY not in str(caught.value)


def test_two_models_named_scripted_share_nothing() -> None:
    assert model_from("scripted") is not model_from("scripted")


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "api.example.com"},
        {"base_url": "file:///etc/passwd"},
        {"timeout_ms": 0},
        {"timeout_ms": 1.5},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ProviderSettings(**wrong)
    assert caught.value.setting in wrong


@pytest.mark.parametrize("wrong", [{"context_tokens": 0}, {"output_max": -1}, {"context_tokens": True}])
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ModelOptions(**wrong)


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf"), "1", True])
def test_a_price_is_a_number_of_dollars(price: Any) -> None:
    with pytest.raises(ConfigError):
        Prices(input=price, output=1)


def test_a_price_counts_what_came_from_the_cache_once() -> None:
    used = Usage(input_tokens=1_000_000, output_tokens=500_000, cache_read_tokens=600_000, cache_write_tokens=100_000)
    assert Prices(input=2, output=10, cache_read=0.5, cache_write=4).cost(used) == pytest.approx(0.6 + 5 + 0.3 + 0.4)
    assert Prices(input=2, output=10).cost(used) == pytest.approx(2 + 5)


def test_settings_never_show_their_secrets() -> None:
    shown = repr(ProviderSettings(api_key=KEY, headers={"authorization": KEY}, base_url=f"http://me:{KEY}@localhost"))
    assert KEY not in shown
    with pytest.raises(ConfigError) as caught:
        ProviderSettings(base_url=f"ftp://me:{KEY}@localhost")
    assert KEY not in str(caught.value)


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        open_model("openai/gpt-5")
    assert caught.value.hint == "install laneway with the extra `models`"


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_a_model_of_a_provider_is_opened() -> None:
    code = (
        "import sys; from laneway.models import ScriptedModel, open_model, ProviderSettings; ScriptedModel();"
        "heavy = ('pydantic', 'pydantic_ai', 'openai', 'httpx2', 'genai_prices');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
