"""Measure attention patterns and decoding on a GPU.

    python -m benchmarks.gpu_inference [--parts patterns decoding] [--lengths N ...] [--only PATTERN ...] [--rows N ...] [--out FILE]

``patterns`` times the attention of one layer over one sequence in bfloat16, forward, and forward and backward. Patterns run in
FlexAttention, which skips the hidden blocks; full attention in PyTorch's fused kernel as well. Visible pairs are counted with the mask rule
itself. ``decoding`` continues prompts greedily with GPT-2 small, beside the transformers library. Each decoding step reads all weights and
the keys and values so far, which bounds its rate by the memory bandwidth. Weights and inputs are random, because the time does not depend
on them. The file is rewritten after each row.
"""

import argparse
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.families import Family, build_transformers_model, word_tokenizer
from benchmarks.gpu import GPU, SHAPES
from benchmarks.measure import Quartiles, describe_environment, timed, write_result
from benchmarks.patterns import D_HEAD, N_HEADS, PATTERNS, build_rules, single_sequence
from benchmarks.shapes import random_tokens
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.inference import prepare_for_inference
from transom.decoding.predictors.generator import Generator
from transom.kernels.flex import flex_block_attention, plan_flex_mask
from transom.layers.attention import AttentionArgs, explicit_attention
from transom.layers.masks.mask_rules import MaskRule
from transom.models.build import build_model
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads

MAX_MASKED_TOKENS = 16384
"""Maximum length at which full attention is also given a mask tensor."""

N_CHECKED = 64
"""Number of queries, evenly spread over the sequence, whose results are compared with the equation."""

N_PROMPT, N_NEW = 32, 64
"""Tokens per prompt, and tokens to generate."""

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Row = dict[str, Any]


def seconds_of(work: Callable[[], object], rounds: int, device: torch.device, n_warmup: int = 2) -> Quartiles:
    """Time ``work``, which is synchronized before the clock is read."""

    def synchronized() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(n_warmup):
        synchronized()
    return Quartiles.of([timed(synchronized)() for _ in range(rounds)])


def count_visible_pairs(rule: MaskRule, length: int, device: torch.device, n_queries: int = 1024) -> int:
    """Count the (query, key) pairs that a rule lets one sequence see, ``n_queries`` queries at a time."""
    tokens = single_sequence(length).map(lambda x: x.to(device))
    chunks = (tokens.map(lambda x, i=i: x[:, i : i + n_queries]) for i in range(0, length, n_queries))  # type: ignore[misc]
    return sum(int(rule.dense(queries, tokens).sum()) for queries in chunks)


def attention_methods(name: str, rule: MaskRule, length: int, device: torch.device) -> Iterator[tuple[str, Attention, Row]]:
    """Yield the methods that compute a pattern: name, function of (q, k, v), and the number of pairs that it computes, if known."""
    tokens = single_sequence(length).map(lambda x: x.to(device))
    if name == "full":
        yield "SDPA, is_causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), {}
        if length <= MAX_MASKED_TOKENS:
            mask = rule.dense(tokens, tokens)
            yield "SDPA, mask", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), {"computed_pairs": length**2}
    planned = plan_flex_mask(rule, tokens, tokens)
    plan = seconds_of(lambda: plan_flex_mask(rule, tokens, tokens), 5, device)
    facts = {"computed_pairs": planned.pairs, "plan_ms": round(1e3 * plan.median, 3)}
    yield "FlexAttention", lambda q, k, v: flex_block_attention(q, k, v, planned), facts


