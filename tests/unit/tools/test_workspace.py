"""The tools of a workspace: what they do to files, and that they stay inside."""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from laneway.dialogue import Intent, ToolContext, ToolOutput
from laneway.kernel.permissions import hides
from laneway.options import PermissionPolicy
from laneway.ports import Tool
from laneway.records import Effect
from laneway.tools import paths
from laneway.tools import workspace as tools
from laneway.tools.outputs import ToolRefusedError
from laneway.tools.patches import apply_hunks, parse_diff, reverse
from laneway.tools.paths import locate, open_file, replace_file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    inside = tmp_path / "work"
    inside.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "work2").mkdir()
    (tmp_path / "work2" / "near.txt").write_text("secret")
    return inside


@pytest.fixture
def context(place: Path) -> ToolContext:
    return ToolContext(workspace=str(place), artifacts=str(place.parent / "artifacts"), output_max=2000)


async def call(item: Tool, context: ToolContext, **arguments: Any) -> ToolOutput:
    return await item.run(item.check(json.dumps(arguments)), context)


async def refused(item: Tool, context: ToolContext, **arguments: Any) -> str:
    output = await call(item, context, **arguments)
    assert output.is_error, output.text
    return output.text


# ---- staying inside -----------------------------------------------------------------------------------------

OUTSIDE = [
    "../secret.txt",
    "a/../../secret.txt",
    "missing/../../secret.txt",
    "/etc/passwd",
    "../work2/near.txt",
    "link.txt",
    "folder/secret.txt",
    "folder/new/deep.txt",
    "chain",
    "../work/../secret.txt",
]


def with_links(place: Path) -> None:
    (place / "link.txt").symlink_to("../secret.txt")
    (place / "folder").symlink_to("..")
    (place / "chain").symlink_to("link.txt")


@pytest.mark.parametrize("path", OUTSIDE)
async def test_no_tool_reaches_outside_of_the_workspace(path: str, place: Path, context: ToolContext) -> None:
    with_links(place)
    said = [
        await refused(tools.read, context, path=path),
        await refused(tools.write, context, path=path, content="x"),
        await refused(tools.edit, context, path=path, old="secret", new="x"),
        await refused(tools.patch, context, path=path, diff="@@ -1 +1 @@\n-secret\n+x\n"),
        await refused(tools.ls, context, path=path),
        await refused(tools.glob, context, pattern="*", path=path),
        await refused(tools.grep, context, pattern="s", path=path),
    ]
    assert all("outside of the workspace" in text for text in said)
    assert (place.parent / "secret.txt").read_text() == "secret"
    assert sorted(os.listdir(place.parent)) == ["secret.txt", "work", "work2"]


async def test_searches_do_not_follow_links_to_the_outside(place: Path, context: ToolContext) -> None:
    with_links(place)
    assert (await call(tools.glob, context, pattern="**/*")).text.splitlines() == ["chain", "folder", "link.txt"]
    assert (await call(tools.grep, context, pattern="secret")).text == "[no line matches]"
    assert (await call(tools.ls, context)).text.splitlines() == [
        "chain -> link.txt",
        "folder -> ..",
        "link.txt -> ../secret.txt",
    ]


async def test_links_and_detours_that_stay_inside_are_followed(place: Path, context: ToolContext) -> None:
    (place / "sub").mkdir()
    (place / "sub" / "a.txt").write_text("a")
    (place / "link").symlink_to("sub/a.txt")
    assert (await call(tools.read, context, path="sub/../link")).text == "a"
    assert (await call(tools.read, context, path=str(place / "sub" / "a.txt"))).text == "a"
    assert not (await call(tools.write, context, path="link", content="b")).is_error
    assert (place / "sub" / "a.txt").read_text() == "b"
    assert (place / "link").is_symlink()


