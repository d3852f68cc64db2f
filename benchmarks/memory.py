"""Compare predicted with real memory: random recipes near a limit of 2 to 6 GiB, each tried in a child process under RLIMIT_DATA."""

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import describe_environment, write_result
from transom.config.architecture import ModelConfig
from transom.config.model import DecoderConfig, MaskedLMConfig, Seq2SeqConfig
from transom.config.training import AdamWConfig, EmaConfig, NoAverageConfig, SgdConfig, TrainingConfig
from transom.config.vision import VisionTransformerConfig
from transom.planning.hardware import measure_peak
from transom.planning.memory import data_memory
from transom.training.memory_trial import try_steps
from transom.training.plan_run import predict_bytes
from transom.training.simulated_step import BatchShape

N_MODELS, RECIPES_PER_MODEL = 10, 4
"""Random architectures, and recipes of each, which differ in limit, batch, optimizer and gradient accumulation."""

LIMITS = (2.0, 6.0)
"""Range of the limit in GiB."""

NEARNESS = (0.7, 1.3)
"""Range of predicted memory as a fraction of the limit."""


@dataclass(frozen=True)
class Case:
    """A random recipe near a limit; sizes in bytes.

    Attributes:
        name: kind of model and number of the recipe.
        limit: most bytes of data that the process may have.
        predicted: predicted bytes of the process.
        tensors: those of tensors.
        rows: rows per forward pass.
        n_micro_batches: forward passes per step.
        optimizer: kind of the optimizer.
    """

    name: str
    limit: int
    predicted: int
    tensors: int
    rows: int
    n_micro_batches: int
    optimizer: str


def random_model(draw: random.Random) -> tuple[ModelConfig, BatchShape]:
    """Draw an architecture of one of four families, with few FLOPs per byte, and the shape of one row."""
    width, layers, length = draw.choice([64, 96, 128]), draw.randint(1, 3), draw.choice([64, 128, 256])
    vocab = draw.choice([500, 4000, 16000, 64000])
    common: dict[str, Any] = {"d_model": width, "n_heads": draw.choice([2, 4]), "d_ff": width * draw.choice([2, 4]), "dropout": 0.1}
    text = common | {"max_seq_len": length}
    kind = draw.choice(["decoder", "masked", "pair", "image"])
    if kind == "decoder":
        return DecoderConfig(**text, n_layers=layers, vocab_size=vocab), BatchShape(1, 0, length)
    if kind == "masked":
        return MaskedLMConfig(**text, n_layers=layers, vocab_size=vocab), BatchShape(1, length, 0, 0.15)
    if kind == "pair":
        sizes: dict[str, Any] = {
            "n_encoder_layers": layers,
            "n_decoder_layers": layers,
            "source_vocab_size": vocab,
            "target_vocab_size": vocab,
        }
        return Seq2SeqConfig(**text, **sizes), BatchShape(1, length // 2, length // 2)
    classes = tuple(map(str, range(10)))
    image = VisionTransformerConfig(**common, image_size=64, patch_size=draw.choice([4, 8]), n_layers=layers, classes=classes)
    return image, BatchShape(1, image.n_positions, 0)


def cases(seed: int) -> Iterator[tuple[Case, ModelConfig, TrainingConfig, BatchShape]]:
    """Draw the recipes. The rows are those at which memory would come near the limit if it grew linearly; it is predicted at these rows."""
    draw, base = random.Random(seed), data_memory()
    for number in range(N_MODELS):
        config, row = random_model(draw)
        for each in range(RECIPES_PER_MODEL):
            training = TrainingConfig(
                optimizer=draw.choice([AdamWConfig(), SgdConfig()]), average=draw.choice([NoAverageConfig(), EmaConfig()])
            )
            micro, limit = draw.choice([1, 2]), round(draw.uniform(*LIMITS) * 2**30)
            wanted = draw.uniform(*NEARNESS) * limit - base
            shapes = [BatchShape(n, row.source, row.target, row.labeled, micro) for n in (64, 128)]
            few, more = (predict_bytes(config, training, shape, torch.float32) for shape in shapes)
            rows = max(1, 64 + round(64 * (wanted - few.total) / (more.total - few.total)))
            shape = BatchShape(rows, row.source, row.target, row.labeled, micro)
            found = predict_bytes(config, training, shape, torch.float32)
            name = f"{config.kind} {number * RECIPES_PER_MODEL + each}"
            yield Case(name, limit, base + found.total, found.tensors, rows, micro, training.optimizer.kind), config, training, shape


def shares(results: list[dict[str, Any]], margin: float = 0.0) -> dict[str, float]:
    """Return the two error shares: recipes that fail though they are predicted to fit, and recipes that are refused though they fit."""
    predicted = [each["predicted"] * (1 + margin) <= each["limit"] for each in results]
    pairs = list(zip(predicted, (each["fits"] for each in results), strict=True))
    n_predicted, n_fits = max(sum(predicted), 1), max(sum(fits for _, fits in pairs), 1)
    return {
        "margin": margin,
        "predicted_to_fit": sum(predicted),
        "fit": sum(fits for _, fits in pairs),
        "failed_of_predicted": sum(said and not fits for said, fits in pairs) / n_predicted,
        "refused_of_fitting": sum(fits and not said for said, fits in pairs) / n_fits,
    }


def predict_again(seed: int, tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return outcomes of an earlier version's trials with the predictions of this one."""
    results, base = list[dict[str, Any]](), data_memory()
    for found, (_, config, training, shape) in zip(tried, cases(seed), strict=True):
        size = predict_bytes(config, training, replace(shape, rows=found["rows"]), torch.float32)
        results.append(found | {"predicted": base + size.total, "tensors": size.tensors})
    return results


def main(arguments: Mapping[str, Any]) -> None:
    """Try every recipe, and write all outcomes after each."""
    torch.set_num_threads(1)
    if arguments["again"]:
        stored = json.loads(arguments["again"].read_text())
        stored["results"] = predict_again(arguments["seed"], stored["results"])
        write_result(arguments["out"], stored | {"shares": shares(stored["results"])})
        print(shares(stored["results"]))
        return
    environment = describe_environment(f"python -m benchmarks.memory --seed {arguments['seed']}", 1, measure_peak())
    results = list[dict[str, Any]]()
    for case, config, training, shape in cases(arguments["seed"]):
        trial = try_steps(config, training, shape, "fp32", case.limit, steps=2)
        results.append(asdict(case) | asdict(trial))
        verdict = f"predicted {case.predicted / case.limit:.2f} of {case.limit / 2**30:.1f} GiB, {'fits' if trial.fits else 'does not fit'}"
        print(f"{case.name}: {verdict}", flush=True)
        write_result(arguments["out"], {"environment": environment, "shares": shares(results), "results": results})
    print(shares(results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/memory.json"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", type=Path, help="predict again what this file of results says was tried, with the same seed")
    main(vars(parser.parse_args()))
