"""Options that several verbs share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

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


def _own(flag: str, metavar: str, about: str) -> Any:
    """Make an option that names files of the user's own."""
    return typer.Option(flag, metavar=metavar, help=about, rich_help_panel="Your own files, in place of the recipe's")


TrainSource = Annotated[Path | None, _own("--source", "FILE", "Training source, one sentence a line (.gz too).")]
TrainTarget = Annotated[Path | None, _own("--target", "FILE", "Its translations, line by line.")]
ValidSource = Annotated[Path | None, _own("--valid-source", "FILE", "Validation source; left out, 1 % is split off.")]
ValidTarget = Annotated[Path | None, _own("--valid-target", "FILE", "Validation target.")]
TrainText = Annotated[
    list[Path] | None, _own("--text", "PATH", "For a language model: a text file or a folder (.gz too); may be repeated.")
]
ValidText = Annotated[list[Path] | None, _own("--valid-text", "PATH", "Validation text; left out, 5 % is split off.")]
TrainLabelled = Annotated[
    Path | None, _own("--labelled", "FILE", "For a classifier: a .tsv, .csv or .jsonl file of texts and their classes (.gz too).")
]
ValidLabelled = Annotated[
    Path | None, _own("--valid-labelled", "FILE", "Validation texts with their classes; left out, 10 % is split off.")
]
TrainInstructions = Annotated[
    Path | None, _own("--instructions", "FILE", "For a model that answers: a .tsv, .csv or .jsonl file of prompts and answers.")
]
ValidInstructions = Annotated[
    Path | None, _own("--valid-instructions", "FILE", "Validation prompts and answers; left out, 1 % is split off.")
]
TrainImages = Annotated[Path | None, _own("--images", "PATH", "For a classifier of images: a folder or .zip of CLASS/NAME.jpg.")]
ValidImages = Annotated[Path | None, _own("--valid-images", "PATH", "Validation images, likewise; left out, 10 % is split off.")]
Suffix = Annotated[list[str] | None, _own("--suffix", ".EXT", "Ending of the files that are taken out of folders.")]


def of_own_files(recipe: str, overrides: Sequence[str], given: Mapping[str, list[str]]) -> list[str]:
    """Return the overrides of the one kind of files that was named, if any, and that the recipe learns from.

    Args:
        recipe: name or file.
        overrides: what ``--set`` changes, the task perhaps.
        given: the overrides of each kind of files, by its flags.

    Raises:
        ConfigError: files of several kinds were named, or of a kind that the recipe does not know.
    """
    from transom.config.recipe import flags_of

    named = [flags for flags, sets in given.items() if sets]
    if len(named) > 1:
        raise ConfigError(f"expected files of one kind, found {' beside '.join(named)}; remove all but one")
    if named and named[0] != (wanted := flags_of(recipe, overrides)):
        raise ConfigError(
            f"{recipe} learns from {wanted}, found {named[0]}; name such files, or choose another recipe (transom recipes lists them)"
        )
    return [each for sets in given.values() for each in sets]


def file_overrides(source: Path | None, target: Path | None, valid_source: Path | None, valid_target: Path | None) -> list[str]:
    """Turn the file flags into overrides; paths on the command line start from the current folder, whatever data.root says."""
    sets = []
    for part, pair in (("train", (source, target)), ("valid", (valid_source, valid_target))):
        flags = ("--source", "--target") if part == "train" else ("--valid-source", "--valid-target")
        if (pair[0] is None) != (pair[1] is None):
            given, missing = flags if pair[1] is None else flags[::-1]
            raise ConfigError(f"{given} needs {missing} beside it: two files, line by line translations of each other")
        if pair[0] is not None and pair[1] is not None:
            sets.append(f"data.{part}={{ source = {quoted(pair[0])}, target = {quoted(pair[1])} }}")
    return _in_place_of_all(sets)


def labelled_overrides(labelled: Path | None, valid_labelled: Path | None) -> list[str]:
    """Turn the flags of labelled texts into overrides, as ``file_overrides`` does."""
    return _two_parts("--labelled", "texts", "file", labelled, valid_labelled)


def instruction_overrides(instructions: Path | None, valid_instructions: Path | None) -> list[str]:
    """Turn the flags of instructions into overrides, as ``file_overrides`` does."""
    return _two_parts("--instructions", "instructions", "file", instructions, valid_instructions)


def image_overrides(images: Path | None, valid_images: Path | None) -> list[str]:
    """Turn the flags of images into overrides, as ``file_overrides`` does."""
    return _two_parts("--images", "images", "images", images, valid_images)


def _two_parts(flag: str, what: str, field: str, train: Path | None, valid: Path | None) -> list[str]:
    if train is None and valid is not None:
        raise ConfigError(f"--valid-{flag.removeprefix('--')} needs {flag} beside it: the {what} to train on")
    named = [(part, path) for part, path in (("train", train), ("valid", valid)) if path is not None]
    return _in_place_of_all([f"data.{part}={{ {field} = {quoted(path)} }}" for part, path in named])


def _in_place_of_all(sets: list[str]) -> list[str]:
    """Where training files are named, leave out all data that the recipe itself names."""
    if not any(each.startswith("data.train=") for each in sets):
        return sets
    return [*(f"data.{part}=none" for part in ("valid", "test", "generate")), *sets]


def text_overrides(text: list[Path] | None, valid_text: list[Path] | None, suffixes: list[str] | None) -> list[str]:
    """Turn the flags of text into overrides, as ``file_overrides`` does."""
    if text is None and (valid_text or suffixes):
        raise ConfigError(f"{'--valid-text' if valid_text else '--suffix'} needs --text beside it: the text to train on")
    if text is None:
        return []
    only = f", suffixes = [{', '.join(map(_toml, suffixes))}]" if suffixes else ""
    named = [(part, paths) for part, paths in (("train", text), ("valid", valid_text)) if paths]
    return _in_place_of_all([f"data.{part}={{ files = [{', '.join(map(quoted, paths))}]{only} }}" for part, paths in named])


def quoted(path: Path) -> str:
    """Spell a path, absolute, as TOML.

    Raises:
        ConfigError: its name is not UTF-8, so no recipe can hold it.
    """
    text = str(path.absolute())
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"{text!a}: expected a name in UTF-8, as a recipe is written in, found other bytes; rename it")
    return _toml(text)


def _toml(text: str) -> str:
    import tomli_w

    return tomli_w.dumps({"": text}).split("=", 1)[1].strip()
