"""Second derivatives: every hand-written gradient can be differentiated again, and what cannot be says so."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn import functional as F

import transom
from tests.kernels.test_block_sparse import SPARSE, drawn, position_of
from tests.layers.test_mask_rules import packed, pattern
from tests.models.combinations import ENCODERS, FAMILIES, batch_for, combinations, described
from tests.models.test_combinations import built
from transom.kernels.attention import short_attention
from transom.kernels.block_sparse import plan_tiled_mask, tiled_attention
from transom.kernels.norm import explicit_rms_norm, layer_norm_16_bit
from transom.layers.activation import relu
from transom.layers.attention import AttentionArgs, explicit_attention
from transom.layers.dropout import dropout_add
from transom.layers.masks.mask_rules import SAME_SEGMENT
from transom.layers.position_encoding import RotaryCosSin, apply_rotary
from transom.training.losses import cross_entropy, linear_cross_entropy
from transom.training.objectives.objective import CrossEntropy, forward_pass

pytestmark = pytest.mark.kernels


def seeded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*inputs: Tensor) -> Tensor:
        torch.manual_seed(4)
        return function(*inputs)

    return call


def attention(**fields: Any) -> tuple[Callable[..., Tensor], list[Tensor]]:
    mask = torch.ones(3, 3, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
    mask[1, :, 1] = False  # a query that sees nothing
    bias = torch.randn(1, 4, 3, 3, dtype=torch.float64)
    args = AttentionArgs(mask=mask, bias=bias, **fields)
    return seeded(lambda q, k, v: short_attention(q, k, v, args)), [drawn(2, 4, 3, 3), drawn(2, 2, 3, 3), drawn(2, 2, 3, 2)]


def tiles(**fields: Any) -> tuple[Callable[..., Tensor], list[Tensor]]:
    places, position = packed([40, 20], 3), position_of("relative")
    laid = plan_tiled_mask(SAME_SEGMENT & pattern(SPARSE), places, places, position)
    inputs = [drawn(1, 4, 63, 2), drawn(1, 4, 63, 2), drawn(1, 4, 63, 2), drawn(4), *position.bias_parameters]
    return seeded(lambda q, k, v, sinks, *_: tiled_attention(q, k, v, laid, AttentionArgs(sinks=sinks, **fields))), inputs


def rotation() -> RotaryCosSin:
    angles = torch.randn(1, 1, 3, 1, dtype=torch.float64)
    return RotaryCosSin(angles.cos(), angles.sin())


def loss(smoothing: float, r_drop: float) -> tuple[Callable[..., Tensor], list[Tensor]]:
    labels = torch.tensor([1, 1, 3, 3])
    return lambda h, w: linear_cross_entropy(h, w, labels, smoothing, r_drop)[0], [drawn(4, 3), drawn(5, 3)]


NOT_IN_FLOAT64 = {"_Activation", "_Norm", "_Dropout", "_NativeAttention", "_FeedForward", "_Linears"}
"""Functions of bfloat16 and float32 only, too coarse for finite differences; ``test_elementwise.py``, ``test_native_attention.py``,
``test_feed_forward.py`` and ``test_matrix_unit.py`` compare their second derivatives with the reference."""

TURN = rotation()
CASES: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "_Relu": (lambda x: relu(x) ** 2, [drawn(4, 3)]),
    "_DropoutAdd": (seeded(lambda x, y: dropout_add(x, y, 0.3, True) ** 2), [drawn(4, 3), drawn(4, 3)]),
    "_Rotate": (lambda x: apply_rotary(x, TURN) ** 2, [drawn(2, 2, 3, 3)]),
    "_Bfloat16LayerNorm": (lambda x, w, b: layer_norm_16_bit(x, w, b, 1e-5), [drawn(4, 3), drawn(3), drawn(3)]),
    "_RmsNorm": (lambda x, w: explicit_rms_norm(x, w, 1e-6), [drawn(4, 3), drawn(3)]),
    "_ShortAttention": attention(),
    "_ShortAttention softcap dropout": attention(softcap=1.5, dropout=0.3),
    "_TiledAttention": tiles(),
    "_TiledAttention softcap dropout": tiles(softcap=1.5, dropout=0.3),
    "_LinearCrossEntropy": loss(0.1, 0.0),
    "_LinearCrossEntropy r-drop": loss(0.1, 2.0),
}


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_by_finite_differences(name: str) -> None:
    torch.manual_seed(3)
    function, inputs = CASES[name]
    fast = name.startswith("_TiledAttention")
    assert torch.autograd.gradcheck(function, inputs, fast_mode=fast)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=fast, atol=1e-4)


def test_every_hand_written_function_is_checked() -> None:
    """Those of ``parallel`` exchange tensors between processes; second derivatives are computed in one."""
    found, package = set(), Path(transom.__file__).parent
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "parallel"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("autograd.Function") for base in node.bases):
                found.add(node.name)
                text = ast.unparse(node)
                assert "once_differentiable" not in text and "def backward(" in text, path
    assert found == {name.split()[0] for name in CASES} | NOT_IN_FLOAT64


def test_one_tensor_in_several_places_is_counted_once_each() -> None:
    x = drawn(1, 2, 3, 3)
    assert torch.autograd.gradgradcheck(lambda x: short_attention(x, x, x), (x,))


def test_what_is_not_contiguous_has_its_second_derivative_too() -> None:
    function, inputs = attention()
    turned = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in inputs]
    assert torch.autograd.gradgradcheck(lambda *xs: function(*(x.transpose(1, 2) for x in xs)), turned)


def test_a_gradient_penalty_is_that_of_the_equation() -> None:
    torch.manual_seed(1)
    q, k, v = drawn(2, 2, 5, 4), drawn(2, 2, 5, 4), drawn(2, 2, 5, 4)
    penalties = []
    for path in (short_attention, explicit_attention):
        z = path(q, k, v, AttentionArgs())
        (grad,) = torch.autograd.grad(z.square().sum(), q, create_graph=True)
        penalties.append(torch.autograd.grad(grad.square().sum(), (q, k, v)))
    for ours, theirs in zip(*penalties, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_derivative_under_create_graph_is_the_first_derivative(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    hidden, weight, labels = drawn(8, 6), drawn(9, 6), torch.arange(8)
    short = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight)]
    for create_graph in (False, True):
        found = torch.autograd.grad(linear_cross_entropy(*short, labels, 0.1)[0], short, create_graph=create_graph)
        expected = torch.autograd.grad(cross_entropy(hidden @ weight.T, labels, 0.1)[0], (hidden, weight))
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.double() - theirs).norm() <= (0.02 if dtype == torch.bfloat16 else 1e-5) * theirs.norm()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_the_first_derivative_under_create_graph_is_right_where_scores_are_nearly_equal(dtype: torch.dtype, tolerance: float) -> None:
    """There the largest score is one key's, and the largest weight, rounded, that of many."""
    places = packed([60, 40], 0)
    rule = SAME_SEGMENT & pattern({"kind": "window", "size": 9})
    laid = plan_tiled_mask(rule, places, places)
    torch.manual_seed(1)
    inputs = [drawn(1, 4, 100, 8), drawn(1, 4, 100, 8), drawn(1, 4, 100, 8), drawn(4)]
    inputs[0] = (inputs[0] * 1e-8).detach().requires_grad_()

    def gradients(function: Callable[..., Tensor], given: list[Tensor], create_graph: bool) -> list[Tensor]:
        z = function(*given)
        along = torch.linspace(-1, 1, z.numel(), dtype=torch.float64).view(z.shape)
        return list(torch.autograd.grad((z.double() * along).sum(), given, create_graph=create_graph))

    mask = rule.dense(places, places)
    expected = gradients(lambda q, k, v, sinks: explicit_attention(q, k, v, AttentionArgs(mask=mask, sinks=sinks)), inputs, False)
    short = [x.detach().to(dtype).requires_grad_() for x in inputs]
    found = gradients(lambda q, k, v, sinks: tiled_attention(q, k, v, laid, AttentionArgs(sinks=sinks)), short, True)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).norm() <= tolerance * theirs.norm()