def test_a_link_that_is_swapped_in_after_the_check_is_not_followed(place: Path) -> None:
    (place / "sub").mkdir()
    (place / "sub" / "secret.txt").write_text("mine")
    found = locate(str(place), "sub/secret.txt")
    (place / "sub" / "secret.txt").unlink()
    (place / "sub" / "secret.txt").symlink_to("../../secret.txt")
    with pytest.raises(ToolRefusedError, match="symbolic link that was changed meanwhile"):
        open_file(found)
    (place / "sub" / "secret.txt").unlink()
    (place / "sub").rmdir()
    (place / "sub").symlink_to("..")
    for attempt in (lambda: open_file(found), lambda: replace_file(found, b"x", Event())):
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            attempt()
    assert (place.parent / "secret.txt").read_text() == "secret"


def test_a_change_that_nobody_waits_for_any_more_is_not_made(place: Path) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(ToolRefusedError, match=r"a\.txt was not changed"):
        replace_file(locate(str(place), "a.txt"), b"x", stop)
    assert os.listdir(place) == []


def test_what_a_process_with_our_number_left_behind_is_in_nobodys_way(place: Path) -> None:
    first = next(paths._numbers)  # noqa: SLF001 - the numbers that come next
    for number in range(first + 1, first + 4):
        (place / f".laneway-{os.getpid()}-{number}.part").write_text("left")
    name = "\u20ac" * 85  # as long as a name may be
    assert replace_file(locate(str(place), name), b"x", Event())
    assert (place / name).read_text() == "x"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a\x00b", "NUL"),
        ("x" * 5000, "5000 characters long"),
        ("x" * 300, "name too long"),
        ("missing.txt", "does not exist"),
        ("file/inner", "not a folder"),
        ("loop/x", "not a folder"),
        ("loop", "symbolic link"),
        ("", "is a folder"),
        (".", "is a folder"),
    ],
)
async def test_a_path_that_leads_nowhere_is_an_answer(path: str, says: str, place: Path, context: ToolContext) -> None:
    (place / "file").write_text("")
    (place / "loop").symlink_to("loop")
    assert says.casefold() in (await refused(tools.read, context, path=path)).casefold()


async def test_a_workspace_that_is_not_there_is_an_answer(place: Path) -> None:
    context = ToolContext(workspace=str(place / "none"))
    assert "is not there" in await refused(tools.read, context, path="a")
    assert "is not there" in await refused(tools.write, context, path="a", content="")


