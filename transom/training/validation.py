"""Reading the validation set: the loss by teacher forcing, BLEU and chrF by translating."""

import math
from collections.abc import Mapping, Sequence

import torch

from transom.config.decoding import Decoding
from transom.decoding.searcher import searcher_of
from transom.decoding.translator import Translator
from transom.inputs.batch import Batch
from transom.inputs.pairs import Pairs
from transom.inputs.tokenizer import Tokenizers
from transom.models.network import Network, Seq2SeqNetwork
from transom.training.evaluation import corpus_scores
from transom.training.step import batch_loss

SHOWN = 5
"""Translations that a validation shows."""


@torch.inference_mode()
def validation_loss(model: Network, batches: Sequence[Batch], autocast: torch.autocast) -> dict[str, float]:
    """Return the negative log-likelihood a true target token in nats (``loss``) and its exponential (``perplexity``)."""
    device = next(model.parameters()).device
    total, n_tokens = 0.0, 0
    for batch in batches:
        with autocast:
            total += batch_loss(model, batch.to(device), smoothing=0.0)[1].item()
        n_tokens += batch.n_target_tokens
    loss = total / n_tokens
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


@torch.inference_mode()
def validation_accuracy(model: Network, batches: Sequence[Batch], autocast: torch.autocast) -> dict[str, float]:
    """Return the share, in percent, of the labels that the model finds the most probable (``accuracy``)."""
    device = next(model.parameters()).device
    right = n = 0
    for batch in (batch.to(device) for batch in batches):
        with autocast:
            hidden, weight = model.output(batch)
            found = (hidden[batch.counted] @ weight.T.to(hidden)).argmax(-1)
        right += int((found == batch.labels[batch.counted]).sum())
        n += batch.n_target_tokens
    return {"accuracy": 100 * right / n}


def validation_scores(
    model: Seq2SeqNetwork, pairs: Pairs, n_sentences: int, tokenizers: Tokenizers, decoding: Decoding, dtype: torch.dtype
) -> tuple[dict[str, float], tuple[Mapping[str, str], ...]]:
    """Translate the first sentences of the validation set by products in ``dtype``; return bleu and chrf, and a few of the translations.

    Case is ignored where the model has none.
    """
    sources, references = pairs.source[:n_sentences], pairs.target[:n_sentences]
    translations = Translator(model, tokenizers, decoding, searcher=searcher_of(model, dtype)).translate(sources)
    scores = corpus_scores(translations, references, lowercase=tokenizers.target.lowercase)
    rows = zip(sources[:SHOWN], references, translations, strict=False)
    return scores, tuple({"source": s, "reference": r, "translation": t} for s, r, t in rows)
