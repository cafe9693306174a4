"""The dashboard as it is served: its policy, its caching, the rules of its scripts, and what it has to know first."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Final

import pytest

from laneway.gateway.dashboard_files import FOLDER, MEDIA_TYPES, ROOT, dashboard, policy_of
from tests.gateway_stage import spec_of
from tests.stream_stage import staged

VENDOR: Final = FOLDER / "vendor"
HTML: Final = (FOLDER / "index.html").read_text()
FILES: Final = sorted(path for path in FOLDER.rglob("*") if path.is_file())
SCRIPTS: Final = [path for path in FILES if path.suffix == ".js" and VENDOR not in path.parents]
STYLES: Final = [path for path in FILES if path.suffix == ".css" and VENDOR not in path.parents]
IMPORTS: Final[dict[str, str]] = json.loads(re.findall(r'"importmap">(.*?)</script>', HTML, re.DOTALL)[0])["imports"]
SOURCES: Final = json.loads((VENDOR / "SOURCES.json").read_text())
IMPORTED: Final = re.compile(
    r"""(?:(?:^|[;}])\s*(?:import|export)\s*[\w*{][^;"'`]*?\bfrom|\bimport\()\s*["']([^"'\n]+)["']""", re.MULTILINE
)
LINES_MAX: Final = 400
WIDTH_MAX: Final = 140
MARKUP: Final = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "dangerouslySetInnerHTML", "DOMParser", "srcdoc",
    "eval(", "new Function", "setHTMLUnsafe", "createContextualFragment",
)  # fmt: skip


def name_of(path: Path) -> str:
    """A file as one reads it in a failure."""
    return path.relative_to(FOLDER).as_posix()


# ---- what is served ----


async def test_every_file_is_served_without_a_token_and_kept_for_ever(tmp_path: Path) -> None:
    found = dashboard()
    async with staged(tmp_path) as (stage, _):
        await stage.token()
        for name, file in found.files.items():
            path = f"{ROOT}{found.digest}/{name}"
            answer = await stage.client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, file.media_type), name
            assert answer.content == (FOLDER / name).read_bytes()
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        head = await stage.client.head(path)
        assert (head.status_code, head.headers["etag"], head.content) == (200, answer.headers["etag"], b"")


