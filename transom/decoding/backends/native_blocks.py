"""Blocks packed for the native library: their norms and linear maps, and encoder stacks in int8 (``kernels/native/encoder.h``)."""

import copy
import ctypes
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.decoding.packed_linear import WEIGHT_TYPES, Activation, TiledLinear, WeightType, library_structs, pointer
from transom.layers.attention import Attention
from transom.layers.block import PostNormBlock, ResidualConnection, SequentialBlock
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.norm import LayerNorm, Norm, RmsNorm
from transom.layers.position_encoding import LearnedPosition, Sinusoidal
from transom.layers.stack import Stack

LANES = 16
"""Floats per SIMD vector; native attention requires that d_head and d_value are multiples of this number."""

MIN_SEQUENCES = 4
"""Number of sequences per thread from which each thread takes whole sequences."""

MAX_LENGTH = 512
"""Maximum length of such sequences; the queries, keys and values of longer ones do not stay in a second-level cache."""


class BlockPacker:
    """Packs modules to the structures of the native library.

    Attributes:
        keep_alive: the tensors to which the structures point.
    """

    def __init__(self, library: ctypes.CDLL, kind: WeightType) -> None:
        """Pack weights in the type ``kind``."""
        self._library, self._kind, self._structs = library, kind, library_structs(library)
        self.keep_alive: list[object] = []

    def block(self, block: nn.Module) -> Any:
        """Pack the norms and linear maps of a block."""
        assert isinstance(block, SequentialBlock)
        attn, cross, ff = block.attn, block.cross, block.ff
        residuals = (block.attn_residual, None if cross is None else block.cross_residual, block.ff_residual)
        norms = (norm for residual in residuals for norm in self._residual_norms(residual, isinstance(block, PostNormBlock)))
        assert isinstance(ff, FeedForward | GatedFeedForward)
        gate = ff.gate if isinstance(ff, GatedFeedForward) else None
        return self._structs.BlockStruct(
            *norms,
            *(self.linear(attn.q, attn.k, attn.v), self.linear(attn.o)),
            *(
                (self._structs.LinearStruct(), self._structs.LinearStruct())
                if cross is None
                else (self.linear(cross.q), self.linear(cross.o))
            ),
            self._structs.LinearStruct() if gate is None else self.linear(gate, activation=ff.activation),
            self.linear(ff.up, activation=ff.activation if gate is None else None),
            self.linear(ff.down),
        )

    def _residual_norms(self, residual: ResidualConnection | None, post: bool) -> tuple[Any, Any]:
        """Return the norms before a sub-layer and after its residual sum."""
        if residual is None:
            return self._structs.NormStruct(), self._structs.NormStruct()
        norm = self.norm(residual.norm)
        return (self._structs.NormStruct(), norm) if post else (norm, self._structs.NormStruct())

    def embedding(self, embedding: Embedding) -> Any:
        """Return the tables of an embedding, those of the model itself where they are in bfloat16 or float32."""
        position = embedding.position.table if isinstance(embedding.position, Sinusoidal | LearnedPosition) else None
        vectors = position.weight if isinstance(position, nn.Embedding) else position
        positions = None if vectors is None else vectors.detach().float().contiguous()
        weight = embedding.tokens.weight.detach()
        table = (weight if weight.dtype == torch.bfloat16 else weight.float()).contiguous()
        self.keep_alive += [positions, table]
        return self._structs.EmbeddingStruct(
            *(table.data_ptr(), table.dtype == torch.bfloat16, len(table)),
            *(pointer(positions), 0 if positions is None else len(positions), embedding.scale, self.norm(embedding.norm)),
        )

    def norm(self, norm: Norm | None) -> Any:
        """Return the parameters of a norm in float32; those of no norm for None."""
        if not isinstance(norm, LayerNorm | RmsNorm):
            return self._structs.NormStruct()
        parameters = (norm.weight, norm.bias if isinstance(norm, LayerNorm) else None)
        gain, shift = (None if x is None else x.detach().float().contiguous() for x in parameters)
        self.keep_alive += [gain, shift]
        return self._structs.NormStruct(pointer(gain), pointer(shift), norm.eps, centered=isinstance(norm, LayerNorm))

    def linear(self, *maps: nn.Module, activation: Activation | None = None) -> Any:
        """Pack several linear maps of the same input as one."""
        linears = [linear for linear in maps if isinstance(linear, nn.Linear)]
        if len(linears) != len(maps):
            raise TypeError(f"expected linear maps, found {[type(linear).__name__ for linear in maps]}")
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        return self.tiled(weight, torch.cat(biases) if biases else None, activation)

    def tiled(self, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Any:
        """Pack a linear map."""
        tiled = TiledLinear(self._library, self._kind, weight, bias, activation)
        self.keep_alive.append(tiled)
        return tiled.layout


class Int8Stack:
    """An encoder stack with int8 weights and float32 activations.

    With many short sequences, a thread passes one after another through a block. Otherwise all threads share a sequence: a chunk of rows
    passes through all products and norms between two attentions at once, and attention is PyTorch's. Hidden vectors stay in the caches.
    """

    def __init__(self, library: ctypes.CDLL, stack: Stack) -> None:
        """Pack the weights of ``stack``, whose attention is plain and has as many key heads as query heads."""
        self._library, self._structs = library, library_structs(library)
        self._packer = BlockPacker(library, "int8")
        self._blocks = [self._packer.block(block) for block in stack.blocks]
        attention = stack.blocks[0].attn
        assert isinstance(attention, Attention)
        self._n_heads, self._widths = attention.n_heads, [attention.d_head, attention.d_head, attention.d_value]
        self._norm = copy.deepcopy(stack.norm)

    def read(self, x: Float[Tensor, "rows query d_model"], bias: Tensor | None) -> Float[Tensor, "rows query d_model"]:
        """Process whole sequences; ``bias`` is added to the attention scores of every block."""
        residual = x.float().clone(memory_format=torch.contiguous_format)
        bias = None if bias is None else bias.float()
        if x.numel() > 0 and self._are_many(*x.shape[:2]):
            self._read_sequences(residual, bias)
        elif x.numel() > 0:
            qkv = residual.new_empty(*x.shape[:2], self._n_heads * sum(self._widths))  # of one block after another
            for block in self._blocks:
                self._update(block, residual, qkv, bias)
        y = residual.to(x.dtype)
        return y if self._norm is None else self._norm(y)

    def _are_many(self, n_sequences: int, length: int) -> bool:
        """Return whether each thread gets several short sequences, whose heads the library can compute."""
        many = n_sequences >= MIN_SEQUENCES * torch.get_num_threads() and length <= MAX_LENGTH
        return many and all(width % LANES == 0 for width in self._widths)

    def _read_sequences(self, x: Tensor, bias: Tensor | None) -> None:
        """Pass the residual stream ``x`` through all blocks, in place, one sequence after another."""
        (rows, length, d_model), kind, threads = x.shape, WEIGHT_TYPES["int8"], torch.get_num_threads()
        if bias is not None:
            bias = bias.expand(rows, self._n_heads, length, length)
            bias = bias if bias.stride(-1) == 1 else bias.contiguous()
        strides = (0, 0, 0) if bias is None else bias.stride()[:3]
        sequences = self._structs.SequencesStruct(rows, length, self._n_heads, *self._widths[1:], pointer(bias), *strides)
        for block in self._blocks:
            status = self._library.transom_encoder_block(kind, ctypes.byref(block), ctypes.byref(sequences), x.data_ptr(), d_model, threads)
            self._check(status)

    def _update(self, block: Any, x: Tensor, qkv: Tensor, bias: Tensor | None) -> None:
        """Pass the residual stream ``x`` through a block, in place."""
        (rows, length, d_model), kind, threads = x.shape, WEIGHT_TYPES["int8"], torch.get_num_threads()
        layout, shape = ctypes.byref(block), (rows * length, d_model)
        self._check(self._library.transom_encoder_project(kind, layout, x.data_ptr(), *shape, qkv.data_ptr(), threads))
        widths = [self._n_heads * width for width in self._widths]
        q, k, v = (each.unflatten(-1, (self._n_heads, -1)).transpose(1, 2) for each in qkv.split(widths, -1))
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(rows, length, -1)
        self._check(self._library.transom_encoder_finish(kind, layout, z.data_ptr(), x.data_ptr(), *shape, threads))

    def _check(self, status: int) -> None:
        self._structs.raise_for_status(status)
