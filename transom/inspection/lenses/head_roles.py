"""Roles of attention heads, by scores of their attention and of their output, each with a threshold."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.config.architecture import TextModelConfig
from transom.config.vision import VisionTransformerConfig
from transom.data.tokenizer.special_tokens import UNK
from transom.inspection.activations import find_network, special_tokens_of, tokenizer_of
from transom.inspection.derive_attention import linear_weight, output_weights
from transom.inspection.lenses.head_statistics import HeadStatistics, attention_layers, layers_by_kind, map_rows
from transom.inspection.trace import trace
from transom.inspection.whole_maps import n_heads_of
from transom.layers.attention import repeat_kv
from transom.layers.block import ParallelBlock
from transom.models.base import Network, Seq2SeqModel
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.inputs import TensorBatch, TokenSequences

Head = tuple[str, int]
"""Address of a layer and index of a head."""

THRESHOLDS = {
    "previous-token": 0.5,
    "positional": 0.75,
    "induction": 0.5,
    "duplicate-token": 0.5,
    "delimiter": 0.5,
    "copying": 0.75,
}
"""Score from which a head has a role: half of its attention, or three quarters of the largest positional or copying score, which is 1."""

N_TEXTS = 8
"""Number of texts of repeated random tokens."""

MAX_REPEATED = 25
"""Largest number of different tokens in a text of repeated random tokens."""


class HeadScores(NamedTuple):
    """Scores of one head; None where a score has no meaning for the model or layer.

    Attributes:
        address: address of the layer.
        head: index of the head.
        previous_token: mean weight of the token before the query, on the texts.
        positional: share of the variance of the weights that relative position explains, on the texts.
        induction: mean weight of the token after the earlier occurrence of the query's token, in texts whose second half repeats the first
            half of different random tokens (prefix matching, Olsson et al. 2022).
        duplicate_token: mean weight of the earlier occurrence itself, in the same texts (Wang et al. 2023).
        delimiter: mean weight of special tokens and punctuation, on the texts.
        copying: sum of the eigenvalues of W_E W_V W_O W_U divided by the sum of their absolute values, from -1 to 1: 1 for a head that
            makes each token that it attends to more probable (Elhage et al. 2021). Gains of norms are part of W_E and W_U.
        roles: roles whose score reaches its threshold. A previous-token head is not also called positional.
    """

    address: str
    head: int
    previous_token: float | None
    positional: float | None
    induction: float | None
    duplicate_token: float | None
    delimiter: float | None
    copying: float | None
    roles: tuple[str, ...] = ()

    def score(self, role: str) -> float | None:
        """Return the score of a role, such as "duplicate-token"."""
        value: float | None = getattr(self, role.replace("-", "_"))
        return value


def head_scores(model: Any, heads: Sequence[HeadStatistics]) -> list[HeadScores]:
    """Compute the scores and roles of all heads.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        heads: statistics of the heads on texts, from ``head_statistics``.
    """
    _, network = find_network(model, None)
    is_image = isinstance(network.config, VisionTransformerConfig)
    repeated = {} if is_image else repeat_scores(model)
    copying = copying_scores(network)
    found = list[HeadScores]()
    for each in heads:
        key, is_self = (each.address, each.head), each.address.endswith(".attn")
        induction, duplicate = repeated.get(key, (None, None))
        scores = HeadScores(
            *key,
            previous_token=each.previous_token if is_self and not is_image else None,
            positional=each.positional if is_self else None,
            induction=induction,
            duplicate_token=duplicate,
            delimiter=None if is_image else each.delimiter,
            copying=copying.get(key),
        )
        roles = [role for role, threshold in THRESHOLDS.items() if (score := scores.score(role)) is not None and score >= threshold]
        if "previous-token" in roles and "positional" in roles:
            roles.remove("positional")
        found.append(scores._replace(roles=tuple(roles)))
    return found


def repeat_scores(model: Any, seed: int = 0) -> dict[Head, tuple[float, float]]:
    """Return the induction and duplicate-token score of each head of self-attention; empty if the context window or vocabulary is tiny.

    A query that skips the block has the weight 0.

    Args:
        model: a run or model of texts.
        seed: seed of the random tokens.
    """
    network = find_network(model, None)[1]
    config = network.config
    assert isinstance(config, TextModelConfig)
    paths = [path for path in attention_layers(network) if path.endswith(".attn")]
    sizes = [getattr(config, name) for name in config.VOCABULARIES]
    sides = ("source", "target") if isinstance(network, Seq2SeqModel) else ("target", "target")
    tokens = [_ordinary_tokens(model, side, size) for side, size in zip(sides, (sizes[0], sizes[-1]), strict=True)]
    n = min(MAX_REPEATED, (config.max_seq_len - 1) // 2, *map(len, tokens))
    if n < 2 or not paths:
        return {}
    draw = torch.Generator().manual_seed(seed)
    special = special_tokens_of(model, "target")
    starts = (
        special_tokens_of(model, sides[0]).document_start,
        special.decoder_start if isinstance(network, Seq2SeqModel) else special.document_start,
    )
    texts = [_repeated_tokens(start, n, of_side, draw) for start, of_side in zip(starts, tokens, strict=True)]
    source, target = (TokenSequences.from_tokens(text.to(network.device)) for text in texts)
    batch = TensorBatch(source=source, decoder_input=target)
    _, traced = trace(network, batch, [f"{path}.weights" for path in paths])
    found = dict[Head, tuple[float, float]]()
    for of_kind in layers_by_kind(paths).values():
        heads = [(path, head) for path in of_kind for head in range(n_heads_of(traced.activations, path))]
        totals = torch.zeros(len(heads), 2, dtype=torch.float64)
        for rows in map_rows(traced.activations, of_kind):
            for row, query in enumerate(rows.queries):
                if query > n:  # the second half
                    keys = rows.weights[:, :, row, [query - n + 1, query - n]]
                    totals += keys.mean(0) / n
        found |= {head: (induction, duplicate) for head, (induction, duplicate) in zip(heads, totals.tolist(), strict=True)}
    return found


def _ordinary_tokens(model: Any, side: str, vocab_size: int) -> Tensor:
    """Return the ids of tokens of texts; of a model without tokenizer, all but the first, which are special tokens of most vocabularies."""
    tokenizer = tokenizer_of(model, side)
    return torch.tensor(range(UNK + 1, vocab_size) if tokenizer is None else tokenizer.maskable, dtype=torch.long)


def _repeated_tokens(start: int, n: int, ordinary: Tensor, draw: torch.Generator) -> Tensor:
    """Return texts of a start token and twice the same ``n`` different random tokens, (N_TEXTS, 1 + 2 n)."""
    rows = torch.stack([ordinary[torch.randperm(len(ordinary), generator=draw)[:n]] for _ in range(N_TEXTS)])
    return torch.cat([torch.full((N_TEXTS, 1), start), rows, rows], 1)


@torch.no_grad()
def copying_scores(network: Network) -> dict[Head, float]:
    """Return the copying score of each head of a decoder-only language model; empty for other models.

    The eigenvalues of W_E W_V W_O W_U, (vocab, vocab), that are not 0 are those of W_O W_U W_E W_V, (d_value, d_value).
    """
    if not isinstance(network, DecoderOnlyTransformer):
        return {}
    embedding, unembedding = network.embedding.tokens.weight.double(), network.unembedding.weight.double()
    if embedding.shape[1] != unembedding.shape[1]:
        return {}
    unembedding = unembedding * _gain(network.decoder.norm, unembedding)
    found = dict[Head, float]()
    for i, block in enumerate(network.decoder.blocks):
        attn, post = block.attn, network.config.norm_placement == "post"
        norm = None if post else block.norm if isinstance(block, ParallelBlock) else block.attn_residual.norm
        circuit = unembedding.T @ (embedding * _gain(norm, embedding))  # (d_model, d_model): W_U W_E
        w_o = output_weights(attn, embedding.new_zeros(1, attn.n_heads, 1, attn.d_value))
        w_v = linear_weight(attn.v).double().unflatten(0, (attn.n_kv_heads, attn.d_value))
        values = torch.linalg.eigvals(w_o @ circuit @ repeat_kv(w_v[None], attn.n_heads)[0].transpose(1, 2))
        size = values.abs().sum(-1)
        score = values.sum(-1).real / size.where(size > 1e-12, torch.inf)
        found |= {(f"decoder.blocks.{i}.attn", head): each for head, each in enumerate(score.tolist())}
    return found


def _gain(norm: Any, like: Tensor) -> Tensor:
    """Return the gain of a norm, (d_model,); 1 without a norm or a gain."""
    weight = getattr(norm, "weight", None)
    return like.new_ones(like.shape[1]) if weight is None else weight.double()
