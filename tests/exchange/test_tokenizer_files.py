"""The files of a run's tokenizer give the ids and texts of transom in the tokenizers and in the transformers library."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from transformers import AutoTokenizer

from tests.data.test_bpe import SENTENCES
from tests.exchange.random_texts import ASSIGNED, NAMES, random_texts
from transom.config.data import PairTokenizerConfig
from transom.config.model import DecoderConfig
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer.library_state import check_state
from transom.data.tokenizer.special_tokens import EOS, MASK, PAD, SOS, UNK
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.errors import ConfigError, TransomError
from transom.exchange.check_export import check_token_ids
from transom.exchange.tokenizer.tokenizer_exchange import tokenizer_files
from transom.exchange.tokenizer.tokenizer_files import export_tokenizer, export_tokenizers

CASES = [(kind, lowercase) for kind in ("bpe", "char", "whitespace") for lowercase in (False, True)]
TASKS = ("translation", "language", "instruction", "classification", "tagging", "embedding", "masked")
DECODER = DecoderConfig(vocab_size=400, max_seq_len=48)
N_FIRST, N_LONG = 300, 10_000


@cache
def trained(kind: Any, lowercase: bool, tags: tuple[str, ...] = ()) -> Tokenizer:
    return Tokenizer.train(SENTENCES, PairTokenizerConfig(kind=kind, vocab_size=400, lowercase=lowercase), tags)


def load(folder: Path, files: dict[str, bytes]) -> tuple[Library, Any]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Library.from_file(str(folder / "tokenizer.json")), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("n", [N_FIRST, pytest.param(N_LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize(("kind", "lowercase"), CASES)
def test_ids_and_texts_are_transoms(kind: str, lowercase: bool, n: int, tmp_path: Path) -> None:
    tokenizer = trained(kind, lowercase, ("de", "es"))
    library, auto = load(tmp_path, export_tokenizer(tokenizer.to_dict(), "translation", 10**6))
    texts = random_texts(1, n, SENTENCES, ASSIGNED)
    expected = tokenizer.encode_batch(texts)
    assert [encoding.ids for encoding in library.encode_batch(texts, add_special_tokens=False)] == expected
    assert auto(texts)["input_ids"] == [[*ids, EOS] for ids in expected]
    for ids in expected:
        row, text = [*ids, EOS, PAD], tokenizer.decode(ids)
        assert auto.decode([*tokenizer.tag_tokens, *row], skip_special_tokens=True) == tokenizer.decode(
            [token for token in ids if kind == "bpe" or token != UNK]
        )
        shown = " ".join(filter(None, [text, "[EOS]", "[PAD]"])) if kind == "whitespace" else f"{text}[EOS][PAD]"
        assert library.decode(row, skip_special_tokens=False) == auto.decode(row) == shown and library.decode(ids) == text


@settings(max_examples=50)
@given(st.text())
def test_any_text_has_the_same_ids(text: str) -> None:
    for kind, _ in CASES[::2]:
        assert library_of(kind).encode(text, add_special_tokens=False).ids == trained(kind, False).encode(text)


@cache
def library_of(kind: str) -> Library:
    return Library.from_str(export_tokenizer(trained(kind, False).to_dict(), "language", 10)["tokenizer.json"].decode())


@pytest.mark.parametrize(("kind", "lowercase"), CASES)
def test_special_tokens_and_settings(kind: str, lowercase: bool, tmp_path: Path) -> None:
    tokenizer = trained(kind, lowercase, ("de", "es"))
    _, auto = load(tmp_path, export_tokenizer(tokenizer.to_dict(), "translation", 128))
    assert (auto.pad_token_id, auto.bos_token_id, auto.eos_token_id) == (PAD, SOS, EOS)
    assert auto.unk_token_id == (None if kind == "bpe" else UNK)
    assert auto.convert_tokens_to_ids(["<2de>", "<2es>"]) == list(tokenizer.tag_tokens)
    assert len(auto) == tokenizer.vocab_size and auto.model_max_length == 128 and auto.padding_side == "right"
    batch = auto(["a", "a b c"], padding=True)
    assert batch["attention_mask"][0] == [int(token != PAD) for token in batch["input_ids"][0]] and PAD in batch["input_ids"][0]
    assert set(batch) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("task", TASKS)
def test_templates_are_the_input_of_each_task(task: str, tmp_path: Path) -> None:
    tokenizer = trained("bpe", False)
    _, auto = load(tmp_path, export_tokenizer(tokenizer.to_dict(), task, 128))
    ids = tokenizer.encode("two dogs")
    expected = {"translation": [*ids, EOS], "instruction": [EOS, *ids, SOS]}.get(task, [EOS, *ids])
    assert auto("two dogs")["input_ids"] == expected
    assert auto("two dogs", "two dogs")["input_ids"] == 2 * expected
    generates = task in ("language", "instruction")
    assert auto.padding_side == ("left" if generates else "right") and auto.bos_token_id == (EOS if generates else SOS)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["byte-bpe", "wordpiece", "unigram"])
def test_a_trained_tokenizer_of_the_library_surrounds_texts_as_its_model_reads_them(kind: str, task: str, tmp_path: Path) -> None:
    tokenizer = trained(kind, False)
    _, auto = load(tmp_path, tokenizer_files(Tokenizers(tokenizer), DECODER, task, None))
    hostile = [] if task == "masked" or kind == "unigram" else ["two [EOS] [SEP] dogs"]  # Unigram matches its pieces in texts
    for text in ("two dogs", *hostile):
        ids = tokenizer.encode(text)
        if kind == "wordpiece":
            expected = [2, *ids] if task == "language" else [2, *ids, 3]
        else:
            expected = {"translation": [*ids, EOS], "instruction": [EOS, *ids, SOS]}.get(task, [EOS, *ids])
        assert auto(text)["input_ids"] == expected
        assert auto.decode(expected, skip_special_tokens=True) == tokenizer.decode(ids)
    assert auto.model_max_length == DECODER.max_seq_len and auto.padding_side == (
        "left" if task in ("language", "instruction") else "right"
    )
    start = {"wordpiece": 2}.get(kind, EOS) if task in ("language", "instruction") else {"wordpiece": None}.get(kind, SOS)
    assert auto.bos_token_id == start


def test_an_export_whose_token_ids_differ_is_found(tmp_path: Path) -> None:
    tokenizer = trained("byte-bpe", False)
    load(tmp_path, tokenizer_files(Tokenizers(tokenizer), DECODER, "language", None))
    check_token_ids(tokenizer, "language", tmp_path)
    with pytest.raises(TransomError, match=r"expected the token ids \[.*, 2\] of 'The cat sat on the mat.', found \[2, .* report it"):
        check_token_ids(tokenizer, "translation", tmp_path)


def encode_masked(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text with masks, as ``MaskFiller.encode`` does, which needs a model otherwise."""
    split: Any = MaskFiller._pieces
    first, *others = split(SimpleNamespace(tokenizer=tokenizer), text) if MASK in text else [tokenizer.encode(text)]
    return [EOS, *first, *(token for piece in others for token in (tokenizer.vocab_size, *piece))]


