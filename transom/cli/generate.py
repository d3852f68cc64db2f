"""``transom generate``: continue a text, printing tokens as they are sampled."""

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import Answer, InputOptions, Inputs, answer_inputs, read_inputs
from transom.cli.options import GenerateTooLong, InferencePrecisionOption, RunArgument, expand_options
from transom.cli.output import JsonAnswersOption, print_note, show_controls
from transom.cli.sampling import SamplingOptions
from transom.cli.search_steps import StepTrace, TraceFileOption, TraceOption, check_trace_options

EXAMPLES = """
transom generate runs/shakespeare-char "ROMEO:"
transom generate runs/stdlib "def read(" --temperature 0.7 --top-p 0.9 --max-new-tokens 400
transom generate runs/stdlib --input prompts.txt --num-samples 3 --json
transom generate runs/stdlib "def read(" --trace steps --max-new-tokens 5
transom generate runs/stdlib "def read(" --edit without-head-2.json
transom generate runs/stdlib "class Stack:" --stop "\\n\\n\\n" --seed 7
"""

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def generate(
    run: RunArgument,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", help='Texts to continue. "" generates a text without a prompt.')
    ] = None,
    *,
    sources: InputOptions,
    samples: Annotated[
        int, typer.Option("--num-samples", min=1, max=100_000, metavar="N", help="Number of texts to generate per prompt.")
    ] = 1,
    sampling: SamplingOptions,
    trace: TraceOption = None,
    trace_file: TraceFileOption = None,
    edit: EditOption = None,
    too_long: GenerateTooLong = "window",
    precision: InferencePrecisionOption = "auto",
    as_json: JsonAnswersOption = False,
) -> None:
    """Print each prompt and its continuation. For an instruction-tuned model, print only the answer.

    Options that are not given default to the decoding settings of the run's recipe.
    """
    with gc_frozen_imports():
        from transom.decoding.predictors.generator import Generator
        from transom.tasks.load import load

    check_trace_options(trace, trace_file, samples, "--num-samples", [run, sources.input_file])
    inputs = read_inputs(prompts, sources, "PROMPT", "prompts")
    options = {**sampling.given, "too_long": too_long, "name": inputs.name}
    generator = load(run, precision, kind=Generator)
    if not as_json:
        sampling.note_unused(generator.sampling.temperature, ("--num-samples",) * (samples > 1))
    start, overflows, exits = time.perf_counter(), list[bool](), list[Any]()

    steps = StepTrace(generator.record_search, generator.tokenizer.symbols, options)

    def answer(texts: list[str], notify: Any) -> list[Answer]:
        found = generator.continuations(texts, samples, **options, notify=notify)
        overflows.extend(each.windows > 0 for of_prompt in found for each in of_prompt)
        exits.append(found.early_exit)
        prefixes = [""] * len(texts) if generator.instruction_tuned else texts
        return [_answer(*each) for each in zip(texts, prefixes, found, strict=True)]

    def stream(prompt: str) -> None:
        pieces = _print_stream(generator, prompt, options)
        overflows.append(pieces.windows > 0)
        exits.append(pieces.early_exit)

    streamed = stream if samples == 1 and trace is None else None
    if inputs.given is not None and len(inputs.given) == 1 and not inputs.is_stream and streamed and not as_json:
        inputs = Inputs(inputs.name, None, iter(inputs.given))
    with edits_in_force(generator, edit, precision, decodes=True):
        answer_inputs(inputs, steps.answer if trace else answer, run=run, noun="texts", as_json=as_json, stream=streamed, separator="---")
    steps.save(trace_file)
    if sum(overflows) and not as_json:
        _note_window_overflow("the text" if len(overflows) == 1 else f"{sum(overflows):,} texts", generator)
    for found in exits[:1]:
        _note_early_exit(generator, found, time.perf_counter() - start)


def _answer(prompt: str, prefix: str, continuations: Sequence[Any]) -> Answer:
    texts = [f"{prefix}{each.text}" for each in continuations]
    lines = [line for text in texts for line in (text, "---")][:-1]
    return Answer({"prompt": prompt, "continuations": [each.to_json() for each in continuations]}, lines)


def _print_stream(generator: Any, prompt: str, options: dict[str, Any]) -> Any:
    """Print one text to standard output while it is generated, and return the finished stream."""
    pieces = generator.stream(prompt, **options)
    show = show_controls if sys.stdout.isatty() else str
    print("" if generator.instruction_tuned else show(prompt), end="", flush=True)
    for piece in pieces:
        print(show(piece), end="", flush=True)
    print(flush=True)
    return pieces


def _note_window_overflow(what: str, generator: Any) -> None:
    max_tokens = generator.model.config.max_seq_len
    print_note(
        f"{what} exceeded the context window of {max_tokens:,} tokens: whenever the window was full, generation continued from its"
        f" last {max_tokens // 2:,} tokens"
    )


def _note_early_exit(generator: Any, exits: Any, seconds: float) -> None:
    """Print a note with the mean exit block and the speed, if early exit is enabled."""
    if exits is not None:
        n_tokens, n_blocks = sum(tokens for tokens, _ in exits.depth_stats), len(exits.model.decoder.blocks)
        print_note(f"mean exit after block {exits.mean_exit_depth:.2f} of {n_blocks}; {n_tokens / seconds:,.0f} tokens/s")
        if not generator.early_exit_trained:
            print_note("the model was trained without training.early_exit_loss, so only its last block was trained to predict tokens")
