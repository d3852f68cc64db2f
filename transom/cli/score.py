"""``transom score``: how probable a model finds given translations."""

from typing import Any

import typer

from transom.cli.answers import Json, answer
from transom.cli.imports import lasting_imports
from transom.cli.options import Precision, Run, Source, Target

EXAMPLES = """
transom score runs/en-de --source test.en --target test.de
transom score runs/en-de --source test.en --target test.de --precision fp32 --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def score(run: Run, source: Source, target: Target, precision: Precision = "auto", as_json: Json = False) -> None:
    """One line a pair, log p(target | source) in nats with the end symbol included; the perplexity a token at the end."""
    with lasting_imports():
        from transom.cli.reading import read_test_set
        from transom.decoding.answers import perplexity
        from transom.decoding.load import load

    pairs = read_test_set([run], source, target, "score")
    scores: list[Any] = load(run, precision).score(pairs.source, pairs.target, name=pairs.name)
    value = {"pairs": [each._asdict() for each in scores], "perplexity": perplexity(scores)}
    n_tokens = sum(each.n_tokens for each in scores)
    lines = [f"{each.log_p:.4f}" for each in scores]
    answer(value, as_json, [*lines, f"perplexity {perplexity(scores):.4f} over {n_tokens:,} tokens of {len(scores):,} pairs"])
