"""Measure each component in small models that differ in it alone: `python -m benchmarks.components --root data/tinyshakespeare`.

    python -m benchmarks.components [--root DIR] [--only WORD ...] [--steps N] [--list] [--out runs/components] [--results FILE]

Each component of docs/components.md has its own model, one seed, beside its family's base: a decoder of Shakespeare's characters; for
what a decoder cannot have, masked characters of the same text, recurrent networks, digits, and exercises; for what fine-tunes, exercises
from the decoder's base. A record has the loss on
validation in nats, processor milliseconds of a training step (the median; other work on the machine hardly matters), and parameters. A
record that is there for the same settings is kept, so that what was stopped goes on. One thread; about an hour and a half of one processor.
Training is short, and of one seed; the bases have three, to tell what a seed alone changes.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args

import transom
from benchmarks.measure import describe_environment
from benchmarks.training_runs import RESULTS, Record
from transom.checkpoints.run_folder import RunFolder
from transom.config.component_docs import TABLES, ComponentTable
from transom.config.recipe import dump_recipe, load_recipe
from transom.planning.hardware import measure_peak
from transom.planning.parameters import count_parameters
from transom.planning.precision import choose_threads
from transom.tasks.language.schema import LanguageRecipe
from transom.training.events import Event, StepFinished

STEPS = 400
"""Of a text model; the families take shares of them."""

COMMON_SIZES = ("model.d_model=128", "model.n_heads=4", "model.max_seq_len=128", "model.dropout=0.0")
SHAKESPEARE_SIZES = (*COMMON_SIZES, "model.n_layers=4", "training.batch_tokens=1024")


class ModelFamily(NamedTuple):
    """Models that are compared with each other.

    Attributes:
        recipe: packaged.
        fields: of the recipe that all have.
        steps: as a share of those asked for.
        start: the family whose base its models start from.
    """

    recipe: str
    fields: tuple[str, ...]
    steps: float = 1.0
    start: str | None = None


FAMILIES = {
    "decoder": ModelFamily("shakespeare-char", (*SHAKESPEARE_SIZES, "model.d_ff=344")),
    "recurrent": ModelFamily(
        "shakespeare-lstm", ("model.d_model=320", "model.n_layers=1", "model.max_seq_len=128", "training.batch_tokens=1024")
    ),
    "encoder": ModelFamily(
        "text-masked",
        (
            *SHAKESPEARE_SIZES,
            "model.d_ff=512",
            'data.train={files="input.txt", end=0.88}',
            'data.valid={files="input.txt", start=0.88, end=0.9}',
            "tokenizer.kind=char",
        ),
    ),
    "vision": ModelFamily("digits-vit", ("training.batch_size=64",)),
    "instructions": ModelFamily("exercises", ("model.mask=causal", "training.batch_tokens=1024"), 2.0),
    "translator": ModelFamily("phrasebook-lstm", ("model.d_model=96", "training.validate_bleu=0", "training.batch_tokens=1024")),
    "tuned": ModelFamily("exercises", (*COMMON_SIZES, "model.mask=causal", "training.batch_tokens=1024"), start="decoder"),
}
"""What every family's base is trained with."""

FAMILY_OF_FIELD = {
    "model.stem": "vision",
    "model.stem.attention": "vision",
    "model.mask": "instructions",
    "model.cell": "recurrent",
    "training.adapter": "tuned",
}
"""The families of the fields that a decoder's base does not show."""

RECURRENT_ATTENTION = "How a recurrent decoder sees the source"
FAMILY_OF_KIND = {"sinusoidal-2d": "vision", "window-2d": "vision", "linformer": "encoder", "nystrom": "encoder"}
"""Kinds that no decoder can have."""

