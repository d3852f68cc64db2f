"""Kernels that this package adds to the dispatch table, in the order in which they are tried.

A condition is evaluated in every call, so it is cheap: it reads only dtypes, shapes and devices.
"""

import os

import torch

from transom.errors import TransomError
from transom.kernels import attention, block_sparse, flex, loss, native, norm, packed_linear, pointwise
from transom.layers.dispatch import Row, always, on_cpu

SWITCH = "TRANSOM_KERNELS"
"""Environment variable, read once per process: ``all`` (default), or ``reference`` for no kernels."""


def selected_rows() -> list[Row]:
    """Return the kernels selected by the environment variable.

    Raises:
        TransomError: the variable has an unknown value.
    """
    choice = os.environ.get(SWITCH, "all")
    if choice not in ("all", "reference"):
        raise TransomError(f"{SWITCH}: expected all or reference, found {choice!r}; correct or unset it")
    return ROWS if choice == "all" else []


def _no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "no GPU was found"


def _no_triton() -> str | None:
    return None if torch.cuda.is_available() and flex.available(torch.device("cuda")) else "no GPU with Triton was found"


def _no_bfloat16() -> str | None:
    return None if packed_linear.supported() else "this CPU or this PyTorch has no bfloat16 products in oneDNN"


def _no_step() -> str | None:
    library, reason = native.native()
    return None if library is not None else reason


ROWS = [
    Row(
        *("relu", "mask product", "on a CPU", on_cpu, pointwise.relu, 3e-8),
        "the gradient is a product with a 0/1 mask, several times faster than PyTorch's in bfloat16",
    ),
    Row(
        *("dropout_add", "one pass", "on a CPU, residual and x of one dtype", pointwise.of_one_type, pointwise.dropout_add, 4e-8),
        "product and sum take one pass over memory; the layer samples the mask",
    ),
    Row(
        *("rotary", "in place", "everywhere", always, pointwise.rotate, 4e-8),
        "takes half the passes over memory; the backward pass rotates the gradient by the negative angles",
    ),
    Row(
        *("layer_norm", "float32 sums", "16-bit dtypes on a CPU, in training", norm.in_short_type, norm.short_layer_norm, 5e-3),
        "PyTorch sums the gradients of gamma and beta in bfloat16, an error of 8 % over 4,096 tokens",
    ),
    Row(*("layer_norm", "fused", "everywhere else", always, norm.fused_layer_norm, 2e-6), "PyTorch's kernel reads x once"),
    Row(
        *("rms_norm", "written out", "on a CPU", on_cpu, norm.written_out_rms_norm, 2e-6),
        "PyTorch takes a dozen passes over memory for output and gradient",
    ),
    Row(*("rms_norm", "fused", "on other devices", always, norm.fused_rms_norm, 3e-7), "PyTorch's kernel reads x once", _no_gpu),
    Row(
        *("attention", "short", f"at most {attention.SHORT:,} keys on a CPU, in training; dot products, no sinks, no learned bias"),
        *(attention.short_in_training, attention.attend_short, 3e-7),
        "stores the weights for a hand-written gradient; PyTorch's fused kernel is 1.4 to 8 times slower here",
    ),
    Row(
        *("attention", "fused", "dot products, no softcap, no sinks", attention.neither_bounded_nor_sunk, attention.attend_fused, 3e-7),
        "PyTorch's kernel stores no weight matrix; it samples attention_dropout itself, so it drops other weights than the reference",
    ),
    Row(
        *("visible_tiles", "blocks", "masks of long sequences on a GPU with Triton", flex.planned_on_gpu, flex.plan_blocks, 0.0),
        "finds the visible blocks without the dense mask",
        _no_triton,
    ),
    Row(
        *("visible_tiles", "tiles", "masks of long sequences on a CPU", block_sparse.planned_on_cpu, block_sparse.plan_tiles, 0.0),
        "finds the visible tiles without the dense mask",
    ),
    Row(
        *("visible_attention", "tiles", "tiles planned on a CPU", block_sparse.over_tiles, block_sparse.attend_tiles, 3e-7),
        "time and memory grow with the visible pairs; dropout is sampled per chunk, so it drops other weights than the reference",
    ),
    Row(
        *("visible_attention", "FlexAttention", f"planned blocks, no dropout, heads of {flex.NARROWEST} or wider, not float64"),
        *(flex.over_blocks, flex.attend_blocks, 4e-7),
        "computes visible blocks in place",
        _no_triton,
    ),
    Row(
        *("linear_cross_entropy", "chunks", "everywhere", always, loss.linear_cross_entropy, 1e-6),
        "never stores all logits, only one chunk while its loss and gradient are computed",
    ),
    Row(
        *("packed_linear", "oneDNN", "bfloat16 weights on a CPU with bf16 support", packed_linear.pays, packed_linear.Packed, 3e-3),
        "weights are packed once; bias, activation and residual sum are fused with the product",
        _no_bfloat16,
    ),
    Row(
        *("decoder_step", "C++", "decoders in bfloat16 or int8 on a CPU with AVX-512", always, lambda: native.native(), 0.02),
        "one call per decoding step for all blocks, compiled on the machine that runs it",
        _no_step,
    ),
]
