"""Kernels that this package adds to the dispatch table, in the order in which they are tried.

The condition of a kernel is evaluated in every call. Conditions are therefore cheap: they read only dtypes, shapes, devices and options.
"""

import os
from collections.abc import Callable
from typing import Any

import torch

from transom.errors import TransomError
from transom.kernels import (
    attention,
    block_sparse,
    elementwise,
    feed_forward,
    flex,
    linear,
    log_probabilities,
    loss,
    native_library,
    norm,
    pointwise,
)
from transom.layers.dispatch import Kernel, always, on_cpu

KERNELS_VARIABLE = "TRANSOM_KERNELS"
"""Environment variable that selects kernels, read once per process: ``all`` (default), or ``reference`` for no kernels."""


def selected_kernels() -> list[Kernel]:
    """Return the kernels that the environment variable ``TRANSOM_KERNELS`` selects.

    Raises:
        TransomError: ``TRANSOM_KERNELS`` has an unknown value.
    """
    choice = os.environ.get(KERNELS_VARIABLE, "all")
    if choice not in ("all", "reference"):
        raise TransomError(f"{KERNELS_VARIABLE}: expected 'all' or 'reference', found {choice!r}; correct or unset the variable")
    return KERNELS if choice == "all" else []


def _no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "no GPU was found"


def _no_triton() -> str | None:
    return None if torch.cuda.is_available() and flex.is_available(torch.device("cuda")) else "no GPU with Triton was found"


def _no_bfloat16() -> str | None:
    return None if linear.has_bfloat16_products() else "this CPU or this PyTorch has no bfloat16 products in oneDNN"


def _no_native_library() -> str | None:
    library, reason = native_library.load_native_library()
    return None if library is not None else reason


def _no_elementwise_library() -> str | None:
    library, reason = native_library.load_elementwise_library()
    return None if library is not None else reason


def _elementwise(operation: str, when: str, condition: Callable[..., bool], implementation: Callable[..., Any], error: float) -> Kernel:
    reason = "one pass over memory, compiled on the machine that runs it; sums are in float32"
    return Kernel(operation, "C++", when, condition, implementation, error, reason, _no_elementwise_library)


