"""What attention patterns cost, beside full attention: `python -m benchmarks.patterns --out benchmarks/results/patterns.json`.

One layer's attention of a decoder over one text, forward and forward and back, at 1,024 to 32,768 tokens. Every pattern goes through the
layers' own functions: its visible tiles are found (`plan_parts`, once a pass for all layers of a model) and attended to. Full attention is
PyTorch's fused kernel in its best mode (is_causal, which skips what lies ahead), the same kernel with the mask as a tensor, which skips
nothing, and the equation written out as far as it fits. Visible pairs of pattern and length are counted, not estimated.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import describe_environment, time_interleaved, timed
from transom.config.components import MultiHeadAttentionConfig
from transom.config.patterns import block_patterns
from transom.kernels.block_sparse import MaskPart, plan_parts, plan_tiled_mask, tiled_attention
from transom.layers.attention import AttentionArgs, explicit_attention
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, TILE_SIZE, MaskRule, TokenPositions, build_rule
from transom.planning.hardware import measure_peak
from transom.planning.memory import trim_malloc
from transom.planning.precision import choose_threads

N_HEADS, D_HEAD = 8, 64
MAX_EXPLICIT_TOKENS, MAX_MASKED_TOKENS = 4096, 16384
"""Tokens behind which scores of all pairs, or a mask of all pairs with what the kernel makes of it, do not fit into usual memory."""

PATTERNS: dict[str, Any] = {
    "full": "full",
    "window 256": {"kind": "window", "size": 256},
    "window 1024": {"kind": "window", "size": 1024},
    "strided 128": {"kind": "strided", "stride": 128},
    "window 128 or strided 128": {"kind": "any", "patterns": [{"kind": "window", "size": 128}, {"kind": "strided", "stride": 128}]},
    "local 128 or summary 128/8": {
        "kind": "any",
        "patterns": [{"kind": "block-local", "size": 128}, {"kind": "summary", "stride": 128, "columns": 8}],
    },
    "logarithmic 16": {"kind": "logsparse", "window": 16},
    "global 64, window 192 or random 3x64": {
        "kind": "any",
        "patterns": [{"kind": "global", "size": 64}, {"kind": "window", "size": 192}, {"kind": "random", "blocks": 3, "size": 64}],
    },
}
"""Name to what a recipe would say under model.attention.pattern."""


def build_rules() -> dict[str, MaskRule]:
    """Build the patterns of a decoder."""
    return {
        name: CAUSAL_IN_SEGMENT & build_rule(block_patterns(MultiHeadAttentionConfig.model_validate({"pattern": p}).pattern)[0])
        for name, p in PATTERNS.items()
    }


def single_sequence(length: int) -> TokenPositions:
    """Give the places of one text."""
    positions = torch.arange(length)[None]
    return TokenPositions(positions, torch.ones_like(positions))


def attention_methods(length: int) -> dict[tuple[str, str], Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Give each pattern and way of computing it as a function of queries, keys and values."""
    places, found = single_sequence(length), build_rules()
    full = found["full"]
    systems: dict[tuple[str, str], Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        ("full", "fused, causal"): lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    }
    if length <= MAX_MASKED_TOKENS:
        systems["full", "fused, mask"] = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=full.dense(places, places))
    if length <= MAX_EXPLICIT_TOKENS:
        systems["full", "written out"] = lambda q, k, v: explicit_attention(q, k, v, AttentionArgs(full.dense(places, places)))
    for name, rule in found.items():
        if rule is full and length > MAX_MASKED_TOKENS:
            continue  # minutes, and never taken: all of it is seen
        tiles = plan_tiled_mask(rule, places, places)
        systems[name, "tiles"] = lambda q, k, v, tiles=tiles: tiled_attention(q, k, v, tiles)  # type: ignore[misc]
    return systems


def peak_bytes(work: Callable[[], object]) -> int | None:
    """Measure by how much the process's memory grows while it works, where the system tells (Linux)."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.is_file():
        return None
    trim_malloc()
    reset.write_text("5")  # the peak is counted from here

    def kilobytes(field: str) -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith(field)).split()[1])

    before = kilobytes("VmRSS")
    work()
    return (kilobytes("VmHWM") - before) * 1024


def visible_pairs(parts: Sequence[MaskPart]) -> int:
    """Count the pairs of a query and a key that a mask lets see, from its parts."""
    pairs = 0
    for queries, _, chunks in parts:
        for chunk in chunks:
            real = (chunk.queries % queries.n_tiles)[:, None] * TILE_SIZE + torch.arange(
                TILE_SIZE, device=chunk.queries.device
            ) < queries.length
            whole = chunk.keys.shape[1] * TILE_SIZE - chunk.mask.shape[3]
            pairs += int((chunk.mask & real[:, None, :, None]).sum()) + int(real.sum()) * whole
    return pairs


def measure(length: int, rounds: int) -> list[dict[str, Any]]:
    """Time every way at one length, side by side, and then measure the memory of each."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, N_HEADS, length, D_HEAD, requires_grad=True) for _ in range(3))
    gradient, systems, places = torch.randn(1, N_HEADS, length, D_HEAD), attention_methods(length), single_sequence(length)

    def forward(attend: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: attend(q.detach(), k.detach(), v.detach())

    def both(attend: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), gradient)

    works = {(*key, what): work(attend) for key, attend in systems.items() for what, work in (("forward", forward), ("both", both))}
    planned = {(name, "tiles", "plan"): (lambda rule=rule: plan_parts(rule, places, places)) for name, rule in build_rules().items()}
    seconds = time_interleaved({name: timed(work) for name, work in (works | planned).items()}, rounds)
    rows = []
    for (name, method), _ in systems.items():
        parts = plan_parts(build_rules()[name], places, places)
        row: dict[str, Any] = {"pattern": name, "way": method, "tokens": length, "visible_pairs": visible_pairs(parts)}
        row["computed_pairs"] = sum(part.pairs for part in parts) if method == "tiles" else length**2 if method != "fused, causal" else None
        for what in ("forward", "both"):
            quartiles = seconds[name, method, what]
            row |= {f"{what}_ms": 1e3 * quartiles.median, f"{what}_ms_low": 1e3 * quartiles.low, f"{what}_ms_high": 1e3 * quartiles.high}
            row[f"{what}_bytes"] = peak_bytes(works[name, method, what])
        row["plan_ms"] = 1e3 * seconds[name, method, "plan"].median if method == "tiles" else None
        rows.append(row)
    return rows


def main() -> None:
    """Measure at every length and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where to write the figures, as JSON")
    parser.add_argument("--shortest", type=int, default=1024, help="tokens at the least; doubled up to --longest")
    parser.add_argument("--longest", type=int, default=32768, help="tokens at the most")
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured; 3 from 16,384 tokens on")
    arguments = parser.parse_args()
    threads = choose_threads().count
    torch.set_num_threads(threads)
    command = f"python -m benchmarks.patterns --out {arguments.out}"
    result: dict[str, Any] = {
        "facts": describe_environment(command, threads, measure_peak()),
        "shape": {"n_heads": N_HEADS, "d_head": D_HEAD},
        "rows": [],
    }
    length = arguments.shortest
    while length <= arguments.longest:
        result["rows"] += measure(length, arguments.rounds if length < 16384 else min(arguments.rounds, 3))
        for row in result["rows"]:
            if row["tokens"] == length:
                print(f"{length:6} {row['pattern']:40} {row['method']:14} {row['forward_ms']:9.1f} {row['both_ms']:9.1f} ms", flush=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        length *= 2


if __name__ == "__main__":
    main()
