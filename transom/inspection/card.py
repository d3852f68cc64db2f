"""The model card: README.md of a run folder, rendered from the run's summary only."""

import re

from transom.config.data import Data, Language
from transom.config.recipe import dump_recipe
from transom.inspection import describe
from transom.inspection.facts import Facts
from transom.inspection.figures import duration, parameters, percent, whole
from transom.inspection.markup import visible
from transom.training.figures import spelled


def card(facts: Facts) -> str:
    """Render the model card as Markdown; text from data or files is put into code spans, where markup has no effect."""
    parts = [f"# {_escaped(facts.name)}", _what(facts), _use(facts), _scores(facts), _data(facts), _training(facts), _recipe(facts)]
    return "\n\n".join(parts) + "\n"


def _what(facts: Facts) -> str:
    recipe = facts.recipe
    sizes = [
        parameters(facts.n_parameters, facts.n_active),
        recipe.model.described_layers,
        *describe.sizes(recipe),
    ]
    article = "An" if recipe.task[0] in "aeiou" else "A"
    what = f"{article} {recipe.task} model: {describe.family(recipe)}"
    return f"{what}, trained {describe.origin(recipe)} by transom.\n\n{_list(sizes)}"


def _use(facts: Facts) -> str:
    command, python = describe.use(facts.recipe, visible(facts.name))
    return f"## Use\n\nFrom the parent folder:\n\n{_fenced(command, 'sh')}\n\n{_fenced(python, 'python')}"


def _scores(facts: Facts) -> str:
    lines = [f"{score.metric} **{score.value:.2f}** on {_code(score.data)}, signature {_code(score.signature)}" for score in facts.scores]
    kept = facts.kept
    if kept is not None:
        figures = ", ".join(spelled(kept))
        lines.append(
            f"validation set{facts.recipe.measured_on(kept)}: {figures}, at step {whole(kept['step'])}."
            f" The weights were selected by this {facts.recipe.training.select_by}, so these metrics are optimistically biased."
            + (f" They are the {facts.kept_weights}." if facts.kept_weights else "")
        )
    lines += [f"look at this: {problem}" for problem in facts.problems]
    note = "" if facts.scores else "\n\nThis card has no test scores."
    return f"## Scores\n\n{_list(lines) if lines else 'None.'}{note}"


def _data(facts: Facts) -> str:
    lines = _origin(facts.recipe.data)
    for language in getattr(facts.recipe.data, "languages", ()):
        turned = ", reversed (target to source)" if language.reverse else ""
        lines += [f"{_code(language.tag)}: {line}{turned}" for line in _origin(language)]
    problems = [str(problem) for problem in facts.data.get("problems") or ()]
    found = f"\n\nProblems found in the data before training:\n\n{_list([_code(problem) for problem in problems])}" if problems else ""
    return f"## Data\n\n{_list(lines)}{found}"


def _origin(data: Data | Language) -> list[str]:
    """List the sources of the data."""
    lines = []
    if data.generate is not None:
        lines.append(f"generated: {_code(data.generate.model_dump_json())}")
    for use, files in (("training", data.train), ("validation", data.valid)):
        if files is not None:
            lines.append(f"{use}: {', '.join(_code(describe.last_name(name)) for name in files.shown)}")
    if data.train is not None and data.valid is None:
        lines.append(f"validation: {data.split_off}")
    return lines


def _training(facts: Facts) -> str:
    lines = [f"{whole(facts.steps)} steps in {duration(facts.seconds)} including validation, seed {facts.recipe.training.seed}"]
    if facts.throughput is not None:
        share = "" if facts.peak_share is None else f", {percent(facts.peak_share, 1)} of the measured peak matmul FLOP/s"
        lines.append(f"{whole(facts.throughput)} {facts.recipe.COUNTED} per second (median){share}")
    if skipped := len(facts.of_kind("skipped")):
        lines.append(f"{whole(skipped)} steps skipped because the loss or a gradient was not finite")
    lines.extend(_code(line) for line in facts.machine)
    return f"## Training\n\n{_list(lines)}"


def _recipe(facts: Facts) -> str:
    written = dump_recipe(describe.portable(facts.recipe))
    return f"## Recipe\n\n{describe.PORTABLE}:\n\n{_fenced(written, 'toml')}"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&$])", r"\\\1", visible(text))


def _code(text: str) -> str:
    """Format text as a code span; the fence is longer than any backticks in it."""
    shown = visible(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " if shown.startswith("`") or shown.endswith("`") or not shown.strip() else ""
    return f"{fence}{space}{shown or ' '}{space}{fence}"


def _fenced(text: str, language: str) -> str:
    """Format lines as a code block; the fence is longer than any backticks in them."""
    shown = "\n".join(map(visible, text.strip("\n").split("\n")))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}{language}\n{shown}\n{fence}"
