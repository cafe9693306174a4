"""Rules about addresses: however one is written, it is the one that is fetched that counts."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.dialogue import ToolSpec
from laneway.kernel.permissions import Verdict, allows_url, decide
from laneway.kernel.url_text import read_url
from laneway.options import PermissionPolicy
from laneway.tools.addresses import parse_url
from laneway.tools.outputs import ToolRefusedError

WEB = ToolSpec(name="web_fetch")
ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK

SPELLINGS = [
    "https://evil.com/x",
    "https://evil.com",
    "https://evil.com?x",
    "https://evil.com#x",
    "https://evil.com:/x",
    "https://evil.com:443?x",
    "https://evil.com:443/x",
    "https://evil.com:0443/x",
    "https://evil.com:8443/x",
    "https://EVIL.com./x",
    "HTTPS://evil.com/x",
    "http://evil.com/x",
    "https://evil.com//x",
    "https://ⓔvil.com/",
    "https://evil。com/",
    "https://ｅvil.com/",  # noqa: RUF001 - a letter that only looks like one
    "https://evi\u00adl.com/x",
    "https://user@evil.com/x",
    "https://evil%2ecom/x",
]


def fetch(url: object, **policy: Any) -> Verdict:
    return decide(PermissionPolicy(**policy), WEB, {"url": url}).verdict


@pytest.mark.parametrize("url", SPELLINGS)
@pytest.mark.parametrize(
    "pattern", ["https://evil.com/*", "*evil.com*", "*://evil.com/*", "*://evil.com*", "evil.com/*", "evil.com"]
)
def test_a_forbidden_host_is_found_in_every_spelling_that_is_fetched(pattern: str, url: str) -> None:
    assert fetch(url, deny=(f"web_fetch({pattern})",), default_decision="allow") is DENY


@pytest.mark.parametrize(
    "path",
    [
        "/private/x",
        "//private/x",
        "/a/../private/x",
        "/./private/x",
        "/%70rivate/x",
        "/%2570rivate/x",
        "/a/%2e%2e/private/x",
        "/a/..%2fprivate/x",
        "/PRIVATE/x",
        "/private//x?y#z",
        "/private/",
    ],
)
def test_a_forbidden_path_is_found_in_every_spelling(path: str) -> None:
    policy: dict[str, Any] = {"deny": ("web_fetch(https://evil.com/private/*)",), "default_decision": "allow"}
    assert fetch(f"https://evil.com{path}", **policy) is DENY
    assert fetch("https://evil.com/public/x", **policy) is ALLOW


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.com/.python.org/x",
        "https://evil.com?.python.org/",
        "https://evil.com#.python.org/",
        "https://evil.com/x.python.org/",
        "https://evil.com:443/.python.org/",
        "https://evil.com\\.python.org/",
        "https://x@docs.python.org/",
        "https://evil.com@docs.python.org/",
        "https://docs.python.org.evil.com/",
        "https://docs.python.org:8443/",
        "http://docs.python.org/",
        "https://docs.python.org/a/../x",
        "https://docs.python.org/%2e%2e/x",
        "https://docs.python.org/%252e%252e/x",
        "https://docs.python.org/./x",
        "https://python.org/",
        "ftp://docs.python.org/",
        "docs.python.org/",
        "https:///x",
        "https://[::1/",
        "https://docs.python.org:99999/",
    ],
)
def test_a_star_in_the_host_stays_in_the_host(url: str) -> None:
    assert fetch(url, allow=("web_fetch(https://*.python.org/*)",)) is ASK


@pytest.mark.parametrize(
    ("pattern", "url", "verdict"),
    [
        ("https://*.python.org/*", "https://docs.python.org/3/?q=a#b", ALLOW),
        ("https://*.python.org/*", "https://docs.python.org:443/3/", ALLOW),
        ("https://*.python.org/*", "https://DOCS.python.org./3/", ALLOW),
        ("https://*.python.org/*", "https://docs.python.org?q", ALLOW),
        ("https://*.python.org", "https://docs.python.org", ALLOW),
        ("https://*.python.org", "https://docs.python.org/3", ASK),
        ("https://*", "https://any.example/x", ALLOW),
        ("https://*", "http://any.example/x", ASK),
        ("*://good.com/*", "http://good.com/x", ALLOW),
        ("good.com", "http://good.com/x", ALLOW),
        ("good.com/a/*", "https://good.com/a/b", ALLOW),
        ("good.com/a/*", "https://good.com/b/a/", ASK),
        ("https://good.com:8443/*", "https://good.com:8443/x", ALLOW),
        ("https://good.com:8443/*", "https://good.com/x", ASK),
        ("https://good.com:*/*", "https://good.com:1234/x", ALLOW),
        ("https://bücher.example/*", "https://xn--bcher-kva.example/x", ASK),
        ("https://xn--bcher-kva.example/*", "https://bücher.example/x", ALLOW),
        ("https://[2001:db8::1]/*", "https://[2001:DB8:0::1]/x", ALLOW),
    ],
)
def test_scheme_host_port_and_path_are_held_apart(pattern: str, url: str, verdict: Verdict) -> None:
    assert fetch(url, allow=(f"web_fetch({pattern})",)) is verdict


@pytest.mark.parametrize("url", [*SPELLINGS, "https://a.b/ü?ö", "http://1.2.3.4:80/", "https://[::ffff:1.2.3.4]/x"])
def test_rules_see_the_address_that_the_fetcher_sees(url: str) -> None:
    try:
        target = parse_url(url)
    except ToolRefusedError:
        assert any(odd in url for odd in ("%2e", "@", "\u00ad"))
        return
    seen = read_url(url)
    assert seen is not None
    assert (seen.scheme, seen.host, seen.port, seen.target) == (
        target.scheme,
        target.host.rstrip("."),
        target.port,
        target.target,
    )


def test_a_redirect_may_lead_only_to_what_is_allowed_by_itself() -> None:
    allows = allows_url(PermissionPolicy(allow=("web_fetch(https://good.com/*)",)))
    assert allows is not None
    assert allows("https://good.com/x")
    assert not allows("https://evil.com/x")
    denies = allows_url(PermissionPolicy(deny=("web_fetch(evil.com)",), default_decision="allow"))
    assert denies is not None
    assert denies("https://good.com/x")
    assert not denies("https://evil.com:443/x")


@pytest.mark.parametrize(
    "policy",
    [
        None,
        PermissionPolicy(deny=("*",), enabled=False),
        PermissionPolicy(deny=("bash",), default_decision="allow"),
        PermissionPolicy(allow=("web_*",)),
    ],
)
def test_redirects_are_not_held_against_a_policy_that_lets_every_address_through(
    policy: PermissionPolicy | None,
) -> None:
    assert allows_url(policy) is None
