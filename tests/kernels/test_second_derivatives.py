"""A gradient penalty and a Hessian-vector product of whole models: through the fast paths what they are by the equations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.models.combinations import ENCODERS, FAMILIES, SET_ENCODERS, SET_RECURRENT, SET_WRITERS, batch_for
from tests.models.combinations import described as described_text
from tests.models.test_combinations import built
from tests.models.test_vision import PLAIN as VISION
from tests.models.test_vision import SET_NETWORKS, batch_of
from tests.models.test_vision import described as described_image
from tests.tiers import tiers
from transom.kernels.kernel_registry import KERNELS
from transom.layers.attention import AttentionArgs, attention_scores, attention_weights, repeat_kv
from transom.layers.dispatch import KERNEL_TABLE, Kernel, kernels_of
from transom.layers.dropout import draw_dropout_mask, round_probability
from transom.layers.masks import block_sparse_mask as tiles_planning
from transom.models.base import Network
from transom.training.losses import cross_entropy
from transom.training.objectives.objective import CrossEntropy, forward_pass

pytestmark = pytest.mark.kernels


def dropped(x: Tensor, p: float) -> Tensor:
    return x * draw_dropout_mask(x.detach(), p)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b, rest = x.split([cos.shape[-1], cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def rms_normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def attended(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs) -> Tensor:
    weights, p = attention_weights(attention_scores(q, k, args), args), round_probability(args.dropout)
    return (dropped(weights, p) if p else weights) @ repeat_kv(v, q.shape[1])


def entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, r_drop: float = 0.0, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    assert not r_drop and softcap is None
    return cross_entropy(hidden @ weight.T, labels, smoothing)


BY_EQUATION: dict[tuple[str, str], Callable[..., Any]] = {
    ("relu", "mask product"): F.relu,
    ("dropout_add", "one pass"): lambda residual, x, mask: residual + x * mask,
    ("attention", "short"): attended,
    ("linear_cross_entropy", "chunks"): entropy,
    ("rms_norm", "written out"): rms_normed,
    ("rotary", "in place"): turned,
}
"""Every hand-written path by PyTorch's own operations; tiles are left out by length, and ``float32 sums`` of layer norms is of bfloat16."""


def derivatives(model: Network, batch: Any) -> list[Tensor]:
    """Give the squared norm of the loss's gradient, its own gradient, and the product of the Hessian with drawn numbers."""
    torch.manual_seed(4)
    weights = [p for p in model.parameters() if p.requires_grad]
    value = CrossEntropy(label_smoothing=0.1).loss(forward_pass(model, batch)).backward_loss
    grads = torch.autograd.grad(value, weights, create_graph=True, allow_unused=True, materialize_grads=True)
    penalty = torch.stack([grad.square().sum() for grad in grads]).sum()
    along = torch.stack([(grad * torch.randn_like(grad)).sum() for grad in grads]).sum()
    asked: Any = {"allow_unused": True, "materialize_grads": True}
    return [
        penalty.detach(),
        *torch.autograd.grad(penalty, weights, retain_graph=True, **asked),
        *torch.autograd.grad(along, weights, **asked),
    ]


def both_ways(model: Network, batch: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[Tensor]], set[Any]]:
    """Compute the derivatives by the fast paths and by the equations; name the paths that the first way takes."""
    passed = set[Any]()

    def noted(row: Kernel, *args: Any) -> Any:
        passed.add((row.operation, row.path))
        return row.implementation(*args)

    for name in {row.operation for row in KERNELS}:
        monkeypatch.setitem(KERNEL_TABLE, name, [row._replace(implementation=partial(noted, row)) for row in kernels_of(name)])
    fast = derivatives(model, batch)
    for name in {row.operation for row in KERNELS}:
        by_equation = [row._replace(implementation=BY_EQUATION.get(row[:2], row.implementation)) for row in kernels_of(name)]
        monkeypatch.setitem(KERNEL_TABLE, name, by_equation)
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 10**6)
    return [fast, derivatives(model, batch)], passed


