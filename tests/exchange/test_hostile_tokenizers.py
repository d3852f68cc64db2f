"""Damaged and hostile tokenizers are refused in one line, in bounded time and memory."""

import base64
import copy
import json
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.exchange.test_folder_tokenizer import FOLDERS, write
from tests.exchange.test_sentencepiece import FIXTURES, NAMES, converted
from tests.tiers import every
from transom.data.tokenizer.charsmap import read_charsmap
from transom.data.tokenizer.library_state import check_state
from transom.errors import CheckpointError
from transom.exchange.tokenizer.folder_tokenizer import read_folder_tokenizer
from transom.exchange.tokenizer.protobuf import fields
from transom.exchange.tokenizer.sentencepiece_convert import convert_sentencepiece
from transom.exchange.tokenizer.sentencepiece_model import read_sentencepiece
from transom.files.limits import MAX_ERROR_CHARACTERS

LIBRARY: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": " "}, "behavior": "Isolated", "invert": False},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]], "byte_fallback": False}


def changed(path: str, value: Any, library: dict[str, Any] = LIBRARY) -> dict[str, Any]:
    """Return a copy of a tokenizer in which the value at a path of names is another."""
    *outer, last = path.split(".")
    result = part = copy.deepcopy(library)
    for name in outer:
        part = part[name]
    part[last] = value
    return result


ALTERED = [name for name in NAMES if name != "nfkc"]
HOSTILE: dict[str, tuple[str, Any, str]] = {
    "negative id": ("model.vocab", {"a": -1, "b": 0, "ab": 1}, "the id -1 of token 'a'"),
    "huge id": ("model.vocab", {"a": 2**40, "b": 0, "ab": 1}, "the id 1099511627776"),
    "id that is no integer": ("model.vocab", {"a": 0.5, "b": 0, "ab": 1}, "the id 0.5"),
    "true as id": ("model.vocab", {"a": True, "b": 0, "ab": 2}, "the id True"),
    "colliding ids": ("model.vocab", {"a": 0, "b": 1, "ab": 1}, "the id 1 twice"),
    "missing id": ("model.vocab", {"a": 0, "b": 1, "ab": 3}, "the id 3 of token 'ab'"),
    "no vocabulary": ("model.vocab", {}, "a vocabulary of 0 tokens"),
    "merge that never ends": ("model.merges", [["", "a"]], "as merge 1"),
    "merge of unknown tokens": ("model.merges", [["a", "b"], ["ab", "a"]], "merge 2"),
    "merge of three": ("model.merges", ["a b ab"], "as merge 1"),
    "dropout": ("model.dropout", 0.5, "dropout"),
    "unknown model": ("model.type", "Custom", "a model of type 'Custom'"),
    "no model": ("model", None, "a model of type None"),
    "NaN": ("model", {**UNIGRAM, "vocab": [["<unk>", 0.0], ["a", float("nan")]]}, "the score nan"),
    "infinity": ("model", {**UNIGRAM, "vocab": [["<unk>", 0.0], ["a", float("inf")]]}, "the score inf"),
    "piece twice": ("model", {**UNIGRAM, "vocab": [["a", 0.0], ["a", 0.0]]}, "twice"),
    "unknown id out of range": ("model", {**UNIGRAM, "unk_id": 2}, "unk_id = 2"),
    "no unknown token": ("model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "b"}, "the unknown token 'b'"),
    "exploding expression": ("pre_tokenizer.pattern", {"Regex": "(a+)+$"}, "a repeated group"),
    "exploding normalizer": ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a|a)*b"}, "content": ""}, "a repeated group"),
    "unknown component": ("pre_tokenizer", {"type": "Custom"}, "a pre_tokenizer of type 'Custom'"),
    "deep sequences": ("normalizer", json.loads('{"type": "Sequence", "normalizers": [' * 9 + '{"type": "NFC"}' + "]}" * 9), "sequence"),
    "long sequence": ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 101}, "sequence"),
    "added token with a gap": (
        "added_tokens",
        [{"id": 9, "content": "x", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
        "the id 9 of the added token 'x', whose id is 3",
    ),
    "added token without flags": ("added_tokens", [{"id": 3, "content": "x"}], "single_word"),
    "damaged charsmap": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "!"}, "character rules"),
    "template of unknown token": (
        "post_processor",
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": [7], "tokens": ["x"]}},
        },
        "the id 7 of the token 'x'",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokenizer_json_is_refused(name: str, tmp_path: Path) -> None:
    path, value, message = HOSTILE[name]
    text = json.dumps(changed(path, value))
    refused(write(tmp_path, {"tokenizer.json": text}), "NaN" if name == "NaN" else "Infinity" if name == "infinity" else message)


def refused(folder: Path, message: str) -> None:
    started = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        read_folder_tokenizer(folder)
    line = str(caught.value)
    assert message in line and "expected" in line and "found" in line and "\n" not in line and len(line) < MAX_ERROR_CHARACTERS
    assert time.process_time() - started < 5


