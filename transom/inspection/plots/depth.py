"""Pictures of a pass by depth: norms of the residual stream and of its gradient, and the load of experts."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from transom.errors import ConfigError
from transom.inspection.plots.picture import CATEGORIES, Picture, heat_map, label_cells
from transom.inspection.trace import names_of, trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def norms(model: Any, inputs: Any) -> Picture:
    """Draw the mean length of the residual stream after each sub-layer, and that of the gradient of the loss at the same place.

    The loss is the default of ``trace``: minus the mean log-probability of the next tokens, or of the most likely class.
    """
    network = getattr(model, "model", model)
    known = [each.address for each in names_of(network.config)]
    streams = [each for each in known if each.endswith((".resid", ".resid_mid", ".resid_cross", ".resid_post"))]
    stacks = list(dict.fromkeys(each.partition(".")[0] for each in streams if ".blocks." in each))
    if not stacks:
        raise ConfigError(f"expected a model with a residual stream, found {network.config.FAMILY}; use another run")
    found = trace(model, inputs, [*streams, *(f"{each}.grad" for each in streams)])[1]
    rows = []
    for address in streams:
        stack = address.partition(".")[0] if ".blocks." in address else stacks[0] if address.startswith("source") else stacks[-1]
        gradient = found.get(f"{address}.grad")
        rows.append((stack, address, _mean_length(found[address]), 0.0 if gradient is None else _mean_length(gradient)))

    def draw(figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        for axes, column, title in ((left, 2, "residual stream"), (right, 3, "gradient of the loss")):
            for n, stack in enumerate(dict.fromkeys(row[0] for row in rows)):
                values = [row[column] for row in rows if row[0] == stack]
                axes.plot(range(len(values)), values, marker="o", markersize=3, color=CATEGORIES[n], label=stack)
            axes.set_title(title)
            axes.set_xlabel("sub-layer")
            axes.set_yscale("log")
            axes.legend(frameon=False)
        left.set_ylabel("mean length")

    first, last = rows[0], rows[-1]
    alt = (
        f"Mean length of the residual stream by depth: {first[2]:.3g} after the embedding, {last[2]:.3g} at the end. Gradient:"
        f" {first[3]:.3g} and {last[3]:.3g}."
    )
    return Picture("Residual stream and gradient by depth", alt, ("stack", "name", "length", "gradient"), rows, draw, (8.4, 3.8))


def _mean_length(x: Tensor) -> float:
    """Return the mean Euclidean length of the vectors of a tensor."""
    return float(x.double().norm(dim=-1).mean())


def experts(model: Any, inputs: Any) -> Picture:
    """Draw the share of tokens that each layer's router sends to each expert.

    Raises:
        ConfigError: the model has no mixture of experts.
    """
    network = getattr(model, "model", model)
    chosen = [each.address for each in names_of(network.config) if each.address.endswith(".chosen")]
    if not chosen:
        raise ConfigError("expected a model with a mixture of experts, found none; use another run")
    found = trace(model, inputs, chosen)[1]
    n_experts = network.config.feed_forward.n_experts
    loads = {
        address.removesuffix(".ff.chosen"): found[address].flatten().bincount(minlength=n_experts).double() / found[address].numel()
        for address in found
    }
    rows = [(name, expert, share) for name, load in loads.items() for expert, share in enumerate(load.tolist())]

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        table = [load.tolist() for load in loads.values()]
        drawn = heat_map(axes, torch.tensor(table).numpy(), 0.0, max(map(max, table)))
        label_cells(axes, list(loads), [str(i) for i in range(n_experts)])
        axes.set_xlabel("expert")
        figure.colorbar(drawn, ax=axes, label=f"share of tokens (equal: {1 / n_experts:.3f})")

    busiest = max(rows, key=lambda row: row[2])
    idle = sum(share == 0 for _, _, share in rows)
    alt = (
        f"Share of tokens of {n_experts} experts (columns) in {len(loads)} layers (rows). The busiest is expert {busiest[1]} of"
        f" {busiest[0]} with {busiest[2]:.0%}; {idle} experts have no token."
    )
    return Picture("Load of the experts", alt, ("layer", "expert", "share"), rows, draw, (0.4 * n_experts + 3.4, 0.4 * len(loads) + 1.6))
