"""The steps of token embeddings and of patch embeddings."""

import math

from torch import Tensor

from transom.config.components import SinusoidalConfig
from transom.inspection.activations import sequences_of
from transom.inspection.explain.builder import Builder, number
from transom.inspection.explain.convolution import normalized_pixel, stem_steps
from transom.inspection.explain.expressions import Call, Number, exact, sqrt
from transom.inspection.explain.norm import norm_steps
from transom.layers.position_encoding import Sinusoidal
from transom.layers.vision.patch_embedding import PatchEmbedding


def embedding_section(b: Builder, path: str, side: str, query: int) -> None:
    """Add the tokens of one side, and the steps of the embedding of one token.

    Args:
        b: the hand calculation.
        path: path of the embedding.
        side: "source" or "target".
        query: position of the token.
    """
    a, module = b.a, b.a.module(path)
    sequences = sequences_of(a, path)
    ids, position = sequences.tokens[0].tolist(), int(sequences.positions[0, query])
    b.section("tokens and embeddings")
    listed = ", ".join(f"{i} {name} (id {token})" for i, (name, token) in enumerate(zip(b.tokens[side], ids, strict=True)))
    b.note(f"tokens: {listed}")
    token, d = a[f"{path}.token"][0, query], b.at(a[f"{path}.token"].shape[-1])
    table = module.tokens.weight[ids[query]]
    if module.scale != 1.0:
        b.values(f"E_{query}", f"row {ids[query]} of the embedding table", table)
        expression = number(table[d]) * sqrt(exact(len(table)))
        b.calculate(f"E_{query}[{d}]", "table[token] sqrt(d_model)", expression, token[d])
    else:
        b.values(f"E_{query}", f"token embedding: row {ids[query]} of the embedding table", token)
    if (added := a.get(f"{path}.position")) is not None:
        p = added[0, query]
        _position_steps(b, path, position, query)
        b.values(f"P_{query}", f"position encoding of position {position}", p)
        b.calculate(f"X_{query}[{d}]", "X = E + P", number(token[d]) + number(p[d]), a[f"{path}.sum"][0, query, d])
    else:
        kind = getattr(getattr(a.model.config, "position", None), "kind", "none")
        b.note(f"P: no position encoding is added to the embedding{_INSTEAD.get(kind, '')}")
    if module.norm is not None:
        norm_steps(b, f"{path}.norm", (0, query), f"X_{query}")
    b.after_edits(f"X_{query}[{d}]", f"{path}.resid", (0, query, d))
    b.values(f"X_{query}", "residual stream before the first block", a[f"{path}.resid"][0, query])


_INSTEAD = {
    "rotary": "; queries and keys are rotated instead (RoPE)",
    "alibi": "; a bias that falls with the distance is added to the scores instead (ALiBi)",
    "relative": "; a learned bias of each distance is added to the scores instead",
}
"""Places where positions act that are not added to the embedding, by the kind of the encoding."""


def _position_steps(b: Builder, path: str, position: int, query: int) -> None:
    """Add the sine or cosine of one element of a sinusoidal position encoding."""
    module = b.a.module(path).position
    if not isinstance(module, Sinusoidal):
        return
    config = module.config.position
    assert isinstance(config, SinusoidalConfig)
    d, width = b.at(module.config.d_model), module.config.d_model
    pair = d - d % 2
    angle = exact(position) * Number(config.base ** (-pair / width), 0.0) if pair else exact(position)
    name = "cos" if d % 2 else "sin"
    formula = f"{name}(i {config.base:g}^(-{pair}/{width}))"
    b.calculate(f"P_{query}[{d}]", formula, Call(name, angle), module.table[position, d])


def patch_section(b: Builder, path: str, query: int) -> None:
    """Add the pixels of one patch, and the steps of its embedding; or the class token.

    Args:
        b: the hand calculation.
        path: path of the patch embedding.
        query: index of the token; with a class token, token 0 is this and the patches follow.
    """
    a, module = b.a, b.a.module(path)
    assert isinstance(module, PatchEmbedding)
    x, n_class = a[f"{path}.resid"][0, query], 0 if module.cls is None else 1
    d, patch = b.at(len(x)), query - n_class
    n_patches = a[f"{path}.patches"].shape[1]
    side = math.isqrt(n_patches)
    b.section("patches and embeddings")
    b.note(f"the image is cut into {side} x {side} patches" + (", which follow a class token (token 0)" if n_class else ""))
    if patch < 0:
        assert module.cls is not None
        start: Tensor = module.cls
        b.values("x_cls", "class token, a learned vector", start)
    else:
        _pixel_steps(b, path, patch, side)
        x_p, start = a[f"{path}.patches"][0, patch], a[f"{path}.patch"][0, patch]
        b.values(f"x_p{patch}", f"patch {patch} (row {patch // side}, column {patch % side}): its values in one row", x_p)
        b.linear(f"x_p{patch} E [{d}]", "x_p E", module.projection, x_p, d, start[d])
    if (positions := a.get(f"{path}.position")) is not None:
        b.values(f"P_{query}", f"position embedding of token {query}", positions[0, query])
        formula = "X = x_p E + P" if patch >= 0 else "X = x_cls + P"
        b.calculate(f"X_{query}[{d}]", formula, number(start[d]) + number(positions[0, query, d]), b.unedited(f"{path}.resid")[0, query, d])
    else:
        b.note("P: no position encoding is added to the patches")
    b.after_edits(f"X_{query}[{d}]", f"{path}.resid", (0, query, d))
    b.values(f"X_{query}", "residual stream before the first block", x)


def _pixel_steps(b: Builder, path: str, patch: int, side: int) -> None:
    """Add the normalization of the first pixel of a patch, or the steps of the convolutional stem that give its first value."""
    a, module = b.a, b.a.module(path)
    row, column = (patch // side) * module.patch_size, (patch % side) * module.patch_size
    if not len(module.stem.stages):
        normalized_pixel(b, module.pixels, (0, row, column), a[f"{path}.patches"][0, patch, 0])
        return
    b.note("the patches are cut from the feature map of the convolutional stem; the first value of this patch:")
    stem_steps(b, f"{path}.stem", module.pixels, (0, row, column))
    b.section(f"embedding of patch {patch}")
