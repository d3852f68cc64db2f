"""Text generation: continues prompts by sampling, in batches or streamed, and scores given texts."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, TypedDict, Unpack

import torch

from transom.config.decoding import SamplingConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.data.split import text_hash
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.backends.decoder_backend import plan_workers
from transom.decoding.backends.native_decoder import NativeLanguageModel
from transom.decoding.backends.whole_passes import WholePassDecoder
from transom.decoding.inference import (
    Deferred,
    ProgressCallback,
    eval_mode,
    ignore_progress,
    merge_options,
    parallel_map,
    reject_single_item,
)
from transom.decoding.predictors.likelihood import TextScore
from transom.decoding.predictors.long_texts import check_long_text_policy
from transom.decoding.predictors.results import Record, Results, described
from transom.decoding.predictors.text_scoring import score_texts
from transom.decoding.search.early_exit import EarlyExitDecoder
from transom.decoding.search.interfaces import LengthLimits, StepModel
from transom.decoding.search.loop import SearchRequest, SuppressTokens, merge_end_tokens, search, search_steps
from transom.decoding.search.sampling import MultinomialSampling
from transom.decoding.search.step_trace import RecordedSearch, RecordedStrategy, SearchStep
from transom.decoding.search.stop_strings import StopStrings, find_stop_string
from transom.errors import ConfigError, DataError
from transom.models.base import LanguageModel
from transom.planning.precision import Precision

LongPromptPolicy = Literal["window", "refuse"]
FinishReason = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Continuation(Record):
    """A generated continuation of a prompt.

    Attributes:
        text: the generated text, without the prompt and the stop string.
        n_tokens: number of sampled tokens.
        finish_reason: "end" for the model's end token, "stop" for a stop string, "length" for ``max_new_tokens``.
        windows: number of times the context window was full and generation continued from its last half.
        tokens: the text of each sampled token.
        probabilities: p(token | prompt, previous tokens) per token, before temperature, top-k and other truncation, and penalties.
    """

    text: str
    n_tokens: int
    finish_reason: FinishReason
    windows: int
    tokens: tuple[str, ...] = field(default=(), repr=False, compare=False)
    probabilities: tuple[float, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


class Continuations(Results[list[Continuation]]):
    """List with the continuations of each prompt.

    Attributes:
        early_exit: early-exit statistics of the call; None without early exit.
    """

    def __init__(self, found: Iterable[list[Continuation]], early_exit: EarlyExitDecoder | None) -> None:
        """Store the continuations of each prompt and the early-exit decoder that generated them, if any."""
        super().__init__(found)
        self.early_exit = early_exit


class GenerateOptions(TypedDict, total=False):
    """Options of text generation. An option that is missing or None uses the setting of the recipe or the default given here.

    Attributes:
        temperature, top_k, top_p, min_p, typical_p: settings of sampling; see ``config.decoding.SamplingConfig``.
        repetition_penalty, frequency_penalty, presence_penalty: see ``config.decoding.SamplingConfig``.
        early_exit_threshold: minimum confidence for a token to skip the remaining blocks; 1 disables early exit.
        max_new_tokens: maximum number of generated tokens per text.
        min_new_tokens: minimum number of generated tokens before the end token.
        stop: strings that end a text; the text ends before the string.
        seed: random seed of sampling.
        batch_rows: maximum number of texts per batch; default 32, or 32 per thread where threads share a batch.
        too_long: treatment of prompts and texts that exceed the context window: "window" continues from the last half of the tokens,
            "refuse" raises an error.
        name: origin of the prompts, for messages; default "prompt".
        notify: progress callback, called with the number of texts done and of all texts.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    early_exit_threshold: float | None
    max_new_tokens: int | None
    min_new_tokens: int | None
    stop: Sequence[str] | None
    seed: int | None
    batch_rows: int | None
    too_long: LongPromptPolicy | None
    name: str | None
    notify: ProgressCallback | None


