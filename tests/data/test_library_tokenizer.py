"""Tokenizers of the tokenizers library: training, what becomes of texts, and files that are refused."""

import base64
import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import normalizers

from tests.agreement.published_tokenizers import BUILDERS, corpus, random_strings
from transom.config.data import PairTokenizerConfig, SpecialTokenNames, TokenizerConfig
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer.library_state import GROWTH, MAX_GROWTH, check_added_tokens
from transom.data.tokenizer.library_tokenizer import LibraryTokenizer
from transom.data.tokenizer.library_training import BERT_TOKENS
from transom.data.tokenizer.special_tokens import CLOSED_TOKENS, OWN_TOKENS
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers, describe_vocabularies
from transom.errors import CheckpointError, ConfigError
from transom.files.limits import MAX_VOCAB_SIZE

KINDS = ("byte-bpe", "wordpiece", "unigram")


def trained(kind: str, vocab_size: int = 400, **fields: Any) -> Tokenizer:
    return Tokenizer.train(corpus(), TokenizerConfig.model_validate({"kind": kind, "vocab_size": vocab_size, **fields}))


_HASH = """
import hashlib, sys
from tests.data.test_library_tokenizer import KINDS, trained
from transom.data.tokenizer.tokenizer import Tokenizers
print([hashlib.sha256(Tokenizers(trained(kind)).to_bytes()).hexdigest() for kind in KINDS])
"""


