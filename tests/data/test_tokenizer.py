"""All kinds of tokenizers, and their file."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_bpe import SENTENCES, texts
from transom.config.data import PairTokenizerConfig as TokenizerConfig
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer import tokenizer as module
from transom.data.tokenizer.special_tokens import EOS, PAD, SOS, UNK
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers, describe_vocabularies
from transom.errors import CheckpointError, ConfigError, DataError
from transom.files.limits import MAX_TOKENIZER_BYTES

PAIRS = Pairs(SENTENCES, [sentence.upper() for sentence in SENTENCES], "made up")
CONFIGS = [
    TokenizerConfig(kind=kind, vocab_size=400, joint=joint, lowercase=lowercase)
    for kind in ("bpe", "char", "whitespace")
    for joint in (True, False)
    for lowercase in (True, False)
]


def name_of(config: TokenizerConfig) -> str:
    return f"{config.kind}-{config.joint}-{config.lowercase}"


@pytest.fixture(params=CONFIGS, ids=name_of, scope="module")
def trained(request: pytest.FixtureRequest) -> tuple[TokenizerConfig, Tokenizers]:
    return request.param, Tokenizers.train(PAIRS, request.param)


def test_seen_text_comes_back(trained: tuple[TokenizerConfig, Tokenizers]) -> None:
    config, tokenizers = trained
    assert (tokenizers.source is tokenizers.target) == tokenizers.joint == config.joint
    for tokenizer, sentences in ((tokenizers.source, PAIRS.source), (tokenizers.target, PAIRS.target)):
        assert tokenizer.vocab_size <= 400
        for sentence, numbers in zip(sentences, tokenizer.encode_batch(sentences), strict=True):
            assert numbers == tokenizer.encode(sentence)
            assert all(UNK < number < tokenizer.vocab_size or (config.kind == "bpe" and number == UNK) for number in numbers)
            expected = sentence.lower() if config.lowercase else sentence
            assert tokenizer.decode([SOS, *numbers, EOS, PAD, PAD]) == (
                " ".join(expected.split()) if config.kind == "whitespace" else expected
            )
            assert len(tokenizer.symbols(numbers)) == len(tokenizer.starts_word(numbers)) == len(numbers)


def test_tokens_of_a_text_are_counted_per_part(trained: tuple[TokenizerConfig, Tokenizers]) -> None:
    config, tokenizers = trained
    tokenizer = tokenizers.source
    first, second, third, last, *_ = PAIRS.source
    parts = [f"{first}\n", f"{second} {third}\n\n", "\n", f"\n {last}\n", "", f"{first} ź"]
    tokens = tokenizer.encode("".join(parts))
    counts = tokenizer.count_part_tokens(parts, tokens)
    assert len(counts) == len(parts) and sum(counts) == len(tokens)
    for end in range(1, len(parts)):
        n, text = sum(counts[:end]), "".join(parts[:end])
        expected = text.lower() if config.lowercase else text
        if config.kind == "whitespace":
            assert n == len(expected.split())
        elif config.kind == "char":
            assert n == len(expected)
        elif counts[end - 1]:
            assert expected.startswith(tokenizer.decode(tokens[: n - 1])), "the last token starts in the part"
            assert tokenizer.decode(tokens[:n]).startswith(expected), "and no further token does"
    assert tokenizer.count_part_tokens([""], []) == [0]


def test_file_holds_everything(trained: tuple[TokenizerConfig, Tokenizers], tmp_path: Path) -> None:
    _, tokenizers = trained
    tokenizers.save(tmp_path / "tokenizer.json")
    again = Tokenizers.load(tmp_path / "tokenizer.json")
    assert again.joint == tokenizers.joint
    assert again.to_bytes() == tokenizers.to_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert json.loads(tokenizers.to_bytes())["format_version"] == 1
    for side in ("source", "target"):
        old, new = getattr(tokenizers, side), getattr(again, side)
        assert new.encode_batch(PAIRS.source) == old.encode_batch(PAIRS.source)
        assert (new.vocab_size, new.lowercase, new.kind) == (old.vocab_size, old.lowercase, old.kind)


def test_description(trained: tuple[TokenizerConfig, Tokenizers]) -> None:
    config, tokenizers = trained
    lines = describe_vocabularies(tokenizers)
    assert len(lines) == (2 if config.joint else 4)
    assert config.kind in lines[0] and f"{tokenizers.source.vocab_size:,} symbols" in lines[0]
    assert ("lower-cased" in lines[0]) == config.lowercase


BPE = Tokenizer.train(SENTENCES, TokenizerConfig(vocab_size=500))
LOWER = Tokenizer.train(SENTENCES, TokenizerConfig(vocab_size=500, lowercase=True))


@given(texts)
def test_any_text_comes_back(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text
    assert LOWER.decode(LOWER.encode(text)) == text.lower()


@given(texts, st.floats(0, 0.9))
def test_dropout_keeps_the_text(text: str, p: float) -> None:
    (numbers,) = LOWER.encode_with_dropout([text], p, (1,), [3])
    assert LOWER.decode(numbers) == text.lower()
    if p == 0:
        assert numbers == LOWER.encode(text)


@given(st.lists(st.sampled_from(["dogs", "unseen", "Größe,", "x-y", "😀"]), min_size=1))
def test_words_are_found_again(words: list[str]) -> None:
    numbers = BPE.encode(" ".join(words))
    assert sum(BPE.starts_word(numbers)) == len(words)
    assert BPE.starts_word([*numbers, EOS])[-1]


def test_symbols_are_readable() -> None:
    assert BPE.symbols([PAD, SOS, EOS, *BPE.encode("dogs é")]) == ["[PAD]", "[SOS]", "[EOS]", "▁dogs", "▁", "<0xC3>", "<0xA9>"]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(DataError, match="half a surrogate pair"):
        BPE.encode("a\ud800b")


def test_least_size_is_told() -> None:
    with pytest.raises(ConfigError, match="expected at least 259"):
        Tokenizers.train(PAIRS, TokenizerConfig(vocab_size=100))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04pickle",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"format_version": 2, "source": {}}',
        b'{"format_version": true, "source": {}}',
        b'{"format_version": 1}',
        b'{"format_version": 1, "source": null}',
        b'{"format_version": 1, "source": {"kind": "bpe"}}',
        b'{"format_version": 1, "source": {"kind": "wordpiece", "lowercase": false}}',
        b'{"format_version": 1, "source": {"kind": ["bpe"], "lowercase": false}}',
        b'{"format_version": 1, "source": {"kind": "bpe", "lowercase": 0, "characters": [], "merges": []}}',
        b'{"format_version": 1, "source": {"kind": "bpe", "lowercase": false, "characters": ["\\ud800"], "merges": []}}',
        b'{"format_version": 1, "source": {"kind": "char", "lowercase": false, "units": ["a"]}, "target": null}',
        b'{"version": "1.0", "model": {"type": "BPE"}}',
    ],
)
def test_bad_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        Tokenizers.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to("/dev/zero")
    special = "expected a file, found a device or a pipe"
    for name, message in {"none.json": "cannot be read", "": "found a folder", "pipe.json": special, "link.json": special}.items():
        with pytest.raises(CheckpointError, match=message):
            Tokenizers.load(tmp_path / name)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(MAX_TOKENIZER_BYTES + 1)
    with pytest.raises(CheckpointError, match="is this a tokenizer"):
        Tokenizers.load(huge)


def repeated(merges: str, n: int) -> bytes:
    return f'{{"format_version": 1, "source": {{"kind": "bpe", "lowercase": false, "characters": [], "merges": [{merges * n}'.encode()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (repeated('["a", "a"], ', 2_000_000)[:-2] + b"]}}", "expected at most 1,065,536 merges, found 2,000,00"),
        (repeated('"a", ', 4_000_000)[:-2] + b"]}}", "expected at most 3,000,000 symbols"),
        (repeated('["a", "a"], ', 1_000)[:-2] + b"]}}", "expected distinct merges, found 999 duplicates"),
    ],
)
def test_a_file_that_would_unfold(content: bytes, expected: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=expected):
            Tokenizers.from_bytes(content)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_tokenizer_too_large_to_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENIZER_STRINGS", 100)
    with pytest.raises(DataError, match=r"at most 100 symbols, found [0-9]+; lower tokenizer\.vocab_size"):
        Tokenizers(LOWER).to_bytes()


def test_every_truncation_is_refused() -> None:
    content = Tokenizers(LOWER).to_bytes()
    for end in range(0, len(content) - 2, 97):
        with pytest.raises(CheckpointError):
            Tokenizers.from_bytes(content[:end])


TAGS = ("de", "fr", "pt-BR")


@pytest.mark.parametrize("kind", ["bpe", "char", "whitespace"])
def test_tags_are_symbols_that_no_text_becomes(kind: str) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=400)
    plain, tagged = Tokenizers.train(PAIRS, config), Tokenizers.train(PAIRS, config, TAGS)
    tokens = [tagged.source.language_prefix(tag)[0] for tag in TAGS]
    assert tokens == list(tagged.source.tag_tokens) == [plain.source.vocab_size + i for i in range(3)]
    assert tagged.source.vocab_size == plain.source.vocab_size + 3 == max(tokens) + 1
    forged = [*(f"<2{tag}>" for tag in TAGS), "<2de> a man", "▁<2de>", "[SOS] <2fr>", *SENTENCES]
    for text, row in zip(forged, tagged.source.encode_batch(forged), strict=True):
        assert row == plain.source.encode(text) and not set(row) & set(tokens)
    assert not {token for row in tagged.source.encode_batch(["<2de>" * 9]) for token in row} & set(tokens)
    assert tagged.source.symbols(tokens) == ["<2de>", "<2fr>", "<2pt-BR>"]
    words = tagged.source.encode("a man")
    assert tagged.source.decode([tokens[0], *words]) == tagged.source.decode(words)
    assert tagged.source.starts_word([tokens[1], *words])[:2] == [True, True]
    again = Tokenizers.from_bytes(tagged.to_bytes())
    assert again.source.tags == TAGS and again.to_bytes() == tagged.to_bytes() and "tags" not in json.loads(plain.to_bytes())["source"]
    assert (
        "target languages de, fr, pt-BR" in describe_vocabularies(tagged)[0] and "target languages" not in describe_vocabularies(plain)[0]
    )


def test_tags_are_of_the_source() -> None:
    apart = Tokenizers.train(PAIRS, TokenizerConfig(kind="char", vocab_size=100, joint=False), TAGS)
    assert (apart.source.tags, apart.target.tags, len(apart.target.tag_tokens)) == (TAGS, (), 0)


def test_a_tag_that_is_missing_or_unknown_is_said() -> None:
    tagged = Tokenizers.train(PAIRS, TokenizerConfig(kind="char", vocab_size=100), TAGS).source
    plain = Tokenizers.train(PAIRS, TokenizerConfig(kind="char", vocab_size=100)).source
    assert plain.language_prefix(None) == []
    for tokenizer, to, message in (
        (tagged, None, r"expected a target language, found none; name one of de, fr, pt-BR by --to"),
        (tagged, "pt-BZ", r"expected one of the target languages de, fr, pt-BR, found 'pt-BZ'; did you mean pt-BR\?"),
        (tagged, "", r"languages de, fr, pt-BR, found ''"),
        (plain, "de", r"expected no target language, because the model has only one, found 'de'; remove --to"),
    ):
        with pytest.raises(ConfigError, match=message):
            tokenizer.language_prefix(to)


@pytest.mark.parametrize("tags", ["de", ["de", "de"], ["<2de>"], [""], [3], {"de": 1}, ["a" * 33]])
def test_a_file_with_broken_tags_is_refused(tags: object) -> None:
    value = json.loads(Tokenizers.train(PAIRS, TokenizerConfig(kind="char", vocab_size=100), TAGS).to_bytes())
    value["source"]["tags"] = tags
    with pytest.raises(CheckpointError, match="expected distinct tags"):
        Tokenizers.from_bytes(json.dumps(value).encode())
