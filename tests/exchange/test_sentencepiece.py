"""SentencePiece models have the ids and texts of SentencePiece itself; ``make_sentencepiece_fixtures.py`` asked it."""

import json
import math
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from transom.data.tokenizer.tokenizer import Tokenizer as TransomTokenizer
from transom.errors import CheckpointError
from transom.exchange.tokenizer.sentencepiece_convert import ConvertedModel, convert_sentencepiece
from transom.exchange.tokenizer.sentencepiece_model import CONTROL, NORMAL, SentencePieceModel, read_sentencepiece
from transom.exchange.tokenizer.sentencepiece_model import UNKNOWN as UNKNOWN_PIECE

FIXTURES = Path(__file__).parent / "sentencepiece"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.model"))
UNKNOWN = " ⁇ "
"""Text of an unknown token in SentencePiece; the library writes the token."""


@cache
def model_of(name: str) -> SentencePieceModel:
    return read_sentencepiece((FIXTURES / f"{name}.model").read_bytes(), name)


@cache
def converted(name: str) -> ConvertedModel:
    return convert_sentencepiece(model_of(name), name)


def library_of(name: str) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(converted(name).library))


def expected_of(name: str) -> list[tuple[str, list[int], str]]:
    return [(text, ids, decoded) for text, ids, decoded in json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))]


def score(name: str, ids: list[int]) -> float:
    pieces = model_of(name).pieces
    return math.fsum(pieces[token].score for token in ids)


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_texts_are_those_of_sentencepiece(name: str) -> None:
    library, pieces = library_of(name), model_of(name).pieces
    n_ties = 0
    for text, ids, decoded in expected_of(name):
        found = library.encode(text).ids
        if found != ids:  # equally probable: SentencePiece decides by the rounding of its sums in float32
            assert model_of(name).kind == "unigram" and sorted(found) == sorted(ids)
            assert all(pieces[token].type == NORMAL for token in {*found} ^ {*ids}) and score(name, found) == score(name, ids)
            n_ties += 1
        unknown = pieces[model_of(name).unk_id].text
        assert library.decode(ids, skip_special_tokens=False).replace(unknown, UNKNOWN) == decoded
    assert n_ties <= 3


@pytest.mark.parametrize("name", NAMES)
def test_a_run_reads_them(name: str) -> None:
    """A run's tokenizer accepts what the conversion wrote; it has the same ids for texts without special tokens."""
    library = library_of(name)
    tokenizer = TransomTokenizer.from_library(json.dumps(converted(name).library))
    special = {piece.text for piece in model_of(name).pieces if piece.type in (CONTROL, UNKNOWN_PIECE)}
    texts = [text for text, _, _ in expected_of(name) if not any(content in text for content in special)]
    assert tokenizer.encode_batch(texts) == [each.ids for each in library.encode_batch(texts)] and len(texts) > 200


def test_the_fixtures_have_every_kind_and_option() -> None:
    models = [model_of(name) for name in NAMES]
    assert {model.kind for model in models} == {"unigram", "bpe"}
    for option in ("byte_fallback", "add_dummy_prefix", "remove_extra_whitespaces"):
        assert {getattr(model, option) for model in models} == {True, False}
    assert {model.charsmap is None for model in models} == {True, False}
    assert len(NAMES) == 10 and all(len(expected_of(name)) == 300 for name in NAMES)


def test_special_tokens_have_their_roles() -> None:
    assert model_of("t5").special_ids == {"unk": 2, "eos": 1, "pad": 0}
    assert model_of("gemma").special_ids == {"unk": 3, "bos": 2, "eos": 1, "pad": 0}
    assert model_of("llama").special_ids == {"unk": 0, "bos": 1, "eos": 2}


def test_control_pieces_are_special_tokens_and_byte_pieces_are_none_in_texts() -> None:
    assert library_of("llama").encode("<s>").ids == [1]
    assert converted("llama").n_tokens == len(model_of("llama").pieces)
    for name in ("llama", "bytes"):
        byte = next(token for token, piece in enumerate(model_of(name).pieces) if piece.text == "<0x41>")
        assert byte not in library_of(name).encode("a <0x41> b<0x41>").ids


def test_a_text_that_is_one_user_defined_symbol_has_no_space_before_it() -> None:
    """The one text that differs: the library normalizes the symbol itself as it does a text."""
    symbol = next(token for token, piece in enumerate(model_of("user").pieces) if piece.text == "<sep>")
    assert library_of("user").encode("<sep>").ids == [symbol]
    assert library_of("user").encode("<sep>a").ids[1] == symbol


def test_ids_of_another_table() -> None:
    model = model_of("unigram")
    tokens = ["</s>", "foreign", *(piece.text for piece in model.pieces if piece.text not in ("</s>", "<s>", "▁house")), "<pad>"]
    ids = {token: number for number, token in enumerate(tokens)}
    other = convert_sentencepiece(model, "model", ids)
    library, own = Tokenizer.from_str(json.dumps(other.library)), library_of("unigram")
    assert other.n_tokens == len(tokens)
    for text in ("der tree foreign", "trees 1984 über", "q der"):
        assert library.encode(text).ids == [ids[model.pieces[token].text] for token in own.encode(text).ids]
    assert max(library.encode("house").ids) >= other.n_tokens, "the piece has no id in the table"
    assert library.decode([ids["foreign"], ids["▁tree"]]) == "foreign tree"


@pytest.mark.parametrize(
    ("ids", "message"),
    [({"<unk>": 0, "a": 2}, "token ids with gaps"), ({"a": 0}, "no id for '<unk>'"), ({"<unk>": 0, "a": 0}, "token ids with gaps")],
)
def test_invalid_tables_are_refused(ids: dict[str, int], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        convert_sentencepiece(model_of("unigram"), "model", ids)
