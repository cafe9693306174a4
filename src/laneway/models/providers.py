"""Models by name: `scripted`, `scripted/small`, `openai/gpt-5`, `ollama/llama3`, `mine/some-model` …

Nothing of pydantic-ai is imported before a model of a provider is opened.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from laneway.errors import ConfigError
from laneway.models.scripted import ScriptedModel
from laneway.models.settings import ModelOptions, Prices, ProviderSettings
from laneway.ports import Clock, Model

if TYPE_CHECKING:
    from pydantic_ai.models import Model as PydanticModel
    from pydantic_ai.providers import Provider

    from laneway.models.adapter import ProviderModel

__all__ = ("ModelOptions", "Prices", "ProviderSettings", "model_from", "open_model", "options_of")

EXTRA: Final = "install laneway with the extra `models`"
SCRIPTED: Final = "scripted"
COMMON: Final = ("anthropic", "google", "ollama", "openai")
OLLAMA_URL: Final = "http://localhost:11434/v1"
NO_KEY: Final = "no-key"
TRY: Final = f'AsyncAgent("{SCRIPTED}")'
# How pydantic-ai says that a key is missing, and where it begins to advertise its own ways, which do not exist here.
MISSING: Final = re.compile(r"Set the `(\w+)` environment variable")
ADVICE: Final = re.compile(r"\.? To try Pydantic AI")


def model_from(model: str | Model, providers: Mapping[str, Any] | None = None, *, clock: Clock | None = None) -> Model:
    """A model, given itself or its name; `providers` may also be blocks of a configuration, or mappings."""
    if isinstance(model, str):
        given = {name: ProviderSettings.of(each, provider=name) for name, each in (providers or {}).items()}
        if _is_scripted(model, given):
            options = options_of(model, given)
            return ScriptedModel(name=model, context_tokens=options.context_tokens, prices=options.prices)
        return open_model(model, providers=given, clock=clock)
    if not callable(getattr(model, "stream", None)) or not isinstance(getattr(model, "name", None), str):
        raise ConfigError(f"a model has a name and a method stream; {model!r} has not", setting="model", value=model)
    return model


def _is_scripted(name: str, providers: Mapping[str, ProviderSettings]) -> bool:
    """Whether a name means a model that needs no provider; a server of one's own may be called like it."""
    provider, slash, model = name.partition("/")
    settings = providers.get(provider, ProviderSettings())
    is_own = settings.base_url is not None or settings.kind is not None
    return name == SCRIPTED or (provider == SCRIPTED and bool(slash and model) and not is_own)


def options_of(name: str, providers: Mapping[str, ProviderSettings]) -> ModelOptions:
    """What is said of a model by its name; one that is only a word (`scripted`) is of a provider that is called so."""
    provider, _, model = name.partition("/")
    return providers.get(provider, ProviderSettings()).models.get(model or name, ModelOptions())


def open_model(
    name: str, *, providers: Mapping[str, ProviderSettings] | None = None, clock: Clock | None = None
) -> ProviderModel:
    """The model `<provider>/<model>`. Nothing is connected yet; a wrong name or a missing key is found now.

    The provider is one of `providers`, or one that pydantic-ai knows. `clock` tells how far off a date is that a
    provider names; without one the date of its own answer counts.
    """
    provider, slash, model = name.partition("/")
    if not slash or not provider or not model:
        raise ConfigError(
            f"a model is named <provider>/<model>, or {SCRIPTED!r}; {name!r} is neither",
            setting="model",
            value=name,
            hint=f"write {'openai/' + name.strip('/:')!r}, for example",
        )
    if importlib.util.find_spec("pydantic_ai") is None:
        raise ConfigError(f"model {name!r} needs the extra `models`", setting="model", value=name, hint=EXTRA)
    from laneway.models.adapter import Identity, ProviderModel

    settings = (providers or {}).get(provider, ProviderSettings())
    build = _builder(provider, model, settings, known=(*COMMON, *(providers or {})))
    with _translated(name, provider):
        identity = Identity(name=name, provider=provider, model=model, account=_account(provider, settings))
        return ProviderModel(identity, settings, build=build, clock=clock)


