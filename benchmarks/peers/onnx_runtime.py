"""The transformers library's encoders in ONNX Runtime, in float32 and with int8 weights and activations.

Of the exporter's operator sets, the optimizer's fusions and the options of dynamic quantization, the fastest ones are used. The fused
``SkipLayerNormalization`` and ``BiasGelu`` are slower on a CPU than the operations that they replace, so they are disabled.
"""

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.families import Family, build_batch, build_transformers_model, transformers_inputs

Workloads = dict[tuple[str, str], Callable[[], Any]]

OPSET = 17
"""The first operator set with ``LayerNormalization``."""

MAX_RELATIVE_ERROR = {"fp32": 1e-4, "int8": 0.1}
"""Maximum norm of the logits' difference from the exported model, relative to the norm of the logits."""


def installed() -> list[str]:
    """Return the name of this system if its libraries are installed."""
    return ["onnxruntime"] if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx") else []


def workloads(family: Family) -> Workloads:
    """Return the encoding of the batch by mode.

    Raises:
        RuntimeError: the logits of a mode differ from those of the transformers library's model.
    """
    torch.manual_seed(1)
    model, inputs = build_transformers_model(family).eval(), transformers_inputs(build_batch(family))
    arrays = {name: x.numpy() for name, x in inputs.items()}
    with torch.inference_mode():
        expected = model(**inputs).logits.numpy()
    found: Workloads = {}
    for mode, session in build_sessions(model, inputs, family).items():
        error = np.linalg.norm(session.run(None, arrays)[0] - expected) / np.linalg.norm(expected)
        if not error < MAX_RELATIVE_ERROR[mode]:
            raise RuntimeError(f"onnxruntime {mode}: expected the logits of the exported model, found a relative error of {error:.2g}")
        found["encoding", mode] = partial(_forward, session, arrays)
    return found


def build_sessions(model: nn.Module, inputs: dict[str, Tensor], family: Family) -> dict[str, Any]:
    """Export a model for inputs of one shape, optimize and quantize its graph, and return an inference session per mode."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder, silence():
        exported, optimized, quantized = (Path(folder, f"{name}.onnx") for name in ("exported", "optimized", "quantized"))
        export(model, inputs, exported)
        optimize(exported, optimized, family)
        quantize(optimized, quantized)
        return {
            mode: onnxruntime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
            )
            for mode, path in (("fp32", optimized), ("int8", quantized))
        }


def export(model: nn.Module, inputs: dict[str, Tensor], path: Path) -> None:
    """Write a model to an ONNX file, with attention in the form that ONNX Runtime's optimizer fuses."""
    from transformers import AttentionInterface

    AttentionInterface.register("onnx", _attention)
    model.set_attn_implementation("onnx")  # type: ignore[operator]
    torch.onnx.export(model, (), path, kwargs=inputs, input_names=list(inputs), output_names=["logits"], opset_version=OPSET, dynamo=False)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **settings: object
) -> tuple[Tensor, None]:
    """Compute attention with the scores divided by the root of the head dimension; the optimizer does not recognize a product."""
    weights = (query @ key.transpose(2, 3) / query.shape[-1] ** 0.5).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), None


def optimize(source: Path, target: Path, family: Family) -> None:
    """Fuse attention, layer norm and GELU."""
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions(family.name)
    options.enable_skip_layer_norm = options.enable_bias_skip_layer_norm = options.enable_bias_gelu = False
    c: Any = family.config
    optimize_model(str(source), family.name, c.n_heads, c.d_model, options, opt_level=0).save_model_to_file(str(target))


def quantize(source: Path, target: Path) -> None:
    """Quantize the weights of products to int8 per output channel; activations are quantized when the model runs."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source,
        target,
        op_types_to_quantize=["MatMul", "Attention"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},  # of fused operations, whose types are not inferred
    )


def _forward(session: Any, inputs: dict[str, Any]) -> float:
    (logits,) = session.run(None, inputs)
    return float(torch.from_numpy(logits).log_softmax(-1)[0, 0])


@contextmanager
def silence() -> Iterator[None]:
    """Suppress the warnings of the exporter and the quantizer, which do not concern these models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
