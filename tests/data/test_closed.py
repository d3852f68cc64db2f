"""Character and word vocabularies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.data.tokenizer.closed import Characters, Words
from transom.data.tokenizer.special import UNK
from transom.errors import CheckpointError, ConfigError

SEEN = ["the dog [EOS]", "the  cat\té", "a dog"]


@given(st.text("".join(SEEN), max_size=30))
def test_seen_characters_come_back(text: str) -> None:
    characters = Characters.learn(SEEN, 100)
    (numbers,) = characters.encode_batch([text])
    assert len(numbers) == len(text) and min(numbers, default=4) > UNK
    assert characters.join(numbers) == text


@given(st.lists(st.sampled_from(" ".join(SEEN).split())))
def test_seen_words_come_back(chosen: list[str]) -> None:
    words = Words.learn(SEEN, 100)
    (numbers,) = words.encode_batch([" ".join(chosen)])
    assert len(numbers) == len(chosen) and min(numbers, default=4) > UNK
    assert words.join(numbers) == " ".join(chosen)


def test_the_unseen_is_unknown() -> None:
    assert Characters.learn(["ab"], 10).encode_batch(["axb"]) == [[4, UNK, 5]]
    words = Words.learn(["a b"], 10)
    assert words.encode_batch(["a  x\tb ", "[UNK] [EOS]", ""]) == [[4, UNK, 5], [UNK, UNK], []]
    assert words.join([4, UNK, 5]) == "a \ufffd b"


def test_the_most_frequent_are_kept_ties_in_order() -> None:
    assert Words.learn(["b b a c c c d"], 7).symbols == ["[PAD]", "[SOS]", "[EOS]", "[UNK]", "c", "b", "a"]
    assert Characters.learn(["bba", "ccc"], 6).symbols[4:] == ["c", "b"]


@pytest.mark.parametrize("kind", [Characters, Words])
def test_sizes_and_files(kind: type[Characters] | type[Words]) -> None:
    learned = kind.learn(SEEN, 100)
    assert kind.from_dict(learned.to_dict()).symbols == learned.symbols
    with pytest.raises(ConfigError, match=r"tokenizer.vocab_size: expected more than the 4 special tokens, found 4"):
        kind.learn(SEEN, 4)
    with pytest.raises(ConfigError, match=r"tokenizer.dropout: expected kind 'bpe'"):
        learned.encode_with_dropout(["a"], 0.1, (1,), [0])
    units: list[object]
    for units in (["a", "a"], ["a b"], [""], [1], ["a", None]):
        with pytest.raises(CheckpointError, match="expected"):
            kind.from_dict({"units": units})
    with pytest.raises(CheckpointError, match="expected"):
        kind.from_dict({"characters": []})
