"""HCL becomes the same nodes as the other formats, with places; what is dynamic or broken is refused at its place."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.config.formats.hcl import read_hcl
from laneway.config.nodes import DEPTH_MAX, NODES_MAX, Place, UnreadableError
from laneway.config.references import Template, Variable
from tests.unit.config.desk import lines_of, nodes, values_of
from tests.unit.config.test_formats import places_in, plain

INSTEAD = '(write the value itself, or env("NAME"))'


def hcl_of(text: str) -> Any:
    node, problems = nodes(text, ".hcl")
    assert problems == []
    return plain(node)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-5", -5),
        ("- 15", -15),
        ("-15", -15),
        ("007", 7),
        ("1.5", 1.5),
        ("-2.5e-3", -0.0025),
        ("1e3", 1000.0),
        ("1e999", math.inf),
        ("9" * 400, math.inf),
        ("true", True),
        ("false", False),
        ("null", None),
        ("(5)", 5),
        ('""', ""),
        ('"a b"', "a b"),
        (r'"\n\r\t\"\\"', '\n\r\t"\\'),
        (r'"\u00e9\U0001F600"', "é\N{GRINNING FACE}"),
        ('"5$ and 10%"', "5$ and 10%"),
        ("[]", []),
        ('[1, "x", [true],]', [1, "x", [True]]),
        ("[\n  # why\n  1, // this\n  2 /* and that */\n]", [1, 2]),
        ("{}", {}),
        ('{a = 1, "b c": 2\n in = 3\n}', {"a": 1, "b c": 2, "in": 3}),
        ("<<EOT\none\n  two\nEOT\n", "one\n  two\n"),
        ("<<-EOT\n    one\n\n      two\n    EOT\n", "one\n\n  two\n"),
        ("<<E\nE\n", ""),
    ],
)
def test_a_value_means_what_hcl_says(text: str, value: object) -> None:
    found = hcl_of(f"key = {text}")
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing", {}),
        ("a {}\n", {"a": {}}),
        ("a {\n  b {\n    c = 1\n  }\n}\n", {"a": {"b": {"c": 1}}}),
        ("a { b = 1 }", {"a": {"b": 1}}),
        ("a\n{\n}\n", {"a": {}}),
        ('a "x" { b = 1 }\na "y" { b = 2 }\n', {"a": {"x": {"b": 1}, "y": {"b": 2}}}),
        ('a "x" "y" { b = 1 }\na "x" "z" {}\n', {"a": {"x": {"y": {"b": 1}, "z": {}}}}),
        ("a x { b = 1 }", {"a": {"x": {"b": 1}}}),
        ('a "x" {}\nb = 1\na "y" {}\n', {"a": {"x": {}, "y": {}}, "b": 1}),
        ("a = 1 b = 2", {"a": 1, "b": 2}),
        ("a=1\r\nb {\r\n}\r\n", {"a": 1, "b": {}}),
        ("in = 1\nfor {}\n", {"in": 1, "for": {}}),
        ("max-wait = 1", {"max-wait": 1}),
    ],
)
def test_blocks_and_their_labels_are_tables(text: str, value: object) -> None:
    assert hcl_of(text) == value


def test_hcl_knows_the_place_of_every_key_and_value() -> None:
    node, _ = nodes('queue {\n  mode   = "steer"\n}\nproviders "x" {\n  limit = {a = 1,\n b: [2]}\n}\n', ".hcl")
    assert places_in(node) == {
        "queue": (1, 1, 1, 7),
        "queue.mode": (2, 3, 2, 12),
        "providers": (4, 1, 4, 1),
        "providers.x": (4, 11, 4, 15),
        "providers.x.limit": (5, 3, 5, 11),
        "providers.x.limit.a": (5, 12, 5, 16),
        "providers.x.limit.b": (6, 2, 6, 5),
    }


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('env("A")', (Variable("A"),)),
        ('env("A", "b}c")', (Variable("A", "b}c"),)),
        ('env(\n  "A",\n  ""\n)', (Variable("A", ""),)),
        ('"${env("A")}"', (Variable("A"),)),
        ('"x ${ env("A", "b") } y"', ("x ", Variable("A", "b"), " y")),
        ('"$${A}"', ("${A}",)),
        ('"env(\\"A\\")"', ('env("A")',)),
        ('<<E\nx ${env("A")}\nE\n', ("x ", Variable("A"), "\n")),
        ("<<E\n$${A} %%{if}\nE\n", ("${A} %{if}\n",)),
    ],
)
def test_env_is_a_reference_and_what_only_looks_like_one_is_none(text: str, parts: tuple[str | Variable, ...]) -> None:
    found = hcl_of(f"a = {text}")["a"]
    assert isinstance(found, Template)
    together = "".join(part if isinstance(part, str) else "\0" for part in found.parts)
    assert together == "".join(part if isinstance(part, str) else "\0" for part in parts)
    assert [part for part in found.parts if isinstance(part, Variable)] == [
        part for part in parts if isinstance(part, Variable)
    ]


def test_references_of_hcl_are_put_in_and_typed() -> None:
    text = 'queue {\n  cap = env("CAP")\n  mode = env("NO", "steer")\n}\nname = "hello ${env("NAME")} $${x}"\n'
    assert values_of(text, ".hcl", {"CAP": "7", "NAME": "ada"}) == {
        "queue.cap": 7,
        "queue.mode": "steer",
        "name": "hello ada ${x}",
    }


def test_a_missing_variable_is_named_with_a_default_as_hcl_writes_it() -> None:
    (found,) = lines_of('name = env("NOBODY")', ".hcl")
    assert found.startswith("laneway.hcl:1:8: name refers to the variable NOBODY, which is not set")
    assert found.endswith('(set it, or give a default: env("NOBODY", "…"))')


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1 + 2", f"1:7: a calculated value is not read {INSTEAD}"),
        ("a = 1 - 2", f"1:7: a calculated value is not read {INSTEAD}"),
        ("a = -1-2.5", f"1:5: a calculated value is not read {INSTEAD}"),
        ("a = -x", f"1:5: a calculated value is not read {INSTEAD}"),
        ("a = !true", f"1:5: a calculated value is not read {INSTEAD}"),
        ("a = x ? 1 : 2", f"1:7: a calculated value is not read {INSTEAD}"),
        ("a = 1 == 1", f"1:7: a comparison is not read {INSTEAD}"),
        ("a = var.x", f"1:8: a reference to another value is not read {INSTEAD}"),
        ("a = x[0]", f"1:6: a reference to another value is not read {INSTEAD}"),
        ('a = env("A")["b"]', f"1:13: a reference to another value is not read {INSTEAD}"),
        ("a = [for x in y : x]", f"1:5: a for-expression is not read {INSTEAD}"),
        ("a = {for k, v in y : k => v}", f"1:24: a for-expression is not read {INSTEAD}"),
        ('a = upper("x")', f"1:5: the function upper() is not read {INSTEAD}"),
        ('a = b::c::d("x")', f"1:6: a function is not read {INSTEAD}"),
        ('a = "${x}"', '1:6: a template is not read (only ${env("NAME")} is; $${ stands for a plain ${)'),
        ('a = "${upper("x")}"', f"1:8: the function upper() is not read {INSTEAD}"),
        ('a = "%{if x}y%{endif}"', f"1:6: a template is not read {INSTEAD}"),
        ("a = <<E\none\n ${x}\nE\n", "3:2: a template is not read (only"),
        ("a = <<-E\n  one\n   ${x}\n  E\n", "3:4: a template is not read (only"),
        ('a = <<E\n${env("1")}\nE\n', "2:1: a template is not read (only"),
        ("a = env(X)", "1:9: env() takes texts in quotes"),
        ('a = env("1x")', '1:5: env("NAME") takes the name of a variable in quotes'),
        ("a = env()", '1:5: env("NAME") takes the name of a variable and perhaps a default'),
        ('a = env("A", "b", "c")', '1:5: env("NAME") takes the name of a variable and perhaps a default'),
        ('a = env("${env("A")}")', "1:9: what env() takes is plain text"),
        ('a "${env("A")}" {}', "1:3: a label is plain text"),
        ("a = {1 = 2}", "1:6: a key is a name or text in quotes"),
        ("a.b = 1", "1:2: a name has no dots (write a block: queue { storage_path = … })"),
    ],
)
def test_what_is_dynamic_is_refused_at_its_place(text: str, line: str) -> None:
    (found,) = lines_of(text, ".hcl")
    assert found.startswith(f"laneway.hcl:{line}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a = "x', "1:5: text that does not end on its line"),
        ('a = "x\ny"', "1:6: text that does not end on its line (a heredoc has many lines: <<EOT)"),
        ('a = "$${x"\nb = {}', "1:5: text that does not end on its line"),
        ('a = "$${x"\nb = "}"', "1:6: text that does not end on its line"),
        (r'a = "12\x"', "1:8: an escape that names no character"),
        (r'a = "\ud800"', "1:6: an escape that names no character"),
        ('a = "x\\', "1:5: text that does not end on its line"),
        ("a = <<E\nx\n", "1:5: a heredoc whose end is missing (its last line is its mark alone)"),
        ("a = 1 /* x", "1:7: a comment that does not end"),
        ("/* x", "1:1: a comment that does not end"),
        ("a = 'x'", "1:5: text is written in double quotes"),
        ('a { "b" = 1 }', '1:5: a name in a block has no quotes (an object takes them: { "a b" = … })'),
        ("a: 1", "1:2: a setting is written with an equals sign (this looks like YAML)"),
        ("a = ", "1:5: the line ends too early (a setting is: name = value)"),
        ("a", "1:2: the file ends in the middle of a setting (a setting is: name = value)"),
        ("a {\n b = 1\n", "3:1: } is missing at the end of the file (opened at line 1)"),
        ("a = [1,", "1:8: ] is missing at the end of the file (opened at line 1)"),
        ('a = env("A"', "1:12: ) is missing at the end of the file (opened at line 1)"),
        ("}", "1:1: this does not belong here (found '}')"),
        ('a = "x" "y"', "1:9: this does not belong here (found '\"')"),
        ("a = 1 2", "1:7: this does not belong here (a setting is: name = value)"),
    ],
)
def test_broken_hcl_says_where(text: str, line: str) -> None:
    (found,) = lines_of(text, ".hcl")
    assert found.startswith(f"laneway.hcl:{line}")


@pytest.mark.parametrize(
    "text", ["a = sk-secret", "a = sk_secret {", "a = 1 sk_secret", "a sk_secret = 1", "a = sk_secret("]
)
def test_a_word_that_lost_its_quotes_is_in_no_error(text: str) -> None:
    (found,) = lines_of(text, ".hcl")
    assert "secret" not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5000, f"1:37: the blocks are nested more than {DEPTH_MAX} deep"),
        ("a = " + "(" * 5000, f"1:37: the blocks are nested more than {DEPTH_MAX} deep"),
        ("a {" * 5000, f"the blocks are nested more than {DEPTH_MAX} deep"),
        ("a " * 5000, f"the blocks are nested more than {DEPTH_MAX} deep"),
        ('a "x"' + ' "x"' * 5000 + " {}", f"the blocks are nested more than {DEPTH_MAX} deep"),
        ('a = "' + '${env("' * 5000, f"the blocks are nested more than {DEPTH_MAX} deep"),
        ('a "b" "c" {' * 12 + "}" * 12, f"the blocks are nested more than {DEPTH_MAX} deep"),
        ("a = " + "-1" * 20_000, "1:5: a chain of 50 numbers and minus signs"),
        ("a = <<E\n" + "\n" * 20_000, "1:8: a file with a heredoc has no 500 blanks in a row"),
        ("a = 1" + " + 1" * 20_000, "1:7: a calculated value is not read"),
        ("a = x" + "[0]" * 20_000, "1:6: a reference to another value is not read"),
    ],
)
def test_depth_and_time_are_bounded(text: str, message: str) -> None:
    (found,) = lines_of(text, ".hcl")
    assert message in found


@pytest.mark.slow
def test_the_number_of_values_is_bounded() -> None:
    (found,) = lines_of("a = [" + "1," * (NODES_MAX + 1) + "]", ".hcl")
    assert f"there are more than {NODES_MAX:,} values" in found


def test_a_line_of_64_kib_is_fine() -> None:
    assert hcl_of(f'a = "{"x" * 65_536}"\n# {"y" * 65_536}\n')["a"] == "x" * 65_536
    assert hcl_of(f"a = [{'1, ' * 2_000}]")["a"] == [1] * 2_000


def test_hcl_without_its_library_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hcl2'] = None; sys.modules['hcl2.parser'] = None\n"
        "from laneway.config.files import parse_text\n"
        "from laneway.config.problems import Problems\n"
        "p = Problems('a.hcl'); parse_text('a = 1', '.hcl', p); print(p.found[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a.hcl: reading HCL needs python-hcl2 (install laneway with the extra `config`")


def test_the_library_is_imported_when_it_is_needed_and_not_before() -> None:
    code = "import sys, laneway.config; print([name for name in ('hcl2', 'lark', 'yaml') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


pieces = st.sampled_from(
    (
        *(
            "a",
            "b-c",
            " = ",
            "=",
            '"',
            '"x"',
            "{",
            "}",
            "[",
            "]",
            "(",
            ")",
            ",",
            ":",
            "\n",
            " ",
            "\t",
            "\r\n",
            "#",
            "//",
        ),
        *(
            "/*",
            "*/",
            "<<E\n",
            "<<-E\n",
            "\nE\n",
            "${",
            "$${",
            "%{",
            "%%{",
            "env(",
            'env("A")',
            "1",
            "-1",
            "-",
            "1.5",
            ".",
        ),
        *(
            "for",
            "in",
            "if",
            "null",
            "true",
            "==",
            "=>",
            "?",
            "!",
            "...",
            "::",
            "~",
            "*",
            "\\",
            "\\u",
            "é",
            "\u2028",
            "'",
        ),
    )
)


@pytest.mark.slow
@given(st.lists(pieces, max_size=25).map("".join) | st.text(max_size=40))
def test_any_text_gives_nodes_or_a_problem_with_its_place(text: str) -> None:
    place = Place(1, 1)
    try:
        outcome: object = plain(read_hcl(text))
    except UnreadableError as error:
        outcome, place = error, error.place
    assert isinstance(outcome, dict | UnreadableError)
    assert 1 <= place.line <= text.count("\n") + 1
    assert place.column >= 1


names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("true", "false", "null", "for", "if", "in", "else", "endif", "endfor", "for_each", "env")
)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
leaves = st.integers(-(10**6), 10**6) | st.booleans() | st.none() | texts
trees = st.dictionaries(
    names, st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=5), max_size=4
)


def written(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            safe = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\u0024").replace("%", "\\u0025")
            return f'"{safe}"'
        case list():
            return "[" + ", ".join(map(written, value)) + "]"
        case _:
            return str(value)


@pytest.mark.slow
@given(trees, names)
def test_what_is_written_as_hcl_is_read_back(tree: dict[str, Any], name: str) -> None:
    body = "\n".join(f"  {key} = {written(value)}" for key, value in tree.items())
    found = hcl_of(f'{name} "label" {{\n{body}\n}}\n')[name]["label"]
    assert {key: _text(value) for key, value in found.items()} == tree


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(each) for each in value]
    return "".join(map(str, value.parts)) if isinstance(value, Template) else value
