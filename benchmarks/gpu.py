"""Measure transom on a GPU: agreement with the CPU, and training speed beside the transformers library.

    python -m benchmarks.gpu [--parts exactness speed] [--only NAME ...] [--seconds S] [--out FILE]

``exactness`` trains each family 20 steps in float32 on the CPU and on the GPU from the same weights and batches. ``speed`` trains the
published shapes with bfloat16 products, eagerly and compiled, in turn with the transformers library's models of the same shape; rates
are compared with the measured rate of a bfloat16 product. Weights and inputs are random, because the time does not depend on them.
"""

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import families
from benchmarks.families import Family
from benchmarks.measure import describe_environment
from benchmarks.shapes import BASE, LEARNING_RATE, TRAINING, Shape, random_tokens
from transom.config.model import Seq2SeqConfig
from transom.data.batch import Batch, ImageBatch, PaddedSequences, TranslationBatch
from transom.data.tokenizer.special_tokens import SOS
from transom.layers.masks import block_sparse_mask
from transom.models.build import build_model
from transom.planning.hardware import best_seconds, measure_peak
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep

N_STEPS = 20
GPU = torch.device("cuda")
PEAK_SIZE = 8192


def translation_batch(shape: Shape) -> TranslationBatch:
    """Build a batch of sentence pairs."""
    source = PaddedSequences.pad(random_tokens(shape.pairs, shape.source, shape.vocab, 1).tolist())
    labels = random_tokens(shape.pairs, shape.target, shape.vocab, 2)
    target = PaddedSequences.pad(torch.cat([torch.full((shape.pairs, 1), SOS), labels[:, :-1]], 1).tolist())
    return TranslationBatch(source, target, labels, tuple(range(shape.pairs)))


