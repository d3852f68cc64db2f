"""The flat decoder compiled: one call of the project's own C++ takes a step through all blocks (``step/``)."""

import ctypes
import weakref
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.decoding.flat import FlatBlock, FlatNorm, FlatSeq2Seq
from transom.decoding.native import native
from transom.decoding.products import Arithmetic, Product
from transom.models.seq2seq import Memory, Seq2SeqTransformer

Kind = Literal["bf16", "int8"]
_KINDS: dict[Kind, int] = {"bf16": 0, "int8": 1}
LANES = 16
"""Floats of a vector; heads are read in whole ones."""
MOST_THREADS = 8
"""Threads that take a step together, at most: each has a part of every product, and too small a part is not worth the meeting."""


def why_not(model: Seq2SeqTransformer) -> str | None:
    """Tell why the decoder of ``model``, which has a flat form, cannot be compiled here; None where it can."""
    attention = model.decoder.blocks[0].attn
    if model.unembedding.weight.device.type != "cpu":
        return "it is for processors"
    if attention.d_head % LANES or attention.d_value % LANES:
        return f"it takes heads whose width is a multiple of {LANES}, found d_head {attention.d_head} and d_value {attention.d_value}"
    if not isinstance(attention.o, nn.Linear):
        return "it takes attention with an output map"
    return None if native().library is not None else native().reason


class _Linear(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("weight", "scale", "bias")] + [(name, ctypes.c_int32) for name in ("inner", "outer")]


class _Norm(ctypes.Structure):
    _fields_ = [("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("eps", ctypes.c_float)]


_NORMS = ("attn_before", "attn_after", "cross_before", "cross_after", "ff_before", "ff_after")
_LINEARS = ("qkv", "o", "q", "cross_o", "up", "down")


class _Block(ctypes.Structure):
    _fields_ = [(name, _Norm) for name in _NORMS] + [(name, _Linear) for name in _LINEARS]


class _Decoder(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "n_blocks", "d_model", "n_heads", "d_head", "d_value")),
        ("blocks", ctypes.POINTER(_Block)),
        ("norm", _Norm),
        ("unembed", _Linear),
    ]


class _State(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "length", "capacity", "max_length", "longest")),
        *((name, ctypes.c_void_p) for name in ("sources", "lengths", "slots", "tokens", "memory")),
        ("memory_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("x", "logits")),
    ]


