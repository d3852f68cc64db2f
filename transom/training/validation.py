"""Validation metrics: loss and accuracy by teacher forcing, and BLEU and chrF of generated translations."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch

from transom.config.decoding import BeamSearchConfig
from transom.data.batch import Batch
from transom.data.pairs.pairs import Pairs
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.predictors.translator import Translator
from transom.models.base import Network, Seq2SeqModel
from transom.training.objectives.objective import CrossEntropy, forward_pass
from transom.training.translation_metrics import corpus_scores

N_SHOWN_TRANSLATIONS = 5
"""Number of sample translations per target language."""

Part = TypeVar("Part")


def different_samples(keys: Sequence[Hashable], n: int) -> list[int]:
    """Return the indices of the first ``n`` samples whose keys differ from all earlier ones.

    >>> different_samples(["a", "b", "a", "c", "d"], 3)
    [0, 1, 3]
    """
    first = dict[Hashable, int]()
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    return list(first.values())[:n]


def validation_loss(model: Network, batches: Sequence[Batch], autocast: torch.autocast) -> dict[str, float]:
    """Return the negative log-likelihood per target token in nats (``loss``) and its exponential (``perplexity``)."""
    return validation_losses(model, {None: batches}, autocast)


def validation_losses(model: Network, batches: Mapping[str | None, Sequence[Batch]], autocast: torch.autocast) -> dict[str, float]:
    """Return ``validation_loss`` over all batches and, under keys such as ``loss/de``, over the batches of each target language."""
    sums = {to: _sum_nll(model, of_language, autocast) for to, of_language in batches.items()}
    return _overall_and_per_language(sums, _loss_and_perplexity)


@torch.inference_mode()
def _sum_nll(model: Network, batches: Sequence[Batch], autocast: torch.autocast) -> tuple[float, int]:
    """Return the negative log-likelihood summed over all target tokens, in nats, and their number."""
    total, n_tokens = 0.0, 0
    for batch in batches:
        with autocast:
            total += CrossEntropy(label_smoothing=0.0).loss(forward_pass(model, batch.to(model.device))).nll.item()
        n_tokens += batch.n_target_tokens
    return total, n_tokens


def _loss_and_perplexity(sums: Sequence[tuple[float, int]]) -> dict[str, float]:
    loss = sum(total for total, _ in sums) / sum(n_tokens for _, n_tokens in sums)
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


def _overall_and_per_language(parts: Mapping[str | None, Part], metrics: Callable[[Sequence[Part]], dict[str, float]]) -> dict[str, float]:
    """Return the metrics of all parts together and, under keys such as ``loss/de``, of each part that has a language tag."""
    each = {f"{key}/{to}": value for to, part in parts.items() if to is not None for key, value in metrics([part]).items()}
    return metrics(list(parts.values())) | each


@torch.inference_mode()
def validation_accuracy(model: Network, batches: Sequence[Batch], autocast: torch.autocast) -> dict[str, float]:
    """Return the percentage of labels to which the model gives the highest probability (``accuracy``)."""
    n_correct = n = 0
    for batch in (batch.to(model.device) for batch in batches):
        with autocast:
            hidden, weight = model.logit_factors(batch)
            found = (hidden[batch.loss_mask] @ weight.T.to(hidden)).argmax(-1)
        n_correct += int((found == batch.labels[batch.loss_mask]).sum())
        n += batch.n_target_tokens
    return {"accuracy": 100 * n_correct / n}


class _Translations(NamedTuple):
    sources: list[str]
    references: list[str]
    translations: list[str]


def validation_translation_scores(
    model: Seq2SeqModel,
    pairs: Mapping[str | None, Pairs],
    n_sentences: int,
    tokenizers: Tokenizers,
    decoding: BeamSearchConfig,
    dtype: torch.dtype,
) -> tuple[dict[str, float], tuple[Mapping[str, str], ...]]:
    """Translate validation sentences; return BLEU and chrF, and a few translations with source and reference.

    The scores are computed over all translated sentences and, under keys such as ``bleu/de``, per target language. Case is ignored if the
    tokenizer lower-cases.

    Args:
        model: the model to validate.
        pairs: validation pairs by tag of the target language; the tag is None for models without tags.
        n_sentences: number of sentences to translate per target language, from the first.
        tokenizers: tokenizers of source and target.
        decoding: search settings.
        dtype: dtype of the matrix products.
    """
    translator = Translator(model, tokenizers, decoding, decoder_backend=build_decoder_backend(model, dtype))
    found = dict[str | None, _Translations]()
    for to, of_language in pairs.items():
        sources = of_language.source[:n_sentences]
        found[to] = _Translations(sources, of_language.target[:n_sentences], translator.translate(sources, to=to))

    def scores(parts: Sequence[_Translations]) -> dict[str, float]:
        translations = [line for part in parts for line in part.translations]
        references = [line for part in parts for line in part.references]
        return corpus_scores(translations, references, lowercase=tokenizers.target.lowercase)

    samples = [
        {"source": source, "reference": reference, "translation": translation} | ({} if to is None else {"to": to})
        for to, part in found.items()
        for source, reference, translation in (
            (part.sources[i], part.references[i], part.translations[i]) for i in different_samples(part.sources, N_SHOWN_TRANSLATIONS)
        )
    ]
    return _overall_and_per_language(found, scores), tuple(samples)
