"""``transom plan``: what a training needs, before it starts."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import SetOption, expand_options
from transom.cli.output import JsonOption, print_result
from transom.cli.pictures import check_picture_path, save_picture
from transom.config.packaged import packaged_presets, packaged_recipes
from transom.config.suggestions import suggest
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.config.architecture import ModelConfig
    from transom.config.parallel import ParallelConfig
    from transom.config.training import TrainingConfig
    from transom.training.plan_run import PlanOptions

EXAMPLES = """
transom plan shakespeare-char --vocab-size 65
transom plan gpt2 --gpus 8 --gpu-memory 80GiB --flops-per-second 1e15
transom plan llama-3-8b --gpus 64 --gpu-memory 80GiB --shard full --batch-tokens 4194304 --tokens 1e12
transom plan translation --set model.d_model=512 --plot plan.svg
transom plan my.toml --json
transom plan --check runs/mine
"""

app = typer.Typer(add_completion=False)

CHECK_SECONDS = 10.0
"""Seconds for which steps are measured to predict the time of a run."""


class PlanChoices(NamedTuple):
    """Options that say what is planned; None for a default."""

    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab-size", min=1, help="Symbols of each vocabulary. Default: those of the article, or tokenizer.vocab_size of the recipe."
        ),
    ]
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, help="Tokens per sequence. Default: model.max_seq_len; 64 per side of a pair of texts."),
    ]
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens",
            min=1,
            help="Tokens, or images, per step on all GPUs together. Default: those of the recipe, at least a row per GPU.",
        ),
    ]
    precision: Annotated[
        Literal["bf16", "fp32"] | None, typer.Option("--precision", help="Data type of matrix products. Default: this machine's choice.")
    ]
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="Number of devices that share each batch. Default: 1.")]
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", metavar="SIZE", help="Memory of one device, such as 80GiB. Default: this machine's.")
    ]
    shard: Annotated[
        Literal["none", "optimizer", "full"] | None,
        typer.Option("--shard", help="What devices divide: nothing, the optimizer state, or also weights and gradients. Default: none."),
    ]
    tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens", min=1, help="Tokens, or images, of the training, such as 3e11. Default: those of the article, or steps times batch."
        ),
    ]
    utilization: Annotated[
        float | None,
        typer.Option("--utilization", min=0.001, max=1, help="Fraction of the peak rate that training reaches. Default: 0.4."),
    ]
    flops_per_second: Annotated[
        float | None,
        typer.Option("--flops-per-second", min=1, help="Peak rate of one device, such as 1e15. Default: measured on this machine."),
    ]

    def build(self) -> "PlanOptions":
        """Return the choices as those of ``plan_run``."""
        from transom.training.plan_run import PlanOptions

        return PlanOptions(
            context=self.context,
            batch=self.batch_tokens,
            precision=self.precision,
            devices=self.gpus or 1,
            device_bytes=parse_bytes(self.gpu_memory, "--gpu-memory"),
            sharding=self.shard or "none",
            tokens=None if self.tokens is None else int(self.tokens),
            utilization=self.utilization,
            flops_per_second=self.flops_per_second,
            on_cpu=self.gpus is None and self.gpu_memory is None,
        )


@app.command()
@expand_options
def plan(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME_OR_FILE", help="Published architecture, packaged recipe, or path of a recipe.", show_default=False),
    ] = None,
    overrides: SetOption = None,
    *,
    options: PlanChoices,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw where bytes and operations go: .svg, .png, .html or .csv.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="RUN", help="Compare the plan of a finished run with what it used."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute parameters, FLOPs, memory and time of a training before it starts. Neither weights nor activations are allocated.

    Parameters are those of the model that would be built. Activations are found by running one step of the model's own layers on tensors
    that have shapes and no values. Times are FLOPs / (peak rate x utilization). --shard is arithmetic for any cluster; transom rehearse
    plans a layout that transom trains.
    """
    if (name is None) == (check is None):
        raise ConfigError("expected NAME_OR_FILE or --check RUN, found both or neither; give one of them")
    if check is not None and plot is not None:
        raise ConfigError("--plot: expected NAME_OR_FILE, found --check, which draws nothing; leave one out")
    check_picture_path(plot, [None if name in packaged_presets() or name is None else Path(name)])
    with gc_frozen_imports():
        from transom.cli.plan_table import check_lines, export_line, plan_lines, published_json, published_lines
        from transom.config.presets import load_preset
        from transom.exchange.family import export_record, nearest_families
        from transom.inspection.plots.plan import plan_picture
        from transom.planning.presets import compare_preset
        from transom.training.plan_check import check_plan
        from transom.training.plan_run import plan_run

    planned = options.build()
    if check is not None:
        compared = check_plan(check, planned, CHECK_SECONDS)
        print_result(compared.to_json(), as_json, check_lines(compared))
        return
    assert name is not None
    config, training, layout = load_planned(name, overrides or (), options.vocab_size)
    unsharded = layout.model_copy(update={"data": layout.data * layout.shard, "shard": 1}) if layout.shard > 1 else None
    planned = replace(planned, batch_parts=layout.n_batch_parts, unsharded=unsharded)
    if options.flops_per_second is None and options.gpu_memory is None and planned.devices == 1:
        planned = _with_measured_rate(planned, training)
    preset = load_preset(name) if name in packaged_presets() else None
    if preset is not None and planned.tokens is None:
        planned = replace(planned, tokens=preset.training_tokens)
    found = plan_run(name, config, training, planned)
    if plot is not None:
        save_picture(plan_picture(found), plot)
    published = None if preset is None else compare_preset(preset)
    candidates = nearest_families(config)
    record = found.to_json() | {"published": published_json(published), "export": export_record(candidates)}
    print_result(record, as_json, [*plan_lines(found), export_line(candidates), *published_lines(published)])


