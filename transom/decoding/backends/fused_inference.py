"""Fused inference of encoder-decoders: the same results as the model, with few PyTorch operations per token.

At one token per step, reading weights and calling operations dominate the time. Therefore one product computes q, k and v, products add
bias and residual, and a step is a plain loop over blocks. All weights here come from a model and are never saved.
"""

import ctypes
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transom.data.batch import PaddedSequences
from transom.decoding.backends.native_blocks import Int8Stack
from transom.decoding.packed_linear import DECODE_ROWS, PREFILL_ROWS, Activation, LinearFactory, PackedLinear
from transom.layers.attention import Attention, AttentionArgs, causal_mask, explicit_attention, non_padding_mask, same_segment_mask
from transom.layers.block import Block, PostNormBlock, ResidualConnection, SequentialBlock
from transom.layers.context import StackContext
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward
from transom.layers.norm import LayerNorm, Norm
from transom.layers.output_projection import logit_weights, soft_cap
from transom.layers.position_encoding import Sinusoidal
from transom.layers.stack import Stack
from transom.models.seq2seq import EncoderOutput, Seq2SeqTransformer


class SourceKeyValues(NamedTuple):
    """Keys and values of the sources, for one block."""

    k: Float[Tensor, "sources n_heads source d_head"]
    v: Float[Tensor, "sources n_heads source d_value"]


class FusedCache:
    """KV cache of the fused decoder: per block one buffer (tokens, rows, keys followed by values).

    A step stores its keys and values with one copy. Reordering copies the filled part to a second buffer.
    """

    def __init__(self, memories: list[SourceKeyValues], bias: Tensor | None, buffers: list[Tensor]) -> None:
        """Start an empty cache.

        Args:
            memories: keys and values of the sources, per block.
            bias: additive mask of the cross-attention scores; None if no source has padding.
            buffers: one empty buffer per block.
        """
        self.memories, self.bias = memories, bias
        self.length = 0
        self._buffers = buffers
        self._spare: Tensor | None = None

    def update(self, block: int, new: Float[Tensor, "rows new width"]) -> Float[Tensor, "tokens rows width"]:
        """Store the keys and values of new tokens of a block; return the keys and values of all tokens of the block so far."""
        buffer, n_new = self._buffers[block], new.shape[1]
        assert self.length + n_new <= len(buffer), f"expected at most {len(buffer)} tokens in the cache, found {self.length + n_new}"
        buffer.narrow(0, self.length, n_new).copy_(new.transpose(0, 1))
        return buffer.narrow(0, 0, self.length + n_new)

    @torch.inference_mode()
    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Make row i a copy of the previous row ``rows[i]``; rows that are not in ``rows`` are dropped."""
        for i, buffer in enumerate(self._buffers):
            if self._spare is None or self._spare.shape[1] != len(rows):
                self._spare = buffer.new_empty(len(buffer), len(rows), buffer.shape[2])
            torch.index_select(buffer[: self.length], 1, rows, out=self._spare[: self.length])
            self._buffers[i], self._spare = self._spare, buffer

    def select_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Drop all other sources; ``reorder`` must select the rows of the kept sources in the same order."""
        self.memories = [SourceKeyValues(k[sources], v[sources]) for k, v in self.memories]
        self.bias = None if self.bias is None else self.bias[sources]


class FusedEncoder:
    """Fused encoder of an encoder-decoder, on the device of the model; later changes of the model have no effect."""

    def __init__(self, model: Seq2SeqTransformer, int8_library: ctypes.CDLL | None = None) -> None:
        """Pack the weights of ``model``, in int8 with the native library ``int8_library``."""
        dtype = model.unembedding.weight.dtype
        self._embed, self._encoder = _Embedding(model.source_embedding, dtype), _encoder_stack(model.encoder, dtype, int8_library)

    @torch.inference_mode()
    def __call__(self, source: PaddedSequences) -> EncoderOutput:
        x = self._embed(source.tokens, source.positions)
        bias = _additive_mask(same_segment_mask(source.segments, source.segments), x.dtype)
        return EncoderOutput(self._encoder.read(x, bias), source.segments)


