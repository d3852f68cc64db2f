"""The rows that the kernels add to the dispatch table, in the order in which they are tried.

A condition is asked in every call, so it is cheap and looks at types, shapes and devices only.
"""

import os

import torch
from torch import Tensor

from transom.errors import TransomError
from transom.kernels import block_sparse, flex, loss, native, norm, packed_linear, pointwise
from transom.kernels.attention_cpu import SHORT, attend_short
from transom.kernels.attention_fused import attend_fused
from transom.layers.attention import PLAIN, Terms
from transom.layers.dispatch import Row
from transom.layers.masks.rule import Places, Rule
from transom.layers.masks.visible_tiles import VisibleTiles
from transom.layers.position import Position

SWITCH = "TRANSOM_KERNELS"
"""Environment variable, read once per process: ``all`` (as if unset) or ``reference`` for none of the rows."""


def selected_rows() -> list[Row]:
    """Return the rows that the environment asks for.

    Raises:
        TransomError: the variable has another value.
    """
    choice = os.environ.get(SWITCH, "all")
    if choice not in ("all", "reference"):
        raise TransomError(f"{SWITCH}: expected all or reference, found {choice!r}; correct or unset it")
    return ROWS if choice == "all" else []


def _always(*_: object) -> bool:
    return True


def _no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "there is no GPU"


def _no_triton() -> str | None:
    return None if torch.cuda.is_available() and flex.available(torch.device("cuda")) else "there is no GPU with Triton"


def _no_bfloat16() -> str | None:
    return None if packed_linear.supported() else "this processor, or this PyTorch, does not multiply bfloat16 by oneDNN"


def _no_step() -> str | None:
    library, reason = native.native()
    return None if library is not None else reason


def _on_cpu(x: Tensor, *_: object) -> bool:
    return x.device.type == "cpu"


def _short_type_on_cpu(x: Tensor, *_: object) -> bool:
    return x.dtype.itemsize < torch.float32.itemsize and x.device.type == "cpu" and torch.is_grad_enabled()


def _one_type_on_cpu(residual: Tensor, x: Tensor, mask: Tensor) -> bool:
    return residual.dtype == x.dtype and x.device.type == "cpu"


def _short_training_on_cpu(q: Tensor, k: Tensor, v: Tensor, terms: Terms = PLAIN) -> bool:
    if q.device.type != "cpu" or k.shape[2] > SHORT or terms.sinks is not None or not torch.is_grad_enabled():
        return False
    return terms.bias is None or not terms.bias.requires_grad


def _neither_bounded_nor_sunk(q: Tensor, k: Tensor, v: Tensor, terms: Terms = PLAIN) -> bool:
    return terms.softcap is None and terms.sinks is None


def _plan_on_cpu(rule: Rule, queries: Places, keys: Places, position: Position | None) -> bool:
    return queries.segments.device.type == "cpu"


def _plan_on_gpu(rule: Rule, queries: Places, keys: Places, position: Position | None) -> bool:
    return flex.available(queries.segments.device)


def _tiles(q: Tensor, k: Tensor, v: Tensor, tiles: VisibleTiles, terms: Terms = PLAIN) -> bool:
    return isinstance(tiles, block_sparse.Tiles)


def _blocks(q: Tensor, k: Tensor, v: Tensor, tiles: VisibleTiles, terms: Terms = PLAIN) -> bool:
    fits = not terms.dropout and min(q.shape[3], v.shape[3]) >= flex.NARROWEST and q.dtype != torch.float64
    return fits and isinstance(tiles, flex.Blocks)


ROWS = [
    Row(
        *("relu", "mask product", "on a CPU", _on_cpu, pointwise.relu, 3e-8),
        "the gradient is a product with a 0/1 mask, in bfloat16 several times faster than PyTorch's",
    ),
    Row(
        *("dropout_add", "one pass", "on a CPU, residual and x of one type", _one_type_on_cpu, pointwise.dropout_add, 4e-8),
        "product and sum take one pass over memory; the layer draws the mask",
    ),
    Row(
        *("rotary", "in place", "everywhere", _always, pointwise.rotate, 4e-8),
        "half the passes over memory; the gradient is rotated back and not recorded",
    ),
    Row(
        *("layer_norm", "float32 sums", "16-bit types on a CPU, in training", _short_type_on_cpu, norm.short_layer_norm, 5e-3),
        "PyTorch sums the gradients of gamma and beta in bfloat16, which is off by 8 % over 4,096 tokens",
    ),
    Row(*("layer_norm", "fused", "everywhere else", _always, norm.fused_layer_norm, 2e-6), "PyTorch's kernel reads x once"),
    Row(
        *("rms_norm", "written out", "on a CPU", _on_cpu, norm.written_out_rms_norm, 2e-6),
        "PyTorch composes value and gradient of a dozen passes over memory",
    ),
    Row(*("rms_norm", "fused", "on other devices", _always, norm.fused_rms_norm, 3e-7), "PyTorch's kernel reads x once", _no_gpu),
    Row(
        *("attention", "short", f"at most {SHORT:,} keys on a CPU, in training; no sinks, no learned bias", _short_training_on_cpu),
        *(attend_short, 3e-7),
        "keeps the weights for a written-out gradient; PyTorch's fused kernel is 1.4 to 8 times slower there",
    ),
    Row(
        *("attention", "fused", "no softcap, no sinks", _neither_bounded_nor_sunk, attend_fused, 3e-7),
        "PyTorch's kernel holds no matrix of weights; it draws what attention_dropout drops itself, so other weights than the reference",
    ),
    Row(
        *("visible_tiles", "blocks", "masks of long rows on a GPU with Triton", _plan_on_gpu, flex.plan_blocks, 0.0),
        "finds the blocks that are visible without the matrix of the mask",
        _no_triton,
    ),
    Row(
        *("visible_tiles", "tiles", "masks of long rows on a CPU", _plan_on_cpu, block_sparse.plan_tiles, 0.0),
        "finds the tiles that are visible without the matrix of the mask",
    ),
    Row(
        *("visible_attention", "tiles", "tiles planned on a CPU", _tiles, block_sparse.attend_tiles, 3e-7),
        "time and memory grow with the visible pairs; dropout is drawn per chunk of tiles, so it drops other weights than the reference",
    ),
    Row(
        *("visible_attention", "FlexAttention", f"planned blocks, no dropout, heads of {flex.NARROWEST} or wider, not float64", _blocks),
        *(flex.attend_blocks, 4e-7),
        "computes visible blocks in place",
        _no_triton,
    ),
    Row(
        *("linear_cross_entropy", "chunks", "everywhere", _always, loss.linear_cross_entropy, 1e-6),
        "never holds all logits: a chunk's live until its loss and gradient are computed",
    ),
    Row(
        *("packed_linear", "oneDNN", "bfloat16 weights on a CPU that multiplies them", packed_linear.pays, packed_linear.Packed, 3e-3),
        "weights are laid out once; bias, activation and sum need no pass of their own",
        _no_bfloat16,
    ),
    Row(
        *("decoder_step", "C++", "decoders in bfloat16 or 8 bits on a CPU with AVX-512", _always, lambda: native.native(), 0.02),
        "one call per step through all blocks, compiled on the machine that runs it",
        _no_step,
    ),
]
