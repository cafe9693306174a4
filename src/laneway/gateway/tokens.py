"""API tokens: kept as hashes in the store, compared in constant time, revocable."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from laneway.errors import ConfigError, NotFoundError, StoreUnavailableError
from laneway.gateway.access import ALL_TENANTS, Caller, Scope
from laneway.ports import Clock, Store
from laneway.rows import Batch, Owner, StateRow
from laneway.runtime.envelope import check_key

__all__ = ("GATEWAY", "Token", "TokenBook")

GATEWAY: Final = "laneway.gateway"
"""The workspace in the store that belongs to the gateway itself."""
KIND: Final = "token"
PREFIX: Final = "lw"


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
    digest: str = ""
    seq: int = 0

    def counts(self, wall_ms: int) -> bool:
        """Whether it opens anything at this moment."""
        return self.revoked_ms is None and (self.expires_ms is None or wall_ms < self.expires_ms)

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
    """The tokens of one store, all in memory: what is written to the file behind its back has no effect."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tokens: dict[str, Token] = {}

    async def load(self) -> None:
        """Read what the store has."""
        loaded = await self._store.load_workspace(GATEWAY)
        self._tokens = {row.id: _decoded(row) for row in loaded.states if row.kind == KIND}

    @property
    def is_empty(self) -> bool:
        """Whether nobody has ever made a token that is kept: then the machine itself is trusted to talk."""
        return not any(token.seq for token in self._tokens.values())

    def tokens(self) -> list[Token]:
        """Every token, oldest first, revoked ones included."""
        return sorted(self._tokens.values(), key=lambda token: (token.created_ms, token.id))

    def find(self, secret: str) -> Token | None:
        """The token that a secret belongs to, if it counts now."""
        prefix, _, rest = secret.partition("_")
        token = self._tokens.get(rest.partition("_")[0]) if prefix == PREFIX else None
        digest = _digest(secret)
        expected = token.digest if token is not None else _digest("nobody")
        is_right = hmac.compare_digest(digest, expected)
        return token if is_right and token is not None and token.counts(self._clock.wall_ms()) else None

    async def create(
        self, name: str, scopes: Iterable[Scope], *, tenant: str = "default", expires_ms: int | None = None
    ) -> tuple[Token, str]:
        """A new token, and its secret, which is shown this once."""
        token, secret = self._new(name, scopes, tenant, expires_ms)
        await self._keep(replace(token, seq=self._store.next_seq()))
        return token, secret

    def create_for_now(self, name: str, scopes: Iterable[Scope], *, tenant: str = ALL_TENANTS) -> str:
        """The secret of a token that is never written down, and ends with the process."""
        token, secret = self._new(name, scopes, tenant, None)
        self._tokens[token.id] = token
        return secret

    async def revoke(self, token_id: str) -> Token:
        """From now on it opens nothing. A second time changes nothing."""
        token = self._tokens.get(token_id)
        if token is None:
            raise NotFoundError(what="token", name=token_id, hint="laneway token ls")
        if token.revoked_ms is None:
            token = replace(token, revoked_ms=self._clock.wall_ms())
            if token.seq:
                await self._keep(token)
            else:
                self._tokens[token.id] = token
        return token

    def _new(self, name: str, scopes: Iterable[Scope], tenant: str, expires_ms: int | None) -> tuple[Token, str]:
        wanted = tuple(dict.fromkeys(scopes))
        if not wanted:
            raise ConfigError("a token needs a scope", setting="scope", hint=", ".join(Scope))
        if tenant != ALL_TENANTS:
            check_key(tenant, "tenant")
        token_id = secrets.token_hex(6)
        secret = f"{PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
        token = Token(
            id=token_id,
            name=check_key(name, "name of a token"),
            scopes=wanted,
            tenant=tenant,
            created_ms=self._clock.wall_ms(),
            expires_ms=expires_ms,
            digest=_digest(secret),
        )
        return token, secret

    async def _keep(self, token: Token) -> None:
        owner = Owner("default", GATEWAY)
        batch = Batch(owner, self._store.epoch, (_encoded(token, owner),))
        result = (await self._store.commit([batch]))[0]
        if result.error is not None:
            if isinstance(result.error, StoreUnavailableError):
                raise result.error
            raise StoreUnavailableError(f"the token could not be stored: {result.error}") from result.error
        self._tokens[token.id] = token


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
    body = json.loads(row.body)
    scopes = tuple(Scope(each) for each in body.pop("scopes"))
    return Token(id=row.id, seq=row.seq, scopes=scopes, **body)
