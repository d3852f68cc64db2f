"""Options of sampling, shared by ``transom generate``, ``transom chat`` and ``transom translate``."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from transom.cli.options import given_options, reject_options
from transom.cli.output import print_note

TemperatureOption = Annotated[
    float | None, typer.Option(min=0, help="Divisor of the logits: below 1 sharpens the distribution, 0 is greedy decoding.")
]
TopKOption = Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")]
TopPOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="Nucleus sampling: sample from the most probable tokens with this total probability.")
]
MinPOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="Sample from tokens with at least this fraction of the highest probability.")
]
TypicalPOption = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Locally typical sampling: tokens closest to the entropy, with this total probability."),
]
SeedOption = Annotated[int | None, typer.Option(min=0, help="Seed of the sampling; equal seeds give equal texts.")]


class SamplingOptions(NamedTuple):
    """Options of text generation; each field is an option, and None is the recipe's setting. See ``GenerateOptions``."""

    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum number of generated tokens.")] = None
    min_new_tokens: Annotated[
        int | None, typer.Option(min=0, help="Minimum number of generated tokens before the end-of-sequence token.")
    ] = None
    temperature: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    min_p: MinPOption = None
    typical_p: TypicalPOption = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Penalty on tokens that occurred before (CTRL); above 1 discourages repetition.")
    ] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="Subtracted from a token's logit per occurrence so far.")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Subtracted once from the logit of a token that occurred.")] = None
    early_exit_threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Early exit: leave the decoder at the first block with this confidence; 1 uses all blocks."),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop string, excluded from the output; \\n is a line break. Repeatable.")
    ] = None
    seed: SeedOption = None

    @property
    def given(self) -> dict[str, Any]:
        r"""The options as ``Generator`` takes them; ``\\n`` in a stop string is a line break."""
        stops = None if self.stop is None else [text.replace("\\n", "\n") for text in self.stop]
        return {**self._asdict(), "stop": stops}

    def note_unused(self, temperature: float, others: tuple[str, ...] = ()) -> None:
        """Warn that sampling options have no effect at temperature 0.

        Args:
            temperature: the recipe's temperature, used if no option sets another.
            others: further options that have no effect then.
        """
        if (temperature if self.temperature is None else self.temperature) == 0:
            _note_unused(self, others)


class TranslationSampling(NamedTuple):
    """Options of sampled translations; each field is an option."""

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
