"""ONNX Runtime encodes with the transformers library's model: all of its weights, fused attention, and its logits."""

import math
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.families import Family, build_batch, build_transformers_model, families, transformers_inputs, transformers_workloads
from benchmarks.peers import onnx_runtime

pytestmark = pytest.mark.skipif(not onnx_runtime.installed(), reason="onnx and onnxruntime are not installed")
ENCODERS = {family.name: family for family in families(quick=True) if not family.prompts}


@pytest.mark.parametrize("family", ENCODERS.values(), ids=list(ENCODERS))
def test_both_libraries_give_the_same_log_probability(family: Family) -> None:
    expected = transformers_workloads(family, compiled=False)["encoding", "fp32"]()
    found = {mode: workload() for (_, mode), workload in onnx_runtime.workloads(family).items()}
    assert found == {"fp32": pytest.approx(expected, abs=1e-6), "int8": pytest.approx(expected, abs=0.02)}
    assert found["int8"] != found["fp32"]


@pytest.mark.parametrize("family", ENCODERS.values(), ids=list(ENCODERS))
def test_all_weights_are_exported_attention_is_fused_and_products_are_quantized(family: Family, tmp_path: Path) -> None:
    import onnx

    exported, optimized, quantized = (tmp_path / name for name in ("exported", "optimized", "quantized"))
    model = build_transformers_model(family).eval()
    with onnx_runtime.silence():
        onnx_runtime.export(model, transformers_inputs(build_batch(family)), exported)
        onnx_runtime.optimize(exported, optimized, family)
        onnx_runtime.quantize(optimized, quantized)

    graphs = {path.name: onnx.load(path).graph for path in (optimized, quantized)}
    sizes = {name: sum(math.prod(x.dims) for x in graph.initializer if len(x.dims) > 1) for name, graph in graphs.items()}
    assert set(sizes.values()) == {sum(p.numel() for p in model.parameters() if p.dim() > 1)}
    operations = {name: Counter(node.op_type for node in graph.node) for name, graph in graphs.items()}
    n_layers = family.fields["n_layers"]
    assert operations["optimized"]["Attention"] == operations["quantized"]["QAttention"] == n_layers
    assert operations["optimized"]["MatMul"] == 3 * n_layers and operations["quantized"]["MatMul"] == 0
    assert operations["optimized"]["Softmax"] == 0


def test_different_logits_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnx_runtime.MAX_RELATIVE_ERROR, "int8", 1e-4)
    with pytest.raises(RuntimeError, match="onnxruntime int8: expected the logits of the exported model, found a relative error"):
        onnx_runtime.workloads(ENCODERS["bert"])
