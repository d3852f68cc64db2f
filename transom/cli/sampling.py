"""Options of sampling, shared by ``transom generate``, ``transom chat`` and ``transom translate``."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from transom.cli.options import given_options, reject_options
from transom.cli.output import print_note

TemperatureOption = Annotated[
    float | None, typer.Option(min=0, help="Divisor of the logits. Values below 1 sharpen the distribution. 0 means greedy decoding.")
]
TopKOption = Annotated[int | None, typer.Option(min=1, help="Top-k sampling: sample only from the k most probable tokens.")]
TopPOption = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Nucleus sampling: sample only from the most probable tokens with this total probability."),
]
MinPOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="Min-p sampling: sample only tokens with this fraction or more of the top probability.")
]
TypicalPOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Locally typical sampling: sample from the tokens with surprisal nearest the entropy and with this total probability.",
    ),
]
SeedOption = Annotated[int | None, typer.Option(min=0, help="Random seed of the sampling. Equal seeds give equal texts.")]


class SamplingOptions(NamedTuple):
    """Options of text generation, one option per field. None stands for the setting of the recipe.

    ``GenerateOptions`` describes the fields.
    """

    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum number of tokens to generate.")] = None
    min_new_tokens: Annotated[
        int | None, typer.Option(min=0, help="Minimum number of tokens to generate before the end-of-sequence token.")
    ] = None
    temperature: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    min_p: MinPOption = None
    typical_p: TypicalPOption = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help="Penalty on tokens that occur in the prompt or output (Keskar et al. 2019). Values above 1 discourage repetition."
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Number to subtract from a token's logit for each time it was generated.")
    ] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Number to subtract from a token's logit if it was generated before.")] = (
        None
    )
    early_exit_threshold: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Early exit: skip the remaining blocks once the confidence in a token reaches this value. 1 uses all blocks."
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="String that ends a text and is not printed. \\n stands for a line break. Repeatable."),
    ] = None
    seed: SeedOption = None

    @property
    def given(self) -> dict[str, Any]:
        r"""Keyword arguments for the methods of ``Generator``, with ``\n`` in stop strings replaced by a line break."""
        stops = None if self.stop is None else [text.replace("\\n", "\n") for text in self.stop]
        return {**self._asdict(), "stop": stops}

    def note_unused(self, temperature: float, others: tuple[str, ...] = ()) -> None:
        """Print a note if sampling options have no effect because the temperature is 0.

        Args:
            temperature: temperature of the recipe, used if the option is not given.
            others: flags of further options that have no effect at temperature 0.
        """
        if (temperature if self.temperature is None else self.temperature) == 0:
            _note_unused(self, others)


class TranslationSampling(NamedTuple):
    """Options of sampled translations, one option per field."""

    sample: Annotated[
        bool | None,
        typer.Option("--sample", help="Sample translations instead of searching for the most probable; --n-best N gives N different ones."),
    ] = None
    temperature: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    min_p: MinPOption = None
    typical_p: TypicalPOption = None
    seed: SeedOption = None

    def check(self, of_search: Mapping[str, object]) -> None:
        """Reject options that would have no effect.

        Args:
            of_search: value of each option of beam search, None where it was not given.

        Raises:
            ConfigError: an option of beam search is given with ``--sample``, or an option of sampling without it.
        """
        if self.sample:
            reject_options(of_search, "beam search", "--sample")
        else:
            reject_options({flag: value for flag, value in given_options(self).items() if flag != "--sample"}, "--sample", "beam search")

    def note_unused(self, n_best: int, quiet: bool) -> None:
        """Warn, unless ``quiet``, that sampling options and several translations have no effect at temperature 0."""
        if self.temperature == 0 and not quiet:
            _note_unused(self, ("--n-best",) * (n_best > 1))


def _note_unused(options: SamplingOptions | TranslationSampling, others: tuple[str, ...]) -> None:
    used = ("top_k", "top_p", "min_p", "typical_p", "seed")
    ignored = [f"--{name.replace('_', '-')}" for name in used if getattr(options, name) is not None] + list(others)
    if ignored:
        print_note(f"temperature 0 is greedy decoding, so these options have no effect: {', '.join(ignored)}")
