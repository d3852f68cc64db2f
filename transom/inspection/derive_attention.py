"""Quantities of attention layers that follow from their sites ``q``, ``k``, ``v`` and ``z``."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.inspection.activations import Activations, attention_context, autocast_as, heads_of, sublayer_input
from transom.layers.attention import Attention, AttentionArgs, attention_scores, attention_weights
from transom.layers.context import ALL_PAIRS, Part
from transom.layers.embedding import to_autocast_dtype
from transom.layers.lora import LoraLinear


def attention_memory(a: Activations, path: str) -> Tensor:
    """Return the input of W_K and W_V: the encoder's output for cross-attention, the input of W_Q for self-attention."""
    return a["encoder.out"] if path.endswith(".cross") else sublayer_input(a, path)


def q_proj(a: Activations, path: str) -> Tensor:
    """Compute X W_Q per head, before QK norm and rotation."""
    return _heads(a.module(path).q(sublayer_input(a, path)), a.module(path).d_head)


def k_proj(a: Activations, path: str) -> Tensor:
    """Compute X W_K per head, before QK norm and rotation."""
    return _heads(a.module(path).k(attention_memory(a, path)), a.module(path).d_head)


def v_proj(a: Activations, path: str) -> Tensor:
    """Compute X W_V per head, before a value residual."""
    return _heads(a.module(path).v(attention_memory(a, path)), a.module(path).d_value)


def _heads(x: Tensor, width: int) -> Tensor:
    """Split (batch, length, heads * width) into heads: (batch, heads, length, width)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


class AttentionInputs(NamedTuple):
    """Queries and keys of one attention layer, for chosen heads and query rows.

    Attributes:
        q: queries.
        k: keys of the heads of ``q``, repeated where heads share them.
        args: mask, bias and sinks for these heads and rows.
    """

    q: Float[Tensor, "batch heads rows d_head"]
    k: Float[Tensor, "batch heads key d_head"]
    args: AttentionArgs

    @classmethod
    def of(cls, a: Activations, path: str, heads: Sequence[int] | None = None, part: Part = ALL_PAIRS, text: int | None = None) -> Self:
        """Select heads, queries and keys of the layer at ``path``, of one or all texts; without ``heads``, all heads.

        Queries and keys have the dtype in which the kernel read them under the autocast of the pass.
        """
        module, texts = a.module(path), slice(None) if text is None else slice(text, text + 1)
        with a.as_in_pass():
            q, k = (
                to_autocast_dtype(a.of_heads(f"{path}.{name}", module.n_heads, heads)[texts][:, :, rows])
                for name, rows in zip("qk", part, strict=True)
            )
            args = module.attention_args(attention_context(a, path, part, text))
        return cls(q, k, _args_of_heads(args, heads))

    @classmethod
    def select(cls, q: Tensor, k: Tensor, args: AttentionArgs, heads: Sequence[int] | None = None) -> Self:
        """Select heads of the queries and keys of a layer, and of its mask, bias and sinks; None selects all."""
        n_heads = q.shape[1]
        return cls(heads_of(q, n_heads, heads), heads_of(k, n_heads, heads), _args_of_heads(args, heads))

    def dot_products(self) -> Tensor:
        """Compute Q K^T, before the division by sqrt(d_k)."""
        return self.q @ self.k.transpose(-2, -1)

    def scores(self) -> Tensor:
        """Compute the scores S, with softcap and position bias."""
        return attention_scores(self.q, self.k, self.args)

    def masked_scores(self) -> Tensor:
        """Compute S with minus infinity where a query may not attend to a key."""
        s = self.scores()
        return s if self.args.mask is None else s.masked_fill(~self.args.mask, -torch.inf)

    def logsumexp(self) -> Tensor:
        """Compute ln sum_j exp(S_ij) over the visible keys and the sink; minus infinity for a query that sees nothing."""
        s = self.masked_scores()
        wide = s.to(torch.promote_types(s.dtype, torch.float32))
        if (sinks := self.args.sinks) is not None:
            wide = torch.cat([wide, sinks.to(wide)[:, None, None].expand(len(wide), -1, wide.shape[2], 1)], -1)
        return wide.logsumexp(-1)

    def visible_rows(self) -> Tensor:
        """Return which queries attend to any key, (batch, heads, query) or broadcastable to it."""
        return torch.ones_like(self.q[..., 0], dtype=torch.bool) if self.args.mask is None else self.args.mask.any(-1)

    def score_magnitude(self) -> Tensor:
        """Compute the largest sum of |q_i k_i| / sqrt(d_k), plus |bias|, over the visible keys of each query, in float64."""
        terms = (self.q.double().abs() * self.q.shape[-1] ** -0.5) @ self.k.double().abs().transpose(-2, -1)
        if self.args.bias is not None:
            terms = terms + self.args.bias.double().abs()
        visible = terms if self.args.mask is None else terms.masked_fill(~self.args.mask, 0.0)
        return visible.amax(-1, keepdim=True)

    def weights(self) -> Tensor:
        """Compute the attention weights with the layer's own functions."""
        return attention_weights(self.scores(), self.args)


