"""Splitting texts that are too long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.decoding.predictors.sentence_splitter import split_text
from transom.errors import DataError


def at_most(n: int) -> object:
    return lambda text: len(text) <= n


def test_text_that_fits_stays_whole() -> None:
    assert split_text("  One. Two!  ", at_most(9)) == ["One. Two!"]
    assert split_text(" \n ", at_most(9)) == []


def test_sentences_come_apart_before_anything_else() -> None:
    text = 'He said "No way!" and left. Did he? Yes... 他走了。他们也走了。'
    assert split_text(text, at_most(30)) == ['He said "No way!"', "and left.", "Did he?", "Yes...", "他走了。", "他们也走了。"]


def test_a_long_sentence_is_cut_behind_a_clause_and_a_long_clause_behind_a_word() -> None:
    assert split_text("one two, three four, five six seven", at_most(21)) == ["one two, three four,", "five six seven"]
    assert split_text("one two three four five", at_most(9)) == ["one two", "three", "four five"]


def test_a_long_word_is_cut_anywhere() -> None:
    assert split_text("a bcdefghij k", at_most(4)) == ["a", "bcde", "fghi", "j", "k"]


def test_a_character_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"expected every character to fit model.max_seq_len, found 'ö'"):
        split_text("aö", lambda text: len(text.encode()) <= 1)


@given(st.text(alphabet="ab .,!?。\n\"'é"), st.integers(2, 12))
def test_nothing_is_lost_and_every_piece_fits(text: str, most: int) -> None:
    pieces = split_text(text, lambda piece: len(piece.encode()) <= most + 1)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(piece == piece.strip() and 0 < len(piece.encode()) <= most + 1 for piece in pieces)


def test_a_huge_text_is_cut_with_few_looks() -> None:
    asked = []

    def fits(text: str) -> bool:
        asked.append(len(text))
        return len(text) <= 100

    pieces = split_text("word " * 20000, fits)
    assert len(pieces) == 1000
    assert len(asked) < 20 * len(pieces)
    assert sum(asked) < 3000 * len(pieces)
