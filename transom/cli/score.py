"""``transom score``: log-probability and perplexity of texts or translations under a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    TRUNCATED_NOTE,
    WINDOWS_NOTE,
    PrecisionOption,
    RunArgument,
    ScoreTooLong,
    TargetLanguageOption,
    reject_options,
)
from transom.cli.output import JsonOption, note_too_long, print_note, print_result
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.decoding.predictors.generator import Generator

EXAMPLES = """
transom score runs/en-de --source test.en --target test.de
transom score runs/joint --to fr --source test.en --target test.fr
transom score runs/shakespeare-char --text play.txt
transom score runs/stdlib --text src --suffix .py --overlap 128 --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def score(
    run: RunArgument,
    source: Annotated[Path | None, typer.Option("--source", metavar="FILE", help="Source sentences, one per line (.gz too).")] = None,
    target: Annotated[
        Path | None, typer.Option("--target", metavar="FILE", help="Translations to score, one per line, aligned with --source.")
    ] = None,
    to: TargetLanguageOption = None,
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
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print the log-probability of each pair or text in nats, the end-of-sequence token included, then the total.

    The total is the perplexity per token; for a language model also the loss and bits per byte.
    """
    if (text is None) == (source is None and target is None):
        raise ConfigError(
            "expected --source and --target for a translator, or --text for a language model, found both or neither; give one of them"
        )
    if text is not None:
        reject_options({"--to": to}, "--source and --target", "--text")
    else:
        of_text = {"--suffix": suffix, "--document": document, "--start": start, "--overlap": overlap, "--too-long": too_long}
        reject_options(of_text, "--text", "--source and --target")
    with gc_frozen_imports():
        from transom.decoding.predictors.generator import Generator
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load

    if text is None:
        if source is None or target is None:
            raise ConfigError("expected both --source and --target, found one of them; give both")
        _score_pairs(load(run, precision, kind=Translator), run, source, target, to, as_json)
        return
    raw = {"files": [str(path.absolute()) for path in text], "suffixes": suffix, "document": document or "file", "start": start or 0.0}
    _score_texts(load(run, precision, kind=Generator), run, raw, overlap or 0, too_long or "window", as_json)


def _score_texts(generator: "Generator", run: Path, raw: dict[str, Any], overlap: int, too_long: Any, as_json: bool) -> None:
    """Score the texts of files, given as a recipe would name them."""
    from transom.checkpoints.run_folder import RunFolder
    from transom.config.data import TextFilesConfig
    from transom.config.error_messages import validate
    from transom.data.text.documents import list_files, read_documents
    from transom.tasks.progress import show_progress

    folder = RunFolder.open(run)
    files = validate(TextFilesConfig, raw, lambda path: "--" + ".".join(path))
    documents = read_documents(files, Path.cwd())
    for path in list_files(files, Path.cwd()):
        folder.access_log.record(path, "score")
    with show_progress("tokens", quiet=as_json) as notify:
        scores: list[Any] = generator.score(documents.texts, overlap, too_long=too_long, notify=notify)
    _print_text_scores(scores, documents.origins, generator.model.config.max_seq_len - 1, as_json)


def _score_pairs(translator: Any, run: Path, source: Path, target: Path, to: str | None, as_json: bool) -> None:
    from transom.cli.evaluation_data import read_test_set
    from transom.decoding.predictors.likelihood import perplexity
    from transom.tasks.progress import show_progress

    translator.tokenizers.source.language_prefix(to)  # checks `to` before the test set is read and logged
    pairs = read_test_set([run], source, target, "score")
    with show_progress("pairs", quiet=as_json) as notify:
        scores: list[Any] = translator.score(pairs.source, pairs.target, name=pairs.name, to=to, notify=notify)
    value = {"pairs": [each.to_json() for each in scores], "perplexity": perplexity(scores)}
    n_tokens = sum(each.n_tokens for each in scores)
    lines = [f"{each.log_p:.4f}" for each in scores]
    print_result(value, as_json, [*lines, f"perplexity {perplexity(scores):.4f} over {n_tokens:,} tokens of {len(scores):,} pairs"])


def _print_text_scores(scores: list[Any], origins: list[str], max_tokens: int, as_json: bool) -> None:
    from transom.decoding.predictors.likelihood import bits_per_byte, perplexity

    n_tokens, n_bytes = sum(each.n_tokens for each in scores), sum(each.n_bytes for each in scores)
    loss = -sum(each.log_p for each in scores) / n_tokens
    metrics = {"loss": loss, "perplexity": perplexity(scores), "bits_per_byte": bits_per_byte(scores)}
    texts = [{"text": origin, **each.to_json()} for origin, each in zip(origins, scores, strict=True)]
    lines = [f"{each.log_p:.4f} {origin}" for origin, each in zip(origins, scores, strict=True)]
    total = (
        f"loss {loss:.4f} nats per token, perplexity {metrics['perplexity']:.4f} over {n_tokens:,} tokens;"
        f" {metrics['bits_per_byte']:.4f} bits per byte over {n_bytes:,} bytes of {len(scores):,} texts"
    )
    n_too_long, n_dropped_tokens = (
        sum(each.windows > 1 or each.n_dropped_tokens > 0 for each in scores),
        sum(each.n_dropped_tokens for each in scores),
    )
    counts = {"n_tokens": n_tokens, "n_bytes": n_bytes, "n_too_long": n_too_long, "n_dropped_tokens": n_dropped_tokens}
    print_result({"texts": texts, **metrics, **counts}, as_json, [*lines, total])
    if as_json:
        return
    note_too_long(n_too_long, len(scores), "texts", max_tokens, TRUNCATED_NOTE if n_dropped_tokens else WINDOWS_NOTE, n_dropped_tokens)
    if unknown := sum(each.n_unknown for each in scores):
        print_note(f"{unknown:,} tokens are out of vocabulary and scored as one unknown token: bits per byte are underestimated")
