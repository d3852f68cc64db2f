"""The encoder-decoder laid out flat for answering: the same function as the model, in as few operations a token as there can be.

At a token a step the time goes into reading weights and into calling operations. So W_Q, W_K and W_V are one product, products add
biases and residuals themselves, and a step is a plain loop over blocks. All of it is derived from a model and never saved.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.decoding.products import Product, make_product
from transom.inputs.batch import Sequences
from transom.layers import mask as masks
from transom.layers.attention import Attention
from transom.layers.block import Block
from transom.layers.embedding import Embedding
from transom.layers.norm import LayerNorm
from transom.layers.residual import PostNorm, Residual
from transom.layers.stack import Stack
from transom.models.seq2seq import Memory, Seq2SeqTransformer


class SourceKeys(NamedTuple):
    """A block's keys and values of the sources, in float32 at least, the keys transposed and scaled by 1 / sqrt(d_k)."""

    k: Float[Tensor, "sources n_heads d_head source"]
    v: Float[Tensor, "sources n_heads source d_value"]


class FlatCache:
    """What the flat decoder remembers: for each block one buffer of keys and values side by side, tokens first.

    A step's keys and values are stored by one copy. Reordering copies what is filled to a second buffer, whole rows at a time.
    """

    def __init__(self, memories: list[SourceKeys], bias: Float[Tensor, "sources 1 1 source"] | None, buffers: list[Tensor]) -> None:
        """Gather each block's keys and values of the sources and its buffer of (max_length, rows, keys and values)."""
        self.memories, self.bias = memories, bias
        self.length = 0
        self._buffers = buffers
        self._spare: Tensor | None = None

    def append(self, block: int, new: Float[Tensor, "rows new width"]) -> Float[Tensor, "rows tokens width"]:
        """Store the next tokens' keys and values of a block and return those of all its tokens."""
        buffer, end = self._buffers[block], self.length + new.shape[1]
        assert end <= len(buffer), f"the cache holds {len(buffer)} tokens, asked for {end}"
        buffer[self.length : end] = new.transpose(0, 1)
        return buffer[:end].transpose(0, 1)

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``; fewer rows than before drop the rest."""
        for i, buffer in enumerate(self._buffers):
            if self._spare is None or self._spare.shape[1] != len(rows):
                self._spare = buffer.new_empty(len(buffer), len(rows), buffer.shape[2])
            torch.index_select(buffer[: self.length], 1, rows, out=self._spare[: self.length])
            self._buffers[i], self._spare = self._spare, buffer

    def keep_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Go on with these sources only; their rows must be chosen by ``reorder`` in the same order."""
        self.memories = [SourceKeys(k[sources], v[sources]) for k, v in self.memories]
        self.bias = None if self.bias is None else self.bias[sources]


class FlatSeq2Seq:
    """A model to search with: ``encode``, ``start`` and ``step`` give what those of ``Seq2SeqTransformer`` give."""

    def __init__(self, model: Seq2SeqTransformer) -> None:
        """Lay out the weights of ``model``, in their type and on their device; later changes of the model are not seen."""
        self._embed_source, self._embed_target = _Embedding(model.source_embedding), _Embedding(model.target_embedding)
        self._encoder, self._decoder = _Stack(model.encoder), _Stack(model.decoder)
        self._unembed = make_product(model.unembedding.weight.detach(), None)

    @torch.inference_mode()
    def encode(self, source: Sequences) -> Memory:
        """Read the sources."""
        x = self._embed_source(source.tokens, source.positions)
        bias = _bias(masks.same_segment(source.segments, source.segments), x.dtype)
        for block in self._encoder.blocks:
            x = block.feed_forward(block.self_attention(x, bias))
        return Memory(self._encoder.norm(x), source.segments)

    @torch.inference_mode()
    def start(self, memory: Memory, n_beams: int, max_length: int) -> FlatCache:
        """Project the memory once a source and reserve room for ``max_length`` tokens a row."""
        blocks, x = self._decoder.blocks, memory.states
        memories = [block.source_keys(x) for block in blocks]
        bias = _bias(masks.not_padding(memory.segments), memories[0].k.dtype)
        return FlatCache(memories, bias, [x.new_empty(max_length, n_beams * len(x), block.width) for block in blocks])

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, "rows new"], cache: FlatCache) -> Float[Tensor, "rows new vocab"]:
        """Read the rows' next symbols; return the logits of what follows each."""
        end = cache.length + tokens.shape[1]
        x = self._embed_target(tokens, slice(cache.length, end))
        bias = _bias(masks.causal(tokens.shape[1], end, x.device), x.dtype) if tokens.shape[1] > 1 else None
        for i, block in enumerate(self._decoder.blocks):
            x = block.self_attention(x, bias, cache, i)
            x = block.cross_attention(x, cache.memories[i], cache.bias)
            x = block.feed_forward(x)
        cache.length = end
        return self._unembed(self._decoder.norm(x))


