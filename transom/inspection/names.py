"""The names of all quantities of a forward pass: one table for lookup, listing and documentation.

The address of a quantity is the path of the module that owns it, and its name: ``decoder.blocks.0.attn.weights``. A quantity either exists
in the forward pass, as a site that an observer can record, or is derived from sites without a matrix product, or is recomputed with one.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal, NamedTuple

from torch import Tensor, nn

from transom.config.architecture import ModelConfig
from transom.errors import ConfigError
from transom.files.message import phrase
from transom.inspection import derive_attention as attention
from transom.inspection import derive_layers as layers
from transom.inspection import derive_recurrent as recurrent
from transom.inspection.activation_sites import fake_pass
from transom.inspection.activations import Activations, depth_selected, join, stack_output
from transom.inspection.messages.tables import ENGLISH, message, templates
from transom.layers.approximations.approximate_attention import ApproximateAttention
from transom.layers.attention import Attention
from transom.layers.block import Block
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.norm import BatchNorm, DynamicTanh, LayerNorm, Norm, RmsNorm
from transom.layers.recurrent.recurrent_decoder import SourceAttention
from transom.layers.recurrent.recurrent_layers import RecurrentEncoder, RecurrentEncoderLayer, RecurrentLayer, RecurrentStack
from transom.layers.stack import Stack
from transom.layers.vision.patch_embedding import PatchEmbedding
from transom.models.base import Network

Derive = Callable[[Activations, str], Tensor | None]
"""Computes a quantity of the module at a path; returns None if the module has no such quantity."""

Cost = Literal["exists", "derived", "recomputed"]

VISION = ("vision-transformer", "spectrogram-transformer")
TEXT = ("seq2seq", "decoder", "encoder", "text-classifier", "token-tagger", "text-embedder")
ENCODERS = ("encoder", "text-classifier", "token-tagger", "text-embedder")
"""Families that may have token types."""

RECURRENT = ("recurrent-seq2seq", "recurrent-decoder")
TRANSFORMERS = (*TEXT, *VISION)
FAMILIES = (*TRANSFORMERS, *RECURRENT, "convolutional")
FAMILY_GROUPS = {
    "all": FAMILIES,
    "Transformers": TRANSFORMERS,
    "text models": (*TEXT, *RECURRENT),
    "text Transformers": TEXT,
    "vision Transformers": VISION,
}
"""Names of groups of families, larger groups first; families are values of ``model.kind``."""


class Quantity(NamedTuple):
    """A row of the table.

    Attributes:
        name: last part of the address.
        symbol: symbol of the articles.
        formula: equation, or what the quantity is.
        axes: names of the axes, as in docs/notation.md.
        derive: function that computes the quantity; None for a site.
        recomputed: whether ``derive`` contains a matrix product.
        alias: name in TransformerLens, after the block and module; empty if it has none.
        only: families that have the quantity, if not all that have a module of this kind.
    """

    name: str
    symbol: str
    formula: str
    axes: str
    derive: Derive | None = None
    recomputed: bool = False
    alias: str = ""
    only: tuple[str, ...] = ()

    @property
    def cost(self) -> Cost:
        """Whether the quantity exists in the forward pass, is derived from its sites, or is recomputed by a matrix product."""
        return "exists" if self.derive is None else "recomputed" if self.recomputed else "derived"


def _gate(name: str) -> Derive:
    """Return the function that computes one gate of a recurrent layer."""
    return lambda a, path: recurrent.gates(a, path).get(name)


POOLED = ("text-classifier", "text-embedder", *VISION, "convolutional")
"""Families that pool the vectors of all tokens or places."""

CROSSED, ATTENDING = ("seq2seq",), ("recurrent-seq2seq",)
"""Families with cross-attention, and with attention of a recurrent decoder."""

_STREAM, _HEADS, _MAP = "batch query d_model", "batch n_heads query d_head", "batch n_heads query key"

_SCORES, _NORMALIZED = "hook_attn_scores", "hook_normalized"


def _norm(*statistics: Quantity, out: tuple[str, str] = ("x", ""), symbol: str = "") -> tuple[Quantity, ...]:
    """Return the rows of a norm: its input, its own quantities, and its output with formula, name in TransformerLens and symbol."""
    return (
        Quantity("x", "x", "input of the norm", "*axes width"),
        *statistics,
        Quantity("out", symbol, out[0], "*axes width", layers.norm_out, alias=out[1]),
    )


_COMMON_ATTENTION = (
    Quantity("q_proj", "Q", "X W_Q, before QK norm and RoPE", _HEADS, attention.q_proj, True, "hook_q"),
    Quantity("k_proj", "K", "X W_K, before QK norm and RoPE", "batch kv_heads key d_head", attention.k_proj, True, "hook_k"),
    Quantity("v_proj", "V", "X W_V, before a value residual", "batch kv_heads key d_value", attention.v_proj, True),
    Quantity("q", "Q", "queries, as the scores read them", _HEADS, alias="hook_rot_q"),
    Quantity("k", "K", "keys, as the scores read them", "batch kv_heads key d_head", alias="hook_rot_k"),
    Quantity("v", "V", "values", "batch kv_heads key d_value", alias="hook_v"),
)

_ATTENTION_OUTPUT = (
    Quantity("z", "Z_h", "A V: output of each head", "batch n_heads query d_value", alias="hook_z"),
    Quantity("concat", "Z_concat", "Concat(Z_1, ..., Z_h)", "batch query width", attention.concat),
    Quantity("head_out", "", "Z_h W_O_h: output of a head", "batch n_heads query d_model", attention.head_out, True, "hook_result"),
    Quantity("out", "O", "Concat(Z_1, ..., Z_h) W_O: output of the layer", _STREAM, attention.out, True, "hook_attn_out"),
)

QUANTITIES: dict[str, tuple[Quantity, ...]] = {
    "model": (
        Quantity("pooled", "", "pooled vector of a text or image", "batch d_model", layers.pooled, only=POOLED),
        Quantity(
            "last_hidden",
            "H",
            "vectors that the output projection maps to logits; in embedders those of the texts",
            "*positions d_model",
            layers.last_hidden,
            True,
        ),
        Quantity("logits", "Z", "H W_U, then any logit_scale and logit_softcap: scores of all symbols or classes", "*positions vocab"),
        Quantity("probs", "f", "softmax(Z / tau); sigmoid for several labels", "*positions vocab", layers.probs),
        Quantity("log_probs", "ln f", "ln f", "*positions vocab", layers.log_probs),
    ),
    "embedding": (
        Quantity("token", "E", "token embeddings, times sqrt(d_model) if scaled", _STREAM, layers.token_embedding, alias="hook_embed"),
        Quantity("position", "P", "position embeddings", _STREAM, layers.position_embedding, alias="hook_pos_embed", only=TEXT),
        Quantity("token_type", "T", "token type embeddings", _STREAM, layers.token_type_embedding, only=ENCODERS),
        Quantity("sum", "E + P", "sum of token, position and token type embeddings", _STREAM, layers.embedding_sum),
        Quantity("resid", "X", "residual stream before the first block", _STREAM),
    ),
    "patch embedding": (
        Quantity("patches", "x_p", "pixels of each patch", "batch patches patch_width", layers.patches),
        Quantity("patch", "x_p E", "patch embeddings", "batch patches d_model", layers.patch_embedding, True),
        Quantity("cls", "x_cls", "class token", "batch 1 d_model", layers.class_token),
        Quantity("distillation", "x_dist", "distillation token", "batch 1 d_model", layers.distillation_token),
        Quantity("position", "E_pos", "position embeddings", "batch query d_model", layers.patch_positions),
        Quantity("resid", "z_0", "residual stream before the first block", _STREAM),
    ),
    "stem stages": (Quantity("*", "", "feature map after a stage of the stem", "batch maps map_height map_width"),),
    "stack": (Quantity("out", "X", "output of the stack, after its final norm", _STREAM, stack_output),),
    "block": (
        Quantity("resid_pre", "X", "residual stream before the block", _STREAM, alias="hook_resid_pre"),
        Quantity("resid_mid", "X", "residual stream after self-attention", _STREAM, alias="hook_resid_mid"),
        Quantity("resid_cross", "X", "residual stream after cross-attention", _STREAM, alias="hook_resid_mid_cross", only=CROSSED),
        Quantity("resid_post", "X", "residual stream after the block", _STREAM, alias="hook_resid_post"),
    ),
    "depth router": (
        Quantity("score", "r", "w x + b: score of each token", "batch query"),
        Quantity("selected", "", "whether a token passes the block", "batch query", depth_selected),
    ),
    "norm": _norm(),
    "layer norm": _norm(
        Quantity("mean", "mu", "mean of each vector", "*axes", layers.norm_mean),
        Quantity("variance", "sigma^2", "biased variance of each vector", "*axes", layers.norm_variance),
        Quantity("scale", "sigma", "sqrt(sigma^2 + eps)", "*axes", layers.norm_scale, alias="hook_scale"),
        Quantity("normalized", "x_hat", "(x - mu) / sqrt(sigma^2 + eps)", "*axes width", layers.norm_normalized),
        out=("gamma x_hat + beta", _NORMALIZED),
        symbol="LN(x)",
    ),
    "RMS norm": _norm(
        Quantity("mean_square", "", "mean of the squares of each vector", "*axes", layers.norm_mean_square),
        Quantity("scale", "", "sqrt(mean(x^2) + eps)", "*axes", layers.norm_scale, alias="hook_scale"),
        Quantity("normalized", "x_hat", "x / sqrt(mean(x^2) + eps)", "*axes width", layers.norm_normalized, alias=_NORMALIZED),
        out=("gamma x_hat", ""),
        symbol="RMSNorm(x)",
    ),
    "batch norm": _norm(
        Quantity("mean", "mu", "running mean of each feature", "*axes", layers.norm_mean),
        Quantity("variance", "sigma^2", "running variance of each feature", "*axes", layers.norm_variance),
        Quantity("scale", "sigma", "sqrt(sigma^2 + eps)", "*axes", layers.norm_scale),
        Quantity("normalized", "x_hat", "(x - mu) / sqrt(sigma^2 + eps)", "*axes width", layers.norm_normalized),
        out=("gamma x_hat + beta", ""),
    ),
    "dynamic tanh": _norm(
        Quantity("normalized", "x_hat", "tanh(alpha x)", "*axes width", layers.norm_normalized),
        out=("gamma x_hat + beta", ""),
    ),
    "attention": (
        *_COMMON_ATTENTION,
        Quantity("dot_products", "S", "Q K^T", _MAP, attention.attention_map("dot_products"), True),
        Quantity("scores", "s_ij", "Q K^T / sqrt(d_k), then softcap and position bias", _MAP, attention.attention_map("scores"), True),
        Quantity("masked_scores", "S + M", "scores; -infinity where masked", _MAP, attention.attention_map("masked_scores"), True, _SCORES),
        Quantity("logsumexp", "", "ln sum_j exp(scores_ij)", "batch n_heads query", attention.attention_map("logsumexp"), True),
        Quantity("weights", "A", "softmax of the masked scores", _MAP, attention.weights, True, "hook_pattern"),
        *_ATTENTION_OUTPUT,
    ),
    "approximate attention": (
        *_COMMON_ATTENTION,
        Quantity("weights", "A", "weights that the approximation implies", _MAP, attention.implied_weights, True),
        *_ATTENTION_OUTPUT,
    ),
    "source attention": (
        Quantity("q", "s_t", "decoder states, projected", "batch n_heads query d_head"),
        Quantity("k", "h_j", "encoder states, projected", "batch kv_heads key d_head"),
        Quantity("v", "h_j", "encoder states", "batch kv_heads key d_model"),
        Quantity("scores", "e_tj", "score(s_t, h_j)", "batch n_heads query key", attention.source_scores, True),
        Quantity("weights", "a_tj", "softmax of the scores over source tokens", "batch n_heads query key", attention.weights, True),
        Quantity("z", "c_t", "sum_j a_tj h_j: context vector", "batch n_heads query d_model"),
    ),
    "feed-forward": (
        Quantity("pre", "h_1", "X W_1 + b_1: pre-activation", "*axes d_ff", layers.up, True, "hook_pre"),
        Quantity("hidden", "f(h_1)", "f(X W_1 + b_1): hidden units", "*axes d_ff", alias="hook_post"),
        Quantity("out", "h_2", "f(h_1) W_2 + b_2: output", "*axes d_model", layers.down, True, "hook_mlp_out"),
    ),
    "gated feed-forward": (
        Quantity("pre", "", "X W_g: pre-activation of the gate", "*axes d_ff", layers.gate_pre, True, "hook_pre"),
        Quantity("gate", "", "f(X W_g): gate", "*axes d_ff", layers.gate, True),
        Quantity("up", "", "X W_1: units that are gated", "*axes d_ff", layers.up, True, "hook_pre_linear"),
        Quantity("hidden", "", "f(X W_g) * X W_1: hidden units", "*axes d_ff", alias="hook_post"),
        Quantity("out", "", "hidden W_2: output", "*axes d_model", layers.down, True, "hook_mlp_out"),
    ),
    "mixture of experts": (
        Quantity("router", "", "X W_r: logits of the router", "batch query n_experts"),
        Quantity("router_probs", "p", "probability of each expert", "batch query n_experts", layers.router_probs),
        Quantity("chosen", "", "indices of the chosen experts, best first", "batch query top_k", layers.chosen_experts),
        Quantity("gates", "g", "gates of the chosen experts", "batch query top_k", layers.expert_gates),
        Quantity("out", "", "sum_i g_i E_i(x) + E_shared(x): output", _STREAM, layers.experts_out, True, "hook_mlp_out"),
    ),
    "recurrent stack": (
        Quantity("attentional", "h~_t", "tanh(W_c [c_t; h_t])", "batch query d_model", recurrent.attentional, True, only=ATTENDING),
        Quantity("maxout", "t_t", "maxout of [s_t; y_{t-1}; c_t]", "batch query d_model", recurrent.maxout, True, only=ATTENDING),
        Quantity("out", "h_t", "output of the stack", "batch query d_model", recurrent.recurrent_out),
    ),
    "recurrent encoder layer": (Quantity("h", "h_t", "states, both directions concatenated", "batch query d_model"),),
    "recurrent layer": (
        Quantity("h", "h_t", "states", "batch query width", recurrent.states),
        Quantity("i", "i_t", "input gate of an LSTM", "batch query width", _gate("i"), True),
        Quantity("f", "f_t", "forget gate of an LSTM", "batch query width", _gate("f"), True),
        Quantity("g", "g_t", "candidate of an LSTM", "batch query width", _gate("g"), True),
        Quantity("o", "o_t", "output gate of an LSTM", "batch query width", _gate("o"), True),
        Quantity("c", "c_t", "f c_{t-1} + i g: cell state of an LSTM", "batch query width", _gate("c"), True),
        Quantity("r", "r_t", "reset gate of a GRU", "batch query width", _gate("r"), True),
        Quantity("z", "z_t", "update gate of a GRU", "batch query width", _gate("z"), True),
        Quantity("n", "n_t", "candidate of a GRU", "batch query width", _gate("n"), True),
        Quantity("pre", "", "W x_t + U h_{t-1} + b of a simple network", "batch query width", _gate("pre"), True),
    ),
}
"""Quantities by the kind of module that owns them."""

OWNER_FAMILIES: dict[str, tuple[str, ...]] = {
    "model": FAMILIES,
    "embedding": FAMILY_GROUPS["text models"],
    "patch embedding": VISION,
    "stem stages": (*VISION, "convolutional"),
    "source attention": ATTENDING,
    "recurrent stack": RECURRENT,
    "recurrent encoder layer": ATTENDING,
    "recurrent layer": RECURRENT,
}
"""Families that can have a kind of module; the other kinds are those of Transformers."""

OWNERS: tuple[tuple[type[nn.Module], str], ...] = (
    (Network, "model"),
    (Embedding, "embedding"),
    (PatchEmbedding, "patch embedding"),
    (Stack, "stack"),
    (Block, "block"),
    (DepthRouter, "depth router"),
    (LayerNorm, "layer norm"),
    (RmsNorm, "RMS norm"),
    (BatchNorm, "batch norm"),
    (DynamicTanh, "dynamic tanh"),
    (Norm, "norm"),
    (ApproximateAttention, "approximate attention"),
    (Attention, "attention"),
    (SourceAttention, "source attention"),
    (GatedFeedForward, "gated feed-forward"),
    (FeedForward, "feed-forward"),
    (MixtureOfExperts, "mixture of experts"),
    (RecurrentEncoder, "recurrent stack"),
    (RecurrentStack, "recurrent stack"),
    (RecurrentEncoderLayer, "recurrent encoder layer"),
    (RecurrentLayer, "recurrent layer"),
)
"""Kind of owner of each module class; the first that matches counts."""


class NamedQuantity(NamedTuple):
    """A quantity of a model.

    Attributes:
        address: path of the owner and name.
        kind: kind of the module that owns it, a key of ``QUANTITIES``.
        quantity: row of the table.
        shape: shape for one source of 3 tokens and one target of 2, or one image.
        cost: "exists", "derived" or "recomputed" in this model.
        alias: name in TransformerLens; empty if it has none.
    """

    address: str
    kind: str
    quantity: Quantity
    shape: tuple[int, ...]
    cost: Cost
    alias: str


def owner_kind(module: nn.Module, path: str) -> str | None:
    """Return the kind of owner that a module is; None for modules without quantities."""
    if path.endswith("stem.stages"):
        return "stem stages"
    return next((kind for owner, kind in OWNERS if isinstance(module, owner)), None)


@cache
def _descriptions() -> dict[str, str]:
    """Return the message of each formula that has words, by its English text."""
    keys = (key for key in templates(ENGLISH) if key.startswith("explain.quantities."))
    found = (message(key, previous="{t-1}") for key in keys)
    return {each: each for each in found}


def description(row: Quantity) -> str:
    """Return the formula of a quantity, as a message if it has words."""
    return _descriptions().get(row.formula, row.formula)


def families_of(kind: str, row: Quantity) -> tuple[str, ...]:
    """Return the families of models, by ``model.kind``, that have a quantity with some choice of components.

    Args:
        kind: kind of the module that owns the quantity, a key of ``QUANTITIES``.
        row: row of the table.
    """
    return row.only or OWNER_FAMILIES.get(kind, TRANSFORMERS)


def find_quantity(owner: nn.Module | None, address: str) -> Quantity | None:
    """Return the row of the table for an address whose path leads to ``owner``; None if there is none."""
    path, _, name = address.rpartition(".")
    rows = () if owner is None else QUANTITIES.get(owner_kind(owner, path) or "", ())
    return next((row for row in rows if fnmatchcase(name, row.name)), None)


def list_names(config: ModelConfig) -> list[NamedQuantity]:
    """List all quantities of a model with their shapes, without allocating its weights.

    The shapes are those for one source of 3 tokens and one target of 2 tokens, or for one image, in which all experts and routed blocks
    process every token.

    Args:
        config: the model's configuration, with vocabulary sizes.
    """
    with fake_pass(config) as a:
        found = list[NamedQuantity]()
        for address, kind, row in _candidates(a):
            cost = "exists" if address in a.recorded else row.cost
            if (x := a.get(address)) is not None:
                found.append(NamedQuantity(address, kind, row, tuple(x.shape), cost, transformer_lens_name(a.model, address, row)))
        return found


def required_sites(config: ModelConfig, addresses: Iterable[str]) -> list[str]:
    """Return the sites from which quantities of a model follow, and ``logits`` if they follow from these."""
    with fake_pass(config) as a:
        for address in addresses:
            a.get(address)
        return sorted(a.sites_read)


def _candidates(a: Activations) -> Iterator[tuple[str, str, Quantity]]:
    """Yield the address, kind of owner and row of everything that the modules of a model may have."""
    for path, module in a.model.named_modules():
        kind = owner_kind(module, path) or ""
        for row in QUANTITIES.get(kind, ()):
            if row.name == "*":
                yield from ((address, kind, row) for address in a.recorded if address.startswith(f"{path}."))
            else:
                yield join(path, row.name), kind, row


_PARTS = {
    "": "",
    "attn": "attn",
    "cross": "cross_attn",
    "ff": "mlp",
    "attn_residual.norm": "ln1",
    "cross_residual.norm": "ln2",
    "ff_residual.norm": "ln2",
}
"""Names of the parts of a block in TransformerLens."""


def transformer_lens_name(model: Network, address: str, row: Quantity) -> str:
    """Return the name of a quantity in TransformerLens; empty if it has none.

    TransformerLens names the blocks ``blocks.N`` in models with one stack, and ``encoder.N`` and ``decoder.N`` in translators. The outputs
    of attention and feed-forward belong to the block. Its RMSNorm calls the vectors before gamma normalized, its LayerNorm those after it.
    The order of the axes differs: it has the heads after the positions.
    """
    path, _, name = address.rpartition(".")
    two_stacks = hasattr(model, "encoder") and hasattr(model, "decoder")
    if not row.alias:
        return ""
    stack, _, rest = path.partition(".blocks.")
    if not rest:
        if name in ("token", "position"):
            return "" if two_stacks else row.alias
        return f"ln_final.{row.alias}" if stack in ("encoder.norm", "decoder.norm") and not two_stacks else ""
    number, _, part = rest.partition(".")
    if part not in _PARTS:
        return ""
    owner = "" if row.alias in ("hook_attn_out", "hook_mlp_out") else _PARTS[part]
    if part == "ff_residual.norm" and model.get_submodule(f"{stack}.blocks.{number}").cross is not None:
        owner = "ln3"
    alias = "hook_cross_attn_out" if part == "cross" and name == "out" else row.alias
    block = f"{stack}.{number}" if two_stacks else f"blocks.{number}"
    return ".".join(piece for piece in (block, owner, alias) if piece)


def aliases_of(quantities: Iterable[NamedQuantity]) -> dict[str, str]:
    """Return the address of each name of TransformerLens."""
    return {each.alias: each.address for each in quantities if each.alias}


def select_names(known: Iterable[str], wanted: Iterable[str], aliases: Mapping[str, str], where: str = "(transom names RUN)") -> list[str]:
    """Return the addresses that are wanted, in the order of ``known``.

    Args:
        known: all addresses of a model.
        wanted: addresses, their endings (``attn.weights``), patterns with ``*``, or names of TransformerLens.
        aliases: address per name of TransformerLens.
        where: where the names are listed, for the message.

    Raises:
        ConfigError: a name is empty or matches nothing; the message has the three nearest.
    """
    known, chosen = list(known), set[str]()
    for pattern in wanted:
        if not pattern.strip():
            raise ConfigError(f"expected the name of a quantity, found an empty one; leave it out, or give a name {where}")
        found = [address for name, address in (*((each, each) for each in known), *aliases.items()) if _fits(name, pattern)]
        if not found:
            endings = dict.fromkeys(ending for address in known for ending in (address, ".".join(address.split(".")[-2:])))
            near = difflib.get_close_matches(pattern, [*endings, *aliases], n=3, cutoff=0.0)
            raise ConfigError(
                phrase(
                    "errors.unknown_name",
                    "expected the name of a quantity, found {found}; the nearest are {near} {where}",
                    found=repr(pattern),
                    near=", ".join(near),
                    where=where,
                )
            )
        chosen.update(found)
    return [address for address in known if address in chosen]


def _fits(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a name or its ending after a dot."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")