OVERRIDES_OF_VALUE: dict[tuple[str, str], tuple[str, ...]] = {
    **{
        ("model.position.rope_scaling", kind): (f'model.position={{kind="rotary", rope_scaling="{kind}", factor=2.0}}',)
        for kind in ("linear", "ntk", "yarn")
    },
    ("model", "n_kv_heads"): ("model.n_kv_heads=1",),
    ("model", "attention.qk_norm"): ("model.attention.qk_norm=rmsnorm",),
    ("model", "attention.softcap"): ("model.attention.softcap=20.0",),
    ("model", "attention.sinks"): ("model.attention.sinks=true",),
    ("model", "attention.output_projection"): ("model.attention.output_projection=false",),
    **{
        ("model.attention.pattern", kind): (f"model.attention.pattern={{{fields}}}",)
        for kind, fields in {
            "window": 'kind="window", size=32',
            "window-2d": 'kind="window-2d", size=2',
            "strided": 'kind="strided", stride=11',
            "block-local": 'kind="block-local", size=32',
            "summary": 'kind="any", patterns=[{kind="block-local", size=32}, {kind="summary", stride=32, columns=4}]',
            "global": 'kind="any", patterns=[{kind="window", size=32}, {kind="global", size=4}]',
            "random": 'kind="any", patterns=[{kind="window", size=16}, {kind="random", blocks=2, size=16}]',
            "prefix": 'kind="any", patterns=[{kind="window", size=16}, "prefix"]',
            "any": 'kind="any", patterns=[{kind="window", size=16}, {kind="strided", stride=11}]',
            "all": 'kind="all", patterns=[{kind="window", size=64}, {kind="strided", stride=2}]',
            "not": 'kind="not", patterns=[{kind="global", size=4}]',
            "cycle": 'kind="cycle", patterns=[{kind="window", size=32}, "full"]',
        }.items()
    },
    ("model.feed_forward", "moe"): ('model.feed_forward={kind="moe", n_experts=4, top_k=2, d_expert=172}',),
    **{
        ("model.feed_forward", kind): (f"model.feed_forward={kind}", "model.d_ff=512")
        for kind in ("relu", "gelu", "gelu-tanh", "silu", "squared-relu")
    },
    **{
        ("model.feed_forward.load_balancing", kind): (
            f'model.feed_forward={{kind="moe", n_experts=4, top_k=2, d_expert=172, load_balancing="{kind}"}}',
        )
        for kind in ("aux-loss", "bias", "none")
    },
    **{
        ("model.stem.attention", kind): (f'model.stem={{kind="convolutional", channels=[64], attention="{kind}"}}',)
        for kind in ("none", "se", "cbam")
    },
    ("model.stem", "none"): ("model.stem=none", "model.patch_size=2"),
    ("model.stem", "convolutional"): ('model.stem={kind="convolutional", channels=[64]}',),
}
"""What a value needs beside its name, at these lengths and of equal size; all else is FIELD=KIND."""


class Variant(NamedTuple):
    """A model to train: ``name`` in the record, its family, and what differs from the family's base."""

    name: str
    family: str
    fields: tuple[str, ...]


ALL_TARGET_MODULES = ["attn.q", "attn.k", "attn.v", "attn.o", "ff.gate", "ff.up", "ff.down"]
"""Of a gated block."""

LORA_LEARNING_RATE = ("training.learning_rate=1e-2",)
"""Low-rank maps want a higher rate than whole ones."""

SEEDS = (2, 3)
"""Of the bases besides the first, to tell what a difference is worth."""

EXTRA_MODELS = (
    Variant("position rotary, share 0.25", "decoder", ("model.position.partial_rotary_factor=0.25",)),
    Variant("n_kv_heads 2", "decoder", ("model.n_kv_heads=2",)),
    *(Variant(f"position {kind}", "vision", (f"model.position={kind}",)) for kind in ("learned", "none")),
    Variant("pool cls", "vision", ("model.pooling=cls",)),
    Variant("depth mixture", "vision", ('model.depth={kind="mod", capacity=0.5}',)),
    *(Variant(f"approximation {kind}", "encoder", (f"model.attention.approximation={kind}",)) for kind in ("linear", "performer")),
    Variant("luong, dot", "translator", ('model.attention={kind="luong", score="dot"}',)),
    Variant("luong, no input feeding", "translator", ('model.attention={kind="luong", input_feeding=false}',)),
    Variant("nothing to start from", "tuned", ("training.init_from=none", "tokenizer.kind=char")),
    Variant("adapter lora, rate 1e-2", "tuned", (*LORA_LEARNING_RATE, "training.adapter=lora")),
    Variant(
        "adapter lora, rate 1e-2, all maps",
        "tuned",
        (*LORA_LEARNING_RATE, f'training.adapter={{kind="lora", target_modules={ALL_TARGET_MODULES}}}'),
    ),
)
"""Settings that no name of a component says."""


