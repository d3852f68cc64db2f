"""``transom generate``: continue a text, printing tokens as they are sampled."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import DecodingPrecisionOption, GenerateTooLong, RunArgument
from transom.cli.output import JsonOption, print_note, print_result, select_options
from transom.errors import ConfigError

EXAMPLES = """
transom generate runs/shakespeare-char "ROMEO:"
transom generate runs/stdlib "def read(" --temperature 0.7 --top-p 0.9 --max-new-tokens 400
transom generate runs/stdlib --input prompts.txt --num-samples 3 --json
transom generate runs/stdlib "class Stack:" --stop "\\n\\n\\n" --seed 7
"""

app = typer.Typer(add_completion=False)


MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Maximum number of generated tokens.")]
MinNewTokens = Annotated[int | None, typer.Option(min=0, help="Minimum number of generated tokens before the end-of-sequence token.")]
Temperature = Annotated[
    float | None, typer.Option(min=0, help="Divisor of the logits: below 1 sharpens the distribution, 0 is greedy decoding.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")]
TopP = Annotated[
    float | None, typer.Option(min=0, max=1, help="Nucleus sampling: sample from the most probable tokens with this total probability.")
]
MinP = Annotated[
    float | None, typer.Option(min=0, max=1, help="Sample from tokens with at least this fraction of the highest probability.")
]
TypicalP = Annotated[
    float | None, typer.Option(min=0, max=1, help="Locally typical sampling: tokens closest to the entropy, with this total probability.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Penalty on tokens that occurred before (CTRL); above 1 discourages repetition.")
]
FrequencyPenalty = Annotated[float | None, typer.Option(help="Subtracted from a token's logit per occurrence so far.")]
PresencePenalty = Annotated[float | None, typer.Option(help="Subtracted once from the logit of a token that occurred.")]
ExitThreshold = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Early exit: leave the decoder at the first block with this confidence; 1 uses all blocks."),
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Stop string, excluded from the output; \\n is a line break. Repeatable.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the sampling; equal seeds give equal texts.")]


@app.command()
def generate(
    run: RunArgument,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Text to continue. Default: generate from an empty prompt.")
    ] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Prompts, one per line (.gz too).")] = None,
    samples: Annotated[int, typer.Option("--num-samples", min=1, max=100_000, metavar="N", help="Number of texts per prompt.")] = 1,
    max_new_tokens: MaxNewTokens = None,
    min_new_tokens: MinNewTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repetition_penalty: RepetitionPenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    presence_penalty: PresencePenalty = None,
    early_exit_threshold: ExitThreshold = None,
    stop: Stop = None,
    seed: Seed = None,
    too_long: GenerateTooLong = "window",
    precision: DecodingPrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print the prompt and its continuation; an instruction-tuned model prints the answer only.

    Options that are not given default to the recipe's decoding settings.
    """
    parameters = {**locals()}
    if prompt is not None and input_file is not None:
        raise ConfigError("expected a PROMPT or --input, found both; remove one")
    with gc_frozen_imports():
        from transom.data.text.text_io import check_text, read_lines
        from transom.decoding.predictors.generator import GenerateOptions, Generator
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress

    prompts = read_lines(input_file) if input_file is not None else [check_text(prompt or "", "PROMPT")]
    stops = None if stop is None else [text.replace("\\n", "\n") for text in stop]
    options = {**select_options(parameters, GenerateOptions), "stop": stops, "name": "PROMPT" if input_file is None else str(input_file)}
    generator = load(run, precision, kind=Generator)
    if not as_json:
        _note_unused_options(generator, options, samples)
    start = time.perf_counter()
    if input_file is None and samples == 1 and not as_json:
        exits = _print_stream(generator, prompts[0], options)
        _note_early_exit(generator, exits, time.perf_counter() - start)
        return
    with show_progress("texts", quiet=as_json or input_file is None) as notify:
        found = generator.continuations(prompts, samples, **options, notify=notify)
    _print_continuations(prompts, found, generator, as_json)
    _note_early_exit(generator, found.early_exit, time.perf_counter() - start)


SAMPLING_OPTIONS = ("top_k", "top_p", "min_p", "typical_p", "seed")


def _note_unused_options(generator: Any, options: dict[str, Any], samples: int) -> None:
    """Warn that sampling options have no effect at temperature 0."""
    temperature = generator.sampling.temperature if options["temperature"] is None else options["temperature"]
    ignored = [f"--{name.replace('_', '-')}" for name in SAMPLING_OPTIONS if options[name] is not None] + ["--num-samples"] * (samples > 1)
    if temperature == 0 and ignored:
        print_note(f"temperature 0 is greedy decoding, so these options have no effect: {', '.join(ignored)}")


def _print_continuations(prompts: Sequence[str], found: Sequence[Sequence[Any]], generator: Any, as_json: bool) -> None:
    """Print the texts generated for each prompt."""
    records = [
        {"prompt": text, "continuations": [each.to_json() for each in of_prompt]} for text, of_prompt in zip(prompts, found, strict=True)
    ]
    prefixes = [""] * len(prompts) if generator.instruction_tuned else prompts
    lines = [line for text, of_prompt in zip(prefixes, found, strict=True) for each in of_prompt for line in (f"{text}{each.text}", "---")]
    print_result(records, as_json, lines[:-1])
    if n_overflowed := sum(each.windows > 0 for of_prompt in found for each in of_prompt):
        _note_window_overflow(f"{n_overflowed:,} texts", generator, as_json)


def _print_stream(generator: Any, prompt: str, options: dict[str, Any]) -> Any:
    """Stream one text to standard output; return its early-exit statistics, None without early exit."""
    pieces = generator.stream(prompt, **options)
    print("" if generator.instruction_tuned else prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)
    if pieces.windows:
        _note_window_overflow("the text", generator, quiet=False)
    return pieces.early_exit


def _note_window_overflow(what: str, generator: Any, quiet: bool) -> None:
    if not quiet:
        max_tokens = generator.model.config.max_seq_len
        print_note(
            f"{what} exceeded the context window of {max_tokens:,} tokens: whenever it was full, generation continued from the last"
            f" {max_tokens // 2:,}"
        )


def _note_early_exit(generator: Any, exits: Any, seconds: float) -> None:
    """Report the mean exit depth and the speed, if early exit is enabled."""
    if exits is not None:
        n_tokens, n_blocks = sum(tokens for tokens, _ in exits.depth_stats), len(exits.model.decoder.blocks)
        print_note(f"mean exit after block {exits.mean_exit_depth:.2f} of {n_blocks}; {n_tokens / seconds:,.0f} tokens/s")
        if not generator.early_exit_trained:
            print_note("the model was trained without training.early_exit_loss: only its last block was trained to predict tokens")