def test_scores_that_are_not_finite_are_refused() -> None:
    for score in (float("nan"), float("inf"), -float("inf"), 1e31):
        with pytest.raises(ValueError, match="the score"):
            check_state(changed("model", {**UNIGRAM, "vocab": [["a", score]]}))


CONFIGS: dict[str, tuple[str, Any, str]] = {
    "special token": ("tokenizer_config.json", {"eos_token": 7}, "eos_token = 7"),
    "flags": ("tokenizer_config.json", {"eos_token": {"content": "x", "lstrip": "yes"}}, "flags"),
    "declared id": ("tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": "new"}}}, "whose id is 400"),
    "declared text": ("tokenizer_config.json", {"added_tokens_decoder": {"-1": {"content": "new"}}}, "the id '-1'"),
    "legacy id": ("added_tokens.json", {"new": -4}, "the id -4"),
    "generation id": ("generation_config.json", {"eos_token_id": [1, -2]}, "eos_token_id"),
    "length": ("tokenizer_config.json", {"model_max_length": "x"}, "model_max_length"),
    "chat template": ("tokenizer_config.json", {"chat_template": ["x"] * 9 + [{"name": "default", "template": 5}]}, "chat_template"),
    "list": ("special_tokens_map.json", [], "no JSON object in special_tokens_map.json"),
    "damaged": ("tokenizer_config.json", "{", "damaged JSON in tokenizer_config.json"),
    "surrogate": ("tokenizer_config.json", '{"eos_token": "\\ud800"}', "damaged JSON"),
    "nesting": ("tokenizer_config.json", "[" * 10_000, "damaged JSON"),
    "class": ("tokenizer_config.json", {"tokenizer_class": "Custom"}, "the class 'Custom'"),
    "merges": ("merges.txt", "a b c\n", "as merge 1"),
    "vocabulary": ("vocab.json", {"a": 0, "b": 0}, "the id 0 twice"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_hostile_files_beside_the_vocabulary_are_refused(name: str, tmp_path: Path) -> None:
    file, value, message = CONFIGS[name]
    refused(write(tmp_path, {**FOLDERS["gpt2"], file: value}), message)


@pytest.mark.parametrize(
    ("content", "message"), [("a\na\n", "a token twice"), ("[UNK]\n", "no token '[CLS]'"), ("[CLS]\n[SEP]", "the unknown token")]
)
def test_hostile_words_are_refused(content: str, message: str, tmp_path: Path) -> None:
    refused(write(tmp_path, {**FOLDERS["bert"], "vocab.txt": content}), message)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"tokenizer.json": LIBRARY})
    folder = write(tmp_path / "folder", {})
    (folder / "tokenizer.json").symlink_to(outside / "tokenizer.json")
    refused(folder, "symbolic link to a file outside it")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(folder / "tokenizer.json")
    refused(folder, "expected a file, found none")
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    refused(folder, "found a device or a pipe")


def test_paths_in_files_are_not_followed(tmp_path: Path) -> None:
    config = {
        "vocab_file": "../../secret",
        "tokenizer_file": "/dev/zero",
        "name_or_path": "/",
        "auto_map": {"AutoTokenizer": ["x.Y", None]},
    }
    folder = write(tmp_path, {**FOLDERS["gpt2"], "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", **config}})
    assert read_folder_tokenizer(folder).n_tokens == 400


def test_large_files_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    folder = write(tmp_path, {"tokenizer.json": '{"model": [' + "[]," * 1_200_000 + "[]]}"})
    tracemalloc.start()
    refused(folder, "lists in tokenizer.json")
    assert tracemalloc.get_traced_memory()[1] < 2**26 + 2**24, "the buffer of the file and little else"
    tracemalloc.stop()
    with (folder / "tokenizer.json").open("wb") as file:
        file.truncate(2**27)
    refused(folder, "expected at most 67,108,864 bytes")


def varint(value: int) -> bytes:
    """Return the shortest varint of a number."""
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def message(*parts: tuple[int, int, bytes]) -> bytes:
    """Return fields of a number, a wire type and an encoded value; those with a length get it."""
    return b"".join(varint(number << 3 | wire) + (varint(len(value)) if wire == 2 else b"") + value for number, wire, value in parts)


