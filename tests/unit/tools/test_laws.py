"""Laws of the tools that no list of cases covers: paths never lead out, diffs apply, pages and pieces never break."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.dialogue import ToolContext
from laneway.errors import ToolArgumentsError
from laneway.tools import tool
from laneway.tools.addresses import is_public, parse_url
from laneway.tools.outputs import Spool, ToolRefusedError, cap
from laneway.tools.pages import page_text
from laneway.tools.patches import apply_hunks, parse_diff, reverse
from laneway.tools.paths import locate
from laneway.tools.searches import compile_glob

WORDS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "@@\n", "-x\n", "+y\n", "\x0c\n", "\r\n"]), max_size=12)


@given(before=WORDS, after=WORDS, around=st.integers(0, 3), ended=st.booleans())
def test_every_diff_that_python_makes_applies_and_can_be_undone(
    before: list[str], after: list[str], around: int, ended: bool
) -> None:
    if not ended and before and after:
        before, after = [*before, "last"], [*after, "last"]
    made = list(unified_diff(before, after, "a", "b", n=around))
    diff = "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in made)
    if before == after:
        return
    hunks = parse_diff(diff)
    assert apply_hunks("".join(before), hunks) == "".join(after)
    assert apply_hunks("".join(after), reverse(hunks)) == "".join(before)


@given(content=st.text(max_size=40), diff=st.text("@-+ 0123,\n\\ab", max_size=60))
def test_a_diff_of_any_text_applies_or_is_refused(content: str, diff: str) -> None:
    with suppress(ToolRefusedError):
        assert isinstance(apply_hunks(content, parse_diff(diff)), str)


PARTS = st.lists(st.sampled_from(["..", ".", "a", "up", "self", "out", "abs", "", "b\n", "chain", "/"]), max_size=8)


@pytest.mark.slow
@given(parts=PARTS, is_absolute=st.booleans())
@settings(max_examples=300)
def test_no_path_leads_out_of_the_workspace(parts: list[str], is_absolute: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        inside = top / "in"
        (inside / "a").mkdir(parents=True)
        (inside / "a" / "up").symlink_to("..")
        (inside / "self").symlink_to("self")
        (inside / "out").symlink_to("../..")
        (inside / "abs").symlink_to("/")
        (inside / "chain").symlink_to("a/up/out")
        path = "/".join([str(inside)] * is_absolute + parts)
        try:
            place = locate(str(inside), path)
        except ToolRefusedError:
            return
        assert os.path.realpath(place.path) == place.path or "self" in place.parts
        assert Path(place.path).is_relative_to(inside)


@given(text=st.text(max_size=400), most=st.integers(0, 200), size=st.integers(1, 50))
def test_an_output_in_pieces_is_cut_as_the_whole_is(text: str, most: int, size: int) -> None:
    context = ToolContext(workspace=".", output_max=most)
    text = text.replace("\x00", "")
    raw = text.encode()
    spool = Spool(context)
    for at in range(0, len(raw), size):
        spool.add(raw[at : at + size])
    assert spool.finish().text == cap(text, context).text


@given(page=st.text("<>/!-='\" apretitlbohfcd&;#x0\n", max_size=200))
def test_every_page_becomes_text(page: str) -> None:
    assert isinstance(page_text(page, "http://e.example/"), str)


@given(url=st.text("htps:/@[]%.0127axl\\ \n#?", max_size=30).map(lambda text: "http://" + text))
def test_a_url_is_refused_or_in_a_form_that_stays_the_same(url: str) -> None:
    try:
        target = parse_url(url)
    except ToolRefusedError:
        return
    assert str(parse_url(str(target))) == str(target)
    assert "@" not in target.authority


@given(address=st.ip_addresses())
def test_an_address_that_python_calls_private_is_never_public(address: object) -> None:
    if getattr(address, "is_private", False) or getattr(address, "is_multicast", False):
        assert not is_public(str(address))
    assert not is_public(f"::ffff:{address}")


@given(pattern=st.text("ab*?[]{},!/.^-\\", max_size=12))
def test_every_pattern_of_paths_compiles_or_is_refused(pattern: str) -> None:
    with suppress(ToolRefusedError):
        found = compile_glob(pattern).match("a/b/ab", timeout=60)
        assert found is None or found.end() == len("a/b/ab")


@tool
def several(name: str, count: int = 1, tags: list[str] | None = None, **rest: object) -> None: ...


@given(arguments=st.text('{}[]":,abcnametgsou0123.eE-+\\ud8null', max_size=60))
def test_whatever_a_model_writes_is_arguments_or_refused(arguments: str) -> None:
    with suppress(ToolArgumentsError):
        checked = several.check(arguments)
        assert several.check(json.dumps(checked)) == checked