def load_planned(name: str, overrides: Sequence[str], vocab_size: int | None) -> "tuple[ModelConfig, TrainingConfig, ParallelConfig]":
    """Load the model, the training settings and the layout of a preset or recipe, with vocabulary sizes; a classifier gets two classes.

    Raises:
        ConfigError: there is no such preset or recipe, or a field is invalid.
    """
    from transom.config.data import DATA_OPTIONAL
    from transom.config.error_messages import validate
    from transom.config.parallel import ParallelConfig
    from transom.config.presets import load_preset
    from transom.config.recipe import load_recipe, parse_model_config
    from transom.config.toml_input import parse_override
    from transom.config.training import TextTrainingConfig
    from transom.training.plan_run import preset_training

    training: TrainingConfig
    layout = ParallelConfig()
    if name in packaged_presets():
        tables: dict[str, Any] = {"model": load_preset(name).fields}
        for override in map(parse_override, overrides):
            if override.path[0] != "model" and override.path != ("training", "activation_checkpointing"):
                raise ConfigError(
                    f"{override.option}: expected a field of the model, such as model.n_layers, or training.activation_checkpointing;"
                    " leave it out"
                )
            tables = override.applied(tables)
        config = parse_model_config(tables["model"])
        training = validate(TextTrainingConfig, vars(preset_training()) | tables.get("training", {}), lambda _: "--set training")
    else:
        if name not in packaged_recipes() and Path(name).suffix != ".toml" and not Path(name).is_file():
            known = [*packaged_presets(), *packaged_recipes()]
            raise ConfigError(f"expected a preset, a recipe or the path of a .toml file, found {name!r}; {suggest(name, known)}")
        recipe = load_recipe(name, overrides, DATA_OPTIONAL)[0]
        config, training, layout = recipe.model, recipe.training, recipe.parallel
        vocab_size = vocab_size or getattr(getattr(recipe, "tokenizer", None), "vocab_size", None)
    missing = [each for each in config.VOCABULARIES if getattr(config, each) is None or vocab_size is not None]
    sizes: dict[str, Any] = dict.fromkeys(missing, vocab_size)
    if "classes" in config.FROM_DATA and not vars(config)["classes"]:
        sizes["classes"] = ("0", "1")
    return type(config).model_validate(config.model_dump(exclude_unset=True) | sizes), training, layout


def _with_measured_rate(options: "PlanOptions", training: "TrainingConfig") -> "PlanOptions":
    """Measure the peak rate of this machine, for which a training without GPUs is planned."""
    import torch

    from transom.planning.hardware import measure_peak
    from transom.planning.precision import choose_precision, choose_threads, num_threads_set_to

    precision = choose_precision(options.precision or training.precision, torch.device("cpu"))
    with num_threads_set_to(choose_threads().count):
        rate = measure_peak().flops[precision.dtype]
    return replace(options, flops_per_second=rate, rate_source="measured on this machine")


_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_bytes(size: str | None, option: str) -> int | None:
    """Parse a size such as 80GiB, the value of ``option``.

    Raises:
        ConfigError: it is none.
    """
    if size is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?([kMGT]|[KMGT]i|)B?", size.strip())
    if found is None or (value := round(float(found[1]) * _UNITS[found[2]])) == 0:
        raise ConfigError(f"{option}: expected a size above 0, found {size!r}; such as 80GiB")
    return value
