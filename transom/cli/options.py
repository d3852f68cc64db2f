"""Options shared by several commands."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import update_wrapper, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from transom.config.arguments import data_arguments
from transom.config.task_options import TABLES, DataOption
from transom.errors import ConfigError, TransomError

if TYPE_CHECKING:
    from transom.config.data import PairFilesConfig, TextFilesConfig

RecipeArgument = Annotated[
    str, typer.Argument(metavar="NAME_OR_FILE", help="Name of a packaged recipe (see transom recipes) or path of a TOML file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a field of the recipe, such as training.max_steps=300. Repeatable."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that transom train --out RUN wrote.")]
TextArgument = Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Text to run the model on.", show_default=False)]
InputFileOption = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="Text file (may be gzipped), or an image or sound for such a model.")
]
SampleOption = Annotated[
    str | None,
    typer.Option(
        "--sample",
        metavar="SAMPLE",
        help="Sample of the run's validation data instead: its number, from 0, or the name of an image or sound, as the report has it.",
    ),
]
SourceOption = Annotated[
    Path | None, typer.Option("--source", metavar="FILE", help="File of source sentences, one per line (may be gzipped).")
]
TargetOption = Annotated[
    Path | None, typer.Option("--target", metavar="FILE", help="File of reference translations. Line N translates line N of --source.")
]
TargetLanguageOption = Annotated[
    str | None,
    typer.Option("--to", metavar="TAG", help="Target language of a multilingual model, as a tag in data.languages of its recipe."),
]
BeamSizeOption = Annotated[
    int | None,
    typer.Option("--beam-size", min=1, help="Beam size, where 1 means greedy decoding. Default: decoding.beam_size of the recipe."),
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        min=0,
        help="Exponent alpha of the length penalty of GNMT (Wu et al. 2016). Default: decoding.length_penalty of the recipe.",
    ),
]
PairsOption = Annotated[
    Path | None,
    typer.Option(
        "--pairs", metavar="FILE", help=f"{TABLES} file of source sentences and reference translations, in place of --source and --target."
    ),
]


def require_one_input(text: str | None, input_file: Path | None) -> None:
    """Raise unless either a text or a file is given.

    Raises:
        ConfigError: both or neither are given.
    """
    if (text is None) == (input_file is None):
        raise ConfigError("expected TEXT or --input, found both or neither; give one of them")


def require_one_input_or_sample(text: str | None, input_file: Path | None, sample: str | None, target: str | None) -> None:
    """Raise unless either a text, a file or a sample is given, or if a sample, which has its own target, comes with another one.

    Raises:
        ConfigError: several or none are given.
    """
    if sum(each is not None for each in (text, input_file, sample)) != 1:
        raise ConfigError("expected TEXT, --input or --sample, found several or none; give one of them")
    if sample is not None and target is not None:
        raise ConfigError("--target: expected none with --sample, whose target is that of the data, found both; leave one out")


def read_sample(run: Path, sample: str | None) -> Any:
    """Read a sample of the validation data of a run; None if none is asked for.

    Raises:
        ConfigError: the run has no such sample.
        DataError: its data have moved or changed.
    """
    if sample is None:
        return None
    from transom.cli.output import print_note
    from transom.tasks.run_data import load_sample

    with option_errors(sample="--sample"):
        return load_sample(run, sample, print_note)


@contextmanager
def option_errors(**options: str) -> Iterator[None]:
    """Begin a message about an argument of a function with the option or argument of the command line that sets it.

    Args:
        **options: option or argument per argument of the functions that the block calls, such as ``blocks="--blocks"``.
    """
    try:
        yield
    except TransomError as error:
        found = re.match(rf"(?:[a-z-]+: )?({'|'.join(options)}): ", str(error))  # the message on an edit begins with its kind
        if found is None:
            raise
        raise type(error)(f"{options[found[1]]}: {str(error)[found.end() :]}") from None


def column_option(name: str, what: str) -> Any:
    """Build the option that selects a column of a table."""
    default = f"the column of the training data, or one with a common name, such as {name}"
    help_text = f"Column of the {what}, by name or index from 0. Default: {default}."
    return typer.Option(f"--{name}-field", metavar="NAME", help=help_text)


TextFieldOption = Annotated[str | None, column_option("text", "text")]
SecondFieldOption = Annotated[
    str | None,
    typer.Option(
        "--second-field",
        metavar="NAME",
        help="Column of the second text of pairs, by name or index from 0. Default: that of the training data, or none: single texts.",
    ),
]
HeaderOption = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a table is a header. Default: yes if it contains common column names, such as text or label.",
    ),
]
PrecisionOption = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    typer.Option("--precision", help="Data type of matrix products. auto selects one for this hardware."),
]
InferencePrecisionOption = Annotated[
    Literal["auto", "fp32", "bf16", "fp16", "int8"],
    typer.Option(
        "--precision", help="Data type of matrix products. auto selects one for this hardware. int8 is fastest on CPUs and less accurate."
    ),
]


def _too_long_option(about: str) -> Any:
    """Build the option that chooses how texts longer than the context window are treated."""
    return typer.Option("--too-long", help=f"How to treat texts longer than the context window: {about}")


TranslateTooLong = Annotated[Literal["split", "refuse"], _too_long_option("split (at sentence boundaries) or refuse (stop with an error).")]
EvaluateTooLong = Annotated[
    Literal["split", "window", "refuse"] | None,
    _too_long_option(
        "split (sentences, at sentence boundaries), window (prompts: continue from the last half of the tokens) or refuse (stop with an"
        " error). Default: split or window."
    ),
]
ClassifyTooLong = Annotated[
    Literal["truncate", "window", "refuse"] | None,
    _too_long_option(
        "truncate (read only the beginning), window (average the probabilities of windows; not for pairs of texts) or refuse"
        " (stop with an error). Default: truncate, pairs from the end of the longer text. Text models only."
    ),
]
EmbedTooLong = Annotated[
    Literal["truncate", "window", "refuse"],
    _too_long_option("truncate (read only the beginning), window (average over windows) or refuse (stop with an error)."),
]
ScoreTooLong = Annotated[
    Literal["window", "truncate", "refuse"] | None,
    _too_long_option(
        "window (score window by window), truncate (score only the beginning) or refuse (stop with an error)."
        " Default: window. Only with --text."
    ),
]
FillTooLong = Annotated[
    Literal["window", "refuse"], _too_long_option("window (read a window around each [MASK]) or refuse (stop with an error).")
]
TagTooLong = Annotated[Literal["window", "refuse"], _too_long_option("window (tag window by window) or refuse (stop with an error).")]
GenerateTooLong = Annotated[
    Literal["window", "refuse"],
    _too_long_option("window (drop the first half of the tokens and continue) or refuse (stop with an error)."),
]
CompareTooLong = Annotated[
    Literal["split", "window", "truncate", "refuse"] | None,
    _too_long_option(
        "split (sentences to translate), window (texts to score or classify), truncate (texts to classify) or refuse (stop with an error)."
        " Default: split for translators, window for language models, truncate for classifiers."
    ),
]
CompareAttentionTooLong = Annotated[
    Literal["truncate", "refuse"] | None,
    _too_long_option("truncate (read only the beginning) or refuse (stop with an error). Default: truncate. Text models only."),
]

TRUNCATED_NOTE = "truncated"
"""Description of texts that were truncated, for ``note_too_long``."""

WINDOWS_NOTE = "read in windows"
"""Description of texts that were read in windows, for ``note_too_long``."""

SPLIT_NOTE = "split at sentence boundaries where possible"
"""Description of sentences that were split, for ``note_too_long``."""


def reject_options(values: Mapping[str, object], needed: str, found: str) -> None:
    """Reject options that would have no effect on the given input.

    Args:
        values: value of each option, None where it was not given.
        needed: the input that the options apply to.
        found: the input that was given.

    Raises:
        ConfigError: one of the options was given.
    """
    for flag, value in values.items():
        if value is not None:
            raise ConfigError(f"expected {flag} only with {needed}, found {flag} with {found}; leave {flag} out")


def too_long_policy(given: str | None, accepted: Sequence[str], what: str) -> Any:
    """Return how long texts are treated: the value of ``--too-long``, or by default the first of the accepted values.

    Args:
        given: value of the option; None where it was not given.
        accepted: values that apply to the model of the run.
        what: name of the model in messages, such as "a translator".

    Raises:
        ConfigError: the value does not apply to the model.
    """
    if given is not None and given not in accepted:
        raise ConfigError(f"--too-long: expected {' or '.join(accepted)} with {what}, found {given}; give one of them")
    return given or accepted[0]


class PairFiles(NamedTuple):
    """Options that name the files of a translation test set, one option per field.

    Attributes:
        source: source sentences, one per line.
        target: reference translations, one per line.
        pairs: a table of source sentences and reference translations.
        source_field: column of the source sentence in the table, by name or index.
        target_field: column of the reference translation in the table, by name or index.
        header: whether the first line of the table is a header.
    """

    source: SourceOption = None
    target: TargetOption = None
    pairs: PairsOption = None
    source_field: Annotated[str | None, column_option("source", "source sentence")] = None
    target_field: Annotated[str | None, column_option("target", "reference translation")] = None
    header: HeaderOption = None

    @property
    def paths(self) -> list[Path]:
        """Paths of the files that were given."""
        return [path for path in (self.source, self.target, self.pairs) if path is not None]

    def check(self) -> None:
        """Check that either two aligned files or one table are given.

        Raises:
            ConfigError: neither or both are given, or options that select columns are given without a table.
        """
        given = [f"--{name}" for name in ("source", "target", "pairs") if getattr(self, name) is not None]
        if given not in (["--source", "--target"], ["--pairs"]):
            raise ConfigError(
                f"expected --source and --target, or --pairs, found {' and '.join(given) or 'none of them'}; give one or the other"
            )
        if self.pairs is None:
            of_table = {"--source-field": self.source_field, "--target-field": self.target_field, "--header": self.header}
            reject_options(of_table, "--pairs", "--source and --target")

    def config(self, columns: Mapping[str, Any], header: bool | None = None) -> "PairFilesConfig":
        """Convert the options to the schema by which a recipe names files.

        Args:
            columns: the columns to read, by field, where no option selects a column.
            header: whether the first line of the table is a header; None to use the option.
        """
        from transom.config.data import PairFilesConfig

        fields = {name: value for name in ("source_field", "target_field") if (value := getattr(self, name)) is not None}
        paths = {name: str(path.absolute()) for name in ("source", "target", "pairs") if (path := getattr(self, name)) is not None}
        return PairFilesConfig(**paths, **{**columns, **fields}, header=self.header if header is None else header)


class TextFileOptions(NamedTuple):
    """Options that name text files to score with a language model, one option per field.

    Attributes:
        text: text files or folders.
        suffix: suffixes of the files to read from folders.
        document: part of a file that is scored as one text: the file, a paragraph or a line.
        text_field: column of the text in tables.
        start: fraction of all characters to skip.
        overlap: number of tokens that two consecutive windows of a long text share.
    """

    text: Annotated[
        list[Path] | None, typer.Option("--text", metavar="PATH", help="Text file or folder to score with a language model. Repeatable.")
    ] = None
    suffix: Annotated[
        list[str] | None, typer.Option("--suffix", help="Suffix of the files to read from folders, such as .py. Repeatable.")
    ] = None
    document: Annotated[
        Literal["file", "paragraph", "line"] | None,
        typer.Option("--document", help="Part of a file that is scored as one text. Default: file."),
    ] = None
    text_field: Annotated[
        str | None,
        typer.Option(
            "--text-field",
            metavar="NAME",
            help="Column of the text, by name or index from 0. Default: the column with a common name, such as text.",
        ),
    ] = None
    start: Annotated[
        float | None,
        typer.Option(
            "--start", min=0, max=1, help="Fraction of the text to skip at the beginning, in characters of all files together. Default: 0."
        ),
    ] = None
    overlap: Annotated[
        int | None,
        typer.Option(
            "--overlap",
            min=0,
            help="Number of tokens that each window of a long text repeats from the previous one as context. Default: 0, as in validation.",
        ),
    ] = None

    def config(self) -> "TextFilesConfig":
        """Convert the options to the schema by which a recipe names text files.

        Raises:
            ConfigError: an option has an invalid value.
        """
        from transom.config.data import TextFilesConfig
        from transom.config.error_messages import validate

        raw = {
            "files": [str(path.absolute()) for path in self.text or []],
            "suffixes": self.suffix,
            "document": self.document or "file",
            "text_field": self.text_field,
            "start": self.start or 0.0,
        }
        return validate(TextFilesConfig, raw, lambda path: "--" + ".".join(path))


class LabeledColumns(NamedTuple):
    """Options that select the columns of a table of labeled texts, one option per field.

    Attributes:
        text_field: column of the text, by name or index.
        second_field: column of the second text of pairs, by name or index.
        label_field: column of the class, by name or index.
        header: whether the first line of the table is a header.
    """

    text_field: TextFieldOption = None
    second_field: SecondFieldOption = None
    label_field: Annotated[str | None, column_option("label", "class")] = None
    header: HeaderOption = None


def given_options(group: Any) -> dict[str, Any]:
    """Return the value of each option of a group by flag; None for options that were not given."""
    return {f"--{name.replace('_', '-')}": value for name, value in group._asdict().items()}


def expand_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command so that each parameter that is a group of options is replaced by one option per field.

    An example of such a group is ``PairFiles``.
    """
    parameters, groups = list[Parameter](), dict[str, Any]()
    for each in signature(command).parameters.values():
        if hasattr(each.annotation, "_fields"):
            groups[each.name] = each.annotation
            hints = each.annotation.__annotations__
            parameters += [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in hints]
        else:
            parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def expanded(**values: Any) -> Any:
        given = {name: group(**{field: values.pop(field) for field in group._fields}) for name, group in groups.items()}
        return command(**given, **values)

    expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    return expanded


