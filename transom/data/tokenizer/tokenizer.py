"""Tokenizers, which convert text to token ids and back, and the file ``tokenizer.json``, which stores them.

A vocabulary is a list of symbols, which are pieces of text. A token id is the index of a symbol in this list.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transom.config.data import LANGUAGE_TAG, PairTokenizerConfig, TokenizerConfig
from transom.config.suggestions import suggest
from transom.data.pairs.pairs import Pairs
from transom.data.text.text_io import expand_path
from transom.data.tokenizer.bpe import BytePairEncoding
from transom.data.tokenizer.char_word_tokenizer import CharacterVocabulary, ClosedVocabulary, WordVocabulary
from transom.data.tokenizer.library_roles import ROLES
from transom.data.tokenizer.library_tokenizer import LibraryTokenizer
from transom.data.tokenizer.library_training import TRAINERS
from transom.data.tokenizer.special_tokens import MASK, SpecialTokens
from transom.errors import CheckpointError, ConfigError, DataError
from transom.files.limits import MAX_TOKENIZER_BYTES, MAX_TOKENIZER_LISTS, MAX_TOKENIZER_STRINGS
from transom.files.regular_files import parse_json, read_regular_file

FORMAT_VERSION, LIBRARY_FORMAT_VERSION = 1, 2
"""Versions of ``tokenizer.json``: with tokenizers of transom's own kinds only, and with those of the tokenizers library."""

_OWN_KINDS: dict[str, type[BytePairEncoding] | type[ClosedVocabulary]] = {
    "bpe": BytePairEncoding,
    "char": CharacterVocabulary,
    "whitespace": WordVocabulary,
}
LIBRARY_KINDS = (*TRAINERS, "pretrained")
"""Kinds that wrap a tokenizer of the ``tokenizers`` library."""

_KINDS = (*_OWN_KINDS, *LIBRARY_KINDS)


