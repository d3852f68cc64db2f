"""Time one mixture-of-experts layer beside dense layers of its active size and of its total size, forward and backward.

    python -m benchmarks.mixture_of_experts [--tokens 4096] [--d-model 384] [--d-ff 1024] [--experts 8] [--top-k 2] [--rounds 15]
        [--results benchmarks/results/mixture_of_experts.json]

All layers are SwiGLU networks, timed in turn in float32 and in bfloat16 by autocast. ``dense, active size`` has top_k times the width of an
expert and therefore the FLOPs of the ``grouped`` mixture: the difference in time is the cost of routing. ``dense, total size`` has the
width of all experts together. ``all experts`` is the reference path, which applies every expert to every token.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.measure import describe_environment, time_interleaved, timed
from transom.config.components import GatedFeedForwardConfig
from transom.config.moe import MoeConfig
from transom.layers.feed_forward import build_feed_forward
from transom.layers.mixture_of_experts import MixtureOfExperts, all_experts
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads


def build_layers(args: argparse.Namespace) -> dict[str, nn.Module]:
    """Build the layers to compare, by name."""
    torch.manual_seed(1)
    config = MoeConfig(n_experts=args.experts, top_k=args.top_k, norm_topk_prob=args.top_k > 1)
    layers = {
        "grouped": build_feed_forward(config, args.d_model, args.d_ff, 0.0),
        "all experts": build_feed_forward(config, args.d_model, args.d_ff, 0.0),
        "dense, active size": build_feed_forward(GatedFeedForwardConfig(), args.d_model, args.top_k * args.d_ff, 0.0),
        "dense, total size": build_feed_forward(GatedFeedForwardConfig(), args.d_model, args.experts * args.d_ff, 0.0),
    }
    reference = layers["all experts"]
    assert isinstance(reference, MixtureOfExperts)
    reference.path = all_experts
    return dict(layers)


def forward_backward(layer: nn.Module, x: torch.Tensor, dtype: torch.dtype) -> Callable[[], float]:
    """Return a function that runs one forward and backward pass and returns its duration in seconds."""

    def workload() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            y = layer(x)
        y.float().square().mean().backward()
        layer.zero_grad()

    return timed(workload)


def main(arguments: list[str] | None = None) -> None:
    """Time the layers, print the times and write them to ``--results``."""
    args = _parser().parse_args(arguments)
    threads = choose_threads().count
    torch.set_num_threads(threads)
    environment = describe_environment(
        "python -m benchmarks.mixture_of_experts " + " ".join(arguments or sys.argv[1:]), threads, measure_peak()
    )
    x = torch.randn(1, args.tokens, args.d_model, requires_grad=True)
    workloads = {
        (name, str(dtype).removeprefix("torch.")): forward_backward(layer, x, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        for name, layer in build_layers(args).items()
    }
    rows = [
        {
            "layer": name,
            "dtype": dtype,
            "ms": round(1e3 * quartiles.median, 2),
            "low": round(1e3 * quartiles.low, 2),
            "high": round(1e3 * quartiles.high, 2),
        }
        for (name, dtype), quartiles in time_interleaved(workloads, args.rounds).items()
    ]
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps({"facts": environment, "layers": rows}, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['layer']:>18} {row['dtype']:>9} {row['ms']:>9} ms ({row['low']} to {row['high']})")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixture_of_experts", description=__doc__, formatter_class=form)
    for name, default, description in (
        ("tokens", 4096, "tokens per batch"),
        ("d-model", 384, "dimension of a token's vector"),
        ("d-ff", 1024, "hidden dimension of an expert"),
        ("experts", 8, "number of experts"),
        ("top-k", 2, "experts per token"),
        ("rounds", 15, "timings per layer"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=description)
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results" / "mixture_of_experts.json", help="JSON file to write"
    )
    return parser


if __name__ == "__main__":
    main()
