"""What a provider of models is given: its key, its address, and what is known of its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from laneway.dialogue import Usage
from laneway.errors import ConfigError
from laneway.records import check_whole

if TYPE_CHECKING:
    from laneway.config.agent_blocks import ModelBlock, ProviderBlock

__all__ = ("ModelOptions", "Prices", "ProviderSettings")

PRICED_TOKENS = 1_000_000
TOKENS_MAX = 1_000_000_000
TIMEOUT_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars for a million tokens; a price of the cache that is None is the price of input."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        for setting in ("input", "output", "cache_read", "cache_write"):
            value = getattr(self, setting)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 <= value < float("inf")):
                raise ConfigError(f"price {setting} is dollars, 0 or more, not {value!r}", setting=setting, value=value)

    def cost(self, usage: Usage) -> float:
        """What this usage costs; `input_tokens` counts what came from the cache too."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        fresh = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
        dollars = fresh * self.input + usage.output_tokens * self.output
        dollars += usage.cache_read_tokens * read + usage.cache_write_tokens * write
        return dollars / PRICED_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What is known of one model; None means what the provider or the price list says."""

    context_tokens: int | None = None
    output_max: int | None = None
    prices: Prices | None = None
    tools: bool = True
    """Whether it is told of the tools; some models know nothing of tools and refuse every request that has any."""

    def __post_init__(self) -> None:
        for setting in ("context_tokens", "output_max"):
            if (value := getattr(self, setting)) is not None:
                check_whole(value, setting=setting, least=1, most=TOKENS_MAX)

    @classmethod
    def from_block(cls, block: ModelBlock) -> ModelOptions:
        """The options that a configuration has."""
        prices = None
        if block.input_price is not None or block.output_price is not None:
            prices = Prices(input=block.input_price or 0.0, output=block.output_price or 0.0)
        return cls(
            context_tokens=block.context_tokens,
            output_max=block.output_max,
            prices=prices,
            tools=block.tool_call is not False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """How a provider is reached.

    Without `api_key` the provider's own environment variable counts, unless `base_url` is set: a key from the
    environment is never sent to another address. `kind` says what language it speaks: a name that pydantic-ai knows
    (`anthropic`, `openai-responses` …); with `base_url` and a name of your own it is OpenAI's chat completions.
    `timeout_ms` is the longest silence. With `cache` the provider is asked to remember the beginning of a conversation,
    where it has to be asked: each round of a run sends all of it again. `models` has the options of single models.
    """

    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = field(default=None, repr=False)  # it may have a password in it
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: str | None = None
    timeout_ms: int = TIMEOUT_MS
    cache: bool = True
    models: Mapping[str, ModelOptions] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole(self.timeout_ms, setting="timeout_ms", least=1, most=86_400_000)
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"base_url must begin with http:// or https://, not {self.base_url.partition(':')[0]!r}",
                setting="base_url",
            )

    @classmethod
    def from_block(cls, block: ProviderBlock) -> ProviderSettings:
        """The settings that a configuration has."""
        return cls(
            api_key=block.api_key,
            base_url=block.base_url,
            headers=dict(block.headers),
            kind=block.kind,
            timeout_ms=TIMEOUT_MS if block.timeout_ms is None else block.timeout_ms,
            models={name: ModelOptions.from_block(each) for name, each in block.models.items()},
        )

    @classmethod
    def of(cls, given: Any, *, provider: str) -> ProviderSettings:
        """The settings of a provider in whatever form they are at hand: a record, a block, or a mapping of names."""
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            known = {each.name for each in fields(cls)}
            if unknown := sorted(map(str, set(given) - known)):
                raise ConfigError(
                    f"provider {provider!r} has no setting {unknown[0]!r}",
                    setting=f"providers.{provider}",
                    hint=f"there are {', '.join(sorted(known))}",
                )
            return cls(**given)
        if hasattr(given, "api_key") and hasattr(given, "models"):
            return cls.from_block(given)
        raise ConfigError(
            f"provider {provider!r} is {type(given).__name__}, not ProviderSettings", setting=f"providers.{provider}"
        )
