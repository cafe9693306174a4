"""Laws of permissions: whatever is written around it, what is forbidden stays so; nothing is allowed by accident."""

from __future__ import annotations

import shlex
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from laneway.dialogue import ToolSpec
from laneway.kernel.permissions import Verdict, decide, matches, normal_path
from laneway.kernel.shell_text import read_shell
from laneway.options import PermissionPolicy

BASH = ToolSpec(name="bash")
WRITE = ToolSpec(name="write")
PIECES = st.one_of(
    st.sampled_from(
        ["git", "rm", "ls", "-rf", "status", "sudo", "bash -c", "then", "X=1", "!", "#", "=", "*", "?", "é"]
    ),
    st.sampled_from(
        [" ", "  ", "\t", "\n", "\r", "\0", ";", "&&", "||", "|", "&", "(", ")", "{", "}", "<", ">", "<<<"]
    ),
    st.sampled_from(["$", "$(", "${", "$'", "`", "'", '"', "\\"]),
)
OPERATORS = st.sampled_from([";", "&&", "||", "|", "&", "\n"])
SCRIPTS = st.lists(PIECES, max_size=14).map("".join)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12)


def verdict(command: str, **policy: Any) -> Verdict:
    return decide(PermissionPolicy(**policy), BASH, {"command": command}).verdict


def naive(pattern: str, text: str) -> bool:
    """Slow and plainly right."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(naive(pattern[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and naive(pattern[1:], text[1:])


@given(st.text("ab*?", max_size=7), st.text("ab", max_size=9))
def test_patterns_match_as_the_slow_way_does(pattern: str, text: str) -> None:
    assert matches(pattern, text) == naive(pattern, text)


@given(SCRIPTS)
def test_any_text_is_decided_and_never_fails(script: str) -> None:
    policy = {"allow": ("bash(git *)",), "deny": ("bash(rm *)",)}
    assert verdict(script, **policy) in set(Verdict)


@given(SCRIPTS)
def test_what_is_allowed_by_a_pattern_consists_of_commands_that_match_it(script: str) -> None:
    """Held against the reading of the standard library, which knows words and operators too."""
    if verdict(script, allow=("bash(git *)",)) is not Verdict.ALLOW:
        return
    for line in script.split("\n"):
        reader = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        reader.whitespace_split = True
        reader.commenters = ""
        first = True
        for token in reader:
            if token and set(token) <= set(";&|()<>"):
                assert set(token) <= set(";&|"), script
                first = True
            elif first:
                assert token == "git", script
                first = False


@given(
    SCRIPTS, st.sampled_from([";", "&&", "||", "|", "&", "\n"]), st.sampled_from(["rm -rf /", "sudo rm x", "r''m x"])
)
def test_a_forbidden_command_after_any_readable_script_is_forbidden(script: str, operator: str, command: str) -> None:
    if "#" in script.rpartition("\n")[2] and operator != "\n":
        operator = "\n"  # a comment goes to the end of its line
    # A script that cannot be read is forbidden as a whole, and so is what follows it.
    assert verdict(f"{script} {operator} {command}", deny=("bash(rm *)",), allow=("*",)) is Verdict.DENY


@given(st.lists(WORDS.filter(bool), min_size=1, max_size=5))
def test_quoted_arguments_are_only_arguments(words: list[str]) -> None:
    command = f"git {shlex.join(words)}"
    text = read_shell(command)
    assert text.is_readable
    assert text.plain is not None
    assert [simple.words for simple in text.plain] == [["git", *words]]
    assert verdict(command, allow=("bash(git *)",), deny=("bash(rm *)",)) is Verdict.ALLOW


@given(st.lists(st.sampled_from(["a", "..", ".", "", "src", "b"]), max_size=8))
def test_a_path_that_leaves_the_folder_is_never_allowed_by_it(parts: list[str]) -> None:
    path = "/".join(["src", *parts, "f"])
    allowed = decide(PermissionPolicy(allow=("write(src/**)",)), WRITE, {"path": path}).verdict is Verdict.ALLOW
    assert allowed == normal_path(path).startswith("src/")


@given(st.lists(st.sampled_from(["a", "..", ".", "", "b"]), max_size=8), st.booleans())
def test_a_forbidden_name_is_forbidden_wherever_it_is(parts: list[str], absolute: bool) -> None:
    path = ("/" if absolute else "") + "/".join([*parts, ".env"])
    policy = PermissionPolicy(deny=("write(**/.env*)",), allow=("*",))
    for workspace in ("", "/w"):
        assert decide(policy, WRITE, {"path": path}, workspace=workspace).verdict is Verdict.DENY