class Tokenizer:
    """Tokenizer of one side, such as the source or the target.

    Its special tokens have ids of their own. The tags of the target languages follow all symbols.

    Attributes:
        special_tokens: ids of the special tokens, and the templates that surround texts with them.
        lowercase: True if text is converted to lower case before it is encoded.
        kind: "bpe", "char", "whitespace", "byte-bpe", "wordpiece", "unigram" or "pretrained", as in a recipe.
        tags: tags of the target languages of a multilingual model. Empty for a model with one target language.
    """

    def __init__(
        self, symbols: BytePairEncoding | ClosedVocabulary | LibraryTokenizer, lowercase: bool = False, tags: Sequence[str] = ()
    ) -> None:
        self._segmenter, self.kind, self.tags = symbols, symbols.kind, tuple(tags)
        self.lowercase = symbols.lowercase if isinstance(symbols, LibraryTokenizer) else lowercase
        self.special_tokens: SpecialTokens = symbols.special_tokens
        self._symbols = [*symbols.symbols, *(f"<2{tag}>" for tag in self.tags)]

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig, tags: Sequence[str] = (), folder: Path = Path()) -> "Tokenizer":
        """Learn a vocabulary from texts, whose order does not matter, or read a pretrained tokenizer.

        Args:
            texts: sentences.
            config: kind of tokenizer, vocabulary size and treatment of case.
            tags: tags of the target languages, each of which becomes a token.
            folder: folder that the file of a pretrained tokenizer is relative to.

        Raises:
            ConfigError: the vocabulary size is too small for the kind.
            CheckpointError: the file of a pretrained tokenizer cannot be read or used.
        """
        if config.kind == "pretrained":
            assert config.file is not None
            return cls(_read_pretrained(folder / expand_path(config.file), config.special_tokens.given), tags=tags)
        if config.kind in TRAINERS:
            return cls(TRAINERS[config.kind](texts, config.vocab_size, config.lowercase), tags=tags)
        if config.lowercase:
            texts = map(str.lower, texts)
        return cls(_OWN_KINDS[config.kind].train(texts, config.vocab_size), config.lowercase, tags)

    @classmethod
    def from_library(
        cls, state: str | bytes, special_tokens: Mapping[str, str | int | None] | None = None, vocab_size: int | None = None
    ) -> "Tokenizer":
        """Wrap a tokenizer of the ``tokenizers`` library.

        Args:
            state: its JSON state, the content of its ``tokenizer.json``.
            special_tokens: contents or ids of special tokens by role, as in a ``tokenizer_config.json``: ``eos_token`` or
                ``eos_token_id``, also for pad, bos, unk, mask, sep, cls and decoder_start. None for a role that no token has. Missing roles
                are found by usual contents such as ``</s>``; the templates around texts are those of its post-processor.
            vocab_size: number of ids, if a model has embedding rows for more than the tokenizer has tokens.

        Raises:
            CheckpointError: the state is too large, damaged or harmful, or a special token does not exist.
        """
        content = state.encode() if isinstance(state, str) else state
        return cls(LibraryTokenizer(_parse(content, "tokenizer"), special_tokens, vocab_size=vocab_size))

    def with_other_ends(self, tokens: Sequence[int]) -> "Tokenizer":
        """Return this tokenizer of the ``tokenizers`` library with further tokens that end a text.

        Raises:
            ConfigError: the tokenizer is of another kind.
        """
        state, special = self.to_library(), replace(self.special_tokens, other_end_token_ids=tuple(tokens))
        return Tokenizer(LibraryTokenizer(state, special, self.kind, len(self._segmenter.symbols)), tags=self.tags)

    def to_library(self) -> dict[str, Any]:
        """Return the state of a tokenizer of the ``tokenizers`` library as JSON values.

        Raises:
            ConfigError: the tokenizer is of another kind.
        """
        if not isinstance(self._segmenter, LibraryTokenizer):
            raise ConfigError(f"expected a tokenizer of kind {', '.join(LIBRARY_KINDS)}, found {self.kind!r}; choose another run")
        return self._segmenter.state

    @property
    def vocab_size(self) -> int:
        """Number of token ids, including special tokens and language tags."""
        return len(self._symbols)

    @property
    def tag_tokens(self) -> range:
        """Token ids of the language tags, which follow the ids of all symbols. No text is encoded as a language tag."""
        return range(len(self._segmenter.symbols), self.vocab_size)

    @property
    def mask_token_id(self) -> int:
        """Id of the mask token, which is in the vocabulary or else follows it."""
        inside = self.special_tokens.mask_token_id
        return self.vocab_size if inside is None else inside

    @cached_property
    def blank_token_id(self) -> int:
        """Token that replaces others in blank noising: the unknown token, the mask token, the NUL character or padding, if it exists."""
        special = self.special_tokens
        named = next((token for token in (special.unk_token_id, special.mask_token_id) if token is not None), None)
        return named if named is not None else next(reversed(self.encode("\0")), special.padding)

    @cached_property
    def never_masked(self) -> frozenset[int]:
        """Ids that no masking or noising may replace: special tokens and language tags."""
        return self.special_tokens.ids | self._segmenter.reserved | {self.blank_token_id, *self.tag_tokens}

    @cached_property
    def maskable(self) -> list[int]:
        """Ids of the tokens of texts, in ascending order."""
        return [token for token in range(self.vocab_size) if token not in self.never_masked]

    @cached_property
    def never_generated(self) -> list[int]:
        """Ids that no decoder may generate: padding, tokens that only start a sequence, and language tags."""
        return [*self.special_tokens.never_in_target, *self._segmenter.unused, *self.tag_tokens]

    def is_special(self, token: int) -> bool:
        """Return whether a token stands for no text: a special token or a language tag."""
        return token in self.special_tokens.ids or token in self._segmenter.reserved or token in self.tag_tokens

    @property
    def spaces_in_tokens(self) -> bool:
        """True if the first token of a word contains the space before the word."""
        return self._segmenter.spaces_in_tokens

    @property
    def space_before_words(self) -> str:
        """Text to prepend to a word that is encoded alone as it would be within a sentence: a space, unless the tokenizer adds it."""
        return self._segmenter.space_before_words

    def language_prefix(self, to: str | None) -> list[int]:
        """Return the token ids to prepend to a source, which specify the target language.

        The result is the tag of the target language (Johnson et al. 2017, section 3), or empty for a model with one target language.

        Args:
            to: tag of the target language. None for a model with one target language.

        Raises:
            ConfigError: the tag is missing or unknown, or the model has only one target language and a tag is given.
        """
        if to in self.tags:
            return [self.tag_tokens[self.tags.index(to)]]
        if not self.tags and to is None:
            return []
        if not self.tags:
            raise ConfigError(f"expected no target language, because the model has only one, found {to!r}; remove --to (to=)")
        if to is None:
            raise ConfigError(f"expected a target language, found none; name one of {', '.join(self.tags)} by --to (to=)")
        raise ConfigError(f"expected one of the target languages {', '.join(self.tags)}, found {to!r}; {suggest(to, self.tags)}")

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without start-of-sequence and end-of-sequence tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without start-of-sequence and end-of-sequence tokens.

        Raises:
            DataError: a text contains half a surrogate pair.
        """
        return self._segmenter.encode_batch(self._normalize(texts))

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Return the token ids of a text in which contents such as ``</s>`` or ``<|endoftext|>`` stand for the special tokens.

        Only for texts that a program composes, such as a chat template: a text of a user could otherwise end the prompt.

        Raises:
            ConfigError: the tokenizer is of a kind whose special tokens no text can produce.
            DataError: a text contains half a surrogate pair.
        """
        if not isinstance(self._segmenter, LibraryTokenizer):
            raise ConfigError(f"expected a tokenizer of kind {', '.join(LIBRARY_KINDS)}, found {self.kind!r}; use encode")
        return self._segmenter.encode_batch(self._normalize([text]), special_tokens_in_text=True)[0]

    def count_part_tokens(self, parts: Sequence[str], tokens: Sequence[int]) -> list[int]:
        """Count the tokens of a text that start in each of its consecutive parts. No word may span two parts.

        Args:
            parts: the parts, which together are the text.
            tokens: token ids of the text, as ``encode`` returns them.
        """
        return self._segmenter.count_part_tokens(self._normalize(parts), tokens)

    def encode_with_dropout(self, texts: Sequence[str], p: float, key: tuple[int, ...], samples: Sequence[int]) -> list[list[int]]:
        """Return the token ids of each text under BPE-dropout; see ``MergeDropout``.

        Args:
            texts: sentences.
            p: probability of skipping a merge.
            key: integers such as seed, epoch and side.
            samples: index of each text in its data set. Key and index determine the random numbers of the text.

        Raises:
            ConfigError: the tokenizer has no merges, because its kind is not "bpe".
            DataError: a text contains half a surrogate pair.
        """
        return self._segmenter.encode_with_dropout(self._normalize(texts), p, key, samples)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids, skipping special tokens except the unknown token, and language tags."""
        n_of_text, no_text = len(self._segmenter.symbols), self.special_tokens.no_text
        return self._segmenter.decode(token for token in tokens if token not in no_text and token < n_of_text)

    def decode_continuation(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text that ``tokens`` append to the text of ``before``, including the space between both if there is one."""
        return self.decode([*before, *tokens])[len(self.decode(before)) :]

    def symbols(self, tokens: Iterable[int]) -> list[str]:
        """Return the symbol of each token id in printed form, with ``▁`` in place of spaces, and ``[MASK]`` for a mask token."""
        return [MASK if token == self.mask_token_id else self._symbols[token].replace(" ", "▁") for token in tokens]

    def starts_word(self, tokens: Sequence[int]) -> list[bool]:
        """Return for each token whether it starts a whitespace-separated word. Each special token is a word of its own."""
        starts, alone = [], True
        for token in tokens:
            special = token in self.special_tokens.no_text or token in self.tag_tokens
            starts.append(alone or special or self._segmenter.starts_word(token))
            alone = special
        return starts

    def to_dict(self) -> dict[str, Any]:
        """Return the state of the tokenizer as JSON values."""
        tags = {"tags": list(self.tags)} if self.tags else {}
        return {"kind": self.kind, "lowercase": self.lowercase, **tags, **self._segmenter.to_dict()}

    @classmethod
    def from_dict(cls, value: object) -> "Tokenizer":
        """Rebuild the tokenizer from the result of ``to_dict``.

        Raises:
            CheckpointError: the value has another form.
        """
        if not isinstance(value, dict) or value.get("kind") not in _KINDS or not isinstance(value.get("lowercase"), bool):
            raise CheckpointError(f"expected a tokenizer with a kind ({', '.join(_KINDS)}) and lowercase (true or false)")
        tags = value.get("tags", [])
        if (
            not isinstance(tags, list)
            or not all(isinstance(tag, str) and LANGUAGE_TAG.fullmatch(tag) for tag in tags)
            or len(set(tags)) < len(tags)
        ):
            raise CheckpointError("expected distinct tags of letters, digits, - and _")
        segmenter = LibraryTokenizer if value["kind"] in LIBRARY_KINDS else _OWN_KINDS[value["kind"]]
        return cls(segmenter.from_dict(value), value["lowercase"], tags)

    def _normalize(self, texts: Sequence[str]) -> list[str]:
        try:
            "\n".join(texts).encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"expected Unicode text, found half a surrogate pair: {error.object[error.start : error.end]!a}; remove it"
            ) from error
        lowers = self.lowercase and not isinstance(self._segmenter, LibraryTokenizer)  # whose normalizer does it
        return [text.lower() for text in texts] if lowers else list(texts)