class Tiled:
    """A linear map whose weights lie in tiles of 16 outputs, in bfloat16 or in 8 bits; x and y are float32.

    In 8 bits y_o = s_o s_x sum_i w_oi x_i + b_o (Wu et al. 2016, section 6, with a scale an output and a row): w and x are rounded to
    -127 ... 127 by s_o = max_i |W_oi| / 127 and s_x = max_i |x_i| / 127, the row's own, so that no answer depends on its neighbours.
    """

    def __init__(
        self, library: ctypes.CDLL, kind: Kind, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, relu: bool
    ) -> None:
        """Lay out the weights."""
        self.library, self.kind, self.relu = library, _KINDS[kind], relu
        self.outer, self.inner = weight.shape
        self.weight = torch.empty(library.transom_packed_bytes(self.kind, self.inner, self.outer), dtype=torch.uint8)
        self.scale = torch.zeros(self.outer)
        wide = weight.float().contiguous()
        library.transom_pack(self.kind, wide.data_ptr(), self.inner, self.outer, self.weight.data_ptr(), self.scale.data_ptr())
        self.bias = None if bias is None else bias.float().contiguous()
        self.layout = _Linear(self.weight.data_ptr(), self.scale.data_ptr(), _pointer(self.bias), self.inner, self.outer)

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it."""
        rows = x.float().reshape(-1, self.inner).contiguous()
        y = rows.new_empty(len(rows), self.outer)
        self.library.transom_product(self.kind, ctypes.byref(self.layout), rows.data_ptr(), len(rows), y.data_ptr(), int(self.relu))
        shaped = y.view(*x.shape[:-1], self.outer)
        return shaped if plus is None else plus + shaped


class CompiledCache:
    """What the compiled decoder remembers: keys and values where they were first written, and for each row where its own stand."""

    def __init__(self, library: ctypes.CDLL, memory: Tensor, lengths: Int[Tensor, "sources"], n_beams: int, max_length: int) -> None:
        """Reserve room.

        Args:
            library: the compiled step.
            memory: the sources' keys and values a block, (blocks, sources, source, width) in bfloat16.
            lengths: tokens a source.
            n_beams: rows a source.
            max_length: most tokens a row.
        """
        n_blocks, n_sources, longest, width = memory.shape
        rows = n_sources * n_beams
        self._memory, self._lengths = memory, lengths.int()
        self._tokens = memory.new_empty(n_blocks, max_length, rows, width)
        self._slots = torch.zeros(rows, max_length, dtype=torch.int32)
        self._sources = torch.arange(n_sources, dtype=torch.int32).repeat_interleave(n_beams)
        self.state = _State(rows, 0, rows, max_length, longest, memory=memory.data_ptr(), memory_stride=memory.stride(0))
        self.state.lengths, self.state.tokens = self._lengths.data_ptr(), self._tokens.data_ptr()
        self.workspace = library.transom_open(min(torch.get_num_threads(), MOST_THREADS))
        weakref.finalize(self, library.transom_close, self.workspace)
        self._point()

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return int(self.state.length)

    def _point(self) -> None:
        self.state.rows, self.state.slots, self.state.sources = len(self._slots), self._slots.data_ptr(), self._sources.data_ptr()

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``; nothing but the table of places is copied."""
        self._slots, self._sources = self._slots[rows], self._sources[rows]
        self._point()

    def keep_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Go on with fewer sources: their rows, chosen by ``reorder``, know where they read."""


class CompiledSeq2Seq:
    """A model to search with, as ``FlatSeq2Seq``; the decoder's step is one call."""

    def __init__(self, library: ctypes.CDLL, model: Seq2SeqTransformer, kind: Kind) -> None:
        """Lay out the weights of ``model``; later changes of the model are not seen."""
        flat = FlatSeq2Seq(model, Arithmetic(partial(Tiled, library, kind), torch.float32))
        self.encode, self._decoder, self._library = flat.encode, flat.decoder, library
        stack = flat.decoder.stack
        self._blocks = (_Block * len(stack.blocks))(*map(_block, stack.blocks))
        first, config = stack.blocks[0], model.config
        self._layout = _Decoder(
            _KINDS[kind],
            len(stack.blocks),
            config.d_model,
            first.n_heads,
            first.d_head,
            first.d_value,
            self._blocks,
            _norm(stack.norm),
            _layout(flat.decoder.unembed),
        )

    @torch.inference_mode()
    def start(self, memory: Memory, n_beams: int, max_length: int) -> CompiledCache:
        """Project the memory once a source and reserve room for ``max_length`` tokens a row."""
        keys_and_values = [block.kv(memory.states).bfloat16() for block in self._decoder.stack.blocks]
        return CompiledCache(self._library, torch.stack(keys_and_values), (memory.segments > 0).sum(1), n_beams, max_length)

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, "rows new"], cache: CompiledCache) -> Float[Tensor, "rows new vocab"]:
        """Read the rows' next symbols, one after another; return the logits of what follows each."""
        logits = [self._step(column, cache) for column in tokens.split(1, 1)]
        return logits[0] if len(logits) == 1 else torch.cat(logits, 1)

    def _step(self, tokens: Int[Tensor, "rows 1"], cache: CompiledCache) -> Float[Tensor, "rows 1 vocab"]:
        length, state = cache.length, cache.state
        assert length < state.max_length, f"the cache holds {state.max_length} tokens, asked for {length + 1}"
        x = self._decoder.embed(tokens, slice(length, length + 1)).contiguous()
        assert x.shape == (state.rows, 1, self._layout.d_model) and x.dtype == torch.float32
        logits = x.new_empty(len(x), 1, self._layout.unembed.outer)
        state.x, state.logits = x.data_ptr(), logits.data_ptr()
        self._library.transom_step(ctypes.byref(self._layout), ctypes.byref(state), cache.workspace)
        return logits


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _norm(norm: FlatNorm) -> _Norm:
    return _Norm() if norm.norm is None else _Norm(norm.gain.data_ptr(), _pointer(norm.shift), norm.eps)


def _layout(product: Product | None) -> _Linear:
    assert isinstance(product, Tiled)
    return product.layout


def _block(block: FlatBlock) -> _Block:
    wirings = (block.attn_wiring, block.cross_wiring, block.ff_wiring)
    maps = (block.qkv, block.o, block.q, block.cross_o, block.up, block.down)
    return _Block(*(_norm(norm) for wiring in wirings for norm in wiring), *map(_layout, maps))
