"""Who calls, and what they may do. A tenant's caller sees only its own things; what is not its own does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from laneway.errors import PermissionDeniedError
from laneway.mail import Sender

__all__ = ("ALL_TENANTS", "LOCAL", "SUBPROTOCOL", "Caller", "Scope", "secret_of")

ALL_TENANTS: Final = "*"
SUBPROTOCOL: Final = "laneway.token."
"""Before the secret in a subprotocol of a WebSocket: a page in a browser cannot set headers for one."""


class Scope(StrEnum):
    """What a token is for. `admin` includes `operate`, which includes `chat`; `worker` stands alone."""

    CHAT = "chat"
    OPERATE = "operate"
    WORKER = "worker"
    ADMIN = "admin"


IMPLIED: Final = {
    Scope.CHAT: frozenset({Scope.CHAT}),
    Scope.OPERATE: frozenset({Scope.CHAT, Scope.OPERATE}),
    Scope.WORKER: frozenset({Scope.WORKER}),
    Scope.ADMIN: frozenset({Scope.CHAT, Scope.OPERATE, Scope.ADMIN}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody who was let in. `tenant` is whose things this request is about; `sees_all`: it may choose that.

    `views` is the right to look at what all tenants share (lanes, limits, settings) without being an operator: only
    a caller on the machine itself has it, and only while the gateway has no tokens. `vouches`: it has checked who its
    senders are, as channels do; of any other caller a sender is only what it says.
    """

    name: str
    tenant: str = "default"
    scopes: frozenset[Scope] = frozenset()
    sees_all: bool = False
    views: bool = False
    vouches: bool = False
    token_id: str = ""

    def may(self, scope: Scope) -> bool:
        """Whether it has a scope, by itself or by another one."""
        return any(scope in IMPLIED[each] for each in self.scopes)

    def check(self, scope: Scope) -> None:
        """Refuse what needs a scope that it lacks."""
        if not self.may(scope):
            raise PermissionDeniedError(
                f"{self.name} may not do this: it needs the scope {scope.value!r}",
                hint=f"use a token that has it: laneway token create --scope {scope.value}",
                right=scope.value,
            )

    def check_shared(self) -> None:
        """Refuse to show what all tenants share to somebody who may see one of them only."""
        if self.views:
            return
        self.check(Scope.OPERATE)
        if not self.sees_all:
            raise PermissionDeniedError(
                f"{self.name} sees only tenant {self.tenant!r}, and this is shared by all",
                hint="use an operator token for all tenants: laneway token create --scope operate --tenant '*'",
                right="operate",
            )

    def sender(self, claimed: str | None = None, name: str | None = None) -> Sender:
        """The sender of its messages. A caller may say for whom it speaks; what they may do is what it may do."""
        rights = ("approve", "queue", "stop") if self.may(Scope.OPERATE) else ("queue", "stop")
        return Sender(id=claimed or self.name, name=name, rights=rights)


LOCAL: Final = Caller(name="local", scopes=frozenset({Scope.CHAT}), views=True)
"""Whoever is on this machine, while the gateway has no tokens: it may talk and look, and operates nothing."""


def secret_of(authorization: Iterable[bytes], subprotocols: Iterable[str] = ()) -> str:
    """The secret that comes with a request, from its headers `Authorization`; two of them are none."""
    said = list(authorization)
    if said:
        kind, _, secret = said[0].decode("latin-1").partition(" ")
        return secret.strip() if len(said) == 1 and kind.lower() == "bearer" else ""
    offered = [each.removeprefix(SUBPROTOCOL) for each in subprotocols if each.startswith(SUBPROTOCOL)]
    return offered[0] if len(offered) == 1 else ""
