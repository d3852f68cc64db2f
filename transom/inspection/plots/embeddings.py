"""Pictures of embeddings: the position encoding with its dot products, and word vectors projected on a plane."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transom.errors import ConfigError
from transom.inspection.pages.markup import shorten
from transom.inspection.plots.picture import CATEGORIES, DIVERGING, MAX_LABEL, Picture, heat_map
from transom.layers.position_encoding import PositionEncoding, apply_rotary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def positions(model: Any, length: int = 64, stack: str | None = None) -> Picture:
    """Draw the position encoding of a model, and how it makes tokens at different positions alike.

    For vectors that are added to the embeddings (sinusoidal, learned): the table, and the dot products p_i p_j of all pairs. For rotary
    positions: cosines of the angles, and the score q_i k_j / d of equal unit queries and keys. For biases (ALiBi, relative): the bias of
    each head by distance, and that of head 0 for all pairs.

    Args:
        model: a run or model.
        length: number of positions; at most those of the model.
        stack: "encoder" or "decoder"; None for the first.

    Raises:
        ConfigError: the model has no position encoding.
    """
    network = getattr(model, "model", model)
    found = {name: module for name, module in network.named_modules() if isinstance(module, PositionEncoding)}
    chosen = {
        name: module
        for name, module in found.items()
        if stack is None or name.startswith((stack, {"encoder": "source"}.get(stack, "target")))
    }
    if not chosen:
        raise ConfigError(f"expected a model with position encodings, found {network.config.FAMILY} without; use another run")
    name, module = next(iter(chosen.items()))
    n = min(length, network.config.n_positions)
    with torch.no_grad():
        table, products, what = _position_tables(module, torch.arange(n, device=network.device))
    rows = [("table", i, j, value) for i, row in enumerate(table.tolist()) for j, value in enumerate(row)]
    rows += [("products", i, j, value) for i, row in enumerate(products.tolist()) for j, value in enumerate(row)]
    near, far = (float(products.diagonal(offset).mean()) for offset in (1, n - 1)) if n > 1 else (0.0, 0.0)
    alt = (
        f"Left: {what[0]} of {n} positions (rows) and {table.shape[1]} {what[1]} (columns). Right: {what[2]} of all pairs of positions; for"
        f" neighbors {near:.3g} on average, for the pair farthest apart {far:.3g}."
    )

    def draw(figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        for axes, x, title, at in ((left, table, what[0], what[1]), (right, products, what[2], "position")):
            most = float(x.abs().max()) or 1.0
            drawn = heat_map(axes, x.cpu().numpy(), -most, most, DIVERGING)
            axes.set_title(title)
            axes.set_ylabel("position")
            axes.set_xlabel(at)
            figure.colorbar(drawn, ax=axes)

    return Picture(
        f"Position encoding {name}: {network.config.position.kind}", alt, ("matrix", "row", "column", "value"), rows, draw, (9.6, 4.6)
    )


def _position_tables(module: PositionEncoding, at: Tensor) -> tuple[Tensor, Tensor, tuple[str, str, str]]:
    """Return a table (position, ...), a matrix of all pairs, and the names of table, its columns, and matrix."""
    added = module(at[None])
    if added is not None:
        table = added[0].float()
        return table, table @ table.T, ("vectors", "dimensions", "dot products")
    rotary = module.rotary(at[None])
    if rotary is not None:
        d_head = getattr(module.config, "d_head", 1)
        x = torch.full((1, 1, len(at), d_head), d_head**-0.5, device=at.device)
        rotated = apply_rotary(x, rotary)[0, 0].float()
        return rotary.cos[0, 0].float(), rotated @ rotated.T, ("cosines", "pairs of dimensions", "scores of equal vectors")
    bias = module.bias(at[None], at[None], *module.bias_parameters)
    if bias is not None:
        by_distance = bias[0, :, -1].flip(-1).T.float()  # of the last query, by distance
        return by_distance, bias[0, 0].float(), ("biases by distance", "heads", "bias of head 0")
    raise ConfigError("expected a model with position encodings, found position = 'none'; use another run")


def embeddings(model: Any, words: Sequence[str] | None = None, most: int = 120) -> Picture:
    """Draw token embeddings on the plane of their two directions of largest variance (PCA).

    Args:
        model: a run of a text model.
        words: words to draw, each the mean of its tokens; None for the first ``most`` tokens of the vocabulary that are words.
        most: number of tokens without ``words``.

    Raises:
        ConfigError: the model has no vocabulary, or fewer than three words are left.
    """
    tokenizers = getattr(model, "tokenizers", None)
    tokenizer = tokenizers.source if tokenizers else getattr(model, "tokenizer", None)
    table = next((m for name, m in getattr(model, "model", model).named_modules() if name.endswith("embedding.tokens")), None)
    if tokenizer is None or table is None:
        raise ConfigError("expected a run of a text model, whose tokens can be named, found another; use another run")
    weight = table.weight.detach().float().cpu()
    if words:
        vectors = [(word, weight[tokenizer.encode(word)].mean(0)) for word in words if tokenizer.encode(word)]
    else:
        names = tokenizer.symbols(list(range(len(weight))))
        vectors = [(name, weight[i]) for i, name in enumerate(names) if any(c.isalpha() for c in name)][:most]
    if len(vectors) < 3:
        raise ConfigError(f"words: expected at least three words of the vocabulary, found {len(vectors)}; give more")
    x = torch.stack([vector for _, vector in vectors]).double()
    centered = x - x.mean(0)
    _, s, directions = torch.linalg.svd(centered, full_matrices=False)
    signs = directions[:2].gather(1, directions[:2].abs().argmax(1, keepdim=True)).sign()  # SVD leaves the signs open
    plane = centered @ (directions[:2] * signs).T
    share = float((s[:2] ** 2).sum() / (s**2).sum())
    rows = [(name, float(a), float(b)) for (name, _), (a, b) in zip(vectors, plane.tolist(), strict=True)]

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.scatter(plane[:, 0].numpy(), plane[:, 1].numpy(), s=8, color=CATEGORIES[0])
        for name, a, b in rows:
            axes.annotate(shorten(name, MAX_LABEL), (a, b), fontsize=7, xytext=(2, 2), textcoords="offset points")
        axes.set_xlabel("direction of largest variance")
        axes.set_ylabel("second direction")

    alt = f"{len(rows)} tokens on the plane of largest variance of their embeddings, which holds {share:.0%} of the variance."
    return Picture("Token embeddings", alt, ("token", "x", "y"), rows, draw, (7.2, 5.6))
