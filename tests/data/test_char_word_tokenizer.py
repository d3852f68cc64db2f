"""Character and word vocabularies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.data.tokenizer.char_word_tokenizer import CharacterVocabulary, WordVocabulary
from transom.data.tokenizer.special_tokens import UNK
from transom.errors import CheckpointError, ConfigError

SEEN = ["the dog [EOS]", "the  cat\té", "a dog"]


@given(st.text("".join(SEEN), max_size=30))
def test_seen_characters_come_back(text: str) -> None:
    characters = CharacterVocabulary.train(SEEN, 100)
    (numbers,) = characters.encode_batch([text])
    assert len(numbers) == len(text) and min(numbers, default=4) > UNK
    assert characters.decode(numbers) == text


@given(st.lists(st.sampled_from(" ".join(SEEN).split())))
def test_seen_words_come_back(chosen: list[str]) -> None:
    words = WordVocabulary.train(SEEN, 100)
    (numbers,) = words.encode_batch([" ".join(chosen)])
    assert len(numbers) == len(chosen) and min(numbers, default=4) > UNK
    assert words.decode(numbers) == " ".join(chosen)


def test_the_unseen_is_unknown() -> None:
    assert CharacterVocabulary.train(["ab"], 10).encode_batch(["axb"]) == [[4, UNK, 5]]
    words = WordVocabulary.train(["a b"], 10)
    assert words.encode_batch(["a  x\tb ", "[UNK] [EOS]", ""]) == [[4, UNK, 5], [UNK, UNK], []]
    assert words.decode([4, UNK, 5]) == "a \ufffd b"


def test_the_most_frequent_are_kept_ties_in_order() -> None:
    assert WordVocabulary.train(["b b a c c c d"], 7).symbols == ["[PAD]", "[SOS]", "[EOS]", "[UNK]", "c", "b", "a"]
    assert CharacterVocabulary.train(["bba", "ccc"], 6).symbols[4:] == ["c", "b"]


@pytest.mark.parametrize("kind", [CharacterVocabulary, WordVocabulary])
def test_sizes_and_files(kind: type[CharacterVocabulary] | type[WordVocabulary]) -> None:
    learned = kind.train(SEEN, 100)
    assert kind.from_dict(learned.to_dict()).symbols == learned.symbols
    with pytest.raises(ConfigError, match=r"tokenizer.vocab_size: expected more than the 4 special tokens, found 4"):
        kind.train(SEEN, 4)
    with pytest.raises(ConfigError, match=r"tokenizer.bpe_dropout: expected kind 'bpe'"):
        learned.encode_with_dropout(["a"], 0.1, (1,), [0])
    units: list[object]
    for units in (["a", "a"], ["a b"], [""], [1], ["a", None]):
        with pytest.raises(CheckpointError, match="expected"):
            kind.from_dict({"units": units})
    with pytest.raises(CheckpointError, match="expected"):
        kind.from_dict({"characters": []})
