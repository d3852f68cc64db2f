"""``transom evaluate``: translate a test set and compute BLEU, chrF and exact match."""

from pathlib import Path
from typing import Annotated, Any

import typer

from transom.checkpoints.outputs import refuse_output
from transom.cli.answers import Json, answer, options_of, table
from transom.cli.imports import lasting_imports
from transom.cli.options import Alpha, Beam, Run, SearchPrecision, Source, Target, To, TranslateTooLong

EXAMPLES = """
transom evaluate runs/en-de --source test.en --target test.de
transom evaluate runs/en-de --source test.en --target test.de --output translations.de --json
transom evaluate runs/en-de --source test.en --target test.de --tokenized de
transom evaluate runs/joint --to fr --source test.en --target test.fr
"""

app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    run: Run,
    source: Source,
    target: Target,
    to: To = None,
    output_file: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Also write the translations to this file.")] = None,
    tokenized: Annotated[
        str | None,
        typer.Option(
            "--tokenized", metavar="LANGUAGE", help="Also compute lower-cased BLEU on Moses tokens of this language, as in Wu et al. 2021."
        ),
    ] = None,
    beam_size: Beam = None,
    length_penalty: Alpha = None,
    too_long: TranslateTooLong = "split",
    precision: SearchPrecision = "auto",
    as_json: Json = False,
) -> None:
    """Print corpus metrics with their sacreBLEU signatures, and BLEU by sentence length.

    Every access to a test set is recorded in the run folder: select models on validation data, evaluate once on test data.
    """
    parameters = {**locals()}
    with lasting_imports():
        from transom.cli.reading import read_test_set, translate_test_set
        from transom.decoding.predictors.translator import Options, Translator
        from transom.files.durable import write_file
        from transom.tasks.load import load_as
        from transom.training import evaluation

    if tokenized is not None:
        evaluation.moses_lowercased(tokenized)  # rejects unsupported languages before the test set is read and logged
    refuse_output(output_file, [run, source, target])
    translator = load_as(Translator, run, precision)
    translator.tokenizers.source.prefix(to)  # checks `to` before the test set is read and logged
    pairs = read_test_set([run], source, target, "evaluate")
    options = {**options_of(parameters, Options), "name": str(source)}
    translations, n_longer = translate_test_set(translator, pairs.source, "sentences", as_json, **options)
    if output_file is not None:
        write_file(output_file, "".join(f"{line}\n" for line in translations).encode())
    scores = {
        "bleu": evaluation.bleu(translations, pairs.target),
        "bleu_lc": evaluation.bleu(translations, pairs.target, lowercase=True),
        "chrf": evaluation.chrf(translations, pairs.target),
    }
    if tokenized is not None:
        scores["bleu_tokenized_lc"] = evaluation.wu2021_bleu(translations, pairs.target, tokenized)
    exact = evaluation.exact_match(translations, pairs.target)
    buckets = evaluation.bleu_by_length(translations, pairs.target, lowercase=True)
    value = {
        "run": str(run),
        **({} if to is None else {"to": to}),
        "sentences": len(pairs),
        "n_longer": n_longer,
        **{name: {"score": score.value, "signature": score.signature} for name, score in scores.items()},
        "exact_match": exact,
        "bleu_lc_by_length": [bucket._asdict() for bucket in buckets],
    }
    answer(value, as_json, _lines(scores, exact, buckets, len(pairs)))


def _lines(scores: dict[str, Any], exact: float, buckets: list[Any], n_sentences: int) -> list[str]:
    rows = [
        ["metric", "score"],
        *([name, f"{score.value:.2f}"] for name, score in scores.items()),
        ["exact match", f"{100 * exact:.2f} %"],
    ]
    lengths = [["reference words", "sentences", "bleu_lc"]]
    for bucket in buckets:
        end = f"to {bucket.longest}" if bucket.longest is not None else "or more"
        lengths.append([f"{bucket.shortest} {end}", f"{bucket.n_sentences:,}", f"{bucket.bleu:.2f}"])
    signatures = [f"{name}: {score.signature}" for name, score in scores.items()]
    return [f"{n_sentences:,} sentences", "", *table(rows), "", *table(lengths), "", *signatures]
