"""Byte-pair encoding is lossless, deterministic, and never encodes typed text as a special token."""

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transom.data.tokenizer.bpe import MIN_VOCAB_SIZE, BytePairEncoding
from transom.errors import CheckpointError, ConfigError

SENTENCES = [
    "Two young dogs are playing in the snow.",
    "Zwei junge Hunde spielen im Schnee. Größe, größer, am größten!",
    'A man sleeps; the dog said: "don\'t". <0x80> [EOS] [EOS] [PAD] <0x80>',
    "Две собаки играют в снегу. Две собаки спят.",
    "雪の中で犬が遊んでいる。雪の中で犬が寝ている。",
    "a  b   c\td  a  b   c\td",
] * 3
BPE = BytePairEncoding.train(SENTENCES, 500)

typed = st.sampled_from(
    ["[EOS]", "[PAD]", "[UNK]", "<0x80>", "<0xC3>", " ", "  ", "\t", "\n", "▁", "Ġ", "e\u0301", "👩‍👩‍👧", "\u200d", "dogs", "größ"]
)
texts = st.lists(st.one_of(typed, st.text(st.characters(codec="utf-8"), max_size=8)), max_size=12).map("".join)


@given(texts)
@example(" leading and trailing ")
@example("\u0000\ufeff\ufffd")
def test_round_trip_is_exact(text: str) -> None:
    (numbers,) = BPE.encode_batch([text])
    assert BPE.decode(numbers) == text
    assert all(3 <= number < len(BPE.symbols) for number in numbers)


@given(texts)
def test_symbols_say_what_they_stand_for(text: str) -> None:
    (numbers,) = BPE.encode_batch([text])
    assert b"".join(BPE.symbol_bytes[number] for number in numbers).decode() == (text and " " + text)
    assert all(BPE.symbols[n].encode() == BPE.symbol_bytes[n] for n in numbers if not 3 + 128 <= n < MIN_VOCAB_SIZE)


@pytest.mark.parametrize("text", ["[EOS]", "[PAD] [SOS]", "<0x80>", "a<0xC3><0xA4>b"])
def test_typed_specials_are_text(text: str) -> None:
    (numbers,) = BPE.encode_batch([text])
    assert min(numbers) >= 3 and len(numbers) >= 3
    assert not any(3 + 128 <= number < MIN_VOCAB_SIZE for number in numbers)
    assert BPE.decode(numbers) == text


def test_words_are_alike_at_the_start_and_within() -> None:
    first, second = BPE.encode_batch(["dogs", "Two dogs"])
    assert second[-len(first) :] == first
    assert BPE.symbols[first[-1]] == " dogs"


def test_merges_stay_inside_of_words_signs_and_digits() -> None:
    bpe = BytePairEncoding.train(["don't stop, 1980 (1980) 1980"] * 9, 400)
    (numbers,) = bpe.encode_batch(["don't stop, 1980 (1980)"])
    assert [bpe.symbols[n] for n in numbers] == [" don", "'", "t", " stop", ",", " 1", "9", "8", "0", " (", "1", "9", "8", "0", ")"]


def test_combining_marks_stay_with_their_letters() -> None:
    bpe = BytePairEncoding.train(["हिन्दी"] * 3, 400)
    assert len(bpe.encode_batch(["हिन्दी"])[0]) == 1


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    assert BPE.decode([3 + 0xE2, 3 + 0x82]) == "\ufffd"
    assert BPE.decode([3 + byte for byte in "€".encode()]) == "€"


def test_long_words_take_no_long_time() -> None:
    text = "x" * 200_000 + "ü" * 1000
    (numbers,) = BPE.encode_batch([text])
    assert BPE.decode(numbers) == text


@pytest.mark.parametrize("size", [MIN_VOCAB_SIZE, MIN_VOCAB_SIZE + 1, MIN_VOCAB_SIZE + 2, MIN_VOCAB_SIZE + 40, 400])
def test_size_is_a_limit_and_is_reached(size: int) -> None:
    bpe = BytePairEncoding.train(SENTENCES, size)
    assert len(bpe.symbols) == len(set(bpe.symbols)) == size
    beyond = bpe.to_dict()["characters"]
    assert isinstance(beyond, list) and len(beyond) <= (size - MIN_VOCAB_SIZE) // 2
    assert bpe.decode(bpe.encode_batch(["Größe 雪"])[0]) == "Größe 雪"


def test_what_is_seen_once_is_spelled() -> None:
    bpe = BytePairEncoding.train(["ää ö xyz"], 1000)
    assert bpe.to_dict() == {"characters": ["ä"], "merges": []}


def test_too_small_a_size_says_the_least() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer.vocab_size: expected at least 259 .*, found 258;"):
        BytePairEncoding.train(SENTENCES, 258)


def test_training_depends_on_the_texts_alone() -> None:
    assert BytePairEncoding.train(SENTENCES[::-1], 500).to_dict() == BPE.to_dict()
    program = (
        "import json, sys\nfrom transom.data.tokenizer.bpe import BytePairEncoding\n"
        "print(json.dumps(BytePairEncoding.train(json.load(sys.stdin), 500).to_dict()))"
    )
    other = subprocess.run([sys.executable, "-c", program], input=json.dumps(SENTENCES), capture_output=True, text=True, check=True)
    assert json.loads(other.stdout) == json.loads(json.dumps(BPE.to_dict()))


def test_nothing_to_learn_from() -> None:
    assert len(BytePairEncoding.train([], 300).symbols) == len(BytePairEncoding.train(["", ""], 300).symbols) == MIN_VOCAB_SIZE


@given(texts)
def test_written_and_read_it_is_the_same(text: str) -> None:
    again = BytePairEncoding.from_dict(json.loads(json.dumps(BPE.to_dict())))
    assert again.symbols == BPE.symbols
    assert again.encode_batch([text]) == BPE.encode_batch([text])


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"characters": [], "merges": None},
        {"characters": "ä", "merges": []},
        {"characters": [1], "merges": []},
        {"characters": ["ab"], "merges": []},
        {"characters": [""], "merges": []},
        {"characters": ["a"], "merges": []},
        {"characters": ["ä", "ä"], "merges": []},
        {"characters": [], "merges": [["a"]]},
        {"characters": [], "merges": [["a", 1]]},
        {"characters": [], "merges": [["a", "bc"]]},
        {"characters": [], "merges": [["a", "ä"]]},
        {"characters": [], "merges": [["", "a"]]},
        {"characters": [], "merges": [["<0x80>", "a"]]},
        {"characters": [], "merges": [["[EOS]", "a"]]},
    ],
)
def test_what_cannot_come_from_training_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="expected"):
        BytePairEncoding.from_dict(value)


def test_merges_of_merges_end_at_a_length() -> None:
    doubling = [["a" * 2**n, "a" * 2**n] for n in range(9)]
    assert max(map(len, BytePairEncoding.from_dict({"characters": [], "merges": doubling}).symbols)) == 512
    with pytest.raises(CheckpointError, match="at most 1,000 characters, found 1,024 in merge 10"):
        BytePairEncoding.from_dict({"characters": [], "merges": [*doubling, ["a" * 512, "a" * 512]]})
    learned = BytePairEncoding.train([" " * 5_000] * 3, 300)
    assert max(map(len, learned.symbols)) <= 1_000
    assert BytePairEncoding.from_dict(learned.to_dict()).symbols == learned.symbols