async def test_a_large_file_is_compressed_for_whoever_takes_that(tmp_path: Path) -> None:
    path = f"{ROOT}{dashboard().digest}/vendor/uplot/uPlot.esm.js"
    async with staged(tmp_path) as (stage, _):
        packed = await stage.client.get(path, headers={"Accept-Encoding": "gzip"})
        plain = await stage.client.get(path, headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
        assert packed.content == plain.content  # the client has unpacked it
        assert (packed.headers["vary"], plain.headers["vary"]) == ("Accept-Encoding", "Accept-Encoding")


async def test_the_index_is_asked_for_again_and_names_the_tree_that_is_there(tmp_path: Path) -> None:
    found = dashboard()
    async with staged(tmp_path) as (stage, _):
        first = await stage.client.get("/")
        assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
        assert f'src=".{ROOT}{found.digest}/app.js"' in first.text
        assert '"./' not in first.text.replace(f'".{ROOT}{found.digest}/', "")
        again = await stage.client.get("/", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"] == found.policy
        assert len(first.headers.get_list("content-security-policy")) == 1


@pytest.mark.parametrize(
    "path",
    [
        "nothing.js",
        "index.html",
        "../dashboard_files.py",
        "%2e%2e/app.py",
        "core",
        "core/",
        "",
        "/etc/passwd",
        "app.js/",
    ],
)
async def test_nothing_outside_the_folder_is_served(tmp_path: Path, path: str) -> None:
    async with staged(tmp_path) as (stage, _):
        answer = await stage.client.get(f"{ROOT}{dashboard().digest}/{path}")
        assert answer.status_code in {400, 404}
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_tree_that_is_no_more_is_not_mixed_with_the_one_that_is(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, _):
        answer = await stage.client.get(f"{ROOT}{'0' * 16}/app.js")
        assert (answer.status_code, answer.headers["cache-control"]) == (404, "no-store")


def test_the_digest_is_another_one_when_anything_is(tmp_path: Path) -> None:
    digests = set()
    for number, (name, text) in enumerate([("a.js", "1"), ("a.js", "2"), ("b.js", "2")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "index.html").write_text('<script type="module" src="./a.js"></script>')
        (folder / name).write_text(text)
        digests.add(dashboard(folder).digest)
    assert len(digests) == 3


# ---- the policy ----


def test_the_policy_allows_files_of_this_server_and_the_import_map_only() -> None:
    found = dashboard()
    rules = dict(rule.partition(" ")[::2] for rule in found.policy.split("; "))
    script = re.findall(r'<script type="importmap">(.*?)</script>', found.index.content.decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'self' 'sha256-{digest}'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert "unsafe" not in found.policy


def test_a_page_without_an_import_map_allows_no_inline_script() -> None:
    assert "script-src 'self'; " in policy_of("<script>alert(1)</script>")


def test_the_index_has_no_script_style_or_handler_in_it_but_the_import_map() -> None:
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", HTML, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [' type="importmap"', ' type="module" src="./app.js"']
    assert scripts[1][1] == ""
    assert "<style" not in HTML
    assert re.search(r"\s(?:style|on\w+)=", HTML) is None


# ---- the rules of scripts and styles ----


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_script_is_short_and_narrow(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= LINES_MAX
    assert [number for number, line in enumerate(lines, 1) if len(line) > WIDTH_MAX] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_script_never_makes_markup_of_a_text(path: Path) -> None:
    text = path.read_text()
    assert [word for word in MARKUP if word in text] == []
    assert re.search(r"""<[a-z]+[^>]*\s(?:style|on[a-z]+)=["']""", text) is None  # CSP: styles are set as objects


@pytest.mark.parametrize("path", [*SCRIPTS, *STYLES, FOLDER / "index.html"], ids=name_of)
def test_nothing_is_asked_from_elsewhere(path: Path) -> None:
    text = path.read_text().replace("http://localhost/", "")  # where a test has no page
    assert re.search(r"""https?://|url\(|@import|["'`]//""", text.replace("http://www.w3.org/", "")) is None


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_every_exported_function_says_what_it_is(path: Path) -> None:
    lines = path.read_text().splitlines()
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r"export (?:default )?(?:async )?(?:function|class)\b", line) and not before.rstrip().endswith("*/")
    ]
    assert bare == []


def test_every_import_leads_to_a_file() -> None:
    missing = [
        f"{name_of(path)}: {wanted}"
        for path in FILES
        if path.suffix in {".js", ".mjs"}
        for wanted in IMPORTED.findall(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL))
        if not (FOLDER / IMPORTS[wanted] if wanted in IMPORTS else path.parent / wanted).is_file()
    ]
    assert missing == []
    found = IMPORTED.findall("import{a}from'x';import * as b from \"y\";\nexport { c,\n d } from 'z';await import('w')")
    assert found == ["x", "y", "z", "w"]  # or it would find nothing, and be content


def test_every_view_of_the_navigation_has_a_module() -> None:
    names = re.findall(r'\{ name: "(\w+)", title:', (FOLDER / "routes.js").read_text())
    assert len(names) == 19
    assert [name for name in names if not (FOLDER / "views" / f"{name}.js").is_file()] == []


def test_every_file_that_the_index_names_is_there_and_every_style_is_named() -> None:
    named = re.findall(r'(?:href|src)="\./([^"]+)"', HTML)
    assert [each for each in (*named, *IMPORTS.values()) if not (FOLDER / each).is_file()] == []
    assert {name_of(path) for path in STYLES} <= set(named)
    assert len(named) == len(set(named))


def test_every_file_has_a_kind_that_is_known() -> None:
    unknown = [name_of(path) for path in FILES if path.suffix not in MEDIA_TYPES and path.name != "SOURCES.json"]
    assert unknown == []


# ---- libraries ----


@pytest.mark.parametrize("folder", SOURCES)
def test_a_library_is_what_its_package_shipped_with_its_licence(folder: str) -> None:
    told = SOURCES[folder]
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (VENDOR / folder).iterdir()}
    assert found == {name: file["sha256"] for name, file in told["files"].items()}
    assert "LICENSE" in found
    assert told["license"] in {"MIT", "Apache-2.0"}


def test_what_looks_for_barriers_is_what_its_package_shipped_and_is_in_no_wheel() -> None:
    folder = Path(__file__).parents[2] / "browser" / "vendor"
    told = json.loads((folder / "SOURCES.json").read_text())["axe-core"]
    found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in told["files"]}
    assert found == {name: file["sha256"] for name, file in told["files"].items()}
    assert not list(FOLDER.rglob("axe*"))


def test_every_library_is_listed() -> None:
    assert {path.name for path in VENDOR.iterdir() if path.is_dir()} == set(SOURCES)


# ---- what it has to know ----


async def test_about_says_which_models_only_play_a_script(tmp_path: Path) -> None:
    specs = [spec_of(tmp_path), spec_of(tmp_path, name="real", text="default_model: openai/gpt-5\n")]
    async with staged(tmp_path, specs=specs) as (stage, _):
        about = (await stage.client.get("/v1/about")).json()
        assert about["workspaces"] == [
            {"name": "default", "model": "scripted", "scripted": True},
            {"name": "real", "model": "openai/gpt-5", "scripted": False},
        ]
        assert (about["tenant"], about["scopes"]) == ("default", ["chat"])
        assert (about["shared"], about["all_tenants"]) == (True, False)  # whoever is on the machine may look


async def test_about_needs_a_token_when_there_are_tokens(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, _):
        headers = await stage.token("operate", tenant="acme")
        assert (await stage.client.get("/v1/about")).status_code == 401
        about = (await stage.client.get("/v1/about", headers=headers)).json()
        assert (about["tenant"], about["scopes"]) == ("acme", ["operate"])
        assert (about["shared"], about["all_tenants"], about["page"]) == (False, False, dashboard().digest)
        everything = await stage.token("operate", tenant="*")
        about = (await stage.client.get("/v1/about", headers={**everything, "Laneway-Tenant": "acme"})).json()
        assert (about["tenant"], about["shared"], about["all_tenants"]) == ("acme", True, True)
