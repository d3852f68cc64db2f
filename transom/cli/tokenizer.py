"""``transom tokenizer``: train one by itself, or look at one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.answers import Json, answer, note
from transom.cli.imports import signals_held
from transom.cli.options import RecipeName, Set, Suffix, TrainSource, TrainTarget, TrainText, file_overrides, of_own_files, text_overrides
from transom.cli.outputs import data_paths, refuse_output

EXAMPLES = """
transom tokenizer train multi30k-en-de --set data.root=data/multi30k --out tokenizer.json
transom tokenizer train translation --source train.en --target train.de --set tokenizer.vocab_size=8000 --out tokenizer.json
transom tokenizer show runs/en-de
transom tokenizer show tokenizer.json "A man sleeps."
"""

app = typer.Typer(add_completion=False, help="transom train makes the tokenizer by itself; this is for looking at one first.")


@app.command()
def train(
    recipe: RecipeName,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write it.")],
    source: TrainSource = None,
    target: TrainTarget = None,
    text: TrainText = None,
    suffix: Suffix = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Train the tokenizer of a recipe on its training data."""
    with signals_held():
        from transom.config.recipe import (
            ClassificationRecipe,
            EmbeddingRecipe,
            InstructionRecipe,
            LanguageRecipe,
            MaskedRecipe,
            TranslationRecipe,
            load_recipe,
        )
        from transom.data.labeled.instructions import load_instructions
        from transom.data.labeled.labelled import load_labelled
        from transom.data.pairs.datasets import load_languages
        from transom.data.pairs.pairs import together
        from transom.data.text.documents import load_text
        from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers, describe
        from transom.files.durable import write_file

    def tell(line: str) -> None:
        if not as_json:
            note(line)

    files = {"--source and --target": file_overrides(source, target, None, None), "--text": text_overrides(text, None, suffix)}
    read, base = load_recipe(recipe, [*of_own_files(recipe, overrides or [], files), *(overrides or [])])
    refuse_output(out, [Path(recipe), *data_paths(read, base)])
    tell("reading the data ...")
    if isinstance(read, TranslationRecipe | EmbeddingRecipe):
        splits = load_languages(read.data, base)
        pairs = together([of_language.train for of_language in splits.values()])
        tell(f"learning symbols from {len(pairs.source):,} pairs ...")
        tokenizers = Tokenizers.train(pairs, read.tokenizer, [to for to in splits if to is not None])
    else:
        match read:
            case ClassificationRecipe():
                texts = load_labelled(read.data, base).train.source
            case InstructionRecipe():
                train = load_instructions(read.data, base).train
                texts = train.source + train.target
            case _:
                assert isinstance(read, LanguageRecipe | MaskedRecipe)
                texts = load_text(read.data, base).train.texts
        tell(f"learning symbols from {len(texts):,} texts ...")
        of_text = Tokenizer.train(texts, read.tokenizer)
        tokenizers = Tokenizers(of_text, of_text)
    write_file(out, tokenizers.to_bytes())
    answer({"file": str(out), **_sizes(tokenizers)}, as_json, [*describe(tokenizers), f"wrote {out}"])


@app.command()
def show(
    where: Annotated[Path, typer.Argument(metavar="RUN_OR_FILE", help="A run folder or a tokenizer.json.")],
    sentence: Annotated[str | None, typer.Argument(metavar="SENTENCE", help="Show how each side would split it.")] = None,
    as_json: Json = False,
) -> None:
    """Describe a tokenizer, and show how it splits a sentence."""
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
