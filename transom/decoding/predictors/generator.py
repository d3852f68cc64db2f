"""Text generation: continues prompts by sampling, in batches or streamed, and scores given texts."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, TypedDict, Unpack

import torch

from transom.config.decoding import Sampling
from transom.data.batch import LanguageBatch, Sequences
from transom.data.split import text_hash
from transom.data.text.windows import scoring_batches
from transom.data.tokenizer.special import EOS, PAD, SOS, UNK
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.backends.compiled import CompiledLanguageModel
from transom.decoding.inference import Deferred, Tell, deal_out, evaluating, refuse_one, settled, unheard
from transom.decoding.predictors.long_texts import check_too_long
from transom.decoding.predictors.results import Record, Results, described
from transom.decoding.predictors.scores import TextScore
from transom.decoding.search.exits import EarlyExits
from transom.decoding.search.loop import Forbid, Search, search, search_steps, summed_log_p
from transom.decoding.search.roles import Filter, Limits, StepModel
from transom.decoding.search.sampling import Sample
from transom.decoding.search.stopping import StopAt, first_stop
from transom.errors import ConfigError, DataError
from transom.models.network import LanguageNetwork
from transom.planning.precision import Precision

TooLong = Literal["window", "refuse"]
Ending = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Continuation(Record):
    """A generated continuation of a prompt.

    Attributes:
        text: the generated text, without the prompt and the stop string.
        n_tokens: number of sampled tokens.
        ended: "end" for the model's end token, "stop" for a stop string, "length" for ``max_new_tokens``.
        windows: number of times the context was full and generation continued from its last half.
        tokens: the text of each sampled token.
        probabilities: p(token | prompt, previous tokens) of the model, before temperature, truncation and penalties; one per token.
    """

    text: str
    n_tokens: int
    ended: Ending
    windows: int
    tokens: tuple[str, ...] = field(default=(), repr=False, compare=False)
    probabilities: tuple[float, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        """Return the text."""
        return self.text


class Continuations(Results[list[Continuation]]):
    """Continuations of each prompt.

    Attributes:
        exits: early-exit statistics of the call; None without early exit.
    """

    def __init__(self, found: Iterable[list[Continuation]], exits: EarlyExits | None) -> None:
        """Build from the continuations of each prompt."""
        super().__init__(found)
        self.exits = exits


class Options(TypedDict, total=False):
    """Options of text generation. An option that is missing or None uses the setting of the recipe or the default given here.

    Attributes:
        temperature, top_k, top_p, min_p, typical_p: reshape the distribution; see ``config.decoding.Sampling``.
        repetition_penalty, frequency_penalty, presence_penalty: see ``config.decoding.Sampling``.
        exit_threshold: confidence at which a token skips the remaining blocks.
        max_new_tokens: maximum number of generated tokens per text.
        min_new_tokens: minimum number of generated tokens before the end token.
        stop: stop strings.
        seed: random seed of sampling.
        batch_rows: maximum number of texts per batch; default 32.
        too_long: when prompt and text exceed the context window: "window" continues from its last half, "refuse" raises an error.
        name: origin of the prompts, for messages; default "prompt".
        tell: progress callback, called with the number of texts done.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    exit_threshold: float | None
    max_new_tokens: int | None
    min_new_tokens: int | None
    stop: Sequence[str] | None
    seed: int | None
    batch_rows: int | None
    too_long: TooLong | None
    name: str | None
    tell: Tell | None


