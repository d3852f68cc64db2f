"""Translation: beam search or sampling over sentences, n-best lists and scores of given translations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import torch

from transom.config.decoding import BeamSearchConfig, SamplingConfig
from transom.data.batch import PaddedSequences, TranslationBatch, batch_by_tokens, sequence_lengths, translation_batch
from transom.data.pairs.loader import length_sorted_batches
from transom.data.pairs.pairs import Pairs
from transom.data.split import text_hash
from transom.data.tokenizer.special_tokens import SpecialTokens
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.decoder_backend import plan_workers
from transom.decoding.backends.whole_passes import WholePassDecoder
from transom.decoding.inference import (
    Deferred,
    ProgressCallback,
    eval_mode,
    ignore_progress,
    merge_options,
    parallel_map,
    reject_single_item,
    sampling_settings,
)
from transom.decoding.predictors.likelihood import PairScore
from transom.decoding.predictors.long_texts import check_length, check_long_text_policy
from transom.decoding.predictors.results import Alignment, Record, Results, described, inspection
from transom.decoding.predictors.sentence_splitter import split_text
from transom.decoding.predictors.translate_options import TranslateOptions
from transom.decoding.search.beam import BeamSearch
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import Hypothesis, StepModel, Strategy, build_length_limits
from transom.decoding.search.loop import SearchRequest, SuppressTokens, search, sequence_log_probs
from transom.decoding.search.sampling import MultinomialSampling
from transom.decoding.search.step_trace import RecordedSearch, RecordedStrategy
from transom.errors import ConfigError, DataError
from transom.files.message import phrase
from transom.models.base import Seq2SeqModel
from transom.planning.precision import Precision


@dataclass(frozen=True)
class Translation(Record):
    """A translation with its score.

    Attributes:
        text: the translation, in one line.
        score: log p divided by the length penalty, summed over the pieces of the source; equal to ``log_p`` for a sample.
        log_p: natural logarithm of p(translation | source), summed over the pieces of the source.
        pieces: number of pieces of the source that were translated separately: 1 if the source fits the context window, 0 if it is blank.
        tokens: the translation's tokens, with ``▁`` for a space.
        alignment: cross-attention weights from the translation to the source; None unless requested.
    """

    text: str
    score: float
    log_p: float
    pieces: int = 1
    tokens: tuple[str, ...] = field(default=(), repr=False, compare=False)
    alignment: Alignment | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """Return the text."""
        return self.text


BATCH_TOKENS = 1024
"""Default of the maximum number of source tokens per batch and thread."""

MAX_DRAWS_PER_SAMPLE = 10
"""Draws per requested sample, after which the search for a sample that differs from the others ends."""


class Translator:
    """Translates with a trained encoder-decoder, its tokenizers and a search strategy."""

    def __init__(
        self,
        model: Seq2SeqModel,
        tokenizers: Tokenizers,
        decoding: BeamSearchConfig | None = None,
        precision: Precision | None = None,
        decoder_backend: StepModel[Any, Any] | Deferred[StepModel[Any, Any]] | None = None,
        languages: str | None = None,
        origin: str | None = None,
    ) -> None:
        """Wrap a model and its tokenizers.

        Args:
            model: an encoder-decoder, used as it is; ``transom.load`` prepares a model for fast inference.
            tokenizers: tokenizers of source and target.
            decoding: default search settings.
            precision: dtype of the matrix products with the reason for the choice, for ``repr``.
            decoder_backend: a faster implementation of the decoding steps, perhaps built on first use. By default the model itself, which
                may still be in training.
            languages: languages of the translator, such as "en to de", for ``repr``.
            origin: run folder from which the translator was loaded, for ``repr``.
        """
        self._given: StepModel[Any, Any] | Deferred[StepModel[Any, Any]] = decoder_backend or model
        self.model, self.tokenizers, self.precision = model, tokenizers, precision
        self.decoding, self.languages, self.origin = decoding or BeamSearchConfig(), languages, origin

    def __repr__(self) -> str:
        """Return languages, number of parameters, precision and origin on one line."""
        tags = self.tokenizers.source.tags
        parts = [f"to {', '.join(tags)}"] if tags else [] if self.languages is None else [self.languages]
        n_parameters = sum(each.numel() for each in self.model.parameters())
        return described("Translator", parts, n_parameters, None if self.precision is None else self.precision.name, self.origin)

    @property
    def _decoder_backend(self) -> StepModel[Any, Any]:
        if self.model.edits is not None:
            return WholePassDecoder(self.model)
        return self._given.value if isinstance(self._given, Deferred) else self._given

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of a source text, without special tokens."""
        return self.tokenizers.source.encode(text)

    def text_batch(self, tokens: Sequence[int], target: str | None = None) -> tuple[TranslationBatch, list[str]]:
        """Return a batch of a source and its translation, and a note with the translation if it is the model's own.

        The batch is used by ``inspection.example_batch``.

        Args:
            tokens: token IDs of the source.
            target: the translation; None for the model's own.

        Raises:
            DataError: the translation exceeds the context window.
        """
        if target is not None:
            check_length(
                "target", len(given := self.tokenizers.target.encode(target)), self.model.config.max_seq_len - self._target_tokens.n_added
            )
            return self.build_batch(tokens, given), []
        translation = self.translate([" ".join(self.tokenizers.source.decode(tokens).split())])[0]
        own = self.tokenizers.target.encode(translation)[: self.model.config.max_seq_len - self._target_tokens.n_added]
        note = phrase("explain.notes.own_translation", "the target is the model's own translation: {translation}", translation=translation)
        return self.build_batch(tokens, own), [note]

    def build_batch(self, source: Sequence[int], target: Sequence[int]) -> TranslationBatch:
        """Return a batch of one pair, given by the token IDs of both sides without special tokens."""
        return translation_batch([source], [target], [0], self.tokenizers.source.special_tokens, self._target_tokens)

    @property
    def _target_tokens(self) -> SpecialTokens:
        return self.tokenizers.target.special_tokens

    def translate(self, texts: Sequence[str], **options: Unpack[TranslateOptions]) -> list[str]:
        """Translate each text into one line; a blank text gives an empty line.

        Raises:
            ConfigError: an option is invalid, or ``to`` is missing.
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        return [best[0].text if best else "" for best in self.n_best(texts, 1, **options)]

    def translations(self, texts: Sequence[str], alignments: bool = True, **options: Unpack[TranslateOptions]) -> Results[Translation]:
        """Translate each text; return translation, score, tokens and, by default, the alignment with the source.

        Args:
            texts: source texts.
            alignments: align each translation with its source, if the model has cross-attention. This takes one more forward pass per
                text. Texts translated in several pieces are not aligned.
            **options: as for ``translate``.

        Raises:
            ConfigError: an option is invalid, or ``to`` is missing.
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        found = [best[0] if best else Translation("", 0.0, 0.0, 0) for best in self.n_best(texts, 1, **options)]
        if not (alignments and inspection("alignment").cross_attention_addresses(self.model)):
            return Results(found)
        return Results(self._aligned(text, each, options.get("to")) for text, each in zip(texts, found, strict=True))

    def _aligned(self, source: str, found: Translation, to: str | None) -> Translation:
        too_long = len(self.tokenizers.target.encode(found.text)) > self.model.config.max_seq_len - self._target_tokens.n_added
        return found if found.pieces != 1 or too_long else replace(found, alignment=self.align(source, found.text, to=to))

    def align(self, source: str, target: str, layer: int | None = None, words: bool = True, to: str | None = None) -> Alignment:
        """Align a sentence with its translation by cross-attention, averaged over the heads of one layer.

        Args:
            source: the source sentence.
            target: a translation of the source, by the model or by others.
            layer: decoder layer, counted from 0; by default the one that ``inspection.alignment.choose_alignment_layer`` chooses.
            words: merge subwords into words.
            to: tag of the target language of a multilingual model.

        Raises:
            ConfigError: there is no such layer, the model has no cross-attention, or ``to`` is missing.
            DataError: a sentence has more tokens than the context window.
        """
        with eval_mode(self.model):
            found: Alignment = inspection("alignment").align(self.model, self.tokenizers, source, target, layer, words, to)
        return found

    @torch.inference_mode()
    def record_search(self, text: str, n_candidates: int = 5, **options: Unpack[TranslateOptions]) -> RecordedSearch:
        """Translate a text, and record every step of the search: candidates with probabilities, choices, and kept and dropped hypotheses.

        Args:
            text: the source text, which must fit the context window.
            n_candidates: candidates recorded per hypothesis and step.
            **options: as for ``translate``; with ``sample``, the first sample is recorded.

        Raises:
            ConfigError: an option is invalid, or ``to`` is missing.
            DataError: the text is blank or longer than the context window.
        """
        decoding, sampling = self._settings(1, options), sampling_settings(options)
        pieces = self._pieces([text], self.tokenizers.source.language_prefix(options.get("to")), "refuse", options.get("name") or "text")[0]
        if not pieces:
            raise DataError("expected a text of at least one token, found none")
        strategy = self._strategy(decoding, 1) if sampling is None else self._sampling_strategy(sampling, [_sample_id(text, 0, 0)])
        recorder = RecordedStrategy(strategy, self._target_tokens.end, n_candidates)
        with eval_mode(self.model):
            (hypotheses,) = self._search(pieces, decoding, 1, recorder)
        kind, best = getattr(self._decoder_backend, "kind", None), hypotheses[0]
        return RecordedSearch(self._translations(hypotheses)[0], recorder.steps, tuple(self._surround(pieces[0])), best.tokens, kind)

    def n_best(self, texts: Sequence[str], n: int, **options: Unpack[TranslateOptions]) -> Results[list[Translation]]:
        """Return up to ``n`` translations of each text, in decreasing order of score; by default the beam has at least ``n`` hypotheses.

        With ``sample``, the translations are the first ``n`` different samples, in the order in which they are drawn. A text has fewer if
        ``10 * n`` draws give fewer, and one at temperature 0. The random number for a token depends only on seed, text, number of the
        draw, and position, not on the other texts of the batch.

        Raises:
            ConfigError: an option is invalid, ``to`` is missing, or ``n`` exceeds a ``beam_size`` that was given.
            DataError: a text is too long and ``too_long`` is "refuse", or ``texts`` is a single text.
        """
        reject_single_item(texts, "text")
        decoding, sampling = self._settings(n, options), sampling_settings(options)
        prefix = self.tokenizers.source.language_prefix(options.get("to"))
        pieces = self._pieces(texts, prefix, options.get("too_long") or "split", options.get("name") or "text")
        batch_tokens, notify = options.get("batch_tokens"), options.get("notify") or ignore_progress
        if sampling is not None:
            return Results(self._samples(texts, pieces, n, decoding, sampling, batch_tokens, notify))
        sources = [piece for of_text in pieces for piece in of_text]
        found = iter(self._search_all(sources, decoding, n, batch_tokens, notify))
        return Results(join_pieces([self._translations(next(found)) for _ in of_text]) for of_text in pieces)

    @torch.inference_mode()
    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_tokens: int = 2048,
        name: str = "pairs",
        to: str | None = None,
        notify: ProgressCallback = ignore_progress,
    ) -> list[PairScore]:
        """Compute log p(target | source) of each pair by teacher forcing.

        log p(y | x) = sum_t log p(y_t | y_<t, x), with matrix products in the dtype of the model and the softmax in at least float32.

        Args:
            sources: source sentences.
            targets: the translation of each source to score.
            batch_tokens: maximum source or target tokens per batch, padding included, whichever are more.
            name: origin of the pairs, for messages.
            to: tag of the target language of a multilingual model.
            notify: progress callback, called with the number of pairs done and of all pairs.

        Raises:
            ConfigError: ``to`` is missing or unknown to the model.
            DataError: ``sources`` and ``targets`` differ in length, or a sentence is longer than the context window.
        """
        if len(sources) != len(targets):
            raise DataError(f"{name}: expected as many targets as sources, found {len(targets)} targets and {len(sources)} sources")
        if not sources:
            return []
        scores, n_done = [PairScore(0.0, 0)] * len(sources), 0
        pairs, device, max_tokens = Pairs(list(sources), list(targets), name), self.model.device, self.model.config.max_seq_len
        prefix = self.tokenizers.source.language_prefix(to)
        with eval_mode(self.model):
            for batch in length_sorted_batches(pairs, self.tokenizers, batch_tokens, max_tokens, too_long="refuse", source_prefix=prefix):
                on_device = batch.to(device)
                totals = sequence_log_probs(self.model, on_device, on_device.decoder_input.segments > 0)
                for sample, total, n_tokens in zip(batch.sample_ids, totals, batch.decoder_input.lengths.tolist(), strict=True):
                    scores[sample] = PairScore(total, n_tokens)
                n_done += len(batch.sample_ids)
                notify(n_done, len(sources))
        return scores

    def max_tokens(self, to: str | None = None) -> int:
        """Return the maximum number of tokens of a source text that fits the context window, special tokens excluded.

        Args:
            to: tag of the target language of a multilingual model.
        """
        return (
            self.model.config.max_seq_len - self.tokenizers.source.special_tokens.n_added - len(self.tokenizers.source.language_prefix(to))
        )

    def _settings(self, n: int, options: TranslateOptions) -> BeamSearchConfig:
        """Return the search settings of the recipe, overridden by ``options`` and validated."""
        decoding = merge_options(self.decoding, options, TranslateOptions.__annotations__)
        if (batch_tokens := options.get("batch_tokens")) is not None and batch_tokens < 1:
            raise ConfigError(f"decoding: batch_tokens: expected at least 1, found {batch_tokens}")
        if (too_long := options.get("too_long")) is not None:
            check_long_text_policy(too_long, "split", "refuse")
        if options.get("beam_size") is None and n > decoding.beam_size and not options.get("sample"):
            decoding = merge_options(decoding, {"beam_size": n}, ["beam_size"])
        if options.get("sample") and n < 1:
            raise ConfigError(f"decoding: expected n_best of at least 1, found {n}")
        if not options.get("sample") and not 1 <= n <= decoding.beam_size:
            raise ConfigError(
                f"decoding: expected n_best from 1 to beam_size = {decoding.beam_size}, found {n}; raise beam_size or lower n_best"
            )
        max_tokens = min(decoding.max_length, self.model.config.max_seq_len)
        if decoding.min_length >= max_tokens:
            raise ConfigError(
                f"decoding: expected min_length below {max_tokens}, the maximum length of a translation, found {decoding.min_length};"
                " lower min_length or raise max_length"
            )
        return decoding

    def _pieces(self, texts: Sequence[str], prefix: list[int], too_long: str, name: str) -> list[list[list[int]]]:
        """Split each text into pieces that fit the context window; return their token IDs after ``prefix``. A blank text has no pieces."""
        encoder, limit = self.tokenizers.source, self.model.config.max_seq_len - len(prefix)
        pieces: list[list[list[int]]] = []
        for number, (text, tokens) in enumerate(zip(texts, encoder.encode_batch(texts), strict=True), 1):
            if not text.strip() or not tokens:
                pieces.append([])
            elif len(tokens) < limit:
                pieces.append([[*prefix, *tokens]])
            elif too_long == "refuse":
                raise DataError(
                    f"{name}:{number}: expected at most model.max_seq_len = {limit + len(prefix)} tokens, special tokens included,"
                    f" found {len(prefix) + len(tokens) + 1}; shorten the text, or set too_long to 'split'"
                )
            else:
                cut = split_text(text, lambda piece: len(encoder.encode(piece)) < limit)
                pieces.append([[*prefix, *piece] for piece in encoder.encode_batch(cut)])
        return pieces

    def _samples(
        self,
        texts: Sequence[str],
        pieces: list[list[list[int]]],
        n: int,
        decoding: BeamSearchConfig,
        sampling: SamplingConfig,
        batch_tokens: int | None,
        notify: ProgressCallback,
    ) -> list[list[Translation]]:
        """Sample until every text has ``n`` different translations, or no more draws are left."""
        found = [dict[str, Translation]() for _ in texts]
        n, rounds = (1, 1) if sampling.temperature == 0 else (n, MAX_DRAWS_PER_SAMPLE)
        for first in range(0, rounds * n, n):
            draws = [
                (i, k) for i, of_text in enumerate(found) if len(of_text) < n and (pieces[i] or not first) for k in range(first, first + n)
            ]
            sources = [piece for i, _ in draws for piece in pieces[i]]
            ids = [_sample_id(texts[i], part, k) for i, k in draws for part in range(len(pieces[i]))]

            def strategy(rows: list[int], ids: list[int] = ids) -> Strategy:
                return self._sampling_strategy(sampling, [ids[row] for row in rows])

            hypotheses = iter(self._search_all(sources, decoding, 1, batch_tokens, notify, strategy))
            for i, _ in draws:
                drawn = join_pieces([self._translations(next(hypotheses)) for _ in pieces[i]])[0]
                if len(found[i]) < n:
                    found[i].setdefault(drawn.text, drawn)
        return [list(of_text.values()) for of_text in found]

    def _search_all(
        self,
        sources: list[list[int]],
        decoding: BeamSearchConfig,
        n: int,
        batch_tokens: int | None,
        notify: ProgressCallback,
        strategy: Callable[[list[int]], Strategy] | None = None,
    ) -> list[list[Hypothesis]]:
        """Search in batches of similar length, longest first; return the results in the order of the sources.

        ``strategy`` returns the strategy for the sources at some indices; by default it is greedy or beam search with ``decoding``.

        Batches are small enough that every worker gets one, if there are several (``plan_workers``).
        """
        found: list[list[Hypothesis]] = [[] for _ in sources]
        lengths, n_done = sequence_lengths(sources) + self.tokenizers.source.special_tokens.n_added, 0
        n_beams = decoding.beam_size if strategy is None else 1
        n_workers, n_batches = plan_workers(self._decoder_backend, self.model.device, n_beams)  # the backend is made now, not by workers
        batch_tokens = batch_tokens or BATCH_TOKENS * n_batches
        if n_workers > 1:
            batch_tokens = min(batch_tokens, -(-int(lengths.sum()) // n_workers))
        batches = [batch.tolist() for batch in batch_by_tokens(np.argsort(-lengths, kind="stable"), lengths, batch_tokens)]

        def work(rows: list[int]) -> list[list[Hypothesis]]:
            return self._search([sources[i] for i in rows], decoding, n, None if strategy is None else strategy(rows))

        with eval_mode(self.model):
            for batch, hypotheses in parallel_map(work, batches, n_workers):
                for index, of_source in zip(batch, hypotheses, strict=True):
                    found[index] = of_source
                n_done += len(batch)
                notify(n_done, len(sources))
        return found

    def _search(
        self, sources: list[list[int]], decoding: BeamSearchConfig, n: int, strategy: Strategy | None = None
    ) -> list[list[Hypothesis]]:
        device = self.model.device
        strategy = strategy or self._strategy(decoding, n)
        limits = build_length_limits([len(source) for source in sources], decoding, self.model.config.max_seq_len, device)
        rows = PaddedSequences.pad(list(map(self._surround, sources)), self.tokenizers.source.special_tokens.padding).to(device)
        special, suppressed = self._target_tokens, torch.tensor(self.tokenizers.target.never_generated, dtype=torch.long, device=device)
        request = SearchRequest(rows, strategy, limits, special.decoder_start, special.end, [SuppressTokens(suppressed)])
        return search(self._decoder_backend, request)

    def _surround(self, source: Sequence[int]) -> list[int]:
        """Return the token IDs of a source with special tokens."""
        return self.tokenizers.source.special_tokens.seq2seq.surround(source)

    def _strategy(self, decoding: BeamSearchConfig, n: int) -> Strategy:
        """Return greedy search, or beam search for the ``n`` best translations."""
        alpha, special = decoding.length_penalty, self._target_tokens
        if decoding.beam_size == 1:
            return GreedySearch(special.end, alpha, special.padding)
        return BeamSearch(special.end, decoding.beam_size, n, alpha)

    def _sampling_strategy(self, sampling: SamplingConfig, ids: Sequence[int]) -> MultinomialSampling:
        """Return sampling for sources with these sample IDs."""
        return MultinomialSampling(self._target_tokens.end, sampling, tuple(ids), padding=self._target_tokens.padding)

    def _translations(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        target = self.tokenizers.target
        return [
            Translation(replace_line_breaks(target.decode(h.tokens)), h.score, h.log_p, tokens=tuple(target.symbols(h.tokens)))
            for h in hypotheses
        ]


def _sample_id(text: str, piece: int, draw: int) -> int:
    """Return the sample ID of a draw of the translation of a piece of a text, from a hash of the text."""
    return (((text_hash(text) << 32) + piece) << 32) + draw


def join_pieces(pieces: list[list[Translation]]) -> list[Translation]:
    """Join the k-th best translations of all pieces of a text, for every k that all pieces have; no piece gives an empty text."""
    if not pieces:
        return [Translation("", 0.0, 0.0, 0)]
    return [
        Translation(
            " ".join(part.text for part in parts if part.text),
            sum(part.score for part in parts),
            sum(part.log_p for part in parts),
            len(parts),
            tuple(token for part in parts for token in part.tokens),
        )
        for parts in zip(*pieces, strict=False)
    ]


def replace_line_breaks(text: str) -> str:
    r"""Replace line breaks of every kind by spaces, so that the output has as many lines as the input.

    >>> replace_line_breaks("one\r\ntwo\u2028three")
    'one two three'
    """
    return " ".join(text.splitlines())
