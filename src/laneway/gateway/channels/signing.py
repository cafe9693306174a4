"""Signatures of webhooks as Standard Webhooks has them: HMAC-SHA256 over id, time and body, compared in constant time.

Several secrets may count at the same time, so that one can be replaced by another without a gap: what comes in may be
signed with any of them, what goes out is signed with all.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from laneway.errors import NotAuthenticatedError

__all__ = ("ID", "PREFIX", "SIGNATURE", "TIMESTAMP", "headers_of", "key_of", "verify")

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
PREFIX: Final = "whsec_"
VERSION: Final = "v1"
KEY_LEAST: Final = 24
KEY_MOST: Final = 64
ID_MAX: Final = 256
SIGNATURES_MAX: Final = 20
NOBODY: Final = b"\0" * KEY_LEAST


def key_of(secret: str) -> bytes:
    """The key in a secret; raises `ValueError`, which says what is wrong without saying the secret."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"begins with {PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"is {PREFIX} and base64") from None
    if not KEY_LEAST <= len(key) <= KEY_MOST:
        raise ValueError(f"has {KEY_LEAST} to {KEY_MOST} bytes in base64, not {len(key)}")
    return key


def headers_of(keys: Sequence[bytes], webhook_id: str, body: bytes, *, at_ms: int) -> dict[str, str]:
    """The headers of what goes out."""
    seconds = str(at_ms // 1000)
    signed = [f"{VERSION},{_signature(key, webhook_id, seconds, body)}" for key in keys]
    return {ID: webhook_id, TIMESTAMP: seconds, SIGNATURE: " ".join(signed)}


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, at_ms: int, tolerance_ms: int) -> str:
    """The id of what came in, if it is signed with one of the keys and of these minutes.

    Everything that is wrong is answered alike: whoever guesses learns nothing. Without keys nothing is right.
    """
    webhook_id, seconds = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    is_formal = 0 < len(webhook_id) <= ID_MAX and webhook_id.isascii() and webhook_id.isprintable()
    is_recent = seconds.isascii() and seconds.isdigit() and len(seconds) <= 12
    if is_recent:
        is_recent = abs(at_ms - int(seconds) * 1000) <= tolerance_ms
    offered = [part[3:] for part in headers.get(SIGNATURE, "").split(" ")[:SIGNATURES_MAX] if part.startswith("v1,")]
    is_right = False
    for key in keys or (NOBODY,):
        expected = _signature(key, webhook_id, seconds, body).encode()
        for each in offered:
            is_right |= hmac.compare_digest(each.encode("utf-8", "replace"), expected)
    if not (keys and is_right and is_formal and is_recent):
        raise NotAuthenticatedError(
            "the signature does not fit, or it is too old",
            hint=f"sign id.timestamp.body with the secret of this channel, and send {ID}, {TIMESTAMP}, {SIGNATURE}",
        )
    return webhook_id


def _signature(key: bytes, webhook_id: str, seconds: str, body: bytes) -> str:
    signed = f"{webhook_id}.{seconds}.".encode("utf-8", "replace") + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
