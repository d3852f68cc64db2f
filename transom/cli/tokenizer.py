"""``transom tokenizer``: train a tokenizer without a model, or inspect one."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.checkpoints.outputs import data_paths, refuse_output
from transom.cli.answers import Json, answer, note
from transom.cli.options import RecipeName, Set, WithDataOptions
from transom.config.arguments import Files, file_overrides
from transom.errors import ConfigError
from transom.tasks.imports import signals_held

EXAMPLES = """
transom tokenizer train multi30k-en-de --set data.root=data/multi30k --out tokenizer.json
transom tokenizer train translation --source train.en --target train.de --set tokenizer.vocab_size=8000 --out tokenizer.json
transom tokenizer show runs/en-de
transom tokenizer show tokenizer.json "A man sleeps."
"""

app = typer.Typer(add_completion=False, help="transom train trains the tokenizer too; this command is for inspecting one beforehand.")


@app.command()
@partial(WithDataOptions, wanted=lambda option: option.is_text and option.part != "valid")
def train(
    recipe: RecipeName,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.")],
    files: Files,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Train the tokenizer of a recipe on its training data and write it to a file."""
    with signals_held():
        from transom.config.recipe import load_recipe
        from transom.data.tokenizer.tokenizer import describe
        from transom.files.durable import write_file
        from transom.tasks.task import LearnsSymbols, task_of

    def tell(line: str) -> None:
        if not as_json:
            note(line)

    read, base = load_recipe(recipe, [*file_overrides(recipe, overrides or [], files), *(overrides or [])])
    task = task_of(read)
    if not isinstance(task, LearnsSymbols):
        raise ConfigError(f"{recipe}: expected a recipe with a tokenizer, found task = {read.task!r}; choose another recipe")
    refuse_output(out, [Path(recipe), *data_paths(read, base)])
    tell("reading the data ...")
    tokenizers = task.train_tokenizers(read, base, tell)
    write_file(out, tokenizers.to_bytes())
    answer({"file": str(out), **_sizes(tokenizers)}, as_json, [*describe(tokenizers), f"wrote {out}"])


@app.command()
def show(
    where: Annotated[Path, typer.Argument(metavar="RUN_OR_FILE", help="A run folder or a tokenizer.json file.")],
    sentence: Annotated[str | None, typer.Argument(metavar="SENTENCE", help="Show how the tokenizer segments this sentence.")] = None,
    as_json: Json = False,
) -> None:
    """Print kind and vocabulary size of a tokenizer, and the tokens of a sentence."""
    from transom.data.tokenizer.tokenizer import Tokenizers, describe

    tokenizers = Tokenizers.load(where / "tokenizer.json" if where.is_dir() else where)
    sides = {"both": tokenizers.source} if tokenizers.joint else {"source": tokenizers.source, "target": tokenizers.target}
    value: dict[str, Any] = _sizes(tokenizers)
    lines = describe(tokenizers)
    if sentence is not None:
        tokens = {side: tokenizer.encode(sentence) for side, tokenizer in sides.items()}
        value["symbols"] = {side: tokenizer.symbols(tokens[side]) for side, tokenizer in sides.items()}
        value["tokens"] = tokens
        lines += [f"{side}: {' '.join(symbols)}  ({len(symbols)} symbols)" for side, symbols in value["symbols"].items()]
    answer(value, as_json, lines)


def _sizes(tokenizers: Any) -> dict[str, Any]:
    return {
        "kind": tokenizers.source.kind,
        "joint": tokenizers.joint,
        "source_vocab_size": tokenizers.source.vocab_size,
        "target_vocab_size": tokenizers.target.vocab_size,
    }
