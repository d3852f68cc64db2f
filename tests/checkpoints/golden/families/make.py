"""Make the golden run of each task and special family of models. See README.md; beside each run stands what it must do."""

import hashlib
import json
import math
import platform
import shutil
import signal
import struct
import sys
import tempfile
import wave
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import transom
from transom.checkpoints.metrics_log import MetricsLog

HERE = Path(__file__).parent
DATA = HERE / "data"
MIDDLE, END = 3, 6
"""Steps of the checkpoint that a golden run stopped at, and of the whole training."""

ANIMALS = {"dog": "perro", "cat": "gato", "bird": "ave"}
COLORS = {"red": "rojo", "green": "verde", "blue": "azul"}
COMMANDS = {"runs": "corre", "sleeps": "duerme"}

SHAPE = {"d_model": 8, "n_heads": 2, "d_ff": 8, "max_seq_len": 12, "dropout": 0.1}
DECODER: dict[str, Any] = SHAPE | {"n_layers": 1, "position": "rotary", "norm": "rmsnorm", "norm_placement": "pre"}
ENCODER: dict[str, Any] = SHAPE | {"n_layers": 1}
TRAINING: dict[str, Any] = {
    "max_steps": END,
    "batch_tokens": 48,
    "learning_rate": 0.01,
    "schedule": {"kind": "cosine", "warmup_steps": 2},
    "optimizer": {"kind": "adamw", "eps": 1e-4},  # above the rounding of gradients that are 0 by the equation, as those of key biases
    "precision": "fp32",
    "validate_every": MIDDLE,
    "checkpoint_every": MIDDLE,
    "log_every": 1,
}
WORDS = {"kind": "whitespace", "vocab_size": 40}


def _recipe(task: str, model: Mapping[str, Any], files: Callable[[str], Any], **training: Any) -> dict[str, Any]:
    """Describe a training on the files that ``files`` names for a part of the data; images have no tokens."""
    tables: dict[str, Any] = {"task": task, "data": {part: files(part) for part in ("train", "valid")}, "model": dict(model)}
    if task in ("image-classification", "audio-classification"):
        return tables | {"training": {name: x for name, x in TRAINING.items() if name != "batch_tokens"} | training}
    return tables | {"tokenizer": WORDS, "training": TRAINING | training}


def _pairs(part: str) -> dict[str, str]:
    return {"pairs": f"{part}.tsv"}


def _text(part: str) -> dict[str, str]:
    return {"files": f"{part}.txt", "document": "line"}


def _labeled(part: str) -> dict[str, str]:
    return {"file": f"{part}-classes.tsv"}


def _answers(part: str) -> dict[str, str]:
    return {"file": f"{part}.jsonl"}


def _photos(part: str) -> dict[str, str]:
    return {"images": f"{part}-images"}


def _tagged(part: str) -> dict[str, str]:
    return {"file": f"{part}.tagged"}


def _sounds(part: str) -> dict[str, str]:
    return {"audio": f"{part}-sounds"}


def _language(model: Mapping[str, Any], **training: Any) -> dict[str, Any]:
    return _recipe("language", model, _text, **training)


