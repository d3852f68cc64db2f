"""The recipe of a text classifier, and what it alone has."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import Data, LabelledFiles, Phrasebook, Tokenizer
from transom.config.decoding import Reading
from transom.config.model import TextClassifier
from transom.config.options import DataOption, TaskHelp, Verb
from transom.config.recipe import TextRecipe
from transom.config.registry import register_task
from transom.config.training import ConsistentTraining, EncoderTraining

ABOUT = TaskHelp(
    options=(
        DataOption(
            "--labelled", "FILE", "For a classifier: a .tsv, .csv or .jsonl file of texts and their classes (.gz too).", "train", "file"
        ),
        DataOption(
            "--valid-labelled",
            "FILE",
            "Validation texts with their classes; left out, 10 % is split off.",
            "valid",
            "file",
            "--labelled",
            "the texts to train on",
        ),
    ),
    order=5,
    scored_by="a .tsv, .csv or .jsonl file of texts and their classes",
    verbs=(Verb("classify", "Name the class of a text, or of each line of a file."),),
)


class LabelledData(Data):
    """Texts, each of a class."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: LabelledFiles | None = Field(None, description="training texts")
    valid: LabelledFiles | None = Field(None, description="validation texts; left out, 10 % of train is split off by hash")
    test: LabelledFiles | None = Field(None, description="test texts: only the data report reads them, to tell which stand in train")
    generate: Phrasebook | None = Field(None, description="sentences of the built-in phrasebook, whose class is their language")
    too_long: Literal["truncate", "drop", "refuse"] = Field(
        "truncate",
        description="a training text of more than model.max_seq_len tokens: its beginning stands for it, it is left out, or it is"
        " refused; of a validation text its beginning does, unless it is refused",
    )

    @property
    def split_off(self) -> str:
        """Say what is taken for validation where no data are named."""
        return "10 % of the training texts, split off by hash"


class ClassificationTraining(EncoderTraining, ConsistentTraining):
    """One training run of a classifier."""

    token_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability that a token of a training text is left out, drawn anew each time (Iyyer et al. 2015)",
    )
    validate_samples: int = Field(5, ge=0, description="validation texts whose class is told at a validation, to be shown")


@register_task
class ClassificationRecipe(TextRecipe):
    """A text classifier: an encoder that learns the class of each text."""

    TASK: ClassVar[str] = "transom.tasks.classification.task:ClassificationTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "texts"
    VERB: ClassVar[str] = "classify"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text"', '["A text"]')

    task: Literal["classification"] = Field("classification", description="what the model learns to do")
    data: LabelledData = Field(..., description="the examples")
    tokenizer: Tokenizer = Field(Tokenizer(), description="text to tokens")
    model: TextClassifier = Field(TextClassifier(), description="the network; preset = NAME starts from a published one")
    training: ClassificationTraining = Field(ClassificationTraining(), description="the run")
    decoding: Reading = Field(Reading(), description="how texts are read")