def measure_patterns(lengths: Sequence[int], names: Sequence[str], rounds: int, device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """Measure each pattern and method at each length: time, memory beyond the inputs, and pairs."""
    rules = build_rules()
    for name in names:
        for length in lengths:
            torch.manual_seed(1)
            q, k, v, gradient = (torch.randn(1, N_HEADS, length, D_HEAD, device=device, dtype=dtype) for _ in range(4))
            pairs = count_visible_pairs(rules[name], length, device)
            for method, attend, facts in attention_methods(name, rules[name], length, device):
                row: Row = {"pattern": name, "method": method, "tokens": length, "visible_pairs": pairs, **facts}
                try:
                    yield row | _time_attention(attend, (q, k, v), gradient, rounds) | _error(rules[name], attend, (q, k, v))
                except RuntimeError as error:  # of memory or of the compiler: the other rows are measured all the same
                    yield row | {"error": str(error)[:500]}


def _time_attention(attend: Attention, inputs: tuple[Tensor, Tensor, Tensor], gradient: Tensor, rounds: int) -> Row:
    """Time forward, and forward and backward; measure the memory that each takes beyond the inputs on a GPU."""
    device, leaves = gradient.device, tuple(x.clone().requires_grad_() for x in inputs)
    found = Row()
    for direction, work in (
        ("forward", lambda: attend(*inputs)),
        ("forward_backward", lambda: torch.autograd.grad(attend(*leaves), leaves, gradient)),
    ):
        quartiles = seconds_of(work, rounds, device)
        names = (f"{direction}_ms", f"{direction}_ms_low", f"{direction}_ms_high")
        found |= {name: round(1e3 * x, 4) for name, x in zip(names, (quartiles.median, quartiles.low, quartiles.high), strict=True)}
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            work()
            found[f"{direction}_bytes"] = torch.cuda.max_memory_allocated() - before
    return found


def _error(rule: MaskRule, attend: Attention, inputs: tuple[Tensor, Tensor, Tensor]) -> Row:
    """Return the relative error ``|z - exact| / |exact|`` over ``N_CHECKED`` queries; exact is the equation in float32."""
    q, k, v = inputs
    chosen = torch.linspace(0, q.shape[2] - 1, N_CHECKED).long().tolist()
    tokens = single_sequence(q.shape[2]).map(lambda x: x.to(q.device))
    mask = rule.dense(tokens.select(chosen), tokens)
    exact = explicit_attention(q[:, :, chosen].float(), k.float(), v.float(), AttentionArgs(mask))
    return {"relative_error": float((attend(q, k, v)[:, :, chosen].float() - exact).norm() / exact.norm())}


def decoding_limit(family: Family, rows: int, bandwidth: float) -> float:
    """Return the tokens per second at which reading bfloat16 weights, keys and values takes all of the bandwidth.

    A step reads every weight but the position table, and on average the keys and values of the prompt and half of the new tokens.
    """
    config: Any = family.config
    with torch.device("meta"):
        weights = sum(p.numel() for p in build_model(config).parameters()) - config.max_seq_len * config.d_model
    cached = rows * (N_PROMPT + N_NEW / 2) * 2 * config.n_layers * config.d_model
    return rows * bandwidth / (2 * (weights + cached))


def measure_decoding(family: Family, batches: Sequence[int], rounds: int, device: torch.device, bandwidth: float) -> Iterator[Row]:
    """Time the systems that continue prompts at each batch size, in new tokens per second."""
    config: Any = family.config
    for compiled in (False, True):
        for rows in batches:
            prompts = random_tokens(rows, N_PROMPT, config.vocab_size, 3)
            systems = {"transformers compiled": _transformers} if compiled else {"transom": _transom, "transformers": _transformers}
            for system, build in systems.items():
                row: Row = {"system": system, "rows": rows, "limit": round(decoding_limit(family, rows, bandwidth))}
                try:
                    generate = build(family, prompts, device, compiled)
                    quartiles = seconds_of(generate, rounds, device, n_warmup=3 if compiled else 1)
                except RuntimeError as error:
                    yield row | {"error": str(error)[:500]}
                    continue
                rates = {name: round(rows * N_NEW / x) for name, x in zip(("low", "high"), (quartiles.high, quartiles.low), strict=True)}
                rate = rows * N_NEW / quartiles.median
                row |= {"tokens_per_second": round(rate), **rates, "share_of_limit": round(rate / row["limit"], 4)}
                row["ms_per_step"] = round(1e3 * quartiles.median / N_NEW, 3)
                yield row | ({"gpu_ms_per_step": _gpu_ms(generate)} if device.type == "cuda" else {})
                gc.collect()


def _gpu_ms(generate: Callable[[], object]) -> float:
    """Return the milliseconds per step in which the GPU computes or copies."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:  # events of the CPU take much longer
        generate()
    return round(sum(event.self_device_time_total for event in profile.key_averages()) / 1e3 / N_NEW, 3)


def _transom(family: Family, prompts: Tensor, device: torch.device, compiled: bool) -> Callable[[], object]:
    """Return transom's generation, as ``transom generate`` runs it."""
    torch.manual_seed(1)
    config: Any = family.config
    model, tokenizer = build_model(config), word_tokenizer(config.vocab_size)
    prepare_for_inference(model, torch.bfloat16, device)
    generator = Generator(model, tokenizer, decoder_backend=build_decoder_backend(model))  # type: ignore[arg-type]
    texts = [tokenizer.decode(row) for row in prompts[:, 1:].tolist()]  # the beginning-of-sequence token is added

    def generate() -> None:
        found = generator.continuations(texts, temperature=0.0, min_new_tokens=N_NEW - 1, max_new_tokens=N_NEW, batch_rows=len(texts))
        assert all(best.n_tokens == N_NEW for best, *_ in found)

    return generate


def _transformers(family: Family, prompts: Tensor, device: torch.device, compiled: bool) -> Callable[[], object]:
    """Return the transformers library's generation; compiled, it has a cache of fixed size."""
    torch.manual_seed(1)
    model: Any = build_transformers_model(family).to(device, torch.bfloat16).eval()
    prompts = prompts.to(device)
    options = {"cache_implementation": "static"} if compiled else {}  # which the library compiles by itself
    context = torch.inference_mode if not compiled else nullcontext

    def generate() -> None:
        with context():
            found = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=False, min_new_tokens=N_NEW, max_new_tokens=N_NEW,
                pad_token_id=0, **options,
            )  # fmt: skip
        assert found.shape[1] == N_PROMPT + N_NEW

    return generate


def main(arguments: list[str] | None = None) -> None:
    """Run the chosen parts; print each row, and write all rows so far as JSON."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_inference", description=__doc__, formatter_class=form)
    parser.add_argument("--parts", nargs="+", default=["patterns", "decoding"], choices=["patterns", "decoding"], help="default: both")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384, 65536, 131072], help="tokens per sequence")
    parser.add_argument("--only", nargs="+", default=[*PATTERNS], choices=[*PATTERNS], metavar="PATTERN", help="patterns (default: all)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256], help="batch sizes of decoding")
    parser.add_argument("--rounds", type=int, default=10, help="timings of each row")
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    args = parser.parse_args(arguments)
    peak = measure_peak(GPU)
    facts = describe_environment("python -m benchmarks.gpu_inference", choose_threads().count, peak)
    result: dict[str, Any] = {"facts": facts | {"gpu": torch.cuda.get_device_name()}}
    family = SHAPES["gpt2"]
    assert isinstance(family, Family)
    parts = {
        "patterns": lambda: measure_patterns(args.lengths, args.only, args.rounds, GPU, torch.bfloat16),
        "decoding": lambda: measure_decoding(family, args.rows, min(args.rounds, 5), GPU, peak.bandwidth),
    }
    for part in args.parts:
        result[part] = []
        for row in parts[part]():
            print(row, flush=True)
            result[part].append(row)
            write_result(args.out, result)


if __name__ == "__main__":
    main()