UNKNOWN_PIECE = (1, 2, message((1, 2, b"<unk>"), (3, 0, b"\x02")))
MODELS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no single piece for unknown characters"),
    "random": (b"\xff" * 40, "an integer of more than 10 bytes"),
    "truncated integer": (b"\x80", "a truncated integer"),
    "truncated field": (b"\x0a\x7f\x01", "a field of 127 bytes"),
    "huge length": (b"\x0a" + b"\xff" * 9 + b"\x01", "a field of 18,446,744,073,709,551,615 bytes"),
    "wrong wire type": (b"\x0b", "the wire type 3"),
    "field number 0": (b"\x00\x00", "the field number 0"),
    "piece as integer": (b"\x08\x01", "the wire type 0 for a piece"),
    "score as integer": (message((1, 2, message((1, 2, b"a"), (2, 0, b"\x01")))), "for the score"),
    "no UTF-8": (message(UNKNOWN_PIECE, (1, 2, message((1, 2, b"\xff")))), "not UTF-8"),
    "NaN": (message(UNKNOWN_PIECE, (1, 2, message((1, 2, b"a"), (2, 5, struct.pack("<f", float("nan")))))), "the score nan"),
    "infinity": (message(UNKNOWN_PIECE, (1, 2, message((1, 2, b"a"), (2, 5, struct.pack("<f", float("inf")))))), "the score inf"),
    "unknown type": (message((1, 2, message((1, 2, b"a"), (3, 0, b"\x09")))), "an unknown type"),
    "piece twice": (message(UNKNOWN_PIECE, (1, 2, message((1, 2, b"a"))), (1, 2, message((1, 2, b"a")))), "the piece 'a' twice"),
    "empty piece": (message(UNKNOWN_PIECE, (1, 2, b"")), "piece 1 of 0 characters"),
    "no piece": (message(UNKNOWN_PIECE), "no piece of text"),
    "words": (message(UNKNOWN_PIECE, (2, 2, message((3, 0, b"\x03")))), "a model of whole words"),
    "suffix": (message(UNKNOWN_PIECE, (2, 2, message((24, 0, b"\x01")))), "treat_whitespace_as_suffix"),
    "bytes": (message(UNKNOWN_PIECE, (2, 2, message((35, 0, b"\x01")))), "byte_fallback without a piece"),
    "denormalizer": (message(UNKNOWN_PIECE, (5, 2, message((2, 2, b"x")))), "rules of denormalization"),
    "charsmap": (message(UNKNOWN_PIECE, (1, 2, message((1, 2, b"a"))), (3, 2, message((2, 2, b"\xff" * 8)))), "character rules"),
}


@pytest.mark.parametrize("name", MODELS)
def test_hostile_sentencepiece_models_are_refused(name: str) -> None:
    content, expected = MODELS[name]
    with pytest.raises(CheckpointError) as caught:
        read_sentencepiece(content, "a.model")
    line = str(caught.value)
    assert expected in line and line.startswith("a.model: expected") and "\n" not in line and len(line) < MAX_ERROR_CHARACTERS


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(content: bytes) -> None:
    only_errors(lambda: list(fields(memoryview(content))), ValueError)
    only_errors(lambda: read_charsmap(content), ValueError)
    only_errors(lambda: read_sentencepiece(content, "a"), CheckpointError)


def only_errors(step: Callable[[], object], error: type[Exception]) -> None:
    """Run a step, which may raise one kind of error only."""
    try:
        step()
    except error:
        return


@pytest.mark.parametrize("name", every(4, ALTERED))
def test_altered_models_are_read_or_refused(name: str) -> None:
    draw, content = random.Random(name), (FIXTURES / f"{name}.model").read_bytes()
    for _ in range(20):
        altered = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            altered[draw.randrange(len(altered))] = draw.randrange(256)
        cut = bytes(altered[: draw.choice([len(altered), draw.randrange(len(altered))])])
        only_errors(lambda cut=cut: load_converted(cut), CheckpointError)  # type: ignore[misc]


def load_converted(content: bytes) -> None:
    """Convert a model and load the result, which the library must accept."""
    library = convert_sentencepiece(read_sentencepiece(content, "a"), "a").library
    check_state(library)
    Tokenizer.from_str(json.dumps(library)).encode("a text")


@pytest.mark.parametrize("name", every(4, ALTERED))
def test_altered_tokenizers_are_accepted_by_the_library_or_refused(name: str) -> None:
    draw, library = random.Random(name), json.loads(json.dumps(converted(name).library))
    values: list[Any] = [None, -1, 0, 2**70, 1.5, "", "x", True, [], {}, ["a"], {"type": "NFC"}, {"type": "Sequence"}]
    for _ in range(60):
        altered: Any = copy.deepcopy({**library, "model": {**library["model"]}})
        part: Any = altered
        while isinstance(part, dict | list) and part:
            key = draw.choice(list(part)) if isinstance(part, dict) else draw.randrange(len(part))
            if not isinstance(part[key], dict | list) or not part[key] or draw.random() < 0.2:
                part[key] = draw.choice(values)
                break
            part = part[key]
        only_errors(lambda altered=altered: load_checked(altered), ValueError)  # type: ignore[misc]


def load_checked(library: Any) -> None:
    check_state(library)
    Tokenizer.from_str(json.dumps({**library, "truncation": None, "padding": None, "version": "1.0"})).encode("a text")


def test_a_double_array_that_is_a_loop_is_refused() -> None:
    units = [0] * 256
    units[0] = 0
    for byte in range(1, 256):
        units[byte] = byte | (byte << 10)
    with pytest.raises(ValueError, match="character rules that form a loop"):
        read_charsmap(struct.pack("<I", 1024) + struct.pack("<256I", *units) + b"\0")
    assert base64.b64encode(b"") == b""
