"""Secrets are taken out of text before it goes to logs, events for operators or traces.

What is known by its shape is replaced: tokens of Laneway, credentials of HTTP, keys of providers, passwords in
addresses, private keys, values behind names such as `password`. A secret without a shape cannot be known by it: whoever
has one must not write it down. Most text has no sign of any of them, and costs little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ("HIDDEN", "redact", "redact_tree")

HIDDEN: Final = "[hidden]"
DEPTH_MAX: Final = 20

_NAMES: Final = (
    r"(?:[\w-]*?(?:password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"(?:access|refresh|auth|session|bearer|id|csrf)[_-]?token)|(?:[a-z0-9]{1,20}[_-])?token|passphrase|pwd)"
)
_SHAPES: Final = re.compile(
    "|".join(
        (
            # credentials of HTTP; a header in a dump has quotes around its parts
            r"(?P<scheme>\b(?:bearer|basic)\s+)[\w~+/.=-]{6,}",
            r"(?P<header>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?!(?:bearer|basic)\b)[^\s\"',;]{4,}",
            r"(?P<cookie>\b(?:set-)?cookie[\"']?\s*[:=]\s*[\"']?)[^\r\n\"']+",
            # a password in an address, a key in its query
            r"(?P<address>\b[a-z][a-z0-9+.-]{1,30}://)[^\s/?#@\"']{1,500}@",
            rf"(?P<query>[?&](?:{_NAMES}|key|sig|signature|code)=)[^\s&#\"']+",
            # a value behind its name, as in JSON, YAML and environments; a name is looked at from its beginning only
            (
                rf"(?P<value>(?<![\w-]){_NAMES}[\"']?\s*[:=]\s*)"
                r"(?!\[hidden\])(?:\"[^\"\r\n]*\"|'[^'\r\n]*'|[^\s\"',;&)\]}]{4,})"
            ),
            # by their own look
            (
                r"(?P<plain>\blw_[0-9a-f]{6,}_[\w-]{8,}|\b(?:sk|pk|rk)-[\w-]{12,}|\b(?:sk|rk|whsec)_[\w+/=-]{12,}"
                r"|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bxox[abposr]-[\w-]{10,}|\bAKIA[0-9A-Z]{12,}"
                r"|\bAIza[\w-]{20,}|\bglpat-[\w-]{16,}|\bhf_\w{20,}|\bnpm_\w{30,}|\b\d{6,12}:AA[\w-]{30,}"
                r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
                r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$))"
            ),
        )
    ),
    re.IGNORECASE,
)
_SIGNS: Final = (
    "basic", "bearer", "authorization", "cookie", "@", "pass", "pwd", "secret", "key", "token", "sig", "code", "lw_",
    "sk-", "pk-", "rk-", "sk_", "rk_", "whsec", "gh", "xox", "akia", "aiza", "glpat", "hf_", "npm_", ":aa", "eyj",
)  # fmt: skip
"""Every shape has one of these in it, in lower case: without any there is nothing to look for."""
_SECRET_NAME: Final = re.compile(rf"(?:{_NAMES}|authorization|cookie|set-cookie|proxy-authorization)$", re.IGNORECASE)


def _hide(match: re.Match[str]) -> str:
    kind = match.lastgroup
    if kind == "plain" or kind is None:
        return HIDDEN
    kept = match.group(kind)
    return f"{kept}{HIDDEN}@" if kind == "address" else kept + HIDDEN


def redact(text: str) -> str:
    """The text with `[hidden]` in the place of each secret that is known by its shape. Applied twice it is the same."""
    lower = text.lower()
    for sign in _SIGNS:
        if sign in lower:
            return _SHAPES.sub(_hide, text)
    return text


def redact_tree(value: Any, *, text_max: int | None = None, depth: int = 0) -> Any:
    """The same for a tree of JSON values: texts are redacted, and what stands behind the name of a secret is hidden.

    Texts that are longer than `text_max` are cut first.
    """
    if isinstance(value, str):
        return redact(value[:text_max])
    if depth >= DEPTH_MAX:
        return HIDDEN if isinstance(value, Mapping | list | tuple) else value
    if isinstance(value, Mapping):
        return {name: _member(name, each, text_max, depth) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(each, text_max=text_max, depth=depth + 1) for each in value]
    return value


def _member(name: Any, value: Any, text_max: int | None, depth: int) -> Any:
    if isinstance(name, str) and isinstance(value, str) and value and _SECRET_NAME.fullmatch(name):
        return HIDDEN
    return redact_tree(value, text_max=text_max, depth=depth + 1)
