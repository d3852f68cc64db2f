"""Measure transom on a GPU: agreement with the CPU, and training speed beside the transformers library.

    python -m benchmarks.gpu [--parts exactness speed] [--only NAME ...] [--seconds S] [--profile] [--out FILE]

``exactness`` trains each family 20 steps in float32 on the CPU and on the GPU, from the same weights and batches. ``speed`` trains the
published shapes with bfloat16 products, eager and compiled, beside the transformers library's models of the same shape. Rates are compared
with the measured rate of a bfloat16 product. Weights and inputs are random, because the time does not depend on them.
"""

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import families
from benchmarks.families import CLASSES, Family
from benchmarks.measure import describe_environment, write_result
from benchmarks.ours import training_batch
from benchmarks.shapes import BASE, LEARNING_RATE, TRAINING, Shape
from transom.config.model import Seq2SeqConfig
from transom.data.batch import Batch, ImageBatch
from transom.models.build import build_model
from transom.planning.hardware import best_seconds, measure_peak
from transom.planning.precision import choose_threads
from transom.training.compilation import REQUESTS, compile_training_passes
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep

GPU = torch.device("cuda")
N_STEPS = 20
PEAK_SIZE = 8192

Step = Callable[[], object]

_PROMPTS = ((1, 32), (32, 32))
_TEXT = {"max_seq_len": 1024, "attention_dropout": 0.0, "dropout": 0.0}
_LLAMA = {"d_model": 768, "n_layers": 12, "n_heads": 12, "n_kv_heads": 12, "d_ff": 2048, "vocab_size": 32000, "max_seq_len": 1024}
_BERT = {"kind": "text-classifier", "classes": CLASSES, "attention_dropout": 0.0, "vocab_size": 30522}
SHAPES: dict[str, Shape | Family] = {
    "transformer-base": Shape("transformer-base", BASE.config.model_copy(update={"dropout": 0.0}), pairs=768),
    "gpt2": Family("gpt2", "gpt2", {**_TEXT, "vocab_size": 50257}, 32, 1024, _PROMPTS),
    "llama": Family("llama", "llama-7b", _LLAMA, 32, 1024, _PROMPTS),
    "bert": Family("bert", "bert-base", _BERT, 64, 512),
    "vit": Family("vit", "vit-base-16", {"classes": CLASSES}, 256, 197),
}


def build_batch(shape: Shape | Family) -> Batch:
    """Build the training batch of a shape."""
    if isinstance(shape, Shape):
        return training_batch(shape)
    if shape.name != "vit":
        return families.build_batch(shape)
    size: int = getattr(shape.config, "image_size", 0)
    return ImageBatch(torch.rand(shape.rows, 3, size, size), torch.arange(shape.rows) % len(CLASSES), tuple(range(shape.rows)))


def exactness() -> Iterator[tuple[str, dict[str, float]]]:
    """Yield per family the largest relative differences between CPU and GPU of the losses and the weights of 20 float32 steps."""
    sizes = {"d_model": 128, "n_heads": 4, "d_ff": 256, "dropout": 0.0}
    layers = {"source_vocab_size": 500, "target_vocab_size": 500, "n_encoder_layers": 2, "n_decoder_layers": 2}
    pairs = Seq2SeqConfig.model_validate(sizes | layers)
    shapes: list[Shape | Family] = [Shape("transformer", pairs, 16)]
    for family in families.families(quick=False):
        own = {"llama": {"n_kv_heads": 2}, "bert": {"pooler_dropout": 0.0}}.get(family.name, {})
        fields = {**family.fields, **sizes, **own, "n_layers": 2}
        shapes.append(Family(family.name, family.preset, fields, 4, 65 if family.name == "vit" else 64, family.prompts))
    for shape in shapes:
        torch.manual_seed(1)
        model = build_model(shape.config)
        batch = families.build_batch(shape) if isinstance(shape, Family) else build_batch(shape)
        (losses, weights), (on_gpu, gpu_weights) = (_train(copy.deepcopy(model).to(d), batch) for d in (torch.device("cpu"), GPU))
        row = {
            "loss": max(abs(a - b) / abs(a) for a, b in zip(losses, on_gpu, strict=True)),
            "weights": float((weights - gpu_weights).norm() / weights.norm()),
        }
        print(shape.name, row, flush=True)
        yield shape.name, row


def _train(model: Any, batch: Batch) -> tuple[list[float], Tensor]:
    """Take ``N_STEPS`` steps in float32; return their losses, and the weights as one vector on the CPU."""
    step = TrainStep(model.train(), build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(0.1))
    losses = [step.step([batch], LEARNING_RATE).loss for _ in range(N_STEPS)]
    return losses, torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def systems(shape: Shape | Family) -> Iterator[tuple[str, Callable[[], Step]]]:
    """Yield the name and the builder of a training step of each system."""
    for mode, compile_ in (("eager", "off"), ("compiled", "on")):
        yield f"transom {mode}", partial(transom_step, shape, compile_)
        yield f"transformers {mode}", partial(transformers_step, shape, compile_ == "on")
    yield "transom CUDA graphs", partial(transom_step, shape, "cuda-graphs")


