"""Pictures of lenses: the logit lens, similar heads, and how much of each input token or patch reaches the output."""

import math
from typing import TYPE_CHECKING, Any

import torch

from transom.config.vision import VisionTransformerConfig
from transom.inspection.activations import find_network
from transom.inspection.example_batch import build_example_batch
from transom.inspection.lenses.head_statistics import head_statistics
from transom.inspection.lenses.logit_lens import logit_lens
from transom.inspection.lenses.rollout import attention_rollout, patch_shares
from transom.inspection.pages.markup import shorten
from transom.inspection.plots.attention import matrix_picture
from transom.inspection.plots.output import output_names
from transom.inspection.plots.picture import MAX_LABEL, SEQUENTIAL, Picture, heat_map, label_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lens(model: Any, inputs: Any) -> Picture:
    """Draw the logit lens of the first text: its most probable token per block (row) and position (column), colored by its probability."""
    found = logit_lens(model, inputs, top=1)
    symbols, probs = found.top_symbols[:, 0, :, 0].cpu(), found.top_probs[:, 0, :, 0].float().cpu()
    names = output_names(model, getattr(model, "model", model).unembedding.out_features)
    answers = [names[i] for i in found.answers[0].tolist()]
    rows = [
        (stream, position, answers[j], names[int(symbols[i, j])], float(probs[i, j]), float(found.answer_probs[i, 0, j]))
        for i, stream in enumerate(found.streams)
        for j, position in enumerate(found.positions)
    ]

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        drawn = heat_map(axes, probs.numpy(), 0.0, 1.0)
        label_cells(
            axes,
            found.streams,
            [f"{position}: {shorten(answer, MAX_LABEL)}" for position, answer in zip(found.positions, answers, strict=True)],
        )
        for i, row in enumerate(probs.tolist()):
            for j, p in enumerate(row):
                color = "white" if p < 0.5 else "black"
                axes.text(j + 0.5, i + 0.5, shorten(names[int(symbols[i, j])], 9), ha="center", va="center", fontsize=6.5, color=color)
        axes.set_xlabel("position and the model's answer")
        figure.colorbar(drawn, ax=axes, label="probability")

    own = (found.top_symbols[:, 0, :, 0].cpu() == found.answers[0].cpu()).float().mean(-1).tolist()
    shares = ", ".join(f"{stream} {share:.0%}" for stream, share in zip(found.streams, own, strict=True))
    alt = (
        f"Most probable token after each block (rows) at {len(found.positions)} positions (columns). Share that is already the answer:"
        f" {shares}."
    )
    names_of_columns = ("stream", "position", "answer", "token", "probability", "probability of the answer")
    return Picture("Logit lens", alt, names_of_columns, rows, draw, (0.75 * len(found.positions) + 3.0, 0.42 * len(found.streams) + 1.8))


def similarity(model: Any, inputs: Any) -> Picture:
    """Draw the similarity of all pairs of heads of an input: the cosine of their attention maps, a mean over queries."""
    _, network = find_network(model, inputs)
    batch = build_example_batch(model, inputs, None, "refuse").batch if isinstance(inputs, str) else network.as_batch(inputs)
    report = head_statistics(model, [batch])
    names = [f"{each.address} {each.head}" for each in report.heads]
    table = report.similarity.float().cpu()
    cells = [(a, b, float(table[i, j])) for i, a in enumerate(names) for j, b in enumerate(names)]
    rows = [cell for cell in cells if not math.isnan(cell[2])]
    pairs = [(value, a, b) for a, b, value in rows if names.index(a) < names.index(b)]
    alt = f"Cosine similarity of the attention maps of {len(names)} heads (rows and columns)."
    if pairs:
        most, a, b = max(pairs)
        alt += f" The most similar are {a} and {b} with {most:.2f}. Heads that attend to other tokens have none."

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        drawn = heat_map(axes, table.numpy(), 0.0, 1.0)  # pairs without a similarity stay blank
        label_cells(axes, [name.replace(".blocks.", " ") for name in names], [name.replace(".blocks.", " ") for name in names])
        figure.colorbar(drawn, ax=axes, label="cosine of the maps")

    side = min(max(0.22 * len(names), 2.0), 12.0)
    return Picture("Similarity of heads", alt, ("head", "other head", "similarity"), rows, draw, (side + 3.2, side + 2.0))


def rollout(model: Any, inputs: Any) -> Picture:
    """Draw attention rollout (Abnar and Zuidema 2020): the share of each input token in each output, or of each patch."""
    _, network = find_network(model, inputs)
    shares = attention_rollout(model, inputs)
    if isinstance(network.config, VisionTransformerConfig):
        return _patch_rollout(network.as_batch(inputs).pixels[0], patch_shares(network.config, shares)[0])
    side = "source" if shares.source is not None else "target"
    of_inputs = shares.source if shares.source is not None else shares.target
    assert of_inputs is not None
    weights, tokens = of_inputs[0].float(), shares.tokens.get(side, [])
    columns = [tokens[j] if j < len(tokens) else str(j) for j in range(weights.shape[1])]
    own = shares.tokens.get("target" if shares.target is not None else "source", [])
    names = [own[i] if i < len(own) else str(i) for i in shares.queries]
    rows = [(i, q, j, k, float(weights[i, j])) for i, q in enumerate(names) for j, k in enumerate(columns)]
    strongest = [columns[int(j)] for j in weights.argmax(-1)]
    alt = "Share of each input token (columns) in each output (rows). Largest: " + ", ".join(
        f"{q} - {k}" for q, k in list(zip(names, strongest, strict=True))[:8]
    )
    headings = ("output", "output token", "input", "input token", "share")
    return matrix_picture("Attention rollout", f"{alt}.", weights, names, columns, rows, headings, "share")


def _patch_rollout(pixels: torch.Tensor, shares: torch.Tensor) -> Picture:
    """Draw an image, beside it the same image under the share of each patch, and these shares alone, whose colors are those of the bar."""
    rows = [(i, j, float(share)) for i, row in enumerate(shares.tolist()) for j, share in enumerate(row)]
    picture = pixels.detach().float().cpu().clamp(0, 1).permute(1, 2, 0)  # (height, width, channels)
    i, j = divmod(int(shares.argmax()), shares.shape[1])
    alt = (
        f"An image of {shares.shape[0]} x {shares.shape[1]} patches, and, over it and alone, the share of each patch in the vector that is"
        f" classified. The largest share, {float(shares.max()):.3f}, has the patch in row {i}, column {j}, counted from the top left."
    )

    def draw(figure: "Figure") -> None:
        left, middle, right = figure.subplots(1, 3)
        table, extent = shares.float().numpy(), (0, shares.shape[1], shares.shape[0], 0)
        colors = "gray" if picture.shape[2] == 1 else None
        for axes in (left, middle):
            axes.imshow(picture.squeeze(-1).numpy(), cmap=colors, vmin=0, vmax=1, extent=extent)
            axes.set_axis_off()
        middle.imshow(table, cmap=SEQUENTIAL, alpha=OPACITY, vmin=0.0, extent=extent)
        drawn = heat_map(right, table, 0.0, float(shares.max()))
        right.set_aspect("equal")
        figure.colorbar(drawn, ax=right, label="share", shrink=0.8)

    return Picture("Attention rollout over the image", alt, ("row", "column", "share"), rows, draw, (9.6, 3.4))


OPACITY = 0.65
"""Of the shares of patches over the image."""