async def test_what_is_no_file_is_never_opened(place: Path, context: ToolContext) -> None:
    os.mkfifo(place / "pipe")
    (place / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(place)  # the path of a socket has a short limit
        try:
            listener.bind("sock")
        finally:
            os.chdir(here)
        for name, says in (("pipe", "a named pipe"), ("dir", "a folder"), ("sock", "a socket")):
            assert says in await refused(tools.read, context, path=name)
            assert says in await refused(tools.write, context, path=name, content="x")
            assert says in await refused(tools.edit, context, path=name, old="a", new="b")
    assert (await call(tools.grep, context, pattern="x")).text == "[no line matches]"


async def test_names_with_newlines_and_bytes_that_are_no_text_are_shown_on_one_line(
    place: Path, context: ToolContext
) -> None:
    (place / "two\nlines").write_text("x")
    (place / os.fsdecode(b"byte\xff")).write_text("x")
    assert (await call(tools.ls, context)).text == "byte\\udcff  1\ntwo\\nlines  1"
    assert (await call(tools.glob, context, pattern="*")).text == "byte\\udcff\ntwo\\nlines"
    assert (await call(tools.read, context, path="two\nlines")).text == "x"


# ---- reading ------------------------------------------------------------------------------------------------


async def test_a_file_is_read_as_it_is(place: Path, context: ToolContext) -> None:
    (place / "a.txt").write_bytes("ü\r\nb\n\x0cc".encode())
    assert await call(tools.read, context, path="a.txt") == ToolOutput(text="ü\r\nb\n\x0cc")
    (place / "empty").write_text("")
    assert (await call(tools.read, context, path="empty")).text == ""


async def test_lines_are_read_from_an_offset_and_the_rest_is_named(place: Path, context: ToolContext) -> None:
    (place / "a.txt").write_text("".join(f"{n}\n" for n in range(1, 8)))
    assert (await call(tools.read, context, path="a.txt", offset=6)).text == "6\n7\n"
    shown = (await call(tools.read, context, path="a.txt", offset=2, limit=2)).text
    assert shown == "2\n3\n[lines 2 to 3; more follow: read on with offset=4]"
    assert "has only 7 lines" in await refused(tools.read, context, path="a.txt", offset=9)
    assert "counted from 1" in await refused(tools.read, context, path="a.txt", offset=0)
    assert "at least 1" in await refused(tools.read, context, path="a.txt", limit=0)


@pytest.mark.parametrize("most", [500, 9000])
@pytest.mark.parametrize("line", ["short ü line\n" * 2000, "ü" * 30_000, "a" + "€" * 30_000 + "\nend", "\n" * 10_000])
async def test_a_long_file_can_be_read_to_its_end_piece_by_piece(line: str, most: int, place: Path) -> None:
    (place / "a.txt").write_text(line)
    context = ToolContext(workspace=str(place), output_max=most)
    text, offset = "", 1
    while True:
        piece = await call(tools.read, context, path="a.txt", offset=offset)
        assert not piece.is_error
        assert piece.artifact is None
        assert len(piece.text) <= most
        before, note, after = piece.text.rpartition("[lines ")
        if not note:
            text += piece.text
            break
        offset = int(after.partition("offset=")[2].rstrip("]"))
        text += before if line.startswith(("short", "\n")) else before.rstrip("\n")
    assert text == line


async def test_binary_files_and_wrong_bytes_are_recognised(place: Path, context: ToolContext) -> None:
    (place / "bin").write_bytes(b"\x7fELF\x00\x01")
    (place / "latin").write_bytes(b"caf\xe9\n")
    assert "is binary (6 bytes)" in await refused(tools.read, context, path="bin")
    assert "is binary" in await refused(tools.edit, context, path="bin", old="E", new="x")
    assert "is binary" in await refused(tools.grep, context, pattern="E", path="bin")
    assert (await call(tools.read, context, path="latin")).text == "caf\ufffd\n"
    assert "not UTF-8 text: byte 3" in await refused(tools.edit, context, path="latin", old="c", new="x")
    assert (place / "latin").read_bytes() == b"caf\xe9\n"


async def test_an_artifact_is_read_and_searched_by_its_name(place: Path, context: ToolContext) -> None:
    folder = place.parent / "artifacts"
    folder.mkdir()
    (folder / ("a" * 64)).write_text("one\ntwo\n")
    (folder / "notes").write_text("secret")
    name = "artifact:" + "a" * 64
    assert (await call(tools.read, context, path=name, offset=2)).text == "two\n"
    assert (await call(tools.grep, context, pattern="^t", path=name)).text == f"{'a' * 64}:2: two"
    assert "not the name of an artifact" in await refused(tools.read, context, path="artifact:notes")
    assert "not the name of an artifact" in await refused(tools.read, context, path="artifact:../secret.txt")
    assert "does not exist" in await refused(tools.read, context, path="artifact:" + "b" * 64)
    assert "cannot be changed" in await refused(tools.write, context, path=name, content="x")
    bare = ToolContext(workspace=str(place))
    assert "no folder for artifacts" in await refused(tools.read, bare, path=name)


async def test_a_file_that_may_not_be_read_is_an_answer(place: Path, context: ToolContext) -> None:
    (place / "a").write_text("x")
    (place / "a").chmod(0)
    output = await call(tools.read, context, path="a")
    if os.geteuid():
        assert output == ToolOutput(text="a: permission denied", is_error=True)
    else:
        assert output.text == "x"  # root may read everything


# ---- searching ----------------------------------------------------------------------------------------------


def tree(place: Path, *paths: str) -> None:
    for path in paths:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(f"in {path}\n")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a.py", "b.txt", "src/"]),
        ("**/*.py", ["a.py", "src/c.py", "src/deep/d.py"]),
        ("src/**", ["src/c.py", "src/deep/", "src/deep/d.py"]),
        ("src/**/d.py", ["src/deep/d.py"]),
        ("**/deep/**/*", ["src/deep/d.py"]),
        ("?.{py,txt}", ["a.py", "b.txt"]),
        ("[!a].*", ["b.txt"]),
        ("[a-b].py", ["a.py"]),
        (".*", [".git/", ".hidden"]),
        (".git/*", []),
        ("none", []),
        ("[", []),
        ("a+.py", []),
        ("./a.py", ["a.py"]),
    ],
)
async def test_glob_finds_paths(pattern: str, found: list[str], place: Path, context: ToolContext) -> None:
    tree(place, "a.py", "b.txt", ".hidden", "src/c.py", "src/deep/d.py", ".git/config")
    text = (await call(tools.glob, context, pattern=pattern)).text
    assert text == ("\n".join(found) or "[nothing matches]")