class Tokenizers:
    """Tokenizers of source and target, which are the same tokenizer if the vocabulary is joint."""

    def __init__(self, source: Tokenizer, target: Tokenizer | None = None) -> None:
        """Store the tokenizers of both sides. If ``target`` is None, both sides share the source tokenizer."""
        self.source, self.target = source, target or source

    @property
    def joint(self) -> bool:
        """True if source and target share one vocabulary."""
        return self.source is self.target

    @classmethod
    def train(cls, pairs: Pairs, config: PairTokenizerConfig, tags: Sequence[str] = (), folder: Path = Path()) -> "Tokenizers":
        """Learn one joint vocabulary or two vocabularies from training pairs.

        Args:
            pairs: training pairs of all target languages.
            config: kind of tokenizer, vocabulary size, treatment of case, and whether the vocabulary is joint.
            tags: tags of the target languages of a multilingual model.
            folder: folder that the file of a pretrained tokenizer is relative to.

        Raises:
            ConfigError: the vocabulary size is too small for the kind.
            CheckpointError: the file of a pretrained tokenizer cannot be read or used.
        """
        if config.joint:
            return cls(Tokenizer.train(pairs.source + pairs.target, config, tags, folder))
        return cls(Tokenizer.train(pairs.source, config, tags, folder), Tokenizer.train(pairs.target, config, folder=folder))

    def to_bytes(self) -> bytes:
        """Return the tokenizers as the content of ``tokenizer.json``.

        Raises:
            DataError: the content is so large that ``from_bytes`` would refuse it.
        """
        is_own = self.source.kind in _OWN_KINDS and self.target.kind in _OWN_KINDS
        value = {"format_version": FORMAT_VERSION if is_own else LIBRARY_FORMAT_VERSION, "source": self.source.to_dict()}
        if not self.joint:
            value["target"] = self.target.to_dict()
        content = (json.dumps(value, ensure_ascii=False) + "\n").encode()
        if too_large := _too_large(content):
            raise DataError(f"tokenizer: {too_large}; lower tokenizer.vocab_size, or split the long words of the training text")
        return content

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer.json") -> "Tokenizers":
        """Rebuild tokenizers from the content of ``tokenizer.json``.

        Args:
            content: content of the file.
            name: name of the file, for messages.

        Raises:
            CheckpointError: the content is too large or damaged, or was written by another program or version.
        """
        value = _parse(content, name)
        version = value.get("format_version") if isinstance(value, dict) else None
        if version not in (FORMAT_VERSION, LIBRARY_FORMAT_VERSION) or isinstance(version, bool):
            raise CheckpointError(f"{name}: expected a transom tokenizer with format_version {FORMAT_VERSION}, found {version!r:.50}")
        try:
            source = Tokenizer.from_dict(value.get("source"))
            return cls(source, Tokenizer.from_dict(value["target"]) if "target" in value else None)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}; copy the file from the run folder again") from error

    def save(self, path: str | Path) -> None:
        """Write the tokenizers to a file such as ``tokenizer.json``. The write is not atomic."""
        Path(path).write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizers":
        """Read tokenizers from a file such as ``tokenizer.json``.

        Raises:
            CheckpointError: the file is missing, too large or damaged, or was written by another program or version.
        """
        path = Path(path)
        try:
            return cls.from_bytes(read_regular_file(path, MAX_TOKENIZER_BYTES, "a tokenizer", CheckpointError), str(path))
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}; name a complete run folder") from error


