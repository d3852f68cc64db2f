"""Native decoder: one call of the C++ library (``kernels/native/``) computes a decoding step through all blocks."""

import ctypes
import weakref
from collections.abc import Callable
from types import NoneType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.patterns import FullPatternConfig
from transom.data.batch import PaddedSequences
from transom.decoding.backends.native_blocks import LANES, BlockPacker
from transom.decoding.packed_linear import (
    ACTIVATION_CODES,
    WEIGHT_TYPES,
    TiledLinear,
    WeightType,
    library_structs,
    pointer,
)
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import StepModel
from transom.decoding.search.loop import HypothesesPerSource, SearchRequest, SuppressTokens, log_probabilities
from transom.layers.attention import Attention
from transom.layers.block import PostNormBlock, PreNormBlock, ResidualConnection
from transom.layers.cache import KVCache
from transom.layers.dispatch import operation
from transom.layers.dropout import Dropout
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import FeedForward, GatedFeedForward, Linear
from transom.layers.norm import LayerNorm, Norm, RmsNorm
from transom.layers.output_projection import logit_weights, soft_cap
from transom.layers.position_encoding import LearnedPosition, PositionEncoding, Rotary, Sinusoidal
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.seq2seq import EncoderOutput, Seq2SeqTransformer

MAX_THREADS = 8
"""Maximum threads that share the products of a step; a smaller part of a product is not worth the synchronization."""

STEPS_PER_CALL = 16
"""Steps of a greedy search per native call; between calls, Python handles signals such as that of Ctrl-C."""

SUPPORTED_MODULES = {
    *(Stack, PreNormBlock, PostNormBlock, Attention, FeedForward, GatedFeedForward, ResidualConnection, Norm, LayerNorm, RmsNorm, Dropout),
    *(Linear, nn.Identity, nn.ModuleList),
}
"""Modules that a supported decoder may contain, by exact type; ``unsupported_reason`` checks their settings."""

SUPPORTED_POSITIONS = {PositionEncoding, Sinusoidal, LearnedPosition, Rotary}
"""Supported position encodings: those that add no bias to the attention scores."""


@operation("decoder_step")
def decoder_step_library() -> tuple[ctypes.CDLL | None, str]:
    """Return the native library and its location, or None and the reason why it is missing."""
    return None, "no kernels are available (TRANSOM_KERNELS=reference, or transom/kernels is missing)"


def unsupported_reason(model: Network) -> str | None:
    """Return why the native decoder does not support ``model`` on this machine; None if it does."""
    if not isinstance(model, Seq2SeqTransformer | DecoderOnlyTransformer):
        return "it supports only Transformer decoders"
    attentions = [module for module in model.decoder.modules() if isinstance(module, Attention)]
    supported = {type(module) for module in model.decoder.modules()} <= SUPPORTED_MODULES and _is_supported(_embedding(model).position)
    supported &= type(_embedding(model).norm) in (NoneType, Norm, LayerNorm, RmsNorm) and _embedding(model).token_types is None
    supported &= all(
        module.activation in ACTIVATION_CODES for module in model.decoder.modules() if isinstance(module, FeedForward | GatedFeedForward)
    )
    if not supported or not all(map(is_plain_attention, attentions)) or model.config.attention.pattern != FullPatternConfig():
        return "it does not support some component of this model"
    if model.unembedding.weight.device.type != "cpu":
        return "it runs on CPUs only"
    d_head, d_value = attentions[0].d_head, attentions[0].d_value
    if d_head % LANES or d_value % LANES:
        return f"it requires head widths that are multiples of {LANES}, found d_head {d_head} and d_value {d_value}"
    if not isinstance(attentions[0].o, nn.Linear):
        return "it requires attention with an output projection"
    library, reason = decoder_step_library()
    return None if library is not None else reason


def _is_supported(position: PositionEncoding) -> bool:
    """Return whether all blocks add the same vectors, or rotate by the same angles whatever the length of the text."""
    one_table = not isinstance(position, Rotary) or position.by_length == [False]
    return type(position) in SUPPORTED_POSITIONS and one_table


def is_plain_attention(attention: Attention) -> bool:
    """Return whether attention is eq. 1 of Vaswani et al. 2017, without QK norm, softcap, sinks or another score function."""
    return all(part is None for part in (attention.q_norm, attention.softcap, attention.sinks, attention.score))


def _embedding(model: Seq2SeqTransformer | DecoderOnlyTransformer) -> Embedding:
    return model.target_embedding if isinstance(model, Seq2SeqTransformer) else model.embedding


