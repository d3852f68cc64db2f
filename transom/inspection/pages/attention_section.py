"""Section of the training report: attention over one validation sample, a text or a picture."""

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import torch
from jaxtyping import Float
from torch import Tensor

from transom.inspection.pages.heat_map import HeatMapText, heat_map_svg, root_opacity, small_map_svg
from transom.inspection.pages.html_tables import html_table, scrollable
from transom.inspection.pages.markup import node
from transom.inspection.pages.number_format import format_count, format_percent
from transom.inspection.pages.run_summary import RunSummary
from transom.inspection.sample_attention import NoAttention, PatchAttention, SamplePicture, TextAttention

MIN_SHARE = 1 / 3
"""Mean weight from which the place that a head attends to is named."""

MAX_HEADS = 16
"""Largest number of heads that are shown one by one."""

SIDE = 160
"""Width of the picture of an image under its patches, in SVG units."""

TEXT_ROWS = (
    "Each row is a token, and shows which tokens {address} reads for it: the stronger the color of a cell, the larger the attention weight."
    " {sums} The pointer on a cell shows its value."
)
SUM_TO_ONE = "The weights of a row add up to 100%."
SKIPPED = "The weights of a row add up to 100%; empty rows are tokens that skip this block."
OTHER_SUMS = "The weights of a row need not add up to 100% in this layer."
APPROXIMATION = "This attention is an approximation ({kind}), which computes no weights: shown are those that give the same output."
NEGATIVE = "Some of them are negative, and not drawn."
CAUSAL = "A row is what the model reads to predict the token that follows; later tokens are hidden from it, so the upper right is empty."
CROSS = "Rows are the target's tokens as the decoder reads them, with the weights for the token that follows; columns are the source."
SAMPLE = "The sample is a validation text of {n} tokens, read by the saved weights."
PAIR = "The sample is a validation pair of {n} tokens, source and target together, read by the saved weights."
CUT = "Only its first {read} of {n} tokens were read."
CERTIFIED = (
    "Certified: in all layers ({maps} maps) these weights give the output that the model computed; the largest error is {error} times what"
    " rounding explains."
)
NOT_CERTIFIED = (
    "Not certified: in some layer the weights differ from the output that the model computed by {error} times what rounding explains. Do"
    " not trust these pictures."
)
MEAN = "{address}: mean of its {n} heads"
ONE_HEAD = "{address}: its only head"
ROOT = "The shades follow the square root of the weights, so that small ones remain visible."
HEADS = "The same map for each head, with the place that gets most of its weight, and the number of tokens over which it spreads."
MANY_HEADS = "The first {n} heads."
NOT_FINITE = "The attention weights are not finite numbers, since the weights of the model are not."
POOLED = "Share of each token in the vector that the model {use}, through all blocks (attention rollout; Abnar and Zuidema 2020)."
NO_SHARES = "Attention rollout is not shown: {reason}."
STRONGEST = "The largest weight of each row, as a table"
MORE = 'transom plot heads RUN "TEXT" draws the heads of all blocks; transom heads RUN measures their roles over the validation data.'
MORE_IMAGES = (
    "transom lens rollout RUN --input FILE explains other pictures; transom heads RUN measures each head over the validation data."
)
PATCHES = (
    "Where the model looks in one validation {noun}. The more blue covers a patch, the less of it is read; the patch with the largest"
    " weight is clear. The pointer on a patch shows its value."
)
SPECTROGRAM = "The spectrogram has time from left to right, and frequency from low at the bottom to high at the top."
ROLLOUT = "Share in the classified vector, through all blocks (attention rollout; Abnar and Zuidema 2020)"
HEADS_CLASS_TOKEN = "Weights of the class token in each head of {address}"
HEADS_MEAN = "Weights in each head of {address}, a mean over all patches"
"""The words of the section."""


def attention_section(run: RunSummary) -> list[Element]:
    """Show the attention of a run over a sample of its validation data, or say why there is none."""
    match run.attention:
        case NoAttention(reason):
            return [node("p", reason)]
        case TextAttention() as found:
            return _text_section(found, run)
        case PatchAttention() as found:
            return _patch_section(found)
        case _:
            return []


def _certificate(error: float, n_maps: int) -> Element:
    """Say whether the weights are certified, and by how much."""
    if error <= 1.0:
        return node("p", CERTIFIED.format(maps=format_count(n_maps), error=f"{error:.2g}"), class_="soft")
    return node("p", NOT_CERTIFIED.format(error=f"{error:.3g}"), class_="note")