def list_kinds(table: ComponentTable) -> list[str]:
    """Name the values of a table's field."""
    return [kind for component in table.components for kind in get_args(component.model_fields["kind"].annotation)] + list(table.choices)


def list_variants() -> Iterator[Variant]:
    """List a base a family, then a model a value of the catalogue, and what has no name there."""
    for family in FAMILIES:
        yield Variant("base", family, ())
        yield from (Variant(f"base, seed {seed}", family, (f"training.seed={seed}",)) for seed in SEEDS)
    for table in TABLES:
        for kind in list_kinds(table):
            family = (
                "translator"
                if table.title == RECURRENT_ATTENTION
                else FAMILY_OF_KIND.get(kind, FAMILY_OF_FIELD.get(table.field, "decoder"))
            )
            if (table.field, kind) == ("model.attention.pattern", "prefix"):
                family = "instructions"
            default = () if table.field == "model.attention" and kind == "multihead" else (f"{table.field}={kind}",)
            yield Variant(f"{table.field.removeprefix('model.')} {kind}", family, OVERRIDES_OF_VALUE.get((table.field, kind), default))
    yield from EXTRA_MODELS


def unique_variants(steps: int, root: str) -> dict[str, tuple[Variant, list[str], list[str]]]:
    """Give the models whose recipes differ, by recipe: the first of each, its fields, and all names; a default's is the base's."""
    found = dict[str, tuple[Variant, list[str], list[str]]]()
    for model in list_variants():
        fields = overrides_of(model, steps, root)
        recipe, _ = load_recipe(FAMILIES[model.family].recipe, fields)
        found.setdefault(dump_recipe(recipe), (model, fields, []))[2].append(model.name)
    return found


def overrides_of(model: Variant, steps: int, root: str) -> list[str]:
    """Give the fields of a model's recipe."""
    family = FAMILIES[model.family]
    n = max(2, round(steps * family.steps))
    run = [f"training.max_steps={n}", f"training.validate_every={n}", f"training.checkpoint_every={n}"]
    run += ["training.learning_rate=2e-3", f'training.schedule={{kind="cosine", warmup_steps={max(1, n // 10)}, min_lr_ratio=0.02}}']
    run += ["training.average=none", "training.precision=fp32", "training.seed=1", "training.log_every=1000"]
    run += ["training.validate_samples=0"] * (model.family != "translator")
    data = [f"data.root={root}"] if model.family in ("decoder", "recurrent", "encoder") else []
    start = [f"training.init_from={family.start}"] if family.start else []
    return [*family.fields, *run, *data, *start, *model.fields]


def train_and_measure(model: Variant, fields: list[str], folder: Path) -> Record:
    """Train a model and say what it learnt and took; a family that starts from another's base finds that one's run beside the folder."""
    family = FAMILIES[model.family]
    start = {f"training.init_from={family.start}": f"training.init_from={(folder.parent / str(family.start)).resolve()}"}
    fields = [start.get(field, field) for field in fields]
    step_end_times = list[float]()

    def callback(event: Event) -> None:
        if isinstance(event, StepFinished):
            step_end_times.append(time.process_time())

    run = transom.train(family.recipe, folder, fields, overwrite=True, callbacks=[callback])
    if run.reason == "stopped":
        print("stopped; what was recorded is kept, and the same command goes on", file=sys.stderr)
        sys.exit(run.exit_code)
    step_times = [after - before for before, after in pairwise(step_end_times)]
    found = {name: round(value, 4) for name, value in run.best.items() if name in ("loss", "accuracy")}
    config = RunFolder.open(folder).load_config()
    return {
        "n_steps": run.step,
        "validation": found,
        "milliseconds_a_step": round(1e3 * statistics.median(step_times), 1),
        "parameters": count_parameters(config).total,
        **({"exits": measure_early_exits(folder)} if any(field.startswith("training.early_exit_loss") for field in model.fields) else {}),
    }