def exactness() -> list[dict[str, Any]]:
    """Return per family the largest relative differences between CPU and GPU of the losses and the weights of 20 float32 steps."""
    small = Seq2SeqConfig(source_vocab_size=500, target_vocab_size=500, d_model=128, n_heads=4, d_ff=256, n_encoder_layers=2, n_decoder_layers=2)
    fields = {"d_model": 128, "n_layers": 2, "n_heads": 4, "d_ff": 256, "dropout": 0.0}
    models: list[tuple[str, Any, Batch]] = [("transformer", small.model_copy(update={"dropout": 0.0}), translation_batch(Shape("small", small, 16)))]
    for family in families.families(quick=False):
        kv = {"llama": {"n_kv_heads": 2}, "bert": {"pooler_dropout": 0.0}}.get(family.name, {})
        tiny = Family(family.name, family.preset, {**family.fields, **fields, **kv}, 4, 64 if family.name != "vit" else 65, family.prompts)
        models.append((family.name, tiny.config, families.build_batch(tiny)))
    rows = []
    for name, config, batch in models:
        torch.manual_seed(1)
        model = build_model(config)
        results = [_train(copy.deepcopy(model).to(device), batch) for device in (torch.device("cpu"), GPU)]
        (losses, weights), (gpu_losses, gpu_weights) = results
        rows.append({
            "family": name,
            "loss": max(abs(a - b) / abs(a) for a, b in zip(losses, gpu_losses, strict=True)),
            "weights": max(float((a - b).norm() / a.norm().clamp_min(1e-3)) for a, b in zip(weights, gpu_weights, strict=True)),
            "first loss": losses[0],
            "last loss": losses[-1],
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def _train(model: Any, batch: Batch) -> tuple[list[float], list[Tensor]]:
    step = TrainStep(model.train(), build_optimizer(model, TRAINING.optimizer), TRAINING, torch.float32, CrossEntropy(0.1))
    losses = [step.step([batch], 1e-3).loss for _ in range(N_STEPS)]
    return losses, [p.detach().cpu() for p in model.parameters()]


PROMPTS = ((1, 32), (32, 32))
GPU_FAMILIES = [
    Family("gpt2", "gpt2", {"attention_dropout": 0.0, "dropout": 0.0}, 32, 1024, PROMPTS),
    Family(
        "llama",
        "llama-7b",
        {"d_model": 768, "n_layers": 12, "n_heads": 12, "n_kv_heads": 12, "d_ff": 2048, "vocab_size": 32000, "max_seq_len": 1024},
        32,
        1024,
        PROMPTS,
    ),
    Family("bert", "bert-base", {"kind": "text-classifier", "classes": families.CLASSES, "attention_dropout": 0.0}, 64, 512),
    Family("vit", "vit-base-16", {"classes": families.CLASSES}, 256, 197),
]


def systems(family: Family | None) -> Iterator[tuple[str, Callable[[], Callable[[], Any]], nn.Module]]:
    """Yield (name, builder of a training step, model) of transom and of the transformers library, eager and compiled."""
    for compiled in (False, True):
        model, batch = _transom(family)
        yield f"transom{' compiled' * compiled}", lambda m=model, b=batch, c=compiled: _transom_step(m, b, c), model  # type: ignore[misc]
        if family is not None and family.length == 1024:
            block_sparse_mask.MAX_DENSITY = 1.0
            yield f"transom flex{' compiled' * compiled}", lambda m=model, b=batch, c=compiled: _transom_step(m, b, c), model  # type: ignore[misc]
            block_sparse_mask.MAX_DENSITY = 0.4
            before = nn.functional.scaled_dot_product_attention
            nn.functional.scaled_dot_product_attention = lambda q, k, v, attn_mask=None, dropout_p=0.0: before(q, k, v, is_causal=True)
            yield f"transom causal{' compiled' * compiled}", lambda m=model, b=batch, c=compiled: _transom_step(m, b, c), model  # type: ignore[misc]
            nn.functional.scaled_dot_product_attention = before
        del model
        peer, inputs, targets = _transformers(family)
        yield f"transformers{' compiled' * compiled}", lambda m=peer, i=inputs, t=targets, c=compiled: _peer_step(m, i, t, c), peer  # type: ignore[misc]
        del peer


BIG = Shape("transformer-base", BASE.config.model_copy(update={"dropout": 0.0}), pairs=768)


def _transom(family: Family | None) -> tuple[nn.Module, Batch]:
    torch.manual_seed(1)
    if family is None:
        return build_model(BIG.config).to(GPU).train(), translation_batch(BIG).to(GPU)
    model = build_model(family.config)
    if family.name == "vit":
        labels = torch.arange(family.rows) % len(families.CLASSES)
        batch: Batch = ImageBatch(torch.rand(family.rows, 3, 224, 224), labels, tuple(range(family.rows)))
    else:
        batch = families.build_batch(family)
    return model.to(GPU).train(), batch.to(GPU)


def _transom_step(model: Any, batch: Batch, compiled: bool) -> Callable[[], Any]:
    if compiled:
        model.logit_factors = torch.compile(model.logit_factors)
    training = TRAINING.model_copy(update={"label_smoothing": 0.0})
    step = TrainStep(model, build_optimizer(model, training.optimizer), training, torch.bfloat16, CrossEntropy(0.0))
    return lambda: step.step([batch], LEARNING_RATE)


def _transformers(family: Family | None) -> tuple[Any, dict[str, Tensor], Tensor]:
    if family is None:
        from benchmarks.peers import marian

        batch = translation_batch(BIG)
        inputs = {"input_ids": batch.source.tokens, "decoder_input_ids": batch.decoder_input.tokens}
        return marian.fresh_model(BIG).to(GPU).train(), {k: v.to(GPU) for k, v in inputs.items()}, batch.labels.to(GPU)
    torch.manual_seed(1)
    model = families.build_transformers_model(family).to(GPU).train()
    _, batch = _transom(family)
    targets = batch.labels if batch.labels.dim() == 2 else batch.labels[:, None]
    inputs = {k: v.to(GPU) for k, v in families._inputs(batch).items() if isinstance(v, Tensor)}
    return model, inputs, targets.to(GPU)


def _peer_step(model: Any, inputs: dict[str, Tensor], targets: Tensor, compiled: bool) -> Callable[[], Any]:
    extra = {"use_cache": False} if "input_ids" in inputs and targets.shape[1] > 1 else {}
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True)

    def loss() -> Tensor:
        logits: Tensor = model(**inputs, **extra).logits
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.flatten())

    loss_of = torch.compile(loss) if compiled else loss

    def step() -> float:
        with torch.autocast("cuda", torch.bfloat16):
            value = loss_of()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(value)

    return step


