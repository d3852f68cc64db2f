"""Profiles of training texts: unseen words, other languages, lengths."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.config.data import PhrasebookConfig
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
from transom.data.text.input_profile import InputProfile, split_words


@given(st.lists(st.text("abcdé 1.-", max_size=30), min_size=1, max_size=20), st.text("abcdé 1.-", max_size=30))
def test_no_word_of_the_training_texts_is_unseen(train: list[str], other: str) -> None:
    profile = InputProfile.from_texts(train, train)
    assert all(profile.unseen_words(text) == ([], len(split_words(text))) for text in train)
    known = {word for text in train for word in split_words(text)}
    unseen, n_words = profile.unseen_words(other)
    assert n_words == len(split_words(other)) and not known.intersection(unseen)
    restored = InputProfile.from_json(json.loads(json.dumps(profile.to_json())))
    assert restored.warnings(other) == profile.warnings(other)


def test_about_one_percent_of_unseen_words_pass() -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnop", k=8)) for _ in range(20_000)]
    profile = InputProfile.from_texts([" ".join(words[:10_000])], [])
    unseen, _ = profile.unseen_words(" ".join(words[10_000:]))
    assert 9_800 <= len(unseen) < 10_000


def test_scripts_without_spaces_have_a_word_per_letter() -> None:
    assert split_words("我爱你 abc") == ["我", "爱", "你", "abc"]


@pytest.mark.long
def test_the_other_language_of_the_phrasebook_is_recognized() -> None:
    train, valid, test = generate_phrasebook(PhrasebookConfig(n_train=5000, n_valid=200, n_test=500)).parts.values()
    profile = InputProfile.from_texts(train.source, valid.source)
    own = [any("another language" in warning for warning in profile.warnings(text)) for text in test.source]
    spanish = [any("another language" in warning for warning in profile.warnings(text)) for text in test.target if len(text) > 25]
    assert sum(own) <= 0.01 * len(own) and sum(spanish) >= 0.9 * len(spanish)


@pytest.mark.parametrize(
    "damage", [{}, {"n_bits": "x"}, {"n_bits": 8, "words": "!", "trigrams": {}}, {"n_bits": 8, "words": "", "trigrams": []}]
)
def test_damaged_profiles_are_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"missing|invalid|Only base64|type|attribute"):
        InputProfile.from_json(damage)
