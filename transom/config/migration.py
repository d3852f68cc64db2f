"""Replace names of formats 1 and 2 by the present ones: recipe fields, kinds, metrics, checkpoint state and tensors.

Run folders are migrated in memory when they are read. A user's own recipe is refused with an error that gives the present name;
``transom recipes upgrade FILE`` rewrites such a recipe. No former name is also a present name with another meaning, so every function
leaves present names unchanged.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Renamed(NamedTuple):
    """Fields of a recipe's table that were renamed.

    Attributes:
        table: regular expression of the table's path, as earlier versions wrote it.
        fields: present names by former name.
        kind: former ``kind`` of the tables in which the fields were renamed; None for any kind.
        tasks: tasks of the recipes in which the fields were renamed; None for all tasks.
    """

    table: str
    fields: Mapping[str, str]
    kind: str | None = None
    tasks: tuple[str, ...] | None = None


PATTERN = r"model\.attention\.pattern(\.(of|patterns))*"
FIELDS = (
    Renamed("data", {"temperature": "sampling_temperature", "valid_share": "valid_fraction"}),
    Renamed(r"data\.(train|valid|test)", {"field": "text_field"}),
    Renamed("tokenizer", {"dropout": "bpe_dropout"}),
    Renamed("model", {"tie": "tie_embeddings", "pool": "pooling"}),
    Renamed(
        r"model\.position",
        {
            "base": "rope_theta",
            "share": "partial_rotary_factor",
            "scaling": "rope_scaling",
            "trained_seq_len": "original_max_seq_len",
        },
        "rotary",
    ),
    Renamed(r"model\.attention", {"bias": "qkv_bias", "output": "output_projection"}),
    Renamed(r"model\.attention\.value_residual", {"first": "lambda_1", "own": "lambda_2"}),
    Renamed(PATTERN, {"of": "patterns"}),
    Renamed(PATTERN, {"local": "window"}, "logarithmic"),
    Renamed(
        r"model\.feed_forward",
        {
            "n_shared": "n_shared_experts",
            "scores": "scoring_func",
            "normalise": "norm_topk_prob",
            "balance": "load_balancing",
            "z_weight": "z_loss_coef",
            "capacity": "capacity_factor",
        },
        "mixture",
    ),
    Renamed(r"model\.feed_forward\.(balance|load_balancing)", {"weight": "aux_loss_coef"}, "loss"),
    Renamed(r"model\.feed_forward\.(balance|load_balancing)", {"rate": "bias_update_rate"}, "bias"),
    Renamed(r"model\.depth", {"weight": "aux_loss_coef"}, "mixture"),
    Renamed(r"model\.stem", {"depth": "convs_per_stage"}),
    Renamed(r"model\.stem\.attention", {"kernel": "kernel_size"}, "cbam"),
    Renamed(
        "training",
        {
            "accumulate": "grad_accum_steps",
            "clip_norm": "max_grad_norm",
            "start_from": "init_from",
            "select_by": "best_checkpoint_metric",
            "exits": "early_exit_loss",
            "mask_share": "mlm_probability",
            "batch_images": "batch_size",
            "batch_sounds": "batch_size",
        },
    ),
    Renamed("training", {"token_dropout": "word_dropout"}, tasks=("classification",)),
    Renamed("training", {"token_dropout": "blank_noising"}, tasks=("language", "tagging")),
    Renamed(r"training\.schedule", {"final": "min_lr_ratio"}, "cosine"),
    Renamed(r"training\.schedule", {"decay": "decay_fraction"}, "wsd"),
    Renamed(r"training\.average", {"last": "n_checkpoints"}, "checkpoints"),
    Renamed(r"training\.adapter", {"on": "target_modules"}),
    Renamed(
        r"training\.augmentation",
        {
            "zoom": "crop_scale",
            "flip": "horizontal_flip",
            "magnitude": "randaugment_magnitude",
            "n_bands": "n_freq_masks",
            "bands": "freq_mask_param",
            "n_times": "n_time_masks",
            "times": "time_mask_param",
        },
    ),
    Renamed("decoding", {"words": "word_splitting", "batch_images": "batch_size", "exit_threshold": "early_exit_threshold"}),
)
"""Fields renamed in format 3."""

VALUES = (
    (PATTERN, "local", "block-local"),
    (PATTERN, "logarithmic", "logsparse"),
    (r"model\.feed_forward", "mixture", "moe"),
    (r"model\.feed_forward\.(balance|load_balancing)", "loss", "aux-loss"),
    (r"model\.depth", "mixture", "mod"),
    (r"model\.mask", "prefix", "prefix-lm"),
    (r"model\.pool", "start", "cls"),
    (r"training\.schedule", "paper", "inverse-sqrt"),
    (r"training\.learning_rate", "paper", "noam"),
)
"""Values renamed in format 3: path of the field, or of the table with ``kind``, as a regular expression; former value; present value."""

METRICS = {
    "peak_share": "matmul_utilization",
    "expert_load": "max_expert_load",
    "dropped": "expert_overflow",
    "depth_share": "mod_fraction",
    "depth_alone": "mod_fraction_causal",
}
"""Renamed keys of ``metrics.jsonl`` and of the metrics window in a checkpoint."""

STATE = {"skips_in_a_row": "consecutive_skips", "validated_at": "last_validation_step", "routed_alone": "routed_causal"}
"""Renamed keys of a checkpoint's ``state.json``."""