def _parse(content: bytes, name: str) -> Any:
    """Return the JSON values of a file after a check of its size.

    Raises:
        CheckpointError: the content is too large or damaged.
    """
    if too_large := _too_large(content):
        raise CheckpointError(f"{name}: {too_large}; check that this is a tokenizer")
    try:
        value = parse_json(content)
        if b"\\u" in content:  # only an escape can produce half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:
        raise CheckpointError(f"{name}: expected JSON, found damaged content ({error}); copy the file from the run folder again") from error
    return value


def _read_pretrained(path: Path, special_tokens: Mapping[str, str]) -> LibraryTokenizer:
    """Read the ``tokenizer.json`` of another program.

    Raises:
        CheckpointError: the file is missing, too large, damaged or harmful, or a special token does not exist.
    """
    try:
        content = read_regular_file(path, MAX_TOKENIZER_BYTES, "a tokenizer", CheckpointError)
    except OSError as error:
        raise CheckpointError(f"tokenizer.file: {path}: cannot be read: {error.strerror}; name a tokenizer.json") from error
    try:
        return LibraryTokenizer(_parse(content, str(path)), special_tokens)
    except CheckpointError as error:
        raise CheckpointError(f"tokenizer.file: {path}: {error}; name the tokenizer.json of a published model") from error


