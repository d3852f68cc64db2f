"""Alignments: cross-attention weights from target tokens or words to source tokens or words."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from transom.config.architecture import TransformerConfig
from transom.data.batch import TranslationBatch, translation_batch
from transom.data.tokenizer.special_tokens import OWN_TOKENS, SpecialTokens
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.predictors.results import Alignment
from transom.errors import ConfigError, DataError
from transom.inspection.messages.tables import message
from transom.inspection.recompute import recompute_attention_weights
from transom.layers.attention import SupportsAttentionWeights
from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.observe import ActivationRecorder
from transom.models.base import Seq2SeqModel


def cross_attention_addresses(model: Seq2SeqModel) -> list[str]:
    """Return the addresses of a model's cross-attention layers from first to last, such as ``decoder.blocks.0.cross``.

    A recurrent network has at most one, ``decoder.cross``.
    """
    return [name for name, module in model.named_modules() if name.endswith(".cross") and isinstance(module, SupportsAttentionWeights)]


@torch.no_grad()
def cross_attention_weights(
    model: Seq2SeqModel,
    source: Sequence[int],
    target: Sequence[int],
    source_tokens: SpecialTokens = OWN_TOKENS,
    target_tokens: SpecialTokens = OWN_TOKENS,
) -> Float[Tensor, "n_layers n_heads target source"]:
    """Compute the attention weights of every cross-attention layer for one sentence pair.

    Row t holds the weights at the decoder position that predicts label t. Special tokens have rows and columns too: the last row and
    column belong to the end-of-sequence token. Rows of target tokens that skip a block (mixture of depths) are 0.

    Args:
        model: an encoder-decoder in evaluation mode.
        source: source tokens without the end-of-sequence token.
        target: target tokens without start and end tokens.
        source_tokens: special tokens of the source.
        target_tokens: special tokens of the target.
    """
    assert not model.training, "expected a model in evaluation mode, since dropout changes the weights; call model.eval()"
    batch = translation_batch([source], [target], [0], source_tokens, target_tokens).to(model.device)
    attentions = cross_attention_addresses(model)
    routed = [block for block, module in model.named_modules() if isinstance(getattr(module, "depth", None), DepthRouter)]
    sites = [f"{attention}.{site}" for attention in attentions for site in ("q", "k")]
    recorder = ActivationRecorder(sites + [f"{block}.depth.score" for block in routed])
    model(batch, recorder)
    return torch.stack([_weights_of_all_tokens(model, attention, recorder.activations, batch).float().cpu() for attention in attentions])


def _weights_of_all_tokens(
    model: Seq2SeqModel, attention: str, activations: Mapping[str, Tensor], batch: TranslationBatch
) -> Float[Tensor, "n_heads target source"]:
    """Return the weights of one cross-attention layer for one sentence pair; rows of target tokens that skip its block are 0."""
    block = attention.rpartition(".")[0]
    router = getattr(model.get_submodule(block), "depth", None)
    if not isinstance(router, DepthRouter):
        return recompute_attention_weights(model, attention, activations, batch)[0]
    assert isinstance(model.config, TransformerConfig)
    (token_mask,) = model.token_masks(f"{block}.attn", batch)
    chosen = router.select(activations[f"{block}.depth.score"], token_mask)[0]
    n_heads = model.config.of_stack("decoder").n_heads
    weights = torch.zeros(n_heads, batch.decoder_input.tokens.shape[1], batch.source.tokens.shape[1], device=model.device)
    if chosen.any():  # without routed tokens there are no queries
        weights[:, chosen] = recompute_attention_weights(model, attention, activations, batch)[0].to(weights)
    return weights


def choose_alignment_layer(weights: Float[Tensor, "n_layers n_heads target source"]) -> int:
    """Return the index of the layer whose weights, averaged over heads, are closest to a one-to-one alignment.

    The score of a layer is the mean over source tokens of the largest weight that any target token gives to the source token. It is 1 for a
    one-to-one alignment, and about 1 / source if weights are uniform or all on one source token. No reference alignment is needed.
    """
    return int(weights.mean(1).amax(-2).mean(-1).argmax())


def merge_subwords(
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
    model: Seq2SeqModel,
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
        target: the translation to align, which need not be the model's own.
        layer: decoder layer, from 0; None for the one that ``choose_alignment_layer`` returns.
        words: align whitespace-separated words instead of tokens, by merging the weights of subwords.
        to: tag of the target language of a multilingual model.

    Raises:
        ConfigError: the layer does not exist, the model has no cross-attention, or ``to`` is missing.
        DataError: a sentence exceeds the context window.
    """
    config, attentions = model.config, cross_attention_addresses(model)
    if not attentions:
        raise ConfigError("expected a model with cross-attention, found model.attention.kind = 'none'; use another run")
    if layer is not None and not 0 <= layer < len(attentions):
        raise ConfigError(f"layer: expected a decoder layer from 0 to {len(attentions) - 1}, found {layer}; give another layer")
    pieces = [*tokenizers.source.language_prefix(to), *tokenizers.source.encode(source)], tokenizers.target.encode(target)
    for side, tokens in zip(("source", "target"), pieces, strict=True):
        if len(tokens) > (most := config.max_seq_len - getattr(tokenizers, side).special_tokens.n_added):
            raise DataError(f"expected a {side} of at most {most} tokens to align, found {len(tokens)}; shorten the {side}")
    all_weights = cross_attention_weights(model, *pieces, tokenizers.source.special_tokens, tokenizers.target.special_tokens)
    chosen = choose_alignment_layer(all_weights) if layer is None else layer
    columns, source_words = word_labels(tokenizers.source, pieces[0], words)
    rows, target_words = word_labels(tokenizers.target, pieces[1], words)
    n_heads = all_weights.shape[1]
    origin = attentions[chosen] if n_heads == 1 else message("alignment.origin", layer=attentions[chosen], n=n_heads)
    return Alignment(source_words, target_words, merge_subwords(all_weights[chosen].mean(0), columns, rows), origin)


def word_labels(tokenizer: Tokenizer, tokens: Sequence[int], words: bool) -> tuple[list[int], tuple[str, ...]]:
    """Return the word index of each token, special tokens of the template included, and each word; without ``words`` a token is a word."""
    tokens = tokenizer.special_tokens.seq2seq.surround(tokens)
    if not words:
        return list(range(len(tokens))), tuple(tokenizer.symbols(tokens))
    word_indices = [count - 1 for count in accumulate(map(int, tokenizer.starts_word(tokens)))]
    groups = [
        [token for token, word_index in zip(tokens, word_indices, strict=True) if word_index == word]
        for word in range(word_indices[-1] + 1)
    ]
    return word_indices, tuple(tokenizer.decode(group).strip() or "".join(tokenizer.symbols(group)) for group in groups)