@pytest.mark.long
def test_training_gives_the_same_bytes_in_every_process() -> None:
    run = [sys.executable, "-c", _HASH]
    found = {subprocess.run(run, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout for _ in range(3)}
    assert len(found) == 1 and found.pop().count("'") == 2 * len(KINDS)


def test_byte_bpe_restores_every_text_and_has_the_ids_of_transom() -> None:
    tokenizer = trained("byte-bpe")
    assert tokenizer.special_tokens == OWN_TOKENS and tokenizer.symbols([0, 1, 2]) == ["[PAD]", "[SOS]", "[EOS]"]
    strings = random_strings(200)
    assert [tokenizer.decode(row) for row in tokenizer.encode_batch(strings)] == strings
    assert not {0, 1, 2} & {*tokenizer.encode("[EOS] [PAD][SOS]")} and tokenizer.vocab_size <= 400
    assert tokenizer.symbols(tokenizer.encode("the \U0001f600")[-1:])[0].startswith("<0x")
    assert tokenizer.blank_token_id == tokenizer.encode("\0")[0] and tokenizer.blank_token_id not in tokenizer.maskable


def test_wordpiece_is_bert_s() -> None:
    tokenizer = trained("wordpiece", lowercase=True)
    assert tokenizer.special_tokens == BERT_TOKENS and tokenizer.symbols(range(4)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    assert tokenizer.symbols([4]) == ["[MASK]"] and tokenizer.mask_token_id == 4
    assert tokenizer.decode(tokenizer.encode("The  CRÈME cat")) == "the creme cat" and tokenizer.lowercase
    assert not {*range(5)} & {*tokenizer.encode("[SEP] [CLS] cat [MASK]")} - {1}
    row = tokenizer.encode("lowering mats")
    assert tokenizer.starts_word(row) == [not symbol.startswith("##") for symbol in tokenizer.symbols(row)]
    state = Library.from_str(json.dumps(tokenizer.to_library()))
    assert state.encode("the cat", "sat").tokens[::3] == ["[CLS]", "[SEP]"]


def test_unigram_segments_words_and_keeps_single_spaces() -> None:
    tokenizer = trained("unigram", 150)
    assert tokenizer.special_tokens == CLOSED_TOKENS and tokenizer.vocab_size <= 150
    assert tokenizer.decode(tokenizer.encode("the  cats  sat")) == "the cats sat"
    assert not {0, 1, 2} & {*tokenizer.encode("[EOS][SOS] [PAD]")}
    assert tokenizer.encode("\U0001f98a")[-1] == CLOSED_TOKENS.unk_token_id
    row = tokenizer.encode("the cat")
    assert [symbol for symbol, new in zip(tokenizer.symbols(row), tokenizer.starts_word(row), strict=True) if new and symbol != "▁"]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_counted_where_they_start(kind: str) -> None:
    tokenizer = trained(kind)
    parts = ["the cat", " sat on the Crème", "", " brûlée \U0001f680 shops"]
    counts = tokenizer.count_part_tokens(parts, row := tokenizer.encode("".join(parts)))
    assert sum(counts) == len(row) and counts[2] == 0
    assert counts[0] == len(tokenizer.encode(parts[0])) and counts[1] == len(tokenizer.encode(parts[1]))


def test_tokens_that_share_a_character_share_its_place() -> None:
    tokenizer = trained("byte-bpe", 259)
    text = "aé\U0001f600b"
    ends = [(0, 1), *[(1, 2)] * 2, *[(2, 3)] * 4, (3, 4)]
    assert tokenizer._segmenter.offsets(text) == ends  # type: ignore[union-attr]
    assert "".join(tokenizer.symbols(tokenizer.encode(text))) == "a<0xC3><0xA9><0xF0><0x9F><0x98><0x80>b"


def test_bpe_dropout_is_that_of_the_merges() -> None:
    tokenizer, texts = trained("byte-bpe"), ["the lowest cats sat", "Über naïve façade"]
    assert tokenizer.encode_with_dropout(texts, 0.0, (1,), [0, 1]) == tokenizer.encode_batch(texts)
    broken = tokenizer.encode_with_dropout(texts, 0.5, (1,), [0, 1])
    assert broken == tokenizer.encode_with_dropout(texts, 0.5, (1,), [0, 1]) != tokenizer.encode_batch(texts)
    assert [tokenizer.decode(row) for row in broken] == texts
    with pytest.raises(ConfigError, match="expected kind 'bpe' or 'byte-bpe', found 'unigram'"):
        trained("unigram", 150).encode_with_dropout(texts, 0.5, (1,), [0, 1])
    with pytest.raises(ValueError, match=r"needs tokenizer\.kind = 'bpe' or 'byte-bpe', found 'wordpiece'"):
        PairTokenizerConfig(kind="wordpiece", bpe_dropout=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_language_tags_follow_the_vocabulary(kind: str) -> None:
    pairs = Pairs(corpus(), corpus(), "corpus")
    tokenizers = Tokenizers.train(pairs, PairTokenizerConfig.model_validate({"kind": kind, "vocab_size": 300}), ["de", "fr"])
    tokenizer = Tokenizers.from_bytes(tokenizers.to_bytes()).source
    assert tokenizer.language_prefix("fr") == [tokenizer.vocab_size - 1] and tokenizer.symbols([tokenizer.vocab_size - 1]) == ["<2fr>"]
    assert tokenizer.decode([*tokenizer.language_prefix("de"), *tokenizer.encode("the cat")]).strip() == "the cat"
    assert set(tokenizer.tag_tokens) <= set(tokenizer.never_generated) and not set(tokenizer.tag_tokens) & set(tokenizer.maskable)
    first, second, *_ = describe_vocabularies(tokenizers)
    assert first.startswith(f"both sides: {kind}, ") and second.startswith("  special tokens: pad [PAD], ")


def test_a_vocabulary_too_small_is_refused() -> None:
    for kind, least in (("byte-bpe", 259), ("wordpiece", 6), ("unigram", 5)):
        config = TokenizerConfig.model_construct(kind=kind, vocab_size=least - 1, lowercase=False)
        with pytest.raises(ConfigError, match=f"expected at least {least} for kind '{kind}' .*raise it"):
            Tokenizer.train(corpus(), config)


def test_a_pretrained_tokenizer_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "published.json").write_text(BUILDERS["llama3"]().to_str())
    config = TokenizerConfig(kind="pretrained", file="published.json", special_tokens=SpecialTokenNames(eos_token="<|eot_id|>"))
    tokenizer = Tokenizer.train([], config, folder=tmp_path)
    assert tokenizer.kind == "pretrained" and tokenizer.symbols([tokenizer.special_tokens.end]) == ["<|eot_id|>"]
    for fields, message in (
        ({"kind": "pretrained"}, "needs tokenizer.file"),
        ({"special_tokens": {"pad_token": "x"}}, "need tokenizer.kind = 'pretrained', found 'bpe'"),
        ({"file": "x"}, "need tokenizer.kind = 'pretrained', found 'bpe'"),
        ({"kind": "pretrained", "file": "x", "lowercase": True}, "expected false for kind 'pretrained'"),
        ({"kind": "pretrained", "file": "x", "joint": False}, "expected true for kind 'pretrained'"),
    ):
        with pytest.raises(ValueError, match=message):
            PairTokenizerConfig.model_validate(fields)
    for file, special, message in (
        ("missing.json", {}, "missing.json: cannot be read: No such file"),
        ("published.json", {"eos_token": "</s>"}, "expected a token of the vocabulary as eos_token, found '</s>'"),
    ):
        with pytest.raises(CheckpointError, match=rf"tokenizer\.file: .*{message}"):
            Tokenizer.train([], TokenizerConfig(kind="pretrained", file=file, special_tokens=SpecialTokenNames(**special)), folder=tmp_path)


def _state(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BUILDERS[name]().to_str())
    return found


def _with(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            state = state[int(parent) if parent.isdecimal() else parent]
        state[int(last) if isinstance(state, list) else last] = value(state[last]) if callable(value) else value

    return change


_SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * (MAX_GROWTH + 1)}
_QUADRUPLE = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}] * 4}
_INSERT = {"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": "a"}
_TRIE = base64.b64encode((8).to_bytes(4, "little") + b"\xff" * 4 + b"\x45\x23\x01\0" + b"\0").decode()
_LONG = base64.b64encode((1024).to_bytes(4, "little") + bytes(1024) + b"x" * 1000 + b"\0").decode()


