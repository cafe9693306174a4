"""Texts become nodes with places: YAML 1.2, JSON5, TOML; what a format does not allow says where and why.

HCL has a module of its own: `test_hcl.py`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.config.files import read_file
from laneway.config.formats.toml import read_toml
from laneway.config.formats.yaml import read_yaml
from laneway.config.nodes import DEPTH_MAX, FILE_BYTES_MAX, NODES_MAX, Items, Node, Scalar, Table
from laneway.config.problems import Problems
from tests.unit.config.desk import lines_of, nodes, values_of

ENDINGS = ".yaml, .yml, .json, .json5, .jsonc, .toml, .hcl, .acl"


def plain(node: Node | None) -> Any:
    """Nodes as plain values; a key that stands twice keeps the first."""
    match node:
        case Table():
            return {entry.key: plain(entry.node) for entry in reversed(node.entries)}
        case Items():
            return [plain(each) for each in node.nodes]
        case Scalar():
            return node.value
        case None:
            return None


def yaml_of(text: str) -> Any:
    node, problems = nodes(text, ".yaml")
    assert problems == []
    return plain(node)


def json_of(text: str) -> Any:
    node, problems = nodes(text, ".json5")
    assert problems == []
    return plain(node)


def places_in(node: Node | None) -> dict[str, tuple[int, int, int, int]]:
    """Each key with the places of itself and of its value."""
    found: dict[str, tuple[int, int, int, int]] = {}
    if isinstance(node, Table):
        for entry in node.entries:
            found[entry.key] = (entry.place.line, entry.place.column, entry.node.place.line, entry.node.place.column)
            found.update({f"{entry.key}.{key}": place for key, place in places_in(entry.node).items()})
    return found


# ---- YAML ----


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ("2026-01-16", "2026-01-16"),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_a_plain_scalar_means_what_yaml_1_2_says(text: str, value: object) -> None:
    assert yaml_of(f"key: {text}") == {"key": value}
    assert type(yaml_of(f"key: {text}")["key"]) is type(value)


def test_keys_are_text_as_it_is_written() -> None:
    assert yaml_of("1: a\ntrue: b\n'x y': c\n0x10: d\n") == {"1": "a", "true": "b", "x y": "c", "0x10": "d"}


def test_aliases_and_merges_are_followed() -> None:
    text = "a: &a {x: 1, y: 2}\nb: *a\nc:\n  <<: *a\n  y: 3\nd:\n  <<: [{z: 5}, *a]\n  x: 9\n"
    assert yaml_of(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1, "y": 3},
        "d": {"x": 9, "y": 2, "z": 5},
    }


def test_a_merged_key_gives_way_in_any_spelling() -> None:
    text = "lanes:\n  main: &a {timeoutMs: 5, concurrency: 2}\n  cron:\n    <<: *a\n    timeout_ms: 7\n"
    assert values_of(text)["lanes.cron.timeout_ms"] == 7
    assert values_of(text)["lanes.cron.concurrency"] == 2


def test_yaml_knows_the_place_of_every_key_and_value() -> None:
    node, _ = nodes("queue:\n  mode:   steer\n  lanes: {main: 2}\n", ".yaml")
    assert places_in(node) == {
        "queue": (1, 1, 2, 3),
        "queue.mode": (2, 3, 2, 11),
        "queue.lanes": (3, 3, 3, 10),
        "queue.lanes.main": (3, 11, 3, 17),
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("queue:\n\tmode: steer\n", "laneway.yaml:2:1: while scanning for the next token, found character '\\t'"),
        ("queue: [1, 2\nmode: x\n", "laneway.yaml:2:5: while parsing a flow sequence"),
        ("a: 1\n b: 2\n", "laneway.yaml:2:3: mapping values are not allowed here"),
        ("a: *nobody\n", "laneway.yaml:1:4: there is no anchor &nobody before this alias"),
        ("a: &a {b: *a}\n", "laneway.yaml:1:11: there is no anchor &a before this alias"),
        ("a: 1\n---\nb: 2\n", "laneway.yaml:2:1: a second document begins (a configuration is one document)"),
        ("%YAML 1.1\n---\na: 1\n", "laneway.yaml:1:1: the file says that it is not YAML 1.2"),
        ("a: !!python/object:os.system {}\n", "laneway.yaml:1:4: the tag tag:yaml.org,2002:python/object:os.system"),
        ("a: !secret x\n", "laneway.yaml:1:4: the tag !secret is not read (write the value without a tag)"),
        ("? [a]\n: 1\n", "laneway.yaml:1:5: a key is text, not a list or a block"),
        ("a:\n  <<: 5\n", "laneway.yaml:2:3: `<<` takes a block or a list of blocks"),
        ('a: "\\UFFFFFFFF"\n', "laneway.yaml:1:1: an escape that names no character"),
        ("a: \x85\ufffe\n", "laneway.yaml:1:5: a character that YAML does not allow"),
    ],
)
def test_broken_yaml_says_where(text: str, line: str) -> None:
    (found,) = lines_of(text)
    assert found.startswith(line)


def test_tabs_in_yaml_are_explained() -> None:
    (found,) = lines_of("queue:\n\tmode: steer\n")
    assert found.endswith("(YAML is indented by spaces, not by tabs)")


def test_a_bomb_of_aliases_is_refused_early() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    (found,) = lines_of("\n".join(rows))
    assert found == f"laneway.yaml:5:10: there are more than {NODES_MAX:,} values (aliases count each time)"


def test_a_bomb_of_merges_is_refused_early() -> None:
    rows = ["a0: &a0 {b: 1}"]
    rows += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 30)]
    (found,) = lines_of("\n".join(rows))
    assert "there are more than" in found


@pytest.mark.parametrize(("text", "ending"), [("[" * 500, ".yaml"), ("[" * 5000, ".json5"), ("- " * 500, ".yaml")])
def test_depth_is_bounded(text: str, ending: str) -> None:
    (found,) = lines_of(text, ending)
    assert f"nested more than {DEPTH_MAX} deep" in found


def test_depth_is_bounded_in_toml() -> None:
    assert "nested" in lines_of("a = " + "[" * 5000 + "]" * 5000, ".toml")[0]
    assert "nested" in lines_of("a." * 100_000 + "b = 1", ".toml")[0]
    assert "nested" in lines_of("[" + "a." * 100_000 + "b]", ".toml")[0]
    assert "nested" in lines_of("a = " + "{b = " * 40 + "1" + "}" * 40, ".toml")[0]


@pytest.mark.slow
def test_without_its_library_yaml_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from laneway.config.files import parse_text\n"
        "from laneway.config.problems import Problems\n"
        "p = Problems('a.yaml'); parse_text('a: 1', '.yaml', p); print(p.found[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a.yaml: reading YAML needs PyYAML (install laneway with the extra `config`")


# ---- JSON5 ----


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ("{a: 1,}", {"a": 1}),
        ("[1, 2,]", [1, 2]),
        ("{'a b': \"c\", $d_1: null}", {"a b": "c", "$d_1": None}),
        ("/* x */ {a: 1 // y\n}", {"a": 1}),
        ("[+1, -2, .5, 5., 1e3, 0xFF, -0x10]", [1, -2, 0.5, 5.0, 1000.0, 255, -16]),
        ("[Infinity, -Infinity]", [math.inf, -math.inf]),
        (r"'a\'b\"\n\x41\u00e9\q'", "a'b\"\nA\u00e9q"),
        (r'"\ud83d\ude00"', "\N{GRINNING FACE}"),
        ("'one \\\ntwo \\\r\nthree'", "one two three"),
        ("{é: true, a\u200cb: false}", {"é": True, "a\u200cb": False}),
        ("\ufeff [1]", [1]),
    ],
)
def test_json5_reads(text: str, value: object) -> None:
    assert json_of(text) == value


json_values = st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.floats(allow_nan=False)


@pytest.mark.slow
@given(st.recursive(json_values, lambda inner: st.lists(inner, max_size=3), max_leaves=6))
def test_everything_that_json_writes_is_read(value: object) -> None:
    assert json_of(json.dumps({"v": value})) == {"v": value}
    assert json_of(json.dumps({"v": value}, indent=1, ensure_ascii=False).replace("\x7f", "")) is not None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{a: 1", "1:6: } is missing at the end of the file (opened at line 1)"),
        ("{\n a 1}", "2:4: after the key 'a' comes a colon (found '1')"),
        ("{a: collect}", "1:5: a value is expected (found a word; text needs quotes)"),
        ("{a: 1 b: 2}", "1:7: a comma or } is missing (found a word; opened at line 1)"),
        ("{a: 1}}", "1:7: the file goes on behind its end (found '}')"),
        ("{,}", "1:2: a key is a name or text in quotes (found ',')"),
        ("{a: }", "1:5: a value is expected (found '}')"),
        ("{a: 'x\n'}", "1:5: text that does not end on its line"),
        ("{a: 'x", "1:5: text that does not end on its line"),
        ("{a: 'x\\", "1:8: text that does not end"),
        (r"{a: '\u12'}", "1:6: an escape that names no character"),
        (r"{a: '\7'}", "1:6: an escape that names no character"),
        (r"{a: '\ud800'}", "1:6: half of a surrogate pair"),
        (r"{a: '\ud800\u0041'}", "1:6: half of a surrogate pair"),
        ("/* no end", "1:1: a comment that does not end"),
        ("[1, 2", "1:6: ] is missing at the end of the file (opened at line 1)"),
        ("{a: 012}", "1:6: a comma or } is missing (found '1'; opened at line 1)"),
        ("{a: 5px}", "1:5: a value is expected (found '5'; text needs quotes)"),
        ("{a: -}", "1:5: a value is expected (found '-')"),
    ],
)
def test_broken_json5_says_where(text: str, line: str) -> None:
    assert lines_of(text, ".json5") == [f"laneway.json5:{line}"]


def test_json5_counts_every_kind_of_line() -> None:
    node, _ = nodes("{\r\n a: 1,\r b: 2,\n c: 3}", ".json5")
    assert {key: place[0] for key, place in places_in(node).items()} == {"a": 2, "b": 3, "c": 4}


@pytest.mark.slow
def test_json_is_bounded() -> None:
    assert f"more than {NODES_MAX:,} values" in lines_of("[" + "1," * 30_000 + "]", ".json")[0]
    assert values_of("{}", ".json") == {}


# ---- TOML ----

TOML = """\
max_concurrent = 3  # text
[queue]
"mode" = "steer"
lanes.main.concurrency = 2
by-channel = { discord = "collect", 'a.b' = { cap = 4 } }

