"""The steps of token embeddings and of patch embeddings."""

import math

from torch import Tensor

from transom.config.components import SinusoidalConfig
from transom.inspection.activations import sequences_of
from transom.inspection.explain.builder import Builder, number
from transom.inspection.explain.convolution import normalized_pixel, stem_steps
from transom.inspection.explain.expressions import Call, Number, Sum, exact, sqrt
from transom.inspection.explain.norm import norm_steps
from transom.inspection.messages.tables import message
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
    b.section(message("explain.embedding.title"))
    listed = ", ".join(f"{i} {name} (id {token})" for i, (name, token) in enumerate(zip(b.tokens[side], ids, strict=True)))
    b.note(message("explain.embedding.tokens", tokens=listed))
    token, d = a[f"{path}.token"][0, query], b.at(a[f"{path}.token"].shape[-1])
    table = module.tokens.weight[ids[query]]
    if module.scale != 1.0:
        b.values(f"E_{query}", message("explain.embedding.row", row=str(ids[query])), table)
        expression = number(table[d]) * sqrt(exact(len(table)))
        b.calculate(f"E_{query}[{d}]", message("explain.embedding.scaled"), expression, token[d])
    else:
        b.values(f"E_{query}", message("explain.embedding.token", row=str(ids[query])), token)
    terms, formula = [number(token[d])], "X = E"
    if (added := a.get(f"{path}.position")) is not None:
        p = added[0, query]
        _position_steps(b, path, position, query)
        b.values(f"P_{query}", message("explain.embedding.position", position=str(position)), p)
        terms, formula = [*terms, number(p[d])], f"{formula} + P"
    else:
        kind = getattr(getattr(a.model.config, "position", None), "kind", "none")
        b.note(message(f"explain.embedding.no_position.{kind if kind in ACTING_ELSEWHERE else 'none'}"))
    if (of_types := a.get(f"{path}.token_type")) is not None:
        types = getattr(sequences, "token_types", None)
        t = of_types[0, query]
        b.values(f"T_{query}", message("explain.embedding.token_type", type="0" if types is None else str(int(types[0, query]))), t)
        terms, formula = [*terms, number(t[d])], f"{formula} + T"
    if len(terms) > 1:
        b.calculate(f"X_{query}[{d}]", formula, Sum(terms), a[f"{path}.sum"][0, query, d])
    if module.norm is not None:
        norm_steps(b, f"{path}.norm", (0, query), f"X_{query}")
    b.after_edits(f"X_{query}[{d}]", f"{path}.resid", (0, query, d))
    b.values(f"X_{query}", message("explain.embedding.stream"), a[f"{path}.resid"][0, query])


ACTING_ELSEWHERE = ("rotary", "alibi", "relative")
"""Kinds of position encodings that are not added to the embedding; a message for each says where they act."""


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
        query: index of the token; a class token is token 0, a distillation token follows it, and then the patches.
    """
    a, module = b.a, b.a.module(path)
    assert isinstance(module, PatchEmbedding)
    x, n_class = a[f"{path}.resid"][0, query], sum(each is not None for each in (module.cls, module.distillation))
    d, patch = b.at(len(x)), query - n_class
    n_patches = a[f"{path}.patches"].shape[1]
    side = math.isqrt(n_patches)
    b.section(message("explain.patches.title"))
    b.note(message("explain.patches.cut_class" if n_class else "explain.patches.cut", side=side))
    if patch < 0:
        first = query == 0
        token = module.cls if first else module.distillation
        assert token is not None
        start: Tensor = token
        name = "x_cls" if first else "x_dist"
        b.values(name, message("explain.patches.class_token" if first else "explain.patches.distillation_token"), start)
    else:
        _pixel_steps(b, path, patch, side)
        x_p, start = a[f"{path}.patches"][0, patch], a[f"{path}.patch"][0, patch]
        what = message("explain.patches.row", patch=str(patch), row=str(patch // side), column=str(patch % side))
        b.values(f"x_p{patch}", what, x_p)
        b.linear(f"x_p{patch} E [{d}]", "x_p E", module.projection, x_p, d, start[d])
    if (positions := a.get(f"{path}.position")) is not None:
        b.values(f"P_{query}", message("explain.patches.position", token=str(query)), positions[0, query])
        formula = "X = x_p E + P" if patch >= 0 else f"X = {name} + P"
        b.calculate(f"X_{query}[{d}]", formula, number(start[d]) + number(positions[0, query, d]), b.unedited(f"{path}.resid")[0, query, d])
    else:
        b.note(message("explain.patches.no_position"))
    b.after_edits(f"X_{query}[{d}]", f"{path}.resid", (0, query, d))
    b.values(f"X_{query}", message("explain.embedding.stream"), x)


def _pixel_steps(b: Builder, path: str, patch: int, side: int) -> None:
    """Add the normalization of the first pixel of a patch, or the steps of the convolutional stem that give its first value."""
    a, module = b.a, b.a.module(path)
    row, column = (patch // side) * module.patch_size, (patch % side) * module.patch_size
    if not len(module.stem.stages):
        normalized_pixel(b, module.pixels, (0, row, column), a[f"{path}.patches"][0, patch, 0])
        return
    b.note(message("explain.patches.stem"))
    stem_steps(b, f"{path}.stem", module.pixels, (0, row, column))
    b.section(message("explain.patches.embedding", patch=str(patch)))
