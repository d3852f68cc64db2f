"""``transom translate``: translate a sentence, a file or standard input, one output line per input line."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    SPLIT_NOTE,
    BeamSizeOption,
    DecodingPrecisionOption,
    LengthPenaltyOption,
    RunArgument,
    TargetLanguageOption,
    TranslateTooLong,
)
from transom.cli.output import JsonOption, note_too_long, print_note, print_result, select_options
from transom.errors import ConfigError

EXAMPLES = """
transom translate runs/en-de "Two dogs are playing in the snow."
transom translate runs/en-de --input test.en --output test.de
transom translate runs/en-de --n-best 5 "A man sleeps."
transom translate runs/joint --to fr "A man sleeps."
cat test.en | transom translate runs/en-de --beam-size 1 > test.de
"""

app = typer.Typer(add_completion=False)


@app.command()
def translate(
    run: RunArgument,
    sentence: Annotated[
        str | None, typer.Argument(metavar="SENTENCE", help="Sentence to translate. Default: --input, else standard input.")
    ] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Sentences, one per line (.gz too).")] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="File for the translations. Default: standard output.")
    ] = None,
    to: TargetLanguageOption = None,
    beam_size: BeamSizeOption = None,
    length_penalty: LengthPenaltyOption = None,
    n_best: Annotated[int, typer.Option("--n-best", min=1, help="Translations per sentence, as: number ||| text ||| score ||| log p.")] = 1,
    min_length: Annotated[int | None, typer.Option("--min-length", min=0, help="Minimum length of a translation in tokens.")] = None,
    max_length: Annotated[int | None, typer.Option("--max-length", min=1, help="Maximum length of a translation in tokens.")] = None,
    too_long: TranslateTooLong = "split",
    precision: DecodingPrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print one translation per input line, in order; an empty line stays empty."""
    parameters = {**locals()}
    if sentence is not None and input_file is not None:
        raise ConfigError("expected a SENTENCE or --input, found both; remove one")
    texts, name = _read_sources(sentence, input_file)

    with gc_frozen_imports():
        from transom.decoding.predictors.translator import TranslateOptions, Translator
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress

    check_output_path(output_file, [run, input_file])
    translator = load(run, precision, kind=Translator)
    with show_progress("sentences", quiet=as_json or sentence is not None) as notify:
        hypotheses = translator.n_best(texts, n_best, **select_options(parameters, TranslateOptions), name=name, notify=notify)
    translations = [
        {"source": text, "translations": [best.to_json() for best in of_text]} for text, of_text in zip(texts, hypotheses, strict=True)
    ]
    n_too_long = sum(of_text[0].pieces > 1 for of_text in hypotheses if of_text)
    _print_translations(translations, n_best, n_too_long, output_file, as_json)
    if not as_json:
        note_too_long(n_too_long, len(texts), "sentences", translator.max_tokens(to), SPLIT_NOTE)


def _read_sources(sentence: str | None, input_file: Path | None) -> tuple[list[str], str]:
    """Return the lines to translate and the name of their source for messages."""
    from transom.data.text.text_io import decode_lines, read_lines

    if sentence is not None:
        content = io.BytesIO(sentence.encode(errors="surrogateescape"))  # the bytes as typed
        return list(decode_lines(content, "SENTENCE")) or [""], "SENTENCE"
    if input_file is not None:
        return read_lines(input_file), str(input_file)
    if sys.stdin.isatty():
        print_note("translating standard input, one sentence per line; end with Ctrl-D")
    return list(decode_lines(sys.stdin.buffer, "standard input")), "standard input"


def _print_translations(translations: list[dict[str, Any]], n_best: int, n_too_long: int, output_file: Path | None, as_json: bool) -> None:
    if output_file is None:
        print_result(translations, as_json, _format_lines(translations, n_best))
        return
    from transom.files.atomic_io import write_file

    write_file(output_file, "".join(f"{line}\n" for line in _format_lines(translations, n_best)).encode())
    print_result({"sentences": len(translations), "n_too_long": n_too_long, "output": str(output_file)}, as_json, [])


def _format_lines(translations: list[dict[str, Any]], n_best: int) -> Iterator[str]:
    for number, record in enumerate(translations):
        for best in record["translations"]:
            yield best["text"] if n_best == 1 else f"{number} ||| {best['text']} ||| {best['score']:.4f} ||| {best['log_p']:.4f}"