class NativeCache:
    """KV cache of the native decoder. Reordering rows does not move keys and values: each row has a table of its tokens' slots."""

    def __init__(
        self,
        library: ctypes.CDLL,
        read: Float[Tensor, "blocks rows n_kv_heads read width"],
        memory: Float[Tensor, "cross_blocks sources n_kv_heads source width"] | None,
        lengths: Int[Tensor, "sources"] | None,
        n_beams: int,
        max_length: int,
    ) -> None:
        """Allocate the cache.

        Args:
            library: the native library.
            read: keys and values of the tokens that each row has read before, the value of a token after its key, so that a head's tokens
                are read in one stream.
            memory: keys and values of the sources, likewise; None without cross-attention.
            lengths: number of tokens per source; None without cross-attention.
            n_beams: number of rows per source.
            max_length: maximum number of tokens per row, including the tokens read before.
        """
        n_blocks, rows, n_heads, n_read, width = read.shape
        memory = read.new_empty(0, 0, 0, 0, 0) if memory is None else memory.contiguous()
        n_sources, longest = memory.shape[1], memory.shape[3]
        if n_read > max_length or (longest and rows != n_beams * n_sources):
            raise ValueError(f"expected max_length >= {n_read} and {n_sources} x {n_beams} rows, found {max_length} and {rows} rows")
        self._tokens = read.new_empty(n_blocks, rows, n_heads, max_length, width)
        self._tokens[:, :, :, :n_read] = read
        self._slots = torch.zeros(rows, max_length, dtype=torch.int32)
        self._slots[:, :n_read] = torch.arange(rows)[:, None]
        self._sources = torch.arange(rows, dtype=torch.int32) // n_beams
        self._memory, self._lengths = memory, None if lengths is None else lengths.int()
        self.state = library_structs(library).StateStruct(rows, n_read, rows, max_length, longest, memory=self._memory.data_ptr())
        self.state.memory_stride = self._memory.stride(0)
        self.state.lengths, self.state.tokens = pointer(self._lengths), self._tokens.data_ptr()
        self.dtype, self.shapes = read.dtype, (n_blocks, n_heads * width, memory.shape[0], memory.shape[2] * memory.shape[4])
        self.workspace = library.transom_create_workspace(torch.get_num_threads(), MAX_THREADS)
        if self.workspace is None:
            raise MemoryError("expected memory for a step of the native decoder, found too little")
        weakref.finalize(self, library.transom_free_workspace, self.workspace)
        self._update_pointers()

    @property
    def length(self) -> int:
        """Number of tokens that each row has read so far."""
        return int(self.state.length)

    def _update_pointers(self) -> None:
        self.state.rows, self.state.slots, self.state.sources = len(self._slots), self._slots.data_ptr(), self._sources.data_ptr()

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Make row i continue the previous row ``rows[i]``, by copying only the slot table."""
        if len(rows) > self.state.capacity:
            raise IndexError(f"expected at most {self.state.capacity} rows, found {len(rows)}")
        self._slots, self._sources = self._slots[rows], self._sources[rows]
        self._update_pointers()

    def select_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Do nothing: ``reorder`` keeps the source index of each row, so that no row refers to a dropped source."""


