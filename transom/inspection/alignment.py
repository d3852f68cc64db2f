"""Alignments: which source symbols each target symbol attended to."""

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
    """Give the addresses of a model's attentions over the source, layer by layer; a recurrent network has one, or none."""
    return [name for name, module in model.named_modules() if name.endswith(".cross") and isinstance(module, Attends)]


@torch.no_grad()
def cross_attention(model: Seq2SeqNetwork, source: Sequence[int], target: Sequence[int]) -> Float[Tensor, "n_layers n_heads target source"]:
    """Read the weights of each of ``cross_attentions`` for one sentence pair.

    Row t holds the weights with which target token t is predicted from those before it; the last row and column are the end symbol's.
    In a block that only chosen tokens pass (a mixture of depths), the others attend to nothing: their rows are 0.

    Args:
        model: an encoder-decoder in evaluation mode.
        source: the source's tokens, without the end symbol.
        target: the target's tokens, without start and end symbols.
    """
    assert not model.training, "dropout would change what is looked at; call model.eval()"
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
    """Give the weights of the batch's one pair, with rows of 0 for the tokens that pass the block by."""
    block = attention.rpartition(".")[0]
    router = getattr(model.get_submodule(block), "depth", None)
    if not isinstance(router, DepthRouter):
        return attention_pattern(model, attention, kept, batch)[0]
    assert isinstance(model.config, Transformer)
    (real,) = model.tokens(f"{block}.attn", batch)
    chosen = router.choose(kept[f"{block}.depth.score"], real)[0]
    weights = torch.zeros(model.config.n_heads, batch.target.tokens.shape[1], batch.source.tokens.shape[1], device=model.device)
    if chosen.any():  # what no token chooses has no queries
        weights[:, chosen] = attention_pattern(model, attention, kept, batch)[0].to(weights)
    return weights


def clearest_layer(weights: Float[Tensor, "n_layers n_heads target source"]) -> int:
    """Choose the layer whose heads' mean finds every source symbol best.

    A layer's figure is the mean over source symbols of the largest weight that any target symbol gives it: 1 for a one-to-one
    alignment, about 1 / source where all weight goes to one place or is spread evenly. It needs no reference alignment.
    """
    return int(weights.mean(1).amax(-2).mean(-1).argmax())


def merge(
    weights: Float[Tensor, "target source"], source_words: Sequence[int], target_words: Sequence[int]
) -> Float[Tensor, "target_words source_words"]:
    """Merge sub-words to words: sum over a source word's pieces, mean over a target word's.

    Args:
        weights: attention from target pieces to source pieces.
        source_words: the word, counted from 0 without gaps, of each source piece.
        target_words: the same of each target piece.
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
    """Align a sentence with its translation by the model's attention over the source, averaged over the heads of one layer.

    Args:
        model: an encoder-decoder in evaluation mode.
        tokenizers: of both sides.
        source: the source sentence.
        target: its translation, the model's or any other.
        layer: the decoder's layer, from 0; left out, the one of ``clearest_layer``.
        words: merge sub-words to white-space words.
        to: tag of the target language, where the model knows several.

    Raises:
        ConfigError: there is no such layer, the model has no attention, or ``to`` is missing.
        DataError: a sentence has more tokens than the model can read.
    """
    config, attentions = model.config, cross_attentions(model)
    if not attentions:
        raise ConfigError("expected a model that attends to its source, found model.attention.kind = 'none'; align with another")
    if layer is not None and not 0 <= layer < len(attentions):
        raise ConfigError(f"expected a decoder layer from 0 to {len(attentions) - 1}, found {layer}")
    pieces = [*tokenizers.source.prefix(to), *tokenizers.source.encode(source)], tokenizers.target.encode(target)
    for side, tokens in zip(("source", "target"), pieces, strict=True):
        if len(tokens) >= config.max_seq_len:
            raise DataError(f"expected a {side} of at most {config.max_seq_len - 1} tokens to align, found {len(tokens)}; shorten it")
    every = cross_attention(model, *pieces)
    chosen = clearest_layer(every) if layer is None else layer
    (columns, read), (rows, written) = _labels(tokenizers.source, pieces[0], words), _labels(tokenizers.target, pieces[1], words)
    n_heads = every.shape[1]
    origin = attentions[chosen] + (f", mean of {n_heads} heads" if n_heads > 1 else "")
    return Alignment(read, written, merge(every[chosen].mean(0), columns, rows), origin)


def _labels(tokenizer: Tokenizer, tokens: Sequence[int], words: bool) -> tuple[list[int], tuple[str, ...]]:
    """Number the word of each token and of the end symbol behind them, and name the words."""
    tokens = [*tokens, EOS]
    if not words:
        return list(range(len(tokens))), tuple(tokenizer.symbols(tokens))
    places = [count - 1 for count in accumulate(map(int, tokenizer.starts_word(tokens)))]
    groups = [[token for token, place in zip(tokens, places, strict=True) if place == word] for word in range(places[-1] + 1)]
    return places, tuple(tokenizer.decode(group).strip() or "".join(tokenizer.symbols(group)) for group in groups)
