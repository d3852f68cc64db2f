"""``transom score``: compute the log-probability and perplexity of texts or translations under a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import Answer, InputOptions, Inputs, answer_inputs, read_inputs
from transom.cli.options import (
    TRUNCATED_NOTE,
    WINDOWS_NOTE,
    PairFiles,
    PrecisionOption,
    RunArgument,
    ScoreTooLong,
    TargetLanguageOption,
    TextFileOptions,
    expand_options,
    given_options,
    reject_options,
)
from transom.cli.output import JsonAnswersOption, note_too_long, print_note, print_result
from transom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transom.decoding.predictors.generator import Generator

EXAMPLES = """
transom score runs/en-de --source test.en --target test.de
transom score runs/joint --to fr --source test.en --target test.fr
transom score runs/shakespeare-char "To be, or not to be"
transom score runs/shakespeare-char --text play.txt
transom score runs/shakespeare-char "To be, or not to be" --edit without-head-2.json
transom score runs/stdlib --text src --suffix .py --overlap 128 --json
"""

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def score(
    run: RunArgument,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="Texts to score. For a translator: source sentences, each with a tab and its translation."),
    ] = None,
    *,
    sources: InputOptions,
    files: PairFiles,
    to: TargetLanguageOption = None,
    text_files: TextFileOptions,
    too_long: ScoreTooLong = None,
    edit: EditOption = None,
    precision: PrecisionOption = "auto",
    as_json: JsonAnswersOption = False,
) -> None:
    """Print the log-probability of each text or translation in nats. The end-of-sequence token is included.

    For TEXT, --input and standard input, each output line has the log-probability of a text and its perplexity per token, separated by a
    tab. With --source and --target, --pairs or --text, the last line has the perplexity of the whole input, and for a language model also
    the loss and the bits per byte.
    """
    if sum(map(bool, (texts or sources.input_file, text_files.text, files.paths))) > 1:
        raise ConfigError("expected TEXT or --input, --text, or --source and --target (or --pairs), found several; give one of them")
    if text_files.text:
        reject_options({"--to": to, **given_options(files)}, "--source and --target", "--text")
    else:
        if files.paths:
            files.check()
        found = "--source and --target" if files.paths else "lines"
        reject_options({**given_options(text_files), "--too-long": too_long}, "--text", found)
    with gc_frozen_imports():
        from transom.decoding.predictors.generator import Generator
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load

    if text_files.text:
        generator = load(run, precision, kind=Generator)
        with edits_in_force(generator, edit):
            _score_texts(generator, run, text_files, too_long or "window", as_json)
    elif files.paths:
        translator = load(run, precision, kind=Translator)
        with edits_in_force(translator, edit):
            _score_pairs(translator, run, files, to, as_json)
    else:
        scorer, inputs = load(run, precision), read_inputs(texts, sources, "TEXT", "texts")
        with edits_in_force(scorer, edit):
            _score_lines(scorer, run, inputs, to, as_json)


def _score_lines(scorer: Any, run: Path, inputs: Inputs, to: str | None, as_json: bool) -> None:
    """Score lines: texts for a language model, source and translation separated by a tab for a translator."""
    from transom.decoding.predictors.generator import Generator
    from transom.decoding.predictors.likelihood import perplexity
    from transom.decoding.predictors.translator import Translator

    def answer(texts: list[str], notify: Any) -> list[Answer]:
        if isinstance(scorer, Translator):
            pairs = [text.partition("\t") for text in texts]
            if bad := [text for text, (_, tab, _) in zip(texts, pairs, strict=True) if not tab]:
                raise DataError(f"{inputs.name}: expected source and translation separated by a tab, found {bad[0][:60]!r}; add a tab")
            scores: list[Any] = scorer.score([source for source, *_ in pairs], [target for *_, target in pairs], to=to, notify=notify)
        elif isinstance(scorer, Generator):
            reject_options({"--to": to}, "a translator", "a language model")
            scores = list(scorer.score(texts, notify=notify))
        else:
            raise ConfigError(f"{run}: expected a run of a language model or translator, found a {type(scorer).__name__}; use another run")
        return [
            Answer({"text": text, **each.to_json()}, [f"{each.log_p:.4f}\t{perplexity([each]):.4f}"])
            for text, each in zip(texts, scores, strict=True)
        ]

    answer_inputs(inputs, answer, run=run, noun="texts", as_json=as_json)


def _score_texts(generator: "Generator", run: Path, options: TextFileOptions, too_long: Any, as_json: bool) -> None:
    """Score the texts in files with a language model, and print the scores."""
    from transom.cli.evaluation_data import record_access
    from transom.data.text.documents import list_files, read_documents
    from transom.tasks.progress import show_progress

    files = options.config()
    documents = read_documents(files, Path.cwd())
    record_access([run], [*list_files(files, Path.cwd())], "score", is_part=files.start > 0)
    with show_progress("tokens", quiet=as_json) as notify:
        scores: list[Any] = generator.score(documents.texts, options.overlap or 0, too_long=too_long, notify=notify)
    _print_text_scores(scores, documents.origins, generator.model.config.max_seq_len - 1, as_json)


def _score_pairs(translator: Any, run: Path, files: PairFiles, to: str | None, as_json: bool) -> None:
    from transom.cli.evaluation_data import read_test_set
    from transom.decoding.predictors.likelihood import perplexity
    from transom.tasks.progress import show_progress

    translator.tokenizers.source.language_prefix(to)  # checks `to` before the test set is read and logged
    pairs = read_test_set([run], files, "score")
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
        print_note(
            f"{unknown:,} tokens are out of vocabulary and were scored as the unknown token, so the bits per byte are underestimated"
        )
