"""`web_fetch` without a network: which addresses are reached, and how pages become text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from laneway.dialogue import ToolContext
from laneway.errors import ConfigError
from laneway.records import Effect
from laneway.tools import Toolbox, builtin_tools, lane_of
from laneway.tools.addresses import is_public, parse_url
from laneway.tools.outputs import ToolRefusedError
from laneway.tools.pages import page_text
from laneway.tools.web import WebSettings, web_fetch_tool

CONTEXT = ToolContext(workspace=".")

PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450::1", "64:ff9b::808:808"]
NOT_PUBLIC = [
    "127.0.0.1", "127.255.255.254", "0.0.0.1", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "192.88.99.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:8.8.8.8", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "3fff::1", "100::1", "5f00::1",
    "localhost", "", "2130706433", "0x7f.1", "127.1", "0177.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_public_internet_may_be_reached(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_no_other_address_may_be_reached(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTPS://Example.COM:443/A b".replace(" ", "%20"), "https://example.com/A%20b"),
        ("http://example.com:8080/?q=ü#part", "http://example.com:8080/?q=%C3%BC"),
        ("http://müller.example/", "http://xn--mller-kva.example/"),
        ("http://[2606:4700:0:0::1111]/", "http://[2606:4700::1111]/"),
        ("http://1.1.1.1/", "http://1.1.1.1/"),
        ("http://a_b.example./", "http://a_b.example./"),
    ],
)
def test_a_url_is_taken_apart_and_put_in_its_usual_form(url: str, whole: str) -> None:
    assert str(parse_url(url)) == whole


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.com/", "only URLs that begin with"),
        ("file:///etc/passwd", "only URLs that begin with"),
        ("gopher://example.com/", "only URLs that begin with"),
        ("javascript:alert(1)", "only URLs that begin with"),
        ("example.com", "only URLs that begin with"),
        ("", "only URLs that begin with"),
        ("http://", "has no host"),
        ("http:///path", "has no host"),
        ("http://user:pw@example.com/", "user name or a password"),
        ("http://user@example.com/", "user name or a password"),
        ("http://@example.com/", "user name or a password"),
        ("http://example.com:0/", "has no port"),
        ("http://example.com:99999/", "is not a URL"),
        ("http://example.com:x/", "is not a URL"),
        ("http://exam ple.com/", "blanks, backslashes"),
        ("http://example.com\\@127.0.0.1/", "blanks, backslashes"),
        ("http://example.com/\r\nHost: x", "blanks, backslashes"),
        ("http://example.com/\x00", "blanks, backslashes"),
        ("http://[::1/", "is not a URL"),
        ("http://[fe80::1%25eth0]/", "is not"),
        ("http://2130706433/", "odd spelling"),
        ("http://0x7f000001/", "odd spelling"),
        ("http://0x7f.1/", "odd spelling"),
        ("http://127.1/", "odd spelling"),
        ("http://0177.0.0.1/", "odd spelling"),
        ("http://1.1.1.1./", "odd spelling"),
        ("http://1.1.1.0x1/", "odd spelling"),
        ("http://-example.com/", "not the name of a host"),
        ("http://exa*mple.com/", "not the name of a host"),
        ("http://" + "a" * 300 + "/", "not the name of a host"),
        ("http://example..com/", "not the name of a host"),
        ("http://example.com/" + "a" * 9000, "at most 8192"),
    ],
)
def test_a_url_that_may_not_be_fetched_is_refused(url: str, says: str) -> None:
    with pytest.raises(ToolRefusedError) as caught:
        parse_url(url)
    assert says in str(caught.value)


def test_digits_of_other_scripts_are_digits() -> None:
    assert parse_url("http://\uff11.\uff11.\uff11.\uff11/").host == "1.1.1.1"


@pytest.mark.parametrize(
    "answers",
    [["127.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["::1"], ["169.254.169.254"], ["::ffff:1.1.1.1"], []],
)
async def test_a_name_that_leads_inside_is_refused_before_anything_is_connected(answers: list[str]) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers

    output = await web_fetch_tool(WebSettings(resolve=resolve)).run({"url": "http://innocent.example/"}, CONTEXT)
    assert output.is_error
    assert "innocent.example" in output.text
    assert asked == ["innocent.example"]


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://localhost:8420/", "http://[::1]/", "http://0.0.0.0/"])
async def test_this_machine_is_not_fetched_from(url: str) -> None:
    output = await web_fetch_tool().run({"url": url}, CONTEXT)
    assert output.is_error
    assert "not of the public Internet" in output.text


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="allow_networks"):
        web_fetch_tool(WebSettings(allow_networks=("localhost",)))


def test_an_allowed_network_is_only_itself() -> None:
    import ipaddress

    allowed = [ipaddress.ip_network("10.1.0.0/16")]
    assert is_public("10.1.2.3", allowed)
    assert not is_public("10.2.0.1", allowed)
    assert not is_public("::ffff:10.1.2.3", allowed)


# ---- pages --------------------------------------------------------------------------------------------------

PAGE = """<!DOCTYPE html>
<html><head><title>The &amp; title</title><style>p { color: red }</style>
<script>if (a < b) document.write("<p>no</p>")</script></head>
<body><!-- no --><nav><a href="/home">Home</a> <a href="#top">Top</a></nav>
<h1>Head   line</h1>
<p>One <b>bold</b>
word,<br>a new line.</p><p>Second &lt;p&gt; &#8364; &nbsp; end</p>
<ul><li>first</li><li>second <a href='../x?a=1&amp;b=2'>link</a><ul><li>inner</li></ul></li></ul>
<pre>  keep
    this</pre>
