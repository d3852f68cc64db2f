"""The traced graph without an observer is, node for node, that of the same source with the calls of ``observe`` removed."""

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
from transom.config.model import Seq2SeqConfig
from transom.config.recurrent import RecurrentSeq2SeqConfig
from transom.layers.observe import ActivationRecorder, Edit
from transom.models.build import build_model

PACKAGE = "unobserved"
COPIED = "transom.layers", "transom.kernels", "transom.models", "transom.config.component_registry"


class Unobserve(ast.NodeTransformer):
    """Put ``x`` for each ``observe(ctx, self, name, x)``, and turn imports of layers, kernels, models and their registry to the copy."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "observe":
            _ctx, _module, _name, x = node.args
            return self.visit(x)  # type: ignore[no-any-return]
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module is not None and node.module.startswith(COPIED):
            node.module = node.module.replace("transom", PACKAGE, 1)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and node.value.startswith("transom.kernels"):
            node.value = node.value.replace("transom", PACKAGE, 1)
        return node


@pytest.fixture(scope="module")
def build_unobserved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Seq2SeqConfig], nn.Module]]:
    """Write layers and models without their sites as another package, and give its ``build_model``."""
    root, n_sites = tmp_path_factory.mktemp("source"), 0
    (root / PACKAGE).mkdir()
    (root / PACKAGE / "__init__.py").touch()
    for pattern in ("layers/**/*.py", "kernels/**/*.py", "models/**/*.py", "config/component_registry.py"):
        for file in Path(transom.__file__).parent.glob(pattern):
            before = ast.parse(file.read_text())
            n_sites += _calls(before)
            tree = ast.fix_missing_locations(Unobserve().visit(before))
            assert not _calls(tree)
            copy = root / PACKAGE / file.relative_to(Path(transom.__file__).parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(ast.unparse(tree))
    assert n_sites > 25
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        yield importlib.import_module(f"{PACKAGE}.models.build").build_model
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def _calls(tree: ast.AST) -> int:
    """Count the calls of ``observe`` in a file."""
    return sum(isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "observe" for node in ast.walk(tree))


def config(placement: str, **fields: Any) -> Seq2SeqConfig:
    """Describe a tiny model with every dropout on."""
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_encoder_layers": 1, "n_decoder_layers": 1, "source_vocab_size": 11}
    dropouts = {"dropout": 0.1, "attention_dropout": 0.1, "feed_forward_dropout": 0.1}
    return Seq2SeqConfig(**sizes, target_vocab_size=11, norm_placement=placement, **dropouts, **fields)


RECURRENT = {"d_model": 8, "n_encoder_layers": 2, "n_decoder_layers": 2, "source_vocab_size": 11, "target_vocab_size": 11, "dropout": 0.1}


def nodes(model: nn.Module, observer: Any = None) -> list[tuple[str, str, Any, str, str]]:
    """Trace a forward pass over two padded pairs, parameters as inputs, to ATen operations."""

    def side(tokens: Tensor, segments: Tensor) -> SimpleNamespace:
        positions, absent = torch.arange(tokens.shape[1]).expand_as(tokens), dict.fromkeys(("prefix", "text_length", "token_types"))
        return SimpleNamespace(tokens=tokens, segments=segments, positions=positions, **absent)

    def forward(parameters: dict[str, Tensor], source: Tensor, target: Tensor) -> Tensor:
        batch = SimpleNamespace(source=side(source, (source > 0).long()), decoder_input=side(target, (target > 0).long()))
        return functional_call(model, parameters, (batch,) if observer is None else (batch, observer))

    source, target = torch.tensor([[5, 3, 9, 2], [7, 2, 0, 0]]), torch.tensor([[1, 4, 8], [1, 6, 0]])
    with _use_lazy_graph_module(True):  # no code is made from the graph: "from" in the name of an overload would be no Python
        graph = make_fx(forward)(dict(model.named_parameters()), source, target).graph
    return [(node.op, node.name, node.target, str(node.args), str(node.kwargs)) for node in graph.nodes]


@pytest.mark.long
@pytest.mark.parametrize("placement", ["post", "pre", "sandwich", "parallel", "parallel-separate"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_without_an_observer_there_is_no_sign(
    build_unobserved: Callable[[Seq2SeqConfig], nn.Module], placement: str, training: bool
) -> None:
    with torch.set_grad_enabled(training):
        observable, plain = (nodes(build(config(placement)).train(training)) for build in (build_model, build_unobserved))
    assert len(observable) > 80
    assert observable == plain


@pytest.mark.parametrize("attention", ["none", "additive", "luong"])
def test_nor_in_a_recurrent_network(build_unobserved: Callable[[Any], nn.Module], attention: str) -> None:
    config = RecurrentSeq2SeqConfig.model_validate(RECURRENT | {"attention": attention})
    observable, plain = (nodes(build(config)) for build in (build_model, build_unobserved))
    assert len(observable) > 80
    assert observable == plain


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_recording_adds_no_operation(placement: str) -> None:
    model = build_model(config(placement)).eval()
    assert nodes(model, ActivationRecorder(["*"])) == nodes(model)


def test_an_edit_does_show_in_the_graph() -> None:
    model = build_model(config("post")).eval()
    assert nodes(model, ActivationRecorder((), {"encoder.blocks.0.ff.hidden": Edit(torch.zeros(()))})) != nodes(model)
