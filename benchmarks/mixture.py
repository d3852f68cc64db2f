"""What a mixture of experts costs: forward and back through one layer, beside a plain network of the active size and one of all its size.

    python -m benchmarks.mixture [--tokens 4096] [--d-model 384] [--d-ff 1024] [--experts 8] [--top-k 2] [--rounds 15]
        [--results benchmarks/results/mixture.json]

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

from benchmarks.measure import facts, interleave, timed
from transom.config.bricks import Gated
from transom.config.mixture import Mixture as Brick
from transom.layers.feed_forward import build_feed_forward
from transom.layers.mixture import Mixture, every_expert
from transom.planning.machine import measure_peak
from transom.planning.precision import choose_threads


def layers(asked: argparse.Namespace) -> dict[str, nn.Module]:
    """Build what is compared."""
    torch.manual_seed(1)
    brick = Brick(n_experts=asked.experts, top_k=asked.top_k, normalise=asked.top_k > 1)
    made = {
        "grouped": build_feed_forward(brick, asked.d_model, asked.d_ff, 0.0),
        "every expert": build_feed_forward(brick, asked.d_model, asked.d_ff, 0.0),
        "active": build_feed_forward(Gated(), asked.d_model, asked.top_k * asked.d_ff, 0.0),
        "whole": build_feed_forward(Gated(), asked.d_model, asked.experts * asked.d_ff, 0.0),
    }
    reference = made["every expert"]
    assert isinstance(reference, Mixture)
    reference.path = every_expert
    return dict(made)


def learning(layer: nn.Module, x: torch.Tensor, dtype: torch.dtype) -> Callable[[], float]:
    """Give the work of one pass forward and back."""

    def work() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            y = layer(x)
        y.float().square().mean().backward()
        layer.zero_grad()

    return timed(work)


def main(arguments: list[str] | None = None) -> None:
    """Time all and write the result."""
    asked = _parser().parse_args(arguments)
    threads = choose_threads().count
    torch.set_num_threads(threads)
    machine = facts("python -m benchmarks.mixture " + " ".join(arguments or sys.argv[1:]), threads, measure_peak())
    x = torch.randn(1, asked.tokens, asked.d_model, requires_grad=True)
    work = {
        (name, str(dtype).removeprefix("torch.")): learning(layer, x, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        for name, layer in layers(asked).items()
    }
    found = [
        {
            "layer": name,
            "dtype": dtype,
            "ms": round(1e3 * spread.median, 2),
            "low": round(1e3 * spread.low, 2),
            "high": round(1e3 * spread.high, 2),
        }
        for (name, dtype), spread in interleave(work, asked.rounds).items()
    ]
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    asked.results.write_text(json.dumps({"facts": machine, "layers": found}, indent=1) + "\n", encoding="utf-8")
    for row in found:
        print(f"{row['layer']:>14} {row['dtype']:>9} {row['ms']:>9} ms ({row['low']} to {row['high']})")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixture", description=__doc__, formatter_class=form)
    for name, default, what in (
        ("tokens", 4096, "of a batch"),
        ("d-model", 384, "width of a token's vector"),
        ("d-ff", 1024, "hidden width of an expert"),
        ("experts", 8, "how many there are"),
        ("top-k", 2, "how many a token is sent to"),
        ("rounds", 15, "how often each is timed"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=what)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "mixture.json", help="JSON file")
    return parser


if __name__ == "__main__":
    main()
