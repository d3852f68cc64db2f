"""``transom score``: log-probability and perplexity of texts or translations under a model."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from transom.cli.answers import Json, answer, note, note_longer
from transom.cli.imports import lasting_imports
from transom.cli.options import IN_WINDOWS, TRUNCATED, Precision, Run, ScoreTooLong, To, refuse_with
from transom.errors import ConfigError

EXAMPLES = """
transom score runs/en-de --source test.en --target test.de
transom score runs/joint --to fr --source test.en --target test.fr
transom score runs/shakespeare-char --text play.txt
transom score runs/stdlib --text src --suffix .py --overlap 128 --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def score(
    run: Run,
    source: Annotated[Path | None, typer.Option("--source", metavar="FILE", help="Source sentences, one per line (.gz too).")] = None,
    target: Annotated[
        Path | None, typer.Option("--target", metavar="FILE", help="Translations to score, one per line, aligned with --source.")
    ] = None,
    to: To = None,
    text: Annotated[
        list[Path] | None, typer.Option("--text", metavar="PATH", help="For a language model: a text file or a folder. Repeatable.")
    ] = None,
    suffix: Annotated[
        list[str] | None, typer.Option("--suffix", help="Suffix of the files to read from folders, as .py. Repeatable.")
    ] = None,
    document: Annotated[
        Literal["file", "paragraph", "line"] | None,
        typer.Option("--document", help="Unit of text: file, paragraph or line. Default: file."),
    ] = None,
    start: Annotated[
        float | None, typer.Option("--start", min=0, max=1, help="Skip this fraction of the text's characters. Default: 0.")
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(
            "--overlap", min=0, help="Tokens of context shared by consecutive windows of a long text. Default: 0, as in validation."
        ),
    ] = None,
    too_long: ScoreTooLong = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Print the log-probability of each pair or text in nats, the end-of-sequence token included, then the total.

    The total is the perplexity per token; for a language model also the loss and bits per byte.
    """
    if (text is None) == (source is None and target is None):
        raise ConfigError(
            "expected --source and --target for a translator, or --text for a language model, found both or neither; give one of them"
        )
    if text is not None:
        refuse_with({"--to": to}, "--source and --target", "--text")
    else:
        of_text = {"--suffix": suffix, "--document": document, "--start": start, "--overlap": overlap, "--too-long": too_long}
        refuse_with(of_text, "--text", "--source and --target")
    with lasting_imports():
        from transom.decoding.predictors.generator import Generator
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load_as
        from transom.tasks.progress import counting

    if text is None:
        if source is None or target is None:
            raise ConfigError("expected both --source and --target, found one of them; give both")
        _pairs(load_as(Translator, run, precision), run, source, target, to, as_json)
        return
    from transom.checkpoints.run_folder import RunFolder
    from transom.config.data import TextFiles
    from transom.config.explaining import check
    from transom.data.text.documents import files_of, read_documents

    folder, generator = RunFolder.open(run), load_as(Generator, run, precision)
    raw = {"files": [str(path.absolute()) for path in text], "suffixes": suffix, "document": document or "file", "start": start or 0.0}
    files = check(TextFiles, raw, lambda path: "--" + ".".join(path))
    documents = read_documents(files, Path.cwd())
    for path in files_of(files, Path.cwd()):
        folder.ledger.record(path, "score")
    with counting("tokens", quiet=as_json) as tell:
        scores: list[Any] = generator.score(documents.texts, overlap or 0, too_long=too_long or "window", tell=tell)
    _texts(scores, documents.places, generator.model.config.max_seq_len - 1, as_json)


def _pairs(translator: Any, run: Path, source: Path, target: Path, to: str | None, as_json: bool) -> None:
    from transom.cli.reading import read_test_set
    from transom.decoding.predictors.scores import perplexity
    from transom.tasks.progress import counting

    translator.tokenizers.source.prefix(to)  # checks `to` before the test set is read and logged
    pairs = read_test_set([run], source, target, "score")
    with counting("pairs", quiet=as_json) as tell:
        scores: list[Any] = translator.score(pairs.source, pairs.target, name=pairs.name, to=to, tell=tell)
    value = {"pairs": [each.to_json() for each in scores], "perplexity": perplexity(scores)}
    n_tokens = sum(each.n_tokens for each in scores)
    lines = [f"{each.log_p:.4f}" for each in scores]
    answer(value, as_json, [*lines, f"perplexity {perplexity(scores):.4f} over {n_tokens:,} tokens of {len(scores):,} pairs"])


def _texts(scores: list[Any], places: list[str], most: int, as_json: bool) -> None:
    from transom.decoding.predictors.scores import bits_per_byte, perplexity

    n_tokens, n_bytes = sum(each.n_tokens for each in scores), sum(each.n_bytes for each in scores)
    loss = -sum(each.log_p for each in scores) / n_tokens
    figures = {"loss": loss, "perplexity": perplexity(scores), "bits_per_byte": bits_per_byte(scores)}
    texts = [{"text": place, **each.to_json()} for place, each in zip(places, scores, strict=True)]
    lines = [f"{each.log_p:.4f} {place}" for place, each in zip(places, scores, strict=True)]
    total = (
        f"loss {loss:.4f} nats per token, perplexity {figures['perplexity']:.4f} over {n_tokens:,} tokens;"
        f" {figures['bits_per_byte']:.4f} bits per byte over {n_bytes:,} bytes of {len(scores):,} texts"
    )
    n_longer, n_left_out = sum(each.windows > 1 or each.n_left_out > 0 for each in scores), sum(each.n_left_out for each in scores)
    counts = {"n_tokens": n_tokens, "n_bytes": n_bytes, "n_longer": n_longer, "n_left_out": n_left_out}
    answer({"texts": texts, **figures, **counts}, as_json, [*lines, total])
    if as_json:
        return
    note_longer(n_longer, len(scores), "texts", most, TRUNCATED if n_left_out else IN_WINDOWS, n_left_out)
    if unknown := sum(each.n_unknown for each in scores):
        note(f"{unknown:,} tokens are out of vocabulary and scored as one unknown token: bits per byte are underestimated")
