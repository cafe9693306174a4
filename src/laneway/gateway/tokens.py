"""API tokens: kept as hashes in the store, compared in constant time, revocable.

All tokens are in memory: what is written to the file behind the book's back has no effect before the next start. A row
that cannot be read opens nothing, and counts as a token that was made: a damaged store never opens the gateway wider.

A token that is for workers alone does not close a server on this machine: whoever talked to it without a token before
the first worker came still may.

A stream outlives the request that opened it: whoever listens (`on_end`) is told when a token stops to count, so that
what was opened with it ends then.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from laneway.errors import (
    ConfigError,
    ConflictError,
    LanewayError,
    NotAuthenticatedError,
    NotFoundError,
)
from laneway.gateway.access import ALL_TENANTS, Caller, Scope
from laneway.gateway.writing import write_row
from laneway.ports import Clock, Store
from laneway.rows import Owner, StateKey, StateRow
from laneway.runtime.envelope import check_key

__all__ = ("GATEWAY", "TOKENS_MAX", "Token", "TokenBook")

_log = logging.getLogger("laneway.gateway")

GATEWAY: Final = "laneway.gateway"
"""The workspace in the store that belongs to the gateway itself."""
KIND: Final = "token"
PREFIX: Final = "lw"
NAME_MAX: Final = 100
TOKENS_MAX: Final = 10_000
SECRET_MAX: Final = 200
"""What is longer is no secret of ours, and not worth a hash."""
NOBODY: Final = "0" * 64
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
DAMAGED: Final = "(damaged)"
LOOK_AGAIN_MS: Final = 600_000
"""The wall clock may be set while a timer runs; so much later an expired token is noticed at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token; never the secret itself."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    tenant: str = "default"
    created_ms: int = 0
    expires_ms: int | None = None
    revoked_ms: int | None = None
    digest: str = field(default=NOBODY, repr=False)
    seq: int = 0
    has_more: bool = False  # scopes of a later version, which mean nothing here

    @property
    def is_kept(self) -> bool:
        """Whether it outlives the process."""
        return self.seq > 0

    @property
    def closes(self) -> bool:
        """Whether nobody is let in without a token any more, now that there is this one."""
        return self.is_kept and (self.has_more or self.scopes != (Scope.WORKER,))

    def counts(self, wall_ms: int) -> bool:
        """Whether it opens anything at this moment."""
        return self.revoked_ms is None and (self.expires_ms is None or wall_ms < self.expires_ms)

    def state(self, wall_ms: int) -> str:
        """In a word: `valid`, `expired`, `revoked`."""
        if self.revoked_ms is not None:
            return "revoked"
        return "valid" if self.counts(wall_ms) else "expired"

    def caller(self, tenant: str = "") -> Caller:
        """Who calls with it; a token for all tenants says which one it means."""
        sees_all = self.tenant == ALL_TENANTS
        return Caller(
            name=self.name,
            tenant=(tenant or "default") if sees_all else self.tenant,
            scopes=frozenset(self.scopes),
            sees_all=sees_all,
            token_id=self.id,
        )


