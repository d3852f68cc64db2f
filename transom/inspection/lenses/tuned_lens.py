"""The tuned lens: an affine map per block before the logit lens, trained so that its distribution is close to the model's own."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor

from transom.checkpoints.tensors import read_metadata, read_tensors, serialize_tensors
from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress
from transom.errors import CheckpointError
from transom.files.atomic_io import write_file
from transom.inspection.activations import find_network
from transom.inspection.lenses.logit_lens import Translate
from transom.inspection.lenses.readout import (
    MAX_LOGITS,
    divergence,
    flat_logits,
    is_pooled,
    output_stack,
    read_out,
    record_streams,
    stream_names,
    streams,
    token_mask,
)
from transom.inspection.trace_files import weights_digest
from transom.models.base import Network

FILE = "tuned-lens.safetensors"
"""Name of the file beside a run's weights."""

LEARNING_RATE = 1e-3
"""Learning rate of Adam at first; it falls linearly to 0."""

N_HELD_OUT = 8
"""Batches on which the maps are compared with the logit lens, at most."""


class TunedLens(NamedTuple):
    """An affine map of the residual stream x after each block, x + A x + c (Belrose et al. 2023, eq. 2 and 3, with I + A for A).

    The first map belongs to the embedded input; the stream after the last block needs none. A and c are 0 at first, which is the logit
    lens.

    Attributes:
        weight: A of each stream.
        bias: c of each stream.
        weights: digest of the weights of the model that the maps belong to.
    """

    weight: Float[Tensor, "streams d_model d_model"]
    bias: Float[Tensor, "streams d_model"]
    weights: str

    @classmethod
    def identity(cls, network: Network) -> Self:
        """Return the maps that leave the streams of a model as they are."""
        n, d_model, like = len(stream_names(network)) - 1, network.config.d_model, network.unembedding.weight
        return cls(like.new_zeros(n, d_model, d_model), like.new_zeros(n, d_model), weights_digest(network))

    def translate(self, number: int, x: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        """Map stream ``number``, 0 for the embedded input; the stream after the last block is returned as it is."""
        return x if number == len(self.weight) else _affine(x, self.weight[number], self.bias[number])

    def require_model(self, model: Any, name: str = "tuned lens") -> None:
        """Raise unless the maps were trained for this model.

        Raises:
            CheckpointError: they belong to other weights.
        """
        if weights_digest(find_network(model, None)[1]) != self.weights:
            raise CheckpointError(
                f"{name}: expected a tuned lens of this model's weights, found one of others, or of another --precision; train one with"
                " transom lens tune RUN"
            )

    def save(self, path: Path) -> None:
        """Write the maps as a safetensors file, whose metadata names the weights that they belong to."""
        write_file(path, serialize_tensors({"weight": self.weight, "bias": self.bias}, weights=self.weights))


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x + x @ weight.T.to(x) + bias.to(x)


def load_tuned_lens(model: Any, path: str | Path) -> TunedLens:
    """Read the maps that ``TunedLens.save`` wrote.

    Args:
        model: the run or model that they belong to.
        path: the file.

    Raises:
        CheckpointError: the file is damaged, holds no tuned lens, or one of other weights.
    """
    network, path = find_network(model, None)[1], Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: expected a tuned lens, found no file; train one with transom lens tune RUN")
    weights = read_metadata(path).weights
    if weights is None:
        raise CheckpointError(f"{path}: expected a tuned lens, found another safetensors file; train one with transom lens tune RUN")
    TunedLens(torch.empty(0), torch.empty(0), weights).require_model(network, str(path))
    like = TunedLens.identity(network)
    tensors = read_tensors(path, {"weight": like.weight, "bias": like.bias})
    return TunedLens(tensors["weight"].to(like.weight), tensors["bias"].to(like.bias), weights)


class TunedLensTraining(NamedTuple):
    """A tuned lens, and how close both lenses come to the model's own distribution on held-out data.

    Attributes:
        lens: the maps.
        streams: "embedding", then the path of each block but the last.
        logit_kl: mean KL(own || logit lens) in nats per stream, on held-out data.
        tuned_kl: mean KL(own || tuned lens).
    """

    lens: TunedLens
    streams: list[str]
    logit_kl: list[float]
    tuned_kl: list[float]


def train_tuned_lens(
    model: Any,
    batches: Iterable[Any],
    held_out: Sequence[Any],
    *,
    n_steps: int = 300,
    max_positions: int = 512,
    notify: ProgressCallback = ignore_progress,
) -> TunedLensTraining:
    """Train the affine maps by Adam to minimize KL(own || tuned lens), with the model's weights fixed (Belrose et al. 2023, eq. 4).

    The maps of all blocks are trained on the same passes. In the end each is compared with the logit lens on held-out data; where it is not
    better, the logit lens is kept, so that a tuned lens is never worse there.

    Args:
        model: a run loaded by ``transom.load``, or a model: any Transformer with logits per token, text or image.
        batches: training batches; at least ``n_steps``.
        held_out: batches for the comparison, not among the training batches.
        n_steps: optimizer steps.
        max_positions: maximum number of positions per batch that contribute to the loss, spread evenly.
        notify: progress callback, called with the number of steps done and of all steps.

    Raises:
        ConfigError: the model has no residual stream that leads to logits.
    """
    _, network = find_network(model, None)
    output_stack(network)
    lens = TunedLens.identity(network)
    maps = [(w.float().clone().requires_grad_(), c.float().clone().requires_grad_()) for w, c in zip(lens.weight, lens.bias, strict=True)]
    leaves = [x for pair in maps for x in pair]
    optimizer = torch.optim.Adam(leaves, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / n_steps)
    with torch.inference_mode(False):
        for step, batch in zip(range(n_steps), batches, strict=False):
            with torch.enable_grad(), eval_mode(network):
                optimizer.zero_grad()
                for kl in _divergences(network, batch.to(network.device), lambda i, x: _affine(x, *maps[i]), max_positions):
                    kl.mean().backward(inputs=leaves)  # the model's weights get no gradient
            optimizer.step()
            schedule.step()
            notify(step + 1, n_steps)
    weight, bias = (torch.stack([x.detach() for x in each]).to(lens.weight) for each in zip(*maps, strict=True))
    found = TunedLens(weight, bias, lens.weights)
    logit_kl, tuned_kl = (_mean_divergences(network, held_out[:N_HELD_OUT], each.translate, max_positions) for each in (lens, found))
    for i, plain in enumerate(logit_kl):
        if not tuned_kl[i] < plain:
            weight[i], bias[i], tuned_kl[i] = 0.0, 0.0, plain
    return TunedLensTraining(found, stream_names(network)[:-1], logit_kl, tuned_kl)


def _divergences(network: Network, batch: Any, translate: Translate, max_positions: int) -> Iterator[Tensor]:
    """Yield KL(own || implied) of the chosen tokens of a batch for each stream but the last."""
    logits, a = record_streams(network, batch)
    own, mask = flat_logits(logits), token_mask(a)
    limit = max(min(max_positions, MAX_LOGITS // own.shape[2]), 1)
    rows, places = mask.nonzero(as_tuple=True)
    kept = torch.linspace(0, len(rows) - 1, min(limit, len(rows)), device=rows.device).round().long()
    rows, places = rows[kept], places[kept]
    for number, (_, x) in zip(range(len(stream_names(network)) - 1), streams(a), strict=False):
        if is_pooled(network):
            implied = read_out(network, batch, translate(number, x))[rows, places]
        else:
            implied = read_out(network, batch, translate(number, x[rows, places][None]))[0]
        yield divergence(network, own[rows, places], implied)


def _mean_divergences(network: Network, batches: Sequence[Any], translate: Translate, max_positions: int) -> list[float]:
    """Return the mean of KL(own || implied) over the tokens of all batches, per stream but the last."""
    parts = list[list[Tensor]]()
    with torch.no_grad(), eval_mode(network):
        for batch in batches:
            parts.append(list(_divergences(network, batch.to(network.device), translate, max_positions)))
    return [torch.cat(each).double().mean().item() for each in zip(*parts, strict=True)]
