"""Build the JSON of a ``tokenizers`` tokenizer from the older files of tokenizers: vocabularies, merges and SentencePiece models.

Facts about each class of the transformers library, version 5, are in one table per kind of file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transom.data.tokenizer.library_state import check_ids
from transom.exchange.tokenizer.library_json import Json, added_token, sequence, template
from transom.exchange.tokenizer.sentencepiece_convert import ConvertedModel, convert_sentencepiece
from transom.exchange.tokenizer.sentencepiece_model import SentencePieceModel
from transom.files.limits import MAX_VOCAB_SIZE

QWEN_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Pre-tokenization pattern of Qwen 2 and 3."""

_END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class TokenizerClass:
    """Class of the transformers library.

    Attributes:
        files: kind of file that the class reads: ``merges``, ``words`` or ``sentencepiece``.
        roles: special token by role, unless a file names another.
    """

    files: str
    roles: Mapping[str, str] = field(default_factory=dict)


_XLM = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_LLAMA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
CLASSES: dict[str, TokenizerClass] = {
    "GPT2Tokenizer": TokenizerClass("merges", dict.fromkeys(("bos", "eos", "unk"), _END_OF_TEXT)),
    "Qwen2Tokenizer": TokenizerClass("merges", dict.fromkeys(("eos", "unk", "pad"), _END_OF_TEXT)),
    "RobertaTokenizer": TokenizerClass("merges", _XLM),
    "BertTokenizer": TokenizerClass("words", _BERT),
    "T5Tokenizer": TokenizerClass("sentencepiece", {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}),
    "LlamaTokenizer": TokenizerClass("sentencepiece", _LLAMA),
    "GemmaTokenizer": TokenizerClass("sentencepiece", {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}),
    "XLMRobertaTokenizer": TokenizerClass("sentencepiece", _XLM),
    "MarianTokenizer": TokenizerClass("sentencepiece", {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}),
}
"""Classes whose files are read without a ``tokenizer.json``."""

SAME_CLASSES = {
    "BartTokenizer": "RobertaTokenizer",
    "CodeGenTokenizer": "GPT2Tokenizer",
    "DistilBertTokenizer": "BertTokenizer",
    "ElectraTokenizer": "BertTokenizer",
    "MistralTokenizer": "LlamaTokenizer",
}
CLASS_OF_MODEL = {
    "bart": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "codegen": "GPT2Tokenizer",
    "distilbert": "BertTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "llama": "LlamaTokenizer",
    "marian": "MarianTokenizer",
    "mistral": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer",
    "phi": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
    "t5": "T5Tokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""Class by ``model_type`` of ``config.json``, where no file names the class."""


def merges_tokenizer(name: str, vocab: Any, merges: str, config: Mapping[str, Any], roles: Mapping[str, str]) -> Json:
    """Return a tokenizer of byte-level merges, from ``vocab.json`` and ``merges.txt``.

    Args:
        name: class of the tokenizer.
        vocab: content of ``vocab.json``.
        merges: content of ``merges.txt``: a line per merge, after a line with the version.
        config: content of ``tokenizer_config.json``.
        roles: special token by role.

    Raises:
        ValueError: a file has another form. The message is a noun phrase.
    """
    ids = check_ids(vocab, "vocab.json")
    lines = [line for line in merges.split("\n") if line.strip() and not line.startswith("#version")]
    pairs = [line.rstrip("\r").split(" ") for line in lines]
    prefix = config.get("add_prefix_space") is True
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": name != "Qwen2Tokenizer"}
    split = {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False}
    is_qwen = name == "Qwen2Tokenizer"
    model: Json = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": ids,
        "merges": pairs,
    }
    post: Json | None = None
    if name == "RobertaTokenizer":
        post = _around(roles["cls"], roles["sep"], ids, double=True)
    return library_json(
        model,
        normalizer={"type": "NFC"} if is_qwen else None,
        pre_tokenizer=sequence("pretokenizers", [split, byte_level]) if is_qwen else byte_level,
        post_processor=post,
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    )


def words_tokenizer(vocab: str, config: Mapping[str, Any], roles: Mapping[str, str]) -> Json:
    """Return a WordPiece tokenizer of BERT, from ``vocab.txt``.

    Args:
        vocab: content of ``vocab.txt``: a token per line, in the order of their ids.
        config: content of ``tokenizer_config.json``.
        roles: special token by role.

    Raises:
        ValueError: a file has another form. The message is a noun phrase.
    """
    lines = vocab.removesuffix("\n").split("\n")
    if len(lines) > MAX_VOCAB_SIZE:
        raise ValueError(f"a vocab.txt of {len(lines):,} tokens")
    ids = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    if len(ids) < len(lines):
        raise ValueError("a token twice in vocab.txt")
    flags = {name: config.get(name, default) for name, default in (("do_lower_case", True), ("tokenize_chinese_chars", True))}
    strip_accents = config.get("strip_accents")
    if not all(isinstance(flag, bool) for flag in flags.values()) or not isinstance(strip_accents, bool | None):
        raise ValueError("options of BERT that are neither true nor false")
    model: Json = {
        "type": "WordPiece",
        "unk_token": roles["unk"],
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": ids,
    }
    normalizer: Json = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": flags["tokenize_chinese_chars"],
        "strip_accents": strip_accents,
        "lowercase": flags["do_lower_case"],
    }
    return library_json(
        model,
        normalizer=normalizer,
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_around(roles["cls"], roles["sep"], ids, double=False),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )


