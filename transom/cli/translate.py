"""``transom translate``: translate a sentence, a file or standard input, one output line per input line."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.checkpoints.outputs import refuse_output
from transom.cli.answers import Json, answer, note, note_longer, options_of
from transom.cli.imports import lasting_imports
from transom.cli.options import SPLIT, Alpha, Beam, Run, SearchPrecision, To, TranslateTooLong
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
    run: Run,
    sentence: Annotated[
        str | None, typer.Argument(metavar="SENTENCE", help="Sentence to translate. Default: --input, else standard input.")
    ] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Sentences, one per line (.gz too).")] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="File for the translations. Default: standard output.")
    ] = None,
    to: To = None,
    beam_size: Beam = None,
    length_penalty: Alpha = None,
    n_best: Annotated[int, typer.Option("--n-best", min=1, help="Translations per sentence, as: number ||| text ||| score ||| log p.")] = 1,
    min_length: Annotated[int | None, typer.Option("--min-length", min=0, help="Minimum length of a translation in tokens.")] = None,
    max_length: Annotated[int | None, typer.Option("--max-length", min=1, help="Maximum length of a translation in tokens.")] = None,
    too_long: TranslateTooLong = "split",
    precision: SearchPrecision = "auto",
    as_json: Json = False,
) -> None:
    """Print one translation per input line, in order; an empty line stays empty."""
    parameters = {**locals()}
    if sentence is not None and input_file is not None:
        raise ConfigError("expected a SENTENCE or --input, found both; remove one")
    texts, name = _texts(sentence, input_file)

    with lasting_imports():
        from transom.decoding.predictors.translator import Options, Translator
        from transom.tasks.load import load_as
        from transom.tasks.progress import counting

    refuse_output(output_file, [run, input_file])
    translator = load_as(Translator, run, precision)
    with counting("sentences", quiet=as_json or sentence is not None) as tell:
        found = translator.n_best(texts, n_best, **options_of(parameters, Options), name=name, tell=tell)
    records = [{"source": text, "translations": [best.to_json() for best in of_text]} for text, of_text in zip(texts, found, strict=True)]
    n_longer = sum(of_text[0].pieces > 1 for of_text in found if of_text)
    _give(records, n_best, n_longer, output_file, as_json)
    if not as_json:
        note_longer(n_longer, len(texts), "sentences", translator.most(to), SPLIT)


def _texts(sentence: str | None, input_file: Path | None) -> tuple[list[str], str]:
    """Return the lines to translate and the name of their source for messages."""
    from transom.data.text.text import decode_lines, read_lines

    if sentence is not None:
        content = io.BytesIO(sentence.encode(errors="surrogateescape"))  # the bytes as typed
        return list(decode_lines(content, "SENTENCE")) or [""], "SENTENCE"
    if input_file is not None:
        return read_lines(input_file), str(input_file)
    if sys.stdin.isatty():
        note("translating standard input, one sentence per line; end with Ctrl-D")
    return list(decode_lines(sys.stdin.buffer, "standard input")), "standard input"


def _give(records: list[dict[str, Any]], n_best: int, n_longer: int, output_file: Path | None, as_json: bool) -> None:
    if output_file is None:
        answer(records, as_json, _lines(records, n_best))
        return
    from transom.files.durable import write_file

    write_file(output_file, "".join(f"{line}\n" for line in _lines(records, n_best)).encode())
    answer({"sentences": len(records), "n_longer": n_longer, "output": str(output_file)}, as_json, [])


def _lines(records: list[dict[str, Any]], n_best: int) -> Iterator[str]:
    for number, record in enumerate(records):
        for best in record["translations"]:
            yield best["text"] if n_best == 1 else f"{number} ||| {best['text']} ||| {best['score']:.4f} ||| {best['log_p']:.4f}"
