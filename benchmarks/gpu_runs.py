"""Train whole runs on a GPU: a resumed run beside an uninterrupted one, and the precisions side by side.

    python -m benchmarks.gpu_runs --root data/tinyshakespeare [--parts resume precision] [--recipe NAME] [--steps N] [--seeds 1 2 3]
        [--set FIELD=VALUE ...] [--runs FOLDER] [--out FILE]

``resume`` trains a run to its end, and another one that is killed (SIGKILL) after a checkpoint and resumed; both with PyTorch's
deterministic algorithms, since the fast backward passes of attention and indexing add in any order. It compares weights and metrics byte
for byte. ``precision`` trains in float32, bfloat16, and float16 with loss scaling, from the same weights and batches.
"""

import argparse
import json
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import transom
from benchmarks.gpu import GPU
from benchmarks.measure import describe_environment, write_result
from transom.checkpoints.run_files import METRICS, WEIGHTS
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads
from transom.training.metrics_window import TIMED

PRECISIONS = ("fp32", "bf16", "fp16")
POLL_SECONDS = 0.02


def train(recipe: str, folder: Path, fields: Sequence[str], resume: bool = False, deterministic: bool = False) -> None:
    """Train or resume a run, in a process of its own if ``deterministic``, which is a setting of the process."""
    torch.use_deterministic_algorithms(deterministic)
    transom.train(recipe, folder, fields, resume=resume, overwrite=not resume)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the metrics of a run, without its times."""
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    return [{name: x for name, x in json.loads(line).items() if name not in TIMED} for line in lines]


def compare_resumed(recipe: str, folder: Path, fields: Sequence[str], kill_after: int) -> dict[str, Any]:
    """Train a run, and one that is killed once the checkpoint of step ``kill_after`` is complete and resumed; compare both.

    Returns:
        Whether the files of the weights and the metrics are equal, and the last step that the killed process logged.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read by the processes when they start cuBLAS
    context, whole, killed = multiprocessing.get_context("spawn"), folder / "uninterrupted", folder / "killed"

    def start(out: Path, resume: bool) -> Any:
        process = context.Process(target=train, args=(recipe, out, fields, resume, True))
        process.start()
        return process

    uninterrupted, interrupted = start(whole, False), start(killed, False)
    checkpoint = killed / "checkpoints" / f"step-{kill_after}"
    while interrupted.is_alive() and not checkpoint.exists():
        interrupted.join(POLL_SECONDS)
    interrupted.kill()
    interrupted.join()
    logged = max((row["step"] for row in read_metrics(killed)), default=0)
    resumed = start(killed, True)
    for process in (uninterrupted, resumed):
        process.join()
        assert process.exitcode == 0, "the messages are on standard error"
    a, b = (read_metrics(out) for out in (whole, killed))
    return {
        "killed_by_signal": -interrupted.exitcode,
        "last_logged_step_before_the_kill": logged,
        "weights_equal": (whole / WEIGHTS).read_bytes() == (killed / WEIGHTS).read_bytes(),
        "metrics_equal": a == b,
        "rows_of_metrics": len(a),
        "validation": a[-1].get("loss"),
    }


def compare_precisions(recipe: str, folder: Path, fields: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Train in each precision, seed by seed; return the losses, and their largest difference from float32 at any logged step."""
    losses: dict[str, list[list[float]]] = {name: [] for name in PRECISIONS}
    validation: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    skipped = dict.fromkeys(PRECISIONS, 0.0)
    for seed in seeds:
        for name in PRECISIONS:
            out = folder / f"{name}-{seed}"
            train(recipe, out, [*fields, f"training.seed={seed}", f"training.precision={name}"])
            rows = read_metrics(out)
            losses[name].append([row["nll"] for row in rows if row["kind"] == "train"])
            validation[name].append(next(row["loss"] for row in reversed(rows) if row["kind"] == "validation"))
            skipped[name] += sum(row.get("skipped", 0.0) for row in rows)
    return {
        name: {
            "training_loss": [found[-1] for found in losses[name]],
            "validation_loss": validation[name],
            "mean_validation_loss": statistics.fmean(validation[name]),
            "largest_difference_from_fp32": max(
                abs(a - b) for ours, exact in zip(losses[name], losses["fp32"], strict=True) for a, b in zip(ours, exact, strict=True)
            ),
            "skipped": skipped[name],
        }
        for name in PRECISIONS
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the chosen parts and write the results as JSON after each."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_runs", description=__doc__, formatter_class=form)
    parser.add_argument("--root", type=Path, required=True, help="folder of the recipe's data")
    parser.add_argument("--parts", nargs="+", default=["resume", "precision"], choices=["resume", "precision"], help="default: both")
    parser.add_argument("--recipe", default="shakespeare-char", help="packaged recipe or TOML file")
    parser.add_argument("--steps", type=int, default=200, help="steps per run; the kill comes after half of them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of precision")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="FIELD=VALUE", help="override a recipe field")
    parser.add_argument("--runs", type=Path, default=Path("runs/gpu"), help="folder of the runs")
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    args = parser.parse_args(arguments)
    half = args.steps // 2
    fields = [f"data.root={args.root.resolve()}", f"training.max_steps={args.steps}", f"training.validate_every={half}"]
    fields += [f"training.checkpoint_every={half}", "training.log_every=1", *args.overrides]
    facts = describe_environment("python -m benchmarks.gpu_runs", choose_threads().count, measure_peak(GPU))
    result: dict[str, Any] = {"facts": facts | {"gpu": torch.cuda.get_device_name()}, "steps": args.steps}
    if "resume" in args.parts:
        result["resume"] = compare_resumed(args.recipe, args.runs, fields, half)
        write_result(args.out, result)
    if "precision" in args.parts:
        result["precision"] = compare_precisions(args.recipe, args.runs, fields, args.seeds)
        write_result(args.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
