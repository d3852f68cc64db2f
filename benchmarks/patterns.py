"""Time sparse attention patterns beside full attention: `python -m benchmarks.patterns --out benchmarks/results/patterns.json`.

The benchmark times the attention of one decoder layer over one sequence of 1,024 to 32,768 tokens, forward, and forward and backward. A
pattern runs by the layers' own block-sparse functions: `plan_parts` finds the visible tiles (once per forward pass for all layers of a
model), and `tiled_attention` attends to them. Full attention runs in PyTorch's fused kernel with `is_causal`, which skips future keys, in
the same kernel with a mask tensor, which skips nothing, and as the explicit equation for lengths that fit into memory. The visible pairs of
a pattern are counted, not estimated.
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
from transom.planning.freed_memory import trim_malloc
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads

N_HEADS, D_HEAD = 8, 64
MAX_EXPLICIT_TOKENS, MAX_MASKED_TOKENS = 4096, 16384
"""Maximum lengths at which all attention scores, and a full mask with the kernel's copies of it, fit into 16 GB of memory."""

PATTERNS: dict[str, Any] = {
    "full": "full",
    "window 256": {"kind": "window", "size": 256},
    "window 1024": {"kind": "window", "size": 1024},
    "strided 128": {"kind": "strided", "stride": 128},
    "window 128 or strided 128": {"kind": "any", "patterns": [{"kind": "window", "size": 128}, {"kind": "strided", "stride": 128}]},
    "block-local 128 or summary 128/8": {
        "kind": "any",
        "patterns": [{"kind": "block-local", "size": 128}, {"kind": "summary", "stride": 128, "columns": 8}],
    },
    "logsparse 16": {"kind": "logsparse", "window": 16},
    "global 64, window 192 or random 3x64": {
        "kind": "any",
        "patterns": [{"kind": "global", "size": 64}, {"kind": "window", "size": 192}, {"kind": "random", "blocks": 3, "size": 64}],
    },
}
"""Name to the value of ``model.attention.pattern`` in a recipe."""


def build_rules() -> dict[str, MaskRule]:
    """Build the causal mask rule of each pattern, by name."""
    return {
        name: CAUSAL_IN_SEGMENT & build_rule(block_patterns(MultiHeadAttentionConfig.model_validate({"pattern": p}).pattern)[0])
        for name, p in PATTERNS.items()
    }


def single_sequence(length: int) -> TokenPositions:
    """Return the positions of a batch of one sequence."""
    positions = torch.arange(length)[None]
    return TokenPositions(positions, torch.ones_like(positions))


def attention_methods(length: int) -> dict[tuple[str, str], Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return attention functions of (q, k, v) by (pattern, method)."""
    positions, rules = single_sequence(length), build_rules()
    full = rules["full"]
    methods: dict[tuple[str, str], Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        ("full", "SDPA, is_causal"): lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    }
    if length <= MAX_MASKED_TOKENS:
        methods["full", "SDPA, mask"] = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=full.dense(positions, positions))
    if length <= MAX_EXPLICIT_TOKENS:
        methods["full", "explicit"] = lambda q, k, v: explicit_attention(q, k, v, AttentionArgs(full.dense(positions, positions)))
    for name, rule in rules.items():
        if rule is full and length > MAX_MASKED_TOKENS:
            continue  # takes minutes, and transom never uses tiles for a mask that hides nothing
        tiles = plan_tiled_mask(rule, positions, positions)
        methods[name, "block-sparse"] = lambda q, k, v, tiles=tiles: tiled_attention(q, k, v, tiles)  # type: ignore[misc]
    return methods


def peak_bytes(workload: Callable[[], object]) -> int | None:
    """Return the growth of the process's resident memory during a workload, in bytes; None on systems other than Linux."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.is_file():
        return None
    trim_malloc()
    reset.write_text("5")  # resets the peak

    def kilobytes(field: str) -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith(field)).split()[1])

    before = kilobytes("VmRSS")
    workload()
    return (kilobytes("VmHWM") - before) * 1024


def visible_pairs(parts: Sequence[MaskPart]) -> int:
    """Count the visible (query, key) pairs of a mask, given its parts."""
    pairs = 0
    for queries, _, chunks in parts:
        for chunk in chunks:
            query_positions = (chunk.queries % queries.n_tiles)[:, None] * TILE_SIZE + torch.arange(TILE_SIZE, device=chunk.queries.device)
            not_padding = query_positions < queries.length
            n_unmasked_keys = chunk.keys.shape[1] * TILE_SIZE - chunk.mask.shape[3]
            pairs += int((chunk.mask & not_padding[:, None, :, None]).sum()) + int(not_padding.sum()) * n_unmasked_keys
    return pairs


def measure(length: int, rounds: int) -> list[dict[str, Any]]:
    """Time all patterns and methods in turn at one length, then measure the memory of each; return one row per (pattern, method)."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, N_HEADS, length, D_HEAD, requires_grad=True) for _ in range(3))
    gradient, methods, positions = torch.randn(1, N_HEADS, length, D_HEAD), attention_methods(length), single_sequence(length)

    def forward(attend: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: attend(q.detach(), k.detach(), v.detach())

    def forward_backward(attend: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), gradient)

    workloads = {
        (*key, direction): build(attend)
        for key, attend in methods.items()
        for direction, build in (("forward", forward), ("forward_backward", forward_backward))
    }
    plans = {
        (name, "block-sparse", "plan"): (lambda rule=rule: plan_parts(rule, positions, positions)) for name, rule in build_rules().items()
    }
    seconds = time_interleaved({name: timed(workload) for name, workload in (workloads | plans).items()}, rounds)
    rows = []
    for name, method in methods:
        parts = plan_parts(build_rules()[name], positions, positions)
        row: dict[str, Any] = {"pattern": name, "method": method, "tokens": length, "visible_pairs": visible_pairs(parts)}
        row["computed_pairs"] = (
            sum(part.pairs for part in parts) if method == "block-sparse" else length**2 if method != "SDPA, is_causal" else None
        )
        for direction in ("forward", "forward_backward"):
            quartiles = seconds[name, method, direction]
            row[f"{direction}_ms"] = 1e3 * quartiles.median
            row[f"{direction}_ms_low"], row[f"{direction}_ms_high"] = 1e3 * quartiles.low, 1e3 * quartiles.high
            row[f"{direction}_bytes"] = peak_bytes(workloads[name, method, direction])
        row["plan_ms"] = 1e3 * seconds[name, method, "plan"].median if method == "block-sparse" else None
        rows.append(row)
    return rows


def main() -> None:
    """Measure at every length, print the times and write them to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write the results to")
    parser.add_argument("--shortest", type=int, default=1024, help="shortest sequence in tokens; doubled up to --longest")
    parser.add_argument("--longest", type=int, default=32768, help="longest sequence in tokens")
    parser.add_argument("--rounds", type=int, default=5, help="timings per method; at most 3 from 16,384 tokens")
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
                print(
                    f"{length:6} {row['pattern']:40} {row['method']:15} {row['forward_ms']:9.1f} {row['forward_backward_ms']:9.1f} ms",
                    flush=True,
                )
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        length *= 2


if __name__ == "__main__":
    main()