@dataclass
class _Text:
    """State of one text during generation."""

    prompt: list[int]
    sample: int
    new: list[int] = field(default_factory=list)
    windows: int = 0
    ended: Ending | None = None
    log_p: list[float] = field(default_factory=list)

    def context(self, most: int) -> list[int]:
        """Return the tokens to continue from: all of them, or the last half of the context window if they fill it."""
        tokens = self.prompt + self.new
        return tokens if len(tokens) < most else tokens[-max(most // 2, 1) :]


class Pieces(Iterator[str]):
    """Iterator over the pieces of a text while it is generated.

    Attributes:
        exits: early-exit statistics of the tokens so far; None without early exit.
    """

    def __init__(self, text: _Text, pieces: Iterator[str], exits: EarlyExits | None) -> None:
        """Wrap an iterator of pieces and the generation state that it advances."""
        self._text, self._pieces, self.exits = text, pieces, exits

    def __next__(self) -> str:
        """Return the next piece."""
        return next(self._pieces)

    @property
    def windows(self) -> int:
        """Number of times the context was full and generation continued from its last half."""
        return self._text.windows


class Generator:
    """Generates and scores text with a trained language model and its tokenizer.

    Attributes:
        exits_learned: whether earlier blocks were trained to predict tokens, so that early exit makes sense.
    """

    def __init__(
        self,
        model: LanguageNetwork,
        tokenizer: Tokenizer,
        sampling: Sampling | None = None,
        precision: Precision | None = None,
        searcher: StepModel[Any, Any] | Deferred[StepModel[Any, Any]] | None = None,
        answering: bool = False,
        exits_learned: bool = True,
        origin: str | None = None,
    ) -> None:
        """Build a generator.

        Args:
            model: used as is; ``load`` prepares a model for fast inference.
            tokenizer: the tokenizer of the model.
            sampling: default sampling settings.
            precision: dtype of the matrix products with the reason for the choice, for display.
            searcher: a faster implementation of the decoding steps, perhaps made on first use; defaults to the model itself, which may
                still be in training.
            answering: append the answer token to each prompt, and decode the answer as a text of its own.
            exits_learned: earlier blocks were trained to predict tokens, or this is unknown.
            origin: folder it was loaded from, for ``repr``.
        """
        self.answering, self.exits_learned = answering, exits_learned
        self._given: StepModel[Any, Any] | Deferred[StepModel[Any, Any]] = searcher or model
        self.model, self.tokenizer, self.precision = model, tokenizer, precision
        self.sampling, self.origin = sampling or Sampling(), origin

    def __repr__(self) -> str:
        """Return vocabulary, context window, size, precision and origin on one line."""
        window, n_parameters = self.model.config.max_seq_len, sum(each.numel() for each in self.model.parameters())
        parts = [f"{self.tokenizer.vocab_size:,} {self.tokenizer.kind} tokens", f"context window {window:,}"]
        return described("Generator", parts, n_parameters, None if self.precision is None else self.precision.name, self.origin)

    @property
    def _searcher(self) -> StepModel[Any, Any]:
        return self._given.value if isinstance(self._given, Deferred) else self._given

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of a text, without special tokens."""
        return self.tokenizer.encode(text)

    def text_batch(self, tokens: Sequence[int]) -> tuple[LanguageBatch, list[str]]:
        """Build a batch of one text from its token IDs, for ``inspection.given``."""
        read = Sequences.pad([[EOS, *tokens]])
        return LanguageBatch(read, read.tokens, (0,)), []

    def generate(self, prompts: Sequence[str], **options: Unpack[Options]) -> list[str]:
        """Continue each prompt and return the generated texts, without the prompts.

        Raises:
            ConfigError: an option is invalid.
            DataError: prompt and text exceed the context window and ``too_long`` is "refuse", or ``prompts`` is a single text.
        """
        return [answers[0].text for answers in self.continuations(prompts, 1, **options)]

    def continuations(self, prompts: Sequence[str], n: int = 1, **options: Unpack[Options]) -> Continuations:
        """Sample ``n`` continuations of each prompt.

        The random number of a token depends on the seed, the prompt, the sample index and the position only, not on the rest of the batch.

        Raises:
            ConfigError: an option is invalid.
            DataError: prompt and text exceed the context window and ``too_long`` is "refuse", or ``prompts`` is a single text.
        """
        refuse_one(prompts, "text")
        settings, exits = self._settings(n, options)
        searcher = exits or self._searcher  # made before workers, which have one thread each, need it
        rows = self._prompts(prompts, settings, options)
        texts = [self._text(prompt, row, k) for prompt, row in zip(prompts, rows, strict=True) for k in range(n)]
        tell, n_workers = options.get("tell") or unheard, torch.get_num_threads() if self.model.device.type == "cpu" else 1
        with evaluating(self.model):
            while pending := [text for text in texts if text.ended is None]:
                batches = self._batches(pending, options.get("batch_rows") or 32, n_workers)
                for _ in deal_out(lambda batch: self._extend(searcher, batch, settings), batches, n_workers):
                    tell(sum(text.ended is not None for text in texts), len(texts))
        answers = [self._answer(text, settings) for text in texts]
        return Continuations((answers[i : i + n] for i in range(0, len(answers), n)), exits)

    def stream(self, prompt: str, **options: Unpack[Options]) -> Pieces:
        """Continue a prompt and yield the text in pieces as it is generated.

        A piece is yielded once later tokens cannot change it: it contains whole characters only and no prefix of a stop string.

        Raises:
            ConfigError: an option is invalid.
            DataError: prompt and text exceed the context window and ``too_long`` is "refuse".
        """
        settings, exits = self._settings(1, options)
        text = self._text(prompt, self._prompts([prompt], settings, options)[0], 0)
        return Pieces(text, self._pieces(text, settings, exits), exits)

    def _pieces(self, text: _Text, settings: Sampling, exits: EarlyExits | None) -> Iterator[str]:
        given = 0
        with evaluating(self.model):
            while text.ended is None:
                begun = len(text.new)
                for drawn in self._steps(text, settings, exits):
                    said = self._said(_Text(text.prompt, 0, text.new[:begun] + drawn))
                    sure = _sure(said, settings.stop)
                    if sure > given:
                        yield said[given:sure]
                        given = sure
        rest = self._answer(text, settings).text[given:]
        if rest:
            yield rest

    @torch.inference_mode()
    def score(
        self,
        texts: Sequence[str],
        overlap: int = 0,
        batch_tokens: int = 4096,
        name: str = "text",
        too_long: Literal["window", "truncate", "refuse"] = "window",
        tell: Tell = unheard,
    ) -> list[TextScore]:
        """Compute log p of each text, end token included: sum_t log p(y_t | y_<t), with the context limited to the context window.

        Args:
            texts: each is a separate document.
            overlap: number of tokens of the previous window that every further window of a long text repeats; validation uses 0.
            batch_tokens: maximum tokens per batch, padding included.
            name: origin of the texts, for messages.
            too_long: for a text longer than the context window: score all its "window"s, "truncate" it to the first, or "refuse" it.
            tell: progress callback, called with the number of tokens done.

        Raises:
            ConfigError: the overlap is not smaller than a window, or is given without windows.
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        refuse_one(texts, "text")
        check_too_long(too_long, "window", "truncate", "refuse")
        most = self.model.config.max_seq_len
        if not 0 <= overlap < most:
            raise ConfigError(f"expected an overlap from 0 to {most - 1}, below model.max_seq_len, found {overlap}")
        if overlap and too_long != "window":
            raise ConfigError(f"expected an overlap with too_long = 'window', found {overlap} with {too_long!r}; leave it out")
        rows = self.tokenizer.encode_batch(list(texts))
        longer = [number for number, row in enumerate(rows) if len(row) >= most]
        if longer and too_long == "refuse":
            raise DataError(
                f"{name}: expected at most {most - 1} tokens per text, found {len(rows[longer[0]])} in text {longer[0] + 1};"
                " shorten it, or set too_long to 'window'"
            )
        totals, windows, counts = [0.0] * len(rows), [0] * len(rows), [0] * len(rows)
        whole, cut = [[EOS, *row] for row in rows], too_long == "truncate"
        n_read = sum(min(len(row), most) if cut else len(row) for row in whole)
        with evaluating(self.model):
            for batch, owners, new in scoring_batches(whole, most, overlap, batch_tokens, first_only=cut):
                sums = summed_log_p(self.model, batch.to(self.model.device), new.to(self.model.device))
                for owner, total, count in zip(owners, sums, new.sum(1).tolist(), strict=True):
                    totals[owner] += total
                    counts[owner] += count
                    windows[owner] += 1
                tell(sum(counts), n_read)
        left_out = [len(row) - count for row, count in zip(whole, counts, strict=True)]
        seen = [self.tokenizer.decode(row[:n]) if n <= len(row) else text for text, row, n in zip(texts, rows, counts, strict=True)]
        unknown = [sum(token == UNK for token in row) if self.tokenizer.kind != "bpe" else 0 for row in rows]
        sizes = [len(text.encode()) for text in seen]
        return [TextScore(*each) for each in zip(totals, counts, sizes, windows, left_out, unknown, strict=True)]

    def _settings(self, n: int, options: Options) -> tuple[Sampling, EarlyExits | None]:
        """Override the settings of the recipe by the options and validate them; return them with the early-exit decoder, if enabled."""
        settings = settled(self.sampling, options, Options.__annotations__)
        if n < 1:
            raise ConfigError(f"decoding: expected at least 1 text per prompt, found {n}")
        if (rows := options.get("batch_rows")) is not None and rows < 1:
            raise ConfigError(f"decoding: batch_rows: expected at least 1, found {rows}")
        if (too_long := options.get("too_long")) is not None:
            check_too_long(too_long, "window", "refuse")
        if settings.exit_threshold < 1 and isinstance(self._searcher, CompiledLanguageModel) and self._searcher.kind == "int8":
            raise ConfigError(
                f"decoding.exit_threshold = {settings.exit_threshold:g}: expected a precision other than int8, whose"
                " kernels run all blocks for every token; set precision to auto, or exit_threshold to 1"
            )
        return settings, EarlyExits.of(self.model, settings.exit_threshold) if settings.exit_threshold < 1 else None

    def _prompts(self, prompts: Sequence[str], settings: Sampling, options: Options) -> list[list[int]]:
        """Tokenize prompts, each preceded by the end token of the previous text, which serves as start token."""
        opening, most = [SOS] if self.answering else [], self.model.config.max_seq_len
        rows = [[EOS, *row, *opening] for row in self.tokenizer.encode_batch(list(prompts))]
        for number, row in enumerate(rows, 1):
            if options.get("too_long") == "refuse" and len(row) + settings.max_new_tokens > most:
                raise DataError(
                    f"{options.get('name') or 'prompt'}:{number}: expected prompt and new text to fit model.max_seq_len = {most},"
                    f" found {len(row)} and {settings.max_new_tokens} tokens; shorten the prompt, lower max_new_tokens, or set too_long to"
                    " 'window'"
                )
        return rows

    def _text(self, prompt: str, row: list[int], sample: int) -> _Text:
        """Start a text; its sample ID combines a hash of the prompt with the index of the sample."""
        return _Text(row, (text_hash(prompt) << 32) + sample, windows=int(len(row) >= self.model.config.max_seq_len))

    def _batches(self, texts: list[_Text], batch_rows: int, n_workers: int) -> list[list[_Text]]:
        """Group texts by context length, so that no padding is needed; longest first, in batches small enough for all workers."""
        rows, most = min(batch_rows, -(-len(texts) // n_workers)), self.model.config.max_seq_len

        def place(text: _Text) -> tuple[int, int]:
            return -len(text.context(most)), len(text.new)

        groups = (list(group) for _, group in groupby(sorted(texts, key=place), key=place))
        return [group[i : i + rows] for group in groups for i in range(0, len(group), rows)]

    def _extend(self, searcher: StepModel[Any, Any], texts: list[_Text], settings: Sampling) -> None:
        """Continue texts of equal length until they end or the context is full."""
        asked = self._search(texts, settings)
        for text, (hypothesis, *_) in zip(texts, search(searcher, asked), strict=True):
            text.log_p += hypothesis.token_log_p
            self._grown(text, list(hypothesis.tokens), asked.limits.last_must_end_at - 1, settings)

    def _steps(self, text: _Text, settings: Sampling, exits: EarlyExits | None) -> Iterator[list[int]]:
        """Continue one text; after every step yield all tokens sampled so far in this window."""
        asked, drawn = self._search([text], settings), list[int]()
        for progress in search_steps(exits or self._searcher, asked):
            drawn = [token for token in progress.prefixes[0, 1:].tolist() if token != EOS]
            yield drawn
        self._grown(text, drawn, asked.limits.last_must_end_at - 1, settings)

    def _grown(self, text: _Text, drawn: list[int], room: int, settings: Sampling) -> None:
        """Append the sampled tokens and set the finish reason if the text has ended."""
        text.new += drawn
        if first_stop(self._said(text), settings.stop) is not None:
            text.ended = "stop"
        elif len(drawn) < room:
            text.ended = "end"
        elif len(text.new) >= settings.max_new_tokens:
            text.ended = "length"
        else:
            text.windows += 1

    def _search(self, texts: list[_Text], settings: Sampling) -> Search:
        """Build the search that continues texts of equal length."""
        most, device = self.model.config.max_seq_len, self.model.device
        contexts, begun = [text.context(most) for text in texts], len(texts[0].new)
        room = min(settings.max_new_tokens - begun, max(most - len(contexts[0]), 1))
        shortest = min(max(settings.min_new_tokens - begun, 0), room)
        rows = Sequences.pad(contexts).to(device)
        seen = None
        if settings.repetition_penalty != 1:
            seen = torch.zeros(len(texts), self.tokenizer.vocab_size, dtype=torch.bool, device=device)
            for row, text in zip(seen, texts, strict=True):
                row[text.prompt[1:] + text.new] = True
        silent = [PAD, SOS] if self.tokenizer.kind == "bpe" else [PAD, SOS, UNK]
        filters: list[Filter] = [Forbid(torch.tensor(silent, device=device))]
        if settings.stop:
            filters.append(StopAt(settings.stop, self.tokenizer, EOS, [(text.prompt[-1], text.new) for text in texts]))
        strategy = Sample(EOS, settings, tuple(text.sample for text in texts), begun, seen)
        limits = Limits(*(torch.full((len(texts),), n, device=device) for n in (shortest, room + 1)))  # + 1 for the end token
        return Search(rows, strategy, limits, rows.tokens[:, -1], EOS, filters)

    def _said(self, text: _Text) -> str:
        """Decode the generated tokens: as a continuation of the prompt, or as an answer of its own."""
        return self.tokenizer.decode_behind([] if self.answering else text.prompt, text.new)

    def _answer(self, text: _Text, settings: Sampling) -> Continuation:
        assert text.ended is not None
        said = self._said(text)
        tokens = tuple(symbol.replace("▁", " ") for symbol in self.tokenizer.symbols(text.new))
        if self.tokenizer.kind == "whitespace":
            tokens = tuple(f" {token}" for token in tokens)
        probabilities = tuple(map(math.exp, text.log_p)) if len(text.log_p) == len(text.new) else ()
        shown = said[: first_stop(said, settings.stop)]
        return Continuation(shown, len(text.new), text.ended, text.windows, tokens, probabilities)


def _sure(text: str, stops: Sequence[str]) -> int:
    """Return the number of leading characters that later tokens cannot change or turn into a part of a stop string."""
    stop = first_stop(text, stops)
    if stop is not None:
        return stop
    whole = len(text.rstrip("\N{REPLACEMENT CHARACTER}"))
    begun = max((n for stop in stops for n in range(1, len(stop)) if text[:whole].endswith(stop[:n])), default=0)
    return whole - begun