[ queue . lanes . cron ]
  concurrency = 1
"""


def test_toml_knows_the_place_of_every_key_and_value() -> None:
    node, problems = nodes(TOML, ".toml")
    assert problems == []
    assert places_in(node) == {
        "max_concurrent": (1, 1, 1, 18),
        "queue": (2, 2, 2, 1),
        "queue.mode": (3, 1, 3, 10),
        "queue.lanes": (4, 1, 4, 1),
        "queue.lanes.main": (4, 7, 4, 1),
        "queue.lanes.main.concurrency": (4, 12, 4, 26),
        "queue.by-channel": (5, 1, 5, 14),
        "queue.by-channel.discord": (5, 16, 5, 26),
        "queue.by-channel.a.b": (5, 37, 5, 45),
        "queue.by-channel.a.b.cap": (5, 47, 5, 53),
        "queue.lanes.cron": (7, 19, 7, 1),
        "queue.lanes.cron.concurrency": (8, 3, 8, 17),
    }


def test_toml_is_read() -> None:
    assert values_of(TOML, ".toml") == {
        "max_concurrent": 3,
        "queue.mode": "steer",
        "lanes.main.concurrency": 2,
        "lanes.cron.concurrency": 1,
        "queue.by_channel.discord.mode": "collect",
        "queue.by_channel.a.b.cap": 4,
    }


TRICKY = '''\
a = """x = 1
[no] \\""" ""y"""" # z
b = \'\'\'it's
[[no]]\'\'\'
c = [ "]", # ]
  { d = '}' }, [1, 2], 1979-05-27 07:32:00 ]