SLICED_MAPS = frozenset(("dot_products", "scores", "masked_scores", "logsumexp", "weights"))
"""Methods of ``AttentionInputs``: quantities that are computed for the chosen heads and rows only."""


def is_exact(module: object) -> bool:
    """Return whether an attention layer computes the scaled dot product: no approximation, and no score function of a plugin."""
    return type(module) is Attention and module.score is None


def _args_of_heads(args: AttentionArgs, heads: Sequence[int] | None) -> AttentionArgs:
    """Select the mask, bias and sinks of some heads; None selects all."""
    if heads is None:
        return args
    mask, bias = (x if x is None or x.shape[1] == 1 else x[:, list(heads)] for x in (args.mask, args.bias))
    return args._replace(mask=mask, bias=bias, sinks=None if args.sinks is None else args.sinks[list(heads)])


def attention_map(name: str) -> Callable[[Activations, str], Tensor]:
    """Return the function that computes ``AttentionInputs.name`` for all heads and rows of a layer."""
    return lambda a, path: getattr(AttentionInputs.of(a, path), name)()


def weights(a: Activations, path: str) -> Tensor:
    """Compute the attention weights with the layer's own function."""
    result: Tensor = a.module(path).attention_weights(a[f"{path}.q"], a[f"{path}.k"], attention_context(a, path))
    return result


def implied_weights(a: Activations, path: str) -> Tensor:
    """Compute the weights that an approximation of attention implies, in float32 or wider, without autocast, as the approximation."""
    module, q, k = a.module(path), a[f"{path}.q"], a[f"{path}.k"]
    wide = torch.promote_types(q.dtype, torch.float32)
    with autocast_as(a.model, None):
        if not module.approximation.supports_packing:  # one sequence per row
            result: Tensor = module.approximation.unmasked_weights(q.to(wide), k.to(wide))
            return result
        return weights(a, path)


def concat(a: Activations, path: str) -> Tensor:
    """Concatenate the outputs of all heads."""
    return a[f"{path}.z"].transpose(1, 2).flatten(2)


def head_out(a: Activations, path: str) -> Tensor:
    """Compute the contribution of each head to the output, z_h W_O_h; their sum and the bias are the output."""
    z, module = a[f"{path}.z"], a.module(path)
    return torch.einsum("bhqv,hvd->bhqd", z, output_weights(module, z))


def output_weights(module: Attention, z: Tensor) -> Tensor:
    """Return W_O split by head, (n_heads, d_value, d_model); the identity if the layer has no output projection."""
    n_heads, d_value = z.shape[1], z.shape[3]
    if not isinstance(module.o, nn.Linear):
        return torch.eye(n_heads * d_value, dtype=z.dtype, device=z.device).unflatten(0, (n_heads, d_value))
    return linear_weight(module.o).T.to(z.dtype).unflatten(0, (n_heads, d_value))


def linear_weight(linear: nn.Linear) -> Tensor:
    """Return the weight of a linear layer, (out, in), with its adapter merged if it has one."""
    return linear.merged_weight(linear.weight, linear.lora_a, linear.lora_b) if isinstance(linear, LoraLinear) else linear.weight


def out(a: Activations, path: str) -> Tensor:
    """Compute the output of the layer, Concat(z_1, ..., z_h) W_O."""
    result: Tensor = a.module(path).o(a[f"{path}.concat"])
    return result


def source_scores(a: Activations, path: str) -> Tensor:
    """Compute the scores of a recurrent decoder's attention, with the layer's own function."""
    result: Tensor = a.module(path).scores(a[f"{path}.q"], a[f"{path}.k"])
    return result
