"""Training of the tokenizers of the ``tokenizers`` library, with the same result in every process."""

import json
from collections import Counter
from collections.abc import Callable, Iterable

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from transom.data.tokenizer.library_tokenizer import LibraryTokenizer
from transom.data.tokenizer.special_tokens import CLOSED_TOKENS, EOS, OWN_TOKENS, PAD, SOS, TOKEN_NAMES, UNK, SpecialTokens, Template
from transom.errors import ConfigError
from transom.files.limits import MAX_TOKEN_CHARACTERS

_MIN_FREQUENCY = 2
_SCORE_DIGITS = 9
"""Digits to which Unigram's scores are rounded: the library adds in the order of its threads, which changes the fifteenth."""

_BYTE_BPE_NAMES = [TOKEN_NAMES[token] for token in (PAD, SOS, EOS)]
_UNIGRAM_NAMES = [*_BYTE_BPE_NAMES, TOKEN_NAMES[UNK]]
_BERT_NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_BERT_TEMPLATE = Template((2,), (3,), (3,), 1)
BERT_TOKENS = SpecialTokens(
    pad_token_id=0,
    unk_token_id=1,
    cls_token_id=2,
    sep_token_id=3,
    mask_token_id=4,
    decoder_start_token_id=2,
    template=_BERT_TEMPLATE,
    seq2seq=_BERT_TEMPLATE,
)
"""Special tokens of the kind ``wordpiece``, which are BERT's."""


def train_byte_bpe(texts: Iterable[str], vocab_size: int, lowercase: bool) -> LibraryTokenizer:
    """Train byte-level BPE as in GPT-2 (Radford et al. 2019): no character is unknown, and decoding restores every text exactly.

    Raises:
        ConfigError: the vocabulary size is smaller than that of bytes and special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _require(vocab_size, len(alphabet) + len(_BYTE_BPE_NAMES), "byte-bpe", "256 bytes and 3 special tokens")
    library = Library(models.BPE())
    library.normalizer = normalizers.Lowercase() if lowercase else None
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        initial_alphabet=alphabet,
        special_tokens=_BYTE_BPE_NAMES,
        max_token_length=MAX_TOKEN_CHARACTERS,
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return LibraryTokenizer(json.loads(library.to_str()), OWN_TOKENS, "byte-bpe")


def train_wordpiece(texts: Iterable[str], vocab_size: int, lowercase: bool) -> LibraryTokenizer:
    """Train WordPiece as in BERT (Devlin et al. 2019): words and punctuation, split into pieces such as ``##ing``.

    Unicode is cleaned, and lower-casing strips accents. Decoding restores words with single spaces.

    Raises:
        ConfigError: the vocabulary size leaves no room for pieces.
    """
    _require(vocab_size, len(_BERT_NAMES) + 1, "wordpiece", f"{len(_BERT_NAMES)} special tokens and a piece")
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    texts = list(texts)
    seen = Counter(character for text in texts for character in library.normalizer.normalize_str(text) if not character.isspace())
    room = max((vocab_size - len(_BERT_NAMES)) // 2, 1)
    characters = sorted(sorted(seen, key=lambda character: (-seen[character], character))[:room])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        limit_alphabet=len(characters),
        initial_alphabet=characters,
        special_tokens=[*_BERT_NAMES, *(f"##{character}" for character in characters)],  # a fixed order of all single characters
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    state = json.loads(library.to_str())
    state["added_tokens"] = [each for each in state["added_tokens"] if each["content"] in _BERT_NAMES]
    library = Library.from_str(json.dumps(state))
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return LibraryTokenizer(json.loads(library.to_str()), BERT_TOKENS, "wordpiece")


def train_unigram(texts: Iterable[str], vocab_size: int, lowercase: bool) -> LibraryTokenizer:
    """Train a unigram language model as in SentencePiece (Kudo 2018) and T5: the most probable segmentation into pieces.

    Texts are normalized by NFKC, and runs of spaces become one space. Characters that do not occur in the training texts are unknown.

    Raises:
        ConfigError: the vocabulary size leaves no room for pieces, or the texts contain too many different characters.
    """
    _require(vocab_size, len(_UNIGRAM_NAMES) + 1, "unigram", f"{len(_UNIGRAM_NAMES)} special tokens and a piece")
    library = Library(models.Unigram())
    cased = [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    library.normalizer = normalizers.Sequence([*cased, normalizers.Lowercase()] if lowercase else cased)
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=_UNIGRAM_NAMES, unk_token=TOKEN_NAMES[UNK], max_piece_length=16, show_progress=False
    )
    library.train_from_iterator(texts, trainer)
    state = json.loads(library.to_str())
    n, pieces = len(_UNIGRAM_NAMES), state["model"]["vocab"]
    rounded = [(piece, round(score, _SCORE_DIGITS)) for piece, score in pieces[n:]]
    state["model"]["vocab"] = [*pieces[:n], *map(list, sorted(rounded, key=lambda each: (-each[1], each[0])))]
    return LibraryTokenizer(state, CLOSED_TOKENS, "unigram")


TRAINERS: dict[str, Callable[[Iterable[str], int, bool], LibraryTokenizer]] = {
    "byte-bpe": train_byte_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
}
"""Trainer of each kind."""


def _require(vocab_size: int, least: int, kind: str, what: str) -> None:
    if vocab_size < least:
        raise ConfigError(f"tokenizer.vocab_size: expected at least {least} for kind {kind!r} ({what}), found {vocab_size}; raise it")