class FusedSeq2Seq:
    """A fused encoder-decoder; ``encode``, ``start`` and ``step`` are equivalent to those of ``Seq2SeqTransformer``."""

    def __init__(self, model: Seq2SeqTransformer) -> None:
        """Pack the weights of ``model``, on their device; later changes of the model have no effect."""
        self.encode, self.decoder = FusedEncoder(model), FusedDecoder(model)

    @torch.inference_mode()
    def start(self, memory: EncoderOutput, n_beams: int, max_length: int) -> FusedCache:
        """Project the encoder output to keys and values, once per source, and allocate a cache of ``max_length`` tokens per row."""
        n_rows = n_beams * len(memory.states)
        decoder = self.decoder
        dtype = decoder.dtype if n_beams == 1 else torch.promote_types(decoder.dtype, torch.float32)
        memories = [block.project_source(memory.states, dtype, n_beams) for block in decoder.stack.blocks]
        bias = _additive_mask(non_padding_mask(memory.segments), dtype)
        buffers = [memory.states.new_empty(max_length, n_rows, block.width, dtype=decoder.dtype) for block in decoder.stack.blocks]
        return FusedCache(memories, bias, buffers)

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, "rows new"], cache: FusedCache) -> Float[Tensor, "rows new vocab"]:
        """Process the next tokens of each row; return the logits of the token after each."""
        end, decoder = cache.length + tokens.shape[1], self.decoder
        x = decoder.embed(tokens, slice(cache.length, end))
        bias = _additive_mask(causal_mask(tokens.shape[1], end, x.device), x.dtype) if tokens.shape[1] > 1 else None
        for i, block in enumerate(decoder.stack.blocks):
            x = block.self_attention(x, bias, cache, i)
            x = block.cross_attention(x, cache.memories[i], cache.bias)
            x = block.feed_forward(x)
        cache.length = end
        return soft_cap(decoder.unembed(decoder.stack.norm(x)), decoder.softcap)


class FusedDecoder:
    """Embedding, blocks and output projection of the decoder, in one dtype."""

    def __init__(self, model: Seq2SeqTransformer) -> None:
        arithmetic = LinearFactory(DECODE_ROWS, model.unembedding.weight.dtype)
        self.dtype = arithmetic.dtype
        self.embed = _Embedding(model.target_embedding, arithmetic.dtype)
        self.stack = _Stack(model.decoder, arithmetic)
        weight, bias = logit_weights(model.unembedding)
        self.unembed, self.softcap = arithmetic.make(weight, bias), model.logit_softcap


class _Embedding:
    """Embedding of tokens: sqrt(d_model) E[x] + p, with the sinusoidal position encoding p, and its norm."""

    def __init__(self, embedding: Embedding, dtype: torch.dtype) -> None:
        assert isinstance(embedding.position, Sinusoidal)
        self.table, self.scale = embedding.tokens.weight.detach(), embedding.scale
        self.positions, self.norm = embedding.position.table.to(dtype), FusedNorm(embedding.norm, dtype)

    def __call__(self, tokens: Tensor, positions: Tensor | slice) -> Tensor:
        return self.norm(torch.add(self.positions[positions], F.embedding(tokens, self.table), alpha=self.scale))


class FusedNorm:
    """Layer normalization or identity."""

    def __init__(self, norm: Norm | None, dtype: torch.dtype) -> None:
        self.norm = norm if isinstance(norm, LayerNorm) else None
        if isinstance(norm, LayerNorm):
            self.shape, self.eps = norm.weight.shape, norm.eps
            self.gain = norm.weight.detach().to(dtype)
            self.shift = None if norm.bias is None else norm.bias.detach().to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return x if self.norm is None else torch.layer_norm(x, self.shape, self.gain, self.shift, self.eps)


class _SublayerNorms(NamedTuple):
    """The norm before a sub-layer and the norm after its residual sum; one of them is the identity."""

    pre_norm: FusedNorm
    post_norm: FusedNorm

    @classmethod
    def of(cls, block: Block, residual: ResidualConnection, dtype: torch.dtype) -> "_SublayerNorms":
        norm, none = FusedNorm(residual.norm, dtype), FusedNorm(None, dtype)
        return cls(none, norm) if isinstance(block, PostNormBlock) else cls(norm, none)


class FusedStack(nn.Module):
    """A fused encoder stack in place of a ``Stack`` without sparse patterns; activations in it cannot be recorded."""

    routed = False

    def __init__(self, stack: Stack, dtype: torch.dtype, int8_library: ctypes.CDLL | None = None) -> None:
        """Pack the weights of ``stack`` in a dtype, or in int8 with the native library; later changes of ``stack`` have no effect."""
        super().__init__()
        self._stack = _encoder_stack(stack, dtype, int8_library)

    def forward(self, x: Float[Tensor, "rows query d_model"], ctx: StackContext) -> Float[Tensor, "rows query d_model"]:
        """Pass the residual stream through the blocks, which share one attention mask."""
        (shared,) = ctx.attention_contexts
        assert ctx.observer is None and shared.block_mask is None and shared.bias is None and shared.rotary is None
        return self._stack.read(x, None if shared.mask is None else _additive_mask(shared.mask, x.dtype))


def _encoder_stack(stack: Stack, dtype: torch.dtype, int8_library: ctypes.CDLL | None) -> "Int8Stack | _Stack":
    return _Stack(stack, LinearFactory(PREFILL_ROWS, dtype)) if int8_library is None else Int8Stack(int8_library, stack)


