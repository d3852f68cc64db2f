"""Options that several verbs share."""

from collections.abc import Callable, Mapping
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from transom.config.arguments import data_arguments
from transom.config.options import DataOption
from transom.errors import ConfigError

RecipeName = Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A packaged recipe (see transom recipes) or a TOML file.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe, as in training.max_steps=300; may be repeated."),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: the --out of a training.")]
Source = Annotated[Path, typer.Option("--source", metavar="FILE", help="Source sentences, one a line (.gz too).")]
Target = Annotated[Path, typer.Option("--target", metavar="FILE", help="Their translations, line by line.")]
To = Annotated[
    str | None, typer.Option("--to", metavar="TAG", help="Target language, of a model that knows several: a tag of its data.languages.")
]
Beam = Annotated[int | None, typer.Option("--beam-size", min=1, help="Hypotheses kept a sentence; 1 is greedy. Default: the recipe's.")]
Alpha = Annotated[float | None, typer.Option("--length-penalty", min=0, help="GNMT's alpha. Default: the recipe's.")]
Precision = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"], typer.Option("--precision", help="Arithmetic of the matrix products; auto suits the machine.")
]
SearchPrecision = Annotated[
    Literal["auto", "fp32", "bf16", "fp16", "int8"],
    typer.Option(
        "--precision", help="Arithmetic of the matrix products; auto suits the machine. int8 is the fastest on a processor, and less exact."
    ),
]


def _too_long(about: str) -> Any:
    """Make the option of what becomes of a text that is longer than the model reads."""
    return typer.Option("--too-long", help=f"A text longer than the model reads: {about}")


TranslateTooLong = Annotated[Literal["split", "refuse"], _too_long("split it at sentence ends, or refuse.")]
ClassifyTooLong = Annotated[
    Literal["truncate", "window", "refuse"] | None,
    _too_long("take its beginning, all of it in windows, or refuse. Default: truncate; for texts alone."),
]
EmbedTooLong = Annotated[
    Literal["truncate", "window", "refuse"], _too_long("take its beginning, the mean over all of it in windows, or refuse.")
]
ScoreTooLong = Annotated[
    Literal["window", "truncate", "refuse"] | None,
    _too_long("cut it into windows, leave out the rest, or refuse. Default: window; with --text alone."),
]
FillTooLong = Annotated[Literal["window", "refuse"], _too_long("take what is around its gaps, or refuse.")]
GenerateTooLong = Annotated[Literal["window", "refuse"], _too_long("where it outgrows it, go on from its last half, or refuse.")]
CompareTooLong = Annotated[
    Literal["truncate", "refuse"] | None, _too_long("take its beginning, or refuse. Default: truncate; for texts alone.")
]

TRUNCATED = "their beginning stands for them"
"""What becomes of texts that are truncated, for people."""

IN_WINDOWS = "read in windows"
"""What becomes of texts that are read in windows."""

SPLIT = "split at sentence ends, or else in between"
"""What becomes of texts that are split."""


def refuse_with(given: Mapping[str, object], needed: str, found: str) -> None:
    """Refuse flags that could have no effect on what is asked.

    Args:
        given: each one's value, None where it was not given.
        needed: what they are for.
        found: what is asked.

    Raises:
        ConfigError: one was given.
    """
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(f"expected {flag} with {needed}, found it with {found}; leave it out")


class WithDataOptions:
    """A verb with the options by which the registered tasks name a person's own files; they reach it as its argument ``files``.

    The tasks are asked for them whenever the command line is built.
    """

    def __init__(self, verb: Callable[..., Any], wanted: Callable[[DataOption], bool] = lambda _: True) -> None:
        """Take the place of a function that has a parameter ``files``; it gets the options that are ``wanted``."""
        update_wrapper(self, verb)
        self._verb, self._wanted = verb, wanted

    @property
    def options(self) -> dict[str, DataOption]:
        """The options by the names that their values are passed under."""
        return data_arguments(self._wanted)

    @property
    def __signature__(self) -> Signature:
        """The function's, with the options in the place of ``files``."""
        parameters = list[Parameter]()
        for each in signature(self._verb).parameters.values():
            if each.name == "files":
                parameters += [
                    Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_own(option)) for name, option in self.options.items()
                ]
            else:
                parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY))
        return Signature(parameters)

    def __call__(self, **given: Any) -> Any:
        """Call the function with what the command line gave."""
        files = {option: given.pop(name, None) for name, option in self.options.items()}
        return self._verb(files=files, **given)


def _own(option: DataOption) -> Any:
    """Make the type of an option that names files of the user's own."""
    kind: Any = Path if option.is_path else str
    flag = typer.Option(option.flag, metavar=option.metavar, help=option.help, rich_help_panel="Your own files, in place of the recipe's")
    return Annotated[(list[kind] if option.repeated else kind) | None, flag]
