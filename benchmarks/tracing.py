"""Measure what tracing costs, beside TorchLens, TransformerLens and nnsight, if they are installed.

    python -m benchmarks.tracing [--parts off on map long certification] [--rounds N] [--quick] [--out FILE]

``off``: forward passes of a model with and without the lines that name its sites. ``on``: a pass that records all residual streams, queries
and keys, beside a plain pass of the same system. ``map``: one head's attention map at 2,048 tokens, with the time and the memory beyond a
plain pass. ``long``: one head's map in a pass over 32,768 tokens, and from the files of a trace. The shape is GPT-2 small's, with a
vocabulary of 1,000, so that logits do not hide the rest. ``map`` and ``long`` run in processes of their own, whose memory is measured.
``certification`` seeds faults (``benchmarks/certification.py``).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import certification
from benchmarks.measure import describe_environment, write_result
from benchmarks.shapes import random_tokens
from transom.config.model import DecoderConfig
from transom.inspection.attention_map import attention_map
from transom.inspection.trace import open_trace, trace
from transom.models.base import Network
from transom.models.build import build_model
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads

VOCAB = 1000
GPT2 = {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072, "dropout": 0.0, "vocab_size": VOCAB, "tie_embeddings": True}
QUICK = GPT2 | {"d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 64}
TILE, N_TILES = 256, 100
NAMES = ["embedding.resid", "resid_mid", "resid_post", "attn.q", "attn.k"]


CERTIFICATION, QUICK_CERTIFICATION = (300, 10_000), (10, 100)
"""Training steps of the models, and maps without a fault."""


def gpt2(quick: bool, length: int = 1024, **fields: Any) -> Network:
    """Build a model of GPT-2 small's shape."""
    torch.manual_seed(1)
    return build_model(DecoderConfig.model_validate((QUICK if quick else GPT2) | {"max_seq_len": length} | fields)).eval()


def hugging_face(quick: bool, length: int, attention: str = "sdpa") -> Any:
    """Build the transformers library's GPT-2 of the same shape."""
    from transformers import GPT2Config, GPT2LMHeadModel

    size = QUICK if quick else GPT2
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=length, n_embd=size["d_model"], n_layer=size["n_layers"], n_head=size["n_heads"],
        n_inner=size["d_ff"], bos_token_id=1, eos_token_id=1, attn_implementation=attention,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def transformer_lens(quick: bool, length: int) -> Any:
    """Wrap the transformers library's model by TransformerLens, whose attention is explicit."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    model = hugging_face(quick, length, "eager")
    model.config.architectures = ["GPT2LMHeadModel"]
    words = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 1}, unk_token="<|endoftext|>"))
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
        PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=tokenizer, device="cpu")


@contextmanager
def without_sites() -> Iterator[None]:
    """Replace ``observe`` by a function that returns its tensor, in every module that calls it."""
    users = [module for name, module in [*sys.modules.items()] if name.startswith("transom.") and hasattr(module, "observe")]
    before = [vars(module)["observe"] for module in users]
    for module in users:
        vars(module)["observe"] = lambda ctx, module, name, x: x
    try:
        yield
    finally:
        for module, function in zip(users, before, strict=True):
            vars(module)["observe"] = function


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@torch.no_grad()
def off(quick: bool, rounds: int) -> dict[str, float]:
    """Compare passes with and without sites, in pairs; return the ratio and the upper end of its one-sided 95% interval.

    Each pair is four passes of 256 tokens on one thread, in the order A B B A, in processor time, which other processes disturb least.
    """
    model, x, logs = gpt2(quick), random_tokens(1, 64 if quick else 256, VOCAB, 1), list[float]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def cpu_seconds() -> float:
        start = time.process_time()
        model(x)
        return time.process_time() - start

    cpu_seconds()
    for number in range(rounds):
        times = {False: 0.0, True: 0.0}
        for stripped in (False, True, True, False) if number % 2 else (True, False, False, True):
            with without_sites() if stripped else nullcontext():
                times[stripped] += cpu_seconds()
        logs.append(math.log(times[False] / times[True]))
    torch.set_num_threads(threads)
    middle = sorted(logs)[len(logs) // 10 : -(len(logs) // 10) or None]  # without the tenth at either end, where the machine was disturbed
    error = statistics.stdev(middle) / math.sqrt(len(middle))
    found = {"ratio": math.exp(statistics.fmean(middle)), "upper_95": math.exp(statistics.fmean(middle) + 1.7 * error), "pairs": rounds}
    with_sites = allocated_bytes(lambda: model(x))
    with without_sites():
        return found | {"allocated_bytes": with_sites, "extra_bytes": with_sites - allocated_bytes(lambda: model(x))}


def allocated_bytes(work: Callable[[], object]) -> int:
    """Return the bytes that PyTorch allocates during a call, all allocations together."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    return sum(max(event.nbytes(), 0) for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")


