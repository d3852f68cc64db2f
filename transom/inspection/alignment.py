"""Alignments: cross-attention weights from target tokens or words to source tokens or words."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from transom.config.architecture import Transformer
from transom.data.batch import TranslationBatch, translation_batch
from transom.data.tokenizer.special import EOS
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.predictors.results import Alignment
from transom.errors import ConfigError, DataError
from transom.inspection.recompute import attention_pattern
from transom.layers.attention import Attends
from transom.layers.depth import DepthRouter
from transom.layers.observe import ActivationRecorder
from transom.models.network import Seq2SeqNetwork


def cross_attentions(model: Seq2SeqNetwork) -> list[str]:
    """Return the addresses of the cross-attention layers in order; a recurrent network has at most one."""
    return [name for name, module in model.named_modules() if name.endswith(".cross") and isinstance(module, Attends)]


@torch.no_grad()
def cross_attention(model: Seq2SeqNetwork, source: Sequence[int], target: Sequence[int]) -> Float[Tensor, "n_layers n_heads target source"]:
    """Compute the weights of all ``cross_attentions`` for one sentence pair.

    Row t holds the weights with which target token t is predicted from the tokens before it. The last row and column belong to the
    end-of-sequence token. Tokens that skip a block (mixture of depths) have rows of 0.

    Args:
        model: an encoder-decoder in evaluation mode.
        source: source tokens without the end-of-sequence token.
        target: target tokens without start and end tokens.
    """
    assert not model.training, "expected a model in evaluation mode, since dropout changes the weights; call model.eval()"
    batch = translation_batch([source], [target], [0]).to(model.device)
    attentions = cross_attentions(model)
    routed = [block for block, module in model.named_modules() if isinstance(getattr(module, "depth", None), DepthRouter)]
    sites = [f"{attention}.{site}" for attention in attentions for site in ("q", "k")]
    recorder = ActivationRecorder(sites + [f"{block}.depth.score" for block in routed])
    model(batch, recorder)
    return torch.stack([_of_every_token(model, attention, recorder.activations, batch).float().cpu() for attention in attentions])


def _of_every_token(
    model: Seq2SeqNetwork, attention: str, kept: Mapping[str, Tensor], batch: TranslationBatch
) -> Float[Tensor, "n_heads target source"]:
    """Return the weights of a batch of one pair, with rows of 0 for tokens that skip the block."""
    block = attention.rpartition(".")[0]
    router = getattr(model.get_submodule(block), "depth", None)
    if not isinstance(router, DepthRouter):
        return attention_pattern(model, attention, kept, batch)[0]
    assert isinstance(model.config, Transformer)
    (real,) = model.tokens(f"{block}.attn", batch)
    chosen = router.choose(kept[f"{block}.depth.score"], real)[0]
    weights = torch.zeros(model.config.n_heads, batch.target.tokens.shape[1], batch.source.tokens.shape[1], device=model.device)
    if chosen.any():  # without routed tokens there are no queries
        weights[:, chosen] = attention_pattern(model, attention, kept, batch)[0].to(weights)
    return weights


def clearest_layer(weights: Float[Tensor, "n_layers n_heads target source"]) -> int:
    """Return the layer whose head-averaged weights align best.

    The criterion is the mean over source tokens of the largest weight that any target token gives to it: 1 for a one-to-one alignment,
    about 1 / source if all weight goes to one token or is uniform. It needs no reference alignment.
    """
    return int(weights.mean(1).amax(-2).mean(-1).argmax())


def merge(
    weights: Float[Tensor, "target source"], source_words: Sequence[int], target_words: Sequence[int]
) -> Float[Tensor, "target_words source_words"]:
    """Merge subword weights to word weights: sum over the subwords of a source word, average over those of a target word.

    Args:
        weights: attention weights from target subwords to source subwords.
        source_words: word index of each source subword, from 0 without gaps.
        target_words: word index of each target subword.
    """
    columns = torch.nn.functional.one_hot(torch.tensor(source_words)).to(weights)
    rows = torch.nn.functional.one_hot(torch.tensor(target_words)).to(weights)
    return (rows / rows.sum(0)).T @ weights @ columns


def align(
    model: Seq2SeqNetwork,
    tokenizers: Tokenizers,
    source: str,
    target: str,
    layer: int | None = None,
    words: bool = True,
    to: str | None = None,
) -> Alignment:
    """Align a sentence with its translation by cross-attention weights, averaged over the heads of one layer.

    Args:
        model: an encoder-decoder in evaluation mode.
        tokenizers: source and target tokenizers.
        source: the source sentence.
        target: a translation, by the model or any other.
        layer: decoder layer, from 0; None for that of ``clearest_layer``.
        words: merge subwords to whitespace-separated words.
        to: tag of the target language of a multilingual model.

    Raises:
        ConfigError: the layer does not exist, the model has no cross-attention, or ``to`` is missing.
        DataError: a sentence exceeds the context window.
    """
    config, attentions = model.config, cross_attentions(model)
    if not attentions:
        raise ConfigError("expected a model with cross-attention, found model.attention.kind = 'none'; use another run")
    if layer is not None and not 0 <= layer < len(attentions):
        raise ConfigError(f"expected a decoder layer from 0 to {len(attentions) - 1}, found {layer}")
    pieces = [*tokenizers.source.prefix(to), *tokenizers.source.encode(source)], tokenizers.target.encode(target)
    for side, tokens in zip(("source", "target"), pieces, strict=True):
        if len(tokens) >= config.max_seq_len:
            raise DataError(f"expected a {side} of at most {config.max_seq_len - 1} tokens to align, found {len(tokens)}; shorten it")
    every = cross_attention(model, *pieces)
    chosen = clearest_layer(every) if layer is None else layer
    columns, read = _labels(tokenizers.source, pieces[0], words)
    rows, written = _labels(tokenizers.target, pieces[1], words)
    n_heads = every.shape[1]
    origin = attentions[chosen] + (f", mean of {n_heads} heads" if n_heads > 1 else "")
    return Alignment(read, written, merge(every[chosen].mean(0), columns, rows), origin)


def _labels(tokenizer: Tokenizer, tokens: Sequence[int], words: bool) -> tuple[list[int], tuple[str, ...]]:
    """Return the word index of each token and of a final end-of-sequence token, and the words."""
    tokens = [*tokens, EOS]
    if not words:
        return list(range(len(tokens))), tuple(tokenizer.symbols(tokens))
    places = [count - 1 for count in accumulate(map(int, tokenizer.starts_word(tokens)))]
    groups = [[token for token, place in zip(tokens, places, strict=True) if place == word] for word in range(places[-1] + 1)]
    return places, tuple(tokenizer.decode(group).strip() or "".join(tokenizer.symbols(group)) for group in groups)
