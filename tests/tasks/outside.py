"""A task from outside the package, in one file: which of several authors wrote a line."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import typer
from pydantic import Field

from transom.cli.options import RunArgument
from transom.config.data import DataConfig, FilesConfig, TokenizerConfig
from transom.config.decoding import TextInferenceConfig
from transom.config.model import TextClassifierConfig
from transom.config.recipe import TextRecipe
from transom.config.task_options import Command, DataOption, TaskHelp
from transom.config.task_registry import register_task
from transom.data.pairs.pairs import Pairs
from transom.data.split import Splits, holdout
from transom.tasks.classification.schema import ClassificationTrainingConfig
from transom.tasks.classification.task import ClassificationTask
from transom.tasks.load import load

ABOUT = TaskHelp(
    options=(
        DataOption("--authors", "FOLDER", "For a critic: a folder of AUTHOR.txt.", "train", "folder"),
        DataOption("--valid-authors", "FOLDER", "The same for validation.", "valid", "folder", "--authors", "the lines to train on"),
    ),
    scored_by="a folder of AUTHOR.txt",
    commands=(Command("authors", "Name the authors that a model knows.", __name__),),
    evaluated_by="transom authors RUN --score FILE",
)


class AuthorFiles(FilesConfig):
    """A folder with a file of lines for each author."""

    folder: str = Field(..., description="the folder")

    @property
    def paths(self) -> list[str]:
        """The one folder."""
        return [self.folder]


class AuthorData(DataConfig):
    """Lines by their authors."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: AuthorFiles | None = Field(None, description="training lines")
    valid: AuthorFiles | None = Field(None, description="validation lines")
    test: AuthorFiles | None = Field(None, description="test lines")
    generate: None = Field(None, description="nothing is generated")
    too_long: Literal["truncate"] = Field("truncate", description="what becomes of a long line")

    @property
    def holdout_description(self) -> str:
        """Say what is taken for validation where no data are named."""
        return "10% of the lines, held out"


@register_task
class AuthorRecipe(TextRecipe):
    """A critic, which tells who wrote a line."""

    TASK: ClassVar[str] = f"{__name__}:AuthorTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "lines"
    COMMAND: ClassVar[str] = "classify"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A line"', '["A line"]')

    task: Literal["authors"] = Field("authors", description="what the model learns to do")
    data: AuthorData = Field(..., description="the examples")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(kind="char"), description="text to tokens")
    model: TextClassifierConfig = Field(TextClassifierConfig(), description="the network")
    training: ClassificationTrainingConfig = Field(ClassificationTrainingConfig(), description="the run")
    decoding: TextInferenceConfig = Field(TextInferenceConfig(), description="how lines are read")


class AuthorTask(ClassificationTask):
    """Lines with their authors, ready to be learnt from."""

    @classmethod
    def load(cls, recipe: Any, base: Path) -> Splits[Pairs]:
        """Read the lines; the target of each is its author."""

        def read(files: AuthorFiles) -> Pairs:
            folder = base / recipe.data.root / files.folder
            rows = [(line, file.stem) for file in sorted(folder.glob("*.txt")) for line in file.read_text().splitlines()]
            return Pairs([line for line, _ in rows], [author for _, author in rows], str(folder))

        train = read(recipe.data.train)
        train, valid = holdout(train, train.source, 0.1, "lines") if recipe.data.valid is None else (train, read(recipe.data.valid))
        return Splits(train, valid)


EXAMPLES = "\ntransom authors runs/lines\n"

app = typer.Typer(add_completion=False)


@app.command()
def authors(run: RunArgument) -> None:
    """A line of all names."""
    print(*load(run).model.config.classes)