def on_systems(quick: bool, compiled: bool) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return per system a plain pass and one that keeps residual streams, queries and keys."""
    x = random_tokens(4, 64 if quick else 512, VOCAB, 1)
    model = gpt2(quick)
    systems: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "transom": (lambda: model(x), lambda: trace(model, x, NAMES, store="qk"))
    }
    if compiled:
        fast: Any = torch.compile(gpt2(quick))
        batch = model.as_batch(x)
        systems["transom compiled"] = (lambda: fast(batch), lambda: trace(fast, batch, NAMES, store="qk"))
    n = (QUICK if quick else GPT2)["n_layers"]
    if find_spec("transformer_lens"):
        lens = transformer_lens(quick, 1024)
        ends = ("hook_q", "hook_k", "hook_resid_pre", "hook_resid_mid", "hook_resid_post")
        systems["TransformerLens"] = (lambda: lens(x), lambda: lens.run_with_cache(x, names_filter=lambda name: name.endswith(ends)))
    if find_spec("torchlens"):
        torchlens, logged = import_module("torchlens"), hugging_face(quick, 1024)
        keep = torchlens.func("addmm") | torchlens.func("add") | torchlens.func("__add__")  # projections and residual sums
        systems["TorchLens"] = (lambda: logged(x), lambda: torchlens.trace(logged, x, save=keep))
    if find_spec("nnsight"):
        from benchmarks.peers.nnsight import traced_pass

        saved = hugging_face(quick, 1024)
        systems["nnsight"] = (lambda: saved(x), traced_pass(saved, x, n))
    return systems


@torch.no_grad()
def on(quick: bool, rounds: int, compiled: bool) -> dict[str, dict[str, float]]:
    """Time plain and recording passes of each system in turn; return medians and the median of the ratios of each round."""
    systems = on_systems(quick, compiled)
    plain: dict[str, list[float]] = {name: [] for name in systems}
    recording: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds + 2):
        for name, (without, with_record) in systems.items():
            times = seconds(without), seconds(with_record)
            if number >= 2:
                plain[name].append(times[0])
                recording[name].append(times[1])
    return {
        name: {
            "plain_seconds": statistics.median(plain[name]),
            "recording_seconds": statistics.median(recording[name]),
            "ratio": statistics.median(b / a for a, b in zip(plain[name], recording[name], strict=True)),
        }
        for name in systems
    }


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Sample the resident memory during a block; the function that is yielded returns the peak in MiB above the start."""
    start, peak, done = resident(), [resident()], threading.Event()

    def sample() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: (peak[0] - start) / 2**20
    finally:
        done.set()
        thread.join()
        peak[0] = max(peak[0], resident())


