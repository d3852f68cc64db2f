"""Options shared by several commands."""

from collections.abc import Callable, Mapping
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from transom.config.arguments import data_arguments
from transom.config.task_options import DataOption
from transom.errors import ConfigError

RecipeArgument = Annotated[
    str, typer.Argument(metavar="NAME_OR_FILE", help="Name of a packaged recipe (see transom recipes) or path of a TOML file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a field of the recipe, as in training.max_steps=300. Repeatable."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, written by transom train --out.")]
SourceOption = Annotated[Path, typer.Option("--source", metavar="FILE", help="Source sentences, one per line (.gz too).")]
TargetOption = Annotated[
    Path, typer.Option("--target", metavar="FILE", help="Reference translations, one per line, aligned with --source.")
]
TargetLanguageOption = Annotated[
    str | None, typer.Option("--to", metavar="TAG", help="Target language of a multilingual model: a tag from its data.languages.")
]
BeamSizeOption = Annotated[int | None, typer.Option("--beam-size", min=1, help="Beam size; 1 is greedy decoding. Default: the recipe's.")]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option("--length-penalty", min=0, help="Exponent alpha of GNMT's length penalty (Wu et al. 2016). Default: the recipe's."),
]
PrecisionOption = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"], typer.Option("--precision", help="Precision of matrix products; auto chooses by hardware.")
]
DecodingPrecisionOption = Annotated[
    Literal["auto", "fp32", "bf16", "fp16", "int8"],
    typer.Option("--precision", help="Precision of matrix products; auto chooses by hardware. int8 is fastest on CPUs and less accurate."),
]


def _too_long_option(about: str) -> Any:
    """Build the option that chooses how texts longer than the context window are treated."""
    return typer.Option("--too-long", help=f"How to treat texts longer than the context window: {about}")


TranslateTooLong = Annotated[Literal["split", "refuse"], _too_long_option("split at sentence boundaries, or refuse with an error.")]
ClassifyTooLong = Annotated[
    Literal["truncate", "window", "refuse"] | None,
    _too_long_option("truncate, classify in windows, or refuse with an error. Default: truncate. Texts only."),
]
EmbedTooLong = Annotated[
    Literal["truncate", "window", "refuse"], _too_long_option("truncate, average over windows, or refuse with an error.")
]
ScoreTooLong = Annotated[
    Literal["window", "truncate", "refuse"] | None,
    _too_long_option("score in windows, truncate, or refuse with an error. Default: window. With --text only."),
]
FillTooLong = Annotated[Literal["window", "refuse"], _too_long_option("read a window around each [MASK], or refuse with an error.")]
GenerateTooLong = Annotated[
    Literal["window", "refuse"], _too_long_option("drop the first half of a full window and continue, or refuse with an error.")
]
CompareTooLong = Annotated[
    Literal["truncate", "refuse"] | None, _too_long_option("truncate, or refuse with an error. Default: truncate. Texts only.")
]

TRUNCATED_NOTE = "truncated"
"""Treatment of truncated texts, as printed."""

WINDOWS_NOTE = "read in windows"
"""Treatment of texts read in windows, as printed."""

SPLIT_NOTE = "split at sentence boundaries where possible"
"""Treatment of texts that are split, as printed."""


def reject_options(values: Mapping[str, object], needed: str, found: str) -> None:
    """Reject options that would have no effect.

    Args:
        values: value of each option, None where it was not given.
        needed: the input that the options apply to.
        found: the input that was given.

    Raises:
        ConfigError: one of the options was given.
    """
    for flag, value in values.items():
        if value is not None:
            raise ConfigError(f"expected {flag} with {needed}, found it with {found}; leave it out")


class WithDataOptions:
    """Decorator that adds the data options of all registered tasks to a command; the command gets their values as ``files``.

    The options are collected from the tasks each time the command line is built.
    """

    def __init__(self, command: Callable[..., Any], wanted: Callable[[DataOption], bool] = lambda _: True) -> None:
        """Wrap a function with a parameter ``files``; ``wanted`` selects the options to add."""
        update_wrapper(self, command)
        self._command, self._wanted = command, wanted

    @property
    def options(self) -> dict[str, DataOption]:
        """The options by the names that their values are passed under."""
        return data_arguments(self._wanted)

    @property
    def __signature__(self) -> Signature:
        """The function's signature with ``files`` replaced by the options."""
        parameters = list[Parameter]()
        for each in signature(self._command).parameters.values():
            if each.name == "files":
                parameters += [
                    Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_typer_option(option))
                    for name, option in self.options.items()
                ]
            else:
                parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY))
        return Signature(parameters)

    def __call__(self, **values: Any) -> Any:
        """Call the function with the values from the command line."""
        files = {option: values.pop(name, None) for name, option in self.options.items()}
        return self._command(files=files, **values)


def _typer_option(option: DataOption) -> Any:
    """Build the annotation of an option that names the user's data files."""
    kind: Any = Path if option.is_path else str
    flag = typer.Option(option.flag, metavar=option.metavar, help=option.help, rich_help_panel="Your data files, in place of the recipe's")
    return Annotated[(list[kind] if option.repeated else kind) | None, flag]
