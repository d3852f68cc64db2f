"""Private or undocumented names of PyTorch: each has a fallback in public ones, tested here, and no other is used."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from transom.config.model import DecoderConfig, Seq2SeqConfig
from transom.config.recurrent import RecurrentDecoderConfig
from transom.decoding import packed_linear as decoding_packed_linear
from transom.inspection import activation_sites, certify
from transom.kernels import attention, linear, norm
from transom.layers import dispatch
from transom.training import weight_averaging

PACKING = {"_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise"}
KNOWN = {
    "_softmax_backward_data",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_are_functorch_transforms_active",
    "_get_dispatch_mode",
    "_TorchDispatchModeKey",
    "_dynamo_marked_constant",
    "torch._C",
    "native_layer_norm",
    "native_layer_norm_backward",
    "torch._subclasses.fake_tensor",
    "torch.utils._python_dispatch",
    "_foreach_lerp_",
    "torch._dynamo",
    "torch.distributed.tensor._redistribute",
    *PACKING,
}
"""Names looked up by ``getattr`` or ``import_module``, so that a PyTorch without them takes the fallback."""

ROOTS = ("torch", "nn", "F")
"""Names by which the package knows torch and its modules."""

PRIVATE = re.compile(
    r"torch\.(?:\w+\.)*_\w+(?:\.\w+)*|(?:_softmax|native|_foreach|_dynamo|_are_functorch|_get_dispatch)_\w+|_TorchDispatch\w+"
)
"""Names of torch in strings."""


def private_names(path: Path) -> tuple[set[str], set[str]]:
    """Find private names of torch in a source file: those that it uses as they stand, and those that it looks up and may not find."""
    used, looked_up = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and (path_of := chain(node)) and path_of[0] in ROOTS:
            used |= {part for part in path_of if part.startswith(("_", "native_")) and not part.startswith("__")}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            named = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                if module.split(".")[0] == "torch":
                    used |= {name for name in [*module.split("."), *named] if name.startswith("_")}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and chain(node.args[0])[:1] == ["torch"]:
            named = [str(name.value) for name in node.args[1:2] if isinstance(name, ast.Constant)]
            looked_up |= {name for name in named if name.startswith(("_", "native_")) and len(node.args) == 3}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE.fullmatch(node.value):
            looked_up.add(node.value)
    return used, looked_up


def chain(node: ast.expr) -> list[str]:
    """Spell ``a.b.c`` as its names; empty where the chain does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = chain(node.value)
        return [*before, node.attr] if before else []
    return [node.id] if isinstance(node, ast.Name) else []


def test_only_names_with_a_fallback_are_used() -> None:
    found = [private_names(path) for path in Path(transom.__file__).parent.rglob("*.py")]
    assert set().union(*(used for used, _ in found)) == set()
    assert set().union(*(looked_up for _, looked_up in found)) == KNOWN


USES = [
    "torch._foo(x)",
    "F._foo(x)",
    "nn.modules._foo(x)",
    "torch.ops.aten._foo(x)",
    "torch.native_foo(x)",
    "import torch._foo",
    "from torch._foo import bar",
    "from torch.nn import _foo",
]
LOOKUPS = ['getattr(torch.ops.aten, "_foo", None)', 'getattr(torch, "native_foo", None)', 'import_module("torch._foo.bar")']


@pytest.mark.parametrize("line", USES + LOOKUPS)
def test_the_search_sees_every_way_of_naming_one(line: str, tmp_path: Path) -> None:
    (file := tmp_path / "a.py").write_text(line)
    assert [bool(names) for names in private_names(file)] == [line in USES, line in LOOKUPS]