LAST_TWO = {"kind": "checkpoints", "n_checkpoints": 2}
MUON = {"kind": "muon", "eps": 1e-4}
RECIPES: dict[str, dict[str, Any]] = {
    "translation": _recipe(
        "translation", SHAPE | {"n_encoder_layers": 1, "n_decoder_layers": 1}, _pairs, average=LAST_TWO, grad_accum_steps=2, validate_bleu=2
    ),
    "language": _language(DECODER | {"feed_forward": "swiglu"}, r_drop=1.0),
    "instruction": _recipe("instruction", DECODER | {"mask": "prefix-lm"}, _answers, optimizer=MUON),
    "masked": _recipe("masked", ENCODER | {"position": "relative"}, _text),
    "classification": _recipe("classification", ENCODER | {"pooler_dropout": 0.1}, _labeled, r_drop=1.0),
    "embedding": _recipe("embedding", ENCODER, _pairs),
    "image-classification": _recipe(
        "image-classification",
        {name: x for name, x in ENCODER.items() if name != "max_seq_len"}
        | {"image_size": 8, "patch_size": 2, "channels": 1, "stem": {"kind": "convolutional", "channels": [4], "attention": "cbam"}},
        _photos,
        batch_size=8,
        optimizer=MUON,
        augmentation={"shift": 1, "randaugment": 1, "mixup": 0.2, "cutmix": 1.0},
    ),
    "convolutional": _recipe(
        "image-classification",
        {"kind": "convolutional", "image_size": 8, "channels": 1, "d_model": 8, "stem": {"channels": [4, 4], "attention": "se"}},
        _photos,
        batch_size=8,
    ),
    "recurrent-translation": _recipe(
        "translation",
        {"kind": "recurrent-seq2seq", "cell": "lstm", "attention": "additive", "d_model": 6, "max_seq_len": 12, "dropout": 0.1},
        _pairs,
        average="none",
        validate_bleu=2,
    ),
    "recurrent-language": _language(
        {"kind": "recurrent-decoder", "cell": "gru", "d_model": 8, "n_layers": 2, "max_seq_len": 12, "dropout": 0.1}
    ),
    "value-residual": _language(
        DECODER | {"n_layers": 2, "attention": {"value_residual": "learned", "sinks": True, "softcap": 5.0, "qk_norm": "rmsnorm"}}
    ),
    "experts-loss": _language(
        DECODER | {"feed_forward": {"kind": "moe", "n_experts": 3, "load_balancing": "aux-loss"}}, grad_accum_steps=2
    ),
    "experts-bias": _language(
        DECODER | {"feed_forward": {"kind": "moe", "n_experts": 3, "scoring_func": "sigmoid", "load_balancing": "bias"}}
    ),
    "depths": _language(DECODER | {"n_layers": 2, "depth": {"kind": "mod", "capacity": 0.5}}),
    "exits": _language(DECODER | {"n_layers": 2}, early_exit_loss={"kind": "linear"}),
    "batchnorm": _recipe("classification", ENCODER | {"norm": "batchnorm"}, _labeled),
    "performer": _language(DECODER | {"attention": {"approximation": {"kind": "performer", "n_features": 4}}}),
    "ema": _language(DECODER, average={"kind": "ema", "decay": 0.9}, optimizer="sgd"),
    "tagging": _recipe("tagging", ENCODER | {"classifier_dropout": 0.1}, _tagged, r_drop=1.0, grad_accum_steps=2),
    "audio-classification": _recipe(
        "audio-classification",
        {name: x for name, x in ENCODER.items() if name != "max_seq_len"}
        | {"image_size": 8, "patch_size": 4, "seconds": 0.128, "sample_rate": 8000, "n_fft": 128},
        _sounds,
        batch_size=8,
        augmentation={"freq_mask_param": 2, "time_mask_param": 2},
    ),
    "rotary": _language(
        DECODER
        | {
            "d_model": 16,
            "position": {
                "kind": "rotary",
                "partial_rotary_factor": 0.5,
                "rope_theta": 5e3,
                "rope_scaling": "yarn",
                "factor": 2.0,
                "original_max_seq_len": 6,
            },
            "n_kv_heads": 1,
            "attention": {"pattern": {"kind": "window", "size": 4}},
        },
        max_grad_norm=0.5,
        schedule={"kind": "cosine", "warmup_steps": 2, "min_lr_ratio": 0.2},
    ),
    "masked-more": _recipe("masked", ENCODER, _text, mlm_probability=0.3),
    "lora-on": _language({}, init_from="language", adapter={"kind": "lora", "rank": 2, "target_modules": ["ff.up", "attn.o"]}),
    "lora": _language({}, init_from="language", adapter={"kind": "lora", "rank": 2, "dropout": 0.1}),
}
"""A training of each; one that starts from another golden run comes after it."""