_CPU_TYPES = "bfloat16 or float32 on a CPU"
_SCORES = "contiguous rows in float32 on a CPU, without gradients"
KERNELS = [
    _elementwise(
        "activation",
        f"{_CPU_TYPES}, many elements, where PyTorch takes several passes",
        elementwise.can_activate,
        elementwise.activate,
        4e-3,
    ),
    Kernel(
        *("feed_forward", "C++", f"{_CPU_TYPES}, many hidden units; no dropout of hidden units, no bias beside a gate"),
        *(feed_forward.can_transform_tokens, feed_forward.transform_tokens, 5e-3),
        "bias and activation take one pass; the backward pass computes the hidden units again, so that they are not stored",
        _no_elementwise_library,
    ),
    Kernel(
        *("linear", "matrix unit", "training in bfloat16 by autocast on a CPU with AMX, many rows"),
        *(linear.can_use_linear, linear.linear, 4e-3),
        "gradients of weights and biases are in float32, without copies",
        linear.missing_matrix_unit,
    ),
    Kernel(
        *("linears", "matrix unit", "linear layers with the same inputs; as ``linear``, with the outputs of all layers together"),
        *(linear.can_use_linears, linear.linears, 4e-3),
        "the inputs are packed once for the gradients of all weights, and the gradients of the inputs are summed by the products",
        linear.missing_matrix_unit,
    ),
    _elementwise("rotary", f"{_CPU_TYPES}, tables in float32", elementwise.can_rotate, elementwise.rotate, 4e-3),
    _elementwise("layer_norm", "bfloat16 on a CPU, gains in float32", elementwise.can_normalize_centered, elementwise.layer_norm, 4e-3),
    _elementwise("rms_norm", f"{_CPU_TYPES}, gains in float32", elementwise.can_normalize, elementwise.rms_norm, 4e-3),
    _elementwise("keyed_dropout", f"{_CPU_TYPES}, residual and x of one dtype", elementwise.can_drop, elementwise.drop_keyed, 4e-3),
    _elementwise("log_softmax_", _SCORES, log_probabilities.are_plain_scores, log_probabilities.log_softmax_, 1e-7),
    _elementwise("largest", _SCORES, log_probabilities.are_plain_scores, log_probabilities.largest, 0.0),
    Kernel(
        *("relu", "mask product", "on a CPU", on_cpu, pointwise.relu, 3e-8),
        "the gradient is a product with a 0/1 mask, several times faster than PyTorch's in bfloat16",
    ),
    Kernel(
        *("dropout_add", "one pass", "on a CPU, residual and x of one dtype", pointwise.can_use_dropout_add, pointwise.dropout_add, 4e-8),
        "product and sum take one pass over memory; the layer samples the mask",
    ),
    Kernel(
        *("rotary", "in place", "everywhere", always, pointwise.rotate, 4e-8),
        "takes half the passes over memory of the reference; the backward pass rotates the gradient by the negative angles",
    ),
    Kernel(
        *(
            "layer_norm",
            "float32 sums",
            "16-bit dtypes on a CPU, in training",
            norm.can_use_16_bit_layer_norm,
            norm.layer_norm_16_bit,
            5e-3,
        ),
        "sums the gradients of gamma and beta in float32; PyTorch sums in bfloat16, with an error of 8% over 4,096 tokens",
    ),
    Kernel(*("layer_norm", "fused", "everywhere else", always, norm.fused_layer_norm, 2e-6), "PyTorch's kernel reads x once"),
    Kernel(
        *("rms_norm", "written out", "on a CPU", on_cpu, norm.explicit_rms_norm, 2e-6),
        "takes few passes over memory; PyTorch takes a dozen for output and gradient",
    ),
    Kernel(*("rms_norm", "fused", "on other devices", always, norm.fused_rms_norm, 3e-7), "PyTorch's kernel reads x once", _no_gpu),
    Kernel(
        *(
            "attention",
            "C++",
            "training on a CPU, float32 with AVX-512 and bfloat16 with AMX; heads of 16, 32, ... channels, at least one per thread;"
            " no bias, dropout, softcap or sinks",
        ),
        *(attention.can_use_native_attention, attention.native_attention, 3e-7),
        "copies no heads and keeps no weights; scores stay in the near caches, and keys after the last visible one of a block are left out",
        attention.missing_for_attention,
    ),
    Kernel(
        *(
            "attention",
            "short",
            f"at most {attention.MAX_SHORT_KEYS:,} keys on a CPU, in training; dot products, no sinks, no learned bias",
        ),
        *(attention.can_use_short_attention, attention.short_attention, 3e-7),
        "stores the weights for a hand-written gradient; in bfloat16, PyTorch's fused kernel is 1.4 to 8 times slower",
    ),
    Kernel(
        *("attention", "query chunks", "keyed dropout; more keys, other devices, or what ``short`` does not support"),
        *(attention.has_keyed_dropout, attention.attention_by_query_chunks, 3e-7),
        "PyTorch's fused kernel samples its own masks; the backward pass recomputes the weights of one chunk at a time",
    ),
    Kernel(
        *("attention", "fused", "dot products, no softcap, no sinks", attention.can_use_fused_attention, attention.fused_attention, 3e-7),
        "PyTorch's kernel stores no weight matrix; it samples attention_dropout itself, so it drops other weights than the reference",
    ),
    Kernel(
        *("block_sparse_mask", "blocks", "masks of long sequences on a GPU with Triton", flex.can_plan_on_gpu, flex.plan_flex_mask, 0.0),
        "finds the visible blocks without the dense mask",
        _no_triton,
    ),
    Kernel(
        *(
            "block_sparse_mask",
            "tiles",
            "masks of long sequences on a CPU",
            block_sparse.can_plan_on_cpu,
            block_sparse.plan_tiled_mask,
            0.0,
        ),
        "finds the visible tiles without the dense mask",
    ),
    Kernel(
        *(
            "block_sparse_attention",
            "tiles",
            "tiles planned on a CPU",
            block_sparse.can_use_tiled_attention,
            block_sparse.tiled_attention,
            3e-7,
        ),
        "time and memory grow with the visible query-key pairs; dropout that is not keyed drops other weights than the reference",
    ),
    Kernel(
        *("block_sparse_attention", "FlexAttention", f"planned blocks, no dropout, heads of {flex.MIN_HEAD_WIDTH} or wider, not float64"),
        *(flex.can_use_block_attention, flex.flex_block_attention, 4e-7),
        "computes visible blocks only, without gathering them",
        _no_triton,
    ),
    Kernel(
        *("linear_cross_entropy", "chunks", "logits without a soft-cap", loss.has_no_softcap, loss.linear_cross_entropy, 1e-6),
        "never stores all logits, only one chunk while its loss and gradient are computed",
    ),
    Kernel(
        *(
            "packed_linear",
            "oneDNN",
            "bfloat16 weights on a CPU with bf16 support",
            linear.can_use_onednn,
            linear.OneDnnLinear,
            3e-3,
        ),
        "weights are packed once; bias, activation and residual sum are fused with the product",
        _no_bfloat16,
    ),
    Kernel(
        *(
            "decoder_step",
            "C++",
            "decoders in float32, bfloat16 or int8 on a CPU with AVX-512",
            always,
            lambda: native_library.load_native_library(),
            0.02,
        ),
        "one call per decoding step for all blocks, compiled on the machine that runs it",
        _no_native_library,
    ),
]
