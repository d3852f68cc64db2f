"""Train small models that differ from a base model in one component each: `python -m benchmarks.components --root data/tinyshakespeare`.

    python -m benchmarks.components [--root DIR] [--only WORD ...] [--steps N] [--list] [--out runs/components] [--results FILE]

Every component of docs/components.md is trained in one small model and compared with the base model of its family. Most components are
measured in a character-level decoder on Shakespeare. The others are measured in a masked language model on the same text, in recurrent
networks, in a ViT on digits, on generated exercises, or in a translator. Adapters fine-tune the base decoder on exercises.

A record has the validation loss in nats, the median CPU time of a training step in milliseconds, and the number of parameters. CPU time
hardly depends on other work on the machine. Models that already have a record with the same settings are skipped, so an interrupted run can
be continued. All models take about 90 minutes on one core. Training is short and uses one seed; the base models have three seeds, to show
the variation between seeds.
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
"""Default training steps; a family may scale them."""

COMMON_SIZES = ("model.d_model=128", "model.n_heads=4", "model.max_seq_len=128", "model.dropout=0.0")
SHAKESPEARE_SIZES = (*COMMON_SIZES, "model.n_layers=4", "training.batch_tokens=1024")


class ModelFamily(NamedTuple):
    """A base model and the training of all models compared with it.

    Attributes:
        recipe: name of a packaged recipe.
        fields: recipe overrides of all models.
        step_factor: training steps relative to ``--steps``.
        init_from: the family whose base model is fine-tuned, None to train from scratch.
    """

    recipe: str
    fields: tuple[str, ...]
    step_factor: float = 1.0
    init_from: str | None = None


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
    "fine-tuning": ModelFamily("exercises", (*COMMON_SIZES, "model.mask=causal", "training.batch_tokens=1024"), init_from="decoder"),
}
"""The base models, by family."""

FAMILY_OF_FIELD = {
    "model.stem": "vision",
    "model.stem.attention": "vision",
    "model.mask": "instructions",
    "model.cell": "recurrent",
    "training.adapter": "fine-tuning",
}
"""Families of the recipe fields that do not apply to the base decoder."""

FAMILY_OF_KIND = {"sinusoidal-2d": "vision", "window-2d": "vision", "linformer": "encoder", "nystrom": "encoder"}
"""Families of the component kinds that do not apply to a decoder."""

OVERRIDES_OF_VALUE: dict[tuple[str, str], tuple[str, ...]] = {
    **{
        ("model.position.rope_scaling", kind): (f'model.position={{kind="rotary", rope_scaling="{kind}", factor=2.0}}',)
        for kind in ("linear", "ntk", "yarn")
    },
    **{
        ("model.position.rope_scaling", kind): (f'model.position={{kind="rotary", rope_scaling={{{fields}}}}}',)
        for kind, fields in {
            "dynamic": 'kind="dynamic", factor=2.0',
            "llama3": 'kind="llama3", factor=2.0',
            "longrope": f'kind="longrope", short_factor={[1.0] * 16}, long_factor={[1.0] * 8 + [2.0] * 8}, original_max_seq_len=64',
            "cycle": 'kind="cycle", scalings=["none", {kind="linear", factor=2.0}]',
        }.items()
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
"""Recipe overrides of components that need more than FIELD=KIND, chosen for these lengths and, where possible, for an equal size."""


class Variant(NamedTuple):
    """A model to train.

    Attributes:
        name: name in the record.
        family: key of ``FAMILIES``.
        fields: recipe overrides that differ from the family's base model.
    """

    name: str
    family: str
    fields: tuple[str, ...]


ALL_TARGET_MODULES = ["attn.q", "attn.k", "attn.v", "attn.o", "ff.gate", "ff.up", "ff.down"]
"""All linear layers of a gated block."""

LORA_LEARNING_RATE = ("training.learning_rate=1e-2",)
"""LoRA needs a higher learning rate than full fine-tuning."""

EXTRA_SEEDS = (2, 3)
"""Further seeds of the base models, which show the variation between seeds."""

EXTRA_MODELS = (
    Variant("position rotary, partial_rotary_factor 0.25", "decoder", ("model.position.partial_rotary_factor=0.25",)),
    Variant("n_kv_heads 2", "decoder", ("model.n_kv_heads=2",)),
    *(Variant(f"position {kind}", "vision", (f"model.position={kind}",)) for kind in ("learned", "none")),
    Variant("pooling cls", "vision", ("model.pooling=cls",)),
    Variant("depth mod", "vision", ('model.depth={kind="mod", capacity=0.5}',)),
    *(Variant(f"approximation {kind}", "encoder", (f"model.attention.approximation={kind}",)) for kind in ("linear", "performer")),
    Variant("luong, dot", "translator", ('model.attention={kind="luong", score="dot"}',)),
    Variant("luong, no input feeding", "translator", ('model.attention={kind="luong", input_feeding=false}',)),
    Variant("from scratch", "fine-tuning", ("training.init_from=none", "tokenizer.kind=char")),
    Variant("adapter lora, learning rate 1e-2", "fine-tuning", (*LORA_LEARNING_RATE, "training.adapter=lora")),
    Variant(
        "adapter lora, learning rate 1e-2, all linear layers",
        "fine-tuning",
        (*LORA_LEARNING_RATE, f'training.adapter={{kind="lora", target_modules={ALL_TARGET_MODULES}}}'),
    ),
)
"""Models that no component of docs/components.md determines."""


def list_kinds(table: ComponentTable) -> list[str]:
    """Return the values of a table's recipe field."""
    return [kind for component in table.components for kind in get_args(component.model_fields["kind"].annotation)] + list(table.choices)


