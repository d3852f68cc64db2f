"""Folders of the transformers library have the ids of its AutoTokenizer, and of SentencePiece where AutoTokenizer departs from it."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from tests.data.test_bpe import SENTENCES
from tests.exchange.random_texts import random_texts
from tests.exchange.test_sentencepiece import FIXTURES, expected_of, model_of
from transom.exchange.tokenizer.folder_tokenizer import FolderTokenizer, read_folder_tokenizer

Files = dict[str, Any]
"""Content of each file of a folder: text, or a JSON value."""

SPECIAL = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


@cache
def merges(*special: str) -> tuple[dict[str, int], str]:
    """Return the content of vocab.json and merges.txt of a trained byte-level tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in model["merges"])


@cache
def words() -> str:
    """Return the content of vocab.txt of a trained WordPiece tokenizer."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False))
    vocab = tokenizer.get_vocab()
    return "".join(f"{token}\n" for token in sorted(vocab, key=vocab.__getitem__))


def of_merges(model_type: str, *special: str, **files: Any) -> Files:
    vocab, lines = merges(*special)
    return {"vocab.json": vocab, "merges.txt": lines, "config.json": {"model_type": model_type}, **files}


def of_words(model_type: str, config: Files) -> Files:
    return {"vocab.txt": words(), "config.json": {"model_type": model_type}, "tokenizer_config.json": config}


def qwen() -> Files:
    n = len(merges()[0])
    tokens = {str(n + number): {"content": text, **SPECIAL} for number, text in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))}
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "unk_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "added_tokens_decoder": tokens,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "chat_template": "{{ messages }}",
    }
    return of_merges("qwen2", **{"tokenizer_config.json": config})


ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": True}
START_AND_END = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "add_bos_token": True, "add_eos_token": True}
FOLDERS: dict[str, Files] = {
    "gpt2": of_merges("gpt2", "<|endoftext|>"),
    "gpt2-start": of_merges("gpt2", "<|endoftext|>", **{"tokenizer_config.json": {**START_AND_END, "pad_token": "<pad>"}}),
    "phi": of_merges("phi", "<|endoftext|>", **{"added_tokens.json": {"<|tool|>": 400, "  ": 401}}),
    "roberta": of_merges("roberta", *ROBERTA),
    "bart": of_merges("bart", *ROBERTA, **{"special_tokens_map.json": {"mask_token": MASK}}),
    "qwen2": qwen(),
    "bert": of_words("bert", {}),
    "bert-cased": of_words(
        "bert", {"do_lower_case": False, "tokenize_chinese_chars": False, "strip_accents": True, "model_max_length": 512}
    ),
    "distilbert": of_words("distilbert", {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True}),
}


def write(folder: Path, files: Files) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def library_of(tokenizer: FolderTokenizer) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer.library))


@pytest.mark.parametrize("n", [300, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("saved", [False, True], ids=["files", "tokenizer.json"])
@pytest.mark.parametrize("name", FOLDERS)
def test_ids_are_those_of_auto_tokenizer(name: str, saved: bool, n: int, tmp_path: Path) -> None:
    folder = write(tmp_path / "files", FOLDERS[name])
    auto = AutoTokenizer.from_pretrained(folder)
    if saved:
        auto.save_pretrained(tmp_path / "saved")
        shutil.copy(folder / "config.json", tmp_path / "saved")
        folder = tmp_path / "saved"
        assert (folder / "tokenizer.json").exists()
    read = read_folder_tokenizer(folder)
    library, texts = library_of(read), random_texts(3, n, [*SENTENCES, "<|im_end|>", "<|tool|>", "[MASK]", "don't", "漢字"])
    expected = auto(texts)["input_ids"]
    assert [encoding.ids for encoding in library.encode_batch(texts)] == expected
    for ids in expected:
        assert library.decode(ids) == auto.decode(ids, skip_special_tokens=True)
    pairs = list(zip(texts[:100], texts[100:200], strict=True))
    both = auto([left for left, _ in pairs], [right for _, right in pairs], return_token_type_ids=True)
    found = library.encode_batch(pairs)
    assert [encoding.ids for encoding in found] == both["input_ids"]
    assert [encoding.type_ids for encoding in found] == both["token_type_ids"]
    check_fields(read, auto)


def check_fields(read: FolderTokenizer, auto: Any) -> None:
    expected = {role.removesuffix("_token"): text for role, text in auto.special_tokens_map.items() if role.endswith("_token")}
    assert {role: token.text for role, token in read.special.items()} == expected
    assert all(token.id == auto.convert_tokens_to_ids(token.text) for token in read.special.values())
    assert read.n_tokens == len(auto) and read.target_library is None
    assert read.padding_side == auto.padding_side
    assert read.max_length == (auto.model_max_length if auto.model_max_length < 2**31 else None)
    assert read.chat_template == auto.chat_template
    for parts, texts in ((read.single, ("dogs",)), (read.pair, ("dogs", "two"))):
        plain = {"AB"[number]: auto(text, add_special_tokens=False)["input_ids"] for number, text in enumerate(texts)}
        built = [token for part in parts for token in ([part.token] if part.text is None else plain[part.text])]
        assert built == auto(*texts)["input_ids"]


FOUND = json.loads((FIXTURES / "folders.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FOUND)
def test_words_of_sentencepiece_folders_have_the_ids_of_auto_tokenizer(name: str, tmp_path: Path) -> None:
    found = FOUND[name]
    folder = write(tmp_path, {file: found[file] for file in ("config.json", "tokenizer_config.json")})
    shutil.copy(FIXTURES / f"{found['model']}.model", folder / found["file"])
    read = read_folder_tokenizer(folder)
    assert read.n_tokens == found["n"]
    library = library_of(read)
    assert [library.encode(text).ids for text, _ in found["texts"]] == [ids for _, ids in found["texts"]]


@pytest.mark.parametrize(("name", "model"), [("t5", "t5"), ("llama", "llama"), ("gemma", "gemma"), ("xlm", "unigram")])
def test_texts_of_sentencepiece_folders_have_the_ids_of_sentencepiece(name: str, model: str, tmp_path: Path) -> None:
    """AutoTokenizer departs from SentencePiece at spaces at the start, at other whitespace and at combining marks."""
    found = FOUND[name]
    folder = write(tmp_path, {file: found[file] for file in ("config.json", "tokenizer_config.json")})
    shutil.copy(FIXTURES / f"{found['model']}.model", folder / found["file"])
    library = library_of(read_folder_tokenizer(folder))
    pieces = [piece.text for piece in model_of(model).pieces]
    for text, ids, _ in expected_of(model):
        tokens = [library.token_to_id(pieces[token]) for token in ids]
        assert library.encode(text, add_special_tokens=False).ids == tokens


@pytest.mark.parametrize("side", ["source", "target"])
def test_marian_folders_have_the_ids_of_auto_tokenizer(side: str, tmp_path: Path) -> None:
    expected = json.loads((FIXTURES / "marian.json").read_text(encoding="utf-8"))
    folder = write(tmp_path, {"vocab.json": expected["vocab"], "config.json": {"model_type": "marian"}})
    shutil.copy(FIXTURES / "unigram.model", folder / "source.spm")
    shutil.copy(FIXTURES / "t5.model", folder / "target.spm")
    read = read_folder_tokenizer(folder)
    library = Tokenizer.from_str(json.dumps(read.library if side == "source" else read.target_library))
    assert read.n_tokens == len(expected["vocab"]) and {role: token.id for role, token in read.special.items()} == {
        role: expected["vocab"][token] for role, token in (("eos", "</s>"), ("unk", "<unk>"), ("pad", "<pad>"))
    }
    differing = []
    for text, ids, decoded in expected[side]:
        found = [token if token < read.n_tokens else read.special["unk"].id for token in library.encode(text).ids]
        if found != ids:
            differing.append(text)
        assert library.decode(ids).strip() == decoded
    assert differing == [">>fr<< house", "house >>de<<"], "Marian reads any language code, and only at the start of a text"


def test_files_beside_the_tokenizer(tmp_path: Path) -> None:
    generation = {"bos_token_id": 0, "eos_token_id": [1, 2], "pad_token_id": None, "decoder_start_token_id": 3}
    files = {**FOLDERS["gpt2"], "generation_config.json": generation, "chat_template.jinja": "{{ 1 / 0 }}", "other.bin": "x"}
    read = read_folder_tokenizer(write(tmp_path, files))
    assert read.generation_ids == {"bos": (0,), "eos": (1, 2), "decoder_start": (3,)}
    assert read.chat_template == "{{ 1 / 0 }}"
    assert read.files == ("generation_config.json", "chat_template.jinja", "vocab.json", "merges.txt")
