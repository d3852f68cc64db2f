"""The traced graph without taps is, node for node, that of the same source with the tap lines removed."""

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx

import transom
from transom.config.model import Seq2Seq
from transom.config.recurrent import RecurrentSeq2Seq
from transom.inspection.names import Edit, Recorder
from transom.models.build import build_model

PACKAGE = "untapped"
TAP_NAMES = {"tap", "taps", "scope", "Scope", "unrolled"}


class Untap(ast.NodeTransformer):
    """Remove tap lines, every parameter and argument that carries taps, and the import of them."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if _calls(node.value, "tap") or _calls(node.value, "unrolled") else self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        names = [argument.arg for argument in node.args]
        if "taps" in names:
            place = names.index("taps")
            offset = place - (len(node.args) - len(node.defaults))
            del node.args[place]
            if offset >= 0:
                del node.defaults[offset]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [argument for argument in node.args if not _carries_taps(argument)]
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "taps"]
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if node.module == "transom.layers.tap":
            return None
        for room in ("transom.layers", "transom.models", "transom.config.components"):
            if node.module is not None and node.module.startswith(room):
                node.module = node.module.replace("transom", PACKAGE, 1)
        return node


def _calls(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _carries_taps(node: ast.expr) -> bool:
    return _calls(node, "scope") or (isinstance(node, ast.Name) and node.id == "taps")


@pytest.fixture(scope="module")
def build_untapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Seq2Seq], nn.Module]]:
    """Write layers and models without their tap lines as another package, and give its ``build_model``."""
    root = tmp_path_factory.mktemp("source")
    (root / PACKAGE).mkdir()
    (root / PACKAGE / "__init__.py").touch()
    package = Path(transom.__file__).parent
    for files in ((package / "layers").rglob("*.py"), (package / "models").rglob("*.py"), [package / "config" / "components.py"]):
        for file in files:  # the copied layers are in a copied registry
            if file.name != "tap.py":
                tree = ast.fix_missing_locations(Untap().visit(ast.parse(file.read_text())))
                left = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & TAP_NAMES
                assert not left, f"{file.name} still speaks of {left}"
                copy = root / PACKAGE / file.relative_to(package)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(ast.unparse(tree))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        yield importlib.import_module(f"{PACKAGE}.models.build").build_model
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def config(placement: str, **fields: Any) -> Seq2Seq:
    """Describe a tiny model with every dropout on."""
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_encoder_layers": 1, "n_decoder_layers": 1, "source_vocab_size": 11}
    dropouts = {"dropout": 0.1, "attention_dropout": 0.1, "feed_forward_dropout": 0.1}
    return Seq2Seq(**sizes, target_vocab_size=11, norm_placement=placement, **dropouts, **fields)


RECURRENT = {"d_model": 8, "n_encoder_layers": 2, "n_decoder_layers": 2, "source_vocab_size": 11, "target_vocab_size": 11, "dropout": 0.1}


def nodes(model: nn.Module, taps: Any = None) -> list[tuple[str, str, Any, str, str]]:
    """Trace a forward pass over two padded pairs, parameters as inputs, to ATen operations."""

    def side(tokens: Tensor, segments: Tensor) -> SimpleNamespace:
        return SimpleNamespace(tokens=tokens, segments=segments, positions=torch.arange(tokens.shape[1]).expand_as(tokens), prefix=None)

    def forward(parameters: dict[str, Tensor], source: Tensor, target: Tensor) -> Tensor:
        batch = SimpleNamespace(source=side(source, (source > 0).long()), target=side(target, (target > 0).long()))
        return functional_call(model, parameters, (batch,) if taps is None else (batch, taps))

    source, target = torch.tensor([[5, 3, 9, 2], [7, 2, 0, 0]]), torch.tensor([[1, 4, 8], [1, 6, 0]])
    with _use_lazy_graph_module(True):  # no code is made from the graph: "from" in the name of an overload would be no Python
        graph = make_fx(forward)(dict(model.named_parameters()), source, target).graph
    return [(node.op, node.name, node.target, str(node.args), str(node.kwargs)) for node in graph.nodes]


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_taps_none_leaves_no_sign(build_untapped: Callable[[Seq2Seq], nn.Module], placement: str, training: bool) -> None:
    with torch.set_grad_enabled(training):
        tapped, untapped = (nodes(build(config(placement)).train(training)) for build in (build_model, build_untapped))
    assert len(tapped) > 80
    assert tapped == untapped


@pytest.mark.parametrize("attention", ["none", "additive", "luong"])
def test_nor_in_a_recurrent_network(build_untapped: Callable[[Any], nn.Module], attention: str) -> None:
    config = RecurrentSeq2Seq.model_validate(RECURRENT | {"attention": attention})
    tapped, untapped = (nodes(build(config)) for build in (build_model, build_untapped))
    assert len(tapped) > 80
    assert tapped == untapped


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_recording_adds_no_operation(placement: str) -> None:
    model = build_model(config(placement)).eval()
    assert nodes(model, Recorder(["*"]).taps) == nodes(model)


def test_an_edit_does_show_in_the_graph() -> None:
    model = build_model(config("post")).eval()
    assert nodes(model, Recorder((), {"encoder.blocks.0.ff.hidden": Edit(torch.zeros(()))}).taps) != nodes(model)
