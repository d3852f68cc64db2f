"""Render the model card, ``README.md`` of a run folder, from the summary of the run."""

import re

from transom.config.data import DataConfig, LanguageConfig
from transom.config.recipe import dump_recipe
from transom.inspection.pages import describe
from transom.inspection.pages.markup import escape_control_characters
from transom.inspection.pages.number_format import format_count, format_duration, format_parameter_count, format_percent
from transom.inspection.pages.run_summary import RunSummary
from transom.training.validation_metrics import format_metrics


def render_model_card(run: RunSummary) -> str:
    """Render the model card as Markdown; text from data or files is put into code spans, where markup has no effect."""
    parts = [f"# {_escape_markdown(run.name)}", _overview(run), _usage(run), _scores(run), _data(run), _training(run), _recipe(run)]
    return "\n\n".join(parts) + "\n"


def _overview(run: RunSummary) -> str:
    recipe = run.recipe
    sizes = [
        format_parameter_count(run.n_parameters, run.n_active),
        recipe.model.described_layers,
        *describe.describe_architecture(recipe),
    ]
    article = "An" if recipe.task[0] in "aeiou" else "A"
    what = f"{article} {recipe.task} model: {describe.describe_family(recipe)}"
    return f"{what}, trained {describe.describe_initialization(recipe)} by transom.\n\n{_bullet_list(sizes)}"


def _usage(run: RunSummary) -> str:
    command, python = describe.usage_example(run.recipe, escape_control_characters(run.name))
    return f"## Use\n\nFrom the parent folder:\n\n{_code_block(command, 'sh')}\n\n{_code_block(python, 'python')}"


def _scores(run: RunSummary) -> str:
    lines = [
        f"{score.metric} **{score.value:.2f}** on {_code_span(score.data)}, signature {_code_span(score.signature)}"
        for score in run.test_scores
    ]
    best_validation = run.best_validation
    if best_validation is not None:
        figures = ", ".join(format_metrics(best_validation))
        lines.append(
            f"validation set{run.recipe.measured_on(best_validation)}: {figures}, at step {format_count(best_validation['step'])}."
            f" The weights were selected by this {run.recipe.training.best_checkpoint_metric}, so these metrics are optimistically biased."
            + (f" They are the {run.best_weights_note}." if run.best_weights_note else "")
        )
    lines += [f"warning: {problem}" for problem in run.problems]
    note = "" if run.test_scores else "\n\nThis card has no test scores."
    return f"## Scores\n\n{_bullet_list(lines) if lines else 'None.'}{note}"


def _data(run: RunSummary) -> str:
    lines = _data_sources(run.recipe.data)
    for language in getattr(run.recipe.data, "languages", ()):
        turned = ", reversed (target to source)" if language.reverse else ""
        lines += [f"{_code_span(language.tag)}: {line}{turned}" for line in _data_sources(language)]
    problems = [str(problem) for problem in run.data.get("problems") or ()]
    found = (
        f"\n\nProblems found in the data before training:\n\n{_bullet_list([_code_span(problem) for problem in problems])}"
        if problems
        else ""
    )
    return f"## Data\n\n{_bullet_list(lines)}{found}"


def _data_sources(data: DataConfig | LanguageConfig) -> list[str]:
    """Return a line per source of data: generated data, training files, and validation files or the held-out part."""
    lines = []
    if data.generate is not None:
        lines.append(f"generated: {_code_span(data.generate.model_dump_json())}")
    for use, files in (("training", data.train), ("validation", data.valid)):
        if files is not None:
            lines.append(f"{use}: {', '.join(_code_span(describe.path_basename(name)) for name in files.shown)}")
    if data.train is not None and data.valid is None:
        lines.append(f"validation: {data.holdout_description}")
    return lines


def _training(run: RunSummary) -> str:
    lines = [f"{format_count(run.n_steps)} steps in {format_duration(run.seconds)} including validation, seed {run.recipe.training.seed}"]
    if run.throughput is not None:
        fraction = (
            "" if run.matmul_utilization is None else f", {format_percent(run.matmul_utilization, 1)} of the measured peak matmul FLOP/s"
        )
        lines.append(f"{format_count(run.throughput)} {run.recipe.UNIT} per second (median){fraction}")
    if skipped := len(run.records_of_kind("skipped")):
        lines.append(f"{format_count(skipped)} steps skipped because the loss or a gradient was not finite")
    if halved := run.records_of_kind("halved"):
        parts = int(halved[-1]["n_splits"])
        lines.append(f"memory ran out: from step {format_count(int(halved[-1]['step']))} each micro-batch was split into {parts} parts")
    lines.extend(_code_span(line) for line in run.machine_notes)
    return f"## Training\n\n{_bullet_list(lines)}"


def _recipe(run: RunSummary) -> str:
    written = dump_recipe(describe.without_local_paths(run.recipe))
    return f"## Recipe\n\n{describe.paths_note()}:\n\n{_code_block(written, 'toml')}"


def _bullet_list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&$])", r"\\\1", escape_control_characters(text))


def _code_span(text: str) -> str:
    """Format text as a code span; the fence is longer than any sequence of backticks in the text."""
    shown = escape_control_characters(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " if shown.startswith("`") or shown.endswith("`") or not shown.strip() else ""
    return f"{fence}{space}{shown or ' '}{space}{fence}"


def _code_block(text: str, language: str) -> str:
    """Format lines as a code block; the fence is longer than any sequence of backticks in the text."""
    shown = "\n".join(map(escape_control_characters, text.strip("\n").split("\n")))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}{language}\n{shown}\n{fence}"
