"""Long texts in pieces: nothing is lost, nothing is too long, and no letter is cut in two."""

from __future__ import annotations

import itertools

import regex
from hypothesis import given
from hypothesis import strategies as st

from laneway.gateway.channels.splitting import length_of, split

FAMILY = "👩‍👩‍👧‍👦"
PARTS = st.sampled_from(["a", "word ", "\n", "é", "e\u0301", FAMILY, "🇩🇪", "नि", "한", "\r\n", "👍🏽", "x" * 30])
TEXTS = st.lists(PARTS, max_size=60).map("".join)


@given(text=TEXTS, most=st.integers(min_value=40, max_value=90))
def test_pieces_are_the_text_and_none_is_too_long(text: str, most: int) -> None:
    pieces = split(text, most)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(length_of(piece) <= most for piece in pieces)


@given(text=TEXTS.map(lambda text: regex.sub(r"\s+", "_", text)), most=st.integers(min_value=40, max_value=90))
def test_no_grapheme_is_cut(text: str, most: int) -> None:
    ends = {match.end() for match in regex.finditer(r"\X", text)}
    lengths = [len(piece) for piece in split(text, most)]
    assert set(itertools.accumulate(lengths)) <= ends


def test_a_short_text_is_one_piece_and_an_empty_one_is_none() -> None:
    assert split("hello", 4_096) == ["hello"]
    assert split("", 4_096) == split(" \n", 4_096) == []


def test_a_text_of_exactly_the_most_is_one_piece() -> None:
    assert [len(piece) for piece in split("x" * 4_096, 4_096)] == [4_096]
    assert [len(piece) for piece in split("x" * 4_097, 4_096)] == [4_096, 1]


def test_a_line_is_the_best_place_to_cut_and_a_blank_the_second_best() -> None:
    assert split("aaa bbb\nccc ddd", 10) == ["aaa bbb\n", "ccc ddd"]
    assert split("aaaa bbbb cccc", 11) == ["aaaa bbbb ", "cccc"]


def test_letters_outside_the_first_plane_count_twice() -> None:
    assert [len(piece) for piece in split("😀" * 10, 10)] == [5, 5]


def test_one_grapheme_that_is_longer_than_a_piece_is_cut_between_characters() -> None:
    text = "e" + "\u0301" * 50
    assert "".join(split(text, 20)) == text
    assert max(map(length_of, split(text, 20))) == 20
