"""Section of the training report: attention over one validation sample, a text or a picture."""

import math
from collections.abc import Iterable, Iterator, Sequence
from xml.etree.ElementTree import Element

import torch
from jaxtyping import Float
from torch import Tensor

from transom.files.message import joined
from transom.inspection.messages.tables import message
from transom.inspection.pages.heat_map import HeatMapText, heat_map_svg, root_opacity, small_map_svg
from transom.inspection.pages.html_tables import html_table, scrollable
from transom.inspection.pages.markup import node
from transom.inspection.pages.number_format import format_count, format_percent, format_weight
from transom.inspection.pages.run_summary import RunSummary
from transom.inspection.sample_attention import NoAttention, PatchAttention, SamplePicture, TextAttention

MIN_SHARE = 1 / 3
"""Mean weight from which the place that a head attends to is named."""

MAX_HEADS = 16
"""Largest number of heads that are shown one by one."""

SIDE = 160
"""Width of the picture of an image under its patches, in SVG units."""

MAX_COVER = 0.88
"""Opacity of the cover of a patch without weight."""


def attention_section(run: RunSummary) -> list[Element]:
    """Show the attention of a run over a sample of its validation data, or say why there is none."""
    match run.attention:
        case NoAttention(reason):
            return [node("p", _say(f"none.{reason}"))]
        case TextAttention() | PatchAttention() as found if not bool(found.weights.isfinite().all()):
            return [node("p", _say("not_finite"), class_="note")]
        case TextAttention() as found:
            return list(_text_section(found, run.recipe.task == "embedding"))
        case PatchAttention() as found:
            return list(_patch_section(found))
        case _:
            return []


def _say(key: str, **values: str | int) -> str:
    """Return a message of this section."""
    return message(f"attention_sample.{key}", **values)


def _paragraph(sentences: Iterable[str], class_: str | None = None) -> Element:
    return node("p", joined(" ", sentences), class_=class_)


def _certificate(error: float, n_maps: int) -> Element:
    """Say whether the weights are certified, and by how much."""
    if error <= 1.0:
        return node("p", _say("certified", n=n_maps, error=f"{error:.2g}"), class_="soft")
    return node("p", _say("not_certified", error=f"{error:.3g}"), class_="note")


def _text_section(found: TextAttention, is_embedder: bool) -> Iterator[Element]:
    """Draw the mean map of a layer with its tokens, its heads and, for a pooled vector, the share of each token."""
    yield _paragraph(_how_to_read(found))
    yield _paragraph(_which_sample(found), "soft")
    yield _certificate(found.error, found.n_maps)
    if found.shares is not None:
        yield _shaded_text(found.shares, found.keys, _say("returned" if is_embedder else "classified"))
    elif found.no_shares:
        yield node("p", _say("no_shares"), class_="soft")
    n_heads, mean = len(found.weights), found.weights.mean(0).clamp(min=0)
    caption = _say("mean", layer=found.address, n=n_heads)
    strongest = [(query, found.keys[int(row.argmax())], float(row.max())) for query, row in zip(found.queries, mean, strict=True)]
    reads = joined("; ", (_say("reads", query=q, token=k, weight=format_percent(weight)) for q, k, weight in strongest if weight))
    words = HeatMapText(_say("label"), caption, _say("description", rows=reads))
    picture = scrollable(heat_map_svg(mean, found.queries, found.keys, words, root_opacity))
    yield node("figure", node("figcaption", caption, ". ", node("span", _say("root"), class_="soft")), picture, class_="attention")
    if n_heads > 1:
        yield _paragraph([_say("heads"), *_first_heads(n_heads)], "soft")
        yield _heads(found)
    columns = [_say("token"), _say("reads_most"), _say("weight")]
    table = html_table(columns, [[query, key, format_weight(weight)] for query, key, weight in strongest])
    yield node("details", node("summary", _say("strongest")), table)
    yield node("p", _say("more"), class_="soft")


def _how_to_read(found: TextAttention) -> Iterator[str]:
    """Yield sentences on rows, columns and cells."""
    sums = found.weights.double().sum(-1)
    is_whole, is_empty = (sums - 1).abs() < 1e-3, (found.weights == 0).all(-1)
    kind = "sum_to_one" if bool(is_whole.all()) else "skipped" if bool((is_whole | is_empty).all()) else "other_sums"
    yield _say("rows", layer=found.address, sums=_say(kind))
    if found.address.endswith(".cross"):
        yield _say("cross")
    elif found.address.startswith("decoder") and bool((found.weights.triu(1) == 0).all()):
        yield _say("causal")
    if found.approximation:
        yield _say("approximation", kind=found.approximation)
        if bool((found.weights < 0).any()):
            yield _say("negative")


def _which_sample(found: TextAttention) -> Iterator[str]:
    """Yield sentences on the sample."""
    is_pair, tokens = found.address.endswith(".cross"), format_count(found.n_tokens)
    yield _say("pair" if is_pair else "sample", tokens=tokens)
    if found.n_read < found.n_tokens:
        yield _say("cut_pair" if is_pair else "cut", read=format_count(found.n_read), tokens=tokens)