async def test_glob_begins_where_it_is_told_to(place: Path, context: ToolContext) -> None:
    tree(place, "a.py", "src/c.py", ".git/config")
    assert (await call(tools.glob, context, pattern="*", path="src")).text == "src/c.py"
    assert (await call(tools.glob, context, pattern="*", path=".git")).text == ".git/config"
    assert "not a folder" in await refused(tools.glob, context, pattern="*", path="a.py")


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../*", "", "/", "x" * 3000, "{a,{b}"])
async def test_a_pattern_of_paths_that_cannot_be_is_refused(pattern: str, context: ToolContext) -> None:
    assert "pattern" in await refused(tools.glob, context, pattern=pattern)


async def test_grep_finds_lines(place: Path, context: ToolContext) -> None:
    tree(place, "a.py", "b.txt", "src/c.py", ".git/config")
    (place / "bin").write_bytes(b"in\x00")
    assert (await call(tools.grep, context, pattern=r"^in \w+\.py$")).text == "a.py:1: in a.py"
    assert (await call(tools.grep, context, pattern="in", glob="*.py")).text.splitlines() == [
        "a.py:1: in a.py",
        "src/c.py:1: in src/c.py",
    ]
    assert (await call(tools.grep, context, pattern="in", glob="src/*")).text == "src/c.py:1: in src/c.py"
    assert (await call(tools.grep, context, pattern="(?i)IN", path="b.txt")).text == "b.txt:1: in b.txt"
    assert "does not exist" in await refused(tools.grep, context, pattern="x", path="none")


async def test_grep_shows_of_a_long_line_what_is_around_the_match(place: Path, context: ToolContext) -> None:
    (place / "a.json").write_text("x" * 100_000 + "needle" + "y" * 100_000)
    text = (await call(tools.grep, context, pattern="needle")).text
    assert "xneedley" in text
    assert len(text) < 450


async def test_grep_stops_after_a_thousand_lines(place: Path, context: ToolContext) -> None:
    (place / "a").write_text("x\n" * 1500)
    wide = ToolContext(workspace=str(place), output_max=100_000)
    lines = (await call(tools.grep, wide, pattern="x")).text.splitlines()
    assert len(lines) == 1001
    assert lines[-1] == "[there are more than 1000; use a narrower pattern]"


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "a{2,1}", "(?P<a>x)(?P=b)", "*", "x" * 3000, "(?<=" * 500])
async def test_a_pattern_that_is_none_is_refused(pattern: str, context: ToolContext) -> None:
    assert "the pattern is" in await refused(tools.grep, context, pattern=pattern)


@pytest.mark.parametrize(
    "pattern", ["((a{1000}){1000}){1000}", "((((a?){50}){50}){50}){50}", "(?:a|b){1000000}", "a{99999999999999999999}"]
)
async def test_a_pattern_that_would_fill_the_memory_is_refused(pattern: str, context: ToolContext) -> None:
    assert "the pattern is too large" in await refused(tools.grep, context, pattern=pattern)


async def test_a_pattern_with_many_counts_is_fine(place: Path, context: ToolContext) -> None:
    (place / "a").write_text("0f8fad5b-d9cb-469f-a165-70867728950e 2024-02-29T10:11:12\n")
    pattern = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} \d{4}(-\d{2}){2}T(\d{2}:){2}\d{2}"
    assert (await call(tools.grep, context, pattern=pattern)).text.startswith("a:1: ")


@pytest.mark.slow
async def test_a_pattern_that_never_ends_is_ended(place: Path, context: ToolContext) -> None:
    (place / "a").write_text("a" * 40 + "!\n")
    assert "write a simpler one" in await refused(tools.grep, context, pattern=r"(a|aa|a?)+$|(a+)+b\1")


# ---- writing ------------------------------------------------------------------------------------------------


async def test_write_makes_folders_and_replaces_whole_files(place: Path, context: ToolContext) -> None:
    assert (await call(tools.write, context, path="a/b/c.txt", content="ü")).text == "made a/b/c.txt (2 bytes)"
    assert (await call(tools.write, context, path="a/b/c.txt", content="")).text == "replaced a/b/c.txt (0 bytes)"
    assert os.listdir(place / "a" / "b") == ["c.txt"]
    assert (place / "a" / "b" / "c.txt").read_bytes() == b""


async def test_the_mode_of_a_file_stays(place: Path, context: ToolContext) -> None:
    (place / "run.sh").write_text("old")
    (place / "run.sh").chmod(0o751)
    await call(tools.write, context, path="run.sh", content="new")
    await call(tools.edit, context, path="run.sh", old="new", new="newer")
    assert stat.S_IMODE((place / "run.sh").stat().st_mode) == 0o751
    await call(tools.write, context, path="fresh", content="")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((place / "fresh").stat().st_mode) == 0o666 & ~mask


async def test_a_file_that_may_not_be_written_is_not_replaced(place: Path, context: ToolContext) -> None:
    (place / "a").write_text("old")
    (place / "a").chmod(0o444)
    output = await call(tools.write, context, path="a", content="new")
    if os.geteuid():
        assert output == ToolOutput(text="a: permission denied", is_error=True)
        assert (place / "a").read_text() == "old"
    else:
        assert (place / "a").read_text() == "new"  # root may write everything


async def test_a_text_that_is_too_large_or_no_text_is_not_written(place: Path, context: ToolContext) -> None:
    assert "at most" in (await tools.write.run({"path": "a", "content": "x" * (tools.FILE_MAX + 1)}, context)).text
    with pytest.raises(ToolRefusedError, match="a surrogate stands alone"):
        await tools.write(context, "a", "\ud800")
    assert os.listdir(place) == []


async def test_edit_replaces_what_is_there_exactly_once(place: Path, context: ToolContext) -> None:
    (place / "a").write_text("one\ntwo\nthree\n")
    assert (await call(tools.edit, context, path="a", old="two\n", new="2\n")).text == "changed a at line 2"
    assert (place / "a").read_text() == "one\n2\nthree\n"


async def test_edit_keeps_the_line_ends_of_the_file(place: Path, context: ToolContext) -> None:
    (place / "a").write_bytes(b"one\r\ntwo\r\n")
    await call(tools.edit, context, path="a", old="one\ntwo", new="1\n2\n3")
    assert (place / "a").read_bytes() == b"1\r\n2\r\n3\r\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("x", "y", "old is in a 3 times (at lines 1, 1, 2 …)"),
        ("none", "y", "old is not in a; read the file again"),
        ("end\nof it", "y", "its first line is at line 3, but what follows or its blanks differ"),
        ("", "y", "old is empty"),
        ("end", "end", "old and new are the same"),
    ],
)
async def test_an_edit_that_does_not_fit_changes_nothing(
    old: str, new: str, says: str, place: Path, context: ToolContext
) -> None:
    (place / "a").write_text("x x\nx\nend\n")
    assert says in await refused(tools.edit, context, path="a", old=old, new=new)
    assert (place / "a").read_text() == "x x\nx\nend\n"


# ---- patching -----------------------------------------------------------------------------------------------

TEXT = "a\nb\nc\nd\ne\nf\n"
DIFF = """\
--- a/file
+++ b/file
@@ -1,3 +1,3 @@
 a
-b
+B
 c
@@ -5,2 +5,3 @@
 e
+e2
 f
"""


async def test_a_diff_is_applied(place: Path, context: ToolContext) -> None:
    (place / "file").write_text(TEXT)
    assert (await call(tools.patch, context, path="file", diff=DIFF)).text == "changed file (2 hunks)"
    assert (place / "file").read_text() == "a\nB\nc\nd\ne\ne2\nf\n"


@pytest.mark.parametrize(
    ("before", "diff", "after"),
    [
        ("a\nb\n", "@@ -2 +2 @@\n-b\n+c\n\\ No newline at end of file\n", "a\nc"),
        ("a\nb", "@@ -2 +2 @@\n-b\n\\ No newline at end of file\n+c\n", "a\nc\n"),
        ("a\nb", "@@ -1,2 +1,2 @@\n-a\n+x\n b\n\\ No newline at end of file", "x\nb"),
        ("", "@@ -0,0 +1,2 @@\n+a\n+b\n", "a\nb\n"),
        ("a\nb\n", "@@ -1,0 +2 @@\n+x\n", "a\nx\nb\n"),
        ("a\nb\n", "@@ -1,2 +0,0 @@\n-a\n-b\n", ""),
        ("a\n\nb\n", "@@ -1,3 +1,3 @@\n-a\n+x\n\n b\n", "x\n\nb\n"),
        ("0\n0\na\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "0\n0\na\nc\n"),
        ("-- x\n", "@@ -1 +1 @@\n--- x\n+++ y\n", "++ y\n"),
        ("a\x0cb\n", "@@ -1 +1 @@\n-a\x0cb\n+c\n", "c\n"),
        ("a\n", "diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@ def f():\n-a\n+b\n", "b\n"),
    ],
)
def test_diffs_of_every_kind_apply_and_can_be_undone(before: str, diff: str, after: str) -> None:
    hunks = parse_diff(diff)
    assert apply_hunks(before, hunks) == after
    assert apply_hunks(after, reverse(hunks)) == before


@pytest.mark.parametrize(
    ("diff", "says"),
    [
        ("", "the diff has no hunk"),
        ("just text", "the diff has no hunk"),
        ("@@ -1 +1 @@\n-x\n+y\n", "hunk 1 does not fit: line 1 is 'a\\n', not 'x\\n'"),
        ("@@ -1,2 +1,2 @@\n a\n-c\n+y\n", "hunk 1 does not fit: line 2 is 'b\\n', not 'c\\n'"),
        ("@@ -9 +9 @@\n-x\n+y\n", "the file has 6 lines"),
        ("@@ -1,3 +1,2 @@\n a\n b\n", "counts 3 old and 2 new lines, but it has"),
        ("@@ -1,1 +1,1 @@\n-a\n+x\n b\n", "belongs to no hunk: the counts of the header before it are too low"),
        ("@@ -1,2 +1,2 @@\n a\nb\n", "begins with none of"),
        ("@@ some @@\n-a\n", "is not the header of a hunk"),
        ("--- a\n+++ b\n@@ -1 +1 @@\n-a\n+x\n--- c\n+++ d\n@@ -1 +1 @@\n-a\n+x\n", "several files"),
        ("--- a\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "deletes the file"),
        ("@@ -3 +3 @@\n-c\n+C\n@@ -1 +1 @@\n-a\n+A\n", "hunk 2 does not fit: its lines come before"),
        ("@@ -9,0 +9 @@\n+x\n", "line 9 is not in the file"),
        ("@@ -99999999999999999999 +1 @@\n-a\n+b\n", "is not the header of a hunk"),
    ],
)
async def test_a_diff_that_does_not_fit_changes_nothing(
    diff: str, says: str, place: Path, context: ToolContext
) -> None:
    (place / "file").write_text(TEXT)
    assert says in await refused(tools.patch, context, path="file", diff=diff)
    assert (place / "file").read_text() == TEXT


def test_a_hunk_that_fits_in_several_other_places_is_refused() -> None:
    with pytest.raises(ToolRefusedError, match="not at line 1, but in 2 other places"):
        apply_hunks("x\na\nb\na\nb\n", parse_diff("@@ -1,2 +1,2 @@\n a\n-b\n+c\n"))


async def test_a_diff_from_nothing_makes_a_file(place: Path, context: ToolContext) -> None:
    await call(tools.patch, context, path="new/file", diff="--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+a\n")
    assert (place / "new" / "file").read_text() == "a\n"
    assert "does not exist" in await refused(tools.patch, context, path="none", diff="@@ -1 +1 @@\n-a\n+b\n")


async def test_a_patch_keeps_the_line_ends_of_the_file(place: Path, context: ToolContext) -> None:
    (place / "file").write_bytes(TEXT.replace("\n", "\r\n").encode())
    await call(tools.patch, context, path="file", diff=DIFF)
    assert (place / "file").read_bytes() == b"a\r\nB\r\nc\r\nd\r\ne\r\ne2\r\nf\r\n"
    (place / "mixed").write_bytes(b"a\r\nb\n")
    assert "mixes line ends" in await refused(tools.patch, context, path="mixed", diff="@@ -2 +2 @@\n-b\n+c\n")


# ---- what became of it --------------------------------------------------------------------------------------

EDIT = {"path": "a", "old": "two", "new": "2!"}
GROW = {"path": "a", "old": "two", "new": "two more"}
CUT = {"path": "a", "old": "two", "new": ""}
PATCH = {"path": "a", "diff": "@@ -1,2 +1,2 @@\n one\n-two\n+2!\n"}
WRITE = {"path": "a", "content": "whole\n"}


@pytest.mark.parametrize(
    ("item", "arguments", "content", "outcome"),
    [
        (tools.write, WRITE, "whole\n", True),
        (tools.write, WRITE, "other\n", None),
        (tools.write, WRITE, None, None),
        (tools.edit, EDIT, "one\n2!\n", True),
        (tools.edit, EDIT, "one\ntwo\n", False),
        (tools.edit, EDIT, "one\ntwo\n2!\n", None),
        (tools.edit, EDIT, "neither\n", None),
        (tools.edit, EDIT, None, None),
        (tools.edit, GROW, "one\ntwo more\n", True),
        (tools.edit, GROW, "one\ntwo\n", False),
        (tools.edit, CUT, "one\n", None),
        (tools.edit, CUT, "one\ntwo\n", None),
        (tools.patch, PATCH, "one\n2!\n", True),
        (tools.patch, PATCH, "one\ntwo\n", False),
        (tools.patch, PATCH, "neither\n", None),
        (tools.patch, {"path": "a", "diff": "@@ -0,0 +1 @@\n+a\n"}, None, False),
        (tools.patch, {"path": "../x", "diff": "@@ -0,0 +1 @@\n+a\n"}, None, None),
    ],
)
async def test_what_became_of_a_change_is_told_by_the_content(
    item: Tool, arguments: dict[str, Any], content: str | None, outcome: bool | None, place: Path, context: ToolContext
) -> None:
    if content is not None:
        (place / "a").write_text(content)
    intent = Intent(run_id="r", call_id="c", tool=item.spec.name, arguments=arguments, key="k")
    found = await item.reconcile(intent, context)
    assert item.can_reconcile
    assert (None if found is None else not found.is_error) is outcome


def test_what_reads_says_so_and_what_writes_too() -> None:
    effects = {item.spec.name: item.spec.effect for item in tools.workspace_tools()}
    reads = dict.fromkeys(("read", "ls", "glob", "grep"), Effect.READ)
    assert effects == {**reads, **dict.fromkeys(("write", "edit", "patch"), Effect.WRITE)}


# ---- what the permissions hide ------------------------------------------------------------------------------


@pytest.fixture
def guarded(place: Path, context: ToolContext) -> ToolContext:
    (place / "secret").mkdir()
    (place / "secret" / "k").write_text("KEY=2\n")
    (place / ".env").write_text("KEY=1\n")
    (place / "open.txt").write_text("KEY=3\n")
    (place / "link").symlink_to(".env")
    (place / "way").symlink_to("secret")
    policy = PermissionPolicy(deny=("*(**/.env*)", "*(secret/**)"), default_decision="allow")
    return replace(context, extra={"hides": hides(policy, str(place))})


async def test_searches_and_lists_leave_out_what_may_not_be_read(guarded: ToolContext) -> None:
    assert (await call(tools.grep, guarded, pattern="KEY")).text == "open.txt:1: KEY=3"
    assert (await call(tools.grep, guarded, pattern="KEY", glob=".env")).text == "[no line matches]"
    assert (await call(tools.grep, guarded, pattern="KEY", glob="secret/*")).text == "[no line matches]"
    assert (await call(tools.glob, guarded, pattern="secret/*")).text == "[nothing matches]"
    assert (await call(tools.glob, guarded, pattern="**/.env*")).text == "[nothing matches]"
    assert (await call(tools.glob, guarded, pattern="*")).text == "link\nopen.txt\nway"
    assert (await call(tools.ls, guarded)).text == "link -> .env\nopen.txt  6\nway -> secret"


async def test_a_link_does_not_lead_to_what_is_forbidden(guarded: ToolContext, place: Path) -> None:
    said = [
        await refused(tools.read, guarded, path="link"),
        await refused(tools.read, guarded, path="way/k"),
        await refused(tools.grep, guarded, pattern="KEY", path="link"),
        await refused(tools.grep, guarded, pattern="KEY", path="way"),
        await refused(tools.glob, guarded, pattern="*", path="way"),
        await refused(tools.ls, guarded, path="way"),
        await refused(tools.write, guarded, path="link", content="x"),
        await refused(tools.edit, guarded, path="link", old="1", new="2"),
        await refused(tools.patch, guarded, path="way/k", diff="@@ -1 +1 @@\n-KEY=2\n+x\n"),
    ]
    assert all("which the permissions forbid to" in text for text in said)
    assert (place / ".env").read_text() == "KEY=1\n"
    assert (place / "secret" / "k").read_text() == "KEY=2\n"


async def test_a_rule_about_changes_hides_nothing(place: Path, context: ToolContext) -> None:
    (place / ".env").write_text("KEY=1\n")
    policy = PermissionPolicy(deny=("write(**/.env*)",), default_decision="allow")
    guarded = replace(context, extra={"hides": hides(policy, str(place))})
    assert (await call(tools.grep, guarded, pattern="KEY")).text == ".env:1: KEY=1"
    assert (await call(tools.read, guarded, path=".env")).text == "KEY=1\n"
    assert "forbid to write" in await refused(tools.write, guarded, path=".env", content="x")