def write_data() -> None:
    """Write a handful of examples for each task."""
    DATA.mkdir()
    lines = [
        (f"{color} {animal} {command}", f"{its_animal} {its_color} {its_command}")
        for color, its_color in COLORS.items()
        for animal, its_animal in ANIMALS.items()
        for command, its_command in COMMANDS.items()
    ]
    for part, chosen in {"train": [line for n, line in enumerate(lines) if n % 5], "valid": lines[::5]}.items():
        rows = [*zip(*chosen, strict=True)]
        (DATA / f"{part}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in chosen))
        (DATA / f"{part}.txt").write_text("".join(f"{a}\n" for a in rows[0]))
        (DATA / f"{part}-classes.tsv").write_text("".join(f"{a}\t{a.split()[1]}\n" for a in rows[0]))
        (DATA / f"{part}.jsonl").write_text("".join(json.dumps({"prompt": a, "answer": b}) + "\n" for a, b in chosen))
        for number in range(len(chosen)):
            image = Image.new("L", (8, 8), 40)
            place = 1 + number % 5
            image.paste(200 + number, (0, place, 8, place + 2) if number % 2 else (place, 0, place + 2, 8))
            file = DATA / f"{part}-images" / ("lying" if number % 2 else "standing") / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            image.save(file)


def write_tags_and_sounds() -> None:
    """Write tagged sentences and sounds of two classes, likewise."""
    tags = {**dict.fromkeys(COLORS, "B-COLOR"), **dict.fromkeys(ANIMALS, "B-ANIMAL")}
    for part in ("train", "valid"):
        lines = (DATA / f"{part}.txt").read_text().splitlines()
        (DATA / f"{part}.tagged").write_text(
            "\n".join("".join(f"{word} {tags.get(word, 'O')}\n" for word in line.split()) for line in lines)
        )
        for number in range(len(lines)):
            name, pitch = ("high", 1200) if number % 2 else ("low", 300)
            values = [round(9000 * math.sin(2 * math.pi * (pitch + 20 * number) * n / 8000)) for n in range(1200)]
            file = DATA / f"{part}-sounds" / name / f"{number}.wav"
            file.parent.mkdir(parents=True, exist_ok=True)
            with wave.open(str(file), "wb") as sound:
                sound.setparams((1, 2, 8000, len(values), "NONE", ""))
                sound.writeframes(struct.pack(f"<{len(values)}h", *values))


def where_from(folder: Path) -> list[str]:
    """Return the override that tells a run where the examples lie by now."""
    return [f"data.root={json.dumps(str(folder))}"]


def answers(run: Path) -> dict[str, Any]:
    """Answer with a run's model, in float32: words, and numbers under "numbers"."""
    found: Any = transom.load(run, precision="fp32")
    source, target = "red cat sleeps", "gato rojo duerme"
    if hasattr(found, "translate"):
        best = found.n_best([source], 2)[0]
        scores = [x.log_p for x in best] + [found.score([source], [target])[0].log_p]
        return {"words": [x.text for x in best], "numbers": scores}
    if hasattr(found, "generate"):
        words = found.generate([source], temperature=0.0, max_new_tokens=6) + found.generate(["blue"], temperature=0.9, seed=1)
        return {"words": words, "numbers": [x.log_p for x in found.score([source, target])]}
    if hasattr(found, "fill"):
        gaps = found.fill(["red [MASK] sleeps"], top_k=4)[0][0]
        return {"words": [x.text for x in gaps], "numbers": [x.p for x in gaps]}
    if hasattr(found, "tag"):
        tagged = found.tag([source, "blue bird runs"])
        return {"words": [tag for x in tagged for tag in x.tags], "numbers": [p for x in tagged for p in x.p]}
    if not hasattr(found, "classify"):
        return {"words": [], "numbers": found.embed([source, target]).flatten().tolist()}
    files = {"image": sorted((DATA / "valid-images").rglob("*.png")), "sound": sorted((DATA / "valid-sounds").rglob("*.wav"))}
    classes = found.classify(files.get(getattr(found, "NOUN", ""), [source, "blue bird runs"])[:2])
    return {"words": [x.label for x in classes], "numbers": [p for x in classes for _, p in sorted(x.probabilities.items())]}


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Hash the names, types, shapes and bytes of tensors."""
    found = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        found.update(f"{name} {x.dtype} {[*x.shape]}\n".encode() + x.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def files_at_end(run: Path) -> Iterable[Path]:
    """List the files of tensors that a whole training leaves, without those of the checkpoint it went on from."""
    return sorted([*run.glob("*.safetensors"), *(run / "checkpoints" / f"step-{END}").glob("*.safetensors")])


def hashes_at_end(run: Path, former: Mapping[str, str] | None = None) -> dict[str, str]:
    """Hash what a whole training leaves: each file of tensors by its path.

    Args:
        run: its folder.
        former: the names that weights had in an earlier format, by their present ones; an optimizer's tensors begin with them.
    """

    def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        begins = {name: next((n for n in former or {} if name.startswith(n)), "") for name in tensors}
        return {(former or {}).get(begin, "") + name.removeprefix(begin): tensors[name] for name, begin in begins.items()}

    return {path.relative_to(run).as_posix(): fingerprint(named(load_file(path))) for path in files_at_end(run)}


def metrics(run: Path) -> list[dict[str, float]]:
    """Read the figures of a run's history, without what depends on the clock."""
    timed = {"seconds", "target_tokens_per_second", "matmul_utilization", "seconds_per_step", "peak_memory", "needed_memory"}
    records = MetricsLog(run / "metrics.jsonl").read()
    return [{name: x for name, x in record.items() if isinstance(x, float) and name not in timed} for record in records]


def machine() -> dict[str, str]:
    """Name what decides the last bits of a training."""
    known: dict[str, str] = {}
    if (about := Path("/proc/cpuinfo")).exists():
        named = [line.partition(":") for line in about.read_text().partition("\n\n")[0].splitlines()]
        known = {name.strip(): x.strip() for name, _, x in named if name.strip() in ("vendor_id", "cpu family", "model")}
    return {"torch": torch.__version__, "kind": platform.machine(), "uses": torch.backends.cpu.get_cpu_capability()} | known


def _stop(event: Any) -> None:
    if type(event).__name__ == "Validated" and event.step == MIDDLE:
        signal.raise_signal(signal.SIGTERM)


def _train(recipe: Mapping[str, Any], out: Path, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "golden.toml"
        file.write_text(tomli_w.dumps(recipe))
        transom.train(file, out, where_from(DATA), **options)


def make(name: str) -> None:
    """Train a run whole, note how it ends, and keep another one that stopped in the middle."""
    run, recipe = HERE / name, RECIPES[name]
    assert not run.exists(), f"{run} is there already; a golden folder is never replaced"
    origin = recipe["training"].get("init_from")
    if origin is not None:
        recipe = recipe | {"training": recipe["training"] | {"init_from": str(HERE / origin)}}
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        _train(recipe, whole)
        _train(recipe, run, callbacks=[_stop])
        (run / ".transom.lock").unlink()
        shutil.rmtree(run / "checkpoints" / f"step-{MIDDLE + 1}")  # of the step that was under way: as a killed run leaves it
        weights = load_file(whole / "checkpoints" / f"step-{END}" / "model.safetensors")
        ends = {"hashes": hashes_at_end(whole), "metrics": metrics(whole), "answers": answers(whole)}
    written = run / "recipe.toml"  # the run's id has no folder of data in it
    plain = written.read_text().replace(json.dumps(str(DATA)), '"/"').replace(json.dumps(str(HERE / str(origin))), '"/origin"')
    written.write_text(plain)
    save_file(weights, HERE / f"{name}-end.safetensors")
    told = {"machine": machine(), "answers": answers(run), "end": ends}
    (HERE / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    shutil.copytree(run, again := Path(tempfile.mkdtemp()) / "again")
    transom.train(again / "recipe.toml", again, where_from(DATA), resume=True)
    assert hashes_at_end(again) == ends["hashes"], f"{name}: resumed, it does not end as the whole training"
    shutil.rmtree(again.parent)


if __name__ == "__main__":
    if not DATA.exists():
        write_data()
    if not (DATA / "train.tagged").exists():
        write_tags_and_sounds()
    for each in sys.argv[1:] or [name for name in RECIPES if not (HERE / name).exists()]:
        make(each)
        print(each, flush=True)
