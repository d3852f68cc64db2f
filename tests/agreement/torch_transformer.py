"""Convert weights of ``torch.nn.Transformer`` to our names, and back.

PyTorch ends each stack with a norm of its own in post-norm too, which the paper does not have: build it with
``custom_encoder=nn.TransformerEncoder(layer, n, norm=None)`` and likewise the decoder. Embeddings and the output map are not part of it.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from transom.errors import CheckpointError

_PARTS = {
    "encoder": {
        "self_attn": "attn",
        "norm1": "attn_residual.norm",
        "linear1": "ff.up",
        "linear2": "ff.down",
        "norm2": "ff_residual.norm",
    },
    "decoder": {
        "self_attn": "attn",
        "norm1": "attn_residual.norm",
        "multihead_attn": "cross",
        "norm2": "cross_residual.norm",
        "linear1": "ff.up",
        "linear2": "ff.down",
        "norm3": "ff_residual.norm",
    },
}
"""Modules of a PyTorch block and ours, per stack."""

_THEIRS = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(\w+)\.(in_proj_|out_proj\.)?(weight|bias)")
_OURS = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(attn|cross|\w+\.\w+)(?:\.([qkvo]))?\.(weight|bias)")
_FINAL = re.compile(r"(encoder|decoder)\.norm\.(weight|bias)")


def from_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the state dict of a ``torch.nn.Transformer``; its fused W_Q, W_K and W_V are split.

    Raises:
        CheckpointError: a tensor that no such module has.
    """
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if _FINAL.fullmatch(name):
            ours[name] = tensor
            continue
        match = _THEIRS.fullmatch(name)
        if match is None or match[3] not in _PARTS[match[1]]:
            raise CheckpointError(f"expected the tensors of torch.nn.Transformer's blocks, found {name[:200]!r}")
        stack, number, module, projection, kind = match.groups()
        path = f"{stack}.blocks.{number}.{_PARTS[stack][module]}"
        if projection == "in_proj_":
            ours |= {f"{path}.{letter}.{kind}": part for letter, part in zip("qkv", tensor.chunk(3), strict=True)}
        else:
            ours[f"{path}.o.{kind}" if projection else f"{path}.{kind}"] = tensor
    return ours


def to_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the blocks of an encoder-decoder's state dict for ``torch.nn.Transformer``; embeddings and output projection are omitted.

    Raises:
        CheckpointError: W_Q, W_K and W_V have different heights or one is missing, a norm has no shift, or there is any other part that
            PyTorch's module cannot hold. The activation is no part of a state; the caller must see to it.
    """
    for name in state:
        if re.fullmatch(r"(encoder|decoder)\..*norm\.weight", name) and name.replace("weight", "bias") not in state:
            raise CheckpointError(f"{name[:200]!r}: torch.nn.Transformer's norms have a shift, found one without")
    theirs: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if _FINAL.fullmatch(name):
            theirs[name] = tensor
        if (match := _OURS.fullmatch(name)) is None or match[3] not in _PARTS[match[1]].values():
            if name.startswith(("encoder.", "decoder.")) and not _FINAL.fullmatch(name):
                raise CheckpointError(
                    f"{name[:200]!r}: torch.nn.Transformer has no such part; only the components of 2017 can be given to it"
                )
            continue
        stack, number, module, letter, kind = match.groups()
        path = f"{stack}.layers.{number}.{next(old for old, new in _PARTS[stack].items() if new == module)}"
        if letter is None:
            theirs[f"{path}.{kind}"] = tensor
        elif letter == "o":
            theirs[f"{path}.out_proj.{kind}"] = tensor
        elif letter == "q":
            parts = [state.get(name.replace(".q.", f".{other}.")) for other in "qkv"]
            whole = [part for part in parts if part is not None and part.shape == tensor.shape]
            if len(whole) < 3 or tensor.shape[0] != state[name.replace(f".q.{kind}", ".q.weight")].shape[1]:
                raise CheckpointError(
                    f"{name}: torch.nn.Transformer needs W_Q, W_K and W_V of d_model columns each (n_heads * d_head = d_model)"
                )
            theirs[f"{path}.in_proj_{kind}"] = torch.cat(whole)
    return theirs
