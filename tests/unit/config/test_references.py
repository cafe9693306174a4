"""References to the environment in the texts of a file: put in, required, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.config import InvalidConfigError
from laneway.config.references import expand
from tests.unit.config.desk import lines_of, load_text, values_of

ENVIRON = {"NAME": "ada", "EMPTY": "", "CAP": "7", "MODE": "steer"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${NAME}", "ada"),
        ("a ${NAME} b ${CAP}", "a ada b 7"),
        ("${NOBODY:-someone}", "someone"),
        ("${EMPTY:-someone}", "someone"),
        ("${EMPTY}", ""),
        ("${NAME:-x}", "ada"),
        ("${NOBODY:-}", ""),
        ('env("NAME")', "ada"),
        (" env( 'NAME' ) ", "ada"),
        ('env("NAME", "x")', "ada"),
        ("env('NOBODY' , 'some one')", "some one"),
        ('env("EMPTY", "")', ""),
        ("$${NAME}", "${NAME}"),
        ("$NAME $ {NAME}", "$NAME $ {NAME}"),
        ("an env(x) inside", "an env(x) inside"),
        ("${NOBODY:-a:b-c}", "a:b-c"),
    ],
)
def test_references_are_put_in(text: str, value: str) -> None:
    found = expand(text, ENVIRON)
    assert (found.text, found.missing, found.broken) == (value, (), "")


def test_values_from_the_environment_become_what_the_setting_is() -> None:
    text = 'queue:\n  cap: ${CAP}\n  mode: env("MODE")\n  debounce_idle: ${NO:-true}\nname: hello ${NAME}\n'
    assert values_of(text, environ=ENVIRON) == {
        "queue.cap": 7,
        "queue.mode": "steer",
        "queue.debounce_idle": True,
        "name": "hello ada",
    }


def test_references_work_in_every_format() -> None:
    assert values_of("{queue: {mode: 'env(\"MODE\")'}}", ".json5", ENVIRON) == {"queue.mode": "steer"}
    assert values_of("queue.cap = '${CAP}'", ".toml", ENVIRON) == {"queue.cap": 7}


def test_keys_and_numbers_are_no_references() -> None:
    assert "there is no setting ${NAME}" in lines_of("${NAME}: 1\n", environ=ENVIRON)[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("${NOBODY}", "name refers to the variable NOBODY, which is not set (set it, or give a default: ${NOBODY:-…})"),
        ("'env(\"NOBODY\")'", "name refers to the variable NOBODY, which is not set (set it, or give a default:"),
        ("'${NAME'", "name: a reference is ${NAME} or ${NAME:-default}; $${ stands for a plain ${"),
        ("'${1}'", "name: a reference is ${NAME} or ${NAME:-default}"),
        ("'${}'", "name: a reference is ${NAME} or ${NAME:-default}"),
        ("env(NAME)", 'name: env("NAME") takes the name of a variable in quotes'),
        ("'env(\"NAME\", 5)'", 'name: env("NAME") takes the name of a variable in quotes'),
    ],
)
def test_a_reference_that_cannot_be_followed_says_why(text: str, line: str) -> None:
    (found,) = lines_of(f"name: {text}\n", environ=ENVIRON)
    assert found.startswith(f"laneway.yaml:1:7: {line}")


def test_every_missing_variable_is_named() -> None:
    found = lines_of("name: ${ONE} ${TWO}\n")
    assert ["ONE" in found[0], "TWO" in found[1], len(found)] == [True, True, 2]


def test_what_a_variable_holds_is_in_no_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_text(tmp_path, "queue:\n  cap: ${SECRET}\n  mode: x${SECRET}\n", SECRET="colect")
    assert "colect" not in str(caught.value)
    assert "did you mean" not in str(caught.value)
    assert "must be a whole number from 1 to 100,000, not what ${SECRET} holds" in str(caught.value)
    assert [problem.value for problem in caught.value.problems] == [None, None]


def test_a_value_from_a_variable_is_marked_as_hidden(tmp_path: Path) -> None:
    text = "name: ${NAME}\ndescription: ${NOBODY:-in the file}\nqueue: {cap: 3}\n"
    found = load_text(tmp_path, text, NAME="s3cret")
    assert (found.settings.name, found.value("name").hidden) == ("s3cret", True)
    assert (found.value("description").hidden, found.value("queue.cap").hidden) == (False, False)


def test_a_default_that_follows_a_hidden_value_is_hidden_too(tmp_path: Path) -> None:
    found = load_text(tmp_path, "spawn: {max_concurrent: '${LIMIT}'}\n", LIMIT="5")
    assert found.settings.lanes["subagent"].concurrency == 5
    assert found.value("lanes.subagent.concurrency").hidden is True


@given(st.text(st.sampled_from("$${}ABenv('\"):- "), max_size=30))
def test_any_text_can_be_looked_at(text: str) -> None:
    found = expand(text, {"A": "1"})
    assert isinstance(found.text, str)
    assert set(found.missing) <= set(found.names)
