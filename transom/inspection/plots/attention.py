"""Pictures of attention: all heads of a model, one head, and the alignment of a translation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from transom.decoding.predictors.translator import Translator
from transom.errors import ConfigError
from transom.inspection.pages.markup import shorten
from transom.inspection.plots.picture import MAX_LABEL, Picture, heat_map, label_cells
from transom.inspection.trace import Trace, names_of, trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("layer", "head", "query", "query token", "key", "key token", "weight")
MAX_DRAWN_HEADS = 400
MAX_WRITTEN = 12
"""A map of at most this many queries and keys has its weights written into the cells."""


def choose_layers(model: Any, attention: str | None) -> str:
    """Return the pattern of the attention weights to draw.

    Args:
        model: a run or model.
        attention: "encoder", "decoder" or "cross"; None for cross-attention where the model has it, else self-attention.

    Raises:
        ConfigError: the model has no such attention.
    """
    config = getattr(model, "model", model).config
    addresses = [each.address for each in names_of(config) if each.address.endswith(".weights") and ".blocks." in each.address]
    kinds = list(dict.fromkeys("cross" if ".cross." in each else each.partition(".")[0] for each in addresses))
    if not kinds:
        raise ConfigError(f"expected a Transformer, whose attention can be drawn, found {config.FAMILY}; use another run")
    chosen = attention or ("cross" if "cross" in kinds else kinds[0])
    if chosen not in kinds:
        raise ConfigError(f"attention: expected {' or '.join(kinds)} for {config.FAMILY}, found {chosen!r}; choose one of these")
    return "decoder.blocks.*.cross.weights" if chosen == "cross" else f"{chosen}.blocks.*.attn.weights"


def certified_maps(model: Any, inputs: Any, names: str, **options: Any) -> Trace:
    """Trace attention weights, and raise CertificationError if they do not give the head outputs of the kernel."""
    found = trace(model, inputs, [names], **options)[1]
    for certificate in found.certify():
        certificate.check()
    return found


def token_names(found: Trace, address: str, weights: Tensor) -> tuple[list[str], list[str]]:
    """Return the names of the queries and keys of a map, (query, key): tokens, or numbers of patches."""
    target = found.tokens.get("target" if address.startswith("decoder") else "source", [])
    source = found.tokens.get("source", []) if ".cross." in address else target
    n_queries, n_keys = weights.shape
    positions = found.positions if found.positions is not None else range(n_queries)
    queries = [target[i] if i < len(target) else str(i) for i in positions]
    return queries, [source[j] if j < len(source) else str(j) for j in range(n_keys)]


def _rows(found: Trace) -> list[tuple[int, int, int, str, int, str, float]]:
    """Return the weights of the first text as rows of ``COLUMNS``."""
    rows = []
    for address in found:
        layer = int(address.split(".blocks.")[1].split(".")[0])
        weights = found[address][0].float()
        queries, keys = token_names(found, address, weights[0])
        for h, head in enumerate(weights.tolist()):
            for i, row in enumerate(head):
                at = found.positions[i] if found.positions is not None else i
                number = found.heads[h] if found.heads is not None else h
                rows += [(layer, number, at, queries[i], j, keys[j], weight) for j, weight in enumerate(row)]
    return rows


def heads(model: Any, inputs: Any, attention: str | None = None, blocks: Sequence[int] | None = None) -> Picture:
    """Draw the attention maps of all heads of one text or picture, one row per block."""
    name = choose_layers(model, attention)
    found = certified_maps(model, inputs, name, blocks=blocks)
    maps = {int(address.split(".blocks.")[1].split(".")[0]): found[address][0].float().cpu() for address in found}
    n_heads = max(len(each) for each in maps.values())
    if len(maps) * n_heads > MAX_DRAWN_HEADS:
        raise ConfigError(f"blocks: expected at most {MAX_DRAWN_HEADS} heads to draw, found {len(maps) * n_heads}; choose blocks")
    largest = max(float(each.max()) for each in maps.values())

    def draw(figure: "Figure") -> None:
        axes = figure.subplots(len(maps), n_heads, squeeze=False)
        for row, (layer, weights) in zip(axes, maps.items(), strict=True):
            for h, cell in enumerate(row):
                drawn = heat_map(cell, weights[h].numpy(), 0.0, largest)
                cell.set_aspect("equal")
                if layer == min(maps):
                    cell.set_title(f"head {h}")
            row[0].set_ylabel(f"block {layer}")
        figure.colorbar(drawn, ax=axes, label="attention weight", shrink=0.8)

    sharpest = max(((float(w[h].max(-1).values.mean()), layer, h) for layer, w in maps.items() for h in range(len(w))))
    n_queries, n_keys = next(iter(maps.values())).shape[1:]
    alt = (
        f"{len(maps)} x {n_heads} attention maps of {n_queries} queries (rows) and {n_keys} keys (columns). The sharpest head is head"
        f" {sharpest[2]} of block {sharpest[1]}: its largest weight per query is {sharpest[0]:.2f} on average."
    )
    what = "Cross-attention" if ".cross." in name else f"Self-attention of the {name.partition('.')[0]}"
    return Picture(f"{what}, all heads", alt, COLUMNS, _rows(found), draw, (max(1.3 * n_heads + 1.2, 3.0), max(1.3 * len(maps) + 0.8, 2.4)))


def head(model: Any, inputs: Any, block: int = 0, head: int = 0, attention: str | None = None) -> Picture:
    """Draw the attention map of one head, with the tokens beside rows and below columns."""
    found = certified_maps(model, inputs, choose_layers(model, attention), blocks=[block], heads=[head])
    address = next(iter(found))
    weights = found[address][0, 0].float().cpu()
    queries, keys = token_names(found, address, weights)
    i, j = divmod(int(weights.argmax()), len(keys))
    alt = (
        f"Attention weights of head {head} of {address.removesuffix('.weights')}: {len(queries)} queries (rows), {len(keys)} keys"
        " (columns)."
        f" The largest weight, {weights[i, j]:.3f}, goes from {queries[i]!r} to {keys[j]!r}."
    )
    return matrix_picture(f"Head {head} of {address.removesuffix('.weights')}", alt, weights, queries, keys, _rows(found), COLUMNS)


def matrix_picture(
    title: str,
    alt: str,
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    numbers: Sequence[tuple[Any, ...]],
    names: tuple[str, ...],
    label: str = "attention weight",
) -> Picture:
    """Draw a matrix of numbers from 0, (row, column), with names at both axes and, if it is small, the numbers in the cells."""
    cell = 0.34 if len(rows) > MAX_WRITTEN else 0.5
    width, height = (min(max(cell * n, 2.0), 14.0) for n in (len(columns), len(rows)))

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        top = float(weights.max()) or 1.0
        drawn = heat_map(axes, weights.numpy(), 0.0, top)
        label_cells(axes, [shorten(each, MAX_LABEL) for each in rows], [shorten(each, MAX_LABEL) for each in columns])
        axes.set_ylabel("query")
        axes.set_xlabel("key")
        if max(len(rows), len(columns)) <= MAX_WRITTEN:
            for i, row in enumerate(weights.tolist()):
                for j, value in enumerate(row):
                    dark = value < top / 2
                    axes.text(j + 0.5, i + 0.5, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if dark else "black")
        figure.colorbar(drawn, ax=axes, label=label)

    return Picture(title, alt, names, numbers, draw, (width + 2.4, height + 1.4))


def alignment(model: Any, inputs: Any, target: str | None = None, layer: int | None = None) -> Picture:
    """Draw the alignment of a sentence with its translation, word by word: cross-attention averaged over the heads of one layer.

    Args:
        model: a translator loaded by ``transom.load``.
        inputs: the source sentence.
        target: the translation; None for the model's own.
        layer: decoder layer; None for the one whose weights are closest to one-to-one.
    """
    if not isinstance(model, Translator):
        raise ConfigError("expected a translator, whose sentences can be aligned, found another model; use another run")
    found = model.align(inputs, model.translate([inputs])[0] if target is None else target, layer)
    weights, named = found.weights.float().cpu(), list(zip(found.target, found.weights.tolist(), strict=True))
    rows = [(i, t, j, s, weight) for i, (t, row) in enumerate(named) for j, (s, weight) in enumerate(zip(found.source, row, strict=True))]
    pairs = ", ".join(f"{t} - {s}" for t, s, _ in found.pairs[:8])
    alt = f"Alignment of {len(found.target)} target words (rows) with {len(found.source)} source words (columns): {pairs}."
    names = ("target", "target word", "source", "source word", "weight")
    return matrix_picture(f"Alignment: {found.origin}", alt, weights, found.target, found.source, rows, names)