def agree(found: Sequence[list[Tensor]]) -> bool:
    """Tell whether all numbers are the same, to rounding of the largest: some are 0 by the equations, such as a bias of keys'."""
    close = {"rtol": 1e-8, "atol": 1e-12 * max(float(x.abs().max()) for x in found[1])}
    return all(torch.allclose(a, b, **close) for a, b in zip(*found, strict=True))


SMALL: dict[str, Any] = {
    "d_model": 12,
    "n_heads": 6,
    "n_kv_heads": 3,
    "d_ff": 8,
    "max_seq_len": 16,
    "dropout": 0.2,
    "attention_dropout": 0.1,
}
TEXTS = [
    SMALL | {"norm": norms, "position": positions, "feed_forward": {"kind": kind}, "attention": {"softcap": softcap}} | family
    for norms, positions, kind, softcap, family in zip(
        ("rmsnorm", "layernorm") * 6,
        ("rotary", "alibi", "relative", "learned") * 3,
        ("relu", "swiglu", "gelu", "reglu", "squared-relu") * 3,
        ("none", 1.5) * 6,
        FAMILIES + ENCODERS,
        strict=False,
    )
] + [SET_RECURRENT[1], SET_RECURRENT[-1]]
IMAGES = [VISION | {"patch_size": 2, "dropout": 0.2, "stem": SET_NETWORKS[1]["stem"], "norm": "rmsnorm"}, SET_NETWORKS[-1]]


@pytest.mark.parametrize("fields", TEXTS, ids=lambda fields: f"{fields['kind']}-{fields.get('position', fields.get('cell'))}")
def test_of_texts(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = described_text(fields)
    found, passed = both_ways(built(config).train(), batch_for(config), monkeypatch)
    assert agree(found) and found[0][0] > 0
    lean_attention = "n_heads" in fields and (fields["kind"] == "seq2seq" or fields["position"] != "relative")  # not with a learned bias
    assert ("linear_cross_entropy", "chunks") in passed and (("attention", "short") in passed) == lean_attention


@pytest.mark.parametrize("fields", IMAGES, ids=lambda fields: fields["kind"])
def test_of_images(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = described_image(fields)
    found, passed = both_ways(built(config).train(), batch_of(config), monkeypatch)
    assert agree(found) and found[0][0] > 0 and ("linear_cross_entropy", "chunks") in passed


def test_of_long_rows_whose_tiles_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = {"pattern": {"kind": "window-2d", "size": 3}, "sinks": True, "softcap": 2.0}
    fields = VISION | {"image_size": 24, "patch_size": 1, "channels": 1, "n_layers": 1, "attention": attention, "pooling": "mean"}
    config = described_image(fields)
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 128)
    monkeypatch.setattr(tiles_planning, "MAX_DENSITY", 0.9)
    found, passed = both_ways(built(config).train(), batch_of(config, 1), monkeypatch)
    assert agree(found) and ("block_sparse_attention", "tiles") in passed


@pytest.mark.parametrize("number", tiers(range(len(SET_WRITERS + SET_ENCODERS)), long=range(0, 99, 3)))
def test_of_every_set_combination(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = described_text([*SET_WRITERS, *SET_ENCODERS][number])
    assert agree(both_ways(built(config).train(), batch_for(config), monkeypatch)[0])


def test_the_penalty_s_gradient_is_its_slope() -> None:
    """By finite differences of the penalty itself, which knows nothing of second derivatives."""
    config = described_text(SMALL | FAMILIES[3] | {"norm": "rmsnorm", "position": "rotary", "feed_forward": "gelu", "dropout": 0.0})
    model, batch = built(config), batch_for(config)
    weights = list(model.parameters())
    _, *gradients = derivatives(model, batch)
    torch.manual_seed(5)
    directions = [torch.randn_like(p) for p in weights]
    slope = sum(float((a * b).sum()) for a, b in zip(gradients, directions, strict=False))
    penalties = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for p, direction in zip(weights, directions, strict=True):
                p.add_(direction, alpha=step)
        penalties.append(float(derivatives(model, batch)[0]))
    assert slope == pytest.approx((penalties[0] - penalties[1]) / 2e-6, rel=1e-4)