def _account(provider: str, settings: ProviderSettings) -> str:
    """Models of one address and one key share their quota; the key itself shows nowhere."""
    if settings.base_url is None and settings.api_key is None:
        return provider
    apart = hashlib.sha256(f"{settings.base_url}\n{settings.api_key}".encode()).hexdigest()[:8]
    return f"{provider}:{apart}"


@contextmanager
def _translated(name: str, provider: str) -> Iterator[None]:
    """What pydantic-ai says about a wrong setting, as a `ConfigError`."""
    from pydantic_ai.exceptions import UserError

    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"model {name!r} needs a package that is not installed: {error}", setting="model", value=name, hint=EXTRA
        ) from error
    except (UserError, ValueError, TypeError) as error:
        variable = MISSING.search(str(error))
        if variable is not None:
            message = f"model {name!r} has no key: the variable {variable[1]} is not set"
            hint = f"set it, or api_key of provider {provider!r}; to try things out without one: {TRY}"
        else:
            message = f"model {name!r} cannot be opened: {ADVICE.split(str(error), maxsplit=1)[0]}"
            hint = f"see api_key and base_url of provider {provider!r}"
        raise ConfigError(message, setting="model", value=name, hint=hint) from error


def _builder(
    provider: str, model: str, settings: ProviderSettings, *, known: tuple[str, ...]
) -> Callable[[], PydanticModel]:
    """What makes the model anew, for each event loop."""
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider_class

    kind = settings.kind or provider
    if kind == "openai" and settings.base_url is not None:
        kind = "openai-chat"  # what everybody speaks who is not OpenAI
    try:
        made_by = infer_provider_class(kind)
    except ImportError as error:
        raise ConfigError(
            f"provider {provider!r} needs a package that is not installed: {error}", setting="model", hint=EXTRA
        ) from error
    except ValueError as error:
        if settings.base_url is None or settings.kind is not None:
            raise _unknown(kind, known) from error
        return lambda: _compatible(provider, model, settings)
    accepted = inspect.signature(made_by).parameters
    if settings.base_url is not None and "base_url" not in accepted:
        return lambda: _compatible(provider, model, settings)
    given = _given(kind, settings, accepted)

    def make(_: str) -> Provider[Any]:
        return made_by(**given)

    return lambda: infer_model(f"{kind}:{model}", make)


def _given(kind: str, settings: ProviderSettings, accepted: Mapping[str, Any]) -> dict[str, Any]:
    """What a provider is made with."""
    given: dict[str, Any] = {}
    base_url = settings.base_url
    if base_url is None and kind == "ollama" and "OLLAMA_BASE_URL" not in os.environ:
        base_url = OLLAMA_URL
    if base_url is not None:
        given["base_url"] = base_url
    if settings.api_key is not None:
        given["api_key"] = settings.api_key
    elif settings.base_url is not None and "api_key" in accepted:
        given["api_key"] = NO_KEY  # else a key of the environment would go to this address
    return given


def _compatible(provider: str, model: str, settings: ProviderSettings) -> PydanticModel:
    """A model of a server that speaks OpenAI's chat completions, under the user's own name for it."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    assert settings.base_url is not None
    made = OpenAICompatibleProvider(provider, base_url=settings.base_url, api_key=settings.api_key or NO_KEY)
    return OpenAIChatModel(model, provider=made)


def _unknown(kind: str, known: tuple[str, ...]) -> ConfigError:
    import difflib

    near = difflib.get_close_matches(kind, known, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(
        f"provider {kind!r} is not known",
        setting="model",
        value=kind,
        hint=f"{meant}a server of your own needs a base_url; known are {', '.join(sorted(set(known)))} and what else "
        "pydantic-ai offers",
    )