def _too_large(content: bytes) -> str | None:
    """Return a message about the limit that the content of a file exceeds, or None.

    Brackets and quotes are counted, even inside strings, to bound the memory of parsing before it starts.
    """
    n_lists, n_strings = content.count(b"[") + content.count(b"{"), content.count(b'"') // 2
    for found, maximum, what in (
        (len(content), MAX_TOKENIZER_BYTES, "bytes"),
        (n_lists, MAX_TOKENIZER_LISTS, "merges"),
        (n_strings, MAX_TOKENIZER_STRINGS, "symbols"),
    ):
        if found > maximum:
            return f"expected at most {maximum:,} {what}, found {found:,}"
    return None


def describe_vocabularies(tokenizers: Tokenizers) -> list[str]:
    """Return lines of text that describe the vocabularies of both sides."""
    sides = [("both sides", tokenizers.source)] if tokenizers.joint else [("source", tokenizers.source), ("target", tokenizers.target)]
    lines = []
    for name, tokenizer in sides:
        case = ", lower-cased" if tokenizer.lowercase else ""
        tags = f", target languages {', '.join(tokenizer.tags)}" if tokenizer.tags else ""
        lines.append(f"{name}: {tokenizer.kind}, {tokenizer.vocab_size:,} symbols{case}{tags}")
        if tokenizer.kind in LIBRARY_KINDS:
            lines.append(f"  special tokens: {', '.join(_describe_special_tokens(tokenizer))}")
        longest = sorted(
            (token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_tokens.no_text),
            key=lambda n: len(tokenizer.decode([n])),
            reverse=True,
        )[:5]
        lines.append(f"  longest: {' '.join(tokenizer.symbols(longest))}")
    return lines


def _describe_special_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the role and symbol of each special token, and what surrounds a text."""
    special, around = tokenizer.special_tokens, tokenizer.special_tokens.template
    roles = {role: getattr(special, f"{role}_token_id") for role in ROLES}
    named = [f"{role.replace('_', ' ')} {tokenizer.symbols([token])[0]}" for role, token in roles.items() if token is not None]
    return [*named, f"a text {' '.join([*tokenizer.symbols(around.prefix), 'TEXT', *tokenizer.symbols(around.suffix)])}"]
