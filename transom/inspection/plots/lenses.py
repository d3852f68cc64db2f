"""Pictures of lenses: what a model would answer if it ended after each block."""

from typing import TYPE_CHECKING, Any

from transom.inspection.lenses.logit_lens import logit_lens
from transom.inspection.plots.output import output_names
from transom.inspection.plots.picture import Picture, heat_map, label_cells, short

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
            axes, found.streams, [f"{position}: {short(answer)}" for position, answer in zip(found.positions, answers, strict=True)]
        )
        for i, row in enumerate(probs.tolist()):
            for j, p in enumerate(row):
                color = "white" if p < 0.5 else "black"
                axes.text(j + 0.5, i + 0.5, short(names[int(symbols[i, j])], 9), ha="center", va="center", fontsize=6.5, color=color)
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
