"""Compare two models, inputs, checkpoints or dtypes site by site: where do they part, and does rounding explain it?

How rounding errors grow depends on the network and the input, so it is measured (Monte Carlo arithmetic, Parker 1997): in some passes of
the model with the finer dtype, every site is multiplied by 1 + eps u, with random signs u and the rounding error eps of the coarser dtype.
The largest change of a site in these passes, times ``ROUNDINGS``, is the bound of differences that rounding explains.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.data.batch import TranslationBatch
from transom.decoding.inference import eval_mode
from transom.inspection.activations import find_network
from transom.inspection.certify import rounding_error
from transom.inspection.edits.compile_edits import merge_edits
from transom.inspection.example_batch import build_example_batch
from transom.inspection.names import find_quantity
from transom.inspection.trace import axes_of, token_symbols
from transom.layers.observe import ActivationRecorder, Visit
from transom.models.base import Network

ROUNDINGS = 8.0
"""Multiple of the response to one rounding per site that is still explained by rounding; products and sums round several times."""

N_PROBES = 3
"""Number of passes with random roundings."""


class FieldDifference(NamedTuple):
    """A field of the configuration with two values; None where a model has no such field."""

    field: str
    a: Any
    b: Any


class WeightDifference(NamedTuple):
    """Difference of a parameter or buffer.

    Attributes:
        name: name in the state dict.
        max_difference: max |a - b|; NaN if the shapes differ or only one model has it.
        relative: ||a - b|| / ||a||.
        ratio: largest |a - b| of an element as a multiple of eps |a|, the rounding of a cast; infinite if the shapes differ.
        shape_a: shape in the first model; None if it has no such parameter.
        shape_b: shape in the second model.
    """

    name: str
    max_difference: float
    relative: float
    ratio: float
    shape_a: tuple[int, ...] | None
    shape_b: tuple[int, ...] | None


class SiteDifference(NamedTuple):
    """Difference of the tensors of one site.

    Attributes:
        address: address of the site, or ``logits``.
        max_difference: max |a - b|.
        relative: ||a - b|| / ||a||.
        ratios: largest |a - b| of each row and position as a multiple of its bound of rounding; one position where a site has none.
    """

    address: str
    max_difference: float
    relative: float
    ratios: Float[Tensor, "batch positions"]

    @property
    def ratio(self) -> float:
        """Largest of ``ratios``; up to 1, rounding explains the difference."""
        return float(self.ratios.max())

    @property
    def place(self) -> tuple[int, int] | None:
        """Row and position of the first difference that rounding does not explain; None if there is none."""
        return next(((row, position) for row, position in (self.ratios > 1).nonzero().tolist()), None)


class Difference(NamedTuple):
    """Result of ``diff``.

    Attributes:
        config: fields of the configuration that differ.
        weights: parameters and buffers that differ, in the order of the model; empty if both models are one object.
        n_weights: number of parameters and buffers of both models, by name.
        sites: difference of each site that both models have in the same shape, in the order of the pass; empty without inputs.
        not_compared: addresses that only one model has, or both in different widths.
        notes: sentences on what was compared.
        tokens: symbols of the tokens of the first row of both inputs, per side.
    """

    config: list[FieldDifference]
    weights: list[WeightDifference]
    n_weights: int
    sites: list[SiteDifference]
    not_compared: list[str]
    notes: list[str]
    tokens: tuple[dict[str, list[str]], dict[str, list[str]]]

    @property
    def first(self) -> SiteDifference | None:
        """First site at which the passes differ by more than rounding explains; None if there is none."""
        return next((each for each in self.sites if each.ratio > 1), None)

    @property
    def first_unequal(self) -> SiteDifference | None:
        """First site that is not equal in every bit; None if all are."""
        return next((each for each in self.sites if each.max_difference > 0), None)

    @property
    def largest(self) -> SiteDifference:
        """Site with the largest difference as a multiple of its bound."""
        return max(self.sites, key=lambda each: each.ratio)

    @property
    def blocks(self) -> list[SiteDifference]:
        """Embeddings, residual streams after the blocks, outputs of recurrent layers, and logits: how a difference grows with depth."""
        return [each for each in self.sites if each.address.endswith((".resid", ".resid_post", ".h")) or each.address == "logits"]


def diff(model_a: Any, model_b: Any, inputs_a: Any = None, inputs_b: Any = None) -> Difference:
    """Compare two models on one input, or one model on two inputs: configuration, weights, and every site of the pass.

    Sites inside experts are left out, since other tokens may be sent to them. Where rounding sends a token to another expert or around a
    routed block, which the random roundings did not, the passes part. Inputs of different length are compared up to the length
    of the shorter one.

    Args:
        model_a: a run loaded by ``transom.load``, or a model, compiled or not.
        model_b: another one, or the same.
        inputs_a: a text or file (for a loaded run), or a batch or tensor. None compares configuration and weights only.
        inputs_b: input of the second model, if it differs. Where both are texts of translators with the same vocabulary, both decoders read
            the translation that the first model gives of the first text.

    Raises:
        ConfigError: an argument is neither a run nor a model.
        DataError: a text exceeds the context window, or an input does not fit the model.
    """
    (given_a, a), (given_b, b) = (find_network(model, None) for model in (model_a, model_b))
    weights = list(_compare_weights(a, b)) if a is not b else []
    n_weights = len(a.state_dict().keys() | b.state_dict().keys())
    result = Difference(_compare_configs(a, b), weights, n_weights, [], [], [], ({}, {}))
    if inputs_a is None:
        return result
    batch_a, batch_b, notes = _batches(model_a, model_b, inputs_a, inputs_b)
    sites_a, sites_b = _record(given_a, a, batch_a), _record(given_b, b, batch_b)
    finer, batch, clean = (a, batch_a, sites_a) if _eps(a) <= _eps(b) else (b, batch_b, sites_b)
    responses = _rounding_responses(finer, batch, clean, max(_eps(a), _eps(b)))
    sites, not_compared, lengths = list[SiteDifference](), sorted((sites_a.keys() ^ sites_b.keys()) - {"logits"}), set[tuple[int, int]]()
    for address in (each for each in responses if each in sites_a and each in sites_b):
        axis = _position_axis(a, address, sites_a[address].ndim)
        x, y, bound = (_by_position(each[address], axis) for each in (sites_a, sites_b, responses))
        if x.shape[2:] != y.shape[2:] or x.shape[0] != y.shape[0]:
            not_compared.append(address)
            continue
        if x.shape[1] != y.shape[1] and address.endswith(".resid"):
            lengths.add((x.shape[1], y.shape[1]))
        sites.append(_compare_site(address, x, y, bound))
    notes += [f"the inputs have {n} and {m} positions: the first {min(n, m)} are compared" for n, m in sorted(lengths)]
    tokens = token_symbols(model_a, batch_a), token_symbols(model_b, batch_b)
    return result._replace(sites=sites, not_compared=not_compared, notes=notes, tokens=tokens)


def _eps(network: Network) -> float:
    """Return the relative rounding error of a model's products."""
    return rounding_error(next(network.parameters()).dtype)