def list_variants() -> Iterator[Variant]:
    """Yield the base models, one model per component of docs/components.md, and the extra models."""
    for family in FAMILIES:
        yield Variant("base", family, ())
        yield from (Variant(f"base, seed {seed}", family, (f"training.seed={seed}",)) for seed in EXTRA_SEEDS)
    for table in TABLES:
        for kind in list_kinds(table):
            family = (
                "translator"
                if table.slots == ("source_attention",)
                else FAMILY_OF_KIND.get(kind, FAMILY_OF_FIELD.get(table.field, "decoder"))
            )
            if (table.field, kind) == ("model.attention.pattern", "prefix"):
                family = "instructions"
            default = () if table.field == "model.attention" and kind == "multihead" else (f"{table.field}={kind}",)
            yield Variant(f"{table.field.removeprefix('model.')} {kind}", family, OVERRIDES_OF_VALUE.get((table.field, kind), default))
    yield from EXTRA_MODELS


def unique_variants(steps: int, root: str) -> dict[str, tuple[Variant, list[str], list[str]]]:
    """Group the models with equal recipes; return (first model, its recipe overrides, names of all) by recipe.

    A component that is the default has the recipe of the base model.
    """
    variants = dict[str, tuple[Variant, list[str], list[str]]]()
    for model in list_variants():
        fields = overrides_of(model, steps, root)
        recipe, _ = load_recipe(FAMILIES[model.family].recipe, fields)
        variants.setdefault(dump_recipe(recipe), (model, fields, []))[2].append(model.name)
    return variants


def overrides_of(model: Variant, steps: int, root: str) -> list[str]:
    """Return all recipe overrides of a model."""
    family = FAMILIES[model.family]
    n = max(2, round(steps * family.step_factor))
    run = [f"training.max_steps={n}", f"training.validate_every={n}", f"training.checkpoint_every={n}"]
    run += ["training.learning_rate=2e-3", f'training.schedule={{kind="cosine", warmup_steps={max(1, n // 10)}, min_lr_ratio=0.02}}']
    run += ["training.average=none", "training.precision=fp32", "training.seed=1", "training.log_every=1000"]
    run += ["training.validate_samples=0"] * (model.family != "translator")
    data = [f"data.root={root}"] if model.family in ("decoder", "recurrent", "encoder") else []
    init_from = [f"training.init_from={family.init_from}"] if family.init_from else []
    return [*family.fields, *run, *data, *init_from, *model.fields]


def train_and_measure(model: Variant, fields: list[str], folder: Path) -> Record:
    """Train a model and return its record; a fine-tuned model starts from the base model's run in the same parent folder."""
    family = FAMILIES[model.family]
    resolved = {f"training.init_from={family.init_from}": f"training.init_from={(folder.parent / str(family.init_from)).resolve()}"}
    fields = [resolved.get(field, field) for field in fields]
    step_end_times = list[float]()

    def callback(event: Event) -> None:
        if isinstance(event, StepFinished):
            step_end_times.append(time.process_time())

    run = transom.train(family.recipe, folder, fields, overwrite=True, callbacks=[callback])
    if run.reason == "stopped":
        print("stopped; finished models are recorded, and the same command continues with the others", file=sys.stderr)
        sys.exit(run.exit_code)
    step_times = [after - before for before, after in pairwise(step_end_times)]
    validation = {name: round(value, 4) for name, value in run.best.items() if name in ("loss", "accuracy")}
    config = RunFolder.open(folder).load_config()
    return {
        "n_steps": run.step,
        "validation": validation,
        "ms_per_step": round(1e3 * statistics.median(step_times), 1),
        "parameters": count_parameters(config).total,
        **(
            {"early_exit": measure_early_exits(folder)}
            if any(field.startswith("training.early_exit_loss") for field in model.fields)
            else {}
        ),
    }


