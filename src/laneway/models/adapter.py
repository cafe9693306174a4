"""Models of real providers, by pydantic-ai's model layer. Imported only when such a model is opened.

An HTTP connection belongs to the event loop that made it, so there is one client per loop. The SDKs' own retries are
off: whoever asks decides whether and when to ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakKeyDictionary

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.models import StreamedResponse
from pydantic_ai.settings import ModelSettings, ThinkingLevel

from laneway.dialogue import Answer, Chunk, ModelRequest, Usage
from laneway.errors import ModelUnavailableError
from laneway.models.faults import Origin, fault_of
from laneway.models.settings import ModelOptions, Prices, ProviderSettings
from laneway.models.switch import check_allowed
from laneway.models.translation import Reply, messages_of, parameters_of
from laneway.ports import Clock

__all__ = ("ProviderModel",)

EFFORTS: Final[tuple[tuple[int, ThinkingLevel], ...]] = ((0, False), (2_048, "low"), (16_384, "medium"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a model is called, and by whom it is answered."""

    name: str
    provider: str
    model: str
    account: str = ""  # whose quota its calls use up


class ProviderModel:
    """A model of a provider: what goes wrong is a `ModelUnavailableError` or a `ModelError`."""

    def __init__(
        self,
        identity: Identity,
        settings: ProviderSettings,
        *,
        build: Callable[[], PydanticModel],
        clock: Clock | None = None,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._options = settings.models.get(identity.model, ModelOptions())
        self._build = build
        self._clock = clock
        # Built at once, so that a wrong setting is found where the model is opened. The first loop takes it.
        first = build()
        self._unused = [first]  # a list, because two threads may each want it and `pop` gives it to one
        self._url = first.base_url or ""
        self._context_window = first.context_window
        self._models: WeakKeyDictionary[asyncio.AbstractEventLoop, PydanticModel] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """What it is called in the configuration."""
        return self._identity.name

    @property
    def account(self) -> str:
        """Whose quota its calls use up."""
        return self._identity.account

    @property
    def context_tokens(self) -> int | None:
        """How many tokens it can take in, as its options or the price list say."""
        return self._options.context_tokens or self._context_window

    @property
    def output_max(self) -> int | None:
        """How many tokens it may answer with, as its options say."""
        return self._options.output_max

    @property
    def prices(self) -> Prices | None:
        """What its options say that it costs; None: what the price list says."""
        return self._options.prices

    @property
    def url(self) -> str:
        """Where its provider is."""
        return self._url

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        """One answer, in pieces. Closing this early closes the connection."""
        check_allowed(model=self.name, url=self._url)
        reply = Reply(request.conversation)
        try:
            async with AsyncExitStack() as stack:
                streamed = await self._open(request, stack)
                async for event in aiter(streamed):
                    for chunk in reply.chunks(event):
                        yield chunk
            response = streamed.get()
        except Exception as error:
            raise fault_of(error, self._origin()) from error
        yield self._whole(response, reply)

    async def aclose(self) -> None:
        """Close the connections that this event loop has to the provider; the next call makes new ones."""
        if (model := self._models.pop(asyncio.get_running_loop(), None)) is not None:
            await model.__aexit__(None, None, None)

    async def _open(self, request: ModelRequest, stack: AsyncExitStack) -> StreamedResponse:
        model = await self._model()
        parameters = parameters_of(request if self._options.tools else replace(request, tools=()))
        messages = model.prepare_messages(messages_of(request), parameters)
        return await stack.enter_async_context(model.request_stream(messages, self._asked(request), parameters))

    async def _model(self) -> PydanticModel:
        """The model that belongs to this event loop."""
        loop = asyncio.get_running_loop()
        if (model := self._models.get(loop)) is None:
            try:
                model = self._unused.pop()
            except IndexError:
                model = self._build()
            self._models[loop] = model
            await model.__aenter__()
        return model

    def _asked(self, request: ModelRequest) -> ModelSettings:
        """What is asked of the provider beside the conversation."""
        asked = ModelSettings(max_retries=0, timeout=self._settings.timeout_ms / 1000)
        if self._settings.cache and request.purpose == "answer":  # a summary is asked for once
            asked["cache"] = True
        if self._settings.headers:
            asked["extra_headers"] = dict(self._settings.headers)
        if output_max := request.output_max or self._options.output_max:
            asked["max_tokens"] = output_max
        if request.temperature is not None:
            asked["temperature"] = request.temperature
        if (budget := request.thinking_budget) is not None:
            # Providers no longer agree on budgets in tokens; levels are what all of them know.
            asked["thinking"] = next((level for most, level in EFFORTS if budget <= most), "high")
        return asked

    def _whole(self, response: ModelResponse, reply: Reply) -> Answer:
        """The answer at the end of a stream, unless the stream ended before the answer did."""
        if not _has_ended(response):
            raise ModelUnavailableError(
                f"the stream of model {self.name!r} was cut: it ended before the answer did",
                model=self.name,
                hint="ask again",
            )
        return reply.answer(response, usage=self._usage(response), model=self.name)

    def _usage(self, response: ModelResponse) -> Usage:
        used = response.usage
        usage = Usage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
        )
        prices = self._options.prices
        if not usage.total_tokens:  # nobody has counted it, so nobody knows what it cost
            return usage
        return replace(usage, cost=prices.cost(usage) if prices is not None else _list_price(response))

    def _origin(self) -> Origin:
        return Origin(
            model=self.name,
            provider=self._identity.provider,
            secret=self._settings.api_key,
            now_ms=None if self._clock is None else self._clock.wall_ms(),
        )


def _has_ended(response: ModelResponse) -> bool:
    """Whether the provider has said that the answer is whole; a connection that just ends does not say so."""
    details = response.provider_details or {}
    if response.state == "incomplete" or response.finish_reason == "error":
        return False
    if "finish_reason" in details or "refusal" in details:
        return True
    # pydantic-ai makes up a reason for servers that never send one; what counts with them is that the usage came.
    return response.finish_reason is not None and not response.usage.unmeasured_requests


def _list_price(response: ModelResponse) -> float | None:
    """What the price list says; None when it does not know the model, or the usage is not known."""
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None
