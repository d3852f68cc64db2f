"""What a mixture of experts costs: forward and back through one layer, beside a plain network of the active size and one of all its size.

    python -m benchmarks.mixture_of_experts [--tokens 4096] [--d-model 384] [--d-ff 1024] [--experts 8] [--top-k 2] [--rounds 15]
        [--results benchmarks/results/mixture_of_experts.json]

All are swiglu networks in float32 and, by autocast, bfloat16, and take turns. ``active`` is one network of top_k times the width of an
expert: the same arithmetic as the grouped mixture, whose time over its is what routing costs. ``every expert`` is the reference path.
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
from transom.config.moe import MoeConfig as Component
from transom.layers.feed_forward import build_feed_forward
from transom.layers.mixture_of_experts import MixtureOfExperts, all_experts
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads


def build_layers(args: argparse.Namespace) -> dict[str, nn.Module]:
    """Build what is compared."""
    torch.manual_seed(1)
    component = Component(n_experts=args.experts, top_k=args.top_k, norm_topk_prob=args.top_k > 1)
    layers = {
        "grouped": build_feed_forward(component, args.d_model, args.d_ff, 0.0),
        "every expert": build_feed_forward(component, args.d_model, args.d_ff, 0.0),
        "active": build_feed_forward(GatedFeedForwardConfig(), args.d_model, args.top_k * args.d_ff, 0.0),
        "whole": build_feed_forward(GatedFeedForwardConfig(), args.d_model, args.experts * args.d_ff, 0.0),
    }
    reference = layers["every expert"]
    assert isinstance(reference, MixtureOfExperts)
    reference.path = all_experts
    return dict(layers)


def forward_backward(layer: nn.Module, x: torch.Tensor, dtype: torch.dtype) -> Callable[[], float]:
    """Give the work of one pass forward and back."""

    def work() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            y = layer(x)
        y.float().square().mean().backward()
        layer.zero_grad()

    return timed(work)


def main(arguments: list[str] | None = None) -> None:
    """Time all and write the result."""
    args = _parser().parse_args(arguments)
    threads = choose_threads().count
    torch.set_num_threads(threads)
    environment = describe_environment(
        "python -m benchmarks.mixture_of_experts " + " ".join(arguments or sys.argv[1:]), threads, measure_peak()
    )
    x = torch.randn(1, args.tokens, args.d_model, requires_grad=True)
    work = {
        (name, str(dtype).removeprefix("torch.")): forward_backward(layer, x, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        for name, layer in build_layers(args).items()
    }
    found = [
        {
            "layer": name,
            "dtype": dtype,
            "ms": round(1e3 * quartiles.median, 2),
            "low": round(1e3 * quartiles.low, 2),
            "high": round(1e3 * quartiles.high, 2),
        }
        for (name, dtype), quartiles in time_interleaved(work, args.rounds).items()
    ]
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps({"facts": environment, "layers": found}, indent=1) + "\n", encoding="utf-8")
    for row in found:
        print(f"{row['layer']:>14} {row['dtype']:>9} {row['ms']:>9} ms ({row['low']} to {row['high']})")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixture_of_experts", description=__doc__, formatter_class=form)
    for name, default, what in (
        ("tokens", 4096, "of a batch"),
        ("d-model", 384, "width of a token's vector"),
        ("d-ff", 1024, "hidden width of an expert"),
        ("experts", 8, "how many there are"),
        ("top-k", 2, "how many a token is sent to"),
        ("rounds", 15, "how often each is timed"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=what)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "mixture_of_experts.json", help="JSON file")
    return parser


if __name__ == "__main__":
    main()