def speed(only: list[str], seconds: float, profile: bool) -> dict[str, Any]:
    """Time the training steps of every family and system; tokens per second and the share of the measured bfloat16 product rate."""
    left = torch.randn(PEAK_SIZE, PEAK_SIZE, device=GPU, dtype=torch.bfloat16)
    peak = 2 * PEAK_SIZE**3 / best_seconds(lambda: left @ left, GPU, 0.5)
    print(f"bf16 peak {peak / 1e12:.0f} TFLOP/s", flush=True)
    tables: dict[str, Any] = {"peak": peak}
    for family in [None, *GPU_FAMILIES]:
        name = "transformer-base" if family is None else family.name
        if only and name not in only:
            continue
        tokens = BIG.training_tokens if family is None else family.rows * family.length
        for system, build, model in systems(family):
            tables[f"{name}, {system}"] = _time(f"{name:16s} {system:22s}", build, model, tokens, family, peak, seconds, profile)
            del build, model
            gc.collect()
            torch.cuda.empty_cache()
    return tables


def _time(label: str, build: Any, model: nn.Module, tokens: int, family: Family | None, peak: float, seconds: float, profile: bool) -> Any:
    try:
        start = time.perf_counter()
        step = build()
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
    except Exception as error:
        print(label, type(error).__name__, str(error)[:1500], flush=True)
        return {"error": str(error)}
    median = statistics.median(times)
    n = sum(p.numel() for p in model.parameters())
    if family is None:
        flops = float(BIG.training_flops)
    else:
        c: Any = family.config
        n -= c.vocab_size * c.d_model * (0 if c.kind == "decoder" and c.tie_embeddings else 1) if hasattr(c, "vocab_size") else 0
        flops = (6 * n + 12 * c.n_layers * c.d_model * family.length) * tokens
    memory = torch.cuda.max_memory_allocated() / 2**30
    low, high = (statistics.quantiles(times, n=4)[i] for i in (0, 2))
    print(f"{label} {tokens / median:9.0f} tokens/s ({tokens / high:.0f} to {tokens / low:.0f}), {flops / median / peak:5.1%} of peak,"
          f" {median * 1e3:.1f} ms, {memory:.1f} GiB, {len(times)} steps, warm-up {warm:.0f} s", flush=True)  # fmt: skip
    if profile and "transom" in label:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]) as found:
            step()
            torch.cuda.synchronize()
        print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=14, max_name_column_width=60)[:5000], flush=True)
    return {"tokens_per_second": tokens / median, "low": tokens / high, "high": tokens / low, "share": flops / median / peak,
            "ms": median * 1e3, "gib": memory, "warm": warm, "parameters": n}  # fmt: skip


def main() -> None:
    """Run the chosen parts and write the results as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["exactness", "speed"], choices=["exactness", "speed"])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"facts": describe_environment("python -m benchmarks.gpu", 16, measure_peak(GPU))}
    result["facts"]["gpu"] = torch.cuda.get_device_name()
    if "exactness" in args.parts:
        result["exactness"] = exactness()
    if "speed" in args.parts:
        result["speed"] = speed(args.only, args.seconds, args.profile)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