def map_passes(system: str, quick: bool, x: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a plain pass of a system, with its fast attention, and one that gives the map of head 0 of block 0."""
    length = x.shape[1]
    if system == "transom":
        model = gpt2(quick, length)
        return lambda: model(x), lambda: trace(model, x, ["attn.weights"], blocks=[0], heads=[0])[1]["attn.weights"]
    peer = hugging_face(quick, length)
    if system == "transformers":
        eager = hugging_face(quick, length, "eager")
        return lambda: peer(x, use_cache=False), lambda: eager(x, output_attentions=True, use_cache=False).attentions[0][:, 0]
    lens, name = transformer_lens(quick, length), "blocks.0.attn.hook_pattern"
    return lambda: peer(x, use_cache=False), lambda: lens.run_with_cache(x, names_filter=name)[1][name][:, 0]


@torch.no_grad()
def map_of(system: str, quick: bool) -> dict[str, float]:
    """Return seconds and memory of a pass that gives one head's map, and of a plain pass, in MiB above the model."""
    length = 128 if quick else 2048
    plain, traced = map_passes(system, quick, random_tokens(1, length, VOCAB, 1))
    plain()
    with peak_memory() as plain_peak:
        plain_seconds = seconds(plain)
    traced()
    with peak_memory() as peak:
        traced_seconds = seconds(traced)
    extra = max(peak() - plain_peak(), length**2 * 4 / 2**20)  # the map itself at least
    return {"plain_seconds": plain_seconds, "seconds": traced_seconds, "plain_mib": plain_peak(), "mib": peak(), "extra_mib": extra}


@torch.no_grad()
def long(quick: bool) -> dict[str, float]:
    """Map one head in a pass over a long text, then another head from files; memory in MiB beyond a plain pass, and times of tiles."""
    length = 512 if quick else 32768
    size = {"d_model": 256, "n_layers": 2, "n_heads": 4, "d_ff": 512, "position": {"kind": "rotary"}}
    model, x = gpt2(quick, length, **size), random_tokens(1, length, VOCAB, 1)
    found: dict[str, float] = {"tokens": length}
    with peak_memory() as plain:
        found["plain_seconds"] = seconds(lambda: model.last_hidden_state(model.as_batch(x)))
    with peak_memory() as peak:
        start = time.perf_counter()
        named = attention_map(model, x, "decoder.blocks.1.attn", 3)
        found["pass_seconds"] = time.perf_counter() - start
    found["pass_extra_mib"] = peak() - plain()
    found |= {f"named_{name}": value for name, value in _use(named).items()}
    del named
    with tempfile.TemporaryDirectory() as folder:
        trace(model, x, ["attn.q", "attn.k", "attn.v", "attn.z"], folder=Path(folder))
        with peak_memory() as peak:
            opened = open_trace(model, Path(folder)).map("decoder.blocks.0.attn", 2)
            used = _use(opened)
        found |= {f"files_{name}": value for name, value in used.items()} | {"files_extra_mib": peak()}
    return found


def _use(one: Any) -> dict[str, float]:
    """Certify a map and compute random tiles; return seconds and memory."""
    found: dict[str, float] = {}
    with peak_memory() as peak:
        found["logsumexp_seconds"] = seconds(lambda: one.logsumexp)
        generator, tile = torch.Generator().manual_seed(1), min(TILE, one.shape[0])
        times = []
        for _ in range(N_TILES):
            i, j = torch.randint(0, one.shape[0] - tile + 1, (2,), generator=generator).tolist()
            times.append(seconds(partial(one.tile, slice(i, i + tile), slice(j, j + tile))))
        found |= {"tile_ms_median": statistics.median(times) * 1e3, "tile_ms_95": statistics.quantiles(times, n=20)[-1] * 1e3}
        start = time.perf_counter()
        certificate = one.certify()
        found |= {"certify_seconds": time.perf_counter() - start, "certificate_ratio": certificate.ratio}
    return found | {"use_extra_mib": peak()}


def in_process(part: str, *arguments: str) -> dict[str, float]:
    """Run a part in a process of its own and return what it prints last, as JSON."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.tracing", "--inside", part, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: list[str] | None = None) -> None:
    """Run the chosen parts and write the results as JSON."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing", description=__doc__, formatter_class=form)
    parts = ["off", "on", "map", "long", "certification"]
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts, help="parts to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=30, help="pairs of passes")
    parser.add_argument("--no-compile", action="store_true", help="skip compiled passes")
    parser.add_argument("--quick", action="store_true", help="check that everything runs, with a tiny model and meaningless figures")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    args = parser.parse_args(arguments)
    threads = choose_threads().count
    torch.set_num_threads(threads)
    if args.inside:
        print(json.dumps(long(args.quick) if args.inside == "long" else map_of(args.inside, args.quick)))
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    command = " ".join(["python -m benchmarks.tracing", *(arguments or sys.argv[1:])])
    result: dict[str, Any] = {"facts": describe_environment(command, threads, measure_peak())}
    quick = ["--quick"] if args.quick else []
    if "off" in args.parts:
        result["off"] = off(args.quick, 5 * args.rounds)
    if "on" in args.parts:
        result["on"] = on(args.quick, max(args.rounds // 4, 3), not args.no_compile)
    if "map" in args.parts:
        systems = ["transom", "transformers", *(["transformer_lens"] if find_spec("transformer_lens") else [])]
        result["map"] = {system: in_process(system, *quick) for system in systems}
    if "long" in args.parts:
        result["long"] = in_process("long", *quick)
    if "certification" in args.parts:
        result["certification"] = certification.measure(*(QUICK_CERTIFICATION if args.quick else CERTIFICATION))
    print(json.dumps(result, indent=1))
    write_result(args.out, result)


if __name__ == "__main__":
    main()