def _charsmap(value: bytes) -> dict[str, Any]:
    """Return the normalizer that replaces the letter a."""
    units = [0] * 512
    units[0], units[256 ^ ord("a")], units[300] = 256 << 10, ord("a") | 1 << 8 | (256 ^ ord("a") ^ 300) << 10, 2**31
    content = struct.pack("<513I", 2048, *units) + value + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


HOSTILE: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    (
        "gpt2",
        _with("model.vocab", lambda vocab: vocab | {"huge": 2**31}),
        "the id 2147483648 of token 'huge' in a vocabulary, in place of 0 to 999,999",
    ),
    ("gpt2", _with("model.vocab", lambda vocab: vocab | {"same": 5}), "the id 5 twice"),
    ("gpt2", _with("model.vocab", lambda vocab: vocab | {"a" * 1001: 9000}), "a token of more than 1,000 characters"),
    ("gpt2", _with("model.vocab", lambda vocab: vocab | {"x1": True}), "the id True of token 'x1'"),
    ("gpt2", _with("model.vocab", []), "a vocabulary of 0 tokens"),
    ("gpt2", _with("model.merges", lambda merges: [*merges, ["a", "missing"]]), "'a' \\+ 'missing'.* that is not in the vocabulary"),
    ("gpt2", _with("model.merges", lambda merges: [*merges, merges[0]]), "a merge twice"),
    ("gpt2", _with("model.merges", [["a"]]), "as merge 1, in place of two pieces"),
    ("gpt2", _with("model.merges", {"a": 1}), "in place of a list of at most 1,000,000 merges"),
    ("gpt2", _with("model.dropout", 0.1), "model.dropout = 0.1 in place of 0 .encoding must be reproducible"),
    ("gpt2", _with("model.type", "Other"), "a model of type 'Other' in place of BPE, WordPiece, WordLevel, Unigram"),
    ("gpt2", _with("added_tokens.0.id", 3), "the id 3 of the added token '<|endoftext|>', whose id is "),
    ("gpt2", _with("added_tokens.0.id", 5000), "the id 5000 of the added token '<|endoftext|>', whose id is "),
    ("gpt2", _with("added_tokens.0.content", ""), "without a content of 1 to 1,000 characters"),
    ("gpt2", _with("added_tokens", lambda added: [*added, *added]), "as added token, twice"),
    ("gpt2", _with("pre_tokenizer", _SPLIT), "a repeated group"),
    ("gpt2", _with("pre_tokenizer", _SPLIT | {"pattern": {"String": ""}}), "in place of a pattern with a String or a Regex"),
    ("gpt2", _with("pre_tokenizer", _SPLIT | {"pattern": {"Regex": "[a"}}), "an open class"),
    (
        "gpt2",
        _with("pre_tokenizer", {"type": "Sequence", "pretokenizers": [_SPLIT | {"type": "Whitespace"}] * 101}),
        "a pre_tokenizer with a sequence of more than 100 parts",
    ),
    ("gpt2", _with("pre_tokenizer", {"type": "FixedLength", "length": 0}), "pre_tokenizer.length = 0 in place of a number from 1 to 1,000"),
    ("gpt2", _with("pre_tokenizer", {"type": "Unknown"}), "a pre_tokenizer of type 'Unknown'"),
    ("gpt2", _with("normalizer", _DOUBLE), "lengthen a text more than 32 times"),
    ("gpt2", _with("normalizer", _QUADRUPLE), "lengthen a text more than 32 times"),
    ("gpt2", _with("normalizer", _sequence(*[_INSERT] * 12)), "a normalizer that may lengthen a text more than 2,048 times"),
    ("gpt2", _with("normalizer", _sequence(*[{"type": "ByteLevel"}] * 5)), "a normalizer that may lengthen a text more than 2,048 times"),
    ("gpt2", _with("normalizer", _sequence(*[_charsmap(b"b" * 32)] * 3)), "a normalizer that may lengthen a text more than 2,048 times"),
    ("gpt2", _with("normalizer", _charsmap(b"b" * 33)), "a character rule that lengthens a text more than 32 times"),
    ("gpt2", _with("normalizer", _charsmap(b"\xff")), "a character rule that is not UTF-8"),
    ("gpt2", _with("pre_tokenizer", {"type": "Sequence", "pretokenizers": [_BYTES] * 5}), "a pre_tokenizer that may lengthen a text"),
    ("gpt2", _with("normalizer", _sequence(_sequence(_sequence(_sequence(_sequence()))))), "more than 4 nested sequences"),
    ("gpt2", _with("normalizer", {"type": "Sequence", "normalizers": [None]}), "None in place of a normalizer with a type"),
    ("gpt2", _with("decoder", {"type": "Strip", "content": "a", "start": 2**40, "stop": 0}), "in place of a number from 0 to 65,536"),
    ("gpt2", _with("model.unk_token", "missing"), "the unknown token 'missing', which is not in the vocabulary"),
    ("gpt2", _with("post_processor", {"type": "TemplateProcessing", "single": [0] * 101}), "in place of a list of at most 100 parts"),
    ("gpt2", _with("normalizer", {"type": "Prepend", "prepend": "a" * 1001}), "in place of a text of at most 1,000 characters"),
    ("gpt2", _with("decoder", _DOUBLE), "a decoder with replacements that lengthen"),
    ("bert", _with("model.unk_token", "missing"), "the unknown token 'missing', which is not in the vocabulary"),
    ("bert", _with("model.max_input_chars_per_word", 10**9), "max_input_chars_per_word = 1000000000 in place of a number from 1 to 500"),
    ("t5", _with("model.vocab.5", ["piece", float("nan")]), "the score nan of piece 5 .'piece'"),
    ("t5", _with("model.vocab.5", ["piece", -1e300]), "the score -1e.300"),
    ("t5", _with("model.vocab", lambda vocab: [*vocab, vocab[7]]), "twice, empty"),
    ("t5", _with("model.unk_id", 10**9), "unk_id = 1000000000 of "),
    ("t5", _with("normalizer", {"type": "Precompiled", "precompiled_charsmap": _TRIE}), "an index outside their table"),
    ("t5", _with("normalizer", {"type": "Precompiled", "precompiled_charsmap": _LONG}), "a result of 1,000 bytes"),
    ("t5", _with("normalizer", {"type": "Precompiled", "precompiled_charsmap": "A" * 2**21}), "character rules of 1,572,864 bytes"),
    ("t5", _with("normalizer", {"type": "Precompiled", "precompiled_charsmap": "?"}), "in place of character rules in base64"),
]