def _text_section(found: TextAttention, run: RunSummary) -> list[Element]:
    """Draw the mean map of a layer with its tokens, its heads and, for a pooled vector, the share of each token."""
    is_cross, is_causal = found.address.endswith(".cross"), found.address.startswith("decoder")
    sentences = [TEXT_ROWS.format(address=found.address, sums=_sums(found.weights)), CROSS if is_cross else CAUSAL if is_causal else ""]
    if found.approximation:
        sentences.append(APPROXIMATION.format(kind=found.approximation))
        sentences.append(NEGATIVE if bool((found.weights < 0).any()) else "")
    sample = [(PAIR if is_cross else SAMPLE).format(n=format_count(found.n_tokens))]
    if found.n_read < found.n_tokens:
        sample.append(CUT.format(read=found.n_read, n=format_count(found.n_tokens)))
    content = [node("p", " ".join(filter(None, sentences))), node("p", " ".join(sample), class_="soft")]
    content.append(_certificate(found.error, found.n_maps))
    if not bool(found.weights.isfinite().all()):
        return [node("p", NOT_FINITE, class_="note")]
    if found.shares is not None:
        use = "returns" if run.recipe.task == "embedding" else "classifies"
        content += [_shaded_text(found.shares, found.keys, POOLED.format(use=use))]
    elif found.no_shares:
        content.append(node("p", NO_SHARES.format(reason=found.no_shares), class_="soft"))
    n_heads, mean = len(found.weights), found.weights.mean(0).clamp(min=0)
    caption = (MEAN if n_heads > 1 else ONE_HEAD).format(address=found.address, n=n_heads)
    strongest = [(query, found.keys[int(row.argmax())], float(row.max())) for query, row in zip(found.queries, mean, strict=True)]
    description = "; ".join(f"{query} reads {key} ({format_percent(weight)})" for query, key, weight in strongest if weight)
    words = HeatMapText("Attention", caption, f"Largest weight of each row: {description}.")
    big, note = heat_map_svg(mean, found.queries, found.keys, words, root_opacity), node("span", ROOT, class_="soft")
    content.append(node("figure", node("figcaption", caption, ". ", note), scrollable(big), class_="attention"))
    if n_heads > 1:
        content += [node("p", f"{HEADS}{_first_heads(n_heads)}", class_="soft"), _heads(found)]
    rows = [[query, key, format_percent(weight, 1)] for query, key, weight in strongest]
    content.append(node("details", node("summary", STRONGEST), html_table(["Token", "Reads most", "Weight"], rows)))
    return [*content, node("p", MORE, class_="soft")]


def _sums(weights: Float[Tensor, "heads query key"]) -> str:
    """Say what the weights of a row add up to."""
    sums = weights.double().sum(-1)
    is_whole, is_empty = (sums - 1).abs() < 1e-3, (weights == 0).all(-1)
    if bool(is_whole.all()):
        return SUM_TO_ONE
    return SKIPPED if bool((is_whole | is_empty).all()) else OTHER_SUMS


def _first_heads(n_heads: int) -> str:
    """Say that only the first heads are shown, if there are more."""
    return f" {MANY_HEADS.format(n=MAX_HEADS)}" if n_heads > MAX_HEADS else ""


def _heads(found: TextAttention) -> Element:
    """Draw each head, with a line on what it attends to."""
    is_self = not found.address.endswith(".cross")
    figures = []
    for number, weights in enumerate(found.weights[:MAX_HEADS]):
        name = f"head {number}"
        picture = small_map_svg(weights, found.queries, found.keys, f"{name}: {describe_head(weights, is_self)}")
        figures.append(node("div", picture, node("p", node("b", name), ": ", describe_head(weights, is_self))))
    return node("div", *figures, class_="heads")


def describe_head(weights: Float[Tensor, "query key"], is_self: bool) -> str:
    """Say where a head attends to: to a place that gets ``MIN_SHARE`` of its weight or more, and over how many tokens it spreads.

    The number of tokens is exp of the mean entropy of the rows, those of tokens that skip the block left out, and a first row that sees
    itself only.

    Args:
        weights: attention weights.
        is_self: whether queries and keys are the same tokens, so that there are places such as the token before.
    """
    rows = weights.double().clamp(min=0)
    used = rows.sum(-1) > 0
    used[0] &= not is_self or bool((rows[0, 1:] > 0).any())
    if not bool(used.any()):
        return "no token"
    rows = rows * used[:, None] / rows.sum(-1, keepdim=True).clamp(min=1e-300)
    n = int(used.sum())
    spread_text = f"spreads over {math.exp(float(-torch.xlogy(rows, rows).sum()) / n):.1f} tokens"
    if not is_self:
        return spread_text
    offsets = {"the token itself": 0, "the token before": -1, "the token after": 1}
    places = {"the first token": float(rows[:, 0].sum()) / n} | {x: float(rows.diagonal(at).sum()) / n for x, at in offsets.items()}
    name, share = max(places.items(), key=lambda each: each[1])
    return f"{format_percent(share)} on {name}; {spread_text}" if share >= MIN_SHARE else spread_text