MOVED = {("training", "processes"): ("parallel", "data")}
"""Paths of fields that moved to another table, each with its present path."""

TENSORS = (
    (r"(encoder\.layers\.\d+)\.ahead\.kernel\.", r"\1.forward_rnn.rnn."),
    (r"(encoder\.layers\.\d+)\.back\.kernel\.", r"\1.backward_rnn.rnn."),
    (r"(decoder\.layers\.\d+)\.kernel\.", r"\1.rnn."),
    (r"(decoder)\.start\.", r"\1.bridge."),
    (r"(decoder)\.joined\.", r"\1.output_proj."),
    (r"(stem\.stages\.\d+\.\d+)\.kernel\.", r"\1.conv."),
    (r"(embedding)\.patches\.", r"\1.projection."),
    (r"(encoder|decoder)\.mixes\.", r"\1.value_residuals."),
)
"""Patterns in former tensor names with their replacements; the name of an optimizer tensor begins with that of its parameter."""

Path = tuple[str, ...]


class Change(NamedTuple):
    """One renamed field or value of a recipe.

    Attributes:
        path: path of the field as earlier versions wrote it, without list indices.
        old: former name of the field, or its former value.
        new: present name of the field, its present path with dots if it moved to another table, or its present value.
        is_value: whether the value of the field was renamed, not the field.
    """

    path: Path
    old: str
    new: str
    is_value: bool


def list_changes(raw: Mapping[str, Any]) -> list[Change]:
    """Return the names and values that ``migrate_tables`` changes in a recipe, outer tables first."""
    return list(_changes(raw, (), str(raw.get("task", "translation"))))


def migrate_tables(raw: Mapping[str, Any], path: Path = (), task: str | None = None) -> dict[str, Any]:
    """Return a recipe, or one of its tables, with former names and values replaced by the present ones.

    Args:
        raw: a recipe, or its table at ``path``.
        path: path of the table; empty for a whole recipe.
        task: the recipe's task, if ``raw`` is not the whole recipe.
    """
    task = str(raw.get("task", "translation")) if not path else task
    names = {name: present_field((*path, name), raw.get("kind"), task) or name for name in raw}
    tables = {names[name]: _migrate_value(value, (*path, name), task) for name, value in raw.items()}
    for (table, name), (new_table, new_name) in MOVED.items() if not path else ():
        if name in tables.get(table, {}):
            tables[table] = {**tables[table]}
            tables[new_table] = {**tables.get(new_table, {}), new_name: tables[table].pop(name)}
    return tables


def record_former_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of a run folder with the values of fields that are newer than the run, where they differ from today's defaults."""
    training = raw.get("training")
    return {**raw, "training": {"dropout_rng": "generator", **training}} if isinstance(training, Mapping) else dict(raw)


def _migrate_value(value: Any, path: Path, task: str | None) -> Any:
    if isinstance(value, Mapping):
        return migrate_tables(value, path, task)
    if isinstance(value, list | tuple):
        return [_migrate_value(item, path, task) for item in value]
    return present_value(path, value)


def _changes(raw: Any, path: Path, task: str) -> Iterator[Change]:
    if isinstance(raw, Mapping):
        for name, value in raw.items():
            if (new := present_field((*path, name), raw.get("kind"), task)) is not None:
                yield Change((*path, name), name, new, is_value=False)
            if (moved := MOVED.get((*path, name))) is not None:
                yield Change((*path, name), name, ".".join(moved), is_value=False)
            yield from _changes(value, (*path, name), task)
    elif isinstance(raw, list | tuple):
        for item in raw:
            yield from _changes(item, path, task)
    elif (new := present_value(path, raw)) != raw:
        yield Change(path, raw, new, is_value=True)


def present_field(path: Path, kind: Any = None, task: str | None = None) -> str | None:
    """Return the present name of a field; None if the field has not been renamed.

    Args:
        path: path of the field as earlier versions wrote it.
        kind: ``kind`` of the table that contains the field.
        task: task of the recipe; None for any task.
    """
    table = ".".join(path[:-1])
    for renamed in FIELDS:
        if (
            path[-1] in renamed.fields
            and re.fullmatch(renamed.table, table)
            and (renamed.kind is None or kind in (renamed.kind, present_value(path[:-1], renamed.kind)))
            and (renamed.tasks is None or task is None or task in renamed.tasks)
        ):
            return renamed.fields[path[-1]]
    return None


def present_value(path: Path, value: Any) -> Any:
    """Return the present value of a field, which is ``value`` unless renamed; ``kind`` may be the last part of the path."""
    place = ".".join(path[:-1] if path[-1:] == ("kind",) else path)
    return next((new for where, old, new in VALUES if value == old and re.fullmatch(where, place)), value)


def migrate_metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of ``metrics.jsonl`` with former keys replaced by the present ones."""
    return {METRICS.get(name, name): value for name, value in record.items()}


def migrate_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's state with former keys, at any depth, replaced by the present ones."""
    names = STATE | METRICS
    return {names.get(name, name): migrate_state(value) if isinstance(value, Mapping) else value for name, value in state.items()}


def present_tensor_name(name: str) -> str:
    """Return the present name of a tensor, which is ``name`` unless renamed."""
    for old, new in TENSORS:
        name = re.sub(old, new, name)
    return name