class TokenBook:
    """The tokens of one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tokens: dict[str, Token] = {}
        self._kept = 0
        self._is_closed = False  # to whoever has no token
        self._timer: asyncio.TimerHandle | None = None
        self._next_ms: int | None = None  # when the timer has something to do
        self.on_end: list[Callable[[str, str], None]] = []
        """Called with the id of a token that stops to count, and why: `revoked`, `expired`. The empty id is everybody
        who was let in without a token, because there was none."""

    async def load(self) -> None:
        """Read what the store has."""
        loaded = await self._store.load_workspace(GATEWAY)
        self._tokens = {row.id: _decoded(row) for row in loaded.states if row.kind == KIND}
        self._kept = len(self._tokens)
        self._is_closed = any(each.closes for each in self._tokens.values())
        self._arm()

    def close(self) -> None:
        """Watch over nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_empty(self) -> bool:
        """Whether no token is kept, except for workers alone: then the machine itself is trusted to talk.

        One that was revoked is still kept.
        """
        return not self._is_closed

    def tokens(self) -> list[Token]:
        """Every token, oldest first, revoked ones included."""
        return sorted(self._tokens.values(), key=lambda token: (token.created_ms, token.id))

    def token(self, token_id: str) -> Token:
        """One of them; raises `NotFoundError`."""
        token = self._tokens.get(token_id)
        if token is None:
            raise NotFoundError(what="token", name=token_id, hint="laneway token ls")
        return token

    def counts(self, token_id: str) -> bool:
        """Whether a token opens anything now. The empty id is whoever is on this machine while `is_empty`."""
        token = self._tokens.get(token_id)
        return not (token_id or self._is_closed) if token is None else token.counts(self._clock.wall_ms())

    def check(self, caller: Caller) -> None:
        """Refuse a caller whose token has stopped to count since it was let in: for what takes longer than a moment."""
        if not self.counts(caller.token_id):
            raise NotAuthenticatedError("this token does not count any more", hint="laneway token create makes one")

    def find(self, secret: str) -> Token | None:
        """The token that a secret belongs to, if it counts now."""
        if len(secret) > SECRET_MAX:
            return None
        parts = secret.split("_", 2)
        token = self._tokens.get(parts[1]) if len(parts) == 3 and parts[0] == PREFIX else None
        expected = NOBODY if token is None else token.digest
        is_right = hmac.compare_digest(_digest(secret), expected)  # both are hexadecimal digits
        return token if is_right and token is not None and token.counts(self._clock.wall_ms()) else None

    # ---- making and revoking ----

    async def create(
        self, name: str, scopes: Iterable[Scope], *, tenant: str = "default", expires_ms: int | None = None
    ) -> tuple[Token, str]:
        """A new token, and its secret, which is shown this once. `expires_ms` is a moment of the wall clock."""
        token, secret = self._new(name, scopes, tenant, expires_ms)
        token = replace(token, seq=self._store.next_seq())
        forgotten = self._room()
        await self._keep(token, forgotten)
        for each in forgotten:
            self._tokens.pop(each.id, None)  # who made one at the same time has forgotten it already
        self._kept = sum(each.is_kept for each in self._tokens.values())
        was_closed, self._is_closed = self._is_closed, self._is_closed or token.closes
        if self._is_closed and not was_closed:
            self._end("", "revoked")  # nobody is let in without a token any more
        self._arm()
        return token, secret

    def create_for_now(self, name: str, scopes: Iterable[Scope], *, tenant: str = ALL_TENANTS) -> str:
        """The secret of a token that is never written down, and ends with the process."""
        token, secret = self._new(name, scopes, tenant, None)
        self._tokens[token.id] = token
        return secret

    async def revoke(self, token_id: str) -> Token:
        """From now on it opens nothing, and what it had open ends. A second time changes nothing."""
        token = self.token(token_id)
        if token.revoked_ms is None:
            token = replace(token, revoked_ms=self._clock.wall_ms())
            if token.seq:
                await self._keep(token)
            else:
                self._tokens[token.id] = token
            self._end(token_id, "revoked")
        return token

    def _new(self, name: str, scopes: Iterable[Scope], tenant: str, expires_ms: int | None) -> tuple[Token, str]:
        wanted = tuple(dict.fromkeys(scopes))
        now = self._clock.wall_ms()
        if not wanted:
            raise ConfigError("a token needs a scope", setting="scope", hint=", ".join(Scope))
        if tenant != ALL_TENANTS:
            check_key(tenant, "tenant")
        if expires_ms is not None and expires_ms <= now:
            raise ConfigError("a token that has expired already is of no use", setting="expires", value=expires_ms)
        if len(check_key(name, "name of a token", dots=True)) > NAME_MAX:
            raise ConfigError(f"the name of a token has at most {NAME_MAX} characters", setting="name")
        token_id = secrets.token_hex(6)
        secret = f"{PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
        token = Token(
            id=token_id,
            name=name,
            scopes=wanted,
            tenant=tenant,
            created_ms=now,
            expires_ms=expires_ms,
            digest=_digest(secret),
        )
        return token, secret

    def _room(self) -> list[Token]:
        """What has to be forgotten for one more: the oldest of those that open nothing any more."""
        if self._kept < TOKENS_MAX:
            return []
        now = self._clock.wall_ms()
        for token in self.tokens():
            if token.seq and not token.counts(now):
                return [token]
        raise ConflictError(f"there are {TOKENS_MAX:,} tokens, which is the most", hint="revoke one: laneway token ls")

    async def _keep(self, token: Token, forgotten: Iterable[Token] = ()) -> None:
        owner = Owner("default", GATEWAY)
        forget = tuple(StateKey(KIND, each.id) for each in forgotten)
        await write_row(self._store, _encoded(token, owner), what="the token", forget=forget)
        self._tokens[token.id] = token

    # ---- what goes on while a token counts ----

    def _arm(self) -> None:
        """Be there when the next token expires."""
        now = self._clock.wall_ms()
        moments = (token.expires_ms for token in self._tokens.values() if token.counts(now))
        self._next_ms = min((each for each in moments if each is not None), default=None)
        self.close()
        if self._next_ms is not None and self.on_end:
            delay_ms = min(max(self._next_ms - now, 1), LOOK_AGAIN_MS)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._look)

    def _look(self) -> None:
        now = self._clock.wall_ms()
        assert self._next_ms is not None
        for token in list(self._tokens.values()):
            if token.expires_ms is not None and self._next_ms <= token.expires_ms <= now and token.revoked_ms is None:
                self._end(token.id, "expired")
        self._arm()

    def _end(self, token_id: str, why: str) -> None:
        for listener in list(self.on_end):
            listener(token_id, why)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _encoded(token: Token, owner: Owner) -> StateRow:
    body = {
        "name": token.name,
        "scopes": list(token.scopes),
        "tenant": token.tenant,
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms,
        "revoked_ms": token.revoked_ms,
        "digest": token.digest,
    }
    state = "revoked" if token.revoked_ms is not None else "valid"
    return StateRow(KIND, token.id, *owner, token.seq, 1, state, json.dumps(body))