def gone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let ``getattr`` find a name of torch no more."""
    kept = getattr

    def without(holder: Any, wanted: str, *default: Any) -> Any:
        return default[0] if wanted == name else kept(holder, wanted, *default)

    for module in (attention, certify, dispatch, norm, activation_sites, linear, weight_averaging):
        monkeypatch.setattr(module, "getattr", without, raising=False)


def test_the_softmax_gradient_without_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    grad, p = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64).softmax(-1)
    expected = attention.softmax_backward(grad, p)
    gone(monkeypatch, "_softmax_backward_data")
    assert torch.allclose(attention.softmax_backward(grad, p), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["native_layer_norm", "native_layer_norm_backward"])
@pytest.mark.parametrize("function", [norm.layer_norm_16_bit, norm.explicit_rms_norm])
def test_norms_without_their_kernels(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    inputs = (x, weight, bias) if function is norm.layer_norm_16_bit else (x, weight)

    def results() -> list[torch.Tensor]:
        y = function(*inputs, 1e-5)
        return [y, *torch.autograd.grad(y.sin().sum(), inputs)]

    expected = results()
    gone(monkeypatch, name)
    for found, wanted in zip(results(), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [*sorted(PACKING), "binary"])
def test_products_without_their_kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    weight, bias, x = (torch.randn(*shape, generator=draw).bfloat16() for shape in ((6, 4), (6,), (3, 4)))
    gone(monkeypatch, name)
    product = decoding_packed_linear.LinearFactory(4, torch.bfloat16).make(weight, bias)
    assert isinstance(product, decoding_packed_linear.UnpackedLinear)
    assert torch.equal(product(x), torch.nn.functional.linear(x, weight, bias))


@pytest.mark.kernels
def test_products_are_packed_where_pytorch_and_the_processor_can(monkeypatch: pytest.MonkeyPatch) -> None:
    found, weight = linear.onednn_ops(), torch.randn(6, 4).bfloat16()
    assert found is not None
    if not found.is_supported():
        pytest.skip("needs a processor that multiplies bfloat16")
    for supported in (True, False):
        monkeypatch.setattr(linear, "onednn_ops", lambda supported=supported: found._replace(is_supported=lambda: supported))
        assert isinstance(
            decoding_packed_linear.LinearFactory(4, torch.bfloat16).make(weight, None),
            linear.OneDnnLinear if supported else decoding_packed_linear.UnpackedLinear,
        )


def test_the_moving_average_without_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    averages, weights = ([torch.randn(shape) for shape in ((3, 4), (5,), ())] for _ in range(2))
    expected, found = ([x.clone() for x in averages] for _ in range(2))
    weight_averaging.foreach_lerp_(expected, weights, 0.3)
    gone(monkeypatch, "_foreach_lerp_")
    weight_averaging.foreach_lerp_(found, weights, 0.3)
    for ours, theirs, old in zip(found, expected, averages, strict=True):
        assert torch.equal(ours, theirs) and not torch.equal(ours, old)


def test_certificates_without_the_kernels_row_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = transom.build({"kind": "decoder", "vocab_size": 9, "d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 1}).eval()
    found = transom.trace(model, torch.tensor([[1, 5, 6]]), ["attn.weights"])[1]
    assert [(each.ok, each.with_logsumexp) for each in found.certify()] == [(True, True)]
    gone(monkeypatch, "_scaled_dot_product_flash_attention_for_cpu")
    assert [(each.ok, each.with_logsumexp) for each in found.certify()] == [(True, False)]


def test_sites_without_fake_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 12}
    configs = [
        Seq2SeqConfig.model_validate({**sizes, "source_vocab_size": 9, "target_vocab_size": 9}),
        DecoderConfig.model_validate({**sizes, "vocab_size": 9}),
        RecurrentDecoderConfig.model_validate({"d_model": 8, "vocab_size": 9}),
    ]
    expected = [activation_sites.list_sites(config) for config in configs]

    def missing(name: str) -> Any:
        raise ImportError(name)

    for change in (lambda: gone(monkeypatch, "FakeTensorMode"), lambda: monkeypatch.setattr(activation_sites, "import_module", missing)):
        change()
        assert [activation_sites.list_sites(config) for config in configs] == expected
    assert importlib.import_module("torch._subclasses.fake_tensor")