EXIT_THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Of early exits."""


def measure_early_exits(folder: Path, n_tokens: int = 96, n_texts: int = 16) -> list[dict[str, float]]:
    """Read validation text token by token, each token stopping where it is sure: nats, and blocks saved, a threshold."""
    import torch

    from transom.data.batch import PaddedSequences
    from transom.data.text.documents import load_text
    from transom.decoding.predictors.generator import Generator
    from transom.decoding.search.early_exit import EarlyExitDecoder
    from transom.tasks.load import load_as

    recipe, base = load_recipe(folder / "recipe.toml")
    assert isinstance(recipe, LanguageRecipe)
    generator = load_as(Generator, folder)
    codes = generator.tokenizer.encode("".join(load_text(recipe.data, base).valid.texts)[: 2 * n_tokens * n_texts])
    rows = torch.tensor(codes[: (n_tokens + 1) * n_texts]).view(n_texts, n_tokens + 1)
    found = []
    for threshold in EXIT_THRESHOLDS:
        steps = EarlyExitDecoder.of(generator.model, threshold if threshold < 1 else 2.0)  # no token is ever as sure as 2
        cache = steps.start(PaddedSequences.pad(rows[:, :1].tolist()), 1, n_tokens)
        logits = torch.cat([steps.step(rows[:, i : i + 1], cache) for i in range(n_tokens)], 1)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten()).item()
        found.append({"threshold": threshold, "loss": round(loss, 4), "blocks": round(steps.mean_exit_depth, 2)})
    return found


def parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.components", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", default="data/tinyshakespeare", help="folder of input.txt")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="models whose family and name hold one of these")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a text model; others in proportion")
    parser.add_argument("--list", action="store_true", help="name the models and train none")
    parser.add_argument("--out", type=Path, default=Path("runs/components"), help="folder for the runs")
    parser.add_argument("--results", type=Path, default=RESULTS / "components.json", help="JSON file of the records")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Train what has no record yet."""
    args = parser().parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    every = list(unique_variants(args.steps, args.root).values())
    wanted = [one for one in every if not args.only or any(word in f"{one[0].family} {name}" for word in args.only for name in one[2])]
    if args.list:
        print("\n".join(f"{model.family}: {', '.join(names)}" for model, _, names in wanted))
        return
    result: dict[str, Any] = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else {"rows": []}
    kept = [(row["family"], row["settings"]) for row in result["rows"]]
    pending = [(model, fields, names) for model, fields, names in wanted if (model.family, fields) not in kept]
    command = "python -m benchmarks.components " + " ".join(arguments if arguments is not None else sys.argv[1:])
    result["facts"] = describe_environment(command.strip(), choose_threads().count, measure_peak())
    for start in {family for model, _, _ in pending if (family := FAMILIES[model.family].start)}:
        base = Variant("base", start, ())
        train_and_measure(base, overrides_of(base, args.steps, args.root), args.out / start)
    start = time.monotonic()
    for n, (model, fields, names) in enumerate(pending, 1):
        record = {"family": model.family, "names": names, **train_and_measure(model, fields, args.out / "run")}
        others = [row for row in result["rows"] if (row["family"], row["names"][0]) != (model.family, model.name)]
        result["rows"] = [*others, record | {"settings": fields}]
        args.results.parent.mkdir(parents=True, exist_ok=True)
        args.results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        left = (time.monotonic() - start) / n * (len(pending) - n) / 60
        print(
            f"{n} of {len(pending)}: {model.family}, {model.name}: {record['validation']}, {record['milliseconds_a_step']} ms a step,"
            f" {record['parameters']:,} parameters; about {left:.0f} minutes left",
            flush=True,
        )


if __name__ == "__main__":
    main()