@pytest.mark.parametrize(("name", "change", "message"), HOSTILE, ids=lambda each: each if isinstance(each, str) else "")
def test_a_hostile_file_is_refused_in_one_line(name: str, change: Callable[[dict[str, Any]], None], message: str) -> None:
    state = _state(name)
    change(state)
    with pytest.raises(CheckpointError, match=message) as found:
        LibraryTokenizer(state)
    assert "\n" not in str(found.value)


FORMS: dict[str, Callable[[dict[str, Any]], None]] = {
    "scripts": _with("pre_tokenizer", {"type": "UnicodeScripts"}),
    "old punctuation": _with("pre_tokenizer", {"type": "Punctuation"}),
    "delimiter": _with("pre_tokenizer", {"type": "CharDelimiterSplit", "delimiter": " "}),
    "lengths": _with("pre_tokenizer", {"type": "FixedLength", "length": 5}),
    "old lengths": _with("pre_tokenizer", {"type": "FixedLength"}),
    "ctc": _with("decoder", {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}),
    "rules": _with("normalizer", _charsmap(b"b")),
    "no type": lambda state: state["model"].pop("type"),
    "merges as strings": _with("model.merges", lambda merges: [" ".join(merge) for merge in merges]),
    "a gap": _with("model.vocab", lambda vocab: vocab | {"\u3042": 900}),
}


