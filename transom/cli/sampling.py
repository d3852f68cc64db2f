"""Options of sampling, shared by ``transom generate`` and ``transom chat``."""

from typing import Annotated, Any, NamedTuple

import typer

from transom.cli.output import print_note


class SamplingOptions(NamedTuple):
    """Options of text generation; each field is an option, and None is the recipe's setting. See ``GenerateOptions``."""

    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum number of generated tokens.")] = None
    min_new_tokens: Annotated[
        int | None, typer.Option(min=0, help="Minimum number of generated tokens before the end-of-sequence token.")
    ] = None
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Divisor of the logits: below 1 sharpens the distribution, 0 is greedy decoding.")
    ] = None
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")] = None
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Nucleus sampling: sample from the most probable tokens with this total probability.")
    ] = None
    min_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Sample from tokens with at least this fraction of the highest probability.")
    ] = None
    typical_p: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Locally typical sampling: tokens closest to the entropy, with this total probability."),
    ] = None
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
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the sampling; equal seeds give equal texts.")] = None

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
        used = ("top_k", "top_p", "min_p", "typical_p", "seed")
        ignored = [f"--{name.replace('_', '-')}" for name in used if getattr(self, name) is not None] + list(others)
        if (temperature if self.temperature is None else self.temperature) == 0 and ignored:
            print_note(f"temperature 0 is greedy decoding, so these options have no effect: {', '.join(ignored)}")
