"""Attribution of an answer to the tokens or patches of the input: gradient x input, and integrated gradients."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress
from transom.errors import ConfigError
from transom.inspection.activations import Activations, find_network, special_tokens_of
from transom.inspection.edits.sweep import Target, last_answer, repeat_batch
from transom.inspection.example_batch import build_example_batch
from transom.inspection.lenses.readout import require_one_row
from transom.inspection.trace import trace
from transom.layers.embedding import Embedding
from transom.layers.observe import ActivationRecorder, Edit
from transom.layers.vision.patch_embedding import PatchEmbedding
from transom.models.base import LanguageModel, Network
from transom.models.encoder import TextEmbedderTransformer

Method = Literal["integrated-gradients", "gradient-x-input"]
Baseline = Literal["mean", "padding", "zero"]

FIRST_STEPS, MAX_STEPS = 16, 4096
"""Steps of the integral at first, doubled until the sum is complete, and at most."""

TOLERANCE = 1e-4
"""Largest accepted difference of the sum of integrated gradients from F(x) - F(baseline), relative to the latter."""

MAX_TOKENS = 4096
"""Tokens per batch of points between baseline and input."""


class InputAttribution(NamedTuple):
    """Contribution of each token or patch to an answer F, such as its log-probability in nats.

    Gradient x input: (x_i - b_i) . dF/dx_i (Shrikumar et al. 2016). Integrated gradients: (x_i - b_i) . the mean of dF/dx_i over all points
    between the baseline b and the input x, whose sum over i is F(x) - F(b) (Sundararajan et al. 2017, eq. 1 and proposition 1). x_i is the
    embedding of token or patch i with its position; its baseline has the same position.

    Attributes:
        values: contributions (positions,) by side: "source", "target" (input of a decoder) or "image".
        answer: F(x).
        baseline: F(b), where all tokens or patches are replaced by the baseline.
        steps: number of points of the integral; 1 for gradient x input.
        error: sum of the contributions minus (F(x) - F(b)); rounding and the finite number of steps for integrated gradients.
        tolerance: largest ``error`` that counts as complete.
    """

    values: dict[str, Float[Tensor, "positions"]]
    answer: float
    baseline: float
    steps: int
    error: float
    tolerance: float

    @property
    def complete(self) -> bool:
        """Whether the contributions add up to F(x) - F(b) within the tolerance."""
        return abs(self.error) <= self.tolerance


def input_attribution(
    model: Any,
    inputs: Any,
    *,
    target: Target | None = None,
    method: Method = "integrated-gradients",
    baseline: Baseline = "mean",
    notify: ProgressCallback = ignore_progress,
) -> InputAttribution:
    """Attribute an answer to the tokens or patches of the input.

    Args:
        model: a run loaded by ``transom.load``, or a model with logits per token, text or image and token or patch embeddings.
        inputs: a text (for a loaded run), or a batch or tensor of one row.
        target: the answer F, from logits to one number per row: its log-probability or logit. Default: log-probability of the model's own
            best answer at the last position.
        method: integrated gradients, whose number of steps is doubled until they are complete, or gradient x input.
        baseline: embedding that stands for no information: the mean of all token embeddings or of the picture's patches, that of padding,
            or zero. The class token of an image keeps its value.
        notify: progress callback, called with the number of steps done and of all steps so far.

    Raises:
        ConfigError: the input has several rows, or padding is the baseline of an image.
    """
    network, batch = _network_and_batch(model, inputs)
    patches = [f"{path}.patch" for path in _embeddings(network) if isinstance(getattr(network, path), PatchEmbedding)]
    logits, found = trace(network, batch, ["logits", *patches], store="residuals")
    require_one_row(len(logits))
    a = found.activations
    sides = {path: "target" if path == "target_embedding" else "source" for path in _embeddings(network)}
    padding = {path: special_tokens_of(model, side).padding for path, side in sides.items()}
    points = {path: (a[f"{path}.resid"], _baseline(a, path, baseline, token)) for path, token in padding.items()}
    line = _Line(network, batch, target or last_answer(logits)[0], points)
    own, of_baseline = line.answers([1.0, 0.0])
    change = own - of_baseline
    tolerance = TOLERANCE * max(abs(change), TOLERANCE)
    if method == "gradient-x-input":
        steps, values = 1, line.attribute([1.0], [1.0])
    else:
        steps, values = FIRST_STEPS, line.integrate(FIRST_STEPS, notify)
        while abs(_total(values) - change) > tolerance and steps < MAX_STEPS:
            steps *= 2
            values = line.integrate(steps, notify)
    named = {_side(network, path): x for path, x in values.items()}
    return InputAttribution(named, own, of_baseline, steps, _total(values) - change, tolerance)


def _side(network: Network, embedding: str) -> str:
    """Return the name of the side that an embedding reads."""
    if embedding != "embedding":
        return embedding.removesuffix("_embedding")
    if isinstance(network.embedding, PatchEmbedding):
        return "image"
    return "target" if isinstance(network, LanguageModel) else "source"


def _total(values: Mapping[str, Tensor]) -> float:
    """Return the sum of all contributions."""
    return sum(x.sum().item() for x in values.values())


def _network_and_batch(model: Any, inputs: Any) -> tuple[Network, Any]:
    """Return the network in a run or model, and the batch of the input.

    Raises:
        ConfigError: the model has no embeddings, or its logits belong to pairs of texts.
    """
    _, network = find_network(model, inputs)
    if not _embeddings(network) or isinstance(network, TextEmbedderTransformer):
        raise ConfigError(
            f"expected a model with token or patch embeddings and an answer per token, text or image, found one of kind"
            f" {network.config.kind!r}; give another run"
        )
    return network, build_example_batch(model, inputs, None, "refuse").batch if isinstance(inputs, str) else network.as_batch(inputs)


def _embeddings(network: Network) -> list[str]:
    """Return the paths of the embeddings that the model reads."""
    return [path for path, module in network.named_children() if isinstance(module, Embedding | PatchEmbedding)]


def _baseline(a: Activations, path: str, kind: Baseline, padding: int) -> Float[Tensor, "batch positions d_model"]:
    """Return the embedded input with every token or patch replaced by the baseline, positions kept.

    Raises:
        ConfigError: padding is the baseline of an image.
    """
    module, x = a.module(path), a[f"{path}.resid"]
    if isinstance(module, PatchEmbedding):
        if kind == "padding":
            raise ConfigError("baseline: expected mean or zero for an image, which has no padding, found padding")
        patches = a[f"{path}.patch"]
        replaced = x.clone()
        replaced[:, -patches.shape[1] :] += (patches.mean(1, keepdim=True) if kind == "mean" else 0.0) - patches
        return replaced
    table = module.tokens.weight
    token = {"mean": table.mean(0), "padding": table[padding], "zero": torch.zeros_like(table[0])}[kind] * module.scale
    position = a.get(f"{path}.position")
    replaced = token.expand_as(a[f"{path}.token"]) + (0.0 if position is None else position)
    result: Tensor = replaced if module.norm is None else module.norm(replaced)
    return result.to(x)


class _Line(NamedTuple):
    """The straight line from the baseline to the input.

    Attributes:
        network: the model.
        batch: input of one row.
        target: the answer F.
        points: embedded input and baseline by path of the embedding.
    """

    network: Network
    batch: Any
    target: Target
    points: dict[str, tuple[Tensor, Tensor]]

    def _run(self, fractions: Sequence[float]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return F at points of the line, and the embedded inputs there."""
        leaves = {}
        for path, (x, b) in self.points.items():
            at = torch.tensor(fractions, dtype=x.dtype, device=x.device)[:, None, None]
            leaves[path] = (b + at * (x - b)).requires_grad_(torch.is_grad_enabled())
        recorder = ActivationRecorder(edits={f"{path}.resid": Edit(x) for path, x in leaves.items()})
        return self.target(self.network(repeat_batch(self.batch, len(fractions)), recorder)), leaves

    def answers(self, fractions: Sequence[float]) -> list[float]:
        """Return F at fractions of the line, 0 for the baseline and 1 for the input."""
        with torch.no_grad(), eval_mode(self.network):
            found: list[float] = self._run(fractions)[0].tolist()
        return found

    def integrate(self, n_steps: int, notify: ProgressCallback) -> dict[str, Tensor]:
        """Return the integrated gradients by Gauss-Legendre quadrature, which is exact for polynomials of degree 2 ``n_steps`` - 1."""
        nodes, weights = np.polynomial.legendre.leggauss(n_steps)
        return self.attribute(((nodes + 1) / 2).tolist(), (weights / 2).tolist(), notify)

    def attribute(
        self, fractions: Sequence[float], weights: Sequence[float], notify: ProgressCallback = ignore_progress
    ) -> dict[str, Float[Tensor, "positions"]]:
        """Return (x_i - b_i) . sum_k w_k dF/dx_i at point k, by path of the embedding."""
        n_rows = max(MAX_TOKENS // max(x.shape[1] for x, _ in self.points.values()), 1)
        summed = {path: torch.zeros_like(x[0], dtype=torch.float64) for path, (x, _) in self.points.items()}
        with torch.inference_mode(False), torch.enable_grad(), eval_mode(self.network):
            for start in range(0, len(fractions), n_rows):
                part = slice(start, start + n_rows)
                answers, leaves = self._run(fractions[part])
                gradients = torch.autograd.grad(answers.sum(), list(leaves.values()))
                for path, gradient in zip(leaves, gradients, strict=True):
                    summed[path] += torch.tensordot(torch.tensor(weights[part], device=gradient.device).double(), gradient.double(), 1)
                notify(min(start + n_rows, len(fractions)), len(fractions))
        return {path: ((x - b)[0].double() * summed[path]).sum(-1) for path, (x, b) in self.points.items()}