class NativeDecoder:
    """A decoder, packed for ``step.cpp``. It reads the embedding tables of the model; the model must not change."""

    def __init__(self, library: ctypes.CDLL, kind: WeightType, model: Seq2SeqTransformer | DecoderOnlyTransformer) -> None:
        """Pack the decoder of ``model``, for which ``unsupported_reason`` must return None."""
        self.library, self._kind, self._structs = library, kind, library_structs(library)
        self._packer = packer = BlockPacker(library, kind)
        stack, embedding = model.decoder, _embedding(model)
        attention, rotary = stack.blocks[0].attn, embedding.position
        assert isinstance(attention, Attention)
        self._has_cross_attention = isinstance(model, Seq2SeqTransformer)
        self._softcap = model.logit_softcap
        self._blocks = (self._structs.BlockStruct * len(stack.blocks))(*map(packer.block, stack.blocks))
        cos, sin = (x[0].float().contiguous() for x in (rotary.cos, rotary.sin)) if isinstance(rotary, Rotary) else (None, None)
        packer.keep_alive += [cos, sin]
        self._layout = self._structs.DecoderStruct(
            *(WEIGHT_TYPES[kind], len(stack.blocks), model.config.d_model),
            *(attention.n_heads, attention.n_kv_heads, attention.d_head, attention.d_value),
            *((0, 0) if cos is None else (cos.shape[1], cos.shape[0])),
            *(pointer(cos), pointer(sin)),
            packer.embedding(embedding),
            self._blocks,
            packer.norm(stack.norm),
            packer.tiled(*logit_weights(model.unembedding)),
        )

    @property
    def cache_dtype(self) -> torch.dtype:
        """Dtype of cached keys and values: that of the weights, or bfloat16 beside int8 weights."""
        return torch.float32 if self._kind == "fp32" else torch.bfloat16

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, "rows new"], cache: NativeCache) -> Float[Tensor, "rows new vocab"]:
        """Process the next tokens of each row, one by one; return the logits of the token after each."""
        logits = [self._step(column, cache) for column in tokens.split(1, 1)]
        return logits[0] if len(logits) == 1 else torch.cat(logits, 1)

    def log_probs(self, tokens: Int[Tensor, "rows 1"], cache: NativeCache) -> Float[Tensor, "rows vocab"]:
        """Process the next token of each row; return log p of the token after it."""
        if self._softcap is not None:
            return log_probabilities(self._step(tokens, cache)[:, -1], in_place=True)
        return self._step(tokens, cache, log_softmax=True)[:, -1]

    @torch.inference_mode()
    def search(self, model: StepModel[Any, NativeCache], request: SearchRequest) -> HypothesesPerSource | None:
        """Run a greedy search of ``model`` in native calls; return None if it is another search, or does more than suppress some tokens."""
        strategy, limits, longest = request.strategy, request.limits, request.limits.largest_max_length
        suppressed = self._suppressed_tokens(request)
        if type(strategy) is not GreedySearch or request.end != strategy.end or self._softcap is not None or suppressed is None:
            return None
        cache, vocab_size = model.start(model.encode(request.source), 1, longest), self._layout.unembed.out_features
        n_rows, min_length, max_length = cache.state.rows, limits.min_length.long(), limits.max_length.long()
        tokens, log_p = torch.full((n_rows, longest + 1), strategy.end), torch.zeros(n_rows)
        tokens[:, 0] = torch.as_tensor(request.start)
        logits, rows = torch.empty(n_rows, vocab_size), torch.arange(n_rows, dtype=torch.int32)
        pointers = map(pointer, (tokens, log_p, min_length, max_length, suppressed, rows))
        greedy = self._structs.GreedyStruct(*pointers, longest + 1, 0, len(suppressed), strategy.end)
        cache.state.logits = logits.data_ptr()
        while cache.state.rows:
            arguments = (ctypes.byref(self._layout), ctypes.byref(cache.state), cache.workspace, ctypes.byref(greedy), STEPS_PER_CALL)
            if status := self.library.transom_greedy_search(*arguments):
                self._structs.raise_for_status(status)
        return [[strategy.hypothesis(*row)] for row in zip(tokens[:, 1:].tolist(), log_p.tolist(), strict=True)]

    def _suppressed_tokens(self, request: SearchRequest) -> Int[Tensor, "banned"] | None:
        """Return the tokens that the processors suppress; None if one does anything else, or suppresses the end or an unknown token."""
        tokens = list[int]()
        for processor in request.logits_processors:
            if type(processor) is not SuppressTokens:
                return None
            tokens += processor.tokens.tolist()
        known = all(0 <= token < self._layout.unembed.out_features for token in tokens)
        return torch.tensor(tokens, dtype=torch.long) if known and request.end not in tokens else None

    def _step(self, tokens: Int[Tensor, "rows 1"], cache: NativeCache, log_softmax: bool = False) -> Float[Tensor, "rows 1 vocab"]:
        length, state = cache.length, cache.state
        if length >= state.max_length:
            raise IndexError(f"expected at most {state.max_length} tokens in the cache, found {length + 1}")
        if (cache.shapes, cache.dtype) != (self._shapes(cache), self.cache_dtype):
            raise ValueError(
                f"expected a cache of (blocks, width, blocks of memory, width) = {self._shapes(cache)} in {self.cache_dtype},"
                f" found {cache.shapes} in {cache.dtype}"
            )
        tokens = tokens.long()
        if tokens.shape != (state.rows, 1) or tokens.device.type != "cpu":
            raise ValueError(f"expected {state.rows} rows of one token on the CPU, found {tuple(tokens.shape)} on {tokens.device}")
        logits = torch.empty(len(tokens), 1, self._layout.unembed.out_features, dtype=torch.float32, device=tokens.device)
        state.inputs, state.input_stride, state.logits = tokens.data_ptr(), tokens.stride(0), logits.data_ptr()
        state.log_softmax = log_softmax
        if status := self.library.transom_step(ctypes.byref(self._layout), ctypes.byref(state), cache.workspace):
            self._structs.raise_for_status(status)
        return logits if self._softcap is None else soft_cap(logits, self._softcap)

    def _shapes(self, cache: NativeCache) -> tuple[int, int, int, int]:
        """Return the value that ``cache.shapes`` must have; without cross-attention, the memory in the cache may have any shape."""
        layout = self._layout
        width = layout.n_kv_heads * (layout.d_head + layout.d_value)
        return layout.n_blocks, width, *((layout.n_blocks, width) if self._has_cross_attention else cache.shapes[2:])