@pytest.mark.parametrize("name", FORMS)
def test_rare_and_older_forms_are_read(name: str) -> None:
    state = _state("gpt2") | {"added_tokens": []}
    FORMS[name](state)
    read = LibraryTokenizer(state)
    assert read.encode_batch(["the cat"]) == [Library.from_str(json.dumps(state | {"model": read.state["model"]})).encode("the cat").ids]
    assert read.state["model"]["type"] == "BPE" and read.state["model"]["merges"] == _state("gpt2")["model"]["merges"]


def test_added_tokens_have_the_ids_of_the_library() -> None:
    draw, n_read = random.Random(1), 0
    names = [f"<{n}>" for n in range(8)]
    for _ in range(300):
        ids = draw.sample(range(12), k=draw.randint(1, 8))
        vocab = dict(zip(draw.sample(names, k=len(ids)), ids, strict=True))
        contents = draw.sample(names, k=draw.randint(1, 4))
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        state = {"version": "1.0", "model": {"type": "WordLevel", "vocab": vocab, "unk_token": next(iter(vocab))}}
        state["added_tokens"] = [{"id": 0, "content": content, **flags} for content in contents]
        library = Library.from_str(json.dumps(state))
        for token in state["added_tokens"]:
            token["id"] = library.token_to_id(token["content"])
        found = library.get_vocab(with_added_tokens=True)
        if len({*found.values()}) == len(found):
            assert check_added_tokens(state["added_tokens"], vocab) == found
            n_read += 1
        else:
            with pytest.raises(ValueError, match="which another token has"):
                check_added_tokens(state["added_tokens"], vocab)
    assert 200 < n_read < 300


def test_another_id_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom.data.tokenizer.library_tokenizer.check_state", lambda state: None)
    state = _state("gpt2")
    state["added_tokens"][0]["id"] = 5000
    with pytest.raises(CheckpointError, match=r"found another id of '<.endoftext.>'"):
        LibraryTokenizer(state)


@pytest.mark.long
@pytest.mark.parametrize("name", ["NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "ByteLevel"])
def test_no_character_grows_more_than_assumed(name: str) -> None:
    normalizer = getattr(normalizers, name)()
    longest = max(len(normalizer.normalize_str(chr(code))) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    assert longest <= GROWTH.get(name, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model": NaN}', "expected JSON, found damaged content"),
        ('{"model": ' + "9" * 50 + "}", "expected JSON, found damaged content"),
        ("[" * 100, "expected JSON, found damaged content"),
        ("[" * 2_000_000, "expected at most 1,065,536 merges, found 2,000,000"),
        ('{"model": "\\ud800"}', "expected JSON, found damaged content"),
        ("[]", "in place of a table with a model"),
    ],
    ids=["NaN", "digits", "depth", "lists", "surrogate", "list"],
)
def test_a_damaged_json_is_refused(content: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as found:
        Tokenizer.from_library(content)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with("special_tokens.eos_token_id", MAX_VOCAB_SIZE), "expected ids or null"),
        (_with("special_tokens.eos_token_id", 900), "expected ids of the vocabulary, found 900"),
        (_with("special_tokens.template.prefix", ["x"]), "expected templates with prefix"),
        (_with("special_tokens.template.second_type", 7), "expected templates with prefix"),
        (_with("special_tokens", None), "special_tokens: expected the fields"),
        (_with("vocab_size", 3), "vocab_size: expected at least 433"),
        (_with("vocab_size", "3"), "expected a number as vocab_size, found '3'"),
    ],
)
def test_damaged_roles_are_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    value = Tokenizer.from_library(BUILDERS["gpt2"]().to_str()).to_dict() | {"vocab_size": 500}
    change(value)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_dict(value)


def test_unknown_roles_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"expected roles pad_token, .*, found 'end_token'"):
        Tokenizer.from_library(BUILDERS["gpt2"]().to_str(), {"end_token": "<|endoftext|>"})