def _first_heads(n_heads: int) -> list[str]:
    """Say that only the first heads are shown, if there are more."""
    return [_say("many_heads", heads=format_count(MAX_HEADS))] if n_heads > MAX_HEADS else []


def _heads(found: TextAttention) -> Element:
    """Draw each head, with a line on what it attends to."""
    is_self = not found.address.endswith(".cross")
    figures = []
    for number, weights in enumerate(found.weights[:MAX_HEADS]):
        name, does = _say("head", number=str(number)), describe_head(weights, is_self)
        picture = small_map_svg(weights, found.queries, found.keys, joined("", [name, ": ", does, "."]))
        figures.append(node("div", picture, node("p", node("b", name), ": ", does)))
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
        return _say("no_token")
    rows = rows * used[:, None] / rows.sum(-1, keepdim=True).clamp(min=1e-300)
    n = int(used.sum())
    spread = _say("spread", tokens=f"{math.exp(float(-torch.xlogy(rows, rows).sum()) / n):.1f}")
    if not is_self:
        return spread
    offsets = {"same": 0, "before": -1, "after": 1}
    places = {"first": float(rows[:, 0].sum()) / n} | {name: float(rows.diagonal(at).sum()) / n for name, at in offsets.items()}
    place, share = max(places.items(), key=lambda each: each[1])
    if share < MIN_SHARE:
        return spread
    return _say("place", share=format_percent(share), place=_say(f"places.{place}"), spread=spread)


def _shaded_text(shares: Float[Tensor, "key"], tokens: Sequence[str], caption: str) -> Element:
    """Show a text with a bar over each token, as high as its share of the largest one, and the shares as numbers."""
    largest = float(shares.max()) or 1.0
    spans = [
        node(
            "span",
            token,
            node("small", format_percent(share, 1)),
            class_="share",
            title=f"{token}: {format_weight(share)}",
            style=f"--share: {round(100 * share / largest)}%",
        )
        for token, share in zip(tokens, shares.tolist(), strict=True)
    ]
    return node("figure", node("figcaption", caption), node("div", *spans, class_="shares"), class_="attention")


def _patch_section(found: PatchAttention) -> Iterator[Element]:
    """Draw a picture, the share of its patches, and the weights of each head over it."""
    yield _paragraph([_say("patches"), *([_say("spectrogram")] if found.picture.from_bottom else [])])
    yield _certificate(found.error, found.n_maps)
    noun = _say(found.picture.noun)
    figures = [node("figure", node("figcaption", noun), patch_svg(found.picture, None, noun))]
    if found.shares is not None:
        rollout = _say("rollout")
        figures.append(node("figure", node("figcaption", rollout), patch_svg(found.picture, found.shares, rollout)))
    yield node("div", *figures, class_="pictures looked")
    if found.no_shares:
        yield node("p", _say("no_shares"), class_="soft")
    heading = _say("class_token" if found.from_class_token else "mean_of_patches", layer=found.address)
    yield _paragraph([joined("", [heading, "."]), *_first_heads(len(found.weights))], "soft")
    heads = []
    for number, weights in enumerate(found.weights[:MAX_HEADS]):
        name, largest = _say("head", number=str(number)), _say("up_to", share=format_percent(float(weights.max()), 1))
        picture = patch_svg(found.picture, weights, joined(": ", [heading, name]))
        heads.append(node("div", picture, node("p", node("b", name), ": ", largest)))
    yield node("div", *heads, class_="heads")
    yield node("p", _say("more_images"), class_="soft")


def patch_svg(picture: SamplePicture, shares: Float[Tensor, "rows columns"] | None, name: str) -> Element:
    """Draw a picture, and over each patch a blue cover: none over the largest share, a thick one over a share of 0.

    Args:
        picture: the picture, which is square.
        shares: share of each patch; None for the picture alone.
        name: what is drawn.
    """
    n_rows, n_columns = (1, 1) if shares is None else shares.shape
    label = joined("", [name, "."])
    if shares is not None:
        row, column = divmod(int(shares.argmax()), n_columns)
        row = n_rows - row if picture.from_bottom else row + 1
        share = format_percent(float(shares.max()), 1)
        label = _say("largest_patch", picture=name, share=share, row=str(row), column=str(column + 1))
    drawn = node("svg", viewBox=f"0 0 {n_columns} {n_rows}", width=SIDE, height=SIDE, class_="patches", role="img", aria_label=label)
    drawn.append(node("image", width=n_columns, height=n_rows, preserveAspectRatio="none", href=picture.url))
    if shares is None:
        return drawn
    largest = float(shares.max()) or 1.0
    for i, row_shares in enumerate(shares.tolist()):
        y = n_rows - 1 - i if picture.from_bottom else i
        for j, value in enumerate(row_shares):
            place = node("title", f"({y + 1}, {j + 1}): {format_weight(value)}")
            cover = round(MAX_COVER * (1 - max(value, 0.0) / largest), 3)
            drawn.append(node("rect", place, x=j, y=y, width=1, height=1, fill_opacity=cover, class_="cover"))
    return drawn