"d \\u00e9" = 1979-05-27T07:32:00Z
'e"' = 0x1F
[[f]]
g = 1
[[f]]
g.h = { }
i = "\\""
'''


def test_the_scan_for_places_passes_over_anything_that_toml_allows() -> None:
    node, problems = nodes(TRICKY, ".toml")
    assert problems == []
    assert {key: place[:2] for key, place in places_in(node).items()} == {
        "a": (1, 1),
        "b": (3, 1),
        "c": (5, 1),
        "d é": (7, 1),
        'e"': (8, 1),
        "f": (9, 3),
    }
    assert plain(node) == tomllib.loads(TRICKY)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a 1", "1:3: Expected '=' after a key in a key/value pair"),
        ("a = 1\na = 2", "2:6: Cannot overwrite a value"),
        ("[a]\nb = 1\n[a]\n", "3:3: Cannot declare ('a',) twice"),
        ("a = ", "1:5: Invalid value"),
        ('a = "x\n', "1:7: Illegal character '\\n'"),
    ],
)
def test_broken_toml_says_where(text: str, line: str) -> None:
    (found,) = lines_of(text, ".toml")
    assert found.startswith(f"laneway.toml:{line}")


def test_numbers_without_end_are_no_problem_of_python() -> None:
    digits = "9" * 5000
    assert "digits" in lines_of(f"max_concurrent = {digits}", ".toml")[0]
    assert "not inf" in lines_of(f"max_concurrent: {digits}", ".yaml")[0]
    assert "not inf" in lines_of(f"{{max_concurrent: {digits}}}", ".json")[0]
    assert "60 digits" in lines_of(f"{{max_concurrent: 0x{digits}}}", ".json")[0]
    assert "60 digits" in lines_of(f"max_concurrent: {digits[:200]}", ".yaml")[0]


@pytest.mark.slow
def test_toml_is_bounded() -> None:
    tables = "".join(f"[a{number}.b.c]\n" for number in range(NODES_MAX // 3 + 1))
    assert "more than" in lines_of(tables, ".toml")[0]
    assert "more than" in lines_of("a = [" + "1," * 30_000 + "]", ".toml")[0]


def test_dates_of_toml_are_no_settings() -> None:
    (found,) = lines_of("name = 1979-05-27", ".toml")
    assert found.startswith("laneway.toml:1:8: name must be text of at most 200 characters, not datetime.date(")


# ---- files ----


def problems_in(path: Path) -> list[str]:
    problems = Problems(path.name)
    assert read_file(path, problems) is None
    return [str(problem) for problem in problems.found]


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert problems_in(tmp_path / "no.yaml") == ["no.yaml: there is no such file"]
    assert problems_in(tmp_path) == [f"{tmp_path.name}: this is a folder, not a file"]
    assert problems_in(Path("a\0b.yaml"))[0].startswith("a\0b.yaml: the file cannot be read: embedded null byte")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.ini", b"", f"a.ini: there is no format for .ini ({ENDINGS})"),
        (
            "a",
            b"",
            f"a: there is no format for a file without an ending ({ENDINGS})",
        ),
        ("a.yaml", b"a: 1\nb: \x00\n", "a.yaml:2:4: a control character (is this a text file?)"),
        ("a.yaml", b"\x89PNG\r\n", "a.yaml:1:1: the file is not UTF-8 text (save it as UTF-8)"),
        ("a.yaml", "é: 1\nä: ".encode() + b"\xff", "a.yaml:2:4: the file is not UTF-8 text (save it as UTF-8)"),
        ("a.yaml", "a: 1".encode("utf-16"), "a.yaml:1:1: the file is UTF-16 (save it as UTF-8)"),
        ("a.yaml", b"#" * (FILE_BYTES_MAX + 1), "a.yaml: the file is larger than 1,024 KiB"),
        ("a.toml", b"a = \x1b", "a.toml:1:5: a control character (is this a text file?)"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert problems_in(tmp_path / name) == [line]


@pytest.mark.parametrize("name", ["a.yaml", "a.json5", "a.toml", "a.YML"])
def test_an_empty_file_is_an_empty_configuration(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf \r\n")
    assert problems_in(tmp_path / name) == []


def test_a_mark_of_the_encoding_does_not_shift_places(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfqueue: 1")
    problems = Problems("a.yaml")
    assert places_in(read_file(tmp_path / "a.yaml", problems)) == {"queue": (1, 1, 1, 8)}


@given(st.text(st.sampled_from("ab:{}[],-?!&*|>'\"%@`#\n \t<~=.019\\xuU\u2028\x85é"), max_size=40))
def test_no_text_breaks_the_reader_of_yaml(text: str) -> None:
    node, problems = nodes(text, ".yaml")
    assert node is None or problems == []


@given(st.text(st.sampled_from("ab:{}[],'\"/*#\n \t$.019\\xuUeE+-N\u2028é"), max_size=40))
def test_no_text_breaks_the_reader_of_json5(text: str) -> None:
    node, problems = nodes(text, ".json5")
    assert node is None or problems == []


@given(st.text(st.sampled_from("ab={}[],'\"#\n \t.019\\xuUeE+-é"), max_size=40))
def test_no_text_breaks_the_reader_of_toml(text: str) -> None:
    node, problems = nodes(text, ".toml")
    assert node is None or problems == []


toml_values = st.recursive(
    st.sampled_from(["1", "'a'", '"b]"', '"""c\n"""', "true", "1.5", "[]", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[ {', '.join(each)} ]")
        | st.lists(inner, max_size=3).map(
            lambda each: "{" + ", ".join(f"k{n} = {value}" for n, value in enumerate(each)) + "}"
        )
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.lists(toml_values, min_size=1, max_size=6))
def test_every_key_of_toml_is_found_at_its_place(values: list[str]) -> None:
    text = "".join(f"key{number} = {value}\n" for number, value in enumerate(values))
    lines = text.split("\n")
    for key, (line, column, *_) in places_in(read_toml(text)).items():
        assert lines[line - 1][column - 1 :].startswith(key.rpartition(".")[2])


def test_yaml_reads_an_empty_stream() -> None:
    assert read_yaml("# nothing\n") is None
