"""``transom translate``: translate sentences, a file or standard input, one output line per input line."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import Answer, InputOptions, Inputs, answer_inputs, read_inputs
from transom.cli.options import (
    SPLIT_NOTE,
    BeamSizeOption,
    InferencePrecisionOption,
    LengthPenaltyOption,
    RunArgument,
    TargetLanguageOption,
    TranslateTooLong,
    expand_options,
    reject_options,
)
from transom.cli.output import JsonAnswersOption, note_too_long, print_result, select_options
from transom.cli.sampling import TranslationSampling
from transom.cli.search_steps import StepTrace, TraceFileOption, TraceOption, check_trace_options
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.decoding.predictors.results import Alignment
    from transom.decoding.predictors.translator import Translation, Translator

EXAMPLES = """
transom translate runs/en-de "Two dogs are playing in the snow."
transom translate runs/en-de
transom translate runs/en-de --input test.en --output test.de
transom translate runs/en-de --n-best 5 "A man sleeps."
transom translate runs/en-de --sample --n-best 5 --seed 7 "A man sleeps."
transom translate runs/en-de --alignment "A man sleeps."
transom translate runs/en-de --alignment --html alignments.html --input test.en
transom translate runs/en-de --trace steps --beam-size 2 "A man sleeps."
transom translate runs/en-de --edit without-head-2.json "A man sleeps."
transom translate runs/joint --to fr "A man sleeps."
cat test.en | transom translate runs/en-de --beam-size 1 > test.de
tail -f log.en | transom translate runs/en-de --line-buffered
"""

SentencesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="SENTENCE...", help="Sentences to translate. Default: the lines of --input, or else of standard input."),
]
OutputOption = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="File for the translations. Default: standard output.")]
AlignmentOption = Annotated[
    bool,
    typer.Option(
        "--alignment", help="Also print which source words each translated word attends to, as a chart or with --json as numbers."
    ),
]

app = typer.Typer(add_completion=False)

NBestOption = Annotated[
    int,
    typer.Option(
        "--n-best",
        min=1,
        help="Number of translations per sentence. Above 1, each is printed as: line number from 0 ||| text ||| score ||| log p.",
    ),
]


@app.command()
@expand_options
def translate(
    run: RunArgument,
    sentences: SentencesArgument = None,
    *,
    sources: InputOptions,
    output_file: OutputOption = None,
    to: TargetLanguageOption = None,
    beam_size: BeamSizeOption = None,
    length_penalty: LengthPenaltyOption = None,
    n_best: NBestOption = 1,
    sampling: TranslationSampling,
    alignment: AlignmentOption = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="With --alignment: HTML page to write.")] = None,
    trace: TraceOption = None,
    trace_file: TraceFileOption = None,
    edit: EditOption = None,
    min_length: Annotated[int | None, typer.Option("--min-length", min=0, help="Minimum length of a translation in tokens.")] = None,
    max_length: Annotated[int | None, typer.Option("--max-length", min=1, help="Maximum length of a translation in tokens.")] = None,
    too_long: TranslateTooLong = "split",
    precision: InferencePrecisionOption = "auto",
    as_json: JsonAnswersOption = False,
) -> None:
    """Print one translation per input line, in the order of the lines. The translation of an empty line is an empty line.

    Lines that are typed, or read with --line-buffered, are translated one by one as they arrive.
    """
    parameters = {**locals()}
    sampling.check({"--beam-size": beam_size, "--length-penalty": length_penalty})
    if not alignment:
        reject_options({"--html": html}, "--alignment", "translations alone")
    check_trace_options(trace, trace_file, n_best, "--n-best", [run, sources.input_file])
    inputs = _read_whole_inputs(sentences, sources, {"--output": output_file, "--html": html, "--trace-file": trace_file})
    with gc_frozen_imports():
        from transom.decoding.predictors.translate_options import TranslateOptions
        from transom.decoding.predictors.translator import Translator
        from transom.tasks.load import load

    check_output_path(output_file, [run, sources.input_file])
    check_output_path(html, [run, sources.input_file, output_file])
    translator = load(run, precision, kind=Translator)
    options = {**select_options(parameters, TranslateOptions), **sampling._asdict(), "name": inputs.name}
    sampling.note_unused(n_best, as_json)
    n_too_long, alignments = 0, list[tuple[str, str, Any]]()
    steps = StepTrace(translator.record_search, translator.tokenizers.target.symbols, options)

    def answer(texts: list[str], notify: Any) -> list[Answer]:
        nonlocal n_too_long
        found = translator.n_best(texts, n_best, **options, notify=notify)
        n_too_long += sum(best[0].pieces > 1 for best in found if best)
        aligned = [_align(translator, text, best, to) if alignment else None for text, best in zip(texts, found, strict=True)]
        alignments.extend((text, best[0].text, each) for text, best, each in zip(texts, found, aligned, strict=True) if each is not None)
        return [_answer(number, *each, n_best) for number, each in enumerate(zip(texts, found, aligned, strict=True))]

    with edits_in_force(translator, edit, precision, decodes=True):
        answered = answer_inputs(
            inputs, steps.answer if trace else answer, run=run, noun="sentences", as_json=as_json, output_file=output_file
        )
    steps.save(trace_file)
    if output_file is not None:
        print_result({"sentences": len(answered), "n_too_long": n_too_long, "output": str(output_file)}, as_json, [])
    if html is not None:
        _write_page(html, run.resolve().name, alignments)
    if not as_json:
        note_too_long(n_too_long, len(answered), "sentences", translator.max_tokens(to), SPLIT_NOTE)


def _read_whole_inputs(sentences: list[str] | None, sources: InputOptions, pages: Mapping[str, Path | None]) -> Inputs:
    """Read the sentences.

    Raises:
        ConfigError: an option of ``pages``, whose file needs all sentences, is given, but lines are answered one by one.
    """
    inputs = read_inputs(sentences, sources, "SENTENCE", "sentences")
    if inputs.given is None and (option := next((flag for flag, path in pages.items() if path is not None), None)):
        raise ConfigError(
            f"{option} needs the whole input, but lines are answered one by one; add --input FILE, or leave out --line-buffered"
        )
    return inputs


def _write_page(html: Path, name: str, alignments: list[tuple[str, str, Any]]) -> None:
    from transom.files.atomic_io import write_file
    from transom.inspection.pages.alignment_pictures import alignment_page

    write_file(html, alignment_page(name, alignments).encode())


def _align(translator: "Translator", source: str, translations: "Sequence[Translation]", to: str | None) -> "Alignment | None":
    """Return the alignment of a sentence with its best translation; None if the translation is empty or the sentence was split."""
    if not translations or not translations[0].text.strip() or translations[0].pieces > 1:
        return None
    return translator.align(source, translations[0].text, to=to)


def _answer(number: int, source: str, translations: "Iterable[Translation]", alignment: "Alignment | None", n_best: int) -> Answer:
    record: dict[str, Any] = {"source": source, "translations": [each.to_json() for each in translations]}
    lines = [each.text if n_best == 1 else f"{number} ||| {each.text} ||| {each.score:.4f} ||| {each.log_p:.4f}" for each in translations]
    if alignment is not None:
        record["alignment"] = alignment.to_json()
        lines += ["", str(alignment), ""]
    return Answer(record, lines)
