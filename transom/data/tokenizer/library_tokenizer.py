"""Tokenizers of the ``tokenizers`` library: byte-level BPE, WordPiece and Unigram, trained by a recipe or published."""

import copy
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from typing import Any

import tokenizers

from transom.data.tokenizer.bpe_dropout import MergeDropout
from transom.data.tokenizer.library_roles import ROLES, find_special_tokens
from transom.data.tokenizer.library_state import MAX_PARTS, check_state, parts_of
from transom.data.tokenizer.special_tokens import SpecialTokens, Template
from transom.errors import CheckpointError, ConfigError
from transom.files.limits import MAX_VOCAB_SIZE

_GUARD = "\ufdd0\ufdd1\ufdd0"
"""Noncharacters that no text is encoded with; they precede the contents of special tokens while texts are encoded."""

_PROBE = ("", " ", "a b", "\0\n\t<0x41>\u00c4\ufb03\u4e00\U0001f600 '" + "ab" * 40)
"""Texts that every tokenizer must encode when it is loaded."""


def _byte_characters() -> dict[str, int]:
    """Return the byte of each character by which byte-level BPE writes it (Radford et al. 2019): printable Latin-1 stays as it is."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_CHARACTERS = _byte_characters()


class LibraryTokenizer:
    """A tokenizer of the ``tokenizers`` library with its JSON state.

    In texts of users, nothing becomes a special token: contents such as ``</s>`` are encoded as text, unless ``encode_batch`` is asked
    to read them.

    Attributes:
        kind: value of ``tokenizer.kind`` in a recipe.
        special_tokens: ids of the special tokens, and the templates that use them.
        state: state of the library's tokenizer as JSON values.
        symbols: symbol of each token id as text. Bytes that are not UTF-8 alone are written as ``<0xE4>``.
        lowercase: True if the normalizer converts texts to lower case.
        spaces_in_tokens: True if the first token of a word contains the space before the word.
        space_before_words: what precedes a word that is encoded alone as it would be within a sentence.
        reserved: ids that stand for no text and have no role: further special tokens, and ids without a token.
        unused: ids without a token, which a model may have rows for. Pieces beyond the rows of the model, which Marian's SentencePiece
            models have, are unknown.
    """

    def __init__(
        self,
        state: object,
        special_tokens: SpecialTokens | Mapping[str, str | int | None] | None = None,
        kind: str = "pretrained",
        vocab_size: int | None = None,
    ) -> None:
        """Check a state and build the tokenizer.

        Args:
            state: state of the library's tokenizer as JSON values.
            special_tokens: the special tokens, or what is known of their roles; see ``find_special_tokens``.
            kind: value of ``tokenizer.kind`` in a recipe.
            vocab_size: number of ids, if the model has rows for more than the tokenizer has.

        Raises:
            CheckpointError: the state is damaged, or harmful in a way that ``check_state`` describes.
        """
        checked: Any = copy.deepcopy(state)
        try:
            check_state(checked)
        except ValueError as error:
            raise CheckpointError(f"expected a tokenizer that the tokenizers library can use safely, found {error}") from error
        self.state: dict[str, Any] = checked | {"truncation": None, "padding": None}
        self.kind = kind
        with _library_errors():
            self._library = tokenizers.Tokenizer.from_str(json.dumps(self.state))
        wrong = [each["content"] for each in self.state["added_tokens"] if self._library.token_to_id(each["content"]) != each["id"]]
        if wrong:  # versions of the library differ in the ids of added tokens after a vocabulary with gaps
            raise CheckpointError(f"added_tokens: expected ids in the order of the list, found another id of {wrong[0]!r:.60}")
        with _library_errors():
            self.special_tokens = (
                special_tokens
                if isinstance(special_tokens, SpecialTokens)
                else find_special_tokens(self._library, self.state, special_tokens or {})
            )
            contents = {token: self._library.id_to_token(token) for token in self.special_tokens.ids}
            if missing := [token for token, content in contents.items() if content is None]:
                raise CheckpointError(f"special tokens: expected ids of the vocabulary, found {missing[0]}")
            flagged = {each["content"] for each in self.state["added_tokens"] if each.get("special")}
            self._plain = tokenizers.Tokenizer.from_str(
                json.dumps(_without_special(self.state, flagged.union(filter(None, contents.values()))))
            )
            self._plain.encode_special_tokens = True
            self._plain.encode_batch(list(_PROBE), add_special_tokens=False)
        self._describe(flagged, vocab_size)

    def _describe(self, flagged: set[str], vocab_size: int | None) -> None:
        """Set the attributes that follow from the state."""
        pieces = self._library.get_vocab(with_added_tokens=True)
        most = max(pieces.values()) + 1
        self._unknown = self.special_tokens.unk_token_id
        if not (most if self._unknown is None else 1) <= (n := most if vocab_size is None else vocab_size) <= MAX_VOCAB_SIZE:
            raise CheckpointError(f"vocab_size: expected at least {most:,}, the ids of the tokenizer, found {n:,}")
        self._most = most
        parts = {name: list(parts_of(self.state, name)) for name in ("normalizer", "pre_tokenizer", "decoder")}
        types = {name: {part["type"] for part in of_name} for name, of_name in parts.items()}
        self._byte_level = "ByteLevel" in types["pre_tokenizer"] | types["decoder"]
        self.lowercase = any(part["type"] == "Lowercase" or part.get("lowercase") for part in parts["normalizer"])
        self._added = {each["content"] for each in self.state["added_tokens"]}
        by_id = {number: piece for piece, number in pieces.items()}
        self.symbols = [self._symbol(by_id[token]) if token in by_id else f"<unused{token}>" for token in range(n)]
        self.unused = [token for token in range(n) if token not in by_id]
        flagged_ids = [pieces[content] for content in flagged if pieces[content] < n]
        self.reserved = frozenset([*self.unused, *flagged_ids]) - self.special_tokens.ids
        marks_spaces = any("\u2581" in json.dumps(part, ensure_ascii=False) for of_name in parts.values() for part in of_name)
        self.spaces_in_tokens = self._byte_level or marks_spaces or "Metaspace" in types["pre_tokenizer"]
        adds = [part.get("add_prefix_space") or part.get("prepend_scheme", "never") != "never" for part in parts["pre_tokenizer"]]
        self.space_before_words = "" if any(adds) or "Prepend" in types["normalizer"] else " "
        self._continues = self.state["model"].get("continuing_subword_prefix") or ""

    def _symbol(self, piece: str) -> str:
        """Return the printed form of a piece."""
        if not self._byte_level or piece in self._added or not all(character in BYTE_CHARACTERS for character in piece):
            return piece
        return _printed(bytes(BYTE_CHARACTERS[character] for character in piece))

    def starts_word(self, token: int) -> bool:
        """Return whether a token starts a word. Without spaces in tokens, all but continuations such as ``##ing`` do."""
        symbol = self.symbols[token]
        if self.spaces_in_tokens:
            return symbol[:1].isspace() or symbol.startswith("\u2581")
        return not (self._continues and symbol.startswith(self._continues))

    @classmethod
    def from_dict(cls, value: dict[str, object]) -> "LibraryTokenizer":
        """Rebuild the tokenizer from the result of ``to_dict``.

        Raises:
            CheckpointError: the value has another form.
        """
        vocab_size, kind = value.get("vocab_size"), value.get("kind")
        if vocab_size is not None and (not isinstance(vocab_size, int) or isinstance(vocab_size, bool)):
            raise CheckpointError(f"expected a number as vocab_size, found {vocab_size!r:.60}")
        return cls(value.get("library"), _read_special_tokens(value.get("special_tokens")), str(kind), vocab_size)

    def to_dict(self) -> dict[str, object]:
        """Return the state of the tokenizer as JSON values."""
        special, templates = self.special_tokens, ("template", "seq2seq")
        roles = {f"{role}_token_id": getattr(special, f"{role}_token_id") for role in ROLES}
        around = {name: {key: _plain_value(x) for key, x in vars(getattr(special, name)).items()} for name in templates}
        size = {"vocab_size": len(self.symbols)} if self.unused or self._most > len(self.symbols) else {}
        others = {_OTHER_ENDS: list(special.other_end_token_ids)} if special.other_end_token_ids else {}
        return {"special_tokens": roles | others | around, **size, "library": self.state}

    def encode_batch(self, texts: Sequence[str], special_tokens_in_text: bool = False) -> list[list[int]]:
        """Return the token ids of each text, without the special tokens around it.

        Args:
            texts: the texts.
            special_tokens_in_text: encode contents of special tokens, such as ``</s>``, as these tokens.
        """
        if special_tokens_in_text:
            encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        else:
            encodings = self._plain.encode_batch_fast(list(map(_without_guard, texts)), add_special_tokens=False)
        if self._unknown is None or self._most <= (n := len(self.symbols)):
            return [encoding.ids for encoding in encodings]
        return [[token if token < n else self._unknown for token in encoding.ids] for encoding in encodings]

    def count_part_tokens(self, parts: Sequence[str], tokens: Sequence[int]) -> list[int]:
        """Count the tokens of a text that start in each of its consecutive parts; see ``Tokenizer.count_part_tokens``."""
        ends, counts = list(accumulate(map(len, parts))), [0] * len(parts)
        for start, _ in self.offsets("".join(parts))[: len(tokens)]:
            counts[min(bisect_right(ends, start), len(parts) - 1)] += 1
        return counts

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return where each token of a text starts and ends, in characters. Tokens that share a character share its place."""
        found: list[tuple[int, int]] = self._plain.encode(_without_guard(text), add_special_tokens=False).offsets
        return found

    def encode_with_dropout(self, texts: Sequence[str], p: float, key: tuple[int, ...], samples: Sequence[int]) -> list[list[int]]:
        """Return the token ids of each text under BPE-dropout; see ``MergeDropout``.

        Raises:
            ConfigError: the tokenizer is not a byte-level BPE that was trained by a recipe.
        """
        if self.kind != "byte-bpe":
            raise ConfigError(
                f"tokenizer.bpe_dropout: expected kind 'bpe' or 'byte-bpe', found {self.kind!r}; set tokenizer.bpe_dropout = 0"
            )
        normalizer = self._plain.normalizer
        normalized = texts if normalizer is None else map(normalizer.normalize_str, texts)
        return [self._dropout.encode(text, p, (*key, sample)) for text, sample in zip(normalized, samples, strict=True)]

    @cached_property
    def _dropout(self) -> MergeDropout:
        vocab, merges = self.state["model"]["vocab"], self.state["model"]["merges"]
        ranks = {(vocab[left], vocab[right]): (rank, vocab[left + right]) for rank, (left, right) in enumerate(merges)}

        def pretokenize(text: str) -> list[str]:
            return [word for word, _ in self._plain.pre_tokenizer.pre_tokenize_str(text)]

        return MergeDropout(ranks, pretokenize, lambda word: [vocab[character] for character in word])

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids by the library's decoder. Special tokens, the unknown one included, give no text."""
        n = len(self.symbols)
        text: str = self._library.decode([token for token in tokens if 0 <= token < n], skip_special_tokens=True)
        return text


