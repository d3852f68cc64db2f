"""Private or undocumented names of PyTorch: each has a fallback in public ones, tested here, and no other is used."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from transom.config.model import Decoder, Seq2Seq
from transom.config.recurrent import RecurrentDecoder
from transom.inspection import names
from transom.layers import lean, norm

KNOWN = {"_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward", "torch._subclasses.fake_tensor"}
"""Names looked up by ``getattr`` or ``import_module``, so that a PyTorch without them takes the fallback."""

PRIVATE = re.compile(r"torch\.(?:\w+\.)*_\w+(?:\.\w+)*|(?:_softmax|native|_foreach)_\w+")
"""Names of torch in strings."""


def private_names(path: Path) -> set[str]:
    """Find private attributes of torch that a source file names, and private modules of it that it imports or looks up."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and (path_of := chain(node))[:1] == ["torch"]:
            found |= {part for part in path_of if part.startswith(("_", "native_")) and not part.startswith("__")}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            named = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                if module.split(".")[0] == "torch":
                    found |= {name for name in [*module.split("."), *named] if name.startswith("_")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE.fullmatch(node.value):
            found.add(node.value)
    return found


def chain(node: ast.expr) -> list[str]:
    """Spell ``a.b.c`` as its names; empty where the chain does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = chain(node.value)
        return [*before, node.attr] if before else []
    return [node.id] if isinstance(node, ast.Name) else []


def test_only_names_with_a_fallback_are_used() -> None:
    found = {name for path in Path(transom.__file__).parent.rglob("*.py") for name in private_names(path)}
    assert found == KNOWN


def test_the_search_sees_every_way_of_naming_one(tmp_path: Path) -> None:
    ways = ["torch._foo(x)", "torch.ops.aten._foo(x)", "import torch._foo", "from torch._foo import bar", "from torch.nn import _foo"]
    for number, way in enumerate([*ways, "torch.native_foo(x)"]):
        (file := tmp_path / f"{number}.py").write_text(way)
        assert private_names(file), way


def gone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let ``getattr`` find a name of torch no more."""
    kept = getattr

    def without(holder: Any, wanted: str, *default: Any) -> Any:
        return default[0] if wanted == name else kept(holder, wanted, *default)

    for module in (lean, norm, names):
        monkeypatch.setattr(module, "getattr", without, raising=False)


def test_the_softmax_gradient_without_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    grad, p = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64).softmax(-1)
    expected = lean.softmax_gradient(grad, p)
    gone(monkeypatch, "_softmax_backward_data")
    assert torch.allclose(lean.softmax_gradient(grad, p), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["native_layer_norm", "native_layer_norm_backward"])
@pytest.mark.parametrize("function", [norm._ShortLayerNorm, norm._RootMeanSquare])
def test_norms_without_their_kernels(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    inputs = (x, weight, bias) if function is norm._ShortLayerNorm else (x, weight)

    def results() -> list[torch.Tensor]:
        y = function.apply(*inputs, 1e-5)
        return [y, *torch.autograd.grad(y.sin().sum(), inputs)]

    expected = results()
    gone(monkeypatch, name)
    for found, wanted in zip(results(), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-12)


def test_sites_without_fake_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 12}
    configs = [
        Seq2Seq.model_validate({**sizes, "source_vocab_size": 9, "target_vocab_size": 9}),
        Decoder.model_validate({**sizes, "vocab_size": 9}),
        RecurrentDecoder.model_validate({"d_model": 8, "vocab_size": 9}),
    ]
    expected = [names.sites(config) for config in configs]

    def missing(name: str) -> Any:
        raise ImportError(name)

    for change in (lambda: gone(monkeypatch, "FakeTensorMode"), lambda: monkeypatch.setattr(names, "import_module", missing)):
        change()
        assert [names.sites(config) for config in configs] == expected
    assert importlib.import_module("torch._subclasses.fake_tensor")
