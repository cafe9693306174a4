"""What models cost: their own prices, or those of the list of `genai-prices`, which comes with the extra `models`."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from laneway.models.providers import options_of
from laneway.models.settings import ProviderSettings
from laneway.spending import Price

if TYPE_CHECKING:
    from laneway.ports import Model

__all__ = ("is_known", "listed_price", "price_of")

MILLION: Final = 1_000_000


def price_of(model: Model) -> Price | None:
    """What a model costs: by its configuration, by itself (`prices`), or by the list; None when nobody knows."""
    prices = getattr(model, "prices", None)
    if prices is not None:
        return Price.per_million(max(prices.input, prices.cache_write or 0), prices.output)
    return listed_price(model.name)


def is_known(name: str, providers: Mapping[str, Any]) -> bool:
    """Whether anybody knows what a model costs, without opening it; yes, where there is no list to look in."""
    given = {each: ProviderSettings.of(said, provider=each) for each, said in providers.items()}
    if options_of(name, given).prices is not None or listed_price(name) is not None:
        return True
    return "/" in name and importlib.util.find_spec("genai_prices") is None


@functools.lru_cache(maxsize=256)
def listed_price(name: str) -> Price | None:
    """What the list says of `provider/model`; None when it does not know it, or there is no list here."""
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    provider, _, model = name.partition("/")
    if not model:
        return None
    try:
        found = calc_price(Usage(input_tokens=MILLION, output_tokens=MILLION), model_ref=model, provider_id=provider)
    except LookupError:
        return None
    return Price.per_million(float(found.input_price), float(found.output_price))