class _Stack:
    """Fused blocks and the final norm of a stack."""

    def __init__(self, stack: Stack, arithmetic: LinearFactory) -> None:
        self.blocks = [FusedBlock(block, arithmetic) for block in stack.blocks]
        self.norm = FusedNorm(stack.norm, arithmetic.dtype)

    def read(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Process whole sequences; ``bias`` is added to the attention scores of every block."""
        for block in self.blocks:
            x = block.feed_forward(block.self_attention(x, bias))
        return self.norm(x)


class FusedBlock:
    """A fused block; each method applies a sub-layer to the residual stream, including the residual sum and the norm."""

    def __init__(self, block: Block, arithmetic: LinearFactory) -> None:
        assert isinstance(block, SequentialBlock)
        attn, cross, ff, dtype = block.attn, block.cross, block.ff, arithmetic.dtype
        assert isinstance(ff, FeedForward)
        self.n_heads, self.d_head, self.d_value = attn.n_heads, attn.d_head, attn.d_value
        self.split = [self.n_heads * width for width in (self.d_head, self.d_head, self.d_value)]
        self.width = self.split[1] + self.split[2]
        self.qkv, self.o = _fused_linear(arithmetic, attn.q, attn.k, attn.v), _output_projection(arithmetic, attn)
        self.attn_norms = _SublayerNorms.of(block, block.attn_residual, dtype)
        if cross is not None:
            self.q, self.cross_o = _fused_linear(arithmetic, cross.q), _output_projection(arithmetic, cross)
            self.kv = _fused_linear(arithmetic, cross.k, cross.v)
            self.cross_norms = _SublayerNorms.of(block, block.cross_residual, dtype)
        self.up, self.down = _fused_linear(arithmetic, ff.up, activation=ff.activation), _fused_linear(arithmetic, ff.down)
        self.ff_norms = _SublayerNorms.of(block, block.ff_residual, dtype)

    def self_attention(self, x: Tensor, bias: Tensor | None, cache: FusedCache | None = None, block_index: int = 0) -> Tensor:
        """Apply self-attention; keys and values come from ``x`` and, with a cache, also from the earlier tokens of each row."""
        q, new = self.qkv(self.attn_norms.pre_norm(x)).split_with_sizes([self.split[0], self.width], -1)
        all_tokens = new.transpose(0, 1) if cache is None else cache.update(block_index, new)
        k, v = all_tokens.split_with_sizes(self.split[1:], -1)
        n_new, rows, n_tokens = new.shape[1], len(x), len(all_tokens)
        q = q.view(rows, n_new, self.n_heads, self.d_head).transpose(1, 2)
        k = k.view(n_tokens, rows, self.n_heads, self.d_head).permute(1, 2, 0, 3)
        v = v.view(n_tokens, rows, self.n_heads, self.d_value).permute(1, 2, 0, 3)
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.attn_norms.post_norm(_project_and_add(self.o, z.transpose(1, 2).reshape(rows, n_new, -1), x))

    def cross_attention(self, x: Tensor, memory: SourceKeyValues, bias: Tensor | None) -> Tensor:
        """Apply cross-attention; one product computes the scores of all beams of a source."""
        k, v = memory
        rows, n_new, _ = x.shape
        q = self.q(self.cross_norms.pre_norm(x)).view(len(k), -1, self.n_heads, self.d_head).transpose(1, 2)
        if q.shape[2] == 1:
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:  # few queries: the fused kernel is slower, and bfloat16 products of this size are slower than float32 ones
            z = explicit_attention(q.to(k.dtype), k, v, AttentionArgs(bias=bias)).to(x.dtype)
        return self.cross_norms.post_norm(_project_and_add(self.cross_o, z.transpose(1, 2).reshape(rows, n_new, -1), x))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward network to each token."""
        return self.ff_norms.post_norm(self.down(self.up(self.ff_norms.pre_norm(x)), x))

    def project_source(self, memory: Tensor, dtype: torch.dtype, n_beams: int) -> SourceKeyValues:
        """Project the encoder output to keys and values; for several beams, keys are stored transposed, for the matrix product q k^T."""
        k, v = self.kv(memory).to(dtype).split_with_sizes(self.split[1:], -1)
        k, v = (x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for x in (k, v))  # (sources, n_heads, source, head width)
        k = k.contiguous() if n_beams == 1 else k.transpose(-2, -1).contiguous().transpose(-2, -1)
        return SourceKeyValues(k, v.contiguous())


def _fused_linear(arithmetic: LinearFactory, *maps: nn.Linear, activation: Activation | None = None) -> PackedLinear:
    """Pack several linear maps of the same input as one product."""
    weight = torch.cat([linear.weight.detach() for linear in maps])
    biases = [linear.bias.detach() for linear in maps if linear.bias is not None]
    return arithmetic.make(weight, torch.cat(biases) if biases else None, activation)


def _output_projection(arithmetic: LinearFactory, attention: Attention) -> PackedLinear | None:
    return _fused_linear(arithmetic, attention.o) if isinstance(attention.o, nn.Linear) else None


def _project_and_add(product: PackedLinear | None, x: Tensor, residual: Tensor) -> Tensor:
    return residual + x if product is None else product(x, residual)


def _additive_mask(mask: Bool[Tensor, "..."], dtype: torch.dtype) -> Tensor | None:
    """Convert a boolean attention mask to an additive one; return None if the mask is True everywhere."""
    return None if bool(mask.all()) else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