def _printed(content: bytes) -> str:
    r"""Return bytes as text, with ``<0xE4>`` in place of each byte that is not UTF-8.

    >>> _printed(b"a\xe4b")
    'a<0xE4>b'
    """
    text = content.decode(errors="surrogateescape")
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in text)


def _without_guard(text: str) -> str:
    return text.replace(_GUARD, "\ufffd") if _GUARD in text else text


def _without_special(state: Mapping[str, Any], contents: set[str]) -> dict[str, Any]:
    """Return a state with the same ids, in which no text is encoded as one of some special tokens.

    The models would match these contents in texts, too, such as Unigram the piece ``</s>``. They are therefore renamed, and merges into
    them removed.
    """
    model = dict(state["model"])

    def rename(piece: str) -> str:
        return _GUARD + piece if piece in contents else piece

    if model["type"] == "Unigram":
        model["vocab"] = [[rename(piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {rename(piece): number for piece, number in model["vocab"].items()}
    if model.get("unk_token") is not None:
        model["unk_token"] = rename(model["unk_token"])
    if model["type"] == "BPE":
        model["merges"] = [[a, b] for a, b in model["merges"] if not {a, b, a + b} & contents]
    added = [each | {"content": rename(each["content"]), "special": each["content"] in contents} for each in state["added_tokens"]]
    return {**state, "model": model, "added_tokens": added, "post_processor": None}


_OTHER_ENDS = "other_end_token_ids"


def _plain_value(x: Any) -> Any:
    return list(x) if isinstance(x, tuple) else x


def _read_special_tokens(value: object) -> SpecialTokens:
    """Read special tokens from the result of ``LibraryTokenizer.to_dict``."""
    names = {*(f"{role}_token_id" for role in ROLES), "template", "seq2seq"}
    if not isinstance(value, dict) or set(value) - {_OTHER_ENDS} != names:
        raise CheckpointError(f"special_tokens: expected the fields {', '.join(sorted(names))}")
    others = value.get(_OTHER_ENDS, [])
    if not isinstance(others, list) or len(others) > MAX_PARTS or not all(map(_is_number, others)):
        raise CheckpointError(f"special_tokens.{_OTHER_ENDS}: expected ids, found {others!r:.60}")
    if not all(x is None or _is_number(x) for name, x in value.items() if name.endswith("_id")):
        raise CheckpointError("special_tokens: expected ids or null")
    templates = {name: _read_template(value[name]) for name in ("template", "seq2seq")}
    return SpecialTokens(**value | {_OTHER_ENDS: tuple(others)} | templates)


def _read_template(value: object) -> Template:
    names = ("prefix", "suffix", "separator")
    if (
        not isinstance(value, dict)
        or set(value) != {*names, "second_type"}
        or value["second_type"] not in (0, 1)
        or not all(isinstance(value[name], list) and len(value[name]) <= 8 and all(map(_is_number, value[name])) for name in names)
    ):
        raise CheckpointError(f"special_tokens: expected templates with {', '.join(names)} and second_type")
    prefix, suffix, separator = (tuple(value[name]) for name in names)
    return Template(prefix, suffix, separator, int(value["second_type"]))


def _is_number(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < MAX_VOCAB_SIZE


@contextmanager
def _library_errors() -> Iterator[None]:
    """Turn errors of the library, which has no class for them, into errors of a damaged file."""
    try:
        yield
    except CheckpointError:
        raise
    except BaseException as error:  # a panic of the library is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            found = next(iter(str(error).splitlines()), type(error).__name__)
            raise CheckpointError(f"expected a tokenizer that the tokenizers library can use, found: {found:.200}") from error
        raise
