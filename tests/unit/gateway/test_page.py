"""The chat page: nothing in it that a strict policy forbids, and what it has to know about the server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from laneway.gateway.routes.page import FILES, FOLDER
from laneway.kernel.directives import parse
from tests.gateway_stage import spec_of
from tests.stream_stage import staged

HTML = (FOLDER / "index.html").read_text()
SCRIPT = (FOLDER / "chat.js").read_text()


@pytest.mark.parametrize("path", FILES)
async def test_the_files_of_the_page_are_served_without_a_token(tmp_path: Path, path: str) -> None:
    async with staged(tmp_path) as (stage, _):
        await stage.token()
        answer = await stage.client.get(path)
        name, media_type = FILES[path]
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        assert answer.content == (FOLDER / name).read_bytes()
        head = await stage.client.head(path)
        assert (head.status_code, head.headers["etag"]) == (200, answer.headers["etag"])


async def test_the_policy_of_the_page_holds_for_one_that_has_not_changed_too(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, _):
        first = await stage.client.get("/")
        again = await stage.client.get("/", headers={"If-None-Match": first.headers["etag"]})
        policies = [answer.headers["content-security-policy"] for answer in (first, again)]
        assert (again.status_code, again.content) == (304, b"")
        assert policies[0] == policies[1]
        assert "script-src 'self'" in policies[0]
        assert "unsafe-inline" not in policies[0]


def test_the_page_has_no_script_style_or_handler_in_it_and_asks_no_other_host() -> None:
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", HTML, re.DOTALL)
    assert scripts == [(' src="/page/chat.js" defer', "")]
    assert "<style" not in HTML
    assert re.search(r"\s(?:style|on\w+)=", HTML) is None
    for text in (HTML, SCRIPT, (FOLDER / "chat.css").read_text()):
        assert re.search(r"https?://|url\(", text) is None


def test_the_script_never_makes_markup_of_what_somebody_said() -> None:
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "srcdoc")
    assert [word for word in forbidden if word in SCRIPT] == []


def test_the_script_keeps_no_token_beyond_the_page() -> None:
    forbidden = ("localStorage", "sessionStorage", "document.cookie", "indexedDB", "console.")
    assert [word for word in forbidden if word in SCRIPT] == []


def test_an_answer_of_an_operator_says_whose_request_it_answers() -> None:
    assert 'extra = state.tenant ? { "Laneway-Tenant": state.tenant } : {}' in SCRIPT
    assert "state.tenant = about.tenant" in SCRIPT


def test_the_commands_that_the_page_lists_are_commands() -> None:
    listed = re.findall(r"/[a-z]+", SCRIPT.partition("const HELP =")[2].partition(";\n\n")[0])
    assert {"/stop", "/queue", "/approve"} <= set(listed)
    assert all(parse(f"{each} x") is not None for each in listed)


def test_every_element_that_the_script_names_is_in_the_page() -> None:
    named = set(re.findall(r'\bel\("([\w-]+)"\)', SCRIPT))
    there = re.findall(r'\bid="([\w-]+)"', HTML)
    assert named - set(there) == set()
    assert len(there) == len(set(there))


def test_every_field_has_a_label() -> None:
    fields = re.findall(r'<(?:input|select|textarea)[^>]*\bid="([\w-]+)"', HTML)
    labels = re.findall(r'<label[^>]*\bfor="([\w-]+)"', HTML)
    assert set(fields) == set(labels)


async def test_about_says_which_models_only_play_a_script(tmp_path: Path) -> None:
    specs = [spec_of(tmp_path), spec_of(tmp_path, name="real", text="default_model: openai/gpt-5\n")]
    async with staged(tmp_path, specs=specs) as (stage, _):
        about = (await stage.client.get("/v1/about")).json()
        assert about["workspaces"] == [
            {"name": "default", "model": "scripted", "scripted": True},
            {"name": "real", "model": "openai/gpt-5", "scripted": False},
        ]
        assert (about["tenant"], about["scopes"]) == ("default", ["chat"])


async def test_about_needs_a_token_when_there_are_tokens(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, _):
        headers = await stage.token("operate", tenant="acme")
        assert (await stage.client.get("/v1/about")).status_code == 401
        about = (await stage.client.get("/v1/about", headers=headers)).json()
        assert (about["tenant"], about["scopes"]) == ("acme", ["operate"])