class WithDataOptions:
    """Decorator that adds the data file options of all registered tasks to a command.

    The command receives the values of these options in its parameter ``files``. The options are collected from the tasks each time the
    command line is built.
    """

    def __init__(self, command: Callable[..., Any], wanted: Callable[[DataOption], bool] = lambda _: True) -> None:
        """Wrap a command.

        Args:
            command: a function with a parameter ``files``.
            wanted: predicate that selects the options to add.
        """
        update_wrapper(self, command)
        self._command, self._wanted = command, wanted

    @property
    def options(self) -> dict[str, DataOption]:
        """The added options by the names of their parameters."""
        return data_arguments(self._wanted)

    @property
    def __signature__(self) -> Signature:
        """Signature of the command with ``files`` replaced by the added options."""
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
        """Call the command with the values of its options."""
        files = {option: values.pop(name, None) for name, option in self.options.items()}
        return self._command(files=files, **values)


def _typer_option(option: DataOption) -> Any:
    """Build the Typer annotation of an option that names or describes the user's data files."""
    kind: Any = bool if option.is_flag else Path if option.is_path else str
    declaration = f"{option.flag}/{option.flag.replace('--', '--no-', 1)}" if option.is_flag else option.flag
    panel = (
        "Columns of your data files"
        if (option.is_flag and option.is_text) or option.field.endswith("_field")
        else "Your data files, in place of the recipe's"
    )
    flag = typer.Option(declaration, metavar=option.metavar, help=option.help, rich_help_panel=panel)
    return Annotated[(list[kind] if option.repeated else kind) | None, flag]
