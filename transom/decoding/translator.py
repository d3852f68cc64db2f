"""What people call: sentences in, translations and their probabilities out."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, cast

import numpy as np
import torch
from pydantic import ValidationError

from transom.config.explaining import explain
from transom.config.recipe import load_recipe
from transom.config.training import Decoding
from transom.decoding.beam import Beam
from transom.decoding.filters import Forbid
from transom.decoding.flat import FlatSeq2Seq
from transom.decoding.greedy import Greedy
from transom.decoding.hypothesis import Hypothesis
from transom.decoding.inference import evaluating, prepare
from transom.decoding.limits import limits_of
from transom.decoding.loop import log_probabilities, search
from transom.decoding.roles import StepModel
from transom.decoding.sentences import split_text
from transom.errors import CheckpointError, ConfigError, DataError
from transom.inputs.batch import Sequences
from transom.inputs.loader import ordered_batches
from transom.inputs.pairs import Pairs
from transom.inputs.sampler import cut_batches
from transom.inputs.special import EOS, PAD, SOS
from transom.inputs.tokenizer import Tokenizers
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.precision import Precision, choose_precision
from transom.weights.run_folder import CONFIG, RECIPE, TOKENIZER, RunFolder


class Translation(NamedTuple):
    """A translation with what the model thinks of it.

    Attributes:
        text: one line.
        score: log p over the length penalty; of a text in several pieces, the sum.
        log_p: natural logarithm of p(translation | source); of a text in several pieces, the sum.
    """

    text: str
    score: float
    log_p: float


class PairScore(NamedTuple):
    """How probable the model finds a given translation.

    Attributes:
        log_p: natural logarithm of p(target | source), the end symbol included.
        n_tokens: target tokens, the end symbol included.
    """

    log_p: float
    n_tokens: int


class Options(TypedDict, total=False):
    """How to translate. None takes the recipe's setting, or the default named here.

    Attributes:
        beam_size: hypotheses kept a sentence; 1 is greedy.
        length_penalty: GNMT's alpha.
        min_length: fewest tokens of a translation.
        max_length: most tokens of a translation, the end symbol included.
        batch_tokens: most source tokens of a batch, padding included; 1,024.
        too_long: what to do with a text longer than the model reads: "split" at sentence ends and rejoin the translations, or "refuse".
        name: of the texts' origin, for messages; "text".
        tell: called after each batch with the pieces translated so far and all there are.
    """

    beam_size: int | None
    length_penalty: float | None
    min_length: int | None
    max_length: int | None
    batch_tokens: int | None
    too_long: Literal["split", "refuse"] | None
    name: str | None
    tell: Callable[[int, int], None] | None


class Translator:
    """A trained model with its tokenizers and its way of searching."""

    def __init__(
        self,
        model: Seq2SeqTransformer,
        tokenizers: Tokenizers,
        decoding: Decoding | None = None,
        precision: Precision | None = None,
        searcher: FlatSeq2Seq | None = None,
    ) -> None:
        """Join what is needed to translate.

        Args:
            model: as it is; ``load`` prepares one for speed.
            tokenizers: of both sides.
            decoding: default settings of the search.
            precision: of the model's matrix products, with the reason, for whoever asks.
            searcher: the model laid out for searching; left out, the model itself, which may still be learning.
        """
        self._searcher: StepModel[Any, Any] = searcher or model
        self.model, self.tokenizers, self.precision = model, tokenizers, precision
        self.decoding = decoding or Decoding()

    def translate(self, texts: Sequence[str], **options: Unpack[Options]) -> list[str]:
        """Translate each text to one line; a blank text to an empty one.

        Raises:
            ConfigError: an option has no such value.
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        return [best[0].text if best else "" for best in self.n_best(texts, 1, **options)]

    def n_best(self, texts: Sequence[str], n: int, **options: Unpack[Options]) -> list[list[Translation]]:
        """Give each text's ``n`` translations of highest score, best first; fewer where there are no more.

        Raises:
            ConfigError: an option has no such value, or ``n`` is more than ``beam_size``.
            DataError: a text is too long and ``too_long`` is "refuse", or ``texts`` is one text.
        """
        if isinstance(texts, str):
            raise DataError("expected a list of texts, found one text; put it in brackets: [text]")
        decoding = self._settings(n, options)
        pieces = self._pieces(texts, options.get("too_long") or "split", options.get("name") or "text")
        sources = [piece for of_text in pieces for piece in of_text]
        found = iter(self._search_all(sources, decoding, n, options.get("batch_tokens") or 1024, options.get("tell")))
        return [_joined([self._translations(next(found)) for _ in of_text]) for of_text in pieces]

    @torch.inference_mode()
    def score(self, sources: Sequence[str], targets: Sequence[str], batch_tokens: int = 2048, name: str = "pairs") -> list[PairScore]:
        """Compute log p(target | source) of each pair by teacher forcing.

        log p(y | x) = sum_t log p(y_t | y_<t, x), with the model's own matrix products and the softmax in float32 at least.

        Args:
            sources: source sentences.
            targets: their translations.
            batch_tokens: most tokens of a batch on its longer side, padding included.
            name: of the pairs' origin, for messages.

        Raises:
            DataError: the sides differ in number, or a pair is longer than the model reads.
        """
        if len(sources) != len(targets):
            raise DataError(f"{name}: expected as many targets as sources, found {len(targets)} and {len(sources)}")
        if not sources:
            return []
        scores = [PairScore(0.0, 0)] * len(sources)
        pairs, device = Pairs(list(sources), list(targets), name), self._device
        with evaluating(self.model):
            for batch in ordered_batches(pairs, self.tokenizers, batch_tokens, self.model.config.max_seq_len, too_long="refuse"):
                on_device = batch.to(device)
                log_p = log_probabilities(self.model(on_device)).gather(-1, on_device.labels[..., None])[..., 0]  # (batch, target)
                totals = log_p.double().masked_fill(on_device.target.segments == 0, 0.0).sum(1).tolist()
                for sample, total, n_tokens in zip(batch.samples, totals, batch.target.lengths.tolist(), strict=True):
                    scores[sample] = PairScore(total, n_tokens)
        return scores

    @property
    def _device(self) -> torch.device:
        return self.model.unembedding.weight.device

    def _settings(self, n: int, options: Options) -> Decoding:
        """Lay the options over the recipe's settings and check them."""
        changes = {key: value for key, value in options.items() if key in Decoding.model_fields and value is not None}
        raw = {**self.decoding.model_dump(), **changes}
        try:
            decoding = Decoding.model_validate(raw)
        except ValidationError as error:
            raise ConfigError(explain(error, Decoding, raw, lambda path: "decoding")) from None
        if (batch_tokens := options.get("batch_tokens")) is not None and batch_tokens < 1:
            raise ConfigError(f"decoding: batch_tokens: expected at least 1, found {batch_tokens}")
        if (too_long := options.get("too_long")) not in (None, "split", "refuse"):
            raise ConfigError(f"decoding: too_long: expected 'split' or 'refuse', found {too_long!r}")
        if not 1 <= n <= decoding.beam_size:
            raise ConfigError(
                f"decoding: expected n_best from 1 to beam_size = {decoding.beam_size}, found {n}; raise beam_size or ask for fewer"
            )
        most = min(decoding.max_length, self.model.config.max_seq_len)
        if decoding.min_length >= most:
            raise ConfigError(
                f"decoding: expected min_length below {most}, the most tokens of a translation, found {decoding.min_length};"
                " lower min_length or raise max_length"
            )
        return decoding

    def _pieces(self, texts: Sequence[str], too_long: str, name: str) -> list[list[list[int]]]:
        """Encode each text as pieces that the model can read: one, or none for a blank text, or several for a long one."""
        encoder, limit = self.tokenizers.source, self.model.config.max_seq_len
        pieces: list[list[list[int]]] = []
        for number, (text, tokens) in enumerate(zip(texts, encoder.encode_batch(texts), strict=True), 1):
            if not text.strip() or not tokens:
                pieces.append([])
            elif len(tokens) < limit:
                pieces.append([tokens])
            elif too_long == "refuse":
                raise DataError(
                    f"{name}:{number}: expected at most model.max_seq_len = {limit} tokens, the end symbol included, found"
                    f" {len(tokens) + 1}; split the line, or let it be split at sentence ends"
                )
            else:
                pieces.append(encoder.encode_batch(split_text(text, lambda piece: len(encoder.encode(piece)) < limit)))
        return pieces

    def _search_all(
        self, sources: list[list[int]], decoding: Decoding, n: int, batch_tokens: int, tell: Callable[[int, int], None] | None
    ) -> list[list[Hypothesis]]:
        """Search in batches of like length, the longest first; give the answers in the sources' order."""
        found: list[list[Hypothesis]] = [[] for _ in sources]
        lengths, n_done = np.array([len(source) + 1 for source in sources], np.int64), 0
        with evaluating(self.model):
            for batch in map(np.ndarray.tolist, cut_batches(np.argsort(-lengths, kind="stable"), lengths, batch_tokens)):
                for place, hypotheses in zip(batch, self._search([sources[i] for i in batch], decoding, n), strict=True):
                    found[place] = hypotheses
                n_done += len(batch)
                if tell is not None:
                    tell(n_done, len(sources))
        return found

    def _search(self, sources: list[list[int]], decoding: Decoding, n: int) -> list[list[Hypothesis]]:
        device, alpha = self._device, decoding.length_penalty
        strategy = Greedy(EOS, alpha) if decoding.beam_size == 1 else Beam(EOS, decoding.beam_size, n, alpha)
        limits = limits_of([len(source) for source in sources], decoding, self.model.config.max_seq_len, device)
        rows = Sequences.pad([[*source, EOS] for source in sources]).to(device)
        return search(self._searcher, rows, strategy, limits, SOS, EOS, [Forbid(torch.tensor([PAD, SOS], device=device))])

    def _translations(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        return [Translation(one_line(self.tokenizers.target.decode(h.tokens)), h.score, h.log_p) for h in hypotheses]


def load(folder: str | Path, precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto", int8: bool = False) -> Translator:
    """Load a run's model to translate with; the caller's random numbers stay as they were.

    Args:
        folder: the ``--out`` of a training.
        precision: type of the matrix products; auto chooses by measuring.
        int8: on a CPU, multiply by the decoder's weights in 8 bits where only a few hypotheses are live: faster, a little less exact.

    Raises:
        CheckpointError: there is no intact run in the folder.
    """
    run = RunFolder.open(Path(folder))
    config = run.load_config()
    tokenizers = Tokenizers.from_bytes(run.read(TOKENIZER), str(run.path / TOKENIZER))
    for side, found, expected in (
        ("source", tokenizers.source.vocab_size, config.source_vocab_size),
        ("target", tokenizers.target.vocab_size, config.target_vocab_size),
    ):
        if found != expected:
            raise CheckpointError(
                f"{run.path / TOKENIZER}: expected {expected} {side} symbols by {CONFIG}, found {found}; they are of different runs"
            )
    with torch.random.fork_rng(devices=[]):
        model = cast(Seq2SeqTransformer, build_model(config))
    run.load_weights(model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choose_precision(precision, device)
    prepare(model, chosen.dtype, device)
    decoding = load_recipe(run.path / RECIPE)[0].decoding if (run.path / RECIPE).exists() else None
    return Translator(model, tokenizers, decoding, chosen, FlatSeq2Seq(model, int8=int8 and device.type == "cpu"))


def perplexity(scores: Sequence[PairScore]) -> float:
    """Return exp(-sum log p / sum n), over the tokens of all targets, end symbols included.

    Raises:
        DataError: there is nothing to measure.
    """
    n_tokens = sum(score.n_tokens for score in scores)
    if n_tokens == 0:
        raise DataError("expected at least one pair to score, found none")
    return math.exp(min(-sum(score.log_p for score in scores) / n_tokens, 700.0))


def one_line(text: str) -> str:
    r"""Turn every kind of line break into a space, so that an output has as many lines as its input.

    >>> one_line("one\r\ntwo\u2028three")
    'one two three'
    """
    return " ".join(text.splitlines())


def _joined(pieces: list[list[Translation]]) -> list[Translation]:
    """Join the k-th best translations of a text's pieces, for every k that all have; a text without pieces gives the empty line."""
    if not pieces:
        return [Translation("", 0.0, 0.0)]
    return [
        Translation(" ".join(part.text for part in parts if part.text), sum(p.score for p in parts), sum(p.log_p for p in parts))
        for parts in zip(*pieces, strict=False)
    ]