def _compare_configs(a: Network, b: Network) -> list[FieldDifference]:
    """Return the fields of the configurations that differ, by path."""
    fields_a, fields_b = (dict(_flatten(network.config.model_dump(mode="json"))) for network in (a, b))
    names = dict.fromkeys((*fields_a, *fields_b))
    return [FieldDifference(name, fields_a.get(name), fields_b.get(name)) for name in names if fields_a.get(name) != fields_b.get(name)]


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each field.

    >>> list(_flatten({"a": {"b": 1}, "c": [2]}))
    [('a.b', 1), ('c', [2])]
    """
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _flatten(each, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _compare_weights(a: Network, b: Network) -> Iterator[WeightDifference]:
    """Yield the parameters and buffers that differ."""
    weights_a, weights_b, eps = a.state_dict(), b.state_dict(), max(_eps(a), _eps(b))
    for name in dict.fromkeys((*weights_a, *weights_b)):
        x, y = weights_a.get(name), weights_b.get(name)
        if x is None or y is None or x.shape != y.shape:
            yield WeightDifference(name, math.nan, math.nan, math.inf, *(None if each is None else tuple(each.shape) for each in (x, y)))
            continue
        x, y = x.cpu().double(), y.cpu().double()
        change = (x - y).abs()
        if bool(change.any()):
            ratio = (change / (eps * x.abs().maximum(y.abs()))).nan_to_num(0.0).max()
            yield WeightDifference(name, float(change.max()), _relative(x, y), float(ratio), tuple(x.shape), tuple(y.shape))


def _relative(x: Tensor, y: Tensor) -> float:
    """Return ||x - y|| / ||x||; infinite if only x is 0."""
    change, norm = float((x - y).norm()), float(x.norm())
    return change / norm if norm else math.inf if change else 0.0


def _batches(model_a: Any, model_b: Any, inputs_a: Any, inputs_b: Any) -> tuple[Any, Any, list[str]]:
    """Return the batches of both models, and notes on them."""

    def build(model: Any, inputs: Any) -> Any:
        _, network = find_network(model, inputs)
        if isinstance(inputs, str | Path):
            text, file = (inputs, None) if isinstance(inputs, str) else (None, inputs)
            return build_example_batch(model, text, file, "refuse").batch
        return network.as_batch(inputs)

    batch_a, batch_b = build(model_a, inputs_a), build(model_b, inputs_a if inputs_b is None else inputs_b)
    if not (isinstance(inputs_a, str | Path) and isinstance(batch_a, TranslationBatch) and isinstance(batch_b, TranslationBatch)):
        return batch_a, batch_b, []
    target_a, target_b = model_a.tokenizers.target, model_b.tokenizers.target
    if target_a.to_dict() != target_b.to_dict():
        return batch_a, batch_b, ["each decoder reads the translation of its own model, since the target vocabularies differ"]
    text = target_a.decode(batch_a.labels[0].tolist())
    batch_b = replace(
        batch_b, decoder_input=batch_a.decoder_input.to(batch_b.labels.device), labels=batch_a.labels.to(batch_b.labels.device)
    )
    return batch_a, batch_b, [f"both decoders read the translation of the first model: {text}"]


@torch.no_grad()
def _record(given: Any, network: Network, batch: Any) -> dict[str, Tensor]:
    """Run a model; return its sites, without those inside experts, and its logits."""
    recorder = ActivationRecorder(["*"])
    with eval_mode(network):
        logits = given(batch, recorder)
    found = {address: x for address, x in recorder.activations.items() if ".experts." not in address}
    return found | {"logits": logits}


@dataclass(frozen=True)
class _RandomRounding:
    """Multiplies a site by 1 + eps u, with signs u drawn at random."""

    eps: float
    generator: torch.Generator

    @property
    def reads(self) -> tuple[str, ...]:
        """No other sites."""
        return ()

    def apply(self, x: Tensor, visit: Visit) -> Tensor:
        """Return ``x`` after a random rounding."""
        signs = torch.randint(0, 2, x.shape, generator=self.generator, device=x.device) * 2 - 1
        return x * (1 + self.eps * signs)


def _rounding_responses(network: Network, batch: Any, clean: Mapping[str, Tensor], eps: float) -> dict[str, Tensor]:
    """Return the largest change of each element of each site over ``N_PROBES`` passes with random roundings, in the order of the pass.

    A site whose shape changes, because a router selects other tokens, has an infinite response.
    """
    found = dict[str, Tensor]()
    for seed in range(N_PROBES):
        rounding = _RandomRounding(eps, torch.Generator(network.device).manual_seed(seed))
        outer = network.edits
        network.edits = merge_edits(outer or {}, {address: rounding for address in clean if address != "logits"})
        try:
            changed = _record(network, network, batch)
        finally:
            network.edits = outer
        for address in (*changed, *(clean.keys() - changed.keys())):  # a compiled pass records in another order
            if address in clean:
                x, y = clean[address], changed.get(address)
                change = torch.full_like(x, math.inf) if y is None or x.shape != y.shape else (y - x).abs()
                found[address] = change.maximum(found.get(address, change))
    return found


def _position_axis(network: Network, address: str, n_axes: int) -> int | None:
    """Return the axis of the positions of a site; None if it has none."""
    quantity = find_quantity(network.get_submodule(address.rpartition(".")[0]), address)
    axes = [] if quantity is None else axes_of(quantity.axes, n_axes, address)
    return next((axis for axis, name in enumerate(axes) if name in ("query", "key")), None)


def _by_position(x: Tensor, axis: int | None) -> Tensor:
    """Return a tensor in float64 with the axes (batch, position, others), with one position if it has no such axis."""
    x = x.detach().cpu().double()
    return x[:, None] if axis is None else x.movedim(axis, 1)


def _compare_site(address: str, x: Tensor, y: Tensor, response: Tensor) -> SiteDifference:
    """Compare the first positions of a site, as many as both have."""
    n = min(x.shape[1], y.shape[1])
    x, y, response = (each[:, :n].flatten(2) if each.ndim > 2 else each[:, :n, None] for each in (x, y, response))
    change = (x - y).abs().amax(-1)
    bound = ROUNDINGS * response.amax(-1) + torch.finfo(torch.float32).tiny
    return SiteDifference(address, float(change.max()), _relative(x, y), change / bound)
