"""Which calls a policy lets through: rules that forbid are read widely, rules that allow narrowly."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import ConfigError
from laneway.dialogue import ToolSpec
from laneway.kernel.permissions import Decision, Verdict, check_policy, decide, normal_path, parse_rule
from laneway.kernel.shell_text import read_shell
from laneway.options import PermissionPolicy
from laneway.records import Effect

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK


def bash(command: object, **policy: Any) -> Verdict:
    return decide(PermissionPolicy(**policy), ToolSpec(name="bash"), {"command": command}).verdict


def call(tool: str, arguments: dict[str, Any], *, workspace: str = "", **policy: Any) -> Verdict:
    return decide(PermissionPolicy(**policy), ToolSpec(name=tool), arguments, workspace=workspace).verdict


def test_without_a_policy_reads_are_made_and_everything_else_asks() -> None:
    for policy in (None, PermissionPolicy(allow=("*",), deny=("*",), enabled=False)):
        assert decide(policy, ToolSpec(name="read", effect=Effect.READ), {}).verdict is ALLOW
        assert decide(policy, ToolSpec(name="deploy", effect=Effect.IDEMPOTENT), {}).verdict is ASK
        decision = decide(policy, ToolSpec(name="bash"), {"command": "ls"})
        assert decision == Decision(verdict=ASK, reason="no policy says that bash may be called")


def test_deny_beats_ask_and_ask_beats_allow() -> None:
    rules = {"allow": ("*",), "ask": ("bash(git *)",), "deny": ("bash(git push*)",)}
    assert bash("ls", **rules) is ALLOW
    assert bash("git status", **rules) is ASK
    assert bash("git push origin", **rules) is DENY


@pytest.mark.parametrize("default", ["allow", "deny", "ask"])
def test_what_no_rule_is_about_gets_the_default(default: str) -> None:
    decision = decide(PermissionPolicy(allow=("read",), default_decision=default), ToolSpec(name="bash"), {})
    assert (decision.verdict, decision.rule) == (default, "")
    assert "no rule is about this call of bash" in decision.reason


def test_a_decision_names_the_rule_and_says_why() -> None:
    policy = PermissionPolicy(deny=("bash(rm *)",))
    assert decide(policy, ToolSpec(name="bash"), {"command": "rm x"}) == Decision(
        verdict=DENY, rule="bash(rm *)", reason="the rule 'bash(rm *)' forbids this call of bash"
    )


@pytest.mark.parametrize("rule", ["*", "bash", "Bash", "bash*", "b?sh", "bash(*)", "bash( ** )", "*(*)"])
def test_a_rule_about_every_call_of_a_tool_allows_even_what_cannot_be_read(rule: str) -> None:
    assert bash("git status; rm -rf / > /dev/null", allow=(rule,)) is ALLOW
    assert bash("echo 'unclosed", allow=(rule,)) is ALLOW
    assert bash("ls", deny=(rule,), allow=("*",)) is DENY


@pytest.mark.parametrize(
    "command",
    [
        "git status",
        "git   status",
        "  git status  ",
        "git commit -m 'a; rm -rf /'",
        'git commit -m "a && b | c"',
        "git log -- '*.py'",
        "git status; git diff",
        "git status && git diff || git log",
        "git log | git diff",
        "git status &",
        "git status\ngit diff\n",
        "git add *.py ~/x {a,b}",
    ],
)
def test_an_allowed_command_may_be_written_in_any_plain_way(command: str) -> None:
    assert bash(command, allow=("bash(git *)",)) is ALLOW


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf /",
        "git status;rm -rf /",
        "git status && rm -rf /",
        "git status || rm -rf /",
        "git status | sh",
        "git status & rm -rf /",
        "git status\nrm -rf /",
        "git status \\\n; rm -rf /",
        "git $(rm -rf /)",
        'git "$(rm -rf /)"',
        "git `rm -rf /`",
        'git "`rm -rf /`"',
        "git <(rm -rf /)",
        "git status > /etc/passwd",
        "git status < /etc/shadow",
        "git apply <<EOF\nrm\nEOF",
        "git ${IFS}",
        "git $HOME",
        "git $'\\x3b'",
        "GIT_PAGER=evil git log",
        "X=1 Y=2 git log",
        "(git status; rm x)",
        "{ git status; rm x; }",
        "if git status; then rm x; fi",
        "git() { rm -rf /; }; git status",
        "! git status",
        "'git status' && rm",
        "'git /../../tmp/evil' x",
        "git\\ status",
        "gi''t status extra; rm x",
        "sudo git status",
        "git status # then rm",
        "git 'unclosed",
        'git "unclosed',
        "git trailing\\",
        "git \x00status",
        "git\u00a0status",
        "git status\r",
        "git\u200bx status",
        "",
        "   ",
        ";",
        "echo git status",
        "gitk status",
        "/usr/bin/git status",
        "git",
        5,
        None,
        ["git", "status"],
    ],
)
def test_an_allow_rule_lets_nothing_else_through(command: object) -> None:
    assert bash(command, allow=("bash(git *)",)) is ASK


def test_every_command_of_a_script_needs_a_rule_of_its_own() -> None:
    rules = ("bash(git *)", "bash(ls:*)", "bash(echo done)")
    assert bash("git pull && ls -la && echo done", allow=rules) is ALLOW
    assert bash("git pull && ls -la && echo more", allow=rules) is ASK
    decision = decide(PermissionPolicy(allow=rules), ToolSpec(name="bash"), {"command": "ls; git diff; ls x"})
    assert decision.rule == "bash(ls:*), bash(git *)"


def test_a_prefix_rule_is_about_whole_words() -> None:
    allow = ("bash(npm run:*)",)
    assert bash("npm run", allow=allow) is ALLOW
    assert bash("npm run test --fast", allow=allow) is ALLOW
    assert bash("npm runaway", allow=allow) is ASK
    assert bash("npm 'run test'", allow=allow) is ASK


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "rm",
        "RM -rf /",
        "rm\t-rf /",
        "ls; rm -rf /",
        "ls && rm x",
        "ls || rm x",
        "ls | rm x",
        "ls & rm x",
        "ls\nrm x",
        "ls |& rm x",
        "(rm x)",
        "{ rm x; }",
        "if true; then rm x; fi",
        "for f in *; do rm $f; done",
        "while rm x; do :; done",
        "echo $(rm x)",
        'echo "$(rm x)"',
        'echo "a $(echo "$(rm x)") b"',
        "echo `rm x`",
        'echo "`rm x`"',
        "echo ${x:-$(rm x)}",
        "cat <(rm x)",
        "X=$(rm x)",
        "X=1 rm x",
        "! rm x",
        "time rm x",
        "'rm' x",
        '"rm" x',
        "r''m x",
        'r"m" x',
        "r\\m x",
        "\\rm x",
        "$'rm' x",
        "/bin/rm x",
        "../bin/rm x",
        "sudo rm x",
        "sudo -u root rm x",
        "/usr/bin/sudo /bin/rm x",
        "env A=1 rm x",
        "command rm x",
        "exec rm x",
        "nohup nice -n 5 rm x",
        "timeout 5 rm x",
        "xargs rm < files",
        "ls | xargs -n1 rm -f",
        "find . -exec rm {} \\;",
        "find . -exec rm {} +",
        "bash -c 'rm x'",
        'sh -c "ls; rm x"',
        "bash -lc \"bash -c 'rm x'\"",
        "eval 'rm x'",
        "eval rm x",
        "ssh host 'cd /; rm x'",
        "trap 'rm x' EXIT",
        "bash <<EOF\nrm x\nEOF",
        "rm x > /dev/null",
        "> /dev/null rm x",
        "2>/dev/null >&2 rm x",
        "bash <<< 'rm x'",
        "echo >$(rm x)",
        "ls # fine\nrm x",
        "rm\\\n x",
    ],
)
def test_a_deny_rule_finds_the_command_wherever_it_is(command: str) -> None:
    assert bash(command, deny=("bash(rm *)",), allow=("*",)) is DENY
    assert bash(command, deny=("bash(rm:*)",), allow=("*",)) is DENY
    assert bash(command, ask=("bash(rm *)",), allow=("*",)) is ASK


@pytest.mark.parametrize(
    "command",
    [
        "ls 'unclosed",
        'ls "unclosed',
        "ls $(unclosed",
        "ls `unclosed",
        "ls ${unclosed",
        "ls \\",
        "ls \0",
        "<&&rm x",
        "ls >",
        "ls > ; rm x",
        "$X -rf /",
        "${X}m -rf /",
        "/bin/r? x",
        "{rm,-rf,/}",
        "$'\\x72m' x",
        "rm$IFS-rf",
        "x" * 200_000,
        "$(" * 3_000 + ")" * 3_000,
        '"$(' * 3_000 + ')"' * 3_000,
        "sudo " * 3_000,
        5,
        None,
    ],
)
def test_what_cannot_be_read_for_certain_is_forbidden_as_soon_as_a_rule_forbids_anything(command: object) -> None:
    assert bash(command, deny=("bash(harmless)",), allow=("bash(*)",)) is DENY
    assert bash(command, deny=("read(x)",), allow=("bash(*)",)) is ALLOW
    assert bash(command, allow=("bash(ls *)",)) is ASK


@pytest.mark.parametrize(
    "command", ["git commit -m 'rm x'", "echo rm", "ls rm", "echo 'a; rm b'", "rmdir x", "[ -f x ]"]
)
def test_a_deny_rule_leaves_mere_words_alone(command: str) -> None:
    assert bash(command, deny=("bash(rm *)",), allow=("*",)) is ALLOW


def test_a_command_is_taken_apart_once_and_in_order() -> None:
    text = read_shell("a 'b c' && d | e")
    assert text.plain is not None
    assert [simple.words for simple in text.plain] == [["a", "b c"], ["d"], ["e"]]
    assert [simple.canonical for simple in text.plain] == ["a 'b c'", "d", "e"]
    assert [simple.raw for simple in text.plain] == ["a 'b c'", "d", "e"]
    assert read_shell("echo 'it'\"'\"'s'").commands[0].words == ["echo", "it's"]


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "./.env",
        "a/../.env",
        "./a/../.env",
        "a//b/./.env.local",
        "/srv/project/.env",
        "/elsewhere/.env",
        "../.env",
        "../../x/.env",
        ".ENV",
        "a\\.env",
        " .env",
        "x/../../.env",
    ],
)
def test_a_forbidden_file_is_found_however_its_path_is_written(path: str) -> None:
    rules: dict[str, Any] = {"deny": ("write(**/.env*)",), "allow": ("*",)}
    assert call("write", {"path": path, "content": ""}, **rules) is DENY
    assert call("write", {"path": path, "content": ""}, workspace="/srv/project", **rules) is DENY
    assert call("write", {"path": "env", "content": ".env"}, **rules) is ALLOW


def test_a_forbidden_folder_is_found_by_an_absolute_path_too() -> None:
    rules: dict[str, Any] = {"deny": ("edit(secrets/**)",), "allow": ("*",)}
    assert call("edit", {"path": "secrets/a/b"}, **rules) is DENY
    assert call("edit", {"path": "secrets"}, **rules) is DENY
    assert call("edit", {"path": "/srv/project/secrets/a"}, **rules) is DENY
    assert call("edit", {"path": "/srv/project/secrets/a"}, workspace="/srv/project/", **rules) is DENY
    assert call("edit", {"path": "secretsx/a"}, **rules) is ALLOW
    absolute: dict[str, Any] = {"deny": ("read(/etc/**)",), "allow": ("*",)}
    assert call("read", {"path": "../../etc/passwd"}, workspace="/srv/project", **absolute) is DENY
    assert call("read", {"path": "etc/passwd"}, workspace="/srv/project", **absolute) is ALLOW


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("src/a.py", ALLOW),
        ("./src/x/../a.py", ALLOW),
        ("/srv/project/src/a.py", ALLOW),
        ("src/../a.py", ASK),
        ("src/../../src/a.py", ASK),
        ("../src/a.py", ASK),
        ("/src/a.py", ASK),
        ("/srv/projects/src/a.py", ASK),
        ("~/src/a.py", ASK),
        ("srcx/a.py", ASK),
        ("a\0b", ASK),
        (5, ASK),
    ],
)
def test_an_allowed_folder_is_that_folder_of_the_workspace_only(path: object, verdict: Verdict) -> None:
    assert call("write", {"path": path}, workspace="/srv/project", allow=("write(src/**)",)) is verdict


def test_two_stars_take_any_number_of_folders_and_one_star_none() -> None:
    assert call("read", {"path": "a.md"}, allow=("read(**/*.md)",)) is ALLOW
    assert call("read", {"path": "x/y/a.md"}, allow=("read(**/*.md)",)) is ALLOW
    assert call("read", {"path": "x/a.md"}, allow=("read(*.md)",)) is ASK
    assert call("read", {"path": "x/y/z/a.md"}, allow=("read(x/**/z/*.m?)",)) is ALLOW
    assert call("read", {"path": "/etc/a.md"}, allow=("read(**/*.md)",)) is ASK
    assert call("read", {"path": "../a.md"}, allow=("read(**/*.md)",)) is ASK


def test_every_path_of_a_call_counts() -> None:
    arguments = {"source": "src/a", "destination": ".env"}
    assert call("move", arguments, deny=("move(**/.env)",), allow=("*",)) is DENY
    assert call("move", arguments, allow=("move(src/**)",)) is ASK
    assert call("move", {"source": "src/a", "destination": "src/b"}, allow=("move(src/**)",)) is ALLOW


def test_a_tool_that_is_called_without_a_path_means_the_workspace_itself() -> None:
    assert call("ls", {}, deny=("ls(.)",), allow=("*",)) is DENY
    assert call("ls", {}, allow=("ls(src/**)",)) is ASK


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.com/x",
        "HTTPS://EVIL.com/x",
        "https://user@evil.com/x",
        "https://good.com@evil.com/x",
        "https://evil.com:443/x",
        "https://evil.com./x",
        "http://evil.com/x",
        "https://evil%2ecom/x",
        "https:\\\\evil.com\\x",
        "https://evil.com",
        " https://evil.com/ ",
        "ht\ntps://evil.com/",
        None,
    ],
)
def test_a_forbidden_address_is_found_however_it_is_written(url: object) -> None:
    assert call("web_fetch", {"url": url}, deny=("web_fetch(https://evil.com/*)",), allow=("*",)) is DENY


@pytest.mark.parametrize(
    ("url", "verdict"),
    [
        ("https://good.com/a/b?c=d", ALLOW),
        ("https://good.com.evil.com/", ASK),
        ("https://good.com@evil.com/", ASK),
        ("https://good.com/../x", ASK),
        ("https://good.com\\@evil.com/", ASK),
        ("https://good.com/ x", ASK),
        ("http://good.com/", ASK),
    ],
)
def test_an_allowed_address_is_that_address_only(url: str, verdict: Verdict) -> None:
    assert call("web_fetch", {"url": url}, allow=("web_fetch(https://good.com/*)",)) is verdict


def test_any_other_tool_is_held_against_its_arguments_as_json() -> None:
    rule = 'deploy(*"env":"prod"*)'
    assert call("deploy", {"env": "prod", "n": 1}, deny=(rule,), allow=("*",)) is DENY
    assert call("deploy", {"n": 1, "env": "prod"}, deny=(rule,), allow=("*",)) is DENY
    assert call("deploy", {"env": "test"}, deny=(rule,), allow=("*",)) is ALLOW
    assert call("deploy", {"env": object()}, deny=(rule,), allow=("*",)) is DENY
    assert call("deploy", {"env": object()}, allow=('deploy({"env":"t*)',)) is ASK
    assert call("deploy", {"env": "test"}, allow=('deploy({"env":"test"})',)) is ALLOW
    assert call("mcp_github_push", {}, deny=("mcp_*",), allow=("*",)) is DENY


@pytest.mark.parametrize(
    "rule",
    ["", " ", "(x)", "bash(", "bash(git *", "bash()", "bash( )", "ba sh", "bash)", "write(*.[ch])", "read({a,b})"],
)
def test_what_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match="is no rule"):
        parse_rule(rule)
    if rule:
        with pytest.raises(ConfigError, match="is no rule"):
            check_policy(PermissionPolicy(deny=(rule,)))


def test_brackets_inside_a_pattern_belong_to_it() -> None:
    assert parse_rule("bash(echo (a))").pattern == "echo (a)"
    assert parse_rule(" Bash( git * ) ").tool == "bash"


@pytest.mark.parametrize(
    ("path", "normal"),
    [("", "."), (".", "."), ("a/..", "."), ("..", ".."), ("/..", "/"), ("/a/../../b", "/b"), ("../../a", "../../a")],
)
def test_a_path_is_normal_without_looking_at_the_disk(path: str, normal: str) -> None:
    assert normal_path(path) == normal


def test_a_rule_with_many_stars_is_not_slow() -> None:
    rule = "bash(" + "*a" * 30 + "b)"
    assert bash("a" * 2_000, deny=(rule,), allow=("*",)) is ALLOW