def transom_step(shape: Shape | Family, compile_: str) -> Step:
    """Build the model and return its training step, as ``transom train`` takes it with ``training.compile = compile_``."""
    torch.manual_seed(1)
    model: Any = build_model(shape.config).to(GPU).train()
    batch: Any = build_batch(shape)
    batch = batch.to(GPU)
    if (options := REQUESTS.get(compile_)) is not None:
        compile_training_passes(model, **options)
    training = TRAINING.model_copy(update={"compile": compile_})
    step = TrainStep(model, build_optimizer(model, training.optimizer), training, torch.bfloat16, CrossEntropy(0.0))
    return lambda: step.step([batch], LEARNING_RATE)


def transformers_step(shape: Shape | Family, compiled: bool) -> Step:
    """Build the transformers library's model of the same shape and return its training step."""
    torch.manual_seed(1)
    batch: Any = build_batch(shape)
    if isinstance(shape, Shape):
        from benchmarks.peers import marian

        model: Any = marian.fresh_model(shape)
        inputs = {"input_ids": batch.source.tokens, "decoder_input_ids": batch.decoder_input.tokens, "use_cache": False}
    else:
        model, inputs = families.build_transformers_model(shape), families.transformers_inputs(batch)
    model.to(GPU).train()
    inputs = {name: x.to(GPU) if isinstance(x, Tensor) else x for name, x in inputs.items()}
    labels, optimizer = batch.labels.to(GPU).flatten(), torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True)

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(**inputs).logits.reshape(len(labels), -1), labels)

    loss = torch.compile(loss) if compiled else loss

    def step() -> float:
        with torch.autocast("cuda", torch.bfloat16):
            value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return step


def training_flops(shape: Shape | Family) -> float:
    """Return the FLOPs of a step's matrix products: 6 per weight and token, and 12 L n d per token for attention (Kaplan et al. 2020)."""
    if isinstance(shape, Shape):
        return float(shape.training_flops)
    config: Any = shape.config
    with torch.device("meta"):
        model = build_model(config)
    output = 0 if getattr(config, "tie_embeddings", False) else config.d_model * getattr(config, "vocab_size", 0)
    weights = sum(p.numel() for p in model.parameters()) - output  # of untied embeddings one matrix is no product
    return float(6 * weights + 12 * config.n_layers * config.d_model * shape.length) * shape.rows * shape.length


def speed(only: list[str], seconds: float, profile: bool) -> dict[str, Any]:
    """Time every shape and system; a system that fails is recorded with its error."""
    left = torch.randn(PEAK_SIZE, PEAK_SIZE, device=GPU, dtype=torch.bfloat16)
    peak = 2 * PEAK_SIZE**3 / best_seconds(lambda: left @ left, GPU, 0.5)
    print(f"bf16 products: {peak / 1e12:.0f} TFLOP/s", flush=True)
    tables: dict[str, Any] = {"peak": peak}
    for name, shape in SHAPES.items():
        for system, build in systems(shape) if not only or name in only else ():
            row = tables[f"{name}, {system}"] = _time(build, shape, peak, seconds)
            print(name, system, json.dumps(row), flush=True)
            if profile and system == "transom eager":
                _profile(build())
            gc.collect()
            torch.cuda.empty_cache()
    return tables


def _time(build: Callable[[], Step], shape: Shape | Family, peak: float, seconds: float) -> dict[str, Any]:
    """Time the steps of one system; tokens per second, share of ``peak``, memory, and seconds of the first three steps."""
    try:
        start, step = time.perf_counter(), build()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        warm, times, end = time.perf_counter() - start, list[float](), time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 5:
            begin = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    except RuntimeError as error:  # of memory or of the compiler: the other systems are measured all the same
        return {"error": str(error)[:500]}
    tokens = shape.training_tokens if isinstance(shape, Shape) else shape.rows * shape.length
    low, median, high = statistics.quantiles(times, n=4)
    return {
        "tokens_per_second": round(tokens / median),
        "low": round(tokens / high),
        "high": round(tokens / low),
        "share_of_peak": round(training_flops(shape) / median / peak, 3),
        "ms": round(median * 1e3, 1),
        "gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "warm_up_seconds": round(warm, 1),
    }


def _profile(step: Step) -> None:
    step()
    with torch.profiler.profile() as found:
        step()
        torch.cuda.synchronize()
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=20, max_name_column_width=60), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the chosen parts and write the results as JSON."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=form)
    parser.add_argument("--parts", nargs="+", default=["exactness", "speed"], choices=["exactness", "speed"], help="default: both")
    parser.add_argument("--only", nargs="+", default=[], choices=[*SHAPES], help="shapes to time (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds to time each system")
    parser.add_argument("--profile", action="store_true", help="also print the GPU kernels of an eager step")
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    args = parser.parse_args(arguments)
    facts = describe_environment("python -m benchmarks.gpu", choose_threads().count, measure_peak(GPU))
    result: dict[str, Any] = {"facts": facts | {"gpu": torch.cuda.get_device_name()}}
    if "exactness" in args.parts:
        result["exactness"] = {}
        for name, row in exactness():
            result["exactness"][name] = row
            write_result(args.out, result)
    if "speed" in args.parts:
        result["speed"] = speed(args.only, args.seconds, args.profile)
    write_result(args.out, result)


if __name__ == "__main__":
    main()