class NativeSeq2Seq:
    """An encoder-decoder with the native decoder; ``encode``, ``start`` and ``step`` approximate those of ``Seq2SeqTransformer``.

    Attributes:
        kind: weight type of the matrix products.
    """

    def __init__(
        self, library: ctypes.CDLL, model: Seq2SeqTransformer, kind: WeightType, encode: Callable[[PaddedSequences], EncoderOutput]
    ) -> None:
        """Pack the decoder of ``model``, which must not change; ``encode`` encodes the sources."""
        self.encode, self.kind = encode, kind
        self.decoder = NativeDecoder(library, kind, model)
        crosses = [block.cross for block in model.decoder.blocks if isinstance(block.cross, Attention)]
        self._n_blocks, self._n_heads, self._width = len(crosses), crosses[0].n_kv_heads, crosses[0].d_head + crosses[0].d_value
        weights, biases = zip(*(_interleave(cross) for cross in crosses), strict=True)
        self._project = TiledLinear(library, kind, torch.cat(weights), None if biases[0] is None else torch.cat(biases))
        self.step, self.log_probs = self.decoder.step, self.decoder.log_probs

    def search(self, request: SearchRequest) -> HypothesesPerSource | None:
        """Run a search; None if the native decoder cannot run it by itself."""
        return self.decoder.search(self, request)

    @torch.inference_mode()
    def start(self, memory: EncoderOutput, n_beams: int, max_length: int) -> NativeCache:
        """Project the encoder output to keys and values, once per source, and allocate a cache of ``max_length`` tokens per row."""
        library, states = self.decoder.library, memory.states.float().contiguous()
        shape = library_structs(library).MemoryStruct(*states.shape[:2], self._n_heads, self._width)
        keys_values = states.new_empty(
            self._n_blocks, len(states), self._n_heads, states.shape[1], self._width, dtype=self.decoder.cache_dtype
        )
        kind, layout, pointers = WEIGHT_TYPES[self.kind], ctypes.byref(self._project.layout), (states.data_ptr(), keys_values.data_ptr())
        if status := library.transom_project_memory(kind, layout, ctypes.byref(shape), *pointers, torch.get_num_threads()):
            library_structs(library).raise_for_status(status)
        read = keys_values.new_empty(self._n_blocks, n_beams * len(states), self._n_heads, 0, self._width)
        return NativeCache(library, read, keys_values, (memory.segments > 0).sum(1), n_beams, max_length)


class NativeLanguageModel:
    """A language model with the native decoder; ``encode``, ``start`` and ``step`` approximate those of ``DecoderOnlyTransformer``.

    Attributes:
        kind: weight type of the matrix products.
    """

    def __init__(self, library: ctypes.CDLL, model: DecoderOnlyTransformer, kind: WeightType) -> None:
        """Pack the decoder's weights for the native library; they must not change, since ``model`` still processes the prompts."""
        self._model, self.encode, self.kind = model, model.encode, kind
        self.decoder = NativeDecoder(library, kind, model)
        self.step, self.log_probs = self.decoder.step, self.decoder.log_probs

    def search(self, request: SearchRequest) -> HypothesesPerSource | None:
        """Run a search; None if the native decoder cannot run it by itself."""
        return self.decoder.search(self, request)

    @torch.inference_mode()
    def start(self, prompt: PaddedSequences, n_beams: int, max_length: int) -> NativeCache:
        """Read all but the last token of each prompt into a cache that has room for ``max_length`` more tokens per row."""
        cache = self._model.start(prompt, n_beams, 0)
        keys_values = [block.read() for block in cache.blocks if isinstance(block, KVCache)]
        read = torch.stack([torch.cat([k, v], -1).to(self.decoder.cache_dtype) for k, v in keys_values])
        return NativeCache(self.decoder.library, read, None, None, n_beams, cache.length + max_length)


def _interleave(attention: Attention) -> tuple[Tensor, Tensor | None]:
    """Return the weight and the bias of the projection to keys and values, a head's value after its key."""
    maps = [(attention.k, attention.d_head), (attention.v, attention.d_value)]
    weights = [linear.weight.detach().unflatten(0, (-1, width)) for linear, width in maps]
    biases = [linear.bias.detach().unflatten(0, (-1, width)) for linear, width in maps if linear.bias is not None]
    return torch.cat(weights, 1).flatten(0, 1), torch.cat(biases, 1).flatten() if biases else None