def test_attention_keeps_its_weights_but_neither_mask_nor_bias() -> None:
    """What second derivatives may need costs no memory until they are asked for."""
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    mask[1, :, 1] = False  # a query that may attend to no key: for all queries, one number each is kept
    args = AttentionArgs(mask=mask, bias=torch.randn(1, 4, 3, 5), dropout=0.3)
    q, k, v = (torch.randn(2, 4, length, 6, requires_grad=True) for length in (3, 5, 5))
    kept = list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        short_attention(q, k, v, args)
    assert sorted(x.shape for x in kept) == sorted([q.shape, k.shape, v.shape, *2 * [(2, 4, 3, 5)], (2, 1, 3, 1)])


@pytest.mark.long
@settings(max_examples=20)
@given(combinations(FAMILIES + ENCODERS).filter(lambda fields: fields["depth"] == "full"))
def test_a_models_second_derivative_along_any_direction(fields: dict[str, Any]) -> None:
    """H d, by autograd through every fast path, against (g(w + e d) - g(w - e d)) / 2e."""
    config = described(fields)
    model, batch = built(config).train(), batch_for(config)
    weights = [p for p in model.parameters() if p.requires_grad]
    torch.manual_seed(2)
    direction = [torch.randn_like(p) for p in weights]

    def gradient(create_graph: bool = False) -> list[Tensor]:
        torch.manual_seed(5)  # the same elements are dropped
        value = CrossEntropy(label_smoothing=0.1).loss(forward_pass(model, batch)).backward_loss
        found = torch.autograd.grad(value, weights, create_graph=create_graph, allow_unused=True)
        return [torch.zeros_like(p) if x is None else x for p, x in zip(weights, found, strict=True)]

    along = sum((g * d).sum() for g, d in zip(gradient(create_graph=True), direction, strict=True))
    assert isinstance(along, Tensor)
    ours = torch.autograd.grad(along, weights, allow_unused=True)
    sides, step = [], 1e-6
    for sign in (1, -2):
        with torch.no_grad():
            for p, d in zip(weights, direction, strict=True):
                p.add_(d, alpha=sign * step)
        sides.append(gradient())
    for own, above, below in zip(ours, *sides, strict=True):
        expected = (above - below) / (2 * step)
        found = torch.zeros_like(expected) if own is None else own
        assert (found - expected).norm() <= 1e-4 * expected.norm() + 1e-5


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own forward mode calls it
def test_forward_mode_refuses_in_words() -> None:
    x = torch.randn(3)
    with pytest.raises(RuntimeError, match="jvp"), torch.autograd.forward_ad.dual_level():
        relu(torch.autograd.forward_ad.make_dual(x, x))
    assert torch.equal(F.relu(x), relu(x))