def _decoded(row: StateRow) -> Token:
    """A token of the store. What cannot be read is a revoked token without scopes: it opens nothing."""
    try:
        body = json.loads(row.body)
        known = set(Scope)
        scopes = tuple(Scope(each) for each in body["scopes"] if each in known)  # a later version may know more
        return Token(
            id=row.id,
            name=check_key(body["name"], "name", dots=True),
            scopes=scopes,
            has_more=len(scopes) < len(body["scopes"]),
            tenant=ALL_TENANTS if body["tenant"] == ALL_TENANTS else check_key(body["tenant"], "tenant"),
            created_ms=_moment(body["created_ms"]),
            expires_ms=None if body["expires_ms"] is None else _moment(body["expires_ms"]),
            revoked_ms=None if body["revoked_ms"] is None else _moment(body["revoked_ms"]),
            digest=_checked_digest(body["digest"]),
            seq=row.seq,
        )
    except (ValueError, TypeError, KeyError, RecursionError, LanewayError) as error:
        _log.error("token %r cannot be read and opens nothing: %s", row.id, type(error).__name__)
        return Token(id=row.id, name=DAMAGED, scopes=(), revoked_ms=0, seq=row.seq)


def _moment(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("no moment")
    return value


def _checked_digest(value: Any) -> str:
    if not isinstance(value, str) or not DIGEST.fullmatch(value) or value == NOBODY:
        raise ValueError("no digest")
    return value