<table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2</td></tr></table>
<img src="x.png" alt="a picture"><SCRIPT>no()</SCRIPT >
</body></html>"""

TEXT = """# The & title

[Home](http://e.example/home) Top

# Head line

One bold word,
a new line.

Second <p> € end

- first
- second [link](http://e.example/x?a=1&b=2)
  - inner

  keep
    this

A | B
1 | 2

a picture"""


def test_a_page_becomes_text_that_can_be_read() -> None:
    assert page_text(PAGE, "http://e.example/dir/page.html") == TEXT


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a < b and c > d", "a < b and c > d"),
        ("<p", ""),
        ("<p>open", "open"),
        ("text<!-- never closed", "text"),
        ("text<script>never closed", "text"),
        ('<a title="x > y" href=z>in</a>', "[in](http://e.example/z)"),
        ('<a href="javascript:x()">in</a>', "in"),
        ("<a href='http://[bad'>in</a>", "in"),
        ("<title>only", "# only"),
        ("<title>never<p>closed", "# never\n\nclosed"),
        ("</a></ul></pre></p>fine", "fine"),
        ("&#xD800;&#0;&bogus;", "\ufffd\ufffd&bogus;"),
        ("<h2></h2><li></li>x", "x"),
        ("<p>x<svg><title>no</title></svg>y", "xy"),
    ],
)
def test_a_page_that_is_wrong_becomes_text_too(page: str, text: str) -> None:
    assert page_text(page, "http://e.example/") == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    ["<", "<a ", "<!--", "<!", "<a href='", '<a x=">', "</script", "<script>", "<a href=x>y", "&", "<pre>", "<ul><li>"],
)
def test_a_hostile_page_takes_time_in_proportion_to_its_length(piece: str) -> None:
    import time

    def seconds(length: int) -> float:
        begun = time.process_time()
        page_text(piece * (length // len(piece)))
        return time.process_time() - begun

    assert seconds(300_000) < 5


# ---- all of them --------------------------------------------------------------------------------------------


def test_the_built_in_tools_are_those_that_were_promised_with_their_arguments() -> None:
    box = Toolbox(builtin_tools())
    shown = {name: list(each.spec.parameters["properties"]) for name, each in box.items()}
    assert shown == {
        "read": ["path", "offset", "limit"],
        "write": ["path", "content"],
        "edit": ["path", "old", "new"],
        "patch": ["path", "diff"],
        "ls": ["path"],
        "glob": ["pattern", "path"],
        "grep": ["pattern", "path", "glob"],
        "bash": ["command", "timeout_ms", "working_dir"],
        "wait": ["seconds"],
        "web_fetch": ["url"],
    }
    queries = {name for name, each in box.items() if lane_of(each.spec) == "query"}
    assert queries == {"read", "ls", "glob", "grep", "wait", "web_fetch"}
    assert {name for name, each in box.items() if each.spec.effect is Effect.READ} == queries
    assert all(each.spec.description for each in box.values())
    described = [p for each in box.values() for p in each.spec.parameters["properties"].values()]
    assert all(p.get("description") for p in described)


@pytest.mark.slow
def test_making_the_built_in_tools_imports_neither_pydantic_nor_http() -> None:
    program = """
import sys
from laneway.tools import builtin_tools
builtin_tools()
print(sorted({"pydantic", "pydantic_core", "jsonschema", "httpx2", "httpcore2", "anyio"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
