"""The key of a request that may be sent again: the same one changes nothing the second time."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Header

__all__ = ("KEY_MAX", "IdempotencyKey")

KEY_MAX: Final = 200

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=KEY_MAX,
        description="The same key again changes nothing, and gives the same answer.",
    ),
]