def _around(first: str, last: str, ids: Mapping[str, int], double: bool) -> Json | None:
    """Return the template of BERT, or the one of RoBERTa, which has two separators between two texts and one type."""
    if missing := [token for token in (first, last) if token not in ids]:
        raise ValueError(f"no token {missing[0]!r:.60} to surround a text")
    single: list[str | int] = [first, 0, last]
    return template(single, [*([last] if double else []), 1, last], ids, one_type=double)


def sentencepiece_tokenizer(
    name: str, model: SentencePieceModel, file: str, config: Mapping[str, Any], roles: Mapping[str, str]
) -> ConvertedModel:
    """Return the tokenizer of a class that reads a SentencePiece model.

    Args:
        name: class of the tokenizer.
        model: the model.
        file: name of its file, for messages.
        config: content of ``tokenizer_config.json``.
        roles: special token by role.

    Raises:
        CheckpointError: the library cannot express the model.
        ValueError: an option has another form. The message is a noun phrase.
    """
    pieces = [piece.text for piece in model.pieces]
    if name == "T5Tokenizer":
        n_extra = config.get("extra_ids", 100)
        if type(n_extra) is not int or not 0 <= n_extra <= 10_000:
            raise ValueError(f"extra_ids = {n_extra!r:.40}")
        sentinels = [token for number in reversed(range(n_extra)) if (token := f"<extra_id_{number}>") not in pieces]
        ids = {token: number for number, token in enumerate([*pieces, *sentinels])}
        converted = convert_sentencepiece(model, file, ids)
        _finish(converted.library, ids, sentinels, (0, roles["eos"]), (1, roles["eos"]))
        return converted
    if name == "XLMRobertaTokenizer":
        first = [roles[role] for role in ("bos", "pad", "eos", "unk")]
        ids = {token: number for number, token in enumerate([*first, *(piece for piece in pieces[3:] if piece not in first)])}
        ids.setdefault(roles["mask"], len(ids))
        converted = convert_sentencepiece(model, file, ids, roles["unk"])
        start, end = roles["bos"], roles["eos"]
        _finish(converted.library, ids, [start, roles["pad"], end, roles["mask"]], (start, 0, end), (end, 1, end))
        return converted
    return convert_sentencepiece(model, file)


def marian_tokenizer(model: SentencePieceModel, file: str, vocab: Any, roles: Mapping[str, str]) -> ConvertedModel:
    """Return the tokenizer of one side of a Marian model, whose ids are those of ``vocab.json``.

    Language codes such as ``>>de<<`` are recognized anywhere in a text. The transformers library reads them, and unknown ones, at its
    start only.

    Args:
        model: the SentencePiece model of the side.
        file: name of its file, for messages.
        vocab: content of ``vocab.json``.
        roles: special token by role.

    Raises:
        CheckpointError: the library cannot express the model.
        ValueError: the vocabulary has another form. The message is a noun phrase.
    """
    ids = check_ids(vocab, "vocab.json")
    converted = convert_sentencepiece(model, file, ids, roles["unk"])
    special = [token for token in dict.fromkeys(roles.values()) if token in ids]
    end = roles["eos"]
    _finish(converted.library, ids, special, (0, end), (1, end))
    known = {piece.text for piece in model.pieces}
    codes = [token for token in ids if token.startswith(">>") and token.endswith("<<") and token not in known]
    _add(converted.library, ids, codes, special=False)
    return converted


def begin_end_template(config: Mapping[str, Any], roles: Mapping[str, str], ids: Mapping[str, int]) -> Json | None:
    """Return the template of a class without one of its own: start and end tokens as ``tokenizer_config.json`` says.

    Args:
        config: content of ``tokenizer_config.json``.
        roles: special token by role.
        ids: token ids.
    """
    before = [roles["bos"]] if config.get("add_bos_token") is True and "bos" in roles else []
    after = [roles["eos"]] if config.get("add_eos_token") is True and "eos" in roles else []
    return template([*before, 0, *after], [*before, 1, *after], ids)


def _finish(
    library: Json, ids: Mapping[str, int], special: Sequence[str], single: Sequence[str | int], second: Sequence[str | int]
) -> None:
    """Add special tokens and the template to a converted model."""
    if missing := [part for part in single if isinstance(part, str) and part not in ids]:
        raise ValueError(f"no token {missing[0]!r:.60} to surround a text")
    _add(library, ids, special, special=True)
    library["post_processor"] = template(single, second, ids, one_type=True)


def _add(library: Json, ids: Mapping[str, int], tokens: Sequence[str], special: bool) -> None:
    """Add tokens whose ids the model has, and name them in its vocabulary as they are written in texts."""
    listed: Any = library["added_tokens"]
    vocab: Any = library["model"]
    for token in tokens:
        if vocab["type"] == "Unigram":
            vocab["vocab"][ids[token]][0] = token
        elif token not in vocab["vocab"]:
            vocab["vocab"] = {token if number == ids[token] else text: number for text, number in vocab["vocab"].items()}
        if token not in {each["content"] for each in listed}:
            listed.append(added_token(ids[token], token, special=special))
    listed.sort(key=lambda each: each["id"])


def library_json(model: Json, **parts: Json | None) -> Json:
    """Return a whole tokenizer without added tokens.

    Args:
        model: the model.
        parts: ``normalizer``, ``pre_tokenizer``, ``post_processor`` and ``decoder``.
    """
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], **parts, "model": model}