class _Embedding:
    """sqrt(d_model) E[x] + p."""

    def __init__(self, embedding: Embedding) -> None:
        self.table, self.scale = embedding.tokens.weight.detach(), embedding.scale
        self.positions = embedding.position.table

    def __call__(self, tokens: Tensor, positions: Tensor | slice) -> Tensor:
        return torch.add(self.positions[positions], F.embedding(tokens, self.table), alpha=self.scale)


class _Norm:
    """Layer normalisation, or nothing."""

    def __init__(self, norm: LayerNorm | None) -> None:
        self.norm = norm
        if norm is not None:
            self.shape, self.eps = norm.weight.shape, norm.eps
            self.gain, self.shift = norm.weight.detach(), norm.bias.detach()

    def __call__(self, x: Tensor) -> Tensor:
        return x if self.norm is None else torch.layer_norm(x, self.shape, self.gain, self.shift, self.eps)


class _Wiring(NamedTuple):
    """Where a sub-layer's norm stands: before it, or after the sum."""

    before: _Norm
    after: _Norm

    @classmethod
    def of(cls, residual: Residual) -> "_Wiring":
        norm, none = _Norm(residual.norm), _Norm(None)
        return cls(none, norm) if isinstance(residual, PostNorm) else cls(norm, none)


class _Stack:
    """Blocks, and the norm behind them."""

    def __init__(self, stack: Stack) -> None:
        self.blocks, self.norm = [_Block(block) for block in stack.blocks], _Norm(stack.norm)


class _Block:
    """One block: what each sub-layer does to the residual stream, its sum and its norm included."""

    def __init__(self, block: Block) -> None:
        attn, cross, ff = block.attn, block.cross, block.ff
        self.n_heads, self.d_head, self.d_value = attn.n_heads, attn.d_head, attn.d_value
        self.split = [self.n_heads * width for width in (self.d_head, self.d_head, self.d_value)]
        self.width = self.split[1] + self.split[2]
        self.qkv, self.o, self.attn_wiring = _joined(attn.q, attn.k, attn.v), _output(attn), _Wiring.of(block.attn_residual)
        if cross is not None and block.cross_residual is not None:
            self.q, self.kv, self.cross_wiring = _joined(cross.q), _joined(cross.k, cross.v), _Wiring.of(block.cross_residual)
            self.cross_o = _output(cross)
        self.up, self.down, self.ff_wiring = _joined(ff.up, relu=True), _joined(ff.down), _Wiring.of(block.ff_residual)

    def self_attention(self, x: Tensor, bias: Tensor | None, cache: FlatCache | None = None, place: int = 0) -> Tensor:
        q, new = self.qkv(self.attn_wiring.before(x)).split([self.split[0], self.width], -1)
        keys_values = new if cache is None else cache.append(place, new)
        k, v = keys_values.split(self.split[1:], -1)
        z = F.scaled_dot_product_attention(self._heads(q), self._heads(k), self._heads(v), attn_mask=bias)
        return self.attn_wiring.after(_add(self.o, z.transpose(1, 2).flatten(2), x))

    def cross_attention(self, x: Tensor, memory: SourceKeys, bias: Tensor | None) -> Tensor:
        """Attend to the sources; all beams of a source are queries of one product with its keys."""
        k, v = memory
        q = self.q(self.cross_wiring.before(x)).view(len(k), -1, self.n_heads, self.d_head).transpose(1, 2)
        s = q.to(k.dtype) @ k  # (sources, n_heads, beams * new, source)
        z = (s if bias is None else s.add_(bias)).softmax(-1) @ v
        return self.cross_wiring.after(_add(self.cross_o, z.transpose(1, 2).reshape(*x.shape[:2], -1).to(x.dtype), x))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.ff_wiring.after(self.down(self.up(self.ff_wiring.before(x)), x))

    def source_keys(self, memory: Tensor) -> SourceKeys:
        wide = torch.promote_types(memory.dtype, torch.float32)
        k, v = (self._heads(part) for part in self.kv(memory).split(self.split[1:], -1))
        return SourceKeys((k.transpose(-2, -1).to(wide) * self.d_head**-0.5).contiguous(), v.to(wide).contiguous())

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (rows, n_heads, tokens, width of a head)


def _joined(*maps: nn.Linear, relu: bool = False) -> Product:
    """Make one product of several maps of the same input."""
    weight = torch.cat([linear.weight.detach() for linear in maps])
    biases = [linear.bias.detach() for linear in maps if linear.bias is not None]
    return make_product(weight, torch.cat(biases) if biases else None, relu)


def _output(attention: Attention) -> Product | None:
    return _joined(attention.o) if isinstance(attention.o, nn.Linear) else None


def _add(product: Product | None, x: Tensor, residual: Tensor) -> Tensor:
    return residual + x if product is None else product(x, residual)


def _bias(mask: Bool[Tensor, "..."], dtype: torch.dtype) -> Tensor | None:
    """Turn a mask into what is added to scores; None where everything is allowed."""
    return None if bool(mask.all()) else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
