"""From prompts to the texts that go on with them."""

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
    """What a model said behind a prompt.

    Attributes:
        text: without the prompt and without the text that it stopped at.
        n_tokens: tokens that were drawn.
        ended: by the model's own end of the text, at a stop text, or for its length.
        windows: how often the model, its context full, went on from the last half of what it can read.
        tokens: text of each token.
        probabilities: p(token | prompt and the tokens before) by the model, before temperature, truncation and penalties; one per token.
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
    """Continuations of each prompt, and how far their tokens went.

    Attributes:
        exits: of the call that these are the result of, if it asked for early exits.
    """

    def __init__(self, found: Iterable[list[Continuation]], exits: EarlyExits | None) -> None:
        """Join what one call found with its exits."""
        super().__init__(found)
        self.exits = exits


class Options(TypedDict, total=False):
    """How to go on. What is left out or None is the recipe's setting, or the default named here.

    Attributes:
        temperature, top_k, top_p, min_p, typical_p: what reshapes the distribution; see ``config.decoding.Sampling``.
        repetition_penalty, frequency_penalty, presence_penalty: likewise.
        exit_threshold: how sure a token must be to stop before the last block.
        max_new_tokens: most tokens of a text.
        min_new_tokens: fewest tokens before the model may end a text.
        stop: texts at which an answer ends.
        seed: of the draws.
        batch_rows: most texts at a time; 32.
        too_long: what to do when prompt and text outgrow the model: "window", to go on from the last half, or "refuse".
        name: of the prompts' origin, for messages; "prompt".
        tell: is told how many texts are done.
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
    """A text under way."""

    prompt: list[int]
    sample: int
    new: list[int] = field(default_factory=list)
    windows: int = 0
    ended: Ending | None = None
    log_p: list[float] = field(default_factory=list)

    def context(self, most: int) -> list[int]:
        """Give what the model goes on from: all of it, or the last half of what it can read."""
        tokens = self.prompt + self.new
        return tokens if len(tokens) < most else tokens[-max(most // 2, 1) :]


class Pieces(Iterator[str]):
    """The pieces of a text as they come.

    Attributes:
        exits: how far the tokens taken so far went, if early exits were asked for.
    """

    def __init__(self, text: _Text, pieces: Iterator[str], exits: EarlyExits | None) -> None:
        """Give the pieces of a text that grows while they are taken."""
        self._text, self._pieces, self.exits = text, pieces, exits

    def __next__(self) -> str:
        """Give the next piece."""
        return next(self._pieces)

    @property
    def windows(self) -> int:
        """How often the model, its context full, has gone on from the last half of it alone."""
        return self._text.windows


class Generator:
    """A trained language model with its tokenizer and its way of drawing.

    Attributes:
        exits_learned: whether the blocks before the last learned to answer too; where not, early exits ask what was never trained.
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
        """Join what is needed to go on with texts.

        Args:
            model: as it is; ``load`` prepares one for speed.
            tokenizer: of the text.
            sampling: default settings of the draw.
            precision: of the model's matrix products, with the reason, for whoever asks.
            searcher: the model laid out for steps, perhaps only when it is first needed; left out, the model itself, which may still be
                learning.
            answering: the model learned to answer: the symbol at which answers begin is put behind each prompt, and the answer is a text of
                its own.
            exits_learned: the blocks before the last learned to answer too, or nobody knows (training.exits).
            origin: folder that it was loaded from, for ``repr``.
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
        """Return the tokens of a text, without special symbols."""
        return self.tokenizer.encode(text)

    def text_batch(self, tokens: Sequence[int]) -> tuple[LanguageBatch, list[str]]:
        """Make a batch of a text's tokens; see ``inspection.given``."""
        read = Sequences.pad([[EOS, *tokens]])
        return LanguageBatch(read, read.tokens, (0,)), []

    def generate(self, prompts: Sequence[str], **options: Unpack[Options]) -> list[str]:
        """Go on with each prompt; the text without the prompt.

        Raises:
            ConfigError: an option has no such value.
            DataError: prompt and text outgrow the model and ``too_long`` is "refuse", or ``prompts`` is one text.
        """
        return [answers[0].text for answers in self.continuations(prompts, 1, **options)]

    def continuations(self, prompts: Sequence[str], n: int = 1, **options: Unpack[Options]) -> Continuations:
        """Go on with each prompt ``n`` times.

        A draw depends on the seed, the prompt, the number of the sample and the place in the text, never on what else is asked.

        Raises:
            ConfigError: an option has no such value.
            DataError: prompt and text outgrow the model and ``too_long`` is "refuse", or ``prompts`` is one text.
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
        """Go on with a prompt and give the text piece by piece, as soon as it is sure: whole characters, and no beginning of a stop text.

        Raises:
            ConfigError: an option has no such value.
            DataError: prompt and text outgrow the model and ``too_long`` is "refuse".
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
        """Compute log p of each text, its end included: sum_t log p(y_t | y_<t), as far back as the model reads.

        Args:
            texts: each a document of its own.
            overlap: tokens of the window before that each further window of a long text sees again; 0 is what validation does.
            batch_tokens: most tokens of a batch, padding included.
            name: of the texts' origin, for messages.
            too_long: what to do with a text longer than the model reads: read it in windows, only the first of them, or refuse.
            tell: is told how many tokens are done.

        Raises:
            ConfigError: the overlap leaves a window nothing new to read, or there are no windows to overlap.
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
                f"{name}: expected at most {most - 1} tokens a text, the model's, found {len(rows[longer[0]])} in text {longer[0] + 1};"
                " split it, or let it be read in windows"
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
        """Lay the options over the recipe's settings and check them; return them with the call's own early exits, if it asks for any."""
        settings = settled(self.sampling, options, Options.__annotations__)
        if n < 1:
            raise ConfigError(f"decoding: expected at least 1 text a prompt, found {n}")
        if (rows := options.get("batch_rows")) is not None and rows < 1:
            raise ConfigError(f"decoding: batch_rows: expected at least 1, found {rows}")
        if (too_long := options.get("too_long")) is not None:
            check_too_long(too_long, "window", "refuse")
        if settings.exit_threshold < 1 and isinstance(self._searcher, CompiledLanguageModel) and self._searcher.kind == "int8":
            raise ConfigError(
                f"decoding.exit_threshold = {settings.exit_threshold:g}: expected it with a precision other than int8, which multiplies in"
                " 8 bits only in tokens that pass all blocks; take precision auto, or set exit_threshold to 1"
            )
        return settings, EarlyExits.of(self.model, settings.exit_threshold) if settings.exit_threshold < 1 else None

    def _prompts(self, prompts: Sequence[str], settings: Sampling, options: Options) -> list[list[int]]:
        """Encode prompts behind the start symbol, which is the end of the text before."""
        opening, most = [SOS] if self.answering else [], self.model.config.max_seq_len
        rows = [[EOS, *row, *opening] for row in self.tokenizer.encode_batch(list(prompts))]
        for number, row in enumerate(rows, 1):
            if options.get("too_long") == "refuse" and len(row) + settings.max_new_tokens > most:
                raise DataError(
                    f"{options.get('name') or 'prompt'}:{number}: expected prompt and new text in model.max_seq_len = {most} tokens, found"
                    f" {len(row)} and {settings.max_new_tokens}; shorten the prompt, lower max_new_tokens, or let it go on in windows"
                )
        return rows

    def _text(self, prompt: str, row: list[int], sample: int) -> _Text:
        """Begin a text; its number is of the prompt and its place among the prompt's samples."""
        return _Text(row, (text_hash(prompt) << 32) + sample, windows=int(len(row) >= self.model.config.max_seq_len))

    def _batches(self, texts: list[_Text], batch_rows: int, n_workers: int) -> list[list[_Text]]:
        """Group texts whose contexts are of one length, so that nothing is padded; the longest first, small enough for each worker."""
        rows, most = min(batch_rows, -(-len(texts) // n_workers)), self.model.config.max_seq_len

        def place(text: _Text) -> tuple[int, int]:
            return -len(text.context(most)), len(text.new)

        groups = (list(group) for _, group in groupby(sorted(texts, key=place), key=place))
        return [group[i : i + rows] for group in groups for i in range(0, len(group), rows)]

    def _extend(self, searcher: StepModel[Any, Any], texts: list[_Text], settings: Sampling) -> None:
        """Let texts of one length grow until they end or the model's context is full."""
        asked = self._search(texts, settings)
        for text, (hypothesis, *_) in zip(texts, search(searcher, asked), strict=True):
            text.log_p += hypothesis.token_log_p
            self._grown(text, list(hypothesis.tokens), asked.limits.last_must_end_at - 1, settings)

    def _steps(self, text: _Text, settings: Sampling, exits: EarlyExits | None) -> Iterator[list[int]]:
        """Let one text grow and give, after each step, what was drawn."""
        asked, drawn = self._search([text], settings), list[int]()
        for progress in search_steps(exits or self._searcher, asked):
            drawn = [token for token in progress.prefixes[0, 1:].tolist() if token != EOS]
            yield drawn
        self._grown(text, drawn, asked.limits.last_must_end_at - 1, settings)

    def _grown(self, text: _Text, drawn: list[int], room: int, settings: Sampling) -> None:
        """Take in what was drawn and tell whether the text is at its end."""
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
        """Lay out a search that goes on with texts of one length."""
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
        limits = Limits(*(torch.full((len(texts),), n, device=device) for n in (shortest, room + 1)))  # the end symbol is no text
        return Search(rows, strategy, limits, rows.tokens[:, -1], EOS, filters)

    def _said(self, text: _Text) -> str:
        """Give the text behind the prompt: what the whole says more than the prompt, or the answer alone."""
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
    """Count the characters that no further token can change or make part of a stop text."""
    stop = first_stop(text, stops)
    if stop is not None:
        return stop
    whole = len(text.rstrip("\N{REPLACEMENT CHARACTER}"))
    begun = max((n for stop in stops for n in range(1, len(stop)) if text[:whole].endswith(stop[:n])), default=0)
    return whole - begun