EXIT_THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Confidence thresholds of early exit."""


def measure_early_exits(folder: Path, n_tokens: int = 96, n_texts: int = 16) -> list[dict[str, float]]:
    """Score validation text token by token with early exit; return the loss in nats per token and the mean exit depth per threshold."""
    import torch

    from transom.data.batch import PaddedSequences
    from transom.data.text.documents import load_text
    from transom.decoding.predictors.generator import Generator
    from transom.decoding.search.early_exit import EarlyExitDecoder
    from transom.tasks.load import load

    recipe, base = load_recipe(folder / "recipe.toml")
    assert isinstance(recipe, LanguageRecipe)
    generator = load(folder, kind=Generator)
    codes = generator.tokenizer.encode("".join(load_text(recipe.data, base).valid.texts)[: 2 * n_tokens * n_texts])
    rows = torch.tensor(codes[: (n_tokens + 1) * n_texts]).view(n_texts, n_tokens + 1)
    results = []
    for threshold in EXIT_THRESHOLDS:
        decoder = EarlyExitDecoder.of(generator.model, threshold if threshold < 1 else 2.0)  # confidence never reaches 2: full depth
        cache = decoder.start(PaddedSequences.pad(rows[:, :1].tolist()), 1, n_tokens)
        logits = torch.cat([decoder.step(rows[:, i : i + 1], cache) for i in range(n_tokens)], 1)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten()).item()
        results.append({"threshold": threshold, "loss": round(loss, 4), "blocks": round(decoder.mean_exit_depth, 2)})
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.components", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", default="data/tinyshakespeare", help="folder with input.txt")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="models whose family or name contains one of these words")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps; some families scale them")
    parser.add_argument("--list", action="store_true", help="list the models without training them")
    parser.add_argument("--out", type=Path, default=Path("runs/components"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS / "components.json", help="JSON file of the records")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Train the selected models that have no record yet and write their records."""
    args = _parser().parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    selected = [
        (model, fields, names)
        for model, fields, names in unique_variants(args.steps, args.root).values()
        if not args.only or any(word in f"{model.family} {name}" for word in args.only for name in names)
    ]
    if args.list:
        print("\n".join(f"{model.family}: {', '.join(names)}" for model, _, names in selected))
        return
    result: dict[str, Any] = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else {"rows": []}
    recorded = [(row["family"], row["settings"]) for row in result["rows"]]
    pending = [(model, fields, names) for model, fields, names in selected if (model.family, fields) not in recorded]
    command = "python -m benchmarks.components " + " ".join(arguments if arguments is not None else sys.argv[1:])
    facts = describe_environment(command.strip(), choose_threads().count, measure_peak())
    elsewhere = result.get("facts", facts)["processor"] != facts["processor"]  # the records keep the processor that measured them
    own = {"facts": facts} if elsewhere else {}
    result["facts"] = result["facts"] if elsewhere else facts
    for family in {init_from for model, _, _ in pending if (init_from := FAMILIES[model.family].init_from)}:
        base = Variant("base", family, ())
        train_and_measure(base, overrides_of(base, args.steps, args.root), args.out / family)
    start = time.monotonic()
    for n, (model, fields, names) in enumerate(pending, 1):
        record = {"family": model.family, "names": names, **train_and_measure(model, fields, args.out / "run")}
        others = [row for row in result["rows"] if (row["family"], row["names"][0]) != (model.family, model.name)]
        result["rows"] = [*others, record | {"settings": fields} | own]
        args.results.parent.mkdir(parents=True, exist_ok=True)
        args.results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        minutes_left = (time.monotonic() - start) / n * (len(pending) - n) / 60
        print(
            f"{n} of {len(pending)}: {model.family}, {model.name}: {record['validation']}, {record['ms_per_step']} ms per step,"
            f" {record['parameters']:,} parameters; about {minutes_left:.0f} minutes left",
            flush=True,
        )


if __name__ == "__main__":
    main()
