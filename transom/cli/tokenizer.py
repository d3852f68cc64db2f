"""``transom tokenizer``: train a tokenizer without a model, or inspect a tokenizer."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.checkpoints.output_paths import check_output_path, data_paths
from transom.cli.options import RecipeArgument, SetOption, WithDataOptions
from transom.cli.output import JsonOption, print_note, print_result
from transom.config.arguments import Files, file_overrides
from transom.errors import ConfigError
from transom.tasks.signals import defer_signals

EXAMPLES = """
transom tokenizer train multi30k-en-de --set data.root=data/multi30k --out tokenizer.json
transom tokenizer train translation --source train.en --target train.de --set tokenizer.vocab_size=8000 --out tokenizer.json
transom tokenizer show runs/en-de
transom tokenizer show tokenizer.json "A man sleeps."
"""

app = typer.Typer(
    add_completion=False, help="transom train also trains a tokenizer. Use this command to inspect a tokenizer before you train a model."
)


@app.command()
@partial(WithDataOptions, wanted=lambda option: option.is_text and option.part != "valid")
def train(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write, such as tokenizer.json.")],
    files: Files,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the tokenizer of a recipe on the training data, and write the tokenizer to a file."""
    with defer_signals():
        from transom.cli.tables import Answers, answer_overrides, read_or_ask
        from transom.config.recipe import load_recipe
        from transom.data.tokenizer.tokenizer import Tokenizers, describe_vocabularies
        from transom.files.atomic_io import write_file
        from transom.tasks.task import TrainsTokenizers, task_class

    def notify(line: str) -> None:
        if not as_json:
            print_note(line)

    all_overrides = [*file_overrides(recipe, overrides or [], files), *(overrides or [])]
    read, base = load_recipe(recipe, all_overrides)
    task = task_class(read)
    if not isinstance(task, TrainsTokenizers):
        raise ConfigError(f"{recipe}: expected a recipe with a tokenizer, found task = {read.task!r}; choose another recipe")
    check_output_path(out, [Path(recipe), *data_paths(read, base)])
    data = read.data
    notify("reading the data ...")

    def train_tokenizers(answers: Answers) -> Tokenizers:
        read, base = load_recipe(recipe, [*all_overrides, *answer_overrides(data, answers)])
        return task.train_tokenizers(read, base, notify)

    tokenizers = read_or_ask(train_tokenizers)
    write_file(out, tokenizers.to_bytes())
    print_result({"file": str(out), **_summary(tokenizers)}, as_json, [*describe_vocabularies(tokenizers), f"wrote {out}"])


@app.command()
def show(
    where: Annotated[Path, typer.Argument(metavar="RUN_OR_FILE", help="A run folder or a tokenizer.json file.")],
    sentence: Annotated[str | None, typer.Argument(metavar="SENTENCE", help="Sentence to segment into tokens.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the kind and vocabulary size of a tokenizer, and the tokens of a sentence if one is given."""
    from transom.data.tokenizer.tokenizer import Tokenizers, describe_vocabularies

    tokenizers = Tokenizers.load(where / "tokenizer.json" if where.is_dir() else where)
    tokenizer_of = {"both": tokenizers.source} if tokenizers.joint else {"source": tokenizers.source, "target": tokenizers.target}
    value: dict[str, Any] = _summary(tokenizers)
    lines = describe_vocabularies(tokenizers)
    if sentence is not None:
        tokens = {side: tokenizer.encode(sentence) for side, tokenizer in tokenizer_of.items()}
        value["symbols"] = {side: tokenizer.symbols(tokens[side]) for side, tokenizer in tokenizer_of.items()}
        value["tokens"] = tokens
        lines += [f"{side}: {' '.join(symbols)}  ({len(symbols)} symbols)" for side, symbols in value["symbols"].items()]
    print_result(value, as_json, lines)


def _summary(tokenizers: Any) -> dict[str, Any]:
    return {
        "kind": tokenizers.source.kind,
        "joint": tokenizers.joint,
        "source_vocab_size": tokenizers.source.vocab_size,
        "target_vocab_size": tokenizers.target.vocab_size,
    }
