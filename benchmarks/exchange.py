"""Measure import and export: their rate beside that of reading and copying the same files, and their peak memory."""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.measure import describe_environment, time_interleaved, write_result
from transom.exchange.export_run import export_run
from transom.exchange.import_folder import import_folder
from transom.planning.hardware import measure_peak

CHUNK = 8 << 20
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000}
BLOCK_PARAMETERS = 2 * 1024 * (1024 + 256) + 3 * 1024 * 2816
"""Parameters of a block of these sizes, norms aside."""


def save_model(folder: Path, gigabytes: float, dtype: torch.dtype) -> int:
    """Write a Llama with random weights in files of at most 1 GB, and a tokenizer; return the bytes of its weights."""
    torch.manual_seed(1)
    layers = max(1, round((gigabytes * 1e9 / dtype.itemsize - 2 * 32000 * 1024) / BLOCK_PARAMETERS))
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=layers, tie_word_embeddings=False))
    model = model.to(dtype).to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    model.save_pretrained(folder, max_shard_size="1GB")
    library = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"</s>": 0, "<unk>": 1, "a": 2}, "unk_token": "<unk>"},
    }
    (folder / "library.json").write_text(json.dumps(library | dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))))
    PreTrainedTokenizerFast(tokenizer_file=str(folder / "library.json"), eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    (folder / "library.json").unlink()
    return sum(parameter.nbytes for parameter in model.parameters())


def forget(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(folder: Path) -> None:
    """Read the weights."""
    buffer = bytearray(CHUNK)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def copy(folder: Path, out: Path) -> None:
    """Copy the weights and wait until the disk has them, as an import does."""
    out.mkdir()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as source, (out / path.name).open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
            file.flush()
            os.fsync(file.fileno())


def child(verb: str, source: Path, out: Path) -> dict[str, float]:
    """Import or export in this process; return seconds and the growth of the largest resident memory in bytes."""
    torch.set_num_threads(1)
    before = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    (import_folder if verb == "import" else export_run)(source, out)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}


def measure(folder: Path, dtype: torch.dtype, gigabytes: float, rounds: int) -> dict[str, Any]:
    """Measure one dtype."""
    source, out = folder / "theirs", folder / "out"
    n_bytes, peaks = save_model(source, gigabytes, dtype), {"import": 0.0, "export": 0.0}
    run = folder / "run"
    import_folder(source, run)

    def fresh(action: Callable[[], float]) -> Callable[[], float]:
        def timed() -> float:
            forget(folder)
            seconds = action()
            shutil.rmtree(out, ignore_errors=True)
            return seconds

        return timed

    def clock(action: Callable[[], object]) -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    def in_child(verb: str, given: Path) -> float:
        command = [sys.executable, "-m", "benchmarks.exchange", "--child", verb, str(given), str(out)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        peaks[verb] = max(peaks[verb], found["bytes"])
        return float(found["seconds"])

    systems: dict[str, Callable[[], float]] = {
        "read": fresh(lambda: clock(lambda: read(source))),
        "copy": fresh(lambda: clock(lambda: copy(source, out))),
        "import": fresh(lambda: in_child("import", source)),
        "export": fresh(lambda: in_child("export", run)),
    }
    seconds = time_interleaved(systems, rounds, n_warmup=0)
    return {"weights": n_bytes, "seconds": {name: vars(found) for name, found in seconds.items()}} | {
        "of_read": {name: seconds["read"].median / seconds[name].median for name in systems},
        "of_copy": {name: seconds["copy"].median / seconds[name].median for name in systems},
        "peak_of_weights": {verb: peak / n_bytes for verb, peak in peaks.items()},
    }


def main(arguments: argparse.Namespace) -> None:
    """Measure float32 and bfloat16."""
    if arguments.child:
        verb, source, out = arguments.child
        print(json.dumps(child(verb, Path(source), Path(out))))
        return
    environment = describe_environment("python -m benchmarks.exchange", 1, measure_peak())
    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            results[str(dtype).removeprefix("torch.")] = measure(Path(folder), dtype, arguments.gigabytes, arguments.rounds)
    print(json.dumps(results, indent=1))
    write_result(arguments.out, {"environment": environment, "results": results})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder on the disk to measure")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    main(parser.parse_args())