def _shaded_text(shares: Float[Tensor, "key"], tokens: Sequence[str], caption: str) -> Element:
    """Show a text whose tokens are underlaid by their shares, relative to the largest, with the shares as numbers."""
    largest = float(shares.max()) or 1.0
    spans = [
        node(
            "span",
            token,
            node("small", format_percent(share, 1)),
            class_="share",
            title=f"{token}: {format_percent(share, 2)}",
            style=f"--share: {round(100 * share / largest)}%",
        )
        for token, share in zip(tokens, shares.tolist(), strict=True)
    ]
    return node("figure", node("figcaption", caption), node("div", *spans, class_="shares"), class_="attention")


def _patch_section(found: PatchAttention) -> list[Element]:
    """Draw a picture, the share of its patches, and the weights of each head over it."""
    sentences = [PATCHES.format(noun=found.picture.noun), SPECTROGRAM if found.picture.from_bottom else ""]
    content = [node("p", " ".join(filter(None, sentences))), _certificate(found.error, found.n_maps)]
    if not bool(found.weights.isfinite().all()):
        return [node("p", NOT_FINITE, class_="note")]
    n_rows, n_columns = found.weights.shape[1:]
    whole = patch_svg(found.picture, None, (n_rows, n_columns), f"The {found.picture.noun}")
    figures = [node("figure", node("figcaption", f"The {found.picture.noun}"), whole)]
    if found.shares is not None:
        figures.append(node("figure", node("figcaption", ROLLOUT), patch_svg(found.picture, found.shares, (n_rows, n_columns), ROLLOUT)))
    content.append(node("div", *figures, class_="pictures looked"))
    if found.no_shares:
        content.append(node("p", NO_SHARES.format(reason=found.no_shares), class_="soft"))
    heading = (HEADS_CLASS_TOKEN if found.from_class_token else HEADS_MEAN).format(address=found.address)
    heads = []
    for number, weights in enumerate(found.weights[:MAX_HEADS]):
        name = f"head {number}"
        picture = patch_svg(found.picture, weights, (n_rows, n_columns), f"{heading}: {name}")
        heads.append(node("div", picture, node("p", node("b", name), f": up to {format_percent(float(weights.max()), 1)} per patch")))
    content += [node("p", f"{heading}.{_first_heads(len(found.weights))}", class_="soft"), node("div", *heads, class_="heads")]
    return [*content, node("p", MORE_IMAGES, class_="soft")]


def patch_svg(picture: SamplePicture, shares: Float[Tensor, "rows columns"] | None, grid: tuple[int, int], name: str) -> Element:
    """Draw a picture, and over each patch a blue cover: none over the largest share, a thick one over a share of 0.

    Args:
        picture: the picture.
        shares: share of each patch; None for the picture alone.
        grid: numbers of rows and columns of patches.
        name: what is drawn.
    """
    n_rows, n_columns = grid
    description = f"{name}."
    if shares is not None:
        row, column = divmod(int(shares.argmax()), n_columns)
        place = f"row {n_rows - row if picture.from_bottom else row + 1} from the top, column {column + 1}"
        description = f"{name}. The largest, {format_percent(float(shares.max()), 1)}, has the patch in {place}."
    drawn = node(
        "svg",
        viewBox=f"0 0 {n_columns} {n_rows}",
        width=SIDE,
        height=round(SIDE * n_rows / n_columns),
        class_="patches",
        role="img",
        aria_label=description,
    )
    drawn.append(node("image", width=n_columns, height=n_rows, preserveAspectRatio="none", href=picture.url))
    if shares is None:
        return drawn
    largest = float(shares.max()) or 1.0
    for i, row_shares in enumerate(shares.tolist()):
        y = n_rows - 1 - i if picture.from_bottom else i
        for j, share in enumerate(row_shares):
            place = f"row {y + 1}, column {j + 1}: {format_percent(share, 2)}"
            cover = round(MAX_COVER * (1 - max(share, 0.0) / largest), 3)
            drawn.append(node("rect", node("title", place), x=j, y=y, width=1, height=1, fill_opacity=cover, class_="cover"))
    return drawn


MAX_COVER = 0.88
"""Opacity of the cover of a patch without weight."""
