"""A signed webhook in both directions: another system sends messages, and is posted what has to be said.

Both are signed as Standard Webhooks has it (see `signing`). A request that comes a second time, by mistake or because
somebody has recorded it, gets the first receipt and does nothing. The partner says who speaks; what they may do is in
the configuration.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from laneway.errors import (
    ClosedError,
    ConflictError,
    GiveUp,
    InvalidMessageError,
    RetryLater,
    UnavailableError,
)
from laneway.gateway.channels.fields import Fields
from laneway.gateway.channels.outbox import PATIENT, Later, Outbox, later
from laneway.gateway.channels.port import Outgoing, Place, Saying
from laneway.gateway.channels.posting import Poster, Resolve
from laneway.gateway.channels.signing import PREFIX, headers_of, key_of, verify
from laneway.gateway.channels.taking import submit
from laneway.mail import Receipt
from laneway.records import RetryPolicy
from laneway.tools.addresses import parse_url
from laneway.tools.outputs import ToolRefusedError

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("WebhookChannel", "WebhookMessage", "WebhookOptions")

REMEMBERED_MAX: Final = 100_000
GONE: Final = 410
BUSY: Final = frozenset({429, 503})
WAIT_MAX_MS: Final = 3_600_000
SECRET_HINT: Final = f"{PREFIX} and 32 random bytes in base64: openssl rand -base64 32"


class WebhookMessage(BaseModel):
    """What the other system posts. Its id is that of the header `webhook-id`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"session": "ticket-7", "text": "Hello", "sender": "ada"}]},
    )

    session: str = Field(min_length=1, max_length=300, description="Which conversation; the channel is put before it.")
    text: str = Field(max_length=10_000_000, description="What is said, or a command.")
    sender: str = Field(min_length=1, max_length=200, description="Who says it, in the other system.")
    sender_name: str = Field("", max_length=200)
    thread: str = Field("", max_length=200)
    chat_type: str = Field("", max_length=50)
    attachments: list[dict[str, Any]] = Field(default_factory=list, max_length=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """The settings of a channel of this kind."""

    place: Place
    keys: tuple[bytes, ...] = field(repr=False)
    url: str = ""
    allow_private: bool = False
    tolerance_ms: int = 300_000
    timeout_ms: int = 15_000
    policy: RetryPolicy = PATIENT

    @classmethod
    def read(cls, fields: Fields) -> WebhookOptions:
        """From the configuration; raises `ConfigError`."""
        keys = []
        for secret in fields.texts("secrets"):
            try:
                keys.append(key_of(secret))
            except ValueError as error:
                raise fields.wrong("secrets", f"has one that is none: a secret {error}", SECRET_HINT) from None
        if not keys:
            raise fields.missing("secrets", SECRET_HINT)
        url = fields.text("url", "")
        try:
            if url:
                parse_url(url)
        except ToolRefusedError as error:
            raise fields.wrong("url", f"cannot be posted to: {error}") from None
        return cls(
            place=fields.place(),
            keys=tuple(keys),
            url=url,
            allow_private=fields.flag("allow_private", default=False),
            tolerance_ms=fields.whole("tolerance_ms", 300_000, least=1_000, most=3_600_000),
            timeout_ms=fields.whole("timeout_ms", 15_000, least=100, most=600_000),
            policy=replace(PATIENT, max_retries=fields.whole("retries", PATIENT.max_retries, least=0, most=1_000)),
        )


class WebhookChannel:
    """One partner."""

    kind = "webhook"

    def __init__(self, options: WebhookOptions, *, resolve: Resolve | None = None, call_later: Later = later) -> None:
        self._options = options
        self._call_later = call_later
        self._poster: Poster | None = None
        if options.url:
            self._poster = Poster(
                parse_url(options.url),
                timeout_ms=options.timeout_ms,
                allow_private=options.allow_private,
                resolve=resolve,
            )
        self._gateway: Gateway | None = None
        self._now: Callable[[], int] = lambda: 0
        self.outbox: Outbox | None = None
        self._seen: OrderedDict[str, tuple[int, bytes, Receipt]] = OrderedDict()
        self.problem = ""

    @property
    def name(self) -> str:
        """What it is called."""
        return self._options.place.name

    async def start(self, gateway: Gateway) -> None:
        """Begin to take and to post."""
        self._gateway = gateway
        self._now = gateway.env.clock.wall_ms
        gateway.workspace(self._options.place.workspace)
        if self._poster is not None:
            self.outbox = Outbox(
                gateway,
                self._options.place,
                self,
                policy=self._options.policy,
                call_later=self._call_later,
                on_refused=self._refused,
            )
            await self.outbox.open()

    async def stop(self) -> None:
        """Take nothing more; what is not posted is posted after the next start."""
        self._gateway = None
        if self.outbox is not None:
            await self.outbox.close()

    def _refused(self, reason: str) -> None:
        self.problem = reason

    # ---- in ----

    async def take(self, headers: Mapping[str, str], body: bytes) -> Receipt:
        """Take a message that was posted to us."""
        gateway, options = self._gateway, self._options
        if gateway is None:
            raise ClosedError(opened=True, what="channel")
        now = self._now()
        webhook_id = verify(options.keys, headers, body, at_ms=now, tolerance_ms=options.tolerance_ms)
        digest = hashlib.sha256(body).digest()
        known = self._known(webhook_id, digest, now)
        if known is not None:
            return known
        message = _parsed(body)
        place = options.place
        receipt = await submit(
            gateway,
            place,
            place.key(message.session),
            message.text,
            sender=place.sender(message.sender, message.sender_name),
            thread=message.thread,
            chat_type=message.chat_type,
            attachments=message.attachments,
            message_id=webhook_id,
        )
        self._seen[webhook_id] = (now, digest, receipt)
        return receipt

    def _known(self, webhook_id: str, digest: bytes, now: int) -> Receipt | None:
        """The receipt of a request that has come before, as long as it could come again. The store knows it longer."""
        oldest = now - 2 * self._options.tolerance_ms
        while self._seen and (len(self._seen) > REMEMBERED_MAX or next(iter(self._seen.values()))[0] < oldest):
            self._seen.popitem(last=False)
        if webhook_id not in self._seen:
            return None
        _, before, receipt = self._seen[webhook_id]
        if before != digest:
            raise ConflictError("this webhook-id was used for another message", hint="use a new id for a new message")
        return replace(receipt, duplicate=True)

    # ---- out ----

    def pieces(self, said: Outgoing) -> Sequence[str]:
        """One JSON object: what happened, when, and what is said."""
        facts: dict[str, Any] = {
            "kind": said.kind.value,
            "session": said.session_key.removeprefix(self._options.place.prefix),
            "text": said.text,
            "thread": said.thread,
            "in_reply_to": said.reply_to or None,
            "message_id": said.message_id or None,
            "run_id": said.turn_id or None,
            "part": said.part,
        }
        if said.kind is Saying.APPROVAL:
            facts["approval"] = {
                "id": said.approval_id,
                "action": said.action,
                "arguments": said.arguments,
                "expires_ms": said.expires_ms,
            }
        at = datetime.fromtimestamp(said.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return [json.dumps({"type": said.event, "timestamp": at.replace("+00:00", "Z"), "data": facts})]

    async def send(self, said: Outgoing, piece: str, number: int) -> None:
        """Post it, signed. Only 2xx means that it has arrived."""
        assert self._poster is not None
        body = piece.encode()
        now = self._now()
        headers = headers_of(self._options.keys, said.id, body, at_ms=now)
        answer = await self._poster.post({**headers, "Content-Type": "application/json", "User-Agent": "laneway"}, body)
        if 200 <= answer.status < 300:
            self.problem = ""
            return
        reason = f"the other side answers {answer.status}"
        self.problem = reason
        if answer.status == GONE:
            raise GiveUp(reason)
        wait_ms = _wait_ms(answer.retry_after, now) if answer.status in BUSY else None
        if wait_ms is not None:
            raise RetryLater(wait_ms, reason)
        raise UnavailableError(reason)


def _parsed(body: bytes) -> WebhookMessage:
    try:
        return WebhookMessage.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise InvalidMessageError(f"{where}: {first['msg']}", hint="see /openapi.json") from None


def _wait_ms(text: str, now_ms: int) -> int | None:
    """What a header `Retry-After` asks for, within reason; None if it says nothing."""
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return min(int(text) * 1000, WAIT_MAX_MS)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0, min(int(at.timestamp() * 1000) - now_ms, WAIT_MAX_MS))