@dataclass
class _Generation:
    """State of one text during generation."""

    prompt: list[int]
    sample: int
    generated: list[int] = field(default_factory=list)
    windows: int = 0
    finish_reason: FinishReason | None = None
    log_p: list[float] = field(default_factory=list)

    def context(self, max_tokens: int) -> list[int]:
        """Return the tokens to continue from: all tokens or, if these fill the context window, the last ``max_tokens // 2``."""
        tokens = self.prompt + self.generated
        return tokens if len(tokens) < max_tokens else tokens[-max(max_tokens // 2, 1) :]


class TextStream(Iterator[str]):
    """Iterator over the pieces of a text while it is generated.

    Attributes:
        early_exit: early-exit statistics of the tokens so far; None without early exit.
    """

    def __init__(self, text: _Generation, pieces: Iterator[str], early_exit: EarlyExitDecoder | None) -> None:
        """Iterate over ``pieces``, whose generation advances the state ``text``."""
        self._text, self._pieces, self.early_exit = text, pieces, early_exit

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def windows(self) -> int:
        """Number of times the context window was full and generation continued from its last half."""
        return self._text.windows


class Generator:
    """Generates and scores text with a trained language model and its tokenizer.

    Attributes:
        early_exit_trained: whether earlier blocks were trained to predict tokens, as early exit requires.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        sampling: SamplingConfig | None = None,
        precision: Precision | None = None,
        decoder_backend: StepModel[Any, Any] | Deferred[StepModel[Any, Any]] | None = None,
        instruction_tuned: bool = False,
        early_exit_trained: bool = True,
        origin: str | None = None,
    ) -> None:
        """Wrap a model and its tokenizer.

        Args:
            model: a language model, used as it is; ``transom.load`` prepares a model for fast inference.
            tokenizer: the tokenizer of the model.
            sampling: default sampling settings.
            precision: dtype of the matrix products with the reason for the choice, for ``repr``.
            decoder_backend: a faster implementation of the decoding steps, perhaps built on first use. By default the model itself, which
                may still be in training.
            instruction_tuned: append the token after which an answer begins to each prompt, and decode the answer without the prompt.
            early_exit_trained: whether earlier blocks were trained to predict tokens; True if this is unknown.
            origin: run folder from which the generator was loaded, for ``repr``.
        """
        self.instruction_tuned, self.early_exit_trained = instruction_tuned, early_exit_trained
        self._given: StepModel[Any, Any] | Deferred[StepModel[Any, Any]] = decoder_backend or model
        self.model, self.tokenizer, self.precision = model, tokenizer, precision
        self.sampling, self.origin = sampling or SamplingConfig(), origin

    def __repr__(self) -> str:
        """Return vocabulary, context window, number of parameters, precision and origin on one line."""
        window, n_parameters = self.model.config.max_seq_len, sum(each.numel() for each in self.model.parameters())
        parts = [f"{self.tokenizer.vocab_size:,} {self.tokenizer.kind} tokens", f"context window {window:,}"]
        return described("Generator", parts, n_parameters, None if self.precision is None else self.precision.name, self.origin)

    @property
    def decoder_backend(self) -> StepModel[Any, Any]:
        """Implementation of the decoding steps: the fastest one, or the model itself while edits are in force."""
        if self.model.edits is not None:
            return WholePassDecoder(self.model)
        return self._given.value if isinstance(self._given, Deferred) else self._given

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of a text, without special tokens."""
        return self.tokenizer.encode(text)

    def text_batch(self, tokens: Sequence[int]) -> tuple[LanguageBatch, list[str]]:
        """Return a batch of one text, given by its token IDs, and no notes; see ``inspection.example_batch``."""
        read = PaddedSequences.pad([self._surround(tokens)], self.tokenizer.special_tokens.padding)
        return LanguageBatch(read, read.tokens, (0,)), []

    def generate(self, prompts: Sequence[str], **options: Unpack[GenerateOptions]) -> list[str]:
        """Continue each prompt and return the generated texts, without the prompts.

        Raises:
            ConfigError: an option is invalid.
            DataError: prompt and text exceed the context window and ``too_long`` is "refuse", or ``prompts`` is a single text.
        """
        return [answers[0].text for answers in self.continuations(prompts, 1, **options)]

    def continuations(self, prompts: Sequence[str], n: int = 1, **options: Unpack[GenerateOptions]) -> Continuations:
        """Sample ``n`` continuations of each prompt.

        The random number for a token depends only on seed, prompt, sample index and position, not on the other texts of the batch.

        Raises:
            ConfigError: an option is invalid.
            DataError: prompt and text exceed the context window and ``too_long`` is "refuse", or ``prompts`` is a single text.
        """
        reject_single_item(prompts, "text")
        settings, early_exit = self._settings(n, options)
        decoder_backend = early_exit or self.decoder_backend
        rows = self._prompts(prompts, settings, options)
        texts = [self._text(prompt, row, k) for prompt, row in zip(prompts, rows, strict=True) for k in range(n)]
        notify = options.get("notify") or ignore_progress
        with eval_mode(self.model):
            while pending := [text for text in texts if text.finish_reason is None]:
                groups = self._groups(pending)
                n_workers, n_batches = plan_workers(decoder_backend, self.model.device, 1, len(groups))
                n_rows = min(options.get("batch_rows") or 32 * n_batches, -(-len(pending) // n_workers))  # enough batches for all workers
                batches = [group[i : i + n_rows] for group in groups for i in range(0, len(group), n_rows)]
                for _ in parallel_map(lambda batch: self._extend(decoder_backend, batch, settings), batches, n_workers):
                    notify(sum(text.finish_reason is not None for text in texts), len(texts))
        answers = [self._to_continuation(text, settings) for text in texts]
        return Continuations((answers[i : i + n] for i in range(0, len(answers), n)), early_exit)

    @torch.inference_mode()
    def record_search(self, prompt: str, n_candidates: int = 5, **options: Unpack[GenerateOptions]) -> RecordedSearch:
        """Continue a prompt, and record every step: the most probable tokens with their probabilities, and the token that was sampled.

        Args:
            prompt: the prompt.
            n_candidates: candidates recorded per step.
            **options: as for ``generate``.

        Raises:
            ConfigError: an option is invalid.
            DataError: prompt and text exceed the context window and ``too_long`` is "refuse".
        """
        settings, early_exit = self._settings(1, options)
        text, steps = self._text(prompt, self._prompts([prompt], settings, options)[0], 0), list[SearchStep]()
        with eval_mode(self.model):
            while text.finish_reason is None:
                request = self._search([text], settings)
                recorder = RecordedStrategy(request.strategy, self.tokenizer.special_tokens.end, n_candidates)
                ((hypothesis, *_),) = search(early_exit or self.decoder_backend, request._replace(strategy=recorder))
                text.log_p += hypothesis.token_log_p
                self._append(text, list(hypothesis.tokens), request.limits.largest_max_length - 1, settings)
                steps += [replace(step, number=len(steps) + i) for i, step in enumerate(recorder.steps, 1)]
        kind = getattr(self.decoder_backend, "kind", None)
        text_length = min(request.source.tokens.shape[1] - 1 + request.limits.largest_max_length, self.model.config.max_seq_len)
        answer = self._to_continuation(text, settings)
        return RecordedSearch(answer, steps, tuple(text.prompt), tuple(text.generated), kind, text_length)

    def stream(self, prompt: str, **options: Unpack[GenerateOptions]) -> TextStream:
        """Continue a prompt and yield the text in pieces as it is generated.

        A piece is yielded once later tokens cannot change it: it contains whole characters only and no prefix of a stop string.

        Raises:
            ConfigError: an option is invalid.
            DataError: prompt and text exceed the context window and ``too_long`` is "refuse".
        """
        settings, early_exit = self._settings(1, options)
        text = self._text(prompt, self._prompts([prompt], settings, options)[0], 0)
        return TextStream(text, self._pieces(text, settings, early_exit), early_exit)

    def _pieces(self, text: _Generation, settings: SamplingConfig, early_exit: EarlyExitDecoder | None) -> Iterator[str]:
        n_yielded = 0
        with eval_mode(self.model):
            while text.finish_reason is None:
                n_generated = len(text.generated)
                for sampled in self._steps(text, settings, early_exit):
                    new_text = self._new_text(_Generation(text.prompt, 0, text.generated[:n_generated] + sampled))
                    settled = _settled_length(new_text, settings.stop)
                    if settled > n_yielded:
                        yield new_text[n_yielded:settled]
                        n_yielded = settled
        rest = self._to_continuation(text, settings).text[n_yielded:]
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
        notify: ProgressCallback = ignore_progress,
    ) -> list[TextScore]:
        """Compute log p of each text, end token included: sum_t log p(y_t | y_<t), with the context limited to the context window.

        Args:
            texts: each is a separate document.
            overlap: number of tokens of the previous window that every further window of a long text repeats as context; validation uses 0.
            batch_tokens: maximum tokens per batch, padding included.
            name: origin of the texts, for messages.
            too_long: treatment of texts longer than the context window: "window" scores all windows, "truncate" scores the first window,
                "refuse" raises an error.
            notify: progress callback, called with the number of tokens done and of all tokens.

        Raises:
            ConfigError: the overlap is not smaller than the context window, or is not 0 although ``too_long`` is not "window".
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        return score_texts(self.model, self.tokenizer, texts, overlap, batch_tokens, name, too_long, notify)

    def _settings(self, n: int, options: GenerateOptions) -> tuple[SamplingConfig, EarlyExitDecoder | None]:
        """Return the recipe's settings, overridden by ``options`` and validated, and the early-exit decoder, or None without early exit."""
        settings = merge_options(self.sampling, options, GenerateOptions.__annotations__)
        if n < 1:
            raise ConfigError(f"decoding: n: expected at least 1 text per prompt, found {n}")
        if (rows := options.get("batch_rows")) is not None and rows < 1:
            raise ConfigError(f"decoding: batch_rows: expected at least 1, found {rows}")
        if (too_long := options.get("too_long")) is not None:
            check_long_text_policy(too_long, "window", "refuse")
        if (
            settings.early_exit_threshold < 1
            and isinstance(self.decoder_backend, NativeLanguageModel)
            and self.decoder_backend.kind == "int8"
        ):
            raise ConfigError(
                f"decoding.early_exit_threshold = {settings.early_exit_threshold:g}: expected a precision other than int8, whose"
                " kernels run all blocks for every token; set precision to auto, or early_exit_threshold to 1"
            )
        return settings, EarlyExitDecoder.of(self.model, settings.early_exit_threshold) if settings.early_exit_threshold < 1 else None

    def _prompts(self, prompts: Sequence[str], settings: SamplingConfig, options: GenerateOptions) -> list[list[int]]:
        """Tokenize prompts, each preceded by the tokens of the template and followed by the start token of an answer, if any."""
        max_tokens, special = self.model.config.max_seq_len, self.tokenizer.special_tokens
        prompt_end = [special.answer_start] if self.instruction_tuned else []
        rows = [[*self._surround(row), *prompt_end] for row in self.tokenizer.encode_batch(list(prompts))]
        for number, row in enumerate(rows, 1):
            if options.get("too_long") == "refuse" and len(row) + settings.max_new_tokens > max_tokens:
                raise DataError(
                    f"{options.get('name') or 'prompt'}:{number}: expected prompt and new text to fit model.max_seq_len = {max_tokens},"
                    f" found {len(row)} and {settings.max_new_tokens} tokens; shorten the prompt, lower max_new_tokens, or set too_long to"
                    " 'window'"
                )
        return rows

    def _surround(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of a prompt with the special tokens before it; after instruction tuning, those of a training sample."""
        special = self.tokenizer.special_tokens
        return [special.document_start, *tokens] if self.instruction_tuned else special.prompt(tokens)

    def _text(self, prompt: str, row: list[int], sample: int) -> _Generation:
        """Return the initial state of a text, with a sample ID from a hash of the prompt and the sample index."""
        return _Generation(row, (text_hash(prompt) << 32) + sample, windows=int(len(row) >= self.model.config.max_seq_len))

    def _groups(self, texts: list[_Generation]) -> list[list[_Generation]]:
        """Return groups of texts with equal context lengths, which need no padding, longest first."""
        max_tokens = self.model.config.max_seq_len

        def length_key(text: _Generation) -> tuple[int, int]:
            return -len(text.context(max_tokens)), len(text.generated)

        return [list(group) for _, group in groupby(sorted(texts, key=length_key), key=length_key)]

    def _extend(self, decoder_backend: StepModel[Any, Any], texts: list[_Generation], settings: SamplingConfig) -> None:
        """Continue texts of equal length until they end or the context is full."""
        request = self._search(texts, settings)
        for text, (hypothesis, *_) in zip(texts, search(decoder_backend, request), strict=True):
            text.log_p += hypothesis.token_log_p
            self._append(text, list(hypothesis.tokens), request.limits.largest_max_length - 1, settings)

    def _steps(self, text: _Generation, settings: SamplingConfig, early_exit: EarlyExitDecoder | None) -> Iterator[list[int]]:
        """Continue one text; after every step, yield all tokens sampled since the last change of window."""
        request, sampled = self._search([text], settings), list[int]()
        for state in search_steps(early_exit or self.decoder_backend, request):
            sampled = [token for token in state.tokens_so_far[0, 1:].tolist() if token != self.tokenizer.special_tokens.end]
            yield sampled
        self._append(text, sampled, request.limits.largest_max_length - 1, settings)

    def _append(self, text: _Generation, sampled: list[int], max_new: int, settings: SamplingConfig) -> None:
        """Append sampled tokens to a text; if the text has ended, set its finish reason."""
        text.generated += sampled
        if find_stop_string(self._new_text(text), settings.stop) is not None:
            text.finish_reason = "stop"
        elif len(sampled) < max_new:
            text.finish_reason = "end"
        elif len(text.generated) >= settings.max_new_tokens:
            text.finish_reason = "length"
        else:
            text.windows += 1

    def _search(self, texts: list[_Generation], settings: SamplingConfig) -> SearchRequest:
        """Return the search request that continues texts of equal length."""
        max_tokens, device, special = self.model.config.max_seq_len, self.model.device, self.tokenizer.special_tokens
        end, n_before = special.end, len(self._surround([]))
        contexts, n_generated = [text.context(max_tokens) for text in texts], len(texts[0].generated)
        max_new = min(settings.max_new_tokens - n_generated, max(max_tokens - len(contexts[0]), 1))
        min_new = min(max(settings.min_new_tokens - n_generated, 0), max_new)
        rows = PaddedSequences.pad(contexts, self.tokenizer.special_tokens.padding).to(device)
        seen = None
        if settings.repetition_penalty != 1:
            seen = torch.zeros(len(texts), self.tokenizer.vocab_size, dtype=torch.bool, device=device)
            for row, text in zip(seen, texts, strict=True):
                row[text.prompt[n_before:] + text.generated] = True
        suppressed = sorted({*self.tokenizer.never_generated, *([] if special.unk_token_id is None else [special.unk_token_id])})
        logits_processors = merge_end_tokens(special, settings.temperature, device)  # before they are suppressed, as one that is padding
        logits_processors.append(SuppressTokens(torch.tensor(suppressed, dtype=torch.long, device=device)))
        if settings.stop:
            logits_processors.append(StopStrings(settings.stop, self.tokenizer, end, [(text.prompt[-1], text.generated) for text in texts]))
        strategy = MultinomialSampling(end, settings, tuple(text.sample for text in texts), n_generated, seen, special.padding)
        limits = LengthLimits(*(torch.full((len(texts),), n, device=device) for n in (min_new, max_new + 1)))  # + 1 for the end token
        return SearchRequest(rows, strategy, limits, rows.tokens[:, -1], end, logits_processors)

    def _new_text(self, text: _Generation) -> str:
        """Decode the generated tokens, as a continuation of the prompt; after instruction tuning, as a separate text."""
        return self.tokenizer.decode_continuation([] if self.instruction_tuned else text.prompt, text.generated)

    def _to_continuation(self, text: _Generation, settings: SamplingConfig) -> Continuation:
        assert text.finish_reason is not None
        new_text = self._new_text(text)
        tokens = tuple(symbol.replace("▁", " ") for symbol in self.tokenizer.symbols(text.generated))
        if self.tokenizer.kind == "whitespace":
            tokens = tuple(f" {token}" for token in tokens)
        probabilities = tuple(map(math.exp, text.log_p)) if len(text.log_p) == len(text.generated) else ()
        shown = new_text[: find_stop_string(new_text, settings.stop)]
        return Continuation(shown, len(text.generated), text.finish_reason, text.windows, tokens, probabilities)


def _settled_length(text: str, stops: Sequence[str]) -> int:
    """Return the number of leading characters that later tokens can neither change nor make part of a stop string."""
    stop = find_stop_string(text, stops)
    if stop is not None:
        return stop
    whole = len(text.rstrip("\N{REPLACEMENT CHARACTER}"))
    n_generated = max((n for stop in stops for n in range(1, len(stop)) if text[:whole].endswith(stop[:n])), default=0)
    return whole - n_generated