@pytest.mark.parametrize(("kind", "lowercase"), CASES)
def test_masks_are_recognized_as_transom_does(kind: str, lowercase: bool, tmp_path: Path) -> None:
    tokenizer = trained(kind, lowercase)
    _, auto = load(tmp_path, export_tokenizer(tokenizer.to_dict(), "masked", 10**6))
    assert auto.mask_token_id == tokenizer.vocab_size
    texts = [text for text in random_texts(2, 300, SENTENCES, ASSIGNED) if not any(name in text for name in NAMES)]
    texts += ["A man [MASK] a dog", "[MASK]", "[MASK] [MASK]dogs", "x [MASK]", *(f"Two{text.strip()} {MASK} {text}" for text in texts)]
    for text in texts:
        assert auto(text)["input_ids"] == encode_masked(tokenizer, text)


def test_words_that_equal_special_tokens_stay_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_dict(
        {"kind": "whitespace", "lowercase": False, "units": ["[EOS]", "a", "[UNK]", "x[PAD]", "<2de>"], "tags": ["de"]}
    )
    library, auto = load(tmp_path, export_tokenizer(tokenizer.to_dict(), "translation", 128))
    text = "[EOS] a [UNK] x[PAD] <2de> [PAD] [EOS]a [SOS]"
    ids = tokenizer.encode(text)
    assert ids == [4, 5, 6, 7, 8, UNK, UNK, UNK]
    assert library.encode(text, add_special_tokens=False).ids == ids and auto(text)["input_ids"] == [*ids, EOS]
    assert library.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids)


def test_words_that_the_library_cannot_tell_apart_are_refused() -> None:
    value = {"kind": "whitespace", "lowercase": False, "units": ["[EOS]", "\ufdd0[EOS]"]}
    with pytest.raises(ConfigError, match=r'tokenizer\.kind: expected words that differ .* train with tokenizer\.kind = "bpe"'):
        export_tokenizer(value, "translation", 128)


def test_two_vocabularies_are_refused() -> None:
    pairs = Pairs(SENTENCES, SENTENCES, "made up")
    separate, joint = (Tokenizers.train(pairs, PairTokenizerConfig(kind="char", vocab_size=99, joint=joint)) for joint in (False, True))
    with pytest.raises(ConfigError, match=r"tokenizer\.joint: .* train with tokenizer\.joint = true"):
        export_tokenizers(separate, "translation", 128)
    assert export_tokenizers(joint, "translation", 128) == export_tokenizer(joint.source.to_dict(), "translation", 128)


@pytest.mark.parametrize(("kind", "lowercase"), CASES)
def test_exported_files_pass_the_checks_of_imported_ones(kind: str, lowercase: bool) -> None:
    tokenizer = trained(kind, lowercase, ("de", "es"))
    files = export_tokenizer(tokenizer.to_dict(), "masked", 128)
    ids = check_state(json.loads(files["tokenizer.json"]), gaps=False)
    assert sorted(ids.values()) == list(range(tokenizer.vocab_size + 1)) and ids[MASK] == tokenizer.vocab_size


@pytest.mark.long
def test_sentencepiece_is_not_needed(tmp_path: Path) -> None:
    load(tmp_path, export_tokenizer(trained("bpe", False).to_dict(), "language", 128))
    script = (
        "import sys; sys.modules['sentencepiece'] = None\n"
        "from transformers import AutoTokenizer\n"
        "print(AutoTokenizer.from_pretrained(sys.argv[1])('two dogs')['input_ids'])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [EOS, *trained("bpe", False).encode("two dogs")]
